/* task_graph.c - what all stages share: accesses of a task, and the three companions. */
#include "task/task_graph.h"
#include "base/checked.h"

#include <string.h>

const char *task_stage_name(enum task_stage stage) {
    static const char *const names[N_TASK_STAGES] = {"decompose",  "memory_plan", "depend",
                                                     "event_fuse", "normalize",   "linearize",
                                                     "place",      "transport"};
    return stage < N_TASK_STAGES ? names[stage] : "?";
}

void tgraph_init(struct tgraph *g, struct arena *arena, const struct kgraph *kernel,
                 const struct task_options *options) {
    *g = (struct tgraph){.arena = arena,
                         .kernel = kernel,
                         .options = *options,
                         .start_event = NO_EVENT,
                         .end_event = NO_EVENT};
}

void tgraph_fini(struct tgraph *g) {
    ARRAY_FINI(&g->tasks);
    ARRAY_FINI(&g->events);
}

bool region_overlap(const struct region *a, const struct region *b) {
    if (a->tensor != b->tensor) return false;
    if (a->n_slices > 0 && a->n_slices == b->n_slices) return a->slice == b->slice;
    return a->row0 < b->row1 && b->row0 < a->row1 && a->col0 < b->col1 && b->col0 < a->col1;
}

uint64_t region_elements(const struct kgraph *k, const struct region *r) {
    const struct tensor *t = &k->tensors.items[r->tensor];
    uint64_t n = (uint64_t)(r->row1 - r->row0) * (r->col1 - r->col0);
    for (int i = 2; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

/* The region of an operand that a task touches, by its access map. */
static struct region region_of(const struct kop *op, const struct map_operand *m,
                               const struct task *t, int32_t tensor, bool write) {
    struct region r = {.tensor = tensor, .write = write, .row1 = 1, .col1 = 1};
    struct map_range range[2] = {{0, 1}, {0, 1}};
    for (uint32_t i = 0; i < m->n_dims && i < 2; i++)
        range[i] = op_map_range(&m->dim[i], t->row0, t->row1, t->unit0, t->unit1);
    r.row0 = (uint32_t)range[0].first;
    r.row1 = (uint32_t)range[0].last;
    r.col0 = (uint32_t)range[1].first;
    r.col1 = (uint32_t)range[1].last;
    if (write && op_split_of(op->kind) == SPLIT_SLICES) {
        r.slice = t->unit0;
        r.n_slices = t->unit1;
    }
    return r;
}

static int add_regions(const struct kop *op, const struct task *t, const int32_t *tensors,
                       const struct map_operand *maps, int n, bool write, struct region *out) {
    int n_out = 0;
    for (int i = 0; i < n; i++) {
        if (tensors[i] == NO_TENSOR || maps[i].weight) continue;
        const struct region r = region_of(op, &maps[i], t, tensors[i], write);
        if (r.row0 < r.row1 && r.col0 < r.col1) out[n_out++] = r;
    }
    return n_out;
}

int task_access(const struct kgraph *k, const struct task *t, struct region *out) {
    if (t->op < 0) return 0;
    const struct kop *op = &k->ops.items[t->op];
    const int n = add_regions(op, t, op->in, op->map->in, OP_MAX_IN, false, out);
    return n + add_regions(op, t, op->out, op->map->out, OP_MAX_OUT, true, out + n);
}

/* The format of an operator's weight matrices. */
static enum dtype weight_dtype(const struct kgraph *k, const struct kop *op) {
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] != NO_TENSOR && op->map->in[i].weight && op->map->in[i].n_dims >= 2)
            return k->tensors.items[op->in[i]].dtype;
    return DTYPE_F32;
}

uint64_t task_weight_bytes(const struct kgraph *k, const struct task *t) {
    if (t->op < 0) return 0;
    const struct kop *op = &k->ops.items[t->op];
    const uint64_t bytes = dtype_bytes(weight_dtype(k, op));
    if (op_split_of(op->kind) == SPLIT_SLICES)
        return op_map_weight_elements(op->map, 0, 1) * bytes / t->unit1;
    return op_map_weight_elements(op->map, t->unit0, t->unit1) * bytes;
}

/* ---- verify ------------------------------------------------------------------------------- */

static int verify_tasks(struct diag *d, const struct tgraph *g, bool normal) {
    const int32_t n_events = (int32_t)g->events.n;
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        if (t->op >= (int32_t)g->kernel->ops.n || (t->op < 0) != (t->kind == OP_NONE))
            return fail(d, QN_EVERIFY, "task %zu: operator %d does not exist", i, t->op);
        if (t->op >= 0 && t->row0 >= t->row1)
            return fail(d, QN_EVERIFY, "task %zu (%s): no rows", i, op_name(t->kind));
        if (normal &&
            (t->wait < 0 || t->wait >= n_events || t->trigger < 0 || t->trigger >= n_events))
            return fail(d, QN_EVERIFY, "task %zu (%s): not in normal form", i, op_name(t->kind));
    }
    return QN_OK;
}

/* After normalization: an event counts a trigger for each task that triggers it, the start event
 * one. */
static int verify_normal_form(struct diag *d, const struct tgraph *g) {
    uint32_t *triggers;
    struct arena scratch = {0};
    int rc = ARENA_NEW(d, &scratch, &triggers, g->events.n);
    if (rc == QN_OK) {
        for (size_t i = 0; i < g->tasks.n; i++) triggers[g->tasks.items[i].trigger]++;
        for (size_t i = 0; i < g->events.n && rc == QN_OK; i++) {
            uint32_t want = (int32_t)i == g->start_event ? 1 : triggers[i];
            if (g->events.items[i].n_triggers != want || want == 0)
                rc = fail(d, QN_EVERIFY, "event %zu: %u triggers noted, %u tasks trigger it", i,
                          g->events.items[i].n_triggers, want);
        }
    }
    arena_fini(&scratch);
    return rc;
}

