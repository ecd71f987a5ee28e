/* matmul_tile_hopper.cuh - Hopper: tasks of many packed rows, tile by tile. Tiles of 128 tokens are
 * multiplied by wgmma (matmul_tile_wgmma.cuh), narrower tiles here by mma.sync, which takes nearly
 * as long as loading their weights. Two warps request the operands of both kinds
 * (tile_producer.cuh). */
#ifndef QN_CUDA_MATMUL_MATMUL_TILE_HOPPER_CUH
#define QN_CUDA_MATMUL_MATMUL_TILE_HOPPER_CUH

#include "kernels/cuda/matmul/matmul_tile_wgmma.cuh"

#if HAS_WGMMA

/* A warp's share of a tile: wb row blocks x wo columns of eight tokens; `down` warps share the tile
 * in the direction of weight rows, the others in that of tokens. In a step a warp reads wb * 512 +
 * wo * 256 bytes of shared memory: 12 row blocks as 3 x 4 instead of 6 x 2, and two as 1 x 2
 * instead of 2 x 1, made decode of 64 requests 9 % faster (H200, Qwen3-8B). */
struct tile_share {
    uint32_t wb, wo, down;
};
DEV struct tile_share tile_share_of(const struct cuda_task *task) {
    if (task->tile == PACK_TILE) return {1, PACK_TILE / 8, 8};
    const uint32_t wo = task->tile / 16;
    if (task->group == 2) return {1, wo / 2, 2};
    return {task->group / 4u, wo, 4};
}

/* packed[].row */
enum : uint32_t { NO_ROW = ~0u };

/* Waits for the task's event, once. False: the launch ends. */
DEV bool packed_wait(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    __syncwarp(); /* all lanes have read the context */
    context_store(c);
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    return true;
}

/* Multiplies a slot of weights with the activations that belong to it. No fence is between the
 * loads and the arrival that permits the next copies (page_release has one): only loads from shared
 * memory are ahead of a slot's last ones, and such a copy comes from L2 at the earliest. That is
 * timing, not an ordering rule; no other bits have been seen. With a fence 64 requests of Qwen3-8B
 * took 2 % more (H200). */
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

/* Makes a partial sum of a tile, of so many k-tiles. */
template <int WB, int WO, int DOWN>
DEV void partial_multiply(const struct warp_context *c, struct ring_use *r, uint32_t k_tiles,
                          float sum[WB][WO][4]) {
    constexpr struct ring_shape s = ring_shape_of(WB * DOWN, WO * 8 * (WARPS / DOWN));
    uint32_t n_slots = k_tiles * (CUDA_PAGE_K / 16 / s.w_steps);
    tile_fill<WB, WO>(sum, 0);
#pragma unroll 1
    for (; n_slots > 0; n_slots--) narrow_slot<WB, WO, DOWN>(c, r, sum);
}

/* The tile that is multiplied next: its task, sums_of, its first token row and the end of its
 * rows. */
struct narrow_tile {
    const struct cuda_task *task;
    uint32_t sums, row, end;
};
DEV struct narrow_tile narrow_tile_of(const struct warp_context *c) {
    const struct cuda_task *task = &SHARED->task[SHARED->go[c->message % GO_DEPTH]];
    return {task, SHARED->packed[c->warp].sums, SHARED->packed[c->warp].row,
            min(task->row1, linear_rows(task))};
}

/* Multiplies a tile, one partial sum after the other, and parks its sums or stores them as results.
 * first: it is the task's first tile, so this function waits for the task's event, after all work
 * that does not need it. If the launch ends instead, packed[].row becomes NO_ROW. */
