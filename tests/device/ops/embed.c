/* embed.c - the forms of EMBED. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "embed"}, any_rows, CPU, MIXED, 0},
    {{.name = "embed.one_row"}, one_row, GPU, MIXED, 0},
    {{.name = "embed.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "embed.normed", .packed = true}, eights_and_odd, GPU, MIXED, 0},
};

const struct op_test op_test_embed = {
    .set = OTHERS,
    .absolute = 2e-6,
    FORMS(forms),
};
