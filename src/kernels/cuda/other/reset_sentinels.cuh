/* reset_sentinels.cuh - RESET_SENTINELS: writes sentinels to a part of the space of activations
 * that travel by sentinels (task/transport.c). It runs beside SAMPLE, while the memory has nothing
 * to do.
 *
 * Bytes written: those of the task's units, once per iteration.
 */
#ifndef QN_CUDA_OTHER_RESET_SENTINELS_CUH
#define QN_CUDA_OTHER_RESET_SENTINELS_CUH

#include "kernels/cuda/block/block.cuh"

DEV void run_reset_sentinels(const struct warp_context *c, const struct cuda_task *task) {
    char *at = (char *)task->out + (uint64_t)task->unit0 * task->k;
    char *end = (char *)task->out + (uint64_t)task->unit1 * task->k;
    const uint4 all = make_uint4(CUDA_SENTINEL, CUDA_SENTINEL, CUDA_SENTINEL, CUDA_SENTINEL);
    for (at += 16 * c->thread; at < end; at += 16 * COMPUTE_THREADS) store_words4(at, all);
}

#endif
