/* Every cut of a kernel graph that the compiler makes is proved equal to the model's reference
 * graph; graphs with a planted error are refused, with the operator named. */
#include "base/checked.h"
#include "block/kgraph_prove.h"
#include "golden_models.h"
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

/* ---- golden models ---- */

/* A golden model, with the meaning of its reference graph. */
struct golden {
    struct model *model;
    struct kgraph_meaning *m;
    const char *name;
};

static void golden_graph(const struct golden *of, uint32_t rows, uint32_t context, uint32_t cuts,
                         struct made *graph) {
    struct diag d = {0};
    *graph = (struct made){0};
    if (model_build_graph(&d, of->model, &graph->arena, rows, rows, context, cuts, &graph->g) !=
        QN_OK)
        FAIL("%s, cuts %x: %s", of->name, cuts, d.message);
}

static void golden_init(struct golden *of, const char *name) {
    const struct model_options options = {.dummy = true};
    struct made reference;
    struct diag d = {0};
    char dir[100];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    of->name = name;
    if (model_open(&d, dir, &options, &of->model) != QN_OK) FAIL("%s", d.message);
    golden_graph(of, 1, 4096, 0, &reference);
    if (kgraph_meaning_new(&d, &reference.g, &of->m) != QN_OK) FAIL("%s: %s", name, d.message);
    unmake(&reference);
}

static void golden_fini(struct golden *of) {
    kgraph_meaning_free(of->m);
    model_free(of->model);
}

/* How many graphs are proved; those with KGRAPH_GROUP. */
struct proofs {
    uint32_t n, n_grouped;
};

/* All graphs that the planner gives for a CPU and for a CUDA device. */
static void prove_golden(const struct golden *of, struct proofs *proofs) {
    const struct model_spec *s = &of->model->spec;
    const struct device devices[] = {device_cpu(1), device_cpu(8), device_cuda(90, 132, 25)};
    for (uint32_t i = 0; i < COUNT_OF(devices) * 4; i++) {
        const bool grouped = i / 4 == 2 && (i & 1) != 0;
        const struct plan_request r = {.spec = s,
                                       .device = &devices[i / 4],
                                       .n_slots = 16,
                                       .max_model_len = 4096,
                                       .max_batched_tokens = grouped ? 512 : 64,
                                       .cut_qkv = i / 4 == 2 || (i & 1) != 0,
                                       .join_heads = (i & 2) != 0,
                                       .group_experts = grouped,
                                       .places_all = true,
                                       .rides = true};
        struct plan_variant v[PLAN_MAX_VARIANTS];
        struct diag d = {0};
        uint32_t n;
        assert_int_equal(plan_variants(&d, &r, v, &n), QN_OK);
        const uint32_t placings = s->experts.n != 0 ? 2 : 1;
        for (uint32_t k = 0; k < placings * n; k++) {
            const struct plan_variant *p = &v[k / placings];
            struct made graph;
            golden_graph(of, p->n_rows, p->context, p->cuts | (k % placings ? KGRAPH_STATIC : 0),
                         &graph);
            if (kgraph_prove(&d, of->m, &graph.g, NULL) != QN_OK)
                FAIL("%s, cuts %x: %s", of->name, p->cuts, d.message);
            proofs->n++;
            proofs->n_grouped += (p->cuts & KGRAPH_GROUP) != 0;
            unmake(&graph);
        }
    }
}

static void golden_models_are_proved(void **state) {
    (void)state;
    struct proofs proofs = {0};
    for (size_t i = 0; i < COUNT_OF(golden_models); i++) {
        struct golden of;
        golden_init(&of, golden_models[i]);
        prove_golden(&of, &proofs);
        golden_fini(&of);
    }
    print_message("%u kernel graphs proved, %u of them grouped\n", proofs.n, proofs.n_grouped);
    assert_true(proofs.n > 1000 && proofs.n_grouped > 20);
}

/* ---- planted errors ---- */

enum { STEP = KGRAPH_CUT_QKV | KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_HEADS };
enum { PACKED = KGRAPH_CUT_QKV | KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H };
enum { GROUPED = PACKED | KGRAPH_SUM_SQUARES | KGRAPH_IMAGES | KGRAPH_GROUP };

