/* barrier.cuh - mbarriers in shared memory and the named barrier of the compute warps. One function
 * per instruction; the memory order is in the name where there is a choice.
 *
 * A parity wait distinguishes two phases only: a thread that waits for phase n must know that phase
 * n - 1 is complete. Here every barrier has one waiting side that goes through the phases in order.
 */
#ifndef QN_CUDA_PTX_BARRIER_CUH
#define QN_CUDA_PTX_BARRIER_CUH

#include "base/abi.h"

#define DEV __device__ __forceinline__

/* Waits that last this many polls are a bug; the launch is aborted. A poll is at most some
 * microseconds, so this is minutes. */
#define BARRIER_PATIENCE (1u << 26)

DEV uint32_t ptx_shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

DEV void barrier_init(uint64_t *b, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(ptx_shared_address(b)), "r"(arrivals)
                 : "memory");
}

/* Makes the initialised barriers visible to the copy engine. */
DEV void barrier_init_fence(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

DEV void barrier_arrive_release_cta(uint64_t *b) {
    asm volatile(
        "{\n.reg .b64 s;\nmbarrier.arrive.shared.b64 s, [%0];\n}" ::"r"(ptx_shared_address(b))
        : "memory");
}

/* Whether the phase of that parity is complete; acquires when it is. Answers at once. */
DEV bool barrier_test_acquire_cta(uint64_t *b, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(ptx_shared_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
}

/* The same, but the thread may sleep for a while until the phase is complete: for threads that
 * would only poll again. */
DEV bool barrier_try_acquire_cta(uint64_t *b, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(ptx_shared_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
#else
    return barrier_test_acquire_cta(b, parity);
#endif
}

DEV void barrier_wait_acquire_cta(uint64_t *b, uint32_t parity) {
    uint32_t polls = 0;
    while (!barrier_try_acquire_cta(b, parity))
        if (++polls == BARRIER_PATIENCE) asm volatile("trap;");
}

/* The same, but it never gives up: a way out of the wait would look like a path of its own between
 * products that are under way (wgmma.cuh). */
DEV void barrier_await_acquire_cta(uint64_t *b, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n}" ::"r"(ptx_shared_address(b)),
                 "r"(parity)
                 : "memory");
#else
    barrier_wait_acquire_cta(b, parity);
#endif
}

/* All compute warps. Barrier 0 is __syncthreads. */
template <int THREADS> DEV void barrier_sync_compute(void) {
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* The warps of one team; `team`: below 14. */
template <int THREADS> DEV void barrier_sync_team(uint32_t team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 2), "n"(THREADS) : "memory");
}

/* Two warps; `pair`: below 14. */
DEV void barrier_sync_pair(uint32_t pair) {
    asm volatile("bar.sync %0, 64;" ::"r"(pair + 2) : "memory");
}

#endif
