/* prove.c - see prove.h. */
#include "block/prove.h"

#include <string.h>

/* What an argument or output of b is in a. */
struct matching {
    const struct expr *a, *b;
    int arg[EXPR_MAX_ARGS], out[EXPR_MAX_OUT]; /* b's number of a's */
    int dim[BLOCK_MAX_DIMS];                   /* b's dim of a's; -1: none yet */
};

static int match_dims(struct diag *d, struct matching *m, const char *name, const uint8_t *a,
                      uint32_t n_a, const uint8_t *b, uint32_t n_b) {
    if (n_a != n_b)
        return fail(d, QN_EINVAL, "'%s' has %u dims in %s, %u in %s", name, n_a, m->a->name, n_b,
                    m->b->name);
    for (uint32_t i = 0; i < n_a; i++) {
        if (m->dim[a[i]] < 0) {
            for (uint32_t k = 0; k < m->a->n_dims; k++)
                if (m->dim[k] == b[i])
                    return fail(d, QN_EINVAL, "'%s': dims %s and %s of %s are one dim of %s", name,
                                m->a->dims[k].name, m->a->dims[a[i]].name, m->a->name, m->b->name);
            m->dim[a[i]] = b[i];
        } else if (m->dim[a[i]] != b[i]) {
            return fail(d, QN_EINVAL, "'%s': dim %s of %s is %s in %s, and elsewhere %s", name,
                        m->a->dims[a[i]].name, m->a->name, m->b->dims[b[i]].name, m->b->name,
                        m->b->dims[m->dim[a[i]]].name);
        }
    }
    return QN_OK;
}

static int match_args(struct diag *d, struct matching *m) {
    const struct expr *a = m->a, *b = m->b;
    for (uint32_t i = 0; i < b->n_args; i++)
        if (expr_find_arg(a, b->args[i].name) < 0)
            return fail(d, QN_EINVAL, "%s has the argument '%s', %s does not", b->name,
                        b->args[i].name, a->name);
    for (uint32_t i = 0; i < a->n_args; i++) {
        const struct expr_arg *x = &a->args[i];
        m->arg[i] = expr_find_arg(b, x->name);
        if (m->arg[i] < 0)
            return fail(d, QN_EINVAL, "%s has the argument '%s', %s does not", a->name, x->name,
                        b->name);
        const struct expr_arg *y = &b->args[m->arg[i]];
        if (expr_form_kind((enum expr_kind)x->kind) != expr_form_kind((enum expr_kind)y->kind))
            return fail(d, QN_EINVAL, "'%s' is %s in %s, %s in %s", x->name,
                        expr_kind_name((enum expr_kind)x->kind), a->name,
                        expr_kind_name((enum expr_kind)y->kind), b->name);
        if ((x->fallback < 0) != (y->fallback < 0))
            return fail(d, QN_EINVAL, "'%s' may be absent in one of the two only", x->name);
        TRY(match_dims(d, m, x->name, x->dims, x->n_dims, y->dims, y->n_dims));
        if (x->kind == EXPR_INDEX) TRY(match_dims(d, m, x->name, &x->of, 1, &y->of, 1));
    }
    return QN_OK;
}

static int match_outputs(struct diag *d, struct matching *m) {
    const struct expr *a = m->a, *b = m->b;
    for (uint32_t i = 0; i < b->n_out; i++)
        if (expr_find_out(a, b->out[i].name) < 0)
            return fail(d, QN_EINVAL, "%s has the output '%s', %s does not", b->name,
                        b->out[i].name, a->name);
    for (uint32_t i = 0; i < a->n_out; i++) {
        m->out[i] = expr_find_out(b, a->out[i].name);
        if (m->out[i] < 0)
            return fail(d, QN_EINVAL, "%s has the output '%s', %s does not", a->name,
                        a->out[i].name, b->name);
        const struct expr_out *x = &a->out[i], *y = &b->out[m->out[i]];
        TRY(match_dims(d, m, x->name, x->dims, x->n_dims, y->dims, y->n_dims));
    }
    return QN_OK;
}

static int match(struct diag *d, struct matching *m) {
    for (int i = 0; i < BLOCK_MAX_DIMS; i++) m->dim[i] = -1;
    TRY(match_args(d, m));
    return match_outputs(d, m);
}

/* Whether the argument counts as absent in case `absent`: bits, one for each argument with a
 * fallback. A const with a value is that value always. */
