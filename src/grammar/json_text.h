/* json_text.h - expressions for the parts of JSON texts, which the files of schema.h put together.
 */
#ifndef QN_GRAMMAR_JSON_TEXT_H
#define QN_GRAMMAR_JSON_TEXT_H

#include "grammar/exprs.h"

#include <jansson.h>

/* Rules, each made when it is first used. */
enum json_rule {
    TEXT_SPACE,   /* nothing, a space, or the end of a line and how the next one is indented */
    TEXT_CHAR,    /* one character of a string */
    TEXT_ESCAPED, /* one that must be escaped, as a short escape or by its code */
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
/* The sign with TEXT_SPACE before and after it. */
uint32_t json_sign(struct json_text *j, const char *sign);
/* Exactly this value, with or without optional white space. */
uint32_t json_literal(struct json_text *j, const json_t *value);
/* The name in quotes, then a colon with TEXT_SPACE before and after it. */
uint32_t json_key(struct json_text *j, const char *name, size_t n);
/* A string that is none of names[n], as they are written. */
uint32_t json_other_key(struct json_text *j, const char *const *names, size_t n);

/* Numbers from `low` to `high`. has_low, has_high: whether the bound exists. above, below: the
 * bound itself is excluded. */
struct json_bounds {
    int64_t low, high;
    bool has_low, has_high, above, below;
};
uint32_t json_integers(struct json_text *j, struct json_bounds b);
uint32_t json_numbers(struct json_text *j, struct json_bounds b);

#endif
