/* act.cuh - activations into the compute warps: the only place that knows how they travel.
 *
 * They are F32 tensors in one of two forms (task/carry.c):
 *
 *   plain     guarded by event counters: by the time a task runs they can be read through L2
 *   flagged   every element is {value, iteration}; a reader polls until it shows the number of the
 *             iteration that runs. Polling costs one trip to L2 once the value is there.
 *   paired    flagged, but every two elements are {16-bit floats, iteration}; of a single row,
 *             whose readers all round it to 16 bits anyway
 *   filled    of several rows, packed or not: as plain ones, but a word is empty until it is stored
 */
#ifndef QN_CUDA_COMMON_ACT_CUH
#define QN_CUDA_COMMON_ACT_CUH

#include "kernels/cuda/common/walk.cuh"

/* An activation, or a row of it, that other blocks wrote. */
struct act {
    const float *at;
    uint32_t flag; /* what its elements must show; 0: it is plain */
};

/* Operand at an address; `flagged` is its bit of the task's flags. */
DEV struct act act_of(uint64_t address, const struct cuda_task *task, uint32_t flagged) {
    struct act a = {(const float *)address, 0};
    if (task->flags & flagged) a.flag = SHARED->flag;
    return a;
}

/* Operand at an address, which carries flags. They are numbers of iterations: not 0. */
DEV struct act act_flagged(uint64_t address) {
    const struct act a = {(const float *)address, SHARED->flag};
    ASSUME(a.flag != 0);
    return a;
}

DEV struct act act_from(struct act a, uint64_t element) {
    a.at += a.flag != 0 ? 2 * element : element;
    return a;
}

/* The launch ends: a polling thread gives up, with any value. */
DEV bool act_given_up(void) {
    return block_stops();
}

/* A word that is not stored yet. */
DEV bool word_is_empty(uint32_t v) {
    return v == CUDA_EMPTY;
}

/* Element i on its way; plain ones come with the flag 0, which is theirs. */
DEV uint2 act_ask(struct act a, uint64_t i) {
    if (a.flag == 0) return make_uint2(__float_as_uint(load_l2(a.at + i)), 0);
    return load_flagged(a.at + 2 * i);
}

/* The same; an empty word comes with another flag. What is plain is never empty. */
DEV uint2 act_ask_word(struct act a, uint64_t i) {
    if (a.flag != 0) return load_flagged(a.at + 2 * i);
    const uint32_t v = load_word_polled(a.at + i);
    return make_uint2(v, word_is_empty(v));
}

DEV float act_await(struct act a, uint64_t i, uint2 v) {
    while (v.y != a.flag && !act_given_up()) v = load_flagged(a.at + 2 * i);
    return __uint_as_float(v.x);
}

/* Elements 2 i and 2 i + 1, of which the first lies at an even place: with flags, or in the first
 * two words as they came. To move one to the place that flags would give it is to wait for it. */
DEV uint4 act_ask2(struct act a, uint32_t i) {
    if (a.flag != 0) return load_flagged_pair(a.at + 4 * i);
    const uint2 v = __ldcg((const uint2 *)a.at + i);
    return make_uint4(v.x, v.y, 0, 0);
}

DEV bool act_there2(struct act a, uint4 v) {
    return a.flag == 0 || (v.y == a.flag && v.w == a.flag);
}

DEV float2 act_pair(struct act a, uint4 v) {
    return make_float2(__uint_as_float(v.x), __uint_as_float(a.flag == 0 ? v.y : v.z));
}

DEV float2 act_await2(struct act a, uint32_t i, uint4 v) {
    while (!act_there2(a, v) && !act_given_up()) v = load_flagged_pair(a.at + 4 * i);
    return act_pair(a, v);
}

DEV float2 act_load2(struct act a, uint32_t i) {
    return act_await2(a, i, act_ask2(a, i));
}

/* Elements at[0], at[1] and so on, flagged or filled, all asked for until all are there: one trip
 * once they are. */
