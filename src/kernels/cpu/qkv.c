/* qkv.c - QKV: the query heads of this iteration and its rows of the KV cache.
 *
 * One unit is one head: query heads first, then key heads, then value heads. Steps for a head of a
 * row: dot products with the packed x * norm, times 1 / rms, plus bias; for queries and keys the
 * per-head RMSNorm and RoPE ("rotate half": pairs i, i + D/2) at the row's position. Queries go out
 * unscaled; keys and values go to the cache at the row's slot and position. */
#include "kernels/cpu/qkv.h"

struct qkv_scratch {
    void *pack; /* a block of rows of x * norm */
    float *y;   /* [block, D] dot products of one head */
    size_t bytes;
};

static struct qkv_scratch layout(void *base, uint32_t block, uint32_t k, uint32_t D) {
    struct tile_scratch s = {.base = base};
    struct qkv_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(block, k));
    l.y = tile_take(&s, (size_t)block * D * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_qkv_scratch(const struct prog_header *program, const struct prog_op *op) {
    uint32_t D = PROG(program, MODEL)->head_dim;
    return layout(NULL, tile_op_block(op, op->k), op->k, D).bytes;
}

/* Where a unit's weights are and where its results go. */
struct head {
    const void *w; /* [D, H] */
    const float *bias, *norm;
    uint32_t idx; /* among the heads of its kind */
    int which;    /* 0 key, 1 value, -1 query */
};

static struct head head_of_unit(const struct cpu_task *t, uint32_t unit) {
    uint32_t D = t->op->attrs.D, n_q = t->op->attrs.heads, n_kv = t->op->attrs.kv;
    int kind = unit < n_q ? 0 : unit < n_q + n_kv ? 1 : 2; /* q, k, v: the order of the slots */
    struct head h = {.idx = unit - (kind > 0 ? n_q : 0) - (kind > 1 ? n_kv : 0), .which = kind - 1};
    enum dtype dtype = tile_in_dtype(t, QKV_WQ + kind);
    h.w = tile_weight_row(tile_in(t, QKV_WQ + kind), dtype, (uint64_t)h.idx * D, t->op->k);
    const float *bias = tile_in(t, QKV_BQ + kind);
    h.bias = bias != NULL ? bias + (size_t)h.idx * D : NULL;
    h.norm = kind == 0 ? tile_in(t, QKV_Q_NORM) : kind == 1 ? tile_in(t, QKV_K_NORM) : NULL;
    return h;
}

/* Finishes a head from its dot products y[D] and stores it in its place. */
static void finish_head(const struct cpu_task *t, const struct head *h, uint32_t row, float inv,
                        float *y) {
    qkv_scale(y, t->op->attrs.D, inv, h->bias);
    qkv_place_head(t, h->which, h->idx, h->norm, row, y);
}

void cpu_qkv(const struct cpu_task *t) {
    const float *input = tile_in(t, QKV_X); /* [T, H] */
    enum dtype dtype = tile_in_dtype(t, QKV_WQ);
    uint32_t k = t->op->k, D = t->op->attrs.D;
    uint32_t block = tile_op_block(t->op, k), end = tile_row_end(t, t->batch->rows.n_rows);
    struct qkv_scratch l = layout(t->scratch, block, k, D);
    for (uint32_t r = t->task->row0; r < end; r += block) {
        uint32_t n = end - r < block ? end - r : block;
        const float *x[TILE_MAX_ROWS];
        float inv[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) x[i] = input + (size_t)(r + i) * k;
        tile_pack_norm(t, dtype, x, tile_in(t, QKV_NORM), n, k, l.pack, inv);
        for (uint32_t u = t->task->unit0; u < t->task->unit1; u++) {
            struct head h = head_of_unit(t, u);
            t->isa->gemm[dtype](CPU_SUM_WHOLE, h.w, D, k, l.pack, n, l.y, D);
            for (uint32_t i = 0; i < n; i++) finish_head(t, &h, r + i, inv[i], l.y + (size_t)i * D);
        }
    }
}
