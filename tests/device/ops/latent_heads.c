/* latent_heads.c - the forms of LATENT_HEADS. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "latent_heads"}, any_rows, CPU | GPU, MIXED | ALONE, 0},
    {{.name = "latent_heads.polls", .rides = true}, one_row, GPU, ALONE, 0},
};

const struct op_test op_test_latent_heads = {
    .set = LATENT,
    .absolute = 2e-5,
    .shapes = {{"raw", {S_ROWS, S_HEADS}},
               {"c", {S_ROWS, S_JOINED}},
               {"c_norm", {S_VALUE}},
               {"w_uk", {S_VALUES, S_NOPE}}},
    FORMS(forms),
};
