/* staged.cuh - tasks with weights and one token row: decode. Its activations lie in shared memory
 * as 16-bit floats.
 *
 *   before the event   all that does not depend on other tasks: addresses, the thread's first item,
 *                      biases, weights of the norm, the warp's first page into registers
 *   after it           activations ─ barrier ─ pages, partial sums ─ barrier ─ results
 *
 * What comes after the event is the critical path of every layer, run by eight warps that do the
 * same at the same time: nothing hides anything, so an instruction costs its latency, some five
 * cycles, a word of shared memory thirty. Hence the first part.
 *
 * A page in registers is one that the ring has room for again: eight of them are a third of it,
 * what memory brings in 1.9 us on an H200. And eight pages that need not be read from shared memory
 * after the event are 64 KB at 128 bytes a cycle. What it was worth: docs/performance-log.md.
 */
#ifndef QN_CUDA_COMMON_STAGED_CUH
#define QN_CUDA_COMMON_STAGED_CUH

#include "kernels/cuda/common/ops_linear.cuh"

/* A task at work. */
struct staged {
    struct linear_tile t;
    struct act row;          /* the activations */
    uint32_t first, end;     /* row blocks of the group at work */
    const char *x;           /* the lane's activations */
    struct linear_item item; /* the thread's first of the group: row c->thread % 8 of a row block */
};

/* Item i of row blocks [first, end): row i % 8 of a block. Nothing beyond them. */
DEV struct linear_item staged_item(const struct cuda_task *task, uint32_t first, uint32_t end,
                                   uint32_t i) {
    if (i >= (end - first) * 8) return {};
    return op_item<true>(task, first + i / 8, i % 8, 0);
}

/* The group that begins at row block `first`. */
DEV void staged_group(const struct warp_context *c, struct staged *s, uint32_t first) {
    const struct cuda_task *task = s->t.task;
    s->first = first;
    s->end = walk_group_end(first, task->block1, task->group, task->unit_blocks);
    s->item = staged_item(task, first, s->end, c->thread);
}

/* A page in registers: what the lane multiplies of each of its steps. */
struct held_page {
    uint4 a[CUDA_PAGE_K / 16];
    uint32_t block, k; /* of its row block and k-tile; no block of the task: nothing is held */
};

/* Takes the warp's first page of the group, if it has one and that has come. What is loaded
 * otherwise is not looked at: the compiler spills arrays that are loaded or not. */
DEV void staged_hold(struct warp_context *c, const struct staged *s, struct held_page *h) {
    const uint32_t slot = page_slot(c->warp, c->page);
    const bool come = barrier_test_acquire_cta(&SHARED->page_full[slot], page_parity(c->page));
    h->block = s->first;
    for (h->k = (c->warp - c->turn) % WARPS; h->k >= s->t.k_tiles; h->k -= s->t.k_tiles) h->block++;
    const bool there = h->block < s->end && __all_sync(~0u, come);
    const uint4 *from = (const uint4 *)(RING + slot * CUDA_PAGE_BYTES) + c->lane;
    if (!there) from = (const uint4 *)&SHARED->args;
    const uint32_t step = there ? 32 : 0;
#pragma unroll
    for (int i = 0; i < CUDA_PAGE_K / 16; i++) h->a[i] = from[i * step];
    if (there)
        page_release(c);
    else
        h->block = ~0u;
}

/* What a task has when its activations are there: the row block whose chains have begun, ~0: none;
 * the first item's residual on its way. */
struct staged_begun {
    uint32_t block;
    float chains[2][4];
    struct linear_addend add;
    bool ends; /* the launch does */
};

/* The lane's activations of a k-tile. */
DEV const uint4 *staged_x(const struct staged *s, uint32_t k) {
    return (const uint4 *)(s->x + k * CUDA_PAGE_K * 2);
}

/* A page in registers times those. */
DEV void page_multiply(float chains[2][4], const uint4 a[CUDA_PAGE_K / 16], const uint4 *x) {
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint4 b = x[4 * pair];
        mma_16x8x16<WEIGHT_E>(chains[0], a[2 * pair], b.x, b.y);
        mma_16x8x16<WEIGHT_E>(chains[1], a[2 * pair + 1], b.z, b.w);
    }
}

/* The held page's products. */
DEV void held_multiply(const struct staged *s, const struct held_page *h, struct staged_begun *to) {
    to->block = h->block;
    if (h->block != ~0u) page_multiply(to->chains, h->a, staged_x(s, h->k));
}

/* Row blocks [first, end). A page is in registers before it is multiplied: its slot is free for
 * the loader that much earlier. */
DEV void staged_pages(struct warp_context *c, const struct staged *s,
                      const struct staged_begun *at) {
    const uint32_t k_tiles = s->t.k_tiles;
    for (uint32_t b = s->first; b < s->end; b++) {
        const uint32_t partial = (c->warp - c->turn) % WARPS;
        const bool begun = b == at->block;
        if (partial < k_tiles) {
            float chains[2][4];
#pragma unroll
            for (int i = 0; i < 8; i++) chains[i / 4][i % 4] = begun ? at->chains[i / 4][i % 4] : 0;
            for (uint32_t k = partial + (begun ? PARTIALS : 0); k < k_tiles; k += PARTIALS) {
                const uint4 *page = page_acquire(c);
                uint4 a[CUDA_PAGE_K / 16];
#pragma unroll
                for (int i = 0; i < CUDA_PAGE_K / 16; i++) a[i] = page[i * 32 + c->lane];
                page_release(c);
                page_multiply(chains, a, staged_x(s, k));
            }
            store_partial(&s->t, c, b - s->first, partial, 0, chains);
        }
        c->turn = turn_after(c->turn, k_tiles);
    }
}

