/* attention_prefill_wgmma.cuh - ATTENTION of many rows by wgmma: four warps, a step each, have one
 * product together, and read keys and values from shared memory as it wants them there.
 *
 * The sums stay those of mma.sync in the other forms. There a lane has 16 bytes of a key, whose
 * halves belong to two steps of 16 columns: so a step has the first (second) 8 bytes of four chunks
 * of 16. And there a lane has four positions of a share of 16, one after the other, two of each
 * product's columns: so position 4 j + 2 u + e is column, and row of the values, 8 u + 2 j + e of
 * its share.
 *
 * Shared memory: see attention_prefill.cuh. A warp brings a share of 16 positions of each piece, by
 * bulk copies, as it lies in the cache, and puts it into the piece that is multiplied while the
 * next one comes. That is keys, then values, each [head_dim / 8 chunks][ATTENTION_PIECE rows][16
 * bytes], with 16 bytes after each chunk's rows for the banks' sake:
 *
 *   keys     chunk 2 n, 2 n + 1: what step n multiplies of them
 *   values   chunk n: columns [8 n, 8 n + 8)
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PREFILL_WGMMA_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PREFILL_WGMMA_CUH

#include "kernels/cuda/attention/attention_prefill_state.cuh"

#if ROWS_BY_WGMMA

static_assert(KV_SWAPS, "as key_at, value_at have them");

/* What a warp keeps of its step from one function to the next. */
struct alignas(16) rows_warp {
    struct attention_step step;
    uint32_t lo[16], hi[16]; /* of each row: visible positions */
    uint32_t piece;          /* the first that any warp's step sees */
    uint32_t block;          /* of the cache: what the warp asks for next */
    uint32_t turn, at;       /* of the next step: rows_enter */
};
/* Of the item's token rows. */
struct rows_place {
    uint32_t slot, position;
};

enum {
    ROW_CHUNK = ATTENTION_PIECE * 16 + 16, /* bytes from a chunk to the next */
    ROW_EIGHT =
        32, /* ... and more from eight chunks of keys to the next: a warp puts some of each */
    ROW_VALUES = QN_HEAD_DIM / 8 * ROW_CHUNK + QN_HEAD_DIM / 64 * ROW_EIGHT,
    ROW_SHARE = 16 * 2 * QN_HEAD_DIM, /* of keys or values, as they come */
    ROW_TILE = WARPS * ROW_WORK,      /* where the piece is that is multiplied */
    ROW_RAW = ROW_TILE + ROW_VALUES + QN_HEAD_DIM / 8 * ROW_CHUNK,
    ROW_WARPS = ROW_RAW + 2 * WARPS * ROW_SHARE,
    ROW_PLACES = ROW_WARPS + WARPS * sizeof(struct rows_warp)
};
static_assert(ROW_PLACES + GROUP_ROWS * sizeof(struct rows_place) <= LEASE_BYTES, "room for it");

DEV struct rows_place *rows_places(void) {
    return (struct rows_place *)(shared_memory + ROW_PLACES);
}
DEV struct rows_warp *rows_warp_of(const struct warp_context *c) {
    return (struct rows_warp *)(shared_memory + ROW_WARPS) + c->warp;
}

/* The row of a share of 16 where position x of it is. */
constexpr DEV uint32_t rows_slot(uint32_t x) {
    return x / 2 % 2 * 8 + x / 4 * 2 + x % 2;
}

/* Finds the cache block of what the warp brings of a piece: a piece before it is asked for, since
 * it takes a trip. */
DEV uint32_t rows_find(const struct warp_context *c, uint32_t piece) {
    const uint32_t first = rows_share(c, piece);
    if (first >= SHARED->pieces.hi) return 0;
    return kv_block(&SHARED->batch, SHARED->pieces.slot, first);
}

/* Where the warp's keys come; its values ROW_SHARE further. */
DEV char *rows_raw(const struct warp_context *c) {
    return shared_memory + ROW_RAW + c->warp * (2 * ROW_SHARE);
}

/* Asks for the warp's share of a piece. Called when no warp reads the old one any more. */
DEV void rows_ask(const struct warp_context *c, uint32_t block, uint32_t piece) {
    uint64_t *full = &SHARED->piece_full[0];
    const uint32_t first = rows_share(c, piece);
    if (!warp_elect()) return;
    if (first >= SHARED->pieces.hi) {
        page_copy_nothing(full);
        return;
    }
    const uint16_t *from = (const uint16_t *)SHARED->pieces.kv +
                           (uint64_t)kv_block_row(block, first) * QN_HEAD_DIM +
                           (uint64_t)SHARED->pieces.kv_head * KV_HEAD_STRIDE;
    copies_begin(full, 2 * ROW_SHARE);
    copies_one(rows_raw(c), from, ROW_SHARE, full);
    copies_one(rows_raw(c) + ROW_SHARE, from + KV_VALUE_STRIDE, ROW_SHARE, full);
    copies_end(full);
}

