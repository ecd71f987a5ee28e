/* place.c - every task becomes JIT or gets a worker (MPK section 5.2).
 *
 * AOT tasks are placed operator by operator: at most ceil(n_tasks / n_workers) of an operator's
 * tasks per worker, and the task that reads the most bytes goes to the worker that has the fewest
 * so far. A worker with a task of the previous operator comes after the workers without one, if
 * these suffice. Where attention has slices for at most half of the workers, all others wait for
 * them: these workers come last in the operator before attention, so that attention starts early,
 * and last in the operator after ATTENTION_WHOLE, because they are free later. With several rows, a
 * task that adds to the residual stream goes to the worker that wrote these columns, so that no
 * other worker has to see them (transport.c). With a single row, SAMPLE goes to EMBED's worker,
 * which has the smallest task of the LM head. So within an operator the loads differ by at most one
 * tile, and over the operators the remainders even out. A worker's list keeps the order of
 * linearization, which is a topological one: FIFO execution cannot deadlock (task_verify proves it
 * again).
 */
#include "base/checked.h"
#include "plan/cost.h"
#include "task/task_graph.h"

#include <stdlib.h>
#include <string.h>

/* The paper's rule, per operator: JIT if its duration depends on data, or if it waits for a JIT
 * operator through anything less than a barrier over all of that operator's tasks. */
static bool paper_jit(const struct tgraph *g, const bool *jit, int32_t op) {
    const struct kop *k = &g->kernel->ops.items[op];
    if (op_launch_of(k->kind) == LAUNCH_JIT) return true;
    /* A task that needs all of a JIT operator's output waits behind a barrier. Tiles of rows do
     * not: they may start when their rows are there. */
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (k->in[i] == NO_TENSOR) continue;
        const int producer = g->kernel->tensors.items[k->in[i]].producer;
        if (producer < 0 || !jit[producer]) continue;
        if (op_split_of(g->kernel->ops.items[producer].kind) != SPLIT_SLICES) return true;
    }
    return false;
}

