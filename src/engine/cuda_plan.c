/* cuda_plan.c - see cuda_plan.h. */
#include "engine/cuda_plan.h"

#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "codegen/cuda_upload.h"

#include <stdlib.h>

/* The driver gives memory in pieces of 2 MiB; every allocation may waste up to one. The slack also
 * covers the module's code and what the driver takes for a launch. */
#define SLACK_BYTES ((uint64_t)64 << 20)

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

static uint32_t most_logit_rows(const struct prog_header *p) {
    uint32_t most = 0;
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++)
        most = MAX(most, PROG(p, VARIANT)[i].n_logit_rows);
    return most;
}

static uint64_t plain_weight_bytes(const struct prog_header *p) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < p->section[SECTION_WEIGHT].count; i++) {
        const struct prog_weight *w = &PROG(p, WEIGHT)[i];
        sum += (uint64_t)w->rows * (w->n_dims == 2 ? w->cols : 1) * dtype_bytes(w->dtype);
    }
    return sum;
}

/* Only tiles of several rows of LINEAR add up halves, the first of which waits. */
static bool has_waiting_sums(const struct prog_header *p) {
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++)
        if (PROG(p, OP)[i].kind == OP_LINEAR && PROG(p, OP)[i].n_rows > 1) return true;
    return false;
}

static void add_up(const struct prog_header *p, uint64_t trace_bytes, struct cuda_plan *plan) {
    const struct model_spec *spec = PROG(p, MODEL);
    uint64_t plain = plain_weight_bytes(p);
    plan->padding_bytes = plan->weight_bytes > plain ? plan->weight_bytes - plain : 0;
    plan->workspace_bytes = p->workspace_bytes;
    plan->state_bytes = plan->rt.state_bytes;
    plan->program_bytes = p->total_bytes;
    plan->task_bytes = cuda_tables_bytes(p);
    plan->rope_bytes =
        2 * (uint64_t)spec_rope_rows(spec, p->max_model_len) * (spec->head_dim / 2) * sizeof(float);
    plan->logit_rows = most_logit_rows(p);
    plan->sample_bytes = cuda_sample_bytes(plan->logit_rows, p->n_workers, spec->vocab);
    if (has_waiting_sums(p) && !cuda_samples_by_block(plan->logit_rows, p->n_workers))
        plan->sums_bytes = (uint64_t)p->n_workers * CUDA_WAITING_BYTES;
    plan->trace_bytes = trace_bytes;
    plan->upload_bytes = cuda_upload_bytes();
    plan->mail_bytes = plan->rt.mail_bytes;
    plan->device_bytes = plan->weight_bytes + plan->kv_bytes + plan->workspace_bytes +
                         plan->state_bytes + plan->program_bytes + plan->task_bytes +
                         plan->rope_bytes + plan->sample_bytes + plan->sums_bytes +
                         plan->trace_bytes + plan->upload_bytes;
}

int cuda_plan_make(struct diag *d, const struct prog_header *program, const struct rt_options *rt,
                   uint64_t trace_bytes, struct cuda_plan *plan) {
    *plan = (struct cuda_plan){0};
    uint64_t n = program->section[SECTION_WEIGHT].count;
    plan->places = calloc(n + 1, sizeof *plan->places);
    if (plan->places == NULL) return fail_nomem(d, n * sizeof *plan->places, "weight places");
    TRY(cuda_tables_plan(d, program, plan->places, &plan->weight_bytes));
    struct rt_options options = *rt;
    options.separate = true;
    TRY(rt_memory_plan(d, program, &options, &plan->rt));
    TRY(program_kv_bytes(d, program, options.n_kv_blocks, &plan->kv_bytes));
    add_up(program, trace_bytes, plan);
    return QN_OK;
}

void cuda_plan_fini(struct cuda_plan *plan) {
    free(plan->places);
    *plan = (struct cuda_plan){0};
}

int cuda_plan_check(struct diag *d, const struct cuda_plan *plan, uint64_t free_bytes,
                    uint64_t total_bytes) {
    if (plan->device_bytes + SLACK_BYTES <= free_bytes) return QN_OK;
    return fail(d, QN_ELIMIT,
                "GPU memory: weights %.2f GiB, KV cache %.2f GiB and work %.2f GiB do not fit into "
                "the %.2f GiB that are free of %.2f; lower --max-model-len, --max-num-seqs or "
                "--gpu-memory-utilization",
                gib(plan->weight_bytes), gib(plan->kv_bytes),
                gib(plan->device_bytes - plan->weight_bytes - plan->kv_bytes), gib(free_bytes),
                gib(total_bytes));
}
