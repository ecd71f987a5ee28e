/* place.c - every task becomes JIT or gets a worker (MPK section 5.2).
 *
 * AOT tasks are placed operator by operator: at most ceil(n_tasks / n_workers) of an operator's
 * tasks per worker, and the task that reads the most bytes goes to the worker that has the fewest
 * so far. A worker with a task of the previous operator, the last one whose results are needed,
 * comes after the workers without one, if these suffice. The workers of operators beside it
 * (kgraph_beside) come last, so that neither operator waits for the other. Where attention has
 * slices for at most half of the workers, all others wait for the workers with slices. These come
 * last in the operator before attention, so that attention starts early, and last in the operator
 * after ATTENTION_WHOLE, because they are free later. With several rows, a task that adds to the
 * residual stream goes to the worker that wrote these columns, so that no other worker has to see
 * them (transport.c). With a single row, SAMPLE goes to EMBED's worker, which has the smallest task
 * of the LM head. So within an operator the loads differ by at most one tile, and over the
 * operators the remainders even out. A worker's list keeps the order of linearization, which is a
 * topological one: FIFO execution cannot deadlock (task_verify proves it again).
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
     * not: they may start when their rows are written. */
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

/* The order of workers. READY: without a task of the previous operator; all, if these do not
 * suffice. BUSY: with a task of it. LATE: with one of attention's few slices before or after this
 * operator. BESIDE and up: with a task of an operator beside it. The later of two such operators
 * has the higher rank, because it ends later. */
enum { RANK_READY, RANK_BUSY, RANK_LATE, RANK_BESIDE };

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

/* Moves entry i down the heap to its place. */
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

/* A graph while its tasks are placed group by group. Each operator is a group; all dummies are the
 * last one. */
struct placing {
    struct tgraph *g;
    struct candidate *list; /* the AOT tasks of group k: list[first[k] .. first[k+1]) */
    uint32_t *first;        /* [n_groups + 1] */
    struct load *loads;     /* [n_workers] */
    struct heap lightest;
    size_t n_groups;
};

static uint32_t group_tasks(const struct placing *p, size_t k) {
    return p->first[k + 1] - p->first[k];
}

/* Sets the rank of the workers that have tasks of an operator, which is placed already. */
static void rank_workers(struct placing *p, int32_t op, uint32_t rank) {
    for (uint32_t i = p->first[op]; i < p->first[op + 1]; i++)
        p->loads[p->g->tasks.items[p->list[i].task].worker].rank = rank;
}

/* The operators beside a group's operator. */
static uint64_t group_beside(const struct placing *p, size_t k) {
    return k < p->g->kernel->ops.n ? kgraph_beside(p->g->kernel, (int32_t)k) : 0;
}

/* Begins a group: ranks the workers by their tasks of the previous operator. */
static void look_back(struct placing *p, size_t k) {
    const int32_t previous = (int32_t)k - 1 - __builtin_ctzll(~group_beside(p, k));
    const uint32_t n_workers = p->g->options.device.n_workers;
    uint32_t idle = 0;
    for (uint32_t w = 0; w < n_workers; w++) {
        p->loads[w].here = 0;
        p->loads[w].rank = RANK_READY;
    }
    if (previous < 0) return;
    rank_workers(p, previous, RANK_BUSY);
    for (uint32_t w = 0; w < n_workers; w++) idle += p->loads[w].rank == RANK_READY;
    if (p->g->kernel->ops.items[previous].kind == OP_ATTENTION_WHOLE && idle > 0)
        rank_workers(p, previous, RANK_LATE);
    else if (idle < group_tasks(p, k))
        rank_workers(p, previous, RANK_READY);
}

/* Ranks the workers that have tasks of operators beside a group's. */
static void look_beside(struct placing *p, size_t k) {
    const uint64_t beside = group_beside(p, k);
    uint32_t rank = RANK_BESIDE;
    for (int i = 63; i >= 0; i--)
        if (beside >> i & 1) rank_workers(p, (int32_t)k - 1 - i, rank++);
}

/* Whether a task is a slice of attention whose load is its part of the context. ATTENTION_SPLIT's
 * slices are on CUDA only. */
static bool goes_through_context(const struct tgraph *g, const struct task *t) {
    if (t->op < 0) return false;
    if (t->kind == OP_ATTENTION_SPLIT) return g->options.device.kind == DEVICE_CUDA;
    return t->kind == OP_ATTENTION_WHOLE || t->kind == OP_ATTENTION_STEP;
}

