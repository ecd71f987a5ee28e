/* search.h - block graphs for an expression, cheapest first, each proved.
 *
 *   problem.c     expression -> leaves, targets, operators
 *   saturate.c    -> all useful values and how each is computed
 *   skeleton.c    -> grid, loops, streams of a task
 *   staged.c      -> values in the stages of one skeleton, with costs (cycles.c)
 *   extract.c     -> the cheapest graphs of one skeleton
 *   one_task.c    -> candidates of all skeletons; two_tasks.c: with handed-over values
 *   lower.c       -> blocks
 *   stabilise.c   -> exponentials with their maxima
 *   block_prove.c -> proof by normal form
 *
 * Budgets count applications and steps, not seconds, and skeletons are independent. So results are
 * the same on any number of threads.
 */
#ifndef QN_SEARCH_SEARCH_H
#define QN_SEARCH_SEARCH_H

#include "base/array.h"
#include "search/problem.h"

struct search_params {
    uint32_t n_tasks;  /* 1 or 2: tasks of a graph */
    uint32_t n_graphs; /* at most so many are returned */
    uint32_t n_loops;  /* of a task, at most: 0 to 2 */
    uint32_t n_threads;
    uint64_t max_applications; /* of a saturation */
    uint64_t max_steps;        /* of one skeleton's extraction; with two tasks at most 500 */
    struct problem_sizes sizes;
    struct block_limits limits;
};
struct search_params search_params_default(void);

struct search_graph {
    double cost; /* cycles, of the model in cycles.h */
    bool stable; /* its sums of exponentials have maxima */
    struct block_graph blocks;
};

struct search_result {
    ARRAY(struct search_graph) graphs; /* cheapest first; all proved */
    uint64_t n_states;                 /* values of all saturations */
    uint64_t n_applications;           /* applications tried */
    uint64_t n_edges;                  /* applications kept */
    uint64_t n_skeletons, n_steps;
    uint64_t n_unproved,
        n_refused;       /* graphs that were found and dropped: no proof, a rule broken */
    struct diag refused; /* why the first of these was refused */
    bool complete;       /* no budget ran out */
};

/* Errors: QN_EUNSUPPORTED, QN_ELIMIT, QN_ENOMEM. Finding nothing is no error. */
int search(struct diag *d, const struct expr *x, const struct search_params *params,
           struct search_result *out);
void search_result_fini(struct search_result *r);

#endif
