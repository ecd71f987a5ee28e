/* tile_results.cuh - an operator's results from a tile's parked sums. */
#ifndef QN_CUDA_MATMUL_TILE_RESULTS_CUH
#define QN_CUDA_MATMUL_TILE_RESULTS_CUH

#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/tile_ring.cuh"

/* The part of a row block's row that does not depend on the token. */
struct tile_row {
    const float *residual; /* of token 0, or NULL; for the row 8 further: 8 elements further */
    float2 bias;
    bool own0, own1;
};

/* Turns a lane's sums of a row block and up to four times eight tokens, as products leave them,
 * into values: its row and the eighth after it, for two tokens of each eight. The whole residual is
 * requested first. Rows past the end give garbage, which is never stored. */
DEV void columns_value(const struct cuda_task *task, const struct tile_at *tile,
                       const struct tile_row *t, uint32_t row, float *parked, uint32_t n) {
    const int AT_ONCE = 4;
    float2 residual[AT_ONCE][2] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        if (i >= n) break;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t at = min(row + 8 * i + e, tile->row_end - 1);
            const float *from = t->residual + (uint64_t)at * task->units;
            if (t->residual != nullptr && t->own0) residual[i][e].x = load_l2(from);
            if (t->residual != nullptr && t->own1) residual[i][e].y = load_l2(from + 8);
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++, parked += to_eighth_token(tile)) {
        if (i >= n) break;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float *sum = parked + e * to_token(tile);
            const float2 v = op_value(task, sum[0], sum[TO_EIGHTH_COLUMN],
                                      tile_norm_of(row + 8 * i + e), t->bias, residual[i][e]);
            sum[0] = v.x;
            sum[TO_EIGHTH_COLUMN] = v.y;
        }
    }
}

/* Bytes from an item's places to those of the next token, and to those of the eighth token after
 * it. */
struct tile_steps {
    uint32_t out, normed, squares, out8, normed8;
};
DEV struct tile_steps tile_steps_of(const struct cuda_task *task) {
    const uint32_t plain = 4 * task->units;
    const uint32_t packed = 16, packed8 = PACKED_PIECE;
    const bool is_packed = (task->flags & CUDA_OUT_PACKED) != 0;
    const bool out_packed = is_packed && task->kind == OP_GATED_MLP;
    return {out_packed ? packed : plain, is_packed ? packed : plain, 4u * task->n_pieces,
            out_packed ? packed8 : 8 * plain, is_packed ? packed8 : 8 * plain};
}

DEV void item_advance(struct linear_item *m, uint32_t out, uint32_t normed, uint32_t squares) {
    m->out = (float *)((char *)m->out + out);
    m->normed = (float *)((char *)m->normed + normed);
    if (m->squares != nullptr) m->squares = (float *)((char *)m->squares + squares);
}

/* ---- results of many at a time ----
 *
 * The lanes that have the sums would read and write a token's row 32 bytes at a time: a tile of 128
 * x 128 of O took 12 us that way (H200). Because sums are parked, other lanes can do it, whole
 * lines at a time. */

/* How warps go through a tile by token: `lanes` lanes have a token's stretch of columns, four
 * columns each. A tile of more columns has several stretches. */
struct tile_walk {
    uint32_t lanes, stretches;
    uint32_t first, step; /* the warp's first token of the tile; tokens to its next */
    uint32_t token;       /* the lane's token, from the warp's on */
    uint32_t n;           /* tokens of the tile */
};
DEV struct tile_walk walk_of(const struct warp_context *c, const struct tile_at *t) {
    struct tile_walk w;
    const uint32_t fours = t->wb * t->down * 4;
    w.lanes = fours >= 32 ? 32 : fours;
    w.stretches = ceil_div(fours, 32);
    w.first = c->warp * (32 / w.lanes);
    w.step = WARPS * (32 / w.lanes);
    w.token = c->lane / w.lanes;
    w.n = tile_tokens(t);
    return w;
}

/* The lane's four columns of a stretch: in the tile, in the operator; whether the task has them. */
struct walk_four {
    uint32_t in_tile, column;
    bool own;
};
DEV struct walk_four walk_four_at(const struct warp_context *c, const struct tile_at *t,
                                  const struct tile_walk *w, uint32_t stretch, uint32_t columns) {
    struct walk_four f;
    f.in_tile = (stretch * w->lanes + c->lane % w->lanes) * 4;
    f.column = t->block * CUDA_PAGE_ROWS + f.in_tile;
    f.own = f.in_tile < (t->end - t->block) * CUDA_PAGE_ROWS && f.column < columns;
    return f;
}

