/* rt_sync.h - the primitives under the protocol, with the memory order in each name. The worker and
 * boundary roles (rt_worker.h, rt_claim.h, rt_boundary.h) are plain C over these and nothing else,
 * so every backend runs the same protocol.
 *
 *   uint32_t rt_load_relaxed(p)            for polling, followed by rt_fence_acquire(p) on success
 *   uint32_t rt_load_acquire(p)
 *   void     rt_store_relaxed(p, v)
 *   void     rt_store_release(p, v)
 *   uint32_t rt_add_acq_rel(p, v)          fetch-and-add; returns the value before
 *   void     rt_add_relaxed(p, v)
 *   int      rt_cas_relaxed(p, old, new)   whether *p was `old` and now is `new`
 *   int      rt_cas_acquire(p, old, new)   the same, acquiring when it succeeds
 *   void     rt_fence_acquire(p)           what follows is ordered after the relaxed load of *p
 *   void     rt_prefetch(p)                *p is wanted soon
 *   void     rt_touch(p)                   *p is wanted next, by this worker
 *   void     rt_pause(spins, limit)        between two polls; after `limit` of them lets others run
 *   uint64_t rt_now_ns()                   a clock that only goes forward
 *
 * Words that the host shares with a running kernel need a wider scope on a GPU:
 *
 *   uint32_t rt_host_load_acquire(p)
 *   uint32_t rt_host_load_relaxed(p)       followed by rt_host_fence_acquire(p) if it brings news
 *   void     rt_host_fence_acquire(p)
 *   void     rt_host_fence_release()       what precedes is before relaxed stores that follow
 *   void     rt_host_store_relaxed(p, v)
 *   void     rt_host_store_release(p, v)
 *   void     rt_host_publish(p, v)         a release store that rt_host_wake(p, ...) may follow
 *   void     rt_host_add_release(p, v)
 *   void     rt_host_wake(p, sleepers)     wakes the threads that sleep on *p, if *sleepers says
 *                                          there may be any (nothing on a GPU: the host polls)
 *
 *   void     rt_host_wait(p, expected, n)  idle, n-th look: sleeps while *p == expected, or pauses
 *   int      rt_host_poller(worker)        whether this worker looks at the host's words when idle
 *
 *   uint64_t rt_load64_relaxed(p)          of an aligned 64-bit word
 *   void     rt_store64_release(p, v)
 *   uint64_t rt_add64_acquire(p, v)        fetch-and-add; returns the value before
 *
 * All other primitives work on aligned 32-bit words. Why each hand-over needs the order that it
 * has: docs/runtime.md. RT_FN marks a function of the protocol, RT_COLD one that a GPU keeps out of
 * line, RT_UNROLL a loop whose array must live in registers. The same text is C17 and CUDA C++.
 */
#ifndef QN_RUNTIME_RT_SYNC_H
#define QN_RUNTIME_RT_SYNC_H

#include "base/abi.h"

#ifdef __CUDACC__
#define RT_FN     __device__ static inline
#define RT_COLD   __device__ __noinline__ static
#define RT_UNROLL _Pragma("unroll")
#else
#define RT_FN   static inline
#define RT_COLD static inline
#define RT_UNROLL
#endif

#ifdef __CUDACC__
#include "runtime/rt_sync_cuda.h"
#else
#include "runtime/rt_sync_cpu.h"
#endif

#endif
