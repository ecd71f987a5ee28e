/* latent.cuh - LATENT_HEADS, LATENT_VALUES and LATENT_MERGE bring queries into the space of latents
 * and attention's output back from it, by matrices of each head's own, and store the latents of
 * this iteration.
 *
 * The weights of all heads lie in one image. Its pages stream like those of a single row
 * (matvec.cuh), for any number of token rows: a page is read once for all rows of a tile. A row
 * block has rows of one head, or of several where heads are no multiples of 16. Each row is
 * multiplied by the activations of its own head, eight tokens at a time, straight from L2.
 *
 *   LATENT_HEADS    a dot product is one page: a warp stores it from its registers. Latents and
 *                   turned elements are made before the pages, by warps without a page first
 *   LATENT_VALUES   a dot product is some pages, of different warps. Partial sums are added in
 *                   order of k
 *   LATENT_MERGE    the same for few rows, whose heads are first merged from a context's pieces
 *                   with the operations of attention_merge.cuh. A thread has two columns of a head,
 *                   of up to eight rows at once where contexts are short
 *
 * Bytes: the pages once per tile of rows; the heads' activations, 4 * 256 a page and row, from L2.
 *
 * Scratch (LATENT_VALUES, _MERGE):
 *
 *   0                partial sums [page of a group][8 tokens of a tile][16 rows][8] F32
 *   SCRATCH_BYTES -  LATENT_MERGE: merged heads [head][8 tokens][MERGED_ROW bytes], 16 bits
 *   MERGED_BYTES
 */
#ifndef QN_CUDA_ATTENTION_LATENT_CUH
#define QN_CUDA_ATTENTION_LATENT_CUH

#if QN_LATENT

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/qkv.cuh"
#include "kernels/cuda/matmul/linear.cuh"

enum {
    LATENT_NOPE = QN_HEAD_DIM - QN_ROPE_DIM, /* elements of a query head without RoPE */
    LATENT_COLUMNS = QN_N_HEADS * QN_KEY_DIM,
    LATENT_EIGHTH = CUDA_PAGE_ROWS * PACK_ROWS, /* sums of a row block and eight tokens */
};
static_assert(LATENT_NOPE <= CUDA_PAGE_K, "the host refuses others");

/* ---- products ---- */

/* A lane's activations of a k-tile, of token lane / 4 of eight, in the layout of mma_pair. */
struct latent_columns {
    uint4 b[CUDA_PAGE_K / 32];
};

/* Loads these from the K plain elements of a head at `from`. */
template <uint32_t K>
DEV void latent_columns_plain(const struct warp_context *c, const float *from, uint32_t k_tile,
                              struct latent_columns *x) {
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint32_t d = k_tile * CUDA_PAGE_K + 32 * pair + c->lane % 4 * 8;
        if (K <= 32 * pair) break;
        const bool in = K % CUDA_PAGE_K == 0 || d < K;
        const float4 even = in ? load4_l2(from + d) : make_float4(0, 0, 0, 0);
        const float4 odd = in ? load4_l2(from + d + 4) : make_float4(0, 0, 0, 0);
        x->b[pair] =
            make_uint4(pack_pair<WEIGHT_E>(even.x, even.y), pack_pair<WEIGHT_E>(even.z, even.w),
                       pack_pair<WEIGHT_E>(odd.x, odd.y), pack_pair<WEIGHT_E>(odd.z, odd.w));
    }
}

/* The same for a single row that carries flags, polled until all have arrived. Eight elements are
 * EACH vectors of two flags: four vectors of elements, or two of pairs. */
template <uint32_t K, bool PAIRS_OF_16>
DEV void latent_columns_flagged(const struct warp_context *c, struct operand head, uint32_t k_tile,
                                struct latent_columns *x) {
    constexpr uint32_t TILE = K < CUDA_PAGE_K ? K : CUDA_PAGE_K;
    constexpr uint32_t N = (TILE + 31) / 32, EACH = PAIRS_OF_16 ? 2 : 4;
    uint4 v[N][EACH];
    bool there;
    do {
        there = true;
#pragma unroll
        for (uint32_t pair = 0; pair < N; pair++) {
            /* Past the end the last elements repeat: their weights are zeros. */
            const uint32_t d = min(k_tile * CUDA_PAGE_K + 32 * pair + c->lane % 4 * 8, K - 8u);
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                v[pair][i] = load_flagged_pair(head.at + d * EACH / 2 + 4 * i);
        }
#pragma unroll
        for (uint32_t pair = 0; pair < N; pair++)
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++)
                there = there & v[pair][i].y == head.flag & v[pair][i].w == head.flag;
    } while (!there && !operand_given_up());
