/* linear.cuh - matrix times activations, the core of QKV, LINEAR, GATED_MLP and LM_HEAD.
 *
 * Per task: weights of its row blocks once per token tile (8 KB per 16 x 256 weights), 2 * 16 * 256
 * operations per page and token; at batch 1 bound by memory: one page per 615 cycles and SM on an
 * H100, while eight warps need about 100.
 *
 * Scratch (SCRATCH_BYTES):
 *
 *   0                 results of one unit (QKV, LM_HEAD)
 *   + results         staged: activations, ACT_STRIDE per token
 *   + activations     partial sums [group][tile tokens][16 rows][PARTIALS] F32
 *
 * Here: what all share, and tasks of many rows. Tasks of few: staged.cuh. What is particular to an
 * operator is in qkv.cuh, lm_head.cuh and ops_linear.cuh, which picks by kind, so that this code
 * exists once.
 */
#ifndef QN_CUDA_COMMON_LINEAR_CUH
#define QN_CUDA_COMMON_LINEAR_CUH

#include "kernels/cuda/common/act.cuh"
#include "kernels/cuda/common/trace.cuh"

/* What finishing an item (image rows r and r + 8 of a row block, and a token) needs but for its
 * sums: nothing that other tasks give, so it is found before the event. */
struct linear_item {
    float *out;          /* where v0 goes; v1: 8 elements further. Packed h: its 16 bits */
    float2 bias;         /* of v0, v1; GATED_MLP: of gate, up */
    const float *addend; /* residual of v0, plain or flagged; NULL: none */
    uint32_t flag;       /* the residual's */
    uint32_t out_flag;   /* the result's; 0: it is plain */
    bool own0, own1;     /* whether the task writes v0, v1 */
};

/* The residual's two elements on their way. */
struct linear_addend {
    uint2 v0, v1;
};

/* 64 bytes apart modulo 128, so that two tokens' 64-byte pieces never share banks. */
#define ACT_STRIDE(k_tiles) ((k_tiles)*CUDA_PAGE_K * 2 + 64)

/* A token tile of a task at work. */
struct linear_tile {
    const struct cuda_task *task;
    uint32_t k, k_tiles;
    uint32_t row0, n; /* token rows [row0, row0 + n) */
    uint32_t tile;    /* tokens that partial sums have room for */
    char *act;
    float *partials;
};

/* ops_linear.cuh. The activations of a token row (of a logit row for the LM head): k floats. */
DEV struct act op_row(const struct cuda_task *task, uint32_t row);
/* FLAGS: whether its data may carry them; that of packed activations does not (task/carry.c). */
template <bool FLAGS = false>
DEV struct linear_item op_item(const struct cuda_task *task, uint32_t block, uint32_t r,
                               uint32_t row);
/* v0, v1: the dot products of an item; inv: 1 / rms of its token. */
DEV void op_finish(const struct warp_context *c, const struct cuda_task *task,
                   const struct linear_item *m, uint32_t block, uint32_t r, uint32_t token,
                   float v0, float v1, float inv, const struct linear_addend *add);
/* Two items of a single row that are stored as a pair: image rows r and r + 8, r + 1 and r + 9. */
DEV void op_finish_pair(const struct cuda_task *task, const struct linear_item *m, uint32_t block,
                        uint32_t r, float inv, float v0, float v1, float v2, float v3);
/* All results of a unit are in scratch. */
DEV void op_finish_unit(const struct warp_context *c, const struct linear_tile *t, uint32_t unit);

/* Asks for the residual; addend_await has it. */
DEV struct linear_addend addend_ask(const struct linear_item *m) {
    struct linear_addend a = {};
    if (m->addend == nullptr) return a;
    if (m->flag != 0) {
        if (m->own0) a.v0 = load_flagged(m->addend);
        if (m->own1) a.v1 = load_flagged(m->addend + 16);
    } else {
        if (m->own0) a.v0.x = __float_as_uint(load_l2(m->addend));
        if (m->own1) a.v1.x = __float_as_uint(load_l2(m->addend + 8));
    }
    return a;
}

DEV float2 addend_await(const struct linear_item *m, const struct linear_addend *a) {
    uint2 v0 = a->v0, v1 = a->v1;
    while (m->own0 && v0.y != m->flag && !act_given_up()) v0 = load_flagged(m->addend);
    while (m->own1 && v1.y != m->flag && !act_given_up()) v1 = load_flagged(m->addend + 16);
    return make_float2(__uint_as_float(v0.x), __uint_as_float(v1.x));
}

