/* form_divide.c - cancelling, if the terms over one denominator are a multiple of it.
 *
 * Exact division of polynomials in atoms, leading term by leading term, in the lexicographic order
 * of exponents. The result is multiplied out and compared before it is used.
 */
#include "block/form_table.h"
#include "base/checked.h"

#include <string.h>

enum { MAX_DIVIDED = 128, MAX_CANCELLED = 8 };

/* Lexicographic order of exponents, with atoms in their order. Multiplication preserves it. */
static int mono_lex(const struct forms *f, mono_id a, mono_id b) {
    const struct mono *x = mono_of(f, a), *y = mono_of(f, b);
    for (uint32_t i = 0, k = 0; i < x->n || k < y->n;) {
        const int order = i == x->n   ? 1
                          : k == y->n ? -1
                                      : atom_compare(f, x->factors[i].atom, y->factors[k].atom);
        const struct factor *p = order <= 0 ? &x->factors[i++] : NULL;
        const struct factor *q = order >= 0 ? &y->factors[k++] : NULL;
        const int64_t left = (p == NULL ? 0 : (int64_t)p->num) * (q == NULL ? 1 : q->den);
        const int64_t right = (q == NULL ? 0 : (int64_t)q->num) * (p == NULL ? 1 : p->den);
        if (left != right) return left < right ? -1 : 1;
    }
    return 0;
}

static struct term leading_term(const struct forms *f, form_id a) {
    const struct form *p = form_of(f, a);
    struct term t = p->terms[0];
    for (uint32_t i = 1; i < p->n; i++)
        if (mono_lex(f, p->terms[i].mono, t.mono) > 0) t = p->terms[i];
    return t;
}

/* a / b of two terms; FORM_NONE: too large. */
static form_id divide_terms(struct forms *f, struct term a, struct term b) {
    struct factor x[2 * FORM_MAX_FACTORS];
    const struct mono p = *mono_of(f, a.mono), q = *mono_of(f, b.mono);
    struct rational c;
    if (p.n + q.n > FORM_MAX_FACTORS || !rational_inverse(b.c, &c) || !rational_mul(a.c, c, &c))
        return FORM_NONE;
    memcpy(x, p.factors, p.n * sizeof *x);
    for (uint32_t i = 0; i < q.n; i++)
        x[p.n + i] = (struct factor){q.factors[i].atom, -q.factors[i].num, q.factors[i].den};
    return form_of_term(f, c, mono_intern(f, x, p.n + q.n));
}

static form_id minus(struct forms *f, form_id a, form_id b) {
    return form_add(f, a, form_scale(f, b, (struct rational){-1, 1}));
}

/* n / by; FORM_NONE: by does not divide n. */
static form_id divide_exactly(struct forms *f, form_id n, form_id by) {
    form_id rest = n, quotient = FORM_ZERO;
    const uint32_t most = form_of(f, n)->n;
    const struct term lead = leading_term(f, by);
    for (uint32_t step = 0; rest != FORM_ZERO; step++) {
        if (rest == FORM_NONE || step == most || form_of(f, rest)->n > 2 * most) return FORM_NONE;
        const form_id t = divide_terms(f, leading_term(f, rest), lead);
        quotient = form_add(f, quotient, t);
        rest = minus(f, rest, form_mul(f, t, by));
    }
    return form_mul(f, quotient, by) == n ? quotient : FORM_NONE;
}

/* ---- denominators ---- */

/* The exponent of the atom in a monomial; num 0: the monomial lacks it. */
static struct factor exponent_of(const struct forms *f, mono_id id, atom_id atom) {
    const struct mono *m = mono_of(f, id);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->factors[i].atom == atom) return m->factors[i];
    return (struct factor){atom, 0, 1};
}

/* Splits a into the terms that have the factor x, divided by x, and the rest. */
static bool split_terms(struct forms *f, form_id a, struct factor x, form_id *over, form_id *rest) {
    const struct form p = *form_of(f, a);
    const struct factor inverse = {x.atom, -x.num, x.den};
    struct term with[MAX_DIVIDED], without[MAX_DIVIDED];
    uint32_t n = 0, m = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        const struct factor e = exponent_of(f, p.terms[i].mono, x.atom);
        if (e.num != x.num || e.den != x.den) {
            without[m++] = p.terms[i];
            continue;
        }
        const struct mono mono = *mono_of(f, p.terms[i].mono);
        struct factor all[FORM_MAX_FACTORS + 1];
        if (n == MAX_DIVIDED || mono.n == FORM_MAX_FACTORS) return false;
        memcpy(all, mono.factors, mono.n * sizeof *all);
        all[mono.n] = inverse;
        with[n++] = (struct term){p.terms[i].c, mono_intern(f, all, mono.n + 1)};
    }
    *over = form_intern(f, with, n);
    *rest = form_intern(f, without, m);
    return *over != FORM_NONE && *rest != FORM_NONE;
}

/* How many terms have the factor. */
static uint32_t count_terms(const struct forms *f, form_id a, struct factor x) {
    const struct form *p = form_of(f, a);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct factor e = exponent_of(f, p->terms[i].mono, x.atom);
        n += e.num == x.num && e.den == x.den;
    }
    return n;
}

/* a, with its terms over x divided by x's form; FORM_NONE: the form does not divide them. */
static form_id cancel_factor(struct forms *f, form_id a, struct factor x) {
    const form_id by = atom_of(f, x.atom)->form;
    const struct factor less = {x.atom, x.num + x.den, x.den};
    form_id over, rest;
    if (!split_terms(f, a, x, &over, &rest)) return FORM_NONE;
    const form_id quotient = divide_exactly(f, over, by);
    if (quotient == FORM_NONE) return FORM_NONE;
    return form_add(f, rest,
                    form_mul(f, quotient, form_of_factors(f, (struct rational){1, 1}, &less, 1)));
}

/* Makes one cancellation; FORM_NONE: none is possible. */
static form_id cancel_once(struct forms *f, form_id a) {
    const struct form p = *form_of(f, a);
    struct factor tried[MAX_CANCELLED];
    uint32_t n_tried = 0;
    for (uint32_t i = 0; i < p.n; i++) {
        const struct mono m = *mono_of(f, p.terms[i].mono);
        for (uint32_t k = 0; k < m.n && n_tried < MAX_CANCELLED; k++) {
            const struct factor x = m.factors[k];
            const struct atom *atom = atom_of(f, x.atom);
            bool seen = x.num > 0 || atom->kind != ATOM_POWER;
            for (uint32_t t = 0; t < n_tried && !seen; t++)
                seen = memcmp(&tried[t], &x, sizeof x) == 0;
            if (seen) continue;
            tried[n_tried++] = x;
            const uint32_t least = form_of(f, atom->form)->n;
            if (least < 2 || count_terms(f, a, x) < least) continue;
            const form_id r = cancel_factor(f, a, x);
            if (r != FORM_NONE) return r;
        }
    }
    return FORM_NONE;
}

form_id form_cancel(struct forms *f, form_id a) {
    if (a == FORM_NONE || form_of(f, a)->n < 2 || form_of(f, a)->n > MAX_DIVIDED) return a;
    if (f->cancelling) return a;
    f->cancelling = true;
    for (int i = 0; i < MAX_CANCELLED; i++) {
        const form_id r = cancel_once(f, a);
        if (r == FORM_NONE) break;
        a = r;
    }
    f->cancelling = false;
    return a;
}
