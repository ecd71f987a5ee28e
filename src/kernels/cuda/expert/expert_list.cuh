/* expert_list.cuh - the experts that ROUTE lists (graph/expert_list.h), as a work list whose source
 * is a tensor (block/work_list.cuh). The loader and the compute warps follow it by the same
 * functions. A whole warp calls them: lane i has entry number i of 32.
 *
 * A list is data of the iteration. Its entries are clamped: whatever the list says, an entry's
 * expert is one of the model's and its slots are slots of the graph.
 */
#ifndef QN_CUDA_EXPERT_EXPERT_LIST_CUH
#define QN_CUDA_EXPERT_EXPERT_LIST_CUH

#include "graph/expert_list.h"
#include "kernels/cuda/block/walk.cuh"

enum {
    /* Row blocks of an expert's image of gate and up, and of down. */
    EXPERT_UP_BLOCKS = (QN_EXPERT_WIDTH + CUDA_PAGE_ROWS / 2 - 1) / (CUDA_PAGE_ROWS / 2),
    EXPERT_DOWN_BLOCKS = (QN_HIDDEN + CUDA_PAGE_ROWS - 1) / CUDA_PAGE_ROWS,
    EXPERT_COLUMNS = 2, /* columns of eight slots whose k-tile a warp has in registers */
    EXPERT_SET = EXPERT_COLUMNS * PACK_ROWS, /* ... these slots: a set */

    /* Sets for which a page of gate and up is loaded once: one set in registers, the others in all
     * pages of the ring but one of each warp (expert_gate_up.cuh). This needs warps with one k-tile
     * each. Before sm_90, where a ring has at most two pages a warp, the loader would spill (64
     * bytes). */
    EXPERT_UP_SETS = HAS_BULK_COPIES && cuda_k_tiles(QN_HIDDEN) <= PARTIALS ? RING_DEPTH : 1,
    EXPERT_UP_PASS = EXPERT_UP_SETS * EXPERT_SET,
};

/* Whether EXPERT_DOWN stages h of a graph of one row, which then is not packed. */
#define EXPERT_ROW_IS_STAGED expert_row_is_staged(QN_EXPERT_WIDTH, QN_TOP_K)

/* An entry of the list. */
struct expert_entry {
    uint32_t expert, slot0, slot1;
};

/* Where a task's list lies, and its bounds. */
struct expert_list {
    const int32_t *at;
    uint32_t rows, n_slots; /* most entries; slots of the graph */
};

DEV struct expert_list expert_list_of(uint64_t at, uint32_t n_rows) {
    const uint32_t n_slots = n_rows * QN_TOP_K;
    return {(const int32_t *)at, (uint32_t)expert_list_rows(n_rows, QN_EXPERTS, QN_TOP_K), n_slots};
}

/* Entry number i, or the last one. *listed: whether the list has entry i. Entries are clamped. */
DEV struct expert_entry expert_entry_load(const struct expert_list *list, uint32_t i,
                                          bool *listed) {
    const int32_t *at = list->at + (uint64_t)min(i, list->rows - 1) * EXPERT_WORDS;
    const int32_t expert = load_index_l2(at + EXPERT_ID);
    const uint32_t slot0 = (uint32_t)load_index_l2(at + EXPERT_FIRST);
    const uint32_t slot1 = (uint32_t)load_index_l2(at + EXPERT_END);
    const uint32_t end = min(slot1, list->n_slots);
    *listed = i < list->rows && expert >= 0;
    return {min((uint32_t)max(expert, 0), (uint32_t)QN_EXPERTS - 1), min(slot0, end), end};
}

/* The lane's entry of the 32 from `first` on; *n: how many of the lanes have one. */
DEV struct expert_entry expert_entries(const struct expert_list *list, uint32_t first,
                                       uint32_t lane, uint32_t *n) {
    bool listed;
    const struct expert_entry e = expert_entry_load(list, first + lane, &listed);
    const uint32_t missing = __ballot_sync(~0u, !listed);
    __syncwarp(); /* all lanes have read before one requests a page, after which ROUTE may write */
    *n = __popc((missing & -missing) - 1);
    return e;
}

/* An entry that another lane has. */
DEV struct expert_entry expert_entry_of(const struct expert_entry *mine, uint32_t lane) {
    return {__shfl_sync(~0u, mine->expert, lane), __shfl_sync(~0u, mine->slot0, lane),
            __shfl_sync(~0u, mine->slot1, lane)};
}

/* How often an entry's pages of gate and up are loaded: once for each pass over its slots. An entry
 * without slots has no pass. */
DEV uint32_t expert_up_passes(const struct expert_entry *e) {
    return ceil_div(e->slot1 - e->slot0, EXPERT_UP_PASS);
}

