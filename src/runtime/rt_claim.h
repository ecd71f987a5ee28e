/* rt_claim.h - handing out JIT tasks, and what follows from a trigger.
 *
 * The JIT tasks of a variant stand in rt.jit in the order of linearization. One word says how far
 * they are handed out; a worker with nothing to run takes the next one with one fetch-and-add:
 *
 *     rt_shared.claim   | published (32) | index of the next JIT task (32) |
 *
 * No worker hands a task to another, so there is no scheduler that could be late, no queue that
 * could be full and nothing to steal. A task is claimed before its event is activated: its worker
 * waits for the event as it does for its AOT tasks. So a hand-over costs as much as to an AOT task,
 * and the fetch-and-add happens while the worker has nothing else to do.
 *
 * The word names the iteration, so that a late worker learns in one step which iteration its task
 * belongs to; that iteration cannot end before the task is done. A fetch-and-add beyond the last
 * task claims nothing. Every worker looks first, so there are at most n_workers of these.
 *
 * Why no worker waits for ever: workers take claimed and AOT tasks in the order of linearization,
 * and tasks are claimed in that order. Look at the first task that is not done: its event is
 * activated. If it is in a list or claimed, its worker has no earlier task. If not, all claimed JIT
 * tasks are done, and every worker's next AOT task comes later, so the first worker to look claims
 * it.
 */
#ifndef QN_RUNTIME_RT_CLAIM_H
#define QN_RUNTIME_RT_CLAIM_H

#include "runtime/rt_event.h"
#include "runtime/rt_trace.h"

/* JIT tasks of a variant. */
RT_FN uint32_t rt_n_jit(const struct rt *rt, uint32_t variant) {
    return rt->jit_first[variant + 1] - rt->jit_first[variant];
}

/* JIT tasks that come before the worker's next AOT task; all of them when its list is done. */
RT_FN uint32_t rt_claim_bound(const struct rt *rt, const struct rt_worker *w) {
    return w->next < w->end ? rt->ranks[w->next] : RT_NONE;
}

/* Whether a JIT task is left that comes before the worker's next AOT task. */
RT_FN int rt_claim_open(const struct rt *rt, const struct rt_worker *w, uint32_t bound) {
    uint64_t word = rt_load64_relaxed(&rt->shared->claim);
    uint32_t published = (uint32_t)(word >> 32), index = (uint32_t)word;
    if (index >= rt_n_jit(rt, rt_variant_of(published))) return 0;
    return bound == RT_NONE || (published == w->published && index < bound);
}

/* Claims the next JIT task, of the iteration that runs: *published. RT_NONE: there is none. */
RT_FN uint32_t rt_claim_next(const struct rt *rt, uint32_t *published) {
    uint64_t word = rt_add64_acquire(&rt->shared->claim, 1);
    *published = (uint32_t)(word >> 32);
    return (uint32_t)word < rt_n_jit(rt, rt_variant_of(*published)) ? (uint32_t)word : RT_NONE;
}

/* For the boundary, after it has published the iteration: its JIT tasks may be claimed. */
RT_FN void rt_claim_begin(const struct rt *rt, uint32_t published) {
    if (rt_n_jit(rt, rt_variant_of(published)) > 0)
        rt_store64_release(&rt->shared->claim, (uint64_t)published << 32);
}

/* Triggers `event` in the run `epoch` of the iteration whose end event is `end`. The worker whose
 * trigger activates `end` owes the boundary. Once the counter has grown, the iteration may end at
 * any moment, so nothing of it is read afterwards. */
RT_FN void rt_trigger(const struct rt *rt, struct rt_worker *w, uint32_t event, uint32_t epoch,
                      uint32_t end) {
    if (event == PROG_NONE) return;
    const int ends = event == end;
    if (!(ends ? rt_event_trigger_end(rt, event, epoch) : rt_event_trigger(rt, event, epoch)))
        return;
    rt_trace_follow(rt, w->id, RT_TRACE_PUBLISH, event);
    if (ends) w->boundary = 1;
}

#endif
