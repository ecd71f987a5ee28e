/* fair_queue.c - see fair_queue.h. */
#include "engine/fair_queue.h"

#include "base/checked.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

/* A space that has requests in the queue, or had some of late. */
struct fair_flow {
    struct fair_flow *next;
    uint32_t space;
    uint64_t n;   /* requests in the queue */
    uint64_t end; /* where its last request ends on the line of tokens */
};

/* ---- flows ---- */

/* The link to a space's flow, or the link where it would be added. */
static struct fair_flow **flow_of(struct fair_queue *q, uint32_t space) {
    struct fair_flow **at = &q->flows[space % FAIR_BUCKETS];
    while (*at && (*at)->space != space) at = &(*at)->next;
    return at;
}

static int flow_join(struct diag *d, struct fair_queue *q, struct fair_place *p) {
    struct fair_flow **at = flow_of(q, p->space);
    if (!*at) {
        *at = calloc(1, sizeof **at);
        if (!*at) return fail_nomem(d, sizeof **at, "the queue");
        (*at)->space = p->space;
    } else if ((*at)->n == 0)
        q->n_idle--;
    p->tag = MAX(q->now, (*at)->end);
    (*at)->end = p->tag + p->n_tokens;
    (*at)->n++;
    return QN_OK;
}

static void forget_idle_flows(struct fair_queue *q) {
    for (size_t i = 0; i < FAIR_BUCKETS; i++)
        for (struct fair_flow **at = &q->flows[i]; *at;) {
            struct fair_flow *flow = *at;
            if (flow->n > 0) {
                at = &flow->next;
            } else {
                *at = flow->next;
                free(flow);
            }
        }
    q->n_idle = 0;
}

/* The flow of a place in the queue. */
static struct fair_flow *own_flow(struct fair_queue *q, const struct fair_place *p) {
    struct fair_flow *flow = *flow_of(q, p->space);
    assert(flow != NULL);
    return flow;
}

/* An idle flow is kept, or a space that has one request at a time would always be first. */
static void flow_leave(struct fair_queue *q, struct fair_flow *flow) {
    if (--flow->n == 0) q->n_idle++;
    if (q->heap.n == 0 || q->n_idle > FAIR_IDLE_MOST) forget_idle_flows(q);
}

/* ---- heap ---- */

static bool comes_before(const struct fair_place *a, const struct fair_place *b) {
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->tag != b->tag) return a->tag < b->tag;
    return a->arrival < b->arrival;
}

static void put(struct fair_queue *q, size_t at, struct fair_place *p) {
    q->heap.items[at - 1].place = p;
    p->at = at;
}

static void rise(struct fair_queue *q, struct fair_place *p, size_t at) {
    for (; at > 1 && comes_before(p, q->heap.items[at / 2 - 1].place); at /= 2)
        put(q, at, q->heap.items[at / 2 - 1].place);
    put(q, at, p);
}

static void sink(struct fair_queue *q, struct fair_place *p, size_t at) {
    for (size_t child; (child = 2 * at) <= q->heap.n; at = child) {
        if (child < q->heap.n &&
            comes_before(q->heap.items[child].place, q->heap.items[child - 1].place))
            child++;
        if (!comes_before(q->heap.items[child - 1].place, p)) break;
        put(q, at, q->heap.items[child - 1].place);
    }
    put(q, at, p);
}

/* ---- the queue ---- */

int fair_queue_add(struct diag *d, struct fair_queue *q, struct fair_place *p) {
    TRY(ARRAY_RESERVE(d, &q->heap, q->heap.n + 1));
    TRY(flow_join(d, q, p));
    p->arrival = q->n_arrived++;
    q->n_prompt += p->n_prompt;
    q->heap.n++;
    rise(q, p, q->heap.n);
    return QN_OK;
}

struct fair_place *fair_queue_first(const struct fair_queue *q) {
    return q->heap.n > 0 ? q->heap.items[0].place : NULL;
}

static void leave(struct fair_queue *q, struct fair_place *p, struct fair_flow *flow) {
    const size_t at = p->at;
    struct fair_place *last = q->heap.items[--q->heap.n].place;
    q->n_prompt -= p->n_prompt;
    p->at = 0;
    if (last != p) {
        sink(q, last, at);
        rise(q, last, last->at);
    }
    flow_leave(q, flow);
}

void fair_queue_take(struct fair_queue *q) {
    struct fair_place *p = fair_queue_first(q);
    q->now = MAX(q->now, p->tag);
    leave(q, p, own_flow(q, p));
}

void fair_queue_remove(struct fair_queue *q, struct fair_place *p) {
    if (p->at == 0) return;
    struct fair_flow *flow = own_flow(q, p);
    if (flow->end == p->tag + p->n_tokens) flow->end = p->tag; /* none behind it */
    leave(q, p, flow);
}

void fair_queue_fini(struct fair_queue *q) {
    for (size_t i = 0; i < FAIR_BUCKETS; i++)
        for (struct fair_flow *flow = q->flows[i], *next; flow; flow = next) {
            next = flow->next;
            free(flow);
        }
    ARRAY_FINI(&q->heap);
}
