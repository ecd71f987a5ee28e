/* expert_gather.cuh - EXPERT_GATHER: the rows of x of the slots, times the norm's weights and
 * packed, and the sum of each row's squares.
 *
 * A warp has eight slots, k-tile by k-tile. A lane loads the float4s of a k-tile at once, so that
 * 32 columns of the eight rows are two requests of whole sectors: of each 16 columns of a row, two
 * neighbouring lanes have the first eight in one request and the others in the next. They exchange
 * halves, so that lane l stores columns 32 p + 8 (l % 4) + {0 .. 7} of the row of slot l / 4, whole
 * lines by whole lines.
 *
 * Bytes per slot: 4 * H loaded, from L2, and 2 * H stored. The values and squares are those of
 * EXPERT_GATE_UP (up_gather). */
#ifndef QN_CUDA_EXPERT_EXPERT_GATHER_CUH
#define QN_CUDA_EXPERT_EXPERT_GATHER_CUH

#include "kernels/cuda/data/row_stage.cuh"
#include "kernels/cuda/expert/expert_list.cuh"
#include "kernels/cuda/expert/row_squares.cuh"
#include "kernels/cuda/matmul/matmul_tile.cuh"

enum { GATHER_PARTS = CUDA_PAGE_K / 32 }; /* parts of a k-tile, of 32 columns */

/* The lane's float4s of a k-tile, by parts: number i of a part is columns 8 i and on from
 * gather_column. */
struct gather_tile {
    float4 v[GATHER_PARTS][2];
};

/* The lane's first column in a part. */
DEV uint32_t gather_column(uint32_t lane) {
    return lane % 4 / 2 * 16 + lane % 2 * 4;
}

DEV bool gather_has(uint32_t column) {
    static_assert(QN_HIDDEN % 4 == 0, "whole float4s");
    return QN_HIDDEN % CUDA_PAGE_K == 0 || column < QN_HIDDEN;
}

/* Requests the lane's part of the k-tile that begins with column `first`; zeros beyond the row. */
DEV struct gather_tile gather_ask(const float *row, uint32_t lane, uint32_t first) {
    struct gather_tile x;
#pragma unroll
    for (uint32_t p = 0; p < GATHER_PARTS; p++)
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t column = first + 32 * p + gather_column(lane) + 8 * i;
            x.v[p][i] = gather_has(column) ? load4_l2(row + column) : make_float4(0, 0, 0, 0);
        }
    return x;
}

/* A float4 of x, times the norm's weights of its columns. */
DEV uint2 gather_scaled(float4 v, const float *norm, uint32_t column) {
    return pack_scaled(v, __ldg((const float4 *)(norm + (gather_has(column) ? column : 0))));
}

/* The eight columns that the lane stores of a part. a, b: what it loaded. */
DEV uint4 gather_eight(uint32_t lane, uint2 a, uint2 b) {
    const bool odd = lane % 2 != 0;
    const uint2 give = odd ? a : b;
    const uint2 got = make_uint2(__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1));
    return odd ? make_uint4(got.x, got.y, b.x, b.y) : make_uint4(a.x, a.y, got.x, got.y);
}

/* The sum of the squares of these columns. */
DEV float gather_squares(uint32_t lane, float4 a, float4 b) {
    const float of_a = squares_of_four(a), of_b = squares_of_four(b);
    const bool odd = lane % 2 != 0;
    return (odd ? of_b : of_a) + __shfl_xor_sync(~0u, odd ? of_a : of_b, 1);
}

/* Stores the k-tile of a slot's row. Returns the sums of the squares of its halves. */
DEV float2 gather_put(const struct cuda_task *task, uint32_t lane, uint32_t slot, bool there,
                      uint32_t first, const struct gather_tile *x) {
    const float *norm = (const float *)task->norm;
    float squares[GATHER_PARTS];
#pragma unroll
    for (uint32_t p = 0; p < GATHER_PARTS; p++) {
        const uint32_t column = first + 32 * p + gather_column(lane);
        const uint4 v = gather_eight(lane, gather_scaled(x->v[p][0], norm, column),
                                     gather_scaled(x->v[p][1], norm, column + 8));
        uint32_t *to = pack_words(task->out, task->eights, slot, first + 32 * p, lane % 4);
        squares[p] = gather_squares(lane, x->v[p][0], x->v[p][1]);
        if (there) {
            to[0] = v.x;
            to[32] = v.y;
            to[64] = v.z;
            to[96] = v.w;
        }
    }
    return make_float2(half_squares_by_eights(squares), half_squares_by_eights(squares + 4));
}

/* The lane's row of an eight of slots. Slots beyond the last one have its row. */
DEV const float *gather_row(const struct cuda_task *task, uint32_t lane, uint32_t eight,
                            uint32_t n_slots) {
    const uint32_t slot = min(eight * PACK_ROWS + lane / 4, n_slots - 1);
    const uint32_t row = (uint32_t)load_index_l2((const int32_t *)task->more + slot) / QN_TOP_K;
    return (const float *)task->in + (uint64_t)min(row, task->row1 - 1) * QN_HIDDEN;
}

/* A slice of the eights of slots that the iteration has. */
CODE(void, run_expert_gather, const struct cuda_task *task) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const uint32_t n_slots = min(SHARED->batch.rows.n_rows, task->row1) * QN_TOP_K;
    const uint32_t n = ceil_div(n_slots, PACK_ROWS);
    const uint32_t end = expert_share(n, task->unit0 + 1, task->unit1);
    uint32_t eight = expert_share(n, task->unit0, task->unit1) + c.warp;
    if (eight >= end) return;
    const float *next = gather_row(task, c.lane, eight, n_slots);
#pragma unroll 1
    for (; eight < end; eight += WARPS) {
        const float *row = next;
        const uint32_t slot = eight * PACK_ROWS + c.lane / 4;
        const bool there = slot < n_slots;
        float sum = 0;
        next = gather_row(task, c.lane, min(eight + WARPS, n - 1), n_slots);
#pragma unroll 1
        for (uint32_t t = 0; t < ROW_TILES; t++) {
            const struct gather_tile x = gather_ask(row, c.lane, t * CUDA_PAGE_K);
            const float2 of = gather_put(task, c.lane, slot, there, t * CUDA_PAGE_K, &x);
            sum = halves_add(sum, t, of.x, of.y);
        }
        if (there && c.lane % 4 == 0) store_plain((float *)task->more2 + slot, sum);
    }
}

#endif
