#include "runtime/rt_stall.h"

#include "base/strbuf.h"
#include "runtime/rt_event.h"

/* Triggers that the event has had in the run that stalled. */
static uint32_t triggers_had(const struct rt *rt, uint32_t event) {
    uint32_t goal = rt_event_goal(rt, event, rt->control->epoch - 1);
    return rt_load_relaxed(rt_counter(rt, event)) - goal;
}

/* The first event of the variant that lacks triggers; RT_NONE: none does. */
static uint32_t first_incomplete(const struct rt *rt, uint32_t variant) {
    const struct prog_variant *v = &rt->variants[variant];
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        if (triggers_had(rt, e) < rt->events[e].n_triggers) return e;
    return RT_NONE;
}

/* The task that the message is about when an event lacks triggers: one that triggers the event;
 * RT_NONE: no task of the variant does. *n_tasks: how many do. */
static uint32_t missing_trigger(const struct rt *rt, uint32_t variant, uint32_t event,
                                uint32_t *n_tasks) {
    const struct prog_variant *v = &rt->variants[variant];
    uint32_t last = RT_NONE;
    *n_tasks = 0;
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
        if (rt->tasks[t].trigger != event) continue;
        last = t;
        ++*n_tasks;
    }
    return last;
}

static void add_cause(const struct prog_header *program, const struct rt *rt,
                      const struct rt_stall *s, struct strbuf *out) {
    uint32_t event = first_incomplete(rt, s->variant);
    if (event == RT_NONE) return;
    uint32_t n_tasks;
    uint32_t task = missing_trigger(rt, s->variant, event, &n_tasks);
    uint32_t want = rt->events[event].n_triggers;
    strbuf_printf(out, "; the first event that lacks triggers is %u (have %u of %u)", event,
                  triggers_had(rt, event), want);
    if (n_tasks < want && event != rt->variants[s->variant].start_event)
        strbuf_printf(out, ", which only %u tasks trigger", n_tasks);
    else if (task != RT_NONE) {
        strbuf_str(out, ", triggered by ");
        program_task_name(program, task, out);
    }
}

int rt_stall_fail(struct diag *d, const struct prog_header *program, const struct rt *rt) {
    const struct rt_stall *s = rt->stall;
    struct strbuf out = {0};
    double seconds = (double)s->waited_ns * 1e-9;
    if (s->busy_worker != RT_NONE) {
        strbuf_printf(&out, "worker %u did not come back in %.1f s from ", s->busy_worker, seconds);
        program_task_name(program, s->busy_task, &out);
        strbuf_str(&out, "; ");
    }
    strbuf_printf(&out, "worker %u waited %.1f s for ", s->worker, seconds);
    /* The triggers of an event that is carried by data are only hints; the data comes beside them.
     */
    if (rt->events[s->event].transport != TRANSPORT_COUNTER && s->have >= s->want)
        strbuf_str(&out, "the data of ");
    strbuf_printf(&out, "event %u (have %u of %u) ", s->event, s->have, s->want);
    if (s->task != RT_NONE) {
        strbuf_str(&out, "before ");
        program_task_name(program, s->task, &out);
    } else {
        strbuf_str(&out, "at the end");
    }
    strbuf_printf(&out, " in iteration %u, variant %u", s->iteration, s->variant);
    add_cause(program, rt, s, &out);
    if (s->n_jit > 0) strbuf_printf(&out, "; %u of %u JIT tasks are claimed", s->claimed, s->n_jit);
    int rc = fail(d, QN_ESTALL, "%s", strbuf_text(&out));
    strbuf_fini(&out);
    return rc;
}
