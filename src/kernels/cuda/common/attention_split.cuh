/* attention_split.cuh - ATTENTION_SPLIT: one piece of the context of one token row and KV head at a
 * time, its softmax state to the part tensor. With few rows: decoding. ATTENTION_STEP: the same
 * from the projections, QKV_HEADS' work included: an item makes its own queries, and keys and
 * values of all positions of its piece that this iteration adds, its row's own ones for the cache,
 * too. Its runs of whole pieces are attention_run.cuh's. ATTENTION_WHOLE: attention_whole.cuh.
 *
 * Which items, in which order, and which of their bytes come as pages: kv_walk.cuh. Arithmetic and
 * its order are attention.cuh's; what is different is that the next items' keys and values are on
 * their way meanwhile, and that two barriers are all that an item takes.
 *
 * Bytes: k and v of the piece, 2 * ATTENTION_PIECE * head_dim * 2, read once per item.
 *
 * Scratch:   0             max[2][8][16], sum[2][8][16], factor[2][8][16]: of the shares; items
 *                          alternate
 *            SPLIT_OUTS    outputs [8][rows][chunk + 4], a chunk of columns at a time
 *            SPLIT_QUERIES query rows [2][rows][head_dim] of this item and the next
 *            STEP_HEADS    STEP and WHOLE, instead: queries [SUB_HEADS][head_dim], then a key and a
 *                          value for each position that the iteration adds to the piece, or to the
 *                          context, of 16 bits
 */
#ifndef QN_CUDA_COMMON_ATTENTION_SPLIT_CUH
#define QN_CUDA_COMMON_ATTENTION_SPLIT_CUH

#include "kernels/cuda/common/attention.cuh"
#include "kernels/cuda/common/qkv.cuh"

#define SPLIT_CHUNK   cuda_split_chunk(SUB_HEADS)
#define SPLIT_OUTS    CUDA_SPLIT_SCALARS
#define SPLIT_QUERIES cuda_split_bytes(SUB_HEADS)
#define SPLIT_Q_BYTES (SUB_HEADS * QN_HEAD_DIM * 4)
#define STEP_HEADS    SPLIT_QUERIES
/* Whether the next item's query rows are fetched meanwhile. */
#define SPLIT_ASK_AHEAD (SPLIT_QUERIES + 2 * SPLIT_Q_BYTES <= SCRATCH_BYTES)
static_assert(STEP_HEADS + (SUB_HEADS + 2) * QN_HEAD_DIM * 2 <= SCRATCH_BYTES, "one row's heads");

/* A warp's part of a task. */
struct split_warp {
    uint32_t share; /* of every piece */
    const float *q; /* [rows, n_heads, head_dim] */
    const uint16_t *kv;
    struct act part; /* [rows, n_heads, n_pieces, head_dim + 2] */
    uint32_t n_pieces;
};

/* What the arithmetic needs to know of an item. */
DEV struct attention_step split_step(const struct kv_walk *w) {
    struct attention_step s;
    s.row0 = w->row;
    s.n_tokens = 1;
    s.slot = w->slot;
    s.lo = w->lo;
    s.hi = w->hi;
    step_heads(&s, w->head / SUBS, w->head % SUBS);
    return s;
}

/* Asks for the query rows of item number n, which is not the task's first, to be in scratch after
 * the last barrier of the item before: its buffer was last read before a barrier of that one. */
DEV void split_ask(const struct warp_context *c, const struct split_warp *t,
                   const struct kv_walk *w, uint32_t n) {
    const struct attention_step s = split_step(w);
    const float *from = t->q + ((uint64_t)w->row * QN_N_HEADS + s.head0) * QN_HEAD_DIM;
    char *to = SCRATCH + SPLIT_QUERIES + n % 2 * SPLIT_Q_BYTES;
    for (uint32_t i = 4 * c->thread; i < s.n_heads * QN_HEAD_DIM; i += 4 * COMPUTE_THREADS)
        copy16_async(to + 4 * i, from + i);
    copy_commit();
}

