/* config.json and generation_config.json: every spelling, every refusal with its message. */
#include "base/checked.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

#include "model/model_util.h"

#define LLAMA   "\"architectures\":[\"LlamaForCausalLM\"]"
#define QWEN2   "\"architectures\":[\"Qwen2ForCausalLM\"]"
#define QWEN3   "\"architectures\":[\"Qwen3ForCausalLM\"]"
#define MISTRAL "\"architectures\":[\"MistralForCausalLM\"]"
#define SIZES                                                                                      \
    "\"num_hidden_layers\":2,\"hidden_size\":48,\"intermediate_size\":80,\"vocab_size\":301,"      \
    "\"num_attention_heads\":6"

static int parse(struct diag *d, const char *text, struct hf_config *c) {
    *d = (struct diag){0};
    return hf_config_parse(d, "config.json", text, strlen(text), c);
}

static struct hf_config good(const char *text) {
    struct diag d;
    struct hf_config c;
    if (parse(&d, text, &c) != QN_OK) UTIL_FAIL("%s\n%s", text, d.message);
    return c;
}

static void bad(const char *text, int rc, const char *message) {
    struct diag d;
    struct hf_config c;
    int have = parse(&d, text, &c);
    if (have != rc || strcmp(d.message, message) != 0)
        UTIL_FAIL("%s\nwant %d %s\nhave %d %s", text, rc, message, have, d.message);
}

static void defaults_of_each_family(void **state) {
    (void)state;
    struct hf_config c = good("{" LLAMA "," SIZES "}");
    assert_ptr_equal(c.family, &family_llama);
    assert_int_equal(c.spec.n_layers, 2);
    assert_int_equal(c.spec.hidden, 48);
    assert_int_equal(c.spec.intermediate, 80);
    assert_int_equal(c.spec.vocab, 301);
    assert_int_equal(c.spec.n_heads, 6);
    assert_int_equal(c.spec.n_kv_heads, 6); /* absent: as many as query heads */
    assert_int_equal(c.spec.head_dim, 8);   /* absent: hidden / heads */
    assert_int_equal(c.spec.max_position, 2048);
    assert_true(c.spec.rms_eps == 1e-6f);
    assert_true(c.spec.rope_theta == 10000);
    assert_int_equal(c.spec.rope_kind, ROPE_DEFAULT);
    assert_int_equal(c.spec.bos, 1);
    assert_int_equal(c.spec.n_eos, 1);
    assert_int_equal(c.spec.eos[0], 2);
    assert_int_equal(c.spec.weight_dtype, DTYPE_BF16);
    assert_false(c.dtype_given);
    assert_false(c.tied_given);
    assert_int_equal(c.spec.tied | c.spec.qkv_bias | c.spec.o_bias | c.spec.mlp_bias |
                         c.spec.qk_norm | c.spec.sliding_window,
                     0);

    c = good("{" QWEN2 "," SIZES "}");
    assert_int_equal(c.spec.qkv_bias, 1);
    assert_int_equal(c.spec.o_bias, 0);
    assert_int_equal(c.spec.max_position, 32768);
    assert_int_equal(c.spec.bos, -1);
    assert_int_equal(c.spec.n_eos, 0);
    c = good("{" QWEN3 "," SIZES "}");
    assert_int_equal(c.spec.qk_norm, 1);
    assert_int_equal(c.spec.head_dim, 128);
    c = good("{" MISTRAL "," SIZES "}");
    assert_int_equal(c.spec.sliding_window, 4096);
    assert_int_equal(c.spec.max_position, 131072);
}

static void the_family_is_found(void **state) {
    (void)state;
    assert_ptr_equal(good("{\"model_type\":\"qwen3\"," SIZES "}").family, &family_qwen3);
    assert_ptr_equal(
        good("{\"architectures\":[\"Custom\",\"MistralForCausalLM\"]," SIZES "}").family,
        &family_mistral);
    assert_ptr_equal(good("{\"architectures\":[\"LLaMAForCausalLM\"]," SIZES "}").family,
                     &family_llama);
    bad("{\"architectures\":[\"GPT2LMHeadModel\"]," SIZES "}", QN_EUNSUPPORTED,
        "config.json: architectures: 'GPT2LMHeadModel' is not supported; supported are "
        "DeepseekV2ForCausalLM, LlamaForCausalLM, MinistralForCausalLM, MistralForCausalLM, "
        "MixtralForCausalLM, Qwen2ForCausalLM, Qwen2MoeForCausalLM, Qwen3ForCausalLM, "
        "Qwen3MoeForCausalLM");
    bad("{\"model_type\":\"mamba\"," SIZES "}", QN_EUNSUPPORTED,
        "config.json: model_type: 'mamba' is not supported; supported are "
        "DeepseekV2ForCausalLM, LlamaForCausalLM, MinistralForCausalLM, MistralForCausalLM, "
        "MixtralForCausalLM, Qwen2ForCausalLM, Qwen2MoeForCausalLM, Qwen3ForCausalLM, "
        "Qwen3MoeForCausalLM");
    bad("{" SIZES "}", QN_EFORMAT,
        "config.json: architectures: want a list of strings, have nothing");
    bad("{\"architectures\":[7]," SIZES "}", QN_EFORMAT,
        "config.json: architectures: want a list of strings");
    bad("{\"architectures\":\"LlamaForCausalLM\"," SIZES "}", QN_EFORMAT,
        "config.json: architectures: want an array, have a string");
    bad("[]", QN_EFORMAT, "config.json: want a JSON object");
}

