/* attention_row.cuh - ATTENTION_WHOLE of an iteration each of whose token rows is another
 * request's: decode. And ATTENTION_STEP of a single row, as long as no task has more than one
 * piece; WHOLE of one piece likewise.
 *
 * The same items and numbers as attention_whole.cuh and attention_split.cuh, in code that takes as
 * given what such rows are: the iteration adds one position to each, what there is to do is known
 * before the event. It is the longest stretch between two operators of a layer, few blocks work and
 * all others wait, so it is written as matvec.cuh is: straight on, constants, addresses found
 * before.
 *
 *   before the event   the task's first item, the warp's head: what turns it, where its elements
 *                      come from; of a task of one piece the share's keys and values into registers
 *   after it           a head a warp ─ barrier ─ shares of up to RING_DEPTH pieces, outputs left
 *                      in their pages ─ barrier ─ each thread has two columns of a head, adds up
 *                      shares in order; of WHOLE pieces in order, too
 *
 * Bytes: k and v of the context, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch:   0           max, sum [piece of a batch][16 rows][share]
 *            ROW_SLOTS   slots of the shares' pages [piece of a batch][share]
 *            STEP_HEADS  queries [SUB_HEADS][head_dim], key, value, of 16 bits
 */
#ifndef QN_CUDA_COMMON_ATTENTION_ROW_CUH
#define QN_CUDA_COMMON_ATTENTION_ROW_CUH

#include "kernels/cuda/common/attention_whole.cuh"

#if KV_PAGES

enum {
    ROW_STATES = WHOLE_BATCH * WARPS * 16, /* maxima, or sums, of a batch */
    ROW_SLOTS = 2 * ROW_STATES * 4,
};
static_assert(ROW_SLOTS + WHOLE_BATCH * WARPS * 4 <= STEP_HEADS, "scratch");

/* Of row m of piece number i of the batch: eight shares' maxima; sums are ROW_STATES further. */
DEV float *row_states(uint32_t i, uint32_t m) {
    return (float *)SCRATCH + (i * 16 + m) * WARPS;
}

DEV uint32_t *row_slots(uint32_t i) {
    return (uint32_t *)(SCRATCH + ROW_SLOTS) + i * WARPS;
}

/* The head that a warp makes: number i of the item's queries, then, if the item has the position
 * that the iteration adds, key and value; beyond them none. */
struct row_head {
    uint32_t i, unit; /* unit: of qkv */
    bool there, is_value;
    struct act elements;
    struct head_turn turn;
};

DEV struct row_head row_head_of(const struct warp_context *c, const struct cuda_task *task,
                                const struct kv_walk *w, bool fresh, uint32_t i) {
    const struct attention_step s = split_step(w);
    struct row_head h = {};
    h.i = i;
    h.there = w->left > 0 && i < s.n_heads + (fresh ? 2 : 0);
    h.is_value = i == s.n_heads + 1;
    h.unit =
        i < s.n_heads ? s.head0 + i : QN_N_HEADS + s.kv_head + (h.is_value ? QN_N_KV_HEADS : 0);
    if (!h.there) return h;
    h.elements = act_from(act_of(task->in, task, CUDA_IN_FLAGGED),
                          ((uint64_t)w->row * QKV_HEADS + h.unit) * QN_HEAD_DIM);
    h.turn = head_turn_of(c, (const float *)(i < s.n_heads ? task->norm : task->more2), h.is_value,
                          w->hi - 1);
    return h;
}

/* A head's elements, normed and turned, into scratch, the item's heads from number `first` on: a
 * has the first ones of the lane's pairs, b the second. Queries lie as keys do: head i is read
 * beside the next. */
DEV void row_head_put(const struct warp_context *c, const struct kv_walk *w,
                      const struct row_head *h, uint32_t first, float *a, float *b) {
    head_turn_apply(c, &h->turn, h->is_value, a, b);
    const uint32_t place = h->unit < QN_N_HEADS ? h->i : w->hi - 1;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++)
        if (c->lane + 32 * u < HALF_DIM)
            kv_store(step_head(first + h->i), h->is_value, place, c->lane + 32 * u, a[u], b[u]);
}