/* The sets of an entry's slots: how often its pages of down are loaded. */
DEV uint32_t expert_sets(const struct expert_entry *e) {
    return ceil_div(e->slot1 - e->slot0, EXPERT_SET);
}

/* The address of operand number i of those without a word in the descriptor. row: the descriptor's
 * word `bias`, the address of these addresses. */
DEV uint64_t beyond_of(uint64_t row, int i) {
    return __ldg((const unsigned long long *)row + i);
}

/* ---- slices: EXPERT_GATE_UP ---- */

/* Row blocks [block0, block1) of an expert's gate and up, which a task processes. */
struct expert_run {
    struct expert_entry entry;
    uint32_t block0, block1;
};

/* A slice of the list: the items whose places begin in it (graph/expert_list.h). An item is a row
 * block here. It has as many places as its expert's slots have sets, at least one. */
struct expert_slice {
    struct expert_list list;
    uint32_t at;              /* the entry after those of the lanes */
    struct expert_entry mine; /* the lane's, of the entries loaded last */
    uint32_t item0, item1;    /* items of the lane's entry in the slice */
    uint32_t left;            /* lanes whose items are still to come, a bit each */
    uint32_t place;           /* of the first item behind the lanes' entries */
    uint32_t first, last;     /* places of the slice */
};

DEV uint32_t expert_cost_of(const struct expert_list *list, const struct expert_entry *e) {
    if (QN_EXPERT_PLACING == EXPERT_STATIC || list->n_slots <= EXPERT_UP_PASS) return 1;
    return max(expert_sets(e), 1u);
}

/* The first of `items` items, `cost` places each from `start` on, that begins at or after a place.
 */
DEV uint32_t expert_item_at(uint32_t place, uint32_t start, uint32_t cost, uint32_t items) {
    return place <= start ? 0 : min((place - start + cost - 1) / cost, items);
}

/* The sum of v over the lanes before this one; *all: over all lanes. */
DEV uint32_t warp_sum_before(uint32_t v, uint32_t lane, uint32_t *all) {
    uint32_t sum = v;
#pragma unroll
    for (uint32_t by = 1; by < 32; by *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, sum, by);
        if (lane >= by) sum += before;
    }
    *all = __shfl_sync(~0u, sum, 31);
    return sum - v;
}

/* Loads the next entries and finds which of their items are in the slice. False: there are no more
 * entries. */
DEV bool expert_slice_load(struct expert_slice *s, uint32_t lane) {
    constexpr uint32_t items = EXPERT_UP_BLOCKS;
    uint32_t n, all;
    if (s->at >= s->list.rows) return false;
    s->mine = expert_entries(&s->list, s->at, lane, &n);
    const uint32_t cost = lane < n ? expert_cost_of(&s->list, &s->mine) : 0;
    uint32_t start = s->place + warp_sum_before(cost * items, lane, &all);
    if (QN_EXPERT_PLACING == EXPERT_STATIC) start = s->mine.expert * items;
    s->item0 = lane < n ? expert_item_at(s->first, start, cost, items) : 0;
    s->item1 = lane < n ? expert_item_at(s->last, start, cost, items) : 0;
    s->left = __ballot_sync(~0u, s->item0 < s->item1);
    s->place += all;
    s->at = n == 32 ? s->at + n : s->list.rows;
    return n > 0;
}

/* total * i / n. A 64-bit division is a call, which costs registers everywhere. */
DEV uint32_t expert_share(uint32_t total, uint32_t i, uint32_t n) {
    return total / n * i + total % n * i / n;
}

/* ---- even lists ----
 *
 * With up to EXPERT_SET rows no expert has more than one set of slots, so all items cost the same,
 * and a task needs only the number of entries to know which items are its own. A single row's
 * entries are its experts, and entry i has slot i: their number is known before the list is. */

enum {
    EXPERT_EVEN_ENTRIES = EXPERT_SET * QN_TOP_K < QN_EXPERTS ? EXPERT_SET * QN_TOP_K : QN_EXPERTS,
    EXPERT_EVEN_EACH = (EXPERT_EVEN_ENTRIES + 31) / 32,        /* entries that a lane looks at */
    EXPERT_EVEN_ROWS = EXPERT_EVEN_EACH <= 4 ? EXPERT_SET : 1, /* more loads were not measured */
    EXPERT_IN_ORDER = QN_EXPERT_PLACING == EXPERT_SLICED,
};

DEV bool expert_is_even(const struct expert_list *list) {
    return EXPERT_IN_ORDER && list->n_slots <= EXPERT_EVEN_ROWS * QN_TOP_K;
}

