/* regex.h - turns regular expressions into expressions. docs/structured-outputs.md lists the known
 * syntax; anything else is refused with its place.
 *
 * In a regex for a JSON string, a character stands for its escaped form: a quote for \", a newline
 * for \n, and so on.
 */
#ifndef QN_GRAMMAR_REGEX_H
#define QN_GRAMMAR_REGEX_H

#include "grammar/exprs.h"

enum {
    REGEX_MAX = 1024, /* bytes */
    REGEX_DEPTH = 32, /* groups inside each other */
};

struct regex_form {
    bool in_json;  /* matches the text of a JSON string */
    bool anywhere; /* matches any part of a text unless ^ and $ say otherwise; false: all of it */
    const char *name; /* what messages begin with */
};

/* text[0, n) is UTF-8. Errors, in x->rc too: QN_EINVAL, QN_EUNSUPPORTED, QN_ELIMIT, each with the
 * byte's offset. */
int regex_read(struct exprs *x, const char *text, size_t n, const struct regex_form *form,
               uint32_t *expr);

/* Characters that a JSON string holds only escaped. */
extern const struct charset regex_json_special;
/* The characters of a sorted set, as a JSON string holds them. */
uint32_t regex_json_class(struct exprs *x, const struct charset *set);

#endif
