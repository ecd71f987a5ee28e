/* staged.cuh - tasks with weights and few token rows: decode. Their activations lie in shared
 * memory as 16-bit floats.
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

#include "kernels/cuda/common/linear.cuh"

/* A task at work. */
struct staged {
    struct linear_tile t;
    struct act row;      /* activations of the tile's first token */
    uint32_t first, end; /* row blocks of the group at work */
    const char *x;       /* the lane's activations */
    struct item m;       /* the thread's first item of the group */
    struct linear_item item;
    struct early early;
};

/* The group that begins at row block `first`. */
DEV void staged_group(const struct warp_context *c, struct staged *s, uint32_t first) {
    const struct cuda_task *task = s->t.task;
    s->first = first;
    s->end = walk_group_end(first, task->block1, task->group, task->unit_blocks);
    s->m = item_of(&s->t, c->thread);
    s->item = linear_item{};
    if (c->thread < (s->end - first) * 8 * s->t.n)
        s->item = op_item<true>(task, first + s->m.in_group, s->m.r, s->t.row0 + s->m.token);
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
    const uint32_t n_items = (s->end - s->first) * 8 * s->t.n;
    struct item m = s->m;
#pragma unroll 1
    for (uint32_t i = c->thread; i < n_items;) {
        float inv = 1;
        if (s->t.task->norm != 0) inv = inverse_rms(SHARED->warp_sum + m.token * WARPS);
        float v0 = sum_partials(&s->t, m.in_group, m.token, m.r);
        float v1 = sum_partials(&s->t, m.in_group, m.token, m.r + 8);
        if ((s->t.task->flags & CUDA_OUT_PAIRED) == 0)
            op_finish(c, s->t.task, &s->item, s->first + m.in_group, m.r, m.token, v0, v1, inv,
                      &add);
        else if (m.r % 2 == 0)
            op_finish_pair(s->t.task, &s->item, s->first + m.in_group, m.r, inv, v0, v1,
                           sum_partials(&s->t, m.in_group, m.token, m.r + 1),
                           sum_partials(&s->t, m.in_group, m.token, m.r + 9));
        i += COMPUTE_THREADS;
        if (i >= n_items) break;
        m = item_of(&s->t, i);
        s->item = op_item<true>(s->t.task, s->first + m.in_group, m.r, s->t.row0 + m.token);
        add = addend_ask(&s->item);
    }
}

/* Activations and their sums of squares. The widths are read anew: else what was compared before
 * the event would be kept for after it, in more predicates than there are. */
DEV void staged_rows(const struct warp_context *c, const struct staged *s) {
    const struct linear_tile *t = &s->t;
    const float *norm = (const float *)t->task->norm;
    const uint32_t k = shared_load_volatile(&t->task->k);
    const uint32_t k_tiles = shared_load_volatile(&t->task->k_tiles);
    struct act row = s->row;
#pragma unroll 1
    for (uint32_t i = 0; i < t->n; i++) {
        if (i > 0) row = op_row(t->task, t->row0 + i);
        if (t->task->flags & CUDA_IN_PAIRED)
            act_stage_pairs(c, row, k, k_tiles * CUDA_PAGE_K, t->act);
        else
            act_stage_row(c, row, norm, &s->early, k, k_tiles * CUDA_PAGE_K,
                          t->act + i * ACT_STRIDE(k_tiles), SHARED->warp_sum + i * WARPS);
    }
    sync_compute();
}

/* All that is found before the event, for a task with rows. n_rows: what the iteration has. ONE:
 * the task is of one row; then what depends on rows is known to the compiler. */
template <bool ONE>
DEV void staged_begin(const struct warp_context *c, const struct cuda_task *task, uint32_t n_rows,
                      uint32_t unit_rows, struct staged *s) {
    s->t = linear_begin(c, task, unit_rows, ONE ? 1 : task->tile);
    if (ONE) s->t.row0 = 0;
    s->t.n = ONE ? 1 : min(task->row1, n_rows) - task->row0;
    early_norm((const float *)task->norm, c->thread, s->t.k, &s->early);
    s->row = op_row(task, s->t.row0);
    /* Columns beyond the tile's tokens repeat its last one and are not stored. */
    s->x = s->t.act + min(c->lane / 4, s->t.tile - 1) * ACT_STRIDE(s->t.k_tiles) + c->lane % 4 * 16;
    staged_group(c, s, task->block0);
}

/* The task's work from its event on. False: the launch ends. */
DEV bool staged_run(struct warp_context *c, struct staged *s) {
    const struct cuda_task *task = s->t.task;
    if (!wait_ready(c)) return false;
    struct linear_addend add = addend_ask(&s->item);
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    staged_rows(c, s);
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_BEGIN, task->index);
#pragma unroll 1
    for (;;) {
        staged_pages(c, s);
        sync_compute();
        staged_finish(c, s, add);
        if (task->unit_blocks != 0 && s->end % task->unit_blocks == 0) {
            sync_compute();
            op_finish_unit(c, &s->t, s->end / task->unit_blocks - 1);
        }
        if (s->end >= task->block1) return true;
        staged_group(c, s, s->end);
        add = addend_ask(&s->item);
        sync_compute(); /* the last group's sums are read */
    }
}

/* A task whose rows are all beyond the iteration's. */
DEV bool staged_skip(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    tile_skip(c, task);
    return true;
}

#endif
