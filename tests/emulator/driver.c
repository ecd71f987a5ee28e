/* driver.c - the calls of codegen/cuda_driver.h, played on the CPU. Device memory is the host's;
 * a cooperative launch runs on a thread of its own, everything else at once.
 *
 * It is stricter than a driver about which GPU is meant: memory, streams, events and kernels may be
 * used only while the context that they were made in is the thread's current one, and a context
 * that is destroyed must have nothing left. */
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
    CU_ERROR_INVALID_CONTEXT = 201,
    CU_ERROR_INVALID_HANDLE = 400,
    CU_ERROR_NOT_FOUND = 500,
    MAX_DEVICES = 8,
    MAX_CONTEXTS = 8, /* current on a thread, one above the other */
};

struct CUctx_st {
    cu_device device;
    int n_things; /* atomic: memory, streams, events, modules made in it */
};
struct CUmod_st {
    cu_context context;
    void *library;
    int file;
    cu_function functions; /* that were asked for */
};
struct CUfunc_st {
    cu_function next;
    cu_context context;
    void (*entry)(void **arguments);
    unsigned parameter_bytes;
};
struct CUevent_st {
    cu_context context;
    uint64_t time_ns;
    struct CUstream_st *stream; /* recorded there */
};
struct CUstream_st {
    cu_context context;
    pthread_t thread;
    bool launched;
    uint32_t running; /* atomic */
    struct launch launch;
    void *arguments[1];
    char parameter[4096]; /* of the kernel, copied: it has one */
};

static uint64_t taken_bytes[MAX_DEVICES]; /* atomic */
static __thread struct {
    cu_context at[MAX_CONTEXTS];
    int n;
} contexts; /* that are current on this thread; the last one counts */

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static uint64_t capacity(void) {
    return (uint64_t)setting("QN_EMU_GIB", 1) << 30;
}

#define X(name, arguments) __attribute__((visibility("default"))) cu_result name arguments;
CUDA_CALLS(X)
#undef X

static int device_count(void) {
    long n = setting("QN_EMU_DEVICES", 1);
    return n < 1 ? 1 : n > MAX_DEVICES ? MAX_DEVICES : (int)n;
}

/* $QN_EMU_ARCH: of all devices, or a list of one each. */
static int arch_of(cu_device device) {
    const char *text = getenv("QN_EMU_ARCH");
    for (; text != NULL && device > 0; device--) {
        const char *comma = strchr(text, ',');
        if (comma == NULL) break;
        text = comma + 1;
    }
    return text != NULL ? atoi(text) : 90;
}

static cu_context current(void) {
    return contexts.n > 0 ? contexts.at[contexts.n - 1] : NULL;
}

/* A call about something of a context, which is to be current. */
#define IN(context_of)                                                                             \
    do {                                                                                           \
        if ((context_of) != current()) return CU_ERROR_INVALID_HANDLE;                             \
    } while (0)

/* The current context has a thing more, or less. */
static cu_result note(int more) {
    if (current() == NULL) return CU_ERROR_INVALID_CONTEXT;
    __atomic_fetch_add(&current()->n_things, more, __ATOMIC_RELAXED);
    return CU_SUCCESS;
}

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
    *n = device_count();
    return CU_SUCCESS;
}

cu_result cuDeviceGet(cu_device *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < device_count() ? CU_SUCCESS : CU_ERROR_INVALID_VALUE;
}

cu_result cuDeviceGetName(char *name, int bytes, cu_device device) {
    (void)device;
    snprintf(name, (size_t)bytes, "emulated GPU");
    return CU_SUCCESS;
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device) {
    const int arch = arch_of(device);
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
    (void)flags;
    *context = calloc(1, sizeof **context);
    if (!*context) return CU_ERROR_OUT_OF_MEMORY;
    (*context)->device = device;
    return cuCtxPushCurrent_v2(*context);
}

cu_result cuCtxDestroy_v2(cu_context context) {
    if (context->n_things != 0) {
        fprintf(stderr, "emulated GPU %d: a context ends with %d things in it\n", context->device,
                context->n_things);
        abort();
    }
    if (context == current()) contexts.n--;
    free(context);
    return CU_SUCCESS;
}

cu_result cuCtxPushCurrent_v2(cu_context context) {
    if (contexts.n == MAX_CONTEXTS) return CU_ERROR_INVALID_CONTEXT;
    contexts.at[contexts.n++] = context;
    return CU_SUCCESS;
}

cu_result cuCtxPopCurrent_v2(cu_context *context) {
    *context = current();
    if (*context == NULL) return CU_ERROR_INVALID_CONTEXT;
    contexts.n--;
    return CU_SUCCESS;
}

/* ---- memory ---- */

/* In front of every allocation: its size, and whose it is. */
enum { HEAD_BYTES = 256 };
struct head {
    size_t bytes;
    cu_context context;
};

/* Of the current context's device. */
static void *take(size_t bytes) {
    const struct head head = {bytes, current()};
    if (head.context == NULL) return NULL;
    uint64_t *taken = &taken_bytes[head.context->device];
    uint64_t before = __atomic_fetch_add(taken, bytes, __ATOMIC_RELAXED);
    char *p =
        before + bytes > capacity()
            ? NULL
            : aligned_alloc(HEAD_BYTES, (bytes + 2 * HEAD_BYTES - 1) / HEAD_BYTES * HEAD_BYTES);
    if (!p) {
        __atomic_fetch_sub(taken, bytes, __ATOMIC_RELAXED);
        return NULL;
    }
    note(1);
    memcpy(p, &head, sizeof head);
    memset(p + HEAD_BYTES, 0xff, bytes); /* not a number: what nobody wrote shows */
    return p + HEAD_BYTES;
}

