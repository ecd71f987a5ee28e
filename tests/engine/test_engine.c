/* test_engine.c - the engine through its public interface: golden models against the reference's
 * greedy continuations; the same bits in any company, chunking and number of workers; stop strings;
 * cancel; two engines at once; what is refused. */
#include "golden_experts.h"
#include "golden_models.h"
#include "quern.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/models/"
#define TINY   "models/tiny"

enum { MAX_OUT = 128, MAX_TEXT = 4096 };

/* Under ThreadSanitizer one of n models: their arithmetic is one thread's, and others see it. */
#ifdef __SANITIZE_THREAD__
#define EACH(n) (n)
#else
#define EACH(n) 1
#endif

struct result {
    int32_t ids[MAX_OUT];
    float logprobs[MAX_OUT];
    size_t n;
    char text[MAX_TEXT];
    int finish;
    uint64_t experts; /* hash of the experts of all positions; 0: not kept */
};

static qn_engine *open_engine(const qn_engine_params *params) {
    qn_engine *e = NULL;
    qn_error error;
    if (qn_engine_open(params, &e, &error) != QN_OK) fail_msg("%s", error.message);
    return e;
}

static qn_engine_params params_for(const char *model) {
    qn_engine_params p;
    qn_engine_params_init(&p);
    p.model = model;
    p.backend = "cpu";
    p.threads = 2;
    p.max_num_seqs = 4;
    return p;
}

static qn_sampling_params greedy(uint32_t max_tokens) {
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    s.temperature = 0;
    s.ignore_eos = 1;
    s.max_tokens = max_tokens;
    return s;
}

static qn_request *submit_ids(qn_engine *e, const int32_t *ids, size_t n,
                              const qn_sampling_params *s) {
    qn_request *r = NULL;
    qn_error error;
    qn_prompt p = {.struct_size = sizeof p, .ids = ids, .n_ids = n};
    if (qn_request_submit(e, &p, s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    return r;
}

static qn_request *submit_text(qn_engine *e, const char *text, const qn_sampling_params *s) {
    qn_request *r = NULL;
    qn_error error;
    qn_prompt p = {.struct_size = sizeof p, .text = text};
    if (qn_request_submit(e, &p, s, &r, &error) != QN_OK) fail_msg("%s", error.message);
    return r;
}

static uint64_t hash_experts(qn_engine *e, qn_request *r) {
    qn_engine_info info = {.struct_size = sizeof info};
    const uint16_t *experts;
    size_t n;
    uint64_t hash = 1;
    if (qn_request_routed_experts(r, &experts, &n, NULL) != QN_OK) return 0;
    qn_engine_get_info(e, &info);
    n *= (size_t)info.n_layers * info.experts_per_token;
    for (size_t i = 0; i < n; i++) hash = (hash ^ experts[i]) * 0x100000001b3u;
    return hash;
}

/* Reads a request to its end. */
static void read_all(qn_request *r, struct result *out) {
    qn_output o = {.struct_size = sizeof o};
    qn_error error;
    size_t n_text = 0;
    memset(out, 0, sizeof *out);
    do {
        if (qn_request_next(r, 30000, &o, &error) != QN_OK) fail_msg("%s", error.message);
        if (o.id >= 0) {
            assert_true(out->n < MAX_OUT);
            out->ids[out->n] = o.id;
            out->logprobs[out->n++] = o.logprob;
        }
        assert_true(n_text + o.n_text < MAX_TEXT);
        memcpy(out->text + n_text, o.text, o.n_text);
        n_text += o.n_text;
    } while (o.finish_reason == QN_RUNNING);
    out->finish = o.finish_reason;
}

static void finish(qn_request *r, struct result *out) {
    read_all(r, out);
    qn_request_free(r);
}

static void assert_same(const struct result *a, const struct result *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof *a->logprobs);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->experts, b->experts);
}

/* ---- golden models ------------------------------------------------------------------------ */

/* The reference computes in float32 on the weights as stored. `margin`: between the two best
 * logits, below which our rounding may choose the other one; then the texts go apart and nothing
 * after it can be compared. Our kernels round activations to bf16 where the weights are bf16, and
 * keep float32 beside float16; largest errors seen: 1e-5, 0.0035, 0.088; largest margin to flip:
 * 0.037. `others`: the share of a model's sets of experts that may differ from the reference's,
 * which has no margins for them. */
