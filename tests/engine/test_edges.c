/* test_edges.c - the edges of the public interface: a request that is canceled with tokens pending,
 * waiting for many, sizes of structs, a child of fork, very many requests. */
#include "quern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define TINY "models/tiny"

static qn_engine *open_engine(uint32_t max_num_seqs) {
    qn_engine_params p;
    qn_engine *e = NULL;
    qn_error error;
    qn_engine_params_init(&p);
    p.model = TINY;
    p.backend = "cpu";
    p.threads = 1;
    p.max_num_seqs = max_num_seqs;
    if (qn_engine_open(&p, &e, &error) != QN_OK) fail_msg("%s", error.message);
    return e;
}

static qn_sampling_params greedy(uint32_t max_tokens) {
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    s.temperature = 0;
    s.ignore_eos = 1;
    s.max_tokens = max_tokens;
    return s;
}

static qn_request *submit(qn_engine *e, uint32_t max_tokens) {
    qn_sampling_params s = greedy(max_tokens);
    qn_prompt p = {.struct_size = sizeof p, .text = "Once upon a time"};
    qn_request *r = NULL;
    qn_error error;
    if (qn_request_submit(e, &p, &s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    return r;
}

static qn_output next(qn_request *r) {
    qn_output o = {.struct_size = sizeof o};
    qn_error error;
    if (qn_request_next(r, 30000, &o, &error) != QN_OK) fail_msg("%s", error.message);
    return o;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(long ms) {
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* The output after qn_request_cancel ends the request, whether tokens lie there or none does. */
static void test_cancel_with_tokens_pending(void **state) {
    (void)state;
    qn_engine *e = open_engine(2);
    for (int i = 0; i < 20; i++) {
        qn_request *r = submit(e, 800);
        if (i % 2 == 0) next(r);
        if (i % 4 < 2) nap(2);
        qn_request *other = submit(e, 2); /* moves everybody's tokens */
        qn_request_cancel(r);
        for (int again = 0; again < 2; again++) {
            const qn_output o = next(r);
            assert_int_equal(o.finish_reason, QN_FINISH_ABORT);
            assert_int_equal(o.id, -1);
        }
        while (next(other).finish_reason == QN_RUNNING) {
        }
        qn_request_free(r);
        qn_request_free(other);
    }
    qn_engine_close(e);
}

/* A host that takes one output of one request a time never waits while another is there. */
static void test_wait_lists_the_ready(void **state) {
    (void)state;
    enum { N = 6, TOKENS = 20 };
    qn_engine *e = open_engine(4);
    qn_request *requests[N], *ready[N];
    size_t got[N] = {0}, ended = 0, n = 1;
    assert_int_equal(qn_engine_wait_any(e, 0, ready, N, &n, NULL), QN_EBUSY);
    assert_int_equal(n, 0);
    for (int i = 0; i < N; i++) requests[i] = submit(e, TOKENS);
    while (ended < N) {
        qn_output o = {.struct_size = sizeof o};
        assert_int_equal(qn_engine_wait(e, 30000, NULL), QN_OK);
        assert_int_equal(qn_engine_wait_any(e, 30000, ready, ended % 2 ? N : 1, &n, NULL), QN_OK);
        assert_in_range(n, 1, N);
        nap(1); /* slower than the engine: tokens pile up */
        assert_int_equal(qn_request_next(ready[0], 0, &o, NULL), QN_OK);
        for (int i = 0; i < N; i++) got[i] += requests[i] == ready[0];
        ended += o.finish_reason != QN_RUNNING;
    }
    for (int i = 0; i < N; i++) assert_int_equal(got[i], TOKENS);
    const double start = now_s();
    assert_int_equal(qn_engine_wait(e, 50, NULL), QN_EBUSY); /* ended requests are not ready */
    assert_true(now_s() - start > 0.045);
    for (int i = 0; i < N; i++) qn_request_free(requests[i]);
    qn_engine_close(e);
}

/* Sizes that no version has are refused before a token is taken. */
static void test_struct_sizes(void **state) {
    (void)state;
    qn_engine *e = open_engine(1);
    qn_request *r = submit(e, 2);
    const size_t wrong[] = {0,       1,       sizeof(size_t), offsetof(qn_output, finish_reason),
                            1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        qn_output o = {.struct_size = wrong[i], .id = 77};
        qn_error error;
        assert_int_equal(qn_request_next(r, 0, &o, &error), QN_EINVAL);
        assert_non_null(strstr(error.message, "struct_size"));
        assert_int_equal(o.id, 77);
    }
    assert_int_equal(next(r).finish_reason, QN_RUNNING);
    assert_int_equal(next(r).finish_reason, QN_FINISH_LENGTH);
    qn_request_free(r);
    qn_engine_info info = {.struct_size = 0, .vocab = 5};
    assert_int_equal(qn_engine_get_info(e, &info), QN_EINVAL);
    assert_int_equal(info.vocab, 5);
    info.struct_size = sizeof info;
    assert_int_equal(qn_engine_get_info(e, &info), QN_OK);
    assert_int_not_equal(info.vocab, 5);
    qn_engine_close(e);
}

/* What a child of fork does with its parent's engine: 0 if each call failed at once or did nothing.
 */
static int misuse(qn_engine *e, qn_request *r) {
    qn_sampling_params s = greedy(1);
    qn_prompt p = {.struct_size = sizeof p, .text = "Once"};
    qn_output o = {.struct_size = sizeof o};
    qn_request *mine;
    qn_error error;
    double rate;
    if (qn_request_submit(e, &p, &s, &mine, &error) != QN_EINVAL) return 1;
    if (!strstr(error.message, "fork")) return 2;
    if (qn_request_next(r, -1, &o, NULL) != QN_EINVAL) return 3;
    if (qn_engine_wait(e, -1, NULL) != QN_EINVAL) return 4;
    if (qn_engine_measure_read(e, 0.01, &rate, NULL) != QN_EINVAL) return 5;
    qn_request_cancel(r);
    qn_request_free(r);
    qn_engine_close(e);
    return 0;
}

static void test_fork(void **state) {
    (void)state;
    qn_engine *e = open_engine(1);
    qn_request *r = submit(e, 30);
    int status = 0;
    const pid_t child = fork();
    if (child == 0) _exit(misuse(e, r));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    while (next(r).finish_reason == QN_RUNNING) {
    }
    assert_int_equal(qn_request_finish_reason(r), QN_FINISH_LENGTH); /* the parent's goes on */
    qn_request_free(r);
    qn_engine_close(e);
}

/* Requests in the queue cost a new one nothing, nor one that leaves it. */
static void test_very_many(void **state) {
    (void)state;
    enum { N = 60000, PART = N / 6 };
    qn_engine *e = open_engine(1);
    qn_request **r = calloc(N, sizeof *r);
    double first = 0, last = 0;
    for (int i = 0; i < N; i += PART) {
        const double start = now_s();
        for (int k = i; k < i + PART; k++) r[k] = submit(e, 1);
        if (i == 0) first = now_s() - start;
        last = now_s() - start;
    }
    assert_true(last < 5 * first + 0.2);
    for (int i = N / 2; i < N; i += 7) qn_request_cancel(r[i]);
    for (int i = 0; i < N; i++) {
        if (i < 500) assert_int_equal(next(r[i]).finish_reason, QN_FINISH_LENGTH);
        qn_request_free(r[i]);
    }
    free(r);
    qn_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cancel_with_tokens_pending),
        cmocka_unit_test(test_wait_lists_the_ready),
        cmocka_unit_test(test_struct_sizes),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_very_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
