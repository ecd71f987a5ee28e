/* depend.c - which tasks must come before which (MPK section 4.1, "dependency analysis").
 *
 * For every pair of operators that share a tensor, and every pair of their tasks whose regions
 * overlap with one of them writing, the later task depends on the earlier one: reads after writes,
 * and, because the memory plan lets tensors share bytes and state outlives its readers, writes
 * after reads and writes after writes. (The paper has the first kind only.)
 *
 * A dependency that follows from the others is dropped: if a task waits for some task of operator
 * B, and that one comes after *all* tasks of operator A, then waiting for A adds nothing. For this
 * every task carries the set of operators that are wholly before it. event_fuse makes events from
 * the dependencies that are left; without this step, every reuse of a buffer would cost dummy
 * tasks. In a decoder nearly all dependencies follow from the operator just before, so operators
 * are compared only when no task's set has the answer. A task that waits for all tasks of one
 * operator and for some of an operator beside it waits for all tasks of both. Otherwise each task
 * of the first operator would trigger an event for every such set, through as many dummies.
 */
#include "base/checked.h"
#include "task/task_graph.h"

#include <string.h>

/* How the operator at hand depends on an earlier one. */
enum conflict {
    CONFLICT_UNKNOWN, /* not compared yet */
    CONFLICT_NONE,
    CONFLICT_REGIONS, /* overlap of their tasks' regions decides */
    CONFLICT_WHOLE,   /* every task of the earlier one: two tensors share bytes, or coarse_events */
};

struct depend {
    struct diag *d;
    struct tgraph *g;
    uint32_t words;       /* of one operator set */
    uint64_t *before;     /* [tasks][words] operators that are wholly before the task */
    uint64_t *before_any; /* [ops][words] ... before some task of the operator */
    enum conflict *found; /* [ops] conflict of the operator at hand with each earlier one */
    uint64_t *open;       /* [words] earlier operators that it may conflict with, as far as known */
    struct region *access;           /* [tasks][TASK_MAX_ACCESS] */
    int *n_access;                   /* [tasks] */
    ARRAY(struct task_range) ranges; /* of the task at hand */
};

static bool shares_bytes(const struct tgraph *g, int32_t a, int32_t b) {
    const struct tensor *ta = &g->kernel->tensors.items[a], *tb = &g->kernel->tensors.items[b];
    if (a == b || ta->role != TENSOR_ACTIVATION || tb->role != TENSOR_ACTIVATION) return false;
    return g->tensor_offset[a] < g->tensor_offset[b] + tensor_bytes(tb) &&
           g->tensor_offset[b] < g->tensor_offset[a] + tensor_bytes(ta);
}

/* The operands of an operator in one list; returns how many. Outputs are last, from *n_in on. */
static int operands(const struct kop *op, int32_t *list, int *n_in) {
    int n = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        if (op->in[i] != NO_TENSOR) list[n++] = op->in[i];
    *n_in = n;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i] != NO_TENSOR) list[n++] = op->out[i];
    return n;
}

static enum conflict compare_ops(const struct tgraph *g, const struct kop *early,
                                 const struct kop *late) {
    int32_t a[OP_MAX_IN + OP_MAX_OUT], b[OP_MAX_IN + OP_MAX_OUT];
    int a_in, b_in;
    const int na = operands(early, a, &a_in), nb = operands(late, b, &b_in);
    enum conflict c = CONFLICT_NONE;
    for (int i = 0; i < na; i++)
        for (int j = 0; j < nb; j++) {
            if (i < a_in && j < b_in) continue; /* two reads */
            if (shares_bytes(g, a[i], b[j])) return CONFLICT_WHOLE;
            if (a[i] == b[j]) c = g->options.coarse_events ? CONFLICT_WHOLE : CONFLICT_REGIONS;
        }
    return c;
}

/* The latest operator before `end` that the one at hand may conflict with and that is not in `set`;
 * -1: none. */
static int32_t latest_open(const struct depend *s, const uint64_t *set, int32_t end) {
    for (int32_t w = end / 64; w >= 0; w--) {
        uint64_t bits = s->open[w] & ~set[w];
        if (w == end / 64) bits &= (1ull << (end % 64)) - 1;
        if (bits != 0) return 64 * w + 63 - __builtin_clzll(bits);
    }
    return -1;
}

static void forget_conflicts(struct depend *s, int32_t op) {
    for (int32_t i = 0; i < op; i++) s->found[i] = CONFLICT_UNKNOWN;
    memset(s->open, 0xff, s->words * sizeof *s->open);
}

/* The conflict of the operator at hand with an earlier one. A pair is compared once. */
static enum conflict conflict_with(struct depend *s, int32_t op, int32_t early) {
    const struct kop *ops = s->g->kernel->ops.items;
    if (s->found[early] == CONFLICT_UNKNOWN) {
        s->found[early] = compare_ops(s->g, &ops[early], &ops[op]);
        if (s->found[early] == CONFLICT_NONE) s->open[early / 64] &= ~(1ull << (early % 64));
    }
    return s->found[early];
}

