/* block_op.h - the rows of block_op.def, as an enum and as a table.
 */
#ifndef QN_BLOCK_BLOCK_OP_H
#define QN_BLOCK_BLOCK_OP_H

#include <stdbool.h>
#include <stdint.h>

enum block_op {
#define BLOCK_OP(ID, ...) BLOCK_OP_##ID,
#include "block/block_op.def"
#undef BLOCK_OP
    N_BLOCK_OPS
};

enum block_class {
    BLOCK_LEAF,
    BLOCK_ELEMENTWISE,
    BLOCK_REDUCE,
    BLOCK_PRODUCT,
    BLOCK_ACCUMULATE,
    BLOCK_MOVE,
};

enum { BLOCK_MAX_ARITY = 3, BLOCK_MAX_DIMS = 32 };

struct block_op_info {
    const char *name;
    uint8_t arity, op_class, cost;
    const char *linear; /* a letter for each operand: L, J, - */
};

extern const struct block_op_info block_op_table[N_BLOCK_OPS];

/* The operator with that name; N_BLOCK_OPS when there is none. */
enum block_op block_op_find(const char *name);

/* What an operator takes besides its operands. */
struct block_use {
    uint32_t dims; /* bits: REDUCE, PRODUCT, ACCUMULATE: removed; SWAP: the dim whose halves change
                      places; PICK: the dim whose index operand b gives; WHICH: the dim whose index
                      is the result; SIZE: the dims */
    uint32_t to;   /* WHICH: the dim of the places, a bit */
};

/* Sets *dims to the dims of the result, given those of the operands (bits). Returns NULL, or what
 * is wrong: "wants a dim to reduce". Operands past the arity are ignored. A reduced dim must be a
 * dim of the first operand or, for a product, of one of the operands. */
const char *block_op_dims(enum block_op op, const struct block_use *use, const uint32_t operand[],
                          uint32_t *dims);

#endif
