#include "graph/dtype.h"

#include <string.h>

enum { KIND_INT, KIND_FLOAT };

static const struct dtype_row rows[N_DTYPES] = {
#define DTYPE(ID, name, hf, aliases, file, bits, kind)                                             \
    [DTYPE_##ID] = {#name, hf, aliases, file, bits, KIND_##kind},
#include "graph/dtype.def"
#undef DTYPE
};

const struct dtype_row *dtype_row(uint32_t dtype) {
    return &rows[dtype];
}

/* Whether a list of words, each between spaces, has the word. */
static bool has_word(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = list; n > 0 && (at = strstr(at, word)) != NULL; at++)
        if (at > list && at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

bool dtype_from_hf(const char *text, enum dtype *out) {
    if (strncmp(text, "torch.", 6) == 0) text += 6;
    for (uint32_t i = 0; i < N_DTYPES; i++) {
        if (!rows[i].is_float) continue;
        if (strcmp(rows[i].hf, text) != 0 && !has_word(rows[i].aliases, text)) continue;
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
