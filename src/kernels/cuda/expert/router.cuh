/* router.cuh - ROUTER: logits of experts. A token row is multiplied as two 16-bit rows, its
 * rounding and what that leaves, in two columns of a product that follow each other: a lane has
 * both dot products of a row. Pages come row block by row block. Partial sums are added up in
 * order.
 *
 *   row    one token row, in scratch: as it comes it is split, and its squares are added up
 *   rows   up to CUDA_ROUTER_ROWS token rows at a time, four to a product: a warp goes through all
 *          of them while it has a page, and reads them from L2, 1 KB a row and page
 *
 * Scratch, row:    0   the row's rounding, then what that leaves, 16 bits, whole k-tiles
 *                  +   partial sums x STREAM_TOKEN_FLOATS F32
 *                  +   squares [half of a k-tile] F32
 * Scratch, rows:   0   partial sums [token row] x STREAM_TOKEN_FLOATS F32
 *                  +   1 / rms [token row] F32
 */
#ifndef QN_CUDA_EXPERT_ROUTER_CUH
#define QN_CUDA_EXPERT_ROUTER_CUH

#include "kernels/cuda/expert/row_squares.cuh"
#include "kernels/cuda/matmul/matmul_stream.cuh"
#include "kernels/cuda/matmul/matvec.cuh"

enum { ROUTER_GROUP = 4 }; /* token rows of a product */
static_assert(CUDA_ROUTER_ROWS * (CUDA_STREAM_TOKEN_BYTES + 4) <= SCRATCH_BYTES, "scratch");

DEV float *router_sums(uint32_t token) {
    return (float *)SCRATCH + token * STREAM_TOKEN_FLOATS;
}
DEV float *router_inverse_rms(uint32_t token) {
    return router_sums(CUDA_ROUTER_ROWS) + token;
}

/* ---- several token rows ---- */

/* Token rows [row0, row0 + n) at work. */
struct router_rows {
    struct operand x; /* of all rows */
    uint32_t row0, n;
};

/* Floats [column, column + 4) of a row of x, which is there; zeros beyond it. */
DEV float4 router_four(const struct router_rows *t, uint32_t token, uint32_t column) {
    const struct operand row = operand_from(t->x, (uint64_t)(t->row0 + token) * QN_HIDDEN);
    if (QN_HIDDEN % CUDA_PAGE_K != 0 && column >= QN_HIDDEN) return make_float4(0, 0, 0, 0);
    if (row.flag == 0) return load4_l2(row.at + column);
    const float4 lo = load4_l2(row.at + 2 * column), hi = load4_l2(row.at + 2 * column + 4);
    return make_float4(lo.x, lo.z, hi.x, hi.z);
}

/* Waits for the rows, if they carry flags: a single one. */
DEV void router_await(const struct warp_context *c, const struct router_rows *t) {
    if (t->x.flag == 0) return;
    for (uint32_t four = c->thread; four < QN_HIDDEN / 4; four += COMPUTE_THREADS) {
        float4 v[1];
        operand_load_share<1>(t->x, four, QN_HIDDEN / 4, v);
    }
    sync_compute();
}

/* 1 / rms of each row, by a warp. */
DEV void router_norms(const struct warp_context *c, const struct router_rows *t) {
    for (uint32_t token = c->warp; token < t->n; token += WARPS) {
        float sum = 0;
#pragma unroll 4
        for (uint32_t tile = 0; tile < ROW_TILES; tile++) {
            const uint32_t column = tile * CUDA_PAGE_K + 4 * c->lane;
            const float lo = half_squares(router_four(t, token, column));
            sum += lo + half_squares(router_four(t, token, column + CUDA_PAGE_K / 2));
        }
        if (c->lane == 0) *router_inverse_rms(token) = inverse_rms_of(sum);
    }
}

/* Two values as a 16-bit pair: their rounding, or what that leaves. */
DEV uint32_t router_pair(float a, float b, bool rest) {
    const uint32_t high = pack_pair<WEIGHT_E>(a, b);
    if (!rest) return high;
    return pack_pair<WEIGHT_E>(a - unpack_low<WEIGHT_E>(high), b - unpack_high<WEIGHT_E>(high));
}