/* After linearization: an event's dependents are contiguous and every task comes after the tasks
 * that trigger its event. */
static int verify_linear(struct diag *d, const struct tgraph *g) {
    for (size_t i = 1; i < g->tasks.n; i++)
        if (g->tasks.items[i].wait < g->tasks.items[i - 1].wait)
            return fail(d, QN_EVERIFY, "task %zu: dependents of event %d are not contiguous", i,
                        g->tasks.items[i].wait);
    for (size_t i = 0; i < g->tasks.n; i++)
        if (g->tasks.items[i].trigger <= g->tasks.items[i].wait)
            return fail(d, QN_EVERIFY, "task %zu: triggers event %d, before its own event %d", i,
                        g->tasks.items[i].trigger, g->tasks.items[i].wait);
    return QN_OK;
}

int tgraph_verify(struct diag *d, const struct tgraph *g, enum task_stage stage) {
    TRY(verify_tasks(d, g, stage >= STAGE_NORMALIZE));
    if (stage >= STAGE_NORMALIZE) TRY(verify_normal_form(d, g));
    if (stage >= STAGE_LINEARIZE) TRY(verify_linear(d, g));
    if (stage >= STAGE_LINEARIZE) TRY(gang_verify(d, g, stage >= STAGE_PLACE));
    return QN_OK;
}

/* ---- dump --------------------------------------------------------------------------------- */

static void dump_ranges(const struct task_range *r, uint32_t n, struct strbuf *out) {
    for (uint32_t i = 0; i < n; i++) {
        strbuf_printf(out, "%s%d", i > 0 ? "," : "", r[i].first);
        if (r[i].last > r[i].first + 1) strbuf_printf(out, "-%d", r[i].last - 1);
    }
}

void tgraph_dump(const struct tgraph *g, enum task_stage stage, struct strbuf *out) {
    strbuf_printf(out, "task graph after %s: %u rows, %zu tasks, %zu events\n",
                  task_stage_name(stage), g->kernel->n_rows, g->tasks.n, g->events.n);
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        int layer = t->op >= 0 ? g->kernel->ops.items[t->op].layer : -1;
        strbuf_printf(out, "task %zu L%d %s rows %u-%u units %u-%u", i, layer, op_name(t->kind),
                      t->row0, t->row1, t->unit0, t->unit1);
        if (gang_size(g, t) > 1) strbuf_printf(out, " gang of %u", gang_size(g, t));
        if (g->deps != NULL && stage >= STAGE_DEPEND && stage < STAGE_NORMALIZE) {
            strbuf_str(out, " after ");
            dump_ranges(g->deps[i].ranges, g->deps[i].n, out);
        }
        if (stage >= STAGE_NORMALIZE)
            strbuf_printf(out, " wait %d trigger %d", t->wait, t->trigger);
        if (stage >= STAGE_PLACE) {
            if (t->worker == NO_WORKER)
                strbuf_str(out, " jit");
            else
                strbuf_printf(out, " worker %d", t->worker);
        }
        strbuf_char(out, '\n');
    }
    for (size_t i = 0; i < g->events.n; i++) {
        const struct event *e = &g->events.items[i];
        strbuf_printf(out, "event %zu triggers %u dependents %u%s", i, e->n_triggers,
                      e->n_dependents, e->data ? " on data" : "");
        if (stage == STAGE_EVENT_FUSE) {
            strbuf_str(out, " in ");
            dump_ranges(e->in, e->n_in, out);
            strbuf_str(out, " out ");
            dump_ranges(e->out, e->n_out, out);
        }
        strbuf_char(out, '\n');
    }
}

/* ---- stats -------------------------------------------------------------------------------- */

static void weight_balance(const struct tgraph *g, struct task_stats *s) {
    uint64_t bytes[1024] = {0};
    const uint32_t n = MIN(g->options.device.n_workers, (uint32_t)COUNT_OF(bytes));
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        if (t->worker != NO_WORKER) bytes[t->worker] += task_weight_bytes(g->kernel, t);
    }
    s->weight_bytes_min_worker = s->weight_bytes_max_worker = bytes[0];
    for (uint32_t w = 1; w < n; w++) {
        s->weight_bytes_min_worker = MIN(s->weight_bytes_min_worker, bytes[w]);
        s->weight_bytes_max_worker = MAX(s->weight_bytes_max_worker, bytes[w]);
    }
}

void tgraph_stats(const struct tgraph *g, enum task_stage stage, struct task_stats *stats) {
    *stats = (struct task_stats){.n_tasks = g->tasks.n,
                                 .n_events = g->events.n,
                                 .n_pairs = g->n_pairs,
                                 .workspace_bytes = g->workspace_bytes,
                                 .flagged_bytes = g->flagged_bytes};
    if (stage == STAGE_DEPEND) stats->n_events = g->n_pairs;
    for (size_t i = 0; i < g->tasks.n; i++) {
        stats->n_dummies += g->tasks.items[i].kind == OP_NONE;
        stats->n_jit_tasks += g->tasks.items[i].worker == NO_WORKER;
    }
    for (size_t i = 0; i < g->events.n; i++) stats->n_data_events += g->events.items[i].data;
    stats->n_aot_tasks = stats->n_tasks - stats->n_jit_tasks;
    if (stage < STAGE_PLACE)
        stats->n_jit_tasks = stats->n_aot_tasks = 0;
    else
        weight_balance(g, stats);
}
