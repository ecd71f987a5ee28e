/* attention_mixed.cuh - MIXED: ATTENTION of rows that are too few for PREFILL, or of many requests:
 * whole contexts, a step at a time, two warps on each.
 *
 * Of a unit's keys (attention_mixed_parts.cuh) the two warps take every other share: scores,
 * probabilities. Those go to scratch, and after a barrier of the two each has half of the columns
 * of the values, of all positions, and what has been added up so far in registers. So warps
 * exchange probabilities, not outputs, and a block works on four steps at a time.
 *
 * Bytes: 2 * ATTENTION_PIECE * head_dim * 2 a unit.
 *
 * Scratch:   0            struct steps_unit[STEPS_UNITS] of each warp
 *            LISTS_AT     struct steps_list of each warp
 *            SHARES_AT    of each two warps max[8][16], sum[8][16] of the shares
 *            PROBS_AT     ... probabilities [8][32 lanes]
 *            FRESH_AT     of each warp a key, and half of a value
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_MIXED_CUH
#define QN_CUDA_ATTENTION_ATTENTION_MIXED_CUH

#include "kernels/cuda/attention/attention_mixed_parts.cuh"
#include "kernels/cuda/matmul/matmul_tile.cuh"

/* A lane's probabilities of a share. */
#if HEAD_HALVES > 1
typedef uint4 probs_t;
#else
typedef uint2 probs_t;
#endif

enum {
    SHARES_AT = LISTS_AT + WARPS * sizeof(struct steps_list),
    PROBS_AT = SHARES_AT + STEPS_PAIRS * 2 * 8 * 16 * 4,
    FRESH_AT = PROBS_AT + STEPS_PAIRS * 8 * 32 * sizeof(probs_t),
    FRESH_BYTES = (QN_HEAD_DIM + HALF_COLUMNS) * 2,
};
static_assert(SHARES_AT % 16 == 0 && FRESH_AT + WARPS * FRESH_BYTES <= SCRATCH_BYTES,
              "attention scratch");

/* ---- a unit ---- */

#if HEAD_HALVES > 1
DEV probs_t probs_of(uint4 weights) {
    return weights;
}
DEV uint4 weights_of(probs_t p) {
    return p;
}
#else
DEV probs_t probs_of(uint4 weights) {
    return make_uint2(weights.x, weights.z);
}
DEV uint4 weights_of(probs_t p) {
    return make_uint4(p.x, 0, p.y, 0);
}
#endif

/* Of the shares of the warp's unit: maxima and sums [8][16], the lane's probabilities, 32 apart. */
struct steps_shares {
    float *max, *sum;
    probs_t *probs;
};
DEV struct steps_shares shares_of(const struct warp_context *c) {
    float *max = (float *)(SCRATCH + SHARES_AT) + c->warp / 2 * (2 * 8 * 16);
    return {max, max + 8 * 16, (probs_t *)(SCRATCH + PROBS_AT) + c->warp / 2 * (8 * 32) + c->lane};
}

/* The key of the unit's fresh position, and the warp's half of its value after it. */
DEV char *fresh_of(const struct warp_context *c) {
    return SCRATCH + FRESH_AT + c->warp * FRESH_BYTES;
}

/* Asks for them, where the unit has one; the lane's chunks of 16 bytes. */
enum { FRESH_CHUNKS = (FRESH_BYTES / 16 + 31) / 32 };
struct steps_fresh {
    uint4 chunk[FRESH_CHUNKS];
};
DEV struct steps_fresh fresh_ask(const struct warp_context *c, const struct cuda_task *task,
                                 const struct steps_unit *unit) {
    const uint32_t key = QN_HEAD_DIM / 8; /* chunks */
    const struct attention_step *s = &unit->step;
    struct steps_fresh fresh = {};
    if (unit->fresh == ~0u) return fresh;
    const uint16_t *kv = (const uint16_t *)task->more + (uint64_t)s->kv_head * KV_HEAD_STRIDE +
                         (uint64_t)row_kv_row(SHARED, s->row0) * QN_HEAD_DIM;
#pragma unroll
    for (int n = 0; n < FRESH_CHUNKS; n++) {
        const uint32_t i = c->lane + 32 * n;
        const uint32_t column = i < key ? 8 * i : half_of(c) * HALF_COLUMNS + 8 * (i - key);
        const uint32_t at =
            i < key ? key_at(unit->fresh, column) : KV_VALUE_STRIDE + value_at(unit->fresh, column);
        if (i < FRESH_BYTES / 16 && column < QN_HEAD_DIM) fresh.chunk[n] = load_vector_l2(kv + at);
    }
    return fresh;
}

DEV void fresh_store(const struct warp_context *c, const struct steps_fresh *fresh) {
#pragma unroll
    for (int n = 0; n < FRESH_CHUNKS; n++)
        if (c->lane + 32 * n < FRESH_BYTES / 16)
            *((uint4 *)fresh_of(c) + c->lane + 32 * n) = fresh->chunk[n];
}

