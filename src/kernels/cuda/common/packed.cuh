/* packed.cuh - many rows: PACK, and matrix products of what it leaves (QKV_LINEAR, LINEAR,
 * GATED_MLP).
 *
 * An operator of many rows is bound by what passes from L2 into the multiprocessors, so activations
 * become 16-bit floats once, in the order of the tensor cores' registers (cuda_abi.h), and a block
 * works on tiles of up to 128 weight rows x 128 tokens.
 *
 * Per tile and 16 columns of k: (rows + tokens) * 32 bytes, 2 * 16 * rows * tokens operations.
 *
 * Such a task uses all of the ring and the scratch at once. It takes them as a *lease*: the loader
 * sends RING_PAGES void pages, so when the compute warps have them all, no copy is under way and
 * none can begin; they give the pages back when the task is done. What stands in that memory:
 *
 *   0          parked sums of the tile, F32 [value of a thread][256 threads]
 *   + parked   stages [PACKED_STAGES] of STAGE_K columns: weights [row block][step][512 bytes],
 * then activations [group of eight][step][256 bytes]
 *
 * Every warp asks for its share of a stage (packed_full tells when all of it is there) and says
 * when it has used a stage (packed_empty). A warp asks for stage i - 1 + STAGES before it works on
 * stage i, so no warp waits for the slowest one in every stage.
 *
 * Sums are those of linear.cuh: a warp has a tile of WB row blocks x WO columns of eight tokens and
 * goes through the partial sums one after the other, two chains each; what is added up so far is
 * parked meanwhile.
 */
#ifndef QN_CUDA_COMMON_PACKED_CUH
#define QN_CUDA_COMMON_PACKED_CUH

#include "kernels/cuda/common/linear.cuh"

static_assert(PACK_K == CUDA_PAGE_K, "packed columns are whole k-tiles");

#define LEASE_BYTES (RING_BYTES + SCRATCH_BYTES)
/* Where shared memory is scarce, stages are smaller. */
#define STAGE_PAIRS (SHARED_BYTES >= 160 * 1024 ? 2 : 1)
#define STAGE_STEPS (2 * STAGE_PAIRS)
#define TILE_STAGES (CUDA_PAGE_K / (32 * STAGE_PAIRS)) /* per k-tile */

/* ---- PACK ---- */

/* A group of PACK_ROWS token rows: all steps, then the rows' factors. */
DEV char *packed_rows(const struct cuda_task *task, uint64_t base, uint32_t row) {
    const uint64_t bytes = 2 * (task->k_tiles * PACK_K + PACK_EXTRA);
    return (char *)base + row * bytes; /* row: a multiple of PACK_ROWS */
}

/* 1 / rms of a row. */
DEV float *packed_factor(const struct cuda_task *task, uint64_t base, uint32_t row) {
    char *rows = packed_rows(task, base, row / PACK_ROWS * PACK_ROWS);
    return (float *)(rows + 2 * PACK_ROWS * PACK_K * task->k_tiles) + row % PACK_ROWS;
}

/* Rows [row, end), at most eight, columns of the task's units. Lane 4 g + j has row g and 8 columns
 * at 8 j of each 32. */
DEV void pack_rows(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                   uint32_t end) {
    const uint32_t mine = row + c->lane / 4, pairs = PACK_K / 32;
    const float *x = (const float *)task->in + (uint64_t)min(mine, end - 1) * task->k;
    const float *norm = (const float *)task->norm;
    uint32_t *to = (uint32_t *)packed_rows(task, task->out, row) + c->lane;
#pragma unroll 4
    for (uint32_t p = task->unit0 * pairs + c->warp; p < task->unit1 * pairs; p += WARPS) {
        const uint4 v = load_direct(act{x, 0}, norm, 32 * p + 8 * (c->lane % 4), task->k);
        to[128 * p] = v.x;
        to[128 * p + 32] = v.y;
        to[128 * p + 64] = v.z;
        to[128 * p + 96] = v.w;
    }
    if (norm == nullptr || task->unit1 != task->units || row + c->warp >= end) return;
    row += c->warp;
    float factor =
        rms_of_row(c, act{(const float *)task->in + (uint64_t)row * task->k, 0}, task->k);
    if (c->lane == 0) *packed_factor(task, task->out, row) = factor;
}

