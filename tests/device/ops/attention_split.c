/* attention_split.c - the forms of ATTENTION_SPLIT. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "attention_split"}, up_to_32, CPU, ALL, 0},
    {{.name = "attention_split.latent"}, up_to_16, GPU, ALL, 0},
    {{.name = "attention_split.one_worker"}, up_to_16, GPU, ALL, 1},
};

const struct op_test op_test_attention_split = {
    .set = ATTENTION | LATENT,
    .shapes = {{"q", {S_ROWS, S_KEYS}}},
    .ulps = 1,
    FORMS(forms),
};
