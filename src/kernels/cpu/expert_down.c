/* expert_down.c - EXPERT_DOWN: a tile of the layer's output, expert by expert, so that each row
 * adds up its experts by ascending id. The output holds the sum until all experts are added. */
#include "graph/expert_list.h"
#include "kernels/cpu/tile.h"

#include <assert.h>
#include <string.h>

struct experts_scratch {
    void *pack; /* a block of slots of h */
    float *y;   /* [block, tile_chunk(block)] dot products */
    size_t bytes;
};

static struct experts_scratch layout(void *base, uint32_t block, uint32_t k) {
    struct tile_scratch s = {.base = base};
    struct experts_scratch l = {0};
    l.pack = tile_take(&s, cpu_pack_bound(block, k));
    l.y = tile_take(&s, (size_t)block * tile_chunk(block) * sizeof(float));
    l.bytes = s.used;
    return l;
}

size_t cpu_expert_down_scratch(const struct prog_header *program, const struct prog_op *op) {
    (void)program;
    return layout(NULL, tile_op_block(op, op->k), op->k).bytes;
}

/* Where the rows of a task end. */
static uint32_t end_of(const struct cpu_task *t) {
    return tile_row_end(t, t->batch->rows.n_rows);
}

/* An expert's slots whose rows are the task's. Slots ascend by row. */
static void own_slots(const struct cpu_task *t, const int32_t *entry, uint32_t *first,
                      uint32_t *last) {
    const int32_t *slots = tile_in(t, DOWN_SLOTS);
    const uint32_t K = t->op->attrs.top_k, end = end_of(t);
    *first = (uint32_t)entry[EXPERT_FIRST];
    *last = (uint32_t)entry[EXPERT_END];
    while (*first < *last && (uint32_t)slots[*first] / K < t->task->row0) ++*first;
    while (*last > *first && (uint32_t)slots[*last - 1] / K >= end) --*last;
}

/* y[row] += weight * (h of n packed slots from `slot` on, times rows of an expert's matrix). */
static void add_slots(const struct cpu_task *t, const struct experts_scratch *l, const void *w,
                      uint32_t slot, uint32_t n) {
    const struct op_attrs *a = &t->op->attrs;
    const int32_t *slots = tile_in(t, DOWN_SLOTS);
    const float *weight = tile_in(t, DOWN_WEIGHT); /* [T, top_k + gates] */
    const enum dtype dtype = tile_in_dtype(t, DOWN_WD);
    const uint32_t k = t->op->k, N = t->op->units;
    const uint32_t chunk = tile_chunk(tile_op_block(t->op, k));
    float *out = tile_out(t, 0); /* [T, N] */
    for (uint32_t u = t->task->unit0; u < t->task->unit1; u += chunk) {
        const uint32_t m = t->task->unit1 - u < chunk ? t->task->unit1 - u : chunk;
        t->isa->gemm[dtype](CPU_SUM_HALVES, tile_weight_row(w, dtype, u, k), m, k, l->pack, n, l->y,
                            chunk);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t at = (uint32_t)slots[slot + i], row = at / a->top_k;
            const float scale = weight[(size_t)row * (a->top_k + a->gates) + at % a->top_k];
            const float *from = l->y + (size_t)i * chunk;
            float *to = out + (size_t)row * N + u;
            for (uint32_t c = 0; c < m; c++) to[c] += from[c] * scale;
        }
    }
}

/* Adds one expert's results to the task's rows. */
static void add_expert(const struct cpu_task *t, const struct experts_scratch *l,
                       const int32_t *entry) {
    const float *h = tile_in(t, DOWN_H); /* [T * top_k, I] */
    const void *w = tile_expert(t, DOWN_WD, (uint32_t)entry[EXPERT_ID]);
    const uint32_t k = t->op->k, block = tile_op_block(t->op, k);
    uint32_t first, last;
    own_slots(t, entry, &first, &last);
    for (uint32_t s = first; s < last; s += block) {
        const uint32_t n = last - s < block ? last - s : block;
        const float *x[TILE_MAX_ROWS];
        for (uint32_t i = 0; i < n; i++) x[i] = h + (size_t)(s + i) * k;
        t->isa->pack(tile_in_dtype(t, DOWN_WD), x, NULL, n, k, l->pack);
        add_slots(t, l, w, s, n);
    }
}

/* y = residual + (y + gate * shared). */
static void finish_row(const struct cpu_task *t, uint32_t row) {
    const struct op_attrs *a = &t->op->attrs;
    const size_t at = (size_t)row * t->op->units;
    const float *shared = tile_in(t, DOWN_SHARED), *residual = tile_in(t, DOWN_RESIDUAL);
    const float *weight = tile_in(t, DOWN_WEIGHT);
    const float gate = a->gates ? weight[(size_t)row * (a->top_k + 1) + a->top_k] : 1;
    float *y = tile_out(t, 0);
    for (size_t i = at + t->task->unit0; i < at + t->task->unit1; i++)
        y[i] = residual[i] + (shared != NULL ? y[i] + gate * shared[i] : y[i]);
}

void cpu_expert_down(const struct cpu_task *t) {
    const int32_t *list = tile_in(t, DOWN_LIST);
    const uint32_t capacity = tile_in_shape(t, DOWN_LIST)[0], end = end_of(t);
    const struct experts_scratch l = layout(t->scratch, tile_op_block(t->op, t->op->k), t->op->k);
    for (uint32_t r = t->task->row0; r < end; r++)
        memset((float *)tile_out(t, 0) + (size_t)r * t->op->units + t->task->unit0, 0,
               (t->task->unit1 - t->task->unit0) * sizeof(float));
    for (uint32_t i = 0; i < capacity && list[(size_t)i * EXPERT_WORDS] >= 0; i++)
        add_expert(t, &l, list + (size_t)i * EXPERT_WORDS);
    for (uint32_t r = t->task->row0; r < end; r++) finish_row(t, r);
}
