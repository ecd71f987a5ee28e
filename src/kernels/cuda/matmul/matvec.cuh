/* matvec.cuh - tasks with weights and one token row: decode. The activations lie in shared memory
 * as 16-bit floats.
 *
 *   before the event   everything that does not depend on other tasks: addresses, biases, weights
 *                      of the norm, the warp's first page into registers
 *   after it           activations ─ barrier ─ pages, partial sums ─ barrier ─ results
 *
 * The code after the event is the critical path of every layer. Eight warps do the same at the same
 * time, so nothing hides latency: an instruction costs its latency, and a jump to a line of
 * instructions that was not run just before costs some hundred cycles, several hundred in times of
 * much traffic (bench/measurements.md, "Hand-overs"). So the length of the dot products and whether
 * activations are normed are constants. There is no loop over a single item and no branch that the
 * compiler can decide, and code lies in the order in which it runs. But no code is duplicated
 * without need, because at most 32 KB of it are fetched fast: QKV and the MLP share their code,
 * which differs only at the end.
 *
 * A page in registers leaves room in the ring: eight pages are a third of the ring, which memory
 * fills in 1.9 us on an H200. These eight pages need not be read from shared memory after the event
 * either: 64 KB at 128 bytes a cycle. bench/measurements.md says what this was worth.
 *
 * Scratch:   0   activations, 16 bits, whole k-tiles
 *            +   partial sums [row block of the group][16 rows][PARTIALS] F32
 *          end   LM_HEAD: a unit's results [LM_BLOCK] F32
 */
#ifndef QN_CUDA_MATMUL_MATVEC_CUH
#define QN_CUDA_MATMUL_MATVEC_CUH

#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/data/row_stage.cuh"

static_assert(CUDA_ROW_GROUP * 8 <= COMPUTE_THREADS, "a thread has one item of a group at most");

/* Row blocks [first, end) of a task, whose partial sums are in scratch together. */
struct row_group {
    uint32_t first, end;
};

/* A task reads the residual stream, normed (QKV_LINEAR, GATED_MLP); or reads it for logits, in
 * units (LM_HEAD); or adds to it (LINEAR). */
enum row_form { ROW_STREAM, ROW_LOGITS, ROW_ADDED };

/* Everything about a task that is found before its event. */
struct row_work {
    uint32_t kind;           /* enum op_kind, for ROW_STREAM */
    uint32_t block1, group;  /* the task's last row block + 1; row blocks of a group */
    struct operand x;        /* its activations */
    bool x_paired, y_paired; /* activations, results travel as pairs */
    uint32_t *hint;          /* task_hint */
    bool traced;             /* this thread writes records */
};

template <enum row_form FORM>
DEV struct row_work row_begin(const struct warp_context *c, const struct cuda_task *task) {
    struct row_work w;
    w.kind = task->kind;
    w.block1 = task->block1;
    w.group = task->group;
    w.x = QN_ROW_FLAGS && FORM != ROW_LOGITS
              ? operand_flagged(task->in)
              : operand_of(task->in, task, CUDA_IN_FLAGGED | CUDA_IN_PAIRED);
    w.x_paired = FORM == ROW_ADDED && (QN_ROW_FLAGS || (task->flags & CUDA_IN_PAIRED) != 0);
    w.y_paired = FORM == ROW_STREAM && w.kind == OP_GATED_MLP &&
                 (QN_ROW_FLAGS || (task->flags & CUDA_OUT_PAIRED) != 0);
    w.hint = task_hint(c, task);
    w.traced = c->thread == 0 && trace_wanted(SHARED);
    return w;
}

template <enum row_form FORM>
DEV struct row_group row_group_at(const struct row_work *w, uint32_t first) {
    const uint32_t unit_blocks = FORM == ROW_LOGITS ? LM_UNIT_BLOCKS : 0;
    return {first, walk_group_end(first, w->block1, w->group, unit_blocks)};
}

DEV char *row_activations(void) {
    return SCRATCH;
}

/* The partial sums of image row r of a row block of the group, in the order of a step's pages. */
template <uint32_t K> DEV float *row_partials(uint32_t in_group, uint32_t r) {
    float *partials = (float *)(row_activations() + cuda_k_tiles(K) * CUDA_PAGE_K * 2);
    return partials + (in_group * CUDA_PAGE_ROWS + r) * PARTIALS;
}

