/* test_sampling_params.c - what a request may ask for beside the draw: lists of likely tokens,
 * scores of the prompt, biases, a least length, stop strings in the text; the ranges. */
#include "quern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY "models/tiny"

enum { MAX_OUT = 64, N_TOP = 5 };

struct result {
    int32_t ids[MAX_OUT];
    float logprobs[MAX_OUT];
    qn_token_logprob top[MAX_OUT][N_TOP];
    size_t n, n_top;
    char text[1024], stop[64];
    int finish;
    int32_t stop_token_id;
};

static qn_engine *open_engine(uint32_t max_logprobs) {
    qn_engine_params p;
    qn_engine *e = NULL;
    qn_error error;
    qn_engine_params_init(&p);
    p.model = TINY;
    p.backend = "cpu";
    p.threads = 2;
    p.max_num_seqs = 3;
    p.max_logprobs = max_logprobs;
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

static qn_request *submit(qn_engine *e, const qn_prompt *p, const qn_sampling_params *s) {
    qn_request *r = NULL;
    qn_error error;
    if (qn_request_submit(e, p, s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    return r;
}

static qn_prompt once(void) {
    return (qn_prompt){.struct_size = sizeof(qn_prompt), .text = "Once upon a time"};
}

static void finish(qn_request *r, struct result *out) {
    qn_output o = {.struct_size = sizeof o};
    qn_error error;
    *out = (struct result){0};
    do {
        if (qn_request_next(r, 30000, &o, &error) != QN_OK) fail_msg("%s", error.message);
        if (o.id >= 0) {
            out->ids[out->n] = o.id;
            out->logprobs[out->n] = o.logprob;
            if (o.n_top) memcpy(out->top[out->n], o.top, o.n_top * sizeof *o.top);
            out->n_top = o.n_top;
            out->n++;
        }
        strncat(out->text, o.text, sizeof out->text - strlen(out->text) - 1);
    } while (o.finish_reason == QN_RUNNING);
    out->finish = o.finish_reason;
    out->stop_token_id = o.stop_token_id;
    if (o.stop) snprintf(out->stop, sizeof out->stop, "%s", o.stop);
    qn_request_free(r);
}

static void generate(qn_engine *e, const qn_sampling_params *s, struct result *out) {
    const qn_prompt p = once();
    finish(submit(e, &p, s), out);
}

static void refuse(qn_engine *e, const qn_sampling_params *s, int code, const char *words) {
    const qn_prompt p = once();
    qn_request *r;
    qn_error error;
    assert_int_equal(qn_request_submit(e, &p, s, &r, &error), code);
    if (!strstr(error.message, words)) fail_msg("'%s' does not say '%s'", error.message, words);
}

/* The list begins with the greedy token, descends, and is the same in company. */
static void test_top(void **state) {
    (void)state;
    qn_engine *e = open_engine(N_TOP);
    qn_sampling_params s = greedy(20), plain = greedy(20), fewer = greedy(20);
    struct result alone, without, less, both;
    const qn_prompt p = once();
    s.logprobs = N_TOP;
    fewer.logprobs = 2;
    generate(e, &s, &alone);
    generate(e, &plain, &without);
    generate(e, &fewer, &less);
    assert_int_equal(alone.n_top, N_TOP);
    assert_int_equal(less.n_top, 2);
    assert_int_equal(without.n_top, 0);
    assert_memory_equal(alone.logprobs, without.logprobs, sizeof alone.logprobs);
    for (size_t i = 0; i < alone.n; i++) {
        double sum = 0;
        assert_int_equal(alone.top[i][0].id, alone.ids[i]);
        assert_true(alone.top[i][0].logprob == alone.logprobs[i]);
        for (int k = 0; k < N_TOP; k++) {
            sum += exp((double)alone.top[i][k].logprob);
            if (k > 0) assert_true(alone.top[i][k].logprob <= alone.top[i][k - 1].logprob);
        }
        assert_true(sum < 1.0001);
        assert_memory_equal(alone.top[i], less.top[i], 2 * sizeof(qn_token_logprob));
    }
    qn_request *many[6];
    for (int i = 0; i < 6; i++) many[i] = submit(e, &p, i % 2 ? &s : &plain);
    for (int i = 0; i < 6; i++) {
        finish(many[i], &both);
        assert_memory_equal(both.ids, alone.ids, sizeof both.ids);
        if (i % 2) assert_memory_equal(both.top, alone.top, sizeof both.top);
    }
    s.logprobs = N_TOP + 1;
    refuse(e, &s, QN_ELIMIT, "logprobs: 6, but the engine was opened with max_logprobs 5");
    qn_engine_close(e);
}

/* The scores of a prompt that was generated are the log-probabilities that it was generated with,
 * bit for bit, and so are the lists. */
static void test_prompt_logprobs(void **state) {
    (void)state;
    qn_engine *e = open_engine(N_TOP);
    qn_sampling_params s = greedy(30), score = greedy(3);
    struct result made;
    qn_prompt p = once();
    int32_t ids[256];
    size_t n_prompt, n;
    s.logprobs = N_TOP;
    qn_request *r = submit(e, &p, &s);
    const int32_t *prompt = qn_request_prompt_ids(r, &n_prompt);
    memcpy(ids, prompt, n_prompt * sizeof *ids);
    finish(r, &made);
    memcpy(ids + n_prompt, made.ids, made.n * sizeof *ids);
    p = (qn_prompt){.struct_size = sizeof p, .ids = ids, .n_ids = n_prompt + made.n};
    const float *logprobs;
    const qn_token_logprob *top;
    for (uint32_t n_top = 0; n_top <= N_TOP; n_top += N_TOP) {
        qn_output o = {.struct_size = sizeof o};
        size_t got;
        score.has_prompt_logprobs = 1;
        score.prompt_logprobs = n_top;
        r = submit(e, &p, &score);
        assert_int_equal(qn_request_prompt_logprobs(r, &logprobs, &top, &got, NULL), QN_EBUSY);
        assert_int_equal(qn_request_next(r, 30000, &o, NULL), QN_OK);
        assert_int_equal(o.n_top, 0); /* the output's lists were not asked for */
        assert_int_equal(qn_request_prompt_logprobs(r, &logprobs, &top, &got, NULL), QN_OK);
        qn_request_prompt_ids(r, &n);
        assert_int_equal(n, n_prompt + made.n);
        assert_int_equal(got, n_top);
        assert_true(isnan(logprobs[0]));
        assert_memory_equal(logprobs + n_prompt, made.logprobs, made.n * sizeof *logprobs);
        if (n_top) assert_int_equal(top[0].id, -1);
        for (size_t i = 0; n_top && i < made.n; i++)
            assert_memory_equal(top + (n_prompt + i) * n_top, made.top[i], sizeof made.top[i]);
        qn_request_free(r);
    }
    score.has_prompt_logprobs = 0;
    r = submit(e, &p, &score);
    assert_int_equal(qn_request_prompt_logprobs(r, &logprobs, &top, &n, NULL), QN_EINVAL);
    qn_request_free(r);
    qn_engine_close(e);
}

static void test_logit_bias(void **state) {
    (void)state;
    qn_engine *e = open_engine(0);
    qn_sampling_params s = greedy(6);
    struct result plain, biased, sampled;
    qn_logit_bias bias[QN_MAX_LOGIT_BIAS + 1] = {{77, 100}, {78, -100}};
    generate(e, &s, &plain);
    s.logit_bias = bias;
    s.n_logit_bias = 2;
    generate(e, &s, &biased);
    for (size_t i = 0; i < biased.n; i++) assert_int_equal(biased.ids[i], 77);
    assert_true(biased.logprobs[0] < plain.logprobs[0]); /* the model's own */
    s.temperature = 1;
    generate(e, &s, &sampled);
    assert_memory_equal(sampled.ids, biased.ids, sizeof biased.ids);
    s.temperature = 0;
    bias[0] = (qn_logit_bias){plain.ids[0], -100};
    generate(e, &s, &biased);
    assert_int_not_equal(biased.ids[0], plain.ids[0]);
    bias[0] = (qn_logit_bias){0, 101};
    refuse(e, &s, QN_EINVAL, "logit_bias: want a number from -100 to 100");
    bias[0] = (qn_logit_bias){0, NAN};
    refuse(e, &s, QN_EINVAL, "logit_bias");
    bias[0] = (qn_logit_bias){1 << 20, 1};
    refuse(e, &s, QN_EINVAL, "logit_bias: token 1048576");
    bias[0] = (qn_logit_bias){-1, 1};
    refuse(e, &s, QN_EINVAL, "logit_bias: token -1");
    memset(bias, 0, sizeof bias);
    s.n_logit_bias = QN_MAX_LOGIT_BIAS + 1;
    refuse(e, &s, QN_ELIMIT, "logit_bias: at most 300");
    s.n_logit_bias = QN_MAX_LOGIT_BIAS;
    generate(e, &s, &biased);
    assert_memory_equal(biased.ids, plain.ids, sizeof plain.ids);
    qn_engine_close(e);
}

/* Neither stop ids nor stop strings end a request before min_tokens. */
static void test_min_tokens(void **state) {
    (void)state;
    qn_engine *e = open_engine(0);
    qn_sampling_params s = greedy(20);
    struct result plain, r;
    generate(e, &s, &plain);
    s.stop_token_ids = &plain.ids[1];
    s.n_stop_token_ids = 1;
    generate(e, &s, &r);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.finish, QN_FINISH_STOP);
    assert_int_equal(r.stop_token_id, plain.ids[1]);
    for (uint32_t min = 3; min <= 20; min += 17) {
        s.min_tokens = min;
        generate(e, &s, &r);
        assert_true(r.n >= min);
        for (size_t i = 0; i < min; i++) assert_int_not_equal(r.ids[i], plain.ids[1]);
    }
    s.n_stop_token_ids = 0;
    const char *stop = "e";
    s.stop = &stop;
    s.n_stop = 1;
    s.min_tokens = 0;
    generate(e, &s, &r);
    const size_t early = r.n;
    s.min_tokens = (uint32_t)early + 2;
    generate(e, &s, &r);
    assert_true(r.n > early + 1);
    assert_non_null(strchr(r.text, 'e'));
    s.min_tokens = 21;
    refuse(e, &s, QN_EINVAL, "min_tokens: 21 is more than max_tokens, 20");
    qn_engine_close(e);
}

static void test_stop_in_output(void **state) {
    (void)state;
    qn_engine *e = open_engine(0);
    qn_sampling_params s = greedy(20);
    struct result plain, without, with;
    generate(e, &s, &plain);
    char stop[4] = {0};
    memcpy(stop, plain.text + strlen(plain.text) / 2, 3);
    const char *texts[] = {"never there", stop};
    s.stop = texts;
    s.n_stop = 2;
    generate(e, &s, &without);
    s.include_stop_str_in_output = 1;
    generate(e, &s, &with);
    assert_string_equal(with.stop, stop);
    assert_int_equal(with.stop_token_id, -1);
    assert_int_equal(strlen(with.text), strlen(without.text) + strlen(stop));
    assert_memory_equal(with.text, plain.text, strlen(with.text));
    s.n_stop = 0;
    s.stop_token_ids = &plain.ids[3];
    s.n_stop_token_ids = 1;
    generate(e, &s, &with);
    s.include_stop_str_in_output = 0;
    generate(e, &s, &without);
    assert_true(strlen(with.text) > strlen(without.text));
    assert_memory_equal(with.text, without.text, strlen(without.text));
    texts[0] = "\xbf";
    s.n_stop = 1;
    refuse(e, &s, QN_EINVAL, "stop: string 1 is not UTF-8: byte 0xbf at 0");
    qn_engine_close(e);
}

/* The ends of each range, and what is just beyond, which the message names. */
static void test_ranges(void **state) {
    (void)state;
    static const struct {
        size_t offset;
        float inside[2], outside[2];
        const char *words;
    } cases[] = {
        {offsetof(qn_sampling_params, temperature), {0, 100}, {-1e-6f, 100.01f}, "from 0 to 100"},
        {offsetof(qn_sampling_params, top_p), {1e-30f, 1}, {0, 1.0001f}, "above 0 and up to 1"},
        {offsetof(qn_sampling_params, min_p), {0, 1}, {-1e-9f, 1.0001f}, "from 0 to 1"},
        {offsetof(qn_sampling_params, repetition_penalty), {1e-6f, 100}, {0, 101}, "above 0"},
        {offsetof(qn_sampling_params, presence_penalty), {-2, 2}, {-2.01f, NAN}, "from -2 to 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++) {
            qn_sampling_params s = greedy(1);
            qn_error error;
            memcpy((char *)&s + cases[i].offset, &cases[i].inside[k], sizeof(float));
            assert_int_equal(qn_sampling_params_check(&s, NULL), QN_OK);
            memcpy((char *)&s + cases[i].offset, &cases[i].outside[k], sizeof(float));
            assert_int_equal(qn_sampling_params_check(&s, &error), QN_EINVAL);
            assert_non_null(strstr(error.message, cases[i].words));
        }
    qn_sampling_params s = {0};
    assert_int_equal(qn_sampling_params_check(&s, NULL), QN_EINVAL);
}

/* A program that was compiled against an older header has less of each struct. */
static void test_old_structs(void **state) {
    (void)state;
    qn_engine *e = open_engine(0);
    qn_sampling_params s = greedy(3);
    const qn_prompt p = once();
    s.struct_size = offsetof(qn_sampling_params, min_tokens);
    s.min_tokens = 77777; /* is not looked at */
    s.n_logit_bias = 5;
    qn_request *r = submit(e, &p, &s);
    qn_output o = {.struct_size = offsetof(qn_output, top), .n_top = 99};
    assert_int_equal(qn_request_next(r, 30000, &o, NULL), QN_OK);
    assert_true(o.id >= 0);
    assert_int_equal(o.n_top, 99);
    qn_request_free(r);
    qn_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_stop_in_output),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_old_structs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
