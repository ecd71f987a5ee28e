/* field.h - evaluation over two prime fields, with exponentials: Mirage's test whether two
 * expressions are equal (OSDI'25, section 5; Theorem 2).
 *
 *   q = 1152921504606845399, p = 2 q + 1 = 2305843009213690799, both prime, both 3 mod 4
 *
 * A number is a pair (x mod p, x mod q). exp gives (w^(x mod q) mod p, none) for a random w of
 * order q: exp(a + b) = exp(a) exp(b) holds because p - 1 is a multiple of q. So exp may stand once
 * on a path. The exponential of a number without its half in q is a random function of the half in
 * p. log, gelu, max and similar functions are random functions of both halves: equal arguments give
 * equal results, and nothing else is known (CELLS_RANDOM). A root is x^((p+1)/4) (CELLS_ROOT).
 *
 * Bound: docs/superoptimizer.md.
 */
#ifndef QN_BLOCK_FIELD_H
#define QN_BLOCK_FIELD_H

#include "block/cells.h"

#define FIELD_Q    1152921504606845399u
#define FIELD_P    2305843009213690799u
#define FIELD_NONE UINT64_MAX /* no half in q */

enum { FIELD_TESTS = 80 };

struct field_state {
    uint64_t seed;
    uint64_t omega; /* of order q in Z_p, in Montgomery's form */
};

/* Makes an algebra whose random w and functions follow from the seed. The state must outlive it. */
void field_init(struct algebra *g, struct field_state *state, uint64_t seed);
/* Sets v's cells at random from the seed and the tensor's number, uniform in Z_p x Z_q. */
void field_random(uint64_t seed, uint64_t tensor, struct cells *v);
/* 0 or 1. */
void field_small(uint64_t number, union cell *out);

/* For tests. */
bool field_is_prime(uint64_t n);

#endif
