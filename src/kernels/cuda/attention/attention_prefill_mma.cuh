/* attention_prefill_mma.cuh - ATTENTION of many rows by mma.sync: a warp per step, by itself.
 *
 * Shared memory, a lease: for each warp its queries [2 * PAIRS][32 lanes] and probabilities [8
 * shares][32 lanes], 16 bytes each, in the end its outputs; then one or two pieces. A piece is
 * keys, then values: ATTENTION_PIECE rows of ROW_BYTES. A row's chunks of 16 bytes are swapped so
 * that no two of eight rows have one in the same banks.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PREFILL_MMA_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PREFILL_MMA_CUH

#include "kernels/cuda/attention/attention_prefill_state.cuh"

#if !ROWS_BY_WGMMA

/* A warp's own memory. */
struct rows_work {
    uint4 *q, *p; /* this lane's; 32 apart */
};

DEV struct rows_work rows_work_of(const struct warp_context *c) {
    char *at = shared_memory + c->warp * ROW_WORK;
    struct rows_work w;
    w.q = (uint4 *)at + c->lane;
    w.p = w.q + 2 * PAIRS * 32;
    return w;
}

#define ROW_BYTES   cuda_rows_pitch(QN_HEAD_DIM)
#define ROW_PIECE   cuda_rows_piece(QN_HEAD_DIM)
#define ROW_BUFFERS ((LEASE_BYTES - WARPS * ROW_WORK) / ROW_PIECE >= 2 ? 2 : 1)

DEV char *rows_piece(uint32_t buffer) {
    return shared_memory + WARPS * ROW_WORK + buffer * ROW_PIECE;
}

/* Whether a share is loaded by two bulk copies: the cache has rows as they lie in shared memory,
 * and a share's 16 positions in one block. */
#define ROWS_ARE_BULK (HAS_BULK_COPIES && QN_HEAD_DIM % 64 == 0 && QN_KV_BLOCK % 16 == 0)

/* The pieces that are being loaded; block_shared.pieces has the rest. Warp w loads positions [16 w,
 * 16 w + 16) of each piece. */
struct rows_ring {
    uint32_t phase; /* of each buffer's next use, a bit each */
    uint32_t block; /* bulk: the cache block that the warp requests next */
};

/* Sets the context whose pieces are loaded. All warps are done with the pieces before. */
DEV void rows_begin(const struct warp_context *c, const struct cuda_task *task,
                    const struct attention_step *s, uint32_t hi) {
    if (c->thread == 0) {
        SHARED->pieces.kv = task->more;
        SHARED->pieces.slot = s->slot;
        SHARED->pieces.kv_head = s->kv_head;
        SHARED->pieces.hi = hi;
    }
    sync_compute();
}

#if ROWS_ARE_BULK

static_assert(KV_SWAPS && ROW_BYTES == 2 * QN_HEAD_DIM, "rows are as they lie in the cache");

/* Finds the cache block of the warp's positions of a piece. It is called a piece before they are
 * requested, since it takes a trip to L2. */
DEV void rows_find(const struct warp_context *c, struct rows_ring *r, uint32_t piece) {
    const uint32_t first = rows_share(c, piece);
    if (first < SHARED->pieces.hi) r->block = kv_block(&SHARED->batch, SHARED->pieces.slot, first);
}

DEV void rows_ask(const struct warp_context *c, const struct rows_ring *r, uint32_t piece,
                  uint32_t buffer) {
    const uint32_t bytes = 16 * ROW_BYTES;
    char *keys = rows_piece(buffer) + c->warp * bytes, *values = keys + ATTENTION_PIECE * ROW_BYTES;
    uint64_t *full = &SHARED->piece_full[buffer];
    if (!warp_elect()) return;
    if (rows_share(c, piece) >= SHARED->pieces.hi) {
        page_copy_nothing(full);
        return;
    }
    const uint64_t row = kv_block_row(r->block, rows_share(c, piece));
    const uint16_t *from = (const uint16_t *)SHARED->pieces.kv + row * QN_HEAD_DIM +
                           (uint64_t)SHARED->pieces.kv_head * KV_HEAD_STRIDE;
    copies_begin(full, 2 * bytes);
    copies_one(keys, from, bytes, full);
    copies_one(values, from + KV_VALUE_STRIDE, bytes, full);
    copies_end(full);
}

