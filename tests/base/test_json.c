/* JSON as Python's json module writes and reads it. */
#include "base/checked.h"
#include "base/jsonio.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#undef fail /* cmocka has a macro of that name */

static json_t *parse(const char *text) {
    struct diag d = {0};
    json_t *root;
    if (jsonio_parse(&d, "f.json", text, strlen(text), &root) != QN_OK)
        printf("%s\n%s\n", text, d.message), abort();
    return root;
}

static void numbers_are_what_python_reads(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool whole;
        int64_t integer;
        double real;
    } cases[] = {
        {"0", true, 0, 0},
        {"-0", true, 0, 0},
        {"9223372036854775807", true, INT64_MAX, 0},
        {"-9223372036854775808", true, INT64_MIN, 0},
        {"9223372036854775808", false, 0, 0x1p63},
        {"-9223372036854775809", false, 0, -0x1p63},
        {"1000000000000000019884624838656", false, 0, 1e30},
        {"1.5", false, 0, 1.5},
        {"-1.25e-3", false, 0, -1.25e-3},
        {"1E+2", false, 0, 100},
        {"5e-324", false, 0, 5e-324},
        {"1e-400", false, 0, 0},
        {"0.1", false, 0, 0.1},
        {"123456789012345678901234567890.5", false, 0, 123456789012345678901234567890.5},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *v = parse(cases[i].text);
        assert_int_equal(json_is_integer(v), cases[i].whole);
        if (cases[i].whole)
            assert_int_equal(json_integer_value(v), cases[i].integer);
        else
            assert_true(json_real_value(v) == cases[i].real);
        json_decref(v);
    }
}

static void what_is_not_finite_is_known(void **state) {
    (void)state;
    json_t *v = parse("[NaN, Infinity, -Infinity, 1e999, -1e999, null]");
    static const double want[] = {0, INFINITY, -INFINITY, INFINITY, -INFINITY};
    double number;
    assert_true(jsonio_non_finite(json_array_get(v, 0), &number));
    assert_true(isnan(number));
    for (size_t i = 1; i < 5; i++) {
        assert_true(jsonio_non_finite(json_array_get(v, i), &number));
        assert_true(number == want[i]);
    }
    assert_false(jsonio_non_finite(json_array_get(v, 5), &number));
    json_decref(v);
}

