/* attention_latent_lease.cuh - LATENT in a lease (matmul_tile.cuh): ATTENTION of whole contexts,
 * and ATTENTION_SPLIT of pieces where positions are not loaded as pages
 * (attention_latent_pages.cuh).
 *
 * An item is a token row and up to 16 of its heads, in ATTENTION_SPLIT also one of the row's
 * pieces.
 *
 *   before the event   request the first part's positions that earlier iterations wrote; look up
 *                      where the others will lie in the cache
 *   after it           request the others; then attention_latent.cuh, part by part
 *
 * Shared memory: shares of a part, from its start.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_LATENT_LEASE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_LATENT_LEASE_CUH

#if QN_LATENT

#include "kernels/cuda/attention/attention_latent.cuh"

static_assert(LATENT_SHARES * LATENT_SHARE_BYTES + cuda_latent_others(QN_KEY_DIM) <=
                  RING_BYTES + SCRATCH_BYTES,
              "the lease");

struct latent_item {
    uint32_t row, slot, step; /* step: of heads */
    struct latent_sight sees;
    uint32_t fresh; /* the first position of the slot that this iteration writes */
    uint32_t piece, piece_end;
};

DEV struct latent_item latent_item_of(const struct cuda_task *task, uint32_t i) {
    const struct latent_place at = latent_place_at(SHARED, task->kind, task_window(task), i);
    struct latent_item w = {};
    const uint32_t row = at.row;
    w.row = row;
    w.step = at.step;
    w.slot = row_slot(SHARED, row);
    w.sees.hi = row_position(SHARED, row) + 1;
    w.sees.lo = window_start(task_window(task), w.sees.hi - 1);
    w.piece = w.sees.lo / ATTENTION_PIECE + at.piece;
    w.piece_end =
        task->kind == OP_ATTENTION_SPLIT ? w.piece + 1 : (w.sees.hi - 1) / ATTENTION_PIECE + 1;
    w.fresh = row_position(SHARED, row_first(SHARED, w.slot, row));
    return w;
}

/* ---- a part's positions ---- */

/* The first of the warp's positions of the part at `first`, which lie in one share. The thread
 * reads its number anew here. Otherwise what follows from it would stay in registers through the
 * products. */
enum { LATENT_MINE = LATENT_PART / WARPS };
DEV uint32_t latent_own(uint32_t first) {
    return first + thread_here() / 32 * LATENT_MINE;
}
/* The share of a position of the part at `first`. */
DEV char *latent_share(uint32_t first, uint32_t position) {
    return shared_memory + (position - first) / SHARE_POSITIONS * LATENT_SHARE_BYTES;
}

/* Cache row of the lane's position among the warp's, if the row sees it. Where the cache has whole
 * shares, the lanes' positions follow each other in it. */
DEV uint32_t latent_own_row(const struct latent_item *w, uint32_t first) {
    const uint32_t own = latent_own(first) + thread_here() % 32 % LATENT_MINE;
    return own >= w->sees.lo && own < w->sees.hi ? kv_row(&SHARED->batch, w->slot, own) : 0;
}

/* The warp's positions of the part at `first` that the row sees and that lie in [from, end). */
struct latent_wanted {
    uint32_t begin, end;
};
DEV struct latent_wanted latent_wanted_of(const struct latent_item *w, uint32_t first,
                                          uint32_t from, uint32_t end) {
    const uint32_t own = latent_own(first);
    struct latent_wanted r = {max(max(own, from), w->sees.lo),
                              min(min(own + LATENT_MINE, end), w->sees.hi)};
    r.end = max(r.begin, r.end);
    return r;
}

/* Whether bulk copies load a line of the warp's positions at a time, in the order of the cache. */
#define LATENT_IN_BULK (HAS_BULK_COPIES && LATENT_BY_LINES)

/* Positions of a part are requested at most twice: before the event and after it. */
enum { LATENT_AHEAD, LATENT_REST, LATENT_ASKS };

#if LATENT_IN_BULK

/* Requests the warp's positions of the part at `first` that the row sees and that lie in [from,
 * end). own_row: latent_own_row. If one warp makes an ask, all warps do: each arrives at the ask's
 * barrier. */
DEV void latent_ask(const struct cuda_task *task, const struct latent_item *w, uint32_t first,
                    uint32_t from, uint32_t end, uint32_t own_row, uint32_t ask) {
    const struct latent_wanted r = latent_wanted_of(w, first, from, end);
    const uint32_t lane = thread_here() % 32, bytes = (r.end - r.begin) * 128;
    const uint32_t row = __shfl_sync(~0u, own_row, r.begin % LATENT_MINE);
    const uint32_t line = latent_line_at(r.begin, min(lane, LATENT_LINES - 1u));
    uint64_t *full = &SHARED->piece_full[ask];
    share_begin(full, bytes * LATENT_LINES, lane);
    if (bytes > 0 && lane < LATENT_LINES)
        share_copy(latent_share(first, r.begin) + line,
                   (const char *)task->more + 2 * latent_share_at(row, r.begin) + line, bytes, full,
                   lane);
    share_end(full, lane);
}

