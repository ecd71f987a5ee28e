/* thread_graph.c - finds the nodes of each thread graph and makes its code. */
#include "block/thread_graph.h"

#include "base/checked.h"

#include <string.h>

_Static_assert(BLOCK_NODES <= 64, "sets of nodes are bits of 64");

static bool is_map(const struct block_node *n) {
    return block_op_table[n->op].op_class == BLOCK_ELEMENTWISE;
}

static bool is_reduction(const struct block_node *n) {
    const uint8_t class = block_op_table[n->op].op_class;
    return class == BLOCK_REDUCE || class == BLOCK_PRODUCT || class == BLOCK_ACCUMULATE;
}

/* Counts the reductions before each node, on the path with the most. */
static void count_reductions(const struct block *b, uint8_t level[BLOCK_NODES]) {
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&b->node[i], operand);
        level[i] = 0;
        for (uint32_t k = 0; k < n; k++) {
            const struct block_node *o = &b->node[operand[k]];
            const uint8_t through = (uint8_t)(level[operand[k]] + is_reduction(o));
            level[i] = MAX(level[i], through);
        }
    }
}

/* The first node of the thread graph of each elementwise node. */
static void join(const struct block *b, uint8_t first[BLOCK_NODES]) {
    uint8_t level[BLOCK_NODES];
    count_reductions(b, level);
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n_operands = block_operands(n, operand);
        first[i] = (uint8_t)i;
        for (uint32_t k = 0; k < n_operands && is_map(n); k++) {
            const struct block_node *o = &b->node[operand[k]];
            if (!is_map(o) || o->stage != n->stage || o->dims != n->dims ||
                level[operand[k]] != level[i])
                continue;
            const uint8_t low = MIN(first[operand[k]], first[i]);
            const uint8_t high = MAX(first[operand[k]], first[i]);
            for (uint32_t j = 0; j <= i; j++)
                if (first[j] == high) first[j] = low;
        }
    }
}

/* The nodes of the set that a node or output outside the set reads. */
static uint64_t read_outside(const struct block *b, uint64_t nodes) {
    uint64_t stored = 0;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&b->node[i], operand);
        for (uint32_t k = 0; k < n && (nodes >> i & 1) == 0; k++)
            stored |= nodes & UINT64_C(1) << operand[k];
    }
    for (uint32_t o = 0; o < b->n_out; o++) stored |= nodes & UINT64_C(1) << b->out[o].node;
    return stored;
}

struct coder {
    const struct block *b;
    struct thread_graph *t;
    uint8_t of_node[BLOCK_NODES]; /* the register that holds a node's value; BLOCK_NONE */
    uint64_t used;                /* registers */
};

/* Whether a later node of the thread graph reads `node`. */
static bool is_read_later(const struct coder *c, uint32_t node, uint32_t after) {
    for (uint32_t i = after + 1; i < c->b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&c->b->node[i], operand);
        for (uint32_t k = 0; k < n && (c->t->nodes >> i & 1) != 0; k++)
            if (operand[k] == node) return true;
    }
    return false;
}

static uint8_t take_register(struct coder *c) {
    const uint8_t r = (uint8_t)__builtin_ctzll(~c->used);
    c->used |= UINT64_C(1) << r;
    c->t->n_registers = MAX(c->t->n_registers, (uint8_t)(r + 1));
    return r;
}

static void code_load(struct coder *c, uint32_t node) {
    if (c->of_node[node] != BLOCK_NONE) return;
    c->of_node[node] = take_register(c);
    c->t->code[c->t->n_code++] = (struct thread_instruction){
        THREAD_LOAD, c->of_node[node], (uint8_t)node, BLOCK_NONE, BLOCK_NONE, (uint8_t)node};
}

/* Loads missing operands, frees registers that no later node reads, and computes. */
static void code_node(struct coder *c, uint32_t i) {
    const struct block_node *n = &c->b->node[i];
    struct thread_instruction in = {n->op, 0, BLOCK_NONE, BLOCK_NONE, BLOCK_NONE, (uint8_t)i};
    uint8_t operand[BLOCK_MAX_ARITY], *const to[3] = {&in.a, &in.b, &in.c};
    const uint32_t n_operands = block_operands(n, operand);
    for (uint32_t k = 0; k < n_operands; k++) code_load(c, operand[k]);
    for (uint32_t k = 0; k < n_operands; k++) *to[k] = c->of_node[operand[k]];
    for (uint32_t k = 0; k < n_operands; k++) {
        if (c->of_node[operand[k]] == BLOCK_NONE || is_read_later(c, operand[k], i)) continue;
        c->used &= ~(UINT64_C(1) << c->of_node[operand[k]]);
        c->of_node[operand[k]] = BLOCK_NONE;
    }
    in.to = c->of_node[i] = take_register(c);
    c->t->code[c->t->n_code++] = in;
}

static void make_code(const struct block *b, struct thread_graph *t) {
    struct coder c = {.b = b, .t = t};
    memset(c.of_node, BLOCK_NONE, sizeof c.of_node);
    for (uint32_t i = 0; i < b->n_nodes; i++)
        if ((t->nodes >> i & 1) != 0) code_node(&c, i);
}

uint32_t thread_graph_find(const struct block *b, struct thread_graph graphs[BLOCK_NODES]) {
    uint8_t first[BLOCK_NODES] = {0};
    uint32_t n = 0;
    join(b, first);
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        if (first[i] != i || !is_map(&b->node[i])) continue;
        struct thread_graph *t = &graphs[n++];
        *t = (struct thread_graph){.stage = b->node[i].stage, .dims = b->node[i].dims};
        for (uint32_t k = i; k < b->n_nodes; k++)
            if (first[k] == i && is_map(&b->node[k])) t->nodes |= UINT64_C(1) << k;
        t->stored = read_outside(b, t->nodes);
        make_code(b, t);
    }
    return n;
}

void thread_graph_write(const struct block *b, const struct thread_graph *t, struct strbuf *out) {
    strbuf_printf(out, "%s ", block_stage_name(t->stage));
    block_write_dims(b, t->dims, out);
    strbuf_printf(out, " %u registers\n", t->n_registers);
    for (uint32_t i = 0; i < t->n_code; i++) {
        const struct thread_instruction *in = &t->code[i];
        if (in->op == THREAD_LOAD) {
            strbuf_printf(out, "  r%u = load %%%u\n", in->to, in->a);
            continue;
        }
        const uint8_t operand[BLOCK_MAX_ARITY] = {in->a, in->b, in->c};
        strbuf_printf(out, "  r%u = %s", in->to, block_op_table[in->op].name);
        for (uint32_t k = 0; k < 3 && operand[k] != BLOCK_NONE; k++)
            strbuf_printf(out, " r%u", operand[k]);
        if ((t->stored >> in->node & 1) != 0) strbuf_printf(out, "  -> %%%u", in->node);
        strbuf_char(out, '\n');
    }
}
