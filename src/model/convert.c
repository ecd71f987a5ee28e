#include "model/convert.h"

#include "base/checked.h"

#include <stdbool.h>
#include <string.h>

/* Elements at a time: the loops below have a constant length, so that the compiler makes vector
 * code of them, and the block stays in the first-level cache. */
enum { BLOCK = 512 };

static inline float as_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t as_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float from_bf16(uint16_t bits) {
    return as_float((uint32_t)bits << 16);
}

/* The exponents' biases differ by 112. A multiplication corrects this for normal and subnormal
 * numbers alike; exponent 31 (infinity, NaN) ends up at 65536 or more. */
static inline float from_f16(uint16_t bits) {
    float magnitude = as_float((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f;
    uint32_t special = magnitude >= 65536.0f ? 0x7f800000u : 0;
    return as_float(as_bits(magnitude) | special | (uint32_t)(bits & 0x8000) << 16);
}

static inline uint16_t to_bf16(float value) {
    uint32_t bits = as_bits(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(nan ? (bits >> 16 | 0x40) : rounded);
}

/* Normal results: round the mantissa to 10 bits, move the exponent's bias. Subnormal ones: adding
 * 0.5 leaves the value as a multiple of 2^-24 in the low bits, rounded by the addition itself. */
static inline uint16_t to_f16(float value) {
    uint32_t bits = as_bits(value), a = bits & 0x7fffffff;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1)) >> 13;
    uint32_t subnormal = as_bits(as_float(a) + 0.5f) - 0x3f000000u;
    uint32_t h = a < 0x38800000u ? subnormal : normal - (112u << 10);
    h = a >= 0x47800000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7e00u : h;
    return (uint16_t)(h | (bits >> 16 & 0x8000));
}

float convert_from_bf16(uint16_t bits) {
    return from_bf16(bits);
}

float convert_from_f16(uint16_t bits) {
    return from_f16(bits);
}

uint16_t convert_to_bf16(float value) {
    return to_bf16(value);
}

uint16_t convert_to_f16(float value) {
    return to_f16(value);
}

/* n <= BLOCK elements of src as floats; the rest of the block is zero. */
static void widen(enum dtype from, const void *src, uint64_t n, float wide[BLOCK]) {
    uint16_t narrow[BLOCK] = {0};
    if (n < BLOCK) memset(wide, 0, BLOCK * sizeof *wide);
    memcpy(from == DTYPE_F32 ? (void *)wide : narrow, src, n * dtype_bytes(from));
    if (from == DTYPE_BF16)
        for (int i = 0; i < BLOCK; i++) wide[i] = from_bf16(narrow[i]);
    else if (from == DTYPE_F16)
        for (int i = 0; i < BLOCK; i++) wide[i] = from_f16(narrow[i]);
}

/* The first n floats of a block to dst; returns the number of overflows. */
static uint64_t narrow(enum dtype to, const float wide[BLOCK], uint64_t n, void *dst) {
    uint16_t out[BLOCK];
    uint32_t overflows = 0;
    if (to == DTYPE_BF16) {
        for (int i = 0; i < BLOCK; i++) {
            out[i] = to_bf16(wide[i]);
            overflows +=
                (out[i] & 0x7fff) == 0x7f80 && (as_bits(wide[i]) & 0x7fffffff) < 0x7f800000;
        }
    } else if (to == DTYPE_F16) {
        for (int i = 0; i < BLOCK; i++) {
            out[i] = to_f16(wide[i]);
            overflows +=
                (out[i] & 0x7fff) == 0x7c00 && (as_bits(wide[i]) & 0x7fffffff) < 0x7f800000;
        }
    }
    memcpy(dst, to == DTYPE_F32 ? (const void *)wide : out, n * dtype_bytes(to));
    return overflows;
}

uint64_t convert_array(enum dtype to, void *dst, enum dtype from, const void *src, uint64_t n) {
    if (to == from) {
        memcpy(dst, src, n * dtype_bytes(to));
        return 0;
    }
    uint64_t overflows = 0;
    float wide[BLOCK] = {0};
    for (uint64_t at = 0; at < n; at += BLOCK) {
        uint64_t part = MIN(n - at, (uint64_t)BLOCK);
        widen(from, (const char *)src + at * dtype_bytes(from), part, wide);
        overflows += narrow(to, wide, part, (char *)dst + at * dtype_bytes(to));
    }
    return overflows;
}
