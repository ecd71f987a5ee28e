/* random.h - the same random numbers in every run, for the compiler's tests. */
#ifndef QN_TESTS_TASK_RANDOM_H
#define QN_TESTS_TASK_RANDOM_H

#include <stdint.h>

static uint64_t random_state; /* not 0; the test sets it */

/* A number below n > 0. */
static inline uint32_t random_below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % n;
}

#endif
