/* gang.c - tasks that run together (task_graph.h): where a gang begins, and whether it is whole. */
#include "base/checked.h"
#include "task/task_graph.h"

uint32_t gang_size(const struct tgraph *g, const struct task *t) {
    return t->op < 0 ? 1 : g->kernel->ops.items[t->op].gang;
}

int32_t gang_first(const struct tgraph *g, int32_t task) {
    const struct task *t = &g->tasks.items[task];
    if (t->op < 0) return task;
    const int32_t first = g->op_tasks[t->op].first;
    return task - (task - first) % (int32_t)gang_size(g, t);
}

struct task_range gang_range(const struct tgraph *g, int32_t task) {
    const int32_t first = gang_first(g, task);
    return (struct task_range){first, first + (int32_t)gang_size(g, &g->tasks.items[task])};
}

/* Members are consecutive tasks of one operator, with the same events, on consecutive workers from
 * a multiple of n on. */
static int verify_gang(struct diag *d, const struct tgraph *g, size_t first, uint32_t n,
                       bool placed) {
    const struct task *lead = &g->tasks.items[first];
    if (first + n > g->tasks.n)
        return fail(d, QN_EVERIFY, "task %zu (%s): the rest of its gang of %u is missing", first,
                    op_name(lead->kind), n);
    for (uint32_t m = 0; m < n; m++) {
        const struct task *t = &g->tasks.items[first + m];
        if (t->op != lead->op || t->wait != lead->wait || t->trigger != lead->trigger)
            return fail(d, QN_EVERIFY, "task %zu (%s): not with its gang of %u", first + m,
                        op_name(t->kind), n);
        if (placed && (lead->worker < 0 || lead->worker % (int32_t)n != 0 ||
                       t->worker != lead->worker + (int32_t)m))
            return fail(d, QN_EVERIFY, "task %zu (%s): worker %d is not its gang's", first + m,
                        op_name(t->kind), t->worker);
    }
    return QN_OK;
}

int gang_verify(struct diag *d, const struct tgraph *g, bool placed) {
    for (size_t i = 0; i < g->tasks.n;) {
        const uint32_t n = gang_size(g, &g->tasks.items[i]);
        if (n > 1) TRY(verify_gang(d, g, i, n, placed));
        i += n;
    }
    return QN_OK;
}