DEV void plain_store4(float *to, float4 v, uint32_t column, uint32_t columns) {
    if (columns % 4 == 0) {
        store4_plain(to, v);
    } else {
        const float e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (column + i < columns) store_plain(to + i, e[i]);
    }
}

/* Stores results of QKV_LINEAR: sums times 1 / rms. */
DEV void plain_finish(const struct warp_context *c, const struct cuda_task *task,
                      const struct tile_at *t) {
    const uint32_t columns = QKV_COLUMNS(task);
    const struct tile_walk w = walk_of(c, t);
#pragma unroll 1
    for (uint32_t stretch = 0; stretch < w.stretches; stretch++) {
        const struct walk_four f = walk_four_at(c, t, &w, stretch, columns);
        float4 bias = make_float4(0, 0, 0, 0);
        const bool biased = QN_QKV_BIAS && task->bias != 0;
        if (biased && f.own) bias = __ldg((const float4 *)((const float *)task->bias + f.column));
#pragma unroll 4
        for (uint32_t at = w.first + w.token; at < w.n; at += w.step) {
            float4 v = tile_four(t, at, f.in_tile);
            float *to = (float *)task->out + (uint64_t)(t->row + at) * columns + f.column;
            v = times4(v, tile_norm_of(t->row + at));
            if (biased) v = add4(v, bias);
            if (f.own) plain_store4(to, v, f.column, columns);
        }
    }
}

/* Stores results of LM_HEAD, whose tiles are whole units: logits, and the maximum and sum of each
 * token's unit, in one pass. Eight lanes have a unit: lane m has columns 4 m to 4 m + 3 and those
 * 32 further. Exponentials are added up as by lm_parts_of. */
DEV void lm_tile_finish(const struct warp_context *c, const struct cuda_task *task,
                        const struct tile_at *t) {
    const int AT_ONCE = 2; /* tokens of a lane at a time */
    const uint32_t unit0 = t->block / LM_UNIT_BLOCKS, units = (t->end - t->block) / LM_UNIT_BLOCKS;
    const uint32_t n = tile_tokens(t), m = c->lane % 8;
#pragma unroll 1
    for (uint32_t u = 0; u < units; u++)
#pragma unroll 1
        for (uint32_t first = 4 * c->warp; first < n; first += 4 * WARPS * AT_ONCE) {
            const uint32_t column = (unit0 + u) * LM_BLOCK + 4 * m;
            float v[AT_ONCE][8], most[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const uint32_t at = first + 4 * WARPS * i + c->lane / 8, token = min(at, n - 1);
                const float inv = tile_norm_of(t->row + token);
                float *to = lm_logits(task, t->row + token) + column;
                most[i] = -INFINITY;
#pragma unroll
                for (uint32_t h = 0; h < 2; h++) {
                    const float4 x =
                        times4(tile_four(t, token, u * LM_BLOCK + 32 * h + 4 * m), inv);
                    const float e[4] = {x.x, x.y, x.z, x.w};
                    if (at < n && column + 32 * h < QN_VOCAB)
                        plain_store4(to + 32 * h, x, column + 32 * h, QN_VOCAB);
#pragma unroll
                    for (uint32_t q = 0; q < 4; q++) {
                        const bool there = column + 32 * h + q < QN_VOCAB;
                        v[i][4 * h + q] = there ? not_nan(e[q]) : -INFINITY;
                        most[i] = fmaxf(most[i], v[i][4 * h + q]);
                    }
                }
            }
#pragma unroll
            for (int d = 4; d > 0; d /= 2)
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], d));
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const uint32_t at = first + 4 * WARPS * i + c->lane / 8;
                float sum[4];
#pragma unroll
                for (int q = 0; q < 4; q++)
                    sum[q] = most[i] > -INFINITY
                                 ? expf(v[i][q] - most[i]) + expf(v[i][4 + q] - most[i])
                                 : 0;
#pragma unroll
                for (int d = 4; d > 0; d /= 2)
#pragma unroll
                    for (int q = 0; q < 4; q++) sum[q] += __shfl_xor_sync(~0u, sum[q], d);
                if (m == 0 && at < n)
                    *lm_part(task, t->row + at, unit0 + u) =
                        make_float2(most[i], (sum[0] + sum[2]) + (sum[1] + sum[3]));
            }
        }
}

