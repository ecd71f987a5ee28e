/* matmul_epilogue.cuh - results of LINEAR, QKV_LINEAR and GATED_MLP, and the choice between the
 * four operators that are matrix times activations (linear.cuh): these three and LM_HEAD. */
#ifndef QN_CUDA_MATMUL_MATMUL_EPILOGUE_CUH
#define QN_CUDA_MATMUL_MATMUL_EPILOGUE_CUH

#include "kernels/cuda/matmul/lm_head.cuh"

/* ---- LINEAR: y[T, N] = residual + (a w^T + bias) ----
 * ---- QKV_LINEAR: qkv[T, N] = rmsnorm(x) w^T + bias, N = (n_heads + 2 n_kv_heads) head_dim ---- */

/* Whether the writer of several rows of the residual stream packs their copy for the next norm. */
#define STREAM_IS_PACKED (QN_HIDDEN % PACK_K == 0)

/* Whether any of these products has a bias. */
#define LINEAR_BIASES (QN_QKV_BIAS || QN_O_BIAS || QN_MLP_BIAS)

DEV float item_constant(uint64_t vector, uint32_t column, bool own) {
    return vector != 0 && own ? __ldg((const float *)vector + column) : 0;
}

/* Element `at` of an operand that may carry flags. With QN_ROW_FLAGS a single row's operands do. */
template <bool FLAGS>
DEV struct operand item_operand(uint64_t address, const struct cuda_task *task, uint32_t flagged,
                                uint64_t at) {
    if (FLAGS && QN_ROW_FLAGS) return operand_from(operand_flagged(address), at);
    return operand_from(
        FLAGS ? operand_of(address, task, flagged) : operand{(const float *)address, 0}, at);
}

/* Sets where the item's v0 goes: element `at` of the result. */
template <bool FLAGS>
DEV void item_out(const struct cuda_task *task, struct linear_item *m, uint64_t at) {
    const struct operand out = item_operand<FLAGS>(task->out, task, CUDA_OUT_FLAGGED, at);
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
#if LINEAR_BIASES
    m.bias = make_float2(item_constant(task->bias, column, m.own0),
                         item_constant(task->bias, column + 8, m.own1));
#endif
    if (task->more == 0) return m;
    const struct operand residual = item_operand<FLAGS>(task->more, task, CUDA_MORE_FLAGGED, at);
    m.addend = residual.at;
    m.flag = residual.flag;
    return m;
}

/* The next norm's weights, if the task has any. */
DEV void item_norm(const struct cuda_task *task, struct linear_item *m, uint32_t block,
                   uint32_t r) {
    if (task->kind != OP_LINEAR || task->norm == 0) return;
    const uint32_t column = block * CUDA_PAGE_ROWS + r;
    m->norm = make_float2(item_constant(task->norm, column, m->own0),
                          item_constant(task->norm, column + 8, m->own1));
}

/* Sets where an item of several rows stores its copy for the next norm and its squares. */
DEV void item_next(const struct cuda_task *task, struct linear_item *m, uint32_t block, uint32_t r,
                   uint32_t row) {
    if (task->kind != OP_LINEAR || task->norm == 0) return;
    const uint32_t column = block * CUDA_PAGE_ROWS + r, pair = column + (r % 2 != 0 ? 7 : 0);
    m->normed = STREAM_IS_PACKED ? (float *)packed_at(task, task->out2, row, pair)
                                 : (float *)task->out2 + (uint64_t)row * task->units + column;
    if (r == 0) m->squares = (float *)task->more2 + (uint64_t)row * task->n_pieces + block;
}

/* The sum of squares of a row block's 16 rows, in the order of squares.cuh, in each of the block's
 * eight lanes. Lane r has rows r and r + 8; row r + 1 is STRIDE lanes further. */
template <int STRIDE> DEV float squares_of_rows(uint32_t r, float v0, float v1) {
    static_assert(SQUARES_COLUMNS == CUDA_PAGE_ROWS, "a sum per row block");
    float v[2] = {v0, v1};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float other = __shfl_xor_sync(~0u, v[h], STRIDE);
        const float even = r % 2 == 0 ? v[h] : other, odd = r % 2 == 0 ? other : v[h];
        v[h] = fmaf(odd, odd, even * even);
        v[h] += __shfl_xor_sync(~0u, v[h], 2 * STRIDE);
        v[h] += __shfl_xor_sync(~0u, v[h], 4 * STRIDE);
    }
    return v[0] + v[1];
}

/* Stores elements v0 and v1 of the residual stream times the next norm's weights. If they are
 * packed, two lanes with neighbouring rows exchange an element, so that each stores two
 * neighbours. */
