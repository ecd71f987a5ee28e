/* attention_decode_teams.cuh - ATTENTION_WHOLE for decoding many short requests: each token row of
 * the iteration belongs to a different request, each context is one piece, and there are more items
 * than tasks.
 *
 * Such an item is a chain of short operations, and only their latency counts. So the compute warps
 * form two teams. Each team processes an item, and they meet when both are done:
 *
 *   before the event   the team's first item, norm and rotation of the warp's heads
 *   then, per two      heads, whose elements are loaded at once ─ barrier of the team ─ scores of
 *                      two shares per warp, side by side ─ barrier of the team ─ their
 *                      probabilities ─ barrier of the team ─ a quarter of the values' columns per
 *                      warp, shares in order ─ barrier ─ the pages are released
 *
 * It computes the same numbers as attention_decode.cuh.
 *
 * Bytes: k and v of the context, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch:   0           struct piece_shares of each team
 *            DECODE_HEADS  of each team: queries [SUB_HEADS][head_dim] of 16 bits, and the bytes of
 *                          a key and a value, which go to their page instead
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_DECODE_TEAMS_CUH
#define QN_CUDA_ATTENTION_ATTENTION_DECODE_TEAMS_CUH

#include "kernels/cuda/attention/attention_decode.cuh"

enum {
    TEAMS = 2,
    TEAM_WARPS = WARPS / TEAMS,
    TEAM_THREADS = 32 * TEAM_WARPS,
    TEAM_PLACES = SUB_HEADS + 2,
    TEAM_HEADS = (TEAM_PLACES + TEAM_WARPS - 1) / TEAM_WARPS, /* of a warp */
    TEAM_SHARES = WARPS / TEAM_WARPS,
    TEAM_AT_ONCE = 2, /* shares whose values are multiplied side by side */
};

/* Whether teams can run: each needs the pages of an item, and scratch for its heads. */
#define HAS_TEAMS                                                                                  \
    (DECODE_MOST >= TEAMS && TEAM_HEADS <= 3 &&                                                    \
     DECODE_HEADS + (TEAMS * TEAM_PLACES + 7) / 8 * 8 * KV_ROW <= SCRATCH_BYTES)

/* Whether teams run this task. */
DEV bool team_takes(const struct cuda_task *task) {
    return HAS_TEAMS && SHARED->decode_only && SHARED->last_position < ATTENTION_PIECE &&
           SHARED->batch.rows.n_rows * HEAD_STEPS > task->unit1;
}

/* A warp's place in its team. */
struct team {
    uint32_t number, warp, thread; /* team; warp and thread of it */
    uint32_t heads;                /* the first head in scratch */
};
DEV struct team team_of(const struct warp_context *c) {
    const uint32_t number = c->warp / TEAM_WARPS;
    return {number, c->warp % TEAM_WARPS, c->thread % TEAM_THREADS, number * TEAM_PLACES};
}

/* The item with this number, counted over all rows. */
DEV struct attention_item team_item(const struct cuda_task *task, uint32_t number) {
    struct attention_item w = {};
    w.left = w.piece_end = 1;
    w.kind = OP_ATTENTION_WHOLE;
    w.row = number / HEAD_STEPS;
    w.head = number % HEAD_STEPS;
    w.hi = row_position(SHARED, w.row) + 1;
    w.lo = window_start(task_window(task), w.hi - 1);
    return w;
}

/* The page of a share of the team's item, which may be another warp's. Waits until it has
 * arrived. */
DEV char *team_page(const struct warp_context *c, const struct team *f, uint32_t share) {
    const uint32_t warp = (share + c->turn) % WARPS;
    const uint32_t count = page_after(page_of_warp(c, warp), f->number);
    const uint32_t slot = page_slot(warp, count);
    barrier_wait_acquire_cta(&SHARED->page_full[slot], page_parity(count));
    return RING + slot * CUDA_PAGE_BYTES;
}

/* Shares from this position on are not seen, and need not be cleared. */
DEV uint32_t team_end(const struct attention_item *w) {
    constexpr uint32_t some = TEAM_AT_ONCE * SHARE_POSITIONS;
    return (w->hi + some - 1) / some * some;
}

struct team_heads {
    struct item_head head[TEAM_HEADS];
};
DEV struct team_heads team_heads_of(const struct warp_context *c, const struct team *f,
                                    const struct cuda_task *task, const struct attention_item *w) {
    struct team_heads h;
    char *page = team_page(c, f, (w->hi - 1) / SHARE_POSITIONS);
#pragma unroll
    for (int n = 0; n < TEAM_HEADS; n++)
        h.head[n] = item_head_alone(c, task, w, true, f->warp + n * TEAM_WARPS, f->heads, page);
    return h;
}

