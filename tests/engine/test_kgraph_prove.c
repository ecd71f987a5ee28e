/* Every cut of a kernel graph that the compiler makes is proved equal to the model's reference
 * graph; graphs with a planted error are refused, with the operator named. */
#include "base/checked.h"
#include "block/kgraph_prove.h"
#include "model/family.h"
#include "model/model.h"
#include "plan/variant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

#define FAIL(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(false))

static struct model_spec spec_of(uint32_t n_layers, uint32_t hidden, uint32_t heads,
                                 uint32_t kv_heads, uint32_t dim, uint32_t intermediate) {
    return (struct model_spec){.n_layers = n_layers,
                               .hidden = hidden,
                               .intermediate = intermediate,
                               .vocab = 1000,
                               .n_heads = heads,
                               .n_kv_heads = kv_heads,
                               .head_dim = dim,
                               .max_position = 40960,
                               .rms_eps = 1e-6f,
                               .weight_dtype = DTYPE_BF16,
                               .rope_theta = 1e6f,
                               .bos = -1};
}

/* A graph with its arena. */
struct made {
    struct arena arena;
    struct kgraph g;
};

static void make(struct made *m, const struct family *family, const struct model_spec *s,
                 uint32_t rows, uint32_t context, uint32_t cuts) {
    struct diag d = {0};
    m->arena = (struct arena){0};
    kgraph_init(&m->g, &m->arena, s, rows, rows, context);
    m->g.decode_only = (cuts & KGRAPH_DECODE_ONLY) != 0;
    const int rc = family->build(&d, &m->g, family, cuts);
    if (rc != QN_OK || kgraph_verify(&d, &m->g) != QN_OK) FAIL("cuts %u: %s", cuts, d.message);
}

static void unmake(struct made *m) {
    kgraph_fini(&m->g);
    arena_fini(&m->arena);
}

static struct kgraph_meaning *meaning(const struct family *family, const struct model_spec *s) {
    struct made reference;
    struct kgraph_meaning *m;
    struct diag d = {0};
    make(&reference, family, s, 1, 4096, 0);
    if (kgraph_meaning_new(&d, &reference.g, &m) != QN_OK) FAIL("reference: %s", d.message);
    unmake(&reference);
    return m;
}

static void proved(struct kgraph_meaning *m, const struct family *family,
                   const struct model_spec *s, const struct plan_variant *v) {
    struct made graph;
    struct diag d = {0};
    struct kgraph_prove_report r;
    make(&graph, family, s, v->n_rows, v->context, v->cuts);
    if (kgraph_prove(&d, m, &graph.g, &r) != QN_OK)
        FAIL("%s, %u rows, cuts %x: %s", family->name, v->n_rows, v->cuts, d.message);
    assert_int_equal(r.n_operators, graph.g.ops.n);
    assert_int_equal(r.n_compared, 1 + 4 * s->n_layers + 4); /* caches, streams, head, token */
    unmake(&graph);
}

/* All variants that the planner gives for a device and what may be switched off. */
static void prove_planned(struct kgraph_meaning *m, const struct family *family,
                          const struct model_spec *s, const struct device *device) {
    for (uint32_t off = 0; off < 16; off++) {
        const struct plan_request r = {.spec = s,
                                       .device = device,
                                       .n_slots = 64,
                                       .max_model_len = 4096,
                                       .max_batched_tokens = 512,
                                       .cut_qkv = (off & 1) == 0,
                                       .join_heads = (off & 2) == 0,
                                       .cut_linear = device->has.wgmma && (off & 4) == 0,
                                       .whole_from = off & 8 ? 0 : 1,
                                       .places_all = true,
                                       .rides = true};
        struct plan_variant v[PLAN_MAX_VARIANTS];
        struct diag d = {0};
        uint32_t n;
        if (device->kind == DEVICE_CUDA && (off & 1) != 0) continue; /* has no fused QKV */
        assert_int_equal(plan_variants(&d, &r, v, &n), QN_OK);
        for (uint32_t i = 0; i < n; i++) proved(m, family, s, &v[i]);
    }
}

