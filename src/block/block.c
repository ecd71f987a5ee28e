/* block.c - names, sets of dims, extents. */
#include "block/block.h"

#include "base/checked.h"

static const char *const roles[N_ROLES] = {"whole", "grid", "loop", "tile"};
static const char *const stages[N_STAGES] = {"early",   "before", "loop",
                                             "between", "loop2",  "after"};
static const char *const spaces[N_SPACES] = {"reg", "scratch", "page", "global"};
static const char *const orders[N_ORDERS] = {"none", "tree", "parts8", "squares", "shares"};

const char *block_role_name(uint32_t role) {
    return role < N_ROLES ? roles[role] : "?";
}

const char *block_stage_name(uint32_t stage) {
    return stage < N_STAGES ? stages[stage] : "?";
}

const char *block_space_name(uint32_t space) {
    return space < N_SPACES ? spaces[space] : "?";
}

const char *block_order_name(uint32_t order) {
    return order < N_ORDERS ? orders[order] : "?";
}

block_dims block_with_role(const struct block *b, enum block_role role) {
    block_dims dims = 0;
    for (uint32_t i = 0; i < b->n_dims; i++)
        if (b->dim[i].role == role) dims |= (block_dims)(1u << i);
    return dims;
}

block_dims block_loop_dims(const struct block *b, uint32_t stage) {
    const uint8_t dim = stage == STAGE_LOOP    ? b->loop
                        : stage == STAGE_LOOP2 ? b->loop2
                                               : BLOCK_NONE;
    return dim < b->n_dims ? (block_dims)(1u << dim) : 0;
}

uint64_t block_extent(const struct block *b, uint32_t dim, uint32_t stage, uint32_t space) {
    const struct block_dim *d = &b->dim[dim];
    const bool advances = (block_loop_dims(b, stage) >> dim & 1) != 0;
    const bool in_tiles = d->role == ROLE_TILE && space != SPACE_SCRATCH;
    if (d->role == ROLE_GRID || advances || in_tiles)
        return d->size != 0 ? MIN(d->tile, d->size) : d->tile;
    return d->size;
}

uint64_t block_elements(const struct block *b, uint32_t node) {
    const struct block_node *n = &b->node[node];
    uint64_t elements = 1;
    for (uint32_t i = 0; i < b->n_dims; i++) {
        if ((n->dims >> i & 1) == 0) continue;
        const uint64_t extent = block_extent(b, i, n->stage, n->space);
        if (!checked_mul(elements, MAX(extent, 1), &elements)) return UINT64_MAX;
    }
    return elements;
}

uint32_t block_operands(const struct block_node *n, uint8_t operand[BLOCK_MAX_ARITY]) {
    const uint8_t all[BLOCK_MAX_ARITY] = {n->a, n->b, n->c};
    uint32_t count = 0;
    for (uint32_t i = 0; i < BLOCK_MAX_ARITY; i++)
        if (all[i] != BLOCK_NONE) operand[count++] = all[i];
    return count;
}

bool block_op_uses_dims(uint32_t op) {
    const uint8_t class = block_op_table[op].op_class;
    return (class != BLOCK_LEAF && class != BLOCK_ELEMENTWISE) || op == BLOCK_OP_SIZE;
}

bool block_op_adds(uint32_t op) {
    return op == BLOCK_OP_SUM || op == BLOCK_OP_MEAN || op == BLOCK_OP_MM ||
           op == BLOCK_OP_ACC_SUM || op == BLOCK_OP_ACC_ONLINE;
}

uint32_t block_op_optional(uint32_t op) {
    return op == BLOCK_OP_SUM || op == BLOCK_OP_MAX_OVER || op == BLOCK_OP_CHOOSE;
}

void block_write_dims(const struct block *b, block_dims dims, struct strbuf *out) {
    const char *between = "";
    strbuf_char(out, '[');
    for (uint32_t i = 0; i < b->n_dims; i++) {
        if ((dims >> i & 1) == 0) continue;
        strbuf_printf(out, "%s%s", between, b->dim[i].name);
        between = ",";
    }
    strbuf_char(out, ']');
}
