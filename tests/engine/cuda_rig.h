/* cuda_rig.h - an engine without the engine for tests of a backend: model, program, weights and the
 * backend itself, requests and what became of them. One thread; what fails ends the test.
 */
#ifndef QN_TESTS_ENGINE_CUDA_RIG_H
#define QN_TESTS_ENGINE_CUDA_RIG_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* base/status.h has a function of that name; so fail_msg cannot be used */
#define DIE(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(!"as said above"))

#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "engine/backend_cuda.h"
#include "engine/recipe.h"
#include "engine/compile.h"
#include "engine/compile_option.h"
#include "quern.h"
#include "runtime/trace_rings.h"

/* The patience is a slow emulated card's, on a busy host. */
enum { N_SLOTS = 8, MAX_SLOTS = 72, MAX_LEN = 512, MAX_OUT = 64, PATIENCE_S = 300 };
enum { MAX_SCORED = 400 };    /* positions of a prompt */
enum { MAX_ROUTES = 10000 };  /* ids of a request's experts */
enum { MAX_CONTEXT = 40000 }; /* of test_long_context */

struct rig {
    const struct backend *backend;
    struct model *model;
    struct prog_header *program;
    struct weights *weights; /* NULL: made up by the backend */
    struct rt_trace *trace;  /* NULL: none */
    struct backend_instance *instance;
};

struct rig_options {
    const char *dir;
    uint32_t max_batched; /* 0: 64 */
    uint32_t max_len;     /* 0: MAX_LEN */
    uint32_t n_workers;   /* 0: the device's */
    uint32_t n_slots;     /* 0: N_SLOTS */
    uint32_t n_ranks;     /* 0: 1 */
    uint32_t logit_rows;  /* of a request; 0: 1 */
    bool dummy;           /* weights made up... */
    bool dummy_on_host;   /* ... by model/weights.c instead of on the device */
    bool break_event;     /* one event wants a trigger that never comes */
    bool coarse;          /* as the engine compiles for CUDA: operators wait for whole operators */
    bool hybrid, jit;     /* attention, or all tasks, are handed out at run time; else none */
    uint64_t transport_bytes;
    uint32_t flight;      /* not 0: traced, with that many pages in flight and no guesses */
    const char *options;  /* compile options, or NULL */
    uint32_t n_kv_blocks; /* 0: for all slots */
    bool prefix_cache;
    void (*progress)(void *user, const char *stage, uint64_t done, uint64_t total); /* or NULL */
    void *progress_user;
};

static inline void rig_close(struct rig *r) {
    r->backend->close(r->instance);
    weights_free(r->weights);
    free(r->trace);
    free(r->program);
    model_free(r->model);
    memset(r, 0, sizeof *r);
}

/* An event in the middle of the smallest variant, one that is counted, gets a trigger too few. */
static inline void break_event(struct prog_header *p) {
    const struct prog_variant *v = PROG(p, VARIANT);
    struct prog_event *event = (struct prog_event *)PROG(p, EVENT) + v->first_event;
    for (event += v->n_events / 2; event->transport != TRANSPORT_COUNTER;) event++;
    event->n_triggers++;
}

static inline int open_traced(struct diag *d, const struct backend_config *config, uint32_t flight,
                              struct rig *r) {
    struct backend_config traced = *config;
    struct backend_cuda_options cuda;
    backend_cuda_defaults(&cuda);
    cuda.flight = flight;
    cuda.stream = CUDA_STREAM_LIST;
    TRY(trace_rings_new(d, r->program->n_workers, 0, &r->trace));
    trace_rings_switch(r->trace, true);
    traced.trace = r->trace;
    return backend_cuda_open(d, r->program, r->weights, &traced, &cuda, &r->instance);
}

