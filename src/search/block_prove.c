/* block_prove.c - the normal forms of a block graph's nodes. */
#include "search/block_prove.h"

#include <string.h>

struct prover {
    const struct problem *p;
    const struct block_graph *g;
    form_id form[BLOCK_TASKS][BLOCK_NODES];
    const char *why;
};

/* The dims of the problem that have the names of a task's dims. */
static block_dims dims_of(const struct prover *v, const struct block *b, block_dims dims) {
    block_dims out = 0;
    for (uint32_t i = 0; i < b->n_dims; i++)
        for (uint32_t k = 0; k < v->p->n_dims && (dims >> i & 1) != 0; k++)
            if (strcmp(b->dim[i].name, v->p->dim[k].name) == 0) out |= (block_dims)(1u << k);
    return out;
}

static form_id apply(const struct prover *v, uint32_t op, block_dims use_dims, form_id a,
                     form_id b) {
    const struct block_use use = {.dims = use_dims};
    const form_id operand[BLOCK_MAX_ARITY] = {a, b};
    return form_apply(v->p->forms, (enum block_op)op, &use, operand);
}

/* The form of an input: an earlier task's result, or an input of the problem. */
static form_id form_of_input(const struct prover *v, uint32_t t, uint32_t i) {
    const struct block *b = &v->g->task[t];
    for (uint32_t from = t; from-- > 0;)
        for (uint32_t o = 0; o < v->g->task[from].n_out; o++)
            if (strcmp(v->g->task[from].out[o].name, b->in[i].name) == 0)
                return v->form[from][v->g->task[from].out[o].node];
    for (uint32_t k = 0; k < v->p->n_leaves; k++) {
        const struct problem_leaf *l = &v->p->leaf[k];
        if (l->op == BLOCK_OP_INPUT && strcmp(l->name, b->in[i].name) == 0 &&
            l->dims == dims_of(v, b, b->node[i].dims))
            return l->form;
    }
    return FORM_NONE;
}

static form_id form_of_size(const struct prover *v, block_dims dims) {
    form_id form = form_number(v->p->forms, 1, 1);
    for (; dims != 0; dims &= (block_dims)(dims - 1))
        form =
            apply(v, BLOCK_OP_MUL, 0, form, form_size(v->p->forms, (uint32_t)__builtin_ctz(dims)));
    return form;
}

/* Whether an accumulator adds sums that its loop already made, one per iteration. The operand's
 * normal form is then that of the whole sum. */
static bool sums_partial(const struct block *b, const struct block_node *n) {
    return n->op == BLOCK_OP_ACC_SUM && (b->node[n->a].dims & n->red) == 0;
}

static form_id form_of_node(const struct prover *v, uint32_t t, uint32_t i) {
    const struct block *b = &v->g->task[t];
    const struct block_node *n = &b->node[i];
    const block_dims red = dims_of(v, b, n->red);
    const form_id a = n->a == BLOCK_NONE ? FORM_NONE : v->form[t][n->a];
    const form_id c = n->b == BLOCK_NONE ? FORM_NONE : v->form[t][n->b];
    if (n->op == BLOCK_OP_INPUT) return form_of_input(v, t, i);
    if (n->op == BLOCK_OP_NUMBER) return form_number(v->p->forms, n->numerator, n->denominator);
    if (n->op == BLOCK_OP_SIZE) return form_of_size(v, red);
    if (sums_partial(b, n)) return a;
    if (n->c != BLOCK_NONE) return FORM_NONE;
    return apply(v, n->op, red, a, c);
}

/* The form of the result with a target's name, from the last task with such a result; FORM_NONE:
 * none. */
static form_id find_result(const struct prover *v, const char *name) {
    for (uint32_t t = v->g->n_tasks; t-- > 0;)
        for (uint32_t o = 0; o < v->g->task[t].n_out; o++)
            if (strcmp(v->g->task[t].out[o].name, name) == 0)
                return v->form[t][v->g->task[t].out[o].node];
    return FORM_NONE;
}

int block_prove(struct diag *d, const struct problem *p, const struct block_graph *g, bool *proved,
                const char **why) {
    struct prover v = {.p = p, .g = g};
    for (uint32_t t = 0; t < g->n_tasks; t++)
        for (uint32_t i = 0; i < g->task[t].n_nodes; i++) v.form[t][i] = form_of_node(&v, t, i);
    *proved = true;
    *why = NULL;
    for (uint32_t i = 0; i < p->n_targets; i++) {
        const form_id form = find_result(&v, p->target[i].name);
        if (form != FORM_NONE && form_equal(p->forms, form, p->target[i].form)) continue;
        *proved = false;
        *why = form == FORM_NONE ? "a result has no normal form" : "the normal forms differ";
    }
    return forms_status(d, p->forms);
}
