/* rt_queue.h - a bounded queue of 32-bit numbers for many producers and many consumers.
 *
 * Carries activated events to a scheduler and JIT tasks to a worker. A full queue refuses, an empty
 * one gives nothing: nobody waits inside, nothing is ever overwritten.
 *
 *   +------------+------------+-------+-------+-----+-------+
 *   | head  (64) | tail  (64) | cell0 | cell1 | ... | cellN |     N + 1 = capacity, a power of two
 *   +------------+------------+-------+-------+-----+-------+
 *
 *   cell i: { seq, value }    seq == p          free for the push at position p (p % capacity == i)
 *                             seq == p + 1      holds the value of position p
 *                             seq == p + cap    popped: free for the push one lap later
 *
 * Positions count up for ever and wrap at 2^32; they are compared by signed difference. The
 * sequence number is the hand-over: push stores it with release after the value, pop loads it with
 * acquire before. (The method is Dmitry Vyukov's bounded MPMC queue.) Capacity is at least 2: with
 * one cell `p + 1` and `p + cap` could not be told apart.
 */
#ifndef QN_RUNTIME_RT_QUEUE_H
#define QN_RUNTIME_RT_QUEUE_H

#include "runtime/rt_sync.h"

struct rt_cell {
    uint32_t seq, value;
};

/* Header of a queue; its cells follow. */
struct rt_queue {
    uint32_t head; /* next position to pop */
    uint32_t pad0[15];
    uint32_t tail; /* next position to push */
    uint32_t pad1[15];
};
ABI_SIZE(struct rt_queue, 128);

/* Bytes of a queue with `capacity` cells, a multiple of 64. */
#define RT_QUEUE_BYTES(capacity)                                                                   \
    ((uint64_t)sizeof(struct rt_queue) + (((capacity)*8ull + 63) & ~63ull))

RT_FN struct rt_cell *rt_queue_cell(struct rt_queue *q, uint32_t mask, uint32_t position) {
    return (struct rt_cell *)(q + 1) + (position & mask);
}

/* mask = capacity - 1. Before anybody else uses the queue. */
RT_FN void rt_queue_init(struct rt_queue *q, uint32_t mask) {
    q->head = q->tail = 0;
    for (uint32_t i = 0; i <= mask; i++) rt_queue_cell(q, mask, i)->seq = i;
}

/* Whether the value was taken in; 0: full. */
RT_FN int rt_queue_push(struct rt_queue *q, uint32_t mask, uint32_t value) {
    uint32_t p = rt_load_relaxed(&q->tail);
    for (;;) {
        struct rt_cell *cell = rt_queue_cell(q, mask, p);
        int32_t ahead = (int32_t)(rt_load_acquire(&cell->seq) - p);
        if (ahead < 0) return 0;
        if (ahead == 0 && rt_cas_relaxed(&q->tail, p, p + 1)) {
            cell->value = value;
            rt_store_release(&cell->seq, p + 1);
            return 1;
        }
        p = rt_load_relaxed(&q->tail);
    }
}

/* Whether there was a value; sets *value. */
RT_FN int rt_queue_pop(struct rt_queue *q, uint32_t mask, uint32_t *value) {
    uint32_t p = rt_load_relaxed(&q->head);
    for (;;) {
        struct rt_cell *cell = rt_queue_cell(q, mask, p);
        int32_t ahead = (int32_t)(rt_load_acquire(&cell->seq) - (p + 1));
        if (ahead < 0) return 0;
        if (ahead == 0 && rt_cas_relaxed(&q->head, p, p + 1)) {
            *value = cell->value;
            rt_store_release(&cell->seq, p + mask + 1);
            return 1;
        }
        p = rt_load_relaxed(&q->head);
    }
}

/* Whether a pop would have found something a moment ago: one look, for idle pollers. */
RT_FN int rt_queue_ready(struct rt_queue *q, uint32_t mask) {
    uint32_t p = rt_load_relaxed(&q->head);
    return (int32_t)(rt_load_relaxed(&rt_queue_cell(q, mask, p)->seq) - (p + 1)) >= 0;
}

#endif
