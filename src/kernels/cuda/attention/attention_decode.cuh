/* attention_decode.cuh - DECODE: the attention of few token rows, ATTENTION_STEP and
 * ATTENTION_WHOLE, from the projections on.
 *
 * An item is a token row, a KV head and some of its pieces: all of them in WHOLE, one in STEP.
 * WHOLE stores the output of the head. STEP stores the piece as parts, which ATTENTION_MERGE merges
 * (attention_merge.cuh). DECODE is the longest stretch between two operators of a layer: few blocks
 * work and all others wait. So a task finds its work before the event.
 *
 *   before the event   the task's first item, the warp's head: its norm and rotation, where its
 *                      elements lie. ONE: the first share's keys into registers
 *   after it           a head per warp ─ barrier ─ of each piece: new keys and values into the
 *                      pages, scores of the warp's share ─ barrier ─ their probabilities ─ barrier
 *                      ─ 16 columns of the values per warp, shares in order, merged with the
 *                      pieces before ─ barrier ─ the pages are released
 *
 * ONE: a task has at most one item, of one or two pieces, and each row is of another request, so
 * the iteration adds one position to its context. Otherwise an item may belong to a prompt's row.
 * It then also makes keys and values of the rows before it, since other tasks may have those rows.
 *
 * Bytes: k and v of the pieces, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch:   0              struct piece_shares, DECODE_MOST of them
 *            DECODE_HEADS   attention_heads.cuh
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_DECODE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_DECODE_CUH

#include "kernels/cuda/attention/attention_heads.cuh"

DEV struct piece_shares *decode_shares(uint32_t i) {
    return (struct piece_shares *)SCRATCH + i;
}

/* ---- the warps' shares ---- */

/* Keys and values of positions [fresh, end), as heads in scratch. Head number `key` is the key of
 * the last position. Its value follows, then key and value of the position before, and so on. */
struct fresh_heads {
    uint32_t fresh, end, key;
};

/* Clears values of the share at `values` that begins at `first`: those past the last position that
 * the row sees, or all of an unseen share. Their weights are zero, but zero times NaN is NaN. */
DEV void decode_clear(const struct warp_context *c, const struct attention_item *w, char *values,
                      uint32_t first) {
    constexpr uint32_t chunks = QN_HEAD_DIM / 8;
    const uint32_t n = item_sees(w, first) ? min(w->hi - first, SHARE_POSITIONS + 0u) : 0;
#pragma unroll 1
    for (uint32_t i = n * chunks + c->lane; i < SHARE_POSITIONS * chunks; i += 32)
        *(uint4 *)(values + kv_stored_at(i)) = make_uint4(0, 0, 0, 0);
}

/* Copies fresh keys or values from scratch to the share at `page`, which begins at `first`. */
DEV void decode_complete(const struct warp_context *c, const struct attention_item *w,
                         const struct fresh_heads *f, char *page, uint32_t first, bool is_value) {
    constexpr uint32_t chunks = QN_HEAD_DIM / 8;
    const uint32_t begin = max(first, f->fresh), end = min(first + SHARE_POSITIONS, w->hi);
    if (begin >= end) return;
#pragma unroll 1
    for (uint32_t i = c->lane; i < (end - begin) * chunks; i += 32) {
        const uint32_t number = f->key + 2 * (f->end - 1 - begin - i / chunks) + is_value;
        *(uint4 *)(page + kv_stored_at((begin - first) * chunks + i)) =
            *(const uint4 *)(head_at(number) + kv_stored_at(i % chunks));
    }
}

/* A share's keys in registers. */
struct held_keys {
    uint4 k[2][PAIRS];
    bool there;
};

/* Loads the keys of the warp's next page, which has arrived, if they are wanted. Otherwise it loads
 * bytes that nobody uses: the compiler spills arrays that are loaded conditionally. */
