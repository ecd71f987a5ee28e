/* attention.c - ATTENTION whole, in pieces (SPLIT; STEP, which makes the heads, too), and the
 * pieces' sum (MERGE).
 *
 * A context is attended to in pieces of ATTENTION_PIECE positions whose bounds are absolute. Each
 * piece starts afresh and runs KV block by KV block; pieces are merged in order of position.
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

/* The query heads that share a KV head, and the widths of keys and values. */
struct heads {
    uint32_t n, n_kv, group; /* query heads, KV heads, query heads of each KV head */
    uint32_t K, V;           /* elements of a query or key; of a value or output */
    float scale;             /* of dot products */
};

static struct heads heads_of(const struct op_attrs *a, const struct kv_row *row) {
    const uint32_t n = a->heads;
    return (struct heads){n, row->heads, n / row->heads, row->k_width, row->v_width, a->scale};
}

/* A state of a head is {max, sum of weights, out[V]}. */
static size_t state_size(const struct heads *h) {
    return (size_t)h->V + 2;
}

struct attention_scratch {
    float *q;           /* [group, K] scaled by 1 / sqrt(K); STEP: and a key or value */
    float *piece, *sum; /* [group, V + 2] the current piece, the pieces so far */
    size_t bytes;
};

static struct attention_scratch layout(void *base, const struct heads *h) {
    struct tile_scratch s = {.base = base};
    struct attention_scratch l = {0};
    l.q = tile_take(&s, (h->group + 1) * (size_t)h->K * sizeof(float));
    l.piece = tile_take(&s, h->group * state_size(h) * sizeof(float));
    l.sum = tile_take(&s, h->group * state_size(h) * sizeof(float));
    l.bytes = s.used;
    return l;
}

static size_t scratch_for(const struct prog_header *program, const struct prog_op *op,
                          uint32_t cache) {
    const uint64_t layer = PROG(program, TENSOR)[cache].where;
    const struct heads h = heads_of(&op->attrs, &PROG(program, KV)[layer]);
    return layout(NULL, &h).bytes;
}

size_t cpu_attention_scratch(const struct prog_header *program, const struct prog_op *op) {
    return scratch_for(program, op, op->in[ATTENTION_KV]);
}

size_t cpu_attention_split_scratch(const struct prog_header *program, const struct prog_op *op) {
    return cpu_attention_scratch(program, op);
}

size_t cpu_attention_step_scratch(const struct prog_header *program, const struct prog_op *op) {
    return scratch_for(program, op, op->out[JOINED_OUT_KV]);
}

/* The heads of MERGE: one at a time, as wide as its parts are. */
static struct heads merged_heads(const struct cpu_task *t) {
    const struct prog_tensor *part = &PROG(t->program, TENSOR)[t->op->in[MERGE_PART]];
    return (struct heads){.n = t->op->attrs.heads, .group = 1, .V = part->shape[3] - PART_HEAD};
}

size_t cpu_attention_merge_scratch(const struct prog_header *program, const struct prog_op *op) {
    const struct cpu_task t = {.program = program, .op = op};
    const struct heads h = merged_heads(&t);
    return layout(NULL, &h).bytes;
}

static void scale_queries(const struct heads *h, const float *q, float *dst) {
    for (uint32_t i = 0; i < h->group * h->K; i++) dst[i] = q[i] * h->scale;
}

static void load_queries(const struct cpu_task *t, const struct heads *h, uint32_t row,
                         uint32_t kv_head, float *dst) {
    const float *q = tile_in(t, ATTENTION_Q); /* [T, n_heads * K] */
    scale_queries(h, q + ((size_t)row * h->n + (size_t)kv_head * h->group) * h->K, dst);
}

