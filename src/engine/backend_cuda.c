/* backend_cuda.c - see backend_cuda.h. */
#include "engine/backend_cuda.h"

#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "codegen/cuda_upload.h"
#include "codegen/kernel_image.h"
#include "engine/cuda_plan.h"
#include "engine/cuda_run.h"
#include "engine/cuda_trace.h"
#include "engine/expect.h"
#include "kernels/cpu/cpu_kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEADLINE_MS = 2000,
    LOOK_US = 25,
    SPIN_LIMIT = 64, /* polls in a row before a waiting block backs off */
    /* What is under way is what memory brings in that time (flight_pages): */
    FLIGHT_NS = 1300, /* at least, while others may wait for activations */
    DEEP_NS = 3500,   /* otherwise */
    FLIGHT_PAGES = 5, /* where the driver does not say how fast the memory is */
    READ_BLOCKS_PER_SM = 8,
    READ_BLOCK_THREADS = 256,
    READ_ROUNDS_MS = 5,
};
#define END_WAIT_NS ((uint64_t)1000000000)
#define STATUS_NS   ((uint64_t)20000000) /* between two looks of a waiter at whether all is well */

/* Device memory, one allocation each; in the order in which it is taken. */
enum block {
    BLOCK_WEIGHTS,
    BLOCK_KV,
    BLOCK_WORKSPACE,
    BLOCK_STATE,
    BLOCK_PROGRAM,
    BLOCK_TASKS,
    BLOCK_ROPE,
    BLOCK_SAMPLE,
    BLOCK_TRACE,
    N_BLOCKS
};

struct backend_instance {
    struct backend_cuda_options options;
    struct cuda_api own; /* the driver, when options brought none */
    const struct cuda_api *api;
    struct cuda_device device;
    cu_context context;
    cu_module module;
    cu_function mega, read_all;
    cu_stream stream; /* for loading and measuring */
    const struct prog_header *program;
    struct cuda_plan plan;
    cu_pointer blocks[N_BLOCKS];
    void *mail;        /* pinned, mapped */
    cu_pointer d_mail; /* the same on the device */
    struct cuda_args args;
    struct rt host_rt; /* only its mailbox part is the host's */
    struct rt_batch limits;
    struct mailbox mailbox;
    struct expect expect;
    struct cuda_trace trace;
    struct cuda_run run;
    struct backend_cuda_stats stats;
};

/* A whole number from the environment, held to [low, high]; these are for tools and tuning. */
static uint64_t number_from(const char *variable, uint64_t low, uint64_t high, uint64_t fallback) {
    const char *text = getenv(variable);
    if (text == NULL || *text == '\0') return fallback;
    long long n = atoll(text);
    return n < 0 ? low : MIN(MAX((uint64_t)n, low), high);
}

void backend_cuda_defaults(struct backend_cuda_options *o) {
    uint64_t ns = number_from("QN_DEADLINE_MS", 0, 86400000, DEADLINE_MS) * 1000000;
    *o = (struct backend_cuda_options){
        .deadline_ns = ns,
        .silence_ns = ns * 2 * RT_TASK_PATIENCE,
        .look_ns = number_from("QN_CUDA_LOOK_US", 1, 1000000, LOOK_US) * 1000,
        .flight = (uint32_t)number_from("QN_CUDA_FLIGHT", 0, CUDA_MAX_FLIGHT, 0),
        .flight_deep = (uint32_t)number_from("QN_CUDA_FLIGHT_DEEP", 0, CUDA_MAX_FLIGHT, 0),
        .stream = (uint32_t)number_from("QN_CUDA_STREAM", CUDA_STREAM_TASK, CUDA_STREAM_ITERATIONS,
                                        CUDA_STREAM_ITERATIONS),
        .kept_mib = (uint32_t)number_from("QN_CUDA_KEEP", 0, KEEP_DEFAULT, KEEP_DEFAULT),
        .lineinfo = number_from("QN_CUDA_LINEINFO", 0, 1, 0) == 1,
        .racecheck = number_from("QN_CUDA_RACECHECK", 0, 1, 0) == 1,
    };
}

/* What the memory brings each multiprocessor, on paper. */
static double bytes_per_ns(const struct cuda_device *v) {
    return 2e-6 * v->memory_clock_khz * v->memory_bus_bits / 8 / v->n_sms;
}

