/* attention.cuh - the arithmetic of all attention, and the steps that an iteration's rows form.
 *
 * A context is processed in pieces of ATTENTION_PIECE positions with absolute bounds, a piece in
 * eight shares of 16. A piece's probabilities are relative to its own maximum. Its outputs are one
 * chain of products over the shares in order. Pieces are merged in order of position. So the bits
 * of a row depend only on its position, not on the rest of the batch, and all forms agree:
 *
 *   DECODE        STEP, WHOLE   attention_decode.cuh; two short items at a time:
 *                               attention_decode_teams.cuh
 *   DECODE_LONG   STEP          attention_decode_long.cuh: one warp per piece
 *   MIXED         ATTENTION     attention_mixed.cuh: rows of several requests
 *   PREFILL       ATTENTION     attention_prefill.cuh: many rows
 *   MERGE         MERGE         attention_merge.cuh: merges the parts that STEP writes
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
/* How many of a lane's two rows, g and g + 8, the heads of one token can occupy. */
#define HEAD_HALVES (SUB_HEADS > 8 ? 2 : 1)
#define PAIRS       ((QN_HEAD_DIM + 31) / 32)  /* 32 columns of q and k: two mma steps */
#define STATE_SIZE  (QN_VALUE_DIM + PART_HEAD) /* max, sum; unnormalised output */

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
    for (int n = 0; n < 2 * PAIRS; n++) {
        float2 v[2][2] = {};
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t d = 16 * n + 8 * e;
                if (from[h] != nullptr && d < QN_HEAD_DIM)
                    v[h][e] = load2_l2(from[h] + d + c->lane % 4 * 2);
            }
        r->q[n] = make_uint4(
            pack_pair<KV_E>(v[0][0].x, v[0][0].y), pack_pair<KV_E>(v[1][0].x, v[1][0].y),
            pack_pair<KV_E>(v[0][1].x, v[0][1].y), pack_pair<KV_E>(v[1][1].x, v[1][1].y));
    }
}

/* Element offset of a key in the layer's cache: lane l < 16 returns that of position first + l. */
DEV uint64_t position_offset(const struct warp_context *c, const struct attention_step *s,
                             uint32_t first) {
    uint32_t position = min(first + c->lane % 16, s->hi - 1); /* beyond: repeats, masked later */
    uint64_t row = kv_row(&SHARED->batch, s->slot, position);
    return row * QN_HEAD_DIM + (uint64_t)s->kv_head * KV_HEAD_STRIDE;
}

/* ---- a share ---- */

/* Scores of a share: p[u][e + 2 h] is that of row g + 8 h at the share's position 8 u + 2 j + e.
 * k[u][i]: the lane's B registers of two mma steps, columns [32 i, 32 i + 32) of the eight
 * positions from 8 u on. */
DEV void share_scores(const struct attention_rows *r, const uint4 k[2][PAIRS], float p[2][4]) {
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

/* Sets a score to -infinity where the row may not see the position. first: the share's first
 * position. */
template <int HALVES>
DEV void share_mask(const struct warp_context *c, const struct attention_rows *r, uint32_t first,
                    float p[2][4]) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t position = first + 8 * u + c->lane % 4 * 2 + e;
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                if (position < r->lo[h] || position >= r->hi[h]) p[u][e + 2 * h] = -INFINITY;
        }
}

/* Raises most[h] to the lane's largest score of row h. */
template <int HALVES> DEV void share_most(const float p[2][4], float most[2]) {
#pragma unroll
    for (int h = 0; h < HALVES; h++)
        most[h] = fmaxf(most[h], fmaxf(fmaxf(p[0][2 * h], p[0][2 * h + 1]),
                                       fmaxf(p[1][2 * h], p[1][2 * h + 1])));
}

/* Maximum and sum over the four lanes that hold a row. */
DEV float quad_most(float v) {
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0u, v, 2));
}
DEV float quad_sum(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* The scale of scores, and the same scale for powers of two. */
#if QN_LATENT
#define SCORE_SCALE __uint_as_float(QN_SCALE_BITS)
#else
#define SCORE_SCALE (1.0f / sqrtf((float)QN_HEAD_DIM))
#endif
#define SCORE_EXP2 __fmul_rn(SCORE_SCALE, 1.4426950408889634f)

/* What to subtract from a row's scores times SCORE_EXP2 in a piece whose largest score is
 * `most`. */
DEV float piece_base(float most) {
    return most == -INFINITY ? 0 : __fmul_rn(most, SCORE_EXP2);
}

/* Turns scores into probabilities. sum: of the lane's probabilities of each row. */
template <int HALVES> DEV void share_weigh(float p[2][4], const float base[2], float sum[2]) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++)
                p[u][e] = exp2_fast(fmaf(p[u][e], SCORE_EXP2, -base[h]));
        sum[h] = __fadd_rn(__fadd_rn(p[0][2 * h], p[0][2 * h + 1]),
                           __fadd_rn(p[1][2 * h], p[1][2 * h + 1]));
    }
}

/* Probabilities as registers of A. */
template <int HALVES> DEV uint4 share_weights(const float p[2][4]) {
    uint4 a = {};
    a.x = pack_pair<KV_E>(p[0][0], p[0][1]);
    a.z = pack_pair<KV_E>(p[1][0], p[1][1]);
    if (HALVES == 2) {
        a.y = pack_pair<KV_E>(p[0][2], p[0][3]);
        a.w = pack_pair<KV_E>(p[1][2], p[1][3]);
    }
    return a;
}

/* A row's largest score as its state holds it. */
DEV float piece_max(float most) {
    return __fmul_rn(most, SCORE_SCALE);
}

/* ---- merging ---- */

/* Factors that combine the outputs and sums of two states, the older one first. An empty state (sum
 * 0) has no effect. */
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

/* Stores an element of a head's output. head: its number over all rows of o[T, n_heads * DV]. */
DEV void output_store(const struct cuda_task *task, uint64_t head, uint32_t d, float v) {
    if (task->flags & CUDA_OUT_PACKED)
        packed_store(task, head / QN_N_HEADS, head % QN_N_HEADS * QN_VALUE_DIM + d, v);
    else
        operand_store(task, head * QN_VALUE_DIM + d, v);
}

/* Stores elements d, which is even, and d + 1. */
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

/* Stores a lane's elements of two products of eight columns: d, d + 1, d + 8 and d + 9, as far as
 * they lie below `end`. */
DEV void output_store2x2(const struct cuda_task *task, uint64_t head, uint32_t d, uint32_t end,
                         float2 a, float2 b) {
    if (QN_VALUE_DIM % 32 == 0 && (task->flags & CUDA_OUT_PACKED)) {
        packed_store2x2(task, head / QN_N_HEADS, head % QN_N_HEADS * QN_VALUE_DIM + d, a, b);
        return;
    }
    if (d < end) output_store2(task, head, d, a);
    if (d + 8 < end) output_store2(task, head, d + 8, b);
}

DEV void output_store4(const struct cuda_task *task, uint64_t head, uint32_t d, float4 v) {
    if (task->flags & CUDA_OUT_PACKED)
        packed_store4(task, task->out, head / QN_N_HEADS, head % QN_N_HEADS * QN_VALUE_DIM + d, v);
    else
        operand_store4(task, head * QN_VALUE_DIM + d, v);
}

#endif