static const struct bound {
    const char *dtype;
    double margin, logprob, others;
} bounds[] = {
    {"float32", 1e-3, 1e-4, 0}, {"float16", 0.01, 0.01, 0.01}, {"bfloat16", 0.1, 0.15, 0.03}};

static const struct bound *bound_of(qn_engine *e) {
    qn_engine_info info = {.struct_size = sizeof info};
    qn_engine_get_info(e, &info);
    for (size_t i = 0; i < 3; i++)
        if (strcmp(info.dtype, bounds[i].dtype) == 0) return &bounds[i];
    fail_msg("dtype %s", info.dtype);
    return NULL;
}

static size_t read_ids(const json_t *array, int32_t *ids, size_t most) {
    size_t n = json_array_size(array);
    assert_true(n <= most);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return n;
}

/* Compares the experts of the positions that are the reference's: those before output token n. */
static void check_experts(qn_engine *e, qn_request *r, const json_t *c, size_t n,
                          struct golden_sets *sets) {
    const json_t *want = json_object_get(c, "experts");
    const uint16_t *have;
    size_t n_prompt, n_positions;
    qn_engine_info info = {.struct_size = sizeof info};
    qn_error error;
    qn_engine_get_info(e, &info);
    const int rc = qn_request_routed_experts(r, &have, &n_positions, &error);
    if (want == NULL) {
        assert_int_equal(rc, QN_EINVAL);
        return;
    }
    assert_int_equal(rc, QN_OK);
    assert_int_equal(n_positions, json_array_size(want));
    qn_request_prompt_ids(r, &n_prompt);
    assert_true(golden_compare_experts(want, have, n_prompt + n - (n > 0), info.n_layers,
                                       info.experts_per_token, sets));
}

/* Returns how many tokens were compared. */
static size_t check_case(qn_engine *e, const char *model, const json_t *c,
                         struct golden_sets *sets) {
    const struct bound *bound = bound_of(e);
    int32_t prompt[512], want[MAX_OUT];
    struct result got;
    size_t n_prompt = read_ids(json_object_get(c, "prompt"), prompt, 512);
    size_t n = read_ids(json_object_get(c, "ids"), want, MAX_OUT), i = 0;
    qn_sampling_params s = greedy((uint32_t)n);
    qn_request *r = submit_ids(e, prompt, n_prompt, &s);
    read_all(r, &got);
    assert_int_equal(got.n, n);
    assert_int_equal(got.finish, QN_FINISH_LENGTH);
    for (; i < n; i++) {
        double margin = json_number_value(json_array_get(json_object_get(c, "margins"), i));
        double lp = json_number_value(json_array_get(json_object_get(c, "logprobs"), i));
        if (got.ids[i] != want[i]) {
            if (margin > bound->margin)
                fail_msg("%s: prompt of %zu, token %zu: %d, the reference has %d with margin %g",
                         model, n_prompt, i, got.ids[i], want[i], margin);
            break;
        }
        if (fabs(got.logprobs[i] - lp) > bound->logprob)
            fail_msg("%s: prompt of %zu, token %zu: log-probability %g, want %g", model, n_prompt,
                     i, (double)got.logprobs[i], lp);
    }
    check_experts(e, r, c, i, sets);
    qn_request_free(r);
    return i;
}

/* isa NULL: the best one. False: this processor has no such instruction set. */
static bool check_model(const char *name, const char *dtype, const char *isa) {
    char dir[200], path[240];
    size_t index, n_compared = 0, n_cases;
    json_t *c;
    snprintf(dir, sizeof dir, GOLDEN "%s", name);
    snprintf(path, sizeof path, "%s/cases.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    qn_engine_params p = params_for(dir);
    p.dtype = dtype;
    if (isa != NULL) p.isa = isa;
    struct golden_sets sets = {0};
    json_t *cases = json_object_get(root, "cases");
    p.enable_return_routed_experts = json_object_get(json_array_get(cases, 0), "experts") != NULL;
    qn_engine *e = NULL;
    qn_error error;
    const int rc = qn_engine_open(&p, &e, &error);
    if (rc != QN_OK) json_decref(root);
    if (rc == QN_EUNSUPPORTED && isa != NULL) return false;
    if (rc != QN_OK) fail_msg("%s", error.message);
    n_cases = json_array_size(cases);
    json_array_foreach(cases, index, c) n_compared += check_case(e, name, c, &sets);
    if ((double)sets.n_other > bound_of(e)->others * (double)sets.n)
        fail_msg("%s: %zu of %zu sets of experts differ", name, sets.n_other, sets.n);
    if (sets.n > 0)
        print_message("%s%s%s: %zu of %zu sets of experts differ\n", name, dtype ? " as " : "",
                      dtype ? dtype : "", sets.n_other, sets.n);
    assert_true(n_cases >= 3 && n_compared >= n_cases * 24 / (dtype ? 1 : 2));
    qn_engine_close(e);
    json_decref(root);
    return true;
}

/* What has kernels of its own, on each instruction set. */
static void test_golden_isas(void **state) {
    (void)state;
    static const char *const models[] = {"deepseek-v2-f16", "deepseek-v2-lite", "deepseek-v2-yarn",
                                         "qwen3-moe"};
    static const char *const isas[] = {"ref", "avx2", "avx512bf16", "amx"};
    uint32_t n = 0;
    for (size_t i = 0; i < 4; i++)
        for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
            n += check_model(models[m], NULL, isas[i]);
            check_model(models[m], "float32", isas[i]);
        }
    assert_true(n >= 4); /* ref is everywhere */
}

