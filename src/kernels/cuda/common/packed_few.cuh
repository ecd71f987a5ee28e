/* packed_few.cuh - packed activations of 8 or 16 token rows: decode of a batch.
 *
 * Pages stream as for one row; nothing is leased. Warp w has the k-tiles of its partial sum and
 * holds their activations in registers while the pages of a group of row blocks pass:
 *
 *   per group   for its k-tiles: activations from L2, COLUMNS * 4 KB ─ a page per row block
 *               partial sums ─ barrier ─ results
 *
 * Bytes per page of 8 KB: COLUMNS * 4 KB / row blocks of the group, from L2.
 */
#ifndef QN_CUDA_COMMON_PACKED_FEW_CUH
#define QN_CUDA_COMMON_PACKED_FEW_CUH

#include "kernels/cuda/common/packed.cuh"

/* The lane's B registers of a k-tile, for the eight token rows whose first piece `from` is; the
 * next one is so many bytes further. */
DEV void fragments_load(const char *from, uint32_t next, uint32_t lane, uint4 x[CUDA_PAGE_K / 32]) {
#pragma unroll
    for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
        const uint32_t *at = (const uint32_t *)(from + pair / 2 * next) + pair % 2 * 128 + lane;
        x[pair] = make_uint4(load_word_l2(at), load_word_l2(at + 32), load_word_l2(at + 64),
                             load_word_l2(at + 96));
    }
}

template <int COLUMNS>
DEV void group_packed(struct warp_context *c, const struct linear_tile *t, uint32_t n) {
    constexpr int GROUP = cuda_packed_group(COLUMNS);
    static_assert(GROUP * COLUMNS <= 8, "registers");
    const uint32_t partial = (c->warp - c->turn) % WARPS;
    float chains[GROUP][COLUMNS][2][4] = {};
    const char *rows = packed_piece(t->task->in, t->task->eights, t->row0, 0);
    const uint32_t next = t->task->eights * PACKED_PIECE;
    for (uint32_t k0 = 0; k0 < t->k_tiles; k0 += PARTIALS) {
        const uint32_t k_tile = k0 + partial; /* none: its pages are void */
        const char *from = rows + (uint64_t)(min(k_tile, t->k_tiles - 1) * 4) * next;
        uint4 x[COLUMNS][CUDA_PAGE_K / 32];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            fragments_load(from + i * PACKED_PIECE, next, c->lane, x[i]);
#pragma unroll
        for (int b = 0; b < GROUP; b++) {
            if (b >= n) break;
            const uint4 *page = page_acquire(c);
            if (k_tile < t->k_tiles) {
#pragma unroll
                for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
#pragma unroll
                    for (int i = 0; i < COLUMNS; i++)
                        mma_pair(chains[b][i], page, pair, c->lane, x[i][pair]);
                }
            }
            page_release(c);
        }
    }
#pragma unroll
    for (int b = 0; b < GROUP; b++)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (b < n) store_partial(t, c, b, partial, i, chains[b][i]);
}

/* Turns a group's partial sums into results. Whole warps. Those of a single row, which is packed if
 * it is too long to be staged, may carry flags. */
template <int COLUMNS>
DEV void group_finish(const struct warp_context *c, const struct linear_tile *t, uint32_t first,
                      uint32_t end) {
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
        const struct linear_addend add = addend_ask(&of);
        float v0 = sum_partials(t, in_group, token, r);
        float v1 = sum_partials(t, in_group, token, r + 8);
        op_store<1>(
            t->task, &of, first + in_group, r,
            op_value(t->task, v0, v1, SHARED->inv_rms[token], of.bias, addend_await(&of, &add)));
    }
}

/* 1 / rms of the tile's tokens, a warp each. */
DEV void few_norms(const struct warp_context *c, const struct linear_tile *t) {
    const struct cuda_task *task = t->task;
    if (task->kind == OP_LINEAR) return;
#pragma unroll 1
    for (uint32_t i = c->warp; i < t->n; i += WARPS) {
        const float *parts =
            (const float *)task->more2 + (uint64_t)op_token(task, t->row0 + i) * task->n_pieces;
        const float inv = inverse_rms_of(squares_of_row(c, parts, task->n_pieces));
        if (c->lane == 0) SHARED->inv_rms[i] = inv;
    }
}

/* All groups of a token tile. The last group's results are followed by no barrier. */
template <int COLUMNS> DEV void few_groups(struct warp_context *c, const struct linear_tile *t) {
    const struct cuda_task *task = t->task;
#pragma unroll 1
    for (uint32_t b = task->block0; b < task->block1;) {
        uint32_t end = walk_group_end(b, task->block1, task->group, task->unit_blocks);
        group_packed<COLUMNS>(c, t, end - b);
        sync_compute();
        group_finish<COLUMNS>(c, t, b, end);
        b = end;
        if (b < task->block1) sync_compute();
    }
}

/* The event is activated. */
template <int COLUMNS>
DEV void packed_few_task(struct warp_context *c, const struct cuda_task *task) {
    const uint32_t n_rows = linear_rows(task);
    struct linear_tile t = linear_begin(task, task->tile);
    if (task->row0 >= n_rows) {
        tile_skip(c, task);
        return;
    }
    t.n = min(task->row1, n_rows) - task->row0;
    few_norms(c, &t);
    few_groups<COLUMNS>(c, &t);
    if (task->kind != OP_LM_HEAD) return;
    sync_compute(); /* logits are stored */
    lm_parts(c->args, task, task->unit0, task->unit1, t.row0, t.row0 + t.n);
}

#endif
