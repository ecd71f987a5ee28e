/* attention_decode.cuh - DECODE: the attention of few token rows, ATTENTION_STEP and
 * ATTENTION_WHOLE, from the projections on.
 *
 * An item is a token row, a KV head and some of its pieces: in WHOLE all of them, in STEP as many
 * as are at hand. WHOLE gives the output of the head, STEP a part for each piece, which
 * ATTENTION_MERGE merges (attention_merge.cuh). It is the longest stretch between two operators
 * of a layer, few blocks work and all others wait, so what there is to do is found before the
 * event.
 *
 *   before the event   the task's first item, the warp's head: what turns it, where its elements
 *                      come from. ONE: the share's keys and values into registers
 *   after it           a head a warp ─ barrier ─ the warp's shares of up to DECODE_BATCH pieces,
 *                      outputs left in their pages ─ barrier ─ each thread has two columns of a
 *                      head, adds up shares in order, in WHOLE pieces in order, too ─ barrier ─ the
 *                      pages are given back
 *
 * ONE is the decoding of a single row: a task has one piece at most, and the iteration adds one
 * position. Else an item may be of a prompt's row: then it makes keys and values of the rows before
 * it, too, since other tasks may have those.
 *
 * Bytes: k and v of the pieces, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch:   0              max, sum [piece of a batch][16 rows][share]
 *            DECODE_SLOTS   slots of the shares' pages [piece of a batch][share]
 *            DECODE_HEADS   attention_heads.cuh
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_DECODE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_DECODE_CUH

#include "kernels/cuda/attention/attention_heads.cuh"
#include "kernels/cuda/attention/attention_share.cuh"

/* Pairs of columns that a thread merges. */
enum { DECODE_PAIRS = (SUB_HEADS * QN_HEAD_DIM / 2 + COMPUTE_THREADS - 1) / COMPUTE_THREADS };

/* Of row m of piece number i of the batch: eight shares' maxima; sums are DECODE_STATES further. */
DEV float *decode_states(uint32_t i, uint32_t m) {
    return (float *)SCRATCH + (i * 16 + m) * WARPS;
}

DEV uint32_t *decode_slots(uint32_t i) {
    return (uint32_t *)(SCRATCH + DECODE_SLOTS) + i * WARPS;
}

/* The warp's share of every piece. */
DEV uint32_t decode_share_of(const struct warp_context *c) {
    return (c->warp - c->turn) % WARPS;
}

/* The task's first item. Slices are the same in every layer of one window, so the last one is kept
 * for the iteration: finding it takes divisions of 64 bits. */
DEV struct attention_item decode_first(const struct warp_context *c, const struct cuda_task *task) {
    struct block_shared *b = SHARED;
    const uint32_t window = task_window(task);
    const uint64_t key = (uint64_t)items_key(task->kind, window, task->unit0) << 32 | b->flag;
    struct warp_state *mine = &b->warp[c->warp];
    if (mine->list_key == key) return mine->item;
    const struct attention_item w =
        items_begin(b, task, items_load(b, c->lane, task->kind, window));
    __syncwarp(); /* all lanes have seen the old key */
    if (c->lane == 0) {
        mine->item = w;
        mine->list_key = key;
    }
    __syncwarp();
    return w;
}

/* ---- a share ---- */

/* Of the share that begins at `first`, positions that the iteration adds lie in scratch: of the
 * last one before `end` the key as head number `key`, then its value, and so on. */
DEV void decode_at_fresh(const struct warp_context *c, uint32_t fresh, uint32_t end, uint32_t first,
                         uint32_t key, struct share_at *at) {
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t i = end - 1 - first - share_key_row(c, u);
        if (i < end - fresh) at->k[u] = (const char *)head_at(key + 2 * i);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint32_t i = end - 1 - first - share_value_row(c, n);
        if (i < end - fresh) at->v[n] = (const char *)head_at(key + 2 * i + 1);
    }
}

/* A share's keys and values. */
struct held_kv {
    struct share_kv of;
    bool there;
};

/* Those of the warp's next page, if it is wanted and has come. What is loaded otherwise is not
 * looked at: the compiler spills arrays that are loaded or not. */
