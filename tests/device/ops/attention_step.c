/* attention_step.c - the forms of ATTENTION_STEP. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "attention_step"}, one_row, CPU, ALONE | LONG, 0},
    {{.name = "attention_step.polls", .rides = true}, one_row, GPU, ALONE | LONG | TWO, 0},
    {{.name = "attention_step"}, up_to_16, GPU, ALL | TWO, 0},
    {{.name = "attention_step.one_worker"}, up_to_16, GPU, ALL, 1},
};

const struct op_test op_test_attention_step = {
    .set = ATTENTION,
    .ulps = 4,
    FORMS(forms),
};
