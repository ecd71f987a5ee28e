/* charset.h - sets of Unicode code points, as the character classes of regexes and grammars name
 * them. Made by the readers of such text; exprs.h keeps them. */
#ifndef QN_GRAMMAR_CHARSET_H
#define QN_GRAMMAR_CHARSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHARSET_MAX = 256, /* ranges in one set */
    CHAR_LAST = 0x10ffff,
};

struct char_range {
    uint32_t low, high; /* both inside */
};

/* Starts as {0}. Until charset_sort the ranges may overlap. */
struct charset {
    struct char_range items[CHARSET_MAX];
    uint32_t n;
    bool full; /* a range was left out */
};

void charset_add(struct charset *s, uint32_t low, uint32_t high);
void charset_add_all(struct charset *s, const struct charset *other);
/* Ascending ranges that neither overlap nor touch. */
void charset_sort(struct charset *s);
/* All other code points; s is sorted before and after. */
void charset_invert(struct charset *s);
/* The code points of s that are not in `other`; both are sorted. */
void charset_remove(struct charset *s, const struct charset *other);
bool charset_has(const struct charset *s, uint32_t c);

/* The first code point of text[0, n), n > 0; *n_bytes: its bytes. text is UTF-8. */
uint32_t char_read(const char *text, size_t n, size_t *n_bytes);
/* The UTF-8 of c in bytes[4]; returns how many. */
uint32_t char_write(uint32_t c, uint8_t *bytes);

#endif
