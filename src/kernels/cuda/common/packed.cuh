/* packed.cuh - many rows: PACK, and matrix products of what it leaves (QKV_LINEAR, LINEAR,
 * GATED_MLP, LM_HEAD). Up to 16 rows: packed_few.cuh.
 *
 * An operator of many rows is bound by what passes from L2 into the multiprocessors, so activations
 * become 16-bit floats once, in the order of the tensor cores' registers (cuda_abi.h), and a block
 * works on tiles of up to 128 weight rows x 128 tokens, or 256 x 64.
 *
 * Per tile and 16 columns of k: (rows + tokens) * 32 bytes, 2 * 16 * rows * tokens operations.
 *
 * Such a task uses all of the ring and the scratch at once. It takes them as a *lease*: the loader
 * sends RING_PAGES void pages, so when the compute warps have them all, no copy is under way and
 * none can begin; they give the pages back when the task is done. What stands in that memory:
 *
 *   0          sums of the tile, parked for its results: F32 [value of a thread][256 threads]
 *   + parked   weights and activations of some steps of 16 columns, as they pass
 *
 * Sums are those of linear.cuh: a warp has a tile of WB row blocks x WO columns of eight tokens and
 * goes through the partial sums one after the other. It has the tile twice in registers: the
 * partial sum at hand, and those before added up.
 *
 * Here: PACK, the lease, sums and results. How tiles are multiplied: packed_hopper.cuh, elsewhere
 * packed_mma.cuh.
 */
#ifndef QN_CUDA_COMMON_PACKED_CUH
#define QN_CUDA_COMMON_PACKED_CUH

#include "kernels/cuda/common/embed.cuh"
#include "kernels/cuda/common/ops_linear.cuh"
#include "kernels/cuda/common/packed_ring.cuh"

static_assert(PACK_K == CUDA_PAGE_K, "packed columns are whole k-tiles");

/* ---- PACK ---- */

/* 8 activations at k as two steps' B registers; zeros beyond k_end. */
DEV uint4 pack_eight(const float *row, uint32_t k, uint32_t k_end) {
    if (k >= k_end) return make_uint4(0, 0, 0, 0);
    const float4 even = load4_l2(row + k), odd = load4_l2(row + k + 4);
    return make_uint4(pack_pair<WEIGHT_E>(even.x, even.y), pack_pair<WEIGHT_E>(even.z, even.w),
                      pack_pair<WEIGHT_E>(odd.x, odd.y), pack_pair<WEIGHT_E>(odd.z, odd.w));
}

/* The words of a packed row that hold columns 8 j and on of 32, the first of which is `column`: 32
 * words apart. */
DEV uint32_t *pack_words(uint64_t base, uint32_t eights, uint32_t row, uint32_t column,
                         uint32_t j) {
    return (uint32_t *)packed_piece(base, eights, row, column) + column / 32 % 2 * 128 +
           row % PACK_ROWS * 4 + j;
}

/* PACK, PACK_LOGITS: four lanes have 32 columns of a row. */
__device__ __noinline__ void run_pack(const struct cuda_task *task) {
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

DEV void lease_take(struct warp_context *c) {
    uint32_t count = c->page;
    for (uint32_t i = 0; i < RING_DEPTH; i++, count = page_next(count))
        barrier_wait_acquire_cta(&SHARED->page_full[page_slot(c->warp, count)], page_parity(count));
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
}

DEV void lease_give(struct warp_context *c) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
    for (uint32_t i = 0; i < RING_DEPTH; i++) page_release(c);
}

/* ---- sums and results ---- */

/* The place of a thread's four sums of row block n, column of tokens i; 256 apart. */
template <int WO> DEV float4 *tile_parked(const struct warp_context *c, int n, int i) {
    return (float4 *)shared_memory + (n * WO + i) * COMPUTE_THREADS + c->thread;
}

/* All of a warp's tile. -0 is what changes no sum. */
template <int WB, int WO> DEV void tile_fill(float tile[WB][WO][4], float v) {
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) tile[n][i][e] = v;
}

