/* expert_gate_up.cuh - EXPERT_GATE_UP: a slice of the work list (expert_list.cuh), h[slot] =
 * silu(gate) * up of the slot's row and expert. Row blocks of the image have eight rows of gate and
 * eight of up.
 *
 * A row of x is read where it lies: the gather is an index in an operand's address. The row is
 * multiplied as 16-bit floats, and 1 / rms is applied after the dot products. The warps that load
 * a row add up its squares, in the same order in both forms:
 *
 *   row      one token row, in scratch: pages and partial sums are those of matvec.cuh
 *   gather   up to EXPERT_UP_PASS slots of an expert at a time, in columns of eight. A warp
 *            processes the k-tiles of one partial sum. It holds the rows of a *set* of up to
 *            EXPERT_SET slots in registers for all row blocks of a group; pages and partial sums
 *            are those of matmul_stream.cuh. With more slots, further sets are in pages of the ring
 *
 * Bytes per page of 8 KB: gather, 8 KB of activations a column from L2, for up to six row blocks,
 * or for all of a run where a row has at most eight k-tiles.
 *
 * Scratch, row:     0   the row, 16 bits, whole k-tiles
 *                   +   partial sums [row block of the group][16 rows][PARTIALS] F32
 *                 end   squares [half of a k-tile] F32
 * Scratch, gather:  0   partial sums [row block of the group][slot of the pass]
 *                       x STREAM_TOKEN_FLOATS
 *                   +   at UP_SUMS_BYTES: squares [slot of the pass][half of a k-tile] F32. With
 *                       several sets then 1 / rms of each slot, and behind them the place in
 *                       the slice
 */
#ifndef QN_CUDA_EXPERT_EXPERT_GATE_UP_CUH
#define QN_CUDA_EXPERT_EXPERT_GATE_UP_CUH

#include "kernels/cuda/expert/expert_list.cuh"
#include "kernels/cuda/expert/row_part.cuh"
#include "kernels/cuda/matmul/matmul_stream.cuh"
#include "kernels/cuda/matmul/matvec.cuh"

/* ---- results ---- */

/* Stores columns `column`, which is even, and column + 1 of a slot's h; beyond the width zeros.
 * Whole warps call it: lane r of eight has a column. */
DEV void up_store(const struct cuda_task *task, bool there, uint32_t slot, uint32_t column,
                  float h) {
    const float next = __shfl_down_sync(~0u, h, 1);
    if (there && column % 2 == 0 && column < QN_EXPERT_WIDTH)
        packed_store2(task, slot, column, h, next);
}

/* ---- one token row ---- */

enum {
    UP_ROW_BYTES = ROW_TILES * CUDA_PAGE_K * 2,
    UP_BLOCK_BYTES = PARTIALS * CUDA_PAGE_ROWS * 4,
    UP_ROOM = (SCRATCH_BYTES - UP_ROW_BYTES - ROW_HALVES * 4) / UP_BLOCK_BYTES,
    UP_ROW_GROUP = UP_ROOM < CUDA_ROW_GROUP ? UP_ROOM : CUDA_ROW_GROUP,
};
static_assert(QN_HIDDEN > STAGED_COLUMNS || UP_ROOM >= 1, "scratch");

DEV float *up_row_halves(void) {
    return (float *)(SCRATCH + SCRATCH_BYTES) - ROW_HALVES;
}

/* Stages in scratch the row, times the norm's weights, and the row's squares. */
DEV void up_row_stage(const struct warp_context *c, struct operand row, const float *norm) {
    constexpr uint32_t END = ROW_TILES * CUDA_PAGE_K / 4, STEP = STREAM_FOURS * COMPUTE_THREADS;
#pragma unroll 1
    for (uint32_t first = c->thread; first < END; first += STEP) {
        struct early scale;
        float4 v[STREAM_FOURS];
        early_norm(norm, first, &scale);
        operand_load_share<STREAM_FOURS>(row, first, QN_HIDDEN / 4, v);
#pragma unroll
        for (int u = 0; u < STREAM_FOURS; u++) {
            const uint32_t at = first + u * COMPUTE_THREADS;
            const float sum = half_squares(v[u]);
            if (at >= END) break;
            *(uint2 *)(row_activations() + 8 * at) = pack_scaled(v[u], scale.norm[u]);
            if (c->lane == 0) up_row_halves()[at / 32] = sum;
        }
    }
}