#define QWEN3_MOE "\"architectures\":[\"Qwen3MoeForCausalLM\"]"
#define QWEN2_MOE "\"architectures\":[\"Qwen2MoeForCausalLM\"]"
#define MIXTRAL   "\"architectures\":[\"MixtralForCausalLM\"]"

static void experts_have_defaults(void **state) {
    (void)state;
    struct experts_spec e = good("{" QWEN3_MOE "," SIZES "}").spec.experts;
    assert_int_equal(e.n, 128);
    assert_int_equal(e.top_k, 8);
    assert_int_equal(e.width, 768);
    assert_int_equal(e.normed | e.shared_width | e.shared_gate | e.dense[0], 0);
    e = good("{" QWEN2_MOE "," SIZES "}").spec.experts;
    assert_int_equal(e.n, 60);
    assert_int_equal(e.top_k, 4);
    assert_int_equal(e.width, 1408);
    assert_int_equal(e.shared_width, 5632);
    assert_int_equal(e.shared_gate, 1);
    assert_int_equal(e.normed, 0);
    e = good("{" MIXTRAL "," SIZES "}").spec.experts;
    assert_int_equal(e.n, 8);
    assert_int_equal(e.top_k, 2);
    assert_int_equal(e.width, 80); /* intermediate_size */
    assert_int_equal(e.normed, 1);
    assert_int_equal(good("{" QWEN3 "," SIZES ",\"num_experts\":8}").spec.experts.n, 0);
}

static void experts_have_two_spellings(void **state) {
    (void)state;
    assert_int_equal(good("{" QWEN3_MOE "," SIZES ",\"num_experts\":9}").spec.experts.n, 9);
    assert_int_equal(good("{" QWEN3_MOE "," SIZES ",\"num_local_experts\":9}").spec.experts.n, 9);
    assert_int_equal(good("{" MIXTRAL "," SIZES ",\"num_experts\":9}").spec.experts.n, 9);
    assert_int_equal(good("{" QWEN3_MOE "," SIZES ",\"num_experts\":0}").spec.experts.n, 0);
    bad("{" QWEN3_MOE "," SIZES ",\"num_experts\":4}", QN_ESHAPE,
        "config.json: num_experts_per_tok: want a number from 1 to 4, have 8");
    bad("{" QWEN3_MOE "," SIZES ",\"num_experts\":4,\"num_experts_per_tok\":5}", QN_EFORMAT,
        "config.json: num_experts_per_tok: want an integer from 1 to 4, have 5");
    bad("{" QWEN3_MOE "," SIZES ",\"num_experts\":1025}", QN_EFORMAT,
        "config.json: num_experts: want an integer from 0 to 1024, have 1025");
    bad("{" QWEN3_MOE "," SIZES ",\"moe_intermediate_size\":0}", QN_EFORMAT,
        "config.json: moe_intermediate_size: want an integer from 1 to 65536, have 0");
    bad("{" QWEN3_MOE "," SIZES ",\"norm_topk_prob\":1}", QN_EFORMAT,
        "config.json: norm_topk_prob: want true or false, have an integer");
}

static void some_layers_are_dense(void **state) {
    (void)state;
#define LAYERS(n, more)                                                                            \
    "{" QWEN3_MOE ",\"num_hidden_layers\":" n ",\"hidden_size\":48,\"intermediate_size\":80,"      \
    "\"vocab_size\":301,\"num_attention_heads\":6" more "}"
    struct experts_spec e = good(LAYERS("7", ",\"decoder_sparse_step\":3")).spec.experts;
    assert_int_equal(e.dense[0], 0x5b); /* layers 2 and 5 have experts */
    e = good(LAYERS("40", ",\"mlp_only_layers\":[0,33,40,-1]")).spec.experts;
    assert_int_equal(e.dense[0], 1);
    assert_int_equal(e.dense[1], 2);
    bad(LAYERS("7", ",\"mlp_only_layers\":[\"a\"]"), QN_EFORMAT,
        "config.json: mlp_only_layers: want a list of layers");
    bad(LAYERS("7", ",\"decoder_sparse_step\":0"), QN_EFORMAT,
        "config.json: decoder_sparse_step: want an integer from 1 to 512, have 0");
}

static void windows_of_experts(void **state) {
    (void)state;
    assert_int_equal(good("{" QWEN3_MOE "," SIZES ",\"sliding_window\":9}").spec.sliding_window, 0);
    assert_int_equal(good("{" QWEN3_MOE "," SIZES ",\"use_sliding_window\":true,"
                          "\"sliding_window\":9,\"max_window_layers\":1}")
                         .spec.sliding_window,
                     9);
    assert_int_equal(good("{" MIXTRAL "," SIZES "}").spec.sliding_window, 0);
    assert_int_equal(good("{" MIXTRAL "," SIZES ",\"sliding_window\":9}").spec.sliding_window, 9);
    const struct model_spec s =
        good("{" QWEN2_MOE "," SIZES ",\"use_sliding_window\":true,\"sliding_window\":9}").spec;
    assert_int_equal(spec_window(&s, 0), 9);
    assert_int_equal(spec_window(&s, 1), 0);
}

