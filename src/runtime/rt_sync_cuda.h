/* rt_sync_cuda.h - rt_sync.h's primitives as PTX, mostly one instruction each: scope .gpu for words
 * that blocks share, .sys for words that the host shares. All but the two prefetches clobber
 * memory, so that the compiler moves no access across them.
 *
 * A release by one thread covers that thread's own stores and what it has observed (cumulativity):
 * a block first meets at a barrier, then one thread triggers.
 */
#ifndef QN_RUNTIME_RT_SYNC_CUDA_H
#define QN_RUNTIME_RT_SYNC_CUDA_H

#include "base/abi.h"

RT_FN uint32_t rt_load_relaxed(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

RT_FN uint32_t rt_load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

RT_FN void rt_store_relaxed(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

RT_FN void rt_store_release(uint32_t *p, uint32_t v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

RT_FN uint64_t rt_load64_relaxed(const uint64_t *p) {
    uint64_t v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

RT_FN void rt_store64_release(uint64_t *p, uint64_t v) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

RT_FN uint64_t rt_add64_acquire(uint64_t *p, uint64_t v) {
    uint64_t old;
    asm volatile("atom.acquire.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(p), "l"(v)
                 : "memory");
    return old;
}

RT_FN uint32_t rt_add_acq_rel(uint32_t *p, uint32_t v) {
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(p), "r"(v)
                 : "memory");
    return old;
}

RT_FN void rt_add_relaxed(uint32_t *p, uint32_t v) {
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

RT_FN int rt_cas_relaxed(uint32_t *p, uint32_t old, uint32_t desired) {
    uint32_t was;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(was)
                 : "l"(p), "r"(old), "r"(desired)
                 : "memory");
    return was == old;
}

RT_FN int rt_cas_acquire(uint32_t *p, uint32_t old, uint32_t desired) {
    uint32_t was;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(was)
                 : "l"(p), "r"(old), "r"(desired)
                 : "memory");
    return was == old;
}

RT_FN void rt_fence_acquire(const uint32_t *p) {
    (void)p;
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

RT_FN void rt_prefetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* Prefetches into L1, which the next acquire empties. (ptxas removes a load whose result is not
 * used.) */
RT_FN void rt_touch(const void *p) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

/* The first polls follow each other at once; later ones leave the memory system alone for a while.
 */
RT_FN void rt_pause(uint32_t spins, uint32_t limit) {
    if (spins >= limit) asm volatile("nanosleep.u32 %0;" ::"r"(64u) : "memory");
}

RT_FN uint64_t rt_now_ns(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

RT_FN uint32_t rt_host_load_acquire(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

RT_FN void rt_host_store_release(uint32_t *p, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

RT_FN uint32_t rt_host_load_relaxed(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

RT_FN void rt_host_fence_acquire(const uint32_t *p) {
    (void)p;
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

RT_FN void rt_host_fence_release(void) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

RT_FN void rt_host_store_relaxed(uint32_t *p, uint32_t v) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

RT_FN void rt_host_publish(uint32_t *p, uint32_t v) {
    rt_host_store_release(p, v);
}

/* Host-mapped words have one writer on the device at a time, so that no atomic crosses the bus. */
RT_FN void rt_host_add_release(uint32_t *p, uint32_t v) {
    uint32_t old;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(old) : "l"(p) : "memory");
    rt_host_store_release(p, old + v);
}

/* A read of host memory is a trip over the bus, so polls are throttled, and one block does them. */
RT_FN void rt_host_wait(const uint32_t *p, uint32_t expected, uint32_t spins) {
    (void)p;
    (void)expected;
    if (spins > 64) asm volatile("nanosleep.u32 %0;" ::"r"(1000u) : "memory");
}

RT_FN int rt_host_poller(uint32_t worker) {
    return worker == 0;
}

RT_FN void rt_host_wake(uint32_t *p, uint32_t *sleepers) {
    (void)p;
    (void)sleepers;
}

#endif
