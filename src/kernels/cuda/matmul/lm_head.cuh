/* lm_head.cuh - LM_HEAD: logits of the logit rows and {max, sum of exp(logit - max)} per LM_BLOCK
 * columns. One unit is one block of columns: four row blocks.
 *
 * With one row, a unit's logits wait in scratch for the maximum and sum. Where weights stream for
 * several rows, logits are stored as LINEAR stores its results, and read again for the maxima and
 * sums. Tiles make both in one pass (tile_results.cuh). */
#ifndef QN_CUDA_MATMUL_LM_HEAD_CUH
#define QN_CUDA_MATMUL_LM_HEAD_CUH

#include "kernels/cuda/data/kv.cuh"
#include "kernels/cuda/matmul/linear.cuh"

#define LM_PARTS ((QN_VOCAB + LM_BLOCK - 1) / LM_BLOCK)
static_assert(LM_BLOCK == 64, "a lane has two columns of a block");

/* NaN counts as -inf here, as on the CPU. */
DEV float not_nan(float v) {
    return v == v ? v : -INFINITY;
}

/* A unit's logits of one row wait in scratch: [LM_BLOCK]. */
#define LM_UNIT ((float *)(SCRATCH + SCRATCH_BYTES) - LM_BLOCK)
DEV void lm_finish(uint32_t block, uint32_t r, float v0, float v1) {
    float *to = LM_UNIT + block % LM_UNIT_BLOCKS * CUDA_PAGE_ROWS + r;
    to[0] = v0;
    to[8] = v1;
}

/* The lane's first column of a unit; the other one is 32 further. */
DEV uint32_t lm_column(const struct warp_context *c, uint32_t unit) {
    return unit * LM_BLOCK + c->lane;
}

DEV float *lm_logits(const struct cuda_task *task, uint32_t row) { /* [L, V] */
    return (float *)task->out + (uint64_t)row * QN_VOCAB;
}

/* Maximum and sum of a row's unit. */
DEV float2 *lm_part(const struct cuda_task *task, uint32_t row, uint32_t unit) {
    return (float2 *)task->out2 + (uint64_t)row * LM_PARTS + unit;
}

/* The lane's two logits of a row's unit. */
struct lm_pair {
    uint32_t unit, row;
    float v0, v1;
};

/* Makes N maxima and sums, interleaved, each from the lanes' logits of a row's unit. Stores the
 * first n of them. */
template <int N>
DEV void lm_parts_of(const struct warp_context *c, const struct cuda_task *task,
                     const struct lm_pair *x, uint32_t n) {
    float v0[N], v1[N], most[N], sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t column = lm_column(c, x[i].unit);
        v0[i] = column < QN_VOCAB ? not_nan(x[i].v0) : -INFINITY;
        v1[i] = column + 32 < QN_VOCAB ? not_nan(x[i].v1) : -INFINITY;
        most[i] = fmaxf(v0[i], v1[i]);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
#pragma unroll
        for (int i = 0; i < N; i++) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], d));
#pragma unroll
    for (int i = 0; i < N; i++)
        sum[i] = most[i] > -INFINITY ? expf(v0[i] - most[i]) + expf(v1[i] - most[i]) : 0;
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] += __shfl_xor_sync(~0u, sum[i], d);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (c->lane == 0 && i < n)
            *lm_part(task, x[i].row, x[i].unit) = make_float2(most[i], sum[i]);
    }
}

/* One row: stores a unit's logits, which are in scratch, and its maximum and sum. */
DEV void lm_finish_unit(const struct warp_context *c, const struct cuda_task *task, uint32_t unit) {
    if (c->warp != 0) return;
    const uint32_t column = lm_column(c, unit);
    float *logits = lm_logits(task, 0);
    const float *from = LM_UNIT + c->lane;
    const float v0 = from[0], v1 = from[32];
    if (column < QN_VOCAB) logits[column] = v0;
    if (column + 32 < QN_VOCAB) logits[column + 32] = v1;
    const struct lm_pair x[1] = {{unit, 0, v0, v1}};
    lm_parts_of<1>(c, task, x, 1);
}

/* Several rows: the thread's item. */
DEV struct linear_item lm_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                               uint32_t row) {
    struct linear_item m = {};
    const uint32_t column = block * CUDA_PAGE_ROWS + r;
    m.out = lm_logits(task, row) + column;
    m.own0 = column < QN_VOCAB;
    m.own1 = column + 8 < QN_VOCAB;
    return m;
}

/* Maxima and sums of units [unit, end) and rows [row0, row1), whose logits this block has stored.
 * Several units are loaded at a time. Not inlined, because many tasks end with it. */
CODE(void, lm_parts, const struct cuda_args *args, const struct cuda_task *task, uint32_t unit,
     uint32_t end, uint32_t row0, uint32_t row1) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    constexpr int AHEAD = 8;
    const uint32_t n_rows = row1 - row0, n = (end - unit) * n_rows;
#pragma unroll 1
    for (uint32_t i = c.warp; i < n; i += AHEAD * WARPS) {
        struct lm_pair x[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const uint32_t at = min(i + a * WARPS, n - 1);
            x[a].unit = unit + at / n_rows;
            x[a].row = row0 + at % n_rows;
            const uint32_t column = lm_column(&c, x[a].unit);
            const float *from = lm_logits(task, x[a].row);
            x[a].v0 = column < QN_VOCAB ? load_l2(from + column) : 0;
            x[a].v1 = column + 32 < QN_VOCAB ? load_l2(from + column + 32) : 0;
        }
        lm_parts_of<AHEAD>(&c, task, x, ceil_div(n - i, WARPS));
    }
}

#endif