static void every_number_has_bounds(void **state) {
    (void)state;
    bad("{" LLAMA ",\"num_hidden_layers\":0}", QN_EFORMAT,
        "config.json: num_hidden_layers: want an integer from 1 to 512, have 0");
    bad("{" LLAMA ",\"num_hidden_layers\":2}", QN_EFORMAT,
        "config.json: hidden_size: want an integer, have nothing");
    bad("{" LLAMA ",\"num_hidden_layers\":2,\"hidden_size\":4294967344}", QN_EFORMAT,
        "config.json: hidden_size: want an integer from 2 to 65536, have 4294967344");
    bad("{" LLAMA ",\"num_hidden_layers\":2,\"hidden_size\":48.0}", QN_EFORMAT,
        "config.json: hidden_size: want an integer, have a number");
    bad("{" LLAMA "," SIZES ",\"num_key_value_heads\":4}", QN_ESHAPE,
        "config.json: num_key_value_heads: want a divisor of num_attention_heads (6), have 4");
    bad("{" LLAMA "," SIZES ",\"num_key_value_heads\":7}", QN_EFORMAT,
        "config.json: num_key_value_heads: want an integer from 1 to 6, have 7");
    bad("{" LLAMA "," SIZES ",\"head_dim\":7}", QN_ESHAPE,
        "config.json: head_dim: want an even number, have 7");
    bad("{" LLAMA "," SIZES ",\"head_dim\":0}", QN_EFORMAT,
        "config.json: head_dim: want an integer from 2 to 512, have 0");
    bad("{" LLAMA ",\"num_hidden_layers\":2,\"hidden_size\":50,\"intermediate_size\":80,"
        "\"vocab_size\":301,\"num_attention_heads\":6}",
        QN_ESHAPE,
        "config.json: hidden_size: want a multiple of num_attention_heads (6) where head_dim is "
        "not given, have 50");
    bad("{" LLAMA "," SIZES ",\"rms_norm_eps\":-1}", QN_EFORMAT,
        "config.json: rms_norm_eps: want a number from 0 to 0.5, have -1");
    bad("{" LLAMA "," SIZES ",\"rope_theta\":0}", QN_EFORMAT,
        "config.json: rope_theta: want a number from 1 to 1e+15, have 0");
    bad("{" LLAMA "," SIZES ",\"max_position_embeddings\":-5}", QN_EFORMAT,
        "config.json: max_position_embeddings: want an integer from 1 to 2147483647, have -5");
    bad("{" LLAMA "," SIZES ",\"tie_word_embeddings\":1}", QN_EFORMAT,
        "config.json: tie_word_embeddings: want true or false, have an integer");
    bad("{" MISTRAL "," SIZES ",\"sliding_window\":0}", QN_EFORMAT,
        "config.json: sliding_window: want an integer from 1 to 2147483647, have 0");
    assert_int_equal(
        good("{" LLAMA "," SIZES ",\"max_position_embeddings\":10485760}").spec.max_position,
        SPEC_MAX_MODEL_LEN);
    assert_int_equal(good("{" LLAMA "," SIZES ",\"head_dim\":null}").spec.head_dim, 8);
    assert_int_equal(good("{" LLAMA "," SIZES ",\"num_key_value_heads\":null}").spec.n_kv_heads, 6);
}

static void token_ids_come_in_three_forms(void **state) {
    (void)state;
    struct hf_config c =
        good("{" LLAMA "," SIZES ",\"eos_token_id\":[5,300,5],\"bos_token_id\":3}");
    assert_int_equal(c.spec.n_eos, 2);
    assert_int_equal(c.spec.eos[1], 300);
    assert_int_equal(c.spec.bos, 3);
    c = good("{" LLAMA "," SIZES ",\"eos_token_id\":null,\"bos_token_id\":null}");
    assert_int_equal(c.spec.n_eos, 0);
    assert_int_equal(c.spec.bos, -1);
    assert_int_equal(good("{" QWEN3 "," SIZES ",\"eos_token_id\":0}").spec.n_eos, 1);
    /* Ids that are never sampled end nothing. */
    c = good("{" LLAMA "," SIZES
             ",\"eos_token_id\":[301,-1,300,1099511627776],\"bos_token_id\":-1}");
    assert_int_equal(c.spec.n_eos, 1);
    assert_int_equal(c.spec.eos[0], 300);
    assert_int_equal(c.spec.bos, -1);
    assert_int_equal(good("{" LLAMA "," SIZES ",\"bos_token_id\":301}").spec.bos, -1);
    bad("{" LLAMA "," SIZES ",\"eos_token_id\":\"</s>\"}", QN_EFORMAT,
        "config.json: eos_token_id: want a token id or a list of token ids");
    bad("{" LLAMA "," SIZES ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]}", QN_EFORMAT,
        "config.json: eos_token_id: want at most 8 ids");
}

static void dtypes_are_spelled_in_many_ways(void **state) {
    (void)state;
    struct hf_config c = good("{" LLAMA "," SIZES ",\"torch_dtype\":\"float16\"}");
    assert_int_equal(c.spec.weight_dtype, DTYPE_F16);
    assert_true(c.dtype_given);
    assert_int_equal(good("{" LLAMA "," SIZES ",\"dtype\":\"float32\"}").spec.weight_dtype,
                     DTYPE_F32);
    assert_int_equal(good("{" LLAMA "," SIZES ",\"dtype\":\"torch.bfloat16\"}").spec.weight_dtype,
                     DTYPE_BF16);
    bad("{" LLAMA "," SIZES ",\"dtype\":\"float8_e4m3fn\"}", QN_EUNSUPPORTED,
        "config.json: dtype: want bfloat16, float16 or float32, have 'float8_e4m3fn'");
}

