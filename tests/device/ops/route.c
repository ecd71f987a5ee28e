/* route.c - the meaning and the forms of ROUTE. */
#include "device/op_test.h"
#include "graph/model_spec.h"
#include "reference/experts.h"

#include <math.h>

/* A row's weights: its experts' by ascending id, then its gate. */
static void weigh(const struct op_attrs *a, const double *logits, double *weight) {
    double all = 0, own = 0, max = -INFINITY;
    uint64_t ids[SPEC_MAX_EXPERTS];
    const uint64_t n = experts_of(a, logits, ids);
    for (uint64_t e = 0; e < a->experts; e++) max = fmax(max, logits[e]);
    for (uint64_t e = 0; e < a->experts; e++) all += exp(logits[e] - max);
    for (uint64_t i = 0; i < n; i++) own += weight[i] = exp(logits[ids[i]] - max);
    for (uint64_t i = 0; i < n; i++) weight[i] *= (double)a->routed / (a->normed ? own : all);
    if (a->gates) weight[n] = 1 / (1 + exp(-logits[a->experts]));
}

void reference_op_route(struct reference *r, const struct kop *op) {
    const struct reference_tensor *logits = operand_in(r, op, ROUTE_LOGITS);
    reference_make(r, op->out[ROUTE_OUT_WEIGHT], 0, 0);
    for (uint32_t t = 0; t < r->n_rows; t++)
        weigh(&op->attrs, operand_row(logits, t), operand_out_row(r, op, ROUTE_OUT_WEIGHT, t));
    experts_list(r, &op->attrs, logits->at, logits->cols, op->out[ROUTE_OUT_LIST],
                 op->out[ROUTE_OUT_SLOTS]);
}

static const struct form_row forms[] = {
    {{.name = "route"}, any_rows, CPU, MIXED, 0},
    {{.name = "route.rows"}, any_rows, GPU, MIXED, 0},
    {{.name = "route.polls", .rides = true}, up_to_16, GPU, MIXED, 0},
};

const struct op_test op_test_route = {
    .set = EXPERTS,
    .absolute = 1e-6,
    .shapes = {{"logits", {S_ROWS, S_ROUTED}}},
    FORMS(forms),
};
