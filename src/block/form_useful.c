/* form_useful.c - whether a form may be a sub-expression of another one.
 *
 * p is useful for target if some polynomial c among the target and the arguments of its atoms has,
 * for a term t of c, a monomial m and dims D: every term of p times m, summed over D, is a term of
 * c. For one term: the factors of p, sums opened, are among
 * those of t, p's variables under t's names; and where p has summed over a variable, it has all
 * factors of t with that variable.
 * Coefficients and sizes do not count.
 *
 * Not found: what becomes one term of t by x/x = 1 or by a root's square; and a p whose exponent of
 * an atom is larger than t's.
 */
#include "block/form_table.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VARS = 24, TEMPORARY = FORM_MAX_COPIES + 1, MAX_REACHED = 512 };

/* A term with its sums opened: factors, and the variables that they share. */
struct open_term {
    struct factor x[FORM_MAX_FACTORS];
    uint32_t n;
    index_id bound[MAX_VARS];
    uint32_t n_bound;
};

static bool open_factor(struct forms *f, struct open_term *o, struct factor x, uint32_t *copy) {
    const struct atom a = *atom_of(f, x.atom);
    if (a.kind != ATOM_SUM || x.num < 0 || x.den != 1) {
        if (o->n == FORM_MAX_FACTORS) return false;
        o->x[o->n++] = x;
        return true;
    }
    const struct mono m = *mono_of(f, a.mono);
    for (int32_t k = 0; k < x.num; k++) {
        struct renaming r[FORM_MAX_BOUND];
        for (uint32_t i = 0; i < a.n; i++) {
            if (o->n_bound == MAX_VARS || *copy > 255) return false;
            r[i] = (struct renaming){a.at[i], VAR_OF(INDEX_DIM(a.at[i]), (*copy)++)};
            o->bound[o->n_bound++] = r[i].to;
        }
        for (uint32_t i = 0; i < m.n; i++) {
            if (o->n == FORM_MAX_FACTORS) return false;
            o->x[o->n] = m.factors[i];
            if ((o->x[o->n++].atom = atom_rename(f, m.factors[i].atom, r, a.n)) == 0) return false;
        }
    }
    return true;
}

static bool open_term(struct forms *f, mono_id id, uint32_t *copy, struct open_term *o) {
    const struct mono m = *mono_of(f, id);
    o->n = o->n_bound = 0;
    for (uint32_t i = 0; i < m.n; i++)
        if (!open_factor(f, o, m.factors[i], copy)) return false;
    return true;
}

/* ---- one term of p in one term of the target ---- */

struct match {
    struct forms *f;
    const struct open_term *p, *t;
    index_id vars[MAX_VARS]; /* p's: bound ones, then free ones */
    uint32_t n_bound, n_vars;
    struct renaming r[MAX_VARS];
    uint32_t budget;
};

/* The exponent of p's part, where t has e: at most as much, of the same sign. Of an exponential
 * any: exp(-x) stands in 1 / (1 + exp(-x)), whose form has exp(x). */
static bool within(const struct forms *f, struct factor p, struct factor e) {
    const int64_t left = (int64_t)p.num * e.den, right = (int64_t)e.num * p.den;
    if (atom_of(f, p.atom)->kind == ATOM_EXP) return llabs(left) <= llabs(right);
    return left > 0 ? left <= right : left >= right;
}

/* Whether p under the names of m->r lies in t, and takes all of t's factors with what p has bound.
 */
