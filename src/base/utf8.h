/* utf8.h - whether bytes are UTF-8. */
#ifndef QN_BASE_UTF8_H
#define QN_BASE_UTF8_H

#include <stddef.h>

/* The offset at which text[0, n) stops being UTF-8; n: nowhere. Surrogates and overlong forms are
 * not UTF-8. */
size_t utf8_end(const char *text, size_t n);

#endif
