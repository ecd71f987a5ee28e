/* route.cuh - ROUTE: the experts of each token row, their weights, and the list of the experts that
 * some row has (graph/expert_list.h). One task. For many rows, as two operators: ROUTE_TOP_K, whose
 * tasks share out the rows, has the experts and weights; ROUTE_LIST, one task, has the list.
 *
 * A warp processes one row at a time; a lane holds the logits of experts lane, lane + 32, ... A
 * round finds the largest logit among those that are left, of equal ones that of the lower id. With
 * one row the list is the row's experts. With up to ROUTE_FEW rows, scratch gets a byte for each
 * row and expert: 1 if the row has the expert. After one barrier every warp adds up these bytes,
 * four experts in a word, so it knows all places. It stores some of the list's entries and the
 * slots of its rows.
 *
 * With more rows, and in ROUTE_LIST, each warp has a stretch of the rows, and a window in scratch
 * for the ids of some rows: ROUTE chooses them, ROUTE_LIST loads them. The warps count their rows'
 * experts, the counts become the places of each expert's slots, and the warps go through their rows
 * again. A warp whose stretch is longer than its window fills it again then.
 *
 * Scratch, few rows:   0   a row's experts [row][ROUTE_STRIDE] u8
 * Scratch, more rows:  0   first slot of an expert [QN_EXPERTS] u32
 *                      +   of the scan [2][WARPS] u32
 *                      +   an expert's slots [WARPS][ROUTE_PITCH] u16: how many the warp has; then
 *                          the place of its next one, from the expert's first slot on
 *                      +   windows [WARPS][ROUTE_WINDOW][QN_TOP_K] route_id
 */
#ifndef QN_CUDA_EXPERT_ROUTE_CUH
#define QN_CUDA_EXPERT_ROUTE_CUH

#include "kernels/cuda/data/kv.cuh"
#include "kernels/cuda/expert/expert_list.cuh"

#if QN_EXPERTS <= 256
typedef uint8_t route_id;
#else
typedef uint16_t route_id;
#endif

enum {
    ROUTE_EACH = (QN_EXPERTS + 31) / 32,       /* experts of a lane */
    ROUTE_STEP = QN_EXPERTS + QN_EXPERT_GATES, /* logits of a row */
    ROUTE_GROUP = QN_EXPERT_GROUPS != 0 ? QN_EXPERTS / (QN_EXPERT_GROUPS + !QN_EXPERT_GROUPS) : 0,

    /* More rows. */
    ROUTE_PITCH = (QN_EXPERTS + 1) / 2 * 2,
    ROUTE_FIXED_BYTES = QN_EXPERTS * 4 + 2 * WARPS * 4 + WARPS * ROUTE_PITCH * 2,
    ROUTE_ROW_BYTES = (int)sizeof(route_id) * QN_TOP_K,
    ROUTE_WINDOW = (SCRATCH_BYTES - ROUTE_FIXED_BYTES) / (WARPS * ROUTE_ROW_BYTES), /* rows */
    ROUTE_LISTED = 1 << 21, /* more than a list has entries; 1 << 11 is more than experts */
    ROUTE_LOADS = 16,       /* ids that a lane of ROUTE_LIST loads at once */
    ROUTE_AT_ONCE = 4,      /* ids of a lane whose slots are found at once */

    /* Few rows: a lane adds up ROUTE_OWN experts that follow each other, four to a word. */
    ROUTE_WORDS = (QN_EXPERTS + 127) / 128,
    ROUTE_OWN = 4 * ROUTE_WORDS,
    ROUTE_STRIDE = 32 * ROUTE_OWN,
    ROUTE_FEW = SCRATCH_BYTES / ROUTE_STRIDE < 32 ? SCRATCH_BYTES / ROUTE_STRIDE : 32, /* rows */
};
static_assert(ROUTE_FEW <= 255 && ROUTE_FEW * QN_EXPERTS < 1 << 16, "counts of few rows");
static_assert(ROUTE_FIXED_BYTES < SCRATCH_BYTES && ROUTE_WINDOW > 0, "scratch: CUDA_MOST_TOP_K");
static_assert(ROUTE_FEW + PACK_ROWS <= EXPERT_STRETCH, "few rows: an expert is one entry");