static void test_golden(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden_models / sizeof golden_models[0]; i += EACH(5)) {
        check_model(golden_models[i], NULL, NULL);
        check_model(golden_models[i], "float32", NULL);
    }
}

/* ---- the same bits ------------------------------------------------------------------------ */

static void fill_prompt(int32_t *ids, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((seed * 7919 + i * 104729 + i * i * 31) % 300);
}

static void run_one(const qn_engine_params *p, const int32_t *ids, size_t n, struct result *out) {
    qn_engine *e = open_engine(p);
    qn_sampling_params s = greedy(32);
    qn_request *r = submit_ids(e, ids, n, &s);
    read_all(r, out);
    out->experts = hash_experts(e, r);
    qn_request_free(r);
    qn_engine_close(e);
}

static bool has_experts(const char *model) {
    return strstr(model, "moe") || strstr(model, "mixtral") || strstr(model, "deepseek-v2-lite") ||
           strstr(model, "deepseek-v2-f16");
}

static void test_chunks(void **state) {
    (void)state;
    static const char *const models[] = {
        GOLDEN "qwen3",           GOLDEN "llama2-mha",       GOLDEN "qwen2",
        GOLDEN "qwen3-moe",       GOLDEN "qwen2-moe-normed", GOLDEN "mistral-window",
        GOLDEN "mixtral-window",  GOLDEN "deepseek-v2-lite", GOLDEN "deepseek-v2-yarn",
        GOLDEN "deepseek-v2-f16", GOLDEN "qwen3-mixed"};
    static const uint32_t chunks[] = {1, 2, 7, 16, 64};
    int32_t prompt[200];
    fill_prompt(prompt, 200, 1);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m += EACH(3)) {
        struct result whole, cut;
        qn_engine_params p = params_for(models[m]);
        p.max_num_batched_tokens = 256; /* the whole prompt at once */
        p.enable_return_routed_experts = has_experts(models[m]);
        run_one(&p, prompt, 200, &whole);
        assert_int_equal(whole.experts != 0, has_experts(models[m]));
        for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
            p.max_num_batched_tokens = chunks[c];
            run_one(&p, prompt, 200, &cut);
            assert_same(&whole, &cut);
        }
    }
}

static void test_workers(void **state) {
    (void)state;
    static const char *const models[] = {GOLDEN "qwen3",
                                         GOLDEN "llama2-mha",
                                         GOLDEN "qwen3-mqa",
                                         GOLDEN "qwen3-moe",
                                         GOLDEN "qwen2-moe",
                                         GOLDEN "qwen3-moe-sparse",
                                         GOLDEN "deepseek-v2-lite",
                                         GOLDEN "qwen3-mixed"};
    int32_t prompt[70];
    fill_prompt(prompt, 70, 2);
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m += EACH(3)) {
        struct result one, many;
        qn_engine_params p = params_for(models[m]);
        p.threads = 1;
        run_one(&p, prompt, 70, &one);
        for (uint32_t threads = 2; threads <= 7; threads++) {
            p.threads = threads;
            run_one(&p, prompt, 70, &many);
            assert_same(&one, &many);
        }
    }
}

