/* staged.h - the values of a saturation as a task of one skeleton can compute them.
 *
 * A node is a value in a stage; an edge computes it from nodes whose stages it may read. A sum over
 * a loop's dim is an accumulator: its result is in a stage after the loop. A sum over a product is
 * also a single edge, without the product as a value.
 *
 *     node (class 7, after)  <-  acc_sum over h of mul(node (class 0, loop), node (class 2, loop))
 */
#ifndef QN_SEARCH_STAGED_H
#define QN_SEARCH_STAGED_H

#include "search/cycles.h"

enum { STAGED_NONE = UINT16_MAX };

struct staged_node {
    uint16_t class;
    uint8_t stage;
    uint32_t first, n; /* the edges that compute it */
};

struct staged_edge {
    uint64_t cost;
    uint16_t a, b; /* nodes; STAGED_NONE */
    uint8_t op;    /* enum block_op; INPUT: a source */
    bool product;  /* op reduces the product of a and b */
    block_dims red;
    uint16_t source; /* of INPUT: index into sources */
    uint16_t to;     /* node */
    uint32_t pad;
};

struct staged {
    const struct problem *p;
    const struct saturation *s;
    const struct sources *sources;
    const struct skeleton *k;
    struct task_shape shape;
    ARRAY(struct staged_node) nodes;
    ARRAY(struct staged_edge) edges; /* grouped by node, in order of their nodes */
};

int staged_make(struct diag *d, const struct problem *p, const struct saturation *s,
                const struct sources *sources, const struct skeleton *k, struct staged *out);
void staged_fini(struct staged *g);

/* The stages in which a value of these dims may be a result, bits; 0: none, because its dims lack a
 * grid dim. */
uint32_t staged_result_stages(const struct staged *g, block_dims dims);

#endif
