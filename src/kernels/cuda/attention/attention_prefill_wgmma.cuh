/* attention_prefill_wgmma.cuh - ATTENTION of many rows by wgmma: four warps, a step each, compute
 * one product together. Bulk copies load pieces from the cache, where they lie as wgmma reads them
 * (kv.cuh): a share per warp, two pieces at a time.
 *
 * Shared memory, a lease:
 *
 *   0           of each four warps: their queries as 64 rows of A; in the end each warp's outputs
 *   ROW_PIECES  two pieces: keys, then values
 *   ROW_WARPS   struct rows_warp of each warp
 *   ROW_PLACES  struct rows_place of each of the item's rows
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PREFILL_WGMMA_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PREFILL_WGMMA_CUH

#include "kernels/cuda/attention/attention_prefill_state.cuh"

#if ROWS_BY_WGMMA

/* What a warp keeps of its step from one function to the next. */
struct alignas(16) rows_warp {
    struct attention_step step;
    uint32_t lo[16], hi[16]; /* of each row: visible positions */
    uint32_t piece;          /* the first that any warp's step sees */
    uint32_t turn, at;       /* of the next step: rows_enter */
};
/* One of the item's token rows. */
struct rows_place {
    uint32_t slot, position;
};

enum {
    ROW_GROUP = 4 * ROW_WORK,              /* of four warps */
    ROW_EIGHT = 8 * KV_ROW,                /* from eight rows to the next */
    ROW_SHARE = 16 * KV_ROW,               /* of keys or of values */
    ROW_VALUES = ATTENTION_PIECE * KV_ROW, /* where a piece's values begin */
    ROW_PIECES = WARPS * ROW_WORK,
    ROW_WARPS = ROW_PIECES + 2 * (2 * ROW_VALUES),
    ROW_PLACES = ROW_WARPS + WARPS * sizeof(struct rows_warp)
};
static_assert(ROW_PLACES + GROUP_ROWS * sizeof(struct rows_place) <= LEASE_BYTES, "room for it");
static_assert(ROW_GROUP % 1024 == 0 && 4 * 2 * ROW_EIGHT <= ROW_GROUP, "queries of four warps");

DEV struct rows_place *rows_places(void) {
    return (struct rows_place *)(shared_memory + ROW_PLACES);
}
DEV struct rows_warp *rows_warp_of(const struct warp_context *c) {
    return (struct rows_warp *)(shared_memory + ROW_WARPS) + c->warp;
}
DEV uint32_t rows_piece(uint32_t buffer) {
    return ROW_PIECES + buffer * (2 * ROW_VALUES);
}

/* Finds the cache block of the warp's share of a piece. It is called before the share is requested,
 * since it takes a trip to L2. */
DEV uint32_t rows_find(const struct warp_context *c, uint32_t piece) {
    const uint32_t first = rows_share(c, piece);
    if (first >= SHARED->pieces.hi) return 0;
    return kv_block(&SHARED->batch, SHARED->pieces.slot, first);
}

/* Requests the warp's share of a piece. No warp reads what was there any more. */
DEV void rows_ask(const struct warp_context *c, uint32_t block, uint32_t piece, uint32_t buffer) {
    uint64_t *full = &SHARED->piece_full[buffer];
    const uint32_t first = rows_share(c, piece);
    char *to = shared_memory + rows_piece(buffer) + c->warp * ROW_SHARE;
    if (!warp_elect()) return;
    if (first >= SHARED->pieces.hi) {
        page_copy_nothing(full);
        return;
    }
    const uint16_t *from = (const uint16_t *)SHARED->pieces.kv +
                           (uint64_t)kv_block_row(block, first) * QN_HEAD_DIM +
                           (uint64_t)SHARED->pieces.kv_head * KV_HEAD_STRIDE;
    copies_begin(full, 2 * ROW_SHARE);
    copies_one(to, from, ROW_SHARE, full);
    copies_one(to + ROW_VALUES, from + KV_VALUE_STRIDE, ROW_SHARE, full);
    copies_end(full);
}

