/* extract.h - the k cheapest graphs of a staged saturation, by branch and bound.
 *
 * A graph is a choice of one edge for each needed node. Its cost is the sum over the chosen edges,
 * a shared node once. The bound is the cost of the chosen edges and of the cheapest edge of
 * every node that all completions of the choice must have. It never exceeds a completion's cost, so
 * the cheapest graph is found if the budget of steps suffices.
 */
#ifndef QN_SEARCH_EXTRACT_H
#define QN_SEARCH_EXTRACT_H

#include "search/staged.h"

enum { EXTRACT_BEST = 16, EXTRACT_GOALS = BLOCK_OUT };

/* The values that a task must compute. */
struct goals {
    uint32_t n, n_used;
    uint16_t class[EXTRACT_GOALS];
    uint16_t used[HANDED]; /* handed-over classes: the task must read each */
};

struct choice {
    uint16_t node;
    uint32_t edge;
};

/* A graph: its nodes, each of which reads only earlier ones. */
struct extracted {
    uint64_t cost;
    uint32_t n;
    struct choice at[BLOCK_NODES];
    uint16_t result[EXTRACT_GOALS + 1]; /* nodes; STAGED_NONE after the last */
};

struct extraction {
    uint32_t n;
    struct extracted best[EXTRACT_BEST]; /* cheapest first */
    uint64_t n_steps;
    bool complete; /* the budget sufficed: best[0] is the cheapest graph */
};

/* Data that all extractions from one staged saturation share: trees, and each node's needs. */
struct extractor;
int extractor_new(struct diag *d, const struct staged *g, struct extractor **out);
void extractor_free(struct extractor *x);

/* Finds at most `keep` graphs whose cost is below `below`, in at most `budget` steps. */
void extract(struct extractor *x, const struct goals *goals, uint32_t keep, uint64_t below,
             uint64_t budget, struct extraction *out);

#endif