/* The sum of these partial sums. */
template <enum row_form FORM, uint32_t K> DEV float row_sum(uint32_t in_group, uint32_t r) {
    const float4 *p = (const float4 *)row_partials<K>(in_group, r);
    const float4 lo = p[0], hi = cuda_k_tiles(K) > 4 ? p[1] : make_float4(0, 0, 0, 0);
    const float v[PARTIALS] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    return partials_sum<FORM == ROW_ADDED, cuda_k_tiles(K)>(v);
}

/* Whether the next operator reads the row packed, since it is too long to be staged. */
#define ROW_H_IS_PACKED (QN_MLP_WIDTH > STAGED_COLUMNS)

/* The thread's item of a group: rows r and r + 8 of a row block, r = thread % 8. Threads beyond the
 * group's row blocks have none. */
template <enum row_form FORM>
DEV struct linear_item row_item(const struct warp_context *c, const struct cuda_task *task,
                                const struct row_work *w, struct row_group g) {
    const uint32_t block = g.first + c->thread / 8, r = c->thread % 8;
    if (FORM == ROW_LOGITS || block >= g.end) return {};
    return FORM == ROW_STREAM && w->kind == OP_GATED_MLP
               ? mlp_item<true, ROW_H_IS_PACKED>(task, block, r, 0)
               : linear_item<true>(task, block, r, 0);
}

/* ---- pages ---- */

/* A page in registers: the lane's weights of each of the page's steps. */
struct held_page {
    uint4 a[CUDA_PAGE_K / 16];
    bool there;
};

/* The number of the warp's first page of a group. */
DEV uint32_t row_rank(const struct warp_context *c) {
    return (c->warp - c->turn) % WARPS;
}

/* Takes the warp's first page of the group into registers, if it has one and the page has arrived.
 * Otherwise registers are loaded all the same and not used: the compiler spills an array that is
 * loaded conditionally. */
template <uint32_t K>
DEV void row_hold(struct warp_context *c, struct row_group g, struct held_page *h) {
    const uint32_t slot = page_slot(c->warp, c->page);
    const bool come = barrier_test_acquire_cta(&SHARED->page_full[slot], page_parity(c->page));
    h->there = row_rank(c) < (g.end - g.first) * cuda_k_tiles(K) && __all_sync(~0u, come);
    const uint4 *from = (const uint4 *)(RING + slot * CUDA_PAGE_BYTES) + c->lane;
    if (!h->there) from = (const uint4 *)&SHARED->args;
    const uint32_t step = h->there ? 32 : 0;
#pragma unroll
    for (int i = 0; i < CUDA_PAGE_K / 16; i++) h->a[i] = from[i * step];
    if (h->there) page_release(c);
}

/* The lane's activations of a k-tile. All eight columns of a product are the same row; only the
 * first one's sums are stored. */
struct row_columns {
    uint4 b[CUDA_PAGE_K / 32];
};

DEV void row_columns_load(const struct warp_context *c, uint32_t k, struct row_columns *x) {
    const uint4 *from = (const uint4 *)(row_activations() + k * CUDA_PAGE_K * 2) + c->lane % 4;
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) x->b[pair] = from[4 * pair];
}

/* The k-tile of page number i of a group. */
template <uint32_t K> DEV uint32_t row_k_tile(uint32_t i) {
    constexpr uint32_t k_tiles = cuda_k_tiles(K);
    return cuda_page_tile(k_tiles, i % k_tiles);
}

/* Whether all pages of a warp have the same k-tile. */
template <uint32_t K> DEV constexpr bool row_k_is_fixed(void) {
    return WARPS % cuda_k_tiles(K) == 0;
}

/* A page in registers times the activations of its k-tile. */
DEV void row_multiply(const uint4 a[CUDA_PAGE_K / 16], const struct row_columns *x, float sum[4]) {
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint4 b = x->b[pair];
        mma_16x8x16<WEIGHT_E>(sum, a[2 * pair], b.x, b.y);
        mma_16x8x16<WEIGHT_E>(sum, a[2 * pair + 1], b.z, b.w);
    }
}