template <int N> DEV void act_load_all(struct act a, const uint32_t (&at)[N], float (&to)[N]) {
    bool there;
    do {
        uint2 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = act_ask_word(a, at[i]);
        there = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            there = there && v[i].y == a.flag;
            to[i] = __uint_as_float(v[i].x);
        }
    } while (!there && !act_given_up());
}

/* Floats [4 i, 4 i + 4). */
struct act_words {
    uint4 lo, hi;
};

DEV struct act_words act_ask4(struct act a, uint32_t i) {
    return act_words{load_flagged_pair(a.at + 8 * i), load_flagged_pair(a.at + 8 * i + 4)};
}

DEV bool act_there4(struct act a, const struct act_words *w) {
    return w->lo.y == a.flag && w->lo.w == a.flag && w->hi.y == a.flag && w->hi.w == a.flag;
}

/* The thread's next N of a row's `end` float4s: number first + 256 u; zeros beyond. What is not
 * there is asked for again, all of it at once: one trip after the last one came, whichever it was.
 */
template <int N> DEV void act_load_share(struct act a, uint32_t first, uint32_t end, float4 v[N]) {
    if (a.flag == 0) {
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t at = first + u * COMPUTE_THREADS;
            v[u] = at < end ? load4_l2(a.at + 4 * at) : make_float4(0, 0, 0, 0);
        }
        return;
    }
    struct act_words w[N] = {};
    uint32_t missing = 0;
#pragma unroll
    for (int u = 0; u < N; u++) missing |= (first + u * COMPUTE_THREADS < end) << u;
#pragma unroll 1
    do {
#pragma unroll
        for (int u = 0; u < N; u++)
            if (missing >> u & 1) w[u] = act_ask4(a, first + u * COMPUTE_THREADS);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (act_there4(a, &w[u])) missing &= ~(1u << u);
    } while (missing != 0 && !act_given_up());
#pragma unroll
    for (int u = 0; u < N; u++)
        v[u] = make_float4(__uint_as_float(w[u].lo.x), __uint_as_float(w[u].lo.z),
                           __uint_as_float(w[u].hi.x), __uint_as_float(w[u].hi.z));
}

/* Where a task's own result goes; `at` counts elements. */
DEV void act_store(const struct cuda_task *task, uint64_t at, float v) {
    float *out = (float *)task->out;
    if (task->flags & CUDA_OUT_FLAGGED)
        store_flagged(out + 2 * at, v, SHARED->flag);
    else
        out[at] = v;
}

/* Elements 0 and 1 of a place in a result. */
DEV void act_put2(struct act to, float2 v) {
    float *out = (float *)to.at;
    if (to.flag == 0) {
        *(float2 *)out = v;
        return;
    }
    store_flagged(out, v.x, to.flag);
    store_flagged(out + 2, v.y, to.flag);
}

DEV void act_store4(const struct cuda_task *task, uint64_t at, float4 v) {
    if ((task->flags & CUDA_OUT_FLAGGED) == 0) {
        store_words4((float *)task->out + at,
                     make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                                __float_as_uint(v.w)));
        return;
    }
    act_store(task, at, v.x);
    act_store(task, at + 1, v.y);
    act_store(task, at + 2, v.z);
    act_store(task, at + 3, v.w);
}

/* The piece of packed activations that has a row and a column (cuda_abi.h). */
#define PACKED_PIECE (PACK_ROWS * CUDA_PACK_COLUMNS * 2)
DEV char *packed_piece(uint64_t base, uint32_t eights, uint32_t row, uint32_t column) {
    const uint32_t piece = column / CUDA_PACK_COLUMNS * eights + row / PACK_ROWS;
    return (char *)base + (uint64_t)piece * PACKED_PIECE;
}

/* Where a column of a row of the packed result at `base` is. */
DEV uint16_t *packed_at(const struct cuda_task *task, uint64_t base, uint32_t row,
                        uint32_t column) {
    const uint32_t in32 = column % 32;
    const uint32_t word = (column % CUDA_PACK_COLUMNS / 32 * 2 + in32 % 8 / 4) * 64 +
                          in32 % 4 / 2 * 32 + row % PACK_ROWS * 4 + in32 / 8;
    return (uint16_t *)packed_piece(base, task->eights, row, column) + 2 * word + column % 2;
}

