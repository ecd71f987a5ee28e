/* attention.cuh - ATTENTION, and the arithmetic of all attention.
 *
 * A context is attended to in pieces of ATTENTION_PIECE positions with absolute bounds; warp w
 * takes positions [16 w, 16 w + 16) of a piece, straight from the cache into tensor core registers.
 * The warps' softmax states are merged in order of w, pieces in order of position, so the bits of a
 * row depend on its position only, not on what else is in the batch, and the whole and the split
 * form (attention_split.cuh, attention_combine.cuh) agree.
 *
 * One step handles up to 16 query rows that share a KV head: the heads of its group, for one token
 * (decode) or for as many tokens of the same request as fit (prefill). Row m of the step is token
 * m / SUB_HEADS, head m % SUB_HEADS.
 *
 * Bytes: a piece of one KV head is 2 * ATTENTION_PIECE * head_dim * 2, read once per step.
 *
 * Scratch:   0            max[8][16], sum[8][16] of the warps
 *            FACTORS_AT   struct merge[16]: of a row's old state and this piece
 *            WORK_AT      struct attention_work: the step at hand, the next
 *            STATE_AT     state[16][head_dim + 2] of ATTENTION
 *            OUTPUTS_AT   outputs of the warps [8][rows][chunk + 4], a chunk of columns at a time
 */
#ifndef QN_CUDA_COMMON_ATTENTION_CUH
#define QN_CUDA_COMMON_ATTENTION_CUH

#include "kernels/cuda/common/kv_walk.cuh"
#include "kernels/cuda/common/trace.cuh"

#define STEP_TOKENS (16 / SUB_HEADS)
#define PAIRS       ((QN_HEAD_DIM + 31) / 32) /* 32 columns of q and k: two mma steps */
#define SPANS       ((QN_HEAD_DIM + 63) / 64) /* 64 columns of v: eight mma columns */
#define STATE_SIZE  (QN_HEAD_DIM + 2)         /* max, sum, unnormalised output */
#define FACTORS_AT  1024
#define WORK_AT     1216
#define STATE_AT    1472
#define OUTPUTS_AT  ((STATE_AT + 16 * STATE_SIZE * 4 + 15) / 16 * 16)
static_assert(OUTPUTS_AT + WARPS * 16 * 36 * 4 <= SCRATCH_BYTES, "attention scratch");

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

DEV void load_rows(const struct warp_context *c, const struct attention_step *s, const float *q,
                   struct attention_rows *r) {
    const float *from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t m = c->lane / 4 + 8 * h, token = m / SUB_HEADS, head = m % SUB_HEADS;
        bool exists = token < s->n_tokens && head < s->n_heads;
        uint32_t row = s->row0 + (exists ? token : 0);
        uint32_t position = row_position(SHARED, row);
        from[h] =
            exists ? q + ((uint64_t)row * QN_N_HEADS + s->head0 + head) * QN_HEAD_DIM : nullptr;
        r->lo[h] = exists ? window_start(position) : 0;
        r->hi[h] = exists ? position + 1 : 0;
    }
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        float4 v[2][2];
        uint32_t d = 32 * p + c->lane % 4 * 8;
#pragma unroll
        for (int h = 0; h < 2; h++) {
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

/* A warp's softmax state over its 16 positions, for the lane's two rows. */
struct attention_part {
    float max[2], sum[2];
    float out[8 * SPANS][4]; /* column i + 8 * span: see store_chunk */
};

DEV void part_clear(struct attention_part *part) {
    part->max[0] = part->max[1] = -INFINITY;
    part->sum[0] = part->sum[1] = 0;
#pragma unroll
    for (int i = 0; i < 8 * SPANS; i++)
        part->out[i][0] = part->out[i][1] = part->out[i][2] = part->out[i][3] = 0;
}

/* Element offsets in the layer's cache of k of the warp's positions: lane l < 16 has position l. */
DEV uint64_t position_offset(const struct warp_context *c, const struct attention_step *s,
                             uint32_t first) {
    uint32_t position = min(first + c->lane % 16, s->hi - 1); /* beyond: repeats, masked later */
    uint64_t row = kv_row(&SHARED->batch, s->slot, position);
    return row * QN_HEAD_DIM + (uint64_t)s->kv_head * KV_HEAD_STRIDE;
}

DEV void load_keys(const struct warp_context *c, const uint16_t *kv, uint64_t offset,
                   uint4 k[2][PAIRS]) {
    const uint32_t g = c->lane / 4, j = c->lane % 4;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint16_t *row = kv + __shfl_sync(~0u, offset, g / 2 * 4 + 2 * u + g % 2);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            uint32_t d = 32 * i + 8 * j;
            k[u][i] = d < QN_HEAD_DIM ? load_vector_l2(row + d) : make_uint4(0, 0, 0, 0);
        }
    }
}

