/* attention_latent.cuh - LATENT: attention whose keys are latents with a turned key behind them,
 * and whose values are these latents: ATTENTION of whole contexts, ATTENTION_SPLIT of pieces.
 *
 * An item is a token row and up to 16 of its heads, which are the rows of a product, in
 * ATTENTION_SPLIT one of the row's pieces, too, and with few of them a quarter of the columns. All
 * warps of a block work on it. A row of the cache is read once, as key and as value:
 *
 *   before the event   the first part's positions that earlier iterations wrote are asked for, and
 *                      where the others will lie in the cache is looked up
 *   after it           the others are asked for; then all queries at once, rounded ─ barrier ─ a
 *                      share of 16 positions a warp: scores, probabilities against the share's own
 *                      maximum ─ barrier ─ 64 columns of the values a warp, shares in order
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
 *   LATENT_QUERIES   [16][LATENT_ROW bytes]; at last outputs [8][LATENT_OUT]
 *   LATENT_PROBS     [share][32 lanes] registers of A; before them, where each warp's positions lie
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
    uint32_t quarter, quarters;
};

/* Whether the row sees any position of the share that begins at `first`. */
DEV bool latent_sees(const struct latent_item *w, uint32_t first) {
    return first < w->hi && first + SHARE_POSITIONS > w->lo;
}

