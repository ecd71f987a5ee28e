/* matmul_tile_wgmma.cuh - Hopper: tiles of 128 tokens of packed activations by wgmma.
 *
 * Four warps together multiply 64 weight rows, a row block each, with 128 tokens. So eight warps
 * have a tile of 128 weight rows. A lane's words of a page are its share of A, in registers; pieces
 * of packed activations, as they arrive in shared memory, are B. Row blocks past the task's end are
 * multiplied with the others of four warps, and not stored; four warps that have only such row
 * blocks multiply nothing (tile_skip).
 *
 * Per step of 16 columns and four warps: 2 KB of weights and 4 KB of activations from shared
 * memory, 64 cycles of the tensor cores. Weights are loaded into registers one product ahead; a
 * slot is released one product after its last product.
 *
 * The compiler waits for every product if products are in a function that is called, if trip counts
 * might differ between lanes, if a path leads out from between products (a wait that gives up), or
 * if there is a second size of products. It says so, and check_kernels fails. The products of
 * attention_prefill_wgmma.cuh do no harm, because all of them are waited for before others begin.
 */
#ifndef QN_CUDA_MATMUL_MATMUL_TILE_WGMMA_CUH
#define QN_CUDA_MATMUL_MATMUL_TILE_WGMMA_CUH

#include "kernels/cuda/matmul/matmul_tile_mma.cuh"

#if HAS_WGMMA

enum { WO = PACK_TILE / 8 }; /* columns of eight tokens of a tile */

/* Multiplies a step. a: the lane's share of its weights; add: it is not the sum's first step. */
DEV void step_mma(uint4 a, uint64_t x, float sum[WO][4], bool add) {
    wgmma_fence();
    wgmma_64x128x16<WEIGHT_E>(*(float(*)[WO][4])sum, a, x, add);
    wgmma_commit();
    wgmma_wait<1>();
}

/* Multiplies a slot of weights with the activations that belong to it. keep: sums will be parked in
 * the slot of weights. */
DEV void slot_mma(const struct warp_context *c, struct ring_use *r, float sum[WO][4], bool add,
                  bool keep) {
    constexpr struct ring_shape s = WGMMA_RING;
    const uint4 *w =
        (const uint4 *)(shared_memory + ring_w_at(&s, r->w_slot) + c->warp * (s.w_steps * 512)) +
        c->lane;
    ring_wait(r, r->w_slot);
    uint4 a = w[0];
#pragma unroll
    for (int at = 0; at < s.w_steps; at += PIECE_STEPS) {
        const uint64_t x =
            wgmma_matrix(shared_memory, s.x_at + r->x_slot * s.x_bytes, 128, PACKED_PIECE);
        ring_wait(r, MAX_W_SLOTS + r->x_slot);
#pragma unroll
        for (int i = 0; i < PIECE_STEPS; i++) {
            const int step = at + i;
            const uint4 next = w[least(step + 1, s.w_steps - 1) * 32];
            step_mma(a, wgmma_further(x, 256 * i), sum, add || step > 0);
            if (i == 0) ring_give(c, r); /* the products before this one are done */
            a = next;
        }
        ring_use_x(r, &s);
    }
    ring_use_w(r, &s, keep);
}

/* Takes part in the ring as slot_mma does, without products. */
DEV void slot_skip(const struct warp_context *c, struct ring_use *r, bool keep) {
    constexpr struct ring_shape s = WGMMA_RING;
    ring_wait(r, r->w_slot);
#pragma unroll 1
    for (int at = 0; at < s.w_steps; at += PIECE_STEPS) {
        ring_wait(r, MAX_W_SLOTS + r->x_slot);
        ring_use_x(r, &s);
        ring_give(c, r);
    }
    ring_use_w(r, &s, keep);
    ring_give(c, r);
}

/* Prefetches the tile's share of the residual stream into L2, an eighth of the tile's time before
 * the results need it. The residual stream was written half a layer ago, and all blocks load their
 * shares at once. */
DEV void residual_ahead(const struct warp_context *c) {
    const struct warp_state w = SHARED->warp[c->warp];
    const struct cuda_task *task = &SHARED->task[SHARED->go[w.message % GO_DEPTH]];
    if (task->kind != OP_LINEAR || task->more == 0) return;
    const uint32_t row = SHARED->packed[c->warp].row + c->warp * 16 + c->lane / 2;
    const uint32_t column = SHARED->packed[c->warp].block * CUDA_PAGE_ROWS + c->lane % 2 * 64;
    const float *from = (const float *)task->more + (uint64_t)row * task->units + column;
    if (row >= min(task->row1, linear_rows(task))) return;
    if (column < task->units) prefetch_l2(from);
    if (column + 32 < task->units) prefetch_l2(from + 32);
}