#pragma unroll
    for (uint32_t pair = 0; pair < N; pair++) {
        uint32_t word[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint4 of = v[pair][i * EACH / 4];
            word[i] = PAIRS_OF_16
                          ? (i % 2 == 0 ? of.x : of.z)
                          : pack_pair<WEIGHT_E>(__uint_as_float(of.x), __uint_as_float(of.z));
        }
        x->b[pair] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* The same from the task's input: plain, flagged, or, where PAIRED is compiled, in flagged pairs.
 * at: the element of the input where the head begins. */
template <uint32_t K, bool PAIRED>
DEV void latent_columns_load(const struct warp_context *c, const struct cuda_task *task,
                             uint64_t at, uint32_t k_tile, struct latent_columns *x) {
    const float *in = (const float *)task->in;
    if (PAIRED && (task->flags & CUDA_IN_PAIRED) != 0)
        latent_columns_flagged<K, true>(c, operand{in + at, SHARED->flag}, k_tile, x);
    else if (task->flags & CUDA_IN_FLAGGED)
        latent_columns_flagged<K, false>(c, operand{in + 2 * at, SHARED->flag}, k_tile, x);
    else
        latent_columns_plain<K>(c, in + at, k_tile, x);
}

/* Multiplies in two independent chains. */
template <uint32_t K>
DEV void latent_multiply(const struct warp_context *c, const uint4 *page,
                         const struct latent_columns *x, float sum[4]) {
    float odd[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = 0;
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        if (K <= 32 * pair) break;
        mma_pair(pair % 2 == 0 ? sum : odd, page, pair, c->lane, x->b[pair]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] += odd[i];
}

/* Rows [row, row + n) of a tile. */
struct latent_tile {
    uint32_t row, n;
};
DEV struct latent_tile latent_tile_at(const struct cuda_task *task, uint32_t row) {
    const uint32_t end = min(min(task->row1, row + task->tile), SHARED->batch.rows.n_rows);
    return {row, end > row ? end - row : 0};
}

/* The row of the lane's token of eight from number `first` of the tile on. Past the end the last
 * token is repeated. */
DEV uint64_t latent_row(const struct warp_context *c, const struct latent_tile *t, uint32_t first) {
    return t->row + min(first + c->lane / 4, t->n - 1);
}

/* Heads [first, last] of row block b, of ROWS rows each. */
struct latent_range {
    uint32_t first, last;
};
template <uint32_t ROWS> DEV struct latent_range latent_heads_of(uint32_t b) {
    const uint32_t first = b * CUDA_PAGE_ROWS / ROWS;
    if (ROWS % CUDA_PAGE_ROWS == 0) return {first, first};
    return {first, min((b * CUDA_PAGE_ROWS + CUDA_PAGE_ROWS - 1) / ROWS, QN_N_HEADS - 1u)};
}

/* ---- LATENT_HEADS ---- */

/* The element of raw where a row's head begins. */
DEV uint64_t latent_raw(const struct cuda_task *task, uint64_t row, uint32_t h) {
    return row * task->k + h * QN_HEAD_DIM;
}

/* Stores an element of head h's query, of row `row` of the image, if the row is the head's and the
 * element is the task's. */
DEV void latent_store(const struct cuda_task *task, uint32_t row, uint32_t h, uint32_t token,
                      float v) {
    const uint32_t u = h * QN_KEY_DIM + row - h * QN_VALUE_DIM;
    const bool own = row / QN_VALUE_DIM == h && u >= task->unit0 && u < task->unit1;
    if (own) store_plain((float *)task->out + (uint64_t)token * LATENT_COLUMNS + u, v);
}

/* A page: row block b for all tokens of the tile. */
DEV void latent_heads_page(const struct warp_context *c, const struct cuda_task *task,
                           const struct latent_tile *t, uint32_t b, const uint4 *page) {
    const struct latent_range heads = latent_heads_of<QN_VALUE_DIM>(b);
    const uint32_t row = b * CUDA_PAGE_ROWS + c->lane / 4;
#pragma unroll 1
    for (uint32_t h = heads.first; h <= heads.last; h++)
#pragma unroll 1
        for (uint32_t first = 0; first < t->n; first += PACK_ROWS) {
            struct latent_columns x;
            float sum[4];
            latent_columns_load<LATENT_NOPE, false>(
                c, task, latent_raw(task, latent_row(c, t, first), h), 0, &x);
            latent_multiply<LATENT_NOPE>(c, page, &x, sum);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t token = first + c->lane % 4 * 2 + i;
                if (token >= t->n) continue;
                latent_store(task, row, h, t->row + token, sum[i]);
                latent_store(task, row + 8, h, t->row + token, sum[2 + i]);
            }
        }
}

/* Loads elements at[0], at[1] and so on, all at once, until all have arrived. FLAGGED: whether they
 * carry flags. */
template <bool FLAGGED, uint32_t N>
DEV void latent_load(struct operand from, const uint32_t (&at)[N], float (&v)[N]) {
    from.flag = FLAGGED ? from.flag : 0;
    ASSUME((from.flag != 0) == FLAGGED);
    uint2 word[N];
    bool there;
    do {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) word[i] = operand_ask(from, at[i]);
        there = true;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) there = there & word[i].y == from.flag;
    } while (FLAGGED && !there && !operand_given_up());
