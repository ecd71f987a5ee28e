/* qkv_heads.c - the forms of QKV_HEADS. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "qkv_heads"}, any_rows, CPU | GPU, MIXED, 0},
};

const struct op_test op_test_qkv_heads = {
    .set = ATTENTION,
    .absolute = 2e-5,
    FORMS(forms),
};
