/* linear.cuh - matrix times activations, the core of QKV, LINEAR, GATED_MLP and LM_HEAD.
 *
 * Per task: weights of its row blocks once per token tile (8 KB per 16 x 256 weights), 2 * 16 * 256
 * operations per page and token. At batch 1 memory is the bound: an H100 loads one page per 615
 * cycles and SM, while eight warps need about 100 for it.
 *
 * This file has what all forms share. matvec.cuh runs tasks of one row; matmul_stream.cuh and
 * matmul_tile.cuh run tasks of several rows, whose activations are packed. lm_head.cuh and
 * matmul_epilogue.cuh turn the dot products into an operator's results.
 */
#ifndef QN_CUDA_MATMUL_LINEAR_CUH
#define QN_CUDA_MATMUL_LINEAR_CUH

#include "kernels/cuda/data/packed_layout.cuh"
#include "kernels/cuda/data/squares.cuh"
#include "kernels/cuda/block/trace.cuh"

/* Columns of QKV_LINEAR's result: a constant, unless a program has QKV_LINEAR operators of
 * different widths. */
#define QKV_COLUMNS(task) (QN_QKV_COLUMNS != 0 ? QN_QKV_COLUMNS : (task)->units)

/* An item is two dot products v0 and v1: image rows r and r + 8 of a row block, and a token. This
 * struct has all that turns them into results. None of it depends on other tasks, so it is found
 * before the event. */
struct linear_item {
    float *out;          /* where v0 goes; v1: 8 elements further. Packed h: its 16 bits */
    float2 bias;         /* for v0, v1; GATED_MLP: for gate, up */
    const float *addend; /* v0's residual, plain or flagged; NULL: none */
    uint32_t flag;       /* the residual's */
    uint32_t out_flag;   /* the result's; 0: it is plain */
    bool own0, own1;     /* whether the task writes v0, v1 */
    /* For the next norm, if several rows of the residual stream are written. norm: its weights for
     * v0 and v1. normed: where v0 goes, or, if packed, two neighbours of which the item has one.
     * squares: where the row block's squares go, if this item stores them. */
    float2 norm;
    float *normed, *squares;
};

/* The residual's two elements, as they were loaded. */
struct linear_addend {
    uint2 v0, v1;
};

/* The next four functions are in matmul_epilogue.cuh. op_item is for several rows, whose data
 * carries no flags (task/transport.c). */
DEV struct linear_item op_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                               uint32_t row);
/* An operator's results from an item's dot products, without GATED_MLP's biases and activation.
 * inv: 1 / rms of the token; LINEAR ignores it. */
DEV float2 op_value(const struct cuda_task *task, float v0, float v1, float inv, float2 bias,
                    float2 residual);
/* Stores the results. The item of row r + 1 of the same block and token is STRIDE lanes further.
 * Whole warps call it. */
template <int STRIDE>
DEV void op_store(const struct cuda_task *task, const struct linear_item *m, uint32_t r, float2 v);
/* Finishes two items of a single row, stored as pairs: image rows r and r + 8, r + 1 and r + 9. */
DEV void op_finish_pair(const struct cuda_task *task, const struct linear_item *m, uint32_t block,
                        uint32_t r, float inv, float v0, float v1, float v2, float v3);

/* Requests the residual; addend_await waits for it. */
DEV struct linear_addend addend_ask(const struct linear_item *m) {
    struct linear_addend a = {};
    if (m->addend == nullptr) return a;
    if (m->flag != 0) {
        if (m->own0) a.v0 = load_flagged(m->addend);
        if (m->own1) a.v1 = load_flagged(m->addend + 16);
    } else {
        if (m->own0) a.v0.x = __float_as_uint(load_l2(m->addend));
        if (m->own1) a.v1.x = __float_as_uint(load_l2(m->addend + 8));
    }
    return a;
}

DEV float2 addend_await(const struct linear_item *m, const struct linear_addend *a) {
    uint2 v0 = a->v0, v1 = a->v1;
    if (m->addend == nullptr) return {};
    while (m->own0 && v0.y != m->flag && !operand_given_up()) v0 = load_flagged(m->addend);
    while (m->own1 && v1.y != m->flag && !operand_given_up()) v1 = load_flagged(m->addend + 16);
    return make_float2(__uint_as_float(v0.x), __uint_as_float(v1.x));
}

/* ---- the order of addition: graph/partials.h ---- */

/* Adds up, in order, the n-th partial sums that have k-tiles, n from FIRST to END - 1. by_turn[i]:
 * the partial sum of the warp with page i of each step. */
template <uint32_t K_TILES, uint32_t FIRST, uint32_t END>
DEV float partials_in_order(const float by_turn[PARTIALS]) {
    float sum = by_turn[cuda_partial_turn(K_TILES, partial_nth(K_TILES, FIRST))];
#pragma unroll
    for (uint32_t n = FIRST + 1; n < END; n++)
        sum += by_turn[cuda_partial_turn(K_TILES, partial_nth(K_TILES, n))];
    return sum;
}

/* The dot product: LINEAR adds its partial sums by halves, other operators in order. */
template <bool HALVES, uint32_t K_TILES> DEV float partials_sum(const float by_turn[PARTIALS]) {
    constexpr uint32_t n = partial_count(K_TILES), half = partial_half(K_TILES);
    if constexpr (HALVES && half < n)
        return partials_in_order<K_TILES, 0, half>(by_turn) +
               partials_in_order<K_TILES, half, n>(by_turn);
    else
        return partials_in_order<K_TILES, 0, n>(by_turn);
}

/* Multiplies two steps of a page with one column of 8 tokens. b: the B registers of both steps. */
DEV void mma_pair(float sum[4], const uint4 *page, uint32_t pair, uint32_t lane, uint4 b) {
    mma_16x8x16<WEIGHT_E>(sum, page[(2 * pair) * 32 + lane], b.x, b.y);
    mma_16x8x16<WEIGHT_E>(sum, page[(2 * pair + 1) * 32 + lane], b.z, b.w);
}

/* How many rows the iteration has for the task's operator. */
DEV uint32_t linear_rows(const struct cuda_task *task) {
    const struct rt_rows *rows = &SHARED->batch.rows;
    const bool logits = task->kind == OP_LM_HEAD || task->kind == OP_PACK_LOGITS;
    return logits ? rows->n_logit_rows : rows->n_rows;
}

/* Pages of a task's row blocks (walk.cuh). */
DEV uint32_t task_pages(const struct cuda_task *task) {
    const uint32_t n_blocks = task->block1 - task->block0;
    const uint32_t eights = ceil_div(task->k_tiles, PARTIALS) * PARTIALS;
    return n_blocks * (task->columns == 0 ? task->k_tiles : eights);
}

/* Takes the pages of a task whose rows are all beyond the iteration's: the loader sends them all
 * the same. */
DEV void tile_skip(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t n = task_pages(task);
    for (uint32_t i = (c->warp - c->turn) % WARPS; i < n; i += WARPS) {
        page_acquire(c);
        page_release(c);
    }
    c->turn = turn_after(c->turn, n);
}

#endif
