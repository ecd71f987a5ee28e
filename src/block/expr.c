/* expr.c - see expr.h. */
#include "block/expr.h"

#include <string.h>

static const struct {
    const char *name;
    enum form_input_kind form;
} kinds[N_EXPR_KINDS] = {
    [EXPR_ACT] = {"act", FORM_REAL},       [EXPR_VEC] = {"vec", FORM_REAL},
    [EXPR_WEIGHT] = {"weight", FORM_REAL}, [EXPR_CONST] = {"const", FORM_REAL},
    [EXPR_STATE] = {"state", FORM_REAL},   [EXPR_MASK] = {"mask", FORM_MASK},
    [EXPR_SHARE] = {"share", FORM_SHARE},  [EXPR_INDEX] = {"index", FORM_INDEX},
    [EXPR_ORDER] = {"order", FORM_ORDER},
};

const char *expr_kind_name(enum expr_kind kind) {
    return kinds[kind].name;
}

enum form_input_kind expr_form_kind(enum expr_kind kind) {
    return kinds[kind].form;
}

int expr_find_arg(const struct expr *x, const char *name) {
    for (uint32_t i = 0; i < x->n_args; i++)
        if (strcmp(x->args[i].name, name) == 0) return (int)i;
    return -1;
}

int expr_find_out(const struct expr *x, const char *name) {
    for (uint32_t i = 0; i < x->n_out; i++)
        if (strcmp(x->out[i].name, name) == 0) return (int)i;
    return -1;
}

bool expr_has(const struct expr *x, enum block_op op) {
    for (uint32_t i = 0; i < x->n_nodes; i++)
        if (x->nodes[i].op == op) return true;
    return false;
}

/* ---- forms ---- */

form_id expr_arg_form(struct forms *f, const struct expr *x, uint32_t arg, uint32_t tensor) {
    const struct expr_arg *a = &x->args[arg];
    return form_input(f, tensor, kinds[a->kind].form, a->dims, a->n_dims);
}

static uint32_t mapped(uint32_t bits, const uint32_t *dims) {
    uint32_t out = 0;
    if (dims == NULL) return bits;
    for (; bits != 0; bits &= bits - 1) out |= dims[__builtin_ctz(bits)];
    return out;
}

/* The size of several dims is the product of their sizes. */
static form_id size_of_dims(struct forms *f, uint32_t dims) {
    form_id r = form_number(f, 1, 1);
    for (; dims != 0; dims &= dims - 1) {
        const form_id operand[BLOCK_MAX_ARITY] = {r, form_size(f, (uint32_t)__builtin_ctz(dims))};
        r = form_apply(f, BLOCK_OP_MUL, NULL, operand);
    }
    return r;
}

/* The form of a node whose form is not given. */
static form_id node_form(struct forms *f, const struct expr *x, const struct expr_call *c,
                         const struct expr_node *n, const form_id *out) {
    const struct block_use use = {mapped(n->use.dims, c->dims), mapped(n->use.to, c->dims)};
    form_id operand[BLOCK_MAX_ARITY];
    for (int k = 0; k < BLOCK_MAX_ARITY; k++)
        operand[k] = n->in[k] == EXPR_NO_NODE ? FORM_NONE : out[n->in[k]];
    switch ((enum block_op)n->op) {
    case BLOCK_OP_NUMBER: return form_number(f, n->num, n->den);
    case BLOCK_OP_SIZE: return size_of_dims(f, use.dims);
    case BLOCK_OP_GIVEN: return operand[c->args[n->arg] == FORM_NONE];
    case BLOCK_OP_INPUT:
        if (c->args[n->arg] != FORM_NONE || x->args[n->arg].fallback == EXPR_NO_NODE)
            return c->args[n->arg];
        return out[x->args[n->arg].fallback];
    default: return form_apply(f, (enum block_op)n->op, &use, operand);
    }
}

void expr_forms_of(struct forms *f, const struct expr *x, const struct expr_call *c, form_id *out) {
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        bool known = false;
        for (uint32_t k = 0; k < c->n_known; k++) {
            if (c->known[k].node != (int32_t)i) continue;
            out[i] = c->known[k].form;
            known = true;
        }
        if (known) continue;
        out[i] =
            c->needed != NULL && !c->needed[i] ? FORM_NONE : node_form(f, x, c, &x->nodes[i], out);
    }
}

