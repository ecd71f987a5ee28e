/* A real program with real kernels: a small random decoder goes through the compiler's stages, then
 * the threaded backend must give the bits that the interpreter gives, whatever the workers, the
 * launch policy, the chunks of prompts, the operators that attention is made of, and the requests
 * beside it. */
#include "task/program_make.h"
#include "runtime/rt_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_VARIANTS = 3, N_REQUESTS = 5, MAX_OUT = 12 };

static const uint32_t variant_rows[N_VARIANTS] = {1, 4, 16};

static struct model_spec small_spec(enum dtype weights) {
    return (struct model_spec){
        .n_layers = 2,
        .hidden = 48,
        .intermediate = 80,
        .vocab = 700,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .max_position = 512,
        .rms_eps = 1e-6f,
        .qk_norm = 1,
        .tied = 1,
        .weight_dtype = weights,
        .rope_theta = 10000,
        .bos = -1,
    };
}

/* ---- the model ---- */

struct build {
    struct diag *d;
    struct kgraph *g;
    int layer;
};

static int32_t weight(struct build *b, const char *name, uint64_t rows, uint64_t cols) {
    char *full;
    int32_t index;
    EXPECT_OK(b->d, arena_printf(b->d, b->g->arena, &full, "%d.%s", b->layer, name));
    EXPECT_OK(b->d, kgraph_weight(b->d, b->g, full, cols ? b->g->spec.weight_dtype : DTYPE_F32,
                                  cols ? 2 : 1, rows, cols, &index));
    return index;
}

static void none(int32_t *operands, int n) {
    for (int i = 0; i < n; i++) operands[i] = NO_TENSOR;
}

static int32_t op(struct build *b, enum op_kind kind, const int32_t *in, int32_t *out) {
    EXPECT_OK(b->d, kgraph_op(b->d, b->g, kind, b->layer, in, out));
    return out[0];
}

/* The projections as one matrix. */
static int32_t projections(struct build *b, uint64_t q, uint64_t kv) {
    char names[3][16];
    const char *const what[3] = {"q", "k", "v"};
    struct kgraph_part parts[3];
    int32_t t;
    for (int i = 0; i < 3; i++) {
        snprintf(names[i], sizeof names[i], "%d.%s", b->layer, what[i]);
        parts[i] = (struct kgraph_part){.name = names[i], .rows = i == 0 ? q : kv};
    }
    EXPECT_OK(b->d, kgraph_weight_joined(b->d, b->g, parts, 3, (enum dtype)b->g->spec.weight_dtype,
                                         2, b->g->spec.hidden, &t));
    return t;
}

static int32_t linear(struct build *b, const char *name, int32_t a, uint64_t cols, int32_t x) {
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT] = {NO_TENSOR, NO_TENSOR};
    none(in, OP_MAX_IN);
    in[LINEAR_A] = a;
    in[LINEAR_W] = weight(b, name, b->g->spec.hidden, cols);
    in[LINEAR_RESIDUAL] = x;
    return op(b, OP_LINEAR, in, out);
}

/* How attention is put together, with one row. */
enum form { WHOLE, SPLIT, STEP };

static int32_t layer(struct build *b, int32_t x, enum form form) {
    const struct model_spec *s = &b->g->spec;
    uint64_t hidden = s->hidden, q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT] = {NO_TENSOR, NO_TENSOR};
    none(in, OP_MAX_IN);
    in[QKV_X] = x;
    in[QKV_NORM] = weight(b, "norm", hidden, 0);
    const int32_t q_norm = weight(b, "qn", s->head_dim, 0),
                  k_norm = weight(b, "kn", s->head_dim, 0);
    int32_t cache, a;
    EXPECT_OK(b->d, kgraph_state(b->d, b->g, b->layer ? "kv1" : "kv0", &cache));
    int32_t attend[OP_MAX_IN], o[OP_MAX_OUT] = {NO_TENSOR, NO_TENSOR};
    none(attend, OP_MAX_IN);
    if (form == STEP) {
        in[QKV_LINEAR_W] = projections(b, q, kv);
        attend[HEADS_QKV] = op(b, OP_QKV_LINEAR, in, out);
        attend[HEADS_Q_NORM] = q_norm;
        attend[HEADS_K_NORM] = k_norm;
        o[JOINED_OUT_KV] = cache;
        a = op(b, OP_ATTENTION_STEP, attend, o);
    } else {
        in[QKV_WQ] = weight(b, "q", q, hidden);
        in[QKV_WK] = weight(b, "k", kv, hidden);
        in[QKV_WV] = weight(b, "v", kv, hidden);
        in[QKV_Q_NORM] = q_norm;
        in[QKV_K_NORM] = k_norm;
        out[QKV_OUT_KV] = cache;
        attend[ATTENTION_Q] = op(b, OP_QKV, in, out);
        attend[ATTENTION_KV] = cache;
        a = op(b, form == SPLIT ? OP_ATTENTION_SPLIT : OP_ATTENTION, attend, o);
    }
    if (form != WHOLE) {
        none(attend, OP_MAX_IN);
        attend[MERGE_PART] = a;
        o[0] = o[1] = NO_TENSOR;
        a = op(b, OP_ATTENTION_MERGE, attend, o);
    }
    x = linear(b, "o", a, q, x);
    int32_t mlp[OP_MAX_IN], h[OP_MAX_OUT] = {NO_TENSOR, NO_TENSOR};
    none(mlp, OP_MAX_IN);
    mlp[MLP_X] = x;
    mlp[MLP_NORM] = weight(b, "mn", hidden, 0);
    mlp[MLP_WG] = weight(b, "g", s->intermediate, hidden);
    mlp[MLP_WU] = weight(b, "u", s->intermediate, hidden);
    return linear(b, "d", op(b, OP_GATED_MLP, mlp, h), s->intermediate, x);
}