static void biases_are_read_where_the_family_has_them(void **state) {
    (void)state;
    struct hf_config c = good("{" LLAMA "," SIZES ",\"attention_bias\":true,\"mlp_bias\":true}");
    assert_int_equal(c.spec.qkv_bias & c.spec.o_bias & c.spec.mlp_bias, 1);
    c = good("{" QWEN3 "," SIZES ",\"attention_bias\":true,\"mlp_bias\":true}");
    assert_int_equal(c.spec.qkv_bias & c.spec.o_bias, 1);
    assert_int_equal(c.spec.mlp_bias, 0);
    c = good("{" QWEN2 "," SIZES ",\"attention_bias\":true}");
    assert_int_equal(c.spec.o_bias, 0);
}

/* Ministral's configurations are Mistral's. */
static void ministral_is_mistral(void **state) {
    (void)state;
    const struct hf_config a = good("{" MISTRAL "," SIZES ",\"layer_types\":"
                                    "[\"sliding_attention\",\"full_attention\"]}");
    const struct hf_config b =
        good("{\"architectures\":[\"MinistralForCausalLM\"]," SIZES ",\"layer_types\":"
             "[\"sliding_attention\",\"full_attention\"]}");
    assert_string_equal(b.family->name, "ministral");
    assert_memory_equal(&a.spec, &b.spec, sizeof a.spec);
}

/* What layers 0 and 1 see, as transformers has it. */
static void mixed_windows(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t want[2];
    } cases[] = {
        {"{" QWEN2 "," SIZES
         ",\"sliding_window\":77,\"use_sliding_window\":true,\"max_window_layers\":1}",
         {0, 77}},
        {"{" QWEN3 "," SIZES ",\"use_sliding_window\":true,\"max_window_layers\":1}", {0, 4096}},
        {"{" QWEN2 "," SIZES
         ",\"sliding_window\":77,\"use_sliding_window\":true,\"max_window_layers\":-1}",
         {77, 77}},
        {"{" QWEN3 "," SIZES
         ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":1,"
         "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
         {9, 0}},
        {"{" QWEN2 "," SIZES ",\"sliding_window\":9,\"use_sliding_window\":true,"
         "\"layer_types\":[\"attention\",\"sliding_attention\"]}",
         {0, 9}},
        {"{" QWEN2 "," SIZES ",\"sliding_window\":9,\"use_sliding_window\":true,"
         "\"max_window_layers\":0,\"layer_types\":[\"full_attention\",\"full_attention\"]}",
         {0, 0}},
        {"{" QWEN2 "," SIZES ",\"sliding_window\":9,\"use_sliding_window\":true,"
         "\"max_window_layers\":1,\"layer_types\":null}",
         {0, 9}},
        /* switched off: not read */
        {"{" QWEN2 "," SIZES
         ",\"sliding_window\":0,\"use_sliding_window\":false,\"max_window_layers\":-3}",
         {0, 0}},
        {"{" MISTRAL "," SIZES
         ",\"sliding_window\":9,\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]}",
         {9, 9}},
        {"{" MISTRAL "," SIZES
         ",\"sliding_window\":9,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         {0, 9}},
        {"{" MISTRAL "," SIZES
         ",\"sliding_window\":9,\"layer_types\":[\"full_attention\",\"full_attention\"]}",
         {0, 0}},
        {"{" MISTRAL "," SIZES ",\"sliding_window\":9,\"use_sliding_window\":false}", {9, 9}},
        {"{" LLAMA "," SIZES
         ",\"sliding_window\":9,\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
         {0, 0}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct hf_config c = good(cases[i].text);
        for (uint32_t layer = 0; layer < 2; layer++)
            if (spec_window(&c.spec, layer) != cases[i].want[layer])
                UTIL_FAIL("%s: layer %u", cases[i].text, layer);
    }
}

static void windows(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint32_t want;
    } cases[] = {
        {"{" MISTRAL "," SIZES ",\"sliding_window\":null}", 0},
        {"{" MISTRAL "," SIZES ",\"sliding_window\":77}", 77},
        {"{" LLAMA "," SIZES ",\"sliding_window\":77}", 0},
        {"{" QWEN2 "," SIZES ",\"sliding_window\":77,\"use_sliding_window\":false}", 0},
        {"{" QWEN2 "," SIZES ",\"sliding_window\":77,\"max_window_layers\":0}", 0},
        {"{" QWEN2 "," SIZES
         ",\"sliding_window\":77,\"use_sliding_window\":true,\"max_window_layers\":0}",
         77},
        {"{" QWEN2 "," SIZES
         ",\"sliding_window\":77,\"use_sliding_window\":true,\"max_window_layers\":2}",
         0},
        {"{" QWEN2 "," SIZES ",\"sliding_window\":77,\"use_sliding_window\":true}", 0}, /* 28 */
        {"{" QWEN2 "," SIZES
         ",\"sliding_window\":null,\"use_sliding_window\":true,\"max_window_layers\":0}",
         0},
        {"{" QWEN3 "," SIZES ",\"sliding_window\":9,\"use_sliding_window\":true,\"layer_types\":"
         "[\"sliding_attention\",\"sliding_attention\"]}",
         9},
        {"{" QWEN3 "," SIZES ",\"sliding_window\":null,\"use_sliding_window\":false,"
         "\"layer_types\":[\"full_attention\",\"full_attention\"]}",
         0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (good(cases[i].text).spec.sliding_window != cases[i].want)
            UTIL_FAIL("%s", cases[i].text);
    bad("{" QWEN3 "," SIZES ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
        QN_EFORMAT,
        "config.json: layer_types: layer 1 is sliding_attention: want use_sliding_window true and "
        "a sliding_window");
    bad("{" QWEN3 "," SIZES ",\"use_sliding_window\":true,\"sliding_window\":null,"
        "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
        QN_EFORMAT,
        "config.json: layer_types: layer 0 is sliding_attention: want use_sliding_window true and "
        "a sliding_window");
    bad("{" QWEN2 "," SIZES ",\"sliding_window\":0,\"use_sliding_window\":true}", QN_EFORMAT,
        "config.json: sliding_window: want an integer from 1 to 2147483647, have 0");
    bad("{" MISTRAL "," SIZES
        ",\"sliding_window\":null,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
        QN_EFORMAT,
        "config.json: layer_types: layer 1 is sliding_attention: want a sliding_window");
    bad("{" QWEN3 "," SIZES ",\"layer_types\":[\"full_attention\"]}", QN_EFORMAT,
        "config.json: layer_types: want 2 entries, have 1");
    bad("{" QWEN3 "," SIZES ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]}",
        QN_EUNSUPPORTED,
        "config.json: layer_types: want full_attention or sliding_attention, have "
        "'chunked_attention'");
}

