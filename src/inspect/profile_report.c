/* profile_report.c - an account as JSON: per operator, waits, critical path, the largest losses
 * with a sentence each; and for the page also a timeline and the memory map.
 */
#include "inspect/profile.h"

#include "base/checked.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { N_LOSSES = 5, PAGE_TASKS = 20000 };

struct loss {
    double us;
    char text[360];
};

struct report {
    const struct profile *p;
    const struct profile_setting *s;
    const struct trace *t;
    double iters, workers;
    struct loss losses[3 * N_OP_KINDS];
    size_t n_losses;
};

static const char *kind_name(uint32_t kind) {
    return kind == OP_NONE      ? "empty tasks"
           : kind == N_OP_KINDS ? "end of iteration"
                                : op_name(kind);
}

/* Worker time of all iterations as microseconds of one iteration. */
static double wall_us(const struct report *r, uint64_t ns) {
    return (double)ns * 1e-3 / r->iters / r->workers;
}

static double per_iter(const struct report *r, uint64_t n) {
    return (double)n / r->iters;
}

static double floor_us(const struct report *r, double bytes) {
    return r->s->read_rate > 0 ? bytes / r->s->read_rate * 1e6 : 0;
}

/* The trace counts as many experts as could be read; on average experts_read were read. */
static double op_bytes(const struct report *r, const struct profile_op *op) {
    const struct prog_variant *v = &PROG(r->t->program, VARIANT)[r->p->variant];
    const uint64_t listed = trace_listed(r->t->program, v, (uint32_t)(op - r->p->ops));
    const double bytes = per_iter(r, op->weight_bytes + op->kv_bytes);
    return listed > 0 && r->s->experts_read > 0 ? bytes * r->s->experts_read / (double)listed
                                                : bytes;
}

/* The busiest worker's time over the mean; 0: there is no time. */
static double busiest(const struct report *r, const uint64_t *ns) {
    uint64_t most = 0, sum = 0;
    for (uint32_t w = 0; w < r->t->n_workers; w++) {
        most = MAX(most, ns[w]);
        sum += ns[w];
    }
    return sum > 0 ? (double)most * r->t->n_workers / (double)sum : 0;
}

/* The same for all tasks together. */
static double busiest_of_all(const struct report *r) {
    uint64_t most = 0, sum = 0;
    for (uint32_t w = 0; w < r->t->n_workers; w++) {
        uint64_t ns = 0;
        for (uint32_t k = 0; k < N_OP_KINDS; k++) ns += r->p->ops[k].worker_ns[w];
        most = MAX(most, ns);
        sum += ns;
    }
    return sum > 0 ? (double)most * r->t->n_workers / (double)sum : 0;
}

/* ---- losses ------------------------------------------------------------------------------- */

static struct loss *new_loss(struct report *r, double us) {
    if (us <= 0 || r->n_losses == COUNT_OF(r->losses)) return NULL;
    struct loss *l = &r->losses[r->n_losses++];
    l->us = us;
    return l;
}

static void op_loss(struct report *r, uint32_t kind) {
    const struct profile_op *op = &r->p->ops[kind];
    double us = wall_us(r, op->ns), bytes = op_bytes(r, op), floor = floor_us(r, bytes);
    double n = per_iter(r, op->n_tasks);
    struct loss *l = new_loss(r, us - floor);
    if (!l) return;
    if (kind == OP_NONE)
        snprintf(l->text, sizeof l->text,
                 "%.0f empty tasks of normalization take %.2f us each and compute nothing.", n,
                 us * r->workers / MAX(n, 1));
    else if (floor < us / 50)
        snprintf(l->text, sizeof l->text,
                 "%s reads next to nothing from memory, yet its %.0f tasks take %.1f us of every "
                 "worker: this is computing, and caches, not bandwidth.",
                 kind_name(kind), n, us);
    else
        snprintf(l->text, sizeof l->text,
                 "%s reads %.2f MB at %.2f GB/s, %.0f %% of what this machine reads: %.1f us more "
                 "than reading alone would take.",
                 kind_name(kind), bytes * 1e-6, bytes / us * 1e-3, 100 * floor / us, us - floor);
}

