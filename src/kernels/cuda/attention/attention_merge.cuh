/* attention_merge.cuh - MERGE, of ATTENTION_MERGE: merges the states of a row's pieces in order of
 * position into the output of a head.
 *
 * Short contexts, or many heads: one warp per row, head and 64 columns, MERGE_SOME pieces at a
 * time. Else all warps together, head after head. The factors of a piece's state follow from the
 * maxima alone, so they are computed for up to 256 pieces at once. Then each warp adds the pieces
 * in order for 16 columns and loads many pieces ahead. Both ways do the same operations on the same
 * numbers.
 *
 * Bytes: (width of a value + 2) * 4 read per piece, from L2 where it fits.
 *
 * Scratch (long):   0             factors[256]
 *                   MERGE_SUMS  sums[256]
 *                   MERGE_MAX   the warps' maxima
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_MERGE_CUH
#define QN_CUDA_ATTENTION_ATTENTION_MERGE_CUH

#include "kernels/cuda/attention/attention.cuh"

enum {
    MERGE_SOME = 8, /* pieces that a warp alone loads at once */
    /* A warp takes as long for so many times MERGE_SOME pieces as all warps for a head: an
     * estimate. With 16 pieces both took 2.5 us (H200). */
    MERGE_HEAD = 3,
    MERGE_SUMS = 2048,
    MERGE_MAX = 3072,
    MERGE_COLUMNS = 16, /* of a warp in long contexts: 16 lanes load even pieces, 16 odd ones */
};

/* The states of a head's pieces from number `first` on. head: counted over all rows. */
DEV struct operand merge_parts(const struct cuda_task *task, uint64_t head, uint32_t first) {
    return operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED),
                        (head * task->n_pieces + first) * STATE_SIZE);
}

/* Each lane of a warp stores a column of a head; the lanes' columns follow each other. */
DEV void merge_store(const struct cuda_task *task, uint64_t head, uint32_t column, float v) {
    if (task->flags & CUDA_OUT_PAIRED) {
        const float next = __shfl_down_sync(~0u, v, 1);
        if (column < QN_VALUE_DIM && column % 2 == 0)
            operand_store_pair(task, head * QN_VALUE_DIM + column, v, next);
    } else if (column < QN_VALUE_DIM) {
        output_store(task, head, column, v);
    }
}

/* ---- short contexts ---- */

/* What a warp merges: two columns per lane of a head's n pieces at `part`. */
struct merge_item {
    struct operand part;
    uint32_t n, column; /* column: the lane's first one */
    uint64_t head;      /* counted over all rows */
};

enum { COLUMN_GROUPS = (QN_VALUE_DIM + 63) / 64 };

/* Number i of the task's items: column groups, then heads, then rows. */
DEV struct merge_item merge_item_of(const struct warp_context *c, const struct cuda_task *task,
                                    uint32_t heads, uint32_t i) {
    const uint32_t of_head = i / COLUMN_GROUPS, row = task->row0 + of_head / heads;
    struct merge_item m;
    uint32_t first;
    m.n = row_pieces(SHARED, task_window(task), row, &first);
    m.head = (uint64_t)row * QN_N_HEADS + task->unit0 + of_head % heads;
    m.part = merge_parts(task, m.head, first);
    m.column = i % COLUMN_GROUPS * 64 + 2 * c->lane;
    return m;
}

/* Loads MERGE_SOME pieces at once, and again until all have arrived. With the last ones it sends
 * the hint, if not NULL. There is no branch on the way: the last piece stands for the missing ones,
 * which change nothing. FLAGGED: whether pieces carry flags. */
