/* squares.cuh - a row's sum of squares and 1 / rms, for the norm before a matrix product. */
#ifndef QN_CUDA_DATA_SQUARES_CUH
#define QN_CUDA_DATA_SQUARES_CUH

#include "kernels/cuda/data/operand.cuh"
#include "kernels/cuda/data/reduce.cuh"

/* ---- sums of squares ----
 *
 * The mean of a row's squares has one order of additions in every kernel: the squares of a float4's
 * columns; the four float4s of a block of SQUARES_COLUMNS; blocks 64 i + 8 w + q over all i; these
 * sums over the eight q, as a tree; these over the eight w, in order. So if eight warps share a row
 * by float4s, each warp has one w, and four of its lanes have one q. */

DEV float squares_of_four(float4 v) {
    return fmaf(v.y, v.y, v.x * v.x) + fmaf(v.w, v.w, v.z * v.z);
}

/* The sum of squares of a block of which four neighbouring lanes have a float4 each. All four get
 * it. All lanes take part. */
DEV float squares_of_block(float4 v) {
    float sum = squares_of_four(v);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

DEV float inverse_rms_of(float sum) {
    return inverse_sqrt_fast(__fadd_rn(__fmul_rn(sum, 1.0f / QN_HIDDEN), RMS_EPS));
}

/* 1 / rms from the eight parts of the sum of squares, added in order. */
DEV float inverse_rms(const float *parts) {
    static_assert(WARPS == 8, "two vectors");
    const float4 lo = *(const float4 *)parts, hi = *(const float4 *)(parts + 4);
    const float v[WARPS] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += v[i];
    return inverse_rms_of(sum);
}

/* Sums of squares of some of each row's n blocks, as loaded: number `first` and every 32nd after
 * it, zeros beyond the last. Any of them may be a sentinel. */
enum {
    SQUARES_ALL = (QN_HIDDEN + 64 * SQUARES_COLUMNS - 1) / (64 * SQUARES_COLUMNS),
    SQUARES_AT_ONCE = SQUARES_ALL < 8 ? SQUARES_ALL : 8
};
template <int ROWS> struct squares { float v[ROWS][2 * SQUARES_AT_ONCE]; };

template <int ROWS>
DEV struct squares<ROWS> squares_ask(const float *const blocks[ROWS], uint32_t n, uint32_t first) {
    struct squares<ROWS> s;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (uint32_t i = 0; i < 2 * SQUARES_AT_ONCE; i++) {
            const uint32_t at = first + 32 * i;
            s.v[r][i] = at < n ? __uint_as_float(load_word_polled(blocks[r] + at)) : 0;
        }
    return s;
}

template <int ROWS>
DEV bool squares_there(const struct squares<ROWS> *s) {
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (uint32_t i = 0; i < 2 * SQUARES_AT_ONCE; i++)
            most = max(most, __float_as_uint(s->v[r][i]));
    return !word_is_sentinel(most);
}

/* Adds up each row's n blocks' sums of squares, by one warp. s: the lane's first ones, which were
 * requested before. With n = 1 the block's sum is the row's. */
template <int ROWS>
DEV void squares_of_blocks(const struct warp_context *c, const float *const blocks[ROWS],
                           uint32_t n, struct squares<ROWS> s, float sum[ROWS]) {
    float part[ROWS][2] = {}; /* of w = lane / 8 and lane / 8 + 4; q = lane % 8 */
#pragma unroll 1
    for (uint32_t first = c->lane;;) {
#pragma unroll 1
        while (!squares_there(&s) && !operand_given_up()) s = squares_ask<ROWS>(blocks, n, first);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (uint32_t i = 0; i < 2 * SQUARES_AT_ONCE; i++) part[r][i % 2] += s.v[r][i];
        first += 64 * SQUARES_AT_ONCE;
        if (SQUARES_ALL == SQUARES_AT_ONCE || first - c->lane >= n) break;
        s = squares_ask<ROWS>(blocks, n, first);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int d = 1; d < 8; d *= 2)
#pragma unroll
            for (int h = 0; h < 2; h++) part[r][h] += __shfl_xor_sync(~0u, part[r][h], d);
        sum[r] = __shfl_sync(~0u, part[r][0], 0);
#pragma unroll
        for (int w = 1; w < WARPS; w++) sum[r] += __shfl_sync(~0u, part[r][w / 4], w % 4 * 8);
    }
}

/* SUM_SQUARES: a warp per row. */
DEV void run_sum_squares(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    for (uint32_t row = task->row0 + c->warp; row < end; row += WARPS) {
        const float *const blocks[1] = {(const float *)task->in + (uint64_t)row * task->n_pieces};
        float sum[1];
        squares_of_blocks<1>(c, blocks, task->n_pieces,
                             squares_ask<1>(blocks, task->n_pieces, c->lane), sum);
        if (c->lane == 0) store_plain((float *)task->out + row, sum[0]);
    }
}

#endif
