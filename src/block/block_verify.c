/* block_verify.c - the rules of block graphs, one function per rule. */
#include "block/block.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct check {
    struct diag *d;
    const struct block *b;
    const struct block_limits *limits;
    block_dims all, grid;
    block_dims partial[BLOCK_NODES]; /* loop dims over which a value is only one iteration's sum */
};

struct block_limits block_limits_default(void) {
    /* codegen/cuda_abi.h: CUDA_SCRATCH_BYTES; a ring of pages of 8 KiB beside it; the registers
     * that ptxas gives a thread of a block of 288, less those of the loops themselves. */
    return (struct block_limits){.scratch_bytes = 30864, .ring_pages = 16, .registers = 104};
}

static int __attribute__((format(printf, 3, 4)))
refuse(const struct check *c, uint32_t node, const char *fmt, ...) {
    char why[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return fail(c->d, QN_EVERIFY, "task %s: node %u (%s): %s", c->b->name, node,
                block_op_table[c->b->node[node].op].name, why);
}

static bool accumulates(const struct block_node *n) {
    return block_op_table[n->op].op_class == BLOCK_ACCUMULATE;
}

static const char *dim_name(const struct check *c, block_dims dims) {
    return dims == 0 ? "-" : c->b->dim[__builtin_ctz(dims)].name;
}

/* ---- numbers in range ---- */

static bool is_name(const char name[BLOCK_NAME]) {
    const char *end = memchr(name, '\0', BLOCK_NAME);
    if (end == NULL || end == name) return false;
    for (const char *p = name; p < end; p++) {
        const bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || *p == '_';
        if (!letter && !(p > name && (*p == '.' || (*p >= '0' && *p <= '9')))) return false;
    }
    return true;
}

static int check_counts(const struct check *c) {
    const struct block *b = c->b;
    if (!is_name(b->name)) return fail(c->d, QN_EVERIFY, "task: its name is no identifier");
    if (b->n_dims > BLOCK_DIMS || b->n_nodes > BLOCK_NODES || b->n_in > BLOCK_IN ||
        b->n_out > BLOCK_OUT || b->n_in > b->n_nodes)
        return fail(c->d, QN_EVERIFY,
                    "task %s: more dims, nodes or operands than a task has room for", b->name);
    if (b->n_out == 0) return fail(c->d, QN_EVERIFY, "task %s: it has no output", b->name);
    if ((b->loop != BLOCK_NONE && b->loop >= b->n_dims) ||
        (b->loop2 != BLOCK_NONE && b->loop2 >= b->n_dims))
        return fail(c->d, QN_EVERIFY, "task %s: a loop over a dim that is not there", b->name);
    return QN_OK;
}

static int check_dim(const struct check *c, uint32_t i) {
    const struct block *b = c->b;
    const struct block_dim *dim = &b->dim[i];
    if (!is_name(dim->name) || (dim->parent[0] != '\0' && !is_name(dim->parent)))
        return fail(c->d, QN_EVERIFY, "task %s: dim %u: its name is no identifier", b->name, i);
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(b->dim[k].name, dim->name) == 0)
            return fail(c->d, QN_EVERIFY, "task %s: two dims are named %s", b->name, dim->name);
    if (dim->role >= N_ROLES || dim->tile == 0 || dim->tile > BLOCK_MAX_SIZE ||
        dim->size > BLOCK_MAX_SIZE)
        return fail(c->d, QN_EVERIFY, "task %s: dim %s: role, size or tile out of range", b->name,
                    dim->name);
    const bool loops = i == b->loop || i == b->loop2;
    if (loops != (dim->role == ROLE_LOOP))
        return fail(c->d, QN_EVERIFY, "task %s: dim %s: its role is %s, want %s: %s", b->name,
                    dim->name, block_role_name(dim->role), loops ? "loop" : "another",
                    loops ? "a loop goes through it" : "no loop goes through it");
    return QN_OK;
}

/* The node's op, stage and operands are in range. */
static int check_fields(const struct check *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    const struct block_op_info *info = &block_op_table[n->op < N_BLOCK_OPS ? n->op : 0];
    uint8_t operand[BLOCK_MAX_ARITY];
    if (n->op >= N_BLOCK_OPS)
        return fail(c->d, QN_EVERIFY, "task %s: node %u: operator %u does not exist", c->b->name, i,
                    n->op);
    if (n->stage >= N_STAGES || n->space >= N_SPACES || n->order >= N_ORDERS ||
        n->dtype >= N_DTYPES)
        return refuse(c, i, "stage, space, order or number format out of range");
    if (((n->dims | n->red) & ~c->all) != 0) return refuse(c, i, "a dim that the task lacks");
    if ((n->op == BLOCK_OP_INPUT) != (i < c->b->n_in))
        return refuse(c, i, "inputs are the first %u nodes and no others", c->b->n_in);
    const uint32_t n_operands = block_operands(n, operand);
    const bool gap =
        (n->a == BLOCK_NONE && n->b != BLOCK_NONE) || (n->b == BLOCK_NONE && n->c != BLOCK_NONE);
    if (gap || n_operands > info->arity || n_operands + block_op_optional(n->op) < info->arity)
        return refuse(c, i, "want %u operands", info->arity);
    return QN_OK;
}

