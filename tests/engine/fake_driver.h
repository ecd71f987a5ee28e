/* fake_driver.h - a pretended CUDA driver for test_backend_cuda.c: device memory is host memory,
 * and the mega-kernel is a thread that plays all workers of the real protocol (rt_worker.h) in
 * turn. Its tasks compute nothing, but SAMPLE makes a token that can be foretold (next_token).
 * `fake_api` is what the backend takes for the driver, `fake_device` the GPU that it describes,
 * `fake` how it behaves and what it has seen.
 */
#ifndef QN_TESTS_FAKE_DRIVER_H
#define QN_TESTS_FAKE_DRIVER_H

#include "codegen/cuda_upload.h"
#include "codegen/fake_device.h"
#include "engine/backend_cuda.h"
#include "engine/cuda_plan.h"
#include "runtime/rt_append.h"
#include "runtime/rt_worker.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N_WORKERS = 5, N_SLOTS = 4, MAX_LEN = 96, MAX_BATCHED = 8 };

enum mode {
    MODE_WELL,
    MODE_LOSES_A_TASK, /* one worker never comes back from its first LINEAR */
    MODE_SILENT,       /* does nothing until it is told to stop */
    MODE_DEVICE_ERROR, /* ends with an error */
    MODE_NO_LAUNCH,    /* the launch itself fails */
};

static struct {
    enum mode mode;
    uint64_t taken; /* bytes of device memory, of fake_device.total_bytes */
    int n_blocks;   /* allocations, streams, events, contexts that are open */
    int n_retile, n_dummy, n_mega;
    uint32_t shared_bytes;
    uint64_t kept, window; /* of L2, and the addresses that it is for */
    float hit_ratio;
    struct cuda_args args;
    const struct prog_header *program;
    pthread_t kernel;
    bool started;
    uint32_t running;               /* atomic */
    uint64_t n_seen[3 * N_WORKERS]; /* records of each ring in earlier launches */
} fake;

static char retile_function, dummy_function, mega_function, read_function, any_handle;

static int32_t next_token(int32_t token, uint32_t position) {
    return (int32_t)(((uint32_t)token * 31 + position * 7 + 5) % 300);
}

/* SAMPLE as rt_batch.h says it: one token per logit row. */
static void fake_sample(const struct rt_batch *b, const struct prog_task *task) {
    for (uint32_t r = task->row0; r < MIN(task->row1, b->rows.n_logit_rows); r++) {
        uint32_t s = (uint32_t)b->rows.slot[b->rows.logit_row[r]];
        const struct rt_slot slot = b->slots[s];
        const uint32_t p = slot.n_known;
        const int32_t before = b->tokens[(uint64_t)s * b->max_model_len + p - 1];
        b->logprobs[rt_append_at(b, s, &slot)] = -0.5f * (float)p;
        rt_append(b, r, s, &slot, next_token(before, p), 0);
    }
}

/* Whether the task was done; false: its worker is lost. */
static bool fake_task(const struct rt *rt, uint32_t task) {
    const struct prog_task *t = &rt->tasks[task];
    if (fake.mode == MODE_LOSES_A_TASK && t->kind == OP_LINEAR) return false;
    if (t->kind == OP_SAMPLE) fake_sample(rt->batch, t);
    return true;
}

static void run_workers(const struct rt *rt) {
    struct rt_worker w[N_WORKERS];
    bool lost[N_WORKERS] = {false};
    for (uint32_t i = 0; i < rt->n_workers; i++) rt_worker_init(rt, &w[i], i);
    while (!rt_stopped(rt))
        for (uint32_t i = 0; i < rt->n_workers && !rt_stopped(rt); i++) {
            if (lost[i] || !rt_worker_next(rt, &w[i])) continue;
            lost[i] = !fake_task(rt, w[i].task);
            if (!lost[i]) rt_worker_done(rt, &w[i]);
        }
}

/* A GPU's clock has an origin of its own. */
#define CLOCK_AHEAD ((uint64_t)1 << 60)