DEV uint32_t *route_first(void) {
    return (uint32_t *)SCRATCH;
}
DEV uint32_t *route_scan(uint32_t which) {
    return route_first() + QN_EXPERTS + which * WARPS;
}
DEV uint16_t *route_counts(uint32_t warp) {
    return (uint16_t *)(route_scan(2)) + warp * ROUTE_PITCH;
}
DEV route_id *route_window(uint32_t warp) {
    return (route_id *)route_counts(WARPS) + warp * (ROUTE_WINDOW * QN_TOP_K);
}
DEV uint8_t *route_marks(uint32_t row) {
    return (uint8_t *)SCRATCH + row * ROUTE_STRIDE;
}

/* ---- one row ---- */

/* A row's logits and experts. Bit i of a lane's `chosen` is expert lane + 32 i. */
struct route_row {
    float logit[ROUTE_EACH + QN_EXPERT_GATES]; /* the last one is the gate */
    float most;
    uint32_t chosen;
};

DEV bool route_is_expert(uint32_t i, uint32_t lane) {
    return lane + 32 * i < QN_EXPERTS;
}

/* Integers in the order of floats; 0 comes before all of them. NaN counts as the smallest float. */
DEV uint32_t route_key(float v) {
    const uint32_t bits = __float_as_uint(v + 0.0f);
    if (v != v) return 1;
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/* The float of a key. */
DEV float route_value(uint32_t key) {
    return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

DEV uint32_t route_lane_most(const uint32_t (&key)[ROUTE_EACH]) {
    uint32_t most = key[0];
#pragma unroll
    for (uint32_t i = 1; i < ROUTE_EACH; i++) most = max(most, key[i]);
    return most;
}

/* Takes out the largest key, of equal ones that of the lower id, by making it 0. Returns the
 * expert's bit in the lane that has the key, 0 in the others. */
DEV uint32_t route_take(uint32_t (&key)[ROUTE_EACH], uint32_t lane) {
    const uint32_t own = route_lane_most(key), most = __reduce_max_sync(~0u, own);
    uint32_t at = 0, lanes = __ballot_sync(~0u, own == most);
#pragma unroll
    for (uint32_t i = ROUTE_EACH; i-- > 0;)
        if (key[i] == most) at = i;
    if ((lanes & (lanes - 1)) != 0) {
        const uint32_t id = own == most ? lane + 32 * at : ~0u;
        lanes = __ballot_sync(~0u, id == __reduce_min_sync(~0u, id));
    }
    const uint32_t bit = (lanes >> lane & 1) << at;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++)
        if ((bit >> i & 1) != 0) key[i] = 0;
    return bit;
}

/* Keeps the keys of the groups with the largest logits, of equal ones the first group; the other
 * keys become 0. */
DEV void route_groups(uint32_t (&key)[ROUTE_EACH], uint32_t lane) {
    constexpr uint32_t EACH = ROUTE_GROUP > 0 ? ROUTE_GROUP : 1;
    uint32_t closed[ROUTE_EACH];
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) closed[i] = key[i];
#pragma unroll 1
    for (uint32_t k = 0; k < QN_EXPERT_TOP_GROUPS; k++) {
        const uint32_t bit = route_take(closed, lane);
        const uint32_t id = bit != 0 ? lane + 32 * __popc(bit - 1) : 0;
        const uint32_t group = __reduce_max_sync(~0u, id) / EACH;
#pragma unroll
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if ((lane + 32 * i) / EACH == group) closed[i] = 0;
    }
    /* A key left in `closed` is of a group that was not chosen. */
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++)
        if (closed[i] != 0) key[i] = 0;
}

/* A row's logits. */
DEV struct operand route_logits(const struct cuda_task *task, uint32_t row) {
    return operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED), (uint64_t)row * ROUTE_STEP);
}