/* Where chunk n of the keys begins. */
constexpr DEV uint32_t rows_key_chunk(uint32_t n) {
    return n * ROW_CHUNK + n / 8 * ROW_EIGHT;
}

/* The warp's share of keys, which has come, to where they are multiplied. 512 bytes at a time. */
DEV void rows_put_keys(const struct warp_context *c) {
    constexpr uint32_t rows = 256 / QN_HEAD_DIM, chunks = QN_HEAD_DIM / 8;
    const uint32_t row = c->lane / chunks, chunk = c->lane % chunks ^ row % 2 * 4; /* key_at */
    const uint32_t step = chunk / 4 * 2, quad = chunk % 4; /* four of each of two steps' columns */
    const char *from = rows_raw(c) + c->lane * 16;
    char *to = shared_memory + ROW_TILE + c->warp * 256 + rows_slot(row) * 16 +
               rows_key_chunk(2 * step + quad / 2) + quad % 2 * 8;
    uint4 v[16 / rows];
#pragma unroll
    for (uint32_t i = 0; i < 16 / rows; i++) v[i] = *(const uint4 *)(from + i * 512);
#pragma unroll
    for (uint32_t i = 0; i < 16 / rows; i++) {
        *(uint2 *)(to + rows_slot(rows * i) * 16) = make_uint2(v[i].x, v[i].y);
        *(uint2 *)(to + rows_slot(rows * i) * 16 + 2 * ROW_CHUNK) = make_uint2(v[i].z, v[i].w);
    }
}

/* The same of values. n: its positions; those beyond are what others left, and become zeros, since
 * their weights are, which only numbers survive. */
DEV void rows_put_values(const struct warp_context *c, uint32_t n) {
    constexpr uint32_t rows = 256 / QN_HEAD_DIM, chunks = QN_HEAD_DIM / 8;
    const uint32_t row = c->lane / chunks, chunk = c->lane % chunks;
    const char *from = rows_raw(c) + ROW_SHARE + c->lane * 16;
    char *to = shared_memory + ROW_TILE + ROW_VALUES + c->warp * 256 + rows_slot(row) * 16;
    uint4 v[16 / rows];
#pragma unroll
    for (uint32_t i = 0; i < 16 / rows; i++) v[i] = *(const uint4 *)(from + i * 512);
#pragma unroll
    for (uint32_t i = 0; i < 16 / rows; i++) {
        const uint32_t swap = rows * i / 4 * 2; /* value_at */
        if (rows * i + row >= n) v[i] = make_uint4(0, 0, 0, 0);
        *(uint4 *)(to + rows_slot(rows * i) * 16 + (chunk ^ swap) * ROW_CHUNK) = v[i];
    }
}

/* Takes a piece that was asked for, and asks for the next one, unless it is the last. Then all
 * warps have put theirs. What it wants to know is in shared memory: sums need the registers. */
DEV void rows_take(const struct warp_context *c, uint32_t piece, bool last) {
    struct rows_warp *mine = rows_warp_of(c);
    const uint32_t first = rows_share(c, piece), hi = SHARED->pieces.hi;
    barrier_wait_acquire_cta(&SHARED->piece_full[0], SHARED->pieces.phase);
    rows_put_keys(c);
    rows_put_values(c, hi > first ? hi - first : 0);
    if (!last) {
        const uint32_t block = mine->block;
        __syncwarp(); /* all lanes have read what came, and this */
        rows_ask(c, block, piece + 1);
    }
    page_copy_fence_shared(); /* products will read where this thread wrote */
    sync_compute();
    if (c->thread == 0) SHARED->pieces.phase ^= 1;
}

/* The queries of the warp's step, whose first row is number `at` of the item: the lane's share of A
 * in each product, and what they see, into the warp's memory. */
