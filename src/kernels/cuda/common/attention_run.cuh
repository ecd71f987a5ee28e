/* attention_run.cuh - ATTENTION_STEP in long contexts: whole pieces of one row and head that follow
 * each other, a piece a warp (kv_walk.cuh says which, and in which order their pages come).
 *
 * A warp first goes through its piece's keys, share by share, and keeps the probabilities, each
 * share's against its own maximum; then the factors that make them the piece's are known, and it
 * adds the shares' outputs while it goes through the values. These are the operations of
 * attention_split.cuh's eight warps, in their order, without the exchange between them: 250 pieces
 * of Qwen3-8B took 41 us a layer there on an H200, of which their bytes need 29.
 *
 * Bytes: k and v of the piece, 2 * ATTENTION_PIECE * head_dim * 2, read once.
 *
 * Scratch: as attention_split.cuh; each warp's outputs are its own share of SPLIT_OUTS.
 */
#ifndef QN_CUDA_COMMON_ATTENTION_RUN_CUH
#define QN_CUDA_COMMON_ATTENTION_RUN_CUH

#include "kernels/cuda/common/attention_split.cuh"

/* A warp's piece of a run: of each share its maximum and sum for the lane's rows, its
 * probabilities. In loops that are not unrolled they go round by a page at a time: registers have
 * no index. */
struct run_shares {
    float max[WARPS][HEAD_HALVES], sum[WARPS][HEAD_HALVES];
    uint4 weights[WARPS];
};

/* The first page's shares become the last ones. */
DEV void run_turn(struct run_shares *x) {
    const struct run_shares was = *x;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const int from = (i + 2) % WARPS;
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
        for (int half = 0; half < 2; half++) {
            const int share = WARPS - 2 + half;
            struct attention_part part;
            uint4 k[2][PAIRS];
            float p[2][4];
            split_keys(c, split_at_of(c, from + half * SHARE_BYTES, from).k, k);
            piece_scores(rows, k, p);
            piece_softmax<HEAD_HALVES>(c, rows, first + half * SHARE_POSITIONS, p, &part);
#pragma unroll
            for (int h = 0; h < HEAD_HALVES; h++) {
                x->max[share][h] = part.max[h];
                x->sum[share][h] = part.sum[h];
            }
            x->weights[share] = piece_weights<HEAD_HALVES>(p);
        }
        page_release(c);
    }
}

/* The shares' factors in place of their maxima; maximum and sum of the piece into `part`. The same
 * operations as in rows_merge. */
DEV void run_factors(struct run_shares *x, struct attention_part *part) {
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

/* The shares' outputs, added in order as split_merge_outputs does: from -0 on, which changes
 * nothing. */
DEV void run_outputs(struct warp_context *c, struct run_shares *x, struct attention_part *part) {
#pragma unroll
    for (int i = 0; i < 8 * SPANS; i++)
        part->out[i][0] = part->out[i][1] = part->out[i][2] = part->out[i][3] = -0.0f;
#pragma unroll 1
    for (int page = 0; page < RUN_PAGES; page++) {
        const char *from = (const char *)page_acquire(c);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 v[SPANS][4];
            split_values(c, split_at_of(c, from, from + half * SHARE_BYTES).v, v);
#pragma unroll
            for (int i = 0; i < 8 * SPANS; i++) {
                float out[4];
                piece_column(x->weights[half], v[i / 8], i % 8, out);
#pragma unroll
                for (int e = 0; e < 2 * HEAD_HALVES; e++)
                    part->out[i][e] = share_add(part->out[i][e], out[e], x->max[half][e / 2]);
            }
        }
        run_turn(x);
        page_release(c);
    }
}

/* The warp's piece to its parts, the first head's at `to`, by way of its own share of scratch. */
DEV void run_store(const struct warp_context *c, const struct split_warp *t,
                   const struct attention_step *s, const struct attention_part *part,
                   struct act to) {
    const uint64_t of_head = (uint64_t)t->n_pieces * STATE_SIZE;
    const uint32_t stride = SPLIT_CHUNK + 4, pairs = SPLIT_CHUNK / 2;
    float *outputs = (float *)(SCRATCH + SPLIT_OUTS);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        if (c->lane % 4 == 0 && m < s->n_heads)
            act_put2(act_from(to, m * of_head), make_float2(part->max[h], part->sum[h]));
    }
#pragma unroll 1
    for (uint32_t at = 0; at < QN_HEAD_DIM; at += SPLIT_CHUNK) {
        store_chunk(c, t->share, part, outputs, SUB_HEADS, at, SPLIT_CHUNK);
        __syncwarp();
        for (uint32_t i = c->lane; i < s->n_heads * pairs; i += 32) {
            const uint32_t m = i / pairs, d = i % pairs * 2;
            if (at + d >= QN_HEAD_DIM) continue;
            const float *from = outputs + (t->share * SUB_HEADS + m) * stride + d;
            act_put2(act_from(to, m * of_head + 2 + at + d), *(const float2 *)from);
        }
        __syncwarp();
    }
}

/* The run that begins at the walk's item: the warp's piece, if it has one. */
DEV void run_pieces(struct warp_context *c, const struct split_warp *t, const struct kv_walk *w) {
    if (t->share >= kv_walk_run(w)) {
#pragma unroll 1
        for (int page = 0; page < 2 * RUN_PAGES; page++) {
            page_acquire(c);
            page_release(c);
        }
        return;
    }
    const struct attention_step s = split_step(w);
    struct attention_rows rows;
    struct run_shares x = {};
    struct attention_part part;
    step_rows(c, w, 0, s.n_heads, &rows);
    run_scores(c, &rows, (w->piece + t->share) * ATTENTION_PIECE, &x);
    run_factors(&x, &part);
    run_outputs(c, &x, &part);
    run_store(c, t, &s, &part, act_from(split_part(t, w), t->share * STATE_SIZE));
}

/* Goes on to the item after the run and makes its heads. */
DEV void run_done(const struct warp_context *c, const struct cuda_task *task, struct kv_walk *w) {
    const uint32_t row = w->row, head = w->head;
    kv_walk_skip(SHARED, w, kv_walk_run(w));
    sync_compute(); /* no warp reads the queries any more */
    if (w->left > 0)
        step_make_next<OP_ATTENTION_STEP>(c, task, w, w->row == row && w->head == head);
}

#endif
