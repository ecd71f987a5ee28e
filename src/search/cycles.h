/* cycles.h - the cost MODEL of found graphs: cycles of a multiprocessor, from one table of
 * constants.
 *
 * It is a model, not a measurement: it orders graphs for a reader and shows which are worth
 * measuring. It counts bytes over the stream's rate, trips to memory after an event, products of
 * pages, barriers of reductions, instructions of elementwise nodes, results, and hand-overs between
 * tasks. Costs add up over the nodes of a graph. A shared node counts once, as extraction needs.
 *
 *     cost of a task = rounds * (sum over its nodes of cycles)
 *     rounds         = tasks of the operator / workers, rounded up
 *
 * Costs are integers of 1/CYCLES_UNIT cycle, so that their sums do not depend on the order.
 */
#ifndef QN_SEARCH_CYCLES_H
#define QN_SEARCH_CYCLES_H

#include "search/skeleton.h"

enum { CYCLES_UNIT = 256 };

/* The table. cycles.c says where each number comes from; docs/superoptimizer.md repeats it. */
struct cycles_table {
    double workers;       /* multiprocessors */
    double stream_bytes;  /* that a worker reads from memory per cycle */
    double stage_bytes;   /* that staging moves from L2 into scratch per cycle */
    double trip;          /* cycles from an event to the first staged word */
    double page_products; /* cycles of a warp for the products of one page */
    double warps;         /* warps that multiply at the same time */
    double barrier;       /* of the whole task, for a reduction across threads */
    double instruction;   /* of an elementwise node, per element of a thread */
    double result_word;   /* of 4 bytes through shared memory */
    double hand_over;     /* between two tasks */
    double iteration;     /* of a loop: its control */
    uint32_t ring_pages;  /* pages that an iteration may stream */
};
const struct cycles_table *cycles_table(void);

/* The sizes of a skeleton's tasks. */
struct task_shape {
    const struct problem *p;
    const struct skeleton *skeleton;
    uint32_t tile[BLOCK_DIMS];
    uint64_t tasks, rounds, trips, trips2;
};
void task_shape_make(const struct problem *p, const struct sources *sources,
                     const struct skeleton *k, struct task_shape *out);

/* Elements of a value with these dims that a task holds in the stage; in a loop, per iteration. */
uint64_t cycles_elements(const struct task_shape *t, block_dims dims, uint32_t stage);

/* Bringing a source into its stage. */
uint64_t cycles_source(const struct task_shape *t, const struct source *s, uint32_t stage);
/* An operator in the stage of its operands. dims: those that it iterates over; red: those that it
 * removes; product: it multiplies two operands first. */
uint64_t cycles_operator(const struct task_shape *t, uint32_t op, block_dims dims, block_dims red,
                         bool product, uint32_t stage);
/* Writing a result from the stage. */
uint64_t cycles_result(const struct task_shape *t, block_dims dims, uint32_t stage);
/* A task's fixed cost: its first trip to memory and the control of its loops. */
uint64_t cycles_task(const struct task_shape *t);
uint64_t cycles_hand_over(void);

#endif
