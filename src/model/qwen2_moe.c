/* Qwen2-MoE and Qwen1.5-MoE: Qwen2's attention; experts, and one shared expert for all tokens,
 * times the sigmoid of a dot product. */
#include "model/decoder.h"
#include "model/family.h"

static const struct expert_fields experts = {
    .n = "num_experts",
    .n_too = "num_local_experts",
    .width = "moe_intermediate_size",
    .normed = "norm_topk_prob",
    .shared = "shared_expert_intermediate_size",
    .steps = true,
    .n_default = 60,
    .width_default = 1408,
    .top_k_default = 4,
    .shared_default = 5632,
};

static const struct weight_names names = {
    DECODER_HF_NAMES,
    DECODER_HF_EXPERTS,
    .shared_gate = "mlp.shared_expert.gate_proj",
    .shared_up = "mlp.shared_expert.up_proj",
    .shared_down = "mlp.shared_expert.down_proj",
    .shared_router = "mlp.shared_expert_gate",
};

const struct family family_qwen2_moe = {
    .name = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .weights = &names,
    .build = decoder_build,
    .qkv_bias = true,
    .reads_qkv_bias = true,
    .experts = &experts,
    .window = WINDOW_BEFORE,
    .max_position = 32768,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .sliding_window = 4096,
    .bos = -1,
    .eos = -1,
};
