/* sample.c - the forms of SAMPLE. */
#include "device/op_test.h"

static const struct form_row forms[] = {
    {{.name = "sample"}, any_rows, CPU | GPU, ALONE | DRAWN, 0},
    {{.name = "sample.band", .band_first = 16}, rows_of_bands, CPU | GPU, MIXED | DRAWN, 0},
};

const struct op_test op_test_sample = {
    .set = OTHERS,
    .absolute = 2e-6,
    FORMS(forms),
};
