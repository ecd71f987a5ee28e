/* router.cuh - ROUTER: logits of experts. A token row is multiplied as two 16-bit rows: its
 * rounding, and its rest (the row minus its rounding). A lane has both dot products of a row and
 * adds them. Pages come row block by row block. Partial sums are added up in order.
 *
 *   row    one token row, in scratch. As the row arrives it is split, and its squares are added up.
 *          Its two 16-bit rows are two columns of one product
 *   rows   up to CUDA_ROUTER_ROWS token rows at a time. Each eight rows have two products: of their
 *          roundings, and of their rests. A warp goes through all rows while it holds a page. It
 *          reads them from L2, 1 KB a row and page, eight rows at once, and adds up the squares of
 *          what it reads. The norm's weights of a warp's first page are in scratch before the event
 *
 * Scratch, row:    0   the row's rounding, then its rest, 16 bits, whole k-tiles
 *                  +   partial sums x STREAM_TOKEN_FLOATS F32
 *                  +   squares [half of a k-tile] F32
 * Scratch, rows:   0   partial sums [token row] x STREAM_TOKEN_FLOATS F32
 *                  +   the norm's weights [WARPS][column of a k-tile] F32
 *                  +   squares [token row][k-tile] F32
 */
#ifndef QN_CUDA_EXPERT_ROUTER_CUH
#define QN_CUDA_EXPERT_ROUTER_CUH

#include "kernels/cuda/expert/row_part.cuh"
#include "kernels/cuda/matmul/matmul_stream.cuh"
#include "kernels/cuda/matmul/matvec.cuh"

#define ROUTER_ROW_FITS (QN_HIDDEN <= CUDA_ROUTER_ROW_HIDDEN)

enum {
    ROUTER_GROUP = PACK_ROWS, /* token rows of a product */
};
static_assert(CUDA_ROUTER_ROWS * (CUDA_STREAM_TOKEN_BYTES + ROW_TILES * 4) +
                      WARPS * CUDA_PAGE_K * 4 <=
                  SCRATCH_BYTES,
              "scratch");

DEV float *router_sums(uint32_t token) {
    return (float *)SCRATCH + token * STREAM_TOKEN_FLOATS;
}
DEV float *router_norm(uint32_t warp) {
    return router_sums(CUDA_ROUTER_ROWS) + warp * CUDA_PAGE_K;
}
DEV float *router_squares(uint32_t token) {
    return router_norm(WARPS) + token * ROW_TILES;
}

/* ---- several token rows ---- */

/* The current token rows: [row0, row0 + n). */
struct router_rows {
    struct operand x; /* of all rows */
    uint32_t row0, n;
};

/* Waits for the rows, if they carry flags: only a single row does. */
DEV void router_await(const struct warp_context *c, const struct router_rows *t) {
    if (t->x.flag == 0) return;
    for (uint32_t four = c->thread; four < QN_HIDDEN / 4; four += COMPUTE_THREADS) {
        float4 v[1];
        operand_load_share<1>(t->x, four, QN_HIDDEN / 4, v);
    }
    sync_compute();
}

/* Two values as a 16-bit pair: their roundings, or their rests. */
DEV uint32_t router_pair(float a, float b, bool rest) {
    const uint32_t high = pack_pair<WEIGHT_E>(a, b);
    if (!rest) return high;
    return pack_pair<WEIGHT_E>(a - unpack_low<WEIGHT_E>(high), b - unpack_high<WEIGHT_E>(high));
}

/* Brings the norm's weights of a k-tile into the warp's part of scratch. */
DEV void router_norm_stage(const struct warp_context *c, const struct cuda_task *task,
                           uint32_t k_tile) {
    float4 *to = (float4 *)router_norm(c->warp);
    __syncwarp(); /* the weights before are read */
#pragma unroll
    for (uint32_t four = c->lane; four < CUDA_PAGE_K / 4; four += 32) {
        const uint32_t column = k_tile * CUDA_PAGE_K + 4 * four;
        const bool in = QN_HIDDEN % CUDA_PAGE_K == 0 || column < QN_HIDDEN;
        to[four] = __ldg((const float4 *)((const float *)task->norm + (in ? column : 0)));
    }
    __syncwarp();
}

/* The lane's part of the k-tile of a row that carries flags and has arrived. */
DEV struct row_part router_flagged(struct operand row, uint32_t k_tile, uint32_t lane) {
    struct row_part x;
#pragma unroll
    for (uint32_t i = 0; i < ROW_FOURS; i++) {
        const uint32_t column = row_part_column(k_tile, lane, i);
        const float *at = row.at + 2 * (row_has(column) ? column : 0);
        const float4 lo = load4_l2(at), hi = load4_l2(at + 4);
        const float v[4] = {lo.x, lo.z, hi.x, hi.z};
        const uint32_t keep = row_has(column) ? ~0u : 0;
        x.of[i] = make_uint4(__float_as_uint(v[0]) & keep, __float_as_uint(v[1]) & keep,
                             __float_as_uint(v[2]) & keep, __float_as_uint(v[3]) & keep);
    }
    return x;
}

/* Loads the lane's part of the k-tile of token row `token` + lane / 4; after the last row, that of
 * the last row again. */
