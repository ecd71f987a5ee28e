/* latent.h - the latent attention of config.json -> struct latent_spec. docs/latent-attention.md
 * lists the fields. */
#ifndef QN_MODEL_LATENT_H
#define QN_MODEL_LATENT_H

#include "base/jsonio.h"
#include "graph/model_spec.h"
#include "model/family.h"

/* Reads ranks and widths from the object `root` of `file`, if the family has latent attention. s
 * must have its sizes; head_dim and n_kv_heads become those of latents. rope_read later applies
 * RoPE's factor to the scale. Errors: QN_EFORMAT, QN_EUNSUPPORTED; the message names file and
 * field. */
int latent_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
                struct model_spec *s);

#endif
