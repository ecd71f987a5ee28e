/* convert.h - 16-bit floats, one element at a time, on any processor. */
#ifndef QN_KERNELS_CPU_CONVERT_H
#define QN_KERNELS_CPU_CONVERT_H

#include "graph/model_spec.h"

#include <stdint.h>
#include <string.h>

static inline uint32_t convert_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float convert_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float convert_from_bf16(uint16_t b) {
    return convert_float((uint32_t)b << 16);
}

/* To nearest, ties to even; NaN stays NaN. */
static inline uint16_t convert_to_bf16(float x) {
    uint32_t u = convert_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float convert_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, body = h & 0x7fffu;
    if (body >= 0x7c00u) return convert_float(sign | 0x7f800000u | (body & 0x3ffu) << 13);
    if (body < 0x400u) return convert_float(sign | convert_bits((float)body * 0x1p-24f));
    return convert_float(sign | ((body << 13) + (112u << 23)));
}

/* To nearest, ties to even; too large becomes infinity, NaN stays NaN. */
static inline uint16_t convert_to_f16(float x) {
    uint32_t u = convert_bits(x), sign = u >> 16 & 0x8000u, body = u & 0x7fffffffu;
    if (body > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (body >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (body < 0x38800000u) { /* subnormal: adding 0.5 rounds at the 2^-24 place */
        uint32_t r = convert_bits(convert_float(body) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    return (uint16_t)(sign | ((body + 0xfffu + (body >> 13 & 1) - (112u << 23)) >> 13));
}

/* Element i of an array of `dtype` (F32, BF16 or F16) that need not be aligned. */
static inline float convert_load(enum dtype dtype, const void *p, size_t i) {
    uint16_t h;
    float f;
    if (dtype == DTYPE_F32) {
        memcpy(&f, (const char *)p + i * 4, 4);
        return f;
    }
    memcpy(&h, (const char *)p + i * 2, 2);
    return dtype == DTYPE_BF16 ? convert_from_bf16(h) : convert_from_f16(h);
}

static inline void convert_store(enum dtype dtype, void *p, size_t i, float x) {
    if (dtype == DTYPE_F32) {
        memcpy((char *)p + i * 4, &x, 4);
        return;
    }
    uint16_t h = dtype == DTYPE_BF16 ? convert_to_bf16(x) : convert_to_f16(x);
    memcpy((char *)p + i * 2, &h, 2);
}

#endif
