/* packed.cuh - many rows: PACK, and matrix products of what it leaves (QKV_LINEAR, LINEAR,
 * GATED_MLP, LM_HEAD). Up to 16 rows: packed_few.cuh.
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
 *   + parked   stages of some steps of 16 columns: weights [row block][step][512 bytes],
 * then activations [group of eight][step][256 bytes]
 *
 * The warps take turns in asking for stages (packed_full tells when one is there); each says when
 * it has used one (packed_empty).
 *
 * Sums are those of linear.cuh: a warp has a tile of WB row blocks x WO columns of eight tokens and
 * goes through the partial sums one after the other, two chains each; what is added up so far is
 * parked meanwhile.
 */
#ifndef QN_CUDA_COMMON_PACKED_CUH
#define QN_CUDA_COMMON_PACKED_CUH

#include "kernels/cuda/common/lm_head.cuh"

static_assert(PACK_K == CUDA_PAGE_K, "packed columns are whole k-tiles");

#define LEASE_BYTES (RING_BYTES + SCRATCH_BYTES)
/* ---- PACK ---- */

/* The group of PACK_ROWS token rows that a row belongs to: all steps, then the rows' factors. */
DEV char *packed_rows(const struct cuda_task *task, uint64_t base, uint32_t row) {
    const uint64_t bytes = 2 * (task->k_tiles * PACK_K + PACK_EXTRA);
    return (char *)base + row / PACK_ROWS * PACK_ROWS * bytes;
}

/* 1 / rms of a row. */
DEV float *packed_factor(const struct cuda_task *task, uint64_t base, uint32_t row) {
    char *rows = packed_rows(task, base, row);
    return (float *)(rows + 2 * PACK_ROWS * PACK_K * task->k_tiles) + row % PACK_ROWS;
}

/* The activations of a row of PACK; of a logit row of PACK_LOGITS. */
DEV const float *pack_row(const struct cuda_task *task, uint32_t row) {
    if (task->kind == OP_PACK_LOGITS) row = row_of_logits(SHARED, row);
    return (const float *)task->in + (uint64_t)row * task->k;
}

/* ROWS rows of a group from `row` on, columns of the task's units. Four lanes have 32 columns of a
 * row, lane j of them 8 j and on. */
template <int ROWS>
DEV void pack_rows(const struct warp_context *c, const struct cuda_task *task, uint32_t row) {
    const uint32_t pairs = PACK_K / 32, j = c->lane % 4;
    const uint32_t mine = row + c->thread / 4 % ROWS, at_once = COMPUTE_THREADS / 4 / ROWS;
    const float *x = pack_row(task, mine);
    const float *norm = (const float *)task->norm;
    uint32_t *to = (uint32_t *)packed_rows(task, task->out, row) + mine % PACK_ROWS * 4 + j;
    uint32_t p = task->unit0 * pairs + c->thread / 4 / ROWS;
#pragma unroll 4
    for (; p < task->unit1 * pairs; p += at_once) {
        const uint4 v = load_direct(act{x, 0}, norm, 32 * p + 8 * j, task->k);
        to[128 * p] = v.x;
        to[128 * p + 32] = v.y;
        to[128 * p + 64] = v.z;
        to[128 * p + 96] = v.w;
    }
}

/* 1 / rms of the same rows, by all warps together: rms_of_row's additions. */
template <int ROWS>
DEV void pack_factors(const struct warp_context *c, const struct cuda_task *task, uint32_t row) {
    const float *x[ROWS];
    float sum[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[r] = pack_row(task, row + r);
#pragma unroll 16 / ROWS
    for (uint32_t i = c->thread; i < task->k / 4; i += COMPUTE_THREADS) {
        float4 v[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) v[r] = load4_l2(x[r] + 4 * i);
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r] = square_sum(sum[r], v[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] = warp_sum(sum[r]);
        if (c->lane == 0) SHARED->warp_sum[r * WARPS + c->warp] = sum[r];
    }
    sync_compute();
    if (c->thread < ROWS)
        *packed_factor(task, task->out, row + c->thread) =
            inverse_rms(SHARED->warp_sum + c->thread * WARPS);
    sync_compute(); /* the next rows' sums may come */
}

template <int ROWS>
DEV void pack_group(const struct warp_context *c, const struct cuda_task *task, uint32_t row) {
    if (task->norm != 0 && task->unit1 == task->units) pack_factors<ROWS>(c, task, row);
    pack_rows<ROWS>(c, task, row);
}

/* Whole groups of rows, and single rows where a task has no whole group. */
__device__ __noinline__ void run_pack(const struct cuda_args *args, const struct cuda_task *task) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    const uint32_t end = min(task->row1, linear_rows(task));
    for (uint32_t row = task->row0; row < end;) {
        if (row % PACK_ROWS == 0 && row + PACK_ROWS <= end) {
            pack_group<PACK_ROWS>(&c, task, row);
            row += PACK_ROWS;
        } else {
            pack_group<1>(&c, task, row);
            row++;
        }
    }
    page_copy_fence(); /* bulk copies will read it */
}

