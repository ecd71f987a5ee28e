/* cuda_tables.h - host side of cuda_abi.h: where each weight goes, and the flat task table.
 *
 * Made once per engine by engine/backend_cuda.c: plan -> allocate, clear, fill the weights ->
 * fill the task table and upload it.
 */
#ifndef QN_CODEGEN_CUDA_TABLES_H
#define QN_CODEGEN_CUDA_TABLES_H

#include "base/status.h"
#include "codegen/cuda_abi.h"
#include "codegen/cuda_form.h"

/* places[SECTION_WEIGHT's count]: where each block of weights lies; *bytes: size of the weights
 * allocation. Errors: QN_EUNSUPPORTED for what the kernels cannot run (F32 matrices are stored as
 * BF16; head_dim not a multiple of 8 or above 256; KV cache other than BF16 and F16). */
int cuda_tables_plan(struct diag *d, const struct prog_header *program, struct cuda_place *places,
                     uint64_t *bytes);

/* Device addresses that task descriptors are made from. */
struct cuda_bases {
    uint64_t weights;
    uint64_t workspace;   /* program->workspace_bytes */
    uint64_t tasks;       /* cuda_tables_bytes: the task table and what follows it */
    uint64_t kv;          /* program_kv_bytes: the layers' caches one after the other */
    uint32_t n_kv_blocks; /* of each */
    uint32_t rank;        /* of the program's n_ranks, each of which holds the whole model */
    uint32_t cc;          /* compute capability, major * 10 + minor; 0: 90 */
};

/* Whether that rank can run the program: there is a form for each of its tasks (cuda_form.h).
 * Error: QN_EUNSUPPORTED. */
int cuda_tables_check(struct diag *d, const struct prog_header *program,
                      const struct cuda_bases *bases);

/* Sets the part of a descriptor before operands, events and form: kind, rows, units, k, eights. */
void cuda_tables_shape(const struct prog_header *program, const struct prog_task *t,
                       struct cuda_task *out);

/* Bytes of a program's task table, with the rows of struct cuda_beyond behind it. */
uint64_t cuda_tables_bytes(const struct prog_header *program);

/* Fills tasks, of cuda_tables_bytes: the descriptors of SECTION_TASK's tasks, then the rows of
 * struct cuda_beyond. The program must have passed cuda_tables_check. Errors: QN_ENOMEM;
 * program_map's, which a proved program does not have. */
int cuda_tables_fill(struct diag *d, const struct prog_header *program,
                     const struct cuda_place *places, const struct cuda_bases *bases,
                     struct cuda_task *tasks);

#endif
