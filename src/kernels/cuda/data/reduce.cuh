/* reduce.cuh - sums and maxima of a warp, each by one fixed tree; vectors of four. */
#ifndef QN_CUDA_DATA_REDUCE_CUH
#define QN_CUDA_DATA_REDUCE_CUH

#include "kernels/cuda/block/block.cuh"

DEV float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
DEV float4 times4(float4 v, float by) {
    return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}
DEV float4 mul4(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

/* The same sum in every lane, by one fixed tree. */
DEV float warp_sum(float v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

DEV float warp_max(float v) {
    for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

#endif
