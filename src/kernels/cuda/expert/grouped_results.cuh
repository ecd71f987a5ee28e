/* grouped_results.cuh - results of GROUPED_GATE_UP and GROUPED_DOWN from a tile's parked sums.
 * Included by matmul_tile_hopper.cuh. */
#ifndef QN_CUDA_EXPERT_GROUPED_RESULTS_CUH
#define QN_CUDA_EXPERT_GROUPED_RESULTS_CUH

#include "kernels/cuda/expert/grouped_tile.cuh"

/* Eights of columns of h: those of the row blocks, and all that GROUPED_DOWN multiplies. */
enum { GROUPED_H_EIGHTS = cuda_k_tiles(QN_EXPERT_WIDTH) * CUDA_PAGE_K / 8 };

/* h of four columns from the sums of gate and up. */
DEV float4 gated4(float4 gate, float4 up, float inv) {
    const float4 g = times4(gate, inv), u = times4(up, inv);
    return make_float4(gated_value(g.x, u.x), gated_value(g.y, u.y), gated_value(g.z, u.z),
                       gated_value(g.w, u.w));
}

/* Stores h: a lane has a row block's eight columns of a slot; eight lanes have the eight rows of a
 * piece. Beyond the last row block come zeros. */
DEV void grouped_up_finish(const struct warp_context *c, const struct cuda_task *task,
                           const struct tile_at *t, struct grouped_rows rows) {
    const uint32_t n_blocks = t->end - t->block, eights = ceil_div(rows.end, 8);
    const uint32_t all = t->end == task->block1 ? GROUPED_H_EIGHTS - t->block : n_blocks;
#pragma unroll 1
    for (uint32_t four = 0; four < all; four += 4)
#pragma unroll 1
        for (uint32_t eight = c->warp; eight < eights; eight += WARPS) {
            const uint32_t block = four + c->lane / 8, at = eight * 8 + c->lane % 8;
            float4 h[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
            if (block >= all || at < rows.first || at >= rows.end) continue;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t column = block * CUDA_PAGE_ROWS + 4 * i;
                if (block < n_blocks)
                    h[i] = gated4(tile_four(t, at, column), tile_four(t, at, column + 8),
                                  tile_norm_of(t->row + at));
            }
            packed_store8(task, task->out, t->row + at, (t->block + block) * 8, h[0], h[1]);
        }
}

/* Stores the slots' columns at their places, a row of the tile a warp: 128 columns, four a lane. */
DEV void grouped_down_finish(const struct warp_context *c, const struct cuda_task *task,
                             const struct tile_at *t, struct grouped_rows rows) {
    const uint32_t in_tile = 4 * c->lane, column = t->block * CUDA_PAGE_ROWS + in_tile;
    const bool own = in_tile < (t->end - t->block) * CUDA_PAGE_ROWS && column < QN_HIDDEN;
    /* Lane i has the place of the warp's i-th row. */
    const uint32_t mine = min(c->warp + WARPS * (c->lane % (PACK_TILE / WARPS)), rows.end - 1);
    const uint32_t place = (uint32_t)load_index_l2((const int32_t *)task->more + t->row + mine);
#pragma unroll 4
    for (uint32_t i = 0; i < PACK_TILE / WARPS; i++) {
        const uint32_t at = c->warp + WARPS * i;
        const uint32_t to = min(__shfl_sync(~0u, place, i), task->row1 * QN_TOP_K - 1);
        if (own && at >= rows.first && at < rows.end)
            store4_plain((float *)task->out + (uint64_t)to * QN_HIDDEN + column,
                         tile_four(t, at, in_tile));
    }
}

/* Stores the results of the tile of row blocks from `block` on. word: packed[].row; parked: where
 * its sums are. To be called between barriers. */
CODE(void, grouped_finish, const struct cuda_task *task, uint32_t block, uint32_t word,
     uint32_t parked) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const struct grouped_rows rows = grouped_rows_of(word);
    const uint32_t end = min(block + GROUPED_BLOCKS, task->block1);
    const struct tile_at t = {block, end, rows.row, rows.row + rows.end, 1, WO, 8, parked};
    if (task->kind == OP_GROUPED_GATE_UP)
        grouped_up_finish(&c, task, &t, rows);
    else
        grouped_down_finish(&c, task, &t, rows);
}

#endif
