/* tile_ring.cuh - Hopper: how weights and activations pass through a lease (matmul_tile.cuh).
 *
 *   0           parked sums of tiles of up to 96 tokens
 *   + parked    slots of weights: [row block][step][512 bytes], some steps of 16 columns
 *   + weights   slots of activations: pieces of a stretch of rows, [group of eight][1 KB], 4 steps
 *   TILE_NORMS  1 / rms of the tile's tokens
 *
 * Tiles of 128 tokens need slots more than a place for parked sums. With such a place there were
 * three slots of weights, and products took 51,000 cycles, of which 15,000 were spent at the slots'
 * barriers. So these tiles park their sums in two slots of weights that they have used, one of two
 * pairs, and release the slots when their results are stored.
 *
 * Weights and activations have a ring each: few large copies need long slots of weights,
 * activations have more bytes per step, and weights may be requested before the task's event. Two
 * warps request them (tile_producer.cuh). packed_full says that a slot has arrived; with
 * packed_empty the compute warps say that they have used one.
 */
#ifndef QN_CUDA_MATMUL_TILE_RING_CUH
#define QN_CUDA_MATMUL_TILE_RING_CUH

#include "kernels/cuda/data/packed_layout.cuh"
#include "kernels/cuda/expert/grouped_tile.cuh"

/* A lease's memory: parked sums and both rings, then 1 / rms of a tile's tokens (matmul_tile.cuh).
 */
#define LEASE_BYTES (RING_BYTES + SCRATCH_BYTES)
#define TILE_BYTES  (LEASE_BYTES - 4 * PACK_TILE)
#define TILE_NORMS  ((float *)(shared_memory + TILE_BYTES))

enum {
    X_PARTS = CUDA_PAGE_K / CUDA_PACK_COLUMNS, /* slots of activations for a k-tile */
    MOST_BLOCKS = 16,                          /* most row blocks of a tile */
};

/* The rings of tiles of `blocks` row blocks and `tokens` tokens. */
struct ring_shape {
    uint32_t blocks, tokens;
    uint32_t w_steps;          /* steps in a slot of weights; a slot of activations: PIECE_STEPS */
    uint32_t w_bytes, x_bytes; /* bytes of a slot */
    uint32_t w_slots, x_slots;
    uint32_t w_at, x_at; /* offset of the first slot */
    uint32_t w_gap;      /* bytes after each pair of slots of weights: parked sums need more */
};

DEV constexpr uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Floats from a token's parked sums (matmul_tile.cuh) to the next token's, for an even number of
 * row blocks. With this pitch banks do not conflict: neither when products store sums of eight rows
 * and four pairs of tokens, nor when results read four floats each of eight tokens. */
DEV constexpr uint32_t tile_pitch(uint32_t blocks) {
    return blocks * CUDA_PAGE_ROWS + (HAS_WGMMA ? 4 : 0);
}

/* Whether a task's tiles are multiplied by wgmma, in the kernel itself. */
DEV bool tile_by_wgmma(const struct cuda_task *task) {
    return task->tile > PACK_NARROW && task->group < MOST_BLOCKS;
}

/* Whether tiles of `tokens` tokens park their sums in slots. */
DEV constexpr bool ring_parks(uint32_t tokens) {
    return tokens == PACK_TILE;
}

/* Whether a tile of so many row blocks has one partial sum: it is of LINEAR_SPLITK, which parks
 * nothing. */
DEV constexpr bool tile_has_one_sum(uint32_t blocks) {
    return blocks == MOST_BLOCKS;
}

