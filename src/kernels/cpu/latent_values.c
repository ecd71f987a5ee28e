/* latent_values.c - LATENT_VALUES: from attention's output over latents to the heads' values, by
 * the head's own rows of w. */
#include "base/checked.h"
#include "kernels/cpu/tile.h"

static size_t pack_bytes(const struct prog_op *op) {
    return cpu_pack_bound(tile_op_block(op, op->k), op->k);
}

size_t cpu_latent_values_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return pack_bytes(op);
}

/* Makes the task's columns of head h of n rows from row r on. */
static void make_values(const struct cpu_task *t, uint32_t h, uint32_t N, uint32_t r, uint32_t n) {
    const uint32_t k = t->op->k, heads = t->op->attrs.heads;
    const uint32_t from = MAX(t->task->unit0, h * N), end = MIN(t->task->unit1, (h + 1) * N);
    const float *a = tile_in(t, VALUES_A); /* [T, heads * k] */
    float *o = tile_out(t, 0);             /* [T, heads * N] */
    const enum dtype dtype = tile_in_dtype(t, VALUES_W);
    const float *x[TILE_MAX_ROWS];
    for (uint32_t i = 0; i < n; i++) x[i] = a + ((size_t)(r + i) * heads + h) * k;
    t->isa->pack(dtype, x, NULL, n, k, t->scratch);
    t->isa->gemm[dtype](CPU_SUM_WHOLE, tile_weight_row(tile_in(t, VALUES_W), dtype, from, k),
                        end - from, k, t->scratch, n, o + (size_t)r * heads * N + from,
                        (size_t)heads * N);
}

void cpu_latent_values(const struct cpu_task *t) {
    const uint32_t N = tile_in_shape(t, VALUES_W)[0] / t->op->attrs.heads;
    const uint32_t block = tile_op_block(t->op, t->op->k);
    const uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        const uint32_t n = end - r < block ? end - r : block;
        for (uint32_t h = t->task->unit0 / N; h * N < t->task->unit1; h++)
            make_values(t, h, N, r, n);
    }
}
