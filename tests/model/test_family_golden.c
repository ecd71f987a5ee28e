/* The golden models, from config.json to logits: what config, graph and weights say about a model
 * is what transformers makes of it. The plain interpreter of tests/reference stands in for
 * kernels. */
#include "base/jsonio.h"
#include "model/model.h"
#include "model/weights.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

#include "model/model_util.h"
#include "reference/reference.h"

#define GOLDEN "tests/golden/models"

/* Both sides compute in float32 (ours sums in double): differences come from rounding only. */
static const double LOGPROB_TOLERANCE = 2e-4, MARGIN_TOLERANCE = 5e-4;

enum { MAX_TOKENS = 400, N_NEW = 24 };

struct golden_case {
    int32_t tokens[MAX_TOKENS]; /* the prompt, then the continuation */
    uint32_t n_prompt;
    double logprobs[N_NEW], margins[N_NEW];
};

static void read_case(const json_t *o, struct golden_case *c) {
    const json_t *prompt = json_object_get(o, "prompt"), *ids = json_object_get(o, "ids");
    c->n_prompt = (uint32_t)json_array_size(prompt);
    assert_in_range(c->n_prompt, 1, MAX_TOKENS - N_NEW);
    assert_int_equal(json_array_size(ids), N_NEW);
    for (uint32_t i = 0; i < c->n_prompt; i++)
        c->tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    for (uint32_t i = 0; i < N_NEW; i++) {
        c->tokens[c->n_prompt + i] = (int32_t)json_integer_value(json_array_get(ids, i));
        c->logprobs[i] = json_number_value(json_array_get(json_object_get(o, "logprobs"), i));
        c->margins[i] = json_number_value(json_array_get(json_object_get(o, "margins"), i));
    }
}

/* Step i: the id with the best logit, its log-probability, its distance to the second best. False
 * (and a line in `why`) where they are not the reference's. */
static bool same_step(const struct golden_case *c, uint32_t i, const double *logits, uint32_t vocab,
                      char why[200]) {
    int32_t want = c->tokens[c->n_prompt + i];
    uint32_t best = 0;
    double second = -INFINITY, sum = 0;
    for (uint32_t v = 1; v < vocab; v++)
        if (logits[v] > logits[best]) best = v;
    for (uint32_t v = 0; v < vocab; v++) {
        if (v != best) second = fmax(second, logits[v]);
        sum += exp(logits[v] - logits[best]);
    }
    double logprob = logits[want] - logits[best] - log(sum);
    double margin = logits[best] - second;
    snprintf(why, 200, "prompt of %u, step %u: want %d (%f, margin %f), have %u (%f, margin %f)",
             c->n_prompt, i, want, c->logprobs[i], c->margins[i], best, logprob, margin);
    return (best == (uint32_t)want || c->margins[i] <= MARGIN_TOLERANCE) &&
           fabs(logprob - c->logprobs[i]) <= LOGPROB_TOLERANCE &&
           fabs(margin - c->margins[i]) <= MARGIN_TOLERANCE;
}

/* Adds a tensor of the checkpoint to *at, as float32, whatever the graph wants: the reference does
 * not round them again. */
static int load_tensor(struct diag *d, const struct safetensors *files, const char *name,
                       const struct weight_block *b, const struct weight_part *p, double **at) {
    const struct weight_want want = {.name = name,
                                     .dtype = DTYPE_F32,
                                     .n_dims = b->n_dims,
                                     .rows = p->rows,
                                     .cols = b->cols,
                                     .source = p->source};
    const uint64_t n = (uint64_t)p->rows * (b->n_dims == 2 ? b->cols : 1);
    struct weights *w;
    TRY(weights_load(d, files, &want, 1, NULL, &w));
    for (uint64_t k = 0; k < n; k++) *(*at)++ = (double)((const float *)weights_at(w, 0))[k];
    weights_free(w);
    return QN_OK;
}

static int load_part(struct diag *d, const struct kgraph *g, const struct safetensors *files,
                     const struct weight_block *b, const struct weight_part *p, double **at) {
    if (p->stack == 0) return load_tensor(d, files, p->name, b, p, at);
    for (uint32_t i = 0; i < p->stack; i++) {
        char *name;
        TRY(weight_stack_name(d, g->arena, p->name, i, &name));
        TRY(load_tensor(d, files, name, b, p, at));
    }
    return QN_OK;
}

static int fill_weights(struct diag *d, struct reference *r, const struct safetensors *files) {
    for (size_t i = 0; i < r->g->tensors.n; i++) {
        const struct tensor *t = &r->g->tensors.items[i];
        if (t->role != TENSOR_WEIGHT) continue;
        double *at = reference_make(r, (int32_t)i, 0, 0)->at;
        for (uint32_t p = t->first_part; p < t->first_part + t->n_parts; p++)
            TRY(load_part(d, r->g, files, &r->g->blocks.items[t->block], &r->g->parts.items[p],
                          &at));
    }
    return QN_OK;
}