/* ---- the lease ---- */

DEV void lease_take(struct warp_context *c) {
    uint32_t count = c->page;
    for (uint32_t i = 0; i < RING_DEPTH; i++, count = page_next(count))
        barrier_wait_acquire_cta(&SHARED->page_full[page_slot(c->warp, count)], page_parity(count));
    sync_compute();
}

DEV void lease_give(struct warp_context *c) {
    page_copy_fence(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < RING_DEPTH; i++) page_release(c);
}

/* ---- stages ---- */

/* A warp's tile of WB row blocks x WO columns of tokens; DOWN warps share a block's tile in the
 * direction of weight rows, the others in that of tokens. Every stage costs a warp some hundred
 * cycles of waiting and telling, so small tiles have long stages. */
template <int WB, int WO, int DOWN, int STEPS> struct packed_shape {
    /* Steps of 16 columns in a stage; few where shared memory is scarce. */
    static constexpr uint32_t steps = SHARED_BYTES >= 160 * 1024 ? STEPS : 2;
    static constexpr uint32_t per_k_tile = CUDA_PAGE_K / 16 / steps;
    static constexpr uint32_t blocks = WB * DOWN, eights = WO * (WARPS / DOWN);
    static constexpr uint32_t act_at = blocks * steps * 512;
    static constexpr uint32_t stage_bytes = act_at + eights * steps * 256;
    static constexpr uint32_t parked_bytes = WB * WO * 4 * 4 * COMPUTE_THREADS;
    static constexpr uint32_t room = (LEASE_BYTES - parked_bytes) / stage_bytes;
    static constexpr uint32_t stages = room < MAX_STAGES ? room : MAX_STAGES;
    /* A stage's memory is asked for again that many stages after its use: the slowest warp should
     * be done with it by then. */
    static constexpr uint32_t lag = stages >= 4 ? 2 : 1;
    static_assert(room >= 1, "a stage beside the parked sums");
    static_assert(blocks + eights <= 32, "a lane for every copy");
};

/* Asks for the task's stage number n, if there is one: tiles by weight rows, then by tokens. A
 * whole warp, a copy per lane: first row blocks, then groups of eight tokens. What the task does
 * not have is left as it is. */
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
    const uint32_t step = k_tile_of(task->k_tiles, n / S::per_k_tile) * (CUDA_PAGE_K / 16) +
                          n % S::per_k_tile * S::steps;
    char *stage = shared_memory + S::parked_bytes + slot * S::stage_bytes;
    uint64_t *full = &SHARED->packed_full[slot];
    if (again) barrier_wait_acquire_cta(&SHARED->packed_empty[slot], (phase >> slot & 1) ^ 1);
    share_begin(full, n_blocks * (S::steps * 512) + n_eights * (S::steps * 256), c->lane);
    for (uint32_t i = share_first(c->lane); i < n_blocks; i += share_step())
        share_copy(stage + i * (S::steps * 512),
                   (const char *)task->w + (uint64_t)step * 512 +
                       (uint64_t)(block + i) * task->k_tiles * CUDA_PAGE_BYTES,
                   S::steps * 512, full, c->lane);
    for (uint32_t i = share_first(c->lane); i < n_eights; i += share_step())
        share_copy(stage + S::act_at + i * (S::steps * 256),
                   packed_rows(task, task->in, row + 8 * i) + step * 256, S::steps * 256, full,
                   c->lane);
    share_end(full, c->lane);
}

/* ---- a tile ---- */