/* What a loader would say of a task before it begins: one page more under way than its number. */
static void make_pages(struct rt_trace *t, uint32_t worker, const struct rt_trace_record *ready) {
    rt_trace_put(t, 2 * N_WORKERS + worker, ready->time_ns + CLOCK_AHEAD,
                 RT_TRACE_PAGES | RT_TRACE_PAGES_AUX(worker + 1, 2, 8) << 8, ready->what);
}

/* Tasks are recorded by the compute warps, into a ring of their own. A ring that ran over stays as
 * it is. */
static void make_device_ring(struct rt_trace *t, uint32_t ring) {
    struct rt_trace_ring *r = rt_trace_ring(t, ring);
    uint64_t n = r->n, first = fake.n_seen[ring], capacity = (uint64_t)t->mask + 1;
    bool over = n - first > capacity;
    if (over) first = n - capacity;
    struct rt_trace_record *copy = calloc(n - first + 1, sizeof *copy);
    for (uint64_t i = first; i < n; i++) copy[i - first] = *rt_trace_at(t, r, i);
    r->n = first;
    for (uint64_t i = 0; i < n - first; i++) {
        uint32_t kind = copy[i].kind & 0xff;
        bool of_task = kind == RT_TRACE_READY || kind == RT_TRACE_END;
        if (kind == RT_TRACE_READY && !over) make_pages(t, ring, &copy[i]);
        rt_trace_put(t, ring + (of_task && !over ? N_WORKERS : 0), copy[i].time_ns + CLOCK_AHEAD,
                     copy[i].kind, copy[i].what);
    }
    fake.n_seen[ring] = r->n;
    free(copy);
}

static void make_device_trace(struct rt_trace *t) {
    if (t == NULL) return;
    for (uint32_t i = 0; i < N_WORKERS; i++) make_device_ring(t, i);
}

static void *fake_kernel(void *unused) {
    (void)unused;
    const struct rt *rt = &fake.args.rt;
    if (rt->trace != NULL) rt->trace->start_ns = rt_now_ns() + CLOCK_AHEAD;
    if (fake.mode == MODE_SILENT)
        while (!rt_stopped(rt)) rt_pause(1000, 0);
    else if (fake.mode != MODE_DEVICE_ERROR)
        run_workers(rt);
    make_device_trace(rt->trace);
    __atomic_store_n(&fake.running, 0, __ATOMIC_RELEASE);
    return NULL;
}

static cu_result fake_context(cu_context *context, unsigned flags, cu_device device) {
    (void)flags;
    (void)device;
    fake.n_blocks++;
    *context = (cu_context)&any_handle;
    return CU_SUCCESS;
}
static cu_result fake_context_end(cu_context context) {
    (void)context;
    fake.n_blocks--;
    return CU_SUCCESS;
}
static cu_result fake_push(cu_context context) {
    (void)context;
    return CU_SUCCESS;
}
static cu_result fake_pop(cu_context *context) {
    *context = NULL;
    return CU_SUCCESS;
}
static cu_result fake_free_memory(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = fake_device.total_bytes - fake.taken;
    *total_bytes = fake_device.total_bytes;
    return CU_SUCCESS;
}

