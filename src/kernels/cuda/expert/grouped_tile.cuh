/* grouped_tile.cuh - Hopper: the tiles of GROUPED_GATE_UP and GROUPED_DOWN.
 *
 * An entry of the list of experts (expert_list.cuh) touches at most EXPERT_STRETCH / PACK_ROWS
 * eights of slots: the tokens of a tile. Its tiles are these eights with each *group* of
 * GROUPED_BLOCKS row blocks of the expert; tiles of all entries have numbers, entry by entry. A
 * task has every n-th tile, n being the number of tasks, so that tasks which run side by side share
 * weights and rows in L2. A task without a tile multiplies the first one and stores nothing: the
 * warps that request operands must hear of each lease.
 *
 * The first and the last eight may have slots of other experts. These are multiplied, and not
 * stored.
 */
#ifndef QN_CUDA_EXPERT_GROUPED_TILE_CUH
#define QN_CUDA_EXPERT_GROUPED_TILE_CUH

#include "kernels/cuda/block/block.cuh"

#define GROUPED_TILES (QN_EXPERTS && HAS_WGMMA && QN_HAS_tile)

/* Whether a task's tiles follow a list of experts. */
DEV bool tile_is_grouped(const struct cuda_task *task) {
    return GROUPED_TILES && cuda_is_grouped(task->kind);
}

#if GROUPED_TILES

#include "kernels/cuda/expert/expert_list.cuh"

enum { GROUPED_BLOCKS = 8 };
static_assert(EXPERT_STRETCH == PACK_TILE, "an entry is the tokens of a tile");

/* The tiles of a task. */
struct grouped_walk {
    struct expert_list list;
    uint32_t first, step;    /* number of the first tile; to the next one */
    uint32_t blocks, groups; /* of an expert */
};

DEV struct grouped_walk grouped_walk_of(const struct cuda_task *task) {
    return {expert_list_of(task->bias, task->row1), task->unit0, task->unit1, task->block1,
            ceil_div(task->block1, (uint32_t)GROUPED_BLOCKS)};
}

/* A tile. */
struct grouped_tile {
    uint32_t number;
    uint32_t expert, block;     /* the first row block, of the expert's */
    uint32_t row, slot0, slot1; /* the first row, a multiple of PACK_ROWS; slots to store */
    bool there;                 /* the list has it */
};

/* Tile number n of all. The numbers of an entry are bounded: whatever the list says, a tile has one
 * slot at least, EXPERT_STRETCH rows at most, and all of them are the graph's. */
DEV struct grouped_tile grouped_tile_at(const struct grouped_walk *w, uint32_t n) {
    const uint32_t i = n / w->groups, last = w->list.n_slots - 1;
    const int32_t *at = w->list.at + (uint64_t)min(i, w->list.rows - 1) * EXPERT_WORDS;
    const int32_t expert = load_index_l2(at + EXPERT_ID);
    const uint32_t slot0 = min((uint32_t)load_index_l2(at + EXPERT_FIRST), last);
    const uint32_t slot1 = (uint32_t)load_index_l2(at + EXPERT_END);
    struct grouped_tile t;
    t.number = n;
    t.there = i < w->list.rows && expert >= 0;
    t.expert = min((uint32_t)max(expert, 0), (uint32_t)QN_EXPERTS - 1);
    t.block = n % w->groups * GROUPED_BLOCKS;
    t.row = slot0 / PACK_ROWS * PACK_ROWS;
    t.slot0 = slot0;
    t.slot1 = min(max(slot1, slot0 + 1), min(t.row + EXPERT_STRETCH, last + 1));
    return t;
}

/* The task's first tile; if it has none, the first of all, with `there` false. */
DEV struct grouped_tile grouped_first(const struct grouped_walk *w) {
    struct grouped_tile t = grouped_tile_at(w, w->first);
    if (t.there) return t;
    t = grouped_tile_at(w, 0);
    t.there = false;
    return t;
}

/* The tile after a tile of the task; `there` false: there is none. */
DEV struct grouped_tile grouped_next(const struct grouped_walk *w, const struct grouped_tile *t) {
    return t->there ? grouped_tile_at(w, t->number + w->step) : *t;
}

/* Between tiles a warp keeps a tile in two words. packed[].block has its number, and whether the
 * task has it; packed[].row has its first row, and its slots to store from there on. */
enum : uint32_t { GROUPED_VOID = 1u << 31 };
DEV uint32_t grouped_word(const struct grouped_tile *t) {
    return t->number | (t->there ? 0 : GROUPED_VOID);
}
/* The tile's first row block. */
DEV uint32_t grouped_block(const struct cuda_task *task, uint32_t word) {
    return (word & ~GROUPED_VOID) % ceil_div(task->block1, (uint32_t)GROUPED_BLOCKS) *
           GROUPED_BLOCKS;
}

DEV uint32_t grouped_rows_word(const struct grouped_tile *t) {
    return t->row / PACK_ROWS << 11 | (t->slot0 - t->row) << 8 | (t->slot1 - t->row);
}
/* Row 0 of the tile; its slots to store, [first, end) of its rows. */
struct grouped_rows {
    uint32_t row, first, end;
};
DEV struct grouped_rows grouped_rows_of(uint32_t word) {
    return {(word >> 11) * PACK_ROWS, word >> 8 & 7, word & 255};
}

DEV uint32_t grouped_end(const struct grouped_walk *w, const struct grouped_tile *t) {
    return min(t->block + GROUPED_BLOCKS, w->blocks);
}

#endif

#endif
