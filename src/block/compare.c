/* compare.c - see compare.h. */
#include "block/compare.h"
#include "base/checked.h"
#include "block/assignment.h"
#include "block/field.h"
#include "block/interval.h"
#include "block/real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WITNESS_TRIALS = 120, WITNESS_LARGEST = 4, REDRAWS = 32, FLOAT_TRIALS = 32 };

/* ---- matching ---- */

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

static int missing(struct diag *d, const struct expr *has, const struct expr *lacks,
                   const char *what, const char *name) {
    return fail(d, QN_EINVAL, "%s has the %s '%s', %s does not", has->name, what, name,
                lacks->name);
}

static int match_arg(struct diag *d, struct matching *m, uint32_t i) {
    const struct expr *a = m->a, *b = m->b;
    const struct expr_arg *x = &a->args[i];
    m->arg[i] = expr_find_arg(b, x->name);
    if (m->arg[i] < 0) return missing(d, a, b, "argument", x->name);
    const struct expr_arg *y = &b->args[m->arg[i]];
    if (expr_form_kind((enum expr_kind)x->kind) != expr_form_kind((enum expr_kind)y->kind))
        return fail(d, QN_EINVAL, "'%s' is %s in %s, %s in %s", x->name,
                    expr_kind_name((enum expr_kind)x->kind), a->name,
                    expr_kind_name((enum expr_kind)y->kind), b->name);
    if ((x->fallback < 0) != (y->fallback < 0))
        return fail(d, QN_EINVAL, "'%s' may be absent in one of the two only", x->name);
    TRY(match_dims(d, m, x->name, x->dims, x->n_dims, y->dims, y->n_dims));
    const bool positions = x->kind == EXPR_INDEX || x->kind == EXPR_ORDER;
    return positions ? match_dims(d, m, x->name, &x->of, 1, &y->of, 1) : QN_OK;
}

int matching_make(struct diag *d, const struct expr *a, const struct expr *b, struct matching *m) {
    *m = (struct matching){.a = a, .b = b};
    for (int i = 0; i < BLOCK_MAX_DIMS; i++) m->dim[i] = -1;
    for (uint32_t i = 0; i < b->n_args; i++)
        if (expr_find_arg(a, b->args[i].name) < 0)
            return missing(d, b, a, "argument", b->args[i].name);
    for (uint32_t i = 0; i < a->n_args; i++) TRY(match_arg(d, m, i));
    for (uint32_t i = 0; i < b->n_out; i++)
        if (expr_find_out(a, b->out[i].name) < 0) return missing(d, b, a, "output", b->out[i].name);
    for (uint32_t i = 0; i < a->n_out; i++) {
        m->out[i] = expr_find_out(b, a->out[i].name);
        if (m->out[i] < 0) return missing(d, a, b, "output", a->out[i].name);
        const struct expr_out *x = &a->out[i], *y = &b->out[m->out[i]];
        TRY(match_dims(d, m, x->name, x->dims, x->n_dims, y->dims, y->n_dims));
    }
    return QN_OK;
}

/* ---- one evaluation of both ---- */

/* The most elements that all values of both expressions may have together. */
enum { MOST_ELEMENTS = 1 << 18 };

static uint64_t elements(const struct expr *x, const struct algebra *g) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < x->n_nodes && sum <= MOST_ELEMENTS; i++) {
        uint64_t n = 1;
        for (uint32_t dims = x->nodes[i].dims | x->nodes[i].use.dims; dims != 0; dims &= dims - 1)
            n = MIN(n * g->sizes[__builtin_ctz(dims)], (uint64_t)MOST_ELEMENTS + 1);
        sum += n;
    }
    return sum;
}

struct evaluation {
    struct arena arena;
    struct algebra g, g_b; /* g_b: the same under b's numbers of dims */
    struct cells args[EXPR_MAX_ARGS];
    struct cells a[EXPR_MAX_NODES], b[EXPR_MAX_NODES];
};

