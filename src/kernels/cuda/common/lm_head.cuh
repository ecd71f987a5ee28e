/* lm_head.cuh - LM_HEAD: logits of the rows that want them and {max, sum of exp(logit - max)} per
 * LM_BLOCK columns. One unit is one block of columns: four row blocks. */
#ifndef QN_CUDA_COMMON_LM_HEAD_CUH
#define QN_CUDA_COMMON_LM_HEAD_CUH

#include "kernels/cuda/common/kv.cuh"
#include "kernels/cuda/common/linear.cuh"

#define LM_PARTS ((QN_VOCAB + LM_BLOCK - 1) / LM_BLOCK)
static_assert(LM_BLOCK == 64, "a lane has two columns of a block");

/* NaN counts as -inf here, as on the CPU. */
DEV float not_nan(float v) { return v == v ? v : -INFINITY; }

struct op_lm_head {
    const struct warp_context *c;
    const struct cuda_task *task;
    float *block_logits; /* scratch: [tile tokens][LM_BLOCK] */
    uint32_t row0, n;

    /* `row` counts logit rows. */
    DEV const float *row(uint32_t row) const {
        uint32_t at = (uint32_t)load_index_l2(c->shared->batch.rows.logit_row + row);
        return (const float *)task->in + (uint64_t)at * QN_HIDDEN;
    }
    DEV void begin_tile(uint32_t first_row, uint32_t n_tokens) {
        row0 = first_row;
        n = n_tokens;
    }
    DEV float2 prefetch(uint32_t, uint32_t, uint32_t) const { return make_float2(0, 0); }

    DEV void finish(uint32_t block, uint32_t r, uint32_t token, float v0, float v1, float2) const {
        float *to = block_logits + token * LM_BLOCK + block % LM_UNIT_BLOCKS * CUDA_PAGE_ROWS + r;
        to[0] = v0 * c->shared->inv_rms[token];
        to[8] = v1 * c->shared->inv_rms[token];
    }

    DEV void finish_token(uint32_t unit, uint32_t token) const {
        const uint32_t column = unit * LM_BLOCK + c->lane;
        const float *from = block_logits + token * LM_BLOCK + c->lane;
        float *logits = (float *)task->out + (uint64_t)(row0 + token) * QN_VOCAB; /* [L, V] */
        float v0 = from[0], v1 = from[32];
        if (column < QN_VOCAB) logits[column] = v0;
        if (column + 32 < QN_VOCAB) logits[column + 32] = v1;
        v0 = column < QN_VOCAB ? not_nan(v0) : -INFINITY;
        v1 = column + 32 < QN_VOCAB ? not_nan(v1) : -INFINITY;
        float most = warp_max(fmaxf(v0, v1));
        float sum = most > -INFINITY ? expf(v0 - most) + expf(v1 - most) : 0;
        sum = warp_sum(sum);
        float *part = (float *)task->out2 + ((uint64_t)(row0 + token) * LM_PARTS + unit) * 2;
        if (c->lane == 0) *(float2 *)part = make_float2(most, sum);
    }

    DEV void finish_unit(uint32_t unit) const {
        for (uint32_t token = c->warp; token < n; token += WARPS) finish_token(unit, token);
    }
};

DEV void run_lm_head(struct warp_context *c, const struct cuda_task *task) {
    struct op_lm_head op = {c, task, (float *)c->scratch, 0, 0};
    linear_run(c, task, c->shared->batch.rows.n_logit_rows, op);
}

#endif
