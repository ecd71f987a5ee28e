/* page_copy_bulk.cuh - kernels/cuda/ptx/page_copy_bulk.cuh on the emulated GPU. */
#ifndef QN_CUDA_PTX_PAGE_COPY_BULK_CUH
#define QN_CUDA_PTX_PAGE_COPY_BULK_CUH

#include "kernels/cuda/ptx/memory.cuh"

#define LOADER_PAGES 2
DEV uint32_t loader_page_of(uint32_t lane) {
    return lane;
}

enum { PAGES_ARE_HELD = 1 };

DEV uint32_t page_copy_arrivals(void) {
    return 1;
}
DEV void page_copy_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full,
                               uint32_t lane) {
    (void)lane;
    emu_copy_bulk(dst, src, bytes, full);
    barrier_arrive_release_cta(full);
}
DEV void page_copy_two_evict_first(void *dst, uint32_t apart, const void *src0, const void *src1,
                                   uint32_t bytes, uint64_t *full, uint32_t lane) {
    (void)lane;
    emu_copy_bulk(dst, src0, bytes, full);
    emu_copy_bulk((char *)dst + apart, src1, bytes, full);
    barrier_arrive_release_cta(full);
}
DEV void page_copy_nothing(uint64_t *full) {
    barrier_arrive_release_cta(full);
}
DEV void share_begin(uint64_t *full, uint32_t bytes, uint32_t lane) {
    (void)full, (void)bytes, (void)lane;
}
DEV uint32_t share_first(uint32_t lane) {
    return lane;
}
DEV uint32_t share_step(void) {
    return 32;
}
DEV void share_copy(void *dst, const void *src, uint32_t bytes, uint64_t *full, uint32_t lane) {
    (void)lane;
    emu_copy_bulk(dst, src, bytes, full);
}
DEV void share_end(uint64_t *full, uint32_t lane) {
    __syncwarp(); /* here, bytes are expected as they are asked for */
    if (lane == 0) barrier_arrive_release_cta(full);
}
/* The first lane. */
DEV bool warp_elect(void) {
    return threadIdx.x % 32 == 0;
}
DEV void copies_begin(uint64_t *full, uint32_t bytes) {
    (void)full, (void)bytes;
}
DEV void copies_one(void *dst, const void *src, uint32_t bytes, uint64_t *full) {
    emu_copy_bulk(dst, src, bytes, full);
}
DEV void copies_one_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full) {
    emu_copy_bulk(dst, src, bytes, full);
}
DEV void copies_end(uint64_t *full) {
    barrier_arrive_release_cta(full);
}
DEV void page_copy_fence(void) {}
DEV void page_copy_fence_shared(void) {}
#endif
