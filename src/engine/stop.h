/* stop.h - stop strings over text that arrives in pieces.
 *
 * Text that may turn out to be the beginning of a stop string is held back until it is decided, so
 * no part of a stop string is given out unless asked for. One matcher per request.
 *
 *   pushed so far:   [ given out ........ | held: a prefix of some stop string ]
 */
#ifndef QN_ENGINE_STOP_H
#define QN_ENGINE_STOP_H

#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

struct stop_matcher {
    char **texts; /* [n] not empty; owned */
    size_t n;
    struct strbuf held;
    bool included; /* the stop string that is found is given out, too */
};

/* Copies the strings. Errors: QN_EINVAL (empty or not UTF-8), QN_ELIMIT (more than QN_MAX_STOP, or
 * longer than QN_MAX_STOP_BYTES), QN_ENOMEM; stop_fini is needed in every case. */
int stop_init(struct diag *d, struct stop_matcher *m, const char *const *texts, size_t n,
              bool included);
void stop_fini(struct stop_matcher *m);

/* Takes text[0, n) and appends to *out what is certain not to belong to a stop string. Returns the
 * stop string that is complete; of several the one that begins first, then the longest. *out then
 * ends before the stop string, or with it if `included`, and nothing may be pushed after. NULL:
 * none is complete. */
const char *stop_push(struct stop_matcher *m, const char *text, size_t n, struct strbuf *out);

/* The output ends for another reason: appends what was held back. */
void stop_flush(struct stop_matcher *m, struct strbuf *out);

#endif
