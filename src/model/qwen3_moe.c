/* Qwen3-MoE: Qwen3's attention; experts in all layers except those that the config exempts. */
#include "model/decoder.h"
#include "model/family.h"

static const struct expert_fields experts = {
    .n = "num_experts",
    .n_too = "num_local_experts",
    .width = "moe_intermediate_size",
    .normed = "norm_topk_prob",
    .steps = true,
    .n_default = 128,
    .width_default = 768,
    .top_k_default = 8,
};

const struct family family_qwen3_moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .weights = &decoder_hf_names,
    .build = decoder_build,
    .reads_attention_bias = true,
    .qk_norm = true,
    .experts = &experts,
    .window = WINDOW_ALL,
    .max_position = 32768,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .sliding_window = 4096,
    .bos = -1,
    .eos = -1,
};
