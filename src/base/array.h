/* array.h - growing typed arrays in heap memory, owned by the code that declares them.
 *
 *     ARRAY(int) ids = {0};
 *     TRY(ARRAY_PUSH(d, &ids, 7));      ids.items[ids.n - 1] == 7
 *     ARRAY_FINI(&ids);
 */
#ifndef QN_BASE_ARRAY_H
#define QN_BASE_ARRAY_H

#include "base/status.h"

#include <stddef.h>
#include <stdlib.h>

#define ARRAY(T)                                                                                   \
    struct {                                                                                       \
        T *items;                                                                                  \
        size_t n, capacity;                                                                        \
    }

/* Makes room for at least `want` elements in all. Errors: QN_ENOMEM (the array stays as it was). */
int array_reserve(struct diag *d, void **items, size_t *capacity, size_t want, size_t size);

#define ARRAY_RESERVE(d, a, want)                                                                  \
    array_reserve((d), (void **)&(a)->items, &(a)->capacity, (want), sizeof *(a)->items)

/* Appends one element; evaluates to a status code. */
#define ARRAY_PUSH(d, a, ...)                                                                      \
    (ARRAY_RESERVE((d), (a), (a)->n + 1) == QN_OK ? ((a)->items[(a)->n++] = __VA_ARGS__, QN_OK)    \
                                                  : QN_ENOMEM)

#define ARRAY_FINI(a)                                                                              \
    do {                                                                                           \
        free((a)->items);                                                                          \
        (a)->items = NULL;                                                                         \
        (a)->n = (a)->capacity = 0;                                                                \
    } while (0)

#endif
