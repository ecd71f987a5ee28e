/* cmd_generate.c - quern generate: one prompt, streamed, or many as one batch. */
#include "cli/cli.h"
#include "cli/prompts.h"
#include "cli/tally.h"

#include "base/checked.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    DEFAULT_MAX_TOKENS = 256,
    LEAST_AHEAD = 1024, /* prompts that are submitted before the first result is printed */
};

/* One output of a prompt. */
struct answer {
    qn_request *request;
    struct tally tally;
};

/* A prompt while it runs. */
struct job {
    struct prompt *prompt;
    struct answer *answers; /* [n] */
    uint32_t n;
};

struct run {
    const struct options *o;
    qn_engine *engine;
    const struct sampling *checked; /* of the options, without an engine */
    struct sampling *base, *own;    /* of the options; of the prompt that is being submitted */
    struct job *jobs;               /* [n_jobs] */
    size_t n_jobs;
    bool has_text, live;               /* live: the only output's text is printed as it arrives */
    size_t n_failed;                   /* lines with an error in place of a result ... */
    const struct prompt *first_failed; /* ... and the first of them */
    struct tally_sum sum;
};

static void job_fini(struct job *job) {
    for (uint32_t i = 0; i < job->n; i++) {
        qn_request_free(job->answers[i].request);
        tally_fini(&job->answers[i].tally);
    }
    free(job->answers);
    job->answers = NULL;
    job->n = 0;
}

/* Records an error of a prompt: as the result of its line, else of the run. */
static int refuse(struct job *job, const char *reason) {
    if (job->prompt->line) return prompt_refuse(job->prompt, reason);
    return cli_error("%s", reason);
}

/* ---- hand over ---------------------------------------------------------------------------- */

static int submit_one(const struct run *run, const struct prompt *p, uint32_t index,
                      qn_request **request, qn_error *error) {
    qn_prompt prompt = {.struct_size = sizeof prompt,
                        .ids = p->ids,
                        .n_ids = p->n_ids,
                        .text = p->text,
                        .n_text = p->n_text,
                        .no_special = options_flag(run->o, OPT_NO_SPECIAL_TOKENS)};
    qn_sampling_params s = run->own->params;
    s.seed += index; /* used only if has_seed */
    int rc;
    while ((rc = qn_request_submit(run->engine, &prompt, &s, request, error)) == QN_EBUSY)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* the queue is full */
    return rc;
}

static int submit(struct run *run, struct job *job) {
    struct diag d = {0};
    qn_error error;
    if (job->prompt->refusal) return EXIT_OK;
    sampling_fini(run->own); /* of the prompt before */
    if (prompt_sampling(&d, job->prompt, run->base, run->own) != QN_OK)
        return refuse(job, d.message);
    sampling_warn(run->o, run->engine, run->own);
    job->answers = calloc(run->own->n, sizeof *job->answers);
    if (!job->answers) return cli_error("out of memory");
    for (uint32_t i = 0; i < run->own->n; i++) {
        struct answer *a = &job->answers[job->n++];
        tally_start(&a->tally);
        if (submit_one(run, job->prompt, i, &a->request, &error) != QN_OK)
            return refuse(job, error.message);
    }
    return EXIT_OK;
}

/* ---- collect ------------------------------------------------------------------------------ */

/* Takes all tokens of one request. */
static int collect_one(const struct run *run, struct job *job, struct answer *a) {
    qn_output out = {.struct_size = sizeof out};
    qn_error error;
    do {
        if (qn_request_next(a->request, -1, &out, &error) != QN_OK)
            return refuse(job, error.message);
        if (tally_add(&a->tally, &out) != QN_OK) return cli_error("out of memory");
        if (run->live && out.n_text) {
            fwrite(out.text, 1, out.n_text, stdout);
            if (fflush(stdout) != 0) return cli_finish();
        }
    } while (out.finish_reason == QN_RUNNING);
    if (out.finish_reason == QN_FINISH_ABORT) return refuse(job, "the request was canceled");
    return EXIT_OK;
}

static int collect(struct run *run, struct job *job) {
    int rc = EXIT_OK;
    for (uint32_t i = 0; i < job->n && rc == EXIT_OK && !job->prompt->refusal; i++) {
        rc = collect_one(run, job, &job->answers[i]);
        if (rc == EXIT_OK) tally_sum(&run->sum, &job->answers[i].tally, job->answers[i].request);
    }
    return rc;
}

/* ---- print -------------------------------------------------------------------------------- */

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static json_t *top_json(const qn_token_logprob *top, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n && top[i].id >= 0; i++)
        json_array_append_new(array, json_pack("{s:i, s:o}", "id", (int)top[i].id, "logprob",
                                               cli_json_float(top[i].logprob)));
    return array;
}

