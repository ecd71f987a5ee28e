/* router.c - the meaning and the forms of ROUTER. */
#include "device/op_test.h"

#include <math.h>

void reference_op_router(struct reference *r, const struct kop *op) {
    const struct reference_tensor *x = operand_in(r, op, ROUTER_X),
                                  *w = operand_in(r, op, ROUTER_W);
    const double *norm = operand_in(r, op, ROUTER_NORM)->at;
    operand_make(r, op, 0, w->rows);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        const double *row = operand_row(x, t);
        const double rms =
            sqrt(operand_dot(row, row, x->cols) / (double)x->cols + (double)op->attrs.eps);
        for (uint64_t n = 0; n < w->rows; n++) {
            double sum = 0;
            for (uint64_t i = 0; i < x->cols; i++) sum += row[i] * norm[i] * operand_row(w, n)[i];
            operand_out_row(r, op, 0, t)[n] = sum / rms;
        }
    }
}

static const struct form_row forms[] = {
    {{.name = "router"}, any_rows, CPU, MIXED, 0},
    {{.name = "router.row"}, one_row, GPU, MIXED, 0},
    {{.name = "router.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "router.rows"}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_router = {
    .set = EXPERTS,
    .absolute = 2e-6,
    .shapes = {{"w", {S_ROUTED, S_HIDDEN}}},
    FORMS(forms),
};
