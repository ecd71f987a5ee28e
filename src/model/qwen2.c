/* Qwen2 and Qwen2.5: biases on q, k and v, always; none on the output projection. */
#include "model/decoder.h"
#include "model/family.h"

const struct family family_qwen2 = {
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .weights = &decoder_hf_names,
    .build = decoder_build,
    .qkv_bias = true,
    .window = WINDOW_SWITCH,
    .max_position = 32768,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .sliding_window = 4096,
    .bos = -1,
    .eos = -1,
};