#pragma unroll
    for (uint32_t i = 0; i < N; i++) v[i] = __uint_as_float(word[i].x);
}
template <uint32_t N>
DEV void latent_load_any(struct operand from, const uint32_t (&at)[N], float (&v)[N]) {
    if (from.flag != 0)
        latent_load<true>(from, at, v);
    else
        latent_load<false>(from, at, v);
}

/* The rotation of elements `at` and at + QN_ROPE_DIM / 2 of a row. It does not change within an
 * iteration. */
struct latent_turn {
    float cosine, sine;
};
DEV struct latent_turn latent_turn_of(uint32_t row, uint32_t at) {
    const uint64_t angle = (uint64_t)turn_at(row, row_position(SHARED, row)) * (QN_ROPE_DIM / 2);
    return {__ldg(SHARED->args.rope_cos + angle + at), __ldg(SHARED->args.rope_sin + angle + at)};
}
DEV float latent_turn_first(struct latent_turn t, float a, float b) {
    return fmaf(-b, t.sine, __fmul_rn(a, t.cosine));
}
DEV float latent_turn_second(struct latent_turn t, float a, float b) {
    return fmaf(a, t.sine, __fmul_rn(b, t.cosine));
}

/* The task's turned elements of queries, of rows [row0, end). A thread turns one at a time. */
struct latent_turned {
    uint32_t first, n; /* number of the task's first one in a row, how many it has of a row */
};
DEV uint32_t latent_turned_before(uint32_t u) {
    const uint32_t e = u % QN_KEY_DIM;
    return u / QN_KEY_DIM * QN_ROPE_DIM + (e > QN_VALUE_DIM ? e - QN_VALUE_DIM : 0);
}
DEV struct latent_turned latent_turned_of(const struct cuda_task *task) {
    const uint32_t first = latent_turned_before(min(task->unit0, (uint32_t)LATENT_COLUMNS));
    return {first, latent_turned_before(min(task->unit1, (uint32_t)LATENT_COLUMNS)) - first};
}

/* Number i of these elements. */
struct latent_one {
    uint32_t row, h, e;
    struct latent_turn turn;
};
DEV struct latent_one latent_one_of(const struct cuda_task *task, struct latent_turned all,
                                    uint32_t i) {
    const uint32_t in_row = all.first + i % all.n;
    struct latent_one one = {task->row0 + i / all.n, in_row / QN_ROPE_DIM, in_row % QN_ROPE_DIM};
    one.turn = latent_turn_of(one.row, one.e % (QN_ROPE_DIM / 2));
    return one;
}

DEV void latent_turn_query(const struct cuda_task *task, const struct latent_one *one) {
    const uint32_t half = QN_ROPE_DIM / 2, at = one->e % half;
    const struct operand raw = operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED),
                                            latent_raw(task, one->row, one->h) + LATENT_NOPE);
    const uint32_t both[2] = {at, at + half};
    float v[2];
    latent_load_any(raw, both, v);
    store_plain((float *)task->out + (uint64_t)one->row * LATENT_COLUMNS + one->h * QN_KEY_DIM +
                    QN_VALUE_DIM + one->e,
                one->e < half ? latent_turn_first(one->turn, v[0], v[1])
                              : latent_turn_second(one->turn, v[0], v[1]));
}

/* How many elements of a row's latent, and of its key, a lane has. */
enum {
    KEPT = (QN_VALUE_DIM + 31) / 32,
    KEPT_TURNED = (QN_ROPE_DIM / 2 + 31) / 32, /* pairs */
    KEPT_ALL = KEPT + 2 * KEPT_TURNED,
};

/* Norm weights and rotations of a lane's elements. They do not change within an iteration. */
struct latent_kept {
    float norm[KEPT];
    struct latent_turn turn[KEPT_TURNED];
};
DEV struct latent_kept latent_kept_of(const struct warp_context *c, const struct cuda_task *task,
                                      uint32_t row) {
    struct latent_kept k;
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++)
        k.norm[i] = __ldg((const float *)task->norm + min(c->lane + 32 * i, QN_VALUE_DIM - 1u));
#pragma unroll
    for (uint32_t i = 0; i < KEPT_TURNED; i++)
        k.turn[i] = latent_turn_of(row, min(c->lane + 32 * i, QN_ROPE_DIM / 2 - 1u));
    return k;
}

/* Loads the lane's elements of a row's latent, then pairs of its key. Past the end the last ones
 * are repeated. */
