/* attention_rows.cuh - ATTENTION of many rows: a warp per step, all warps on one KV head.
 *
 * The sums are those of attention.cuh: 16 positions at a time against their own maximum, eight such
 * parts of a piece merged in order, pieces merged in order. There a piece's parts belong to eight
 * warps; here one warp takes them one after the other for its own 16 query rows, so that a piece of
 * keys and values, once in shared memory, serves 128 query rows.
 *
 * Bytes: a piece of one KV head, 4 * ATTENTION_PIECE * head_dim, once per eight steps; operations:
 * 4 * ATTENTION_PIECE * head_dim per query row.
 *
 * Shared memory (a lease, packed.cuh):
 *
 *   0            per warp: q [2 * PAIRS][32 lanes] and probabilities [8 parts][32 lanes], 16 bytes
 *                each, maxima and sums of the parts [8][16 rows] each
 *   + WARPS *    pieces [ROW_BUFFERS], each keys, then values: ATTENTION_PIECE rows of ROW_BYTES,
 * in ROW_WORK   chunks of 16 bytes that are swapped so that no two lanes of a load meet in a bank
 */
#ifndef QN_CUDA_COMMON_ATTENTION_ROWS_CUH
#define QN_CUDA_COMMON_ATTENTION_ROWS_CUH

#include "kernels/cuda/common/attention.cuh"
#include "kernels/cuda/common/packed.cuh"

#define ROW_BYTES   cuda_rows_pitch(QN_HEAD_DIM)
#define ROW_PIECE   cuda_rows_piece(QN_HEAD_DIM)
#define ROW_WORK    cuda_rows_work(QN_HEAD_DIM)
#define ROW_PARTS   (ATTENTION_PIECE / 16)
#define ROW_BUFFERS ((LEASE_BYTES - WARPS * ROW_WORK) / ROW_PIECE >= 2 ? 2 : 1)
#define GROUP_ROWS  (WARPS * STEP_TOKENS) /* token rows of an item */
static_assert(LEASE_BYTES == cuda_lease_bytes(__CUDA_ARCH__ / 10), "the host knows what fits");

/* A warp's own memory. */
struct rows_work {
    uint4 *q, *p;     /* this lane's; 32 apart */
    float *max, *sum; /* [part][16] */
};

DEV struct rows_work rows_work_of(const struct warp_context *c) {
    char *at = shared_memory + c->warp * ROW_WORK;
    struct rows_work w;
    w.q = (uint4 *)at + c->lane;
    w.p = w.q + 2 * PAIRS * 32;
    w.max = (float *)(at + (2 * PAIRS + ROW_PARTS) * 512);
    w.sum = w.max + ROW_PARTS * 16;
    return w;
}