template <bool FLAGGED>
DEV void merge_pieces_short(const struct cuda_task *task, const struct merge_item *m,
                            uint32_t *hint) {
    const int some = MERGE_SOME;
    const uint32_t at = (PART_HEAD + min(m->column, QN_VALUE_DIM - 2u)) / 2;
    const struct operand part = {m->part.at, FLAGGED ? m->part.flag : 0};
    float max = -INFINITY, sum = 0;
    float2 out = {};
#pragma unroll 1
    for (uint32_t first = 0; first < m->n; first += some) {
        uint4 state[some], value[some];
        bool there;
        do {
#pragma unroll
            for (uint32_t j = 0; j < some; j++) {
                const struct operand from =
                    operand_from(part, min(first + j, m->n - 1) * STATE_SIZE);
                state[j] = operand_ask2(from, 0);
                value[j] = operand_ask2(from, at);
            }
            there = true;
#pragma unroll
            for (int j = 0; j < some; j++)
                there = there & operand_there2(part, state[j]) & operand_there2(part, value[j]);
        } while (!there && !operand_given_up());
        if (hint != nullptr && first + some >= m->n) add_relaxed_gpu(hint, 1);
#pragma unroll
        for (int j = 0; j < some; j++) {
            const float2 of = operand_pair(part, state[j]); /* maximum and sum */
            const float2 v = operand_pair(part, value[j]);
            const struct merge f = merge_factors(max, max == -INFINITY ? 0 : 1, of.x);
            const bool counts = first + j < m->n;
            const float x = merge_value(&f, out.x, v.x), y = merge_value(&f, out.y, v.y),
                        total = merge_value(&f, sum, of.y);
            out.x = counts ? x : out.x;
            out.y = counts ? y : out.y;
            sum = counts ? total : sum;
            max = f.max;
        }
    }
    const float by = reciprocal_fast(sum);
    if (m->column < QN_VALUE_DIM)
        output_store2(task, m->head, m->column, make_float2(out.x * by, out.y * by));
}

DEV void merge_short(const struct cuda_task *task, struct merge_item m, uint32_t *hint) {
    if (m.part.flag != 0)
        merge_pieces_short<true>(task, &m, hint);
    else
        merge_pieces_short<false>(task, &m, hint);
}

/* ---- long contexts ---- */

/* The largest value of this lane and those before it. */
DEV float merge_scan(const struct warp_context *c, float v) {
    for (uint32_t by = 1; by < 32; by *= 2) {
        const float before = __shfl_up_sync(~0u, v, by);
        if (c->lane >= by) v = fmaxf(v, before);
    }
    return v;
}

/* Stores factors and sums of n <= 256 pieces in scratch. mine: maximum and sum of the piece with
 * the thread's number. max: of all pieces before; returns that of these, too. Ends with a
 * barrier. */
DEV float merge_scales(const struct warp_context *c, float2 mine, uint32_t n, float max) {
    float2 *factors = (float2 *)SCRATCH;
    float *sums = (float *)(SCRATCH + MERGE_SUMS), *warp_max = (float *)(SCRATCH + MERGE_MAX);
    if (c->thread >= n) mine = make_float2(-INFINITY, 0);
    const float most = merge_scan(c, mine.x);
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

/* State of a head so far, of one column. */
struct merged {
    float max, sum, out;
};

/* Adds pieces i, an even number, and i + 1, whose factors are in scratch. */
DEV void merge_add(uint32_t i, float even, float odd, struct merged *y) {
    const float4 f = *(const float4 *)(SCRATCH + 8 * i);
    const float2 sums = *(const float2 *)(SCRATCH + MERGE_SUMS + 4 * i);
    const struct merge m[2] = {{0, f.x, f.y}, {0, f.z, f.w}};
    y->out = merge_value(&m[1], merge_value(&m[0], y->out, even), odd);
    y->sum = merge_value(&m[1], merge_value(&m[0], y->sum, sums.x), sums.y);
}

/* Adds n <= 256 pieces at `part`, by all warps, for the lane's column. FLAGGED: whether `part`
 * carries flags. Pieces are loaded ahead and added without branches. So the last piece is read
 * again for the missing ones, whose factor is 0. */
template <bool FLAGGED>
DEV void merge_pieces(const struct warp_context *c, struct operand part, uint32_t n,
                      uint32_t column, struct merged *y) {
    const int at_once = 8, ahead = FLAGGED ? 8 : 32; /* of each half of the warp */
    const uint32_t odd = c->lane / MERGE_COLUMNS, at = PART_HEAD + min(column, QN_VALUE_DIM - 1u);
    const struct operand from = {part.at, FLAGGED ? part.flag : 0};
    uint2 v[ahead];
#pragma unroll
    for (int u = 0; u < ahead; u++)
        v[u] = operand_ask(from, min(2 * u + odd, n - 1) * STATE_SIZE + at);
    float2 mine = {};
    if (c->thread < n) mine = operand_load2(operand_from(from, c->thread * STATE_SIZE), 0);
    sync_compute(); /* no warp reads the old scratch any more */
    y->max = merge_scales(c, mine, n, y->max);
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += 2 * ahead)
#pragma unroll
        for (int g = 0; g < ahead; g += at_once) {
            float value[at_once], other[at_once];
#pragma unroll
            for (int u = 0; u < at_once; u++) {
                const uint32_t i = min(first + 2 * (g + u) + odd, n - 1);
                value[u] = operand_await(from, i * STATE_SIZE + at, v[g + u]);
            }
            if (first + 2 * ahead < n)
#pragma unroll
                for (int u = 0; u < at_once; u++) {
                    const uint32_t i = min(first + 2 * (ahead + g + u) + odd, n - 1);
                    v[g + u] = operand_ask(from, i * STATE_SIZE + at);
                }
#pragma unroll
            for (int u = 0; u < at_once; u++)
                other[u] = __shfl_xor_sync(~0u, value[u], MERGE_COLUMNS);
#pragma unroll
            for (int u = 0; u < at_once; u++)
                merge_add(first + 2 * (g + u), odd ? other[u] : value[u], odd ? value[u] : other[u],
                          y);
        }
}