DEV void latent_kept_load(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                          float (&v)[KEPT_ALL]) {
    const uint32_t half = QN_ROPE_DIM / 2;
    uint32_t at[KEPT_ALL];
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++) at[i] = min(c->lane + 32 * i, QN_VALUE_DIM - 1u);
#pragma unroll
    for (uint32_t i = 0; i < KEPT_TURNED; i++) {
        at[KEPT + 2 * i] = QN_VALUE_DIM + min(c->lane + 32 * i, half - 1);
        at[KEPT + 2 * i + 1] = at[KEPT + 2 * i] + half;
    }
    latent_load_any(operand_from(operand_of(task->more, task, CUDA_MORE_FLAGGED),
                                 (uint64_t)(row + 1) * task->n_pieces - QN_KEY_DIM),
                    at, v);
}

/* Stores a row's normed latent and its turned key in the cache, by one warp. */
DEV void latent_keep(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                     const struct latent_kept *k) {
    const uint32_t position = row_position(SHARED, row), half = QN_ROPE_DIM / 2;
    const uint32_t kv = row_kv_row(SHARED, row);
    uint16_t *to = (uint16_t *)task->out2;
    float v[KEPT_ALL], squares = 0;
    latent_kept_load(c, task, row, v);
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++)
        squares = fmaf(c->lane + 32 * i < QN_VALUE_DIM ? v[i] : 0, v[i], squares);
    const float eps = __uint_as_float(QN_LATENT_EPS_BITS);
    const float inv =
        inverse_sqrt_fast(__fadd_rn(__fmul_rn(warp_sum(squares), 1.0f / QN_VALUE_DIM), eps));
#pragma unroll
    for (uint32_t i = 0; i < KEPT; i++) {
        const uint32_t d = c->lane + 32 * i;
        if (d < QN_VALUE_DIM)
            to[latent_at(kv, position, d)] = pack_one<KV_E>(v[i] * inv * k->norm[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < KEPT_TURNED; i++) {
        const uint32_t d = c->lane + 32 * i;
        const float a = v[KEPT + 2 * i], b = v[KEPT + 2 * i + 1];
        if (d >= half) continue;
        to[latent_at(kv, position, QN_VALUE_DIM + d)] =
            pack_one<KV_E>(latent_turn_first(k->turn[i], a, b));
        to[latent_at(kv, position, QN_VALUE_DIM + half + d)] =
            pack_one<KV_E>(latent_turn_second(k->turn[i], a, b));
    }
}

/* Makes latents and turned elements before the pages, by warps without a page first. Norm weights
 * and rotations do not change within an iteration and are loaded before the event. False: the
 * launch ends. */
DEV bool latent_heads_turn(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = max(min(task->row1, SHARED->batch.rows.n_rows), task->row0);
    const struct latent_turned all = latent_turned_of(task);
    const bool keeps = task->unit1 > LATENT_COLUMNS;
    const uint32_t rank = (c->turn - 1 - c->warp) % WARPS, n_rows = end - task->row0;
    const uint32_t after = (rank - (keeps ? n_rows : 0)) % WARPS;
    uint32_t row = keeps ? task->row0 + rank : end, i = 32 * after + c->lane;
    struct latent_kept kept = {};
    struct latent_one one = {};
    if (row < end) kept = latent_kept_of(c, task, row);
    if (i < all.n * n_rows) one = latent_one_of(task, all, i);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
#pragma unroll 1
    while (row < end) {
        latent_keep(c, task, row, &kept);
        row += WARPS;
        if (row < end) kept = latent_kept_of(c, task, row);
    }
#pragma unroll 1
    while (i < all.n * n_rows) {
        latent_turn_query(task, &one);
        i += COMPUTE_THREADS;
        if (i < all.n * n_rows) one = latent_one_of(task, all, i);
    }
    __syncwarp();
    return true;
}

DEV bool run_latent_heads(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t n_pages = task->block1 - task->block0;
    if (!latent_heads_turn(c, task)) return false;
#pragma unroll 1
    for (uint32_t row = task->row0; row < task->row1; row += task->tile) {
        const struct latent_tile t = latent_tile_at(task, row);
#pragma unroll 1
        for (uint32_t i = (c->warp - c->turn) % WARPS; i < n_pages; i += WARPS) {
            const uint4 *page = page_acquire(c);
            latent_heads_page(c, task, &t, task->block0 + i, page);
            page_release(c);
        }
        c->turn = turn_after(c->turn, n_pages);
    }
    return true;
}

/* ---- LATENT_VALUES ---- */

/* Whether a single row of outputs may be flagged in pairs (task/transport.c). */
#define VALUES_MAY_PAIR (QN_N_HEADS * QN_VALUE_DIM <= STAGED_COLUMNS)
/* k-tiles of a dot product */
#define VALUES_TILES ((QN_VALUE_DIM + CUDA_PAGE_K - 1) / CUDA_PAGE_K)

/* Sums of page number i of a group, of eight tokens from number `first` of the tile on. */
DEV float *latent_sums(const struct cuda_task *task, uint32_t i, uint32_t first) {
    const uint32_t eights = task->tile / PACK_ROWS;
    return (float *)SCRATCH + (i * eights + first / PACK_ROWS) * LATENT_EIGHTH;
}

/* Stores a page's sums for those of its rows that are head h's, of eight tokens from number `first`
 * of the tile on. The page is number i of its group, a k-tile of row block b. */
DEV void latent_sums_put(const struct warp_context *c, const struct cuda_task *task, uint32_t b,
                         uint32_t h, uint32_t i, uint32_t k_tile, uint32_t first,
                         const float sum[4]) {
    float *to = latent_sums(task, i / VALUES_TILES * VALUES_TILES + k_tile, first);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t r = c->lane / 4 + 8 * half;
        if ((b * CUDA_PAGE_ROWS + r) / QN_HEAD_VALUE_DIM != h) continue;
        *(float2 *)(to + r * PACK_ROWS + c->lane % 4 * 2) =
            make_float2(sum[2 * half], sum[2 * half + 1]);
    }
}

