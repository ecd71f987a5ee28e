/* matmul_stream_32.cuh - matrices times packed activations of 32 token rows: decode of a batch that is
 * too large for matmul_stream.cuh. Pages stream all the same, and nothing is leased.
 *
 * A warp cannot hold a k-tile's activations of so many rows. So they pass through its registers in
 * *chunks* of four steps of 16 columns, and all row blocks of a group want a chunk at once: a page
 * has some steps of each of them, in one part or in two or four (walk.cuh).
 *
 *   before the event   the weights of the norm that comes next, into scratch
 *   per chunk          the warp's 4 KB of activations from L2, asked for a chunk ahead ─ its steps
 *                      of all row blocks of the group
 *   per row block      partial sums ─ barrier ─ results ─ barrier, since scratch has room for one
 *
 * What is packed here is behind counters: nothing is asked for twice.
 *
 * Bytes per page of 8 KB: 16 KB / row blocks of the group, from L2.
 *
 * Scratch:   0   partial sums [32 tokens] x FEW_TOKEN_FLOATS F32
 *            +   of LINEAR: residual stream [row block][token][16], the norm's weights [row
 *                block][16]; of others: 1 / rms [token]
 */
#ifndef QN_CUDA_COMMON_MATMUL_STREAM_32_CUH
#define QN_CUDA_COMMON_MATMUL_STREAM_32_CUH

#include "kernels/cuda/common/matmul_stream.cuh"

enum {
    WIDE_COLUMNS = CUDA_WIDE, /* of eight tokens */
    WIDE_TOKENS = WIDE_COLUMNS * PACK_ROWS,
    CHUNK_PAIRS = CUDA_PACK_COLUMNS / 32,     /* of steps, in each piece of packed activations */
    CHUNKS = CUDA_PAGE_K / CUDA_PACK_COLUMNS, /* of a k-tile */
};
static_assert(WIDE_TOKENS <= SQUARES_ROWS, "a warp adds up its tokens' squares");

/* ---- scratch ---- */

DEV float *wide_sums(uint32_t token) {
    return few_sums<WIDE_COLUMNS>(0, token);
}
DEV float *wide_residual(uint32_t in_group, uint32_t token) {
    return few_sums<WIDE_COLUMNS>(1, 0) + (in_group * WIDE_TOKENS + token) * CUDA_PAGE_ROWS;
}
DEV float *wide_norm(uint32_t in_group) {
    return wide_residual(cuda_wide_group(OP_LINEAR), 0) + in_group * CUDA_PAGE_ROWS;
}
DEV float *wide_inv_rms(uint32_t token) {
    return wide_residual(0, 0) + token;
}
static_assert((WIDE_TOKENS * FEW_TOKEN_FLOATS +
               (WIDE_TOKENS + 1) * CUDA_PAGE_ROWS * cuda_wide_group(OP_LINEAR)) *
                      4 <=
                  SCRATCH_BYTES,
              "scratch");

/* ---- activations ---- */

/* A chunk's, a lane's share: of each eight token rows the B registers of each two steps. */
struct chunk {
    uint4 of[WIDE_COLUMNS][CHUNK_PAIRS];
};

/* Asks for chunk number i of a k-tile. */
DEV struct chunk chunk_ask(const struct warp_context *c, const struct few *f, uint32_t k_tile,
                           uint32_t i) {
    const char *from =
        f->rows + (uint64_t)(k_tile * CHUNKS + i) * (WIDE_COLUMNS * PACKED_PIECE) + c->lane * 4;
    struct chunk x;
#pragma unroll
    for (int n = 0; n < WIDE_COLUMNS; n++)
#pragma unroll
        for (int p = 0; p < CHUNK_PAIRS; p++) {
            const uint32_t *at = (const uint32_t *)(from + n * PACKED_PIECE) + p * 128;
            x.of[n][p] = make_uint4(load_word_l2(at), load_word_l2(at + 32), load_word_l2(at + 64),
                                    load_word_l2(at + 96));
        }
    return x;
}

/* ---- pages ---- */

template <int GROUP> struct wide_partials { float of[GROUP][WIDE_COLUMNS][4]; };

/* The pages of a group of n row blocks, a chunk at a time. */
struct wide_pages {
    const char *steps; /* the next chunk's, of the first row block */
    uint32_t each;     /* bytes of a row block in a page */
    uint32_t n;
    bool there; /* else they are void */
};