DEV void row_head_make(const struct warp_context *c, const struct kv_walk *w,
                       const struct row_head *h) {
    float a[LANE_PAIRS], b[LANE_PAIRS];
    step_load(c, h->elements, a, b);
    row_head_put(c, w, h, 0, a, b);
}

/* The item's key and value from scratch, where its heads begin with number `first`, into the cache,
 * where they lie as they do here; by one warp.
 */
DEV void row_keep(const struct warp_context *c, const struct cuda_task *task,
                  const struct kv_walk *w, uint32_t first) {
    const struct attention_step s = split_step(w);
    uint16_t *to = (uint16_t *)task->more + (uint64_t)row_kv_row(SHARED, w->row) * QN_HEAD_DIM +
                   (uint64_t)s.kv_head * KV_HEAD_STRIDE;
#pragma unroll 1
    for (uint32_t i = c->lane; i < 2 * (QN_HEAD_DIM / 8); i += 32) {
        const uint32_t value = i / (QN_HEAD_DIM / 8), chunk = i % (QN_HEAD_DIM / 8);
        *(uint4 *)(to + value * KV_VALUE_STRIDE + 8 * chunk) =
            *(const uint4 *)(step_head(first + s.n_heads + value) + 8 * chunk);
    }
}

/* The share's position number `fresh`, if it has that, is the one that the iteration adds: it lies
 * in scratch, the key as head number `key`, then the value. */
DEV void row_at_fresh(const struct warp_context *c, uint32_t fresh, uint32_t key,
                      struct split_at *at) {
#pragma unroll
    for (int u = 0; u < 2; u++)
        if (split_key_row(c, u) == fresh) at->k[u] = (const char *)step_head(key);
#pragma unroll
    for (int n = 0; n < 4; n++)
        if (split_value_row(c, n) == fresh) at->v[n] = (const char *)step_head(key + 1);
}

/* A share's keys and values. */
struct row_kv {
    struct split_kv of;
    bool there;
};

/* Those of the warp's next page, if it is wanted and has come. What is loaded otherwise is not
 * looked at: the compiler spills arrays that are loaded or not. */
DEV void row_hold(const struct warp_context *c, bool wanted, struct row_kv *x) {
    static_assert(sizeof(struct cuda_args) >= QN_HEAD_DIM * 2, "something to load");
    const uint32_t slot = page_slot(c->warp, c->page);
    const bool come = barrier_test_acquire_cta(&SHARED->page_full[slot], page_parity(c->page));
    const char *page = RING + slot * CUDA_PAGE_BYTES, *other = (const char *)&SHARED->args;
    struct split_at at = split_at_of(c, page, page + SHARE_BYTES);
    x->there = wanted && __all_sync(~0u, come);
#pragma unroll
    for (int u = 0; u < 2; u++) at.k[u] = x->there ? at.k[u] : other;
#pragma unroll
    for (int n = 0; n < 4; n++) at.v[n] = x->there ? at.v[n] : other;
    split_keys(c, at.k, x->of.k);
    split_values(c, at.v, x->of.v);
}

/* The position that the iteration adds, number `fresh`, to a share that is held: it lies in
 * scratch, the key as head number `key`, then the value. */
DEV void row_hold_fresh(const struct warp_context *c, uint32_t fresh, uint32_t key,
                        struct row_kv *x) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t row = split_key_row(c, u), d = 32 * i + c->lane % 4 * 8;
            shared_load16_if(row == fresh && d < QN_HEAD_DIM, step_head(key) + key_at(row, d),
                             &x->of.k[u][i]);
        }
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t row = split_value_row(c, n), d = 64 * i + c->lane / 4 * 8;
            shared_load16_if(row == fresh && d < QN_HEAD_DIM, step_head(key + 1) + value_at(row, d),
                             &x->of.v[i][n]);
        }
}

/* A share's outputs into its page, which all lanes have read, maxima and sums into scratch. */
DEV void row_put(const struct warp_context *c, const struct attention_part *part, uint32_t i,
                 uint32_t share, uint32_t slot, char *page) {
    whole_put(c, part, (float *)page);
    if (c->lane == 0) row_slots(i)[share] = slot;
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            float *to = row_states(i, c->lane / 4 + 8 * h) + share;
            to[0] = part->max[h];
            to[ROW_STATES] = part->sum[h];
        }
}