/* A page: a k-tile of row block b for all tokens of the tile. It is number i of its group. */
DEV void latent_values_page(const struct warp_context *c, const struct cuda_task *task,
                            const struct latent_tile *t, uint32_t b, uint32_t i,
                            const uint4 *page) {
    const struct latent_range heads = latent_heads_of<QN_HEAD_VALUE_DIM>(b);
    const uint32_t k_tile = cuda_page_tile(VALUES_TILES, i % VALUES_TILES);
#pragma unroll 1
    for (uint32_t h = heads.first; h <= heads.last; h++)
#pragma unroll 1
        for (uint32_t first = 0; first < t->n; first += PACK_ROWS) {
            struct latent_columns x;
            float sum[4];
            const uint64_t head = latent_row(c, t, first) * QN_N_HEADS + h;
            latent_columns_load<QN_VALUE_DIM, VALUES_MAY_PAIR>(c, task, head * QN_VALUE_DIM, k_tile,
                                                               &x);
            latent_multiply<QN_VALUE_DIM>(c, page, &x, sum);
            latent_sums_put(c, task, b, h, i, k_tile, first, sum);
        }
}

/* The sum of row r of row block number `block` of a group, of a token of the tile. */
DEV float latent_sum(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t token) {
    float sum = 0;
#pragma unroll
    for (uint32_t k = 0; k < VALUES_TILES; k++) {
        const float *of = latent_sums(task, block * VALUES_TILES + k, token);
        const float v = of[r * PACK_ROWS + token % PACK_ROWS];
        sum = k == 0 ? v : sum + v;
    }
    return sum;
}

/* Stores columns u, an even one, and u + 1 of a row of the result. */
DEV void latent_put(const struct cuda_task *task, uint32_t row, uint32_t u, float v0, float v1) {
    const uint64_t at = (uint64_t)row * task->units + u;
    if (task->flags & CUDA_OUT_PACKED) {
        packed_store2(task, row, u, v0, u + 1 < task->unit1 ? v1 : 0);
    } else if (task->flags & CUDA_OUT_PAIRED) {
        operand_store_pair(task, at, v0, v1);
    } else {
        operand_store(task, at, v0);
        if (u + 1 < task->unit1) operand_store(task, at + 1, v1);
    }
}

/* Stores the results of row blocks [b, end) for the tile's tokens, two rows of a token at a
 * time. */
DEV void latent_values_store(const struct warp_context *c, const struct cuda_task *task,
                             const struct latent_tile *t, uint32_t b, uint32_t end) {
    const uint32_t pairs = CUDA_PAGE_ROWS / 2;
    for (uint32_t i = c->thread; i < (end - b) * pairs * t->n; i += COMPUTE_THREADS) {
        const uint32_t block = i / pairs / t->n, token = i / pairs % t->n, r = i % pairs * 2;
        const uint32_t u = (b + block) * CUDA_PAGE_ROWS + r;
        if (u < task->unit1)
            latent_put(task, t->row + token, u, latent_sum(task, block, r, token),
                       latent_sum(task, block, r + 1, token));
    }
}

DEV bool run_latent_values(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
#pragma unroll 1
    for (uint32_t row = task->row0; row < task->row1; row += task->tile) {
        const struct latent_tile t = latent_tile_at(task, row);
#pragma unroll 1
        for (uint32_t b = task->block0, end; b < task->block1; b = end) {
            end = walk_group_end(b, task->block1, task->group, 0);
            const uint32_t n_pages = (end - b) * VALUES_TILES;
#pragma unroll 1
            for (uint32_t i = (c->warp - c->turn) % WARPS; i < n_pages; i += WARPS) {
                const uint4 *page = page_acquire(c);
                latent_values_page(c, task, &t, b + i / VALUES_TILES, i, page);
                page_release(c);
            }
            c->turn = turn_after(c->turn, n_pages);
            sync_compute();
            latent_values_store(c, task, &t, b, end);
            sync_compute(); /* the sums are read */
        }
    }
    return true;
}