/* Pages per multiprocessor that keep the memory busy for ns (Little's law), rounded up: 6 and 16 on
 * an H200; 5 and 11, unmeasured, on an H100. */
static uint32_t flight_pages(const struct cuda_device *v, double ns) {
    const double pages = ceil(bytes_per_ns(v) * ns / CUDA_PAGE_BYTES);
    if (pages <= 0) return FLIGHT_PAGES;
    return (uint32_t)MIN(pages, CUDA_MAX_FLIGHT);
}

static void fill_flight(struct backend_instance *i) {
    const struct backend_cuda_options *o = &i->options;
    const uint32_t near = o->flight != 0 ? o->flight : flight_pages(&i->device, FLIGHT_NS);
    const uint32_t deep = o->flight_deep != 0 ? o->flight_deep
                          : o->flight != 0    ? near
                                              : flight_pages(&i->device, DEEP_NS);
    i->args.flight = near;
    i->args.flight_deep = MAX(near, deep);
}

static double lap(uint64_t *since) {
    uint64_t now = rt_now_ns();
    double seconds = 1e-9 * (double)(now - *since);
    *since = now;
    return seconds;
}

/* ---- driver and device ---- */

/* A pretended driver of a test, or the machine's. $QN_CUDA_DEVICE chooses among several GPUs. */
static int open_device(struct diag *d, struct backend_instance *i) {
    const char *ordinal = getenv("QN_CUDA_DEVICE");
    i->api = i->options.api;
    if (i->api == NULL) {
        TRY(cuda_api_open(d, NULL, &i->own));
        i->api = &i->own;
    }
    return cuda_device_find(d, i->api, ordinal != NULL ? atoi(ordinal) : 0, &i->device);
}

static int open_context(struct diag *d, struct backend_instance *i) {
    TRY(open_device(d, i));
    CU(d, i->api, cuCtxCreate_v2, &i->context, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST,
       i->device.handle);
    return QN_OK;
}

static void enter(const struct backend_instance *i) {
    i->api->cuCtxPushCurrent_v2(i->context);
}

static void leave(const struct backend_instance *i) {
    cu_context none;
    i->api->cuCtxPopCurrent_v2(&none);
}

/* ---- image ---- */

static int make_image(struct diag *d, struct backend_instance *i, struct kernel_image *image) {
    struct nvrtc nvrtc;
    struct kernel_cache cache;
    char arch[16];
    cuda_device_arch(&i->device, arch);
    TRY(nvrtc_open(d, getenv("QN_NVRTC"), &nvrtc));
    kernel_cache_init(&cache, i->options.cache_off);
    struct kernel_image_options o = {.arch = arch,
                                     .lineinfo = i->options.lineinfo,
                                     .each_arrives = i->options.racecheck,
                                     .traces = i->plan.trace_bytes > 0};
    int rc = kernel_image_make(d, &nvrtc, &cache, i->program, &o, image);
    i->stats.image_cached = image->cached;
    nvrtc_close(&nvrtc);
    return rc;
}

static int load_image(struct diag *d, struct backend_instance *i) {
    struct kernel_image image = {0};
    const void *bytes = i->options.image;
    int rc = QN_OK;
    if (bytes == NULL) {
        rc = make_image(d, i, &image);
        bytes = image.bytes;
    }
    if (rc == QN_OK)
        rc = cuda_check(d, i->api, "cuModuleLoadData", i->api->cuModuleLoadData(&i->module, bytes));
    kernel_image_fini(&image);
    return rc;
}

/* One block per worker, all of them resident at a time, or the protocol could wait forever. */
static int check_resident(struct diag *d, const struct backend_instance *i, uint32_t shared_bytes) {
    int per_sm = 0;
    CU(d, i->api, cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, i->mega, CUDA_BLOCK_THREADS,
       shared_bytes);
    uint32_t most = (uint32_t)MAX(per_sm, 0) * (uint32_t)i->device.n_sms;
    if (i->program->n_workers <= most) return QN_OK;
    return fail(d, QN_EDEVICE,
                "%s: the program is for %u workers, %u blocks fit (%d on each of %d "
                "SMs)",
                i->device.name, i->program->n_workers, most, per_sm, i->device.n_sms);
}

static uint32_t compute_capability(const struct backend_instance *i) {
    return (uint32_t)(i->device.major * 10 + i->device.minor);
}

