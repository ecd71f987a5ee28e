/* profile_run.c - qn_profile: opens an engine with a trace, runs a batch with recording off and on
 * in turn, and makes the account of the last recorded run.
 */
#include "engine/engine.h"

#include "base/checked.h"
#include "inspect/profile.h"
#include "inspect/view_page.h"
#include "runtime/trace_rings.h"

#include <stdlib.h>

/* Pairs of runs, without and with recording in turn. The fastest tenth of each kind counts: other
 * programs slow steps down, nothing makes them faster. */
enum { PAIRS = 6 };
/* The floor is measured in many short pieces between the runs, and the best one counts: a piece in
 * which another program had the CPU says nothing about memory. */
enum { FLOOR_PIECES = 8 };
static const double FLOOR_SECONDS = 0.03;

/* Token ids that depend on request and position only. */
static int32_t some_token(uint32_t request, uint32_t position, uint32_t vocab) {
    uint64_t x = ((uint64_t)request << 32 | position) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    x ^= x >> 31;
    return (int32_t)((x * 0xd6e8feb86659fd93u >> 33) % vocab);
}

static int submit(qn_engine *e, const qn_profile_params *p, uint32_t idx, int32_t *ids,
                  qn_request **request, qn_error *error) {
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    s.temperature = 0;
    s.ignore_eos = 1;
    s.max_tokens = p->output_len;
    for (uint32_t i = 0; i < p->input_len; i++) ids[i] = some_token(idx, i, e->info.vocab);
    qn_prompt prompt = {.struct_size = sizeof prompt, .ids = ids, .n_ids = p->input_len};
    return qn_request_submit(e, &prompt, &s, request, error);
}

