/* form_arith.c - sums, products and powers of forms.
 *
 * These rules keep forms canonical. A mask's power is the mask. An atom known to be positive may
 * have any fraction as its exponent, another atom only whole numbers. Common factors are taken out
 * of a form before its inverse or root is taken: the rest has the leading coefficient 1 (for a
 * root: 1 or -1). Whole powers of the rest are multiplied out.
 */
#include "block/form_table.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 200 };

/* atom.input of POWER atoms: an inverse would take nothing out of the form. */
enum { POWER_BARE = 1 };

form_id form_of_term(struct forms *f, struct rational c, mono_id m) {
    const struct term t = {c, m};
    if (m == 0) return FORM_NONE;
    return form_intern(f, &t, c.num != 0);
}

form_id form_of_atom(struct forms *f, atom_id a, int32_t num, int32_t den) {
    const struct factor x = {a, num, den};
    if (a == 0) return FORM_NONE;
    return form_of_term(f, (struct rational){1, 1}, mono_intern(f, &x, 1));
}

form_id form_integer(struct forms *f, int64_t n) {
    return form_of_term(f, (struct rational){n, 1}, MONO_ONE);
}

form_id form_number(struct forms *f, int64_t numerator, int64_t denominator) {
    struct rational c;
    if (!rational_make(numerator, denominator, &c)) return FORM_NONE;
    return form_of_term(f, c, MONO_ONE);
}

form_id form_input(struct forms *f, uint32_t tensor, enum form_input_kind kind, const uint8_t *dims,
                   uint32_t n) {
    struct atom a = {.kind = ATOM_INPUT, .input = (uint8_t)kind, .tensor = tensor, .n = (uint8_t)n};
    if (n > FORM_INPUT_DIMS) return FORM_NONE;
    for (uint32_t i = 0; i < n; i++) {
        if (dims[i] >= BLOCK_MAX_DIMS) return FORM_NONE;
        a.at[i] = VAR_OF(dims[i], 0);
    }
    return form_of_atom(f, atom_intern(f, a), 1, 1);
}

form_id form_size(struct forms *f, uint32_t dim) {
    return form_of_atom(f, atom_intern(f, (struct atom){.kind = ATOM_SIZE, .tensor = dim}), 1, 1);
}

/* ---- terms on their way to a form ---- */

struct sum {
    struct forms *f;
    ARRAY(struct term) terms;
    bool failed;
};

static void sum_push(struct sum *s, struct rational c, mono_id m) {
    if (s->failed || m == 0 || s->terms.n > 4 * FORM_MAX_TERMS) {
        s->failed = true;
    } else if (ARRAY_PUSH(NULL, &s->terms, (struct term){c, m}) != QN_OK) {
        s->failed = s->f->nomem = true;
    }
}

/* Adds c times a form to the sum. */
static void sum_add(struct sum *s, struct rational c, form_id a) {
    const struct form *p = form_of(s->f, a);
    s->failed = s->failed || a == FORM_NONE;
    for (uint32_t i = 0; i < p->n && !s->failed; i++) {
        struct rational product;
        s->failed = !rational_mul(c, p->terms[i].c, &product);
        sum_push(s, product, p->terms[i].mono);
    }
}

static form_id sum_finish(struct sum *s) {
    const form_id id =
        s->failed ? FORM_NONE : form_intern(s->f, s->terms.items, (uint32_t)s->terms.n);
    ARRAY_FINI(&s->terms);
    return id;
}

form_id form_add(struct forms *f, form_id a, form_id b) {
    struct sum s = {.f = f};
    if (a == FORM_ZERO) return b;
    if (b == FORM_ZERO) return a;
    sum_add(&s, (struct rational){1, 1}, a);
    sum_add(&s, (struct rational){1, 1}, b);
    return form_cancel(f, sum_finish(&s));
}

form_id form_scale(struct forms *f, form_id a, struct rational c) {
    struct sum s = {.f = f};
    if (c.num == 0 && a != FORM_NONE) return FORM_ZERO;
    sum_add(&s, c, a);
    return sum_finish(&s);
}

/* ---- products ---- */

bool atom_positive(const struct forms *f, atom_id a) {
    const uint8_t kind = atom_of(f, a)->kind;
    return kind == ATOM_SIZE || kind == ATOM_EXP;
}

static bool is_mask(const struct atom *a) {
    return a->kind == ATOM_INPUT && (a->input == FORM_MASK || a->input == FORM_SHARE);
}