/* Row t of the graph is token t of the request; the last ones want logits. */
static const double *run_reference(struct reference *r, const struct golden_case *c) {
    static int32_t slot[MAX_TOKENS], position[MAX_TOKENS], logit_row[N_NEW];
    static uint64_t first_row[2];
    const uint32_t rows = r->g->n_rows;
    for (uint32_t i = 0; i < rows; i++) position[i] = (int32_t)i;
    for (uint32_t i = 0; i < N_NEW; i++) logit_row[i] = (int32_t)(rows - N_NEW + i);
    first_row[1] = rows;
    r->n_rows = rows;
    r->n_logit_rows = N_NEW;
    r->token = c->tokens;
    r->slot = slot;
    r->position = position;
    r->logit_row = logit_row;
    r->first_row = first_row;
    r->requests[0].n_prompt = c->n_prompt;
    reference_run(r);
    for (size_t i = 0; i < r->g->ops.n; i++)
        if (r->g->ops.items[i].kind == OP_LM_HEAD)
            return r->tensors[r->g->ops.items[i].out[LM_OUT_LOGITS]].at;
    return NULL;
}

/* All steps at once: row n_prompt - 1 + i sees the tokens before step i. */
static bool same_case(const struct model *m, const struct golden_case *c, char why[200]) {
    struct diag d = {0};
    struct arena arena = {0};
    struct kgraph g;
    struct reference r;
    uint32_t rows = c->n_prompt + N_NEW - 1;
    bool same = true;
    if (model_build_graph(&d, m, &arena, rows, N_NEW, m->spec.max_position, false, &g) != QN_OK ||
        kgraph_verify(&d, &g) != QN_OK || reference_init(&d, &r, &g, 1) != QN_OK ||
        fill_weights(&d, &r, m->files) != QN_OK)
        UTIL_FAIL("%s: %s", m->dir, d.message);
    const double *logits = run_reference(&r, c);
    for (uint32_t i = 0; same && i < N_NEW; i++)
        same = same_step(c, i, logits + (uint64_t)i * m->spec.vocab, m->spec.vocab, why);
    reference_fini(&r);
    kgraph_fini(&g);
    arena_fini(&arena);
    return same;
}

static struct model *open_golden(const char *name, json_t **cases) {
    struct diag d = {0};
    struct model *m;
    char dir[300], path[320];
    snprintf(dir, sizeof dir, GOLDEN "/%s", name);
    snprintf(path, sizeof path, "%s/cases.json", dir);
    if (model_open(&d, dir, NULL, &m) != QN_OK || jsonio_load(&d, path, 1 << 20, cases) != QN_OK)
        UTIL_FAIL("%s", d.message);
    return m;
}

static int check_model(const char *name) {
    json_t *root, *o;
    struct model *m = open_golden(name, &root);
    size_t i;
    int n = 0;
    json_array_foreach(json_object_get(root, "cases"), i, o) {
        struct golden_case c;
        char why[200];
        read_case(o, &c);
        if (!same_case(m, &c, why)) UTIL_FAIL("%s: %s", name, why);
        n++;
    }
    json_decref(root);
    model_free(m);
    return n;
}

static void golden_models_agree(void **state) {
    (void)state;
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    int n_models = 0, n_cases = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        n_cases += check_model(e->d_name);
        n_models++;
    }
    closedir(dir);
    print_message("%d models, %d cases\n", n_models, n_cases);
    assert_int_equal(n_models, 31);
    assert_int_equal(n_cases, 123);
}

/* The cases notice each field of the spec that they are there for: with a wrong one, the last case
 * (the longest prompt) does not come out. */
