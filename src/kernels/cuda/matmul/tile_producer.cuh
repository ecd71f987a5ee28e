/* tile_producer.cuh - Hopper: two warps request the operands of a task with a lease
 * (tile_ring.cuh), one its weights, one its activations.
 *
 * Weights are requested as soon as no page is in use. The loader says so, or a compute warp does,
 * if the block has another task before (loader_open). Activations are requested when the lease is
 * taken and control says that the task's event is activated. Both are requested in the order in
 * which the compute warps work. A lease without work is not announced, so neither warp can get two
 * announcements before it has looked: the compute warps need its copies in between.
 *
 * The rate of requests bounds how fast a block multiplies: a prompt of 2,048 tokens took 130 ms
 * when one thread of the loader made all requests, 103 with a warp for them, 94 with two (H200,
 * Qwen3-8B). One thread of each warp makes the requests, and the compiler knows it. A copy's
 * operands are in uniform registers, which a warp has once, so the compiler would make a loop over
 * several requesting lanes.
 */
#ifndef QN_CUDA_MATMUL_TILE_PRODUCER_CUH
#define QN_CUDA_MATMUL_TILE_PRODUCER_CUH

#include "kernels/cuda/matmul/linear.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

#if HAS_WGMMA

/* The task whose operands are requested. */
struct ask_task {
    const struct cuda_task *task;
    struct ring_shape shape;
    uint32_t block1, row0, end; /* row blocks, token rows */
    uint32_t k_tiles;
    uint32_t phase; /* phase of each slot's next use, a bit each */
    bool once; /* an iteration reads the weights once, because the tile has all rows of the graph
                * (false for 128 tokens, where it was not measured) */
#if GROUPED_TILES
    struct grouped_walk walk;
#endif
};

DEV struct ask_task ask_task_of(const struct cuda_task *task) {
    struct ask_task t = {};
    t.task = task;
    t.shape = ring_shape_for(task);
    t.block1 = task->block1;
    t.row0 = task->row0;
    t.end = min(task->row1, linear_rows(task));
    t.k_tiles = task->k_tiles;
    t.phase = SHARED->packed_phase;
#if GROUPED_TILES
    if (tile_is_grouped(task)) t.walk = grouped_walk_of(task);
#endif
    t.once =
        task->tile != PACK_TILE && ceil_div(task->row1 - task->row0, PACK_ROWS) == task->eights;
    return t;
}

/* A place in the order of work, of weights or of activations: tiles by weight rows, then by tokens;
 * in each tile the k-tiles of its partial sums, in order of K; in each k-tile its parts. */
struct ask_stream {
    const char *from; /* the next bytes to request */
    uint64_t base;    /* address of the operand */
    struct row_tile tile;
    uint32_t row, partial, part;
    uint32_t page, page_end; /* of weights' row blocks; activations have k-tiles in order of K */
    uint32_t page_step;      /* to the next page of the partial sum */
    uint32_t slot;           /* that the next bytes go to */
    uint32_t parts, next;    /* of a k-tile; bytes from one to the next */
    uint32_t block_next;     /* bytes from one row block to the next; activations: 0 */
    uint32_t eight_next;     /* ... from one eight of tokens; weights: 0 */
#if GROUPED_TILES
    uint32_t row_end;            /* of a grouped tile */
    struct grouped_tile grouped; /* the tile after this one: it is looked up while the task cannot
                                  * be done */
#endif
};

DEV void stream_find(struct ask_stream *s) {
    s->from = (const char *)s->base + (uint64_t)s->tile.image * s->block_next +
              (uint64_t)(s->page * s->parts) * s->next + s->row / PACK_ROWS * s->eight_next;
}

/* Goes to the pages of partial sum s->partial. Activations: goes to the pages of all of the tile's
 * partial sums, which follow each other. */
DEV void stream_partial(const struct ask_task *t, struct ask_stream *s) {
    const uint32_t p = partial_nth(t->k_tiles, s->partial);
    if (s->page_step != 1) {
        s->page = cuda_partial_turn(t->k_tiles, p);
        s->page_end = t->k_tiles;
        return;
    }
    s->page = partial_first(t->k_tiles, p);
    s->partial = s->tile.partial_end - 1;
    s->page_end = partial_first(t->k_tiles, partial_nth(t->k_tiles, s->partial) + 1);
}

/* Goes to the tile of these row blocks, if the task has them. Past the task's end the descriptor is
 * not read: the task may be done by now, and its descriptor's slot may hold another task. */
DEV void stream_enter(const struct ask_task *t, struct ask_stream *s, uint32_t block) {
    s->tile.block = block;
    if (block >= t->block1) return;
    s->tile = row_tile_at(t->task, block, t->shape.blocks);
    s->partial = s->tile.partial;
    s->row = t->row0;
    stream_partial(t, s);
    stream_find(s);
}

