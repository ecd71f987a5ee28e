/* attention_latent.cuh - LATENT: attention whose keys are latents with a turned key behind them,
 * and whose values are these latents: ATTENTION of whole contexts, ATTENTION_SPLIT of pieces.
 *
 * An item is a token row and up to 16 of its heads, which are the rows of a product, in
 * ATTENTION_SPLIT one of the row's pieces, too. All warps of a block work on it. A row of the cache
 * is read once, as key and as value:
 *
 *   before the event   the first part's positions that earlier iterations wrote are asked for
 *   after it           the others; queries, rounded ─ barrier ─ a share of 16 positions a warp:
 *                      scores, probabilities against the share's own maximum ─ barrier ─ 64
 *                      columns of the values a warp, shares in order
 *
 * A *part* is as many of a piece's positions as fit: all 128, or before Hopper half of them. Parts
 * are merged in order, pieces in order, with the operations of attention_merge.cuh, so whole and
 * split contexts have the same bits.
 *
 * Bytes: 2 * QN_KEY_DIM a position, once per item.
 *
 * Shared memory (a lease, matmul_tile.cuh):
 *
 *   0                keys [LATENT_PART][LATENT_ROW bytes]
 *   LATENT_QUERIES   [16][LATENT_ROW bytes]
 *   LATENT_PROBS     [share][32 lanes] registers of A
 *   LATENT_STATES    maxima [share][16 rows], sums [share][16 rows]
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_LATENT_CUH
#define QN_CUDA_ATTENTION_ATTENTION_LATENT_CUH

#if QN_LATENT

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/matmul/matmul_tile.cuh"

/* Bytes of a key in shared memory, whole lines; positions of a part. */
#define LATENT_ROW   cuda_latent_row(QN_KEY_DIM)
#define LATENT_PART  cuda_latent_part(QN_KEY_DIM, __CUDA_ARCH__ / 10)
#define LATENT_PAIRS ((QN_KEY_DIM + 31) / 32)
/* 64 columns of values; those of a warp. */
#define LATENT_SPANS     ((QN_VALUE_DIM + 63) / 64)
#define LATENT_OF_A_WARP ((LATENT_SPANS + WARPS - 1) / WARPS)
#define LATENT_SHARES    (LATENT_PART / SHARE_POSITIONS)
#define LATENT_QUERIES   (LATENT_PART * LATENT_ROW)
#define LATENT_PROBS     (LATENT_QUERIES + 16 * LATENT_ROW)
#define LATENT_STATES    (LATENT_PROBS + WARPS * 32 * 16)
static_assert(LATENT_PART * LATENT_ROW + cuda_latent_others(QN_KEY_DIM) <=
                  RING_BYTES + SCRATCH_BYTES,
              "the lease");

DEV char *latent_key(uint32_t in_part) {
    return shared_memory + in_part * LATENT_ROW;
}
/* A chunk of 16 bytes of a row in shared memory; rows of the cache have theirs in this order where
 * they are whole lines. */
DEV uint32_t latent_chunk(uint32_t row, uint32_t chunk) {
    return (chunk ^ latent_swap(row) / 8) * 16;
}
DEV uint4 *latent_probs(uint32_t share) {
    return (uint4 *)(shared_memory + LATENT_PROBS) + share * 32;
}
DEV float *latent_max(uint32_t share) {
    return (float *)(shared_memory + LATENT_STATES) + share * 16;
}
DEV float *latent_all(uint32_t share) {
    return latent_max(WARPS + share);
}

/* ---- a part's keys ---- */

struct latent_item {
    uint32_t row, slot, step; /* step: of heads */
    uint32_t lo, hi;          /* positions that the row sees */
    uint32_t fresh;           /* the first position of the slot that this iteration writes */
    uint32_t piece, piece_end;
};

/* Whether the row sees any position of the share that begins at `first`. */
DEV bool latent_sees(const struct latent_item *w, uint32_t first) {
    return first < w->hi && first + SHARE_POSITIONS > w->lo;
}

DEV struct latent_item latent_item_of(const struct cuda_task *task, uint32_t i) {
    const struct latent_place at = latent_place_at(SHARED, task->kind, task_window(task), i);
    struct latent_item w = {};
    uint32_t row = at.row;
    w.row = row;
    w.step = at.step;
    w.slot = row_slot(SHARED, row);
    w.hi = row_position(SHARED, row) + 1;
    w.lo = window_start(task_window(task), w.hi - 1);
    w.piece = w.lo / ATTENTION_PIECE + at.piece;
    w.piece_end = task->kind == OP_ATTENTION_SPLIT ? w.piece + 1 : (w.hi - 1) / ATTENTION_PIECE + 1;
    while (row > 0 && row_slot(SHARED, row - 1) == w.slot) row--;
    w.fresh = row_position(SHARED, row);
    return w;
}

