/* Waiting at a pace: a token is seen when it is due, whether anybody wakes the reader or not; what
 * is no pace is not looked for; one thread looks at a time. Time is the machine's, which others
 * use, too: where a thread must act in time, one try of several is enough. */
#include "engine/expect.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#define MS      ((uint64_t)1000000)
#define LONG_NS (500 * MS)
enum { TRIES = 5 };

/* A mailbox of which there is nothing but its progress. */
static struct rt_mail mail;
static struct rt rt = {.mail = &mail};
static struct mailbox box = {.ranks = {&rt}, .n_ranks = 1};

static uint32_t progress(void) {
    return mailbox_progress(&box);
}

/* After a while, without a word to those who sleep. */
static void *step_quietly(void *us) {
    usleep(*(const useconds_t *)us);
    __atomic_fetch_add(&mail.progress, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Waits LONG_NS for a step that comes after `us`; for how long it did. */
static uint64_t wait_for_step(struct expect *e, useconds_t us) {
    pthread_t thread;
    const uint32_t seen = progress();
    const uint64_t start = rt_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, step_quietly, &us), 0);
    expect_wait(e, &box, seen, LONG_NS);
    const uint64_t took = rt_now_ns() - start;
    pthread_join(thread, NULL);
    return took;
}

static void test_seen_when_due(void **state) {
    (void)state;
    uint64_t took = LONG_NS;
    for (int k = 0; k < TRIES && took >= LONG_NS; k++) {
        struct expect e = {.seen = progress(), .last_ns = rt_now_ns(), .step_ns = 45 * MS};
        took = wait_for_step(&e, 5000);
        assert_int_equal(e.taken, 0);
        assert_int_equal(e.seen, progress());
    }
    assert_true(took < LONG_NS);
}

/* Nothing is known of the pace, or another looks: who waits sleeps until woken, here not at all. */
static void test_sleeps(void **state) {
    (void)state;
    for (uint32_t taken = 0; taken < 2; taken++) {
        uint64_t took = 0;
        for (int k = 0; k < TRIES && took < LONG_NS; k++) { /* the step may come before the sleep */
            struct expect e = {.taken = taken, .seen = progress(), .last_ns = rt_now_ns()};
            if (taken) e.step_ns = 45 * MS;
            took = wait_for_step(&e, 20000);
            assert_int_equal(e.taken, taken);
        }
        assert_true(took >= LONG_NS);
    }
}

/* Ends in time, having looked or not. */
static void test_timeout(void **state) {
    (void)state;
    for (uint64_t step = 0; step <= 40 * MS; step += 10 * MS) {
        struct expect e = {.seen = progress(), .last_ns = rt_now_ns(), .step_ns = step};
        const uint64_t start = rt_now_ns();
        expect_wait(&e, &box, progress(), 15 * MS);
        const uint64_t took = rt_now_ns() - start;
        assert_true(took >= 15 * MS);
        assert_int_equal(e.taken, 0);
        assert_int_equal(e.step_ns, step); /* nothing came: nothing was learned */
    }
    struct expect e = {0};
    expect_wait(&e, &box, progress(), 0);
    expect_wait(&e, &box, progress() - 1, UINT64_MAX);
}

static void test_pace(void **state) {
    (void)state;
    uint64_t step = 0;
    for (int k = 0; k < TRIES && (step < 2 * MS || step >= 4 * MS); k++) {
        struct expect e = {.seen = progress(), .last_ns = rt_now_ns()};
        usleep(8000);
        const uint32_t seen = progress();
        mail.progress += 4;
        expect_wait(&e, &box, seen, LONG_NS);
        step = e.step_ns; /* of four that came together */
    }
    assert_in_range(step, 2 * MS, 4 * MS);

    struct expect e = {.seen = progress(), .last_ns = rt_now_ns(), .step_ns = 2 * MS};
    usleep(60000);
    const uint32_t seen = progress();
    mail.progress++;
    expect_wait(&e, &box, seen, LONG_NS);
    assert_int_equal(e.step_ns, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen_when_due),
        cmocka_unit_test(test_sleeps),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
