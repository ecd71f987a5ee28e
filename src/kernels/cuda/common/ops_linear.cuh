/* ops_linear.cuh - LINEAR and GATED_MLP, and the choice between the four operators that are matrix
 * times activations (linear.cuh): these, QKV_LINEAR and LM_HEAD. */
#ifndef QN_CUDA_COMMON_OPS_LINEAR_CUH
#define QN_CUDA_COMMON_OPS_LINEAR_CUH

#include "kernels/cuda/common/lm_head.cuh"

/* ---- LINEAR: y[T, N] = residual + (a w^T + bias) ----
 * ---- QKV_LINEAR: qkv[T, N] = rmsnorm(x) w^T + bias, N = (n_heads + 2 n_kv_heads) head_dim ---- */

DEV float item_constant(uint64_t vector, uint32_t column, bool own) {
    return vector != 0 && own ? __ldg((const float *)vector + column) : 0;
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
    m.bias = make_float2(item_constant(task->bias, column, m.own0),
                         item_constant(task->bias, column + 8, m.own1));
    m.norm = make_float2(item_constant(task->norm, column, m.own0),
                         item_constant(task->norm, column + 8, m.own1));
    if (task->more == 0) return m;
    const struct act residual = item_act<FLAGS>(task->more, task, CUDA_MORE_FLAGGED, at);
    m.addend = residual.at;
    m.flag = residual.flag;
    return m;
}

/* Elements v0 and v1 of an item for the norm that comes next, which may carry flags. */
template <int STRIDE>
DEV void linear_norm_flagged(const struct cuda_task *task, const struct linear_item *m,
                             uint32_t row, uint32_t column, float v0, float v1) {
    if (task->flags & CUDA_OUT_PAIRED) { /* one row; r and r + 1, or r + 7 and r + 8, of a block */
        const bool odd = column % 2 != 0;
        const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, STRIDE);
        float *out = (float *)task->out2 + column + (odd ? 7 : 0);
        if (odd ? m->own1 : m->own0)
            store_flagged_pair(out, odd ? other : v0, odd ? v1 : other, SHARED->flag);
        return;
    }
    const struct act to = act_from(act_of(task->out2, task, CUDA_NORMED_FLAGGED),
                                   (uint64_t)row * task->units + column);
    if (m->own0) act_put(to, v0);
    if (m->own1) act_put(act_from(to, 8), v1);
}

/* ... which carry none. */
DEV void linear_norm_plain(const struct cuda_task *task, const struct linear_item *m, uint32_t row,
                          uint32_t column, float v0, float v1) {
    if (task->flags & CUDA_OUT_PACKED) {
        uint16_t *to = packed_at(task, task->out2, row, column);
        if (m->own0) to[0] = pack_one<WEIGHT_E>(v0);
        if (m->own1) to[2] = pack_one<WEIGHT_E>(v1); /* 8 columns further */
        return;
    }
    float *to = (float *)task->out2 + (uint64_t)row * task->units + column;
    if (m->own0) store_plain(to, v0);
    if (m->own1) store_plain(to + 8, v1);
}

/* The residual stream's elements v0 and v1 of an item for the norm that comes next: times its
 * weights, and the sum of the squares of the row block's. Whole warps; the item of row r + 1 is
 * STRIDE lanes further. */
template <bool FLAGS, int STRIDE>
DEV void linear_norm(const struct cuda_task *task, const struct linear_item *m, uint32_t block,
                     uint32_t r, uint32_t row, float v0, float v1) {
    static_assert(SQUARES_COLUMNS == CUDA_PAGE_ROWS, "a sum per row block");
    v0 = m->own0 ? v0 : 0;
    v1 = m->own1 ? v1 : 0;
    float squares = fmaf(v1, v1, v0 * v0);
#pragma unroll
    for (int d = 1; d < 8; d *= 2) squares += __shfl_xor_sync(~0u, squares, d * STRIDE);
    if (r == 0 && m->own0)
        act_put(item_act<FLAGS>(task->more2, task, CUDA_SQUARES_FLAGGED,
                                (uint64_t)row * task->n_pieces + block),
                squares);
    v0 *= m->norm.x;
    v1 *= m->norm.y;
    const uint32_t column = block * CUDA_PAGE_ROWS + r;
    if (FLAGS && (task->flags & CUDA_OUT_PACKED) == 0)
        linear_norm_flagged<STRIDE>(task, m, row, column, v0, v1);
    else
        linear_norm_plain(task, m, row, column, v0, v1);
}

template <bool FLAGS, int STRIDE>
DEV void linear_finish(const struct cuda_task *task, const struct linear_item *m, uint32_t block,
                       uint32_t r, uint32_t row, float v0, float v1,
                       const struct linear_addend *add) {
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
    if (task->kind == OP_LINEAR && task->norm != 0)
        linear_norm<FLAGS, STRIDE>(task, m, block, r, row, v0, v1);
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
        m.out = (float *)packed_at(task, task->out, row, column);
    else
        item_out<FLAGS>(task, &m, (uint64_t)row * task->units + column);
    if (task->flags & CUDA_OUT_PAIRED) m.out_flag = SHARED->flag;
    m.own0 = column >= task->unit0 && column < task->unit1;
#if QN_MLP_BIAS
    m.bias =
        make_float2(item_constant(task->bias, column, m.own0), item_constant(task->more, column, m.own0));
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
        struct linear_item m = {}; /* its units finish */
        m.own0 = true;
        return m;
    }
    return linear_item<FLAGS>(task, block, r, row);
}

/* The token row whose activations a row of the task has: of the LM head it is a logit row. */
DEV uint32_t op_token(const struct cuda_task *task, uint32_t row) {
    return task->kind == OP_LM_HEAD ? row_of_logits(SHARED, row) : row;
}

template <bool FLAGS, int STRIDE>
DEV void op_finish(const struct cuda_task *task, const struct linear_item *m, uint32_t block,
                   uint32_t r, uint32_t row, float v0, float v1, float inv,
                   const struct linear_addend *add) {
    if (task->kind != OP_LINEAR) {
        v0 *= inv;
        v1 *= inv;
    }
    if (task->kind == OP_GATED_MLP) {
        mlp_finish(task, m, v0, v1);
    } else if (task->kind == OP_LM_HEAD && task->columns == 0) {
        if (m->own0) lm_finish(block, r, v0, v1);
    } else {
        linear_finish<FLAGS, STRIDE>(task, m, block, r, row, v0, v1, add);
    }
}

#endif
