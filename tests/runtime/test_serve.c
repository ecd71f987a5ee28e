/* The serving engine: requests come at any time from several threads, are watched, cancelled and
 * given back; no work costs no CPU time; closing in the middle of work is clean. */
#include "runtime/rt_test.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

static double clock_of(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Two variants, three workers, JIT and AOT. */
static struct prog_header *make_program(uint32_t n_slots, uint32_t max_model_len) {
    uint64_t seed = 11;
    struct gen_graph graphs[2];
    for (uint32_t v = 0; v < 2; v++) {
        graphs[v] = gen_random_graph(12, 60, &seed);
        struct gen_mix mix = {.jit = 40, .dummy = 10, .seed = 5 + v};
        gen_mix_tasks(&graphs[v], &mix, 3);
        graphs[v].tasks[0].dummy = false;
        graphs[v].n_rows = v == 0 ? 2 : 8;
        graphs[v].n_logit_rows = v == 0 ? 2 : 4;
    }
    struct gen_limits limits = {3, n_slots, max_model_len, 8};
    return gen_program(graphs, 2, &limits);
}

struct engine {
    struct prog_header *program;
    struct watch watch;
    struct cpu_backend *backend;
};

static void engine_open(struct engine *e, uint32_t n_slots, uint32_t max_model_len,
                        uint32_t n_kv_blocks) {
    struct diag d = {0};
    e->program = make_program(n_slots, max_model_len);
    watch_init(&e->watch, e->program);
    struct cpu_config config = {.program = e->program,
                                .run_task = watch_run,
                                .user = &e->watch,
                                .n_kv_blocks = n_kv_blocks,
                                .choices = {.prefix_cache = true},
                                .serve = true};
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &e->backend));
}

static void engine_close(struct engine *e) {
    cpu_backend_close(e->backend);
    assert_int_equal(e->watch.n_wrong, 0);
    watch_fini(&e->watch);
    free(e->program);
}

/* Polls until the request has finished; its tokens may only grow. Whether all went well. */
static bool follow(struct cpu_backend *b, uint32_t slot, struct mailbox_view *v) {
    struct diag d = {0};
    uint32_t seen = 0, n_out = 0;
    for (;;) {
        if (cpu_backend_wait(&d, b, &seen, 10) != QN_OK) return false;
        if (cpu_backend_poll(&d, b, slot, v) != QN_OK || v->n_out < n_out) return false;
        n_out = v->n_out;
        if (v->finish != RT_RUNNING) return true;
    }
}

enum { CLIENTS = 4, ROUNDS = 25 };

struct client {
    struct cpu_backend *backend;
    uint32_t index, n_done, n_canceled, n_wrong;
    pthread_t thread;
};

static bool one_request(struct client *c, uint32_t round) {
    struct diag d = {0};
    struct mailbox_view v;
    uint32_t request = c->index * 100 + round, slot;
    const uint32_t text = round % 5; /* so prompts begin alike */
    uint32_t n_prompt = 1 + request % 37, max_tokens = 1 + request % 19;
    int32_t prompt[64];
    fill_prompt(prompt, n_prompt, text);
    struct rt_request q = make_request(n_prompt, max_tokens);
    int rc;
    while ((rc = cpu_backend_submit(&d, c->backend, &q, prompt, &slot)) == QN_EBUSY) {
        diag_clear(&d);
        usleep(200);
    }
    if (rc != QN_OK) return false;
    bool cancel = round % 5 == 4;
    if (cancel && cpu_backend_cancel(&d, c->backend, slot) != QN_OK) return false;
    if (!follow(c->backend, slot, &v) || !tokens_follow(&v, n_prompt, text)) return false;
    if (v.finish == RT_FINISH_LENGTH ? v.n_out != max_tokens : !cancel) return false;
    c->n_canceled += v.finish == RT_FINISH_ABORT;
    return cpu_backend_release(&d, c->backend, slot) == QN_OK;
}

static void *client_main(void *arg) {
    struct client *c = arg;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (one_request(c, round))
            c->n_done++;
        else
            c->n_wrong++;
        if (round % 7 == 0) usleep(1000); /* lets the engine go idle now and then */
    }
    return NULL;
}

static void test_clients(void **state) {
    (void)state;
    struct engine e;
    engine_open(&e, 3, 64, 7); /* fewer slots than clients, few blocks */
    struct client clients[CLIENTS] = {0};
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i].backend = e.backend;
        clients[i].index = i;
        pthread_create(&clients[i].thread, NULL, client_main, &clients[i]);
    }
    for (uint32_t i = 0; i < CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_int_equal(clients[i].n_wrong, 0);
        assert_int_equal(clients[i].n_done, ROUNDS);
    }
    engine_close(&e);
}

