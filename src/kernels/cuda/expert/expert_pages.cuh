/* expert_pages.cuh - the loader's role: the pages of the listed experts.
 *
 * The list has the experts with the largest logits of each row. If the logits can be polled, the
 * loader of few rows chooses the experts itself, by ROUTE's functions. So it requests pages while
 * ROUTE writes the list, which the compute warps read. */
#ifndef QN_CUDA_EXPERT_EXPERT_PAGES_CUH
#define QN_CUDA_EXPERT_EXPERT_PAGES_CUH

#include "kernels/cuda/block/loader.cuh"
#include "kernels/cuda/expert/expert_list.cuh"
#include "kernels/cuda/expert/route.cuh"

/* The first page of row block `block` of an expert, in an image that has `blocks` row blocks an
 * expert. */
DEV const char *expert_page(const char *image, uint32_t expert, uint32_t blocks, uint32_t block,
                            uint32_t k_tiles) {
    return image + ((uint64_t)expert * blocks + block) * k_tiles * CUDA_PAGE_BYTES;
}

/* Pages until more may be in flight. 0: more may be already, or never will. As with other weights,
 * more may be in a long task, once there was room for a page after the first RING_PAGES. */
struct expert_count {
    uint32_t left;
};

DEV struct expert_count expert_count_of(uint32_t n_pages) {
    return {loader_is_long(n_pages) ? RING_PAGES : 0u};
}

DEV void expert_note(struct loader *l, struct expert_count *pages, uint32_t n) {
    if (pages->left == 0) return;
    if (pages->left <= n) loader_set_flight(l, (l->near + l->deep) / 2);
    pages->left -= min(n, pages->left);
}

/* The pages of a group of row blocks: eight of each, then the next eight of each. */
DEV bool expert_group_pages(struct loader *l, const char *from, uint32_t n_blocks) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    for (uint32_t k = 0; k < k_tiles; k += PARTIALS) {
        const uint32_t n = min(k_tiles - k, (uint32_t)PARTIALS);
        for (uint32_t b = 0; b < n_blocks; b++)
            if (!loader_issue(l, from + ((uint64_t)b * k_tiles + k) * CUDA_PAGE_BYTES, n) ||
                !loader_issue_void(l, PARTIALS - n))
                return false;
    }
    return true;
}

/* The pages of n_blocks row blocks for a pass over several sets: void pages, whose memory holds
 * `kept` sets, then a step for each row block. */
DEV bool expert_lap_pages(struct loader *l, const char *from, uint32_t n_blocks, uint32_t kept) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const uint32_t steps = kept + n_blocks + expert_padding(n_blocks, RING_DEPTH - kept);
#pragma unroll 1
    for (uint32_t i = 0; i < steps; i++) {
        const bool there = i >= kept && i - kept < n_blocks;
        if (!loader_lap_issue(l, from, there ? k_tiles : 0, kept * WARPS, i * WARPS)) return false;
        if (there) from += k_tiles * CUDA_PAGE_BYTES;
    }
    loader_lap_end(l);
    return true;
}

/* A run's pages where passes are over one set each: those of a group of row blocks, once for each
 * pass over the run's slots, then those of the next group. */
DEV bool expert_group_run_pages(struct loader *l, const char *image, const struct expert_run *run,
                                struct expert_count *pages) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const uint32_t group = expert_group(run->entry.slot1 - run->entry.slot0);
    const uint32_t passes = expert_up_passes(&run->entry);
    for (uint32_t b = run->block0; b < run->block1; b += group) {
        const char *from = expert_page(image, run->entry.expert, EXPERT_UP_BLOCKS, b, k_tiles);
        for (uint32_t p = 0; p < passes; p++) {
            const uint32_t n = min(group, run->block1 - b);
            if (!expert_group_pages(l, from, n)) return false;
            expert_note(l, pages, n * k_tiles);
        }
    }
    return true;
}

/* A run's pages where passes may be over several sets: for each pass those of the whole run. */
DEV bool expert_sets_run_pages(struct loader *l, const char *image, const struct expert_run *run,
                               struct expert_count *pages) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const uint32_t n_blocks = run->block1 - run->block0;
    const char *from =
        expert_page(image, run->entry.expert, EXPERT_UP_BLOCKS, run->block0, k_tiles);
    for (uint32_t slot = run->entry.slot0; slot < run->entry.slot1; slot += EXPERT_UP_PASS) {
        const uint32_t slots = min(run->entry.slot1 - slot, (uint32_t)EXPERT_UP_PASS);
        if (expert_has_sets(slots)) {
            expert_note(l, pages, n_blocks * k_tiles);
            if (!expert_lap_pages(l, from, n_blocks, expert_kept(slots))) return false;
            continue;
        }
        const uint32_t group = expert_group(slots);
        for (uint32_t b = 0; b < n_blocks; b += group) {
            const uint32_t n = min(group, n_blocks - b);
            const char *src = from + (uint64_t)b * k_tiles * CUDA_PAGE_BYTES;
            if (!expert_group_pages(l, src, n)) return false;
            expert_note(l, pages, n * k_tiles);
        }
    }
    return true;
}

