/* packed_wgmma.cuh - Hopper: tiles of 128 tokens of packed activations by wgmma. And the choice.
 *
 * Four warps multiply 64 weight rows, a row block each, and 128 tokens: what a lane holds of a page
 * is its share of A, in registers; B are pieces of packed activations in shared memory as they
 * came. So eight warps have a tile of 128 weight rows. Row blocks that the task does not have are
 * multiplied all the same, whatever stands there, and not stored.
 *
 * Per step of 16 columns and four warps: 2 KB of weights and 4 KB of activations from shared
 * memory, 64 cycles of the tensor cores. While a product runs, the weights of the next one are
 * fetched; a slot is given back one product after its last.
 *
 * The compiler is easily made to wait for every product (it says so, and check_kernels fails): by
 * products in a function that is called, by trip counts that might differ between lanes, by a path
 * that leads out from between them (a wait that gives up), by a second size of tiles.
 */
#ifndef QN_CUDA_COMMON_PACKED_WGMMA_CUH
#define QN_CUDA_COMMON_PACKED_WGMMA_CUH

#include "kernels/cuda/common/packed_mma.cuh"

#if HAS_WGMMA

enum { WO = PACK_TILE / 8 }; /* columns of eight tokens of a tile */

/* One warp's view of the rings. */
struct ring_use {
    uint32_t w_slot, x_slot; /* to work on next */
    uint32_t phase;          /* of all slots, a bit each: weights, then activations */
    uint32_t used; /* barriers of slots to give back when their products are done, a bit each */
};

/* Between tiles it lies in shared memory: products leave no register for it. */
DEV struct ring_use ring_load(const struct warp_context *c) {
    const uint32_t word = __shfl_sync(~0u, SHARED->packed[c->warp].ring, 0);
    return ring_use{word >> 24, word >> 16 & 255, word & 0xffff, 0};
}
DEV void ring_store(const struct warp_context *c, const struct ring_use *r) {
    if (c->lane == 0) SHARED->packed[c->warp].ring = r->w_slot << 24 | r->x_slot << 16 | r->phase;
    __syncwarp();
}

/* Waits for the slot of barrier number i. */
DEV void ring_wait(struct ring_use *r, uint32_t i) {
    barrier_await_acquire_cta(&SHARED->packed_full[i], r->phase >> i & 1);
    r->phase ^= 1u << i;
}

/* Slots whose products are done. */
DEV void ring_give(const struct warp_context *c, struct ring_use *r) {
    if (r->used == 0) return;
    __syncwarp();
    if (c->lane < MAX_W_SLOTS + MAX_X_SLOTS && (r->used >> c->lane & 1) != 0)
        barrier_arrive_release_cta(&SHARED->packed_empty[c->lane]);
    r->used = 0;
}

/* A step. w: the lane's place in its weights. */
DEV void step_mma(const uint4 *w, uint64_t x, float sum[WO][4]) {
    const uint4 a = *w;
    wgmma_fence();
    wgmma_64x128x16<WEIGHT_E>(*(float(*)[WO][4])sum, a, x);
    wgmma_commit();
    wgmma_wait<1>();
}

/* A slot of weights and the activations that belong to it. */
DEV void slot_mma(const struct warp_context *c, struct ring_use *r, float even[WO][4],
                  float odd[WO][4]) {
    constexpr struct ring_shape s = ring_shape_of();
    const uint4 *w = (const uint4 *)(shared_memory + s.w_at + r->w_slot * s.w_bytes +
                                     c->warp * (RING_W_STEPS * 512)) +
                     c->lane;
    ring_wait(r, r->w_slot);
#pragma unroll
    for (int at = 0; at < RING_W_STEPS; at += PIECE_STEPS) {
        const uint64_t x =
            wgmma_matrix(shared_memory, s.x_at + r->x_slot * s.x_bytes, 128, PACKED_PIECE);
        ring_wait(r, MAX_W_SLOTS + r->x_slot);
        step_mma(w + at * 32, x, even);
        ring_give(c, r); /* the products before this one are done */
        step_mma(w + at * 32 + 32, wgmma_further(x, 256), odd);
        step_mma(w + at * 32 + 64, wgmma_further(x, 512), even);
        step_mma(w + at * 32 + 96, wgmma_further(x, 768), odd);
        r->used = 1u << (MAX_W_SLOTS + r->x_slot);
        r->x_slot = r->x_slot + 1 == s.x_slots ? 0 : r->x_slot + 1;
    }
    r->used |= 1u << r->w_slot;
    r->w_slot = r->w_slot + 1 == s.w_slots ? 0 : r->w_slot + 1;
}

