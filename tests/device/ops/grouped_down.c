/* grouped_down.c - the meaning and the forms of GROUPED_DOWN. */
#include "device/op_test.h"
#include "reference/experts.h"

/* h wd^T of a slot: the part of its row that its expert has. */
static void run_slot(struct reference *r, const struct kop *op, uint64_t expert, uint64_t slot) {
    const uint64_t at = (uint64_t)operand_in(r, op, GROUPED_DOWN_SLOTS)->at[slot];
    const uint64_t top_k = op->attrs.top_k, N = r->tensors[op->out[0]].cols / top_k;
    const struct reference_tensor *h = operand_in(r, op, GROUPED_DOWN_H);
    const double *w = operand_row(operand_in(r, op, GROUPED_DOWN_WD), expert);
    double *part = operand_out_row(r, op, 0, at / top_k) + at % top_k * N;
    for (uint64_t n = 0; n < N; n++)
        part[n] = operand_dot(operand_row(h, slot), w + n * h->cols, h->cols);
}

void reference_op_grouped_down(struct reference *r, const struct kop *op) {
    reference_make(r, op->out[0], 0, 0);
    experts_each_slot(r, op, operand_in(r, op, GROUPED_DOWN_LIST), run_slot);
}

static const struct form_row forms[] = {
    {{.name = "grouped_down"}, grouped_rows, HOPPER, MIXED, 0},
};

const struct op_test op_test_grouped_down = {
    .set = GROUPED,
    .absolute = 2e-6,
    .shapes = {{"h", {S_SLOTS, S_WIDTH}}, {"wd", {S_EXPERTS, S_HIDDEN, S_WIDTH}}},
    .fill = experts_fill,
    FORMS(forms),
};