/* One step pair of one page against one column of 8 tokens: chain 0 the even step, chain 1 the odd
 * one. b: the B registers of both. */
DEV void mma_pair(float chains[2][4], const uint4 *page, uint32_t pair, uint32_t lane, uint4 b) {
    mma_16x8x16<WEIGHT_E>(chains[0], page[(2 * pair) * 32 + lane], b.x, b.y);
    mma_16x8x16<WEIGHT_E>(chains[1], page[(2 * pair + 1) * 32 + lane], b.z, b.w);
}

/* Rows that the iteration has for the task's operator. */
DEV uint32_t linear_rows(const struct cuda_task *task) {
    const struct rt_rows *rows = &SHARED->batch.rows;
    const bool logits = task->kind == OP_LM_HEAD || task->kind == OP_PACK_LOGITS;
    return logits ? rows->n_logit_rows : rows->n_rows;
}

/* The partial sums of image row r of a row block of the group: PARTIALS of them. */
DEV float *partials_of(const struct linear_tile *t, uint32_t in_group, uint32_t token, uint32_t r) {
    return t->partials + ((in_group * t->tile + token) * CUDA_PAGE_ROWS + r) * PARTIALS;
}

/* Partial sums of one row block for one column of 8 tokens, chains added. */
DEV void store_partial(const struct linear_tile *t, const struct warp_context *c, uint32_t in_group,
                       uint32_t partial, uint32_t column, float chains[2][4]) {
    const uint32_t g = c->lane / 4, token = 8 * column + 2 * (c->lane % 4);
    float *dst = partials_of(t, in_group, token, g) + partial;
    if (token < t->tile) {
        dst[0] = chains[0][0] + chains[1][0];
        dst[8 * PARTIALS] = chains[0][2] + chains[1][2];
    }
    if (token + 1 < t->tile) {
        dst[CUDA_PAGE_ROWS * PARTIALS] = chains[0][1] + chains[1][1];
        dst[(CUDA_PAGE_ROWS + 8) * PARTIALS] = chains[0][3] + chains[1][3];
    }
}

/* 8 activations, times the norm's weights at k, as two steps' B registers. */
DEV uint4 pack_direct(float4 lo, float4 hi, const float *norm, uint32_t k) {
    float4 scale_lo = make_float4(1, 1, 1, 1), scale_hi = scale_lo;
    if (norm != nullptr) {
        scale_lo = __ldg((const float4 *)(norm + k));
        scale_hi = __ldg((const float4 *)(norm + k + 4));
    }
    uint2 even = pack_scaled(lo, scale_lo), odd = pack_scaled(hi, scale_hi);
    return make_uint4(even.x, even.y, odd.x, odd.y);
}

/* Those at k of a flagged row, when they are there. Not inlined: many loads are in one place, and
 * flags are rare among as many rows. */
__device__ __noinline__ uint4 load_direct_flagged(const float *row, uint32_t flag,
                                                  const float *norm, uint32_t k) {
    const struct act a = {row, flag};
    const struct act_words lo = act_ask4(a, k / 4), hi = act_ask4(a, k / 4 + 1);
    return pack_direct(act_await4(a, k / 4, lo), act_await4(a, k / 4 + 1, hi), norm, k);
}

DEV uint4 load_direct(struct act row, const float *norm, uint32_t k, uint32_t k_end) {
    if (k >= k_end) return make_uint4(0, 0, 0, 0);
    if (row.flag != 0) return load_direct_flagged(row.at, row.flag, norm, k);
    return pack_direct(load4_l2(row.at + k), load4_l2(row.at + k + 4), norm, k);
}

/* n <= GROUP row blocks, columns of 8 tokens, activations of a whole k-tile in registers: for up to
 * 16 tokens. rows[i]: this lane's token of column i. */
