/* rt_budget.h - how many token rows prompts get in an iteration.
 *
 * Without a bound (rt_pool.max_step_ns 0), or while no request decodes, prompts get all rows that
 * there is room for. With a bound, decoding requests wait for the prompts beside them no longer
 * than that. The boundary keeps a mean of each variant's duration, for each quarter of the context,
 * and takes the largest variant that is fast enough. It expects a variant that has not run yet to
 * take as long per row as the largest one that has. How a prompt is cut does not change a bit of
 * the result, so time may decide.
 *
 * Only iterations that are laid out anew are measured. All iterations with rows of prompts are laid
 * out anew, so steady boundaries measure nothing.
 */
#ifndef QN_RUNTIME_RT_BUDGET_H
#define QN_RUNTIME_RT_BUDGET_H

#include "runtime/rt_waiting.h"

enum {
    RT_LEAST_CHUNK = 64, /* rows of prompts beside decoding requests, however long they take */
    RT_MEAN_SHIFT = 2,   /* a new duration has a weight of 1/4 in the mean */
    RT_FORGET_SHIFT = 8, /* the mean of a variant that is too slow falls by 1/256 at each boundary
                          * that leaves it out: one slow run must not bar it for ever */
};

RT_FN uint32_t *rt_duration(const struct rt *rt, uint32_t variant, uint32_t context) {
    const uint32_t quarter = (uint32_t)((uint64_t)context * RT_QUARTERS / rt->batch->max_model_len);
    return (uint32_t *)rt_pool_at(rt, rt->pool->durations_at) + variant * RT_QUARTERS +
           rt_min(quarter, RT_QUARTERS - 1);
}

/* At a boundary: measures the iteration that has ended. An iteration that took very long, as when
 * the host had no core for it, raises the mean by a quarter of the mean at most. */
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

/* At a boundary: notes when the next iteration begins. */
RT_FN void rt_budget_begin(const struct rt *rt) {
    rt->control->began_ns = rt->pool->max_step_ns > 0 ? rt_now_ns() : 0;
}

/* Expected duration of a variant: its own mean, else that of the variant `known` in proportion to
 * the rows; 0: neither is known. */
RT_FN uint64_t rt_budget_expect(const struct rt *rt, uint32_t variant, uint32_t known,
                                uint32_t context) {
    const uint32_t own = *rt_duration(rt, variant, context);
    if (own > 0 || known == RT_NONE) return own;
    return (uint64_t)*rt_duration(rt, known, context) * (rt->shapes[variant] & 0xffff) /
           (rt->shapes[known] & 0xffff);
}

/* Rows of the largest variant for any rows that is fast enough; 0: none is known to be. */
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
        if (rt->contexts[i] < context || expected == 0 || (rt->decode_only >> i & 1) != 0) continue;
        if (expected > rt->pool->max_step_ns)
            *own -= *own >> RT_FORGET_SHIFT;
        else if (rows < (rt->shapes[i] & 0xffff))
            rows = rt->shapes[i] & 0xffff;
    }
    return rows;
}

/* Token rows that an iteration may have, `n` of them of decoding requests; at least n + 1. context:
 * about the longest context of the rows. */
RT_COLD uint32_t rt_budget(const struct rt *rt, uint32_t n, uint32_t context) {
    uint32_t budget = rt_min(rt->max_batched, rt->shapes[rt->largest] & 0xffff);
    if (rt->pool->max_step_ns > 0 && n > 0) {
        const uint32_t rows = rt_budget_rows(rt, context), least = n + RT_LEAST_CHUNK;
        budget = rt_min(budget, rows > least ? rows : least);
    }
    return budget > n ? budget : n + 1;
}

#endif
