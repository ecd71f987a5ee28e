/* form_index.c - indices: positions that atoms give, renaming, and which atoms have a variable. */
#include "block/form_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- positions ---- */

static bool is_which(const struct atom *a) {
    return a->kind == ATOM_INPUT && a->input == FORM_WHICH;
}

/* The atom that gives an index as its position; 0: no atom does, or the position is swapped. */
static atom_id position_of(const struct forms *f, index_id at) {
    const struct index_map *m = &f->maps.items[INDEX_MAP(at)];
    return INDEX_MAP(at) <= MAP_SWAP || m->swapped ? 0 : m->atom;
}

/* which(d: order) at order[..., i, ...] is i. */
static bool undo_order(const struct forms *f, const struct atom *a, index_id *out) {
    const atom_id order = is_which(a) ? position_of(f, a->at[0]) : 0;
    const struct atom *o = atom_of(f, order);
    if (order == 0 || o->input != FORM_ORDER || o->tensor != a->tensor) return false;
    *out = o->at[a->which];
    return true;
}

/* order[which(d: order), ...] is the place, if every which is of that place. */
static bool undo_which(const struct forms *f, const struct atom *a, index_id *out) {
    if (a->input != FORM_ORDER || a->n == 0) return false;
    for (int i = 0; i < a->n; i++) {
        const atom_id position = position_of(f, a->at[i]);
        const struct atom *w = atom_of(f, position);
        if (position == 0 || !is_which(w) || w->tensor != a->tensor || w->which != i) return false;
        if (i > 0 && w->at[0] != *out) return false;
        *out = w->at[0];
    }
    return true;
}

/* The number of the map for an atom's position; 0: no more maps. */
static uint32_t map_of(struct forms *f, atom_id id, bool swapped) {
    uint16_t *map = &f->atoms.items[id].map[swapped];
    if (*map != 0) return *map;
    if (f->maps.n > 0xfff0) return 0;
    if (ARRAY_PUSH(NULL, &f->maps, (struct index_map){id, swapped}) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    *map = (uint16_t)(f->maps.n - 1);
    return *map;
}

/* Moves an index to the other half of its dim; false: no more maps. */
static bool index_swap(struct forms *f, index_id *at) {
    const uint32_t map = INDEX_MAP(*at);
    if (map <= MAP_SWAP) {
        *at = INDEX_OF(INDEX_VAR(*at), map == MAP_SWAP ? MAP_NONE : MAP_SWAP);
        return true;
    }
    const struct index_map m = f->maps.items[map];
    const uint32_t other = map_of(f, m.atom, !m.swapped);
    *at = INDEX_OF(NO_VAR, other);
    return other != 0;
}

bool index_of_atom(struct forms *f, atom_id id, bool swapped, index_id *out) {
    const struct atom a = *atom_of(f, id);
    if (id == 0 || a.kind != ATOM_INPUT || a.input < FORM_INDEX) return false;
    if (undo_order(f, &a, out) || undo_which(f, &a, out)) return !swapped || index_swap(f, out);
    const uint32_t map = map_of(f, id, swapped);
    *out = INDEX_OF(NO_VAR, map);
    return map != 0;
}

/* ---- renaming ---- */

static bool touches(const struct renaming *r, uint32_t n, uint32_t free, uint32_t inside) {
    for (uint32_t i = 0; i < n; i++)
        if ((INDEX_COPY(r[i].from) == 0 ? free : inside) >> INDEX_DIM(r[i].from) & 1) return true;
    return false;
}

/* false: not decided */
static bool index_rename(struct forms *f, index_id *at, const struct renaming *r, uint32_t n) {
    if (!INDEX_IS_VAR(*at)) {
        const struct index_map m = f->maps.items[INDEX_MAP(*at)];
        return index_of_atom(f, atom_rename(f, m.atom, r, n), m.swapped, at);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (INDEX_VAR(*at) != r[i].from) continue;
        const bool swapped = INDEX_MAP(*at) == MAP_SWAP;
        *at = r[i].to;
        return !swapped || index_swap(f, at);
    }
    return true;
}

/* Whether a substitution would be captured. It cannot happen while copies grow outwards. */
static bool captured(const struct atom *a, const struct renaming *r, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (INDEX_IS_VAR(r[i].to) && INDEX_COPY(r[i].to) != 0 && INDEX_COPY(r[i].to) <= a->height)
            return true;
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

bool index_has(struct forms *f, index_id at, index_id var) {
    if (INDEX_IS_VAR(at)) return INDEX_VAR(at) == var;
    return atom_has(f, f->maps.items[INDEX_MAP(at)].atom, var);
}

bool atom_has(struct forms *f, atom_id id, index_id var) {
    const struct atom *a = atom_of(f, id);
    if (!may_have(a->free, a->inside, var)) return false;
    f->look_ups++;
    if (INDEX_COPY(var) == 0 || forms_spent(f)) return true;
    if (a->kind == ATOM_INPUT) {
        for (int i = 0; i < a->n; i++)
            if (index_has(f, a->at[i], var)) return true;
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
        if (!index_has(f, a->at[i], var)) continue;
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
