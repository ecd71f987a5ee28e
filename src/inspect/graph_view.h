/* graph_view.h - any stage of the compiler as nodes and edges, for people and for programs.
 *
 * A builder makes a view from a kernel graph or a task graph. A writer, which knows nothing about
 * stages, turns it into text, dot or JSON. Two views of neighbouring stages can be compared. The
 * view's arena owns its texts.
 *
 *   kernel        nodes are operators; edges are tensors, with shape and bytes
 *   decompose     nodes are tasks and activations; edges are the regions written and read
 *   memory_plan   as decompose; activations have their place in the workspace
 *   depend        nodes are tasks; an edge is a dependency with the region that makes it one
 *   event_fuse    nodes are tasks and events; edges are triggers (with what is written) and waits
 *   and later     (with what is read)
 *   events        nodes are events; an edge is all tasks of one operator between two of them
 */
#ifndef QN_INSPECT_GRAPH_VIEW_H
#define QN_INSPECT_GRAPH_VIEW_H

#include "task/task_graph.h"

enum { VIEW_ALL_LAYERS = -1, VIEW_MAX_EDGES = 1 << 21 };

struct view_attr {
    const char *name;
    const char *text; /* NULL: a number */
    uint64_t number;
};

struct view_node {
    const char *id;    /* "task 17" as in the stage */
    const char *key;   /* the same in every stage where the thing exists */
    const char *kind;  /* "op", "task", "event", "tensor" */
    const char *op;    /* operator's name; "" for events and tensors */
    const char *label; /* "qkv L3 rows 0-1 units 4-8" */
    int layer;         /* -1: outside the layers */
    bool outside;      /* not of the wanted layer, only a neighbour */
    size_t first_attr, n_attrs;
};

struct view_edge {
    uint32_t from, to; /* nodes */
    const char *kind; /* "data", "write", "read", "RAW", "WAR", "WAW", "trigger", "wait", "tasks" */
    const char *label;
    uint64_t bytes;
};

struct view {
    struct arena arena;
    const char *title, *stage;
    uint32_t n_rows;
    ARRAY(struct view_node) nodes;
    ARRAY(struct view_edge) edges;
    ARRAY(struct view_attr) attrs;
};

/* The layer to show, and the numbers of its tasks and events: first_task and first_event are added
 * to the graph's own, because a program counts through all its variants. */
struct view_scope {
    int layer; /* shows it and its neighbours; or VIEW_ALL_LAYERS */
    uint32_t first_task, first_event;
};

/* The builders fill an empty view. Errors: QN_ENOMEM; QN_ELIMIT when there are more than
 * VIEW_MAX_EDGES edges. */
int view_kernel(struct diag *d, const struct kgraph *k, const struct view_scope *scope,
                struct view *v);
int view_tasks(struct diag *d, const struct tgraph *g, enum task_stage stage,
               const struct view_scope *scope, struct view *v);
/* For stages from normalize on. */
int view_events(struct diag *d, const struct tgraph *g, const struct view_scope *scope,
                struct view *v);
void view_fini(struct view *v);

/* One line per node and one, indented, per edge that leaves it. */
void view_text(const struct view *v, struct strbuf *out);
void view_dot(const struct view *v, struct strbuf *out);
/* {"title", "stage", "rows", "nodes": [{"id", "kind", "op", "label", "layer", "outside", "attrs":
 * {..}}], "edges": [[from, to, kind, label, bytes]]} */
void view_json(const struct view *v, struct strbuf *out);

/* Writes what changed from one view to the next, by node key: totals, then a line per node that was
 * added (+), removed (-) or changed (~). Errors: QN_ENOMEM. */
int view_diff_text(struct diag *d, const struct view *before, const struct view *after,
                   struct strbuf *out);
int view_diff_json(struct diag *d, const struct view *before, const struct view *after,
                   struct strbuf *out);

/* "0.linear.y#2": tensors that share a name are numbered from the second on. */
void view_tensor_name(const struct kgraph *k, int32_t tensor, struct strbuf *out);
/* "0.qkv.q rows 0-1 columns 0-64" */
void view_region(const struct kgraph *k, const struct region *r, struct strbuf *out);
/* For a state tensor: the bytes of one iteration's rows, whose columns are keys and values of
 * attrs.D elements. */
uint64_t view_tensor_bytes(const struct kgraph *k, int32_t tensor);
uint64_t view_region_bytes(const struct kgraph *k, const struct region *r);
/* "qkv L3 rows 0-1 units 4-8" */
void view_task_label(const struct kgraph *k, const struct task *t, struct strbuf *out);

/* Appends a JSON string, quoted and escaped. */
void view_json_string(struct strbuf *out, const char *text);

#endif