/* The query rows of an item: row m is its head m. From scratch, or from global. */
DEV void split_rows(const struct warp_context *c, const struct split_warp *t,
                    const struct kv_walk *w, const struct attention_step *s, uint32_t n,
                    struct attention_rows *r) {
    const bool asked = SPLIT_ASK_AHEAD && n > 0;
    uint32_t from[2];
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        from[h] = min(c->lane / 4 + 8 * h, s->n_heads - 1) * QN_HEAD_DIM;
        r->lo[h] = w->lo;
        r->hi[h] = w->hi;
    }
    const float *global = t->q + ((uint64_t)w->row * QN_N_HEADS + s->head0) * QN_HEAD_DIM;
    const float *scratch = (const float *)(SCRATCH + SPLIT_QUERIES + n % 2 * SPLIT_Q_BYTES);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const uint32_t d = 32 * i + c->lane % 4 * 8;
        float4 v[2][2] = {};
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            if (QN_HEAD_DIM % 32 != 0 && d >= QN_HEAD_DIM) continue;
            const uint32_t at = from[h] + d;
            v[h][0] = asked ? *(const float4 *)(scratch + at) : load4_l2(global + at);
            v[h][1] = asked ? *(const float4 *)(scratch + at + 4) : load4_l2(global + at + 4);
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            r->q[2 * i + e] = make_uint4(
                pack_pair<KV_E>(v[0][e].x, v[0][e].y), pack_pair<KV_E>(v[1][e].x, v[1][e].y),
                pack_pair<KV_E>(v[0][e].z, v[0][e].w), pack_pair<KV_E>(v[1][e].z, v[1][e].w));
    }
}

/* ---- STEP and WHOLE: the heads of the iteration's rows. KIND: which of them ---- */

DEV uint16_t *step_head(uint32_t i) {
    return (uint16_t *)(SCRATCH + STEP_HEADS) + i * QN_HEAD_DIM;
}

/* Positions of an item's piece that the iteration adds, up to the row's own: the last ones that it
 * sees. They are those of the row and of the rows before it. WHOLE makes those of all pieces at
 * once. */
struct step_fresh {
    uint32_t first, n;
};
template <uint32_t KIND> DEV struct step_fresh step_fresh_of(const struct kv_walk *w) {
    if (KIND == OP_ATTENTION_WHOLE) return {w->fresh, w->hi - w->fresh};
    const uint32_t begin = max(w->fresh, w->piece * ATTENTION_PIECE);
    const uint32_t end = min(w->hi, (w->piece + 1) * ATTENTION_PIECE);
    return {begin, end > begin ? end - begin : 0};
}

template <uint32_t KIND> DEV uint32_t step_n_heads(const struct kv_walk *w) {
    return split_step(w).n_heads + 2 * step_fresh_of<KIND>(w).n;
}

/* Number i of an item's heads: its queries, then key and value of each fresh position. */
struct step_role {
    uint32_t unit, row; /* of qkv */
    uint32_t position;  /* of a key or a value */
    bool is_value;
    const float *norm;
};

template <uint32_t KIND>
DEV struct step_role step_role(const struct cuda_task *task, const struct kv_walk *w,
                               const struct attention_step *s, uint32_t i) {
    struct step_role r = {s->head0 + i, w->row, 0, false, (const float *)task->norm};
    if (i < s->n_heads) return r;
    i -= s->n_heads;
    r.position = step_fresh_of<KIND>(w).first + i / 2;
    r.row = w->row - (w->hi - 1 - r.position);
    r.is_value = i % 2 != 0;
    r.unit = QN_N_HEADS + s->kv_head + (r.is_value ? QN_N_KV_HEADS : 0);
    r.norm = (const float *)task->more2;
    return r;
}

/* The elements of a head that begins at y: those of the lane's RoPE pairs. */
DEV void step_load(const struct warp_context *c, struct act y, float a[LANE_PAIRS],
                   float b[LANE_PAIRS]) {
    uint32_t at[2 * LANE_PAIRS];
    float v[2 * LANE_PAIRS];
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        at[u] = min(c->lane + 32 * u, HALF_DIM - 1u);
        at[LANE_PAIRS + u] = at[u] + HALF_DIM;
    }
    act_load_all(y, at, v);
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        a[u] = v[u];
        b[u] = v[LANE_PAIRS + u];
    }
}

