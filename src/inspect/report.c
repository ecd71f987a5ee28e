/* report.c - the public functions that show the compiler's work: compile to a file, inspect, dump,
 * verify. None of them loads weights. */
#include "engine/engine.h"
#include "inspect/why.h"

#include "base/checked.h"
#include "base/map.h"
#include "base/outfile.h"
#include "block/kgraph_prove.h"
#include "codegen/cuda_verify.h"
#include "task/task_verify.h"

#include <jansson.h>
#include <stdlib.h>

/* A model and its program, with the compiler's options and report. */
struct job {
    qn_engine_params params;
    const struct backend *backend;
    struct model *model;
    struct prog_header *program;
    struct engine_plan plan;
    struct compile_report *report;
};

static int job_run(struct diag *d, const qn_engine_params *params, const struct compile_hook *hook,
                   struct job *job) {
    *job = (struct job){0};
    TRY(engine_params(d, params, &job->params));
    job->report = calloc(1, sizeof *job->report);
    if (!job->report) return fail_nomem(d, sizeof *job->report, "the compiler's report");
    TRY(backend_find(d, job->params.backend, &job->backend));
    TRY(engine_model(d, &job->params, &job->model));
    return engine_program(d, &job->params, job->model, job->backend, hook, job->report, &job->plan,
                          &job->program);
}

static void job_fini(struct job *job) {
    free(job->program);
    model_free(job->model);
    free(job->report);
}

/* ---- compile ------------------------------------------------------------------------------ */

/* The checksum of a file covers its bytes with this field 0, as in program_read. */
static int write_program(struct diag *d, struct prog_header *p, const char *path) {
    p->checksum = 0;
    p->checksum = hash_bytes(p, p->total_bytes, 0);
    return outfile_write(d, path, p, p->total_bytes);
}

int qn_compile(const qn_engine_params *params, const char *path, qn_error *error) {
    struct diag d = {0};
    struct job job;
    int rc = job_run(&d, params, NULL, &job);
    if (rc == QN_OK) rc = write_program(&d, job.program, path);
    job_fini(&job);
    return api_return(rc, &d, error);
}

/* ---- dump --------------------------------------------------------------------------------- */

/* The stage that a dump looks for, and its text. */
struct wanted {
    const char *stage;
    uint32_t n_rows; /* 0: the first variant */
    struct strbuf text;
    bool found, stage_known;
};

static void on_stage(void *user, struct compile_shown of, const char *stage, const char *text) {
    struct wanted *w = user;
    bool program = strcmp(stage, "program") == 0;
    if (strcmp(stage, w->stage) != 0) return;
    w->stage_known = true;
    /* The first variant that has the rows. */
    if (w->found || (!program && w->n_rows != 0 && w->n_rows != of.n_rows)) return;
    strbuf_str(&w->text, text);
    w->found = true;
}

static int missing(struct diag *d, const struct wanted *w, const struct job *job) {
    struct strbuf list = {0};
    if (w->stage_known) {
        for (uint32_t i = 0; i < job->report->n_variants; i++)
            strbuf_printf(&list, "%s%u", i ? ", " : "", job->report->variants[i].n_rows);
        fail(d, QN_EINVAL, "rows: no variant has %u; there are %s", w->n_rows, strbuf_text(&list));
    } else {
        for (int s = 0; s < N_TASK_STAGES; s++)
            strbuf_printf(&list, ", %s", task_stage_name((enum task_stage)s));
        fail(d, QN_EINVAL, "stage: no '%s'; there are kernel%s, program", w->stage,
             strbuf_text(&list));
    }
    strbuf_fini(&list);
    return QN_EINVAL;
}

