/* form_sum.c - sums and largest values over dims: the atoms that bind variables, and the names of
 * these variables.
 *
 * A sum takes in only the factors that have its variable. A sum among them is opened, so that a SUM
 * atom is one sum over all variables that join its factors. Each joined part gets an atom of its
 * own. While an atom is made, its variables have copies from TEMPORARY on.
 */
#include "block/form_table.h"
#include "base/checked.h"

#include <string.h>

enum { TEMPORARY = FORM_MAX_COPIES + 1, LAST_COPY = 255 };

/* A binding atom while it is made. */
struct binder {
    struct forms *f;
    struct factor x[FORM_MAX_FACTORS];
    uint32_t n;
    form_id form; /* MAX, CHOOSE: the form whose largest value is taken, else FORM_NONE */
    index_id bound[FORM_MAX_BOUND];
    uint32_t n_bound;
    uint32_t next; /* temporary copy */
};

static bool bind(struct binder *b, uint32_t dim, index_id *var) {
    if (b->n_bound == FORM_MAX_BOUND || b->next > LAST_COPY) return false;
    *var = VAR_OF(dim, b->next++);
    b->bound[b->n_bound++] = *var;
    return true;
}

static bool add_factor(struct binder *b, struct factor x) {
    if (b->n == FORM_MAX_FACTORS || x.atom == 0) return false;
    b->x[b->n++] = x;
    return true;
}

/* ---- names ---- */

/* The trial of names: slot i gets one of the variables of its dim. */
struct naming {
    struct forms *f;
    const struct binder *b;
    enum atom_kind kind;
    struct renaming r[FORM_MAX_BOUND];
    index_id slot[FORM_MAX_BOUND];
    bool used[FORM_MAX_BOUND];
    uint8_t first_map[FORM_MAX_BOUND], last_map[FORM_MAX_BOUND];
    uint32_t trials;
    bool failed;
    mono_id mono; /* the least so far; 0: none */
    form_id form;
};

static void try_names(struct naming *t) {
    struct forms *f = t->f;
    const struct binder *b = t->b;
    struct factor x[FORM_MAX_FACTORS];
    memcpy(x, b->x, b->n * sizeof *x);
    const mono_id mono = factors_rename(f, x, b->n, t->r, b->n_bound) ? mono_intern(f, x, b->n) : 0;
    const form_id form =
        b->form == FORM_NONE ? FORM_NONE : form_rename(f, b->form, t->r, b->n_bound);
    t->failed = t->failed || mono == 0 || (b->form != FORM_NONE && form == FORM_NONE) ||
                ++t->trials > FORM_MAX_TRIALS;
    if (t->failed) return;
    int order = t->mono == 0 ? -1 : mono_compare(f, mono, t->mono);
    if (order == 0 && form != t->form) {
        const uint64_t p = form_of(f, form)->hash, q = form_of(f, t->form)->hash;
        order = p != q ? (p < q ? -1 : 1) : (form < t->form ? -1 : 1);
    }
    if (order >= 0) return;
    t->mono = mono;
    t->form = form;
}

static void fill_slot(struct naming *t, uint32_t slot) {
    const struct binder *b = t->b;
    if (slot == b->n_bound) {
        try_names(t);
        return;
    }
    for (uint32_t i = 0; i < b->n_bound && !t->failed; i++) {
        if (t->used[i] || INDEX_DIM(b->bound[i]) != INDEX_DIM(t->slot[slot])) continue;
        t->used[i] = true;
        for (uint32_t map = t->first_map[i]; map <= t->last_map[i]; map++) {
            t->r[i] = (struct renaming){b->bound[i], INDEX_OF(t->slot[slot], map)};
            fill_slot(t, slot + 1);
        }
        t->used[i] = false;
    }
}

/* The first copy above all copies that are bound inside. */
static uint32_t first_copy(const struct binder *b) {
    uint32_t height = b->form == FORM_NONE ? 0 : form_of(b->f, b->form)->height;
    for (uint32_t i = 0; i < b->n; i++) height = MAX(height, atom_of(b->f, b->x[i].atom)->height);
    return height + 1;
}

/* A sum over a variable equals the sum over its swapped places. The naming with fewer swapped
 * indices is tried, or both if the counts are equal. */
static void which_swaps(const struct binder *b, index_id var, uint8_t *first, uint8_t *last) {
    struct index_count c = {0};
    for (uint32_t i = 0; i < b->n; i++) atom_count(b->f, b->x[i].atom, var, &c);
    if (b->form != FORM_NONE) form_count(b->f, b->form, var, &c);
    *first = *last = MAP_NONE;
    if (c.other > 0 || c.swapped < c.plain || c.swapped == 0) return;
    *last = MAP_SWAP;
    if (c.swapped > c.plain) *first = MAP_SWAP;
}

