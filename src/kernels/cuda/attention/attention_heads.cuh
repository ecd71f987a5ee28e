/* attention_heads.cuh - the heads that DECODE makes of the projections: an item's queries, and keys
 * and values of the positions that the iteration adds to it. A warp makes a head (norm, RoPE,
 * rounding) and stores it in scratch, in the layout of a row of the cache. The row's own key and
 * value also go to the cache.
 *
 * Scratch:   DECODE_HEADS   queries [SUB_HEADS][head_dim], then a key and a value for each position
 *                           that is added; 16 bits each
 */
#ifndef QN_CUDA_ATTENTION_ATTENTION_HEADS_CUH
#define QN_CUDA_ATTENTION_ATTENTION_HEADS_CUH

#include "kernels/cuda/attention/attention_share.cuh"
#include "kernels/cuda/attention/qkv.cuh"

enum {
    /* Pieces at a time: one, or one of each team (attention_decode_teams.cuh). */
    DECODE_MOST = SHARE_PAGES == 1 && RING_DEPTH > 1 ? 2 : 1,
    DECODE_HEADS = DECODE_MOST * sizeof(struct piece_shares),
};
static_assert(DECODE_HEADS % 16 == 0 &&
                  DECODE_HEADS + (SUB_HEADS + 2 * STEP_ROWS + 7) / 8 * 8 * KV_ROW <= SCRATCH_BYTES,
              "the heads of an item of as many rows as there can be");

/* The first line of head number i in scratch. */
DEV char *head_at(uint32_t i) {
    return SCRATCH + DECODE_HEADS + kv_row_at(i);
}

/* An item as a step, for the arithmetic of attention.cuh. */
DEV struct attention_step item_step(const struct attention_item *w) {
    struct attention_step s;
    s.row0 = w->row;
    s.n_tokens = 1;
    s.slot = w->slot;
    s.lo = w->lo;
    s.hi = w->hi;
    step_heads(&s, w->head / SUBS, w->head % SUBS);
    return s;
}

/* The last position + 1 that the row sees in the item's next n pieces. */
DEV uint32_t item_end(const struct attention_item *w, uint32_t n) {
    return min(w->hi, (w->piece + n) * ATTENTION_PIECE);
}

/* How many of these positions the iteration adds. They are the last ones: the row's own and those
 * of the rows before it. */
DEV uint32_t item_fresh(const struct attention_item *w, uint32_t n) {
    const uint32_t begin = max(w->fresh, w->piece * ATTENTION_PIECE), end = item_end(w, n);
    return end > begin ? end - begin : 0;
}

/* Head number i of an item: first its queries, then key and value of each fresh position, the last
 * position first. Past these `there` is false. */
struct item_head {
    uint32_t i, unit;  /* unit: of qkv */
    uint32_t position; /* of a key or a value */
    char *line;        /* where it goes */
    bool there, is_value;
    struct operand elements;
    struct head_turn turn;
};

/* The item has n fresh positions, the last ones below `end`. */
DEV struct item_head item_head_of(const struct warp_context *c, const struct cuda_task *task,
                                  const struct attention_item *w, uint32_t end, uint32_t n,
                                  uint32_t i) {
    const struct attention_step s = item_step(w);
    const bool is_query = i < s.n_heads;
    const uint32_t at = i - s.n_heads;
    struct item_head h = {};
    h.i = i;
    h.line = head_at(i);
    h.there = w->left > 0 && i < s.n_heads + 2 * n;
    h.is_value = !is_query && at % 2 != 0;
    h.unit = is_query ? s.head0 + i : QN_N_HEADS + s.kv_head + (h.is_value ? QN_N_KV_HEADS : 0);
    if (!h.there) return h;
    h.position = is_query ? w->hi - 1 : end - 1 - at / 2;
    const uint32_t row = w->row - (w->hi - 1 - h.position);
    h.elements = operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED),
                              ((uint64_t)row * QKV_HEADS + h.unit) * QN_HEAD_DIM);
    h.turn = head_turn_of(c, (const float *)(is_query ? task->norm : task->more2), h.is_value,
                          turn_at(row, h.position));
    return h;
}

/* The same where no row of the request comes before the item's row: at most its own position is
 * fresh. first: the item's first head in scratch. page: where its key goes; its value goes
 * SHARE_BYTES further. */
