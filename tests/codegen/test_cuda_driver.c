/* The driver's table and the error lines that people see, with a driver made of plain functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "codegen/fake_device.h"

static struct cuda_api fake_driver(void) {
    fake_device = (struct fake_device)FAKE_DEVICE_DEFAULT;
    return (struct cuda_api){FAKE_DEVICE_CALLS};
}

/* Expects cuda_device_find to fail with one line that holds `words`. */
static void expect(const struct cuda_api *api, int ordinal, int code, const char *words) {
    struct diag d = {0};
    struct cuda_device device;
    assert_int_equal(cuda_device_find(&d, api, ordinal, &device), code);
    assert_non_null(strstr(d.message, words));
    assert_null(strchr(d.message, '\n'));
}

static void test_no_library(void **state) {
    (void)state;
    struct diag d = {0};
    struct cuda_api api;
    assert_int_equal(cuda_api_open(&d, "libno-such-driver.so.1", &api), QN_EDEVICE);
    assert_non_null(strstr(d.message, "no NVIDIA driver here"));
    assert_non_null(strstr(d.message, "libno-such-driver.so.1"));
    assert_null(api.library);
}

/* A library that lacks the calls stands for a driver that is too old. */
static void test_library_without_calls(void **state) {
    (void)state;
    struct diag d = {0};
    struct cuda_api api;
    assert_int_equal(cuda_api_open(&d, "libm.so.6", &api), QN_EDEVICE);
    assert_non_null(strstr(d.message, "cuInit"));
    assert_non_null(strstr(d.message, "too old"));
    assert_null(api.library);
}

static void test_found(void **state) {
    (void)state;
    struct cuda_api api = fake_driver();
    struct diag d = {0};
    struct cuda_device device;
    char arch[16];
    assert_int_equal(cuda_device_find(&d, &api, 0, &device), QN_OK);
    assert_string_equal(device.name, "Pretended GPU");
    assert_int_equal(device.n_sms, 132);
    assert_int_equal(device.total_bytes, (uint64_t)80 << 30);
    assert_int_equal(device.l2_bytes, 1000 + CU_ATTR_L2_CACHE_SIZE);
    assert_int_equal(device.l2_kept_bytes, 1000 + CU_ATTR_MAX_PERSISTING_L2_CACHE_SIZE);
    assert_int_equal(device.l2_window_bytes, 1000 + CU_ATTR_MAX_ACCESS_POLICY_WINDOW_SIZE);
    cuda_device_arch(&device, arch);
    assert_string_equal(arch, "sm_90a");
    device.major = 8;
    cuda_device_arch(&device, arch);
    assert_string_equal(arch, "sm_80");
}

static void test_refused(void **state) {
    (void)state;
    struct cuda_api api = fake_driver();
    expect(&api, 1, QN_EINVAL, "the driver shows 1 device (from 0)");
    expect(&api, -1, QN_EINVAL, "device -1");
    fake_device.cooperative = 0;
    expect(&api, 0, QN_EDEVICE, "cooperative");
    fake_device.major = 7;
    expect(&api, 0, QN_EDEVICE, "sm_70");
    fake_device.version = 11040;
    expect(&api, 0, QN_EDEVICE, "CUDA 11.4");
    fake_device.n_devices = 0;
    expect(&api, 0, QN_EDEVICE, "shows no GPU");
    fake_device.init = CU_ERROR_NO_DEVICE;
    expect(&api, 0, QN_EDEVICE, "shows no GPU");
    fake_device.init = CU_ERROR_STUB_LIBRARY;
    expect(&api, 0, QN_EDEVICE, "stub");
    fake_device.init = 999;
    expect(&api, 0, QN_EDEVICE, "cuInit: the driver's words (CUDA_ERROR_X, 999)");
}

static void test_codes(void **state) {
    (void)state;
    struct cuda_api api = fake_driver();
    struct diag d = {0};
    assert_int_equal(cuda_check(&d, &api, "cuMemAlloc_v2", CU_SUCCESS), QN_OK);
    assert_int_equal(cuda_check(&d, &api, "cuMemAlloc_v2", CU_ERROR_OUT_OF_MEMORY), QN_ENOMEM);
    assert_non_null(strstr(d.message, "cuMemAlloc_v2"));
    assert_int_equal(cuda_check(NULL, &api, "cuMemAlloc_v2", 700), QN_EDEVICE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_library), cmocka_unit_test(test_library_without_calls),
        cmocka_unit_test(test_found),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
