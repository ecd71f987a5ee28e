/* test.c - what may stand behind `is`. */
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/node.h"
#include "model/jinja/text.h"

#include <string.h>

#define TEST(name) static int name(struct run *r, const struct call *c, struct value *out)
#define PLAIN(name, condition)                                                                     \
    TEST(name) {                                                                                   \
        (void)r;                                                                                   \
        *out = value_bool(condition);                                                              \
        return QN_OK;                                                                              \
    }

PLAIN(is_defined, c->v[0].type != VALUE_UNDEFINED)
PLAIN(is_undefined, c->v[0].type == VALUE_UNDEFINED)
PLAIN(is_none, c->v[0].type == VALUE_NONE)
PLAIN(is_boolean, c->v[0].type == VALUE_BOOL)
PLAIN(is_true, c->v[0].type == VALUE_BOOL && c->v[0].truth)
PLAIN(is_false, c->v[0].type == VALUE_BOOL && !c->v[0].truth)
PLAIN(is_integer, c->v[0].type == VALUE_INT || c->v[0].type == VALUE_BIG)
PLAIN(is_float, c->v[0].type == VALUE_FLOAT)
PLAIN(is_string, c->v[0].type == VALUE_TEXT)
PLAIN(is_mapping, c->v[0].type == VALUE_DICT)
PLAIN(is_number, value_is_number(c->v[0]) || c->v[0].type == VALUE_BIG)
PLAIN(is_iterable, value_iterable(c->v[0]))
PLAIN(is_escaped, c->v[0].type == VALUE_TEXT && c->v[0].flag)
PLAIN(is_callable, c->v[0].type == VALUE_MACRO || c->v[0].type == VALUE_METHOD ||
                       c->v[0].type == VALUE_FUNCTION || c->v[0].type == VALUE_LOOP ||
                       c->v[0].type == VALUE_UNDEFINED)
/* Python's types with a length and items by number or key. */
PLAIN(is_sequence,
      c->v[0].type == VALUE_UNDEFINED ||
          (c->v[0].type >= VALUE_TEXT && c->v[0].type <= VALUE_RANGE && c->v[0].type != VALUE_VIEW))

static int remainder_is(struct run *r, struct value a, struct value b, int64_t want,
                        struct value *out) {
    struct value rest;
    bool equal;
    TRY(operator_apply(r, OP_MODULO, a, b, &rest));
    TRY(value_equal(r, rest, value_int(want), &equal));
    *out = value_bool(equal);
    return QN_OK;
}

TEST(is_odd) {
    return remainder_is(r, c->v[0], value_int(2), 1, out);
}
TEST(is_even) {
    return remainder_is(r, c->v[0], value_int(2), 0, out);
}
TEST(is_divisible) {
    return remainder_is(r, c->v[0], c->v[1], 0, out);
}

static int is_case(struct run *r, struct value v, enum text_class class, struct value *out) {
    struct value text;
    bool is;
    TRY(show_text(r, v, &text));
    TRY(text_is(r, class, text.text, &is));
    *out = value_bool(is);
    return QN_OK;
}
TEST(is_lower) {
    return is_case(r, c->v[0], TEXT_LOWER, out);
}
TEST(is_upper) {
    return is_case(r, c->v[0], TEXT_UPPER, out);
}

/* Identity is known of the values that exist once, and between types. */
TEST(is_same) {
    struct value a = c->v[0], b = c->v[1];
    if (a.type == VALUE_BOOL && b.type == VALUE_BOOL)
        *out = value_bool(a.truth == b.truth);
    else if (a.type != b.type || a.type == VALUE_NONE)
        *out = value_bool(a.type == b.type);
    else
        return run_fail(r, QN_EUNSUPPORTED, "sameas of two values of type %s is not supported",
                        value_type_name(a));
    return QN_OK;
}