/* STEP: makes the group's queries from projections; with the last piece, also its key and value. */
static void make_heads(const struct cpu_task *t, const struct tile_cache *cache, uint32_t kv_head,
                       bool last, float *dst) {
    uint32_t D = t->op->attrs.D;
    const struct heads h = heads_of(&t->op->attrs, cache->row);
    const float *qkv = tile_in(t, HEADS_QKV); /* [1, units * D] */
    const float *key = qkv + ((size_t)h.n + kv_head) * D;
    memcpy(dst, qkv + (size_t)kv_head * h.group * D, (size_t)h.group * D * sizeof(float));
    for (uint32_t i = 0; i < h.group; i++)
        qkv_turn_head(t, true, tile_in(t, HEADS_Q_NORM), 0, dst + (size_t)i * D);
    scale_queries(&h, dst, dst);
    if (!last) return;
    float *y = dst + (size_t)h.group * D;
    memcpy(y, key, D * sizeof(float));
    qkv_store_kv(t, cache, 0, kv_head, tile_in(t, HEADS_K_NORM), 0, y);
    memcpy(y, key + (size_t)h.n_kv * D, D * sizeof(float));
    qkv_store_kv(t, cache, 1, kv_head, NULL, 0, y);
}

/* state[group] = one piece of the row's context for the heads of a KV head. */
static void piece_run(const struct cpu_task *t, const struct tile_cache *cache,
                      const struct context *c, uint32_t kv_head, uint32_t piece, const float *q,
                      float *state) {
    const struct heads heads = heads_of(&t->op->attrs, cache->row);
    uint32_t kv_block = t->batch->kv_block;
    uint32_t p = piece * ATTENTION_PIECE, end = p + ATTENTION_PIECE;
    if (p < c->lo) p = c->lo;
    if (end > c->hi) end = c->hi;
    memset(state, 0, heads.group * state_size(&heads) * sizeof(float));
    for (uint32_t h = 0; h < heads.group; h++) state[h * state_size(&heads)] = -INFINITY;
    while (p < end) {
        uint32_t n = kv_block - p % kv_block;
        if (n > end - p) n = end - p;
        t->isa->attend(cache->row, q, heads.group, tile_kv(t, cache, c->slot, p, 0, kv_head),
                       tile_kv(t, cache, c->slot, p, 1, kv_head), n, state);
        p += n;
    }
}

/* sum += piece, for one head of V elements. A sum whose weights are 0 is empty. */
static void merge(float *sum, const float *piece, uint32_t V) {
    if (!(sum[1] > 0)) {
        memcpy(sum, piece, (V + 2) * sizeof(float));
        return;
    }
    float max = sum[0] > piece[0] ? sum[0] : piece[0];
    float a = expf(sum[0] - max), b = expf(piece[0] - max);
    sum[0] = max;
    for (uint32_t i = 1; i < V + 2; i++) sum[i] = sum[i] * a + piece[i] * b;
}

static void store_output(const struct cpu_task *t, const struct heads *h, uint32_t row,
                         uint32_t head, const float *sum) {
    float *o = (float *)tile_out(t, 0) + ((size_t)row * h->n + head) * h->V; /* [T, n_heads * V] */
    float inv = 1.0f / sum[1];
    for (uint32_t i = 0; i < h->V; i++) o[i] = sum[2 + i] * inv;
}

/* One row's whole context for the heads of one KV head. */
static void attend_context(const struct cpu_task *t, const struct tile_cache *cache,
                           const struct attention_scratch *l, uint32_t row, uint32_t kv_head) {
    const struct heads heads = heads_of(&t->op->attrs, cache->row);
    const struct context c = context_of_row(t, row);
    const size_t size = state_size(&heads);
    load_queries(t, &heads, row, kv_head, l->q);
    piece_run(t, cache, &c, kv_head, c.first_piece, l->q, l->sum);
    for (uint32_t p = 1; p < c.n_pieces; p++) {
        piece_run(t, cache, &c, kv_head, c.first_piece + p, l->q, l->piece);
        for (uint32_t h = 0; h < heads.group; h++)
            merge(l->sum + h * size, l->piece + h * size, heads.V);
    }
    for (uint32_t h = 0; h < heads.group; h++)
        store_output(t, &heads, row, kv_head * heads.group + h, l->sum + h * size);
}