static uint32_t most_waiting(const struct profile_op *op) {
    uint32_t best = 0;
    for (uint32_t k = 0; k <= N_OP_KINDS; k++)
        if (op->waited_by[k] > op->waited_by[best]) best = k;
    return best;
}

static void wait_loss(struct report *r, uint32_t kind) {
    const struct profile_op *op = &r->p->ops[kind];
    struct loss *l = new_loss(r, wall_us(r, op->waited_ns));
    if (!l) return;
    double n = per_iter(r, op->n_tasks), mean = (double)op->ns * 1e-3 / MAX((double)op->n_tasks, 1);
    if (n < r->workers)
        snprintf(
            l->text, sizeof l->text,
            "Workers stand still for %s, mostly before %s: it is %.0f task%s for %.0f workers, "
            "so the others have nothing to do meanwhile.",
            kind_name(kind), kind_name(most_waiting(op)), n, n < 1.5 ? "" : "s", r->workers);
    else
        snprintf(l->text, sizeof l->text,
                 "Workers stand still for %s, mostly before %s: its tasks end at different times "
                 "(%.1f us on average, up to %.1f us).",
                 kind_name(kind), kind_name(most_waiting(op)), mean, (double)op->longest_ns * 1e-3);
}

static void other_losses(struct report *r) {
    double us = wall_us(r, r->p->hand_over_ns);
    struct loss *l = new_loss(r, us);
    if (l)
        snprintf(l->text, sizeof l->text,
                 "%.0f hand-overs from an activated event to the task behind it, %.2f us each: "
                 "triggers, polling, descriptors.",
                 per_iter(r, r->p->n_hand_overs),
                 (double)r->p->hand_over_ns * 1e-3 / MAX((double)r->p->n_hand_overs, 1));
    l = new_loss(r, wall_us(r, r->p->wake_ns));
    if (l)
        snprintf(
            l->text, sizeof l->text,
            "The worker that ran the boundary begins its first task %.1f us after the iteration "
            "has started, because it wakes the host first; the others wait for its part.",
            per_iter(r, r->p->wake_ns) * 1e-3);
    us = per_iter(r, r->p->boundary_ns) * 1e-3;
    l = new_loss(r, us);
    if (l)
        snprintf(l->text, sizeof l->text,
                 "Between two iterations one worker collects tokens and makes the next batch; the "
                 "others wait.");
}

static int larger_loss(const void *a, const void *b) {
    double x = ((const struct loss *)a)->us, y = ((const struct loss *)b)->us;
    return (x < y) - (x > y);
}

static json_t *losses_json(struct report *r) {
    json_t *list = json_array();
    for (uint32_t k = 0; k < N_OP_KINDS; k++) {
        op_loss(r, k);
        wait_loss(r, k);
    }
    other_losses(r);
    qsort(r->losses, r->n_losses, sizeof r->losses[0], larger_loss);
    for (size_t i = 0; i < MIN(r->n_losses, (size_t)N_LOSSES); i++)
        json_array_append_new(
            list, json_pack("{s:f, s:s}", "us", r->losses[i].us, "why", r->losses[i].text));
    return list;
}

/* ---- the account -------------------------------------------------------------------------- */