TEST(is_in) {
    bool in;
    TRY(value_contains(r, c->v[1], c->v[0], &in));
    *out = value_bool(in);
    return QN_OK;
}
TEST(is_equal) {
    bool equal;
    TRY(value_equal(r, c->v[0], c->v[1], &equal));
    *out = value_bool(equal);
    return QN_OK;
}
TEST(is_unequal) {
    TRY(is_equal(r, c, out));
    out->truth = !out->truth;
    return QN_OK;
}
TEST(is_less) {
    bool less;
    TRY(value_less(r, c->v[0], c->v[1], &less));
    *out = value_bool(less);
    return QN_OK;
}
TEST(is_greater) {
    struct call swapped = {.v = {c->v[1], c->v[0]}};
    return is_less(r, &swapped, out);
}
TEST(is_less_equal) {
    struct value equal;
    TRY(is_less(r, c, out));
    TRY(is_equal(r, c, &equal));
    out->truth = out->truth || equal.truth;
    return QN_OK;
}
TEST(is_greater_equal) {
    struct call swapped = {.v = {c->v[1], c->v[0]}};
    return is_less_equal(r, &swapped, out);
}
/* Whether a table has a row of this name; what cannot be a key fails, as in Python. */
static int is_known(struct run *r, struct value name, bool (*exists)(const struct text *),
                    struct value *out) {
    struct value none, found;
    TRY(value_dict(r, 0, &none));
    TRY(value_find(r, none.dict, name, &found));
    *out = value_bool(name.type == VALUE_TEXT && exists(name.text));
    return QN_OK;
}
TEST(is_filter) {
    return is_known(r, c->v[0], filter_exists, out);
}
TEST(is_test) {
    return is_known(r, c->v[0], test_exists, out);
}

const struct call_row *test_find(const struct text *name) {
    static const struct call_row rows[] = {
        {"defined", is_defined, {{NULL}}},
        {"undefined", is_undefined, {{NULL}}},
        {"none", is_none, {{NULL}}},
        {"boolean", is_boolean, {{NULL}}},
        {"true", is_true, {{NULL}}},
        {"false", is_false, {{NULL}}},
        {"integer", is_integer, {{NULL}}},
        {"float", is_float, {{NULL}}},
        {"string", is_string, {{NULL}}},
        {"mapping", is_mapping, {{NULL}}},
        {"number", is_number, {{NULL}}},
        {"sequence", is_sequence, {{NULL}}},
        {"iterable", is_iterable, {{NULL}}},
        {"escaped", is_escaped, {{NULL}}},
        {"callable", is_callable, {{NULL}}},
        {"odd", is_odd, {{NULL}}},
        {"even", is_even, {{NULL}}},
        {"divisibleby", is_divisible, {{"num"}}},
        {"lower", is_lower, {{NULL}}},
        {"upper", is_upper, {{NULL}}},
        {"sameas", is_same, {{"other"}}},
        {"in", is_in, {{"seq"}}},
        {"filter", is_filter, {{NULL}}},
        {"test", is_test, {{NULL}}},
        {"==", is_equal, {{"-b"}}},
        {"eq", is_equal, {{"-b"}}},
        {"equalto", is_equal, {{"-b"}}},
        {"!=", is_unequal, {{"-b"}}},
        {"ne", is_unequal, {{"-b"}}},
        {"<", is_less, {{"-b"}}},
        {"lt", is_less, {{"-b"}}},
        {"lessthan", is_less, {{"-b"}}},
        {"<=", is_less_equal, {{"-b"}}},
        {"le", is_less_equal, {{"-b"}}},
        {">", is_greater, {{"-b"}}},
        {"gt", is_greater, {{"-b"}}},
        {"greaterthan", is_greater, {{"-b"}}},
        {">=", is_greater_equal, {{"-b"}}},
        {"ge", is_greater_equal, {{"-b"}}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strlen(rows[i].name) == name->n && memcmp(rows[i].name, name->p, name->n) == 0)
            return &rows[i];
    return NULL;
}

bool test_exists(const struct text *name) {
    return test_find(name) != NULL;
}