DEV struct latent_item latent_item_of(const struct cuda_task *task, uint32_t i, uint32_t quarters) {
    const struct latent_place at =
        latent_place_at(SHARED, task->kind, task_window(task), i, quarters);
    struct latent_item w = {};
    uint32_t row = at.row;
    w.quarter = at.quarter;
    w.quarters = quarters;
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

/* The lane's position, of its warp's of the part at `first`. Here the thread reads its number anew:
 * what follows from it would else stay in registers through the products. */
enum { LATENT_MINE = LATENT_PART / WARPS };
DEV uint32_t latent_own(uint32_t first) {
    return first + thread_here() / 32 * LATENT_MINE + thread_here() % 32 % LATENT_MINE;
}

/* Where in the cache it lies, if the row sees it. */
DEV uint32_t latent_own_row(const struct latent_item *w, uint32_t first) {
    const uint32_t own = latent_own(first);
    return own >= w->lo && own < w->hi ? kv_row(&SHARED->batch, w->slot, own) : 0;
}

/* By bulk copies rows come whole, in an order that the cache has only where they are whole lines.
 */
#define LATENT_IN_BULK (HAS_BULK_COPIES && QN_KEY_DIM % 64 == 0)

/* Positions of a part are asked for twice at most: before the event and after it. */
enum { LATENT_AHEAD, LATENT_REST, LATENT_ASKS };

#if LATENT_IN_BULK

/* A warp asks for those of its positions of the part at `first` that the row sees and that lie in
 * [from, end). own_row: latent_own_row. Each ask that one warp makes all make: they say so at the
 * ask's barrier. */
DEV void latent_ask(const struct cuda_task *task, const struct latent_item *w, uint32_t first,
                    uint32_t from, uint32_t end, uint32_t own_row, uint32_t ask) {
    const uint32_t own = latent_own(first), lane = thread_here() % 32;
    const bool asks = lane < LATENT_MINE && own >= max(from, w->lo) && own < min(end, w->hi);
    const uint32_t n = __popc(__ballot_sync(~0u, asks));
    uint64_t *full = &SHARED->piece_full[ask];
    share_begin(full, n * QN_KEY_DIM * 2, lane);
    if (asks)
        share_copy(latent_key(own - first),
                   (const uint16_t *)task->more + (uint64_t)own_row * QN_KEY_DIM, QN_KEY_DIM * 2,
                   full, lane);
    share_end(full, lane);
}

/* Waits for an ask of all warps. */
DEV void latent_await(uint32_t ask) {
    barrier_wait_acquire_cta(&SHARED->piece_full[ask], SHARED->pieces.phase >> ask & 1);
}

/* One thread says after a barrier behind it which asks, a bit each, have been awaited. */
DEV void latent_awaited(uint32_t asks) {
    if (thread_here() == 0) SHARED->pieces.phase ^= asks;
}

#else

/* The same by all lanes: asks are awaited together. */
DEV void latent_ask(const struct cuda_task *task, const struct latent_item *w, uint32_t first,
                    uint32_t from, uint32_t end, uint32_t own_row, uint32_t ask) {
    (void)ask;
    const uint32_t chunks = QN_KEY_DIM / 8, mine = first + thread_here() / 32 * LATENT_MINE;
    const uint32_t begin = max(max(mine, from), w->lo);
    const uint32_t last = min(min(mine + LATENT_MINE, end), w->hi);
    const uint32_t n = last > begin ? (last - begin) * chunks : 0;
#pragma unroll 1
    for (uint32_t i = thread_here() % 32; i < (n + 31) / 32 * 32; i += 32) {
        const uint32_t position = begin + min(i, n - 1) / chunks, chunk = i % chunks;
        const uint32_t row = __shfl_sync(~0u, own_row, position - mine);
        if (i < n)
            copy16_async(latent_key(position - first) +
                             (LATENT_SWAPS ? 16 * chunk : latent_chunk(position, chunk)),
                         (const uint16_t *)task->more + (uint64_t)row * QN_KEY_DIM + 8 * chunk);
    }
}

DEV void latent_await(uint32_t ask) {
    (void)ask;
    copy_commit();
    copy_wait<0>();
}
DEV void latent_awaited(uint32_t asks) {
    (void)asks;
}

#endif

/* A warp clears those of its positions of the part at `first` that the row does not see, in shares
 * of which it sees some. */
DEV void latent_clear(const struct latent_item *w, uint32_t first) {
    const uint32_t chunks = QN_KEY_DIM / 8, mine = first + thread_here() / 32 * LATENT_MINE;
    if (!latent_sees(w, mine / SHARE_POSITIONS * SHARE_POSITIONS)) return;
#pragma unroll 1
    for (uint32_t position = mine; position < mine + LATENT_MINE; position++) {
        if (position >= w->lo && position < w->hi) continue;
        for (uint32_t chunk = thread_here() % 32; chunk < chunks; chunk += 32)
            *(uint4 *)(latent_key(position - first) + latent_chunk(position, chunk)) =
                make_uint4(0, 0, 0, 0);
    }
}

/* The item's queries as 16-bit floats; zeros for heads that there are not. All of a thread's are
 * asked for at once; beyond the last chunk that one again. */
DEV void latent_queries(const struct warp_context *c, const struct cuda_task *task,
                        const struct latent_item *w) {
    constexpr uint32_t CHUNKS = QN_KEY_DIM / 8, ALL = 16 * CHUNKS;
    constexpr uint32_t N = (ALL + COMPUTE_THREADS - 1) / COMPUTE_THREADS;
    const float *in =
        (const float *)task->in + ((uint64_t)w->row * QN_N_HEADS + w->step * 16) * QN_KEY_DIM;
    const uint32_t n_heads = min(QN_N_HEADS - w->step * 16, 16u);
    float4 even[N], odd[N];
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = min(c->thread + j * COMPUTE_THREADS, ALL - 1);
        const float *from = in + min(i / CHUNKS, n_heads - 1) * QN_KEY_DIM + i % CHUNKS * 8;
        even[j] = load4_l2(from);
        odd[j] = load4_l2(from + 4);
    }
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = min(c->thread + j * COMPUTE_THREADS, ALL - 1), m = i / CHUNKS;
        const uint4 of =
            make_uint4(pack_pair<KV_E>(even[j].x, even[j].y), pack_pair<KV_E>(even[j].z, even[j].w),
                       pack_pair<KV_E>(odd[j].x, odd[j].y), pack_pair<KV_E>(odd[j].z, odd[j].w));
        if (c->thread + j * COMPUTE_THREADS >= ALL) break;
        *(uint4 *)(shared_memory + LATENT_QUERIES + m * LATENT_ROW + latent_chunk(m, i % CHUNKS)) =
            m < n_heads ? of : make_uint4(0, 0, 0, 0);
    }
}

/* ---- a part's products ---- */