static bool tasks_conflict(const struct depend *s, int32_t a, int32_t b) {
    const struct region *x = &s->access[a * TASK_MAX_ACCESS], *y = &s->access[b * TASK_MAX_ACCESS];
    for (int i = 0; i < s->n_access[a]; i++)
        for (int j = 0; j < s->n_access[b]; j++)
            if ((x[i].write || y[j].write) && region_overlap(&x[i], &y[j])) return true;
    return false;
}

/* Appends the tasks of an earlier operator that `task` conflicts with, as ranges. */
static int add_ranges(struct depend *s, int32_t early, enum conflict how, int32_t task) {
    const struct task_range all = s->g->op_tasks[early];
    if (how == CONFLICT_WHOLE) return ARRAY_PUSH(s->d, &s->ranges, all);
    struct task_range run = {all.first, all.first}; /* the range that is growing */
    for (int32_t t = all.first; t < all.last; t++) {
        if (!tasks_conflict(s, t, task)) continue;
        const struct task_range gang = gang_range(s->g, t); /* the whole gang, or no task of it */
        if (run.last != gang.first) {
            if (run.first < run.last) TRY(ARRAY_PUSH(s->d, &s->ranges, run));
            run.first = gang.first;
        }
        run.last = gang.last;
        t = gang.last - 1;
    }
    return run.first < run.last ? ARRAY_PUSH(s->d, &s->ranges, run) : QN_OK;
}

static void unite(uint64_t *set, const uint64_t *more, uint32_t words) {
    for (uint32_t w = 0; w < words; w++) set[w] |= more[w];
}

/* Adds to `set` the operators that are wholly before a task that waits for a range: the sets of the
 * range's tasks, and their operator if the range is all of its tasks. */
static void absorb(const struct depend *s, uint64_t *set, int32_t early,
                   const struct task_range *r) {
    const struct task_range all = s->g->op_tasks[early];
    if (r->first == all.first && r->last == all.last) {
        unite(set, s->before_any + (size_t)early * s->words, s->words);
        set[early / 64] |= 1ull << (early % 64);
        return;
    }
    for (int32_t t = r->first; t < r->last; t++)
        unite(set, s->before + (size_t)t * s->words, s->words);
}

