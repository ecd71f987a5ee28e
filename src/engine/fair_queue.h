/* fair_queue.h - requests that wait for a place, in the order in which they will get one: by
 * priority, then by a fair share of tokens for each cache space, then by arrival.
 *
 * Fair share is start-time fair queueing (Goyal, Vin and Cheng 1996): a request's tag is where its
 * space's previous request ends on a line of tokens, or where the queue is, whichever comes later.
 * The lowest tag goes first. So a space with one request passes one with a thousand, whether these
 * wait together or come one after the other, and one space alone is served in order of arrival.
 *
 * A binary heap: adding, taking and removing cost the logarithm of the length. The caller holds the
 * engine's mutex.
 */
#ifndef QN_ENGINE_FAIR_QUEUE_H
#define QN_ENGINE_FAIR_QUEUE_H

#include "base/array.h"
#include "base/status.h"

#include <stdint.h>

enum {
    FAIR_BUCKETS = 256,
    FAIR_IDLE_MOST = 1024, /* spaces that are remembered without a request in the queue */
};

/* The part of a request that the queue keeps; zeroed before the first use. */
struct fair_place {
    int32_t priority;
    uint32_t space;
    uint64_t n_tokens; /* prompt and output, at most */
    uint64_t n_prompt;
    uint64_t tag, arrival;
    size_t at; /* in the heap, from 1; 0: not in the queue */
};

struct fair_flow;

struct fair_item {
    struct fair_place *place;
};

struct fair_queue {
    ARRAY(struct fair_item) heap;
    struct fair_flow *flows[FAIR_BUCKETS]; /* spaces, by their number */
    uint64_t n_idle;                       /* ... without a request in the queue */
    uint64_t now;                          /* tag of the request that was taken last */
    uint64_t n_arrived;
    uint64_t n_prompt; /* tokens of all prompts in the queue */
};

/* Errors: QN_ENOMEM. */
int fair_queue_add(struct diag *d, struct fair_queue *q, struct fair_place *p);
/* The place that goes next; NULL: the queue is empty. */
struct fair_place *fair_queue_first(const struct fair_queue *q);
/* Takes out the first place, of a queue that is not empty: it has had its turn. */
void fair_queue_take(struct fair_queue *q);
/* Takes out a place that gives up its turn; one that is not in the queue stays as it is. */
void fair_queue_remove(struct fair_queue *q, struct fair_place *p);
void fair_queue_fini(struct fair_queue *q);

#endif
