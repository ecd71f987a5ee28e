/* SAMPLE: greedy and its ties, filters against a sort, penalties, the draw's distribution, the
 * request's state. */
#include "kernels/cpu/sampling.h"
#include "kernels/sampling_rng.h"
#include "kernels_cpu/fake_program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#undef fail

static struct fake *new_fake(uint32_t vocab) {
    struct fake_config c = {.n_rows = 4, .n_logit_rows = 3, .max_model_len = 64, .kv_block = 16};
    c.spec = (struct model_spec){.n_layers = 1,
                                 .hidden = 8,
                                 .intermediate = 8,
                                 .vocab = vocab,
                                 .n_heads = 1,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .rms_eps = 1e-6f,
                                 .rope_theta = 1e4f};
    c.kv = spec_kv_row(&c.spec, DTYPE_F32);
    return fake_new(&c);
}

static struct rt_sampling plain_sampling(float temperature) {
    return (struct rt_sampling){
        .temperature = temperature, .top_p = 1, .repetition_penalty = 1, .seed = 99};
}

/* Row 0 samples for slot 2, which knows a prompt of three tokens and two of output. */
static void one_row(struct fake *f, struct rt_sampling sampling) {
    f->batch.rows.n_rows = 0;
    fake_row(f, 4, 2, 4);
    f->batch.rows.n_logit_rows = 1;
    f->logit_row[0] = 0;
    f->slots[2] = (struct rt_slot){.n_known = 5, .n_prompt = 3, .n_limit = 20};
    f->requests[2] = (struct rt_request){.n_prompt = 3, .sampling = sampling};
    for (int i = 0; i < 5; i++) f->batch.tokens[2 * 64 + i] = i % 4;
}

/* The part that LM_HEAD would have made of the logits of row r. */
static void make_part(struct fake *f, const struct cpu_isa *isa, uint32_t r) {
    uint32_t V = f->config.spec.vocab, n_blocks = (V + LM_BLOCK - 1) / LM_BLOCK;
    float *logits = (float *)fake_in(f, OP_SAMPLE, SAMPLE_LOGITS) + (size_t)r * V;
    float *part = (float *)fake_in(f, OP_SAMPLE, SAMPLE_PART) + (size_t)r * n_blocks * 2;
    for (uint32_t b = 0; b < n_blocks; b++) {
        uint32_t n = V - b * LM_BLOCK < LM_BLOCK ? V - b * LM_BLOCK : LM_BLOCK;
        isa->max_sumexp(logits + b * LM_BLOCK, n, part + 2 * b);
    }
}

static int32_t sample_one(struct fake *f, const struct cpu_isa *isa) {
    make_part(f, isa, 0);
    fake_run(f, isa, OP_SAMPLE);
    return ((int32_t *)fake_out(f, OP_SAMPLE, 0))[0];
}

static void test_greedy(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    uint32_t V = 3 * LM_BLOCK + 5;
    struct fake *f = new_fake(V);
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    for (uint32_t at = 0; at < V; at += 11) {
        logits[at] = 9;
        if (at + LM_BLOCK < V) logits[at + LM_BLOCK] = 9; /* a tie in a later block */
        if (at + 1 < V) logits[at + 1] = 9;
        one_row(f, plain_sampling(0));
        assert_int_equal(sample_one(f, isa), at);
        double sum = 0;
        for (uint32_t i = 0; i < V; i++) sum += exp((double)logits[i]);
        double got = (double)f->batch.logprobs[2 * 64 + 5];
        assert_true(fabs(got - (9 - log(sum))) < 1e-5);
        logits[at] = 0;
        if (at + LM_BLOCK < V) logits[at + LM_BLOCK] = 0;
        if (at + 1 < V) logits[at + 1] = 0;
    }
    fake_free(f);
}

static void test_not_numbers(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    struct fake *f = new_fake(LM_BLOCK + 9);
    uint32_t V = f->config.spec.vocab;
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    for (int temperature = 0; temperature < 2; temperature++) {
        struct rt_sampling s = plain_sampling((float)temperature);
        s.top_p = 0.9f, s.top_k = 50, s.min_p = 0.1f;
        for (uint32_t i = 0; i < V; i++) logits[i] = i % 3 == 0 ? NAN : -(float)(i % 7);
        logits[70] = 30;
        one_row(f, s);
        assert_int_equal(sample_one(f, isa), 70);
        for (uint32_t i = 0; i < V; i++) logits[i] = i % 3 == 0 ? NAN : -INFINITY;
        one_row(f, s);
        assert_int_equal(sample_one(f, isa), 0);
        logits[41] = INFINITY;
        one_row(f, s);
        assert_int_equal(sample_one(f, isa), 41);
    }
    fake_free(f);
}