/* More requests than slots, lengths from 1 to 200, sampled with seeds: each as it is alone. */
static void check_company(const char *model) {
    enum { N = 10 };
    int32_t prompts[N][200];
    struct result alone[N], together;
    qn_request *requests[N];
    qn_engine_params p = params_for(model);
    p.max_num_batched_tokens = 32;
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(24);
    for (int i = 0; i < N; i++) {
        s.temperature = i % 2 ? 0.9f : 0;
        s.has_seed = 1;
        s.seed = (uint64_t)i;
        fill_prompt(prompts[i], 200, (unsigned)i);
        finish(submit_ids(e, prompts[i], 1 + (size_t)i * 22, &s), &alone[i]);
    }
    for (int i = 0; i < N; i++) {
        s.temperature = i % 2 ? 0.9f : 0;
        s.seed = (uint64_t)i;
        requests[i] = submit_ids(e, prompts[i], 1 + (size_t)i * 22, &s);
    }
    for (int i = N - 1; i >= 0; i--) {
        finish(requests[i], &together);
        assert_same(&alone[i], &together);
    }
    qn_engine_close(e);
}

static void test_company(void **state) {
    (void)state;
    check_company(GOLDEN "qwen3");
    check_company(GOLDEN "qwen3-moe");
    check_company(GOLDEN "qwen2-moe");
    check_company(GOLDEN "deepseek-v2-lite");
}

static void test_two_engines(void **state) {
    (void)state;
    int32_t prompt[20];
    struct result alone, first, second;
    fill_prompt(prompt, 20, 3);
    qn_engine_params p = params_for(GOLDEN "qwen3"), q = params_for(GOLDEN "qwen2");
    run_one(&p, prompt, 20, &alone);
    qn_engine *a = open_engine(&p), *b = open_engine(&q), *c = open_engine(&p);
    qn_sampling_params s = greedy(32);
    qn_request *x = submit_ids(a, prompt, 20, &s), *y = submit_ids(b, prompt, 20, &s),
               *z = submit_ids(c, prompt, 20, &s);
    finish(y, &second);
    assert_int_equal(second.n, 32);
    finish(z, &second);
    finish(x, &first);
    assert_same(&alone, &first);
    assert_same(&alone, &second);
    qn_engine_close(b);
    qn_engine_close(a);
    qn_engine_close(c);
}

/* ---- sampling and ends -------------------------------------------------------------------- */

static void test_seeds(void **state) {
    (void)state;
    struct result a, b, c;
    qn_engine_params p = params_for(TINY);
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(48);
    s.temperature = 1;
    s.has_seed = 1;
    s.seed = 11;
    finish(submit_text(e, "Once upon a time", &s), &a);
    finish(submit_text(e, "Once upon a time", &s), &b);
    s.seed = 12;
    finish(submit_text(e, "Once upon a time", &s), &c);
    assert_same(&a, &b);
    assert_string_not_equal(a.text, c.text);
    qn_engine_close(e);
}

/* Every substring of a greedy text as the stop string: the output is what comes before its first
 * occurrence, wherever the tokens' borders are, and no piece of it is ever given out. */
static void test_stop_strings(void **state) {
    (void)state;
    struct result whole, cut;
    qn_engine_params p = params_for(TINY);
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(24);
    finish(submit_text(e, "Once upon a time", &s), &whole);
    size_t n = strlen(whole.text);
    assert_true(n > 40);
    for (size_t at = 1; at + 9 < n; at += 3) {
        for (size_t length = 1; length <= 9; length += 4) {
            char stop[10] = {0};
            memcpy(stop, whole.text + at, length);
            const char *stops[] = {"never in it", stop};
            s.stop = stops;
            s.n_stop = 2;
            finish(submit_text(e, "Once upon a time", &s), &cut);
            size_t first = (size_t)(strstr(whole.text, stop) - whole.text);
            assert_int_equal(cut.finish, QN_FINISH_STOP);
            assert_int_equal(strlen(cut.text), first);
            assert_memory_equal(cut.text, whole.text, first);
            assert_memory_equal(cut.ids, whole.ids, cut.n * sizeof *cut.ids);
        }
    }
    const char *never[] = {whole.text + n - 1, "never in it"};
    char longer[20];
    snprintf(longer, sizeof longer, "%sx", never[0]); /* held back to the end, then given out */
    never[0] = longer;
    s.stop = never;
    finish(submit_text(e, "Once upon a time", &s), &cut);
    assert_same(&whole, &cut);
    qn_engine_close(e);
}