/* ---- the rules ---- */

static int check_order_of_nodes(const struct check *c, uint32_t i) {
    uint8_t operand[BLOCK_MAX_ARITY];
    const uint32_t n = block_operands(&c->b->node[i], operand);
    for (uint32_t k = 0; k < n; k++)
        if (operand[k] >= i) return refuse(c, i, "reads node %u, which is not earlier", operand[k]);
    if (i > c->b->n_in && c->b->node[i].stage < c->b->node[i - 1].stage)
        return refuse(c, i, "stage %s after stage %s", block_stage_name(c->b->node[i].stage),
                      block_stage_name(c->b->node[i - 1].stage));
    return QN_OK;
}

/* The dims follow from the operands' dims and the reduced ones. */
static int check_dims(const struct check *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    const struct block_use use = {.dims = n->red};
    uint32_t operand_dims[BLOCK_MAX_ARITY] = {0}, dims;
    uint8_t operand[BLOCK_MAX_ARITY];
    const uint32_t n_operands = block_operands(n, operand);
    if (!block_op_uses_dims(n->op) && n->red != 0)
        return refuse(c, i, "'over' without a reduction");
    if (n->op == BLOCK_OP_INPUT) return QN_OK;
    for (uint32_t k = 0; k < n_operands; k++) {
        operand_dims[k] = c->b->node[operand[k]].dims;
        if (accumulates(n)) operand_dims[k] |= c->partial[operand[k]];
    }
    const char *wrong = block_op_dims((enum block_op)n->op, &use, operand_dims, &dims);
    if (wrong != NULL) return refuse(c, i, "%s", wrong);
    if (n->dims != dims) return refuse(c, i, "its dims do not follow from its operands");
    return QN_OK;
}

static int check_grid(const struct check *c, uint32_t i) {
    const block_dims over = c->b->node[i].red & c->grid;
    if (over == 0) return QN_OK;
    return refuse(c, i, "sums over %s, a grid dim: no task sees all of it", dim_name(c, over));
}

/* Only an accumulator over the loop's dim carries values of a loop to later stages. */
static int check_stages(const struct check *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    uint8_t operand[BLOCK_MAX_ARITY];
    const uint32_t n_operands = block_operands(n, operand);
    bool from_loop = false;
    if (accumulates(n) && block_stage_loops(n->stage))
        return refuse(c, i, "an accumulator is read after its loop, not in one");
    for (uint32_t k = 0; k < n_operands; k++) {
        const struct block_node *o = &c->b->node[operand[k]];
        const bool loops = block_stage_loops(o->stage) && o->stage != n->stage;
        if (o->stage > n->stage)
            return refuse(c, i, "stage %s reads node %u of stage %s", block_stage_name(n->stage),
                          operand[k], block_stage_name(o->stage));
        if (loops && !accumulates(n))
            return refuse(c, i, "reads node %u out of its loop without an accumulator", operand[k]);
        if (loops && n->red != block_loop_dims(c->b, o->stage))
            return refuse(c, i, "accumulates over another dim than its loop goes through");
        from_loop |= loops;
    }
    if (accumulates(n) && !from_loop) return refuse(c, i, "accumulates what no loop makes");
    if (block_stage_loops(n->stage) && block_loop_dims(c->b, n->stage) == 0)
        return refuse(c, i, "stage %s of a task without that loop", block_stage_name(n->stage));
    return QN_OK;
}

/* check_partial for one operand. */
static int check_partial_operand(const struct check *c, uint32_t i, uint32_t k, uint8_t operand,
                                 block_dims partial) {
    const struct block_node *n = &c->b->node[i];
    const char letter = block_op_table[n->op].linear[k];
    const block_dims own = c->partial[operand];
    if (own != 0 && letter == '-')
        return refuse(c, i, "a partial sum over %s goes through an operator that is not linear",
                      dim_name(c, own));
    if (letter == 'J' && own != partial)
        return refuse(c, i, "a partial sum over %s is added to what is none", dim_name(c, partial));
    if (own == 0 && (c->b->node[operand].dims & partial) != 0)
        return refuse(c, i, "a partial sum over %s meets elements of %s", dim_name(c, partial),
                      dim_name(c, partial));
    return QN_OK;
}

