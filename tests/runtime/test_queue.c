/* The bounded queue: order, refusal when full, nothing lost or doubled between many threads. */
#include "runtime/rt_queue.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

static struct rt_queue *make(uint32_t capacity, uint32_t at) {
    struct rt_queue *q = aligned_alloc(64, RT_QUEUE_BYTES(capacity));
    assert_non_null(q);
    rt_queue_init(q, capacity - 1);
    /* Begin at position `at`, so that tests can cross 2^32: cells as after `at` pushes and pops. */
    q->head = q->tail = at;
    for (uint32_t i = 0; i < capacity; i++) rt_queue_cell(q, capacity - 1, at + i)->seq = at + i;
    return q;
}

static void test_order(void **state) {
    (void)state;
    for (uint32_t capacity = 2; capacity <= 16; capacity *= 2) {
        struct rt_queue *q = make(capacity, UINT32_MAX - 20); /* wraps on the way */
        uint32_t next = 0, expect = 0, value = 0;
        for (int round = 0; round < 50; round++) {
            assert_false(rt_queue_pop(q, capacity - 1, &value));
            assert_false(rt_queue_ready(q, capacity - 1));
            for (uint32_t i = 0; i < capacity; i++)
                assert_true(rt_queue_push(q, capacity - 1, next++));
            assert_false(rt_queue_push(q, capacity - 1, 999999)); /* full: refused */
            assert_true(rt_queue_ready(q, capacity - 1));
            for (uint32_t i = 0; i < capacity; i++) {
                assert_true(rt_queue_pop(q, capacity - 1, &value));
                assert_int_equal(value, expect++);
            }
        }
        free(q);
    }
}

enum { PRODUCERS = 3, CONSUMERS = 3, PER_PRODUCER = 20000 };

struct shared {
    struct rt_queue *q;
    uint32_t mask;
    uint32_t *payload; /* [PRODUCERS * PER_PRODUCER] plain: its hand-over is the queue's */
    uint32_t popped;
};

struct side {
    struct shared *shared;
    uint32_t index, n, wrong;
    uint64_t sum;
    pthread_t thread;
};

static void *produce(void *arg) {
    struct side *s = arg;
    for (uint32_t i = 0; i < PER_PRODUCER; i++) {
        uint32_t value = s->index * PER_PRODUCER + i;
        s->shared->payload[value] = ~value;
        while (!rt_queue_push(s->shared->q, s->shared->mask, value)) sched_yield();
    }
    return NULL;
}

static void *consume(void *arg) {
    struct side *s = arg;
    uint32_t last[PRODUCERS] = {0}, value;
    while (rt_load_relaxed(&s->shared->popped) < PRODUCERS * PER_PRODUCER) {
        if (!rt_queue_pop(s->shared->q, s->shared->mask, &value)) {
            sched_yield();
            continue;
        }
        rt_add_acq_rel(&s->shared->popped, 1);
        uint32_t from = value / PER_PRODUCER;
        /* One producer's values come in its order; its store before the push is visible. */
        if (s->shared->payload[value] != ~value || last[from] > value) s->wrong++;
        s->shared->payload[value] = 0; /* a second pop of it would find no ~value */
        last[from] = value;
        s->sum += value;
        s->n++;
    }
    return NULL;
}

static void run_threads(uint32_t capacity) {
    struct shared shared = {.q = make(capacity, UINT32_MAX - 1000), .mask = capacity - 1};
    shared.payload = calloc(PRODUCERS * PER_PRODUCER, 4);
    struct side sides[PRODUCERS + CONSUMERS] = {0};
    for (uint32_t i = 0; i < PRODUCERS + CONSUMERS; i++) {
        sides[i].shared = &shared;
        sides[i].index = i;
        pthread_create(&sides[i].thread, NULL, i < PRODUCERS ? produce : consume, &sides[i]);
    }
    uint64_t n = 0, sum = 0, total = (uint64_t)PRODUCERS * PER_PRODUCER;
    for (uint32_t i = 0; i < PRODUCERS + CONSUMERS; i++) {
        pthread_join(sides[i].thread, NULL);
        n += sides[i].n;
        sum += sides[i].sum;
        assert_int_equal(sides[i].wrong, 0);
    }
    assert_int_equal(n, total);
    assert_int_equal(sum, total * (total - 1) / 2);
    free(shared.payload);
    free(shared.q);
}

static void test_threads(void **state) {
    (void)state;
    run_threads(2);
    run_threads(8);
    run_threads(1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
