/* route.c - ROUTE: each row's experts and their weights, then the list of experts that some row has
 * (graph/expert_list.h). NaN counts as the least logit, so that ids stay in bounds. */
#include "graph/expert_list.h"
#include "kernels/cpu/tile.h"

#include <math.h>
#include <string.h>

struct route_scratch {
    float *p;         /* [experts] softmax of a row */
    uint8_t *taken;   /* [experts] TAKEN: the row has it */
    int32_t *first;   /* [experts + 1] slots of an expert; then where its next slot goes */
    int32_t *experts; /* [T, top_k] of each row, ascending */
    size_t bytes;
};

static struct route_scratch layout(void *base, const struct op_attrs *a, uint32_t n_rows) {
    struct tile_scratch s = {.base = base};
    struct route_scratch l = {0};
    l.p = tile_take(&s, a->experts * sizeof(float));
    l.taken = tile_take(&s, a->experts);
    l.first = tile_take(&s, (a->experts + (size_t)1) * sizeof(int32_t));
    l.experts = tile_take(&s, (size_t)n_rows * a->top_k * sizeof(int32_t));
    l.bytes = s.used;
    return l;
}

static uint32_t rows_of(const struct prog_header *program, const struct prog_op *op) {
    return PROG(program, TENSOR)[op->in[ROUTE_LOGITS]].shape[0];
}

size_t cpu_route_scratch(const struct prog_header *program, const struct prog_op *op) {
    return layout(NULL, &op->attrs, rows_of(program, op)).bytes;
}

enum { FREE, TAKEN, CLOSED }; /* experts of a row */

/* Closes all groups of experts but those with the largest logits; of equal ones the first stay. */
static void close_groups(const float *logits, const struct op_attrs *a, uint8_t *taken) {
    const uint32_t size = a->groups != 0 ? a->experts / a->groups : a->experts;
    memset(taken, a->groups != 0 ? CLOSED : FREE, a->experts);
    for (uint32_t k = 0; k < a->top_groups; k++) {
        float most = -INFINITY;
        uint32_t best = a->experts;
        for (uint32_t e = 0; e < a->experts; e++) {
            if (taken[e] != CLOSED || (best != a->experts && !(logits[e] > most))) continue;
            best = e / size;
            most = logits[e] == logits[e] ? logits[e] : -INFINITY;
        }
        memset(taken + (size_t)best * size, FREE, size);
    }
}

/* Marks the top_k experts with the largest logits; of equal ones the first. */
static void choose(const float *logits, const struct op_attrs *a, uint8_t *taken) {
    close_groups(logits, a, taken);
    for (uint32_t k = 0; k < a->top_k; k++) {
        uint32_t best = 0;
        while (taken[best]) best++;
        for (uint32_t e = best + 1; e < a->experts; e++)
            if (!taken[e] && (logits[e] > logits[best] || logits[best] != logits[best])) best = e;
        taken[best] = TAKEN;
    }
}

static void softmax(const struct cpu_task *t, const float *logits, uint32_t n, float *p) {
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (uint32_t i = 0; i < n; i++) p[i] = logits[i] - max;
    t->isa->exp_of(p, p, n);
    for (uint32_t i = 0; i < n; i++) sum += p[i];
    for (uint32_t i = 0; i < n; i++) p[i] /= sum;
}

/* Stores a row's experts, if the engine keeps them. */
static void keep_route(const struct cpu_task *t, uint32_t row, const int32_t *experts) {
    const struct rt_batch *b = t->batch;
    const uint32_t K = t->op->attrs.top_k;
    if (b->routes == NULL) return;
    const uint64_t position =
        (uint64_t)b->rows.slot[row] * b->max_model_len + b->rows.position[row];
    uint16_t *ids = b->routes + position * b->route_stride + (size_t)t->op->layer * K;
    for (uint32_t i = 0; i < K; i++) ids[i] = (uint16_t)experts[i];
}

