/* normalize.c - every task waits for exactly one event and triggers exactly one (MPK section 4.1,
 * figure 6).
 *
 * A task that would trigger k > 1 events gets one new event with k empty tasks behind it, each of
 * which triggers one of the k (figure 6a). Fan-in above one (figure 6b) cannot arise here: fusion
 * by successor sets has left every task with one event. A task without a predecessor waits
 * for the start event, a task without a dependent triggers the end event: the iteration's boundary.
 * A gang triggers one event, which counts all its members.
 */
#include "task/task_graph.h"

#include <string.h>

/* For every task the events that have it in their in-set, in ascending order. */
struct triggers {
    uint32_t *first; /* [n_tasks + 1] range of `events` */
    int32_t *events;
};

static int collect_triggers(struct diag *d, const struct tgraph *g, struct arena *scratch,
                            struct triggers *t) {
    uint32_t *fill;
    TRY(ARENA_NEW(d, scratch, &t->first, g->tasks.n + 1));
    TRY(ARENA_NEW(d, scratch, &fill, g->tasks.n));
    for (size_t e = 0; e < g->events.n; e++)
        for (uint32_t r = 0; r < g->events.items[e].n_in; r++)
            for (int32_t i = g->events.items[e].in[r].first; i < g->events.items[e].in[r].last; i++)
                t->first[i + 1]++;
    for (size_t i = 0; i < g->tasks.n; i++) {
        t->first[i + 1] += t->first[i];
        fill[i] = t->first[i];
    }
    TRY(ARENA_NEW(d, scratch, &t->events, t->first[g->tasks.n]));
    for (size_t e = 0; e < g->events.n; e++)
        for (uint32_t r = 0; r < g->events.items[e].n_in; r++)
            for (int32_t i = g->events.items[e].in[r].first; i < g->events.items[e].in[r].last; i++)
                t->events[fill[i]++] = (int32_t)e;
    return QN_OK;
}

static int new_event(struct diag *d, struct tgraph *g, uint32_t n_triggers, int32_t *index) {
    struct event e = {.n_triggers = n_triggers};
    *index = (int32_t)g->events.n;
    return ARRAY_PUSH(d, &g->events, e);
}

/* Figure 6a: task -> new event -> one empty task per event. */
static int fan_out(struct diag *d, struct tgraph *g, int32_t task, const int32_t *events,
                   uint32_t n) {
    int32_t fan;
    TRY(new_event(d, g, 1, &fan));
    g->tasks.items[task].trigger = fan;
    for (uint32_t i = 0; i < n; i++) {
        struct task dummy = {
            .kind = OP_NONE, .op = -1, .wait = fan, .trigger = events[i], .worker = NO_WORKER};
        TRY(ARRAY_PUSH(d, &g->tasks, dummy));
    }
    return QN_OK;
}

static int set_triggers(struct diag *d, struct tgraph *g, const struct triggers *t) {
    const int32_t n_tasks = (int32_t)g->tasks.n;
    for (int32_t i = 0; i < n_tasks; i++) {
        const int32_t *events = t->events + t->first[i];
        const uint32_t n = t->first[i + 1] - t->first[i];
        const int32_t first = gang_first(g, i);
        if (first < i)
            g->tasks.items[i].trigger = g->tasks.items[first].trigger;
        else if (n > 1)
            TRY(fan_out(d, g, i, events, n));
        else
            g->tasks.items[i].trigger = n == 1 ? events[0] : g->end_event;
        if (g->tasks.items[i].wait == NO_EVENT) g->tasks.items[i].wait = g->start_event;
    }
    return QN_OK;
}

/* In- and out-sets give way to counts: from here on the tasks' fields are the graph. */
static void recount(struct tgraph *g) {
    for (size_t i = 0; i < g->events.n; i++)
        g->events.items[i] = (struct event){.n_triggers = (int32_t)i == g->start_event};
    for (size_t i = 0; i < g->tasks.n; i++) {
        g->events.items[g->tasks.items[i].trigger].n_triggers++;
        g->events.items[g->tasks.items[i].wait].n_dependents++;
    }
    g->deps = NULL;
}

int normalize(struct diag *d, struct tgraph *g) {
    struct arena scratch = {0};
    struct triggers t = {0};
    int rc = collect_triggers(d, g, &scratch, &t);
    if (rc == QN_OK) rc = new_event(d, g, 1, &g->start_event);
    if (rc == QN_OK) rc = new_event(d, g, 0, &g->end_event);
    if (rc == QN_OK) rc = set_triggers(d, g, &t);
    arena_fini(&scratch);
    if (rc == QN_OK) recount(g);
    return rc;
}
