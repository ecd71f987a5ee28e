/* matmul_tile.cuh - many rows: PACK, and matrix products of packed activations (QKV_LINEAR, LINEAR,
 * GATED_MLP, LM_HEAD). Operators of up to 16 rows, whose weights stream: matmul_stream.cuh.
 *
 * An operator of many rows is bound by the bytes from L2 into the multiprocessors, so activations
 * become 16-bit floats once, in the order of the tensor cores' registers (cuda_abi.h), and a block
 * works on tiles of up to 128 weight rows x 128 tokens, or 256 x 64.
 *
 * Per tile and 16 columns of k: (rows + tokens) * 32 bytes, 2 * 16 * rows * tokens operations.
 *
 * Such a task uses all of the ring and the scratch at once. It takes them as a *lease*: the loader
 * sends RING_PAGES void pages. When the compute warps have all of these, no page is under way and
 * none can come. The compute warps release the pages when the task is done. The memory holds:
 *
 *   0          sums of the tile, parked for its results: F32 (tile_parked); those of tiles of
 *              128 tokens are elsewhere (tile_ring.cuh)
 *   + parked   weights and activations of some steps of 16 columns, as they pass
 *
 * Sums are those of graph/partials.h: a warp has a tile of WB row blocks x WO columns of eight
 * tokens and makes the partial sums one after the other. It holds the tile twice in registers: the
 * current partial sum, and the total of those before. LINEAR adds by halves and so has one sum
 * more: the first half waits for the second in L2, because shared memory has no room for it
 * (tile_push).
 *
 * This file has PACK, the lease and the sums. tile_results.cuh turns the sums into results.
 * matmul_tile_hopper.cuh multiplies tiles on Hopper, matmul_tile_mma.cuh elsewhere.
 */
#ifndef QN_CUDA_MATMUL_MATMUL_TILE_CUH
#define QN_CUDA_MATMUL_MATMUL_TILE_CUH

#include "kernels/cuda/other/embed.cuh"
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

static_assert(PACK_K == CUDA_PAGE_K, "packed columns are whole k-tiles");

/* ---- PACK ---- */

/* Eight activations from k on, as the B registers of two steps; zeros beyond k_end. */
DEV uint4 pack_eight(const float *row, uint32_t k, uint32_t k_end) {
    if (k >= k_end) return make_uint4(0, 0, 0, 0);
    const float4 even = load4_l2(row + k), odd = load4_l2(row + k + 4);
    return make_uint4(pack_pair<WEIGHT_E>(even.x, even.y), pack_pair<WEIGHT_E>(even.z, even.w),
                      pack_pair<WEIGHT_E>(odd.x, odd.y), pack_pair<WEIGHT_E>(odd.z, odd.w));
}

/* The first of the four words of a packed row, 32 words apart, that hold columns 8 j to 8 j + 7 of
 * the 32 columns from `column` on. */
DEV uint32_t *pack_words(uint64_t base, uint32_t eights, uint32_t row, uint32_t column,
                         uint32_t j) {
    return (uint32_t *)packed_piece(base, eights, row, column) + column / 32 % 2 * 128 +
           row % PACK_ROWS * 4 + j;
}

/* PACK and PACK_LOGITS: four lanes have 32 columns of a row. */
CODE(void, run_pack, const struct cuda_task *task) {
    const uint32_t first = task->row0, end = min(task->row1, linear_rows(task));
    const uint32_t n_rows = end > first ? end - first : 0;
    const uint32_t n = (task->unit1 - task->unit0) * (PACK_K / 32) * n_rows * 4;
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < n; i += COMPUTE_THREADS) {
        const uint32_t j = i % 4, row = first + i / 4 % n_rows;
        const uint32_t column = task->unit0 * PACK_K + i / 4 / n_rows * 32;
        const uint32_t from = task->kind == OP_PACK_LOGITS ? row_of_logits(SHARED, row) : row;
        uint32_t *to = pack_words(task->out, task->eights, row, column, j);
        uint4 v;
        if (task->flags & CUDA_IN_PACKED) {
            const uint32_t *at = pack_words(task->in, task->n_pieces, from, column, j);
            v = make_uint4(load_word_l2(at), load_word_l2(at + 32), load_word_l2(at + 64),
                           load_word_l2(at + 96));
        } else {
            v = pack_eight((const float *)task->in + (uint64_t)from * task->k, column + 8 * j,
                           task->k);
        }
        to[0] = v.x;
        to[32] = v.y;
        to[64] = v.z;
        to[96] = v.w;
    }
}

/* ---- the lease ---- */

DEV void lease_wait(const struct warp_context *c) {
    uint32_t count = c->page;
    for (uint32_t i = 0; i < RING_DEPTH; i++, count = page_next(count))
        barrier_wait_acquire_cta(&SHARED->page_full[page_slot(c->warp, count)], page_parity(count));
}

DEV void lease_take(struct warp_context *c) {
    lease_wait(c);
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
}

/* lease_end waits until all warps are done with the lease's memory; lease_release then releases its
 * pages. */
