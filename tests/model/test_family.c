/* Every family's kernel graph: the operators, their order, their weights. */
#include "base/checked.h"
#include "base/strbuf.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

#include "model/model_util.h"

/* Small numbers that are all different, so that a swapped shape shows. */
#define SIZES                                                                                      \
    "\"num_hidden_layers\":2,\"hidden_size\":48,\"intermediate_size\":80,\"vocab_size\":301,"      \
    "\"num_attention_heads\":6,\"num_key_value_heads\":3,\"head_dim\":10"

struct opened {
    struct model *m;
    struct arena arena;
    struct kgraph g;
};

static void open_graph(struct opened *o, const char *architecture, const char *more, uint32_t rows,
                       uint32_t logit_rows, bool split) {
    struct diag d = {0};
    char dir[64], text[2000];
    *o = (struct opened){0};
    util_make_dir(dir);
    snprintf(text, sizeof text, "{\"architectures\":[\"%s\"]," SIZES "%s}", architecture, more);
    util_write_text(dir, "config.json", text);
    int rc = model_open(&d, dir, &(struct model_options){.dummy = true}, &o->m);
    if (rc == QN_OK)
        rc = model_build_graph(&d, o->m, &o->arena, rows, logit_rows, 1000, split, &o->g);
    if (rc == QN_OK) rc = kgraph_verify(&d, &o->g);
    util_remove_dir(dir, (const char *[]){"config.json", NULL});
    if (rc != QN_OK) UTIL_FAIL("%s: %s", architecture, d.message);
}

static void close_graph(struct opened *o) {
    kgraph_fini(&o->g);
    arena_fini(&o->arena);
    model_free(o->m);
}

static const struct tensor *weight(const struct kgraph *g, const char *name) {
    for (size_t i = 0; i < g->tensors.n; i++)
        if (strcmp(g->tensors.items[i].name, name) == 0) return &g->tensors.items[i];
    return NULL;
}

static void want_weight(const struct kgraph *g, const char *name, enum dtype dtype, uint64_t rows,
                        uint64_t cols) {
    const struct tensor *t = weight(g, name);
    if (t == NULL) UTIL_FAIL("no weight %s", name);
    assert_int_equal(t->role, TENSOR_WEIGHT);
    assert_int_equal(t->dtype, dtype);
    assert_int_equal(t->n_dims, cols > 0 ? 2 : 1);
    assert_int_equal(t->shape[0], rows);
    if (cols > 0) assert_int_equal(t->shape[1], cols);
}

static void want_ops(const struct kgraph *g, const enum op_kind *layer_ops, size_t n) {
    size_t at = 0;
    assert_int_equal(g->ops.items[at++].kind, OP_EMBED);
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < n; i++, at++) {
            assert_int_equal(g->ops.items[at].kind, layer_ops[i]);
            assert_int_equal(g->ops.items[at].layer, layer);
        }
    assert_int_equal(g->ops.items[at++].kind, OP_LM_HEAD);
    assert_int_equal(g->ops.items[at].layer, -1);
    assert_int_equal(g->ops.items[at++].kind, OP_SAMPLE);
    assert_int_equal(g->ops.n, at);
}

static void qwen3_graph(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen3ForCausalLM", ",\"torch_dtype\":\"float16\"", 5, 2, false);
    want_ops(&o.g, (enum op_kind[]){OP_QKV, OP_ATTENTION, OP_LINEAR, OP_GATED_MLP, OP_LINEAR}, 5);
    want_weight(&o.g, "model.embed_tokens.weight", DTYPE_F16, 301, 48);
    want_weight(&o.g, "lm_head.weight", DTYPE_F16, 301, 48);
    want_weight(&o.g, "model.norm.weight", DTYPE_F32, 48, 0);
    want_weight(&o.g, "model.layers.1.input_layernorm.weight", DTYPE_F32, 48, 0);
    want_weight(&o.g, "model.layers.1.post_attention_layernorm.weight", DTYPE_F32, 48, 0);
    want_weight(&o.g, "model.layers.0.self_attn.q_proj.weight", DTYPE_F16, 60, 48);
    want_weight(&o.g, "model.layers.0.self_attn.k_proj.weight", DTYPE_F16, 30, 48);
    want_weight(&o.g, "model.layers.0.self_attn.v_proj.weight", DTYPE_F16, 30, 48);
    want_weight(&o.g, "model.layers.1.self_attn.q_norm.weight", DTYPE_F32, 10, 0);
    want_weight(&o.g, "model.layers.1.self_attn.k_norm.weight", DTYPE_F32, 10, 0);
    want_weight(&o.g, "model.layers.0.self_attn.o_proj.weight", DTYPE_F16, 48, 60);
    want_weight(&o.g, "model.layers.0.mlp.gate_proj.weight", DTYPE_F16, 80, 48);
    want_weight(&o.g, "model.layers.0.mlp.up_proj.weight", DTYPE_F16, 80, 48);
    want_weight(&o.g, "model.layers.0.mlp.down_proj.weight", DTYPE_F16, 48, 80);
    assert_null(weight(&o.g, "model.layers.0.self_attn.q_proj.bias"));
    const struct kop *lm = &o.g.ops.items[o.g.ops.n - 2];
    assert_int_equal(o.g.tensors.items[lm->out[LM_OUT_LOGITS]].shape[0], 2);
    close_graph(&o);
}