static void build_model(struct build *b, enum form form) {
    const struct model_spec *s = &b->g->spec;
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT] = {NO_TENSOR, NO_TENSOR};
    none(in, OP_MAX_IN);
    b->layer = -1;
    int32_t table = weight(b, "embed", s->vocab, s->hidden);
    in[EMBED_TABLE] = table;
    int32_t x = op(b, OP_EMBED, in, out);
    for (b->layer = 0; b->layer < (int)s->n_layers; b->layer++) x = layer(b, x, form);
    b->layer = -1;
    none(in, OP_MAX_IN);
    none(out, OP_MAX_OUT);
    in[LM_X] = x;
    in[LM_NORM] = weight(b, "final", s->hidden, 0);
    in[LM_W] = table;
    op(b, OP_LM_HEAD, in, out);
    int32_t sample[OP_MAX_IN], token[OP_MAX_OUT] = {NO_TENSOR, NO_TENSOR};
    none(sample, OP_MAX_IN);
    sample[SAMPLE_LOGITS] = out[LM_OUT_LOGITS];
    sample[SAMPLE_PART] = out[LM_OUT_PART];
    op(b, OP_SAMPLE, sample, token);
}

static struct prog_header *compile(const struct model_spec *spec, uint32_t n_workers,
                                   enum launch_policy launch, enum form form) {
    struct diag d = {0};
    struct arena arena = {0};
    struct kgraph kernels[N_VARIANTS];
    struct tgraph graphs[N_VARIANTS];
    const uint32_t n_slots = 8, max_model_len = 320;
    struct task_options options = {
        .device.n_workers = n_workers, .tasks_per_worker = 2, .launch = launch};
    int (*const stages[])(struct diag *, struct tgraph *) = {
        decompose, memory_plan, depend, event_fuse, normalize, linearize, place};
    for (int i = 0; i < N_VARIANTS; i++) {
        uint32_t rows = variant_rows[i], logits = rows < n_slots ? rows : n_slots;
        kgraph_init(&kernels[i], &arena, spec, rows, logits, max_model_len);
        struct build b = {.d = &d, .g = &kernels[i]};
        build_model(&b, i == 0 ? form : WHOLE);
        EXPECT_OK(&d, kgraph_verify(&d, &kernels[i]));
        tgraph_init(&graphs[i], &arena, &kernels[i], &options);
        for (size_t s = 0; s < sizeof stages / sizeof stages[0]; s++)
            EXPECT_OK(&d, stages[s](&d, &graphs[i]));
    }
    struct program_config config = {.target = TARGET_CPU,
                                    .n_ranks = 1,
                                    .n_workers = n_workers,
                                    .n_slots = n_slots,
                                    .max_model_len = max_model_len,
                                    .kv_block = 16,
                                    .kv_dtype = DTYPE_BF16,
                                    .model_path = ""};
    struct prog_header *p;
    EXPECT_OK(&d, program_make(&d, &config, graphs, N_VARIANTS, &p));
    ((struct kv_row *)PROG(p, KV))[1].dtype = DTYPE_F32; /* layers may have different formats */
    EXPECT_OK(&d, program_check(&d, "small", p, p->total_bytes));
    for (int i = 0; i < N_VARIANTS; i++) {
        tgraph_fini(&graphs[i]);
        kgraph_fini(&kernels[i]);
    }
    arena_fini(&arena);
    return p;
}

