#include "graph/dtype.h"

#include <string.h>

enum { KIND_INT, KIND_FLOAT };

static const struct dtype_row rows[N_DTYPES] = {
#define DTYPE(ID, name, hf, file, bits, kind) [DTYPE_##ID] = {#name, hf, file, bits, KIND_##kind},
#include "graph/dtype.def"
#undef DTYPE
};

const struct dtype_row *dtype_row(uint32_t dtype) {
    return &rows[dtype];
}

bool dtype_from_hf(const char *text, enum dtype *out) {
    for (uint32_t i = 0; i < N_DTYPES; i++)
        if (rows[i].is_float && strcmp(rows[i].hf, text) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

bool dtype_from_file(const char *text, enum dtype *out) {
    for (uint32_t i = 0; i < N_DTYPES; i++)
        if (rows[i].is_float && strcmp(rows[i].file, text) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

const char *layout_name(uint32_t layout) {
    static const char *const names[N_LAYOUTS] = {"rows", "packed", "blocks"};
    return layout < N_LAYOUTS ? names[layout] : "?";
}
