/* attention_combine.cuh - ATTENTION_COMBINE: the states of a row's pieces, merged in order of
 * position into the output of a head.
 *
 * Short contexts: one warp per row, head and 32 columns. Long ones: all warps together, head after
 * head. What a
 * piece's state is multiplied with follows from the maxima alone, so it is found for up to 256
 * pieces at once; then each thread has one column and adds the pieces in order, while the next ones
 * are on their way into shared memory. Both ways do the same operations on the same numbers.
 *
 * Bytes: (head_dim + 2) * 4 per piece, from L2 where it fits.
 *
 * Flagged pieces (task/carry.c) are polled into scratch before anything else, as many as there is
 * room for.
 *
 * Scratch (long):   0               factors[256]
 *                   COMBINE_SUMS    sums[256]
 *                   COMBINE_MAX     the warps' maxima
 *                   COMBINE_STAGES  stages of STAGE_PIECES pieces
 */
#ifndef QN_CUDA_COMMON_ATTENTION_COMBINE_CUH
#define QN_CUDA_COMMON_ATTENTION_COMBINE_CUH

#include "kernels/cuda/common/attention.cuh"

enum {
    COMBINE_LONG = 9, /* pieces; from here on a warp alone is slower */
    COMBINE_SUMS = 2048,
    COMBINE_MAX = 3072,
    COMBINE_STAGES = 3104,
    N_STAGES = 4,
    STAGE_BYTES = (SCRATCH_BYTES - COMBINE_STAGES) / N_STAGES / 16 * 16,
    PIECE_BYTES = STATE_SIZE * 4,
    STAGE_PIECES = (STAGE_BYTES - 16) / PIECE_BYTES, /* they may begin 8 bytes into it */
    STAGED_PIECES = N_STAGES * STAGE_PIECES,
};
static_assert(QN_HEAD_DIM <= COMPUTE_THREADS, "a thread for every column");

/* The states of a head's pieces from number `first` on. */
DEV struct act combine_parts(const struct cuda_task *task, uint64_t head, uint32_t first) {
    return act_from(act_of(task->in, task, CUDA_IN_FLAGGED),
                    (head * task->n_pieces + first) * STATE_SIZE);
}

/* What a warp merges: a column per lane of a head's n pieces at `part`. */
struct combine_item {
    struct act part;
    uint32_t n, column;
    uint64_t head; /* of all rows' */
};

enum { COLUMN_GROUPS = (QN_HEAD_DIM + 31) / 32 };

/* Number i of the task's items: column groups, then heads, then rows. */
DEV struct combine_item combine_item_of(const struct warp_context *c, const struct cuda_task *task,
                                        uint32_t heads, uint32_t i) {
    const uint32_t of_head = i / COLUMN_GROUPS, row = task->row0 + of_head / heads;
    struct combine_item m;
    uint32_t first;
    m.n = row_pieces(SHARED, row, &first);
    m.head = (uint64_t)row * QN_N_HEADS + task->unit0 + of_head % heads;
    m.part = combine_parts(task, m.head, first);
    m.column = i % COLUMN_GROUPS * 32 + c->lane;
    return m;
}

/* A column of a head, by each lane of a warp; the lanes' columns follow each other. */
DEV void combine_store(const struct cuda_task *task, uint64_t head, uint32_t column, float v) {
    if (task->flags & CUDA_OUT_PAIRED) {
        const float next = __shfl_down_sync(~0u, v, 1);
        if (column < QN_HEAD_DIM && column % 2 == 0)
            act_store_pair(task, head * QN_HEAD_DIM + column, v, next);
    } else if (column < QN_HEAD_DIM) {
        output_store(task, head, column, v);
    }
}

/* Eight pieces are asked for at a time. */
DEV void combine_short(const struct cuda_task *task, struct combine_item m) {
    const int at_once = 8;
    const uint32_t at = 2 + min(m.column, QN_HEAD_DIM - 1u);
    float max = 0, sum = 0, out = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < m.n; p += at_once) {
        uint4 state[at_once] = {};
        uint2 value[at_once] = {};
#pragma unroll
        for (int j = 0; j < at_once; j++) {
            if (p + j >= m.n) break;
            const struct act from = act_from(m.part, j * STATE_SIZE);
            state[j] = act_ask2(from, 0);
            value[j] = act_ask(from, at);
        }
#pragma unroll
        for (int j = 0; j < at_once; j++) {
            if (p + j >= m.n) break;
            const struct act from = act_from(m.part, j * STATE_SIZE);
            const float2 max_sum = act_await2(from, 0, state[j]);
            const struct merge f = merge_factors(max, sum, max_sum.x);
            out = merge_value(&f, out, act_await(from, at, value[j]));
            sum = merge_value(&f, sum, max_sum.y);
            max = f.max;
        }
        m.part = act_from(m.part, at_once * STATE_SIZE);
    }
    combine_store(task, m.head, m.column, out * reciprocal_fast(sum));
}

