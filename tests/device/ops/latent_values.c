/* latent_values.c - the forms of LATENT_VALUES. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "latent_values"}, any_rows, CPU | GPU, MIXED, 0},
    {{.name = "latent_values.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "latent_values.packed", .packed = true}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_latent_values = {
    .set = LATENT,
    .absolute = 2e-6,
    .shapes = {{"a", {S_ROWS, S_VALUES}}, {"w", {S_OUT, S_VALUE}}},
    FORMS(forms),
};
