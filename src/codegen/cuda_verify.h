/* cuda_verify.h - proof that the tables which the mega-kernel reads say what the program says.
 *
 * task_verify ends at the program; the kernel reads struct cuda_task and struct cuda_place. This
 * proof looks at their final bytes, with none of cuda_tables.c. It knows from the program which
 * tensor each field of a kind must point to, and what must hold of all tasks of an operator
 * together.
 *
 *   places    every matrix and vector lies in the allocation, aligned, and shares no row of an
 *             image with another; what kernels index as one (q|k|v, gate|up, their biases) lies as
 *             one
 *   protocol  a task waits for, triggers and watches what its task of the program does
 *   operands  every field is the address of its tensor, or 0; nothing else is set
 *   formats   packed, flagged, paired or plain is what the tensor's own bytes are, so that writer
 *             and readers agree; lengths, pieces and groups of eight rows follow from the shapes
 *   walk      a task's row blocks are those of its units; its tile, group and columns are a form
 *             that the kernels have, with room for what it keeps
 *   cover     the rows x units of an operator's tasks, and its row blocks, make up all of it once
 *
 * Runs when tables are made, and for `quern verify`. Cost: one pass over tasks, a sort for each
 * operator.
 */
#ifndef QN_CODEGEN_CUDA_VERIFY_H
#define QN_CODEGEN_CUDA_VERIFY_H

#include "codegen/cuda_tables.h"

/* The tables to prove: as cuda_tables_plan and cuda_tables_fill made them. */
struct cuda_tables {
    const struct cuda_place *places; /* [SECTION_WEIGHT's count] */
    uint64_t weight_bytes;
    struct cuda_bases bases;
    const struct cuda_task *tasks; /* cuda_tables_bytes: [SECTION_TASK's count], then the rows */
};

/* Errors: QN_EVERIFY naming task, field and both values; QN_ENOMEM. The program must have passed
 * program_check and task_verify. */
int cuda_verify(struct diag *d, const struct prog_header *program, const struct cuda_tables *t);

/* Makes the tables of a program for a device of that compute capability that is not there, and
 * proves them. Errors: also those of cuda_tables_plan and cuda_tables_check. */
int cuda_verify_program(struct diag *d, const struct prog_header *program, uint32_t cc);

#endif
