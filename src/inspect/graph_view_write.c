/* graph_view_write.c - views as text, dot and JSON, and the difference of two. */
#include "inspect/graph_view.h"

#include "base/map.h"

#include <string.h>

/* ---- parts -------------------------------------------------------------------------------- */

static void attr_value(const struct view_attr *a, struct strbuf *out) {
    if (a->text)
        strbuf_str(out, a->text);
    else
        strbuf_printf(out, "%llu", (unsigned long long)a->number);
}

void view_json_string(struct strbuf *out, const char *text) {
    strbuf_char(out, '"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            strbuf_printf(out, "\\%c", *c);
        else if (*c < 0x20 || *c == '<') /* '<': the text may stand inside an HTML page */
            strbuf_printf(out, "\\u%04x", *c);
        else
            strbuf_char(out, (char)*c);
    }
    strbuf_char(out, '"');
}

/* A counting sort of the edges by `from`: those of node i are order[first[i], first[i + 1]). */
static int edges_by_from(struct diag *d, const struct view *v, struct arena *a, size_t **first,
                         size_t **order) {
    TRY(ARENA_NEW(d, a, first, v->nodes.n + 2));
    TRY(ARENA_NEW(d, a, order, v->edges.n));
    for (size_t i = 0; i < v->edges.n; i++) (*first)[v->edges.items[i].from + 2]++;
    for (size_t i = 1; i < v->nodes.n + 2; i++) (*first)[i] += (*first)[i - 1];
    for (size_t i = 0; i < v->edges.n; i++) (*order)[(*first)[v->edges.items[i].from + 1]++] = i;
    return QN_OK;
}

/* ---- text --------------------------------------------------------------------------------- */

static void node_text(const struct view *v, const struct view_node *n, struct strbuf *out) {
    strbuf_str(out, n->id);
    if (strcmp(n->label, n->id) != 0) strbuf_printf(out, "  %s", n->label);
    for (size_t i = 0; i < n->n_attrs; i++) {
        const struct view_attr *a = &v->attrs.items[n->first_attr + i];
        if (!a->text && a->number == 0 && strcmp(a->name, "weight_bytes") == 0) continue;
        strbuf_printf(out, "  %s ", a->name);
        attr_value(a, out);
    }
    if (n->outside) strbuf_str(out, "  (outside)");
    strbuf_char(out, '\n');
}

void view_text(const struct view *v, struct strbuf *out) {
    struct arena scratch = {0};
    size_t *first, *order;
    strbuf_printf(out, "%s: %zu nodes, %zu edges\n", v->title, v->nodes.n, v->edges.n);
    if (edges_by_from(NULL, v, &scratch, &first, &order) != QN_OK) {
        out->failed = true;
        arena_fini(&scratch);
        return;
    }
    for (size_t i = 0; i < v->nodes.n; i++) {
        node_text(v, &v->nodes.items[i], out);
        for (size_t k = first[i]; k < first[i + 1]; k++) {
            const struct view_edge *e = &v->edges.items[order[k]];
            strbuf_printf(out, "    %-7s -> %s", e->kind, v->nodes.items[e->to].id);
            if (e->label[0]) strbuf_printf(out, "  %s", e->label);
            if (e->bytes) strbuf_printf(out, "  %llu bytes", (unsigned long long)e->bytes);
            strbuf_char(out, '\n');
        }
    }
    arena_fini(&scratch);
}

/* ---- dot ---------------------------------------------------------------------------------- */

static const char *shape_of(const struct view_node *n) {
    if (strcmp(n->kind, "event") == 0) return "ellipse";
    return strcmp(n->kind, "tensor") == 0 ? "note" : "box";
}

static void dot_string(struct strbuf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') strbuf_char(out, '\\');
        strbuf_char(out, *text);
    }
}

void view_dot(const struct view *v, struct strbuf *out) {
    strbuf_str(out, "digraph quern {\n  label=\"");
    dot_string(out, v->title);
    strbuf_str(out, "\"; labelloc=t; rankdir=TB;\n"
                    "  node [fontname=\"Helvetica\", fontsize=10];\n"
                    "  edge [fontname=\"Helvetica\", fontsize=8];\n");
    for (size_t i = 0; i < v->nodes.n; i++) {
        const struct view_node *n = &v->nodes.items[i];
        strbuf_printf(out, "  n%zu [shape=%s%s, label=\"", i, shape_of(n),
                      n->outside ? ", style=dashed" : "");
        dot_string(out, n->id);
        if (strcmp(n->label, n->id) != 0) {
            strbuf_str(out, "\\n");
            dot_string(out, n->label);
        }
        strbuf_str(out, "\"];\n");
    }
    for (size_t i = 0; i < v->edges.n; i++) {
        const struct view_edge *e = &v->edges.items[i];
        strbuf_printf(out, "  n%u -> n%u [label=\"", e->from, e->to);
        dot_string(out, e->label);
        if (e->bytes) strbuf_printf(out, "\\n%llu B", (unsigned long long)e->bytes);
        strbuf_str(out, "\"];\n");
    }
    strbuf_str(out, "}\n");
}

