#include "reference/experts.h"
#include "graph/expert_list.h"
#include "graph/model_spec.h"

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

/* Of n scores, whether fewer than `top` are before this one: larger, or as large with a lower id.
 */
static bool is_among(const double *scores, uint64_t n, uint64_t id, uint64_t top) {
    uint64_t before = 0;
    for (uint64_t i = 0; i < n; i++)
        before += scores[i] > scores[id] || (scores[i] == scores[id] && i < id);
    return before < top;
}

uint64_t experts_of(const struct op_attrs *a, const double *scores, uint64_t *ids) {
    double group[SPEC_MAX_EXPERTS], open[SPEC_MAX_EXPERTS];
    uint64_t id[SPEC_MAX_EXPERTS], n_open = 0, n = 0;
    for (uint64_t g = 0; g < a->groups; g++) group[g] = best_of(a, scores, g);
    for (uint64_t e = 0; e < a->experts; e++) {
        if (a->groups != 0 &&
            !is_among(group, a->groups, e / (a->experts / a->groups), a->top_groups))
            continue;
        open[n_open] = scores[e];
        id[n_open++] = e;
    }
    for (uint64_t i = 0; i < n_open; i++)
        if (is_among(open, n_open, i, a->top_k)) ids[n++] = id[i];
    return n;
}

/* Adds the entries of an expert's slots [slot, end) from number `at` on; returns how many. */
static uint64_t add_entries(struct reference_tensor *list, uint64_t at, uint64_t expert,
                            uint64_t slot, uint64_t end) {
    uint64_t n = 0;
    const uint64_t eight = slot - slot % PACK_ROWS;
    for (uint64_t first = slot; first < end; n++) {
        const uint64_t next = eight + (n + 1) * EXPERT_STRETCH;
        double *entry = list->at + (at + n) * list->cols;
        entry[EXPERT_ID] = (double)expert;
        entry[EXPERT_FIRST] = (double)first;
        first = next < end ? next : end;
        entry[EXPERT_END] = (double)first;
    }
    return n;
}

void experts_list(struct reference *r, const struct op_attrs *a, const double *ids, int32_t list,
                  int32_t slots) {
    struct reference_tensor *l = reference_make(r, list, 0, 0);
    struct reference_tensor *s = reference_make(r, slots, 0, 0);
    const uint64_t n = (uint64_t)r->n_rows * a->top_k;
    uint64_t n_entries = 0, slot = 0;
    for (uint64_t e = 0; e < a->experts; e++) {
        const uint64_t first = slot;
        for (uint64_t i = 0; i < n; i++)
            if (ids[i] == (double)e) s->at[slot++] = (double)i;
        n_entries += add_entries(l, n_entries, e, first, slot);
    }
    for (; n_entries < l->rows; n_entries++) l->at[n_entries * l->cols + EXPERT_ID] = -1;
}

void experts_ids(const struct op_attrs *a, const double *scores, uint64_t cols, uint64_t n_rows,
                 double *out) {
    uint64_t ids[SPEC_MAX_EXPERTS];
    for (uint64_t t = 0; t < n_rows; t++) {
        if (experts_of(a, scores + t * cols, ids) != a->top_k) abort();
        for (uint64_t i = 0; i < a->top_k; i++) out[t * a->top_k + i] = (double)ids[i];
    }
}

void experts_weigh(const struct op_attrs *a, const double *logits, double *weight) {
    double all = 0, own = 0, max = -INFINITY;
    uint64_t ids[SPEC_MAX_EXPERTS];
    const uint64_t n = experts_of(a, logits, ids);
    for (uint64_t e = 0; e < a->experts; e++) max = fmax(max, logits[e]);
    for (uint64_t e = 0; e < a->experts; e++) all += exp(logits[e] - max);
    for (uint64_t i = 0; i < n; i++) own += weight[i] = exp(logits[ids[i]] - max);
    for (uint64_t i = 0; i < n; i++) weight[i] *= (double)a->routed / (a->normed ? own : all);
    if (a->gates) weight[n] = 1 / (1 + exp(-logits[a->experts]));
}

/* Numbers that are all different, in no order. */
static double scrambled(uint64_t i) {
    return (double)((i + 1) * 0x9e3779b97f4a7c15u >> 20);
}

/* The operand of that name; NO_TENSOR: none. */
static int32_t find(const struct kop *op, const char *name) {
    const struct op_info *info = op_info_of(op->kind);
    for (int i = 0; i < info->n_in; i++)
        if (strcmp(info->in[i].name, name) == 0) return op->in[i];
    return NO_TENSOR;
}

/* Fills an operand that has a row for each slot; false: the tensor is no such operand. */
static bool fill_slots(struct reference *r, const struct kop *op, int32_t tensor) {
    const bool squares = tensor == find(op, "squares");
    if (!squares && tensor != find(op, "h") && tensor != find(op, "rows")) return false;
    struct reference_tensor *h = reference_make(r, tensor, 0, 0);
    for (uint64_t i = 0; i < (uint64_t)r->n_rows * op->attrs.top_k * h->cols; i++)
        h->at[i] = squares ? 16 * (1 + fmod(scrambled(i), 16)) : fmod(scrambled(i), 17) / 8 - 1;
    return true;
}

/* An operator that reads only the list or only the slots has the other one in its output until it
 * runs. */
static int32_t or_output(const struct kop *op, int32_t tensor) {
    return tensor != NO_TENSOR ? tensor : op->out[0];
}

void experts_each_slot(struct reference *r, const struct kop *op,
                       const struct reference_tensor *list,
                       void (*run)(struct reference *r, const struct kop *op, uint64_t expert,
                                   uint64_t slot)) {
    for (uint64_t i = 0; i < list->rows && operand_row(list, i)[EXPERT_ID] >= 0; i++) {
        const double *entry = operand_row(list, i);
        for (double slot = entry[EXPERT_FIRST]; slot < entry[EXPERT_END]; slot++)
            run(r, op, (uint64_t)entry[EXPERT_ID], (uint64_t)slot);
    }
}

bool experts_fill(struct reference *r, const struct kop *op, int32_t tensor) {
    const struct op_attrs *a = &op->attrs;
    const int32_t list = find(op, "list"), slots = find(op, "slots");
    const bool is_ids = tensor == find(op, "ids");
    if (fill_slots(r, op, tensor)) return true;
    if (list != NO_TENSOR && tensor == find(op, "logits")) { /* from which the list follows */
        const struct reference_tensor *t = reference_make(r, tensor, 0, 0);
        for (uint64_t i = 0; i < t->rows * t->cols; i++) t->at[i] = scrambled(i);
        return true;
    }
    if (tensor != list && tensor != slots && !is_ids) return false;
    double *scores = malloc((size_t)r->n_rows * a->experts * sizeof *scores);
    double *ids = malloc((size_t)r->n_rows * a->top_k * sizeof *ids);
    if (scores == NULL || ids == NULL) abort();
    for (uint64_t i = 0; i < (uint64_t)r->n_rows * a->experts; i++) scores[i] = scrambled(i);
    experts_ids(a, scores, a->experts, r->n_rows,
                is_ids ? reference_make(r, tensor, 0, 0)->at : ids);
    if (!is_ids) experts_list(r, a, ids, or_output(op, list), or_output(op, slots));
    free(scores);
    free(ids);
    return true;
}
