/* assignment.c - see assignment.h. */
#include "block/assignment.h"
#include "base/checked.h"
#include "block/field.h"
#include "block/interval.h"

#include <math.h>

static uint64_t next(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static uint32_t below(uint64_t *state, uint32_t n) {
    return (uint32_t)((next(state) >> 32) * n >> 32);
}

static uint64_t start(const struct assignment *s, uint64_t what) {
    uint64_t state = s->seed * 0x2545f4914f6cdd1dull + what;
    next(&state);
    return state ^ next(&state);
}

void assignment_sizes(const struct assignment *s, const struct expr *x, uint32_t halved,
                      struct algebra *g) {
    uint64_t state = start(s, 0x51235);
    for (uint32_t i = 0; i < x->n_dims; i++) {
        const uint32_t n = s->least + below(&state, s->largest - s->least + 1);
        g->sizes[i] = halved >> i & 1 ? 2 * CEIL_DIV(n, 2u) : n;
    }
    for (uint32_t i = 0; i < x->n_args; i++) { /* an even number of places */
        const struct expr_arg *a = &x->args[i];
        if (a->kind == EXPR_ORDER && halved >> a->of & 1)
            g->sizes[a->dims[0]] = 2 * CEIL_DIV(g->sizes[a->dims[0]], 2u);
    }
    for (uint32_t i = 0; i < x->n_args; i++) {
        const struct expr_arg *a = &x->args[i];
        if (a->kind != EXPR_ORDER) continue;
        g->sizes[a->of] = 1;
        for (int k = 0; k < a->n_dims; k++) g->sizes[a->of] *= g->sizes[a->dims[k]];
    }
}

static double uniform(uint64_t *state) {
    return (double)((next(state) >> 11) + 1) * 0x1p-53;
}

static void real_cell(uint64_t *state, enum assignment_kind kind, union cell *out) {
    switch (kind) {
    case ASSIGN_FIELD: return; /* field_random */
    case ASSIGN_QUARTERS: interval_point((int)below(state, 25) / 4.0 - 3, out); return;
    case ASSIGN_POSITIVE: interval_point((int)(1 + below(state, 16)) / 4.0, out); return;
    case ASSIGN_NORMAL:
        out->real =
            (double)(float)(sqrt(-2 * log(uniform(state))) * cos(2 * M_PI * uniform(state)));
        return;
    case ASSIGN_SPREAD:
        out->real =
            (double)(float)(exp(log(10) * (8 * uniform(state) - 4)) * (next(state) & 1 ? 1 : -1));
        return;
    }
}

/* A whole number as a cell. */
static void whole_cell(struct algebra *g, uint32_t n, union cell *out) {
    g->number(g, n, 1, out);
}

/* Fills a share [s,p]: for each p it is 1 at one s. */
static void fill_share(struct algebra *g, uint64_t *state, const struct expr_arg *a,
                       struct cells *v) {
    const uint32_t n_s = g->sizes[a->dims[0]], n_p = g->sizes[a->dims[1]];
    const bool s_first = a->dims[0] < a->dims[1];
    for (uint32_t p = 0; p < n_p; p++) {
        const uint32_t mine = p < n_s ? p : below(state, n_s);
        for (uint32_t s = 0; s < n_s; s++)
            whole_cell(g, s == mine, &v->at[s_first ? s * n_p + p : p * n_s + s]);
    }
}

/* Fills an order: each place once. */
static int fill_order(struct diag *d, struct arena *arena, struct algebra *g, uint64_t *state,
                      struct cells *v) {
    uint32_t *places;
    TRY(ARENA_NEW(d, arena, &places, v->n));
    for (uint32_t i = 0; i < v->n; i++) {
        const uint32_t k = below(state, i + 1);
        places[i] = places[k];
        places[k] = i;
    }
    for (uint32_t i = 0; i < v->n; i++) whole_cell(g, places[i], &v->at[i]);
    return QN_OK;
}

int assignment_make(struct diag *d, struct arena *arena, const struct assignment *s,
                    struct algebra *g, const struct expr *x, uint32_t arg, struct cells *out) {
    const struct expr_arg *a = &x->args[arg];
    uint64_t state = start(s, arg + 1);
    TRY(cells_make(d, arena, g, x->nodes[a->node].dims, out));
    switch ((enum expr_kind)a->kind) {
    case EXPR_MASK:
        for (uint32_t i = 0; i < out->n; i++) whole_cell(g, next(&state) >> 63, &out->at[i]);
        return QN_OK;
    case EXPR_SHARE: fill_share(g, &state, a, out); return QN_OK;
    case EXPR_ORDER: return fill_order(d, arena, g, &state, out);
    case EXPR_INDEX:
        for (uint32_t i = 0; i < out->n; i++)
            whole_cell(g, below(&state, g->sizes[a->of]), &out->at[i]);
        return QN_OK;
    default: break;
    }
    if (s->kind == ASSIGN_FIELD) field_random(start(s, 0), arg, out);
    for (uint32_t i = 0; i < out->n; i++) real_cell(&state, s->kind, &out->at[i]);
    return QN_OK;
}
