/* cpu_rig.h - one iteration of a CPU program by the CPU backend's kernels, task after task, with
 * the memory before and after in the caller's hands: device_rig.h's counterpart. */
#ifndef QN_TESTS_DEVICE_CPU_RIG_H
#define QN_TESTS_DEVICE_CPU_RIG_H

#include "device/device_rig.h"

/* memory: as device_run; its state is as long as rt_memory_plan says, weights is ignored. */
int cpu_rig_run(struct diag *d, const struct prog_header *program, void *const *weights,
                const struct iteration *it, uint32_t only, struct device_memory *memory);
/* Bytes of a layer's KV cache. */
uint64_t cpu_rig_kv_bytes(const struct prog_header *program, uint32_t n_kv_blocks);

#endif