__device__ __noinline__ void run_pack(const struct cuda_args *args, const struct cuda_task *task) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    for (uint32_t row = task->row0; row < end; row += PACK_ROWS)
        pack_rows(&c, task, row, min(row + PACK_ROWS, end));
    fence_proxy_async(); /* bulk copies will read it */
}

/* ---- the lease ---- */

DEV void lease_take(struct warp_context *c) {
    uint32_t count = c->page;
    for (uint32_t i = 0; i < RING_DEPTH; i++, count = page_next(count))
        barrier_wait_acquire_cta(&SHARED->page_full[page_slot(c->warp, count)], page_parity(count));
    sync_compute();
}

DEV void lease_give(struct warp_context *c) {
    fence_proxy_async(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < RING_DEPTH; i++) page_release(c);
}

/* ---- stages ---- */

/* A warp's tile of WB row blocks x WO columns of tokens; DOWN warps share a block's tile in the
 * direction of weight rows, the others in that of tokens. */
template <int WB, int WO, int DOWN> struct packed_shape {
    static constexpr uint32_t blocks = WB * DOWN, eights = WO * (WARPS / DOWN);
    static constexpr uint32_t act_at = blocks * STAGE_STEPS * 512;
    static constexpr uint32_t stage_bytes = act_at + eights * STAGE_STEPS * 256;
    static constexpr uint32_t parked_bytes = WB * WO * 4 * 4 * COMPUTE_THREADS;
    static constexpr uint32_t room = (LEASE_BYTES - parked_bytes) / stage_bytes;
    static constexpr uint32_t stages = room < MAX_STAGES ? room : MAX_STAGES;
    static_assert(room >= 1, "a stage beside the parked sums");
};

/* A place in the sequence of a task's stages: tiles by weight rows, then by tokens; in a tile
 * k-tiles by partial sum. */
struct packed_cursor {
    uint32_t block, row; /* where the tile begins */
    uint32_t k_tile, part;
};

template <class S>
DEV void cursor_step(const struct cuda_task *task, uint32_t end, struct packed_cursor *at) {
    if (++at->part < TILE_STAGES) return;
    at->part = 0;
    at->k_tile += PARTIALS;
    if (at->k_tile < task->k_tiles) return;
    at->k_tile = at->k_tile % PARTIALS + 1;
    if (at->k_tile < min(task->k_tiles, (uint32_t)PARTIALS)) return;
    at->k_tile = 0;
    at->row += 8 * S::eights;
    if (at->row < end) return;
    at->row = task->row0;
    at->block += S::blocks;
}

/* Asks for this warp's share of a stage: row blocks and groups of tokens whose number modulo WARPS
 * is the warp's. What the task does not have is left as it is. */
template <class S>
DEV void stage_ask(const struct cuda_task *task, uint32_t end, uint32_t warp, uint32_t lane,
                   const struct packed_cursor *at, char *stage, uint64_t *full) {
    const uint32_t n_blocks = min(task->block1 - at->block, S::blocks);
    const uint32_t n_eights = min(ceil_div(end - at->row, 8), S::eights);
    const uint32_t step = at->k_tile * (CUDA_PAGE_K / 16) + at->part * STAGE_STEPS;
    uint32_t bytes = 0;
    if (warp < n_blocks) bytes += (n_blocks - warp + WARPS - 1) / WARPS * (STAGE_STEPS * 512);
    if (warp < n_eights) bytes += (n_eights - warp + WARPS - 1) / WARPS * (STAGE_STEPS * 256);
    share_begin(full, bytes, lane);
    const char *weights = (const char *)task->w + (uint64_t)step * 512;
    for (uint32_t b = warp; b < n_blocks; b += WARPS)
        share_copy(stage + b * (STAGE_STEPS * 512),
                   weights + (uint64_t)(at->block + b) * task->k_tiles * CUDA_PAGE_BYTES,
                   STAGE_STEPS * 512, full, lane);
    for (uint32_t i = warp; i < n_eights; i += WARPS)
        share_copy(stage + S::act_at + i * (STAGE_STEPS * 256),
                   packed_rows(task, task->in, at->row + 8 * i) + step * 256, STAGE_STEPS * 256,
                   full, lane);
    share_end(full, lane);
}

