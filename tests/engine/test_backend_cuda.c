/* The CUDA backend's host side against a pretended driver: device memory is host memory, and the
 * mega-kernel is a thread that plays all workers of the real protocol (rt_worker.h) in turn. Its
 * tasks compute nothing, but SAMPLE makes a token that can be foretold. So everything on the host
 * is exercised without a GPU: memory, launches, tokens through the mailbox, every way to fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include "base/checked.h"
#include "engine/backend_cuda.h"
#include "engine/compile.h"
#include "engine/cuda_plan.h"
#include "engine/trace.h"
#include "runtime/rt_worker.h"

#define MODEL "tests/golden/models/qwen3-tied"

enum { N_WORKERS = 5, N_SLOTS = 4, MAX_LEN = 96, MAX_BATCHED = 8 };

/* ---- the pretended machine ---- */

enum mode {
    MODE_WELL,
    MODE_LOSES_A_TASK, /* one worker never comes back from its first LINEAR */
    MODE_SILENT,       /* does nothing until it is told to stop */
    MODE_DEVICE_ERROR, /* ends with an error */
    MODE_NO_LAUNCH,    /* the launch itself fails */
};

static struct {
    enum mode mode;
    uint64_t capacity, taken; /* bytes of device memory */
    int n_blocks;             /* allocations, streams, events, contexts that are open */
    int n_retile, n_dummy, n_mega;
    uint32_t shared_bytes;
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
        struct rt_slot *slot = &b->slots[s];
        int32_t *tokens = b->tokens + (uint64_t)s * b->max_model_len;
        float *logprobs = b->logprobs + (uint64_t)s * b->max_model_len;
        uint32_t p = slot->n_known;
        tokens[p] = next_token(tokens[p - 1], p);
        logprobs[p] = -0.5f * (float)p;
        slot->n_known = p + 1;
        if (slot->n_known >= slot->n_limit) slot->finish = RT_FINISH_LENGTH;
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

static cu_result fake_init(unsigned flags) {
    (void)flags;
    return CU_SUCCESS;
}
static cu_result fake_version(int *version) {
    *version = 13000;
    return CU_SUCCESS;
}
static cu_result fake_error_text(cu_result error, const char **text) {
    (void)error;
    *text = "pretended";
    return CU_SUCCESS;
}
static cu_result fake_count(int *n) {
    *n = 1;
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
    *value = attribute == CU_ATTR_COMPUTE_CAPABILITY_MAJOR     ? 9
             : attribute == CU_ATTR_COMPUTE_CAPABILITY_MINOR   ? 0
             : attribute == CU_ATTR_MULTIPROCESSOR_COUNT       ? N_WORKERS
             : attribute == CU_ATTR_MAX_SHARED_PER_BLOCK_OPTIN ? 227 * 1024
                                                               : 1;
    return CU_SUCCESS;
}
static cu_result fake_total(size_t *bytes, cu_device device) {
    (void)device;
    *bytes = fake.capacity;
    return CU_SUCCESS;
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
    *free_bytes = fake.capacity - fake.taken;
    *total_bytes = fake.capacity;
    return CU_SUCCESS;
}

/* The size goes in front of each block. */
static cu_result fake_alloc(cu_pointer *address, size_t bytes) {
    if (bytes > fake.capacity - fake.taken) return CU_ERROR_OUT_OF_MEMORY;
    uint64_t *p = aligned_alloc(256, align_up(bytes + 256, 256));
    if (p == NULL) return CU_ERROR_OUT_OF_MEMORY;
    memset(p, 0xa5, bytes + 256); /* fresh device memory holds anything */
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

static const struct cuda_api api = {
    .cuInit = fake_init,
    .cuDriverGetVersion = fake_version,
    .cuGetErrorName = fake_error_text,
    .cuGetErrorString = fake_error_text,
    .cuDeviceGetCount = fake_count,
    .cuDeviceGet = fake_get,
    .cuDeviceGetName = fake_name,
    .cuDeviceGetAttribute = fake_attribute,
    .cuDeviceTotalMem_v2 = fake_total,
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
    .cuStreamDestroy_v2 = fake_stream_end,
    .cuStreamSynchronize = fake_stream_wait,
    .cuEventCreate = fake_event,
    .cuEventDestroy_v2 = fake_event_end,
    .cuEventRecord = fake_record,
    .cuEventSynchronize = fake_event_wait,
    .cuEventQuery = fake_query,
    .cuEventElapsedTime = fake_elapsed,
};

/* ---- one program for all tests ---- */

static struct model *model;
static struct prog_header *program;

static int make_program(void **state) {
    (void)state;
    struct diag d = {0};
    struct compile_options o;
    compile_options_init(&o);
    o.target = TARGET_CUDA;
    o.n_workers = N_WORKERS;
    o.n_slots = N_SLOTS;
    o.max_model_len = MAX_LEN;
    o.max_batched_tokens = MAX_BATCHED;
    o.kv_block = 16;
    struct model_options as_dummy = {.dummy = true, .dtype = "bfloat16"};
    if (model_open(&d, MODEL, &as_dummy, &model) == QN_OK &&
        compile_model(&d, model, &o, NULL, NULL, &program) == QN_OK)
        return 0;
    print_error("%s\n", d.message);
    return -1;
}

static int drop_program(void **state) {
    (void)state;
    free(program);
    model_free(model);
    return 0;
}

static struct backend_config config = {.n_kv_blocks = 24, .max_batched = MAX_BATCHED};

static void reset(enum mode mode) {
    if (fake.started) pthread_join(fake.kernel, NULL);
    memset(&fake, 0, sizeof fake);
    fake.mode = mode;
    fake.capacity = (uint64_t)1 << 30;
    fake.program = program;
}

static int open_with(struct diag *d, const struct prog_header *p, struct backend_instance **i) {
    struct backend_cuda_options o;
    backend_cuda_defaults(&o);
    o.api = &api;
    o.image = "an image";
    /* Short only where the machine is to be found out: others must not fail on a busy host.
     * Silence is above the deadline times RT_TASK_PATIENCE. */
    const uint64_t deadline_ms = fake.mode == MODE_WELL     ? 2000
                                 : fake.mode == MODE_SILENT ? 20
                                                            : 200;
    o.deadline_ns = deadline_ms * 1000 * 1000;
    o.silence_ns = 25 * o.deadline_ns;
    return backend_cuda_open(d, p, NULL, &config, &o, i);
}

static struct backend_instance *open_well(enum mode mode) {
    struct diag d = {0};
    struct backend_instance *i;
    reset(mode);
    if (open_with(&d, program, &i) != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(d.code, QN_OK);
    return i;
}

static void close_well(struct backend_instance *i) {
    backend_cuda.close(i);
    assert_int_equal(fake.n_blocks, 0);
    assert_int_equal(fake.taken, 0);
}

static uint64_t launches(const struct backend_instance *i) {
    struct backend_cuda_stats s;
    backend_cuda_stats(i, &s);
    return s.n_launches;
}

static uint32_t submit(struct backend_instance *i, int32_t first, uint32_t n_prompt,
                       uint32_t max_tokens) {
    struct diag d = {0};
    int32_t prompt[MAX_LEN];
    uint32_t slot = 99;
    struct rt_request q = {.n_prompt = n_prompt,
                           .max_tokens = max_tokens,
                           .sampling = {.top_p = 1, .repetition_penalty = 1}};
    for (uint32_t k = 0; k < n_prompt; k++) prompt[k] = first + (int32_t)k;
    assert_int_equal(backend_cuda.submit(&d, i, &q, prompt, &slot), QN_OK);
    return slot;
}

/* Waits for a request's end; the status of the last poll. */
static int await(struct diag *d, struct backend_instance *i, uint32_t slot,
                 struct mailbox_view *view) {
    uint32_t seen = 0;
    for (int k = 0; k < 2000; k++) {
        TRY(backend_cuda.poll(d, i, slot, view));
        if (view->finish != RT_RUNNING) return QN_OK;
        TRY(backend_cuda.wait(d, i, &seen, 0.05));
    }
    return fail(d, QN_EINTERNAL, "the request did not end");
}

/* Runs a request that was submitted, compares every token, gives the slot back. */
static void expect_tokens(struct backend_instance *i, uint32_t slot, int32_t first,
                          uint32_t n_prompt, uint32_t max_tokens) {
    struct diag d = {0};
    struct mailbox_view view;
    if (await(&d, i, slot, &view) != QN_OK) print_error("%s\n", d.message);
    assert_int_equal(d.code, QN_OK);
    assert_int_equal(view.finish, RT_FINISH_LENGTH);
    assert_int_equal(view.n_out, max_tokens);
    int32_t token = first + (int32_t)n_prompt - 1;
    for (uint32_t k = 0; k < max_tokens; k++) {
        token = next_token(token, n_prompt + k);
        assert_int_equal(view.tokens[k], token);
        assert_true(view.logprobs[k] == -0.5f * (float)(n_prompt + k));
    }
    assert_int_equal(backend_cuda.release(&d, i, slot), QN_OK);
}

/* ---- tests ---- */

/* Prefill in chunks and all decode steps of a request are one launch; so is the next request. */
static void test_one_launch_each(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    assert_int_equal(launches(i), 0); /* nothing runs on an idle GPU */
    expect_tokens(i, submit(i, 3, 20, 40), 3, 20, 40);
    for (int k = 0; k < 1000 && __atomic_load_n(&fake.running, __ATOMIC_ACQUIRE); k++) usleep(1000);
    assert_int_equal(launches(i), 1);
    usleep(20000); /* until the watcher has seen the end */
    expect_tokens(i, submit(i, 7, 1, 5), 7, 1, 5);
    assert_int_equal(launches(i), 2);
    close_well(i);
    assert_int_equal(fake.n_mega, 2);
}

static void test_batch(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    uint32_t slot[N_SLOTS];
    for (uint32_t k = 0; k < N_SLOTS; k++)
        slot[k] = submit(i, (int32_t)k * 9, 3 + 7 * k, 30 - 5 * k);
    struct diag d = {0};
    struct rt_request q = {
        .n_prompt = 1, .max_tokens = 1, .sampling = {.top_p = 1, .repetition_penalty = 1}};
    uint32_t none;
    assert_int_equal(backend_cuda.submit(&d, i, &q, &(int32_t){1}, &none), QN_EBUSY);
    for (uint32_t k = 0; k < N_SLOTS; k++)
        expect_tokens(i, slot[k], (int32_t)k * 9, 3 + 7 * k, 30 - 5 * k);
    close_well(i);
}

/* The host's rings after the kernel has ended: every task of every iteration, at the host's time.
 */
static void check_trace(struct backend_instance *i, uint64_t start, uint32_t n_iterations,
                        bool overran) {
    struct diag d = {0};
    struct trace t;
    size_t complete = 0;
    assert_int_equal(backend_cuda.trace_wait(&d, i), QN_OK);
    assert_int_equal(trace_read(&d, config.trace, program, &t), QN_OK);
    for (size_t k = 0; k < t.iters.n; k++) complete += t.iters.items[k].complete;
    assert_int_equal(t.n_dropped > 0, overran);
    if (overran)
        assert_in_range(complete, 1, n_iterations - 1);
    else
        assert_int_equal(complete, n_iterations);
    for (size_t k = 0; k < t.runs.n; k++) {
        assert_true(t.runs.items[k].ready >= start && t.runs.items[k].end <= rt_now_ns());
        assert_true(t.runs.items[k].ready <= t.runs.items[k].end);
    }
    if (!overran) { /* the loaders' rings came with the others */
        assert_int_equal(t.pages.n, t.runs.n);
        assert_in_range(t.n_loaders, 1, N_WORKERS);
    }
    for (size_t k = 0; k < t.pages.n; k++) {
        const struct trace_pages *p = &t.pages.items[k];
        assert_true(p->time >= start && p->time <= rt_now_ns());
        assert_true(k == 0 || p->time >= t.pages.items[k - 1].time);
        assert_int_equal(p->flying_bytes, (p->worker + 1) * 8192);
        assert_int_equal(p->n_free, 2);
    }
    trace_fini(&t);
}

static struct backend_instance *open_traced(uint64_t limit) {
    struct diag d = {0};
    assert_int_equal(trace_new(&d, N_WORKERS, limit, &config.trace), QN_OK);
    trace_switch(config.trace, true);
    struct backend_instance *i = open_well(MODE_WELL);
    assert_non_null(i);
    return i;
}

static void close_traced(struct backend_instance *i) {
    close_well(i);
    free(config.trace);
    config.trace = NULL;
}

static void test_trace(void **state) {
    (void)state;
    uint64_t start = rt_now_ns();
    struct diag d = {0};
    struct backend_instance *i = open_traced((uint64_t)8 << 20);
    assert_int_equal(fake.args.rt.trace == NULL, true); /* no launch yet */
    expect_tokens(i, submit(i, 3, 1, 20), 3, 1, 20);
    check_trace(i, start, 20, false);
    assert_ptr_not_equal(fake.args.rt.trace, config.trace); /* rings of its own */
    for (uint32_t k = 0; k < 3; k++) {                      /* later launches go on */
        assert_int_equal(backend_cuda.trace_wait(&d, i), QN_OK);
        expect_tokens(i, submit(i, 5, 1, 4), 5, 1, 4);
        check_trace(i, start, 24 + 4 * k, false);
    }
    assert_true(launches(i) > 1);
    trace_switch(config.trace, false);
    expect_tokens(i, submit(i, 5, 1, 4), 5, 1, 4);
    check_trace(i, start, 32, false);
    close_traced(i);
}

/* Rings that run over on the device keep the newest records, and count the others. */
static void test_trace_overrun(void **state) {
    (void)state;
    uint64_t start = rt_now_ns();
    struct backend_instance *i = open_traced(1);
    for (int k = 0; k < 2; k++) {
        expect_tokens(i, submit(i, 3, 1, MAX_LEN - 1), 3, 1, MAX_LEN - 1);
        check_trace(i, start, 2 * MAX_LEN, true);
    }
    close_traced(i);
}

/* Requests that come just when the kernel goes idle are neither lost nor run twice. */
static void test_many_launches(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    for (int k = 0; k < 300; k++) {
        expect_tokens(i, submit(i, k % 200, 1 + (uint32_t)k % 3, 2), k % 200, 1 + (uint32_t)k % 3,
                      2);
        if (k % 3 == 0) usleep((unsigned)(k * 7) % 400);
    }
    assert_in_range(launches(i), 1, 301);
    close_well(i);
}

static void test_cancel(void **state) {
    (void)state;
    struct backend_instance *i = open_well(MODE_WELL);
    struct diag d = {0};
    struct mailbox_view view;
    uint32_t slot = submit(i, 1, 4, MAX_LEN - 4);
    assert_int_equal(backend_cuda.cancel(&d, i, slot), QN_OK);
    assert_int_equal(await(&d, i, slot, &view), QN_OK);
    assert_true(view.finish == RT_FINISH_ABORT || view.n_out == MAX_LEN - 4);
    assert_int_equal(backend_cuda.release(&d, i, slot), QN_OK);
    expect_tokens(i, submit(i, 2, 2, 3), 2, 2, 3);
    close_well(i);
}

/* Closing with requests under way stops the kernel. */
static void test_close_busy(void **state) {
    (void)state;
    for (int k = 0; k < 20; k++) {
        struct backend_instance *i = open_well(MODE_WELL);
        submit(i, 1, 4, MAX_LEN - 4);
        usleep((unsigned)k * 30);
        close_well(i);
    }
}

/* A request on a machine that fails; the message must hold `words`, and another engine must open.
 */
static void expect_broken(enum mode mode, int code, const char *words) {
    struct backend_instance *i = open_well(mode);
    struct diag d = {0};
    struct mailbox_view view;
    uint32_t slot = submit(i, 1, 2, 3);
    assert_int_equal(await(&d, i, slot, &view), code);
    if (strstr(d.message, words) == NULL) print_error("%s\n", d.message);
    assert_non_null(strstr(d.message, words));
    assert_null(strchr(d.message, '\n'));
    diag_clear(&d);
    struct rt_request q = {.n_prompt = 1, .max_tokens = 1};
    assert_int_equal(backend_cuda.submit(&d, i, &q, &(int32_t){1}, &slot), code);
    close_well(i);
    i = open_well(MODE_WELL);
    expect_tokens(i, submit(i, 3, 2, 2), 3, 2, 2);
    close_well(i);
}

static void test_stall(void **state) {
    (void)state;
    expect_broken(MODE_LOSES_A_TASK, QN_ESTALL, "linear");
}

static void test_silence(void **state) {
    (void)state;
    expect_broken(MODE_SILENT, QN_ESTALL, "no sign of life");
}

static void test_device_error(void **state) {
    (void)state;
    expect_broken(MODE_DEVICE_ERROR, QN_EDEVICE, "the mega-kernel: pretended");
}

static void test_launch_fails(void **state) {
    (void)state;
    expect_broken(MODE_NO_LAUNCH, QN_EDEVICE, "cuLaunchCooperativeKernel");
}

/* Too little memory at any point of opening: one clear line, nothing left behind. */
static void test_out_of_memory(void **state) {
    (void)state;
    int n_failed = 0, n_opened = 0;
    for (uint64_t capacity = 1 << 20; capacity <= (uint64_t)1 << 30; capacity += capacity / 3) {
        struct diag d = {0};
        struct backend_instance *i;
        reset(MODE_WELL);
        fake.capacity = capacity;
        int rc = open_with(&d, program, &i);
        if (rc == QN_OK) {
            n_opened++;
            close_well(i);
            continue;
        }
        n_failed++;
        assert_int_equal(rc, QN_ELIMIT);
        assert_non_null(strstr(d.message, "GPU memory"));
        assert_null(i);
        assert_int_equal(fake.n_blocks, 0);
    }
    assert_true(n_failed > 5 && n_opened > 0);
}

/* What the plan says is what is taken. */
static void test_plan(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_plan p;
    assert_int_equal(backend_cuda.plan(&d, program, &config, &p), QN_OK);
    struct backend_instance *i = open_well(MODE_WELL);
    struct backend_cuda_stats s;
    backend_cuda_stats(i, &s);
    uint64_t upload = (uint64_t)64 << 20; /* given back */
    assert_int_equal(fake.taken, s.device_bytes - upload);
    assert_in_range(p.kv_bytes + p.workspace_bytes + p.other_bytes + s.weight_bytes, s.device_bytes,
                    s.device_bytes + s.weight_bytes);
    assert_int_equal(fake.n_dummy, fake.n_retile);
    assert_in_range(fake.n_dummy, program->section[SECTION_WEIGHT].count, 1000);
    double rate = 0;
    assert_int_equal(backend_cuda.measure_read(&d, i, 0.001, &rate), QN_OK);
    assert_true(rate > 0);
    close_well(i);
}

static void test_wrong_image(void **state) {
    (void)state;
    struct diag d = {0};
    struct backend_instance *i;
    struct backend_cuda_options o;
    reset(MODE_WELL);
    backend_cuda_defaults(&o);
    o.api = &api;
    o.image = "another image";
    assert_int_equal(backend_cuda_open(&d, program, NULL, &config, &o, &i), QN_EDEVICE);
    assert_non_null(strstr(d.message, "cuModuleLoadData"));
    assert_int_equal(fake.n_blocks, 0);
}

/* On a machine without a driver --backend cuda is one clear line. */
static void test_no_driver(void **state) {
    (void)state;
    struct diag d = {0};
    const struct backend *b;
    int rc = backend_find(&d, "cuda", &b);
    if (rc == QN_OK) {
        print_message("skipped: there is a GPU here\n");
        skip();
    }
    assert_int_equal(rc, QN_EDEVICE);
    assert_null(strchr(d.message, '\n'));
    assert_true(strlen(d.message) > 20);
    diag_clear(&d);
    assert_int_equal(backend_find(&d, "auto", &b), QN_OK);
    assert_string_equal(b->name, "cpu");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_launch_each),
        cmocka_unit_test(test_batch),
        cmocka_unit_test(test_many_launches),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_trace_overrun),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_close_busy),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_device_error),
        cmocka_unit_test(test_launch_fails),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_wrong_image),
        cmocka_unit_test(test_no_driver),
    };
    return cmocka_run_group_tests(tests, make_program, drop_program);
}
