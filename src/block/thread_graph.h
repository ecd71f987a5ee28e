/* thread_graph.h - thread graphs: the elementwise nodes of a block that stay in registers.
 *
 * A rule finds them, not the search: neighbouring elementwise nodes of one stage with the same dims
 * and the same number of reductions before them are one thread graph. The last condition prevents
 * cycles: x * rsqrt(sum(x * x)) reads the sum of its own square, so it is two thread graphs.
 *
 *     item (index over the dims)   r0 = load x   r1 = load g   r0 = mul r0 r1   r0 -> node 7
 *
 * The code is straight-line over an item's registers. Loads bring values from outside.
 */
#ifndef QN_BLOCK_THREAD_GRAPH_H
#define QN_BLOCK_THREAD_GRAPH_H

#include "block/block.h"

enum { THREAD_CODE = 2 * BLOCK_NODES, THREAD_LOAD = 255 }; /* as an instruction's op */

struct thread_instruction {
    uint8_t op;      /* enum block_op, or THREAD_LOAD: of node a */
    uint8_t to;      /* register */
    uint8_t a, b, c; /* registers, or the node of a load; BLOCK_NONE */
    uint8_t node;    /* the node that it computes */
};

struct thread_graph {
    uint8_t stage, n_registers, n_code;
    block_dims dims; /* an item is an index over them */
    uint64_t nodes;  /* bits over block.node */
    uint64_t stored; /* those of its nodes that nodes outside read */
    struct thread_instruction code[THREAD_CODE];
};

/* Finds the thread graphs of a verified block, in the order of their first nodes; returns their
 * number. Each elementwise node is in exactly one. */
uint32_t thread_graph_find(const struct block *b, struct thread_graph graphs[BLOCK_NODES]);
void thread_graph_write(const struct block *b, const struct thread_graph *t, struct strbuf *out);

#endif
