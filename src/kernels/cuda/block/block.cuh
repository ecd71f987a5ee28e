/* block.cuh - what one thread block of the mega-kernel is made of: warps, shared memory, context.
 *
 *   warps 0..7   compute: run task after task
 *   warp 8       loader: streams weight pages into the ring            (loader.cuh)
 *   warp 9       control: finds the next task, waits for its event     (control.cuh)
 *   warps 10, 11 Hopper: request the operands of tasks of many rows    (tile_producer.cuh)
 *
 * Dynamic shared memory, from its start:
 *
 *   0              ring: RING_PAGES pages of 8 KB; page slot s belongs to compute warp s % 8
 *   RING_BYTES     scratch of the running task: SCRATCH_BYTES
 *   + SCRATCH      struct block_shared: barriers, messages between the warps, task descriptors
 */
#ifndef QN_CUDA_BLOCK_BLOCK_CUH
#define QN_CUDA_BLOCK_BLOCK_CUH

#include "codegen/cuda_abi.h"
#include "kernels/cuda/order.cuh"
#include "kernels/cuda/ptx/barrier.cuh"
#include "kernels/cuda/ptx/memory.cuh"
#include "kernels/cuda/ptx/mma.cuh"
#include "kernels/cuda/ptx/page_copy.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

#define WARPS           CUDA_COMPUTE_WARPS
#define COMPUTE_THREADS (32 * WARPS)
#define LOADER_WARP     WARPS
#define CONTROL_WARP    (WARPS + 1)
#define ASK_WARP        (WARPS + 2) /* requests weights; the last warp requests activations */

/* A partial sum of a dot product (graph/partials.h) is one chain of tensor core steps. A compute
 * warp works on one partial sum at a time. */
static_assert(PARTIALS == WARPS, "the page of a step picks the warp");

#define SCRATCH_BYTES CUDA_SCRATCH_BYTES
#define CONTROL_BYTES CUDA_CONTROL_BYTES
#define SHARED_BYTES  cuda_shared_bytes(__CUDA_ARCH__ / 10)

/* Page slots per compute warp: as many as the rest of shared memory holds. 3 on sm_90 (192 KB). */
#define RING_DEPTH     ((SHARED_BYTES - SCRATCH_BYTES - CONTROL_BYTES) / (CUDA_PAGE_BYTES * WARPS))
#define RING_PAGES     (RING_DEPTH * WARPS)
#define RING_BYTES     (RING_PAGES * CUDA_PAGE_BYTES)
#define MAX_RING_PAGES 24

/* Page slots per compute warp that a task of ATTENTION leases for keys and values
 * (attention_mixed_parts.cuh). Weights of the next tasks may use the other slots. */
#define STEPS_DEPTH (RING_DEPTH < 2 ? RING_DEPTH : 2)

/* 0: one thread arrives for its warp or its block, after a barrier that all their threads have
 * reached; and the publication of an iteration says that all tasks of the last one are done.
 * 1: every thread arrives itself, and control waits for all of them. compute-sanitizer's racecheck
 * needs this: it follows an order through one barrier of the block, but not through two barriers
 * and not through other blocks. */
#ifndef QN_EACH_ARRIVES
#define QN_EACH_ARRIVES 0
#endif

enum {
    GO_DEPTH = 4,     /* tasks announced to the compute warps and not yet done */
    N_AOT_SLOTS = 6,  /* descriptors of AOT tasks: GO_DEPTH announced, two fetched ahead */
    N_TASK_SLOTS = 8, /* + JIT tasks */
    MAX_TILE = 16,    /* token rows whose 1 / rms the block keeps (matmul_stream.cuh) */
    MAX_STAGES = 8,   /* of a task of packed activations (matmul_tile_mma.cuh) */
    MAX_W_SLOTS = 5,  /* Hopper: slots of weights (tile_ring.cuh) */
    MAX_X_SLOTS = 8,  /* and of activations */
    PIECE_STEPS = CUDA_PACK_COLUMNS / 16, /* steps of 16 columns in packed activations' pieces */
    MAX_PLACES = CUDA_PLACES,             /* token rows whose place the block keeps */
    MAX_LOGIT_PLACES = 64,                /* logit rows */

    GO_DROP = 0x100, /* in place of a descriptor's slot: drop the pages of a wrong guess */
};

/* A token row of the iteration. */
struct row_place {
    uint32_t position_slot; /* position * PROG_MAX_SEQS + slot */
    uint32_t kv_row;        /* the row's place in every layer's cache: see kv_row() */
};
static_assert((uint64_t)SPEC_MAX_MODEL_LEN * PROG_MAX_SEQS <= 1ull << 32, "struct row_place");