#define LLAMA3                                                                                     \
    "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                             \
    "\"original_max_position_embeddings\":8192"

static void rope_has_two_spellings(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{" LLAMA "," SIZES
        ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}",
        "{" LLAMA "," SIZES ",\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3
        "}}",
        "{" LLAMA "," SIZES ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":"
        "\"llama3\"," LLAMA3 "}}",
        "{" LLAMA "," SIZES ",\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":500000.0,"
        "\"rope_type\":\"llama3\"," LLAMA3 "}}",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct model_spec s = good(texts[i]).spec;
        assert_int_equal(s.rope_kind, ROPE_LLAMA3);
        assert_true(s.rope_theta == 500000);
        assert_true(s.rope_factor == 8);
        assert_true(s.rope_low_freq_factor == 1);
        assert_true(s.rope_high_freq_factor == 4);
        assert_int_equal(s.rope_original_max, 8192);
    }
    struct model_spec s =
        good("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}").spec;
    assert_int_equal(s.rope_kind, ROPE_LINEAR);
    assert_true(s.rope_factor == 2.5);
    s = good("{" QWEN3 "," SIZES
             ",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":\"default\"}}")
            .spec;
    assert_int_equal(s.rope_kind, ROPE_DEFAULT);
    assert_true(s.rope_theta == 1e6f);
}

/* The original length: beside RoPE, in it, or max_position_embeddings; what a type stretches. */
static void original_lengths(void **state) {
    (void)state;
    static const struct {
        const char *json;
        uint32_t original, max_position;
    } cases[] = {
        {"\"max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
         "\"low_freq_factor\":1,\"high_freq_factor\":4}",
         512, 512},
        {"\"max_position_embeddings\":512,\"original_max_position_embeddings\":64,"
         "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1,1,1],\"long_factor\":[2,2,2,2],"
         "\"original_max_position_embeddings\":128}",
         64, 512},
        {"\"max_position_embeddings\":512,\"rope_parameters\":{\"rope_type\":\"dynamic\","
         "\"factor\":3}",
         512, 1536},
        {"\"max_position_embeddings\":512,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", 0,
         1024},
        {"\"max_position_embeddings\":40960,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
         "\"original_max_position_embeddings\":32768}",
         0, 131072},
        {"\"max_position_embeddings\":131072,\"rope_scaling\":{\"rope_type\":\"yarn\","
         "\"original_max_position_embeddings\":32768}",
         0, 131072},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char json[600];
        snprintf(json, sizeof json, "{" LLAMA "," SIZES ",%s}", cases[i].json);
        const struct model_spec s = good(json).spec;
        assert_int_equal(s.rope_original_max, cases[i].original);
        assert_int_equal(s.max_position, cases[i].max_position);
    }
}

/* Sizes of latent attention, all layers dense. */
#define LATENT "\"architectures\":[\"DeepseekV2ForCausalLM\"]," SIZES ",\"first_k_dense_replace\":2"

static void latents_are_read(void **state) {
    (void)state;
    struct model_spec s = good("{" LATENT "}").spec;
    assert_int_equal(s.latent.kv_rank, 512);
    assert_int_equal(s.latent.q_rank, 1536);
    assert_int_equal(s.latent.rope, 64);
    assert_int_equal(s.latent.v_dim, 128);
    assert_int_equal(s.head_dim, 192);
    assert_int_equal(s.n_kv_heads, 1);
    assert_true(fabsf(s.latent.scale - 0.0721688f) < 1e-6f);
    /* head_dim is that of the turned key, whatever it says. */
    s = good("{" LATENT ",\"q_lora_rank\":null,\"kv_lora_rank\":40,\"qk_nope_head_dim\":16,"
             "\"qk_rope_head_dim\":8,\"v_head_dim\":20,\"head_dim\":8}")
            .spec;
    assert_int_equal(s.latent.q_rank, 0);
    assert_int_equal(s.latent.kv_rank, 40);
    assert_int_equal(s.head_dim, 24);
    assert_int_equal(spec_rope_dim(&s), 8);
    assert_int_equal(spec_v_dim(&s), 20);
    /* V2-Lite's scale: 192^-0.5 * (0.1 * 0.707 * ln 40 + 1)^2. */
    s = good("{" LATENT ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":0.707,"
             "\"mscale_all_dim\":0.707,\"original_max_position_embeddings\":4096}}")
            .spec;
    assert_true(fabsf(s.latent.scale - 0.114721f) < 1e-5f);
    assert_true(s.rope_scale == 1);
}