CODE_OF((int WB, int WO, int DOWN), void, narrow_multiply, bool first) {
    struct warp_context c = context_load();
    const struct narrow_tile t = narrow_tile_of(&c);
    struct ring_use r = ring_load(&c);
    float total[WB][WO][4], sum[WB][WO][4];
    tile_fill<WB, WO>(total, TILE_NOTHING);
    if (first && !packed_wait(&c, t.task)) {
        SHARED->packed[c.warp].row = NO_ROW;
        return;
    }
    const float squares = tile_norms_ask(&c, t.task, t.row, t.end);
#pragma unroll 1
    for (uint32_t partial = sums_first(t.sums); partial < sums_end(t.sums); partial++) {
        partial_multiply<WB, WO, DOWN>(&c, &r, sums_length(sums_k_tiles(t.sums), partial), sum);
        tile_add_partial<WB, WO>(partial + 1, sums_half(t.sums), total, sum);
    }
    tile_add_half<WB, WO>(sums_half(t.sums), total, sum);
    ring_store(&c, &r);
    if (t.task->kind == OP_LINEAR_SPLITK) {
        parts_store<WB, WO, DOWN>(&c, t.task, t.row, t.end, total);
        return;
    }
    tile_park<WB, WO, DOWN>(&c, total);
    tile_norms_put(&c, t.task, t.row, t.end, squares);
}

/* The same for a tile of LINEAR_SPLITK that has the most row blocks: its only partial sum is its
 * result. */
CODE_OF((int WO), void, part_multiply, bool first) {
    enum { DOWN = 4, WB = MOST_BLOCKS / DOWN };
    struct warp_context c = context_load();
    const struct narrow_tile t = narrow_tile_of(&c);
    struct ring_use r = ring_load(&c);
    float sum[WB][WO][4];
    if (first && !packed_wait(&c, t.task)) {
        SHARED->packed[c.warp].row = NO_ROW;
        return;
    }
    partial_multiply<WB, WO, DOWN>(&c, &r, sums_length(sums_k_tiles(t.sums), sums_first(t.sums)),
                                   sum);
    ring_store(&c, &r);
    parts_store<WB, WO, DOWN>(&c, t.task, t.row, t.end, sum);
}

/* ---- tiles of PACK_WIDE tokens ----
 *
 * Four warps multiply half of the tokens with all of the tile's weight rows, by wgmma. A warp has a
 * row block of each product, and its row blocks follow each other (tile_share_of). Its registers
 * hold one partial sum. So the total is parked from the first partial sum on. */

enum {
    WIDE_WB = 3, /* row blocks of a warp */
    WIDE_BLOCKS = 4 * WIDE_WB,
    WIDE_WO = PACK_WIDE / 16, /* columns of eight tokens of a warp */
};

/* Multiplies a slot of weights with the slot of activations that belongs to it. */
DEV void wide_slot(const struct warp_context *c, struct ring_use *r,
                   float (&sum)[WIDE_WB][WIDE_WO][4], bool add) {
    constexpr struct ring_shape s = ring_shape_of(WIDE_BLOCKS, PACK_WIDE);
    constexpr uint32_t block = s.w_steps * 32; /* uint4s from a row block to the next */
    static_assert(s.w_steps == PIECE_STEPS, "a slot of each");
    const uint4 *w = (const uint4 *)(shared_memory + s.w_at + r->w_slot * s.w_bytes) +
                     c->warp % 4 * (WIDE_WB * block) + c->lane;
    const uint32_t half = c->warp / 4 * (WIDE_WO * PACKED_PIECE);
    const uint64_t x =
        wgmma_matrix(shared_memory, s.x_at + r->x_slot * s.x_bytes + half, 128, PACKED_PIECE);
    ring_wait(r, r->w_slot);
    ring_wait(r, MAX_W_SLOTS + r->x_slot);
#pragma unroll
    for (int i = 0; i < s.w_steps; i++) {
        uint4 a[WIDE_WB];
#pragma unroll
        for (int n = 0; n < WIDE_WB; n++) a[n] = w[n * block + i * 32];
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < WIDE_WB; n++)
            wgmma_64x48x16<WEIGHT_E>(sum[n], a[n], wgmma_further(x, 256 * i), add || i > 0);
        wgmma_commit();
        wgmma_wait<0>();
    }
#pragma unroll
    for (int n = 0; n < WIDE_WB; n++) wgmma_settle(sum[n]);
    ring_use_x(r, &s);
    ring_use_w(r, &s);
    ring_give(c, r);
}

