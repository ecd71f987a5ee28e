/* form_equal.c - equality after common denominators are cleared. */
#include "block/form_table.h"

#include <string.h>

enum { MAX_CLEARED = 16 }; /* denominators */

/* Finds a factor that is a form to a negative power. A form of several terms is a denominator only
 * as such a factor. */
static bool find_denominator(const struct forms *f, form_id a, atom_id *atom, int32_t *whole) {
    const struct form *p = form_of(f, a);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct mono *m = mono_of(f, p->terms[i].mono);
        for (uint32_t k = 0; k < m->n; k++) {
            const struct factor *x = &m->factors[k];
            if (x->num >= 0 || atom_of(f, x->atom)->kind != ATOM_POWER) continue;
            *atom = x->atom;
            *whole = (-x->num + x->den - 1) / x->den;
            return true;
        }
    }
    return false;
}

/* The largest whole power of the atom in a denominator. */
static int32_t largest_power(const struct forms *f, form_id a, atom_id atom) {
    const struct form *p = form_of(f, a);
    int32_t most = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct mono *m = mono_of(f, p->terms[i].mono);
        for (uint32_t k = 0; k < m->n; k++) {
            const struct factor *x = &m->factors[k];
            const int32_t whole = x->num < 0 ? (-x->num + x->den - 1) / x->den : 0;
            if (x->atom == atom && whole > most) most = whole;
        }
    }
    return most;
}

/* a times the atom's whole power, term by term: exponents add up before powers are multiplied out.
 */
static form_id times_power(struct forms *f, form_id a, atom_id atom, int32_t whole) {
    const struct form p = *form_of(f, a);
    form_id r = FORM_ZERO;
    for (uint32_t i = 0; i < p.n && r != FORM_NONE; i++) {
        const struct mono m = *mono_of(f, p.terms[i].mono);
        const struct rational c = p.terms[i].c;
        struct factor x[FORM_MAX_FACTORS];
        if (m.n == FORM_MAX_FACTORS) return FORM_NONE;
        memcpy(x, m.factors, m.n * sizeof *x);
        x[m.n] = (struct factor){atom, whole, 1};
        r = form_add(f, r, form_of_factors(f, c, x, m.n + 1));
    }
    return r;
}

bool form_equal(struct forms *f, form_id a, form_id b) {
    atom_id atom;
    int32_t whole;
    if (a == FORM_NONE || b == FORM_NONE) return false;
    if (a == b) return true;
    form_id d = form_add(f, a, form_scale(f, b, (struct rational){-1, 1}));
    for (int i = 0; i < MAX_CLEARED && d > FORM_ZERO; i++) {
        if (!find_denominator(f, d, &atom, &whole)) break;
        d = times_power(f, d, atom, largest_power(f, d, atom));
    }
    return d == FORM_ZERO;
}