DEV void lease_end(void) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
}
DEV void lease_release(struct warp_context *c) {
    for (uint32_t i = 0; i < RING_DEPTH; i++) page_release(c);
}
DEV void lease_give(struct warp_context *c) {
    lease_end();
    lease_release(c);
}

/* ---- sums and results ---- */

/* A tile: row blocks [block, end) of the task, tokens from `row` on and below row_end, and how
 * warps share it (struct tile_share). */
struct tile_at {
    uint32_t block, end, row, row_end;
    uint32_t wb, wo, down;
    uint32_t parked; /* offset of its parked sums in bytes; 0 before Hopper */
};
DEV uint32_t tile_pitch_of(const struct tile_at *t) {
    return tile_pitch(t->wb * t->down);
}
/* The number of its tokens. */
DEV uint32_t tile_tokens(const struct tile_at *t) {
    return min(t->row_end - t->row, WARPS / t->down * t->wo * 8);
}

/* Where the sum of a token and a column of the results (a row of weights) is parked. The constants
 * below are the floats from there to the next column within four, to the eighth column after it,
 * from an even token to the next one, and to the eighth token after it among a warp's. */
#if HAS_WGMMA
DEV float *tile_parked(const struct tile_at *t, uint32_t token, uint32_t column) {
    return (float *)(shared_memory + t->parked) + token * tile_pitch_of(t) + column;
}
enum { TO_COLUMN = 1, TO_EIGHTH_COLUMN = 8 };
DEV uint32_t to_token(const struct tile_at *t) {
    return tile_pitch_of(t);
}
DEV uint32_t to_eighth_token(const struct tile_at *t) {
    return 8 * tile_pitch_of(t);
}
#else
/* Sums are parked as each thread holds them, four floats at a time: code that stores them by token
 * makes the compiler spill all over a kernel for sm_80. */
DEV float *tile_parked(const struct tile_at *t, uint32_t token, uint32_t column) {
    const uint32_t block = column / CUDA_PAGE_ROWS, r = column % CUDA_PAGE_ROWS, eight = token / 8;
    const uint32_t warp = block / t->wb + eight / t->wo * t->down, lane = r % 8 * 4 + token % 8 / 2;
    const uint32_t value = block % t->wb * t->wo + eight % t->wo;
    return (float *)shared_memory + (value * COMPUTE_THREADS + warp * 32 + lane) * 4 + r / 8 * 2 +
           token % 2;
}
enum { TO_COLUMN = 16, TO_EIGHTH_COLUMN = 2 };
DEV uint32_t to_token(const struct tile_at *) {
    return 1;
}
DEV uint32_t to_eighth_token(const struct tile_at *) {
    return 4 * COMPUTE_THREADS;
}
#endif

/* Parked sums of columns [column, column + 4); column is a multiple of 4. */
DEV float4 tile_four(const struct tile_at *t, uint32_t token, uint32_t column) {
    const float *p = tile_parked(t, token, column);
    if (TO_COLUMN == 1) return *(const float4 *)p;
    return make_float4(p[0], p[TO_COLUMN], p[2 * TO_COLUMN], p[3 * TO_COLUMN]);
}

/* Parks other values in place of these. */
DEV void tile_put_four(const struct tile_at *t, uint32_t token, uint32_t column, float4 v) {
    float *p = tile_parked(t, token, column);
    if (TO_COLUMN == 1) {
        *(float4 *)p = v;
        return;
    }
    p[0] = v.x;
    p[TO_COLUMN] = v.y;
    p[2 * TO_COLUMN] = v.z;
    p[3 * TO_COLUMN] = v.w;
}

/* Sets all of a warp's sums. */
template <int WB, int WO> DEV void tile_fill(float tile[WB][WO][4], float v) {
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) tile[n][i][e] = v;
}

/* to = a + b */
template <int WB, int WO>
DEV void tile_add(float to[WB][WO][4], const float a[WB][WO][4], const float b[WB][WO][4]) {
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) to[n][i][e] = a[n][i][e] + b[n][i][e];
}

/* Where a thread's sums of the first half wait: its float4s are COMPUTE_THREADS apart. */
DEV float4 *tile_waiting(void) {
    const struct cuda_args *a = &SHARED->args;
    return (float4 *)((char *)a->waiting_sums +
                      blockIdx.x * cuda_waiting_stride(a->logit_rows, a->rt.n_workers, QN_VOCAB)) +
           thread_here();
}

/* The same thread writes and reads them, so they need no ordering. */
template <int WB, int WO> DEV void tile_push(const float v[WB][WO][4]) {
    static_assert(WB * WO * 16 * COMPUTE_THREADS <= CUDA_WAITING_BYTES, "a tile");
    float4 *to = tile_waiting();
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++)
            store4_own((float *)(to + (n * WO + i) * COMPUTE_THREADS),
                       make_float4(v[n][i][0], v[n][i][1], v[n][i][2], v[n][i][3]));
}
template <int WB, int WO> DEV void tile_pop(float v[WB][WO][4]) {
    const float4 *from = tile_waiting();
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++) {
            const float4 x = load4_own((const float *)(from + (n * WO + i) * COMPUTE_THREADS));
            v[n][i][0] = x.x;
            v[n][i][1] = x.y;
            v[n][i][2] = x.z;
            v[n][i][3] = x.w;
        }
}