int qn_graph_dump(const qn_engine_params *params, const char *stage, uint32_t n_rows, char **text,
                  qn_error *error) {
    struct diag d = {0};
    struct job job;
    struct wanted w = {.stage = stage, .n_rows = n_rows};
    struct compile_hook hook = {.stage = on_stage, .user = &w};
    *text = NULL;
    int rc = job_run(&d, params, &hook, &job);
    if (rc == QN_OK && !w.found) rc = missing(&d, &w, &job);
    if (rc == QN_OK) rc = strbuf_status(&d, &w.text);
    if (rc == QN_OK)
        *text = w.text.text;
    else
        strbuf_fini(&w.text);
    job_fini(&job);
    return api_return(rc, &d, error);
}

/* ---- verify ------------------------------------------------------------------------------- */

/* Verifies the tables that a card's kernels would read. Only Hopper reads a program with
 * LINEAR_SPLITK. */
static int verify_tables(struct diag *d, const struct prog_header *program) {
    static const uint32_t cards[] = {80, 90};
    if (program->target != TARGET_CUDA) return QN_OK;
    for (size_t i = 0; i < COUNT_OF(cards); i++)
        if (cuda_tables_check(NULL, program, &(struct cuda_bases){.cc = cards[i]}) == QN_OK)
            TRY(cuda_verify_program(d, program, cards[i]));
    return QN_OK;
}

static int verify_program(struct diag *d, const struct prog_header *program, const char *name,
                          struct strbuf *out) {
    struct verify_report r = {0};
    TRY(task_verify(d, program, &r));
    TRY(verify_tables(d, program));
    strbuf_printf(out,
                  "%s: right: %llu variants, %llu tasks, %llu events; %llu pairs of classes and "
                  "%llu pairs of tasks compared",
                  name, (unsigned long long)program->section[SECTION_VARIANT].count,
                  (unsigned long long)r.n_tasks, (unsigned long long)r.n_events,
                  (unsigned long long)r.n_class_pairs, (unsigned long long)r.n_task_pairs);
    return strbuf_status(d, out);
}

/* The model's reference graph, and how many kernel graphs were proved to mean the same. */
struct meanings {
    struct job *job;
    struct kgraph_meaning *reference;
    uint32_t n_graphs, n_values;
};

static int make_reference(struct diag *d, struct meanings *m, uint32_t context) {
    struct arena arena = {0};
    struct kgraph g = {0};
    int rc = model_build_graph(d, m->job->model, &arena, 1, 1, context, 0, &g);
    if (rc == QN_OK) rc = kgraph_meaning_new(d, &g, &m->reference);
    kgraph_fini(&g);
    arena_fini(&arena);
    return rc;
}

static int prove_kernel_graph(void *user, struct diag *d, const struct kgraph *k) {
    struct meanings *m = user;
    struct kgraph_prove_report r = {0};
    if (m->reference == NULL) TRY(make_reference(d, m, k->context));
    TRY(kgraph_prove(d, m->reference, k, &r));
    m->n_graphs++;
    m->n_values += r.n_compared;
    return QN_OK;
}

static void tell_meanings(const struct meanings *m, struct strbuf *out) {
    if (m->n_graphs > 0)
        strbuf_printf(out, "; %u kernel graphs proved to mean what the model does, by %u values",
                      m->n_graphs, m->n_values);
}

static int verify(struct diag *d, const qn_engine_params *given, struct strbuf *out) {
    qn_engine_params p;
    TRY(engine_params(d, given, &p));
    if (p.program && !p.model) { /* the proof needs only the file */
        struct prog_header *program = NULL;
        int rc = program_read(d, p.program, &program);
        if (rc == QN_OK) rc = verify_program(d, program, p.program, out);
        free(program);
        return rc;
    }
    struct job job;
    struct meanings m = {.job = &job};
    const struct compile_hook hook = {.kernel = prove_kernel_graph, .user = &m};
    int rc = job_run(d, given, &hook, &job);
    if (rc == QN_OK) rc = verify_program(d, job.program, p.program ? p.program : p.model, out);
    if (rc == QN_OK) tell_meanings(&m, out);
    if (rc == QN_OK) rc = strbuf_status(d, out);
    kgraph_meaning_free(m.reference);
    job_fini(&job);
    return rc;
}