/* Stores a column of a slot's h: packed, in pairs or as it is. Whole warps call it, as above. */
DEV void up_row_store(const struct cuda_task *task, bool there, uint32_t slot, uint32_t column,
                      float h) {
    if (!EXPERT_ROW_IS_STAGED) {
        up_store(task, there, slot, column, h);
        return;
    }
    const uint32_t at = slot * QN_EXPERT_WIDTH + column;
    const float next = __shfl_down_sync(~0u, h, 1);
    if (!there || column >= QN_EXPERT_WIDTH) return;
    if ((task->flags & CUDA_OUT_PAIRED) == 0)
        ((float *)task->out)[at] = h;
    else if (column % 2 == 0)
        operand_store_pair(task, at, h, next);
}

/* Row blocks [first, end) of a run: all pages, then h of the run's slot. hint: NULL, or what to
 * send before h is stored. */
DEV void up_row_blocks(struct warp_context *c, const struct cuda_task *task,
                       const struct expert_run *run, uint32_t first, uint32_t end, uint32_t *hint) {
    const uint32_t n = (end - first) * ROW_TILES, next = row_rank(c);
    struct row_columns x;
    float sum[4];
    row_clear(sum);
    row_columns_load(c, row_k_tile<QN_HIDDEN>(next), &x);
    row_pages<QN_HIDDEN>(c, n, next, &x, sum);
    c->turn = turn_after(c->turn, n);
    sync_compute();
    if (hint != nullptr) add_relaxed_gpu(hint, 1);
    const uint32_t in_group = c->thread / 8, r = c->thread % 8;
    const bool there = first + in_group < end;
    float h = 0;
    if (there) {
        const float inv = halves_inverse_rms(up_row_halves());
        h = gated_value(row_sum<ROW_STREAM, QN_HIDDEN>(in_group, r) * inv,
                        row_sum<ROW_STREAM, QN_HIDDEN>(in_group, r + 8) * inv);
    }
    up_row_store(task, there, run->entry.slot0, (first + in_group) * 8 + r, h);
    sync_compute(); /* the sums are read */
}

/* The next row blocks of a single row's slice. The expert's number, which the loader needs, is
 * looked up only if items are placed by it. False: there are no more. */
DEV bool up_row_next(struct expert_slice *s, uint32_t lane, struct expert_run *run) {
    uint32_t entry;
    if (!EXPERT_IN_ORDER) return expert_slice_next(s, lane, run);
    if (!expert_even_next(&s->first, s->last, run, &entry)) return false;
    run->entry = {0, entry, entry + 1};
    return true;
}

/* Runs a task of one token row, which sends its hint before the last row blocks are stored, if it
 * knows that they are the last, else at its end. False: the launch ends. */
DEV bool up_run_row(struct warp_context *c, const struct cuda_task *task) {
    const struct operand x = operand_of(task->in, task, CUDA_IN_FLAGGED);
    uint32_t *hint = task_hint(c, task);
    struct expert_slice s =
        expert_slice_of(expert_list_of(task->bias, 1), task->unit0, task->unit1, c->lane);
    struct expert_run run;
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    bool more = up_row_next(&s, c->lane, &run);
    if (more) {
        up_row_stage(c, x, (const float *)task->norm);
        sync_compute();
    }
    for (; more; more = up_row_next(&s, c->lane, &run))
        for (uint32_t b = run.block0; b < run.block1; b += UP_ROW_GROUP) {
            const uint32_t end = min(b + UP_ROW_GROUP, run.block1);
            const bool last = EXPERT_IN_ORDER && s.first >= s.last && end == run.block1;
            up_row_blocks(c, task, &run, b, end, last ? hint : nullptr);
            if (last) hint = nullptr;
        }
    if (hint != nullptr) add_relaxed_gpu(hint, 1);
    return true;
}

/* ---- many token rows ---- */

