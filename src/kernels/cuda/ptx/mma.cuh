/* mma.cuh - tensor core instructions and conversions of 16-bit floats. No CUDA headers: NVRTC
 * brings none, so bfloat16 and float16 are bit patterns here.
 */
#ifndef QN_CUDA_PTX_MMA_CUH
#define QN_CUDA_PTX_MMA_CUH

#include "kernels/cuda/ptx/barrier.cuh"

/* 16-bit element types: E_BF16 or E_F16. */
enum { E_BF16 = 0, E_F16 = 1 };

/* Two floats to two 16-bit floats, the first in the low half; nearest even. float16 saturates. */
template <int E> DEV uint32_t pack_pair(float lo, float hi) {
    uint32_t r;
    if (E == E_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    } else {
        lo = fminf(fmaxf(lo, -65504.0f), 65504.0f);
        hi = fminf(fmaxf(hi, -65504.0f), 65504.0f);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    }
    return r;
}

template <int E> DEV uint16_t pack_one(float v) {
    return (uint16_t)(pack_pair<E>(v, 0.0f) & 0xffff);
}

template <int E> DEV float unpack_low(uint32_t pair) {
    if (E == E_BF16) return __uint_as_float(pair << 16);
    float v;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;\n}" : "=f"(v) : "r"(pair));
    return v;
}

template <int E> DEV float unpack_high(uint32_t pair) {
    if (E == E_BF16) return __uint_as_float(pair & 0xffff0000u);
    return unpack_low<E>(pair >> 16);
}

/* Fast functions of the special function unit, within some ulp, with the same bits wherever they
 * are used. The precise functions are tens of dependent instructions, whose latency nothing hides
 * at batch 1. */
DEV float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float exp_fast(float x) {
    return exp2_fast(__fmul_rn(x, 1.4426950408889634f));
}
DEV float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float inverse_sqrt_fast(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* c[16 x 8] += a[16 x 16] b[16 x 8], fp32 accumulators. With lane = 4 g + j:
 * a.x (g; 2j, 2j+1)  a.y (g+8; 2j, 2j+1)  a.z (g; 2j+8, 2j+9)  a.w (g+8; 2j+8, 2j+9)
 * b0 (2j, 2j+1; g)   b1 (2j+8, 2j+9; g)
 * c[0], c[1] (g; 2j, 2j+1)   c[2], c[3] (g+8; 2j, 2j+1) */
template <int E> DEV void mma_16x8x16(float *c, uint4 a, uint32_t b0, uint32_t b1) {
    if (E == E_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

#endif
