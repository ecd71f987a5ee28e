#include "inspect/trace.h"

#include "base/checked.h"
#include "task/program_map.h"

#include <string.h>

/* ---- rings -------------------------------------------------------------------------------- */

struct records {
    struct rt_trace_record *items;
    size_t n, capacity;
};

/* Copies a ring, oldest first; see rt_trace.h for why this may happen while it is written. */
static int copy_ring(struct diag *d, struct rt_trace *rings, uint32_t ring, struct records *out,
                     uint64_t *n_dropped) {
    struct rt_trace_ring *r = rt_trace_ring(rings, ring);
    uint64_t n = __atomic_load_n(&r->n, __ATOMIC_ACQUIRE), capacity = (uint64_t)rings->mask + 1;
    uint64_t first = n > capacity ? n - capacity : 0;
    out->n = 0;
    TRY(ARRAY_RESERVE(d, out, n - first));
    for (uint64_t i = first; i < n; i++) {
        struct rt_trace_record *from = rt_trace_at(rings, r, i);
        out->items[out->n++] =
            (struct rt_trace_record){.time_ns = __atomic_load_n(&from->time_ns, __ATOMIC_ACQUIRE),
                                     .kind = __atomic_load_n(&from->kind, __ATOMIC_ACQUIRE),
                                     .what = __atomic_load_n(&from->what, __ATOMIC_ACQUIRE)};
    }
    /* If a word of a newer record was seen, its `begun` is seen now. */
    uint64_t begun = __atomic_load_n(&r->begun, __ATOMIC_RELAXED);
    uint64_t valid = begun > capacity ? begun - capacity : 0; /* first that is surely whole */
    if (valid > first) {
        uint64_t lost = MIN(valid - first, (uint64_t)out->n);
        memmove(out->items, out->items + lost, (out->n - lost) * sizeof *out->items);
        out->n -= lost;
        first += lost;
    }
    *n_dropped += first;
    return QN_OK;
}

/* ---- decoding ----------------------------------------------------------------------------- */

struct done {
    uint64_t time;
    uint32_t iteration;
};

struct decoder {
    struct diag *d;
    struct trace *t;
    ARRAY(struct done) dones;
    struct trace_iter next; /* filled by the records before ITER */
    struct trace_run open;  /* of the current worker */
    bool is_open;
    bool is_loader; /* the current worker has a record of its pages */
};

static int on_end(struct decoder *c, uint64_t now) {
    if (!c->is_open) return QN_OK; /* its READY was dropped */
    c->open.end = now;
    c->is_open = false;
    return ARRAY_PUSH(c->d, &c->t->runs, c->open);
}

static int on_iteration(struct decoder *c, uint64_t now, uint32_t worker, uint32_t variant,
                        uint32_t number) {
    c->next.by = worker;
    c->next.start = now;
    c->next.variant = variant;
    c->next.number = number;
    TRY(ARRAY_PUSH(c->d, &c->t->iters, c->next));
    c->next = (struct trace_iter){0};
    return QN_OK;
}

static int on_record(struct decoder *c, uint32_t ring, const struct rt_trace_record *r) {
    const uint32_t n_tasks = (uint32_t)c->t->program->section[SECTION_TASK].count;
    const uint32_t aux = r->kind >> 8;
    switch (r->kind & 0xff) {
    case RT_TRACE_READY:
        c->is_open = r->what < n_tasks;
        c->open = (struct trace_run){
            .task = r->what, .worker = ring, .ready = r->time_ns, .begin = r->time_ns};
        break;
    case RT_TRACE_BEGIN: c->open.begin = r->time_ns; break;
    case RT_TRACE_END: return on_end(c, r->time_ns);
    case RT_TRACE_STALL:
        return ARRAY_PUSH(c->d, &c->t->stalls, (struct trace_stall){r->time_ns, ring, r->what});
    case RT_TRACE_PAGES:
        if (r->what >= n_tasks || ring >= c->t->n_workers) break;
        if (!c->is_loader) c->t->n_loaders++;
        c->is_loader = true;
        return ARRAY_PUSH(c->d, &c->t->pages,
                          (struct trace_pages){r->time_ns, ring, r->what,
                                               (aux & 0xff) * (aux >> 16) << 10, aux >> 8 & 0xff});
    case RT_TRACE_DONE: return ARRAY_PUSH(c->d, &c->dones, (struct done){r->time_ns, r->what});
    case RT_TRACE_ROWS:
        c->next.n_rows = r->what;
        c->next.n_logit_rows = aux;
        break;
    case RT_TRACE_RUNNING:
        c->next.n_running = r->what;
        c->next.n_waiting = aux;
        break;
    case RT_TRACE_CONTEXT: c->next.context = r->what; break;
    case RT_TRACE_BLOCKS: c->next.n_free_blocks = r->what; break;
    case RT_TRACE_ITER:
        if (aux < c->t->program->section[SECTION_VARIANT].count)
            return on_iteration(c, r->time_ns, ring, aux, r->what);
        break;
    default: break; /* PUBLISH, IDLE: the runs say the same */
    }
    return QN_OK;
}

