/* form_fn.c - functions of forms.
 *
 *   exp(a + b) = exp(a) exp(b): an EXP atom's argument is one term with the coefficient 1; the
 *       coefficient becomes the atom's exponent; exp(log(x)) = x
 *   max(a, b) = b + relu(a - b), relu(c x) = c relu(x) for c > 0, relu(-x) = relu(x) - x
 *       relu(c + k relu(z)) of numbers is a sum of relus of z alone
 *   sigmoid(x) = 1 / (1 + exp(-x)), tanh(x) = 2 sigmoid(2 x) - 1
 *   gelu(x) = x phi(x), phi(-x) = 1 - phi(x)
 */
#include "block/form_table.h"

static const struct rational one = {1, 1}, minus_one = {-1, 1};

static form_id form_sub(struct forms *f, form_id a, form_id b) {
    return form_add(f, a, form_scale(f, b, minus_one));
}

/* The argument of a monomial that is one LOG atom; FORM_NONE: it is not one. */
static form_id log_argument(const struct forms *f, mono_id id) {
    const struct mono *m = mono_of(f, id);
    if (m->n != 1 || m->factors[0].num != 1 || m->factors[0].den != 1) return FORM_NONE;
    const struct atom *a = atom_of(f, m->factors[0].atom);
    return a->kind == ATOM_LOG ? a->form : FORM_NONE;
}

static form_id exp_of_term(struct forms *f, const struct term *t) {
    const form_id log = log_argument(f, t->mono);
    if (log != FORM_NONE && t->c.den <= 2 && t->c.num >= -8 && t->c.num <= 8)
        return form_power(f, log, (int32_t)t->c.num, (int32_t)t->c.den);
    if (t->c.num > FORM_MAX_POWER || t->c.num < -FORM_MAX_POWER || t->c.den > FORM_MAX_POWER)
        return FORM_NONE;
    const struct atom a = {.kind = ATOM_EXP, .form = form_of_term(f, one, t->mono)};
    if (a.form == FORM_NONE) return FORM_NONE;
    return form_of_atom(f, atom_intern(f, a), (int32_t)t->c.num, (int32_t)t->c.den);
}

form_id form_exp(struct forms *f, form_id a) {
    if (a == FORM_NONE) return FORM_NONE;
    const struct form p = *form_of(f, a);
    form_id r = form_integer(f, 1);
    for (uint32_t i = 0; i < p.n && r != FORM_NONE; i++) {
        const struct term t = p.terms[i];
        r = form_mul(f, r, exp_of_term(f, &t));
    }
    return r;
}

static form_id function(struct forms *f, enum atom_kind kind, form_id a) {
    if (a == FORM_NONE) return FORM_NONE;
    return form_of_atom(f, atom_intern(f, (struct atom){.kind = (uint8_t)kind, .form = a}), 1, 1);
}

/* log of a form. For one term: the logs of its positive factors, and the log of the rest. */
form_id form_log(struct forms *f, form_id a) {
    if (a == FORM_NONE || form_of(f, a)->n == 0) return FORM_NONE;
    const struct form p = *form_of(f, a);
    if (p.n > 1) return function(f, ATOM_LOG, a);
    const struct mono m = *mono_of(f, p.terms[0].mono);
    struct factor rest[FORM_MAX_FACTORS];
    uint32_t n = 0;
    form_id r = FORM_ZERO;
    for (uint32_t i = 0; i < m.n; i++) {
        const struct factor x = m.factors[i];
        if (!atom_positive(f, x.atom)) {
            rest[n++] = x;
            continue;
        }
        const struct atom *atom = atom_of(f, x.atom);
        const form_id log = atom->kind == ATOM_EXP
                                ? atom->form
                                : function(f, ATOM_LOG, form_of_atom(f, x.atom, 1, 1));
        r = form_add(f, r, form_scale(f, log, (struct rational){x.num, x.den}));
    }
    const form_id left = form_of_factors(f, p.terms[0].c, rest, n);
    if (left == form_integer(f, 1)) return r;
    return form_add(f, r, function(f, ATOM_LOG, left));
}

/* a = scale * *bare, where the leading coefficient of *bare is 1; scale may be negative. */
static bool leading(struct forms *f, form_id a, form_id *bare, struct rational *scale) {
    struct rational inverse;
    *scale = form_of(f, a)->terms[0].c;
    if (!rational_inverse(*scale, &inverse)) return false;
    *bare = form_scale(f, a, inverse);
    return *bare != FORM_NONE;
}

