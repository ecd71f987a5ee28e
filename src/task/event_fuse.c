/* event_fuse.c - dependencies become events, as few as possible (MPK section 4.1, definitions 4.1
 * and 4.2).
 *
 * Start: one event per pair of dependent tasks. Successor-set fusion merges the events with equal
 * OutTasks: all pairs of one consumer, so one event per consumer, whose InTasks are its
 * dependencies. Predecessor-set fusion then merges the events with equal InTasks. The pairs are
 * never stored: depend.c already keeps each consumer's set as ranges, which is the state after the
 * first fusion; the second is a hash over those ranges.
 */
#include "base/map.h"
#include "task/task_graph.h"

#include <string.h>

static uint32_t count_tasks(const struct task_range *r, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (uint32_t)(r[i].last - r[i].first);
    return sum;
}

/* Finds or makes the event whose InTasks are `deps`. Without fusion every call makes one. */
static int event_for(struct diag *d, struct tgraph *g, struct map *by_in,
                     const struct task_deps *deps, int32_t *event) {
    uint64_t index = g->events.n;
    if (!g->options.no_event_fusion)
        TRY(map_put(d, by_in, deps->ranges, deps->n * sizeof *deps->ranges, index, &index));
    *event = (int32_t)index;
    if (index < g->events.n) return QN_OK;
    struct event e = {.in = (struct task_range *)deps->ranges,
                      .n_in = deps->n,
                      .n_triggers = count_tasks(deps->ranges, deps->n)};
    return ARRAY_PUSH(d, &g->events, e);
}

/* Fills OutTasks from the tasks' wait fields. */
static int fill_out_sets(struct diag *d, struct tgraph *g) {
    for (size_t i = 0; i < g->tasks.n; i++) {
        int32_t e = g->tasks.items[i].wait;
        if (e != NO_EVENT) g->events.items[e].n_dependents++;
    }
    for (size_t i = 0; i < g->events.n; i++) {
        struct event *e = &g->events.items[i];
        TRY(ARENA_NEW(d, g->arena, &e->out, e->n_dependents));
    }
    for (int32_t t = 0; t < (int32_t)g->tasks.n; t++) {
        int32_t index = g->tasks.items[t].wait;
        if (index == NO_EVENT) continue;
        struct event *e = &g->events.items[index];
        if (e->n_out > 0 && e->out[e->n_out - 1].last == t)
            e->out[e->n_out - 1].last++;
        else
            e->out[e->n_out++] = (struct task_range){t, t + 1};
    }
    return QN_OK;
}

int event_fuse(struct diag *d, struct tgraph *g) {
    struct map by_in = {0};
    int rc = QN_OK;
    for (size_t i = 0; i < g->tasks.n && rc == QN_OK; i++) {
        if (g->deps[i].n == 0) continue; /* waits for the start event, which normalize adds */
        const int32_t first = gang_first(g, (int32_t)i);
        if (first < (int32_t)i) { /* a gang waits for one event */
            g->tasks.items[i].wait = g->tasks.items[first].wait;
            continue;
        }
        g->n_after_successor++;
        rc = event_for(d, g, &by_in, &g->deps[i], &g->tasks.items[i].wait);
    }
    map_fini(&by_in);
    return rc == QN_OK ? fill_out_sets(d, g) : rc;
}