/* Waits for the copies of an ask of all warps. */
DEV void latent_await(uint32_t ask) {
    barrier_wait_acquire_cta(&SHARED->piece_full[ask], SHARED->pieces.phase >> ask & 1);
}

/* Called after the next barrier: thread 0 flips the phases of the awaited asks, a bit each. */
DEV void latent_awaited(uint32_t asks) {
    if (thread_here() == 0) SHARED->pieces.phase ^= asks;
}

#else

/* The same without bulk copies, by all lanes. All asks are awaited together. */
DEV void latent_ask(const struct cuda_task *task, const struct latent_item *w, uint32_t first,
                    uint32_t from, uint32_t end, uint32_t own_row, uint32_t ask) {
    (void)ask;
    const struct latent_wanted r = latent_wanted_of(w, first, from, end);
    const uint32_t chunks = QN_KEY_DIM / 8, n = (r.end - r.begin) * chunks;
#pragma unroll 1
    for (uint32_t i = thread_here() % 32; i < (n + 31) / 32 * 32; i += 32) {
        const uint32_t position = r.begin + min(i, n - 1) / chunks, chunk = i % chunks;
        const uint32_t row = __shfl_sync(~0u, own_row, position % LATENT_MINE);
        if (i < n)
            copy16_async(latent_share(first, position) + latent_chunk_at(position, chunk),
                         (const uint16_t *)task->more + latent_at(row, position, 8 * chunk));
    }
}

DEV void latent_await(uint32_t ask) {
    (void)ask;
    copy_commit();
    copy_wait<0>();
}
DEV void latent_awaited(uint32_t asks) {
    (void)asks;
}

#endif

/* Clears the warp's positions of the part at `first` that the row does not see, if it sees others
 * of their share. */
DEV void latent_clear(const struct warp_context *c, const struct latent_item *w, uint32_t first) {
    const uint32_t mine = latent_own(first), end = mine + LATENT_MINE;
    const uint32_t share = (mine - first) / SHARE_POSITIONS;
    if (!latent_sees(w->sees, first + share * SHARE_POSITIONS)) return;
    if (w->sees.lo > mine) latent_zero<false>(c, share, mine, min(w->sees.lo, end));
    if (w->sees.hi < end) latent_zero<false>(c, share, max(w->sees.hi, mine), end);
}

/* ---- the task ---- */

/* The content of the lease: all positions of the part at `first` below `end` that the row sees. */
struct latent_held {
    uint32_t row, first, end;
    uint32_t own_row, next_row; /* of this part and of the next one: latent_own_row */
    uint32_t asked;             /* a bit for each ask that was not awaited */
};

/* Requests a part's positions below `end` and clears unseen ones. own_row: of the part. */
DEV struct latent_held latent_begin(const struct warp_context *c, const struct cuda_task *task,
                                    const struct latent_item *w, uint32_t first, uint32_t end,
                                    uint32_t own_row) {
    latent_ask(task, w, first, first, end, own_row, LATENT_AHEAD);
    latent_clear(c, w, first);
    return {w->row, first, end, own_row, 0, 1 << LATENT_AHEAD};
}

/* The first position of the item's first part. */
DEV uint32_t latent_first(const struct latent_item *w) {
    return max(w->piece * ATTENTION_PIECE, w->sees.lo / LATENT_PART * LATENT_PART);
}

/* Requests the item's first part, as far as earlier iterations wrote it. */
DEV struct latent_held latent_ahead(const struct warp_context *c, const struct cuda_task *task,
                                    const struct latent_item *w) {
    const uint32_t first = latent_first(w);
    page_copy_fence(); /* other blocks stored what bulk copies will read */
    return latent_begin(c, task, w, first, max(min(w->fresh, first + LATENT_PART), first),
                        latent_own_row(w, first));
}

/* Requests the missing positions of the part at `at`. */
DEV void latent_rest(const struct warp_context *c, const struct cuda_task *task,
                     const struct latent_item *w, uint32_t at, struct latent_held *held) {
    const uint32_t end = min(w->sees.hi, at + LATENT_PART);
    if (held->row != w->row || held->first != at) {
        const bool known = held->row == w->row && held->first + LATENT_PART == at;
        *held = latent_begin(c, task, w, at, end, known ? held->next_row : latent_own_row(w, at));
    } else if (held->end < end) {
        latent_ask(task, w, at, held->end, end, held->own_row, LATENT_REST);
        held->end = end;
        held->asked |= 1 << LATENT_REST;
    }
}

