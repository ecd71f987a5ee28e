/* attention_combine.cuh - ATTENTION_COMBINE: the states of a row's pieces, merged in order of
 * position into the output of a head.
 *
 * Short contexts: one warp per row and head. Long ones: all warps together, head after head. What a
 * piece's state is multiplied with follows from the maxima alone, so it is found for up to 256
 * pieces at once; then each thread has one column and adds the pieces in order, while the next ones
 * are on their way into shared memory. Both ways do the same operations on the same numbers.
 *
 * Bytes: (head_dim + 2) * 4 per piece, from L2 where it fits.
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
    COMBINE_LONG = 5, /* pieces; from here on a warp alone is slower */
    COMBINE_SUMS = 2048,
    COMBINE_MAX = 3072,
    COMBINE_STAGES = 3104,
    N_STAGES = 4,
    STAGE_BYTES = (SCRATCH_BYTES - COMBINE_STAGES) / N_STAGES / 16 * 16,
    PIECE_BYTES = STATE_SIZE * 4,
    STAGE_PIECES = (STAGE_BYTES - 16) / PIECE_BYTES, /* they may begin 8 bytes into it */
};
static_assert(QN_HEAD_DIM <= COMPUTE_THREADS, "a thread for every column");

DEV const float *combine_parts(const struct cuda_task *task, uint64_t head, uint32_t first) {
    return (const float *)task->in + (head * task->n_pieces + first) * STATE_SIZE;
}

DEV void combine_short(const struct warp_context *c, const struct cuda_task *task, uint64_t head,
                       uint32_t first, uint32_t n) {
    const float *part = combine_parts(task, head, first);
    const int columns = (QN_HEAD_DIM + 31) / 32;
    float max = 0, sum = 0, out[columns] = {};
#pragma unroll 4
    for (uint32_t p = 0; p < n; p++, part += STATE_SIZE) {
        float2 head = __ldcg((const float2 *)part);
        const struct merge m = merge_factors(max, sum, head.x);
#pragma unroll
        for (int i = 0; i < columns; i++) {
            uint32_t d = c->lane + 32 * i;
            float value = d < QN_HEAD_DIM ? load_l2(part + 2 + d) : 0;
            out[i] = merge_value(&m, out[i], value);
        }
        sum = merge_value(&m, sum, head.y);
        max = m.max;
    }
    const float inv = reciprocal_fast(sum);
#pragma unroll
    for (int i = 0; i < columns; i++)
        if (c->lane + 32 * i < QN_HEAD_DIM)
            output_store(task, head, c->lane + 32 * i, out[i] * inv);
}

/* The largest value of this thread and those before it. */
DEV float combine_scan(const struct warp_context *c, float v) {
    for (uint32_t by = 1; by < 32; by *= 2) {
        const float before = __shfl_up_sync(~0u, v, by);
        if (c->lane >= by) v = fmaxf(v, before);
    }
    return v;
}

/* Factors and sums of the n <= 256 pieces at `part` into scratch; thread t has piece t. `max`: of
 * all pieces before; returns that of these, too. Ends with a barrier. */
DEV float combine_factors(const struct warp_context *c, const float *part, uint32_t n, float max) {
    float2 *factors = (float2 *)SCRATCH;
    float *sums = (float *)(SCRATCH + COMBINE_SUMS), *warp_max = (float *)(SCRATCH + COMBINE_MAX);
    float2 mine = make_float2(-INFINITY, 0);
    if (c->thread < n) mine = __ldcg((const float2 *)(part + c->thread * STATE_SIZE));
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

/* Requests the stage's pieces of the n at `part`; nothing beyond. */
DEV void combine_ask(const struct warp_context *c, const float *part, uint32_t stage, uint32_t n) {
    const uint32_t p = stage * STAGE_PIECES;
    if (p < n) {
        const uint64_t first = (uint64_t)(part + p * STATE_SIZE);
        const uint64_t from = first & ~15ull;
        const uint32_t bytes =
            (uint32_t)(first - from) + min((uint32_t)STAGE_PIECES, n - p) * PIECE_BYTES;
        char *to = SCRATCH + COMBINE_STAGES + stage % N_STAGES * STAGE_BYTES;
        for (uint32_t i = 16 * c->thread; i < bytes; i += 16 * COMPUTE_THREADS)
            copy16_async(to + i, (const char *)from + i);
    }
    copy_commit();
}

/* A column and the sum of the stage's pieces. */
DEV void combine_add(const float *part, uint32_t stage, uint32_t n, uint32_t column, float *out,
                     float *sum) {
    const uint32_t p = stage * STAGE_PIECES, n_here = min((uint32_t)STAGE_PIECES, n - p);
    const float2 *factors = (const float2 *)SCRATCH + p;
    const float *sums = (const float *)(SCRATCH + COMBINE_SUMS) + p;
    const float *values =
        (const float *)(SCRATCH + COMBINE_STAGES + stage % N_STAGES * STAGE_BYTES +
                        ((uint64_t)(part + p * STATE_SIZE) & 15)) +
        2 + column;
#pragma unroll 4
    for (uint32_t i = 0; i < n_here; i++) {
        const struct merge m = {0, factors[i].x, factors[i].y};
        *out = merge_value(&m, *out, values[i * STATE_SIZE]);
        *sum = merge_value(&m, *sum, sums[i]);
    }
}

/* All warps. */
DEV void combine_long(const struct warp_context *c, const struct cuda_task *task, uint64_t head,
                      uint32_t first, uint32_t n_all) {
    const float *part = combine_parts(task, head, first);
    float max = -INFINITY, out = 0, sum = 0;
#pragma unroll 1
    for (uint32_t at = 0; at < n_all; at += COMPUTE_THREADS, part += COMPUTE_THREADS * STATE_SIZE) {
        const uint32_t n = min(n_all - at, (uint32_t)COMPUTE_THREADS);
        sync_compute(); /* nobody reads what was in scratch any more */
        for (uint32_t stage = 0; stage < N_STAGES - 1; stage++) combine_ask(c, part, stage, n);
        max = combine_factors(c, part, n, max);
#pragma unroll 1
        for (uint32_t stage = 0; stage * STAGE_PIECES < n; stage++) {
            copy_wait<N_STAGES - 2>();
            sync_compute(); /* this stage is here; the one before is done with */
            combine_ask(c, part, stage + N_STAGES - 1, n);
            if (c->thread < QN_HEAD_DIM) combine_add(part, stage, n, c->thread, &out, &sum);
        }
    }
    if (c->thread < QN_HEAD_DIM) output_store(task, head, c->thread, out * reciprocal_fast(sum));
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

DEV void run_attention_combine(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t heads = task->unit1 - task->unit0;
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    uint32_t first, most = 0;
    for (uint32_t row = task->row0; row < end; row++)
        most = max(most, row_pieces(SHARED, row, &first));
    if (most >= COMBINE_LONG) {
        attention_combine_long(c->args, task);
        return;
    }
    if (task->row0 >= end) return;
    for (uint32_t i = c->warp; i < (end - task->row0) * heads; i += WARPS) {
        const uint32_t row = task->row0 + i / heads, head = task->unit0 + i % heads;
        const uint32_t n = row_pieces(SHARED, row, &first);
        combine_short(c, task, (uint64_t)row * QN_N_HEADS + head, first, n);
    }
}

#endif