static uint32_t shared_bytes(const struct backend_instance *i) {
    return cuda_shared_bytes(compute_capability(i));
}

static int open_kernels(struct diag *d, struct backend_instance *i) {
    const struct cuda_api *api = i->api;
    uint32_t shared = shared_bytes(i);
    TRY(load_image(d, i));
    CU(d, api, cuModuleGetFunction, &i->mega, i->module, "qn_mega");
    CU(d, api, cuModuleGetFunction, &i->read_all, i->module, "qn_read_all");
    CU(d, api, cuFuncGetAttribute, &i->stats.registers, CU_FUNC_NUM_REGS, i->mega);
    CU(d, api, cuFuncGetAttribute, &i->stats.local_bytes, CU_FUNC_LOCAL_SIZE_BYTES, i->mega);
    if ((int64_t)shared > i->device.shared_bytes)
        return fail(d, QN_EDEVICE, "%s gives a block %d bytes of shared memory, want %u",
                    i->device.name, i->device.shared_bytes, shared);
    CU(d, api, cuFuncSetAttribute, i->mega, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared);
    return check_resident(d, i, shared);
}

/* ---- memory ---- */

static struct rt_options rt_options(const struct backend_cuda_options *o,
                                    const struct backend_config *config) {
    return (struct rt_options){.n_kv_blocks = config->n_kv_blocks,
                               .max_batched = config->max_batched,
                               .spin_limit = SPIN_LIMIT,
                               .until_idle = true,
                               .separate = true,
                               .deadline_ns = o->deadline_ns};
}

static int check_free(struct diag *d, const struct backend_instance *i) {
    size_t free_bytes = 0, total_bytes = 0;
    CU(d, i->api, cuMemGetInfo_v2, &free_bytes, &total_bytes);
    return cuda_plan_check(d, &i->plan, free_bytes, total_bytes);
}

/* Every block begins zeroed: padding of the weights, positions that nobody wrote, flags. */
static int take_block(struct diag *d, struct backend_instance *i, enum block which,
                      uint64_t bytes) {
    if (bytes == 0) return QN_OK;
    cu_result r = i->api->cuMemAlloc_v2(&i->blocks[which], bytes);
    if (r == CU_ERROR_OUT_OF_MEMORY)
        return fail(d, QN_ELIMIT, "GPU memory: %.2f GiB more are not free (of %.2f GiB in all)",
                    (double)bytes / (1 << 30), (double)i->plan.device_bytes / (1 << 30));
    TRY(cuda_check(d, i->api, "cuMemAlloc_v2", r));
    CU(d, i->api, cuMemsetD8Async, i->blocks[which], 0, bytes, i->stream);
    return QN_OK;
}

static int take_memory(struct diag *d, struct backend_instance *i) {
    const struct cuda_plan *p = &i->plan;
    const uint64_t bytes[N_BLOCKS] = {
        [BLOCK_WEIGHTS] = p->weight_bytes,      [BLOCK_KV] = p->kv_bytes,
        [BLOCK_WORKSPACE] = p->workspace_bytes, [BLOCK_STATE] = p->state_bytes,
        [BLOCK_PROGRAM] = p->program_bytes,     [BLOCK_TASKS] = p->task_bytes,
        [BLOCK_ROPE] = p->rope_bytes,           [BLOCK_SAMPLE] = p->sample_bytes,
        [BLOCK_TRACE] = p->trace_bytes,
    };
    for (int b = 0; b < N_BLOCKS; b++) TRY(take_block(d, i, (enum block)b, bytes[b]));
    CU(d, i->api, cuMemHostAlloc, &i->mail, p->mail_bytes, CU_HOST_DEVICEMAP | CU_HOST_PORTABLE);
    memset(i->mail, 0, p->mail_bytes);
    CU(d, i->api, cuMemHostGetDevicePointer_v2, &i->d_mail, i->mail, 0);
    return QN_OK;
}

/* ---- filling it ---- */

static int copy_in(struct diag *d, struct backend_instance *i, enum block which, const void *from,
                   uint64_t bytes) {
    CU(d, i->api, cuMemcpyHtoDAsync_v2, i->blocks[which], from, bytes, i->stream);
    CU(d, i->api, cuStreamSynchronize, i->stream);
    return QN_OK;
}

