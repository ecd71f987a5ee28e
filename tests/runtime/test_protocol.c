/* Graph shapes through the threaded backend and the interpreter: every task once per iteration,
 * after all that comes before it, whatever the mix of AOT and JIT and the number of workers. */
#include "runtime/rt_test.h"

struct load {
    uint32_t n_requests, n_prompt, max_tokens;
};

/* What watch_sample makes of a prompt. */
static void assert_tokens(const struct mailbox_view *v, const struct load *load, uint32_t request) {
    assert_int_equal(v->finish, RT_FINISH_LENGTH);
    assert_int_equal(v->n_out, load->max_tokens);
    assert_true(tokens_follow(v, load->n_prompt, request));
}

static void submit_all(struct mailbox *m, const struct load *load, uint32_t *slots) {
    struct diag d = {0};
    for (uint32_t i = 0; i < load->n_requests; i++)
        EXPECT_OK(&d, submit(&d, m, i, load->n_prompt, load->max_tokens, &slots[i]));
}

/* Runs the load on the interpreter and, `rounds` times, on the backend. */
static void run_program(struct prog_header *p, const struct load *load, struct cpu_config config,
                        uint32_t rounds, unsigned spin) {
    struct diag d = {0};
    struct watch w;
    uint32_t slots[64];
    struct mailbox_view view;
    config.program = p;
    config.run_task = watch_run;
    config.user = &w;

    watch_init(&w, p);
    struct task_sim sim;
    assert_int_equal(task_sim_open(&d, &config, &sim), QN_OK);
    submit_all(&sim.core.mailbox, load, slots);
    EXPECT_OK(&d, task_sim_run(&d, &sim));
    for (uint32_t i = 0; i < load->n_requests; i++) {
        assert_int_equal(mailbox_poll(&d, &sim.core.mailbox, slots[i], &view), QN_OK);
        assert_tokens(&view, load, i);
    }
    assert_int_equal(w.n_wrong, 0);
    uint32_t n_ran = w.n_total;
    task_sim_close(&sim);
    watch_fini(&w);

    watch_init(&w, p);
    w.spin = spin;
    struct cpu_backend *b;
    assert_int_equal(cpu_backend_open(&d, &config, &b), QN_OK);
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < load->n_requests; i++) {
            int32_t prompt[256];
            fill_prompt(prompt, load->n_prompt, i);
            struct rt_request q = make_request(load->n_prompt, load->max_tokens);
            assert_int_equal(cpu_backend_submit(&d, b, &q, prompt, &slots[i]), QN_OK);
        }
        EXPECT_OK(&d, cpu_backend_run(&d, b));
        EXPECT_OK(&d, cpu_backend_check(&d, b));
        for (uint32_t i = 0; i < load->n_requests; i++) {
            assert_int_equal(cpu_backend_poll(&d, b, slots[i], &view), QN_OK);
            assert_tokens(&view, load, i);
            assert_int_equal(cpu_backend_release(&d, b, slots[i]), QN_OK);
        }
    }
    assert_int_equal(w.n_wrong, 0);
    assert_int_equal(w.n_total, n_ran * rounds);
    cpu_backend_close(b);
    watch_fini(&w);
    free(p);
}

static const struct gen_mix mixes[] = {
    {.jit = 0, .dummy = 0, .seed = 1},
    {.jit = 100, .dummy = 0, .seed = 2},
    {.jit = 50, .dummy = 30, .seed = 3},
};

/* One shape, with every mix of launch classes. */
static void run_shape(struct gen_graph (*make)(void), uint32_t n_workers, uint32_t n_iterations) {
    for (size_t i = 0; i < sizeof mixes / sizeof mixes[0]; i++) {
        struct gen_graph g = make();
        gen_mix_tasks(&g, &mixes[i], n_workers);
        if (g.n_tasks > 0) g.tasks[g.n_tasks - 1].dummy = false; /* somebody must sample */
        struct gen_limits limits = {n_workers, 1, n_iterations + 1, 16};
        struct prog_header *p = gen_program(&g, 1, &limits);
        struct load load = {1, 1, n_iterations};
        run_program(p, &load, (struct cpu_config){0}, 2, 0);
    }
}

#ifdef QN_STRESS
enum { ITERATIONS = 8, BIG_ITERATIONS = 2 };
#else
enum { ITERATIONS = 40, BIG_ITERATIONS = 4 };
#endif

