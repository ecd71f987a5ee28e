/* attention.cuh - the arithmetic of all attention, and how the rows of an iteration are taken in
 * steps.
 *
 * A context is attended to in pieces of ATTENTION_PIECE positions with absolute bounds, a piece in
 * eight shares of 16. Each share's softmax is against its own maximum; shares are merged in order,
 * pieces in order of position. So the bits of a row depend on its position only, not on what else
 * is in the batch, and all forms agree:
 *
 *   DECODE        STEP, WHOLE     attention_decode.cuh; two short items at a time:
 * _decode_teams.cuh DECODE_LONG   STEP            attention_decode_long.cuh: a warp a piece MIXED
 * ATTENTION       attention_mixed.cuh: rows of several requests PREFILL       ATTENTION
 * attention_prefill.cuh: many rows MERGE         MERGE         attention_merge.cuh: of the parts
 * that STEP gives
 *
 * One step handles up to 16 query rows that share a KV head: the heads of its group, for one token
 * (decode) or for as many tokens of the same request as fit (prefill). Row m of the step is token
 * m / SUB_HEADS, head m % SUB_HEADS.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_CUH
#define QN_CUDA_ATTENTION_ATTENTION_CUH

#include "kernels/cuda/attention/attention_items.cuh"
#include "kernels/cuda/block/trace.cuh"

#define STEP_TOKENS (16 / SUB_HEADS)
/* How many of a lane's rows g and g + 8 the heads of one token can have. */
#define HEAD_HALVES (SUB_HEADS > 8 ? 2 : 1)
#define PAIRS       ((QN_HEAD_DIM + 31) / 32) /* 32 columns of q and k: two mma steps */
#define SPANS       ((QN_HEAD_DIM + 63) / 64) /* 64 columns of v: eight mma columns */
#define STATE_SIZE  (QN_VALUE_DIM + 2)        /* max, sum, unnormalised output */

/* Up to 16 query rows that share a KV head. */
struct attention_step {
    uint32_t row0, n_tokens;          /* token rows, all of one slot */
    uint32_t kv_head, head0, n_heads; /* query heads [head0, head0 + n_heads) */
    uint32_t slot;
    uint32_t lo, hi; /* positions that any of the rows sees */
};

/* What lane = 4 g + j holds for its two query rows, g and g + 8. */
struct attention_rows {
    uint4 q[2 * PAIRS];    /* A registers of each mma step */
    uint32_t lo[2], hi[2]; /* visible positions; empty for rows that do not exist */
};

/* HALVES: 1 where rows g + 8 do not exist. */
template <int HALVES>
DEV void load_rows(const struct warp_context *c, const struct cuda_task *task,
                   const struct attention_step *s, struct attention_rows *r) {
    const float *from[HALVES], *q = (const float *)task->in;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        uint32_t m = c->lane / 4 + 8 * h, token = m / SUB_HEADS, head = m % SUB_HEADS;
        bool exists = token < s->n_tokens && head < s->n_heads;
        uint32_t row = s->row0 + (exists ? token : 0);
        uint32_t position = row_position(SHARED, row);
        from[h] =
            exists ? q + ((uint64_t)row * QN_N_HEADS + s->head0 + head) * QN_HEAD_DIM : nullptr;
        r->lo[h] = exists ? window_start(task_window(task), position) : 0;
        r->hi[h] = exists ? position + 1 : 0;
    }
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        float4 v[2][2] = {};
        uint32_t d = 32 * p + c->lane % 4 * 8;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            bool in = from[h] != nullptr && d < QN_HEAD_DIM;
            v[h][0] = in ? load4_l2(from[h] + d) : make_float4(0, 0, 0, 0);
            v[h][1] = in ? load4_l2(from[h] + d + 4) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            r->q[2 * p + e] = make_uint4(
                pack_pair<KV_E>(v[0][e].x, v[0][e].y), pack_pair<KV_E>(v[1][e].x, v[1][e].y),
                pack_pair<KV_E>(v[0][e].z, v[0][e].w), pack_pair<KV_E>(v[1][e].z, v[1][e].w));
    }
}

/* Element offsets in the layer's cache of k of the warp's positions: lane l < 16 has position l. */
DEV uint64_t position_offset(const struct warp_context *c, const struct attention_step *s,
                             uint32_t first) {
    uint32_t position = min(first + c->lane % 16, s->hi - 1); /* beyond: repeats, masked later */
    uint64_t row = kv_row(&SHARED->batch, s->slot, position);
    return row * QN_HEAD_DIM + (uint64_t)s->kv_head * KV_HEAD_STRIDE;
}

/* Scores, in place of probabilities: p[u][e + 2 h] is row g + 8 h at position first + 4 j + 2 u +
 * e. */
DEV void piece_scores(const struct attention_rows *r, const uint4 k[2][PAIRS], float p[2][4]) {
#pragma unroll
    for (int u = 0; u < 2; u++) p[u][0] = p[u][1] = p[u][2] = p[u][3] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
            mma_16x8x16<KV_E>(p[u], r->q[2 * i], k[u][i].x, k[u][i].y);
            mma_16x8x16<KV_E>(p[u], r->q[2 * i + 1], k[u][i].z, k[u][i].w);
        }
}

/* Scores to probabilities against the warp's own maximum. HALVES: as in load_rows. MASKED: some row
 * may not see some position. Each operation is rounded by itself, so that all callers get the same
 * bits. */
