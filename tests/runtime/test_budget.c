/* The bound on an iteration's duration (rt_budget.h): which variants run beside decoding requests,
 * over many boundaries whose iterations take what the test says. */
#include "runtime/rt_sync.h"

static uint64_t clock_ns = 1;

static uint64_t simulated_ns(void) {
    return clock_ns;
}

#define rt_now_ns simulated_ns
#include "runtime/rt_boundary.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { MAX_VARIANTS = 8, DECODERS = 16, MAX_LEN = 4096, US = 1000, BOUND_US = 25000 };

/* What the boundary's budget needs of a runtime. */
struct trial {
    struct rt rt;
    struct rt_batch batch;
    struct rt_control control;
    struct {
        struct rt_pool pool;
        uint32_t durations[MAX_VARIANTS][RT_QUARTERS];
    } memory;
    uint32_t took_us[MAX_VARIANTS], n_runs[MAX_VARIANTS];
    uint32_t n_slow; /* iterations beyond the bound */
};

static void begin(struct trial *t, const uint32_t *rows, const uint32_t *took_us, uint32_t n) {
    *t = (struct trial){.rt = {.n_variants = n, .largest = n - 1, .max_batched = rows[n - 1]},
                        .batch = {.max_model_len = MAX_LEN}};
    t->memory.pool = (struct rt_pool){.max_step_ns = (uint64_t)BOUND_US * US,
                                      .durations_at = sizeof t->memory.pool};
    t->rt.batch = &t->batch;
    t->rt.control = &t->control;
    t->rt.pool = &t->memory.pool;
    for (uint32_t i = 0; i < n; i++) {
        t->rt.shapes[i] = rows[i] | DECODERS << 16;
        t->rt.contexts[i] = MAX_LEN;
        t->took_us[i] = took_us[i];
    }
}

static void run_variant(struct trial *t, uint32_t variant, uint32_t context, uint32_t took_us) {
    t->control.variant = variant;
    t->control.context = context;
    rt_budget_begin(&t->rt);
    clock_ns += (uint64_t)took_us * US;
    rt_budget_measure(&t->rt);
    t->n_runs[variant]++;
    t->n_slow += took_us > BOUND_US;
}

static uint32_t variant_of(const struct trial *t, uint32_t rows, uint32_t context) {
    return rt_boundary_variant(&t->rt, rows | DECODERS << 16, context);
}

/* The next iteration of 16 decoding requests and endless prompts; returns its variant. */
static uint32_t step(struct trial *t) {
    const uint32_t variant = variant_of(t, rt_budget(&t->rt, DECODERS, 10), 10);
    run_variant(t, variant, 10, t->took_us[variant]);
    return variant;
}

/* Iterations until that variant runs `times` slower than always, and that iteration. */
static void outlier(struct trial *t, uint32_t variant, uint32_t times) {
    for (int i = 0; i < 20000; i++) {
        const uint32_t v = variant_of(t, rt_budget(&t->rt, DECODERS, 10), 10);
        run_variant(t, v, 10, t->took_us[v] * (v == variant ? times : 1));
        if (v == variant) return;
    }
    assert_true(0);
}

/* Iterations until that variant runs. */
static uint32_t steps_until(struct trial *t, uint32_t variant) {
    uint32_t n = 1;
    while (step(t) != variant && n < 100000) n++;
    return n;
}

static const uint32_t rows[] = {16, 128, 256, 512, 1024, 2048};
static const uint32_t took_us[] = {6000, 8000, 13000, 23000, 44000, 87000};

/* Variants that are too slow: 16 decoding requests wait for few of their trials, and ever fewer. */
static void test_too_slow(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    for (uint32_t v = 0; v < 6; v++) run_variant(&t, v, 10, took_us[v]);
    uint32_t n[5] = {t.n_slow};
    for (int part = 0; part < 4; part++) {
        for (int i = 0; i < 20000; i++) (void)step(&t);
        n[part + 1] = t.n_slow;
    }
    assert_in_range(n[1] - n[0], 1, 10);
    for (int part = 1; part < 4; part++) assert_in_range(n[part + 1] - n[part], 1, 2);
    assert_true(t.n_runs[5] == 1); /* nothing larger than the next one is tried */
    assert_true(t.n_runs[3] > 79900);
}

/* The same where the next one is hardly too slow, and where all durations differ by a tenth. */
static void test_hardly_too_slow(void **state) {
    (void)state;
    struct trial t;
    uint64_t seed = 1;
    begin(&t, rows, took_us, 6);
    t.took_us[4] = BOUND_US + 100;
    for (uint32_t v = 0; v < 5; v++) run_variant(&t, v, 10, t.took_us[v]);
    for (int i = 0; i < 20000; i++) (void)step(&t);
    assert_in_range(t.n_slow, 2, 20);
    begin(&t, rows, took_us, 6);
    t.took_us[3] = 20000;
    t.took_us[4] = 27000;
    for (uint32_t v = 0; v < 5; v++) run_variant(&t, v, 10, t.took_us[v]);
    for (int i = 0; i < 20000; i++) {
        const uint32_t v = variant_of(&t, rt_budget(&t.rt, DECODERS, 10), 10);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        run_variant(&t, v, 10, t.took_us[v] / 100 * (90 + (uint32_t)((seed >> 33) % 21)));
    }
    assert_in_range(t.n_runs[4], 2, 100);
}

