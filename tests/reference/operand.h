/* operand.h - operands of an operator as rows of numbers, for the functions that say what it means.
 */
#ifndef QN_TESTS_OPERAND_H
#define QN_TESTS_OPERAND_H

#include "reference/reference.h"

/* NULL: the operator does not have the operand. */
static inline const struct reference_tensor *operand_in(const struct reference *r,
                                                        const struct kop *op, int slot) {
    return op->in[slot] == NO_TENSOR ? NULL : &r->tensors[op->in[slot]];
}

static inline const double *operand_row(const struct reference_tensor *t, uint64_t row) {
    return t == NULL ? NULL : t->at + row * t->cols;
}

/* Row of an output. */
static inline double *operand_out_row(const struct reference *r, const struct kop *op, int slot,
                                      uint64_t row) {
    const struct reference_tensor *t = &r->tensors[op->out[slot]];
    return t->at + row * t->cols;
}

/* Element i of an optional vector: 0 without it. */
static inline double operand_element(const struct reference_tensor *vector, uint64_t i) {
    return vector == NULL ? 0 : vector->at[i];
}

/* Makes an output of as many rows as the operator has; of a state tensor what is there stays. */
static inline void operand_make(struct reference *r, const struct kop *op, int slot,
                                uint64_t cols) {
    const bool state = r->g->tensors.items[op->out[slot]].role == TENSOR_STATE;
    if (state && r->tensors[op->out[slot]].at != NULL) return;
    reference_make(r, op->out[slot], kop_rows(op), cols);
}

/* The outputs of an operator that writes the residual stream of so many columns; then what the norm
 * that comes next makes of row `row`, and its squares: of every SQUARES_COLUMNS columns, or of all.
 */
void reference_make_stream(struct reference *r, const struct kop *op, uint64_t columns);
void reference_finish_stream(const struct reference *r, const struct kop *op, uint64_t row,
                             const struct reference_tensor *next);

/* Eight sums side by side, which the compiler keeps in vectors: one sum waits for each addition. */
static inline double operand_dot(const double *a, const double *b, uint64_t n) {
    double sums[8] = {0}, sum = 0;
    uint64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum += a[i] * b[i];
    for (int j = 0; j < 8; j++) sum += sums[j];
    return sum;
}

#endif
