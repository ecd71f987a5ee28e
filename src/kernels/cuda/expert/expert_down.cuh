/* expert_down.cuh - EXPERT_DOWN: tiles of columns of y = residual + (the sum of a row's experts by
 * ascending id, each weight * (h wd^T), + gate * shared).
 *
 * A task goes through all listed experts for each of its row blocks of 16 columns, so no sum is
 * shared between blocks. It takes an expert's pages of that row block, without void pages, once for
 * each set of up to EXPERT_SET slots. The warps take pages in turn, across sets and experts. A warp
 * multiplies a page with the set's rows of h, which it reads where they lie. A *batch* is as many
 * slots as scratch has room for. After each batch, a thread adds the batch's slots to the sums of
 * its rows and its column, in order of the list. Sums of up to DOWN_HELD token rows are in scratch,
 * sums of more rows in y itself.
 *
 *   before the event    the first batch's token rows and weights, and the first 32 entries, if the
 *                       worker has waited for the list before
 *
 * Scratch:   0   sums [token row][16] F32
 *            +   batch: {token row, weight} [slot]
 *            +   batch: partial sums [slot][turn][16] F32, and four unused words a slot
 */
#ifndef QN_CUDA_EXPERT_EXPERT_DOWN_CUH
#define QN_CUDA_EXPERT_EXPERT_DOWN_CUH

#include "kernels/cuda/data/row_stage.cuh"
#include "kernels/cuda/expert/expert_list.cuh"
#include "kernels/cuda/matmul/matmul_stream.cuh"

#define DOWN_K_TILES cuda_k_tiles(QN_EXPERT_WIDTH)

struct down_slot {
    uint32_t row;
    float weight;
};

enum {
    DOWN_HELD = 64,
    DOWN_TURNS = partial_count(DOWN_K_TILES),
    /* so the words that a warp stores at a time lie in different banks */
    DOWN_SLOT_FLOATS = DOWN_TURNS * CUDA_PAGE_ROWS + 4,
    DOWN_ROW_SUMS = CUDA_PAGE_ROWS * 4, /* bytes of a token row's sums */
    DOWN_SLOT_BYTES = DOWN_SLOT_FLOATS * 4 + sizeof(struct down_slot),
    DOWN_GATES = QN_EXPERT_GATES,
};

/* Slots of a batch beside `held` token rows' sums. */
DEV constexpr uint32_t down_batch(uint32_t held) {
    return (SCRATCH_BYTES - held * DOWN_ROW_SUMS) / DOWN_SLOT_BYTES / 2 * 2;
}
static_assert(down_batch(DOWN_HELD) >= EXPERT_SET && sizeof(struct down_slot) == 8, "scratch");

/* A running task. */
struct down_work {
    const struct cuda_task *task;
    const int32_t *slots;
    const float *weight; /* [T, top_k + gates] */
    uint64_t shared;     /* [T, H], an address; 0: the layer has no shared experts */
    uint32_t n_rows;     /* of the iteration */
    uint32_t block;      /* the current row block */
    float *sums;         /* the row block's sums: rows are `pitch` floats apart */
    uint32_t pitch;
    uint32_t held;  /* token rows whose sums are in scratch: all or none */
    uint32_t batch; /* slots for which scratch has room */
    uint32_t n;     /* slots of the batch so far */
};

DEV struct down_slot *down_slots(const struct down_work *w) {
    return (struct down_slot *)(SCRATCH + w->held * DOWN_ROW_SUMS);
}
DEV float *down_partials(const struct down_work *w, uint32_t slot) {
    return (float *)(down_slots(w) + w->batch) + slot * DOWN_SLOT_FLOATS;
}

DEV struct down_work down_begin(const struct cuda_task *task) {
    struct down_work w = {};
    w.task = task;
    w.slots = (const int32_t *)beyond_of(task->bias, BEYOND_SLOTS);
    w.weight = (const float *)beyond_of(task->bias, BEYOND_WEIGHT);
    w.shared = beyond_of(task->bias, BEYOND_SHARED);
    w.n_rows = min(SHARED->batch.rows.n_rows, task->row1);
    w.held = w.n_rows <= DOWN_HELD ? w.n_rows : 0;
    w.batch = down_batch(w.held);
    return w;
}

/* ---- products ---- */

