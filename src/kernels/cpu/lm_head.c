/* lm_head.c - LM_HEAD: logits of the logit rows and, per LM_BLOCK columns, {max, sum of
 * exp(logit - max)}. A sum is NaN where a logit of the block is. One unit is one block of
 * columns. */
#include "kernels/cpu/tile.h"

#include <assert.h>
#include <math.h>

struct lm_scratch {
    void *pack; /* a block of gathered rows of x * norm */
    size_t bytes;
};

static struct lm_scratch layout(void *base, uint32_t block, uint32_t k) {
    struct tile_scratch s = {.base = base};
    struct lm_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(block, k));
    l.bytes = s.used;
    return l;
}

size_t cpu_lm_head_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, tile_op_block(op, op->k), op->k).bytes;
}

/* Multiplies x[n] by `by`; returns whether one of the products is NaN. */
static bool scale(float *x, uint32_t n, float by) {
    int is_nan = 0;
    for (uint32_t j = 0; j < n; j++) {
        x[j] *= by;
        is_nan |= x[j] != x[j];
    }
    return is_nan != 0;
}

/* Computes one block of columns for n rows of the band from r on. */
static void block_logits(const struct cpu_task *t, const void *pack, const float *inv, uint32_t r,
                         uint32_t n, uint32_t unit) {
    enum dtype dtype = tile_in_dtype(t, LM_W);
    uint32_t vocab = tile_in_shape(t, LM_W)[0], k = t->op->k, first = unit * LM_BLOCK;
    uint32_t m = vocab - first < LM_BLOCK ? vocab - first : LM_BLOCK;
    float *logits = (float *)tile_out(t, LM_OUT_LOGITS) + (size_t)r * vocab + first; /* [band, V] */
    float *part = tile_out(t, LM_OUT_PART); /* [band, n_blocks, 2] */
    uint32_t n_blocks = (vocab + LM_BLOCK - 1) / LM_BLOCK;
    const void *w = tile_weight_row(tile_in(t, LM_W), dtype, first, k);
    t->isa->gemm[dtype](CPU_SUM_WHOLE, w, m, k, pack, n, logits, vocab);
    for (uint32_t i = 0; i < n; i++) {
        float *row = logits + (size_t)i * vocab;
        float *of = part + ((size_t)(r + i) * n_blocks + unit) * 2;
        const bool is_nan = scale(row, m, inv[i]);
        t->isa->max_sumexp(row, m, of);
        if (is_nan) of[1] = NAN;
    }
}

void cpu_lm_head(const struct cpu_task *t) {
    const struct rt_rows *rows = &t->batch->rows;
    const float *input = tile_in(t, LM_X); /* [T, H] */
    enum dtype dtype = tile_in_dtype(t, LM_W);
    uint32_t k = t->op->k, end = tile_band_end(t);
    uint32_t block = tile_op_block(t->op, k);
    struct lm_scratch l = layout(t->scratch, block, k);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        float inv[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t row = (uint32_t)rows->logit_row[tile_logit_row(t, r + i)];
            assert(row < rows->n_rows);
            x[i] = input + (size_t)row * k;
        }
        tile_pack_norm(t, dtype, x, tile_in(t, LM_NORM), n, k, l.pack, inv);
        for (uint32_t u = t->task->unit0; u < t->task->unit1; u++)
            block_logits(t, l.pack, inv, r, n, u);
    }
}
