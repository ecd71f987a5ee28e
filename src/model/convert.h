/* convert.h - float32, bfloat16 and float16 into each other.
 *
 * Narrowing rounds to nearest, ties to even; NaN stays NaN. Values too large for float16 become
 * infinite and are counted, so that a checkpoint that overflows is not used in silence.
 */
#ifndef QN_MODEL_CONVERT_H
#define QN_MODEL_CONVERT_H

#include "graph/model_spec.h"

#include <stddef.h>
#include <stdint.h>

float convert_from_bf16(uint16_t bits);
float convert_from_f16(uint16_t bits);
uint16_t convert_to_bf16(float value);
uint16_t convert_to_f16(float value);

/* Converts n elements (DTYPE_F32, DTYPE_BF16, DTYPE_F16 on either side; not overlapping; src need
 * not be aligned). Returns how many finite values became infinite. */
uint64_t convert_array(enum dtype to, void *dst, enum dtype from, const void *src, uint64_t n);

#endif
