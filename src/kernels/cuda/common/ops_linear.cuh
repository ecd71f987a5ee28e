/* ops_linear.cuh - LINEAR and GATED_MLP, and the choice between the four operators that are matrix
 * times activations (linear.cuh): these, QKV_LINEAR and LM_HEAD. */
#ifndef QN_CUDA_COMMON_OPS_LINEAR_CUH
#define QN_CUDA_COMMON_OPS_LINEAR_CUH

#include "kernels/cuda/common/lm_head.cuh"

/* ---- LINEAR: y[T, N] = residual + (a w^T + bias) ----
 * ---- QKV_LINEAR: qkv[T, N] = rmsnorm(x) w^T + bias, N = (n_heads + 2 n_kv_heads) head_dim ---- */

DEV float item_bias(uint64_t bias, uint32_t column, bool own) {
    return bias != 0 && own ? __ldg((const float *)bias + column) : 0;
}

/* Element `at` of an operand that may carry flags. */
template <bool FLAGS>
DEV struct act item_act(uint64_t address, const struct cuda_task *task, uint32_t flagged,
                        uint64_t at) {
    return act_from(FLAGS ? act_of(address, task, flagged) : act{(const float *)address, 0}, at);
}

/* Element `at` of the result is the item's v0. */
template <bool FLAGS>
DEV void item_out(const struct cuda_task *task, struct linear_item *m, uint64_t at) {
    const struct act out = item_act<FLAGS>(task->out, task, CUDA_OUT_FLAGGED, at);
    m->out = (float *)out.at;
    m->out_flag = out.flag;
}

DEV void item_store(const struct linear_item *m, uint32_t i, float v) {
    if (m->out_flag != 0)
        store_flagged(m->out + 2 * i, v, m->out_flag);
    else
        store_plain(m->out + i, v);
}

template <bool FLAGS>
DEV struct linear_item linear_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                                   uint32_t row) {
    struct linear_item m = {};
    const uint32_t column = block * CUDA_PAGE_ROWS + r;
    const uint64_t at = (uint64_t)row * task->units + column;
    item_out<FLAGS>(task, &m, at);
    m.own0 = column >= task->unit0 && column < task->unit1;
    m.own1 = column + 8 >= task->unit0 && column + 8 < task->unit1;
    m.bias = make_float2(item_bias(task->bias, column, m.own0),
                         item_bias(task->bias, column + 8, m.own1));
    if (task->more == 0) return m;
    const struct act residual = item_act<FLAGS>(task->more, task, CUDA_MORE_FLAGGED, at);
    m.addend = residual.at;
    m.flag = residual.flag;
    return m;
}

DEV void linear_finish(const struct cuda_task *task, const struct linear_item *m, float v0,
                       float v1, const struct linear_addend *add) {
    if (task->bias != 0) {
        v0 += m->bias.x;
        v1 += m->bias.y;
    }
    if (m->addend != nullptr) {
        const float2 residual = addend_await(m, add);
        v0 = residual.x + v0;
        v1 = residual.y + v1;
    }
    if (m->own0) item_store(m, 0, v0);
    if (m->own1) item_store(m, 8, v1);
}

/* ---- GATED_MLP: h[T, I] = silu(gate) * up ----
 * Both from rmsnorm(x): the row's factor 1 / rms comes after the dot products. A row block holds 8
 * gate rows and their 8 up rows. */

template <bool FLAGS>
DEV struct linear_item mlp_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                                uint32_t row) {
    struct linear_item m = {};
    const uint32_t column = block * 8 + r;
    if (task->flags & CUDA_OUT_PACKED)
        m.out = (float *)packed_at(task, row, column);
    else
        item_out<FLAGS>(task, &m, (uint64_t)row * task->units + column);
    if (task->flags & CUDA_OUT_PAIRED) m.out_flag = SHARED->flag;
    m.own0 = column >= task->unit0 && column < task->unit1;
#if QN_MLP_BIAS
    m.bias =
        make_float2(item_bias(task->bias, column, m.own0), item_bias(task->more, column, m.own0));
#endif
    return m;
}

DEV float mlp_value(const struct linear_item *m, float gate, float up) {
#if QN_MLP_BIAS
    gate += m->bias.x;
    up += m->bias.y;
#endif
    return gate * reciprocal_fast(1.0f + exp_fast(-gate)) * up;
}

DEV void mlp_finish(const struct cuda_task *task, const struct linear_item *m, float gate,
                    float up) {
    if (!m->own0) return;
    const float h = mlp_value(m, gate, up);
    if (task->flags & CUDA_OUT_PACKED)
        *(uint16_t *)m->out = pack_one<WEIGHT_E>(h);
    else
        item_store(m, 0, h);
}

/* The item's column, an even one, and the one after it; v2, v3: that one's dot products. */
DEV void op_finish_pair(const struct cuda_task *task, const struct linear_item *m, uint32_t block,
                        uint32_t r, float inv, float v0, float v1, float v2, float v3) {
    if (!m->own0) return;
    struct linear_item next = {};
#if QN_MLP_BIAS
    next = mlp_item<false>(task, block, r + 1, 0);
#endif
    const float h0 = mlp_value(m, v0 * inv, v1 * inv), h1 = mlp_value(&next, v2 * inv, v3 * inv);
    store_flagged_pair(m->out, h0, h1, m->out_flag);
}

/* ---- the choice ---- */

DEV struct act op_row(const struct cuda_task *task) {
    return act_of(task->in, task, CUDA_IN_FLAGGED | CUDA_IN_PAIRED);
}

template <bool FLAGS>
DEV struct linear_item op_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                               uint32_t row) {
    if (task->kind == OP_GATED_MLP) return mlp_item<FLAGS>(task, block, r, row);
    if (task->kind == OP_LM_HEAD) {
        if (task->columns != 0) return lm_item(task, block, r, row);
        return {}; /* its units finish */
    }
    return linear_item<FLAGS>(task, block, r, row);
}

DEV void op_finish(const struct warp_context *c, const struct cuda_task *task,
                   const struct linear_item *m, uint32_t block, uint32_t r, float v0, float v1,
                   float inv, const struct linear_addend *add) {
    if (task->norm != 0) {
        v0 *= inv;
        v1 *= inv;
    }
    switch (task->kind) {
    case OP_GATED_MLP: mlp_finish(task, m, v0, v1); break;
    case OP_LM_HEAD:
        if (task->columns == 0) {
            lm_finish(block, r, v0, v1);
            break;
        }
        [[fallthrough]];
    default: linear_finish(task, m, v0, v1, add); break;
    }
}

#endif
