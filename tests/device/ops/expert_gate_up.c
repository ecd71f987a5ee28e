/* expert_gate_up.c - the meaning and the forms of EXPERT_GATE_UP. */
#include "device/op_test.h"
#include "reference/experts.h"

#include <math.h>
#include <stdlib.h>

/* A slot of an expert: all columns of h. */
static void run_slot(struct reference *r, const struct kop *op, uint64_t expert, uint64_t slot) {
    const struct reference_tensor *x = operand_in(r, op, GATE_UP_X);
    const uint64_t K = x->cols, width = r->g->tensors.items[op->in[GATE_UP_WG]].shape[1];
    const double *norm = operand_in(r, op, GATE_UP_NORM)->at;
    const double *wg = operand_row(operand_in(r, op, GATE_UP_WG), expert);
    const double *wu = operand_row(operand_in(r, op, GATE_UP_WU), expert);
    const uint64_t at = (uint64_t)operand_in(r, op, GATE_UP_SLOTS)->at[slot];
    const double *row = operand_row(x, at / op->attrs.top_k);
    const double rms = sqrt(operand_dot(row, row, K) / (double)K + (double)op->attrs.eps);
    double *n = malloc(K * sizeof *n);
    if (n == NULL) abort();
    for (uint64_t i = 0; i < K; i++) n[i] = row[i] * norm[i] / rms;
    for (uint64_t c = 0; c < width; c++) {
        const double gate = operand_dot(n, wg + c * K, K), up = operand_dot(n, wu + c * K, K);
        operand_out_row(r, op, 0, slot)[c] = gate / (1 + exp(-gate)) * up;
    }
    free(n);
}

void reference_op_expert_gate_up(struct reference *r, const struct kop *op) {
    reference_make(r, op->out[0], 0, 0);
    experts_each_slot(r, op, operand_in(r, op, GATE_UP_LIST), run_slot);
}

static const struct form_row forms[] = {
    {{.name = "expert_gate_up"}, any_rows, CPU, MIXED, 0},
    {{.name = "expert_gate_up.row"}, one_row, GPU, MIXED, 0},
    {{.name = "expert_gate_up.polls", .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "expert_gate_up.gather"}, eights_and_odd, GPU, MIXED, 0},
    {{.name = "expert_gate_up.stretches"}, rows_of_stretches, CPU | GPU, MIXED, 0},
};

const struct op_test op_test_expert_gate_up = {
    .set = EXPERTS,
    .absolute = 2e-5,
    .shapes = {{"wg", {S_EXPERTS, S_WIDTH, S_HIDDEN}},
               {"wu", {S_EXPERTS, S_WIDTH, S_HIDDEN}},
               {"logits", {S_ROWS, S_ROUTED}}},
    .fill = experts_fill,
    FORMS(forms),
};
