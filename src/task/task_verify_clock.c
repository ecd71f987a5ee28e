/* task_verify_clock.c - see task_verify_clock.h: runs every worker's list in the abstract, with
 * vector clocks. */
#include "task/task_verify_clock.h"

#include "base/arena.h"
#include "base/checked.h"

#include <string.h>

struct run {
    const struct prog_header *p;
    const struct prog_variant *v;
    verify_clock_fn *visit;
    void *user;
    const struct prog_list *lists; /* [n_workers] */
    uint32_t *next;                /* [n_workers] tasks of its list that are done */
    uint32_t *had;                 /* [n_events] triggers so far */
    uint32_t *event;               /* [n_events][n_workers] what its triggers released */
    uint32_t *worker;              /* [n_workers][n_workers] what it has acquired and done */
};

static void merge(uint32_t *into, const uint32_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) into[i] = MAX(into[i], from[i]);
}

static bool activated(const struct run *r, uint32_t event) {
    const uint32_t e = event - r->v->first_event;
    return event == r->v->start_event || r->had[e] >= PROG(r->p, EVENT)[event].n_triggers;
}

static void run_task(struct run *r, uint32_t worker, uint32_t index) {
    const uint32_t n = r->p->n_workers;
    const struct prog_task *t = &PROG(r->p, TASK)[index];
    const uint32_t wait = t->wait - r->v->first_event, trigger = t->trigger - r->v->first_event;
    uint32_t *own = r->worker + (size_t)worker * n;
    if (PROG(r->p, EVENT)[t->wait].transport == TRANSPORT_COUNTER)
        merge(own, r->event + (size_t)wait * n, n);
    r->had[trigger]++;
    if (t->kind == OP_NONE) {
        /* An empty task forwards what it waited for; the task before it may still run. */
        merge(r->event + (size_t)trigger * n, r->event + (size_t)wait * n, n);
        return;
    }
    r->visit(r->user, index - r->v->first_task, worker, r->next[worker] + 1, own);
    own[worker] = r->next[worker] + 1;
    if (PROG(r->p, EVENT)[t->trigger].transport == TRANSPORT_COUNTER)
        merge(r->event + (size_t)trigger * n, own, n);
}

static bool run_worker(struct run *r, uint32_t worker) {
    const uint32_t *aot = PROG(r->p, AOT) + r->lists[worker].first;
    const uint32_t before = r->next[worker];
    for (; r->next[worker] < r->lists[worker].n; r->next[worker]++) {
        const uint32_t task = aot[r->next[worker]];
        if (!activated(r, PROG(r->p, TASK)[task].wait)) break;
        run_task(r, worker, task);
    }
    return r->next[worker] != before;
}

int verify_clock_run(struct diag *d, const struct prog_header *p, const struct prog_variant *v,
                     verify_clock_fn *visit, void *user) {
    const uint32_t n = p->n_workers;
    struct arena scratch = {0};
    struct run r = {.p = p,
                    .v = v,
                    .visit = visit,
                    .user = user,
                    .lists = PROG(p, LIST) + (v - PROG(p, VARIANT)) * (uint64_t)n};
    int rc = QN_OK;
    TRY_GOTO(rc, done, ARENA_NEW(d, &scratch, &r.next, n));
    TRY_GOTO(rc, done, ARENA_NEW(d, &scratch, &r.had, v->n_events));
    TRY_GOTO(rc, done, ARENA_NEW(d, &scratch, &r.event, (uint64_t)v->n_events * n));
    TRY_GOTO(rc, done, ARENA_NEW(d, &scratch, &r.worker, (uint64_t)n * n));
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t w = 0; w < n; w++) moved = run_worker(&r, w) || moved;
    }
done:
    arena_fini(&scratch);
    return rc;
}
