/* rt_sched.h - the scheduler role: takes activated events, hands their JIT tasks to workers.
 *
 *   trigger that activates ──► event queue ──► scheduler step ──► JIT queues of the workers
 *        │ (full)                                   │ (all full)
 *        └► the worker's overflow list              └► keeps its place in the event and returns
 *           (offered again before its next task)
 *
 * Nobody waits here. A scheduler is a lock, an event queue and a cursor; any worker that finds
 * nothing to run may hold the lock for one step, so no core is set aside. Overflow lists are linked
 * through one word per event (an event is in at most one list at a time), so they need no memory
 * and cannot overflow: with queues of two everything still ends.
 */
#ifndef QN_RUNTIME_RT_SCHED_H
#define QN_RUNTIME_RT_SCHED_H

#include "runtime/rt_event.h"
#include "runtime/rt_trace.h"

/* Hands one task to the next worker that has room. 0: every queue is full. */
RT_FN int rt_sched_hand(const struct rt *rt, struct rt_sched *s, uint32_t task) {
    for (uint32_t tried = 0; tried < rt->n_workers; tried++) {
        uint32_t to = s->to;
        s->to = to + 1 < rt->n_workers ? to + 1 : 0;
        if (rt_queue_push(rt_jit_queue(rt, to), rt->jit_mask, task)) {
            rt_trace_sched(rt, (uint32_t)(s - rt->scheds), RT_TRACE_HAND, to, task);
            return 1;
        }
    }
    return 0;
}

/* Hands out tasks of the event in hand until it is done, the burst is used up or all queues are
 * full. Whether any task was handed out. */
RT_FN int rt_sched_advance(const struct rt *rt, struct rt_sched *s) {
    uint32_t handed = 0;
    while (s->next < s->end && handed < RT_SCHED_BURST) {
        if (rt->tasks[s->next].worker == PROG_JIT) {
            if (!rt_sched_hand(rt, s, s->next)) break;
            handed++;
        }
        s->next++;
    }
    return handed > 0;
}

/* One step with the lock held. Whether anything moved. */
RT_FN int rt_sched_locked_step(const struct rt *rt, uint32_t sched) {
    struct rt_sched *s = &rt->scheds[sched];
    int moved = 0;
    if (s->next >= s->end) {
        uint32_t event;
        if (!rt_queue_pop(rt_sched_queue(rt, sched), rt->sched_mask, &event)) return 0;
        s->next = rt->events[event].first_task;
        s->end = s->next + rt->events[event].n_tasks;
        moved = 1;
    }
    moved |= rt_sched_advance(rt, s);
    rt_store_relaxed(&s->pending, s->next < s->end);
    return moved;
}

/* Plays scheduler `sched` for one step if it has something to do and nobody else plays it. Whether
 * anything moved. */
RT_FN int rt_sched_step(const struct rt *rt, uint32_t sched) {
    struct rt_sched *s = &rt->scheds[sched];
    if (!rt_load_relaxed(&s->pending) && !rt_queue_ready(rt_sched_queue(rt, sched), rt->sched_mask))
        return 0;
    if (rt_load_relaxed(&s->lock) != 0 || !rt_cas_acquire(&s->lock, 0, 1)) return 0;
    int moved = rt_sched_locked_step(rt, sched);
    rt_store_release(&s->lock, 0);
    return moved;
}

/* Gives an activated event with JIT tasks to a scheduler, or keeps it in the worker's overflow
 * list; then plays that scheduler once, so that its tasks go out at once. */
RT_FN void rt_sched_offer(const struct rt *rt, struct rt_worker *w, uint32_t event) {
    uint32_t sched = event % rt->n_schedulers;
    if (!rt_queue_push(rt_sched_queue(rt, sched), rt->sched_mask, event)) {
        rt->links[event] = w->overflow;
        w->overflow = event;
    }
    rt_sched_step(rt, sched);
}

/* Offers the first event of the worker's overflow list again. */
RT_FN void rt_sched_retry(const struct rt *rt, struct rt_worker *w) {
    uint32_t event = w->overflow;
    w->overflow = rt->links[event];
    rt_sched_offer(rt, w, event);
}

/* Triggers `event` in the run `epoch` of the iteration whose end event is `end`. The trigger that
 * activates an event acts on it: the end event makes the worker owe the boundary, an event with JIT
 * tasks goes to a scheduler. Once the counter is up, the iteration may end at any moment: nothing
 * of it is read after. */
RT_FN void rt_trigger(const struct rt *rt, struct rt_worker *w, uint32_t event, uint32_t epoch,
                      uint32_t end) {
    if (event == PROG_NONE || !rt_event_trigger(rt, event, epoch)) return;
    rt_trace_follow(rt, w->id, RT_TRACE_PUBLISH, event);
    if (event == end)
        w->boundary = 1;
    else if (rt->events[event].n_jit > 0)
        rt_sched_offer(rt, w, event);
}

#endif
