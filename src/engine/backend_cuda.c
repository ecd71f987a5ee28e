/* backend_cuda.c - the CUDA backend's row of the table, its options, and facts about the machine. A
 * group (cuda_group.h) serves the requests. */
#include "engine/backend_cuda.h"

#include "base/checked.h"
#include "engine/cuda_group.h"
#include "runtime/trace_rings.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    DEADLINE_MS = 2000,
    LOOK_US = 25,
};

struct backend_instance {
    struct cuda_group group;
};

/* ---- options ---- */

/* A whole number from the environment, clamped to [low, high]; these variables are for tools and
 * tuning. */
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

/* ---- the machine ---- */

/* Finds one GPU and leaves it as it is. */
static int find_device(struct diag *d, struct cuda_device *device) {
    struct backend_cuda_options o = {0};
    struct cuda_api own = {0};
    const struct cuda_api *api;
    int rc = cuda_group_driver(d, &o, &own, &api);
    if (rc == QN_OK) rc = cuda_device_find(d, api, cuda_group_ordinal(), device);
    cuda_api_close(&own);
    return rc;
}

static int read_facts(struct diag *d, struct cuda_rank *r, struct backend_cuda_facts *facts) {
    size_t free_bytes = 0, total_bytes = 0;
    TRY(cuda_rank_open(d, r->shared, 0, cuda_group_ordinal(), r));
    facts->device = r->device;
    cuda_device_arch(&r->device, facts->arch);
    snprintf(facts->driver, sizeof facts->driver, "%d.%d", r->device.driver_version / 1000,
             r->device.driver_version % 1000 / 10);
    cuda_rank_enter(r);
    int rc = cuda_check(d, r->shared->api, "cuMemGetInfo_v2",
                        r->shared->api->cuMemGetInfo_v2(&free_bytes, &total_bytes));
    cuda_rank_leave(r);
    facts->free_bytes = free_bytes;
    return rc;
}

static int device_facts(struct diag *d, struct backend_cuda_facts *facts) {
    struct backend_cuda_options o = {0};
    struct cuda_api own = {0};
    struct cuda_shared shared = {.n_ranks = 1};
    struct cuda_rank *r = calloc(1, sizeof *r);
    if (r == NULL) return fail_nomem(d, sizeof *r, "a GPU");
    r->shared = &shared;
    int rc = cuda_group_driver(d, &o, &own, &shared.api);
    if (rc == QN_OK) rc = read_facts(d, r, facts);
    cuda_rank_close(r);
    cuda_api_close(&own);
    free(r);
    return rc;
}

int backend_cuda_facts(struct diag *d, struct backend_cuda_facts *facts) {
    struct nvrtc nvrtc;
    struct diag why = {0};
    *facts = (struct backend_cuda_facts){0};
    int rc = device_facts(d, facts);
    if (nvrtc_open(&why, getenv("QN_NVRTC"), &nvrtc) == QN_OK) {
        snprintf(facts->nvrtc, sizeof facts->nvrtc, "NVRTC %d.%d (%.480s)", nvrtc.major,
                 nvrtc.minor, nvrtc.path);
        nvrtc_close(&nvrtc);
    } else {
        snprintf(facts->nvrtc, sizeof facts->nvrtc, "%.500s", why.message);
    }
    return rc;
}

/* Looks for a GPU and for a compiler for it, so that "auto" falls back to the CPU. */
static int cuda_available(struct diag *d) {
    struct cuda_device device;
    struct nvrtc nvrtc;
    TRY(find_device(d, &device));
    TRY(nvrtc_open(d, getenv("QN_NVRTC"), &nvrtc));
    nvrtc_close(&nvrtc);
    return QN_OK;
}

static int cuda_device(struct diag *d, const struct backend_config *config,
                       struct backend_device *out) {
    struct cuda_device device;
    (void)config; /* threads and instruction sets are the CPU's */
    TRY(find_device(d, &device));
    out->compute = device_cuda((uint32_t)(device.major * 10 + device.minor),
                               (uint32_t)device.n_sms, /* one block on each */
                               cuda_device_bytes_per_ns(&device));
    out->memory_bytes = device.total_bytes;
    snprintf(out->name, sizeof out->name, "%.60s, %d SMs, sm_%d%d", device.name, device.n_sms,
             device.major, device.minor);
    return QN_OK;
}

