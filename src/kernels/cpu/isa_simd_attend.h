/* isa_simd_attend.h - attend() over vectors. Part of isa_simd.h.
 *
 * Up to ATTEND_HEADS query heads share every key and value that is loaded and widened. Scores:
 * lanes run over the head's dimensions, four positions at a time. Output: lanes run over the
 * dimensions, positions one after the other. */
#ifndef QN_KERNELS_CPU_ISA_SIMD_ATTEND_H
#define QN_KERNELS_CPU_ISA_SIMD_ATTEND_H

enum { ATTEND_HEADS = VL == 16 ? 4 : 2, ATTEND_DIMS = VL == 16 ? 4 : 2 /* vectors of output */ };

struct attend_args {
    const float *q;       /* [heads, K] */
    uint32_t K, V, pitch; /* elements of a key, of a value, from a value to the next */
    const char *k, *v;    /* [n, K]; [n, V] */
    uint32_t n;
    float *state; /* [heads, V + 2] */
};

typedef float score_rows[ATTEND_HEADS][ATTENTION_PIECE];

/* s[h][p ... p + 3] = q[h] . k[p ...]; positions from n on repeat the last one. */
INLINE void score_block(enum dtype kv, int H, const struct attend_args *a, uint32_t p,
                        score_rows s) {
    uint32_t bytes = dtype_bytes(kv), i = 0;
    const char *k[4];
    UNROLL for (uint32_t j = 0; j < 4; j++) k[j] =
        a->k + (size_t)(p + j < a->n ? p + j : a->n - 1) * a->K * bytes;
    vf acc[ATTEND_HEADS][4];
    UNROLL for (int h = 0; h < H; h++) UNROLL for (int j = 0; j < 4; j++) acc[h][j] = vf_zero();
    for (; i + VL <= a->K; i += VL) {
        vf key[4];
        UNROLL for (int j = 0; j < 4; j++) key[j] = vf_load_as(kv, k[j] + (size_t)i * bytes);
        UNROLL for (int h = 0; h < H; h++) {
            vf q = vf_load(a->q + (size_t)h * a->K + i);
            UNROLL for (int j = 0; j < 4; j++) acc[h][j] = vf_fma(q, key[j], acc[h][j]);
        }
    }
    if (i < a->K) {
        UNROLL for (int h = 0; h < H; h++) {
            vf q = vf_load_n(a->q + (size_t)h * a->K + i, a->K - i);
            UNROLL for (int j = 0; j < 4; j++) {
                vf key = vf_load_as_n(kv, k[j] + (size_t)i * bytes, a->K - i);
                acc[h][j] = vf_fma(q, key, acc[h][j]);
            }
        }
    }
    UNROLL for (int h = 0; h < H; h++)
        _mm_storeu_ps(&s[h][p], vf_sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]));
}

/* Turns s[0, n) into weights exp(s - max), updates max and sum, returns the factor by which the old
 * output shrinks. s has room for a multiple of VL. */
INLINE float softmax_step(float *s, uint32_t n, float *state) {
    uint32_t end = (n + VL - 1) / VL * VL;
    for (uint32_t p = n; p < end; p++) s[p] = -INFINITY;
    vf m = vf_set1(state[0]);
    for (uint32_t p = 0; p < end; p += VL) m = vf_max(vf_load(s + p), m);
    float max = vf_hmax(m), keep[VL];
    vf sum = vf_zero(), shift = vf_set1(max);
    for (uint32_t p = 0; p < end; p += VL) {
        vf e = vf_exp(vf_sub(vf_load(s + p), shift));
        vf_store(s + p, e);
        sum = vf_add(sum, e);
    }
    vf_store(keep, vf_exp(vf_sub(vf_set1(state[0]), shift)));
    state[0] = max;
    state[1] = state[1] * keep[0] + vf_sum(sum);
    return keep[0];
}

