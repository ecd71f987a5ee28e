/* charset.h - sets of Unicode code points, as the character classes of regexes and grammars name
 * them. The readers of regexes and grammars make them; exprs.h stores their ranges. */
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
    uint32_t low, high; /* both inclusive */
};

/* Starts as {0}. Until charset_sort the ranges may overlap. */
struct charset {
    struct char_range items[CHARSET_MAX];
    uint32_t n;
    bool full; /* a range was left out */
};

void charset_add(struct charset *s, uint32_t low, uint32_t high);
void charset_add_all(struct charset *s, const struct charset *other);
/* Makes the ranges ascending; none overlaps or touches another. */
void charset_sort(struct charset *s);
/* Makes s the set of all other code points; s is sorted before and after. */
void charset_invert(struct charset *s);
/* Removes the code points of `other` from s; both are sorted. */
void charset_remove(struct charset *s, const struct charset *other);
bool charset_has(const struct charset *s, uint32_t c);

/* Returns the first code point of text[0, n), n > 0, and its length in *n_bytes. text is UTF-8. */
uint32_t char_read(const char *text, size_t n, size_t *n_bytes);
/* Writes the UTF-8 of c to bytes[4]; returns the number of bytes. */
uint32_t char_write(uint32_t c, uint8_t *bytes);

#endif