/* A graph of two layers that is right, for errors to be planted in. */
struct planted {
    struct kgraph_meaning *m;
    struct made graph;
};

static void plant_in_rows(struct planted *p, uint32_t cuts, uint32_t n_rows) {
    struct model_spec s = spec_of(2, 1024, 16, 8, 64, 3072);
    struct diag d = {0};
    s.qk_norm = s.qkv_bias = s.o_bias = 1;
    p->m = meaning(&family_qwen3, &s);
    make(&p->graph, &family_qwen3, &s, n_rows, 4096, cuts);
    if (kgraph_prove(&d, p->m, &p->graph.g, NULL) != QN_OK) FAIL("%s", d.message);
}

static void plant_in(struct planted *p, uint32_t cuts) {
    plant_in_rows(p, cuts, 8);
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

/* In a graph of two bands. */
static void errors_of_bands_are_named(void **state) {
    (void)state;
    struct planted p;
    const uint32_t rows = 2 * LOGIT_BAND_ROWS;
    struct kop *op; /* LM_HEAD and SAMPLE of the first band, then of the second */
    for (int error = 0; error < 5; error++) {
        plant_in_rows(&p, PACKED | KGRAPH_SUM_SQUARES, rows);
        op = &p.graph.g.ops.items[p.graph.g.ops.n - 4];
        switch (error) {
        case 0: op[3].in[SAMPLE_LOGITS] = op[0].out[LM_OUT_LOGITS]; break;
        case 1: op[3].in[SAMPLE_PART] = op[0].out[LM_OUT_PART]; break;
        case 2: op[3].attrs.band_first = 0; break;
        case 3: op[2].attrs.band_first += 8; break;
        default: p.graph.g.ops.n -= 2; break;
        }
        refused(&p, error == 4   ? "LM_HEAD has 512 and SAMPLE 512 of 1024 logit rows"
                    : error == 3 ? "lm_head: its band begins with logit row 520, want 512"
                    : error == 2 ? "sample: its band begins with logit row 0, want 512"
                                 : "sample: has another band's logits");
    }
}

/* What became this tensor by PACK and PACK_LOGITS. */
static const struct tensor *before_packing(const struct kgraph *g, const struct tensor *t) {
    while (t->producer >= 0 && (g->ops.items[t->producer].kind == OP_PACK ||
                                g->ops.items[t->producer].kind == OP_PACK_LOGITS))
        t = &g->tensors.items[g->ops.items[t->producer].in[PACK_X]];
    return t;
}

/* Whether b may be a copy of a. LM_HEAD picks rows of what is not packed itself. */
static bool may_be_copy(const struct kgraph *g, const struct tensor *a, const struct tensor *b) {
    if (a->producer < 0 || b->producer < 0 || a->role != TENSOR_ACTIVATION) return false;
    const enum op_kind kind = g->ops.items[a->producer].kind;
    return g->ops.items[b->producer].kind == OP_PACK || kind == OP_PACK ||
           (kind == OP_PACK_LOGITS && b->layout == LAYOUT_ROWS && before_packing(g, a) == b);
}

/* Each operand of each operator replaced by every other tensor of its shape, and each optional one
 * left out: none is accepted but a copy of what stood there. */
static uint32_t no_other_operand_will_do(struct kgraph_meaning *m, const struct kgraph *g,
                                         const char *what) {
    uint32_t n_refused = 0;
    for (size_t i = 0; i < g->ops.n; i++) {
        struct kop *op = &g->ops.items[i];
        if (op->kind == OP_RESET_SENTINELS) continue; /* its operand is what it waits for */
        for (int slot = 0; slot < OP_MAX_IN; slot++) {
            const int32_t right = op->in[slot];
            if (right == NO_TENSOR) continue;
            for (int32_t t = NO_TENSOR; t < (int32_t)g->tensors.n; t++) {
                const struct tensor *a = &g->tensors.items[right];
                const struct tensor *b = t == NO_TENSOR ? a : &g->tensors.items[t];
                struct diag d = {0};
                if (t == right || a->n_dims != b->n_dims || a->role != b->role ||
                    memcmp(a->shape, b->shape, sizeof a->shape) != 0 || may_be_copy(g, a, b))
                    continue;
                op->in[slot] = t;
                if (kgraph_prove(&d, m, g, NULL) != QN_EVERIFY)
                    FAIL("%s: operator %zu, %s: operand %d may be tensor %d", what, i,
                         op_name(op->kind), slot, t);
                op->in[slot] = right;
                n_refused++;
            }
        }
    }
    return n_refused;
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
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        struct planted p;
        char what[32];
        plant_in(&p, cuts[i]);
        snprintf(what, sizeof what, "cuts %x", cuts[i]);
        n_refused += no_other_operand_will_do(p.m, &p.graph.g, what);
        planted_fini(&p);
    }
    print_message("%u operands refused\n", n_refused);
    assert_true(n_refused > 500);
}

