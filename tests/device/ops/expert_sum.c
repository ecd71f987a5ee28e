/* expert_sum.c - the meaning and the forms of EXPERT_SUM. */
#include "device/op_test.h"

/* Of a row: the sum of its experts' parts by their weights, and its shared experts' result. */
static void run_row(struct reference *r, const struct kop *op, uint64_t t) {
    const struct reference_tensor *shared = operand_in(r, op, EXPERT_SHARED);
    const double *weight = operand_row(operand_in(r, op, EXPERT_WEIGHT), t);
    const double *part = operand_row(operand_in(r, op, EXPERT_PARTS), t);
    const double gate = op->attrs.gates ? weight[op->attrs.top_k] : 1;
    const uint64_t N = r->tensors[op->out[STREAM_X]].cols;
    for (uint64_t n = 0; n < N; n++) {
        double sum = shared == NULL ? 0 : gate * operand_row(shared, t)[n];
        for (uint64_t i = 0; i < op->attrs.top_k; i++) sum += weight[i] * part[i * N + n];
        operand_out_row(r, op, STREAM_X, t)[n] =
            operand_row(operand_in(r, op, EXPERT_RESIDUAL), t)[n] + sum;
    }
}

void reference_op_expert_sum(struct reference *r, const struct kop *op) {
    reference_make_stream(r, op, operand_in(r, op, EXPERT_RESIDUAL)->cols);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        run_row(r, op, t);
        reference_finish_stream(r, op, t, operand_in(r, op, EXPERT_NEXT));
    }
}

static const struct form_row forms[] = {
    {{.name = "expert_sum", .packed = true}, grouped_rows, GPU, MIXED, 0},
};

const struct op_test op_test_expert_sum = {
    .set = GROUPED,
    .absolute = 2e-6,
    .shapes = {{"parts", {S_ROWS, S_CHOSEN}}, {"weight", {S_ROWS, S_WEIGHTS}}},
    FORMS(forms),
};