static void test_state(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    struct fake *f = new_fake(33);
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    logits[17] = 40;
    one_row(f, plain_sampling(0));
    sample_one(f, isa);
    assert_int_equal(f->slots[2].n_known, 6);
    assert_int_equal(f->slots[2].finish, RT_RUNNING);
    assert_int_equal(f->batch.tokens[2 * 64 + 5], 17);
    one_row(f, plain_sampling(0));
    f->slots[2].n_limit = 6;
    sample_one(f, isa);
    assert_int_equal(f->slots[2].finish, RT_FINISH_LENGTH);
    one_row(f, plain_sampling(0));
    f->requests[2].n_stop = 2, f->requests[2].stop[1] = 17;
    f->slots[2].n_limit = 6; /* stopping comes first */
    sample_one(f, isa);
    assert_int_equal(f->slots[2].finish, RT_FINISH_STOP);
    one_row(f, plain_sampling(0));
    f->requests[2].n_stop = 2, f->requests[2].stop[1] = 17;
    f->requests[2].sampling.ignore_eos = 1;
    sample_one(f, isa);
    assert_int_equal(f->slots[2].finish, RT_RUNNING);
    fake_free(f);
}

static void test_penalties(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    struct fake *f = new_fake(12);
    float *l = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    /* prompt 0 1 2, output 3 0 */
    static const struct {
        float repetition, presence, frequency, logits[12];
        int32_t want;
    } cases[] = {
        {2, 0, 0, {5, 1, 1, 1, 2.6f}, 4}, /* 5 / 2 < 2.6 */
        {2, 0, 0, {5, 1, 1, 1, 2.4f}, 0},
        {2, 0, 0, {-1, -1, -1, -1, -1.9f, -9, -9, -9, -9, -9, -9, -9}, 4}, /* -1 * 2 < -1.9 */
        {1, 1, 0, {0, 5, 0, 5.5f}, 1},       /* 3 is output, 1 is prompt only */
        {1, 0, 0.5f, {5, 4.7f, 0, 4.9f}, 1}, /* 0 and 3 lose 0.5 each */
        {1, -1, 0, {0, 0.5f, 0, 0}, 0},      /* a reward */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rt_sampling s = plain_sampling(0);
        s.repetition_penalty = cases[i].repetition, s.presence_penalty = cases[i].presence;
        s.frequency_penalty = cases[i].frequency;
        memcpy(l, cases[i].logits, sizeof cases[i].logits);
        one_row(f, s);
        assert_int_equal(sample_one(f, isa), cases[i].want);
    }
    /* the frequency counts occurrences */
    struct rt_sampling s = plain_sampling(0);
    s.frequency_penalty = 0.5f;
    memset(l, 0, 12 * sizeof *l);
    l[7] = 5, l[8] = 4.2f;
    one_row(f, s);
    f->batch.tokens[2 * 64 + 3] = 7, f->batch.tokens[2 * 64 + 4] = 7;
    assert_int_equal(sample_one(f, isa), 8);
    fake_free(f);
}

/* ---- biases, stop ids that come too early, the most likely tokens ---- */

static void test_biases(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    uint32_t V = 70;
    struct fake *f = new_fake(V);
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    struct rt_token_value biases[3 * RT_MAX_BIASES] = {0};
    memset(logits, 0, V * sizeof *logits);
    logits[8] = 5, logits[66] = 3;
    f->batch.lists = &(struct rt_lists){.biases = biases};
    biases[2 * RT_MAX_BIASES] = (struct rt_token_value){66, 2.5f};
    biases[2 * RT_MAX_BIASES + 1] = (struct rt_token_value){20, 4};
    float raw = 0;
    for (int temperature = 0; temperature < 2; temperature++) {
        for (uint16_t n = 0; n < 3; n++) {
            struct rt_sampling s = plain_sampling((float)temperature);
            s.top_k = 1;
            one_row(f, s);
            f->requests[2].n_biases = n;
            assert_int_equal(sample_one(f, isa), n == 0 ? 8 : 66);
            if (n == 1) raw = f->batch.logprobs[2 * 64 + 5];
            if (n == 2) assert_true(f->batch.logprobs[2 * 64 + 5] == raw); /* of raw logits */
        }
    }
    biases[2 * RT_MAX_BIASES] = (struct rt_token_value){8, -100};
    one_row(f, plain_sampling(0));
    f->requests[2].n_biases = 1;
    assert_int_equal(sample_one(f, isa), 66);
    fake_free(f);
}

/* The slot has two output tokens: with min_tokens 3 the third may not be a stop id, and none of
 * the later ones is barred. */
