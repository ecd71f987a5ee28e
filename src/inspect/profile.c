#include "inspect/profile.h"

#include "base/checked.h"

#include <string.h>

static const struct prog_variant *variant_of(const struct trace *t, const struct trace_iter *iter) {
    return &PROG(t->program, VARIANT)[iter->variant];
}

static const struct prog_task *task_of(const struct trace *t, const struct trace_run *r) {
    return &PROG(t->program, TASK)[r->task];
}

/* ---- one iteration ------------------------------------------------------------------------ */

/* Accounts for [from, to) of a worker, before a task of kind `who` whose event was activated by run
 * `by`. The part that is not waiting is added to *rest. */
static void add_gap(struct profile *p, uint32_t worker, uint64_t from, uint64_t to, size_t by,
                    int who, uint64_t *rest) {
    const struct trace *t = p->trace;
    if (from >= to) return;
    if (by != SIZE_MAX && t->runs.items[by].end > from) {
        const struct trace_run *r = &t->runs.items[by];
        uint64_t waited = MIN(r->end, to) - from;
        struct profile_op *op = &p->ops[task_of(t, r)->kind];
        op->waited_ns += waited;
        op->waited_by[who] += waited;
        if (r->worker < t->n_workers && r->worker != worker) p->waited_for[r->worker] += waited;
        from += waited;
    }
    *rest += to - from;
}

static size_t last_run(const struct trace *t, const struct trace_iter *iter) {
    size_t last = iter->first_run;
    for (size_t i = iter->first_run; i < iter->first_run + iter->n_runs; i++)
        if (t->runs.items[i].end > t->runs.items[last].end) last = i;
    return last;
}

/* When a run's data had arrived; a task that polls its data is ready before that. by: the run that
 * activated its event; SIZE_MAX: none. */
static uint64_t start_of(const struct trace *t, const struct trace_run *r, size_t by) {
    return by == SIZE_MAX ? r->ready : MIN(MAX(r->ready, t->runs.items[by].end), r->end);
}

static void add_iteration(struct profile *p, const struct trace_iter *iter,
                          const struct trace_links *links, uint64_t *free_since) {
    const struct trace *t = p->trace;
    const struct prog_variant *v = variant_of(t, iter);
    for (uint32_t w = 0; w < t->n_workers; w++) free_since[w] = iter->start;
    for (size_t i = iter->first_run; i < iter->first_run + iter->n_runs; i++) {
        const struct trace_run *r = &t->runs.items[i];
        const struct prog_task *task = task_of(t, r);
        struct profile_op *op = &p->ops[task->kind];
        size_t by =
            task->wait == PROG_NONE ? SIZE_MAX : links->activator[task->wait - v->first_event];
        /* The worker that published the iteration wakes the host before it looks for work. */
        bool woke = r->worker == iter->by && free_since[r->worker] == iter->start;
        p->n_hand_overs += !woke;
        const uint64_t start = start_of(t, r, by);
        add_gap(p, r->worker, free_since[r->worker], start, by, task->kind,
                woke ? &p->wake_ns : &p->hand_over_ns);
        op->n_tasks++;
        op->ns += r->end - start;
        op->worker_ns[r->worker] += r->end - start;
        op->longest_ns = MAX(op->longest_ns, r->end - start);
        op->weight_bytes += trace_weight_bytes(t->program, r->task);
        op->kv_bytes += trace_kv_bytes(t->program, r->task, iter->context);
        /* A GPU's task without a body may lie inside of another one. */
        free_since[r->worker] = MAX(free_since[r->worker], r->end);
    }
    size_t last = last_run(t, iter);
    for (uint32_t w = 0; w < t->n_workers; w++)
        add_gap(p, w, free_since[w], iter->end, last, N_OP_KINDS, &p->hand_over_ns);
}

/* ---- the critical path -------------------------------------------------------------------- */

/* The run on the same worker just before run i of its iteration; SIZE_MAX: none. */
static size_t before_on_worker(const struct trace *t, const struct trace_iter *iter, size_t i) {
    for (size_t k = i; k-- > iter->first_run;)
        if (t->runs.items[k].worker == t->runs.items[i].worker) return k;
    return SIZE_MAX;
}