void expr_forms(struct forms *f, const struct expr *x, const form_id *args, const uint32_t *dims,
                form_id *out) {
    const struct expr_call c = {.args = args, .dims = dims};
    expr_forms_of(f, x, &c, out);
}

/* ---- values ---- */

void expr_needed(const struct expr *x, int32_t node, uint32_t absent, bool *needed) {
    needed[node] = true;
    for (int32_t i = node; i >= 0; i--) {
        const struct expr_node *n = &x->nodes[i];
        if (!needed[i]) continue;
        if (n->op == BLOCK_OP_GIVEN) {
            needed[n->in[absent >> n->arg & 1]] = true;
            continue;
        }
        for (int k = 0; k < BLOCK_MAX_ARITY; k++)
            if (n->in[k] != EXPR_NO_NODE) needed[n->in[k]] = true;
        if (n->op == BLOCK_OP_INPUT && (absent >> n->arg & 1) && x->args[n->arg].fallback >= 0)
            needed[x->args[n->arg].fallback] = true;
    }
}

int expr_cells(struct diag *d, struct arena *arena, struct algebra *g, const struct expr *x,
               const struct cells *args, const bool *needed, struct cells *out) {
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        const struct expr_node *n = &x->nodes[i];
        struct cells operand[BLOCK_MAX_ARITY] = {{0}};
        out[i] = (struct cells){0};
        if (needed != NULL && !needed[i]) continue;
        for (int k = 0; k < BLOCK_MAX_ARITY; k++)
            if (n->in[k] != EXPR_NO_NODE) operand[k] = out[n->in[k]];
        if (n->op == BLOCK_OP_NUMBER) {
            TRY(cells_make(d, arena, g, 0, &out[i]));
            g->number(g, n->num, n->den, out[i].at);
        } else if (n->op == BLOCK_OP_INPUT) {
            out[i] = args[n->arg];
            if (out[i].at == NULL && x->args[n->arg].fallback != EXPR_NO_NODE)
                out[i] = out[x->args[n->arg].fallback];
            if (out[i].at == NULL)
                return fail(d, QN_EINVAL, "%s: the argument %s is missing", x->name,
                            x->args[n->arg].name);
        } else if (n->op == BLOCK_OP_GIVEN) {
            out[i] = operand[args[n->arg].at == NULL];
        } else {
            TRY(cells_apply(d, arena, g, (enum block_op)n->op, &n->use, operand, &out[i]));
        }
    }
    return QN_OK;
}

/* ---- text ---- */

static void dump_dims(const struct expr *x, const uint8_t *dims, uint32_t n, struct strbuf *out) {
    for (uint32_t i = 0; i < n; i++)
        strbuf_printf(out, "%s%s", i == 0 ? "[" : ",", x->dims[dims[i]].name);
    if (n > 0) strbuf_char(out, ']');
}

void expr_dump(const struct expr *x, struct strbuf *out) {
    strbuf_printf(out, "op %s: %u arguments, %u operations\n", x->name, x->n_args,
                  x->n_nodes - x->n_args);
    strbuf_str(out, "  dims");
    for (uint32_t i = 0; i < x->n_dims; i++)
        strbuf_printf(out, " %s%s", x->dims[i].name, x->dims[i].halved ? " (even)" : "");
    strbuf_str(out, x->n_dims == 0 ? " none\n" : "\n");
    for (uint32_t i = 0; i < x->n_args; i++) {
        const struct expr_arg *a = &x->args[i];
        strbuf_printf(out, "  in  %s", a->name);
        dump_dims(x, a->dims, a->n_dims, out);
        strbuf_printf(out, " %s%s%s\n", expr_kind_name((enum expr_kind)a->kind),
                      a->fallback == EXPR_NO_NODE ? ""
                      : a->kind == EXPR_CONST     ? ", has a value"
                                                  : ", may be absent",
                      a->used ? "" : ", not used");
    }
    for (uint32_t i = 0; i < x->n_out; i++) {
        strbuf_printf(out, "  out %s", x->out[i].name);
        dump_dims(x, x->out[i].dims, x->out[i].n_dims, out);
        strbuf_char(out, '\n');
    }
}