/* The largest value of this thread and those before it. */
DEV float combine_scan(const struct warp_context *c, float v) {
    for (uint32_t by = 1; by < 32; by *= 2) {
        const float before = __shfl_up_sync(~0u, v, by);
        if (c->lane >= by) v = fmaxf(v, before);
    }
    return v;
}

/* Factors and sums of n <= 256 pieces into scratch; `mine`: maximum and sum of piece number thread.
 * `max`: of all pieces before; returns that of these, too. Ends with a barrier. */
DEV float combine_factors(const struct warp_context *c, float2 mine, uint32_t n, float max) {
    float2 *factors = (float2 *)SCRATCH;
    float *sums = (float *)(SCRATCH + COMBINE_SUMS), *warp_max = (float *)(SCRATCH + COMBINE_MAX);
    if (c->thread >= n) mine = make_float2(-INFINITY, 0);
    const float most = combine_scan(c, mine.x);
    float before = __shfl_up_sync(~0u, most, 1);
    if (c->lane == 0) before = -INFINITY;
    if (c->lane == 31) warp_max[c->warp] = most;
    sync_compute();
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        if (w == c->warp) before = fmaxf(before, max);
        max = fmaxf(max, warp_max[w]);
    }
    struct merge m = {0, 1, 0}; /* beyond the last piece: changes nothing */
    if (c->thread < n) m = merge_factors(before, before == -INFINITY ? 0 : 1, mine.x);
    factors[c->thread] = make_float2(m.old_factor, m.factor);
    sums[c->thread] = mine.y;
    sync_compute();
    return max;
}

/* Where a stage's pieces are in scratch; plain ones lie as in global memory modulo 16 bytes. */
DEV float *combine_stage(struct act part, uint32_t stage) {
    const uint64_t first = (uint64_t)(part.at + stage * STAGE_PIECES * STATE_SIZE);
    return (float *)(SCRATCH + COMBINE_STAGES + stage % N_STAGES * STAGE_BYTES +
                     (part.flag == 0 ? first & 15 : 0));
}

/* Requests the stage's pieces of the n at `part`, which is plain; nothing beyond. */
DEV void combine_ask(const struct warp_context *c, struct act part, uint32_t stage, uint32_t n) {
    const uint32_t p = stage * STAGE_PIECES;
    if (p < n) {
        const uint64_t first = (uint64_t)(part.at + p * STATE_SIZE), from = first & ~15ull;
        const uint32_t bytes =
            (uint32_t)(first - from) + min((uint32_t)STAGE_PIECES, n - p) * PIECE_BYTES;
        char *to = (char *)((uint64_t)combine_stage(part, stage) & ~15ull);
        for (uint32_t i = 16 * c->thread; i < bytes; i += 16 * COMPUTE_THREADS)
            copy16_async(to + i, (const char *)from + i);
    }
    copy_commit();
}

/* Where element 2 i of pieces in scratch is. */
DEV float2 *combine_pair(struct act part, uint32_t i) {
    const uint32_t in_stage = STAGE_PIECES * STATE_SIZE / 2;
    return (float2 *)combine_stage(part, i / in_stage) + i % in_stage;
}

/* Brings the n <= STAGED_PIECES flagged pieces at `part` into scratch. Ends with a barrier. */
DEV void combine_take(const struct warp_context *c, struct act part, uint32_t n) {
    const uint32_t end = n * STATE_SIZE / 2;
    const int at_once = 4;
#pragma unroll 1
    for (uint32_t i = c->thread; i < end; i += at_once * COMPUTE_THREADS) {
        uint4 v[at_once] = {};
#pragma unroll
        for (int u = 0; u < at_once; u++)
            if (i + u * COMPUTE_THREADS < end) v[u] = act_ask2(part, i + u * COMPUTE_THREADS);
#pragma unroll
        for (int u = 0; u < at_once; u++) {
            const uint32_t at = i + u * COMPUTE_THREADS;
            if (at < end) *combine_pair(part, at) = act_await2(part, at, v[u]);
        }
    }
    sync_compute();
}

