/* engine.c - opening an engine, in the order in which things happen; and closing it. */
#include "engine/engine.h"

#include "base/clock.h"
#include "base/checked.h"
#include "engine/dump.h"
#include "engine/recipe.h"
#include "runtime/trace_rings.h"
#include "task/task_verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEFAULT_MAX_QUEUE = 65536 };

/* Seconds since *since, which becomes now. */
static double lap(double *since) {
    double before = *since;
    *since = clock_s();
    return *since - before;
}

/* ---- parameters --------------------------------------------------------------------------- */

void qn_engine_params_init(qn_engine_params *params) {
    *params = (qn_engine_params){.struct_size = sizeof *params};
}

int engine_params(struct diag *d, const qn_engine_params *given, qn_engine_params *full) {
    *full = (qn_engine_params){0};
    if (!api_struct_in(full, sizeof *full, given))
        return fail(d, QN_EINVAL, "qn_engine_params: struct_size is not set");
    if (!full->load_format) full->load_format = "auto";
    if (!full->backend) full->backend = "auto";
    if (!full->isa) full->isa = "auto";
    if (!full->dtype) full->dtype = "auto";
    if (!full->kv_cache_dtype) full->kv_cache_dtype = "auto";
    if (!full->tokenizer) full->tokenizer = full->model;
    if (!full->served_model_name) full->served_model_name = full->model;
    if (strcmp(full->load_format, "auto") != 0 && strcmp(full->load_format, "safetensors") != 0 &&
        strcmp(full->load_format, "dummy") != 0 && strcmp(full->load_format, "dummy-zipf") != 0)
        return fail(d, QN_EINVAL,
                    "load_format: want auto, safetensors, dummy or dummy-zipf, have '%s'",
                    full->load_format);
    return QN_OK;
}

static void progress(const qn_engine_params *p, const char *stage) {
    if (p->progress) p->progress(p->progress_user, stage, 0, 0);
}

/* ---- parts -------------------------------------------------------------------------------- */

int engine_model(struct diag *d, const qn_engine_params *p, struct model **out) {
    *out = NULL;
    if (!p->model) return fail(d, QN_EINVAL, "model: want a Hugging Face directory");
    struct model_options o = {.dummy = strncmp(p->load_format, "dummy", 5) == 0, .dtype = p->dtype};
    return model_open(d, p->model, &o, out);
}

/* compile_model with the dumps that the environment asks for. */
static int compile_seen(struct diag *d, struct model *model, const struct compile_options *o,
                        const struct compile_hook *next, struct compile_report *report,
                        struct prog_header **out) {
    struct dump dump;
    const struct compile_hook *hook;
    TRY(dump_start(d, &dump, next, &hook));
    int rc = dump_end(&dump, compile_model(d, model, o, hook, report, out));
    if (rc == QN_OK) return QN_OK;
    free(*out);
    *out = NULL;
    return rc;
}