static json_t *op_json(const struct report *r, uint32_t kind) {
    const struct profile_op *op = &r->p->ops[kind];
    double us = wall_us(r, op->ns), bytes = op_bytes(r, op);
    json_t *o = json_pack("{s:s, s:f, s:f, s:f}", "op", kind_name(kind), "tasks",
                          per_iter(r, op->n_tasks), "us", us, "bytes", bytes);
    json_object_set_new(o, "gb_s",
                        us > 0 && bytes > 0 ? json_real(bytes / us * 1e-3) : json_null());
    json_object_set_new(o, "percent_of_floor",
                        us > 0 && bytes > 0 ? json_real(100 * floor_us(r, bytes) / us)
                                            : json_null());
    json_object_set_new(o, "floor_us", json_real(floor_us(r, bytes)));
    json_object_set_new(o, "longest_task_us", json_real((double)op->longest_ns * 1e-3));
    json_object_set_new(o, "busiest_over_mean", json_real(busiest(r, op->worker_ns)));
    return o;
}

static json_t *waits_json(const struct report *r) {
    json_t *list = json_array();
    for (uint32_t k = 0; k < N_OP_KINDS; k++) {
        const struct profile_op *op = &r->p->ops[k];
        if (op->waited_ns == 0) continue;
        json_t *by = json_object();
        for (uint32_t w = 0; w <= N_OP_KINDS; w++)
            if (op->waited_by[w])
                json_object_set_new(by, kind_name(w), json_real(wall_us(r, op->waited_by[w])));
        json_array_append_new(list, json_pack("{s:s, s:f, s:o}", "for", kind_name(k), "us",
                                              wall_us(r, op->waited_ns), "by", by));
    }
    return list;
}

static json_t *workers_json(const struct report *r) {
    json_t *list = json_array();
    for (uint32_t w = 0; w < r->t->n_workers; w++)
        json_array_append_new(list, json_pack("{s:i, s:f}", "worker", (int)w, "waited_for_us",
                                              (double)r->p->waited_for[w] * 1e-3 / r->iters));
    return list;
}

static json_t *path_json(const struct report *r) {
    const struct profile *p = r->p;
    json_t *steps = json_array(), *kinds = json_object();
    struct strbuf name = {0};
    uint64_t total = p->path_gap_ns;
    for (uint32_t k = 0; k < N_OP_KINDS; k++) {
        if (!p->path_task_ns[k]) continue;
        total += p->path_task_ns[k];
        json_object_set_new(kinds, kind_name(k), json_real((double)p->path_task_ns[k] * 1e-3));
    }
    for (size_t i = 0; i < p->path.n; i++) {
        const struct profile_step *s = &p->path.items[i];
        const struct trace_run *run = &r->t->runs.items[s->run];
        strbuf_clear(&name);
        program_task_name(r->t->program, run->task, &name);
        json_array_append_new(
            steps, json_pack("{s:i, s:s, s:i, s:f, s:f, s:s}", "task", (int)run->task, "name",
                             strbuf_text(&name), "worker", (int)run->worker, "us",
                             (double)s->task_ns * 1e-3, "gap_us", (double)s->gap_ns * 1e-3, "after",
                             s->same_worker ? "the worker's own task" : "its event"));
    }
    strbuf_fini(&name);
    return json_pack("{s:f, s:f, s:i, s:o, s:o}", "us", (double)total * 1e-3, "hand_over_us",
                     (double)p->path_gap_ns * 1e-3, "n_tasks", (int)p->path.n, "by_operator", kinds,
                     "tasks", steps);
}

/* Records of an iteration: two per task, one per event, and on a GPU one more per task with
 * weights. */
static json_t *trace_json(const struct report *r) {
    const struct profile_setting *s = r->s;
    const struct prog_variant *v = &PROG(r->t->program, VARIANT)[r->p->variant];
    double records = 2.0 * v->n_tasks + v->n_events + v->n_jit_tasks;
    for (uint32_t i = v->first_task; r->t->n_loaders > 0 && i < v->first_task + v->n_tasks; i++)
        records += PROG(r->t->program, TASK)[i].kind != OP_EMBED &&
                   trace_weight_bytes(r->t->program, i) > 0;
    double cost = s->ms_plain > 0 ? 100 * (s->ms_traced - s->ms_plain) / s->ms_plain : 0;
    double clocks = 2.0 * v->n_tasks + v->n_jit_tasks; /* an event's record reads none on a CPU */
    double us = clocks * s->record_ns * 1e-3 / r->workers;
    double least = s->ms_plain > 0 ? us / (s->ms_plain * 1e3) * 100 : 0;
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "records",
                     (json_int_t)r->t->n_records, "dropped", (json_int_t)r->t->n_dropped,
                     "records_per_iteration", records, "ns_per_record", s->record_ns,
                     "overhead_percent", least, "ms_per_token_without", s->ms_plain,
                     "ms_per_token_with", s->ms_traced, "measured_percent", cost);
}