static bool is_absent(const struct expr *x, uint32_t arg, uint32_t absent) {
    uint32_t bit = 0;
    if (x->args[arg].fallback < 0) return false;
    if (x->args[arg].kind == EXPR_CONST) return true;
    for (uint32_t i = 0; i < arg; i++)
        bit += x->args[i].fallback >= 0 && x->args[i].kind != EXPR_CONST;
    return absent >> bit & 1;
}

static uint32_t optional_args(const struct expr *x) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_args; i++)
        n += x->args[i].fallback >= 0 && x->args[i].kind != EXPR_CONST;
    return n;
}

/* The number of a's output whose forms differ in one case; n_out: all are equal. */
static uint32_t unequal_output(struct forms *f, const struct matching *m, uint32_t absent) {
    const struct expr *a = m->a, *b = m->b;
    form_id args_a[EXPR_MAX_ARGS], args_b[EXPR_MAX_ARGS];
    form_id nodes_a[EXPR_MAX_NODES], nodes_b[EXPR_MAX_NODES];
    uint32_t dims[BLOCK_MAX_DIMS] = {0};
    for (uint32_t i = 0; i < a->n_args; i++) {
        args_a[i] = is_absent(a, i, absent) ? FORM_NONE : expr_arg_form(f, a, i, i);
        args_b[m->arg[i]] = args_a[i];
    }
    for (uint32_t i = 0; i < a->n_dims; i++)
        if (m->dim[i] >= 0) dims[m->dim[i]] = 1u << i;
    expr_forms(f, a, args_a, NULL, nodes_a);
    expr_forms(f, b, args_b, dims, nodes_b);
    for (uint32_t i = 0; i < a->n_out; i++)
        if (!form_equal(f, nodes_a[a->out[i].node], nodes_b[b->out[m->out[i]].node])) return i;
    return a->n_out;
}

int prove(struct diag *d, const struct expr *a, const struct expr *b, enum verdict *verdict,
          struct strbuf *why) {
    struct matching m = {.a = a, .b = b};
    struct forms *f;
    TRY(match(d, &m));
    TRY(forms_new(d, &f));
    const uint32_t n = optional_args(a);
    *verdict = n > EXPR_MAX_OPTIONAL ? VERDICT_UNDECIDED : VERDICT_EQUAL;
    for (uint32_t absent = 0; absent < 1u << n && *verdict == VERDICT_EQUAL; absent++) {
        const uint32_t i = unequal_output(f, &m, absent);
        if (i == a->n_out) continue;
        *verdict = VERDICT_UNDECIDED;
        strbuf_printf(why, "%s: the normal forms are not equal", a->out[i].name);
    }
    if (*verdict == VERDICT_EQUAL) strbuf_str(why, "proved");
    int rc = forms_status(d, f);
    forms_free(f);
    return rc;
}

/* ---- one operator ---- */

static void name_tables(const struct expr *x, const char **dims, const char **tensors) {
    for (uint32_t i = 0; i < BLOCK_MAX_DIMS; i++) dims[i] = i < x->n_dims ? x->dims[i].name : NULL;
    for (uint32_t i = 0; i < x->n_args; i++) tensors[i] = x->args[i].name;
}

static int dump_outputs(struct diag *d, struct forms *f, const struct expr *x, struct strbuf *out) {
    const char *dims[BLOCK_MAX_DIMS], *tensors[EXPR_MAX_ARGS];
    const struct form_names names = {dims, tensors, x->n_args};
    form_id args[EXPR_MAX_ARGS], nodes[EXPR_MAX_NODES];
    name_tables(x, dims, tensors);
    for (uint32_t i = 0; i < x->n_args; i++)
        args[i] = is_absent(x, i, 0) ? FORM_NONE : expr_arg_form(f, x, i, i);
    expr_forms(f, x, args, NULL, nodes);
    for (uint32_t i = 0; i < x->n_out; i++) {
        const form_id form = nodes[x->out[i].node];
        if (form == FORM_NONE)
            return fail(d, QN_ELIMIT, "%s: %s has no normal form: it exceeds a limit", x->name,
                        x->out[i].name);
        strbuf_printf(out, "  %s = ", x->out[i].name);
        form_dump(f, form, &names, out);
        strbuf_char(out, '\n');
    }
    return strbuf_status(d, out);
}

int op_check(struct diag *d, const struct expr *x, struct strbuf *out) {
    struct forms *f;
    expr_dump(x, out);
    TRY(forms_new(d, &f));
    int rc = dump_outputs(d, f, x, out);
    if (rc == QN_OK) rc = forms_status(d, f);
    forms_free(f);
    return rc;
}
