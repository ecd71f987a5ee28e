/* form_useful.c - whether a form may be a sub-expression of another one.
 *
 * p is useful for a target if some polynomial c among the target and the arguments of its atoms has
 * a monomial m and dims D such that every term of p, times m, summed over D, is a term of c. Then p
 * may be a step on the way to c. A search can drop a p that is not useful.
 *
 *     one term of p    its factors, with sums opened and p's variables under t's names, are among
 *                      those of a term t of c; if p has summed over a variable, p has all of t's
 *                      factors with that variable
 *     several terms    the first gives m and D; then the product is made, and its terms are looked
 *                      up in c
 *
 * Not found: a p that becomes a term of c by x/x = 1 or by a root's square, and a p whose exponent
 * of an atom is larger than t's.
 */
#include "block/form_table.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VARS = 24, MAX_REACHED = 512, MAX_NAMINGS = 256 };
/* Copies for the variables of opened sums: of targets, of p; and one copy for clashing names. */
enum { OF_TARGET = FORM_MAX_COPIES + 1, OF_P = OF_TARGET + MAX_VARS, HIDDEN = OF_P + MAX_VARS };
_Static_assert((int)HIDDEN <= 255, "copies have 8 bits");

/* A term with its sums opened: its factors and the variables that the sums bound. */
struct open_term {
    struct factor x[FORM_MAX_FACTORS];
    uint32_t n;
    index_id bound[MAX_VARS];
    uint32_t n_bound;
    bool clipped; /* the term has more than fits */
};

/* A polynomial of a target. */
struct form_reached {
    form_id form;
    struct open_term *terms; /* [terms of form] */
};

/* ---- opening sums ---- */

static bool is_open(const struct atom *a, struct factor x) {
    return a->kind == ATOM_SUM && x.num > 0 && x.den == 1;
}

static bool open_sum(struct forms *f, struct open_term *o, atom_id id, uint32_t *copy) {
    const struct atom a = *atom_of(f, id);
    const struct mono m = *mono_of(f, a.mono);
    struct renaming r[FORM_MAX_BOUND];
    if (o->n + m.n > FORM_MAX_FACTORS || o->n_bound + a.n > MAX_VARS) return false;
    for (uint32_t i = 0; i < a.n; i++) {
        r[i] = (struct renaming){a.at[i], VAR_OF(INDEX_DIM(a.at[i]), (*copy)++)};
        o->bound[o->n_bound++] = r[i].to;
    }
    memcpy(&o->x[o->n], m.factors, m.n * sizeof *m.factors);
    if (!factors_rename(f, &o->x[o->n], m.n, r, a.n)) return false;
    o->n += m.n;
    return true;
}

static bool open_factor(struct forms *f, struct open_term *o, struct factor x, uint32_t *copy) {
    if (!is_open(atom_of(f, x.atom), x)) {
        if (o->n == FORM_MAX_FACTORS) return false;
        o->x[o->n++] = x;
        return true;
    }
    for (int32_t k = 0; k < x.num; k++)
        if (!open_sum(f, o, x.atom, copy)) return false;
    return true;
}

static void open_term(struct forms *f, mono_id id, uint32_t copy, struct open_term *o) {
    const struct mono m = *mono_of(f, id);
    o->n = o->n_bound = 0;
    o->clipped = false;
    for (uint32_t i = 0; i < m.n && !o->clipped; i++)
        o->clipped = !open_factor(f, o, m.factors[i], &copy);
}

/* ---- the polynomials of a target ---- */

struct reach {
    struct forms *f;
    form_id list[MAX_REACHED];
    uint32_t n;
};

static void reach(struct reach *r, form_id id);

static void reach_factor(struct reach *r, struct factor x);

/* Reaches into a binding atom. Its variables become free, except where the dim is already free. */
static void reach_bound(struct reach *r, const struct atom *a) {
    struct renaming names[FORM_MAX_BOUND];
    uint32_t n = 0, dims = a->free;
    for (uint32_t i = 0; i < a->n; i++) {
        const uint32_t dim = INDEX_DIM(a->at[i]);
        if ((dims >> dim & 1) != 0) continue;
        dims |= 1u << dim;
        names[n++] = (struct renaming){a->at[i], VAR_OF(dim, 0)};
    }
    if (a->form != FORM_NONE) reach(r, form_rename(r->f, a->form, names, n));
    if (a->mono == 0) return;
    struct factor x[FORM_MAX_FACTORS];
    const struct mono m = *mono_of(r->f, a->mono);
    memcpy(x, m.factors, m.n * sizeof *x);
    if (!factors_rename(r->f, x, m.n, names, n)) return;
    for (uint32_t i = 0; i < m.n; i++) reach_factor(r, x[i]);
}