/* A column and the sum of the stage's pieces. */
DEV void combine_add(struct act part, uint32_t stage, uint32_t n, uint32_t column, float *out,
                     float *sum) {
    const uint32_t p = stage * STAGE_PIECES, n_here = min((uint32_t)STAGE_PIECES, n - p);
    const float2 *factors = (const float2 *)SCRATCH + p;
    const float *sums = (const float *)(SCRATCH + COMBINE_SUMS) + p;
    const float *values = combine_stage(part, stage) + 2 + column;
#pragma unroll 4
    for (uint32_t i = 0; i < n_here; i++) {
        const struct merge m = {0, factors[i].x, factors[i].y};
        *out = merge_value(&m, *out, values[i * STATE_SIZE]);
        *sum = merge_value(&m, *sum, sums[i]);
    }
}

/* What all warps have of a head so far. */
struct combined {
    float max, sum, out;
};

/* n <= 256 plain pieces. */
DEV void combine_plain(const struct warp_context *c, struct act part, uint32_t n,
                       struct combined *y) {
    for (uint32_t stage = 0; stage < N_STAGES - 1; stage++) combine_ask(c, part, stage, n);
    float2 mine = {};
    if (c->thread < n) mine = act_load2(act_from(part, c->thread * STATE_SIZE), 0);
    y->max = combine_factors(c, mine, n, y->max);
#pragma unroll 1
    for (uint32_t stage = 0; stage * STAGE_PIECES < n; stage++) {
        copy_wait<N_STAGES - 2>();
        sync_compute(); /* this stage is here; the one before is done with */
        combine_ask(c, part, stage + N_STAGES - 1, n);
        if (c->thread < QN_HEAD_DIM) combine_add(part, stage, n, c->thread, &y->out, &y->sum);
    }
}

/* n <= STAGED_PIECES flagged ones. */
DEV void combine_flagged(const struct warp_context *c, struct act part, uint32_t n,
                         struct combined *y) {
    combine_take(c, part, n);
    float2 mine = {};
    if (c->thread < n) mine = *combine_pair(part, c->thread * STATE_SIZE / 2);
    y->max = combine_factors(c, mine, n, y->max);
    if (c->thread >= QN_HEAD_DIM) return;
#pragma unroll 1
    for (uint32_t stage = 0; stage * STAGE_PIECES < n; stage++)
        combine_add(part, stage, n, c->thread, &y->out, &y->sum);
}

/* All warps. */
DEV void combine_long(const struct warp_context *c, const struct cuda_task *task, uint64_t head,
                      uint32_t first, uint32_t n_all) {
    struct act part = combine_parts(task, head, first);
    const uint32_t at_once = part.flag != 0 ? (uint32_t)STAGED_PIECES : COMPUTE_THREADS;
    struct combined y = {-INFINITY, 0, 0};
#pragma unroll 1
    for (uint32_t at = 0; at < n_all; at += at_once, part = act_from(part, at_once * STATE_SIZE)) {
        const uint32_t n = min(n_all - at, at_once);
        sync_compute(); /* nobody reads what was in scratch any more */
        if (part.flag != 0)
            combine_flagged(c, part, n, &y);
        else
            combine_plain(c, part, n, &y);
    }
    combine_store(task, head, c->thread, y.out * reciprocal_fast(y.sum));
}

/* A function of its own: its registers stay away from short contexts. */
__device__ __noinline__ void attention_combine_long(const struct cuda_args *args,
                                                    const struct cuda_task *task) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    const uint32_t heads = task->unit1 - task->unit0;
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
#pragma unroll 1
    for (uint32_t row = task->row0; row < end; row++) {
        uint32_t first, n = row_pieces(SHARED, row, &first);
#pragma unroll 1
        for (uint32_t head = task->unit0; head < task->unit0 + heads; head++)
            combine_long(&c, task, (uint64_t)row * QN_N_HEADS + head, first, n);
    }
}

/* Waits for the event; false: the launch ends. All but the pieces is found before. */
DEV bool run_combine(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t heads = task->unit1 - task->unit0;
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    uint32_t first, most = 0, n_items = 0;
    struct combine_item mine = {};
    if (task->row0 < end) n_items = (end - task->row0) * heads * COLUMN_GROUPS;
    for (uint32_t row = task->row0; row < end; row++)
        most = max(most, row_pieces(SHARED, row, &first));
    if (c->warp < n_items) mine = combine_item_of(c, task, heads, c->warp);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(c->args, SHARED, RT_TRACE_READY, task->index);
    if (most >= COMBINE_LONG) attention_combine_long(c->args, task);
#pragma unroll 1
    for (uint32_t i = c->warp; most < COMBINE_LONG && i < n_items;) {
        combine_short(task, mine);
        i += WARPS;
        if (i < n_items) mine = combine_item_of(c, task, heads, i);
    }
    packed_fence(task);
    return true;
}

#endif
