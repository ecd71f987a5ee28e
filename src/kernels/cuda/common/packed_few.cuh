/* packed_few.cuh - packed activations of 8 or 16 token rows: decode of a batch.
 *
 * Pages stream as for one row; nothing is leased. Warp w has the k-tiles of its partial sum and
 * holds their activations in registers while the pages of a group of row blocks pass:
 *
 *   per group   for its k-tiles: activations from L2, COLUMNS * 4 KB ─ a page per row block
 *               partial sums ─ barrier ─ results
 *
 * The residual stream that LINEAR adds to, and the weights of the norm that comes next, are copied
 * to scratch meanwhile: asked for with the results they cost a trip to L2 there.
 *
 * Where activations are empty words until they are stored (task/carry.c) they are asked for again
 * until all of the iteration's rows are there; a residual that is not there yet is an exception.
 *
 * Bytes per page of 8 KB: COLUMNS * 4 KB / row blocks of the group, from L2.
 */
#ifndef QN_CUDA_COMMON_PACKED_FEW_CUH
#define QN_CUDA_COMMON_PACKED_FEW_CUH

#include "kernels/cuda/common/packed.cuh"

/* A word of activations; FILLED: it may be empty. */
template <bool FILLED> DEV uint32_t fragment_word(const uint32_t *at) {
    return FILLED ? load_word_polled(at) : load_word_l2(at);
}

/* The lane's B registers of a k-tile, for the eight token rows whose first piece `from` is; the
 * next one is so many bytes further. */
template <bool FILLED>
DEV void fragments_load(const char *from, uint32_t next, uint32_t lane, uint4 x[CUDA_PAGE_K / 32]) {
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint32_t *at = (const uint32_t *)(from + pair / 2 * next) + pair % 2 * 128 + lane;
        x[pair] = make_uint4(fragment_word<FILLED>(at), fragment_word<FILLED>(at + 32),
                             fragment_word<FILLED>(at + 64), fragment_word<FILLED>(at + 96));
    }
}

/* What a group's results need besides sums, in scratch after the partial sums: the residual stream
 * [in group][token][16], the norm's weights [in group][16]. NULL: not of this task. */
struct few_wants {
    float *residual, *norm;
};

/* A task, as far as it is known before its event. */
struct few {
    struct linear_tile t;
    struct few_wants wants;
    const char *rows; /* packed, their first piece */
    uint32_t next;    /* bytes to the next columns' */
};

/* Activations of a k-tile, a lane's share. */
template <int COLUMNS> struct fragments { uint4 of[COLUMNS][CUDA_PAGE_K / 32]; };

/* Whether they are there: none of the iteration's is empty. The lane has those of row lane / 4 of
 * each eight. What is compared is read anew: there is no register to keep it. */
template <int COLUMNS>
DEV bool fragments_there(const struct cuda_task *task, const struct fragments<COLUMNS> *x) {
    const uint32_t rows = shared_load_volatile(&SHARED->batch.rows.n_rows);
    const uint32_t row = shared_load_volatile(&task->row0) + thread_here() % 32 / 4;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        uint32_t of_row = 0;
#pragma unroll
        for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
            const uint4 v = x->of[i][pair];
            of_row = max(max(max(of_row, v.x), max(v.y, v.z)), v.w);
        }
        if (row + 8 * i < rows) most = max(most, of_row);
    }
    return !word_is_empty(most);
}

/* Of the warp's k-tile in the round that begins with k0. */
template <int COLUMNS, bool FILLED>
DEV struct fragments<COLUMNS> fragments_ask(const struct warp_context *c, const struct few *f,
                                            uint32_t k0) {
    struct fragments<COLUMNS> x;
    const uint32_t partial = (c->warp - c->turn) % WARPS;
    const char *from = f->rows + (uint64_t)(min(k0 + partial, f->t.k_tiles - 1) * 4) * f->next;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        fragments_load<FILLED>(from + i * PACKED_PIECE, f->next, c->lane, x.of[i]);
    return x;
}

/* ... until they are there, if the task has not seen them yet. */
template <int COLUMNS, bool FILLED>
DEV struct fragments<COLUMNS> fragments_await(const struct warp_context *c, const struct few *f,
                                              uint32_t k0, bool seen) {
    struct fragments<COLUMNS> x;
#pragma unroll 1
    do x = fragments_ask<COLUMNS, FILLED>(c, f, k0);
    while (FILLED && !seen && !fragments_there<COLUMNS>(f->t.task, &x) && !act_given_up());
    return x;
}

/* Two columns of words that may be empty are asked for in one place: another one spills. */
template <int COLUMNS, bool FILLED>
DEV constexpr bool asks_in_group(void) {
    return FILLED && COLUMNS > 1;
}

/* n row blocks; x: of the first round, unless the group asks for them. seen: another group of the
 * task has had the same activations. */
