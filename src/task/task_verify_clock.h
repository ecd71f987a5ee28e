/* task_verify_clock.h - what each task of a variant comes after, by vector clocks.
 *
 * Where events ride on data, events alone no longer say what is visible to whom: only a counter's
 * trigger releases and only a wait for a counter acquires. But a worker does its tasks one after
 * the other, so a trigger releases everything that its worker did before, and a wait acquires for
 * everything that its worker does later. (Fidge and Mattern's clocks; "happens before" is C11's.)
 */
#ifndef QN_TASK_TASK_VERIFY_CLOCK_H
#define QN_TASK_TASK_VERIFY_CLOCK_H

#include "base/arena.h"
#include "task/program.h"

struct verify_clock {
    uint32_t n_workers;
    uint32_t *place; /* [n_tasks] place in its worker's list, from 1; 0 for an empty task */
    uint32_t *known; /* [n_tasks][n_workers]: places up to which each worker is done with its list,
                        visibly, before the task begins */
};

/* Tasks are counted from the variant's first. The variant has no JIT tasks and cannot deadlock
 * (task_verify has shown it). Lives in the arena. Errors: QN_ENOMEM. */
int verify_clock_make(struct diag *d, struct arena *arena, const struct prog_header *p,
                      const struct prog_variant *v, struct verify_clock *out);

#endif
