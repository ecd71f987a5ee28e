#include "block/block_op.h"

#include <string.h>

const struct block_op_info block_op_table[N_BLOCK_OPS] = {
#define BLOCK_OP(ID, id, arity, class, linear, cost, real)                                         \
    [BLOCK_OP_##ID] = {#id, arity, BLOCK_##class, cost, linear},
#include "block/block_op.def"
#undef BLOCK_OP
};

enum block_op block_op_find(const char *name) {
    int op = 0;
    while (op < N_BLOCK_OPS && strcmp(block_op_table[op].name, name) != 0) op++;
    return (enum block_op)op;
}

static bool one_bit(uint32_t bits) {
    return bits != 0 && (bits & (bits - 1)) == 0;
}

const char *block_op_dims(enum block_op op, const struct block_use *use, const uint32_t operand[],
                          uint32_t *dims) {
    const struct block_op_info *info = &block_op_table[op];
    uint32_t all = 0;
    for (int i = 0; i < info->arity; i++) all |= operand[i];
    *dims = all;
    switch ((enum block_class)info->op_class) {
    case BLOCK_LEAF:
    case BLOCK_ELEMENTWISE: return NULL;
    case BLOCK_REDUCE:
    case BLOCK_PRODUCT:
    case BLOCK_ACCUMULATE:
        if (use->dims == 0) return "wants a dim to reduce";
        if ((use->dims & ~all) != 0) return "reduces a dim that its operand does not have";
        *dims = all & ~use->dims;
        return NULL;
    case BLOCK_MOVE:
        if (!one_bit(use->dims)) return "wants one dim";
        if ((use->dims & operand[0]) == 0)
            return "moves along a dim that its operand does not have";
        if (op == BLOCK_OP_PICK) *dims = (operand[0] & ~use->dims) | operand[1];
        if (op == BLOCK_OP_WHICH) *dims = use->to;
        return NULL;
    }
    return "is no operator";
}