/* Chooses a row's experts by its logits, once they are there. */
DEV struct route_row route_choose(struct operand logits, uint32_t lane) {
    struct route_row r;
    uint32_t at[ROUTE_EACH + QN_EXPERT_GATES], key[ROUTE_EACH];
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) at[i] = min(lane + 32 * i, (uint32_t)QN_EXPERTS - 1);
    if (QN_EXPERT_GATES != 0) at[ROUTE_EACH + QN_EXPERT_GATES - 1] = QN_EXPERTS;
    operand_load_all<ROUTE_EACH + QN_EXPERT_GATES>(logits, at, r.logit);
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++)
        key[i] = route_is_expert(i, lane) ? route_key(r.logit[i]) : 0;
    r.most = route_value(__reduce_max_sync(~0u, route_lane_most(key)));
    r.chosen = 0;
    if (QN_EXPERT_GROUPS != 0) route_groups(key, lane);
#pragma unroll 1
    for (uint32_t k = 0; k < QN_TOP_K; k++) r.chosen |= route_take(key, lane);
    return r;
}

/* Places of the lane's chosen experts among the row's, by ascending id. */
DEV void route_ranks(uint32_t chosen, uint32_t lane, uint32_t (&at)[ROUTE_EACH]) {
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const uint32_t lanes = __ballot_sync(~0u, (chosen >> i & 1) != 0);
        at[i] = before + __popc(lanes & ((1u << lane) - 1));
        before += __popc(lanes);
    }
}

/* The place of the n-th of a word's bits that are set, from 0; n is less than their number. */
DEV uint32_t route_nth_bit(uint32_t word, uint32_t n) {
    uint32_t at = 0;
#pragma unroll
    for (uint32_t width = 16; width > 0; width /= 2) {
        const uint32_t below = __popc(word >> at & ((1u << width) - 1));
        if (n < below) continue;
        n -= below;
        at += width;
    }
    return at;
}

/* A row's n-th expert by ascending id, from 0. Each lane may ask for another one. */
DEV uint32_t route_nth(uint32_t chosen, uint32_t n) {
    uint32_t word = 0, first = 0, before = 0, end = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const uint32_t lanes = __ballot_sync(~0u, (chosen >> i & 1) != 0);
        const bool in = n >= end && n < end + __popc(lanes);
        word = in ? lanes : word;
        first = in ? 32 * i : first;
        before = in ? end : before;
        end += __popc(lanes);
    }
    return first + route_nth_bit(word, n - before);
}

/* Where a row's ids are kept (rt_batch.routes); NULL: nowhere. */
DEV uint16_t *route_ids_at(const struct cuda_task *task, uint32_t row) {
    const struct rt_batch *b = &SHARED->batch;
    if (b->routes == nullptr) return nullptr;
    const uint64_t at =
        (uint64_t)row_slot(SHARED, row) * b->max_model_len + row_position(SHARED, row);
    return b->routes + at * b->route_stride + task->n_pieces * QN_TOP_K;
}

