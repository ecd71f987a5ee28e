/* linear.c - LINEAR: y = residual + a w^T + bias, one unit per column. y may be the residual. */
#include "kernels/cpu/tile.h"

struct linear_scratch {
    void *pack; /* a block of rows of a */
    float *y;   /* [block, tile_chunk(block)] dot products */
    size_t bytes;
};

static struct linear_scratch layout(void *base, uint32_t block, uint32_t k) {
    struct tile_scratch s = {.base = base};
    struct linear_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(block, k));
    l.y = tile_take(&s, (size_t)block * tile_chunk(block) * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_linear_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, tile_op_block(op, op->k), op->k).bytes;
}

/* y[n] = residual[n] + dot[n] + bias[n]; residual and bias may be NULL. */
static void finish_row(float *y, const float *dot, const float *bias, const float *residual,
                       uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        float v = dot[i];
        if (bias != NULL) v += bias[i];
        y[i] = residual != NULL ? residual[i] + v : v;
    }
}

void cpu_linear(const struct cpu_task *t) {
    const float *a = tile_in(t, LINEAR_A);               /* [T, K] */
    const void *w = tile_in(t, LINEAR_W);                /* [N, K] */
    const float *bias = tile_in(t, LINEAR_BIAS);         /* [N] */
    const float *residual = tile_in(t, LINEAR_RESIDUAL); /* [T, N] */
    float *y = tile_out(t, 0);                           /* [T, N] */
    enum dtype dtype = tile_in_dtype(t, LINEAR_W);
    uint32_t k = t->op->k, N = t->op->units, end = tile_row_end(t, t->batch->rows.n_rows);
    uint32_t block = tile_op_block(t->op, k), chunk = tile_chunk(block);
    struct linear_scratch l = layout(t->scratch, block, k);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) x[i] = a + (size_t)(r + i) * k;
        t->isa->pack(dtype, x, NULL, n, k, l.pack);
        for (uint32_t u = t->task->unit0; u < t->task->unit1; u += chunk) {
            uint32_t m = t->task->unit1 - u < chunk ? t->task->unit1 - u : chunk;
            t->isa->gemm[dtype](CPU_SUM_HALVES, tile_weight_row(w, dtype, u, k), m, k, l.pack, n,
                                l.y, chunk);
            for (uint32_t i = 0; i < n; i++) {
                size_t at = (size_t)(r + i) * N + u;
                finish_row(y + at, l.y + (size_t)i * chunk, bias != NULL ? bias + u : NULL,
                           residual != NULL ? residual + at : NULL, m);
            }
        }
    }
}
