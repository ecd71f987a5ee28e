/* attention.c - ATTENTION whole, in pieces (SPLIT; STEP, which makes the heads, too), and the
 * pieces' sum (COMBINE).
 *
 * A context is attended to in pieces of ATTENTION_PIECE positions whose bounds are absolute. Each
 * piece starts afresh and runs block of KV cache by block; pieces are merged in order of position.
 * Whole and split forms do the same arithmetic in the same order, so they give the same bits. */
#include "kernels/cpu/qkv.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The part of the context that a row sees: positions [lo, hi) and the pieces that they touch. */
struct context {
    uint32_t slot, lo, hi;
    uint32_t first_piece, n_pieces;
};

static struct context context_of_row(const struct cpu_task *t, uint32_t row) {
    const struct rt_rows *rows = &t->batch->rows;
    uint32_t window = t->op->attrs.window;
    struct context c = {.slot = (uint32_t)rows->slot[row], .hi = (uint32_t)rows->position[row] + 1};
    assert(c.slot < t->batch->n_slots && c.hi <= t->batch->max_model_len);
    c.lo = window != 0 && c.hi > window ? c.hi - window : 0;
    c.first_piece = c.lo / ATTENTION_PIECE;
    c.n_pieces = (c.hi - 1) / ATTENTION_PIECE + 1 - c.first_piece;
    return c;
}

/* Heads of the group that shares a KV head, with room for their queries and states. A state is
 * {max, sum of weights, out[D]}. */
struct attention_scratch {
    float *q;           /* [group, D] scaled by 1 / sqrt(D); STEP: and a key or value */
    float *piece, *sum; /* [group, D + 2] the piece at work, the pieces so far */
    size_t bytes;
};

static struct attention_scratch layout(void *base, const struct op_attrs *a) {
    struct tile_scratch s = {.base = base};
    struct attention_scratch l = {0};
    size_t group = a->heads / a->kv, D = a->D;
    l.q = tile_take(&s, (group + 1) * D * sizeof(float));
    l.piece = tile_take(&s, group * (D + 2) * sizeof(float));
    l.sum = tile_take(&s, group * (D + 2) * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_attention_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, &op->attrs).bytes;
}

size_t cpu_attention_split_scratch(const struct prog_header *program, const struct prog_op *op) {
    return cpu_attention_scratch(program, op);
}

size_t cpu_attention_step_scratch(const struct prog_header *program, const struct prog_op *op) {
    return cpu_attention_scratch(program, op);
}

size_t cpu_attention_combine_scratch(const struct prog_header *program, const struct prog_op *op) {
    return cpu_attention_scratch(program, op);
}

static void scale_queries(const struct cpu_task *t, const float *q, float *dst) {
    uint32_t D = t->op->attrs.D, group = t->op->attrs.heads / t->op->attrs.kv;
    for (uint32_t i = 0; i < group * D; i++) dst[i] = q[i] * t->op->attrs.scale;
}

static void load_queries(const struct cpu_task *t, uint32_t row, uint32_t kv_head, float *dst) {
    uint32_t D = t->op->attrs.D, group = t->op->attrs.heads / t->op->attrs.kv;
    const float *q = tile_in(t, ATTENTION_Q); /* [T, n_heads * D] */
    scale_queries(t, q + ((size_t)row * t->op->attrs.heads + (size_t)kv_head * group) * D, dst);
}

/* STEP: the group's queries from projections; with the last piece, its key and value as well. */
static void make_heads(const struct cpu_task *t, uint32_t kv_head, bool last, float *dst) {
    uint32_t D = t->op->attrs.D, group = t->op->attrs.heads / t->op->attrs.kv;
    const float *qkv = tile_in(t, HEADS_QKV); /* [1, units * D] */
    const float *key = qkv + ((size_t)t->op->attrs.heads + kv_head) * D;
    memcpy(dst, qkv + (size_t)kv_head * group * D, group * D * sizeof(float));
    for (uint32_t h = 0; h < group; h++)
        qkv_turn_head(t, true, tile_in(t, HEADS_Q_NORM), 0, dst + (size_t)h * D);
    scale_queries(t, dst, dst);
    if (!last) return;
    float *y = dst + (size_t)group * D;
    memcpy(y, key, D * sizeof(float));
    qkv_store_kv(t, tile_out(t, JOINED_OUT_KV), 0, kv_head, tile_in(t, HEADS_K_NORM), 0, y);
    memcpy(y, key + (size_t)t->op->attrs.kv * D, D * sizeof(float));
    qkv_store_kv(t, tile_out(t, JOINED_OUT_KV), 1, kv_head, NULL, 0, y);
}

/* state[group] = one piece of the row's context for the heads of a KV head. */
static void piece_run(const struct cpu_task *t, void *cache, const struct context *c,
                      uint32_t kv_head, uint32_t piece, const float *q, float *state) {
    uint32_t D = t->op->attrs.D, group = t->op->attrs.heads / t->op->attrs.kv;
    uint32_t kv_block = t->batch->kv_block;
    uint32_t p = piece * ATTENTION_PIECE, end = p + ATTENTION_PIECE;
    if (p < c->lo) p = c->lo;
    if (end > c->hi) end = c->hi;
    memset(state, 0, (size_t)group * (D + 2) * sizeof(float));
    for (uint32_t h = 0; h < group; h++) state[(size_t)h * (D + 2)] = -INFINITY;
    while (p < end) {
        uint32_t n = kv_block - p % kv_block;
        if (n > end - p) n = end - p;
        t->isa->attend((enum dtype)t->batch->kv_dtype, q, group, D,
                       tile_kv(t, cache, c->slot, p, 0, kv_head),
                       tile_kv(t, cache, c->slot, p, 1, kv_head), n, state);
        p += n;
    }
}