/* The experts of a position's layers: an empty list where a layer has none. */
static json_t *position_json(const uint16_t *experts, const qn_engine_info *info) {
    json_t *layers = json_array();
    for (uint32_t l = 0; l < info->n_layers; l++) {
        json_t *ids = json_array();
        for (uint32_t k = 0; k < info->experts_per_token; k++) {
            const uint16_t id = experts[l * info->experts_per_token + k];
            if (id != QN_NO_EXPERT) json_array_append_new(ids, json_integer(id));
        }
        json_array_append_new(layers, ids);
    }
    return layers;
}

/* Writes the experts of each position; nothing if not requested. */
static void put_routed_experts(json_t *o, const struct run *run, qn_request *request) {
    qn_engine_info info = {.struct_size = sizeof info};
    const uint16_t *experts;
    size_t n;
    if (qn_request_routed_experts(request, &experts, &n, NULL) != QN_OK) return;
    qn_engine_get_info(run->engine, &info);
    json_t *positions = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            positions, position_json(experts + i * info.n_layers * info.experts_per_token, &info));
    json_object_set_new(o, "routed_experts", positions);
}

/* Writes the fields of one output into *o. */
static void put_answer(json_t *o, const struct run *run, const struct answer *answer) {
    const struct tally *t = &answer->tally;
    json_t *ids = json_array(), *logprobs = json_array(), *tops = json_array();
    for (size_t i = 0; i < t->n; i++) {
        json_array_append_new(ids, json_integer(t->items[i].id));
        json_array_append_new(logprobs, cli_json_float(t->items[i].logprob));
        json_array_append_new(tops, top_json(t->items[i].top, t->items[i].n_top));
    }
    json_object_set_new(o, "ids", ids);
    json_object_set_new(
        o, "text", run->has_text ? cli_json_text(strbuf_text(&t->text), t->text.n) : json_null());
    json_object_set_new(o, "logprobs", logprobs);
    if (t->n > 0 && t->items[0].n_top > 0) json_object_set(o, "top_logprobs", tops);
    json_decref(tops);
    json_object_set_new(o, "finish_reason", json_string(qn_finish_reason_text(t->finish_reason)));
    json_object_set_new(o, "stop_reason",
                        t->stop                 ? json_string(t->stop)
                        : t->stop_token_id >= 0 ? json_integer(t->stop_token_id)
                                                : json_null());
    put_routed_experts(o, run, answer->request);
}

/* Writes the scores of the prompt's tokens, null for the first; nothing if not requested. */
static void put_scores(json_t *o, qn_request *request) {
    const float *logprobs;
    const qn_token_logprob *top;
    size_t n, n_top;
    qn_request_prompt_ids(request, &n);
    if (qn_request_prompt_logprobs(request, &logprobs, &top, &n_top, NULL) != QN_OK) return;
    json_t *own = json_array(), *tops = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(own, cli_json_float(logprobs[i]));
        json_array_append_new(tops, i ? top_json(top + i * n_top, n_top) : json_null());
    }
    json_object_set_new(o, "prompt_logprobs", own);
    if (n_top > 0) json_object_set(o, "prompt_top_logprobs", tops);
    json_decref(tops);
}

static void put_outputs(json_t *o, const struct run *run, const struct job *job) {
    json_t *outputs = json_array();
    for (uint32_t i = 0; i < job->n; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "index", json_integer(i));
        put_answer(one, run, &job->answers[i]);
        json_object_set_new(one, "stats",
                            tally_json(&job->answers[i].tally, job->answers[i].request));
        json_array_append_new(outputs, one);
    }
    json_object_set_new(o, "outputs", outputs);
}

static json_t *job_json(const struct run *run, const struct job *job) {
    const struct prompt *p = job->prompt;
    json_t *o = json_object(), *custom = json_object_get(p->fields, "custom_id");
    if (p->refusal) {
        json_t *message = cli_json_text(p->refusal, strlen(p->refusal));
        json_object_set_new(
            o, "error", json_pack("{s:o, s:I}", "message", message, "line", (json_int_t)p->line));
    } else {
        size_t n;
        const int32_t *ids = qn_request_prompt_ids(job->answers[0].request, &n);
        json_object_set_new(o, "prompt_ids", ids_json(ids, n));
        put_scores(o, job->answers[0].request);
        if (job->n > 1) {
            put_outputs(o, run, job);
        } else {
            put_answer(o, run, &job->answers[0]);
            json_object_set_new(o, "stats",
                                tally_json(&job->answers[0].tally, job->answers[0].request));
        }
    }
    if (custom) json_object_set(o, "custom_id", custom);
    return o;
}

/* Prints a line after each text if there are several: its number, and how it ended. */
static void print_end(const struct job *job, uint32_t index, const char *end) {
    printf("\n--- prompt %lu", job->prompt->line ? job->prompt->line : 1);
    if (job->n > 1) printf(", text %u", index + 1);
    printf(": %s\n", end);
}

