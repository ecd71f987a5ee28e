/* matmul_stream.cuh - matrices times packed activations of up to 16 token rows, in one or two
 * columns of eight: decode of a batch.
 *
 * Pages stream as for one row; nothing is leased. A warp works on the k-tiles of one partial sum,
 * one k-tile of each step (cuda_abi.h).
 *
 *   before the event   the weights of the next norm, and the residual stream where this worker
 *                      wrote it itself, into scratch
 *   a step             the warp's activations from L2, COLUMNS * 4 KB, into registers; then a page
 *                      for each row block of the group
 *   a group            partial sums, barrier, results
 *
 * As for one row (matvec.cuh) each operator has code of its own, in which its kind, the length of
 * its dot products and of its results' rows are constants.
 *
 * Activations, their squares and the residual stream may be sentinels until they are stored
 * (task/transport.c), so all of these are loaded until none is a sentinel. A plain word is never a
 * sentinel: a counter guards it, so the first load gets its value.
 *
 * Bytes of activations from L2 per page of 8 KB: COLUMNS * 4 KB / row blocks of the group.
 *
 * Scratch:   0   partial sums [row block of the group][token] x STREAM_TOKEN_FLOATS F32
 *            +   of LINEAR: residual stream [row block][token][16], the norm's weights [row
 *                block][16]
 */
#ifndef QN_CUDA_MATMUL_MATMUL_STREAM_CUH
#define QN_CUDA_MATMUL_MATMUL_STREAM_CUH

#include "kernels/cuda/matmul/matmul_tile.cuh"

/* A token's partial sums of a row block are [turn][16 rows] and four unused words: so the 32 words
 * that a warp stores at a time, of four tokens and eight rows, lie in different banks. */
#define STREAM_TOKEN_FLOATS (CUDA_STREAM_TOKEN_BYTES / 4)

/* ---- constants of a form ---- */

/* Most row blocks of a group, whose partial sums are in scratch together. */
template <uint32_t KIND, int COLUMNS> DEV constexpr uint32_t stream_group(void) {
    return cuda_packed_group(KIND, COLUMNS);
}

/* Whether a group's first activations are requested before all else (asks_first), and the second
 * ones with them if its warps have two k-tiles each (has_both). Only one column leaves registers
 * for that: with two columns a second place that requests activations spills. */
template <int COLUMNS> DEV constexpr bool stream_asks_first(void) {
    return COLUMNS == 1;
}
template <uint32_t KIND, uint32_t K, int COLUMNS> DEV constexpr bool stream_has_both(void) {
    return COLUMNS == 1 && stream_group<KIND, COLUMNS>() <= 4 && cuda_k_tiles(K) > PARTIALS &&
           cuda_k_tiles(K) <= 2 * PARTIALS;
}

/* Token rows that scratch has room for. */
template <int COLUMNS> DEV constexpr uint32_t stream_tile(void) {
    return COLUMNS * PACK_ROWS;
}

template <int COLUMNS> DEV float *stream_sums(uint32_t in_group, uint32_t token) {
    return (float *)SCRATCH + (in_group * stream_tile<COLUMNS>() + token) * STREAM_TOKEN_FLOATS;
}
template <int COLUMNS> DEV float *stream_residual(uint32_t in_group, uint32_t token) {
    return stream_sums<COLUMNS>(stream_group<OP_LINEAR, COLUMNS>(), 0) +
           (in_group * stream_tile<COLUMNS>() + token) * CUDA_PAGE_ROWS;
}
template <int COLUMNS> DEV float *stream_norm(uint32_t in_group) {
    return stream_residual<COLUMNS>(stream_group<OP_LINEAR, COLUMNS>(), 0) +
           in_group * CUDA_PAGE_ROWS;
}
template <int COLUMNS> DEV constexpr uint32_t stream_scratch(void) {
    const uint32_t sums = stream_tile<COLUMNS>() * STREAM_TOKEN_FLOATS;
    return 4 * stream_group<OP_LINEAR, COLUMNS>() *
           (sums + (stream_tile<COLUMNS>() + 1) * CUDA_PAGE_ROWS);
}
static_assert(stream_scratch<1>() <= SCRATCH_BYTES && stream_scratch<2>() <= SCRATCH_BYTES,
              "scratch");