DEV void decode_hold(const struct warp_context *c, bool wanted, struct held_kv *x) {
    static_assert(sizeof(struct cuda_args) >= QN_HEAD_DIM * 2, "something to load");
    const uint32_t slot = page_slot(c->warp, c->page);
    const bool come = barrier_test_acquire_cta(&SHARED->page_full[slot], page_parity(c->page));
    const char *page = RING + slot * CUDA_PAGE_BYTES, *other = (const char *)&SHARED->args;
    struct share_at at = share_at_of(c, page, page + SHARE_BYTES);
    x->there = wanted && __all_sync(~0u, come);
#pragma unroll
    for (int u = 0; u < 2; u++) at.k[u] = x->there ? at.k[u] : other;
#pragma unroll
    for (int n = 0; n < 4; n++) at.v[n] = x->there ? at.v[n] : other;
    share_keys(c, at.k, x->of.k);
    share_values(c, at.v, x->of.v);
}

/* The position that the iteration adds, number `fresh`, to a share that is held: it lies in
 * scratch, the key as head number `key`, then the value. */
DEV void decode_hold_fresh(const struct warp_context *c, uint32_t fresh, uint32_t key,
                           struct held_kv *x) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t row = share_key_row(c, u), d = 32 * i + c->lane % 4 * 8;
            shared_load16_if(row == fresh && d < QN_HEAD_DIM, head_at(key) + key_at(row, d),
                             &x->of.k[u][i]);
        }
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t row = share_value_row(c, n), d = 64 * i + c->lane / 4 * 8;
            shared_load16_if(row == fresh && d < QN_HEAD_DIM, head_at(key + 1) + value_at(row, d),
                             &x->of.v[i][n]);
        }
}

/* A share's maxima and sums, and the slot of its outputs, into scratch. */
DEV void decode_put(const struct warp_context *c, const float max[2], const float sum[2],
                    uint32_t i, uint32_t share, uint32_t slot) {
    if (c->lane == 0) decode_slots(i)[share] = slot;
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            float *to = decode_states(i, c->lane / 4 + 8 * h) + share;
            to[0] = max[h];
            to[DECODE_STATES] = sum[h];
        }
}

/* The warp's share of piece number i of the batch, which begins at `first`, where a page holds it.
 * Positions [fresh, end) are in scratch. x: its keys and values, if they are there. */
DEV void decode_share_narrow(const struct warp_context *c, const struct attention_item *w,
                             uint32_t fresh, uint32_t end, const struct attention_rows *rows,
                             uint32_t first, uint32_t i, struct held_kv *x) {
    const uint32_t slot = page_acquire_after(c, i), key = item_step(w).n_heads;
    const uint32_t last = w->hi - 1 - first; /* of the positions that the row sees */
    char *page = RING + slot * CUDA_PAGE_BYTES;
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    if (!item_sees(w, first)) {
        share_nothing(c, (float *)page);
    } else {
        float p[2][4];
        if (x->there) {
            if (last < SHARE_POSITIONS) decode_hold_fresh(c, last, key, x);
        } else {
            struct share_at at = share_at_of(c, page, page + SHARE_BYTES);
            decode_at_fresh(c, fresh, end, first, key, &at);
            share_keys(c, at.k, x->of.k);
            share_values(c, at.v, x->of.v);
        }
        if (last < SHARE_POSITIONS) share_clear(c, last, &x->of);
        piece_scores(rows, x->of.k, p);
        piece_softmax<HEAD_HALVES>(c, rows, first, p, max, sum);
        __syncwarp(); /* all lanes have read the page */
        share_outputs(c, x->of.v, p, (float *)page);
    }
    decode_put(c, max, sum, i, decode_share_of(c), slot);
}

