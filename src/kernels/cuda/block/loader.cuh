/* loader.cuh - the loader warp: streams the pages of this worker's tasks, in the order in which the
 * compute warps take them, as far ahead as the ring has room. Here: room, waiting, and the pages of
 * weights. loader_work.cuh has the pages of a task, tasks.cuh the next task.
 *
 * Weights need no event. At most args->flight pages are in flight (requested and not yet arrived):
 * more would delay other blocks' critical pages and not make memory faster. In the middle of a long
 * task no block has critical pages, and args->flight_deep pages make memory a little faster.
 *
 * At the end of its list the loader may go on with the same list, on the guess that the next
 * iteration runs the same variant (`guessing`). If another variant is published, the loader tells
 * the compute warps how many pages each must drop.
 *
 * The inner loop decides how fast a block can stream. It is a chain of latencies: when one thread
 * ran it, a page took 500 cycles, 4.1 TB/s at most on the 132 SMs of an H200 that can read 4.5. So
 * the warp requests LOADER_PAGES pages at a time: lane i waits for room for the i-th page and
 * requests it. All else is the same in all lanes. (Before sm_90 the warp requests a page at a time,
 * 16 bytes a lane.)
 */
#ifndef QN_CUDA_BLOCK_LOADER_CUH
#define QN_CUDA_BLOCK_LOADER_CUH

#include "kernels/cuda/attention/attention_items.cuh"
#include "kernels/cuda/block/tasks.cuh"
#include "kernels/cuda/block/trace.cuh"
#include "kernels/cuda/block/walk.cuh"

#define BLOCK_POSITIONS (QN_KV_BLOCK < SHARE_POSITIONS ? SHARE_POSITIONS : QN_KV_BLOCK)
#define PIECE_BLOCKS    (ATTENTION_PIECE / BLOCK_POSITIONS)
#define LANE_BLOCKS     ((WARPS * PIECE_BLOCKS + 31) / 32)

/* The numbers of the KV blocks of a run's pieces, in order: number[i] of lane l is of block
 * l + 32 i, as far as the row's context reaches. */
struct run_blocks {
    uint32_t number[LANE_BLOCKS];
};

/* A lane's share: number lane % 8 of the item lane / 8 after the current one, all of one row and
 * head. at: where the share's keys begin in a layer's cache, in elements. n: how many of its
 * positions come as a page. */
struct share_place {
    uint64_t at;
    uint32_t n;
};

enum { LANE_ITEMS = 32 / WARPS };

/* The next items of a task: a run of several items, or up to LANE_ITEMS single items of one row and
 * head. ATTENTION_STEP takes a single item at a time, because a run may follow it. */
struct pages_step {
    uint32_t n_items;
    bool is_run;
    struct share_place share;
    struct run_blocks blocks; /* a run's */
};

struct loader {
    const struct cuda_args *args;
    uint32_t lane;
    uint32_t flight; /* most pages in flight: near, or deep in the middle of tasks */
    uint32_t near, deep;
    uint32_t burst;        /* pages to request at a time */
    uint32_t stream;       /* enum cuda_stream */
    uint32_t slot, parity; /* the next page's */
    uint32_t n_flying;     /* the last so many pages may be in flight; the others have arrived */
    uint32_t guess_turn, n_guessed; /* warp of the first guessed page; guessed pages */
    uint32_t published;             /* iteration whose list the loader streams */
    uint32_t entered;               /* phase of the barrier `entered` */
    bool guessing, quit, wrong;
    bool between;      /* a task without pages came after the last one with pages */
    uint64_t n_traced; /* records in the loader's ring of the trace */
    uint32_t rows_of;  /* the iteration whose rows are known: loader_knows */
    uint32_t list_key; /* attention_pages.cuh: the task whose first item is `item` */
    struct attention_item item;
    struct pages_step step; /* its first items */
    /* expert_pages.cuh: the experts of the layer, if the loader has chosen them: the lane's one,
     * and how many there are. */
    uint32_t chosen, n_chosen;
    bool chose;
};

/* The loader's copy of a task's descriptor. */
struct loader_task {
    const char *image; /* of weights; attention: the layer's cache */
    uint32_t kind, index, unit0, block0, block1, row0, rows, k_tiles;
    uint32_t tile, group, columns, unit_blocks;
    uint32_t window;     /* task_window */
    uint32_t page_bytes; /* to copy of a page with weights */
};