static int fill_tasks(struct diag *d, struct backend_instance *i) {
    struct cuda_bases bases = {.weights = i->blocks[BLOCK_WEIGHTS],
                               .workspace = i->blocks[BLOCK_WORKSPACE],
                               .kv = i->blocks[BLOCK_KV],
                               .kv_layer_bytes = i->plan.kv_layer_bytes,
                               .cc = compute_capability(i)};
    TRY(cuda_tables_check(d, i->program, bases.cc));
    struct cuda_task *tasks = calloc(1, i->plan.task_bytes);
    if (tasks == NULL) return fail_nomem(d, i->plan.task_bytes, "the task table");
    cuda_tables_fill(i->program, i->plan.places, &bases, tasks);
    int rc = copy_in(d, i, BLOCK_TASKS, tasks, i->plan.task_bytes);
    free(tasks);
    return rc;
}

/* Activations whose words are empty until they are stored begin so; from then on CLEAR sees to it.
 */
static int fill_spaces(struct diag *d, struct backend_instance *i) {
    for (uint64_t k = 0; k < i->program->section[SECTION_TENSOR].count; k++) {
        const struct prog_tensor *t = &PROG(i->program, TENSOR)[k];
        if (t->carry != CARRY_SPACE) continue;
        CU(d, i->api, cuMemsetD8Async, i->blocks[BLOCK_WORKSPACE] + t->where, CUDA_EMPTY & 0xff,
           t->bytes, i->stream);
    }
    return QN_OK;
}

/* The CPU's own table, so that both backends rotate by the same bits. */
static int fill_rope(struct diag *d, struct backend_instance *i) {
    float *table = malloc(i->plan.rope_bytes);
    if (table == NULL) return fail_nomem(d, i->plan.rope_bytes, "the RoPE table");
    float *sin = table + i->plan.rope_bytes / 2 / sizeof *table;
    cpu_rope_fill(PROG(i->program, MODEL), i->program->max_model_len, table, sin);
    int rc = copy_in(d, i, BLOCK_ROPE, table, i->plan.rope_bytes);
    free(table);
    return rc;
}

static void *on_device(const struct backend_instance *i, enum block which, uint64_t offset) {
    return (void *)(uintptr_t)(i->blocks[which] + offset);
}

/* The runtime's state, made in host memory with the addresses that the kernel will see. */
static int fill_state(struct diag *d, struct backend_instance *i) {
    const struct rt_memory *m = &i->plan.rt;
    struct rt_batch batch;
    void *state = calloc(1, m->state_bytes);
    if (state == NULL) return fail_nomem(d, m->state_bytes, "the runtime's state");
    rt_memory_bind(m, i->program, on_device(i, BLOCK_PROGRAM, 0), on_device(i, BLOCK_STATE, 0),
                   (void *)(uintptr_t)i->d_mail, &i->args.rt, &batch);
    rt_memory_init(m, i->program, state, i->mail, &batch);
    int rc = copy_in(d, i, BLOCK_STATE, state, m->state_bytes);
    free(state);
    /* The host's view: of the state it uses the numbers only. */
    rt_memory_bind(m, i->program, i->program, on_device(i, BLOCK_STATE, 0), i->mail, &i->host_rt,
                   &i->limits);
    return rc;
}

static void fill_args(struct backend_instance *i) {
    i->args.tasks = on_device(i, BLOCK_TASKS, 0);
    i->args.rope_cos = on_device(i, BLOCK_ROPE, 0);
    i->args.rope_sin = on_device(i, BLOCK_ROPE, i->plan.rope_bytes / 2);
    i->args.sample_scratch = on_device(i, BLOCK_SAMPLE, 0);
    i->args.rt.trace = on_device(i, BLOCK_TRACE, 0); /* NULL: none */
    fill_flight(i);
    i->args.stream = i->options.stream;
}

static int fill_memory(struct diag *d, struct backend_instance *i) {
    TRY(copy_in(d, i, BLOCK_PROGRAM, i->program, i->program->total_bytes));
    TRY(fill_tasks(d, i));
    TRY(fill_spaces(d, i));
    TRY(fill_rope(d, i));
    TRY(fill_state(d, i));
    fill_args(i);
    return QN_OK;
}

/* ---- weights ---- */

static void progress(const struct backend_config *config, const char *stage, uint64_t done,
                     uint64_t total) {
    if (config->progress != NULL) config->progress(config->progress_user, stage, done, total);
}

