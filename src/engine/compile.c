#include "engine/compile.h"
#include "base/clock.h"
#include "base/checked.h"
#include "task/program_make.h"
#include "task/task_verify.h"

#include <stdlib.h>
#include <string.h>

void compile_options_init(struct compile_options *o) {
    *o = (struct compile_options){.target = TARGET_CPU,
                                  .n_ranks = 1,
                                  .device = device_cpu(1),
                                  .n_slots = 8,
                                  .max_model_len = 4096,
                                  .max_batched_tokens = 128,
                                  .kv_block = 64,
                                  .kv_dtype = DTYPE_BF16,
                                  .logit_rows = 1,
                                  .task = {.tasks_per_worker = 1, .launch = LAUNCH_HYBRID}};
}

/* H100: from 5.55 to 5.51 ms on Qwen3-8B, from 0.99 to 0.92 ms on Qwen3-0.6B. With twice as much
 * neither is faster (bench/measurements.md, "Data as flag"). */
static const uint64_t CUDA_TRANSPORT_BYTES = 64 << 10;

void compile_options_cuda(struct compile_options *o, const struct device *device) {
    o->target = TARGET_CUDA;
    o->device = *device;
    /* JIT tasks cost more than balance brings: docs/performance.md, "Ablations". */
    o->task.launch = LAUNCH_ALL_AOT;
    /* Measured on one H100, Qwen3-8B at batch 1: 6.08 ms fused, 5.62 ms this way. Several workers
     * compute a head's projections; finer events would need a chain of empty tasks for each. */
    o->cut_qkv = true;
    o->join_heads = true;
    o->whole_from = 1;
    o->cut_linear = device->has.wgmma;
    o->group_experts = device->has.wgmma;
    o->task.transport_bytes = CUDA_TRANSPORT_BYTES;
    o->task.coarse_events = true;
    o->task.halves = true;
    /* Every chunk reads all weights, and its operators wait for each other. One H100, Qwen3-8B: a
     * prompt of 2,048 tokens takes 68.4 ms in chunks of 1,024 and 66.5 ms in chunks of 2,048. A
     * prompt of 8,000 takes 345, 338 and 330 ms in chunks of 1,024, 2,048 and 4,096, but at each
     * doubling decoding requests wait twice as long. */
    o->max_batched_tokens = 2048;
}

_Static_assert((int)PLAN_MAX_VARIANTS <= (int)PROG_MAX_VARIANTS, "a program has them all");

static int check_options(struct diag *d, const struct compile_options *o) {
    const struct {
        const char *field;
        uint64_t value, low, high;
    } bounds[] = {
        {"ranks", o->n_ranks, 1, o->target == TARGET_CUDA ? PROG_MAX_RANKS : 1},
        {"workers", o->device.n_workers, 1, PROG_MAX_WORKERS},
        {"max-num-seqs", o->n_slots, 1, PROG_MAX_SEQS},
        {"max-model-len", o->max_model_len, 1, SPEC_MAX_MODEL_LEN},
        {"max-num-batched-tokens", o->max_batched_tokens, 1, PROG_MAX_ROWS},
        {"logit-rows", o->logit_rows, 1, PROG_MAX_ROWS},
        {"kv-block", o->kv_block, 1, ATTENTION_PIECE},
        {"tasks-per-worker", o->task.tasks_per_worker, 1, 64},
    };
    for (size_t i = 0; i < COUNT_OF(bounds); i++)
        if (bounds[i].value < bounds[i].low || bounds[i].value > bounds[i].high)
            return fail(d, QN_EINVAL, "%s: want a number from %llu to %llu, have %llu",
                        bounds[i].field, (unsigned long long)bounds[i].low,
                        (unsigned long long)bounds[i].high, (unsigned long long)bounds[i].value);
    if (o->task.halves && o->target != TARGET_CUDA)
        return fail(d, QN_EUNSUPPORTED, "workers: want all: only on CUDA do they alternate");
    if (o->task.transport_bytes > 0 && o->target != TARGET_CUDA)
        return fail(d, QN_EUNSUPPORTED,
                    "carry-bytes: want 0: only CUDA's kernels can poll flagged activations");
    if (o->target == TARGET_CUDA && !o->cut_qkv)
        return fail(d, QN_EUNSUPPORTED, "qkv: want split or joined: CUDA has no kernel of both");
    if (ATTENTION_PIECE % o->kv_block != 0)
        return fail(d, QN_EINVAL, "kv-block: want a divisor of %d, have %u", ATTENTION_PIECE,
                    o->kv_block);
    return QN_OK;
}

