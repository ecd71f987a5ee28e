/* attention_latent_pages.cuh - LATENT by pages: ATTENTION_SPLIT where positions of latents are
 * loaded as pages, from long before the task's event on (attention_pages.cuh).
 *
 * An item is a piece of a token row, for up to 16 of its heads (attention_items.cuh). A warp's
 * share of it is LATENT_PAGES pages. Each has LATENT_PAGE_LINES lines of all the share's positions.
 *
 *   before the event   wait for the pages of what earlier iterations wrote; clear positions that
 *                      the row does not see; look up where the others lie in the cache
 *   after it           request the others, and the queries; then attention_latent.cuh
 *
 * Shared memory: queries and struct piece_shares of attention_latent.cuh lie in scratch.
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_LATENT_PAGES_CUH
#define QN_CUDA_ATTENTION_ATTENTION_LATENT_PAGES_CUH

#if QN_HAS_latent_pages

#include "kernels/cuda/attention/attention_latent.cuh"

static_assert(LATENT_PART == ATTENTION_PIECE && LATENT_PAGES <= RING_DEPTH, "a piece in the ring");
static_assert(cuda_latent_others(QN_KEY_DIM) <= SCRATCH_BYTES, "in scratch");

/* What a warp knows of its share of an item. */
struct latent_share {
    uint32_t first;      /* its first position */
    uint32_t begin, end; /* positions that the iteration adds to it */
    uint32_t row;        /* cache row of the lane's position, if the iteration adds it */
};

/* Waits for the share's pages, then does what needs no event. */
DEV struct latent_share latent_share_of(const struct warp_context *c,
                                        const struct attention_item *w) {
    const uint32_t share = share_of_warp(c);
    struct latent_share s = {w->piece * ATTENTION_PIECE + share * SHARE_POSITIONS};
    const uint32_t end = s.first + SHARE_POSITIONS, position = s.first + c->lane % SHARE_POSITIONS;
    s.begin = max(s.first, w->fresh);
    s.end = max(min(end, w->hi), s.begin);
    s.row = position >= s.begin && position < s.end ? kv_row(&SHARED->batch, w->slot, position) : 0;
#pragma unroll
    for (uint32_t n = 0; n < LATENT_PAGES; n++) page_acquire_after(c, n);
    if (w->hi > s.first && w->hi < end) latent_zero<true>(c, share, w->hi, end);
    return s;
}

/* Requests the positions that the iteration adds to the share: from the cache into its pages. */
DEV void latent_share_add(const struct warp_context *c, const struct cuda_task *task,
                          const struct latent_share *s) {
    constexpr uint32_t CHUNKS = QN_KEY_DIM / 8;
    const uint16_t *kv = (const uint16_t *)task->more;
    const uint32_t n = (s->end - s->begin) * CHUNKS;
#pragma unroll 1
    for (uint32_t from = 0; from < n; from += 32) {
        const uint32_t i = from + c->lane, chunk = i % CHUNKS, position = s->begin + i / CHUNKS;
        const uint32_t row = __shfl_sync(~0u, s->row, position % SHARE_POSITIONS);
        if (i < n)
            copy16_async(latent_line<true>(c, share_of_warp(c), chunk / 8) +
                             latent_chunk_at(position, chunk % 8),
                         kv + latent_at(row, position, chunk * 8));
    }
    copy_commit();
}

/* Releases the item's pages after all warps have read them. */
DEV void latent_pages_release(struct warp_context *c) {
    page_copy_fence_shared(); /* bulk copies will write where these threads did */
    sync_compute();
#pragma unroll 1
    for (uint32_t n = 0; n < LATENT_PAGES; n++) page_release(c);
}

/* new_queries: the item before had another row or step of heads. */
DEV void latent_pages_item(struct warp_context *c, const struct cuda_task *task,
                           const struct attention_item *w, const struct latent_share *s,
                           const struct latent_chunks *queries, bool new_queries) {
    const struct latent_sight sees = {w->lo, w->hi};
    const uint32_t first = w->piece * ATTENTION_PIECE;
    struct latent_state y;
    float most[2];
    latent_share_add(c, task, s);
    if (new_queries) latent_queries(c, task, queries, w->row, w->head);
    copy_wait<0>();
    sync_compute();
    latent_weigh<true>(c, sees, first, most);
    latent_outputs<true>(c, sees, first, most, &y);
    latent_pages_release(c);
    latent_part_store(c, task, w->row, w->head, w->piece, &y);
}

/* False: the launch ends. */
DEV bool run_latent_pages(struct warp_context *c, const struct cuda_task *task) {
    struct attention_item w = items_first(c, task);
    const struct latent_chunks queries = latent_chunks_of(c);
    struct latent_share s = {};
    uint32_t row = ~0u, head = 0;
    if (w.left > 0) s = latent_share_of(c, &w);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
#pragma unroll 1
    while (w.left > 0) {
        latent_pages_item(c, task, &w, &s, &queries, w.row != row || w.head != head);
        row = w.row;
        head = w.head;
        items_skip(SHARED, &w, 1);
        if (w.left > 0) s = latent_share_of(c, &w);
    }
    return true;
}

#endif

#endif