/* The warp's share of piece number i of the batch, which is the walk's. x: its keys and values, if
 * they are there. */
DEV void row_share(const struct warp_context *c, const struct kv_walk *w,
                   const struct attention_rows *rows, uint32_t piece, uint32_t share, uint32_t i,
                   struct row_kv *x) {
    const uint32_t first = piece * ATTENTION_PIECE + SHARE_POSITIONS * share;
    const uint32_t slot = page_acquire_after(c, i), key = split_step(w).n_heads;
    char *page = RING + slot * CUDA_PAGE_BYTES;
    const uint32_t fresh = w->hi - 1 - first; /* the position that the iteration adds */
    struct attention_part part;
    if (first >= w->hi || first + SHARE_POSITIONS <= w->lo) {
        part_clear(&part);
    } else {
        if (x->there) {
            if (fresh < SHARE_POSITIONS) row_hold_fresh(c, fresh, key, x);
        } else {
            struct split_at at = split_at_of(c, page, page + SHARE_BYTES);
            row_at_fresh(c, fresh, key, &at);
            split_keys(c, at.k, x->of.k);
            split_values(c, at.v, x->of.v);
        }
        if (fresh < SHARE_POSITIONS) split_clear(c, fresh, &x->of);
        split_attend(c, rows, &x->of, first, &part);
        __syncwarp(); /* all lanes have read the page */
    }
    row_put(c, &part, i, share, slot, page);
}

DEV void row_eight(const float *from, float v[WARPS]) {
    static_assert(WARPS == 8, "two vectors");
    const float4 lo = *(const float4 *)from, hi = *(const float4 *)(from + 4);
    v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
    v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
}

/* Columns d and d + 1 of row m of piece number i of the batch, maximum and sum of the row: added up
 * over the shares in order. */
struct row_piece {
    float max, sum;
    float2 out;
};
DEV struct row_piece row_piece_of(uint32_t i, uint32_t m, uint32_t d) {
    float max[WARPS], sum[WARPS], slot[WARPS];
    float2 v[WARPS];
    row_eight((const float *)row_slots(i), slot);
#pragma unroll
    for (int s = 0; s < WARPS; s++) {
        const char *page = RING + __float_as_uint(slot[s]) * CUDA_PAGE_BYTES;
        v[s] = *(const float2 *)((const float *)page + whole_at(m, d));
    }
    row_eight(row_states(i, m), max);
    row_eight(row_states(i, m) + ROW_STATES, sum);
    struct row_piece p = {max[0], 0, make_float2(-0.0f, -0.0f)};
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

/* Adds a piece to what came before. */
DEV void row_merge(const struct row_piece *p, struct whole_state *y) {
    const struct merge f = merge_factors(y->max, y->sum, p->max);
    y->out.x = merge_value(&f, y->out.x, p->out.x);
    y->out.y = merge_value(&f, y->out.y, p->out.y);
    y->sum = merge_value(&f, y->sum, p->sum);
    y->max = f.max;
}

/* A row and KV head: pieces, then the output. */
DEV void row_item(struct warp_context *c, const struct cuda_task *task, const struct kv_walk *w,
                  uint32_t share, uint32_t *hint) {
    const struct attention_step s = split_step(w);
    struct attention_rows rows;
    struct whole_state y[WHOLE_PAIRS] = {};
    step_rows(c, w, 0, s.n_heads, &rows);
#pragma unroll 1
    for (uint32_t at = w->piece, n; at < w->piece_end; at += n) {
        n = min(w->piece_end - at, (uint32_t)WHOLE_BATCH);
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            struct row_kv x;
            x.there = false;
            row_share(c, w, &rows, at + i, share, i, &x);
        }
        sync_compute();
        const bool last = at + n == w->piece_end;
        if (last && hint != nullptr) add_relaxed_gpu(hint, 1);
#pragma unroll
        for (int u = 0; u < WHOLE_PAIRS; u++) {
            const struct whole_place p = whole_place_of(c, u);
            if (p.m >= s.n_heads) continue;
#pragma unroll 1
            for (uint32_t i = 0; i < n; i++) {
                const struct row_piece piece = row_piece_of(i, p.m, p.d);
                row_merge(&piece, &y[u]);
            }
            const float by = reciprocal_fast(y[u].sum);
            if (last)
                output_store2(task, (uint64_t)w->row * QN_N_HEADS + s.head0 + p.m, p.d,
                              make_float2(y[u].out.x * by, y[u].out.y * by));
        }
        whole_release(c, n);
    }
}

