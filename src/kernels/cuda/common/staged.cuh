/* staged.cuh - tasks with weights and one token row: decode. Its activations lie in shared memory
 * as 16-bit floats.
 *
 *   before the event   all that does not depend on other tasks: addresses, the thread's first item,
 *                      biases, weights of the norm, which warp takes which page
 *   after it           activations ─ barrier ─ pages, partial sums ─ barrier ─ results
 *
 * What comes after the event is the critical path of every layer, run by eight warps that do the
 * same at the same time: nothing hides anything, so an instruction costs its latency, some five
 * cycles, a word of shared memory thirty. Hence the first part.
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
    struct early early;
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

/* Row blocks [first, end). */
DEV void staged_pages(struct warp_context *c, const struct staged *s) {
    const uint32_t k_tiles = s->t.k_tiles;
    for (uint32_t b = s->first; b < s->end; b++) {
        uint32_t partial = (c->warp - c->turn) % WARPS;
        if (partial < k_tiles) {
            float chains[2][4] = {};
            for (uint32_t k = partial; k < k_tiles; k += PARTIALS) {
                const uint4 *page = page_acquire(c);
                const uint4 *x = (const uint4 *)(s->x + k * CUDA_PAGE_K * 2);
#pragma unroll
                for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
                    mma_pair(chains, page, pair, c->lane, x[4 * pair]);
                page_release(c);
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

/* Activations and their sum of squares. The widths are read anew: else what was compared before the
 * event would be kept for after it, in more predicates than there are. */
DEV void staged_rows(const struct warp_context *c, const struct staged *s) {
    const struct cuda_task *task = s->t.task;
    const uint32_t k = shared_load_volatile(&task->k);
    const uint32_t k_tiles = shared_load_volatile(&task->k_tiles);
    if (task->flags & CUDA_IN_PAIRED)
        stage_pairs(c, s->row, k, k_tiles * CUDA_PAGE_K, s->t.act);
    else if (task->norm != 0)
        stage_stream(c, s->row, (const float *)task->norm, &s->early, s->t.act, SHARED->warp_sum);
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
    early_norm((const float *)task->norm, c->thread, &s->early);
    s->row = op_row(task);
    /* All eight columns of a product are the same row; the first is stored. */
    s->x = s->t.act + c->lane % 4 * 16;
    staged_group(c, s, task->block0);
}

/* The task's work from its event on. False: the launch ends. */
DEV bool staged_run(struct warp_context *c, struct staged *s) {
    const struct cuda_task *task = s->t.task;
    if (!wait_ready(c)) return false;
    struct linear_addend add = addend_ask(&s->item);
    if (thread_here() == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    staged_rows(c, s);
    if (thread_here() == 0) trace(c->args, SHARED, RT_TRACE_BEGIN, task->index);
#pragma unroll 1
    for (;;) {
        staged_pages(c, s);
        sync_compute();
        staged_finish(c, s, add);
        if (task->unit_blocks != 0 && s->end % task->unit_blocks == 0) {
            sync_compute();
            lm_finish_unit(c, task, s->end / task->unit_blocks - 1);
        }
        if (s->end >= task->block1) return true;
        staged_group(c, s, s->end);
        add = addend_ask(&s->item);
        sync_compute(); /* the last group's sums are read */
    }
}

#endif
