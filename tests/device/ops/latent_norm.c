/* latent_norm.c - LATENT_NORM: its meaning and its forms. */
#include "device/op_test.h"

#include <math.h>

void reference_op_latent_norm(struct reference *r, const struct kop *op) {
    const struct reference_tensor *x = operand_in(r, op, LATENT_NORM_X),
                                  *norm = operand_in(r, op, LATENT_NORM_W);
    const uint64_t k = norm->rows * norm->cols;
    operand_make(r, op, 0, k);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        const double *from = operand_row(x, t);
        double squares = 0;
        for (uint64_t i = 0; i < k; i++) squares += from[i] * from[i];
        const double by = 1 / sqrt(squares / (double)k + (double)op->attrs.eps);
        for (uint64_t i = 0; i < k; i++)
            operand_out_row(r, op, 0, t)[i] = from[i] * by * operand_element(norm, i);
    }
}

static const struct form_row forms[] = {
    {{.name = "latent_norm"}, any_rows, CPU | GPU, MIXED, 0},
    {{.name = "latent_norm.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "latent_norm.packed", .packed = true}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_latent_norm = {
    .set = LATENT,
    .absolute = 2e-6,
    .shapes = {{"x", {S_ROWS, S_JOINED}}, {"norm", {S_RANK}}},
    FORMS(forms),
};
