/* attention_latent.cuh - LATENT: the arithmetic of attention whose keys are latents with a turned
 * key behind them, and whose values are these latents.
 *
 * Up to 16 heads of a token row are the rows of a product. All warps of a block work on a *part* of
 * the context: as many of a piece's positions as fit, all 128, or before Hopper half of them. A row
 * of the cache is read once, as key and as value:
 *
 *   all queries, rounded ─ barrier ─ scores of a share of 16 positions per warp ─ barrier ─ their
 *   probabilities, relative to the part's largest score ─ barrier ─ 64 columns of the values per
 *   warp, in one chain of products over the shares
 *
 * Parts are merged in order, pieces in order, with the operations of attention_merge.cuh. Two forms
 * share these operations, so whole and split contexts have the same bits:
 *
 *   attention_latent_pages.cuh   ATTENTION_SPLIT on Hopper: positions are loaded as pages
 *   attention_latent_lease.cuh   all else: the ring is leased, compute warps load positions
 *
 * Bytes: 2 * QN_KEY_DIM a position, once per item.
 *
 * Shared memory beside the positions:
 *
 *   LATENT_QUERIES   a share's bytes: 16 rows
 *   LATENT_WARPS     struct piece_shares
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_LATENT_CUH
#define QN_CUDA_ATTENTION_ATTENTION_LATENT_CUH

#if QN_LATENT

#include "kernels/cuda/attention/attention_share.cuh"
#include "kernels/cuda/matmul/matmul_tile.cuh"

/* Positions and shares of a part; lines of 64 columns of the values, in all and per warp. */
#define LATENT_PART        cuda_latent_part(QN_KEY_DIM, __CUDA_ARCH__ / 10)
#define LATENT_SHARES      (LATENT_PART / SHARE_POSITIONS)
#define LATENT_VALUES      ((QN_VALUE_DIM + 63) / 64)
#define LATENT_OF_A_WARP   ((LATENT_VALUES + WARPS - 1) / WARPS)

#define LATENT_SHARE_BYTES (LATENT_LINES * LATENT_PLANE)
#define LATENT_QUERIES     (QN_HAS_latent_pages ? RING_BYTES : LATENT_SHARES * LATENT_SHARE_BYTES)
#define LATENT_WARPS       (LATENT_QUERIES + LATENT_SHARE_BYTES)
static_assert(LATENT_SHARE_BYTES + sizeof(struct piece_shares) <= cuda_latent_others(QN_KEY_DIM),
              "the host's bytes");
static_assert(LATENT_PLANE == SHARE_POSITIONS * 128, "kv.cuh");

DEV struct piece_shares *latent_warps(void) {
    return (struct piece_shares *)(shared_memory + LATENT_WARPS);
}

/* The positions that a row sees: [lo, hi). */
struct latent_sight {
    uint32_t lo, hi;
};
/* Whether it sees any position of the share that begins at `first`. */
DEV bool latent_sees(struct latent_sight w, uint32_t first) {
    return first < w.hi && first + SHARE_POSITIONS > w.lo;
}

/* Where a line of a share of the part begins: in the warps' next pages, or in the lease. */
template <bool PAGED>
DEV char *latent_line(const struct warp_context *c, uint32_t share, uint32_t line) {
    if (!PAGED) return shared_memory + share * LATENT_SHARE_BYTES + line * LATENT_PLANE;
    return RING + share_at(share_pages(c, line / LATENT_PAGE_LINES), share) +
           line % LATENT_PAGE_LINES * LATENT_PLANE;
}

/* Clears positions [begin, end) of a share, by one warp. Their weights are zero, but zero times NaN
 * is NaN. In a line positions follow each other, 128 bytes each. */
template <bool PAGED>
DEV void latent_zero(const struct warp_context *c, uint32_t share, uint32_t begin, uint32_t end) {
    const uint32_t from = begin % SHARE_POSITIONS * 128;
#pragma unroll 1
    for (uint32_t at = c->lane * 16; at < (end - begin) * 128; at += 512)
#pragma unroll
        for (uint32_t line = 0; line < LATENT_LINES; line++)
            *(uint4 *)(latent_line<PAGED>(c, share, line) + from + at) = make_uint4(0, 0, 0, 0);
}

/* ---- queries ---- */

enum { LATENT_FULL_STEPS = QN_N_HEADS % 16 == 0 }; /* every step of heads has 16 */

/* Chunks of eight columns of a thread's queries, of 16 heads: where they lie in the input, and in
 * shared memory, in bytes. They are found before the event. Past the end the last chunk is
 * repeated. */