static int upload_weight(struct diag *d, struct backend_instance *i, struct cuda_upload *u,
                         const struct weights *weights, uint64_t k) {
    const struct prog_weight *w = &PROG(i->program, WEIGHT)[k];
    struct cuda_upload_weight to = {.place = &i->plan.places[k],
                                    .rows = w->rows,
                                    .cols = w->n_dims == 2 ? w->cols : 1,
                                    .src_dtype = w->dtype,
                                    .dst_dtype = w->dtype};
    if (weights != NULL) return cuda_upload_rows(d, u, &to, weights_at(weights, k));
    return cuda_upload_dummy(d, u, &to, program_string(i->program, w->name));
}

static int upload_all(struct diag *d, struct backend_instance *i, struct cuda_upload *u,
                      const struct weights *weights, const struct backend_config *config) {
    uint64_t n = i->program->section[SECTION_WEIGHT].count;
    TRY(cuda_upload_open(d, i->api, i->module, i->stream, i->blocks[BLOCK_WEIGHTS], weights != NULL,
                         u));
    for (uint64_t k = 0; k < n; k++) {
        progress(config, "weights", k, n);
        TRY(upload_weight(d, i, u, weights, k));
    }
    return cuda_upload_finish(d, u);
}

static int load_weights(struct diag *d, struct backend_instance *i, const struct weights *weights,
                        const struct backend_config *config) {
    struct cuda_upload u = {0};
    int rc = upload_all(d, i, &u, weights, config);
    cuda_upload_close(&u);
    return rc;
}

/* ---- open and close ---- */

/* The part of what can be set aside of L2 that is: 20 of an H100's 31 MB. With all of it weights
 * come 4 % more slowly, with half the gain is less (docs/performance-log.md). */
static const double KEPT_SHARE = 2.0 / 3;

/* The bytes of the workspace that activations which ride on data lie in, of all variants: each is
 * written once per iteration, and read right after. Those with flags first; from `filled` on those
 * on empty words, at the same place in each variant that has such. */
struct riding {
    uint64_t start, filled, end;
};

static struct riding riding_bytes(const struct prog_header *p) {
    struct riding r = {UINT64_MAX, UINT64_MAX, 0};
    for (uint64_t n = 0; n < p->section[SECTION_TENSOR].count; n++) {
        const struct prog_tensor *t = &PROG(p, TENSOR)[n];
        const bool filled = t->carry == CARRY_FILL;
        if (t->role != PROG_ACTIVATION ||
            (t->carry != CARRY_FLAG && t->carry != CARRY_PAIR && !filled))
            continue;
        r.start = MIN(r.start, t->where);
        r.end = MAX(r.end, t->where + t->bytes);
        if (filled) r.filled = MIN(r.filled, t->where);
    }
    r.filled = MIN(r.filled, r.end);
    return r;
}

/* Keeps those in L2 while weights stream through it, as many as there is room for of the filled
 * ones. A driver that cannot, as on a part of a card, says so, and everything works without. */
static void keep_activations(struct backend_instance *i) {
    const struct cuda_device *v = &i->device;
    const struct riding r = riding_bytes(i->program);
    const uint64_t can = (uint64_t)MAX(v->l2_kept_bytes, 0);
    const uint64_t kept = i->options.kept_mib == KEEP_DEFAULT
                              ? (uint64_t)(KEPT_SHARE * (double)can)
                              : MIN((uint64_t)i->options.kept_mib << 20, can);
    if (r.end == 0 || kept == 0) return;
    const uint64_t bytes = MIN(r.end, r.filled + kept) - r.start, flagged = r.filled - r.start;
    union cu_stream_value window = {
        .window = {.base = on_device(i, BLOCK_WORKSPACE, r.start),
                   .bytes = MIN(bytes, (uint64_t)MAX(v->l2_window_bytes, 0)),
                   .hit_ratio = flagged > kept ? (float)kept / (float)flagged : 1,
                   .hit = CU_ACCESS_PERSISTING,
                   .miss = CU_ACCESS_NORMAL}};
    if (i->api->cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, kept) == CU_SUCCESS)
        (void)i->api->cuStreamSetAttribute(i->run.stream, CU_STREAM_ACCESS_POLICY_WINDOW, &window);
}