/* The size goes in front of each block. */
static cu_result fake_alloc(cu_pointer *address, size_t bytes) {
    if (bytes > fake_device.total_bytes - fake.taken) return CU_ERROR_OUT_OF_MEMORY;
    uint64_t *p = aligned_alloc(256, align_up(bytes + 256, 256));
    if (p == NULL) return CU_ERROR_OUT_OF_MEMORY;
    /* Fresh device memory holds anything. A chunk of an upload is written whole before a kernel
     * reads it, and no kernel reads it here: filling 3 GB of these takes ThreadSanitizer 25 s. */
    if (bytes != CUDA_UPLOAD_CHUNK) memset(p, 0xa5, bytes + 256);
    *p = bytes;
    fake.taken += bytes;
    fake.n_blocks++;
    *address = (cu_pointer)(uintptr_t)p + 256;
    return CU_SUCCESS;
}
static cu_result fake_release(cu_pointer address) {
    uint64_t *p = (void *)(uintptr_t)(address - 256);
    fake.taken -= *p;
    fake.n_blocks--;
    free(p);
    return CU_SUCCESS;
}
static cu_result fake_host_alloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    *address = aligned_alloc(64, align_up(bytes, 64));
    fake.n_blocks++;
    return CU_SUCCESS;
}
static cu_result fake_host_release(void *address) {
    free(address);
    fake.n_blocks--;
    return CU_SUCCESS;
}
static cu_result fake_mapped(cu_pointer *on_device, void *address, unsigned flags) {
    (void)flags;
    *on_device = (cu_pointer)(uintptr_t)address;
    return CU_SUCCESS;
}
/* Words of the runtime's state are written while the kernel polls them. */
static cu_result fake_copy_in(cu_pointer to, const void *from, size_t bytes, cu_stream stream) {
    (void)stream;
    if (bytes == 4)
        rt_store_release((void *)(uintptr_t)to, *(const uint32_t *)from);
    else
        memcpy((void *)(uintptr_t)to, from, bytes);
    return CU_SUCCESS;
}
static cu_result fake_copy_out(void *to, cu_pointer from, size_t bytes, cu_stream stream) {
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return CU_SUCCESS;
}
static cu_result fake_set(cu_pointer to, unsigned char value, size_t bytes, cu_stream stream) {
    (void)stream;
    memset((void *)(uintptr_t)to, value, bytes);
    return CU_SUCCESS;
}
static cu_result fake_load(cu_module *module, const void *image) {
    *module = (cu_module)&any_handle;
    return strcmp(image, "an image") == 0 ? CU_SUCCESS : CU_ERROR_NO_BINARY_FOR_GPU;
}
static cu_result fake_unload(cu_module module) {
    (void)module;
    return CU_SUCCESS;
}
static cu_result fake_function(cu_function *function, cu_module module, const char *name) {
    (void)module;
    char *f = strcmp(name, "qn_mega") == 0     ? &mega_function
              : strcmp(name, "qn_retile") == 0 ? &retile_function
              : strcmp(name, "qn_dummy") == 0  ? &dummy_function
                                               : &read_function;
    *function = (cu_function)f;
    return CU_SUCCESS;
}
static cu_result fake_get_attribute(int *value, int attribute, cu_function function) {
    (void)attribute;
    (void)function;
    *value = 40;
    return CU_SUCCESS;
}
static cu_result fake_set_attribute(cu_function function, int attribute, int value) {
    (void)function;
    if (attribute == CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES) fake.shared_bytes = (uint32_t)value;
    return CU_SUCCESS;
}
static cu_result fake_occupancy(int *n, cu_function function, int threads, size_t shared) {
    (void)function;
    *n = threads == CUDA_BLOCK_THREADS && shared == fake.shared_bytes ? 1 : 0;
    return CU_SUCCESS;
}
static cu_result fake_launch(cu_function function, unsigned x, unsigned y, unsigned z, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, cu_stream stream,
                             void **arguments, void **extra) {
    (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)extra;
    if ((char *)function == &retile_function) {
        const struct cuda_retile *a = arguments[0];
        /* The last byte of the chunk is there and inside its staging buffer. */
        *(volatile char *)(uintptr_t)(a->src + a->n_rows * a->cols * dtype_bytes(a->src_dtype) - 1);
        fake.n_retile++;
    }
    if ((char *)function == &dummy_function) fake.n_dummy++;
    return CU_SUCCESS;
}
static cu_result fake_cooperative(cu_function function, unsigned x, unsigned y, unsigned z,
                                  unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                  cu_stream stream, void **arguments) {
    (void)stream, (void)y, (void)z, (void)by, (void)bz;
    bool as_agreed = (char *)function == &mega_function && x == N_WORKERS &&
                     bx == CUDA_BLOCK_THREADS && shared == cuda_shared_bytes(90);
    if (fake.mode == MODE_NO_LAUNCH || !as_agreed) return CU_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    if (fake.started) pthread_join(fake.kernel, NULL);
    memcpy(&fake.args, arguments[0], sizeof fake.args);
    __atomic_store_n(&fake.running, 1, __ATOMIC_RELEASE);
    fake.n_mega++;
    fake.started = pthread_create(&fake.kernel, NULL, fake_kernel, NULL) == 0;
    return fake.started ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY;
}
static cu_result fake_stream(cu_stream *stream, unsigned flags) {
    (void)flags;
    fake.n_blocks++;
    *stream = (cu_stream)&any_handle;
    return CU_SUCCESS;
}
static cu_result fake_stream_set(cu_stream stream, int attribute,
                                 const union cu_stream_value *value) {
    (void)stream;
    assert_int_equal(attribute, CU_STREAM_ACCESS_POLICY_WINDOW);
    fake.window = value->window.bytes;
    fake.hit_ratio = value->window.hit_ratio;
    return CU_SUCCESS;
}
static cu_result fake_limit(int limit, size_t value) {
    assert_int_equal(limit, CU_LIMIT_PERSISTING_L2_CACHE_SIZE);
    fake.kept = value;
    return CU_SUCCESS;
}
static cu_result fake_stream_end(cu_stream stream) {
    (void)stream;
    fake.n_blocks--;
    return CU_SUCCESS;
}
static cu_result fake_stream_wait(cu_stream stream) {
    (void)stream;
    return CU_SUCCESS;
}
static cu_result fake_event(cu_event *event, unsigned flags) {
    (void)flags;
    fake.n_blocks++;
    *event = (cu_event)&any_handle;
    return CU_SUCCESS;
}
static cu_result fake_event_end(cu_event event) {
    (void)event;
    fake.n_blocks--;
    return CU_SUCCESS;
}
static cu_result fake_record(cu_event event, cu_stream stream) {
    (void)event;
    (void)stream;
    return CU_SUCCESS;
}
static cu_result fake_event_wait(cu_event event) {
    (void)event;
    return CU_SUCCESS;
}
static cu_result fake_query(cu_event event) {
    (void)event;
    if (__atomic_load_n(&fake.running, __ATOMIC_ACQUIRE)) return CU_ERROR_NOT_READY;
    return fake.mode == MODE_DEVICE_ERROR ? 700 : CU_SUCCESS;
}
static cu_result fake_elapsed(float *ms, cu_event start, cu_event end) {
    (void)start;
    (void)end;
    *ms = 2;
    return CU_SUCCESS;
}