enum {
    LATENT_CHUNKS = 16 * QN_KEY_DIM / 8, /* of all threads */
    LATENT_EACH = (LATENT_CHUNKS + COMPUTE_THREADS - 1) / COMPUTE_THREADS,
};
struct latent_chunks {
    uint32_t from[LATENT_EACH], to[LATENT_EACH];
};

DEV struct latent_chunks latent_chunks_of(const struct warp_context *c) {
    struct latent_chunks q;
#pragma unroll
    for (uint32_t j = 0; j < LATENT_EACH; j++) {
        const uint32_t i = min(c->thread + j * COMPUTE_THREADS, LATENT_CHUNKS - 1u);
        const uint32_t m = i / (QN_KEY_DIM / 8), chunk = i % (QN_KEY_DIM / 8);
        q.from[j] = (m * QN_KEY_DIM + chunk * 8) * 4;
        q.to[j] = LATENT_QUERIES + latent_chunk_at(m, chunk);
        KEEP(q.from[j]);
        KEEP(q.to[j]);
    }
    return q;
}

/* Stores the row's queries of a step of heads as 16-bit floats, and zeros for missing heads. A
 * thread loads all its chunks at once. */
DEV void latent_queries(const struct warp_context *c, const struct cuda_task *task,
                        const struct latent_chunks *q, uint32_t row, uint32_t step) {
    const char *in =
        (const char *)task->in + ((uint64_t)row * QN_N_HEADS + step * 16) * QN_KEY_DIM * 4;
    const uint32_t end = min(QN_N_HEADS - step * 16, 16u) * QN_KEY_DIM * 4;
    float4 even[LATENT_EACH], odd[LATENT_EACH];
#pragma unroll
    for (uint32_t j = 0; j < LATENT_EACH; j++) {
        const char *from = in + (LATENT_FULL_STEPS ? q->from[j] : min(q->from[j], end - 32));
        even[j] = load4_l2((const float *)from);
        odd[j] = load4_l2((const float *)from + 4);
    }
#pragma unroll
    for (uint32_t j = 0; j < LATENT_EACH; j++) {
        const uint4 of =
            make_uint4(pack_pair<KV_E>(even[j].x, even[j].y), pack_pair<KV_E>(even[j].z, even[j].w),
                       pack_pair<KV_E>(odd[j].x, odd[j].y), pack_pair<KV_E>(odd[j].z, odd[j].w));
        if (c->thread + j * COMPUTE_THREADS >= LATENT_CHUNKS) break;
        *(uint4 *)(shared_memory + q->to[j]) =
            LATENT_FULL_STEPS || q->from[j] < end ? of : make_uint4(0, 0, 0, 0);
    }
}

/* ---- scores ---- */

/* Scores of a share, laid out as in share_scores. Each is the sum of four independent chains. Steps
 * of 16 columns go to the chains in turn. */
template <bool PAGED>
DEV void latent_scores(const struct warp_context *c, uint32_t share, float p[2][4]) {
    constexpr uint32_t STEPS = (QN_KEY_DIM + 15) / 16;
    const uint32_t q = LATENT_QUERIES + latent_chunk_at(c->lane % 16, c->lane / 16);
    const uint32_t k = latent_chunk_at(c->lane / 16 * 8 + c->lane % 8, c->lane / 8 % 2);
    float chain[4][2][4] = {};
#pragma unroll 1
    for (uint32_t first = 0; first < LATENT_LINES; first += LATENT_PAGE_LINES) {
        const char *queries = shared_memory + first * LATENT_PLANE;
        const char *keys = latent_line<PAGED>(c, share, first);
#pragma unroll
        for (uint32_t i = 0; i < 4 * LATENT_PAGE_LINES; i++) {
            const uint32_t step = 4 * first + i, s = i % 4;
            if (STEPS % (4 * LATENT_PAGE_LINES) != 0 && step >= STEPS) break;
            uint4 a = load_matrices(queries + i / 4 * LATENT_PLANE + (q ^ 32 * s));
            uint4 b = load_matrices(keys + i / 4 * LATENT_PLANE + (k ^ 32 * s));
            if (QN_KEY_DIM % 16 != 0 && step == STEPS - 1) a.z = a.w = b.y = b.w = 0;
            mma_16x8x16<KV_E>(chain[s][0], a, b.x, b.y);
            mma_16x8x16<KV_E>(chain[s][1], a, b.z, b.w);
        }
    }
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            p[u][e] = (chain[0][u][e] + chain[1][u][e]) + (chain[2][u][e] + chain[3][u][e]);
}

/* Sets a score to -infinity where the row may not see the position. first: the share's first
 * position. */