/* The span of time in which no ring lacks records. `low`: the newest of the oldest records of rings
 * that have dropped some. `high`: when copying the rings began. Outside the span an iteration's own
 * record may be missing while records of its tasks are present. */
struct span {
    uint64_t low, high;
};

static int copy_rings(struct decoder *c, struct rt_trace *rings, struct records *copies,
                      struct span *span) {
    *span = (struct span){.high = rt_now_ns()};
    for (uint32_t i = 0; i < rings->n_rings; i++) {
        uint64_t dropped = 0;
        TRY(copy_ring(c->d, rings, i, &copies[i], &dropped));
        c->t->n_dropped += dropped;
        if (dropped > 0 && copies[i].n > 0) span->low = MAX(span->low, copies[i].items[0].time_ns);
    }
    return QN_OK;
}

static int decode_ring(struct decoder *c, uint32_t ring, const struct records *records,
                       const struct span *span) {
    c->is_open = c->is_loader = false;
    c->next = (struct trace_iter){0};
    for (size_t i = 0; i < records->n; i++) {
        const struct rt_trace_record *r = &records->items[i];
        bool inside = r->time_ns >= span->low && r->time_ns <= span->high;
        c->t->n_records += inside;
        c->t->n_dropped += !inside;
        if (inside) TRY(on_record(c, ring, r));
    }
    return QN_OK;
}

static int decode_rings(struct decoder *c, struct rt_trace *rings) {
    struct span span;
    struct records *copies = calloc(rings->n_rings, sizeof *copies);
    if (!copies) return fail_nomem(c->d, rings->n_rings * sizeof *copies, "the trace");
    int rc = copy_rings(c, rings, copies, &span);
    for (uint32_t i = 0; i < rings->n_rings && rc == QN_OK; i++)
        rc = decode_ring(c, i, &copies[i], &span);
    for (uint32_t i = 0; i < rings->n_rings; i++) ARRAY_FINI(&copies[i]);
    free(copies);
    return rc;
}

/* ---- putting together --------------------------------------------------------------------- */

static int compare_u64(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static int iter_by_start(const void *a, const void *b) {
    return compare_u64(((const struct trace_iter *)a)->start,
                       ((const struct trace_iter *)b)->start);
}

static int done_by_time(const void *a, const void *b) {
    return compare_u64(((const struct done *)a)->time, ((const struct done *)b)->time);
}

static int pages_by_time(const void *a, const void *b) {
    return compare_u64(((const struct trace_pages *)a)->time,
                       ((const struct trace_pages *)b)->time);
}

static int run_by_iter(const void *a, const void *b) {
    const struct trace_run *x = a, *y = b;
    if (x->iter != y->iter) return x->iter < y->iter ? -1 : 1;
    if (x->begin != y->begin) return compare_u64(x->begin, y->begin);
    return (x->worker > y->worker) - (x->worker < y->worker);
}

/* Assigns runs to iterations: an iteration's tasks all lie between its start and the next one's. */
static void assign_runs(struct trace *t) {
    size_t kept = 0;
    for (size_t i = 0; i < t->runs.n; i++) {
        size_t low = 0, high = t->iters.n; /* iters before `low` start no later than the run */
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (t->iters.items[middle].start <= t->runs.items[i].ready)
                low = middle + 1;
            else
                high = middle;
        }
        if (low == 0) continue; /* its iteration's record was dropped */
        t->runs.items[i].iter = (uint32_t)(low - 1);
        const struct prog_variant *v = &PROG(t->program, VARIANT)[t->iters.items[low - 1].variant];
        if (t->runs.items[i].task - v->first_task >= v->n_tasks) continue;
        t->runs.items[kept++] = t->runs.items[i];
    }
    t->runs.n = kept;
    if (kept > 0) qsort(t->runs.items, kept, sizeof *t->runs.items, run_by_iter);
    for (size_t i = 0; i < kept; i++) {
        struct trace_iter *iter = &t->iters.items[t->runs.items[i].iter];
        if (iter->n_runs++ == 0) iter->first_run = i;
    }
}