DEV constexpr struct ring_shape ring_shape_of(uint32_t blocks, uint32_t tokens) {
    struct ring_shape s = {};
    const uint32_t parked = tile_has_one_sum(blocks) ? 0 : tile_pitch(blocks) * tokens * 4;
    s.blocks = blocks;
    s.tokens = tokens;
    s.w_steps = blocks > 8 ? 4 : blocks > 4 ? 8 : 16;
    s.w_bytes = blocks * s.w_steps * 512;
    s.x_bytes = tokens / PACK_ROWS * PACKED_PIECE;
    if (ring_parks(tokens)) {
        s.w_slots = 4;
        s.w_gap = parked - 2 * s.w_bytes;
    } else {
        const uint32_t x_least = 6, room = TILE_BYTES - parked;
        s.w_at = parked;
        s.w_slots = least((room - x_least * s.x_bytes) / s.w_bytes, MAX_W_SLOTS);
        s.w_slots = least((RING_BYTES - parked) / s.w_bytes, s.w_slots); /* see loader_open */
    }
    s.x_at = s.w_at + s.w_slots * s.w_bytes + s.w_slots / 2 * s.w_gap;
    s.x_slots = least((TILE_BYTES - s.x_at) / s.x_bytes, MAX_X_SLOTS);
    return s;
}

#if HAS_WGMMA
constexpr struct ring_shape WGMMA_RING = ring_shape_of(8, PACK_TILE);
static_assert(CUDA_PAGE_K / 16 == 2 * WGMMA_RING.w_steps, "a k-tile is a pair of slots");
static_assert(tile_pitch(8) * PACK_TILE * 4 >= 2 * WGMMA_RING.w_bytes, "a tile parks in a pair");
static_assert(WGMMA_RING.x_at <= RING_BYTES, "loader_open");
#endif

/* The offset of a slot of weights. */
DEV uint32_t ring_w_at(const struct ring_shape *s, uint32_t slot) {
    return s->w_at + slot * s->w_bytes + slot / 2 * s->w_gap;
}

/* The rings of a task, by its cuda_task.group and .tile. They are constants. */
template <int TOKENS> DEV struct ring_shape ring_shape_by(uint32_t group) {
    switch (group) {
    case 16: return ring_shape_of(16, TOKENS);
    case 12: return ring_shape_of(12, TOKENS);
    case 8: return ring_shape_of(8, TOKENS);
    case 4: return ring_shape_of(4, TOKENS);
    default: return ring_shape_of(2, TOKENS);
    }
}
DEV struct ring_shape ring_shape_for(const struct cuda_task *task) {
    switch (task->tile) {
    case PACK_TILE: return ring_shape_of(8, PACK_TILE);
    case PACK_WIDE: return ring_shape_of(task->group == 16 ? 16 : 12, PACK_WIDE);
    case PACK_NARROW: return ring_shape_by<PACK_NARROW>(task->group);
    default: return ring_shape_by<PACK_NARROW / 2>(task->group);
    }
}

/* One thread calls it: weights of the next lease may be requested from now on. */
DEV void lease_opens(void) {
    if (!HAS_WGMMA || shared_load_acquire_cta(&SHARED->lease) != LEASE_READY) return;
    SHARED->lease = LEASE_OPEN;
    barrier_arrive_release_cta(&SHARED->lease_open);
}

/* ---- tiles in the direction of weight rows ---- */

/* The row blocks of LINEAR_SPLITK are those of the first partial sum, then those of the second, and
 * so on. A tile has one partial sum. */
struct row_tile {
    uint32_t block, end;           /* row blocks of the task */
    uint32_t image;                /* number of the first one in the image of weights */
    uint32_t partial, partial_end; /* partial sums, numbered without those that have no k-tiles */
};

/* The tile of at most `blocks` row blocks that begins with row block `block`. */
DEV struct row_tile row_tile_at(const struct cuda_task *task, uint32_t block, uint32_t blocks) {
    struct row_tile t = {block, min(block + blocks, task->block1), block, 0,
                         partial_count(task->k_tiles)};
    if (task->kind != OP_LINEAR_SPLITK) return t;
    const uint32_t each = task->n_pieces;
    t.partial = block / each;
    t.partial_end = t.partial + 1;
    t.image = block - t.partial * each;
    t.end = min(t.end, t.partial_end * each);
    return t;
}

#if GROUPED_TILES
/* A grouped tile's row blocks: of its expert, and in the image of all experts. */
DEV struct row_tile row_tile_of(const struct grouped_walk *w, const struct grouped_tile *t,
                                uint32_t k_tiles) {
    return {t->block, grouped_end(w, t), t->expert * w->blocks + t->block, 0,
            partial_count(k_tiles)};
}
#endif