static void reach_factor(struct reach *r, struct factor x) {
    const struct atom a = *atom_of(r->f, x.atom);
    if (a.kind == ATOM_SUM && !is_open(&a, x)) reach(r, form_of_atom(r->f, x.atom, 1, 1));
    if (a.kind == ATOM_SUM || a.kind == ATOM_MAX)
        reach_bound(r, &a);
    else if (a.form != FORM_NONE)
        reach(r, a.form);
}

static void reach(struct reach *r, form_id id) {
    if (id == FORM_NONE) return;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->list[i] == id) return;
    if (r->n == MAX_REACHED) return;
    r->list[r->n++] = id;
    for (uint32_t i = 0; i < form_of(r->f, id)->n; i++) {
        const struct mono m = *mono_of(r->f, form_of(r->f, id)->terms[i].mono);
        for (uint32_t k = 0; k < m.n; k++) reach_factor(r, m.factors[k]);
    }
}

void form_forget_target(struct forms *f) {
    for (uint32_t i = 0; i < f->n_reached; i++) free(f->reached[i].terms);
    free(f->reached);
    f->reached = NULL;
    f->n_reached = 0;
    f->reached_of = FORM_NONE;
}

/* Opens all polynomials of the target, unless the last call was for the same target. */
static bool remember_target(struct forms *f, form_id target) {
    struct reach r = {.f = f};
    if (f->reached_of == target) return true;
    form_forget_target(f);
    reach(&r, target);
    f->reached = calloc(r.n, sizeof *f->reached);
    f->n_reached = f->reached == NULL ? 0 : r.n;
    f->nomem |= f->reached == NULL;
    for (uint32_t i = 0; i < f->n_reached; i++) {
        struct form_reached *c = &f->reached[i];
        const uint32_t n = form_of(f, r.list[i])->n;
        c->form = r.list[i];
        c->terms = calloc(MAX(n, 1), sizeof *c->terms);
        if (c->terms == NULL) {
            f->nomem = true;
            form_forget_target(f);
            return false;
        }
        for (uint32_t k = 0; k < n; k++)
            open_term(f, form_of(f, c->form)->terms[k].mono, OF_TARGET, &c->terms[k]);
    }
    f->reached_of = f->n_reached > 0 ? target : FORM_NONE;
    return f->n_reached > 0;
}

/* ---- one term of p in one term of the target ---- */

struct match {
    struct forms *f;
    const struct open_term *p, *t;
    index_id vars[MAX_VARS]; /* p's: bound ones, then free ones */
    uint32_t n_bound, n_vars;
    struct renaming r[MAX_VARS];
    uint32_t budget;
    struct factor left[FORM_MAX_FACTORS]; /* of t, without p's factors */
    uint32_t n_left;
    /* whether the naming is accepted; NULL: every naming is */
    bool (*accept)(struct match *m, void *context);
    void *context;
};

/* Whether p's exponent fits t's exponent e: of the same sign and no larger. An exponential must
 * match exactly. If it is p's only factor it may have the other sign: exp(-x) occurs in
 * 1 / (1 + exp(-x)), whose form has exp(x). */
static bool within(const struct match *m, struct factor p, struct factor e) {
    const int64_t left = (int64_t)p.num * e.den, right = (int64_t)e.num * p.den;
    if (atom_of(m->f, p.atom)->kind == ATOM_EXP)
        return left == right || (left == -right && m->p->n == 1);
    return left > 0 ? left <= right : left >= right;
}

/* Subtracts p's exponent from t's; a factor with exponent 0 stays in the list. */
static bool take_away(struct factor *t, struct factor p) {
    struct rational rest;
    if (!rational_add((struct rational){t->num, t->den}, (struct rational){-p.num, p.den}, &rest))
        return false;
    t->num = (int32_t)rest.num;
    t->den = (int32_t)rest.den;
    return true;
}

