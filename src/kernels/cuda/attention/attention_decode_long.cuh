/* attention_decode_long.cuh - DECODE_LONG: ATTENTION_STEP in long contexts. Consecutive whole
 * pieces of one row and head form a run, one piece per warp. attention_items.cuh says which pieces
 * do, and in which order their pages arrive. DECODE runs all other items (attention_decode.cuh).
 *
 * A warp first goes through its piece's keys, share by share, and keeps the scores. Then it knows
 * the piece's maximum, makes probabilities and goes through the values. These are the operations of
 * DECODE's eight warps, in the same order, without the exchange between them. With DECODE 250
 * pieces of Qwen3-8B took 41 us a layer on an H200, of which their bytes need 29.
 *
 * Bytes: k and v of the piece, 2 * ATTENTION_PIECE * head_dim * 2, read once.
 *
 * Scratch: as attention_decode.cuh.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_DECODE_LONG_CUH
#define QN_CUDA_ATTENTION_ATTENTION_DECODE_LONG_CUH

#include "kernels/cuda/attention/attention_decode.cuh"

enum { RUN_SHARES = RUN_POSITIONS / SHARE_POSITIONS }; /* of a page */

/* A warp's piece of a run: the lane's scores of each share, then its probabilities. Registers
 * cannot be indexed, so in loops that are not unrolled the arrays rotate by a page at a time. */
struct run_scores {
    float p[WARPS][2][2 * HEAD_HALVES];
};
struct run_probs {
    probs_t p[WARPS];
};

/* The first page's shares become the last ones. */
DEV void run_turn(struct run_scores *x) {
    const struct run_scores was = *x;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
#pragma unroll
        for (int e = 0; e < 4 * HEAD_HALVES; e++)
            x->p[i][e / (2 * HEAD_HALVES)][e % (2 * HEAD_HALVES)] =
                was.p[(i + RUN_SHARES) % WARPS][e / (2 * HEAD_HALVES)][e % (2 * HEAD_HALVES)];
}
DEV void run_turn(struct run_probs *x) {
    const struct run_probs was = *x;
#pragma unroll
    for (int i = 0; i < WARPS; i++) x->p[i] = was.p[(i + RUN_SHARES) % WARPS];
}

/* Scores of the warp's piece. No mask: all rows see all of it. */
DEV void run_keys(struct warp_context *c, const struct attention_rows *rows, struct run_scores *x) {
#pragma unroll 1
    for (int page = 0; page < RUN_PAGES; page++) {
        const char *from = (const char *)page_acquire(c);
        run_turn(x);
#pragma unroll
        for (int half = 0; half < RUN_SHARES; half++) {
            const char *share = from + half * SHARE_BYTES;
            const struct kv_lane row[2] = {lane_in_page(share, key_row(c, 0)),
                                           lane_in_page(share, key_row(c, 1))};
            uint4 k[2][PAIRS];
            float p[2][4];
            share_keys(c, row, k);
            share_scores(rows, k, p);
#pragma unroll
            for (int u = 0; u < 2; u++)
#pragma unroll
                for (int e = 0; e < 2 * HEAD_HALVES; e++)
                    x->p[WARPS - RUN_SHARES + half][u][e] = p[u][e];
        }
        page_release(c);
    }
}

/* The state of a warp's piece, for the lane's two rows. */
struct run_part {
    float max[2], sum[2];
    float out[VALUE_PAIRS][2][4];
};