/* Scores of a share to probabilities against its own maximum. */
DEV void latent_softmax(const struct warp_context *c, const struct latent_item *w, uint32_t first,
                        float p[2][4], float max[2], float all[2]) {
    const float scale = __uint_as_float(QN_SCALE_BITS);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = -INFINITY, sum = 0;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t position = first + c->lane % 4 * 4 + 2 * u + e;
                bool visible = position >= w->lo && position < w->hi;
                p[u][e + 2 * h] = visible ? __fmul_rn(p[u][e + 2 * h], scale) : -INFINITY;
                most = fmaxf(most, p[u][e + 2 * h]);
            }
        most = quad_most(most);
        const float base = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[u][e + 2 * h] = exp_fast(__fadd_rn(p[u][e + 2 * h], -base));
                sum += p[u][e + 2 * h];
            }
        max[h] = most;
        all[h] = quad_sum(sum);
    }
}

/* out = probabilities times column i of a span of v. A lane loads 16 bytes of its four positions;
 * which half of which word belongs to which mma column is sorted out with byte permutes. */
DEV void latent_column(uint4 weights, const uint4 v[4], int i, float out[4]) {
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

/* A share's value times its factor onto those of the shares before. */
DEV float latent_add(float sum, float value, float factor) {
    return fmaf(value, factor, sum);
}

DEV float latent_factor(float max, float most) {
    return max == -INFINITY ? 0 : exp_fast(max - most);
}

/* The lane's position of 16 for a score's column: its scores of 16 are of four positions that
 * follow each other. */
DEV uint32_t latent_key_row(const struct warp_context *c, int u) {
    return c->lane / 8 * 4 + 2 * u + c->lane / 4 % 2;
}

/* The warp's share of the part at `first`: probabilities, maxima, sums. */
DEV void latent_scores(const struct warp_context *c, const struct latent_item *w, uint32_t first) {
    const uint32_t share = c->warp, g = c->lane / 4;
    if (share >= LATENT_SHARES || !latent_sees(w, first + share * SHARE_POSITIONS)) return;
    const char *q = shared_memory + LATENT_QUERIES, *k = latent_key(share * SHARE_POSITIONS);
    /* A score is the sum of four chains, which do not wait for each other. */
    float chain[4][2][4] = {}, p[2][4], max[2], sum[2];
#pragma unroll 6
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
            mma_16x8x16<KV_E>(chain[i % 2 * 2][u], make_uint4(a.x, b.x, a.y, b.y), x.x, x.y);
            mma_16x8x16<KV_E>(chain[i % 2 * 2 + 1][u], make_uint4(a.z, b.z, a.w, b.w), x.z, x.w);
        }
    }
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[u][e] = (chain[0][u][e] + chain[1][u][e]) + (chain[2][u][e] + chain[3][u][e]);
    latent_softmax(c, w, first + share * SHARE_POSITIONS, p, max, sum);
    latent_probs(share)[c->lane] = share_weights<2>(p);
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

/* The maxima of the lane's two rows over the shares of the part at `first`. */
DEV void latent_most(const struct warp_context *c, const struct latent_item *w, uint32_t first,
                     float max[2]) {
    max[0] = max[1] = -INFINITY;
#pragma unroll
    for (uint32_t s = 0; s < LATENT_SHARES; s++)
        if (latent_sees(w, first + s * SHARE_POSITIONS))
#pragma unroll
            for (int h = 0; h < 2; h++) max[h] = fmaxf(max[h], latent_max(s)[c->lane / 4 + 8 * h]);
}

/* What a share's outputs are multiplied with, and its sums onto those of the rows. */
DEV void latent_factors(const struct warp_context *c, uint32_t share, const float max[2],
                        float sum[2], float factor[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = c->lane / 4 + 8 * h;
        factor[h] = latent_factor(latent_max(share)[row], max[h]);
        sum[h] = fmaf(latent_all(share)[row], factor[h], sum[h]);
    }
}