/* A head by the warp, into scratch; the row's own key or value into the cache, too. */
DEV void step_make(const struct warp_context *c, const struct cuda_task *task,
                   const struct kv_walk *w, uint32_t i, const struct step_role *r,
                   const struct head_turn *turn) {
    const struct act y = act_from(act_of(task->in, task, CUDA_IN_FLAGGED),
                                  ((uint64_t)r->row * QKV_HEADS + r->unit) * QN_HEAD_DIM);
    float a[LANE_PAIRS], b[LANE_PAIRS];
    step_load(c, y, a, b);
    head_turn_apply(c, turn, r->is_value, a, b);
    uint16_t *to = step_head(i);
#pragma unroll
    for (int u = 0; u < LANE_PAIRS; u++) {
        const uint32_t n = c->lane + 32 * u;
        if (n >= HALF_DIM) continue;
        /* Queries lie as keys do: head i is read beside the next one. */
        const uint32_t place = r->unit < QN_N_HEADS ? i : r->position;
        kv_store(to, r->is_value, place, n, a[u], b[u]);
        if (r->unit >= QN_N_HEADS && r->row == w->row)
            qkv_store_kv(task->more, r->unit - QN_N_HEADS, row_kv_row(SHARED, w->row), r->position,
                         n, a[u], b[u]);
    }
}

/* What turns the item's head number i. */
template <uint32_t KIND>
DEV struct head_turn step_turn(const struct warp_context *c, const struct cuda_task *task,
                               const struct kv_walk *w, uint32_t i) {
    const struct attention_step s = split_step(w);
    const struct step_role r = step_role<KIND>(task, w, &s, i);
    return head_turn_of(c, r.norm, r.is_value, row_position(SHARED, r.row));
}

/* An item's heads from number `i` on, the warp's first one; `turn`: of it. Ends with a barrier. */
template <uint32_t KIND>
DEV void step_make_all(const struct warp_context *c, const struct cuda_task *task,
                       const struct kv_walk *w, uint32_t i, struct head_turn turn) {
    const struct attention_step s = split_step(w);
    const uint32_t n = step_n_heads<KIND>(w);
#pragma unroll 1
    while (i < n) {
        const struct step_role r = step_role<KIND>(task, w, &s, i);
        step_make(c, task, w, i, &r, &turn);
        i += WARPS;
        if (i < n) turn = step_turn<KIND>(c, task, w, i);
    }
    sync_compute();
}

/* The heads of an item that is not the task's first: queries that are there are used again. */
template <uint32_t KIND>
DEV void step_make_next(const struct warp_context *c, const struct cuda_task *task,
                        const struct kv_walk *w, bool same_head) {
    const uint32_t n = step_n_heads<KIND>(w), first = same_head ? split_step(w).n_heads : 0;
    if (first == n) return;
    struct head_turn turn = {};
    if (first + c->warp < n) turn = step_turn<KIND>(c, task, w, first + c->warp);
    step_make_all<KIND>(c, task, w, first + c->warp, turn);
}

/* The query rows of an item, from scratch, the first of them head number `first`. */
DEV void step_rows(const struct warp_context *c, const struct kv_walk *w, uint32_t first,
                   uint32_t n_heads, struct attention_rows *r) {
    uint32_t head[2];
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        head[h] = min(c->lane / 4 + 8 * h, n_heads - 1);
        r->lo[h] = w->lo;
        r->hi[h] = w->hi;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        const uint32_t d = 32 * i + c->lane % 4 * 8;
        uint4 v[2] = {};
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++)
            if (QN_HEAD_DIM % 32 == 0 || d < QN_HEAD_DIM)
                v[h] = *(const uint4 *)(step_head(first + head[h]) + key_at(head[h], d));
        r->q[2 * i] = make_uint4(v[0].x, v[1].x, v[0].y, v[1].y);
        r->q[2 * i + 1] = make_uint4(v[0].z, v[1].z, v[0].w, v[1].w);
    }
}

