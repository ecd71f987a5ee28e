/* attention_prefill_mma.cuh - ATTENTION of many rows by mma.sync: a warp per step, by itself.
 *
 * Shared memory: see attention_prefill.cuh. A piece is keys, then values: ATTENTION_PIECE rows of
 * ROW_BYTES, chunks of 16 bytes that are swapped so that no two lanes of a load meet in a bank.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PREFILL_MMA_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PREFILL_MMA_CUH

#include "kernels/cuda/attention/attention_prefill_state.cuh"

#if !ROWS_BY_WGMMA

#define ROW_BYTES   cuda_rows_pitch(QN_HEAD_DIM)
#define ROW_PIECE   cuda_rows_piece(QN_HEAD_DIM)
#define ROW_BUFFERS ((LEASE_BYTES - WARPS * ROW_WORK) / ROW_PIECE >= 2 ? 2 : 1)

DEV char *rows_piece(uint32_t buffer) {
    return shared_memory + WARPS * ROW_WORK + buffer * ROW_PIECE;
}

/* Where the cache has rows as they are to lie in shared memory, and a share's 16 positions in one
 * block, it comes as two bulk copies. */
#define ROWS_ARE_BULK (HAS_BULK_COPIES && QN_HEAD_DIM % 64 == 0 && QN_KV_BLOCK % 16 == 0)

/* Pieces on their way; the rest is in block_shared.pieces. Warp w brings positions [16 w, 16 w +
 * 16) of each. */
struct rows_ring {
    uint32_t phase; /* of each buffer's next use, a bit each */
    uint32_t block; /* bulk: the cache block of what the warp asks for next */
};

/* Whose pieces come. All warps are done with those before. */
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

/* Finds the block of what the warp has of a piece: a piece before it is asked for, since it takes a
 * trip. */
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

/* The piece is there. Values of positions from hi on are what others left: zeros, since their
 * weights are, which only numbers survive. */
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

/* Up to position hi; beyond it the last row is repeated. */
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
            const uint16_t *from =
                (const uint16_t *)SHARED->pieces.kv + __shfl_sync(~0u, offset, row) + 8 * chunk;
            if (i >= 16 * chunks) continue;
            copy16_async(keys + row * ROW_BYTES + key_chunk_to(row, chunk) * 16, from);
            copy16_async(values + row * ROW_BYTES + value_chunk_to(row, chunk) * 16,
                         from + KV_VALUE_STRIDE);
        }
    }
    copy_commit();
}

/* The piece is there, and at most the next one on its way. */
DEV void rows_await(const struct warp_context *c, struct rows_ring *, uint32_t piece, uint32_t) {
    const uint32_t hi = SHARED->pieces.hi;
    if (ROW_BUFFERS == 2 && (piece + 1) * ATTENTION_PIECE < hi)
        copy_wait<1>();
    else
        copy_wait<0>();
    sync_compute();
}

#endif

/* Where in a part's keys and values a lane begins; all else that it reads is a constant further,
 * for all that chunks are swapped: what is flipped of a key's chunk number says only whether it
 * begins with the first or the second four of eight chunks. (As a number for each of its reads they
 * were in local memory.) */
struct rows_lane {
    uint32_t key[2], value; /* key: of even fours of chunks, of odd ones */
};
DEV struct rows_lane rows_lane_of(const struct warp_context *c) {
    const uint32_t g = c->lane / 4, j = c->lane % 4;
    const uint32_t row = (g / 2 * 4 + g % 2) * ROW_BYTES + j * 16, swap = g % 2 * 64;
    return {{row + swap, row + 64 - swap}, 4 * j * ROW_BYTES + (g ^ 2 * j) * 16};
}

enum { ROW_PARTS_AT_ONCE = 4 }; /* whose scores are made together */

