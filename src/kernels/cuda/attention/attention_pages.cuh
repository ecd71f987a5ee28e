/* attention_pages.cuh - the loader's part of attention's work lists: positions that earlier
 * iterations wrote to the KV cache are loaded as pages, like weights (attention_items.cuh says
 * which pages).
 *
 * Positions before the iteration's own are final when it is published, so their pages need no event
 * either. But which positions these are is not known before: a guess ends at the first such task.
 *
 * Bytes: 2 * SHARE_BYTES a share. A piece of one KV head is 64 KB at head_dim 128, which a
 * multiprocessor of an H100 gets from memory in 2.8 us.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_PAGES_CUH
#define QN_CUDA_ATTENTION_ATTENTION_PAGES_CUH

#include "kernels/cuda/attention/attention_items.cuh"
#include "kernels/cuda/block/loader.cuh"

/* The KV block that holds a position of a row. */
DEV uint32_t pages_block(const struct attention_item *w, uint32_t position) {
    const struct rt_batch *b = &SHARED->batch;
    const int32_t *table = b->block_table + (uint64_t)w->slot * b->max_blocks;
    return (uint32_t)load_index_l2(table + position / QN_KV_BLOCK);
}

DEV struct run_blocks pages_blocks(const struct loader *l, const struct attention_item *w,
                                   uint32_t n_items) {
    struct run_blocks blocks;
#pragma unroll
    for (uint32_t i = 0; i < LANE_BLOCKS; i++) {
        const uint32_t n = l->lane + 32 * i,
                       first = w->piece * ATTENTION_PIECE + n * BLOCK_POSITIONS;
        const bool in = n < n_items * PIECE_BLOCKS && first < w->hi;
        blocks.number[i] = in ? pages_block(w, first) : 0;
    }
    return blocks;
}

DEV struct share_place pages_share(const struct loader *l, const struct attention_item *w) {
    const uint32_t first = w->piece * ATTENTION_PIECE + l->lane * SHARE_POSITIONS;
    struct share_place share = {0, item_paged(w, first)};
    if (share.n == 0) return share;
    share.at = (uint64_t)pages_block(w, first) * QN_KV_BLOCK_STRIDE +
               (uint64_t)(w->head / SUBS) * KV_HEAD_STRIDE + first % QN_KV_BLOCK * QN_KEY_DIM;
    return share;
}

DEV struct pages_step pages_step(const struct loader *l, const struct attention_item *w) {
    struct pages_step step = {};
    if (w->left == 0) return step;
    step.n_items = item_run(w);
    step.is_run = step.n_items > 1;
    if (step.is_run) {
        step.blocks = pages_blocks(l, w, step.n_items);
        return step;
    }
    step.share = pages_share(l, w);
    if (w->kind != OP_ATTENTION_STEP)
        step.n_items = min(min(w->left, w->piece_end - w->piece), (uint32_t)LANE_ITEMS);
    return step;
}

/* The task's first item, and where it lies, found once an iteration. Slices are the same in every
 * layer of one window (see items_first), and blocks are the same in all layers. */
DEV void pages_first(struct loader *l, const struct loader_task *t, const struct cuda_task *from) {
    const struct block_shared *s = SHARED;
    const uint32_t key = items_key(t->kind, t->window, t->unit0);
    if (l->list_key == key) return;
    l->item = items_begin(s, from, items_load(s, l->lane, t->kind, t->window));
    l->step = pages_step(l, &l->item);
    l->list_key = key;
}

/* k of the item's head at position number `at` of a run. Every lane calls it. */
DEV const uint16_t *pages_at(const struct run_blocks *blocks, const uint16_t *kv, uint32_t at) {
    const uint32_t n = at / BLOCK_POSITIONS;
    uint32_t block = __shfl_sync(~0u, blocks->number[0], n % 32);
#pragma unroll
    for (uint32_t i = 1; i < LANE_BLOCKS; i++) {
        const uint32_t other = __shfl_sync(~0u, blocks->number[i], n % 32);
        block = n / 32 == i ? other : block;
    }
    return kv + (uint64_t)block * (2 * KV_VALUE_STRIDE) + at % BLOCK_POSITIONS * QN_HEAD_DIM;
}

