/* extract.h - the k cheapest graphs of a staged saturation, by branch and bound.
 *
 * A graph is a choice of one edge for each node that is needed; its cost is the sum over the chosen
 * edges, a shared node once. Bound: what is chosen, and the cheapest edge of every node that each
 * way of completing the choice must have. That bound is never above a completion's cost, so within
 * the budget of steps the cheapest graph is found.
 */
#ifndef QN_SEARCH_EXTRACT_H
#define QN_SEARCH_EXTRACT_H

#include "search/staged.h"

enum { EXTRACT_BEST = 16, EXTRACT_GOALS = BLOCK_OUT };

/* What a task must compute. */
struct goals {
    uint32_t n, n_used;
    uint16_t class[EXTRACT_GOALS];
    uint16_t used[HANDED]; /* classes that were handed over: each must be read */
};

struct choice {
    uint16_t node;
    uint32_t edge;
};

/* A graph: its nodes in an order in which each reads earlier ones. */
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
    bool complete; /* the budget sufficed: best[0] is the cheapest there is */
};

/* What all extractions from one staged saturation share: trees, and what each node must have. */
struct extractor;
int extractor_new(struct diag *d, const struct staged *g, struct extractor **out);
void extractor_free(struct extractor *x);

/* At most `keep` graphs whose cost is below `below`, in at most `budget` steps. */
void extract(struct extractor *x, const struct goals *goals, uint32_t keep, uint64_t below,
             uint64_t budget, struct extraction *out);

#endif
