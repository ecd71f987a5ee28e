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
#define BLOCK_SHARES    (BLOCK_POSITIONS / SHARE_POSITIONS)
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
    l->kv_key = 0; /* no operator is 0 */
}

/* The task's first item. Slices are the same in every layer: see split_walk. */
DEV struct kv_walk loader_kv_walk(struct loader *l, const struct cuda_task *task) {
    const struct block_shared *s = SHARED;
    const uint32_t key = task->kind << 24 | task->unit0;
    if (l->kv_key != key) {
        const bool step = task->kind == OP_ATTENTION_STEP;
        l->kv_walk = kv_walk_begin(s, task, kv_load_all(s, l->lane, step));
        l->kv_key = key;
    }
    return l->kv_walk;
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
                        const struct loader_blocks *blocks) {
#pragma unroll 1
    for (uint32_t i = 0; i < PIECE_BLOCKS; i++)
        if (!loader_kv_shares(l, w, i, loader_kv_at(blocks, kv, i * BLOCK_POSITIONS))) return false;
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

/* All pages of a task of ATTENTION_SPLIT or _STEP. */
DEV bool loader_kv(struct loader *l, const struct cuda_task *task) {
    if (!loader_kv_decided(l)) return false;
    loader_kv_enter(l);
    struct kv_walk w = loader_kv_walk(l, task);
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
