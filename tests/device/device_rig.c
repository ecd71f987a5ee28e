#include "device/device_rig.h"
#include "base/checked.h"
#include "codegen/cuda_verify.h"
#include "codegen/kernel_image.h"
#include "device/codec.h"
#include "kernels/cpu/cpu_kernel.h"
#include "runtime/rt_stall.h"

#include <stdlib.h>
#include <string.h>

enum { SPIN_LIMIT = 64, DEADLINE_MS = 2000, FLIGHT = 5, FLIGHT_DEEP = 11 };

int device_open(struct diag *d, struct test_device *device) {
    struct nvrtc nvrtc;
    *device = (struct test_device){0};
    TRY(cuda_api_open(d, NULL, &device->api));
    TRY(cuda_device_find(d, &device->api, 0, &device->info));
    TRY(nvrtc_open(d, getenv("QN_NVRTC"), &nvrtc));
    nvrtc_close(&nvrtc);
    CU(d, &device->api, cuCtxCreate_v2, &device->context,
       CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST, device->info.handle);
    CU(d, &device->api, cuStreamCreate, &device->stream, CU_STREAM_NON_BLOCKING);
    return QN_OK;
}

void device_close(struct test_device *device) {
    cuda_upload_close(&device->upload);
    if (device->stream != NULL) device->api.cuStreamDestroy_v2(device->stream);
    if (device->context != NULL) device->api.cuCtxDestroy_v2(device->context);
    cuda_api_close(&device->api);
    *device = (struct test_device){0};
}

uint32_t device_cc(const struct test_device *device) {
    return (uint32_t)(device->info.major * 10 + device->info.minor);
}

/* ---- load ---- */

static int load_image(struct diag *d, struct device_program *p) {
    const struct cuda_api *api = &p->device->api;
    struct nvrtc nvrtc;
    struct kernel_cache cache;
    struct kernel_image image = {0};
    char arch[16];
    cuda_device_arch(&p->device->info, arch);
    codec_set_arch(arch);
    TRY(nvrtc_open(d, getenv("QN_NVRTC"), &nvrtc));
    kernel_cache_init(&cache, false);
    int rc =
        kernel_image_make(d, &nvrtc, &cache, p->program,
                          &(struct kernel_image_options){.arch = arch, .own_forms = true}, &image);
    if (rc == QN_OK)
        rc = cuda_check(d, api, "cuModuleLoadData", api->cuModuleLoadData(&p->module, image.bytes));
    kernel_image_fini(&image);
    nvrtc_close(&nvrtc);
    TRY(rc);
    CU(d, api, cuModuleGetFunction, &p->mega, p->module, "qn_mega");
    CU(d, api, cuFuncSetAttribute, p->mega, CU_FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES,
       (int)cuda_shared_bytes(device_cc(p->device)));
    return QN_OK;
}

static int copy_in(struct diag *d, const struct device_program *p, enum device_block block,
                   const void *from, uint64_t bytes) {
    const struct cuda_api *api = &p->device->api;
    CU(d, api, cuMemcpyHtoDAsync_v2, p->blocks[block], from, bytes, p->device->stream);
    CU(d, api, cuStreamSynchronize, p->device->stream);
    return QN_OK;
}

static int copy_out(struct diag *d, const struct device_program *p, enum device_block block,
                    void *to, uint64_t bytes) {
    const struct cuda_api *api = &p->device->api;
    CU(d, api, cuMemcpyDtoHAsync_v2, to, p->blocks[block], bytes, p->device->stream);
    CU(d, api, cuStreamSynchronize, p->device->stream);
    return QN_OK;
}