static void end_iterations(struct decoder *c) {
    struct trace *t = c->t;
    size_t next = 0;
    if (c->dones.n > 0) qsort(c->dones.items, c->dones.n, sizeof *c->dones.items, done_by_time);
    for (size_t i = 0; i < t->iters.n; i++) {
        struct trace_iter *iter = &t->iters.items[i];
        while (next < c->dones.n && c->dones.items[next].time < iter->start) next++;
        const struct done *done = next < c->dones.n ? &c->dones.items[next] : NULL;
        bool ended = done && done->iteration == iter->number;
        /* An iteration that is cut off ends with its last seen task, or at its start. */
        iter->end = ended ? done->time : iter->start;
        for (size_t k = 0; !ended && k < iter->n_runs; k++)
            iter->end = MAX(iter->end, t->runs.items[iter->first_run + k].end);
        iter->complete = ended && iter->n_runs == PROG(t->program, VARIANT)[iter->variant].n_tasks;
    }
}

int trace_read(struct diag *d, struct rt_trace *rings, const struct prog_header *program,
               struct trace *out) {
    *out = (struct trace){.program = program, .n_workers = program->n_workers};
    struct decoder c = {.d = d, .t = out};
    int rc = decode_rings(&c, rings);
    if (rc == QN_OK && out->iters.n > 0) {
        qsort(out->iters.items, out->iters.n, sizeof *out->iters.items, iter_by_start);
    }
    if (rc == QN_OK && out->pages.n > 0)
        qsort(out->pages.items, out->pages.n, sizeof *out->pages.items, pages_by_time);
    if (rc == QN_OK) {
        assign_runs(out);
        end_iterations(&c);
    } else {
        trace_fini(out);
    }
    ARRAY_FINI(&c.dones);
    return rc;
}

void trace_fini(struct trace *t) {
    ARRAY_FINI(&t->iters);
    ARRAY_FINI(&t->runs);
    ARRAY_FINI(&t->stalls);
    ARRAY_FINI(&t->pages);
}

/* ---- page rings --------------------------------------------------------------------------- */

int trace_ring_new(struct diag *d, const struct trace *t, struct trace_ring *r) {
    *r = (struct trace_ring){.last = calloc(t->n_workers + 1u, sizeof *r->last)};
    return r->last ? QN_OK : fail_nomem(d, t->n_workers * sizeof *r->last, "the page rings");
}

bool trace_ring_step(const struct trace *t, size_t i, struct trace_ring *r) {
    const struct trace_pages *now = &t->pages.items[i];
    struct trace_pages *last = &r->last[now->worker];
    r->n_known += last->time == 0;
    r->flying_bytes = r->flying_bytes - last->flying_bytes + now->flying_bytes;
    r->n_free = r->n_free - last->n_free + now->n_free;
    *last = *now;
    return r->n_known == t->n_loaders;
}

void trace_ring_fini(struct trace_ring *r) {
    free(r->last);
    *r = (struct trace_ring){0};
}

/* ---- links -------------------------------------------------------------------------------- */

int trace_links_new(struct diag *d, const struct prog_header *program, struct trace_links *links) {
    uint32_t tasks = 1, events = 1;
    for (uint64_t i = 0; i < program->section[SECTION_VARIANT].count; i++) {
        tasks = MAX(tasks, PROG(program, VARIANT)[i].n_tasks);
        events = MAX(events, PROG(program, VARIANT)[i].n_events);
    }
    links->run = malloc(tasks * sizeof *links->run);
    links->activator = malloc(events * sizeof *links->activator);
    if (links->run && links->activator) return QN_OK;
    trace_links_fini(links);
    return fail_nomem(d, tasks * sizeof *links->run, "links between tasks");
}

