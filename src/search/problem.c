/* problem.c - leaves, targets, sizes and operators of an expression. */
#include "search/problem.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Default sizes for the cost model. */
enum {
    SIZE_HEAD = 128,       /* of the last dim of a state */
    SIZE_HEADS = 8,        /* of its other dims that activations also have */
    SIZE_POSITIONS = 4096, /* of its dims that no activation has */
    SIZE_WEIGHT = 4096,    /* of a dim of a weight */
    SIZE_REDUCED = 4096,   /* of a summed dim that only activations have */
    SHARES = 32,           /* pieces of a dim whose size is known at run time only */
    PARTS = 8,             /* pieces of another dim */
};

struct maker {
    struct diag *d;
    const struct expr *x;
    const struct problem_sizes *sizes;
    struct problem *p;
    uint32_t map[BLOCK_MAX_DIMS]; /* of the expression -> bits of the problem */
    bool needed[EXPR_MAX_NODES];
    bool absent[EXPR_MAX_ARGS]; /* a constant whose number is known */
};

/* ---- sizes ---- */

int problem_sizes_parse(struct diag *d, const char *text, struct problem_sizes *out) {
    out->n = 0;
    while (*text != '\0') {
        const char *equals = strchr(text, '=');
        char *end;
        if (out->n == BLOCK_DIMS || equals == NULL || equals == text ||
            (size_t)(equals - text) >= BLOCK_NAME)
            return fail(d, QN_EINVAL, "sizes: want NAME=NUMBER,..., have '%.40s'", text);
        struct problem_size *s = &out->at[out->n++];
        memset(s->name, 0, sizeof s->name);
        memcpy(s->name, text, (size_t)(equals - text));
        const unsigned long long size = strtoull(equals + 1, &end, 10);
        if (end == equals + 1 || size == 0 || size > BLOCK_MAX_SIZE ||
            (*end != ',' && *end != '\0'))
            return fail(d, QN_EINVAL, "sizes: %s: want a number from 1 to %d", s->name,
                        BLOCK_MAX_SIZE);
        s->size = (uint32_t)size;
        text = *end == ',' ? end + 1 : end;
    }
    return QN_OK;
}

/* Kinds of the arguments that have the dim, bits. */
static uint32_t kinds_with(const struct maker *m, uint32_t dim) {
    uint32_t kinds = 0;
    for (uint32_t i = 0; i < m->x->n_args; i++)
        for (uint32_t k = 0; k < m->x->args[i].n_dims; k++)
            if (m->x->args[i].dims[k] == dim) kinds |= 1u << m->x->args[i].kind;
    return kinds;
}

static bool is_reduced(const struct maker *m, uint32_t dim) {
    for (uint32_t i = 0; i < m->x->n_nodes; i++)
        if (m->needed[i] && m->x->nodes[i].op != BLOCK_OP_SIZE &&
            (m->x->nodes[i].use.dims >> dim & 1) != 0)
            return true;
    return false;
}

/* Whether the dim is the last one of a state: its indices are elements of a head. */
static bool is_head(const struct maker *m, uint32_t dim) {
    for (uint32_t i = 0; i < m->x->n_args; i++) {
        const struct expr_arg *a = &m->x->args[i];
        if (a->kind == EXPR_STATE && a->n_dims > 0 && a->dims[a->n_dims - 1] == dim) return true;
    }
    return false;
}

static void set_size(const struct maker *m, uint32_t dim, struct problem_dim *out) {
    const uint32_t kinds = kinds_with(m, dim);
    const bool state = (kinds >> EXPR_STATE & 1) != 0, act = (kinds >> EXPR_ACT & 1) != 0;
    out->size = 1;
    if (state)
        out->size = is_head(m, dim) ? SIZE_HEAD : act ? SIZE_HEADS : SIZE_POSITIONS;
    else if ((kinds >> EXPR_WEIGHT & 1) != 0)
        out->size = SIZE_WEIGHT;
    else if (is_reduced(m, dim))
        out->size = SIZE_REDUCED;
    out->at_run_time = out->size == 1 || (state && !act && !is_head(m, dim));
    for (uint32_t i = 0; i < m->sizes->n; i++)
        if (strcmp(m->sizes->at[i].name, out->name) == 0) {
            out->size = m->sizes->at[i].size;
            out->at_run_time = false;
        }
}

/* ---- dims ---- */

