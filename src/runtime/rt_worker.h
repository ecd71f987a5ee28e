/* rt_worker.h - the worker role: what to run next, and what follows from having run it.
 *
 * A backend's loop is
 *
 *     rt_worker_init(rt, &w, id);
 *     while (!rt_stopped(rt))
 *         if (rt_worker_next(rt, &w)) {
 *             ... run the body of task w.task ...
 *             rt_worker_done(rt, &w);
 *         }
 *
 * A worker's next task is the earlier of its next AOT task and the JIT task that it has claimed. It
 * claims a JIT task whenever it has none and the next one comes before its AOT task (rt_claim.h).
 * Then it waits for its next task's event. rt_worker_next completes empty tasks (OP_NONE) itself.
 */
#ifndef QN_RUNTIME_RT_WORKER_H
#define QN_RUNTIME_RT_WORKER_H

#include "runtime/rt_boundary.h"

RT_FN int rt_stopped(const struct rt *rt) {
    return rt_load_relaxed(&rt->shared->stop) != RT_GO;
}

/* At the start of every launch. */
RT_FN void rt_worker_init(const struct rt *rt, struct rt_worker *w, uint32_t id) {
    w->id = id;
    w->published = rt_load_relaxed(&rt->shared->resume);
    w->next = w->end = 0;
    w->epoch = w->task_epoch = 0;
    w->claimed = w->task = w->task_end = RT_NONE;
    w->epoch_of = w->published;
    w->list_variant = RT_NONE;
    w->list.first = w->list.n = 0;
    w->boundary = w->asked = w->bell = 0;
    w->owes_post = w->n_news = w->owes_start = 0;
    w->spins = w->beats_seen = 0;
    w->idle_since = w->looked = w->lingers_since = 0;
    rt_store_relaxed(&rt->beats[id].head, RT_NONE);
}

/* The task that the worker runs next, once its event is activated; RT_NONE: none. */
RT_FN uint32_t rt_worker_head(const struct rt *rt, const struct rt_worker *w) {
    uint32_t task = w->next < w->end ? rt->aot[w->next] : RT_NONE;
    if (w->claimed == RT_NONE) return task;
    return rt_min(task, rt->jit[rt->jit_first[rt_variant_of(w->published)] + w->claimed]);
}

/* ---- stalls ---- */

/* Of the workers that wait before a task, the one whose event comes first in the order of
 * linearization; if there is none, this worker and its own event, or the end event if it has no
 * task. */
RT_FN void rt_stall_choose(const struct rt *rt, const struct rt_worker *w, struct rt_stall *s) {
    uint32_t epoch = rt->control->epoch;
    s->worker = w->id;
    s->task = rt_worker_head(rt, w);
    s->event = s->task != RT_NONE ? rt->tasks[s->task].wait : rt->variants[s->variant].end_event;
    for (uint32_t i = 0; i < rt->n_workers; i++) {
        uint32_t task = rt_load_relaxed(&rt->beats[i].head);
        if (task == RT_NONE || rt->tasks[task].wait >= s->event) continue;
        if (rt_event_ready(rt, rt->tasks[task].wait, epoch)) continue;
        s->worker = i;
        s->task = task;
        s->event = rt->tasks[task].wait;
    }
}

/* Fills the report and stops all workers; only the first worker to notice does so. */
RT_COLD void rt_stall_report(const struct rt *rt, struct rt_worker *w, uint64_t waited,
                             uint32_t busy) {
    if (!rt_cas_acquire(&rt->shared->stall_claimed, 0, 1)) return;
    struct rt_stall *s = rt->stall;
    uint32_t epoch = rt->control->epoch;
    s->variant = rt_variant_of(w->published);
    rt_stall_choose(rt, w, s);
    s->want = rt->events[s->event].n_triggers;
    s->have = rt_load_relaxed(rt_counter(rt, s->event)) - rt_event_goal(rt, s->event, epoch - 1);
    s->iteration = rt_iteration_of(w->published);
    s->busy_worker = busy;
    s->busy_task = busy != RT_NONE ? rt_load_relaxed(&rt->beats[busy].task) : RT_NONE;
    s->n_jit = rt_n_jit(rt, s->variant);
    s->claimed = s->n_jit ? rt_min((uint32_t)rt_load64_relaxed(&rt->shared->claim), s->n_jit) : 0;
    s->waited_ns = waited;
    rt_trace(rt, w->id, RT_TRACE_STALL, 0, s->event);
    rt_store_release(&rt->shared->stop, RT_STOP_STALL);
    rt_host_add_release(&rt->mail->progress, 1);
    rt_host_wake(&rt->mail->progress, &rt->mail->host_sleepers);
}

