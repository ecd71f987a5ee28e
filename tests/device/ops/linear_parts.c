/* linear_parts.c - the forms of LINEAR_PARTS. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "linear_parts", .packed = true}, up_to_32, HOPPER, MIXED, 0},
    {{.name = "linear_parts.down", .packed = true, .wide_k = true}, up_to_32, HOPPER, MIXED, 0},
};

const struct op_test op_test_linear_parts = {
    .set = PRODUCTS,
    .absolute = 2e-6,
    FORMS(forms),
};
