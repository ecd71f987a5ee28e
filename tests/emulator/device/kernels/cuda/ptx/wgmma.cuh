/* wgmma.cuh - kernels/cuda/ptx/wgmma.cuh on the emulated GPU: products happen when they are waited
 * for. */
#ifndef QN_CUDA_PTX_WGMMA_CUH
#define QN_CUDA_PTX_WGMMA_CUH

#include "kernels/cuda/ptx/mma.cuh"

#define HAS_WGMMA (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000)

/* Steps of 16 bytes: of k, of columns, then an offset into the block's shared memory. */
DEV uint64_t wgmma_matrix(const void *base, uint32_t offset, uint32_t k_step, uint32_t n_step) {
    return (uint64_t)(n_step >> 4) << 32 | (uint64_t)(k_step >> 4) << 16 |
           (uint64_t)((const char *)base - emu_self->shared + offset) >> 4;
}
DEV uint64_t wgmma_lines(const void *base, uint32_t offset, uint32_t eight) {
    return 1ull << 62 | wgmma_matrix(base, offset, 0, eight);
}
DEV uint64_t wgmma_further(uint64_t matrix, uint32_t bytes) {
    return matrix + (bytes >> 4);
}
DEV void wgmma_fence(void) {}
DEV void wgmma_commit(void) {
    emu_wgmma_commit();
}
template <int N> DEV void wgmma_wait(void) {
    emu_wgmma_wait(N);
}
template <int WO> DEV void wgmma_settle(float (&)[WO][4]) {}

DEV void wgmma_emulated(float *d, uint4 a, uint64_t b, uint32_t n_eights, bool f16, bool add,
                        bool turned) {
    const uint32_t rows[4] = {a.x, a.y, a.z, a.w};
    const struct emu_wgmma of = {emu_self->shared,
                                 (uint32_t)(b & 0x3fff) * 16,
                                 (uint32_t)(b >> 16 & 0x3fff) * 16,
                                 (uint32_t)(b >> 32 & 0x3fff) * 16,
                                 n_eights,
                                 f16,
                                 add,
                                 turned,
                                 (b >> 62 & 1) != 0};
    emu_wgmma(d, rows, &of);
}
template <int E> DEV void wgmma_64x128x16(float (&d)[16][4], uint4 a, uint64_t b, bool add) {
    wgmma_emulated(&d[0][0], a, b, 16, E == E_F16, add, false);
}
template <int E> DEV void wgmma_64x48x16(float (&d)[6][4], uint4 a, uint64_t b, bool add) {
    wgmma_emulated(&d[0][0], a, b, 6, E == E_F16, add, false);
}
/* A's rows of the lane's warp, read when the product is asked for. */
template <int E>
DEV void wgmma_64x128x16_shared(float (&d)[16][4], uint64_t a, uint64_t b, bool add) {
    const uint32_t lane = threadIdx.x % 32, eights = threadIdx.x / 32 % 4 * 2;
    uint32_t v[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t eight = (uint32_t)(a >> 32 & 0x3fff) * 16;
        const uint32_t at = (uint32_t)(a & 0x3fff) * 16 + (eights + i % 2) * eight +
                            lane / 4 * 128 + i / 2 * 16 + lane % 4 * 4;
        v[i] = *(const uint32_t *)(emu_self->shared + (at ^ (at >> 7 & 7) << 4));
    }
    wgmma_emulated(&d[0][0], make_uint4(v[0], v[1], v[2], v[3]), b, 16, E == E_F16, add, false);
}
template <int E> DEV void wgmma_64x32x16_turned(float (&d)[4][4], uint4 a, uint64_t b, bool add) {
    wgmma_emulated(&d[0][0], a, b, 4, E == E_F16, add, true);
}

#endif
