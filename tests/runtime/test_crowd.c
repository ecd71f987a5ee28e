/* Threads that park and come back while others take their workers' steps: every task once per
 * iteration, after all that comes before it, whoever runs it; and when they do so.
 */
#include "runtime/rt_test.h"

#include <pthread.h>

enum { MAX_WORKERS = 8, HURRY = 200 };

/* What the threads are told of their delays, and which threads ran which workers. */
struct crowd {
    struct watch watch;
    atomic_uint crowded;                 /* 0: no delay; 1: always; else a share of 16 calls */
    _Atomic uint64_t delay[MAX_WORKERS]; /* ns so far */
    _Atomic(pthread_t) own[MAX_WORKERS]; /* the thread that asked for the worker's delay */
    atomic_uint n_moved, n_own;          /* tasks that another thread ran, that the worker's did */
};

static uint64_t delay_of(void *user, uint32_t worker) {
    struct crowd *c = user;
    static atomic_uint calls;
    const uint32_t share = atomic_load(&c->crowded);
    atomic_store(&c->own[worker], pthread_self());
    const bool delayed =
        share == 1 || (share > 1 && (atomic_fetch_add(&calls, 7) >> 3) % 16 < share);
    return atomic_fetch_add(&c->delay[worker], delayed ? 1000000000u : 0);
}

static void run_task(void *user, const struct rt_batch *batch, uint32_t worker, uint32_t task) {
    struct crowd *c = user;
    const pthread_t own = atomic_load(&c->own[worker]);
    if (own != 0) atomic_fetch_add(pthread_equal(own, pthread_self()) ? &c->n_own : &c->n_moved, 1);
    watch_run(&c->watch, batch, worker, task);
}

static struct crowd *new_crowd(const struct prog_header *p, uint32_t crowded) {
    struct crowd *c = calloc(1, sizeof *c);
    assert_non_null(c);
    watch_init(&c->watch, p);
    c->watch.spin = 20;
    atomic_store(&c->crowded, crowded);
    return c;
}

static void free_crowd(struct crowd *c) {
    assert_int_equal(c->watch.n_wrong, 0);
    watch_fini(&c->watch);
    free(c);
}

static struct prog_header *layers(uint32_t n_workers, uint32_t jit, uint64_t seed) {
    struct gen_graph g = gen_layers(20, 3 * n_workers);
    const struct gen_mix mix = {jit, 10, seed};
    gen_mix_tasks(&g, &mix, n_workers);
    g.tasks[g.n_tasks - 1].dummy = false;
    const struct gen_limits limits = {n_workers, 1, 200, 16};
    return gen_program(&g, 1, &limits);
}

/* One request of n tokens after the other, and some idle time between them. */
static void generate(struct cpu_backend *b, uint32_t n_requests, uint32_t n_out) {
    struct diag d = {0};
    struct mailbox_view view = {0};
    uint32_t slot, seen = 0;
    for (uint32_t i = 0; i < n_requests; i++) {
        EXPECT_OK(&d, submit(&d, cpu_backend_mailbox(b), i, 1, n_out, &slot));
        do {
            EXPECT_OK(&d, cpu_backend_wait(&d, b, &seen, 0.1));
            EXPECT_OK(&d, cpu_backend_poll(&d, b, slot, &view));
        } while (view.finish == RT_RUNNING);
        assert_true(view.n_out == n_out && tokens_follow(&view, 1, i));
        EXPECT_OK(&d, cpu_backend_release(&d, b, slot));
        usleep(1000 * (i % 3));
    }
}

static struct cpu_backend *open_serving(const struct prog_header *p, struct crowd *c) {
    struct diag d = {0};
    struct cpu_backend *b;
    const struct cpu_config config = {.program = p,
                                      .run_task = run_task,
                                      .user = c,
                                      .run_delay = delay_of,
                                      .crowd_hurry = HURRY,
                                      .serve = true,
                                      .deadline_s = 60};
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &b));
    return b;
}

/* Generates until the counter has grown by n. */
static void until(struct cpu_backend *b, atomic_uint *counter, uint32_t n) {
    const uint32_t goal = atomic_load(counter) + n;
    const uint64_t start = rt_now_ns();
    while ((int32_t)(atomic_load(counter) - goal) < 0) {
        generate(b, 1, 20);
        assert_true(rt_now_ns() - start < 300000000000u);
    }
}

/* Where nobody is delayed each thread runs its own worker's tasks; delayed, thread 0 runs all; and
 * each its own when they no longer are. */
static void threads_park_and_come_back(void **state) {
    (void)state;
    for (uint32_t n_workers = 2; n_workers <= 5; n_workers += 3) {
        struct prog_header *p = layers(n_workers, 0, n_workers);
        struct crowd *c = new_crowd(p, 0);
        struct cpu_backend *b = open_serving(p, c);
        until(b, &c->n_own, 500);
        assert_int_equal(atomic_load(&c->n_moved), 0);
        atomic_store(&c->crowded, 1);
        until(b, &c->n_moved, 500);
        atomic_store(&c->crowded, 0);
        for (uint32_t before = ~0u; atomic_load(&c->n_moved) != before;) { /* until all are back */
            before = atomic_load(&c->n_moved);
            until(b, &c->n_own, 1000);
        }
        cpu_backend_close(b);
        free_crowd(c);
        free(p);
    }
}

/* Threads come and go all the time, tasks are placed or handed out, requests come and go. */
static void nothing_is_lost_meanwhile(void **state) {
    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        const uint32_t n_workers = 2 + round % 4;
        struct prog_header *p = layers(n_workers, 50 * (round % 3), 100 + round);
        struct crowd *c = new_crowd(p, 2 + round % 5);
        struct cpu_backend *b = open_serving(p, c);
        until(b, &c->n_moved, 500);
        generate(b, 3, 50);
        cpu_backend_close(b);
        free_crowd(c);
        free(p);
    }
}

/* A launch ends while threads are parked, and the next one begins with all of them. */
static void launches_end(void **state) {
    (void)state;
    struct diag d = {0};
    struct prog_header *p = layers(3, 0, 5);
    struct crowd *c = new_crowd(p, 1);
    struct cpu_backend *b;
    const struct cpu_config config = {.program = p,
                                      .run_task = run_task,
                                      .user = c,
                                      .run_delay = delay_of,
                                      .crowd_hurry = HURRY,
                                      .deadline_s = 60};
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &b));
    for (uint32_t i = 0; i < 20; i++) {
        struct mailbox_view view;
        uint32_t slot;
        EXPECT_OK(&d, submit(&d, cpu_backend_mailbox(b), i, 1, 40, &slot));
        EXPECT_OK(&d, cpu_backend_run(&d, b));
        EXPECT_OK(&d, cpu_backend_check(&d, b));
        EXPECT_OK(&d, cpu_backend_poll(&d, b, slot, &view));
        assert_true(view.n_out == 40 && tokens_follow(&view, 1, i));
        EXPECT_OK(&d, cpu_backend_release(&d, b, slot));
    }
    assert_true(atomic_load(&c->n_moved) > 0);
    cpu_backend_close(b);
    free_crowd(c);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_park_and_come_back),
        cmocka_unit_test(nothing_is_lost_meanwhile),
        cmocka_unit_test(launches_end),
    };
    return cmocka_run_group_tests_name("crowd", tests, NULL, NULL);
}
