/* lm_head.cuh - LM_HEAD: logits of the rows that want them and {max, sum of exp(logit - max)} per
 * LM_BLOCK columns. One unit is one block of columns: four row blocks. */
#ifndef QN_CUDA_COMMON_LM_HEAD_CUH
#define QN_CUDA_COMMON_LM_HEAD_CUH

#include "kernels/cuda/common/kv.cuh"
#include "kernels/cuda/common/linear.cuh"

#define LM_PARTS ((QN_VOCAB + LM_BLOCK - 1) / LM_BLOCK)
static_assert(LM_BLOCK == 64, "a lane has two columns of a block");

/* NaN counts as -inf here, as on the CPU. */
DEV float not_nan(float v) {
    return v == v ? v : -INFINITY;
}

/* The activations of a logit row. */
DEV struct act lm_row(const struct cuda_task *task, uint32_t row) {
    return act_from(act_of(task->in, task, CUDA_IN_FLAGGED),
                    (uint64_t)row_of_logits(SHARED, row) * QN_HIDDEN);
}

/* scratch: [tile tokens][LM_BLOCK] */
DEV float *lm_block(const struct warp_context *c, uint32_t token) {
    return (float *)SCRATCH + token * LM_BLOCK;
}

DEV void lm_finish(const struct warp_context *c, uint32_t block, uint32_t r, uint32_t token,
                   float v0, float v1) {
    float *to = lm_block(c, token) + block % LM_UNIT_BLOCKS * CUDA_PAGE_ROWS + r;
    to[0] = v0;
    to[8] = v1;
}

DEV void lm_finish_token(const struct warp_context *c, const struct linear_tile *t, uint32_t unit,
                         uint32_t token) {
    const uint32_t column = unit * LM_BLOCK + c->lane;
    const float *from = lm_block(c, token) + c->lane;
    float *logits = (float *)t->task->out + (uint64_t)(t->row0 + token) * QN_VOCAB; /* [L, V] */
    float v0 = from[0], v1 = from[32];
    if (column < QN_VOCAB) logits[column] = v0;
    if (column + 32 < QN_VOCAB) logits[column + 32] = v1;
    v0 = column < QN_VOCAB ? not_nan(v0) : -INFINITY;
    v1 = column + 32 < QN_VOCAB ? not_nan(v1) : -INFINITY;
    float most = warp_max(fmaxf(v0, v1));
    float sum = most > -INFINITY ? expf(v0 - most) + expf(v1 - most) : 0;
    sum = warp_sum(sum);
    float *part = (float *)t->task->out2 + ((uint64_t)(t->row0 + token) * LM_PARTS + unit) * 2;
    if (c->lane == 0) *(float2 *)part = make_float2(most, sum);
}

DEV void lm_finish_unit(const struct warp_context *c, const struct linear_tile *t, uint32_t unit) {
    for (uint32_t token = c->warp; token < t->n; token += WARPS) lm_finish_token(c, t, unit, token);
}

#endif