#include "kernels/cuda/matmul/qkv_fused.cuh"

/* A *patch* is 8 tokens x 32 columns of a tile. If a lane has four columns, and eight lanes have a
 * token, a warp has whole lines of rows. If a lane has eight columns, and eight lanes have the same
 * columns, a warp has whole lines of packed rows. All patches of a warp have the same columns: the
 * number of patches side by side divides the number of warps, so some patches may be empty. */
enum { PATCH_COLUMNS = 32, PATCHES_AT_ONCE = HAS_BULK_COPIES ? 4 : 2 /* four spill on sm_80 */ };

/* The patches of a tile. */
struct tile_patches {
    uint32_t n, across, tokens, columns;
    uint32_t column; /* the tile's first one in the operator */
};
DEV struct tile_patches patches_of(const struct cuda_task *task, const struct tile_at *t) {
    struct tile_patches p;
    p.column = t->block * CUDA_PAGE_ROWS;
    p.tokens = tile_tokens(t);
    p.columns = min((t->end - t->block) * CUDA_PAGE_ROWS, task->units - p.column);
    p.across = p.columns > 4 * PATCH_COLUMNS   ? 8
               : p.columns > 2 * PATCH_COLUMNS ? 4
               : p.columns > PATCH_COLUMNS     ? 2
                                               : 1;
    p.n = p.across * ceil_div(p.tokens, 8);
    return p;
}

/* The first tokens of some patches of a warp, from patch number `first` on. Beyond the last patch
 * comes the warp's first one again, whose results are not stored twice. */
struct patches_at {
    uint32_t token[PATCHES_AT_ONCE];
    bool there[PATCHES_AT_ONCE];
};
DEV struct patches_at patches_from(const struct warp_context *c, const struct tile_patches *p,
                                   uint32_t first) {
    struct patches_at at;
#pragma unroll
    for (int j = 0; j < PATCHES_AT_ONCE; j++) {
        at.there[j] = first + j * WARPS < p->n;
        at.token[j] = (at.there[j] ? first + j * WARPS : c->warp) / p->across * 8;
    }
    return at;
}

/* What all of a warp's patches share: the lane's four columns of the tile and whether they exist;
 * the next norm's weights and the biases of these columns. */
struct patches_columns {
    uint32_t first, four;
    bool own;
    float4 norm, bias;
};
DEV struct patches_columns patches_columns_of(const struct warp_context *c,
                                              const struct cuda_task *task,
                                              const struct tile_patches *p) {
    struct patches_columns x;
    x.first = c->warp % p->across * PATCH_COLUMNS;
    x.own = x.first + c->lane % 8 * 4 < p->columns;
    x.four = x.own ? x.first + c->lane % 8 * 4 : 0;
    x.norm = __ldg((const float4 *)((const float *)task->norm + p->column + x.four));
    x.bias = make_float4(0, 0, 0, 0);
    if (LINEAR_BIASES && task->bias != 0)
        x.bias = __ldg((const float4 *)((const float *)task->bias + p->column + x.four));
    return x;
}

/* The lane's residual of some patches: of tokens lane / 8 and four further. */
struct patches_residual {
    float4 of[PATCHES_AT_ONCE][2];
};
DEV struct patches_residual patches_ask(const struct warp_context *c, const struct cuda_task *task,
                                        const struct tile_at *t, const struct tile_patches *p,
                                        const struct patches_columns *x,
                                        const struct patches_at *at) {
    struct patches_residual r = {};
    if (task->more == 0) return r;
    const float *from = (const float *)task->more + (uint64_t)t->row * task->units + p->column;
#pragma unroll
    for (int j = 0; j < PATCHES_AT_ONCE; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t token = min(at->token[j] + c->lane / 8 + 4 * h, p->tokens - 1);
            r.of[j][h] = load4_l2(from + (uint64_t)token * task->units + x->four);
        }
    return r;
}

