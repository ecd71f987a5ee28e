/* The containers and readers that everything else stands on. */
#include "base/arena.h"
#include "base/array.h"
#include "base/checked.h"
#include "base/jsonio.h"
#include "base/map.h"
#include "base/mapfile.h"
#include "base/strbuf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#undef fail /* cmocka has a macro of that name */

static void first_failure_wins(void **state) {
    (void)state;
    struct diag d = {0};
    assert_int_equal(fail(&d, QN_ESHAPE, "first %d", 1), QN_ESHAPE);
    assert_int_equal(fail(&d, QN_EIO, "second"), QN_EIO);
    assert_int_equal(d.code, QN_ESHAPE);
    assert_string_equal(d.message, "first 1");
    assert_string_equal(status_text(QN_ENOMEM), "out of memory");
    assert_string_equal(status_text(-999), "unknown error");
}

static void messages_are_one_clean_line(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"a\nb\r\x1b[2J\x7f", "a?b??[2J?"},
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
         "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc2\x9b[2J", "??[2J"},               /* a control character of two bytes */
        {"\xff\xc0\xaf\xed\xa0\x80", "??????"}, /* never UTF-8 */
        {"\xf4\x90\x80\x80\xe0\x80\x80", "???????"},
        {"cut \xe2\x82", "cut ??"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d = {0};
        fail(&d, QN_EFORMAT, "%s", cases[i][0]);
        assert_string_equal(d.message, cases[i][1]);
    }
}

static void arena_checks_overflow(void **state) {
    (void)state;
    struct arena a = {0};
    struct diag d = {0};
    uint64_t *p;
    assert_int_equal(ARENA_NEW(&d, &a, &p, UINT64_MAX / 4), QN_ENOMEM);
    assert_int_equal(ARENA_NEW(&d, &a, &p, 100000), QN_OK);
    for (int i = 0; i < 100000; i++) assert_int_equal(p[i], 0);
    assert_int_equal((uintptr_t)p % 16, 0);
    char *s;
    assert_int_equal(arena_printf(&d, &a, &s, "%s-%d", "x", 7), QN_OK);
    assert_string_equal(s, "x-7");
    arena_fini(&a);
}

static void map_holds_the_first_value(void **state) {
    (void)state;
    struct map m = {0};
    static int keys[5000];
    uint64_t v;
    for (int i = 0; i < 5000; i++) {
        keys[i] = i * 7;
        assert_int_equal(map_put(NULL, &m, &keys[i], sizeof keys[i], (uint64_t)i, NULL), QN_OK);
    }
    assert_int_equal(map_put(NULL, &m, &keys[9], sizeof keys[9], 77, &v), QN_OK);
    assert_int_equal(v, 9);
    for (int i = 0; i < 5000; i++) {
        assert_true(map_find(&m, &keys[i], sizeof keys[i], &v));
        assert_int_equal(v, i);
    }
    int other = 3;
    assert_false(map_find(&m, &other, sizeof other, &v));
    map_fini(&m);
}

static void strbuf_and_array_grow(void **state) {
    (void)state;
    struct strbuf b = {0};
    for (int i = 0; i < 1000; i++) strbuf_printf(&b, "%d,", i);
    assert_int_equal(b.n, 3890);
    assert_int_equal(strbuf_status(NULL, &b), QN_OK);
    strbuf_fini(&b);
    ARRAY(int) a = {0};
    for (int i = 0; i < 1000; i++) assert_int_equal(ARRAY_PUSH(NULL, &a, i), QN_OK);
    assert_int_equal(a.items[999], 999);
    ARRAY_FINI(&a);
}

static void json_errors_name_file_and_field(void **state) {
    (void)state;
    struct diag d = {0};
    json_t *root;
    int64_t v;
    const char *text = "{\"a\": 7, \"s\": \"x\", \"none\": null}";
    assert_int_equal(jsonio_parse(&d, "f.json", text, strlen(text), &root), QN_OK);
    assert_int_equal(jsonio_need_int(&d, "f.json", root, "a", 1, 9, &v), QN_OK);
    assert_int_equal(v, 7);
    assert_int_equal(jsonio_int(&d, "f.json", root, "none", 1, 9, 5, &v), QN_OK);
    assert_int_equal(v, 5);
    assert_int_equal(jsonio_need_int(&d, "f.json", root, "s", 1, 9, &v), QN_EFORMAT);
    assert_string_equal(d.message, "f.json: s: want an integer, have a string");
    diag_clear(&d);
    assert_int_equal(jsonio_need_int(&d, "f.json", root, "a", 8, 9, &v), QN_EFORMAT);
    json_decref(root);
    diag_clear(&d);
    assert_int_equal(jsonio_parse(&d, "f.json", "{", 1, &root), QN_EFORMAT);
}

static void a_file_that_shrinks_under_its_map_is_torn(void **state) {
    (void)state;
    char path[] = "/tmp/quern_map_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 4 << 20), 0);
    struct mapfile f;
    struct diag d = {0};
    assert_int_equal(mapfile_open(&d, path, 0, &f), QN_OK);
    assert_true(f.mapped);
    assert_false(mapfile_torn(&f));
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    assert_int_equal(((volatile const unsigned char *)f.data)[3 << 20], 0);
    assert_true(mapfile_torn(&f));
    mapfile_close(&f);
    close(fd);
    unlink(path);
    assert_int_equal(mapfile_open(&d, path, 0, &f), QN_ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_wins),
        cmocka_unit_test(messages_are_one_clean_line),
        cmocka_unit_test(arena_checks_overflow),
        cmocka_unit_test(map_holds_the_first_value),
        cmocka_unit_test(strbuf_and_array_grow),
        cmocka_unit_test(json_errors_name_file_and_field),
        cmocka_unit_test(a_file_that_shrinks_under_its_map_is_torn),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