int qn_verify(const qn_engine_params *params, char **summary, qn_error *error) {
    struct diag d = {0};
    struct strbuf out = {0};
    int rc = verify(&d, params, &out);
    if (summary) *summary = rc == QN_OK ? out.text : NULL;
    if (!summary || rc != QN_OK) strbuf_fini(&out);
    return api_return(rc, &d, error);
}

/* ---- inspect ------------------------------------------------------------------------------ */

static json_t *number(uint64_t n) {
    return json_integer((json_int_t)n);
}

static json_t *stage_json(enum task_stage stage, const struct task_stats *s) {
    json_t *o = json_pack("{s:s}", "stage", task_stage_name(stage));
    json_object_set_new(o, "tasks", number(s->n_tasks));
    json_object_set_new(o, "dummies", number(s->n_dummies));
    json_object_set_new(o, "events", number(s->n_events));
    json_object_set_new(o, "pairs", number(s->n_pairs));
    json_object_set_new(o, "jit_tasks", number(s->n_jit_tasks));
    json_object_set_new(o, "aot_tasks", number(s->n_aot_tasks));
    return o;
}

/* What normalization added: MPK section 4.3 reports the same ratio. */
static json_t *normalization_json(const struct task_stats *before, const struct task_stats *after) {
    uint64_t computing = before->n_tasks;
    double overhead = computing ? 100.0 * (double)after->n_dummies / (double)computing : 0;
    return json_pack("{s:o, s:o, s:f, s:o, s:o}", "tasks_before", number(before->n_tasks),
                     "dummies", number(after->n_dummies), "overhead_percent", overhead,
                     "events_before", number(before->n_events), "events_after",
                     number(after->n_events));
}

static json_t *variant_json(const struct compile_variant_report *v) {
    const struct task_stats *last = &v->after[STAGE_PLACE];
    json_t *stages = json_array();
    for (int s = 0; s < N_TASK_STAGES; s++)
        json_array_append_new(stages, stage_json((enum task_stage)s, &v->after[s]));
    json_t *o = json_pack("{s:o, s:o, s:o, s:o, s:o}", "rows", number(v->n_rows), "operators",
                          number(v->kernel.n_ops), "tensors", number(v->kernel.n_tensors),
                          "weight_bytes", number(v->kernel.weight_bytes), "activation_bytes",
                          number(v->kernel.activation_bytes));
    json_object_set_new(o, "context", number(v->context));
    json_object_set_new(o, "decode_only", json_boolean(v->decode_only));
    json_object_set_new(o, "tasks", number(last->n_tasks));
    json_object_set_new(o, "events", number(last->n_events));
    json_object_set_new(o, "pairs", number(v->after[STAGE_EVENT_FUSE].n_pairs));
    json_object_set_new(o, "stages", stages);
    json_object_set_new(
        o, "normalization",
        normalization_json(&v->after[STAGE_EVENT_FUSE], &v->after[STAGE_NORMALIZE]));
    json_object_set_new(o, "placement",
                        json_pack("{s:o, s:o, s:o, s:o}", "aot_tasks", number(last->n_aot_tasks),
                                  "jit_tasks", number(last->n_jit_tasks), "weight_bytes_max_worker",
                                  number(last->weight_bytes_max_worker), "weight_bytes_min_worker",
                                  number(last->weight_bytes_min_worker)));
    return o;
}

/* A program from a file has its final tables only. */
static json_t *program_variant_json(const struct prog_variant *v) {
    return json_pack("{s:o, s:o, s:b, s:o, s:o, s:o, s:o}", "rows", number(v->n_rows), "context",
                     number(v->context), "decode_only", (int)v->decode_only, "operators",
                     number(v->n_ops), "tensors", number(v->n_tensors), "tasks", number(v->n_tasks),
                     "events", number(v->n_events));
}