/* A running task. */
struct stream {
    const struct cuda_task *task;
    const char *rows; /* its activations, packed */
    uint32_t turn;    /* the warp's page of each step: its partial sum, by cuda_turn_partial */
    uint32_t row0, n; /* token rows [row0, row0 + n) */
};

DEV struct stream stream_begin(const struct warp_context *c, const struct cuda_task *task) {
    struct stream f;
    f.task = task;
    f.row0 = task->row0;
    f.n = min(task->row1, max(linear_rows(task), f.row0)) - f.row0;
    f.turn = (c->warp - c->turn) % WARPS;
    f.rows = (const char *)task->in;
    return f;
}

/* ---- activations: a k-tile at a time ---- */

/* A lane's share of a k-tile's activations: for each eight token rows the B registers of each two
 * steps. */
template <int COLUMNS> struct fragments { uint4 of[COLUMNS][CUDA_PAGE_K / 32]; };

/* The k-tile of the warp's page in the step that begins with a row block's page number `page`.
 * Where the warp has no page, another k-tile: the compiler spills an array that is loaded
 * conditionally. */
template <uint32_t K> DEV uint32_t stream_k_tile(const struct stream *f, uint32_t page) {
    constexpr uint32_t k_tiles = cuda_k_tiles(K), turns = partial_count(k_tiles);
    const uint32_t turn = turns < PARTIALS ? min(f->turn, turns - 1) : f->turn;
    const uint32_t first = partial_first(k_tiles, cuda_turn_partial(k_tiles, turn));
    return min(first + page / PARTIALS, k_tiles - 1);
}

/* Requests the activations of the warp's k-tile in the step that begins with page k0. */
template <uint32_t K, int COLUMNS>
DEV struct fragments<COLUMNS> fragments_ask(const struct warp_context *c, const struct stream *f,
                                            uint32_t k0) {
    struct fragments<COLUMNS> x;
    const uint32_t k_tile = stream_k_tile<K>(f, k0);
    constexpr uint32_t NEXT = COLUMNS * PACKED_PIECE; /* bytes to the next columns' pieces */
    const char *from = f->rows + k_tile * (CUDA_PAGE_K / CUDA_PACK_COLUMNS) * NEXT + c->lane * 4;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
            const uint32_t *at =
                (const uint32_t *)(from + i * PACKED_PIECE + pair / 2 * NEXT) + pair % 2 * 128;
            x.of[i][pair] = make_uint4(load_word_polled(at), load_word_polled(at + 32),
                                       load_word_polled(at + 64), load_word_polled(at + 96));
        }
    return x;
}

/* Whether the activations have arrived: none of the iteration's rows has a sentinel. The lane has
 * row lane / 4 of each eight. The number of rows is read again, because there is no register to
 * keep it. */
template <int COLUMNS>
DEV bool fragments_there(const struct stream *f, const struct fragments<COLUMNS> *x) {
    const uint32_t rows = shared_load_volatile(&SHARED->batch.rows.n_rows);
    const uint32_t row = shared_load_volatile(&f->task->row0) + thread_here() % 32 / 4;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        uint32_t of_row = 0;
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
            const uint4 v = x->of[i][pair];
            of_row = max(max(max(of_row, v.x), max(v.y, v.z)), v.w);
        }
        if (row + 8 * i < rows) most = max(most, of_row);
    }
    return !word_is_sentinel(most);
}

/* Waits until the activations have arrived. seen: they are known to have arrived, because another
 * group of the task has read them or because they are plain. */
template <uint32_t K, int COLUMNS>
DEV void fragments_await(const struct warp_context *c, const struct stream *f, uint32_t k0,
                         bool seen, struct fragments<COLUMNS> *x) {
#pragma unroll 1
    while (!seen && !fragments_there<COLUMNS>(f, x) && !operand_given_up())
        *x = fragments_ask<K, COLUMNS>(c, f, k0);
}

