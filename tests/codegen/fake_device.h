/* fake_device.h - the calls with which a CUDA driver describes its GPU, answered from
 * `fake_device`: for the tests of codegen/cuda_driver.c, and the first half of
 * engine/fake_driver.h. FAKE_DEVICE_CALLS are their entries in a struct cuda_api.
 */
#ifndef QN_TESTS_FAKE_DEVICE_H
#define QN_TESTS_FAKE_DEVICE_H

#include "codegen/cuda_driver.h"

#include <stdio.h>

/* An H100 with a driver that is new enough, unless a test says otherwise. */
#define FAKE_DEVICE_DEFAULT                                                                        \
    {                                                                                              \
        .init = CU_SUCCESS, .version = 13000, .n_devices = 1, .major = 9, .n_sms = 132,            \
        .cooperative = 1, .shared_bytes = 227 * 1024, .total_bytes = (uint64_t)80 << 30            \
    }

static struct fake_device {
    int init; /* what cuInit says */
    int version, n_devices, major, n_sms, cooperative, shared_bytes;
    uint64_t total_bytes;
} fake_device = FAKE_DEVICE_DEFAULT;

static cu_result fake_init(unsigned flags) {
    (void)flags;
    return fake_device.init;
}
static cu_result fake_version(int *version) {
    *version = fake_device.version;
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
    *n = fake_device.n_devices;
    return CU_SUCCESS;
}
static cu_result fake_get(cu_device *device, int ordinal) {
    *device = ordinal;
    return CU_SUCCESS;
}
static cu_result fake_name(char *name, int bytes, cu_device device) {
    (void)device;
    snprintf(name, (size_t)bytes, "Pretended GPU");
    return CU_SUCCESS;
}
static cu_result fake_attribute(int *value, int attribute, cu_device device) {
    (void)device;
    switch (attribute) {
    case CU_ATTR_COMPUTE_CAPABILITY_MAJOR: *value = fake_device.major; break;
    case CU_ATTR_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_ATTR_MULTIPROCESSOR_COUNT: *value = fake_device.n_sms; break;
    case CU_ATTR_COOPERATIVE_LAUNCH: *value = fake_device.cooperative; break;
    case CU_ATTR_MAX_SHARED_PER_BLOCK_OPTIN: *value = fake_device.shared_bytes; break;
    default: *value = 1000 + attribute; break;
    }
    return CU_SUCCESS;
}
static cu_result fake_total(size_t *bytes, cu_device device) {
    (void)device;
    *bytes = fake_device.total_bytes;
    return CU_SUCCESS;
}

#define FAKE_DEVICE_CALLS                                                                          \
    .cuInit = fake_init, .cuDriverGetVersion = fake_version, .cuGetErrorName = fake_error_name,    \
    .cuGetErrorString = fake_error_text, .cuDeviceGetCount = fake_count, .cuDeviceGet = fake_get,  \
    .cuDeviceGetName = fake_name, .cuDeviceGetAttribute = fake_attribute,                          \
    .cuDeviceTotalMem_v2 = fake_total

#endif