/* All steps of a stage. */
template <class S, int WB, int WO, int DOWN>
DEV void stage_mma(const struct warp_context *c, const char *stage, float even[WB][WO][4],
                   float odd[WB][WO][4]) {
    constexpr int UNROLL = S::steps < 4 ? S::steps : 4; /* even: the first step is an even one */
    const uint4 *w = (const uint4 *)(stage + c->warp % DOWN * WB * (S::steps * 512)) + c->lane;
    const char *x = stage + S::act_at + c->warp / DOWN * WO * (S::steps * 256);
#pragma unroll 1
    for (int first = 0; first < S::steps; first += UNROLL, w += 32 * UNROLL, x += 256 * UNROLL)
#pragma unroll
        for (int s = 0; s < UNROLL; s++) {
            uint4 b[(WO + 1) / 2]; /* of two columns of tokens each */
#pragma unroll
            for (int i = 0; i < WO; i += 2)
                b[i / 2] = load_matrices(x + i * (S::steps * 256) + s * 256,
                                         WO > 1 ? S::steps * 256 : 0, c->lane);
#pragma unroll
            for (int n = 0; n < WB; n++) {
                const uint4 a = w[n * (S::steps * 32) + 32 * s];
#pragma unroll
                for (int i = 0; i < WO; i++)
                    mma_16x8x16<WEIGHT_E>(s % 2 == 0 ? even[n][i] : odd[n][i], a,
                                          i % 2 == 0 ? b[i / 2].x : b[i / 2].z,
                                          i % 2 == 0 ? b[i / 2].y : b[i / 2].w);
            }
        }
}

/* The place of a thread's four sums of row block n, column of tokens i; 256 apart. */
template <int WO> DEV float4 *tile_parked(const struct warp_context *c, int n, int i) {
    return (float4 *)shared_memory + (n * WO + i) * COMPUTE_THREADS + c->thread;
}

/* A partial sum is complete: adds it to those before, which are parked. */
template <int WB, int WO>
DEV void tile_fold(const struct warp_context *c, bool first, const float even[WB][WO][4],
                   const float odd[WB][WO][4]) {
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++) {
            float4 *at = tile_parked<WO>(c, n, i);
            const float *e = even[n][i], *o = odd[n][i];
            float4 sum = make_float4(e[0] + o[0], e[1] + o[1], e[2] + o[2], e[3] + o[3]);
            if (!first) {
                const float4 before = *at;
                sum = make_float4(before.x + sum.x, before.y + sum.y, before.z + sum.z,
                                  before.w + sum.w);
            }
            *at = sum;
        }
}

/* ops_linear.cuh. */
DEV void linear_finish(const struct cuda_task *task, const struct linear_item *m, float v0,
                       float v1, const struct linear_addend *add);
DEV void mlp_finish(const struct cuda_task *task, const struct linear_item *m, float gate,
                    float up);

/* A result from its dot products. */
DEV void packed_finish(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row,
                       float v0, float v1, float factor, const struct linear_addend *add) {
    const struct linear_item m = op_item(task, block, r, row);
    if (task->norm != 0) {
        v0 *= factor;
        v1 *= factor;
    }
    if (task->kind == OP_GATED_MLP)
        mlp_finish(task, &m, v0, v1);
    else
        linear_finish(task, &m, v0, v1, add);
}

/* Up to four columns of tokens of a row block: all that they need is fetched first. `sums`: the
 * thread's parked sums of the first. */
DEV void columns_finish(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                        uint32_t row, uint32_t end, const float4 *sums, uint32_t n) {
    const int AT_ONCE = 4;
    const uint32_t r = c->lane / 4;
    struct linear_addend add[AT_ONCE][2] = {};
    float factor[AT_ONCE][2] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n) break;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            /* Rows that do not exist: anything will do. */
            const uint32_t at = min(row + 8 * i + e, end - 1);
            const struct linear_item m = op_item(task, block, r, at);
            add[i][e] = addend_ask(&m);
            factor[i][e] = task->norm != 0 ? load_l2(packed_factor(task, task->in, at)) : 1;
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n) break;
        const float4 sum = sums[i * COMPUTE_THREADS];
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (row + 8 * i + e < end)
                packed_finish(task, block, r, row + 8 * i + e, e == 0 ? sum.x : sum.y,
                              e == 0 ? sum.z : sum.w, factor[i][e], &add[i][e]);
    }
}

/* Results of a warp's tile of wb row blocks x wo columns of tokens. One function for all tiles:
 * inlined into each it took a fifth of the time that compiling the kernel takes. */