static bool lies_in(struct match *m) {
    struct factor x[FORM_MAX_FACTORS];
    const struct open_term *t = m->t;
    memcpy(x, m->p->x, m->p->n * sizeof *x);
    if (!factors_rename(m->f, x, m->p->n, m->r, m->n_vars)) return false;
    bool whole[FORM_MAX_FACTORS] = {false};
    for (uint32_t i = 0; i < m->p->n; i++) {
        uint32_t at = 0;
        while (at < t->n && t->x[at].atom != x[i].atom) at++;
        if (at == t->n || !within(m->f, x[i], t->x[at])) return false;
        whole[at] = x[i].num == t->x[at].num && x[i].den == t->x[at].den;
    }
    for (uint32_t v = 0; v < m->n_bound; v++)
        for (uint32_t i = 0; i < t->n; i++)
            if (!whole[i] && atom_has(m->f, t->x[i].atom, INDEX_VAR(m->r[v].to))) return false;
    return true;
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
    if (at >= m->n_bound) { /* free: as it is, too */
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

static bool term_matches(struct forms *f, const struct open_term *p, uint32_t p_free,
                         const struct open_term *t, struct match *m) {
    *m = (struct match){.f = f, .p = p, .t = t, .n_bound = p->n_bound, .budget = 256};
    memcpy(m->vars, p->bound, p->n_bound * sizeof *p->bound);
    m->n_vars = p->n_bound;
    for (uint32_t dims = p_free; dims != 0; dims &= dims - 1) {
        if (m->n_vars == MAX_VARS) return false;
        m->vars[m->n_vars++] = VAR_OF(__builtin_ctz(dims), 0);
    }
    return try_variables(m, 0);
}

/* ---- all terms of p in one polynomial ---- */

/* What p's term is multiplied with to have t's coefficient: the same number for all terms of p
 * (`first`: the earlier ones'), and of one term alone t's coefficient or a sign. */
static bool ratio_fits(const struct form *p, struct rational of_p, struct rational of_t,
                       struct rational *first, bool has_first) {
    struct rational inverse, ratio;
    if (!rational_inverse(of_p, &inverse) || !rational_mul(of_t, inverse, &ratio)) return false;
    if (has_first) return rational_same(ratio, *first);
    *first = ratio;
    return p->n > 1 || llabs(of_p.num) == of_p.den || llabs(ratio.num) == ratio.den;
}

/* Every term of p lies in some term of c; of several terms no two in one. What is left over of c's
 * terms is compared by its coefficient only: too much is kept, never too little. */
static bool form_lies_in(struct forms *f, form_id p_id, form_id c_id) {
    const struct form p = *form_of(f, p_id), c = *form_of(f, c_id);
    bool taken[FORM_MAX_TERMS] = {false};
    struct rational first = {0, 1};
    if (p.n > c.n) return false;
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t copy = TEMPORARY, k = 0;
        struct open_term a, b;
        if (!open_term(f, p.terms[i].mono, &copy, &a)) return false;
        for (; k < c.n; k++) {
            struct match m;
            struct rational ratio = first;
            uint32_t next = copy;
            if (taken[k] || !ratio_fits(&p, p.terms[i].c, c.terms[k].c, &ratio, i > 0) ||
                !open_term(f, c.terms[k].mono, &next, &b) || !term_matches(f, &a, p.free, &b, &m))
                continue;
            first = ratio;
            break;
        }
        if (k == c.n) return false;
        taken[k] = true;
    }
    return true;
}

/* ---- the polynomials of a target ---- */

struct reached {
    form_id list[MAX_REACHED];
    uint32_t n;
};

static void reach(struct forms *f, struct reached *r, form_id id);

static void reach_mono(struct forms *f, struct reached *r, mono_id id) {
    const struct mono m = *mono_of(f, id);
    for (uint32_t i = 0; i < m.n; i++) {
        const struct atom a = *atom_of(f, m.factors[i].atom);
        if (a.mono != 0) reach_mono(f, r, a.mono);
        if (a.form != 0) reach(f, r, a.form);
    }
}

static void reach(struct forms *f, struct reached *r, form_id id) {
    for (uint32_t i = 0; i < r->n; i++)
        if (r->list[i] == id) return;
    if (r->n == MAX_REACHED) return;
    r->list[r->n++] = id;
    const struct form p = *form_of(f, id);
    for (uint32_t i = 0; i < p.n; i++) reach_mono(f, r, p.terms[i].mono);
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

bool form_useful(struct forms *f, form_id p, form_id target) {
    if (p == FORM_NONE || target == FORM_NONE) return false;
    struct form_memo *m = memo_of(f, p, target);
    if (m == NULL) return false;
    if (m->known) return m->useful;
    struct reached r = {.n = 0};
    bool useful = false;
    reach(f, &r, target);
    for (uint32_t i = 0; i < r.n && !useful; i++) useful = form_lies_in(f, p, r.list[i]);
    m->known = true;
    m->useful = useful;
    return useful;
}