/* A warp asks for those of its positions of the part at `first` that lie in [from, end); what no
 * row may see becomes zeros, if `clears`. */
DEV void latent_ask(const struct warp_context *c, const struct cuda_task *task,
                    const struct latent_item *w, uint32_t first, uint32_t from, uint32_t end,
                    bool clears) {
    const uint32_t mine = LATENT_PART / WARPS, chunks = QN_KEY_DIM / 8;
    const uint32_t begin = first + c->warp * mine;
    const uint32_t own = begin + c->lane % mine;
    const bool seen = own >= w->lo && own < w->hi;
    const uint32_t row = seen ? kv_row(&SHARED->batch, w->slot, own) : 0;
#pragma unroll 4
    for (uint32_t i = c->lane; i < (mine * chunks + 31) / 32 * 32; i += 32) {
        const uint32_t n = min(i / chunks, mine - 1), position = begin + n, chunk = i % chunks;
        const uint64_t at = (uint64_t)__shfl_sync(~0u, row, n) * QN_KEY_DIM + 8 * chunk;
        char *to = latent_key(position - first) +
                   (LATENT_SWAPS ? 16 * chunk : latent_chunk(position, chunk));
        if (i >= mine * chunks) continue;
        if (position >= w->hi || position < w->lo) {
            if (clears && latent_sees(w, position / SHARE_POSITIONS * SHARE_POSITIONS))
                *(uint4 *)to = make_uint4(0, 0, 0, 0);
        } else if (position >= from && position < end) {
            copy16_async(to, (const uint16_t *)task->more + at);
        }
    }
}

/* The item's queries as 16-bit floats; zeros for heads that there are not. */
DEV void latent_queries(const struct warp_context *c, const struct cuda_task *task,
                        const struct latent_item *w) {
    const uint32_t chunks = QN_KEY_DIM / 8, head0 = w->step * 16;
    for (uint32_t i = c->thread; i < 16 * chunks; i += COMPUTE_THREADS) {
        const uint32_t m = i / chunks, chunk = i % chunks;
        const bool there = head0 + m < QN_N_HEADS;
        const float *from = (const float *)task->in +
                            ((uint64_t)w->row * QN_N_HEADS + (there ? head0 + m : 0)) * QN_KEY_DIM +
                            8 * chunk;
        float4 even = load4_l2(from), odd = load4_l2(from + 4);
        if (!there) even = odd = make_float4(0, 0, 0, 0);
        *(uint4 *)(shared_memory + LATENT_QUERIES + m * LATENT_ROW + latent_chunk(m, chunk)) =
            make_uint4(pack_pair<KV_E>(even.x, even.y), pack_pair<KV_E>(even.z, even.w),
                       pack_pair<KV_E>(odd.x, odd.y), pack_pair<KV_E>(odd.z, odd.w));
    }
}

/* ---- a part's products ---- */

/* The lane's position of 16 for a score's column, as share_key_row has it. */
DEV uint32_t latent_key_row(const struct warp_context *c, int u) {
    return c->lane / 8 * 4 + 2 * u + c->lane / 4 % 2;
}