static int start_run(struct diag *d, struct backend_instance *i) {
    TRY(mailbox_open(d, &i->mailbox, &i->host_rt, &i->limits, PROG(i->program, MODEL)->vocab));
    struct cuda_run_options o = {.api = i->api,
                                 .context = i->context,
                                 .mega = i->mega,
                                 .shared_bytes = shared_bytes(i),
                                 .program = i->program,
                                 .args = &i->args,
                                 .memory = &i->plan.rt,
                                 .mail = i->host_rt.mail,
                                 .trace = i->trace.host != NULL ? &i->trace : NULL,
                                 .silence_ns = i->options.silence_ns,
                                 .look_ns = i->options.look_ns};
    TRY(cuda_run_open(d, &o, &i->run));
    keep_activations(i);
    return QN_OK;
}

static int open_stages(struct diag *d, struct backend_instance *i, const struct weights *weights,
                       const struct backend_config *config) {
    struct rt_options rt = rt_options(&i->options, config);
    uint64_t t = rt_now_ns();
    uint64_t trace_bytes = cuda_trace_bytes(config->trace, i->program->n_workers);
    TRY(cuda_plan_make(d, i->program, &rt, trace_bytes, &i->plan));
    TRY(open_context(d, i));
    CU(d, i->api, cuStreamCreate, &i->stream, CU_STREAM_NON_BLOCKING);
    i->stats.seconds_context = lap(&t);
    progress(config, "kernels", 0, 0); /* the first start of a model compiles: many seconds */
    TRY(open_kernels(d, i));
    i->stats.seconds_image = lap(&t);
    progress(config, "memory", 0, 0);
    TRY(check_free(d, i));
    TRY(take_memory(d, i));
    TRY(fill_memory(d, i));
    TRY(cuda_trace_open(d, i->api, i->stream, config->trace, i->program->n_workers,
                        i->blocks[BLOCK_TRACE], &i->trace));
    i->stats.seconds_memory = lap(&t);
    TRY(load_weights(d, i, weights, config));
    i->stats.seconds_weights = lap(&t);
    return start_run(d, i);
}

static void release(struct backend_instance *i) {
    const struct cuda_api *api = i->api;
    for (int b = 0; b < N_BLOCKS; b++)
        if (i->blocks[b] != 0) api->cuMemFree_v2(i->blocks[b]);
    cuda_trace_close(&i->trace);
    if (i->mail != NULL) api->cuMemFreeHost(i->mail);
    if (i->stream != NULL) api->cuStreamDestroy_v2(i->stream);
    if (i->module != NULL) api->cuModuleUnload(i->module);
    api->cuCtxDestroy_v2(i->context);
}

/* A kernel that does not end keeps its context; nothing that it may touch is freed then. */
static void cuda_close(struct backend_instance *i) {
    if (i == NULL) return;
    bool hung = false;
    if (i->context != NULL) {
        enter(i);
        cuda_run_close(&i->run);
        hung = i->run.hung;
        if (!hung)
            release(i);
        else
            leave(i);
    }
    if (!hung) cuda_api_close(&i->own);
    mailbox_close(&i->mailbox);
    cuda_plan_fini(&i->plan);
    free(i);
}

int backend_cuda_open(struct diag *d, const struct prog_header *program,
                      const struct weights *weights, const struct backend_config *config,
                      const struct backend_cuda_options *options, struct backend_instance **out) {
    struct backend_instance *i = calloc(1, sizeof *i);
    *out = NULL;
    if (i == NULL) return fail_nomem(d, sizeof *i, "the CUDA backend");
    backend_cuda_defaults(&i->options);
    if (options != NULL) i->options = *options;
    i->program = program;
    int rc = open_stages(d, i, weights, config);
    if (i->context != NULL) leave(i); /* cuCtxCreate had made it current */
    if (rc == QN_OK)
        *out = i;
    else
        cuda_close(i);
    return rc;
}

void backend_cuda_stats(const struct backend_instance *i, struct backend_cuda_stats *stats) {
    *stats = i->stats;
    stats->n_launches = cuda_run_launches(&i->run);
    stats->device_bytes = i->plan.device_bytes;
    stats->weight_bytes = i->plan.weight_bytes;
}

/* ---- facts ---- */

static int read_facts(struct diag *d, struct backend_instance *i,
                      struct backend_cuda_facts *facts) {
    size_t free_bytes = 0, total_bytes = 0;
    TRY(open_context(d, i));
    facts->device = i->device;
    cuda_device_arch(&i->device, facts->arch);
    snprintf(facts->driver, sizeof facts->driver, "%d.%d", i->device.driver_version / 1000,
             i->device.driver_version % 1000 / 10);
    CU(d, i->api, cuMemGetInfo_v2, &free_bytes, &total_bytes);
    facts->free_bytes = free_bytes;
    return QN_OK;
}