DEV void decode_hold(const struct warp_context *c, bool wanted, struct held_keys *x) {
    const char *page = wanted ? RING + page_slot(c->warp, c->page) * CUDA_PAGE_BYTES : SCRATCH;
    const struct kv_lane row[2] = {lane_in_page(page, key_row(c, 0)),
                                   lane_in_page(page, key_row(c, 1))};
    x->there = wanted;
    share_keys(c, row, x->k);
}

/* Whether earlier iterations wrote all of the warp's share of the item's first piece. */
DEV bool decode_is_old(const struct warp_context *c, const struct attention_item *w) {
    return w->fresh >= w->piece * ATTENTION_PIECE + SHARE_POSITIONS * (share_of_warp(c) + 1);
}

/* Scores of the share at `page` that begins at `first`. The page of an unseen share was not loaded:
 * its scores are masked. x: the share's keys, if already loaded. */
DEV void decode_scores(const struct warp_context *c, const struct attention_rows *rows,
                       const char *page, uint32_t first, struct held_keys *x, float p[2][4]) {
    if (!x->there) {
        const struct kv_lane row[2] = {lane_in_page(page, key_row(c, 0)),
                                       lane_in_page(page, key_row(c, 1))};
        share_keys(c, row, x->k);
    }
    share_scores(rows, x->k, p);
    share_mask<HEAD_HALVES>(c, rows, first, p);
}

/* ---- the warps' columns ---- */

/* State of the lane's rows over a piece, or over a context so far, for the columns of one of N
 * warps. */
template <int N> struct decode_columns {
    enum { PAIRS_OF = (VALUE_PAIRS + N - 1) / N };
    float max[2], sum[2];
    float out[PAIRS_OF][2][4]; /* pair number warp + N i */
};

/* Offset, in a share's page, of the row of values that the lane addresses for load_matrices_turned.
 * pair: of 16 columns. */
DEV uint32_t decode_value_at(const struct warp_context *c, uint32_t pair) {
    const uint32_t chunk = min(2 * pair + c->lane / 16, QN_HEAD_DIM / 8 - 1u), n = value_row(c);
    return (SHARE_PAGES == 1 ? SHARE_BYTES : 0) + kv_row_at(n) + kv_chunk_at(n, chunk);
}

/* Where the columns of one of N warps, number `warp`, are in the first share of a piece. Its page
 * is the n-th after the next one. */
template <int N> struct decode_values { uint32_t first[decode_columns<N>::PAIRS_OF]; };
template <int N>
DEV struct decode_values<N> decode_values_of(const struct warp_context *c, uint32_t warp,
                                             uint32_t n) {
    struct decode_values<N> v;
#pragma unroll
    for (int i = 0; i < decode_columns<N>::PAIRS_OF; i++)
        v.first[i] = share_pages(c, n) + decode_value_at(c, warp + N * i);
    return v;
}

/* Pair number i of them in a share. */
template <int N>
DEV uint4 decode_value(const struct decode_values<N> *v, uint32_t share, int i) {
    return load_matrices_turned(RING + share_at(v->first[i], share));
}

/* Completes the state of a piece but for its outputs: the sums, and the maxima, which y holds as
 * raw scores. */
template <int N>
DEV void decode_sums(const struct warp_context *c, const struct piece_shares *x,
                     struct decode_columns<N> *y) {
    piece_sum(c, x, y->sum);
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) y->max[h] = piece_max(y->max[h]);
}

/* Merges a piece into the state of the pieces before it. */
template <int N>
DEV void decode_merge(struct decode_columns<N> *y, const struct decode_columns<N> *piece) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const struct merge f = merge_factors(y->max[h], y->sum[h], piece->max[h]);
        y->sum[h] = merge_value(&f, y->sum[h], piece->sum[h]);
        y->max[h] = f.max;
#pragma unroll
        for (int i = 0; i < decode_columns<N>::PAIRS_OF; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *to = &y->out[i][e / 2][2 * h + e % 2];
                *to = merge_value(&f, *to, piece->out[i][e / 2][2 * h + e % 2]);
            }
    }
}