enum {
    UP_SUMS_BYTES = 6 * PACK_ROWS * CUDA_STREAM_TOKEN_BYTES,
    UP_HALVES_BYTES = EXPERT_UP_PASS * ROW_HALVES * 4,
};
static_assert(UP_SUMS_BYTES + UP_HALVES_BYTES <= SCRATCH_BYTES &&
                  EXPERT_UP_PASS * CUDA_STREAM_TOKEN_BYTES <= UP_SUMS_BYTES,
              "scratch");

/* The squares of a slot of the pass, by halves of k-tiles. */
DEV float *up_halves(uint32_t slot) {
    return (float *)(SCRATCH + UP_SUMS_BYTES) + slot * ROW_HALVES;
}

/* The slots of a pass. */
struct up_pass {
    const struct cuda_task *task;
    uint32_t slot0, n;
    uint32_t turn; /* the warp's page of each step: its partial sum, by cuda_turn_partial */
};

/* The pass as functions of matmul_stream.cuh take it. */
DEV struct stream up_stream(const struct up_pass *p) {
    struct stream f;
    f.task = p->task;
    f.rows = nullptr;
    f.turn = p->turn;
    f.row0 = f.n = 0;
    return f;
}

/* The lane's rows of x: those of slot lane / 4 of each column of eight slots. */
template <int COLUMNS> struct up_rows { const float *at[COLUMNS]; };

template <int COLUMNS>
DEV struct up_rows<COLUMNS> up_rows_of(const struct warp_context *c, const struct up_pass *p) {
    const int32_t *slots = (const int32_t *)p->task->more2;
    struct up_rows<COLUMNS> rows;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const uint32_t slot = p->slot0 + min(c->lane / 4 + PACK_ROWS * i, p->n - 1);
        const uint32_t row = (uint32_t)load_index_l2(slots + slot) / QN_TOP_K;
        rows.at[i] = (const float *)p->task->in + (uint64_t)min(row, p->task->row1 - 1) * QN_HIDDEN;
    }
    return rows;
}

/* The B registers of the warp's k-tile in the step that begins with page k0, times the norm's
 * weights; stores the tile's squares. at: number of the rows' first slot in the pass. */
template <int COLUMNS>
DEV void up_gather(const struct warp_context *c, const struct up_pass *p,
                   const struct up_rows<COLUMNS> *rows, uint32_t at, uint32_t k0,
                   struct fragments<COLUMNS> *x) {
    const struct stream f = up_stream(p);
    const uint32_t k_tile = stream_k_tile<QN_HIDDEN>(&f, k0);
    const float *norm = (const float *)p->task->norm;
    const bool own = ROW_TILES % PARTIALS == 0 || k0 + p->turn < ROW_TILES;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const struct row_part tile = row_part_load(rows->at[i], k_tile, c->lane);
#pragma unroll
        for (uint32_t pair = 0; pair < ROW_PAIRS; pair++) {
            const uint32_t column = row_part_column(k_tile, c->lane, 2 * pair);
            const float4 *w = (const float4 *)(norm + (row_has(column) ? column : 0));
            const uint2 lo = pack_scaled(row_part_four(&tile, 2 * pair), __ldg(w));
            const uint2 hi = pack_scaled(row_part_four(&tile, 2 * pair + 1), __ldg(w + 1));
            x->of[i][pair] = make_uint4(lo.x, lo.y, hi.x, hi.y);
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float sum = row_part_squares(&tile, half);
            if (own && c->lane % 4 == 0)
                up_halves(at + c->lane / 4 + PACK_ROWS * i)[2 * k_tile + half] = sum;
        }
    }
}

/* Stores h of slot number `token` of the pass in row block `block`, column r of it, from the
 * partial sums. All lanes take part. */
DEV void up_result(const struct up_pass *p, const float *sums, uint32_t token, uint32_t block,
                   uint32_t r, float inv) {
    const float gate = stream_sum<OP_GATED_MLP, QN_HIDDEN>(sums, r) * inv;
    const float up = stream_sum<OP_GATED_MLP, QN_HIDDEN>(sums, r + 8) * inv;
    up_store(p->task, token < p->n, p->slot0 + token, block * 8 + r, gated_value(gate, up));
}

