/* The CUDA backend's host side against a pretended driver (fake_driver.h): memory, launches, tokens
 * through the mailbox, every way to fail, without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "engine/backend_cuda.h"
#include "engine/compile.h"
#include "engine/cuda_plan.h"
#include "engine/cuda_trace.h"
#include "engine/fake_driver.h"
#include "inspect/trace.h"
#include "runtime/trace_rings.h"

#define MODEL "tests/golden/models/qwen3-tied"

/* ---- one program for all tests ---- */

static struct model *model;
static struct prog_header *program;

static int make_program(void **state) {
    (void)state;
    struct diag d = {0};
    struct compile_options o;
    compile_options_init(&o);
    o.target = TARGET_CUDA;
    o.device = device_cuda(90, N_WORKERS, 0);
    o.n_slots = N_SLOTS;
    o.max_model_len = MAX_LEN;
    o.max_batched_tokens = MAX_BATCHED;
    o.kv_block = 16;
    o.cut_qkv = true;
    struct model_options as_dummy = {.dummy = true, .dtype = "bfloat16"};
    if (model_open(&d, MODEL, &as_dummy, &model) == QN_OK &&
        compile_model(&d, model, &o, NULL, NULL, &program) == QN_OK)
        return 0;
    print_error("%s\n", d.message);
    return -1;
}

static int drop_program(void **state) {
    (void)state;
    free(program);
    model_free(model);
    return 0;
}

static struct backend_config config = {.n_kv_blocks = 24, .max_batched = MAX_BATCHED};

static void reset(enum mode mode) {
    if (fake.started) pthread_join(fake.kernel, NULL);
    memset(&fake, 0, sizeof fake);
    fake.mode = mode;
    fake_device.n_sms = N_WORKERS;
    fake_device.total_bytes = (uint64_t)1 << 30;
    fake.program = program;
}

static int open_with(struct diag *d, const struct prog_header *p, struct backend_instance **i) {
    struct backend_cuda_options o;
    backend_cuda_defaults(&o);
    o.api = &fake_api;
    o.image = "an image";
    /* Short only where the machine is to be found out: others must not fail on a busy host.
     * Silence is above the deadline times RT_TASK_PATIENCE. */
    const uint64_t deadline_ms = fake.mode == MODE_WELL     ? 2000
                                 : fake.mode == MODE_SILENT ? 20
                                                            : 200;
    o.deadline_ns = deadline_ms * 1000 * 1000;
    o.silence_ns = 25 * o.deadline_ns;
    return backend_cuda_open(d, p, NULL, &config, &o, i);
}