DEV void load_values(const struct warp_context *c, const uint16_t *kv, uint64_t offset,
                     uint4 v[SPANS][4]) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint16_t *row = kv + __shfl_sync(~0u, offset, c->lane % 4 * 4 + n) + KV_VALUE_STRIDE;
#pragma unroll
        for (int i = 0; i < SPANS; i++) {
            uint32_t d = 64 * i + c->lane / 4 * 8;
            v[i][n] = d < QN_HEAD_DIM ? load_vector_l2(row + d) : make_uint4(0, 0, 0, 0);
        }
    }
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

/* Scores to probabilities against the warp's own maximum. HALVES: 1 where rows g + 8 do not exist.
 * Each operation is rounded by itself, so that all callers get the same bits. */
template <int HALVES>
DEV void piece_softmax(const struct warp_context *c, const struct attention_rows *r, uint32_t first,
                       float p[2][4], struct attention_part *part) {
    const float scale = 1.0f / sqrtf((float)QN_HEAD_DIM);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t position = first + c->lane % 4 * 4 + 2 * u + e;
                bool visible = position >= r->lo[h] && position < r->hi[h];
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
        part->max[h] = most;
        part->sum[h] = sum;
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

template <int HALVES>
DEV void piece_output(const uint4 v[SPANS][4], const float p[2][4], struct attention_part *part) {
    const uint4 weights = piece_weights<HALVES>(p);
#pragma unroll
    for (int s = 0; s < SPANS; s++)
#pragma unroll
        for (int i = 0; i < 8; i++) piece_column(weights, v[s], i, part->out[8 * s + i]);
}

/* This warp's share of a piece. */
DEV void piece_warp(const struct warp_context *c, const struct attention_step *s, const float *q,
                    const uint16_t *kv, uint32_t piece, uint64_t offset,
                    struct attention_part *part) {
    const uint32_t first = piece * ATTENTION_PIECE + 16 * c->warp;
    if (first >= s->hi || first + 16 <= s->lo) {
        part_clear(part);
        return;
    }
    uint4 v[SPANS][4], k[2][PAIRS];
    load_values(c, kv, offset, v);
    load_keys(c, kv, offset, k);
    struct attention_rows rows; /* again for every piece: too many registers to keep */
    load_rows(c, s, q, &rows);
    float p[2][4];
    piece_scores(&rows, k, p);
    piece_softmax<2>(c, &rows, first, p, part);
    piece_output<2>(v, p, part);
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
    return __fadd_rn(__fmul_rn(old_value, m->old_factor), __fmul_rn(value, m->factor));
}

/* The lane's outputs of columns [at, at + size) to scratch: lane 4 g + j has, per span, columns
 * 16 j ... 16 j + 15 of rows g and g + 8. */
DEV void store_chunk(const struct warp_context *c, uint32_t share,
                     const struct attention_part *part, const float *factor, float *to,
                     uint32_t n_rows, uint32_t at, uint32_t size) {
    const uint32_t stride = size + 4;
#pragma unroll
    for (int s = 0; s < SPANS; s++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t m = c->lane / 4 + 8 * h, d = 64 * s + c->lane % 4 * 16 - at;
            if (m >= n_rows || d >= size) continue;
            float *row = to + (share * n_rows + m) * stride + d;
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int i = 0; i < 8; i += 4)
                    *(float4 *)(row + 8 * half + i) =
                        make_float4(part->out[8 * s + i][2 * h + half] * factor[h],
                                    part->out[8 * s + i + 1][2 * h + half] * factor[h],
                                    part->out[8 * s + i + 2][2 * h + half] * factor[h],
                                    part->out[8 * s + i + 3][2 * h + half] * factor[h]);
        }
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

/* The sum of a row over the warps, in order. */
DEV float merged_sum(const float *all_max, const float *all_sum, uint32_t m, float most) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum = fmaf(all_sum[w * 16 + m], warp_factor(all_max[w * 16 + m], most), sum);
    return sum;
}

/* Maximum and sum of a row over the warps into its state, one thread per row, with the factors that
 * its outputs need left in `factors`. */
DEV void merge_row(const struct attention_step *s, float *state, const float *all_max,
                   const float *all_sum, uint32_t m, struct merge *factors) {
    const float most = most_of(all_max, m), sum = merged_sum(all_max, all_sum, m, most);
    if (m % SUB_HEADS >= s->n_heads) return;
    state += m * STATE_SIZE;
    factors[m] = merge_factors(state[0], state[1], most);
    state[1] = merge_value(&factors[m], state[1], sum);
    state[0] = factors[m].max;
}