/* h of the pass's slots in row blocks [first, end) of a run, whose partial sums are in scratch. */
template <int COLUMNS>
DEV void up_results(const struct warp_context *c, const struct up_pass *p, uint32_t first,
                    uint32_t end) {
    constexpr uint32_t EACH = 2 * COLUMNS; /* warps for a row block */
    const uint32_t r = c->lane % 8;
    const uint32_t token = c->warp % EACH / 2 * PACK_ROWS + c->lane / 8 * 2 + c->warp % 2;
    const float inv = halves_inverse_rms(up_halves(token));
#pragma unroll 1
    for (uint32_t b = first + c->warp / EACH; b < end; b += WARPS / EACH)
        up_result(p, stream_sums<COLUMNS>(b - first, token), token, b, r, inv);
}

/* Row blocks [first, end) of a run for the slots of a pass, group by group. */
template <int COLUMNS, int GROUP>
DEV void up_pass_run(struct warp_context *c, const struct up_pass *p, uint32_t first,
                     uint32_t end) {
    const struct up_rows<COLUMNS> rows = up_rows_of<COLUMNS>(c, p);
    const struct stream f = up_stream(p);
    struct fragments<COLUMNS> x;
    if (ROW_TILES <= PARTIALS) up_gather<COLUMNS>(c, p, &rows, 0, 0, &x);
#pragma unroll 1
    for (uint32_t b = first; b < end; b += GROUP) {
        const uint32_t n = min((uint32_t)GROUP, end - b);
        struct stream_partials<GROUP, COLUMNS> sums = {};
#pragma unroll 1
        for (uint32_t k0 = 0; k0 < ROW_TILES; k0 += PARTIALS) {
            if (ROW_TILES > PARTIALS) up_gather<COLUMNS>(c, p, &rows, 0, k0, &x);
            stream_pages<QN_HIDDEN, GROUP, COLUMNS>(c, &f, k0, n, &x, &sums);
        }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            if (i < n) partials_put<GROUP, COLUMNS>(c, &f, i, &sums);
        sync_compute();
        up_results<COLUMNS>(c, p, b, b + n);
        sync_compute(); /* the sums are read */
    }
}

DEV void up_pass(struct warp_context *c, const struct up_pass *p, uint32_t first, uint32_t end) {
    if (p->n <= PACK_ROWS)
        up_pass_run<1, 6>(c, p, first, end);
    else
        up_pass_run<2, 2>(c, p, first, end);
}

/* ---- passes over several sets of slots ----
 *
 * A page of weights is loaded once for up to RING_DEPTH sets. A warp holds its k-tile of the first
 * set in registers, and of each further set in a page of the ring that it keeps: [column][two
 * steps][lane] 16 bytes, read by the lane that wrote them. The pages of weights come through the
 * warp's other page slots, row block by row block, in a long lap (loader.cuh). So the sets are
 * gathered once for a whole run.
 */

enum {
    UP_MOST_KEPT = RING_DEPTH < 3 ? 1 : 2, /* sets of a pass that are in pages */
    UP_COLUMNS = (1 + UP_MOST_KEPT) * EXPERT_COLUMNS,
};

/* A warp's place in a long lap. */
struct up_lap {
    uint32_t kept, depth; /* page slots of the warp that are kept; its others, a power of two */
    uint32_t at;          /* pages so far that came through the others */
};

/* Waits for the warp's next page in the lap. Returns its slot. */
DEV uint32_t up_lap_acquire(const struct warp_context *c, const struct up_lap *lap) {
    const uint32_t count = page_after(c->page, lap->kept + (lap->at & (lap->depth - 1)));
    const uint32_t slot = page_slot(c->warp, count);
    barrier_wait_acquire_cta(&SHARED->page_full[slot],
                             page_parity(count) ^ ((lap->at & lap->depth) != 0));
    return slot;
}

DEV void up_lap_release(const struct warp_context *c, struct up_lap *lap, uint32_t slot) {
    page_release_slot(c, slot);
    lap->at++;
}