static inline int rig_open(struct diag *d, const struct backend *backend,
                           const struct rig_options *o, struct rig *r) {
    struct model_options m = {.dummy = o->dummy};
    struct backend_device device;
    struct compile_options c;
    struct backend_config config = {.n_workers = backend->target == TARGET_CPU ? 4 : 0};
    *r = (struct rig){.backend = backend};
    TRY(backend->device(d, &config, &device));
    TRY(model_open(d, o->dir, &m, &r->model));
    compile_options_init(&c);
    c.target = backend->target;
    c.device = device.compute;
    if (o->n_workers) c.device.n_workers = o->n_workers;
    c.n_slots = o->n_slots ? o->n_slots : N_SLOTS;
    c.n_ranks = o->n_ranks ? o->n_ranks : 1;
    c.logit_rows = o->logit_rows ? o->logit_rows : 1;
    c.max_model_len = o->max_len ? o->max_len : MAX_LEN;
    c.max_batched_tokens = o->max_batched ? o->max_batched : 64;
    if (c.target == TARGET_CUDA)
        c.task.launch = o->jit ? LAUNCH_ALL_JIT : o->hybrid ? LAUNCH_HYBRID : LAUNCH_ALL_AOT;
    c.cut_qkv = c.join_heads = c.target == TARGET_CUDA || o->coarse;
    c.task.coarse_events = o->coarse;
    c.cut_linear = device.compute.has.wgmma;
    c.task.transport_bytes = o->transport_bytes;
    if (c.target == TARGET_CUDA) TRY(compile_option_apply(d, getenv("QN_TEST_OPTIONS"), &c));
    TRY(compile_option_apply(d, o->options, &c));
    TRY(compile_model(d, r->model, &c, NULL, NULL, &r->program));
    if (o->break_event) break_event(r->program);
    if (!o->dummy || o->dummy_on_host || backend->target == TARGET_CPU)
        TRY(recipe_load(d, r->program, r->model->files, NULL, &r->weights));
    config.n_kv_blocks = c.n_slots * CEIL_DIV(c.max_model_len, c.kv_block);
    if (o->n_kv_blocks > 0) config.n_kv_blocks = o->n_kv_blocks;
    config.choices.prefix_cache = o->prefix_cache;
    config.progress = o->progress;
    config.progress_user = o->progress_user;
    config.choices.routes = r->model->spec.experts.n != 0;
    config.max_batched = c.max_batched_tokens;
    if (o->flight > 0) return open_traced(d, &config, o->flight, r);
    return backend->open(d, r->program, r->weights, &config, &r->instance);
}

static inline void open_well(const struct backend *backend, const struct rig_options *o,
                             struct rig *r) {
    struct diag d = {0};
    if (rig_open(&d, backend, o, r) != QN_OK) DIE("%s: %s", o->dir, d.message);
}

/* ---- requests ---- */

struct request {
    int32_t prompt[MAX_CONTEXT];
    uint32_t n_prompt, max_tokens;
    float temperature;
    uint64_t seed;
    uint32_t n_stop, min_tokens; /* without a stop id nothing but the length ends it */
    int32_t stop;
    uint32_t n_scored;
};

struct result {
    uint32_t n;
    int32_t ids[MAX_OUT];
    float logprobs[MAX_OUT];
    uint32_t n_cached, n_preempted;
    float scores[MAX_SCORED]; /* [n_scored] */
    uint32_t n_routes;        /* ids: of all positions but the last one, or as many as fit;
                               * QN_NO_EXPERT in layers without experts */
    uint16_t routes[MAX_ROUTES];
};

static inline struct rt_request runtime_request(const struct request *q) {
    return (struct rt_request){.n_prompt = q->n_prompt,
                               .max_tokens = q->max_tokens,
                               .n_stop = q->n_stop,
                               .stop = {q->stop},
                               .min_tokens = q->min_tokens,
                               .n_scored = q->n_scored,
                               .sampling = {.temperature = q->temperature,
                                            .top_p = q->temperature > 0 ? 0.9f : 1,
                                            .top_k = q->temperature > 0 ? 50 : 0,
                                            .min_p = q->temperature > 0 ? 0.01f : 0,
                                            .repetition_penalty = q->temperature > 0 ? 1.1f : 1,
                                            .ignore_eos = q->n_stop == 0,
                                            .seed = q->seed}};
}

static inline int submit(struct diag *d, struct rig *r, const struct request *q, uint32_t *slot) {
    const struct rt_request runtime = runtime_request(q);
    return r->backend->submit(d, r->instance, &runtime, NULL, q->prompt, slot);
}