DEV struct item_head item_head_alone(const struct warp_context *c, const struct cuda_task *task,
                                     const struct attention_item *w, bool fresh, uint32_t i,
                                     uint32_t first, char *page) {
    const struct attention_step s = item_step(w);
    struct item_head h = {};
    h.i = i;
    h.line = head_at(first + i);
    if (SHARE_PAGES == 1 && i >= s.n_heads)
        h.line = page + (i - s.n_heads) * SHARE_BYTES + kv_row_at((w->hi - 1) % SHARE_POSITIONS);
    h.there = w->left > 0 && i < s.n_heads + (fresh ? 2 : 0);
    h.is_value = i == s.n_heads + 1;
    h.unit =
        i < s.n_heads ? s.head0 + i : QN_N_HEADS + s.kv_head + (h.is_value ? QN_N_KV_HEADS : 0);
    if (!h.there) return h;
    h.position = w->hi - 1;
    h.elements = operand_from(operand_of(task->in, task, CUDA_IN_FLAGGED),
                              ((uint64_t)w->row * QKV_HEADS + h.unit) * QN_HEAD_DIM);
    h.turn = head_turn_of(c, (const float *)(i < s.n_heads ? task->norm : task->more2), h.is_value,
                          turn_at(w->row, h.position));
    return h;
}

/* Norms and rotates a head's elements and stores them at h->line. a: the first elements of the
 * lane's pairs, b: the second ones. Queries are laid out like keys, head i like position i, because
 * neighbouring heads are read together. */
DEV void head_put(const struct warp_context *c, const struct item_head *h, float *a, float *b) {
    head_turn_apply(c, &h->turn, h->is_value, a, b);
    const uint32_t place = h->unit < QN_N_HEADS ? h->i : h->position;
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++)
        if (c->lane + 32 * u < HALF_DIM) kv_store(h->line, place, c->lane + 32 * u, a[u], b[u]);
}

DEV void head_make(const struct warp_context *c, const struct item_head *h) {
    uint32_t at[2 * LANE_PAIRS];
    float v[2 * LANE_PAIRS];
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        at[u] = min(c->lane + 32 * u, HALF_DIM - 1u);
        at[LANE_PAIRS + u] = at[u] + HALF_DIM;
    }
    operand_load_all(h->elements, at, v);
    head_put(c, h, v, v + LANE_PAIRS);
}

/* Heads of an item to make: numbers [from, end). */
struct heads_range {
    uint32_t from, end;
};

/* Stores the row's own key and value in the cache, by one warp. Only the first step of a KV head
 * does so. key, value: where they lie in shared memory. */
DEV void heads_keep(const struct warp_context *c, const struct cuda_task *task,
                    const struct attention_item *w, const char *key, const char *value) {
    if (SUBS > 1 && w->head % SUBS != 0) return;
    const uint16_t *row = (const uint16_t *)task->more +
                          (uint64_t)row_kv_row(SHARED, w->row) * QN_HEAD_DIM +
                          (uint64_t)(w->head / SUBS) * KV_HEAD_STRIDE;
    char *to = kv_line(row, w->hi - 1);
#pragma unroll 1
    for (uint32_t i = c->lane; i < 2 * (QN_HEAD_DIM / 8); i += 32) {
        const uint32_t is_value = i / (QN_HEAD_DIM / 8), chunk = i % (QN_HEAD_DIM / 8);
        const uint32_t at = kv_stored_at(chunk);
        *(uint4 *)(to + is_value * (KV_VALUE_STRIDE * 2) + at) =
            *(const uint4 *)((is_value ? value : key) + at);
    }
}

/* Loads an item's query rows from scratch. The first of them is head number `first`. */
DEV void item_queries(const struct warp_context *c, const struct attention_item *w, uint32_t first,
                      uint32_t n_heads, struct attention_rows *r) {
    struct kv_lane row[2];
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const uint32_t head = min(c->lane % 8 + 8 * h, n_heads - 1);
        row[h] = lane_of(head_at(first + head), head);
        r->lo[h] = w->lo;
        r->hi[h] = w->hi;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        uint4 v[2] = {};
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) v[h] = load_keys(c, &row[h], i);
        r->q[2 * i] = make_uint4(v[0].x, v[1].x, v[0].y, v[1].y);
        r->q[2 * i + 1] = make_uint4(v[0].z, v[1].z, v[0].w, v[1].w);
    }
}

#endif
