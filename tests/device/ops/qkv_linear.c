/* qkv_linear.c - the forms of QKV_LINEAR. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "qkv_linear"}, any_rows, CPU, MIXED, 0},
    {{.name = "qkv_linear.one_row"}, one_row, GPU, MIXED, 0},
    {{.name = "qkv_linear.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "qkv_linear.stream", .packed = true}, few_rows, GPU, MIXED, 0},
    {{.name = "qkv_linear.tile", .packed = true, .summed = true}, tile_rows, GPU, MIXED, 0},
};

const struct op_test op_test_qkv_linear = {
    .set = PRODUCTS,
    .absolute = 2e-5,
    .shapes = {{"w", {S_QKV, S_HIDDEN}}, {"bias", {S_QKV}}},
    FORMS(forms),
};
