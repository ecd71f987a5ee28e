/* staged.c - which values a skeleton's task can compute, in which stages. */
#include "search/staged.h"

#include "base/checked.h"

#include <string.h>

enum { N_NO_STAGE = N_STAGES };

struct stager {
    struct diag *d;
    struct staged *g;
    uint16_t *node_of; /* [class][stage], STAGED_NONE */
    bool grew;
};

/* ---- stages ---- */

/* The stage of an elementwise operator on values of stages a and b; N_NO_STAGE: not possible. */
static uint32_t stage_together(uint32_t a, uint32_t b) {
    const uint32_t low = MIN(a, b), high = MAX(a, b);
    return low != high && block_stage_loops(low) ? N_NO_STAGE : high;
}

/* The stage of a reduction's result. */
static uint32_t stage_reduced(const struct skeleton *k, uint32_t stage, block_dims red) {
    const uint8_t loop = stage == STAGE_LOOP    ? k->loop
                         : stage == STAGE_LOOP2 ? k->loop2
                                                : BLOCK_NONE;
    if ((red & k->grid) != 0) return N_NO_STAGE;
    if (loop == BLOCK_NONE || red != (block_dims)(1u << loop)) return stage;
    return stage == STAGE_LOOP && k->loop2 != BLOCK_NONE ? STAGE_BETWEEN : STAGE_AFTER;
}

/* ---- nodes and edges ---- */

static int node(struct stager *s, uint16_t class, uint32_t stage, uint16_t *out) {
    uint16_t *slot = &s->node_of[class * N_STAGES + stage];
    if (*slot == STAGED_NONE) {
        if (s->g->nodes.n >= STAGED_NONE)
            return fail(s->d, QN_ELIMIT, "%s: more than %d values in stages", s->g->p->name,
                        STAGED_NONE);
        *slot = (uint16_t)s->g->nodes.n;
        TRY(ARRAY_PUSH(s->d, &s->g->nodes, (struct staged_node){class, (uint8_t)stage, 0, 0}));
        s->grew = true;
    }
    *out = *slot;
    return QN_OK;
}

static int add_edge(struct stager *s, uint16_t class, uint32_t stage, struct staged_edge e) {
    TRY(node(s, class, stage, &e.to));
    return ARRAY_PUSH(s->d, &s->g->edges, e);
}

static int add_sources(struct stager *s) {
    const struct sources *sources = s->g->sources;
    for (uint32_t i = 0; i < sources->n; i++) {
        const uint32_t stages = skeleton_stages(s->g->k, sources, i);
        for (uint32_t stage = 0; stage < N_STAGES; stage++) {
            if ((stages >> stage & 1) == 0) continue;
            const struct source *from = &sources->at[i];
            TRY(add_edge(s, from->class, stage,
                         (struct staged_edge){.cost = cycles_source(&s->g->shape, from, stage),
                                              .a = STAGED_NONE,
                                              .b = STAGED_NONE,
                                              .op = BLOCK_OP_INPUT,
                                              .source = (uint16_t)i}));
        }
    }
    return QN_OK;
}

/* The stages in which a class has nodes, bits. */
static uint32_t stages_of(const struct stager *s, uint16_t class) {
    uint32_t bits = 0;
    for (uint32_t stage = 0; stage < N_STAGES; stage++)
        if (s->node_of[class * N_STAGES + stage] != STAGED_NONE) bits |= 1u << stage;
    return bits;
}

/* One way of computing class `to`: an operator on a and b (if has_b), then perhaps a reduction. */
struct way {
    uint8_t op;
    bool has_b, product;
    uint16_t a, b, to;
    block_dims dims, red; /* dims that it iterates over; dims that it removes */
};

static int add_way_in(struct stager *s, const struct way *w, uint32_t sa, uint32_t sb) {
    const uint32_t in = stage_together(sa, sb);
    const uint32_t stage = in == N_NO_STAGE ? N_NO_STAGE : stage_reduced(s->g->k, in, w->red);
    if (stage == N_NO_STAGE) return QN_OK;
    return add_edge(
        s, w->to, stage,
        (struct staged_edge){
            .cost = cycles_operator(&s->g->shape, w->op, w->dims, w->red, w->product, in),
            .a = s->node_of[w->a * N_STAGES + sa],
            .b = w->has_b ? s->node_of[w->b * N_STAGES + sb] : STAGED_NONE,
            .op = w->op,
            .product = w->product,
            .red = w->red});
}

