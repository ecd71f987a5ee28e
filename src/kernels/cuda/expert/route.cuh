/* route.cuh - ROUTE: the experts of each token row, their weights, and the list of all that any row
 * has (graph/expert_list.h). One task.
 *
 * A warp has a row at a time, a lane its experts lane, lane + 32, ... A round finds the largest
 * logit among those that are left, of equal ones the lower id. With one row the list is the row's
 * experts. With more, each warp has a stretch of the rows: the warps count their rows' experts, the
 * counts become the places of each expert's slots, and the warps go through their rows again.
 *
 * Scratch:   0   first slot of an expert [QN_EXPERTS] u32
 *            +   of the scan [2][WARPS] u32
 *            +   an expert's slots [WARPS][QN_EXPERTS] u16: how many the warp has; then the place
 * of its next one, from the expert's first slot on
 *            +   experts of a row [row][QN_TOP_K] u16, of the first ROUTE_KEPT slots
 */
#ifndef QN_CUDA_EXPERT_ROUTE_CUH
#define QN_CUDA_EXPERT_ROUTE_CUH

#include "kernels/cuda/expert/expert_list.cuh"

enum {
    ROUTE_EACH = (QN_EXPERTS + 31) / 32, /* experts of a lane */
    ROUTE_GROUP = QN_EXPERT_GROUPS != 0 ? QN_EXPERTS / (QN_EXPERT_GROUPS + !QN_EXPERT_GROUPS) : 0,
    ROUTE_FIXED_BYTES = QN_EXPERTS * (4 + 2 * WARPS) + 2 * WARPS * 4,
    ROUTE_KEPT = (SCRATCH_BYTES - ROUTE_FIXED_BYTES) / 2, /* slots */
};
static_assert(ROUTE_FIXED_BYTES < SCRATCH_BYTES, "scratch");

DEV uint32_t *route_first(void) {
    return (uint32_t *)SCRATCH;
}
DEV uint32_t *route_scan(uint32_t which) {
    return route_first() + QN_EXPERTS + which * WARPS;
}
DEV uint16_t *route_counts(uint32_t warp) {
    return (uint16_t *)(route_scan(2)) + warp * QN_EXPERTS;
}
DEV uint16_t *route_kept(void) {
    return route_counts(WARPS);
}

/* ---- one row ---- */

/* Bits of a row's experts: bit i of a lane is expert lane + 32 i. */
struct route_row {
    float logit[ROUTE_EACH]; /* what is no number counts as the smallest */
    uint32_t left;           /* may still be chosen */
    uint32_t chosen;
};

/* Numbers in the order of floats; 0 comes before all of them. */
DEV uint32_t route_key(float v) {
    const uint32_t bits = __float_as_uint(v + 0.0f);
    if (v != v) return 1;
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The expert with the largest logit among the bits `of`, of equal ones the lower id; ~0: none. */
DEV uint32_t route_best(const struct route_row *r, uint32_t of, uint32_t lane) {
    uint32_t key = 0, best = ~0u;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const uint32_t k = route_key(r->logit[i]);
        if ((of >> i & 1) != 0 && k > key) {
            key = k;
            best = lane + 32 * i;
        }
    }
    return __reduce_min_sync(~0u, key == __reduce_max_sync(~0u, key) ? best : ~0u);
}

/* Leaves the groups with the largest logits, of equal ones the first. */
DEV void route_groups(struct route_row *r, uint32_t lane) {
    uint32_t closed = r->left;
    r->left = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < QN_EXPERT_TOP_GROUPS; k++) {
        const uint32_t group = route_best(r, closed, lane) / max((uint32_t)ROUTE_GROUP, 1u);
#pragma unroll
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if ((lane + 32 * i) / max((uint32_t)ROUTE_GROUP, 1u) == group)
                r->left |= closed & 1u << i;
        closed &= ~r->left;
    }
}

/* A row's logits. */
DEV struct operand route_logits(const struct cuda_task *task, uint32_t row) {
    return operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED),
                        (uint64_t)row * (QN_EXPERTS + QN_EXPERT_GATES));
}

/* A row's experts. */
DEV struct route_row route_choose(const struct cuda_task *task, uint32_t row, uint32_t lane) {
    struct route_row r;
    uint32_t at[ROUTE_EACH];
    r.left = r.chosen = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        at[i] = min(lane + 32 * i, (uint32_t)QN_EXPERTS - 1);
        r.left |= (lane + 32 * i < QN_EXPERTS) << i;
    }
    operand_load_all<ROUTE_EACH>(route_logits(task, row), at, r.logit);
    const uint32_t all = r.left;
    if (QN_EXPERT_GROUPS != 0) route_groups(&r, lane);
