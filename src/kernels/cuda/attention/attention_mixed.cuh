/* attention_mixed.cuh - MIXED: ATTENTION of rows that are too few for PREFILL, or of many requests:
 * whole contexts, a step at a time, two warps per step.
 *
 * Each of the two warps takes every other share of a unit's keys (attention_mixed_parts.cuh) and
 * keeps the scores. Through scratch they exchange the largest scores, then probabilities. Then each
 * processes half of the values' columns, of all positions, and keeps the sums so far in registers.
 * A block works on four steps at a time.
 *
 * Bytes: 2 * ATTENTION_PIECE * head_dim * 2 a unit.
 *
 * Scratch:   0            struct steps_unit[STEPS_UNITS] of each warp
 *            LISTS_AT     struct steps_list of each warp
 *            SHARES_AT    struct pair_shares of each two warps
 *            FRESH_AT     of each warp a key, and half of a value
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_MIXED_CUH
#define QN_CUDA_ATTENTION_ATTENTION_MIXED_CUH

#include "kernels/cuda/attention/attention_mixed_parts.cuh"
#include "kernels/cuda/matmul/matmul_tile.cuh"

/* What two warps exchange about a unit: the largest score of each one's shares in each row; the
 * lanes' sums of each share and its probabilities. */
struct pair_shares {
    float most[2][16], sum[HEAD_HALVES][WARPS][32];
    probs_t probs[WARPS][32];
};

enum {
    SHARES_AT = (LISTS_AT + WARPS * sizeof(struct steps_list) + 15) / 16 * 16,
    FRESH_AT = SHARES_AT + STEPS_PAIRS * sizeof(struct pair_shares),
    FRESH_BYTES = (QN_HEAD_DIM + HALF_COLUMNS) * 2,
};
static_assert(QN_LATENT || FRESH_AT + WARPS * FRESH_BYTES <= SCRATCH_BYTES, "attention scratch");

/* ---- a unit ---- */

DEV struct pair_shares *shares_of(const struct warp_context *c) {
    return (struct pair_shares *)(SCRATCH + SHARES_AT) + c->warp / 2;
}

/* Where the key of the unit's fresh position lies, and after it the warp's half of its value. */
DEV char *fresh_of(const struct warp_context *c) {
    return SCRATCH + FRESH_AT + c->warp * FRESH_BYTES;
}

/* Loads this key and half of the value, if the unit has a fresh position: the lane's chunks of 16
 * bytes. */
enum { FRESH_CHUNKS = (FRESH_BYTES / 16 + 31) / 32, FRESH_KEY = QN_HEAD_DIM / 8 };
struct steps_fresh {
    uint4 chunk[FRESH_CHUNKS];
};
DEV struct steps_fresh fresh_ask(const struct warp_context *c, const struct cuda_task *task,
                                 const struct steps_unit *unit) {
    const struct attention_step *s = &unit->step;
    struct steps_fresh fresh = {};
    if (unit->fresh == ~0u) return fresh;
    const uint16_t *row = (const uint16_t *)task->more + (uint64_t)s->kv_head * KV_HEAD_STRIDE +
                          (uint64_t)row_kv_row(SHARED, s->row0) * QN_HEAD_DIM;
    const char *line = kv_line(row, unit->fresh);
#pragma unroll
    for (int n = 0; n < FRESH_CHUNKS; n++) {
        const uint32_t i = c->lane + 32 * n;
        const uint32_t chunk = i < FRESH_KEY ? i : half_of(c) * (HALF_COLUMNS / 8) + i - FRESH_KEY;
        const char *from = line + (i < FRESH_KEY ? 0 : KV_VALUE_STRIDE * 2);
        if (i < FRESH_BYTES / 16 && chunk < QN_HEAD_DIM / 8)
            fresh.chunk[n] = load_vector_l2(from + kv_chunk_at(unit->fresh, chunk));
    }
    return fresh;
}

/* Stores the chunks in order, not swapped. */
DEV void fresh_store(const struct warp_context *c, const struct steps_fresh *fresh) {
#pragma unroll
    for (int n = 0; n < FRESH_CHUNKS; n++)
        if (c->lane + 32 * n < FRESH_BYTES / 16)
            *((uint4 *)fresh_of(c) + c->lane + 32 * n) = fresh->chunk[n];
}

