/* memory.cuh - kernels/cuda/ptx/memory.cuh on the emulated GPU. */
#ifndef QN_CUDA_PTX_MEMORY_CUH
#define QN_CUDA_PTX_MEMORY_CUH

#include "kernels/cuda/ptx/barrier.cuh"

#define shared_memory (emu_self->shared)

DEV float load_l2(const float *p) {
    return *p;
}
DEV float4 load4_l2(const float *p) {
    return *(const float4 *)p;
}
DEV uint4 load_vector_l2(const void *p) {
    return *(const uint4 *)p;
}
DEV int32_t load_index_l2(const int32_t *p) {
    return *p;
}
DEV void touch(const float *p) {
    volatile float v = *p;
    (void)v;
}
DEV void add_release_gpu(uint32_t *p, uint32_t v) {
    __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
    emu_point();
}
/* A poll: whoever reads such a word may be waiting for it. */
DEV uint32_t shared_load_volatile(const uint32_t *p) {
    emu_wait();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
DEV void shared_store_volatile(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
    emu_news();
}
DEV void pause_ns(uint32_t ns) {
    (void)ns;
    emu_wait();
}
DEV void copy16_async(void *dst, const void *src) {
    emu_copy16(dst, src);
}
DEV void copy_commit(void) {
    emu_copy_commit();
}
template <int N> DEV void copy_wait(void) {
    emu_copy_wait(N);
}

#endif
