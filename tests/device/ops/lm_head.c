/* lm_head.c - the forms of LM_HEAD. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "lm_head"}, any_rows, CPU, MIXED, 0},
    {{.name = "lm_head.one_row"}, one_row, GPU, MIXED, 0},
    {{.name = "lm_head.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "lm_head.stream", .packed = true}, few_rows, GPU, MIXED | ALONE, 0},
    {{.name = "lm_head.tile", .packed = true, .summed = true}, tile_rows, GPU, MIXED | ALONE, 0},
    /* Bands after the first one: full, of some rows, of none. */
    {{.name = "lm_head.band", .band_first = 16}, rows_of_bands, CPU, MIXED | ALONE, 0},
    {{.name = "lm_head.tile_band", .packed = true, .summed = true, .band_first = 16},
     many_rows,
     GPU,
     MIXED | ALONE,
     0},
    {{.name = "lm_head.no_row", .packed = true, .summed = true, .band_first = 24},
     many_rows,
     GPU,
     MIXED,
     0},
};

const struct op_test op_test_lm_head = {
    .set = PRODUCTS,
    .absolute = 2e-5,
    .shapes = {{"w", {S_VOCAB, S_HIDDEN}}},
    FORMS(forms),
};
