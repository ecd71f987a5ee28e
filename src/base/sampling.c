#include "base/sampling.h"

#include <stdint.h>

const struct sampling_row sampling_table[N_SAMPLING_PARAMS] = {
#define SAMPLING(ID, name, kind, low, high, neutral, model, ...)                                   \
    {#name, low, high, neutral, SAMPLING_##kind, model},
#include "base/sampling.def"
};

double sampling_get(const struct sampling_row *row, const void *at) {
    switch (row->kind) {
    case SAMPLING_NUMBER:
    case SAMPLING_ABOVE: return *(const float *)at;
    case SAMPLING_COUNT:
    case SAMPLING_OPTIONAL: return *(const uint32_t *)at;
    default: return *(const int32_t *)at;
    }
}

void sampling_set(const struct sampling_row *row, void *at, double x) {
    switch (row->kind) {
    case SAMPLING_NUMBER:
    case SAMPLING_ABOVE: *(float *)at = (float)x; break;
    case SAMPLING_COUNT:
    case SAMPLING_OPTIONAL: *(uint32_t *)at = (uint32_t)x; break;
    default: *(int32_t *)at = (int32_t)x; break;
    }
}

int sampling_check_range(struct diag *d, const struct sampling_row *row, double x) {
    const int above = row->kind == SAMPLING_ABOVE;
    if ((above ? x > row->low : x >= row->low) && x <= row->high) return QN_OK;
    if (above)
        return fail(d, QN_EINVAL, "%s: want a number above %g and up to %g, have %.9g", row->name,
                    row->low, row->high, x);
    return fail(d, QN_EINVAL, "%s: want a number from %g to %g, have %.9g", row->name, row->low,
                row->high, x);
}

int sampling_check_most(struct diag *d, const struct sampling_row *row, size_t n) {
    if ((double)n <= row->high) return QN_OK;
    return fail(d, QN_ELIMIT, "%s: at most %.0f, have %zu", row->name, row->high, n);
}