/* A word of shared memory, the same for all lanes. */
DEV uint32_t loader_read(const uint32_t *p) {
    return __shfl_sync(~0u, shared_load_volatile(p), 0);
}

/* Whether the phase is complete. May sleep a while, so it is for a warp that only waits. */
DEV bool loader_test(uint64_t *barrier, uint32_t parity) {
    return __all_sync(~0u, barrier_try_acquire_cta(barrier, parity));
}

/* The same without sleeping: for a warp that has other work. */
DEV bool loader_peek(uint64_t *barrier, uint32_t parity) {
    return __all_sync(~0u, barrier_test_acquire_cta(barrier, parity));
}

DEV bool loader_quits(void) {
    return loader_peek(&SHARED->quit, 0);
}

/* Takes note of a newly published iteration, if there is one, which decides a guess. */
DEV bool loader_enter(struct loader *l) {
    if (!loader_peek(&SHARED->entered, l->entered)) return false;
    const uint32_t published = loader_read(&SHARED->published);
    l->wrong = l->guessing && rt_variant_of(published) != rt_variant_of(l->published);
    l->guessing = false;
    l->published = published;
    l->entered ^= 1;
    return true;
}

/* The loader is done with the published iteration: control may overwrite the places of its rows. */
DEV void loader_leave(struct loader *l) {
    __syncwarp();
    if (l->lane == 0 || QN_EACH_ARRIVES) barrier_arrive_release_cta(&SHARED->left);
}

/* Looks, while waiting, whether the loader must leave and whether the guess is decided. */
DEV void loader_look(struct loader *l) {
    l->quit = loader_quits();
    if (l->guessing) loader_enter(l);
}

/* Waits until the guess is decided. False: the loader must leave, or the guess was wrong (so below:
 * "something happened instead"). */
DEV bool loader_decided(struct loader *l) {
    while (l->guessing && !l->quit && !l->wrong) {
        pause_ns(20);
        loader_look(l);
    }
    return !l->quit && !l->wrong;
}

/* Once per iteration, when its rows are known. Control has acquired the publication, which comes
 * after all stores of earlier iterations. The loader has acquired it from control, by the barrier
 * `entered` or a message. Bulk copies read through the async proxy, so they need the fence. */
DEV void loader_enter_rows(struct loader *l) {
    if (l->rows_of == l->published) return;
    page_copy_fence();
    l->rows_of = l->published;
    l->list_key = 0; /* no key is 0: no operator is */
}

/* Waits until the task's event, a counter, is activated. False: something happened instead. */
DEV bool loader_wait_event(struct loader *l, const struct cuda_task *task) {
    if (task->wait == PROG_NONE) return true;
    const uint32_t *counter = rt_counter(&l->args->rt, task->wait);
    const uint32_t goal = task->wait_triggers * loader_read(&SHARED->epoch);
    while (__any_sync(~0u, (int32_t)(rt_load_relaxed(counter) - goal) < 0)) {
        loader_look(l);
        if (l->quit) return false;
    }
    rt_fence_acquire(counter);
    page_copy_fence(); /* as in loader_enter_rows */
    return true;
}

/* Waits until a work list from that source may be read. False: something happened instead. */
DEV bool loader_knows(struct loader *l, enum work_source source, const struct cuda_task *task) {
    if (source == WORK_STATIC) return true;
    if (!loader_decided(l)) return false;
    loader_enter_rows(l);
    return source != WORK_TENSOR || loader_wait_event(l, task);
}

/* A page of the ring in one of its two phases. */
struct loader_page {
    uint32_t slot, parity;
};

/* The page n after the next one; n < RING_PAGES. */
DEV struct loader_page loader_after(const struct loader *l, uint32_t n) {
    const uint32_t at = l->slot + n;
    return at < RING_PAGES ? loader_page{at, l->parity}
                           : loader_page{at - RING_PAGES, l->parity ^ 1};
}

/* The page n before the next one; n < RING_PAGES. */
DEV struct loader_page loader_before(const struct loader *l, uint32_t n) {
    return l->slot >= n ? loader_page{l->slot - n, l->parity}
                        : loader_page{l->slot + RING_PAGES - n, l->parity ^ 1};
}

/* Goes past the next n pages, which have been requested. */
DEV void loader_advance(struct loader *l, uint32_t n) {
    const struct loader_page next = loader_after(l, n);
    l->slot = next.slot;
    l->parity = next.parity;
    l->n_flying = min(l->n_flying + n, l->flight);
}