static void every_cut_is_the_model(void **state) {
    (void)state;
    struct model_spec specs[] = {
        spec_of(2, 1024, 16, 8, 64, 3072), spec_of(1, 2048, 16, 1, 128, 768),
        spec_of(2, 4096, 32, 32, 128, 1536), spec_of(1, 896, 14, 2, 64, 1000)};
    const struct device devices[] = {device_cuda(90, 132, 25), device_cuda(80, 108, 20),
                                     device_cpu(4)};
    specs[0].qk_norm = 1;
    specs[1].qkv_bias = specs[1].o_bias = specs[1].mlp_bias = 1;
    specs[2].sliding_window = 200;
    specs[2].sees_all[0] = 1; /* of its two layers one has a window */
    specs[3].qkv_bias = specs[3].qk_norm = specs[3].tied = 1;
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        struct kgraph_meaning *m = meaning(&family_qwen3, &specs[i]);
        for (size_t k = 0; k < COUNT_OF(devices); k++)
            prove_planned(m, &family_qwen3, &specs[i], &devices[k]);
        kgraph_meaning_free(m);
    }
}

/* Exchanges the matrices of an operator on experts, changes the eps of one on latents: both are
 * refused. Returns how many there were. */
static uint32_t break_graph(struct kgraph_meaning *m, const struct kgraph *g) {
    uint32_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        struct kop *op = &g->ops.items[i];
        const struct kop right = *op;
        struct diag d = {0};
        if (op->kind == OP_EXPERT_GATE_UP) {
            op->in[GATE_UP_WG] = right.in[GATE_UP_WU];
            op->in[GATE_UP_WU] = right.in[GATE_UP_WG];
        } else if (op->kind == OP_LATENT_HEADS) {
            op->attrs.eps = 1;
        } else {
            continue;
        }
        assert_int_equal(kgraph_prove(&d, m, g, NULL), QN_EVERIFY);
        assert_non_null(strstr(d.message, op_name(right.kind)));
        *op = right;
        n++;
    }
    return n;
}

/* The golden models, latent attention and experts among them, by the cuts that all of them have. */
static void golden_models_are_proved(void **state) {
    (void)state;
    static const char *const names[] = {"deepseek-v2-dense",
                                        "deepseek-v2-f16",
                                        "deepseek-v2-lite",
                                        "deepseek-v2-yarn",
                                        "llama-linear",
                                        "llama-longrope",
                                        "llama-yarn",
                                        "llama2-mha",
                                        "llama3-rope-parameters",
                                        "llama3-rope-scaling",
                                        "mistral",
                                        "mistral-longrope",
                                        "mistral-mixed",
                                        "mistral-window",
                                        "mistral-yarn",
                                        "mixtral",
                                        "mixtral-window",
                                        "qwen2",
                                        "qwen2-dynamic",
                                        "qwen2-mixed",
                                        "qwen2-moe",
                                        "qwen2-moe-normed",
                                        "qwen2-window",
                                        "qwen3",
                                        "qwen3-mixed",
                                        "qwen3-moe",
                                        "qwen3-moe-all",
                                        "qwen3-moe-sparse",
                                        "qwen3-mqa",
                                        "qwen3-tied",
                                        "qwen3-yarn"};
    uint32_t n_broken = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const struct model_options options = {.dummy = true};
        struct kgraph_meaning *meaning_of = NULL;
        struct diag d = {0};
        struct model *m;
        char dir[100];
        snprintf(dir, sizeof dir, "tests/golden/models/%s", names[i]);
        if (model_open(&d, dir, &options, &m) != QN_OK) FAIL("%s", d.message);
        const uint32_t cuts[] = {0, KGRAPH_CUT_ATTENTION};
        for (size_t k = 0; k < COUNT_OF(cuts); k++) {
            struct made graph = {0};
            int rc = model_build_graph(&d, m, &graph.arena, 1 + 7 * (uint32_t)k, 1, 1000, cuts[k],
                                       &graph.g);
            if (rc == QN_OK && k == 0) rc = kgraph_meaning_new(&d, &graph.g, &meaning_of);
            if (rc == QN_OK) rc = kgraph_prove(&d, meaning_of, &graph.g, NULL);
            if (rc != QN_OK) FAIL("%s, cuts %x: %s", names[i], cuts[k], d.message);
            n_broken += break_graph(meaning_of, &graph.g);
            unmake(&graph);
        }
        kgraph_meaning_free(meaning_of);
        model_free(m);
    }
    assert_true(n_broken > 20);
}