/* Their scores, as piece_scores; keys: of their positions. */
DEV void rows_scores(const struct warp_context *c, const struct rows_work *w,
                     const struct rows_lane *at, const char *keys,
                     float p[ROW_PARTS_AT_ONCE][2][4]) {
    const uint32_t j = c->lane % 4;
#pragma unroll
    for (int u = 0; u < 2 * ROW_PARTS_AT_ONCE; u++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[u / 2][u % 2][e] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const uint4 even = w->q[64 * i], odd = w->q[64 * i + 32];
        uint4 k[2 * ROW_PARTS_AT_ONCE] = {};
#pragma unroll
        for (int u = 0; u < 2 * ROW_PARTS_AT_ONCE; u++)
            if (QN_HEAD_DIM % 32 == 0 || 32 * i + 8 * j < QN_HEAD_DIM)
                k[u] = *(const uint4 *)(keys + at->key[i % 2] + i / 2 * 128 +
                                        (u / 2 * 16 + u % 2 * 2) * ROW_BYTES);
#pragma unroll
        for (int u = 0; u < 2 * ROW_PARTS_AT_ONCE; u++)
            mma_16x8x16<KV_E>(p[u / 2][u % 2], even, k[u].x, k[u].y);
#pragma unroll
        for (int u = 0; u < 2 * ROW_PARTS_AT_ONCE; u++)
            mma_16x8x16<KV_E>(p[u / 2][u % 2], odd, k[u].z, k[u].w);
    }
}

/* All parts' probabilities, maxima and sums, some parts at a time, so that one's chain of
 * operations fills the other's gaps. Of a part that is not seen: none. `first`: the piece's first
 * position. */
DEV void rows_softmax(const struct warp_context *c, const struct attention_step *s,
                      const struct rows_work *w, const struct rows_lane *at,
                      const struct attention_rows *rows, uint32_t first, const char *keys) {
#pragma unroll 1
    for (uint32_t n = 0; n < ROW_PARTS; n += ROW_PARTS_AT_ONCE, first += 16 * ROW_PARTS_AT_ONCE,
                  keys += 16 * ROW_PARTS_AT_ONCE * ROW_BYTES) {
        float max[ROW_PARTS_AT_ONCE][2], sum[ROW_PARTS_AT_ONCE][2];
#pragma unroll
        for (int x = 0; x < ROW_PARTS_AT_ONCE; x++) {
            max[x][0] = max[x][1] = -INFINITY;
            sum[x][0] = sum[x][1] = 0;
        }
        if (first < s->hi && first + 16 * ROW_PARTS_AT_ONCE > s->lo) {
            float p[ROW_PARTS_AT_ONCE][2][4];
            rows_scores(c, w, at, keys, p);
#pragma unroll
            for (int x = 0; x < ROW_PARTS_AT_ONCE; x++) {
                piece_softmax<2>(c, rows, first + 16 * x, p[x], max[x], sum[x]);
                w->p[32 * (n + x)] = piece_weights<2>(p[x]);
            }
        }
        if (c->lane % 4 == 0)
#pragma unroll
            for (int i = 0; i < 2 * ROW_PARTS_AT_ONCE; i++) {
                const int x = i / 2, h = i % 2;
                w->max[(n + x) * 16 + c->lane / 4 + 8 * h] = max[x][h];
                w->sum[(n + x) * 16 + c->lane / 4 + 8 * h] = sum[x][h];
            }
    }
    __syncwarp();
}

/* The parts' factors in place of their maxima; the piece's own into the state. */
DEV void rows_factors(const struct warp_context *c, const struct rows_work *w, struct rows_state *s,
                      struct merge factors[2]) {
    float part[2][ROW_PARTS];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        float sums[ROW_PARTS];
#pragma unroll
        for (int n = 0; n < ROW_PARTS; n++) {
            part[h][n] = w->max[n * 16 + m];
            sums[n] = w->sum[n * 16 + m];
        }
        factors[h] = rows_merge(part[h], sums, &s->max[h], &s->sum[h]);
    }
    __syncwarp(); /* all have read the maxima */
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < ROW_PARTS; n++) w->max[n * 16 + c->lane / 4 + 8 * h] = part[h][n];
    __syncwarp();
}

