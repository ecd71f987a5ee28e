/* assignment.h - numbers for the arguments of operators, by which two of them are compared.
 *
 * The numbers follow from a seed. Masks, shares, indices and orders get values that their kind
 * allows. The dim of an order's places has as many indices as the order has elements. A share uses
 * every index of its first dim, unless its first dim is longer than its second.
 */
#ifndef QN_BLOCK_ASSIGNMENT_H
#define QN_BLOCK_ASSIGNMENT_H

#include "block/expr.h"

enum assignment_kind {
    ASSIGN_FIELD,    /* uniform in the fields */
    ASSIGN_QUARTERS, /* small multiples of 1/4, as intervals */
    ASSIGN_POSITIVE, /* the same, above 0 */
    ASSIGN_NORMAL,   /* doubles with mean 0 and deviation 1 */
    ASSIGN_SPREAD,   /* doubles of magnitudes 1e-4 to 1e4 */
};

struct assignment {
    uint64_t seed;
    enum assignment_kind kind;
    uint32_t least, largest; /* sizes of dims; halved ones are even */
};

/* Sets the sizes of x's dims in g. halved: bits of the dims that need an even size. */
void assignment_sizes(const struct assignment *s, const struct expr *x, uint32_t halved,
                      struct algebra *g);
/* Makes the numbers of argument `arg`. Errors: QN_ELIMIT, QN_ENOMEM. */
int assignment_make(struct diag *d, struct arena *arena, const struct assignment *s,
                    struct algebra *g, const struct expr *x, uint32_t arg, struct cells *out);

#endif
