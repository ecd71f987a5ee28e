/* matmul_tile_mma.cuh - products of tiles of packed activations by mma.sync. Where there is no
 * wgmma, also how a task's weights and activations pass through shared memory (on Hopper:
 * matmul_tile_hopper.cuh).
 *
 * Operands come in stages of some steps of 16 columns: weights [row block][step][512 bytes], then
 * activations [stretch of up to 4 steps][group of eight][step][256 bytes]. The warps take turns in
 * requesting stages. packed_full says that a stage has arrived; with packed_empty each warp says
 * that it has used a stage.
 */
#ifndef QN_CUDA_MATMUL_MATMUL_TILE_MMA_CUH
#define QN_CUDA_MATMUL_MATMUL_TILE_MMA_CUH

#include "kernels/cuda/matmul/matmul_tile.cuh"

/* ---- products ---- */

/* Multiplies an even number of steps of a warp's tile of WB row blocks x WO columns of tokens. w:
 * the lane's place in the weights, of which a row block has BLOCK_STEPS steps; x: activations. */
template <int WB, int WO, int STEPS, int BLOCK_STEPS>
DEV void steps_mma(uint32_t lane, const uint4 *w, const char *x, float sum[WB][WO][4]) {
    const uint32_t row = lane / 16 * (WO > 1 ? STEPS * 256 : 0) + lane % 16 * 16; /* of a matrix */
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint4 b[(WO + 1) / 2]; /* two columns of tokens each */
#pragma unroll
        for (int i = 0; i < WO; i += 2)
            b[i / 2] = load_matrices(x + i * (STEPS * 256) + s * 256 + row);
#pragma unroll
        for (int n = 0; n < WB; n++) {
            const uint4 a = w[n * (BLOCK_STEPS * 32) + 32 * s];
#pragma unroll
            for (int i = 0; i < WO; i++)
                mma_16x8x16<WEIGHT_E>(sum[n][i], a, i % 2 == 0 ? b[i / 2].x : b[i / 2].z,
                                      i % 2 == 0 ? b[i / 2].y : b[i / 2].w);
        }
    }
}

#if !HAS_WGMMA

/* ---- stages ---- */

/* A warp's tile of WB row blocks x WO columns of tokens; DOWN warps share a block's tile in the
 * direction of weight rows, the others in that of tokens. In a step a warp reads WB * 512 + WO *
 * 256 bytes of shared memory. Every stage costs a warp some hundred cycles at its two barriers, so
 * small tiles have long stages. */
template <int WB, int WO, int DOWN, int STEPS> struct packed_shape {
    /* Steps of 16 columns in a stage; few where shared memory is scarce. */
    static constexpr uint32_t steps = SHARED_BYTES >= 160 * 1024 ? STEPS : 2;
    static constexpr uint32_t per_k_tile = CUDA_PAGE_K / 16 / steps;
    static constexpr uint32_t blocks = WB * DOWN, eights = WO * (WARPS / DOWN);
    /* Steps of a stage in a piece of activations; stretches of pieces in a stage. */
    static constexpr uint32_t in_piece = steps < PIECE_STEPS ? steps : PIECE_STEPS;
    static constexpr uint32_t stretches = steps / in_piece;
    static constexpr uint32_t operand_at = blocks * steps * 512;
    static constexpr uint32_t stage_bytes = operand_at + eights * steps * 256;
    static constexpr uint32_t parked_bytes = tile_pitch(blocks) * 8 * eights * 4;
    static constexpr uint32_t room = (TILE_BYTES - parked_bytes) / stage_bytes;
    static constexpr uint32_t stages = room < MAX_STAGES ? room : MAX_STAGES;
    /* A stage's memory is filled again `lag` stages after its use: the slowest warp should be done
     * with it by then. */
    static constexpr uint32_t lag = stages >= 4 ? 2 : 1;
    static_assert(room >= 1, "a stage beside the parked sums");
};

/* Requests the activations of a stage from step `step` on: for each PIECE_STEPS steps a stretch of
 * all eights, or a piece of each eight if the stage has fewer steps. A whole warp requests them, a
 * copy per lane. */