/* A share's keys and values as lanes want them; see load_keys and load_values. */
struct split_kv {
    uint4 k[2][PAIRS], v[SPANS][4];
};

/* Where the rows of keys and of values are that a lane wants of, in shared memory. */
struct split_at {
    const char *k[2], *v[4];
};

DEV uint32_t split_key_row(const struct warp_context *c, int u) {
    return c->lane / 8 * 4 + 2 * u + c->lane / 4 % 2;
}
DEV uint32_t split_value_row(const struct warp_context *c, int n) {
    return c->lane % 4 * 4 + n;
}

/* Of k[16][head_dim] and of v[16][head_dim]. */
DEV struct split_at split_at_of(const struct warp_context *c, const char *k, const char *v) {
    struct split_at at;
#pragma unroll
    for (int u = 0; u < 2; u++) at.k[u] = k + split_key_row(c, u) * (QN_HEAD_DIM * 2);
#pragma unroll
    for (int n = 0; n < 4; n++) at.v[n] = v + split_value_row(c, n) * (QN_HEAD_DIM * 2);
    return at;
}

/* The positions that the iteration adds to the share at `first` are in scratch. Behind them the
 * page holds old bytes: split_clear. */
template <uint32_t KIND>
DEV void step_at(const struct warp_context *c, const struct kv_walk *w,
                 const struct attention_step *s, uint32_t first, struct split_at *at) {
    const struct step_fresh fresh = step_fresh_of<KIND>(w);
#pragma unroll
    for (int u = 0; u < 2; u++) {
        const uint32_t i = first + split_key_row(c, u) - fresh.first;
        if (i < fresh.n) at->k[u] = (const char *)step_head(s->n_heads + 2 * i);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint32_t i = first + split_value_row(c, n) - fresh.first;
        if (i < fresh.n) at->v[n] = (const char *)step_head(s->n_heads + 2 * i + 1);
    }
}

DEV void split_keys(const struct warp_context *c, const char *const row[2], uint4 k[2][PAIRS]) {
#pragma unroll
    for (int u = 0; u < 2; u++)
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const uint32_t d = 32 * i + c->lane % 4 * 8;
            const bool in = QN_HEAD_DIM % 32 == 0 || d < QN_HEAD_DIM;
            const uint32_t at = key_at(split_key_row(c, u), d);
            k[u][i] = in ? *(const uint4 *)(row[u] + at * 2) : make_uint4(0, 0, 0, 0);
        }
}

DEV void split_values(const struct warp_context *c, const char *const row[4], uint4 v[SPANS][4]) {
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const uint32_t d = 64 * i + c->lane / 4 * 8;
            const bool in = QN_HEAD_DIM % 64 == 0 || d < QN_HEAD_DIM;
            const uint32_t at = value_at(split_value_row(c, n), d);
            v[i][n] = in ? *(const uint4 *)(row[n] + at * 2) : make_uint4(0, 0, 0, 0);
        }
}

/* Zeros for the values of positions after the share's number `last`: their weights are zero, which
 * only numbers survive. Their keys need no care: scores are masked. */
DEV void split_clear(const struct warp_context *c, uint32_t last, struct split_kv *x) {
#pragma unroll
    for (int i = 0; i < SPANS; i++)
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (c->lane % 4 * 4 + n > last) x->v[i][n] = make_uint4(0, 0, 0, 0);
}

/* Fills the warp's page, which came void, with a share that this iteration has written to: its row
 * 0 is the cache's row `row`. Positions that do not exist repeat the last one: they are masked. */
DEV void split_fetch_page(const struct warp_context *c, const struct split_warp *t,
                          const struct kv_walk *w, const struct attention_step *s, uint32_t first,
                          uint32_t row, char *page) {
    const uint32_t line = QN_HEAD_DIM / 8, last = w->hi - 1 - first; /* of 16 bytes */
    const uint16_t *k = t->kv + (uint64_t)row * QN_HEAD_DIM + (uint64_t)s->kv_head * KV_HEAD_STRIDE;
#pragma unroll 4
    for (uint32_t i = c->lane; i < SHARE_POSITIONS * line; i += 32) {
        const uint16_t *from = k + min(i / line, last) * QN_HEAD_DIM + i % line * 8;
        copy16_async(page + 16 * i, from);
        copy16_async(page + SHARE_BYTES + 16 * i, from + KV_VALUE_STRIDE);
    }
    copy_commit();
}