/* What the lane wants of a part of keys; first: position of its own share. */
DEV void part_keys(const struct warp_context *c, const struct steps_unit *unit, uint32_t slot,
                   uint32_t first, uint4 k[2][PAIRS]) {
    const uint32_t g = c->lane / 4, j = c->lane % 4;
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t row = g / 2 * 4 + 2 * u + g % 2;
        const bool fresh = first + row >= unit->fresh; /* repeated beyond */
        const char *from = fresh ? fresh_of(c) : RING + slot + row * KEY_ROW;
        const uint32_t swap = fresh ? 0 : row % 2 * 4;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            k[u][i] = make_uint4(0, 0, 0, 0);
            if (QN_HEAD_DIM % 32 == 0 || 32 * i + 8 * j < QN_HEAD_DIM)
                k[u][i] = *(const uint4 *)(from + ((4 * i + j) ^ swap) * 16);
        }
    }
}

/* ... of the values of a share, which is the part's first or second. */
DEV void part_values(const struct warp_context *c, const struct steps_unit *unit, uint32_t slot,
                     uint32_t share, uint32_t first, uint4 v[HALF_SPANS][4]) {
    const uint32_t g = c->lane / 4, j = c->lane % 4;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const bool fresh = first + 4 * j + n >= unit->fresh;
        const char *from = fresh ? fresh_of(c) + QN_HEAD_DIM * 2
                                 : RING + slot + (16 * (share % 2) + 4 * j + n) * VALUE_ROW;
        const uint32_t swap = fresh ? 0 : 2 * j;
#pragma unroll
        for (int s = 0; s < HALF_SPANS; s++) {
            const uint32_t d = 64 * s + 8 * g;
            v[s][n] = make_uint4(0, 0, 0, 0);
            if (HALF_COLUMNS % 64 != 0 && d >= HALF_COLUMNS) continue;
            v[s][n] = *(const uint4 *)(from + ((8 * s + g) ^ swap) * 16);
        }
    }
}

/* What a warp adds up, of the lane's rows and of its half of the columns, as attention_rows has
 * them: of a step, or of one of its units. */
struct steps_state {
    float max[HEAD_HALVES], sum[HEAD_HALVES];
    float out[8 * HALF_SPANS][2 * HEAD_HALVES];
};

/* The warp's share of a part of keys: its probabilities, maxima and sums. */
DEV void part_scores(const struct warp_context *c, const struct steps_unit *unit,
                     const struct attention_rows *rows, uint32_t slot, uint32_t n) {
    const struct steps_shares x = shares_of(c);
    const uint32_t share = 2 * n + half_of(c), first = unit_first(unit, share);
    if (!unit_sees(unit, first)) return;
    uint4 k[2][PAIRS];
    float p[2][4], max[2], sum[2];
    part_keys(c, unit, slot, first, k);
    piece_scores(rows, k, p);
    piece_softmax<HEAD_HALVES>(c, rows, first, p, max, sum);
    x.probs[32 * share] = probs_of(piece_weights<HEAD_HALVES>(p));
    if (c->lane % 4 != 0) return;
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        x.max[share * 16 + c->lane / 4 + 8 * h] = max[h];
        x.sum[share * 16 + c->lane / 4 + 8 * h] = sum[h];
    }
}

/* The outputs of the two shares of a part onto the unit's. */
DEV void part_outputs(const struct warp_context *c, const struct steps_unit *unit, uint32_t slot,
                      uint32_t n, struct steps_state *y) {
    const struct steps_shares x = shares_of(c);
#pragma unroll 1
    for (uint32_t share = 2 * n; share < 2 * n + 2; share++) {
        const uint32_t first = unit_first(unit, share);
        if (!unit_sees(unit, first)) continue;
        uint4 v[HALF_SPANS][4];
        float factor[HEAD_HALVES];
        part_values(c, unit, slot, share, first, v);
        const uint4 probs = weights_of(x.probs[32 * share]);
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            const uint32_t m = share * 16 + c->lane / 4 + 8 * h;
            factor[h] = warp_factor(x.max[m], y->max[h]);
            y->sum[h] = fmaf(x.sum[m], factor[h], y->sum[h]);
        }
#pragma unroll
        for (int i = 0; i < 8 * HALF_SPANS; i++) {
            float of[4];
            piece_column(probs, v[i / 8], i % 8, of);
#pragma unroll
            for (int e = 0; e < 2 * HEAD_HALVES; e++)
                y->out[i][e] = share_add(y->out[i][e], of[e], factor[e / 2]);
        }
    }
}

/* A unit's sums onto the step's. */
DEV void step_merge(struct steps_state *step, const struct steps_state *unit) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const struct merge of = merge_factors(step->max[h], step->sum[h], unit->max[h]);
        step->sum[h] = merge_value(&of, step->sum[h], unit->sum[h]);
        step->max[h] = of.max;