/* ---- LATENT_MERGE ---- */

enum {
    MERGED_ROW = QN_VALUE_DIM * 2 + 64, /* bytes from a token to the next, in other banks */
    MERGED_HEADS = cuda_merged_heads(QN_HEAD_VALUE_DIM),
    MERGED_BYTES = cuda_merged_bytes(QN_HEAD_VALUE_DIM, QN_VALUE_DIM),
    MERGED_AT_ONCE = 8, /* pieces that a thread loads at once */
};
static_assert(MERGED_BYTES <= SCRATCH_BYTES, "the host refuses others");

/* Where columns from d on of a token of the tile lie, of the group's head number `head`. */
DEV char *merged_at(uint32_t head, uint32_t token, uint32_t d) {
    return SCRATCH + SCRATCH_BYTES - MERGED_BYTES + (head * PACK_ROWS + token) * MERGED_ROW + d * 2;
}

/* A row's pieces of one head. */
struct merged_parts {
    struct operand at;
    uint32_t n;
};
DEV struct merged_parts merged_parts_of(const struct cuda_task *task, uint32_t row, uint32_t head) {
    struct merged_parts p;
    uint32_t first;
    p.n = row_pieces(SHARED, QN_SLIDING_WINDOW, row, &first);
    const uint64_t at = ((uint64_t)row * QN_N_HEADS + head) * task->n_pieces + first;
    p.at = operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED), at * STATE_SIZE);
    return p;
}

/* State of two columns of a row's head. */
struct merged_two {
    float max, sum;
    float2 out;
};
DEV void merged_add(struct merged_two *m, bool counts, float2 of, float2 v) {
    const struct merge f = merge_factors(m->max, m->max == -INFINITY ? 0 : 1, of.x);
    const float x = merge_value(&f, m->out.x, v.x), y = merge_value(&f, m->out.y, v.y),
                sum = merge_value(&f, m->sum, of.y);
    m->out.x = counts ? x : m->out.x;
    m->out.y = counts ? y : m->out.y;
    m->sum = counts ? sum : m->sum;
    m->max = counts ? f.max : m->max;
}

/* A row's piece number i. Past the end the last piece is repeated, which changes nothing: there is
 * no branch while pieces are under way. */
DEV struct operand merged_piece(const struct merged_parts *p, uint32_t i) {
    return operand_from(p->at, min(i, p->n - 1) * STATE_SIZE);
}

/* Adds columns d and d + 1 of a head for TOKENS rows, PIECES pieces at a time. */
template <uint32_t TOKENS, uint32_t PIECES>
DEV void merged_columns(const struct merged_parts (&parts)[TOKENS], uint32_t most, uint32_t d,
                        struct merged_two (&m)[TOKENS]) {
#pragma unroll 1
    for (uint32_t first = 0; first < most; first += PIECES) {
        uint4 state[TOKENS][PIECES], value[TOKENS][PIECES];
#pragma unroll
        for (uint32_t k = 0; k < TOKENS; k++)
#pragma unroll
            for (uint32_t j = 0; j < PIECES; j++) {
                const struct operand from = merged_piece(&parts[k], first + j);
                state[k][j] = operand_ask2(from, 0);
                value[k][j] = operand_ask2(from, (PART_HEAD + d) / 2);
            }
#pragma unroll
        for (uint32_t k = 0; k < TOKENS; k++)
#pragma unroll
            for (uint32_t j = 0; j < PIECES; j++) {
                const struct operand from = merged_piece(&parts[k], first + j);
                const float2 of = operand_await2(from, 0, state[k][j]); /* maximum and sum */
                const float2 v = operand_await2(from, (PART_HEAD + d) / 2, value[k][j]);
                merged_add(&m[k], first + j < parts[k].n, of, v);
            }
    }
}

/* Merges heads [first, last] of the tile's rows into scratch. */
template <uint32_t TOKENS, uint32_t PIECES>
DEV void merged_make_of(const struct warp_context *c, const struct cuda_task *task,
                        const struct latent_tile *t, uint32_t first, uint32_t last, uint32_t most) {
    const uint32_t pairs = QN_VALUE_DIM / 2, n = (last - first + 1) * pairs;
#pragma unroll 1
    for (uint32_t i = c->thread; i < n; i += COMPUTE_THREADS)
#pragma unroll 1
        for (uint32_t token = 0; token < t->n; token += TOKENS) {
            const uint32_t d = i % pairs * 2, head = i / pairs;
            struct merged_parts parts[TOKENS];
            struct merged_two m[TOKENS];
#pragma unroll
            for (uint32_t k = 0; k < TOKENS; k++) {
                parts[k] = merged_parts_of(task, t->row + min(token + k, t->n - 1), first + head);
                m[k] = {-INFINITY, 0, {0, 0}};
            }
            merged_columns<TOKENS, PIECES>(parts, most, d, m);
#pragma unroll
            for (uint32_t k = 0; k < TOKENS; k++) {
                const float by = reciprocal_fast(m[k].sum);
                if (token + k < t->n)
                    *(uint32_t *)merged_at(head, token + k, d) =
                        pack_pair<WEIGHT_E>(m[k].out.x * by, m[k].out.y * by);
            }
        }
}

