/* cuda_memory.c - what a rank's memory is and what lies in it before the first launch. */
#include "engine/cuda_rank.h"

#include "base/arena.h"
#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "codegen/cuda_upload.h"
#include "codegen/cuda_verify.h"
#include "graph/kernel_graph.h"
#include "kernels/cpu/cpu_kernel.h"

#include <stdlib.h>
#include <string.h>

/* ---- taking ---- */

static int check_free(struct diag *d, const struct cuda_rank *r) {
    size_t free_bytes = 0, total_bytes = 0;
    CU(d, r->shared->api, cuMemGetInfo_v2, &free_bytes, &total_bytes);
    return cuda_plan_check(d, r->shared->plan, free_bytes, total_bytes);
}

/* Every block begins zeroed: padding of the weights, unwritten positions, flags. */
static int take_block(struct diag *d, struct cuda_rank *r, enum cuda_block which, uint64_t bytes) {
    const struct cuda_api *api = r->shared->api;
    if (bytes == 0) return QN_OK;
    cu_result result = api->cuMemAlloc_v2(&r->blocks[which], bytes);
    if (result == CU_ERROR_OUT_OF_MEMORY)
        return fail(d, QN_ELIMIT, "GPU memory: %.2f GiB more are not free (of %.2f GiB in all)",
                    (double)bytes / (1 << 30), (double)r->shared->plan->device_bytes / (1 << 30));
    TRY(cuda_check(d, api, "cuMemAlloc_v2", result));
    CU(d, api, cuMemsetD8Async, r->blocks[which], 0, bytes, r->stream);
    return QN_OK;
}

int cuda_memory_take(struct diag *d, struct cuda_rank *r) {
    const struct cuda_api *api = r->shared->api;
    const struct cuda_plan *p = r->shared->plan;
    const uint64_t bytes[N_CUDA_BLOCKS] = {
        [CUDA_BLOCK_WEIGHTS] = p->weight_bytes,
        [CUDA_BLOCK_KV] = p->kv_bytes,
        [CUDA_BLOCK_WORKSPACE] = p->workspace_bytes,
        [CUDA_BLOCK_STATE] = p->state_bytes,
        [CUDA_BLOCK_PROGRAM] = p->program_bytes,
        [CUDA_BLOCK_TASKS] = p->task_bytes,
        [CUDA_BLOCK_ROPE] = p->rope_bytes,
        [CUDA_BLOCK_SAMPLE] = p->sample_bytes,
        [CUDA_BLOCK_SUMS] = p->sums_bytes,
        [CUDA_BLOCK_TRACE] = r->rank == 0 ? p->trace_bytes : 0,
    };
    TRY(check_free(d, r));
    for (int b = 0; b < N_CUDA_BLOCKS; b++) TRY(take_block(d, r, (enum cuda_block)b, bytes[b]));
    const cu_result pinned =
        api->cuMemHostAlloc(&r->mail, p->mail_bytes, CU_HOST_DEVICEMAP | CU_HOST_PORTABLE);
    if (pinned == CU_ERROR_OUT_OF_MEMORY)
        return fail(d, QN_ELIMIT,
                    "host memory: %.2f GiB cannot be pinned for the requests' tokens%s; lower "
                    "max_num_seqs or max_model_len",
                    (double)p->mail_bytes / (1 << 30),
                    p->rt.options.choices.routes ? " and experts" : "");
    TRY(cuda_check(d, api, "cuMemHostAlloc", pinned));
    memset(r->mail, 0, p->mail_bytes);
    CU(d, api, cuMemHostGetDevicePointer_v2, &r->d_mail, r->mail, 0);
    return QN_OK;
}

void cuda_memory_give_back(struct cuda_rank *r) {
    const struct cuda_api *api = r->shared->api;
    for (int b = 0; b < N_CUDA_BLOCKS; b++)
        if (r->blocks[b] != 0) api->cuMemFree_v2(r->blocks[b]);
    if (r->mail != NULL) api->cuMemFreeHost(r->mail);
}

/* ---- filling ---- */

static int copy_in(struct diag *d, struct cuda_rank *r, enum cuda_block which, const void *from,
                   uint64_t bytes) {
    CU(d, r->shared->api, cuMemcpyHtoDAsync_v2, r->blocks[which], from, bytes, r->stream);
    CU(d, r->shared->api, cuStreamSynchronize, r->stream);
    return QN_OK;
}

static int fill_tasks(struct diag *d, struct cuda_rank *r) {
    const struct prog_header *program = r->shared->program;
    const struct cuda_plan *plan = r->shared->plan;
    const struct cuda_bases bases = {.weights = r->blocks[CUDA_BLOCK_WEIGHTS],
                                     .workspace = r->blocks[CUDA_BLOCK_WORKSPACE],
                                     .tasks = r->blocks[CUDA_BLOCK_TASKS],
                                     .kv = r->blocks[CUDA_BLOCK_KV],
                                     .n_kv_blocks = plan->rt.options.n_kv_blocks,
                                     .rank = r->rank,
                                     .cc = cuda_rank_cc(r)};
    TRY(cuda_tables_check(d, program, &bases));
    struct cuda_task *tasks = calloc(1, plan->task_bytes);
    if (tasks == NULL) return fail_nomem(d, plan->task_bytes, "the task table");
    const struct cuda_tables made = {plan->places, plan->weight_bytes, bases, tasks};
    int rc = cuda_tables_fill(d, program, plan->places, &bases, tasks);
    if (rc == QN_OK) rc = cuda_verify(d, program, &made);
    if (rc == QN_OK) rc = copy_in(d, r, CUDA_BLOCK_TASKS, tasks, plan->task_bytes);
    free(tasks);
    return rc;
}

