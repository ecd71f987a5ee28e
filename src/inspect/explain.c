/* explain.c - qn_explain: one task, event or tensor of a program: where it came from, what it waits
 * on, what waits on it. The numbers are the program's, as in traces and messages.
 *
 * The answer is made as JSON; the text is the same, key by key.
 */
#include "inspect/view.h"

#include "base/checked.h"
#include "inspect/graph_view.h"

#include <jansson.h>
#include <stdlib.h>

enum { MOST_LINES = 48 }; /* of one list; its full length is always given */

enum what { WHAT_TASK, WHAT_EVENT, WHAT_TENSOR };

struct question {
    enum what what;
    const char *text;                 /* behind the colon */
    uint32_t number;                  /* of a task or event */
    uint32_t n_rows;                  /* 0: the first variant that has it */
    uint32_t first_task, first_event; /* of the current variant */
    json_t *answer;                   /* NULL: not found yet */
};

static int parse(struct diag *d, const char *text, struct question *q) {
    static const char *const kinds[] = {"task", "event", "tensor"};
    const char *colon = text ? strchr(text, ':') : NULL;
    char *end;
    for (size_t i = 0; colon && i < COUNT_OF(kinds); i++) {
        if (strlen(kinds[i]) != (size_t)(colon - text) ||
            strncmp(text, kinds[i], (size_t)(colon - text)) != 0)
            continue;
        q->what = (enum what)i;
        q->text = colon + 1;
        if (q->what == WHAT_TENSOR && q->text[0]) return QN_OK;
        unsigned long n = strtoul(q->text, &end, 10);
        if (q->text[0] < '0' || q->text[0] > '9' || *end || n > UINT32_MAX) break;
        q->number = (uint32_t)n;
        return QN_OK;
    }
    return fail(d, QN_EINVAL, "explain: want task:NUMBER, event:NUMBER or tensor:NAME, have '%s'",
                text ? text : "");
}

/* ---- words -------------------------------------------------------------------------------- */

static json_t *number(uint64_t n) {
    return json_integer((json_int_t)n);
}

/* Takes the text out of the buffer, which is empty afterwards. */
static json_t *text_json(struct strbuf *b) {
    json_t *s = b->failed ? NULL : json_string(strbuf_text(b));
    strbuf_clear(b);
    return s;
}

/* The current variant, and scratch. */
struct scene {
    const struct question *q;
    const struct tgraph *g;
    const struct kgraph *k;
    struct strbuf text;
};

static void put_task(struct scene *s, int32_t i) {
    strbuf_printf(&s->text, "task %u  ", s->q->first_task + (uint32_t)i);
    view_task_label(s->k, &s->g->tasks.items[i], &s->text);
}

static void put_op(struct scene *s, int32_t o) {
    const struct kop *op = &s->k->ops.items[o];
    strbuf_printf(&s->text, "op %d %s", o, op_name(op->kind));
    if (op->layer >= 0) strbuf_printf(&s->text, " L%d", op->layer);
}

static json_t *op_json(struct scene *s, int32_t o) {
    put_op(s, o);
    return text_json(&s->text);
}

/* A list that says how long it is and shows its beginning. */
struct list {
    json_t *items;
    uint64_t n;
};

static void list_add(struct list *l, struct strbuf *text) {
    if (!l->items) l->items = json_array();
    if (l->n++ < MOST_LINES)
        json_array_append_new(l->items, text_json(text));
    else
        strbuf_clear(text);
}

static void list_put(json_t *o, const char *key, struct list *l) {
    if (l->n > MOST_LINES) {
        char more[64];
        snprintf(more, sizeof more, "... and %llu more", (unsigned long long)(l->n - MOST_LINES));
        json_array_append_new(l->items, json_string(more));
    }
    json_object_set_new(o, key, l->items ? l->items : json_array());
    *l = (struct list){0};
}

/* ---- accesses ----------------------------------------------------------------------------- */

static void put_region(struct scene *s, const struct region *r) {
    view_region(s->k, r, &s->text);
    strbuf_printf(&s->text, "  %llu bytes", (unsigned long long)view_region_bytes(s->k, r));
}

static uint64_t access_json(struct scene *s, const struct task *t, bool write, json_t *o) {
    struct region r[TASK_MAX_ACCESS];
    struct list list = {0};
    uint64_t bytes = 0;
    int n = task_access(s->k, t, r);
    for (int i = 0; i < n; i++) {
        if (r[i].write != write) continue;
        bytes += view_region_bytes(s->k, &r[i]);
        put_region(s, &r[i]);
        list_add(&list, &s->text);
    }
    list_put(o, write ? "writes" : "reads", &list);
    return bytes;
}

