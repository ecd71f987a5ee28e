/* latent_norm.cuh - LATENT_NORM: RMSNorm of the first columns of rows, with its weights; a warp a
 * row. */
#ifndef QN_CUDA_OTHER_LATENT_NORM_CUH
#define QN_CUDA_OTHER_LATENT_NORM_CUH

#if QN_LATENT

#include "kernels/cuda/data/packed_layout.cuh"
#include "kernels/cuda/data/reduce.cuh"

DEV void run_latent_norm(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows), k = task->k;
    const float eps = __uint_as_float(QN_LATENT_EPS_BITS);
    for (uint32_t row = task->row0 + c->warp; row < end; row += WARPS) {
        const float *from = (const float *)task->in + (uint64_t)row * task->n_pieces;
        float squares = 0;
#pragma unroll 4
        for (uint32_t i = c->lane; i < k; i += 32) {
            const float v = load_l2(from + i);
            squares = fmaf(v, v, squares);
        }
        const float mean = __fmul_rn(warp_sum(squares), 1.0f / (float)k);
        const float inv = inverse_sqrt_fast(__fadd_rn(mean, eps));
#pragma unroll 4
        for (uint32_t i = c->lane; i < k; i += 32) {
            const float v = load_l2(from + i) * inv * __ldg((const float *)task->norm + i);
            if (task->flags & CUDA_OUT_PACKED)
                packed_store(task, row, i, v);
            else
                operand_store(task, (uint64_t)row * k + i, v);
        }
    }
}

#endif

#endif
