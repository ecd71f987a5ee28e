/* loader_kv.cuh - the loader's part of ATTENTION_SPLIT, _STEP and _WHOLE: what earlier iterations
 * left in the KV cache comes as pages, like weights (kv_walk.cuh says which pages).
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

/* Once per iteration. Control acquired what was published, which comes after all stores of the
 * iterations before; what it saw was acquired from it with the barrier `entered`, or with its
 * message. Copies read through a proxy of their own: they are asked for after the fence. */
DEV void loader_kv_enter(struct loader *l) {
    struct block_shared *s = SHARED;
    if (QN_JIT_WEIGHTS) l->published = loader_read(&s->published);
    if (l->kv_iteration == l->published) return;
    page_copy_fence();
    l->kv_iteration = l->published;
    l->kv_key = 0; /* no operator is 0 */
}

/* The block that holds a position of a row. */
DEV uint32_t loader_kv_block(const struct kv_walk *w, uint32_t position) {
    const struct rt_batch *b = &SHARED->batch;
    const int32_t *table = b->block_table + (uint64_t)w->slot * b->max_blocks;
    return (uint32_t)load_index_l2(table + position / QN_KV_BLOCK);
}

DEV struct loader_blocks loader_kv_blocks(const struct loader *l, const struct kv_walk *w,
                                          uint32_t n_items) {
    struct loader_blocks blocks;
#pragma unroll
    for (uint32_t i = 0; i < LANE_BLOCKS; i++) {
        const uint32_t n = l->lane + 32 * i,
                       first = w->piece * ATTENTION_PIECE + n * BLOCK_POSITIONS;
        const bool in = n < n_items * PIECE_BLOCKS && first < w->hi;
        blocks.number[i] = in ? loader_kv_block(w, first) : 0;
    }
    return blocks;
}

DEV struct loader_share loader_kv_share(const struct loader *l, const struct kv_walk *w) {
    const uint32_t first = w->piece * ATTENTION_PIECE + l->lane * SHARE_POSITIONS;
    struct loader_share share = {0, kv_walk_paged(w, first)};
    if (share.n == 0) return share;
    share.at = (uint64_t)loader_kv_block(w, first) * (2 * KV_VALUE_STRIDE) +
               (uint64_t)(w->head / SUBS) * KV_HEAD_STRIDE + first % QN_KV_BLOCK * QN_HEAD_DIM;
    return share;
}

DEV struct loader_step loader_kv_step(const struct loader *l, const struct kv_walk *w) {
    struct loader_step step = {};
    if (w->left == 0) return step;
    step.n_items = kv_walk_run(w);
    step.is_run = step.n_items > 1;
    if (step.is_run) {
        step.blocks = loader_kv_blocks(l, w, step.n_items);
        return step;
    }
    step.share = loader_kv_share(l, w);
    if (w->kind != OP_ATTENTION_STEP)
        step.n_items = min(min(w->left, w->piece_end - w->piece), (uint32_t)LANE_ITEMS);
    return step;
}

/* The task's first item, and where it lies. Slices are the same in every layer (see split_walk),
 * and so are the blocks of all layers: it is found once an iteration. */
DEV void loader_kv_first(struct loader *l, const struct loader_task *t,
                         const struct cuda_task *from) {
    const struct block_shared *s = SHARED;
    const uint32_t key = t->kind << 24 | t->unit0;
    if (l->kv_key == key) return;
    l->kv_walk = kv_walk_begin(s, from, kv_load_all(s, l->lane, t->kind));
    l->kv_step = loader_kv_step(l, &l->kv_walk);
    l->kv_key = key;
}

/* k of the item's head at position number `at` of a run. Every lane calls it. */
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

/* The eight pages of item number i of a step. */
DEV bool loader_kv_item(struct loader *l, const uint16_t *kv, const struct loader_share *of_lane,
                        uint32_t i) {
#pragma unroll 1
    for (uint32_t share = 0; share < WARPS;) {
        const uint32_t now = min(WARPS - share, l->burst);
        if (!loader_wait(l, now)) return false;
        const uint32_t mine = loader_page_of(l->lane);
        const uint32_t from = i * WARPS + min(share + mine, WARPS - 1u);
        const uint16_t *k = kv + __shfl_sync(~0u, of_lane->at, from);
        const uint32_t n = __shfl_sync(~0u, of_lane->n, from);
        const uint32_t slot = loader_after(l, mine).slot;
        if (mine < now && n > 0)
            page_copy_two_evict_first(RING + slot * CUDA_PAGE_BYTES, SHARE_BYTES, k,
                                      k + KV_VALUE_STRIDE, n * QN_HEAD_DIM * 2,
                                      &SHARED->page_full[slot], l->lane);
        if (mine < now && n == 0) page_copy_nothing(&SHARED->page_full[slot]);
        loader_advance(l, now);
        share += now;
    }
    return true;
}