/* Waits for the piece. Clears the values of positions from hi on, which hold garbage: their weights
 * are zero, but zero times NaN is NaN. */
DEV void rows_await(const struct warp_context *c, struct rows_ring *r, uint32_t piece,
                    uint32_t buffer) {
    barrier_wait_acquire_cta(&SHARED->piece_full[buffer], r->phase >> buffer & 1);
    r->phase ^= 1u << buffer;
    const uint32_t n = SHARED->pieces.hi - piece * ATTENTION_PIECE;
    if (n >= ATTENTION_PIECE || n % 16 == 0) return;
    char *values = rows_piece(buffer) + (ATTENTION_PIECE + n) * ROW_BYTES;
    for (uint32_t i = c->thread; i < (16 - n % 16) * (ROW_BYTES / 16); i += COMPUTE_THREADS)
        *(uint4 *)(values + 16 * i) = make_uint4(0, 0, 0, 0);
    page_copy_fence_shared(); /* bulk copies will write where this thread did */
    sync_compute();
}

#else

DEV void rows_find(const struct warp_context *, struct rows_ring *, uint32_t) {}

/* Requests the warp's positions below hi; past these the last row is repeated. */
DEV void rows_ask(const struct warp_context *c, const struct rows_ring *, uint32_t piece,
                  uint32_t buffer) {
    struct attention_step s = {};
    s.kv_head = SHARED->pieces.kv_head;
    s.slot = SHARED->pieces.slot;
    s.hi = SHARED->pieces.hi;
    const uint32_t first = rows_share(c, piece), chunks = QN_HEAD_DIM / 8;
    if (first < s.hi) {
        const uint64_t offset = position_offset(c, &s, first);
        char *keys = rows_piece(buffer) + 16 * c->warp * ROW_BYTES;
        char *values = keys + ATTENTION_PIECE * ROW_BYTES;
#pragma unroll 2
        for (uint32_t i = c->lane; i < (16 * chunks + 31) / 32 * 32; i += 32) {
            const uint32_t row = i / chunks % 16, chunk = i % chunks;
            const uint32_t position = min(first + row, s.hi - 1);
            const uint16_t *line =
                (const uint16_t *)SHARED->pieces.kv + __shfl_sync(~0u, offset, row);
            const char *from = (const char *)line + kv_chunk_at(position, chunk);
            const uint32_t to = row * ROW_BYTES + chunk / 8 * 128 + (chunk % 8 ^ row % 8) * 16;
            if (i >= 16 * chunks) continue;
            copy16_async(keys + to, from);
            copy16_async(values + to, from + KV_VALUE_STRIDE * 2);
        }
    }
    copy_commit();
}

/* Waits for the piece. At most the next one is still under way. */
DEV void rows_await(const struct warp_context *c, struct rows_ring *, uint32_t piece, uint32_t) {
    const uint32_t hi = SHARED->pieces.hi;
    if (ROW_BUFFERS == 2 && (piece + 1) * ATTENTION_PIECE < hi)
        copy_wait<1>();
    else
        copy_wait<0>();
    sync_compute();
}

#endif

/* Whether the step sees any of the 16 positions from `first` on. */
DEV bool rows_sees(const struct attention_step *s, uint32_t first) {
    return first < s->hi && first + 16 > s->lo;
}

/* The row that the lane addresses: number n of those at `at`. */
DEV struct kv_lane rows_lane(const char *at, uint32_t n) {
    return {at + n * ROW_BYTES, 128, n % 8};
}

enum { ROW_SHARES_AT_ONCE = 2 }; /* whose scores are computed together */

