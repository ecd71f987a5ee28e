/* latent_norm.c - LATENT_NORM: RMSNorm of the first columns of rows, with its weights. */
#include "kernels/cpu/tile.h"

#include <math.h>

size_t cpu_latent_norm_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    (void)op;
    return 0;
}

void cpu_latent_norm(const struct cpu_task *t) {
    const uint32_t pitch = tile_in_shape(t, LATENT_NORM_X)[1];
    const uint32_t k = tile_in_shape(t, LATENT_NORM_W)[0];
    const float *norm = tile_in(t, LATENT_NORM_W);
    const uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    for (uint32_t r = t->task->row0; r < end; r++) {
        const float *x = (const float *)tile_in(t, LATENT_NORM_X) + (size_t)r * pitch;
        float *y = (float *)tile_out(t, 0) + (size_t)r * k;
        const float inv = 1.0f / sqrtf(t->isa->sum_squares(x, k) / (float)k + t->op->attrs.eps);
        for (uint32_t i = 0; i < k; i++) y[i] = x[i] * inv * norm[i];
    }
}