#pragma unroll 1
    for (uint32_t k = 0; k < QN_TOP_K; k++) {
        const uint32_t best = route_best(&r, r.left, lane);
        const uint32_t bit = best % 32 == lane ? 1u << best / 32 % 32 : 0;
        r.chosen |= bit;
        r.left &= ~bit;
    }
    r.left = all;
    return r;
}

DEV float route_warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

/* Stores a row's weights by ascending id, and its gate. */
DEV void route_weigh(const struct cuda_task *task, const struct route_row *r, uint32_t row,
                     uint32_t lane) {
    float *weight = (float *)task->more + (uint64_t)row * (QN_TOP_K + QN_EXPERT_GATES);
    float most = -INFINITY, all = 0, own = 0, p[ROUTE_EACH];
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++)
        if ((r->left >> i & 1) != 0) most = fmaxf(most, r->logit[i]);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        p[i] = (r->left >> i & 1) != 0 ? exp_fast(r->logit[i] - most) : 0;
        all += p[i];
        own += (r->chosen >> i & 1) != 0 ? p[i] : 0;
    }
    const float sum = route_warp_sum(QN_EXPERT_NORMED ? own : all);
    const float scale = reciprocal_fast(sum) * __uint_as_float(QN_EXPERT_SCALE_BITS);
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const bool has = (r->chosen >> i & 1) != 0;
        const uint32_t lanes = __ballot_sync(~0u, has);
        if (has) store_plain(weight + before + __popc(lanes & ((1u << lane) - 1)), p[i] * scale);
        before += __popc(lanes);
    }
    if (QN_EXPERT_GATES != 0 && lane == 0) {
        const struct operand logits = route_logits(task, row);
        const float gate = operand_await(logits, QN_EXPERTS, operand_ask(logits, QN_EXPERTS));
        store_plain(weight + QN_TOP_K, reciprocal_fast(1 + exp_fast(-gate)));
    }
}

/* ---- the list ---- */

DEV void route_put(const struct cuda_task *task, uint32_t at, uint32_t expert, uint32_t slot0,
                   uint32_t slot1) {
    uint32_t *entry = (uint32_t *)task->out + (uint64_t)at * EXPERT_WORDS;
    store_word(entry + EXPERT_ID, expert);
    store_word(entry + EXPERT_FIRST, slot0);
    store_word(entry + EXPERT_END, slot1);
}

/* Entries from number n on are none. */
DEV void route_end(const struct cuda_task *task, uint32_t n, uint32_t from, uint32_t step) {
    const uint32_t most = min((uint32_t)QN_EXPERTS, task->k * QN_TOP_K);
    for (uint32_t i = n + from; i < most; i += step)
        store_word((uint32_t *)task->out + (uint64_t)i * EXPERT_WORDS + EXPERT_ID, ~0u);
}

/* In an iteration that only decodes. By one thread. */
DEV void route_note_reads(uint32_t n) {
    if (SHARED->batch.rows.steady == 0) return;
    add64_relaxed_gpu(&SHARED->batch.reads->experts, n);
    add64_relaxed_gpu(&SHARED->batch.reads->layers, 1);
}

/* A single row: its experts are the list. By one warp. */
DEV void route_single(const struct warp_context *c, const struct cuda_task *task) {
    const struct route_row r = route_choose(task, 0, c->lane);
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const bool has = (r.chosen >> i & 1) != 0;
        const uint32_t lanes = __ballot_sync(~0u, has);
        const uint32_t at = before + __popc(lanes & ((1u << c->lane) - 1));
        if (has) {
            route_put(task, at, c->lane + 32 * i, at, at + 1);
            store_word((uint32_t *)task->out2 + at, at);
        }
        before += __popc(lanes);
    }
    route_weigh(task, &r, 0, c->lane);
    route_end(task, QN_TOP_K, c->lane, 32);
    if (c->lane == 0) route_note_reads(QN_TOP_K);
}

/* ---- several rows ---- */

/* The rows of a warp. */
struct route_stretch {
    uint32_t row0, row1;
};

DEV struct route_stretch route_stretch_of(uint32_t warp, uint32_t n_rows) {
    const uint32_t each = ceil_div(n_rows, WARPS), first = min(warp * each, n_rows);
    return {first, min(first + each, n_rows)};
}

/* Counts the experts of the warp's rows; keeps those of the first rows. A lane's experts are its
 * own. */