#if HAS_BULK_COPIES
/* The page of a share whose last eight positions are not all there, where rows of eight lie by 64
 * columns. Copies only the first n positions: other blocks may store the others now. */
DEV void pages_part(const uint16_t *k, uint32_t n, char *to, uint64_t *full) {
    const uint32_t whole = n / 8 * 8 * KV_ROW, rest = n % 8 * KV_LINE;
    copies_begin(full, 2 * n * KV_ROW);
#pragma unroll 1
    for (uint32_t value = 0; value < 2; value++) {
        const char *from = (const char *)(k + value * KV_VALUE_STRIDE);
        char *at = to + value * SHARE_BYTES;
        if (whole > 0) copies_one_evict_first(at, from, whole, full);
#pragma unroll 1
        for (uint32_t plane = 0; plane < KV_ROW / KV_LINE; plane++)
            copies_one_evict_first(at + whole + plane * KV_PLANE, from + whole + plane * KV_PLANE,
                                   rest, full);
    }
    copies_end(full);
}
#else
DEV void pages_part(const uint16_t *, uint32_t, char *, uint64_t *) {}
#endif

/* Pages of an item. */
#define ITEM_PAGES (SHARE_PAGES * WARPS)

/* The pages of item number i of a step: keys and values of each share together, or first all
 * keys. */
DEV bool pages_item(struct loader *l, const uint16_t *kv, const struct share_place *of_lane,
                    uint32_t i) {
#pragma unroll 1
    for (uint32_t page = 0; page < ITEM_PAGES;) {
        const uint32_t now = min(ITEM_PAGES - page, l->burst);
        if (!loader_wait(l, now)) return false;
        const uint32_t mine = loader_page_of(l->lane), at = min(page + mine, ITEM_PAGES - 1u);
        const uint32_t from = i * WARPS + (SHARE_PAGES == 1 ? at : at % WARPS);
        const uint16_t *k = kv + __shfl_sync(~0u, of_lane->at, from);
        const uint32_t n = __shfl_sync(~0u, of_lane->n, from);
        const uint32_t slot = loader_after(l, mine).slot, bytes = n * QN_HEAD_DIM * 2;
        uint64_t *full = &SHARED->page_full[slot];
        char *to = RING + slot * CUDA_PAGE_BYTES;
        if (mine < now && n > 0) {
            if (KV_APART && n % 8 != 0)
                pages_part(k, n, to, full);
            else if (SHARE_PAGES == 1)
                page_copy_two_evict_first(to, SHARE_BYTES, k, k + KV_VALUE_STRIDE, bytes, full,
                                          l->lane);
            else
                page_copy_evict_first(to, at < WARPS ? k : k + KV_VALUE_STRIDE, bytes, full,
                                      l->lane);
        }
        if (mine < now && n == 0) page_copy_nothing(full);
        loader_advance(l, now);
        page += now;
    }
    return true;
}

#if QN_HAS_latent_pages
/* Lines [line, line + lines) of a share of latents, of its first n positions. */
DEV void pages_lines(const uint16_t *kv, uint32_t line, uint32_t lines, uint32_t n, char *to,
                     uint64_t *full, uint32_t lane) {
    const char *from = (const char *)kv + line * LATENT_PLANE;
    if (n == SHARE_POSITIONS) {
        page_copy_evict_first(to, from, lines * LATENT_PLANE, full, lane);
        return;
    }
    copies_begin(full, lines * n * 128);
#pragma unroll 1
    for (uint32_t i = 0; i < lines; i++)
        copies_one_evict_first(to + i * LATENT_PLANE, from + i * LATENT_PLANE, n * 128, full);
    copies_end(full);
}