static void golden_models_notice(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t field; /* offset in the spec */
        uint32_t wrong;
    } cases[] = {
        {"mistral-window", offsetof(struct model_spec, sliding_window), 0},
        {"mistral-window", offsetof(struct model_spec, sliding_window), 17},
        {"qwen2-window", offsetof(struct model_spec, sliding_window), 23},
        {"qwen2", offsetof(struct model_spec, sliding_window), 8},
        {"qwen2-mixed", offsetof(struct model_spec, sees_all), 0}, /* all slide */
        {"qwen2-mixed", offsetof(struct model_spec, sees_all), 2}, /* layers 0 and 1 exchanged */
        {"qwen3-mixed", offsetof(struct model_spec, sees_all), 5}, /* each layer the other kind */
        {"qwen3-mixed", offsetof(struct model_spec, sliding_window), 139},
        {"mistral-mixed", offsetof(struct model_spec, sees_all), 0},
        {"qwen2", offsetof(struct model_spec, qkv_bias), 0},
        {"qwen3", offsetof(struct model_spec, qk_norm), 0},
        {"qwen3-mqa", offsetof(struct model_spec, o_bias), 0},
        {"llama-linear", offsetof(struct model_spec, mlp_bias), 0},
        {"llama-linear", offsetof(struct model_spec, rope_kind), ROPE_DEFAULT},
        {"llama3-rope-scaling", offsetof(struct model_spec, rope_kind), ROPE_DEFAULT},
        {"llama3-rope-scaling", offsetof(struct model_spec, rope_kind), ROPE_LINEAR},
        {"llama3-rope-parameters", offsetof(struct model_spec, rope_kind), ROPE_DEFAULT},
        {"llama3-rope-parameters", offsetof(struct model_spec, rope_original_max), 256},
        {"qwen3-moe", offsetof(struct model_spec, experts.normed), 0},
        {"qwen3-moe", offsetof(struct model_spec, experts.top_k), 2},
        {"qwen2-moe", offsetof(struct model_spec, experts.normed), 1},
        {"qwen2-moe-normed", offsetof(struct model_spec, experts.normed), 0},
        {"mixtral", offsetof(struct model_spec, experts.normed), 0},
        {"mixtral-window", offsetof(struct model_spec, sliding_window), 0},
        {"llama-yarn", offsetof(struct model_spec, rope_kind), ROPE_DEFAULT},
        {"llama-yarn", offsetof(struct model_spec, rope_scale), 0x3f800000 /* 1 */},
        {"mistral-yarn", offsetof(struct model_spec, rope_scale), 0x3f800000},
        {"qwen2-dynamic", offsetof(struct model_spec, rope_kind), ROPE_DEFAULT},
        {"qwen2-dynamic", offsetof(struct model_spec, rope_original_max), 128},
        {"llama-longrope", offsetof(struct model_spec, rope_original_max), 0},
        {"llama-longrope", offsetof(struct model_spec, rope_original_max), 512},
        {"deepseek-v2-lite", offsetof(struct model_spec, rms_eps), 0x358637bd /* 1e-6 */},
        {"deepseek-v2-yarn", offsetof(struct model_spec, latent.scale), 0x3e64f92e /* 0.2236 */},
        {"deepseek-v2-yarn", offsetof(struct model_spec, qkv_bias), 0},
        {"deepseek-v2-f16", offsetof(struct model_spec, rope_scale), 0x3f800000},
        {"deepseek-v2-f16", offsetof(struct model_spec, experts.groups), 6},
        {"deepseek-v2-f16", offsetof(struct model_spec, experts.top_groups), 3},
        {"deepseek-v2-f16", offsetof(struct model_spec, experts.scale), 0x3f800000},
        {"deepseek-v2-lite", offsetof(struct model_spec, experts.normed), 1},
        {"deepseek-v2-lite", offsetof(struct model_spec, experts.top_k), 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root;
        struct golden_case c;
        char why[200];
        struct model *m = open_golden(cases[i].name, &root);
        const json_t *list = json_object_get(root, "cases");
        read_case(json_array_get(list, json_array_size(list) - 1), &c);
        memcpy((char *)&m->spec + cases[i].field, &cases[i].wrong, sizeof cases[i].wrong);
        if (same_case(m, &c, why)) UTIL_FAIL("%s: change %zu goes unnoticed", cases[i].name, i);
        json_decref(root);
        model_free(m);
    }
}