#if GROUPED_TILES
/* Goes to a grouped tile. */
DEV void stream_enter_grouped(const struct ask_task *t, struct ask_stream *s,
                              const struct grouped_tile *tile) {
    s->tile = row_tile_of(&t->walk, tile, t->k_tiles);
    s->partial = 0;
    s->row = tile->row;
    s->row_end = tile->slot1;
    s->grouped = grouped_next(&t->walk, tile);
    stream_partial(t, s);
    stream_find(s);
}
#endif

/* Goes to the next grouped tile, if the task has one. False: its tiles are not grouped. */
DEV bool stream_next_grouped(const struct ask_task *t, struct ask_stream *s) {
#if GROUPED_TILES
    if (t->walk.groups != 0) {
        const struct grouped_tile next = s->grouped;
        s->tile.block = t->block1;
        if (next.there) stream_enter_grouped(t, s, &next);
        return true;
    }
#endif
    (void)t, (void)s;
    return false;
}

/* The end of the tile's rows, if it has not as many as a tile can have. */
DEV uint32_t stream_row_end(const struct ask_task *t, const struct ask_stream *s) {
#if GROUPED_TILES
    if (t->walk.groups != 0) return s->row_end;
#endif
    (void)s;
    return t->end;
}

DEV struct ask_stream stream_of(const struct ask_task *t, uint64_t base, uint32_t page_step,
                                uint32_t parts, uint32_t next, uint32_t block_next,
                                uint32_t eight_next) {
    struct ask_stream s = {};
    s.base = base;
    s.page_step = page_step;
    s.parts = parts;
    s.next = next;
    s.block_next = block_next;
    s.eight_next = eight_next;
#if GROUPED_TILES
    if (t->walk.groups != 0) {
        const struct grouped_tile first = grouped_first(&t->walk);
        stream_enter_grouped(t, &s, &first);
        return s;
    }
#endif
    stream_enter(t, &s, t->task->block0);
    return s;
}

DEV void stream_step(const struct ask_task *t, struct ask_stream *s, uint32_t slots) {
    s->slot = s->slot + 1 == slots ? 0 : s->slot + 1;
    if (++s->part < s->parts) {
        s->from += s->next;
        return;
    }
    s->part = 0;
    s->page += s->page_step;
    if (s->page < s->page_end) {
        s->from += (s->page_step * s->parts - (s->parts - 1)) * s->next;
        return;
    }
    if (++s->partial == s->tile.partial_end) {
        if (stream_next_grouped(t, s)) return;
        s->partial = s->tile.partial;
        s->row += t->shape.tokens;
        if (s->row >= t->end) {
            stream_enter(t, s, s->tile.end);
            return;
        }
    }
    stream_partial(t, s);
    stream_find(s);
}

DEV bool stream_ends(const struct ask_task *t, const struct ask_stream *s) {
    return s->tile.block >= t->block1;
}

/* Waits until the slot of barrier number i is free, and makes its barrier expect `bytes` bytes.
 * Returns NULL if the compute warps have left. */
DEV uint64_t *ask_begin(struct ask_task *t, uint32_t i, uint32_t bytes) {
    uint64_t *full = &SHARED->packed_full[i];
    while (!barrier_try_acquire_cta(&SHARED->packed_empty[i], (t->phase >> i & 1) ^ 1))
        if (barrier_test_acquire_cta(&SHARED->quit, 0)) return nullptr;
    t->phase ^= 1u << i;
    copies_begin(full, bytes);
    return full;
}

/* Row blocks of a slot of weights that are not requested yet. */
struct ask_blocks {
    const char *from;
    char *to;
    uint32_t n;
};

/* Requests N row blocks, a copy each. A copy's operands are found while the copies before it are
 * issued, because there are no branches between them: eight copies take some 60 cycles by their
 * instructions, and took 130 each with a branch at each. */
template <int N, bool ONCE>
DEV void ask_some(const struct ask_stream *s, struct ask_blocks *b, uint64_t *full) {
#pragma unroll
    for (uint32_t i = 0; i < N; i++, b->from += s->block_next, b->to += s->next)
        if (ONCE)
            copies_one_evict_first(b->to, b->from, s->next, full);
        else
            copies_one(b->to, b->from, s->next, full);
    b->n -= N;
}

/* Requests a slot of weights: n row blocks. */
template <bool ONCE>
DEV void ask_slot(const struct ask_stream *s, char *to, uint32_t n, uint64_t *full) {
    struct ask_blocks b = {s->from, to, n};
#pragma unroll 1
    while (b.n >= 8) ask_some<8, ONCE>(s, &b, full);
    if (b.n >= 4) ask_some<4, ONCE>(s, &b, full);
    if (b.n >= 2) ask_some<2, ONCE>(s, &b, full);
    if (b.n >= 1) ask_some<1, ONCE>(s, &b, full);
}