/* One output of a row, summed over the warps in order. */
DEV void merge_output(float *state, const float *outputs, uint32_t warp_stride, uint32_t m,
                      uint32_t d, const struct merge *factors) {
    float v[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) v[w] = outputs[w * warp_stride];
#pragma unroll
    for (int w = 1; w < WARPS; w++) v[0] += v[w];
    state += m * STATE_SIZE + 2 + d;
    *state = merge_value(&factors[m], *state, v[0]);
}

/* Merges the warps' states of a piece into the rows' states. Ends with a barrier. */
DEV void piece_merge(const struct warp_context *c, const struct attention_step *s,
                     const struct attention_part *part, float *state) {
    float *all_max = (float *)SCRATCH, *all_sum = all_max + WARPS * 16;
    struct merge *factors = (struct merge *)(SCRATCH + FACTORS_AT);
    float *outputs = (float *)(SCRATCH + OUTPUTS_AT);
    const uint32_t n_rows = s->n_tokens * SUB_HEADS;
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            all_max[c->warp * 16 + c->lane / 4 + 8 * h] = part->max[h];
            all_sum[c->warp * 16 + c->lane / 4 + 8 * h] = part->sum[h];
        }
    sync_compute();
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        factor[h] = warp_factor(part->max[h], most_of(all_max, c->lane / 4 + 8 * h));
    if (c->thread < n_rows) merge_row(s, state, all_max, all_sum, c->thread, factors);
    const uint32_t size = n_rows > 8 ? 32 : n_rows > 4 ? 64 : 128, stride = size + 4;
#pragma unroll 1
    for (uint32_t at = 0; at < QN_HEAD_DIM; at += size) {
        store_chunk(c, c->warp, part, factor, outputs, n_rows, at, size);
        sync_compute();
        for (uint32_t i = c->thread; i < n_rows * size; i += COMPUTE_THREADS) {
            uint32_t m = i / size, d = i % size;
            if (at + d >= QN_HEAD_DIM || m % SUB_HEADS >= s->n_heads) continue;
            merge_output(state, outputs + m * stride + d, n_rows * stride, m, at + d, factors);
        }
        sync_compute();
    }
}

/* ---- ATTENTION: whole contexts ---- */

/* How many of the token rows from `row` on, below `end`, belong to one slot. */
DEV uint32_t same_slot(const struct block_shared *b, uint32_t row, uint32_t end) {
    uint32_t slot = row_slot(b, row), n = 1;
    while (row + n < end && row_slot(b, row + n) == slot) n++;
    return n;
}

DEV void step_range(const struct block_shared *b, struct attention_step *s) {
    s->slot = row_slot(b, s->row0);
    s->lo = ~0u;
    s->hi = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        uint32_t position = row_position(b, s->row0 + i);
        s->lo = min(s->lo, window_start(position));
        s->hi = max(s->hi, position + 1);
    }
}

DEV void step_heads(struct attention_step *s, uint32_t kv_head, uint32_t sub) {
    s->kv_head = kv_head;
    s->head0 = kv_head * GROUP_HEADS + sub * SUB_HEADS;
    s->n_heads = min((uint32_t)SUB_HEADS, GROUP_HEADS - sub * SUB_HEADS);
}

/* Elements of a head's output from d on; head: counted over all rows of o[T, n_heads * D]. */
DEV void output_store(const struct cuda_task *task, uint64_t head, uint32_t d, float v) {
    if (task->flags & CUDA_OUT_PACKED)
        packed_store(task, head / QN_N_HEADS, head % QN_N_HEADS * QN_HEAD_DIM + d, v);
    else
        act_store(task, head * QN_HEAD_DIM + d, v);
}

DEV void output_store4(const struct cuda_task *task, uint64_t head, uint32_t d, float4 v) {
    if (task->flags & CUDA_OUT_PACKED)
        packed_store4(task, task->out, head / QN_N_HEADS, head % QN_N_HEADS * QN_HEAD_DIM + d, v);
    else
        act_store4(task, head * QN_HEAD_DIM + d, v);
}

DEV void store_outputs(const struct warp_context *c, const struct cuda_task *task,
                       const struct attention_step *s, const float *state) {
    for (uint32_t i = c->thread; i < s->n_tokens * SUB_HEADS * QN_HEAD_DIM; i += COMPUTE_THREADS) {
        uint32_t m = i / QN_HEAD_DIM, d = i % QN_HEAD_DIM, head = m % SUB_HEADS;
        if (head >= s->n_heads) continue;
        const float *from = state + m * STATE_SIZE;
        uint64_t row = (uint64_t)(s->row0 + m / SUB_HEADS) * QN_N_HEADS + s->head0 + head;
        output_store(task, row, d, from[2 + d] * reciprocal_fast(from[1]));
    }
}

