/* loader_kv.cuh - the loader's part of ATTENTION_SPLIT and _STEP: what earlier iterations left in
 * the KV cache comes as pages, like weights (kv_walk.cuh says which pages).
 *
 * Positions before the iteration's own are final when it is published, so their pages need no event
 * either. But which ones they are is not known before: a guess ends at the first such task.
 *
 * Bytes: 2 * SHARE_BYTES a page, whether of k and v or of one of them. A piece of one KV head is 64
 * KB at head_dim 128, which is what a multiprocessor of an H100 gets of the memory in 2.8 us.
 */
#ifndef QN_CUDA_COMMON_LOADER_KV_CUH
#define QN_CUDA_COMMON_LOADER_KV_CUH

#include "kernels/cuda/common/kv_walk.cuh"
#include "kernels/cuda/common/loader.cuh"

#define BLOCK_POSITIONS (QN_KV_BLOCK < SHARE_POSITIONS ? SHARE_POSITIONS : QN_KV_BLOCK)
#define PIECE_BLOCKS    (ATTENTION_PIECE / BLOCK_POSITIONS)
#define LANE_BLOCKS     ((WARPS * PIECE_BLOCKS + 31) / 32)

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

/* The numbers of the blocks that hold the pieces of a step, an item or a run, one after the other:
 * lane l has number l + 32 i of them, as far as the row reaches. */
struct loader_blocks {
    uint32_t number[LANE_BLOCKS];
};

DEV struct loader_blocks loader_kv_blocks(const struct loader *l, const struct kv_walk *w,
                                          uint32_t n_items) {
    const struct rt_batch *b = &SHARED->batch;
    const int32_t *table = b->block_table + (uint64_t)w->slot * b->max_blocks;
    struct loader_blocks blocks;
#pragma unroll
    for (uint32_t i = 0; i < LANE_BLOCKS; i++) {
        const uint32_t n = l->lane + 32 * i,
                       first = w->piece * ATTENTION_PIECE + n * BLOCK_POSITIONS;
        const bool in = n < n_items * PIECE_BLOCKS && first < w->hi;
        blocks.number[i] = in ? (uint32_t)load_index_l2(table + first / QN_KV_BLOCK) : 0;
    }
    return blocks;
}

/* k of the item's head at position number `at` of the step. Every lane calls it. */
DEV const uint16_t *loader_kv_at(const struct loader_blocks *blocks, const uint16_t *kv,
                                 uint32_t at) {
    const uint32_t n = at / BLOCK_POSITIONS;
    uint32_t block = __shfl_sync(~0u, blocks->number[0], n % 32);
#pragma unroll
    for (uint32_t i = 1; i < LANE_BLOCKS; i++) {
        const uint32_t other = __shfl_sync(~0u, blocks->number[i], n % 32);
        block = n / 32 == i ? other : block;
    }
    return kv + (uint64_t)block * (2 * KV_VALUE_STRIDE) + at % BLOCK_POSITIONS * QN_HEAD_DIM;
}

/* The eight shares of an item. */
DEV bool loader_kv_item(struct loader *l, const struct kv_walk *w, const uint16_t *kv,
                        const struct loader_blocks *blocks) {
#pragma unroll 1
    for (uint32_t share = 0; share < WARPS;) {
        const uint32_t now = min(WARPS - share, l->burst);
        if (!loader_wait(l, now)) return false;
        const uint32_t at = (share + loader_page_of(l->lane)) % WARPS * SHARE_POSITIONS;
        const uint16_t *k = loader_kv_at(blocks, kv, at);
        const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
        const uint32_t n = kv_walk_paged(w, w->piece * ATTENTION_PIECE + at);
        const bool mine = loader_page_of(l->lane) < now;
        if (mine && n > 0)
            page_copy_two_evict_first(RING + slot * CUDA_PAGE_BYTES, SHARE_BYTES, k,
                                      k + KV_VALUE_STRIDE, n * QN_HEAD_DIM * 2,
                                      &SHARED->page_full[slot], l->lane);
        if (mine && n == 0) page_copy_nothing(&SHARED->page_full[slot]);
        loader_advance(l, now);
        share += now;
    }
    return true;
}

/* The pages of a run of n items. */
DEV bool loader_kv_run(struct loader *l, uint32_t n, const uint16_t *kv,
                       const struct loader_blocks *blocks) {
#pragma unroll 1
    for (uint32_t page = 0; page < 2 * RUN_PAGES * WARPS;) {
        const uint32_t now = min(2 * RUN_PAGES * WARPS - page, l->burst);
        if (!loader_wait(l, now)) return false;
        const uint32_t mine = page + loader_page_of(l->lane), item = mine % WARPS;
        const uint32_t at = item * ATTENTION_PIECE + mine / WARPS % RUN_PAGES * RUN_POSITIONS;
        const uint32_t value = mine / WARPS < RUN_PAGES ? 0 : KV_VALUE_STRIDE;
        const uint16_t *first = loader_kv_at(blocks, kv, at) + value;
        const uint16_t *second = loader_kv_at(blocks, kv, at + SHARE_POSITIONS) + value;
        const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
        char *to = RING + slot * CUDA_PAGE_BYTES;
        if (loader_page_of(l->lane) < now) {
            if (item >= n)
                page_copy_nothing(&SHARED->page_full[slot]);
            else if (BLOCK_POSITIONS % RUN_POSITIONS == 0)
                page_copy_evict_first(to, first, 2 * SHARE_BYTES, &SHARED->page_full[slot],
                                      l->lane);
            else
                page_copy_two_evict_first(to, SHARE_BYTES, first, second, SHARE_BYTES,
                                          &SHARED->page_full[slot], l->lane);
        }
        loader_advance(l, now);
        page += now;
    }
    return true;
}

/* All pages of a task of ATTENTION_SPLIT or _STEP. */
DEV bool loader_kv(struct loader *l, const struct cuda_task *task) {
    if (!loader_kv_decided(l)) return false;
    loader_kv_enter(l);
    struct kv_walk w = kv_walk_begin(SHARED, task, l->kv_pieces);
    if (w.left == 0) return true;
    uint32_t n = kv_walk_run(&w);
    struct loader_blocks blocks = loader_kv_blocks(l, &w, n);
#pragma unroll 1
    while (w.left > 0) { /* a step's numbers are on their way while the one before is asked for */
        struct kv_walk next = w;
        kv_walk_skip(SHARED, &next, n);
        const uint32_t next_n = kv_walk_run(&next);
        const struct loader_blocks next_blocks =
            loader_kv_blocks(l, &next, next.left > 0 ? next_n : 0);
        const uint16_t *kv =
            (const uint16_t *)task->more + (uint64_t)(w.head / SUBS) * KV_HEAD_STRIDE;
        if (!(n > 1 ? loader_kv_run(l, n, kv, &blocks) : loader_kv_item(l, &w, kv, &blocks)))
            return false;
        w = next;
        n = next_n;
        blocks = next_blocks;
    }
    return true;
}

#endif