/* The part at `first`, for the warp's columns. */
DEV void latent_outputs(const struct warp_context *c, const struct latent_item *w, uint32_t first,
                        struct latent_state *y) {
    const uint32_t g = c->lane / 4;
    *y = {};
    latent_most(c, w, first, y->max);
#pragma unroll 1
    for (uint32_t s = 0; s < LATENT_SHARES; s++) {
        if (!latent_sees(w, first + s * SHARE_POSITIONS)) continue;
        const uint4 weights = latent_probs(s)[c->lane];
        float factor[2];
        latent_factors(c, s, y->max, y->sum, factor);
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
                latent_column(weights, v, i, of);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    y->out[n][i][e] = latent_add(y->out[n][i][e], of[e], factor[e / 2]);
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

/* ---- a quarter ---- */

/* Of a quarter's two spans four warps each have two columns of every eight: out[i][e + 2 h] is
 * column 8 (2 (lane % 4) + e) + 2 (warp % 4) + i of the span, of row g + 8 h. */
struct latent_quarter {
    float max[2], sum[2];
    float out[2][4];
};

/* A piece, for the warp's columns: the operations of latent_outputs. */
DEV void quarter_outputs(const struct warp_context *c, const struct latent_item *w, uint32_t first,
                         struct latent_quarter *y) {
    const uint32_t g = c->lane / 4, chunk = 8 * (w->quarter * 2 + c->warp / 4) + g;
    *y = {};
    latent_most(c, w, first, y->max);
#pragma unroll 2
    for (uint32_t s = 0; s < LATENT_SHARES; s++) {
        if (!latent_sees(w, first + s * SHARE_POSITIONS)) continue;
        const uint4 weights = latent_probs(s)[c->lane];
        float factor[2];
        uint4 v[4] = {}; /* x: the warp's two columns */
        latent_factors(c, s, y->max, y->sum, factor);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = c->lane % 4 * 4 + i;
            v[i].x = *(const uint32_t *)(latent_key(s * SHARE_POSITIONS + row) +
                                         latent_chunk(row, chunk) + c->warp % 4 * 4);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float of[4];
            latent_column(weights, v, i, of);
#pragma unroll
            for (int e = 0; e < 4; e++)
                y->out[i][e] = latent_add(y->out[i][e], of[e], factor[e / 2]);
        }
    }
}

/* Through the memory of the queries to where ATTENTION_MERGE finds them, as latent_store's. */
DEV void quarter_store(const struct warp_context *c, const struct cuda_task *task,
                       const struct latent_item *w, const struct latent_quarter *y) {
    constexpr uint32_t COLUMNS = QN_VALUE_DIM / LATENT_QUARTERS, PITCH = COLUMNS + 4;
    const uint32_t n_heads = min(QN_N_HEADS - w->step * 16, 16u);
    float *out = (float *)(shared_memory + LATENT_QUERIES);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *to = out + (c->lane / 4 + 8 * h) * PITCH;
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)(to + c->warp / 4 * 64 + (c->lane % 4 * 2 + e) * 8 + c->warp % 4 * 2) =
                make_float2(y->out[0][e + 2 * h], y->out[1][e + 2 * h]);
        if (c->warp == 0 && c->lane % 4 == 0)
            *(float2 *)(to + COLUMNS) = make_float2(y->max[h], y->sum[h]);
    }
    sync_compute();
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
    const uint64_t head0 = (uint64_t)w->row * QN_N_HEADS + w->step * 16;
    const uint64_t state = (head0 * task->n_pieces + w->piece) * STATE_SIZE;
    const uint64_t of_head = (uint64_t)task->n_pieces * STATE_SIZE;
#pragma unroll 1
    for (uint32_t i = c->thread; i < n_heads * (COLUMNS / 2); i += COMPUTE_THREADS) {
        const uint32_t m = i / (COLUMNS / 2), d = i % (COLUMNS / 2) * 2;
        operand_put2(operand_from(parts, state + m * of_head + 2 + w->quarter * COLUMNS + d),
                     *(const float2 *)(out + m * PITCH + d));
    }
    if (w->quarter == 0 && c->thread < n_heads)
        operand_put2(operand_from(parts, state + c->thread * of_head),
                     *(const float2 *)(out + c->thread * PITCH + COLUMNS));
    sync_compute(); /* the outputs are read */
}

/* ---- results ---- */

/* Outputs go through the memory of the queries, eight rows at a time, each with its maximum and sum
 * behind it. So what stores them is a short loop, and a warp stores what lies side by side: a task
 * is the first to run its code since the layer before. */
