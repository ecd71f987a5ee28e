/* extract.c - branch and bound over choices of edges. */
#include "search/extract.h"

#include "base/arena.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

enum { NO_EDGE = UINT32_MAX };

struct extractor {
    const struct staged *g;
    struct arena arena;
    uint32_t n_nodes, words; /* of a set of nodes */
    uint64_t *tree;          /* [n_nodes] cost of the cheapest tree; UINT64_MAX: no tree exists */
    uint64_t *own;           /* [n_nodes] cost of the cheapest edge */
    uint64_t *must;          /* [n_nodes][words] nodes in every way to compute it */
    uint32_t *order;         /* [edges] each node's edges, by the cost of their trees */
    bool *done;              /* [n_nodes] emitted */
    /* of one extraction */
    const struct goals *goals;
    struct extraction *out;
    uint32_t *chosen; /* [n_nodes] edge, NO_EDGE */
    uint16_t result[EXTRACT_GOALS];
    uint16_t pending[4 * BLOCK_NODES];
    uint32_t n_pending, n_chosen;
    uint64_t cost, below, budget;
    uint32_t keep;
};

static const struct staged_edge *edge_at(const struct extractor *x, uint32_t e) {
    return &x->g->edges.items[e];
}

static uint64_t sum(uint64_t a, uint64_t b) {
    uint64_t s;
    return checked_add(a, b, &s) ? s : UINT64_MAX;
}

/* ---- trees: the cheapest way without sharing, for the order of edges ---- */

static uint64_t tree_of_edge(const struct extractor *x, const struct staged_edge *e) {
    uint64_t cost = e->cost;
    if (e->a != STAGED_NONE) cost = sum(cost, x->tree[e->a]);
    if (e->b != STAGED_NONE && e->b != e->a) cost = sum(cost, x->tree[e->b]);
    return cost;
}

static void find_trees(struct extractor *x) {
    for (uint32_t i = 0; i < x->n_nodes; i++) x->tree[i] = x->own[i] = UINT64_MAX;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t e = 0; e < x->g->edges.n; e++) {
            const uint64_t cost = tree_of_edge(x, edge_at(x, (uint32_t)e));
            if (cost >= x->tree[edge_at(x, (uint32_t)e)->to]) continue;
            x->tree[edge_at(x, (uint32_t)e)->to] = cost;
            changed = true;
        }
    }
    for (size_t e = 0; e < x->g->edges.n; e++) {
        const struct staged_edge *edge = edge_at(x, (uint32_t)e);
        if (tree_of_edge(x, edge) != UINT64_MAX)
            x->own[edge->to] = MIN(x->own[edge->to], edge->cost);
    }
}

/* Insertion sort: a node has few edges, and equal costs keep their order. */
static void order_edges(struct extractor *x) {
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        const struct staged_node *n = &x->g->nodes.items[i];
        for (uint32_t k = 0; k < n->n; k++) {
            uint32_t at = n->first + k;
            const uint64_t cost = tree_of_edge(x, edge_at(x, at));
            while (at > n->first && tree_of_edge(x, edge_at(x, x->order[at - 1])) > cost) {
                x->order[at] = x->order[at - 1];
                at--;
            }
            x->order[at] = n->first + k;
        }
    }
}

/* ---- nodes in every way to compute a node ---- */

/* must(n) = n and the nodes that all its edges' operands have in common: the greatest solution. */
static bool narrow_must(struct extractor *x, uint32_t i, uint64_t *common) {
    const struct staged_node *n = &x->g->nodes.items[i];
    uint64_t *must = &x->must[(size_t)i * x->words];
    bool changed = false;
    memset(common, 0xff, x->words * sizeof *common);
    for (uint32_t e = n->first; e < n->first + n->n; e++) {
        const struct staged_edge *edge = edge_at(x, e);
        if (tree_of_edge(x, edge) == UINT64_MAX) continue;
        for (uint32_t w = 0; w < x->words; w++) {
            uint64_t of_edge = 0;
            if (edge->a != STAGED_NONE) of_edge |= x->must[(size_t)edge->a * x->words + w];
            if (edge->b != STAGED_NONE) of_edge |= x->must[(size_t)edge->b * x->words + w];
            common[w] &= of_edge;
        }
    }
    common[i / 64] |= UINT64_C(1) << i % 64;
    for (uint32_t w = 0; w < x->words; w++) {
        changed |= (must[w] & ~common[w]) != 0;
        must[w] &= common[w];
    }
    return changed;
}

