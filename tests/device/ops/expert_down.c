/* expert_down.c - the meaning and the forms of EXPERT_DOWN. */
#include "device/op_test.h"
#include "reference/experts.h"

/* y += weight * h wd^T of a slot. */
static void add_slot(struct reference *r, const struct kop *op, uint64_t expert, uint64_t slot) {
    const uint64_t at = (uint64_t)operand_in(r, op, DOWN_SLOTS)->at[slot], K = op->attrs.top_k;
    const double weight = operand_row(operand_in(r, op, DOWN_WEIGHT), at / K)[at % K];
    const struct reference_tensor *h = operand_in(r, op, DOWN_H);
    const double *w = operand_row(operand_in(r, op, DOWN_WD), expert);
    double *y = operand_out_row(r, op, 0, at / K);
    for (uint64_t n = 0; n < r->tensors[op->out[0]].cols; n++)
        y[n] += weight * operand_dot(operand_row(h, slot), w + n * h->cols, h->cols);
}

void reference_op_expert_down(struct reference *r, const struct kop *op) {
    const struct reference_tensor *shared = operand_in(r, op, DOWN_SHARED);
    const struct reference_tensor *y = &r->tensors[op->out[0]];
    reference_make_stream(r, op, operand_in(r, op, DOWN_RESIDUAL)->cols);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        const double *weight = operand_row(operand_in(r, op, DOWN_WEIGHT), t);
        const double gate = op->attrs.gates ? weight[op->attrs.top_k] : 1;
        for (uint64_t n = 0; n < y->cols; n++)
            y->at[t * y->cols + n] = operand_row(operand_in(r, op, DOWN_RESIDUAL), t)[n] +
                                     (shared == NULL ? 0 : gate * operand_row(shared, t)[n]);
    }
    experts_each_slot(r, op, operand_in(r, op, DOWN_LIST), add_slot);
    for (uint32_t t = 0; t < r->n_rows; t++)
        reference_finish_stream(r, op, t, operand_in(r, op, DOWN_NEXT));
}

static const struct form_row forms[] = {
    {{.name = "expert_down"}, any_rows, CPU, MIXED, 0},
    {{.name = "expert_down.stretches"}, rows_of_stretches, CPU, MIXED, 0},
    {{.name = "expert_down.row"}, one_row, GPU, MIXED, 0},
    {{.name = "expert_down.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "expert_down.gather", .packed = true}, eights_and_odd, GPU, MIXED, 0},
    {{.name = "expert_down.entries", .packed = true}, rows_of_stretches, GPU, MIXED, 0},
};

const struct op_test op_test_expert_down = {
    .set = EXPERTS,
    .absolute = 2e-6,
    .shapes = {{"h", {S_SLOTS, S_WIDTH}},
               {"weight", {S_ROWS, S_WEIGHTS}},
               {"wd", {S_EXPERTS, S_HIDDEN, S_WIDTH}}},
    .fill = experts_fill,
    FORMS(forms),
};
