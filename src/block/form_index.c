/* form_index.c - variables of indices: renaming, and which atoms have one. */
#include "block/form_table.h"

#include <stdlib.h>
#include <string.h>

/* The number of the map with this record; 0: no more. */
static uint32_t map_intern(struct forms *f, struct index_map m) {
    for (uint32_t i = 2; i < f->maps.n; i++) {
        const struct index_map *old = &f->maps.items[i];
        if (old->tensor == m.tensor && old->outer == m.outer && old->inner == m.inner) return i;
    }
    if (f->maps.n > 0xfff0) return 0;
    if (ARRAY_PUSH(NULL, &f->maps, m) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    return (uint32_t)f->maps.n - 1;
}

uint32_t map_of_tensor(struct forms *f, uint32_t tensor) {
    return map_intern(f, (struct index_map){tensor, 0, 0});
}

/* outer(inner(variable)); UINT32_MAX: no more. */
static uint32_t map_compose(struct forms *f, uint32_t outer, uint32_t inner) {
    if (outer == MAP_NONE) return inner;
    if (inner == MAP_NONE) return outer;
    if (outer == MAP_SWAP && inner == MAP_SWAP) return MAP_NONE;
    const uint32_t map = map_intern(f, (struct index_map){UINT32_MAX, outer, inner});
    return map == 0 ? UINT32_MAX : map;
}

static bool touches(const struct renaming *r, uint32_t n, uint32_t free, uint32_t inside) {
    for (uint32_t i = 0; i < n; i++)
        if ((INDEX_COPY(r[i].from) == 0 ? free : inside) >> INDEX_DIM(r[i].from) & 1) return true;
    return false;
}

/* false: not decided */
static bool index_rename(struct forms *f, index_id *at, const struct renaming *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (INDEX_VAR(*at) != r[i].from) continue;
        const uint32_t map = map_compose(f, INDEX_MAP(*at), INDEX_MAP(r[i].to));
        if (map == UINT32_MAX) return false;
        *at = INDEX_OF(INDEX_VAR(r[i].to), map);
        return true;
    }
    return true;
}

/* Whether a substitution would be captured: cannot happen while copies grow outwards. */
static bool captured(const struct atom *a, const struct renaming *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (INDEX_COPY(r[i].to) != 0 && INDEX_COPY(r[i].to) <= a->height) return true;
    return false;
}

static mono_id mono_rename(struct forms *f, mono_id id, const struct renaming *r, uint32_t n) {
    const struct mono m = *mono_of(f, id);
    struct factor x[FORM_MAX_FACTORS];
    if (!touches(r, n, m.free, m.inside)) return id;
    memcpy(x, m.factors, m.n * sizeof *x);
    return factors_rename(f, x, m.n, r, n) ? mono_intern(f, x, m.n) : 0;
}

atom_id atom_rename(struct forms *f, atom_id id, const struct renaming *r, uint32_t n) {
    struct atom a = *atom_of(f, id);
    if (!touches(r, n, a.free, a.inside)) return id;
    if (a.kind == ATOM_INPUT) {
        for (int i = 0; i < a.n; i++)
            if (!index_rename(f, &a.at[i], r, n)) return 0;
        return atom_intern(f, a);
    }
    if (captured(&a, r, n)) return 0;
    if (a.mono != 0 && (a.mono = mono_rename(f, a.mono, r, n)) == 0) return 0;
    if (a.form != 0 && (a.form = form_rename(f, a.form, r, n)) == 0) return 0;
    return atom_intern(f, a);
}

bool factors_rename(struct forms *f, struct factor *factors, uint32_t n_factors,
                    const struct renaming *r, uint32_t n) {
    for (uint32_t i = 0; i < n_factors; i++)
        if ((factors[i].atom = atom_rename(f, factors[i].atom, r, n)) == 0) return false;
    return true;
}

form_id form_rename(struct forms *f, form_id id, const struct renaming *r, uint32_t n) {
    const struct form p = *form_of(f, id);
    struct term few[64];
    if (!touches(r, n, p.free, p.inside)) return id;
    struct term *x = p.n > 64 ? malloc(p.n * sizeof *x) : few;
    if (x == NULL) {
        f->nomem = true;
        return FORM_NONE;
    }
    form_id result = FORM_NONE;
    uint32_t i = 0;
    for (; i < p.n; i++) {
        x[i].c = p.terms[i].c;
        if ((x[i].mono = mono_rename(f, p.terms[i].mono, r, n)) == 0) break;
    }
    if (i == p.n) result = form_intern(f, x, p.n);
    if (x != few) free(x);
    return result;
}

/* ---- atoms with a variable ---- */

static bool may_have(uint32_t free, uint32_t inside, index_id var) {
    return (INDEX_COPY(var) == 0 ? free : inside) >> INDEX_DIM(var) & 1;
}

static bool mono_has(struct forms *f, mono_id id, index_id var) {
    const struct mono *m = mono_of(f, id);
    if (!may_have(m->free, m->inside, var)) return false;
    for (uint32_t i = 0; i < m->n; i++)
        if (atom_has(f, m->factors[i].atom, var)) return true;
    return false;
}

bool atom_has(struct forms *f, atom_id id, index_id var) {
    const struct atom *a = atom_of(f, id);
    if (!may_have(a->free, a->inside, var)) return false;
    f->look_ups++;
    if (INDEX_COPY(var) == 0 || forms_spent(f)) return true;
    if (a->kind == ATOM_INPUT) {
        for (int i = 0; i < a->n; i++)
            if (INDEX_VAR(a->at[i]) == var) return true;
        return false;
    }
    return (a->mono != 0 && mono_has(f, a->mono, var)) ||
           (a->form != 0 && form_has(f, a->form, var));
}

bool form_has(struct forms *f, form_id id, index_id var) {
    const struct form *p = form_of(f, id);
    if (!may_have(p->free, p->inside, var)) return false;
    for (uint32_t i = 0; i < p->n; i++)
        if (mono_has(f, p->terms[i].mono, var)) return true;
    return false;
}

static void mono_count(struct forms *f, mono_id id, index_id var, struct index_count *c) {
    const struct mono *m = mono_of(f, id);
    if (!may_have(m->free, m->inside, var)) return;
    for (uint32_t i = 0; i < m->n; i++) atom_count(f, m->factors[i].atom, var, c);
}

void atom_count(struct forms *f, atom_id id, index_id var, struct index_count *c) {
    const struct atom *a = atom_of(f, id);
    if (!may_have(a->free, a->inside, var) || forms_spent(f)) return;
    f->look_ups++;
    for (int i = 0; a->kind == ATOM_INPUT && i < a->n; i++) {
        const uint32_t map = INDEX_MAP(a->at[i]);
        if (INDEX_VAR(a->at[i]) != var) continue;
        (*(map == MAP_NONE ? &c->plain : map == MAP_SWAP ? &c->swapped : &c->other))++;
    }
    if (a->mono != 0) mono_count(f, a->mono, var, c);
    if (a->form != 0) form_count(f, a->form, var, c);
}

void form_count(struct forms *f, form_id id, index_id var, struct index_count *c) {
    const struct form *p = form_of(f, id);
    if (!may_have(p->free, p->inside, var)) return;
    for (uint32_t i = 0; i < p->n; i++) mono_count(f, p->terms[i].mono, var, c);
}
