/* strbuf.h - a growing byte string, always NUL-terminated, owned by the code that declares it.
 *
 * Appends report no errors themselves: the first failed allocation marks the buffer, later appends
 * do nothing, and strbuf_status() reports the failure once at the end.
 */
#ifndef QN_BASE_STRBUF_H
#define QN_BASE_STRBUF_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct strbuf {
    char *text; /* NULL while empty; use strbuf_text() for a string that is never NULL */
    size_t n, capacity;
    bool failed;
};

void strbuf_fini(struct strbuf *b); /* releases; the buffer is empty and usable again */
void strbuf_clear(struct strbuf *b);
void strbuf_add(struct strbuf *b, const char *bytes, size_t n);
void strbuf_str(struct strbuf *b, const char *text);
void strbuf_char(struct strbuf *b, char c);
void strbuf_printf(struct strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *strbuf_text(const struct strbuf *b);
int strbuf_status(struct diag *d, const struct strbuf *b); /* QN_OK or QN_ENOMEM */

#endif