/* The rest of attention's work list, from one item on (attention_items.cuh). */
struct attention_item {
    uint32_t left;             /* items, this one included */
    uint32_t row, slot;        /* token row, its slot */
    uint32_t lo, hi;           /* positions [lo, hi) that the row sees */
    uint32_t fresh;            /* the first position of the slot that this iteration writes */
    uint32_t piece, piece_end; /* the item's piece; the row's last piece + 1 */
    uint32_t head;             /* step of heads, below HEAD_STEPS */
    uint16_t kind;             /* of operator */
    uint16_t slides;           /* whether its layer has a window: see window_if */
};

/* The rest of attention's work list that two warps share (attention_mixed.cuh). */
struct steps_list {
    uint32_t item, last;
    uint32_t row, row_end; /* rows left of the item */
    uint16_t tokens;       /* of an item. A step has as many if they are of one request */
    uint16_t slides;       /* as attention_item's */
};

/* A step of that list. */
struct steps_found {
    uint16_t head, n_tokens; /* step of heads, below HEAD_STEPS; 0 tokens: no step */
    uint32_t row0;
    uint32_t lo, hi; /* positions that any of the rows sees */
    uint32_t fresh;  /* the only position that the iteration adds; ~0: there may be more */
};

/* The part of a warp's context that lasts from task to task. `place` packs page, turn and
 * ready_parity (8 bits each), n_drops (1 bit) and next (7 bits). */
struct warp_state {
    uint32_t place, message;
    uint64_t list_key; /* task and iteration of the list below: items_first, units_begin */
    union {            /* a task's first item; or its first step and the list after that */
        struct attention_item item;
        struct {
            struct steps_found found;
            struct steps_list list;
        } steps;
    };
    struct attention_item run; /* where the next run begins (attention_decode_long.cuh) */
};

/* State of the next lease. LEASE_READY: its weights may be requested, but warp 10 has not been
 * told. LEASE_OPEN: warp 10 has been told. */
enum { LEASE_READY = 1, LEASE_OPEN };

struct block_shared {
    struct cuda_task task[N_TASK_SLOTS];
    struct cuda_task open;
    struct warp_state warp[WARPS]; /* compute's own */
    struct cuda_args
        args; /* a copy: functions that are not inlined read the kernel's parameter through L2 */
    uint64_t page_full[MAX_RING_PAGES], page_empty[MAX_RING_PAGES];
    /* Element i % GO_DEPTH is for message i. go_full: its task is announced. go_ready: the task's
     * event is activated. go_empty: the compute warps are done with the message, and so is the
     * loader where it reads messages. */
    uint64_t go_full[GO_DEPTH], go_ready[GO_DEPTH], go_empty[GO_DEPTH];
    uint64_t drop_ready;
    uint64_t entered,
        left;      /* control -> loader: an iteration's rows are laid out; back: they are read */
    uint64_t stop; /* control -> compute: no message follows */
    uint64_t quit; /* compute -> loader, warps 10, 11: leave */
    /* For each stage; or for each slot of weights, then for each slot of activations. */
    uint64_t packed_full[MAX_W_SLOTS + MAX_X_SLOTS], packed_empty[MAX_W_SLOTS + MAX_X_SLOTS];
    uint64_t piece_full[2];  /* a piece of the context has arrived: attention_prefill.cuh */
    uint64_t piece_empty[2]; /* all compute warps are done with the piece */
    /* tile_producer.cuh. lease_open, loader or compute -> warp 10: warp 10 may request the weights
     * of the task `open`. lease_taken, compute -> warp 11: task `leased` holds the lease;
     * leased_ready is twice the index of the task's go_ready, plus the phase to wait for. */
    uint64_t lease_open, lease_taken;
    uint32_t lease; /* LEASE_* */
    uint32_t leased, leased_ready;
    uint32_t packed_phase; /* compute's own: phase of each stage's next use, a bit each */
    struct {
        uint64_t kv; /* the layer's cache */
        uint32_t slot, kv_head, hi;
        uint32_t phase;               /* of each piece_full's next use, a bit each */
    } pieces;                         /* compute's own: the context whose pieces are requested */
    uint32_t go[GO_DEPTH];            /* descriptor slot or GO_* */
    uint32_t watch[GO_DEPTH];         /* control's own: event to trigger when that task is done */
    uint32_t slot_free[N_TASK_SLOTS]; /* control's own: messages to be done before a slot is free */
    uint32_t tracing; /* control -> compute: records in a trace's ring; 0: record nothing */
    uint32_t flag;    /* control -> compute: the flag of this iteration's data; not 0 */
    uint64_t trace_ring, n_traced; /* compute's own: its ring, records so far */
    uint32_t published;     /* control -> loader: the iteration that runs, as rt_shared.published */
    uint32_t epoch;         /* ... and how often its variant has run: an event's goal */
    struct rt_batch batch;  /* a copy, with the numbers of rows of the running iteration */
    uint32_t drop[WARPS];   /* loader -> compute: pages that each warp drops, */
    uint32_t drop_turn;     /* and the warp that gets the next page */
    uint32_t last_position; /* control -> compute: the largest position in `place` */
    uint32_t decode_only;   /* control -> compute: no two token rows are of one request */
    /* control -> compute: the most pieces of a row's context, if each counts as one item
     * (attention_items.cuh) and no two rows are of one request; else 0xffff. [0]: layers without a
     * window, [1]: layers with one. */
    uint16_t pieces_most[2];
    union alignas(16) {          /* the running task's */
        float inv_rms[MAX_TILE]; /* several rows: 1 / rms of each */
        float warp_sum[WARPS];   /* one row: its sum of squares, in eight parts */
        struct {                 /* packed rows on Hopper: a warp's tile, its place in the rings */
            uint32_t block, row, ring, sums;
        } packed[WARPS];
    };
    alignas(16) struct row_place place[MAX_PLACES]; /* of the iteration's first token rows */
    uint16_t logit_row[MAX_LOGIT_PLACES];
    uint64_t control[28]; /* struct control: here, because local memory goes through L1, which
                             every acquire invalidates */
};
static_assert(sizeof(struct block_shared) <= CONTROL_BYTES, "shared memory map");