static int add_way(struct stager *s, const struct way *w) {
    const uint32_t of_a = stages_of(s, w->a), of_b = w->has_b ? stages_of(s, w->b) : 0;
    for (uint32_t sa = 0; sa < N_STAGES; sa++) {
        if ((of_a >> sa & 1) == 0) continue;
        if (!w->has_b) TRY(add_way_in(s, w, sa, sa));
        for (uint32_t sb = 0; sb < N_STAGES; sb++)
            if ((of_b >> sb & 1) != 0) TRY(add_way_in(s, w, sa, sb));
    }
    return QN_OK;
}

static block_dims dims_of(const struct stager *s, uint16_t class) {
    return s->g->s->classes.items[class].dims;
}

static int add_application(struct stager *s, const struct application *x) {
    const block_dims of_b = x->has_b ? dims_of(s, x->b) : 0;
    const struct way w = {.op = x->op,
                          .has_b = x->has_b,
                          .a = x->a,
                          .b = x->b,
                          .to = x->to,
                          .dims = dims_of(s, x->a) | of_b,
                          .red = x->red};
    return add_way(s, &w);
}

/* Adds a sum over the product that m computes, as one edge. */
static int add_product(struct stager *s, const struct application *sum,
                       const struct application *m) {
    const struct way w = {.op = sum->op,
                          .has_b = true,
                          .product = true,
                          .a = m->a,
                          .b = m->b,
                          .to = sum->to,
                          .dims = dims_of(s, m->a) | dims_of(s, m->b),
                          .red = sum->red};
    return add_way(s, &w);
}

/* Adds all edges between existing nodes, which may add nodes. */
static int add_all(struct stager *s) {
    const struct saturation *sat = s->g->s;
    for (size_t i = 0; i < sat->applications.n; i++) {
        const struct application *x = &sat->applications.items[i];
        TRY(add_application(s, x));
        if (x->op != BLOCK_OP_SUM && x->op != BLOCK_OP_MEAN) continue;
        for (uint32_t m = sat->muls_of[x->a]; m != SATURATE_NO_MUL; m = sat->next_mul.items[m])
            TRY(add_product(s, x, &sat->applications.items[m]));
    }
    return QN_OK;
}

static int compare_edges(const void *a, const void *b) {
    const struct staged_edge *x = a, *y = b;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    if (x->cost != y->cost) return x->cost < y->cost ? -1 : 1;
    return memcmp(x, y, sizeof *x);
}

static void group_edges(struct staged *g) {
    if (g->edges.n == 0) return;
    qsort(g->edges.items, g->edges.n, sizeof *g->edges.items, compare_edges);
    for (size_t i = g->edges.n; i-- > 0;) {
        struct staged_node *n = &g->nodes.items[g->edges.items[i].to];
        n->first = (uint32_t)i;
        n->n++;
    }
}

int staged_make(struct diag *d, const struct problem *p, const struct saturation *s,
                const struct sources *sources, const struct skeleton *k, struct staged *out) {
    struct stager st = {.d = d, .g = out, .grew = true};
    const size_t slots = s->classes.n * N_STAGES;
    int rc = QN_OK;
    *out = (struct staged){.p = p, .s = s, .sources = sources, .k = k};
    task_shape_make(p, sources, k, &out->shape);
    st.node_of = malloc(slots * sizeof *st.node_of);
    if (st.node_of == NULL) return fail_nomem(d, slots * sizeof *st.node_of, "values in stages");
    for (size_t i = 0; i < slots; i++) st.node_of[i] = STAGED_NONE;
    while (rc == QN_OK && st.grew) {
        st.grew = false;
        out->edges.n = 0;
        rc = add_sources(&st);
        if (rc == QN_OK) rc = add_all(&st);
    }
    free(st.node_of);
    if (rc == QN_OK) group_edges(out);
    if (rc != QN_OK) staged_fini(out);
    return rc;
}

void staged_fini(struct staged *g) {
    ARRAY_FINI(&g->nodes);
    ARRAY_FINI(&g->edges);
}

uint32_t staged_result_stages(const struct staged *g, block_dims dims) {
    const struct skeleton *k = g->k;
    uint32_t stages =
        1u << STAGE_EARLY | 1u << STAGE_BEFORE | 1u << STAGE_BETWEEN | 1u << STAGE_AFTER;
    if ((k->grid & (block_dims)~dims) != 0) return 0;
    if (k->loop != BLOCK_NONE && (dims >> k->loop & 1) != 0) stages |= 1u << STAGE_LOOP;
    if (k->loop2 != BLOCK_NONE && (dims >> k->loop2 & 1) != 0) stages |= 1u << STAGE_LOOP2;
    return stages;
}
