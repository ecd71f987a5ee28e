/* qkv_heads.c - QKV_HEADS: from projections to query heads and rows of the KV cache: per-head
 * RMSNorm and RoPE ("rotate half": pairs i, i + D/2) at the row's position. Queries go out
 * unscaled. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/qkv.h"

#include <assert.h>
#include <math.h>
#include <string.h>

size_t cpu_qkv_heads_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)op;
    return PROG(program, MODEL)->head_dim * sizeof(float);
}

static void head_norm(const struct cpu_task *t, float *y, const float *norm, uint32_t D) {
    float inv = 1.0f / sqrtf(t->isa->sum_squares(y, D) / (float)D + t->op->attrs.eps);
    for (uint32_t i = 0; i < D; i++) y[i] = y[i] * inv * norm[i];
}

static void rotate(const struct cpu_rope *rope, float *y, uint32_t D, uint32_t turn) {
    const float *c = rope->cos + (size_t)turn * (D / 2);
    const float *s = rope->sin + (size_t)turn * (D / 2);
    for (uint32_t i = 0; i < D / 2; i++) {
        float a = y[i], b = y[i + D / 2];
        y[i] = a * c[i] - b * s[i];
        y[i + D / 2] = b * c[i] + a * s[i];
    }
}

static uint32_t position_of(const struct cpu_task *t, uint32_t row) {
    uint32_t position = (uint32_t)t->batch->rows.position[row];
    assert(position < t->batch->max_model_len);
    return position;
}

/* The row of the table of rotations for a token row. */
static uint32_t turn_of(const struct cpu_task *t, uint32_t row) {
    const uint32_t n = t->batch->max_model_len, position = position_of(t, row);
    const uint32_t switch_at = spec_rope_switch(PROG(t->program, MODEL), n);
    if (switch_at == SPEC_ONE_ROPE) return position;
    return position + (t->batch->slots[t->batch->rows.slot[row]].n_prompt > switch_at ? n : 0);
}

void qkv_rotate(const struct cpu_task *t, uint32_t row, float *y, uint32_t n) {
    rotate(t->rope, y, n, turn_of(t, row));
}

void qkv_turn_head(const struct cpu_task *t, bool turn, const float *norm, uint32_t row, float *y) {
    uint32_t D = t->op->attrs.D;
    if (norm != NULL) head_norm(t, y, norm, D);
    if (turn) qkv_rotate(t, row, y, D);
}

void qkv_store(const struct cpu_task *t, const struct tile_cache *cache, int which, uint32_t idx,
               uint32_t row, const float *y) {
    uint32_t slot = (uint32_t)t->batch->rows.slot[row];
    void *dst = tile_kv(t, cache, slot, position_of(t, row), which, idx);
    const uint32_t width = which == 0 ? cache->row->k_width : cache->row->v_width;
    for (uint32_t i = 0; i < width; i++) convert_store((enum dtype)cache->row->dtype, dst, i, y[i]);
}

void qkv_store_kv(const struct cpu_task *t, const struct tile_cache *cache, int which, uint32_t idx,
                  const float *norm, uint32_t row, float *y) {
    qkv_turn_head(t, which == 0, norm, row, y);
    qkv_store(t, cache, which, idx, row, y);
}

void qkv_place_head(const struct cpu_task *t, int which, uint32_t idx, const float *norm,
                    uint32_t row, float *y) {
    uint32_t D = t->op->attrs.D;
    if (which >= 0) {
        const struct tile_cache cache = tile_cache_of(t, t->op->out[QKV_OUT_KV]);
        qkv_store_kv(t, &cache, which, idx, norm, row, y);
        return;
    }
    qkv_turn_head(t, true, norm, row, y);
    float *q = tile_out(t, QKV_OUT_Q); /* [T, n_heads * D] */
    memcpy(q + ((size_t)row * t->op->attrs.heads + idx) * D, y, D * sizeof(float));
}

void cpu_qkv_heads(const struct cpu_task *t) {
    const float *qkv = tile_in(t, HEADS_QKV); /* [T, units * D] */
    const float *q_norm = tile_in(t, HEADS_Q_NORM), *k_norm = tile_in(t, HEADS_K_NORM);
    uint32_t D = t->op->attrs.D, n_q = t->op->attrs.heads, n_kv = t->op->attrs.kv;
    uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    float *y = t->scratch;
    for (uint32_t r = t->task->row0; r < end; r++)
        for (uint32_t u = t->task->unit0; u < t->task->unit1; u++) {
            memcpy(y, qkv + ((size_t)r * t->op->units + u) * D, D * sizeof(float));
            if (u < n_q)
                qkv_place_head(t, -1, u, q_norm, r, y);
            else if (u < n_q + n_kv)
                qkv_place_head(t, 0, u - n_q, k_norm, r, y);
            else
                qkv_place_head(t, 1, u - n_q - n_kv, NULL, r, y);
        }
}