/* The same with a layer of experts. */
#define GROUPED(more)                                                                              \
    "{\"architectures\":[\"DeepseekV2ForCausalLM\"]," SIZES ",\"first_k_dense_replace\":1,"        \
    "\"n_routed_experts\":12,\"num_experts_per_tok\":4,\"moe_intermediate_size\":24" more "}"

static void experts_in_groups(void **state) {
    (void)state;
    struct experts_spec e = good("{" LATENT "}").spec.experts;
    assert_int_equal(e.n, 0);
    e = good(GROUPED("")).spec.experts;
    assert_int_equal(e.n, 12);
    assert_int_equal(e.dense[0], 1);
    assert_int_equal(e.shared_width, 48); /* two */
    assert_int_equal(e.normed | e.shared_gate | e.groups | e.top_groups, 0);
    assert_true(e.scale == 1);
    e = good(GROUPED(",\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":2,"
                     "\"routed_scaling_factor\":16.0,\"n_shared_experts\":0"))
            .spec.experts;
    assert_int_equal(e.groups, 4);
    assert_int_equal(e.top_groups, 2);
    assert_int_equal(e.shared_width, 0);
    assert_true(e.scale == 16);
    bad(GROUPED(",\"topk_method\":\"noaux_tc\""), QN_EUNSUPPORTED,
        "config.json: topk_method: want greedy or group_limited_greedy, have 'noaux_tc'");
    bad(GROUPED(",\"scoring_func\":\"sigmoid\""), QN_EUNSUPPORTED,
        "config.json: scoring_func: want softmax, have 'sigmoid'");
    bad(GROUPED(",\"norm_topk_prob\":true"), QN_EUNSUPPORTED,
        "config.json: norm_topk_prob: want false, have 'true'");
    bad(GROUPED(",\"topk_method\":\"group_limited_greedy\",\"topk_group\":2"), QN_EFORMAT,
        "config.json: n_group: want a number, as topk_method is group_limited_greedy");
    bad(GROUPED(",\"topk_method\":\"group_limited_greedy\",\"n_group\":5,\"topk_group\":2"),
        QN_ESHAPE, "config.json: n_group: want a divisor of the number of experts (12), have 5");
    bad(GROUPED(",\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":1"),
        QN_ESHAPE,
        "config.json: num_experts_per_tok: want at most the experts of topk_group groups (3), "
        "have 4");
    bad(GROUPED(",\"routed_scaling_factor\":0"), QN_EFORMAT,
        "config.json: routed_scaling_factor: want a number from 1e-06 to 1e+06, have 0");
}

static void other_latents_are_refused(void **state) {
    (void)state;
    bad("{" LATENT ",\"num_key_value_heads\":3}", QN_EUNSUPPORTED,
        "config.json: num_key_value_heads: want num_attention_heads (6), as latent attention has "
        "it, have 3");
    bad("{" LATENT ",\"kv_lora_rank\":0}", QN_EFORMAT,
        "config.json: kv_lora_rank: want an integer from 1 to 65536, have 0");
    bad("{" LATENT ",\"kv_lora_rank\":1000}", QN_ESHAPE,
        "config.json: kv_lora_rank + qk_rope_head_dim: want a number from 1 to 1024, have 1064");
    bad("{" LATENT ",\"qk_rope_head_dim\":7}", QN_ESHAPE,
        "config.json: qk_rope_head_dim: want an even number, have 7");
    bad("{" LATENT ",\"q_lora_rank\":\"x\"}", QN_EFORMAT,
        "config.json: q_lora_rank: want an integer, have a string");
    bad("{" LATENT ",\"v_head_dim\":513}", QN_EFORMAT,
        "config.json: v_head_dim: want an integer from 1 to 512, have 513");
    bad("{" LATENT ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale_all_dim\":-1}}",
        QN_EFORMAT,
        "config.json: rope_scaling: mscale_all_dim: want a number from 0 to 1e+06, have -1");
}

static void other_ropes_are_refused(void **state) {
    (void)state;
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"xpos\",\"factor\":4.0}}",
        QN_EUNSUPPORTED,
        "config.json: rope_scaling: type: want default, linear, dynamic, yarn, longrope or llama3, "
        "have 'xpos'");
    bad("{" LLAMA "," SIZES ",\"rope_parameters\":{\"rope_type\":\"dynamic\"}}", QN_EFORMAT,
        "config.json: rope_parameters: factor: want a number, have nothing");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}}", QN_EFORMAT,
        "config.json: rope_scaling: factor: want a number from 1 to 1e+06, have 0.5");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"yarn\",\"beta_fast\":NaN}}", QN_EFORMAT,
        "config.json: rope_scaling: beta_fast: want a number, have a number that is not finite");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2]}}",
        QN_EFORMAT,
        "config.json: rope_scaling: short_factor: want 4 numbers (head_dim / 2), have 2");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,2,3,4],"
        "\"long_factor\":[1,2,0,4]}}",
        QN_EFORMAT, "config.json: rope_scaling: long_factor[2]: want a number from 1e-06 to 1e+06");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"linear\"}}", QN_EFORMAT,
        "config.json: rope_scaling: factor: want a number, have nothing");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}", QN_EFORMAT,
        "config.json: rope_scaling: factor: want a number from 1 to 1e+06, have 0.5");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}", QN_EFORMAT,
        "config.json: rope_scaling: factor: want a number, have a string");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,"
        "\"low_freq_factor\":4,\"high_freq_factor\":4,\"original_max_position_embeddings\":8}}",
        QN_EFORMAT,
        "config.json: rope_scaling: high_freq_factor: want more than low_freq_factor (4), have 4");
    bad("{" LLAMA "," SIZES ",\"rope_scaling\":[]}", QN_EFORMAT,
        "config.json: rope_scaling: want an object, have an array");
    bad("{" LLAMA "," SIZES ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e6}}}",
        QN_EUNSUPPORTED,
        "config.json: rope_parameters.full_attention: want one RoPE for all layers, have an "
        "object");
    bad("{" LLAMA "," SIZES ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}",
        QN_EUNSUPPORTED, "config.json: rope_parameters: partial_rotary_factor: want 1, have 0.5");
}

