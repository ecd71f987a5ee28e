/* prove.c - see prove.h. */
#include "block/prove.h"
#include "block/compare.h"
#include "block/field.h"

/* The cases of arguments that may be absent. A const with a value always has that value. Each set
 * of the others is one case. */
struct cases {
    uint32_t fixed;                      /* arguments that are absent in every case, bits */
    uint32_t optional[EXPR_MAX_ARGS], n; /* the others */
};

static void list_cases(const struct expr *x, struct cases *c) {
    *c = (struct cases){0};
    for (uint32_t i = 0; i < x->n_args; i++) {
        if (x->args[i].fallback == EXPR_NO_NODE) continue;
        if (x->args[i].kind == EXPR_CONST)
            c->fixed |= 1u << i;
        else
            c->optional[c->n++] = i;
    }
}

static uint32_t case_absent(const struct cases *c, uint32_t number) {
    uint32_t absent = c->fixed;
    for (uint32_t i = 0; i < c->n; i++)
        if (number >> i & 1) absent |= 1u << c->optional[i];
    return absent;
}

/* ---- the proof of one case ---- */

/* The number of a's first output whose forms are not equal; n_out: all are equal. *decided: both
 * have a form. */
static uint32_t unequal_output(struct forms *f, const struct compare_case *c, bool *decided) {
    const struct expr *a = c->m->a, *b = c->m->b;
    form_id args_a[EXPR_MAX_ARGS], args_b[EXPR_MAX_ARGS];
    form_id nodes_a[EXPR_MAX_NODES], nodes_b[EXPR_MAX_NODES];
    uint32_t dims[BLOCK_MAX_DIMS] = {0};
    for (uint32_t i = 0; i < a->n_args; i++) {
        args_a[i] = c->absent >> i & 1 ? FORM_NONE : expr_arg_form(f, a, i, i);
        args_b[c->m->arg[i]] = args_a[i];
    }
    for (uint32_t i = 0; i < a->n_dims; i++)
        if (c->m->dim[i] >= 0) dims[c->m->dim[i]] = 1u << i;
    expr_forms(f, a, args_a, NULL, nodes_a);
    expr_forms(f, b, args_b, dims, nodes_b);
    for (uint32_t i = 0; i < a->n_out; i++) {
        const form_id x = nodes_a[a->out[i].node], y = nodes_b[b->out[c->m->out[i]].node];
        *decided = x != FORM_NONE && y != FORM_NONE;
        if (!form_equal(f, x, y)) return i;
    }
    return a->n_out;
}

/* Looks for numbers at which the outputs are certainly not equal, and appends a line about them. An
 * operator with `choose` has no values: nothing is found. */
static int find_difference(struct diag *d, const struct compare_case *c, bool *differs,
                           struct strbuf *line) {
    enum field_answer answer = FIELD_SAME;
    *differs = false;
    if (expr_has(c->m->a, BLOCK_OP_CHOOSE) || expr_has(c->m->b, BLOCK_OP_CHOOSE)) return QN_OK;
    TRY(compare_witness(d, c, differs, line));
    if (*differs) return QN_OK;
    TRY(compare_fields(d, c, FIELD_TESTS, &answer, line));
    *differs = answer == FIELD_DIFFERS;
    return QN_OK;
}

/* If numbers contradict a proof, the program is at fault: reports an internal error. */
static int cross_check(struct diag *d, const struct compare_case *c) {
    struct strbuf line = {0};
    bool differs = false;
    int rc = find_difference(d, c, &differs, &line);
    if (rc == QN_OK && differs)
        rc = fail(d, QN_EINTERNAL, "the proof is wrong: %s and %s have one normal form, but %s",
                  c->m->a->name, c->m->b->name, strbuf_text(&line));
    strbuf_fini(&line);
    return rc;
}

