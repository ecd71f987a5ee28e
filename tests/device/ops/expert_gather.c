/* expert_gather.c - the meaning and the forms of EXPERT_GATHER. */
#include "device/op_test.h"
#include "reference/experts.h"

void reference_op_expert_gather(struct reference *r, const struct kop *op) {
    const struct reference_tensor *x = operand_in(r, op, GATHER_X);
    const double *norm = operand_in(r, op, GATHER_NORM)->at;
    const double *slots = operand_in(r, op, GATHER_SLOTS)->at;
    reference_make(r, op->out[GATHER_OUT_ROWS], 0, 0);
    reference_make(r, op->out[GATHER_OUT_SQUARES], 0, 0);
    for (uint64_t s = 0; s < (uint64_t)r->n_rows * op->attrs.top_k; s++) {
        const double *row = operand_row(x, (uint64_t)slots[s] / op->attrs.top_k);
        double *to = operand_out_row(r, op, GATHER_OUT_ROWS, s);
        for (uint64_t i = 0; i < x->cols; i++) to[i] = row[i] * norm[i];
        *operand_out_row(r, op, GATHER_OUT_SQUARES, s) = operand_dot(row, row, x->cols);
    }
}

static const struct form_row forms[] = {
    {{.name = "expert_gather"}, grouped_rows, HOPPER, MIXED, 0},
};

const struct op_test op_test_expert_gather = {
    .set = GROUPED,
    .absolute = 2e-6,
    .fill = experts_fill,
    FORMS(forms),
};