/* The atom that binds all variables of b; 0: not decided. */
static atom_id name_bound(const struct binder *b, enum atom_kind kind) {
    struct naming t = {.f = b->f, .b = b, .kind = kind};
    struct atom a = {.kind = (uint8_t)kind, .n = (uint8_t)b->n_bound};
    const uint32_t first = first_copy(b);
    if (first + b->n_bound > FORM_MAX_COPIES) return 0;
    uint32_t n = 0;
    for (uint32_t dim = 0; dim < BLOCK_MAX_DIMS; dim++)
        for (uint32_t i = 0, copy = first; i < b->n_bound; i++)
            if (INDEX_DIM(b->bound[i]) == dim) t.slot[n++] = VAR_OF(dim, copy++);
    for (uint32_t i = 0; i < b->n_bound; i++)
        if (kind != ATOM_CHOOSE) which_swaps(b, b->bound[i], &t.first_map[i], &t.last_map[i]);
    fill_slot(&t, 0);
    if (t.failed || t.mono == 0) return 0;
    a.mono = t.mono;
    a.form = t.form;
    memcpy(a.at, t.slot, b->n_bound * sizeof *a.at);
    return atom_intern(b->f, a);
}

/* ---- variables without need ---- */

static void unbind(struct binder *b, uint32_t i) {
    b->bound[i] = b->bound[--b->n_bound];
}

/* The only factor that has the variable; b->n: none has it, UINT32_MAX: several. */
static uint32_t only_factor(const struct binder *b, index_id var) {
    uint32_t at = b->n;
    for (uint32_t i = 0; i < b->n; i++) {
        if (!atom_has(b->f, b->x[i].atom, var)) continue;
        if (at != b->n) return UINT32_MAX;
        at = i;
    }
    return at;
}

/* Whether the factor is a share [var, p...]: for each p it is 1 at one value of var. */
static bool is_share_of(const struct binder *b, uint32_t i, index_id var) {
    const struct atom *a = atom_of(b->f, b->x[i].atom);
    if (a->kind != ATOM_INPUT || a->input != FORM_SHARE || a->at[0] != var) return false;
    for (int k = 1; k < a->n; k++)
        if (index_has(b->f, a->at[k], var)) return false;
    return b->x[i].num == 1 && b->x[i].den == 1;
}

/* Drops shares that are summed over, and variables that no factor and not the form has. Appends the
 * sizes of the latter to sizes; for a MAX, sizes is NULL. */
static bool drop_unused(struct binder *b, struct factor *sizes, uint32_t *n_sizes) {
    for (uint32_t i = 0; i < b->n_bound;) {
        const index_id var = b->bound[i];
        const uint32_t at = only_factor(b, var);
        const bool in_form = b->form != FORM_NONE && form_has(b->f, b->form, var);
        if (at == b->n && !in_form) {
            const struct atom size = {.kind = ATOM_SIZE, .tensor = INDEX_DIM(var)};
            if (sizes != NULL) sizes[(*n_sizes)++] = (struct factor){atom_intern(b->f, size), 1, 1};
            unbind(b, i);
        } else if (at < b->n && !in_form && is_share_of(b, at, var)) {
            b->x[at] = b->x[--b->n];
            unbind(b, i);
            i = 0; /* another variable may be free of factors now */
        } else {
            i++;
        }
    }
    return true;
}

/* ---- sums ---- */

/* Adds the factors of a sum to b, with its variables under temporary names. */
static bool open_sum(struct binder *b, atom_id id) {
    const struct atom a = *atom_of(b->f, id);
    const struct mono m = *mono_of(b->f, a.mono);
    struct renaming r[FORM_MAX_BOUND];
    for (uint32_t i = 0; i < a.n; i++) {
        r[i].from = a.at[i];
        if (!bind(b, INDEX_DIM(a.at[i]), &r[i].to)) return false;
    }
    for (uint32_t i = 0; i < m.n; i++) {
        const atom_id inner = atom_rename(b->f, m.factors[i].atom, r, a.n);
        if (!add_factor(b, (struct factor){inner, m.factors[i].num, m.factors[i].den}))
            return false;
    }
    return true;
}

/* Opens all sums among b's factors. */
static bool open_sums(struct binder *b) {
    for (uint32_t i = 0; i < b->n;) {
        const struct factor x = b->x[i];
        if (atom_of(b->f, x.atom)->kind != ATOM_SUM || x.num < 0 || x.den != 1) {
            i++;
            continue;
        }
        b->x[i] = b->x[--b->n];
        for (int32_t k = 0; k < x.num; k++)
            if (!open_sum(b, x.atom)) return false;
    }
    return true;
}