/* Makes the residual stream of some patches, and the squares of its blocks. */
DEV void patches_add(const struct warp_context *c, const struct cuda_task *task,
                     const struct tile_at *t, const struct patches_columns *x,
                     const struct patches_at *at, const struct patches_residual *r,
                     float4 (&v)[PATCHES_AT_ONCE][2], float (&squares)[PATCHES_AT_ONCE][2]) {
#pragma unroll
    for (int j = 0; j < PATCHES_AT_ONCE; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t token = at->token[j] + c->lane / 8 + 4 * h; /* may be none: garbage */
            float4 sum = make_float4(0, 0, 0, 0);
            if (x->own) sum = tile_four(t, token, x->four);
            if (LINEAR_BIASES && task->bias != 0) sum = add4(sum, x->bias);
            v[j][h] = task->more != 0 ? add4(r->of[j][h], sum) : sum;
            squares[j][h] = squares_of_block(x->own ? v[j][h] : make_float4(0, 0, 0, 0));
        }
}

/* Stores the residual stream by rows; parks it times the next norm's weights. */
DEV void patches_store(const struct warp_context *c, const struct cuda_task *task,
                       const struct tile_at *t, const struct tile_patches *p,
                       const struct patches_columns *x, const struct patches_at *at,
                       const float4 (&v)[PATCHES_AT_ONCE][2],
                       const float (&squares)[PATCHES_AT_ONCE][2]) {
    const uint32_t k = p->column + x->four;
#pragma unroll
    for (int j = 0; j < PATCHES_AT_ONCE; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t token = at->token[j] + c->lane / 8 + 4 * h;
            const uint64_t row = t->row + token;
            if (!at->there[j] || token >= p->tokens || !x->own) continue;
            tile_put_four(t, token, x->four, mul4(v[j][h], x->norm));
            store4_plain((float *)task->out + row * task->units + k, v[j][h]);
            if (k % SQUARES_COLUMNS == 0)
                store_plain((float *)task->more2 + row * task->n_pieces + k / SQUARES_COLUMNS,
                            squares[j][h]);
        }
}

/* Stores packed what patches_store parked. */
DEV void patches_pack(const struct warp_context *c, const struct cuda_task *task,
                      const struct tile_at *t, const struct tile_patches *p,
                      const struct patches_columns *x, const struct patches_at *at) {
    const uint32_t column = x->first + c->lane / 8 * 8;
#pragma unroll
    for (int j = 0; j < PATCHES_AT_ONCE; j++) {
        const uint32_t token = at->token[j] + c->lane % 8;
        if (!at->there[j] || token >= p->tokens || column >= p->columns) continue;
        packed_store8(task, task->out2, t->row + token, p->column + column,
                      tile_four(t, token, column), tile_four(t, token, column + 4));
    }
}

/* Stores the residual stream and its packed copy for the next norm: the same bits as op_store,
 * which tile_row_finish calls item by item. Stores of the copy by rows filled half sectors: a
 * prompt of 2,048 tokens of Qwen3-8B took 65.5 ms instead of 65.1, 256 requests 12.49 instead of
 * 12.41 (H100). The next patches' residual is loaded while the current patches are made: a trip to
 * L2 is long here, behind the operands of the next tile. Between the patches of a warp there are no
 * branches, at which the compiler would end one patch before it begins the next. */
DEV void stream_finish(const struct warp_context *c, const struct cuda_task *task,
                       const struct tile_at *t) {
    const struct tile_patches p = patches_of(task, t);
    if (c->warp >= p.n) return;
    const struct patches_columns x = patches_columns_of(c, task, &p);
    struct patches_at at = patches_from(c, &p, c->warp);
    struct patches_residual next = patches_ask(c, task, t, &p, &x, &at);
#pragma unroll 1
    for (uint32_t first = c->warp; first < p.n;) {
        float4 v[PATCHES_AT_ONCE][2];
        float squares[PATCHES_AT_ONCE][2];
        const struct patches_residual now = next;
        const struct patches_at here = at;
        first += PATCHES_AT_ONCE * WARPS;
        at = patches_from(c, &p, first);
        next = patches_ask(c, task, t, &p, &x, &at);
        patches_add(c, task, t, &x, &here, &now, v, squares);
        patches_store(c, task, t, &p, &x, &here, v, squares);
        __syncwarp(); /* they are parked */
        patches_pack(c, task, t, &p, &x, &here);
    }
}

#if !QN_MLP_BIAS
/* Stores packed results of GATED_MLP: a lane has a row block's eight columns of a token's h; eight
 * lanes have the eight tokens of a piece. */
