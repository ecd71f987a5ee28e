/* DeepSeek-V2 and V2-Lite: latent attention. Its queries come from a latent of their own or, in
 * Lite, from the stream. The first layers are dense; the others have experts, and shared ones
 * without a gate. */
#include "model/decoder.h"
#include "model/family.h"

static const struct expert_fields experts = {
    .n = "n_routed_experts",
    .n_too = "num_experts",
    .width = "moe_intermediate_size",
    .n_shared = "n_shared_experts",
    .n_dense = "first_k_dense_replace",
    .groups = true,
    .n_default = 64,
    .width_default = 1407,
    .shared_default = 2,
};

static const struct weight_names names = {
    DECODER_HF_NAMES,
    DECODER_HF_EXPERTS,
    .shared_gate = "mlp.shared_experts.gate_proj",
    .shared_up = "mlp.shared_experts.up_proj",
    .shared_down = "mlp.shared_experts.down_proj",
    .q_a = "self_attn.q_a_proj",
    .q_a_norm = "self_attn.q_a_layernorm",
    .q_b = "self_attn.q_b_proj",
    .kv_a = "self_attn.kv_a_proj_with_mqa",
    .kv_a_norm = "self_attn.kv_a_layernorm",
    .kv_b = "self_attn.kv_b_proj",
};

const struct family family_deepseek_v2 = {
    .name = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .weights = &names,
    .build = decoder_build,
    .reads_attention_bias = true,
    .reads_mlp_bias = true,
    .latent = true,
    .experts = &experts,
    .window = WINDOW_NONE,
    .head_dim = 64,
    .max_position = 2048,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .bos = 1,
    .eos = 2,
};
