/* clear.c - the forms of CLEAR. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "clear"}, few_rows, GPU, ALONE, 0},
};

const struct op_test op_test_clear = {
    .set = OTHERS,
    .absolute = 2e-6,
    FORMS(forms),
};