template <class S>
DEV void stage_ask_activations(const struct warp_context *c, const struct cuda_task *task,
                               uint32_t row, uint32_t n_eights, uint32_t step, char *to,
                               uint64_t *full) {
    constexpr bool whole = S::in_piece == PIECE_STEPS;
    /* If the tile has all of the graph's rows, one stretch lies after the other. */
    if (whole && n_eights == S::eights && task->eights == S::eights) {
        if (share_first(c->lane) == 0)
            share_copy(to, packed_piece(task->in, task->eights, row, 16 * step),
                       S::eights * S::steps * 256, full, c->lane);
        return;
    }
    const uint32_t each = whole ? 1 : n_eights, bytes = (whole ? n_eights : 1) * S::in_piece * 256;
    for (uint32_t i = share_first(c->lane); i < S::stretches * each; i += share_step()) {
        const uint32_t stretch = i / each, eight = i % each;
        const char *from = packed_piece(task->in, task->eights, row + 8 * eight, 16 * step);
        share_copy(to + (stretch * S::eights + eight) * (S::in_piece * 256),
                   from + (uint64_t)(stretch * task->eights) * PACKED_PIECE +
                       step % PIECE_STEPS * 256,
                   bytes, full, c->lane);
    }
}

/* Requests the task's stage number n, if there is one. Tiles go by weight rows, then by tokens. A
 * whole warp requests it, a copy per lane: first row blocks, then activations. Memory of row blocks
 * that the task does not have is left as it is. */
template <class S>
DEV void stage_ask(const struct warp_context *c, const struct cuda_task *task, uint32_t end,
                   uint32_t n, uint32_t phase, bool again) {
    const uint32_t per_tile = task->k_tiles * S::per_k_tile, slot = n % S::stages;
    const uint32_t across = ceil_div(end - task->row0, 8 * S::eights), tile = n / per_tile;
    const uint32_t block = task->block0 + tile / across * S::blocks;
    const uint32_t row = task->row0 + tile % across * (8 * S::eights);
    if (block >= task->block1) return;
    const uint32_t n_blocks = min(task->block1 - block, S::blocks);
    const uint32_t n_eights = min(ceil_div(end - row, 8), S::eights);
    n %= per_tile;
    const uint32_t k_tile = n / S::per_k_tile, in_tile = n % S::per_k_tile * S::steps;
    const uint32_t step = k_tile * (CUDA_PAGE_K / 16) + in_tile;
    const uint64_t page = cuda_tile_page(task->k_tiles, k_tile);
    char *stage = shared_memory + S::parked_bytes + slot * S::stage_bytes;
    uint64_t *full = &SHARED->packed_full[slot];
    if (again) barrier_wait_acquire_cta(&SHARED->packed_empty[slot], (phase >> slot & 1) ^ 1);
    share_begin(full, n_blocks * (S::steps * 512) + n_eights * (S::steps * 256), c->lane);
    for (uint32_t i = share_first(c->lane); i < n_blocks; i += share_step())
        share_copy(stage + i * (S::steps * 512),
                   (const char *)task->w + in_tile * 512 +
                       ((uint64_t)(block + i) * task->k_tiles + page) * CUDA_PAGE_BYTES,
                   S::steps * 512, full, c->lane);
    stage_ask_activations<S>(c, task, row, n_eights, step, stage + S::operand_at, full);
    share_end(full, c->lane);
}

/* ---- a tile ---- */

/* Multiplies all steps of a stage. */
template <class S, int WB, int WO, int DOWN>
DEV void stage_mma(const struct warp_context *c, const char *stage, float sum[WB][WO][4]) {
    const uint4 *w = (const uint4 *)(stage + c->warp % DOWN * WB * (S::steps * 512)) + c->lane;
    const char *x = stage + S::operand_at + c->warp / DOWN * WO * (S::in_piece * 256);
#pragma unroll
    for (int first = 0; first < S::steps;
         first += S::in_piece, w += 32 * S::in_piece, x += S::eights * S::in_piece * 256)
        steps_mma<WB, WO, S::in_piece, S::steps>(c->lane, w, x, sum);
}

/* One warp's view of the stages while a task runs. */
struct packed_ring {
    uint32_t end;         /* token rows [row0, end) */
    uint32_t n;           /* number of the next stage to work on */
    uint32_t slot, phase; /* that stage's slot; phases of all slots, a bit each */
};

