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

/* places[SECTION_WEIGHT's count]: where each weight lies; *bytes: size of the weights allocation.
 * Errors: QN_EUNSUPPORTED for what the kernels cannot run (F32 matrices are stored as BF16;
 * head_dim not a multiple of 8 or above 256; KV cache other than BF16 and F16). */
int cuda_tables_plan(struct diag *d, const struct prog_header *program, struct cuda_place *places,
                     uint64_t *bytes);

/* Whether a device of that compute capability, major * 10 + minor, has all of the program's
 * operators: only Hopper has LINEAR_PARTS. Error: QN_EUNSUPPORTED. */
int cuda_tables_check(struct diag *d, const struct prog_header *program, uint32_t cc);

/* Device addresses that task descriptors are made from. */
struct cuda_bases {
    uint64_t weights;
    uint64_t workspace;      /* program->workspace_bytes */
    uint64_t kv;             /* caches of layer 0, 1 ... one after the other */
    uint64_t kv_layer_bytes; /* n_kv_blocks * 2 * n_kv_heads * kv_block * head_dim * 2 */
    uint32_t cc;             /* compute capability, major * 10 + minor; 0: 90 */
};

/* What a task is without its operands and events: kind, rows, units, k, eights, and the form that
 * runs it (cuda_form.h). False: the device has none. */
bool cuda_tables_shape(const struct cuda_form_host *host, const struct prog_task *t,
                       struct cuda_task *out);

/* tasks[SECTION_TASK's count] */
void cuda_tables_fill(const struct prog_header *program, const struct cuda_place *places,
                      const struct cuda_bases *bases, struct cuda_task *tasks);

#endif