/* ---- JSON --------------------------------------------------------------------------------- */

static void node_json(const struct view *v, const struct view_node *n, struct strbuf *out) {
    const struct {
        const char *name, *text;
    } fields[] = {{"id", n->id}, {"kind", n->kind}, {"op", n->op}, {"label", n->label}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        strbuf_printf(out, "%s\"%s\":", i ? "," : "{", fields[i].name);
        view_json_string(out, fields[i].text);
    }
    strbuf_printf(out, ",\"layer\":%d,\"outside\":%s,\"attrs\":{", n->layer,
                  n->outside ? "true" : "false");
    for (size_t i = 0; i < n->n_attrs; i++) {
        const struct view_attr *a = &v->attrs.items[n->first_attr + i];
        if (i) strbuf_char(out, ',');
        view_json_string(out, a->name);
        strbuf_char(out, ':');
        if (a->text)
            view_json_string(out, a->text);
        else
            strbuf_printf(out, "%llu", (unsigned long long)a->number);
    }
    strbuf_str(out, "}}");
}

void view_json(const struct view *v, struct strbuf *out) {
    strbuf_str(out, "{\"title\":");
    view_json_string(out, v->title);
    strbuf_str(out, ",\"stage\":");
    view_json_string(out, v->stage);
    strbuf_printf(out, ",\"rows\":%u,\"nodes\":[", v->n_rows);
    for (size_t i = 0; i < v->nodes.n; i++) {
        if (i) strbuf_str(out, ",\n");
        node_json(v, &v->nodes.items[i], out);
    }
    strbuf_str(out, "],\"edges\":[");
    for (size_t i = 0; i < v->edges.n; i++) {
        const struct view_edge *e = &v->edges.items[i];
        strbuf_printf(out, "%s[%u,%u,\"%s\",", i ? ",\n" : "", e->from, e->to, e->kind);
        view_json_string(out, e->label);
        strbuf_printf(out, ",%llu]", (unsigned long long)e->bytes);
    }
    strbuf_str(out, "]}\n");
}

/* ---- difference --------------------------------------------------------------------------- */

/* How often each key has been seen. */
struct tally {
    struct map slots; /* key -> index in counts */
    uint32_t *counts; /* [nodes of the view] */
};

/* Nodes may share a key (empty tasks): the n-th of one view matches the n-th of the other. */
static int nth_key(struct diag *d, struct arena *a, struct tally *t, const char *key, char **out) {
    uint64_t slot;
    TRY(map_put(d, &t->slots, key, strlen(key), t->slots.n, &slot));
    return arena_printf(d, a, out, "%s #%u", key, t->counts[slot]++);
}

/* match[i]: the node of `other` with the key of v's node i; SIZE_MAX: none. */
static int match_nodes(struct diag *d, struct arena *a, const struct view *v,
                       const struct view *other, size_t **match) {
    struct map names = {0};
    struct tally theirs = {0}, ours = {0};
    char *key;
    int rc = ARENA_NEW(d, a, match, v->nodes.n);
    if (rc == QN_OK) rc = ARENA_NEW(d, a, &theirs.counts, other->nodes.n);
    if (rc == QN_OK) rc = ARENA_NEW(d, a, &ours.counts, v->nodes.n);
    for (size_t i = 0; i < other->nodes.n && rc == QN_OK; i++) {
        rc = nth_key(d, a, &theirs, other->nodes.items[i].key, &key);
        if (rc == QN_OK) rc = map_put(d, &names, key, strlen(key), i, NULL);
    }
    for (size_t i = 0; i < v->nodes.n && rc == QN_OK; i++) {
        uint64_t found;
        rc = nth_key(d, a, &ours, v->nodes.items[i].key, &key);
        if (rc == QN_OK)
            (*match)[i] = map_find(&names, key, strlen(key), &found) ? (size_t)found : SIZE_MAX;
    }
    map_fini(&names);
    map_fini(&theirs.slots);
    map_fini(&ours.slots);
    return rc;
}

static const struct view_attr *find_attr(const struct view *v, const struct view_node *n,
                                         const char *name) {
    for (size_t i = 0; i < n->n_attrs; i++)
        if (strcmp(v->attrs.items[n->first_attr + i].name, name) == 0)
            return &v->attrs.items[n->first_attr + i];
    return NULL;
}

static bool same_attr(const struct view_attr *a, const struct view_attr *b) {
    if (!a->text != !b->text) return false;
    return a->text ? strcmp(a->text, b->text) == 0 : a->number == b->number;
}