/* Ranks and widths of latents that are the same number are different dims. */
static void latents_of_equal_sizes_are_told_apart(void **state) {
    (void)state;
    static const uint32_t q_ranks[] = {0, 48, 96, 64};
    for (size_t i = 0; i < COUNT_OF(q_ranks); i++) {
        struct model_spec s = spec_of(2, 96, 4, 1, 24, 96);
        const struct plan_variant v = {.n_rows = 8, .context = 4096, .cuts = KGRAPH_CUT_ATTENTION};
        struct made graph;
        s.latent = (struct latent_spec){
            .kv_rank = 40, .q_rank = q_ranks[i], .rope = 8, .v_dim = 24, .scale = 0.2f};
        struct kgraph_meaning *m = meaning(&family_deepseek_v2, &s);
        proved(m, &family_deepseek_v2, &s, &v);
        make(&graph, &family_deepseek_v2, &s, v.n_rows, v.context, v.cuts);
        assert_true(no_other_operand_will_do(m, &graph.g, "latents") > 20);
        unmake(&graph);
        kgraph_meaning_free(m);
    }
}

/* Models with experts and latents, each of whose layers has another list. Grouped, those with
 * shared experts: nothing else reads a copy of the stream that attention's output is added to. */
static void other_operands_of_experts_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {"qwen2-moe", "qwen3-moe", "mixtral", "deepseek-v2-lite",
                                        "deepseek-v2-yarn"};
    static const uint32_t cuts[] = {0, KGRAPH_CUT_ATTENTION, GROUPED};
    uint32_t n_refused = 0;
    for (size_t i = 0; i < COUNT_OF(names) * COUNT_OF(cuts); i++) {
        const char *name = names[i / COUNT_OF(cuts)];
        struct golden of;
        struct made graph;
        golden_init(&of, name);
        golden_graph(&of, 8, 1000, cuts[i % COUNT_OF(cuts)], &graph);
        if (cuts[i % COUNT_OF(cuts)] != GROUPED || of.model->spec.experts.shared_width != 0)
            n_refused += no_other_operand_will_do(of.m, &graph.g, name);
        unmake(&graph);
        golden_fini(&of);
    }
    print_message("%u operands refused\n", n_refused);
    assert_true(n_refused > 500);
}

static struct kop *golden_op(const struct kgraph *g, enum op_kind kind, uint32_t nth) {
    for (size_t i = 0; i < g->ops.n; i++)
        if (g->ops.items[i].kind == kind && nth-- == 0) return &g->ops.items[i];
    FAIL("no %s", op_name(kind));
    return NULL;
}

/* An error in the second of the operators of that kind; the graph is whole again afterwards. */
struct wrong {
    const char *what;
    enum op_kind kind;
    void (*plant)(struct kop *op, const struct kop *other); /* the first one */
    const char *says;
};

