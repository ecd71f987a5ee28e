/* cuda_verify_proof.h - what the files of cuda_verify.h's proof share. */
#ifndef QN_CODEGEN_CUDA_VERIFY_PROOF_H
#define QN_CODEGEN_CUDA_VERIFY_PROOF_H

#include "base/arena.h"
#include "codegen/cuda_verify.h"

#include <stdbool.h>

/* Operands of a descriptor, in the order of form.def's columns. */
enum field { F_W, F_IN, F_NORM, F_BIAS, F_MORE, F_MORE2, F_OUT, F_OUT2, N_FIELDS };

/* The operand of an operator that a field holds. */
struct cuda_operand {
    bool there, out;
    uint8_t slot;
};

struct cuda_proof {
    struct diag *d;
    struct arena arena, kept; /* of variant v; of all variants */
    const struct prog_header *p;
    const struct model_spec *spec;
    const struct cuda_tables *t;
    uint32_t cc;
    const struct prog_variant *v; /* being checked */
    bool *list_known;             /* of its tasks: whether a loader may read the list at once */
    uint32_t *beyond_row;         /* of each operator: which row behind the task table is its own */
    struct cuda_operand operands[N_OP_KINDS][N_FIELDS], beyond[N_OP_KINDS][N_BEYOND];
};

/* A field that must have a certain value. */
struct cuda_wanted {
    const char *field;
    uint64_t want, have;
};

/* Checks that fields of a task's descriptor have the values wanted. Errors: QN_EVERIFY. */
int cuda_proof_wanted(const struct cuda_proof *f, uint32_t task, const struct cuda_wanted *w,
                      size_t n);

/* The tensor of an operator whose address a field holds; NULL: none. */
const struct prog_tensor *cuda_proof_tensor(const struct cuda_proof *f, const struct prog_op *op,
                                            enum field field);

/* Logit rows of the iteration before an operator's first row. */
uint32_t cuda_proof_rows_before(const struct prog_op *op);

/* cuda_verify_walk.c. Checks that a task's row blocks are those of its units, and that its tile,
 * group and columns are a form that the kernels have. op NULL: the task has no operator. Errors:
 * QN_EVERIFY. */
int cuda_proof_walk(const struct cuda_proof *f, uint32_t task, const struct prog_op *op);

/* cuda_verify_walk.c. Whether an operator's n tasks t, by rows, then units, make up its output
 * once, and read no page outside the weights. */
bool cuda_proof_covers(const struct cuda_proof *f, const struct prog_op *op,
                       const struct cuda_task *t, uint64_t n);

#endif
