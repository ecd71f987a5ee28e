/* golden_experts.h - the experts that a golden model's cases.json has for a request, against those
 * that the engine kept. */
#ifndef QN_TESTS_GOLDEN_EXPERTS_H
#define QN_TESTS_GOLDEN_EXPERTS_H

#include "quern.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The experts of one position in one layer are a set. */
struct golden_sets {
    size_t n;       /* sets that were compared */
    size_t n_other; /* sets that are not the reference's */
};

static inline bool golden_same_set(const json_t *want, const uint16_t *have, uint32_t top_k) {
    for (uint32_t k = 0; k < top_k; k++)
        if (json_integer_value(json_array_get(want, k)) != have[k]) return false;
    return json_array_size(want) == top_k;
}

/* Adds a request's sets of the first n positions. want: [positions][layers with experts][top_k].
 * have: [n][n_layers][top_k], QN_NO_EXPERT in the other layers. Returns whether both have experts
 * in as many layers. */
static inline bool golden_compare_experts(const json_t *want, const uint16_t *have, size_t n,
                                          uint32_t n_layers, uint32_t top_k,
                                          struct golden_sets *sets) {
    bool same_layers = true;
    for (size_t p = 0; p < n; p++) {
        const json_t *layers = json_array_get(want, p);
        size_t at = 0;
        for (uint32_t l = 0; l < n_layers; l++) {
            const uint16_t *ids = have + (p * n_layers + l) * top_k;
            if (ids[0] == QN_NO_EXPERT) continue;
            sets->n++;
            sets->n_other += !golden_same_set(json_array_get(layers, at++), ids, top_k);
        }
        same_layers = same_layers && at == json_array_size(layers);
    }
    return same_layers;
}

#endif
