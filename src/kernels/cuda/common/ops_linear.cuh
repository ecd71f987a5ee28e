/* ops_linear.cuh - LINEAR and GATED_MLP, and the choice between the four operators that are matrix
 * times activations (linear.cuh). */
#ifndef QN_CUDA_COMMON_OPS_LINEAR_CUH
#define QN_CUDA_COMMON_OPS_LINEAR_CUH

#include "kernels/cuda/common/lm_head.cuh"
#include "kernels/cuda/common/packed.cuh"
#include "kernels/cuda/common/qkv.cuh"

/* ---- LINEAR: y[T, N] = residual + (a w^T + bias) ---- */

DEV float linear_addend(const struct cuda_task *task, uint32_t column, uint64_t at) {
    if (column >= task->unit1 || task->more == 0) return 0;
    return act_load(act_of(task->more, task, CUDA_MORE_FLAGGED), at);
}

DEV float2 linear_prefetch(const struct linear_tile *t, uint32_t block, uint32_t r,
                           uint32_t token) {
    uint32_t column = block * CUDA_PAGE_ROWS + r;
    uint64_t at = (uint64_t)(t->row0 + token) * t->task->units + column;
    return make_float2(linear_addend(t->task, column, at),
                       linear_addend(t->task, column + 8, at + 8));
}

DEV void linear_store(const struct cuda_task *task, uint32_t column, uint64_t at, float v,
                      float add) {
    if (column < task->unit0 || column >= task->unit1) return;
    if (task->bias != 0) v += __ldg((const float *)task->bias + column);
    act_store(task, at, task->more != 0 ? add + v : v);
}

DEV void linear_finish(const struct linear_tile *t, uint32_t block, uint32_t r, uint32_t token,
                       float v0, float v1, float2 add) {
    uint32_t column = block * CUDA_PAGE_ROWS + r;
    uint64_t at = (uint64_t)(t->row0 + token) * t->task->units + column;
    linear_store(t->task, column, at, v0, add.x);
    linear_store(t->task, column + 8, at + 8, v1, add.y);
}

/* ---- QKV_LINEAR: qkv[T, N] = rmsnorm(x) w^T + bias, N = (n_heads + 2 n_kv_heads) head_dim ---- */

DEV void qkv_linear_store(const struct cuda_task *task, uint32_t column, uint32_t row, float v) {
    if (column < task->unit0 || column >= task->unit1) return;
#if QN_QKV_BIAS
    v += __ldg((const float *)task->bias + column);
#endif
    ((float *)task->out)[(uint64_t)row * task->units + column] = v;
}

DEV void qkv_linear_finish(const struct linear_tile *t, uint32_t block, uint32_t r, uint32_t token,
                           float v0, float v1) {
    uint32_t column = block * CUDA_PAGE_ROWS + r;
    float inv = SHARED->inv_rms[token];
    qkv_linear_store(t->task, column, t->row0 + token, v0 * inv);
    qkv_linear_store(t->task, column + 8, t->row0 + token, v1 * inv);
}

/* ---- GATED_MLP: h[T, I] = silu(gate) * up ----
 * Both from rmsnorm(x): the row's factor 1 / rms comes after the dot products. A row block holds 8
 * gate rows and their 8 up rows. */

/* inv: 1 / rms of the row. */
DEV void mlp_store(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row,
                   float gate, float up, float inv) {
    uint32_t column = block * 8 + r;
    if (column < task->unit0 || column >= task->unit1) return;
    gate *= inv;
    up *= inv;
#if QN_MLP_BIAS
    gate += __ldg((const float *)task->bias + column);
    up += __ldg((const float *)task->more + column);
#endif
    act_store(task, (uint64_t)row * task->units + column,
              gate * reciprocal_fast(1.0f + exp_fast(-gate)) * up);
}

DEV void mlp_finish(const struct warp_context *c, const struct linear_tile *t, uint32_t block,
                    uint32_t r, uint32_t token, float gate, float up) {
    mlp_store(t->task, block, r, t->row0 + token, gate, up, SHARED->inv_rms[token]);
}

/* ---- the choice ---- */

DEV struct act op_row(const struct cuda_task *task, uint32_t row) {
    if (task->kind == OP_LM_HEAD) return lm_row(task, row);
    return act_from(act_of(task->in, task, CUDA_IN_FLAGGED), (uint64_t)row * task->k);
}

DEV float2 op_prefetch(const struct linear_tile *t, uint32_t block, uint32_t r, uint32_t token) {
    if (t->task->kind == OP_LINEAR) return linear_prefetch(t, block, r, token);
    return make_float2(0, 0);
}

DEV void op_finish(const struct warp_context *c, const struct linear_tile *t, uint32_t block,
                   uint32_t r, uint32_t token, float v0, float v1, float2 fetched) {
    switch (t->task->kind) {
    case OP_QKV: qkv_finish(c, t, block, r, token, v0, v1); break;
    case OP_QKV_LINEAR: qkv_linear_finish(t, block, r, token, v0, v1); break;
    case OP_GATED_MLP: mlp_finish(c, t, block, r, token, v0, v1); break;
    case OP_LM_HEAD: lm_finish(c, block, r, token, v0, v1); break;
    default: linear_finish(t, block, r, token, v0, v1, fetched); break;
    }
}

DEV void op_finish_unit(const struct warp_context *c, const struct linear_tile *t, uint32_t unit) {
    if (t->task->kind == OP_QKV)
        qkv_finish_unit(c, t, unit);
    else
        lm_finish_unit(c, t, unit);
}

/* ---- the same for packed activations (packed.cuh); `row` is a token row ---- */

DEV float2 packed_prefetch(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row) {
    if (task->kind != OP_LINEAR) return make_float2(0, 0);
    const uint32_t column = block * CUDA_PAGE_ROWS + r;
    const uint64_t at = (uint64_t)row * task->units + column;
    return make_float2(linear_addend(task, column, at), linear_addend(task, column + 8, at + 8));
}

DEV void packed_finish(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row,
                       float v0, float v1, float factor, float2 fetched) {
    const uint32_t column = block * CUDA_PAGE_ROWS + r;
    const uint64_t at = (uint64_t)row * task->units + column;
    if (task->kind == OP_GATED_MLP) {
        mlp_store(task, block, r, row, v0, v1, factor);
    } else if (task->kind == OP_QKV_LINEAR) {
        qkv_linear_store(task, column, row, v0 * factor);
        qkv_linear_store(task, column + 8, row, v1 * factor);
    } else {
        linear_store(task, column, at, v0, fetched.x);
        linear_store(task, column + 8, at + 8, v1, fetched.y);
    }
}

DEV bool run_linear(struct warp_context *c, const struct cuda_task *task) {
    const struct rt_rows *rows = &SHARED->batch.rows;
    uint32_t n_rows = task->kind == OP_LM_HEAD ? rows->n_logit_rows : rows->n_rows;
    uint32_t unit_rows = task->kind == OP_LM_HEAD ? LM_BLOCK
                         : task->kind == OP_QKV   ? QN_HEAD_DIM
                                                  : 0;
    if (task->columns != 0) {
        if (!wait_ready(c)) return false;
        if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
        uint32_t state = linear_direct(c->args, task, c->page, c->turn, n_rows, unit_rows);
        c->page = state & 255;
        c->turn = state >> 8;
        return true;
    }
    struct early early;
    early_norm(c, task, &early);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    if (task->kind == OP_QKV) qkv_early(c, task);
    linear_staged(c, task, n_rows, unit_rows, &early);
    return true;
}

#endif