static int print_text(const struct run *run, const struct job *job) {
    if (job->prompt->refusal) {
        print_end(job, 0, "error");
        return cli_finish();
    }
    for (uint32_t i = 0; i < job->n; i++) {
        const struct tally *t = &job->answers[i].tally;
        if (!run->live) fwrite(strbuf_text(&t->text), 1, t->text.n, stdout);
        if (run->n_jobs > 1 || job->n > 1)
            print_end(job, i, qn_finish_reason_text(t->finish_reason));
        else
            putchar('\n');
    }
    return cli_finish();
}

/* ---- the run ------------------------------------------------------------------------------ */

static int run_jobs(struct run *run) {
    qn_engine_info info = {.struct_size = sizeof info};
    qn_engine_get_info(run->engine, &info);
    const size_t ahead = MAX((size_t)LEAST_AHEAD, (size_t)info.max_num_seqs * 8);
    size_t given = 0;
    int rc = EXIT_OK;
    for (size_t i = 0; i < run->n_jobs && rc == EXIT_OK; i++) {
        struct job *job = &run->jobs[i];
        for (; given < run->n_jobs && given < i + ahead && rc == EXIT_OK; given++)
            rc = submit(run, &run->jobs[given]);
        if (rc == EXIT_OK) rc = collect(run, job);
        if (rc == EXIT_OK)
            rc = cli_wants_json(run->o) ? cli_print_json(job_json(run, job)) : print_text(run, job);
        if (job->prompt->refusal && run->n_failed++ == 0) run->first_failed = job->prompt;
        job_fini(job);
    }
    return rc;
}

static int start(struct run *run) {
    run->base = calloc(2, sizeof *run->base);
    if (!run->base) return cli_error("out of memory");
    run->own = run->base + 1;
    int rc =
        sampling_from_options(run->o, run->engine, DEFAULT_MAX_TOKENS, run->checked, run->base);
    if (rc != EXIT_OK) return rc;
    const bool json = cli_wants_json(run->o);
    run->has_text = qn_engine_tokenizer(run->engine) != NULL;
    run->live = run->n_jobs == 1 && run->base->n == 1 && !run->jobs[0].prompt->line && !json;
    if (!run->has_text && !json)
        cli_note(run->o, "the model has no tokenizer, so there is no text to print; use --format "
                         "json");
    if (!run->has_text && run->base->params.n_stop)
        return cli_error("--stop: the model has no tokenizer");
    return EXIT_OK;
}

static int run_prompts(const struct options *o, qn_engine *engine, const struct sampling *checked,
                       struct prompts *prompts) {
    struct run run = {.o = o, .engine = engine, .checked = checked, .n_jobs = prompts->n};
    run.jobs = calloc(prompts->n, sizeof *run.jobs);
    if (!run.jobs) return cli_error("out of memory");
    for (size_t i = 0; i < run.n_jobs; i++) run.jobs[i].prompt = &prompts->items[i];
    int rc = start(&run);
    if (rc == EXIT_OK) rc = run_jobs(&run);
    for (size_t i = 0; i < run.n_jobs; i++) job_fini(&run.jobs[i]);
    if (rc == EXIT_OK && run.sum.n_requests && !options_flag(o, OPT_QUIET))
        tally_report(o, engine, &run.sum);
    if (run.base) sampling_fini(run.base);
    if (run.base) sampling_fini(run.own);
    free(run.base);
    free(run.jobs);
    if (rc == EXIT_OK && run.n_failed)
        rc = cli_error("%zu of %zu prompts failed; line %lu: %s", run.n_failed, prompts->n,
                       run.first_failed->line, run.first_failed->refusal);
    return rc;
}

int cmd_generate(const struct options *o) {
    qn_engine_params params;
    qn_engine *engine = NULL;
    struct prompts prompts = {0};
    const enum option listed[] = {OPT_LOGPROBS, OPT_PROMPT_LOGPROBS,
                                  OPT_ENABLE_RETURN_ROUTED_EXPERTS};
    for (size_t i = 0; i < COUNT_OF(listed); i++)
        if (o->values[listed[i]].given && !cli_wants_json(o))
            return cli_usage("--%s: shown with --format json only", option_table[listed[i]].name);
    struct sampling *checked = calloc(1, sizeof *checked);
    int rc = cli_engine_params(o, &params);
    if (rc == EXIT_OK)
        rc =
            checked ? sampling_from_options(o, NULL, 0, NULL, checked) : cli_error("out of memory");
    if (rc == EXIT_OK) rc = prompts_read(o, &prompts);
    params.max_logprobs = MAX(prompts.max_logprobs, sampling_logprobs_of_options(o));
    if (rc == EXIT_OK) rc = cli_open_engine(o, &params, &engine);
    if (rc == EXIT_OK) rc = run_prompts(o, engine, checked, &prompts);
    if (rc == EXIT_OK) rc = cli_write_trace(o, engine);
    if (checked) sampling_fini(checked);
    free(checked);
    prompts_fini(&prompts);
    qn_engine_close(engine);
    return rc;
}