/* Stores a row's weights by ascending id, and its gate; keeps its ids. */
DEV void route_weigh(const struct cuda_task *task, const struct route_row *r, uint32_t row,
                     uint32_t lane) {
    float *weight = (float *)task->more + (uint64_t)row * (QN_TOP_K + QN_EXPERT_GATES);
    float all = 0, own = 0, p[ROUTE_EACH];
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        p[i] = route_is_expert(i, lane) ? exp_fast(r->logit[i] - r->most) : 0;
        all += p[i];
        own += (r->chosen >> i & 1) != 0 ? p[i] : 0;
    }
    const float sum = warp_sum(QN_EXPERT_NORMED ? own : all);
    const float scale = reciprocal_fast(sum) * __uint_as_float(QN_EXPERT_SCALE_BITS);
    uint16_t *ids = route_ids_at(task, row);
    uint32_t at[ROUTE_EACH];
    route_ranks(r->chosen, lane, at);
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        const bool has = (r->chosen >> i & 1) != 0;
        if (has) store_plain(weight + at[i], p[i] * scale);
        if (has && ids != nullptr) ids[at[i]] = (uint16_t)(lane + 32 * i);
    }
    if (QN_EXPERT_GATES != 0 && lane == 0) {
        const float gate = r->logit[ROUTE_EACH + QN_EXPERT_GATES - 1];
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

/* Marks the entries from number n on as unused. */
DEV void route_end(const struct cuda_task *task, uint32_t n, uint32_t from, uint32_t step) {
    const uint32_t most = (uint32_t)expert_list_rows(task->k, QN_EXPERTS, QN_TOP_K);
    for (uint32_t i = n + from; i < most; i += step)
        store_word((uint32_t *)task->out + (uint64_t)i * EXPERT_WORDS + EXPERT_ID, ~0u);
}

/* Counts the experts that a steady iteration reads. Called by one thread. */
DEV void route_note_reads(uint32_t n) {
    if (SHARED->batch.rows.steady == 0) return;
    add64_relaxed_gpu(&SHARED->batch.reads->experts, n);
    add64_relaxed_gpu(&SHARED->batch.reads->layers, 1);
}

/* A single row: its experts are the list. Two warps choose them: warp 0 stores the list, warp 1 the
 * weights. */
DEV void route_single(const struct warp_context *c, const struct cuda_task *task) {
    const struct route_row r = route_choose(route_logits(task, 0), c->lane);
    if (c->warp == 1) {
        route_weigh(task, &r, 0, c->lane);
        return;
    }
    uint32_t at[ROUTE_EACH];
    route_ranks(r.chosen, c->lane, at);
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_EACH; i++) {
        if ((r.chosen >> i & 1) == 0) continue;
        route_put(task, at[i], c->lane + 32 * i, at[i], at[i] + 1);
        store_word((uint32_t *)task->out2 + at[i], at[i]);
    }
    route_end(task, QN_TOP_K, c->lane, 32);
    if (c->lane == 0) route_note_reads(QN_TOP_K);
}

/* ---- few rows ---- */

/* A byte for each of the lane's ROUTE_OWN experts, which follow each other; four bytes to a
 * word. */
struct route_own {
    uint32_t of[ROUTE_WORDS];
};

DEV uint32_t route_own_of(const struct route_own *own, uint32_t q) {
    return own->of[q / 4] >> 8 * (q % 4) & 255;
}

/* Stores a row's experts in scratch, for all warps. */
DEV void route_mark(const struct route_row *r, uint32_t row, uint32_t lane) {
#pragma unroll
    for (uint32_t i = 0; i < ROUTE_OWN; i++)
        route_marks(row)[lane + 32 * i] = i < ROUTE_EACH ? r->chosen >> i & 1 : 0;
}

/* A row's bytes of the lane's own experts. */
DEV struct route_own route_marked(uint32_t row, uint32_t lane) {
    struct route_own own;
#pragma unroll
    for (uint32_t k = 0; k < ROUTE_WORDS; k++)
        own.of[k] = *((const uint32_t *)route_marks(row) + lane * ROUTE_WORDS + k);
    return own;
}

DEV void route_add(struct route_own *to, struct route_own from) {
#pragma unroll
    for (uint32_t k = 0; k < ROUTE_WORDS; k++) to->of[k] += from.of[k];
}

/* First slots of the lane's own experts, from the counts of all experts. Every warp computes them;
 * each warp stores some entries of the list. Returns how many experts are listed. */
DEV uint32_t route_few_list(const struct warp_context *c, const struct cuda_task *task,
                            const struct route_own *count, uint32_t (&first)[ROUTE_OWN]) {
    uint32_t mine = 0, all; /* listed experts in the upper half, slots in the lower one */
#pragma unroll
    for (uint32_t q = 0; q < ROUTE_OWN; q++) {
        const uint32_t n = route_own_of(count, q);
        mine += n + (n > 0 ? 1u << 16 : 0);
    }
    const uint32_t before = warp_sum_before(mine, c->lane, &all);
    uint32_t slot = before & 0xffff, at = before >> 16;
#pragma unroll
    for (uint32_t q = 0; q < ROUTE_OWN; q++) {
        const uint32_t n = route_own_of(count, q);
        first[q] = slot;
        if (n > 0 && q % WARPS == c->warp)
            route_put(task, at, c->lane * ROUTE_OWN + q, slot, slot + n);
        slot += n;
        at += n > 0;
    }
    return all >> 16;
}