int backend_cuda_facts(struct diag *d, struct backend_cuda_facts *facts) {
    struct backend_instance *i = calloc(1, sizeof *i);
    struct nvrtc nvrtc;
    struct diag why = {0};
    *facts = (struct backend_cuda_facts){0};
    if (i == NULL) return fail_nomem(d, sizeof *i, "the CUDA backend");
    int rc = read_facts(d, i, facts);
    if (i->context != NULL) leave(i);
    cuda_close(i);
    if (nvrtc_open(&why, getenv("QN_NVRTC"), &nvrtc) == QN_OK) {
        snprintf(facts->nvrtc, sizeof facts->nvrtc, "NVRTC %d.%d (%.480s)", nvrtc.major,
                 nvrtc.minor, nvrtc.path);
        nvrtc_close(&nvrtc);
    } else {
        snprintf(facts->nvrtc, sizeof facts->nvrtc, "%.500s", why.message);
    }
    return rc;
}

/* ---- the row of the table ---- */

/* A GPU and a compiler for it; both are looked at, so that "auto" falls back to the CPU. */
static int cuda_available(struct diag *d) {
    struct backend_instance i = {0};
    struct nvrtc nvrtc;
    int rc = open_device(d, &i);
    if (rc == QN_OK) rc = nvrtc_open(d, getenv("QN_NVRTC"), &nvrtc);
    if (rc == QN_OK) nvrtc_close(&nvrtc);
    cuda_api_close(&i.own);
    return rc;
}

static int cuda_device(struct diag *d, const struct backend_config *config,
                       struct backend_device *out) {
    struct backend_instance i = {0};
    (void)config; /* threads and instruction sets are the CPU's */
    int rc = open_device(d, &i);
    if (rc == QN_OK) {
        out->compute = device_cuda((uint32_t)(i.device.major * 10 + i.device.minor),
                                   (uint32_t)i.device.n_sms, /* one block on each */
                                   bytes_per_ns(&i.device));
        out->memory_bytes = i.device.total_bytes;
        snprintf(out->name, sizeof out->name, "%.60s, %d SMs, sm_%d%d", i.device.name,
                 i.device.n_sms, i.device.major, i.device.minor);
    }
    cuda_api_close(&i.own);
    return rc;
}

static int cuda_plan_bytes(struct diag *d, const struct prog_header *program,
                           const struct backend_config *config, struct backend_plan *out) {
    struct backend_cuda_options o;
    struct cuda_plan plan;
    backend_cuda_defaults(&o);
    struct rt_options rt = rt_options(&o, config);
    int rc = cuda_plan_make(d, program, &rt, 0, &plan);
    if (rc == QN_OK)
        *out = (struct backend_plan){
            .kv_bytes = plan.kv_bytes,
            .workspace_bytes = plan.workspace_bytes,
            .other_bytes = plan.device_bytes - plan.weight_bytes + plan.padding_bytes -
                           plan.kv_bytes - plan.workspace_bytes,
        };
    cuda_plan_fini(&plan);
    return rc;
}

static int cuda_open(struct diag *d, const struct prog_header *program,
                     const struct weights *weights, const struct backend_config *config,
                     struct backend_instance **out) {
    return backend_cuda_open(d, program, weights, config, NULL, out);
}

static int cuda_submit(struct diag *d, struct backend_instance *i, const struct rt_request *request,
                       const int32_t *prompt, uint32_t *slot) {
    TRY(cuda_run_status(d, &i->run));
    return mailbox_submit(d, &i->mailbox, request, prompt, slot);
}

static int cuda_cancel(struct diag *d, struct backend_instance *i, uint32_t slot) {
    TRY(cuda_run_status(d, &i->run));
    return mailbox_cancel(d, &i->mailbox, slot);
}

/* What was published before it broke is still good. */
static int cuda_poll(struct diag *d, struct backend_instance *i, uint32_t slot,
                     struct mailbox_view *view) {
    TRY(mailbox_poll(d, &i->mailbox, slot, view));
    return view->finish == RT_RUNNING ? cuda_run_status(d, &i->run) : QN_OK;
}