/* One variant on its way through the stages. */
struct variant {
    struct kgraph kernel;
    struct tgraph tasks;
};

struct compile {
    struct diag *d;
    struct model *model;
    const struct compile_options *options;
    const struct compile_hook *hook;
    struct compile_report *report;
    struct arena arena;
    struct variant variants[PROG_MAX_VARIANTS];
    uint32_t n_variants;
};

/* k: the variant's graph; NULL: the program. */
static int show(struct compile *c, const struct kgraph *k, const char *stage,
                const struct strbuf *text) {
    struct compile_shown of = {0};
    if (k != NULL) {
        const bool takes_all = k->context == c->options->max_model_len;
        of = (struct compile_shown){k->n_rows, takes_all ? 0 : k->context, k->decode_only};
    }
    TRY(strbuf_status(c->d, text));
    c->hook->stage(c->hook->user, of, stage, strbuf_text(text));
    return QN_OK;
}

/* After each stage: the IR's verify, its stats into the report, its dump to the hook. */
static int after(struct compile *c, uint32_t index, enum task_stage stage) {
    const struct tgraph *g = &c->variants[index].tasks;
    TRY(tgraph_verify(c->d, g, stage));
    if (c->report != NULL) tgraph_stats(g, stage, &c->report->variants[index].after[stage]);
    if (c->hook != NULL && c->hook->tasks != NULL)
        TRY(c->hook->tasks(c->hook->user, c->d, g, stage));
    if (c->hook == NULL || c->hook->stage == NULL) return QN_OK;
    struct strbuf text = {0};
    tgraph_dump(g, stage, &text);
    int rc = show(c, g->kernel, task_stage_name(stage), &text);
    strbuf_fini(&text);
    return rc;
}

static int after_kernel_graph(struct compile *c, uint32_t index) {
    const struct kgraph *k = &c->variants[index].kernel;
    TRY(kgraph_verify(c->d, k));
    if (c->report != NULL) {
        c->report->variants[index].n_rows = k->n_rows;
        c->report->variants[index].context = k->context;
        c->report->variants[index].decode_only = k->decode_only;
        kgraph_stats(k, &c->report->variants[index].kernel);
    }
    if (c->hook != NULL && c->hook->kernel != NULL) TRY(c->hook->kernel(c->hook->user, c->d, k));
    if (c->hook == NULL || c->hook->stage == NULL) return QN_OK;
    struct strbuf text = {0};
    kgraph_dump(k, &text);
    int rc = show(c, k, "kernel", &text);
    strbuf_fini(&text);
    return rc;
}

/* Refuses an operator that the backend has no form of, before anything is made of it. */
static int check_targets(struct compile *c, const struct kgraph *k) {
    const bool cuda = c->options->target == TARGET_CUDA;
    for (size_t i = 0; i < k->ops.n; i++) {
        const struct kop *op = &k->ops.items[i];
        if (op_target_of(op->kind) == (cuda ? OP_ON_CPU : OP_ON_CUDA))
            return fail(c->d, QN_EUNSUPPORTED,
                        "layer %d: operator %s has no form on the %s backend yet; use --backend %s",
                        op->layer, op_name(op->kind), cuda ? "cuda" : "cpu", cuda ? "cpu" : "cuda");
    }
    return QN_OK;
}

static int compile_variant(struct compile *c, const struct plan_variant *plan) {
    const uint32_t i = c->n_variants++;
    struct variant *v = &c->variants[i];
    struct task_options options = c->options->task;
    options.kv_dtype = c->options->kv_dtype;
    options.device = c->options->device;
    if (c->report != NULL) c->report->variants[i].plan = *plan;

    /* The model as operators over tensors. */
    const uint32_t logit_rows = MIN(plan->n_rows, c->options->n_slots * c->options->logit_rows);
    TRY(model_build_graph(c->d, c->model, &c->arena, plan->n_rows, logit_rows, plan->context,
                          plan->cuts | (c->options->static_experts ? KGRAPH_STATIC : 0),
                          &v->kernel));
    TRY(check_targets(c, &v->kernel));
    TRY(after_kernel_graph(c, i));
    struct tgraph *g = &v->tasks;
    tgraph_init(g, &c->arena, &v->kernel, &options);

    /* Operators become tasks. From here on no computing task is added. */
    TRY(decompose(c->d, g));
    TRY(after(c, i, STAGE_DECOMPOSE));
    /* Activations get their bytes. From here on aliasing is known. */
    TRY(memory_plan(c->d, g));
    TRY(after(c, i, STAGE_MEMORY_PLAN));
    /* Overlapping regions order tasks: RAW, WAR, WAW. */
    TRY(depend(c->d, g));
    TRY(after(c, i, STAGE_DEPEND));
    /* Dependencies become events; no two have equal in-sets or out-sets. */
    TRY(event_fuse(c->d, g));
    TRY(after(c, i, STAGE_EVENT_FUSE));
    /* One event before and one after every task. From here on no task and no event is added. */
    TRY(normalize(c->d, g));
    TRY(after(c, i, STAGE_NORMALIZE));
    /* An event's dependents become a range. From here on indices are final. */
    TRY(linearize(c->d, g));
    TRY(after(c, i, STAGE_LINEARIZE));
    /* Every task is JIT or has a worker. */
    TRY(place(c->d, g));
    TRY(after(c, i, STAGE_PLACE));
    /* Events with little data behind them need no counter: the data says when it has arrived. */
    TRY(transport(c->d, g));
    return after(c, i, STAGE_TRANSPORT);
}