/* The same where keys and values have a page each. That of the keys is given back at once. */
DEV void decode_share_wide(struct warp_context *c, const struct attention_item *w, uint32_t fresh,
                           uint32_t end, const struct attention_rows *rows, uint32_t first,
                           struct share_kv *x) {
    const uint32_t key = item_step(w).n_heads, last = w->hi - 1 - first;
    const bool sees = item_sees(w, first);
    const char *keys = (const char *)page_acquire(c);
    float p[2][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    if (sees) {
        struct share_at at = share_at_of(c, keys, keys);
        decode_at_fresh(c, fresh, end, first, key, &at);
        share_keys(c, at.k, x->k);
        piece_scores(rows, x->k, p);
        piece_softmax<HEAD_HALVES>(c, rows, first, p, max, sum);
    }
    page_release(c);
    const uint32_t slot = page_acquire_after(c, 0);
    char *page = RING + slot * CUDA_PAGE_BYTES;
    if (sees) {
        struct share_at at = share_at_of(c, page, page);
        decode_at_fresh(c, fresh, end, first, key, &at);
        share_values(c, at.v, x->v);
        if (last < SHARE_POSITIONS) share_clear(c, last, x);
        __syncwarp(); /* all lanes have read the page */
        share_outputs(c, x->v, p, (float *)page);
    } else {
        share_nothing(c, (float *)page);
    }
    decode_put(c, max, sum, 0, decode_share_of(c), slot);
}

DEV void decode_share(struct warp_context *c, const struct attention_item *w, uint32_t fresh,
                      uint32_t end, const struct attention_rows *rows, uint32_t piece, uint32_t i,
                      struct held_kv *x) {
    const uint32_t first = piece * ATTENTION_PIECE + SHARE_POSITIONS * decode_share_of(c);
    if (SHARE_PAGES == 1)
        decode_share_narrow(c, w, fresh, end, rows, first, i, x);
    else
        decode_share_wide(c, w, fresh, end, rows, first, &x->of);
}

/* ---- merging ---- */

DEV void decode_eight(const float *from, float v[WARPS]) {
    static_assert(WARPS == 8, "two vectors");
    const float4 lo = *(const float4 *)from, hi = *(const float4 *)(from + 4);
    v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
    v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
}

/* Columns d and d + 1 of row m of piece number i of the batch, maximum and sum of the row: added up
 * over the shares in order. */
struct decode_piece {
    float max, sum;
    float2 out;
};
DEV struct decode_piece decode_piece_of(uint32_t i, uint32_t m, uint32_t d) {
    float max[WARPS], sum[WARPS], slot[WARPS];
    float2 v[WARPS];
    decode_eight((const float *)decode_slots(i), slot);
#pragma unroll
    for (int s = 0; s < WARPS; s++) {
        const char *page = RING + __float_as_uint(slot[s]) * CUDA_PAGE_BYTES;
        v[s] = *(const float2 *)((const float *)page + share_out_at(m, d));
    }
    decode_eight(decode_states(i, m), max);
    decode_eight(decode_states(i, m) + DECODE_STATES, sum);
    struct decode_piece p = {max[0], 0, make_float2(-0.0f, -0.0f)};
#pragma unroll
    for (int s = 1; s < WARPS; s++) p.max = fmaxf(p.max, max[s]);
#pragma unroll
    for (int s = 0; s < WARPS; s++) {
        const float factor = warp_factor(max[s], p.max);
        p.sum = fmaf(sum[s], factor, p.sum);
        p.out.x = share_add(p.out.x, v[s].x, factor);
        p.out.y = share_add(p.out.y, v[s].y, factor);
    }
    return p;
}

/* A head so far, two columns of it. */
struct decode_state {
    float max, sum;
    float2 out;
};

/* Adds a piece to what came before. */
DEV void decode_merge(const struct decode_piece *p, struct decode_state *y) {
    const struct merge f = merge_factors(y->max, y->sum, p->max);
    y->out.x = merge_value(&f, y->out.x, p->out.x);
    y->out.y = merge_value(&f, y->out.y, p->out.y);
    y->sum = merge_value(&f, y->sum, p->sum);
    y->max = f.max;
}

/* Row of the item and columns that a thread has as its pair number u; beyond the last row nothing.
 */
struct decode_place {
    uint32_t m, d;
};
DEV struct decode_place decode_place_of(const struct warp_context *c, int u) {
    const uint32_t i = c->thread + u * COMPUTE_THREADS;
    return {i / (QN_HEAD_DIM / 2), i % (QN_HEAD_DIM / 2) * 2};
}

/* A row of the item, counted over all rows' heads. */
DEV uint64_t decode_head(const struct attention_item *w, uint32_t m) {
    return (uint64_t)w->row * QN_N_HEADS + item_step(w).head0 + m;
}

DEV void decode_output(const struct cuda_task *task, uint64_t head, uint32_t d,
                       const struct decode_state *y) {
    const float by = reciprocal_fast(y->sum);
    output_store2(task, head, d, make_float2(y->out.x * by, y->out.y * by));
}

/* A piece of a head to where ATTENTION_MERGE finds it: to parts[rows, n_heads, n_pieces,
 * STATE_SIZE]. */
DEV void decode_part(struct operand parts, uint32_t n_pieces, uint64_t head, uint32_t piece,
                     uint32_t d, const struct decode_piece *p) {
    const struct operand to = operand_from(parts, (head * n_pieces + piece) * STATE_SIZE);
    if (d == 0) operand_put2(to, make_float2(p->max, p->sum));
    operand_put2(operand_from(to, 2 + d), p->out);
}

/* The pages of n pieces, which all warps have read and written. */
DEV void decode_release(struct warp_context *c, uint32_t n) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < n; i++) page_release(c);
}

