/* packed_ask.cuh - Hopper: a warp of its own asks for what a leased task multiplies
 * (packed_ring.cuh).
 *
 * The compute warps tell it when the lease's memory is theirs, upon which it asks for the first
 * weights, and when the task's event is there, upon which it asks for all else in the order in
 * which they work. (Both may have happened before it looks: so these are two barriers.)
 *
 * Its instructions bound how fast a block multiplies: when one thread of the loader asked, tiles
 * ran at 260 TFLOP/s instead of 340 (H200, gated MLP of Qwen3-8B). So a lane asks for each row
 * block and one for the activations, all with the same instructions.
 */
#ifndef QN_CUDA_COMMON_PACKED_ASK_CUH
#define QN_CUDA_COMMON_PACKED_ASK_CUH

#include "kernels/cuda/common/linear.cuh"
#include "kernels/cuda/common/packed_ring.cuh"

#if HAS_WGMMA

/* What a lane asks for: the weights of row block `lane` of each tile, or the activations. Its place
 * in the order of work: tiles by weight rows, then by tokens; of each the k-tiles of partial sum 0,
 * of 1, ...; of each k-tile its parts. */
struct ask_stream {
    const char *from; /* what is there */
    uint64_t base;    /* address of the operand */
    uint32_t block, row, partial, k_tile, part;
    uint32_t to, slot, slots, slot_bytes; /* where it goes in the lease */
    uint32_t barrier;                     /* number of slot 0's */
    uint32_t parts, next;                 /* of a k-tile; bytes from one to the next */
    uint32_t row_next;                    /* bytes from one row block to the next; activations: 0 */
    bool weights, tells;                  /* expects the bytes of its slots */
};

/* The task. */
struct ask_task {
    uint32_t block1, row0, end; /* row blocks [.., block1), token rows [row0, end) */
    uint32_t k_tiles;
};

DEV void stream_find(struct ask_stream *s) {
    s->from = (const char *)s->base + (uint64_t)s->block * s->row_next +
              (uint64_t)(s->k_tile * s->parts) * s->next +
              (s->weights ? 0 : s->row / PACK_ROWS * PACKED_PIECE);
}

DEV struct ask_stream stream_of(const struct cuda_task *task, const struct ring_shape *r,
                                uint32_t lane) {
    struct ask_stream s = {};
    s.weights = lane < RING_BLOCKS;
    s.tells = lane == 0 || lane == RING_BLOCKS;
    s.base = s.weights ? task->w : task->in;
    s.block = task->block0 + (s.weights ? lane : 0);
    s.row = task->row0;
    s.to = s.weights ? r->w_at + lane * (RING_W_STEPS * 512) : r->x_at;
    s.slots = s.weights ? r->w_slots : r->x_slots;
    s.slot_bytes = s.weights ? r->w_bytes : r->x_bytes;
    s.barrier = s.weights ? 0 : MAX_W_SLOTS;
    s.parts = s.weights ? W_PARTS : X_PARTS;
    s.next = s.weights ? RING_W_STEPS * 512 : task->eights * PACKED_PIECE;
    s.row_next = s.weights ? task->k_tiles * CUDA_PAGE_BYTES : 0;
    stream_find(&s);
    return s;
}

DEV void stream_step(const struct ask_task *t, struct ask_stream *s) {
    s->slot = s->slot + 1 == s->slots ? 0 : s->slot + 1;
    if (++s->part < s->parts) {
        s->from += s->next;
        return;
    }
    s->part = 0;
    s->k_tile += PARTIALS;
    if (s->k_tile < t->k_tiles) {
        s->from += (PARTIALS * s->parts - (s->parts - 1)) * s->next;
        return;
    }
    s->k_tile = ++s->partial;
    if (s->partial == min(t->k_tiles, (uint32_t)PARTIALS)) {
        s->k_tile = s->partial = 0;
        s->row += (uint32_t)PACK_TILE;
        if (s->row >= t->end) {
            s->row = t->row0;
            s->block += RING_BLOCKS;
        }
    }
    stream_find(s);
}