/* Puts why `after` must come after `before`: the first overlap. Returns whether there is one. */
static bool put_reason(struct scene *s, const struct task *before, const struct task *after) {
    struct region x[TASK_MAX_ACCESS], y[TASK_MAX_ACCESS];
    int n = task_access(s->k, before, x), m = task_access(s->k, after, y);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            if (!(x[i].write || y[j].write) || !region_overlap(&x[i], &y[j])) continue;
            strbuf_printf(&s->text, ": %s ", !x[i].write ? "WAR" : y[j].write ? "WAW" : "RAW");
            view_region(s->k, x[i].write ? &x[i] : &y[j], &s->text);
            return true;
        }
    return false;
}

/* ---- a task ------------------------------------------------------------------------------- */

static void weights_json(struct scene *s, const struct kop *op, json_t *o) {
    struct list list = {0};
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (op->in[i] == NO_TENSOR) continue;
        const struct tensor *t = &s->k->tensors.items[op->in[i]];
        if (t->role != TENSOR_WEIGHT) continue;
        strbuf_printf(&s->text, "%s [%llu", t->name, (unsigned long long)t->shape[0]);
        if (t->n_dims > 1) strbuf_printf(&s->text, ",%llu", (unsigned long long)t->shape[1]);
        strbuf_printf(&s->text, "]  %llu bytes", (unsigned long long)tensor_bytes(t));
        list_add(&list, &s->text);
    }
    list_put(o, "operator_weights", &list);
}

static void origin_json(struct scene *s, int32_t i, json_t *o) {
    const struct task *t = &s->g->tasks.items[i];
    uint32_t nth = 0, n = 0;
    if (t->op < 0) {
        json_object_set_new(o, "from",
                            json_string("normalize: an empty task, so that every task waits for "
                                        "one event and triggers one"));
        return;
    }
    for (size_t j = 0; j < s->g->tasks.n; j++) {
        if (s->g->tasks.items[j].op != t->op) continue;
        nth += (int32_t)j < i;
        n++;
    }
    strbuf_printf(&s->text, "decompose: task %u of %u of ", nth + 1, n);
    put_op(s, t->op);
    json_object_set_new(o, "from", text_json(&s->text));
    weights_json(s, &s->k->ops.items[t->op], o);
}

static void waits_json(struct scene *s, int32_t i, json_t *o) {
    const struct task *t = &s->g->tasks.items[i];
    struct list list = {0};
    strbuf_printf(&s->text, "event %u", s->q->first_event + (uint32_t)t->wait);
    if (t->wait == s->g->start_event) strbuf_str(&s->text, ", the start of the iteration");
    json_object_set_new(o, "waits_for", text_json(&s->text));
    for (size_t j = 0; j < s->g->tasks.n; j++) {
        if (s->g->tasks.items[j].trigger != t->wait) continue;
        put_task(s, (int32_t)j);
        put_reason(s, &s->g->tasks.items[j], t);
        list_add(&list, &s->text);
    }
    list_put(o, "which_is_triggered_by", &list);
}

static void waiters_json(struct scene *s, int32_t i, json_t *o) {
    const struct task *t = &s->g->tasks.items[i];
    struct list list = {0};
    const struct event *e = &s->g->events.items[t->trigger];
    strbuf_printf(&s->text, "event %u, with %u other%s", s->q->first_event + (uint32_t)t->trigger,
                  e->n_triggers - 1, e->n_triggers == 2 ? "" : "s");
    if (t->trigger == s->g->end_event) strbuf_str(&s->text, ": the end of the iteration");
    json_object_set_new(o, "triggers", text_json(&s->text));
    for (size_t j = 0; j < s->g->tasks.n; j++) {
        if (s->g->tasks.items[j].wait != t->trigger) continue;
        put_task(s, (int32_t)j);
        put_reason(s, t, &s->g->tasks.items[j]);
        list_add(&list, &s->text);
    }
    list_put(o, "on_which_wait", &list);
}

static json_t *explain_task(struct scene *s, int32_t i) {
    const struct task *t = &s->g->tasks.items[i];
    json_t *o = json_object();
    put_task(s, i);
    json_object_set_new(o, "what", text_json(&s->text));
    json_object_set_new(o, "variant_rows", number(s->k->n_rows));
    origin_json(s, i, o);
    if (t->worker == NO_WORKER)
        json_object_set_new(o, "worker", json_string("JIT: the worker that claims it"));
    else
        json_object_set_new(o, "worker", number((uint64_t)t->worker));
    json_object_set_new(o, "weight_bytes", number(task_weight_bytes(s->k, t)));
    uint64_t read = access_json(s, t, false, o), written = access_json(s, t, true, o);
    json_object_set_new(o, "read_bytes", number(read));
    json_object_set_new(o, "written_bytes", number(written));
    waits_json(s, i, o);
    waiters_json(s, i, o);
    return o;
}

