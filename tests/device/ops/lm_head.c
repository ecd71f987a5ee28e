/* lm_head.c - the forms of LM_HEAD. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "lm_head"}, any_rows, CPU, MIXED, 0},
    {{.name = "lm_head.one_row"}, one_row, GPU, MIXED, 0},
    {{.name = "lm_head.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "lm_head.stream", .packed = true}, few_rows, GPU, MIXED | ALONE, 0},
    {{.name = "lm_head.of_32", .packed = true}, rows_of_32, GPU, MIXED | ALONE, 0},
    {{.name = "lm_head.tile", .packed = true, .summed = true}, many_rows, GPU, MIXED | ALONE, 0},
};

const struct op_test op_test_lm_head = {
    .set = PRODUCTS,
    .absolute = 2e-5,
    .shapes = {{"w", {S_VOCAB, S_HIDDEN}}},
    FORMS(forms),
};
