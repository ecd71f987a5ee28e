/* latent_heads.c - LATENT_HEADS: queries in the space of latents, and the latents of this
 * iteration.
 *
 * A head's scores are (w_uk n) . c + q . k. n and q are the two parts of its query, c is a
 * position's latent and k its turned key. c and k are the same for all heads, so the cache has one
 * row [c | k] for them.
 */
#include "base/checked.h"
#include "kernels/cpu/qkv.h"

#include <math.h>
#include <string.h>

struct latent_scratch {
    void *pack; /* a block of rows of a head's first N elements */
    float *row; /* [DV + DR] a row of the cache, or what RoPE turns of a head */
    size_t bytes;
};

static struct latent_scratch layout(void *base, const struct prog_op *op) {
    struct tile_scratch s = {.base = base};
    struct latent_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(tile_op_block(op, op->k), op->k));
    l.row = tile_take(&s, op->attrs.D * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_latent_heads_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, op).bytes;
}

static const float *query_of(const struct cpu_task *t, uint32_t row, uint32_t h) {
    const struct op_attrs *a = &t->op->attrs;
    return (const float *)tile_in(t, LATENT_RAW) + /* [T, heads * (N + DR) and more] */
           (size_t)row * tile_in_shape(t, LATENT_RAW)[1] + (size_t)h * (t->op->k + a->DR);
}

/* Makes elements [from, end) of head h, all below DV, of n rows from row r on. */
static void make_latents(const struct cpu_task *t, const struct latent_scratch *l, uint32_t h,
                         uint32_t from, uint32_t end, uint32_t r, uint32_t n) {
    const struct op_attrs *a = &t->op->attrs;
    const enum dtype dtype = tile_in_dtype(t, LATENT_W);
    const uint32_t N = t->op->k;
    const size_t pitch = (size_t)a->heads * a->D;
    float *to = (float *)tile_out(t, LATENT_OUT_Q) + r * pitch + (size_t)h * a->D + from;
    const void *w = tile_weight_row(tile_in(t, LATENT_W), dtype, (uint64_t)h * a->DV + from, N);
    const float *x[TILE_MAX_ROWS] = {NULL};
    for (uint32_t i = 0; i < n; i++) x[i] = query_of(t, r + i, h);
    t->isa->pack(dtype, x, NULL, n, N, l->pack);
    t->isa->gemm[dtype](CPU_SUM_WHOLE, w, end - from, N, l->pack, n, to, pitch);
}

/* Makes elements [from, end) of a row's head h, all from DV on: those that RoPE turns. */
static void make_turned(const struct cpu_task *t, const struct latent_scratch *l, uint32_t h,
                        uint32_t from, uint32_t end, uint32_t row) {
    const struct op_attrs *a = &t->op->attrs;
    float *to = (float *)tile_out(t, LATENT_OUT_Q) + ((size_t)row * a->heads + h) * a->D;
    memcpy(l->row, query_of(t, row, h) + t->op->k, a->DR * sizeof(float));
    qkv_rotate(t, row, l->row, a->DR);
    memcpy(to + from, l->row + (from - a->DV), (end - from) * sizeof(float));
}

/* Makes the task's columns of head h of n rows from row r on. */
static void make_query(const struct cpu_task *t, const struct latent_scratch *l, uint32_t h,
                       uint32_t r, uint32_t n) {
    const struct op_attrs *a = &t->op->attrs;
    const uint32_t first = h * a->D;
    const uint32_t from = MAX(t->task->unit0, first) - first;
    const uint32_t end = MIN(t->task->unit1 - first, a->D);
    if (from < a->DV) make_latents(t, l, h, from, MIN(end, a->DV), r, n);
    for (uint32_t i = 0; i < n && end > a->DV; i++)
        make_turned(t, l, h, MAX(from, a->DV), end, r + i);
}

/* Stores the row's normed latent and its turned key in the cache. */
static void make_latent(const struct cpu_task *t, const struct tile_cache *cache, float *y,
                        uint32_t r) {
    const struct op_attrs *a = &t->op->attrs;
    const float *norm = tile_in(t, LATENT_C_NORM);
    const float *end = (const float *)tile_in(t, LATENT_C) + /* of the row */
                       (size_t)(r + 1) * tile_in_shape(t, LATENT_C)[1];
    memcpy(y, end - a->D, a->D * sizeof(float));
    const float inv = 1.0f / sqrtf(t->isa->sum_squares(y, a->DV) / (float)a->DV + a->eps);
    for (uint32_t i = 0; i < a->DV; i++) y[i] = y[i] * inv * norm[i];
    qkv_rotate(t, r, y + a->DV, a->DR);
    qkv_store(t, cache, 0, 0, r, y);
}

void cpu_latent_heads(const struct cpu_task *t) {
    const struct tile_cache cache = tile_cache_of(t, t->op->out[LATENT_OUT_KV]);
    const struct latent_scratch l = layout(t->scratch, t->op);
    const uint32_t block = tile_op_block(t->op, t->op->k), D = t->op->attrs.D;
    const uint32_t columns = t->op->attrs.heads * D;
    const uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        const uint32_t n = end - r < block ? end - r : block;
        for (uint32_t h = t->task->unit0 / D; h * D < MIN(t->task->unit1, columns); h++)
            make_query(t, &l, h, r, n);
        for (uint32_t i = 0; i < n && t->task->unit1 > columns; i++)
            make_latent(t, &cache, l.row, r + i);
    }
}