/* Loads the activations, again and again until they have arrived. */
template <uint32_t K, int COLUMNS>
DEV struct fragments<COLUMNS> fragments_get(const struct warp_context *c, const struct stream *f,
                                            uint32_t k0, bool seen) {
    struct fragments<COLUMNS> x;
#pragma unroll 1
    do x = fragments_ask<K, COLUMNS>(c, f, k0);
    while (!seen && !fragments_there<COLUMNS>(f, &x) && !operand_given_up());
    return x;
}

/* ---- pages ---- */

template <int GROUP, int COLUMNS>
struct stream_partials {
    float of[GROUP][COLUMNS][4];
};

/* Stores the partial sums of the group's row block number b to scratch. */
template <int GROUP, int COLUMNS>
DEV void partials_put(const struct warp_context *c, const struct stream *f, uint32_t b,
                      const struct stream_partials<GROUP, COLUMNS> *sums) {
    float *to = stream_sums<COLUMNS>(b, 2 * (c->lane % 4)) + f->turn * CUDA_PAGE_ROWS + c->lane / 4;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const float *v = sums->of[b][i];
        float *at = to + i * (PACK_ROWS * STREAM_TOKEN_FLOATS);
        at[0] = v[0];
        at[8] = v[2];
        at[STREAM_TOKEN_FLOATS] = v[1];
        at[STREAM_TOKEN_FLOATS + 8] = v[3];
    }
}

/* Multiplies the warp's pages of n row blocks in the step that begins with page k0. */
template <uint32_t K, int GROUP, int COLUMNS>
DEV void stream_pages(struct warp_context *c, const struct stream *f, uint32_t k0, uint32_t n,
                      const struct fragments<COLUMNS> *x,
                      struct stream_partials<GROUP, COLUMNS> *sums) {
    static_assert(GROUP * COLUMNS <= 8, "registers");
    /* Without a k-tile the warp's pages are void. */
    const bool there = cuda_k_tiles(K) % PARTIALS == 0 || k0 + f->turn < cuda_k_tiles(K);
#pragma unroll
    for (int b = 0; b < GROUP; b++) {
        if (b >= n) break;
        const uint4 *page = page_acquire(c);
        if (there) {
#pragma unroll
            for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    mma_pair(sums->of[b][i], page, pair, c->lane, x->of[i][pair]);
            }
        }
        page_release(c);
    }
}

/* Multiplies all pages of a group of n row blocks, then stores its partial sums to scratch. x:
 * activations of the first k-tile, if they were requested before. */
template <uint32_t KIND, uint32_t K, int COLUMNS>
DEV void stream_multiply(struct warp_context *c, const struct stream *f, uint32_t n, bool seen,
                         struct fragments<COLUMNS> x) {
    constexpr int GROUP = stream_group<KIND, COLUMNS>();
    constexpr uint32_t k_tiles = cuda_k_tiles(K);
    struct stream_partials<GROUP, COLUMNS> sums = {};
    if (stream_has_both<KIND, K, COLUMNS>()) {
        struct fragments<COLUMNS> next = fragments_ask<K, COLUMNS>(c, f, PARTIALS);
        fragments_await<K, COLUMNS>(c, f, 0, seen, &x);
        stream_pages<K, GROUP, COLUMNS>(c, f, 0, n, &x, &sums);
        fragments_await<K, COLUMNS>(c, f, PARTIALS, seen, &next);
        stream_pages<K, GROUP, COLUMNS>(c, f, PARTIALS, n, &next, &sums);
    } else {
        if (stream_asks_first<COLUMNS>()) fragments_await<K, COLUMNS>(c, f, 0, seen, &x);
#pragma unroll 1
        for (uint32_t k0 = 0;;) {
            if (!stream_asks_first<COLUMNS>()) x = fragments_get<K, COLUMNS>(c, f, k0, seen);
            stream_pages<K, GROUP, COLUMNS>(c, f, k0, n, &x, &sums);
            k0 += PARTIALS;
            if (k0 >= k_tiles) break;
            if (stream_asks_first<COLUMNS>()) x = fragments_get<K, COLUMNS>(c, f, k0, seen);
        }
    }
#pragma unroll
    for (int b = 0; b < GROUP; b++) {
        if (b >= n) break;
        partials_put<GROUP, COLUMNS>(c, f, b, &sums);
    }
}