/* The changes of one node, as in "task 3 -> task 5, worker 0 -> 1"; empty: the same. */
static void changes(const struct view *before, const struct view_node *x, const struct view *after,
                    const struct view_node *y, struct strbuf *out) {
    if (strcmp(x->id, y->id) != 0) strbuf_printf(out, "%s -> %s", x->id, y->id);
    for (size_t i = 0; i < y->n_attrs; i++) {
        const struct view_attr *b = &after->attrs.items[y->first_attr + i];
        const struct view_attr *a = find_attr(before, x, b->name);
        if (a && same_attr(a, b)) continue;
        strbuf_printf(out, "%s%s ", out->n ? ", " : "", b->name);
        if (a) {
            attr_value(a, out);
            strbuf_str(out, " -> ");
        }
        attr_value(b, out);
    }
    for (size_t i = 0; i < x->n_attrs; i++) {
        const struct view_attr *a = &before->attrs.items[x->first_attr + i];
        if (!find_attr(after, y, a->name))
            strbuf_printf(out, "%s%s is gone", out->n ? ", " : "", a->name);
    }
}

static size_t count_kind(const struct view *v, const char *kind) {
    size_t n = 0;
    for (size_t i = 0; i < v->nodes.n; i++) n += strcmp(v->nodes.items[i].kind, kind) == 0;
    return n;
}

/* Calls `on` for every removed node in the order of `before`, then for every added or changed one
 * in that of `after`. */
typedef void diff_fn(struct strbuf *out, char sign, const struct view_node *n, const char *what);

static int diff(struct diag *d, const struct view *before, const struct view *after, diff_fn *on,
                struct strbuf *out) {
    struct arena scratch = {0};
    struct strbuf what = {0};
    size_t *in_after = NULL, *in_before = NULL;
    int rc = match_nodes(d, &scratch, before, after, &in_after);
    if (rc == QN_OK) rc = match_nodes(d, &scratch, after, before, &in_before);
    for (size_t i = 0; i < before->nodes.n && rc == QN_OK; i++)
        if (in_after[i] == SIZE_MAX) on(out, '-', &before->nodes.items[i], "");
    for (size_t i = 0; i < after->nodes.n && rc == QN_OK; i++) {
        const struct view_node *n = &after->nodes.items[i];
        strbuf_clear(&what);
        if (in_before[i] == SIZE_MAX) {
            on(out, '+', n, "");
            continue;
        }
        changes(before, &before->nodes.items[in_before[i]], after, n, &what);
        if (what.n > 0) on(out, '~', n, what.text);
    }
    if (rc == QN_OK) rc = strbuf_status(d, &what);
    strbuf_fini(&what);
    arena_fini(&scratch);
    return rc;
}

static void line(struct strbuf *out, char sign, const struct view_node *n, const char *what) {
    strbuf_printf(out, "%c %s", sign, n->id);
    if (strcmp(n->label, n->id) != 0) strbuf_printf(out, "  %s", n->label);
    if (what[0]) strbuf_printf(out, ": %s", what);
    strbuf_char(out, '\n');
}

static const char *const kinds[] = {"op", "task", "event", "tensor"};

int view_diff_text(struct diag *d, const struct view *before, const struct view *after,
                   struct strbuf *out) {
    strbuf_printf(out, "%s against %s\n", after->title, before->stage);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t a = count_kind(before, kinds[i]), b = count_kind(after, kinds[i]);
        if (a || b) strbuf_printf(out, "  %-7s %zu -> %zu\n", kinds[i], a, b);
    }
    strbuf_printf(out, "  %-7s %zu -> %zu\n", "edges", before->edges.n, after->edges.n);
    TRY(diff(d, before, after, line, out));
    return strbuf_status(d, out);
}

static void object(struct strbuf *out, char sign, const struct view_node *n, const char *what) {
    if (out->n > 0 && out->text[out->n - 1] == '}') strbuf_str(out, ",\n");
    strbuf_printf(out, "{\"change\":\"%s\",\"kind\":\"%s\",\"id\":",
                  sign == '+'   ? "added"
                  : sign == '-' ? "removed"
                                : "changed",
                  n->kind);
    view_json_string(out, n->id);
    strbuf_str(out, ",\"label\":");
    view_json_string(out, n->label);
    strbuf_str(out, ",\"what\":");
    view_json_string(out, what);
    strbuf_char(out, '}');
}

int view_diff_json(struct diag *d, const struct view *before, const struct view *after,
                   struct strbuf *out) {
    strbuf_str(out, "{\"before\":");
    view_json_string(out, before->stage);
    strbuf_str(out, ",\"after\":");
    view_json_string(out, after->stage);
    strbuf_printf(out, ",\"rows\":%u,\"nodes\":[%zu,%zu],\"edges\":[%zu,%zu],\"changes\":[",
                  after->n_rows, before->nodes.n, after->nodes.n, before->edges.n, after->edges.n);
    TRY(diff(d, before, after, object, out));
    strbuf_str(out, "]}\n");
    return strbuf_status(d, out);
}
