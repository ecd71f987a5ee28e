/* regex.h - regular expressions as expressions. docs/structured-outputs.md lists what is known; the
 * rest is refused with its place.
 *
 * In a JSON string a character stands for what the string must hold: a quote for \", a newline for
 * \n, and so on.
 */
#ifndef QN_GRAMMAR_REGEX_H
#define QN_GRAMMAR_REGEX_H

#include "grammar/exprs.h"

enum {
    REGEX_MAX = 1024, /* bytes */
    REGEX_DEPTH = 32, /* groups inside each other */
};

struct regex_form {
    bool in_json;  /* text of a JSON string */
    bool anywhere; /* finds a place in a longer text unless ^ and $ say otherwise; else all of it */
    const char *name; /* what messages begin with */
};

/* text[0, n) is UTF-8. Errors, in x->rc too: QN_EINVAL, QN_EUNSUPPORTED, QN_ELIMIT, each with the
 * byte where. */
int regex_read(struct exprs *x, const char *text, size_t n, const struct regex_form *form,
               uint32_t *expr);

/* Characters that a JSON string holds escaped only. */
extern const struct charset regex_json_special;
/* A sorted set of characters, as a JSON string holds them. */
uint32_t regex_json_class(struct exprs *x, const struct charset *set);

#endif