template <int COLUMNS, bool FILLED>
DEV void group_packed(struct warp_context *c, const struct few *f, uint32_t n,
                      struct fragments<COLUMNS> x, bool seen) {
    const struct linear_tile *t = &f->t;
    constexpr int GROUP = cuda_packed_group(COLUMNS);
    constexpr bool asks = asks_in_group<COLUMNS, FILLED>();
    static_assert(GROUP * COLUMNS <= 8, "registers");
    const uint32_t partial = (c->warp - c->turn) % WARPS;
    float chains[GROUP][COLUMNS][2][4] = {};
    for (uint32_t k0 = 0;;) {
        const bool there = k0 + partial < t->k_tiles; /* none: its pages are void */
        if (asks) x = fragments_await<COLUMNS, FILLED>(c, f, k0, seen);
#pragma unroll
        for (int b = 0; b < GROUP; b++) {
            if (b >= n) break;
            const uint4 *page = page_acquire(c);
            if (there) {
#pragma unroll
                for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
#pragma unroll
                    for (int i = 0; i < COLUMNS; i++)
                        mma_pair(chains[b][i], page, pair, c->lane, x.of[i][pair]);
                }
            }
            page_release(c);
        }
        k0 += PARTIALS;
        if (k0 >= t->k_tiles) break;
        if (!asks) x = fragments_await<COLUMNS, FILLED>(c, f, k0, seen);
    }
#pragma unroll
    for (int b = 0; b < GROUP; b++)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (b < n) store_partial(t, c, b, partial, i, chains[b][i]);
}

/* Whole row blocks have them, if there is room. */
DEV struct few_wants few_wants_of(const struct linear_tile *t) {
    const struct cuda_task *task = t->task;
    const uint32_t sums = task->group * t->tile * (CUDA_PAGE_ROWS * PARTIALS * 4);
    const uint32_t residual = task->group * t->tile * (CUDA_PAGE_ROWS * 4);
    const bool can = task->kind == OP_LINEAR && task->more != 0 && task->norm != 0 &&
                     (task->flags & CUDA_MORE_FLAGGED) == 0 && task->units % CUDA_PAGE_ROWS == 0 &&
                     sums + residual + task->group * (CUDA_PAGE_ROWS * 4) <= SCRATCH_BYTES;
    if (!can) return {nullptr, nullptr};
    return {(float *)(SCRATCH + sums), (float *)(SCRATCH + sums + residual)};
}

/* Asks for those of row blocks [first, end). */
DEV void few_ask(const struct warp_context *c, const struct few *f, uint32_t first, uint32_t end) {
    constexpr uint32_t FOURS = CUDA_PAGE_ROWS / 4; /* of a row block */
    const struct linear_tile *t = &f->t;
    const struct few_wants *x = &f->wants;
    const struct cuda_task *task = t->task;
    if (x->residual == nullptr) return;
    for (uint32_t i = c->thread; i < (end - first) * t->n * FOURS; i += COMPUTE_THREADS) {
        const uint32_t four = i % FOURS, token = i / FOURS % t->n, in_group = i / FOURS / t->n;
        const uint64_t at = (uint64_t)(t->row0 + token) * task->units +
                            (first + in_group) * CUDA_PAGE_ROWS + 4 * four;
        copy16_polled_async(x->residual + (in_group * t->tile + token) * CUDA_PAGE_ROWS + 4 * four,
                            (const float *)task->more + at);
    }
    for (uint32_t i = c->thread; i < (end - first) * FOURS; i += COMPUTE_THREADS)
        copy16_async(x->norm + 4 * i, (const float *)task->norm + first * CUDA_PAGE_ROWS + 4 * i);
    copy_commit();
}

/* The residual that was asked for; where it was not there yet, asked for until it is. */
DEV float2 few_await(const struct cuda_task *task, uint32_t block, uint32_t r, uint32_t row,
                     float2 v) {
    while (word_is_empty(max(__float_as_uint(v.x), __float_as_uint(v.y))) && !act_given_up()) {
        const struct linear_item m = op_item(task, block, r, row);
        if (m.own0) v.x = __uint_as_float(load_word_polled(m.addend));
        if (m.own1) v.y = __uint_as_float(load_word_polled(m.addend + 8));
    }
    return v;
}

/* Turns a group's partial sums into results. Whole warps. Those of a single row, which is packed if
 * it is too long to be staged, may carry flags. */