/* The warp's share of the part at `first`: probabilities, maxima, sums. */
DEV void latent_scores(const struct warp_context *c, const struct latent_item *w, uint32_t first) {
    const uint32_t share = c->warp, g = c->lane / 4;
    if (share >= LATENT_SHARES || !latent_sees(w, first + share * SHARE_POSITIONS)) return;
    const char *q = shared_memory + LATENT_QUERIES, *k = latent_key(share * SHARE_POSITIONS);
    float p[2][4] = {}, max[2], sum[2];
#pragma unroll 3
    for (int i = 0; i < LATENT_PAIRS; i++) {
        const uint32_t chunk = 4 * i + c->lane % 4;
        const bool in = QN_KEY_DIM % 32 == 0 || 8 * chunk < QN_KEY_DIM;
        uint4 a = {}, b = {};
        if (in) a = *(const uint4 *)(q + g * LATENT_ROW + latent_chunk(g, chunk));
        if (in) b = *(const uint4 *)(q + (g + 8) * LATENT_ROW + latent_chunk(g + 8, chunk));
#pragma unroll
        for (int u = 0; u < 2; u++) {
            const uint32_t row = latent_key_row(c, u);
            uint4 x = {};
            if (in) x = *(const uint4 *)(k + row * LATENT_ROW + latent_chunk(row, chunk));
            mma_16x8x16<KV_E>(p[u], make_uint4(a.x, b.x, a.y, b.y), x.x, x.y);
            mma_16x8x16<KV_E>(p[u], make_uint4(a.z, b.z, a.w, b.w), x.z, x.w);
        }
    }
    struct attention_rows rows;
    rows.lo[0] = rows.lo[1] = w->lo;
    rows.hi[0] = rows.hi[1] = w->hi;
    piece_softmax<2>(c, &rows, first + share * SHARE_POSITIONS, p, max, sum);
    latent_probs(share)[c->lane] = piece_weights<2>(p);
    if (c->lane % 4 != 0) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        latent_max(share)[g + 8 * h] = max[h];
        latent_all(share)[g + 8 * h] = sum[h];
    }
}

/* Of the lane's rows g and g + 8, and of 16 columns of each of the warp's spans: out[i][e + 2 h] is
 * column i + 8 e of row g + 8 h. */
struct latent_state {
    float max[2], sum[2];
    float out[LATENT_OF_A_WARP][8][4];
};

/* The part at `first`, for the warp's columns. */
DEV void latent_outputs(const struct warp_context *c, const struct latent_item *w, uint32_t first,
                        struct latent_state *y) {
    const uint32_t g = c->lane / 4;
    *y = {};
    y->max[0] = y->max[1] = -INFINITY;
#pragma unroll
    for (uint32_t s = 0; s < LATENT_SHARES; s++)
        if (latent_sees(w, first + s * SHARE_POSITIONS))
#pragma unroll
            for (int h = 0; h < 2; h++) y->max[h] = fmaxf(y->max[h], latent_max(s)[g + 8 * h]);
#pragma unroll 1
    for (uint32_t s = 0; s < LATENT_SHARES; s++) {
        if (!latent_sees(w, first + s * SHARE_POSITIONS)) continue;
        const uint4 weights = latent_probs(s)[c->lane];
        float factor[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            factor[h] = warp_factor(latent_max(s)[g + 8 * h], y->max[h]);
            y->sum[h] = fmaf(latent_all(s)[g + 8 * h], factor[h], y->sum[h]);
        }
#pragma unroll
        for (uint32_t n = 0; n < LATENT_OF_A_WARP; n++) {
            const uint32_t span = c->warp + n * WARPS, chunk = 8 * span + g;
            if (LATENT_SPANS % WARPS != 0 && span >= LATENT_SPANS) break;
            uint4 v[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t row = c->lane % 4 * 4 + i;
                v[i] = make_uint4(0, 0, 0, 0);
                if (QN_VALUE_DIM % 64 == 0 || 8 * chunk < QN_VALUE_DIM)
                    v[i] = *(const uint4 *)(latent_key(s * SHARE_POSITIONS + row) +
                                            latent_chunk(row, chunk));
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float of[4];
                piece_column(weights, v, i, of);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    y->out[n][i][e] = share_add(y->out[n][i][e], of[e], factor[e / 2]);
            }
        }
    }
}

/* Adds what comes next to what came before. */
DEV void latent_merge(struct latent_state *y, const struct latent_state *next) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const struct merge of = merge_factors(y->max[h], y->sum[h], next->max[h]);
        y->sum[h] = merge_value(&of, y->sum[h], next->sum[h]);
        y->max[h] = of.max;
#pragma unroll
        for (int n = 0; n < LATENT_OF_A_WARP; n++)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++)
                    y->out[n][i][e] = merge_value(&of, y->out[n][i][e], next->out[n][i][e]);
    }
}

/* ---- results ---- */

/* Columns d and d + 1 of the lane's row number h, of a span. */
DEV float2 latent_two(const struct latent_state *y, int n, int h, int d) {
    const int e = 2 * h + d / 8;
    return make_float2(y->out[n][d % 8][e], y->out[n][d % 8 + 1][e]);
}