static bool is_size(const struct forms *f, atom_id a) {
    return atom_of(f, a)->kind == ATOM_SIZE;
}

/* Takes a size of p, to its power, from m->left; t may lack that size. */
static bool take_size(struct match *m, struct factor p) {
    uint32_t at = 0;
    while (at < m->n_left && m->left[at].atom != p.atom) at++;
    if (at == m->n_left) {
        if (m->n_left == FORM_MAX_FACTORS) return false;
        m->left[m->n_left++] = (struct factor){p.atom, 0, 1};
    }
    return take_away(&m->left[at], p);
}

/* Sizes may differ a little: a mean is a sum but for one, and roots bring out halves of them. */
static bool sizes_fit(const struct match *m) {
    enum { MOST = 1 };
    for (uint32_t i = 0; i < m->n_left; i++)
        if (is_size(m->f, m->left[i].atom) && llabs(m->left[i].num) > MOST * m->left[i].den)
            return false;
    return true;
}

/* Whether p under the names of m->r lies in t and takes all of t's factors with variables that p
 * binds; m->left is then the rest of t. */
static bool lies_in(struct match *m) {
    struct factor x[FORM_MAX_FACTORS];
    const struct open_term *t = m->t;
    memcpy(x, m->p->x, m->p->n * sizeof *x);
    memcpy(m->left, t->x, t->n * sizeof *x);
    m->n_left = t->n;
    if (!factors_rename(m->f, x, m->p->n, m->r, m->n_vars)) return false;
    for (uint32_t i = 0; i < m->p->n; i++) {
        uint32_t at = 0;
        if (is_size(m->f, x[i].atom)) {
            if (!take_size(m, x[i])) return false;
            continue;
        }
        while (at < t->n && (t->x[at].atom != x[i].atom || !within(m, x[i], m->left[at]))) at++;
        if (at == t->n || !take_away(&m->left[at], x[i])) return false;
    }
    for (uint32_t v = 0; v < m->n_bound; v++)
        for (uint32_t i = 0; i < t->n; i++)
            if (m->left[i].num != 0 && atom_has(m->f, t->x[i].atom, INDEX_VAR(m->r[v].to)))
                return false;
    return sizes_fit(m) && (m->accept == NULL || m->accept(m, m->context));
}

/* Tries names for p's variables from `at` on. */
static bool try_variables(struct match *m, uint32_t at) {
    if (m->budget == 0) return false;
    if (at == m->n_vars) {
        m->budget--;
        return lies_in(m);
    }
    const index_id var = m->vars[at];
    m->r[at].from = var;
    if (at >= m->n_bound) { /* a free variable may also keep its name */
        m->r[at].to = var;
        if (try_variables(m, at + 1)) return true;
    }
    for (uint32_t i = 0; i < m->t->n_bound; i++) {
        const index_id to = m->t->bound[i];
        bool taken = INDEX_DIM(to) != INDEX_DIM(var);
        for (uint32_t k = 0; k < at; k++) taken = taken || m->r[k].to == to;
        if (taken) continue;
        m->r[at].to = to;
        if (try_variables(m, at + 1)) return true;
    }
    return false;
}

/* free: dims of p's free variables. */
static bool find_match(struct match *m, uint32_t free) {
    if (m->p->clipped || m->t->clipped) return true;
    m->budget = MAX_NAMINGS;
    m->n_bound = m->p->n_bound;
    memcpy(m->vars, m->p->bound, m->n_bound * sizeof *m->vars);
    m->n_vars = m->n_bound;
    for (uint32_t dims = free; dims != 0; dims &= dims - 1) {
        if (m->n_vars == MAX_VARS) return false;
        m->vars[m->n_vars++] = VAR_OF(__builtin_ctz(dims), 0);
    }
    return try_variables(m, 0);
}

/* ---- several terms ---- */

/* p, to be multiplied by the part of a term of c that p's first term leaves. */
struct product {
    form_id p, c;
    struct rational ratio; /* coefficient of c's term / that of p's first term */
};

/* Hides a form's free variable of the dim under another copy, or restores its name. */
static void rename_free(struct forms *f, form_id *m, uint32_t dim, bool hide) {
    const struct renaming r = {VAR_OF(dim, hide ? 0 : HIDDEN), VAR_OF(dim, hide ? HIDDEN : 0)};
    if (*m != FORM_NONE) *m = form_rename(f, *m, &r, 1);
}

