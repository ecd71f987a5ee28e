/* cuda_driver.c - see cuda_driver.h. */
#include "codegen/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* A symbol of the library; ISO C has no cast from object to function pointers, memcpy is POSIX's
 * way. */
static int look_up(struct diag *d, void *library, const char *path, const char *name, void *slot) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        return fail(d, QN_EDEVICE, "%s has no %s: the NVIDIA driver is too old (want CUDA %d.%d)",
                    path, name, CUDA_MIN_DRIVER / 1000, CUDA_MIN_DRIVER % 1000 / 10);
    }
    memcpy(slot, &symbol, sizeof symbol);
    return QN_OK;
}

static int fill_table(struct diag *d, const char *path, struct cuda_api *api) {
#define X(name, arguments) TRY(look_up(d, api->library, path, #name, &api->name));
    CUDA_CALLS(X)
#undef X
    return QN_OK;
}

int cuda_api_open(struct diag *d, const char *path, struct cuda_api *api) {
    *api = (struct cuda_api){0};
    if (path == NULL) path = "libcuda.so.1";
    api->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (api->library == NULL) {
        const char *why = dlerror();
        return fail(d, QN_EDEVICE, "no NVIDIA driver here: %s", why != NULL ? why : path);
    }
    int rc = fill_table(d, path, api);
    if (rc != QN_OK) cuda_api_close(api);
    return rc;
}

void cuda_api_close(struct cuda_api *api) {
    if (api->library != NULL) dlclose(api->library);
    *api = (struct cuda_api){0};
}

int cuda_check(struct diag *d, const struct cuda_api *api, const char *call, cu_result result) {
    if (result == CU_SUCCESS) return QN_OK;
    const char *name = NULL, *text = NULL;
    if (api->cuGetErrorName(result, &name) != CU_SUCCESS || name == NULL) name = "unknown error";
    if (api->cuGetErrorString(result, &text) != CU_SUCCESS || text == NULL) text = "no description";
    int code = result == CU_ERROR_OUT_OF_MEMORY ? QN_ENOMEM : QN_EDEVICE;
    return fail(d, code, "%s: %s (%s, %d)", call, text, name, result);
}

static int initialise(struct diag *d, const struct cuda_api *api) {
    cu_result r = api->cuInit(0);
    if (r == CU_ERROR_NO_DEVICE) {
        return fail(d, QN_EDEVICE, "the NVIDIA driver is installed but shows no GPU (cuInit)");
    }
    if (r == CU_ERROR_STUB_LIBRARY) {
        return fail(d, QN_EDEVICE, "libcuda.so.1 is the toolkit's stub, not a driver (cuInit)");
    }
    return cuda_check(d, api, "cuInit", r);
}

int cuda_device_count(struct diag *d, const struct cuda_api *api, int *n) {
    *n = 0;
    TRY(initialise(d, api));
    CU(d, api, cuDeviceGetCount, n);
    if (*n < 1) return fail(d, QN_EDEVICE, "the NVIDIA driver is installed but shows no GPU");
    return QN_OK;
}

static int read_attributes(struct diag *d, const struct cuda_api *api, struct cuda_device *v) {
    const struct {
        int attribute, *value;
    } wanted[] = {
        {CU_ATTR_COMPUTE_CAPABILITY_MAJOR, &v->major},
        {CU_ATTR_COMPUTE_CAPABILITY_MINOR, &v->minor},
        {CU_ATTR_MULTIPROCESSOR_COUNT, &v->n_sms},
        {CU_ATTR_MAX_SHARED_PER_BLOCK_OPTIN, &v->shared_bytes},
        {CU_ATTR_L2_CACHE_SIZE, &v->l2_bytes},
        {CU_ATTR_MAX_PERSISTING_L2_CACHE_SIZE, &v->l2_kept_bytes},
        {CU_ATTR_MAX_ACCESS_POLICY_WINDOW_SIZE, &v->l2_window_bytes},
        {CU_ATTR_MEMORY_BUS_WIDTH, &v->memory_bus_bits},
        {CU_ATTR_CLOCK_RATE, &v->clock_khz},
        {CU_ATTR_MEMORY_CLOCK_RATE, &v->memory_clock_khz},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        CU(d, api, cuDeviceGetAttribute, wanted[i].value, wanted[i].attribute, v->handle);
    }
    size_t total = 0;
    CU(d, api, cuDeviceTotalMem_v2, &total, v->handle);
    v->total_bytes = total;
    return QN_OK;
}

static int check_fit(struct diag *d, const struct cuda_api *api, const struct cuda_device *v) {
    if (v->major < 8) {
        return fail(d, QN_EDEVICE, "%s (sm_%d%d) is too old: quern wants sm_80 or newer", v->name,
                    v->major, v->minor);
    }
    int cooperative = 0;
    CU(d, api, cuDeviceGetAttribute, &cooperative, CU_ATTR_COOPERATIVE_LAUNCH, v->handle);
    if (!cooperative) {
        return fail(d, QN_EDEVICE, "%s does not support cooperative launches", v->name);
    }
    return QN_OK;
}

int cuda_device_find(struct diag *d, const struct cuda_api *api, int ordinal,
                     struct cuda_device *device) {
    *device = (struct cuda_device){.ordinal = ordinal};
    int n = 0;
    TRY(cuda_device_count(d, api, &n));
    CU(d, api, cuDriverGetVersion, &device->driver_version);
    if (device->driver_version < CUDA_MIN_DRIVER) {
        return fail(d, QN_EDEVICE, "the NVIDIA driver supports CUDA %d.%d only; quern wants %d.%d",
                    device->driver_version / 1000, device->driver_version % 1000 / 10,
                    CUDA_MIN_DRIVER / 1000, CUDA_MIN_DRIVER % 1000 / 10);
    }
    if (ordinal < 0 || ordinal >= n) {
        return fail(d, QN_EINVAL, "device %d: the driver shows %d device%s (from 0)", ordinal, n,
                    n == 1 ? "" : "s");
    }
    CU(d, api, cuDeviceGet, &device->handle, ordinal);
    CU(d, api, cuDeviceGetName, device->name, (int)sizeof device->name - 1, device->handle);
    TRY(read_attributes(d, api, device));
    return check_fit(d, api, device);
}

double cuda_device_bytes_per_ns(const struct cuda_device *device) {
    return 2e-6 * device->memory_clock_khz * device->memory_bus_bits / 8 / device->n_sms;
}

void cuda_device_arch(const struct cuda_device *device, char arch[16]) {
    /* The "a" targets carry the instructions that exist on one generation only (wgmma, tcgen05);
     * their images run on exactly that capability, which is what is compiled for here anyway. */
    const char *suffix = device->major >= 9 ? "a" : "";
    snprintf(arch, 16, "sm_%d%d%s", device->major, device->minor, suffix);
}
