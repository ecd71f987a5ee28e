/* sum_squares.c - the forms of SUM_SQUARES. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "sum_squares", .packed = true}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_sum_squares = {
    .set = OTHERS,
    .absolute = 2e-6,
    FORMS(forms),
};
