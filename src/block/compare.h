/* compare.h - two operators on the same numbers: the second and third opinion beside the proof.
 */
#ifndef QN_BLOCK_COMPARE_H
#define QN_BLOCK_COMPARE_H

#include "block/expr.h"
#include "graph/dtype.h"

/* Two operators whose arguments, outputs and dims are matched. */
struct matching {
    const struct expr *a, *b;
    int arg[EXPR_MAX_ARGS], out[EXPR_MAX_OUT]; /* b's number of a's */
    int dim[BLOCK_MAX_DIMS];                   /* b's dim of a's; -1: b has none */
};

/* Matches by name (prove.h). Errors: QN_EINVAL. */
int matching_make(struct diag *d, const struct expr *a, const struct expr *b, struct matching *m);

/* One case of absent arguments: bits over a's arguments. */
struct compare_case {
    const struct matching *m;
    uint32_t absent;
};

/* Looks for small numbers at which an output of a certainly differs from b's. Sets *found, and
 * appends a line that describes the difference. Errors: QN_ENOMEM, QN_ELIMIT. */
int compare_witness(struct diag *d, const struct compare_case *c, bool *found, struct strbuf *line);

enum field_answer {
    FIELD_SAME,    /* equal in all tests */
    FIELD_DIFFERS, /* unequal in a test without random functions and roots: not equal */
    FIELD_OPEN,    /* unequal, perhaps only because of random functions or roots */
};
/* Runs n tests over the fields. */
int compare_fields(struct diag *d, const struct compare_case *c, uint32_t n,
                   enum field_answer *answer, struct strbuf *line);

/* The errors of a and of b in the target's roundings, against a in double, relative to the largest
 * number: the worst over several distributions of inputs. */
int compare_floats(struct diag *d, const struct compare_case *c, enum dtype dtype, double *error_a,
                   double *error_b);

#endif