int engine_program(struct diag *d, const qn_engine_params *p, struct model *model,
                   const struct backend *backend, const struct compile_hook *hook,
                   struct compile_report *report, struct engine_plan *plan,
                   struct prog_header **out) {
    *out = NULL;
    TRY(plan_before(d, p, model, backend, plan));
    if (!p->program) return compile_seen(d, model, &plan->compile, hook, report, out);
    int rc = program_read(d, p->program, out);
    if (rc == QN_OK) rc = plan_from_program(d, p, model, *out, plan);
    if (rc == QN_OK) rc = task_verify(d, *out, NULL);
    if (rc != QN_OK) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

static void weights_moved(void *user, uint64_t done, uint64_t total) {
    const qn_engine_params *p = user;
    p->progress(p->progress_user, "weights", done, total);
}

static int load_weights(struct diag *d, struct qn_engine *e, const qn_engine_params *p) {
    const bool made_there = !e->model->files && e->backend->makes_dummy;
    const bool zipf = strcmp(p->load_format, "dummy-zipf") == 0 && e->model->spec.experts.n != 0;
    if (made_there && !zipf) return QN_OK;
    const struct weights_options o = {.n_threads = (int)e->info.n_workers,
                                      .zipf = zipf,
                                      .others_absent = made_there,
                                      .progress = p->progress ? weights_moved : NULL,
                                      .user = (void *)(uintptr_t)p};
    return recipe_load(d, e->program, e->model->files, &o, &e->weights);
}

static int describe(struct diag *d, struct qn_engine *e, const qn_engine_params *p,
                    const struct engine_plan *plan) {
    struct qn_engine_info *i = &e->info;
    const struct model_spec *s = &e->model->spec;
    char *model, *served, *device;
    TRY(arena_strdup(d, &e->arena, p->model, &model));
    TRY(arena_strdup(d, &e->arena, p->served_model_name, &served));
    TRY(arena_strdup(d, &e->arena, plan->device.name, &device));
    i->model = model;
    i->served_model_name = served;
    i->device = device;
    i->backend = e->backend->name;
    i->dtype = dtype_row(s->weight_dtype)->hf;
    i->kv_cache_dtype = dtype_row(plan->compile.kv_dtype)->hf;
    i->n_layers = s->n_layers;
    i->hidden = s->hidden;
    i->intermediate = s->intermediate;
    i->vocab = s->vocab;
    i->n_heads = s->n_heads;
    i->n_kv_heads = s->n_kv_heads;
    i->head_dim = s->head_dim;
    i->max_model_len = plan->compile.max_model_len;
    i->max_num_seqs = plan->compile.n_slots;
    i->max_num_batched_tokens = plan->compile.max_batched_tokens;
    i->n_workers = plan->compile.device.n_workers;
    i->experts_per_token = s->experts.top_k;
    i->expert_bytes = 3ull * s->experts.width * s->hidden * dtype_bytes(s->weight_dtype);
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        i->n_expert_layers += spec_is_sparse(s, layer) != 0;
    i->n_tasks = (uint32_t)e->program->section[SECTION_TASK].count;
    i->n_events = (uint32_t)e->program->section[SECTION_EVENT].count;
    return QN_OK;
}

/* ---- open --------------------------------------------------------------------------------- */

static int open_program(struct diag *d, struct qn_engine *e, const qn_engine_params *p,
                        struct engine_plan *plan) {
    struct compile_report *report = calloc(1, sizeof *report);
    if (!report) return fail_nomem(d, sizeof *report, "the compiler's report");
    int rc = engine_program(d, p, e->model, e->backend, NULL, report, plan, &e->program);
    e->info.seconds_verify = report->seconds_verify;
    free(report);
    return rc;
}

/* Makes the rings, which record from the first iteration on. */
static int open_trace(struct diag *d, struct qn_engine *e, const qn_engine_params *p,
                      struct engine_plan *plan) {
    if (!p->trace_bytes) return QN_OK;
    if (!e->backend->traces)
        return fail(d, QN_EUNSUPPORTED, "trace: backend %s records none", e->backend->name);
    TRY(trace_rings_new(d, plan->compile.device.n_workers, p->trace_bytes, &e->trace));
    trace_rings_switch(e->trace, true);
    plan->config.trace = e->trace;
    return QN_OK;
}

/* The tokenizer's eos ends a generation, too: the other files may name only the end of a document,
 * while the chat template ends turns with another token. A program does not know this id. */
static void add_tokenizer_eos(struct qn_engine *e) {
    struct model_spec *s = &e->model->spec;
    const int32_t id = e->tokenizer != NULL ? tokenizer_eos(e->tokenizer->tokens) : -1;
    bool known = id < 0 || (uint32_t)id >= s->vocab || s->n_eos == SPEC_MAX_EOS;
    for (uint32_t i = 0; i < s->n_eos; i++) known |= s->eos[i] == id;
    if (!known) s->eos[s->n_eos++] = id;
}

/* Times the stages of a backend that opens, by what its progress says. */
struct stage_clock {
    const qn_engine_params *p;
    qn_engine_info *info;
    char stage[16];
    double since;
};

static void stage_begin(struct stage_clock *c, const char *stage) {
    const double seconds = lap(&c->since);
    if (strcmp(c->stage, "kernels") == 0)
        c->info->seconds_kernels += seconds;
    else if (strcmp(c->stage, "weights") == 0)
        c->info->seconds_weights += seconds;
    else
        c->info->seconds_memory += seconds;
    snprintf(c->stage, sizeof c->stage, "%s", stage);
}

static void backend_moved(void *user, const char *stage, uint64_t done, uint64_t total) {
    struct stage_clock *c = user;
    if (strcmp(stage, c->stage) != 0) stage_begin(c, stage);
    if (c->p->progress) c->p->progress(c->p->progress_user, stage, done, total);
}

static int open_backend(struct diag *d, struct qn_engine *e, const qn_engine_params *p,
                        struct engine_plan *plan) {
    struct stage_clock c = {p, &e->info, "memory", clock_s()};
    TRY(open_trace(d, e, p, plan));
    plan->config.progress = backend_moved;
    plan->config.progress_user = &c;
    TRY(e->backend->open(d, e->program, e->weights, &plan->config, &e->instance));
    stage_begin(&c, "ready");
    return QN_OK;
}

static int open_stages(struct diag *d, struct qn_engine *e, const qn_engine_params *p) {
    struct engine_plan plan;
    double start = clock_s(), t = start;

    /* Which device, and the model's numbers. */
    progress(p, "model");
    TRY(backend_find(d, p->backend, &e->backend));
    TRY(engine_model(d, p, &e->model));
    e->info.seconds_model = lap(&t);
    TRY(engine_tokenizer(d, p->tokenizer, &e->tokenizer));
    e->info.seconds_tokenizer = lap(&t);

    /* The program, proven right. From here on every size is known. */
    progress(p, "compile");
    TRY(open_program(d, e, p, &plan));
    add_tokenizer_eos(e);
    e->info.seconds_compile = lap(&t) - e->info.seconds_verify;

    /* Does it fit, and does the caller want it? Nothing large is taken before. */
    plan.config.trace_bytes = p->trace_bytes;
    TRY(plan_memory(d, e->backend, e->program, &plan, &e->info));
    TRY(describe(d, e, p, &plan));
    if (plan.config.choices.routes) e->route_stride = spec_route_ids(&e->model->spec);
    if (p->plan && p->plan(p->plan_user, &e->info) != 0)
        return fail(d, QN_ECANCELED, "the memory plan was refused");

    /* The weights, then everything that lives beside them. From here on nothing is allocated. */
    progress(p, "weights");
    t = clock_s();
    TRY(load_weights(d, e, p));
    e->info.seconds_weights = lap(&t);
    progress(p, "memory");
    TRY(open_backend(d, e, p, &plan));
    e->info.seconds_total = clock_s() - start;
    progress(p, "ready");
    return QN_OK;
}

int qn_engine_open(const qn_engine_params *params, qn_engine **engine, qn_error *error) {
    struct diag d = {0};
    qn_engine_params p;
    *engine = NULL;
    int rc = engine_params(&d, params, &p);
    if (rc != QN_OK) return api_return(rc, &d, error);
    struct qn_engine *e = calloc(1, sizeof *e);
    if (!e) return api_return(fail_nomem(&d, sizeof *e, "an engine"), &d, error);
    pthread_mutex_init(&e->mutex, NULL);
    guide_texts_init(&e->texts);
    e->info.struct_size = sizeof e->info;
    e->seed = p.seed;
    e->max_logprobs = p.max_logprobs;
    e->max_queue = p.max_queue ? p.max_queue : DEFAULT_MAX_QUEUE;
    e->process = getpid();
    rc = open_stages(&d, e, &p);
    if (rc == QN_OK)
        *engine = e;
    else
        qn_engine_close(e);
    return api_return(rc, &d, error);
}

void qn_engine_close(qn_engine *engine) {
    if (!engine || engine->process != getpid()) return; /* a child of fork: the parent's */
    notifier_close(&engine->notifier);
    mask_thread_stop(&engine->masks);
    if (engine->instance) engine->backend->close(engine->instance);
    session_end(engine);
    guide_texts_fini(&engine->texts);
    free(engine->trace);
    weights_free(engine->weights);
    free(engine->program);
    model_free(engine->model);
    qn_tokenizer_close(engine->tokenizer);
    pthread_mutex_destroy(&engine->mutex);
    arena_fini(&engine->arena);
    free(engine);
}

const qn_tokenizer *qn_engine_tokenizer(const qn_engine *engine) {
    return engine->tokenizer;
}

int qn_engine_get_info(const qn_engine *engine, qn_engine_info *info) {
    if (!api_struct_fits(info, sizeof info->struct_size)) return QN_EINVAL;
    qn_engine_info now = engine->info;
    struct rt_reads reads = {0};
    if (engine->backend->reads != NULL && engine->model->spec.experts.n != 0)
        engine->backend->reads(engine->instance, &reads);
    now.experts_read = reads.experts;
    now.expert_layers_run = reads.layers;
    api_struct_out(info, &now, sizeof now);
    return QN_OK;
}

int qn_engine_measure_read(qn_engine *engine, double seconds, double *bytes_per_second,
                           qn_error *error) {
    struct diag d = {0};
    size_t busy = 0;
    int rc = session_busy(&d, engine, &busy);
    if (rc == QN_OK && busy) rc = fail(&d, QN_EBUSY, "%zu requests are running", busy);
    if (rc == QN_OK)
        rc = engine->backend->measure_read(&d, engine->instance, seconds, bytes_per_second);
    return api_return(rc, &d, error);
}

/* ---- trace -------------------------------------------------------------------------------- */

static int need_trace(struct diag *d, const qn_engine *e) {
    if (e->trace) return QN_OK;
    return fail(d, QN_EINVAL, "trace: the engine was opened without trace_bytes");
}

int qn_engine_trace_switch(qn_engine *engine, int on, qn_error *error) {
    struct diag d = {0};
    int rc = need_trace(&d, engine);
    if (rc == QN_OK) trace_rings_switch(engine->trace, on != 0);
    return api_return(rc, &d, error);
}

int engine_trace_wait(struct diag *d, qn_engine *e) {
    TRY(need_trace(d, e));
    return e->backend->trace_wait != NULL ? e->backend->trace_wait(d, e->instance) : QN_OK;
}