/* Bytes of the lane's next copy, and of all that go to the same slot. */
DEV uint2 stream_bytes(const struct ask_task *t, const struct ask_stream *s) {
    constexpr uint32_t each = RING_W_STEPS * 512;
    if (s->weights)
        return make_uint2(s->block < t->block1 ? each : 0,
                          min(t->block1 - s->block, (uint32_t)RING_BLOCKS) * each);
    const uint32_t n =
        ceil_div(min(t->end - s->row, (uint32_t)PACK_TILE), (uint32_t)PACK_ROWS) * PACKED_PIECE;
    return make_uint2(n, n);
}

/* Lanes that are `asked` ask for their next slot, when it is free. phase: of the slots' next uses,
 * a bit each. All lanes. */
DEV void ask(const struct ask_task *t, struct ask_stream *s, bool asked, uint32_t *phase) {
    uint64_t *full = &SHARED->packed_full[s->barrier + s->slot];
    if (asked) {
        const uint2 bytes = stream_bytes(t, s);
        barrier_await_acquire_cta(&SHARED->packed_empty[s->barrier + s->slot],
                                  (*phase >> s->slot & 1) ^ 1);
        *phase ^= 1u << s->slot;
        if (s->tells) copies_begin(full, bytes.y);
        if (bytes.x != 0)
            copies_one(shared_memory + s->to + s->slot * s->slot_bytes, s->from, bytes.x, full);
    }
    __syncwarp();
    if (!asked) return;
    if (s->tells) copies_end(full);
    stream_step(t, s);
}

/* Waits for the compute warps; false: they have left. Every lane finds the same, since they tell
 * before they leave. */
DEV bool ask_hear(uint64_t *told, uint32_t *parity) {
    while (!barrier_try_acquire_cta(told, *parity))
        if (barrier_test_acquire_cta(&SHARED->quit, 0) && !barrier_test_acquire_cta(told, *parity))
            return false;
    *parity ^= 1;
    return true;
}

/* All that a task wants. False: the launch ends. */
DEV bool ask_all(const struct cuda_task *task, uint32_t lane, uint32_t *ready) {
    constexpr struct ring_shape r = ring_shape_of();
    const struct ask_task t = {task->block1, task->row0, min(task->row1, linear_rows(task)),
                               task->k_tiles};
    const uint32_t tiles = ceil_div(t.block1 - task->block0, RING_BLOCKS) *
                           ceil_div(t.end - t.row0, (uint32_t)PACK_TILE);
    const uint32_t n_weights = tiles * t.k_tiles * W_PARTS;
    struct ask_stream s = stream_of(task, &r, lane);
    uint32_t phase = SHARED->packed_phase >> s.barrier;
    uint32_t n_asked = 0; /* slots of weights */
    for (; n_asked < min(r.w_slots, n_weights); n_asked++) ask(&t, &s, s.weights, &phase);
    if (!ask_hear(&SHARED->lease_ready, ready)) {
        for (uint32_t i = 0; i < n_asked; i++) /* no copy may land after the block is gone */
            if (s.weights) barrier_wait_acquire_cta(&SHARED->packed_full[i], (phase >> i & 1) ^ 1);
        return false;
    }
    page_copy_fence(); /* what other blocks stored will be read by bulk copies */
#pragma unroll 1
    for (uint32_t n = 0; n < n_weights * RING_PER_W; n++) {
        const bool more =
            n % RING_PER_W == 0 && n_asked < n_weights && n_asked < n / RING_PER_W + 1 + r.lead;
        ask(&t, &s, s.weights ? more : lane == RING_BLOCKS, &phase);
        n_asked += more;
    }
    return true;
}

DEV void ask_main(uint32_t lane) {
    uint32_t taken = 0, ready = 0;
    while (ask_hear(&SHARED->lease_taken, &taken)) {
        const uint32_t leased = SHARED->leased;
        __syncwarp();
        if (leased != LEASE_IDLE && !ask_all(&SHARED->task[leased], lane, &ready)) return;
    }
}

#else

DEV void ask_main(uint32_t lane) { /* the compute warps ask */
    (void)lane;
}

#endif

#endif