static int add_dim(struct maker *m, const char *name, const char *parent,
                   struct problem_dim **out) {
    struct problem *p = m->p;
    if (p->n_dims == BLOCK_DIMS)
        return fail(m->d, QN_ELIMIT, "%s: more than %d dims", m->x->name, BLOCK_DIMS);
    *out = &p->dim[p->n_dims++];
    **out = (struct problem_dim){0};
    snprintf((*out)->name, BLOCK_NAME, "%s", name);
    snprintf((*out)->parent, BLOCK_NAME, "%s", parent);
    return QN_OK;
}

/* Splits d into d_p pieces of d_q indices. */
static int add_split_dim(struct maker *m, uint32_t i) {
    const char *name = m->x->dims[i].name;
    char part[EXPR_NAME + 2];
    struct problem_dim whole = {0}, *q, *piece;
    snprintf(whole.name, BLOCK_NAME, "%s", name);
    set_size(m, i, &whole);
    if (m->x->dims[i].halved || strlen(name) + 2 >= BLOCK_NAME)
        return fail(m->d, QN_EUNSUPPORTED, "%s: dim %s cannot be split", m->x->name, name);
    snprintf(part, sizeof part, "%s_q", name);
    TRY(add_dim(m, part, name, &q));
    snprintf(part, sizeof part, "%s_p", name);
    TRY(add_dim(m, part, name, &piece));
    piece->size = MIN(whole.at_run_time ? SHARES : PARTS, whole.size);
    q->size = CEIL_DIV(whole.size, piece->size);
    q->at_run_time = whole.at_run_time;
    q->rest = piece->piece = true;
    m->map[i] = 3u << (m->p->n_dims - 2);
    return QN_OK;
}

static int add_dims(struct maker *m, uint8_t split) {
    for (uint32_t i = 0; i < m->x->n_dims; i++) {
        struct problem_dim *dim;
        if (i == split) {
            TRY(add_split_dim(m, i));
            continue;
        }
        m->map[i] = 1u << m->p->n_dims;
        TRY(add_dim(m, m->x->dims[i].name, "", &dim));
        dim->halved = m->x->dims[i].halved;
        set_size(m, i, dim);
    }
    return QN_OK;
}

static block_dims mapped(const struct maker *m, uint32_t dims) {
    block_dims out = 0;
    for (; dims != 0; dims &= dims - 1) out |= (block_dims)m->map[__builtin_ctz(dims)];
    return out;
}

/* ---- leaves ---- */

static int add_leaf(struct maker *m, struct problem_leaf leaf) {
    if (m->p->n_leaves == PROBLEM_LEAVES)
        return fail(m->d, QN_ELIMIT, "%s: more than %d arguments and numbers", m->x->name,
                    PROBLEM_LEAVES);
    m->p->leaf[m->p->n_leaves++] = leaf;
    return QN_OK;
}

static int add_input(struct maker *m, uint32_t i, form_id *form) {
    const struct expr_arg *a = &m->x->args[i];
    struct problem_leaf leaf = {.op = BLOCK_OP_INPUT, .kind = a->kind};
    uint8_t dims[BLOCK_DIMS];
    uint32_t n = 0;
    *form = FORM_NONE;
    if (m->absent[i] || !a->used) return QN_OK;
    if (a->kind >= EXPR_SHARE)
        return fail(m->d, QN_EUNSUPPORTED, "%s: argument %s: the search does not know the kind %s",
                    m->x->name, a->name, expr_kind_name((enum expr_kind)a->kind));
    for (uint32_t k = 0; k < a->n_dims; k++)
        for (uint32_t bits = m->map[a->dims[k]]; bits != 0 && n < BLOCK_DIMS; bits &= bits - 1) {
            dims[n++] = (uint8_t)__builtin_ctz(bits);
            leaf.dims |= (block_dims)(bits & -bits);
        }
    if (n > FORM_INPUT_DIMS)
        return fail(m->d, QN_ELIMIT, "%s: argument %s: more than %d dims", m->x->name, a->name,
                    FORM_INPUT_DIMS);
    snprintf(leaf.name, BLOCK_NAME, "%s", a->name);
    leaf.form = *form =
        form_input(m->p->forms, i, expr_form_kind((enum expr_kind)a->kind), dims, n);
    return add_leaf(m, leaf);
}

