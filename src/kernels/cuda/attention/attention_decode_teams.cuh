/* attention_decode_teams.cuh - ATTENTION_WHOLE of an iteration each of whose token rows is another
 * request's, whose contexts are a piece each, and more of them than tasks: decode of many short
 * requests.
 *
 * Such an item is a chain of short steps, and only the latency of each step counts. So the
 * compute warps are two teams, with an item each, and meet when both are done:
 *
 *   before the event   the team's first item, what turns the warp's heads
 *   then, per two      heads, their elements asked for at once ─ barrier of the team ─ two shares a
 * warp, side by side, outputs left in their pages ─ barrier of the team ─ each thread has some
 * columns of a head, adds up shares in order ─ barrier ─ the pages are given back
 *
 * The same numbers as attention_decode.cuh.
 *
 * Bytes: k and v of the context, 2 * positions * head_dim * 2, read once per item.
 *
 * Scratch:   0           as attention_decode.cuh, a team's instead of a piece's
 *            DECODE_HEADS  of each team: queries [SUB_HEADS][head_dim], key, value, of 16 bits
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
    TEAM_PAIRS = (SUB_HEADS * QN_HEAD_DIM / 2 + TEAM_THREADS - 1) / TEAM_THREADS,
};

/* Whether it can run: each team needs an item's pages, and a place for its heads. */
#define HAS_TEAMS                                                                                  \
    (SHARE_PAGES == 1 && RING_DEPTH >= TEAMS && TEAM_HEADS <= 3 &&                                 \
     DECODE_HEADS + TEAMS * TEAM_PLACES * QN_HEAD_DIM * 2 <= SCRATCH_BYTES)

/* Whether such a task is one for teams. */
DEV bool team_takes(const struct cuda_task *task) {
    return HAS_TEAMS && SHARED->decode_only && SHARED->last_position < ATTENTION_PIECE &&
           SHARED->batch.rows.n_rows * HEAD_STEPS > task->unit1;
}

/* A warp's place. */
struct team {
    uint32_t number, warp, thread; /* team; warp and thread of it */
    uint32_t heads;                /* the first head in scratch */
};
DEV struct team team_of(const struct warp_context *c) {
    const uint32_t number = c->warp / TEAM_WARPS;
    return {number, c->warp % TEAM_WARPS, c->thread % TEAM_THREADS, number * TEAM_PLACES};
}

/* An item of the task. */
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

struct team_heads {
    struct item_head head[TEAM_HEADS];
};
DEV struct team_heads team_heads_of(const struct warp_context *c, const struct team *f,
                                    const struct cuda_task *task, const struct attention_item *w) {
    struct team_heads h;
#pragma unroll
    for (int n = 0; n < TEAM_HEADS; n++)
        h.head[n] = item_head_alone(c, task, w, true, f->warp + n * TEAM_WARPS);
    return h;
}

/* The warp's heads, normed and turned, into scratch. */
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
        if (h->head[n].there)
            head_put(c, &h->head[n], f->heads, v + n * EACH, v + n * EACH + LANE_PAIRS);
}

/* Zeros for the values of positions from the share's number n on: see share_clear. */
DEV void team_clear(const struct warp_context *c, uint32_t n, struct share_kv *x) {
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int v = 0; v < 4; v++)
            if (share_value_row(c, v) >= n) x->v[i][v] = make_uint4(0, 0, 0, 0);
}

/* Where a share of the team's item lies: a page of another warp. */
struct team_page {
    uint32_t slot, parity;
};
DEV struct team_page team_page_of(const struct warp_context *c, const struct team *f,
                                  uint32_t share) {
    const uint32_t warp = (share + c->turn) % WARPS;
    const uint32_t count = page_after(page_of_warp(c, warp), f->number);
    return {page_slot(warp, count), page_parity(count)};
}

/* The warp's shares of the team's item. */
DEV void team_attend(const struct warp_context *c, const struct team *f,
                     const struct attention_item *w) {
    const struct attention_step s = item_step(w);
    struct attention_rows rows;
    struct share_at at[TEAM_SHARES];
    float p[TEAM_SHARES][2][4];
    item_queries(c, w, f->heads, s.n_heads, &rows);
#pragma unroll
    for (int i = 0; i < TEAM_SHARES; i++) {
        const uint32_t share = f->warp + i * TEAM_WARPS, first = SHARE_POSITIONS * share;
        const struct team_page where = team_page_of(c, f, share);
        const char *page = RING + where.slot * CUDA_PAGE_BYTES;
        barrier_wait_acquire_cta(&SHARED->page_full[where.slot], where.parity);
        at[i] = share_at_of(c, page, page + SHARE_BYTES);
        decode_at_fresh(c, w->hi - 1, w->hi, first, f->heads + s.n_heads, &at[i]);
        uint4 k[2][PAIRS];
        share_keys(c, at[i].k, k);
        piece_scores(&rows, k, p[i]);
    }
#pragma unroll
    for (int i = 0; i < TEAM_SHARES; i++) {
        const uint32_t share = f->warp + i * TEAM_WARPS, first = SHARE_POSITIONS * share;
        const uint32_t slot = team_page_of(c, f, share).slot;
        const bool there = item_sees(w, first);
        float max[2], sum[2];
        struct share_kv x;
        piece_softmax<HEAD_HALVES>(c, &rows, first, p[i], max, sum);
        share_values(c, at[i].v, x.v);
        team_clear(c, there ? w->hi - first : 0, &x);
        __syncwarp(); /* all lanes have read the page */
        share_outputs(c, x.v, p[i], (float *)(RING + slot * CUDA_PAGE_BYTES));
        decode_put(c, max, sum, f->number, share, slot);
    }
}

/* The output of an item, from its shares. */
DEV void team_store(const struct team *f, const struct cuda_task *task,
                    const struct attention_item *w) {
    const struct attention_step s = item_step(w);
#pragma unroll
    for (int u = 0; u < TEAM_PAIRS; u++) {
        const uint32_t i = f->thread + u * TEAM_THREADS;
        const uint32_t m = i / (QN_HEAD_DIM / 2), d = i % (QN_HEAD_DIM / 2) * 2;
        if (m >= s.n_heads) continue;
        const struct decode_piece piece = decode_piece_of(f->number, m, d);
        struct decode_state y = {};
        decode_merge(&piece, &y);
        decode_output(task, decode_head(w, m), d, &y);
    }
}

DEV bool run_attention_teams(struct warp_context *c, const struct cuda_task *task) {
    const struct team f = team_of(c);
    const struct attention_item first = decode_first(c, task);
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
            team_attend(c, &f, &w);
            barrier_sync_team<TEAM_THREADS>(f.number);
            team_store(&f, task, &w);
            if (f.warp == TEAM_WARPS - 1) heads_keep(c, task, &w, f.heads);
        }
        if (n_items > 0) decode_release(c, min(n_items - i, (uint32_t)TEAMS));
    }
    return true;
}

#endif
