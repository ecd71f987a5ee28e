/* pack_logits.c - the forms of PACK_LOGITS. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "pack_logits"}, eights_and_odd, GPU, MIXED | ALONE, 0},
    {{.name = "pack_logits.packed", .packed = true}, eights_and_odd, GPU, MIXED | ALONE, 0},
};

const struct op_test op_test_pack_logits = {
    .set = OTHERS,
    .absolute = 2e-6,
    FORMS(forms),
};