/* How many entries an even list has: one trip to L2, or none for a single row. */
DEV uint32_t expert_even_count(const struct expert_list *list, uint32_t lane) {
    if (list->n_slots == QN_TOP_K) return QN_TOP_K;
    int32_t expert[EXPERT_EVEN_EACH];
    uint32_t n = 0;
#pragma unroll
    for (uint32_t k = 0; k < EXPERT_EVEN_EACH; k++)
        expert[k] =
            load_index_l2(list->at + min(lane + 32 * k, list->rows - 1) * EXPERT_WORDS + EXPERT_ID);
#pragma unroll
    for (uint32_t k = 0; k < EXPERT_EVEN_EACH; k++)
        n += __popc(__ballot_sync(~0u, lane + 32 * k < list->rows && expert[k] >= 0));
    return n;
}

/* Of items [*first, last) of an even list, the next row blocks of one entry, whose number is stored
 * in *entry; run->entry is not set. False: there are no more. */
DEV bool expert_even_next(uint32_t *first, uint32_t last, struct expert_run *run, uint32_t *entry) {
    constexpr uint32_t items = EXPERT_UP_BLOCKS;
    const uint32_t begin = *first / items * items;
    const uint32_t end = min(last, begin + items);
    if (*first >= last) return false;
    *entry = *first / items;
    run->block0 = *first - begin;
    run->block1 = end - begin;
    *first = end;
    return true;
}

/* ---- all slices ---- */

/* The places of all items. */
DEV uint32_t expert_total(const struct expert_list *list, uint32_t lane) {
    constexpr uint32_t items = EXPERT_UP_BLOCKS;
    if (QN_EXPERT_PLACING == EXPERT_STATIC) return items * QN_EXPERTS;
    if (expert_is_even(list)) return items * expert_even_count(list, lane);
    uint32_t total = 0;
    for (uint32_t at = 0, here = 32; at < list->rows && here == 32; at += 32) {
        const struct expert_entry e = expert_entries(list, at, lane, &here);
        uint32_t sum;
        warp_sum_before(lane < here ? expert_cost_of(list, &e) * items : 0, lane, &sum);
        total += sum;
    }
    return total;
}

/* Slice i of n. Of a single row nothing is read. */
DEV struct expert_slice expert_slice_of(struct expert_list list, uint32_t i, uint32_t n,
                                        uint32_t lane) {
    struct expert_slice s = {};
    const uint32_t total = expert_total(&list, lane);
    s.list = list;
    s.first = expert_share(total, i, n);
    s.last = expert_share(total, i + 1, n);
    return s;
}

/* The slice's next row blocks of one expert; false: there are no more. */
DEV bool expert_slice_next(struct expert_slice *s, uint32_t lane, struct expert_run *run) {
    if (expert_is_even(&s->list)) {
        uint32_t entry;
        if (!expert_even_next(&s->first, s->last, run, &entry)) return false;
        bool listed;
        run->entry = expert_entry_load(&s->list, entry, &listed);
        __syncwarp(); /* as in expert_entries */
        return true;
    }
    while (s->left == 0)
        if (!expert_slice_load(s, lane)) return false;
    const uint32_t from = __popc((s->left & -s->left) - 1);
    s->left &= s->left - 1;
    run->entry = expert_entry_of(&s->mine, from);
    run->block0 = __shfl_sync(~0u, s->item0, from);
    run->block1 = __shfl_sync(~0u, s->item1, from);
    return true;
}

/* ---- how a run of several rows is worked on ---- */

/* Row blocks of a group. Their partial sums of a pass over so many slots, a set at most, fit
 * scratch together. */
DEV uint32_t expert_group(uint32_t slots) {
    return slots > PACK_ROWS ? 2 : 6;
}

/* The end of the row blocks from b on that all passes of a run, over one set each, process before
 * they go on. With several passes these row blocks are a group, so that pages of later passes may
 * come from L2. */
DEV uint32_t expert_stretch_end(const struct expert_run *run, uint32_t b) {
    const uint32_t n = run->entry.slot1 - run->entry.slot0;
    return n <= EXPERT_SET ? run->block1 : min(b + expert_group(n), run->block1);
}

/* Whether a pass over so many slots is one over several sets. */
DEV bool expert_has_sets(uint32_t slots) {
    return EXPERT_UP_SETS > 1 && slots > EXPERT_SET;
}

/* Sets of a pass over so many slots that are kept in pages of the ring: a page of each warp a
 * set. */
DEV uint32_t expert_kept(uint32_t slots) {
    return (slots - 1) / EXPERT_SET;
}

/* Void pages per warp behind `pages` pages of weights that come through `depth` page slots of a
 * long lap, one or two. They make the number of uses of each slot odd (loader.cuh). */
static_assert(RING_DEPTH <= 3, "the lap's pages are a power of two");
DEV uint32_t expert_padding(uint32_t pages, uint32_t depth) {
    return (3 * depth - pages) & (2 * depth - 1);
}

/* Whether the whole graph is one token row. Then pages come row block by row block, without void
 * pages. */
DEV bool expert_is_row(uint32_t n_rows) {
    return n_rows == 1;
}

#endif