/* The B registers of a k-tile: token row `token` + lane / 8, its rounding in even columns. */
DEV void router_gather(const struct warp_context *c, const struct router_rows *t, const float *norm,
                       uint32_t token, uint32_t k_tile, struct fragments<1> *x) {
    const uint32_t own = min(token + c->lane / 8, t->n - 1), j = c->lane % 4;
    const bool rest = c->lane / 4 % 2 != 0;
#pragma unroll
    for (uint32_t pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint32_t column = k_tile * CUDA_PAGE_K + pair * 32 + 8 * j;
        const bool in = QN_HIDDEN % CUDA_PAGE_K == 0 || column < QN_HIDDEN;
        uint32_t v[4];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const float4 a = router_four(t, own, column + 4 * i);
            const float4 w = __ldg((const float4 *)(norm + (in ? column : 0)) + i);
            v[2 * i] = router_pair(a.x * w.x, a.y * w.y, rest);
            v[2 * i + 1] = router_pair(a.z * w.z, a.w * w.w, rest);
        }
        x->of[0][pair] = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Multiplies a page, which is the warp's n-th of the row block, with all rows: a product has rows
 * after the last one again. turn: its partial sum's place. */
DEV void router_page(struct warp_context *c, const struct cuda_task *task,
                     const struct router_rows *t, uint32_t page_idx, uint32_t turn) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const uint32_t k_tile = cuda_page_tile(k_tiles, page_idx), g = c->lane / 4, j = c->lane % 4;
    const uint4 *page = page_acquire(c);
#pragma unroll 1
    for (uint32_t token = 0; token < t->n; token += ROUTER_GROUP) {
        float sum[4] = {};
        struct fragments<1> x;
        router_gather(c, t, (const float *)task->norm, token, k_tile, &x);
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
            mma_pair(sum, page, pair, c->lane, x.of[0][pair]);
        if (token + j < t->n) {
            float *to = router_sums(token + j) + turn * CUDA_PAGE_ROWS + g;
            const bool first = page_idx < PARTIALS;
            to[0] = (first ? 0 : to[0]) + (sum[0] + sum[1]);
            to[8] = (first ? 0 : to[8]) + (sum[2] + sum[3]);
        }
    }
    page_release(c);
}

/* Stores the logits of a row block. */
DEV void router_results(const struct warp_context *c, const struct cuda_task *task,
                        const struct router_rows *t, uint32_t block) {
    const uint32_t r = c->thread % CUDA_PAGE_ROWS, unit = block * CUDA_PAGE_ROWS + r;
    if (unit >= task->units) return;
    for (uint32_t token = c->thread / 16; token < t->n; token += 16)
        operand_store(task, (uint64_t)(t->row0 + token) * task->units + unit,
                      stream_sum<OP_ROUTER, QN_HIDDEN>(router_sums(token), r) *
                          *router_inverse_rms(token));
}

/* Runs a task of several token rows. False: the launch ends. */
DEV bool router_run_rows(struct warp_context *c, const struct cuda_task *task) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    struct router_rows t = {operand_of(task->in, task, CUDA_IN_FLAGGED), 0, 0};
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    const uint32_t end = min(SHARED->batch.rows.n_rows, task->row1);
    router_await(c, &t);
    for (t.row0 = task->row0; t.row0 < task->row1; t.row0 += task->tile) {
        t.n = t.row0 < end ? min(end - t.row0, (uint32_t)task->tile) : 0;
        router_norms(c, &t);
        for (uint32_t b = task->block0; b < task->block1; b++) {
            const uint32_t turn = (c->warp - c->turn) % WARPS;
            for (uint32_t i = turn; i < k_tiles; i += WARPS) router_page(c, task, &t, i, turn);
            c->turn = turn_after(c->turn, k_tiles);
            sync_compute();
            router_results(c, task, &t, b);
            sync_compute(); /* the sums are read */
        }
    }
    return true;
}

/* ---- one token row ---- */

#define ROUTER_ROW_FITS (QN_HIDDEN <= CUDA_ROUTER_ROW_HIDDEN)

