/* linear_splitk.c - the forms of LINEAR_SPLITK. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "linear_splitk", .packed = true}, up_to_128, HOPPER, MIXED, 0},
    {{.name = "linear_splitk.down", .packed = true, .wide_k = true}, up_to_128, HOPPER, MIXED, 0},
};

const struct op_test op_test_linear_splitk = {
    .set = PRODUCTS,
    .absolute = 2e-6,
    FORMS(forms),
};
