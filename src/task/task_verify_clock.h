/* task_verify_clock.h - what each task of a variant comes after, by vector clocks.
 *
 * Where events ride on data, events alone no longer say what a worker can see: only a counter's
 * trigger releases and only a wait for a counter acquires. But a worker does its tasks one after
 * the other, so a trigger releases everything that its worker did before, and a wait acquires for
 * everything that its worker does later. (Fidge and Mattern's clocks; "happens before" is C11's.)
 */
#ifndef QN_TASK_TASK_VERIFY_CLOCK_H
#define QN_TASK_TASK_VERIFY_CLOCK_H

#include "base/status.h"
#include "task/program.h"

/* Called before every task that is not empty begins. task: counted from the variant's first. place:
 * in its worker's list, from 1. known[n_workers]: the places up to which each worker is visibly
 * done with its list. */
typedef void verify_clock_fn(void *user, uint32_t task, uint32_t worker, uint32_t place,
                             const uint32_t *known);

/* Runs the workers' lists in the abstract. The variant has no JIT tasks and cannot deadlock
 * (task_verify has shown it). Errors: QN_ENOMEM. */
int verify_clock_run(struct diag *d, const struct prog_header *p, const struct prog_variant *v,
                     verify_clock_fn *visit, void *user);

#endif
