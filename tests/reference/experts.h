/* experts.h - what the experts' operators mean by their list (graph/expert_list.h). */
#ifndef QN_TESTS_EXPERTS_H
#define QN_TESTS_EXPERTS_H

#include "reference/operand.h"

/* Whether a row has an expert: it is one of the top_k largest scores[experts], of equal ones of the
 * lower id; with groups, of those in the top_groups groups that have the largest. */
bool experts_has(const struct op_attrs *a, const double *scores, uint64_t expert);

/* Fills a list and its slots from the scores of each row, row by row `cols` apart. */
void experts_list(struct reference *r, const struct op_attrs *a, const double *scores,
                  uint64_t cols, int32_t list, int32_t slots);

/* Fills the list or the slots among an operator's inputs with experts that differ from row to row,
 * and h with numbers for all slots that there are; false: the tensor is neither. For op_test. */
bool experts_fill(struct reference *r, const struct kop *op, int32_t tensor);

#endif
