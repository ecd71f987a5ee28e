/* attention_whole.cuh - ATTENTION_WHOLE: all of the context of one token row and KV head by one
 * task, from the projections to the output.
 *
 * Items, pages and heads are attention_split.cuh's. But a piece's state stays in the block. As
 * many pieces as the ring holds are one batch:
 *
 *   each warp goes through its shares of them and leaves each one's outputs in the page that its
 *   keys and values were in, maximum and sum in scratch ─ barrier ─ the factors that make
 *   a share's outputs the piece's ─ barrier ─ each thread has two columns of a head, adds up
 *   shares, then pieces, in order ─ the pages are given back
 *
 * These are the operations of attention_split.cuh and of ATTENTION_COMBINE, on the same numbers.
 *
 * Bytes: k and v of the context, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch:   0             max, sum, factor [piece of a batch][share][16]
 *            WHOLE_SLOTS   slots of the shares' pages [piece of a batch][share]
 *            STEP_HEADS    as ATTENTION_STEP
 */
#ifndef QN_CUDA_COMMON_ATTENTION_WHOLE_CUH
#define QN_CUDA_COMMON_ATTENTION_WHOLE_CUH

#include "kernels/cuda/common/attention_split.cuh"

#if KV_PAGES /* it has nothing else to leave outputs in */

enum {
    WHOLE_BATCH = RING_DEPTH, /* pieces */
    WHOLE_SCALARS = WHOLE_BATCH * WARPS * 16,
    WHOLE_SLOTS = 3 * WHOLE_SCALARS * 4,
    WHOLE_PAIRS = (SUB_HEADS * QN_HEAD_DIM / 2 + COMPUTE_THREADS - 1) / COMPUTE_THREADS,
};
static_assert(WHOLE_SLOTS + WHOLE_BATCH * WARPS * 4 <= STEP_HEADS, "scratch");
static_assert(SUB_HEADS * QN_HEAD_DIM * 4 <= CUDA_PAGE_BYTES, "outputs of a share");

/* Maxima, sums and factors of a piece of the batch. */
DEV struct split_scalars whole_scalars(uint32_t piece) {
    float *at = (float *)SCRATCH + piece * WARPS * 16;
    return split_scalars{at, at + WHOLE_SCALARS, at + 2 * WHOLE_SCALARS};
}

DEV uint32_t *whole_slot(uint32_t piece, uint32_t share) {
    return (uint32_t *)(SCRATCH + WHOLE_SLOTS) + piece * WARPS + share;
}

/* Where column d of row m of a share's outputs lies in its page. Rows that are whole lines of 128
 * bytes would all begin in the same bank. */
DEV uint32_t whole_at(uint32_t m, uint32_t d) {
    return m * QN_HEAD_DIM + (QN_HEAD_DIM % 32 == 0 ? d ^ m % 8 * 4 : d);
}

/* A share's outputs into the page: store_chunk says which a lane has. */
DEV void whole_put(const struct warp_context *c, const struct attention_part *part, float *page) {
#pragma unroll
    for (int s = 0; s < SPANS; s++)
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t m = c->lane / 4 + 8 * h, d = 64 * s + c->lane % 4 * 16 + 4 * i;
                const int at = 8 * s + i % 2 * 4, e = 2 * h + i / 2;
                if (m < SUB_HEADS && d < QN_HEAD_DIM)
                    *(float4 *)(page + whole_at(m, d)) =
                        make_float4(part->out[at][e], part->out[at + 1][e], part->out[at + 2][e],
                                    part->out[at + 3][e]);
            }
}

/* The warp's share of piece number i of the batch, which is the walk's. */
DEV void whole_share(const struct warp_context *c, const struct split_warp *t,
                     const struct kv_walk *w, uint32_t i) {
    const struct attention_step s = split_step(w);
    const uint32_t first = w->piece * ATTENTION_PIECE + SHARE_POSITIONS * t->share;
    const uint32_t slot = page_acquire_after(c, i);
    char *page = RING + slot * CUDA_PAGE_BYTES;
    struct attention_part part;
    if (kv_walk_share(w, first) == SHARE_NOTHING) {
        part_clear(&part);
    } else {
        struct split_kv x;
        struct attention_rows rows;
        split_load_share<OP_ATTENTION_WHOLE>(c, t, w, &s, first, 0, 0, page, &rows, &x);
        split_attend(c, &rows, &x, first, &part);
        __syncwarp(); /* all lanes have read the page */
    }
    whole_put(c, &part, (float *)page);
    const struct split_scalars to = whole_scalars(i);
    const uint32_t mine = t->share * 16 + c->lane / 4;
    if (c->lane == 0) *whole_slot(i, t->share) = slot;
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            to.max[mine + 8 * h] = part.max[h];
            to.sum[mine + 8 * h] = part.sum[h];
        }
}

