/* attention_share.cuh - keys and values from shared memory into registers for the tensor cores,
 * and what warps exchange about a piece of which each has some shares. All forms but wgmma's use
 * it.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_SHARE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_SHARE_CUH

#include "kernels/cuda/attention/attention.cuh"

/* The row whose address a lane passes to load_matrices. */
struct kv_lane {
    const char *at;       /* its first line */
    uint32_t plane, swap; /* from 64 columns to the next; XORed with its chunks' numbers */
};

/* For a position's row in the layout of the cache. line: its first line. */
DEV struct kv_lane lane_of(const char *line, uint32_t position) {
    return {line, KV_PLANE, KV_SWAPS ? position % 8 : 0};
}
/* The row of position number n of a share in a page. */
DEV struct kv_lane lane_in_page(const char *share, uint32_t n) {
    return lane_of(share + kv_row_at(n), n);
}

DEV const char *lane_chunk(const struct kv_lane *row, uint32_t chunk) {
    return row->at + chunk / 8 * row->plane + (chunk % 8 ^ row->swap) * 16;
}

/* ---- keys ---- */

/* The position number that the lane addresses, for half u of a share's keys. */
DEV uint32_t key_row(const struct warp_context *c, int u) {
    return 8 * u + c->lane % 8;
}

/* Columns [32 i, 32 i + 32) of a half's eight positions. */
DEV uint4 load_keys(const struct warp_context *c, const struct kv_lane *row, int i) {
    const uint32_t chunk = i % 2 * 4 + c->lane / 8, all = QN_HEAD_DIM / 8;
    const bool in = QN_HEAD_DIM % 32 == 0 || i / 2 * 8 + chunk < all;
    uint4 k = load_matrices(row->at + i / 2 * row->plane + ((in ? chunk : 0) ^ row->swap) * 16);
    if (32 * i + 8 >= QN_HEAD_DIM) k.y = 0;
    if (32 * i + 16 >= QN_HEAD_DIM) k.z = 0;
    if (32 * i + 24 >= QN_HEAD_DIM) k.w = 0;
    return k;
}

DEV void share_keys(const struct warp_context *c, const struct kv_lane row[2], uint4 k[2][PAIRS]) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) k[u][i] = load_keys(c, &row[u], i);
}

/* ---- values ---- */

/* A pair is 16 columns of values: two products. The last one may be half a pair. */
enum { VALUE_PAIRS = (QN_HEAD_DIM + 15) / 16 };

/* The position number that the lane addresses, for a share's values. */
DEV uint32_t value_row(const struct warp_context *c) {
    return c->lane % 16;
}

/* Columns [16 pair, 16 pair + 16) of a share, below 8 * chunks: B of two products. */
DEV uint4 load_values(const struct warp_context *c, const struct kv_lane *row, uint32_t pair,
                      uint32_t chunks) {
    const uint32_t chunk = 2 * pair + c->lane / 16;
    return load_matrices_turned(lane_chunk(row, chunk < chunks ? chunk : 2 * pair));
}

/* Adds probabilities times these columns to the outputs of the shares before. */
DEV void share_outputs(uint4 weights, uint4 v, float out[2][4]) {
    mma_16x8x16<KV_E>(out[0], weights, v.x, v.y);
    mma_16x8x16<KV_E>(out[1], weights, v.z, v.w);
}

/* ---- a piece that several warps have ---- */

/* A lane's probabilities of a share. */
#if HEAD_HALVES > 1
typedef uint4 probs_t;
DEV probs_t probs_of(uint4 weights) {
    return weights;
}
DEV uint4 weights_of(probs_t p) {
    return p;
}
#else
typedef uint2 probs_t;
DEV probs_t probs_of(uint4 weights) {
    return make_uint2(weights.x, weights.z);
}
DEV uint4 weights_of(probs_t p) {
    return make_uint4(p.x, 0, p.y, 0);
}
#endif

/* The warp's share of every piece. */
DEV uint32_t share_of_warp(const struct warp_context *c) {
    return (c->warp - c->turn) % WARPS;
}

/* Offset in the ring of the page of a piece's first share: of its warp's next page (n = 0) or of
 * the n-th after it. Pages come to the warps in turn, so the other shares' pages follow it. */
DEV uint32_t share_pages(const struct warp_context *c, uint32_t n) {
    const uint32_t count = page_of_warp(c, WARPS - 1); /* that of warp c->turn, too */
    return page_slot(c->turn, page_after(count, n)) * CUDA_PAGE_BYTES;
}
/* Offset of share number `share`. first: that of the first one's page, or of a byte in it. */
DEV uint32_t share_at(uint32_t first, uint32_t share) {
    const uint32_t at = first + share * CUDA_PAGE_BYTES;
    return min(at, at - RING_BYTES); /* within the ring the difference wraps, to more than `at` */
}

/* What lanes hold of each share: largest scores and sums of their rows, probabilities. */
struct piece_shares {
    float most[HEAD_HALVES][WARPS][32], sum[HEAD_HALVES][WARPS][32];
    probs_t probs[WARPS][32];
};
static_assert(ATTENTION_PIECE == WARPS * SHARE_POSITIONS, "shares of a piece");

/* Scores of a share that no row sees. */
DEV void share_unseen(float p[2][4]) {
#pragma unroll
    for (int u = 0; u < 2; u++) p[u][0] = p[u][1] = p[u][2] = p[u][3] = -INFINITY;
}

/* First each warp stores the largest scores of its shares. */
DEV void piece_put_most(const struct warp_context *c, struct piece_shares *x, uint32_t share,
                        const float p[2][4]) {
    float most[2] = {-INFINITY, -INFINITY};
    share_most<HEAD_HALVES>(p, most);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) x->most[h][share][c->lane] = most[h];
}

/* When all warps have done so: the piece's largest scores of the lane's rows. */
DEV void piece_most(const struct warp_context *c, const struct piece_shares *x, float most[2]) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        float v[WARPS];
#pragma unroll
        for (int s = 0; s < WARPS; s++) v[s] = x->most[h][s][c->lane];
#pragma unroll
        for (int s = 1; s < WARPS; s++) v[0] = fmaxf(v[0], v[s]);
        most[h] = quad_most(v[0]);
    }
}

/* Then each warp stores its probabilities and their sums. */
DEV void piece_put_probs(const struct warp_context *c, struct piece_shares *x, uint32_t share,
                         const float most[2], float p[2][4]) {
    float base[2], sum[2];
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) base[h] = piece_base(most[h]);
    share_weigh<HEAD_HALVES>(p, base, sum);
    x->probs[share][c->lane] = probs_of(share_weights<HEAD_HALVES>(p));
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) x->sum[h][share][c->lane] = sum[h];
}

/* When all warps have done so: the piece's sums of the lane's rows. */
DEV void piece_sum(const struct warp_context *c, const struct piece_shares *x, float sum[2]) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        float v[WARPS];
#pragma unroll
        for (int s = 0; s < WARPS; s++) v[s] = x->sum[h][s][c->lane];
#pragma unroll
        for (int s = 1; s < WARPS; s++) v[0] = __fadd_rn(v[0], v[s]);
        sum[h] = quad_sum(v[0]);
    }
}

#endif
