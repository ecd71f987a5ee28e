/* block_prove.h - whether block graphs compute a problem's targets, by normal form.
 *
 * It reads the finished graph, not how it was made: every node of every task gets its normal form,
 * and each result must have the form of the target with its name.
 */
#ifndef QN_SEARCH_BLOCK_PROVE_H
#define QN_SEARCH_BLOCK_PROVE_H

#include "search/problem.h"

/* *proved: whether all targets are results of the graph, with equal forms. *why says what differs.
 * Inputs are matched by name. Errors: QN_ENOMEM. */
int block_prove(struct diag *d, const struct problem *p, const struct block_graph *g, bool *proved,
                const char **why);

#endif
