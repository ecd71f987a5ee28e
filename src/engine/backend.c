/* backend.c - the table of backends. */
#include "engine/backend.h"

#include "base/checked.h"

#include <string.h>

/* Best first: "auto" takes the first that is available. */
static const struct backend *const table[] = {&backend_cuda, &backend_cpu};

size_t backend_count(void) {
    return COUNT_OF(table);
}

const char *backend_name(size_t i) {
    return table[i]->name;
}

int backend_available(struct diag *d, size_t i) {
    return table[i]->available(d);
}

int backend_find(struct diag *d, const char *name, const struct backend **out) {
    bool any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (any && backend_available(NULL, i) != QN_OK) continue;
        if (!any && strcmp(name, table[i]->name) != 0) continue;
        *out = table[i];
        return backend_available(d, i);
    }
    return fail(d, QN_EINVAL, "backend: want auto, cuda or cpu, have '%s'", any ? "auto" : name);
}
