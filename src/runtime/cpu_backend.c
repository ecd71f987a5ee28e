#include "runtime/cpu_backend.h"

#include "base/checked.h"
#include "base/container.h"
#include "runtime/cpu_crowd.h"
#include "runtime/rt_stall.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* Words that threads and host share outside of the protocol, each on its own line. */
struct gate {
    uint32_t launch; /* host: launches so far; threads sleep on it */
    uint32_t pad0[15];
    uint32_t returned; /* threads: how many have come back from launches, in all */
    uint32_t pad1[15];
    uint32_t closing; /* host */
    uint32_t pad2[15];
};

struct thread {
    struct cpu_backend *backend;
    pthread_t id;
    uint32_t index;
};

struct cpu_backend {
    struct cpu_core core;
    struct cpu_crowd crowd;
    struct gate *gate;
    struct thread *threads; /* [n_workers] */
    uint32_t n_started;
    uint32_t n_cpus;
    int first_cpu; /* where it was opened */
};

uint32_t cpu_backend_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const uint32_t n = MAX((uint32_t)CPU_COUNT(&set), 1u), quota = container_cpus("");
    return quota != 0 ? MIN(n, quota) : n;
}

int cpu_backend_plan(struct diag *d, const struct cpu_config *config, struct cpu_plan *plan) {
    return cpu_core_plan(d, config, plan);
}

/* ---- threads ---- */

/* Sleeps until launch number `next` or the end. Returns whether it is a launch. */
static int wait_launch(struct gate *g, uint32_t next) {
    for (;;) {
        uint32_t launch = rt_load_acquire(&g->launch);
        if (rt_load_acquire(&g->closing)) return 0;
        if (launch == next) return 1;
        rt_host_sleep(&g->launch, launch, 1000000000u);
    }
}

/* Puts the calling thread on a CPU of its own, without binding it: the system moves it when other
 * threads want that CPU. Otherwise threads that start together would share one for a while. The
 * first thread takes the CPU where the backend was opened, so that engines that are opened one
 * after the other differ. */
static void spread(const struct thread *t) {
    cpu_set_t all, one;
    const int first = t->backend->first_cpu;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    if (t->backend->core.rt.n_workers > (uint32_t)CPU_COUNT(&all)) return;
    uint32_t left = t->index;
    for (int i = 0; i < 2 * CPU_SETSIZE; i++) {
        const int cpu = (first + i) % CPU_SETSIZE;
        if (!CPU_ISSET(cpu, &all) || left-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0) sched_setaffinity(0, sizeof all, &all);
        return;
    }
}

static void *thread_main(void *arg) {
    struct thread *t = arg;
    struct gate *g = t->backend->gate;
    spread(t);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* naps of rt_pause end when they should */
    for (uint32_t launch = 1; wait_launch(g, launch); launch++) {
        cpu_crowd_run(&t->backend->crowd, t->index);
        rt_add_acq_rel(&g->returned, 1);
        rt_host_wake_all(&g->returned);
    }
    return NULL;
}

static int start_thread(struct diag *d, struct cpu_backend *b, uint32_t i) {
    struct thread *t = &b->threads[i];
    *t = (struct thread){.backend = b, .index = i};
    int rc = pthread_create(&t->id, NULL, thread_main, t);
    if (rc != 0) return fail(d, QN_ENOMEM, "worker thread %u: %s", i, strerror(rc));
    b->n_started++;
    return QN_OK;
}

/* ---- launches ---- */

static void launch(struct cpu_backend *b) {
    rt_memory_relaunch(b->core.rt.shared);
    rt_add_acq_rel(&b->gate->launch, 1);
    rt_host_wake_all(&b->gate->launch);
}

/* Waits until all threads have come back from all launches. */
static void join_launch(struct cpu_backend *b) {
    uint32_t want = rt_load_acquire(&b->gate->launch) * b->n_started;
    for (;;) {
        uint32_t have = rt_load_acquire(&b->gate->returned);
        if (have == want) return;
        rt_host_sleep(&b->gate->returned, have, 1000000000u);
    }
}

static int check_stop(struct diag *d, const struct cpu_backend *b) {
    if (rt_load_acquire(&b->core.rt.shared->stop) != RT_STOP_STALL) return QN_OK;
    return rt_stall_fail(d, b->core.config.program, &b->core.rt);
}

int cpu_backend_run(struct diag *d, struct cpu_backend *b) {
    if (b->core.config.serve) return fail(d, QN_EINVAL, "a serving engine runs by itself");
    TRY(check_stop(d, b));
    launch(b);
    join_launch(b);
    return check_stop(d, b);
}

/* ---- open and close ---- */