template <int HALVES, bool MASKED = true>
DEV void piece_softmax(const struct warp_context *c, const struct attention_rows *r, uint32_t first,
                       float p[2][4], float max[2], float all[2]) {
    const float scale =
        QN_LATENT ? __uint_as_float(QN_SCALE_BITS) : 1.0f / sqrtf((float)QN_HEAD_DIM);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t position = first + c->lane % 4 * 4 + 2 * u + e;
                bool visible = !MASKED || (position >= r->lo[h] && position < r->hi[h]);
                p[u][e + 2 * h] = visible ? __fmul_rn(p[u][e + 2 * h], scale) : -INFINITY;
                most = fmaxf(most, p[u][e + 2 * h]);
            }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float base = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[u][e + 2 * h] = exp_fast(__fadd_rn(p[u][e + 2 * h], -base));
                sum += p[u][e + 2 * h];
            }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        max[h] = most;
        all[h] = sum;
    }
}

/* Probabilities as registers of A. HALVES: as in piece_softmax. */
template <int HALVES> DEV uint4 piece_weights(const float p[2][4]) {
    uint4 a = {};
    a.x = pack_pair<KV_E>(p[0][0], p[0][1]);
    a.z = pack_pair<KV_E>(p[1][0], p[1][1]);
    if (HALVES == 2) {
        a.y = pack_pair<KV_E>(p[0][2], p[0][3]);
        a.w = pack_pair<KV_E>(p[1][2], p[1][3]);
    }
    return a;
}

/* out = probabilities times column i of a span of v. A lane loads 16 bytes of its four positions;
 * which half of which word belongs to which mma column is sorted out with byte permutes. */
DEV void piece_column(uint4 weights, const uint4 v[4], int i, float out[4]) {
    uint32_t w[4];
#pragma unroll
    for (int n = 0; n < 4; n++)
        w[n] = i / 2 == 0 ? v[n].x : i / 2 == 1 ? v[n].y : i / 2 == 2 ? v[n].z : v[n].w;
    out[0] = out[1] = out[2] = out[3] = 0;
    if (i % 2 == 0)
        mma_16x8x16<KV_E>(out, weights, pair_low(w[0], w[1]), pair_low(w[2], w[3]));
    else
        mma_16x8x16<KV_E>(out, weights, pair_high(w[0], w[1]), pair_high(w[2], w[3]));
}

/* ---- merging ---- */

/* Factors that turn the outputs and sums of two states into those of both, the older one first. An
 * empty state (sum 0) counts nothing. */
struct merge {
    float max, old_factor, factor;
};
DEV struct merge merge_factors(float old_max, float old_sum, float max) {
    if (!(old_sum > 0)) return merge{max, 0, 1};
    float most = fmaxf(old_max, max);
    return merge{most, exp_fast(old_max - most), exp_fast(max - most)};
}
DEV float merge_value(const struct merge *m, float old_value, float value) {
    return fmaf(value, m->factor, __fmul_rn(old_value, m->old_factor));
}

/* A share's value times its factor onto those of the shares before. */
DEV float share_add(float sum, float value, float factor) {
    return fmaf(value, factor, sum);
}

/* The largest of the eight warps' values of a row. */
DEV float most_of(const float *all, uint32_t m) {
    float v[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) v[w] = all[w * 16 + m];
#pragma unroll
    for (int w = 1; w < WARPS; w++) v[0] = fmaxf(v[0], v[w]);
    return v[0];
}

DEV float warp_factor(float max, float most) {
    return max == -INFINITY ? 0 : exp_fast(max - most);
}

/* ---- steps ---- */

DEV void step_range(const struct block_shared *b, uint32_t window, struct attention_step *s) {
    s->slot = row_slot(b, s->row0);
    s->lo = ~0u;
    s->hi = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        uint32_t position = row_position(b, s->row0 + i);
        s->lo = min(s->lo, window_start(window, position));
        s->hi = max(s->hi, position + 1);
    }
}

DEV void step_heads(struct attention_step *s, uint32_t kv_head, uint32_t sub) {
    s->kv_head = kv_head;
    s->head0 = kv_head * GROUP_HEADS + sub * SUB_HEADS;
    s->n_heads = min((uint32_t)SUB_HEADS, GROUP_HEADS - sub * SUB_HEADS);
}

/* Elements of a head's output from d on; head: counted over all rows of o[T, n_heads * DV]. */
DEV void output_store(const struct cuda_task *task, uint64_t head, uint32_t d, float v) {
    if (task->flags & CUDA_OUT_PACKED)
        packed_store(task, head / QN_N_HEADS, head % QN_N_HEADS * QN_VALUE_DIM + d, v);
    else
        operand_store(task, head * QN_VALUE_DIM + d, v);
}

/* An even d, and the one after it. */
DEV void output_store2(const struct cuda_task *task, uint64_t head, uint32_t d, float2 v) {
    const uint32_t row = head / QN_N_HEADS, column = head % QN_N_HEADS * QN_VALUE_DIM + d;
    if (task->flags & CUDA_OUT_PACKED) {
        packed_store2(task, row, column, v.x, v.y);
    } else if (task->flags & CUDA_OUT_PAIRED) {
        operand_store_pair(task, head * QN_VALUE_DIM + d, v.x, v.y);
    } else {
        operand_store(task, head * QN_VALUE_DIM + d, v.x);
        operand_store(task, head * QN_VALUE_DIM + d + 1, v.y);
    }
}

DEV void output_store4(const struct cuda_task *task, uint64_t head, uint32_t d, float4 v) {
    if (task->flags & CUDA_OUT_PACKED)
        packed_store4(task, task->out, head / QN_N_HEADS, head % QN_N_HEADS * QN_VALUE_DIM + d, v);
    else
        operand_store4(task, head * QN_VALUE_DIM + d, v);
}

#endif