template <int COLUMNS, bool FILLED>
DEV void group_finish(const struct warp_context *c, const struct few *f, uint32_t first,
                      uint32_t end) {
    const struct linear_tile *t = &f->t;
    const struct few_wants *x = &f->wants;
    const uint32_t n_items = (end - first) * 8 * t->n, r = c->lane % 8;
#pragma unroll 1
    for (uint32_t i = c->thread; i - c->lane < n_items; i += COMPUTE_THREADS) {
        const bool there = i < n_items;
        const uint32_t token = there ? i / 8 % t->n : 0, in_group = there ? i / 8 / t->n : 0;
        struct linear_item of = {};
        if (there) {
            of = op_item<COLUMNS == 1>(t->task, first + in_group, r, t->row0 + token);
            item_next(t->task, &of, first + in_group, r, t->row0 + token);
        }
        struct linear_addend add = {};
        float2 residual = {};
        if (x->residual != nullptr) {
            const float *at = x->residual + (in_group * t->tile + token) * CUDA_PAGE_ROWS + r;
            const float *norm = x->norm + in_group * CUDA_PAGE_ROWS + r;
            residual = make_float2(at[0], at[8]);
            of.norm = make_float2(norm[0], norm[8]);
        } else {
            if (there) item_norm(t->task, &of, first + in_group, r);
            add = addend_ask(&of);
        }
        float v0 = sum_partials(t, in_group, token, r);
        float v1 = sum_partials(t, in_group, token, r + 8);
        if (x->residual == nullptr) residual = addend_await(&of, &add);
        if (FILLED && t->task->flags & CUDA_MORE_FILLED)
            residual = few_await(t->task, first + in_group, r, t->row0 + token, residual);
        op_store<1, FILLED>(t->task, &of, r,
                            op_value(t->task, v0, v1, SHARED->inv_rms[token], of.bias, residual));
    }
}

/* 1 / rms of the tile's tokens: a warp has one of each eight. */
template <int COLUMNS, bool FILLED>
DEV void few_norms(const struct warp_context *c, const struct linear_tile *t) {
    const struct cuda_task *task = t->task;
    const float *blocks[COLUMNS];
    float sum[COLUMNS];
    if (task->kind == OP_LINEAR || c->warp >= t->n) return;
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const uint32_t row = op_token(task, t->row0 + min(c->warp + WARPS * i, t->n - 1));
        blocks[i] = (const float *)task->more2 + (uint64_t)row * task->n_pieces;
    }
    squares_of_blocks<COLUMNS, FILLED>(c, blocks, task->n_pieces, sum);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) {
        const float inv = inverse_rms_of(sum[i]);
        if (c->lane == 0 && c->warp + WARPS * i < t->n) SHARED->inv_rms[c->warp + WARPS * i] = inv;
    }
}

/* The end of the task's group of row blocks that begins with b. */
DEV uint32_t few_end(const struct cuda_task *task, uint32_t b) {
    return walk_group_end(b, task->block1, task->group, task->unit_blocks);
}

/* All groups of a token tile; what the first one wants is asked for, and x, which it begins with.
 * The last group's results are followed by no barrier. */
template <int COLUMNS, bool FILLED>
DEV void few_groups(struct warp_context *c, const struct few *f, struct fragments<COLUMNS> x) {
    const struct cuda_task *task = f->t.task;
#pragma unroll 1
    for (uint32_t b = task->block0;;) {
        const uint32_t end = few_end(task, b);
        group_packed<COLUMNS, FILLED>(c, f, end - b, x, b != task->block0);
        copy_wait<0>(); /* of few_ask */
        sync_compute();
        group_finish<COLUMNS, FILLED>(c, f, b, end);
        b = end;
        if (b >= task->block1) break;
        sync_compute();
        few_ask(c, f, b, few_end(task, b));
        if (!asks_in_group<COLUMNS, FILLED>()) x = fragments_ask<COLUMNS, FILLED>(c, f, 0);
    }
}

DEV struct few few_begin(const struct cuda_task *task) {
    struct few f;
    f.t = linear_begin(task, task->tile);
    f.t.n = min(task->row1, max(linear_rows(task), task->row0)) - task->row0;
    f.wants = few_wants_of(&f.t);
    f.rows = packed_piece(task->in, task->eights, task->row0, 0);
    f.next = task->eights * PACKED_PIECE;
    return f;
}

/* The event is activated. FILLED: activations, their squares and the residual stream may be empty
 * words all the same. */
template <int COLUMNS, bool FILLED> DEV void few_run(struct warp_context *c, const struct few *f) {
    const struct cuda_task *task = f->t.task;
    if (f->t.n == 0) {
        tile_skip(c, task);
        return;
    }
    struct fragments<COLUMNS> x;
    if (COLUMNS == 1) x = fragments_ask<COLUMNS, FILLED>(c, f, 0); /* one trip for all */
    few_norms<COLUMNS, FILLED>(c, &f->t);
    few_ask(c, f, task->block0, few_end(task, task->block0));
    if (COLUMNS > 1 && !FILLED)
        x = fragments_ask<COLUMNS, FILLED>(c, f, 0); /* no registers for more */
    if (COLUMNS == 1 && FILLED && !fragments_there<COLUMNS>(task, &x))
        x = fragments_await<COLUMNS, FILLED>(c, f, 0, false);
    few_groups<COLUMNS, FILLED>(c, f, x);
    if (task->kind != OP_LM_HEAD) return;
    sync_compute(); /* logits are stored */
    lm_parts(c->args, task, task->unit0, task->unit1, f->t.row0, f->t.row0 + f->t.n);
}

#endif
