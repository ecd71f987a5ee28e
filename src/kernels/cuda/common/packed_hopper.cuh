/* packed_hopper.cuh - Hopper: tasks of many packed rows, tile by tile. Tiles of 128 tokens are
 * multiplied by wgmma (packed_wgmma.cuh), narrower ones here by mma.sync, which takes nearly as
 * long as their weights. Both read what two warps of their own ask for (packed_ask.cuh).
 */
#ifndef QN_CUDA_COMMON_PACKED_HOPPER_CUH
#define QN_CUDA_COMMON_PACKED_HOPPER_CUH

#include "kernels/cuda/common/packed_wgmma.cuh"

#if HAS_WGMMA

/* A warp's share of a tile: wb row blocks x wo columns of eight tokens; `down` warps share the
 * tile in the direction of weight rows, the others in that of tokens. Of a step a warp reads wb *
 * 512 + wo * 256 bytes of shared memory: 12 row blocks as 3 x 4 instead of 6 x 2, two as 1 x 2
 * instead of 2 x 1 made decode of 64 requests 9 % faster (H200, Qwen3-8B). */
struct tile_share {
    uint32_t wb, wo, down;
};
DEV struct tile_share tile_share_of(const struct cuda_task *task) {
    if (task->tile == PACK_TILE) return {1, PACK_TILE / 8, 8};
    const uint32_t wo = task->tile / 16;
    if (task->group == 2) return {1, wo / 2, 2};
    return {task->group / 4u, wo, 4};
}

/* A slot of weights and the activations that belong to it. */
template <int WB, int WO, int DOWN>
DEV void narrow_slot(const struct warp_context *c, struct ring_use *r, float sum[WB][WO][4]) {
    constexpr struct ring_shape s = ring_shape_of(WB * DOWN, WO * 8 * (WARPS / DOWN));
    const uint4 *w = (const uint4 *)(shared_memory + s.w_at + r->w_slot * s.w_bytes +
                                     c->warp % DOWN * WB * (s.w_steps * 512)) +
                     c->lane;
    ring_wait(r, r->w_slot);
#pragma unroll
    for (int at = 0; at < s.w_steps; at += PIECE_STEPS) {
        const char *x =
            shared_memory + s.x_at + r->x_slot * s.x_bytes + c->warp / DOWN * WO * PACKED_PIECE;
        ring_wait(r, MAX_W_SLOTS + r->x_slot);
        steps_mma<WB, WO, PIECE_STEPS, s.w_steps>(c->lane, w + at * 32, x, sum);
        ring_use_x(r, &s);
        if (at + PIECE_STEPS == s.w_steps) ring_use_w(r, &s);
        ring_give(c, r);
    }
}

/* The sums of a tile: all k-tiles of partial 0, of partial 1, ... They are left where they are
 * parked. */
template <int WB, int WO, int DOWN> __device__ __noinline__ void narrow_multiply(void) {
    constexpr uint32_t per_k_tile =
        CUDA_PAGE_K / 16 / ring_shape_of(WB * DOWN, WO * 8 * (WARPS / DOWN)).w_steps;
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const uint32_t sums = SHARED->packed[c.warp].sums, k_tiles = sums_k_tiles(sums);
    struct ring_use r = ring_load(&c);
    float total[WB][WO][4];
    tile_fill<WB, WO>(total, -0.0f);
#pragma unroll 1
    for (uint32_t partial = sums_first(sums); partial < sums_end(sums); partial++) {
        float sum[WB][WO][4];
        tile_fill<WB, WO>(sum, 0);
        uint32_t n_slots = ceil_div(k_tiles - partial, PARTIALS) * per_k_tile;
#pragma unroll 1
        for (; n_slots > 0; n_slots--) narrow_slot<WB, WO, DOWN>(&c, &r, sum);
        tile_add<WB, WO>(total, sum);
    }
    tile_park<WB, WO, DOWN>(&c, total);
    ring_store(&c, &r);
}

/* The lease is taken: weights may be asked for. */
DEV void packed_early(const struct warp_context *c, const struct cuda_task *task) {
    if (c->thread != 0 || task->row0 >= linear_rows(task)) return;
    const uint32_t i = c->message % GO_DEPTH;
    SHARED->leased = task - SHARED->task;
    SHARED->leased_ready = 2 * i + (c->ready_parity >> i & 1);
    barrier_arrive_release_cta(&SHARED->lease_taken);
}

/* The tile of row blocks from `block` and tokens from `row` on is next. */
DEV uint32_t packed_enter(const struct warp_context *c, const struct cuda_task *task,
                          uint32_t block, uint32_t row) {
    const struct row_tile t = row_tile_at(task, block, MOST_BLOCKS);
    if (c->lane == 0) {
        SHARED->packed[c->warp].block = block;
        SHARED->packed[c->warp].row = row;
        SHARED->packed[c->warp].sums = task->k_tiles | t.partial << 16 | t.partial_end << 24;
    }
    tile_norms(c, task, row, min(task->row1, linear_rows(task)));
    __syncwarp();
    return task->group | task->tile << 8;
}

/* The event is there. The tile that packed_multiply is to multiply next, as
 * cuda_task.group | .tile << 8; 0: the task has none. */
DEV uint32_t packed_first(const struct warp_context *c, const struct cuda_task *task) {
    if (task->row0 >= linear_rows(task)) return 0;
    const struct ring_use r = {0, 0, SHARED->packed_phase, 0};
    ring_store(c, &r);
    return packed_enter(c, task, task->block0, task->row0);
}

/* Makes the results of the tile at hand. The next one; 0: there is none. */
DEV uint32_t packed_results(const struct warp_context *c, const struct cuda_task *task) {
    const struct tile_share s = tile_share_of(task);
    const struct row_tile t = row_tile_at(task, SHARED->packed[c->warp].block, s.wb * s.down);
    const uint32_t end = min(task->row1, linear_rows(task)), row = SHARED->packed[c->warp].row;
    sync_compute();
    tile_finish(task, {t.block, t.end, row, end, s.wb, s.wo, s.down});
    sync_compute();
    if (row + task->tile < end) return packed_enter(c, task, t.block, row + task->tile);
    if (t.end < task->block1) return packed_enter(c, task, t.end, task->row0);
    const struct ring_use r = ring_load(c);
    if (c->thread == 0) SHARED->packed_phase = r.phase;
    return 0;
}

/* A tile. Inlined into the kernel. */
DEV void packed_multiply(uint32_t tile) {
    tile = __shfl_sync(~0u, tile, 0);
    if (tile >> 8 == PACK_TILE) {
        tile_multiply();
        return;
    }
    switch (tile) {
    case 16 | 64 << 8: narrow_multiply<4, 4, 4>(); break;
    case 12 | 64 << 8: narrow_multiply<3, 4, 4>(); break;
    case 8 | 64 << 8: narrow_multiply<2, 4, 4>(); break;
    case 4 | 64 << 8: narrow_multiply<1, 4, 4>(); break;
    case 2 | 64 << 8: narrow_multiply<1, 2, 2>(); break;
    case 16 | 32 << 8: narrow_multiply<4, 2, 4>(); break;
    case 12 | 32 << 8: narrow_multiply<3, 2, 4>(); break;
    default: narrow_multiply<1, 2, 4>(); break; /* 4 and 32: cuda_tables.c has no others */
    }
}

#endif

#endif