/* One warp's view of the stages while a task runs. */
struct packed_ring {
    uint32_t end;              /* token rows [row0, end) */
    uint32_t slot, phase;      /* of the next stage to work on; phases of all slots, a bit each */
    uint32_t ask_slot;         /* of the next stage to ask for */
    uint32_t left;             /* stages to ask for */
    struct packed_cursor next; /* what that is */
};

template <class S>
DEV void ring_ask(const struct warp_context *c, const struct cuda_task *task,
                  struct packed_ring *r) {
    if (r->left == 0) return;
    r->left--;
    if (c->lane < LOADER_LANES) {
        stage_ask<S>(task, r->end, c->warp, c->lane, &r->next,
                     shared_memory + S::parked_bytes + r->ask_slot * S::stage_bytes,
                     &SHARED->packed_full[r->ask_slot]);
        cursor_step<S>(task, r->end, &r->next);
    }
    r->ask_slot = r->ask_slot + 1 == S::stages ? 0 : r->ask_slot + 1;
}

/* ---- a tile ---- */

/* All steps of a stage. */
template <class S, int WB, int WO, int DOWN>
DEV void stage_mma(const struct warp_context *c, const char *stage, float even[WB][WO][4],
                   float odd[WB][WO][4]) {
    const uint4 *w = (const uint4 *)(stage + c->warp % DOWN * WB * (STAGE_STEPS * 512)) + c->lane;
    const char *x = stage + S::act_at + c->warp / DOWN * WO * (STAGE_STEPS * 256);
#pragma unroll
    for (int p = 0; p < STAGE_PAIRS; p++) {
        uint4 b[WO];
#pragma unroll
        for (int i = 0; i < WO; i++)
            b[i] = load_matrices(x + i * (STAGE_STEPS * 256) + p * 512, c->lane);
#pragma unroll
        for (int n = 0; n < WB; n++) {
            uint4 a = w[n * (STAGE_STEPS * 32) + 64 * p];
#pragma unroll
            for (int i = 0; i < WO; i++) mma_16x8x16<WEIGHT_E>(even[n][i], a, b[i].x, b[i].y);
            a = w[n * (STAGE_STEPS * 32) + 64 * p + 32];
#pragma unroll
            for (int i = 0; i < WO; i++) mma_16x8x16<WEIGHT_E>(odd[n][i], a, b[i].z, b[i].w);
        }
    }
}

/* A partial sum is complete: adds it to those before, which are parked. Leaves the total in
 * `even`, too. */
template <int WB, int WO>
DEV void tile_fold(const struct warp_context *c, bool first, bool last, float even[WB][WO][4],
                   const float odd[WB][WO][4]) {
    float4 *parked = (float4 *)shared_memory + c->thread;
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++) {
            float4 *at = parked + (n * WO + i) * COMPUTE_THREADS;
            float *e = even[n][i];
            const float *o = odd[n][i];
            float4 sum = make_float4(e[0] + o[0], e[1] + o[1], e[2] + o[2], e[3] + o[3]);
            if (!first) {
                const float4 before = *at;
                sum = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z,
                                  before.w + sum.w);
            }
            if (!last) *at = sum;
            e[0] = sum.x;
            e[1] = sum.y;
            e[2] = sum.z;
            e[3] = sum.w;
        }
}

/* ops_linear.cuh: what the dot products of rows r and r + 8 of a row block with a token become. */
DEV float2 packed_prefetch(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row);
DEV void packed_finish(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row,
                       float v0, float v1, float factor, float2 fetched);

