/* sampling_rng.h - the random numbers of sampling, the same bits on every backend.
 *
 * Gumbel-max: the token drawn is the one with the largest logit + gumbel(v), v uniform in (0, 1),
 * one v per (request's seed, output position, token id). No state, no order: any number of threads
 * may look at the tokens in any order. The numbers come from the counter-based generator
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011):
 *
 *   key     seed (low word, high word)
 *   counter {token / 4, output position, 0, 0}; the token's number is word token % 4 of the result
 *
 * Floats are only multiplied, added and divided, each rounded once and never fused, so that host
 * and device agree to the last bit. Device-safe.
 */
#ifndef QN_KERNELS_SAMPLING_RNG_H
#define QN_KERNELS_SAMPLING_RNG_H

#include "base/abi.h"

#ifdef __CUDACC__
#define RNG_FN        __device__ static inline
#define RNG_MUL(a, b) __fmul_rn((a), (b))
#define RNG_ADD(a, b) __fadd_rn((a), (b))
#define RNG_DIV(a, b) __fdiv_rn((a), (b))
#define RNG_BITS(x)   __float_as_uint(x)
#define RNG_FLOAT(x)  __uint_as_float(x)
#else
#define RNG_FN        static inline
#define RNG_MUL(a, b) ((a) * (b)) /* the build forbids contraction */
#define RNG_ADD(a, b) ((a) + (b))
#define RNG_DIV(a, b) ((a) / (b))
#define RNG_BITS(x)   rng_bits(x)
#define RNG_FLOAT(x)  rng_float(x)

static inline uint32_t rng_bits(float x) {
    union {
        float f;
        uint32_t u;
    } pun = {.f = x};
    return pun.u;
}
static inline float rng_float(uint32_t x) {
    union {
        uint32_t u;
        float f;
    } pun = {.u = x};
    return pun.f;
}
#endif

/* out = Philox4x32-10 of the counter under the key. */
RNG_FN void rng_philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The four numbers of tokens 4 * quad ... 4 * quad + 3 at an output position. */
RNG_FN void rng_quad(uint64_t seed, uint32_t output_position, uint32_t quad, uint32_t out[4]) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {quad, output_position, 0, 0};
    rng_philox(key, counter, out);
}

/* Uniform in (0, 1), fine near 0: small values decide the winner of a draw. */
RNG_FN float rng_uniform(uint32_t word) {
    float v = RNG_MUL(RNG_ADD((float)word, 0.5f), 0x1p-32f);
    return v < 0x1.fffffep-1f ? v : 0x1.fffffep-1f;
}

/* Natural logarithm of a normal positive float, within 2 ulp: the exponent times ln 2 plus
 * 2 artanh((m - 1) / (m + 1)) for the mantissa m in [sqrt(1/2), sqrt(2)). */
RNG_FN float rng_log(float x) {
    uint32_t bits = RNG_BITS(x) - 0x3f3504f3u; /* of sqrt(1/2) */
    int32_t e = (int32_t)bits >> 23;
    float m = RNG_FLOAT((bits & 0x007fffffu) + 0x3f3504f3u);
    float s = RNG_DIV(RNG_ADD(m, -1.0f), RNG_ADD(m, 1.0f));
    float z = RNG_MUL(s, s);
    float p = RNG_ADD(RNG_MUL(z, 2.0f / 9), 2.0f / 7);
    p = RNG_ADD(RNG_MUL(z, p), 2.0f / 5);
    p = RNG_ADD(RNG_MUL(z, p), 2.0f / 3);
    p = RNG_MUL(RNG_MUL(z, p), s);
    float tail = RNG_ADD(p, RNG_MUL((float)e, -0x1.05c610p-29f)); /* ln 2 = 0x1.62e43p-1 - this */
    float sum = RNG_ADD(RNG_ADD(s, s), tail);
    return RNG_ADD(RNG_MUL((float)e, 0x1.62e430p-1f), sum);
}

/* Gumbel noise from v in (0, 1): -log(-log(1 - v)), exact to a few ulp for small v too. At most
 * -log(v), so a token whose logit - log(v) loses need not be looked at. */
RNG_FN float rng_gumbel(float v) {
    float w = RNG_ADD(1.0f, -v);
    float e = v; /* -log(1 - v); the quotient undoes the rounding of 1 - v */
    if (w < 1.0f) e = RNG_DIV(RNG_MUL(-rng_log(w), v), RNG_ADD(1.0f, -w));
    return -rng_log(e);
}

#endif
