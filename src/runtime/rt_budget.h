/* rt_budget.h - how many token rows prompts get in an iteration.
 *
 * Without a bound (rt_pool.max_step_ns 0), or while no request decodes, prompts get all rows that
 * there is room for. With a bound, decoding requests wait for the prompts beside them no longer
 * than that. The boundary keeps a mean of each variant's duration, for each quarter of the context,
 * and takes the largest variant that is fast enough. It expects a variant that has not run yet to
 * take as long per row as the largest one that has. How a prompt is cut does not change a bit of
 * the result, so time may decide.
 *
 * One slow run must not bar a variant for ever, and a variant may be faster than in proportion to
 * its rows. So the next larger variant than the largest that is fast enough gets trials. Each
 * boundary that leaves it out lowers its mean, down to the first value above the bound. Then the
 * variant runs once. If that run is fast enough, its duration becomes the mean. Otherwise the trial
 * has failed: the mean becomes twice the bound, and falls four times slower than before.
 *
 *     31                              2 1    0
 *    ┌─────────────────────────────────┬──────┐
 *    │ mean in ns, without these bits  │failed│  failed trials, up to 3
 *    └─────────────────────────────────┴──────┘
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
    RT_FAILED = 3,       /* bits of a duration that count failed trials */
    RT_TRIAL_SHIFT = 8,  /* before a trial the mean falls by 1/256 at each boundary: from twice the
                          * bound for 177 boundaries, and after failed trials 710, 2,840, 11,360 */
};

/* A variant's duration, as drawn above, in the quarter of that context; 0: unknown. */
RT_FN uint32_t *rt_duration(const struct rt *rt, uint32_t variant, uint32_t context) {
    const uint32_t quarter = (uint32_t)((uint64_t)context * RT_QUARTERS / rt->batch->max_model_len);
    return (uint32_t *)rt_pool_at(rt, rt->pool->durations_at) + variant * RT_QUARTERS +
           rt_min(quarter, RT_QUARTERS - 1);
}

/* Mean of a duration in ns. */
RT_FN uint32_t rt_budget_mean(uint32_t duration) {
    return duration & ~(uint32_t)RT_FAILED;
}

/* The mean at which a variant is tried. A mean above the bound never falls below it unless a run
 * was fast enough. */
RT_FN uint64_t rt_budget_due(const struct rt *rt) {
    return (rt->pool->max_step_ns | RT_FAILED) + 1;
}

/* Token rows of a variant. */
RT_FN uint32_t rt_budget_n_rows(const struct rt *rt, uint32_t variant) {
    return rt->shapes[variant] & 0xffff;
}

/* A duration after a run that took `now`. An iteration that took very long, as when the host had no
 * core for it, raises a mean within the bound by a quarter of the mean at most. */
RT_FN uint32_t rt_budget_add(const struct rt *rt, uint32_t duration, uint32_t now) {
    const uint64_t bound = rt->pool->max_step_ns, twice = 2 * bound;
    uint32_t mean = rt_budget_mean(duration), failed = duration & RT_FAILED;
    if (mean == 0) {
        mean = now;
    } else if (mean > bound && now <= bound) {
        mean = now;
        failed -= failed > 0;
    } else if (mean == rt_budget_due(rt)) {
        mean = twice < 0xffffffffu ? (uint32_t)twice : 0xffffffffu;
        failed += failed < RT_FAILED;
    } else if (now > mean) {
        mean += rt_min(now - mean, mean) >> RT_MEAN_SHIFT;
    } else {
        mean -= (mean - now) >> RT_MEAN_SHIFT;
    }
    return rt_max(rt_budget_mean(mean), RT_FAILED + 1) | failed;
}

/* At a boundary: measures the iteration that has ended. It counts for each quarter that its rows
 * may lie in: they were laid out for the quarter in which they begin, and c->context is where they
 * end. */
RT_COLD void rt_budget_measure(const struct rt *rt) {
    struct rt_control *c = rt->control;
    if (c->began_ns == 0 || c->n_steady > 0) return;
    const uint64_t took = rt_now_ns() - c->began_ns;
    const uint32_t now = took < 0xffffffffu ? (uint32_t)took : 0xffffffffu;
    const uint32_t n = rt_budget_n_rows(rt, c->variant);
    uint32_t *d = rt_duration(rt, c->variant, c->context > n ? c->context - n : 0);
    for (uint32_t *last = rt_duration(rt, c->variant, c->context); d <= last; d++)
        *d = rt_budget_add(rt, *d, now);
}