/* The output projection adds the residual that the attention read, the MLP's one what it wrote. */
static void residuals_chain(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen3ForCausalLM", "", 1, 1, false);
    const struct kop *op = o.g.ops.items;
    int32_t x = op[0].out[0];
    for (int layer = 0; layer < 2; layer++) {
        const struct kop *l = &op[1 + 5 * layer];
        assert_int_equal(l[0].in[QKV_X], x);
        assert_int_equal(l[1].in[ATTENTION_Q], l[0].out[QKV_OUT_Q]);
        assert_int_equal(l[1].in[ATTENTION_KV], l[0].out[QKV_OUT_KV]);
        assert_int_equal(l[2].in[LINEAR_A], l[1].out[0]);
        assert_int_equal(l[2].in[LINEAR_RESIDUAL], x);
        assert_int_equal(l[3].in[MLP_X], l[2].out[0]);
        assert_int_equal(l[4].in[LINEAR_A], l[3].out[0]);
        assert_int_equal(l[4].in[LINEAR_RESIDUAL], l[2].out[0]);
        x = l[4].out[0];
    }
    assert_int_equal(op[11].in[LM_X], x);
    assert_int_equal(op[12].in[SAMPLE_LOGITS], op[11].out[LM_OUT_LOGITS]);
    assert_int_equal(op[12].in[SAMPLE_PART], op[11].out[LM_OUT_PART]);
    assert_int_not_equal(op[1].out[QKV_OUT_KV], op[6].out[QKV_OUT_KV]);
    close_graph(&o);
}

/* Bands of logit rows follow each other, each after the tokens of the one before. */
static void many_logit_rows_are_bands(void **state) {
    (void)state;
    const struct {
        uint32_t rows, n, bands[4];
    } want[] = {{LOGIT_BAND_ROWS, 1, {LOGIT_BAND_ROWS}},
                {LOGIT_BAND_ROWS + 1, 2, {384, 129}},
                {1024, 2, {512, 512}},
                {1900, 4, {512, 512, 512, 364}}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct opened o;
        open_graph(&o, "Qwen3ForCausalLM", "", want[i].rows, want[i].rows, false);
        const struct kop *op = &o.g.ops.items[o.g.ops.n - 2 * want[i].n];
        for (uint32_t k = 0, first = 0; k < want[i].n; first += want[i].bands[k++], op += 2) {
            assert_int_equal(op[0].kind, OP_LM_HEAD);
            assert_int_equal(op[1].kind, OP_SAMPLE);
            assert_int_equal(op[1].in[SAMPLE_LOGITS], op[0].out[LM_OUT_LOGITS]);
            assert_int_equal(op[0].in[LM_AFTER], k == 0 ? NO_TENSOR : op[-1].out[0]);
            for (int s = 0; s < 2; s++) {
                assert_int_equal(op[s].attrs.band_first, first);
                assert_int_equal(kop_rows(&op[s]), want[i].bands[k]);
            }
        }
        close_graph(&o);
    }
}

static void attention_can_be_split(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "LlamaForCausalLM", "", 3, 3, true);
    want_ops(&o.g,
             (enum op_kind[]){OP_QKV, OP_ATTENTION_SPLIT, OP_ATTENTION_MERGE, OP_LINEAR,
                              OP_GATED_MLP, OP_LINEAR},
             6);
    const struct tensor *part = &o.g.tensors.items[o.g.ops.items[2].out[0]];
    assert_int_equal(part->shape[2], (1000 + ATTENTION_PIECE - 1) / ATTENTION_PIECE);
    assert_int_equal(part->shape[3], 10 + PART_HEAD);
    close_graph(&o);
}

