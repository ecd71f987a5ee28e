/* two_tasks.c - graphs of two tasks: the hand-over, and the cheapest task on each side of it.
 *
 * A hand-over is one value, or two that are reduced together, such as a weighted sum and the sum of
 * its weights. For each hand-over, the cheapest first and second tasks are independent.
 */
#include "base/checked.h"
#include "search/candidate.h"

#include <stdio.h>
#include <string.h>

/* MAX_STEPS: of one extraction; each hand-over and skeleton has its own. */
enum { HAND_OVERS = 1024, MAX_STEPS = 500 };

struct hand_over {
    uint32_t n;
    uint16_t class[HANDED];
    block_dims dims; /* dims that all of its values have */
};

/* The cheapest task on one side of a hand-over. */
struct side {
    uint64_t cost; /* UINT64_MAX: there is none */
    struct block block;
};

/* The extractions of one skeleton or hand-over. */
struct spent {
    uint64_t n_steps;
    bool cut_short; /* a budget ran out */
};

struct two_tasks {
    const struct subject *s;
    const struct search_params *params;
    struct task_names first_names, second_names;
    uint32_t n;
    struct hand_over *hand_over; /* [n] */
    struct sources leaves;
    struct skeletons skeletons;  /* of first tasks */
    uint64_t *cost;              /* [skeletons][n] */
    struct side *first, *second; /* [n] */
    struct spent *spent;         /* [max(skeletons, n)] */
    bool cut_short;              /* there are more hand-overs than HAND_OVERS */
};

/* ---- possible hand-overs ---- */

static bool is_target(const struct two_tasks *t, uint16_t class) {
    for (uint32_t i = 0; i < t->s->problem.n_targets; i++)
        if (t->s->saturation.target[i] == class) return true;
    return false;
}

static void add_hand_over(struct two_tasks *t, uint32_t n, uint16_t a, uint16_t b) {
    const struct value_class *c = t->s->saturation.classes.items;
    t->cut_short = t->n == HAND_OVERS;
    if (t->cut_short) return;
    t->hand_over[t->n++] =
        (struct hand_over){n, {a, b}, n == 1 ? c[a].dims : (block_dims)(c[a].dims & c[b].dims)};
}

/* The dims that a sum removes to make the class; 0: no sum makes it. */
static block_dims summed_over(const struct two_tasks *t, uint16_t class) {
    const struct saturation *s = &t->s->saturation;
    for (size_t i = 0; i < s->applications.n; i++)
        if (s->applications.items[i].to == class && s->applications.items[i].op == BLOCK_OP_SUM)
            return s->applications.items[i].red;
    return 0;
}

/* Two sums over one dim, of which one has all dims of the other. */
static bool go_together(const struct two_tasks *t, uint16_t a, uint16_t b) {
    const struct value_class *c = t->s->saturation.classes.items;
    const block_dims over = summed_over(t, a), both = c[a].dims & c[b].dims;
    return over != 0 && over == summed_over(t, b) && (both == c[a].dims || both == c[b].dims);
}

static void find_hand_overs(struct two_tasks *t) {
    const uint16_t first = (uint16_t)t->s->problem.n_leaves;
    const uint16_t n = (uint16_t)t->s->saturation.classes.n;
    for (uint16_t a = first; a < n; a++)
        if (!is_target(t, a)) add_hand_over(t, 1, a, 0);
    for (uint16_t a = first; a < n; a++)
        for (uint16_t b = (uint16_t)(a + 1); b < n; b++)
            if (!is_target(t, a) && !is_target(t, b) && go_together(t, a, b))
                add_hand_over(t, 2, a, b);
}

/* ---- one task of one skeleton ---- */

/* The cheapest graph that the rules allow, if it costs less than `below`; *cost is UINT64_MAX if
 * there is none. */
static int cheapest(struct diag *d, const struct staged *g, struct extractor *x,
                    const struct two_tasks *t, const struct goals *goals,
                    const struct task_names *names, uint64_t below, struct side *out,
                    struct spent *spent) {
    struct extraction e;
    struct diag broken = {0};
    extract(x, goals, 1, below, MIN(t->params->max_steps, (uint64_t)MAX_STEPS), &e);
    spent->n_steps += e.n_steps;
    spent->cut_short = spent->cut_short || !e.complete;
    out->cost = UINT64_MAX;
    if (e.n == 0) return QN_OK;
    const int rc = lower(d, g, &e.best[0], names, &out->block);
    if (rc == QN_ELIMIT) {
        diag_clear(d);
        return QN_OK;
    }
    TRY(rc);
    if (block_verify(&broken, &out->block, &t->params->limits) == QN_OK) out->cost = e.best[0].cost;
    return QN_OK;
}