/* Makes a variable of an opened sum a free one. Returns whether a free one of its dim was hidden.
 */
static bool make_free(struct forms *f, form_id *m, index_id var) {
    const uint32_t dim = INDEX_DIM(var);
    const struct renaming r = {var, VAR_OF(dim, 0)};
    const bool hidden = *m != FORM_NONE && (form_dims(f, *m) >> dim & 1) != 0;
    if (hidden) rename_free(f, m, dim, true);
    if (*m != FORM_NONE) *m = form_rename(f, *m, &r, 1);
    return hidden;
}

/* Sums over dims, then restores the variables that were hidden for it. */
static void sum_dims(struct forms *f, form_id *m, uint32_t dims, uint32_t hidden) {
    for (uint32_t rest = dims; rest != 0 && *m != FORM_NONE; rest &= rest - 1)
        *m = form_sum(f, *m, (uint32_t)__builtin_ctz(rest));
    for (; hidden != 0; hidden &= hidden - 1)
        rename_free(f, m, (uint32_t)__builtin_ctz(hidden), false);
}

/* The rest of t as a form, with its own sums closed again. *summed: dims of p's free variables over
 * which t sums. *hidden: those of these dims of which the rest also has a free variable. */
static form_id rest_of_term(const struct match *m, struct rational ratio, uint32_t *summed,
                            uint32_t *hidden) {
    struct factor x[FORM_MAX_FACTORS];
    uint32_t n = 0;
    *summed = *hidden = 0;
    for (uint32_t i = 0; i < m->n_left; i++)
        if (m->left[i].num != 0) x[n++] = m->left[i];
    form_id rest = form_of_factors(m->f, ratio, x, n);
    for (uint32_t i = 0; i < m->t->n_bound; i++) {
        const uint32_t dim = 1u << INDEX_DIM(m->t->bound[i]);
        bool of_p = false;
        for (uint32_t v = 0; v < m->n_vars; v++) of_p = of_p || m->r[v].to == m->t->bound[i];
        if (of_p) continue;
        const bool hides = make_free(m->f, &rest, m->t->bound[i]);
        sum_dims(m->f, &rest, dim, hides ? dim : 0);
    }
    for (uint32_t v = m->n_bound; v < m->n_vars; v++) {
        const uint32_t dim = 1u << INDEX_DIM(m->r[v].to);
        if (m->r[v].to == m->r[v].from) continue;
        if (make_free(m->f, &rest, m->r[v].to)) *hidden |= dim;
        *summed |= dim;
    }
    return rest;
}

static bool has_term(const struct forms *f, form_id form, struct term t) {
    for (uint32_t i = 0; i < form_of(f, form)->n; i++) {
        const struct term *other = &form_of(f, form)->terms[i];
        if (other->mono == t.mono && rational_same(other->c, t.c)) return true;
    }
    return false;
}

/* Whether all terms depend on all of dims: summing any other term would multiply it by a size. */
static bool terms_have(const struct forms *f, form_id form, uint32_t dims) {
    for (uint32_t i = 0; i < form_of(f, form)->n; i++)
        if ((dims & ~mono_of(f, form_of(f, form)->terms[i].mono)->free) != 0) return false;
    return true;
}

static bool product_lies_in(struct match *m, void *context) {
    const struct product *product = context;
    uint32_t summed, hidden;
    const form_id rest = rest_of_term(m, product->ratio, &summed, &hidden);
    form_id all = form_mul(m->f, product->p, rest);
    if (all != FORM_NONE && !terms_have(m->f, all, summed)) return false;
    sum_dims(m->f, &all, summed, hidden);
    if (all == FORM_NONE) return true;
    if (form_of(m->f, all)->n != form_of(m->f, product->p)->n) return false; /* terms cancel */
    for (uint32_t i = 0; i < form_of(m->f, all)->n; i++)
        if (!has_term(m->f, product->c, form_of(m->f, all)->terms[i])) return false;
    return true;
}

/* ---- p in one polynomial ---- */

/* Whether p's coefficient fits, given ratio = t's coefficient / p's. One term: p's is 1 or t's, or
 * the negative of t's if t is c's only term. Several terms: the ratio is positive, and p's first
 * coefficient is 1, -1 or t's. */