/* At a boundary: notes when the next iteration begins. */
RT_FN void rt_budget_begin(const struct rt *rt) {
    rt->control->began_ns = rt->pool->max_step_ns > 0 ? rt_now_ns() : 0;
}

/* Expected duration of a variant: its own mean, else that of the variant `known` in proportion to
 * the rows; 0: neither is known. durations: those of variant 0 on, each RT_QUARTERS apart. */
RT_FN uint64_t rt_budget_expect(const struct rt *rt, const uint32_t *durations, uint32_t variant,
                                uint32_t known) {
    const uint32_t own = rt_budget_mean(durations[variant * RT_QUARTERS]);
    if (own > 0) return own;
    return (uint64_t)rt_budget_mean(durations[known * RT_QUARTERS]) *
           rt_budget_n_rows(rt, variant) / rt_budget_n_rows(rt, known);
}

/* Whether the variant `next` is due for a trial. Brings its trial nearer otherwise. `fits` is the
 * largest variant that is fast enough. A variant that has not run yet gets a trial if it is
 * expected to take one and a half times the bound at most. */
RT_FN int rt_budget_try(const struct rt *rt, uint32_t *durations, uint32_t next, uint32_t fits) {
    const uint64_t bound = rt->pool->max_step_ns, due = rt_budget_due(rt);
    uint32_t *d = &durations[next * RT_QUARTERS];
    if (*d == 0) {
        const uint64_t expected = rt_budget_expect(rt, durations, next, fits);
        if (expected == 0 || expected > bound + bound / 2 || expected > 0xffffffffu) return 0;
        *d = rt_budget_mean(rt_max((uint32_t)expected, (uint32_t)due));
    }
    const uint32_t mean = rt_budget_mean(*d), failed = *d & RT_FAILED;
    if (mean <= due) return 1;
    const uint32_t fall = rt_budget_mean(mean >> (RT_TRIAL_SHIFT + 2 * failed));
    *d -= rt_min(rt_max(fall, RT_FAILED + 1), mean - (uint32_t)due);
    return 0;
}

/* Largest variant with a known duration; RT_NONE: there is none. */
RT_FN uint32_t rt_budget_known(const struct rt *rt, const uint32_t *durations, uint32_t context) {
    uint32_t known = RT_NONE, rows = 1;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const uint32_t n = rt_budget_n_rows(rt, i);
        if (rt->contexts[i] < context || durations[i * RT_QUARTERS] == 0 || n < rows) continue;
        known = i;
        rows = n;
    }
    return known;
}

/* The variant for any rows with the fewest rows above `rows`; RT_NONE: there is none. Of several
 * the slowest, so that a trial ends whichever of them runs. */
RT_FN uint32_t rt_budget_next(const struct rt *rt, const uint32_t *durations, uint32_t context,
                              uint32_t rows) {
    uint32_t next = RT_NONE;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const uint32_t n = rt_budget_n_rows(rt, i);
        if (rt->contexts[i] < context || (rt->decode_only >> i & 1) != 0 || n <= rows) continue;
        const uint32_t least = next == RT_NONE ? RT_NONE : rt_budget_n_rows(rt, next);
        if (n < least || (n == least && durations[i * RT_QUARTERS] > durations[next * RT_QUARTERS]))
            next = i;
    }
    return next;
}

/* Rows of the largest variant for any rows that is fast enough, or of the one that is tried; 0:
 * none is known to be. */
RT_COLD uint32_t rt_budget_rows(const struct rt *rt, uint32_t context) {
    uint32_t *durations = rt_duration(rt, 0, context), fits = RT_NONE, rows = 0;
    const uint32_t known = rt_budget_known(rt, durations, context);
    if (known == RT_NONE) return 0;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const uint32_t n = rt_budget_n_rows(rt, i);
        if (rt->contexts[i] < context || (rt->decode_only >> i & 1) != 0 || n <= rows) continue;
        if (rt_budget_expect(rt, durations, i, known) > rt->pool->max_step_ns) continue;
        fits = i;
        rows = n;
    }
    const uint32_t next = rt_budget_next(rt, durations, context, rows);
    if (fits == RT_NONE || next == RT_NONE || !rt_budget_try(rt, durations, next, fits))
        return rows;
    return rt_budget_n_rows(rt, next);
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
