/* Llama 1 to 3 and models of the same architecture. Biases are optional on the attention and on the
 * MLP; Llama 3.1 and later rescale RoPE's low frequencies (rope_type llama3). */
#include "model/decoder.h"
#include "model/family.h"

const struct family family_llama = {
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .weights = &decoder_hf_names,
    .build = decoder_build,
    .reads_attention_bias = true,
    .reads_mlp_bias = true,
    .max_position = 2048,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .bos = 1,
    .eos = 2,
};
