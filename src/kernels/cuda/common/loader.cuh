/* loader.cuh - the loader warp: streams the weight pages of this worker's AOT tasks, in the order in
 * which the compute warps will take them, as far ahead as the ring has room.
 *
 * Weights need no event. At most args->flight pages are requested and not yet here: more would
 * delay other blocks' critical pages without making memory any faster.
 *
 * When its list is done it may go on with the same list, on the guess that the next iteration runs
 * the same variant (`guessing`). If another variant is published, it tells the compute warps how
 * many pages each must drop.
 *
 * All lanes of the warp run this together.
 */
#ifndef QN_CUDA_COMMON_LOADER_CUH
#define QN_CUDA_COMMON_LOADER_CUH

#include "kernels/cuda/common/plan.cuh"

struct loader {
    struct warp_context c;
    uint32_t counts;     /* per compute warp, 4 bits: pages issued modulo 2 * RING_DEPTH */
    uint32_t guessed;    /* per compute warp, 4 bits: pages issued while guessing */
    uint64_t in_flight;  /* the last pages issued, 6 bits each: slot | parity << 5 */
    uint32_t n_issued;   /* up to CUDA_MAX_FLIGHT */
    uint32_t published;  /* iteration whose list it works on */
    bool guessing, quit, wrong;
};

DEV uint32_t nibble(uint32_t word, uint32_t i) { return word >> (4 * i) & 15; }

/* A word of shared memory as lane 0 sees it: the same for the whole warp. */
DEV uint32_t loader_read(const uint32_t *p) { return __shfl_sync(~0u, shared_load_volatile(p), 0); }

/* Takes note of a newly published iteration; decides a guess. */
DEV void loader_enter(struct loader *l, uint32_t published) {
    uint32_t mask = (1u << RT_VARIANT_BITS) - 1;
    l->wrong = l->guessing && (published & mask) != (l->published & mask);
    l->guessing = false;
    l->published = published;
    if (l->c.lane == 0) shared_store_volatile(&l->c.shared->seen, published);
}

/* Looks for news while waiting: told to leave, or the guess is decided. */
DEV void loader_look(struct loader *l) {
    if (loader_read(&l->c.shared->quit)) l->quit = true;
    if (!l->guessing) return;
    uint32_t published = loader_read(&l->c.shared->published);
    if (published != l->published) loader_enter(l, published);
}

/* Waits until the slot is free; false: something happened instead. */
DEV bool loader_wait_empty(struct loader *l, uint32_t slot, uint32_t parity) {
    uint64_t *empty = &l->c.shared->page_empty[slot];
    /* The first lap's wait is for the phase before the first, which counts as complete. */
    while (!__all_sync(~0u, barrier_test_acquire_cta(empty, parity ^ 1))) {
        loader_look(l);
        if (l->quit || l->wrong) return false;
    }
    return true;
}

/* Keeps at most `flight` pages under way. */
DEV void loader_wait_flight(struct loader *l) {
    uint32_t flight = l->c.args->flight;
    if (l->n_issued < flight) return;
    uint32_t oldest = (uint32_t)(l->in_flight >> (6 * (flight - 1))) & 63;
    barrier_wait_acquire_cta(&l->c.shared->page_full[oldest & 31], oldest >> 5);
    __syncwarp();
}

/* Requests one page for a compute warp. */
DEV bool loader_issue(struct loader *l, const char *src, uint32_t warp) {
    uint32_t count = nibble(l->counts, warp), slot = page_slot(warp, count);
    if (l->guessing) {
        loader_look(l);
        if (l->quit || l->wrong) return false;
    }
    if (!loader_wait_empty(l, slot, page_parity(count))) return false;
    loader_wait_flight(l);
    page_copy_evict_first(l->c.ring + slot * CUDA_PAGE_BYTES, src, CUDA_PAGE_BYTES,
                          &l->c.shared->page_full[slot], l->c.lane);
    l->in_flight = l->in_flight << 6 | slot | page_parity(count) << 5;
    l->n_issued = min(l->n_issued + 1, (uint32_t)CUDA_MAX_FLIGHT);
    l->counts += (page_next(count) - count) << (4 * warp);
    if (l->guessing) l->guessed += 1u << (4 * warp);
    return true;
}

/* One group of row blocks in the order of plan.cuh. */
DEV bool loader_group(struct loader *l, const struct linear_plan *p, const char *image,
                      uint32_t first, uint32_t end, uint32_t k_tiles) {
    uint32_t step = p->n_tiles8 == 0 ? k_tiles : PARTIALS;
    for (uint32_t k0 = 0; k0 < k_tiles; k0 += step)
        for (uint32_t b = first; b < end; b++) {
            uint32_t turn = p->n_tiles8 == 0 ? plan_turn(l->c.turn, (b - first) * k_tiles)
                                             : l->c.turn;
            const char *src = image + ((uint64_t)b * k_tiles + k0) * CUDA_PAGE_BYTES;
            for (uint32_t k = k0; k < min(k0 + step, k_tiles); k++, src += CUDA_PAGE_BYTES)
                if (!loader_issue(l, src, (turn + k) % WARPS)) return false;
        }
    l->c.turn = plan_turn(l->c.turn, (end - first) * k_tiles);
    return true;
}