DEV void rows_queries(const struct warp_context *c, const struct cuda_task *task,
                      const struct attention_step *s, uint32_t at) {
    struct rows_warp *mine = rows_warp_of(c);
    const struct rows_work w = rows_work_of(c);
    const float *from[2] = {nullptr, nullptr}, *q = (const float *)task->in;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t m = c->lane / 4 + 8 * h, token = m / SUB_HEADS, head = m % SUB_HEADS;
        const bool exists = token < s->n_tokens && head < s->n_heads;
        const uint32_t position = exists ? rows_places()[at + token].position : 0;
        if (exists)
            from[h] =
                q + ((uint64_t)(s->row0 + token) * QN_N_HEADS + s->head0 + head) * QN_HEAD_DIM;
        if (c->lane % 4 != 0) continue;
        mine->lo[m] = exists ? window_start(task_window(task), position) : 0;
        mine->hi[m] = exists ? position + 1 : 0;
    }
    const uint32_t d = c->lane % 4 / 2 * 8 + c->lane % 2 * 2;
#pragma unroll
    for (int n = 0; n < QN_HEAD_DIM / 16; n++) {
        float2 v[2][2] = {};
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int high = 0; high < 2; high++)
                if (from[h] != nullptr)
                    v[h][high] = load2_l2(from[h] + n / 2 * 32 + n % 2 * 4 + high * 16 + d);
        w.q[32 * n] = make_uint4(
            pack_pair<KV_E>(v[0][0].x, v[0][0].y), pack_pair<KV_E>(v[1][0].x, v[1][0].y),
            pack_pair<KV_E>(v[0][1].x, v[0][1].y), pack_pair<KV_E>(v[1][1].x, v[1][1].y));
    }
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

/* The steps of one slot among the rows of a turn's item, from number `at` on, are next: their first
 * piece is asked for. All warps are done with those before. False: there is none. Of trips to L2
 * there are two until then: rows ascend in a slot, and all that is known of them is fetched at
 * once. */
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
    const uint32_t block = rows_find(c, piece), next = rows_find(c, piece + 1);
    struct attention_step s = {};
    step_heads(&s, item.head / SUBS, item.head % SUBS);
    const uint32_t mine_at = max(first, at), mine_end = min(first + STEP_TOKENS, end);
    s.row0 = item.row0 + mine_at;
    s.n_tokens = mine_end > mine_at ? mine_end - mine_at : 0;
    rows_ask(c, block, piece);
    rows_queries(c, task, &s, mine_at);
    if (c->lane == 0) {
        mine->step = s;
        mine->piece = piece;
        mine->block = next;
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

enum { ROW_PARTS_AT_ONCE = 4 }; /* whose scores are made together */

/* Scores of some parts from number n on: p[2 n + u] as piece_scores has them of one. */
DEV void rows_scores(const struct rows_work *w, uint32_t n, float (&p)[2 * ROW_PARTS_AT_ONCE][4]) {
    const uint64_t k = wgmma_matrix(shared_memory, ROW_TILE + n * 256, ROW_CHUNK, 128);
    uint4 q[QN_HEAD_DIM / 16];
#pragma unroll
    for (int i = 0; i < QN_HEAD_DIM / 16; i++) q[i] = w->q[32 * i];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QN_HEAD_DIM / 16; i++)
        wgmma_64x64x16<KV_E>(p, q[i], wgmma_further(k, rows_key_chunk(2 * i)), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(p);
}

/* What a lane keeps of a piece's parts, of its two rows. */
struct rows_parts {
    float max[2][ROW_PARTS], sum[2][ROW_PARTS]; /* max: then the factors */
};

/* What the lane's two rows see. */
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

/* Whether all of the warp's rows see all of the piece that begins at `first`. Most do, and need no
 * comparisons. */
DEV bool rows_see_all(const struct warp_context *c, uint32_t first) {
    const struct attention_rows rows = rows_sight(c);
    return __all_sync(~0u, max(rows.lo[0], rows.lo[1]) <= first &&
                               min(rows.hi[0], rows.hi[1]) >= first + ATTENTION_PIECE);
}

/* Their probabilities, maxima and sums. `first`: the position of the first. */
template <bool MASKED>
DEV void rows_softmax(const struct warp_context *c, const struct rows_work *w, uint32_t n,
                      uint32_t first, float (&p)[2 * ROW_PARTS_AT_ONCE][4],
                      struct rows_parts *parts) {
    struct attention_rows rows = {};
    if (MASKED) rows = rows_sight(c);
#pragma unroll
    for (int x = 0; x < ROW_PARTS_AT_ONCE; x++) {
        float max[2], sum[2];
        piece_softmax<2, MASKED>(c, &rows, first + 16 * x, &p[2 * x], max, sum);
        w->p[32 * (n + x)] = piece_weights<2>(&p[2 * x]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            parts->max[h][n + x] = max[h];
            parts->sum[h][n + x] = sum[h];
        }
    }
}

/* Asks for the product of a part's probabilities and 32 columns of its values. */
DEV void rows_product(uint4 p, uint32_t span, uint32_t part, float (&out)[4][4]) {
    const uint64_t v = wgmma_matrix(
        shared_memory, ROW_TILE + ROW_VALUES + span * 4 * ROW_CHUNK + part * 256, 128, ROW_CHUNK);
    wgmma_fence();
    wgmma_64x32x16_turned<KV_E>(out, p, v);
    wgmma_commit();
}

/* The outputs of a piece, part by part times their factors, onto the state. One
 * product is under way while the one before it is added, and probabilities are fetched two ahead.
 */
DEV void rows_outputs(const struct rows_work *w, const struct rows_parts *parts,
                      const struct merge factors[2], struct rows_state *state) {
    constexpr int n = QN_HEAD_DIM / 32 * ROW_PARTS;
    float out[2][4][4] = {}; /* the compiler asks for values */
    float sum[4][4];
    uint4 p[2] = {w->p[0], w->p[32]};
    rows_product(p[0], 0, 0, out[0]);
#pragma unroll
    for (int at = 0; at < n; at++) {
        const int span = at / ROW_PARTS, part = at % ROW_PARTS, next = (at + 1) % 2;
        if (at + 1 < n) {
            rows_product(p[next], (at + 1) / ROW_PARTS, (at + 1) % ROW_PARTS, out[next]);
            wgmma_wait<1>();
            p[at % 2] = w->p[(at + 2) % ROW_PARTS * 32];
        } else {
            wgmma_wait<0>();
        }
        wgmma_settle(out[at % 2]);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][e] = share_add(part == 0 ? 0 : sum[i][e], out[at % 2][i][e],
                                      parts->max[e / 2][part]);
        if (part + 1 == ROW_PARTS) rows_add<4>(state, 4 * span, sum, factors);
    }
}