enum { LATENT_OUT = QN_VALUE_DIM + 4 }; /* floats from a row to the next */
static_assert(8 * LATENT_OUT * 4 <= 16 * LATENT_ROW, "in the memory of the queries");
DEV float *latent_out(uint32_t m) {
    return (float *)(shared_memory + LATENT_QUERIES) + m * LATENT_OUT;
}

/* The lane's row g + 8 h. */
DEV void latent_put(const struct warp_context *c, const struct latent_state *y, uint32_t h) {
    float *to = latent_out(c->lane / 4);
    if (c->warp == 0 && c->lane % 4 == 0) {
        to[QN_VALUE_DIM] = h == 0 ? y->max[0] : y->max[1];
        to[QN_VALUE_DIM + 1] = h == 0 ? y->sum[0] : y->sum[1];
    }
#pragma unroll
    for (int n = 0; n < LATENT_OF_A_WARP; n++)
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const uint32_t d = 64 * (c->warp + n * WARPS) + c->lane % 4 * 16 + i;
            float v[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                v[k] = h == 0 ? y->out[n][i % 8 + k][i / 8] : y->out[n][i % 8 + k][2 + i / 8];
            if (d < QN_VALUE_DIM) *(float4 *)(to + d) = make_float4(v[0], v[1], v[2], v[3]);
        }
}

/* A piece's state to where ATTENTION_MERGE finds it, or a context's output: of row `head` of all
 * from the row of eight at `from`, columns d and d + 1; the last two are maximum and sum. */
DEV void latent_store2(const struct cuda_task *task, const struct latent_item *w, uint64_t head,
                       const float *from, uint32_t d) {
    const float2 v = *(const float2 *)(from + d);
    if (task->kind == OP_ATTENTION_SPLIT) { /* which come first there */
        const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
        const uint64_t state = (head * task->n_pieces + w->piece) * STATE_SIZE;
        operand_put2(operand_from(parts, state + (d < QN_VALUE_DIM ? 2 + d : 0)), v);
    } else if (d < QN_VALUE_DIM) {
        const float by = reciprocal_fast(from[QN_VALUE_DIM + 1]);
        output_store2(task, head, d, make_float2(v.x * by, v.y * by));
    }
}

DEV void latent_store(const struct warp_context *c, const struct cuda_task *task,
                      const struct latent_item *w, const struct latent_state *y) {
    constexpr uint32_t PAIRS_OF_A_ROW = STATE_SIZE / 2;
    const uint64_t head0 = (uint64_t)w->row * QN_N_HEADS + w->step * 16;
    const uint32_t n_heads = min(QN_N_HEADS - w->step * 16, 16u);
#pragma unroll 1
    for (uint32_t h = 0; 8 * h < n_heads; h++) {
        const uint32_t n = min(n_heads - 8 * h, 8u) * PAIRS_OF_A_ROW;
        latent_put(c, y, h);
        sync_compute();
#pragma unroll 1
        for (uint32_t i = c->thread; i < n; i += COMPUTE_THREADS)
            latent_store2(task, w, head0 + 8 * h + i / PAIRS_OF_A_ROW,
                          latent_out(i / PAIRS_OF_A_ROW), i % PAIRS_OF_A_ROW * 2);
        sync_compute(); /* the outputs are read */
    }
}

/* ---- the task ---- */

/* What lies in the keys' memory: of the part that begins at `first` all before `end` that the row
 * sees. */
struct latent_held {
    uint32_t row, first, end;
    uint32_t asked; /* a bit for each ask that was not awaited */
};

/* Where the lane's position of that part lies in the cache, until probabilities come here: a
 * register that lasted would be one too many. */
DEV uint32_t *latent_held_row(const struct warp_context *c) {
    return (uint32_t *)latent_probs(c->warp) + c->lane;
}

/* Asks for a part's positions before `end`, and clears others. */
DEV struct latent_held latent_begin(const struct warp_context *c, const struct cuda_task *task,
                                    const struct latent_item *w, uint32_t first, uint32_t end) {
    const uint32_t own_row = latent_own_row(w, first);
    *latent_held_row(c) = own_row;
    page_copy_fence(); /* other blocks stored what bulk copies will read */
    latent_ask(task, w, first, first, end, own_row, LATENT_AHEAD);
    latent_clear(w, first);
    return {w->row, first, end, 1 << LATENT_AHEAD};
}

