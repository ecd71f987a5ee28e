/* cuda_plan.h - every byte that an engine takes on a GPU, known before the first is taken.
 *
 *   device:  | weights | KV cache | workspace | runtime state | program, tables | trace | uploads |
 *                                                               (uploads: released after loading)
 *   host, pinned and mapped:  | mailbox |
 *
 * cuda_group.c and backend_cuda.c make it from the program alone: no device is touched.
 */
#ifndef QN_ENGINE_CUDA_PLAN_H
#define QN_ENGINE_CUDA_PLAN_H

#include "base/status.h"
#include "codegen/cuda_abi.h"
#include "runtime/rt_memory.h"

struct cuda_plan {
    uint64_t weight_bytes;  /* re-tiled, padded */
    uint64_t padding_bytes; /* by which that exceeds the weights of the program */
    uint64_t kv_bytes, workspace_bytes, state_bytes;
    uint64_t program_bytes, task_bytes, rope_bytes, sample_bytes, trace_bytes;
    uint64_t sums_bytes;   /* 0: LINEAR's waiting sums lie in SAMPLE's memory, or there are none */
    uint64_t upload_bytes; /* while loading only */
    uint64_t device_bytes; /* all of the above but padding, which is part of the weights */
    uint64_t mail_bytes;   /* host */
    uint32_t logit_rows;   /* most logit rows of an iteration */
    struct rt_memory rt;
    struct cuda_place *places; /* [weights of the program]; released by cuda_plan_fini */
};

/* `rt` has the protocol's options with n_kv_blocks set; trace_bytes: cuda_trace_bytes. Errors:
 * cuda_tables_plan's, rt_memory_plan's. To be released with cuda_plan_fini also after an error. */
int cuda_plan_make(struct diag *d, const struct prog_header *program, const struct rt_options *rt,
                   uint64_t trace_bytes, struct cuda_plan *plan);
void cuda_plan_fini(struct cuda_plan *plan);

/* QN_ELIMIT with the figures unless the device has room for the plan. */
int cuda_plan_check(struct diag *d, const struct cuda_plan *plan, uint64_t free_bytes,
                    uint64_t total_bytes);

#endif
