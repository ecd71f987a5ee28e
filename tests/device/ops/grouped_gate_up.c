/* grouped_gate_up.c - the meaning and the forms of GROUPED_GATE_UP. */
#include "device/op_test.h"
#include "reference/experts.h"

#include <math.h>

/* A slot of an expert: all columns of h. */
static void run_slot(struct reference *r, const struct kop *op, uint64_t expert, uint64_t slot) {
    const struct reference_tensor *rows = operand_in(r, op, GROUPED_UP_ROWS);
    const uint64_t K = rows->cols, width = r->g->tensors.items[op->in[GROUPED_UP_WG]].shape[1];
    const double *row = operand_row(rows, slot);
    const double *wg = operand_row(operand_in(r, op, GROUPED_UP_WG), expert);
    const double *wu = operand_row(operand_in(r, op, GROUPED_UP_WU), expert);
    const double squares = *operand_row(operand_in(r, op, GROUPED_UP_SQUARES), slot);
    const double rms = sqrt(squares / (double)K + (double)op->attrs.eps);
    for (uint64_t c = 0; c < width; c++) {
        const double gate = operand_dot(row, wg + c * K, K) / rms;
        const double up = operand_dot(row, wu + c * K, K) / rms;
        operand_out_row(r, op, 0, slot)[c] = gate / (1 + exp(-gate)) * up;
    }
}

void reference_op_grouped_gate_up(struct reference *r, const struct kop *op) {
    reference_make(r, op->out[0], 0, 0);
    experts_each_slot(r, op, operand_in(r, op, GROUPED_UP_LIST), run_slot);
}

static const struct form_row forms[] = {
    {{.name = "grouped_gate_up"}, grouped_rows, HOPPER, MIXED, 0},
};

const struct op_test op_test_grouped_gate_up = {
    .set = GROUPED,
    .absolute = 2e-5,
    .shapes = {{"rows", {S_SLOTS, S_HIDDEN}},
               {"squares", {S_SLOTS, S_ONE}},
               {"wg", {S_EXPERTS, S_WIDTH, S_HIDDEN}},
               {"wu", {S_EXPERTS, S_WIDTH, S_HIDDEN}}},
    .fill = experts_fill,
    FORMS(forms),
};
