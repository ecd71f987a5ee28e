/* task_graph.c - what all stages share: accesses of a task, and the three companions. */
#include "task/task_graph.h"
#include "base/checked.h"

#include <string.h>

const char *task_stage_name(enum task_stage stage) {
    static const char *const names[N_TASK_STAGES] = {"decompose",  "memory_plan", "depend",
                                                     "event_fuse", "normalize",   "linearize",
                                                     "place",      "carry"};
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

/* The access list of one task while task_access writes it. */
struct access_list {
    const struct kgraph *k;
    struct region *out;
    int n;
};

static struct region *add(struct access_list *l, int32_t tensor, bool write) {
    const struct tensor *t = &l->k->tensors.items[tensor];
    struct region *r = &l->out[l->n++];
    *r = (struct region){.tensor = tensor,
                         .row1 = (uint32_t)t->shape[0],
                         .col1 = t->n_dims > 1 ? (uint32_t)t->shape[1] : 1,
                         .write = write};
    return r;
}

static void add_rows(struct access_list *l, int32_t tensor, bool write, const struct task *t) {
    struct region *r = add(l, tensor, write);
    r->row0 = t->row0;
    r->row1 = t->row1;
}

static void add_tile(struct access_list *l, int32_t tensor, bool write, const struct task *t,
                     uint32_t col0, uint32_t col1) {
    if (col0 >= col1) return;
    struct region *r = add(l, tensor, write);
    r->row0 = t->row0;
    r->row1 = t->row1;
    r->col0 = col0;
    r->col1 = col1;
}

static void add_slice(struct access_list *l, int32_t tensor, const struct task *t) {
    struct region *r = add(l, tensor, true);
    r->slice = t->unit0;
    r->n_slices = t->unit1;
}

/* Head units [unit0, unit1) that are query heads become columns of q, the rest units of the cache.
 */
static void add_qkv_outputs(struct access_list *l, const struct kop *op, const struct task *t) {
    const uint32_t heads = l->k->spec.n_heads, D = l->k->spec.head_dim;
    add_tile(l, op->out[QKV_OUT_Q], true, t, MIN(t->unit0, heads) * D, MIN(t->unit1, heads) * D);
    add_tile(l, op->out[QKV_OUT_KV], true, t, MAX(t->unit0, heads) - heads,
             MAX(t->unit1, heads) - heads);
}

/* The residual stream's columns [unit0, unit1) in all its forms. */
static void add_stream(struct access_list *l, const struct kop *op, const struct task *t) {
    add_tile(l, op->out[STREAM_X], true, t, t->unit0, t->unit1);
    if (op->out[STREAM_NORMED] == NO_TENSOR) return;
    add_tile(l, op->out[STREAM_NORMED], true, t, t->unit0, t->unit1);
    add_tile(l, op->out[STREAM_SQUARES], true, t, t->unit0 / SQUARES_COLUMNS,
             CEIL_DIV(t->unit1, (uint32_t)SQUARES_COLUMNS));
}

/* The residual stream as an operator reads it before a matrix product. */
static void add_normed(struct access_list *l, int32_t x, int32_t squares, const struct task *t) {
    add_rows(l, x, false, t);
    if (squares != NO_TENSOR) add_rows(l, squares, false, t);
}

int task_access(const struct kgraph *k, const struct task *t, struct region *out) {
    struct access_list l = {k, out, 0};
    if (t->op < 0) return 0;
    const struct kop *op = &k->ops.items[t->op];
    switch (op->kind) {
    case OP_EMBED:
        for (int i = 0; i < OP_MAX_OUT; i++)
            if (op->out[i] != NO_TENSOR) add_rows(&l, op->out[i], true, t);
        break;
    case OP_QKV:
        add_rows(&l, op->in[QKV_X], false, t);
        add_qkv_outputs(&l, op, t);
        break;
    case OP_QKV_LINEAR:
        add_normed(&l, op->in[QKV_X], op->in[QKV_LINEAR_SQUARES], t);
        add_tile(&l, op->out[0], true, t, t->unit0, t->unit1);
        break;
    case OP_QKV_HEADS: {
        const uint32_t D = k->spec.head_dim;
        add_tile(&l, op->in[HEADS_QKV], false, t, t->unit0 * D, t->unit1 * D);
        add_qkv_outputs(&l, op, t);
        break;
    }
    case OP_ATTENTION:
    case OP_ATTENTION_SPLIT:
        add(&l, op->in[ATTENTION_Q], false);
        add(&l, op->in[ATTENTION_KV], false);
        add_slice(&l, op->out[0], t);
        break;
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_WHOLE:
        /* Of the cache it reads what no task of the iteration writes, but for what the slice
         * itself does. */
        add(&l, op->in[HEADS_QKV], false);
        add_slice(&l, op->out[0], t);
        add_slice(&l, op->out[1], t);
        break;
    case OP_ATTENTION_COMBINE:
        add_tile(&l, op->in[COMBINE_PART], false, t, t->unit0, t->unit1);
        add_tile(&l, op->out[0], true, t, t->unit0 * k->spec.head_dim, t->unit1 * k->spec.head_dim);
        break;
    case OP_LINEAR:
        add_rows(&l, op->in[LINEAR_A], false, t);
        if (op->in[LINEAR_RESIDUAL] != NO_TENSOR)
            add_tile(&l, op->in[LINEAR_RESIDUAL], false, t, t->unit0, t->unit1);
        add_stream(&l, op, t);
        break;
    case OP_LINEAR_PARTS:
        add_rows(&l, op->in[PARTS_A], false, t);
        add_tile(&l, op->out[0], true, t, t->unit0, t->unit1);
        break;
    case OP_LINEAR_SUM:
        add_rows(&l, op->in[SUM_PARTS], false, t);
        add_rows(&l, op->in[SUM_RESIDUAL], false, t);
        for (int i = STREAM_X; i <= STREAM_SQUARES; i++) add_rows(&l, op->out[i], true, t);
        break;
    case OP_GATED_MLP:
        add_normed(&l, op->in[MLP_X], op->in[MLP_SQUARES], t);
        add_tile(&l, op->out[0], true, t, t->unit0, t->unit1);
        break;
    case OP_PACK:
    case OP_PACK_LOGITS:
        if (op->kind == OP_PACK)
            add_rows(&l, op->in[PACK_X], false, t);
        else
            add(&l, op->in[PACK_X], false);
        add_tile(&l, op->out[0], true, t, t->unit0 * PACK_K, t->unit1 * PACK_K);
        break;
    case OP_LM_HEAD: {
        const uint32_t vocab = k->spec.vocab;
        add(&l, op->in[LM_X], false);
        if (op->in[LM_SQUARES] != NO_TENSOR) add(&l, op->in[LM_SQUARES], false);
        add_tile(&l, op->out[LM_OUT_LOGITS], true, t, MIN(t->unit0 * LM_BLOCK, vocab),
                 MIN(t->unit1 * LM_BLOCK, vocab));
        add_tile(&l, op->out[LM_OUT_PART], true, t, t->unit0, t->unit1);
        break;
    }
    case OP_SUM_SQUARES:
        add_rows(&l, op->in[0], false, t);
        add_rows(&l, op->out[0], true, t);
        break;
    case OP_CLEAR: {
        add(&l, op->in[CLEAR_AFTER], false);
        struct region *units = add(&l, op->out[0], true);
        units->row0 = t->unit0;
        units->row1 = t->unit1;
        break;
    }
    case OP_SAMPLE:
        add_rows(&l, op->in[SAMPLE_LOGITS], false, t);
        add_rows(&l, op->in[SAMPLE_PART], false, t);
        add_rows(&l, op->out[0], true, t);
        break;
    case OP_NONE:
    case N_OP_KINDS: break;
    }
    return l.n;
}

/* Bytes of weights read for each output unit of an operator. */
static uint64_t unit_weight_bytes(const struct kgraph *k, const struct kop *op) {
    const struct model_spec *s = &k->spec;
    const uint64_t element = dtype_bytes(s->weight_dtype);
    switch (op->kind) {
    case OP_QKV: return element * s->head_dim * s->hidden;
    case OP_QKV_LINEAR: return element * s->hidden;
    case OP_LINEAR: return element * k->tensors.items[op->in[LINEAR_W]].shape[1];
    case OP_LINEAR_PARTS: {
        const struct tensor *w = &k->tensors.items[op->in[PARTS_W]];
        return element * w->shape[0] * w->shape[1] / k->tensors.items[op->out[0]].shape[1];
    }
    case OP_GATED_MLP: return 2 * element * s->hidden;
    case OP_LM_HEAD: return element * LM_BLOCK * s->hidden;
    default: return 0;
    }
}

uint64_t task_weight_bytes(const struct kgraph *k, const struct task *t) {
    if (t->op < 0) return 0;
    const struct kop *op = &k->ops.items[t->op];
    if (op_split_of(op->kind) != SPLIT_TILES) return 0;
    return unit_weight_bytes(k, op) * (t->unit1 - t->unit0);
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

/* After normalization: counts match, and following the events from the start reaches every task. */
static int verify_normal_form(struct diag *d, const struct tgraph *g) {
    uint32_t *triggers, *seen;
    struct arena scratch = {0};
    int rc = ARENA_NEW(d, &scratch, &triggers, g->events.n);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &seen, g->events.n);
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