/* The whole part of a POWER's exponent that must be multiplied out. */
static int32_t whole_part(const struct forms *f, const struct atom *a, const struct factor *x) {
    const struct form *base = form_of(f, a->form);
    const int32_t whole = x->num / x->den; /* towards 0 */
    if (base->n == 1 && base->terms[0].mono == MONO_ONE)
        return x->num < 0 && x->num % x->den != 0 ? whole - 1 : whole;
    return whole > 0 || (a->input & POWER_BARE) == 0 ? whole : 0;
}

/* Settles the exponents of merged factors: masks, whole powers. *more: the form that the product of
 * the remaining factors must be multiplied by; FORM_NONE: none. false: not decided. */
static bool settle(struct forms *f, struct factor *x, uint32_t *n, form_id *more) {
    uint32_t kept = 0;
    *more = FORM_NONE;
    for (uint32_t i = 0; i < *n; i++) {
        const struct atom a = *atom_of(f, x[i].atom);
        struct factor left = x[i];
        if (is_mask(&a)) {
            if (left.num < 0 || left.den != 1) return false;
            left.num = 1;
        } else if (a.kind == ATOM_POWER) {
            const int32_t whole = whole_part(f, &a, &left);
            if (whole != 0) {
                const form_id power = form_power(f, a.form, whole, 1);
                *more = *more == FORM_NONE ? power : form_mul(f, *more, power);
                if (*more == FORM_NONE) return false;
                left.num -= whole * left.den;
            }
        } else if (left.den != 1 && !atom_positive(f, left.atom)) {
            return false;
        }
        if (left.num != 0) x[kept++] = left;
    }
    *n = kept;
    return true;
}

bool mono_settled(const struct forms *f, mono_id id) {
    const struct mono *m = mono_of(f, id);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct factor *x = &m->factors[i];
        const struct atom *a = atom_of(f, x->atom);
        if (is_mask(a)              ? x->num != 1 || x->den != 1
            : a->kind == ATOM_POWER ? whole_part(f, a, x) != 0
                                    : x->den != 1 && !atom_positive(f, x->atom))
            return false;
    }
    return true;
}

form_id form_of_factors(struct forms *f, struct rational c, const struct factor *factors,
                        uint32_t n) {
    const mono_id merged = mono_intern(f, factors, n);
    if (merged == 0 || f->depth > MAX_DEPTH) return FORM_NONE;
    if (mono_settled(f, merged)) return form_of_term(f, c, merged);
    struct factor x[FORM_MAX_FACTORS];
    form_id more;
    n = mono_of(f, merged)->n;
    memcpy(x, mono_of(f, merged)->factors, n * sizeof *x);
    f->depth++;
    form_id result = FORM_NONE;
    if (settle(f, x, &n, &more)) {
        result = form_of_term(f, c, mono_intern(f, x, n));
        if (more != FORM_NONE) result = form_mul(f, result, more);
    }
    f->depth--;
    return result;
}

/* Adds the product of two terms to a sum. */
static void mul_terms(struct sum *s, const struct term *a, const struct term *b) {
    struct forms *f = s->f;
    const struct mono *x = mono_of(f, a->mono), *y = mono_of(f, b->mono);
    struct factor all[2 * FORM_MAX_FACTORS];
    struct rational c;
    if (x->n + y->n > FORM_MAX_FACTORS || !rational_mul(a->c, b->c, &c)) {
        s->failed = true;
        return;
    }
    if (x->n + y->n == 0 || x->n == 0 || y->n == 0) {
        sum_push(s, c, x->n == 0 ? b->mono : a->mono);
        return;
    }
    const uint32_t n = x->n + y->n;
    memcpy(all, x->factors, x->n * sizeof *all);
    memcpy(all + x->n, y->factors, y->n * sizeof *all);
    const mono_id merged = mono_intern(f, all, n);
    if (merged == 0) {
        s->failed = true;
    } else if (mono_settled(f, merged)) {
        sum_push(s, c, merged);
    } else {
        sum_add(s, (struct rational){1, 1}, form_of_factors(f, c, all, n));
    }
}

form_id form_mul(struct forms *f, form_id a, form_id b) {
    struct sum s = {.f = f, .failed = a == FORM_NONE || b == FORM_NONE || f->depth > MAX_DEPTH};
    const struct form x = *form_of(f, a), y = *form_of(f, b);
    s.failed = s.failed || (uint64_t)x.n * y.n > 4 * FORM_MAX_TERMS;
    f->depth++;
    for (uint32_t i = 0; i < x.n && !s.failed; i++)
        for (uint32_t j = 0; j < y.n && !s.failed; j++) mul_terms(&s, &x.terms[i], &y.terms[j]);
    f->depth--;
    return form_cancel(f, sum_finish(&s));
}

/* ---- powers ---- */

