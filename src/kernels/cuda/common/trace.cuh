/* trace.cuh - optional records of when tasks became ready and done; see cuda_abi.h. */
#ifndef QN_CUDA_COMMON_TRACE_CUH
#define QN_CUDA_COMMON_TRACE_CUH

#include "kernels/cuda/common/block.cuh"

DEV void trace(const struct cuda_args *args, struct block_shared *shared, uint32_t kind,
               uint32_t task) {
    if (args->trace == nullptr) return;
    uint32_t i = atomicAdd(&shared->n_traced, 1u);
    uint64_t *mine = args->trace + (uint64_t)blockIdx.x * (2 + 2 * (uint64_t)args->trace_capacity);
    if (i < args->trace_capacity) {
        uint64_t now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
        mine[2 + 2 * i] = now;
        mine[3 + 2 * i] = (uint64_t)kind << 32 | task;
    }
    mine[0] = i + 1;
}

#endif