/* ---- long contexts ---- */

enum {
    MERGED_AHEAD = 32, /* pieces that a thread loads ahead */
    MERGED_LONG_FITS = MERGED_BYTES + MERGE_MAX + WARPS * 4 <= SCRATCH_BYTES,
};

/* Adds columns d and d + 1 of a head, of n <= 256 pieces whose columns begin at `from` and whose
 * factors are in scratch. v: the first MERGED_AHEAD pieces. Past the end the last piece is
 * repeated, with a factor of 0. Each piece is requested when the one MERGED_AHEAD before it is
 * added. */
DEV void merged_add_long(const float *from, uint32_t n, float2 (&v)[MERGED_AHEAD],
                         struct merged_two *m) {
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += MERGED_AHEAD)
#pragma unroll
        for (uint32_t g = 0; g < MERGED_AHEAD; g += MERGED_AT_ONCE) {
            float2 now[MERGED_AT_ONCE];
#pragma unroll
            for (uint32_t u = 0; u < MERGED_AT_ONCE; u++) now[u] = v[g + u];
            if (first + MERGED_AHEAD < n)
#pragma unroll
                for (uint32_t u = 0; u < MERGED_AT_ONCE; u++)
                    v[g + u] =
                        load2_l2(from + min(first + MERGED_AHEAD + g + u, n - 1) * STATE_SIZE);
#pragma unroll
            for (uint32_t u = 0; u < MERGED_AT_ONCE; u++) {
                const uint32_t i = first + g + u;
                const float2 factors = *(const float2 *)(SCRATCH + 8 * i);
                const struct merge f = {0, factors.x, factors.y};
                m->out.x = merge_value(&f, m->out.x, now[u].x);
                m->out.y = merge_value(&f, m->out.y, now[u].y);
                m->sum = merge_value(&f, m->sum, *(const float *)(SCRATCH + MERGE_SUMS + 4 * i));
            }
        }
}

/* Merges columns d and d + 1 of a row's head, by all warps. The factors of 256 pieces are computed
 * at once (attention_merge.cuh). */
DEV struct merged_two merged_long(const struct warp_context *c, const struct merged_parts *parts,
                                  uint32_t d) {
    struct merged_two m = {-INFINITY, 0, {0, 0}};
    const float *part = (const float *)parts->at.at;
#pragma unroll 1
    for (uint32_t left = parts->n; left > 0; part += COMPUTE_THREADS * STATE_SIZE) {
        const uint32_t n = min(left, (uint32_t)COMPUTE_THREADS);
        const float *from = part + PART_HEAD + min(d, QN_VALUE_DIM - 2u);
        float2 v[MERGED_AHEAD];
        const float2 mine =
            c->thread < n ? load2_l2(part + c->thread * STATE_SIZE) : make_float2(0, 0);
#pragma unroll
        for (uint32_t u = 0; u < MERGED_AHEAD; u++)
            v[u] = load2_l2(from + min(u, n - 1) * STATE_SIZE);
        sync_compute(); /* no warp reads the old factors any more */
        m.max = merge_scales(c, mine, n, m.max);
        merged_add_long(from, n, v, &m);
        left -= n;
    }
    return m;
}

DEV void merged_make_long(const struct warp_context *c, const struct cuda_task *task,
                          const struct latent_tile *t, uint32_t first, uint32_t last) {
#pragma unroll 1
    for (uint32_t head = first; head <= last; head++)
#pragma unroll 1
        for (uint32_t token = 0; token < t->n; token++)
#pragma unroll 1
            for (uint32_t d0 = 0; d0 < QN_VALUE_DIM; d0 += 2 * COMPUTE_THREADS) {
                const uint32_t d = d0 + 2 * c->thread;
                const struct merged_parts parts = merged_parts_of(task, t->row + token, head);
                const struct merged_two m = merged_long(c, &parts, d);
                const float by = reciprocal_fast(m.sum);
                if (d < QN_VALUE_DIM)
                    *(uint32_t *)merged_at(head - first, token, d) =
                        pack_pair<WEIGHT_E>(m.out.x * by, m.out.y * by);
            }
}