/* Loads the warp's share of an item from its page, which has come. */
template <uint32_t KIND>
DEV void split_load_share(const struct warp_context *c, const struct split_warp *t,
                          const struct kv_walk *w, const struct attention_step *s, uint32_t first,
                          uint32_t n, uint32_t row, char *page, struct attention_rows *rows,
                          struct split_kv *x) {
    const bool fresh = kv_walk_share(w, first) == SHARE_FRESH;
    struct split_at at = split_at_of(c, page, page + SHARE_BYTES);
    if (JOINED(KIND)) {
        if (fresh) step_at<KIND>(c, w, s, first, &at);
        step_rows(c, w, 0, s->n_heads, rows);
    } else {
        if (fresh) split_fetch_page(c, t, w, s, first, row, page);
        split_rows(c, t, w, s, n, rows);
        if (fresh) {
            copy_wait<0>();
            __syncwarp();
        }
    }
    split_keys(c, at.k, x->k);
    split_values(c, at.v, x->v);
    if (JOINED(KIND) && fresh) split_clear(c, w->hi - 1 - first, x);
    if (!JOINED(KIND) && fresh)
        page_copy_fence(); /* what was copied there comes before the next copy */
}

/* The state of a share. */
DEV void split_attend(const struct warp_context *c, const struct attention_rows *rows,
                      const struct split_kv *x, uint32_t first, struct attention_part *part) {
    float p[2][4];
    piece_scores(rows, x->k, p);
    piece_softmax<HEAD_HALVES>(c, rows, first, p, part);
    piece_output<HEAD_HALVES>(x->v, p, part);
}

/* The warp's share of the task's item number n. row: where it lies in the cache, see split_row. */
template <uint32_t KIND>
DEV void split_share(struct warp_context *c, const struct split_warp *t, const struct kv_walk *w,
                     const struct attention_step *s, uint32_t n, uint32_t row,
                     struct attention_part *part) {
    const uint32_t first = w->piece * ATTENTION_PIECE + SHARE_POSITIONS * t->share;
    if (kv_walk_share(w, first) == SHARE_NOTHING) {
        if (KV_PAGES) {
            page_acquire(c);
            page_release(c);
        }
        part_clear(part);
        return;
    }
    struct split_kv x;
    struct attention_rows rows;
    if (KV_PAGES) {
        char *page = (char *)page_acquire(c);
        split_load_share<KIND>(c, t, w, s, first, n, row, page, &rows, &x);
        page_release(c);
    } else {
        const uint64_t offset = (uint64_t)row * QN_HEAD_DIM + (uint64_t)s->kv_head * KV_HEAD_STRIDE;
        load_values(c, t->kv, offset, x.v);
        load_keys(c, t->kv, offset, x.k);
        if (JOINED(KIND))
            step_rows(c, w, 0, s->n_heads, &rows);
        else
            split_rows(c, t, w, s, n, &rows);
    }
    split_attend(c, &rows, &x, first, part);
}

/* Maxima, sums and factors of an item's shares: [share][16]. */
struct split_scalars {
    float *max, *sum, *factor;
};

DEV struct split_scalars split_scalars_of(uint32_t odd) {
    float *at = (float *)SCRATCH + odd * WARPS * 16;
    return split_scalars{at, at + 2 * WARPS * 16, at + 4 * WARPS * 16};
}

/* Maximum and sum of row m over the shares. */
DEV float2 split_row_state(const struct split_scalars *x, uint32_t m) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum = fmaf(x->sum[w * 16 + m], x->factor[w * 16 + m], sum);
    return make_float2(most_of(x->max, m), sum);
}