/* Collects all tokens of one request. steps: milliseconds from each token to the next. */
static int collect(qn_request *request, double *steps, size_t *n, qn_error *error) {
    qn_output out = {.struct_size = sizeof out};
    uint64_t last = 0;
    do {
        int rc = qn_request_next(request, -1, &out, error);
        if (rc != QN_OK) return rc;
        if (last && out.id >= 0) steps[(*n)++] = (double)(out.time_ns - last) * 1e-6;
        last = out.time_ns;
    } while (out.finish_reason == QN_RUNNING);
    return QN_OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One request of a batch. */
struct member {
    qn_request *request;
};

/* Runs one batch from start to end. *ms becomes the least time per token so far that a tenth of the
 * steps of a run stayed below. */
static int run_batch(qn_engine *e, const qn_profile_params *p, double *ms, qn_error *error) {
    struct member *requests = calloc(p->batch_size, sizeof *requests);
    double *steps = calloc(p->output_len, sizeof *steps);
    int32_t *ids = calloc(p->input_len, sizeof *ids);
    bool room = requests && steps && ids;
    struct diag d = {0};
    int rc = room ? QN_OK : api_return(fail_nomem(&d, p->output_len * 8, "a batch"), &d, error);
    for (uint32_t i = 0; room && i < p->batch_size && rc == QN_OK; i++)
        rc = submit(e, p, i, ids, &requests[i].request, error);
    for (uint32_t i = 0; room && i < p->batch_size && rc == QN_OK; i++) {
        size_t n = 0;
        rc = collect(requests[i].request, steps, &n, error);
        if (rc != QN_OK || i + 1 < p->batch_size || n == 0) continue; /* the last one counts */
        qsort(steps, n, sizeof *steps, by_value);
        *ms = *ms > 0 ? MIN(*ms, steps[n / 10]) : steps[n / 10];
    }
    for (uint32_t i = 0; i < p->batch_size && requests; i++) qn_request_free(requests[i].request);
    free(requests);
    free(steps);
    free(ids);
    return rc;
}

/* A record's cost in nanoseconds: the least of several measurements of some thousand records. */
static int measure_record(struct diag *d, double *ns) {
    enum { TRIES = 20, RECORDS = 4096 };
    struct rt_trace *t;
    TRY(trace_rings_new(d, 1, 1, &t));
    trace_rings_switch(t, true);
    for (int i = 0; i < TRIES; i++) {
        uint64_t start = rt_now_ns();
        for (uint32_t k = 0; k < RECORDS; k++) rt_trace_write(t, 0, RT_TRACE_READY, 0, k);
        double each = (double)(rt_now_ns() - start) / RECORDS;
        *ns = i == 0 ? each : MIN(*ns, each);
    }
    free(t);
    return QN_OK;
}

static int measure_floor(qn_engine *e, double *best, qn_error *error) {
    for (int i = 0; i < FLOOR_PIECES; i++) {
        double rate = 0;
        int rc = qn_engine_measure_read(e, FLOOR_SECONDS, &rate, error);
        if (rc != QN_OK) return rc;
        *best = MAX(*best, rate);
    }
    return QN_OK;
}

static int run(qn_engine *e, const qn_profile_params *p, struct profile_setting *s,
               uint64_t *last_start, qn_error *error) {
    struct diag d = {0};
    trace_rings_switch(e->trace, false);
    int rc = QN_OK;
    if (e->backend->target == TARGET_CPU)
        rc = api_return(measure_record(&d, &s->record_ns), &d, error);
    for (int i = 0; i < PAIRS && rc == QN_OK; i++) {
        rc = measure_floor(e, &s->read_rate, error);
        if (rc == QN_OK) rc = run_batch(e, p, &s->ms_plain, error);
        trace_rings_switch(e->trace, true);
        *last_start = rt_now_ns();
        if (rc == QN_OK) rc = run_batch(e, p, &s->ms_traced, error);
        trace_rings_switch(e->trace, false);
    }
    return rc;
}

/* ---- output ------------------------------------------------------------------------------- */

static int make_page(struct diag *d, const struct profile *p, const struct profile_setting *s,
                     char **html) {
    struct strbuf json = {0}, page = {0};
    int rc = profile_json(d, p, s, true, &json);
    if (rc == QN_OK) rc = view_page_make(d, "profile", strbuf_text(&json), &page);
    strbuf_fini(&json);
    if (rc == QN_OK)
        *html = page.text;
    else
        strbuf_fini(&page);
    return rc;
}

static int report(struct diag *d, struct qn_engine *e, const qn_profile_params *params,
                  const struct profile_setting *s, uint64_t last_start, char **json, char **html) {
    struct trace trace;
    struct profile profile;
    struct strbuf out = {0};
    TRY(engine_trace_wait(d, e));
    TRY(trace_read(d, e->trace, e->program, &trace));
    size_t first = 0;
    while (first < trace.iters.n && trace.iters.items[first].start < last_start) first++;
    int rc = profile_make(d, &trace, params->batch_size, first, &profile);
    if (rc == QN_OK) {
        rc = profile_json(d, &profile, s, false, &out);
        if (rc == QN_OK && html) rc = make_page(d, &profile, s, html);
        profile_fini(&profile);
    }
    if (rc == QN_OK && params->trace)
        rc = trace_write(d, &trace, e->info.served_model_name, params->trace);
    trace_fini(&trace);
    if (rc == QN_OK)
        *json = out.text;
    else
        strbuf_fini(&out);
    return rc;
}

/* ---- qn_profile --------------------------------------------------------------------------- */

void qn_profile_params_init(qn_profile_params *params) {
    *params = (qn_profile_params){
        .struct_size = sizeof *params, .batch_size = 1, .input_len = 64, .output_len = 64};
}

static int check(struct diag *d, const qn_profile_params *given, qn_profile_params *p,
                 const qn_engine_params *engine, qn_engine_params *e) {
    qn_profile_params_init(p);
    if (given && !api_struct_in(p, sizeof *p, given))
        return fail(d, QN_EINVAL, "qn_profile_params: struct_size is not set");
    TRY(engine_params(d, engine, e));
    if (p->batch_size < 1 || p->batch_size > PROG_MAX_SEQS)
        return fail(d, QN_EINVAL, "batch_size: want 1 to %d, have %u", PROG_MAX_SEQS,
                    p->batch_size);
    if (p->input_len < 1 || p->input_len > 1u << 20)
        return fail(d, QN_EINVAL, "input_len: want 1 to %u, have %u", 1u << 20, p->input_len);
    if (p->output_len < 4 || p->output_len > 1u << 20)
        return fail(d, QN_EINVAL, "output_len: want 4 to %u, have %u", 1u << 20, p->output_len);
    if (e->max_num_seqs == 0) e->max_num_seqs = p->batch_size;
    if (e->max_model_len == 0) e->max_model_len = p->input_len + p->output_len;
    if (e->trace_bytes == 0) e->trace_bytes = TRACE_RINGS_DEFAULT_BYTES;
    return QN_OK;
}

int qn_profile(const qn_engine_params *params, const qn_profile_params *profile, char **json,
               char **html, qn_error *error) {
    struct diag d = {0};
    qn_profile_params p;
    qn_engine_params ep;
    qn_engine *e = NULL;
    uint64_t last_start = 0;
    *json = NULL;
    if (html) *html = NULL;
    int rc = check(&d, profile, &p, params, &ep);
    if (rc != QN_OK) return api_return(rc, &d, error);
    ep.no_prefix_caching = 1; /* both runs must compute the same */
    rc = qn_engine_open(&ep, &e, error);
    if (rc != QN_OK) return rc;
    struct profile_setting s = {.model = e->info.served_model_name,
                                .backend = e->info.backend,
                                .device = e->info.device,
                                .batch = p.batch_size,
                                .input_len = p.input_len,
                                .output_len = p.output_len,
                                .weight_bytes = e->info.weight_bytes,
                                .kv_cache_bytes = e->info.kv_cache_bytes,
                                .workspace_bytes = e->info.workspace_bytes,
                                .other_bytes = e->info.other_bytes};
    rc = run(e, &p, &s, &last_start, error);
    qn_engine_info info = {.struct_size = sizeof info};
    qn_engine_get_info(e, &info);
    if (info.expert_layers_run > 0)
        s.experts_read = (double)info.experts_read / (double)info.expert_layers_run;
    if (rc == QN_OK) rc = api_return(report(&d, e, &p, &s, last_start, json, html), &d, error);
    qn_engine_close(e);
    return rc;
}
