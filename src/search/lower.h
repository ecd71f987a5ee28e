/* lower.h - an extracted graph as a block: nodes by stage, spaces, orders of adding, tiles. */
#ifndef QN_SEARCH_LOWER_H
#define QN_SEARCH_LOWER_H

#include "search/extract.h"

/* Names of a task, its results and its handed-over inputs, in the order of its goals. */
struct task_names {
    char task[BLOCK_NAME];
    char result[EXTRACT_GOALS][BLOCK_NAME];
    char handed[HANDED][BLOCK_NAME];
    bool hands_over; /* the results stay in 32 bits */
};

/* Errors: QN_ELIMIT if a block has no room for all nodes. */
int lower(struct diag *d, const struct staged *g, const struct extracted *x,
          const struct task_names *names, struct block *out);

#endif