/* Number of the item's row m, counted over the heads of all rows. */
DEV uint64_t decode_head(const struct attention_item *w, uint32_t m) {
    return (uint64_t)w->row * QN_N_HEADS + item_step(w).head0 + m;
}

/* Stores the output of each head from the state of all its pieces. */
template <int N>
DEV void decode_store(const struct warp_context *c, const struct cuda_task *task,
                      const struct attention_item *w, uint32_t warp,
                      const struct decode_columns<N> *y) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        if (m >= item_step(w).n_heads) continue;
        const float by = reciprocal_fast(y->sum[h]);
#pragma unroll
        for (int i = 0; i < decode_columns<N>::PAIRS_OF; i++) {
            const uint32_t d = (warp + N * i) * 16 + c->lane % 4 * 2;
            const float *lo = &y->out[i][0][2 * h], *hi = &y->out[i][1][2 * h];
            if (VALUE_PAIRS % N == 0 || warp + N * i < VALUE_PAIRS)
                output_store2x2(task, decode_head(w, m), d, QN_HEAD_DIM,
                                make_float2(lo[0] * by, lo[1] * by),
                                make_float2(hi[0] * by, hi[1] * by));
        }
    }
}

/* Stores the heads' states of a piece for ATTENTION_MERGE, in parts[rows, n_heads, n_pieces,
 * STATE_SIZE]. */
DEV void decode_part(const struct warp_context *c, struct operand parts, uint32_t n_pieces,
                     const struct attention_item *w, uint32_t piece,
                     const struct decode_columns<WARPS> *y) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        if (m >= item_step(w).n_heads) continue;
        const struct operand to =
            operand_from(parts, (decode_head(w, m) * n_pieces + piece) * STATE_SIZE);
        if (c->warp == 0 && c->lane % 4 == 0) operand_put2(to, make_float2(y->max[h], y->sum[h]));
#pragma unroll
        for (int i = 0; i < decode_columns<WARPS>::PAIRS_OF; i++)
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const uint32_t d = (c->warp + WARPS * i) * 16 + 8 * u + c->lane % 4 * 2;
                const float *of = &y->out[i][u][2 * h];
                if (d < QN_HEAD_DIM)
                    operand_put2(operand_from(to, PART_HEAD + d), make_float2(of[0], of[1]));
            }
    }
}

/* Releases the pages of n pieces after all warps have read them. */
DEV void decode_release(struct warp_context *c, uint32_t n) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < n; i++) page_release(c);
}

/* ---- a piece ---- */

/* Waits for the warp's page of the piece that begins at position `first`, and copies fresh keys and
 * values from scratch into it; of wide heads only keys. */
DEV void piece_complete(const struct warp_context *c, const struct attention_item *w,
                        const struct fresh_heads *f, uint32_t first) {
    char *page = RING + page_acquire_after(c, 0) * CUDA_PAGE_BYTES;
    first += SHARE_POSITIONS * share_of_warp(c);
    decode_complete(c, w, f, page, first, false);
    if (SHARE_PAGES == 1) {
        decode_complete(c, w, f, page + SHARE_BYTES, first, true);
        decode_clear(c, w, page + SHARE_BYTES, first);
    }
    __syncwarp();
}

/* Wide heads have a page for keys and one for values. Releases the first, then waits for the second
 * and completes it. */
DEV void wide_values(struct warp_context *c, const struct attention_item *w,
                     const struct fresh_heads *f, uint32_t first) {
    page_release(c);
    char *page = RING + page_acquire_after(c, 0) * CUDA_PAGE_BYTES;
    first += SHARE_POSITIONS * share_of_warp(c);
    decode_complete(c, w, f, page, first, true);
    decode_clear(c, w, page, first);
}

/* Runs the piece that begins at position `first`, whose pages are complete. x: the keys of the
 * warp's share, if already loaded; afterwards they are not. Values are loaded while probabilities
 * are computed. */
