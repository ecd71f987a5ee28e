/* json_text.h - what JSON texts look like, as expressions: the parts that schema.c puts together.
 */
#ifndef QN_GRAMMAR_JSON_TEXT_H
#define QN_GRAMMAR_JSON_TEXT_H

#include "grammar/exprs.h"

#include <jansson.h>

/* Rules that are made when they are first wanted. */
enum json_rule {
    TEXT_SPACE,   /* nothing, a space, or the end of a line and how the next one is indented */
    TEXT_CHAR,    /* one character of a string */
    TEXT_ESCAPED, /* one that must be escaped, in a short form or as a code */
    TEXT_STRING,
    TEXT_INTEGER,
    TEXT_NUMBER,
    TEXT_ARRAY, /* of any values */
    TEXT_OBJECT,
    TEXT_VALUE,
    N_TEXT_RULES
};

struct json_text {
    struct exprs *x;
    uint32_t rules[N_TEXT_RULES]; /* rule + 1; 0: not made */
};

uint32_t json_rule(struct json_text *j, enum json_rule rule);
/* Space, the sign, space. */
uint32_t json_sign(struct json_text *j, const char *sign);
/* A value as it is written without white space that is not needed, and with it. */
uint32_t json_literal(struct json_text *j, const json_t *value);
/* "name", space, a colon, space. */
uint32_t json_key(struct json_text *j, const char *name, size_t n);
/* A string that is none of names[n], as they are written. */
uint32_t json_other_key(struct json_text *j, const char *const *names, size_t n);

/* Numbers from `low` to `high`; has_: whether there is such a bound; above, below: the bound itself
 * is outside. */
struct json_bounds {
    int64_t low, high;
    bool has_low, has_high, above, below;
};
uint32_t json_integers(struct json_text *j, struct json_bounds b);
uint32_t json_numbers(struct json_text *j, struct json_bounds b);

#endif
