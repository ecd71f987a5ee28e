#include "runtime/cpu_crowd.h"

#include "base/checked.h"
#include "runtime/cpu_ahead.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- open ---- */

static bool has_gangs(const struct prog_header *p) {
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++)
        if (PROG(p, OP)[i].gang > 1) return true;
    return false;
}

int cpu_crowd_open(struct diag *d, struct cpu_crowd *c, const struct cpu_core *core) {
    const uint32_t n = core->rt.n_workers;
    *c = (struct cpu_crowd){.core = core, .n = n, .active = n};
    c->fixed = n < 2 || has_gangs(core->config.program);
    c->hurry = MAX(core->config.crowd_hurry, 1u);
    c->patience_ns = CPU_CROWD_PATIENCE_NS / c->hurry;
    c->roles = aligned_alloc(128, n * sizeof *c->roles);
    if (c->roles == NULL) return fail_nomem(d, n * sizeof *c->roles, "worker threads");
    for (uint32_t i = 0; i < n; i++) c->roles[i] = (struct cpu_role){.held = 1, .file = -1};
    return QN_OK;
}

void cpu_crowd_close(struct cpu_crowd *c) {
    for (uint32_t i = 0; c->roles != NULL && i < c->n; i++)
        if (c->roles[i].file >= 0) close(c->roles[i].file);
    free(c->roles);
    *c = (struct cpu_crowd){0};
}

/* ---- steps ---- */

/* One step of a worker that the thread holds. Returns whether it ran a task. */
static bool step(const struct cpu_crowd *c, struct rt_worker *w) {
    if (!rt_worker_next(&c->core->rt, w)) return false;
    cpu_core_run(c->core, w->id, w->task);
    rt_worker_done(&c->core->rt, w);
    return true;
}

/* Takes a step of each worker that is free. */
static void help(struct cpu_crowd *c, uint32_t active) {
    for (uint32_t i = active; i < c->n; i++) {
        struct cpu_role *r = &c->roles[i];
        if (!rt_cas_acquire(&r->held, 0, 1)) continue;
        step(c, &r->worker);
        rt_store_release(&r->held, 0);
    }
}

/* Releases the thread's worker until the thread is active again. */
static void park(struct cpu_crowd *c, uint32_t index) {
    struct cpu_role *r = &c->roles[index];
    uint32_t active = rt_load_relaxed(&c->active), spins = 0;
    rt_store_release(&r->held, 0);
    for (; active <= index; active = rt_load_relaxed(&c->active))
        rt_host_sleep(&c->active, active, 1000000000u);
    while (!rt_cas_acquire(&r->held, 0, 1)) rt_pause(spins++, 1000);
}

/* ---- delays ---- */

/* How long the calling thread was ready to run and did not run, in all; 0: the system does not say.
 */
static uint64_t system_delay(int file) {
    char text[96], *end;
    const ssize_t n = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = '\0';
    (void)strtoull(text, &end, 10); /* the time that it ran */
    return strtoull(end, NULL, 10);
}

static void set_active(struct cpu_crowd *c, uint32_t n) {
    rt_store_release(&c->active, n);
    rt_host_wake_all(&c->active);
}

static void leave(struct cpu_crowd *c, uint64_t now) {
    if (c->on_trial) c->patience_ns = MIN(2 * c->patience_ns, CPU_CROWD_PATIENT_NS / c->hurry);
    c->trial_at = now + c->patience_ns;
    c->on_trial = false;
    set_active(c, c->active - 1);
}

/* A window went well: another thread comes back on trial, if it is time. */
static void go_on(struct cpu_crowd *c, uint64_t now) {
    if (c->on_trial) c->patience_ns = MAX(c->patience_ns / 2, CPU_CROWD_PATIENCE_NS / c->hurry);
    c->on_trial = c->active < c->n && now >= c->trial_at;
    if (c->on_trial) set_active(c, c->active + 1);
}

static uint64_t all_delays(const struct cpu_crowd *c) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n; i++) sum += rt_load64_relaxed(&c->roles[i].delay);
    return sum;
}

/* Thread 0: ends a window that is long enough, or in which too much was lost. A window that is much
 * longer than it should be was spent asleep, and says nothing. */
static void judge(struct cpu_crowd *c, uint64_t now) {
    const uint64_t wall = now - c->since, sum = all_delays(c), lost = sum - c->seen;
    const uint64_t most = (c->on_trial ? CPU_CROWD_TRIAL_LOST_NS : CPU_CROWD_LOST_NS) / c->hurry;
    const uint64_t window = CPU_CROWD_WINDOW_NS / c->hurry;
    const bool crowded = lost >= most && wall < 8 * window;
    if (wall < window && !crowded) return;
    if (crowded && c->active > 1)
        leave(c, now);
    else if (!crowded)
        go_on(c, now);
    c->since = now;
    c->seen = sum;
}

/* Now and then a thread reads its delay, and thread 0 judges all delays. */
static void look(struct cpu_crowd *c, uint32_t index) {
    struct cpu_role *r = &c->roles[index];
    if (++r->turns % CPU_CROWD_TURNS != 0) return;
    const uint64_t now = rt_now_ns();
    if (now - r->looked < CPU_CROWD_READ_NS / c->hurry) return;
    const struct cpu_config *config = &c->core->config;
    r->looked = now;
    rt_store64_release(&r->delay, config->run_delay != NULL ? config->run_delay(config->user, index)
                                                            : system_delay(r->file));
    if (index == 0) judge(c, now);
}

/* ---- a launch ---- */

static void run(struct cpu_crowd *c, uint32_t index) {
    struct cpu_role *r = &c->roles[index];
    struct cpu_ahead ahead = {0};
    const struct rt *rt = &c->core->rt;
    while (!rt_stopped(rt)) {
        const uint32_t active = rt_load_relaxed(&c->active);
        if (active <= index) {
            park(c, index);
            continue;
        }
        if (!step(c, &r->worker)) {
            cpu_ahead_step(c->core, &ahead, rt_worker_head(rt, &r->worker));
            if (active < c->n) help(c, active);
        }
        if (!c->fixed) look(c, index);
    }
}

void cpu_crowd_run(struct cpu_crowd *c, uint32_t index) {
    struct cpu_role *r = &c->roles[index];
    rt_worker_init(&c->core->rt, &r->worker, index);
    if (r->file < 0 && !c->fixed && c->core->config.run_delay == NULL)
        r->file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    run(c, index);
    if (index == 0) set_active(c, c->n); /* parked threads notice the end, too */
}