/* Waits for all requested positions, together with all warps. */
DEV void latent_arrive(struct latent_held *held) {
#pragma unroll
    for (uint32_t ask = 0; ask < LATENT_ASKS; ask++)
        if (held->asked >> ask & 1) latent_await(ask);
    sync_compute();
    latent_awaited(held->asked);
    held->asked = 0;
}

/* Merges the next part's or piece's state into that of those before. */
DEV void latent_merge(struct latent_state *y, const struct latent_state *next) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const struct merge of = merge_factors(y->max[h], y->sum[h], next->max[h]);
        y->sum[h] = merge_value(&of, y->sum[h], next->sum[h]);
        y->max[h] = of.max;
#pragma unroll
        for (int n = 0; n < LATENT_OF_A_WARP; n++)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; e++)
                    y->out[n][i][e] = merge_value(&of, y->out[n][i][e], next->out[n][i][e]);
    }
}

/* Runs the parts of the item's piece that begins at `first`. */
DEV void latent_piece(const struct warp_context *c, const struct cuda_task *task,
                      const struct latent_item *w, uint32_t first, struct latent_held *held,
                      struct latent_state *y) {
#pragma unroll 1
    for (uint32_t at = first; at < first + ATTENTION_PIECE; at += LATENT_PART) {
        float most[2];
        if (at >= w->sees.hi) break;
        if (at + LATENT_PART <= w->sees.lo) continue;
        latent_rest(c, task, w, at, held);
        held->next_row = latent_own_row(w, at + LATENT_PART);
        latent_arrive(held);
        latent_weigh<false>(c, w->sees, at, most);
        if (LATENT_PART == ATTENTION_PIECE) {
            latent_outputs<false>(c, w->sees, at, most, y);
        } else {
            struct latent_state part;
            latent_outputs<false>(c, w->sees, at, most, &part);
            latent_merge(y, &part);
        }
        page_copy_fence_shared(); /* bulk copies will write where these threads did */
        sync_compute();           /* all have read positions and probabilities */
    }
}

/* Stores the output of a whole context. */
DEV void latent_store(const struct warp_context *c, const struct cuda_task *task,
                      const struct latent_item *w, const struct latent_state *y) {
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t head = w->step * 16 + c->lane / 4 + 8 * h;
        const float by = reciprocal_fast(y->sum[h]);
        if (head >= QN_N_HEADS) continue;
#pragma unroll
        for (uint32_t n = 0; n < LATENT_OF_A_WARP; n++)
#pragma unroll
            for (uint32_t i = 0; i < 8; i += 2) {
                const float *lo = y->out[n][i] + 2 * h, *hi = y->out[n][i + 1] + 2 * h;
                output_store2x2(task, (uint64_t)w->row * QN_N_HEADS + head, latent_column(c, n, i),
                                QN_VALUE_DIM, make_float2(lo[0] * by, lo[1] * by),
                                make_float2(hi[0] * by, hi[1] * by));
            }
    }
}

DEV void latent_run(const struct warp_context *c, const struct cuda_task *task,
                    const struct latent_item *w, struct latent_held *held) {
    struct latent_state all = {}, piece = {};
    latent_rest(c, task, w, latent_first(w), held);
    const struct latent_chunks queries = latent_chunks_of(c);
    latent_queries(c, task, &queries, w->row, w->step);
#pragma unroll 1
    for (uint32_t p = w->piece; p < w->piece_end; p++) {
        piece = {};
        latent_piece(c, task, w, p * ATTENTION_PIECE, held, &piece);
        if (task->kind == OP_ATTENTION_SPLIT) break;
        latent_merge(&all, &piece);
    }
    if (task->kind == OP_ATTENTION_SPLIT)
        latent_part_store(c, task, w->row, w->step, w->piece, &piece);
    else
        latent_store(c, task, w, &all);
}

/* A slice without items takes no lease, and the loader sends no pages for it. False: the launch
 * ends. */
DEV bool run_attention_latent(struct warp_context *c, const struct cuda_task *task) {
    struct latent_held held = {~0u, 0, 0, 0, 0, 0};
    struct latent_item w = {};
    const struct latent_slice slice =
        latent_slice_of(SHARED, task->kind, task_window(task), task->unit0, task->unit1);
    uint32_t i = slice.first;
    if (i < slice.end) {
        lease_take(c);
        w = latent_item_of(task, i);
        held = latent_ahead(c, task, &w);
    }
    if (!wait_ready(c)) {
        if (i < slice.end) latent_arrive(&held);
        return false;
    }
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (i >= slice.end) return true;
    page_copy_fence(); /* as in latent_ahead */
#pragma unroll 1
    for (;;) {
        latent_run(c, task, &w, &held);
        i += slice.step;
        if (i >= slice.end) break;
        w = latent_item_of(task, i);
    }
    lease_give(c);
    return true;
}

#endif

#endif