/* Clears a piece's values from position number n on, which hold garbage: their weights are zero,
 * but zero times NaN is NaN. */
DEV void rows_clear(const struct warp_context *c, uint32_t buffer, uint32_t n) {
    constexpr uint32_t chunks = QN_HEAD_DIM / 8;
    char *values = shared_memory + rows_piece(buffer) + ROW_VALUES;
    for (uint32_t i = c->thread; i < (ATTENTION_PIECE - n) * chunks; i += COMPUTE_THREADS) {
        const uint32_t row = n + i / chunks, chunk = i % chunks;
        *(uint4 *)(values + kv_row_at(row) + chunk / 8 * KV_PLANE + chunk % 8 * 16) =
            make_uint4(0, 0, 0, 0);
    }
    page_copy_fence_shared(); /* products will read where this thread wrote */
    sync_compute();
}

/* Stores the queries of the warp's step as rows of A, and the positions that they see. The step's
 * first row is number `at` of the item. */
DEV void rows_queries(const struct warp_context *c, const struct cuda_task *task,
                      const struct attention_step *s, uint32_t at) {
    constexpr uint32_t fours = QN_HEAD_DIM / 4;
    struct rows_warp *mine = rows_warp_of(c);
    char *to = shared_memory + c->warp / 4 * ROW_GROUP + c->warp % 4 * (2 * ROW_EIGHT);
    const float *q = (const float *)task->in;
    if (c->lane < 16) {
        const uint32_t token = c->lane / SUB_HEADS, head = c->lane % SUB_HEADS;
        const bool exists = token < s->n_tokens && head < s->n_heads;
        const uint32_t position = exists ? rows_places()[at + token].position : 0;
        mine->lo[c->lane] = exists ? window_start(task_window(task), position) : 0;
        mine->hi[c->lane] = exists ? position + 1 : 0;
    }
#pragma unroll 8
    for (uint32_t i = c->lane; i < 16 * fours; i += 32) {
        const uint32_t m = i / fours, four = i % fours, token = m / SUB_HEADS;
        const uint32_t head = m % SUB_HEADS;
        float4 v = make_float4(0, 0, 0, 0);
        if (token < s->n_tokens && head < s->n_heads) {
            const uint64_t row = (uint64_t)(s->row0 + token) * QN_N_HEADS + s->head0 + head;
            v = load4_l2(q + row * QN_HEAD_DIM + 4 * four);
        }
        *(uint2 *)(to + kv_row_at(m) + kv_chunk_at(m, four / 2) + four % 2 * 8) =
            make_uint2(pack_pair<KV_E>(v.x, v.y), pack_pair<KV_E>(v.z, v.w));
    }
    page_copy_fence_shared(); /* products will read where this thread wrote */
    __syncwarp();
}

/* How many of the item's rows from number `at` on, below n, are of one slot. */
DEV uint32_t rows_same(const struct warp_context *c, uint32_t at, uint32_t n) {
    const uint32_t slot = rows_places()[at].slot;
    for (uint32_t i = at; i < n; i += 32) {
        const bool other = i + c->lane < n && rows_places()[i + c->lane].slot != slot;
        const uint32_t others = __ballot_sync(~0u, other);
        if (others != 0) return i + __popc((others & -others) - 1) - at;
    }
    return n - at;
}

/* Enters the steps of one slot among the rows of a turn's item, from number `at` on, and requests
 * their first two pieces. All warps are done with the steps before. False: there is no such item.
 * Only two trips to L2 come before the copies: rows ascend in a slot, and their slots and positions
 * are loaded at once. */
