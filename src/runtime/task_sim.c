#include "runtime/task_sim.h"

#include "runtime/rt_boundary.h"

int task_sim_open(struct diag *d, const struct cpu_config *config, struct task_sim *sim) {
    *sim = (struct task_sim){0};
    return cpu_core_open(d, config, true, 1, &sim->core);
}

void task_sim_close(struct task_sim *sim) {
    cpu_core_close(&sim->core);
}

static int fail_task(struct diag *d, const struct prog_header *p, const struct rt *rt,
                     uint32_t task, uint32_t event, uint32_t have) {
    struct strbuf name = {0};
    program_task_name(p, task, &name);
    fail(d, QN_EVERIFY, "%s runs before event %u is activated (have %u of %u)", strbuf_text(&name),
         event, have, rt->events[event].n_triggers);
    strbuf_fini(&name);
    return QN_EVERIFY;
}

static uint32_t had(const struct rt *rt, uint32_t event, uint32_t epoch) {
    return rt_load_relaxed(rt_counter(rt, event)) - rt_event_goal(rt, event, epoch - 1);
}

static int run_tasks(struct diag *d, struct task_sim *sim, const struct prog_variant *v,
                     uint32_t epoch) {
    const struct rt *rt = &sim->core.rt;
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
        const struct prog_task *task = &rt->tasks[t];
        if (!rt_event_ready(rt, task->wait, epoch))
            return fail_task(d, sim->core.config.program, rt, t, task->wait,
                             had(rt, task->wait, epoch));
        if (task->kind != OP_NONE) cpu_core_run(&sim->core, 0, t);
        sim->n_tasks++;
        if (task->trigger != PROG_NONE) rt_event_trigger(rt, task->trigger, epoch);
    }
    return QN_OK;
}

static int check_events(struct diag *d, const struct rt *rt, const struct prog_variant *v,
                        uint32_t epoch) {
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        if (had(rt, e, epoch) != rt->events[e].n_triggers)
            return fail(d, QN_EVERIFY, "event %u ends the iteration with %u of %u triggers", e,
                        had(rt, e, epoch), rt->events[e].n_triggers);
    return QN_OK;
}

int task_sim_run(struct diag *d, struct task_sim *sim) {
    const struct rt *rt = &sim->core.rt;
    struct rt_worker w = {0};
    while (rt_boundary_ask(rt, &w) && rt_boundary_prepare(rt, &w)) {
        const struct prog_variant *v = &rt->variants[rt->control->variant];
        uint32_t epoch = rt->control->epoch;
        rt_event_trigger(rt, v->start_event, epoch);
        TRY(run_tasks(d, sim, v, epoch));
        TRY(check_events(d, rt, v, epoch));
        sim->n_iterations++;
    }
    rt_boundary_post(rt, &w);
    return QN_OK;
}
