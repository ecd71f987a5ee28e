/* qkv.c - the forms of QKV. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "qkv"}, any_rows, CPU, MIXED, 0},
};

const struct op_test op_test_qkv = {
    .set = PRODUCTS,
    .absolute = 2e-5,
    FORMS(forms),
};