/* Waits until the next n pages, at most l->burst, may be requested: their slots are empty, and few
 * enough pages are in flight. False: something happened instead. Lane i waits for the i-th page. In
 * the first lap of the ring it waits for the phase before the first, which counts as complete. */
DEV bool loader_wait(struct loader *l, uint32_t n) {
    const uint32_t i = loader_page_of(l->lane);
    const struct loader_page mine = loader_after(l, i), before = loader_before(l, l->flight - i);
    if (l->guessing) loader_look(l);
    if (l->guessing) l->n_guessed += n;
    bool empty = i >= n, few = i >= n || l->n_flying + i < l->flight;
    for (;;) {
        if (l->quit || l->wrong) return false;
        empty = empty || barrier_try_acquire_cta(&SHARED->page_empty[mine.slot], mine.parity ^ 1);
        few = few || barrier_try_acquire_cta(&SHARED->page_full[before.slot], before.parity);
        if (__all_sync(~0u, empty && few)) return true;
        loader_look(l);
        if (l->wrong) l->n_guessed -= n;
    }
}

/* From now on at most `flight` pages may be in flight. Waits for older ones. */
DEV void loader_set_flight(struct loader *l, uint32_t flight) {
    if (flight + 1 + l->lane <= l->n_flying) {
        const struct loader_page before = loader_before(l, flight + 1 + l->lane);
        barrier_wait_acquire_cta(&SHARED->page_full[before.slot], before.parity);
    }
    __syncwarp();
    l->n_flying = min(l->n_flying, flight);
    l->flight = flight;
}

/* Requests n pages, at most l->burst. src: of lane i, where page number i lies; its first `bytes`.
 */
DEV bool loader_request(struct loader *l, const char *src, uint32_t n, uint32_t bytes) {
    if (!loader_wait(l, n)) return false;
    const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
    if (loader_page_of(l->lane) < n)
        page_copy_evict_first(RING + slot * CUDA_PAGE_BYTES, src, bytes, &SHARED->page_full[slot],
                              l->lane);
    loader_advance(l, n);
    return true;
}

/* Requests n pages that lie one after the other, the first `bytes` of each. */
DEV bool loader_issue(struct loader *l, const char *src, uint32_t n,
                      uint32_t bytes = CUDA_PAGE_BYTES) {
    src += loader_page_of(l->lane) * CUDA_PAGE_BYTES;
    while (n > 0) {
        const uint32_t now = min(n, l->burst);
        if (!loader_request(l, src, now, bytes)) return false;
        n -= now;
        src += now * CUDA_PAGE_BYTES;
    }
    return true;
}

DEV bool loader_issue_void(struct loader *l, uint32_t n) {
    while (n > 0) {
        const uint32_t now = min(n, l->burst);
        if (!loader_wait(l, now)) return false;
        const uint32_t slot = loader_after(l, loader_page_of(l->lane)).slot;
        if (loader_page_of(l->lane) < now) page_copy_nothing(&SHARED->page_full[slot]);
        loader_advance(l, now);
        n -= now;
    }
    return true;
}

/* ---- a long lap of the ring ----
 *
 * In a *long lap* the first `kept` pages, whole steps of eight, stay with the compute warps until
 * the end. The other page slots, a power of two, take the lap's further pages in turn, each slot
 * many times. A lap leaves every page slot in the other phase, so each must have been used an odd
 * number of times before loader_lap_end. Only these slots limit the flight. No guess is open.
 */

/* Page number `at` of a long lap. */
DEV struct loader_page loader_lap_page(const struct loader *l, uint32_t kept, uint32_t at) {
    const uint32_t width = RING_PAGES - kept;
    if (at < kept) return loader_after(l, at);
    struct loader_page p = loader_after(l, kept + ((at - kept) & (width - 1)));
    p.parity ^= ((at - kept) & width) != 0;
    return p;
}

/* The loader leaves before it has requested page number `at`: waits for all copies. */
DEV void loader_lap_leave(struct loader *l, uint32_t kept, uint32_t at) {
    const uint32_t width = RING_PAGES - kept, i = l->lane;
    struct loader_page last = loader_after(l, i);
    const uint32_t used = i < kept ? (at > i) * width : at > i ? at + width - 1 - i : 0;
    if (i < RING_PAGES)
        barrier_wait_acquire_cta(&SHARED->page_full[last.slot],
                                 last.parity ^ 1 ^ ((used & width) != 0));
    __syncwarp();
    l->n_flying = 0;
}