/* The same cells under other numbers of dims: dim i becomes dim[i]. */
static int reorder(struct diag *d, struct arena *arena, const struct algebra *from,
                   const struct algebra *to, const int *dim, const struct cells *v,
                   struct cells *out) {
    uint32_t dims = 0, index[BLOCK_MAX_DIMS] = {0}, stride[BLOCK_MAX_DIMS] = {0};
    for (uint32_t i = 0; i < BLOCK_MAX_DIMS; i++)
        if (v->dims >> i & 1) dims |= 1u << dim[i];
    TRY(cells_make(d, arena, to, dims, out));
    for (uint32_t i = 0; i < BLOCK_MAX_DIMS; i++) {
        if ((v->dims >> i & 1) == 0) continue;
        stride[i] = 1;
        for (uint32_t k = (uint32_t)dim[i] + 1; k < BLOCK_MAX_DIMS; k++)
            if (dims >> k & 1) stride[i] *= to->sizes[k];
    }
    for (uint32_t at = 0, k = 0; at < v->n; at++) {
        out->at[k] = v->at[at];
        for (int i = BLOCK_MAX_DIMS - 1; i >= 0; i--) {
            if ((v->dims >> i & 1) == 0) continue;
            k += stride[i];
            if (++index[i] < from->sizes[i]) break;
            k -= stride[i] * index[i];
            index[i] = 0;
        }
    }
    return QN_OK;
}

static void make_sizes(const struct compare_case *c, const struct assignment *s,
                       struct evaluation *e) {
    const struct expr *a = c->m->a;
    uint32_t halved = 0;
    for (uint32_t i = 0; i < a->n_dims; i++) {
        const int other = c->m->dim[i];
        if (a->dims[i].halved || (other >= 0 && c->m->b->dims[other].halved)) halved |= 1u << i;
    }
    assignment_sizes(s, a, halved, &e->g);
    e->g.notes = e->g_b.notes = 0;
    for (uint32_t i = 0; i < a->n_dims; i++)
        if (c->m->dim[i] >= 0) e->g_b.sizes[c->m->dim[i]] = e->g.sizes[i];
}

static int make_args(struct diag *d, const struct compare_case *c, const struct assignment *s,
                     struct evaluation *e) {
    const struct expr *a = c->m->a;
    memset(e->args, 0, sizeof e->args);
    for (uint32_t i = 0; i < a->n_args; i++)
        if ((c->absent >> i & 1) == 0)
            TRY(assignment_make(d, &e->arena, s, &e->g, a, i, &e->args[i]));
    return QN_OK;
}

static int run_b(struct diag *d, const struct compare_case *c, struct evaluation *e) {
    struct cells args[EXPR_MAX_ARGS] = {{0}};
    for (uint32_t i = 0; i < c->m->a->n_args; i++)
        if (e->args[i].at != NULL)
            TRY(reorder(d, &e->arena, &e->g, &e->g_b, c->m->dim, &e->args[i], &args[c->m->arg[i]]));
    return expr_cells(d, &e->arena, &e->g_b, c->m->b, args, NULL, e->b);
}

/* Evaluates both. If the sizes are too large, the result is marked undefined instead. */
static int run_both(struct diag *d, const struct compare_case *c, const struct assignment *s,
                    struct evaluation *e) {
    arena_fini(&e->arena);
    make_sizes(c, s, e);
    if (elements(c->m->a, &e->g) + elements(c->m->b, &e->g_b) > MOST_ELEMENTS) {
        e->g.notes = CELLS_UNDEFINED;
        return QN_OK;
    }
    TRY(make_args(d, c, s, e));
    TRY(expr_cells(d, &e->arena, &e->g, c->m->a, e->args, NULL, e->a));
    return run_b(d, c, e);
}

/* Output i of both, under a's numbers of dims and with the dims of both. */
static int both_outputs(struct diag *d, const struct compare_case *c, struct evaluation *e,
                        uint32_t i, struct cells *x, struct cells *y) {
    int back[BLOCK_MAX_DIMS];
    const struct expr *a = c->m->a, *b = c->m->b;
    for (int k = 0; k < BLOCK_MAX_DIMS; k++) back[k] = 0;
    for (uint32_t k = 0; k < a->n_dims; k++)
        if (c->m->dim[k] >= 0) back[c->m->dim[k]] = (int)k;
    *x = e->a[a->out[i].node];
    TRY(reorder(d, &e->arena, &e->g_b, &e->g, back, &e->b[b->out[c->m->out[i]].node], y));
    if (x->dims == y->dims) return QN_OK;
    /* One lacks a dim of the other, and is constant along it. */
    struct cells zero;
    TRY(cells_make(d, &e->arena, &e->g, x->dims | y->dims, &zero));
    for (uint32_t k = 0; k < zero.n; k++) e->g.number(&e->g, 0, 1, &zero.at[k]);
    const struct cells more_x[BLOCK_MAX_ARITY] = {*x, zero}, more_y[BLOCK_MAX_ARITY] = {*y, zero};
    TRY(cells_apply(d, &e->arena, &e->g, BLOCK_OP_ADD, NULL, more_x, x));
    return cells_apply(d, &e->arena, &e->g, BLOCK_OP_ADD, NULL, more_y, y);
}

