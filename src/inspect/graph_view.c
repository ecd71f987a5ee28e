/* graph_view.c - the builders; graph_view_write.c has the writers. */
#include "inspect/graph_view.h"

#include "base/checked.h"

#include <string.h>

/* ---- words -------------------------------------------------------------------------------- */

void view_tensor_name(const struct kgraph *k, int32_t tensor, struct strbuf *out) {
    const char *name = k->tensors.items[tensor].name;
    uint32_t nth = 1;
    for (int32_t i = 0; i < tensor; i++) nth += strcmp(k->tensors.items[i].name, name) == 0;
    strbuf_str(out, name);
    if (nth > 1) strbuf_printf(out, "#%u", nth);
}

void view_region(const struct kgraph *k, const struct region *r, struct strbuf *out) {
    const struct tensor *t = &k->tensors.items[r->tensor];
    view_tensor_name(k, r->tensor, out);
    if (r->n_slices > 0)
        strbuf_printf(out, " slice %u of %u", r->slice, r->n_slices);
    else
        strbuf_printf(out, " rows %u-%u %s %u-%u", r->row0, r->row1,
                      t->role == TENSOR_STATE ? "heads" : "columns", r->col0, r->col1);
}

uint64_t view_tensor_bytes(const struct kgraph *k, int32_t tensor) {
    const struct tensor *t = &k->tensors.items[tensor];
    return tensor_bytes(t) * (t->role == TENSOR_STATE ? k->attrs.D : 1);
}

uint64_t view_region_bytes(const struct kgraph *k, const struct region *r) {
    const struct tensor *t = &k->tensors.items[r->tensor];
    uint64_t element = dtype_bytes(t->dtype);
    if (r->n_slices > 0) return tensor_bytes(t) / r->n_slices;
    if (t->role == TENSOR_STATE) element *= k->attrs.D;
    return region_elements(k, r) * element;
}

/* Appends " (o_proj)", from the weight's name: a layer has several linear operators. */
static void linear_name(const struct kgraph *k, const struct kop *op, struct strbuf *out) {
    static const char suffix[] = ".weight";
    if (op->kind != OP_LINEAR && op->kind != OP_LINEAR_SPLITK) return;
    const char *name = k->tensors.items[op->in[LINEAR_W]].name; /* PARTS_W, too */
    size_t n = strlen(name), last = sizeof suffix - 1;
    if (n > last && strcmp(name + n - last, suffix) == 0) n -= last;
    size_t first = n;
    while (first > 0 && name[first - 1] != '.') first--;
    strbuf_str(out, " (");
    strbuf_add(out, name + first, n - first);
    strbuf_char(out, ')');
}

void view_task_label(const struct kgraph *k, const struct task *t, struct strbuf *out) {
    if (t->op < 0) {
        strbuf_str(out, "empty");
        return;
    }
    const struct kop *op = &k->ops.items[t->op];
    strbuf_str(out, op_name(op->kind));
    if (op->layer >= 0) strbuf_printf(out, " L%d", op->layer);
    linear_name(k, op, out);
    if (op_split_of(op->kind) == SPLIT_SLICES)
        strbuf_printf(out, " slice %u of %u", t->unit0, t->unit1);
    else
        strbuf_printf(out, " rows %u-%u units %u-%u", t->row0, t->row1, t->unit0, t->unit1);
}

/* ---- building ----------------------------------------------------------------------------- */

struct builder {
    struct diag *d;
    struct view *v;
    const struct kgraph *k;
    const struct tgraph *g; /* NULL for the kernel graph */
    struct view_scope scope;
    uint32_t *tasks, *events, *tensors; /* node of each, NONE: not yet */
    struct strbuf text;                 /* scratch */
    int rc;                             /* first failure; the add_ functions do nothing after it */
};

enum { NONE = -1 };
#define NO_NODE ((uint32_t)NONE)

static void keep(struct builder *b, int rc) {
    if (b->rc == QN_OK) b->rc = rc;
}