/* Multiplies a tile, one partial sum after the other. Inlined into the kernel, as tile_multiply. */
DEV void wide_multiply(void) {
    const struct warp_context here = context_of(&SHARED->args, thread_here(), 0, 0), *c = &here;
    const uint32_t sums = __shfl_sync(~0u, SHARED->packed[c->warp].sums, 0);
    struct ring_use r = ring_load(c);
#pragma unroll 1
    for (uint32_t partial = sums_first(sums); partial < sums_end(sums); partial++) {
        float sum[WIDE_WB][WIDE_WO][4];
        tile_fill<WIDE_WB, WIDE_WO>(sum, 0); /* the compiler wants values */
        bool add = false;
        uint32_t n_slots = sums_length(sums_k_tiles(sums), partial) * X_PARTS;
#pragma unroll 1
        for (; n_slots > 0; n_slots--, add = true) wide_slot(c, &r, sum, add);
        tile_park<WIDE_WB, WIDE_WO, 4>(c, sum, 0, partial > 0);
    }
    ring_store(c, &r);
}

/* Takes the lease: from here on its activations may be requested, and its weights, if they were not
 * before. All warps have finished the previous task, or the lease could not have come. Warp 1 tells
 * the warps that request operands, because warp 0 sends the trigger of the previous task, which
 * takes a while. */
DEV void packed_take(const struct warp_context *c, const struct cuda_task *task) {
    lease_wait(c);
    if (c->thread != 32 || task->row0 >= linear_rows(task)) return;
    const uint32_t i = c->message % GO_DEPTH;
    SHARED->leased = task - SHARED->task;
    SHARED->leased_ready = 2 * i + (c->ready_parity >> i & 1);
    lease_opens();
    barrier_arrive_release_cta(&SHARED->lease_taken);
}

/* The next tile in a word: cuda_task.group | .tile << 8, and whether it is the task's first. */
enum { TILE_FIRST = 1 << 16 };

/* Makes the tile that begins with row block `block` and token `row` the next one. */
DEV uint32_t packed_enter(const struct warp_context *c, const struct cuda_task *task,
                          uint32_t block, uint32_t row) {
    const struct row_tile t = row_tile_at(task, block, MOST_BLOCKS);
    __syncwarp(); /* all lanes are done with the tile before */
    if (c->lane == 0) {
        SHARED->packed[c->warp].block = block;
        SHARED->packed[c->warp].row = row;
        SHARED->packed[c->warp].sums = sums_of(task, &t);
    }
    const uint32_t end = min(task->row1, linear_rows(task));
    if (tile_by_wgmma(task)) { /* narrower tiles request them later */
        const float squares = tile_norms_ask(c, task, row, end);
        tile_norms_put(c, task, row, end, squares);
    }
    __syncwarp();
    return task->group | task->tile << 8;
}

#if GROUPED_TILES

#include "kernels/cuda/expert/grouped_results.cuh"

/* Makes a grouped tile the next one. */
DEV uint32_t grouped_enter(const struct warp_context *c, const struct cuda_task *task,
                           const struct grouped_walk *w, const struct grouped_tile *tile) {
    const struct row_tile t = row_tile_of(w, tile, task->k_tiles);
    __syncwarp(); /* all lanes are done with the tile before */
    if (c->lane == 0) {
        SHARED->packed[c->warp].block = grouped_word(tile);
        SHARED->packed[c->warp].row = grouped_rows_word(tile);
        SHARED->packed[c->warp].sums = sums_of(task, &t);
    }
    const float squares = tile_norms_ask(c, task, tile->row, tile->slot1);
    tile_norms_put(c, task, tile->row, tile->slot1, squares);
    __syncwarp();
    return task->group | task->tile << 8;
}

/* Stores the results of the current grouped tile. Returns the next tile; 0: there is none. */
DEV uint32_t grouped_results(const struct warp_context *c, const struct cuda_task *task) {
    constexpr struct ring_shape ring = WGMMA_RING;
    const struct grouped_walk w = grouped_walk_of(task);
    const uint32_t word = SHARED->packed[c->warp].block, rows = SHARED->packed[c->warp].row;
    const uint32_t slot = ring_parked(&ring, SHARED->packed[c->warp].ring >> 24);
    const bool there = (word & GROUPED_VOID) == 0;
    struct grouped_tile next = {};
    if (there) next = grouped_tile_at(&w, word + w.step);
    sync_compute();
    if (there) grouped_finish(task, grouped_block(task, word), rows, ring_w_at(&ring, slot));
    page_copy_fence_shared(); /* copies will write where these threads did */
    sync_compute();
    ring_give_parked(c, slot);
    return next.there ? grouped_enter(c, task, &w, &next) : 0;
}