static struct goals goals_of(const struct hand_over *h) {
    struct goals goals = {.n = h->n};
    memcpy(goals.class, h->class, sizeof h->class);
    return goals;
}

/* ---- first tasks: every skeleton, for every hand-over that its grid allows ---- */

static int cost_hand_overs(struct diag *d, struct two_tasks *t, const struct staged *g,
                           uint32_t i) {
    struct extractor *x;
    struct side side = {.cost = UINT64_MAX};
    int rc = QN_OK;
    TRY(extractor_new(d, g, &x));
    for (uint32_t h = 0; h < t->n && rc == QN_OK; h++) {
        const struct goals goals = goals_of(&t->hand_over[h]);
        if ((g->k->grid & (block_dims)~t->hand_over[h].dims) != 0) continue;
        rc = cheapest(d, g, x, t, &goals, &t->first_names, UINT64_MAX, &side, &t->spent[i]);
        t->cost[(size_t)i * t->n + h] = side.cost;
    }
    extractor_free(x);
    return rc;
}

static int try_first(struct diag *d, void *context, uint32_t i) {
    struct two_tasks *t = context;
    struct staged g;
    for (uint32_t h = 0; h < t->n; h++) t->cost[(size_t)i * t->n + h] = UINT64_MAX;
    TRY(staged_make(d, &t->s->problem, &t->s->saturation, &t->leaves, &t->skeletons.list.items[i],
                    &g));
    const int rc = cost_hand_overs(d, t, &g, i);
    staged_fini(&g);
    return rc;
}

/* The skeleton of the cheapest first task; the earliest of equal ones. */
static size_t best_skeleton(const struct two_tasks *t, uint32_t h) {
    size_t best = 0;
    for (size_t i = 1; i < t->skeletons.list.n; i++)
        if (t->cost[i * t->n + h] < t->cost[best * t->n + h]) best = i;
    return best;
}

/* Makes the block of the best first task again. */
static int make_first(struct diag *d, struct two_tasks *t, uint32_t h) {
    const size_t best = best_skeleton(t, h);
    const struct goals goals = goals_of(&t->hand_over[h]);
    struct extractor *x = NULL;
    struct staged g;
    struct spent again = {0};
    t->first[h].cost = UINT64_MAX;
    if (t->skeletons.list.n == 0 || t->cost[best * t->n + h] == UINT64_MAX) return QN_OK;
    TRY(staged_make(d, &t->s->problem, &t->s->saturation, &t->leaves,
                    &t->skeletons.list.items[best], &g));
    int rc = extractor_new(d, &g, &x);
    if (rc == QN_OK)
        rc = cheapest(d, &g, x, t, &goals, &t->first_names, UINT64_MAX, &t->first[h], &again);
    extractor_free(x);
    staged_fini(&g);
    return rc;
}

/* ---- second tasks: every skeleton of one hand-over ---- */

static struct goals second_goals(const struct two_tasks *t, const struct hand_over *h) {
    struct goals goals = {.n = t->s->problem.n_targets, .n_used = h->n};
    memcpy(goals.used, h->class, sizeof h->class);
    memcpy(goals.class, t->s->saturation.target, goals.n * sizeof *goals.class);
    return goals;
}

static int try_second_skeleton(struct diag *d, struct two_tasks *t, uint32_t h,
                               const struct sources *sources, const struct skeleton *k) {
    const struct goals goals = second_goals(t, &t->hand_over[h]);
    struct extractor *x = NULL;
    struct staged g;
    struct side side = {.cost = UINT64_MAX};
    TRY(staged_make(d, &t->s->problem, &t->s->saturation, sources, k, &g));
    int rc = extractor_new(d, &g, &x);
    if (rc == QN_OK)
        rc =
            cheapest(d, &g, x, t, &goals, &t->second_names, t->second[h].cost, &side, &t->spent[h]);
    if (rc == QN_OK && side.cost < t->second[h].cost) t->second[h] = side;
    extractor_free(x);
    staged_fini(&g);
    return rc;
}

