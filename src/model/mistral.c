/* Mistral 7B and its kin: Llama's layers without biases; every layer attends to a sliding window,
 * unless sliding_window is null or layer_types says otherwise. */
#include "model/decoder.h"
#include "model/family.h"

const struct family family_mistral = {
    .name = "mistral",
    .architecture = "MistralForCausalLM",
    .weights = &decoder_hf_names,
    .build = decoder_build,
    .window = WINDOW_FIELD,
    .max_position = 131072,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .sliding_window = 4096,
    .bos = 1,
    .eos = 2,
};
