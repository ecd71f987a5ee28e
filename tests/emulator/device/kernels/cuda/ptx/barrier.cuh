/* barrier.cuh - kernels/cuda/ptx/barrier.cuh on the emulated GPU. */
#ifndef QN_CUDA_PTX_BARRIER_CUH
#define QN_CUDA_PTX_BARRIER_CUH

#include "base/abi.h"

#define DEV static inline

DEV void barrier_init(uint64_t *b, uint32_t arrivals) {
    emu_barrier_init(b, arrivals);
}
DEV void barrier_init_fence(void) {}
DEV void barrier_arrive_release_cta(uint64_t *b) {
    emu_barrier_arrive(b);
}
DEV bool barrier_test_acquire_cta(uint64_t *b, uint32_t parity) {
    return emu_barrier_test(b, parity) != 0;
}
DEV bool barrier_try_acquire_cta(uint64_t *b, uint32_t parity) {
    return emu_barrier_try(b, parity) != 0;
}
DEV void barrier_wait_acquire_cta(uint64_t *b, uint32_t parity) {
    while (!barrier_try_acquire_cta(b, parity)) {
    }
}
DEV void barrier_await_acquire_cta(uint64_t *b, uint32_t parity) {
    barrier_wait_acquire_cta(b, parity);
}
template <int THREADS> DEV void barrier_sync_compute(void) {
    emu_sync(1, THREADS);
}
template <int THREADS> DEV void barrier_sync_team(uint32_t team) {
    emu_sync(team + 2, THREADS);
}
DEV void barrier_sync_pair(uint32_t pair) {
    emu_sync(pair + 2, 64);
}

#endif