/* Whether a task is a slice of attention and at most half of the workers have slices: all other
 * workers wait for these. */
static bool is_of_few(const struct tgraph *g, const struct task *t) {
    return goes_through_context(g, t) && cost_is_of_few(&g->options.device, t->unit1);
}

/* The worker of a slice: the same in every layer, so its list of items holds for all layers. */
static uint32_t slice_worker(const struct task *t, uint32_t slice, uint32_t n_workers) {
    return (uint32_t)((uint64_t)slice * n_workers / t->unit1);
}

/* The load of a task in bytes: the weights that it reads. A slice of attention counts its share of
 * contexts of a quarter of the longest, and more where few workers have a slice. */
static uint64_t load_bytes(const struct tgraph *g, const struct task *t) {
    if (!goes_through_context(g, t)) return task_weight_bytes(g->kernel, t);
    return cost_slice_bytes(&g->options.device, g->kernel, g->options.kv_dtype, t->unit1);
}

/* With several rows: the operator that wrote the residual which `op` adds to, if `op` is LINEAR and
 * both have columns of it; else -1. */
static int32_t adds_to(const struct kgraph *k, int32_t op) {
    const struct kop *o = &k->ops.items[op];
    if (o->kind != OP_LINEAR || k->n_rows == 1 || o->in[LINEAR_RESIDUAL] == NO_TENSOR) return -1;
    const int32_t from = k->tensors.items[o->in[LINEAR_RESIDUAL]].producer;
    return from >= 0 && op_writes_columns(k->ops.items[from].kind) ? from : -1;
}

/* With a single row, EMBED if `op` is SAMPLE; else -1. SAMPLE goes to EMBED's worker: the worker
 * that ends an iteration plays the boundary and knows the next iteration first, which begins with
 * EMBED. */
static int32_t goes_on_with(const struct kgraph *k, int32_t op) {
    if (k->ops.items[op].kind != OP_SAMPLE || k->n_rows > 1) return -1;
    for (int32_t i = 0; i < op; i++)
        if (k->ops.items[i].kind == OP_EMBED) return i;
    return -1;
}

/* The operator whose workers the tasks of `op` get, if both are cut alike; -1: none. */
static int32_t is_placed_like(const struct kgraph *k, int32_t op) {
    const int32_t from = adds_to(k, op);
    return from >= 0 ? from : goes_on_with(k, op);
}

static void note_load(struct load *l, uint64_t bytes) {
    l->bytes += bytes;
    l->tasks++;
    l->here++;
}

/* Places a group's tasks on the workers of operator `from`'s tasks, if both are cut alike and all
 * those tasks have workers. */
static bool place_like(struct placing *p, size_t k, int32_t from) {
    struct task *t = p->g->tasks.items;
    struct candidate *c = p->list + p->first[k];
    const struct candidate *like = p->list + p->first[from];
    const uint32_t n = group_tasks(p, k);
    if (group_tasks(p, (size_t)from) != n) return false;
    qsort(c, n, sizeof *c, heavier_first); /* the order of `like`, too */
    for (uint32_t i = 0; i < n; i++)
        if (t[like[i].task].worker == NO_WORKER || t[like[i].task].unit0 != t[c[i].task].unit0 ||
            t[like[i].task].unit1 != t[c[i].task].unit1 ||
            t[like[i].task].row0 != t[c[i].task].row0 || t[like[i].task].row1 != t[c[i].task].row1)
            return false;
    for (uint32_t i = 0; i < n; i++) {
        t[c[i].task].worker = t[like[i].task].worker;
        note_load(&p->loads[t[c[i].task].worker], c[i].bytes);
    }
    return true;
}

/* Ranks late the workers that the group after k will use: those of its slices if few workers have
 * one, EMBED's if it is SAMPLE. */
static void look_ahead(struct placing *p, size_t k) {
    const struct tgraph *g = p->g;
    if (k + 1 >= p->n_groups || group_tasks(p, k + 1) == 0) return;
    const struct task *next = &g->tasks.items[p->list[p->first[k + 1]].task];
    if (is_of_few(g, next))
        for (uint32_t i = 0; i < next->unit1; i++)
            p->loads[slice_worker(next, i, g->options.device.n_workers)].rank = RANK_LATE;
    const int32_t like = next->op >= 0 ? goes_on_with(g->kernel, next->op) : -1;
    if (like >= 0) rank_workers(p, like, RANK_LATE);
}