static void find_must(struct extractor *x, uint64_t *common) {
    memset(x->must, 0xff, (size_t)x->n_nodes * x->words * sizeof *x->must);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < x->n_nodes; i++)
            if (x->tree[i] != UINT64_MAX) changed |= narrow_must(x, i, common);
    }
}

/* ---- bound ---- */

/* The cost of the chosen edges and of all other nodes that the pending nodes must have. */
static uint64_t bound(const struct extractor *x) {
    uint64_t cost = x->cost;
    for (uint32_t w = 0; w < x->words; w++) {
        uint64_t all = 0;
        for (uint32_t i = 0; i < x->n_pending; i++)
            all |= x->must[(size_t)x->pending[i] * x->words + w];
        for (; all != 0; all &= all - 1) {
            const uint32_t n = w * 64 + (uint32_t)__builtin_ctzll(all);
            if (x->chosen[n] == NO_EDGE) cost = sum(cost, x->own[n]);
        }
    }
    return cost;
}

static uint64_t limit_of(const struct extractor *x) {
    return x->out->n < x->keep ? x->below : x->out->best[x->keep - 1].cost;
}

/* ---- completed choices ---- */

static bool is_used(const struct extractor *x, uint16_t class) {
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        if (x->chosen[i] == NO_EDGE) continue;
        const struct staged_edge *e = edge_at(x, x->chosen[i]);
        if (e->op == BLOCK_OP_INPUT && x->g->sources->at[e->source].class == class &&
            x->g->sources->at[e->source].leaf == BLOCK_NONE)
            return true;
    }
    return false;
}

/* Appends node n after the nodes that it reads. */
static void emit(const struct extractor *x, uint16_t n, struct extracted *out) {
    if (n == STAGED_NONE || x->done[n]) return;
    const struct staged_edge *e = edge_at(x, x->chosen[n]);
    x->done[n] = true;
    emit(x, e->a, out);
    emit(x, e->b, out);
    out->at[out->n++] = (struct choice){n, x->chosen[n]};
}

static void keep_choice(struct extractor *x) {
    struct extraction *out = x->out;
    uint32_t at = out->n < x->keep ? out->n++ : x->keep - 1;
    for (; at > 0 && out->best[at - 1].cost > x->cost; at--) out->best[at] = out->best[at - 1];
    out->best[at] = (struct extracted){.cost = x->cost};
    memset(x->done, 0, x->n_nodes * sizeof *x->done);
    for (uint32_t i = 0; i < x->goals->n; i++) {
        emit(x, x->result[i], &out->best[at]);
        out->best[at].result[i] = x->result[i];
    }
    out->best[at].result[x->goals->n] = STAGED_NONE;
}

static void complete(struct extractor *x) {
    for (uint32_t i = 0; i < x->goals->n_used; i++)
        if (!is_used(x, x->goals->used[i])) return;
    if (x->cost < limit_of(x)) keep_choice(x);
}

/* ---- branching ---- */

/* Whether `from` is or reads `node` by the chosen edges. */
static bool reads(const struct extractor *x, uint16_t from, uint16_t node) {
    if (from == STAGED_NONE) return false;
    if (from == node) return true;
    if (x->chosen[from] == NO_EDGE) return false;
    const struct staged_edge *e = edge_at(x, x->chosen[from]);
    return reads(x, e->a, node) || reads(x, e->b, node);
}

static bool is_pending(const struct extractor *x, uint16_t n) {
    for (uint32_t i = 0; i < x->n_pending; i++)
        if (x->pending[i] == n) return true;
    return false;
}

static void need(struct extractor *x, uint16_t n) {
    if (n != STAGED_NONE && x->chosen[n] == NO_EDGE && !is_pending(x, n))
        x->pending[x->n_pending++] = n;
}

static void branch(struct extractor *x);

/* Chooses edge e for node n, which is no longer pending, and branches on. */
static void choose(struct extractor *x, uint16_t n, uint32_t e) {
    const struct staged_edge *edge = edge_at(x, e);
    const uint32_t n_pending = x->n_pending;
    if (tree_of_edge(x, edge) == UINT64_MAX || reads(x, edge->a, n) || reads(x, edge->b, n)) return;
    x->chosen[n] = e;
    x->cost += edge->cost;
    x->n_chosen++;
    need(x, edge->a);
    need(x, edge->b);
    if (bound(x) < limit_of(x)) branch(x);
    x->n_pending = n_pending;
    x->n_chosen--;
    x->cost -= edge->cost;
    x->chosen[n] = NO_EDGE;
}