/* ---- norm and residual stream ---- */

/* Where the squares of the task's tokens are, for 1 / rms. A warp has one of each eight tokens. */
template <uint32_t KIND, int COLUMNS>
DEV void squares_find(const struct warp_context *c, const struct stream *f,
                      const float *blocks[COLUMNS]) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const uint32_t row = f->row0 + min(c->warp + WARPS * i, f->n - 1);
        const uint32_t token = KIND == OP_LM_HEAD ? row_of_logits(SHARED, row) : row;
        blocks[i] = (const float *)f->task->more2 + (uint64_t)token * f->task->n_pieces;
    }
}

template <int COLUMNS>
DEV void squares_put(const struct warp_context *c, const float sum[COLUMNS]) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        if (c->lane == 0) SHARED->inv_rms[c->warp + WARPS * i] = inverse_rms_of(sum[i]);
}

/* Loads the squares and adds them up. */
template <uint32_t KIND, int COLUMNS>
DEV void squares_now(const struct warp_context *c, const struct stream *f) {
    const float *blocks[COLUMNS];
    float sum[COLUMNS];
    squares_find<KIND, COLUMNS>(c, f, blocks);
    squares_of_blocks<COLUMNS>(c, blocks, f->task->n_pieces,
                               squares_ask<COLUMNS>(blocks, f->task->n_pieces, c->lane), sum);
    squares_put<COLUMNS>(c, sum);
}

/* The same in two parts: activations are requested between the loads and the additions. */
template <uint32_t KIND, int COLUMNS> struct stream_squares {
    const float *blocks[COLUMNS];
    struct squares<COLUMNS> first;
};

template <uint32_t KIND, int COLUMNS>
DEV void squares_begin(const struct warp_context *c, const struct stream *f,
                       struct stream_squares<KIND, COLUMNS> *s) {
    squares_find<KIND, COLUMNS>(c, f, s->blocks);
    s->first = squares_ask<COLUMNS>(s->blocks, f->task->n_pieces, c->lane);
}

template <uint32_t KIND, int COLUMNS>
DEV void squares_end(const struct warp_context *c, const struct stream *f,
                     const struct stream_squares<KIND, COLUMNS> *s) {
    float sum[COLUMNS];
    squares_of_blocks<COLUMNS>(c, s->blocks, f->task->n_pieces, s->first, sum);
    squares_put<COLUMNS>(c, sum);
}

/* Whether LINEAR writes the residual stream and also its copy for the next norm. It does not for a
 * single row that is too long to be staged, whose results are those of matvec.cuh, nor for shared
 * experts. */
DEV bool stream_has_norm(const struct cuda_task *task) {
    return task->norm != 0;
}

/* Requests the norm's weights of row blocks [first, end). */
template <int COLUMNS>
DEV void norm_ask(const struct warp_context *c, const struct stream *f, uint32_t first,
                  uint32_t end) {
    constexpr uint32_t FOURS = CUDA_PAGE_ROWS / 4; /* float4s of a row block */
    const uint32_t at = first * CUDA_PAGE_ROWS + 4 * c->thread;
    if (c->thread < (end - first) * FOURS && at < QN_HIDDEN)
        copy16_async(stream_norm<COLUMNS>(0) + 4 * c->thread, (const float *)f->task->norm + at);
}

