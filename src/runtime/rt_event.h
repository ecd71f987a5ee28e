/* rt_event.h - events as counters that only grow.
 *
 * A variant's k-th run ("epoch" k, from 1) activates an event when its counter reaches n_triggers *
 * k. Nobody ever resets a counter, so nobody needs to know when everybody has looked. Counters wrap
 * at 2^32 and are compared by signed difference: within one run they are never further than
 * n_triggers from the goal, so this holds for up to 2^31 triggers.
 */
#ifndef QN_RUNTIME_RT_EVENT_H
#define QN_RUNTIME_RT_EVENT_H

#include "runtime/rt_state.h"

/* The counter at which `event` is activated in its variant's run number `epoch`. */
RT_FN uint32_t rt_event_goal(const struct rt *rt, uint32_t event, uint32_t epoch) {
    return rt->events[event].n_triggers * epoch;
}

/* Whether the event is activated. If so, all that its triggering tasks did is visible. */
RT_FN int rt_event_ready(const struct rt *rt, uint32_t event, uint32_t epoch) {
    if (event == PROG_NONE) return 1;
    const uint32_t *counter = rt_counter(rt, event);
    if ((int32_t)(rt_load_relaxed(counter) - rt_event_goal(rt, event, epoch)) < 0) return 0;
    rt_fence_acquire(counter);
    return 1;
}

/* One trigger. Returns whether it activated the event, which is true for exactly one caller. The
 * goal is loaded before the addition: on a GPU a load after it would be a trip of its own. */
RT_FN int rt_event_trigger(const struct rt *rt, uint32_t event, uint32_t epoch) {
    const uint32_t goal = rt_event_goal(rt, event, epoch);
    return rt_add_acq_rel(rt_counter(rt, event), 1) + 1 == goal;
}

/* The same for the end event. Only the worker that activates it learns of it, and plays the
 * boundary. An end event with a single trigger needs no memory order: its worker has no other
 * worker's stores to see, and its own are released when it publishes the next iteration. */
RT_FN int rt_event_trigger_end(const struct rt *rt, uint32_t event, uint32_t epoch) {
    if (rt->events[event].n_triggers != 1) return rt_event_trigger(rt, event, epoch);
    rt_add_relaxed(rt_counter(rt, event), 1);
    return 1;
}

#endif