/* Scores of these shares: p[2 x + u] as in share_scores. keys: of their positions. */
DEV void rows_scores(const struct warp_context *c, const struct rows_work *w, const char *keys,
                     float (*p)[4]) {
    constexpr int n = 2 * ROW_SHARES_AT_ONCE;
#pragma unroll
    for (int u = 0; u < n; u++) p[u][0] = p[u][1] = p[u][2] = p[u][3] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const uint4 even = w->q[64 * i], odd = w->q[64 * i + 32];
        uint4 k[n];
#pragma unroll
        for (int u = 0; u < n; u++) {
            const struct kv_lane row = rows_lane(keys, key_row(c, u));
            k[u] = load_keys(c, &row, i);
        }
#pragma unroll
        for (int u = 0; u < n; u++) mma_16x8x16<KV_E>(p[u], even, k[u].x, k[u].y);
#pragma unroll
        for (int u = 0; u < n; u++) mma_16x8x16<KV_E>(p[u], odd, k[u].z, k[u].w);
    }
}

/* Stores a piece's probabilities in the warp's memory. first: the piece's first position. */
DEV void rows_probs(const struct warp_context *c, const struct attention_step *s,
                    const struct rows_work *w, const struct attention_rows *rows, uint32_t first,
                    const char *keys, struct rows_state *state, struct merge factors[2]) {
    float p[2 * WARPS][4];
    uint4 weights[WARPS];
#pragma unroll
    for (int n = 0; n < WARPS; n += ROW_SHARES_AT_ONCE) {
        const uint32_t at = first + 16 * n;
        bool seen = false;
#pragma unroll
        for (int x = 0; x < ROW_SHARES_AT_ONCE; x++) {
            share_unseen(p + 2 * (n + x));
            seen |= rows_sees(s, at + 16 * x);
        }
        if (!seen) continue;
        rows_scores(c, w, keys + 16 * n * ROW_BYTES, p + 2 * n);
#pragma unroll
        for (int x = 0; x < ROW_SHARES_AT_ONCE; x++)
            share_mask<2>(c, rows, at + 16 * x, p + 2 * (n + x));
    }
    rows_softmax(p, weights, state, factors);
#pragma unroll
    for (int n = 0; n < WARPS; n++) w->p[32 * n] = weights[n];
}

/* Adds a piece's outputs to the state, some pairs of columns at a time. */
DEV void rows_outputs(const struct warp_context *c, const struct attention_step *s,
                      const struct rows_work *w, uint32_t first, const char *values,
                      const struct merge factors[2], struct rows_state *state) {
    constexpr int n = 4;
#pragma unroll
    for (int pair = 0; pair < VALUE_PAIRS; pair += n) {
        float out[2 * n][4] = {};
#pragma unroll 1
        for (uint32_t share = 0; share < WARPS; share++) {
            if (!rows_sees(s, first + 16 * share)) continue;
            const struct kv_lane row = rows_lane(values + 16 * share * ROW_BYTES, value_row(c));
            const uint4 weights = w->p[32 * share];
#pragma unroll
            for (int i = 0; i < n; i++)
                if (pair + i < VALUE_PAIRS)
                    share_outputs(weights, load_values(c, &row, pair + i, QN_HEAD_DIM / 8),
                                  out + 2 * i);
        }
#pragma unroll
        for (int i = 0; i < n; i++)
            if (pair + i < VALUE_PAIRS) rows_add<2>(state, 2 * (pair + i), out + 2 * i, factors);
    }
}

/* Runs a warp's step over the pieces of positions [lo, hi), which the steps of all warps see
 * together; they have the same slot and head. A separate function, since the values that its
 * callers keep would leave it no registers. */