/* Norms and rotates the warp's heads: queries into scratch, key and value into their page. */
DEV void team_heads_make(const struct warp_context *c, const struct team *f,
                         const struct cuda_task *task, const struct attention_item *w,
                         const struct team_heads *h) {
    enum { EACH = 2 * LANE_PAIRS };
    uint32_t from[TEAM_HEADS * EACH];
    float v[TEAM_HEADS * EACH];
    if (!h->head[0].there) return; /* nor are the others */
#pragma unroll
    for (int n = 0; n < TEAM_HEADS; n++)
#pragma unroll
        for (int u = 0; u < LANE_PAIRS; u++) {
            const uint32_t unit = h->head[n].there ? h->head[n].unit : h->head[0].unit;
            const uint32_t at = (w->row * QKV_HEADS + unit) * QN_HEAD_DIM;
            from[n * EACH + u] = at + min(c->lane + 32 * u, HALF_DIM - 1u);
            from[n * EACH + LANE_PAIRS + u] = from[n * EACH + u] + HALF_DIM;
        }
    operand_load_all(operand_of(task->in, task, CUDA_IN_FLAGGED), from, v);
#pragma unroll
    for (int n = 0; n < TEAM_HEADS; n++)
        if (h->head[n].there) head_put(c, &h->head[n], v + n * EACH, v + n * EACH + LANE_PAIRS);
}

/* Computes scores of the warp's shares of the team's item and publishes the rows' largest ones. */
DEV void team_scores(const struct warp_context *c, const struct team *f,
                     const struct attention_item *w, float p[TEAM_SHARES][2][4]) {
    struct attention_rows rows;
    item_queries(c, w, f->heads, item_step(w).n_heads, &rows);
#pragma unroll
    for (int i = 0; i < TEAM_SHARES; i++) {
        const uint32_t share = f->warp + i * TEAM_WARPS, first = SHARE_POSITIONS * share;
        char *page = team_page(c, f, share);
        struct held_keys x;
        share_unseen(p[i]);
        if (first >= team_end(w)) continue;
        decode_clear(c, w, page + SHARE_BYTES, first);
        x.there = false;
        decode_scores(c, &rows, page, first, &x, p[i]);
    }
#pragma unroll
    for (int i = 0; i < TEAM_SHARES; i++)
        piece_put_most(c, decode_shares(f->number), f->warp + i * TEAM_WARPS, p[i]);
}

/* Computes and stores the output of the team's item. */
DEV void team_attend(const struct warp_context *c, const struct team *f,
                     const struct cuda_task *task, const struct attention_item *w) {
    struct piece_shares *x = decode_shares(f->number);
    constexpr int pairs = decode_columns<TEAM_WARPS>::PAIRS_OF;
    const struct decode_values<TEAM_WARPS> values =
        decode_values_of<TEAM_WARPS>(c, f->warp, f->number);
    struct decode_columns<TEAM_WARPS> y = {};
    float p[TEAM_SHARES][2][4];
    team_scores(c, f, w, p);
    barrier_sync_team<TEAM_THREADS>(f->number);
    piece_most(c, x, y.max);
#pragma unroll
    for (int i = 0; i < TEAM_SHARES; i++)
        piece_put_probs(c, x, f->warp + i * TEAM_WARPS, y.max, p[i]);
    barrier_sync_team<TEAM_THREADS>(f->number);
#pragma unroll
    for (int some = 0; some < WARPS; some += TEAM_AT_ONCE) {
        if (some * SHARE_POSITIONS >= team_end(w)) break;
#pragma unroll
        for (int s = some; s < some + TEAM_AT_ONCE; s++) {
            const uint4 weights = weights_of(x->probs[s][c->lane]);
#pragma unroll
            for (int i = 0; i < pairs; i++)
                share_outputs(weights, decode_value<TEAM_WARPS>(&values, s, i), y.out[i]);
        }
    }
    decode_sums<TEAM_WARPS>(c, x, &y);
    decode_store<TEAM_WARPS>(c, task, w, f->warp, &y);
}

DEV bool run_attention_teams(struct warp_context *c, const struct cuda_task *task) {
    const struct team f = team_of(c);
    const struct attention_item first = items_first(c, task);
    const uint32_t item = first.row * HEAD_STEPS + first.head, n_items = first.left;
#pragma unroll 1
    for (uint32_t i = 0; i < n_items || i == 0; i += TEAMS) {
        const bool mine = i + f.number < n_items;
        struct attention_item w = {};
        struct team_heads h = {};
        if (mine) {
            w = team_item(task, item + i + f.number);
            h = team_heads_of(c, &f, task, &w);
        }
        if (i == 0) {
            if (!wait_data(c, task)) return false;
            if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
        }
        if (mine) {
            team_heads_make(c, &f, task, &w, &h);
            barrier_sync_team<TEAM_THREADS>(f.number);
            team_attend(c, &f, task, &w);
            if (f.warp == TEAM_WARPS - 1) {
                const char *page = team_page(c, &f, (w.hi - 1) / SHARE_POSITIONS);
                const char *line = page + kv_row_at((w.hi - 1) % SHARE_POSITIONS);
                heads_keep(c, task, &w, line, line + SHARE_BYTES);
            }
        }
        if (n_items > 0) decode_release(c, min(n_items - i, (uint32_t)TEAMS));
    }
    return true;
}

#endif