/* c^n */
static bool rational_power(struct rational c, int32_t n, struct rational *out) {
    struct rational r = {1, 1};
    if (n < 0 && !rational_inverse(c, &c)) return false;
    if (c.den == 1 && (c.num == 1 || c.num == -1)) n %= 2;
    for (int32_t i = 0; i < (n < 0 ? -n : n); i++)
        if (!rational_mul(r, c, &r)) return false;
    *out = r;
    return true;
}

static form_id repeated(struct forms *f, form_id a, int32_t n) {
    form_id r = form_integer(f, 1);
    if (n > 16) return FORM_NONE;
    for (int32_t i = 0; i < n && r != FORM_NONE; i++) r = form_mul(f, r, a);
    return r;
}

/* The form of one POWER atom: base^(num/den) for a base that cannot be simplified. */
static form_id power_atom(struct forms *f, form_id base, bool bare, int32_t num, int32_t den) {
    const struct atom a = {.kind = ATOM_POWER, .form = base, .input = bare ? POWER_BARE : 0};
    const struct factor x = {atom_intern(f, a), num, den};
    return base == FORM_NONE ? FORM_NONE : form_of_factors(f, (struct rational){1, 1}, &x, 1);
}

/* c^(num/2) of a positive rational: (s / den * root(rest))^num, with squares taken out of rest. */
static form_id root_of_number(struct forms *f, struct rational c, int32_t num) {
    int64_t rest, s = 1;
    if (__builtin_mul_overflow(c.num, c.den, &rest)) return FORM_NONE;
    for (int64_t i = 2; i <= 1000 && i * i <= rest; i++)
        while (rest % (i * i) == 0) {
            rest /= i * i;
            s *= i;
        }
    for (int64_t i = 1001; i <= 3000000000 && i * i <= rest; i++) {
        if (i * i == rest) {
            s *= i;
            rest = 1;
        }
        if (i > 100000) break;
    }
    struct rational outside, power;
    if (!rational_make(s, c.den, &outside) || !rational_power(outside, num, &power))
        return FORM_NONE;
    const form_id number = form_of_term(f, power, MONO_ONE);
    if (rest == 1) return number;
    return form_mul(f, number, power_atom(f, form_integer(f, rest), false, num, 2));
}

/* The factors that all terms share and by which the form may be divided, each with its least
 * exponent. */
