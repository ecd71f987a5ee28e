#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

/* Bytes of the character at p that may be shown as it is; 0: a control character or not UTF-8. */
static size_t shown_bytes(const unsigned char *p) {
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    const size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    unsigned long c = p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0; /* a NUL ends here, too */
        c = c << 6 | (p[i] & 0x3f);
    }
    static const unsigned long lowest[] = {0, 0, 0xa0, 0x800, 0x10000}; /* 0x80-0x9f: controls */
    return c < lowest[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

void status_one_line(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p != '\0';) {
        const size_t n = shown_bytes(p);
        if (n == 0) *p = '?';
        p += n == 0 ? 1 : n;
    }
}

int(fail)(struct diag *d, int code, const char *fmt, ...) {
    if (d == NULL || d->code != QN_OK) return code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(d->message, sizeof d->message, fmt, args);
    va_end(args);
    status_one_line(d->message);
    d->code = code;
    return code;
}

int(fail_nomem)(struct diag *d, size_t bytes, const char *what) {
    return fail(d, QN_ENOMEM, "out of memory: %zu bytes for %s", bytes, what);
}

void diag_clear(struct diag *d) {
    d->code = QN_OK;
    d->message[0] = '\0';
}

const char *status_text(int code) {
    switch (code) {
    case QN_OK: return "ok";
#define STATUS(name, number, text)                                                                 \
    case number:                                                                                   \
        return text;
#include "base/status.def"
#undef STATUS
    default: return "unknown error";
    }
}