/* The group's partial sums are there: results, the thread's first item and what is 256 further. */
DEV void staged_finish(const struct warp_context *c, struct staged *s, struct linear_addend add) {
    const struct cuda_task *task = s->t.task;
    const uint32_t n_items = (s->end - s->first) * 8, r = c->lane % 8;
    const bool pairs = task->kind == OP_GATED_MLP && (task->flags & CUDA_OUT_PAIRED);
#pragma unroll 1
    for (uint32_t i = c->thread; i < n_items;) {
        const uint32_t in_group = i / 8;
        const float inv = task->norm == 0 ? 1 : inverse_rms(SHARED->warp_sum);
        float v0 = sum_partials(&s->t, in_group, 0, r);
        float v1 = sum_partials(&s->t, in_group, 0, r + 8);
        if (!pairs)
            op_store<0>(task, &s->item, s->first + in_group, r,
                        op_value(task, v0, v1, inv, s->item.bias, addend_await(&s->item, &add)));
        else if (r % 2 == 0)
            op_finish_pair(task, &s->item, s->first + in_group, r, inv, v0, v1,
                           sum_partials(&s->t, in_group, 0, r + 1),
                           sum_partials(&s->t, in_group, 0, r + 9));
        i += COMPUTE_THREADS;
        if (i >= n_items) break;
        s->item = staged_item(task, s->first, s->end, i);
        add = addend_ask(&s->item);
    }
}

/* Activations, and their sum of squares if they are to be normed. The widths are read anew: else
 * what was compared before the event would be kept for after it, in more predicates than there are.
 */
template <bool NORM>
DEV void staged_rows(const struct warp_context *c, const struct staged *s,
                     const struct early *early) {
    const struct cuda_task *task = s->t.task;
    const uint32_t k = shared_load_volatile(&task->k);
    const uint32_t k_tiles = shared_load_volatile(&task->k_tiles);
    if (NORM)
        stage_stream(c, s->row, (const float *)task->norm, early, s->t.act, SHARED->warp_sum);
    else if (task->flags & CUDA_IN_PAIRED)
        stage_pairs(c, s->row, k, k_tiles * CUDA_PAGE_K, s->t.act);
    else
        stage_floats(c, s->row, k, k_tiles * CUDA_PAGE_K, s->t.act);
    sync_compute();
}

/* All that is found before the event. */
DEV void staged_begin(const struct warp_context *c, const struct cuda_task *task,
                      struct staged *s) {
    s->t = linear_begin(task, 1);
    s->t.n = 1;
    s->t.act = SCRATCH + 4 * (task->kind == OP_LM_HEAD ? LM_BLOCK : 0);
    s->t.partials = (float *)(s->t.act + s->t.k_tiles * CUDA_PAGE_K * 2);
    s->row = op_row(task);
    /* All eight columns of a product are the same row; the first is stored. */
    s->x = s->t.act + c->lane % 4 * 16;
    staged_group(c, s, task->block0);
}

/* Whether a page is held by a task whose activations are normed, or not. A thread's share of a wide
 * norm and a page are more registers than there are. */
template <bool NORM> DEV constexpr bool staged_holds(void) {
    return PAGES_ARE_HELD && (!NORM || STREAM_FOURS <= 2);
}

/* A task from before its event to its activations. NORM: whether they are normed. */
template <bool NORM>
DEV struct staged_begun staged_start(struct warp_context *c, const struct staged *s) {
    const struct cuda_task *task = s->t.task;
    struct early early;
    struct held_page held;
    struct staged_begun begun = {~0u};
    if (NORM) early_norm((const float *)task->norm, c->thread, &early);
    if (staged_holds<NORM>()) staged_hold(c, s, &held);
    if (!wait_ready(c)) {
        begun.ends = true;
        return begun;
    }
    begun.add = addend_ask(&s->item);
    if (thread_here() == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    staged_rows<NORM>(c, s, &early);
    if (thread_here() == 0) trace(c->args, SHARED, RT_TRACE_BEGIN, task->index);
    if (staged_holds<NORM>()) held_multiply(s, &held, &begun);
    return begun;
}

/* The whole task, prepared. False: the launch ends. */
DEV bool staged_run(struct warp_context *c, struct staged *s) {
    const struct cuda_task *task = s->t.task;
    struct staged_begun begun =
        task->norm != 0 ? staged_start<true>(c, s) : staged_start<false>(c, s);
    if (begun.ends) return false;
#pragma unroll 1
    for (;;) {
        staged_pages(c, s, &begun);
        sync_compute();
        staged_finish(c, s, begun.add);
        if (task->unit_blocks != 0 && s->end % task->unit_blocks == 0) {
            sync_compute();
            lm_finish_unit(c, task, s->end / task->unit_blocks - 1);
        }
        if (s->end >= task->block1) return true;
        staged_group(c, s, s->end);
        begun.add = addend_ask(&s->item);
        sync_compute(); /* the last group's sums are read */
        begun.block = ~0u;
    }
}

#endif