static int cuda_plan_bytes(struct diag *d, const struct prog_header *program,
                           const struct backend_config *config, struct backend_plan *out) {
    struct backend_cuda_options o;
    struct cuda_plan plan;
    backend_cuda_defaults(&o);
    struct rt_options rt = cuda_group_protocol(&o, config);
    const uint32_t n = program->n_workers;
    const uint64_t ring = config->trace_bytes ? trace_ring_bytes(n, config->trace_bytes) : 0;
    int rc = cuda_plan_make(d, program, &rt, cuda_trace_bytes(ring, n), &plan);
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

/* ---- an instance ---- */

static void cuda_close(struct backend_instance *i) {
    if (i == NULL) return;
    cuda_group_close(&i->group);
    free(i);
}

int backend_cuda_open(struct diag *d, const struct prog_header *program,
                      const struct weights *weights, const struct backend_config *config,
                      const struct backend_cuda_options *options, struct backend_instance **out) {
    struct backend_instance *i = calloc(1, sizeof *i);
    *out = NULL;
    if (i == NULL) return fail_nomem(d, sizeof *i, "the CUDA backend");
    backend_cuda_defaults(&i->group.options);
    if (options != NULL) i->group.options = *options;
    int rc = cuda_group_open(d, program, weights, config, &i->group);
    if (rc == QN_OK)
        *out = i;
    else
        cuda_close(i);
    return rc;
}

struct cuda_group *backend_cuda_group(struct backend_instance *i) {
    return &i->group;
}

void backend_cuda_stats(const struct backend_instance *i, struct backend_cuda_stats *stats) {
    *stats = i->group.stats;
    stats->n_launches = cuda_run_launches(&i->group.ranks[0].run);
    stats->device_bytes = i->group.plan.device_bytes;
    stats->weight_bytes = i->group.plan.weight_bytes;
}

static int cuda_open(struct diag *d, const struct prog_header *program,
                     const struct weights *weights, const struct backend_config *config,
                     struct backend_instance **out) {
    return backend_cuda_open(d, program, weights, config, NULL, out);
}

static int cuda_submit(struct diag *d, struct backend_instance *i, const struct rt_request *request,
                       const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot) {
    return cuda_group_submit(d, &i->group, request, extras, prompt, slot);
}

static int cuda_cancel(struct diag *d, struct backend_instance *i, uint32_t slot) {
    return cuda_group_cancel(d, &i->group, slot);
}

static int cuda_poll(struct diag *d, struct backend_instance *i, uint32_t slot,
                     struct mailbox_view *view) {
    return cuda_group_poll(d, &i->group, slot, view);
}

static int cuda_release(struct diag *d, struct backend_instance *i, uint32_t slot) {
    return cuda_group_release(d, &i->group, slot);
}

static struct mailbox *cuda_mailbox(struct backend_instance *i) {
    return &i->group.mailbox;
}

static int cuda_wait(struct diag *d, struct backend_instance *i, uint32_t *seen, double timeout_s) {
    return cuda_group_wait(d, &i->group, seen, timeout_s);
}

static int cuda_trace_wait(struct diag *d, struct backend_instance *i) {
    return cuda_group_wait_idle(d, &i->group);
}

static int cuda_measure_read(struct diag *d, struct backend_instance *i, double seconds,
                             double *rate) {
    TRY(cuda_group_wait_idle(d, &i->group));
    return cuda_rank_measure_read(d, &i->group.ranks[0], seconds, rate);
}

/* The counts of rank 0. Those of other ranks may be an iteration apart. */
static void cuda_reads(struct backend_instance *i, struct rt_reads *reads) {
    if (cuda_rank_reads(NULL, &i->group.ranks[0], reads) != QN_OK) *reads = (struct rt_reads){0};
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
    .mailbox = cuda_mailbox,
    .reads = cuda_reads,
    .wait = cuda_wait,
    .trace_wait = cuda_trace_wait,
    .measure_read = cuda_measure_read,
    .close = cuda_close,
};