static json_t *account_json(struct report *r) {
    const struct profile *p = r->p;
    const struct profile_setting *s = r->s;
    json_t *ops = json_array();
    double bytes = 0, waits = 0;
    for (uint32_t k = 0; k < N_OP_KINDS; k++) {
        bytes += op_bytes(r, &p->ops[k]);
        waits += wall_us(r, p->ops[k].waited_ns);
        if (p->ops[k].n_tasks) json_array_append_new(ops, op_json(r, k));
    }
    double us = per_iter(r, p->ns) * 1e-3;
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "model", s->model, "backend", s->backend,
                  "device", s->device, "n_workers", (int)r->t->n_workers, "batch_size",
                  (int)s->batch, "input_len", (int)s->input_len, "output_len", (int)s->output_len);
    json_object_set_new(o, "iterations", json_integer((json_int_t)p->n_iters));
    json_object_set_new(o, "iteration_us", json_real(us));
    json_object_set_new(o, "bytes", json_real(bytes));
    json_object_set_new(o, "read_floor_gb_s", json_real(s->read_rate * 1e-9));
    json_object_set_new(o, "floor_us", json_real(floor_us(r, bytes)));
    json_object_set_new(o, "percent_of_floor",
                        json_real(us > 0 ? 100 * floor_us(r, bytes) / us : 0));
    json_object_set_new(o, "operators", ops);
    json_object_set_new(o, "wait_us", json_real(waits));
    json_object_set_new(o, "waits", waits_json(r));
    json_object_set_new(o, "busiest_over_mean", json_real(busiest_of_all(r)));
    if (s->experts_read > 0)
        json_object_set_new(o, "experts_read_per_layer", json_real(s->experts_read));
    json_object_set_new(o, "waited_for_workers", workers_json(r));
    json_object_set_new(o, "hand_over_us", json_real(wall_us(r, p->hand_over_ns)));
    json_object_set_new(o, "wake_us", json_real(wall_us(r, p->wake_ns)));
    json_object_set_new(o, "boundary_us", json_real(per_iter(r, p->boundary_ns) * 1e-3));
    json_object_set_new(o, "critical_path", path_json(r));
    json_object_set_new(o, "losses", losses_json(r));
    if (r->t->pages.n > 0)
        json_object_set_new(o, "ring",
                            json_pack("{s:f, s:f, s:i}", "bytes_in_flight", p->flying_bytes,
                                      "pages_free", p->pages_free, "n_loaders",
                                      (int)r->t->n_loaders));
    json_object_set_new(o, "trace", trace_json(r));
    return o;
}

/* ---- the page ----------------------------------------------------------------------------- */

/* Iterations around the typical one, as many as PAGE_TASKS allow. */
static void choose_window(const struct report *r, size_t *first, size_t *last) {
    size_t n = r->t->iters.items[r->p->typical].n_runs;
    *first = r->p->typical;
    *last = *first + 1;
    for (bool moved = true; moved;) {
        moved = false;
        if (*last < r->t->iters.n && n + r->t->iters.items[*last].n_runs <= PAGE_TASKS) {
            n += r->t->iters.items[(*last)++].n_runs;
            moved = true;
        }
        if (*first > r->p->first && n + r->t->iters.items[*first - 1].n_runs <= PAGE_TASKS) {
            n += r->t->iters.items[--*first].n_runs;
            moved = true;
        }
    }
}