DEV struct decode_columns<WARPS> piece_run(struct warp_context *c, const struct attention_item *w,
                                           const struct fresh_heads *f,
                                           const struct attention_rows *rows, struct held_keys *x,
                                           uint32_t first) {
    constexpr int pairs = decode_columns<WARPS>::PAIRS_OF;
    const struct decode_values<WARPS> values = decode_values_of<WARPS>(c, c->warp, SHARE_PAGES - 1);
    struct piece_shares *shares = decode_shares(0);
    const uint32_t share = share_of_warp(c);
    struct decode_columns<WARPS> y = {};
    float p[2][4];
    uint4 v[pairs][WARPS];
    decode_scores(c, rows, RING + page_slot(c->warp, c->page) * CUDA_PAGE_BYTES,
                  first + SHARE_POSITIONS * share, x, p);
    x->there = false;
    piece_put_most(c, shares, share, p);
    if (SHARE_PAGES > 1) wide_values(c, w, f, first);
    sync_compute();
#pragma unroll
    for (int i = 0; i < pairs; i++)
#pragma unroll
        for (int s = 0; s < WARPS; s++) v[i][s] = decode_value<WARPS>(&values, s, i);
    piece_most(c, shares, y.max);
    piece_put_probs(c, shares, share, y.max, p);
    sync_compute();
#pragma unroll
    for (int s = 0; s < WARPS; s++) {
        const uint4 weights = weights_of(shares->probs[s][c->lane]);
#pragma unroll
        for (int i = 0; i < pairs; i++) share_outputs(weights, v[i][s], y.out[i]);
    }
    decode_sums<WARPS>(c, shares, &y);
    return y;
}

/* Runs an item's n pieces, one after the other, and keeps the pages of the last one. SINGLE: n
 * is 1. COMPLETE: first puts fresh keys and values into their pages (piece_complete). x: keys of
 * the first share, if already loaded. hint: NULL unless it is the task's last item. */
template <uint32_t KIND, bool SINGLE, bool COMPLETE>
DEV void decode_run(struct warp_context *c, const struct cuda_task *task,
                    const struct attention_item *w, const struct fresh_heads *f, uint32_t n,
                    struct held_keys *x, uint32_t *hint) {
    static_assert(SINGLE || KIND == OP_ATTENTION_WHOLE, "STEP's items are a piece");
    struct decode_columns<WARPS> y = {};
#pragma unroll 1
    for (uint32_t i = 0; i < (SINGLE ? 1 : n); i++) {
        const uint32_t first = (w->piece + i) * ATTENTION_PIECE;
        struct attention_rows rows;
        if (!SINGLE && i > 0) decode_release(c, 1);
        if (COMPLETE) piece_complete(c, w, f, first);
        item_queries(c, w, 0, item_step(w).n_heads, &rows);
        const struct decode_columns<WARPS> piece = piece_run(c, w, f, &rows, x, first);
        if (hint != nullptr && (SINGLE || i + 1 == n)) add_relaxed_gpu(hint, 1);
        if (SINGLE)
            y = piece;
        else
            decode_merge<WARPS>(&y, &piece);
    }
    if (KIND == OP_ATTENTION_WHOLE)
        decode_store<WARPS>(c, task, w, c->warp, &y);
    else
        decode_part(c, operand_of(task->out, task, CUDA_OUT_FLAGGED), task->n_pieces, w, w->piece,
                    &y);
}

/* ---- an item of a row that is its request's only one ---- */

/* The page of the row's own key, in the item's n-th piece from here on, the last one. With narrow
 * heads its value lies SHARE_BYTES further. */
DEV char *one_page(const struct warp_context *c, const struct attention_item *w, uint32_t n) {
    const uint32_t share = (w->hi - 1) % ATTENTION_PIECE / SHARE_POSITIONS;
    return RING + share_at(share_pages(c, n), share);
}

/* Before the event: waits for the page of the row's own key and for the warp's pages of the item's
 * n <= N pieces, and clears unseen values in the latter. */