/* A partial sum is complete. */
template <int WB, int WO>
DEV void tile_add(float total[WB][WO][4], const float partial[WB][WO][4]) {
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) total[n][i][e] += partial[n][i][e];
}

/* All of them are. */
template <int WB, int WO>
DEV void tile_park(const struct warp_context *c, const float total[WB][WO][4]) {
#pragma unroll
    for (int n = 0; n < WB; n++)
#pragma unroll
        for (int i = 0; i < WO; i++) {
            const float *v = total[n][i];
            *tile_parked<WO>(c, n, i) = make_float4(v[0], v[1], v[2], v[3]);
        }
}

/* 1 / rms of the tile's tokens from `row` on, for tile_norm_of: after the event, and between
 * barriers. One read each per block: when every result asked for its token's own, the blocks'
 * reads of those few lines took 11 us of a tile's 73 (64 tokens, H200). */
DEV void tile_norms(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                    uint32_t end) {
    const uint32_t token = row + c->thread;
    if (task->kind == OP_LINEAR || task->kind == OP_LINEAR_PARTS) return;
    if (c->thread >= PACK_TILE || token >= end) return;
    TILE_NORMS[token % PACK_TILE] =
        inverse_rms_of(load_l2((const float *)task->more2 + op_token(task, token)));
}

/* Of LINEAR, its parts and rows that do not exist anything. */
DEV float tile_norm_of(uint32_t token) {
    return TILE_NORMS[token % PACK_TILE];
}

/* A row of a row block: what does not depend on the token. */
struct tile_row {
    const float *residual; /* of token 0, or NULL; of the row 8 further: 8 elements further */
    float2 bias;
    bool own0, own1;
};

/* Parked sums of up to four columns of tokens become values: all that these need is fetched first.
 * Rows that do not exist: anything will do. */
DEV void columns_value(const struct cuda_task *task, const struct tile_row *t, uint32_t row,
                       uint32_t end, float4 *sums, uint32_t n) {
    const int AT_ONCE = 4;
    float2 residual[AT_ONCE][2] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n) break;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t at = min(row + 8 * i + e, end - 1);
            const float *from = t->residual + (uint64_t)at * task->units;
            if (t->residual != nullptr && t->own0) residual[i][e].x = load_l2(from);
            if (t->residual != nullptr && t->own1) residual[i][e].y = load_l2(from + 8);
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n) break;
        const float4 sum = sums[i * COMPUTE_THREADS];
        const float2 v0 =
            op_value(task, sum.x, sum.z, tile_norm_of(row + 8 * i), t->bias, residual[i][0]);
        const float2 v1 =
            op_value(task, sum.y, sum.w, tile_norm_of(row + 8 * i + 1), t->bias, residual[i][1]);
        sums[i * COMPUTE_THREADS] = make_float4(v0.x, v1.x, v0.y, v1.y);
    }
}

/* Bytes from an item's places to those of the next token, and of the eighth after it. */
struct tile_steps {
    uint32_t out, normed, squares, out8, normed8;
};
DEV struct tile_steps tile_steps_of(const struct cuda_task *task) {
    const uint32_t plain = 4 * task->units;
    const uint32_t packed = 16, packed8 = PACKED_PIECE;
    const bool is_packed = (task->flags & CUDA_OUT_PACKED) != 0;
    const bool out_packed = is_packed && task->kind == OP_GATED_MLP;
    return {out_packed ? packed : plain, is_packed ? packed : plain, 4u * task->n_pieces,
            out_packed ? packed8 : 8 * plain, is_packed ? packed8 : 8 * plain};
}

DEV void item_advance(struct linear_item *m, uint32_t out, uint32_t normed, uint32_t squares) {
    m->out = (float *)((char *)m->out + out);
    m->normed = (float *)((char *)m->normed + normed);
    if (m->squares != nullptr) m->squares = (float *)((char *)m->squares + squares);
}

#if !QN_MLP_BIAS
/* Results of a row block of GATED_MLP, packed: eight columns of h, a lane's is number lane / 4. It
 * exchanges one of its two tokens' elements with its neighbour in h, so that each stores a pair.
 * Made and stored one by one, as below, a tile's results took 12 us. */