/* Multiplies a tile, one partial sum after the other: all k-tiles in order. */
template <class S, int WB, int WO, int DOWN>
DEV void tile_run(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                  uint32_t row, struct packed_ring *r) {
    const uint32_t n_partials = partial_count(task->k_tiles);
    const uint32_t half = sums_half_of(task);
    float total[WB][WO][4], sum[WB][WO][4];
    tile_fill<WB, WO>(total, TILE_NOTHING);
    tile_norms(c, task, row, r->end);
#pragma unroll 1
    for (uint32_t partial = 0; partial < n_partials; partial++) {
        tile_fill<WB, WO>(sum, 0);
        uint32_t n_stages = sums_length(task->k_tiles, partial) * S::per_k_tile;
#pragma unroll 1
        for (; n_stages > 0; n_stages--) {
            /* Warps take turns, because a request takes as long as part of the work on a stage. */
            const uint32_t next = r->n + S::stages - S::lag;
            if (next % WARPS == c->warp && r->n >= S::lag)
                stage_ask<S>(c, task, r->end, next, r->phase, true);
            barrier_wait_acquire_cta(&SHARED->packed_full[r->slot], r->phase >> r->slot & 1);
            stage_mma<S, WB, WO, DOWN>(
                c, shared_memory + S::parked_bytes + r->slot * S::stage_bytes, sum);
            page_copy_fence_shared(); /* the next copy comes through the async proxy */
            __syncwarp();
            if (c->lane == 0) barrier_arrive_release_cta(&SHARED->packed_empty[r->slot]);
            r->phase ^= 1u << r->slot;
            r->slot = r->slot + 1 == S::stages ? 0 : r->slot + 1;
            r->n++;
        }
        tile_add_partial<WB, WO>(partial + 1, half, total, sum);
    }
    tile_add_half<WB, WO>(half, total, sum);
    tile_park<WB, WO, DOWN>(c, total);
    sync_compute();
    tile_finish(task, {block, min(block + S::blocks, task->block1), row, r->end, WB, WO, DOWN});
    sync_compute();
}

/* Multiplies all tiles of a task and stores their results. */
CODE_OF((int WB, int WO, int DOWN, int STEPS), void, packed_linear, const struct cuda_args *args,
        const struct cuda_task *task, uint32_t n_rows) {
    typedef packed_shape<WB, WO, DOWN, STEPS> S;
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    struct packed_ring r = {min(task->row1, n_rows), 0, 0, SHARED->packed_phase};
#pragma unroll 1
    for (uint32_t i = 0; i < S::stages; i++)
        if (i % WARPS == c.warp) stage_ask<S>(&c, task, r.end, i, 0, false);
#pragma unroll 1
    for (uint32_t block = task->block0; block < task->block1; block += S::blocks)
#pragma unroll 1
        for (uint32_t row = task->row0; row < r.end; row += 8 * S::eights)
            tile_run<S, WB, WO, DOWN>(&c, task, block, row, &r);
    if (c.thread == 0) SHARED->packed_phase = r.phase;
}

/* Runs a task of QKV_LINEAR, LINEAR, GATED_MLP or LM_HEAD that has rows. */
DEV void packed_whole(void) {
    const struct cuda_args *args = &SHARED->args;
    const struct warp_state w = SHARED->warp[threadIdx.x / 32];
    const struct cuda_task *task = &SHARED->task[SHARED->go[w.message % GO_DEPTH]];
    const uint32_t n_rows = linear_rows(task);
    page_copy_fence(); /* what other blocks stored will be read by bulk copies */
    switch (task->group | max(task->tile, (uint8_t)PACK_NARROW) << 8) {
    case 8 | 128 << 8: packed_linear<4, 4, 2, 4>(args, task, n_rows); break;
    case 4 | 128 << 8: packed_linear<2, 4, 2, 4>(args, task, n_rows); break;
    case 12 | 64 << 8: packed_linear<3, 4, 4, 4>(args, task, n_rows); break;
    case 8 | 64 << 8: packed_linear<2, 4, 4, 8>(args, task, n_rows); break;
    case 4 | 64 << 8: packed_linear<1, 4, 4, 8>(args, task, n_rows); break;
    default: packed_linear<1, 2, 2, 16>(args, task, n_rows); break;
    }
}

/* ---- a task: the functions that matmul_tile_hopper.cuh has, too ---- */

/* Takes the lease. Nothing can be requested before the event. */
DEV void packed_take(struct warp_context *c, const struct cuda_task *) {
    lease_take(c);
}

/* Waits for the event. Not 0: there is something to multiply. stop: the launch ends. */
DEV uint32_t packed_first(struct warp_context *c, const struct cuda_task *task, bool *stop) {
    *stop = !wait_ready(c);
    if (*stop) return 0;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    return task->row0 < linear_rows(task);
}

DEV void packed_multiply(uint32_t) {
    packed_whole();
}

DEV void packed_leave(const struct warp_context *) {}

DEV bool packed_stopped(const struct warp_context *) {
    return false;
}

/* packed_multiply has stored all results. */
DEV uint32_t packed_results(const struct warp_context *c, const struct cuda_task *task) {
    (void)c, (void)task;
    return 0;
}

#endif

#endif