/* ---- an event ----------------------------------------------------------------------------- */

static json_t *explain_event(struct scene *s, int32_t e) {
    const struct event *event = &s->g->events.items[e];
    struct list triggers = {0}, dependents = {0};
    json_t *o = json_object();
    strbuf_printf(&s->text, "event %u", s->q->number);
    json_object_set_new(o, "what", text_json(&s->text));
    json_object_set_new(o, "variant_rows", number(s->k->n_rows));
    json_object_set_new(o, "from",
                        json_string(e == s->g->start_event ? "normalize: the iteration begins"
                                    : e == s->g->end_event
                                        ? "normalize: the iteration is over when all are done"
                                        : "event_fuse: every one of its dependents needs all of "
                                          "its triggers, so one counter stands for all pairs"));
    json_object_set_new(o, "pairs", number((uint64_t)event->n_triggers * event->n_dependents));
    json_object_set_new(o, "carried",
                        json_string(event->data ? "by the data itself" : "by a counter"));
    json_object_set_new(o, "n_triggers", number(event->n_triggers));
    for (size_t j = 0; j < s->g->tasks.n; j++) {
        const struct task *t = &s->g->tasks.items[j];
        if (t->trigger == e) {
            put_task(s, (int32_t)j);
            list_add(&triggers, &s->text);
        }
        if (t->wait == e) {
            put_task(s, (int32_t)j);
            list_add(&dependents, &s->text);
        }
    }
    list_put(o, "triggered_by", &triggers);
    json_object_set_new(o, "n_dependents", number(event->n_dependents));
    list_put(o, "on_which_wait", &dependents);
    return o;
}

/* ---- a tensor ----------------------------------------------------------------------------- */

static bool op_reads(const struct kop *op, int32_t tensor) {
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] == tensor) return true;
    return false;
}

/* Lists the activations that use the tensor's bytes at other times. */
static void sharers_json(struct scene *s, int32_t tensor, json_t *o) {
    uint64_t at = s->g->tensor_offset[tensor];
    uint64_t end = at + tensor_bytes(&s->k->tensors.items[tensor]);
    struct list list = {0};
    for (size_t i = 0; i < s->k->tensors.n; i++) {
        const struct tensor *t = &s->k->tensors.items[i];
        uint64_t first = s->g->tensor_offset[i];
        if (t->role != TENSOR_ACTIVATION || (int32_t)i == tensor) continue;
        if (s->g->tensor_transport && s->g->tensor_transport[i] != s->g->tensor_transport[tensor])
            continue; /* flagged bytes are nobody else's */
        if (first >= end || first + tensor_bytes(t) <= at) continue;
        view_tensor_name(s->k, (int32_t)i, &s->text);
        list_add(&list, &s->text);
    }
    list_put(o, "shares_bytes_with", &list);
}

static void tensor_tasks_json(struct scene *s, int32_t tensor, json_t *o) {
    struct region r[TASK_MAX_ACCESS];
    struct list lists[2] = {{0}};
    for (size_t i = 0; i < s->g->tasks.n; i++) {
        const struct task *t = &s->g->tasks.items[i];
        int n = task_access(s->k, t, r);
        for (int a = 0; a < n; a++) {
            if (r[a].tensor != tensor) continue;
            put_task(s, (int32_t)i);
            strbuf_str(&s->text, ": ");
            put_region(s, &r[a]);
            list_add(&lists[r[a].write], &s->text);
        }
        if (s->k->tensors.items[tensor].role == TENSOR_WEIGHT && t->op >= 0 &&
            op_reads(&s->k->ops.items[t->op], tensor)) {
            put_task(s, (int32_t)i);
            list_add(&lists[0], &s->text);
        }
    }
    list_put(o, "tasks_that_write", &lists[1]);
    list_put(o, "tasks_that_read", &lists[0]);
}

static json_t *explain_tensor(struct scene *s, int32_t tensor) {
    static const char *const roles[] = {"weight: never changes, so nobody waits for it",
                                        "activation: lives within one iteration",
                                        "state: the KV cache of one layer"};
    const struct tensor *t = &s->k->tensors.items[tensor];
    struct list readers = {0};
    json_t *o = json_object();
    view_tensor_name(s->k, tensor, &s->text);
    json_object_set_new(o, "what", text_json(&s->text));
    json_object_set_new(o, "variant_rows", number(s->k->n_rows));
    json_object_set_new(o, "role", json_string(roles[t->role]));
    json_object_set_new(o, "dtype", json_string(dtype_row(t->dtype)->hf));
    json_t *shape = json_array();
    for (int i = 0; i < t->n_dims; i++) json_array_append_new(shape, number(t->shape[i]));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "bytes", number(view_tensor_bytes(s->k, tensor)));
    if (t->producer >= 0) json_object_set_new(o, "written_by", op_json(s, t->producer));
    for (size_t i = 0; i < s->k->ops.n; i++)
        if (op_reads(&s->k->ops.items[i], tensor)) {
            put_op(s, (int32_t)i);
            list_add(&readers, &s->text);
        }
    list_put(o, "read_by", &readers);
    if (t->role == TENSOR_ACTIVATION) {
        json_object_set_new(o, "workspace_offset", number(s->g->tensor_offset[tensor]));
        sharers_json(s, tensor, o);
    }
    tensor_tasks_json(s, tensor, o);
    return o;
}

