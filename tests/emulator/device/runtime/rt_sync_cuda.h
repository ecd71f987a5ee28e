/* rt_sync_cuda.h - runtime/rt_sync_cuda.h on the emulated GPU: the same orders as C11 atomics. */
#ifndef QN_RUNTIME_RT_SYNC_CUDA_H
#define QN_RUNTIME_RT_SYNC_CUDA_H

#include "base/abi.h"

/* Polls load relaxed. */
RT_FN uint32_t rt_load_relaxed(const uint32_t *p) {
    emu_wait();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}
RT_FN uint32_t rt_load_acquire(const uint32_t *p) {
    emu_wait();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
RT_FN void rt_store_relaxed(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
    emu_point();
}
RT_FN void rt_store_release(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
    emu_point();
}
RT_FN uint64_t rt_load64_relaxed(const uint64_t *p) {
    emu_wait();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

RT_FN void rt_store64_release(uint64_t *p, uint64_t v) {
    emu_point();
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

RT_FN uint64_t rt_add64_acquire(uint64_t *p, uint64_t v) {
    emu_point();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQUIRE);
}

RT_FN uint32_t rt_add_acq_rel(uint32_t *p, uint32_t v) {
    emu_point();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}
RT_FN void rt_add_relaxed(uint32_t *p, uint32_t v) {
    emu_point();
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
RT_FN int rt_cas_relaxed(uint32_t *p, uint32_t old, uint32_t desired) {
    emu_point();
    return __atomic_compare_exchange_n(p, &old, desired, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
RT_FN int rt_cas_acquire(uint32_t *p, uint32_t old, uint32_t desired) {
    emu_point();
    return __atomic_compare_exchange_n(p, &old, desired, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
/* ThreadSanitizer models no fences: a second look, acquiring. */
RT_FN void rt_fence_acquire(const uint32_t *p) {
    (void)__atomic_load_n(p, __ATOMIC_ACQUIRE);
}
RT_FN void rt_prefetch(const void *p) {
    (void)p;
}
RT_FN void rt_touch(const void *p) {
    (void)p;
}
RT_FN void rt_pause(uint32_t spins, uint32_t limit) {
    (void)spins, (void)limit;
    emu_wait();
}
RT_FN uint64_t rt_now_ns(void) {
    return emu_now_ns();
}
RT_FN uint32_t rt_host_load_acquire(const uint32_t *p) {
    return rt_load_acquire(p);
}
RT_FN void rt_host_store_release(uint32_t *p, uint32_t v) {
    rt_store_release(p, v);
}
RT_FN uint32_t rt_host_load_relaxed(const uint32_t *p) {
    return rt_load_relaxed(p);
}
RT_FN void rt_host_fence_acquire(const uint32_t *p) {
    (void)__atomic_load_n(p, __ATOMIC_ACQUIRE);
}
RT_FN void rt_host_fence_release(void) {}
/* A fence and a relaxed store, as one. */
RT_FN void rt_host_store_relaxed(uint32_t *p, uint32_t v) {
    rt_store_release(p, v);
}
RT_FN void rt_host_publish(uint32_t *p, uint32_t v) {
    rt_store_release(p, v);
}
RT_FN void rt_host_add_release(uint32_t *p, uint32_t v) {
    rt_store_release(p, __atomic_load_n(p, __ATOMIC_RELAXED) + v);
}
RT_FN void rt_host_wait(const uint32_t *p, uint32_t expected, uint32_t spins) {
    (void)p, (void)expected, (void)spins;
    emu_wait();
}
RT_FN int rt_host_poller(uint32_t worker) {
    return worker == 0;
}
RT_FN void rt_host_wake(uint32_t *p, uint32_t *sleepers) {
    (void)p, (void)sleepers;
}

#endif
