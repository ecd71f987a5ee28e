/* row_squares.cuh - 1 / rms of a row of x, for ROUTER and EXPERT_GATE_UP; the sum of its squares,
 * for EXPERT_GATHER.
 *
 * The squares have one order of additions, with one token row or many: a tree over one float4 of
 * each lane for half a k-tile, then the two halves of a k-tile, then k-tiles in order. */
#ifndef QN_CUDA_EXPERT_ROW_SQUARES_CUH
#define QN_CUDA_EXPERT_ROW_SQUARES_CUH

#include "kernels/cuda/data/squares.cuh"

#define ROW_TILES cuda_k_tiles(QN_HIDDEN)
enum { ROW_HALVES = 2 * ROW_TILES };

/* The sum of a half's squares; v: the lane's float4 of it. */
DEV float half_squares(float4 v) {
    float sum = squares_of_four(v);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum + __shfl_xor_sync(~0u, sum, 4);
}

/* The same where a lane has columns 32 p + 8 (lane % 4) + {0 .. 7} of the half, p = 0 .. 3;
 * squares[p] is the sum over these eight. */
DEV float half_squares_by_eights(const float squares[4]) {
    float sum = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

/* Adds the halves of k-tile t to the sum of the k-tiles before it. */
DEV float halves_add(float sum, uint32_t t, float lo, float hi) {
    const float tile = lo + hi;
    return t == 0 ? tile : sum + tile;
}

DEV float halves_inverse_rms(const float *halves) {
    float sum = 0;
#pragma unroll
    for (uint32_t t = 0; t < ROW_TILES; t++)
        sum = halves_add(sum, t, halves[2 * t], halves[2 * t + 1]);
    return inverse_rms_of(sum);
}

#endif