/* Looks at the clock and, RT_STALL_PARTS times in a deadline, at the heartbeats: on a GPU reading
 * all of them takes a tenth of a millisecond. Any worker's beat starts the wait anew. A worker that
 * is inside a task is given more time, because tasks may be long. */
RT_FN void rt_stall_look(const struct rt *rt, struct rt_worker *w) {
    if (rt->deadline_ns == 0) return;
    uint64_t now = rt_now_ns();
    if (w->idle_since == 0) w->idle_since = w->looked = now;
    if (now - w->looked < rt->deadline_ns / RT_STALL_PARTS) return;
    w->looked = now;
    uint32_t sum = 0, busy = RT_NONE;
    for (uint32_t i = 0; i < rt->n_workers; i++) {
        uint32_t beat = rt_load_relaxed(&rt->beats[i].beat);
        sum += beat;
        if (beat & 1) busy = i;
    }
    if (sum != w->beats_seen) {
        w->idle_since = now;
        w->beats_seen = sum;
        return;
    }
    uint64_t deadline = rt->deadline_ns * (busy != RT_NONE ? RT_TASK_PATIENCE : 1);
    if (now - w->idle_since >= deadline) rt_stall_report(rt, w, now - w->idle_since, busy);
}

/* ---- waiting ---- */

/* No iteration runs. The launch ends when none has run for rt_pool.linger_ns. The phase is RUN
 * then, as when a boundary ends the launch. */
RT_COLD void rt_worker_linger(const struct rt *rt, struct rt_worker *w) {
    const uint64_t now = rt_now_ns();
    if (w->lingers_since == 0) w->lingers_since = now;
    if (now - w->lingers_since < rt->pool->linger_ns) {
        rt_pause(w->spins++, rt->spin_limit);
        return;
    }
    w->lingers_since = 0;
    if (rt_cas_acquire(&rt->shared->phase, RT_PHASE_IDLE, RT_PHASE_RUN))
        rt_cas_acquire(&rt->shared->stop, RT_GO, RT_STOP_IDLE);
}

/* No iteration runs: the first worker to see a reason takes the boundary, the other workers wait.
 */
RT_COLD void rt_worker_between(const struct rt *rt, struct rt_worker *w, uint32_t phase) {
    struct rt_shared *sh = rt->shared;
    w->idle_since = 0;
    if (phase == RT_PHASE_START) {
        w->boundary = (uint32_t)rt_cas_acquire(&sh->phase, RT_PHASE_START, RT_PHASE_RUN);
        return;
    }
    uint32_t bell = rt_load_relaxed(&sh->idle_bell);
    if (!rt_host_poller(w->id)) {
        rt_pause(w->spins++, rt->spin_limit);
    } else if (rt_host_load_acquire(&rt->mail->tail) != bell) {
        w->lingers_since = 0;
        w->boundary = (uint32_t)rt_cas_acquire(&sh->phase, RT_PHASE_IDLE, RT_PHASE_RUN);
    } else if (rt->until_idle)
        rt_worker_linger(rt, w);
    else
        rt_host_wait(&rt->mail->tail, bell, w->spins++);
}

RT_FN void rt_worker_idle(const struct rt *rt, struct rt_worker *w) {
    uint32_t phase = rt_load_relaxed(&rt->shared->phase);
    if (phase != RT_PHASE_RUN) {
        rt_worker_between(rt, w, phase);
        return;
    }
    rt_pause(w->spins++, rt->spin_limit);
    if (w->spins % RT_STALL_LOOK == 0) rt_stall_look(rt, w);
}

/* ---- finding work ---- */

/* Says which task is next, for reports. */
RT_FN void rt_worker_show(const struct rt *rt, const struct rt_worker *w) {
    rt_store_relaxed(&rt->beats[w->id].head, rt_worker_head(rt, w));
}

/* Sets the worker's list and the variant's epoch. A worker with tasks in a variant takes part in
 * each of its runs, so it may count them. After another variant it reads the epoch, and only if it
 * has tasks: such an iteration cannot end, and the word cannot change, before these tasks have run.
 */
RT_FN void rt_worker_list(const struct rt *rt, struct rt_worker *w, uint32_t variant) {
    if (variant == w->list_variant) {
        w->epoch++;
        return;
    }
    w->list_variant = variant;
    w->list = rt->lists[variant * rt->n_workers + w->id];
    if (w->list.n > 0) w->epoch = rt->control->epoch;
}

