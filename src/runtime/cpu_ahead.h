/* cpu_ahead.h - a waiting worker prefetches the weights of its next task into its cache.
 *
 * Weights depend on no task, so they can be prefetched before the task's event is activated, as the
 * loader warps do on a GPU. Here each idle poll of a worker prefetches some lines, up to what a
 * core's second-level cache holds well.
 */
#ifndef QN_RUNTIME_CPU_AHEAD_H
#define QN_RUNTIME_CPU_AHEAD_H

#include "runtime/cpu_core.h"

enum { CPU_AHEAD_BYTES = 512 << 10, CPU_AHEAD_SPANS = 3 };

/* Of one worker; zeroed at first. */
struct cpu_ahead {
    uint32_t task;    /* the task whose weights these are, + 1; 0: none yet */
    uint32_t n, next; /* spans; the one being prefetched */
    uint64_t at;      /* bytes of it that were prefetched */
    uint64_t asked;   /* bytes prefetched in all */
    struct {
        const char *base;
        uint64_t bytes;
    } span[CPU_AHEAD_SPANS];
};

/* One idle poll of a worker whose next task is `task` (RT_NONE: there is none). */
void cpu_ahead_step(const struct cpu_core *core, struct cpu_ahead *a, uint32_t task);

#endif