/* ---- planted errors ---- */

enum { STEP = KGRAPH_CUT_QKV | KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_HEADS };
enum { PACKED = KGRAPH_CUT_QKV | KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H };

/* A graph of two layers that is right, for errors to be planted in. */
struct planted {
    struct kgraph_meaning *m;
    struct made graph;
};

static void plant_in(struct planted *p, uint32_t cuts) {
    struct model_spec s = spec_of(2, 1024, 16, 8, 64, 3072);
    struct diag d = {0};
    s.qk_norm = s.qkv_bias = s.o_bias = 1;
    p->m = meaning(&family_qwen3, &s);
    make(&p->graph, &family_qwen3, &s, 8, 4096, cuts);
    if (kgraph_prove(&d, p->m, &p->graph.g, NULL) != QN_OK) FAIL("%s", d.message);
}

static void planted_fini(struct planted *p) {
    unmake(&p->graph);
    kgraph_meaning_free(p->m);
}

static struct kop *find_op(struct planted *p, enum op_kind kind, int layer) {
    for (size_t i = 0; i < p->graph.g.ops.n; i++)
        if (p->graph.g.ops.items[i].kind == kind && p->graph.g.ops.items[i].layer == layer)
            return &p->graph.g.ops.items[i];
    FAIL("no %s", op_name(kind));
    return NULL;
}

/* The proof fails, and its message has these words. */
static void refused(struct planted *p, const char *words) {
    struct diag d = {0};
    assert_int_equal(kgraph_prove(&d, p->m, &p->graph.g, NULL), QN_EVERIFY);
    if (strstr(d.message, words) == NULL) FAIL("want '%s' in: %s", words, d.message);
    planted_fini(p);
}

static void swap_slots(int32_t *slots, int a, int b) {
    const int32_t t = slots[a];
    slots[a] = slots[b];
    slots[b] = t;
}

static void planted_errors_are_named(void **state) {
    (void)state;
    struct planted p;
    /* a residual left out */
    plant_in(&p, STEP);
    find_op(&p, OP_LINEAR, 1)->in[LINEAR_RESIDUAL] = NO_TENSOR;
    refused(&p, "layer 1: y of linear");
    plant_in(&p, STEP);
    find_op(&p, OP_LINEAR, 1)->in[LINEAR_RESIDUAL] =
        find_op(&p, OP_EMBED, -1)->out[STREAM_X]; /* another one */
    refused(&p, "layer 1: y of linear");
    /* gate and up exchanged */
    plant_in(&p, STEP | PACKED);
    swap_slots(find_op(&p, OP_GATED_MLP, 1)->in, MLP_WG, MLP_WU);
    refused(&p, "since the last value that is: gated_mlp linear");
    /* eps of another layer */
    plant_in(&p, STEP);
    find_op(&p, OP_QKV_LINEAR, 1)->attrs.eps = 1e-5f;
    refused(&p, "since the last value that is: qkv_linear attention_step");
    /* norms exchanged */
    plant_in(&p, STEP);
    swap_slots(find_op(&p, OP_ATTENTION_STEP, 0)->in, HEADS_Q_NORM, HEADS_K_NORM);
    refused(&p, "layer 0: kv.k of attention_step");
    /* another window, another scale */
    plant_in(&p, KGRAPH_CUT_QKV);
    find_op(&p, OP_ATTENTION, 0)->attrs.window = 100;
    refused(&p, "that is: attention linear");
    plant_in(&p, STEP | PACKED);
    find_op(&p, OP_ATTENTION_STEP, 0)->attrs.scale = 1;
    refused(&p, "that is: attention_merge linear");
    /* the squares of an earlier stream */
    plant_in(&p, PACKED | STEP);
    find_op(&p, OP_GATED_MLP, 0)->in[MLP_SQUARES] = find_op(&p, OP_EMBED, -1)->out[STREAM_SQUARES];
    refused(&p, "layer 0: y of linear");
    /* another layer's cache */
    plant_in(&p, KGRAPH_CUT_QKV);
    find_op(&p, OP_ATTENTION, 1)->in[ATTENTION_KV] = find_op(&p, OP_QKV_HEADS, 0)->out[QKV_OUT_KV];
    refused(&p, "layer 1: y of linear");
    /* keys and values exchanged in the joined projections */
    plant_in(&p, STEP);
    const struct tensor *w =
        &p.graph.g.tensors.items[find_op(&p, OP_QKV_LINEAR, 0)->in[QKV_LINEAR_W]];
    struct weight_part *parts = &p.graph.g.parts.items[w->first_part];
    const char *name = parts[1].name;
    parts[1].name = parts[2].name;
    parts[2].name = name;
    refused(&p, "layer 0: kv.k of attention_step");
}

