/* Ministral 8B: Mistral's layers. transformers also saves a Mistral with layer_types under this
 * name. */
#include "model/decoder.h"
#include "model/family.h"

const struct family family_ministral = {
    .name = "ministral",
    .architecture = "MinistralForCausalLM",
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