DEV void packed_store(const struct cuda_task *task, uint32_t row, uint32_t column, float v) {
    *packed_at(task, task->out, row, column) = pack_one<WEIGHT_E>(v);
}

/* An even column, and the one after it. */
DEV void packed_store2(const struct cuda_task *task, uint32_t row, uint32_t column, float v0,
                       float v1) {
    store_word(packed_at(task, task->out, row, column), pack_pair<WEIGHT_E>(v0, v1));
}

/* Columns [column, column + 4), a multiple of 4. */
DEV void packed_store4(const struct cuda_task *task, uint64_t base, uint32_t row, uint32_t column,
                       float4 v) {
    uint32_t *at = (uint32_t *)packed_at(task, base, row, column);
    store_word(at, pack_pair<WEIGHT_E>(v.x, v.y));
    store_word(at + 32, pack_pair<WEIGHT_E>(v.z, v.w));
}

/* Columns [column, column + 16), a multiple of 16. */
DEV void packed_store16(const struct cuda_task *task, uint32_t row, uint32_t column,
                        const float v[16]) {
    uint2 *at = (uint2 *)packed_at(task, task->out, row, column);
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        at[8 * i] = make_uint2(pack_pair<WEIGHT_E>(v[i], v[i + 1]),
                               pack_pair<WEIGHT_E>(v[i + 8], v[i + 9]));
}

