/* reset_sentinels.c - the forms of RESET_SENTINELS. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "reset_sentinels"}, few_rows, GPU, ALONE, 0},
};

const struct op_test op_test_reset_sentinels = {
    .set = OTHERS,
    .absolute = 2e-6,
    FORMS(forms),
};
