/* Mixtral: Mistral's attention, without a window unless config.json has one; experts in every
 * layer, whose weights add up to 1. */
#include "model/decoder.h"
#include "model/family.h"

static const struct expert_fields experts = {
    .n = "num_local_experts",
    .n_too = "num_experts",
    .width = "intermediate_size",
    .n_default = 8,
    .width_default = 14336,
    .top_k_default = 2,
};

static const struct weight_names names = {
    DECODER_HF_NAMES,
    .router = "block_sparse_moe.gate",
    .expert_gate = "block_sparse_moe.experts.*.w1",
    .expert_up = "block_sparse_moe.experts.*.w3",
    .expert_down = "block_sparse_moe.experts.*.w2",
};

const struct family family_mixtral = {
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .weights = &names,
    .build = decoder_build,
    .experts = &experts,
    .window = WINDOW_FIELD,
    .max_position = 131072,
    .rms_eps = 1e-5,
    .rope_theta = 1000000,
    .bos = 1,
    .eos = 2,
};
