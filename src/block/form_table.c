/* form_table.c - see form_table.h. */
#include "block/form_table.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

/* ---- hashing ---- */

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

/* ---- tables of ids ---- */

static void table_put(struct id_table *t, uint64_t hash, uint32_t id) {
    for (uint64_t i = hash;; i++) {
        uint32_t *slot = &t->ids[i & (t->capacity - 1)];
        if (*slot != 0) continue;
        *slot = id;
        return;
    }
}

/* Makes room for one more id; hash_at returns the hash of an id. */
static bool table_grow(struct forms *f, struct id_table *t,
                       uint64_t (*hash_at)(const struct forms *, uint32_t)) {
    if (t->n * 2 < t->capacity) return true;
    struct id_table bigger = {.n = t->n, .capacity = t->capacity > 0 ? t->capacity * 2 : 256};
    bigger.ids = calloc(bigger.capacity, sizeof *bigger.ids);
    if (bigger.ids == NULL) {
        f->nomem = true;
        return false;
    }
    for (uint32_t i = 0; i < t->capacity; i++)
        if (t->ids[i] != 0) table_put(&bigger, hash_at(f, t->ids[i]), t->ids[i]);
    free(t->ids);
    *t = bigger;
    return true;
}

static uint64_t atom_hash_at(const struct forms *f, uint32_t id) {
    return atom_of(f, id)->hash;
}
static uint64_t mono_hash_at(const struct forms *f, uint32_t id) {
    return mono_of(f, id)->hash;
}
static uint64_t form_hash_at(const struct forms *f, uint32_t id) {
    return form_of(f, id)->hash;
}

int forms_new(struct diag *d, struct forms **out) {
    struct forms *f = calloc(1, sizeof *f);
    *out = NULL;
    if (f == NULL) return fail_nomem(d, sizeof *f, "normal forms");
    /* Record 0 of each array means "not decided". Monomial 1 is 1, form 1 is 0. */
    const struct atom no_atom = {0};
    int rc = ARRAY_PUSH(d, &f->atoms, no_atom);
    if (rc == QN_OK) rc = ARRAY_PUSH(d, &f->monos, (struct mono){0});
    if (rc == QN_OK) rc = ARRAY_PUSH(d, &f->forms, (struct form){0});
    if (rc == QN_OK) rc = ARRAY_RESERVE(d, &f->maps, 2);
    if (rc == QN_OK) {
        f->maps.n = 2;
        memset(f->maps.items, 0, 2 * sizeof *f->maps.items);
        mono_intern(f, NULL, 0);
        form_intern(f, NULL, 0);
        rc = forms_status(d, f);
    }
    if (rc != QN_OK) {
        forms_free(f);
        return rc;
    }
    *out = f;
    return QN_OK;
}

void forms_free(struct forms *f) {
    if (f == NULL) return;
    arena_fini(&f->arena);
    ARRAY_FINI(&f->atoms);
    ARRAY_FINI(&f->monos);
    ARRAY_FINI(&f->forms);
    ARRAY_FINI(&f->maps);
    free(f->atom_at.ids);
    free(f->mono_at.ids);
    free(f->form_at.ids);
    free(f->memo);
    form_forget_target(f);
    free(f);
}

int forms_status(struct diag *d, const struct forms *f) {
    return f->nomem ? fail(d, QN_ENOMEM, "out of memory for normal forms") : QN_OK;
}

void forms_bound(struct forms *f, uint64_t look_ups) {
    f->look_ups = 0;
    f->most_look_ups = look_ups;
}

/* Whether one more look-up may be made, and the table has room. */
static bool may_look_up(struct forms *f, size_t records) {
    f->look_ups++;
    return records < FORM_MAX_RECORDS && !forms_spent(f);
}

void forms_stats(const struct forms *f, struct form_stats *s) {
    *s = (struct form_stats){(uint32_t)f->atoms.n - 1, (uint32_t)f->monos.n - 1,
                             (uint32_t)f->forms.n - 1};
}

/* ---- rationals ---- */