/* Requests a page for each warp, from page number `at` of a long lap on: n pages that lie one after
 * the other, then void pages. False: the loader must leave. */
DEV bool loader_lap_issue(struct loader *l, const char *src, uint32_t n, uint32_t kept,
                          uint32_t at) {
    const uint32_t own = loader_page_of(l->lane);
#pragma unroll 1
    for (uint32_t i = 0; i < WARPS; i += LOADER_PAGES) {
        const struct loader_page p = loader_lap_page(l, kept, at + i + own);
        bool empty = own >= LOADER_PAGES;
        for (;;) {
            empty = empty || barrier_try_acquire_cta(&SHARED->page_empty[p.slot], p.parity ^ 1);
            if (__all_sync(~0u, empty)) break;
            l->quit = loader_quits();
            if (!l->quit) continue;
            loader_lap_leave(l, kept, at + i);
            return false;
        }
        if (own < LOADER_PAGES && i + own < n)
            page_copy_evict_first(RING + p.slot * CUDA_PAGE_BYTES,
                                  src + (i + own) * CUDA_PAGE_BYTES, CUDA_PAGE_BYTES,
                                  &SHARED->page_full[p.slot], l->lane);
        else if (own < LOADER_PAGES)
            page_copy_nothing(&SHARED->page_full[p.slot]);
    }
    return true;
}

/* Ends the lap: the next page is the one after it. */
DEV void loader_lap_end(struct loader *l) {
    l->parity ^= 1;
    l->n_flying = l->flight;
}

/* Waits until no page is in use. False: something happened instead. */
DEV bool loader_wait_all(struct loader *l) {
    const struct loader_page mine = loader_after(l, min(l->lane, RING_PAGES - 1));
    bool empty = l->lane >= RING_PAGES;
    for (;;) {
        empty = empty || barrier_try_acquire_cta(&SHARED->page_empty[mine.slot], mine.parity ^ 1);
        if (__all_sync(~0u, empty)) return true;
        loader_look(l);
        if (l->quit || l->wrong) return false;
    }
}

/* ---- trace ---- */

/* Pages requested and not yet arrived. Each lane looks at one. Looking at one after the other took
 * long: without it a traced step of Qwen3-30B-A3B was 5 % shorter (H200). */
DEV uint32_t loader_count_flying(const struct loader *l) {
    const struct loader_page p = loader_before(l, min(l->lane + 1, RING_PAGES - 1));
    return __popc(
        __ballot_sync(~0u, l->lane < l->n_flying &&
                               !barrier_test_acquire_cta(&SHARED->page_full[p.slot], p.parity)));
}

/* Pages that could be requested without waiting: free slots, from the next one on. */
DEV uint32_t loader_count_free(const struct loader *l) {
    static_assert(RING_PAGES < 32, "a lane for each page");
    const struct loader_page p = loader_after(l, min(l->lane, RING_PAGES - 1));
    const uint32_t free =
        __ballot_sync(~0u, l->lane < RING_PAGES &&
                               barrier_test_acquire_cta(&SHARED->page_empty[p.slot], p.parity ^ 1));
    return __popc(free & ~(free + 1));
}

/* Records that the last page of a task is requested. */
DEV void loader_trace(struct loader *l, uint32_t task) {
    if (rt_trace_of(&l->args->rt) == nullptr) return;
    const uint32_t size = loader_read(&SHARED->tracing);
    if (size == 0) return;
    const uint32_t flying = loader_count_flying(l), free = loader_count_free(l);
    if (l->lane != 0) return;
    trace_put(trace_ring(l->args, 2), size, l->n_traced++, rt_now_ns(),
              RT_TRACE_PAGES | RT_TRACE_PAGES_AUX(flying, free, CUDA_PAGE_BYTES >> 10) << 8, task);
}

/* Loads a descriptor: lane l gets its word l. */
DEV uint32_t loader_fetch(const struct loader *l, const struct cuda_task *from) {
    static_assert(sizeof *from == 32 * sizeof(uint32_t), "a word for every lane");
    return ((const uint32_t *)from)[l->lane];
}

/* The number of a field's word; NVRTC has no offsetof. */
#define TASK_SIZE sizeof(struct cuda_task)
#define TASK_WORD(field)                                                                           \
    ((int)(((uint64_t) & ((const struct cuda_task *)TASK_SIZE)->field - TASK_SIZE) / 4))

