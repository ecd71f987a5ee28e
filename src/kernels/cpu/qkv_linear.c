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

/* Columns [unit0, unit1) of one of the three projections, which begins at column `first`. */
static void project(const struct cpu_task *t, int kind, uint32_t first, uint32_t columns,
                    uint32_t row, uint32_t n, const void *pack, const float *inv) {
    uint32_t c0 = t->task->unit0 > first ? t->task->unit0 - first : 0;
    uint32_t c1 = t->task->unit1 > first ? t->task->unit1 - first : 0;
    if (c1 > columns) c1 = columns;
    if (c0 >= c1) return;
    enum dtype dtype = tile_in_dtype(t, QKV_WQ + kind);
    const float *bias = tile_in(t, QKV_BQ + kind);
    const void *w = tile_weight_row(tile_in(t, QKV_WQ + kind), dtype, c0, t->op->k);
    float *y = (float *)tile_out(t, 0) + (size_t)row * t->op->units + first + c0; /* [T, units] */
    t->isa->gemm[dtype](CPU_SUM_WHOLE, w, c1 - c0, t->op->k, pack, n, y, t->op->units);
    for (uint32_t i = 0; i < n; i++)
        qkv_scale(y + (size_t)i * t->op->units, c1 - c0, inv[i], bias != NULL ? bias + c0 : NULL);
}

void cpu_qkv_linear(const struct cpu_task *t) {
    const float *input = tile_in(t, QKV_X); /* [T, H] */
    enum dtype dtype = tile_in_dtype(t, QKV_WQ);
    uint32_t k = t->op->k, q = t->spec->n_heads * t->spec->head_dim;
    uint32_t kv = t->spec->n_kv_heads * t->spec->head_dim;
    uint32_t block = tile_op_block(t->op, k), end = tile_row_end(t, t->batch->rows.n_rows);
    struct linear_scratch l = layout(t->scratch, block, k);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        float inv[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) x[i] = input + (size_t)(r + i) * k;
        tile_pack_norm(t, dtype, x, tile_in(t, QKV_NORM), n, k, l.pack, inv);
        project(t, 0, 0, q, r, n, l.pack, inv);
        project(t, 1, q, kv, r, n, l.pack, inv);
        project(t, 2, q + kv, kv, r, n, l.pack, inv);
    }
}
