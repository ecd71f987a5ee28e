/* matcher.h - follows a text through a grammar and tells which tokens may come next.
 *
 *   thread   an instruction that waits for a byte, and the frame of return addresses under it
 *   frame    a return address and the frame under it; equal frames are stored once
 *   state    all threads of a text, in order; equal states are stored once
 *
 * States and the steps between them are kept once they are found, so a text like an earlier one
 * costs one look-up per byte. A mask is made for a normal state (states.h); the last masks are
 * kept, too. Matchers of one grammar share all this (matcher_fork). Memory and the steps of one
 * call are bounded: a call that exceeds a bound fails with QN_ELIMIT. Only one thread of the
 * process at a time may use a matcher, or any that shares with it.
 */
#ifndef QN_GRAMMAR_MATCHER_H
#define QN_GRAMMAR_MATCHER_H

#include "grammar/code.h"
#include "grammar/vocab.h"

struct matcher;

/* code and vocab are borrowed; ends[n_ends]: tokens that may end a text where the grammar accepts
 * it. vocab NULL: bytes only. Errors: QN_ENOMEM. */
int matcher_new(struct diag *d, const struct code *code, const struct vocab *vocab,
                const int32_t *ends, uint32_t n_ends, struct matcher **out);
/* Makes another matcher at the beginning of a text, which shares states and masks with m. Errors:
 * QN_ENOMEM, QN_ELIMIT. */
int matcher_fork(struct diag *d, struct matcher *m, struct matcher **out);
void matcher_free(struct matcher *m);

/* Reads bytes. Errors: QN_EINVAL (no text goes on like this; the matcher stays where it was),
 * QN_ELIMIT. */
int matcher_bytes(struct diag *d, struct matcher *m, const char *bytes, size_t n);
/* Reads the bytes of a token that the last mask allowed and that is not one of ends. Errors: as
 * above. */
int matcher_token(struct diag *d, struct matcher *m, int32_t id);
/* Whether the text may end here. */
bool matcher_accepts(const struct matcher *m);

/* *mask: bit id % 32 of word id / 32 is set for each token that may come next. It is valid until
 * the next call. Errors: QN_ELIMIT, QN_EINVAL (no token of the vocabulary goes on). */
int matcher_mask(struct diag *d, struct matcher *m, const uint32_t **mask);

#endif