DEV bool expert_run_pages(struct loader *l, const char *image, const struct expert_run *run,
                          struct expert_count *pages) {
    return EXPERT_UP_SETS > 1 ? expert_sets_run_pages(l, image, run, pages)
                              : expert_group_run_pages(l, image, run, pages);
}

/* A run of EXPERT_GATE_UP. A single row's pages are one stretch. */
DEV bool expert_up_run_pages(struct loader *l, const struct loader_task *t,
                             const struct expert_run *run, struct expert_count *pages) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    if (!expert_is_row(t->rows)) return expert_run_pages(l, t->image, run, pages);
    const char *from =
        expert_page(t->image, run->entry.expert, EXPERT_UP_BLOCKS, run->block0, k_tiles);
    return loader_issue(l, from, (run->block1 - run->block0) * k_tiles);
}

/* EXPERT_GATE_UP: a slice of the list. */
DEV bool expert_up_pages(struct loader *l, const struct loader_task *t, uint32_t word) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    const struct expert_list list = expert_list_of(loader_words(word, TASK_WORD(bias)), t->rows);
    struct expert_slice s =
        expert_slice_of(list, t->unit0, loader_word(word, TASK_WORD(unit1)), l->lane);
    struct expert_count pages = expert_count_of((s.last - s.first) * k_tiles);
    struct expert_run run;
    while (expert_slice_next(&s, l->lane, &run))
        if (!expert_up_run_pages(l, t, &run, &pages)) return false;
    return true;
}

/* EXPERT_DOWN's pages of a row block: for each of the n entries that the lanes have, its expert's
 * k-tiles, once for each set of its slots. They are one sequence, so a request may go from one
 * expert's last page to the next one's first. */
DEV bool expert_down_entries(struct loader *l, const char *image, uint32_t block,
                             const struct expert_entry *mine, uint32_t n,
                             struct expert_count *pages) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_EXPERT_WIDTH);
    const uint32_t own = loader_page_of(l->lane);
    uint32_t all;
    const uint32_t first =
        warp_sum_before(l->lane < n ? expert_sets(mine) * k_tiles : 0, l->lane, &all);
#pragma unroll 1
    for (uint32_t at = 0, now; at < all; at += now) {
        uint32_t entry = 0;
        now = min(all - at, l->burst);
#pragma unroll
        for (uint32_t i = 0; i < LOADER_PAGES; i++) {
            const uint32_t begun = __ballot_sync(~0u, first <= at + i);
            if (own == i) entry = __popc(begun) - 1;
        }
        const uint32_t expert = __shfl_sync(~0u, mine->expert, entry);
        const uint32_t tile = (at + own - __shfl_sync(~0u, first, entry)) % k_tiles;
        const char *from = expert_page(image, expert, EXPERT_DOWN_BLOCKS, block, k_tiles);
        if (!loader_request(l, from + tile * CUDA_PAGE_BYTES, now, CUDA_PAGE_BYTES)) return false;
        expert_note(l, pages, now);
    }
    return true;
}

/* EXPERT_DOWN: row block by row block, expert by expert. */
DEV bool expert_down_pages(struct loader *l, const struct loader_task *t, uint32_t word) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_EXPERT_WIDTH);
    const struct expert_list list =
        expert_list_of(beyond_of(loader_words(word, TASK_WORD(bias)), BEYOND_LIST), t->rows);
    struct expert_count pages = {};
    for (uint32_t b = t->block0; b < t->block1; b++)
        for (uint32_t at = 0, n = 32; at < list.rows && n == 32; at += 32) {
            const struct expert_entry mine = expert_entries(&list, at, l->lane, &n);
            if (b == t->block0 && at == 0) pages = expert_count_of(n * k_tiles);
            if (!expert_down_entries(l, t->image, b, &mine, n, &pages)) return false;
        }
    return true;
}

/* ---- few rows whose logits can be polled ---- */

/* Whether the loader may choose: items are in the order of the list. Before sm_90 the loader would
 * spill (182 bytes). EXPERT_CHOICE_ROWS: of so many rows, because a lane has one expert. */