/* The parts of the dynamic shared memory, at constant addresses. */
#define RING    shared_memory
#define SCRATCH (shared_memory + RING_BYTES)
#define SHARED  ((struct block_shared *)(shared_memory + RING_BYTES + SCRATCH_BYTES))

/* One warp's view of its block. */
struct warp_context {
    const struct cuda_args *args;
    uint32_t warp, lane, thread;
    uint32_t page;    /* compute: pages taken so far modulo 2 * RING_DEPTH, names slot and parity */
    uint32_t turn;    /* compute: warp that gets the next page */
    uint32_t message; /* compute: number of the message that announced the task */
    uint32_t ready_parity; /* compute: bit i: phase of go_ready[i] */
    uint32_t n_drops;      /* compute: times that pages were dropped, modulo 2 */
    uint32_t next;         /* compute: FORM_* of the next message (mega.cuh) */
};

/* Builds the context inside a function that is not inlined: as an argument it would lie in memory.
 */
DEV struct warp_context context_of(const struct cuda_args *args, uint32_t thread, uint32_t page,
                                   uint32_t turn) {
    struct warp_context c;
    c.args = args;
    c.warp = thread / 32;
    c.lane = thread % 32;
    c.thread = thread;
    c.page = page;
    c.turn = turn;
    c.message = c.ready_parity = c.n_drops = c.next = 0;
    return c;
}

/* Between two tasks a compute warp's context lies in shared memory. Every kind of task is run by a
 * function that is not inlined (mega.cuh), whose caller would keep the context in local memory. */
DEV struct warp_context context_load(void) {
    ASSUME(threadIdx.x < COMPUTE_THREADS);
    struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const uint32_t place = SHARED->warp[c.warp].place;
    c.page = place & 255;
    c.turn = place >> 8 & 255;
    c.ready_parity = place >> 16 & 255;
    c.n_drops = place >> 24 & 1;
    c.message = SHARED->warp[c.warp].message;
    return c;
}
DEV void context_store(const struct warp_context *c) {
    struct warp_state *s = &SHARED->warp[c->warp];
    if (c->lane == 0) {
        s->place =
            c->page | c->turn << 8 | c->ready_parity << 16 | c->n_drops << 24 | c->next << 25;
        s->message = c->message;
    }
    __syncwarp();
}
DEV uint32_t context_next(void) {
    return SHARED->warp[thread_here() / 32].place >> 25;
}

DEV void sync_compute(void) {
    barrier_sync_compute<COMPUTE_THREADS>();
}

/* Slot and parity of a warp's page number `count` (modulo 2 * RING_DEPTH). */
DEV uint32_t page_slot(uint32_t warp, uint32_t count) {
    return warp + WARPS * (count >= RING_DEPTH ? count - RING_DEPTH : count);
}
DEV uint32_t page_parity(uint32_t count) {
    return count >= RING_DEPTH;
}
DEV uint32_t page_next(uint32_t count) {
    return count == 2 * RING_DEPTH - 1 ? 0 : count + 1;
}

/* The number of a warp's next page. Warps before c->turn have taken one page more than warp c->turn
 * and the warps after it. */
