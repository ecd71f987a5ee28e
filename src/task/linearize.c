/* linearize.c - tasks in an order in which every event's dependents are contiguous (MPK Algorithm
 * 1): breadth-first from the start event; an event enters the queue when the last task that
 * triggers it is in the list. Events are renumbered in the order in which they leave the queue, so
 * wait < trigger holds for every task, and the order of tasks is a topological one.
 */
#include "task/task_graph.h"

#include <string.h>

/* Dependents of each event, in ascending task order: counting sort by `wait`. */
static void sort_by_wait(const struct tgraph *g, uint32_t *first, int32_t *list) {
    for (size_t i = 0; i < g->tasks.n; i++) first[g->tasks.items[i].wait + 1]++;
    for (size_t e = 0; e < g->events.n; e++) first[e + 1] += first[e];
    for (size_t i = g->tasks.n; i-- > 0;) list[--first[g->tasks.items[i].wait + 1]] = (int32_t)i;
    /* each first[e + 1] was counted down to the start of e's range; shift back by one */
    for (size_t e = 0; e < g->events.n; e++) first[e] = first[e + 1];
    first[g->events.n] = (uint32_t)g->tasks.n;
}

int linearize(struct diag *d, struct tgraph *g) {
    const size_t n_events = g->events.n, n_tasks = g->tasks.n;
    struct arena scratch = {0};
    uint32_t *first, *triggered;
    int32_t *list, *queue, *event_rank;
    struct task *ordered;
    struct event *events;
    int rc = ARENA_NEW(d, &scratch, &first, n_events + 1);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &triggered, n_events);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &list, n_tasks);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &queue, n_events);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &event_rank, n_events);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &ordered, n_tasks);
    if (rc == QN_OK) rc = ARENA_NEW(d, &scratch, &events, n_events);
    if (rc != QN_OK) goto done;

    sort_by_wait(g, first, list);
    size_t head = 0, tail = 0, n = 0;
    queue[tail++] = g->start_event;
    while (head < tail) {
        const int32_t e = queue[head];
        event_rank[e] = (int32_t)head;
        events[head++] = g->events.items[e];
        for (uint32_t i = first[e]; i < first[e + 1]; i++) {
            const struct task *t = &g->tasks.items[list[i]];
            ordered[n++] = *t;
            if (++triggered[t->trigger] == g->events.items[t->trigger].n_triggers)
                queue[tail++] = t->trigger;
        }
    }
    if (n != n_tasks || tail != n_events) {
        rc = fail(d, QN_EVERIFY, "the task graph has a cycle: %zu of %zu tasks can ever run", n,
                  n_tasks);
        goto done;
    }
    for (size_t i = 0; i < n_tasks; i++) {
        g->tasks.items[i] = ordered[i];
        g->tasks.items[i].wait = event_rank[ordered[i].wait];
        g->tasks.items[i].trigger = event_rank[ordered[i].trigger];
    }
    memcpy(g->events.items, events, n_events * sizeof *events);
    g->start_event = event_rank[g->start_event];
    g->end_event = event_rank[g->end_event];
    g->op_tasks = NULL; /* an operator's tasks need not be contiguous any more */
done:
    arena_fini(&scratch);
    return rc;
}
