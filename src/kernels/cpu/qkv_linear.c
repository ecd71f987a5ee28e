/* qkv_linear.c - QKV_LINEAR: the projections of QKV alone, column by column of [q | k | v]. */
#include "kernels/cpu/qkv.h"

struct linear_scratch {
    void *pack; /* a block of rows of x * norm */
    size_t bytes;
};

static struct linear_scratch layout(void *base, uint32_t block, uint32_t k) {
    struct tile_scratch s = {.base = base};
    struct linear_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(block, k));
    l.bytes = s.used;
    return l;
}

size_t cpu_qkv_linear_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, tile_op_block(op, op->k), op->k).bytes;
}

void cpu_qkv_linear(const struct cpu_task *t) {
    const float *input = tile_in(t, QKV_LINEAR_X);   /* [T, H] */
    const void *w = tile_in(t, QKV_LINEAR_W);        /* [units, H] */
    const float *bias = tile_in(t, QKV_LINEAR_BIAS); /* [units] */
    float *qkv = tile_out(t, 0);                     /* [T, units] */
    enum dtype dtype = tile_in_dtype(t, QKV_LINEAR_W);
    uint32_t k = t->op->k, units = t->op->units, first = t->task->unit0;
    uint32_t columns = t->task->unit1 - first;
    uint32_t block = tile_op_block(t->op, k), end = tile_row_end(t, t->batch->rows.n_rows);
    struct linear_scratch l = layout(t->scratch, block, k);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        float inv[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) x[i] = input + (size_t)(r + i) * k;
        tile_pack_norm(t, dtype, x, tile_in(t, QKV_LINEAR_NORM), n, k, l.pack, inv);
        float *y = qkv + (size_t)r * units + first;
        t->isa->gemm[dtype](CPU_SUM_WHOLE, tile_weight_row(w, dtype, first, k), columns, k, l.pack,
                            n, y, units);
        for (uint32_t i = 0; i < n; i++)
            qkv_scale(y + (size_t)i * units, columns, inv[i], bias != NULL ? bias + first : NULL);
    }
}