static uint32_t common_factors(const struct forms *f, const struct form *p, bool positive_only,
                               struct factor *out) {
    struct factor all[FORM_MAX_FACTORS];
    uint32_t n = 0, kept = 0;
    /* Collects the atoms of all terms: in a term that lacks an atom, its exponent is 0. */
    for (uint32_t t = 0; t < p->n; t++) {
        const struct mono *m = mono_of(f, p->terms[t].mono);
        for (uint32_t i = 0; i < m->n; i++) {
            uint32_t at = 0;
            while (at < n && all[at].atom != m->factors[i].atom) at++;
            if (at == n && n < FORM_MAX_FACTORS) all[n++] = m->factors[i];
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        struct factor least = {all[k].atom, INT32_MAX, 1};
        const struct atom *a = atom_of(f, least.atom);
        if (is_mask(a)) continue;
        bool fractions = a->kind == ATOM_POWER;
        for (uint32_t t = 0; t < p->n; t++) {
            const struct mono *m = mono_of(f, p->terms[t].mono);
            struct factor e = {least.atom, 0, 1};
            for (uint32_t i = 0; i < m->n; i++)
                if (m->factors[i].atom == least.atom) e = m->factors[i];
            fractions = fractions && e.den != 1;
            if ((int64_t)e.num * least.den < (int64_t)least.num * e.den) least = e;
        }
        if (positive_only && !atom_positive(f, least.atom) && !fractions) continue;
        if (least.num != 0) out[kept++] = least;
    }
    return kept;
}

/* Splits a = c * content * *rest. *outside is (c * content)^(num/den). *rest has the leading
 * coefficient 1, for a root 1 or -1. */
static bool take_out(struct forms *f, form_id a, int32_t num, int32_t den, form_id *outside,
                     form_id *rest) {
    struct factor x[FORM_MAX_FACTORS], inverse[FORM_MAX_FACTORS];
    const struct form p = *form_of(f, a);
    const uint32_t n = common_factors(f, &p, den == 2, x);
    f->look_ups += p.n; /* common_factors reads all terms */
    for (uint32_t i = 0; i < n; i++) {
        inverse[i] = (struct factor){x[i].atom, -x[i].num, x[i].den};
        struct rational e;
        if (!rational_make((int64_t)x[i].num * num, (int64_t)x[i].den * den, &e)) return false;
        x[i] = (struct factor){x[i].atom, (int32_t)e.num, (int32_t)e.den};
    }
    *rest = n == 0 ? a : form_mul(f, a, form_of_factors(f, (struct rational){1, 1}, inverse, n));
    if (*rest == FORM_NONE || form_of(f, *rest)->n == 0) return false;
    struct rational lead = form_of(f, *rest)->terms[0].c, by, power;
    if (den == 2 && lead.num < 0) lead.num = -lead.num;
    if (!rational_inverse(lead, &by)) return false;
    *rest = form_scale(f, *rest, by);
    if (den == 2) {
        *outside = root_of_number(f, lead, num);
    } else {
        if (!rational_power(lead, num, &power)) return false;
        *outside = form_of_term(f, power, MONO_ONE);
    }
    *outside = form_mul(f, *outside, form_of_factors(f, (struct rational){1, 1}, x, n));
    return *outside != FORM_NONE && *rest != FORM_NONE;
}

/* Whether take_out for an inverse would leave a as it is. */
static bool is_bare(struct forms *f, form_id a) {
    struct factor x[FORM_MAX_FACTORS];
    const struct form p = *form_of(f, a);
    return p.n > 1 && rational_same(p.terms[0].c, (struct rational){1, 1}) &&
           common_factors(f, &p, false, x) == 0;
}

/* A single term to a whole power. */
static form_id power_of_term(struct forms *f, const struct term *t, int32_t num) {
    const struct mono m = *mono_of(f, t->mono);
    struct factor x[FORM_MAX_FACTORS];
    struct rational c;
    if (!rational_power(t->c, num, &c)) return FORM_NONE;
    for (uint32_t i = 0; i < m.n; i++) {
        int32_t e;
        if (__builtin_mul_overflow(m.factors[i].num, num, &e)) return FORM_NONE;
        x[i] = (struct factor){m.factors[i].atom, e, m.factors[i].den};
    }
    return form_of_factors(f, c, x, m.n);
}

/* A single term to the power num/2: factors known to be positive go outside the root. */
static form_id root_of_term(struct forms *f, const struct term *t, int32_t num) {
    const struct mono m = *mono_of(f, t->mono);
    struct factor outside[FORM_MAX_FACTORS] = {0}, inside[FORM_MAX_FACTORS] = {0};
    uint32_t n_outside = 0, n_inside = 0;
    struct rational c = t->c;
    for (uint32_t i = 0; i < m.n; i++) {
        struct factor x = m.factors[i];
        const bool root = atom_of(f, x.atom)->kind == ATOM_POWER && x.den != 1;
        struct rational e;
        if (atom_positive(f, x.atom) || root) {
            if (!rational_make((int64_t)x.num * num, (int64_t)x.den * 2, &e)) return FORM_NONE;
            outside[n_outside++] = (struct factor){x.atom, (int32_t)e.num, (int32_t)e.den};
        } else {
            inside[n_inside++] = x;
        }
    }
    const int64_t sign = c.num < 0 ? -1 : 1;
    c.num *= sign;
    form_id r = form_mul(f, root_of_number(f, c, num),
                         form_of_factors(f, (struct rational){1, 1}, outside, n_outside));
    if (n_inside == 0 && sign > 0) return r;
    const form_id base = form_of_factors(f, (struct rational){sign, 1}, inside, n_inside);
    return form_mul(f, r, power_atom(f, base, false, num, 2));
}

form_id form_power(struct forms *f, form_id a, int32_t num, int32_t den) {
    if (a == FORM_NONE || f->depth > MAX_DEPTH || (den != 1 && den != 2)) return FORM_NONE;
    if (num % 2 == 0 && den == 2) return form_power(f, a, num / 2, 1);
    const struct form p = *form_of(f, a);
    if (p.n == 0) return num > 0 ? FORM_ZERO : FORM_NONE;
    form_id outside = FORM_NONE, rest = FORM_NONE, result = FORM_NONE;
    f->depth++;
    if (p.n == 1) {
        const struct term t = p.terms[0];
        result = den == 1 ? power_of_term(f, &t, num) : root_of_term(f, &t, num);
    } else if (den == 1 && num >= 0) {
        result = repeated(f, a, num);
    } else if (take_out(f, a, num, den, &outside, &rest)) {
        if (form_of(f, rest)->n == 1 && rest != a)
            result = form_mul(f, outside, form_power(f, rest, num, den));
        else
            result =
                form_mul(f, outside, power_atom(f, rest, den == 1 || is_bare(f, rest), num, den));
    }
    f->depth--;
    return result;
}