static void test_stop_ids(void **state) {
    (void)state;
    struct result whole, cut;
    qn_engine_params p = params_for(TINY);
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(16);
    finish(submit_text(e, "Once upon a time", &s), &whole);
    s.stop_token_ids = &whole.ids[5];
    s.n_stop_token_ids = 1;
    finish(submit_text(e, "Once upon a time", &s), &cut);
    size_t first = 0;
    while (whole.ids[first] != whole.ids[5]) first++;
    assert_int_equal(cut.finish, QN_FINISH_STOP);
    assert_int_equal(cut.n, first + 1); /* the stop token is among the ids, not in the text */
    assert_true(strlen(cut.text) < strlen(whole.text));
    assert_memory_equal(cut.text, whole.text, strlen(cut.text));
    qn_engine_close(e);
}

static void test_cancel(void **state) {
    (void)state;
    enum { N = 12 };
    qn_engine_params p = params_for(TINY);
    p.max_num_seqs = 2;
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(100);
    struct result before, after, r;
    qn_request *requests[N];
    qn_output o = {.struct_size = sizeof o};
    finish(submit_text(e, "Once", &s), &before);
    for (int i = 0; i < N; i++) requests[i] = submit_text(e, "Once", &s);
    assert_int_equal(qn_request_next(requests[0], 30000, &o, NULL), QN_OK);
    for (int i = 0; i < N; i++) { /* running and queued ones */
        qn_request_cancel(requests[i]);
        if (i % 3 == 0) qn_request_free(requests[i]);
    }
    for (int i = 0; i < N; i++) {
        if (i % 3 == 0) continue;
        finish(requests[i], &r);
        assert_int_equal(r.finish, QN_FINISH_ABORT);
    }
    finish(submit_text(e, "Once", &s), &after); /* slots and KV blocks are back */
    assert_same(&before, &after);
    requests[0] = submit_text(e, "Once", &s);
    qn_request_free(requests[0]); /* in flight */
    requests[1] = submit_text(e, "Once", &s);
    (void)requests[1];
    qn_request_free(requests[1]);
    qn_engine_close(e); /* while the runtime may still be at it */
}

static void test_after_the_end(void **state) {
    (void)state;
    qn_engine_params p = params_for(TINY);
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(2);
    qn_output o = {.struct_size = sizeof o};
    qn_request *r = submit_text(e, "Once", &s);
    assert_int_equal(qn_request_finish_reason(r), QN_RUNNING);
    for (int i = 0; i < 2; i++) assert_int_equal(qn_request_next(r, -1, &o, NULL), QN_OK);
    assert_int_equal(o.finish_reason, QN_FINISH_LENGTH);
    assert_true(o.id >= 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(qn_request_next(r, 0, &o, NULL), QN_OK);
        assert_int_equal(o.id, -1);
        assert_int_equal(o.finish_reason, QN_FINISH_LENGTH);
        assert_string_equal(o.text, "");
    }
    qn_request_free(r);
    qn_request_free(NULL);
    qn_engine_close(e);
    qn_engine_close(NULL);
}

/* The last token and how the request ends come together, every time. */
static void test_last_token(void **state) {
    (void)state;
    static const int32_t prompt[] = {5, 6};
    qn_engine_params p = params_for(GOLDEN "qwen3");
    qn_engine *e = open_engine(&p);
    qn_sampling_params s = greedy(1);
    qn_output o = {.struct_size = sizeof o};
    double rate;
    for (int i = 0; i < 300; i++) {
        qn_request *r = submit_ids(e, prompt, 2, &s);
        assert_int_equal(qn_request_next(r, 30000, &o, NULL), QN_OK);
        assert_true(o.id >= 0);
        assert_int_equal(o.finish_reason, QN_FINISH_LENGTH);
        qn_request_free(r);
        if (i % 50 == 0) assert_int_equal(qn_engine_measure_read(e, 0.001, &rate, NULL), QN_OK);
    }
    /* More requests than places: the last ones are admitted by the very call that must refuse. */
    qn_request *busy[8];
    s.max_tokens = 100;
    for (int i = 0; i < 8; i++) busy[i] = submit_ids(e, prompt, 2, &s);
    assert_int_equal(qn_engine_measure_read(e, 0.001, &rate, NULL), QN_EBUSY);
    for (int i = 0; i < 8; i++) qn_request_free(busy[i]);
    qn_engine_close(e);
}

/* ---- refusals ----------------------------------------------------------------------------- */