/* Outputs of 64 columns of N parts from number n on, times the parts' factors, onto `sum`. */
template <int N>
DEV void rows_output(const struct warp_context *c, const struct rows_work *w,
                     const struct rows_lane *at, const char *values, uint32_t span, uint32_t n,
                     float sum[8][4]) {
    const uint32_t g = c->lane / 4;
    uint4 p[N], v[N][4];
    float factor[N][2];
#pragma unroll
    for (int x = 0; x < N; x++) {
        const char *from = values + (n + x) * 16 * ROW_BYTES + at->value + span * 128;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[x][i] = make_uint4(0, 0, 0, 0);
            if (QN_HEAD_DIM % 64 == 0 || 64 * span + 8 * g < QN_HEAD_DIM)
                v[x][i] = *(const uint4 *)(from + i * ROW_BYTES);
        }
        p[x] = w->p[32 * (n + x)];
#pragma unroll
        for (int h = 0; h < 2; h++) factor[x][h] = w->max[(n + x) * 16 + g + 8 * h];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float out[N][4];
#pragma unroll
        for (int x = 0; x < N; x++) piece_column(p[x], v[x], i, out[x]);
#pragma unroll
        for (int x = 0; x < N; x++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][e] = share_add(sum[i][e], out[x][e], factor[x][e / 2]);
    }
}

/* Whether the step sees any of the 16 positions from `first` on. */
DEV bool rows_sees(const struct attention_step *s, uint32_t first) {
    return first < s->hi && first + 16 > s->lo;
}

/* A piece's outputs onto the state. */
DEV void rows_outputs(const struct warp_context *c, const struct attention_step *s,
                      const struct rows_work *w, const struct rows_lane *at, uint32_t first,
                      const char *values, const struct merge factors[2], struct rows_state *state) {
#pragma unroll
    for (int span = 0; span < SPANS; span++) {
        float sum[8][4] = {};
#pragma unroll 1
        for (uint32_t n = 0; n < ROW_PARTS; n += 2) {
            const bool seen[2] = {rows_sees(s, first + 16 * n), rows_sees(s, first + 16 * n + 16)};
            if (seen[0] && seen[1])
                rows_output<2>(c, w, at, values, span, n, sum);
            else if (seen[0] || seen[1])
                rows_output<1>(c, w, at, values, span, seen[0] ? n : n + 1, sum);
        }
        rows_add<8>(state, 8 * span, sum, factors);
    }
}

/* The warp's outputs to its memory, for rows_store. */
DEV void rows_put(const struct warp_context *c, const struct rows_state *state) {
    float *work = (float *)(shared_memory + c->warp * ROW_WORK);
    __syncwarp(); /* all have used what is there */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float inv = reciprocal_fast(state->sum[h]);
        float *row = work + (c->lane / 4 + 8 * h) * ROW_OUT;
#pragma unroll
        for (int i = 0; i < 8 * SPANS; i += 4) /* columns: see store_chunk */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t d = i / 8 * 64 + c->lane % 4 * 16 + 8 * half + i % 8;
                const int e = 2 * h + half;
                if (d >= QN_HEAD_DIM) continue;
                *(float4 *)(row + d) =
                    make_float4(state->out[i][e] * inv, state->out[i + 1][e] * inv,
                                state->out[i + 2][e] * inv, state->out[i + 3][e] * inv);
            }
    }
}

/* All pieces of a warp's step, which are those of positions [lo, hi): what all warps' steps see
 * together, of the same slot and head. A function of its own: what its callers keep leaves it no
 * registers. */
CODE(void, rows_step, const struct cuda_task *task, uint32_t lo, uint32_t hi,
     struct attention_step mine) {
    const struct warp_context here = context_of(&SHARED->args, threadIdx.x, 0, 0), *c = &here;
    const struct attention_step *s = &mine;
    const struct rows_work w = rows_work_of(c);
    const struct rows_lane at = rows_lane_of(c);
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
            rows_softmax(c, s, &w, &at, &rows, first, keys);
            rows_factors(c, &w, &state, factors);
            rows_outputs(c, s, &w, &at, first, values, factors, &state);
        }
        if (c->thread == 0) SHARED->pieces.phase = ring.phase;
        sync_compute(); /* all are done with the piece */
        if (ROW_BUFFERS == 1 && piece + 1 < end) {
            rows_ask(c, &ring, piece + 1, next);
            rows_find(c, &ring, piece + 2);
        }
        buffer = next;
    }
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

/* The warp's step among an item's rows [row, row + n), which are of one slot and ascend, and all
 * positions [lo, hi) that these see. A warp may have none of them. */
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

/* An item, slot by slot. */
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
