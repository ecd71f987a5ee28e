/* row_part.cuh - a k-tile of a row of x, for ROUTER and EXPERT_GATE_UP: the part from which a lane
 * makes its B registers, columns 32 p + 8 (lane % 4) + {0 .. 7}. Words may be sentinels until they
 * are stored. */
#ifndef QN_CUDA_EXPERT_ROW_PART_CUH
#define QN_CUDA_EXPERT_ROW_PART_CUH

#include "kernels/cuda/data/operand.cuh"
#include "kernels/cuda/expert/row_squares.cuh"

enum {
    ROW_PAIRS = CUDA_PAGE_K / 32, /* of steps, in a k-tile */
    ROW_FOURS = 2 * ROW_PAIRS,    /* of a lane, in a k-tile of a row */
};

struct row_part {
    uint4 of[ROW_FOURS];
};

/* The column of float4 number i of the lane's. */
DEV uint32_t row_part_column(uint32_t k_tile, uint32_t lane, uint32_t i) {
    return k_tile * CUDA_PAGE_K + 8 * (lane % 4) + i / 2 * 32 + i % 2 * 4;
}

DEV bool row_has(uint32_t column) {
    return QN_HIDDEN % CUDA_PAGE_K == 0 || column < QN_HIDDEN;
}

DEV float4 row_part_four(const struct row_part *x, uint32_t i) {
    const uint4 v = x->of[i];
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                       __uint_as_float(v.w));
}

/* The largest of four words: a sentinel is larger than all others. */
DEV uint32_t most_of(uint4 v) {
    return max(max(v.x, v.y), max(v.z, v.w));
}

/* Loads the lane's part of a row's k-tile; zeros beyond the row. What is missing is loaded again
 * until it is there. A whole warp calls it. */
DEV struct row_part row_part_load(const float *row, uint32_t k_tile, uint32_t lane) {
    struct row_part x;
    row += row_part_column(k_tile, lane, 0);
#pragma unroll
    for (uint32_t i = 0; i < ROW_FOURS; i++)
        x.of[i] = row_has(row_part_column(k_tile, lane, i))
                      ? load_words4_polled(row + i / 2 * 32 + i % 2 * 4)
                      : make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (;;) {
        uint32_t most = 0;
#pragma unroll
        for (uint32_t i = 0; i < ROW_FOURS; i++) most = max(most, most_of(x.of[i]));
        if (!word_is_sentinel(most) || operand_given_up()) break;
#pragma unroll
        for (uint32_t i = 0; i < ROW_FOURS; i++)
            if (word_is_sentinel(most_of(x.of[i])))
                x.of[i] = load_words4_polled(row + i / 2 * 32 + i % 2 * 4);
    }
    __syncwarp();
    return x;
}

/* The sum of the squares of a half of the tile, in each lane that has a part of the row. */
DEV float row_part_squares(const struct row_part *x, uint32_t half) {
    float squares[4];
#pragma unroll
    for (uint32_t q = 0; q < 4; q++) {
        const uint32_t i = 2 * (4 * half + q);
        squares[q] =
            squares_of_four(row_part_four(x, i)) + squares_of_four(row_part_four(x, i + 1));
    }
    return half_squares_by_eights(squares);
}

#endif