static int cuda_release(struct diag *d, struct backend_instance *i, uint32_t slot) {
    return mailbox_release(d, &i->mailbox, slot);
}

/* A kernel that broke makes no progress: who waits asks for its state now and then. */
static int cuda_wait(struct diag *d, struct backend_instance *i, uint32_t *seen, double timeout_s) {
    const uint64_t start = rt_now_ns(),
                   timeout_ns = timeout_s > 0 ? (uint64_t)(timeout_s * 1e9) : 0;
    for (;;) {
        TRY(cuda_run_status(d, &i->run));
        const uint64_t past = rt_now_ns() - start;
        if (mailbox_progress(&i->mailbox) != *seen || past >= timeout_ns) break;
        expect_wait(&i->expect, &i->mailbox, *seen, MIN(timeout_ns - past, STATUS_NS));
    }
    *seen = mailbox_progress(&i->mailbox);
    return QN_OK;
}

/* The kernel ends soon after the last request; the watcher then takes what it recorded. */
static int wait_idle(struct diag *d, struct backend_instance *i) {
    uint64_t start = rt_now_ns();
    while (cuda_run_busy(&i->run)) {
        if (rt_now_ns() - start > END_WAIT_NS)
            return fail(d, QN_EBUSY, "requests are running on the GPU");
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return QN_OK;
}

/* ---- reading ---- */

static int read_once(struct diag *d, struct backend_instance *i, struct cuda_read *read) {
    void *arguments[] = {read};
    unsigned grid = (unsigned)i->device.n_sms * READ_BLOCKS_PER_SM;
    CU(d, i->api, cuLaunchKernel, i->read_all, grid, 1, 1, READ_BLOCK_THREADS, 1, 1, 0, i->stream,
       arguments, NULL);
    return QN_OK;
}

/* Rounds over all weights between two events, twice as many until they last long enough for the
 * events' grain not to matter. The best of the tries counts: a floor is not to be disturbed. */
static int read_rounds(struct diag *d, struct backend_instance *i, cu_event event[2],
                       double seconds, double *rate) {
    struct cuda_read read = {.src = i->blocks[BLOCK_WEIGHTS],
                             .bytes = i->plan.weight_bytes & ~(uint64_t)15,
                             .out = i->blocks[BLOCK_SAMPLE]};
    uint64_t rounds = 1, start = rt_now_ns();
    *rate = 0;
    do {
        float ms = 0;
        CU(d, i->api, cuEventRecord, event[0], i->stream);
        for (uint64_t k = 0; k < rounds; k++) TRY(read_once(d, i, &read));
        CU(d, i->api, cuEventRecord, event[1], i->stream);
        CU(d, i->api, cuEventSynchronize, event[1]);
        CU(d, i->api, cuEventElapsedTime, &ms, event[0], event[1]);
        if (ms > 0) *rate = MAX(*rate, 1e3 * (double)(rounds * read.bytes) / ms);
        if (ms < READ_ROUNDS_MS) rounds *= 2;
    } while (1e-9 * (double)(rt_now_ns() - start) < seconds);
    return QN_OK;
}

static int cuda_measure_read(struct diag *d, struct backend_instance *i, double seconds,
                             double *rate) {
    TRY(wait_idle(d, i));
    cu_event event[2] = {NULL, NULL};
    int rc = QN_OK;
    enter(i);
    for (int k = 0; k < 2 && rc == QN_OK; k++)
        rc = cuda_check(d, i->api, "cuEventCreate",
                        i->api->cuEventCreate(&event[k], CU_EVENT_DEFAULT));
    if (rc == QN_OK) rc = read_rounds(d, i, event, seconds, rate);
    for (int k = 0; k < 2; k++)
        if (event[k] != NULL) i->api->cuEventDestroy_v2(event[k]);
    leave(i);
    return rc;
}

const struct backend backend_cuda = {
    .name = "cuda",
    .target = TARGET_CUDA,
    .traces = true,
    .makes_dummy = true,
    .available = cuda_available,
    .device = cuda_device,
    .plan = cuda_plan_bytes,
    .open = cuda_open,
    .submit = cuda_submit,
    .cancel = cuda_cancel,
    .poll = cuda_poll,
    .release = cuda_release,
    .wait = cuda_wait,
    .trace_wait = wait_idle,
    .measure_read = cuda_measure_read,
    .close = cuda_close,
};
