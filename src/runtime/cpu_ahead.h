/* cpu_ahead.h - a worker that waits brings the weights of its next task into its cache.
 *
 * Weights depend on nothing, so they can be asked for while the task's event is not activated yet:
 * what the loader warps do on a GPU, here in the idle polls of a worker, some lines each, up to
 * what a core's second cache holds well.
 */
#ifndef QN_RUNTIME_CPU_AHEAD_H
#define QN_RUNTIME_CPU_AHEAD_H

#include "runtime/cpu_core.h"

enum { CPU_AHEAD_BYTES = 512 << 10, CPU_AHEAD_SPANS = 3 };

/* Of one worker; zeroed at first. */
struct cpu_ahead {
    uint32_t task;    /* + 1, whose weights these are; 0: none yet */
    uint32_t n, next; /* spans; the one at hand */
    uint64_t at;      /* bytes of it that were asked for */
    uint64_t asked;   /* bytes in all */
    struct {
        const char *base;
        uint64_t bytes;
    } span[CPU_AHEAD_SPANS];
};

/* One idle poll of a worker whose next AOT task is `task` (RT_NONE: there is none). */
void cpu_ahead_step(const struct cpu_core *core, struct cpu_ahead *a, uint32_t task);

#endif
