/* dummy_router.h - dummy routers that prefer some experts, for measurements with an uneven load.
 *
 * A row of dummy numbers gives logits of a normal distribution about 0, whose spread is the row's
 * scale. So rows of larger scales are more often among a token's largest logits. With these scales
 * the experts are chosen about as often as Zipf's law says: the expert of rank r 1 / r times as
 * often as the first one. Not quite half of all tokens can choose one expert, because half of the
 * numbers of such a distribution are below 0.
 */
#ifndef QN_MODEL_DUMMY_ROUTER_H
#define QN_MODEL_DUMMY_ROUTER_H

#include <stdint.h>

/* Fills scale[n] for a router that chooses top_k of n experts; ranks are spread over the ids. */
void dummy_router_scales(uint32_t n, uint32_t top_k, float *scale);

#endif