/* Requests the residual stream of row blocks [first, end). */
template <int COLUMNS>
DEV void residual_ask(const struct warp_context *c, const struct stream *f, uint32_t first,
                      uint32_t end) {
    constexpr uint32_t FOURS = CUDA_PAGE_ROWS / 4, EACH = FOURS * stream_tile<COLUMNS>();
    const uint32_t four = c->thread % FOURS, token = c->thread / FOURS % stream_tile<COLUMNS>();
    const uint32_t row = f->row0 + token;
#pragma unroll
    for (uint32_t i = 0; i < stream_group<OP_LINEAR, COLUMNS>(); i += COMPUTE_THREADS / EACH) {
        const uint32_t in_group = i + c->thread / EACH;
        const uint32_t at = (first + in_group) * CUDA_PAGE_ROWS + 4 * four;
        if (first + in_group < end && token < f->n && at < QN_HIDDEN)
            copy16_polled_async(stream_residual<COLUMNS>(in_group, token) + 4 * four,
                                (const float *)f->task->more + (uint64_t)row * QN_HIDDEN + at);
    }
}

/* ---- results ---- */

/* A thread's item: rows r and r + 8 of a row block, and a token. A warp has four tokens, so that
 * the partial sums that it reads lie in different banks, too. */
struct stream_item {
    uint32_t block, r, token; /* token: from row0 on */
    bool there;               /* the iteration has that token */
};

/* The sum of image row r. */
template <uint32_t KIND, uint32_t K> DEV float stream_sum(const float *sums, uint32_t r) {
    float v[PARTIALS];
#pragma unroll
    for (uint32_t i = 0; i < partial_count(cuda_k_tiles(K)); i++)
        v[i] = sums[i * CUDA_PAGE_ROWS + r];
    return partials_sum<KIND == OP_LINEAR, cuda_k_tiles(K)>(v);
}

/* Waits for the residual's element at `at`. v: what its first load gave. */
DEV float residual_await(float v, const float *at, bool own) {
    while (own && word_is_sentinel(__float_as_uint(v)) && !operand_given_up())
        v = __uint_as_float(load_word_polled(at));
    return v;
}

/* Stores an item that has no copy for the next norm. QN_BARE_ROWS: several rows may have none. */
DEV void stream_plain(const struct stream *f, const struct stream_item *m, float v0, float v1) {
    const uint32_t row = f->row0 + m->token;
    const struct linear_item item = !QN_BARE_ROWS || f->task->row1 == 1
                                        ? linear_item<true>(f->task, m->block, m->r, row)
                                        : linear_item<false>(f->task, m->block, m->r, row);
    if (!m->there) return;
    const struct linear_addend add = addend_ask(&item);
    const float2 v = op_value(f->task, v0, v1, 1, item.bias, addend_await(&item, &add));
    if (item.own0) item_store(&item, 0, v.x);
    if (item.own1) item_store(&item, 8, v.y);
}

/* Stores an item of the residual stream, its copy for the next norm, and its squares. residual,
 * norm: row r's. All lanes take part. */
DEV void stream_normed(const struct stream *f, const struct stream_item *m, const float *residual,
                       const float *norm, float v0, float v1) {
    const struct cuda_task *task = f->task;
    const uint32_t r = m->r, column = m->block * CUDA_PAGE_ROWS + r, row = f->row0 + m->token;
    const uint64_t at = (uint64_t)row * QN_HIDDEN + column;
    const bool own0 = m->there && (QN_HIDDEN % 16 == 0 || column < QN_HIDDEN);
    const bool own1 = m->there && (QN_HIDDEN % 16 == 0 || column + 8 < QN_HIDDEN);
    if (LINEAR_BIASES && task->bias != 0) {
        v0 += item_constant(task->bias, column, own0);
        v1 += item_constant(task->bias, column + 8, own1);
    }
    v0 = residual_await(residual[0], (const float *)task->more + at, own0) + v0;
    v1 = residual_await(residual[8], (const float *)task->more + at + 8, own1) + v1;
    v0 = own0 ? v0 : 0;
    v1 = own1 ? v1 : 0;
    struct linear_item next = {};
    next.own0 = own0;
    next.own1 = own1;
    next.norm = make_float2(norm[0], norm[8]);
    const uint32_t pair = column + (r % 2 != 0 ? 7 : 0);
    next.normed = STREAM_IS_PACKED ? (float *)packed_at(task, task->out2, row, pair)
                                   : (float *)task->out2 + at;
    normed_store<1>(&next, r, v0, v1);
    float *out = (float *)task->out + at;
    if (own0) store_plain(out, v0);
    if (own1) store_plain(out + 8, v1);
    const float squares = squares_of_rows<1>(r, v0, v1);
    if (r == 0 && own0)
        store_plain((float *)task->more2 + (uint64_t)row * task->n_pieces + m->block, squares);
}

