/* simd_avx512.h - one function per vector operation, sixteen floats. For isa_simd.h only. */
#ifndef QN_KERNELS_CPU_SIMD_AVX512_H
#define QN_KERNELS_CPU_SIMD_AVX512_H

#include "graph/model_spec.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m512 vf;
enum { VL = 16 };

INLINE __mmask16 lanes(uint32_t n) {
    return (__mmask16)((1u << n) - 1);
}

INLINE vf vf_zero(void) {
    return _mm512_setzero_ps();
}
INLINE vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}
INLINE vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
INLINE vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
} /* b where one is NaN */
INLINE vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
INLINE vf vf_round(vf x) {
    return _mm512_roundscale_ps(x, 8);
} /* nearest, no exception */
INLINE vf vf_ldexp(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}
/* y in the lanes where x >= lo, else 0 */
INLINE vf vf_where_ge(vf x, vf lo, vf y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, lo, _CMP_GE_OQ), y);
}

INLINE vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
/* The first n < VL elements; other lanes are 0, other memory is not touched. */
INLINE vf vf_load_n(const float *p, uint32_t n) {
    return _mm512_maskz_loadu_ps(lanes(n), p);
}
INLINE void vf_store_n(float *p, vf x, uint32_t n) {
    _mm512_mask_storeu_ps(p, lanes(n), x);
}

INLINE vf from_bf16(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
/* Sixteen elements of a type as floats. */
INLINE vf vf_load_as(enum dtype dtype, const void *p) {
    if (dtype == DTYPE_F32) return _mm512_loadu_ps(p);
    __m256i h = _mm256_loadu_si256(p);
    return dtype == DTYPE_BF16 ? from_bf16(h) : _mm512_cvtph_ps(h);
}
INLINE vf vf_load_as_n(enum dtype dtype, const void *p, uint32_t n) {
    if (dtype == DTYPE_F32) return _mm512_maskz_loadu_ps(lanes(n), p);
    __m256i h = _mm256_maskz_loadu_epi16(lanes(n), p);
    return dtype == DTYPE_BF16 ? from_bf16(h) : _mm512_cvtph_ps(h);
}

/* Sums of the lanes of four vectors, all by one tree: lanes i and i + 8, then 4, 2, 1 apart. */
INLINE __m128 vf_sum4(vf a, vf b, vf c, vf d) {
    vf ab = vf_add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    vf cd = vf_add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    vf s = vf_add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    s = vf_add(s, _mm512_permute_ps(s, 0x4e));
    s = vf_add(s, _mm512_permute_ps(s, 0xb1));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s));
}
INLINE float vf_sum(vf a) {
    return _mm_cvtss_f32(vf_sum4(a, a, a, a));
}
INLINE float vf_hmax(vf a) {
    return _mm512_reduce_max_ps(a);
}

/* ---- dot products: an operand holds DOT_STEP(dtype) elements of a row ---- */

/* Few tokens: four streams, as AVX2 has. Qwen3-0.6B on two Zen 4 threads, ms a step of 1, 3, 4 and
 * 6 tokens, means of two runs: one row at a time (panels from four tokens
 * on) 46.4, 57.8, 52.5, 55.2, four streams up to six 24.6, 30.2, 32.9, 39.2. (One row at a time was
 * the fastest on two Zen 5 threads, where four streams were not measured.) */
enum { DOT_ROWS_FEW = 4, DOT_TOKENS_FEW = 6, DOT_ROWS = 4, DOT_TOKENS = 6 };

typedef __m512i operand;

INLINE uint32_t dot_step(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? 32 : 16;
}

INLINE operand dot_weight(enum dtype dtype, const void *p) {
    if (dtype == DTYPE_BF16) return _mm512_loadu_si512(p);
    return _mm512_castps_si512(vf_load_as(dtype, p));
}
INLINE operand dot_weight_n(enum dtype dtype, const void *p, uint32_t n) {
    if (dtype == DTYPE_BF16) return _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
    return _mm512_castps_si512(vf_load_as_n(dtype, p, n));
}
INLINE operand dot_x(enum dtype dtype, const char *row, uint32_t i) {
    return _mm512_loadu_si512(row + (size_t)i * (dtype == DTYPE_BF16 ? 2 : 4));
}
INLINE vf dot(enum dtype dtype, vf acc, operand w, operand x) {
    if (dtype == DTYPE_BF16) return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
    return vf_fma(_mm512_castsi512_ps(w), _mm512_castsi512_ps(x), acc);
}

/* Bytes of a packed row. One line more than it needs: rows a power of two apart would share a few
 * sets of the caches. */
INLINE size_t dot_row_bytes(enum dtype dtype, uint32_t k) {
    size_t elements = ((size_t)k + 31) & ~(size_t)31;
    return elements * (dtype == DTYPE_BF16 ? 2 : 4) + 64;
}
/* Packs elements i ... i + DOT_STEP - 1, given as vectors of sixteen. */
INLINE void dot_pack(enum dtype dtype, char *row, uint32_t i, vf a, vf b) {
    if (dtype == DTYPE_BF16)
        _mm512_storeu_si512(row + (size_t)i * 2, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    else
        _mm512_storeu_ps(row + (size_t)i * 4, a);
}

#endif