static void qwen2_has_qkv_biases_only(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen2ForCausalLM", ",\"attention_bias\":false", 1, 1, false);
    want_weight(&o.g, "model.layers.1.self_attn.q_proj.bias", DTYPE_F32, 60, 0);
    want_weight(&o.g, "model.layers.1.self_attn.k_proj.bias", DTYPE_F32, 30, 0);
    want_weight(&o.g, "model.layers.1.self_attn.v_proj.bias", DTYPE_F32, 30, 0);
    assert_null(weight(&o.g, "model.layers.1.self_attn.o_proj.bias"));
    assert_null(weight(&o.g, "model.layers.1.mlp.down_proj.bias"));
    assert_null(weight(&o.g, "model.layers.1.self_attn.q_norm.weight"));
    close_graph(&o);
}

static void llama_biases_are_optional(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "LlamaForCausalLM", ",\"attention_bias\":true,\"mlp_bias\":true", 1, 1, false);
    want_weight(&o.g, "model.layers.0.self_attn.q_proj.bias", DTYPE_F32, 60, 0);
    want_weight(&o.g, "model.layers.0.self_attn.o_proj.bias", DTYPE_F32, 48, 0);
    want_weight(&o.g, "model.layers.0.mlp.gate_proj.bias", DTYPE_F32, 80, 0);
    want_weight(&o.g, "model.layers.0.mlp.up_proj.bias", DTYPE_F32, 80, 0);
    want_weight(&o.g, "model.layers.0.mlp.down_proj.bias", DTYPE_F32, 48, 0);
    close_graph(&o);
    open_graph(&o, "LlamaForCausalLM", "", 1, 1, false);
    for (size_t i = 0; i < o.g.tensors.n; i++)
        assert_null(strstr(o.g.tensors.items[i].name, "bias"));
    close_graph(&o);
}

static void mistral_has_no_biases(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "MistralForCausalLM", ",\"attention_bias\":true,\"sliding_window\":16", 1, 1,
               false);
    for (size_t i = 0; i < o.g.tensors.n; i++)
        assert_null(strstr(o.g.tensors.items[i].name, "bias"));
    assert_int_equal(o.g.spec.sliding_window, 16);
    close_graph(&o);
}

static const struct tensor *stack(const struct kgraph *g, const char *name, uint64_t n,
                                  uint64_t rows, uint64_t cols) {
    const struct tensor *t = weight(g, name);
    if (t == NULL) UTIL_FAIL("no weight %s", name);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->shape[0], n);
    assert_int_equal(t->shape[1], rows);
    assert_int_equal(t->shape[2], cols);
    return t;
}

#define EXPERTS ",\"num_experts\":5,\"num_experts_per_tok\":2,\"moe_intermediate_size\":33"

static void experts_are_stacked(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen3MoeForCausalLM", EXPERTS, 70, 1, false);
    want_ops(&o.g,
             (enum op_kind[]){OP_QKV, OP_ATTENTION, OP_LINEAR, OP_ROUTER, OP_ROUTE,
                              OP_EXPERT_GATE_UP, OP_EXPERT_DOWN},
             7);
    want_weight(&o.g, "model.layers.1.mlp.gate.weight", DTYPE_BF16, 5, 48);
    stack(&o.g, "model.layers.0.mlp.experts.*.gate_proj.weight", 5, 33, 48);
    stack(&o.g, "model.layers.0.mlp.experts.*.up_proj.weight", 5, 33, 48);
    const struct tensor *down =
        stack(&o.g, "model.layers.1.mlp.experts.*.down_proj.weight", 5, 48, 33);
    assert_int_equal(o.g.parts.items[down->first_part].stack, 5);
    assert_int_equal(o.g.parts.items[down->first_part].step, 48);
    const struct kop *route = &o.g.ops.items[5];
    const uint64_t n_slots = 70 * 2, stretches = 2; /* of 128 slots */
    assert_int_equal(o.g.tensors.items[route->out[ROUTE_OUT_LIST]].shape[0], 2 * 5 + stretches);
    assert_int_equal(o.g.tensors.items[route->out[ROUTE_OUT_SLOTS]].shape[0], n_slots);
    close_graph(&o);
    open_graph(&o, "MixtralForCausalLM", EXPERTS, 2, 1, false);
    stack(&o.g, "model.layers.0.block_sparse_moe.experts.*.w1.weight", 5, 80, 48);
    stack(&o.g, "model.layers.0.block_sparse_moe.experts.*.w2.weight", 5, 48, 80);
    assert_int_equal(o.g.tensors.items[o.g.ops.items[5].out[ROUTE_OUT_LIST]].shape[0], 4);
    close_graph(&o);
}

/* With the operators of many rows. The stream that the last of them writes is normed for the next
 * layer. */
