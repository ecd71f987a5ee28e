/* route_top_k.c - the meaning and the forms of ROUTE_TOP_K. */
#include "device/op_test.h"
#include "reference/experts.h"

void reference_op_route_top_k(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    const struct reference_tensor *logits = operand_in(r, op, ROUTE_LOGITS);
    reference_make(r, op->out[TOP_K_OUT_WEIGHT], 0, 0);
    for (uint32_t t = 0; t < r->n_rows; t++)
        experts_weigh(a, operand_row(logits, t), operand_out_row(r, op, TOP_K_OUT_WEIGHT, t));
    experts_ids(a, logits->at, logits->cols, r->n_rows,
                reference_make(r, op->out[TOP_K_OUT_IDS], 0, 0)->at);
}

static const struct form_row forms[] = {
    {{.name = "route_top_k"}, any_rows, GPU, MIXED, 0},
};

const struct op_test op_test_route_top_k = {
    .set = EXPERTS | ROUTES,
    .absolute = 1e-6,
    .shapes = {{"logits", {S_ROWS, S_ROUTED}}},
    FORMS(forms),
};
