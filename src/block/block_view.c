/* block_view.c - block graphs as dot, and as a page with a drawing: a band per stage, a box per
 * node. */
#include "block/block.h"

#include "base/checked.h"

#include <string.h>

/* "mm over h", "number 0.5", "x". */
static void label(const struct block *b, uint32_t i, struct strbuf *out) {
    const struct block_node *n = &b->node[i];
    if (n->op == BLOCK_OP_INPUT)
        strbuf_str(out, b->in[i].name);
    else
        strbuf_str(out, block_op_table[n->op].name);
    if (n->op == BLOCK_OP_NUMBER)
        strbuf_printf(out, " %.9g", (double)n->numerator / (double)n->denominator);
    for (uint32_t k = 0; k < b->n_dims; k++)
        if ((n->red >> k & 1) != 0) strbuf_printf(out, " over %s", b->dim[k].name);
}

static void place(const struct block *b, uint32_t i, struct strbuf *out) {
    const struct block_node *n = &b->node[i];
    block_write_dims(b, n->dims, out);
    strbuf_printf(out, " %s %s", block_space_name(n->space), dtype_row(n->dtype)->name);
}

/* The task before `task` with an output of the input's name; BLOCK_NONE: it comes from outside. */
static uint32_t maker(const struct block_graph *g, uint32_t task, uint32_t input, uint32_t *out) {
    for (uint32_t t = task; t-- > 0;)
        for (*out = 0; *out < g->task[t].n_out; ++*out)
            if (strcmp(g->task[t].out[*out].name, g->task[task].in[input].name) == 0) return t;
    return BLOCK_NONE;
}

/* ---- dot ---------------------------------------------------------------------------------- */

static void dot_stage(const struct block_graph *g, uint32_t t, uint32_t stage, struct strbuf *out) {
    const struct block *b = &g->task[t];
    strbuf_printf(out, "    subgraph cluster_%u_%u { label=\"%s\"; style=dashed;\n", t, stage,
                  block_stage_name(stage));
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        if (b->node[i].stage != stage) continue;
        strbuf_printf(out, "      n%u_%u [shape=%s, label=\"", t, i, i < b->n_in ? "note" : "box");
        label(b, i, out);
        strbuf_str(out, "\\n");
        place(b, i, out);
        strbuf_str(out, "\"];\n");
    }
    strbuf_str(out, "    }\n");
}

static void dot_edges(const struct block_graph *g, uint32_t t, struct strbuf *out) {
    const struct block *b = &g->task[t];
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&b->node[i], operand);
        for (uint32_t k = 0; k < n; k++)
            strbuf_printf(out, "  n%u_%u -> n%u_%u;\n", t, operand[k], t, i);
    }
    for (uint32_t i = 0; i < b->n_in; i++) {
        uint32_t o;
        const uint32_t from = maker(g, t, i, &o);
        if (from != BLOCK_NONE)
            strbuf_printf(out, "  n%u_%u -> n%u_%u [style=bold];\n", from,
                          g->task[from].out[o].node, t, i);
    }
    for (uint32_t i = 0; i < b->n_out; i++) {
        strbuf_printf(out, "  o%u_%u [shape=note, label=\"%s\"];\n", t, i, b->out[i].name);
        strbuf_printf(out, "  n%u_%u -> o%u_%u;\n", t, b->out[i].node, t, i);
    }
}

void block_dot(const struct block_graph *g, struct strbuf *out) {
    strbuf_str(out, "digraph quern {\n  rankdir=TB;\n"
                    "  node [fontname=\"Helvetica\", fontsize=10];\n");
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        const struct block *b = &g->task[t];
        uint32_t used = 0;
        strbuf_printf(out, "  subgraph cluster_%u { label=\"task %s\";\n", t, b->name);
        for (uint32_t i = 0; i < b->n_nodes; i++) used |= 1u << b->node[i].stage;
        for (uint32_t s = 0; s < N_STAGES; s++)
            if ((used >> s & 1) != 0) dot_stage(g, t, s, out);
        strbuf_str(out, "  }\n");
    }
    for (uint32_t t = 0; t < g->n_tasks; t++) dot_edges(g, t, out);
    strbuf_str(out, "}\n");
}

/* ---- page --------------------------------------------------------------------------------- */

enum { BOX_W = 168, BOX_H = 40, GAP_X = 22, GAP_Y = 34, PER_ROW = 6, BAND = 26, LEFT = 90 };

struct point {
    uint32_t x, y; /* of a box's upper left corner */
};

