/* kgraph_prove.h - whether a kernel graph, however it is cut, computes what the model's reference
 * graph does.
 *
 * Every operator's meaning (op.def's MEANS) is put in place of the operator, and the normal forms
 * of both graphs are compared where they must agree: at each value of the residual stream, at what
 * is written to the KV cache, at the logits. After each comparison the value is a symbol in both: a
 * layer is proved by itself, and the proof is as long as the graph, not as its expressions.
 *
 * Sizes are symbols: one reference graph serves all numbers of rows and contexts.
 */
#ifndef QN_BLOCK_KGRAPH_PROVE_H
#define QN_BLOCK_KGRAPH_PROVE_H

#include "graph/kernel_graph.h"

struct kgraph_meaning;

struct kgraph_prove_report {
    uint32_t n_operators, n_compared; /* values of the reference */
    uint32_t n_forms;                 /* that were made, of the reference's, too */
};

/* The reference graph's meaning. It keeps nothing of the graph. Errors: QN_EVERIFY names the
 * operator that is not understood; QN_ENOMEM. */
int kgraph_meaning_new(struct diag *d, const struct kgraph *reference, struct kgraph_meaning **out);
void kgraph_meaning_free(struct kgraph_meaning *m);

/* Proves g equal to it. report may be NULL. Errors: QN_EVERIFY names the value that differs and the
 * operators that made it; QN_ENOMEM. */
int kgraph_prove(struct diag *d, struct kgraph_meaning *m, const struct kgraph *g,
                 struct kgraph_prove_report *report);

#endif
