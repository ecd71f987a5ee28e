/* experts.h - the fields of config.json that describe a model's experts. */
#ifndef QN_MODEL_EXPERTS_H
#define QN_MODEL_EXPERTS_H

#include "base/jsonio.h"
#include "model/family.h"

/* Fills spec->experts; needs spec->n_layers. If the family has no experts, or the file names none,
 * all layers are dense. Errors: QN_EFORMAT, QN_ESHAPE with file and field. */
int experts_read(struct diag *d, const char *file, const json_t *root, const struct family *family,
                 struct model_spec *spec);

#endif