template <int STRIDE>
DEV void normed_store(const struct linear_item *m, uint32_t r, float v0, float v1) {
    v0 *= m->norm.x;
    v1 *= m->norm.y;
    if (STREAM_IS_PACKED) {
        const bool odd = r % 2 != 0;
        const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, STRIDE);
        const uint32_t pair = pack_pair<WEIGHT_E>(odd ? other : v0, odd ? v1 : other);
        if (odd ? m->own1 : m->own0) store_plain(m->normed, __uint_as_float(pair));
        return;
    }
    if (m->own0) store_plain(m->normed, v0);
    if (m->own1) store_plain(m->normed + 8, v1);
}

/* Stores the residual stream's copy for the next norm, and its squares. */
template <int STRIDE>
DEV void stream_store(const struct cuda_task *task, const struct linear_item *m, uint32_t r,
                      float v0, float v1) {
    v0 = m->own0 ? v0 : 0;
    v1 = m->own1 ? v1 : 0;
    const float squares = squares_of_rows<STRIDE>(r, v0, v1);
    normed_store<STRIDE>(m, r, v0, v1);
    if (m->squares != nullptr && m->own0) store_plain(m->squares, squares);
}

/* ---- GATED_MLP: h[T, I] = silu(gate) * up ----
 * Gate and up are made from rmsnorm(x): the row's factor 1 / rms is applied after the dot products.
 * A row block holds 8 gate rows and their 8 up rows. PACKED: h may be packed. */

template <bool FLAGS, bool PACKED = true>
DEV struct linear_item mlp_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                                uint32_t row) {
    struct linear_item m = {};
    const uint32_t column = block * 8 + r;
    if (FLAGS && QN_ROW_FLAGS) {
        const struct operand pairs = operand_flagged(task->out);
        m.out = (float *)pairs.at + column;
        m.out_flag = pairs.flag;
    } else {
        if (PACKED && (task->flags & CUDA_OUT_PACKED) != 0)
            m.out = (float *)packed_at(task, task->out, row, column);
        else
            item_out<FLAGS>(task, &m, (uint64_t)row * task->units + column);
        if (task->flags & CUDA_OUT_PAIRED) m.out_flag = SHARED->flag;
    }
    m.own0 = column >= task->unit0 && column < task->unit1;
#if QN_MLP_BIAS
    m.bias = make_float2(item_constant(task->bias, column, m.own0),
                         item_constant(task->more, column, m.own0));
#endif
    return m;
}

DEV float gated_value(float gate, float up) {
    return gate * reciprocal_fast(1.0f + exp_fast(-gate)) * up;
}

DEV float mlp_value(const struct linear_item *m, float gate, float up) {
#if QN_MLP_BIAS
    gate += m->bias.x;
    up += m->bias.y;
#endif
    return gated_value(gate, up);
}

DEV void mlp_store(const struct cuda_task *task, const struct linear_item *m, float gate,
                   float up) {
    if (!m->own0) return;
    const float h = mlp_value(m, gate, up);
    if (task->flags & CUDA_OUT_PACKED)
        *(uint16_t *)m->out = pack_one<WEIGHT_E>(h);
    else
        item_store(m, 0, h);
}

/* Finishes the item's column, an even one, and the next one, whose dot products are v2 and v3. */
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

DEV struct linear_item op_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                               uint32_t row) {
    if (task->kind == OP_GATED_MLP) return mlp_item<false>(task, block, r, row);
    if (task->kind == OP_LM_HEAD) return lm_item(task, block, r, row);
    return linear_item<false>(task, block, r, row);
}

/* The token row of a row of the task; the LM head's rows are logit rows. */
DEV uint32_t op_token(const struct cuda_task *task, uint32_t row) {
    return task->kind == OP_LM_HEAD ? row_of_logits(SHARED, row) : row;
}

DEV float2 op_value(const struct cuda_task *task, float v0, float v1, float inv, float2 bias,
                    float2 residual) {
    if (task->kind != OP_LINEAR) {
        v0 *= inv;
        v1 *= inv;
    }
    if (task->kind == OP_GATED_MLP) return make_float2(v0, v1); /* mlp_value adds its biases */
    if (LINEAR_BIASES && task->bias != 0) {
        v0 += bias.x;
        v1 += bias.y;
    }
    if (task->kind == OP_LINEAR && task->more != 0) {
        v0 = residual.x + v0;
        v1 = residual.y + v1;
    }
    return make_float2(v0, v1);
}

template <int STRIDE>
DEV void op_store(const struct cuda_task *task, const struct linear_item *m, uint32_t r, float2 v) {
    if (task->kind == OP_GATED_MLP) {
        mlp_store(task, m, v.x, v.y);
        return;
    }
    if (task->kind == OP_LINEAR && task->norm != 0) stream_store<STRIDE>(task, m, r, v.x, v.y);
    if (m->own0) item_store(m, 0, v.x);
    if (m->own1) item_store(m, 8, v.y);
}

#endif
