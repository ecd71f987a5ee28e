/* What the library carries is what the source tree has, and every #include among it resolves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "base/mapfile.h"
#include "codegen/embed.h"

static void test_same_as_files(void **state) {
    (void)state;
    assert_true(embed_n_files > 5);
    for (size_t i = 0; i < embed_n_files; i++) {
        const struct embed_file *e = &embed_files[i];
        char path[300];
        snprintf(path, sizeof path, "src/%s", e->name);
        struct mapfile f;
        assert_int_equal(mapfile_open(NULL, path, 0, &f), QN_OK);
        assert_int_equal(f.bytes, e->n);
        assert_memory_equal(f.data, e->text, e->n);
        assert_int_equal(e->text[e->n], 0);
        mapfile_close(&f);
        assert_ptr_equal(embed_find(e->name), e);
    }
    assert_null(embed_find("no/such.cuh"));
    assert_non_null(embed_find("base/abi.h"));
    assert_non_null(embed_find("graph/op.def"));
}

/* Host-only and generated files that device code never reaches. */
static int expected_absent(const char *name) {
    return strncmp(name, "base/", 5) == 0 || strcmp(name, "codegen/generated.h") == 0;
}

static void test_includes_resolve(void **state) {
    (void)state;
    for (size_t i = 0; i < embed_n_files; i++) {
        const char *p = (const char *)embed_files[i].text;
        while ((p = strstr(p, "#include \"")) != NULL) {
            char name[200] = {0};
            p += strlen("#include \"");
            size_t n = strcspn(p, "\"\n");
            assert_true(n < sizeof name);
            memcpy(name, p, n);
            if (embed_find(name) == NULL && !expected_absent(name)) {
                print_error("%s includes %s, which is not embedded\n", embed_files[i].name, name);
                assert_true(0);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_files),
        cmocka_unit_test(test_includes_resolve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