/* Tries every edge of the last pending node. */
static void branch(struct extractor *x) {
    uint16_t saved[4 * BLOCK_NODES];
    const uint32_t n_saved = x->n_pending;
    if (x->n_pending == 0) {
        complete(x);
        return;
    }
    if (x->n_chosen + x->n_pending > BLOCK_NODES) return;
    if (++x->out->n_steps > x->budget) {
        x->out->complete = false;
        return;
    }
    memcpy(saved, x->pending, n_saved * sizeof *saved);
    const uint16_t n = x->pending[--x->n_pending];
    const struct staged_node *node = &x->g->nodes.items[n];
    for (uint32_t k = 0; k < node->n && x->out->complete; k++) {
        x->n_pending = n_saved - 1;
        choose(x, n, x->order[node->first + k]);
        memcpy(x->pending, saved, n_saved * sizeof *saved);
    }
    x->n_pending = n_saved;
}

/* ---- goals ---- */

/* Tries every stage in which goal i may be a result, then the goals after it. */
static void branch_goal(struct extractor *x, uint32_t i) {
    if (i == x->goals->n) {
        if (bound(x) < limit_of(x)) branch(x);
        return;
    }
    const block_dims dims = x->g->s->classes.items[x->goals->class[i]].dims;
    const uint32_t stages = staged_result_stages(x->g, dims);
    for (uint32_t n = 0; n < x->n_nodes; n++) {
        const struct staged_node *node = &x->g->nodes.items[n];
        if (node->class != x->goals->class[i] || (stages >> node->stage & 1) == 0 ||
            x->tree[n] == UINT64_MAX)
            continue;
        const uint64_t cost = cycles_result(&x->g->shape, dims, node->stage);
        const uint32_t n_pending = x->n_pending;
        x->result[i] = (uint16_t)n;
        x->cost += cost;
        need(x, (uint16_t)n);
        branch_goal(x, i + 1);
        x->n_pending = n_pending;
        x->cost -= cost;
    }
}

void extract(struct extractor *x, const struct goals *goals, uint32_t keep, uint64_t below,
             uint64_t budget, struct extraction *out) {
    *out = (struct extraction){.complete = true};
    x->goals = goals;
    x->out = out;
    x->keep = MIN(keep, EXTRACT_BEST);
    x->below = below;
    x->budget = budget;
    x->cost = cycles_task(&x->g->shape);
    branch_goal(x, 0);
}

/* ---- data that extractions share ---- */

static int prepare(struct diag *d, struct extractor *x) {
    uint64_t *common;
    const size_t n = x->n_nodes;
    TRY(ARENA_NEW(d, &x->arena, &x->tree, n));
    TRY(ARENA_NEW(d, &x->arena, &x->own, n));
    TRY(ARENA_NEW(d, &x->arena, &x->must, n * x->words));
    TRY(ARENA_NEW(d, &x->arena, &common, x->words));
    TRY(ARENA_NEW(d, &x->arena, &x->order, x->g->edges.n));
    TRY(ARENA_NEW(d, &x->arena, &x->chosen, n));
    TRY(ARENA_NEW(d, &x->arena, &x->done, n));
    for (size_t i = 0; i < n; i++) x->chosen[i] = NO_EDGE;
    find_trees(x);
    order_edges(x);
    find_must(x, common);
    return QN_OK;
}

int extractor_new(struct diag *d, const struct staged *g, struct extractor **out) {
    struct extractor *x = calloc(1, sizeof *x);
    if (x == NULL) return fail_nomem(d, sizeof *x, "an extraction");
    x->g = g;
    x->n_nodes = (uint32_t)g->nodes.n;
    x->words = CEIL_DIV(x->n_nodes, 64);
    const int rc = prepare(d, x);
    if (rc != QN_OK) {
        extractor_free(x);
        return rc;
    }
    *out = x;
    return QN_OK;
}

void extractor_free(struct extractor *x) {
    if (x == NULL) return;
    arena_fini(&x->arena);
    free(x);
}
