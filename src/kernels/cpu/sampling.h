/* sampling.h - choosing a token from logits: allowed tokens, biases, barred tokens, penalties,
 * temperature, min-p, top-k, top-p, draw.
 *
 * Filters are cuts of one order: by logit, descending, equal logits by ascending token id. A cut
 * keeps the longest prefix of which every token has less than the limit before it (tokens for
 * top-k, probability mass for top-p), so at least one. Masses are 2^-40ths of the likeliest
 * token's, as integers, so their sums do not depend on an order of addition. */
#ifndef QN_KERNELS_CPU_SAMPLING_H
#define QN_KERNELS_CPU_SAMPLING_H

#include "kernels/cpu/cpu_kernel.h"

/* Buffers of one choice: all but the histogram have vocab elements. Made of scratch by
 * sampling_layout. */
struct sampling {
    float *logit;    /* by token: after penalties; then (logit - max) / temperature */
    float *weight;   /* by candidate: exp(logit) */
    uint32_t *count; /* by token: occurrences in the output, bit 31: seen at all */
    uint32_t *ids;   /* candidates, ascending */
    uint64_t *histogram;
    size_t bytes; /* scratch that they take */
};

/* base NULL: only counts the bytes. */
struct sampling sampling_layout(void *base, uint32_t vocab);

/* What a choice depends on in the request. */
struct sampling_context {
    const struct rt_sampling *params;
    const int32_t *tokens; /* [n_known] prompt, then output; each in [0, vocab) */
    uint32_t n_prompt, n_known;
    const struct rt_token_value *biases; /* [n_biases] added to logits; ids in [0, vocab) */
    uint32_t n_biases;
    const int32_t *barred; /* [n_barred] tokens that may not be chosen yet, in [0, vocab) */
    uint32_t n_barred;
    const uint32_t *allowed; /* tokens that may be chosen, a bit each; NULL: all */
};

/* The token for logits[vocab]; NaN counts as -inf; when nothing is above -inf: token 0. */
uint32_t sampling_choose(const struct cpu_isa *isa, const struct sampling_context *c,
                         const float *logits, uint32_t vocab, struct sampling *s);

/* The n <= vocab largest logits, descending, the lowest id of equals first; NaN counts as -inf. */
void sampling_largest(const float *logits, uint32_t vocab, uint32_t n, struct rt_token_value *out);

/* Index of the largest, the lowest such index; NaN counts as -inf; 0 if nothing is above -inf. */
uint32_t sampling_argmax(const float *x, uint32_t n);

static inline bool sampling_has_penalties(const struct rt_sampling *p) {
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

/* Whether logits are altered before the largest is looked for. */
static inline bool sampling_alters(const struct sampling_context *c) {
    return c->allowed != NULL || c->n_biases > 0 || c->n_barred > 0 ||
           sampling_has_penalties(c->params);
}

#endif
