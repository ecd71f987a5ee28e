/* qkv.cuh - QKV_HEADS: query heads and this iteration's rows of the KV cache from the projections.
 * One unit is one head: a warp per token norms, rotates and stores it. */
#ifndef QN_CUDA_ATTENTION_QKV_CUH
#define QN_CUDA_ATTENTION_QKV_CUH

#include "kernels/cuda/data/kv.cuh"

#define HALF_DIM (QN_HEAD_DIM / 2)
/* RoPE pairs per lane */
#define LANE_PAIRS ((HALF_DIM + 31) / 32)

/* The first column of the lane's pair number u; whether there is one. */
DEV uint32_t pair_column(const struct warp_context *c, int u) {
    const uint32_t i = c->lane + 32 * u;
    return HALF_DIM % 32 == 0 ? i : min(i, HALF_DIM - 1u);
}
DEV bool pair_exists(const struct warp_context *c, int u) {
    return HALF_DIM % 32 == 0 || c->lane + 32 * u < HALF_DIM;
}

DEV void qkv_store_query(const struct cuda_task *task, uint32_t unit, uint32_t row, uint32_t i,
                         float a, float b) {
    uint64_t head = (uint64_t)row * QN_N_HEADS + unit;
    float *q = (float *)task->out + head * QN_HEAD_DIM; /* [T, n_heads, head_dim] */
    q[i] = a;
    q[i + HALF_DIM] = b;
}

/* Stores columns i and i + HALF_DIM of a key or a value, in its row of the cache or elsewhere.
 * line: the row's first line. */
DEV void kv_store(char *line, uint32_t position, uint32_t i, float a, float b) {
    const uint32_t j = i + HALF_DIM;
    *(uint16_t *)(line + kv_chunk_at(position, i / 8) + i % 8 * 2) = pack_one<KV_E>(a);
    *(uint16_t *)(line + kv_chunk_at(position, j / 8) + j % 8 * 2) = pack_one<KV_E>(b);
}

/* unit: key heads, then value heads; row: the position's in the cache */
DEV void qkv_store_kv(uint64_t cache, uint32_t unit, uint32_t row, uint32_t position, uint32_t i,
                      float a, float b) {
    uint16_t *kv = (uint16_t *)cache + (uint64_t)row * QN_HEAD_DIM;
    uint32_t head_idx = unit % QN_N_KV_HEADS, value = unit / QN_N_KV_HEADS;
    kv += (uint64_t)value * KV_VALUE_STRIDE + (uint64_t)head_idx * KV_HEAD_STRIDE;
    kv_store(kv_line(kv, position), position, i, a, b);
}

/* The lane's norm weights and rotations of a head. They do not change within an iteration. */
struct head_turn {
    float norm_a[LANE_PAIRS], norm_b[LANE_PAIRS], cosine[LANE_PAIRS], sine[LANE_PAIRS];
};

/* The token row's row of the table of rotations. */
DEV uint32_t turn_at(uint32_t row, uint32_t position) {
#if QN_ROPE_SWITCH != SPEC_ONE_ROPE
    const struct rt_batch *b = &SHARED->batch;
    const uint32_t *n_prompt = &b->slots[row_slot(SHARED, row)].n_prompt;
    if ((uint32_t)load_index_l2((const int32_t *)n_prompt) > QN_ROPE_SWITCH)
        return position + b->max_model_len;
#endif
    return position;
}

/* For a query head, a key head, or a value head, which is left as it is. at: turn_at. */
DEV struct head_turn head_turn_of(const struct warp_context *c, const float *norm, bool is_value,
                                  uint32_t at) {
    const uint64_t angle = (uint64_t)at * HALF_DIM;
    struct head_turn h;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t i = c->lane + 32 * u;
        const bool turned = !is_value && pair_exists(c, u);
        h.norm_a[u] = QN_QK_NORM && turned ? __ldg(norm + i) : 1;
        h.norm_b[u] = QN_QK_NORM && turned ? __ldg(norm + i + HALF_DIM) : 1;
        h.cosine[u] = turned ? __ldg(SHARED->args.rope_cos + angle + i) : 1;
        h.sine[u] = turned ? __ldg(SHARED->args.rope_sin + angle + i) : 0;
    }
    return h;
}

/* Per-head RMSNorm and RoPE, in place, of a head of one token by one warp. Lane l has RoPE pairs l,
 * l + 32 and so on: a the first element of a pair, b the second. */
DEV void head_turn_apply(const struct warp_context *c, const struct head_turn *h, bool is_value,
                         float *a, float *b) {
    if (is_value) return;
#if QN_QK_NORM
    float squares = 0;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++)
        if (pair_exists(c, u)) squares = fmaf(b[u], b[u], fmaf(a[u], a[u], squares));
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

