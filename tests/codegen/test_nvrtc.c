/* NVRTC as it is found here; without one the compiling tests skip and say so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "codegen/nvrtc.h"

/* NVRTC keeps some of its own memory until the process ends; a leak check would count that as ours.
 * The sanitizers ask this function; other builds have no use for it. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

static void need_nvrtc(struct nvrtc *n) {
    struct diag d = {0};
    if (nvrtc_open(&d, getenv("QN_NVRTC"), n) == QN_OK) return;
    print_message("skipped: %s\n", d.message);
    skip();
}

static const char *const names[] = {"a/one.h"};
static const char *const texts[] = {"#define ONE 1.0f\n"};
static const char *const options[] = {"--gpu-architecture=sm_90a", "--std=c++17"};

static struct nvrtc_source source(const char *text) {
    return (struct nvrtc_source){.name = "unit",
                                 .text = text,
                                 .n_headers = 1,
                                 .header_names = names,
                                 .header_texts = texts,
                                 .n_options = 2,
                                 .options = options};
}

static void test_compiles(void **state) {
    (void)state;
    struct nvrtc n;
    need_nvrtc(&n);
    struct diag d = {0};
    struct nvrtc_image image;
    struct nvrtc_source s = source("#include \"a/one.h\"\n"
                                   "extern \"C\" __global__ void k(float *p) { *p = ONE; }\n");
    assert_int_equal(nvrtc_compile(&d, &n, &s, &image), QN_OK);
    assert_memory_equal(image.bytes, "\177ELF", 4);
    assert_true(n.major >= 12);
    nvrtc_image_fini(&image);
    nvrtc_close(&n);
}

static void test_error_has_the_log(void **state) {
    (void)state;
    struct nvrtc n;
    need_nvrtc(&n);
    struct diag d = {0};
    struct nvrtc_image image;
    struct nvrtc_source s = source("#include \"a/one.h\"\n__global__ void k() { nonsense; }\n");
    assert_int_equal(nvrtc_compile(&d, &n, &s, &image), QN_EDEVICE);
    assert_non_null(strstr(d.message, "nonsense"));
    assert_null(strchr(d.message, '\n'));
    assert_non_null(strstr(image.log, "nonsense"));
    nvrtc_image_fini(&image);
    nvrtc_close(&n);
}

static void test_not_there(void **state) {
    (void)state;
    struct nvrtc n;
    struct diag d = {0};
    assert_int_equal(nvrtc_open(&d, "/no/such/folder", &n), QN_EDEVICE);
    assert_non_null(strstr(d.message, "/no/such/folder"));
    diag_clear(&d);
    assert_int_equal(nvrtc_open(&d, "libm.so.6", &n), QN_EDEVICE);
    assert_null(n.library);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compiles),
        cmocka_unit_test(test_error_has_the_log),
        cmocka_unit_test(test_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
