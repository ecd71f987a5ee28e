#include "base/array.h"

int array_reserve(struct diag *d, void **items, size_t *capacity, size_t want, size_t size) {
    if (want <= *capacity) return QN_OK;
    size_t grown = *capacity < 8 ? 8 : *capacity + *capacity / 2;
    if (grown < want) grown = want;
    if (grown > (size_t)-1 / 2 / size) return fail_nomem(d, (size_t)-1, "an array");
    void *moved = realloc(*items, grown * size);
    if (moved == NULL) return fail_nomem(d, grown * size, "an array");
    *items = moved;
    *capacity = grown;
    return QN_OK;
}