static uint64_t magnitude(int64_t x) {
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

static uint64_t divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

bool rational_make(int64_t num, int64_t den, struct rational *out) {
    if (den == 0 || num == INT64_MIN || den == INT64_MIN) return false;
    const int64_t g = (int64_t)divisor(magnitude(num), magnitude(den));
    *out = (struct rational){den < 0 ? -(num / g) : num / g, den < 0 ? -(den / g) : den / g};
    return true;
}

bool rational_mul(struct rational a, struct rational b, struct rational *out) {
    const int64_t g = (int64_t)divisor(magnitude(a.num), (uint64_t)b.den);
    const int64_t h = (int64_t)divisor(magnitude(b.num), (uint64_t)a.den);
    int64_t num, den;
    if (__builtin_mul_overflow(a.num / g, b.num / h, &num) ||
        __builtin_mul_overflow(a.den / h, b.den / g, &den) || num == INT64_MIN)
        return false;
    *out = (struct rational){num, den};
    return true;
}

bool rational_add(struct rational a, struct rational b, struct rational *out) {
    const int64_t g = (int64_t)divisor((uint64_t)a.den, (uint64_t)b.den);
    int64_t x, y, num, den;
    if (__builtin_mul_overflow(a.num, b.den / g, &x) ||
        __builtin_mul_overflow(b.num, a.den / g, &y) || __builtin_add_overflow(x, y, &num) ||
        __builtin_mul_overflow(a.den, b.den / g, &den))
        return false;
    return rational_make(num, den, out);
}

bool rational_inverse(struct rational a, struct rational *out) {
    return rational_make(a.den, a.num, out);
}

/* ---- atoms ---- */

/* A binding atom takes copies above all that are bound inside it and below all that are bound
 * outside. So all its variables are bound if the largest copy inside it is its own. */
static void atom_free_dims(const struct forms *f, struct atom *a) {
    uint32_t free = 0, inside = 0, height = 0, outer = 0, own = 0;
    if (a->kind == ATOM_INPUT) {
        for (int i = 0; i < a->n; i++) {
            if (!INDEX_IS_VAR(a->at[i])) {
                const struct atom *at = atom_of(f, f->maps.items[INDEX_MAP(a->at[i])].atom);
                free |= at->free;
                inside |= at->inside;
                outer = MAX(outer, at->outer);
                continue;
            }
            *(INDEX_COPY(a->at[i]) == 0 ? &free : &inside) |= 1u << INDEX_DIM(a->at[i]);
            outer = MAX(outer, INDEX_COPY(a->at[i]));
        }
    }
    if (a->mono != 0) {
        const struct mono *m = mono_of(f, a->mono);
        free |= m->free;
        inside |= m->inside;
        outer = MAX(outer, m->outer);
        height = MAX(height, m->height);
    }
    if (a->form != 0) {
        const struct form *p = form_of(f, a->form);
        free |= p->free;
        inside |= p->inside;
        outer = MAX(outer, p->outer);
        height = MAX(height, p->height);
    }
    if (a->kind == ATOM_SUM || a->kind == ATOM_MAX || a->kind == ATOM_CHOOSE)
        for (int i = 0; i < a->n; i++) own = MAX(own, INDEX_COPY(a->at[i]));
    a->free = free;
    a->outer = outer > own ? outer : 0;
    a->inside = outer > own ? inside : 0; /* dims that the atom binds may be among them */
    a->height = (uint8_t)MAX(height, own);
}

/* A map's hash does not depend on its number. */
static uint64_t map_hash(const struct forms *f, uint32_t map) {
    if (map <= MAP_SWAP) return map;
    const struct index_map *m = &f->maps.items[map];
    return mix(2 + m->swapped, atom_of(f, m->atom)->hash);
}

static uint64_t atom_hash(const struct forms *f, const struct atom *a) {
    uint64_t h = mix(mix(a->kind + 1, a->tensor), a->input + ((uint64_t)a->which << 8));
    if (a->mono != 0) h = mix(h, mono_of(f, a->mono)->hash);
    if (a->form != 0) h = mix(h, form_of(f, a->form)->hash);
    for (int i = 0; i < a->n; i++)
        h = mix(mix(h, INDEX_VAR(a->at[i]) + 1), map_hash(f, INDEX_MAP(a->at[i])));
    return h;
}

static bool atom_same(const struct atom *a, const struct atom *b) {
    return a->hash == b->hash && a->kind == b->kind && a->n == b->n && a->input == b->input &&
           a->which == b->which && a->tensor == b->tensor && a->mono == b->mono &&
           a->form == b->form && memcmp(a->at, b->at, sizeof a->at) == 0;
}

atom_id atom_intern(struct forms *f, struct atom a) {
    atom_free_dims(f, &a);
    a.map[0] = a.map[1] = 0;
    a.hash = atom_hash(f, &a);
    if (!table_grow(f, &f->atom_at, atom_hash_at) || !may_look_up(f, f->atoms.n)) return 0;
    for (uint64_t i = a.hash;; i++) {
        const uint32_t id = f->atom_at.ids[i & (f->atom_at.capacity - 1)];
        if (id == 0) break;
        if (atom_same(atom_of(f, id), &a)) return id;
    }
    if (ARRAY_PUSH(NULL, &f->atoms, a) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    const uint32_t id = (uint32_t)f->atoms.n - 1;
    f->atom_at.n++;
    table_put(&f->atom_at, a.hash, id);
    return id;
}

int atom_compare(const struct forms *f, atom_id a, atom_id b) {
    const uint64_t x = atom_of(f, a)->hash, y = atom_of(f, b)->hash;
    if (x != y) return x < y ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* ---- monomials ---- */

/* Insertion sort: monomials are short and mostly in order. */
static void sort_factors(const struct forms *f, struct factor *x, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        const struct factor moved = x[i];
        uint32_t at = i;
        for (; at > 0 && atom_compare(f, x[at - 1].atom, moved.atom) > 0; at--) x[at] = x[at - 1];
        x[at] = moved;
    }
}

/* Merges equal atoms of sorted factors; UINT32_MAX: an exponent is too large. */
static uint32_t merge_factors(struct factor *x, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n;) {
        struct rational e = {0, 1};
        const atom_id atom = x[i].atom;
        for (; i < n && x[i].atom == atom; i++)
            if (!rational_add(e, (struct rational){x[i].num, x[i].den}, &e)) return UINT32_MAX;
        if (e.num == 0) continue;
        if (magnitude(e.num) > FORM_MAX_POWER || e.den > FORM_MAX_POWER) return UINT32_MAX;
        x[kept++] = (struct factor){atom, (int32_t)e.num, (int32_t)e.den};
    }
    return kept;
}

static mono_id mono_push(struct forms *f, struct mono m, const struct factor *factors) {
    struct factor *kept;
    if (ARENA_NEW(NULL, &f->arena, &kept, m.n) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    if (m.n > 0) memcpy(kept, factors, m.n * sizeof *kept);
    m.factors = kept;
    if (ARRAY_PUSH(NULL, &f->monos, m) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    const uint32_t id = (uint32_t)f->monos.n - 1;
    f->mono_at.n++;
    table_put(&f->mono_at, m.hash, id);
    return id;
}

mono_id mono_intern(struct forms *f, const struct factor *factors, uint32_t n) {
    struct factor x[FORM_MAX_FACTORS];
    if (n > FORM_MAX_FACTORS || !table_grow(f, &f->mono_at, mono_hash_at) ||
        !may_look_up(f, f->monos.n))
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        if (factors[i].atom == 0) return 0;
        x[i] = factors[i];
    }
    sort_factors(f, x, n);
    n = merge_factors(x, n);
    if (n == UINT32_MAX) return 0;
    struct mono m = {.hash = 7, .n = n};
    for (uint32_t i = 0; i < n; i++) {
        const struct atom *a = atom_of(f, x[i].atom);
        m.free |= a->free;
        m.inside |= a->inside;
        m.outer = MAX(m.outer, a->outer);
        m.height = MAX(m.height, a->height);
        m.hash =
            mix(mix(m.hash, a->hash), ((uint64_t)(uint32_t)x[i].num << 32) + (uint32_t)x[i].den);
    }
    for (uint64_t i = m.hash;; i++) {
        const uint32_t id = f->mono_at.ids[i & (f->mono_at.capacity - 1)];
        if (id == 0) break;
        const struct mono *old = mono_of(f, id);
        if (old->hash == m.hash && old->n == n &&
            (n == 0 || memcmp(old->factors, x, n * sizeof *x) == 0))
            return id;
    }
    return mono_push(f, m, x);
}

int mono_compare(const struct forms *f, mono_id a, mono_id b) {
    const uint64_t x = mono_of(f, a)->hash, y = mono_of(f, b)->hash;
    if (x != y) return x < y ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* ---- forms ---- */

static void sort_terms(const struct forms *f, struct term *x, struct term *spare, uint32_t n) {
    if (n < 2) return;
    const uint32_t half = n / 2;
    sort_terms(f, x, spare, half);
    sort_terms(f, x + half, spare, n - half);
    memcpy(spare, x, half * sizeof *x);
    for (uint32_t i = 0, j = half, at = 0; i < half; at++)
        x[at] = j < n && mono_compare(f, x[j].mono, spare[i].mono) < 0 ? x[j++] : spare[i++];
}

static uint32_t merge_terms(struct term *x, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n;) {
        struct rational c = {0, 1};
        const mono_id mono = x[i].mono;
        for (; i < n && x[i].mono == mono; i++)
            if (!rational_add(c, x[i].c, &c)) return UINT32_MAX;
        if (c.num != 0) x[kept++] = (struct term){c, mono};
    }
    return kept;
}

static bool same_terms(const struct term *a, const struct term *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (a[i].mono != b[i].mono || !rational_same(a[i].c, b[i].c)) return false;
    return true;
}

static form_id form_find_or_push(struct forms *f, struct form p) {
    for (uint64_t i = p.hash;; i++) {
        const uint32_t id = f->form_at.ids[i & (f->form_at.capacity - 1)];
        if (id == 0) break;
        const struct form *old = form_of(f, id);
        if (old->hash == p.hash && old->n == p.n && same_terms(old->terms, p.terms, p.n)) return id;
    }
    struct term *kept;
    if (ARENA_NEW(NULL, &f->arena, &kept, p.n) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    if (p.n > 0) memcpy(kept, p.terms, p.n * sizeof *kept);
    p.terms = kept;
    if (ARRAY_PUSH(NULL, &f->forms, p) != QN_OK) {
        f->nomem = true;
        return 0;
    }
    const uint32_t id = (uint32_t)f->forms.n - 1;
    f->form_at.n++;
    table_put(&f->form_at, p.hash, id);
    return id;
}

form_id form_intern(struct forms *f, const struct term *terms, uint32_t n) {
    if (!table_grow(f, &f->form_at, form_hash_at) || !may_look_up(f, f->forms.n)) return 0;
    struct term few[32], *x = few;
    if (n > 16) x = malloc(2 * (size_t)n * sizeof *x);
    if (x == NULL) {
        f->nomem = true;
        return 0;
    }
    form_id id = 0;
    struct form p = {.hash = 11};
    for (uint32_t i = 0; i < n; i++) {
        if (terms[i].mono == 0) goto done;
        x[i] = terms[i];
    }
    sort_terms(f, x, x + n, n);
    p.n = merge_terms(x, n);
    if (p.n > FORM_MAX_TERMS) goto done;
    for (uint32_t i = 0; i < p.n; i++) {
        const struct mono *m = mono_of(f, x[i].mono);
        p.free |= m->free;
        p.inside |= m->inside;
        p.outer = MAX(p.outer, m->outer);
        p.height = MAX(p.height, m->height);
        p.hash = mix(mix(mix(p.hash, m->hash), (uint64_t)x[i].c.num), (uint64_t)x[i].c.den);
    }
    p.terms = x;
    id = form_find_or_push(f, p);
done:
    if (x != few) free(x);
    return id;
}

/* ---- questions of form.h ---- */

uint32_t form_dims(const struct forms *f, form_id form) {
    return form_of(f, form)->free;
}
uint32_t form_terms(const struct forms *f, form_id form) {
    return form_of(f, form)->n;
}
uint64_t form_hash(const struct forms *f, form_id form) {
    return form_of(f, form)->hash;
}
