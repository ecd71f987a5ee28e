/* stabilise.h - sums of exponentials without overflow: a lowering, not a search.
 *
 * If every result stays the same when an exponential is scaled, exp(s) -> c * exp(s), the graph may
 * use exp(s - m) instead, where m is the largest s over the summed dims. If a loop computes s, its
 * sums become online accumulators, which rescale their sum when the maximum grows. If scaled values
 * are handed over, their maximum is too, and the reading task weighs its parts.
 *
 *     acc_sum(exp(s) * v)  ->  acc_online(s, v) = sum(exp(s - max(s)) * v)
 */
#ifndef QN_SEARCH_STABILISE_H
#define QN_SEARCH_STABILISE_H

#include "block/block.h"

/* Rewrites g in place. *stable: no sum of exponentials is left without a maximum; if false, g is
 * unchanged. Errors: QN_ELIMIT: no room for more nodes. */
int stabilise(struct diag *d, struct block_graph *g, bool *stable);

#endif
