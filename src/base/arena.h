/* arena.h - memory that dies together. One arena per compile, per model, per open file.
 *
 *   blocks:  [hdr|used......|free]  ->  [hdr|used.......]  ->  NULL     newest block first
 *
 * Allocations are not freed one by one. Memory is zeroed. An arena is not thread-safe.
 */
#ifndef QN_BASE_ARENA_H
#define QN_BASE_ARENA_H

#include "base/status.h"

#include <stdarg.h>
#include <stdint.h>

struct arena {
    struct arena_block *newest;
    uint64_t total_bytes; /* handed out, for the memory plan and for tests of limits */
};

/* An arena starts as {0}; arena_fini releases everything and leaves it ready for use again. */
void arena_fini(struct arena *a);

/* Sets *out to n zeroed elements of `size` bytes, aligned to 16 (n = 0 gives a valid pointer).
 * Errors: QN_ENOMEM, also when n * size overflows. */
int arena_take(struct diag *d, struct arena *a, uint64_t n, size_t size, void **out);

/* TRY(ARENA_NEW(d, arena, &pointer, n)): n zeroed elements of the type that `pointer` points to. */
#define ARENA_NEW(d, arena, out, n) arena_take((d), (arena), (n), sizeof **(out), (void **)(out))

/* Copies; the result ends with a NUL that is not counted in n. */
int arena_copy(struct diag *d, struct arena *a, const char *bytes, size_t n, char **out);
int arena_strdup(struct diag *d, struct arena *a, const char *text, char **out);
int arena_printf(struct diag *d, struct arena *a, char **out, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
