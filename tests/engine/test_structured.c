/* test_structured.c - outputs that a grammar holds to: what comes, the same bits alone and in
 * company, requests that are freed while they run, grammars that give up in the middle, a host that
 * is stopped. QN_TEST: a test by its name; QN_TEST_BACKEND: cuda runs it on a GPU. */
#include "quern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_OUT = 64, N_COMPANY = 3 };

struct result {
    int32_t ids[MAX_OUT];
    float logprobs[MAX_OUT];
    size_t n;
    char text[1024];
    int finish, rc;
    qn_error error;
};

static qn_engine *open_engine(void) {
    qn_engine_params p;
    qn_engine *e = NULL;
    qn_error error;
    qn_engine_params_init(&p);
    p.model = "models/tiny";
    p.backend = getenv("QN_TEST_BACKEND") ? getenv("QN_TEST_BACKEND") : "cpu";
    p.threads = 2;
    p.max_num_seqs = N_COMPANY + 1;
    if (qn_engine_open(&p, &e, &error) != QN_OK) fail_msg("%s", error.message);
    return e;
}

static qn_sampling_params structured(int kind, const char *text) {
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    s.has_seed = 1;
    s.seed = 5;
    s.max_tokens = MAX_OUT;
    s.structured_kind = kind;
    s.structured_text = text;
    return s;
}

static int submit(qn_engine *e, const qn_sampling_params *s, qn_request **r, qn_error *error) {
    const qn_prompt p = {.struct_size = sizeof p, .text = "Once upon a time"};
    return qn_request_submit(e, &p, s, r, error);
}

static void finish(qn_request *r, struct result *out) {
    qn_output o = {.struct_size = sizeof o};
    *out = (struct result){0};
    do {
        out->rc = qn_request_next(r, 30000, &o, &out->error);
        if (out->rc != QN_OK) break;
        if (o.id >= 0) {
            out->ids[out->n] = o.id;
            out->logprobs[out->n++] = o.logprob;
        }
        strncat(out->text, o.text, sizeof out->text - strlen(out->text) - 1);
    } while (o.finish_reason == QN_RUNNING);
    out->finish = qn_request_finish_reason(r);
    qn_request_free(r);
}