/* Columns [at, at + SPLIT_CHUNK) of all heads, summed over the shares in order, to their parts. */
DEV void split_merge_outputs(const struct warp_context *c, const struct split_warp *t,
                             const struct attention_step *s, const struct split_scalars *x,
                             struct act to, uint32_t at) {
    const uint32_t stride = SPLIT_CHUNK + 4;
    const float *outputs = (const float *)(SCRATCH + SPLIT_OUTS);
    for (uint32_t i = c->thread; i < SUB_HEADS * SPLIT_CHUNK / 2; i += COMPUTE_THREADS) {
        const uint32_t m = i / (SPLIT_CHUNK / 2), d = i % (SPLIT_CHUNK / 2) * 2;
        if (at + d >= QN_HEAD_DIM || m >= s->n_heads) continue;
        float2 v[WARPS];
#pragma unroll
        for (int n = 0; n < WARPS; n++)
            v[n] = *(const float2 *)(outputs + (n * SUB_HEADS + m) * stride + d);
        float2 sum = make_float2(-0.0f, -0.0f);
#pragma unroll
        for (int n = 0; n < WARPS; n++) {
            const float factor = x->factor[n * 16 + m];
            sum = make_float2(share_add(sum.x, v[n].x, factor), share_add(sum.y, v[n].y, factor));
        }
        act_put2(act_from(to, (uint64_t)m * t->n_pieces * STATE_SIZE + 2 + at + d), sum);
    }
}

/* Merges the shares' states of an item into its parts, the first head's at `to`. A warp that goes
 * on to the next item finds the maxima's other half free: a warp that still reads this half has not
 * come to the next barrier but one. `odd`: of the item's number. */
DEV void split_merge(const struct warp_context *c, const struct split_warp *t,
                     const struct attention_step *s, const struct attention_part *part,
                     struct act to, uint32_t odd) {
    const struct split_scalars x = split_scalars_of(odd);
    const uint32_t mine = t->share * 16 + c->lane / 4;
    if (c->lane % 4 == 0)
#pragma unroll
        for (int h = 0; h < HEAD_HALVES; h++) {
            x.max[mine + 8 * h] = part->max[h];
            x.sum[mine + 8 * h] = part->sum[h];
        }
    sync_compute();
#pragma unroll
    for (int h = 0; h < HEAD_HALVES; h++) {
        const float factor = warp_factor(part->max[h], most_of(x.max, c->lane / 4 + 8 * h));
        if (c->lane % 4 == 0) x.factor[mine + 8 * h] = factor;
    }
#pragma unroll 1
    for (uint32_t at = 0; at < QN_HEAD_DIM; at += SPLIT_CHUNK) {
        if (at > 0) sync_compute();
        store_chunk(c, t->share, part, (float *)(SCRATCH + SPLIT_OUTS), SUB_HEADS, at, SPLIT_CHUNK);
        copy_wait<0>(); /* of split_ask */
        sync_compute();
        if (at == 0 && c->warp == WARPS - 1 && c->lane < s->n_heads)
            act_put2(act_from(to, (uint64_t)c->lane * t->n_pieces * STATE_SIZE),
                     split_row_state(&x, c->lane));
        split_merge_outputs(c, t, s, &x, to, at);
    }
}

/* Where the warp's share of the item lies in the cache, if it is to be read there: row (of
 * head_dim) of its first position; without pages, of the lane's. */
template <uint32_t KIND>
DEV uint32_t split_row(const struct warp_context *c, const struct split_warp *t,
                       const struct kv_walk *w) {
    const uint32_t first = w->piece * ATTENTION_PIECE + SHARE_POSITIONS * t->share;
    if (JOINED(KIND) && KV_PAGES) return 0;
    if (w->left == 0 || kv_walk_share(w, first) != SHARE_FRESH) return 0;
    const uint32_t position = KV_PAGES ? first : min(first + c->lane % 16, w->hi - 1);
    return kv_row(&SHARED->batch, w->slot, position);
}

/* The task's first item. Slices are the same in every layer, so the first layer's is kept for the
 * iteration: finding it takes divisions of 64 bits. */
