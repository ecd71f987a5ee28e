/* latent_merge.c - LATENT_MERGE: its meaning and its forms. */
#include "device/op_test.h"

#include <math.h>
#include <stdlib.h>

/* a[V] of a head's pieces, of which those that the row does not see are left out. */
static void merge(const double *parts, uint64_t first, uint64_t end, uint64_t V, double *a) {
    double max = -INFINITY, sum = 0;
    for (uint64_t p = first; p < end; p++) max = fmax(max, parts[p * (V + PART_HEAD)]);
    for (uint64_t i = 0; i < V; i++) a[i] = 0;
    for (uint64_t p = first; p < end; p++) {
        const double *state = parts + p * (V + PART_HEAD), by = exp(state[0] - max);
        sum += by * state[1];
        for (uint64_t i = 0; i < V; i++) a[i] += by * state[PART_HEAD + i];
    }
    for (uint64_t i = 0; i < V; i++) a[i] /= sum;
}

void reference_op_latent_merge(struct reference *r, const struct kop *op) {
    const struct op_attrs *at = &op->attrs;
    const struct reference_tensor *w = operand_in(r, op, VALUES_W);
    const uint64_t N = w->rows / at->heads, V = at->DV, P = r->g->n_pieces;
    double *a = calloc(V, sizeof *a);
    operand_make(r, op, 0, w->rows);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        const uint64_t hi = (uint64_t)r->position[t] + 1;
        const uint64_t lo = at->window != 0 && hi > at->window ? hi - at->window : 0;
        for (uint64_t h = 0; h < at->heads; h++) {
            const double *parts =
                operand_row(operand_in(r, op, VALUES_A), t) + h * P * (V + PART_HEAD);
            merge(parts, lo / ATTENTION_PIECE, (hi - 1) / ATTENTION_PIECE + 1, V, a);
            for (uint64_t n = h * N; n < (h + 1) * N; n++)
                operand_out_row(r, op, 0, t)[n] = operand_dot(a, operand_row(w, n), V);
        }
    }
    free(a);
}

static const struct form_row forms[] = {
    {{.name = "latent_merge"}, up_to_16, GPU, MIXED | LONG, 0},
    {{.name = "latent_merge.polls", .rides = true}, one_row, GPU, ALONE | LONG, 0},
    {{.name = "latent_merge.packed", .packed = true}, up_to_16, GPU, MIXED, 0},
};

const struct op_test op_test_latent_merge = {
    .set = LATENT,
    .absolute = 2e-5,
    .ulps = 1,
    .shapes = {{"part", {S_ROWS, S_N_HEADS, S_PIECES, S_STATE}}, {"w", {S_OUT, S_VALUE}}},
    FORMS(forms),
};
