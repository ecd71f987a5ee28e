/* repeat.h - reads repetition counts: * + ? {m} {m,} {m,n}, as regexes and grammars write them. */
#ifndef QN_GRAMMAR_REPEAT_H
#define QN_GRAMMAR_REPEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPEAT_COUNT_MAX = 65535 };

struct repeat {
    bool found;
    uint32_t least, most; /* as in EXPR_REPEAT */
    const char *wrong;    /* the error; NULL: none */
    int code;             /* of the error: QN_EINVAL, QN_ELIMIT */
};

/* Reads the repetition that text[*at, n) begins with. *at moves behind it, or to the error.
 * `space`: characters that may stand between the parts of {m,n}. */
struct repeat repeat_read(const char *text, size_t n, const char *space, size_t *at);

#endif
