/* op_expr.h - the meanings of operators: graph/op.def's MEANS and MEANS_LATENT rows. */
#ifndef QN_BLOCK_OP_EXPR_H
#define QN_BLOCK_OP_EXPR_H

#include "block/expr.h"
#include "graph/op.h"

/* The operator's text; kind must be a valid op_kind. latent: the model has latent attention. NULL:
 * models of that kind do not have the operator. */
const char *op_expr_text(enum op_kind kind, bool latent);
/* Parses that text. Errors: QN_EINTERNAL. */
int op_expr_parse(struct diag *d, enum op_kind kind, bool latent, struct expr *x);

#endif
