/* repeat.h - how often something comes: * + ? {m} {m,} {m,n}, as regexes and grammars write it. */
#ifndef QN_GRAMMAR_REPEAT_H
#define QN_GRAMMAR_REPEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REPEAT_COUNT_MAX = 65535 };

struct repeat {
    bool found;
    uint32_t least, most; /* as EXPR_REPEAT has them */
    const char *wrong;    /* NULL: it is well */
    int code;             /* of what is wrong: QN_EINVAL, QN_ELIMIT */
};

/* What text[*at, n) begins with; *at is behind it then, or where something is wrong. `space`:
 * characters that may stand between the parts of {m,n}. */
struct repeat repeat_read(const char *text, size_t n, const char *space, size_t *at);

#endif