DEV char *rows_piece(uint32_t buffer) {
    return shared_memory + WARPS * ROW_WORK + buffer * ROW_PIECE;
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

/* Asks for keys and values of a piece, up to position hi; beyond it the last row is repeated. Warp
 * w brings positions [16 w, 16 w + 16). */
DEV void rows_ask(const struct warp_context *c, const struct attention_step *s, const uint16_t *kv,
                  uint32_t piece, char *to) {
    const uint32_t first = piece * ATTENTION_PIECE + 16 * c->warp, chunks = QN_HEAD_DIM / 8;
    if (first < s->hi) {
        const uint64_t offset = position_offset(c, s, first);
        char *keys = to + 16 * c->warp * ROW_BYTES, *values = keys + ATTENTION_PIECE * ROW_BYTES;
#pragma unroll 2
        for (uint32_t i = c->lane; i < (16 * chunks + 31) / 32 * 32; i += 32) {
            const uint32_t row = i / chunks % 16, chunk = i % chunks;
            const uint16_t *from = kv + __shfl_sync(~0u, offset, row) + 8 * chunk;
            if (i >= 16 * chunks) continue;
            copy16_async(keys + row * ROW_BYTES + key_chunk_to(row, chunk) * 16, from);
            copy16_async(values + row * ROW_BYTES + value_chunk_to(row, chunk) * 16,
                         from + KV_VALUE_STRIDE);
        }
    }
    copy_commit();
}

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

/* Two parts' scores, as piece_scores; keys: of their 32 positions. */
DEV void rows_scores(const struct warp_context *c, const struct rows_work *w,
                     const struct rows_lane *at, const char *keys, float p[2][2][4]) {
    const uint32_t j = c->lane % 4;
#pragma unroll
    for (int u = 0; u < 4; u++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[u / 2][u % 2][e] = 0;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const uint4 even = w->q[64 * i], odd = w->q[64 * i + 32];
        uint4 k[4] = {};
#pragma unroll
        for (int u = 0; u < 4; u++)
            if (QN_HEAD_DIM % 32 == 0 || 32 * i + 8 * j < QN_HEAD_DIM)
                k[u] = *(const uint4 *)(keys + at->key[i % 2] + i / 2 * 128 +
                                        (u / 2 * 16 + u % 2 * 2) * ROW_BYTES);
#pragma unroll
        for (int u = 0; u < 4; u++) mma_16x8x16<KV_E>(p[u / 2][u % 2], even, k[u].x, k[u].y);
#pragma unroll
        for (int u = 0; u < 4; u++) mma_16x8x16<KV_E>(p[u / 2][u % 2], odd, k[u].z, k[u].w);
    }
}

/* All parts' probabilities, maxima and sums, two parts at a time, so that one's chain of operations
 * fills the other's gaps. Of a part that is not seen: none. `first`: the piece's first position. */
DEV void rows_softmax(const struct warp_context *c, const struct attention_step *s,
                      const struct rows_work *w, const struct rows_lane *at,
                      const struct attention_rows *rows, uint32_t first, const char *keys) {
#pragma unroll 1
    for (uint32_t n = 0; n < ROW_PARTS; n += 2, first += 32, keys += 32 * ROW_BYTES) {
        struct attention_part part[2];
#pragma unroll
        for (int x = 0; x < 2; x++) {
            part[x].max[0] = part[x].max[1] = -INFINITY;
            part[x].sum[0] = part[x].sum[1] = 0;
        }
        if (first < s->hi && first + 32 > s->lo) {
            float p[2][2][4];
            rows_scores(c, w, at, keys, p);
#pragma unroll
            for (int x = 0; x < 2; x++) {
                piece_softmax<2>(c, rows, first + 16 * x, p[x], &part[x]);
                w->p[32 * (n + x)] = piece_weights<2>(p[x]);
            }
        }
        if (c->lane % 4 == 0)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int x = i / 2, h = i % 2;
                w->max[(n + x) * 16 + c->lane / 4 + 8 * h] = part[x].max[h];
                w->sum[(n + x) * 16 + c->lane / 4 + 8 * h] = part[x].sum[h];
            }
    }
    __syncwarp();
}

/* A row's state over pieces. */
struct rows_state {
    float max[2], sum[2];
    float out[8 * SPANS][4]; /* as attention_part */
};

/* The parts' factors in place of their maxima; the piece's own into the state: the
 * operations of step_merge (attention_steps.cuh). */
DEV void rows_merge(const struct warp_context *c, const struct rows_work *w, struct rows_state *s,
                    struct merge factors[2]) {
    float factor[2][ROW_PARTS];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t m = c->lane / 4 + 8 * h;
        const float most = most_of(w->max, m);
        float sum = 0;
#pragma unroll
        for (int n = 0; n < ROW_PARTS; n++) {
            factor[h][n] = warp_factor(w->max[n * 16 + m], most);
            sum = fmaf(w->sum[n * 16 + m], factor[h][n], sum);
        }
        factors[h] = merge_factors(s->max[h], s->sum[h], most);
        s->sum[h] = merge_value(&factors[h], s->sum[h], sum);
        s->max[h] = factors[h].max;
    }
    __syncwarp(); /* all have read the maxima */
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int n = 0; n < ROW_PARTS; n++) w->max[n * 16 + c->lane / 4 + 8 * h] = factor[h][n];
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
                sum[i][e] = __fadd_rn(sum[i][e], __fmul_rn(out[x][e], factor[x][e / 2]));
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
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *out = &state->out[8 * span + i][e];
                *out = merge_value(&factors[e / 2], *out, sum[i][e]);
            }
    }
}

/* The warp's outputs, by way of its memory, a row of it for each row of the step: so that storing
 * them is a short loop (from registers it was 17 KB of the kernel's code). */
#define ROW_OUT (QN_HEAD_DIM + 4) /* floats */
static_assert(16 * ROW_OUT * 4 <= ROW_WORK, "the outputs of 16 rows");

