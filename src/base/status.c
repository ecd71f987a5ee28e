#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

int fail(struct diag *d, int code, const char *fmt, ...) {
    if (d == NULL || d->code != QN_OK) return code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(d->message, sizeof d->message, fmt, args);
    va_end(args);
    d->code = code;
    return code;
}

int fail_nomem(struct diag *d, size_t bytes, const char *what) {
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