DEV uint32_t loader_word(uint32_t word, int at) {
    return __shfl_sync(~0u, word, at);
}
DEV uint64_t loader_words(uint32_t word, int at) {
    return (uint64_t)loader_word(word, at + 1) << 32 | loader_word(word, at);
}

DEV struct loader_task loader_task_of(uint32_t word) {
    struct loader_task t;
    const uint64_t w = loader_words(word, TASK_WORD(w)), more = loader_words(word, TASK_WORD(more));
    const uint32_t walk = loader_word(word, TASK_WORD(tile));
    t.kind = loader_word(word, TASK_WORD(kind)) & 0xFF;
    t.image = (const char *)(work_is_attention(t.kind) ? more : w);
    t.index = loader_word(word, TASK_WORD(index));
    t.unit0 = loader_word(word, TASK_WORD(unit0));
    t.block0 = loader_word(word, TASK_WORD(block0));
    t.block1 = loader_word(word, TASK_WORD(block1));
    t.row0 = loader_word(word, TASK_WORD(row0));
    t.rows = loader_word(word, TASK_WORD(row1)) - t.row0;
    t.k_tiles = loader_word(word, TASK_WORD(k_tiles));
    t.window = QN_WINDOWS_DIFFER ? loader_word(word, TASK_WORD(k)) : QN_SLIDING_WINDOW;
    t.tile = walk & 255;
    t.group = walk >> 8 & 255;
    t.columns = walk >> 16 & 255;
    t.unit_blocks = walk >> 24;
    t.page_bytes = CUDA_PAGE_BYTES;
    if (QN_LATENT && t.kind == OP_LATENT_HEADS) /* only the first steps of 16 columns */
        t.page_bytes =
            min(ceil_div(QN_HEAD_DIM - QN_ROPE_DIM, 32) * 1024, (uint32_t)CUDA_PAGE_BYTES);
    return t;
}

/* Whether a task has pages of weights, or void ones. */
DEV bool loader_has_pages(const struct loader_task *t) {
    return cuda_has_pages(t->kind) || t->columns == CUDA_LEASE;
}

/* Whether a task of n_pages is long enough to have flight_deep pages in flight in its middle. In a
 * shorter task they would still be in flight at its end, and delay the next task's data. */
DEV bool loader_is_long(uint32_t n_pages) {
    return LOADER_PAGES > 1 && n_pages >= 3 * RING_PAGES;
}

/* Weights of a leased task lie in the ring's memory, so warp 10 may request them as soon as no page
 * is in use. If the block has another task before, the weights would delay that task's reads. Then
 * the compute warps open the lease when these reads have arrived (lease_opens). */
DEV void loader_open(struct loader *l, const struct loader_task *t, uint32_t word) {
    const struct rt_rows *rows = &SHARED->batch.rows;
    const uint32_t n = t->kind == OP_LM_HEAD ? rows->n_logit_rows : rows->n_rows;
    if (!HAS_WGMMA || t->kind == OP_ATTENTION || t->kind == OP_ATTENTION_SPLIT || t->row0 >= n)
        return;
    __syncwarp(); /* no lane's page is in use */
    ((uint32_t *)&SHARED->open)[l->lane] = word;
    __syncwarp();
    if (l->lane == 0) {
        shared_store_release_cta(&SHARED->lease, l->between ? LEASE_READY : LEASE_OPEN);
        if (!l->between) barrier_arrive_release_cta(&SHARED->lease_open);
    }
    __syncwarp(); /* before the void pages, which tell the compute warps of the lease */
}

/* Whether the lease is for MIXED, which the host chose or which stands in for PREFILL
 * (form.def). */
DEV bool leases_steps(const struct loader_task *t) {
    return t->kind == OP_ATTENTION && !work_is_latent(t->kind) &&
           (t->tile == 0 || rows_are_mixed(SHARED));
}

/* Prefetches to L2 the first piece of a slice of latents, up to the row's own position. This is
 * done while the lease is not there and the memory has little to do. */
DEV void loader_latents(const struct loader *l, const struct loader_task *t, uint32_t word,
                        const struct latent_slice *s) {
    const struct latent_place at = latent_place_at(SHARED, t->kind, t->window, s->first);
    const uint32_t slot = row_slot(SHARED, at.row), hi = row_position(SHARED, at.row);
    const uint32_t lo = window_start(t->window, hi);
    const uint32_t piece = (lo / ATTENTION_PIECE + at.piece) * ATTENTION_PIECE;
    const char *kv = (const char *)loader_words(word, TASK_WORD(more));
    for (uint32_t i = l->lane + max(piece, lo); i < min(piece + ATTENTION_PIECE, hi); i += 32) {
        const char *from = kv + (uint64_t)kv_row(&SHARED->batch, slot, i) * (2 * QN_KEY_DIM);
        for (uint32_t line = 0; line < 2 * QN_KEY_DIM; line += 128) prefetch_l2(from + line);
    }
    __syncwarp();
}