static void golden_specs(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t dtype, head_dim, n_kv_heads, tied, rope_kind, sliding_window, n_eos;
    } want[] = {
        {"qwen3", DTYPE_BF16, 10, 3, 0, ROPE_DEFAULT, 0, 1},
        {"qwen3-tied", DTYPE_F32, 32, 2, 1, ROPE_DEFAULT, 0, 2},
        {"qwen3-mqa", DTYPE_F16, 16, 1, 0, ROPE_DEFAULT, 0, 1},
        {"qwen2", DTYPE_F16, 16, 2, 1, ROPE_DEFAULT, 0, 1},
        {"qwen2-window", DTYPE_BF16, 8, 3, 0, ROPE_DEFAULT, 24, 1},
        {"qwen2-mixed", DTYPE_BF16, 8, 3, 0, ROPE_DEFAULT, 24, 1},
        {"qwen3-mixed", DTYPE_F16, 16, 2, 0, ROPE_DEFAULT, 140, 1},
        {"mistral-mixed", DTYPE_BF16, 8, 3, 0, ROPE_DEFAULT, 40, 1},
        {"llama2-mha", DTYPE_F32, 16, 3, 0, ROPE_DEFAULT, 0, 1},
        {"llama3-rope-scaling", DTYPE_BF16, 8, 3, 0, ROPE_LLAMA3, 0, 1},
        {"llama3-rope-parameters", DTYPE_F16, 14, 4, 0, ROPE_LLAMA3, 0, 1},
        {"llama-linear", DTYPE_BF16, 8, 3, 0, ROPE_LINEAR, 0, 1},
        {"mistral-window", DTYPE_BF16, 16, 3, 0, ROPE_DEFAULT, 16, 1},
        {"mistral", DTYPE_F32, 8, 2, 0, ROPE_DEFAULT, 0, 1},
        {"llama-yarn", DTYPE_F32, 16, 3, 0, ROPE_GIVEN, 0, 1},
        {"qwen2-dynamic", DTYPE_F32, 8, 3, 0, ROPE_DYNAMIC, 0, 1},
        {"mistral-longrope", DTYPE_F16, 16, 3, 0, ROPE_GIVEN, 0, 1},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        struct diag d = {0};
        struct model *m;
        char dir[200];
        snprintf(dir, sizeof dir, GOLDEN "/%s", want[i].name);
        if (model_open(&d, dir, NULL, &m) != QN_OK) UTIL_FAIL("%s", d.message);
        assert_int_equal(m->spec.weight_dtype, want[i].dtype);
        assert_int_equal(m->spec.head_dim, want[i].head_dim);
        assert_int_equal(m->spec.n_kv_heads, want[i].n_kv_heads);
        assert_int_equal(m->spec.tied, want[i].tied);
        assert_int_equal(m->spec.rope_kind, want[i].rope_kind);
        assert_int_equal(m->spec.sliding_window, want[i].sliding_window);
        assert_int_equal(m->spec.n_eos, want[i].n_eos);
        model_free(m);
    }
}

/* --dtype decides over the file. */
static void dtype_can_be_forced(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        int rc;
        uint32_t want;
    } cases[] = {
        {"auto", QN_OK, DTYPE_BF16}, {"float16", QN_OK, DTYPE_F16},
        {"half", QN_OK, DTYPE_F16},  {"float32", QN_OK, DTYPE_F32},
        {"float", QN_OK, DTYPE_F32}, {"bfloat16", QN_OK, DTYPE_BF16},
        {"int8", QN_EINVAL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diag d = {0};
        struct model *m;
        struct model_options o = {.dtype = cases[i].dtype};
        assert_int_equal(model_open(&d, GOLDEN "/qwen3", &o, &m), cases[i].rc);
        if (cases[i].rc == QN_OK)
            assert_int_equal(m->spec.weight_dtype, cases[i].want);
        else
            assert_string_equal(d.message,
                                "dtype: want auto, bfloat16, float16 or float32, have 'int8'");
        model_free(m);
    }
}

/* A golden model's directory under another config: tie_word_embeddings left out, or false. */
static void make_untold(const char *golden, bool say_false, char dir[64]) {
    struct diag d = {0};
    json_t *config;
    char path[100], target[400], here[200];
    util_make_dir(dir);
    snprintf(path, sizeof path, GOLDEN "/%s/config.json", golden);
    if (jsonio_load(&d, path, 1 << 20, &config) != QN_OK) UTIL_FAIL("%s", d.message);
    json_object_del(config, "tie_word_embeddings");
    if (say_false) json_object_set_new(config, "tie_word_embeddings", json_false());
    char *text = json_dumps(config, 0);
    util_write_text(dir, "config.json", text);
    free(text);
    json_decref(config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(target, sizeof target, "%s/" GOLDEN "/%s/model.safetensors", getcwd(here, sizeof here),
             golden);
    assert_int_equal(symlink(target, path), 0);
}

/* A config that does not say whether the embeddings are tied: the checkpoint does. One that says
 * they are not wants a head. */
static void the_checkpoint_says_tied(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", NULL};
    static const struct {
        const char *golden;
        bool say_false;
        int code;
        uint32_t tied;
    } cases[] = {
        {"qwen3-tied", false, QN_OK, 1},
        {"qwen3", false, QN_OK, 0},
        {"qwen3-tied", true, QN_EFORMAT, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diag d = {0};
        struct model *m;
        char dir[64];
        make_untold(cases[i].golden, cases[i].say_false, dir);
        assert_int_equal(model_open(&d, dir, NULL, &m), cases[i].code);
        if (m != NULL)
            assert_int_equal(m->spec.tied, cases[i].tied);
        else
            assert_non_null(strstr(d.message, "lm_head.weight is missing"));
        model_free(m);
        util_remove_dir(dir, files);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_specs),
        cmocka_unit_test(golden_models_agree),
        cmocka_unit_test(golden_models_notice),
        cmocka_unit_test(dtype_can_be_forced),
        cmocka_unit_test(the_checkpoint_says_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