/* Keeps the first n of a fragment's eight columns; the others become 0. */
DEV uint4 down_mask(uint4 v, int n) {
    uint32_t of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) of[i] = 2 * i + 1 < n ? of[i] : 2 * i < n ? of[i] & 0xffff : 0;
    return make_uint4(of[0], of[1], of[2], of[3]);
}

/* The B registers of a k-tile of the slots [slot, slot + n). No task writes columns beyond the
 * width, so they are masked out. */
template <int COLUMNS>
DEV void down_gather(const struct warp_context *c, const struct cuda_task *task, uint32_t slot,
                     uint32_t n, uint32_t k_tile, struct fragments<COLUMNS> *x) {
    const uint32_t eights = ceil_div(task->row1 * QN_TOP_K, PACK_ROWS), j = c->lane % 4;
    const uint32_t next = eights * PACKED_PIECE; /* bytes to the next columns' pieces */
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const uint32_t s = slot + min(c->lane / 4 + PACK_ROWS * i, n - 1);
        const char *from = (const char *)task->in +
                           (uint64_t)k_tile * (CUDA_PAGE_K / CUDA_PACK_COLUMNS) * next +
                           s / PACK_ROWS * PACKED_PIECE + s % PACK_ROWS * 16 + j * 4;
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
            const uint32_t *at = (const uint32_t *)(from + pair / 2 * next) + pair % 2 * 128;
            uint4 v = make_uint4(load_word_l2(at), load_word_l2(at + 32), load_word_l2(at + 64),
                                 load_word_l2(at + 96));
            if (QN_EXPERT_WIDTH % CUDA_PAGE_K != 0)
                v = down_mask(v, QN_EXPERT_WIDTH - (int)(k_tile * CUDA_PAGE_K + pair * 32 + 8 * j));
            x->of[i][pair] = v;
        }
    }
}

/* Multiplies the warp's pages of an expert's row block with the slots [slot, slot + n). Stores
 * their partial sums as the batch's next slots. turn: the warp's first page. */
template <int COLUMNS>
DEV void down_multiply(struct warp_context *c, const struct down_work *w, uint32_t slot, uint32_t n,
                       uint32_t turn) {
    float sums[COLUMNS][4] = {};
    struct fragments<COLUMNS> x;
#pragma unroll 1
    for (uint32_t i = turn; i < DOWN_K_TILES; i += WARPS) {
        down_gather<COLUMNS>(c, w->task, slot, n, cuda_page_tile(DOWN_K_TILES, i), &x);
        const uint4 *page = page_acquire(c);
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) mma_pair(sums[k], page, pair, c->lane, x.of[k][pair]);
        page_release(c);
    }
    const uint32_t g = c->lane / 4, j = c->lane % 4;
#pragma unroll
    for (int k = 0; k < COLUMNS; k++)
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++) {
            const uint32_t s = PACK_ROWS * k + 2 * j + odd;
            float *to = down_partials(w, w->n + s) + turn * CUDA_PAGE_ROWS + g;
            if (s >= n) continue;
            to[0] = sums[k][odd];
            to[8] = sums[k][2 + odd];
        }
}

/* Notes the token rows and weights of a batch, whose first slot is `first`. */
DEV void down_note(const struct warp_context *c, const struct down_work *w, uint32_t first) {
    const uint32_t all = w->n_rows * QN_TOP_K, n = min(w->batch, all - min(first, all));
    for (uint32_t at = c->thread; at < n; at += COMPUTE_THREADS) {
        const uint32_t s = (uint32_t)load_index_l2(w->slots + first + at);
        const uint32_t row = min(s / QN_TOP_K, w->task->row1 - 1);
        const float *weight = w->weight + (uint64_t)row * (QN_TOP_K + DOWN_GATES) + s % QN_TOP_K;
        down_slots(w)[at] = {row, load_l2(weight)};
    }
}

/* ---- sums ---- */

/* Clears the sums. A thread owns column thread % 16 of every 16th row, from row thread / 16 on. */
DEV void down_clear(const struct warp_context *c, const struct down_work *w) {
    const uint32_t column = c->thread % CUDA_PAGE_ROWS;
    for (uint32_t row = c->thread / 16; row < w->n_rows; row += 16)
        if (w->block * CUDA_PAGE_ROWS + column < QN_HIDDEN)
            w->sums[(uint64_t)row * w->pitch + column] = 0;
}

