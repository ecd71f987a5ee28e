/* one_task.c - graphs of a single task: each skeleton's cheapest. */
#include "base/checked.h"
#include "search/candidate.h"

#include <string.h>

enum { PER_SKELETON = 4 };

/* The graphs of one skeleton. */
struct yield {
    uint32_t n;
    uint64_t cost[PER_SKELETON];
    struct block blocks[PER_SKELETON];
    uint64_t n_steps;
    bool complete;
};

struct one_task {
    const struct subject *s;
    const struct search_params *params;
    struct sources sources;
    struct skeletons skeletons;
    struct goals goals;
    struct task_names names;
    struct yield *yields; /* [skeletons] */
};

/* Whether each loop has values. If one has none, another skeleton gives the same graph. */
static bool uses_its_loops(const struct block *b) {
    bool loop = b->loop == BLOCK_NONE, loop2 = b->loop2 == BLOCK_NONE;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        loop |= b->node[i].stage == STAGE_LOOP;
        loop2 |= b->node[i].stage == STAGE_LOOP2;
    }
    return loop && loop2;
}

static int take_yield(struct diag *d, const struct one_task *t, const struct staged *g,
                      struct yield *y) {
    struct extractor *x;
    struct extraction e;
    int rc = QN_OK;
    TRY(extractor_new(d, g, &x));
    extract(x, &t->goals, PER_SKELETON, UINT64_MAX, t->params->max_steps, &e);
    y->n_steps = e.n_steps;
    y->complete = e.complete;
    for (uint32_t i = 0; i < e.n && rc == QN_OK; i++) {
        y->cost[y->n] = e.best[i].cost;
        rc = lower(d, g, &e.best[i], &t->names, &y->blocks[y->n]);
        if (rc == QN_OK && uses_its_loops(&y->blocks[y->n])) y->n++;
    }
    extractor_free(x);
    return rc;
}

static int try_skeleton(struct diag *d, void *context, uint32_t i) {
    struct one_task *t = context;
    struct staged g;
    TRY(staged_make(d, &t->s->problem, &t->s->saturation, &t->sources, &t->skeletons.list.items[i],
                    &g));
    const int rc = take_yield(d, t, &g, &t->yields[i]);
    staged_fini(&g);
    return rc;
}

static void set_goals(struct one_task *t) {
    const struct problem *p = &t->s->problem;
    t->goals.n = p->n_targets;
    memcpy(t->names.task, p->name, BLOCK_NAME);
    for (uint32_t i = 0; i < p->n_targets; i++) {
        t->goals.class[i] = t->s->saturation.target[i];
        memcpy(t->names.result[i], p->target[i].name, BLOCK_NAME);
    }
}

static int collect(struct diag *d, const struct one_task *t, uint32_t problem,
                   struct candidates *out, struct search_result *stats) {
    for (size_t i = 0; i < t->skeletons.list.n; i++) {
        const struct yield *y = &t->yields[i];
        stats->n_steps += y->n_steps;
        stats->complete = stats->complete && y->complete;
        for (uint32_t k = 0; k < y->n; k++) {
            struct candidate c = {.cost = y->cost[k], .problem = problem, .blocks = {.n_tasks = 1}};
            c.blocks.task[0] = y->blocks[k];
            TRY(ARRAY_PUSH(d, &out->list, c));
        }
    }
    stats->n_skeletons += t->skeletons.list.n;
    return QN_OK;
}

static int run(struct diag *d, struct one_task *t, uint32_t problem, struct candidates *out,
               struct search_result *stats) {
    block_dims dims = UINT16_MAX;
    for (uint32_t i = 0; i < t->s->problem.n_targets; i++) dims &= t->s->problem.target[i].dims;
    sources_make(&t->s->problem, &t->s->saturation, NULL, 0, &t->sources);
    set_goals(t);
    TRY(skeletons_make(d, &t->s->problem, &t->sources, dims, t->params->n_loops, &t->skeletons));
    const size_t n = t->skeletons.list.n;
    t->yields = calloc(MAX(n, 1), sizeof *t->yields);
    if (t->yields == NULL) return fail_nomem(d, n * sizeof *t->yields, "graphs of skeletons");
    TRY(run_all(d, t->params->n_threads, (uint32_t)n, try_skeleton, t));
    return collect(d, t, problem, out, stats);
}

int candidates_of_one(struct diag *d, const struct subject *s, uint32_t problem,
                      const struct search_params *params, struct candidates *out,
                      struct search_result *stats) {
    struct one_task t = {.s = s, .params = params};
    for (uint32_t i = 0; i < s->problem.n_targets; i++)
        if (s->saturation.target[i] == UINT16_MAX) return QN_OK;
    const int rc = run(d, &t, problem, out, stats);
    ARRAY_FINI(&t.skeletons.list);
    free(t.yields);
    return rc;
}