/* Chunk number i of a k-tile against them. */
template <int GROUP>
DEV void chunk_multiply(struct warp_context *c, struct wide_pages *w, uint32_t i,
                        const struct chunk *x, struct wide_partials<GROUP> *sums) {
    constexpr uint32_t BYTES = 2 * CHUNK_PAIRS * 512;
    if (i * BYTES % w->each == 0) w->steps = (const char *)page_acquire(c);
#pragma unroll
    for (int b = 0; b < GROUP; b++) {
        if (b >= w->n || !w->there) break;
#pragma unroll
        for (int p = 0; p < CHUNK_PAIRS; p++)
#pragma unroll
            for (int n = 0; n < WIDE_COLUMNS; n++)
                mma_pair(sums->of[b][n], (const uint4 *)(w->steps + b * w->each), p, c->lane,
                         x->of[n][p]);
    }
    w->steps += BYTES;
    if ((i + 1) * BYTES % w->each == 0) page_release(c);
}

/* All pages of a group of n row blocks. x: the first chunk. */
template <uint32_t K, int GROUP>
DEV void wide_multiply(struct warp_context *c, const struct few *f, uint32_t n, struct chunk x,
                       struct wide_partials<GROUP> *sums) {
    constexpr uint32_t k_tiles = cuda_k_tiles(K);
    struct wide_pages w = {nullptr, CUDA_PAGE_BYTES / cuda_wide_parts(f->task->group), n, true};
    uint32_t k_tile = few_k_tile<K>(f, 0);
#pragma unroll 1
    for (uint32_t k0 = 0; k0 < k_tiles; k0 += PARTIALS) {
        const uint32_t after = min(k_tile + 1, k_tiles - 1); /* beyond the sum's: anything */
        if (k_tiles % PARTIALS != 0) w.there = k0 + f->turn < k_tiles;
#pragma unroll 1
        for (uint32_t i = 0; i < CHUNKS; i += 2) {
            const struct chunk y = chunk_ask(c, f, k_tile, i + 1);
            chunk_multiply<GROUP>(c, &w, i, &x, sums);
            x = chunk_ask(c, f, i + 2 < CHUNKS ? k_tile : after, (i + 2) % CHUNKS);
            chunk_multiply<GROUP>(c, &w, i + 1, &y, sums);
        }
        k_tile = after;
    }
}

/* The partial sums of a row block, number `which` of the group, to scratch. */
template <int GROUP>
DEV void wide_park(const struct warp_context *c, const struct few *f, uint32_t which,
                   const struct wide_partials<GROUP> *sums) {
    float *to = wide_sums(2 * (c->lane % 4)) + f->turn * CUDA_PAGE_ROWS + c->lane / 4;
#pragma unroll
    for (int b = 0; b < GROUP; b++) {
        if (which != b) continue;
#pragma unroll
        for (int n = 0; n < WIDE_COLUMNS; n++) {
            const float *v = sums->of[b][n];
            float *at = to + n * (PACK_ROWS * FEW_TOKEN_FLOATS);
            at[0] = v[0];
            at[8] = v[2];
            at[FEW_TOKEN_FLOATS] = v[1];
            at[FEW_TOKEN_FLOATS + 8] = v[3];
        }
    }
}

/* ---- what results need besides ---- */

/* 1 / rms of the task's tokens, of which a warp has one of each eight. */
template <uint32_t KIND> DEV void wide_norms(const struct warp_context *c, const struct few *f) {
    const float *blocks[WIDE_COLUMNS];
    float sum[WIDE_COLUMNS];
#pragma unroll
    for (int i = 0; i < WIDE_COLUMNS; i++) {
        const uint32_t row = f->row0 + min(c->warp + WARPS * i, f->n - 1);
        const uint32_t token = KIND == OP_LM_HEAD ? row_of_logits(SHARED, row) : row;
        blocks[i] = (const float *)f->task->more2 + (uint64_t)token * f->task->n_pieces;
    }
    squares_of_blocks<WIDE_COLUMNS>(c, blocks, f->task->n_pieces,
                                    squares_ask<WIDE_COLUMNS>(blocks, f->task->n_pieces, c->lane),
                                    sum);
#pragma unroll
    for (int i = 0; i < WIDE_COLUMNS; i++)
        if (c->lane == 0) *wide_inv_rms(c->warp + WARPS * i) = inverse_rms_of(sum[i]);
}