static void refuse_prompt(qn_engine *e, const int32_t *ids, size_t n, int code, const char *word) {
    qn_error error;
    qn_request *r = NULL;
    qn_prompt p = {.struct_size = sizeof p, .ids = ids, .n_ids = n};
    qn_sampling_params s = greedy(4);
    assert_int_equal(qn_request_submit(e, &p, &s, &r, &error), code);
    assert_null(r);
    if (!strstr(error.message, word)) fail_msg("'%s' does not say '%s'", error.message, word);
}

static void refuse_sampling(qn_engine *e, const qn_sampling_params *s, const char *word) {
    static const int32_t ids[] = {1};
    qn_error error;
    qn_request *r = NULL;
    qn_prompt p = {.struct_size = sizeof p, .ids = ids, .n_ids = 1};
    assert_int_not_equal(qn_request_submit(e, &p, s, &r, &error), QN_OK);
    if (!strstr(error.message, word)) fail_msg("'%s' does not say '%s'", error.message, word);
}

static void test_refused_requests(void **state) {
    (void)state;
    static const int32_t bad[] = {3, 1000000}, negative[] = {-1}, high[] = {99};
    int32_t *long_prompt = calloc(2000, sizeof *long_prompt);
    static const char *const empty[] = {""};
    qn_engine_params p = params_for(GOLDEN "qwen3");
    qn_engine *e = open_engine(&p);
    qn_engine_info info = {.struct_size = sizeof info};
    qn_engine_get_info(e, &info);
    assert_int_equal(info.max_model_len, 512);
    refuse_prompt(e, bad, 0, QN_EINVAL, "empty");
    refuse_prompt(e, bad, 2, QN_EINVAL, "token 1 is 1000000");
    refuse_prompt(e, negative, 1, QN_EINVAL, "-1");
    refuse_prompt(e, long_prompt, 512, QN_ELIMIT, "max_model_len");
    refuse_prompt(e, long_prompt, 2000, QN_ELIMIT, "max_model_len");
    qn_sampling_params s = greedy(4);
    s.temperature = NAN;
    refuse_sampling(e, &s, "temperature");
    s = greedy(4);
    s.top_p = 0;
    refuse_sampling(e, &s, "top_p");
    s = greedy(4);
    s.repetition_penalty = 0;
    refuse_sampling(e, &s, "repetition_penalty");
    s = greedy(4);
    s.stop = empty;
    s.n_stop = 1;
    refuse_sampling(e, &s, "stop");
    s = greedy(4);
    s.n_stop_token_ids = 9;
    s.stop_token_ids = long_prompt;
    refuse_sampling(e, &s, "stop_token_ids");
    s = greedy(4);
    s.n_stop_token_ids = 1;
    s.stop_token_ids = high;
    qn_request_free(submit_ids(e, long_prompt, 511, &s)); /* the longest that fits */
    free(long_prompt);
    qn_engine_close(e);
}

static void refuse_engine(const qn_engine_params *p, int code, const char *word) {
    qn_engine *e = NULL;
    qn_error error;
    assert_int_equal(qn_engine_open(p, &e, &error), code);
    assert_null(e);
    if (!strstr(error.message, word)) fail_msg("'%s' does not say '%s'", error.message, word);
}

static int refuse_plan(void *user, const qn_engine_info *info) {
    *(uint64_t *)user = info->total_bytes;
    return 1;
}

static void test_refused_engines(void **state) {
    (void)state;
    uint64_t total = 0;
    qn_engine_params p = params_for("no/such/dir");
    refuse_engine(&p, QN_ENOENT, "no/such/dir");
    p = params_for(NULL);
    refuse_engine(&p, QN_EINVAL, "model");
    p = params_for(TINY);
    p.backend = "tpu";
    refuse_engine(&p, QN_EINVAL, "tpu");
    p = params_for(TINY);
    p.isa = "mmx";
    refuse_engine(&p, QN_EUNSUPPORTED, "mmx");
    p = params_for(TINY);
    p.max_model_len = 1000000;
    refuse_engine(&p, QN_EINVAL, "max_model_len");
    p = params_for(TINY);
    p.kv_cache_memory_bytes = 1000;
    refuse_engine(&p, QN_ELIMIT, "memory");
    p = params_for(TINY);
    p.load_format = "pickle";
    refuse_engine(&p, QN_EINVAL, "load_format");
    p = params_for(TINY);
    p.kv_cache_dtype = "int3";
    refuse_engine(&p, QN_EINVAL, "kv_cache_dtype");
    p = params_for(TINY);
    p.enable_return_routed_experts = 1;
    refuse_engine(&p, QN_EINVAL, "models/tiny has no experts");
    p = params_for(TINY);
    p.struct_size = 0;
    refuse_engine(&p, QN_EINVAL, "struct_size");
    p = params_for(TINY);
    p.plan = refuse_plan;
    p.plan_user = &total;
    refuse_engine(&p, QN_ECANCELED, "refused");
    assert_true(total > 10000000); /* the plan was there */
}