static void put_us(struct strbuf *out, uint64_t ns, uint64_t zero) {
    strbuf_printf(out, "%.3f", ns > zero ? (double)(ns - zero) * 1e-3 : 0.0);
}

/* Static facts of the tasks that appear: {"17": [kind, layer, wait, trigger, bytes, name]}. */
static void put_tasks(const struct report *r, size_t first, size_t last, struct strbuf *out) {
    const struct prog_header *p = r->t->program;
    struct strbuf name = {0};
    bool *seen = calloc(p->section[SECTION_TASK].count + 1, sizeof *seen), any = false;
    if (!seen) {
        out->failed = true;
        return;
    }
    strbuf_str(out, "{");
    for (size_t i = first; i < last; i++) {
        const struct trace_iter *iter = &r->t->iters.items[i];
        for (size_t k = iter->first_run; k < iter->first_run + iter->n_runs; k++) {
            uint32_t task = r->t->runs.items[k].task;
            const struct prog_task *t = &PROG(p, TASK)[task];
            if (seen[task]) continue;
            seen[task] = true;
            strbuf_clear(&name);
            program_task_name(p, task, &name);
            strbuf_printf(out, "%s\"%u\":[%u,%d,%d,%d,%llu,\"%s\"]", any ? ",\n" : "", task,
                          t->kind, t->op == PROG_NONE ? -1 : PROG(p, OP)[t->op].layer,
                          t->wait == PROG_NONE ? -1 : (int)t->wait,
                          t->trigger == PROG_NONE ? -1 : (int)t->trigger,
                          (unsigned long long)trace_weight_bytes(p, task), strbuf_text(&name));
            any = true;
        }
    }
    strbuf_str(out, "}");
    strbuf_fini(&name);
    free(seen);
}

/* The page rings of all workers together as [time, bytes in flight, pages free], flat; empty on a
 * CPU. */
static void put_ring(const struct report *r, size_t first, size_t last, struct strbuf *out) {
    const struct trace *t = r->t;
    const uint64_t start = t->iters.items[first].start, end = t->iters.items[last - 1].end;
    struct trace_ring ring;
    bool any = false;
    if (trace_ring_new(NULL, t, &ring) != QN_OK) {
        out->failed = true;
        return;
    }
    strbuf_str(out, ",\"ring\":[");
    for (size_t i = 0; i < t->pages.n && t->pages.items[i].time < end; i++) {
        bool known = trace_ring_step(t, i, &ring);
        uint64_t next = i + 1 < t->pages.n ? t->pages.items[i + 1].time : end;
        if (!known || next <= start) continue;
        strbuf_str(out, any ? ",\n" : "");
        put_us(out, t->pages.items[i].time, start);
        strbuf_printf(out, ",%llu,%llu", (unsigned long long)ring.flying_bytes,
                      (unsigned long long)ring.n_free);
        any = true;
    }
    strbuf_str(out, "]");
    trace_ring_fini(&ring);
}