/* A variant that is fast enough, but is not expected to be in proportion to its rows, is found. */
static void test_found(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    for (uint32_t v = 0; v < 3; v++) run_variant(&t, v, 10, took_us[v]);
    const uint32_t n = steps_until(&t, 3);
    assert_in_range(n, 1, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(step(&t), 3);
    assert_int_equal(t.n_runs[4] + t.n_runs[5], 0); /* 1024 rows: 46 ms in proportion */
}

/* From the start the largest variant that is fast enough is found without a slow iteration, and no
 * variant is tried that is expected to be far too slow. */
static void test_from_start(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    for (int i = 0; i < 20000; i++) (void)step(&t);
    assert_true(t.n_runs[3] > 19800);
    assert_int_equal(t.n_slow, 0);
}

/* An iteration that took a hundred times longer, at a variant's first run, later, and at its
 * trial. */
static void test_outlier(void **state) {
    (void)state;
    for (int when = 0; when < 3; when++) {
        struct trial t;
        begin(&t, rows, took_us, 6);
        for (uint32_t v = 0; v < 3; v++) run_variant(&t, v, 10, took_us[v]);
        if (when == 0) run_variant(&t, 3, 10, 100 * took_us[3]);
        for (int i = 0; i < 200 && when == 1; i++) (void)step(&t);
        if (when > 0) outlier(&t, 3, 100);
        const uint32_t n = steps_until(&t, 3);
        assert_in_range(n, 1, 2000);
        for (int i = 0; i < 1000; i++) assert_int_equal(step(&t), 3);
    }
}

/* An outlier at the first run of every variant, and of the largest one only. */
static void test_outlier_at_start(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    for (uint32_t v = 0; v < 6; v++) run_variant(&t, v, 10, 100 * took_us[v]);
    run_variant(&t, 0, 10, took_us[0]);
    const uint32_t n = steps_until(&t, 3);
    assert_in_range(n, 1, 5000);
    begin(&t, rows, took_us, 6);
    run_variant(&t, 0, 10, took_us[0]);
    run_variant(&t, 5, 10, 100 * took_us[5]);
    assert_in_range(steps_until(&t, 3), 1, 1000);
}

/* A variant that was too slow for long, and no longer is. */
static void test_gets_faster(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    t.took_us[3] = 40000;
    for (int i = 0; i < 50000; i++) (void)step(&t);
    t.took_us[3] = took_us[3];
    const uint32_t n = steps_until(&t, 3);
    assert_in_range(n, 1, 12000);
    for (int i = 0; i < 1000; i++) assert_int_equal(step(&t), 3);
}

/* Rows that begin in one quarter of the context and end in the next one count for both. */
static void test_two_quarters(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    for (uint32_t v = 0; v < 4; v++) run_variant(&t, v, 10, took_us[v]);
    t.took_us[3] = 30000;
    for (int i = 0; i < 20000; i++) {
        const uint32_t n = rt_budget(&t.rt, DECODERS, 1000), v = variant_of(&t, n, 1000);
        run_variant(&t, v, 1000 + n - DECODERS, t.took_us[v]);
    }
    assert_in_range(t.n_slow, 1, 10);
}

/* Variants of as many rows, for shorter contexts: a trial ends whichever of them runs. */
static void test_equal_rows(void **state) {
    (void)state;
    const uint32_t equal[] = {16, 128, 256, 256, 256}, took[] = {6000, 8000, 28000, 28000, 28000};
    struct trial t;
    begin(&t, equal, took, 5);
    t.rt.contexts[2] = 2000;
    for (int i = 0; i < 20000; i++) (void)step(&t);
    assert_in_range(t.n_slow, 0, 10);
    begin(&t, equal, took, 5);
    t.rt.contexts[4] = 2000;
    t.rt.largest = 3;
    run_variant(&t, 3, 10, 26000);
    for (int i = 0; i < 20000; i++) (void)step(&t);
    assert_in_range(t.n_slow, 1, 10);
}

/* No bound, or nobody waits: all rows. All are too slow: the least chunk. */
static void test_least_and_most(void **state) {
    (void)state;
    struct trial t;
    begin(&t, rows, took_us, 6);
    for (uint32_t v = 0; v < 6; v++) run_variant(&t, v, 10, 90000);
    for (int i = 0; i < 20000; i++) {
        assert_int_equal(rt_budget(&t.rt, DECODERS, 10), DECODERS + RT_LEAST_CHUNK);
        assert_int_equal(rt_budget(&t.rt, 0, 10), 2048);
    }
    t.memory.pool.max_step_ns = 0;
    assert_int_equal(rt_budget(&t.rt, DECODERS, 10), 2048);
    const uint64_t bounds[] = {1, 3, 0x7fffffff, 0xfffffffe, 0xffffffff, (uint64_t)1 << 40};
    for (size_t k = 0; k < sizeof bounds / sizeof bounds[0]; k++) {
        begin(&t, rows, took_us, 6);
        t.memory.pool.max_step_ns = bounds[k];
        for (int i = 0; i < 20000; i++) (void)step(&t);
        assert_int_equal(t.n_runs[bounds[k] < 4 ? 1 : 5] > 19000, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_slow),    cmocka_unit_test(test_hardly_too_slow),
        cmocka_unit_test(test_found),       cmocka_unit_test(test_from_start),
        cmocka_unit_test(test_outlier),     cmocka_unit_test(test_outlier_at_start),
        cmocka_unit_test(test_gets_faster), cmocka_unit_test(test_two_quarters),
        cmocka_unit_test(test_equal_rows),  cmocka_unit_test(test_least_and_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