/* sum += piece, for one head. A sum whose weights are 0 is empty. */
static void merge(float *sum, const float *piece, uint32_t D) {
    if (!(sum[1] > 0)) {
        memcpy(sum, piece, (D + 2) * sizeof(float));
        return;
    }
    float max = sum[0] > piece[0] ? sum[0] : piece[0];
    float a = expf(sum[0] - max), b = expf(piece[0] - max);
    sum[0] = max;
    for (uint32_t i = 1; i < D + 2; i++) sum[i] = sum[i] * a + piece[i] * b;
}

static void store_output(const struct cpu_task *t, uint32_t row, uint32_t head, const float *sum) {
    uint32_t D = t->op->attrs.D;
    float *o = (float *)tile_out(t, 0) +
               ((size_t)row * t->op->attrs.heads + head) * D; /* [T, n_heads * D] */
    float inv = 1.0f / sum[1];
    for (uint32_t i = 0; i < D; i++) o[i] = sum[2 + i] * inv;
}

void cpu_attention(const struct cpu_task *t) {
    uint32_t n_kv = t->op->attrs.kv, group = t->op->attrs.heads / n_kv, D = t->op->attrs.D;
    struct attention_scratch l = layout(t->scratch, &t->op->attrs);
    void *cache = (void *)(uintptr_t)tile_in(t, ATTENTION_KV);
    uint64_t i, last;
    prog_slice((uint64_t)t->batch->rows.n_rows * n_kv, t->task->unit0, t->task->unit1, &i, &last);
    for (; i < last; i++) {
        uint32_t row = (uint32_t)(i / n_kv), kv_head = (uint32_t)(i % n_kv);
        struct context c = context_of_row(t, row);
        load_queries(t, row, kv_head, l.q);
        piece_run(t, cache, &c, kv_head, c.first_piece, l.q, l.sum);
        for (uint32_t p = 1; p < c.n_pieces; p++) {
            piece_run(t, cache, &c, kv_head, c.first_piece + p, l.q, l.piece);
            for (uint32_t h = 0; h < group; h++)
                merge(l.sum + (size_t)h * (D + 2), l.piece + (size_t)h * (D + 2), D);
        }
        for (uint32_t h = 0; h < group; h++)
            store_output(t, row, kv_head * group + h, l.sum + (size_t)h * (D + 2));
    }
}

/* part[T, n_heads, P, D + 2]; pieces are numbered from the start of the request. */
static size_t part_index(const struct cpu_task *t, uint32_t P, uint32_t row, uint32_t head,
                         uint32_t piece) {
    assert(piece < P);
    return (((size_t)row * t->op->attrs.heads + head) * P + piece) * (t->op->attrs.D + 2);
}

/* SPLIT, or with `step` STEP. */
static void attend_pieces(const struct cpu_task *t, void *cache, bool step) {
    uint32_t n_kv = t->op->attrs.kv, group = t->op->attrs.heads / n_kv, D = t->op->attrs.D;
    uint32_t P = PROG(t->program, TENSOR)[t->op->out[0]].shape[2];
    uint32_t n_rows = t->batch->rows.n_rows;
    float *part = tile_out(t, 0);
    struct attention_scratch l = layout(t->scratch, &t->op->attrs);
    uint64_t n_items = 0, item, last, row_item = 0;
    for (uint32_t r = 0; r < n_rows; r++) n_items += (uint64_t)context_of_row(t, r).n_pieces * n_kv;
    prog_slice(n_items, t->task->unit0, t->task->unit1, &item, &last);
    for (uint32_t r = 0; r < n_rows && item < last; r++) {
        struct context c = context_of_row(t, r);
        uint64_t row_end = row_item + (uint64_t)c.n_pieces * n_kv;
        for (; item < last && item < row_end; item++) {
            uint32_t piece = c.first_piece + (uint32_t)((item - row_item) / n_kv);
            uint32_t kv_head = (uint32_t)((item - row_item) % n_kv);
            if (step)
                make_heads(t, kv_head, piece == c.first_piece + c.n_pieces - 1, l.q);
            else
                load_queries(t, r, kv_head, l.q);
            piece_run(t, cache, &c, kv_head, piece, l.q, l.piece);
            for (uint32_t h = 0; h < group; h++)
                memcpy(part + part_index(t, P, r, kv_head * group + h, piece),
                       l.piece + (size_t)h * (D + 2), (D + 2) * sizeof(float));
        }
        row_item = row_end;
    }
}

void cpu_attention_split(const struct cpu_task *t) {
    attend_pieces(t, (void *)(uintptr_t)tile_in(t, ATTENTION_KV), false);
}

void cpu_attention_step(const struct cpu_task *t) {
    attend_pieces(t, tile_out(t, JOINED_OUT_KV), true);
}

void cpu_attention_combine(const struct cpu_task *t) {
    const float *part = tile_in(t, COMBINE_PART);
    uint32_t P = PROG(t->program, TENSOR)[t->op->in[COMBINE_PART]].shape[2];
    uint32_t D = t->op->attrs.D, end = tile_row_end(t, t->batch->rows.n_rows);
    struct attention_scratch l = layout(t->scratch, &t->op->attrs);
    for (uint32_t r = t->task->row0; r < end; r++) {
        struct context c = context_of_row(t, r);
        for (uint32_t h = t->task->unit0; h < t->task->unit1; h++) {
            memcpy(l.sum, part + part_index(t, P, r, h, c.first_piece), (D + 2) * sizeof(float));
            for (uint32_t p = 1; p < c.n_pieces; p++)
                merge(l.sum, part + part_index(t, P, r, h, c.first_piece + p), D);
            store_output(t, r, h, l.sum);
        }
    }
}
