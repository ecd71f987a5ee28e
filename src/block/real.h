/* real.h - evaluation in floating point: in double, or in the target's roundings, which are float
 * for every operation and a 16-bit format for cast16.
 *
 * Sums go in order of the index. A candidate passes if, against the reference in double, its error
 * in the target's roundings is at most REAL_MARGIN times the reference's own.
 */
#ifndef QN_BLOCK_REAL_H
#define QN_BLOCK_REAL_H

#include "block/cells.h"
#include "graph/dtype.h"

#define REAL_MARGIN   2.0
#define REAL_SMALLEST 1e-6

void real_init(struct algebra *g); /* double */
/* dtype: DTYPE_BF16 or DTYPE_F16, what cast16 rounds to. */
void real_init_target(struct algebra *g, enum dtype dtype);
/* The largest difference between two values of equal dims, of the largest number in `exact`;
 * INFINITY where a value is no number and the other one is. */
double real_error(const struct cells *value, const struct cells *exact);
static inline bool real_passes(double error, double reference_error) {
    return error <= REAL_MARGIN * reference_error + 0x1p-22;
}

#endif