/* A sum over one iteration's share of a loop dim may pass through linear operators only. */
static int check_partial(struct check *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    const block_dims loop = block_loop_dims(c->b, n->stage) & n->red;
    uint8_t operand[BLOCK_MAX_ARITY];
    const uint32_t n_operands = block_operands(n, operand);
    block_dims partial = 0;
    uint32_t n_alone = 0;
    for (uint32_t k = 0; k < n_operands; k++) {
        partial |= c->partial[operand[k]];
        n_alone += c->partial[operand[k]] != 0 && block_op_table[n->op].linear[k] == 'L';
    }
    for (uint32_t k = 0; k < n_operands && partial != 0; k++)
        TRY(check_partial_operand(c, i, k, operand[k], partial));
    if (n_alone > 1)
        return refuse(c, i, "a product of two partial sums over %s", dim_name(c, partial));
    if (loop != 0 && !block_op_adds(n->op))
        return refuse(c, i, "of one iteration's share of %s only sums are put together",
                      dim_name(c, loop));
    c->partial[i] = accumulates(n) ? 0 : partial | loop;
    return QN_OK;
}

/* Every reduction that adds has an order of adding; other nodes have none. */
static int check_reduction_order(const struct check *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    const bool adds = block_op_adds(n->op);
    if (adds == (n->order != ORDER_NONE)) return QN_OK;
    return refuse(c, i,
                  adds ? "the order in which it adds is not known"
                       : "an order of adding, but nothing is added");
}

static int check_space(const struct check *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    if (n->space == SPACE_PAGE && (n->op != BLOCK_OP_INPUT || !block_stage_loops(n->stage)))
        return refuse(c, i, "pages bring inputs of a loop, nothing else");
    if (n->space == SPACE_GLOBAL && n->op != BLOCK_OP_INPUT)
        return refuse(c, i, "only inputs are read in device memory");
    if (n->op == BLOCK_OP_NUMBER ? n->denominator <= 0 : n->numerator != 0 || n->denominator != 0)
        return refuse(c, i, "a number that is none");
    for (uint32_t k = 0; k < c->b->n_dims; k++)
        if ((n->dims >> k & 1) != 0 && n->space != SPACE_GLOBAL &&
            block_extent(c->b, k, n->stage, n->space) == 0)
            return refuse(c, i, "all of %s in space %s, and its size is known at run time only",
                          c->b->dim[k].name, block_space_name(n->space));
    return QN_OK;
}

static int check_out(const struct check *c, uint32_t i) {
    const struct block *b = c->b;
    const struct block_out *o = &b->out[i];
    if (!is_name(o->name) || o->node >= b->n_nodes || o->dtype >= N_DTYPES)
        return fail(c->d, QN_EVERIFY, "task %s: output %u: name, node or number format", b->name,
                    i);
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(b->out[k].name, o->name) == 0)
            return fail(c->d, QN_EVERIFY, "task %s: two outputs are named %s", b->name, o->name);
    const struct block_node *n = &b->node[o->node];
    const block_dims lacks = c->grid & (block_dims)~n->dims;
    const block_dims loop = block_loop_dims(b, n->stage);
    if (lacks != 0)
        return fail(c->d, QN_EVERIFY,
                    "task %s: output %s lacks %s, a grid dim: several tasks would write it",
                    b->name, o->name, dim_name(c, lacks));
    if (c->partial[o->node] != 0)
        return fail(c->d, QN_EVERIFY, "task %s: output %s is a partial sum over %s", b->name,
                    o->name, dim_name(c, c->partial[o->node]));
    if ((loop & ~n->dims) != 0)
        return fail(c->d, QN_EVERIFY, "task %s: output %s is overwritten by each iteration over %s",
                    b->name, o->name, dim_name(c, loop));
    return QN_OK;
}

static int check_in(const struct check *c, uint32_t i) {
    const struct block_in *in = &c->b->in[i];
    if (!is_name(in->name) || in->kind >= N_EXPR_KINDS)
        return fail(c->d, QN_EVERIFY, "task %s: input %u: name or kind", c->b->name, i);
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(c->b->in[k].name, in->name) == 0)
            return fail(c->d, QN_EVERIFY, "task %s: two inputs are named %s", c->b->name, in->name);
    return QN_OK;
}

/* ---- the resources of a task ---- */

/* Pages that one iteration's share of the streamed operands fills; a page has 4096 elements of 16
 * bits. */
