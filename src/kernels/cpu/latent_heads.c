/* latent_heads.c - LATENT_HEADS: queries in the space of latents, and the latents of this
 * iteration.
 *
 * A head's scores are (w_uk n) . c + q . k, n and q being the halves of its query, c a position's
 * latent and k its turned key: the same for all heads, so the cache has one row [c | k] for them.
 */
#include "kernels/cpu/qkv.h"

#include <math.h>
#include <string.h>

struct latent_scratch {
    void *pack; /* a block of rows of a head's first N elements */
    float *row; /* [DV + DR] a row of the cache */
    size_t bytes;
};

static struct latent_scratch layout(void *base, const struct prog_op *op) {
    struct tile_scratch s = {.base = base};
    struct latent_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(tile_op_block(op, op->k), op->k));
    l.row = tile_take(&s, ((size_t)op->attrs.DV + op->attrs.DR) * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_latent_heads_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, op).bytes;
}

/* Head h of n rows from row r on. */
static void make_query(const struct cpu_task *t, const struct latent_scratch *l, uint32_t h,
                       uint32_t r, uint32_t n) {
    const struct op_attrs *a = &t->op->attrs;
    const enum dtype dtype = tile_in_dtype(t, LATENT_W);
    const uint32_t N = t->op->k, in = N + a->DR, out = a->DV + a->DR;
    const size_t pitch = (size_t)a->heads * out;
    const float *q = tile_in(t, LATENT_Q); /* [T, heads * in] */
    float *to = (float *)tile_out(t, LATENT_OUT_Q) + (size_t)r * pitch + (size_t)h * out;
    const void *w = tile_weight_row(tile_in(t, LATENT_W), dtype, (uint64_t)h * a->DV, N);
    const float *x[TILE_MAX_ROWS] = {NULL};
    for (uint32_t i = 0; i < n; i++) x[i] = q + ((size_t)(r + i) * a->heads + h) * in;
    t->isa->pack(dtype, x, NULL, n, N, l->pack);
    t->isa->gemm[dtype](CPU_SUM_WHOLE, w, a->DV, N, l->pack, n, to, pitch);
    for (uint32_t i = 0; i < n; i++) {
        float *turned = to + i * pitch + a->DV;
        memcpy(turned, q + ((size_t)(r + i) * a->heads + h) * in + N, a->DR * sizeof(float));
        qkv_rotate(t, r + i, turned, a->DR);
    }
}

/* The row's latent, normed, and its turned key, to the cache. */
static void make_latent(const struct cpu_task *t, const struct tile_cache *cache, float *y,
                        uint32_t r) {
    const struct op_attrs *a = &t->op->attrs;
    const uint32_t width = a->DV + a->DR;
    const float *norm = tile_in(t, LATENT_NORM);
    memcpy(y, (const float *)tile_in(t, LATENT_C) + (size_t)r * width, width * sizeof(float));
    const float inv = 1.0f / sqrtf(t->isa->sum_squares(y, a->DV) / (float)a->DV + a->eps);
    for (uint32_t i = 0; i < a->DV; i++) y[i] = y[i] * inv * norm[i];
    qkv_rotate(t, r, y + a->DV, a->DR);
    qkv_store(t, cache, 0, 0, r, y);
}

void cpu_latent_heads(const struct cpu_task *t) {
    const struct tile_cache cache = tile_cache_of(t, t->op->out[LATENT_OUT_KV]);
    const struct latent_scratch l = layout(t->scratch, t->op);
    const uint32_t block = tile_op_block(t->op, t->op->k), heads = t->op->attrs.heads;
    const uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        const uint32_t n = end - r < block ? end - r : block;
        for (uint32_t u = t->task->unit0; u < t->task->unit1 && u < heads; u++)
            make_query(t, &l, u, r, n);
        for (uint32_t i = 0; i < n && t->task->unit1 > heads; i++)
            make_latent(t, &cache, l.row, r + i);
    }
}