static int open_threads(struct diag *d, struct cpu_backend *b) {
    uint32_t n = b->core.rt.n_workers;
    b->gate = aligned_alloc(64, sizeof *b->gate);
    b->threads = calloc(n, sizeof *b->threads);
    if (b->gate == NULL || b->threads == NULL)
        return fail_nomem(d, n * sizeof *b->threads, "worker threads");
    *b->gate = (struct gate){0};
    TRY(cpu_crowd_open(d, &b->crowd, &b->core));
    for (uint32_t i = 0; i < n; i++) TRY(start_thread(d, b, i));
    if (b->core.config.serve) launch(b);
    return QN_OK;
}

int cpu_backend_open(struct diag *d, const struct cpu_config *config, struct cpu_backend **out) {
    struct cpu_backend *b = calloc(1, sizeof *b);
    *out = NULL;
    if (b == NULL) return fail_nomem(d, sizeof *b, "CPU backend");
    b->n_cpus = cpu_backend_cpus();
    b->first_cpu = MAX(sched_getcpu(), 0);
    int rc = cpu_core_open(d, config, !config->serve, b->n_cpus, &b->core);
    if (rc == QN_OK) rc = open_threads(d, b);
    if (rc != QN_OK) {
        cpu_backend_close(b);
        return rc;
    }
    *out = b;
    return QN_OK;
}

static void stop_threads(struct cpu_backend *b) {
    struct rt_shared *shared = b->core.rt.shared;
    rt_store_release(&b->gate->closing, 1);
    rt_cas_acquire(&shared->stop, RT_GO, RT_STOP_HOST);
    mailbox_ring(&b->core.mailbox);
    rt_add_acq_rel(&b->gate->launch, 1);
    rt_host_wake_all(&b->gate->launch);
    for (uint32_t i = 0; i < b->n_started; i++) pthread_join(b->threads[i].id, NULL);
}

void cpu_backend_close(struct cpu_backend *b) {
    if (b == NULL) return;
    if (b->n_started > 0) stop_threads(b);
    cpu_crowd_close(&b->crowd);
    free(b->threads);
    free(b->gate);
    cpu_core_close(&b->core);
    free(b);
}

/* ---- requests ---- */

int cpu_backend_submit(struct diag *d, struct cpu_backend *b, const struct rt_request *request,
                       const int32_t *prompt, uint32_t *slot) {
    TRY(check_stop(d, b));
    return mailbox_submit(d, &b->core.mailbox, request, prompt, slot);
}

int cpu_backend_submit_with(struct diag *d, struct cpu_backend *b, const struct rt_request *request,
                            const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot) {
    TRY(check_stop(d, b));
    return mailbox_submit_with(d, &b->core.mailbox, request, extras, prompt, slot);
}

int cpu_backend_cancel(struct diag *d, struct cpu_backend *b, uint32_t slot) {
    return mailbox_cancel(d, &b->core.mailbox, slot);
}

int cpu_backend_poll(struct diag *d, struct cpu_backend *b, uint32_t slot,
                     struct mailbox_view *view) {
    return mailbox_poll(d, &b->core.mailbox, slot, view);
}

int cpu_backend_release(struct diag *d, struct cpu_backend *b, uint32_t slot) {
    return mailbox_release(d, &b->core.mailbox, slot);
}

struct mailbox *cpu_backend_mailbox(struct cpu_backend *b) {
    return &b->core.mailbox;
}

int cpu_backend_wait(struct diag *d, struct cpu_backend *b, uint32_t *seen, double timeout_s) {
    TRY(check_stop(d, b));
    struct mailbox *m = &b->core.mailbox;
    const uint64_t start = rt_now_ns();
    const uint64_t timeout = timeout_s > 0 ? (uint64_t)(MIN(timeout_s, 1e9) * 1e9) : 0;
    /* A wake-up may belong to a change that was seen before: look again. */
    for (uint64_t waited = 0; mailbox_progress(m) == *seen && waited < timeout;
         waited = rt_now_ns() - start)
        mailbox_wait(m, *seen, timeout - waited);
    *seen = mailbox_progress(m);
    return check_stop(d, b);
}

/* ---- numbers ---- */

uint32_t cpu_backend_heartbeat(const struct cpu_backend *b) {
    return rt_host_load_acquire(&b->core.rt.mail->heartbeat);
}

void cpu_backend_stats(const struct cpu_backend *b, struct cpu_backend_stats *stats) {
    *stats = (struct cpu_backend_stats){
        .n_iterations = b->core.rt.control->n_iterations,
        .n_rows = b->core.rt.control->n_rows_run,
        .n_threads = b->core.rt.n_workers,
        .n_cpus = b->n_cpus,
        .isa = b->core.isa ? b->core.isa->name : NULL,
    };
}

void cpu_backend_reads(const struct cpu_backend *b, struct rt_reads *reads) {
    const struct rt_reads *from = b->core.batch->reads;
    *reads = (struct rt_reads){.experts = __atomic_load_n(&from->experts, __ATOMIC_RELAXED),
                               .layers = __atomic_load_n(&from->layers, __ATOMIC_RELAXED)};
}

int cpu_backend_check(struct diag *d, const struct cpu_backend *b) {
    return cpu_core_check(d, &b->core);
}