static const struct cuda_api fake_api = {
    FAKE_DEVICE_CALLS,
    .cuCtxCreate_v2 = fake_context,
    .cuCtxDestroy_v2 = fake_context_end,
    .cuCtxPushCurrent_v2 = fake_push,
    .cuCtxPopCurrent_v2 = fake_pop,
    .cuMemGetInfo_v2 = fake_free_memory,
    .cuMemAlloc_v2 = fake_alloc,
    .cuMemFree_v2 = fake_release,
    .cuMemHostAlloc = fake_host_alloc,
    .cuMemFreeHost = fake_host_release,
    .cuMemHostGetDevicePointer_v2 = fake_mapped,
    .cuMemcpyHtoDAsync_v2 = fake_copy_in,
    .cuMemcpyDtoHAsync_v2 = fake_copy_out,
    .cuMemsetD8Async = fake_set,
    .cuModuleLoadData = fake_load,
    .cuModuleUnload = fake_unload,
    .cuModuleGetFunction = fake_function,
    .cuFuncGetAttribute = fake_get_attribute,
    .cuFuncSetAttribute = fake_set_attribute,
    .cuOccupancyMaxActiveBlocksPerMultiprocessor = fake_occupancy,
    .cuLaunchKernel = fake_launch,
    .cuLaunchCooperativeKernel = fake_cooperative,
    .cuStreamCreate = fake_stream,
    .cuStreamSetAttribute = fake_stream_set,
    .cuCtxSetLimit = fake_limit,
    .cuStreamDestroy_v2 = fake_stream_end,
    .cuStreamSynchronize = fake_stream_wait,
    .cuEventCreate = fake_event,
    .cuEventDestroy_v2 = fake_event_end,
    .cuEventRecord = fake_record,
    .cuEventSynchronize = fake_event_wait,
    .cuEventQuery = fake_query,
    .cuEventElapsedTime = fake_elapsed,
};

#endif
