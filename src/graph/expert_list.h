/* expert_list.h - the list of experts that ROUTE writes in an iteration, and how EXPERT_GATE_UP's
 * tasks share out the work. Safe for device code.
 *
 *   slot    a row and one of its experts. The T * top_k slots are sorted by expert, then row
 *   slots   [T * top_k] row * top_k + i of each slot: its expert is the row's i-th by ascending id
 *           and has the weight weight[row][i]
 *   list    [n, EXPERT_WORDS] {expert, a first slot, the slot after the last}: the experts that
 *           some row has, by ascending id, then entries with expert -1. An expert has an entry for
 *           each stretch of EXPERT_STRETCH slots, counted from its first slot's eight on, so that
 *           an entry touches at most EXPERT_STRETCH / PACK_ROWS eights
 *
 *   item    EXPERT_BLOCK rows of an expert's gate and of its up, for all slots of an entry. (On a
 *           GPU it is a row block, eight rows of each: kernels/cuda/expert/expert_list.cuh)
 *
 * A task has a *slice* of the items: the items whose place begins in it. An item's place is the
 * cost of the items before it, so that slices take about equally long. Reading a block costs as
 * much as multiplying it with EXPERT_READ rows. An item's result does not depend on its slice.
 */
#ifndef QN_GRAPH_EXPERT_LIST_H
#define QN_GRAPH_EXPERT_LIST_H

#include "base/abi.h"
#include "graph/op.h"
#include "graph/partials.h"

enum { EXPERT_ID, EXPERT_FIRST, EXPERT_END, EXPERT_WORDS };
enum { EXPERT_BLOCK = 16, EXPERT_READ = 16 };

/* How items get their places. */
enum expert_placing {
    EXPERT_SLICED = 0, /* one after the other */
    EXPERT_STATIC = 1, /* each where it would be if all experts were listed: an ablation */
};

/* Entries of the list of a graph of n_rows rows. An expert has at most two entries more than it has
 * whole stretches of slots. */
ABI_FN uint64_t expert_list_rows(uint64_t n_rows, uint64_t n_experts, uint64_t top_k) {
    const uint64_t n_slots = n_rows * top_k;
    const uint64_t most = 2 * n_experts + (n_slots + EXPERT_STRETCH - 1) / EXPERT_STRETCH;
    return n_slots < most ? n_slots : most;
}

/* The end of the entry that begins at a slot, of an expert whose slots end at `end`. */
ABI_FN uint32_t expert_entry_end(uint32_t slot, uint32_t end) {
    const uint32_t next = slot / PACK_ROWS * PACK_ROWS + EXPERT_STRETCH;
    return next < end ? next : end;
}

/* Whether a single row's h [top_k, width] is staged: EXPERT_DOWN keeps it in a GPU block's shared
 * memory, each slot in whole k-tiles, and a k-tile is a partial sum. Then h is not packed, so that
 * it can travel as pairs. EXPERT_STAGED: most columns of all k-tiles, beside which there is room
 * for the partial sums of a row block (expert_down.cuh). */
enum { EXPERT_STAGED = 13312 };
ABI_FN int expert_row_is_staged(uint64_t width, uint64_t top_k) {
    const uint64_t tiles = (width + PARTIAL_TILE - 1) / PARTIAL_TILE;
    return width % 4 == 0 && tiles <= PARTIALS && top_k * tiles * PARTIAL_TILE <= EXPERT_STAGED;
}

struct expert_item {
    uint32_t expert;
    uint32_t slot0, slot1; /* its slots */
    uint32_t row0, row1;   /* of its gate and up */
};

struct expert_walk {
    const int32_t *list;
    uint32_t n_experts, width; /* experts of the layer; rows of an expert's gate */
    uint32_t left;             /* rows of the list that are left */
    uint32_t placing;          /* enum expert_placing */
    uint64_t place;            /* of the first item of list[0] */
    uint64_t first, last;      /* places of the slice */
};

ABI_FN uint64_t expert_cost(const int32_t *entry, uint32_t placing) {
    return placing == EXPERT_STATIC
               ? 1
               : EXPERT_READ + (uint64_t)(entry[EXPERT_END] - entry[EXPERT_FIRST]);
}

ABI_FN uint32_t expert_blocks(uint32_t width) {
    return (width + EXPERT_BLOCK - 1) / EXPERT_BLOCK;
}

/* Slice s of n of a list of up to `rows` rows. */
ABI_FN struct expert_walk expert_walk_slice(const int32_t *list, uint32_t rows, uint32_t n_experts,
                                            uint32_t width, uint32_t placing, uint32_t s,
                                            uint32_t n) {
    struct expert_walk w = {list, n_experts, width, rows, placing, 0, 0, 0};
    const uint64_t blocks = expert_blocks(width);
    uint64_t total = 0;
    for (uint32_t i = 0; i < rows && list[i * EXPERT_WORDS] >= 0; i++)
        total += blocks * expert_cost(list + i * EXPERT_WORDS, placing);
    if (placing == EXPERT_STATIC) total = blocks * n_experts;
    w.first = total * s / n;
    w.last = total * (s + 1) / n;
    return w;
}

/* The first of `blocks` items that begins at or after `place`; `blocks`: none does. Items begin at
 * `start` and take `cost` places each. */
ABI_FN uint32_t expert_block_at(uint64_t place, uint64_t start, uint64_t cost, uint32_t blocks) {
    if (place <= start) return 0;
    const uint64_t block = (place - start + cost - 1) / cost;
    return block < blocks ? (uint32_t)block : blocks;
}

/* Sets *item to the slice's next items, all of one entry. Returns 0 if there are none. */
ABI_FN int expert_walk_next(struct expert_walk *w, struct expert_item *item) {
    const uint32_t blocks = expert_blocks(w->width);
    while (w->left > 0 && w->list[EXPERT_ID] >= 0) {
        const int32_t *entry = w->list;
        const uint64_t cost = expert_cost(entry, w->placing);
        if (w->placing == EXPERT_STATIC) w->place = (uint64_t)entry[EXPERT_ID] * blocks;
        const uint32_t b0 = expert_block_at(w->first, w->place, cost, blocks);
        const uint32_t b1 = expert_block_at(w->last, w->place, cost, blocks);
        w->place += cost * blocks;
        w->list += EXPERT_WORDS;
        w->left--;
        if (b0 >= b1) continue;
        const uint32_t end = b1 * EXPERT_BLOCK;
        item->expert = (uint32_t)entry[EXPERT_ID];
        item->slot0 = (uint32_t)entry[EXPERT_FIRST];
        item->slot1 = (uint32_t)entry[EXPERT_END];
        item->row0 = b0 * EXPERT_BLOCK;
        item->row1 = end < w->width ? end : w->width;
        return 1;
    }
    return 0;
}

#endif