/* Moves the scratch text into the arena. */
static const char *take(struct builder *b) {
    char *copy = (char *)"";
    keep(b, strbuf_status(b->d, &b->text));
    if (b->rc == QN_OK) keep(b, arena_strdup(b->d, &b->v->arena, strbuf_text(&b->text), &copy));
    strbuf_clear(&b->text);
    return b->rc == QN_OK ? copy : "";
}

/* The text is copied: the graphs that it comes from are gone when the view is written. */
static void add_attr(struct builder *b, const char *name, const char *text, uint64_t number) {
    char *copy = NULL;
    if (b->rc == QN_OK && text != NULL) keep(b, arena_strdup(b->d, &b->v->arena, text, &copy));
    if (b->rc != QN_OK) return;
    keep(b, ARRAY_PUSH(b->d, &b->v->attrs, (struct view_attr){name, copy, number}));
    b->v->nodes.items[b->v->nodes.n - 1].n_attrs++;
}

static uint32_t add_node(struct builder *b, struct view_node node) {
    node.first_attr = b->v->attrs.n;
    if (b->rc == QN_OK) keep(b, ARRAY_PUSH(b->d, &b->v->nodes, node));
    return b->rc == QN_OK ? (uint32_t)(b->v->nodes.n - 1) : 0;
}

/* The label is the scratch text. */
static void add_edge(struct builder *b, uint32_t from, uint32_t to, const char *kind,
                     uint64_t bytes) {
    const char *label = take(b);
    if (b->rc != QN_OK) return;
    if (b->v->edges.n >= VIEW_MAX_EDGES)
        keep(b,
             fail(b->d, QN_ELIMIT, "graph: more than %d edges; ask for one layer", VIEW_MAX_EDGES));
    else
        keep(b, ARRAY_PUSH(b->d, &b->v->edges, (struct view_edge){from, to, kind, label, bytes}));
}

static int start(struct builder *b, struct diag *d, const struct kgraph *k, const struct tgraph *g,
                 const char *stage, const struct view_scope *scope, struct view *v) {
    *v = (struct view){.stage = stage, .n_rows = k->n_rows};
    *b = (struct builder){.d = d, .v = v, .k = k, .g = g, .scope = *scope};
    size_t n_tasks = g ? g->tasks.n : k->ops.n, n_events = g ? g->events.n : 0;
    TRY(ARENA_NEW(d, &v->arena, &b->tasks, n_tasks));
    TRY(ARENA_NEW(d, &v->arena, &b->events, n_events));
    TRY(ARENA_NEW(d, &v->arena, &b->tensors, k->tensors.n));
    memset(b->tasks, 0xff, n_tasks * sizeof *b->tasks);
    memset(b->events, 0xff, n_events * sizeof *b->events);
    memset(b->tensors, 0xff, k->tensors.n * sizeof *b->tensors);
    return QN_OK;
}

/* Makes the title and releases the scratch text. */
static int finish(struct builder *b, const char *what) {
    strbuf_printf(&b->text, "%s, %u row%s", what, b->k->n_rows, b->k->n_rows == 1 ? "" : "s");
    if (b->scope.layer != VIEW_ALL_LAYERS) strbuf_printf(&b->text, ", layer %d", b->scope.layer);
    b->v->title = take(b);
    strbuf_fini(&b->text);
    if (b->rc != QN_OK) view_fini(b->v);
    return b->rc;
}

void view_fini(struct view *v) {
    ARRAY_FINI(&v->nodes);
    ARRAY_FINI(&v->edges);
    ARRAY_FINI(&v->attrs);
    arena_fini(&v->arena);
}

static bool wanted_op(const struct builder *b, int32_t op) {
    if (b->scope.layer == VIEW_ALL_LAYERS) return true;
    return op >= 0 && b->k->ops.items[op].layer == b->scope.layer;
}

/* ---- kernel graph ------------------------------------------------------------------------- */

