/* why.h - the choices that `quern inspect --why` shows: for each variant the ways to run a layer
 * (plan/variant.h), and for each operator the forms that could run it (codegen/cuda_form.h). */
#ifndef QN_INSPECT_WHY_H
#define QN_INSPECT_WHY_H

#include "engine/compile.h"

#include <jansson.h>

/* [{"what", "why", "ways": [{"operators", "taken", "us", "why_not"}]}] of a variant's plan. */
json_t *why_choices(const struct plan_variant *plan);

/* [{"operator", "k", "tasks", "forms": [{"form", "code", "taken", "us", "why_not", "stand_ins"}]}]
 * of a variant of a program for CUDA. Operators that are alike appear once. Empty for other
 * programs. */
json_t *why_forms(const struct prog_header *program, const struct prog_variant *v,
                  const struct device *device);

#endif