static int add_number(struct maker *m, int64_t numerator, int64_t denominator) {
    const form_id form = form_number(m->p->forms, numerator, denominator);
    for (uint32_t i = 0; i < m->p->n_leaves; i++)
        if (m->p->leaf[i].form == form) return QN_OK;
    return add_leaf(m, (struct problem_leaf){.op = BLOCK_OP_NUMBER,
                                             .kind = EXPR_CONST,
                                             .numerator = numerator,
                                             .denominator = denominator,
                                             .form = form});
}

static int add_size(struct maker *m, uint32_t dims) {
    struct problem_leaf leaf = {.op = BLOCK_OP_SIZE, .kind = EXPR_CONST, .use = mapped(m, dims)};
    leaf.form = form_number(m->p->forms, 1, 1);
    for (uint32_t bits = leaf.use; bits != 0; bits &= bits - 1) {
        const form_id operand[BLOCK_MAX_ARITY] = {
            leaf.form, form_size(m->p->forms, (uint32_t)__builtin_ctz(bits))};
        leaf.form = form_apply(m->p->forms, BLOCK_OP_MUL, NULL, operand);
    }
    for (uint32_t i = 0; i < m->p->n_leaves; i++)
        if (m->p->leaf[i].form == leaf.form) return QN_OK;
    return add_leaf(m, leaf);
}

/* Adds the numbers and sizes of the expression. */
static int add_numbers(struct maker *m) {
    for (uint32_t i = 0; i < m->x->n_nodes; i++) {
        const struct expr_node *n = &m->x->nodes[i];
        if (!m->needed[i]) continue;
        if (n->op == BLOCK_OP_NUMBER) TRY(add_number(m, n->num, n->den));
        if (n->op == BLOCK_OP_SIZE) TRY(add_size(m, n->use.dims));
    }
    return QN_OK;
}

/* ---- operators ---- */

_Static_assert(N_BLOCK_OPS <= 64, "sets of operators are bits of 64");
#define BIT(op) (UINT64_C(1) << BLOCK_OP_##op)

/* The operators that the search may use because the expression has this one; 0: the search does not
 * know it. A mask of a sum becomes a factor. */
static uint64_t ops_for(const struct expr_node *n) {
    switch (n->op) {
    case BLOCK_OP_NUMBER:
    case BLOCK_OP_INPUT:
    case BLOCK_OP_SIZE:
    case BLOCK_OP_GIVEN: /* arguments are present */
    case BLOCK_OP_CAST16: return BIT(CAST16);
    case BLOCK_OP_SELECT:
    case BLOCK_OP_PICK:
    case BLOCK_OP_WHICH:
    case BLOCK_OP_CHOOSE: return 0;
    case BLOCK_OP_MEAN: return BIT(MEAN) | BIT(SUM) | BIT(MUL);
    case BLOCK_OP_SUM: return BIT(SUM) | BIT(MUL);
    case BLOCK_OP_MAX_OVER: return n->in[1] == EXPR_NO_NODE ? BIT(MAX_OVER) : 0;
    case BLOCK_OP_CLAMP: return BIT(MAX) | BIT(MIN);
    case BLOCK_OP_MUL: return BIT(MUL) | (n->in[0] == n->in[1] ? BIT(SQUARE) : 0);
    case BLOCK_OP_SIGMOID: return BIT(SIGMOID) | BIT(SILU);
    default: return UINT64_C(1) << n->op;
    }
}

/* A mean may become a sum that is divided later, but a sum does not become a mean. */
static void add_reduced(struct problem *p, uint32_t op, block_dims dims) {
    p->reduced |= dims;
    p->over[op] |= dims;
    if (op == BLOCK_OP_MEAN) p->over[BLOCK_OP_SUM] |= dims;
}

static int find_ops(struct maker *m) {
    struct problem *p = m->p;
    for (uint32_t i = 0; i < m->x->n_nodes; i++) {
        const struct expr_node *n = &m->x->nodes[i];
        if (!m->needed[i]) continue;
        const uint64_t ops = ops_for(n);
        if (ops == 0)
            return fail(m->d, QN_EUNSUPPORTED, "%s: line %u: the search does not know %s%s",
                        m->x->name, n->line, block_op_table[n->op].name,
                        n->op == BLOCK_OP_MAX_OVER ? " with a mask" : "");
        p->ops |= ops;
        if (n->op == BLOCK_OP_SWAP) p->over[n->op] |= mapped(m, n->use.dims);
        if (block_op_uses_dims(n->op) && n->op != BLOCK_OP_SIZE && n->op != BLOCK_OP_SWAP)
            add_reduced(p, n->op, mapped(m, n->use.dims));
    }
    if ((p->ops & BIT(SQRT)) != 0 && (p->ops & BIT(DIV)) != 0) p->ops |= BIT(RSQRT);
    p->ops &= ~BIT(CAST16);
    return QN_OK;
}

