/* real.h - evaluation in floating point: in double, or in the target's roundings. The target rounds
 * every operation to float, and cast16 to a 16-bit format.
 *
 * Sums add in the order of the index. Errors in the target's roundings are measured against the
 * reference in double. A candidate's error may be at most REAL_MARGIN times the reference's own.
 */
#ifndef QN_BLOCK_REAL_H
#define QN_BLOCK_REAL_H

#include "block/cells.h"
#include "graph/dtype.h"

#define REAL_MARGIN   2.0
#define REAL_SMALLEST 1e-6

void real_init(struct algebra *g); /* double */
/* dtype: the format that cast16 rounds to, DTYPE_BF16 or DTYPE_F16. */
void real_init_target(struct algebra *g, enum dtype dtype);
/* The largest difference between two values of equal dims, relative to the largest number in
 * `exact`; INFINITY if an element's difference is no number and `exact` has a number there. */
double real_error(const struct cells *value, const struct cells *exact);
static inline bool real_passes(double error, double reference_error) {
    return error <= REAL_MARGIN * reference_error + 0x1p-22;
}

#endif