static int take_memory(struct diag *d, struct device_program *p) {
    const struct cuda_api *api = &p->device->api;
    const struct cuda_plan *plan = &p->plan;
    const uint64_t bytes[N_DEVICE_BLOCKS] = {
        [DEVICE_WEIGHTS] = plan->weight_bytes,
        [DEVICE_KV] = plan->kv_bytes + DEVICE_GUARD_BYTES,
        [DEVICE_WORKSPACE] = plan->workspace_bytes + DEVICE_GUARD_BYTES,
        [DEVICE_STATE] = plan->state_bytes,
        [DEVICE_PROGRAM] = plan->program_bytes,
        [DEVICE_TASKS] = plan->task_bytes,
        [DEVICE_ROPE] = plan->rope_bytes,
        [DEVICE_SAMPLE] = plan->sample_bytes,
        [DEVICE_SUMS] = plan->sums_bytes,
    };
    for (int b = 0; b < N_DEVICE_BLOCKS; b++) {
        p->bytes[b] = MAX(bytes[b], 1u);
        CU(d, api, cuMemAlloc_v2, &p->blocks[b], p->bytes[b]);
        CU(d, api, cuMemsetD8Async, p->blocks[b], 0, p->bytes[b], p->device->stream);
    }
    CU(d, api, cuMemHostAlloc, &p->mail, plan->mail_bytes, CU_HOST_DEVICEMAP | CU_HOST_PORTABLE);
    CU(d, api, cuMemHostGetDevicePointer_v2, &p->d_mail, p->mail, 0);
    return QN_OK;
}

static int fill_rope(struct diag *d, const struct device_program *p) {
    float *table = malloc(p->plan.rope_bytes);
    if (table == NULL) return fail_nomem(d, p->plan.rope_bytes, "the RoPE table");
    cpu_rope_fill(PROG(p->program, MODEL), p->program->max_model_len, table,
                  table + p->plan.rope_bytes / 2 / sizeof *table);
    const int rc = copy_in(d, p, DEVICE_ROPE, table, p->plan.rope_bytes);
    free(table);
    return rc;
}

struct cuda_bases device_bases(const struct device_program *p) {
    return (struct cuda_bases){.weights = p->blocks[DEVICE_WEIGHTS],
                               .workspace = p->blocks[DEVICE_WORKSPACE],
                               .tasks = p->blocks[DEVICE_TASKS],
                               .kv = p->blocks[DEVICE_KV],
                               .n_kv_blocks = p->plan.rt.options.n_kv_blocks,
                               .cc = device_cc(p->device)};
}

static int fill_tasks(struct diag *d, struct device_program *p) {
    const struct cuda_bases bases = device_bases(p);
    TRY(cuda_tables_check(d, p->program, &bases));
    p->tasks = calloc(1, p->plan.task_bytes);
    if (p->tasks == NULL) return fail_nomem(d, p->plan.task_bytes, "the task table");
    TRY(cuda_tables_fill(d, p->program, p->plan.places, &bases, p->tasks));
    const struct cuda_tables t = {.places = p->plan.places,
                                  .weight_bytes = p->plan.weight_bytes,
                                  .bases = bases,
                                  .tasks = p->tasks};
    return cuda_verify(d, p->program, &t);
}

static int load_weights(struct diag *d, const struct device_program *p,
                        const void *const *weights) {
    const struct cuda_api *api = &p->device->api;
    struct cuda_upload *u = &p->device->upload;
    if (u->api == NULL) TRY(cuda_upload_open(d, api, p->module, p->device->stream, 0, true, u));
    CU(d, api, cuModuleGetFunction, &u->retile, p->module, "qn_retile");
    u->weights = p->blocks[DEVICE_WEIGHTS];
    for (uint64_t k = 0; k < p->program->section[SECTION_WEIGHT].count; k++) {
        const struct prog_weight *w = &PROG(p->program, WEIGHT)[k];
        for (uint32_t n = w->first_part; n < w->first_part + w->n_parts; n++) {
            const struct prog_part *part = &PROG(p->program, PART)[n];
            struct cuda_upload_weight to = {.place = &p->plan.places[k],
                                            .part = part,
                                            .rows = part->rows,
                                            .cols = w->n_dims == 2 ? w->cols : 1,
                                            .src_dtype = w->dtype,
                                            .dst_dtype = w->dtype};
            const uint64_t bytes = to.rows * to.cols * dtype_bytes((enum dtype)w->dtype);
            for (; to.tensor < prog_part_tensors(part); to.tensor++)
                TRY(cuda_upload_rows(d, u, &to, (const char *)weights[n] + to.tensor * bytes));
        }
    }
    return cuda_upload_finish(d, u);
}