/* Turns scores into probabilities. Stores maximum and sum of the piece in `part`. */
DEV void run_softmax(const struct run_scores *x, struct run_probs *probs, struct run_part *part) {
    float most[2] = {-INFINITY, -INFINITY}, base[2];
    float p[WARPS][2][4] = {};
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
#pragma unroll
        for (int u = 0; u < 2; u++)
#pragma unroll
            for (int e = 0; e < 2 * HEAD_HALVES; e++) p[i][u][e] = x->p[i][u][e];
        share_most<HEAD_HALVES>(p[i], most);
    }
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        most[h] = quad_most(most[h]);
        base[h] = piece_base(most[h]);
        part->max[h] = piece_max(most[h]);
    }
    float all[2] = {};
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        float sum[2];
        share_weigh<HEAD_HALVES>(p[i], base, sum);
        probs->p[i] = probs_of(share_weights<HEAD_HALVES>(p[i]));
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) all[h] = i == 0 ? sum[h] : __fadd_rn(all[h], sum[h]);
    }
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) part->sum[h] = quad_sum(all[h]);
}

DEV void run_values(struct warp_context *c, struct run_probs *x, struct run_part *part) {
#pragma unroll
    for (int i = 0; i < VALUE_PAIRS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) part->out[i][e / 4][e % 4] = 0;
#pragma unroll 1
    for (int page = 0; page < RUN_PAGES; page++) {
        const char *from = (const char *)page_acquire(c);
#pragma unroll
        for (int half = 0; half < RUN_SHARES; half++) {
            const struct kv_lane row = lane_in_page(from + half * SHARE_BYTES, value_row(c));
#pragma unroll
            for (int i = 0; i < VALUE_PAIRS; i++)
                share_outputs(weights_of(x->p[half]), load_values(c, &row, i, QN_HEAD_DIM / 8),
                              part->out[i]);
        }
        run_turn(x);
        page_release(c);
    }
}

/* Stores the warp's piece as parts, that of the first head at `to`. */
DEV void run_store(const struct warp_context *c, const struct attention_item *w, uint32_t n_pieces,
                   const struct run_part *part, struct operand to) {
    const uint64_t of_head = (uint64_t)n_pieces * STATE_SIZE;
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        if (m >= item_step(w).n_heads) continue;
        const struct operand head = operand_from(to, m * of_head);
        if (c->lane % 4 == 0) operand_put2(head, make_float2(part->max[h], part->sum[h]));
#pragma unroll
        for (int i = 0; i < 2 * VALUE_PAIRS; i++) {
            const uint32_t d = 8 * i + c->lane % 4 * 2;
            const float *of = &part->out[i / 2][i % 2][2 * h];
            if (8 * i < QN_HEAD_DIM)
                operand_put2(operand_from(head, PART_HEAD + d), make_float2(of[0], of[1]));
        }
    }
}

/* Takes and releases the void pages of a warp without a piece. */
DEV void run_nothing(struct warp_context *c) {
#pragma unroll 1
    for (int page = 0; page < 2 * RUN_PAGES; page++) {
        page_acquire(c);
        page_release(c);
    }
}

/* Runs the warp's piece of the run that begins at the list's item, if it has one. */
DEV void run_pieces(struct warp_context *c, const struct cuda_task *task,
                    const struct attention_item *w) {
    const uint32_t piece = share_of_warp(c), n_pieces = task->n_pieces;
    if (piece >= item_run(w)) {
        run_nothing(c);
        return;
    }
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
    const uint64_t first = decode_head(w, 0) * n_pieces + w->piece + piece;
    struct attention_rows rows;
    struct run_scores scores = {};
    struct run_probs probs;
    struct run_part part;
    item_queries(c, w, 0, item_step(w).n_heads, &rows);
    run_keys(c, &rows, &scores);
    run_softmax(&scores, &probs, &part);
    run_values(c, &probs, &part);
    run_store(c, w, n_pieces, &part, operand_from(parts, first * STATE_SIZE));
}

/* Goes on to the item after the run. After its barrier no warp reads the run's queries any more.
 * True: that item has the same row and head. */
DEV bool run_done(struct attention_item *w) {
    const uint32_t row = w->row, head = w->head;
    items_skip(SHARED, w, item_run(w));
    sync_compute();
    return w->left > 0 && w->row == row && w->head == head;
}

#endif