static int try_second(struct diag *d, void *context, uint32_t h) {
    struct two_tasks *t = context;
    struct sources sources;
    struct skeletons skeletons;
    block_dims dims = UINT16_MAX;
    t->second[h].cost = UINT64_MAX;
    TRY(make_first(d, t, h));
    if (t->first[h].cost == UINT64_MAX) return QN_OK;
    for (uint32_t i = 0; i < t->s->problem.n_targets; i++) dims &= t->s->problem.target[i].dims;
    sources_make(&t->s->problem, &t->s->saturation, t->hand_over[h].class, t->hand_over[h].n,
                 &sources);
    TRY(skeletons_make(d, &t->s->problem, &sources, dims, t->params->n_loops, &skeletons));
    int rc = QN_OK;
    for (size_t i = 0; i < skeletons.list.n && rc == QN_OK; i++)
        rc = try_second_skeleton(d, t, h, &sources, &skeletons.list.items[i]);
    ARRAY_FINI(&skeletons.list);
    return rc;
}

/* ---- all together ---- */

static void set_names(struct two_tasks *t) {
    const struct problem *p = &t->s->problem;
    struct task_names *a = &t->first_names, *b = &t->second_names;
    enum { ROOM = BLOCK_NAME - 3 };
    snprintf(a->task, BLOCK_NAME, "%.*s_1", ROOM, p->name);
    snprintf(b->task, BLOCK_NAME, "%.*s_2", ROOM, p->name);
    a->hands_over = true;
    for (int i = 0; i < HANDED; i++) {
        snprintf(a->result[i], BLOCK_NAME, "handed_%d", i + 1);
        memcpy(b->handed[i], a->result[i], BLOCK_NAME);
    }
    for (uint32_t i = 0; i < p->n_targets; i++) memcpy(b->result[i], p->target[i].name, BLOCK_NAME);
}

static int collect(struct diag *d, const struct two_tasks *t, uint32_t problem,
                   struct candidates *out) {
    for (uint32_t h = 0; h < t->n; h++) {
        uint64_t cost;
        if (t->first[h].cost == UINT64_MAX || t->second[h].cost == UINT64_MAX ||
            !checked_add(t->first[h].cost, t->second[h].cost, &cost))
            continue;
        struct candidate c = {
            .cost = cost + cycles_hand_over(), .problem = problem, .blocks = {.n_tasks = 2}};
        c.blocks.task[0] = t->first[h].block;
        c.blocks.task[1] = t->second[h].block;
        TRY(ARRAY_PUSH(d, &out->list, c));
    }
    return QN_OK;
}

static int run(struct diag *d, struct arena *arena, struct two_tasks *t,
               struct search_result *stats) {
    const struct problem *p = &t->s->problem;
    const block_dims all = (block_dims)((1u << p->n_dims) - 1);
    TRY(ARENA_NEW(d, arena, &t->hand_over, HAND_OVERS));
    find_hand_overs(t);
    sources_make(p, &t->s->saturation, NULL, 0, &t->leaves);
    TRY(skeletons_make(d, p, &t->leaves, all, t->params->n_loops, &t->skeletons));
    const size_t n = t->skeletons.list.n;
    TRY(ARENA_NEW(d, arena, &t->cost, n * t->n));
    TRY(ARENA_NEW(d, arena, &t->first, t->n));
    TRY(ARENA_NEW(d, arena, &t->second, t->n));
    TRY(ARENA_NEW(d, arena, &t->spent, MAX(n, t->n)));
    TRY(run_all(d, t->params->n_threads, (uint32_t)n, try_first, t));
    TRY(run_all(d, t->params->n_threads, t->n, try_second, t));
    for (size_t i = 0; i < MAX(n, t->n); i++) {
        stats->n_steps += t->spent[i].n_steps;
        t->cut_short = t->cut_short || t->spent[i].cut_short;
    }
    stats->complete = stats->complete && !t->cut_short;
    return QN_OK;
}

int candidates_of_two(struct diag *d, const struct subject *s, uint32_t problem,
                      const struct search_params *params, struct candidates *out,
                      struct search_result *stats) {
    struct two_tasks t = {.s = s, .params = params};
    struct arena arena = {0};
    for (uint32_t i = 0; i < s->problem.n_targets; i++)
        if (s->saturation.target[i] == UINT16_MAX) return QN_OK;
    set_names(&t);
    int rc = run(d, &arena, &t, stats);
    stats->n_skeletons += t.skeletons.list.n;
    if (rc == QN_OK) rc = collect(d, &t, problem, out);
    ARRAY_FINI(&t.skeletons.list);
    arena_fini(&arena);
    return rc;
}
