/* packed_layout.cuh - addresses of packed activations (cuda_abi.h has the order), and stores. */
#ifndef QN_CUDA_DATA_PACKED_LAYOUT_CUH
#define QN_CUDA_DATA_PACKED_LAYOUT_CUH

#include "kernels/cuda/data/operand.cuh"

/* The piece of packed activations that holds a row and a column (cuda_abi.h). */
#define PACKED_PIECE (PACK_ROWS * CUDA_PACK_COLUMNS * 2)
DEV char *packed_piece(uint64_t base, uint32_t eights, uint32_t row, uint32_t column) {
    const uint32_t piece = column / CUDA_PACK_COLUMNS * eights + row / PACK_ROWS;
    return (char *)base + (uint64_t)piece * PACKED_PIECE;
}

/* The address of a column of a row in the packed result at `base`. */
DEV uint16_t *packed_at(const struct cuda_task *task, uint64_t base, uint32_t row,
                        uint32_t column) {
    const uint32_t in32 = column % 32;
    const uint32_t word = (column % CUDA_PACK_COLUMNS / 32 * 2 + in32 % 8 / 4) * 64 +
                          in32 % 4 / 2 * 32 + row % PACK_ROWS * 4 + in32 / 8;
    return (uint16_t *)packed_piece(base, task->eights, row, column) + 2 * word + column % 2;
}

DEV void packed_store(const struct cuda_task *task, uint32_t row, uint32_t column, float v) {
    *packed_at(task, task->out, row, column) = pack_one<WEIGHT_E>(v);
}

/* Stores an even column and the next one. */
DEV void packed_store2(const struct cuda_task *task, uint32_t row, uint32_t column, float v0,
                       float v1) {
    store_word(packed_at(task, task->out, row, column), pack_pair<WEIGHT_E>(v0, v1));
}

/* Stores columns [column, column + 4); column is a multiple of 4. */
DEV void packed_store4(const struct cuda_task *task, uint64_t base, uint32_t row, uint32_t column,
                       float4 v) {
    uint32_t *at = (uint32_t *)packed_at(task, base, row, column);
    store_word(at, pack_pair<WEIGHT_E>(v.x, v.y));
    store_word(at + 32, pack_pair<WEIGHT_E>(v.z, v.w));
}

/* Stores columns [column, column + 8); column is a multiple of 8. Lanes that have the same columns
 * of eight rows together store whole sectors. */
DEV void packed_store8(const struct cuda_task *task, uint64_t base, uint32_t row, uint32_t column,
                       float4 a, float4 b) {
    uint32_t *at = (uint32_t *)packed_at(task, base, row, column);
    store_word(at, pack_pair<WEIGHT_E>(a.x, a.y));
    store_word(at + 32, pack_pair<WEIGHT_E>(a.z, a.w));
    store_word(at + 64, pack_pair<WEIGHT_E>(b.x, b.y));
    store_word(at + 96, pack_pair<WEIGHT_E>(b.z, b.w));
}

/* Stores a: an even column of the first half of 16 and the next column; b: the two columns that lie
 * eight further. */
DEV void packed_store2x2(const struct cuda_task *task, uint32_t row, uint32_t column, float2 a,
                         float2 b) {
    store_words2(packed_at(task, task->out, row, column),
                 make_uint2(pack_pair<WEIGHT_E>(a.x, a.y), pack_pair<WEIGHT_E>(b.x, b.y)));
}

#endif