static void generate(qn_engine *e, const qn_sampling_params *s, struct result *out) {
    qn_request *r = NULL;
    qn_error error;
    if (submit(e, s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    finish(r, out);
}

static void test_outputs(void **state) {
    (void)state;
    qn_engine *e = open_engine();
    struct result r;
    qn_sampling_params s = structured(QN_STRUCTURED_CHOICE, "[\"blue\", \"red\"]");
    for (s.seed = 0; s.seed < 8; s.seed++) {
        generate(e, &s, &r);
        assert_int_equal(r.finish, QN_FINISH_STOP);
        assert_true(strcmp(r.text, "blue") == 0 || strcmp(r.text, "red") == 0);
    }
    s = structured(QN_STRUCTURED_REGEX, "[A-C]{3}-\\d");
    s.temperature = 0;
    generate(e, &s, &r);
    assert_int_equal(r.finish, QN_FINISH_STOP);
    assert_int_equal(strspn(r.text, "ABC"), 3);
    assert_int_equal(strlen(r.text), 5);
    s = structured(QN_STRUCTURED_GRAMMAR, "root ::= \"<\" [a-z]{2,4} \">\"");
    s.repetition_penalty = 1.5;
    s.top_k = 3;
    generate(e, &s, &r);
    assert_int_equal(r.finish, QN_FINISH_STOP);
    assert_int_equal(r.text[0], '<');
    qn_engine_close(e);
}

static void test_company(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":6},"
        "\"minItems\":2,\"maxItems\":4}";
    qn_engine *e = open_engine();
    qn_request *others[N_COMPANY], *r = NULL;
    struct result alone, together, ignored;
    qn_sampling_params s = structured(QN_STRUCTURED_JSON_SCHEMA, schema);
    qn_sampling_params free_one = structured(QN_STRUCTURED_NONE, NULL), other = s;
    other.seed = 99;
    generate(e, &s, &alone);
    for (int i = 0; i < N_COMPANY; i++)
        assert_int_equal(submit(e, i == 0 ? &other : &free_one, &others[i], NULL), QN_OK);
    assert_int_equal(submit(e, &s, &r, NULL), QN_OK);
    finish(r, &together);
    for (int i = 0; i < N_COMPANY; i++) finish(others[i], &ignored);
    assert_int_equal(together.n, alone.n);
    assert_memory_equal(together.ids, alone.ids, alone.n * sizeof *alone.ids);
    assert_memory_equal(together.logprobs, alone.logprobs, alone.n * sizeof *alone.logprobs);
    qn_engine_close(e);
}

/* The runtime may ask a guide that the user's request no longer has. */
static void test_freed(void **state) {
    (void)state;
    qn_engine *e = open_engine();
    qn_sampling_params s = structured(QN_STRUCTURED_REGEX, "[a-z ]{1000}");
    qn_output o = {.struct_size = sizeof o};
    for (int i = 0; i < 20; i++) {
        qn_request *r = NULL;
        assert_int_equal(submit(e, &s, &r, NULL), QN_OK);
        if (i % 2) assert_int_equal(qn_request_next(r, 30000, &o, NULL), QN_OK);
        qn_request_free(r);
    }
    qn_engine_close(e); /* some may still be in their slots */
}

/* Each token doubles what the text may be: the request ends, the others go on. */
static void test_gives_up(void **state) {
    (void)state;
    qn_engine *e = open_engine();
    qn_request *other = NULL;
    struct result r;
    qn_sampling_params s = structured(QN_STRUCTURED_GRAMMAR,
                                      "root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"a\"{40}");
    qn_sampling_params plain = structured(QN_STRUCTURED_REGEX, "[a-z ]{40,60}");
    assert_int_equal(submit(e, &plain, &other, NULL), QN_OK);
    generate(e, &s, &r);
    assert_int_equal(r.rc, QN_ELIMIT);
    assert_non_null(strstr(r.error.message, "structured output: after"));
    assert_int_equal(r.finish, QN_FINISH_ERROR);
    finish(other, &r);
    assert_int_equal(r.rc, QN_OK);
    generate(e, &plain, &r);
    assert_int_equal(r.rc, QN_OK);
    qn_engine_close(e);
}

/* ---- a host that is stopped ---------------------------------------------------------------- */

enum { STOP_GOES_ON, STOP_ASKED, STOP_STANDS };
static int stop;

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int stop_is(int what) {
    return __atomic_load_n(&stop, __ATOMIC_ACQUIRE) == what;
}

/* In the thread that makes masks. */
static void stand_still(int number) {
    (void)number;
    __atomic_store_n(&stop, STOP_STANDS, __ATOMIC_RELEASE);
    while (stop_is(STOP_STANDS)) nap();
}

/* The thread of this process with that name; 0: none. */
static pid_t thread_named(const char *name) {
    char path[300], line[40] = "";
    pid_t id = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *t; (t = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", t->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(line, sizeof line, f) && strcmp(line, name) == 0) id = atoi(t->d_name);
        if (f) fclose(f);
    }
    closedir(tasks);
    return id;
}

static void stop_thread(const char *name) {
    const struct sigaction stands = {.sa_handler = stand_still, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &stands, NULL);
    const pid_t id = thread_named(name);
    assert_true(id > 0);
    __atomic_store_n(&stop, STOP_ASKED, __ATOMIC_RELEASE);
    assert_int_equal(syscall(SYS_tgkill, getpid(), id, SIGUSR1), 0);
    while (stop_is(STOP_ASKED)) nap();
}

/* While the thread that makes masks stands still, for a second and more, requests without a grammar
 * go on, come and end, and one with a grammar can be submitted, cancelled and freed. The one that
 * it was at goes on afterwards, with the same bits. */
static void test_stopped_host(void **state) {
    (void)state;
    qn_engine *e = open_engine();
    qn_request *r = NULL, *others[2];
    struct result alone, late, other;
    qn_output o = {.struct_size = sizeof o};
    qn_sampling_params s = structured(QN_STRUCTURED_REGEX, "[a-z ]{500}");
    qn_sampling_params free_one = structured(QN_STRUCTURED_NONE, NULL);
    free_one.ignore_eos = 1;
    generate(e, &s, &alone);
    assert_int_equal(submit(e, &s, &r, NULL), QN_OK);
    assert_int_equal(qn_request_next(r, 30000, &o, NULL), QN_OK);
    assert_int_equal(submit(e, &free_one, &others[0], NULL), QN_OK);
    stop_thread("quern-masks\n");
    const time_t start = time(NULL);
    size_t n_late = 0;
    for (int round = 0; round < 3 || time(NULL) < start + 2; round++) {
        generate(e, &free_one, &other);
        assert_int_equal(other.n, MAX_OUT);
        assert_int_equal(submit(e, &s, &others[1], NULL), QN_OK);
        assert_int_equal(qn_request_next(others[1], 30000, &o, NULL), QN_OK);
        assert_int_equal(o.id, alone.ids[0]);
        qn_request_free(others[1]);
    }
    finish(others[0], &other);
    assert_int_equal(other.n, MAX_OUT);
    while (qn_request_next(r, 0, &o, NULL) == QN_OK) n_late++;
    assert_true(n_late + 1 < alone.n && stop_is(STOP_STANDS));
    __atomic_store_n(&stop, STOP_GOES_ON, __ATOMIC_RELEASE);
    finish(r, &late);
    assert_int_equal(1 + n_late + late.n, alone.n);
    assert_memory_equal(late.ids, alone.ids + 1 + n_late, late.n * sizeof *late.ids);
    assert_memory_equal(late.logprobs, alone.logprobs + 1 + n_late, late.n * sizeof *late.logprobs);
    qn_engine_close(e);
}

static void refuse(qn_engine *e, const qn_sampling_params *s, int code, const char *message) {
    qn_request *r = NULL;
    qn_error error = {0};
    assert_int_equal(submit(e, s, &r, &error), code);
    if (!strstr(error.message, message)) fail_msg("%s", error.message);
    assert_null(r);
    assert_int_equal(qn_sampling_params_check(s, &error), code);
    if (!strstr(error.message, message)) fail_msg("%s", error.message);
}

static void test_refusals(void **state) {
    (void)state;
    qn_engine *e = open_engine();
    qn_sampling_params s = structured(QN_STRUCTURED_REGEX, "a(");
    refuse(e, &s, QN_EINVAL, "regex: byte 2");
    s = structured(QN_STRUCTURED_JSON_SCHEMA, "{\"type\": \"object\", \"if\": {}}");
    refuse(e, &s, QN_EUNSUPPORTED, "schema: #/if: this keyword");
    s = structured(QN_STRUCTURED_JSON_SCHEMA, NULL);
    refuse(e, &s, QN_EINVAL, "structured_text");
    s = structured(9, "a");
    refuse(e, &s, QN_EINVAL, "structured_kind: want 0 to 4");
    s = structured(QN_STRUCTURED_REGEX, "a");
    s.ignore_eos = 1;
    refuse(e, &s, QN_EINVAL, "ignore_eos");
    s.ignore_eos = 0;
    s.min_tokens = 2;
    refuse(e, &s, QN_EINVAL, "min_tokens");
    qn_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outputs),  cmocka_unit_test(test_company),
        cmocka_unit_test(test_freed),    cmocka_unit_test(test_gives_up),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_stopped_host),
    };
    if (getenv("QN_TEST")) cmocka_set_test_filter(getenv("QN_TEST"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
