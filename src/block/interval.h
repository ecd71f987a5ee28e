/* interval.h - evaluation with certain bounds: the exact value over the real numbers lies in each
 * cell's interval. Two values whose intervals have no number in common are not equal.
 *
 * Sums, products, quotients and roots are right to half a unit of the last place; the library's
 * functions are taken to be right to INTERVAL_ERROR of their result.
 */
#ifndef QN_BLOCK_INTERVAL_H
#define QN_BLOCK_INTERVAL_H

#include "block/cells.h"

#define INTERVAL_ERROR 0x1p-46

void interval_init(struct algebra *g);
/* The interval that is one number. */
void interval_point(double x, union cell *out);
static inline bool interval_apart(const union cell *a, const union cell *b) {
    return a->interval.high < b->interval.low || b->interval.high < a->interval.low;
}

#endif