/* ---- one piece of a single row ---- */

/* x: the share's keys and values, if they are there. */
template <uint32_t KIND>
DEV void decode_one(struct warp_context *c, const struct cuda_task *task,
                    const struct attention_item *w, struct held_kv *x, uint32_t *hint) {
    const struct attention_step s = item_step(w);
    struct attention_rows rows;
    item_queries(c, w, 0, s.n_heads, &rows);
    decode_share(c, w, w->hi - 1, w->hi, &rows, w->piece, 0, x);
    sync_compute();
    if (hint != nullptr) add_relaxed_gpu(hint, 1);
    /* Not before: registers are short. */
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
    const uint32_t n_pieces = task->n_pieces;
#pragma unroll
    for (int u = 0; u < DECODE_PAIRS; u++) {
        const struct decode_place p = decode_place_of(c, u);
        if (p.m >= s.n_heads) continue;
        const struct decode_piece piece = decode_piece_of(0, p.m, p.d);
        if (KIND == OP_ATTENTION_WHOLE) {
            struct decode_state y = {};
            decode_merge(&piece, &y);
            decode_output(task, decode_head(w, p.m), p.d, &y);
        } else {
            decode_part(parts, n_pieces, decode_head(w, p.m), w->piece, p.d, &piece);
        }
    }
    decode_release(c, 1);
}

/* ---- items ---- */

/* Pieces of the item that begins here. STEP, of which the ring does not hold the rest of the task:
 * one, so that the next ones come meanwhile. */
template <uint32_t KIND> DEV uint32_t decode_pieces(const struct attention_item *w) {
    if (KIND == OP_ATTENTION_WHOLE) return w->piece_end - w->piece;
    return w->left > DECODE_BATCH ? 1 : min(w->left, w->piece_end - w->piece);
}

/* A batch of n pieces, the item's from number `at` on, whose shares are in their pages. */
template <uint32_t KIND>
DEV void decode_batch(const struct warp_context *c, const struct cuda_task *task,
                      const struct attention_item *w, uint32_t at, uint32_t n, bool last,
                      struct decode_state y[DECODE_PAIRS]) {
    const struct operand parts = operand_of(task->out, task, CUDA_OUT_FLAGGED);
#pragma unroll
    for (int u = 0; u < DECODE_PAIRS; u++) {
        const struct decode_place p = decode_place_of(c, u);
        if (p.m >= item_step(w).n_heads) continue;
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            const struct decode_piece piece = decode_piece_of(i, p.m, p.d);
            if (KIND == OP_ATTENTION_WHOLE)
                decode_merge(&piece, &y[u]);
            else
                decode_part(parts, task->n_pieces, decode_head(w, p.m), w->piece + at + i, p.d,
                            &piece);
        }
        if (KIND == OP_ATTENTION_WHOLE && last)
            decode_output(task, decode_head(w, p.m), p.d, &y[u]);
    }
}