/* Stores an item of GATED_MLP: h. If h is packed, the lane of an even column stores the next
 * column, too, so that a word is stored at once. All lanes take part. */
DEV void stream_gated(const struct stream *f, const struct stream_item *m, float gate, float up) {
    const struct cuda_task *task = f->task;
    const uint32_t column = m->block * 8 + m->r, row = f->row0 + m->token;
    struct linear_item biases = {};
#if QN_MLP_BIAS
    biases.bias = make_float2(item_constant(task->bias, column, true),
                              item_constant(task->more, column, true));
#endif
    const float h = mlp_value(&biases, gate, up);
    const uint32_t width = QN_MLP_WIDTH != 0 ? QN_MLP_WIDTH : task->units;
    if (QN_MLP_WIDTH != 0 ? QN_MLP_WIDTH % PACK_K == 0 : (task->flags & CUDA_OUT_PACKED) != 0) {
        const float next = __shfl_down_sync(~0u, h, 1);
        if (m->there && m->r % 2 == 0) packed_store2(task, row, column, h, next);
    } else if (m->there) {
        store_plain((float *)task->out + (uint64_t)row * width + column, h);
    }
}

/* Stores an item of QKV_LINEAR or LM_HEAD. */
template <uint32_t KIND>
DEV void stream_others(const struct stream *f, const struct stream_item *m, float v0, float v1) {
    const uint32_t UNITS = KIND == OP_LM_HEAD ? QN_VOCAB : QKV_COLUMNS(f->task);
    /* WHOLE: no row block has rows beyond the matrix; the LM head's are whole units. */
    const bool WHOLE = UNITS % (KIND == OP_LM_HEAD ? LM_BLOCK : CUDA_PAGE_ROWS) == 0;
    const uint32_t column = m->block * CUDA_PAGE_ROWS + m->r;
    const bool own0 = m->there && (WHOLE || column < UNITS);
    const bool own1 = m->there && (WHOLE || column + 8 < UNITS);
    float *out = (float *)f->task->out + (uint64_t)(f->row0 + m->token) * UNITS + column;
    if (KIND == OP_QKV_LINEAR && QN_QKV_BIAS) {
        v0 += item_constant(f->task->bias, column, own0);
        v1 += item_constant(f->task->bias, column + 8, own1);
    }
    if (own0) store_plain(out, v0);
    if (own1) store_plain(out + 8, v1);
}

/* The thread's item among the row blocks that the warps finish at a time. */
template <int COLUMNS>
DEV struct stream_item stream_item_of(const struct warp_context *c, const struct stream *f) {
    constexpr uint32_t EACH = 2 * COLUMNS; /* warps for a row block */
    struct stream_item m;
    m.block = c->warp / EACH;
    m.r = c->lane % 8;
    m.token = c->warp % EACH / 2 * PACK_ROWS + c->lane / 8 * 2 + c->warp % 2;
    m.there = m.token < f->n;
    return m;
}

/* Turns the partial sums of an item into results; `first`: the group's first row block. */
template <uint32_t KIND, uint32_t K, int COLUMNS>
DEV void stream_result(const struct stream *f, const struct stream_item *m, uint32_t first,
                       float inv) {
    const uint32_t in_group = m->block - first;
    const float *sums = stream_sums<COLUMNS>(in_group, m->token);
    const float v0 = stream_sum<KIND, K>(sums, m->r), v1 = stream_sum<KIND, K>(sums, m->r + 8);
    if (KIND == OP_GATED_MLP)
        stream_gated(f, m, v0 * inv, v1 * inv);
    else if (KIND != OP_LINEAR)
        stream_others<KIND>(f, m, v0 * inv, v1 * inv);
    else if (stream_has_norm(f->task))
        stream_normed(f, m, stream_residual<COLUMNS>(in_group, m->token) + m->r,
                      stream_norm<COLUMNS>(in_group) + m->r, v0, v1);
    else
        stream_plain(f, m, v0, v1);
}