static int evaluation_new(struct diag *d, struct evaluation **e) {
    *e = calloc(1, sizeof **e);
    return *e == NULL ? fail_nomem(d, sizeof **e, "an evaluation") : QN_OK;
}

static void evaluation_free(struct evaluation *e) {
    arena_fini(&e->arena);
    free(e);
}

/* ---- a witness ---- */

static void tell_index(const struct expr *x, const struct algebra *g, uint32_t dims, uint32_t at,
                       struct strbuf *out) {
    uint32_t stride = 1;
    bool first = true;
    for (uint32_t i = 0; i < x->n_dims; i++)
        if (dims >> i & 1) stride *= g->sizes[i];
    for (uint32_t i = 0; i < x->n_dims; i++) {
        if ((dims >> i & 1) == 0) continue;
        stride /= g->sizes[i];
        strbuf_printf(out, "%s%s=%u", first ? "[" : ",", x->dims[i].name,
                      at / stride % g->sizes[i]);
        first = false;
    }
    if (!first) strbuf_char(out, ']');
}

static void tell_numbers(const struct compare_case *c, const struct evaluation *e,
                         struct strbuf *out) {
    const struct expr *a = c->m->a;
    const char *before = " where ";
    for (uint32_t i = 0; i < a->n_dims; i++) {
        strbuf_printf(out, "%s%s has %u", before, a->dims[i].name, e->g.sizes[i]);
        before = ", ";
    }
    for (uint32_t i = 0; i < a->n_args; i++) {
        const struct cells *v = &e->args[i];
        if (v->at == NULL) continue;
        strbuf_printf(out, "%s%s =", before, a->args[i].name);
        before = ", ";
        for (uint32_t k = 0; k < v->n && k < 8; k++)
            strbuf_printf(out, " %.9g", v->at[k].interval.low);
        if (v->n > 8) strbuf_printf(out, " ... (%u)", v->n);
    }
}

static int look_apart(struct diag *d, const struct compare_case *c, struct evaluation *e,
                      bool *found, struct strbuf *line) {
    const struct expr *a = c->m->a;
    for (uint32_t i = 0; i < a->n_out && !*found; i++) {
        struct cells x, y;
        TRY(both_outputs(d, c, e, i, &x, &y));
        for (uint32_t k = 0; k < x.n && !*found; k++) {
            if (!interval_apart(&x.at[k], &y.at[k])) continue;
            *found = true;
            strbuf_str(line, a->out[i].name);
            tell_index(a, &e->g, x.dims, k, line);
            strbuf_printf(line, " is %.9g and %.9g", x.at[k].interval.low, y.at[k].interval.low);
            tell_numbers(c, e, line);
        }
    }
    return QN_OK;
}

int compare_witness(struct diag *d, const struct compare_case *c, bool *found,
                    struct strbuf *line) {
    struct evaluation *e;
    int rc = evaluation_new(d, &e);
    *found = false;
    if (rc != QN_OK) return rc;
    for (uint32_t t = 0; t < WITNESS_TRIALS && rc == QN_OK && !*found; t++) {
        const struct assignment s = {.seed = t + 1,
                                     .kind = t % 2 == 0 ? ASSIGN_QUARTERS : ASSIGN_POSITIVE,
                                     .least = 1,
                                     .largest = 1 + t * WITNESS_LARGEST / WITNESS_TRIALS};
        interval_init(&e->g);
        interval_init(&e->g_b);
        rc = run_both(d, c, &s, e);
        if (rc == QN_OK && ((e->g.notes | e->g_b.notes) & CELLS_UNDEFINED) == 0)
            rc = look_apart(d, c, e, found, line);
    }
    evaluation_free(e);
    return rc;
}

/* ---- fields ---- */

static int fields_once(struct diag *d, const struct compare_case *c, struct evaluation *e,
                       bool *same, struct strbuf *line) {
    const struct expr *a = c->m->a;
    *same = true;
    for (uint32_t i = 0; i < a->n_out && *same; i++) {
        struct cells x, y;
        TRY(both_outputs(d, c, e, i, &x, &y));
        for (uint32_t k = 0; k < x.n && *same; k++) {
            if (x.at[k].field.p == y.at[k].field.p) continue;
            *same = false;
            strbuf_clear(line);
            strbuf_str(line, a->out[i].name);
            tell_index(a, &e->g, x.dims, k, line);
            strbuf_printf(line, " differs modulo %llu", (unsigned long long)FIELD_P);
        }
    }
    return QN_OK;
}