/* ---- all together ---- */

static void find_needed(struct maker *m) {
    uint32_t absent = 0;
    for (uint32_t i = 0; i < m->x->n_args; i++) {
        const struct expr_arg *a = &m->x->args[i];
        m->absent[i] = a->kind == EXPR_CONST && a->fallback != EXPR_NO_NODE;
        if (m->absent[i]) absent |= 1u << i;
    }
    for (uint32_t i = 0; i < m->x->n_out; i++)
        expr_needed(m->x, m->x->out[i].node, absent, m->needed);
}

static void add_step(struct problem *p, form_id form, block_dims dims) {
    if (form == FORM_NONE || p->n_steps == PROBLEM_STEPS) return;
    p->step[p->n_steps].form = form;
    p->step[p->n_steps++].dims = dims;
}

/* The value between the two operators that replace one: max in clamp, a mask as a factor. */
static void add_half_step(struct maker *m, uint32_t i, const form_id *forms) {
    const struct expr_node *n = &m->x->nodes[i];
    const bool clamps = n->op == BLOCK_OP_CLAMP;
    if (!clamps && (n->op != BLOCK_OP_SUM || n->in[1] == EXPR_NO_NODE)) return;
    const form_id operand[BLOCK_MAX_ARITY] = {forms[n->in[0]], forms[n->in[1]]};
    const uint32_t dims = m->x->nodes[n->in[0]].dims | m->x->nodes[n->in[1]].dims;
    add_step(m->p, form_apply(m->p->forms, clamps ? BLOCK_OP_MAX : BLOCK_OP_MUL, NULL, operand),
             mapped(m, dims));
}

static void add_steps(struct maker *m, const form_id *forms) {
    struct problem *p = m->p;
    for (uint32_t i = 0; i < m->x->n_nodes; i++) {
        if (!m->needed[i] || forms[i] == FORM_NONE) continue;
        add_step(p, forms[i], mapped(m, m->x->nodes[i].dims));
        add_half_step(m, i, forms);
    }
}

static int add_targets(struct maker *m, const form_id *forms) {
    struct problem *p = m->p;
    if (m->x->n_out > BLOCK_OUT)
        return fail(m->d, QN_ELIMIT, "%s: more than %d outputs", m->x->name, BLOCK_OUT);
    for (uint32_t i = 0; i < m->x->n_out; i++) {
        const struct expr_out *o = &m->x->out[i];
        struct problem_target *t = &p->target[p->n_targets++];
        *t = (struct problem_target){.form = forms[o->node],
                                     .dims = mapped(m, m->x->nodes[o->node].dims)};
        snprintf(t->name, BLOCK_NAME, "%s", o->name);
        if (t->form == FORM_NONE)
            return fail(m->d, QN_EUNSUPPORTED, "%s: output %s has no normal form", m->x->name,
                        o->name);
        p->expr = p->expr * 0x9e3779b97f4a7c15u + form_hash(p->forms, t->form);
    }
    return QN_OK;
}

int problem_make(struct diag *d, const struct expr *x, const struct problem_sizes *sizes,
                 uint8_t split, struct forms *forms, struct problem *out) {
    struct maker m = {.d = d, .x = x, .sizes = sizes, .p = out};
    form_id args[EXPR_MAX_ARGS], of_node[EXPR_MAX_NODES];
    *out = (struct problem){.forms = forms};
    snprintf(out->name, BLOCK_NAME, "%s", x->name);
    find_needed(&m);
    TRY(add_dims(&m, split));
    for (uint32_t i = 0; i < x->n_args; i++) TRY(add_input(&m, i, &args[i]));
    TRY(add_numbers(&m));
    TRY(find_ops(&m));
    expr_forms(forms, x, args, m.map, of_node);
    add_steps(&m, of_node);
    TRY(add_targets(&m, of_node));
    return forms_status(d, forms);
}