enum { DOWN_AT_ONCE = 4 }; /* slots whose sums a thread loads at once */

/* Adds the first slots of `slots`, bit s for slot number from + s of the batch, to the sums of
 * their rows and the thread's column, in order of the bits. Returns the other slots. A sum that a
 * slot before has changed is taken from there. */
DEV uint32_t down_add_some(const struct warp_context *c, const struct down_work *w, uint32_t from,
                           uint32_t slots) {
    const uint32_t column = c->thread % CUDA_PAGE_ROWS;
    bool there[DOWN_AT_ONCE];
    float *at[DOWN_AT_ONCE], sum[DOWN_AT_ONCE], add[DOWN_AT_ONCE];
#pragma unroll
    for (int u = 0; u < DOWN_AT_ONCE; u++) {
        const uint32_t s = from + (slots == 0 ? 0 : __popc((slots & -slots) - 1));
        const struct down_slot slot = down_slots(w)[s];
        const float *partials = down_partials(w, s) + column;
        float v[PARTIALS];
#pragma unroll
        for (uint32_t i = 0; i < DOWN_TURNS; i++) v[i] = partials[i * CUDA_PAGE_ROWS];
        there[u] = slots != 0;
        add[u] = partials_sum<true, DOWN_K_TILES>(v) * slot.weight;
        at[u] = w->sums + (uint64_t)slot.row * w->pitch + column;
        sum[u] = there[u] ? *at[u] : 0;
        slots &= slots - 1;
    }
#pragma unroll
    for (int u = 0; u < DOWN_AT_ONCE; u++) {
#pragma unroll
        for (int before = 0; before < u; before++)
            if (at[before] == at[u]) sum[u] = sum[before];
        sum[u] += add[u];
        if (there[u]) *at[u] = sum[u];
    }
    return slots;
}

/* Adds the batch to the sums. Half a warp owns every 16th row. A warp looks at 32 slots at once for
 * those of its halves' rows. */
DEV void down_add(const struct warp_context *c, struct down_work *w) {
    const bool own = w->block * CUDA_PAGE_ROWS + c->thread % CUDA_PAGE_ROWS < QN_HIDDEN;
    sync_compute();
#pragma unroll 1
    for (uint32_t from = 0; from < w->n; from += 32) {
        const uint32_t at = from + c->lane;
        const uint32_t half = at < w->n ? down_slots(w)[at].row % 16 - 2 * c->warp : ~0u;
        const uint32_t of[2] = {__ballot_sync(~0u, half == 0), __ballot_sync(~0u, half == 1)};
        uint32_t left = own ? of[c->lane / 16] : 0;
#pragma unroll 1
        while (left != 0) left = down_add_some(c, w, from, left);
    }
    sync_compute(); /* the partial sums are read */
    w->n = 0;
}

/* ---- results ---- */

/* What a thread has asked for of the results that it will store: columns r and r + 8 of the row
 * block for a token row. */
struct down_asked {
    uint2 residual[2], shared[2];
    float gate, norm[2];
};

DEV struct operand down_residual(const struct down_work *w) {
    return operand_of(w->task->more, w->task, CUDA_MORE_FLAGGED);
}
DEV struct operand down_shared(const struct down_work *w) {
    return operand_of(w->shared, w->task, CUDA_SHARED_FLAGGED);
}

/* The column of the thread's result number h, 0 or 1, and its place. */
DEV uint32_t down_column(const struct down_work *w, uint32_t r, uint32_t h) {
    return w->block * CUDA_PAGE_ROWS + r + 8 * h;
}
DEV uint64_t down_at(const struct down_work *w, uint32_t row, uint32_t r, uint32_t h) {
    return (uint64_t)row * QN_HIDDEN + down_column(w, r, h);
}
DEV bool down_owns(const struct down_work *w, uint32_t row, uint32_t r, uint32_t h) {
    return row < w->n_rows && down_column(w, r, h) < QN_HIDDEN;
}