/* Draws until no value is undefined, at most REDRAWS times. *defined: a draw succeeded. */
static int draw_fields(struct diag *d, const struct compare_case *c, uint32_t test,
                       struct evaluation *e, struct field_state *state, bool *defined) {
    *defined = false;
    for (uint32_t k = 0; k < REDRAWS && !*defined; k++) {
        const struct assignment s = {.seed = 1000 + (uint64_t)test * REDRAWS + k,
                                     .kind = ASSIGN_FIELD,
                                     .least = 2,
                                     .largest = 3};
        field_init(&e->g, state, s.seed);
        e->g_b = e->g;
        TRY(run_both(d, c, &s, e));
        *defined = ((e->g.notes | e->g_b.notes) & CELLS_UNDEFINED) == 0;
    }
    return QN_OK;
}

int compare_fields(struct diag *d, const struct compare_case *c, uint32_t n,
                   enum field_answer *answer, struct strbuf *line) {
    struct evaluation *e;
    struct field_state state;
    int rc = evaluation_new(d, &e);
    *answer = FIELD_SAME;
    if (rc != QN_OK) return rc;
    for (uint32_t t = 0; t < n && rc == QN_OK && *answer != FIELD_DIFFERS; t++) {
        bool same = true, defined;
        rc = draw_fields(d, c, t, e, &state, &defined);
        if (rc == QN_OK && !defined) {
            *answer = FIELD_OPEN;
            break; /* further tests would not be defined either */
        }
        if (rc == QN_OK && defined) rc = fields_once(d, c, e, &same, line);
        if (same) continue;
        *answer = ((e->g.notes | e->g_b.notes) & (CELLS_RANDOM | CELLS_ROOT)) ? FIELD_OPEN
                                                                              : FIELD_DIFFERS;
    }
    evaluation_free(e);
    return rc;
}

/* ---- floats ---- */

/* Whether all of a's values are finite in double. The outputs do not show it: a clamp may hide the
 * root of a negative number. */
static bool all_finite(const struct compare_case *c, const struct evaluation *e) {
    for (uint32_t i = 0; i < c->m->a->n_nodes; i++)
        for (uint32_t k = 0; k < e->a[i].n; k++)
            if (!isfinite(e->a[i].at[k].real)) return false;
    return true;
}

static int floats_once(struct diag *d, const struct compare_case *c, const struct assignment *s,
                       enum dtype dtype, struct evaluation *e, struct evaluation *exact,
                       double *error_a, double *error_b) {
    real_init(&exact->g);
    real_init(&exact->g_b);
    TRY(run_both(d, c, s, exact));
    real_init_target(&e->g, dtype);
    real_init_target(&e->g_b, dtype);
    TRY(run_both(d, c, s, e));
    if (((exact->g.notes | e->g.notes) & CELLS_UNDEFINED) || !all_finite(c, exact)) return QN_OK;
    for (uint32_t i = 0; i < c->m->a->n_out; i++) {
        struct cells x, y, right, unused;
        TRY(both_outputs(d, c, exact, i, &right, &unused));
        TRY(both_outputs(d, c, e, i, &x, &y));
        if (x.n != right.n) continue; /* b has a dim that a lacks */
        bool finite = true;
        for (uint32_t k = 0; k < right.n; k++)
            finite = finite && isfinite(right.at[k].real) && isfinite(x.at[k].real);
        if (!finite) continue; /* the reference itself leaves its range: no comparison */
        *error_a = fmax(*error_a, real_error(&x, &right));
        *error_b = fmax(*error_b, real_error(&y, &right));
    }
    return QN_OK;
}

int compare_floats(struct diag *d, const struct compare_case *c, enum dtype dtype, double *error_a,
                   double *error_b) {
    struct evaluation *e = NULL, *exact = NULL;
    int rc = evaluation_new(d, &e);
    if (rc == QN_OK) rc = evaluation_new(d, &exact);
    *error_a = *error_b = 0;
    for (uint32_t t = 0; t < FLOAT_TRIALS && rc == QN_OK; t++) {
        const struct assignment s = {.seed = 7000 + t,
                                     .kind = t % 2 == 0 ? ASSIGN_NORMAL : ASSIGN_SPREAD,
                                     .least = 1,
                                     .largest = 6};
        rc = floats_once(d, c, &s, dtype, e, exact, error_a, error_b);
    }
    if (e != NULL) evaluation_free(e);
    if (exact != NULL) evaluation_free(exact);
    return rc;
}
