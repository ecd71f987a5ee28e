/* cells.h - values of expressions on dims of small sizes, over one of several algebras: fields,
 * intervals, double, the target's roundings. One evaluator serves them all.
 *
 * A value is an array of cells. Its dims are in ascending order of their numbers, the last one
 * innermost. The cells lie in the arena in which the value was made.
 */
#ifndef QN_BLOCK_CELLS_H
#define QN_BLOCK_CELLS_H

#include "base/arena.h"
#include "block/block_op.h"

union cell {
    struct {
        uint64_t p, q; /* field.h */
    } field;
    struct {
        double low, high; /* the number lies in [low, high] */
    } interval;
    double real;
};

struct cells {
    uint32_t dims; /* bits */
    uint32_t n;    /* cells */
    union cell *at;
};

/* What happened while values were computed; bits of algebra.notes. */
enum {
    CELLS_UNDEFINED = 1, /* a denominator was 0, or a result no number: take other inputs */
    CELLS_RANDOM = 2,    /* a random function was used: unequal values prove nothing */
    CELLS_ROOT = 4,      /* a root was taken: values of equal expressions may differ in sign */
};

/* What cells are and how operators compute them; field.h, interval.h and real.h define some. */
struct algebra {
    void (*apply[N_BLOCK_OPS])(struct algebra *, union cell *out, const union cell *a,
                               const union cell *b, const union cell *c);
    void (*number)(struct algebra *, int64_t numerator, int64_t denominator, union cell *out);
    bool (*is_zero)(const union cell *a);                   /* of masks */
    bool (*less)(const union cell *a, const union cell *b); /* of CHOOSE; NULL: there is no order */
    uint32_t (*index)(const union cell *a);                 /* of FORM_INDEX and FORM_ORDER */
    uint32_t sizes[BLOCK_MAX_DIMS]; /* at least 1; even where SWAP is used */
    uint32_t notes;
    const void *state; /* the algebra's own */
};

enum { CELLS_MAX = 1 << 22 };

/* Makes a value of these dims; its cells are not set. Errors: QN_ELIMIT, QN_ENOMEM. */
int cells_make(struct diag *d, struct arena *arena, const struct algebra *g, uint32_t dims,
               struct cells *out);
/* Computes the operator's result. Operands as in form_apply; absent ones have at == NULL. Errors:
 * QN_EINVAL (block_op_dims), QN_ELIMIT, QN_ENOMEM. */
int cells_apply(struct diag *d, struct arena *arena, struct algebra *g, enum block_op op,
                const struct block_use *use, const struct cells operand[BLOCK_MAX_ARITY],
                struct cells *out);
/* A hash of the dims and the field cells, for finding equal values. */
uint64_t cells_hash(const struct cells *v);
bool cells_equal(const struct cells *a, const struct cells *b);

#endif