/* Where a task is in its list of items. */
struct attention_list {
    uint64_t item, last;   /* of this task */
    uint32_t row, row_end; /* rows left of the item */
    uint32_t tokens;       /* of an item: a step has as many, if they are of one request */
};

/* Items are of fewer tokens where there would be one for half of the tasks at most. */
DEV struct attention_list list_begin(const struct cuda_task *task) {
    struct attention_list l = {0, 0, 0, 0, STEP_TOKENS};
    const uint32_t n_rows = SHARED->batch.rows.n_rows;
    while (l.tokens > 1 && 2 * ceil_div(n_rows, l.tokens) * HEAD_STEPS <= task->unit1)
        l.tokens /= 2;
    const uint64_t n = ceil_div(n_rows, l.tokens);
    prog_slice(n * HEAD_STEPS, task->unit0, task->unit1, &l.item, &l.last);
    return l;
}

/* The step at work, its pieces, the list: the same for all threads, in scratch. */
struct attention_work {
    struct attention_list list;
    struct attention_step step;
    uint32_t piece, piece_end;
    uint32_t more; /* whether there is a step */
};
static_assert(WORK_AT + 2 * sizeof(struct attention_work) <= STATE_AT, "attention scratch");

/* All of a step's pieces. */
DEV void step_run(const struct warp_context *c, const struct cuda_task *task,
                  const struct attention_work *w, uint64_t offset, float *state) {
    const struct attention_step *s = &w->step;
#pragma unroll 1
    for (uint32_t piece = w->piece; piece < w->piece_end; piece++) {
        struct attention_part part;
        piece_warp(c, s, (const float *)task->in, (const uint16_t *)task->more, piece, offset,
                   &part);
        if (piece + 1 < w->piece_end)
            offset = position_offset(c, s, (piece + 1) * ATTENTION_PIECE + 16 * c->warp);
        piece_merge(c, s, &part, state);
    }
}

/* The list's next step. */
DEV void list_next(const struct block_shared *b, struct attention_work *w) {
    struct attention_list *l = &w->list;
    struct attention_step *s = &w->step;
    const uint32_t head = (uint32_t)l->item % HEAD_STEPS;
    if (l->row == l->row_end) {
        l->row = (uint32_t)l->item / HEAD_STEPS * l->tokens;
        l->row_end = min(l->row + l->tokens, b->batch.rows.n_rows);
    }
    s->row0 = l->row;
    s->n_tokens = same_slot(b, l->row, l->row_end);
    step_range(b, s);
    w->piece = s->lo / ATTENTION_PIECE;
    w->piece_end = (s->hi - 1) / ATTENTION_PIECE + 1;
    l->row += s->n_tokens;
    if (l->row == l->row_end) l->item++;
    step_heads(s, head / SUBS, head % SUBS);
}

/* The step after those that *list tells of. One thread. */
DEV void work_find(struct attention_work *w, const struct attention_list *list) {
    w->list = *list;
    w->more = w->list.item < w->list.last;
    if (w->more) list_next(SHARED, w);
}

/* Where the step's first piece lies in the cache. */
DEV uint64_t work_offset(const struct warp_context *c, const struct attention_work *w) {
    return w->more ? position_offset(c, &w->step, w->piece * ATTENTION_PIECE + 16 * c->warp) : 0;
}

/* Which step is first, and where its first piece lies in the cache, is found before the event, and
 * of each other one while the one before runs: by the last warp, which of a short piece has least.
 * False: the launch ends. */
DEV bool run_attention(struct warp_context *c, const struct cuda_task *task) {
    struct attention_work *works = (struct attention_work *)(SCRATCH + WORK_AT), *w = works;
    float *state = (float *)(SCRATCH + STATE_AT);
    const bool finds = c->thread == COMPUTE_THREADS - 32;
    if (finds) {
        const struct attention_list all = list_begin(task);
        work_find(w, &all);
    }
    sync_compute();
    uint64_t offset = work_offset(c, w);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
#pragma unroll 1
    for (uint32_t n = 1; w->more; n++) {
        struct attention_work *next = &works[n % 2];
        const uint32_t size = w->step.n_tokens * SUB_HEADS * STATE_SIZE;
        for (uint32_t i = c->thread; i < size; i += COMPUTE_THREADS) state[i] = 0;
        if (finds) work_find(next, &w->list);
        step_run(c, task, w, offset, state);
        offset = work_offset(c, next);
        store_outputs(c, task, &w->step, state);
        w = next;
        sync_compute(); /* scratch is free again */
    }
    packed_fence(task);
    return true;
}

#endif