static int by_first(const void *a, const void *b) {
    const struct task_range *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Whether the ranges from `first` on are one range, of all tasks of an operator with several. */
static bool is_barrier(const struct depend *s, int32_t op, size_t first) {
    const struct task_range all = s->g->op_tasks[op], *r = s->ranges.items + first;
    return s->ranges.n == first + 1 && r->first == all.first && r->last == all.last &&
           all.last - all.first > 1;
}

static bool is_beside(const struct depend *s, int32_t early, int32_t late) {
    const int32_t back = late - 1 - early;
    return back < 64 && (kgraph_beside(s->g->kernel, late) >> back & 1) != 0;
}

/* Goes from the latest operator to the first, so that a dependency is absorbed before those that
 * follow from it. */
static int depend_task(struct depend *s, int32_t op, int32_t task) {
    uint64_t *before = s->before + (size_t)task * s->words;
    int32_t barrier = -1; /* an operator of which it waits for all tasks */
    s->ranges.n = 0;
    for (int32_t e = latest_open(s, before, op); e >= 0; e = latest_open(s, before, e)) {
        const enum conflict how = conflict_with(s, op, e);
        if (how == CONFLICT_NONE) continue;
        const size_t first = s->ranges.n;
        TRY(add_ranges(s, e, how, task));
        if (barrier >= 0 && s->ranges.n > first && is_beside(s, e, barrier)) {
            s->ranges.n = first;
            TRY(add_ranges(s, e, CONFLICT_WHOLE, task));
        }
        if (barrier < 0 && is_barrier(s, e, first)) barrier = e;
        for (size_t r = first; r < s->ranges.n; r++) absorb(s, before, e, &s->ranges.items[r]);
    }
    struct task_range *kept;
    TRY(ARENA_NEW(s->d, s->g->arena, &kept, s->ranges.n));
    if (s->ranges.n > 0) memcpy(kept, s->ranges.items, s->ranges.n * sizeof *kept);
    qsort(kept, s->ranges.n, sizeof *kept, by_first);
    s->g->deps[task] = (struct task_deps){kept, (uint32_t)s->ranges.n};
    return QN_OK;
}

static void count_pairs(struct tgraph *g, int32_t task) {
    for (uint32_t r = 0; r < g->deps[task].n; r++)
        g->n_pairs += (uint64_t)(g->deps[task].ranges[r].last - g->deps[task].ranges[r].first);
}

static bool same_region(const struct region *x, const struct region *y) {
    return x->tensor == y->tensor && x->row0 == y->row0 && x->row1 == y->row1 &&
           x->col0 == y->col0 && x->col1 == y->col1 && x->slice == y->slice &&
           x->n_slices == y->n_slices && x->write == y->write;
}

/* Whether two tasks of one operator read the same regions. Outside the KV cache, writes need not be
 * compared: they overwrite bytes of other tensors, and such a conflict is with all tasks of an
 * operator. */
static bool same_reads(const struct depend *s, int32_t a, int32_t b) {
    if (s->n_access[a] != s->n_access[b]) return false;
    for (int i = 0; i < s->n_access[a]; i++) {
        const struct region *x = &s->access[a * TASK_MAX_ACCESS + i],
                            *y = &s->access[b * TASK_MAX_ACCESS + i];
        if (x->tensor != y->tensor || x->write != y->write) return false;
        if (x->write && s->g->kernel->tensors.items[x->tensor].role == TENSOR_STATE) return false;
        if (!x->write && !same_region(x, y)) return false;
    }
    return true;
}

/* Copies the dependencies of the task before to a task that reads the same regions. */
static void copy_deps(struct depend *s, int32_t task) {
    s->g->deps[task] = s->g->deps[task - 1];
    memcpy(s->before + (size_t)task * s->words, s->before + (size_t)(task - 1) * s->words,
           s->words * sizeof *s->before);
}

/* The ranges of all members of a gang as one ascending list without overlaps. */
static int unite_ranges(struct depend *s, const struct task_range *gang) {
    s->ranges.n = 0;
    for (int32_t t = gang->first; t < gang->last; t++)
        for (uint32_t r = 0; r < s->g->deps[t].n; r++)
            TRY(ARRAY_PUSH(s->d, &s->ranges, s->g->deps[t].ranges[r]));
    if (s->ranges.n == 0) return QN_OK;
    qsort(s->ranges.items, s->ranges.n, sizeof *s->ranges.items, by_first);
    size_t n = 1;
    for (size_t r = 1; r < s->ranges.n; r++) {
        struct task_range *last = &s->ranges.items[n - 1], next = s->ranges.items[r];
        if (next.first < last->last)
            last->last = MAX(last->last, next.last);
        else
            s->ranges.items[n++] = next;
    }
    s->ranges.n = n;
    return QN_OK;
}

/* A gang begins when all of its members can. */
static int unite_gang(struct depend *s, int32_t first) {
    const struct task_range gang = gang_range(s->g, first);
    struct task_range *kept;
    uint64_t *before = s->before + (size_t)first * s->words;
    TRY(unite_ranges(s, &gang));
    TRY(ARENA_NEW(s->d, s->g->arena, &kept, s->ranges.n));
    if (s->ranges.n > 0) memcpy(kept, s->ranges.items, s->ranges.n * sizeof *kept);
    for (int32_t t = first + 1; t < gang.last; t++)
        unite(before, s->before + (size_t)t * s->words, s->words);
    for (int32_t t = first; t < gang.last; t++) {
        s->g->deps[t] = (struct task_deps){kept, (uint32_t)s->ranges.n};
        if (t > first) memcpy(s->before + (size_t)t * s->words, before, s->words * sizeof *before);
    }
    return QN_OK;
}

static int run(struct depend *s) {
    struct tgraph *g = s->g;
    for (size_t i = 0; i < g->tasks.n; i++)
        s->n_access[i] =
            task_access(g->kernel, &g->tasks.items[i], &s->access[i * TASK_MAX_ACCESS]);
    for (int32_t op = 0; op < (int32_t)g->kernel->ops.n; op++) {
        forget_conflicts(s, op);
        const struct task_range all = g->op_tasks[op];
        for (int32_t t = all.first; t < all.last; t++) {
            if (t > all.first && same_reads(s, t - 1, t))
                copy_deps(s, t);
            else
                TRY(depend_task(s, op, t));
        }
        const int32_t gang = (int32_t)g->kernel->ops.items[op].gang;
        for (int32_t t = all.first; gang > 1 && t < all.last; t += gang) TRY(unite_gang(s, t));
        for (int32_t t = all.first; t < all.last; t++) {
            count_pairs(g, t);
            unite(s->before_any + (size_t)op * s->words, s->before + (size_t)t * s->words,
                  s->words);
        }
    }
    return QN_OK;
}

int depend(struct diag *d, struct tgraph *g) {
    struct arena scratch = {0};
    struct depend s = {.d = d, .g = g, .words = (uint32_t)CEIL_DIV(g->kernel->ops.n, (size_t)64)};
    int rc = ARENA_NEW(d, g->arena, &g->deps, g->tasks.n);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &s.before, g->tasks.n * s.words);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &s.before_any, g->kernel->ops.n * s.words);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &s.found, g->kernel->ops.n);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &s.open, s.words);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &s.access, g->tasks.n * TASK_MAX_ACCESS);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &s.n_access, g->tasks.n);
    if (rc == QN_OK) rc = run(&s);
    ARRAY_FINI(&s.ranges);
    arena_fini(&scratch);
    return rc;
}
