/* cuda_driver.h - the part of NVIDIA's driver API that quern calls, found at run time.
 *
 * libcuda.so.1 comes with the driver and is dlopen-ed, so that one binary runs with or without a
 * GPU and is built without CUDA's headers. What is declared here follows the driver API reference
 * ("CUDA Driver API", modules Initialization, Device, Context, Module, Memory, Stream, Event,
 * Execution, Occupancy); numbers are that document's.
 *
 * CUDA_CALLS is the one list of entry points: from it come the table, the symbol look-up and the
 * name in every error message. Tests put functions of their own into the table.
 */
#ifndef QN_CODEGEN_CUDA_DRIVER_H
#define QN_CODEGEN_CUDA_DRIVER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_pointer; /* an address on the device */
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;

/* CUresult: the values that are told apart here. */
enum {
    CU_SUCCESS = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_STUB_LIBRARY = 34,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_NO_BINARY_FOR_GPU = 209,
    CU_ERROR_NOT_READY = 600,
    CU_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
};

/* CUdevice_attribute */
enum {
    CU_ATTR_CLOCK_RATE = 13, /* kHz */
    CU_ATTR_MULTIPROCESSOR_COUNT = 16,
    CU_ATTR_MEMORY_CLOCK_RATE = 36, /* kHz */
    CU_ATTR_MEMORY_BUS_WIDTH = 37,  /* bits */
    CU_ATTR_L2_CACHE_SIZE = 38,
    CU_ATTR_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_ATTR_COMPUTE_CAPABILITY_MINOR = 76,
    CU_ATTR_COOPERATIVE_LAUNCH = 95,
    CU_ATTR_MAX_SHARED_PER_BLOCK_OPTIN = 97,
    CU_ATTR_MAX_PERSISTING_L2_CACHE_SIZE = 108,
    CU_ATTR_MAX_ACCESS_POLICY_WINDOW_SIZE = 109,
};

/* CUlimit */
enum { CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6 };

/* CUstreamAttrID and its value: L2 keeps lines of a window of addresses that the stream's kernels
 * access, a share hit_ratio of them. */
enum { CU_STREAM_ACCESS_POLICY_WINDOW = 1 };
enum { CU_ACCESS_NORMAL = 0, CU_ACCESS_PERSISTING = 2 };
union cu_stream_value {
    struct {
        void *base;
        size_t bytes;
        float hit_ratio;
        int hit, miss; /* CU_ACCESS_... */
    } window;
    char all[64];
};

/* CUfunction_attribute */
enum {
    CU_FUNC_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_SHARED_SIZE_BYTES = 1,
    CU_FUNC_LOCAL_SIZE_BYTES = 3,
    CU_FUNC_NUM_REGS = 4,
    CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

/* Flags of cuCtxCreate, cuMemHostAlloc, cuStreamCreate, cuEventCreate. */
enum {
    CU_CTX_SCHED_BLOCKING_SYNC = 4,
    CU_CTX_MAP_HOST = 8,
    CU_HOST_PORTABLE = 1,
    CU_HOST_DEVICEMAP = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_BLOCKING_SYNC = 1,
};

/* X(name of the symbol, arguments) */
#define CUDA_CALLS(X)                                                                              \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGetErrorName, (cu_result error, const char **text))                                        \
    X(cuGetErrorString, (cu_result error, const char **text))                                      \
    X(cuDeviceGetCount, (int *n))                                                                  \
    X(cuDeviceGet, (cu_device * device, int ordinal))                                              \
    X(cuDeviceGetName, (char *name, int bytes, cu_device device))                                  \
    X(cuDeviceGetAttribute, (int *value, int attribute, cu_device device))                         \
    X(cuDeviceTotalMem_v2, (size_t * bytes, cu_device device))                                     \
    X(cuCtxCreate_v2, (cu_context * context, unsigned flags, cu_device device))                    \
    X(cuCtxDestroy_v2, (cu_context context))                                                       \
    X(cuCtxPushCurrent_v2, (cu_context context))                                                   \
    X(cuCtxPopCurrent_v2, (cu_context * context))                                                  \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                                \
    X(cuMemAlloc_v2, (cu_pointer * address, size_t bytes))                                         \
    X(cuMemFree_v2, (cu_pointer address))                                                          \
    X(cuMemHostAlloc, (void **address, size_t bytes, unsigned flags))                              \
    X(cuMemFreeHost, (void *address))                                                              \
    X(cuMemHostGetDevicePointer_v2, (cu_pointer * on_device, void *address, unsigned flags))       \
    X(cuMemcpyHtoDAsync_v2, (cu_pointer to, const void *from, size_t bytes, cu_stream stream))     \
    X(cuMemcpyDtoHAsync_v2, (void *to, cu_pointer from, size_t bytes, cu_stream stream))           \
    X(cuMemsetD8Async, (cu_pointer to, unsigned char value, size_t bytes, cu_stream stream))       \
    X(cuModuleLoadData, (cu_module * module, const void *image))                                   \
    X(cuModuleUnload, (cu_module module))                                                          \
    X(cuModuleGetFunction, (cu_function * function, cu_module module, const char *name))           \
    X(cuFuncGetAttribute, (int *value, int attribute, cu_function function))                       \
    X(cuFuncSetAttribute, (cu_function function, int attribute, int value))                        \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                 \
      (int *n, cu_function function, int block_threads, size_t shared_bytes))                      \
    X(cuLaunchKernel, (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,    \
                       unsigned block_x, unsigned block_y, unsigned block_z,                       \
                       unsigned shared_bytes, cu_stream stream, void **arguments, void **extra))   \
    X(cuLaunchCooperativeKernel,                                                                   \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream,                \
       void **arguments))                                                                          \
    X(cuStreamCreate, (cu_stream * stream, unsigned flags))                                        \
    X(cuCtxSetLimit, (int limit, size_t value))                                                    \
    X(cuStreamSetAttribute, (cu_stream stream, int attribute, const union cu_stream_value *value)) \
    X(cuStreamDestroy_v2, (cu_stream stream))                                                      \
    X(cuStreamSynchronize, (cu_stream stream))                                                     \
    X(cuStreamQuery, (cu_stream stream))                                                           \
    X(cuEventCreate, (cu_event * event, unsigned flags))                                           \
    X(cuEventRecord, (cu_event event, cu_stream stream))                                           \
    X(cuEventQuery, (cu_event event))                                                              \
    X(cuEventSynchronize, (cu_event event))                                                        \
    X(cuEventElapsedTime, (float *milliseconds, cu_event start, cu_event end))                     \
    X(cuEventDestroy_v2, (cu_event event))