/* Asks for the norm's weights of row blocks [first, end). */
DEV void wide_norm_ask(const struct warp_context *c, const struct few *f, uint32_t first,
                       uint32_t end) {
    constexpr uint32_t FOURS = CUDA_PAGE_ROWS / 4; /* of a row block */
    const uint32_t at = first * CUDA_PAGE_ROWS + 4 * c->thread;
    if (c->thread < (end - first) * FOURS && at < QN_HIDDEN)
        copy16_async(wide_norm(0) + 4 * c->thread, (const float *)f->task->norm + at);
}

/* ... and for the residual stream. */
DEV void wide_residual_ask(const struct warp_context *c, const struct few *f, uint32_t first,
                           uint32_t end) {
    constexpr uint32_t FOURS = CUDA_PAGE_ROWS / 4, EACH = FOURS * WIDE_TOKENS;
#pragma unroll 1
    for (uint32_t i = c->thread; i < (end - first) * EACH; i += COMPUTE_THREADS) {
        const uint32_t four = i % FOURS, token = i % EACH / FOURS, in_group = i / EACH;
        const uint32_t at = (first + in_group) * CUDA_PAGE_ROWS + 4 * four;
        if (token < f->n && at < QN_HIDDEN)
            copy16_async(wide_residual(in_group, token) + 4 * four,
                         (const float *)f->task->more + (uint64_t)(f->row0 + token) * QN_HIDDEN +
                             at);
    }
}

/* ---- a task ---- */

/* The results of row blocks [first, end): a thread has rows r and r + 8, and a token, of each. */
template <uint32_t KIND, uint32_t K, int GROUP>
DEV void wide_results(const struct warp_context *c, const struct few *f, uint32_t first,
                      uint32_t end, const struct wide_partials<GROUP> *sums) {
    struct few_item m;
    m.r = c->lane % 8;
    m.token = c->warp / 2 * PACK_ROWS + c->lane / 8 * 2 + c->warp % 2;
    m.there = m.token < f->n;
#pragma unroll 1
    for (m.block = first; m.block < end; m.block++) {
        const uint32_t in_group = m.block - first;
        wide_park<GROUP>(c, f, in_group, sums);
        sync_compute();
        const float *from = wide_sums(m.token);
        const float inv = KIND == OP_LINEAR ? 1 : *wide_inv_rms(m.token);
        const float v0 = few_sum<KIND, K>(from, m.r), v1 = few_sum<KIND, K>(from, m.r + 8);
        if (KIND == OP_GATED_MLP)
            few_gated(f, &m, v0 * inv, v1 * inv);
        else if (KIND == OP_LINEAR)
            few_stream(f, &m, wide_residual(in_group, m.token) + m.r, wide_norm(in_group) + m.r, v0,
                       v1);
        else
            few_others<KIND>(f, &m, v0 * inv, v1 * inv);
        sync_compute(); /* the sums are read */
    }
}

/* False: the launch ends. */
template <uint32_t KIND, uint32_t K>
DEV bool wide_run(struct warp_context *c, const struct cuda_task *task) {
    constexpr int GROUP = cuda_wide_group(KIND);
    const struct few f = few_begin(c, task);
    uint32_t b = task->block0, end = few_end(task, b);
    if (KIND == OP_LINEAR) wide_norm_ask(c, &f, b, end);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (f.n == 0) {
        copy_wait<0>();
        tile_skip(c, task);
        return true;
    }
    if (KIND != OP_LINEAR) wide_norms<KIND>(c, &f);
#pragma unroll 1
    for (;;) {
        struct wide_partials<GROUP> sums = {};
        const struct chunk x = chunk_ask(c, &f, few_k_tile<K>(&f, 0), 0);
        if (KIND == OP_LINEAR) wide_residual_ask(c, &f, b, end);
        wide_multiply<K, GROUP>(c, &f, end - b, x, &sums);
        if (KIND == OP_LINEAR) {
            copy_commit();
            copy_wait<0>();
        }
        wide_results<KIND, K, GROUP>(c, &f, b, end, &sums);
        if (end >= task->block1) break;
        b = end;
        end = few_end(task, b);
        if (KIND == OP_LINEAR) wide_norm_ask(c, &f, b, end);
    }
    if (KIND != OP_LM_HEAD) return true;
    lm_parts(c->args, task, task->unit0, task->unit1, f.row0, f.row0 + f.n);
    return true;
}

#endif