static void shape_text(const struct tensor *t, struct strbuf *out) {
    strbuf_char(out, '[');
    for (int i = 0; i < t->n_dims; i++)
        strbuf_printf(out, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    strbuf_printf(out, "] %s%s", dtype_row(t->dtype)->file,
                  t->layout == LAYOUT_PACKED ? " packed" : "");
}

static uint32_t op_node(struct builder *b, int32_t o) {
    if (b->tasks[o] != NO_NODE) return b->tasks[o];
    const struct kop *op = &b->k->ops.items[o];
    uint64_t weights = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] != NO_TENSOR && b->k->tensors.items[op->in[i]].role == TENSOR_WEIGHT)
            weights += tensor_bytes(&b->k->tensors.items[op->in[i]]);
    strbuf_printf(&b->text, "op %d", o);
    const char *id = take(b);
    strbuf_str(&b->text, op_name(op->kind));
    if (op->layer >= 0) strbuf_printf(&b->text, " L%d", op->layer);
    linear_name(b->k, op, &b->text);
    const char *label = take(b);
    b->tasks[o] = add_node(b, (struct view_node){.id = id,
                                                 .key = id,
                                                 .kind = "op",
                                                 .op = op_name(op->kind),
                                                 .label = label,
                                                 .layer = op->layer,
                                                 .outside = !wanted_op(b, o)});
    add_attr(b, "rows", NULL, kop_rows(op));
    add_attr(b, "units", NULL, kop_units(op));
    add_attr(b, "weight_bytes", NULL, weights);
    return b->tasks[o];
}

static uint32_t weight_node(struct builder *b, int32_t tensor) {
    const struct tensor *t = &b->k->tensors.items[tensor];
    if (b->tensors[tensor] != NO_NODE) return b->tensors[tensor];
    shape_text(t, &b->text);
    const char *shape = take(b);
    strbuf_str(&b->text, t->name);
    const char *name = take(b);
    b->tensors[tensor] = add_node(b, (struct view_node){.id = name,
                                                        .key = name,
                                                        .kind = "tensor",
                                                        .op = "",
                                                        .label = name,
                                                        .layer = b->scope.layer});
    add_attr(b, "role", t->role == TENSOR_WEIGHT ? "weight" : "state", 0);
    add_attr(b, "shape", shape, 0);
    add_attr(b, "bytes", NULL, view_tensor_bytes(b->k, tensor));
    return b->tensors[tensor];
}

static void kernel_edge(struct builder *b, int32_t tensor, uint32_t to) {
    const struct tensor *t = &b->k->tensors.items[tensor];
    uint32_t from = t->producer >= 0 && t->role == TENSOR_ACTIVATION ? op_node(b, t->producer)
                                                                     : weight_node(b, tensor);
    view_tensor_name(b->k, tensor, &b->text);
    strbuf_char(&b->text, ' ');
    shape_text(t, &b->text);
    add_edge(b, from, to, "data", view_tensor_bytes(b->k, tensor));
}

static bool reads_wanted(const struct builder *b, const struct kop *op) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        int producer = op->in[i] == NO_TENSOR ? -1 : b->k->tensors.items[op->in[i]].producer;
        if (producer >= 0 && wanted_op(b, producer)) return true;
    }
    return false;
}

int view_kernel(struct diag *d, const struct kgraph *k, const struct view_scope *scope,
                struct view *v) {
    struct builder b;
    int rc = start(&b, d, k, NULL, "kernel", scope, v);
    if (rc != QN_OK) {
        view_fini(v);
        return rc;
    }
    for (size_t o = 0; o < k->ops.n; o++) {
        const struct kop *op = &k->ops.items[o];
        bool wanted = wanted_op(&b, (int32_t)o);
        if (!wanted && !reads_wanted(&b, op)) continue;
        uint32_t to = op_node(&b, (int32_t)o);
        for (int i = 0; i < OP_MAX_IN; i++) {
            if (op->in[i] == NO_TENSOR) continue;
            int producer = k->tensors.items[op->in[i]].producer;
            if (wanted || (producer >= 0 && wanted_op(&b, producer)))
                kernel_edge(&b, op->in[i], to);
        }
    }
    return finish(&b, "kernel graph");
}

/* ---- tasks -------------------------------------------------------------------------------- */