static void exchange_gate_and_up(struct kop *op, const struct kop *other) {
    (void)other;
    swap_slots(op->in, GATE_UP_WG, GATE_UP_WU);
}
static void list_of_first(struct kop *op, const struct kop *other) {
    op->in[GATE_UP_LIST] = other->in[GATE_UP_LIST];
}
static void slots_of_first(struct kop *op, const struct kop *other) {
    op->in[GATE_UP_SLOTS] = other->in[GATE_UP_SLOTS];
}
static void both_of_first(struct kop *op, const struct kop *other) {
    list_of_first(op, other);
    slots_of_first(op, other);
}
static void down_by_first(struct kop *op, const struct kop *other) {
    op->in[DOWN_LIST] = other->in[DOWN_LIST];
    op->in[DOWN_SLOTS] = other->in[DOWN_SLOTS];
}
static void weights_of_first(struct kop *op, const struct kop *other) {
    op->in[DOWN_WEIGHT] = other->in[DOWN_WEIGHT];
}
static void no_weights(struct kop *op, const struct kop *other) {
    (void)other;
    op->in[DOWN_WEIGHT] = NO_TENSOR;
}
static void no_shared(struct kop *op, const struct kop *other) {
    (void)other;
    op->in[DOWN_SHARED] = NO_TENSOR;
}
static void other_norm(struct kop *op, const struct kop *other) {
    (void)other;
    op->attrs.normed = !op->attrs.normed;
}
static void other_scale(struct kop *op, const struct kop *other) {
    (void)other;
    op->attrs.routed = 3;
}
static void other_groups(struct kop *op, const struct kop *other) {
    (void)other;
    op->attrs.groups = op->attrs.groups != 0 ? 0 : op->attrs.experts;
    op->attrs.top_groups = 1;
}
static void other_eps(struct kop *op, const struct kop *other) {
    (void)other;
    op->attrs.eps = 1;
}
static void ids_of_first(struct kop *op, const struct kop *other) {
    op->in[ROUTE_IDS] = other->in[ROUTE_IDS];
}
static void gathered_for_first(struct kop *op, const struct kop *other) {
    op->in[GATHER_SLOTS] = other->in[GATHER_SLOTS];
}
static void norm_of_first(struct kop *op, const struct kop *other) {
    op->in[GATHER_NORM] = other->in[GATHER_NORM];
}
static void exchange_grouped(struct kop *op, const struct kop *other) {
    (void)other;
    swap_slots(op->in, GROUPED_UP_WG, GROUPED_UP_WU);
}
static void grouped_by_first(struct kop *op, const struct kop *other) {
    op->in[GROUPED_UP_LIST] = other->in[GROUPED_UP_LIST];
}
static void squares_of_first(struct kop *op, const struct kop *other) {
    op->in[GROUPED_UP_SQUARES] = other->in[GROUPED_UP_SQUARES];
}
static void grouped_down_by_first(struct kop *op, const struct kop *other) {
    op->in[GROUPED_DOWN_LIST] = other->in[GROUPED_DOWN_LIST];
}
static void parts_by_first(struct kop *op, const struct kop *other) {
    op->in[GROUPED_DOWN_SLOTS] = other->in[GROUPED_DOWN_SLOTS];
}
static void sum_by_first(struct kop *op, const struct kop *other) {
    op->in[EXPERT_WEIGHT] = other->in[EXPERT_WEIGHT];
}
static void sum_without_shared(struct kop *op, const struct kop *other) {
    (void)other;
    op->in[EXPERT_SHARED] = NO_TENSOR;
}
static void keys_of_first(struct kop *op, const struct kop *other) {
    op->in[LATENT_W] = other->in[LATENT_W];
}
static void values_of_first(struct kop *op, const struct kop *other) {
    op->in[VALUES_W] = other->in[VALUES_W];
}

static void refuse_wrong(const char *name, uint32_t cuts, const struct wrong *wrong, size_t n) {
    struct golden of;
    struct made graph;
    golden_init(&of, name);
    golden_graph(&of, 8, 1000, cuts, &graph);
    for (size_t i = 0; i < n; i++) {
        struct kop *op = golden_op(&graph.g, wrong[i].kind, 1);
        const struct kop right = *op;
        struct diag d = {0};
        wrong[i].plant(op, golden_op(&graph.g, wrong[i].kind, 0));
        if (kgraph_prove(&d, of.m, &graph.g, NULL) != QN_EVERIFY)
            FAIL("%s: %s is accepted", name, wrong[i].what);
        if (strstr(d.message, wrong[i].says) == NULL)
            FAIL("%s: want '%s' in: %s", wrong[i].what, wrong[i].says, d.message);
        *op = right;
    }
    unmake(&graph);
    golden_fini(&of);
}

