/* pack.c - the forms of PACK. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "pack"}, eights_and_odd, GPU, MIXED, 0},
    {{.name = "pack.down", .wide_k = true}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_pack = {
    .set = OTHERS,
    .absolute = 2e-6,
    .shapes = {{"x", {S_ROWS, S_K}}},
    FORMS(forms),
};