/* Looks for a difference where nothing is proved. */
static int refute(struct diag *d, const struct compare_case *c, enum verdict *verdict,
                  struct strbuf *why) {
    struct strbuf line = {0};
    bool differs = false;
    int rc = find_difference(d, c, &differs, &line);
    if (rc == QN_OK && differs) {
        *verdict = VERDICT_DIFFERENT;
        strbuf_str(why, strbuf_text(&line));
        for (uint32_t i = 0, first = 1; i < c->m->a->n_args; i++)
            if ((c->absent >> i & 1) && c->m->a->args[i].kind != EXPR_CONST) {
                strbuf_printf(why, "%s%s", first ? " without " : ", ", c->m->a->args[i].name);
                first = 0;
            }
    }
    strbuf_fini(&line);
    return rc;
}

static int prove_case(struct diag *d, struct forms *f, const struct compare_case *c,
                      enum verdict *verdict, struct strbuf *why) {
    bool decided = true;
    const uint32_t i = unequal_output(f, c, &decided);
    if (i == c->m->a->n_out) return cross_check(d, c);
    *verdict = VERDICT_UNDECIDED;
    TRY(refute(d, c, verdict, why));
    if (*verdict == VERDICT_UNDECIDED)
        strbuf_printf(why, "%s: %s, and no numbers were found that tell", c->m->a->out[i].name,
                      decided ? "the normal forms differ" : "a normal form exceeds a limit");
    return QN_OK;
}

int prove(struct diag *d, const struct expr *a, const struct expr *b, enum verdict *verdict,
          struct strbuf *why) {
    struct matching m;
    struct cases cases;
    struct forms *f;
    TRY(matching_make(d, a, b, &m));
    list_cases(a, &cases);
    if (cases.n > EXPR_MAX_OPTIONAL) {
        *verdict = VERDICT_UNDECIDED;
        strbuf_printf(why, "more than %d arguments may be absent", EXPR_MAX_OPTIONAL);
        return QN_OK;
    }
    TRY(forms_new(d, &f));
    forms_bound(f, PROVE_LOOK_UPS);
    *verdict = VERDICT_EQUAL;
    int rc = QN_OK;
    for (uint32_t i = 0; i < 1u << cases.n && *verdict == VERDICT_EQUAL && rc == QN_OK; i++) {
        const struct compare_case c = {&m, case_absent(&cases, i)};
        rc = prove_case(d, f, &c, verdict, why);
    }
    if (rc == QN_OK && *verdict == VERDICT_EQUAL) strbuf_str(why, "proved");
    if (rc == QN_OK) rc = forms_status(d, f);
    forms_free(f);
    return rc;
}

int prove_forms(struct diag *d, const struct expr *a, const struct expr *b, bool *equal) {
    struct matching m;
    struct cases cases;
    struct forms *f;
    TRY(matching_make(d, a, b, &m));
    list_cases(a, &cases);
    TRY(forms_new(d, &f));
    forms_bound(f, PROVE_LOOK_UPS);
    *equal = cases.n <= EXPR_MAX_OPTIONAL;
    for (uint32_t i = 0; i < 1u << cases.n && *equal; i++) {
        const struct compare_case c = {&m, case_absent(&cases, i)};
        bool decided;
        *equal = unequal_output(f, &c, &decided) == a->n_out;
    }
    const int rc = forms_status(d, f);
    forms_free(f);
    return rc;
}

/* ---- one operator ---- */

static int dump_outputs(struct diag *d, struct forms *f, const struct expr *x, struct strbuf *out) {
    const char *dims[BLOCK_MAX_DIMS], *tensors[EXPR_MAX_ARGS];
    const struct form_names names = {dims, tensors, x->n_args};
    form_id args[EXPR_MAX_ARGS], nodes[EXPR_MAX_NODES];
    struct cases cases;
    list_cases(x, &cases);
    for (uint32_t i = 0; i < BLOCK_MAX_DIMS; i++) dims[i] = i < x->n_dims ? x->dims[i].name : NULL;
    for (uint32_t i = 0; i < x->n_args; i++) {
        tensors[i] = x->args[i].name;
        args[i] = cases.fixed >> i & 1 ? FORM_NONE : expr_arg_form(f, x, i, i);
    }
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
    forms_bound(f, PROVE_LOOK_UPS);
    int rc = dump_outputs(d, f, x, out);
    if (rc == QN_OK) rc = forms_status(d, f);
    forms_free(f);
    return rc;
}