enum {
    EXPERT_CHOICE_ROWS = 32 / QN_TOP_K,
    EXPERT_CHOOSES = HAS_BULK_COPIES && EXPERT_IN_ORDER && EXPERT_CHOICE_ROWS > 0,
};

/* The loader chooses the rows' experts: lane i gets number i of those that some row has, by
 * ascending id. If the launch ends first, these are any experts. rows: of the graph. False: the
 * loader must leave. */
DEV bool expert_choose(struct loader *l, const float *logits, uint32_t rows) {
    const uint32_t n_rows = loader_read(&SHARED->batch.rows.n_rows);
    const uint32_t flag = expert_is_row(rows) ? l->published : 0;
    uint32_t chosen = 0;
    l->n_chosen = 0;
#pragma unroll 1
    for (uint32_t row = 0; row < n_rows; row++)
        chosen |=
            route_choose(operand_from({logits, flag}, (uint64_t)row * ROUTE_STEP), l->lane).chosen;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++)
        l->n_chosen += __popc(__ballot_sync(~0u, (chosen >> i & 1) != 0));
    l->chosen = min(route_nth(chosen, l->lane), (uint32_t)QN_EXPERTS - 1);
    l->quit = loader_quits();
    return !l->quit;
}

/* Whether the loader chooses at this task of EXPERT_GATE_UP: of few rows, and only if its slice has
 * items whatever the rows choose. In a slice without items nothing would keep the next iteration's
 * logits from the memory of these. */
DEV bool expert_may_choose(uint32_t flags, uint32_t word) {
    return EXPERT_CHOOSES && flags & CUDA_LOGITS_POLLED &&
           loader_read(&SHARED->batch.rows.n_rows) <= EXPERT_CHOICE_ROWS &&
           loader_word(word, TASK_WORD(unit1)) <= EXPERT_UP_BLOCKS * QN_TOP_K;
}

/* EXPERT_GATE_UP: the slice's items, of which nothing is read. No expert of few rows has more than
 * one set of slots. */
DEV bool expert_chosen_up_pages(struct loader *l, const struct loader_task *t, uint32_t word) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_HIDDEN);
    struct expert_run run;
    uint32_t entry;
    if (!expert_choose(l, (const float *)loader_words(word, TASK_WORD(more)), t->rows))
        return false;
    const uint32_t n = loader_word(word, TASK_WORD(unit1)), all = EXPERT_UP_BLOCKS * l->n_chosen;
    uint32_t first = expert_share(all, t->unit0, n);
    const uint32_t last = expert_share(all, t->unit0 + 1, n);
    struct expert_count pages = expert_count_of((last - first) * k_tiles);
    while (expert_even_next(&first, last, &run, &entry)) {
        run.entry = {__shfl_sync(~0u, l->chosen, entry), 0, 1};
        if (!expert_up_run_pages(l, t, &run, &pages)) return false;
    }
    return true;
}

/* EXPERT_DOWN, of the experts that the loader has chosen. */
DEV bool expert_chosen_down_pages(struct loader *l, const struct loader_task *t) {
    constexpr uint32_t k_tiles = cuda_k_tiles(QN_EXPERT_WIDTH);
    const struct expert_entry mine = {l->chosen, 0, 1};
    struct expert_count pages = expert_count_of(l->n_chosen * k_tiles);
    for (uint32_t b = t->block0; b < t->block1; b++)
        if (!expert_down_entries(l, t->image, b, &mine, l->n_chosen, &pages)) return false;
    return true;
}

/* ---- the operators ---- */

/* All pages of the task with descriptor `from`, whose experts are listed; word: this lane's word of
 * the descriptor. False: something happened instead. */
DEV bool expert_pages(struct loader *l, const struct loader_task *t, uint32_t word,
                      const struct cuda_task *from) {
    const uint32_t flags = loader_word(word, 0) >> 16;
    bool well;
    if (t->kind == OP_EXPERT_DOWN) {
        well = EXPERT_CHOOSES && flags & CUDA_LIST_KNOWN && l->chose
                   ? expert_chosen_down_pages(l, t)
                   : expert_down_pages(l, t, word);
    } else {
        l->chose = expert_may_choose(flags, word);
        if (l->chose)
            well = expert_chosen_up_pages(l, t, word);
        else
            well = ((flags & CUDA_LOGITS_POLLED) == 0 || loader_wait_event(l, from)) &&
                   expert_up_pages(l, t, word);
    }
    if (well && l->flight != l->near) loader_set_flight(l, l->near);
    return well;
}

#endif