DEV struct down_asked down_ask(const struct down_work *w, uint32_t row, uint32_t r) {
    struct down_asked a = {};
    a.gate = 1;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        if (!down_owns(w, row, r, h)) continue;
        a.residual[h] = operand_ask_word(down_residual(w), down_at(w, row, r, h));
        if (w->shared != 0) a.shared[h] = operand_ask(down_shared(w), down_at(w, row, r, h));
        a.norm[h] = item_constant(w->task->norm, down_column(w, r, h), true);
    }
    if (DOWN_GATES && w->shared != 0 && row < w->n_rows)
        a.gate = load_l2(w->weight + (uint64_t)row * (QN_TOP_K + DOWN_GATES) + QN_TOP_K);
    return a;
}

/* The thread's result number h from its sum: the residual plus the sum plus the shared experts'
 * result, times the gate if there is one. */
DEV float down_value(const struct down_work *w, const struct down_asked *a, uint32_t row,
                     uint32_t r, uint32_t h, float sum) {
    const uint64_t at = down_at(w, row, r, h);
    if (w->shared != 0) sum += a->gate * operand_await(down_shared(w), at, a->shared[h]);
    return operand_await_word(down_residual(w), at, a->residual[h]) + sum;
}

/* Stores columns r and r + 8 of the row block for a row, and the normed values and squares for the
 * next norm. All lanes take part. */
DEV void down_store(const struct down_work *w, const struct down_asked *a, uint32_t row,
                    uint32_t r) {
    const struct cuda_task *task = w->task;
    const uint32_t column = down_column(w, r, 0);
    const float *sum = w->sums + (uint64_t)row * w->pitch + r;
    struct linear_item m = {};
    float v[2] = {0, 0};
    m.own0 = down_owns(w, row, r, 0);
    m.own1 = down_owns(w, row, r, 1);
    if (m.own0) v[0] = down_value(w, a, row, r, 0, sum[0]);
    if (m.own1) v[1] = down_value(w, a, row, r, 1, sum[8]);
    if (task->norm != 0) {
        m.norm = make_float2(a->norm[0], a->norm[1]);
        const uint32_t pair = column + (r % 2 != 0 ? 7 : 0);
        m.normed = STREAM_IS_PACKED ? (float *)packed_at(task, task->out2, row, pair)
                                    : (float *)task->out2 + (uint64_t)row * QN_HIDDEN + column;
        if (r == 0) m.squares = (float *)task->more2 + (uint64_t)row * task->n_pieces + w->block;
        stream_store<1>(task, &m, r, v[0], v[1]);
    }
    if (m.own0) operand_store(task, down_at(w, row, r, 0), v[0]);
    if (m.own1) operand_store(task, down_at(w, row, r, 1), v[1]);
}

/* Stores the results. asked: of the thread's first row. */
DEV void down_results(const struct warp_context *c, const struct down_work *w,
                      struct down_asked asked) {
    const uint32_t r = c->thread % 8;
#pragma unroll 1
    for (uint32_t row = c->thread / 8;;) {
        down_store(w, &asked, row, r);
        row += COMPUTE_THREADS / 8;
        if (row - c->thread / 8 >= w->n_rows) break;
        asked = down_ask(w, row, r);
    }
}

/* ---- many token rows, or one that does not fit scratch ---- */

/* The slots [slot, slot + n) of an expert. */
DEV void down_set(struct warp_context *c, struct down_work *w, uint32_t slot, uint32_t n) {
    if (w->n + n > w->batch) {
        down_add(c, w);
        down_note(c, w, slot);
    }
    const uint32_t turn = (c->warp - c->turn) % WARPS;
    if (turn < DOWN_K_TILES) {
        if (n <= PACK_ROWS)
            down_multiply<1>(c, w, slot, n, turn);
        else
            down_multiply<2>(c, w, slot, n, turn);
    }
    c->turn = turn_after(c->turn, DOWN_K_TILES);
    w->n += n;
}

/* All slots of an expert, set by set. Each set has its own copy of the pages: a copy that one warp
 * kept for all sets would leave the warps without a page idle. */
DEV void down_expert(struct warp_context *c, struct down_work *w, const struct expert_entry *e) {
#pragma unroll 1
    for (uint32_t slot = e->slot0; slot < e->slot1; slot += EXPERT_SET)
        down_set(c, w, slot, min(e->slot1 - slot, (uint32_t)EXPERT_SET));
}

/* The lane's entry of the first 32, and how many lanes have one. */
struct down_first {
    struct expert_entry mine;
    uint32_t n;
};

/* What a row block begins with, apart from h: its first entries, and its first batch's rows and
 * weights. */
