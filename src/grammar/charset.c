#include "grammar/charset.h"

#include "base/checked.h"

#include <stdlib.h>

void charset_add(struct charset *s, uint32_t low, uint32_t high) {
    if (s->n == CHARSET_MAX)
        s->full = true;
    else
        s->items[s->n++] = (struct char_range){low, high};
}

void charset_add_all(struct charset *s, const struct charset *other) {
    for (uint32_t i = 0; i < other->n; i++)
        charset_add(s, other->items[i].low, other->items[i].high);
    s->full |= other->full;
}

static int by_low(const void *a, const void *b) {
    const struct char_range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

void charset_sort(struct charset *s) {
    uint32_t n = 0;
    qsort(s->items, s->n, sizeof *s->items, by_low);
    for (uint32_t i = 0; i < s->n; i++) {
        const struct char_range r = s->items[i];
        if (n > 0 && r.low <= s->items[n - 1].high + 1)
            s->items[n - 1].high = MAX(s->items[n - 1].high, r.high);
        else
            s->items[n++] = r;
    }
    s->n = n;
}

void charset_invert(struct charset *s) {
    struct charset out = {.full = s->full};
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->items[i].low > next) charset_add(&out, next, s->items[i].low - 1);
        next = s->items[i].high + 1;
    }
    if (next <= CHAR_LAST) charset_add(&out, next, CHAR_LAST);
    *s = out;
}

void charset_remove(struct charset *s, const struct charset *other) {
    charset_invert(s);
    charset_add_all(s, other);
    charset_sort(s);
    charset_invert(s);
}

bool charset_has(const struct charset *s, uint32_t c) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->items[i].low <= c && c <= s->items[i].high) return true;
    return false;
}

uint32_t char_read(const char *text, size_t n, size_t *n_bytes) {
    const uint8_t first = (uint8_t)text[0];
    const size_t want = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    uint32_t c = want == 1 ? first : first & (0x7fu >> want);
    *n_bytes = MIN(want, n);
    for (size_t i = 1; i < *n_bytes; i++) c = c << 6 | ((uint8_t)text[i] & 0x3f);
    return c;
}

uint32_t char_write(uint32_t c, uint8_t *bytes) {
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    const uint32_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (uint32_t i = n; i-- > 1; c >>= 6) bytes[i] = (uint8_t)(0x80 | (c & 0x3f));
    bytes[0] = (uint8_t)(lead[n] | c);
    return n;
}