RT_FN void rt_worker_enter(const struct rt *rt, struct rt_worker *w, uint32_t published) {
    rt_worker_list(rt, w, rt_variant_of(published));
    w->published = published;
    w->next = w->list.first;
    w->end = w->list.first + w->list.n;
    w->asked = 0;
    w->spins = 0;
    w->idle_since = 0;
}

/* Enters the next iteration if one was published since. */
RT_FN int rt_worker_advance(const struct rt *rt, struct rt_worker *w) {
    uint32_t published = rt_load_relaxed(&rt->shared->published);
    if (published == w->published) return 0;
    rt_fence_acquire(&rt->shared->published);
    rt_worker_enter(rt, w, published);
    return 1;
}

/* Plays the boundary, once rt_boundary_ask has returned 1, and enters the iteration that it
 * publishes. Returns whether there is one. */
RT_FN int rt_worker_boundary(const struct rt *rt, struct rt_worker *w) {
    const uint32_t published = rt_boundary(rt, w);
    if (published != 0) rt_worker_enter(rt, w, published);
    return published != 0;
}

/* Claims a JIT task; 0: there was none. A worker whose list is done may not have entered the task's
 * iteration yet: it enters now. While the worker has the task, that iteration cannot end. */
RT_FN int rt_worker_claim(const struct rt *rt, struct rt_worker *w) {
    uint32_t published, index = rt_claim_next(rt, &published);
    if (index == RT_NONE) return 0;
    if (published != w->published) rt_worker_enter(rt, w, published);
    if (w->list.n == 0 && w->epoch_of != published) {
        w->epoch = rt->control->epoch;
        w->epoch_of = published;
    }
    w->claimed = index;
    return 1;
}

/* Claims a JIT task if the worker has none and one comes before its next AOT task. */
RT_FN int rt_worker_want(const struct rt *rt, struct rt_worker *w) {
    if (rt->jit_first[rt->n_variants] == 0 || w->claimed != RT_NONE) return 0;
    return rt_claim_open(rt, w, rt_claim_bound(rt, w)) && rt_worker_claim(rt, w);
}

/* The next task whose event is activated; RT_NONE: none now. */
RT_FN uint32_t rt_worker_find(const struct rt *rt, struct rt_worker *w) {
    if (rt_worker_want(rt, w)) rt_worker_show(rt, w);
    uint32_t task = rt_worker_head(rt, w);
    if (task == RT_NONE) {
        if (rt_worker_advance(rt, w))
            rt_worker_show(rt, w);
        else
            rt_worker_idle(rt, w);
        return RT_NONE;
    }
    if (!rt_event_ready(rt, rt->tasks[task].wait, w->epoch)) {
        rt_worker_idle(rt, w);
        return RT_NONE;
    }
    if (w->next < w->end && task == rt->aot[w->next])
        w->next++;
    else
        w->claimed = RT_NONE;
    rt_worker_show(rt, w);
    return task;
}

/* ---- running it ---- */

RT_FN void rt_worker_begin(const struct rt *rt, struct rt_worker *w, uint32_t task) {
    const struct rt_control *c = rt->control;
    struct rt_beat *beat = &rt->beats[w->id];
    w->task = task;
    w->task_epoch = c->epoch;
    w->task_end = rt->variants[c->variant].end_event;
    w->spins = 0;
    w->idle_since = 0;
    rt_store_relaxed(&beat->task, task);
    rt_store_relaxed(&beat->beat, rt_load_relaxed(&beat->beat) + 1);
    rt_trace(rt, w->id, RT_TRACE_READY, 0, task);
}

/* After the body of w->task: triggers its event. */
RT_FN void rt_worker_done(const struct rt *rt, struct rt_worker *w) {
    struct rt_beat *beat = &rt->beats[w->id];
    rt_trace(rt, w->id, RT_TRACE_END, 0, w->task);
    rt_store_relaxed(&beat->beat, rt_load_relaxed(&beat->beat) + 1);
    rt_trigger(rt, w, rt->tasks[w->task].trigger, w->task_epoch, w->task_end);
}

/* One step of the role. Returns whether w->task is to be run now. */
RT_FN int rt_worker_next(const struct rt *rt, struct rt_worker *w) {
    if (w->boundary && rt_boundary_ask(rt, w)) {
        if (rt_worker_boundary(rt, w)) rt_worker_show(rt, w);
        rt_boundary_post(rt, w);
    }
    uint32_t task = rt_worker_find(rt, w);
    if (task == RT_NONE) return 0;
    rt_worker_begin(rt, w, task);
    if (rt->tasks[task].kind == OP_NONE) {
        rt_worker_done(rt, w);
        return 0;
    }
    return 1;
}

#endif