/* Stores for each slot of a row its place: row * QN_TOP_K + i for the row's i-th expert. first: an
 * expert's first slot. before: an expert's slots of earlier rows. */
DEV void route_few_slots(const struct cuda_task *task, const uint32_t (&first)[ROUTE_OWN],
                         const struct route_own *before, uint32_t row, uint32_t lane) {
    const struct route_own own = route_marked(row, lane);
    uint32_t place = row * QN_TOP_K;
#pragma unroll
    for (uint32_t q = 0; q < ROUTE_OWN; q++) {
        const uint32_t lanes = __ballot_sync(~0u, route_own_of(&own, q) != 0);
        place += __popc(lanes & ((1u << lane) - 1));
    }
#pragma unroll
    for (uint32_t q = 0; q < ROUTE_OWN; q++) {
        if (route_own_of(&own, q) == 0) continue;
        store_word((uint32_t *)task->out2 + first[q] + route_own_of(before, q), place);
        place++;
    }
}

/* Up to ROUTE_FEW rows: warp w processes rows w, w + WARPS, ... */
DEV void route_few(const struct warp_context *c, const struct cuda_task *task, uint32_t n_rows) {
    struct route_own count = {}, before = {};
    uint32_t first[ROUTE_OWN];
#pragma unroll 1
    for (uint32_t row = c->warp; row < n_rows; row += WARPS) {
        const struct route_row r = route_choose(route_logits(task, row), c->lane);
        route_mark(&r, row, c->lane);
        route_weigh(task, &r, row, c->lane);
    }
    sync_compute();
#pragma unroll 4
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct route_own own = route_marked(row, c->lane);
        route_add(&count, own);
        if (row < c->warp) route_add(&before, own);
    }
    const uint32_t n = route_few_list(c, task, &count, first);
#pragma unroll 1
    for (uint32_t row = c->warp; row < n_rows;) {
        route_few_slots(task, first, &before, row, c->lane);
        const uint32_t next = row + WARPS;
        for (; row < min(next, n_rows); row++) route_add(&before, route_marked(row, c->lane));
    }
    route_end(task, n, c->thread, COMPUTE_THREADS);
    if (c->thread == 0) route_note_reads(n);
}

/* ---- more rows ---- */

/* Rows [row0, row1). */
struct route_rows {
    uint32_t row0, row1;
};

/* The warp's rows. */
DEV struct route_rows route_rows_of(uint32_t warp, uint32_t n_rows) {
    const uint32_t each = ceil_div(n_rows, WARPS), first = min(warp * each, n_rows);
    return {first, min(first + each, n_rows)};
}

/* As many of these rows as the warp's window has room for, from the first one on. */
DEV struct route_rows route_rows_in_window(struct route_rows rows) {
    return {rows.row0, min(rows.row0 + ROUTE_WINDOW, rows.row1)};
}

/* Chooses the experts of rows that fit the warp's window; on the first pass stores their weights.
 */
DEV void route_fill_chosen(const struct warp_context *c, const struct cuda_task *task,
                           struct route_rows rows, bool first_pass) {
    route_id *ids = route_window(c->warp);
#pragma unroll 1
    for (uint32_t row = rows.row0; row < rows.row1; row++, ids += QN_TOP_K) {
        const struct route_row r = route_choose(route_logits(task, row), c->lane);
        uint32_t at[ROUTE_EACH];
        route_ranks(r.chosen, c->lane, at);
#pragma unroll
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if ((r.chosen >> i & 1) != 0) ids[at[i]] = (route_id)(c->lane + 32 * i);
        if (first_pass) route_weigh(task, &r, row, c->lane);
    }
}