/* Writes the first sentinels of the activations that travel with them; from then on RESET_SENTINELS
 * does. */
static int fill_spaces(struct diag *d, struct cuda_rank *r) {
    const struct prog_header *program = r->shared->program;
    for (uint64_t k = 0; k < program->section[SECTION_TENSOR].count; k++) {
        const struct prog_tensor *t = &PROG(program, TENSOR)[k];
        if (t->transport != TRANSPORT_SPACE) continue;
        CU(d, r->shared->api, cuMemsetD8Async, r->blocks[CUDA_BLOCK_WORKSPACE] + t->where,
           CUDA_SENTINEL & 0xff, t->bytes, r->stream);
    }
    return QN_OK;
}

/* The CPU's own table, so that both backends rotate by the same bits. */
static int fill_rope(struct diag *d, struct cuda_rank *r) {
    const struct prog_header *program = r->shared->program;
    const uint64_t bytes = r->shared->plan->rope_bytes;
    float *table = malloc(bytes);
    if (table == NULL) return fail_nomem(d, bytes, "the RoPE table");
    float *sin = table + bytes / 2 / sizeof *table;
    cpu_rope_fill(PROG(program, MODEL), program->max_model_len, table, sin);
    int rc = copy_in(d, r, CUDA_BLOCK_ROPE, table, bytes);
    free(table);
    return rc;
}

/* The runtime's state, made in host memory with the addresses that the kernel will see. */
static int fill_state(struct diag *d, struct cuda_rank *r) {
    const struct rt_memory *m = &r->shared->plan->rt;
    const struct prog_header *program = r->shared->program;
    void *on_device = cuda_rank_at(r, CUDA_BLOCK_STATE, 0);
    struct rt_batch batch;
    void *state = calloc(1, m->state_bytes);
    if (state == NULL) return fail_nomem(d, m->state_bytes, "the runtime's state");
    rt_memory_bind(m, program, cuda_rank_at(r, CUDA_BLOCK_PROGRAM, 0), on_device,
                   (void *)(uintptr_t)r->d_mail, &r->args.rt, &batch);
    rt_memory_init(m, program, state, r->mail, &batch);
    int rc = copy_in(d, r, CUDA_BLOCK_STATE, state, m->state_bytes);
    free(state);
    /* The host's view: of the state it uses the numbers only. */
    rt_memory_bind(m, program, program, on_device, r->mail, &r->host_rt, &r->limits);
    return rc;
}

int cuda_memory_fill(struct diag *d, struct cuda_rank *r) {
    const struct prog_header *program = r->shared->program;
    TRY(copy_in(d, r, CUDA_BLOCK_PROGRAM, program, program->total_bytes));
    TRY(fill_tasks(d, r));
    TRY(fill_spaces(d, r));
    TRY(fill_rope(d, r));
    TRY(fill_state(d, r));
    r->args.tasks = cuda_rank_at(r, CUDA_BLOCK_TASKS, 0);
    r->args.rope_cos = cuda_rank_at(r, CUDA_BLOCK_ROPE, 0);
    r->args.rope_sin = cuda_rank_at(r, CUDA_BLOCK_ROPE, r->shared->plan->rope_bytes / 2);
    r->args.sample_scratch = cuda_rank_at(r, CUDA_BLOCK_SAMPLE, 0);
    r->args.logit_rows = r->shared->plan->logit_rows;
    r->args.waiting_sums =
        cuda_rank_at(r, r->shared->plan->sums_bytes > 0 ? CUDA_BLOCK_SUMS : CUDA_BLOCK_SAMPLE, 0);
    r->args.rt.trace = cuda_rank_at(r, CUDA_BLOCK_TRACE, 0); /* NULL: none */
    return QN_OK;
}

/* ---- weights ---- */

/* Uploads a tensor of a part: number `at` of the recipe's. */
static int upload_tensor(struct diag *d, const struct cuda_rank *r, struct cuda_upload *u,
                         const struct cuda_upload_weight *to, const struct weights *weights,
                         uint64_t at) {
    const char *name = program_string(r->shared->program, to->part->name);
    const void *data = weights != NULL ? weights_at(weights, at) : NULL;
    struct arena arena = {0};
    char *numbered;
    if (data != NULL) return cuda_upload_rows(d, u, to, data);
    if (to->part->stack == 0) return cuda_upload_dummy(d, u, to, name);
    int rc = weight_stack_name(d, &arena, name, to->tensor, &numbered);
    if (rc == QN_OK) rc = cuda_upload_dummy(d, u, to, numbered);
    arena_fini(&arena);
    return rc;
}

