/* call.h - what a template can call: filters, tests, methods and functions. Each is a row of a
 * table and a C function; the row says what its parameters are, in Python's spelling.
 */
#ifndef QN_MODEL_JINJA_CALL_H
#define QN_MODEL_JINJA_CALL_H

#include "model/jinja/value.h"

enum { CALL_MAX_PARAMETERS = 6 };

/* A parameter's name; with '?' in front it may be missing. "*": any number of further arguments,
 * named and not, which the function takes from `args`. */
struct parameters {
    const char *names[CALL_MAX_PARAMETERS];
};

/* What a row's function gets: v[0] is the input of a filter or test or the self of a method; then
 * the parameters, VALUE_MISSING where they were not given. */
struct call {
    struct value v[CALL_MAX_PARAMETERS + 1];
    const struct args *args;
};

struct call_row {
    const char *name;
    int (*run)(struct run *r, const struct call *c, struct value *out);
    struct parameters parameters;
};

/* A method of one type. */
struct method_row {
    struct call_row row;
    uint8_t type;
};

/* A global function. */
struct function {
    struct call_row row;
};

const struct call_row *filter_find(const struct text *name);
const struct call_row *test_find(const struct text *name);
/* Whether jinja2 has a filter (or test) of that name, here or not. */
bool filter_exists(const struct text *name);
bool test_exists(const struct text *name);
const struct function *function_find(const struct text *name);

/* Puts arguments in their places and runs. */
int call_row(struct run *r, const struct call_row *row, struct value self, const struct args *args,
             struct value *out);
/* A filter or test by the name in a value, as map and select take it. */
int call_filter(struct run *r, struct value name, struct value self, const struct args *args,
                struct value *out);
int call_test(struct run *r, struct value name, struct value self, const struct args *args,
              bool *yes);
/* Calls any value. */
int call_value(struct run *r, struct value callee, const struct args *args, struct value *out);

/* object.name and object[key]. */
int attribute_get(struct run *r, struct value object, struct value name, struct value *out);
int attribute_item(struct run *r, struct value object, struct value key, struct value *out);
/* object[start:stop:step], each VALUE_NONE where it is missing. */
int attribute_slice(struct run *r, struct value object, const struct value bounds[3],
                    struct value *out);
/* The method of that name; *out is VALUE_MISSING where Python has none either. */
int method_find(struct run *r, struct value self, const struct text *name, struct value *out);

/* Arguments with defaults. */
int call_integer(struct run *r, const struct call *c, int i, const char *what, int64_t fallback,
                 int64_t *out);
int call_truth(struct run *r, const struct call *c, int i, bool fallback, bool *out);
/* format % values and "{}".format(values) */
int format_percent(struct run *r, const struct text *format, struct value values,
                   struct value *out);
int format_braces(struct run *r, const struct text *format, const struct args *args,
                  struct value *out);
/* Binary operators of values. */
int operator_add(struct run *r, struct value a, struct value b, struct value *out);
int operator_apply(struct run *r, int op, struct value a, struct value b, struct value *out);
int operator_unary(struct run *r, int op, struct value a, struct value *out);

#endif