static void planted_errors_of_experts_are_named(void **state) {
    (void)state;
    static const struct wrong experts[] = {
        {"gate and up exchanged", OP_EXPERT_GATE_UP, exchange_gate_and_up, "y of expert_down"},
        {"another layer's list", OP_EXPERT_GATE_UP, list_of_first, "y of expert_down"},
        {"another layer's slots", OP_EXPERT_GATE_UP, slots_of_first, "y of expert_down"},
        {"slots in another order than they are read", OP_EXPERT_GATE_UP, both_of_first,
         "since the last value that is: expert_gate_up expert_down"},
        {"slots read in another order", OP_EXPERT_DOWN, down_by_first, "y of expert_down"},
        {"another layer's weights", OP_EXPERT_DOWN, weights_of_first, "y of expert_down"},
        {"no weights", OP_EXPERT_DOWN, no_weights, "'weight.expert' is missing"},
        {"no shared experts", OP_EXPERT_DOWN, no_shared, "y of expert_down"},
        {"weights that add up to 1", OP_ROUTE, other_norm, "y of expert_down"},
        {"weights times 3", OP_ROUTE, other_scale, "y of expert_down"},
        {"other groups", OP_ROUTE, other_groups, "y of expert_down"},
        {"another eps of the router", OP_ROUTER, other_eps, "logits.expert of router"},
        {"another eps of experts", OP_EXPERT_GATE_UP, other_eps, "y of expert_down"}};
    static const struct wrong latents[] = {
        {"another eps of latents", OP_LATENT_HEADS, other_eps, "kv.m of latent_heads"},
        {"another layer's keys", OP_LATENT_HEADS, keys_of_first, "y of linear"},
        {"another layer's values", OP_LATENT_VALUES, values_of_first, "latent_values linear"}};
    refuse_wrong("qwen2-moe", 0, experts, COUNT_OF(experts));
    refuse_wrong("deepseek-v2-lite", 0, experts, COUNT_OF(experts));
    refuse_wrong("deepseek-v2-lite", 0, latents, COUNT_OF(latents));
}

static void planted_errors_of_grouped_experts_are_named(void **state) {
    (void)state;
    static const struct wrong grouped[] = {
        {"weights that add up to 1", OP_ROUTE_TOP_K, other_norm, "y of expert_sum"},
        {"weights times 3", OP_ROUTE_TOP_K, other_scale, "y of expert_sum"},
        {"other groups", OP_ROUTE_TOP_K, other_groups, "y of expert_sum"},
        {"another layer's ids", OP_ROUTE_LIST, ids_of_first, "y of expert_sum"},
        {"another layer's slots", OP_EXPERT_GATHER, gathered_for_first, "y of expert_sum"},
        {"another layer's norm", OP_EXPERT_GATHER, norm_of_first, "y of expert_sum"},
        {"gate and up exchanged", OP_GROUPED_GATE_UP, exchange_grouped, "y of expert_sum"},
        {"gate and up by another list", OP_GROUPED_GATE_UP, grouped_by_first, "y of expert_sum"},
        {"another layer's squares", OP_GROUPED_GATE_UP, squares_of_first, "y of expert_sum"},
        {"another eps of experts", OP_GROUPED_GATE_UP, other_eps, "y of expert_sum"},
        {"down by another list", OP_GROUPED_DOWN, grouped_down_by_first, "y of expert_sum"},
        {"parts of other slots", OP_GROUPED_DOWN, parts_by_first, "y of expert_sum"},
        {"another layer's weights", OP_EXPERT_SUM, sum_by_first, "y of expert_sum"},
        {"no shared experts", OP_EXPERT_SUM, sum_without_shared, "y of expert_sum"}};
    refuse_wrong("qwen2-moe", GROUPED, grouped, COUNT_OF(grouped));
    refuse_wrong("deepseek-v2-lite", GROUPED, grouped, COUNT_OF(grouped));
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
        cmocka_unit_test(every_cut_is_the_model),
        cmocka_unit_test(golden_models_are_proved),
        cmocka_unit_test(planted_errors_are_named),
        cmocka_unit_test(errors_of_bands_are_named),
        cmocka_unit_test(planted_errors_of_experts_are_named),
        cmocka_unit_test(planted_errors_of_grouped_experts_are_named),
        cmocka_unit_test(other_operands_are_refused),
        cmocka_unit_test(other_operands_of_experts_are_refused),
        cmocka_unit_test(latents_of_equal_sizes_are_told_apart),
        cmocka_unit_test(a_whole_model_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