static json_t *variants_json(const struct job *job) {
    json_t *list = json_array();
    const struct prog_header *p = job->program;
    for (uint32_t i = 0; i < job->report->n_variants; i++) {
        const struct plan_variant *plan = &job->report->variants[i].plan;
        json_t *o = variant_json(&job->report->variants[i]);
        json_object_set_new(o, "why", json_string(plan->why));
        json_object_set_new(o, "choices", why_choices(plan));
        json_array_append_new(list, o);
    }
    for (uint64_t i = 0; job->params.program && i < p->section[SECTION_VARIANT].count; i++)
        json_array_append_new(list, program_variant_json(PROG(p, VARIANT) + i));
    for (size_t i = 0; i < json_array_size(list); i++)
        json_object_set_new(json_array_get(list, i), "forms",
                            why_forms(p, PROG(p, VARIANT) + i, &job->plan.device.compute));
    return list;
}

static json_t *memory_json(const struct qn_engine_info *i) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "total_bytes", number(i->total_bytes),
                     "weight_bytes", number(i->weight_bytes), "kv_cache_bytes",
                     number(i->kv_cache_bytes), "workspace_bytes", number(i->workspace_bytes),
                     "other_bytes", number(i->other_bytes), "bytes_per_token",
                     number(i->bytes_per_token));
}

/* KV blocks on every backend; "shared_memory_pages" is always null. */
static json_t *pages_json(const struct qn_engine_info *i) {
    return json_pack("{s:n, s:{s:o, s:o, s:o, s:o}}", "shared_memory_pages", "kv", "positions",
                     number(i->kv_block), "bytes", number(i->kv_block * i->kv_bytes_per_token),
                     "count", number(i->kv_blocks), "bytes_per_position",
                     number(i->kv_bytes_per_token));
}

static json_t *inspect_json(const struct job *job, const struct qn_engine_info *info) {
    const struct prog_header *p = job->program;
    const struct compile_report *r = job->report;
    json_t *o = json_pack("{s:s, s:s, s:s}", "model", job->params.model, "target",
                          job->backend->name, "family", job->model->family->name);
    json_object_set_new(o, "dtype", json_string(dtype_row(job->model->spec.weight_dtype)->hf));
    json_object_set_new(o, "kv_cache_dtype", json_string(dtype_row(PROG(p, KV)->dtype)->hf));
    json_object_set_new(o, "n_workers", number(p->n_workers));
    json_object_set_new(o, "max_num_seqs", number(p->n_slots));
    json_object_set_new(o, "max_model_len", number(p->max_model_len));
    json_object_set_new(o, "max_num_batched_tokens", number(job->plan.compile.max_batched_tokens));
    json_object_set_new(o, "program",
                        json_pack("{s:o, s:o, s:o, s:o, s:o}", "bytes", number(p->total_bytes),
                                  "variants", number(p->section[SECTION_VARIANT].count), "tasks",
                                  number(p->section[SECTION_TASK].count), "events",
                                  number(p->section[SECTION_EVENT].count), "tensors",
                                  number(p->section[SECTION_TENSOR].count)));
    json_object_set_new(o, "variants", variants_json(job));
    json_object_set_new(o, "memory_plan", memory_json(info));
    json_object_set_new(o, "pages", pages_json(info));
    json_object_set_new(o, "compile_time",
                        job->params.program
                            ? json_null()
                            : json_pack("{s:f, s:f, s:o}", "total_s", r->seconds_total, "verify_s",
                                        r->seconds_verify, "peak_bytes", number(r->peak_bytes)));
    return o;
}

int qn_inspect(const qn_engine_params *params, char **json, qn_error *error) {
    struct diag d = {0};
    struct job job;
    struct qn_engine_info info = {0};
    *json = NULL;
    int rc = job_run(&d, params, NULL, &job);
    if (rc == QN_OK) rc = plan_memory(&d, job.backend, job.program, &job.plan, &info);
    if (rc == QN_OK) {
        json_t *o = inspect_json(&job, &info);
        *json = json_dumps(o, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
        json_decref(o);
        if (!*json) rc = fail_nomem(&d, 0, "the report");
    }
    job_fini(&job);
    return api_return(rc, &d, error);
}
