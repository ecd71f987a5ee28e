/* attention_prefill_state.cuh - ATTENTION of many rows: what a warp keeps of its step, whether
 * attention_prefill_mma.cuh or attention_prefill_wgmma.cuh makes its products.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PREFILL_STATE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PREFILL_STATE_CUH

#include "kernels/cuda/attention/attention_share.cuh"
#include "kernels/cuda/matmul/matmul_tile.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

#define ROW_WORK cuda_rows_work(QN_HEAD_DIM)
#define ROW_OUT  (QN_HEAD_DIM + 4) /* floats of a row of outputs in a warp's memory */
static_assert(16 * ROW_OUT * 4 <= ROW_WORK, "the outputs of 16 rows");
static_assert(LEASE_BYTES == cuda_lease_bytes(__CUDA_ARCH__ / 10), "the host knows what fits");

/* ---- the rows of a task ---- */

#define GROUP_ROWS (WARPS * STEP_TOKENS) /* token rows of an item */

/* Token rows [row0, end) of a KV head, or of a part of its query heads: the only row of a request
 * that has one, or else up to GROUP_ROWS rows. */
struct rows_item {
    uint32_t row0, end, head;
};

/* The task's item of a turn. A task has every n-th item, back and forth, since later rows see more.
 * False: there is no item in this turn, nor in a later one. */
DEV bool rows_item_of(const struct cuda_task *task, uint32_t turn, struct rows_item *item) {
    const uint32_t n_rows = SHARED->batch.rows.n_rows, alone = SHARED->batch.rows.n_alone;
    const uint32_t n = (alone + ceil_div(n_rows - alone, GROUP_ROWS)) * HEAD_STEPS;
    const uint32_t mine = turn % 2 == 0 ? task->unit0 : task->unit1 - 1 - task->unit0;
    const uint32_t i = turn * task->unit1 + mine;
    if (i >= n) return false;
    const uint32_t at = (n - 1 - i) / HEAD_STEPS;
    item->row0 = at < alone ? at : alone + (at - alone) * GROUP_ROWS;
    item->end = at < alone ? at + 1 : min(item->row0 + GROUP_ROWS, n_rows);
    item->head = i % HEAD_STEPS;
    return true;
}

/* The first of the warp's positions of a piece. */
DEV uint32_t rows_share(const struct warp_context *c, uint32_t piece) {
    return piece * ATTENTION_PIECE + 16 * c->warp;
}

/* State of the lane's two rows over pieces: out[i] has columns [8 i, 8 i + 8). */
struct rows_state {
    float max[2], sum[2];
    float out[2 * VALUE_PAIRS][4];
};

/* Adds a piece's outputs of 8 N columns to the rows', from column 8 * at on. */
template <int N>
DEV void rows_add(struct rows_state *s, int at, const float piece[N][4],
                  const struct merge factors[2]) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s->out[at + i][e] = merge_value(&factors[e / 2], s->out[at + i][e], piece[i][e]);
}

/* Turns the lane's scores of a piece into probabilities, as A registers of each share, and merges
 * the piece's maximum and sum into the state. factors: of the state's and the piece's outputs. */
DEV void rows_softmax(float (*p)[4], uint4 weights[WARPS], struct rows_state *state,
                      struct merge factors[2]) {
    float most[2] = {-INFINITY, -INFINITY}, base[2], all[2];
#pragma unroll
    for (int s = 0; s < WARPS; s++) share_most<2>(p + 2 * s, most);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = quad_most(most[h]);
        base[h] = piece_base(most[h]);
    }
#pragma unroll
    for (int s = 0; s < WARPS; s++) {
        float sum[2];
        share_weigh<2>(p + 2 * s, base, sum);
        weights[s] = share_weights<2>(p + 2 * s);
#pragma unroll
        for (int h = 0; h < 2; h++) all[h] = s == 0 ? sum[h] : __fadd_rn(all[h], sum[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        factors[h] = merge_factors(state->max[h], state->sum[h], piece_max(most[h]));
        state->sum[h] = merge_value(&factors[h], state->sum[h], quad_sum(all[h]));
        state->max[h] = factors[h].max;
    }
}

/* Stores the warp's outputs in its memory, for rows_store. All lanes have used what is there. */
DEV void rows_put(const struct warp_context *c, const struct rows_state *state) {
    float *work = (float *)(shared_memory + c->warp * ROW_WORK);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float inv = reciprocal_fast(state->sum[h]);
        float *row = work + (c->lane / 4 + 8 * h) * ROW_OUT + c->lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < QN_HEAD_DIM / 8; i++)
            *(float2 *)(row + 8 * i) =
                make_float2(state->out[i][2 * h] * inv, state->out[i][2 * h + 1] * inv);
    }
}

/* Columns [d, d + 4) of a row in the warp's memory. */
DEV float4 rows_four(const float *work, uint32_t row, uint32_t d) {
    return *(const float4 *)(work + row * ROW_OUT + d);
}

/* Stores a step's outputs packed. Four lanes side by side store 32 columns of a token, eight each,
 * the next four those of the next token of the same head: so they fill sectors. */
DEV void rows_store_packed(const struct warp_context *c, const struct cuda_task *task,
                           const struct attention_step *s, const float *work) {
    constexpr uint32_t spans = QN_HEAD_DIM / 32;
#pragma unroll 2
    for (uint32_t i = c->lane; i < SUB_HEADS * STEP_TOKENS * 4 * spans; i += 32) {
        const uint32_t token = i / 4 % STEP_TOKENS, span = i / (4 * STEP_TOKENS) % spans;
        const uint32_t head = i / (4 * STEP_TOKENS * spans), d = span * 32 + i % 4 * 8;
        const uint32_t m = token * SUB_HEADS + head;
        if (token >= s->n_tokens || head >= s->n_heads) continue;
        packed_store8(task, task->out, s->row0 + token, (s->head0 + head) * QN_HEAD_DIM + d,
                      rows_four(work, m, d), rows_four(work, m, d + 4));
    }
}

/* Stores what rows_put has left in the warp's memory, one row for each row of the step. The loop is
 * short: from registers it was 17 KB of the kernel's code. */
DEV void rows_store(const struct warp_context *c, const struct cuda_task *task,
                    const struct attention_step *s) {
    const float *work = (const float *)(shared_memory + c->warp * ROW_WORK);
    __syncwarp();
    if (QN_HEAD_DIM % 32 == 0 && (task->flags & CUDA_OUT_PACKED) != 0) {
        rows_store_packed(c, task, s, work);
        __syncwarp(); /* the next step's queries will be there */
        return;
    }
#pragma unroll 1
    for (uint32_t i = c->lane; i < 16 * (QN_HEAD_DIM / 4); i += 32) {
        const uint32_t m = i / (QN_HEAD_DIM / 4), d = i % (QN_HEAD_DIM / 4) * 4;
        const uint32_t token = m / SUB_HEADS, head = m % SUB_HEADS;
        if (token >= s->n_tokens || head >= s->n_heads) continue;
        output_store4(task, (uint64_t)(s->row0 + token) * QN_N_HEADS + s->head0 + head, d,
                      rows_four(work, m, d));
    }
    __syncwarp(); /* the next step's queries will be there */
}

#endif
