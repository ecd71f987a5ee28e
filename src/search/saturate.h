/* saturate.h - all values on the way from the leaves to the targets, and how each is computed.
 *
 * It keeps values, not graphs: all ways to compute one value lead to one class. So the number of
 * classes stays small where the number of graphs explodes. Stages come later (staged.h): they
 * change no value, so one saturation serves every skeleton and every cut into tasks.
 *
 *   application   (operator, classes, dims)  ->  class
 *
 * A candidate is typed, then pruned by its normal form (form_useful: a value that cannot be a part
 * of a target is dropped), then evaluated over two fields on small dims. Its class is found by its
 * normal form, or by its cells if the normal forms are then proved equal.
 */
#ifndef QN_SEARCH_SATURATE_H
#define QN_SEARCH_SATURATE_H

#include "base/array.h"
#include "block/cells.h"
#include "search/problem.h"

enum { SATURATE_CLASSES = 4096, SATURATE_NO_MUL = UINT32_MAX };

struct value_class {
    block_dims dims;
    uint8_t leaf; /* index into problem.leaf; BLOCK_NONE */
    form_id form;
    uint64_t hash; /* of dims and cells */
    struct cells cells;
};

struct application {
    uint8_t op;
    bool has_b; /* b is an operand */
    block_dims red;
    uint16_t a, b, to; /* classes */
};

struct saturation {
    ARRAY(struct value_class) classes; /* the leaves first, in the problem's order */
    ARRAY(struct application) applications;
    uint64_t n_tried;           /* applications that were typed; the budget counts these */
    uint64_t n_coincidences;    /* equal cells whose normal forms were not proved equal */
    bool complete;              /* the budget sufficed */
    uint16_t target[BLOCK_OUT]; /* classes; UINT16_MAX: not found */
    /* The MUL applications that compute each class: a list through next_mul. */
    uint32_t muls_of[SATURATE_CLASSES];
    ARRAY(uint32_t) next_mul; /* [applications.n] */
};

/* Tries at most `budget` applications. Cells lie in the arena. Errors: QN_ENOMEM, QN_ELIMIT. */
int saturate(struct diag *d, struct arena *arena, const struct problem *p, uint64_t budget,
             struct saturation *out);
void saturation_fini(struct saturation *s);

#endif