DEV void mlp_finish(const struct warp_context *c, const struct cuda_task *task,
                    const struct tile_at *t) {
    const struct linear_item none = {};
    const uint32_t n_blocks = t->end - t->block, n = tile_tokens(t), eights = ceil_div(n, 8);
#pragma unroll 1
    for (uint32_t four = 0; four < n_blocks; four += 4)
#pragma unroll 1
        for (uint32_t eight = c->warp; eight < eights; eight += WARPS) {
            const uint32_t block = four + c->lane / 8, at = eight * 8 + c->lane % 8;
            if (block >= n_blocks || at >= n) continue;
            const float inv = tile_norm_of(t->row + at);
            uint32_t *to =
                (uint32_t *)packed_at(task, task->out, t->row + at, (t->block + block) * 8);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t column = block * CUDA_PAGE_ROWS + 4 * i;
                const float4 g = times4(tile_four(t, at, column), inv);
                const float4 u = times4(tile_four(t, at, column + 8), inv);
                store_word(to + 64 * i, pack_pair<WEIGHT_E>(mlp_value(&none, g.x, u.x),
                                                            mlp_value(&none, g.y, u.y)));
                store_word(to + 64 * i + 32, pack_pair<WEIGHT_E>(mlp_value(&none, g.z, u.z),
                                                                 mlp_value(&none, g.w, u.w)));
            }
        }
}
#endif

/* ---- other results ---- */

/* Stores a row block's results for tokens row + 8 i + {0, 1}, i < t->wo, whose sums are parked. */
DEV void tile_row_finish(const struct warp_context *c, const struct cuda_task *task,
                         const struct tile_at *t, uint32_t block, uint32_t row, float *parked) {
    const uint32_t r = c->lane / 4, end = t->row_end;
    const struct linear_item first = op_item(task, block, r, 0);
    const struct tile_row own = {first.addend, first.bias, first.own0, first.own1};
#pragma unroll 1
    for (uint32_t i = 0; i < t->wo; i += 4)
        columns_value(task, t, &own, row + 8 * i, parked + i * to_eighth_token(t),
                      min(t->wo - i, 4u));
    const struct tile_steps step = tile_steps_of(task);
    struct linear_item even = op_item(task, block, r, row);
    item_norm(task, &even, block, r);
    item_next(task, &even, block, r, row);
#pragma unroll 1
    for (uint32_t i = 0; i < t->wo; i++, row += 8) { /* whole warps, whatever rows there are */
        const float *v = parked + i * to_eighth_token(t), *w = v + to_token(t);
        struct linear_item odd = even;
        item_advance(&odd, step.out, step.normed, step.squares);
        even.own0 = own.own0 && row < end;
        even.own1 = own.own1 && row < end;
        odd.own0 = own.own0 && row + 1 < end;
        odd.own1 = own.own1 && row + 1 < end;
        op_store<4>(task, &even, r, make_float2(v[0], v[TO_EIGHTH_COLUMN]));
        op_store<4>(task, &odd, r, make_float2(w[0], w[TO_EIGHTH_COLUMN]));
        item_advance(&even, step.out8, step.normed8, 8 * step.squares);
    }
}

/* Stores the tile's results. To be called between barriers (tile_norms_ask). One function for all
 * tiles: inlined into each it took a fifth of the kernel's compile time. */
CODE(void, tile_finish, const struct cuda_task *task, struct tile_at t) {
    const struct warp_context c = context_of(&SHARED->args, threadIdx.x, 0, 0);
    const bool packed = (task->flags & CUDA_OUT_PACKED) != 0;
    if (task->kind == OP_QKV_LINEAR) {
        plain_finish(&c, task, &t);
        return;
    }
#if HEADS_BY_TILE
    if (task->kind == OP_QKV_FUSED) {
        heads_finish(task, t);
        return;
    }
#endif
    if (task->kind == OP_LM_HEAD) {
        lm_tile_finish(&c, task, &t);
        return;
    }
    if (task->kind == OP_LINEAR && task->norm != 0 && packed) {
        stream_finish(&c, task, &t);
        return;
    }
#if !QN_MLP_BIAS
    if (task->kind == OP_GATED_MLP && packed) {
        mlp_finish(&c, task, &t);
        return;
    }
#endif
    const uint32_t block = c.warp % t.down * t.wb;
    const uint32_t token = c.warp / t.down * t.wo * 8 + 2 * (c.lane % 4);
#pragma unroll 1
    for (uint32_t n = block; n < block + t.wb && t.block + n < t.end; n++)
        tile_row_finish(&c, task, &t, t.block + n, t.row + token,
                        tile_parked(&t, token, n * CUDA_PAGE_ROWS + c.lane / 4));
}

#endif