/* A host that only polls, without waiting for progress: what it sees is complete all the same. */
static void test_poll_only(void **state) {
    (void)state;
    struct engine e;
    struct diag d = {0};
    engine_open(&e, 2, 256, 0);
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t slot, n_out = 0;
        struct mailbox_view v;
        int32_t prompt[8];
        fill_prompt(prompt, 8, round);
        struct rt_request q = make_request(8, 60);
        EXPECT_OK(&d, cpu_backend_submit(&d, e.backend, &q, prompt, &slot));
        do {
            EXPECT_OK(&d, cpu_backend_poll(&d, e.backend, slot, &v));
            if (v.n_out != n_out) assert_true(tokens_follow(&v, 8, round));
            n_out = v.n_out;
        } while (v.finish == RT_RUNNING);
        assert_int_equal(n_out, 60);
        EXPECT_OK(&d, cpu_backend_release(&d, e.backend, slot));
    }
    engine_close(&e);
}

/* Whether the process uses next to no CPU time in some stretch of 0.3 s: the threads' last spins
 * end when the machine lets them. */
static bool comes_to_rest(void) {
    for (int tries = 0; tries < 30; tries++) {
        double cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
        usleep(300000);
        if (clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu < 0.02) return true;
    }
    return false;
}

static void test_idle_costs_nothing(void **state) {
    (void)state;
    struct engine e;
    struct diag d = {0};
    engine_open(&e, 2, 64, 0);
    int32_t prompt = 3;
    uint32_t slot, beats = 0;
    struct mailbox_view v;
    for (int round = 0; round < 3; round++) {
        struct rt_request q = make_request(1, 5);
        EXPECT_OK(&d, cpu_backend_submit(&d, e.backend, &q, &prompt, &slot));
        assert_true(follow(e.backend, slot, &v));
        assert_int_equal(v.n_out, 5);
        EXPECT_OK(&d, cpu_backend_release(&d, e.backend, slot));
        assert_true(comes_to_rest());
        assert_true(cpu_backend_heartbeat(e.backend) == beats + 5);
        beats += 5;
    }
    engine_close(&e);
}

/* A host thread that waits without progress sleeps as well, and comes back in time. */
static void test_wait_times_out(void **state) {
    (void)state;
    struct engine e;
    struct diag d = {0};
    engine_open(&e, 2, 64, 0);
    uint32_t seen = 0;
    EXPECT_OK(&d, cpu_backend_wait(&d, e.backend, &seen, 0.3));
    assert_true(comes_to_rest());
    double start = clock_of(CLOCK_MONOTONIC), cpu = clock_of(CLOCK_PROCESS_CPUTIME_ID);
    EXPECT_OK(&d, cpu_backend_wait(&d, e.backend, &seen, 0.2));
    double took = clock_of(CLOCK_MONOTONIC) - start;
    assert_true(took > 0.15 && took < 60);
    assert_true(clock_of(CLOCK_PROCESS_CPUTIME_ID) - cpu < 0.05);
    engine_close(&e);
}

static void test_close_in_the_middle(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct engine e;
        struct diag d = {0};
        engine_open(&e, 2, 1024, 0);
        int32_t prompt[2] = {3, 4};
        uint32_t slot;
        struct rt_request q = make_request(2, 1000);
        EXPECT_OK(&d, cpu_backend_submit(&d, e.backend, &q, prompt, &slot));
        usleep((useconds_t)(i * 300));
        engine_close(&e);
    }
}

static void test_plan(void **state) {
    (void)state;
    struct diag d = {0};
    struct prog_header *p = make_program(4, 64);
    struct cpu_plan plan;
    struct cpu_config config = {.program = p, .run_task = watch_run, .n_kv_blocks = 9};
    EXPECT_OK(&d, cpu_backend_plan(&d, &config, &plan));
    assert_int_equal(plan.n_kv_blocks, 9);
    assert_true(plan.requests >= 4 * 64 * 8 && plan.runtime > 0);
    assert_true(plan.total >= plan.requests + plan.runtime);
    config.n_kv_blocks = 0;
    EXPECT_OK(&d, cpu_backend_plan(&d, &config, &plan));
    assert_int_equal(plan.n_kv_blocks, 4 * 8);
    config.n_kv_blocks = UINT32_MAX;
    EXPECT_FAIL(&d, QN_EINVAL, "KV cache", cpu_backend_plan(&d, &config, &plan));
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clients),
        cmocka_unit_test(test_poll_only),
        cmocka_unit_test(test_idle_costs_nothing),
        cmocka_unit_test(test_wait_times_out),
        cmocka_unit_test(test_close_in_the_middle),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