/* What the loader needs to know of a task; lane i of the warp holds the i-th of 32. */
struct loader_task {
    const char *image;
    uint32_t kind, unit0, unit1, rows, k_tiles;
};

DEV struct loader_task loader_fetch(const struct loader *l, uint32_t index, uint32_t end) {
    struct loader_task t = {};
    if (index >= end) return t;
    const struct cuda_task *task = &l->c.args->tasks[l->c.args->rt.aot[index]];
    t.kind = task->kind;
    t.image = (const char *)task->w;
    t.unit0 = task->unit0;
    t.unit1 = task->unit1;
    t.rows = task->row1 - task->row0;
    t.k_tiles = task->k_tiles;
    return t;
}

DEV struct loader_task loader_broadcast(const struct loader_task *t, uint32_t lane) {
    struct loader_task r;
    r.image = (const char *)__shfl_sync(~0u, (uint64_t)t->image, lane);
    r.kind = __shfl_sync(~0u, t->kind, lane);
    r.unit0 = __shfl_sync(~0u, t->unit0, lane);
    r.unit1 = __shfl_sync(~0u, t->unit1, lane);
    r.rows = __shfl_sync(~0u, t->rows, lane);
    r.k_tiles = __shfl_sync(~0u, t->k_tiles, lane);
    return r;
}

DEV bool loader_task_pages(struct loader *l, const struct loader_task *t) {
    struct linear_plan p = plan_linear(t->kind, t->unit0, t->unit1, t->rows, t->k_tiles);
    for (uint32_t row = 0; row < t->rows; row += p.tile)
        for (uint32_t b = p.block0; b < p.block1;) {
            uint32_t end = plan_group_end(&p, b);
            if (!loader_group(l, &p, t->image, b, end, t->k_tiles)) return false;
            b = end;
        }
    return true;
}

/* The whole list of the published iteration's variant. */
DEV bool loader_list(struct loader *l) {
    const struct rt *rt = &l->c.args->rt;
    uint32_t variant = l->published & ((1u << RT_VARIANT_BITS) - 1);
    const struct prog_list list = rt->lists[variant * rt->n_workers + blockIdx.x];
    uint32_t end = list.first + list.n;
    struct loader_task next = loader_fetch(l, list.first + l->c.lane, end);
    for (uint32_t i = list.first; i < end; i += 32) {
        struct loader_task held = next;
        next = loader_fetch(l, i + 32 + l->c.lane, end);
        for (uint32_t k = 0; k < 32 && i + k < end; k++) {
            struct loader_task t = loader_broadcast(&held, k);
            if (kind_has_weights(t.kind) && !loader_task_pages(l, &t)) return false;
        }
    }
    return true;
}

/* Waits for the next iteration. */
DEV void loader_wait_iteration(struct loader *l) {
    uint32_t published = l->published;
    while (!l->quit && published == l->published) {
        pause_ns(20);
        l->quit = loader_read(&l->c.shared->quit) != 0;
        published = loader_read(&l->c.shared->published);
    }
    if (published != l->published) loader_enter(l, published);
}

/* A wrong guess: the pages that are under way belong to nobody. */
DEV void loader_drop(struct loader *l) {
    struct block_shared *s = l->c.shared;
    if (l->c.lane < WARPS) s->drop[l->c.lane] = nibble(l->guessed, l->c.lane);
    __syncwarp();
    if (l->c.lane == 0) barrier_arrive_release_cta(&s->drop_ready);
    l->wrong = false;
    l->guessed = 0;
    l->c.turn = 0;
}

/* No copy may land after the block is gone. */
DEV void loader_drain(struct loader *l) {
    uint32_t n = min(l->n_issued, l->c.args->flight);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = (uint32_t)(l->in_flight >> (6 * i)) & 63;
        barrier_wait_acquire_cta(&l->c.shared->page_full[page & 31], page >> 5);
    }
}

DEV void loader_main(const struct warp_context *context, uint32_t resume) {
    struct loader l = {};
    l.c = *context;
    l.published = resume;
    loader_wait_iteration(&l);
    while (!l.quit) {
        loader_list(&l);
        if (!l.quit && l.guessing && !l.wrong) loader_wait_iteration(&l);
        if (l.quit) break;
        if (l.wrong) {
            loader_drop(&l);
            continue;
        }
        /* What was streamed belongs to the published iteration. */
        l.guessed = 0;
        if (l.c.args->speculate)
            l.guessing = true;
        else
            loader_wait_iteration(&l);
    }
    loader_drain(&l);
}

#endif
