/* clear.cuh - CLEAR: a share of the space that activations lie in whose words are empty until they
 * are stored (task/carry.c). While SAMPLE runs elsewhere, and the memory has nothing to do.
 *
 * Bytes written: those of the task's units, once per iteration.
 */
#ifndef QN_CUDA_OTHER_CLEAR_CUH
#define QN_CUDA_OTHER_CLEAR_CUH

#include "kernels/cuda/block/block.cuh"

DEV void run_clear(const struct warp_context *c, const struct cuda_task *task) {
    char *at = (char *)task->out + (uint64_t)task->unit0 * task->k;
    char *end = (char *)task->out + (uint64_t)task->unit1 * task->k;
    const uint4 empty = make_uint4(CUDA_EMPTY, CUDA_EMPTY, CUDA_EMPTY, CUDA_EMPTY);
    for (at += 16 * c->thread; at < end; at += 16 * COMPUTE_THREADS) store_words4(at, empty);
}

#endif