/* Goes backwards from the task that ended last. Each step goes to the later of two tasks: the one
 * that activated its event, and the one before it on its worker. */
static int make_path(struct diag *d, struct profile *p, const struct trace_links *links) {
    const struct trace *t = p->trace;
    const struct trace_iter *iter = &t->iters.items[p->typical];
    const struct prog_variant *v = variant_of(t, iter);
    size_t at = last_run(t, iter);
    for (size_t n = 0; at != SIZE_MAX && n < iter->n_runs; n++) {
        const struct trace_run *r = &t->runs.items[at];
        const struct prog_task *task = task_of(t, r);
        size_t own = before_on_worker(t, iter, at);
        size_t by =
            task->wait == PROG_NONE ? SIZE_MAX : links->activator[task->wait - v->first_event];
        uint64_t own_end = own == SIZE_MAX ? 0 : t->runs.items[own].end;
        uint64_t by_end = by == SIZE_MAX || by == at ? 0 : t->runs.items[by].end;
        size_t next = by_end > own_end ? by : own;
        uint64_t since = next == SIZE_MAX ? iter->start : t->runs.items[next].end;
        const uint64_t start = start_of(t, r, by);
        uint64_t gap = start > since ? start - since : 0;
        TRY(ARRAY_PUSH(d, &p->path, (struct profile_step){at, r->end - start, gap, next == own}));
        p->path_task_ns[task->kind] += r->end - start;
        p->path_gap_ns += gap;
        at = next;
    }
    for (size_t i = 0, j = p->path.n; i + 1 < j; i++) { /* first task first */
        struct profile_step x = p->path.items[i];
        p->path.items[i] = p->path.items[--j];
        p->path.items[j] = x;
    }
    return QN_OK;
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* Whether `iter` is a decode iteration of the whole batch, with all its records. */
static bool counts(const struct trace_iter *iter, uint32_t batch) {
    return iter->complete && iter->n_running == batch && iter->n_rows == batch &&
           iter->n_logit_rows == batch;
}

struct length {
    uint64_t ns;
    size_t iter;
};

static int by_length(const void *a, const void *b) {
    const struct length *x = a, *y = b;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    return x->iter < y->iter ? -1 : x->iter > y->iter;
}

/* An iteration that takes this many times the median was disturbed from outside (another process
 * had the CPU); it would tell about the machine and not about the program. */
enum { DISTURBED = 3 };

/* The iterations to account for, in order of length. */
static int choose(struct diag *d, struct profile *p, uint32_t batch, size_t first,
                  struct length *all) {
    const struct trace *t = p->trace;
    for (size_t i = first; i < t->iters.n; i++)
        if (counts(&t->iters.items[i], batch))
            all[p->n_iters++] = (struct length){t->iters.items[i].end - t->iters.items[i].start, i};
    if (p->n_iters == 0)
        return fail(d, QN_EINVAL,
                    "profile: the trace has no whole decode iteration of %u requests; ask for more "
                    "output or give the trace more memory",
                    batch);
    qsort(all, p->n_iters, sizeof *all, by_length);
    p->typical = all[p->n_iters / 2].iter;
    p->variant = t->iters.items[p->typical].variant;
    uint64_t most = all[p->n_iters / 2].ns * DISTURBED;
    while (all[p->n_iters - 1].ns > most) p->n_iters--;
    return QN_OK;
}

/* Adds the time from an iteration's end to the next one's start, if that follows at once. */
static void add_boundary(struct profile *p, size_t i) {
    const struct trace *t = p->trace;
    if (i + 1 >= t->iters.n || t->iters.items[i + 1].number != t->iters.items[i].number + 1) return;
    uint64_t gap = t->iters.items[i + 1].start - t->iters.items[i].end;
    uint64_t length = t->iters.items[i].end - t->iters.items[i].start;
    if (t->iters.items[i + 1].start < t->iters.items[i].end || gap > length)
        return; /* the engine was idle */
    p->boundary_ns += gap;
    p->n_boundaries++;
}

/* Makes the sums over `all`, and the path of the typical iteration. */
static int account(struct diag *d, struct profile *p, const struct length *all,
                   struct trace_links *links, uint64_t *free_since) {
    const struct trace *t = p->trace;
    for (size_t i = 0; i < p->n_iters; i++) {
        const struct trace_iter *iter = &t->iters.items[all[i].iter];
        trace_links_fill(t, iter, links);
        add_iteration(p, iter, links, free_since);
        add_boundary(p, all[i].iter);
        p->ns += all[i].ns;
        if (all[i].iter == p->typical) TRY(make_path(d, p, links));
    }
    if (p->n_boundaries > 0) { /* iterations without a successor count the mean boundary */
        p->boundary_ns = p->boundary_ns / p->n_boundaries * p->n_iters;
        p->ns += p->boundary_ns;
    }
    return QN_OK;
}

/* Averages of the page rings over the time of the iterations in the sums. */
static int account_pages(struct diag *d, struct profile *p, const struct length *all) {
    const struct trace *t = p->trace;
    struct trace_ring ring;
    double flying = 0, n_free = 0, ns = 0;
    bool *chosen = calloc(t->iters.n + 1, sizeof *chosen);
    if (!chosen) return fail_nomem(d, t->iters.n, "the account");
    int rc = trace_ring_new(d, t, &ring);
    for (size_t i = 0; i < p->n_iters; i++) chosen[all[i].iter] = true;
    for (size_t i = 0, k = 0; i < t->pages.n && rc == QN_OK; i++) {
        uint64_t from = t->pages.items[i].time;
        uint64_t to = i + 1 < t->pages.n ? t->pages.items[i + 1].time : UINT64_MAX;
        if (!trace_ring_step(t, i, &ring)) continue;
        while (k < t->iters.n && t->iters.items[k].end <= from) k++;
        for (size_t j = k; j < t->iters.n && t->iters.items[j].start < to; j++) {
            uint64_t a = MAX(from, t->iters.items[j].start), b = MIN(to, t->iters.items[j].end);
            if (!chosen[j] || a >= b) continue;
            flying += (double)ring.flying_bytes * (double)(b - a);
            n_free += (double)ring.n_free * (double)(b - a);
            ns += (double)(b - a);
        }
    }
    if (ns > 0) {
        p->flying_bytes = flying / ns;
        p->pages_free = n_free / ns;
    }
    trace_ring_fini(&ring);
    free(chosen);
    return rc;
}

int profile_make(struct diag *d, const struct trace *t, uint32_t batch, size_t first,
                 struct profile *out) {
    struct trace_links links = {0};
    *out = (struct profile){.trace = t, .first = first};
    uint64_t *free_since = calloc(t->n_workers, sizeof *free_since);
    struct length *all = calloc(t->iters.n + 1, sizeof *all);
    out->waited_for = calloc(t->n_workers, sizeof *out->waited_for);
    out->worker_ns = calloc((size_t)N_OP_KINDS * t->n_workers, sizeof *out->worker_ns);
    int rc = QN_ENOMEM;
    if (free_since && all && out->waited_for && out->worker_ns) {
        for (uint32_t k = 0; k < N_OP_KINDS; k++)
            out->ops[k].worker_ns = out->worker_ns + (size_t)k * t->n_workers;
        rc = trace_links_new(d, t->program, &links);
        if (rc == QN_OK) rc = choose(d, out, batch, first, all);
        if (rc == QN_OK) rc = account(d, out, all, &links, free_since);
        if (rc == QN_OK) rc = account_pages(d, out, all);
    } else {
        fail_nomem(d, t->iters.n * sizeof *all, "the account");
    }
    free(free_since);
    free(all);
    trace_links_fini(&links);
    if (rc != QN_OK) profile_fini(out);
    return rc;
}

void profile_fini(struct profile *p) {
    free(p->waited_for);
    free(p->worker_ns);
    ARRAY_FINI(&p->path);
    p->waited_for = p->worker_ns = NULL;
}