/* Random values of a part, the same for the same name whatever the program. */
static void fill_part(const struct prog_header *p, const struct prog_weight *w,
                      const struct prog_part *part, uint16_t *half) {
    const char *name = program_string(p, part->name);
    uint64_t seed = hash_bytes(name, strlen(name), 3);
    const uint64_t cols = w->n_dims == 2 ? w->cols : 1;
    float *full = (float *)(void *)half;
    for (uint64_t k = part->at * cols; k < (part->at + part->rows) * cols; k++) {
        float v = (float)gen_random(&seed, 2001) / 1000.0f - 1.0f;
        v = w->n_dims == 1 ? 1 + 0.1f * v : 0.5f * v;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        if (w->dtype == DTYPE_F32)
            full[k] = v;
        else
            half[k] = (uint16_t)(bits >> 16);
    }
}

static const void **make_weights(const struct prog_header *p) {
    uint64_t n = p->section[SECTION_WEIGHT].count;
    const void **weights = calloc(n, sizeof *weights);
    for (uint64_t i = 0; i < n; i++) {
        const struct prog_weight *w = &PROG(p, WEIGHT)[i];
        uint16_t *half = malloc((uint64_t)w->rows * (w->n_dims == 2 ? w->cols : 1) * 4);
        for (uint32_t k = w->first_part; k < w->first_part + w->n_parts; k++)
            fill_part(p, w, &PROG(p, PART)[k], half);
        weights[i] = half;
    }
    return weights;
}

static void free_weights(const struct prog_header *p, const void **weights) {
    for (uint64_t i = 0; i < p->section[SECTION_WEIGHT].count; i++) free((void *)weights[i]);
    free(weights);
}

/* ---- requests ---- */

struct output {
    uint32_t n;
    int32_t tokens[MAX_OUT];
    float logprobs[MAX_OUT];
};

/* Request i: prompts of 3 to 290 tokens (more than one attention piece), greedy and sampled. From
 * the first n_known tokens of its output on, whose log-probabilities are asked for. */
static int put_from(struct diag *d, struct mailbox *m, uint32_t i, const struct output *known,
                    uint32_t n_known, uint32_t *slot) {
    static const uint32_t lengths[N_REQUESTS] = {3, 290, 17, 60, 1};
    int32_t prompt[320];
    struct rt_request q = make_request(lengths[i] + n_known, MAX_OUT - i - n_known);
    for (uint32_t k = 0; k < lengths[i]; k++) prompt[k] = (int32_t)((k * 37 + i * 91 + 5) % 700);
    for (uint32_t k = 0; k < n_known; k++) prompt[lengths[i] + k] = known->tokens[k];
    q.n_scored = n_known;
    if (i % 2) {
        q.sampling.temperature = 0.8f;
        q.sampling.top_p = 0.95f;
        q.sampling.seed = 1000 + i;
    }
    return mailbox_submit(d, m, &q, prompt, slot);
}

static int put(struct diag *d, struct mailbox *m, uint32_t i, uint32_t *slot) {
    return put_from(d, m, i, NULL, 0, slot);
}

static void take(struct mailbox *m, uint32_t slot, struct output *out) {
    struct diag d = {0};
    struct mailbox_view v;
    EXPECT_OK(&d, mailbox_poll(&d, m, slot, &v));
    assert_int_equal(v.finish, RT_FINISH_LENGTH);
    assert_true(v.n_out > 0 && v.n_out <= MAX_OUT);
    out->n = v.n_out;
    memcpy(out->tokens, v.tokens, v.n_out * 4);
    memcpy(out->logprobs, v.logprobs, v.n_out * 4);
    for (uint32_t i = 0; i < v.n_out; i++)
        assert_true(v.tokens[i] >= 0 && v.tokens[i] < 700 && isfinite(v.logprobs[i]) &&
                    v.logprobs[i] <= 0);
    EXPECT_OK(&d, mailbox_release(&d, m, slot));
}

static void assert_same(const struct output *a, const struct output *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->tokens, b->tokens, a->n * 4);
    assert_memory_equal(a->logprobs, b->logprobs, a->n * 4);
}

