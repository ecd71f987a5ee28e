/* cuda_rank.c - see cuda_rank.h. */
#include "engine/cuda_rank.h"

#include "base/checked.h"

#include <math.h>

enum {
    /* A flight is what the memory brings in this time (flight_pages): */
    FLIGHT_NS = 1300, /* at least, while tasks may wait for activations */
    DEEP_NS = 3500,   /* otherwise */
    FLIGHT_PAGES = 5, /* where the driver does not say how fast the memory is */
    READ_BLOCKS_PER_SM = 8,
    READ_BLOCK_THREADS = 256,
    READ_ROUNDS_MS = 5,
};

void cuda_rank_enter(const struct cuda_rank *r) {
    r->shared->api->cuCtxPushCurrent_v2(r->context);
}

void cuda_rank_leave(const struct cuda_rank *r) {
    cu_context none;
    r->shared->api->cuCtxPopCurrent_v2(&none);
}

uint32_t cuda_rank_cc(const struct cuda_rank *r) {
    return (uint32_t)(r->device.major * 10 + r->device.minor);
}

void *cuda_rank_at(const struct cuda_rank *r, enum cuda_block which, uint64_t offset) {
    return (void *)(uintptr_t)(r->blocks[which] + offset);
}

/* ---- context ---- */

int cuda_rank_open(struct diag *d, const struct cuda_shared *shared, uint32_t rank, int ordinal,
                   struct cuda_rank *r) {
    const struct cuda_api *api = shared->api;
    *r = (struct cuda_rank){.shared = shared, .rank = rank};
    TRY(cuda_device_find(d, api, ordinal, &r->device));
    CU(d, api, cuCtxCreate_v2, &r->context, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST,
       r->device.handle);
    int rc = cuda_check(d, api, "cuStreamCreate",
                        api->cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
    cuda_rank_leave(r); /* cuCtxCreate had made it current */
    return rc;
}

/* ---- kernels ---- */

static uint32_t shared_bytes(const struct cuda_rank *r) {
    return cuda_shared_bytes(cuda_rank_cc(r));
}

/* One block per worker. */
static int check_resident(struct diag *d, const struct cuda_rank *r) {
    int per_sm = 0;
    CU(d, r->shared->api, cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, r->mega,
       CUDA_BLOCK_THREADS, shared_bytes(r));
    uint32_t most = (uint32_t)MAX(per_sm, 0) * (uint32_t)r->device.n_sms;
    if (r->shared->program->n_workers <= most) return QN_OK;
    return fail(d, QN_EDEVICE,
                "%s: the program is for %u workers, %u blocks fit (%d on each of %d "
                "SMs)",
                r->device.name, r->shared->program->n_workers, most, per_sm, r->device.n_sms);
}

static int load_kernels(struct diag *d, struct cuda_rank *r, const void *image) {
    const struct cuda_api *api = r->shared->api;
    const uint32_t shared = shared_bytes(r);
    CU(d, api, cuModuleLoadData, &r->module, image);
    CU(d, api, cuModuleGetFunction, &r->mega, r->module, "qn_mega");
    CU(d, api, cuModuleGetFunction, &r->read_all, r->module, "qn_read_all");
    CU(d, api, cuFuncGetAttribute, &r->registers, CU_FUNC_NUM_REGS, r->mega);
    CU(d, api, cuFuncGetAttribute, &r->local_bytes, CU_FUNC_LOCAL_SIZE_BYTES, r->mega);
    if ((int64_t)shared > r->device.shared_bytes)
        return fail(d, QN_EDEVICE, "%s gives a block %d bytes of shared memory, want %u",
                    r->device.name, r->device.shared_bytes, shared);
    CU(d, api, cuFuncSetAttribute, r->mega, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared);
    return check_resident(d, r);
}

int cuda_rank_load(struct diag *d, struct cuda_rank *r, const void *image) {
    cuda_rank_enter(r);
    int rc = load_kernels(d, r, image);
    cuda_rank_leave(r);
    return rc;
}

/* ---- memory ---- */

/* Pages per multiprocessor that keep the memory busy for ns (Little's law), rounded up: 6 and 16 on
 * an H200; 5 and 11 on an H100. */
static uint32_t flight_pages(const struct cuda_device *v, double ns) {
    const double pages = ceil(cuda_device_bytes_per_ns(v) * ns / CUDA_PAGE_BYTES);
    if (pages <= 0) return FLIGHT_PAGES;
    return (uint32_t)MIN(pages, CUDA_MAX_FLIGHT);
}

static void choose_flight(struct cuda_rank *r) {
    const struct backend_cuda_options *o = r->shared->options;
    const uint32_t near = o->flight != 0 ? o->flight : flight_pages(&r->device, FLIGHT_NS);
    const uint32_t deep = o->flight_deep != 0 ? o->flight_deep
                          : o->flight != 0    ? near
                                              : flight_pages(&r->device, DEEP_NS);
    r->args.flight = near;
    r->args.flight_deep = MAX(near, deep);
    r->args.stream = o->stream;
}

static int fill_here(struct diag *d, struct cuda_rank *r, struct rt_trace *trace) {
    TRY(cuda_memory_take(d, r));
    TRY(cuda_memory_fill(d, r));
    choose_flight(r);
    return cuda_trace_open(d, r->shared->api, r->stream, r->rank == 0 ? trace : NULL,
                           r->shared->program->n_workers, r->blocks[CUDA_BLOCK_TRACE], &r->trace);
}

int cuda_rank_fill(struct diag *d, struct cuda_rank *r, struct rt_trace *trace) {
    cuda_rank_enter(r);
    int rc = fill_here(d, r, trace);
    cuda_rank_leave(r);
    return rc;
}

int cuda_rank_weights(struct diag *d, struct cuda_rank *r, const struct weights *weights,
                      void (*each)(void *user, uint64_t done), void *user) {
    cuda_rank_enter(r);
    int rc = cuda_memory_weights(d, r, weights, each, user);
    cuda_rank_leave(r);
    return rc;
}

/* ---- start and close ---- */

int cuda_rank_start(struct diag *d, struct cuda_rank *r, struct rt_mail *readers) {
    const struct cuda_shared *s = r->shared;
    const struct cuda_run_options o = {.api = s->api,
                                       .context = r->context,
                                       .mega = r->mega,
                                       .shared_bytes = shared_bytes(r),
                                       .program = s->program,
                                       .args = &r->args,
                                       .memory = &s->plan->rt,
                                       .mail = r->host_rt.mail,
                                       .readers = readers,
                                       .trace = r->trace.host != NULL ? &r->trace : NULL,
                                       .silence_ns = s->options->silence_ns,
                                       .look_ns = s->options->look_ns};
    cuda_rank_enter(r);
    int rc = cuda_run_open(d, &o, &r->run);
    if (rc == QN_OK) cuda_memory_keep(r);
    cuda_rank_leave(r);
    return rc;
}

bool cuda_rank_close(struct cuda_rank *r) {
    if (r->context == NULL) return true;
    const struct cuda_api *api = r->shared->api;
    cuda_rank_enter(r);
    cuda_run_close(&r->run);
    if (r->run.hung) {
        cuda_rank_leave(r);
        return false;
    }
    cuda_trace_close(&r->trace);
    cuda_memory_give_back(r);
    if (r->stream != NULL) api->cuStreamDestroy_v2(r->stream);
    if (r->module != NULL) api->cuModuleUnload(r->module);
    api->cuCtxDestroy_v2(r->context); /* current, so it is no longer */
    r->context = NULL;
    return true;
}

/* ---- reading ---- */

static int copy_reads(struct diag *d, const struct cuda_rank *r, struct rt_reads *reads) {
    const struct cuda_api *api = r->shared->api;
    const cu_pointer at = r->blocks[CUDA_BLOCK_STATE] + r->shared->plan->rt.offset[RT_PART_READS];
    CU(d, api, cuMemcpyDtoHAsync_v2, reads, at, sizeof *reads, r->stream);
    CU(d, api, cuStreamSynchronize, r->stream);
    return QN_OK;
}

int cuda_rank_reads(struct diag *d, const struct cuda_rank *r, struct rt_reads *reads) {
    cuda_rank_enter(r);
    const int rc = copy_reads(d, r, reads);
    cuda_rank_leave(r);
    return rc;
}

static int read_once(struct diag *d, const struct cuda_rank *r, struct cuda_read *read) {
    void *arguments[] = {read};
    unsigned grid = (unsigned)r->device.n_sms * READ_BLOCKS_PER_SM;
    CU(d, r->shared->api, cuLaunchKernel, r->read_all, grid, 1, 1, READ_BLOCK_THREADS, 1, 1, 0,
       r->stream, arguments, NULL);
    return QN_OK;
}

/* Reads all weights for some rounds between two CUDA events, and doubles the rounds until they last
 * long enough for the events' resolution not to matter. The best try counts, so that no disturbance
 * enters the floor. */
static int read_rounds(struct diag *d, const struct cuda_rank *r, cu_event event[2], double seconds,
                       double *rate) {
    const struct cuda_api *api = r->shared->api;
    struct cuda_read read = {.src = r->blocks[CUDA_BLOCK_WEIGHTS],
                             .bytes = r->shared->plan->weight_bytes & ~(uint64_t)15,
                             .out = r->blocks[CUDA_BLOCK_SAMPLE]};
    uint64_t rounds = 1, start = rt_now_ns();
    *rate = 0;
    do {
        float ms = 0;
        CU(d, api, cuEventRecord, event[0], r->stream);
        for (uint64_t k = 0; k < rounds; k++) TRY(read_once(d, r, &read));
        CU(d, api, cuEventRecord, event[1], r->stream);
        CU(d, api, cuEventSynchronize, event[1]);
        CU(d, api, cuEventElapsedTime, &ms, event[0], event[1]);
        if (ms > 0) *rate = MAX(*rate, 1e3 * (double)(rounds * read.bytes) / ms);
        if (ms < READ_ROUNDS_MS) rounds *= 2;
    } while (1e-9 * (double)(rt_now_ns() - start) < seconds);
    return QN_OK;
}

int cuda_rank_measure_read(struct diag *d, struct cuda_rank *r, double seconds, double *rate) {
    const struct cuda_api *api = r->shared->api;
    cu_event event[2] = {NULL, NULL};
    int rc = QN_OK;
    cuda_rank_enter(r);
    for (int k = 0; k < 2 && rc == QN_OK; k++)
        rc = cuda_check(d, api, "cuEventCreate", api->cuEventCreate(&event[k], CU_EVENT_DEFAULT));
    if (rc == QN_OK) rc = read_rounds(d, r, event, seconds, rate);
    for (int k = 0; k < 2; k++)
        if (event[k] != NULL) api->cuEventDestroy_v2(event[k]);
    cuda_rank_leave(r);
    return rc;
}