DEV void row_clear(float sum[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = 0;
}

/* After page number i of the group: if it was the last of its row block for this warp, stores the
 * warp's partial sum. */
template <uint32_t K> DEV void row_put(const struct warp_context *c, uint32_t i, float sum[4]) {
    constexpr uint32_t k_tiles = cuda_k_tiles(K);
    const uint32_t in_group = i / k_tiles, k = i % k_tiles;
    if (k + PARTIALS < k_tiles) return;
    if (c->lane % 4 == 0) {
        float *to = row_partials<K>(in_group, c->lane / 4) + k % PARTIALS;
        to[0] = sum[0];
        to[8 * PARTIALS] = sum[2];
    }
    row_clear(sum);
}

/* Multiplies the warp's pages of a group of n pages: number `first` and every eighth after it. The
 * warp's pages of one row block follow each other and make a partial sum, in order. x: activations
 * of the first page's k-tile. A page is loaded into registers before it is multiplied, so that its
 * slot is free for the loader earlier. */
template <uint32_t K>
DEV void row_pages(struct warp_context *c, uint32_t n, uint32_t first, struct row_columns *x,
                   float sum[4]) {
#pragma unroll 1
    for (uint32_t i = first; i < n; i += WARPS) {
        const uint4 *page = page_acquire(c);
        uint4 a[CUDA_PAGE_K / 16];
#pragma unroll
        for (int j = 0; j < CUDA_PAGE_K / 16; j++) a[j] = page[j * 32 + c->lane];
        page_release(c);
        if (!row_k_is_fixed<K>()) row_columns_load(c, row_k_tile<K>(i), x);
        row_multiply(a, x, sum);
        row_put<K>(c, i, sum);
    }
}

/* ---- activations ---- */

/* Stages the activations in scratch, with their sum of squares if they are normed. */
template <enum row_form FORM, uint32_t K>
DEV void row_stage(const struct warp_context *c, const struct cuda_task *task,
                   const struct row_work *w, const struct early *early) {
    char *to = row_activations();
    if (FORM != ROW_ADDED)
        stage_stream(c, w->x, (const float *)task->norm, early, to, SHARED->warp_sum);
    else if (w->x_paired)
        stage_pairs<K>(c, w->x, to);
    else
        stage_floats<K>(c, w->x, to);
    sync_compute();
}

/* Whether a page is held in registers before the event. A page and a thread's share of a wide norm
 * together are more registers than a thread has. */
template <enum row_form FORM> DEV constexpr bool row_holds(void) {
    return PAGES_ARE_HELD && (FORM == ROW_ADDED || STREAM_FOURS <= 2);
}

/* ---- results ---- */

/* Turns an item's two dot products into results of LINEAR. */
template <uint32_t K>
DEV void row_added(const struct warp_context *c, const struct cuda_task *task,
                   const struct linear_item *m, struct linear_addend add) {
    const uint32_t in_group = c->thread / 8, r = c->thread % 8;
    float2 v =
        make_float2(row_sum<ROW_ADDED, K>(in_group, r), row_sum<ROW_ADDED, K>(in_group, r + 8));
    if (LINEAR_BIASES && task->bias != 0) v = make_float2(v.x + m->bias.x, v.y + m->bias.y);
    if (m->addend != nullptr) {
        const float2 residual = addend_await(m, &add);
        v = make_float2(residual.x + v.x, residual.y + v.y);
    }
    if (m->own0) item_store(m, 0, v.x);
    if (m->own1) item_store(m, 8, v.y);
}

/* The same for the other operators. */
template <enum row_form FORM, uint32_t K>
DEV void row_normed(const struct warp_context *c, const struct cuda_task *task,
                    const struct row_work *w, struct row_group g, const struct linear_item *m) {
    const float inv = inverse_rms(SHARED->warp_sum);
    const uint32_t in_group = c->thread / 8, r = c->thread % 8;
    const float v0 = row_sum<FORM, K>(in_group, r), v1 = row_sum<FORM, K>(in_group, r + 8);
    if (FORM == ROW_LOGITS) {
        lm_finish(g.first + in_group, r, v0 * inv, v1 * inv);
    } else if (w->kind == OP_QKV_LINEAR) {
        float2 v = make_float2(v0 * inv, v1 * inv);
        if (LINEAR_BIASES && task->bias != 0) v = make_float2(v.x + m->bias.x, v.y + m->bias.y);
        if (m->own0) item_store(m, 0, v.x);
        if (m->own1) item_store(m, 8, v.y);
    } else if (ROW_H_IS_PACKED) {
        mlp_store(task, m, v0 * inv, v1 * inv);
    } else if (w->y_paired) {
        if (r % 2 == 0)
            op_finish_pair(task, m, g.first + in_group, r, inv, v0, v1,
                           row_sum<FORM, K>(in_group, r + 1), row_sum<FORM, K>(in_group, r + 9));
    } else if (m->own0) {
        item_store(m, 0, mlp_value(m, v0 * inv, v1 * inv));
    }
}

/* Runs a task whose dot products are K long. MORE: a warp may have several pages of a group.
 * Without MORE the code for them lies out of the way, so that it need not be jumped over. False:
 * the launch ends. */
template <enum row_form FORM, uint32_t K, bool MORE>
DEV bool row_run(struct warp_context *c, const struct cuda_task *task) {
    constexpr uint32_t k_tiles = cuda_k_tiles(K);
    struct early early;
    struct held_page held;
    if (FORM != ROW_ADDED) early_norm((const float *)task->norm, c->thread, &early);
    const struct row_work w = row_begin<FORM>(c, task);
    struct row_group g = row_group_at<FORM>(&w, task->block0);
    struct linear_item item = row_item<FORM>(c, task, &w, g);
    uint32_t next = row_rank(c); /* of the warp's pages */
    if (row_holds<FORM>()) row_hold<K>(c, g, &held);
    if (!wait_ready(c)) return false;
    struct linear_addend add = {};
    if (FORM == ROW_ADDED) add = addend_ask(&item);
    if (UNLIKELY(w.traced)) trace(SHARED, RT_TRACE_READY, task->index);
    row_stage<FORM, K>(c, task, &w, &early);
    if (UNLIKELY(w.traced)) trace(SHARED, RT_TRACE_BEGIN, task->index);
    float sum[4];
    row_clear(sum);
    struct row_columns x;
    row_columns_load(c, row_k_tile<K>(next), &x);
    if (row_holds<FORM>()) {
        /* A page that is not held is multiplied all the same, so that there is one path. */
        row_multiply(held.a, &x, sum);
        if (held.there) {
            row_put<K>(c, next, sum);
            next += WARPS;
        } else {
            row_clear(sum);
        }
    }
#pragma unroll 1
    for (;;) {
        const uint32_t n = (g.end - g.first) * k_tiles;
        if (MORE || UNLIKELY(next < n)) row_pages<K>(c, n, next, &x, sum);
        c->turn = turn_after(c->turn, n);
        const bool last = g.end >= w.block1;
        sync_compute();
        if (last && w.hint != nullptr) add_relaxed_gpu(w.hint, 1);
        if (g.first + c->thread / 8 < g.end) {
            if (FORM == ROW_ADDED)
                row_added<K>(c, task, &item, add);
            else
                row_normed<FORM, K>(c, task, &w, g, &item);
        }
        if (FORM == ROW_LOGITS && g.end % LM_UNIT_BLOCKS == 0) {
            sync_compute();
            lm_finish_unit(c, task, g.end / LM_UNIT_BLOCKS - 1);
        }
        if (last) return true;
        g = row_group_at<FORM>(&w, g.end);
        item = row_item<FORM>(c, task, &w, g);
        if (FORM == ROW_ADDED) add = addend_ask(&item);
        sync_compute(); /* the last group's sums are read */
        next = row_rank(c);
    }
}

template <uint32_t K> DEV bool row_linear(struct warp_context *c, const struct cuda_task *task) {
    constexpr uint32_t k_tiles = cuda_k_tiles(K);
    if (k_tiles <= WARPS && (task->block1 - task->block0) * k_tiles <= WARPS)
        return row_run<ROW_ADDED, K, false>(c, task);
    return row_run<ROW_ADDED, K, true>(c, task);
}

DEV bool row_task(struct warp_context *c, const struct cuda_task *task) {
    if (task->kind == OP_LM_HEAD) return row_run<ROW_LOGITS, QN_HIDDEN, true>(c, task);
    if (task->kind != OP_LINEAR) return row_run<ROW_STREAM, QN_HIDDEN, true>(c, task);
#define ROW_LINEAR(i, width)                                                                       \
    if (i + 1 == QN_N_LINEAR_WIDTHS || task->k == width) return row_linear<width>(c, task);
    QN_LINEAR_WIDTHS(ROW_LINEAR)
#undef ROW_LINEAR
    return false;
}

#endif