DEV bool rows_enter(const struct warp_context *c, const struct cuda_task *task, uint32_t turn,
                    uint32_t at) {
    struct rows_warp *mine = rows_warp_of(c);
    struct rows_item item;
    if (!rows_item_of(task, turn, &item)) return false;
    const uint32_t n_rows = item.end - item.row0, first = c->warp * STEP_TOKENS;
    if (c->thread < n_rows)
        rows_places()[c->thread] = {row_slot(SHARED, item.row0 + c->thread),
                                    row_position(SHARED, item.row0 + c->thread)};
    sync_compute();
    const uint32_t end = at + rows_same(c, at, n_rows);
    const struct rows_place head = rows_places()[at];
    if (c->thread == 0) {
        SHARED->pieces.kv = task->more;
        SHARED->pieces.slot = head.slot;
        SHARED->pieces.kv_head = item.head / SUBS;
        SHARED->pieces.hi = rows_places()[end - 1].position + 1;
    }
    sync_compute();
    const uint32_t piece = window_start(task_window(task), head.position) / ATTENTION_PIECE;
    const uint32_t block[2] = {rows_find(c, piece), rows_find(c, piece + 1)};
    struct attention_step s = {};
    step_heads(&s, item.head / SUBS, item.head % SUBS);
    const uint32_t mine_at = max(first, at), mine_end = min(first + STEP_TOKENS, end);
    s.row0 = item.row0 + mine_at;
    s.n_tokens = mine_end > mine_at ? mine_end - mine_at : 0;
    rows_ask(c, block[0], piece, 0);
    if ((piece + 1) * ATTENTION_PIECE < SHARED->pieces.hi) rows_ask(c, block[1], piece + 1, 1);
    rows_queries(c, task, &s, mine_at);
    if (c->lane == 0) {
        mine->step = s;
        mine->piece = piece;
        mine->turn = turn + (end == n_rows);
        mine->at = end == n_rows ? 0 : end;
    }
    __syncwarp();
    return true;
}
DEV bool rows_begin(const struct warp_context *c, const struct cuda_task *task) {
    page_copy_fence(); /* keys and values that other blocks stored will be read by bulk copies */
    return rows_enter(c, task, 0, 0);
}

/* ---- products ---- */

/* Scores of a piece: p[i] is of positions [8 i, 8 i + 8). */
DEV void rows_scores(const struct warp_context *c, uint32_t buffer, float (&p)[16][4]) {
    const uint64_t q = wgmma_lines(shared_memory, c->warp / 4 * ROW_GROUP, ROW_EIGHT);
    const uint64_t k = wgmma_lines(shared_memory, rows_piece(buffer), ROW_EIGHT);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QN_HEAD_DIM / 16; i++) {
        const uint32_t at = i / 4 * KV_PLANE + i % 4 * 32;
        wgmma_64x128x16_shared<KV_E>(p, wgmma_further(q, at), wgmma_further(k, at), i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(p);
}

/* The positions that the lane's two rows see. */
DEV struct attention_rows rows_sight(const struct warp_context *c) {
    const struct rows_warp *mine = rows_warp_of(c);
    struct attention_rows rows;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        rows.lo[h] = mine->lo[c->lane / 4 + 8 * h];
        rows.hi[h] = mine->hi[c->lane / 4 + 8 * h];
    }
    return rows;
}

/* Masks scores of the piece that begins at `first`, unless all of the warp's rows see all of it, as
 * most do. */
DEV void rows_mask(const struct warp_context *c, uint32_t first, float (&p)[16][4]) {
    const struct attention_rows rows = rows_sight(c);
    if (__all_sync(~0u, max(rows.lo[0], rows.lo[1]) <= first &&
                            min(rows.hi[0], rows.hi[1]) >= first + ATTENTION_PIECE))
        return;
#pragma unroll
    for (int s = 0; s < WARPS; s++) share_mask<2>(c, &rows, first + 16 * s, p + 2 * s);
}

/* Adds the outputs of a piece to the state, 64 columns at a time, in two chains of products side by
 * side, since each product waits for the one before it in its chain. */