/* The most pieces that a row of the tile has. */
DEV uint32_t merged_most(const struct warp_context *c, const struct latent_tile *t) {
    uint32_t first;
    if (t->n == 0) return 0;
    return __reduce_max_sync(
        ~0u, row_pieces(SHARED, QN_SLIDING_WINDOW, t->row + min(c->lane, t->n - 1), &first));
}

/* Short contexts: several rows at once. Pieces that carry flags are polled, however many there
 * are. */
DEV void merged_make(const struct warp_context *c, const struct cuda_task *task,
                     const struct latent_tile *t, uint32_t first, uint32_t last, uint32_t most) {
    const bool row = t->n == 1;
    if (MERGED_LONG_FITS && most > MERGE_SOME && (task->flags & CUDA_IN_FLAGGED) == 0)
        merged_make_long(c, task, t, first, last);
    else if (most == 1 && row)
        merged_make_of<1, 1>(c, task, t, first, last, most);
    else if (most == 1)
        merged_make_of<MERGED_AT_ONCE, 1>(c, task, t, first, last, most);
    else if (most == 2 && row)
        merged_make_of<1, 2>(c, task, t, first, last, most);
    else if (most == 2)
        merged_make_of<MERGED_AT_ONCE / 2, 2>(c, task, t, first, last, most);
    else if (most <= MERGED_AT_ONCE / 2)
        merged_make_of<1, MERGED_AT_ONCE / 2>(c, task, t, first, last, most);
    else
        merged_make_of<1, MERGED_AT_ONCE>(c, task, t, first, last, most);
}

/* Multiplies a page, as latent_values_page, by merged heads. head0: the group's first head. */
DEV void latent_merge_page(const struct warp_context *c, const struct cuda_task *task,
                           const struct latent_tile *t, uint32_t b, uint32_t i, uint32_t head0,
                           const uint4 *page) {
    const struct latent_range heads = latent_heads_of<QN_HEAD_VALUE_DIM>(b);
    const uint32_t k_tile = cuda_page_tile(VALUES_TILES, i % VALUES_TILES);
#pragma unroll 1
    for (uint32_t h = heads.first; h <= heads.last && t->n > 0; h++) {
        struct latent_columns x;
        float sum[4];
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
            const uint32_t d = k_tile * CUDA_PAGE_K + 32 * pair + c->lane % 4 * 8;
            const uint32_t token = min(c->lane / 4, t->n - 1);
            x.b[pair] = make_uint4(0, 0, 0, 0);
            if (QN_VALUE_DIM % CUDA_PAGE_K == 0 || d < QN_VALUE_DIM)
                x.b[pair] = *(const uint4 *)merged_at(h - head0, token, d);
        }
        latent_multiply<QN_VALUE_DIM>(c, page, &x, sum);
        latent_sums_put(c, task, b, h, i, k_tile, 0, sum);
    }
}

/* The end of the task's group of row blocks that begins with b: their heads are merged together. */
DEV uint32_t latent_merge_end(const struct cuda_task *task, uint32_t b) {
    const uint32_t most = latent_heads_of<QN_HEAD_VALUE_DIM>(b).first + MERGED_HEADS;
    uint32_t end = b + 1;
    while (end < min(task->block1, b + task->group) &&
           latent_heads_of<QN_HEAD_VALUE_DIM>(end).last < most)
        end++;
    return end;
}

DEV bool run_latent_merge(struct warp_context *c, const struct cuda_task *task) {
    uint32_t *hint = task_hint(c, task);
    struct latent_tile t = latent_tile_at(task, task->row0);
    uint32_t most = merged_most(c, &t);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
#pragma unroll 1
    for (uint32_t row = task->row0; row < task->row1; row += task->tile) {
        if (row != task->row0) {
            t = latent_tile_at(task, row);
            most = merged_most(c, &t);
        }
#pragma unroll 1
        for (uint32_t b = task->block0, end; b < task->block1; b = end) {
            end = latent_merge_end(task, b);
            const uint32_t n_pages = (end - b) * VALUES_TILES;
            const uint32_t head0 = latent_heads_of<QN_HEAD_VALUE_DIM>(b).first;
            merged_make(c, task, &t, head0, latent_heads_of<QN_HEAD_VALUE_DIM>(end - 1).last, most);
            sync_compute();
#pragma unroll 1
            for (uint32_t i = (c->warp - c->turn) % WARPS; i < n_pages; i += WARPS) {
                const uint4 *page = page_acquire(c);
                latent_merge_page(c, task, &t, b + i / VALUES_TILES, i, head0, page);
                page_release(c);
            }
            c->turn = turn_after(c->turn, n_pages);
            sync_compute();
            if (hint != nullptr && end == task->block1 && row + task->tile >= task->row1)
                add_relaxed_gpu(hint, 1);
            latent_values_store(c, task, &t, b, end);
            sync_compute(); /* the sums are read */
        }
    }
    return true;
}

#endif

#endif