static bool coefficient_fits(const struct form *p, struct rational ratio, uint32_t terms_of_c) {
    const struct rational c = p->terms[0].c;
    const bool one = c.num == c.den, same = ratio.num == ratio.den;
    if (p->n > 1) return ratio.num > 0 && (llabs(c.num) == c.den || same);
    return one || same || (terms_of_c == 1 && ratio.num == -ratio.den);
}

/* Whether the term of p lies in some term of c, with any rest. */
static bool term_lies_in(struct forms *f, const struct form *p, uint32_t term,
                         const struct form_reached *c) {
    const uint32_t n = form_of(f, c->form)->n;
    struct open_term open;
    open_term(f, p->terms[term].mono, OF_P, &open);
    for (uint32_t k = 0; k < n; k++) {
        struct match m = {.f = f, .p = &open, .t = &c->terms[k]};
        if (find_match(&m, p->free)) return true;
    }
    return false;
}

static bool form_lies_in(struct forms *f, const struct form *p, const struct open_term *first,
                         struct product *product, const struct form_reached *c) {
    const uint32_t n = form_of(f, c->form)->n;
    if (p->n > n) return false;
    for (uint32_t i = 1; i < p->n; i++)
        if (!term_lies_in(f, p, i, c)) return false;
    product->c = c->form;
    for (uint32_t k = 0; k < n; k++) {
        struct match m = {.f = f, .p = first, .t = &c->terms[k]};
        struct rational inverse;
        if (!rational_inverse(p->terms[0].c, &inverse) ||
            !rational_mul(form_of(f, c->form)->terms[k].c, inverse, &product->ratio) ||
            !coefficient_fits(p, product->ratio, n))
            continue;
        if (p->n > 1) {
            m.accept = product_lies_in;
            m.context = product;
        }
        if (find_match(&m, p->free)) return true;
    }
    return false;
}

/* ---- memo ---- */

static struct form_memo *memo_of(struct forms *f, form_id p, form_id target) {
    if (f->n_memo * 2 >= f->memo_capacity) {
        const uint32_t capacity = f->memo_capacity > 0 ? f->memo_capacity * 2 : 1024;
        struct form_memo *bigger = calloc(capacity, sizeof *bigger), *old = f->memo;
        const uint32_t n = f->memo_capacity;
        if (bigger == NULL) {
            f->nomem = true;
            return NULL;
        }
        f->memo = bigger;
        f->memo_capacity = capacity;
        f->n_memo = 0;
        for (uint32_t i = 0; i < n; i++)
            if (old[i].known) *memo_of(f, old[i].p, old[i].target) = old[i];
        free(old);
    }
    const uint64_t hash = ((uint64_t)p << 32 | target) * 0x9e3779b97f4a7c15ull;
    for (uint64_t i = hash >> 20;; i++) {
        struct form_memo *m = &f->memo[i & (f->memo_capacity - 1)];
        if (m->known && (m->p != p || m->target != target)) continue;
        if (!m->known) {
            f->n_memo++;
            *m = (struct form_memo){.p = p, .target = target};
        }
        return m;
    }
}

static bool is_constant(const struct forms *f, mono_id id) {
    const struct mono *m = mono_of(f, id);
    for (uint32_t i = 0; i < m->n; i++)
        if (atom_of(f, m->factors[i].atom)->kind != ATOM_SIZE) return false;
    return true;
}

static bool is_useful(struct forms *f, form_id p_id, form_id target) {
    const struct form p = *form_of(f, p_id);
    struct product product = {.p = p_id};
    struct open_term first;
    if (p.n == 0 || !remember_target(f, target)) return false;
    if (p.n == 1 && is_constant(f, p.terms[0].mono)) return false;
    open_term(f, p.terms[0].mono, OF_P, &first);
    for (uint32_t i = 0; i < f->n_reached; i++)
        if (form_lies_in(f, &p, &first, &product, &f->reached[i])) return true;
    return false;
}

bool form_useful(struct forms *f, form_id p, form_id target) {
    if (p == FORM_NONE || target == FORM_NONE) return false;
    struct form_memo *m = memo_of(f, p, target);
    if (m == NULL) return false;
    if (!m->known) {
        m->known = true;
        m->useful = is_useful(f, p, target);
    }
    return m->useful;
}