static void test_min_tokens(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    struct fake *f = new_fake(70);
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    memset(logits, 0, 70 * sizeof *logits);
    logits[8] = 5, logits[66] = 4, logits[3] = 3;
    for (uint32_t min = 0; min < 5; min++) {
        one_row(f, plain_sampling(0));
        f->requests[2].min_tokens = min;
        f->requests[2].n_stop = 2;
        f->requests[2].stop[0] = 8;
        f->requests[2].stop[1] = 66;
        assert_int_equal(sample_one(f, isa), min < 3 ? 8 : 3);
        assert_int_equal(f->slots[2].finish, min < 3 ? RT_FINISH_STOP : RT_RUNNING);
    }
    fake_free(f);
}

static void test_most_likely(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    enum { V = 2 * LM_BLOCK + 9, N_TOP = 7, AT = 2 * 64 + 5 };
    struct fake *f = new_fake(V);
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    struct rt_token_value *tops = calloc((size_t)3 * 64 * N_TOP, sizeof *tops);
    f->batch.lists = &(struct rt_lists){.tops = tops, .n_top = N_TOP};
    for (int round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < V; i++) logits[i] = roundf(fake_random(f) * 4) / 4; /* ties */
        logits[round] = -INFINITY;
        one_row(f, plain_sampling(0));
        f->requests[2].n_top = (uint16_t)(round % (N_TOP + 1));
        const int32_t id = sample_one(f, isa);
        const struct rt_token_value *top = tops + (size_t)AT * N_TOP;
        for (uint32_t k = 0; k < f->requests[2].n_top; k++) {
            uint32_t before = 0;
            for (uint32_t i = 0; i < V; i++)
                before += logits[i] > logits[top[k].id] ||
                          (logits[i] == logits[top[k].id] && (int32_t)i < top[k].id);
            assert_int_equal(before, k);
        }
        if (f->requests[2].n_top > 0) {
            assert_int_equal(top[0].id, id);
            assert_true(top[0].value == f->batch.logprobs[AT]);
        }
    }
    free(tops);
    fake_free(f);
}

/* ---- filters against a sort ---- */