static uint32_t task_node(struct builder *b, int32_t i, enum task_stage stage) {
    if (b->tasks[i] != NO_NODE) return b->tasks[i];
    const struct task *t = &b->g->tasks.items[i];
    strbuf_printf(&b->text, "task %u", b->scope.first_task + (uint32_t)i);
    const char *id = take(b);
    view_task_label(b->k, t, &b->text);
    const char *label = take(b);
    b->tasks[i] =
        add_node(b, (struct view_node){.id = id,
                                       .key = label,
                                       .kind = "task",
                                       .op = t->op < 0 ? "empty" : op_name(t->kind),
                                       .label = label,
                                       .layer = t->op < 0 ? -1 : b->k->ops.items[t->op].layer,
                                       .outside = !wanted_op(b, t->op)});
    add_attr(b, "weight_bytes", NULL, task_weight_bytes(b->k, t));
    if (stage >= STAGE_NORMALIZE) {
        add_attr(b, "wait", NULL, b->scope.first_event + (uint64_t)t->wait);
        add_attr(b, "trigger", NULL, b->scope.first_event + (uint64_t)t->trigger);
    }
    if (stage >= STAGE_PLACE && t->worker == NO_WORKER) add_attr(b, "worker", "JIT", 0);
    if (stage >= STAGE_PLACE && t->worker != NO_WORKER)
        add_attr(b, "worker", NULL, (uint64_t)t->worker);
    return b->tasks[i];
}

static uint32_t tensor_node(struct builder *b, int32_t tensor, enum task_stage stage) {
    if (b->tensors[tensor] != NO_NODE) return b->tensors[tensor];
    const struct tensor *t = &b->k->tensors.items[tensor];
    view_tensor_name(b->k, tensor, &b->text);
    const char *name = take(b);
    b->tensors[tensor] = add_node(
        b, (struct view_node){.id = name,
                              .key = name,
                              .kind = "tensor",
                              .op = "",
                              .label = name,
                              .layer = t->producer >= 0 ? b->k->ops.items[t->producer].layer : -1});
    add_attr(b, "bytes", NULL, view_tensor_bytes(b->k, tensor));
    if (stage >= STAGE_MEMORY_PLAN && t->role == TENSOR_ACTIVATION)
        add_attr(b, "offset", NULL, b->g->tensor_offset[tensor]);
    return b->tensors[tensor];
}

/* For decompose and memory_plan: the regions that tasks read and write. */
static void region_edges(struct builder *b, enum task_stage stage) {
    struct region r[TASK_MAX_ACCESS];
    for (size_t i = 0; i < b->g->tasks.n; i++) {
        const struct task *t = &b->g->tasks.items[i];
        if (!wanted_op(b, t->op)) continue;
        uint32_t node = task_node(b, (int32_t)i, stage);
        int n = task_access(b->k, t, r);
        for (int a = 0; a < n; a++) {
            uint32_t tensor = tensor_node(b, r[a].tensor, stage);
            view_region(b->k, &r[a], &b->text);
            uint64_t bytes = view_region_bytes(b->k, &r[a]);
            if (r[a].write)
                add_edge(b, node, tensor, "write", bytes);
            else
                add_edge(b, tensor, node, "read", bytes);
        }
    }
}

/* Finds the first pair of accesses that makes `after` depend on `before`. Returns the kind of the
 * edge; the region goes into the scratch text. */
static const char *dependency(struct builder *b, const struct task *before,
                              const struct task *after, uint64_t *bytes) {
    struct region x[TASK_MAX_ACCESS], y[TASK_MAX_ACCESS];
    int n = task_access(b->k, before, x), m = task_access(b->k, after, y);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            if (!(x[i].write || y[j].write) || !region_overlap(&x[i], &y[j])) continue;
            struct region both = y[j].n_slices > 0 ? x[i] : y[j];
            if (both.n_slices == 0 && x[i].n_slices == 0) {
                both.row0 = MAX(x[i].row0, y[j].row0);
                both.row1 = MIN(x[i].row1, y[j].row1);
                both.col0 = MAX(x[i].col0, y[j].col0);
                both.col1 = MIN(x[i].col1, y[j].col1);
            }
            view_region(b->k, &both, &b->text);
            *bytes = view_region_bytes(b->k, &both);
            return !x[i].write ? "WAR" : y[j].write ? "WAW" : "RAW";
        }
    *bytes = 0;
    strbuf_str(&b->text, "the workspace is used again");
    return "WAR";
}

