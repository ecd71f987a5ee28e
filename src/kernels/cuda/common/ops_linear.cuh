/* ops_linear.cuh - LINEAR and GATED_MLP: what happens to the dot products of linear.cuh. */
#ifndef QN_CUDA_COMMON_OPS_LINEAR_CUH
#define QN_CUDA_COMMON_OPS_LINEAR_CUH

#include "kernels/cuda/common/linear.cuh"

/* y[T, N] = residual + (a w^T + bias) */
struct op_linear {
    const float *a, *bias, *residual;
    float *y;
    uint32_t k, n, unit0, unit1, row0;

    DEV const float *row(uint32_t row) const { return a + (uint64_t)row * k; }
    DEV void begin_tile(uint32_t first_row, uint32_t) { row0 = first_row; }
    DEV void finish_unit(uint32_t) const {}

    DEV float addend(uint32_t column, uint64_t at) const {
        if (column >= unit1 || residual == nullptr) return 0;
        return act_load(residual + at);
    }
    DEV float2 prefetch(uint32_t block, uint32_t r, uint32_t token) const {
        uint32_t column = block * CUDA_PAGE_ROWS + r;
        uint64_t at = (uint64_t)(row0 + token) * n + column;
        return make_float2(addend(column, at), addend(column + 8, at + 8));
    }
    DEV void store(uint32_t column, uint64_t at, float v, float add) const {
        if (column < unit0 || column >= unit1) return;
        if (bias != nullptr) v += __ldg(bias + column);
        y[at] = residual != nullptr ? add + v : v;
    }
    DEV void finish(uint32_t block, uint32_t r, uint32_t token, float v0, float v1,
                    float2 add) const {
        uint32_t column = block * CUDA_PAGE_ROWS + r;
        uint64_t at = (uint64_t)(row0 + token) * n + column;
        store(column, at, v0, add.x);
        store(column + 8, at + 8, v1, add.y);
    }
};

DEV void run_linear(struct warp_context *c, const struct cuda_task *task) {
    struct op_linear op = {(const float *)task->in,   (const float *)task->bias,
                           (const float *)task->more, (float *)task->out,
                           task->k,                   task->units,
                           task->unit0,               task->unit1,
                           0};
    linear_run(c, task, c->shared->batch.rows.n_rows, op);
}

/* h[T, I] = silu(gate) * up, both from rmsnorm(x): the row's factor 1 / rms comes after the dot
 * products. A row block holds 8 gate rows and their 8 up rows. */
struct op_gated_mlp {
    const float *x, *gate_bias, *up_bias;
    float *h;
    const float *inv_rms;
    uint32_t k, n, unit0, unit1, row0;

    DEV const float *row(uint32_t row) const { return x + (uint64_t)row * k; }
    DEV void begin_tile(uint32_t first_row, uint32_t) { row0 = first_row; }
    DEV void finish_unit(uint32_t) const {}
    DEV float2 prefetch(uint32_t, uint32_t, uint32_t) const { return make_float2(0, 0); }

    DEV void finish(uint32_t block, uint32_t r, uint32_t token, float gate, float up, float2) const {
        uint32_t column = block * 8 + r;
        if (column < unit0 || column >= unit1) return;
        float inv = inv_rms[token];
        gate *= inv;
        up *= inv;
        if (gate_bias != nullptr) {
            gate += __ldg(gate_bias + column);
            up += __ldg(up_bias + column);
        }
        h[(uint64_t)(row0 + token) * n + column] = gate / (1.0f + expf(-gate)) * up;
    }
};

DEV void run_gated_mlp(struct warp_context *c, const struct cuda_task *task) {
    struct op_gated_mlp op = {(const float *)task->in,   (const float *)task->bias,
                              (const float *)task->more, (float *)task->out,
                              c->shared->inv_rms,        task->k,
                              task->units,               task->unit0,
                              task->unit1,               0};
    linear_run(c, task, c->shared->batch.rows.n_rows, op);
}

#endif