static cu_result give(void *address) {
    struct head head;
    char *p = (char *)address - HEAD_BYTES;
    memcpy(&head, p, sizeof head);
    IN(head.context);
    __atomic_fetch_sub(&taken_bytes[head.context->device], head.bytes, __ATOMIC_RELAXED);
    free(p);
    return note(-1);
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    if (current() == NULL) return CU_ERROR_INVALID_CONTEXT;
    *total_bytes = capacity();
    *free_bytes = *total_bytes - __atomic_load_n(&taken_bytes[current()->device], __ATOMIC_RELAXED);
    return CU_SUCCESS;
}

cu_result cuMemAlloc_v2(cu_pointer *address, size_t bytes) {
    void *p = take(bytes);
    *address = (cu_pointer)(uintptr_t)p;
    return p ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFree_v2(cu_pointer address) {
    return address ? give((void *)(uintptr_t)address) : CU_SUCCESS;
}

cu_result cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    *address = take(bytes);
    if (*address) memset(*address, 0, bytes);
    return *address ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}

cu_result cuMemFreeHost(void *address) {
    return address ? give(address) : CU_SUCCESS;
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
    if (note(1) != CU_SUCCESS) return CU_ERROR_INVALID_CONTEXT;
    *stream = calloc(1, sizeof **stream);
    if (!*stream) return CU_ERROR_OUT_OF_MEMORY;
    (*stream)->context = current();
    return CU_SUCCESS;
}

cu_result cuStreamSetAttribute(cu_stream stream, int attribute,
                               const union cu_stream_value *value) {
    (void)attribute, (void)value;
    IN(stream->context);
    return CU_SUCCESS;
}

cu_result cuCtxSetLimit(int limit, size_t value) {
    (void)limit, (void)value;
    return CU_SUCCESS;
}

cu_result cuStreamDestroy_v2(cu_stream stream) {
    IN(stream->context);
    stream_join(stream);
    free(stream);
    return note(-1);
}

cu_result cuStreamSynchronize(cu_stream stream) {
    IN(stream->context);
    stream_join(stream);
    return CU_SUCCESS;
}

cu_result cuStreamQuery(cu_stream stream) {
    IN(stream->context);
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
    IN(stream->context);
    stream_join(stream);
    if (bytes < 64 && to % sizeof(uint32_t) == 0)
        copy_words((void *)(uintptr_t)to, from, bytes);
    else
        memcpy((void *)(uintptr_t)to, from, bytes);
    return CU_SUCCESS;
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_pointer from, size_t bytes, cu_stream stream) {
    IN(stream->context);
    stream_join(stream);
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CU_SUCCESS;
}

cu_result cuMemsetD8Async(cu_pointer to, unsigned char value, size_t bytes, cu_stream stream) {
    IN(stream->context);
    stream_join(stream);
    memset((void *)(uintptr_t)to, value, bytes);
    return CU_SUCCESS;
}

cu_result cuEventCreate(cu_event *event, unsigned flags) {
    (void)flags;
    if (note(1) != CU_SUCCESS) return CU_ERROR_INVALID_CONTEXT;
    *event = calloc(1, sizeof **event);
    if (!*event) return CU_ERROR_OUT_OF_MEMORY;
    (*event)->context = current();
    return CU_SUCCESS;
}

cu_result cuEventRecord(cu_event event, cu_stream stream) {
    IN(event->context);
    IN(stream->context);
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
    IN(event->context);
    free(event);
    return note(-1);
}

/* ---- kernels: an image is a shared object that nvrtc.c made, its length in front ---- */

cu_result cuModuleLoadData(cu_module *module, const void *image) {
    char path[64];
    uint64_t bytes;
    if (current() == NULL) return CU_ERROR_INVALID_CONTEXT;
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
    **module = (struct CUmod_st){.context = current(), .library = library, .file = file};
    return note(1);
}

cu_result cuModuleUnload(cu_module module) {
    IN(module->context);
    for (cu_function f; (f = module->functions) != NULL; free(f)) module->functions = f->next;
    dlclose(module->library);
    close(module->file);
    free(module);
    return note(-1);
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
    char symbol[128];
    cu_function f = NULL;
    IN(module->context);
    snprintf(symbol, sizeof symbol, "emu_entry_%s", name);
    void *entry = dlsym(module->library, symbol);
    snprintf(symbol, sizeof symbol, "emu_bytes_%s", name);
    const unsigned *bytes = dlsym(module->library, symbol);
    if (!entry || !bytes || *bytes > sizeof((cu_stream)0)->parameter) return CU_ERROR_NOT_FOUND;
    f = calloc(1, sizeof *f);
    if (!f) return CU_ERROR_OUT_OF_MEMORY;
    memcpy(&f->entry, &entry, sizeof entry);
    f->context = module->context;
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
    IN(function->context);
    IN(stream->context);
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
    IN(function->context);
    IN(stream->context);
    if (grid_y * grid_z * block_y * block_z != 1) return CU_ERROR_INVALID_VALUE;
    if (grid_x > (unsigned)setting("QN_EMU_SMS", 4)) return CU_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    prepare(stream, function, grid_x, block_x, shared_bytes, arguments, true);
    __atomic_store_n(&stream->running, 1, __ATOMIC_RELAXED);
    if (pthread_create(&stream->thread, NULL, run, stream) != 0) return CU_ERROR_OUT_OF_MEMORY;
    stream->launched = true;
    return CU_SUCCESS;
}