DEV void mlp_row_finish(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                        uint32_t row, uint32_t end, const float4 *sums, uint32_t wo) {
    const struct linear_item none = {};
    const uint32_t r = c->lane / 4, odd = r % 2;
    uint32_t *to = (uint32_t *)packed_at(task, task->out, row + odd, block * 8 + r - odd);
#pragma unroll 4
    for (uint32_t i = 0; i < wo; i++, row += 8, to += PACKED_PIECE / 4) {
        const float4 v = sums[i * COMPUTE_THREADS];
        const float inv0 = tile_norm_of(row), inv1 = tile_norm_of(row + 1);
        const float h0 = mlp_value(&none, v.x * inv0, v.z * inv0);
        const float h1 = mlp_value(&none, v.y * inv1, v.w * inv1);
        const float other = __shfl_xor_sync(~0u, odd ? h0 : h1, 4);
        const uint32_t pair = pack_pair<WEIGHT_E>(odd ? other : h0, odd ? h1 : other);
        if (row + odd < end) store_plain((float *)to, __uint_as_float(pair));
    }
}
#endif

/* ---- results that are rows of floats ----
 *
 * By the lanes that have the sums a token's row would be read and written 32 bytes at a time: a
 * tile of 128 x 128 of O took 12 us (H200). So lanes change places: a warp takes two row blocks of
 * eight tokens at a time, 128 bytes of each row, from where all of the block's warps have parked
 * them. */

/* A tile: its row blocks [block, end) of the task's, its tokens from row on below row_end, and how
 * warps share it (struct tile_share). */
struct tile_at {
    uint32_t block, end, row, row_end;
    uint32_t wb, wo, down;
};

/* Number i of the tile's items: the lane's four columns of two tokens. */
struct fours {
    uint32_t column, row; /* of the first; of the first token */
    bool own[2];          /* whether there are such columns of the tokens */
    const float2 *parked; /* of the first column; the next: 8 further */
};
DEV struct fours fours_at(const struct warp_context *c, const struct tile_at *t, uint32_t columns,
                          uint32_t i) {
    const uint32_t pairs = (t->end - t->block + 1) / 2, eight = i / pairs, four = c->lane % 8;
    const uint32_t block = i % pairs * 2 + four / 4, two = c->lane / 8;
    const uint32_t warp = block / t->wb + eight / t->wo * t->down;
    const uint32_t place =
        (block % t->wb * t->wo + eight % t->wo) * COMPUTE_THREADS + warp * 32 + four % 2 * 16 + two;
    struct fours f;
    f.column = (t->block + block) * CUDA_PAGE_ROWS + four % 4 * 4;
    f.row = t->row + eight * 8 + two * 2;
    for (int e = 0; e < 2; e++)
        f.own[e] = t->block + block < t->end && f.column < columns && f.row + e < t->row_end;
    f.parked = (const float2 *)shared_memory + place * 2 + four % 4 / 2;
    return f;
}

/* Their sums, by token. */
DEV void fours_load(const struct fours *f, float4 sum[2]) {
    const float2 a = f->parked[0], b = f->parked[8], c = f->parked[16], d = f->parked[24];
    sum[0] = make_float4(a.x, b.x, c.x, d.x);
    sum[1] = make_float4(a.y, b.y, c.y, d.y);
}

DEV uint32_t fours_count(const struct tile_at *t, uint32_t tokens) {
    const uint32_t rows = min(t->row_end - t->row, tokens);
    return (t->end - t->block + 1) / 2 * ((rows + 7) / 8);
}