#pragma unroll
        for (int i = 0; i < 8 * HALF_SPANS; i++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++)
                step->out[i][e] = merge_value(&of, step->out[i][e], unit->out[i][e]);
    }
}

/* No share of the unit's keys has been seen yet. Ends with all lanes' stores. */
DEV void shares_clear(const struct warp_context *c) {
    const struct steps_shares x = shares_of(c);
    const uint32_t share = c->lane / 8 * 2 + half_of(c);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) x.max[share * 16 + c->lane % 8 + 8 * h] = -INFINITY;
    __syncwarp();
}

/* The step's outputs: of each row and span a lane has 16 columns that follow each other. */
DEV void steps_store(const struct warp_context *c, const struct cuda_task *task,
                     const struct attention_step *s, const struct steps_state *y) {
    const uint32_t begin = half_of(c) * HALF_COLUMNS;
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h, token = m / SUB_HEADS, head = m % SUB_HEADS;
        if (token >= s->n_tokens || head >= s->n_heads) continue;
        const float inv = reciprocal_fast(y->sum[h]);
        const uint32_t row = s->row0 + token;
#pragma unroll
        for (int span = 0; span < HALF_SPANS; span++) {
            const uint32_t d = 64 * span + c->lane % 4 * 16;
            const uint32_t end = min(QN_HEAD_DIM - begin, (uint32_t)HALF_COLUMNS);
            float v[16];
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] = y->out[8 * span + i % 8][2 * h + i / 8] * inv;
            if (QN_HEAD_DIM % 32 == 0 && (task->flags & CUDA_OUT_PACKED)) {
                if (d < end)
                    packed_store16(task, row, (s->head0 + head) * QN_HEAD_DIM + begin + d, v);
                continue;
            }
#pragma unroll
            for (int i = 0; i < 16; i += 4)
                if (d + i < end)
                    output_store4(task, (uint64_t)row * QN_N_HEADS + s->head0 + head, begin + d + i,
                                  make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
        }
    }
}

/* Two warps' steps. The first units are known, and asked for. */
DEV void steps_run(const struct warp_context *c, const struct cuda_task *task,
                   struct parts_cursor *ask) {
    struct steps_state step = {};
    uint32_t slot = slot_first(c);
#pragma unroll 1
    for (uint32_t u = 0; unit_of(c, u)->more; u++) {
        const struct steps_unit *unit = unit_of(c, u);
        const struct parts_range parts = parts_of(unit);
        const uint32_t n = parts.end - parts.first;
        struct steps_state y = {};
        struct attention_rows rows;
        const struct steps_fresh fresh = fresh_ask(c, task, unit);
        load_rows<HEAD_HALVES>(c, task, &unit->step, &rows);
        fresh_store(c, &fresh);
        unit_known(c, u + UNITS_AHEAD);
        shares_clear(c);
#pragma unroll 1
        for (uint32_t i = 0; i < 2 * n; i++) {
            if (i == n) {
                barrier_sync_pair(c->warp / 2);
#pragma unroll
                for (int h = 0; h < HEAD_HALVES; h++)
                    y.max[h] = most_of(shares_of(c).max, c->lane / 4 + 8 * h);
            }
            copy_wait<PART_SLOTS - 1>();
            __syncwarp();
            if (i < n)
                part_scores(c, unit, &rows, slot, parts.first + i);
            else
                part_outputs(c, unit, slot, parts.first + i - n, &y);
            __syncwarp(); /* nobody reads the slot any more */
            slot = slot_next(ask->pages, slot);
            part_next(c, task, ask);
        }
        barrier_sync_pair(c->warp / 2); /* the other one has read the probabilities, too */
        step_merge(&step, &y);
        if (unit->piece + 1 < unit->piece_end) continue;
        steps_store(c, task, &unit->step, &step);
        step = {};
    }
}

/* The first units are found, and what is in the cache asked for, before the event. False: the
 * launch ends. */
DEV bool run_attention(struct warp_context *c, const struct cuda_task *task) {
    struct parts_cursor ask = {};
    units_begin(c, task);
#pragma unroll 1
    for (uint32_t u = 1; u < UNITS_AHEAD; u++) unit_known(c, u);
    ask.slot = slot_first(c);
    ask.pages = slot_pages(c);
    cursor_enter(c, &ask, 0);
    for (uint32_t i = 0; i < STEPS_DEPTH; i++) page_acquire_after(c, i);
    parts_ask<true>(c, task, &ask);
    if (!wait_ready(c)) {
        copy_wait<0>();
        return false;
    }
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    parts_ask<false>(c, task, &ask);
    steps_run(c, task, &ask);
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    for (uint32_t i = 0; i < STEPS_DEPTH; i++) page_release(c);
    return true;
}

#endif