/* Stores the sums of a tile of LINEAR_SPLITK, which are its results, from the registers of the
 * products: eight lanes have 32 bytes of a token's columns. The stores ask L2 to keep the sums: 8
 * MB twice a layer of Qwen3-8B, which only SPLITK_SUM reads, right afterwards. Without this,
 * weights evicted them to memory. */
template <int WB, int WO, int DOWN>
DEV void parts_store(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                     uint32_t end, const float total[WB][WO][4]) {
    const struct row_tile t = row_tile_at(task, SHARED->packed[c->warp].block, WB * DOWN);
    const uint32_t block = t.block + c->warp % DOWN * WB;
    const uint32_t token = row + c->warp / DOWN * (8 * WO) + c->lane % 4 * 2;
    float *to =
        (float *)task->out + (uint64_t)token * task->units + block * CUDA_PAGE_ROWS + c->lane / 4;
#pragma unroll
    for (int i = 0; i < WO; i++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            float *at = to + (uint64_t)(8 * i + odd) * task->units;
            if (token + 8 * i + odd >= end) continue;
#pragma unroll
            for (int n = 0; n < WB; n++) {
                if (block + n >= t.end) break;
                store_kept(at + n * CUDA_PAGE_ROWS, total[n][i][odd]);
                store_kept(at + n * CUDA_PAGE_ROWS + 8, total[n][i][2 + odd]);
            }
        }
}

/* The first row block of the current tile, of the task's or of the expert's. */
DEV uint32_t tile_block(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t block = SHARED->packed[c->warp].block;
#if GROUPED_TILES
    if (tile_is_grouped(task)) return grouped_block(task, block);
#endif
    return block;
}

/* Passes all slots of a tile, for warps that multiply nothing of it. */
DEV void tile_skip(const struct warp_context *c, struct ring_use *r, uint32_t sums, bool parks) {
#pragma unroll 1
    for (uint32_t partial = sums_first(sums); partial < sums_end(sums); partial++) {
        const uint32_t kept = parks && partial + 1 == sums_end(sums) ? 2 : 0;
#pragma unroll 1
        for (uint32_t n = 2 * sums_length(sums_k_tiles(sums), partial); n > 0; n--)
            slot_skip(c, r, n <= kept);
        if (partial + 2 == sums_end(sums)) residual_ahead(c);
    }
}

/* Multiplies a tile, one partial sum after the other, and parks its sums, or stores them if it is
 * of LINEAR_SPLITK. Trip counts are the same for all lanes, and the compiler must know it. */
DEV void tile_multiply(void) {
    const struct warp_context c = context_of(&SHARED->args, thread_here(), 0, 0);
    const uint32_t message = SHARED->warp[c.warp].message;
    const struct cuda_task *task = &SHARED->task[SHARED->go[message % GO_DEPTH]];
    const uint32_t sums = __shfl_sync(~0u, SHARED->packed[c.warp].sums, 0);
    const bool parks = __shfl_sync(~0u, (uint32_t)task->kind, 0) != OP_LINEAR_SPLITK;
    const uint32_t first = tile_block(&c, task) + c.warp / 4 * 4;
    const bool works = __shfl_sync(~0u, first, 0) < __shfl_sync(~0u, task->block1, 0);
    struct ring_use r = ring_load(&c);
    float total[1][WO][4], sum[1][WO][4];
    tile_fill<1, WO>(total, TILE_NOTHING);
    tile_fill<1, WO>(sum, 0); /* the compiler wants values, though none is used */
#pragma unroll 1
    for (uint32_t partial = works ? sums_first(sums) : sums_end(sums); partial < sums_end(sums);
         partial++) {
        bool add = false;
        uint32_t n_slots = 2 * sums_length(sums_k_tiles(sums), partial);
        const uint32_t kept = parks && partial + 1 == sums_end(sums) ? 2 : 0;
#pragma unroll 1
        for (; n_slots > 0; n_slots--, add = true) slot_mma(&c, &r, sum[0], add, n_slots <= kept);
        wgmma_wait<0>();
        wgmma_settle(sum[0]);
        ring_give(&c, &r);
        tile_add_partial<1, WO>(partial + 1, sums_half(sums), total, sum);
        if (partial + 2 == sums_end(sums)) residual_ahead(&c);
    }
    tile_add_half<1, WO>(works ? sums_half(sums) : 0, total, sum);
    if (!works) tile_skip(&c, &r, sums, parks);
    constexpr struct ring_shape s = WGMMA_RING;
    if (parks) {
        sync_compute(); /* all have read their weights */
        tile_park<1, WO, 8>(&c, total, ring_w_at(&s, ring_parked(&s, r.w_slot)));
    } else {
        parts_store<1, WO, 8>(&c, task, SHARED->packed[c.warp].row,
                              min(task->row1, linear_rows(task)), total);
    }
    ring_store(&c, &r);
}

#endif

#endif