/* The same for latents: first the first lines of each share, then the next ones. */
DEV bool pages_latents(struct loader *l, const uint16_t *kv, const struct share_place *of_lane,
                       uint32_t i) {
    constexpr uint32_t PAGES = LATENT_PAGES * WARPS;
#pragma unroll 1
    for (uint32_t page = 0; page < PAGES;) {
        const uint32_t now = min(PAGES - page, l->burst), mine = loader_page_of(l->lane);
        if (!loader_wait(l, now)) return false;
        const uint32_t at = min(page + mine, PAGES - 1), from = i * WARPS + at % WARPS;
        const uint32_t line = at / WARPS * LATENT_PAGE_LINES;
        const uint16_t *share = kv + __shfl_sync(~0u, of_lane->at, from);
        const uint32_t n = __shfl_sync(~0u, of_lane->n, from);
        const uint32_t slot = loader_after(l, mine).slot;
        uint64_t *full = &SHARED->page_full[slot];
        if (mine < now && n > 0)
            pages_lines(share, line, min((uint32_t)LATENT_PAGE_LINES, LATENT_LINES - line), n,
                        RING + slot * CUDA_PAGE_BYTES, full, l->lane);
        if (mine < now && n == 0) page_copy_nothing(full);
        loader_advance(l, now);
        page += now;
    }
    return true;
}
#endif

/* A page of a share whose n positions from `first` on lie in several blocks of the cache: keys and
 * values, or one of them. */
DEV void pages_scattered(const struct loader *l, const uint16_t *kv, const struct attention_item *w,
                         uint32_t first, uint32_t n, bool is_value, uint32_t slot) {
    const uint32_t row = QN_HEAD_DIM * 2;
    uint64_t *full = &SHARED->page_full[slot];
    kv += (uint64_t)(w->head / SUBS) * KV_HEAD_STRIDE + (is_value ? KV_VALUE_STRIDE : 0);
    share_begin(full, n * row * (SHARE_PAGES == 1 ? 2 : 1), l->lane);
    for (uint32_t i = share_first(l->lane); i * QN_KV_BLOCK < n; i += share_step()) {
        const uint32_t at = i * QN_KV_BLOCK, bytes = min(n - at, (uint32_t)QN_KV_BLOCK) * row;
        const uint16_t *from = kv + (uint64_t)pages_block(w, first + at) * (2 * KV_VALUE_STRIDE);
        char *to = RING + slot * CUDA_PAGE_BYTES + at * row;
        share_copy(to, from, bytes, full, l->lane);
        if (SHARE_PAGES == 1)
            share_copy(to + SHARE_BYTES, from + KV_VALUE_STRIDE, bytes, full, l->lane);
    }
    share_end(full, l->lane);
}

/* The pages of the item's piece number i, one by one, where a KV block holds less than a share. */
DEV bool pages_item_scattered(struct loader *l, const uint16_t *kv, const struct attention_item *w,
                              uint32_t i) {
#pragma unroll 1
    for (uint32_t page = 0; page < ITEM_PAGES; page++) {
        const uint32_t first = (w->piece + i) * ATTENTION_PIECE + page % WARPS * SHARE_POSITIONS;
        const uint32_t n = item_paged(w, first), slot = loader_after(l, 0).slot;
        if (!loader_wait(l, 1)) return false;
        if (n > 0)
            pages_scattered(l, kv, w, first, n, page >= WARPS, slot);
        else if (loader_page_of(l->lane) == 0)
            page_copy_nothing(&SHARED->page_full[slot]);
        loader_advance(l, 1);
    }
    return true;
}

/* A page of a run: RUN_POSITIONS of k, or of v. */
struct run_page {
    const uint16_t *half[2]; /* half[1] follows half[0] in memory, unless blocks are smaller */
    bool is_void;
};