/* The row that the lane addresses: position number n of the share that begins at `first`. The
 * share's rows lie at `share`, `pitch` bytes apart. From the fresh position on it is the fresh
 * row. */
DEV struct kv_lane part_row(const struct steps_unit *unit, const char *share, uint32_t pitch,
                            uint32_t first, uint32_t n, const char *fresh) {
    if (first + n >= unit->fresh) return {fresh, 128, 0};
    return {share + n * pitch, 128, n % 8};
}

/* A warp's state of a step or of one of its units, for the lane's rows and the warp's half of the
 * columns. out[i] has columns [16 i, 16 i + 16) of the half. */
struct steps_state {
    float max[2], sum[2];
    float out[HALF_PAIRS][2][4];
};

/* The lane's scores of the warp's shares, those of the last part last. */
struct steps_scores {
    float p[PARTS_OF_A_PIECE][2][2 * HEAD_HALVES];
};

/* The scores of the warp's share of a part. */
DEV void part_scores(const struct warp_context *c, const struct steps_unit *unit,
                     const struct attention_rows *rows, uint32_t slot, uint32_t n,
                     struct steps_scores *x) {
    const uint32_t first = unit_first(unit, 2 * n + half_of(c));
    float p[2][4];
    share_unseen(p);
    if (unit_sees(unit, first)) {
        const char *keys = RING + slot;
#pragma unroll
        for (int u = 0; u < 2; u++) { /* registers are short */
            const struct kv_lane row =
                part_row(unit, keys, KEY_ROW, first, key_row(c, u), fresh_of(c));
            p[u][0] = p[u][1] = p[u][2] = p[u][3] = 0;
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                const uint4 k = load_keys(c, &row, i);
                mma_16x8x16<KV_E>(p[u], rows->q[2 * i], k.x, k.y);
                mma_16x8x16<KV_E>(p[u], rows->q[2 * i + 1], k.z, k.w);
            }
        }
        share_mask<HEAD_HALVES>(c, rows, first, p);
    }
#pragma unroll
    for (int i = 0; i < PARTS_OF_A_PIECE; i++)
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2 * HEAD_HALVES; e++)
                x->p[i][u][e] = i + 1 < PARTS_OF_A_PIECE ? x->p[i + 1][u][e] : p[u][e];
}

/* The unit's largest scores of the lane's rows, over the shares of both warps. */
DEV void unit_most(const struct warp_context *c, const struct steps_scores *x, float most[2]) {
    struct pair_shares *shares = shares_of(c);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        most[h] = -INFINITY;
#pragma unroll
        for (int i = 0; i < PARTS_OF_A_PIECE; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) most[h] = fmaxf(most[h], x->p[i][e / 2][2 * h + e % 2]);
        most[h] = quad_most(most[h]);
        if (c->lane % 4 == 0) shares->most[half_of(c)][c->lane / 4 + 8 * h] = most[h];
    }
    barrier_sync_pair(c->warp / 2);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++)
        most[h] = fmaxf(most[h], shares->most[half_of(c) ^ 1][c->lane / 4 + 8 * h]);
}

/* Stores probabilities of the unit's parts for both warps, its maxima and sums in y. */
DEV void unit_probs(const struct warp_context *c, const struct parts_range *parts,
                    const struct steps_scores *x, struct steps_state *y) {
    struct pair_shares *shares = shares_of(c);
    float most[2] = {}, base[2] = {}, sum[2];
    unit_most(c, x, most);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        base[h] = piece_base(most[h]);
        y->max[h] = piece_max(most[h]);
    }
#pragma unroll
    for (int i = 0; i < PARTS_OF_A_PIECE; i++) {
        const uint32_t n = parts->end + i - PARTS_OF_A_PIECE, share = 2 * n + half_of(c);
        float p[2][4] = {};
        if (parts->end + i < parts->first + PARTS_OF_A_PIECE) continue; /* no such part */
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2 * HEAD_HALVES; e++) p[u][e] = x->p[i][u][e];
        share_weigh<HEAD_HALVES>(p, base, sum);
        shares->probs[share][c->lane] = probs_of(share_weights<HEAD_HALVES>(p));
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) shares->sum[h][share][c->lane] = sum[h];
    }
    barrier_sync_pair(c->warp / 2);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        float all = 0;