__device__ __noinline__ void tile_finish(const struct cuda_task *task, uint32_t block, uint32_t row,
                                         uint32_t end, uint32_t wb, uint32_t wo) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const float4 *sums = (const float4 *)shared_memory + c.thread;
    row += 2 * (c.lane % 4);
#pragma unroll 1
    for (uint32_t n = 0; n < wb && block + n < task->block1; n++) /* the last tile may be short */
#pragma unroll 1
        for (uint32_t i = 0; i < wo; i += 4)
            columns_finish(&c, task, block + n, row + 8 * i, end,
                           sums + (n * wo + i) * COMPUTE_THREADS, min(wo - i, 4u));
}

/* One warp's view of the stages while a task runs. */
struct packed_ring {
    uint32_t end;         /* token rows [row0, end) */
    uint32_t n;           /* of the next stage to work on */
    uint32_t slot, phase; /* where it is; phases of all slots, a bit each */
};

/* One tile: all k-tiles of partial 0, of partial 1, ... */
template <class S, int WB, int WO, int DOWN>
DEV void tile_run(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                  uint32_t row, struct packed_ring *r) {
    const uint32_t n_partials = min(task->k_tiles, (uint32_t)PARTIALS);
#pragma unroll 1
    for (uint32_t partial = 0; partial < n_partials; partial++) {
        float even[WB][WO][4], odd[WB][WO][4];
#pragma unroll
        for (int n = 0; n < WB; n++)
#pragma unroll
            for (int i = 0; i < WO; i++)
#pragma unroll
                for (int v = 0; v < 4; v++) even[n][i][v] = odd[n][i][v] = 0;
        uint32_t n_stages = ceil_div(task->k_tiles - partial, PARTIALS) * S::per_k_tile;
#pragma unroll 1
        for (; n_stages > 0; n_stages--) {
            /* By turns: to ask takes a warp as long as some of the work on a stage. */
            const uint32_t next = r->n + S::stages - S::lag;
            if (next % WARPS == c->warp && r->n >= S::lag)
                stage_ask<S>(c, task, r->end, next, r->phase, true);
            barrier_wait_acquire_cta(&SHARED->packed_full[r->slot], r->phase >> r->slot & 1);
            stage_mma<S, WB, WO, DOWN>(
                c, shared_memory + S::parked_bytes + r->slot * S::stage_bytes, even, odd);
            __syncwarp();
            if (c->lane == 0) barrier_arrive_release_cta(&SHARED->packed_empty[r->slot]);
            r->phase ^= 1u << r->slot;
            r->slot = r->slot + 1 == S::stages ? 0 : r->slot + 1;
            r->n++;
        }
        tile_fold<WB, WO>(c, partial == 0, even, odd);
    }
    tile_finish(task, block + c->warp % DOWN * WB, row + c->warp / DOWN * WO * 8, r->end, WB, WO);
}

/* A whole task. */
template <int WB, int WO, int DOWN, int STEPS>
__device__ __noinline__ void packed_linear(const struct cuda_args *args,
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
    sync_compute(); /* all have read the phases, and stored logits */
    if (c.thread == 0) SHARED->packed_phase = r.phase;
    if (task->kind == OP_LM_HEAD) lm_parts(args, task, task->unit0, task->unit1, task->row0, r.end);
}

/* QKV_LINEAR, LINEAR, GATED_MLP, LM_HEAD. */
DEV void packed_task(const struct cuda_args *args, const struct cuda_task *task) {
    const uint32_t n_rows = linear_rows(task);
    if (task->row0 >= n_rows) return;
    page_copy_fence(); /* what other blocks stored will be read by bulk copies */
    switch (task->group | task->tile << 8) {
    case 8 | 128 << 8: packed_linear<4, 4, 2, 4>(args, task, n_rows); break;
    case 4 | 128 << 8: packed_linear<2, 4, 2, 4>(args, task, n_rows); break;
    case 12 | 64 << 8: packed_linear<6, 2, 2, 4>(args, task, n_rows); break;
    case 8 | 64 << 8: packed_linear<4, 2, 2, 8>(args, task, n_rows); break;
    case 4 | 64 << 8: packed_linear<2, 2, 2, 8>(args, task, n_rows); break;
    default: packed_linear<2, 1, 1, 16>(args, task, n_rows); break;
    }
}

#endif
