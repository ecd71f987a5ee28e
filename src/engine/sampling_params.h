/* sampling_params.h - what a request may ask for: the ranges, and their form for the runtime. */
#ifndef QN_ENGINE_SAMPLING_PARAMS_H
#define QN_ENGINE_SAMPLING_PARAMS_H

#include "engine/engine.h"

/* Errors: QN_EINVAL and QN_ELIMIT naming the field and its range. */
int sampling_params_check(struct diag *d, const qn_sampling_params *s);

/* Fills *r for a prompt of n_prompt tokens from parameters that were checked. *biases gets
 * r->n_biases biases (NULL for none), which are the caller's. Errors: QN_EINVAL, QN_ELIMIT,
 * QN_EUNSUPPORTED (the backend) naming the field; QN_ENOMEM. */
int sampling_params_to_runtime(struct diag *d, const struct qn_engine *e,
                               const qn_sampling_params *s, size_t n_prompt, struct rt_request *r,
                               struct rt_token_value **biases);

#endif