DEV struct row_part router_load(const struct warp_context *c, const struct router_rows *t,
                                uint32_t token, uint32_t k_tile) {
    const uint32_t own = min(token + c->lane / 4, t->n - 1);
    const struct operand row = operand_from(t->x, (uint64_t)(t->row0 + own) * QN_HIDDEN);
    if (row.flag != 0) return router_flagged(row, k_tile, c->lane);
    return row_part_load(row.at, k_tile, c->lane);
}

/* The B registers of two steps, times the norm's weights w: the roundings, or the rests. */
DEV uint4 router_pairs(const struct row_part *x, uint32_t pair, const float4 *w, bool rest) {
    uint32_t to[4];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float4 v = row_part_four(x, 2 * pair + i);
        to[2 * i] = router_pair(v.x * w[i].x, v.y * w[i].y, rest);
        to[2 * i + 1] = router_pair(v.z * w[i].z, v.w * w[i].w, rest);
    }
    return make_uint4(to[0], to[1], to[2], to[3]);
}

/* Multiplies the warp's next page, number page_idx of the row block, with all rows. turn: the place
 * of its partial sum. */
DEV void router_page(struct warp_context *c, const struct router_rows *t, uint32_t page_idx,
                     uint32_t k_tile, uint32_t turn) {
    const uint32_t g = c->lane / 4, j = c->lane % 4;
    const float4 *norm = (const float4 *)router_norm(c->warp) + 2 * j;
    const bool first = page_idx < PARTIALS;
    const uint4 *page = page_acquire(c);
#pragma unroll 1
    for (uint32_t token = 0; token < t->n; token += ROUTER_GROUP) {
        const struct row_part x = router_load(c, t, token, k_tile);
        float high[4] = {}, rest[4] = {};
#pragma unroll
        for (uint32_t pair = 0; pair < ROW_PAIRS; pair++) {
            const float4 w[2] = {norm[8 * pair], norm[8 * pair + 1]};
            mma_pair(high, page, pair, c->lane, router_pairs(&x, pair, w, false));
            mma_pair(rest, page, pair, c->lane, router_pairs(&x, pair, w, true));
        }
        const float squares = row_part_squares(&x, 0) + row_part_squares(&x, 1);
        if (j == 0 && token + g < t->n) router_squares(token + g)[k_tile] = squares;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            float *to = router_sums(token + 2 * j + i) + turn * CUDA_PAGE_ROWS + g;
            if (token + 2 * j + i >= t->n) continue;
            to[0] = (first ? 0 : to[0]) + (high[i] + rest[i]);
            to[8] = (first ? 0 : to[8]) + (high[i + 2] + rest[i + 2]);
        }
    }
    page_release(c);
}

/* 1 / rms of a row. */
DEV float router_inverse_rms(uint32_t token) {
    const float *squares = router_squares(token);
    float sum = squares[0];
#pragma unroll
    for (uint32_t tile = 1; tile < ROW_TILES; tile++) sum += squares[tile];
    return inverse_rms_of(sum);
}

/* Stores the logits of a row block. */
DEV void router_results(const struct warp_context *c, const struct cuda_task *task,
                        const struct router_rows *t, uint32_t block) {
    const uint32_t r = c->thread % CUDA_PAGE_ROWS, unit = block * CUDA_PAGE_ROWS + r;
    if (unit >= task->units) return;
    for (uint32_t token = c->thread / 16; token < t->n; token += 16)
        operand_store(task, (uint64_t)(t->row0 + token) * task->units + unit,
                      stream_sum<OP_ROUTER, QN_HIDDEN>(router_sums(token), r) *
                          router_inverse_rms(token));
}

/* Runs a task of several token rows. False: the launch ends. */
DEV bool router_run_rows(struct warp_context *c, const struct cuda_task *task) {
    struct router_rows t = {operand_of(task->in, task, CUDA_IN_FLAGGED), 0, 0};
    uint32_t staged = cuda_page_tile(ROW_TILES, min((c->warp - c->turn) % WARPS, ROW_TILES - 1));
    if (ROUTER_ROW_FITS) t.x.flag = 0; /* a single row runs in the other form */
    router_norm_stage(c, task, staged);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    const uint32_t end = min(SHARED->batch.rows.n_rows, task->row1);
    router_await(c, &t);
    for (t.row0 = task->row0; t.row0 < task->row1; t.row0 += task->tile) {
        t.n = t.row0 < end ? min(end - t.row0, (uint32_t)task->tile) : 0;
        for (uint32_t b = task->block0; b < task->block1; b++) {
            const uint32_t turn = (c->warp - c->turn) % WARPS;
            for (uint32_t i = turn; i < ROW_TILES; i += WARPS) {
                const uint32_t k_tile = cuda_page_tile(ROW_TILES, i);
                if (k_tile != staged) router_norm_stage(c, task, k_tile);
                staged = k_tile;
                router_page(c, &t, i, k_tile, turn);
            }
            c->turn = turn_after(c->turn, ROW_TILES);
            sync_compute();
            router_results(c, task, &t, b);
            if (b + 1 < task->block1 || t.row0 + task->tile < task->row1)
                sync_compute(); /* the sums are read */
        }
    }
    return true;
}

/* ---- one token row ---- */

enum { ROUTER_ROW_BYTES = ROW_TILES * CUDA_PAGE_K * 2 };
static_assert(!ROUTER_ROW_FITS ||
                  2 * ROUTER_ROW_BYTES + CUDA_STREAM_TOKEN_BYTES + ROW_HALVES * 4 <= SCRATCH_BYTES,
              "scratch");

/* The row's rounding, or its rest. */
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
