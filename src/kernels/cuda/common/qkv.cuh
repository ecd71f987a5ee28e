/* qkv.cuh - QKV_HEADS: query heads and this iteration's rows of the KV cache from the projections.
 * One unit is one head: a warp per token norms, rotates and stores it. */
#ifndef QN_CUDA_COMMON_QKV_CUH
#define QN_CUDA_COMMON_QKV_CUH

#include "kernels/cuda/common/kv.cuh"
#include "kernels/cuda/common/act.cuh"

#define HALF_DIM (QN_HEAD_DIM / 2)
/* RoPE pairs per lane */
#define LANE_PAIRS ((HALF_DIM + 31) / 32)

DEV void qkv_store_query(const struct cuda_task *task, uint32_t unit, uint32_t row, uint32_t i,
                         float a, float b) {
    uint64_t head = (uint64_t)row * QN_N_HEADS + unit;
    float *q = (float *)task->out + head * QN_HEAD_DIM; /* [T, n_heads, head_dim] */
    q[i] = a;
    q[i + HALF_DIM] = b;
}

/* Columns i and i + HALF_DIM of a key or a value, in its row of the cache or of another place. */
DEV void kv_store(uint16_t *row, bool is_value, uint32_t position, uint32_t i, float a, float b) {
    const uint32_t j = i + HALF_DIM;
    row[is_value ? value_at(position, i) : key_at(position, i)] = pack_one<KV_E>(a);
    row[is_value ? value_at(position, j) : key_at(position, j)] = pack_one<KV_E>(b);
}

/* unit: key heads, then value heads; row: the position's in the cache */
DEV void qkv_store_kv(uint64_t cache, uint32_t unit, uint32_t row, uint32_t position, uint32_t i,
                      float a, float b) {
    uint16_t *kv = (uint16_t *)cache + (uint64_t)row * QN_HEAD_DIM;
    uint32_t head_idx = unit % QN_N_KV_HEADS, value = unit / QN_N_KV_HEADS;
    kv += (uint64_t)value * KV_VALUE_STRIDE + (uint64_t)head_idx * KV_HEAD_STRIDE;
    kv_store(kv, value != 0, position, i, a, b);
}

/* What turns a head: the lane's weights of the norm and rotations. Constants. */
struct head_turn {
    float norm_a[LANE_PAIRS], norm_b[LANE_PAIRS], cosine[LANE_PAIRS], sine[LANE_PAIRS];
};

/* Of a query head, a key head, or a value head, which is taken as it is. */
DEV struct head_turn head_turn_of(const struct warp_context *c, const float *norm, bool is_value,
                                  uint32_t position) {
    const uint64_t angle = (uint64_t)position * HALF_DIM;
    struct head_turn h;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t i = c->lane + 32 * u;
        const bool turned = !is_value && i < HALF_DIM;
        h.norm_a[u] = QN_QK_NORM && turned ? __ldg(norm + i) : 1;
        h.norm_b[u] = QN_QK_NORM && turned ? __ldg(norm + i + HALF_DIM) : 1;
        h.cosine[u] = turned ? __ldg(SHARED->args.rope_cos + angle + i) : 1;
        h.sine[u] = turned ? __ldg(SHARED->args.rope_sin + angle + i) : 0;
    }
    return h;
}

/* A head of one token by one warp, per-head RMSNorm and RoPE in place: lane l has RoPE pairs l,
 * l + 32 ... of it, a the first of a pair, b the second. */
DEV void head_turn_apply(const struct warp_context *c, const struct head_turn *h, bool is_value,
                         float *a, float *b) {
    if (is_value) return;
#if QN_QK_NORM
    float squares = 0;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++)
        if (c->lane + 32 * u < HALF_DIM) squares = fmaf(b[u], b[u], fmaf(a[u], a[u], squares));
    const float inv =
        inverse_sqrt_fast(__fadd_rn(__fmul_rn(warp_sum(squares), 1.0f / QN_HEAD_DIM), RMS_EPS));
#endif
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        float x = a[u], y = b[u];
#if QN_QK_NORM
        x = x * inv * h->norm_a[u];
        y = y * inv * h->norm_b[u];
#endif
        a[u] = x * h->cosine[u] - y * h->sine[u];
        b[u] = y * h->cosine[u] + x * h->sine[u];
    }
}

/* Where unit's row goes in the cache; of a query head nothing. */
DEV uint32_t unit_kv_row(uint32_t unit, uint32_t row) {
    return unit < QN_N_HEADS ? 0 : row_kv_row(SHARED, row);
}

/* A head of one token by one warp, from dot products to its place. */
DEV void qkv_place(const struct warp_context *c, const struct cuda_task *task, uint32_t unit,
                   uint32_t row, uint32_t position, uint32_t kv, float *a, float *b) {
    const bool is_query = unit < QN_N_HEADS, is_value = unit >= QN_N_HEADS + QN_N_KV_HEADS;
    const struct head_turn h =
        head_turn_of(c, (const float *)(is_query ? task->more : task->more2), is_value, position);
    head_turn_apply(c, &h, is_value, a, b);
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t i = c->lane + 32 * u;
        if (i >= HALF_DIM) continue;
        if (is_query)
            qkv_store_query(task, unit, row, i, a[u], b[u]);
        else
            qkv_store_kv(task->out2, unit - QN_N_HEADS, kv, position, i, a[u], b[u]);
    }
}

DEV void heads_load(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                    uint32_t unit, float *a, float *b) {
    const float *y = (const float *)task->in + ((uint64_t)row * task->units + unit) * QN_HEAD_DIM;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        uint32_t i = min(c->lane + 32 * u, HALF_DIM - 1u);
        a[u] = load_l2(y + i);
        b[u] = load_l2(y + i + HALF_DIM);
    }
}

#define HEADS_AHEAD (LANE_PAIRS <= 2 ? 4 : 2)

/* A warp per token: what depends on the token is found once, and the next head is on its way while
 * one is placed. */
DEV void heads_by_rows(const struct warp_context *c, const struct cuda_task *task, uint32_t end) {
#pragma unroll 1
    for (uint32_t row = task->row0 + c->warp; row < end; row += WARPS) {
        const uint32_t position = row_position(SHARED, row), kv = row_kv_row(SHARED, row);
        float a[HEADS_AHEAD][LANE_PAIRS], b[HEADS_AHEAD][LANE_PAIRS];
#pragma unroll 1
        for (uint32_t unit = task->unit0; unit < task->unit1; unit += HEADS_AHEAD) {
#pragma unroll
            for (int n = 0; n < HEADS_AHEAD; n++)
                heads_load(c, task, row, min(unit + n, task->unit1 - 1), a[n], b[n]);
#pragma unroll
            for (int n = 0; n < HEADS_AHEAD; n++)
                if (unit + n < task->unit1)
                    qkv_place(c, task, unit + n, row, position, kv, a[n], b[n]);
        }
    }
}

/* QKV_HEADS. */
DEV void run_qkv_heads(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t heads = task->unit1 - task->unit0;
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    if (task->row0 + WARPS <= end) {
        heads_by_rows(c, task, end);
        return;
    }
    /* Few tokens: a warp per head and token. */
    for (uint32_t item = c->warp; task->row0 < end && item < (end - task->row0) * heads;
         item += WARPS) {
        const uint32_t row = task->row0 + item / heads, unit = task->unit0 + item % heads;
        float a[LANE_PAIRS], b[LANE_PAIRS];
        heads_load(c, task, row, unit, a, b);
        qkv_place(c, task, unit, row, row_position(SHARED, row), unit_kv_row(unit, row), a, b);
    }
}

#endif