/* Each request alone, on the interpreter of a one-worker program: what all others are held to. */
static void run_alone(const struct model_spec *spec, struct output *out) {
    struct diag d = {0};
    struct prog_header *p = compile(spec, 1, LAUNCH_HYBRID, SPLIT);
    const void **weights = make_weights(p);
    struct cpu_config config = {.program = p, .weights = weights};
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct task_sim sim;
        uint32_t slot;
        EXPECT_OK(&d, task_sim_open(&d, &config, &sim));
        EXPECT_OK(&d, put(&d, &sim.core.mailbox, i, &slot));
        EXPECT_OK(&d, task_sim_run(&d, &sim));
        take(&sim.core.mailbox, slot, &out[i]);
        task_sim_close(&sim);
    }
    free_weights(p, weights);
    free(p);
}

/* All requests as one batch, each from 1 to 4 tokens of its output on: the log-probabilities of
 * these, rows of one chunk, are those that they had one after the other, and what a greedy request
 * goes on with is the same. */
static void run_scored(struct cpu_backend *b, const struct output *want) {
    struct diag d = {0};
    uint32_t slots[N_REQUESTS];
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        EXPECT_OK(&d, put_from(&d, cpu_backend_mailbox(b), i, &want[i], 1 + i % 4, &slots[i]));
    EXPECT_OK(&d, cpu_backend_run(&d, b));
    EXPECT_OK(&d, cpu_backend_check(&d, b));
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const uint32_t n = 1 + i % 4;
        struct mailbox_view v;
        struct output rest = {.n = want[i].n - n}, got;
        EXPECT_OK(&d, mailbox_poll(&d, cpu_backend_mailbox(b), slots[i], &v));
        assert_int_equal(v.n_scored, n);
        assert_memory_equal(v.scored, want[i].logprobs, n * 4);
        take(cpu_backend_mailbox(b), slots[i], &got);
        memcpy(rest.tokens, want[i].tokens + n, rest.n * 4);
        memcpy(rest.logprobs, want[i].logprobs + n, rest.n * 4);
        if (i % 2 == 0) assert_same(&got, &rest);
    }
}

/* All requests as one batch on the backend. */
static void run_together(const struct model_spec *spec, uint32_t n_workers,
                         enum launch_policy launch, enum form form, uint32_t max_batched,
                         const struct output *want) {
    struct diag d = {0};
    struct prog_header *p = compile(spec, n_workers, launch, form);
    const void **weights = make_weights(p);
    struct cpu_config config = {
        .program = p, .weights = weights, .max_batched_tokens = max_batched, .n_kv_blocks = 40};
    struct cpu_backend *b;
    EXPECT_OK(&d, cpu_backend_open(&d, &config, &b));
    for (int round = 0; round < 2; round++) {
        uint32_t slots[N_REQUESTS];
        for (uint32_t i = 0; i < N_REQUESTS; i++)
            EXPECT_OK(&d, put(&d, cpu_backend_mailbox(b), i, &slots[i]));
        EXPECT_OK(&d, cpu_backend_run(&d, b));
        EXPECT_OK(&d, cpu_backend_check(&d, b));
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            struct output got;
            take(cpu_backend_mailbox(b), slots[i], &got);
            assert_same(&got, &want[i]);
        }
        run_scored(b, want);
    }
    cpu_backend_close(b);
    free_weights(p, weights);
    free(p);
}

/* QN_TEST_SHORT: each of these programs with one of the formats of weights. */
static void run_dtype(enum dtype weights) {
    const bool brief = getenv("QN_TEST_SHORT") != NULL;
    const bool odd = !brief || weights == DTYPE_F32, even = !brief || weights == DTYPE_BF16;
    struct model_spec spec = small_spec(weights);
    struct output want[N_REQUESTS];
    run_alone(&spec, want);
    assert_false(want[0].tokens[0] == want[0].tokens[1] && want[0].tokens[1] == want[0].tokens[2] &&
                 want[1].tokens[0] == want[0].tokens[0]); /* the model says more than one word */
    if (odd) run_together(&spec, 1, LAUNCH_HYBRID, SPLIT, 0, want);
    if (even) run_together(&spec, 2, LAUNCH_HYBRID, STEP, 0, want);
    if (odd) run_together(&spec, 3, LAUNCH_ALL_JIT, STEP, 7, want);
    if (even) run_together(&spec, 4, LAUNCH_ALL_AOT, STEP, 4, want);
    if (odd) run_together(&spec, 7, LAUNCH_PAPER, SPLIT, 0, want);
}

static void test_f32(void **state) {
    (void)state;
    run_dtype(DTYPE_F32);
}

static void test_bf16(void **state) {
    (void)state;
    run_dtype(DTYPE_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
