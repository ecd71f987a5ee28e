/* linear.c - the forms of LINEAR. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "linear"}, any_rows, CPU, MIXED, 0},
    {{.name = "linear.down", .wide_k = true}, any_rows, CPU, MIXED, 0},
    {{.name = "linear.bare", .bare = true}, any_rows, CPU, MIXED, 0},
    {{.name = "linear.one_row"}, one_row, GPU, MIXED, 0},
    {{.name = "linear.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "linear.down_one_row", .wide_k = true}, one_row, GPU, MIXED, 0},
    {{.name = "linear.down_polls", .wide_k = true, .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "linear.stream", .packed = true}, few_rows, GPU, MIXED, 0},
    {{.name = "linear.tile", .packed = true}, tile_rows, GPU, MIXED, 0},
    {{.name = "linear.down_long_row", .packed = true, .bare = true, .wide_k = true},
     one_row,
     GPU,
     MIXED,
     0},
    {{.name = "linear.bare_stream", .packed = true, .bare = true}, few_rows, GPU, MIXED, 0},
    {{.name = "linear.bare_tile", .packed = true, .bare = true}, tile_rows, GPU, MIXED, 0},
    {{.name = "linear.down_stream", .packed = true, .wide_k = true}, few_rows, GPU, MIXED, 0},
    {{.name = "linear.down_tile", .packed = true, .wide_k = true}, tile_rows, GPU, MIXED, 0},
    {{.name = "linear.row_tiles", .packed = true, .tiles = {2, 0}}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_linear = {
    .set = PRODUCTS,
    .absolute = 2e-6,
    FORMS(forms),
};