DEV bool ask_weights(struct ask_task *t, struct ask_stream *s) {
    const uint32_t n = s->tile.end - s->tile.block;
    char *to = shared_memory + ring_w_at(&t->shape, s->slot);
    uint64_t *full = ask_begin(t, s->slot, n * s->next);
    if (full == nullptr) return false;
    if (t->once)
        ask_slot<true>(s, to, n, full);
    else
        ask_slot<false>(s, to, n, full);
    copies_end(full);
    stream_step(t, s, t->shape.w_slots);
    return true;
}

DEV bool ask_activations(struct ask_task *t, struct ask_stream *s) {
    const uint32_t rows = min(stream_row_end(t, s) - s->row, t->shape.tokens);
    const uint32_t bytes = ceil_div(rows, (uint32_t)PACK_ROWS) * PACKED_PIECE;
    uint64_t *full = ask_begin(t, MAX_W_SLOTS + s->slot, bytes);
    if (full == nullptr) return false;
    copies_one(shared_memory + t->shape.x_at + s->slot * t->shape.x_bytes, s->from, bytes, full);
    copies_end(full);
    stream_step(t, s, t->shape.x_slots);
    return true;
}

/* Waits until a lease is announced. False: the compute warps have left, which they say last. */
DEV bool ask_hear(uint64_t *told, uint32_t *parity) {
    while (!barrier_try_acquire_cta(told, *parity))
        if (barrier_test_acquire_cta(&SHARED->quit, 0) && !barrier_test_acquire_cta(told, *parity))
            return false;
    *parity ^= 1;
    return true;
}

/* Whether the event of the lease's task is activated. May sleep a while. */
DEV bool ask_is_ready(void) {
    const uint32_t ready = SHARED->leased_ready;
    return barrier_try_acquire_cta(&SHARED->go_ready[ready / 2], ready % 2);
}

/* Waits for that. False: the compute warps have left. */
DEV bool ask_wait(void) {
    while (!ask_is_ready())
        if (barrier_test_acquire_cta(&SHARED->quit, 0)) return false;
    return true;
}

/* Waits until a grouped task's list may be read: its lease is taken, and then its event is
 * activated. taken: the lease's phase, for which other leases do not wait here. False: the compute
 * warps have left. */
DEV bool ask_list(const struct cuda_task *task, uint32_t *taken) {
    if (!tile_is_grouped(task)) {
        *taken ^= 1;
        return true;
    }
    return ask_hear(&SHARED->lease_taken, taken) && ask_wait();
}

/* Requests the weights of each lease, as soon as lease_open allows it. */
DEV void ask_for_weights(void) {
    uint32_t opened = 0, taken = 0, n = 0;
    struct ask_task t = {};
    while (ask_hear(&SHARED->lease_open, &opened)) {
        const struct cuda_task *task = &SHARED->open;
        if (!ask_list(task, &taken)) break;
        t = ask_task_of(task);
        page_copy_fence_shared(); /* copies will write where other threads did */
        const uint32_t parts = CUDA_PAGE_K / 16 / t.shape.w_steps;
        struct ask_stream s = stream_of(&t, task->w, PARTIALS, parts, t.shape.w_steps * 512,
                                        task->k_tiles * CUDA_PAGE_BYTES, 0);
#pragma unroll 1
        for (n = 0; !stream_ends(&t, &s) && ask_weights(&t, &s);) n++;
    }
    /* No copy may land after the block ends: the last lease may have ended before its event. */
    for (uint32_t i = 0; i < min(n, t.shape.w_slots); i++)
        barrier_wait_acquire_cta(&SHARED->packed_full[i], (t.phase >> i & 1) ^ 1);
}

/* Requests the activations of each lease, as soon as the task's event is activated, which control
 * tells this warp as it tells the compute warps. All of them will be used. */
DEV void ask_for_activations(void) {
    uint32_t taken = 0;
    while (ask_hear(&SHARED->lease_taken, &taken)) {
        const struct cuda_task *task = &SHARED->task[SHARED->leased];
        struct ask_task t = ask_task_of(task);
        if (tile_is_grouped(task) && !ask_wait()) return; /* the list is there */
        struct ask_stream s =
            stream_of(&t, task->in, 1, X_PARTS, task->eights * PACKED_PIECE, 0, PACKED_PIECE);
        if (!ask_wait()) return;
        page_copy_fence(); /* what other blocks stored will be read by bulk copies */
        while (!stream_ends(&t, &s) && ask_activations(&t, &s)) continue;
    }
}

DEV void ask_main(bool weights) {
    if (!warp_elect()) return;
    if (weights)
        ask_for_weights();
    else
        ask_for_activations();
}

#else

DEV void ask_main(bool) {} /* the compute warps request operands */

#endif

#endif
