/* embed.cuh - EMBED: x[row] = table[token], and its copy for the first norm. The table is a weight
 * image (it may be the LM head's too), so a row is picked out of its row block's pages. */
#ifndef QN_CUDA_OTHER_EMBED_CUH
#define QN_CUDA_OTHER_EMBED_CUH

#include "kernels/cuda/data/kv.cuh"
#include "kernels/cuda/data/squares.cuh"

/* The address of columns [k, k + 4) of a matrix row, k a multiple of 4: this word and the second
 * one after it. cuda_abi.h has the order. */
DEV const uint32_t *image_at(const char *image, uint32_t row, uint32_t k, uint32_t k_tiles) {
    uint32_t step = k % CUDA_PAGE_K / 32 * 2 + k % 8 / 4;
    uint32_t lane = row % 8 * 4 + k % 32 / 8;
    const uint64_t page = (uint64_t)(row / 16) * k_tiles + cuda_tile_page(k_tiles, k / CUDA_PAGE_K);
    return (const uint32_t *)(image + page * CUDA_PAGE_BYTES + (step * 32 + lane) * 16) +
           row % 16 / 8;
}

DEV float4 image_load4(const char *image, uint32_t row, uint32_t k, uint32_t k_tiles) {
    const uint32_t *word = image_at(image, row, k, k_tiles);
    uint32_t lo = __ldg(word), hi = __ldg(word + 2);
    return make_float4(unpack_low<WEIGHT_E>(lo), unpack_high<WEIGHT_E>(lo),
                       unpack_low<WEIGHT_E>(hi), unpack_high<WEIGHT_E>(hi));
}

/* Stores columns [k, k + 4) of a row times the next norm's weights. */
DEV void normed_store4(const struct cuda_task *task, uint32_t row, uint32_t k, float4 v,
                       float4 norm) {
    const float4 n = mul4(v, norm);
    if (task->flags & CUDA_OUT_PACKED)
        packed_store4(task, task->out2, row, k, n);
    else
        *(float4 *)((float *)task->out2 + (uint64_t)row * QN_HIDDEN + k) = n;
}

/* The same, and the squares of the columns' block. All lanes take part; `there`: the row has these
 * columns. */
DEV void embed_normed(const struct cuda_task *task, uint32_t row, uint32_t k, float4 v,
                      bool there) {
    const float squares = squares_of_block(v);
    if (!there) return;
    normed_store4(task, row, k, v, __ldg((const float4 *)((const float *)task->norm + k)));
    if (k % SQUARES_COLUMNS == 0)
        store_plain((float *)task->more2 + (uint64_t)row * task->n_pieces + k / SQUARES_COLUMNS,
                    squares);
}

/* A token's row is stored by pairs of columns, one pair a thread in every step of the block: a
 * warp's stores with flags then fill whole lines. */
enum {
    EMBED_COLUMNS = 2 * COMPUTE_THREADS, /* columns of a step */
    EMBED_STEPS = (QN_HIDDEN + EMBED_COLUMNS - 1) / EMBED_COLUMNS,
};
static_assert(EMBED_COLUMNS == 2 * CUDA_PAGE_K, "half of the threads have a k-tile each");

/* The address of the thread's columns in the row's first page. */
DEV const uint32_t *embed_at(const struct warp_context *c, const struct cuda_task *task,
                             uint32_t token) {
    const uint32_t k = 2 * c->thread % CUDA_PAGE_K;
    return image_at((const char *)task->w, token, k & ~3u, cuda_k_tiles(QN_HIDDEN)) + k % 4;
}

/* Words from embed_at to the thread's columns of a step: a constant in each half of the threads. */
DEV uint32_t embed_words(const struct warp_context *c, uint32_t step) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const uint32_t lower = cuda_tile_page(k_tiles, 2 * step);
    const uint32_t upper = cuda_tile_page(k_tiles, min(2 * step + 1, k_tiles - 1));
    return (c->thread < COMPUTE_THREADS / 2 ? lower : upper) * (CUDA_PAGE_BYTES / 4);
}

DEV bool embed_has(const struct warp_context *c, uint32_t step) {
    return 2 * c->thread + step * EMBED_COLUMNS < QN_HIDDEN;
}

/* Stores a row as floats with flags. Neither the table's row nor this code is in a cache when EMBED
 * runs. So the whole row is requested at once, and the code is short and straight. */
DEV void embed_flagged(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                       uint32_t token) {
    const uint32_t *at = embed_at(c, task, token);
    float *out = (float *)task->out + 2 * ((uint64_t)row * QN_HIDDEN + 2 * c->thread);
    const uint32_t flag = SHARED->flag;
    uint32_t v[EMBED_STEPS];
#pragma unroll
    for (uint32_t i = 0; i < EMBED_STEPS; i++) /* beyond the row the word is not used */
        v[i] = __ldg(embed_has(c, i) ? at + embed_words(c, i) : (const uint32_t *)task->w);
#pragma unroll
    for (uint32_t i = 0; i < EMBED_STEPS; i++)
        if (embed_has(c, i))
            store_flagged2(out + 2 * i * EMBED_COLUMNS, unpack_low<WEIGHT_E>(v[i]),
                           unpack_high<WEIGHT_E>(v[i]), flag);
}

/* Prefetches a token's row, whose address alone costs a trip through page tables. SAMPLE calls
 * it. */
DEV void embed_prefetch(const struct warp_context *c, const struct cuda_task *task,
                        uint32_t token) {
    const uint32_t *at = embed_at(c, task, token);
#pragma unroll
    for (uint32_t i = 0; i < EMBED_STEPS; i++)
        if (embed_has(c, i)) rt_prefetch(at + embed_words(c, i));
}

/* Stores a row by any transport, and its copy for the first norm. */
DEV void embed_any(const struct warp_context *c, const struct cuda_task *task, uint32_t row,
                   uint32_t token) {
    const char *table = (const char *)task->w; /* [vocab, H] */
    const uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
#pragma unroll 1
    for (uint32_t k = 4 * c->thread; k - 4 * c->lane < QN_HIDDEN; k += 4 * COMPUTE_THREADS) {
        const bool there = k < QN_HIDDEN;
        float4 v = make_float4(0, 0, 0, 0);
        if (there) v = image_load4(table, token, k, k_tiles);
        if (there) operand_store4(task, (uint64_t)row * QN_HIDDEN + k, v); /* x[T, H] */
        if (task->norm != 0) embed_normed(task, row, k, v, there);
    }
}

DEV void run_embed(struct warp_context *c, const struct cuda_task *task) {
    const struct rt_batch *batch = &SHARED->batch;
    const uint32_t end = min(task->row1, batch->rows.n_rows);
    const bool flagged = (task->flags & CUDA_OUT_FLAGGED) != 0 && task->norm == 0;
    for (uint32_t row = task->row0; row < end; row++) {
        const uint32_t token = (uint32_t)load_index_l2(batch->rows.token + row);
        if (flagged)
            embed_flagged(c, task, row, token);
        else
            embed_any(c, task, row, token);
    }
}

#endif
