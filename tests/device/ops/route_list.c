/* route_list.c - the meaning and the forms of ROUTE_LIST. */
#include "device/op_test.h"
#include "reference/experts.h"

void reference_op_route_list(struct reference *r, const struct kop *op) {
    experts_list(r, &op->attrs, operand_in(r, op, ROUTE_IDS)->at, op->out[ROUTE_OUT_LIST],
                 op->out[ROUTE_OUT_SLOTS]);
}

static const struct form_row forms[] = {
    {{.name = "route_list"}, any_rows, GPU, MIXED, 0},
    {{.name = "route_list.stretches"}, rows_of_stretches, GPU, MIXED, 0},
};

const struct op_test op_test_route_list = {
    .set = EXPERTS | ROUTES,
    .shapes = {{"ids", {S_ROWS, S_TOP_K}}},
    .fill = experts_fill,
    FORMS(forms),
};