/* An item of one piece: STEP's to where COMBINE finds it, WHOLE's is the output. x: the share's
 * keys and values, if they are there. */
template <uint32_t KIND>
DEV void row_part(struct warp_context *c, const struct cuda_task *task, const struct kv_walk *w,
                  uint32_t share, struct row_kv *x, uint32_t *hint) {
    const struct attention_step s = split_step(w);
    struct attention_rows rows;
    step_rows(c, w, 0, s.n_heads, &rows);
    row_share(c, w, &rows, w->piece, share, 0, x);
    sync_compute();
    if (hint != nullptr) add_relaxed_gpu(hint, 1);
    /* Not before: registers are short. */
    const struct act parts = act_of(task->out, task, CUDA_OUT_FLAGGED);
    const uint32_t n_pieces = task->n_pieces;
#pragma unroll
    for (int u = 0; u < WHOLE_PAIRS; u++) {
        const struct whole_place p = whole_place_of(c, u);
        if (p.m >= s.n_heads) continue;
        const struct row_piece piece = row_piece_of(0, p.m, p.d);
        const uint64_t head = (uint64_t)w->row * QN_N_HEADS + s.head0 + p.m;
        if (KIND == OP_ATTENTION_WHOLE) {
            struct whole_state y = {};
            row_merge(&piece, &y);
            const float by = reciprocal_fast(y.sum);
            output_store2(task, head, p.d, make_float2(y.out.x * by, y.out.y * by));
            continue;
        }
        const struct act to = act_from(parts, (head * n_pieces + w->piece) * STATE_SIZE);
        if (p.d == 0) act_put2(to, make_float2(piece.max, piece.sum));
        act_put2(act_from(to, 2 + p.d), piece.out);
    }
    whole_release(c, 1);
}

/* KIND: ATTENTION_WHOLE or _STEP. ONE, which STEP always is: a task has one item of one piece at
 * most. */
template <uint32_t KIND, bool ONE>
DEV bool run_attention_row(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t share = (c->warp - c->turn) % WARPS;
    struct kv_walk w = split_walk(c, task);
    const bool fresh = KIND == OP_ATTENTION_WHOLE || w.piece + 1 == w.piece_end;
    struct row_head h = row_head_of(c, task, &w, fresh, c->warp);
    uint32_t *hint = task_hint(c, task);
    const bool traced = c->thread == 0 && trace_wanted(SHARED), idle = w.left == 0;
    struct row_kv held;
    if (ONE) row_hold(c, !idle, &held);
    if (!wait_data(c, task)) return false;
    if (UNLIKELY(traced)) trace(SHARED, RT_TRACE_READY, task->index);
    if (idle && hint != nullptr) add_relaxed_gpu(hint, 1);
#pragma unroll 1
    while (w.left > 0) {
#pragma unroll 1
        while (h.there) {
            row_head_make(c, &w, &h);
            if (SUB_HEADS + 2 <= WARPS) break; /* one each */
            h = row_head_of(c, task, &w, fresh, h.i + WARPS);
        }
        sync_compute();
        if (ONE)
            row_part<KIND>(c, task, &w, share, &held, hint);
        else
            row_item(c, task, &w, share, w.left == w.piece_end - w.piece ? hint : nullptr);
        if (fresh && c->warp == WARPS - 1) row_keep(c, task, &w, 0);
        if (ONE) break;
        kv_walk_skip(SHARED, &w, w.piece_end - w.piece);
        if (w.left == 0) break;
        h = row_head_of(c, task, &w, fresh, c->warp);
        sync_compute(); /* the heads are read */
    }
    return true;
}

#endif
#endif
