/* attention.c - the forms of ATTENTION. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "attention"}, any_rows, CPU, ALL, 0},
    {{.name = "attention.steps", .packed = true}, up_to_32, GPU, ALL, 0},
    {{.name = "attention.plain"}, nine_rows, GPU, ALL, 0},
    {{.name = "attention.rows", .packed = true}, many_rows, GPU, MIXED | CHUNK, 1},
};

const struct op_test op_test_attention = {
    .set = ATTENTION | LATENT,
    .shapes = {{"q", {S_ROWS, S_KEYS}}},
    .ulps = 1,
    FORMS(forms),
};