/* Of QKV_LINEAR. */
DEV void fours_qkv(const struct warp_context *c, const struct cuda_task *task,
                   const struct tile_at *t, uint32_t tokens) {
    const uint32_t columns = task->units, n = fours_count(t, tokens);
#pragma unroll 4
    for (uint32_t i = c->warp; i < n; i += WARPS) {
        const struct fours f = fours_at(c, t, columns, i);
        float4 sum[2], bias = make_float4(0, 0, 0, 0);
        fours_load(&f, sum);
        if (QN_QKV_BIAS && task->bias != 0 && f.own[0])
            bias = __ldg((const float4 *)((const float *)task->bias + f.column));
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float inv = tile_norm_of(f.row + e);
            float4 v = make_float4(sum[e].x * inv, sum[e].y * inv, sum[e].z * inv, sum[e].w * inv);
            if (QN_QKV_BIAS && task->bias != 0) v = add4(v, bias);
            const uint64_t at = (uint64_t)(f.row + e) * columns + f.column;
            if (f.own[e]) *(float4 *)((float *)task->out + at) = v;
        }
    }
}

/* Of the residual stream with the packed norm that comes next: the bits that op_store gives one by
 * one, below. */
DEV void fours_stream(const struct warp_context *c, const struct cuda_task *task,
                      const struct tile_at *t, uint32_t tokens) {
    const int AT_ONCE = 4;
    const uint32_t units = task->units, n = fours_count(t, tokens);
#pragma unroll 1
    for (uint32_t first = c->warp; first < n; first += AT_ONCE * WARPS) {
        float4 residual[AT_ONCE][2], norm[AT_ONCE], bias[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const struct fours f = fours_at(c, t, units, min(first + i * WARPS, n - 1));
            const uint32_t column = min(f.column, units - 4);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint64_t at = (uint64_t)min(f.row + e, t->row_end - 1) * units + column;
                residual[i][e] = make_float4(0, 0, 0, 0);
                if (task->more != 0) residual[i][e] = load4_l2((const float *)task->more + at);
            }
            norm[i] = __ldg((const float4 *)((const float *)task->norm + column));
            bias[i] = make_float4(0, 0, 0, 0);
            if (LINEAR_BIASES && task->bias != 0)
                bias[i] = __ldg((const float4 *)((const float *)task->bias + column));
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i * WARPS >= n) break;
            const struct fours f = fours_at(c, t, units, first + i * WARPS);
            float4 v[2];
            fours_load(&f, v);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t row = f.row + e;
                if (LINEAR_BIASES && task->bias != 0) v[e] = add4(v[e], bias[i]);
                if (task->more != 0) v[e] = add4(residual[i][e], v[e]);
                if (!f.own[e]) v[e] = make_float4(0, 0, 0, 0);
                const float squares = squares_of_block(v[e]);
                if (!f.own[e]) continue;
                *(float4 *)((float *)task->out + (uint64_t)row * units + f.column) = v[e];
                normed_store4(task, row, f.column, v[e], norm[i]);
                if (f.column % SQUARES_COLUMNS == 0)
                    store_plain((float *)task->more2 + (uint64_t)row * task->n_pieces +
                                    f.column / SQUARES_COLUMNS,
                                squares);
            }
        }
    }
}

/* ---- other results ---- */

template <bool KEPT> DEV void store_result(float *p, float v) {
    if (KEPT)
        store_kept(p, v);
    else
        store_plain(p, v);
}

/* Results of a row block of LM_HEAD, of QKV_LINEAR without biases, and of LINEAR_PARTS, which are
 * sums and nothing else. For narrow tiles this is faster than by fours. KEPT: they are to stay in
 * L2, as parts are: 8 MB twice a layer of Qwen3-8B, which LINEAR_SUM reads at once and nobody after
 * it, and which weights drove out to memory all the same. */
template <bool KEPT>
DEV void plain_row_finish(const struct warp_context *c, const struct cuda_task *task,
                          uint32_t block, uint32_t row, uint32_t end, const float4 *sums,
                          uint32_t wo) {
    const uint32_t column = block * CUDA_PAGE_ROWS + c->lane / 4;
    const uint32_t columns = task->kind == OP_LM_HEAD ? QN_VOCAB : task->units;
    const bool own0 = column < columns, own1 = column + 8 < columns;
    float *to = (float *)task->out + (uint64_t)row * columns + column;
#pragma unroll 4
    for (uint32_t i = 0; i < wo; i++, row += 8, to += 8 * columns) {
        const float4 v = sums[i * COMPUTE_THREADS];
        const float inv0 = KEPT ? 1 : tile_norm_of(row), inv1 = KEPT ? 1 : tile_norm_of(row + 1);
        const bool there0 = row < end, there1 = row + 1 < end;
        if (there0 && own0) store_result<KEPT>(to, v.x * inv0);
        if (there0 && own1) store_result<KEPT>(to + 8, v.z * inv0);
        if (there1 && own0) store_result<KEPT>(to + columns, v.y * inv1);
        if (there1 && own1) store_result<KEPT>(to + columns + 8, v.w * inv1);
    }
}