/* A tile's k-tiles, its partial sums and how many of them are the first half (0: they are added in
 * order) in one word: block_shared.packed[].sums. */
static_assert(SPEC_MAX_HIDDEN / CUDA_PAGE_K < 1 << 9, "k-tiles");
DEV uint32_t sums_half_of(const struct cuda_task *task) {
    const uint32_t half = partial_half(task->k_tiles);
    const bool halves = task->kind == OP_LINEAR || (GROUPED_TILES && task->kind == OP_GROUPED_DOWN);
    return halves && half < partial_count(task->k_tiles) ? half : 0;
}
DEV uint32_t sums_of(const struct cuda_task *task, const struct row_tile *t) {
    return task->k_tiles | t->partial << 9 | t->partial_end << 12 | sums_half_of(task) << 16;
}
DEV uint32_t sums_k_tiles(uint32_t sums) {
    return sums & 511;
}
DEV uint32_t sums_first(uint32_t sums) {
    return sums >> 9 & 7;
}
DEV uint32_t sums_end(uint32_t sums) {
    return sums >> 12 & 15;
}
DEV uint32_t sums_half(uint32_t sums) {
    return sums >> 16;
}
/* The number of k-tiles of the n-th partial sum. */
DEV uint32_t sums_length(uint32_t k_tiles, uint32_t n) {
    return k_tiles < PARTIALS ? 1 : partial_first(k_tiles, n + 1) - partial_first(k_tiles, n);
}

/* ---- a compute warp's view of the rings ---- */

struct ring_use {
    uint32_t w_slot, x_slot; /* the next slots to work on */
    uint32_t phase;          /* phases of all slots, a bit each: weights, then activations */
    uint32_t used; /* slots to release when their products are done, a bit for each barrier */
};

/* Between tiles the view lies in shared memory: products leave no register for it. */
DEV struct ring_use ring_load(const struct warp_context *c) {
    const uint32_t word = __shfl_sync(~0u, SHARED->packed[c->warp].ring, 0);
    return ring_use{word >> 24, word >> 16 & 255, word & 0xffff, 0};
}
DEV void ring_store(const struct warp_context *c, const struct ring_use *r) {
    if (c->lane == 0) SHARED->packed[c->warp].ring = r->w_slot << 24 | r->x_slot << 16 | r->phase;
    __syncwarp();
}

/* Waits for the slot of barrier number i. */
DEV void ring_wait(struct ring_use *r, uint32_t i) {
    barrier_await_acquire_cta(&SHARED->packed_full[i], r->phase >> i & 1);
    r->phase ^= 1u << i;
}

/* Releases the slots whose products are done. */
DEV void ring_give(const struct warp_context *c, struct ring_use *r) {
    if (r->used == 0) return;
    __syncwarp();
    if (c->lane < MAX_W_SLOTS + MAX_X_SLOTS && (r->used >> c->lane & 1) != 0)
        barrier_arrive_release_cta(&SHARED->packed_empty[c->lane]);
    r->used = 0;
}

/* Marks the current slot of weights (ring_use_x: of activations) as used. keep: it is not released
 * yet. */
DEV void ring_use_w(struct ring_use *r, const struct ring_shape *s, bool keep = false) {
    r->used |= keep ? 0 : 1u << r->w_slot;
    r->w_slot = r->w_slot + 1 == s->w_slots ? 0 : r->w_slot + 1;
}
DEV void ring_use_x(struct ring_use *r, const struct ring_shape *s) {
    r->used |= 1u << (MAX_W_SLOTS + r->x_slot);
    r->x_slot = r->x_slot + 1 == s->x_slots ? 0 : r->x_slot + 1;
}

/* The first of the two slots that a tile has used last and parks its sums in; slot `next` comes
 * after them. A tile uses an even number of slots, so the two are a pair. */
DEV uint32_t ring_parked(const struct ring_shape *s, uint32_t next) {
    return (next == 0 ? s->w_slots : next) - 2;
}

/* Releases the two slots: all warps are done with the parked sums. */
DEV void ring_give_parked(const struct warp_context *c, uint32_t first) {
    if (c->lane < 2) barrier_arrive_release_cta(&SHARED->packed_empty[first + c->lane]);
}

#endif