static void dependency_edges(struct builder *b) {
    const struct tgraph *g = b->g;
    for (size_t i = 0; i < g->tasks.n && b->rc == QN_OK; i++) {
        const struct task *after = &g->tasks.items[i];
        if (wanted_op(b, after->op)) task_node(b, (int32_t)i, STAGE_DEPEND);
        for (uint32_t r = 0; r < g->deps[i].n; r++)
            for (int32_t k = g->deps[i].ranges[r].first; k < g->deps[i].ranges[r].last; k++) {
                const struct task *before = &g->tasks.items[k];
                uint64_t bytes;
                if (!wanted_op(b, after->op) && !wanted_op(b, before->op)) continue;
                uint32_t from = task_node(b, k, STAGE_DEPEND);
                uint32_t to = task_node(b, (int32_t)i, STAGE_DEPEND);
                const char *kind = dependency(b, before, after, &bytes);
                add_edge(b, from, to, kind, bytes);
                if (b->rc != QN_OK) return;
            }
    }
}

/* ---- events ------------------------------------------------------------------------------- */

static uint32_t event_node(struct builder *b, int32_t e, int32_t some_task) {
    if (b->events[e] != NO_NODE) return b->events[e];
    const struct event *event = &b->g->events.items[e];
    strbuf_printf(&b->text, "event %u", b->scope.first_event + (uint32_t)e);
    const char *id = take(b);
    /* Stages renumber events, so the key is a task next to the event, and the counts. */
    strbuf_printf(&b->text, "event %u>%u ", event->n_triggers, event->n_dependents);
    if (some_task >= 0) view_task_label(b->k, &b->g->tasks.items[some_task], &b->text);
    const char *key = take(b);
    const char *label = id;
    if (e == b->g->start_event) label = "start";
    if (e == b->g->end_event) label = "end";
    b->events[e] = add_node(b, (struct view_node){.id = id,
                                                  .key = key,
                                                  .kind = "event",
                                                  .op = "",
                                                  .label = label,
                                                  .layer = b->scope.layer});
    add_attr(b, "triggers", NULL, event->n_triggers);
    add_attr(b, "dependents", NULL, event->n_dependents);
    if (event->data) add_attr(b, "carried", "by the data", 0);
    return b->events[e];
}

/* Puts the regions that one task writes, or reads, into the scratch text. Returns their bytes. */
static uint64_t access_text(struct builder *b, const struct task *t, bool write) {
    struct region r[TASK_MAX_ACCESS];
    uint64_t bytes = 0;
    int n = task_access(b->k, t, r);
    for (int i = 0; i < n; i++) {
        if (r[i].write != write) continue;
        if (b->text.n > 0) strbuf_str(&b->text, "; ");
        view_region(b->k, &r[i], &b->text);
        bytes += view_region_bytes(b->k, &r[i]);
    }
    return bytes;
}

static void trigger_edge(struct builder *b, int32_t task, int32_t event, enum task_stage stage) {
    uint32_t from = task_node(b, task, stage), to = event_node(b, event, task);
    uint64_t bytes = access_text(b, &b->g->tasks.items[task], true);
    add_edge(b, from, to, "trigger", bytes);
}

static void wait_edge(struct builder *b, int32_t event, int32_t task, enum task_stage stage) {
    uint32_t from = event_node(b, event, task), to = task_node(b, task, stage);
    uint64_t bytes = access_text(b, &b->g->tasks.items[task], false);
    add_edge(b, from, to, "wait", bytes);
}

/* For event_fuse, whose events have in- and out-sets: an event is wanted if one of its tasks is. */
static bool set_wanted(const struct builder *b, const struct task_range *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (int32_t t = r[i].first; t < r[i].last; t++)
            if (wanted_op(b, b->g->tasks.items[t].op)) return true;
    return false;
}

