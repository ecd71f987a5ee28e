#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void strbuf_fini(struct strbuf *b) {
    free(b->text);
    *b = (struct strbuf){0};
}

void strbuf_clear(struct strbuf *b) {
    b->n = 0;
    if (b->text != NULL) b->text[0] = '\0';
}

/* Makes room for n more bytes and the NUL. */
static bool reserve(struct strbuf *b, size_t n) {
    if (b->failed) return false;
    if (n < b->capacity - b->n) return true;
    size_t capacity = b->capacity > 0 ? b->capacity : 64;
    while (capacity - b->n <= n) {
        if (capacity > (size_t)-1 / 2) {
            b->failed = true;
            return false;
        }
        capacity *= 2;
    }
    char *text = realloc(b->text, capacity);
    if (text == NULL) {
        b->failed = true;
        return false;
    }
    b->text = text;
    b->capacity = capacity;
    return true;
}

void strbuf_add(struct strbuf *b, const char *bytes, size_t n) {
    if (!reserve(b, n)) return;
    if (n > 0) memcpy(b->text + b->n, bytes, n);
    b->n += n;
    b->text[b->n] = '\0';
}

void strbuf_str(struct strbuf *b, const char *text) {
    strbuf_add(b, text, strlen(text));
}

void strbuf_char(struct strbuf *b, char c) {
    strbuf_add(b, &c, 1);
}

void strbuf_printf(struct strbuf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
    } else if (reserve(b, (size_t)n)) {
        vsnprintf(b->text + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

const char *strbuf_text(const struct strbuf *b) {
    return b->text != NULL ? b->text : "";
}

int strbuf_status(struct diag *d, const struct strbuf *b) {
    return b->failed ? fail(d, QN_ENOMEM, "out of memory: a string of %zu bytes", b->n) : QN_OK;
}