static int compile_variants(struct compile *c) {
    const struct compile_options *o = c->options;
    const struct plan_request request = {
        .spec = &c->model->spec,
        .device = &o->device,
        .n_slots = o->n_slots,
        .max_model_len = o->max_model_len,
        .max_batched_tokens = o->max_batched_tokens,
        .cut_qkv = o->cut_qkv,
        .join_heads = o->join_heads,
        .cut_linear = o->cut_linear,
        .group_experts = o->group_experts,
        .whole_from = o->whole_from,
        .places_all = o->task.launch == LAUNCH_ALL_AOT,
        .rides = o->task.transport_bytes > 0,
    };
    struct plan_variant plans[PLAN_MAX_VARIANTS];
    uint32_t n;
    TRY(plan_variants(c->d, &request, plans, &n));
    for (uint32_t i = 0; i < n; i++) TRY(compile_variant(c, &plans[i]));
    return QN_OK;
}

static int make_program(struct compile *c, struct prog_header **program) {
    const struct compile_options *o = c->options;
    const struct program_config config = {.target = o->target,
                                          .n_ranks = o->n_ranks,
                                          .n_workers = o->device.n_workers,
                                          .n_slots = o->n_slots,
                                          .max_model_len = o->max_model_len,
                                          .kv_block = o->kv_block,
                                          .kv_dtype = o->kv_dtype,
                                          .model_path = c->model->dir};
    struct tgraph *graphs;
    TRY(ARENA_NEW(c->d, &c->arena, &graphs, c->n_variants));
    for (uint32_t i = 0; i < c->n_variants; i++) graphs[i] = c->variants[i].tasks;
    return program_make(c->d, &config, graphs, c->n_variants, program);
}

/* Verifies the final bytes, with none of the code above. */
static int prove(struct compile *c, const struct prog_header *program) {
    const double start = clock_s();
    TRY(program_check(c->d, "the compiled program", program, program->total_bytes));
    TRY(task_verify(c->d, program, NULL));
    if (c->report != NULL) c->report->seconds_verify = clock_s() - start;
    if (c->hook == NULL || c->hook->stage == NULL) return QN_OK;
    struct strbuf text = {0};
    program_dump(program, &text);
    int rc = show(c, NULL, "program", &text);
    strbuf_fini(&text);
    return rc;
}

int compile_model(struct diag *d, struct model *m, const struct compile_options *o,
                  const struct compile_hook *hook, struct compile_report *report,
                  struct prog_header **program) {
    const double start = clock_s();
    *program = NULL;
    if (report != NULL) memset(report, 0, sizeof *report);
    TRY(check_options(d, o));
    struct compile *c = calloc(1, sizeof *c);
    if (c == NULL) return fail_nomem(d, sizeof *c, "the compiler");
    *c = (struct compile){.d = d, .model = m, .options = o, .hook = hook, .report = report};
    int rc = compile_variants(c);
    if (rc == QN_OK) rc = make_program(c, program);
    if (rc == QN_OK) rc = prove(c, *program);
    if (report != NULL) {
        report->n_variants = c->n_variants;
        report->peak_bytes = c->arena.total_bytes;
        report->seconds_total = clock_s() - start;
    }
    for (uint32_t i = 0; i < c->n_variants; i++) {
        tgraph_fini(&c->variants[i].tasks);
        kgraph_fini(&c->variants[i].kernel);
    }
    arena_fini(&c->arena);
    free(c);
    if (rc != QN_OK) {
        free(*program);
        *program = NULL;
    }
    return rc;
}