/* The sums of a tile: all k-tiles of partial 0, of partial 1, ... They are left where they are
 * parked. Trip counts are the same for all lanes, and the compiler must know. */
DEV void tile_multiply(void) {
    const struct warp_context c = context_of(&SHARED->args, thread_here(), 0, 0);
    const uint32_t k_tiles = __shfl_sync(~0u, SHARED->packed[c.warp].k_tiles, 0);
    const uint32_t n_partials = min(k_tiles, (uint32_t)PARTIALS);
    struct ring_use r = ring_load(&c);
#pragma unroll 1
    for (uint32_t partial = 0; partial < n_partials; partial++) {
        float even[1][WO][4], odd[1][WO][4];
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int v = 0; v < 4; v++) even[0][i][v] = odd[0][i][v] = 0;
        uint32_t n_slots =
            ceil_div(k_tiles - partial, PARTIALS) * (CUDA_PAGE_K / 16 / RING_W_STEPS);
#pragma unroll 1
        for (; n_slots > 0; n_slots--) slot_mma(&c, &r, even[0], odd[0]);
        wgmma_wait<0>();
        wgmma_settle(even[0]);
        wgmma_settle(odd[0]);
        ring_give(&c, &r);
        tile_fold<1, WO>(&c, partial == 0, even, odd);
    }
    ring_store(&c, &r);
}

/* ---- a task ---- */

/* The lease is taken: weights may be asked for. */
DEV void packed_early(const struct warp_context *c, const struct cuda_task *task) {
    if (c->thread != 0 || task->tile != PACK_TILE || task->row0 >= linear_rows(task)) return;
    SHARED->leased = task - SHARED->task;
    barrier_arrive_release_cta(&SHARED->lease_taken);
}

/* The event is there: for activations, too. How many tokens packed_multiply is to multiply next; 0:
 * the task has none. */
DEV uint32_t packed_first(const struct warp_context *c, const struct cuda_task *task) {
    if (task->row0 >= linear_rows(task)) return 0;
    if (task->tile != PACK_TILE) return task->tile;
    if (c->thread == 0) barrier_arrive_release_cta(&SHARED->lease_ready);
    const struct ring_use r = {0, 0, SHARED->packed_phase, 0};
    ring_store(c, &r);
    if (c->lane == 0) {
        SHARED->packed[c->warp].block = task->block0;
        SHARED->packed[c->warp].row = task->row0;
        SHARED->packed[c->warp].k_tiles = task->k_tiles;
    }
    return PACK_TILE;
}

/* Makes the results of the tile at hand. The tokens of the next one; 0: there is none. */
DEV uint32_t packed_results(const struct warp_context *c, const struct cuda_task *task) {
    if (task->tile != PACK_TILE) return 0;
    const uint32_t end = min(task->row1, linear_rows(task));
    uint32_t block = SHARED->packed[c->warp].block, row = SHARED->packed[c->warp].row;
    tile_finish(task, block + c->warp, row, end, 1, WO);
    row += PACK_TILE;
    if (row >= end) {
        row = task->row0;
        block += RING_BLOCKS;
    }
    __syncwarp();
    if (c->lane == 0) {
        SHARED->packed[c->warp].block = block;
        SHARED->packed[c->warp].row = row;
    }
    if (block < task->block1) return PACK_TILE;
    const struct ring_use r = ring_load(c);
    if (c->thread == 0) SHARED->packed_phase = r.phase;
    return 0;
}

/* A tile of 128 tokens, or all of a task of smaller ones. Inlined into the kernel. */
DEV void packed_multiply(uint32_t tokens) {
    if (__shfl_sync(~0u, tokens, 0) == PACK_TILE)
        tile_multiply();
    else
        packed_whole();
}

#else

/* Nothing can be asked for before the event. */
DEV void packed_early(const struct warp_context *c, const struct cuda_task *task) {
    (void)c, (void)task;
}

/* Whether there is something to multiply. */
DEV uint32_t packed_first(const struct warp_context *c, const struct cuda_task *task) {
    (void)c;
    return task->row0 < linear_rows(task);
}

DEV void packed_multiply(uint32_t) {
    packed_whole();
}

/* Nothing is left. */
DEV uint32_t packed_results(const struct warp_context *c, const struct cuda_task *task) {
    (void)c, (void)task;
    return 0;
}

#endif

#endif