static const float *sort_logits;
static int by_logit(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (sort_logits[i] != sort_logits[j]) return sort_logits[i] > sort_logits[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* kept[i] by the definition; returns false when rounding could decide the cut. */
static bool kept_by_sort(const struct rt_sampling *s, const float *logits, uint32_t V, bool *kept) {
    uint32_t *order = malloc(V * sizeof *order), n = V;
    double *p = malloc(V * sizeof *p), total = 0, before = 0;
    bool clear = true;
    for (uint32_t i = 0; i < V; i++) order[i] = i, kept[i] = false;
    sort_logits = logits;
    qsort(order, V, sizeof *order, by_logit);
    for (uint32_t i = 0; i < V; i++) {
        p[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)s->temperature);
        if (s->min_p > 0 && fabs(p[i] / (double)s->min_p - 1) < 1e-5) clear = false;
        if (p[i] < (double)s->min_p && n == V) n = i;
    }
    if (s->top_k > 0 && (uint32_t)s->top_k < n) n = (uint32_t)s->top_k;
    for (uint32_t i = 0; i < n; i++) total += p[i];
    for (uint32_t i = 0; i < n; i++) {
        if (s->top_p < 1 && fabs(before / total - (double)s->top_p) < 1e-6) clear = false;
        if (s->top_p < 1 && before / total >= (double)s->top_p) break;
        kept[order[i]] = true;
        before += p[i];
    }
    free(order), free(p);
    return clear;
}

/* Draws with many seeds: only tokens that the definition keeps, and every one of them that should
 * come up twenty times or more. */
static void filter_case(struct fake *f, const struct cpu_isa *isa, struct rt_sampling s,
                        uint32_t draws) {
    uint32_t V = f->config.spec.vocab;
    const float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    bool *kept = malloc(V * sizeof *kept), *seen = calloc(V, sizeof *seen);
    bool clear = kept_by_sort(&s, logits, V, kept);
    for (uint32_t i = 0; clear && i < draws; i++) {
        s.seed = i;
        one_row(f, s);
        int32_t id = sample_one(f, isa);
        assert_true(id >= 0 && (uint32_t)id < V && kept[id]);
        seen[id] = true;
    }
    double total = 0;
    for (uint32_t i = 0; i < V; i++)
        if (kept[i]) total += exp((double)logits[i] / (double)s.temperature);
    for (uint32_t i = 0; clear && i < V; i++)
        if (kept[i] && exp((double)logits[i] / (double)s.temperature) * draws > 20 * total)
            assert_true(seen[i]);
    free(kept), free(seen);
}

static void test_filters(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    for (uint32_t V = 3; V < 400; V = V * 2 + 1) {
        struct fake *f = new_fake(V);
        float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
        for (uint32_t i = 0; i < V; i++) logits[i] = roundf(fake_random(f) * 4) / 4; /* ties */
        for (int i = 0; i < 60; i++) {
            struct rt_sampling s = plain_sampling(0.5f + 0.5f * (float)(i % 3));
            s.top_k = (int32_t[]){0, 1, 2, 5, 40, -1, 1000}[i % 7];
            s.top_p = (float[]){1, 0.95f, 0.5f, 0.1f, 0.001f}[i % 5];
            s.min_p = (float[]){0, 0, 0.05f, 0.3f}[i % 4];
            filter_case(f, isa, s, i % 10 == 0 ? 3000 : 300);
        }
        fake_free(f);
    }
}

/* ---- the draw ---- */

/* Upper 0.1 % point of chi-square with n degrees of freedom (Wilson and Hilferty). */
static double chi_square_limit(double n) {
    double z = 3.09, c = 2 / (9 * n);
    return n * pow(1 - c + z * sqrt(c), 3);
}

static void test_distribution(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    enum { V = 41, DRAWS = 40000 };
    for (int by_position = 0; by_position < 2; by_position++) {
        struct fake *f = new_fake(V);
        float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
        for (uint32_t i = 0; i < V; i++) logits[i] = fake_random(f);
        struct rt_sampling s = plain_sampling(0.8f);
        double p[V], total = 0, chi = 0;
        for (uint32_t i = 0; i < V; i++) total += p[i] = exp((double)logits[i] / (double)0.8f);
        uint32_t seen[V] = {0};
        struct sampling buffers = sampling_layout(f->scratch, V);
        int32_t tokens[3] = {0};
        for (uint32_t i = 0; i < DRAWS; i++) {
            if (!by_position) s.seed = i;
            struct sampling_context c = {.params = &s, .tokens = tokens, .n_prompt = 3};
            c.n_known = 3 + (by_position ? i : 0);
            seen[sampling_choose(isa, &c, logits, V, &buffers)]++;
        }
        for (uint32_t i = 0; i < V; i++) {
            double want = DRAWS * p[i] / total;
            chi += (seen[i] - want) * (seen[i] - want) / want;
        }
        print_message("chi-square %.1f, limit %.1f\n", chi, chi_square_limit(V - 1));
        assert_true(chi < chi_square_limit(V - 1));
        fake_free(f);
    }
}

/* The shortcut past tokens that cannot win changes nothing: the plain argmax of logit + noise. */
static void test_shortcut(void **state) {
    (void)state;
    const struct cpu_isa *isa = cpu_isa_select(NULL);
    enum { V = 1003 };
    struct fake *f = new_fake(V);
    float *logits = fake_in(f, OP_SAMPLE, SAMPLE_LOGITS);
    struct sampling buffers = sampling_layout(f->scratch, V);
    for (uint32_t i = 0; i < 500; i++) {
        struct rt_sampling s = plain_sampling(i % 2 ? 1 : 5);
        s.seed = (uint64_t)i << 33;
        float max = -INFINITY, best = -INFINITY;
        for (uint32_t j = 0; j < V; j++) {
            logits[j] = fake_random(f) * 2;
            if (logits[j] > max) max = logits[j];
        }
        uint32_t want = 0;
        for (uint32_t j = 0; j < V; j++) {
            uint32_t words[4];
            rng_quad(s.seed, 7, j / 4, words);
            float score = (logits[j] - max) / s.temperature + rng_gumbel(rng_uniform(words[j % 4]));
            if (score > best) best = score, want = j;
        }
        int32_t tokens[10] = {0};
        struct sampling_context c = {.params = &s, .tokens = tokens, .n_prompt = 3, .n_known = 10};
        assert_int_equal(sampling_choose(isa, &c, logits, V, &buffers), want);
    }
    fake_free(f);
}

/* Philox4x32-10 against the known answers that its authors publish (Random123, kat_vectors). */
static void test_philox(void **state) {
    (void)state;
    static const uint32_t cases[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        rng_philox(&cases[i][4], &cases[i][0], out);
        assert_memory_equal(out, &cases[i][6], sizeof out);
    }
}

static void test_noise(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t word = i < 1000 ? i : i < 2000 ? -i : i * 2654435761u;
        float v = rng_uniform(word);
        assert_true(v > 0 && v < 1);
        double want = -log(-log1p(-(double)v)), got = (double)rng_gumbel(v);
        assert_true(fabs(got - want) < 4e-7 * (1 + fabs(want)));
        assert_true(fabs((double)rng_log(v) - log((double)v)) <= 3e-7 * fabs(log((double)v)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),      cmocka_unit_test(test_noise),
        cmocka_unit_test(test_greedy),      cmocka_unit_test(test_not_numbers),
        cmocka_unit_test(test_state),       cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_biases),      cmocka_unit_test(test_min_tokens),
        cmocka_unit_test(test_most_likely), cmocka_unit_test(test_filters),
        cmocka_unit_test(test_shortcut),    cmocka_unit_test(test_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