template <int N>
DEV void one_begin(const struct warp_context *c, const struct attention_item *w, uint32_t n) {
    const uint32_t owner = ((w->hi - 1) % ATTENTION_PIECE / SHARE_POSITIONS + c->turn) % WARPS;
    const uint32_t count = page_after(page_of_warp(c, owner), N == 1 ? 0 : n - 1);
#pragma unroll 1
    for (uint32_t i = 0; i < (N == 1 ? 1 : n); i++) {
        char *page = RING + page_acquire_after(c, i) * CUDA_PAGE_BYTES;
        const uint32_t first = (w->piece + i) * ATTENTION_PIECE;
        decode_clear(c, w, page + SHARE_BYTES, first + SHARE_POSITIONS * share_of_warp(c));
    }
    barrier_wait_acquire_cta(&SHARED->page_full[page_slot(owner, count)], page_parity(count));
}

/* The item's n <= N pieces. With narrow heads their pages are complete. fresh: whether it has the
 * row's own key and value. x: the keys of the share of its first piece, if already loaded. */
template <uint32_t KIND, int N>
DEV void decode_one(struct warp_context *c, const struct cuda_task *task,
                    const struct attention_item *w, uint32_t n, bool fresh, struct held_keys *x,
                    uint32_t *hint) {
    const uint32_t n_heads = item_step(w).n_heads;
    const struct fresh_heads f = {w->hi - 1, w->hi, n_heads};
    decode_run<KIND, N == 1, (SHARE_PAGES > 1)>(c, task, w, &f, n, x, hint);
    if (fresh && c->warp == WARPS - 1) {
        const char *line = one_page(c, w, 0) + kv_row_at((w->hi - 1) % SHARE_POSITIONS);
        if (SHARE_PAGES == 1)
            heads_keep(c, task, w, line, line + SHARE_BYTES);
        else
            heads_keep(c, task, w, head_at(n_heads), head_at(n_heads + 1));
    }
    decode_release(c, 1);
}

/* ---- items ---- */

/* Number of pieces of the item that begins here: one in STEP. */
template <uint32_t KIND> DEV uint32_t decode_pieces(const struct attention_item *w) {
    return KIND == OP_ATTENTION_WHOLE ? w->piece_end - w->piece : 1;
}

/* Runs an item whose heads are made. hint: NULL unless it is the task's last item. */
template <uint32_t KIND>
DEV void decode_item(struct warp_context *c, const struct cuda_task *task,
                     const struct attention_item *w, uint32_t n_pieces, uint32_t *hint) {
    const uint32_t end = KIND == OP_ATTENTION_WHOLE ? w->hi : item_end(w, n_pieces);
    const struct fresh_heads f = {KIND == OP_ATTENTION_WHOLE ? w->fresh : min(w->fresh, end), end,
                                  item_step(w).n_heads};
    struct held_keys none;
    none.there = false;
    decode_run<KIND, KIND == OP_ATTENTION_STEP, true>(c, task, w, &f, n_pieces, &none, hint);
    if (w->piece + n_pieces == w->piece_end && c->warp == WARPS - 1)
        heads_keep(c, task, w, head_at(f.key), head_at(f.key + 1));
    decode_release(c, 1);
}

/* The heads to make for the item that begins here. same_head: its queries are already in
 * scratch. */
template <uint32_t KIND>
DEV struct heads_range decode_heads_of(const struct attention_item *w, bool same_head) {
    const uint32_t n_heads = item_step(w).n_heads;
    return {same_head ? n_heads : 0, n_heads + 2 * item_fresh(w, decode_pieces<KIND>(w))};
}

/* The warp's head among those from number `from` on. */
template <uint32_t KIND>
DEV struct item_head decode_head_of(const struct warp_context *c, const struct cuda_task *task,
                                    const struct attention_item *w, uint32_t from) {
    const uint32_t n = decode_pieces<KIND>(w);
    return item_head_of(c, task, w, item_end(w, n), item_fresh(w, n), from + c->warp);
}

/* Runs the items from *w on, in STEP up to the next run, whose queries it makes. heads: those still
 * to make for *w; h: the warp's first one. All warps meet after each item, so no warp still reads
 * the heads before. */