DEV uint32_t page_of_warp(const struct warp_context *c, uint32_t warp) {
    const bool more = warp < c->turn, own = c->warp < c->turn;
    if (more == own) return c->page;
    if (more) return page_next(c->page);
    return c->page == 0 ? 2 * RING_DEPTH - 1 : c->page - 1;
}

/* The n-th page after page number `count`; n < 2 * RING_DEPTH. */
DEV uint32_t page_after(uint32_t count, uint32_t n) {
    return count + n < 2 * RING_DEPTH ? count + n : count + n - 2 * RING_DEPTH;
}

/* The page in a slot. */
DEV const uint4 *page_at(uint32_t slot) {
    return (const uint4 *)(RING + slot * CUDA_PAGE_BYTES);
}

/* Waits for this warp's next page. Every lane may read it until page_release. */
DEV const uint4 *page_acquire(const struct warp_context *c) {
    uint32_t slot = page_slot(c->warp, c->page);
    barrier_wait_acquire_cta(&SHARED->page_full[slot], page_parity(c->page));
    return page_at(slot);
}

/* Waits for the page n < RING_DEPTH after the next one. Returns its slot. */
DEV uint32_t page_acquire_after(const struct warp_context *c, uint32_t n) {
    const uint32_t count = page_after(c->page, n);
    const uint32_t slot = page_slot(c->warp, count);
    barrier_wait_acquire_cta(&SHARED->page_full[slot], page_parity(count));
    return slot;
}

/* Releases a slot. The next bulk copy into the page writes through the async proxy. Only the fence
 * orders it after this warp's loads: an arrival does not wait for loads that are still outstanding.
 * Without the fence, iterations of Qwen3-8B now and then had other bits with 9 to 16 rows, whose
 * lanes load 64 words of activations each beside the pages (H100, H200). */
DEV void page_release_slot(const struct warp_context *c, uint32_t slot) {
    page_copy_fence_shared();
    __syncwarp();
    if (c->lane == 0 || QN_EACH_ARRIVES) barrier_arrive_release_cta(&SHARED->page_empty[slot]);
}
DEV void page_release(struct warp_context *c) {
    page_release_slot(c, page_slot(c->warp, c->page));
    c->page = page_next(c->page);
}

/* Whether control has stopped. */
DEV bool block_stops(void) {
    return barrier_test_acquire_cta(&SHARED->stop, 0);
}

/* Waits for an arrival of control. False: control stopped instead. Every warp gets the same answer:
 * control stops after its last arrival, and a warp that sees the stop tests the barrier once
 * more. */
DEV bool wait_control(const struct warp_context *c, uint64_t *barrier, uint32_t parity) {
    while (!barrier_try_acquire_cta(barrier, parity))
        if (block_stops()) return barrier_test_acquire_cta(barrier, parity);
    return true;
}

/* Every task waits here, once, for its event. Before that, it may only touch data that does not
 * change within an iteration. False: the launch ends. */
DEV bool wait_ready(struct warp_context *c) {
    uint32_t i = c->message % GO_DEPTH;
    bool ready = wait_control(c, &SHARED->go_ready[i], c->ready_parity >> i & 1);
    c->ready_parity ^= 1u << i;
    return ready;
}

/* The same for a task that does not wait for a hint (task/transport.c) but polls its data at once.
 * That saves the trip to L2 after the event. Only few blocks have such tasks, so their polls do not
 * delay other blocks. */
DEV bool wait_data(struct warp_context *c, const struct cuda_task *task) {
    if ((task->flags & CUDA_WAIT_HINT) == 0) return wait_ready(c);
    c->ready_parity ^= 1u << c->message % GO_DEPTH;
    return true;
}

/* The counter of the hint that a task sends, in thread 0; else NULL. Dependents poll the results
 * from the hint on, so a task sends it when it is about to store them: both arrive at the same
 * time. A task does not send its hint while warps wait for pages, because the polls would delay the
 * pages. This is called before the task's event, because it takes some trips to shared memory. */
DEV uint32_t *task_hint(const struct warp_context *c, const struct cuda_task *task) {
    if (c->thread != 0 || (task->flags & CUDA_TRIGGER_HINT) == 0) return nullptr;
    return rt_counter(&SHARED->args.rt, task->trigger);
}

/* Types of this program. F32 matrices are stored as bfloat16. */
#define WEIGHT_E (QN_WEIGHT_DTYPE == DTYPE_F16 ? E_F16 : E_BF16)
#define KV_E     (QN_KV_DTYPE == DTYPE_F16 ? E_F16 : E_BF16)
#define RMS_EPS  __uint_as_float(QN_RMS_EPS_BITS)

#endif
