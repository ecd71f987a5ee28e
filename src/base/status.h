/* status.h - how every internal function reports failure: an int code plus one message.
 *
 * A fallible function takes a `struct diag *` first and returns an int: 0, or a negative code of
 * status.def. The function that detects the failure records the message once with fail(); every
 * function above it forwards the code with TRY(). The library never prints and never exits.
 *
 *     int load(struct diag *d, const char *path) {
 *         struct mapfile f;
 *         TRY(mapfile_open(d, path, &f));
 *         if (f.bytes < 8) return fail(d, QN_EFORMAT, "%s: want at least 8 bytes, have %zu", ...);
 *         ...
 *     }
 *
 * A diag is owned by the caller of the outermost function; it may be NULL (the message is dropped).
 */
#ifndef QN_BASE_STATUS_H
#define QN_BASE_STATUS_H

#include <stddef.h>

enum {
    QN_OK = 0,
#define STATUS(name, code, text) QN_##name = code,
#include "base/status.def"
#undef STATUS
};

/* The first failure of a call chain. */
struct diag {
    int code;           /* QN_OK until the first fail() */
    char message[1000]; /* one line, no newline at the end; names the file and field at fault */
                        /* valid UTF-8 without control characters, whatever a file's names hold */
};

/* Records code and message in d unless an earlier failure is there already; returns code. */
int fail(struct diag *d, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Out of memory while making `what`; returns QN_ENOMEM. */
int fail_nomem(struct diag *d, size_t bytes, const char *what);

#ifdef __clang_analyzer__ /* it sees one file at a time: says that the result is not QN_OK */
#define fail(d, code, ...)         (fail(d, code, __VA_ARGS__), (code))
#define fail_nomem(d, bytes, what) (fail_nomem(d, bytes, what), QN_ENOMEM)
#endif

/* Replaces in place every byte that is a control character or not UTF-8 with '?', so that names
 * from files cannot break a line of a log or control a terminal. */
void status_one_line(char *text);

/* Forgets a recorded failure, so that d can be used for another call chain. */
void diag_clear(struct diag *d);

/* "out of memory" and so on, for a code of status.def; "unknown error" for any other number. */
const char *status_text(int code);

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        int try_code_ = (expr);                                                                    \
        if (try_code_ != QN_OK) return try_code_;                                                  \
    } while (0)

/* Like TRY, for functions with something to release: sets `rc` and jumps to `label`. */
#define TRY_GOTO(rc, label, expr)                                                                  \
    do {                                                                                           \
        (rc) = (expr);                                                                             \
        if ((rc) != QN_OK) goto label;                                                             \
    } while (0)

#endif