/* Moves b's first factor and all factors joined with it to *part, with their variables. */
static void split_part(struct binder *b, struct binder *part) {
    *part = (struct binder){.f = b->f};
    bool taken[FORM_MAX_BOUND] = {false};
    part->x[part->n++] = b->x[0];
    b->x[0] = b->x[--b->n];
    for (bool grew = true; grew;) {
        grew = false;
        for (uint32_t v = 0; v < b->n_bound; v++) {
            bool has = false;
            for (uint32_t i = 0; i < part->n; i++)
                has = has || atom_has(b->f, part->x[i].atom, b->bound[v]);
            if (!has || taken[v]) continue;
            taken[v] = grew = true;
            part->bound[part->n_bound++] = b->bound[v];
            for (uint32_t i = 0; i < b->n;) {
                if (!atom_has(b->f, b->x[i].atom, b->bound[v])) {
                    i++;
                    continue;
                }
                part->x[part->n++] = b->x[i];
                b->x[i] = b->x[--b->n];
            }
        }
    }
}

/* The sum over all of b's variables, times the factors outside. */
static form_id finish_sum(struct binder *b, struct rational c, struct factor *outside, uint32_t n) {
    struct factor sizes[FORM_MAX_BOUND + 1];
    uint32_t n_sizes = 0;
    drop_unused(b, sizes, &n_sizes);
    for (uint32_t i = 0; i < n_sizes; i++) {
        if (n == FORM_MAX_FACTORS) return FORM_NONE;
        outside[n++] = sizes[i];
    }
    while (b->n > 0) {
        struct binder part;
        split_part(b, &part);
        if (n + part.n > FORM_MAX_FACTORS) return FORM_NONE;
        if (part.n_bound == 0) {
            for (uint32_t i = 0; i < part.n; i++) outside[n++] = part.x[i];
            continue;
        }
        const atom_id sum = name_bound(&part, ATOM_SUM);
        if (sum == 0) return FORM_NONE;
        outside[n++] = (struct factor){sum, 1, 1};
    }
    return form_of_factors(b->f, c, outside, n);
}

/* Merges the factors of opened sums. A mask's power is the mask; an atom must be able to keep any
 * other exponent. */
static bool merge_inside(struct binder *b) {
    mono_id merged = mono_intern(b->f, b->x, b->n);
    if (merged == 0) return false;
    b->n = mono_of(b->f, merged)->n;
    memcpy(b->x, mono_of(b->f, merged)->factors, b->n * sizeof *b->x);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct atom *a = atom_of(b->f, b->x[i].atom);
        const bool mask =
            a->kind == ATOM_INPUT && (a->input == FORM_MASK || a->input == FORM_SHARE);
        if (mask && b->x[i].num > 1) b->x[i].num = 1;
    }
    merged = mono_intern(b->f, b->x, b->n);
    return merged != 0 && mono_settled(b->f, merged);
}

static form_id sum_term(struct forms *f, const struct term *t, uint32_t dim) {
    const struct mono m = *mono_of(f, t->mono);
    const index_id var = VAR_OF(dim, 0);
    struct binder b = {.f = f, .next = TEMPORARY};
    struct factor outside[FORM_MAX_FACTORS];
    struct renaming r = {.from = var};
    uint32_t n = 0;
    if (!bind(&b, dim, &r.to)) return FORM_NONE;
    for (uint32_t i = 0; i < m.n; i++) {
        struct factor x = m.factors[i];
        if (!atom_has(f, x.atom, var)) {
            outside[n++] = x;
            continue;
        }
        x.atom = atom_rename(f, x.atom, &r, 1);
        if (!add_factor(&b, x)) return FORM_NONE;
    }
    if (!open_sums(&b) || !merge_inside(&b)) return FORM_NONE;
    return finish_sum(&b, t->c, outside, n);
}

form_id form_sum(struct forms *f, form_id a, uint32_t dim) {
    if (a == FORM_NONE || dim >= BLOCK_MAX_DIMS) return FORM_NONE;
    const struct form p = *form_of(f, a);
    form_id r = FORM_ZERO;
    for (uint32_t i = 0; i < p.n && r != FORM_NONE; i++) {
        const struct term t = p.terms[i];
        r = form_add(f, r, sum_term(f, &t, dim));
    }
    return r;
}

/* ---- largest values ---- */