DEV struct kv_walk split_walk(const struct warp_context *c, const struct cuda_task *task) {
    struct block_shared *b = SHARED;
    const uint64_t key = (uint64_t)(task->kind << 24 | task->unit0) << 32 | b->flag;
    struct warp_state *mine = &b->warp[c->warp];
    if (mine->walk_key == key) return mine->walk;
    const struct kv_walk w = kv_walk_begin(b, task, kv_load_all(b, c->lane, task->kind));
    __syncwarp(); /* all lanes have seen the old key */
    if (c->lane == 0) {
        mine->walk = w;
        mine->walk_key = key;
    }
    __syncwarp();
    return w;
}

/* What a warp is in a task. Before it takes the task's first page. */
DEV struct split_warp split_warp_of(const struct warp_context *c, const struct cuda_task *task) {
    return {KV_PAGES ? (c->warp - c->turn) % WARPS : c->warp, (const float *)task->in,
            (const uint16_t *)task->more, act_of(task->out, task, CUDA_OUT_FLAGGED),
            task->n_pieces};
}

/* An item's part of its first head. */
DEV struct act split_part(const struct split_warp *t, const struct kv_walk *w) {
    const uint64_t head = (uint64_t)w->row * QN_N_HEADS + split_step(w).head0;
    return act_from(t->part, (head * t->n_pieces + w->piece) * STATE_SIZE);
}

/* Finds the task's first item, where its fresh positions lie and what turns the warp's first head,
 * then waits for the event, or makes heads of what says itself when it is there. False: the launch
 * ends. */
template <uint32_t KIND>
DEV bool split_begin(struct warp_context *c, const struct cuda_task *task,
                     const struct split_warp *t, struct kv_walk *w, uint32_t *row) {
    *w = split_walk(c, task);
    *row = split_row<KIND>(c, t, w);
    struct head_turn turn = {};
    if (JOINED(KIND) && w->left > 0 && c->warp < step_n_heads<KIND>(w))
        turn = step_turn<KIND>(c, task, w, c->warp);
    if (!(JOINED(KIND) ? wait_data(c, task) : wait_ready(c))) return false;
    if (c->thread == 0) trace(SHARED, RT_TRACE_READY, task->index);
    if (JOINED(KIND) && w->left > 0) step_make_all<KIND>(c, task, w, c->warp, turn);
    return true;
}

/* Items from *w on, whose heads are made; RUNS: up to a run. row: of the first, see split_row. */
template <uint32_t KIND, bool RUNS>
DEV void split_items(struct warp_context *c, const struct cuda_task *task,
                     const struct split_warp *t, struct kv_walk *w, uint32_t row) {
#pragma unroll 1
    for (uint32_t n = 0; w->left > 0 && !(RUNS && kv_walk_runs(w)); n++) {
        const struct attention_step s = split_step(w);
        const struct act to = split_part(t, w);
        struct kv_walk next = *w;
        struct attention_part part;
        if (KIND == OP_ATTENTION_SPLIT) { /* STEP has no pages to ask for, and a task that waits
                                             for its parts */
            kv_walk_skip(SHARED, &next, 1);
            if (SPLIT_ASK_AHEAD && next.left > 0) split_ask(c, t, &next, n + 1);
        }
        split_share<KIND>(c, t, w, &s, n, row, &part);
        if (KIND == OP_ATTENTION_SPLIT) row = split_row<KIND>(c, t, &next);
        split_merge(c, t, &s, &part, to, n % 2);
        if (KIND == OP_ATTENTION_STEP) {
            kv_walk_skip(SHARED, &next, 1);
            row = split_row<KIND>(c, t, &next);
        }
        const bool same_head = w->row == next.row && w->head == next.head;
        *w = next;
        if (KIND == OP_ATTENTION_STEP && w->left > 0) step_make_next<KIND>(c, task, w, same_head);
    }
}

/* ATTENTION_SPLIT; ATTENTION_STEP of short contexts, which have no runs. */
template <uint32_t KIND> DEV bool run_split(struct warp_context *c, const struct cuda_task *task) {
    const struct split_warp t = split_warp_of(c, task);
    struct kv_walk w;
    uint32_t row;
    if (!split_begin<KIND>(c, task, &t, &w, &row)) return false;
    split_items<KIND, false>(c, task, &t, &w, row);
    return true;
}

#endif