/* Merges a head, counted over all rows, whose n_all pieces begin with `first`. */
DEV void merge_long(const struct warp_context *c, const struct cuda_task *task, uint64_t head,
                    uint32_t first, uint32_t n_all) {
    const uint32_t column = c->warp * MERGE_COLUMNS + c->lane % MERGE_COLUMNS;
    const bool stores = c->lane < MERGE_COLUMNS;
#pragma unroll 1
    for (uint32_t d = 0; d < QN_VALUE_DIM; d += WARPS * MERGE_COLUMNS) {
        struct operand part = merge_parts(task, head, first);
        struct merged y = {-INFINITY, 0, 0};
#pragma unroll 1
        for (uint32_t left = n_all; left > 0;) {
            const uint32_t n = min(left, (uint32_t)COMPUTE_THREADS);
            if (part.flag != 0)
                merge_pieces<true>(c, part, n, d + column, &y);
            else
                merge_pieces<false>(c, part, n, d + column, &y);
            part = operand_from(part, n * STATE_SIZE);
            left -= n;
        }
        merge_store(task, head, stores ? d + column : (uint32_t)QN_VALUE_DIM,
                    y.out * reciprocal_fast(y.sum));
    }
}

/* A separate function, whose registers do not burden short contexts. */
CODE(void, attention_merge_long, const struct cuda_args *args, const struct cuda_task *task) {
    const struct warp_context c = context_of(args, threadIdx.x, 0, 0);
    const uint32_t heads = task->unit1 - task->unit0;
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
#pragma unroll 1
    for (uint32_t row = task->row0; row < end; row++) {
        uint32_t first, n = row_pieces(SHARED, task_window(task), row, &first);
#pragma unroll 1
        for (uint32_t head = task->unit0; head < task->unit0 + heads; head++)
            merge_long(&c, task, (uint64_t)row * QN_N_HEADS + head, first, n);
    }
}

/* Whether all warps together merge a task's items (merge_item_of), each of up to `most` pieces. */
DEV bool merge_is_long(uint32_t most, uint32_t n_items) {
    return most > MERGE_SOME && ceil_div(most, MERGE_SOME) * ceil_div(n_items, WARPS) >=
                                    MERGE_HEAD * (n_items / COLUMN_GROUPS);
}

/* Waits for the event, unless the context is short and its pieces are polled (wait_data). False:
 * the launch ends. Everything but the pieces is found before. */
DEV bool run_merge(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t heads = task->unit1 - task->unit0;
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    uint32_t first, most = 0, n_items = 0;
    struct merge_item mine = {};
    if (task->row0 < end) n_items = (end - task->row0) * heads * COLUMN_GROUPS;
    for (uint32_t row = task->row0; row < end; row++)
        most = max(most, row_pieces(SHARED, task_window(task), row, &first));
    if (c->warp < n_items) mine = merge_item_of(c, task, heads, c->warp);
    uint32_t *hint = task_hint(c, task);
    if (!(most <= MERGE_SOME ? wait_data(c, task) : wait_ready(c))) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (merge_is_long(most, n_items)) {
        attention_merge_long(c->args, task);
        n_items = 0;
    }
    if (n_items == 0 && hint != nullptr) add_relaxed_gpu(hint, 1);
#pragma unroll 1
    for (uint32_t i = c->warp; i < n_items;) {
        i += WARPS;
        merge_short(task, mine, i < n_items ? nullptr : hint);
        if (i < n_items) mine = merge_item_of(c, task, heads, i);
    }
    return true;
}

#endif
