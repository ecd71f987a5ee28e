/* stabilise.h - sums of exponentials without overflow: a lowering, not searched.
 *
 * If every result stays the same when an exponential is scaled, exp(s) -> c * exp(s), the graph may
 * take exp(s - m) instead, for the largest s over the dims that are summed. Where s comes in a
 * loop, its sums become online accumulators, which rescale what they have when the maximum grows.
 * Where scaled values are handed over, their maximum goes with them, and the reader weighs its
 * parts.
 *
 *     acc_sum(exp(s) * v)  ->  acc_online(s, v) = sum(exp(s - max(s)) * v)
 */
#ifndef QN_SEARCH_STABILISE_H
#define QN_SEARCH_STABILISE_H

#include "block/block.h"

/* Rewrites g in place. *stable: no sum of exponentials is left without a maximum; if it is false, g
 * is as it was. Errors: QN_ELIMIT: no room for more nodes. */
int stabilise(struct diag *d, struct block_graph *g, bool *stable);

#endif
