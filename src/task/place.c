/* place.c - every task becomes JIT or gets a worker (MPK section 5.2; DESIGN decision 11).
 *
 * AOT tasks are placed operator by operator: at most ceil(n_tasks / n_workers) of an operator's
 * tasks per worker, and the task with the most weight bytes goes to the worker that has the fewest
 * so far. So within an operator the loads differ by at most one tile, and over the operators the
 * remainders even out. A worker's list keeps the order of linearization, which is a topological
 * one: FIFO execution cannot deadlock (task_verify proves it again).
 */
#include "base/checked.h"
#include "task/task_graph.h"

#include <stdlib.h>
#include <string.h>

/* The paper's rule, per operator: JIT if its duration depends on data, or if it waits for a JIT
 * operator through anything less than a barrier over all of that operator's tasks. */
static bool paper_jit(const struct tgraph *g, const bool *jit, int32_t op) {
    const struct kop *k = &g->kernel->ops.items[op];
    struct op_info info;
    op_describe(k->kind, &info);
    if (info.launch == LAUNCH_JIT) return true;
    /* A task that needs all of a JIT operator's output waits behind a barrier. Tiles of rows do
     * not: they may start when their rows are there. */
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (k->in[i] == NO_TENSOR) continue;
        const int producer = g->kernel->tensors.items[k->in[i]].producer;
        if (producer < 0 || !jit[producer]) continue;
        op_describe(g->kernel->ops.items[producer].kind, &info);
        if (info.split != SPLIT_SLICES) return true;
    }
    return false;
}

static void classify(const struct tgraph *g, bool *jit) {
    for (int32_t op = 0; op < (int32_t)g->kernel->ops.n; op++) {
        struct op_info info;
        op_describe(g->kernel->ops.items[op].kind, &info);
        switch (g->options.launch) {
        case LAUNCH_HYBRID: jit[op] = info.launch == LAUNCH_JIT; break;
        case LAUNCH_PAPER: jit[op] = paper_jit(g, jit, op); break;
        case LAUNCH_ALL_AOT: jit[op] = false; break;
        case LAUNCH_ALL_JIT: jit[op] = true; break;
        }
    }
}

struct candidate {
    int32_t task;
    uint64_t bytes;
};

static int heavier_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->task < y->task ? -1 : 1;
}

static bool is_sliced(const struct task *t) {
    struct op_info info;
    if (t->op < 0) return false;
    op_describe(t->kind, &info);
    return info.split == SPLIT_SLICES;
}

struct load {
    uint64_t bytes;        /* weights placed so far */
    uint64_t tasks;        /* tasks placed so far: decides among equal bytes */
    uint32_t here, before; /* tasks of the operator at hand, of the one before */
};

static uint32_t lightest(const struct load *loads, uint32_t n, uint32_t most_here, bool skip_busy) {
    uint32_t best = UINT32_MAX;
    for (uint32_t w = 0; w < n; w++) {
        if (loads[w].here >= most_here || (skip_busy && loads[w].before > 0)) continue;
        if (best == UINT32_MAX || loads[w].bytes < loads[best].bytes ||
            (loads[w].bytes == loads[best].bytes && loads[w].tasks < loads[best].tasks))
            best = w;
    }
    return best;
}

/* Whether as many workers have no task of the operator before: they are ready before the others. */
static bool enough_are_idle(const struct load *loads, uint32_t n_workers, uint32_t n) {
    uint32_t idle = 0;
    for (uint32_t w = 0; w < n_workers; w++) idle += loads[w].before == 0;
    return idle >= n;
}

/* Places the candidates, all of one operator (or all dummies). */
static void place_group(struct tgraph *g, struct candidate *c, uint32_t n, struct load *loads) {
    const uint32_t n_workers = g->options.n_workers;
    const uint32_t most_here = CEIL_DIV(n, n_workers);
    qsort(c, n, sizeof *c, heavier_first);
    for (uint32_t w = 0; w < n_workers; w++) {
        loads[w].before = loads[w].here;
        loads[w].here = 0;
    }
    const bool skip_busy = enough_are_idle(loads, n_workers, n);
    for (uint32_t i = 0; i < n; i++) {
        const struct task *t = &g->tasks.items[c[i].task];
        /* Every worker has the same slice in every layer: what it found of it once holds on. */
        const bool slice = is_sliced(t) && t->unit1 == n_workers;
        const uint32_t w = slice ? t->unit0 : lightest(loads, n_workers, most_here, skip_busy);
        g->tasks.items[c[i].task].worker = (int32_t)w;
        loads[w].bytes += c[i].bytes;
        loads[w].tasks++;
        loads[w].here++;
    }
}

/* The group of a task: its operator; all dummies together in the last one. */
static size_t group_of(const struct tgraph *g, const struct task *t) {
    return t->op < 0 ? g->kernel->ops.n : (size_t)t->op;
}

static int place_groups(struct diag *d, struct tgraph *g, struct arena *scratch) {
    const size_t n_groups = g->kernel->ops.n + 1;
    bool *jit;
    struct load *loads;
    struct candidate *list;
    uint32_t *first, *fill; /* the AOT tasks of each group: list[first[k] .. first[k+1]) */
    TRY(ARENA_NEW(d, scratch, &jit, n_groups));
    TRY(ARENA_NEW(d, scratch, &loads, g->options.n_workers));
    TRY(ARENA_NEW(d, scratch, &list, g->tasks.n));
    TRY(ARENA_NEW(d, scratch, &first, n_groups + 1));
    TRY(ARENA_NEW(d, scratch, &fill, n_groups));
    classify(g, jit);
    for (size_t i = 0; i < g->tasks.n; i++) {
        const size_t k = group_of(g, &g->tasks.items[i]);
        g->tasks.items[i].worker = NO_WORKER;
        if (!jit[k]) first[k + 1]++;
    }
    for (size_t k = 0; k < n_groups; k++) {
        first[k + 1] += first[k];
        fill[k] = first[k];
    }
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        const size_t k = group_of(g, t);
        if (!jit[k])
            list[fill[k]++] = (struct candidate){(int32_t)i, task_weight_bytes(g->kernel, t)};
    }
    for (size_t k = 0; k < n_groups; k++)
        place_group(g, list + first[k], first[k + 1] - first[k], loads);
    return QN_OK;
}

int place(struct diag *d, struct tgraph *g) {
    struct arena scratch = {0};
    const int rc = place_groups(d, g, &scratch);
    arena_fini(&scratch);
    return rc;
}
