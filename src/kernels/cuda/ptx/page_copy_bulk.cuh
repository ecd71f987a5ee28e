/* page_copy_bulk.cuh - page_copy.cuh by bulk copies: sm_90 and later. */
#ifndef QN_CUDA_PTX_PAGE_COPY_BULK_CUH
#define QN_CUDA_PTX_PAGE_COPY_BULK_CUH

#include "kernels/cuda/ptx/memory.cuh"

/* Pages that the loader's warp requests at a time, and which of them is a lane's. */
#define LOADER_PAGES 2
DEV uint32_t loader_page_of(uint32_t lane) {
    return lane;
}

/* Whether a one-row task takes a page into registers before its event (matmul/matvec.cuh). */
enum { PAGES_ARE_HELD = 1 };

DEV uint32_t page_copy_arrivals(void) {
    return 1;
}

/* The phase completes without a copy. */
DEV void page_copy_nothing(uint64_t *full) {
    barrier_arrive_release_cta(full);
}

/* Arrives; the phase completes when `bytes` have landed, too. */
DEV void page_copy_expect(uint64_t *full, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx_shared_address(full)),
        "r"(bytes)
        : "memory");
}

/* The bytes are read once per iteration, so they leave the L2 first. */
DEV void page_copy_bulk(void *dst, const void *src, uint32_t bytes, uint64_t *full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(ptx_shared_address(dst)),
                 "l"(src), "r"(bytes), "r"(ptx_shared_address(full)), "l"(0x12F0000000000000ull)
                 : "memory");
}

DEV void page_copy_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full,
                               uint32_t lane) {
    (void)lane;
    page_copy_expect(full, bytes);
    page_copy_bulk(dst, src, bytes, full);
}

/* Copies two stretches of `bytes` each, whose starts are `apart` bytes apart in the page. */
DEV void page_copy_two_evict_first(void *dst, uint32_t apart, const void *src0, const void *src1,
                                   uint32_t bytes, uint64_t *full, uint32_t lane) {
    (void)lane;
    page_copy_expect(full, 2 * bytes);
    page_copy_bulk(dst, src0, bytes, full);
    page_copy_bulk((char *)dst + apart, src1, bytes, full);
}

/* Bulk copies read through a proxy of their own. The fence puts the copies that this thread
 * requests afterwards behind the stores of other threads that it has acquired. */
DEV void page_copy_fence(void) {
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* The same for accesses to shared memory: they are ordered before later copies that write there. */
DEV void page_copy_fence_shared(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A phase of several copies by a whole warp: share_begin with the sum of their bytes, the copies,
 * share_end. A lane takes part in copies number share_first, share_first + share_step and so on. */
DEV void share_begin(uint64_t *full, uint32_t bytes, uint32_t lane) {
    if (lane == 0) page_copy_expect(full, bytes);
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

/* True in one lane of a converged warp. The compiler knows that it is a single lane. */
DEV bool warp_elect(void) {
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(elected));
    return elected != 0;
}

/* A phase of several copies by one thread. */
DEV void copies_begin(uint64_t *full, uint32_t bytes) {
    page_copy_expect(full, bytes);
}
DEV void copies_one(void *dst, const void *src, uint32_t bytes, uint64_t *full) {
    share_copy(dst, src, bytes, full, 0);
}
/* The bytes are read once per iteration, so they leave the L2 first. */
DEV void copies_one_evict_first(void *dst, const void *src, uint32_t bytes, uint64_t *full) {
    page_copy_bulk(dst, src, bytes, full);
}
DEV void copies_end(uint64_t *full) {
    (void)full;
}

#endif
