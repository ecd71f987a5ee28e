/* backend.c - the table of backends. */
#include "engine/backend.h"

#include "base/checked.h"

#include <string.h>

/* Best first: "auto" takes the first that is available. A name without a row is one that users may
 * ask for and this build does not have. */
static const struct {
    const char *name;
    const struct backend *row;
    const char *missing; /* why there is no row */
} table[] = {
    {"cuda", &backend_cuda, NULL},
    {"cpu", &backend_cpu, NULL},
};

size_t backend_count(void) {
    return COUNT_OF(table);
}

const char *backend_name(size_t i) {
    return table[i].name;
}

int backend_available(struct diag *d, size_t i) {
    if (table[i].row) return table[i].row->available(d);
    return fail(d, QN_EUNSUPPORTED, "backend %s: %s", table[i].name, table[i].missing);
}

int backend_find(struct diag *d, const char *name, const struct backend **out) {
    bool any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (any && backend_available(NULL, i) != QN_OK) continue;
        if (!any && strcmp(name, table[i].name) != 0) continue;
        *out = table[i].row;
        return backend_available(d, i);
    }
    return fail(d, QN_EINVAL, "backend: want auto, cuda or cpu, have '%s'", any ? "auto" : name);
}