CODE(void, rows_step, const struct cuda_task *task, uint32_t lo, uint32_t hi,
     struct attention_step mine) {
    const struct warp_context here = context_of(&SHARED->args, threadIdx.x, 0, 0), *c = &here;
    const struct attention_step *s = &mine;
    const struct rows_work w = rows_work_of(c);
    const uint32_t end = (hi - 1) / ATTENTION_PIECE + 1;
    uint32_t piece = lo / ATTENTION_PIECE, buffer = 0;
    struct rows_ring ring = {SHARED->pieces.phase, 0};
    struct attention_rows rows;
    struct rows_state state = {};
    rows_begin(c, task, s, hi);
    rows_find(c, &ring, piece);
    rows_ask(c, &ring, piece, 0);
    rows_find(c, &ring, piece + 1);
    load_rows<2>(c, task, s, &rows);
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) w.q[32 * i] = rows.q[i];
#pragma unroll 1
    for (; piece < end; piece++) {
        const char *keys = rows_piece(buffer), *values = keys + ATTENTION_PIECE * ROW_BYTES;
        const uint32_t first = piece * ATTENTION_PIECE, next = (buffer + 1) % ROW_BUFFERS;
        if (ROW_BUFFERS == 2 && piece + 1 < end) {
            rows_ask(c, &ring, piece + 1, next);
            rows_find(c, &ring, piece + 2);
        }
        rows_await(c, &ring, piece, buffer);
        if (first < s->hi && first + ATTENTION_PIECE > s->lo) {
            struct merge factors[2];
            rows_probs(c, s, &w, &rows, first, keys, &state, factors);
            rows_outputs(c, s, &w, first, values, factors, &state);
        }
        if (c->thread == 0) SHARED->pieces.phase = ring.phase;
        page_copy_fence_shared(); /* the next copy comes through the async proxy */
        sync_compute();           /* all are done with the piece */
        if (ROW_BUFFERS == 1 && piece + 1 < end) {
            rows_ask(c, &ring, piece + 1, next);
            rows_find(c, &ring, piece + 2);
        }
        buffer = next;
    }
    __syncwarp(); /* all lanes have used what is there */
    rows_put(c, &state);
    rows_store(c, task, s);
}

/* How many of the token rows from `row` on, below `end`, belong to one slot. */
DEV uint32_t rows_same_slot(const struct warp_context *c, uint32_t row, uint32_t end) {
    const uint32_t slot = row_slot(SHARED, row);
    for (uint32_t at = row; at < end; at += 32) {
        const bool other = at + c->lane < end && row_slot(SHARED, at + c->lane) != slot;
        const uint32_t others = __ballot_sync(~0u, other);
        if (others != 0) return at + __popc((others & -others) - 1) - row;
    }
    return end - row;
}

/* The warp's step among an item's rows [row, row + n), and the positions [lo, hi) that any of these
 * rows sees. The rows are of one slot and ascend. A warp may have none of them. */
DEV void rows_segment(const struct warp_context *c, uint32_t window, const struct rows_item *item,
                      uint32_t row, uint32_t n, struct attention_step *s, uint32_t *lo,
                      uint32_t *hi) {
    const uint32_t mine = item->row0 + c->warp * STEP_TOKENS;
    *lo = window_start(window, row_position(SHARED, row));
    *hi = row_position(SHARED, row + n - 1) + 1;
    step_heads(s, item->head / SUBS, item->head % SUBS);
    s->slot = row_slot(SHARED, row);
    s->row0 = max(mine, row);
    const uint32_t last = min(mine + STEP_TOKENS, row + n);
    s->n_tokens = last > s->row0 ? last - s->row0 : 0;
    if (s->n_tokens > 0) {
        step_range(SHARED, window, s);
    } else {
        s->row0 = row; /* any: nothing of it is used */
        s->lo = s->hi = 0;
    }
}

/* Runs an item, slot by slot. */
DEV void rows_run_item(const struct warp_context *c, const struct cuda_task *task,
                       const struct rows_item *item) {
    for (uint32_t row = item->row0; row < item->end;) {
        const uint32_t n = rows_same_slot(c, row, item->end);
        struct attention_step s = {};
        uint32_t lo, hi;
        rows_segment(c, task_window(task), item, row, n, &s, &lo, &hi);
        rows_step(task, lo, hi, s);
        row += n;
    }
}

/* A task that works in the ring's memory takes its lease before the event. */
DEV bool run_attention_rows(struct warp_context *c, const struct cuda_task *task) {
    lease_take(c);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    page_copy_fence(); /* keys and values that other blocks stored will be read by bulk copies */
    struct rows_item item;
    for (uint32_t turn = 0; rows_item_of(task, turn, &item); turn++) rows_run_item(c, task, &item);
    lease_give(c);
    return true;
}

#endif

#endif