/* Results of a warp's tile, a row block at a time: all that they need is fetched first. */
template <int WB, int WO>
DEV void tile_finish(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                     uint32_t row, uint32_t end, const float sum[WB][WO][4]) {
    const uint32_t r = c->lane / 4;
    float factor[WO][2];
    row += 2 * (c->lane % 4);
#pragma unroll
    for (int i = 0; i < WO; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            factor[i][e] = task->norm != 0 && row + 8 * i + e < end
                               ? load_l2(packed_factor(task, task->in, row + 8 * i + e))
                               : 1;
#pragma unroll
    for (int n = 0; n < WB; n++) {
        float2 fetched[WO][2];
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                fetched[i][e] = row + 8 * i + e < end
                                    ? packed_prefetch(task, block + n, r, row + 8 * i + e)
                                    : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (row + 8 * i + e < end)
                    packed_finish(task, block + n, r, row + 8 * i + e, sum[n][i][e],
                                  sum[n][i][e + 2], factor[i][e], fetched[i][e]);
    }
}

/* One tile: all k-tiles of partial 0, of partial 1, ... */
template <class S, int WB, int WO, int DOWN>
DEV void tile_run(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                  uint32_t row, bool first_tile, struct packed_ring *r) {
    const uint32_t n_partials = min(task->k_tiles, (uint32_t)PARTIALS);
    float even[WB][WO][4];
    bool ask = !first_tile;
#pragma unroll 1
    for (uint32_t partial = 0; partial < n_partials; partial++) {
        float odd[WB][WO][4];
#pragma unroll
        for (int n = 0; n < WB; n++)
#pragma unroll
            for (int i = 0; i < WO; i++)
#pragma unroll
                for (int v = 0; v < 4; v++) even[n][i][v] = odd[n][i][v] = 0;
        uint32_t n_stages = ceil_div(task->k_tiles - partial, PARTIALS) * TILE_STAGES;
#pragma unroll 1
        for (; n_stages > 0; n_stages--) {
            if (ask && r->left > 0) {
                if (c->lane < LOADER_LANES)
                    barrier_wait_acquire_cta(&SHARED->packed_empty[r->ask_slot],
                                             (r->phase >> r->ask_slot & 1) ^ 1);
                ring_ask<S>(c, task, r);
            }
            ask = true;
            barrier_wait_acquire_cta(&SHARED->packed_full[r->slot], r->phase >> r->slot & 1);
            stage_mma<S, WB, WO, DOWN>(
                c, shared_memory + S::parked_bytes + r->slot * S::stage_bytes, even, odd);
            __syncwarp();
            if (c->lane == 0) barrier_arrive_release_cta(&SHARED->packed_empty[r->slot]);
            r->phase ^= 1u << r->slot;
            r->slot = r->slot + 1 == S::stages ? 0 : r->slot + 1;
        }
        tile_fold<WB, WO>(c, partial == 0, partial + 1 == n_partials, even, odd);
    }
    tile_finish<WB, WO>(c, task, block + c->warp % DOWN * WB, row + c->warp / DOWN * WO * 8, r->end,
                        even);
}

/* A whole task. */
template <int WB, int WO, int DOWN>
__device__ __noinline__ void packed_linear(const struct cuda_args *args,
                                           const struct cuda_task *task, uint32_t n_rows) {
    typedef packed_shape<WB, WO, DOWN> S;
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    struct packed_ring r = {};
    r.end = min(task->row1, n_rows);
    r.phase = SHARED->packed_phase;
    r.next = packed_cursor{task->block0, task->row0, 0, 0};
    r.left = ceil_div(r.end - task->row0, 8 * S::eights) *
             ceil_div(task->block1 - task->block0, S::blocks) * task->k_tiles * TILE_STAGES;
#pragma unroll 1
    for (uint32_t i = 0; i < S::stages; i++) ring_ask<S>(&c, task, &r);
    bool first = true;
#pragma unroll 1
    for (uint32_t block = task->block0; block < task->block1; block += S::blocks)
#pragma unroll 1
        for (uint32_t row = task->row0; row < r.end; row += 8 * S::eights) {
            tile_run<S, WB, WO, DOWN>(&c, task, block, row, first, &r);
            first = false;
        }
    sync_compute(); /* all have read the phases */
    if (c.thread == 0) SHARED->packed_phase = r.phase;
}

/* Takes the lease before the task's event. False: the launch ends. */
DEV bool run_packed(struct warp_context *c, const struct cuda_task *task, uint32_t n_rows) {
    lease_take(c);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    if (task->row0 < n_rows) {
        fence_proxy_async(); /* what other blocks stored will be read by bulk copies */
        switch (task->group | task->tile << 8) {
        case 8 | 128 << 8: packed_linear<4, 4, 2>(c->args, task, n_rows); break;
        case 4 | 128 << 8: packed_linear<2, 4, 2>(c->args, task, n_rows); break;
        case 8 | 64 << 8: packed_linear<4, 2, 2>(c->args, task, n_rows); break;
        case 4 | 64 << 8: packed_linear<2, 2, 2>(c->args, task, n_rows); break;
        default: packed_linear<2, 1, 1>(c->args, task, n_rows); break;
        }
    }
    lease_give(c);
    return true;
}

#endif