DEV void rows_store(const struct warp_context *c, const struct cuda_task *task,
                    const struct attention_step *s, const struct rows_state *state) {
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
    __syncwarp();
#pragma unroll 1
    for (uint32_t i = c->lane; i < 16 * (QN_HEAD_DIM / 4); i += 32) {
        const uint32_t m = i / (QN_HEAD_DIM / 4), d = i % (QN_HEAD_DIM / 4) * 4;
        const uint32_t token = m / SUB_HEADS, head = m % SUB_HEADS;
        if (token >= s->n_tokens || head >= s->n_heads) continue;
        output_store4(task, (uint64_t)(s->row0 + token) * QN_N_HEADS + s->head0 + head, d,
                      *(const float4 *)(work + m * ROW_OUT + d));
    }
    __syncwarp(); /* the next step's queries will be there */
}

/* All pieces of a warp's step. `all`: what all warps' steps together see; the slot and the head are
 * the same. A function of its own: what its callers keep leaves it no registers. */
__device__ __noinline__ void rows_step(const struct cuda_task *task, struct attention_step all_here,
                                       struct attention_step mine) {
    const struct warp_context here = context_of(&SHARED->args, threadIdx.x, 0, 0), *c = &here;
    const struct attention_step *all = &all_here, *s = &mine;
    const struct rows_work w = rows_work_of(c);
    const struct rows_lane at = rows_lane_of(c);
    const uint16_t *kv = (const uint16_t *)task->more;
    const uint32_t end = (all->hi - 1) / ATTENTION_PIECE + 1;
    uint32_t piece = all->lo / ATTENTION_PIECE, buffer = 0;
    struct attention_rows rows;
    struct rows_state state = {};
    rows_ask(c, all, kv, piece, rows_piece(0));
    load_rows<2>(c, s, (const float *)task->in, &rows);
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) w.q[32 * i] = rows.q[i];
#pragma unroll 1
    for (; piece < end; piece++) {
        const char *keys = rows_piece(buffer), *values = keys + ATTENTION_PIECE * ROW_BYTES;
        const uint32_t first = piece * ATTENTION_PIECE;
        if (ROW_BUFFERS == 2) {
            buffer ^= 1;
            if (piece + 1 < end)
                rows_ask(c, all, kv, piece + 1, rows_piece(buffer));
            else
                copy_commit();
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        sync_compute();
        if (first < s->hi && first + ATTENTION_PIECE > s->lo) {
            struct merge factors[2];
            rows_softmax(c, s, &w, &at, &rows, first, keys);
            rows_merge(c, &w, &state, factors);
            rows_outputs(c, s, &w, &at, first, values, factors, &state);
        }
        sync_compute();
        if (ROW_BUFFERS == 1 && piece + 1 < end) rows_ask(c, all, kv, piece + 1, rows_piece(0));
    }
    rows_store(c, task, s, &state);
}

/* An item: GROUP_ROWS token rows of one KV head, slot by slot. */
DEV void rows_item(const struct warp_context *c, const struct cuda_task *task, uint32_t group,
                   uint32_t head) {
    const uint32_t row0 = group * GROUP_ROWS;
    const uint32_t end = min(row0 + GROUP_ROWS, SHARED->batch.rows.n_rows);
    const uint32_t mine = row0 + c->warp * STEP_TOKENS;
    for (uint32_t row = row0; row < end;) {
        const uint32_t n = rows_same_slot(c, row, end);
        struct attention_step all = {}, s;
        step_heads(&all, head / SUBS, head % SUBS);
        all.slot = row_slot(SHARED, row);
        all.lo = window_start(row_position(SHARED, row)); /* a slot's rows ascend */
        all.hi = row_position(SHARED, row + n - 1) + 1;
        s = all;
        s.row0 = max(mine, row);
        const uint32_t last = min(mine + STEP_TOKENS, row + n);
        s.n_tokens = last > s.row0 ? last - s.row0 : 0;
        if (s.n_tokens > 0) {
            step_range(SHARED, &s);
        } else {
            s.row0 = row; /* any: nothing of it is used */
            s.lo = s.hi = 0;
        }
        rows_step(task, all, s);
        row += n;
    }
}

/* The task's share of the items: every n-th, back and forth, since later rows see more. */
DEV void rows_task(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t n = ceil_div(SHARED->batch.rows.n_rows, GROUP_ROWS) * HEAD_STEPS;
    for (uint32_t turn = 0; turn * task->unit1 < n; turn++) {
        const uint32_t mine = turn % 2 == 0 ? task->unit0 : task->unit1 - 1 - task->unit0;
        const uint32_t item = turn * task->unit1 + mine;
        if (item < n) rows_item(c, task, (n - 1 - item) / HEAD_STEPS, item % HEAD_STEPS);
    }
}

#endif