/* Adds a complete partial sum to the total, which begins as TILE_NOTHING. n: partial sums in the
 * total, this one included; half: the n at which the total is the first half, and is put aside.
 * Products of the tile stand still meanwhile, so there is little more here than the additions: a
 * choice between adding and copying made a prompt of 2,048 tokens of Qwen3-8B take 5 % longer
 * (H100). */
#define TILE_NOTHING (-0.0f) /* plus any number it is that number */
template <int WB, int WO>
DEV void tile_add_partial(uint32_t n, uint32_t half, float total[WB][WO][4],
                          const float partial[WB][WO][4]) {
    tile_add<WB, WO>(total, total, partial);
    if (n != half) return;
    tile_push<WB, WO>(total);
    tile_fill<WB, WO>(total, TILE_NOTHING);
}
/* Adds the first half, if there is one, when the second is complete. free: registers to load the
 * first half into. */
template <int WB, int WO>
DEV void tile_add_half(uint32_t half, float total[WB][WO][4], float free[WB][WO][4]) {
    if (half == 0) return;
    tile_pop<WB, WO>(free);
    tile_add<WB, WO>(total, free, total);
}

/* A warp parks its sums. With `add` it adds them to parked ones. DOWN and `parked` are members of
 * struct tile_at. */
template <int WB, int WO, int DOWN>
DEV void tile_park(const struct warp_context *c, const float sums[WB][WO][4], uint32_t parked = 0,
                   bool add = false) {
    constexpr uint32_t pitch = tile_pitch(WB * DOWN);
    const uint32_t token = c->warp / DOWN * (8 * WO) + c->lane % 4 * 2;
    const uint32_t column = c->warp % DOWN * (WB * CUDA_PAGE_ROWS) + c->lane / 4;
    float *to = (float *)(shared_memory + parked) + token * pitch + column;
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++) {
            const float *v = sums[n][i];
            if (!HAS_WGMMA) {
                ((float4 *)shared_memory)[(n * WO + i) * COMPUTE_THREADS + c->thread] =
                    make_float4(v[0], v[1], v[2], v[3]);
                continue;
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *at = to + (8 * i + e % 2) * pitch + n * CUDA_PAGE_ROWS + e / 2 * 8;
                *at = add ? *at + v[e] : v[e];
            }
        }
}

/* Whether results are multiplied by 1 / rms of their tokens. */
DEV bool tile_is_normed(const struct cuda_task *task) {
    return task->kind != OP_LINEAR && task->kind != OP_LINEAR_SPLITK &&
           !(GROUPED_TILES && task->kind == OP_GROUPED_DOWN);
}

/* 1 / rms of the tile's tokens from `row` on, for tile_norm_of. To be called between barriers. A
 * token's squares are requested after the event and used some work later. A block reads each
 * token's squares once: when every result read them itself, the blocks' reads of those few lines
 * took 11 us of a tile's 73 (64 tokens, H200). */
DEV float tile_norms_ask(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                         uint32_t end) {
    const uint32_t token = row + c->thread;
    const bool wanted = tile_is_normed(task) && task->n_pieces == 1;
    return load_l2_if(wanted && c->thread < PACK_TILE && token < end,
                      (const float *)task->more2 + op_token(task, min(token, end - 1)));
}

DEV void tile_norms_put(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                        uint32_t end, float squares) {
    const uint32_t token = row + c->thread;
    if (tile_is_normed(task) && task->n_pieces == 1 && c->thread < PACK_TILE && token < end)
        TILE_NORMS[token % PACK_TILE] = inverse_rms_of(squares);
}

/* The same where squares are not added up yet: in a graph of up to 16 rows, if a task has only some
 * of the rows. */
DEV void tile_norms_pieces(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                           uint32_t end) {
    const float *squares = (const float *)task->more2;
    if (!tile_is_normed(task) || task->n_pieces == 1) return;
    for (uint32_t at = row + c->warp; at < end; at += WARPS) {
        const float *const blocks[1] = {squares + (uint64_t)op_token(task, at) * task->n_pieces};
        float sum[1];
        squares_of_blocks<1>(c, blocks, task->n_pieces,
                             squares_ask<1>(blocks, task->n_pieces, c->lane), sum);
        if (c->lane == 0) TILE_NORMS[at % PACK_TILE] = inverse_rms_of(sum[0]);
    }
}

DEV void tile_norms(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                    uint32_t end) {
    tile_norms_put(c, task, row, end, tile_norms_ask(c, task, row, end));
    tile_norms_pieces(c, task, row, end);
}

/* 1 / rms of a token. Garbage for LINEAR, which has no norm, and for rows past the end, whose
 * results are never stored. */
DEV float tile_norm_of(uint32_t token) {
    return TILE_NORMS[token % PACK_TILE];
}

#include "kernels/cuda/matmul/tile_results.cuh"

#include "kernels/cuda/matmul/matmul_tile_hopper.cuh"
#include "kernels/cuda/matmul/matmul_tile_mma.cuh"

#endif