struct cuda_api {
    void *library; /* dlopen's handle; NULL when the table was filled by a test */
#define X(name, arguments) cu_result(*name) arguments;
    CUDA_CALLS(X)
#undef X
};

/* The oldest driver that understands what NVRTC 12 and the kernels need (CUDA 12.0). */
enum { CUDA_MIN_DRIVER = 12000 };

/* One GPU as the driver describes it. */
struct cuda_device {
    char name[128];
    int ordinal; /* as CUDA_VISIBLE_DEVICES leaves them, from 0 */
    cu_device handle;
    int major, minor; /* compute capability: 9, 0 */
    int n_sms;
    int shared_bytes; /* shared memory that one block can have */
    int l2_bytes;
    int l2_kept_bytes;    /* bytes of L2 that can be set aside for lines that stay; 0: none */
    int l2_window_bytes;  /* largest window of addresses for these lines */
    int clock_khz;        /* 0: not told */
    int memory_clock_khz; /* 0: not told */
    int memory_bus_bits;
    int driver_version;   /* 13000 is CUDA 13.0 */
    uint64_t total_bytes; /* device memory */
};

/* Loads the driver's library and looks up every call. path NULL: "libcuda.so.1". Errors: QN_EDEVICE
 * with one line that says what is missing. */
int cuda_api_open(struct diag *d, const char *path, struct cuda_api *api);
void cuda_api_close(struct cuda_api *api);

/* Initialises the driver and describes device `ordinal`. Errors: QN_EDEVICE (no device, driver too
 * old, architecture older than sm_80, no cooperative launch), QN_EINVAL (ordinal out of range). */
int cuda_device_find(struct diag *d, const struct cuda_api *api, int ordinal,
                     struct cuda_device *device);
/* How many devices the driver shows; QN_EDEVICE when there are none. */
int cuda_device_count(struct diag *d, const struct cuda_api *api, int *n);

/* Nominal memory bandwidth of each multiprocessor; 0: the driver does not tell it. */
double cuda_device_bytes_per_ns(const struct cuda_device *device);

/* The NVRTC name of the device's real architecture: "sm_80", "sm_90a", "sm_100a". */
void cuda_device_arch(const struct cuda_device *device, char arch[16]);

/* Turns a result into a status: QN_OK, QN_ENOMEM, or QN_EDEVICE with the call's name, the error's
 * name and the driver's words for it. */
int cuda_check(struct diag *d, const struct cuda_api *api, const char *call, cu_result result);

/* TRY over one checked call: CU(d, api, cuMemAlloc_v2, &pointer, bytes). */
#define CU(d, api, call, ...) TRY(cuda_check((d), (api), #call, (api)->call(__VA_ARGS__)))
#define CU_GOTO(rc, label, d, api, call, ...)                                                      \
    TRY_GOTO(rc, label, cuda_check((d), (api), #call, (api)->call(__VA_ARGS__)))

#endif