/* Each operand of each operator replaced by every other tensor of its shape, and each optional one
 * left out: none is accepted but a copy of what stood there. */
static void no_other_operand_will_do(uint32_t cuts, uint32_t *n_refused) {
    struct planted p;
    plant_in(&p, cuts);
    const struct kgraph *g = &p.graph.g;
    for (size_t i = 0; i < g->ops.n; i++) {
        struct kop *op = &g->ops.items[i];
        if (op->kind == OP_RESET_SENTINELS || op->kind == OP_SAMPLE)
            continue; /* SAMPLE: see op.def */
        for (int slot = 0; slot < OP_MAX_IN; slot++) {
            const int32_t right = op->in[slot];
            if (right == NO_TENSOR) continue;
            for (int32_t t = NO_TENSOR; t < (int32_t)g->tensors.n; t++) {
                const struct tensor *a = &g->tensors.items[right];
                const struct tensor *b = t == NO_TENSOR ? a : &g->tensors.items[t];
                struct diag d = {0};
                if (t == right || a->n_dims != b->n_dims || a->role != b->role ||
                    memcmp(a->shape, b->shape, sizeof a->shape) != 0)
                    continue;
                if (a->producer >= 0 && b->producer >= 0 && a->role == TENSOR_ACTIVATION &&
                    (g->ops.items[b->producer].kind == OP_PACK ||
                     g->ops.items[a->producer].kind == OP_PACK))
                    continue; /* may be a copy */
                op->in[slot] = t;
                if (kgraph_prove(&d, p.m, g, NULL) != QN_EVERIFY)
                    FAIL("cuts %x: operator %zu, %s: operand %d may be tensor %d", cuts, i,
                         op_name(op->kind), slot, t);
                op->in[slot] = right;
                (*n_refused)++;
            }
        }
    }
    planted_fini(&p);
}

static void other_operands_are_refused(void **state) {
    (void)state;
    const uint32_t cuts[] = {0,
                             KGRAPH_CUT_QKV,
                             STEP,
                             STEP | PACKED | KGRAPH_IMAGES,
                             PACKED | KGRAPH_JOIN_HEADS | KGRAPH_RESET_SENTINELS,
                             PACKED | KGRAPH_SUM_SQUARES,
                             PACKED | KGRAPH_SUM_SQUARES | KGRAPH_CUT_LINEAR | KGRAPH_IMAGES};
    uint32_t n_refused = 0;
    for (size_t i = 0; i < COUNT_OF(cuts); i++) no_other_operand_will_do(cuts[i], &n_refused);
    print_message("%u operands refused\n", n_refused);
    assert_true(n_refused > 500);
}

/* 36 layers in less than a second, or ten with a sanitizer. */
static void a_whole_model_is_quick(void **state) {
    (void)state;
    struct model_spec s = spec_of(36, 4096, 32, 8, 128, 12288);
    struct timespec start, end;
    s.qk_norm = 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    struct kgraph_meaning *m = meaning(&family_qwen3, &s);
    const struct plan_variant v = {.n_rows = 8, .context = 4096, .cuts = STEP | PACKED};
    proved(m, &family_qwen3, &s, &v);
    kgraph_meaning_free(m);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    const double seconds =
        (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    print_message("36 layers: %.3f s\n", seconds);
    assert_true(seconds < 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_is_the_model),   cmocka_unit_test(golden_models_are_proved),
        cmocka_unit_test(planted_errors_are_named), cmocka_unit_test(other_operands_are_refused),
        cmocka_unit_test(a_whole_model_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
