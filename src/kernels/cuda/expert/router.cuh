/* router.cuh - ROUTER: logits of experts. A token row is multiplied as two 16-bit rows, its
 * rounding and what that leaves, in two columns of a product that follow each other: so a column of
 * eight is four token rows, and a lane has both dot products of one.
 *
 * Pages come row block by row block, once for up to ROUTER_ROWS token rows; a warp goes through all
 * of these rows while it has a page. Partial sums are added up in order.
 *
 * Bytes per page of 8 KB: 1 KB of activations a token row, from L2.
 *
 * Scratch:   0   partial sums [token row] x STREAM_TOKEN_FLOATS F32
 *            +   1 / rms [token row] F32
 */
#ifndef QN_CUDA_EXPERT_ROUTER_CUH
#define QN_CUDA_EXPERT_ROUTER_CUH

#include "kernels/cuda/matmul/matmul_stream.cuh"

enum { ROUTER_GROUP = 4 }; /* token rows of a product */
static_assert(CUDA_ROUTER_ROWS * (CUDA_STREAM_TOKEN_BYTES + 4) <= SCRATCH_BYTES, "scratch");

DEV float *router_sums(uint32_t token) {
    return (float *)SCRATCH + token * STREAM_TOKEN_FLOATS;
}
DEV float *router_inverse_rms(uint32_t token) {
    return router_sums(CUDA_ROUTER_ROWS) + token;
}

/* Token rows [row0, row0 + n) at work. */
struct router_rows {
    struct operand x; /* of all rows */
    uint32_t row0, n;
};

/* Floats [column, column + 4) of a row of x; zeros beyond it. */
DEV float4 router_four(const struct router_rows *t, uint32_t token, uint32_t column) {
    float4 v[1];
    const struct operand row = operand_from(t->x, (uint64_t)(t->row0 + token) * QN_HIDDEN);
    operand_load_share<1>(row, column / 4, QN_HIDDEN / 4, v);
    return v[0];
}

/* 1 / rms of each row, by a warp. */
DEV void router_norms(const struct warp_context *c, const struct router_rows *t) {
    for (uint32_t token = c->warp; token < t->n; token += WARPS) {
        float sum = 0;
#pragma unroll 4
        for (uint32_t four = c->lane; four < QN_HIDDEN / 4; four += 32)
            sum += squares_of_four(router_four(t, token, 4 * four));
#pragma unroll
        for (int d = 1; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
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
    const uint32_t own = token + c->lane / 8, j = c->lane % 4;
    const bool rest = c->lane / 4 % 2 != 0;
#pragma unroll
    for (uint32_t pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint32_t column = k_tile * CUDA_PAGE_K + pair * 32 + 8 * j;
        uint32_t v[4] = {};
        if (own < t->n && column < QN_HIDDEN) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const float4 a = router_four(t, own, column + 4 * i);
                const float4 w = __ldg((const float4 *)(norm + column) + i);
                v[2 * i] = router_pair(a.x * w.x, a.y * w.y, rest);
                v[2 * i + 1] = router_pair(a.z * w.z, a.w * w.w, rest);
            }
        }
        x->of[0][pair] = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

/* Multiplies a page, which is the warp's n-th of the row block, with all rows. turn: its partial
 * sum's place. */
DEV void router_page(struct warp_context *c, const struct cuda_task *task,
                     const struct router_rows *t, uint32_t page_idx, uint32_t turn) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const uint32_t k_tile = cuda_page_tile(k_tiles, page_idx), g = c->lane / 4, j = c->lane % 4;
    struct fragments<1> x;
    if (t->n > 0) router_gather(c, t, (const float *)task->norm, 0, k_tile, &x);
    const uint4 *page = page_acquire(c);
#pragma unroll 1
    for (uint32_t token = 0; token < t->n; token += ROUTER_GROUP) {
        float sum[4] = {};
        if (token > 0) router_gather(c, t, (const float *)task->norm, token, k_tile, &x);
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

/* Runs a task. False: the launch ends. */
DEV bool router_run(struct warp_context *c, const struct cuda_task *task) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    struct router_rows t = {operand_of(task->in, task, CUDA_IN_FLAGGED), 0, 0};
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    const uint32_t end = min(SHARED->batch.rows.n_rows, task->row1);
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

#endif