DEV struct down_first down_start(const struct warp_context *c, const struct down_work *w,
                                 const struct expert_list *list) {
    struct down_first first;
    first.mine = expert_entries(list, 0, c->lane, &first.n);
    down_note(c, w, 0);
    return first;
}

/* A row block: all listed experts, then the results. */
DEV void down_block(struct warp_context *c, struct down_work *w, const struct expert_list *list,
                    struct down_first first) {
    w->sums = w->held > 0 ? (float *)SCRATCH : (float *)w->task->out + w->block * CUDA_PAGE_ROWS;
    w->pitch = w->held > 0 ? CUDA_PAGE_ROWS : QN_HIDDEN;
    const struct down_asked asked = down_ask(w, c->thread / 8, c->thread % 8);
    down_clear(c, w);
#pragma unroll 1
    for (uint32_t at = 32;; at += 32) {
        for (uint32_t i = 0; i < first.n; i++) {
            const struct expert_entry e = expert_entry_of(&first.mine, i);
            down_expert(c, w, &e);
        }
        if (first.n < 32 || at >= list->rows) break;
        first.mine = expert_entries(list, at, c->lane, &first.n);
    }
    down_add(c, w);
    down_results(c, w, asked);
    sync_compute(); /* the sums are read */
}

DEV bool down_ready(struct warp_context *c, const struct cuda_task *task) {
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    return true;
}

/* Runs a task. False: the launch ends. */
DEV bool down_run_gather(struct warp_context *c, const struct cuda_task *task) {
    const bool known = (task->flags & CUDA_LIST_KNOWN) != 0;
    if (!known && !down_ready(c, task)) return false;
    struct down_work w = down_begin(task);
    const struct expert_list list = expert_list_of(beyond_of(task->bias, BEYOND_LIST), task->row1);
    for (w.block = task->block0; w.block < task->block1; w.block++) {
        const struct down_first first = down_start(c, &w, &list);
        if (known && w.block == task->block0 && !down_ready(c, task)) return false;
        down_block(c, &w, &list, first);
    }
    return true;
}

/* ---- one token row ----
 *
 * The row's slots are its experts in order, so the compute warps need no list.
 *
 * Scratch:   0   h, 16 bits, each slot in whole k-tiles
 *            +   partial sums [slot][turn][16] F32
 *            +   weight [slot] F32, then the gate
 */

enum {
    DOWN_ROW_BYTES = QN_TOP_K * DOWN_K_TILES * CUDA_PAGE_K * 2,
    DOWN_PAGES = QN_TOP_K * DOWN_K_TILES, /* of a row block */
    DOWN_ROW_WEIGHTS = QN_TOP_K + DOWN_GATES,
};
static_assert(!EXPERT_ROW_IS_STAGED ||
                  DOWN_ROW_BYTES + DOWN_PAGES * CUDA_PAGE_ROWS * 4 + DOWN_ROW_WEIGHTS * 4 <=
                      SCRATCH_BYTES,
              "scratch");

DEV float *down_row_sums(void) {
    return (float *)(SCRATCH + DOWN_ROW_BYTES);
}
DEV float *down_row_weights(void) {
    return down_row_sums() + DOWN_PAGES * CUDA_PAGE_ROWS;
}

/* Stages h, which travels as pairs or as it is. */
DEV void down_row_stage(const struct warp_context *c, const struct cuda_task *task) {
    constexpr uint32_t END = DOWN_ROW_BYTES / 8, N = 2;
    const struct operand h = operand_of(task->in, task, CUDA_IN_PAIRED);
    if (h.flag != 0) {
        stage_pairs<QN_EXPERT_WIDTH, QN_TOP_K>(c, h, SCRATCH);
        return;
    }
#pragma unroll 1
    for (uint32_t first = c->thread; first < END; first += N * COMPUTE_THREADS) {
        float4 v[N];
#pragma unroll
        for (uint32_t u = 0; u < N; u++) {
            const uint32_t at = first + u * COMPUTE_THREADS;
            v[u] = make_float4(0, 0, 0, 0);
            if (stage_has<QN_EXPERT_WIDTH, QN_TOP_K>(at))
                v[u] = load4_l2(h.at + 4 * stage_from<QN_EXPERT_WIDTH, QN_TOP_K>(at));
        }
#pragma unroll
        for (uint32_t u = 0; u < N; u++)
            if (first + u * COMPUTE_THREADS < END)
                *(uint2 *)(SCRATCH + 8 * (first + u * COMPUTE_THREADS)) =
                    pack_scaled(v[u], make_float4(1, 1, 1, 1));
    }
}