template <int COLUMNS, int GROUP>
DEV void group_resident(struct warp_context *c, const struct linear_tile *t, const struct act *rows,
                        const float *norm, uint32_t n) {
    const uint32_t partial = (c->warp - c->turn) % WARPS;
    float chains[GROUP][COLUMNS][2][4] = {};
    for (uint32_t k0 = 0; k0 < t->k_tiles; k0 += PARTIALS) {
        const uint32_t k = (k0 + partial) * CUDA_PAGE_K;
        uint4 x[COLUMNS][CUDA_PAGE_K / 32];
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
#pragma unroll
            for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
                x[i][pair] = load_direct(rows[i], norm, k + 32 * pair + 8 * (c->lane % 4), t->k);
#pragma unroll
        for (int b = 0; b < GROUP; b++) {
            if (b >= n) break;
            const uint4 *page = page_acquire(c);
            if (k < t->k) { /* else a void page */
#pragma unroll
                for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++)
#pragma unroll
                    for (int i = 0; i < COLUMNS; i++)
                        mma_pair(chains[b][i], page, pair, c->lane, x[i][pair]);
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

/* The same for more tokens: activations pass by 32 columns of k at a time, all pages of the group
 * held meanwhile. */
template <int COLUMNS, int GROUP>
DEV void group_passing(struct warp_context *c, const struct linear_tile *t, const struct act *rows,
                       const float *norm, uint32_t n) {
    static_assert(GROUP <= RING_DEPTH, "a warp holds the pages of a whole group");
    const uint32_t partial = (c->warp - c->turn) % WARPS;
    float chains[GROUP][COLUMNS][2][4] = {};
    for (uint32_t k0 = 0; k0 < t->k_tiles; k0 += PARTIALS) {
        const uint32_t k = (k0 + partial) * CUDA_PAGE_K;
        const uint4 *page[GROUP];
        uint32_t count = c->page;
#pragma unroll
        for (int b = 0; b < GROUP; b++) {
            page[b] = page[0];
            if (b >= n) break;
            uint32_t slot = page_slot(c->warp, count);
            barrier_wait_acquire_cta(&SHARED->page_full[slot], page_parity(count));
            page[b] = (const uint4 *)(RING + slot * CUDA_PAGE_BYTES);
            count = page_next(count);
        }
        if (k < t->k) {
#pragma unroll 1
            for (int pair = 0; pair < CUDA_PAGE_K / 32; pair++) {
                uint4 x[COLUMNS];
#pragma unroll
                for (int i = 0; i < COLUMNS; i++)
                    x[i] = load_direct(rows[i], norm, k + 32 * pair + 8 * (c->lane % 4), t->k);
#pragma unroll
                for (int b = 0; b < GROUP; b++)
#pragma unroll
                    for (int i = 0; i < COLUMNS; i++)
                        if (b < n) mma_pair(chains[b][i], page[b], pair, c->lane, x[i]);
            }
        }
        for (int b = 0; b < n; b++) page_release(c);
    }
#pragma unroll
    for (int b = 0; b < GROUP; b++)
#pragma unroll
        for (int i = 0; i < COLUMNS; i++)
            if (b < n) store_partial(t, c, b, partial, i, chains[b][i]);
}

/* n row blocks of a token tile: their pages, partial sums. */
typedef void linear_group(struct warp_context *c, const struct linear_tile *t, uint32_t n);

/* A group with activations read from L2 by each warp. */
DEV void group_direct(struct warp_context *c, const struct linear_tile *t, uint32_t n) {
    const float *norm = (const float *)t->task->norm;
    struct act rows[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        rows[i] = op_row(t->task, t->row0 + min(8 * i + c->lane / 4, t->n - 1));
    switch (t->task->columns) {
    case 1: group_resident<1, 4>(c, t, rows, norm, n); break;
    case 2: group_resident<2, 2>(c, t, rows, norm, n); break;
    case 4: group_passing<4, (RING_DEPTH >= 2 ? 2 : 1)>(c, t, rows, norm, n); break;
    default: group_passing<8, 1>(c, t, rows, norm, n); break;
    }
}

/* The sum over partials of image row r of a row block of the group, in order. */
DEV float sum_partials(const struct linear_tile *t, uint32_t in_group, uint32_t token, uint32_t r) {
    static_assert(PARTIALS == 8, "two vectors");
    const float4 *p = (const float4 *)partials_of(t, in_group, token, r);
    const float4 lo = p[0], hi = p[1];
    const float v[PARTIALS] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < PARTIALS; i++)
        if (i < t->k_tiles) sum += v[i];
    return sum;
}

/* Item i of a group: 8 rows r, then tokens, then row blocks. */
struct item {
    uint32_t in_group, r, token;
};
DEV struct item item_of(const struct linear_tile *t, uint32_t i) {
    if (t->n == 1) return item{i / 8, i % 8, 0};
    return item{i / 8 / t->n, i % 8, i / 8 % t->n};
}

/* Sums of squares alone. */
DEV void tile_rms(const struct warp_context *c, const struct linear_tile *t) {
    if (t->task->norm == 0) return;
#pragma unroll 1
    for (uint32_t i = c->warp; i < t->n; i += WARPS) {
        float inv = rms_of_row(c, op_row(t->task, t->row0 + i), t->k);
        if (c->lane == 0) SHARED->inv_rms[i] = inv;
    }
}

/* Turns a group's partial sums into results. */
DEV void direct_finish(const struct warp_context *c, const struct linear_tile *t, uint32_t first,
                       uint32_t end) {
    const uint32_t n_items = (end - first) * 8 * t->n;
#pragma unroll 1
    for (uint32_t i = c->thread; i < n_items; i += COMPUTE_THREADS) {
        const struct item m = item_of(t, i);
        const uint32_t block = first + m.in_group;
        const struct linear_item of = op_item<true>(t->task, block, m.r, t->row0 + m.token);
        const struct linear_addend add = addend_ask(&of);
        float v0 = sum_partials(t, m.in_group, m.token, m.r);
        float v1 = sum_partials(t, m.in_group, m.token, m.r + 8);
        op_finish(c, t->task, &of, block, m.r, m.token, v0, v1, SHARED->inv_rms[m.token], &add);
    }
}

/* All groups of a token tile. The last group's results are followed by no barrier. */
template <linear_group GROUP>
DEV void direct_groups(struct warp_context *c, const struct linear_tile *t) {
    const struct cuda_task *task = t->task;
#pragma unroll 1
    for (uint32_t b = task->block0; b < task->block1;) {
        uint32_t end = walk_group_end(b, task->block1, task->group, task->unit_blocks);
        GROUP(c, t, end - b);
        sync_compute();
        direct_finish(c, t, b, end);
        if (task->unit_blocks != 0 && end % task->unit_blocks == 0) {
            sync_compute();
            op_finish_unit(c, t, end / task->unit_blocks - 1);
        }
        b = end;
        if (b < task->block1) sync_compute();
    }
}

/* A tile whose rows are all beyond the iteration's: its pages come all the same. */
DEV void tile_skip(struct warp_context *c, const struct cuda_task *task) {
    uint32_t n_blocks = task->block1 - task->block0;
    uint32_t n = n_blocks * task->k_tiles;
    if (task->columns != 0) n = n_blocks * ceil_div(task->k_tiles, PARTIALS) * PARTIALS;
    for (uint32_t i = (c->warp - c->turn) % WARPS; i < n; i += WARPS) {
        page_acquire(c);
        page_release(c);
    }
    c->turn = turn_after(c->turn, n);
}

DEV struct linear_tile linear_begin(const struct warp_context *c, const struct cuda_task *task,
                                    uint32_t unit_rows, uint32_t tile) {
    struct linear_tile t;
    t.task = task;
    t.k = task->k;
    t.k_tiles = task->k_tiles;
    t.tile = tile;
    t.row0 = task->row0;
    t.n = 0;
    t.act = SCRATCH + 4 * unit_rows * t.tile;
    t.partials = (float *)(t.act + (task->columns == 0 ? t.tile * ACT_STRIDE(t.k_tiles) : 0));
    return t;
}

/* A task of many rows, tile by tile. */
DEV void linear_direct(struct warp_context *c, const struct cuda_task *task, uint32_t n_rows,
                       uint32_t unit_rows) {
    struct linear_tile t = linear_begin(c, task, unit_rows, task->tile);
#pragma unroll 1
    for (uint32_t row = task->row0; row < task->row1; row += t.tile) {
        uint32_t end = min(min(row + t.tile, task->row1), n_rows);
        if (row >= end) {
            tile_skip(c, task);
            continue;
        }
        if (row != task->row0) sync_compute();
        t.row0 = row;
        t.n = end - row;
        tile_rms(c, &t);
        direct_groups<group_direct>(c, &t);
    }
}

#endif