/* Makes the results of row blocks [first, end), whose partial sums are in scratch. */
template <uint32_t KIND, uint32_t K, int COLUMNS>
DEV void stream_results(const struct warp_context *c, const struct stream *f, uint32_t first,
                        uint32_t end) {
    struct stream_item m = stream_item_of<COLUMNS>(c, f);
    const float inv = KIND == OP_LINEAR ? 1 : SHARED->inv_rms[m.token];
#pragma unroll 1
    for (m.block += first; m.block < end; m.block += WARPS / (2 * COLUMNS))
        stream_result<KIND, K, COLUMNS>(f, &m, first, inv);
}

/* ---- a task ---- */

/* The end of the task's group of row blocks that begins with b. */
DEV uint32_t stream_group_end(const struct cuda_task *task, uint32_t b) {
    return walk_group_end(b, task->block1, task->group, task->unit_blocks);
}

/* Waits for the copies into scratch. */
DEV void stream_copies_end(void) {
    copy_commit();
    copy_wait<0>();
}

/* Runs a group of row blocks [b, end), from activations to results. first: it is the task's first.
 * early: its residual stream was requested before. */
template <uint32_t KIND, uint32_t K, int COLUMNS>
DEV void stream_group_run(struct warp_context *c, const struct stream *f, uint32_t b, uint32_t end,
                          bool first, bool early,
                          const struct stream_squares<KIND, COLUMNS> *squares) {
    const bool streams = KIND == OP_LINEAR && stream_has_norm(f->task);
    struct fragments<COLUMNS> x;
    if (stream_asks_first<COLUMNS>()) x = fragments_ask<K, COLUMNS>(c, f, 0);
    if (streams && !early) residual_ask<COLUMNS>(c, f, b, end);
    if (KIND != OP_LINEAR && stream_asks_first<COLUMNS>() && first)
        squares_end<KIND, COLUMNS>(c, f, squares);
    stream_multiply<KIND, K, COLUMNS>(c, f, end - b, !first || KIND == OP_LM_HEAD, x);
    if (KIND == OP_LINEAR) stream_copies_end();
    sync_compute();
    stream_results<KIND, K, COLUMNS>(c, f, b, end);
}

/* Runs a task. False: the launch ends. */
template <uint32_t KIND, uint32_t K, int COLUMNS>
DEV bool stream_run(struct warp_context *c, const struct cuda_task *task) {
    const struct stream f = stream_begin(c, task);
    const bool streams = KIND == OP_LINEAR && stream_has_norm(task);
    const bool own = streams && (task->flags & CUDA_MORE_OWN) != 0;
    uint32_t b = task->block0, end = stream_group_end(task, b);
    if (streams) norm_ask<COLUMNS>(c, &f, b, end);
    if (own) residual_ask<COLUMNS>(c, &f, b, end);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (f.n == 0) {
        copy_wait<0>();
        tile_skip(c, task);
        return true;
    }
    struct stream_squares<KIND, COLUMNS> squares;
    if (KIND != OP_LINEAR && stream_asks_first<COLUMNS>())
        squares_begin<KIND, COLUMNS>(c, &f, &squares);
    if (KIND != OP_LINEAR && !stream_asks_first<COLUMNS>()) squares_now<KIND, COLUMNS>(c, &f);
#pragma unroll 1
    for (bool first = true;; first = false) {
        stream_group_run<KIND, K, COLUMNS>(c, &f, b, end, first, first && own, &squares);
        if (end >= task->block1) break;
        b = end;
        end = stream_group_end(task, b);
        sync_compute(); /* the last group's sums are read */
        if (streams) norm_ask<COLUMNS>(c, &f, b, end);
    }
    if (KIND != OP_LM_HEAD) return true;
    sync_compute(); /* logits are stored */
    lm_parts(c->args, task, task->unit0, task->unit1, f.row0, f.row0 + f.n);
    return true;
}

#endif
