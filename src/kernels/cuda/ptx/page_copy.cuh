/* page_copy.cuh - one page of weights from global into shared memory, completing on a barrier.
 *
 * sm_90 and later: one bulk copy issued by lane 0. Before that: 16-byte asynchronous copies by the
 * whole warp. Either way the barrier's phase completes when all bytes have landed; the barrier was
 * initialised with page_copy_arrivals(). LOADER_LANES lanes of the warp call it together.
 */
#ifndef QN_CUDA_PTX_PAGE_COPY_CUH
#define QN_CUDA_PTX_PAGE_COPY_CUH

#include "kernels/cuda/ptx/memory.cuh"

#if __CUDA_ARCH__ >= 900

DEV uint32_t page_copy_arrivals(void) {
    return 1;
}

/* The bytes are read once per iteration: first to leave the L2. */
DEV void page_copy_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full,
                               uint32_t lane) {
    if (lane != 0) return;
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx_shared_address(full)),
        "r"(bytes)
        : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(ptx_shared_address(dst)),
                 "l"(src), "r"(bytes), "r"(ptx_shared_address(full)), "l"(0x12F0000000000000ull)
                 : "memory");
}

/* The phase completes without a copy. */
DEV void page_copy_nothing(uint64_t *full, uint32_t lane) {
    if (lane == 0) barrier_arrive_release_cta(full);
}

/* A phase of several copies by a whole warp: begin with the sum of their bytes, copies, end. Copy i
 * is made by the lanes whose share_first, share_first + share_step ... it is. */
DEV void share_begin(uint64_t *full, uint32_t bytes, uint32_t lane) {
    if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                         ptx_shared_address(full)),
                     "r"(bytes)
                     : "memory");
    __syncwarp();
}
DEV uint32_t share_first(uint32_t lane) {
    return lane;
}
DEV uint32_t share_step(void) {
    return 32;
}
DEV void share_copy(void *dst, const void *src, uint32_t bytes, uint64_t *full, uint32_t lane) {
    (void)lane;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];" ::"r"(ptx_shared_address(dst)),
                 "l"(src), "r"(bytes), "r"(ptx_shared_address(full))
                 : "memory");
}
DEV void share_end(uint64_t *full, uint32_t lane) {
    (void)full, (void)lane;
}

/* Lanes of the loader warp that take part. */
#define LOADER_LANES 1

#else

#define LOADER_LANES 32

DEV void page_copy_nothing(uint64_t *full, uint32_t lane) {
    (void)lane;
    barrier_arrive_release_cta(full);
}

DEV uint32_t page_copy_arrivals(void) {
    return 32;
}

DEV void page_copy_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full,
                               uint32_t lane) {
    for (uint32_t i = lane * 16; i < bytes; i += 32 * 16)
        copy16_async((char *)dst + i, (const char *)src + i);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ptx_shared_address(full))
                 : "memory");
}

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
    for (uint32_t i = lane * 16; i < bytes; i += 32 * 16)
        copy16_async((char *)dst + i, (const char *)src + i);
}
DEV void share_end(uint64_t *full, uint32_t lane) {
    (void)lane;
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(ptx_shared_address(full))
                 : "memory");
}

#endif
#endif