/* Whether the factor is at least 0 for all inputs. */
static bool factor_positive(const struct forms *f, const struct factor *x) {
    const struct atom *a = atom_of(f, x->atom);
    if (atom_positive(f, x->atom) || a->kind == ATOM_RELU || a->kind == ATOM_PHI) return true;
    if (a->kind == ATOM_INPUT && a->input != FORM_REAL) return true;
    return x->den == 1 ? x->num % 2 == 0 : a->kind == ATOM_POWER;
}

/* 1: a is at least 0 for all inputs, -1: at most 0 for all inputs, 0: neither is known. */
static int sign_of(const struct forms *f, form_id a) {
    const struct form *p = form_of(f, a);
    int sign = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct mono *m = mono_of(f, p->terms[i].mono);
        const int s = p->terms[i].c.num < 0 ? -1 : 1;
        if (sign == -s) return 0;
        sign = s;
        for (uint32_t k = 0; k < m->n; k++)
            if (!factor_positive(f, &m->factors[k])) return 0;
    }
    return sign;
}

/* The argument of a monomial that is one RELU atom; FORM_NONE: it is not one. */
static form_id relu_argument(const struct forms *f, mono_id id) {
    const struct mono *m = mono_of(f, id);
    if (m->n != 1 || m->factors[0].num != 1 || m->factors[0].den != 1) return FORM_NONE;
    const struct atom *a = atom_of(f, m->factors[0].atom);
    return a->kind == ATOM_RELU ? a->form : FORM_NONE;
}

/* Sets *c to a if a is a number. */
static bool as_number(const struct forms *f, form_id a, struct rational *c) {
    const struct form *p = form_of(f, a);
    *c = (struct rational){0, 1};
    if (a == FORM_NONE || p->n > 1 || (p->n == 1 && p->terms[0].mono != MONO_ONE)) return false;
    if (p->n == 1) *c = p->terms[0].c;
    return true;
}

/* Whether a = c + k relu(z) for numbers c and k. Because relu(-z) = relu(z) - z, a may be written
 * c + k relu(z) - k z. */
static bool as_relu(struct forms *f, form_id a, struct rational *c, struct rational *k,
                    form_id *z) {
    const struct form p = *form_of(f, a);
    for (uint32_t i = 0; i < p.n; i++) {
        const struct term t = p.terms[i];
        *k = t.c;
        *z = relu_argument(f, t.mono);
        if (*z == FORM_NONE) continue;
        const form_id rest = form_sub(f, a, form_of_term(f, t.c, t.mono));
        if (as_number(f, rest, c)) return true;
        if (!as_number(f, form_add(f, rest, form_scale(f, *z, t.c)), c)) continue;
        *z = form_scale(f, *z, minus_one);
        return *z != FORM_NONE;
    }
    return false;
}

/* relu(c + k relu(z)) for numbers c and k:
 *     c > 0 > k: c - |k| relu(z) + relu(|k| z - c)     k > 0 > c: relu(k z + c)
 * This gives all ways to write a clamp one form. FORM_NONE: a is no such form. */
static form_id relu_of_relu(struct forms *f, form_id a) {
    struct rational c, k;
    form_id z;
    if (form_of(f, a)->n < 2 || !as_relu(f, a, &c, &k, &z)) return FORM_NONE;
    if (c.num >= 0 && k.num > 0) return a;
    if (c.num <= 0 && k.num < 0) return FORM_ZERO;
    const form_id inner = form_add(f, form_scale(f, z, k), form_of_term(f, c, MONO_ONE));
    if (c.num < 0) return form_relu(f, inner);
    return form_add(f, a, form_relu(f, form_scale(f, inner, minus_one)));
}

form_id form_relu(struct forms *f, form_id a) {
    struct rational scale;
    form_id bare;
    if (a == FORM_NONE) return FORM_NONE;
    const int sign = sign_of(f, a);
    if (a == FORM_ZERO || sign < 0) return FORM_ZERO;
    if (sign > 0) return a;
    const form_id flat = relu_of_relu(f, a);
    if (flat != FORM_NONE) return flat;
    if (!leading(f, a, &bare, &scale)) return FORM_NONE;
    form_id r = function(f, ATOM_RELU, bare);
    if (scale.num < 0) { /* relu(-|c| x) = |c| (relu(x) - x) */
        r = form_sub(f, r, bare);
        scale.num = -scale.num;
    }
    return form_scale(f, r, scale);
}

form_id form_phi(struct forms *f, form_id a) {
    if (a == FORM_NONE) return FORM_NONE;
    if (form_of(f, a)->n == 0) return form_number(f, 1, 2);
    if (form_of(f, a)->terms[0].c.num > 0) return function(f, ATOM_PHI, a);
    return form_sub(f, form_integer(f, 1), function(f, ATOM_PHI, form_scale(f, a, minus_one)));
}