/* Factors of the batch's n pieces; between barriers. */
DEV void whole_factors(const struct warp_context *c, uint32_t n) {
    for (uint32_t i = c->thread; i < n * WARPS * 16; i += COMPUTE_THREADS) {
        const struct split_scalars x = whole_scalars(i / (WARPS * 16));
        const uint32_t at = i % (WARPS * 16), m = at % 16;
        if (m < SUB_HEADS) x.factor[at] = warp_factor(x.max[at], most_of(x.max, m));
    }
}

/* A head so far, two columns of it. */
struct whole_state {
    float max, sum;
    float2 out;
};

/* Row of the item and columns that a thread has as its pair number u; beyond the last row nothing.
 */
struct whole_place {
    uint32_t m, d;
};
DEV struct whole_place whole_place_of(const struct warp_context *c, int u) {
    const uint32_t i = c->thread + u * COMPUTE_THREADS;
    return {i / (QN_HEAD_DIM / 2), i % (QN_HEAD_DIM / 2) * 2};
}

/* Columns d and d + 1 of row m of a piece, summed over the shares in order. */
DEV float2 whole_columns(const struct split_scalars *x, uint32_t piece, uint32_t m, uint32_t d) {
    float2 v[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float *page = (const float *)(RING + *whole_slot(piece, i) * CUDA_PAGE_BYTES);
        v[i] = *(const float2 *)(page + whole_at(m, d));
    }
    float2 sum = make_float2(-0.0f, -0.0f);
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float factor = x->factor[i * 16 + m];
        sum = make_float2(share_add(sum.x, v[i].x, factor), share_add(sum.y, v[i].y, factor));
    }
    return sum;
}

/* Adds the batch's n pieces in order. */
DEV void whole_merge(const struct warp_context *c, uint32_t n, struct whole_state y[WHOLE_PAIRS]) {
#pragma unroll 1
    for (uint32_t i = 0; i < n; i++) {
        const struct split_scalars x = whole_scalars(i);
#pragma unroll
        for (int u = 0; u < WHOLE_PAIRS; u++) {
            const struct whole_place p = whole_place_of(c, u);
            if (p.m >= SUB_HEADS) continue;
            const float2 piece = split_row_state(&x, p.m), v = whole_columns(&x, i, p.m, p.d);
            const struct merge f = merge_factors(y[u].max, y[u].sum, piece.x);
            y[u].out.x = merge_value(&f, y[u].out.x, v.x);
            y[u].out.y = merge_value(&f, y[u].out.y, v.y);
            y[u].sum = merge_value(&f, y[u].sum, piece.y);
            y[u].max = f.max;
        }
    }
}

/* The output of a row's KV head. */
DEV void whole_store(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                     uint32_t head0, const struct whole_state y[WHOLE_PAIRS]) {
#pragma unroll
    for (int u = 0; u < WHOLE_PAIRS; u++) {
        const struct whole_place p = whole_place_of(c, u);
        const float by = reciprocal_fast(y[u].sum);
        if (p.m < SUB_HEADS)
            output_store2(task, (uint64_t)row * QN_N_HEADS + head0 + p.m, p.d,
                          make_float2(y[u].out.x * by, y[u].out.y * by));
    }
}

/* The pages of n pieces, which all warps have read and written. */
DEV void whole_release(struct warp_context *c, uint32_t n) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < n; i++) page_release(c);
}

/* A row and KV head, whose heads are made, from the walk's piece on; goes on to the next. */
DEV void whole_item(struct warp_context *c, const struct cuda_task *task,
                    const struct split_warp *t, struct kv_walk *w) {
    const uint32_t row = w->row, head0 = split_step(w).head0;
    struct whole_state y[WHOLE_PAIRS] = {};
#pragma unroll 1
    for (uint32_t left = w->piece_end - w->piece, n; left > 0; left -= n) {
        n = min(left, (uint32_t)WHOLE_BATCH);
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            whole_share(c, t, w, i);
            kv_walk_skip(SHARED, w, 1);
        }
        sync_compute();
        whole_factors(c, n);
        sync_compute();
        whole_merge(c, n, y);
        if (left == n) whole_store(c, task, row, head0, y);
        whole_release(c, n);
    }
}

DEV bool run_whole(struct warp_context *c, const struct cuda_task *task) {
    const struct split_warp t = split_warp_of(c, task);
    struct kv_walk w;
    uint32_t row;
    if (!split_begin<OP_ATTENTION_WHOLE>(c, task, &t, &w, &row)) return false;
#pragma unroll 1
    while (w.left > 0) {
        whole_item(c, task, &t, &w);
        if (w.left > 0) step_make_next<OP_ATTENTION_WHOLE>(c, task, &w, false);
    }
    return true;
}

#endif
#endif