void trace_links_fill(const struct trace *t, const struct trace_iter *iter,
                      struct trace_links *links) {
    const struct prog_variant *v = &PROG(t->program, VARIANT)[iter->variant];
    for (uint32_t i = 0; i < v->n_tasks; i++) links->run[i] = SIZE_MAX;
    for (uint32_t i = 0; i < v->n_events; i++) links->activator[i] = SIZE_MAX;
    for (size_t i = iter->first_run; i < iter->first_run + iter->n_runs; i++) {
        const struct trace_run *r = &t->runs.items[i];
        uint32_t trigger = PROG(t->program, TASK)[r->task].trigger;
        links->run[r->task - v->first_task] = i;
        if (trigger == PROG_NONE) continue;
        size_t *last = &links->activator[trigger - v->first_event];
        if (*last == SIZE_MAX || t->runs.items[*last].end < r->end) *last = i;
    }
}

void trace_links_fini(struct trace_links *links) {
    free(links->run);
    free(links->activator);
    *links = (struct trace_links){0};
}

/* ---- bytes -------------------------------------------------------------------------------- */

/* The variant of an operator. */
static const struct prog_variant *variant_of(const struct prog_header *p, uint32_t op) {
    const struct prog_variant *v = PROG(p, VARIANT);
    while (op - v->first_op >= v->n_ops) v++;
    return v;
}

/* The access map of an operator; false: it has none. */
static bool map_of(const struct prog_header *p, uint32_t op, struct op_map *map) {
    struct diag d = {0};
    return op != PROG_NONE && program_map(&d, p, variant_of(p, op), &PROG(p, OP)[op], map) == QN_OK;
}

/* Bytes of an element of an operator's first weight matrix. */
static uint64_t element_bytes(const struct prog_header *p, const struct prog_op *op) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (op->in[i] == PROG_NONE) continue;
        const struct prog_tensor *t = &PROG(p, TENSOR)[op->in[i]];
        if (t->role == PROG_WEIGHT && t->n_dims >= 2) return dtype_bytes(t->dtype);
    }
    return 0;
}

uint64_t trace_weight_bytes(const struct prog_header *p, uint32_t task) {
    const struct prog_task *t = &PROG(p, TASK)[task];
    const struct prog_tensor *tensors = PROG(p, TENSOR);
    struct op_map map;
    if (t->kind == OP_EMBED) { /* one row of the table per token */
        const struct prog_tensor *table = &tensors[PROG(p, OP)[t->op].in[EMBED_TABLE]];
        return table->bytes / MAX(table->shape[0], 1u) * (t->row1 - t->row0);
    }
    if (!map_of(p, t->op, &map)) return 0;
    const uint64_t bytes = element_bytes(p, &PROG(p, OP)[t->op]); /* vectors stay in the cache */
    if (op_split_of(t->kind) == SPLIT_SLICES)
        return op_map_weight_elements(&map, 0, map.units) * bytes / MAX(t->unit1, 1u);
    return op_map_weight_elements(&map, t->unit0, t->unit1) * bytes;
}

uint64_t trace_listed(const struct prog_header *p, const struct prog_variant *v, uint32_t kind) {
    struct op_map map;
    for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++) {
        if (PROG(p, OP)[o].kind != kind || !map_of(p, o, &map)) continue;
        for (int i = 0; i < OP_MAX_IN; i++)
            if (map.in[i].weight && map.in[i].dim[0].index == MAP_LISTED)
                return map.in[i].dim[0].hi;
        return 0;
    }
    return 0;
}

uint64_t trace_kv_bytes(const struct prog_header *p, uint32_t task, uint64_t context) {
    const struct prog_task *t = &PROG(p, TASK)[task];
    if (t->kind != OP_ATTENTION && t->kind != OP_ATTENTION_SPLIT && t->kind != OP_ATTENTION_STEP &&
        t->kind != OP_ATTENTION_WHOLE)
        return 0;
    const struct kv_row *row = program_kv_row(p, &PROG(p, OP)[t->op]);
    return context * kv_position_bytes(row) / MAX(t->unit1, 1u);
}
