/* Programs that cannot end: the engine must come back within its deadline and say why. */
#include "runtime/rt_test.h"

#include <time.h>
#include <unistd.h>

/* Long enough that a thread which a busy machine keeps waiting is not taken for one that hangs. */
#define DEADLINE_S 0.75
/* ... and that an engine which comes back at all does so. */
#define RETURN_S 60

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct prog_task *task_at(struct prog_header *p, uint32_t i) {
    return (struct prog_task *)gen_at(p, SECTION_TASK) + i;
}

static struct prog_event *event_at(struct prog_header *p, uint32_t i) {
    return (struct prog_event *)gen_at(p, SECTION_EVENT) + i;
}

/* Runs one request of the program; the stall's report must contain both texts. */
static void expect_stall(struct prog_header *p, const char *text, const char *cause) {
    struct diag d = {0};
    struct watch w;
    watch_init(&w, p);
    struct cpu_config config = {
        .program = p, .run_task = watch_run, .user = &w, .deadline_s = DEADLINE_S};
    struct cpu_backend *b;
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &b));
    uint32_t slot;
    int32_t prompt = 5;
    struct rt_request q = make_request(1, 4);
    EXPECT_OK(&d, cpu_backend_submit(&d, b, &q, &prompt, &slot));
    double start = now();
    EXPECT_FAIL(&d, QN_ESTALL, text, cpu_backend_run(&d, b));
    assert_true(now() - start < RETURN_S);
    EXPECT_FAIL(&d, QN_ESTALL, cause, cpu_backend_run(&d, b)); /* and stays so */
    EXPECT_FAIL(&d, QN_ESTALL, text, cpu_backend_submit(&d, b, &q, &prompt, &slot));
    uint32_t seen = 0;
    EXPECT_FAIL(&d, QN_ESTALL, text, cpu_backend_wait(&d, b, &seen, 1));
    cpu_backend_close(b);
    watch_fini(&w);
    free(p);
}

/* Tasks 0..7 trigger event 1, task 8 waits for it; one of the eight triggers nothing. */
static void test_missing_trigger(void **state) {
    (void)state;
    for (uint32_t n_workers = 1; n_workers <= 3; n_workers++) {
        struct gen_graph g = gen_fan_in(8);
        struct gen_limits limits = {n_workers, 1, 8, 8};
        struct prog_header *p = gen_program(&g, 1, &limits);
        task_at(p, 3)->trigger = PROG_NONE;
        expect_stall(p, "for event 1 (have 7 of 8) before task 8",
                     "the first event that lacks triggers is 1 (have 7 of 8), which only 7 tasks "
                     "trigger");
    }
}