/* Adds the mask's factors to b, under b's names. */
static bool add_mask(struct binder *b, form_id mask, const struct renaming *r, uint32_t n) {
    if (mask == FORM_NONE) return true;
    const struct form p = *form_of(b->f, mask);
    if (p.n != 1 || !rational_same(p.terms[0].c, (struct rational){1, 1})) return false;
    const struct mono m = *mono_of(b->f, p.terms[0].mono);
    for (uint32_t i = 0; i < m.n; i++) {
        const struct atom *a = atom_of(b->f, m.factors[i].atom);
        if (a->kind != ATOM_INPUT || (a->input != FORM_MASK && a->input != FORM_SHARE))
            return false;
        if (!add_factor(b, (struct factor){atom_rename(b->f, m.factors[i].atom, r, n), 1, 1}))
            return false;
    }
    return true;
}

/* The largest value of largest values is the largest over the dims of both. */
static bool open_max(struct binder *b) {
    const struct form p = *form_of(b->f, b->form);
    struct renaming r[FORM_MAX_BOUND];
    if (p.n != 1 || !rational_same(p.terms[0].c, (struct rational){1, 1})) return true;
    const struct mono m = *mono_of(b->f, p.terms[0].mono);
    if (m.n != 1 || m.factors[0].num != 1 || m.factors[0].den != 1) return true;
    const struct atom a = *atom_of(b->f, m.factors[0].atom);
    if (a.kind != ATOM_MAX) return true;
    for (uint32_t i = 0; i < a.n; i++) {
        r[i].from = a.at[i];
        if (!bind(b, INDEX_DIM(a.at[i]), &r[i].to)) return false;
    }
    const struct mono mask = *mono_of(b->f, a.mono);
    for (uint32_t i = 0; i < mask.n; i++)
        if (!add_factor(b, (struct factor){atom_rename(b->f, mask.factors[i].atom, r, a.n), 1, 1}))
            return false;
    b->form = form_rename(b->f, a.form, r, a.n);
    return b->form != FORM_NONE;
}

/* The largest value of a, all of whose terms have the variable. */
static form_id max_of_terms(struct forms *f, form_id a, form_id mask, uint32_t dim) {
    struct binder b = {.f = f, .next = TEMPORARY};
    struct renaming r = {.from = VAR_OF(dim, 0)};
    if (!bind(&b, dim, &r.to) || !add_mask(&b, mask, &r, 1)) return FORM_NONE;
    b.form = form_rename(f, a, &r, 1);
    if (b.form == FORM_NONE || !open_max(&b) || !merge_inside(&b)) return FORM_NONE;
    drop_unused(&b, NULL, NULL);
    if (b.n_bound == 0 && b.n == 0) return b.form;
    return form_of_atom(f, name_bound(&b, ATOM_MAX), 1, 1);
}

form_id form_max_over(struct forms *f, form_id a, form_id mask, uint32_t dim) {
    const index_id var = VAR_OF(dim, 0);
    if (a == FORM_NONE || dim >= BLOCK_MAX_DIMS) return FORM_NONE;
    const struct form p = *form_of(f, a);
    form_id with = FORM_ZERO, without = FORM_ZERO;
    for (uint32_t i = 0; i < p.n; i++) {
        const struct term t = p.terms[i];
        const form_id term = form_of_term(f, t.c, t.mono);
        form_id *side = form_has(f, term, var) ? &with : &without;
        if ((*side = form_add(f, *side, term)) == FORM_NONE) return FORM_NONE;
    }
    if (with == FORM_ZERO) return mask == FORM_NONE ? a : max_of_terms(f, a, mask, dim);
    struct rational scale = form_of(f, with)->terms[0].c, inverse;
    if (scale.num < 0) scale.num = -scale.num;
    if (!rational_inverse(scale, &inverse)) return FORM_NONE;
    with = max_of_terms(f, form_scale(f, with, inverse), mask, dim);
    return form_add(f, form_scale(f, with, scale), without);
}

form_id form_choose(struct forms *f, form_id a, form_id mask, uint32_t dim) {
    struct binder b = {.f = f, .next = TEMPORARY};
    struct renaming r = {.from = VAR_OF(dim, 0)};
    if (a == FORM_NONE || dim >= BLOCK_MAX_DIMS || !bind(&b, dim, &r.to)) return FORM_NONE;
    b.form = form_rename(f, a, &r, 1);
    if (b.form == FORM_NONE || !add_mask(&b, mask, &r, 1) || !merge_inside(&b)) return FORM_NONE;
    return form_of_atom(f, name_bound(&b, ATOM_CHOOSE), 1, 1);
}