/* A page of a run: RUN_POSITIONS of k, or of v. */
struct run_page {
    const uint16_t *half[2]; /* the other one follows the one, but where blocks are smaller */
    bool is_void;
};

DEV struct run_page loader_kv_run_page(const struct loader_blocks *blocks, const uint16_t *kv,
                                       uint32_t page, uint32_t n) {
    const uint32_t item = page % WARPS, of_item = page / WARPS;
    const uint32_t at = item * ATTENTION_PIECE + of_item % RUN_PAGES * RUN_POSITIONS;
    kv += of_item < RUN_PAGES ? 0 : KV_VALUE_STRIDE;
    struct run_page p = {{loader_kv_at(blocks, kv, at), nullptr}, item >= n};
    if (BLOCK_POSITIONS % RUN_POSITIONS != 0)
        p.half[1] = loader_kv_at(blocks, kv, at + SHARE_POSITIONS);
    return p;
}

/* The pages of a run of n items. Void ones do not count as under way. Where the next ones lie is
 * found while there is no room. */
DEV bool loader_kv_run(struct loader *l, uint32_t n, const uint16_t *kv,
                       const struct loader_blocks *blocks) {
    const uint32_t flight = l->flight;
    loader_set_flight(l, min(flight * WARPS / n, RING_PAGES - 1));
#pragma unroll 1
    for (uint32_t page = 0; page < 2 * RUN_PAGES * WARPS;) {
        const uint32_t now = min(2 * RUN_PAGES * WARPS - page, l->burst);
        const struct run_page mine =
            loader_kv_run_page(blocks, kv, page + loader_page_of(l->lane), n);
        if (!loader_wait(l, now)) return false;
        const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
        uint64_t *full = &SHARED->page_full[slot];
        char *to = RING + slot * CUDA_PAGE_BYTES;
        if (loader_page_of(l->lane) < now) {
            if (mine.is_void)
                page_copy_nothing(full);
            else if (BLOCK_POSITIONS % RUN_POSITIONS == 0)
                page_copy_evict_first(to, mine.half[0], 2 * SHARE_BYTES, full, l->lane);
            else
                page_copy_two_evict_first(to, SHARE_BYTES, mine.half[0], mine.half[1], SHARE_BYTES,
                                          full, l->lane);
        }
        loader_advance(l, now);
        page += now;
    }
    loader_set_flight(l, flight);
    return true;
}

/* All pages of a task of ATTENTION_SPLIT, _STEP or _WHOLE. Of one item: in as few instructions as
 * can be, since weights wait behind them, and compute warps for the pages. */
DEV bool loader_kv(struct loader *l, const struct loader_task *t, const struct cuda_task *from) {
    const uint16_t *kv = (const uint16_t *)t->image;
    if (!loader_decided(l)) return false;
    loader_kv_enter(l);
    loader_kv_first(l, t, from);
    if (l->kv_walk.left == 1) return loader_kv_item(l, kv, &l->kv_step.share, 0);
    struct kv_walk w = l->kv_walk;
    struct loader_step step = l->kv_step;
#pragma unroll 1
    while (w.left > 0) { /* where the next step lies is on its way while this one is asked for */
        struct kv_walk next = w;
        kv_walk_skip(SHARED, &next, step.n_items);
        const struct loader_step next_step = loader_kv_step(l, &next);
        if (step.is_run) {
            const uint16_t *k = kv + (uint64_t)(w.head / SUBS) * KV_HEAD_STRIDE;
            if (!loader_kv_run(l, step.n_items, k, &step.blocks)) return false;
        }
#pragma unroll 1
        for (uint32_t i = 0; i < step.n_items && !step.is_run; i++)
            if (!loader_kv_item(l, kv, &step.share, i)) return false;
        w = next;
        step = next_step;
    }
    return true;
}

#endif