/* Loads the experts of rows that fit the warp's window. */
DEV void route_fill_loaded(const struct warp_context *c, const struct cuda_task *task,
                           struct route_rows rows) {
    const int32_t *from = (const int32_t *)task->in + (uint64_t)rows.row0 * QN_TOP_K;
    const uint32_t n = (rows.row1 - rows.row0) * QN_TOP_K;
#pragma unroll 1
    for (uint32_t first = c->lane; first - c->lane < n; first += 32 * ROUTE_LOADS) {
        uint32_t id[ROUTE_LOADS];
#pragma unroll
        for (uint32_t u = 0; u < ROUTE_LOADS; u++)
            id[u] = (uint32_t)load_index_l2(from + min(first + 32 * u, n - 1));
#pragma unroll
        for (uint32_t u = 0; u < ROUTE_LOADS; u++)
            if (first + 32 * u < n)
                route_window(c->warp)[first + 32 * u] =
                    (route_id)min(id[u], (uint32_t)QN_EXPERTS - 1);
    }
}

/* LOADS: ROUTE_LIST. */
template <bool LOADS>
DEV void route_fill(const struct warp_context *c, const struct cuda_task *task,
                    struct route_rows rows, bool first_pass) {
    if (LOADS)
        route_fill_loaded(c, task, rows);
    else
        route_fill_chosen(c, task, rows, first_pass);
    __syncwarp();
}

