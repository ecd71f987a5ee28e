/* rope.h - the RoPE fields of config.json -> the rope_ fields of struct model_spec.
 *
 * All spellings end here: rope_scaling and rope_parameters, type and rope_type, and the fields that
 * only some types have. The formulas are those of transformers' modeling_rope_utils.py, in floats
 * where it computes in floats. docs/models.md lists types and fields.
 */
#ifndef QN_MODEL_ROPE_H
#define QN_MODEL_ROPE_H

#include "base/jsonio.h"
#include "graph/model_spec.h"
#include "model/family.h"

/* Reads RoPE from the object `root` of `file`. s must have its sizes and max_position; a type that
 * stretches the context raises max_position. Errors: QN_EFORMAT, QN_EUNSUPPORTED; the message names
 * file and field. */
int rope_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
              struct model_spec *s);

#endif
