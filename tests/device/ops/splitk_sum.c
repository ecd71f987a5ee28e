/* splitk_sum.c - the forms of SPLITK_SUM. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "splitk_sum", .packed = true}, up_to_128, HOPPER, MIXED, 0},
    {{.name = "splitk_sum.down", .packed = true, .wide_k = true}, up_to_128, HOPPER, MIXED, 0},
};

const struct op_test op_test_splitk_sum = {
    .set = PRODUCTS,
    .absolute = 2e-6,
    FORMS(forms),
};