/* Triggers of an event that rides on data are counted, too. */
static void test_missing_hint(void **state) {
    (void)state;
    struct gen_graph g = gen_fan_in(8);
    struct gen_limits limits = {2, 1, 8, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    event_at(p, 1)->transport = TRANSPORT_FLAG;
    task_at(p, 3)->trigger = PROG_NONE;
    expect_stall(p, "for event 1 (have 7 of 8) before task 8", "is 1 (have 7 of 8)");
}

/* The same with JIT dependents: whoever claimed the task waits. */
static void test_missing_trigger_jit(void **state) {
    (void)state;
    struct gen_graph g = gen_fan_in(8);
    struct gen_mix mix = {.jit = 100};
    gen_mix_tasks(&g, &mix, 2);
    struct gen_limits limits = {2, 1, 8, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    task_at(p, 3)->trigger = PROG_NONE;
    expect_stall(p, "for event 1 (have 7 of 8) before task 8",
                 "event that lacks triggers is 1 (have 7");
}

/* An event that wants one trigger more than it can get, deep in a chain. */
static void test_too_many_wanted(void **state) {
    (void)state;
    struct gen_graph g = gen_chain(6);
    struct gen_limits limits = {2, 1, 8, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    event_at(p, 4)->n_triggers = 2;
    expect_stall(p, "for event 4 (have 1 of 2) before task 4", "is 4 (have 1 of 2)");
}

/* A task in nobody's list: the event before it is activated, the one after it is not. */
static void test_unplaced_task(void **state) {
    (void)state;
    struct gen_graph g = gen_chain(4);
    struct gen_limits limits = {1, 1, 8, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    struct prog_list *list = gen_at(p, SECTION_LIST);
    list->n = 3;
    expect_stall(p, "for event 4 (have 0 of 1) at the end", "triggered by task 3");
}

/* A host thread that waits for tokens of a serving engine hears of the stall. */
static void test_while_serving(void **state) {
    (void)state;
    struct diag d = {0};
    struct gen_graph g = gen_fan_in(4);
    struct gen_limits limits = {2, 1, 8, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    task_at(p, 0)->trigger = PROG_NONE;
    struct watch w;
    watch_init(&w, p);
    struct cpu_config config = {
        .program = p, .run_task = watch_run, .user = &w, .deadline_s = DEADLINE_S, .serve = true};
    struct cpu_backend *b;
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &b));
    usleep(1000000); /* no work is no stall, however long */
    uint32_t slot, seen = 0;
    EXPECT_OK(&d, submit(&d, cpu_backend_mailbox(b), 1, 1, 1, &slot));
    double start = now();
    int rc = QN_OK;
    while (rc == QN_OK && now() - start < RETURN_S) rc = cpu_backend_wait(&d, b, &seen, 10);
    assert_int_equal(rc, QN_ESTALL);
    assert_true(now() - start < RETURN_S);
    assert_non_null(strstr(d.message, "for event 1 (have 3 of 4) before task 4"));
    cpu_backend_close(b);
    watch_fini(&w);
    free(p);
}

/* ---- a task that does not come back ---- */

struct sleeper {
    struct watch watch;
    double seconds;
};

static void sleep_in_task(void *user, const struct rt_batch *batch, uint32_t worker,
                          uint32_t task) {
    struct sleeper *s = user;
    if (task == 1) usleep((useconds_t)(s->seconds * 1e6));
    watch_run(&s->watch, batch, worker, task);
}

static int run_sleeper(struct diag *d, double seconds, double deadline) {
    struct gen_graph g = gen_chain(3);
    for (uint32_t i = 0; i < 3; i++) g.tasks[i].worker = i % 2;
    struct gen_limits limits = {2, 1, 8, 8};
    struct prog_header *p = gen_program(&g, 1, &limits);
    struct sleeper s = {.seconds = seconds};
    watch_init(&s.watch, p);
    struct cpu_config config = {
        .program = p, .run_task = sleep_in_task, .user = &s, .deadline_s = deadline};
    struct cpu_backend *b;
    EXPECT_OK(d, cpu_backend_open(d, &config, &b));
    uint32_t slot;
    int32_t prompt = 5;
    struct rt_request q = make_request(1, 1);
    EXPECT_OK(d, cpu_backend_submit(d, b, &q, &prompt, &slot));
    int rc = cpu_backend_run(d, b);
    cpu_backend_close(b);
    watch_fini(&s.watch);
    free(p);
    return rc;
}

/* Two deadlines inside a task are no stall, ten are. */
static void test_long_task(void **state) {
    (void)state;
    struct diag d = {0};
    EXPECT_OK(&d, run_sleeper(&d, 1.2, 0.6)); /* a busy machine is late by tenths of a second */
    EXPECT_FAIL(&d, QN_ESTALL, "did not come back", run_sleeper(&d, 2.0, 0.05));
    EXPECT_OK(&d, run_sleeper(&d, 0.3, -1)); /* no deadline */
}

/* The interpreter names the task that runs too early, and the event that ends short. */
static void test_oracle(void **state) {
    (void)state;
    struct diag d = {0};
    for (int broken = 0; broken < 2; broken++) {
        struct gen_graph g = gen_fan_in(3);
        struct gen_limits limits = {1, 1, 8, 8};
        struct prog_header *p = gen_program(&g, 1, &limits);
        if (broken == 0) task_at(p, 1)->trigger = PROG_NONE;
        if (broken == 1) task_at(p, 3)->trigger = PROG_NONE;
        struct watch w;
        watch_init(&w, p);
        struct cpu_config config = {.program = p, .run_task = watch_run, .user = &w};
        struct task_sim sim;
        EXPECT_OK(&d, task_sim_open(&d, &config, &sim));
        uint32_t slot;
        EXPECT_OK(&d, submit(&d, &sim.core.mailbox, 1, 1, 1, &slot));
        if (broken == 0)
            EXPECT_FAIL(&d, QN_EVERIFY, "before event 1 is activated (have 2 of 3)",
                        task_sim_run(&d, &sim));
        else
            EXPECT_FAIL(&d, QN_EVERIFY, "event 2 ends the iteration with 0 of 1",
                        task_sim_run(&d, &sim));
        task_sim_close(&sim);
        watch_fini(&w);
        free(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_trigger),     cmocka_unit_test(test_missing_hint),
        cmocka_unit_test(test_missing_trigger_jit), cmocka_unit_test(test_too_many_wanted),
        cmocka_unit_test(test_unplaced_task),       cmocka_unit_test(test_while_serving),
        cmocka_unit_test(test_long_task),           cmocka_unit_test(test_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
