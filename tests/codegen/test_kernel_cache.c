/* The cache gives back what was stored, and treats anything else as absent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail

#include "codegen/kernel_cache.h"

struct fixture {
    char root[64];
    struct kernel_cache cache;
    struct cache_key key;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    if (f == NULL) return -1;
    strcpy(f->root, "/tmp/quern-cache-XXXXXX");
    if (mkdtemp(f->root) == NULL) return -1;
    snprintf(f->cache.dir, sizeof f->cache.dir, "%s/a/b", f->root);
    cache_hash_init(&f->key);
    cache_hash_text(&f->key, "sources");
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->root);
    int rc = system(command);
    free(f);
    return rc;
}

static void expect_miss(const struct fixture *f) {
    char *image;
    size_t n;
    assert_false(kernel_cache_find(&f->cache, &f->key, &image, &n));
    assert_null(image);
}

static void put(const struct fixture *f, const char *image, size_t n) {
    struct diag d = {0};
    assert_int_equal(kernel_cache_put(&d, &f->cache, &f->key, image, n), QN_OK);
}

static void expect_hit(const struct fixture *f, const char *want, size_t n_want) {
    char *image;
    size_t n;
    assert_true(kernel_cache_find(&f->cache, &f->key, &image, &n));
    assert_int_equal(n, n_want);
    assert_memory_equal(image, want, n);
    free(image);
}

static void test_round_trip(void **state) {
    struct fixture *f = *state;
    expect_miss(f);
    put(f, "cubin\0text", 10);
    expect_hit(f, "cubin\0text", 10);
    struct cache_key kept = f->key;
    cache_hash_text(&f->key, "other option");
    expect_miss(f);
    f->key = kept;
    put(f, "newer", 5);
    expect_hit(f, "newer", 5);
}

/* Every single damaged byte and every shorter length is noticed, and a new put heals the entry. */
static void test_damage(void **state) {
    struct fixture *f = *state;
    char path[512], bytes[256];
    put(f, "0123456789", 10);
    assert_true(kernel_cache_path(&f->cache, &f->key, path));
    FILE *file = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_in_range(n, 11, 200);
    for (size_t i = 0; i < 2 * n; i++) {
        size_t length = i < n ? n : i - n; /* first pass: flip byte i; second: cut to i - n */
        if (i < n) bytes[i] ^= 1;
        file = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, length, file), length);
        fclose(file);
        expect_miss(f);
        if (i < n) bytes[i] ^= 1;
    }
    put(f, "0123456789", 10);
    expect_hit(f, "0123456789", 10);
}

static void test_unwritable(void **state) {
    struct fixture *f = *state;
    struct diag d = {0};
    snprintf(f->cache.dir, sizeof f->cache.dir, "/proc/no/such");
    assert_int_equal(kernel_cache_put(&d, &f->cache, &f->key, "x", 1), QN_EIO);
    assert_non_null(strstr(d.message, "/proc/no"));
    expect_miss(f);
    f->cache.dir[0] = '\0'; /* off: nothing happens, nothing fails */
    assert_int_equal(kernel_cache_put(&d, &f->cache, &f->key, "x", 1), QN_OK);
    expect_miss(f);
}

static void test_directory(void **state) {
    (void)state;
    struct kernel_cache c;
    setenv("QN_CACHE_DIR", "/one", 1);
    setenv("XDG_CACHE_HOME", "/two", 1);
    setenv("HOME", "/three", 1);
    kernel_cache_init(&c, false);
    assert_string_equal(c.dir, "/one");
    kernel_cache_init(&c, true);
    assert_string_equal(c.dir, "");
    setenv("QN_CACHE_DIR", "off", 1);
    kernel_cache_init(&c, false);
    assert_string_equal(c.dir, "");
    unsetenv("QN_CACHE_DIR");
    kernel_cache_init(&c, false);
    assert_string_equal(c.dir, "/two/quern");
    unsetenv("XDG_CACHE_HOME");
    kernel_cache_init(&c, false);
    assert_string_equal(c.dir, "/three/.cache/quern");
}

/* The published vectors of FNV-1a, 128 bits, hash fields without their length: here the length
 * goes first, so only distinctness can be checked. */
static void test_key(void **state) {
    (void)state;
    struct cache_key a, b;
    cache_hash_init(&a);
    cache_hash_text(&a, "ab");
    cache_hash_text(&a, "c");
    cache_hash_init(&b);
    cache_hash_text(&b, "a");
    cache_hash_text(&b, "bc");
    assert_true(a.high != b.high && a.low != b.low);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unwritable, setup, teardown),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