static void what_changes_results_is_refused(void **state) {
    (void)state;
    bad("{" LLAMA "," SIZES ",\"hidden_act\":\"gelu\"}", QN_EUNSUPPORTED,
        "config.json: hidden_act: want silu, have 'gelu'");
    bad("{" LLAMA "," SIZES ",\"partial_rotary_factor\":0.5}", QN_EUNSUPPORTED,
        "config.json: partial_rotary_factor: want 1, have 0.5");
    bad("{" LLAMA "," SIZES ",\"quantization_config\":{\"quant_method\":\"gptq\"}}",
        QN_EUNSUPPORTED,
        "config.json: quantization_config.quant_method: want a checkpoint in bfloat16, float16 or "
        "float32, have 'gptq'");
    bad("{" LLAMA "," SIZES ",\"quantization\":{\"group_size\":64,\"bits\":4}}", QN_EUNSUPPORTED,
        "config.json: quantization: want a checkpoint in bfloat16, float16 or float32, have one "
        "quantized by MLX");
}

/* ---- generation_config.json ---- */

static int parse_generation(struct diag *d, const char *text, struct generation_config *c) {
    *d = (struct diag){0};
    return generation_config_parse(d, "g.json", text, strlen(text), 301, c);
}

#define OF(config, ID) ((float)(config).sampling[SAMPLING_PARAM_##ID])

static void generation_defaults(void **state) {
    (void)state;
    struct diag d;
    struct generation_config c;
    assert_int_equal(parse_generation(&d, "{}", &c), QN_OK);
    assert_true(c.found && c.do_sample);
    assert_true(OF(c, TEMPERATURE) == 1 && OF(c, TOP_P) == 1 && OF(c, MIN_P) == 0);
    assert_true(OF(c, REPETITION_PENALTY) == 1 && OF(c, TOP_K) == 0);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(parse_generation(&d,
                                      "{\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.95,"
                                      "\"top_k\":20,\"min_p\":0.1,\"repetition_penalty\":1.05,"
                                      "\"eos_token_id\":[5,6]}",
                                      &c),
                     QN_OK);
    assert_true(OF(c, TEMPERATURE) == 0.6f && OF(c, TOP_P) == 0.95f && OF(c, MIN_P) == 0.1f);
    assert_true(OF(c, REPETITION_PENALTY) == 1.05f && OF(c, TOP_K) == 20);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(parse_generation(&d, "{\"do_sample\":false,\"temperature\":0.6}", &c), QN_OK);
    assert_true(OF(c, TEMPERATURE) == 0);
    assert_int_equal(generation_config_load(&d, "/nonexistent", 301, &c), QN_OK);
    assert_false(c.found);
    assert_true(OF(c, TEMPERATURE) == 1);
}

static void generation_numbers_have_bounds(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"temperature\":-0.1}",
         "g.json: temperature: want a number from 0 up to 100, have -0.1"},
        {"{\"top_p\":0}", "g.json: top_p: want a number above 0 up to 1, have 0"},
        {"{\"top_p\":1.5}", "g.json: top_p: want a number above 0 up to 1, have 1.5"},
        {"{\"min_p\":2}", "g.json: min_p: want a number from 0 up to 1, have 2"},
        {"{\"top_k\":-2}", "g.json: top_k: want an integer from -1 to 2147483647, have -2"},
        {"{\"repetition_penalty\":0}",
         "g.json: repetition_penalty: want a number above 0 up to 100, have 0"},
        {"{\"eos_token_id\":[1.5]}",
         "g.json: eos_token_id: want a token id or a list of token ids"},
        {"{\"temperature\":NaN}",
         "g.json: temperature: want a number, have a number that is not finite"},
        {"[]", "g.json: want a JSON object"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d;
        struct generation_config c;
        if (parse_generation(&d, cases[i].text, &c) != QN_EFORMAT ||
            strcmp(d.message, cases[i].message) != 0)
            UTIL_FAIL("%s: %s", cases[i].text, d.message);
    }
}

/* ---- the directory ---- */

static const char *const names[] = {"config.json", "generation_config.json", NULL};