DEV struct run_page pages_run_page(const struct run_blocks *blocks, const uint16_t *kv,
                                   uint32_t page, uint32_t n) {
    const uint32_t item = page % WARPS, of_item = page / WARPS;
    const uint32_t at = item * ATTENTION_PIECE + of_item % RUN_PAGES * RUN_POSITIONS;
    kv += of_item < RUN_PAGES ? 0 : KV_VALUE_STRIDE;
    struct run_page p = {{pages_at(blocks, kv, at), nullptr}, item >= n};
    if (BLOCK_POSITIONS % RUN_POSITIONS != 0)
        p.half[1] = pages_at(blocks, kv, at + SHARE_POSITIONS);
    return p;
}

/* The pages of a run of n items. Void pages do not count as under way. Where the next pages lie is
 * found while there is no room. */
DEV bool pages_run(struct loader *l, uint32_t n, const uint16_t *kv,
                   const struct run_blocks *blocks) {
    const uint32_t flight = l->flight;
    loader_set_flight(l, min(flight * WARPS / n, RING_PAGES - 1));
#pragma unroll 1
    for (uint32_t page = 0; page < 2 * RUN_PAGES * WARPS;) {
        const uint32_t now = min(2 * RUN_PAGES * WARPS - page, l->burst);
        const struct run_page mine = pages_run_page(blocks, kv, page + loader_page_of(l->lane), n);
        if (!loader_wait(l, now)) return false;
        const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
        uint64_t *full = &SHARED->page_full[slot];
        char *to = RING + slot * CUDA_PAGE_BYTES;
        if (loader_page_of(l->lane) < now) {
            if (mine.is_void)
                page_copy_nothing(full);
            else if (BLOCK_POSITIONS % RUN_POSITIONS == 0)
                page_copy_evict_first(to, mine.half[0], RUN_POSITIONS * QN_HEAD_DIM * 2, full,
                                      l->lane);
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

/* The pages of item number i of a step, whose shares each lie in one block. */
DEV bool pages_one(struct loader *l, const uint16_t *kv, const struct share_place *of_lane,
                   uint32_t i) {
#if QN_HAS_latent_pages
    return pages_latents(l, kv, of_lane, i);
#else
    return pages_item(l, kv, of_lane, i);
#endif
}

/* The pages of one step: a run, or items one by one. */
DEV bool pages_of_step(struct loader *l, const uint16_t *kv, const struct attention_item *w,
                       const struct pages_step *step) {
    if (step->is_run) {
        const uint16_t *k = kv + (uint64_t)(w->head / SUBS) * KV_HEAD_STRIDE;
        return pages_run(l, step->n_items, k, &step->blocks);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < step->n_items; i++)
        if (!(HAS_RUNS ? pages_one(l, kv, &step->share, i) : pages_item_scattered(l, kv, w, i)))
            return false;
    return true;
}

/* All pages of a task of ATTENTION_STEP or _WHOLE, or of ATTENTION_SPLIT of latents. A task of one
 * item takes as few instructions as possible, because weights wait behind its pages, and compute
 * warps wait for them. */
DEV bool attention_pages(struct loader *l, const struct loader_task *t,
                         const struct cuda_task *from) {
    const uint16_t *kv = (const uint16_t *)t->image;
    pages_first(l, t, from);
    if (HAS_RUNS && l->item.left == 1) return pages_one(l, kv, &l->step.share, 0);
    struct attention_item w = l->item;
    struct pages_step step = l->step;
#pragma unroll 1
    while (w.left > 0) { /* the next step is looked up while this one is requested */
        struct attention_item next = w;
        items_skip(SHARED, &next, step.n_items);
        const struct pages_step next_step = pages_step(l, &next);
        if (!pages_of_step(l, kv, &w, &step)) return false;
        w = next;
        step = next_step;
    }
    return true;
}

#endif