/* ---- memory ------------------------------------------------------------------------------- */

/* A cache too small for all slots: requests wait for blocks and give the same. */
static void test_small_cache(void **state) {
    (void)state;
    enum { N = 6 };
    qn_engine_params p = params_for(TINY);
    qn_engine *e = open_engine(&p);
    qn_engine_info info = {.struct_size = sizeof info};
    qn_sampling_params s = greedy(100);
    struct result alone, r;
    qn_request *requests[N];
    qn_engine_get_info(e, &info);
    finish(submit_text(e, "Once upon a time", &s), &alone);
    qn_engine_close(e);
    p.max_model_len = 256;
    p.kv_cache_memory_bytes = 320 * info.kv_bytes_per_token; /* 1.25 requests of 256 */
    e = open_engine(&p);
    qn_engine_get_info(e, &info);
    assert_int_equal(info.max_model_len, 256);
    assert_true(info.kv_cache_bytes <= p.kv_cache_memory_bytes);
    for (int i = 0; i < N; i++) requests[i] = submit_text(e, "Once upon a time", &s);
    for (int i = 0; i < N; i++) {
        finish(requests[i], &r);
        assert_same(&alone, &r);
    }
    qn_engine_close(e);
}

static void test_dummy(void **state) {
    (void)state;
    int32_t prompt[10];
    struct result a, b;
    double rate = 0;
    fill_prompt(prompt, 10, 4);
    qn_engine_params p = params_for(GOLDEN "qwen3");
    p.load_format = "dummy";
    p.dtype = "bfloat16";
    run_one(&p, prompt, 10, &a);
    run_one(&p, prompt, 10, &b);
    assert_same(&a, &b);
    qn_engine *e = open_engine(&p);
    assert_int_equal(qn_engine_measure_read(e, 0.01, &rate, NULL), QN_OK);
    assert_true(rate > 1e6);
    qn_engine_close(e);
}

/* ---- texts -------------------------------------------------------------------------------- */

static void test_tokenizer(void **state) {
    (void)state;
    static const char text[] = "Once upon a time \xe2\x82\xac";
    qn_tokenizer *t = NULL;
    qn_error error;
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n, n_back;
    assert_int_equal(qn_tokenizer_open(TINY, &t, &error), QN_OK);
    assert_int_equal(qn_tokenize(t, text, strlen(text), 1, &ids, &n, &error), QN_OK);
    assert_int_equal(qn_detokenize(t, ids, n, 1, &back, &n_back, &error), QN_OK);
    assert_string_equal(back, text);
    assert_int_equal(n_back, strlen(text));
    qn_free(back);
    ids[0] = 1 << 30;
    assert_int_equal(qn_detokenize(t, ids, n, 1, &back, &n_back, &error), QN_EINVAL);
    assert_null(back);
    qn_free(ids);
    assert_int_equal(qn_tokenize(t, "", 0, 0, &ids, &n, &error), QN_OK);
    assert_int_equal(n, 0);
    qn_free(ids);
    assert_int_equal(
        qn_chat_render(t, "[{\"role\":\"user\",\"content\":\"Hi\"}]", NULL, &back, &n_back, &error),
        QN_OK);
    assert_string_equal(back, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    qn_free(back);
    assert_int_not_equal(qn_chat_render(t, "[]", NULL, &back, &n_back, &error), QN_OK);
    assert_int_not_equal(qn_chat_render(t, "{", NULL, &back, &n_back, &error), QN_OK);
    qn_tokenizer_close(t);
    assert_int_equal(qn_tokenizer_open("no/such", &t, &error), QN_ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_isas),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_workers),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_two_engines),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_after_the_end),
        cmocka_unit_test(test_last_token),
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_refused_engines),
        cmocka_unit_test(test_small_cache),
        cmocka_unit_test(test_dummy),
        cmocka_unit_test(test_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
