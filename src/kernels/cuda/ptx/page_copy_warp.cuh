/* page_copy_warp.cuh - page_copy.cuh by all lanes of a warp: before sm_90. */
#ifndef QN_CUDA_PTX_PAGE_COPY_WARP_CUH
#define QN_CUDA_PTX_PAGE_COPY_WARP_CUH

#include "kernels/cuda/ptx/memory.cuh"

#define LOADER_PAGES 1
DEV uint32_t loader_page_of(uint32_t lane) {
    (void)lane;
    return 0;
}

/* Waits take registers here, so a page would be spilled (matmul/matvec.cuh). */
enum { PAGES_ARE_HELD = 0 };

DEV void page_copy_nothing(uint64_t *full) {
    barrier_arrive_release_cta(full);
}

DEV uint32_t page_copy_arrivals(void) {
    return 32;
}

DEV void page_copy_part(void *dst, const void *src, uint32_t bytes, uint32_t lane) {
    for (uint32_t i = lane * 16; i < bytes; i += 32 * 16)
        copy16_async((char *)dst + i, (const char *)src + i);
}

DEV void page_copy_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full,
                               uint32_t lane) {
    page_copy_part(dst, src, bytes, lane);
    copy_arrive(full);
}

DEV void page_copy_two_evict_first(void *dst, uint32_t apart, const void *src0, const void *src1,
                                   uint32_t bytes, uint64_t *full, uint32_t lane) {
    page_copy_part(dst, src0, bytes, lane);
    page_copy_part((char *)dst + apart, src1, bytes, lane);
    copy_arrive(full);
}

/* These copies take the path of all loads: no fence is needed. */
DEV void page_copy_fence(void) {}
DEV void page_copy_fence_shared(void) {}

DEV void share_begin(uint64_t *full, uint32_t bytes, uint32_t lane) {
    (void)full, (void)bytes, (void)lane;
}
DEV uint32_t share_first(uint32_t lane) {
    (void)lane;
    return 0;
}
DEV uint32_t share_step(void) {
    return 1;
}
DEV void share_copy(void *dst, const void *src, uint32_t bytes, uint64_t *full, uint32_t lane) {
    (void)full;
    page_copy_part(dst, src, bytes, lane);
}
DEV void share_end(uint64_t *full, uint32_t lane) {
    (void)lane;
    copy_arrive(full);
}

#endif