/* Places a group's tasks, the heaviest on the lightest workers. */
static void place_group(struct placing *p, size_t k) {
    struct heap *lightest = &p->lightest;
    struct candidate *c = p->list + p->first[k];
    const uint32_t n_workers = p->g->options.device.n_workers, n = group_tasks(p, k);
    const uint32_t most_here = CEIL_DIV(n, n_workers);
    qsort(c, n, sizeof *c, heavier_first);
    look_ahead(p, k);
    look_beside(p, k);
    fill_heap(lightest, n_workers);
    for (uint32_t i = 0; i < n; i++) {
        struct task *t = &p->g->tasks.items[c[i].task];
        const bool slice = is_sliced(t) && t->unit1 <= n_workers;
        const uint32_t w = slice ? slice_worker(t, t->unit0, n_workers) : lightest->worker[0];
        t->worker = (int32_t)w;
        note_load(&p->loads[w], c[i].bytes);
        if (slice) continue;
        if (p->loads[w].here == most_here) lightest->worker[0] = lightest->worker[--lightest->n];
        sink(lightest, 0);
    }
}

/* The load of the workers [first, first + n) so far. */
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

/* Places the gangs of a group one after the other, in the order of their tasks: each goes to the
 * consecutive workers with the least load. */
static void place_gangs(struct placing *p, size_t k, uint32_t gang) {
    const uint32_t n_workers = p->g->options.device.n_workers;
    const struct candidate *c = p->list + p->first[k];
    for (uint32_t i = 0; i < group_tasks(p, k); i += gang) {
        uint32_t best = 0;
        for (uint32_t w = gang; w + gang <= n_workers; w += gang) {
            const struct load a = load_of(p->loads, w, gang), b = load_of(p->loads, best, gang);
            if (is_less(&a, &b)) best = w;
        }
        for (uint32_t m = 0; m < gang; m++) {
            p->g->tasks.items[c[i + m].task].worker = (int32_t)(best + m);
            note_load(&p->loads[best + m], c[i + m].bytes);
        }
    }
}

/* The group of a task: its operator; all dummies together in the last one. */
static size_t group_of(const struct tgraph *g, const struct task *t) {
    return t->op < 0 ? g->kernel->ops.n : (size_t)t->op;
}

/* Sorts the AOT tasks by group, in their order. */
static int collect(struct diag *d, struct placing *p, struct arena *scratch) {
    struct tgraph *g = p->g;
    bool *jit;
    uint32_t *fill;
    TRY(ARENA_NEW(d, scratch, &jit, p->n_groups));
    TRY(ARENA_NEW(d, scratch, &p->list, g->tasks.n));
    TRY(ARENA_NEW(d, scratch, &p->first, p->n_groups + 1));
    TRY(ARENA_NEW(d, scratch, &fill, p->n_groups));
    classify(g, jit);
    for (size_t i = 0; i < g->tasks.n; i++) {
        const size_t k = group_of(g, &g->tasks.items[i]);
        g->tasks.items[i].worker = NO_WORKER;
        if (!jit[k]) p->first[k + 1]++;
    }
    for (size_t k = 0; k < p->n_groups; k++) {
        p->first[k + 1] += p->first[k];
        fill[k] = p->first[k];
    }
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        const size_t k = group_of(g, t);
        if (!jit[k]) p->list[fill[k]++] = (struct candidate){(int32_t)i, load_bytes(g, t)};
    }
    return QN_OK;
}

static int place_groups(struct diag *d, struct tgraph *g, struct arena *scratch) {
    const struct kgraph *kernel = g->kernel;
    struct placing p = {.g = g, .n_groups = kernel->ops.n + 1};
    TRY(collect(d, &p, scratch));
    TRY(ARENA_NEW(d, scratch, &p.loads, g->options.device.n_workers));
    TRY(ARENA_NEW(d, scratch, &p.lightest.worker, g->options.device.n_workers));
    p.lightest.loads = p.loads;
    for (size_t k = 0; k < p.n_groups; k++) {
        const bool is_op = k < kernel->ops.n;
        const int32_t like = is_op ? is_placed_like(kernel, (int32_t)k) : -1;
        look_back(&p, k);
        if (is_op && kernel->ops.items[k].gang > 1)
            place_gangs(&p, k, kernel->ops.items[k].gang);
        else if (like < 0 || !place_like(&p, k, like))
            place_group(&p, k);
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