DEV void latent_mask(const struct warp_context *c, struct latent_sight w, uint32_t first,
                     float p[2][4]) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t position = first + 8 * u + c->lane % 4 * 2 + e % 2;
            if (position < w.lo || position >= w.hi) p[u][e] = -INFINITY;
        }
}

/* Publishes the probabilities of the part at `first`, whose positions and queries have arrived, to
 * all warps. most: the largest scores of the lane's rows. */
template <bool PAGED>
DEV void latent_weigh(const struct warp_context *c, struct latent_sight w, uint32_t first,
                      float most[2]) {
    const uint32_t share = PAGED ? share_of_warp(c) : c->warp;
    struct piece_shares *x = latent_warps();
    float p[2][4];
    first += share * SHARE_POSITIONS;
    if (share < LATENT_SHARES && latent_sees(w, first)) {
        latent_scores<PAGED>(c, share, p);
        latent_mask(c, w, first, p);
    } else {
        share_unseen(p);
    }
    piece_put_most(c, x, share, p);
    sync_compute();
    piece_most(c, x, most);
    piece_put_probs(c, x, share, most, p);
    sync_compute();
}

/* ---- outputs ---- */

/* State of the lane's rows: out[n][i] has columns [8 i, 8 i + 8) of line number warp + WARPS n,
 * laid out like the result of a product. */
struct latent_state {
    float max[2], sum[2];
    float out[LATENT_OF_A_WARP][8][4];
};

/* State of the part at `first`, for the warp's columns. */
template <bool PAGED>
DEV void latent_outputs(const struct warp_context *c, struct latent_sight w, uint32_t first,
                        const float most[2], struct latent_state *y) {
    const struct piece_shares *x = latent_warps();
    const uint32_t v = latent_chunk_at(c->lane % 16, c->lane / 16);
    *y = {};
#pragma unroll 1
    for (uint32_t s = 0; s < LATENT_SHARES; s++) {
        if (!latent_sees(w, first + s * SHARE_POSITIONS)) continue;
        const uint4 weights = weights_of(x->probs[s][c->lane]);
#pragma unroll
        for (uint32_t n = 0; n < LATENT_OF_A_WARP; n++) {
            const uint32_t line = c->warp + n * WARPS;
            if (LATENT_VALUES % WARPS != 0 && line >= LATENT_VALUES) break;
            const char *values = latent_line<PAGED>(c, s, line);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                share_outputs(weights, load_matrices_turned(values + (v ^ 32 * i)),
                              y->out[n] + 2 * i);
        }
    }
    piece_sum(c, x, y->sum);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) y->max[h] = piece_max(most[h]);
}

/* ---- results ---- */

/* The first of the lane's two columns of out[n][i]. */
DEV uint32_t latent_column(const struct warp_context *c, uint32_t n, uint32_t i) {
    return 64 * (c->warp + n * WARPS) + 8 * i + c->lane % 4 * 2;
}

/* Stores the state of half h of the lane's heads at the head's place in parts. */
template <bool FLAGGED>
DEV void latent_head_store(const struct warp_context *c, float *to, uint32_t flag,
                           const struct latent_state *y, int h) {
    constexpr uint32_t EACH = FLAGGED ? 2 : 1; /* words of an element */
    float *columns = to + (PART_HEAD + latent_column(c, 0, 0)) * EACH;
    if (c->warp == 0 && c->lane % 4 == 0) words_put2<FLAGGED>(to, y->max[h], y->sum[h], flag);
#pragma unroll
    for (uint32_t n = 0; n < LATENT_OF_A_WARP; n++)
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t at = 64 * WARPS * n + 8 * i;
            if (QN_VALUE_DIM % (64 * WARPS) == 0 || latent_column(c, n, i) < QN_VALUE_DIM)
                words_put2<FLAGGED>(columns + at * EACH, y->out[n][i][2 * h],
                                    y->out[n][i][2 * h + 1], flag);
        }
}

/* Stores a piece's state for ATTENTION_MERGE, in parts[rows, n_heads, n_pieces, STATE_SIZE]. step:
 * of heads. */
DEV void latent_part_store(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                           uint32_t step, uint32_t piece, const struct latent_state *y) {
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
    const uint64_t head0 = (uint64_t)row * QN_N_HEADS + step * 16;
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        if (!LATENT_FULL_STEPS && m >= min(QN_N_HEADS - step * 16, 16u)) continue;
        const struct operand to =
            operand_from(parts, ((head0 + m) * task->n_pieces + piece) * STATE_SIZE);
        if (to.flag != 0)
            latent_head_store<true>(c, (float *)to.at, to.flag, y, h);
        else
            latent_head_store<false>(c, (float *)to.at, 0, y, h);
    }
}

#endif

#endif