static void strings_are_what_python_reads(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"\"", ""},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"},
        {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac"},
        {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80"},
        {"\"\xf0\x9f\x98\x80\x7f\"", "\xf0\x9f\x98\x80\x7f"},
        /* Halves of a pair: U+FFFD. */
        {"\"\\ud83d\"", "\xef\xbf\xbd"},
        {"\"\\ude00\\ud83d!\"", "\xef\xbf\xbd\xef\xbf\xbd!"},
        {"\"\\ud83d\\u0041\"", "\xef\xbf\xbd"
                               "A"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *v = parse(cases[i][0]);
        assert_string_equal(json_string_value(v), cases[i][1]);
        json_decref(v);
    }
    json_t *v = parse("\"a\\u0000b\"");
    assert_int_equal(json_string_length(v), 3);
    assert_memory_equal(json_string_value(v), "a\0b", 3);
    json_decref(v);
}

static void the_last_of_two_keys_counts(void **state) {
    (void)state;
    struct diag d = {0};
    const char *text = " {\"a\": [1, {}], \"b\": 2,\n\"a\": 3} ";
    json_t *v = parse(text);
    assert_int_equal(json_object_size(v), 2);
    assert_int_equal(json_integer_value(json_object_get(v, "a")), 3);
    json_decref(v);
    assert_int_equal(jsonio_parse_unique(&d, "f.json", text, strlen(text), &v), QN_EFORMAT);
    assert_string_equal(d.message, "f.json: line 2, column 1: 'a' is there twice");
    assert_null(v);
}

static void what_python_refuses_is_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "line 1, column 1: the text ends where a value is wanted"},
        {"{", "line 1, column 2: want a string"},
        {"[1", "line 1, column 3: the text ends inside an array"},
        {"[1,]", "line 1, column 4: want a value"},
        {"{\"a\":1,}", "line 1, column 8: want a string"},
        {"{\"a\" 1}", "line 1, column 6: want ':'"},
        {"[1 2]", "line 1, column 4: want ',' or the end of the array"},
        {"{\"a\":1\n 2}", "line 2, column 2: want ',' or the end of the object"},
        {"01", "line 1, column 1: want a value"},
        {"+1", "line 1, column 1: want a value"},
        {".5", "line 1, column 1: want a value"},
        {"-", "line 1, column 1: want a value"},
        {"1.", "line 1, column 3: want a digit behind the point"},
        {"1e", "line 1, column 3: want digits of an exponent"},
        {"0x10", "line 1, column 2: want the end of the text"},
        {"nan", "line 1, column 1: want a value"},
        {"-NaN", "line 1, column 1: want a value"},
        {"'a'", "line 1, column 1: want a value"},
        {"\"a", "line 1, column 3: the text ends inside a string"},
        {"\"a\tb\"", "line 1, column 3: a control character inside a string"},
        {"\"\\x41\"", "line 1, column 3: an unknown escape"},
        {"\"\\u12g4\"", "line 1, column 4: want four hexadecimal digits"},
        {"1 1", "line 1, column 3: want the end of the text"},
        {"[\"\xc3(\"]", "line 1, column 3: not UTF-8"},
        {"\"\xed\xa0\x80\"", "line 1, column 2: not UTF-8"},
        {"\xef\xbb\xbf{}", "line 1, column 4: begins with a byte order mark; want plain UTF-8"},
        {"{\"\\u0000\": 1}", "line 1, column 2: a key with a NUL inside"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d = {0};
        json_t *v;
        assert_int_equal(jsonio_parse(&d, "x", cases[i][0], strlen(cases[i][0]), &v), QN_EFORMAT);
        assert_null(v);
        assert_string_equal(d.message + strlen("x: "), cases[i][1]);
    }
}

static void depth_is_bounded(void **state) {
    (void)state;
    static char text[200000];
    struct diag d = {0};
    json_t *v;
    memset(text, '[', 2048);
    memset(text + 2048, ']', 2048);
    assert_int_equal(jsonio_parse(&d, "x", text, 4096, &v), QN_OK);
    json_decref(v);
    memset(text, '[', sizeof text);
    assert_int_equal(jsonio_parse(&d, "x", text, sizeof text, &v), QN_EFORMAT);
    assert_string_equal(d.message, "x: line 1, column 2050: more than 2048 levels");
}

static void getters_refuse_what_they_need_only(void **state) {
    (void)state;
    json_t *o = parse("{\"big\": 1000000000000000019884624838656, \"nan\": NaN, \"n\": 7}");
    static const struct {
        const char *key;
        const char *integer, *real;
    } cases[] = {
        {"big", "f: big: want an integer from 1 to 9, have 1e+30", NULL},
        {"nan", "f: nan: want an integer, have a number that is not finite",
         "f: nan: want a number, have a number that is not finite"},
    };
    int64_t n;
    double x;
    struct diag d = {0};
    assert_int_equal(jsonio_need_int(&d, "f", o, "n", 1, 9, &n), QN_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        diag_clear(&d);
        assert_int_equal(jsonio_int(&d, "f", o, cases[i].key, 1, 9, 5, &n), QN_EFORMAT);
        assert_string_equal(d.message, cases[i].integer);
        diag_clear(&d);
        int rc = jsonio_double(&d, "f", o, cases[i].key, 5, &x);
        assert_int_equal(rc, cases[i].real != NULL ? QN_EFORMAT : QN_OK);
        if (rc == QN_OK) assert_true(x == 1e30);
        if (rc != QN_OK) assert_string_equal(d.message, cases[i].real);
    }
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_what_python_reads),
        cmocka_unit_test(what_is_not_finite_is_known),
        cmocka_unit_test(strings_are_what_python_reads),
        cmocka_unit_test(the_last_of_two_keys_counts),
        cmocka_unit_test(what_python_refuses_is_refused),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(getters_refuse_what_they_need_only),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
