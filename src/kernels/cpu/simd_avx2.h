/* simd_avx2.h - one function per vector operation, eight floats. For isa_simd.h only. */
#ifndef QN_KERNELS_CPU_SIMD_AVX2_H
#define QN_KERNELS_CPU_SIMD_AVX2_H

#include "graph/model_spec.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m256 vf;
enum { VL = 8 };

INLINE __m256i lanes(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vf vf_zero(void) {
    return _mm256_setzero_ps();
}
INLINE vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}
INLINE vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
INLINE vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
} /* b where one is NaN */
INLINE vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf vf_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
INLINE vf vf_round(vf x) {
    return _mm256_round_ps(x, 8);
} /* nearest, no exception */
INLINE vf vf_ldexp(vf x, vf n) { /* x normal, n a whole number in [-126, 127] */
    __m256i e =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(x, _mm256_castsi256_ps(e));
}
/* y in the lanes where x >= lo, else 0 */
INLINE vf vf_where_ge(vf x, vf lo, vf y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, lo, _CMP_GE_OQ), y);
}

INLINE vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
/* The first n < VL elements; other lanes are 0, other memory is not touched. */
INLINE vf vf_load_n(const float *p, uint32_t n) {
    return _mm256_maskload_ps(p, lanes(n));
}
INLINE void vf_store_n(float *p, vf x, uint32_t n) {
    _mm256_maskstore_ps(p, lanes(n), x);
}

INLINE vf from_half(enum dtype dtype, __m128i h) {
    if (dtype == DTYPE_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
/* Eight elements of a type as floats. */
INLINE vf vf_load_as(enum dtype dtype, const void *p) {
    if (dtype == DTYPE_F32) return _mm256_loadu_ps(p);
    return from_half(dtype, _mm_loadu_si128(p));
}
INLINE vf vf_load_as_n(enum dtype dtype, const void *p, uint32_t n) {
    if (dtype == DTYPE_F32) return _mm256_maskload_ps(p, lanes(n));
    uint16_t h[8] = {0};
    memcpy(h, p, n * sizeof *h);
    return from_half(dtype, _mm_loadu_si128((const void *)h));
}

/* Sums of the lanes of four vectors, all by one tree: lanes i and i + 4, then 2, 1 apart. */
INLINE __m128 fold(vf a) {
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}
INLINE __m128 vf_sum4(vf a, vf b, vf c, vf d) {
    __m128 e = fold(a), f = fold(b), g = fold(c), h = fold(d);
    __m128 ef = _mm_add_ps(_mm_movelh_ps(e, f), _mm_movehl_ps(f, e)); /* e02 e13 f02 f13 */
    __m128 gh = _mm_add_ps(_mm_movelh_ps(g, h), _mm_movehl_ps(h, g));
    return _mm_add_ps(_mm_shuffle_ps(ef, gh, 0x88), _mm_shuffle_ps(ef, gh, 0xdd));
}
INLINE float vf_sum(vf a) {
    return _mm_cvtss_f32(vf_sum4(a, a, a, a));
}
INLINE float vf_hmax(vf a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* ---- dot products: an operand holds DOT_STEP(dtype) elements of a row ----
 *
 * Sixteen bf16 weights are two vectors of floats with one instruction each when they are taken
 * apart into even and odd elements, so packed activations are: eight even ones, then eight odd
 * ones. */

/* Two rows of weights, taken apart, and eight accumulators leave room in sixteen registers. Few
 * tokens: four streams. Medians of nine to fifteen runs of two Zen 3 threads, one token, k 768 /
 * 1024 / 2048, in % of reading in order: four streams 96 / 108 / 110, four rows side by side 67 /
 * 75 / 91, one row 74 / 85 / 86. */
enum { DOT_ROWS_FEW = 4, DOT_TOKENS_FEW = 2, DOT_ROWS = 2, DOT_TOKENS = 4 };

typedef struct {
    vf even, odd; /* other types: `even` only */
} operand;

INLINE uint32_t dot_step(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? 16 : 8;
}

INLINE operand dot_weight(enum dtype dtype, const void *p) {
    if (dtype != DTYPE_BF16) return (operand){vf_load_as(dtype, p), vf_zero()};
    __m256i w = _mm256_loadu_si256(p);
    __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    return (operand){_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
                     _mm256_castsi256_ps(_mm256_and_si256(w, high))};
}
INLINE operand dot_weight_n(enum dtype dtype, const void *p, uint32_t n) {
    if (dtype != DTYPE_BF16) return (operand){vf_load_as_n(dtype, p, n), vf_zero()};
    uint16_t h[16] = {0};
    memcpy(h, p, n * sizeof *h);
    return dot_weight(dtype, h);
}
INLINE operand dot_x(enum dtype dtype, const char *row, uint32_t i) {
    const float *x = (const float *)row + i;
    return (operand){vf_load(x), dtype == DTYPE_BF16 ? vf_load(x + 8) : vf_zero()};
}
INLINE vf dot(enum dtype dtype, vf acc, operand w, operand x) {
    acc = vf_fma(w.even, x.even, acc);
    return dtype == DTYPE_BF16 ? vf_fma(w.odd, x.odd, acc) : acc;
}

/* Bytes of a packed row. One line more than it needs: rows a power of two apart would share a few
 * sets of the caches. */
INLINE size_t dot_row_bytes(enum dtype dtype, uint32_t k) {
    (void)dtype;
    return (((size_t)k + 15) & ~(size_t)15) * 4 + 64;
}

/* Rounds to nearest-even bf16; NaN stays NaN. */
INLINE vf round_bf16(vf x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
    vf r = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000u)));
    return _mm256_blendv_ps(r, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
/* Packs elements i ... i + DOT_STEP - 1, given as vectors of eight. */
INLINE void dot_pack(enum dtype dtype, char *row, uint32_t i, vf a, vf b) {
    float *dst = (float *)row + i;
    if (dtype != DTYPE_BF16) {
        vf_store(dst, a);
        return;
    }
    a = round_bf16(a), b = round_bf16(b);
    __m256 even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);
    __m256i order = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
    vf_store(dst, _mm256_permutevar8x32_ps(even, order));
    vf_store(dst + 8, _mm256_permutevar8x32_ps(odd, order));
}

#endif
