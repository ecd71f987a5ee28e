/* Qwen3, dense: RMSNorm on every head of q and k, no biases unless attention_bias says so, and a
 * head_dim that need not be hidden / n_heads. */
#include "model/decoder.h"
#include "model/family.h"

const struct family family_qwen3 = {
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .weights = &decoder_hf_names,
    .build = decoder_build,
    .reads_attention_bias = true,
    .qk_norm = true,
    .window = WINDOW_SWITCH,
    .head_dim = 128,
    .max_position = 32768,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .sliding_window = 4096,
    .bos = -1,
    .eos = -1,
};
