/* checked.h - size arithmetic on numbers that came from outside. Each returns false on overflow. */
#ifndef QN_BASE_CHECKED_H
#define QN_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

/* Whether [offset, offset + bytes) lies inside [0, limit). */
static inline bool range_inside(uint64_t offset, uint64_t bytes, uint64_t limit) {
    return offset <= limit && bytes <= limit - offset;
}

/* Rounds up to a multiple of `align`, a power of two; the caller has bounded n. */
static inline uint64_t align_up(uint64_t n, uint64_t align) {
    return (n + align - 1) & ~(align - 1);
}

#define MIN(a, b)       ((a) < (b) ? (a) : (b))
#define MAX(a, b)       ((a) > (b) ? (a) : (b))
#define CEIL_DIV(a, b)  (((a) + (b)-1) / (b))
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
