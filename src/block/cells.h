/* cells.h - values of expressions on dims of small sizes, over one of several algebras: fields,
 * intervals, double, the target's roundings. One evaluator serves them all.
 *
 * A value is an array of cells; its dims lie in ascending order of their numbers, the last one
 * innermost. Cells belong to the arena that the value was made in.
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

/* What went on while values were made; bits of algebra.notes. */
enum {
    CELLS_UNDEFINED = 1, /* 0 as a denominator, or no number: take other inputs */
    CELLS_RANDOM = 2,    /* a function became a random one: unequal values say nothing */
    CELLS_ROOT = 4,      /* a root was taken: of equal expressions, values may differ in sign */
};

/* What cells are and how operators work on them; field.h, interval.h, real.h give some. */
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

/* A value of these dims without numbers. Errors: QN_ELIMIT, QN_ENOMEM. */
int cells_make(struct diag *d, struct arena *arena, const struct algebra *g, uint32_t dims,
               struct cells *out);
/* The operator's result. Operands as in form_apply: absent ones have at == NULL. Errors: QN_EINVAL
 * (block_op_dims), QN_ELIMIT, QN_ENOMEM. */
int cells_apply(struct diag *d, struct arena *arena, struct algebra *g, enum block_op op,
                const struct block_use *use, const struct cells operand[BLOCK_MAX_ARITY],
                struct cells *out);
/* Of dims and of field cells: a key under which equal values are found. */
uint64_t cells_hash(const struct cells *v);
bool cells_equal(const struct cells *a, const struct cells *b);

#endif
