/* kgraph_prove.h - whether a kernel graph, however it is cut, computes the same function as the
 * model's reference graph.
 *
 * Every operator is replaced by its meaning (op.def's MEANS), and the normal forms of both graphs
 * are compared where they must agree: at each value of the residual stream, at each write to the KV
 * cache, at the logits. After a comparison the value is a symbol in both graphs. So each layer is
 * proved by itself, and the proof is as long as the graph, not as its expressions.
 *
 * Sizes are symbols: one reference graph serves all numbers of rows and contexts.
 */
#ifndef QN_BLOCK_KGRAPH_PROVE_H
#define QN_BLOCK_KGRAPH_PROVE_H

#include "graph/kernel_graph.h"

struct kgraph_meaning;

struct kgraph_prove_report {
    uint32_t n_operators, n_compared; /* values of the reference */
    uint32_t n_forms;                 /* forms made, including the reference's */
};

/* Makes the reference graph's meaning, which keeps no pointer into the graph. Errors: QN_EVERIFY
 * names the operator that is not understood; QN_ENOMEM. */
int kgraph_meaning_new(struct diag *d, const struct kgraph *reference, struct kgraph_meaning **out);
void kgraph_meaning_free(struct kgraph_meaning *m);

/* Proves g equal to the reference. report may be NULL. Errors: QN_EVERIFY names the value that
 * differs and the operators that made it; QN_ENOMEM. */
int kgraph_prove(struct diag *d, struct kgraph_meaning *m, const struct kgraph *g,
                 struct kgraph_prove_report *report);

#endif
