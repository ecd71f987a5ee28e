/* attention_decode_long.cuh - DECODE_LONG: ATTENTION_STEP in long contexts. Whole pieces of one row
 * and head that follow each other are a run, a piece a warp (attention_items.cuh says which, and in
 * which order their pages come). All other items are DECODE's (attention_decode.cuh).
 *
 * A warp first goes through its piece's keys, share by share, and keeps the probabilities, each
 * share's against its own maximum; then the factors that make them the piece's are known, and it
 * adds the shares' outputs while it goes through the values. These are the operations of DECODE's
 * eight warps, in their order, without the exchange between them: 250 pieces of Qwen3-8B took 41 us
 * a layer there on an H200, of which their bytes need 29.
 *
 * Bytes: k and v of the piece, 2 * ATTENTION_PIECE * head_dim * 2, read once.
 *
 * Scratch: as attention_decode.cuh. A piece's outputs are in its last page for a while.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_DECODE_LONG_CUH
#define QN_CUDA_ATTENTION_ATTENTION_DECODE_LONG_CUH

#include "kernels/cuda/attention/attention_decode.cuh"

/* A warp's piece of a run: of each share its maximum and sum for the lane's rows, its
 * probabilities. In loops that are not unrolled they go round by a page at a time: registers have
 * no index. */
enum { RUN_SHARES = RUN_POSITIONS / SHARE_POSITIONS }; /* of a page */
struct run_shares {
    float max[WARPS][HEAD_HALVES], sum[WARPS][HEAD_HALVES];
    uint4 weights[WARPS];
};

/* The first page's shares become the last ones. */
DEV void run_turn(struct run_shares *x) {
    const struct run_shares was = *x;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const int from = (i + RUN_SHARES) % WARPS;
        x->weights[i] = was.weights[from];
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            x->max[i][h] = was.max[from][h];
            x->sum[i][h] = was.sum[from][h];
        }
    }
}

DEV void run_scores(struct warp_context *c, const struct attention_rows *rows, uint32_t first,
                    struct run_shares *x) {
#pragma unroll 1
    for (int page = 0; page < RUN_PAGES; page++, first += RUN_POSITIONS) {
        const char *from = (const char *)page_acquire(c);
        run_turn(x);
#pragma unroll
        for (int half = 0; half < RUN_SHARES; half++) {
            const int share = WARPS - RUN_SHARES + half;
            uint4 k[2][PAIRS];
            float p[2][4], max[2], sum[2];
            share_keys(c, share_at_of(c, from + half * SHARE_BYTES, from).k, k);
            piece_scores(rows, k, p);
            piece_softmax<HEAD_HALVES>(c, rows, first + half * SHARE_POSITIONS, p, max, sum);
#pragma unroll
            for (int h = 0; h < HEAD_HALVES; h++) {
                x->max[share][h] = max[h];
                x->sum[share][h] = sum[h];
            }
            x->weights[share] = piece_weights<HEAD_HALVES>(p);
        }
        page_release(c);
    }
}

/* The state of a warp's piece, for the lane's two rows. */
struct run_part {
    float max[2], sum[2];
    float out[8 * SPANS][4]; /* column i of a span: see share_put */
};

/* The shares' factors in place of their maxima; maximum and sum of the piece into `part`. The same
 * operations as in rows_merge. */
DEV void run_factors(struct run_shares *x, struct run_part *part) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        float most = x->max[0][h], sum = 0;
#pragma unroll
        for (int i = 1; i < WARPS; i++) most = fmaxf(most, x->max[i][h]);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            x->max[i][h] = warp_factor(x->max[i][h], most);
            sum = fmaf(x->sum[i][h], x->max[i][h], sum);
        }
        part->max[h] = most;
        part->sum[h] = sum;
    }
}

