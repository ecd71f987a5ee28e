/* memory_plan.c - every activation gets its place in the workspace; dead ones give up theirs.
 *
 * A tensor lives from the operator that writes it to the last one that reads it, in the order of
 * the kernel graph. Its life begins earlier if operators before its writer may run beside it:
 * otherwise the writer would have to wait for them. Two tensors may share bytes only when their
 * lives do not touch. Tasks run out of that order, so sharing creates WAR and WAW dependencies:
 * depend.c adds them, task_verify proves them. Placement: largest first, each at the lowest offset
 * that is free over its life.
 *
 * Where events may ride on data (options.transport_bytes; few rows), bytes must not be used again
 * behind an event that orders nothing but its own data (transport.c). So a tensor that is written
 * right behind such an event has bytes of its own. The other tensors share bytes only with what the
 * same operator writes in other layers, which waits for the same kinds of counters. Tensors with
 * bytes of their own come last: transport.c moves most of them away, and the workspace then ends
 * before them.
 */
#include "base/checked.h"
#include "task/task_graph.h"

#include <stdlib.h>

enum { ALIGN_BYTES = 256 }; /* a cache line on the CPU, two sectors' lines on a GPU */

struct life {
    int32_t tensor, first, last; /* operators */
    int32_t company;             /* only tensors of the same company may share its bytes */
    bool unshared;               /* no tensor may share its bytes */
    uint64_t bytes, offset;
};

static int larger_first(const void *a, const void *b) {
    const struct life *x = a, *y = b;
    if (x->unshared != y->unshared) return x->unshared ? 1 : -1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return x->tensor < y->tensor ? -1 : 1;
}

/* Bytes that are not free while a tensor lives. */
struct taken {
    uint64_t begin, end;
};

static int by_begin(const void *a, const void *b) {
    const struct taken *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static bool alive_together(const struct life *a, const struct life *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest gap among the placed tensors that are alive at the same time. */
static uint64_t lowest_gap(const struct life *l, const struct life *placed, size_t n_placed,
                           struct taken *near) {
    size_t n = 0;
    for (size_t i = 0; i < n_placed; i++) {
        const struct life *p = &placed[i];
        if (l->company != p->company || alive_together(l, p))
            near[n++] = (struct taken){p->offset, p->offset + p->bytes};
    }
    qsort(near, n, sizeof *near, by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (near[i].begin >= at + l->bytes) break;
        at = MAX(at, near[i].end);
    }
    return at;
}

/* Whether the operator that writes a tensor may wait for data. What may travel as pairs, but not as
 * sentinels, is packed in CUDA's graphs of several rows: EXPERT_DOWN's h. */
static bool is_unshared(const struct kgraph *k, int32_t tensor) {
    const struct kop *op = &k->ops.items[k->tensors.items[tensor].producer];
    const struct op_slot *in = &op_info_of(op->kind)->in[0];
    const bool packed = k->tensors.items[op->in[0]].layout == LAYOUT_PACKED;
    return in->flagged && !(packed && in->paired && !in->sentinel);
}

/* A tensor's company: the kind of the operator that writes it, and the slot; if it is unshared, a
 * number of its own. */
static int32_t company_of(const struct kgraph *k, int32_t tensor) {
    const struct kop *op = &k->ops.items[k->tensors.items[tensor].producer];
    if (is_unshared(k, tensor)) return N_OP_KINDS * OP_MAX_OUT + tensor;
    int32_t slot = 0;
    while (op->out[slot] != tensor) slot++;
    return (int32_t)op->kind * OP_MAX_OUT + slot;
}

/* Whether an event of this variant may ride on data: with RESET_SENTINELS always, else if the rows
 * of the residual stream or of attention's output are small enough, at 8 bytes an element. */
static bool may_ride(const struct tgraph *g) {
    const struct model_spec *spec = &g->kernel->spec;
    for (size_t i = 0; i < g->kernel->ops.n; i++)
        if (g->kernel->ops.items[i].kind == OP_RESET_SENTINELS)
            return g->options.transport_bytes > 0;
    const uint64_t row = MIN((uint64_t)spec->hidden, (uint64_t)spec->n_heads * spec->head_dim);
    return g->options.transport_bytes > 0 &&
           g->kernel->n_rows * row * 8 <= g->options.transport_bytes;
}

/* The first operator that may run at the same time as the writer of a tensor, or the writer itself;
 * -1: no operator writes the tensor. */
static int32_t life_begins(const struct kgraph *k, const struct tensor *t) {
    const uint64_t beside = t->producer < 0 ? 0 : kgraph_beside(k, t->producer);
    return beside == 0 ? t->producer : t->producer - 64 + __builtin_clzll(beside);
}

static size_t collect_lives(const struct kgraph *k, bool rides, struct life *lives) {
    size_t n = 0;
    for (size_t i = 0; i < k->tensors.n; i++) {
        const struct tensor *t = &k->tensors.items[i];
        if (t->role != TENSOR_ACTIVATION) continue;
        lives[n++] = (struct life){.tensor = (int32_t)i,
                                   .first = life_begins(k, t),
                                   .last = t->producer,
                                   .company = rides ? company_of(k, (int32_t)i) : 0,
                                   .unshared = rides && is_unshared(k, (int32_t)i),
                                   .bytes = align_up(MAX(tensor_bytes(t), 1u), ALIGN_BYTES)};
        for (size_t o = 0; o < k->ops.n; o++)
            for (int s = 0; s < OP_MAX_IN; s++)
                if (k->ops.items[o].in[s] == (int32_t)i) lives[n - 1].last = (int32_t)o;
    }
    return n;
}

int memory_plan(struct diag *d, struct tgraph *g) {
    const struct kgraph *k = g->kernel;
    struct life *lives;
    struct taken *near;
    TRY(ARENA_NEW(d, g->arena, &g->tensor_offset, k->tensors.n));
    TRY(ARENA_NEW(d, g->arena, &lives, k->tensors.n));
    TRY(ARENA_NEW(d, g->arena, &near, k->tensors.n));
    const size_t n = collect_lives(k, may_ride(g), lives);
    qsort(lives, n, sizeof *lives, larger_first);
    for (size_t i = 0; i < n; i++) {
        lives[i].offset = lowest_gap(&lives[i], lives, i, near);
        g->tensor_offset[lives[i].tensor] = lives[i].offset;
        g->workspace_bytes = MAX(g->workspace_bytes, lives[i].offset + lives[i].bytes);
    }
    return QN_OK;
}
