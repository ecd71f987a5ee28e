/* latent_norm.cuh - LATENT_NORM: RMSNorm of the first columns of rows, with its weights; a warp a
 * row. */
#ifndef QN_CUDA_OTHER_LATENT_NORM_CUH
#define QN_CUDA_OTHER_LATENT_NORM_CUH

#if QN_LATENT

#include "kernels/cuda/data/packed_layout.cuh"
#include "kernels/cuda/data/reduce.cuh"

/* Stores columns i, which is even, and i + 1 of a row. */
DEV void latent_norm_put(const struct cuda_task *task, uint32_t row, uint32_t i, float2 v) {
    const uint64_t at = (uint64_t)row * task->k + i;
    if (task->flags & CUDA_OUT_PACKED) {
        packed_store2(task, row, i, v.x, v.y);
    } else if (task->flags & CUDA_OUT_PAIRED) {
        operand_store_pair(task, at, v.x, v.y);
    } else {
        operand_store(task, at, v.x);
        operand_store(task, at + 1, v.y);
    }
}

DEV void run_latent_norm(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows), k = task->k;
    const float eps = __uint_as_float(QN_LATENT_EPS_BITS);
    for (uint32_t row = task->row0 + c->warp; row < end; row += WARPS) {
        const struct operand from = operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED),
                                                 (uint64_t)row * task->n_pieces);
        float squares = 0;
#pragma unroll 4
        for (uint32_t i = 2 * c->lane; i < k; i += 64) {
            const float2 v = operand_load2(from, i / 2);
            squares = fmaf(v.y, v.y, fmaf(v.x, v.x, squares));
        }
        const float mean = __fmul_rn(warp_sum(squares), 1.0f / (float)k);
        const float inv = inverse_sqrt_fast(__fadd_rn(mean, eps));
#pragma unroll 4
        for (uint32_t i = 2 * c->lane; i < k; i += 64) {
            const float2 v = operand_load2(from, i / 2);
            const float2 norm = __ldg((const float2 *)task->norm + i / 2);
            latent_norm_put(task, row, i, make_float2(v.x * inv * norm.x, v.y * inv * norm.y));
        }
    }
}

#endif

#endif
