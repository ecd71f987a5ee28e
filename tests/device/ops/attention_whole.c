/* attention_whole.c - the forms of ATTENTION_WHOLE. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "attention_whole.polls", .rides = true}, one_row, GPU, ALONE | LONG | TWO, 0},
    {{.name = "attention_whole", .packed = true}, up_to_16, GPU, ALL | TWO, 0},
    {{.name = "attention_whole.one_worker", .packed = true}, up_to_16, GPU, ALL, 1},
    {{.name = "attention_whole.decode_only", .packed = true, .decode_only = true},
     decode_only_rows,
     GPU,
     ALONE | LONG,
     0},
};

const struct op_test op_test_attention_whole = {
    .set = ATTENTION,
    .ulps = 4,
    FORMS(forms),
};