#pragma unroll
        for (uint32_t s = 0; s < WARPS; s++)
            if (s >= 2 * parts->first && s < 2 * parts->end)
                all = __fadd_rn(all, shares->sum[h][s][c->lane]);
        y->sum[h] = quad_sum(all);
    }
}

/* Adds the outputs of a part's two shares to the unit's. */
DEV void part_outputs(const struct warp_context *c, const struct steps_unit *unit, uint32_t slot,
                      uint32_t n, struct steps_state *y) {
#pragma unroll 1
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t share = 2 * n + i, first = unit_first(unit, share);
        if (!unit_sees(unit, first)) continue;
        const uint4 weights = weights_of(shares_of(c)->probs[share][c->lane]);
        const struct kv_lane row = part_row(unit, RING + slot + i * 16 * VALUE_ROW, VALUE_ROW,
                                            first, value_row(c), fresh_of(c) + QN_HEAD_DIM * 2);
#pragma unroll
        for (int pair = 0; pair < HALF_PAIRS; pair++)
            share_outputs(weights, load_values(c, &row, pair, HALF_COLUMNS / 8), y->out[pair]);
    }
}

/* Merges a unit's state into the step's. */
DEV void step_merge(struct steps_state *step, const struct steps_state *unit) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const struct merge of = merge_factors(step->max[h], step->sum[h], unit->max[h]);
        step->sum[h] = merge_value(&of, step->sum[h], unit->sum[h]);
        step->max[h] = of.max;
#pragma unroll
        for (int i = 0; i < HALF_PAIRS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *to = &step->out[i][e / 2][2 * h + e % 2];
                *to = merge_value(&of, *to, unit->out[i][e / 2][2 * h + e % 2]);
            }
    }
}

/* Stores the step's outputs. */
DEV void steps_store(const struct warp_context *c, const struct cuda_task *task,
                     const struct attention_step *s, const struct steps_state *y) {
    const uint32_t begin = half_of(c) * HALF_COLUMNS;
    const uint32_t end = min(begin + HALF_COLUMNS, (uint32_t)QN_HEAD_DIM);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h, token = m / SUB_HEADS, head = m % SUB_HEADS;
        if (token >= s->n_tokens || head >= s->n_heads) continue;
        const float inv = reciprocal_fast(y->sum[h]);
        const uint64_t at = (uint64_t)(s->row0 + token) * QN_N_HEADS + s->head0 + head;
#pragma unroll
        for (int i = 0; i < HALF_PAIRS; i++) {
            const float *lo = &y->out[i][0][2 * h], *hi = &y->out[i][1][2 * h];
            output_store2x2(task, at, begin + 16 * i + c->lane % 4 * 2, end,
                            make_float2(lo[0] * inv, lo[1] * inv),
                            make_float2(hi[0] * inv, hi[1] * inv));
        }
    }
}

/* Runs two warps' steps. The first units are known, and their parts requested. */
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
        struct steps_scores scores;
        struct attention_rows rows;
        const struct steps_fresh fresh = fresh_ask(c, task, unit);
        load_rows<HEAD_HALVES>(c, task, &unit->step, &rows);
        fresh_store(c, &fresh);
        unit_known(c, u + UNITS_AHEAD);
#pragma unroll
        for (int i = 0; i < PARTS_OF_A_PIECE * 4 * HEAD_HALVES; i++)
            (&scores.p[0][0][0])[i] = -INFINITY;
#pragma unroll 1
        for (uint32_t i = 0; i < 2 * n; i++) {
            if (i == n) unit_probs(c, &parts, &scores, &y);
            copy_wait<PART_SLOTS - 1>();
            __syncwarp();
            if (i < n)
                part_scores(c, unit, &rows, slot, parts.first + i, &scores);
            else
                part_outputs(c, unit, slot, parts.first + i - n, &y);
            __syncwarp(); /* no lane reads the slot any more */
            slot = slot_next(ask->pages, slot);
            part_next(c, task, ask);
        }
        barrier_sync_pair(c->warp / 2); /* the other warp has read the probabilities, too */
        step_merge(&step, &y);
        if (unit->piece + 1 < unit->piece_end) continue;
        steps_store(c, task, &unit->step, &step);
        step = {};
    }
}

/* Finds the first units, and requests what is already in the cache, before the event. False: the
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
    for (uint32_t i = 0; i < STEPS_DEPTH; i++) page_release(c);
    return true;
}

#endif