/* ---- looking for it ----------------------------------------------------------------------- */

static json_t *find(struct scene *s) {
    const struct question *q = s->q;
    if (q->what == WHAT_TASK && q->number - q->first_task < s->g->tasks.n)
        return explain_task(s, (int32_t)(q->number - q->first_task));
    if (q->what == WHAT_EVENT && q->number - q->first_event < s->g->events.n)
        return explain_event(s, (int32_t)(q->number - q->first_event));
    for (size_t i = 0; q->what == WHAT_TENSOR && i < s->k->tensors.n; i++) {
        view_tensor_name(s->k, (int32_t)i, &s->text);
        bool same = strcmp(strbuf_text(&s->text), q->text) == 0;
        strbuf_clear(&s->text);
        if (same) return explain_tensor(s, (int32_t)i);
    }
    return NULL;
}

static int on_tasks(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage) {
    struct question *q = user;
    (void)d;
    if (stage != N_TASK_STAGES - 1) return QN_OK;
    struct scene s = {.q = q, .g = g, .k = g->kernel};
    if (!q->answer && (q->n_rows == 0 || q->n_rows == g->kernel->n_rows)) q->answer = find(&s);
    strbuf_fini(&s.text);
    q->first_task += (uint32_t)g->tasks.n;
    q->first_event += (uint32_t)g->events.n;
    return QN_OK;
}

static void value_text(const json_t *v, struct strbuf *out) {
    if (json_is_string(v))
        strbuf_str(out, json_string_value(v));
    else
        strbuf_printf(out, "%lld", (long long)json_integer_value(v));
}

/* "key   value", lists one item per line. */
static void answer_text(const json_t *answer, struct strbuf *out) {
    const char *key;
    json_t *value, *item;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)answer, key, value) {
        size_t at = out->n;
        strbuf_str(out, key);
        for (size_t c = at; c < out->n; c++)
            if (out->text[c] == '_') out->text[c] = ' ';
        bool numbers = json_is_array(value) && json_is_integer(json_array_get(value, 0));
        if (json_is_array(value) && !numbers) {
            if (json_array_size(value) == 0) strbuf_str(out, ": nothing");
            json_array_foreach(value, i, item) {
                strbuf_str(out, "\n    ");
                value_text(item, out);
            }
        } else if (numbers) {
            strbuf_printf(out, "%*s", (int)MAX(1, 18 - (int)strlen(key)), "");
            json_array_foreach(value, i, item) {
                if (i) strbuf_str(out, " x ");
                value_text(item, out);
            }
        } else {
            strbuf_printf(out, "%*s", (int)MAX(1, 18 - (int)strlen(key)), "");
            value_text(value, out);
        }
        strbuf_char(out, '\n');
    }
}

static int answer(struct diag *d, const json_t *a, bool json, struct strbuf *out) {
    if (!json) {
        answer_text(a, out);
        return strbuf_status(d, out);
    }
    char *text = json_dumps(a, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!text) return fail_nomem(d, 0, "the answer");
    strbuf_str(out, text);
    strbuf_char(out, '\n');
    free(text);
    return strbuf_status(d, out);
}

int qn_explain(const qn_engine_params *params, const char *what, uint32_t n_rows,
               const char *format, char **text, qn_error *error) {
    struct diag d = {0};
    struct question q = {.n_rows = n_rows};
    struct compile_hook hook = {.tasks = on_tasks, .user = &q};
    struct strbuf out = {0};
    *text = NULL;
    int rc = parse(&d, what, &q);
    if (rc == QN_OK) rc = view_graphs(&d, params, &hook);
    if (rc == QN_OK && !q.answer)
        rc =
            fail(&d, QN_EINVAL, "%s: there is none; the program has %u tasks and %u events%s", what,
                 q.first_task, q.first_event, n_rows ? ", not all of them in that variant" : "");
    if (rc == QN_OK) rc = answer(&d, q.answer, format && strcmp(format, "json") == 0, &out);
    json_decref(q.answer);
    if (rc == QN_OK)
        *text = out.text;
    else
        strbuf_fini(&out);
    return api_return(rc, &d, error);
}
