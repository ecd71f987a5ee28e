/* latent.h - latent attention as config.json has it -> struct latent_spec. docs/latent-attention.md
 * has the fields. */
#ifndef QN_MODEL_LATENT_H
#define QN_MODEL_LATENT_H

#include "base/jsonio.h"
#include "graph/model_spec.h"
#include "model/family.h"

/* Reads ranks and widths from the object `root` of `file`, if the family has latent attention. s
 * has its sizes already; head_dim and n_kv_heads become those of latents. What RoPE does to the
 * scale comes after that (rope_read). Errors: QN_EFORMAT, QN_EUNSUPPORTED; the message names file
 * and field. */
int latent_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
                struct model_spec *s);

#endif