/* Counts the experts of the warp's rows. A word has the counts of two experts. */
template <bool LOADS>
DEV void route_count(const struct warp_context *c, const struct cuda_task *task,
                     struct route_rows rows) {
    uint32_t *counts = (uint32_t *)route_counts(c->warp);
    for (uint32_t i = c->lane; i < ROUTE_PITCH / 2; i += 32) counts[i] = 0;
#pragma unroll 1
    for (; rows.row0 < rows.row1; rows.row0 += ROUTE_WINDOW) {
        const struct route_rows here = route_rows_in_window(rows);
        route_fill<LOADS>(c, task, here, true);
#pragma unroll 4
        for (uint32_t i = c->lane; i < (here.row1 - here.row0) * QN_TOP_K; i += 32) {
            const uint32_t id = route_window(c->warp)[i];
            atomicAdd(counts + id / 2, id % 2 != 0 ? 1u << 16 : 1u);
        }
        __syncwarp(); /* the window is read */
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

/* Turns the warps' counts of an expert into places from its first slot on. Returns their sum. */
DEV uint32_t route_places(uint32_t expert) {
    uint32_t slots = 0;
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
        const uint32_t n = route_counts(w)[expert];
        route_counts(w)[expert] = (uint16_t)slots;
        slots += n;
    }
    return slots;
}

/* Turns counts into places, and stores the list; all compute threads take part. */
DEV void route_list(const struct warp_context *c, const struct cuda_task *task) {
    uint32_t n_slots = 0, n_entries = 0; /* n_entries: listed experts, too, from ROUTE_LISTED on */
#pragma unroll 1
    for (uint32_t first = 0; first < QN_EXPERTS; first += COMPUTE_THREADS) {
        const uint32_t e = first + c->thread;
        const uint32_t slots = e < QN_EXPERTS ? route_places(e) : 0;
        uint32_t all_slots, all_entries;
        uint32_t slot = n_slots + route_sum_before(c, 0, slots, &all_slots);
        const uint32_t end = slot + slots;
        const uint32_t entries =
            slots == 0 ? 0 : ROUTE_LISTED + ceil_div(slot % PACK_ROWS + slots, EXPERT_STRETCH);
        uint32_t at = (n_entries + route_sum_before(c, 1, entries, &all_entries)) % ROUTE_LISTED;
        if (e < QN_EXPERTS) route_first()[e] = slot;
        for (uint32_t next; slot < end; slot = next) {
            next = expert_entry_end(slot, end);
            route_put(task, at++, e, slot, next);
        }
        n_slots += all_slots;
        n_entries += all_entries;
        sync_compute(); /* the scan's words are read; the places are there */
    }
    route_end(task, n_entries % ROUTE_LISTED, c->thread, COMPUTE_THREADS);
    if (c->thread == 0) route_note_reads(n_entries / ROUTE_LISTED);
}

/* Stores the slot of row_place (row * QN_TOP_K + i), whose expert is `id`: the warp's next one of
 * this expert. peers: the lanes with the same expert, which get slots in order. */
DEV void route_place(const struct warp_context *c, const struct cuda_task *task, uint32_t id,
                     uint32_t peers, uint32_t row_place) {
    uint16_t *places = route_counts(c->warp);
    const bool has = id < QN_EXPERTS;
    const uint32_t before = peers & ((1u << c->lane) - 1);
    const uint32_t place = has ? places[id] : 0;
    __syncwarp();
    if (has && before == 0) places[id] = (uint16_t)(place + __popc(peers));
    if (has)
        store_word((uint32_t *)task->out2 + route_first()[id] + place + __popc(before), row_place);
    __syncwarp();
}

/* Stores the slots of the warp's rows. */
template <bool LOADS>
DEV void route_slots(const struct warp_context *c, const struct cuda_task *task,
                     struct route_rows rows) {
    const bool again = rows.row1 - rows.row0 > ROUTE_WINDOW;
#pragma unroll 1
    for (; rows.row0 < rows.row1; rows.row0 += ROUTE_WINDOW) {
        const struct route_rows here = route_rows_in_window(rows);
        const uint32_t n = (here.row1 - here.row0) * QN_TOP_K;
        if (again) route_fill<LOADS>(c, task, here, false);
#pragma unroll 1
        for (uint32_t first = c->lane; first - c->lane < n; first += 32 * ROUTE_AT_ONCE) {
            uint32_t id[ROUTE_AT_ONCE], peers[ROUTE_AT_ONCE];
#pragma unroll
            for (uint32_t u = 0; u < ROUTE_AT_ONCE; u++)
                id[u] = first + 32 * u < n ? route_window(c->warp)[first + 32 * u] : ~0u;
#pragma unroll
            for (uint32_t u = 0; u < ROUTE_AT_ONCE; u++) peers[u] = __match_any_sync(~0u, id[u]);
#pragma unroll
            for (uint32_t u = 0; u < ROUTE_AT_ONCE; u++)
                route_place(c, task, id[u], peers[u], here.row0 * QN_TOP_K + first + 32 * u);
        }
    }
}

/* The list and the slots of n_rows rows. */
template <bool LOADS>
DEV void route_more(const struct warp_context *c, const struct cuda_task *task, uint32_t n_rows) {
    const struct route_rows rows = route_rows_of(c->warp, n_rows);
    route_count<LOADS>(c, task, rows);
    sync_compute();
    route_list(c, task);
    route_slots<LOADS>(c, task, rows);
}

/* ---- the operators ---- */

DEV void run_route(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t n_rows = min(SHARED->batch.rows.n_rows, task->k);
    if (task->k == 1) {
        if (c->warp < 2) route_single(c, task);
        return;
    }
    if (n_rows <= ROUTE_FEW)
        route_few(c, task, n_rows);
    else
        route_more<false>(c, task, n_rows);
}

DEV void run_route_list(const struct warp_context *c, const struct cuda_task *task) {
    route_more<true>(c, task, min(SHARED->batch.rows.n_rows, task->k));
}

DEV void run_route_top_k(const struct warp_context *c, const struct cuda_task *task) {
    const uint32_t end = min(task->row1, SHARED->batch.rows.n_rows);
#pragma unroll 1
    for (uint32_t row = task->row0 + c->warp; row < end; row += WARPS) {
        const struct route_row r = route_choose(route_logits(task, row), c->lane);
        uint32_t *ids = (uint32_t *)task->out + (uint64_t)row * QN_TOP_K, at[ROUTE_EACH];
        route_ranks(r.chosen, c->lane, at);
#pragma unroll
        for (uint32_t i = 0; i < ROUTE_EACH; i++)
            if ((r.chosen >> i & 1) != 0) store_word(ids + at[i], c->lane + 32 * i);
        route_weigh(task, &r, row, c->lane);
    }
}

#endif