/* Updates out[d ... d + N * VL - 1] of H heads, or the last `rest` < VL dimensions if N is 0. */
INLINE void output_block(enum dtype kv, int H, int N, const struct attend_args *a, uint32_t d,
                         uint32_t rest, score_rows s, const float *keep) {
    uint32_t bytes = dtype_bytes(kv);
    int vectors = N == 0 ? 1 : N;
    vf acc[ATTEND_HEADS][ATTEND_DIMS];
    UNROLL for (int h = 0; h < H; h++) {
        float *out = a->state + (size_t)h * (a->V + 2) + 2 + d;
        UNROLL for (int j = 0; j < vectors; j++) {
            vf o = N == 0 ? vf_load_n(out, rest) : vf_load(out + j * VL);
            acc[h][j] = vf_mul(o, vf_set1(keep[h]));
        }
    }
    for (uint32_t p = 0; p < a->n; p++) {
        const char *v = a->v + ((size_t)p * a->pitch + d) * bytes;
        vf value[ATTEND_DIMS];
        UNROLL for (int j = 0; j < vectors; j++) value[j] =
            N == 0 ? vf_load_as_n(kv, v, rest) : vf_load_as(kv, v + (size_t)j * VL * bytes);
        UNROLL for (int h = 0; h < H; h++) {
            vf weight = vf_set1(s[h][p]);
            UNROLL for (int j = 0; j < vectors; j++) acc[h][j] =
                vf_fma(weight, value[j], acc[h][j]);
        }
    }
    UNROLL for (int h = 0; h < H; h++) {
        float *out = a->state + (size_t)h * (a->V + 2) + 2 + d;
        UNROLL for (int j = 0; j < vectors; j++) {
            if (N == 0)
                vf_store_n(out, acc[h][j], rest);
            else
                vf_store(out + j * VL, acc[h][j]);
        }
    }
}

INLINE void attend_heads(enum dtype kv, int H, const struct attend_args *a) {
    score_rows s;
    float keep[ATTEND_HEADS];
    for (uint32_t p = 0; p < a->n; p += 4) score_block(kv, H, a, p, s);
    for (int h = 0; h < H; h++)
        keep[h] = softmax_step(s[h], a->n, a->state + (size_t)h * (a->V + 2));
    uint32_t d = 0;
    for (; d + ATTEND_DIMS * VL <= a->V; d += ATTEND_DIMS * VL)
        output_block(kv, H, ATTEND_DIMS, a, d, 0, s, keep);
    for (; d + VL <= a->V; d += VL) output_block(kv, H, 1, a, d, 0, s, keep);
    if (d < a->V) output_block(kv, H, 0, a, d, a->V - d, s, keep);
}

INLINE void attend_any(enum dtype kv, uint32_t n_q, struct attend_args a) {
    while (n_q > 0) {
        uint32_t H = n_q < ATTEND_HEADS ? n_q : ATTEND_HEADS;
        switch (H) {
        case 1: attend_heads(kv, 1, &a); break;
        case 2: attend_heads(kv, 2, &a); break;
        case 3:
            if (ATTEND_HEADS >= 3) attend_heads(kv, 3, &a);
            break;
        case 4:
            if (ATTEND_HEADS >= 4) attend_heads(kv, 4, &a);
            break;
        default: break;
        }
        n_q -= H;
        a.q += (size_t)H * a.K;
        a.state += (size_t)H * (a.V + 2);
    }
}

static void simd_attend(const struct kv_row *row, const float *q, uint32_t n_q, const void *k,
                        const void *v, uint32_t n, float *state) {
    struct attend_args a = {.q = q,
                            .K = row->k_width,
                            .V = row->v_width,
                            .pitch = kv_value_pitch(row),
                            .k = k,
                            .v = v,
                            .n = n,
                            .state = state};
    switch (row->dtype) {
    case DTYPE_F32: attend_any(DTYPE_F32, n_q, a); break;
    case DTYPE_BF16: attend_any(DTYPE_BF16, n_q, a); break;
    case DTYPE_F16: attend_any(DTYPE_F16, n_q, a); break;
    default: break;
    }
}

#endif
