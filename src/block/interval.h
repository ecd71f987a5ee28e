/* interval.h - evaluation with certain bounds: each cell's interval contains the exact value over
 * the real numbers. Two values whose intervals have no number in common are not equal.
 *
 * Sums, products, quotients and roots are right to half a unit of the last place. The library's
 * functions are assumed to be right to INTERVAL_ERROR of their result.
 */
#ifndef QN_BLOCK_INTERVAL_H
#define QN_BLOCK_INTERVAL_H

#include "block/cells.h"

#define INTERVAL_ERROR 0x1p-46

void interval_init(struct algebra *g);
/* The interval that contains only x. */
void interval_point(double x, union cell *out);
static inline bool interval_apart(const union cell *a, const union cell *b) {
    return a->interval.high < b->interval.low || b->interval.high < a->interval.low;
}

#endif
