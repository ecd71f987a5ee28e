/* attention_whole.cuh - ATTENTION_WHOLE: all of the context of one token row and KV head at a time,
 * from the projections to the output.
 *
 * Items, pages, heads and the eight warps' work on a piece are attention_split.cuh's. But a piece's
 * state goes nowhere: each thread has two columns of a head and adds the pieces up in registers, in
 * order of position, with the operations of ATTENTION_COMBINE on the same numbers. So nobody waits
 * for pieces, at the price that a task goes through all of a context.
 *
 * Bytes: k and v of the context, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch: as ATTENTION_STEP.
 */
#ifndef QN_CUDA_COMMON_ATTENTION_WHOLE_CUH
#define QN_CUDA_COMMON_ATTENTION_WHOLE_CUH

#include "kernels/cuda/common/attention_split.cuh"

enum { WHOLE_CHUNKS = (QN_HEAD_DIM + SPLIT_CHUNK - 1) / SPLIT_CHUNK };
static_assert(SUB_HEADS * SPLIT_CHUNK / 2 <= COMPUTE_THREADS, "two columns of a chunk a thread");

/* A thread's head so far: two columns of each chunk. */
struct whole_state {
    float max, sum;
    float2 out[WHOLE_CHUNKS];
};

/* Row of the item and columns of a chunk that a thread has. Rows that do not exist: anything. */
DEV uint32_t whole_row(const struct warp_context *c) {
    return min(c->thread / (SPLIT_CHUNK / 2), SUB_HEADS - 1u);
}
DEV uint32_t whole_column(const struct warp_context *c) {
    return c->thread % (SPLIT_CHUNK / 2) * 2;
}

/* Merges the shares' states of an item's piece, and that with what came before. `odd`: of the
 * piece's number in the task. */
DEV void whole_merge(const struct warp_context *c, const struct split_warp *t,
                     const struct attention_part *part, uint32_t odd, struct whole_state *y) {
    const struct split_scalars x = split_scalars_of(odd);
    const float2 factors = split_factors(c, t, &x, part);
    const uint32_t m = whole_row(c);
    struct merge f = {};
#pragma unroll
    for (int i = 0; i < WHOLE_CHUNKS; i++) {
        split_put_chunk(c, t, part, factors, i * SPLIT_CHUNK);
        if (i == 0) {
            const float2 piece = split_row_state(&x, m);
            f = merge_factors(y->max, y->sum, piece.x);
            y->sum = merge_value(&f, y->sum, piece.y);
            y->max = f.max;
        }
        const float2 v = split_columns(m, whole_column(c));
        y->out[i].x = merge_value(&f, y->out[i].x, v.x);
        y->out[i].y = merge_value(&f, y->out[i].y, v.y);
    }
}

/* The output of the row and KV head whose last piece was the walk's. */
DEV void whole_store(const struct warp_context *c, const struct cuda_task *task,
                     const struct kv_walk *w, const struct whole_state *y) {
    const struct attention_step s = split_step(w);
    const uint32_t m = c->thread / (SPLIT_CHUNK / 2);
    const float by = reciprocal_fast(y->sum);
    if (m >= s.n_heads) return;
#pragma unroll
    for (int i = 0; i < WHOLE_CHUNKS; i++) {
        const uint32_t d = i * SPLIT_CHUNK + whole_column(c), head = s.head0 + m;
        if (d < QN_HEAD_DIM)
            output_store2(task, (uint64_t)w->row * QN_N_HEADS + head, d,
                          make_float2(y->out[i].x * by, y->out[i].y * by));
    }
}

DEV bool run_whole(struct warp_context *c, const struct cuda_task *task) {
    const struct split_warp t = split_warp_of(c, task);
    struct whole_state y = {};
    struct kv_walk w;
    uint32_t row;
    if (!split_begin<OP_ATTENTION_WHOLE>(c, task, &t, &w, &row)) return false;
#pragma unroll 1
    for (uint32_t n = 0; w.left > 0; n++) {
        const struct attention_step s = split_step(&w);
        const bool ends = w.piece + 1 == w.piece_end;
        struct attention_part part;
        split_share<OP_ATTENTION_WHOLE>(c, &t, &w, &s, n, row, &part);
        whole_merge(c, &t, &part, n % 2, &y);
        if (ends) whole_store(c, task, &w, &y);
        if (ends) y = whole_state{};
        kv_walk_skip(SHARED, &w, 1);
        row = split_row<OP_ATTENTION_WHOLE>(c, &t, &w);
        if (ends && w.left > 0) step_make_next<OP_ATTENTION_WHOLE>(c, task, &w, false);
    }
    return true;
}

#endif