static struct backend_instance *open_well(enum mode mode) {
    struct diag d = {0};
    struct backend_instance *i;
    reset(mode);
    if (open_with(&d, program, &i) != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(d.code, QN_OK);
    return i;
}

static void close_well(struct backend_instance *i) {
    backend_cuda.close(i);
    assert_int_equal(fake.n_blocks, 0);
    assert_int_equal(fake.taken, 0);
}

static uint64_t launches(const struct backend_instance *i) {
    struct backend_cuda_stats s;
    backend_cuda_stats(i, &s);
    return s.n_launches;
}

static uint32_t submit(struct backend_instance *i, int32_t first, uint32_t n_prompt,
                       uint32_t max_tokens) {
    struct diag d = {0};
    int32_t prompt[MAX_LEN];
    uint32_t slot = 99;
    struct rt_request q = {.n_prompt = n_prompt,
                           .max_tokens = max_tokens,
                           .sampling = {.top_p = 1, .repetition_penalty = 1}};
    for (uint32_t k = 0; k < n_prompt; k++) prompt[k] = first + (int32_t)k;
    assert_int_equal(backend_cuda.submit(&d, i, &q, NULL, prompt, &slot), QN_OK);
    return slot;
}

/* Waits for a request's end; the status of the last poll. */
static int await(struct diag *d, struct backend_instance *i, uint32_t slot,
                 struct mailbox_view *view) {
    uint32_t seen = 0;
    for (int k = 0; k < 2000; k++) {
        TRY(backend_cuda.poll(d, i, slot, view));
        if (view->finish != RT_RUNNING) return QN_OK;
        TRY(backend_cuda.wait(d, i, &seen, 0.05));
    }
    return fail(d, QN_EINTERNAL, "the request did not end");
}

/* Runs a request that was submitted, compares every token, gives the slot back. */
static void expect_tokens(struct backend_instance *i, uint32_t slot, int32_t first,
                          uint32_t n_prompt, uint32_t max_tokens) {
    struct diag d = {0};
    struct mailbox_view view;
    if (await(&d, i, slot, &view) != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(d.code, QN_OK);
    assert_int_equal(view.finish, RT_FINISH_LENGTH);
    assert_int_equal(view.n_out, max_tokens);
    int32_t token = first + (int32_t)n_prompt - 1;
    for (uint32_t k = 0; k < max_tokens; k++) {
        token = next_token(token, n_prompt + k);
        assert_int_equal(view.tokens[k], token);
        assert_true(view.logprobs[k] == -0.5f * (float)(n_prompt + k));
    }
    assert_int_equal(backend_cuda.release(&d, i, slot), QN_OK);
}

/* ---- tests ---- */

/* Prefill in chunks and all decode steps of a request are one launch; so is the next request. */
static void test_one_launch_each(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    assert_int_equal(launches(i), 0); /* nothing runs on an idle GPU */
    expect_tokens(i, submit(i, 3, 20, 40), 3, 20, 40);
    for (int k = 0; k < 1000 && __atomic_load_n(&fake.running, __ATOMIC_ACQUIRE); k++) usleep(1000);
    assert_int_equal(launches(i), 1);
    usleep(20000); /* until the watcher has seen the end */
    expect_tokens(i, submit(i, 7, 1, 5), 7, 1, 5);
    assert_int_equal(launches(i), 2);
    close_well(i);
    assert_int_equal(fake.n_mega, 2);
}

/* A request that comes while the kernel lingers is one of the same launch; then the kernel ends. */
static void test_linger(void **state) {
    (void)state;
    config.choices.linger_ns = 300000000;
    struct backend_instance *i = open_well(MODE_WELL);
    expect_tokens(i, submit(i, 3, 20, 40), 3, 20, 40);
    usleep(20000);
    expect_tokens(i, submit(i, 7, 1, 5), 7, 1, 5);
    assert_int_equal(launches(i), 1);
    for (int k = 0; k < 3000 && __atomic_load_n(&fake.running, __ATOMIC_ACQUIRE); k++) usleep(1000);
    assert_false(__atomic_load_n(&fake.running, __ATOMIC_ACQUIRE));
    usleep(20000);
    expect_tokens(i, submit(i, 9, 2, 5), 9, 2, 5);
    assert_int_equal(launches(i), 2);
    close_well(i); /* while it lingers */
    config.choices.linger_ns = 0;
}

static void test_batch(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    uint32_t slot[N_SLOTS];
    for (uint32_t k = 0; k < N_SLOTS; k++)
        slot[k] = submit(i, (int32_t)k * 9, 3 + 7 * k, 30 - 5 * k);
    struct diag d = {0};
    struct rt_request q = {
        .n_prompt = 1, .max_tokens = 1, .sampling = {.top_p = 1, .repetition_penalty = 1}};
    uint32_t none;
    assert_int_equal(backend_cuda.submit(&d, i, &q, NULL, &(int32_t){1}, &none), QN_EBUSY);
    for (uint32_t k = 0; k < N_SLOTS; k++)
        expect_tokens(i, slot[k], (int32_t)k * 9, 3 + 7 * k, 30 - 5 * k);
    close_well(i);
}

/* The host's rings after the kernel has ended: every task of every iteration, at the host's time.
 */
static void check_trace(struct backend_instance *i, uint64_t start, uint32_t n_iterations,
                        bool overran) {
    struct diag d = {0};
    struct trace t;
    size_t complete = 0;
    assert_int_equal(backend_cuda.trace_wait(&d, i), QN_OK);
    assert_int_equal(trace_read(&d, config.trace, program, &t), QN_OK);
    for (size_t k = 0; k < t.iters.n; k++) complete += t.iters.items[k].complete;
    assert_int_equal(t.n_dropped > 0, overran);
    if (overran)
        assert_in_range(complete, 1, n_iterations - 1);
    else
        assert_int_equal(complete, n_iterations);
    for (size_t k = 0; k < t.runs.n; k++) {
        assert_true(t.runs.items[k].ready >= start && t.runs.items[k].end <= rt_now_ns());
        assert_true(t.runs.items[k].ready <= t.runs.items[k].end);
    }
    if (!overran) { /* the loaders' rings came with the others */
        assert_int_equal(t.pages.n, t.runs.n);
        assert_in_range(t.n_loaders, 1, N_WORKERS);
    }
    for (size_t k = 0; k < t.pages.n; k++) {
        const struct trace_pages *p = &t.pages.items[k];
        assert_true(p->time >= start && p->time <= rt_now_ns());
        assert_true(k == 0 || p->time >= t.pages.items[k - 1].time);
        assert_int_equal(p->flying_bytes, (p->worker + 1) * 8192);
        assert_int_equal(p->n_free, 2);
    }
    trace_fini(&t);
}

static struct backend_instance *open_traced(uint64_t limit) {
    struct diag d = {0};
    assert_int_equal(trace_rings_new(&d, N_WORKERS, limit, &config.trace), QN_OK);
    trace_rings_switch(config.trace, true);
    struct backend_instance *i = open_well(MODE_WELL);
    assert_non_null(i);
    return i;
}

static void close_traced(struct backend_instance *i) {
    close_well(i);
    free(config.trace);
    config.trace = NULL;
}

static void test_trace(void **state) {
    (void)state;
    uint64_t start = rt_now_ns();
    struct diag d = {0};
    struct backend_instance *i = open_traced((uint64_t)8 << 20);
    assert_int_equal(fake.args.rt.trace == NULL, true); /* no launch yet */
    expect_tokens(i, submit(i, 3, 1, 20), 3, 1, 20);
    check_trace(i, start, 20, false);
    assert_ptr_not_equal(fake.args.rt.trace, config.trace); /* rings of its own */
    for (uint32_t k = 0; k < 3; k++) {                      /* later launches go on */
        assert_int_equal(backend_cuda.trace_wait(&d, i), QN_OK);
        expect_tokens(i, submit(i, 5, 1, 4), 5, 1, 4);
        check_trace(i, start, 24 + 4 * k, false);
    }
    assert_true(launches(i) > 1);
    trace_rings_switch(config.trace, false);
    expect_tokens(i, submit(i, 5, 1, 4), 5, 1, 4);
    check_trace(i, start, 32, false);
    close_traced(i);
}

/* Rings that run over on the device keep the newest records, and count the others. */
static void test_trace_overrun(void **state) {
    (void)state;
    uint64_t start = rt_now_ns();
    struct backend_instance *i = open_traced(1);
    for (int k = 0; k < 2; k++) {
        expect_tokens(i, submit(i, 3, 1, MAX_LEN - 1), 3, 1, MAX_LEN - 1);
        check_trace(i, start, 2 * MAX_LEN, true);
    }
    close_traced(i);
}

/* Requests that come just when the kernel goes idle are neither lost nor run twice. */
static void test_many_launches(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    for (int k = 0; k < 300; k++) {
        expect_tokens(i, submit(i, k % 200, 1 + (uint32_t)k % 3, 2), k % 200, 1 + (uint32_t)k % 3,
                      2);
        if (k % 3 == 0) usleep((unsigned)(k * 7) % 400);
    }
    assert_in_range(launches(i), 1, 301);
    close_well(i);
}

static void test_cancel(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    struct diag d = {0};
    struct mailbox_view view;
    uint32_t slot = submit(i, 1, 4, MAX_LEN - 4);
    assert_int_equal(backend_cuda.cancel(&d, i, slot), QN_OK);
    assert_int_equal(await(&d, i, slot, &view), QN_OK);
    assert_true(view.finish == RT_FINISH_ABORT || view.n_out == MAX_LEN - 4);
    assert_int_equal(backend_cuda.release(&d, i, slot), QN_OK);
    expect_tokens(i, submit(i, 2, 2, 3), 2, 2, 3);
    close_well(i);
}

/* Closing with requests under way stops the kernel. */
static void test_close_busy(void **state) {
    (void)state;
    for (int k = 0; k < 20; k++) {
        struct backend_instance *i = open_well(MODE_WELL);
        submit(i, 1, 4, MAX_LEN - 4);
        usleep((unsigned)k * 30);
        close_well(i);
    }
}

/* A request on a machine that fails; the message must hold `words`, and another engine must open.
 */
static void expect_broken(enum mode mode, int code, const char *words) {
    struct backend_instance *i = open_well(mode);
    struct diag d = {0};
    struct mailbox_view view;
    uint32_t slot = submit(i, 1, 2, 3);
    assert_int_equal(await(&d, i, slot, &view), code);
    if (strstr(d.message, words) == NULL) print_error("%s\n", d.message);
    assert_non_null(strstr(d.message, words));
    assert_null(strchr(d.message, '\n'));
    diag_clear(&d);
    struct rt_request q = {.n_prompt = 1, .max_tokens = 1};
    assert_int_equal(backend_cuda.submit(&d, i, &q, NULL, &(int32_t){1}, &slot), code);
    close_well(i);
    i = open_well(MODE_WELL);
    expect_tokens(i, submit(i, 3, 2, 2), 3, 2, 2);
    close_well(i);
}

static void test_stall(void **state) {
    (void)state;
    expect_broken(MODE_LOSES_A_TASK, QN_ESTALL, "linear");
}

static void test_silence(void **state) {
    (void)state;
    expect_broken(MODE_SILENT, QN_ESTALL, "no sign of life");
}

static void test_device_error(void **state) {
    (void)state;
    expect_broken(MODE_DEVICE_ERROR, QN_EDEVICE, "the mega-kernel: the driver's words");
}

static void test_launch_fails(void **state) {
    (void)state;
    expect_broken(MODE_NO_LAUNCH, QN_EDEVICE, "cuLaunchCooperativeKernel");
}

/* Who waits long learns of it soon, be they several. NULL: a wait ended without news. */
static void *wait_long(void *arg) {
    struct diag d = {0};
    uint32_t seen = 0;
    int rc;
    do rc = backend_cuda.wait(&d, arg, &seen, 60);
    while (rc == QN_OK && seen != 0);
    diag_clear(&d);
    return rc == QN_OK ? NULL : arg;
}

static void test_waiters_learn(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_SILENT);
    pthread_t waiter[3];
    submit(i, 1, 2, 3);
    const uint64_t start = rt_now_ns();
    for (int k = 0; k < 3; k++) assert_int_equal(pthread_create(&waiter[k], NULL, wait_long, i), 0);
    for (int k = 0; k < 3; k++) {
        void *learned;
        pthread_join(waiter[k], &learned);
        assert_ptr_equal(learned, i);
    }
    assert_true(rt_now_ns() - start < 30000000000);
    close_well(i);
}

/* Too little memory at any point of opening: one clear line, nothing left behind. */
static void test_out_of_memory(void **state) {
    (void)state;
    int n_failed = 0, n_opened = 0;
    for (uint64_t capacity = 1 << 20; capacity <= (uint64_t)1 << 30; capacity += capacity / 3) {
        struct diag d = {0};
        struct backend_instance *i;
        reset(MODE_WELL);
        fake_device.total_bytes = capacity;
        int rc = open_with(&d, program, &i);
        if (rc == QN_OK) {
            n_opened++;
            close_well(i);
            continue;
        }
        n_failed++;
        assert_int_equal(rc, QN_ELIMIT);
        assert_non_null(strstr(d.message, "GPU memory"));
        assert_null(i);
        assert_int_equal(fake.n_blocks, 0);
    }
    assert_true(n_failed > 5 && n_opened > 0);
}

/* What the plan says is what is taken. */
static void test_plan(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_plan p;
    assert_int_equal(backend_cuda.plan(&d, program, &config, &p), QN_OK);
    struct backend_instance *i = open_well(MODE_WELL);
    struct backend_cuda_stats s;
    backend_cuda_stats(i, &s);
    uint64_t upload = (uint64_t)64 << 20; /* given back */
    assert_int_equal(fake.taken, s.device_bytes - upload);
    assert_in_range(p.kv_bytes + p.workspace_bytes + p.other_bytes + s.weight_bytes, s.device_bytes,
                    s.device_bytes + s.weight_bytes);
    assert_int_equal(fake.n_dummy, fake.n_retile);
    assert_in_range(fake.n_dummy, program->section[SECTION_WEIGHT].count, 1000);
    double rate = 0;
    assert_int_equal(backend_cuda.measure_read(&d, i, 0.001, &rate), QN_OK);
    assert_true(rate > 0);
    close_well(i);
}

/* The plan counts the rings on the device of a trace that is made later. */
static void test_plan_of_trace(void **state) {
    (void)state;
    enum { LIMIT = 1 << 22 };
    struct diag d = {0};
    struct backend_plan plain, traced;
    struct backend_config c = config;
    struct rt_trace *rings;
    assert_int_equal(backend_cuda.plan(&d, program, &c, &plain), QN_OK);
    c.trace_bytes = LIMIT;
    assert_int_equal(backend_cuda.plan(&d, program, &c, &traced), QN_OK);
    assert_int_equal(trace_rings_new(&d, program->n_workers, LIMIT, &rings), QN_OK);
    assert_int_equal(traced.other_bytes - plain.other_bytes,
                     cuda_trace_bytes(rings->ring_bytes, program->n_workers));
    free(rings);
}

/* The kernels' blocks work each by itself. */
static void test_no_gangs(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_instance *i;
    struct prog_op *op = (struct prog_op *)PROG(program, OP) + 2;
    op->gang = 2;
    reset(MODE_WELL);
    assert_int_equal(open_with(&d, program, &i), QN_EUNSUPPORTED);
    assert_non_null(strstr(d.message, "no gangs"));
    assert_null(i);
    op->gang = 1;
}

/* A program says how many ranks it has; the device's tables are made for one of them. */
static void test_rank_of_program(void **state) {
    (void)state;
    struct diag d = {0};
    struct cuda_bases bases = {.cc = 90};
    assert_int_equal(cuda_tables_check(&d, program, &bases), QN_OK);
    bases.rank = program->n_ranks;
    assert_int_equal(cuda_tables_check(&d, program, &bases), QN_EUNSUPPORTED);
    assert_non_null(strstr(d.message, "rank 1: the program is for 1 GPUs"));
    program->n_ranks = PROG_MAX_RANKS + 1;
    assert_int_equal(program_check(&d, "test", program, program->total_bytes), QN_EFORMAT);
    program->n_ranks = 2;
    program->target = TARGET_CPU;
    diag_clear(&d);
    assert_int_equal(program_check(&d, "test", program, program->total_bytes), QN_EFORMAT);
    assert_non_null(strstr(d.message, "n_ranks: want a number from 1 to 1, have 2"));
    program->target = TARGET_CUDA;
    program->n_ranks = 1;
}

/* The image has one format and one set of strides for the KV cache of all layers. */
static void test_kv_rows_differ(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_instance *i;
    struct kv_row *last =
        (struct kv_row *)PROG(program, KV) + program->section[SECTION_KV].count - 1;
    const struct kv_row was = *last;
    last->dtype = DTYPE_F16;
    reset(MODE_WELL);
    assert_int_equal(open_with(&d, program, &i), QN_EUNSUPPORTED);
    assert_non_null(strstr(d.message, "want one for all layers"));
    assert_null(i);
    *last = was;
}

static void test_wrong_image(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_instance *i;
    struct backend_cuda_options o;
    reset(MODE_WELL);
    backend_cuda_defaults(&o);
    o.api = &fake_api;
    o.image = "another image";
    assert_int_equal(backend_cuda_open(&d, program, NULL, &config, &o, &i), QN_EDEVICE);
    assert_non_null(strstr(d.message, "cuModuleLoadData"));
    assert_int_equal(fake.n_blocks, 0);
}

/* On a machine without a driver --backend cuda is one clear line. */
static void test_no_driver(void **state) {
    (void)state;
    struct diag d = {0};
    const struct backend *b;
    int rc = backend_find(&d, "cuda", &b);
    if (rc == QN_OK) {
        print_message("skipped: there is a GPU here\n");
        skip();
    }
    assert_int_equal(rc, QN_EDEVICE);
    assert_null(strchr(d.message, '\n'));
    assert_true(strlen(d.message) > 20);
    diag_clear(&d);
    assert_int_equal(backend_find(&d, "auto", &b), QN_OK);
    assert_string_equal(b->name, "cpu");
}

/* Two thirds of what can be set aside of L2, for as many addresses as can be named; of a program
 * whose activations ride on data. */
static void test_keeps_activations(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_instance *i;
    struct prog_header *rides;
    struct compile_options o;
    compile_options_init(&o);
    const struct device card = device_cuda(80, N_WORKERS, 0);
    compile_options_cuda(&o, &card);
    o.max_model_len = MAX_LEN;
    o.kv_block = 16;
    assert_int_equal(compile_model(&d, model, &o, NULL, NULL, &rides), QN_OK);
    for (int on = 0; on < 2; on++) {
        if (!on) setenv("QN_CUDA_KEEP", "0", 1);
        reset(MODE_WELL);
        assert_int_equal(open_with(&d, rides, &i), QN_OK);
        close_well(i);
        unsetenv("QN_CUDA_KEEP");
        const uint64_t can = on ? 1000 + CU_ATTR_MAX_PERSISTING_L2_CACHE_SIZE : 0;
        const uint64_t named = on ? 1000 + CU_ATTR_MAX_ACCESS_POLICY_WINDOW_SIZE : 0;
        assert_int_equal(fake.kept, can * 2 / 3);
        assert_int_equal(fake.window, named);
        assert_true(fake.hit_ratio < 1 && on == (fake.hit_ratio > 0));
    }
    free(rides);
    close_well(open_well(MODE_WELL));
    assert_int_equal(fake.window, 0); /* nothing rides */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_activations),
        cmocka_unit_test(test_kv_rows_differ),
        cmocka_unit_test(test_rank_of_program),
        cmocka_unit_test(test_no_gangs),
        cmocka_unit_test(test_one_launch_each),
        cmocka_unit_test(test_linger),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_many_launches),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_trace_overrun),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_close_busy),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_device_error),
        cmocka_unit_test(test_launch_fails),
        cmocka_unit_test(test_waiters_learn),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_plan_of_trace),
        cmocka_unit_test(test_wrong_image),
        cmocka_unit_test(test_no_driver),
    };
    return cmocka_run_group_tests(tests, make_program, drop_program);
}