/* Uploads a block of weights, whose first tensor is the recipe's number *at. */
static int upload_block(struct diag *d, const struct cuda_rank *r, struct cuda_upload *u,
                        const struct weights *weights, uint64_t k, uint64_t *at) {
    const struct prog_header *program = r->shared->program;
    const struct prog_weight *w = &PROG(program, WEIGHT)[k];
    for (uint32_t n = w->first_part; n < w->first_part + w->n_parts; n++) {
        const struct prog_part *part = &PROG(program, PART)[n];
        struct cuda_upload_weight to = {.place = &r->shared->plan->places[k],
                                        .part = part,
                                        .rows = part->rows,
                                        .cols = w->n_dims == 2 ? w->cols : 1,
                                        .src_dtype = w->dtype,
                                        .dst_dtype = w->dtype};
        for (to.tensor = 0; to.tensor < prog_part_tensors(part); to.tensor++, ++*at)
            TRY(upload_tensor(d, r, u, &to, weights, *at));
    }
    return QN_OK;
}

static int upload_all(struct diag *d, const struct cuda_rank *r, struct cuda_upload *u,
                      const struct weights *weights, void (*each)(void *user, uint64_t done),
                      void *user) {
    TRY(cuda_upload_open(d, r->shared->api, r->module, r->stream, r->blocks[CUDA_BLOCK_WEIGHTS],
                         weights != NULL, u));
    const struct cuda_plan *plan = r->shared->plan;
    const uint64_t n = r->shared->program->section[SECTION_WEIGHT].count;
    for (uint64_t k = 0, at = 0; k < n; k++) {
        TRY(upload_block(d, r, u, weights, k, &at));
        each(user, k + 1 < n ? plan->places[k + 1].offset : plan->weight_bytes);
    }
    return cuda_upload_finish(d, u);
}

int cuda_memory_weights(struct diag *d, struct cuda_rank *r, const struct weights *weights,
                        void (*each)(void *user, uint64_t done), void *user) {
    struct cuda_upload u = {0};
    int rc = upload_all(d, r, &u, weights, each, user);
    cuda_upload_close(&u);
    return rc;
}

/* ---- what stays in L2 ---- */

/* How much is set aside of the L2 that can be: 20 of an H100's 31 MB. With all of it weights arrive
 * 4 % more slowly, with half of it the gain is less (bench/measurements.md, "Data as flag"). */
static const double KEPT_SHARE = 2.0 / 3;

/* The bytes of the workspace with activations whose transport is flag, pair or sentinel, of all
 * variants. Each is written once per iteration, and read right after. Flags and pairs come first;
 * sentinels begin at `sentinels`, at the same place in each variant that has any. */
struct riding {
    uint64_t start, sentinels, end;
};

static struct riding riding_bytes(const struct prog_header *p) {
    struct riding r = {UINT64_MAX, UINT64_MAX, 0};
    for (uint64_t n = 0; n < p->section[SECTION_TENSOR].count; n++) {
        const struct prog_tensor *t = &PROG(p, TENSOR)[n];
        const bool sentinel = t->transport == TRANSPORT_SENTINEL;
        if (t->role != PROG_ACTIVATION ||
            (t->transport != TRANSPORT_FLAG && t->transport != TRANSPORT_PAIR && !sentinel))
            continue;
        r.start = MIN(r.start, t->where);
        r.end = MAX(r.end, t->where + t->bytes);
        if (sentinel) r.sentinels = MIN(r.sentinels, t->where);
    }
    r.sentinels = MIN(r.sentinels, r.end);
    return r;
}

/* Keeps as many bytes of sentinels as there is room for. A driver that cannot set L2 aside, as on a
 * part of a card, says so, and everything works without it. */
void cuda_memory_keep(const struct cuda_rank *r) {
    const struct cuda_device *v = &r->device;
    const struct cuda_api *api = r->shared->api;
    const struct backend_cuda_options *o = r->shared->options;
    const struct riding ride = riding_bytes(r->shared->program);
    const uint64_t can = (uint64_t)MAX(v->l2_kept_bytes, 0);
    const uint64_t kept = o->kept_mib == KEEP_DEFAULT ? (uint64_t)(KEPT_SHARE * (double)can)
                                                      : MIN((uint64_t)o->kept_mib << 20, can);
    if (ride.end == 0 || kept == 0) return;
    const uint64_t bytes = MIN(ride.end, ride.sentinels + kept) - ride.start,
                   flagged = ride.sentinels - ride.start;
    union cu_stream_value window = {
        .window = {.base = cuda_rank_at(r, CUDA_BLOCK_WORKSPACE, ride.start),
                   .bytes = MIN(bytes, (uint64_t)MAX(v->l2_window_bytes, 0)),
                   .hit_ratio = flagged > kept ? (float)kept / (float)flagged : 1,
                   .hit = CU_ACCESS_PERSISTING,
                   .miss = CU_ACCESS_NORMAL}};
    if (api->cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, kept) == CU_SUCCESS)
        (void)api->cuStreamSetAttribute(r->run.stream, CU_STREAM_ACCESS_POLICY_WINDOW, &window);
}