/* Results of a row block: tokens row + 8 i + {0, 1} for i < wo. */
DEV void tile_row_finish(const struct warp_context *c, const struct cuda_task *task, uint32_t block,
                         uint32_t row, uint32_t end, float4 *sums, uint32_t wo) {
    const uint32_t r = c->lane / 4;
#if !QN_MLP_BIAS
    if (task->kind == OP_GATED_MLP && (task->flags & CUDA_OUT_PACKED) != 0) {
        mlp_row_finish(c, task, block, row, end, sums, wo);
        return;
    }
#endif
    if (task->kind == OP_LINEAR_PARTS) {
        plain_row_finish<true>(c, task, block, row, end, sums, wo);
        return;
    }
    if (task->kind == OP_LM_HEAD || task->kind == OP_QKV_LINEAR) {
        plain_row_finish<false>(c, task, block, row, end, sums, wo);
        return;
    }
    const struct linear_item first = op_item(task, block, r, 0);
    const struct tile_row t = {first.addend, first.bias, first.own0, first.own1};
#pragma unroll 1
    for (uint32_t i = 0; i < wo; i += 4)
        columns_value(task, &t, row + 8 * i, end, sums + i * COMPUTE_THREADS, min(wo - i, 4u));
    const struct tile_steps step = tile_steps_of(task);
    struct linear_item even = op_item(task, block, r, row);
    item_norm(task, &even, block, r);
    item_next(task, &even, block, r, row);
#pragma unroll 1
    for (uint32_t i = 0; i < wo; i++, row += 8) { /* whole warps, whatever rows there are */
        const float4 v = sums[i * COMPUTE_THREADS];
        struct linear_item odd = even;
        item_advance(&odd, step.out, step.normed, step.squares);
        even.own0 = t.own0 && row < end;
        even.own1 = t.own1 && row < end;
        odd.own0 = t.own0 && row + 1 < end;
        odd.own1 = t.own1 && row + 1 < end;
        op_store<4>(task, &even, r, make_float2(v.x, v.z));
        op_store<4>(task, &odd, r, make_float2(v.y, v.w));
        item_advance(&even, step.out8, step.normed8, 8 * step.squares);
    }
}

/* The tile's results, between barriers (tile_norms). One function for all tiles: inlined into each
 * it took a fifth of the time that compiling the kernel takes. */
__device__ __noinline__ void tile_finish(const struct cuda_task *task, struct tile_at t) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const uint32_t tokens = WARPS / t.down * t.wo * 8;
    if (task->kind == OP_QKV_LINEAR && (task->tile == PACK_TILE || task->bias != 0)) {
        fours_qkv(&c, task, &t, tokens);
        return;
    }
    if (task->kind == OP_LINEAR && task->norm != 0 && (task->flags & CUDA_OUT_PACKED) != 0) {
        fours_stream(&c, task, &t, tokens);
        return;
    }
    float4 *sums = (float4 *)shared_memory + c.thread;
    const uint32_t first = t.block + c.warp % t.down * t.wb;
    const uint32_t row = t.row + c.warp / t.down * t.wo * 8 + 2 * (c.lane % 4);
#pragma unroll 1
    for (uint32_t n = 0; n < t.wb && first + n < t.end; n++)
        tile_row_finish(&c, task, first + n, row, t.row_end, sums + n * t.wo * COMPUTE_THREADS,
                        t.wo);
}

#include "kernels/cuda/common/packed_hopper.cuh"
#include "kernels/cuda/common/packed_mma.cuh"

#endif