int device_load(struct diag *d, struct test_device *device, const struct prog_header *program,
                const void *const *weights, uint32_t n_kv_blocks, struct device_program *out) {
    const char *ms = getenv("QN_DEADLINE_MS");
    const struct rt_options options = {
        .n_kv_blocks = n_kv_blocks,
        .spin_limit = SPIN_LIMIT,
        .until_idle = true,
        .deadline_ns = (ms != NULL ? strtoull(ms, NULL, 10) : DEADLINE_MS) * 1000000};
    *out = (struct device_program){.device = device, .program = program};
    TRY(cuda_plan_make(d, program, &options, 0, &out->plan));
    TRY(load_image(d, out));
    TRY(take_memory(d, out));
    TRY(copy_in(d, out, DEVICE_PROGRAM, program, program->total_bytes));
    TRY(fill_rope(d, out));
    TRY(fill_tasks(d, out));
    return load_weights(d, out, weights);
}

void device_unload(struct device_program *p) {
    const struct cuda_api *api = &p->device->api;
    for (int b = 0; b < N_DEVICE_BLOCKS; b++)
        if (p->blocks[b] != 0) api->cuMemFree_v2(p->blocks[b]);
    if (p->mail != NULL) api->cuMemFreeHost(p->mail);
    if (p->module != NULL) api->cuModuleUnload(p->module);
    cuda_plan_fini(&p->plan);
    free(p->tasks);
    *p = (struct device_program){0};
}

int device_weights(struct diag *d, const struct device_program *p, char *weights) {
    return copy_out(d, p, DEVICE_WEIGHTS, weights, p->plan.weight_bytes);
}

/* ---- run ---- */

static void *on_device(const struct device_program *p, enum device_block block, uint64_t offset) {
    return (void *)(uintptr_t)(p->blocks[block] + offset);
}

/* The state before the launch, with the iteration's requests running. */
static int fill_state(struct diag *d, const struct device_program *p, const struct iteration *it,
                      char *state, struct rt *rt) {
    const struct rt_memory *m = &p->plan.rt;
    struct rt host;
    struct rt_batch batch, unused;
    memset(state, 0, m->state_bytes);
    memset(p->mail, 0, p->plan.mail_bytes);
    rt_memory_bind(m, p->program, on_device(p, DEVICE_PROGRAM, 0), on_device(p, DEVICE_STATE, 0),
                   (void *)(uintptr_t)p->d_mail, rt, &batch);
    rt_memory_init(m, p->program, state, p->mail, &batch);
    rt_memory_bind(m, p->program, p->program, state, p->mail, &host, &unused);
    iteration_enter(it, &host, &unused);
    iteration_choose(it, rt);
    return copy_in(d, p, DEVICE_STATE, state, m->state_bytes);
}

/* The others wait and trigger as before. */
static int fill_only(struct diag *d, const struct device_program *p, const struct iteration *it,
                     uint32_t only) {
    const struct prog_variant *v = &PROG(p->program, VARIANT)[it->variant];
    struct cuda_task *tasks = malloc(p->plan.task_bytes);
    if (tasks == NULL) return fail_nomem(d, p->plan.task_bytes, "the task table");
    memcpy(tasks, p->tasks, p->plan.task_bytes);
    for (uint32_t t = v->first_task; only != PROG_NONE && t < v->first_task + v->n_tasks; t++)
        if (t != only)
            tasks[t] = (struct cuda_task){.flags = tasks[t].flags,
                                          .wait = tasks[t].wait,
                                          .wait_triggers = tasks[t].wait_triggers,
                                          .trigger = tasks[t].trigger,
                                          .index = tasks[t].index};
    const int rc = copy_in(d, p, DEVICE_TASKS, tasks, p->plan.task_bytes);
    free(tasks);
    return rc;
}

