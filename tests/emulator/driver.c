/* driver.c - the calls of codegen/cuda_driver.h, played on the CPU. Device memory is the host's;
 * a cooperative launch runs on a thread of its own, everything else at once. */
#include "codegen/cuda_driver.h"
#include "launch.h"
#include "machine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    CU_ERROR_INVALID_VALUE = 1,
    CU_ERROR_INVALID_IMAGE = 200,
    CU_ERROR_NOT_FOUND = 500,
};

struct CUctx_st {
    int unused;
};
struct CUmod_st {
    void *library;
    int file;
    cu_function functions; /* that were asked for */
};
struct CUfunc_st {
    cu_function next;
    void (*entry)(void **arguments);
    unsigned parameter_bytes;
};
struct CUevent_st {
    uint64_t time_ns;
    struct CUstream_st *stream; /* recorded there */
};
struct CUstream_st {
    pthread_t thread;
    bool launched;
    uint32_t running; /* atomic */
    struct launch launch;
    void *arguments[1];
    char parameter[4096]; /* of the kernel, copied: it has one */
};

static uint64_t taken_bytes; /* atomic */

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static uint64_t capacity(void) {
    return (uint64_t)setting("QN_EMU_GIB", 8) << 30;
}

#define X(name, arguments) __attribute__((visibility("default"))) cu_result name arguments;
CUDA_CALLS(X)
#undef X

/* ---- the device ---- */

cu_result cuInit(unsigned flags) {
    (void)flags;
    return CU_SUCCESS;
}

cu_result cuDriverGetVersion(int *version) {
    *version = 13000;
    return CU_SUCCESS;
}

cu_result cuGetErrorName(cu_result error, const char **text) {
    *text = error == CU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_EMULATED";
    return CU_SUCCESS;
}

cu_result cuGetErrorString(cu_result error, const char **text) {
    *text = error == CU_ERROR_OUT_OF_MEMORY ? "out of memory" : "refused by the emulated GPU";
    return CU_SUCCESS;
}

cu_result cuDeviceGetCount(int *n) {
    *n = 1;
    return CU_SUCCESS;
}

cu_result cuDeviceGet(cu_device *device, int ordinal) {
    *device = ordinal;
    return CU_SUCCESS;
}

cu_result cuDeviceGetName(char *name, int bytes, cu_device device) {
    (void)device;
    snprintf(name, (size_t)bytes, "emulated GPU");
    return CU_SUCCESS;
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device) {
    int arch = (int)setting("QN_EMU_ARCH", 90);
    (void)device;
    switch (attribute) {
    case CU_ATTR_MULTIPROCESSOR_COUNT: *value = (int)setting("QN_EMU_SMS", 4); break;
    case CU_ATTR_COMPUTE_CAPABILITY_MAJOR: *value = arch / 10; break;
    case CU_ATTR_COMPUTE_CAPABILITY_MINOR: *value = arch % 10; break;
    case CU_ATTR_COOPERATIVE_LAUNCH: *value = 1; break;
    case CU_ATTR_MAX_SHARED_PER_BLOCK_OPTIN: *value = (arch >= 90 ? 227 : 163) << 10; break;
    case CU_ATTR_L2_CACHE_SIZE: *value = 1 << 20; break;
    /* GB/s, on paper: by a bus of 5,120 bits, twice a clock. */
    case CU_ATTR_MEMORY_CLOCK_RATE:
        *value = (int)(setting("QN_EMU_GBPS", 0) * 10000 / 64 * 5);
        break;
    case CU_ATTR_MEMORY_BUS_WIDTH: *value = 5120; break;
    default: *value = 0;
    }
    return CU_SUCCESS;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device) {
    (void)device;
    *bytes = capacity();
    return CU_SUCCESS;
}

