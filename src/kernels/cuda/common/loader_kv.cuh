/* loader_kv.cuh - the loader's part of ATTENTION_SPLIT and _STEP: what earlier iterations left in
 * the KV cache comes as pages, like weights (kv_walk.cuh says which pages).
 *
 * Positions before the iteration's own are final when it is published, so their pages need no event
 * either. But which ones they are is not known before: a guess ends at the first such task.
 *
 * Bytes: 2 * SHARE_BYTES a page. A piece of one KV head is 64 KB at head_dim 128, which is what a
 * multiprocessor of an H100 gets of the memory in 2.8 us.
 */
#ifndef QN_CUDA_COMMON_LOADER_KV_CUH
#define QN_CUDA_COMMON_LOADER_KV_CUH

#include "kernels/cuda/common/kv_walk.cuh"
#include "kernels/cuda/common/loader.cuh"

#define BLOCK_POSITIONS (QN_KV_BLOCK < SHARE_POSITIONS ? SHARE_POSITIONS : QN_KV_BLOCK)
#define PIECE_BLOCKS    (ATTENTION_PIECE / BLOCK_POSITIONS)
#define BLOCK_SHARES    (BLOCK_POSITIONS / SHARE_POSITIONS)

/* Until it is known which iteration comes; false: something else happened. */
DEV bool loader_kv_decided(struct loader *l) {
    while (l->guessing && !l->quit && !l->wrong) {
        pause_ns(20);
        loader_look(l);
    }
    return !l->quit && !l->wrong;
}

/* Once per iteration. Control acquired what was published, which comes after all stores of the
 * iterations before; what it saw was acquired from it with the barrier `entered`, or with its
 * message. Copies read through a proxy of their own: they are asked for after the fence. */
DEV void loader_kv_enter(struct loader *l) {
    struct block_shared *s = SHARED;
    if (QN_JIT_WEIGHTS) l->published = loader_read(&s->published);
    if (l->kv_iteration == l->published) return;
    page_copy_fence();
    l->kv_iteration = l->published;
    l->kv_pieces = 0;
    for (uint32_t row = 0, first; row < s->batch.rows.n_rows; row++)
        l->kv_pieces += row_pieces(s, row, &first);
}

/* The numbers of the blocks that hold a piece, as far as it reaches. */
DEV void loader_kv_blocks(const struct kv_walk *w, uint32_t blocks[PIECE_BLOCKS]) {
    const struct rt_batch *b = &SHARED->batch;
    const int32_t *table = b->block_table + (uint64_t)w->slot * b->max_blocks;
#pragma unroll
    for (uint32_t i = 0; i < PIECE_BLOCKS; i++) {
        uint32_t first = w->piece * ATTENTION_PIECE + i * BLOCK_POSITIONS;
        blocks[i] = first < w->hi ? (uint32_t)load_index_l2(table + first / QN_KV_BLOCK) : 0;
    }
}

/* The shares that lie in block i of the item's piece; k: of the item's head in that block. */
DEV bool loader_kv_shares(struct loader *l, const struct kv_walk *w, uint32_t i,
                          const uint16_t *k) {
    const uint32_t first = w->piece * ATTENTION_PIECE + i * BLOCK_POSITIONS;
#pragma unroll 1
    for (uint32_t share = 0; share < BLOCK_SHARES;) {
        const uint32_t now = min(BLOCK_SHARES - share, l->burst);
        if (!loader_wait(l, now)) return false;
        const uint32_t at = (share + loader_page_of(l->lane)) * SHARE_POSITIONS;
        const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
        const uint32_t n = kv_walk_paged(w, first + at);
        const bool mine = loader_page_of(l->lane) < now;
        if (mine && n > 0)
            page_copy_two_evict_first(RING + slot * CUDA_PAGE_BYTES, SHARE_BYTES,
                                      k + at * QN_HEAD_DIM, k + at * QN_HEAD_DIM + KV_VALUE_STRIDE,
                                      n * QN_HEAD_DIM * 2, &SHARED->page_full[slot], l->lane);
        if (mine && n == 0) page_copy_nothing(&SHARED->page_full[slot]);
        loader_advance(l, now);
        share += now;
    }
    return true;
}

DEV bool loader_kv_item(struct loader *l, const struct kv_walk *w, const uint16_t *kv,
                        const uint32_t blocks[PIECE_BLOCKS]) {
    kv += (uint64_t)(w->head / SUBS) * KV_HEAD_STRIDE;
#pragma unroll 1
    for (uint32_t i = 0; i < PIECE_BLOCKS; i++) {
        uint32_t block = blocks[0]; /* they are in registers */
#pragma unroll
        for (uint32_t n = 1; n < PIECE_BLOCKS; n++) block = i == n ? blocks[n] : block;
        if (!loader_kv_shares(l, w, i, kv + (uint64_t)block * (2 * KV_VALUE_STRIDE))) return false;
    }
    return true;
}

/* All pages of a task of ATTENTION_SPLIT or _STEP. */
DEV bool loader_kv(struct loader *l, const struct cuda_task *task) {
    if (!loader_kv_decided(l)) return false;
    loader_kv_enter(l);
    const uint16_t *kv = (const uint16_t *)task->more;
    struct kv_walk w = kv_walk_begin(SHARED, task, l->kv_pieces);
    uint32_t blocks[PIECE_BLOCKS], next_blocks[PIECE_BLOCKS] = {};
    if (w.left > 0) loader_kv_blocks(&w, blocks);
#pragma unroll 1
    while (w.left > 0) { /* an item's numbers are on their way while the one before is asked for */
        struct kv_walk next = w;
        kv_walk_next(SHARED, &next);
        if (next.left > 0) loader_kv_blocks(&next, next_blocks);
        if (!loader_kv_item(l, &w, kv, blocks)) return false;
        w = next;
#pragma unroll
        for (uint32_t i = 0; i < PIECE_BLOCKS; i++) blocks[i] = next_blocks[i];
    }
    return true;
}

#endif