static void set_edges(struct builder *b) {
    for (size_t i = 0; i < b->g->tasks.n; i++)
        if (wanted_op(b, b->g->tasks.items[i].op)) task_node(b, (int32_t)i, STAGE_EVENT_FUSE);
    for (size_t e = 0; e < b->g->events.n && b->rc == QN_OK; e++) {
        const struct event *event = &b->g->events.items[e];
        if (!set_wanted(b, event->in, event->n_in) && !set_wanted(b, event->out, event->n_out))
            continue;
        for (uint32_t r = 0; r < event->n_in; r++)
            for (int32_t t = event->in[r].first; t < event->in[r].last; t++)
                trigger_edge(b, t, (int32_t)e, STAGE_EVENT_FUSE);
        for (uint32_t r = 0; r < event->n_out; r++)
            for (int32_t t = event->out[r].first; t < event->out[r].last; t++)
                wait_edge(b, (int32_t)e, t, STAGE_EVENT_FUSE);
    }
}

/* normalize and later: each task names its two events. */
static void normal_edges(struct builder *b, enum task_stage stage) {
    const struct tgraph *g = b->g;
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        if (!wanted_op(b, t->op)) continue;
        task_node(b, (int32_t)i, stage);
        event_node(b, t->wait, (int32_t)i);
        event_node(b, t->trigger, (int32_t)i);
    }
    for (size_t i = 0; i < g->tasks.n && b->rc == QN_OK; i++) {
        const struct task *t = &g->tasks.items[i];
        bool wanted = wanted_op(b, t->op);
        if (wanted || b->events[t->wait] != NO_NODE) wait_edge(b, t->wait, (int32_t)i, stage);
        if (wanted || b->events[t->trigger] != NO_NODE) {
            if (!wanted && b->tasks[i] == NO_NODE) task_node(b, (int32_t)i, stage);
            trigger_edge(b, (int32_t)i, t->trigger, stage);
        }
    }
}

int view_tasks(struct diag *d, const struct tgraph *g, enum task_stage stage,
               const struct view_scope *scope, struct view *v) {
    struct builder b;
    char what[64];
    int rc = start(&b, d, g->kernel, g, task_stage_name(stage), scope, v);
    if (rc != QN_OK) {
        view_fini(v);
        return rc;
    }
    if (stage <= STAGE_MEMORY_PLAN)
        region_edges(&b, stage);
    else if (stage == STAGE_DEPEND)
        dependency_edges(&b);
    else if (stage == STAGE_EVENT_FUSE)
        set_edges(&b);
    else
        normal_edges(&b, stage);
    strbuf_printf(&b.text, "task graph after %s", task_stage_name(stage));
    size_t n = MIN(b.text.n, sizeof what - 1);
    memcpy(what, strbuf_text(&b.text), n);
    what[n] = '\0';
    strbuf_clear(&b.text);
    return finish(&b, what);
}

/* ---- events alone ------------------------------------------------------------------------- */

/* All tasks between two events that belong to one operator become one edge. They are neighbours in
 * the order of tasks, since the dependents of an event are. */
int view_events(struct diag *d, const struct tgraph *g, const struct view_scope *scope,
                struct view *v) {
    struct builder b;
    int rc = start(&b, d, g->kernel, g, "events", scope, v);
    if (rc != QN_OK) {
        view_fini(v);
        return rc;
    }
    for (size_t i = 0; i < g->tasks.n && b.rc == QN_OK;) {
        const struct task *t = &g->tasks.items[i];
        uint64_t bytes = 0;
        size_t n = 0;
        for (; i + n < g->tasks.n; n++) {
            const struct task *u = &g->tasks.items[i + n];
            if (u->wait != t->wait || u->trigger != t->trigger || u->op != t->op) break;
            bytes += task_weight_bytes(g->kernel, u);
        }
        if (wanted_op(&b, t->op)) {
            uint32_t from = event_node(&b, t->wait, (int32_t)i);
            uint32_t to = event_node(&b, t->trigger, (int32_t)i);
            strbuf_printf(&b.text, "%zu x %s", n, t->op < 0 ? "empty" : op_name(t->kind));
            if (t->op >= 0 && g->kernel->ops.items[t->op].layer >= 0)
                strbuf_printf(&b.text, " L%d", g->kernel->ops.items[t->op].layer);
            add_edge(&b, from, to, "tasks", bytes);
        }
        i += n;
    }
    return finish(&b, "events");
}