/* Writes a row's experts and weights, by ascending id; counts the slots of each expert. */
static void route_row(const struct cpu_task *t, const struct route_scratch *l, const float *logits,
                      int32_t *experts, float *weight) {
    const struct op_attrs *a = &t->op->attrs;
    float sum = 0;
    uint32_t n = 0;
    choose(logits, a, l->taken);
    softmax(t, logits, a->experts, l->p);
    for (uint32_t e = 0; e < a->experts; e++) {
        if (l->taken[e] != TAKEN) continue;
        experts[n] = (int32_t)e;
        sum += weight[n++] = l->p[e];
        l->first[e + 1]++;
    }
    for (uint32_t i = 0; a->normed && i < n; i++) weight[i] /= sum;
    for (uint32_t i = 0; i < n; i++) weight[i] *= a->routed;
    if (a->gates) weight[n] = 1 / (1 + expf(-logits[a->experts]));
}

/* Writes the entries of an expert; returns how many. */
static uint32_t list_expert(uint32_t expert, uint32_t slot, uint32_t end, int32_t *entry) {
    uint32_t n = 0;
    for (; slot < end; n++, entry += EXPERT_WORDS) {
        entry[EXPERT_ID] = (int32_t)expert;
        entry[EXPERT_FIRST] = (int32_t)slot;
        entry[EXPERT_END] = (int32_t)(slot = expert_entry_end(slot, end));
    }
    return n;
}

/* Writes the list of experts, from the number of slots of each. Returns how many experts are
 * listed; *n_entries: in how many entries. */
static uint32_t list_experts(const struct op_attrs *a, int32_t *first, int32_t *list,
                             uint32_t *n_entries) {
    uint32_t n = 0, n_listed = 0;
    for (uint32_t e = 0; e < a->experts; e++) {
        first[e + 1] += first[e];
        n_listed += first[e + 1] > first[e];
        n += list_expert(e, (uint32_t)first[e], (uint32_t)first[e + 1],
                         list + (size_t)n * EXPERT_WORDS);
    }
    *n_entries = n;
    return n_listed;
}

/* The host reads these counters at any time. */
static void count_reads(const struct rt_batch *b, uint32_t n) {
    if (!b->rows.steady) return;
    __atomic_fetch_add(&b->reads->experts, n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&b->reads->layers, 1, __ATOMIC_RELAXED);
}

void cpu_route(const struct cpu_task *t) {
    const struct op_attrs *a = &t->op->attrs;
    const uint32_t n_rows = t->batch->rows.n_rows, K = a->top_k;
    const float *logits = tile_in(t, ROUTE_LOGITS); /* [T, experts + gates] */
    int32_t *list = tile_out(t, ROUTE_OUT_LIST);    /* [n, EXPERT_WORDS] */
    int32_t *slots = tile_out(t, ROUTE_OUT_SLOTS);  /* [T * top_k] */
    float *weight = tile_out(t, ROUTE_OUT_WEIGHT);  /* [T, top_k + gates] */
    const uint32_t capacity = PROG(t->program, TENSOR)[t->op->out[ROUTE_OUT_LIST]].shape[0];
    const struct route_scratch l = layout(t->scratch, a, rows_of(t->program, t->op));
    memset(l.first, 0, (a->experts + (size_t)1) * sizeof *l.first);
    for (uint32_t r = 0; r < n_rows; r++) {
        int32_t *experts = l.experts + (size_t)r * K;
        route_row(t, &l, logits + (size_t)r * (a->experts + a->gates), experts,
                  weight + (size_t)r * (K + a->gates));
        keep_route(t, r, experts);
    }
    uint32_t n_entries;
    count_reads(t->batch, list_experts(a, l.first, list, &n_entries));
    for (uint32_t n = n_entries; n < capacity; n++) list[(size_t)n * EXPERT_WORDS + EXPERT_ID] = -1;
    for (uint32_t i = 0; i < n_rows * K; i++) slots[l.first[l.experts[i]]++] = (int32_t)i;
}
