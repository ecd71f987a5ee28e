/* task_verify.h - proof that a program cannot race and cannot hang.
 *
 * Works on the final tables only, with none of the code that made them: op.def's access maps are
 * read by an evaluator of its own (task_verify_map.c) and become rectangles of bytes
 * (task_verify_touch.c). It proves, per variant:
 *
 *   counts    every event's n_triggers is the number of tasks that trigger it; its dependents are
 *             exactly the tasks in its range; every AOT task is in its worker's list, once
 *   cover     the tiles of each operator are disjoint and make up its whole output
 *   ending    the start event leads to every task, and every task leads to the end event, so that
 *             an iteration ends, and nothing of it overlaps the next one
 *   deadlock  events and the order of each worker's list never close a cycle: under FIFO execution
 *             some task can always run
 *   races     if two tasks touch the same bytes and one of them writes, the task that the
 *             operators' order puts first ends before the other begins: its trigger leads to the
 *             other's wait. Writes come before the reads of the same tensor, all accesses of a
 *             tensor before those of a later one in the same bytes. Bytes are those of the
 *             workspace; KV rows of different slots and positions are disjoint (rt_boundary.h)
 *   transport if an event has no counter, its dependents poll flagged data of each of its
 *             producers; plain data is read behind counters that the reader or an earlier task of
 *             its worker waits for; flagged bytes belong to no other tensor, and only kernels that
 *             know flags touch them; what each worker did reaches the end of the iteration through
 *             counters; plain bytes are used again only where counters and the order of each
 *             worker's list show that no task uses them any more
 *
 * Runs on every compile and on every program that is opened. Cost: one pass over tasks, and a
 * transitive closure over events with one bit per pair.
 */
#ifndef QN_TASK_TASK_VERIFY_H
#define QN_TASK_TASK_VERIFY_H

#include "task/program.h"

struct verify_report {
    uint64_t n_tasks, n_events;
    uint64_t n_class_pairs; /* pairs of (wait, trigger) classes compared */
    uint64_t n_task_pairs;  /* pairs of tasks whose bytes had to be compared */
};

/* Errors: QN_EVERIFY; the message names the two tasks and the missing order. report may be NULL.
 * p must have passed program_check. */
int task_verify(struct diag *d, const struct prog_header *p, struct verify_report *report);

#endif