void cpu_attention(const struct cpu_task *t) {
    const struct tile_cache cache = tile_cache_of(t, t->op->in[ATTENTION_KV]);
    const struct heads heads = heads_of(&t->op->attrs, cache.row);
    const struct attention_scratch l = layout(t->scratch, &heads);
    uint64_t i, last;
    prog_slice((uint64_t)t->batch->rows.n_rows * heads.n_kv, t->task->unit0, t->task->unit1, &i,
               &last);
    for (; i < last; i++)
        attend_context(t, &cache, &l, (uint32_t)(i / heads.n_kv), (uint32_t)(i % heads.n_kv));
}

/* part[T, n_heads, P, V + PART_HEAD]; pieces are numbered from the start of the request. */
static size_t part_index(const struct heads *h, uint32_t P, uint32_t row, uint32_t head,
                         uint32_t piece) {
    assert(piece < P);
    return (((size_t)row * h->n + head) * P + piece) * ((size_t)h->V + PART_HEAD);
}

static void part_store(const struct heads *h, const float *state, float *part) {
    memcpy(part, state, 2 * sizeof *part);
    memcpy(part + PART_HEAD, state + 2, h->V * sizeof *part);
}

static void part_load(const struct heads *h, const float *part, float *state) {
    memcpy(state, part, 2 * sizeof *part);
    memcpy(state + 2, part + PART_HEAD, h->V * sizeof *part);
}

/* Stores the states of a KV head's group as parts of its heads. */
static void store_parts(const struct cpu_task *t, const struct heads *heads, uint32_t row,
                        uint32_t kv_head, uint32_t piece, const float *state) {
    const uint32_t P = PROG(t->program, TENSOR)[t->op->out[0]].shape[2];
    float *part = tile_out(t, 0);
    for (uint32_t h = 0; h < heads->group; h++)
        part_store(heads, state + h * state_size(heads),
                   part + part_index(heads, P, row, kv_head * heads->group + h, piece));
}

/* SPLIT, or with `step` STEP. */
static void attend_pieces(const struct cpu_task *t, const struct tile_cache *cache, bool step) {
    const struct heads heads = heads_of(&t->op->attrs, cache->row);
    const uint32_t n_kv = heads.n_kv, n_rows = t->batch->rows.n_rows;
    const struct attention_scratch l = layout(t->scratch, &heads);
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
                make_heads(t, cache, kv_head, piece == c.first_piece + c.n_pieces - 1, l.q);
            else
                load_queries(t, &heads, r, kv_head, l.q);
            piece_run(t, cache, &c, kv_head, piece, l.q, l.piece);
            store_parts(t, &heads, r, kv_head, piece, l.piece);
        }
        row_item = row_end;
    }
}

void cpu_attention_split(const struct cpu_task *t) {
    const struct tile_cache cache = tile_cache_of(t, t->op->in[ATTENTION_KV]);
    attend_pieces(t, &cache, false);
}

void cpu_attention_step(const struct cpu_task *t) {
    const struct tile_cache cache = tile_cache_of(t, t->op->out[JOINED_OUT_KV]);
    attend_pieces(t, &cache, true);
}

void cpu_attention_merge(const struct cpu_task *t) {
    const float *part = tile_in(t, MERGE_PART);
    const uint32_t P = PROG(t->program, TENSOR)[t->op->in[MERGE_PART]].shape[2];
    const uint32_t end = tile_row_end(t, t->batch->rows.n_rows);
    const struct heads heads = merged_heads(t);
    const struct attention_scratch l = layout(t->scratch, &heads);
    for (uint32_t r = t->task->row0; r < end; r++) {
        struct context c = context_of_row(t, r);
        for (uint32_t h = t->task->unit0; h < t->task->unit1; h++) {
            part_load(&heads, part + part_index(&heads, P, r, h, c.first_piece), l.sum);
            for (uint32_t p = 1; p < c.n_pieces; p++) {
                part_load(&heads, part + part_index(&heads, P, r, h, c.first_piece + p), l.piece);
                merge(l.sum, l.piece, heads.V);
            }
            store_output(t, &heads, r, h, l.sum);
        }
    }
}
