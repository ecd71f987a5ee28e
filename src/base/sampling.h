/* sampling.h - sampling.def as types: what each parameter is called, and its range. */
#ifndef QN_BASE_SAMPLING_H
#define QN_BASE_SAMPLING_H

#include "base/status.h"

#include <stddef.h>

enum sampling_kind {
    SAMPLING_NUMBER,
    SAMPLING_ABOVE,
    SAMPLING_INT,
    SAMPLING_COUNT,
    SAMPLING_OPTIONAL,
    SAMPLING_SEED,
    SAMPLING_FLAG,
    SAMPLING_TEXTS,
    SAMPLING_IDS,
    SAMPLING_BIAS,
    N_SAMPLING_KINDS
};

enum sampling_form { FORM_JSON, FORM_TEXT, FORM_TEXTS };

enum sampling_param {
#define SAMPLING(ID, ...) SAMPLING_PARAM_##ID,
#include "base/sampling.def"
    N_SAMPLING_PARAMS
};

struct sampling_row {
    const char *name;
    double low, high, neutral;
    enum sampling_kind kind;
    int model; /* 1: generation_config.json may say another default */
};

extern const struct sampling_row sampling_table[N_SAMPLING_PARAMS];

/* Reads a value from a struct, of any kind but SEED, TEXTS, IDS and BIAS. */
double sampling_get(const struct sampling_row *row, const void *at);
void sampling_set(const struct sampling_row *row, void *at, double x);

/* Checks numbers of NUMBER, ABOVE and INT. Errors: QN_EINVAL naming the parameter and its range. */
int sampling_check_range(struct diag *d, const struct sampling_row *row, double x);
/* Checks counts and lengths of lists. Errors: QN_ELIMIT naming the parameter and its maximum. */
int sampling_check_most(struct diag *d, const struct sampling_row *row, size_t n);

#endif