DEV float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* The same sum in every lane, by one fixed tree. */
DEV float warp_sum(float v) {
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

DEV float warp_max(float v) {
    for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

DEV float inverse_rms_of(float sum) {
    return inverse_sqrt_fast(__fadd_rn(__fmul_rn(sum, 1.0f / QN_HIDDEN), RMS_EPS));
}

/* 1 / rms from the eight parts of the sum of squares, added in order. */
DEV float inverse_rms(const float *parts) {
    static_assert(WARPS == 8, "two vectors");
    const float4 lo = *(const float4 *)parts, hi = *(const float4 *)(parts + 4);
    const float v[WARPS] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += v[i];
    return inverse_rms_of(sum);
}

DEV uint2 pack_scaled(float4 v, float4 scale) {
    return make_uint2(pack_pair<WEIGHT_E>(v.x * scale.x, v.y * scale.y),
                      pack_pair<WEIGHT_E>(v.z * scale.z, v.w * scale.w));
}

/* ---- sums of squares ----
 *
 * The mean of a row's squares has one order of additions in every kernel: the squares of four
 * columns, of the four fours of a block of SQUARES_COLUMNS, of the blocks 64 i + 8 w + q for all i,
 * these for all eight q as a tree, these for all eight w in order. So a warp of eight that share
 * out a row by float4s has one w, and four of its lanes one q. */

DEV float squares_of_four(float4 v) {
    return fmaf(v.y, v.y, v.x * v.x) + fmaf(v.w, v.w, v.z * v.z);
}

/* Of a block whose fours four neighbouring lanes have: in each. All lanes. */
DEV float squares_of_block(float4 v) {
    float sum = squares_of_four(v);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

/* Only the residual stream is normed: rows of QN_HIDDEN floats, of which a thread has so many
 * float4s at once. */
enum {
    STREAM_FOURS = QN_HIDDEN > 8 * COMPUTE_THREADS   ? 4
                   : QN_HIDDEN > 4 * COMPUTE_THREADS ? 2
                                                     : 1
};

/* What a compute thread fetches for a task before the task's event is activated: constants only. */
struct early {
    float4 norm[STREAM_FOURS]; /* of the norm's weights: float4 number first + 256 i */
};

/* Of a norm, or of none. */
DEV void early_norm(const float *norm, uint32_t first, struct early *e) {
#pragma unroll
    for (int u = 0; u < STREAM_FOURS; u++) {
        const uint32_t i = first + u * COMPUTE_THREADS;
        e->norm[u] = make_float4(0, 0, 0, 0);
        if (norm != nullptr && i < QN_HIDDEN / 4) e->norm[u] = __ldg((const float4 *)norm + i);
    }
}

/* The thread's next float4s of a row of the stream, from number `first` on, as 16-bit floats times
 * the norm's weights, zeros up to the end of a page. Its share of the squares is added to sum. */
DEV float stage_stream_share(struct act row, const struct early *e, uint32_t first, char *dst,
                             float sum) {
    float4 v[STREAM_FOURS];
    act_load_share<STREAM_FOURS>(row, first, QN_HIDDEN / 4, v);
#pragma unroll
    for (int u = 0; u < STREAM_FOURS; u++) {
        const uint32_t at = first + u * COMPUTE_THREADS;
        sum += squares_of_block(v[u]);
        if (at < cuda_k_tiles(QN_HIDDEN) * (CUDA_PAGE_K / 4))
            *(uint2 *)(dst + 8 * at) = pack_scaled(v[u], e->norm[u]);
    }
    return sum;
}

/* Stages a row of the stream. Its sum of squares is left in eight parts, a warp's share each. All
 * compute threads. */
DEV void stage_stream(const struct warp_context *c, struct act row, const float *norm,
                      const struct early *early, char *dst, float *parts) {
    constexpr uint32_t step = STREAM_FOURS * COMPUTE_THREADS;
    float sum = stage_stream_share(row, early, c->thread, dst, 0);
#pragma unroll 1
    for (uint32_t first = step; first < QN_HIDDEN / 4; first += step) {
        struct early more;
        early_norm(norm, first + c->thread, &more);
        sum = stage_stream_share(row, &more, first + c->thread, dst, sum);
    }
#pragma unroll
    for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (c->lane == 0) parts[c->warp] = sum;
}

/* Stages another row, of K floats, zeros up to the end of a page. Such rows come in pairs unless
 * nothing rides on data. */
template <uint32_t K>
DEV void stage_floats(const struct warp_context *c, struct act row, char *dst) {
    constexpr int N = 2;
    constexpr uint32_t end = cuda_k_tiles(K) * CUDA_PAGE_K / 4;
#pragma unroll 1
    for (uint32_t first = c->thread; first < end; first += N * COMPUTE_THREADS) {
        float4 v[N];
        act_load_share<N>(row, first, K / 4, v);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (first + u * COMPUTE_THREADS < end)
                *(uint2 *)(dst + 8 * (first + u * COMPUTE_THREADS)) =
                    pack_scaled(v[u], make_float4(1, 1, 1, 1));
    }
}

/* Stages a row of K elements that comes in pairs: nothing is left to be rounded. A thread asks for
 * its share in equal parts of at most six pairs of pairs, since it holds a page, too; for what has
 * not come again, all of that at once. */
template <uint32_t K>
DEV void stage_pairs(const struct warp_context *c, struct act row, char *dst) {
    constexpr uint32_t end = cuda_k_tiles(K) * CUDA_PAGE_K / 4;
    constexpr uint32_t share = (end + COMPUTE_THREADS - 1) / COMPUTE_THREADS;
    constexpr uint32_t trips = (share + 5) / 6, N = (share + trips - 1) / trips;
#pragma unroll
    for (uint32_t first = 0; first < end; first += N * COMPUTE_THREADS) {
        uint4 v[N] = {};
        uint32_t missing = 0;
#pragma unroll
        for (uint32_t u = 0; u < N; u++)
            missing |= (first + u * COMPUTE_THREADS + c->thread < K / 4) << u;
#pragma unroll 1
        do {
#pragma unroll
            for (uint32_t u = 0; u < N; u++)
                if (missing >> u & 1)
                    v[u] =
                        load_flagged_pair(row.at + 4 * (first + u * COMPUTE_THREADS + c->thread));
#pragma unroll
            for (uint32_t u = 0; u < N; u++)
                if (v[u].y == row.flag && v[u].w == row.flag) missing &= ~(1u << u);
        } while (missing != 0 && !act_given_up());
#pragma unroll
        for (uint32_t u = 0; u < N; u++) {
            const uint32_t at = first + u * COMPUTE_THREADS + c->thread;
            if (at < end) *(uint2 *)(dst + 8 * at) = make_uint2(v[u].x, v[u].z);
        }
    }
}

DEV void store_flagged_pair(float *to, float v0, float v1, uint32_t flag) {
    store_flagged(to, __uint_as_float(pack_pair<WEIGHT_E>(v0, v1)), flag);
}

/* Elements `at` and at + 1 of a single row, an even place. */
DEV void act_store_pair(const struct cuda_task *task, uint64_t at, float v0, float v1) {
    store_flagged_pair((float *)task->out + at, v0, v1, SHARED->flag);
}

/* Some of rows' n blocks' squares, asked for: of each row those from number `first` on, 32 apart;
 * zeros beyond. They may be empty words. */
enum {
    SQUARES_ALL = (QN_HIDDEN + 64 * SQUARES_COLUMNS - 1) / (64 * SQUARES_COLUMNS),
    SQUARES_AT_ONCE = SQUARES_ALL < 8 ? SQUARES_ALL : 8
};
template <int ROWS> struct squares { float v[ROWS][2 * SQUARES_AT_ONCE]; };

template <int ROWS>
DEV struct squares<ROWS> squares_ask(const float *const blocks[ROWS], uint32_t n, uint32_t first) {
    struct squares<ROWS> s;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (uint32_t i = 0; i < 2 * SQUARES_AT_ONCE; i++) {
            const uint32_t at = first + 32 * i;
            s.v[r][i] = at < n ? __uint_as_float(load_word_polled(blocks[r] + at)) : 0;
        }
    return s;
}

template <int ROWS>
DEV bool squares_there(const struct squares<ROWS> *s) {
    uint32_t most = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (uint32_t i = 0; i < 2 * SQUARES_AT_ONCE; i++)
            most = max(most, __float_as_uint(s->v[r][i]));
    return !word_is_empty(most);
}

/* Rows' sums of squares from those of their n blocks each, by one warp; s: the lane's first, on
 * their way. Of n = 1 it is that one. */
template <int ROWS>
DEV void squares_of_blocks(const struct warp_context *c, const float *const blocks[ROWS],
                           uint32_t n, struct squares<ROWS> s, float sum[ROWS]) {
    float part[ROWS][2] = {}; /* of w = lane / 8 and lane / 8 + 4; q = lane % 8 */
#pragma unroll 1
    for (uint32_t first = c->lane;;) {
#pragma unroll 1
        while (!squares_there(&s) && !act_given_up()) s = squares_ask<ROWS>(blocks, n, first);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (uint32_t i = 0; i < 2 * SQUARES_AT_ONCE; i++) part[r][i % 2] += s.v[r][i];
        first += 64 * SQUARES_AT_ONCE;
        if (SQUARES_ALL == SQUARES_AT_ONCE || first - c->lane >= n) break;
        s = squares_ask<ROWS>(blocks, n, first);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int d = 1; d < 8; d *= 2)
#pragma unroll
            for (int h = 0; h < 2; h++) part[r][h] += __shfl_xor_sync(~0u, part[r][h], d);
        sum[r] = __shfl_sync(~0u, part[r][0], 0);
#pragma unroll
        for (int w = 1; w < WARPS; w++) sum[r] += __shfl_sync(~0u, part[r][w / 4], w % 4 * 8);
    }
}

/* SUM_SQUARES: a warp per row. */
DEV void run_sum_squares(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
    for (uint32_t row = task->row0 + c->warp; row < end; row += WARPS) {
        const float *const blocks[1] = {(const float *)task->in + (uint64_t)row * task->n_pieces};
        float sum[1];
        squares_of_blocks<1>(c, blocks, task->n_pieces,
                             squares_ask<1>(blocks, task->n_pieces, c->lane), sum);
        if (c->lane == 0) store_plain((float *)task->out + row, sum[0]);
    }
}

#endif