/* The B registers of two steps of a slot's k-tile. All columns of the product are the slot's. */
DEV uint4 down_row_pair(uint32_t slot, uint32_t k_tile, uint32_t pair, uint32_t lane) {
    const uint32_t column = (slot * DOWN_K_TILES + k_tile) * CUDA_PAGE_K + pair * 32 + lane % 4 * 8;
    return *(const uint4 *)(SCRATCH + 2 * column);
}

/* Multiplies the warp's pages of a row block. */
DEV void down_row_pages(struct warp_context *c) {
    const uint32_t g = c->lane / 4, j = c->lane % 4;
#pragma unroll 1
    for (uint32_t i = (c->warp - c->turn) % WARPS; i < DOWN_PAGES; i += WARPS) {
        const uint32_t slot = i / DOWN_K_TILES;
        const uint32_t k_tile = cuda_page_tile(DOWN_K_TILES, i % DOWN_K_TILES);
        float sum[4] = {};
        const uint4 *page = page_acquire(c);
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
            mma_pair(sum, page, pair, c->lane, down_row_pair(slot, k_tile, pair, c->lane));
        page_release(c);
        if (j == 0) {
            down_row_sums()[i * CUDA_PAGE_ROWS + g] = sum[0];
            down_row_sums()[i * CUDA_PAGE_ROWS + g + 8] = sum[2];
        }
    }
    c->turn = turn_after(c->turn, DOWN_PAGES);
}

/* The sum of a column over the row's experts. */
DEV float down_row_sum(uint32_t column) {
    float sum = 0;
#pragma unroll 4
    for (uint32_t slot = 0; slot < QN_TOP_K; slot++) {
        float v[PARTIALS];
#pragma unroll
        for (uint32_t i = 0; i < DOWN_TURNS; i++)
            v[i] = down_row_sums()[(slot * DOWN_K_TILES + i) * CUDA_PAGE_ROWS + column];
        sum += partials_sum<true, DOWN_K_TILES>(v) * down_row_weights()[slot];
    }
    return sum;
}

/* What a thread has asked for of the column that it will store. */
struct down_row_asked {
    uint2 residual, shared;
};

/* Runs a task of one token row. False: the launch ends. */
DEV bool down_run_row(struct warp_context *c, const struct cuda_task *task) {
    struct down_work w = down_begin(task);
    const struct operand residual = operand_of(task->more, task, CUDA_MORE_FLAGGED);
    const struct operand shared = operand_of(w.shared, task, CUDA_SHARED_FLAGGED);
    uint32_t *hint = task_hint(c, task);
    if (!wait_ready(c)) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    const float weight = c->thread < DOWN_ROW_WEIGHTS ? load_l2(w.weight + c->thread) : 0;
    down_row_stage(c, task);
    if (c->thread < DOWN_ROW_WEIGHTS) down_row_weights()[c->thread] = weight;
    sync_compute();
    if (c->thread == 0) trace(SHARED, RT_TRACE_BEGIN, task->index);
    for (w.block = task->block0; w.block < task->block1; w.block++) {
        const uint32_t column = w.block * CUDA_PAGE_ROWS + c->thread;
        const bool own = c->thread < CUDA_PAGE_ROWS && column < QN_HIDDEN;
        struct down_row_asked asked = {};
        if (own) asked.residual = operand_ask(residual, column);
        if (own && w.shared != 0) asked.shared = operand_ask(shared, column);
        down_row_pages(c);
        sync_compute();
        if (w.block + 1 == task->block1 && hint != nullptr) add_relaxed_gpu(hint, 1);
        if (own) {
            float sum = down_row_sum(c->thread);
            if (w.shared != 0)
                sum += (DOWN_GATES ? down_row_weights()[QN_TOP_K] : 1) *
                       operand_await(shared, column, asked.shared);
            operand_store(task, column, operand_await(residual, column, asked.residual) + sum);
        }
        if (w.block + 1 < task->block1) sync_compute(); /* the sums are read */
    }
    return true;
}

#endif
