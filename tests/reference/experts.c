#include "reference/experts.h"
#include "graph/expert_list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The largest score of a group. */
static double best_of(const struct op_attrs *a, const double *scores, uint64_t group) {
    const uint64_t size = a->experts / a->groups;
    double most = -INFINITY;
    for (uint64_t e = group * size; e < (group + 1) * size; e++) most = fmax(most, scores[e]);
    return most;
}

/* Whether an expert's group is one of the top_groups best. */
static bool is_open(const struct op_attrs *a, const double *scores, uint64_t expert) {
    if (a->groups == 0) return true;
    const uint64_t own = expert / (a->experts / a->groups);
    const double score = best_of(a, scores, own);
    uint64_t before = 0;
    for (uint64_t g = 0; g < a->groups; g++)
        before += best_of(a, scores, g) > score || (best_of(a, scores, g) == score && g < own);
    return before < a->top_groups;
}

bool experts_has(const struct op_attrs *a, const double *scores, uint64_t expert) {
    uint64_t before = 0;
    if (!is_open(a, scores, expert)) return false;
    for (uint64_t e = 0; e < a->experts; e++)
        if (is_open(a, scores, e))
            before += scores[e] > scores[expert] || (scores[e] == scores[expert] && e < expert);
    return before < a->top_k;
}

/* Its place among a row's experts by ascending id. */
static uint64_t place_of(const struct op_attrs *a, const double *scores, uint64_t expert) {
    uint64_t n = 0;
    for (uint64_t e = 0; e < expert; e++) n += experts_has(a, scores, e);
    return n;
}

void experts_list(struct reference *r, const struct op_attrs *a, const double *scores,
                  uint64_t cols, int32_t list, int32_t slots) {
    struct reference_tensor *l = reference_make(r, list, 0, 0);
    struct reference_tensor *s = reference_make(r, slots, 0, 0);
    uint64_t n_listed = 0, slot = 0;
    for (uint64_t e = 0; e < a->experts; e++) {
        const uint64_t first = slot;
        for (uint64_t t = 0; t < r->n_rows; t++)
            if (experts_has(a, scores + t * cols, e))
                s->at[slot++] = (double)(t * a->top_k + place_of(a, scores + t * cols, e));
        if (slot == first) continue;
        double *entry = l->at + n_listed++ * l->cols;
        entry[EXPERT_ID] = (double)e;
        entry[EXPERT_FIRST] = (double)first;
        entry[EXPERT_END] = (double)slot;
    }
    for (; n_listed < l->rows; n_listed++) l->at[n_listed * l->cols + EXPERT_ID] = -1;
}

/* Numbers that are all different, in no order. */
static double scrambled(uint64_t i) {
    return (double)((i + 1) * 0x9e3779b97f4a7c15u >> 20);
}

/* The operand of that name; NO_TENSOR: none. */
static int32_t find(const struct kop *op, const char *name) {
    struct op_info info;
    op_describe(op->kind, &info);
    for (int i = 0; i < info.n_in; i++)
        if (strcmp(info.in[i].name, name) == 0) return op->in[i];
    return NO_TENSOR;
}

bool experts_fill(struct reference *r, const struct kop *op, int32_t tensor) {
    const struct op_attrs *a = &op->attrs;
    const int32_t list = find(op, "list"), slots = find(op, "slots");
    if (tensor == find(op, "h")) {
        struct reference_tensor *h = reference_make(r, tensor, 0, 0);
        for (uint64_t i = 0; i < (uint64_t)r->n_rows * a->top_k * h->cols; i++)
            h->at[i] = fmod(scrambled(i), 17) / 8 - 1;
        return true;
    }
    if (tensor != list && tensor != slots) return false;
    double *scores = malloc((size_t)r->n_rows * a->experts * sizeof *scores);
    if (scores == NULL) abort();
    for (uint64_t i = 0; i < (uint64_t)r->n_rows * a->experts; i++) scores[i] = scrambled(i);
    experts_list(r, a, scores, a->experts, list, slots);
    free(scores);
    return true;
}
