/* experts.h - what the experts' operators mean by their list (graph/expert_list.h). */
#ifndef QN_TESTS_EXPERTS_H
#define QN_TESTS_EXPERTS_H

#include "reference/operand.h"

/* A row's experts by ascending id, as many as it returns: the top_k largest of scores[experts], of
 * equal ones those of lower ids; with groups, of those in the top_groups groups that have the
 * largest. ids[SPEC_MAX_EXPERTS]. */
uint64_t experts_of(const struct op_attrs *a, const double *scores, uint64_t *ids);

/* The same of n_rows rows, whose scores are `cols` apart: out[n_rows, top_k]. */
void experts_ids(const struct op_attrs *a, const double *scores, uint64_t cols, uint64_t n_rows,
                 double *out);

/* A row's weights: its experts' by ascending id, then its gate. */
void experts_weigh(const struct op_attrs *a, const double *logits, double *weight);

/* Fills a list and its slots from the rows' experts, ids[T, top_k]. */
void experts_list(struct reference *r, const struct op_attrs *a, const double *ids, int32_t list,
                  int32_t slots);

/* Calls run for each slot of the list's entries, in order. */
void experts_each_slot(struct reference *r, const struct kop *op,
                       const struct reference_tensor *list,
                       void (*run)(struct reference *r, const struct kop *op, uint64_t expert,
                                   uint64_t slot));

/* Fills ids, or the list or the slots, among an operator's inputs with experts that differ from row
 * to row, and h, rows and squares with numbers for all slots that there are; false: the tensor is
 * none of these. For op_test. */
bool experts_fill(struct reference *r, const struct kop *op, int32_t tensor);

#endif