static struct gen_graph chain(void) {
    return gen_chain(50);
}
static struct gen_graph wide(void) {
    return gen_wide(100);
}
static struct gen_graph fan_in(void) {
    return gen_fan_in(60);
}
static struct gen_graph fan_out(void) {
    return gen_fan_out(60);
}
static struct gen_graph diamond(void) {
    return gen_diamond();
}
static struct gen_graph single(void) {
    return gen_chain(1);
}
static struct gen_graph layers(void) {
    return gen_layers(20, 5);
}

static void test_shapes(void **state) {
    (void)state;
    struct gen_graph (*const shapes[])(void) = {chain,   wide,   fan_in, fan_out,
                                                diamond, single, layers};
    for (uint32_t n_workers = 1; n_workers <= 4; n_workers += 1)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            run_shape(shapes[i], n_workers, ITERATIONS);
}

static void test_ten_thousand(void **state) {
    (void)state;
    uint64_t seed = 7;
    struct gen_graph g = gen_random_graph(700, 10000, &seed);
    struct gen_mix mix = {.jit = 30, .dummy = 5, .seed = 9};
    gen_mix_tasks(&g, &mix, 4);
    struct gen_limits limits = {4, 1, 64, 16};
    struct load load = {1, 1, BIG_ITERATIONS};
    run_program(gen_program(&g, 1, &limits), &load, (struct cpu_config){0}, 2, 0);
}

/* Random graphs, several requests at a time, several variants. */
static void test_random(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        uint64_t s = seed * 7919;
        uint32_t n_workers = 1 + gen_random(&s, 6);
        struct gen_graph graphs[3];
        for (uint32_t v = 0; v < 3; v++) {
            graphs[v] = gen_random_graph(2 + gen_random(&s, 60), 5 + gen_random(&s, 300), &s);
            struct gen_mix mix = {gen_random(&s, 101), gen_random(&s, 40), s};
            gen_mix_tasks(&graphs[v], &mix, n_workers);
            graphs[v].tasks[0].dummy = false;
            graphs[v].n_rows = v == 0 ? 1 : v == 1 ? 4 : 16;
            graphs[v].n_logit_rows = v == 0 ? 1 : 4;
        }
        struct gen_limits limits = {n_workers, 6, 64, 16};
        struct load load = {6, 1 + gen_random(&s, 20), 1 + gen_random(&s, ITERATIONS)};
        struct cpu_config config = {0};
        run_program(gen_program(graphs, 3, &limits), &load, config, 2, 20);
    }
}

/* An iteration without tasks ends at once; nobody samples, so the request is ended. */
static void test_empty(void **state) {
    (void)state;
    struct diag d = {0};
    struct gen_graph g = gen_empty();
    struct gen_limits limits = {3, 1, 8, 16};
    struct prog_header *p = gen_program(&g, 1, &limits);
    struct watch w;
    watch_init(&w, p);
    struct cpu_config config = {.program = p, .run_task = watch_run, .user = &w};
    struct cpu_backend *b;
    assert_int_equal(cpu_backend_open(&d, &config, &b), QN_OK);
    assert_int_equal(cpu_backend_run(&d, b), QN_OK); /* no request: returns at once */
    uint32_t slot;
    int32_t prompt = 1;
    struct rt_request q = make_request(1, 4);
    assert_int_equal(cpu_backend_submit(&d, b, &q, &prompt, &slot), QN_OK);
    assert_int_equal(cpu_backend_run(&d, b), QN_OK);
    struct mailbox_view view;
    assert_int_equal(cpu_backend_poll(&d, b, slot, &view), QN_OK);
    assert_int_equal(view.finish, RT_FINISH_ABORT);
    assert_int_equal(view.n_out, 0);
    struct cpu_backend_stats stats;
    cpu_backend_stats(b, &stats);
    assert_int_equal(stats.n_iterations, 1);
    assert_int_equal(cpu_backend_check(&d, b), QN_OK);
    cpu_backend_close(b);
    watch_fini(&w);
    free(p);
}

/* More workers than any machine that runs this has CPUs to spare: spins must give way. */
static void test_oversubscribed(void **state) {
    (void)state;
    struct gen_graph g = gen_layers(20, 32);
    struct gen_mix mix = {.jit = 25, .dummy = 0, .seed = 4};
    gen_mix_tasks(&g, &mix, 24);
    struct gen_limits limits = {24, 1, 64, 16};
    struct load load = {1, 1, BIG_ITERATIONS};
    run_program(gen_program(&g, 1, &limits), &load, (struct cpu_config){0}, 2, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_ten_thousand),
        cmocka_unit_test(test_random),         cmocka_unit_test(test_empty),
        cmocka_unit_test(test_oversubscribed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