enum { ROUTER_ROW_BYTES = ROW_TILES * CUDA_PAGE_K * 2 };
static_assert(!ROUTER_ROW_FITS ||
                  2 * ROUTER_ROW_BYTES + CUDA_STREAM_TOKEN_BYTES + ROW_HALVES * 4 <= SCRATCH_BYTES,
              "scratch");

/* The row's rounding, or what that leaves. */
DEV char *router_row(uint32_t rest) {
    return SCRATCH + rest * ROUTER_ROW_BYTES;
}
DEV float *router_row_sums(void) {
    return (float *)router_row(2);
}
DEV float *router_row_halves(void) {
    return router_row_sums() + STREAM_TOKEN_FLOATS;
}

/* Stages a thread's next float4s of the row, from number `first` on. */
DEV void router_stage_share(const struct warp_context *c, struct operand row,
                            const struct early *early, uint32_t first) {
    constexpr uint32_t END = ROW_TILES * CUDA_PAGE_K / 4;
    float4 v[STREAM_FOURS];
    operand_load_share<STREAM_FOURS>(row, first, QN_HIDDEN / 4, v);
#pragma unroll
    for (int u = 0; u < STREAM_FOURS; u++) {
        const uint32_t at = first + u * COMPUTE_THREADS;
        const float4 w = early->norm[u];
        const float sum = half_squares(v[u]);
        if (at >= END) break;
#pragma unroll
        for (uint32_t rest = 0; rest < 2; rest++)
            *(uint2 *)(router_row(rest) + 8 * at) =
                make_uint2(router_pair(v[u].x * w.x, v[u].y * w.y, rest),
                           router_pair(v[u].z * w.z, v[u].w * w.w, rest));
        if (c->lane == 0) router_row_halves()[at / 32] = sum;
    }
}

/* Multiplies the warp's pages of a row block. */
DEV void router_row_block(struct warp_context *c) {
    const uint32_t turn = (c->warp - c->turn) % WARPS, g = c->lane / 4, j = c->lane % 4;
    float total[2] = {0, 0};
    for (uint32_t i = turn; i < ROW_TILES; i += WARPS) {
        const uint4 *x =
            (const uint4 *)(router_row(g % 2) + cuda_page_tile(ROW_TILES, i) * CUDA_PAGE_K * 2) + j;
        float sum[4] = {};
        const uint4 *page = page_acquire(c);
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
            mma_pair(sum, page, pair, c->lane, x[4 * pair]);
        page_release(c);
        total[0] += sum[0] + sum[1];
        total[1] += sum[2] + sum[3];
    }
    if (j == 0) {
        router_row_sums()[turn * CUDA_PAGE_ROWS + g] = total[0];
        router_row_sums()[turn * CUDA_PAGE_ROWS + g + 8] = total[1];
    }
    c->turn = turn_after(c->turn, ROW_TILES);
}

/* Runs a task of one token row. False: the launch ends. */
DEV bool router_run_row(struct warp_context *c, const struct cuda_task *task) {
    constexpr uint32_t STEP = STREAM_FOURS * COMPUTE_THREADS;
    const struct operand x = operand_of(task->in, task, CUDA_IN_FLAGGED);
    const float *norm = (const float *)task->norm;
    uint32_t *hint = task_hint(c, task);
    struct early early;
    early_norm(norm, c->thread, &early);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    router_stage_share(c, x, &early, c->thread);
#pragma unroll 1
    for (uint32_t first = STEP; first < ROW_TILES * CUDA_PAGE_K / 4; first += STEP) {
        early_norm(norm, first + c->thread, &early);
        router_stage_share(c, x, &early, first + c->thread);
    }
    sync_compute();
    for (uint32_t b = task->block0; b < task->block1; b++) {
        const uint32_t unit = b * CUDA_PAGE_ROWS + c->thread;
        router_row_block(c);
        sync_compute();
        if (b + 1 == task->block1 && hint != nullptr) add_relaxed_gpu(hint, 1);
        if (c->thread < CUDA_PAGE_ROWS && unit < task->units)
            operand_store(task, unit,
                          stream_sum<OP_ROUTER, QN_HIDDEN>(router_row_sums(), c->thread) *
                              halves_inverse_rms(router_row_halves()));
        if (b + 1 < task->block1) sync_compute(); /* the sums are read */
    }
    return true;
}

#endif
