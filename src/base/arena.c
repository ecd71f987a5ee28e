#include "base/arena.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024, ALIGN = 16 };

struct arena_block {
    struct arena_block *older;
    size_t used, capacity; /* bytes of data[] */
    _Alignas(ALIGN) unsigned char data[];
};

void arena_fini(struct arena *a) {
    for (struct arena_block *b = a->newest, *older; b != NULL; b = older) {
        older = b->older;
        free(b);
    }
    *a = (struct arena){0};
}

int arena_take(struct diag *d, struct arena *a, uint64_t n, size_t size, void **out) {
    uint64_t bytes;
    if (!checked_mul(n, size, &bytes) || bytes > SIZE_MAX / 2)
        return fail(d, QN_ENOMEM, "out of memory: %llu elements of %zu bytes",
                    (unsigned long long)n, size);
    bytes = align_up(bytes, ALIGN);
    struct arena_block *b = a->newest;
    if (b == NULL || b->capacity - b->used < bytes) {
        size_t capacity = MAX((size_t)bytes, (size_t)BLOCK_BYTES);
        b = calloc(1, sizeof *b + capacity);
        if (b == NULL) return fail_nomem(d, capacity, "an arena block");
        b->capacity = capacity;
        b->older = a->newest;
        a->newest = b;
    }
    *out = b->data + b->used;
    b->used += bytes;
    a->total_bytes += bytes;
    return QN_OK;
}

int arena_copy(struct diag *d, struct arena *a, const char *bytes, size_t n, char **out) {
    TRY(arena_take(d, a, (uint64_t)n + 1, 1, (void **)out));
    if (n > 0) memcpy(*out, bytes, n);
    return QN_OK;
}

int arena_strdup(struct diag *d, struct arena *a, const char *text, char **out) {
    return arena_copy(d, a, text, strlen(text), out);
}

int arena_printf(struct diag *d, struct arena *a, char **out, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    int rc = n < 0 ? fail(d, QN_EINTERNAL, "unprintable format")
                   : arena_take(d, a, (uint64_t)n + 1, 1, (void **)out);
    if (rc == QN_OK) vsnprintf(*out, (size_t)n + 1, fmt, again);
    va_end(again);
    return rc;
}