/* Takes the void pages that follow n pages of weights, and releases the kept pages. */
DEV void up_lap_end(struct warp_context *c, struct up_lap *lap, uint32_t n) {
    for (uint32_t i = expert_padding(n, lap->depth); i > 0; i--)
        up_lap_release(c, lap, up_lap_acquire(c, lap));
    for (uint32_t i = 0; i < lap->kept; i++) page_release(c);
    c->page = page_after(c->page, lap->depth);
}

/* Where the lane's part of set number 1, 2 ... lies. Its vectors of 16 bytes are 32 vectors
 * apart. */
DEV uint4 *up_kept_set(const struct warp_context *c, uint32_t set) {
    const uint32_t slot = page_slot(c->warp, page_after(c->page, set - 1));
    return (uint4 *)(RING + slot * CUDA_PAGE_BYTES) + c->lane;
}

/* Gathers all sets of a pass: the others into their pages, then the first one into x. */
DEV void up_gather_sets(const struct warp_context *c, const struct up_pass *p, uint32_t kept,
                        struct fragments<EXPERT_COLUMNS> *x) {
#pragma unroll 1
    for (uint32_t set = kept;; set--) {
        struct up_pass of = *p;
        of.slot0 += set * EXPERT_SET;
        of.n = min(p->n - set * EXPERT_SET, (uint32_t)EXPERT_SET);
        const struct up_rows<EXPERT_COLUMNS> rows = up_rows_of<EXPERT_COLUMNS>(c, &of);
        up_gather<EXPERT_COLUMNS>(c, &of, &rows, set * EXPERT_SET, 0, x);
        if (set == 0) break;
        page_acquire_after(c, set - 1);
        uint4 *to = up_kept_set(c, set);
#pragma unroll
        for (int i = 0; i < EXPERT_COLUMNS; i++)
#pragma unroll
            for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
                to[(i * (CUDA_PAGE_K / 32) + pair) * 32] = x->of[i][pair];
    }
}

/* Multiplies a page with all sets, of which KEPT are in pages. */
template <int KEPT>
DEV void up_multiply_sets(const struct warp_context *c, const uint4 *page,
                          const struct fragments<EXPERT_COLUMNS> *x,
                          struct stream_partials<1, UP_COLUMNS> *sums) {
    const uint4 *kept[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) kept[i] = up_kept_set(c, i + 1);
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
#pragma unroll
        for (int i = 0; i < (KEPT + 1) * EXPERT_COLUMNS; i++) {
            const int set = i / EXPERT_COLUMNS, column = i % EXPERT_COLUMNS;
            const uint4 b = set == 0 ? x->of[column][pair]
                                     : kept[set - 1][(column * (CUDA_PAGE_K / 32) + pair) * 32];
            mma_pair(sums->of[0][i], page, pair, c->lane, b);
        }
}

/* h of the pass's slots in a row block. Scratch has the partial sums and, in place of each slot's
 * first half's squares, its 1 / rms. */
DEV void up_results_of_sets(const struct warp_context *c, const struct up_pass *p, uint32_t block) {
#pragma unroll 1
    for (uint32_t at = c->warp / 2 * PACK_ROWS; at < p->n; at += WARPS / 2 * PACK_ROWS) {
        const uint32_t token = at + c->lane / 8 * 2 + c->warp % 2;
        up_result(p, stream_sums<UP_COLUMNS>(0, token), token, block, c->lane % 8,
                  *up_halves(token));
    }
}

/* Row blocks [first, end) of a run for all sets of a pass. */
DEV void up_pass_sets(struct warp_context *c, const struct up_pass *p, uint32_t first,
                      uint32_t end) {
    const struct stream f = up_stream(p);
    const uint32_t kept = expert_kept(p->n);
    struct up_lap lap = {kept, RING_DEPTH - kept, 0};
    struct fragments<EXPERT_COLUMNS> x;
    up_gather_sets(c, p, kept, &x);
    sync_compute();
    if (c->thread < p->n) *up_halves(c->thread) = halves_inverse_rms(up_halves(c->thread));
#pragma unroll 1
    for (uint32_t b = first; b < end; b++) {
        struct stream_partials<1, UP_COLUMNS> sums = {};
        const uint32_t slot = up_lap_acquire(c, &lap);
        if (p->turn < ROW_TILES) {
            if (kept == 1)
                up_multiply_sets<1>(c, page_at(slot), &x, &sums);
            else
                up_multiply_sets<UP_MOST_KEPT>(c, page_at(slot), &x, &sums);
        }
        up_lap_release(c, &lap, slot);
        partials_put<1, UP_COLUMNS>(c, &f, 0, &sums);
        sync_compute();
        up_results_of_sets(c, p, b);
        sync_compute(); /* the sums are read */
    }
    up_lap_end(c, &lap, end - first);
}

