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
 *   + parked   weights and activations of some steps of 16 columns, as they pass
 *
 * Sums are those of linear.cuh: a warp has a tile of WB row blocks x WO columns of eight tokens and
 * goes through the partial sums one after the other, two chains each; what is added up so far is
 * parked meanwhile.
 *
 * Here: PACK, the lease, sums and results. How tiles are multiplied: packed_mma.cuh, on Hopper
 * those of 128 tokens packed_wgmma.cuh.
 */
#ifndef QN_CUDA_COMMON_PACKED_CUH
#define QN_CUDA_COMMON_PACKED_CUH

#include "kernels/cuda/common/ops_linear.cuh"
#include "kernels/cuda/common/packed_ring.cuh"

static_assert(PACK_K == CUDA_PAGE_K, "packed columns are whole k-tiles");

/* ---- PACK ---- */

/* 1 / rms of a row. */
DEV float *packed_factor(const struct cuda_task *task, uint64_t base, uint32_t row) {
    return (float *)packed_piece(task, base, 0, task->k_tiles * PACK_K) + row;
}

/* The activations of a row of PACK; of a logit row of PACK_LOGITS. */
DEV const float *pack_row(const struct cuda_task *task, uint32_t row) {
    if (task->kind == OP_PACK_LOGITS) row = row_of_logits(SHARED, row);
    return (const float *)task->in + (uint64_t)row * task->k;
}

/* 8 activations at k, times the norm's weights, as two steps' B registers; zeros beyond k_end. */
DEV uint4 pack_eight(const float *row, const float *norm, uint32_t k, uint32_t k_end) {
    if (k >= k_end) return make_uint4(0, 0, 0, 0);
    float4 scale_lo = make_float4(1, 1, 1, 1), scale_hi = scale_lo;
    if (norm != nullptr) {
        scale_lo = __ldg((const float4 *)(norm + k));
        scale_hi = __ldg((const float4 *)(norm + k + 4));
    }
    const uint2 even = pack_scaled(load4_l2(row + k), scale_lo);
    const uint2 odd = pack_scaled(load4_l2(row + k + 4), scale_hi);
    return make_uint4(even.x, even.y, odd.x, odd.y);
}

/* ROWS rows of a group from `row` on, columns of the task's units. Four lanes have 32 columns of a
 * row, lane j of them 8 j and on. */
template <int ROWS>
DEV void pack_rows(const struct warp_context *c, const struct cuda_task *task, uint32_t row) {
    const uint32_t pairs = PACK_K / 32, j = c->lane % 4;
    const uint32_t mine = row + c->thread / 4 % ROWS, at_once = COMPUTE_THREADS / 4 / ROWS;
    const float *x = pack_row(task, mine);
    const float *norm = (const float *)task->norm;
    uint32_t p = task->unit0 * pairs + c->thread / 4 / ROWS;
#pragma unroll 4
    for (; p < task->unit1 * pairs; p += at_once) {
        const uint4 v = pack_eight(x, norm, 32 * p + 8 * j, task->k);
        uint32_t *to = (uint32_t *)packed_piece(task, task->out, mine, 32 * p) + p % 2 * 128 +
                       mine % PACK_ROWS * 4 + j;
        to[0] = v.x;
        to[32] = v.y;
        to[64] = v.z;
        to[96] = v.w;
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
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
}

DEV void lease_give(struct warp_context *c) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < RING_DEPTH; i++) page_release(c);
}

/* ---- sums and results ---- */

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

#include "kernels/cuda/common/packed_mma.cuh"
#include "kernels/cuda/common/packed_wgmma.cuh"

#endif
