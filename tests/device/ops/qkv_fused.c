/* qkv_fused.c - the form of QKV_FUSED. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "qkv_fused", .packed = true, .summed = true}, tiles_of_128, HOPPER, MIXED, 0},
};

const struct op_test op_test_qkv_fused = {
    .set = HEAD_TILES,
    .absolute = 2e-5,
    .shapes = {{"w", {S_QKV, S_HIDDEN}}, {"bias", {S_QKV}}},
    FORMS(forms),
};