/* An item, whose heads are made. hint: NULL, or it is the task's last one. */
template <uint32_t KIND>
DEV void decode_item(struct warp_context *c, const struct cuda_task *task,
                     const struct attention_item *w, uint32_t n_pieces, uint32_t *hint) {
    const uint32_t end = KIND == OP_ATTENTION_WHOLE ? w->hi : item_end(w, n_pieces);
    const uint32_t fresh = KIND == OP_ATTENTION_WHOLE ? w->fresh : min(w->fresh, end);
    struct attention_rows rows;
    struct decode_state y[DECODE_PAIRS] = {};
    if (SHARE_PAGES == 1) item_queries(c, w, 0, item_step(w).n_heads, &rows);
#pragma unroll 1
    for (uint32_t at = 0, n; at < n_pieces; at += n) {
        n = min(n_pieces - at, (uint32_t)DECODE_BATCH);
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            struct held_kv x;
            x.there = false;
            /* Too many for registers to hold from share to share. */
            if (SHARE_PAGES > 1) item_queries(c, w, 0, item_step(w).n_heads, &rows);
            decode_share(c, w, fresh, end, &rows, w->piece + at + i, i, &x);
        }
        sync_compute();
        const bool last = at + n == n_pieces;
        if (last && hint != nullptr) add_relaxed_gpu(hint, 1);
        decode_batch<KIND>(c, task, w, at, n, last, y);
        if (last && w->piece + n_pieces == w->piece_end && c->warp == WARPS - 1)
            heads_keep(c, task, w, 0);
        decode_release(c, n);
    }
}

/* What is to be made for the item that begins here. same_head: its queries are there. */
template <uint32_t KIND>
DEV struct heads_range decode_heads_of(const struct attention_item *w, bool same_head) {
    const uint32_t n_heads = item_step(w).n_heads;
    return {same_head ? n_heads : 0, n_heads + 2 * item_fresh(w, decode_pieces<KIND>(w))};
}

/* The warp's head in a pass over them. */
template <uint32_t KIND>
DEV struct item_head decode_head_of(const struct warp_context *c, const struct cuda_task *task,
                                    const struct attention_item *w, uint32_t from) {
    const uint32_t n = decode_pieces<KIND>(w);
    return item_head_of(c, task, w, item_end(w, n), item_fresh(w, n), from + c->warp);
}

/* Items from *w on, whose heads are to be made, with h as the warp's first; up to a run of STEP's,
 * of which the queries are there. All warps meet after each item, so no warp reads the heads before
 * any more. */
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

/* What there is to do is found before the event; heads are made of what says itself when it is
 * there. */
DEV bool run_decode_whole(struct warp_context *c, const struct cuda_task *task) {
    uint32_t *hint = task_hint(c, task);
    struct attention_item w = decode_first(c, task);
    const struct heads_range heads = decode_heads_of<OP_ATTENTION_WHOLE>(&w, false);
    const struct item_head h = decode_head_of<OP_ATTENTION_WHOLE>(c, task, &w, 0);
    const bool traced = c->thread == 0 && trace_wanted(SHARED);
    if (!wait_data(c, task)) return false;
    if (UNLIKELY(traced)) trace(SHARED, RT_TRACE_READY, task->index);
    if (w.left == 0 && hint != nullptr) add_relaxed_gpu(hint, 1);
    decode_items<OP_ATTENTION_WHOLE>(c, task, &w, heads, h, hint);
    return true;
}

/* A task of a single row that has one item of one piece at most. KIND: ATTENTION_WHOLE or _STEP. */
template <uint32_t KIND>
DEV bool run_decode_one(struct warp_context *c, const struct cuda_task *task) {
    const struct attention_item w = decode_first(c, task);
    const bool fresh = KIND == OP_ATTENTION_WHOLE || w.piece + 1 == w.piece_end;
    struct item_head h = item_head_alone(c, task, &w, fresh, c->warp);
    uint32_t *hint = task_hint(c, task);
    const bool traced = c->thread == 0 && trace_wanted(SHARED), idle = w.left == 0;
    struct held_kv held;
    held.there = false;
    if (SHARE_PAGES == 1) decode_hold(c, !idle, &held);
    if (!wait_data(c, task)) return false;
    if (UNLIKELY(traced)) trace(SHARED, RT_TRACE_READY, task->index);
    if (idle && hint != nullptr) add_relaxed_gpu(hint, 1);
    if (idle) return true;
#pragma unroll 1
    while (h.there) {
        head_make(c, &h);
        if (SUB_HEADS + 2 <= WARPS) break; /* one each */
        h = item_head_alone(c, task, &w, fresh, h.i + WARPS);
    }
    sync_compute();
    decode_one<KIND>(c, task, &w, &held, hint);
    if (fresh && c->warp == WARPS - 1) heads_keep(c, task, &w, 0);
    return true;
}

#endif
