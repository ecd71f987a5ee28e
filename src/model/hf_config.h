/* hf_config.h - config.json of a Hugging Face model directory -> struct model_spec.
 *
 * All spellings end here: torch_dtype | dtype, rope_scaling{type | rope_type, ...} |
 * rope_parameters{rope_theta, rope_type, ...}, one eos id or a list, fields that are missing or
 * null. Fields that change the result and that quern does not support (other RoPE types,
 * quantisation, activations other than SiLU, layers of different kinds) are errors, never ignored.
 * docs/models.md lists the fields.
 */
#ifndef QN_MODEL_HF_CONFIG_H
#define QN_MODEL_HF_CONFIG_H

#include "base/status.h"
#include "graph/model_spec.h"
#include "model/family.h"

#include <stdbool.h>
#include <stddef.h>

enum { HF_CONFIG_MAX_BYTES = 16 << 20 };

struct hf_config {
    const struct family *family;
    struct model_spec spec; /* weight_dtype: what config.json says; BF16 if it says nothing */
    bool dtype_given;       /* config.json has torch_dtype or dtype */
    bool tied_given;        /* config.json has tie_word_embeddings */
};

/* Reads `path` (a config.json). Errors: mapfile_open's; QN_EFORMAT and QN_ESHAPE for wrong types
 * and numbers out of bounds, QN_EUNSUPPORTED; the message names file and field. */
int hf_config_load(struct diag *d, const char *path, struct hf_config *c);
/* The same for text in memory; `file` stands for the path in messages. */
int hf_config_parse(struct diag *d, const char *file, const char *text, size_t n,
                    struct hf_config *c);

/* Adds the token ids under `key` of a config (a number, a list of numbers, or null) to eos[0..*n),
 * each once. Ids outside the vocabulary are left out: they are never sampled. Errors: QN_EFORMAT:
 * not integers, or more than SPEC_MAX_EOS. */
struct json_t;
int hf_config_token_ids(struct diag *d, const char *file, const struct json_t *root,
                        const char *key, uint32_t vocab, int32_t eos[SPEC_MAX_EOS], uint32_t *n);

#endif