static int launch(struct diag *d, const struct device_program *p, const struct rt *rt) {
    const struct cuda_api *api = &p->device->api;
    struct cuda_args args = {
        .rt = *rt,
        .tasks = on_device(p, DEVICE_TASKS, 0),
        .rope_cos = on_device(p, DEVICE_ROPE, 0),
        .rope_sin = on_device(p, DEVICE_ROPE, p->plan.rope_bytes / 2),
        .sample_scratch = on_device(p, DEVICE_SAMPLE, 0),
        .logit_rows = p->plan.logit_rows,
        .waiting_sums = on_device(p, p->plan.sums_bytes > 0 ? DEVICE_SUMS : DEVICE_SAMPLE, 0),
        .flight = FLIGHT,
        .flight_deep = FLIGHT_DEEP,
        .stream = CUDA_STREAM_ITERATIONS};
    void *arguments[] = {&args};
    CU(d, api, cuLaunchCooperativeKernel, p->mega, rt->n_workers, 1, 1, CUDA_BLOCK_THREADS, 1, 1,
       cuda_shared_bytes(device_cc(p->device)), p->device->stream, arguments);
    CU(d, api, cuStreamSynchronize, p->device->stream);
    return QN_OK;
}

/* The kernel must have stopped after exactly one iteration, of the variant that was asked for. */
static int check_end(struct diag *d, const struct device_program *p, const struct iteration *it,
                     char *state) {
    struct rt rt;
    struct rt_batch batch;
    rt_memory_bind(&p->plan.rt, p->program, p->program, state, p->mail, &rt, &batch);
    if (rt.shared->stop == RT_STOP_STALL) return rt_stall_fail(d, p->program, &rt);
    if (rt.shared->stop != RT_STOP_IDLE || rt.control->n_iterations != 1 ||
        rt.control->variant != it->variant || rt.control->n_rows_run != it->n_rows)
        return fail(d, QN_EINTERNAL,
                    "want one iteration of variant %u with %u rows, had %llu, the "
                    "last of variant %u, with %llu rows in all; stop %u",
                    it->variant, it->n_rows, (unsigned long long)rt.control->n_iterations,
                    rt.control->variant, (unsigned long long)rt.control->n_rows_run,
                    rt.shared->stop);
    return QN_OK;
}

int device_run(struct diag *d, const struct device_program *p, const struct iteration *it,
               uint32_t only, struct device_memory *memory) {
    struct rt rt;
    TRY(fill_state(d, p, it, memory->state, &rt));
    TRY(fill_only(d, p, it, only));
    TRY(copy_in(d, p, DEVICE_WORKSPACE, memory->workspace, p->bytes[DEVICE_WORKSPACE]));
    if (memory->kv != NULL) TRY(copy_in(d, p, DEVICE_KV, memory->kv, p->bytes[DEVICE_KV]));
    TRY(launch(d, p, &rt));
    TRY(copy_out(d, p, DEVICE_STATE, memory->state, p->plan.state_bytes));
    TRY(check_end(d, p, it, memory->state));
    TRY(copy_out(d, p, DEVICE_WORKSPACE, memory->workspace, p->bytes[DEVICE_WORKSPACE]));
    if (memory->weights != NULL) TRY(device_weights(d, p, memory->weights));
    if (memory->kv == NULL) return QN_OK;
    return copy_out(d, p, DEVICE_KV, memory->kv, p->bytes[DEVICE_KV]);
}