/* A task's place in its slice, the same in each warp. While up_run_sets runs, a lane's part of the
 * slice and the run, which all lanes share, are in scratch. */
struct up_place {
    struct expert_slice slice;
    struct expert_run run;
};

enum {
    UP_RUN = (SCRATCH_BYTES - sizeof(struct expert_run)) / 8 * 8,
    UP_SLICES = (UP_RUN - 32 * sizeof(struct expert_slice)) / 8 * 8,
};
static_assert(EXPERT_UP_SETS == 1 || UP_SUMS_BYTES + UP_HALVES_BYTES <= UP_SLICES, "scratch");

DEV struct expert_slice *up_slice_of(const struct warp_context *c) {
    return (struct expert_slice *)(SCRATCH + UP_SLICES) + c->lane;
}
DEV struct expert_run *up_run_kept(void) {
    return (struct expert_run *)(SCRATCH + UP_RUN);
}

/* The first pass of a run, over several sets. Not inlined, and its caller keeps nothing in
 * registers: beside the sets there is no room for the place in the slice, and passes over one set
 * would spill. */
CODE(void, up_run_sets, const struct cuda_task *task) {
    struct warp_context c = context_load();
    const struct expert_run *run = up_run_kept();
    const struct up_pass p = {task, run->entry.slot0,
                              min(run->entry.slot1 - run->entry.slot0, (uint32_t)EXPERT_UP_PASS),
                              (c.warp - c.turn) % WARPS};
    up_pass_sets(&c, &p, run->block0, run->block1);
    context_store(&c);
}

/* Calls up_run_sets with the place in scratch. Afterwards the run has only its other slots. */
DEV void up_call_sets(struct warp_context *c, const struct cuda_task *task, struct up_place *at) {
    if (c->warp == 0) *up_slice_of(c) = at->slice;
    if (c->thread == 0) *up_run_kept() = at->run;
    context_store(c);
    sync_compute();
    up_run_sets(task);
    *c = context_load();
    *at = {*up_slice_of(c), *up_run_kept()};
    at->run.entry.slot0 = min(at->run.entry.slot0 + EXPERT_UP_PASS, at->run.entry.slot1);
    sync_compute(); /* the place is read */
}

/* ---- a task ---- */

/* A run in passes over one set. Where there are passes over several sets, this is one pass, over
 * the slots that they left. */
DEV void up_run(struct warp_context *c, const struct cuda_task *task,
                const struct expert_run *run) {
    struct up_pass p = {task, run->entry.slot0, run->entry.slot1 - run->entry.slot0,
                        (c->warp - c->turn) % WARPS};
    if (EXPERT_UP_SETS > 1) {
        if (p.n > 0) up_pass(c, &p, run->block0, run->block1);
        return;
    }
    for (uint32_t b = run->block0, end; b < run->block1; b = end) {
        end = expert_stretch_end(run, b);
        for (p.slot0 = run->entry.slot0; p.slot0 < run->entry.slot1; p.slot0 += p.n) {
            p.n = min(run->entry.slot1 - p.slot0, (uint32_t)EXPERT_SET);
            up_pass(c, &p, b, end);
        }
    }
}

/* Runs a task of a graph of several token rows. False: the launch ends. */
DEV bool up_run_gather(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    struct up_place at = {};
    at.slice =
        expert_slice_of(expert_list_of(task->bias, task->row1), task->unit0, task->unit1, c->lane);
    while (expert_slice_next(&at.slice, c->lane, &at.run)) {
        while (expert_has_sets(at.run.entry.slot1 - at.run.entry.slot0)) up_call_sets(c, task, &at);
        up_run(c, task, &at.run);
    }
    return true;
}

#endif
