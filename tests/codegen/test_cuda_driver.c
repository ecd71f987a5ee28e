/* The driver's table and the error lines that people see, with a driver made of plain functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "codegen/cuda_driver.h"

/* One pretended machine; the functions below read it. */
static struct { int init, version, n_devices, major, cooperative; } machine;

static cu_result fake_init(unsigned flags) {
    (void)flags;
    return machine.init;
}
static cu_result fake_version(int *version) {
    *version = machine.version;
    return CU_SUCCESS;
}
static cu_result fake_error_name(cu_result error, const char **text) {
    *text = error == CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_X";
    return CU_SUCCESS;
}
static cu_result fake_error_text(cu_result error, const char **text) {
    (void)error;
    *text = "the driver's words";
    return CU_SUCCESS;
}
static cu_result fake_count(int *n) {
    *n = machine.n_devices;
    return CU_SUCCESS;
}
static cu_result fake_get(cu_device *device, int ordinal) {
    *device = ordinal;
    return CU_SUCCESS;
}
static cu_result fake_name(char *name, int bytes, cu_device device) {
    (void)device;
    strncpy(name, "Pretended GPU", (size_t)bytes);
    return CU_SUCCESS;
}
static cu_result fake_attribute(int *value, int attribute, cu_device device) {
    (void)device;
    switch (attribute) {
    case CU_ATTR_COMPUTE_CAPABILITY_MAJOR: *value = machine.major; break;
    case CU_ATTR_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_ATTR_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_ATTR_COOPERATIVE_LAUNCH: *value = machine.cooperative; break;
    default: *value = 1000 + attribute; break;
    }
    return CU_SUCCESS;
}
static cu_result fake_total(size_t *bytes, cu_device device) {
    (void)device;
    *bytes = (size_t)80 << 30;
    return CU_SUCCESS;
}

static struct cuda_api fake_driver(void) {
    machine.init = CU_SUCCESS;
    machine.version = 13000;
    machine.n_devices = 1;
    machine.major = 9;
    machine.cooperative = 1;
    return (struct cuda_api){
        .cuInit = fake_init,
        .cuDriverGetVersion = fake_version,
        .cuGetErrorName = fake_error_name,
        .cuGetErrorString = fake_error_text,
        .cuDeviceGetCount = fake_count,
        .cuDeviceGet = fake_get,
        .cuDeviceGetName = fake_name,
        .cuDeviceGetAttribute = fake_attribute,
        .cuDeviceTotalMem_v2 = fake_total,
    };
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
    machine.cooperative = 0;
    expect(&api, 0, QN_EDEVICE, "cooperative");
    machine.major = 7;
    expect(&api, 0, QN_EDEVICE, "sm_70");
    machine.version = 11040;
    expect(&api, 0, QN_EDEVICE, "CUDA 11.4");
    machine.n_devices = 0;
    expect(&api, 0, QN_EDEVICE, "shows no GPU");
    machine.init = CU_ERROR_NO_DEVICE;
    expect(&api, 0, QN_EDEVICE, "shows no GPU");
    machine.init = CU_ERROR_STUB_LIBRARY;
    expect(&api, 0, QN_EDEVICE, "stub");
    machine.init = 999;
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