static void experts_are_grouped(void **state) {
    (void)state;
    const struct model_options options = {.dummy = true};
    const uint32_t cuts = KGRAPH_CUT_QKV | KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H |
                          KGRAPH_SUM_SQUARES | KGRAPH_IMAGES | KGRAPH_GROUP;
    static const enum op_kind of_layer[] = {OP_ROUTER,        OP_ROUTE_TOP_K,     OP_ROUTE_LIST,
                                            OP_EXPERT_GATHER, OP_GROUPED_GATE_UP, OP_GROUPED_DOWN,
                                            OP_EXPERT_SUM};
    struct opened o = {0};
    struct diag d = {0};
    if (model_open(&d, "tests/golden/models/qwen3-moe", &options, &o.m) != QN_OK ||
        model_build_graph(&d, o.m, &o.arena, 8, 8, 1000, cuts, &o.g) != QN_OK ||
        kgraph_verify(&d, &o.g) != QN_OK)
        UTIL_FAIL("%s", d.message);
    size_t n = 0;
    for (size_t i = 0; i < o.g.ops.n; i++) {
        const struct kop *op = &o.g.ops.items[i];
        if (op->kind != OP_ROUTER) continue;
        for (size_t k = 0; k < COUNT_OF(of_layer); k++) assert_int_equal(op[k].kind, of_layer[k]);
        const struct kop *up = op + 4, *down = op + 5, *sum = op + 6;
        assert_int_equal(o.g.tensors.items[up->in[GROUPED_UP_ROWS]].layout, LAYOUT_PACKED);
        assert_int_equal(o.g.tensors.items[down->in[GROUPED_DOWN_H]].layout, LAYOUT_PACKED);
        assert_int_equal(sum->in[EXPERT_RESIDUAL], op->in[ROUTER_X]);
        assert_int_not_equal(sum->out[STREAM_NORMED], NO_TENSOR);
        n++;
    }
    assert_true(n > 1);
    close_graph(&o);
}

static void shared_experts_have_a_gate(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen2MoeForCausalLM", EXPERTS ",\"shared_expert_intermediate_size\":21", 1, 1,
               false);
    want_ops(&o.g,
             (enum op_kind[]){OP_QKV, OP_ATTENTION, OP_LINEAR, OP_ROUTER, OP_ROUTE, OP_GATED_MLP,
                              OP_LINEAR, OP_EXPERT_GATE_UP, OP_EXPERT_DOWN},
             9);
    want_weight(&o.g, "model.layers.0.mlp.shared_expert.down_proj.weight", DTYPE_BF16, 48, 21);
    const struct tensor *router = &o.g.tensors.items[o.g.ops.items[4].in[ROUTER_W]];
    assert_int_equal(router->shape[0], 6);
    assert_string_equal(o.g.parts.items[router->first_part + 1].name,
                        "model.layers.0.mlp.shared_expert_gate.weight");
    close_graph(&o);
}

static void tied_head_is_the_embedding(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen3ForCausalLM", ",\"tie_word_embeddings\":true", 1, 1, false);
    assert_null(weight(&o.g, "lm_head.weight"));
    const struct kop *lm = &o.g.ops.items[o.g.ops.n - 2];
    assert_int_equal(lm->in[LM_W], o.g.ops.items[0].in[EMBED_TABLE]);
    close_graph(&o);
}

static void graph_wants_sane_sizes(void **state) {
    (void)state;
    struct opened o;
    open_graph(&o, "Qwen3ForCausalLM", "", 1, 1, false);
    const struct {
        uint32_t rows, logit_rows, len;
    } bad[] = {{0, 0, 8}, {1, 0, 8}, {1, 2, 8}, {1, 1, 0}, {1, 1, SPEC_MAX_MODEL_LEN + 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct diag d = {0};
        struct kgraph g;
        assert_int_equal(model_build_graph(&d, o.m, &o.arena, bad[i].rows, bad[i].logit_rows,
                                           bad[i].len, false, &g),
                         QN_EINVAL);
        kgraph_fini(&g);
    }
    close_graph(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_graph),
        cmocka_unit_test(residuals_chain),
        cmocka_unit_test(many_logit_rows_are_bands),
        cmocka_unit_test(attention_can_be_split),
        cmocka_unit_test(qwen2_has_qkv_biases_only),
        cmocka_unit_test(llama_biases_are_optional),
        cmocka_unit_test(mistral_has_no_biases),
        cmocka_unit_test(experts_are_stacked),
        cmocka_unit_test(experts_are_grouped),
        cmocka_unit_test(shared_experts_have_a_gate),
        cmocka_unit_test(tied_head_is_the_embedding),
        cmocka_unit_test(graph_wants_sane_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