DEV void rows_outputs(const uint4 weights[WARPS], uint32_t buffer, const struct merge factors[2],
                      struct rows_state *state) {
#pragma unroll
    for (int plane = 0; plane < QN_HEAD_DIM / 64; plane++) {
        const uint64_t v = wgmma_lines(
            shared_memory, rows_piece(buffer) + ROW_VALUES + plane * KV_PLANE, ROW_EIGHT);
        float out[2][4][4] = {}; /* the compiler wants initial values */
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < WARPS; s++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma_64x32x16_turned<KV_E>(out[half], weights[s],
                                            wgmma_further(v, s * 2 * ROW_EIGHT + half * 64), s > 0);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            wgmma_settle(out[half]);
            rows_add<4>(state, 8 * plane + 4 * half, out[half], factors);
        }
    }
}

/* Requests a piece into the buffer of the one two before it, when all warps are done with that.
 * phase: of the uses of the buffers so far, a bit each. */
DEV void rows_go_ahead(const struct warp_context *c, uint32_t block, uint32_t piece,
                       uint32_t buffer, uint32_t phase) {
    barrier_wait_acquire_cta(&SHARED->piece_empty[buffer], ~phase >> buffer & 1);
    rows_ask(c, block, piece, buffer);
}

/* Runs the current steps over all pieces. A step that sees nothing of a piece has zero weights in
 * it, so its state does not change. Warps 4 to 7 begin when warps 0 to 3 have their first scores,
 * so that four warps make probabilities while the others multiply. Inlined into the kernel, where
 * the compiler can follow the products. */
DEV void rows_multiply(void) {
    const struct warp_context here = context_of(&SHARED->args, thread_here(), 0, 0), *c = &here;
    const uint32_t hi = __shfl_sync(~0u, SHARED->pieces.hi, 0);
    uint32_t piece = __shfl_sync(~0u, rows_warp_of(c)->piece, 0), buffer = 0;
    uint32_t phase = __shfl_sync(~0u, SHARED->pieces.phase, 0);
    bool begins = true;
    struct rows_state state = {};
    barrier_sync_team<128>(c->warp / 4); /* the queries are stored */
#pragma unroll 1
    for (; piece * ATTENTION_PIECE < hi; piece++, buffer ^= 1, begins = false) {
        const uint32_t first = piece * ATTENTION_PIECE, left = hi - first;
        float p[16][4] = {}; /* the compiler wants initial values */
        uint4 weights[WARPS];
        struct merge factors[2];
        barrier_wait_acquire_cta(&SHARED->piece_full[buffer], phase >> buffer & 1);
        phase ^= 1u << buffer;
        if (left < ATTENTION_PIECE) rows_clear(c, buffer, left);
        const uint32_t block = rows_find(c, piece + 1); /* loads meanwhile */
        if (begins && c->warp >= 4) sync_compute();
        rows_scores(c, buffer, p);
        if (begins && c->warp < 4) sync_compute();
        if (!begins && left > ATTENTION_PIECE)
            rows_go_ahead(c, block, piece + 1, buffer ^ 1, phase);
        rows_mask(c, first, p);
        rows_softmax(p, weights, &state, factors);
        rows_outputs(weights, buffer, factors, &state);
        __syncwarp();
        if (c->lane == 0) barrier_arrive_release_cta(&SHARED->piece_empty[buffer]);
    }
    if (c->thread == 0) SHARED->pieces.phase = phase;
    barrier_sync_team<128>(c->warp / 4); /* all have used the queries */
    rows_put(c, &state);
}

/* Stores the results of the current steps, then goes on to the next ones, as rows_enter. */
DEV bool rows_go_on(const struct warp_context *c, const struct cuda_task *task) {
    const struct rows_warp *mine = rows_warp_of(c);
    const uint32_t turn = mine->turn, at = mine->at;
    rows_store(c, task, &mine->step);
    sync_compute(); /* all have read SHARED->pieces */
    return rows_enter(c, task, turn, at);
}

#endif

#endif