DEV void route_count(const struct warp_context *c, const struct cuda_task *task,
                     struct route_stretch rows) {
    uint16_t *counts = route_counts(c->warp);
    for (uint32_t e = c->lane; e < QN_EXPERTS; e += 32) counts[e] = 0;
#pragma unroll 1
    for (uint32_t row = rows.row0; row < rows.row1; row++) {
        const struct route_row r = route_choose(task, row, c->lane);
        uint32_t before = row * QN_TOP_K;
#pragma unroll
        for (uint32_t i = 0; i < ROUTE_EACH; i++) {
            const bool has = (r.chosen >> i & 1) != 0;
            const uint32_t lanes = __ballot_sync(~0u, has);
            const uint32_t at = before + __popc(lanes & ((1u << c->lane) - 1));
            if (has) counts[c->lane + 32 * i]++;
            if (has && at < ROUTE_KEPT) route_kept()[at] = (uint16_t)(c->lane + 32 * i);
            before += __popc(lanes);
        }
        route_weigh(task, &r, row, c->lane);
    }
}

/* The sums of v over the threads before this one and over all threads. */
DEV uint32_t route_sum_before(const struct warp_context *c, uint32_t which, uint32_t v,
                              uint32_t *all) {
    uint32_t of_warp, sum = warp_sum_before(v, c->lane, &of_warp);
    if (c->lane == 0) route_scan(which)[c->warp] = of_warp;
    sync_compute();
    *all = 0;
    for (uint32_t w = 0; w < WARPS; w++) {
        const uint32_t n = route_scan(which)[w];
        sum += w < c->warp ? n : 0;
        *all += n;
    }
    return sum;
}

/* Turns counts into places, and stores the list; all compute threads take part. Returns how many
 * experts are listed. */
DEV uint32_t route_list(const struct warp_context *c, const struct cuda_task *task) {
    uint32_t n_slots = 0, n_listed = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < QN_EXPERTS; first += COMPUTE_THREADS) {
        const uint32_t e = first + c->thread;
        uint32_t slots = 0, all_slots, all_listed;
        for (uint32_t w = 0; w < WARPS && e < QN_EXPERTS; w++) {
            const uint32_t n = route_counts(w)[e];
            route_counts(w)[e] = (uint16_t)slots;
            slots += n;
        }
        const uint32_t slot = n_slots + route_sum_before(c, 0, slots, &all_slots);
        const uint32_t at = n_listed + route_sum_before(c, 1, slots > 0, &all_listed);
        if (e < QN_EXPERTS) route_first()[e] = slot;
        if (slots > 0) route_put(task, at, e, slot, slot + slots);
        n_slots += all_slots;
        n_listed += all_listed;
        sync_compute(); /* the scan's words are read; the places are there */
    }
    return n_listed;
}

/* The next slot of an expert of the warp's is that place of a row's. */
DEV void route_place(const struct cuda_task *task, uint16_t *places, uint32_t expert,
                     uint32_t row_place) {
    const uint32_t slot = route_first()[expert] + places[expert]++;
    store_word((uint32_t *)task->out2 + slot, row_place);
}

/* Gives the slots their rows. */
DEV void route_slots(const struct warp_context *c, const struct cuda_task *task,
                     struct route_stretch rows) {
    uint16_t *places = route_counts(c->warp);
#pragma unroll 1
    for (uint32_t row = rows.row0; row < rows.row1; row++) {
        const uint32_t first = row * QN_TOP_K;
        if (first + QN_TOP_K <= ROUTE_KEPT) {
            for (uint32_t i = c->lane; i < QN_TOP_K; i += 32)
                route_place(task, places, route_kept()[first + i], first + i);
        } else {
            const struct route_row r = route_choose(task, row, c->lane);
            uint32_t before = first;
#pragma unroll
            for (uint32_t i = 0; i < ROUTE_EACH; i++) {
                const bool has = (r.chosen >> i & 1) != 0;
                const uint32_t lanes = __ballot_sync(~0u, has);
                if (has)
                    route_place(task, places, c->lane + 32 * i,
                                before + __popc(lanes & ((1u << c->lane) - 1)));
                before += __popc(lanes);
            }
        }
        __syncwarp(); /* another lane may have the expert in the next row */
    }
}

DEV void run_route(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t n_rows = min(SHARED->batch.rows.n_rows, task->k);
    if (task->k == 1) {
        if (c->warp == 0) route_single(c, task);
        return;
    }
    const struct route_stretch rows = route_stretch_of(c->warp, n_rows);
    route_count(c, task, rows);
    sync_compute();
    const uint32_t n = route_list(c, task);
    route_end(task, n, c->thread, COMPUTE_THREADS);
    if (c->thread == 0) route_note_reads(n);
    route_slots(c, task, rows);
}

#endif