/* A piece's state to where ATTENTION_MERGE finds it, or a context's output. */
DEV void latent_store(const struct warp_context *c, const struct cuda_task *task,
                      const struct latent_item *w, const struct latent_state *y) {
    const bool split = task->kind == OP_ATTENTION_SPLIT;
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t head = w->step * 16 + c->lane / 4 + 8 * h;
        if (head >= QN_N_HEADS) continue;
        const uint64_t at = (uint64_t)w->row * QN_N_HEADS + head;
        const struct operand to =
            operand_from(parts, (at * task->n_pieces + w->piece) * STATE_SIZE);
        const float by = reciprocal_fast(y->sum[h]);
        if (split && c->warp == 0 && c->lane % 4 == 0)
            operand_put2(to, make_float2(y->max[h], y->sum[h]));
#pragma unroll
        for (int n = 0; n < LATENT_OF_A_WARP; n++)
#pragma unroll
            for (int i = 0; i < 16; i += 2) {
                const uint32_t d = 64 * (c->warp + n * WARPS) + c->lane % 4 * 16 + i;
                const float2 v = latent_two(y, n, h, i);
                if (d >= QN_VALUE_DIM) continue;
                if (split)
                    operand_put2(operand_from(to, 2 + d), v);
                else
                    output_store2(task, at, d, make_float2(v.x * by, v.y * by));
            }
    }
}

/* ---- the task ---- */

/* What lies in the keys' memory: of the part that begins at `first` all before `end` that the row
 * sees. */
struct latent_held {
    uint32_t row, first, end;
};

/* Asks for the item's first part, as far as earlier iterations wrote it. */
DEV struct latent_held latent_ahead(const struct warp_context *c, const struct cuda_task *task,
                                    const struct latent_item *w) {
    const uint32_t begin = w->piece * ATTENTION_PIECE;
    const uint32_t first = max(begin, w->lo / LATENT_PART * LATENT_PART);
    const uint32_t end = min(min(w->fresh, w->hi), first + LATENT_PART);
    if (end <= first) return {~0u, 0, 0};
    latent_ask(c, task, w, first, first, end, false);
    return {w->row, first, end};
}

/* Parts of the item's piece at hand, which begins at `first`. */
DEV void latent_piece(const struct warp_context *c, const struct cuda_task *task,
                      const struct latent_item *w, uint32_t first, struct latent_held *held,
                      struct latent_state *y) {
#pragma unroll 1
    for (uint32_t at = first; at < first + ATTENTION_PIECE; at += LATENT_PART) {
        if (at >= w->hi) break;
        if (at + LATENT_PART <= w->lo) continue;
        const bool here = held->row == w->row && held->first == at;
        const uint32_t from = here ? held->end : at, end = min(w->hi, at + LATENT_PART);
        if (!here || from < end) latent_ask(c, task, w, at, from, end, true);
        *held = {w->row, at, end};
        copy_commit();
        copy_wait<0>();
        sync_compute();
        latent_scores(c, w, at);
        sync_compute();
        if (LATENT_PART == ATTENTION_PIECE) {
            latent_outputs(c, w, at, y);
        } else {
            struct latent_state part;
            latent_outputs(c, w, at, &part);
            latent_merge(y, &part);
        }
        sync_compute(); /* the keys and the probabilities are read */
    }
}

DEV void latent_run(const struct warp_context *c, const struct cuda_task *task,
                    const struct latent_item *w, struct latent_held *held) {
    struct latent_state all = {}, piece = {};
    latent_queries(c, task, w);
#pragma unroll 1
    for (uint32_t p = w->piece; p < w->piece_end; p++) {
        piece = {};
        latent_piece(c, task, w, p * ATTENTION_PIECE, held, &piece);
        if (task->kind == OP_ATTENTION_SPLIT) break;
        latent_merge(&all, &piece);
    }
    latent_store(c, task, w, task->kind == OP_ATTENTION_SPLIT ? &piece : &all);
}

/* A slice without items leaves the ring alone, as the loader knows. False: the launch ends. */
DEV bool run_attention_latent(struct warp_context *c, const struct cuda_task *task) {
    struct latent_held held = {~0u, 0, 0};
    struct latent_item w = {};
    uint32_t i, end;
    latent_slice(SHARED, task->kind, task_window(task), task->unit0, task->unit1, &i, &end);
    if (i < end) {
        lease_take(c);
        w = latent_item_of(task, i);
        held = latent_ahead(c, task, &w);
    }
    if (!wait_ready(c)) {
        copy_commit();
        copy_wait<0>();
        return false;
    }
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (i >= end) return true;
#pragma unroll 1
    for (;;) {
        latent_run(c, task, &w, &held);
        if (++i >= end) break;
        w = latent_item_of(task, i);
    }
    lease_give(c);
    return true;
}

#endif

#endif
