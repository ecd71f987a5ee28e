/* simd_pack.h - reading activations to be packed. After a simd_*.h. */
#ifndef QN_KERNELS_CPU_SIMD_PACK_H
#define QN_KERNELS_CPU_SIMD_PACK_H

/* Elements i ... i + VL - 1 of x[k], times scale[] if given; zeros from k on. */
INLINE vf pack_load(const float *x, const float *scale, uint32_t i, uint32_t k) {
    if (i >= k) return vf_zero();
    if (i + VL <= k) {
        vf v = vf_load(x + i);
        return scale != NULL ? vf_mul(v, vf_load(scale + i)) : v;
    }
    vf v = vf_load_n(x + i, k - i);
    return scale != NULL ? vf_mul(v, vf_load_n(scale + i, k - i)) : v;
}

#endif
