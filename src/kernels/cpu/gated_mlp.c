/* gated_mlp.c - GATED_MLP: h = silu(n wg^T + bg) * (n wu^T + bu) with n = rmsnorm(x) * norm. The
 * norm's row factor 1 / rms is applied to the dot products. */
#include "kernels/cpu/tile.h"

#include <string.h>

size_t cpu_gated_mlp_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return mlp_scratch_at(NULL, tile_op_block(op, op->k), op->k).bytes;
}

/* v[n] = v[n] * inv + bias[n] */
static void scale_bias(float *v, float inv, const float *bias, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        v[i] *= inv;
        if (bias != NULL) v[i] += bias[i];
    }
}

void cpu_gated_mlp(const struct cpu_task *t) {
    const float *input = tile_in(t, MLP_X);                         /* [T, H] */
    const void *wg = tile_in(t, MLP_WG), *wu = tile_in(t, MLP_WU);  /* [I, H] */
    const float *bg = tile_in(t, MLP_BG), *bu = tile_in(t, MLP_BU); /* [I] */
    float *h = tile_out(t, 0);                                      /* [T, I] */
    enum dtype dtype = tile_in_dtype(t, MLP_WG);
    uint32_t k = t->op->k, I = t->op->units, end = tile_row_end(t, t->batch->rows.n_rows);
    uint32_t block = tile_op_block(t->op, k), chunk = tile_chunk(block);
    struct mlp_scratch l = mlp_scratch_at(t->scratch, block, k);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        float inv[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) x[i] = input + (size_t)(r + i) * k;
        tile_pack_norm(t, dtype, x, tile_in(t, MLP_NORM), n, k, l.pack, inv);
        for (uint32_t u = t->task->unit0; u < t->task->unit1; u += chunk) {
            uint32_t m = t->task->unit1 - u < chunk ? t->task->unit1 - u : chunk;
            cpu_gemm_fn *gemm = t->isa->gemm[dtype];
            gemm(CPU_SUM_WHOLE, tile_weight_row(wg, dtype, u, k), m, k, l.pack, n, l.gate, chunk);
            gemm(CPU_SUM_WHOLE, tile_weight_row(wu, dtype, u, k), m, k, l.pack, n, l.up, chunk);
            for (uint32_t i = 0; i < n; i++) {
                float *gate = l.gate + (size_t)i * chunk, *up = l.up + (size_t)i * chunk;
                scale_bias(gate, inv[i], bg != NULL ? bg + u : NULL, m);
                scale_bias(up, inv[i], bu != NULL ? bu + u : NULL, m);
                t->isa->silu_mul(gate, up, m);
                memcpy(h + (size_t)(r + i) * I + u, gate, m * sizeof(float));
            }
        }
    }
}