/* The outputs of the next page's shares, added in order as decode_piece_of does. */
DEV void run_page_outputs(const struct warp_context *c, const char *page,
                          const struct run_shares *x, struct run_part *part) {
#pragma unroll
    for (int half = 0; half < RUN_SHARES; half++) {
        uint4 v[SPANS][4];
        share_values(c, share_at_of(c, page, page + half * SHARE_BYTES).v, v);
#pragma unroll
        for (int i = 0; i < 8 * SPANS; i++) {
            float out[4];
            piece_column(x->weights[half], v[i / 8], i % 8, out);
#pragma unroll
            for (int e = 0; e < 2 * HEAD_HALVES; e++)
                part->out[i][e] = share_add(part->out[i][e], out[e], x->max[half][e / 2]);
        }
    }
}

/* From -0 on, which changes nothing. The last page is not given back: its slot. */
DEV uint32_t run_outputs(struct warp_context *c, struct run_shares *x, struct run_part *part) {
#pragma unroll
    for (int i = 0; i < 8 * SPANS; i++)
        part->out[i][0] = part->out[i][1] = part->out[i][2] = part->out[i][3] = -0.0f;
#pragma unroll 1
    for (int page = 0;;) {
        const uint32_t slot = page_acquire_after(c, 0);
        run_page_outputs(c, RING + slot * CUDA_PAGE_BYTES, x, part);
        if (++page == RUN_PAGES) return slot;
        run_turn(x);
        page_release(c);
    }
}

/* The warp's piece to its parts, the first head's at `to`, by way of the page, which is given back.
 */
DEV void run_store(struct warp_context *c, const struct attention_item *w, uint32_t n_pieces,
                   const struct run_part *part, struct operand to, float *page) {
    const uint64_t of_head = (uint64_t)n_pieces * STATE_SIZE;
    const uint32_t n_heads = item_step(w).n_heads, pairs = QN_HEAD_DIM / 2;
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        if (c->lane % 4 == 0 && m < n_heads)
            operand_put2(operand_from(to, m * of_head), make_float2(part->max[h], part->sum[h]));
    }
    __syncwarp(); /* all lanes have read the page */
#pragma unroll
    for (int span = 0; span < SPANS; span++) share_put(c, span, part->out + 8 * span, page);
    __syncwarp();
#pragma unroll 4
    for (uint32_t i = c->lane; i < n_heads * pairs; i += 32) {
        const uint32_t m = i / pairs, d = i % pairs * 2;
        operand_put2(operand_from(to, m * of_head + 2 + d),
                     *(const float2 *)(page + share_out_at(m, d)));
    }
    page_copy_fence_shared(); /* bulk copies will write where these lanes did */
    page_release(c);
}

/* Void pages of a warp without a piece. */
DEV void run_nothing(struct warp_context *c) {
#pragma unroll 1
    for (int page = 0; page < 2 * RUN_PAGES; page++) {
        page_acquire(c);
        page_release(c);
    }
}

/* The run that begins at the list's item: the warp's piece, if it has one. */
DEV void run_pieces(struct warp_context *c, const struct cuda_task *task,
                    const struct attention_item *w) {
    const uint32_t piece = decode_share_of(c), n_pieces = task->n_pieces;
    if (piece >= item_run(w)) {
        run_nothing(c);
        return;
    }
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
    struct attention_rows rows;
    struct run_shares x = {};
    struct run_part part;
    item_queries(c, w, 0, item_step(w).n_heads, &rows);
    run_scores(c, &rows, (w->piece + piece) * ATTENTION_PIECE, &x);
    run_factors(&x, &part);
    const uint32_t slot = run_outputs(c, &x, &part);
    const uint64_t first = decode_head(w, 0) * n_pieces + w->piece + piece;
    run_store(c, w, n_pieces, &part, operand_from(parts, first * STATE_SIZE),
              (float *)(RING + slot * CUDA_PAGE_BYTES));
}

/* Goes on to the item after the run, after a barrier: no warp reads its queries any more. Whether
 * that is of the same row and head. */
DEV bool run_done(struct attention_item *w) {
    const uint32_t row = w->row, head = w->head;
    items_skip(SHARED, w, item_run(w));
    sync_compute();
    return w->left > 0 && w->row == row && w->head == head;
}

#endif