/* The first position of the item's first part. */
DEV uint32_t latent_first(const struct latent_item *w) {
    return max(w->piece * ATTENTION_PIECE, w->lo / LATENT_PART * LATENT_PART);
}

/* The item's first part, as far as earlier iterations wrote it. */
DEV struct latent_held latent_ahead(const struct warp_context *c, const struct cuda_task *task,
                                    const struct latent_item *w) {
    const uint32_t first = latent_first(w);
    return latent_begin(c, task, w, first, max(min(w->fresh, first + LATENT_PART), first));
}

/* Asks for what is missing of the part at `at`. */
DEV void latent_rest(const struct warp_context *c, const struct cuda_task *task,
                     const struct latent_item *w, uint32_t at, struct latent_held *held) {
    const uint32_t end = min(w->hi, at + LATENT_PART);
    if (held->row != w->row || held->first != at) {
        *held = latent_begin(c, task, w, at, end);
    } else if (held->end < end) {
        page_copy_fence();
        latent_ask(task, w, at, held->end, end, *latent_held_row(c), LATENT_REST);
        held->end = end;
        held->asked |= 1 << LATENT_REST;
    }
}

/* Waits for all that was asked for, with all warps. */
DEV void latent_arrive(struct latent_held *held) {
#pragma unroll
    for (uint32_t ask = 0; ask < LATENT_ASKS; ask++)
        if (held->asked >> ask & 1) latent_await(ask);
    sync_compute();
    latent_awaited(held->asked);
    held->asked = 0;
}

/* Parts of the item's piece at hand, which begins at `first`. */
DEV void latent_piece(const struct warp_context *c, const struct cuda_task *task,
                      const struct latent_item *w, uint32_t first, struct latent_held *held,
                      struct latent_state *y) {
#pragma unroll 1
    for (uint32_t at = first; at < first + ATTENTION_PIECE; at += LATENT_PART) {
        if (at >= w->hi) break;
        if (at + LATENT_PART <= w->lo) continue;
        latent_rest(c, task, w, at, held);
        latent_arrive(held);
        latent_scores(c, w, at);
        sync_compute();
        if (LATENT_PART == ATTENTION_PIECE) {
            latent_outputs(c, w, at, y);
        } else {
            struct latent_state part;
            latent_outputs(c, w, at, &part);
            latent_merge(y, &part);
        }
        page_copy_fence_shared(); /* bulk copies will write where these threads did */
        sync_compute();           /* the keys and the probabilities are read */
    }
}

DEV void quarter_run(const struct warp_context *c, const struct cuda_task *task,
                     const struct latent_item *w, struct latent_held *held) {
    const uint32_t first = w->piece * ATTENTION_PIECE;
    struct latent_quarter y;
    latent_arrive(held);
    latent_scores(c, w, first);
    sync_compute();
    quarter_outputs(c, w, first, &y);
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    quarter_store(c, task, w, &y);
}

DEV void latent_run(const struct warp_context *c, const struct cuda_task *task,
                    const struct latent_item *w, struct latent_held *held) {
    struct latent_state all = {}, piece = {};
    latent_rest(c, task, w, latent_first(w), held);
    latent_queries(c, task, w);
    if (LATENT_HAS_QUARTERS && w->quarters > 1) {
        quarter_run(c, task, w, held);
        return;
    }
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
    struct latent_held held = {~0u, 0, 0, 0};
    struct latent_item w = {};
    const struct latent_slice slice =
        latent_slice_of(SHARED, task->kind, task_window(task), task->unit0, task->unit1);
    const uint32_t end = slice.end;
    uint32_t i = slice.first;
    if (i < end) {
        lease_take(c);
        w = latent_item_of(task, i, slice.quarters);
        held = latent_ahead(c, task, &w);
    }
    if (!wait_ready(c)) {
        if (i < end) latent_arrive(&held);
        return false;
    }
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (i >= end) return true;
#pragma unroll 1
    for (;;) {
        latent_run(c, task, &w, &held);
        if (++i >= end) break;
        w = latent_item_of(task, i, slice.quarters);
    }
    lease_give(c);
    return true;
}

#endif

#endif
