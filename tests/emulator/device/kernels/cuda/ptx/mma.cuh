/* mma.cuh - kernels/cuda/ptx/mma.cuh on the emulated GPU. */
#ifndef QN_CUDA_PTX_MMA_CUH
#define QN_CUDA_PTX_MMA_CUH

#include "kernels/cuda/ptx/barrier.cuh"

enum { E_BF16 = 0, E_F16 = 1 };

template <int E> DEV uint16_t pack_one(float v) {
    if (E == E_F16) return emu_float_to_half(fminf(fmaxf(v, -65504.0f), 65504.0f));
    uint32_t bits = __float_as_uint(v);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <int E> DEV uint32_t pack_pair(float lo, float hi) {
    return (uint32_t)pack_one<E>(hi) << 16 | pack_one<E>(lo);
}
template <int E> DEV float unpack_low(uint32_t pair) {
    if (E == E_BF16) return __uint_as_float(pair << 16);
    return emu_half_to_float((uint16_t)pair);
}
template <int E> DEV float unpack_high(uint32_t pair) {
    if (E == E_BF16) return __uint_as_float(pair & 0xffff0000u);
    return unpack_low<E>(pair >> 16);
}

DEV float exp2_fast(float x) {
    return __builtin_exp2f(x);
}
DEV float exp_fast(float x) {
    return exp2_fast(__fmul_rn(x, 1.4426950408889634f));
}
DEV float reciprocal_fast(float x) {
    return 1.0f / x;
}
DEV float inverse_sqrt_fast(float x) {
    return 1.0f / __builtin_sqrtf(x);
}

template <int E> DEV void mma_16x8x16(float *c, uint4 a, uint32_t b0, uint32_t b1) {
    const uint32_t rows[4] = {a.x, a.y, a.z, a.w}, columns[2] = {b0, b1};
    emu_mma(c, rows, columns, E == E_F16);
}

DEV uint32_t pair_low(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, 0x5410);
}
DEV uint32_t pair_high(uint32_t a, uint32_t b) {
    return __byte_perm(a, b, 0x7632);
}

#endif
