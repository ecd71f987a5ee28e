/* memory.cuh - kernels/cuda/ptx/memory.cuh on the emulated GPU. */
#ifndef QN_CUDA_PTX_MEMORY_CUH
#define QN_CUDA_PTX_MEMORY_CUH

#include "kernels/cuda/ptx/barrier.cuh"

#define shared_memory (emu_self->shared)

#define ASSUME(x)     ((void)0)
#define KEEP(x)       ((void)0)
#define UNLIKELY(x)   __builtin_expect(x, false)

DEV void memory_check(void) {}

DEV uint32_t thread_here(void) {
    return threadIdx.x;
}
DEV float load_l2(const float *p) {
    return *p;
}
DEV float load_l2_if(bool wanted, const float *p) {
    return wanted ? *p : 0;
}
DEV float2 load2_l2(const float *p) {
    return *(const float2 *)p;
}
DEV float4 load4_l2(const float *p) {
    return *(const float4 *)p;
}
DEV void store4_own(float *p, float4 v) {
    *(float4 *)p = v;
}
DEV float4 load4_own(const float *p) {
    return *(const float4 *)p;
}
DEV uint32_t load_word_l2(const uint32_t *p) {
    return *p;
}
DEV void prefetch_l2(const void *p) {
    (void)p;
}
DEV uint4 load_vector_l2(const void *p) {
    return *(const uint4 *)p;
}
DEV int32_t load_index_l2(const int32_t *p) {
    return *p;
}
DEV uint2 load_flagged(const float *p) {
    uint64_t v = __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
    return make_uint2((uint32_t)v, (uint32_t)(v >> 32));
}
DEV uint4 load_flagged_pair(const float *p) {
    uint2 lo = load_flagged(p), hi = load_flagged(p + 2);
    return make_uint4(lo.x, lo.y, hi.x, hi.y);
}
DEV void store_flagged(float *p, float value, uint32_t flag) {
    uint64_t v = (uint64_t)flag << 32 | __float_as_uint(value);
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELAXED);
    emu_point();
}
DEV void store_flagged2(float *p, float a, float b, uint32_t flag) {
    store_flagged(p, a, flag);
    store_flagged(p + 2, b, flag);
}
DEV uint32_t load_word_polled(const void *p) {
    return __atomic_load_n((const uint32_t *)p, __ATOMIC_RELAXED);
}
DEV uint4 load_words4_polled(const void *p) {
    const uint32_t *w = (const uint32_t *)p;
    return make_uint4(load_word_polled(w), load_word_polled(w + 1), load_word_polled(w + 2),
                      load_word_polled(w + 3));
}
DEV void store_word(void *p, uint32_t v) {
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELAXED);
    emu_point();
}
DEV void store_words2(void *p, uint2 v) {
    const uint32_t words[2] = {v.x, v.y};
    for (int i = 0; i < 2; i++) __atomic_store_n((uint32_t *)p + i, words[i], __ATOMIC_RELAXED);
    emu_point();
}
DEV void store_words4(void *p, uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; i++) __atomic_store_n((uint32_t *)p + i, words[i], __ATOMIC_RELAXED);
    emu_point();
}
DEV void store_plain(float *p, float v) { /* so many of them that nobody else gets to run */
    __atomic_store_n((uint32_t *)p, __float_as_uint(v), __ATOMIC_RELAXED);
}
DEV void store2_plain(float *p, float2 v) {
    store_plain(p, v.x);
    store_plain(p + 1, v.y);
}
DEV void store4_plain(float *p, float4 v) {
    const float e[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; i++) store_plain(p + i, e[i]);
}
DEV void store_kept(float *p, float v) {
    store_plain(p, v);
}
DEV void touch(const float *p) {
    volatile float v = *p;
    (void)v;
}
DEV void add_release_gpu(uint32_t *p, uint32_t v) {
    __atomic_fetch_add(p, v, __ATOMIC_RELEASE);
    emu_point();
}
DEV void add_relaxed_gpu(uint32_t *p, uint32_t v) {
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
    emu_point();
}
DEV void add64_relaxed_gpu(uint64_t *p, uint64_t v) {
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
    emu_point();
}
/* A poll: whoever reads such a word may be waiting for it. */
DEV uint32_t shared_load_volatile(const uint32_t *p) {
    emu_wait();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
DEV uint32_t shared_load_acquire_cta(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
DEV void shared_store_release_cta(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
    emu_point();
}
DEV void shared_store_volatile(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
    emu_news();
}
DEV void pause_ns(uint32_t ns) {
    (void)ns;
    emu_wait();
}
/* Where every lane's row begins, from the block's shared memory on. */
DEV const uint32_t *rows_of_matrices(const void *row) {
    return emu_exchange((uint32_t)((const char *)row - emu_self->shared));
}
DEV uint4 load_matrices(const void *row) {
    const uint32_t *at = rows_of_matrices(row), lane = threadIdx.x % 32;
    uint32_t v[4];
    for (uint32_t m = 0; m < 4; m++)
        v[m] = *(const uint32_t *)(emu_self->shared + at[8 * m + lane / 4] + lane % 4 * 4);
    return make_uint4(v[0], v[1], v[2], v[3]);
}
DEV uint4 load_matrices_turned(const void *row) {
    const uint32_t *at = rows_of_matrices(row), lane = threadIdx.x % 32;
    uint32_t v[4];
    for (uint32_t m = 0; m < 4; m++) {
        const uint32_t *rows = at + 8 * m + lane % 4 * 2;
        const uint16_t lo = *(const uint16_t *)(emu_self->shared + rows[0] + lane / 4 * 2);
        const uint16_t hi = *(const uint16_t *)(emu_self->shared + rows[1] + lane / 4 * 2);
        v[m] = (uint32_t)hi << 16 | lo;
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}
DEV void copy16_async(void *dst, const void *src) {
    emu_copy16(dst, src);
}
DEV void copy16_once_async(void *dst, const void *src) {
    copy16_async(dst, src);
}
DEV void copy16_polled_async(void *dst, const void *src) {
    for (int i = 0; i < 4; i++) ((uint32_t *)dst)[i] = load_word_polled((const uint32_t *)src + i);
}
DEV void copy_commit(void) {
    emu_copy_commit();
}
DEV void copy_arrive(uint64_t *barrier) {
    emu_copy_arrive(barrier);
}
template <int N> DEV void copy_wait(void) {
    emu_copy_wait(N);
}

#endif
