/* attention_merge.c - the forms of ATTENTION_MERGE. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "attention_merge"}, any_rows, CPU | GPU, MIXED | LONG, 0},
    {{.name = "attention_merge.polls", .rides = true}, one_row, GPU, ALONE | LONG, 0},
    {{.name = "attention_merge.packed", .packed = true}, up_to_16, GPU, MIXED | LONG, 0},
};

const struct op_test op_test_attention_merge = {
    .set = ATTENTION | LATENT,
    .absolute = 2e-5,
    .shapes = {{"part", {S_ROWS, S_N_HEADS, S_PIECES, S_STATE}}},
    FORMS(forms),
};