/* The warp's outputs to its memory, for rows_store. */
DEV void rows_put(const struct warp_context *c, const struct rows_state *state) {
    float *work = (float *)(shared_memory + c->warp * ROW_WORK);
    __syncwarp(); /* all have used what is there */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float inv = reciprocal_fast(state->sum[h]);
        float *row = work + (c->lane / 4 + 8 * h) * ROW_OUT + c->lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8 * SPANS; i++)
            *(float2 *)(row + 8 * i) =
                make_float2(state->out[i][2 * h] * inv, state->out[i][2 * h + 1] * inv);
    }
}

/* All pieces of the steps at hand. One that sees nothing of a piece has no weights in it, and
 * nothing changes. Inlined into the kernel, where the compiler can follow the products. */
DEV void rows_multiply(void) {
    const struct warp_context here = context_of(&SHARED->args, thread_here(), 0, 0), *c = &here;
    const struct rows_work w = rows_work_of(c);
    struct rows_warp *mine = rows_warp_of(c);
    const uint32_t hi = __shfl_sync(~0u, SHARED->pieces.hi, 0);
    uint32_t piece = __shfl_sync(~0u, mine->piece, 0);
    struct rows_state state = {};
#pragma unroll 1
    for (; piece * ATTENTION_PIECE < hi; piece++) {
        const uint32_t first = piece * ATTENTION_PIECE;
        float p[2 * ROW_PARTS_AT_ONCE][4] = {}; /* the compiler asks for values */
        struct rows_parts parts;
        struct merge factors[2];
        const bool all = rows_see_all(c, first);
        rows_take(c, piece, hi - first <= ATTENTION_PIECE);
        const uint32_t block = rows_find(c, piece + 2); /* comes while scores are made */
#pragma unroll
        for (uint32_t n = 0; n < ROW_PARTS; n += ROW_PARTS_AT_ONCE) {
            rows_scores(&w, n, p);
            if (n == 0 && c->lane == 0) mine->block = block;
            if (all)
                rows_softmax<false>(c, &w, n, first + 16 * n, p, &parts);
            else
                rows_softmax<true>(c, &w, n, first + 16 * n, p, &parts);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            factors[h] = rows_merge(parts.max[h], parts.sum[h], &state.max[h], &state.sum[h]);
        rows_outputs(&w, &parts, factors, &state);
        sync_compute(); /* all are done with the piece */
    }
    rows_put(c, &state);
}

/* The results of the steps at hand; then goes on to the next steps, as rows_enter. */
DEV bool rows_go_on(const struct warp_context *c, const struct cuda_task *task) {
    const struct rows_warp *mine = rows_warp_of(c);
    const uint32_t turn = mine->turn, at = mine->at;
    rows_store(c, task, &mine->step);
    sync_compute(); /* all have read whose pieces came */
    return rows_enter(c, task, turn, at);
}

#endif

#endif