cu_result cuCtxCreate_v2(cu_context *context, unsigned flags, cu_device device) {
    (void)flags, (void)device;
    *context = calloc(1, sizeof **context);
    return *context ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuCtxDestroy_v2(cu_context context) {
    free(context);
    return CU_SUCCESS;
}

cu_result cuCtxPushCurrent_v2(cu_context context) {
    (void)context;
    return CU_SUCCESS;
}

cu_result cuCtxPopCurrent_v2(cu_context *context) {
    *context = NULL;
    return CU_SUCCESS;
}

/* ---- memory ---- */

/* In front of every allocation: its size. */
enum { HEAD_BYTES = 256 };

static void *take(size_t bytes) {
    uint64_t before = __atomic_fetch_add(&taken_bytes, bytes, __ATOMIC_RELAXED);
    char *p =
        before + bytes > capacity()
            ? NULL
            : aligned_alloc(HEAD_BYTES, (bytes + 2 * HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES);
    if (!p) {
        __atomic_fetch_sub(&taken_bytes, bytes, __ATOMIC_RELAXED);
        return NULL;
    }
    memcpy(p, &bytes, sizeof bytes);
    memset(p + HEAD_BYTES, 0xff, bytes); /* not a number: what nobody wrote shows */
    return p + HEAD_BYTES;
}

static void give(void *address) {
    size_t bytes;
    char *p = (char *)address - HEAD_BYTES;
    memcpy(&bytes, p, sizeof bytes);
    __atomic_fetch_sub(&taken_bytes, bytes, __ATOMIC_RELAXED);
    free(p);
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = capacity();
    *free_bytes = *total_bytes - __atomic_load_n(&taken_bytes, __ATOMIC_RELAXED);
    return CU_SUCCESS;
}

cu_result cuMemAlloc_v2(cu_pointer *address, size_t bytes) {
    void *p = take(bytes);
    *address = (cu_pointer)(uintptr_t)p;
    return p ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFree_v2(cu_pointer address) {
    if (address) give((void *)(uintptr_t)address);
    return CU_SUCCESS;
}

cu_result cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    *address = take(bytes);
    if (*address) memset(*address, 0, bytes);
    return *address ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFreeHost(void *address) {
    if (address) give(address);
    return CU_SUCCESS;
}

cu_result cuMemHostGetDevicePointer_v2(cu_pointer *on_device, void *address, unsigned flags) {
    (void)flags;
    *on_device = (cu_pointer)(uintptr_t)address;
    return CU_SUCCESS;
}

/* ---- streams ---- */

static void stream_join(cu_stream s) {
    if (!s || !s->launched) return;
    pthread_join(s->thread, NULL);
    s->launched = false;
}

cu_result cuStreamCreate(cu_stream *stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    return *stream ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuStreamSetAttribute(cu_stream stream, int attribute,
                               const union cu_stream_value *value) {
    (void)stream, (void)attribute, (void)value;
    return CU_SUCCESS;
}

cu_result cuCtxSetLimit(int limit, size_t value) {
    (void)limit, (void)value;
    return CU_SUCCESS;
}

cu_result cuStreamDestroy_v2(cu_stream stream) {
    stream_join(stream);
    free(stream);
    return CU_SUCCESS;
}

cu_result cuStreamSynchronize(cu_stream stream) {
    stream_join(stream);
    return CU_SUCCESS;
}

cu_result cuStreamQuery(cu_stream stream) {
    if (__atomic_load_n(&stream->running, __ATOMIC_ACQUIRE)) return CU_ERROR_NOT_READY;
    stream_join(stream);
    return CU_SUCCESS;
}

/* Words go whole, as on the bus: kernels that run may be polling them. */
static void copy_words(void *to, const void *from, size_t bytes) {
    uint32_t *t = to;
    const char *f = from;
    for (; bytes >= sizeof *t; bytes -= sizeof *t, f += sizeof *t) {
        uint32_t word;
        memcpy(&word, f, sizeof word);
        __atomic_store_n(t++, word, __ATOMIC_RELEASE);
    }
    memcpy(t, f, bytes);
}

cu_result cuMemcpyHtoDAsync_v2(cu_pointer to, const void *from, size_t bytes, cu_stream stream) {
    stream_join(stream);
    if (bytes < 64 && to % sizeof(uint32_t) == 0)
        copy_words((void *)(uintptr_t)to, from, bytes);
    else
        memcpy((void *)(uintptr_t)to, from, bytes);
    return CU_SUCCESS;
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream) {
    stream_join(stream);
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CU_SUCCESS;
}

cu_result cuMemsetD8Async(cu_pointer to, unsigned char value, size_t bytes, cu_stream stream) {
    stream_join(stream);
    memset((void *)(uintptr_t)to, value, bytes);
    return CU_SUCCESS;
}

cu_result cuEventCreate(cu_event *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuEventRecord(cu_event event, cu_stream stream) {
    event->stream = stream;
    event->time_ns = emu_now_ns();
    return CU_SUCCESS;
}

cu_result cuEventQuery(cu_event event) {
    return event->stream ? cuStreamQuery(event->stream) : CU_SUCCESS;
}

cu_result cuEventSynchronize(cu_event event) {
    stream_join(event->stream);
    return CU_SUCCESS;
}

cu_result cuEventElapsedTime(float *milliseconds, cu_event start, cu_event end) {
    *milliseconds = (float)(end->time_ns - start->time_ns) * 1e-6f;
    return CU_SUCCESS;
}

cu_result cuEventDestroy_v2(cu_event event) {
    free(event);
    return CU_SUCCESS;
}

/* ---- kernels: an image is a shared object that nvrtc.c made, its length in front ---- */

cu_result cuModuleLoadData(cu_module *module, const void *image) {
    char path[64];
    uint64_t bytes;
    memcpy(&bytes, image, sizeof bytes);
    int file = memfd_create("kernels", MFD_CLOEXEC);
    if (file < 0 || write(file, (const char *)image + sizeof bytes, bytes) != (ssize_t)bytes) {
        if (file >= 0) close(file);
        return CU_ERROR_INVALID_IMAGE;
    }
    /* A name under which another process, a symbolizer, finds it too. */
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *module = library ? calloc(1, sizeof **module) : NULL;
    if (!*module) {
        fprintf(stderr, "emulated GPU: %s\n", library ? "out of memory" : dlerror());
        close(file);
        return CU_ERROR_INVALID_IMAGE;
    }
    **module = (struct CUmod_st){.library = library, .file = file};
    return CU_SUCCESS;
}

cu_result cuModuleUnload(cu_module module) {
    for (cu_function f; (f = module->functions) != NULL; free(f)) module->functions = f->next;
    dlclose(module->library);
    close(module->file);
    free(module);
    return CU_SUCCESS;
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
    char symbol[128];
    cu_function f = NULL;
    snprintf(symbol, sizeof symbol, "emu_entry_%s", name);
    void *entry = dlsym(module->library, symbol);
    snprintf(symbol, sizeof symbol, "emu_bytes_%s", name);
    const unsigned *bytes = dlsym(module->library, symbol);
    if (!entry || !bytes || *bytes > sizeof((cu_stream)0)->parameter) return CU_ERROR_NOT_FOUND;
    f = calloc(1, sizeof *f);
    if (!f) return CU_ERROR_OUT_OF_MEMORY;
    memcpy(&f->entry, &entry, sizeof entry);
    f->parameter_bytes = *bytes;
    f->next = module->functions;
    *function = module->functions = f;
    return CU_SUCCESS;
}

cu_result cuFuncGetAttribute(int *value, int attribute, cu_function function) {
    (void)function;
    *value = attribute == CU_FUNC_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CU_SUCCESS;
}

cu_result cuFuncSetAttribute(cu_function function, int attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return CU_SUCCESS;
}

cu_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, cu_function function,
                                                      int block_threads, size_t shared_bytes) {
    (void)function, (void)block_threads, (void)shared_bytes;
    *n = 1;
    return CU_SUCCESS;
}

static void prepare(cu_stream s, cu_function f, unsigned grid, unsigned threads, unsigned shared,
                    void **arguments, bool together) {
    stream_join(s);
    memcpy(s->parameter, arguments[0], f->parameter_bytes);
    s->arguments[0] = s->parameter;
    s->launch = (struct launch){.entry = f->entry,
                                .arguments = s->arguments,
                                .grid = grid,
                                .block_threads = threads,
                                .shared_bytes = shared,
                                .together = together,
                                .seed = (uint64_t)setting("QN_EMU_SEED", 0)};
}

cu_result cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, cu_stream stream, void **arguments, void **extra) {
    (void)extra;
    if (grid_y * grid_z * block_y * block_z != 1) return CU_ERROR_INVALID_VALUE;
    prepare(stream, function, grid_x, block_x, shared_bytes, arguments, false);
    return launch_run(&stream->launch) ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

static void *run(void *stream) {
    cu_stream s = stream;
    if (!launch_run(&s->launch)) fprintf(stderr, "emulated GPU: out of memory\n");
    __atomic_store_n(&s->running, 0, __ATOMIC_RELEASE);
    return NULL;
}

cu_result cuLaunchCooperativeKernel(cu_function function, unsigned grid_x, unsigned grid_y,
                                    unsigned grid_z, unsigned block_x, unsigned block_y,
                                    unsigned block_z, unsigned shared_bytes, cu_stream stream,
                                    void **arguments) {
    if (grid_y * grid_z * block_y * block_z != 1) return CU_ERROR_INVALID_VALUE;
    if (grid_x > (unsigned)setting("QN_EMU_SMS", 4)) return CU_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    prepare(stream, function, grid_x, block_x, shared_bytes, arguments, true);
    __atomic_store_n(&stream->running, 1, __ATOMIC_RELAXED);
    if (pthread_create(&stream->thread, NULL, run, stream) != 0) return CU_ERROR_OUT_OF_MEMORY;
    stream->launched = true;
    return CU_SUCCESS;
}