static inline void take_routes(const struct rig *r, const struct mailbox_view *view,
                               struct result *out) {
    const struct model_spec *s = &r->model->spec;
    out->n_routes = MIN(view->n_routed * s->n_layers * s->experts.top_k, (uint32_t)MAX_ROUTES);
    for (uint32_t i = 0; i < out->n_routes; i++) {
        const bool sparse = spec_is_sparse(s, i / s->experts.top_k % s->n_layers);
        out->routes[i] = sparse ? view->routes[i] : QN_NO_EXPERT;
    }
}

static inline int collect(struct diag *d, struct rig *r, uint32_t slot, struct result *out) {
    struct mailbox_view view;
    uint32_t seen = 0;
    for (double waited = 0; waited < PATIENCE_S; waited += 0.05) {
        TRY(r->backend->poll(d, r->instance, slot, &view));
        if (view.finish != RT_RUNNING) {
            memset(out, 0, sizeof *out);
            out->n = view.n_out < MAX_OUT ? view.n_out : MAX_OUT;
            assert_true(view.n_scored <= MAX_SCORED);
            memcpy(out->scores, view.scored, view.n_scored * sizeof *out->scores);
            out->n_cached = view.n_cached;
            out->n_preempted = view.n_preempted;
            memcpy(out->ids, view.tokens, out->n * sizeof *out->ids);
            memcpy(out->logprobs, view.logprobs, out->n * sizeof *out->logprobs);
            take_routes(r, &view, out);
            return r->backend->release(d, r->instance, slot);
        }
        TRY(r->backend->wait(d, r->instance, &seen, 0.05));
    }
    return fail(d, QN_ESTALL, "the request did not end in %d s", PATIENCE_S);
}

/* All at once, as many as the rig has slots. */
static inline void generate(struct rig *r, const struct request *q, size_t n, struct result *out) {
    struct diag d = {0};
    uint32_t slots[MAX_SLOTS];
    int rc = n <= MAX_SLOTS ? QN_OK : fail(&d, QN_EINVAL, "%zu requests are too many", n);
    for (size_t i = 0; i < n && rc == QN_OK; i++) rc = submit(&d, r, &q[i], &slots[i]);
    for (size_t i = 0; i < n && rc == QN_OK; i++) rc = collect(&d, r, slots[i], &out[i]);
    if (rc != QN_OK) DIE("%s", d.message);
}

static inline struct request made_up(uint32_t seed, uint32_t n_prompt, uint32_t max_tokens,
                                     uint32_t vocab, float temperature) {
    struct request q = {
        .n_prompt = n_prompt, .max_tokens = max_tokens, .temperature = temperature, .seed = seed};
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint32_t i = 0; i < n_prompt; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        q.prompt[i] = (int32_t)((x >> 33) % vocab);
    }
    return q;
}

/* The same tokens and bits of log-probabilities, which are numbers, and the same experts. */
static inline void assert_same(const struct result *a, const struct result *b, const char *what) {
    for (uint32_t i = 0; i < MAX_OUT; i++)
        if (isnan(b->logprobs[i]) || a->n != b->n || a->ids[i] != b->ids[i] ||
            memcmp(&a->logprobs[i], &b->logprobs[i], sizeof a->logprobs[i]) != 0)
            DIE("%s: token %u: %d (%.9g), before %d (%.9g); %u and %u tokens", what, i, b->ids[i],
                (double)b->logprobs[i], a->ids[i], (double)a->logprobs[i], b->n, a->n);
    for (uint32_t i = 0; i < MAX(a->n_routes, b->n_routes); i++)
        if (a->n_routes != b->n_routes || a->routes[i] != b->routes[i])
            DIE("%s: id %u of %u: expert %u, before %u of %u", what, i, b->n_routes, b->routes[i],
                a->routes[i], a->n_routes);
}

/* Keeps the tests whose names fit QN_TEST, if it is set. True: QN_TEST_LIST is set, and the names
 * of all tests are printed instead of running them. */
static inline bool tests_listed(const struct CMUnitTest *tests, size_t n) {
    const char *only = getenv("QN_TEST");
    if (only != NULL) cmocka_set_test_filter(only);
    if (getenv("QN_TEST_LIST") == NULL) return false;
    for (size_t i = 0; i < n; i++) puts(tests[i].name);
    return true;
}

#endif