#endif

/* After packed_take. Returns the first tile for packed_multiply; 0: the task has none. Either this
 * function or packed_multiply waits for the event, as late as possible. stop: the launch ends. */
DEV uint32_t packed_first(struct warp_context *c, const struct cuda_task *task, bool *stop) {
    const bool none = task->row0 >= linear_rows(task);
    if (none || tile_by_wgmma(task)) *stop = !packed_wait(c, task);
    if (none || *stop) return 0;
    const struct ring_use r = {0, 0, SHARED->packed_phase, 0};
    ring_store(c, &r);
#if GROUPED_TILES
    if (tile_is_grouped(task)) {
        const struct grouped_walk w = grouped_walk_of(task);
        const struct grouped_tile first = grouped_first(&w);
        return grouped_enter(c, task, &w, &first) | TILE_FIRST;
    }
#endif
    return packed_enter(c, task, task->block0, task->row0) | TILE_FIRST;
}

/* Whether the launch ended before the current tile was multiplied. */
DEV bool packed_stopped(const struct warp_context *c) {
    return SHARED->packed[c->warp].row == NO_ROW;
}

/* Stores the results of the current tile. Returns the next tile; 0: there is none. */
DEV uint32_t packed_results(const struct warp_context *c, const struct cuda_task *task) {
#if GROUPED_TILES
    if (tile_is_grouped(task)) return grouped_results(c, task);
#endif
    const struct tile_share s = tile_share_of(task);
    const struct row_tile t = row_tile_at(task, SHARED->packed[c->warp].block, s.wb * s.down);
    const uint32_t end = min(task->row1, linear_rows(task)), row = SHARED->packed[c->warp].row;
    if (task->kind != OP_LINEAR_SPLITK) {
        constexpr struct ring_shape ring = WGMMA_RING;
        const bool in_slots = ring_parks(task->tile);
        const uint32_t slot = ring_parked(&ring, SHARED->packed[c->warp].ring >> 24);
        tile_norms_pieces(c, task, row, end);
        sync_compute();
        tile_finish(task, {t.block, t.end, row, end, s.wb, s.wo, s.down,
                           in_slots ? ring_w_at(&ring, slot) : 0});
        if (in_slots) page_copy_fence_shared(); /* copies will write where these threads did */
        sync_compute();
        if (in_slots) ring_give_parked(c, slot);
    }
    if (row + task->tile < end) return packed_enter(c, task, t.block, row + task->tile);
    if (t.end < task->block1) return packed_enter(c, task, t.end, task->row0);
    return 0;
}

/* Called when all warps are done with the lease's last tile and none has begun the next lease. */
DEV void packed_leave(const struct warp_context *c) {
    const struct ring_use r = ring_load(c);
    if (c->thread == 0) SHARED->packed_phase = r.phase;
}

/* Multiplies a tile. Inlined into the kernel. */
DEV void packed_multiply(uint32_t tile) {
    tile = __shfl_sync(~0u, tile, 0);
    const bool first = (tile & TILE_FIRST) != 0;
    tile &= TILE_FIRST - 1;
    if (tile >> 8 == PACK_TILE) {
        tile_multiply();
        return;
    }
    switch (tile) {
    case 12 | 96 << 8: wide_multiply(); break;
    case 16 | 96 << 8: part_multiply<6>(first); break;
    case 16 | 64 << 8: part_multiply<4>(first); break;
    case 12 | 64 << 8: narrow_multiply<3, 4, 4>(first); break;
    case 8 | 64 << 8: narrow_multiply<2, 4, 4>(first); break;
    case 4 | 64 << 8: narrow_multiply<1, 4, 4>(first); break;
    case 2 | 64 << 8: narrow_multiply<1, 2, 2>(first); break;
    case 16 | 32 << 8: part_multiply<2>(first); break;
    case 12 | 32 << 8: narrow_multiply<3, 2, 4>(first); break;
    default: narrow_multiply<1, 2, 4>(first); break; /* 4 and 32: cuda_form.c has no others */
    }
}

#endif

#endif