/* A lease: void pages for the whole ring, or for the part of it that the steps of ATTENTION take.
 * All are sent at once, since the task waits for the last one. No guess goes beyond a lease,
 * because pages behind it could not be dropped. The lease before releases its pages together. Until
 * then only few lanes poll, because many would slow the compute warps. */
DEV bool loader_lease(struct loader *l, const struct loader_task *t, uint32_t word) {
    struct latent_slice slice = {};
    if (work_is_latent(t->kind)) { /* a slice without items leases nothing */
        slice = latent_slice_of(SHARED, t->kind, t->window, t->unit0,
                                loader_word(word, TASK_WORD(unit1)));
        if (slice.first == slice.end) return true;
    }
    if (!loader_decided(l)) return false;
    if (slice.first < slice.end) loader_latents(l, t, word, &slice);
    if (!loader_wait(l, l->burst) || !loader_wait_all(l)) return false;
    const uint32_t n = leases_steps(t) ? WARPS * STEPS_DEPTH : RING_PAGES;
    loader_open(l, t, word);
    const uint32_t lanes = LOADER_PAGES > 1 ? 32 : 1;
    for (uint32_t i = l->lane % lanes; i < n; i += lanes)
        page_copy_nothing(&SHARED->page_full[loader_after(l, i).slot]);
    loader_advance(l, n);
    return true;
}

/* All pages of a task of one row, in the image's own order. Once there is room for a page after the
 * first RING_PAGES, the task has its activations. Until the next task no block waits for
 * activations, so more pages may be in flight. */
DEV bool loader_one_row(struct loader *l, const struct loader_task *t, bool is_long) {
    const uint32_t all = (t->block1 - t->block0) * t->k_tiles;
    uint32_t n = is_long ? RING_PAGES : all;
#pragma unroll 1
    for (uint32_t at = 0; at < all; at += n, n = all - at) {
        const uint64_t first = (uint64_t)t->block0 * t->k_tiles + at;
        if (at > 0) loader_set_flight(l, l->deep);
        if (!loader_issue(l, t->image + first * CUDA_PAGE_BYTES, n, t->page_bytes)) return false;
    }
    return true;
}

/* One group of row blocks of a task of packed rows whose weights stream. The group begins with page
 * number *at of the task. is_long: as with one row, but with half as many more pages in flight,
 * since a block reads more activations. */
DEV bool loader_group(struct loader *l, const struct loader_task *t, uint32_t first, uint32_t end,
                      bool is_long, uint32_t *at) {
    for (uint32_t k = 0; k < t->k_tiles; k += PARTIALS)
        for (uint32_t b = first; b < end; b++) {
            const char *src = t->image + ((uint64_t)b * t->k_tiles + k) * CUDA_PAGE_BYTES;
            uint32_t n = min(t->k_tiles - k, (uint32_t)PARTIALS);
            if (is_long && *at == RING_PAGES) loader_set_flight(l, (l->near + l->deep) / 2);
            *at += PARTIALS;
            if (!loader_issue(l, src, n) || !loader_issue_void(l, PARTIALS - n)) return false;
        }
    return true;
}

/* All pages of a task with weights. word: this lane's word of the descriptor. */
DEV bool loader_task_pages(struct loader *l, const struct loader_task *t, uint32_t word) {
    if (t->columns == CUDA_LEASE) /* the task wants the ring's memory, not pages */
        return loader_lease(l, t, word);
    const bool is_long = loader_is_long((t->block1 - t->block0) * t->k_tiles);
    for (uint32_t row = 0; row < t->rows; row += t->tile) {
        if (t->columns == 0) {
            if (!loader_one_row(l, t, is_long)) return false;
            continue;
        }
        for (uint32_t b = t->block0, at = 0; b < t->block1;) {
            const uint32_t end = walk_group_end(b, t->block1, t->group, t->unit_blocks);
            if (!loader_group(l, t, b, end, is_long, &at)) return false;
            b = end;
        }
    }
    if (LOADER_PAGES > 1 && l->flight != l->near) loader_set_flight(l, l->near);
    return true;
}

#endif
