/* route.c - the meaning and the forms of ROUTE. */
#include "device/op_test.h"
#include "reference/experts.h"

#include <stdlib.h>

void reference_op_route(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    const struct reference_tensor *logits = operand_in(r, op, ROUTE_LOGITS);
    double *ids = malloc((size_t)r->n_rows * a->top_k * sizeof *ids);
    if (ids == NULL) abort();
    reference_make(r, op->out[ROUTE_OUT_WEIGHT], 0, 0);
    for (uint32_t t = 0; t < r->n_rows; t++)
        experts_weigh(a, operand_row(logits, t), operand_out_row(r, op, ROUTE_OUT_WEIGHT, t));
    experts_ids(a, logits->at, logits->cols, r->n_rows, ids);
    experts_list(r, a, ids, op->out[ROUTE_OUT_LIST], op->out[ROUTE_OUT_SLOTS]);
    free(ids);
}

static const struct form_row forms[] = {
    {{.name = "route"}, any_rows, CPU, MIXED, 0},
    {{.name = "route.rows"}, any_rows, GPU, MIXED, 0},
    {{.name = "route.stretches"}, rows_of_stretches, CPU | GPU, MIXED, 0},
    {{.name = "route.polls", .rides = true}, up_to_16, GPU, MIXED, 0},
};

const struct op_test op_test_route = {
    .set = EXPERTS | ROUTES,
    .absolute = 1e-6,
    .shapes = {{"logits", {S_ROWS, S_ROUTED}}},
    FORMS(forms),
};