/* Places the boxes of a task; returns the height. band: where each stage begins. */
static uint32_t lay_out(const struct block *b, struct point at[BLOCK_NODES],
                        uint32_t band[N_STAGES]) {
    uint32_t y = 0;
    for (uint32_t s = 0; s < N_STAGES; s++) {
        uint32_t n = 0;
        band[s] = y;
        for (uint32_t i = 0; i < b->n_nodes; i++) {
            if (b->node[i].stage != s) continue;
            at[i] = (struct point){LEFT + n % PER_ROW * (BOX_W + GAP_X),
                                   y + BAND / 2 + n / PER_ROW * (BOX_H + GAP_Y)};
            n++;
        }
        if (n > 0) y += BAND + CEIL_DIV(n, PER_ROW) * (BOX_H + GAP_Y);
    }
    return y;
}

static void svg_edge(struct point from, struct point to, struct strbuf *out) {
    const uint32_t x0 = from.x + BOX_W / 2, y0 = from.y + BOX_H, x1 = to.x + BOX_W / 2, y1 = to.y;
    strbuf_printf(out, "<path d=\"M%u %u C%u %u %u %u %u %u\"/>\n", x0, y0, x0, y0 + GAP_Y / 2, x1,
                  y1 > GAP_Y / 2 ? y1 - GAP_Y / 2 : 0, x1, y1);
}

static void svg_box(const struct block *b, uint32_t i, struct point at, struct strbuf *out) {
    bool written = false;
    for (uint32_t o = 0; o < b->n_out; o++) written |= b->out[o].node == i;
    strbuf_printf(out, "<g><rect class=\"%s\" x=\"%u\" y=\"%u\" width=\"%d\" height=\"%d\"/>",
                  i < b->n_in ? "in"
                  : written   ? "out"
                              : "op",
                  at.x, at.y, BOX_W, BOX_H);
    strbuf_printf(out, "<text x=\"%u\" y=\"%u\">%%%u ", at.x + 6, at.y + 16, i);
    label(b, i, out);
    strbuf_printf(out, "</text><text class=\"dim\" x=\"%u\" y=\"%u\">", at.x + 6, at.y + 32);
    place(b, i, out);
    strbuf_str(out, "</text></g>\n");
}

static void svg(const struct block *b, struct strbuf *out) {
    struct point at[BLOCK_NODES];
    uint32_t band[N_STAGES];
    const uint32_t height = lay_out(b, at, band);
    strbuf_printf(out, "<svg width=\"%d\" height=\"%u\">\n", LEFT + PER_ROW * (BOX_W + GAP_X),
                  height);
    for (uint32_t s = 0; s < N_STAGES; s++) {
        const uint32_t end = s + 1 < N_STAGES ? band[s + 1] : height;
        if (end > band[s])
            strbuf_printf(out, "<text class=\"stage\" x=\"4\" y=\"%u\">%s</text>\n", band[s] + BAND,
                          block_stage_name(s));
    }
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&b->node[i], operand);
        for (uint32_t k = 0; k < n; k++) svg_edge(at[operand[k]], at[i], out);
    }
    for (uint32_t i = 0; i < b->n_nodes; i++) svg_box(b, i, at[i], out);
    strbuf_str(out, "</svg>\n");
}

static void dims_table(const struct block *b, struct strbuf *out) {
    strbuf_str(out, "<table><tr><th>dim</th><th>role</th><th>size</th><th>tile</th></tr>\n");
    for (uint32_t i = 0; i < b->n_dims; i++) {
        const struct block_dim *d = &b->dim[i];
        strbuf_printf(out, "<tr><td>%s</td><td>%s</td><td>", d->name, block_role_name(d->role));
        if (d->size == 0)
            strbuf_str(out, "at run time");
        else
            strbuf_printf(out, "%u", d->size);
        strbuf_printf(out, "</td><td>%u</td></tr>\n", d->tile);
    }
    strbuf_str(out, "</table>\n");
}

void block_html(const struct block_graph *g, struct strbuf *out) {
    strbuf_str(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                    "<title>quern: block graph</title>\n<style>\n"
                    "body{font:14px sans-serif;margin:24px}table{border-collapse:collapse}\n"
                    "td,th{border:1px solid #bbb;padding:2px 8px;text-align:left}\n"
                    "rect{fill:#fff;stroke:#444}rect.in{fill:#e8f0fa}rect.out{fill:#e6f5e6}\n"
                    "path{fill:none;stroke:#888}text{font:12px monospace}text.dim{fill:#666}\n"
                    "text.stage{font-weight:bold}\n</style></head><body>\n");
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        strbuf_printf(out, "<h2>task %s</h2>\n", g->task[t].name);
        dims_table(&g->task[t], out);
        svg(&g->task[t], out);
    }
    strbuf_str(out, "<h2>text</h2>\n<pre>");
    block_write(g, out);
    strbuf_str(out, "</pre>\n</body></html>\n");
}
