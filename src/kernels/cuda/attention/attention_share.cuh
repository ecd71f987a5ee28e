/* attention_share.cuh - a share of a piece, 16 positions: its keys and values in shared memory, as
 * lanes want them, and its state. Used by all forms of decoding.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_SHARE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_SHARE_CUH

#include "kernels/cuda/attention/attention.cuh"

/* A share's keys and values in registers. */
struct share_kv {
    uint4 k[2][PAIRS], v[SPANS][4];
};

/* Where the rows of keys and of values are that a lane wants. */
struct share_at {
    const char *k[2], *v[4];
};

DEV uint32_t share_key_row(const struct warp_context *c, int u) {
    return c->lane / 8 * 4 + 2 * u + c->lane / 4 % 2;
}
DEV uint32_t share_value_row(const struct warp_context *c, int n) {
    return c->lane % 4 * 4 + n;
}

/* Of k[16][head_dim] and of v[16][head_dim]. */
DEV struct share_at share_at_of(const struct warp_context *c, const char *k, const char *v) {
    struct share_at at;
#pragma unroll
    for (int u = 0; u < 2; u++) at.k[u] = k + share_key_row(c, u) * (QN_HEAD_DIM * 2);
#pragma unroll
    for (int n = 0; n < 4; n++) at.v[n] = v + share_value_row(c, n) * (QN_HEAD_DIM * 2);
    return at;
}

DEV void share_keys(const struct warp_context *c, const char *const row[2], uint4 k[2][PAIRS]) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t d = 32 * i + c->lane % 4 * 8;
            const bool in = QN_HEAD_DIM % 32 == 0 || d < QN_HEAD_DIM;
            const uint32_t at = key_at(share_key_row(c, u), d);
            k[u][i] = in ? *(const uint4 *)(row[u] + at * 2) : make_uint4(0, 0, 0, 0);
        }
}

DEV void share_values(const struct warp_context *c, const char *const row[4], uint4 v[SPANS][4]) {
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t d = 64 * i + c->lane / 4 * 8;
            const bool in = QN_HEAD_DIM % 64 == 0 || d < QN_HEAD_DIM;
            const uint32_t at = value_at(share_value_row(c, n), d);
            v[i][n] = in ? *(const uint4 *)(row[n] + at * 2) : make_uint4(0, 0, 0, 0);
        }
}

/* Zeros for the values of positions after the share's number `last`: their weights are zero, which
 * only numbers survive. Their keys need no care: scores are masked. */
DEV void share_clear(const struct warp_context *c, uint32_t last, struct share_kv *x) {
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (c->lane % 4 * 4 + n > last) x->v[i][n] = make_uint4(0, 0, 0, 0);
}

/* ---- a share's outputs in a page ---- */

static_assert(SUB_HEADS * QN_HEAD_DIM * 4 <= CUDA_PAGE_BYTES, "outputs of a share");

/* Where column d of row m lies. Rows that are whole lines of 128 bytes would all begin in the same
 * bank. */
DEV uint32_t share_out_at(uint32_t m, uint32_t d) {
    return m * QN_HEAD_DIM + (QN_HEAD_DIM % 32 == 0 ? d ^ m % 8 * 4 : d);
}

/* A span of 64 columns: lane 4 g + j has columns 16 j ... 16 j + 15 of it, of rows g and g + 8. */
DEV void share_put(const struct warp_context *c, int span, const float out[8][4], float *page) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t m = c->lane / 4 + 8 * h, d = 64 * span + c->lane % 4 * 16 + 4 * i;
            const int at = i % 2 * 4, e = 2 * h + i / 2;
            if (m < SUB_HEADS && d < QN_HEAD_DIM)
                *(float4 *)(page + share_out_at(m, d)) =
                    make_float4(out[at][e], out[at + 1][e], out[at + 2][e], out[at + 3][e]);
        }
}

/* Probabilities times values, span by span, so that few registers have outputs. All lanes have read
 * the page. */
DEV void share_outputs(const struct warp_context *c, const uint4 v[SPANS][4], const float p[2][4],
                       float *page) {
    const uint4 weights = piece_weights<HEAD_HALVES>(p);
#pragma unroll
    for (int s = 0; s < SPANS; s++) {
        float out[8][4];
#pragma unroll
        for (int i = 0; i < 8; i++) piece_column(weights, v[s], i, out[i]);
        share_put(c, s, out, page);
    }
}

/* Of a share that the row does not see. */
DEV void share_nothing(const struct warp_context *c, float *page) {
    const float zeros[8][4] = {};
#pragma unroll
    for (int s = 0; s < SPANS; s++) share_put(c, s, zeros, page);
}

#endif
