/* block_stats.c - the resources of a task: nodes, pages, scratch, registers. */
#include "base/checked.h"
#include "block/block.h"
#include "block/thread_graph.h"

#include <string.h>

/* A value's life in steps. Each node is a step. So is the end of each loop stage, because a loop
 * reads the same values again in its next iteration. */
struct life {
    uint32_t first, last;
    uint64_t bytes;
};

/* The first and the last non-input node of a stage; false: it has none. */
static bool stage_range(const struct block *b, uint32_t stage, uint32_t *first, uint32_t *last) {
    bool found = false;
    for (uint32_t i = b->n_in; i < b->n_nodes; i++) {
        if (b->node[i].stage != stage) continue;
        if (!found) *first = i;
        *last = i;
        found = true;
    }
    return found;
}

static struct life life_of(const struct block *b, uint32_t node) {
    const struct block_node *n = &b->node[node];
    struct life life = {node, node, 0};
    uint32_t first, last;
    if (node < b->n_in) { /* an input lives from the start of its stage on */
        life.first = b->n_in;
        for (uint32_t s = 0; s < n->stage; s++)
            if (stage_range(b, s, &first, &last)) life.first = last + 1;
        life.last = life.first;
    }
    if (block_op_table[n->op].op_class == BLOCK_ACCUMULATE) /* it lives from the loop's start on */
        for (uint32_t s = STAGE_LOOP; s < n->stage; s++)
            if (block_stage_loops(s) && stage_range(b, s, &first, &last)) life.first = first;
    for (uint32_t i = b->n_in; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n_operands = block_operands(&b->node[i], operand);
        for (uint32_t k = 0; k < n_operands; k++) {
            if (operand[k] != node) continue;
            life.last = MAX(life.last, i);
            const uint32_t stage = b->node[i].stage;
            if (block_stage_loops(stage) && stage != n->stage &&
                stage_range(b, stage, &first, &last))
                life.last = MAX(life.last, last);
        }
    }
    for (uint32_t o = 0; o < b->n_out; o++)
        if (b->out[o].node == node) life.last = b->n_nodes;
    return life;
}

/* ---- scratch ---- */

struct placing {
    uint32_t n;
    struct life life[BLOCK_BUFFERS];
    uint64_t offset[BLOCK_BUFFERS], best;
    uint32_t placed; /* bits */
};

static bool lives_with(const struct life *a, const struct life *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest free place for buffer i beside the placed buffers. */
static uint64_t lowest_place(const struct placing *p, uint32_t i) {
    uint64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t k = 0; k < p->n; k++) {
            const uint64_t end = p->offset[k] + p->life[k].bytes;
            if ((p->placed >> k & 1) == 0 || !lives_with(&p->life[k], &p->life[i])) continue;
            if (at + p->life[i].bytes <= p->offset[k] || at >= end) continue;
            at = end;
            moved = true;
        }
    }
    return at;
}

/* Tries every order of the buffers, each as low as it goes: some order gives the least height. */
static void place_rest(struct placing *p, uint64_t height) {
    if (height >= p->best) return;
    if (p->placed == (1u << p->n) - 1) {
        p->best = height;
        return;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        if ((p->placed >> i & 1) != 0) continue;
        p->offset[i] = lowest_place(p, i);
        p->placed |= 1u << i;
        place_rest(p, MAX(height, p->offset[i] + p->life[i].bytes));
        p->placed &= ~(1u << i);
    }
}

uint64_t block_place_scratch(const struct block *b) {
    enum { ALIGN = 16 };
    struct placing p = {.best = UINT64_MAX};
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const struct block_node *n = &b->node[i];
        uint64_t bytes;
        if (n->space != SPACE_SCRATCH) continue;
        if (p.n == BLOCK_BUFFERS ||
            !checked_mul(block_elements(b, i), dtype_bytes(n->dtype), &bytes) || bytes > UINT32_MAX)
            return UINT64_MAX;
        p.life[p.n] = life_of(b, i);
        p.life[p.n++].bytes = align_up(bytes, ALIGN);
    }
    place_rest(&p, 0);
    return p.best;
}

/* ---- registers ---- */

uint32_t block_live_registers(const struct block *b) {
    uint64_t live[BLOCK_NODES + 1] = {0}, most = 0;
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        if (b->node[i].space != SPACE_REG) continue;
        const struct life life = life_of(b, i);
        const uint64_t each = CEIL_DIV(MIN(block_elements(b, i), UINT32_MAX), BLOCK_THREADS);
        for (uint32_t s = life.first; s <= life.last && s <= b->n_nodes; s++) live[s] += each;
    }
    for (uint32_t s = 0; s <= b->n_nodes; s++) most = MAX(most, live[s]);
    return (uint32_t)MIN(most, UINT32_MAX);
}

/* ---- all together ---- */

/* Bytes that a task streams; an operand counts once over its whole loop dim. */
static uint64_t streamed_bytes(const struct block *b) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < b->n_in; i++) {
        const struct block_node *n = &b->node[i];
        const block_dims loop = block_loop_dims(b, n->stage);
        uint64_t all = block_elements(b, i), sum;
        if (n->space != SPACE_PAGE || loop == 0) continue;
        const struct block_dim *dim = &b->dim[__builtin_ctz(loop)];
        const uint64_t trips = CEIL_DIV(MAX(dim->size, 1), dim->tile);
        if ((n->dims & loop) == 0 || !checked_mul(all, trips, &all)) all = block_elements(b, i);
        if (!checked_mul(all, dtype_bytes(n->dtype), &all) || !checked_add(bytes, all, &sum))
            return UINT64_MAX;
        bytes = sum;
    }
    return bytes;
}

void block_stats(const struct block *b, struct block_stats *s) {
    struct thread_graph graphs[BLOCK_NODES];
    *s = (struct block_stats){.n_nodes = b->n_nodes, .n_inputs = b->n_in};
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        const uint8_t class = block_op_table[b->node[i].op].op_class;
        s->per_stage[b->node[i].stage]++;
        s->n_reductions += class == BLOCK_REDUCE || class == BLOCK_PRODUCT;
        s->n_accumulators += class == BLOCK_ACCUMULATE;
    }
    s->n_thread_graphs = thread_graph_find(b, graphs);
    s->page_bytes = streamed_bytes(b);
    s->scratch_bytes = block_place_scratch(b);
    s->registers = block_live_registers(b);
}
