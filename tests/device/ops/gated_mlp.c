/* gated_mlp.c - the forms of GATED_MLP. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "gated_mlp"}, any_rows, CPU, MIXED, 0},
    {{.name = "gated_mlp.one_row"}, one_row, GPU, MIXED, 0},
    {{.name = "gated_mlp.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "gated_mlp.stream", .packed = true}, few_rows, GPU, MIXED, 0},
    {{.name = "gated_mlp.tile", .packed = true, .summed = true}, tile_rows, GPU, MIXED, 0},
};

const struct op_test op_test_gated_mlp = {
    .set = PRODUCTS,
    .absolute = 2e-5,
    FORMS(forms),
};
