/* test_torn.c - a model's file that shrinks while it is in use: an error that names the model,
 * never a signal and never a token made of what is not there. Another engine of the same process
 * goes on. */
#include "quern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define TINY "models/tiny"

static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};

static void copy_file(const char *from, const char *to) {
    static char block[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t n;
    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(block, 1, sizeof block, in)) > 0)
        assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static void make_copy(char dir[64]) {
    char from[200], to[200];
    snprintf(dir, 64, "/tmp/quern-torn-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(from, sizeof from, TINY "/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        copy_file(from, to);
    }
}

static void remove_copy(const char *dir) {
    char path[200];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

static qn_engine *open_engine(const char *dir) {
    qn_engine_params p;
    qn_engine *e = NULL;
    qn_error error;
    qn_engine_params_init(&p);
    p.model = dir;
    p.backend = "cpu";
    p.threads = 2;
    p.max_num_batched_tokens = 8;
    if (qn_engine_open(&p, &e, &error) != QN_OK) fail_msg("%s", error.message);
    return e;
}

static qn_request *submit(qn_engine *e) {
    qn_sampling_params s;
    qn_request *r = NULL;
    qn_error error;
    const qn_prompt prompt = {.struct_size = sizeof prompt, .text = "Once upon a time"};
    qn_sampling_params_init(&s, e);
    s.temperature = 0;
    s.ignore_eos = 1;
    s.max_tokens = 900;
    if (qn_request_submit(e, &prompt, &s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    return r;
}

/* Takes tokens into ids until the end or an error; the code. */
static int take(qn_request *r, int32_t *ids, size_t most, size_t *n, qn_error *error) {
    qn_output out = {.struct_size = sizeof out};
    int rc = QN_OK;
    while (*n < most && out.finish_reason == QN_RUNNING) {
        rc = qn_request_next(r, 30000, &out, error);
        if (rc != QN_OK) return rc;
        if (out.id >= 0) ids[(*n)++] = out.id;
    }
    return rc;
}

enum { N = 900 };

/* All N tokens of an engine that nothing happens to. */
static void take_whole(qn_engine *e, int32_t *ids) {
    qn_error error = {0};
    size_t n = 0;
    qn_request *r = submit(e);
    assert_int_equal(take(r, ids, N, &n, &error), QN_OK);
    assert_int_equal(n, N);
    qn_request_free(r);
}

/* Truncates the weights under a request; false: it was done by then (this thread was not run). */
static bool tear(const int32_t *whole) {
    static int32_t ids[N];
    char dir[64], path[200];
    size_t n = 0;
    qn_error error = {0};
    make_copy(dir);
    qn_engine *e = open_engine(dir);
    qn_request *r = submit(e);
    assert_int_equal(take(r, ids, 3, &n, &error), QN_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, 5000), 0);
    const int rc = take(r, ids, N, &n, &error);
    assert_memory_equal(ids, whole, n * sizeof *ids); /* no token from missing weights */
    if (rc != QN_OK) {
        assert_int_equal(rc, QN_EIO);
        assert_non_null(strstr(error.message, dir));
        assert_non_null(strstr(error.message, "shrank"));
        /* The error has ended the request. */
        qn_output out = {.struct_size = sizeof out};
        assert_int_equal(qn_request_finish_reason(r), QN_FINISH_ERROR);
        assert_int_equal(qn_request_next(r, 0, &out, &error), QN_EIO);
        assert_int_equal(out.finish_reason, QN_FINISH_ERROR);
    }
    qn_request_free(r);
    qn_engine_close(e);
    remove_copy(dir);
    return rc != QN_OK;
}

static void a_file_that_shrinks_in_use(void **state) {
    (void)state;
    static int32_t whole[N], again[N];
    qn_engine *good = open_engine(TINY);
    int tries = 1;
    take_whole(good, whole);
    while (!tear(whole)) assert_true(++tries <= 10);
    take_whole(good, again);
    assert_memory_equal(again, whole, sizeof whole);
    qn_engine_close(good);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_file_that_shrinks_in_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