template <uint32_t KIND>
DEV void decode_items(struct warp_context *c, const struct cuda_task *task,
                      struct attention_item *w, struct heads_range heads, struct item_head h,
                      uint32_t *hint) {
#pragma unroll 1
    while (w->left > 0) {
        if (h.there) head_make(c, &h);
        heads.from += WARPS;
        if (heads.from >= heads.end) {
            sync_compute();
#pragma unroll 1
            do {
                if (KIND == OP_ATTENTION_STEP && item_begins_run(w)) return;
                const uint32_t n = decode_pieces<KIND>(w), row = w->row, head = w->head;
                decode_item<KIND>(c, task, w, n, w->left == n ? hint : nullptr);
                items_skip(SHARED, w, n);
                const bool same_head = w->row == row && w->head == head;
                heads = decode_heads_of<KIND>(w, KIND == OP_ATTENTION_STEP && same_head);
            } while (w->left > 0 && heads.from >= heads.end);
        }
        h = decode_head_of<KIND>(c, task, w, heads.from);
    }
}

/* Finds its work before the event. Heads poll their operands until these have arrived. */
DEV bool run_decode_whole(struct warp_context *c, const struct cuda_task *task) {
    uint32_t *hint = task_hint(c, task);
    struct attention_item w = items_first(c, task);
    const struct heads_range heads = decode_heads_of<OP_ATTENTION_WHOLE>(&w, false);
    const struct item_head h = decode_head_of<OP_ATTENTION_WHOLE>(c, task, &w, 0);
    const bool traced = c->thread == 0 && trace_wanted(SHARED);
    if (!wait_data(c, task)) return false;
    if (UNLIKELY(traced)) trace(SHARED, RT_TRACE_READY, task->index);
    if (w.left == 0 && hint != nullptr) add_relaxed_gpu(hint, 1);
    decode_items<OP_ATTENTION_WHOLE>(c, task, &w, heads, h, hint);
    return true;
}

/* A task with at most one item of at most N pieces, of which the ring holds all, where each row is
 * of another request. With narrow heads the row's own key and value go straight to their page.
 * KIND: ATTENTION_WHOLE, or ATTENTION_STEP, of which an item has one piece. */
template <uint32_t KIND, int N>
DEV bool run_decode_one(struct warp_context *c, const struct cuda_task *task) {
    static_assert(N == 1 || (KIND == OP_ATTENTION_WHOLE && N <= RING_DEPTH), "resident pieces");
    const struct attention_item w = items_first(c, task);
    const bool fresh = KIND == OP_ATTENTION_WHOLE || w.piece + 1 == w.piece_end;
    const bool idle = w.left == 0;
    const uint32_t n = N == 1 || idle ? 1 : w.piece_end - w.piece;
    char *page = one_page(c, &w, n - 1);
    struct item_head h = item_head_alone(c, task, &w, fresh, c->warp, 0, page);
    uint32_t *hint = task_hint(c, task);
    const bool traced = c->thread == 0 && trace_wanted(SHARED);
    struct held_keys held;
    held.there = false;
    if (SHARE_PAGES == 1 && !idle) one_begin<N>(c, &w, n);
    if (SHARE_PAGES == 1) decode_hold(c, !idle && decode_is_old(c, &w), &held);
    if (!wait_data(c, task)) return false;
    if (UNLIKELY(traced)) trace(SHARED, RT_TRACE_READY, task->index);
    if (idle && hint != nullptr) add_relaxed_gpu(hint, 1);
    if (idle) return true;
#pragma unroll 1
    while (h.there) {
        head_make(c, &h);
        if (SUB_HEADS + 2 <= WARPS) break; /* one per warp */
        h = item_head_alone(c, task, &w, fresh, h.i + WARPS, 0, page);
    }
    sync_compute();
    decode_one<KIND, N>(c, task, &w, n, fresh, &held, hint);
    return true;
}

#endif
