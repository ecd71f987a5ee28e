/* rt_budget.h - how many token rows prompts get in an iteration.
 *
 * Without a bound (rt.max_step_ns 0), or while no request decodes: as many as there is room for.
 * With one, those that decode wait for the prompts beside them no longer than that. The boundary
 * keeps a mean of each variant's duration, for each quarter of the context, and takes the largest
 * variant that is fast enough; of one that has not run yet it expects as much per row as of the
 * largest smaller one. How a prompt is cut does not change a bit of the result, so time may decide.
 *
 * Only iterations that are laid out anew are measured, and all with rows of prompts are: steady
 * boundaries do nothing for this.
 */
#ifndef QN_RUNTIME_RT_BUDGET_H
#define QN_RUNTIME_RT_BUDGET_H

#include "runtime/rt_waiting.h"

enum {
    RT_LEAST_CHUNK = 64, /* rows of prompts beside decoding requests, however long they take */
    RT_MEAN_SHIFT = 2,   /* a duration counts 1/4 */
    RT_FORGET_SHIFT = 8, /* of a variant that is too slow, at each boundary that leaves it out: one
                          * slow run must not bar it for ever */
};

RT_FN uint32_t *rt_duration(const struct rt *rt, uint32_t variant, uint32_t context) {
    const uint32_t quarter = (uint32_t)((uint64_t)context * RT_QUARTERS / rt->batch->max_model_len);
    return (uint32_t *)rt_pool_at(rt, rt->pool->durations_at) + variant * RT_QUARTERS +
           rt_min(quarter, RT_QUARTERS - 1);
}

/* At a boundary: the iteration that has ended. One that took very long, as when the host had no
 * core for it, moves the mean by a quarter of itself at most. */
RT_COLD void rt_budget_measure(const struct rt *rt) {
    struct rt_control *c = rt->control;
    if (c->began_ns == 0 || c->n_steady > 0) return;
    const uint64_t took = rt_now_ns() - c->began_ns;
    const uint32_t now = took < 0xffffffffu ? (uint32_t)took : 0xffffffffu;
    uint32_t *mean = rt_duration(rt, c->variant, c->context);
    if (*mean == 0) {
        *mean = now > 0 ? now : 1;
    } else if (now > *mean) {
        *mean += rt_min(now - *mean, *mean) >> RT_MEAN_SHIFT;
    } else {
        *mean -= (*mean - now) >> RT_MEAN_SHIFT;
    }
}

/* At a boundary: the iteration that comes. */
RT_FN void rt_budget_begin(const struct rt *rt) {
    rt->control->began_ns = rt->pool->max_step_ns > 0 ? rt_now_ns() : 0;
}

/* What a variant takes: known, or at most in proportion to the variant `known`; 0: nothing is known
 * of either. */
RT_FN uint64_t rt_budget_expect(const struct rt *rt, uint32_t variant, uint32_t known,
                                uint32_t context) {
    const uint32_t own = *rt_duration(rt, variant, context);
    if (own > 0 || known == RT_NONE) return own;
    return (uint64_t)*rt_duration(rt, known, context) * (rt->shapes[variant] & 0xffff) /
           (rt->shapes[known] & 0xffff);
}

/* Rows of the largest variant that is fast enough; 0: none is known to be. */
RT_COLD uint32_t rt_budget_rows(const struct rt *rt, uint32_t context) {
    uint32_t rows = 0, known = RT_NONE;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const uint32_t n = rt->shapes[i] & 0xffff;
        if (rt->contexts[i] < context || *rt_duration(rt, i, context) == 0) continue;
        if (known == RT_NONE || n >= (rt->shapes[known] & 0xffff)) known = i;
    }
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const uint64_t expected = rt_budget_expect(rt, i, known, context);
        uint32_t *own = rt_duration(rt, i, context);
        if (rt->contexts[i] < context || expected == 0) continue;
        if (expected > rt->pool->max_step_ns)
            *own -= *own >> RT_FORGET_SHIFT;
        else if (rows < (rt->shapes[i] & 0xffff))
            rows = rt->shapes[i] & 0xffff;
    }
    return rows;
}

/* Token rows that an iteration may have, with `n` of requests that decode; context: positions that
 * rows of prompts will have about. One more than n always fits. */
RT_COLD uint32_t rt_budget(const struct rt *rt, uint32_t n, uint32_t context) {
    uint32_t budget = rt_min(rt->max_batched, rt->shapes[rt->largest] & 0xffff);
    if (rt->pool->max_step_ns > 0 && n > 0) {
        const uint32_t rows = rt_budget_rows(rt, context), least = n + RT_LEAST_CHUNK;
        budget = rt_min(budget, rows > least ? rows : least);
    }
    return budget > n ? budget : n + 1;
}

#endif