/* Store a head of one token: a query; a key or a value, in row kv of the cache. */
DEV void query_store(const struct warp_context *c, const struct cuda_task *task, uint32_t unit,
                     uint32_t row, const float *a, const float *b) {
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++)
        if (pair_exists(c, u)) qkv_store_query(task, unit, row, c->lane + 32 * u, a[u], b[u]);
}
DEV void key_value_store(const struct warp_context *c, const struct cuda_task *task, uint32_t unit,
                         uint32_t position, uint32_t kv, const float *a, const float *b) {
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++)
        if (pair_exists(c, u))
            qkv_store_kv(task->out2, unit - QN_N_HEADS, kv, position, c->lane + 32 * u, a[u], b[u]);
}

/* Loads the lane's pairs of a head. */
DEV void heads_load(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                    uint32_t unit, float *a, float *b) {
    const float *y = (const float *)task->in + ((uint64_t)row * task->units + unit) * QN_HEAD_DIM;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t i = pair_column(c, u);
        a[u] = load_l2(y + i);
        b[u] = load_l2(y + i + HALF_DIM);
    }
}

/* Norm and rotations of a query (first), or of a key or a value: a selection, not a branch. */
DEV struct head_turn turn_chosen(bool first, const struct head_turn *x, const struct head_turn *y) {
    struct head_turn h;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        h.norm_a[u] = first ? x->norm_a[u] : y->norm_a[u];
        h.norm_b[u] = first ? x->norm_b[u] : y->norm_b[u];
        h.cosine[u] = x->cosine[u];
        h.sine[u] = x->sine[u];
    }
    return h;
}

#define HEADS_AHEAD (LANE_PAIRS <= 2 ? 4 : 2)

/* Some heads from number `unit` on. Past the end the last one is repeated. */
struct heads_some {
    float a[HEADS_AHEAD][LANE_PAIRS], b[HEADS_AHEAD][LANE_PAIRS];
};
DEV struct heads_some heads_ask(const struct warp_context *c, const struct cuda_task *task,
                                uint32_t row, uint32_t unit, uint32_t end) {
    struct heads_some x;
#pragma unroll
    for (int n = 0; n < HEADS_AHEAD; n++)
        heads_load(c, task, row, min(unit + n, end - 1), x.a[n], x.b[n]);
    return x;
}

/* Heads [unit0, end) of a token by one warp. Values that they have in common are found once, and
 * the next heads load while the current ones are stored. There are no branches: the compiler would
 * wait for the loads at one. So the last head may be stored again. */
DEV void heads_of_row(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                      uint32_t unit0, uint32_t end) {
    struct heads_some next = heads_ask(c, task, row, unit0, end);
    const uint32_t position = row_position(SHARED, row), kv = row_kv_row(SHARED, row);
    const uint32_t turn = turn_at(row, position);
    const struct head_turn query = head_turn_of(c, (const float *)task->more, false, turn);
    const struct head_turn key = head_turn_of(c, (const float *)task->more2, false, turn);
#pragma unroll 1
    for (uint32_t unit = unit0; unit < end; unit += HEADS_AHEAD) {
        const struct heads_some now = next;
        next = heads_ask(c, task, row, unit + HEADS_AHEAD, end);
#pragma unroll
        for (int n = 0; n < HEADS_AHEAD; n++) {
            const uint32_t head = min(unit + n, end - 1);
            const bool is_value = head >= QN_N_HEADS + QN_N_KV_HEADS;
            const struct head_turn h = turn_chosen(head < QN_N_HEADS, &query, &key);
            struct heads_some x = now;
            head_turn_apply(c, &h, false, x.a[n], x.b[n]);
#pragma unroll
            for (int u = 0; u < LANE_PAIRS; u++) {
                x.a[n][u] = is_value ? now.a[n][u] : x.a[n][u];
                x.b[n][u] = is_value ? now.b[n][u] : x.b[n][u];
            }
            if (head < QN_N_HEADS)
                query_store(c, task, head, row, x.a[n], x.b[n]);
            else
                key_value_store(c, task, head, position, kv, x.a[n], x.b[n]);
        }
    }
}

/* QKV_HEADS. The warps divide the tokens and, where there are few, also a token's heads. */
DEV void run_qkv_heads(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    const uint32_t rows = end > task->row0 ? end - task->row0 : 0,
                   heads = task->unit1 - task->unit0;
    const uint32_t of_row = rows == 0 ? 1 : max(WARPS / rows, 1u), each = ceil_div(heads, of_row);
#pragma unroll 1
    for (uint32_t i = c->warp; i < rows * of_row; i += WARPS) {
        const uint32_t unit = task->unit0 + i % of_row * each;
        if (unit < task->unit1)
            heads_of_row(c, task, task->row0 + i / of_row, unit, min(unit + each, task->unit1));
    }
}

#endif