/* Runs as [task, worker, iteration, ready, end] in microseconds, flat. */
static void put_timeline(const struct report *r, struct strbuf *out) {
    const struct trace *t = r->t;
    size_t first, last;
    choose_window(r, &first, &last);
    uint64_t zero = t->iters.items[first].start;
    strbuf_str(out, ",\"kinds\":[");
    for (uint32_t k = 0; k < N_OP_KINDS; k++)
        strbuf_printf(out, "%s\"%s\"", k ? "," : "", k ? kind_name(k) : "empty");
    strbuf_str(out, "],\"tasks\":");
    put_tasks(r, first, last, out);
    strbuf_str(out, ",\"iters\":[");
    for (size_t i = first; i < last; i++) {
        strbuf_printf(out, "%s[%u,%u,", i > first ? "," : "", t->iters.items[i].number,
                      t->iters.items[i].n_rows);
        put_us(out, t->iters.items[i].start, zero);
        strbuf_char(out, ',');
        put_us(out, t->iters.items[i].end, zero);
        strbuf_char(out, ']');
    }
    strbuf_printf(out, "],\"typical\":%zu,\"runs\":[", r->p->typical - first);
    for (size_t i = first; i < last; i++) {
        const struct trace_iter *iter = &t->iters.items[i];
        for (size_t k = iter->first_run; k < iter->first_run + iter->n_runs; k++) {
            const struct trace_run *run = &t->runs.items[k];
            strbuf_printf(out, "%s%u,%u,%zu,", i > first || k > iter->first_run ? "," : "",
                          run->task, run->worker, i - first);
            put_us(out, run->ready, zero);
            strbuf_char(out, ',');
            put_us(out, run->end, zero);
        }
        strbuf_char(out, '\n');
    }
    strbuf_str(out, "]");
    put_ring(r, first, last, out);
}

/* Activations as [name, offset, bytes, first operator, last operator]. */
static void put_memory(const struct report *r, struct strbuf *out) {
    const struct prog_header *p = r->t->program;
    const struct prog_variant *v = &PROG(p, VARIANT)[r->p->variant];
    const struct profile_setting *s = r->s;
    bool any = false;
    strbuf_printf(out,
                  ",\"memory\":{\"weights\":%llu,\"kv_cache\":%llu,\"workspace\":%llu,"
                  "\"other\":%llu,\"ops\":[",
                  (unsigned long long)s->weight_bytes, (unsigned long long)s->kv_cache_bytes,
                  (unsigned long long)s->workspace_bytes, (unsigned long long)s->other_bytes);
    for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++)
        strbuf_printf(out, "%s[%u,%d]", o > v->first_op ? "," : "", PROG(p, OP)[o].kind,
                      PROG(p, OP)[o].layer);
    strbuf_str(out, "],\"tensors\":[");
    for (uint32_t i = v->first_tensor; i < v->first_tensor + v->n_tensors; i++) {
        const struct prog_tensor *t = &PROG(p, TENSOR)[i];
        uint32_t first = PROG_NONE, last = 0;
        if (t->role != PROG_ACTIVATION) continue;
        for (uint32_t o = 0; o < v->n_ops; o++) {
            const struct prog_op *op = &PROG(p, OP)[v->first_op + o];
            bool uses = false;
            for (int k = 0; k < OP_MAX_OUT; k++) uses |= op->out[k] == i;
            for (int k = 0; k < OP_MAX_IN; k++) uses |= op->in[k] == i;
            if (!uses) continue;
            first = MIN(first, o);
            last = o;
        }
        strbuf_printf(out, "%s[\"%s\",%llu,%llu,%u,%u]", any ? "," : "", program_string(p, t->name),
                      (unsigned long long)t->where, (unsigned long long)t->bytes,
                      first == PROG_NONE ? 0 : first, last);
        any = true;
    }
    strbuf_str(out, "]}");
}

int profile_json(struct diag *d, const struct profile *p, const struct profile_setting *s,
                 bool page, struct strbuf *out) {
    struct report *r = calloc(1, sizeof *r);
    if (!r) return fail_nomem(d, sizeof *r, "the account");
    *r = (struct report){
        .p = p, .s = s, .t = p->trace, .iters = (double)p->n_iters, .workers = p->trace->n_workers};
    json_t *account = account_json(r);
    char *text = json_dumps(account, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(account);
    if (text) {
        if (page) strbuf_str(out, "{\"account\":");
        strbuf_str(out, text);
        if (page) put_timeline(r, out);
        if (page) put_memory(r, out);
        if (page) strbuf_str(out, "}");
    }
    free(text);
    free(r);
    return text ? strbuf_status(d, out) : fail_nomem(d, 0, "the account");
}