static void end_ids_are_united(void **state) {
    (void)state;
    char dir[64];
    struct diag d = {0};
    struct model *m;
    util_make_dir(dir);
    util_write_text(dir, "config.json", "{" QWEN3 "," SIZES ",\"eos_token_id\":7}");
    util_write_text(dir, "generation_config.json", "{\"eos_token_id\":[7,9],\"top_k\":20}");
    assert_int_equal(model_open(&d, dir, &(struct model_options){.dummy = true}, &m), QN_OK);
    assert_int_equal(m->spec.n_eos, 2);
    assert_int_equal(m->spec.eos[0], 7);
    assert_int_equal(m->spec.eos[1], 9);
    assert_true(OF(m->generation, TOP_K) == 20);
    model_free(m);
    util_remove_dir(dir, names);
}

/* What people point at in place of a model directory. */
static void other_paths_are_recognised(void **state) {
    (void)state;
    static const struct {
        const char *file, *message; /* behind the directory's name */
    } cases[] = {
        {"adapter_config.json",
         ": no config.json; an adapter (LoRA); merge it into its base model and name that folder"},
        {"m.gguf",
         ": no config.json; a GGUF model; want the one for transformers, with safetensors"},
        {"params.json",
         ": no config.json; a checkpoint in its maker's own format; want the one for transformers"},
    };
    struct diag d = {0};
    struct model *m;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char dir[64];
        const char *const files[] = {cases[i].file, NULL};
        util_make_dir(dir);
        util_write_text(dir, cases[i].file, "{}");
        diag_clear(&d);
        assert_int_equal(model_open(&d, dir, NULL, &m), QN_EUNSUPPORTED);
        assert_string_equal(d.message + strlen(dir), cases[i].message);
        util_remove_dir(dir, files);
    }
    diag_clear(&d);
    assert_int_equal(model_open(&d, "Qwen/Qwen3-0.6B", NULL, &m), QN_ENOENT);
    assert_string_equal(d.message, "Qwen/Qwen3-0.6B: no such folder; quern downloads nothing: get "
                                   "the model first (hf download Qwen/Qwen3-0.6B --local-dir "
                                   "FOLDER), then name the folder");
    diag_clear(&d);
    assert_int_equal(model_open(&d, "tests/no-such-model", NULL, &m), QN_ENOENT);
    assert_string_equal(d.message, "tests/no-such-model: No such file or directory");
}

static void lfs_pointers_are_recognised(void **state) {
    (void)state;
    char dir[64], want[200];
    struct diag d = {0};
    struct model *m;
    util_make_dir(dir);
    util_write_text(dir, "config.json",
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n");
    assert_int_equal(model_open(&d, dir, NULL, &m), QN_EFORMAT);
    snprintf(want, sizeof want,
             "%s/config.json: a Git LFS pointer, not the file itself; fetch it "
             "with: git lfs pull",
             dir);
    assert_string_equal(d.message, want);
    util_remove_dir(dir, names);
}

static void directories_without_a_model(void **state) {
    (void)state;
    char dir[64], text[200];
    struct diag d = {0};
    struct model *m;
    assert_int_equal(model_open(&d, "/nonexistent/x", NULL, &m), QN_ENOENT);
    assert_string_equal(d.message, "/nonexistent/x: No such file or directory");
    assert_null(m);
    diag_clear(&d);
    util_make_dir(dir);
    assert_int_equal(model_open(&d, dir, NULL, &m), QN_ENOENT);
    snprintf(text, sizeof text, "%s/config.json: No such file or directory", dir);
    assert_string_equal(d.message, text);
    diag_clear(&d);
    util_write_text(dir, "config.json", "{" QWEN3 "," SIZES "}");
    assert_int_equal(model_open(&d, dir, NULL, &m), QN_ENOENT);
    snprintf(text, sizeof text,
             "%s: want model.safetensors or model.safetensors.index.json, have neither", dir);
    assert_string_equal(d.message, text);
    diag_clear(&d);
    snprintf(text, sizeof text, "%s/config.json", dir);
    assert_int_equal(model_open(&d, text, NULL, &m), QN_EINVAL);
    util_remove_dir(dir, names);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_each_family),
        cmocka_unit_test(the_family_is_found),
        cmocka_unit_test(experts_have_defaults),
        cmocka_unit_test(experts_have_two_spellings),
        cmocka_unit_test(some_layers_are_dense),
        cmocka_unit_test(windows_of_experts),
        cmocka_unit_test(every_number_has_bounds),
        cmocka_unit_test(token_ids_come_in_three_forms),
        cmocka_unit_test(dtypes_are_spelled_in_many_ways),
        cmocka_unit_test(biases_are_read_where_the_family_has_them),
        cmocka_unit_test(windows),
        cmocka_unit_test(mixed_windows),
        cmocka_unit_test(ministral_is_mistral),
        cmocka_unit_test(rope_has_two_spellings),
        cmocka_unit_test(original_lengths),
        cmocka_unit_test(latents_are_read),
        cmocka_unit_test(experts_in_groups),
        cmocka_unit_test(other_latents_are_refused),
        cmocka_unit_test(other_ropes_are_refused),
        cmocka_unit_test(what_changes_results_is_refused),
        cmocka_unit_test(generation_defaults),
        cmocka_unit_test(generation_numbers_have_bounds),
        cmocka_unit_test(end_ids_are_united),
        cmocka_unit_test(other_paths_are_recognised),
        cmocka_unit_test(lfs_pointers_are_recognised),
        cmocka_unit_test(directories_without_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