static uint64_t pages_at_a_time(const struct block *b, uint32_t stage) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < b->n_in; i++)
        if (b->node[i].space == SPACE_PAGE && b->node[i].stage == stage)
            pages += CEIL_DIV(block_elements(b, i), BLOCK_PAGE_ELEMENTS);
    return pages;
}

static int check_limits(const struct check *c) {
    const struct block *b = c->b;
    const uint64_t pages = MAX(pages_at_a_time(b, STAGE_LOOP), pages_at_a_time(b, STAGE_LOOP2));
    if (pages > c->limits->ring_pages)
        return fail(c->d, QN_EVERIFY, "task %s: an iteration takes %llu pages, the ring has %u",
                    b->name, (unsigned long long)pages, c->limits->ring_pages);
    const uint64_t bytes = block_place_scratch(b);
    if (bytes == UINT64_MAX)
        return fail(c->d, QN_EVERIFY, "task %s: more than %d buffers in scratch", b->name,
                    BLOCK_BUFFERS);
    if (bytes > c->limits->scratch_bytes)
        return fail(c->d, QN_EVERIFY,
                    "task %s: its buffers take %llu bytes of scratch, there are %u", b->name,
                    (unsigned long long)bytes, c->limits->scratch_bytes);
    const uint32_t registers = block_live_registers(b);
    if (registers > c->limits->registers)
        return fail(c->d, QN_EVERIFY, "task %s: its values take %u registers, there are %u",
                    b->name, registers, c->limits->registers);
    return QN_OK;
}

int block_verify(struct diag *d, const struct block *b, const struct block_limits *limits) {
    static int (*const rules[])(const struct check *, uint32_t) = {
        check_fields, check_order_of_nodes,  check_dims, check_grid,
        check_stages, check_reduction_order, check_space};
    struct check c = {.d = d, .b = b, .limits = limits};
    TRY(check_counts(&c));
    c.all = (block_dims)((1u << b->n_dims) - 1);
    for (uint32_t i = 0; i < b->n_dims; i++) TRY(check_dim(&c, i));
    c.grid = block_with_role(b, ROLE_GRID);
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        for (size_t r = 0; r < COUNT_OF(rules); r++) TRY(rules[r](&c, i));
        TRY(check_partial(&c, i));
    }
    for (uint32_t i = 0; i < b->n_in; i++) TRY(check_in(&c, i));
    for (uint32_t i = 0; i < b->n_out; i++) TRY(check_out(&c, i));
    return check_limits(&c);
}

/* ---- between tasks ---- */

/* The same names, whatever their order. */
static bool same_dims(const struct block *a, block_dims of_a, const struct block *b,
                      block_dims of_b) {
    if (__builtin_popcount(of_a) != __builtin_popcount(of_b)) return false;
    for (uint32_t i = 0; i < a->n_dims; i++) {
        bool found = (of_a >> i & 1) == 0;
        for (uint32_t k = 0; k < b->n_dims && !found; k++)
            found = (of_b >> k & 1) != 0 && strcmp(a->dim[i].name, b->dim[k].name) == 0;
        if (!found) return false;
    }
    return true;
}

static int check_hand_over(struct diag *d, const struct block_graph *g, uint32_t reader,
                           uint32_t input) {
    const struct block *b = &g->task[reader];
    for (uint32_t t = reader; t-- > 0;) {
        const struct block *from = &g->task[t];
        for (uint32_t o = 0; o < from->n_out; o++) {
            if (strcmp(from->out[o].name, b->in[input].name) != 0) continue;
            if (b->node[input].stage == STAGE_EARLY)
                return fail(d, QN_EVERIFY, "task %s: input %s is early, but task %s makes it",
                            b->name, b->in[input].name, from->name);
            if (same_dims(from, from->node[from->out[o].node].dims, b, b->node[input].dims))
                return QN_OK;
            return fail(d, QN_EVERIFY, "task %s: input %s has other dims than task %s gives it",
                        b->name, b->in[input].name, from->name);
        }
    }
    return QN_OK;
}

int block_graph_verify(struct diag *d, const struct block_graph *g,
                       const struct block_limits *limits) {
    if (g->n_tasks == 0 || g->n_tasks > BLOCK_TASKS)
        return fail(d, QN_EVERIFY, "block graph: %u tasks, want 1 to %d", g->n_tasks, BLOCK_TASKS);
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        TRY(block_verify(d, &g->task[t], limits));
        for (uint32_t i = 0; i < g->task[t].n_in; i++) TRY(check_hand_over(d, g, t, i));
    }
    return QN_OK;
}
