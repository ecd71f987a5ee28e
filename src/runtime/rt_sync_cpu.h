/* rt_sync_cpu.h - rt_sync.h's primitives as C11 atomics (the compilers' __atomic builtins, which
 * work on plain words, so that the structs stay the same on the device).
 *
 * QN_STRESS: every primitive yields or sleeps now and then, to shake out orders that a quiet
 * machine never shows. Only that build has a (thread-local) variable in this file.
 */
#ifndef QN_RUNTIME_RT_SYNC_CPU_H
#define QN_RUNTIME_RT_SYNC_CPU_H

#include "base/abi.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RT_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(RT_TSAN)
#define RT_TSAN 1
#endif

#ifdef QN_STRESS
static _Thread_local uint32_t rt_stress_state;

static inline void rt_stress(void) {
    uint32_t x = rt_stress_state;
    if (x == 0) x = (uint32_t)(uintptr_t)&rt_stress_state | 1; /* differs between threads */
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    rt_stress_state = x;
    if (x % 16 == 0) sched_yield();
    if (x % 4096 == 1) usleep(x >> 16 & 63);
}
#else
static inline void rt_stress(void) {}
#endif

static inline uint32_t rt_load_relaxed(const uint32_t *p) {
    rt_stress();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline uint32_t rt_load_acquire(const uint32_t *p) {
    rt_stress();
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void rt_store_relaxed(uint32_t *p, uint32_t v) {
    rt_stress();
    __atomic_store_n(p, v, __ATOMIC_RELAXED);
}

static inline void rt_store_release(uint32_t *p, uint32_t v) {
    rt_stress();
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline uint64_t rt_load64_relaxed(const uint64_t *p) {
    rt_stress();
    return __atomic_load_n(p, __ATOMIC_RELAXED);
}

static inline void rt_store64_release(uint64_t *p, uint64_t v) {
    rt_stress();
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

static inline uint64_t rt_add64_acquire(uint64_t *p, uint64_t v) {
    rt_stress();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQUIRE);
}

static inline uint32_t rt_add_acq_rel(uint32_t *p, uint32_t v) {
    rt_stress();
    return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL);
}

static inline void rt_add_relaxed(uint32_t *p, uint32_t v) {
    rt_stress();
    __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}

static inline int rt_cas_relaxed(uint32_t *p, uint32_t old, uint32_t desired) {
    rt_stress();
    return __atomic_compare_exchange_n(p, &old, desired, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static inline int rt_cas_acquire(uint32_t *p, uint32_t old, uint32_t desired) {
    rt_stress();
    return __atomic_compare_exchange_n(p, &old, desired, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void rt_fence_acquire(const uint32_t *p) {
#ifdef RT_TSAN
    /* ThreadSanitizer does not model fences: read again, acquiring. */
    (void)__atomic_load_n(p, __ATOMIC_ACQUIRE);
#else
    (void)p;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

/* On the CPU recently written data is near, so nothing is prefetched. */
static inline void rt_prefetch(const void *p) {
    (void)p;
}

static inline void rt_touch(const void *p) {
    (void)p;
}

static inline void rt_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

/* Hand-overs between running workers take less than a microsecond and are met by the first polls. A
 * wait that outlasts them means that the other workers run something long, or that there are more
 * threads than CPUs. Then a waiting worker leaves its CPU to other threads, first by yielding, then
 * by sleeping. */
enum { RT_PAUSE_YIELDS = 64, RT_PAUSE_SLEEP_NS = 20000 };

static inline void rt_pause(uint32_t spins, uint32_t limit) {
    static const struct timespec nap = {0, RT_PAUSE_SLEEP_NS};
    rt_stress();
    if (spins < limit)
        rt_cpu_relax();
    else if (spins < limit + RT_PAUSE_YIELDS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}

static inline uint64_t rt_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sleeps until *p differs from `expected`, another thread wakes p's sleepers, or timeout_ns have
 * passed; may return early. The kernel compares and goes to sleep in one step, so that a change of
 * *p made before the wake-up call is never missed. */
static inline void rt_host_sleep(const uint32_t *p, uint32_t expected, uint64_t timeout_ns) {
    struct timespec t = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};
    syscall(SYS_futex, p, FUTEX_WAIT_PRIVATE, expected, &t, NULL, 0);
}

static inline void rt_host_wake_all(uint32_t *p) {
    syscall(SYS_futex, p, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline uint32_t rt_host_load_acquire(const uint32_t *p) {
    return rt_load_acquire(p);
}

static inline void rt_host_store_release(uint32_t *p, uint32_t v) {
    rt_store_release(p, v);
}

/* On the CPU the fences are part of the accesses: ThreadSanitizer does not model fences, and on the
 * processors of today both forms cost the same. */
static inline uint32_t rt_host_load_relaxed(const uint32_t *p) {
    return rt_load_acquire(p);
}

static inline void rt_host_fence_acquire(const uint32_t *p) {
    (void)p;
}

static inline void rt_host_fence_release(void) {}

static inline void rt_host_store_relaxed(uint32_t *p, uint32_t v) {
    rt_store_release(p, v);
}

/* As rt_host_add_release below. */
static inline void rt_host_publish(uint32_t *p, uint32_t v) {
    rt_stress();
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);
}

/* Sequentially consistent with the sleeper's announcement (rt_host_announce): either the waker sees
 * the sleeper or the sleeper sees the new value. */
static inline void rt_host_add_release(uint32_t *p, uint32_t v) {
    rt_stress();
    __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}

static inline void rt_host_wake(uint32_t *p, uint32_t *sleepers) {
    rt_stress();
    if (__atomic_load_n(sleepers, __ATOMIC_SEQ_CST) != 0) rt_host_wake_all(p);
}

/* Waits between two looks at one of the host's words while there is no work: first a short spin,
 * for the request that follows at once, then sleep. The timeout is only a safeguard. */
static inline void rt_host_wait(const uint32_t *p, uint32_t expected, uint32_t spins) {
    rt_stress();
    if (spins < 2000)
        rt_cpu_relax();
    else
        rt_host_sleep(p, expected, 1000000000u);
}

/* Whether this worker looks at the host's words when idle: on the CPU all sleep on them. */
static inline int rt_host_poller(uint32_t worker) {
    (void)worker;
    return 1;
}

/* A thread that is going to sleep on a word says so first (change: +1), then looks at the word once
 * more; after waking it takes the announcement back (change: -1). */
static inline void rt_host_announce(uint32_t *sleepers, int change) {
    __atomic_fetch_add(sleepers, (uint32_t)change, __ATOMIC_SEQ_CST);
}

#endif