static void classify(const struct tgraph *g, bool *jit) {
    for (int32_t op = 0; op < (int32_t)g->kernel->ops.n; op++) {
        const enum op_kind kind = g->kernel->ops.items[op].kind;
        if (g->kernel->ops.items[op].gang > 1) continue; /* its workers wait for each other */
        switch (g->options.launch) {
        case LAUNCH_HYBRID: jit[op] = op_launch_of(kind) == LAUNCH_JIT; break;
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
    return t->op >= 0 && op_split_of(t->kind) == SPLIT_SLICES;
}

struct load {
    uint64_t bytes; /* that its tasks so far read */
    uint64_t tasks; /* tasks placed so far: decides among equal bytes */
    uint32_t here;  /* tasks of the operator at hand */
    uint32_t rank;  /* workers of a lower rank come first */
};

/* The order of workers: first the workers without a task of the previous operator, if they suffice;
 * last the workers that have one of attention's few slices before or after this operator. */
enum { RANK_READY, RANK_BUSY, RANK_LATE };

/* Workers that may take a task of the operator at hand, as a binary heap: worker[0] is the
 * lightest, and none is lighter than the one at half its index. */
struct heap {
    const struct load *loads;
    uint32_t *worker;
    uint32_t n;
};

static bool is_lighter(const struct load *loads, uint32_t a, uint32_t b) {
    if (loads[a].rank != loads[b].rank) return loads[a].rank < loads[b].rank;
    if (loads[a].bytes != loads[b].bytes) return loads[a].bytes < loads[b].bytes;
    if (loads[a].tasks != loads[b].tasks) return loads[a].tasks < loads[b].tasks;
    return a < b;
}

/* Puts entry i where it belongs among those below it. */
static void sink(struct heap *h, uint32_t i) {
    const uint32_t w = h->worker[i];
    for (uint32_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && is_lighter(h->loads, h->worker[child + 1], h->worker[child]))
            child++;
        if (!is_lighter(h->loads, h->worker[child], w)) break;
        h->worker[i] = h->worker[child];
    }
    h->worker[i] = w;
}

static void fill_heap(struct heap *h, uint32_t n_workers) {
    h->n = n_workers;
    for (uint32_t w = 0; w < n_workers; w++) h->worker[w] = w;
    for (uint32_t i = h->n / 2; i-- > 0;) sink(h, i);
}

/* Ranks the workers for an operator of n tasks by their tasks of the previous operator; `whole`:
 * that was ATTENTION_WHOLE. Workers with such a task come last, if the others suffice. */
static void look_back(struct load *loads, uint32_t n_workers, uint32_t n, bool whole) {
    uint32_t idle = 0;
    for (uint32_t w = 0; w < n_workers; w++) idle += loads[w].here == 0;
    const uint32_t rank = whole && idle > 0 ? RANK_LATE : idle >= n ? RANK_BUSY : RANK_READY;
    for (uint32_t w = 0; w < n_workers; w++) {
        loads[w].rank = loads[w].here > 0 ? rank : RANK_READY;
        loads[w].here = 0;
    }
}

/* Attention whose slices are worth a place of their own; on CUDA alone ATTENTION_SPLIT's. */
static bool goes_through_context(const struct tgraph *g, const struct task *t) {
    if (t->op < 0) return false;
    if (t->kind == OP_ATTENTION_SPLIT) return g->options.device.kind == DEVICE_CUDA;
    return t->kind == OP_ATTENTION_WHOLE || t->kind == OP_ATTENTION_STEP;
}

/* Whether a task is a slice of attention that at most half of the workers have: all other workers
 * wait for these. */
static bool is_of_few(const struct tgraph *g, const struct task *t) {
    return goes_through_context(g, t) && cost_is_of_few(&g->options.device, t->unit1);
}

/* The worker of a slice: the same in every layer, so its list of items holds for all layers. */
static uint32_t slice_worker(const struct task *t, uint32_t slice, uint32_t n_workers) {
    return (uint32_t)((uint64_t)slice * n_workers / t->unit1);
}

/* The load of a task in bytes: the weights that it reads; for attention a quarter of the longest
 * context, and more where few workers have a slice. */
static uint64_t load_bytes(const struct tgraph *g, const struct task *t) {
    if (!goes_through_context(g, t)) return task_weight_bytes(g->kernel, t);
    return cost_slice_bytes(&g->options.device, g->kernel, g->options.kv_dtype, t->unit1);
}

/* With several rows: the operator that wrote the residual which `op` adds to, if both are LINEAR;
 * else -1. */
static int32_t adds_to(const struct kgraph *k, int32_t op) {
    const struct kop *o = &k->ops.items[op];
    if (o->kind != OP_LINEAR || k->n_rows == 1 || o->in[LINEAR_RESIDUAL] == NO_TENSOR) return -1;
    const int32_t from = k->tensors.items[o->in[LINEAR_RESIDUAL]].producer;
    return from >= 0 && k->ops.items[from].kind == OP_LINEAR ? from : -1;
}

/* With a single row, SAMPLE goes to EMBED's worker: the worker that ends an iteration plays the
 * boundary, knows the next iteration first, and that begins with EMBED. -1: no such operator. */
static int32_t goes_on_with(const struct kgraph *k, int32_t op) {
    if (k->ops.items[op].kind != OP_SAMPLE || k->n_rows > 1) return -1;
    for (int32_t i = 0; i < op; i++)
        if (k->ops.items[i].kind == OP_EMBED) return i;
    return -1;
}

/* The operator whose workers an operator's tasks have, if both are cut alike; -1: none. */
static int32_t is_placed_like(const struct kgraph *k, int32_t op) {
    const int32_t from = adds_to(k, op);
    return from >= 0 ? from : goes_on_with(k, op);
}

static void note_load(struct load *l, uint64_t bytes) {
    l->bytes += bytes;
    l->tasks++;
    l->here++;
}

/* Places an operator's n tasks c where those of another are, if both are cut alike and these have
 * workers. */
static bool place_like(struct tgraph *g, struct candidate *c, const struct candidate *like,
                       uint32_t n, struct load *loads) {
    struct task *t = g->tasks.items;
    qsort(c, n, sizeof *c, heavier_first); /* as those are */
    for (uint32_t i = 0; i < n; i++)
        if (t[like[i].task].worker == NO_WORKER || t[like[i].task].unit0 != t[c[i].task].unit0 ||
            t[like[i].task].unit1 != t[c[i].task].unit1 ||
            t[like[i].task].row0 != t[c[i].task].row0 || t[like[i].task].row1 != t[c[i].task].row1)
            return false;
    look_back(loads, g->options.device.n_workers, n, false);
    for (uint32_t i = 0; i < n; i++) {
        t[c[i].task].worker = t[like[i].task].worker;
        note_load(&loads[t[c[i].task].worker], c[i].bytes);
    }
    return true;
}

/* Marks the workers that will have the slices of `next`, if few have one, or EMBED, if `next` is
 * SAMPLE. */
static void look_ahead(const struct tgraph *g, const struct task *next, struct load *loads) {
    if (is_of_few(g, next))
        for (uint32_t i = 0; i < next->unit1; i++)
            loads[slice_worker(next, i, g->options.device.n_workers)].rank = RANK_LATE;
    const int32_t like = next->op >= 0 ? goes_on_with(g->kernel, next->op) : -1;
    for (size_t i = 0; like >= 0 && i < g->tasks.n && g->tasks.items[i].op <= like; i++)
        if (g->tasks.items[i].op == like && g->tasks.items[i].worker != NO_WORKER)
            loads[g->tasks.items[i].worker].rank = RANK_LATE;
}

/* Places the candidates, all of one operator (or all dummies). whole: it follows ATTENTION_WHOLE;
 * next: a task of the operator after it, or NULL. */
static void place_group(struct tgraph *g, struct candidate *c, uint32_t n, bool whole,
                        const struct task *next, struct load *loads, struct heap *lightest) {
    const uint32_t n_workers = g->options.device.n_workers;
    const uint32_t most_here = CEIL_DIV(n, n_workers);
    qsort(c, n, sizeof *c, heavier_first);
    look_back(loads, n_workers, n, whole);
    if (next != NULL) look_ahead(g, next, loads);
    fill_heap(lightest, n_workers);
    for (uint32_t i = 0; i < n; i++) {
        const struct task *t = &g->tasks.items[c[i].task];
        const bool slice = is_sliced(t) && t->unit1 <= n_workers;
        const uint32_t w = slice ? slice_worker(t, t->unit0, n_workers) : lightest->worker[0];
        g->tasks.items[c[i].task].worker = (int32_t)w;
        note_load(&loads[w], c[i].bytes);
        if (slice) continue;
        if (loads[w].here == most_here) lightest->worker[0] = lightest->worker[--lightest->n];
        sink(lightest, 0);
    }
}

/* What the workers [first, first + n) have so far. */
static struct load load_of(const struct load *loads, uint32_t first, uint32_t n) {
    struct load sum = {0};
    for (uint32_t w = first; w < first + n; w++) {
        sum.bytes += loads[w].bytes;
        sum.tasks += loads[w].tasks;
        sum.here += loads[w].here;
    }
    return sum;
}

static bool is_less(const struct load *a, const struct load *b) {
    if (a->here != b->here) return a->here < b->here;
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->tasks < b->tasks;
}

/* Places the candidates, gangs of an operator one after the other, in the order of their tasks:
 * each goes to the consecutive workers that have the least. */
static void place_gangs(struct tgraph *g, const struct candidate *c, uint32_t n, uint32_t gang,
                        struct load *loads) {
    look_back(loads, g->options.device.n_workers, n, false);
    for (uint32_t i = 0; i < n; i += gang) {
        uint32_t best = 0;
        for (uint32_t w = gang; w + gang <= g->options.device.n_workers; w += gang) {
            const struct load a = load_of(loads, w, gang), b = load_of(loads, best, gang);
            if (is_less(&a, &b)) best = w;
        }
        for (uint32_t m = 0; m < gang; m++) {
            g->tasks.items[c[i + m].task].worker = (int32_t)(best + m);
            note_load(&loads[best + m], c[i + m].bytes);
        }
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
    struct heap lightest;
    struct candidate *list;
    uint32_t *first, *fill; /* the AOT tasks of each group: list[first[k] .. first[k+1]) */
    TRY(ARENA_NEW(d, scratch, &jit, n_groups));
    TRY(ARENA_NEW(d, scratch, &loads, g->options.device.n_workers));
    TRY(ARENA_NEW(d, scratch, &lightest.worker, g->options.device.n_workers));
    lightest.loads = loads;
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
        if (!jit[k]) list[fill[k]++] = (struct candidate){(int32_t)i, load_bytes(g, t)};
    }
    for (size_t k = 0; k < n_groups; k++) {
        const uint32_t n = first[k + 1] - first[k];
        const uint32_t gang = k < g->kernel->ops.n ? g->kernel->ops.items[k].gang : 1;
        if (gang > 1) {
            place_gangs(g, list + first[k], n, gang, loads);
            continue;
        }
        const int32_t like = k < g->kernel->ops.n ? is_placed_like(g->kernel, (int32_t)k) : -1;
        if (like >= 0 && first[like + 1] - first[like] == n &&
            place_like(g, list + first[k], list + first[like], n, loads))
            continue;
        const bool whole = k > 0 && g->kernel->ops.items[k - 1].kind == OP_ATTENTION_WHOLE;
        const struct task *next = k + 1 < n_groups && first[k + 1] < first[k + 2]
                                      ? &g->tasks.items[list[first[k + 1]].task]
                                      : NULL;
        place_group(g, list + first[k], n, whole, next, loads, &lightest);
    }
    return QN_OK;
}

int place(struct diag *d, struct tgraph *g) {
    struct arena scratch = {0};
    if (g->tasks.n == 0) return QN_OK;
    const int rc = place_groups(d, g, &scratch);
    arena_fini(&scratch);
    return rc;
}
