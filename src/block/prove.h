/* prove.h - whether two operators are equal: the same outputs from the same arguments.
 *
 * The proof is equality of normal forms (form.h says what it assumes). A difference is shown by
 * numbers for the arguments at which the outputs are certainly not equal: their intervals have no
 * number in common, or they differ in a field. If neither is found, the answer is "not decided".
 */
#ifndef QN_BLOCK_PROVE_H
#define QN_BLOCK_PROVE_H

#include "block/expr.h"

/* Look-ups in tables of forms that a proof may use: some seconds. */
enum { PROVE_LOOK_UPS = 20000000 };

enum verdict { VERDICT_EQUAL, VERDICT_DIFFERENT, VERDICT_UNDECIDED };

/* Arguments and outputs are matched by name, their dims by their order in each. *why gets one line:
 * "proved", "y differs at ...", or what was not decided. Errors: QN_EINVAL if a and b do not have
 * the same arguments or outputs, QN_ENOMEM, QN_EINTERNAL if proof and test disagree. */
int prove(struct diag *d, const struct expr *a, const struct expr *b, enum verdict *verdict,
          struct strbuf *why);

/* The proof alone. *equal: all outputs' normal forms are equal in all cases. Errors: as prove. */
int prove_forms(struct diag *d, const struct expr *a, const struct expr *b, bool *equal);

/* Describes one operator: arguments, outputs, dims, normal forms. Errors: QN_ELIMIT if an output
 * has no normal form. */
int op_check(struct diag *d, const struct expr *x, struct strbuf *out);

#endif
