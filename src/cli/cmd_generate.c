/* cmd_generate.c - quern generate: one prompt, streamed, or many as one batch. */
#include "cli/cli.h"
#include "cli/jsonl.h"
#include "cli/tally.h"

#include "base/array.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_MAX_TOKENS = 256, MAX_PROMPTS = 1 << 20 };

/* One prompt and what came of it. */
struct job {
    char *text; /* NULL: ids */
    size_t n_text;
    int32_t *ids;
    size_t n_ids;
    unsigned long line; /* of the prompts file, 0: not from one */
    qn_request *request;
    struct tally tally;
};

struct jobs {
    struct job *items;
    size_t n, capacity;
};

static void jobs_fini(struct jobs *jobs) {
    for (size_t i = 0; i < jobs->n; i++) {
        qn_request_free(jobs->items[i].request);
        tally_fini(&jobs->items[i].tally);
        free(jobs->items[i].text);
        free(jobs->items[i].ids);
    }
    ARRAY_FINI(jobs);
}

/* ---- prompts ------------------------------------------------------------------------------ */

static int push_job(struct jobs *jobs, struct job job) {
    if (ARRAY_PUSH(NULL, jobs, job) == QN_OK) return EXIT_OK;
    free(job.text);
    free(job.ids);
    return cli_error("out of memory");
}

static int job_from_line(const struct jsonl *lines, const json_t *object, struct job *job) {
    json_t *text = json_object_get(object, "prompt"), *ids = json_object_get(object, "prompt_ids");
    *job = (struct job){.line = lines->number};
    if (json_is_array(ids) && !text)
        return jsonl_ids(lines, "prompt_ids", ids, &job->ids, &job->n_ids);
    if (!json_is_string(text) || ids)
        return cli_error("%s: line %lu: want either prompt (a string) or prompt_ids (an array)",
                         lines->name, lines->number);
    job->n_text = json_string_length(text);
    job->text = malloc(job->n_text + 1);
    if (!job->text) return cli_error("out of memory");
    memcpy(job->text, json_string_value(text), job->n_text + 1);
    return EXIT_OK;
}

static int jobs_from_file(const char *path, struct jobs *jobs) {
    struct jsonl lines;
    json_t *line;
    int rc = jsonl_open(&lines, path);
    while (rc == EXIT_OK && (rc = jsonl_next(&lines, &line)) == EXIT_OK && line) {
        struct job job = {0};
        rc = jobs->n < MAX_PROMPTS ? job_from_line(&lines, line, &job)
                                   : cli_error("%s: more than %d prompts", path, MAX_PROMPTS);
        if (rc == EXIT_OK) rc = push_job(jobs, job);
        json_decref(line);
    }
    jsonl_close(&lines);
    if (rc == EXIT_OK && jobs->n == 0) rc = cli_error("%s: no prompts", path);
    return rc;
}

static int job_from_ids(const struct option_value *v, struct jobs *jobs) {
    struct job job = {.n_ids = v->n};
    job.ids = malloc((v->n ? v->n : 1) * sizeof *job.ids);
    if (!job.ids) return cli_error("out of memory");
    for (size_t i = 0; i < v->n; i++) {
        if (v->integers[i] > INT32_MAX) {
            free(job.ids);
            return cli_error("--prompt-ids: %lld is not a token id", (long long)v->integers[i]);
        }
        job.ids[i] = (int32_t)v->integers[i];
    }
    return push_job(jobs, job);
}

static int read_prompts(const struct options *o, struct jobs *jobs) {
    const char *prompt = options_text(o, OPT_PROMPT, NULL);
    const char *file = options_text(o, OPT_PROMPT_FILE, NULL);
    const char *many = options_text(o, OPT_PROMPTS_FILE, NULL);
    const struct option_value *ids = &o->values[OPT_PROMPT_IDS];
    if (!!prompt + !!file + !!many + ids->given != 1)
        return cli_usage("give one of --prompt, --prompt-file, --prompt-ids and --prompts-file");
    if (many) return jobs_from_file(many, jobs);
    if (ids->given) return job_from_ids(ids, jobs);
    struct job job = {0};
    if (file) {
        int rc = cli_read_file(file, &job.text, &job.n_text);
        return rc == EXIT_OK ? push_job(jobs, job) : rc;
    }
    job.text = strdup(prompt);
    job.n_text = strlen(prompt);
    return job.text ? push_job(jobs, job) : cli_error("out of memory");
}

/* ---- running ------------------------------------------------------------------------------ */

static int submit(const struct options *o, qn_engine *engine, const qn_sampling_params *sampling,
                  struct job *job) {
    qn_prompt prompt = {.struct_size = sizeof prompt,
                        .ids = job->ids,
                        .n_ids = job->n_ids,
                        .text = job->text,
                        .n_text = job->n_text,
                        .no_special = options_flag(o, OPT_NO_SPECIAL_TOKENS)};
    qn_error error;
    tally_start(&job->tally);
    if (qn_request_submit(engine, &prompt, sampling, &job->request, &error) == QN_OK)
        return EXIT_OK;
    if (job->line) return cli_error("line %lu: %s", job->line, error.message);
    return cli_failed(&error);
}

/* Takes all tokens of one request; `live`: prints the text as it comes. */
static int collect(struct job *job, bool live) {
    qn_output out = {.struct_size = sizeof out};
    qn_error error;
    do {
        if (qn_request_next(job->request, -1, &out, &error) != QN_OK) return cli_failed(&error);
        if (tally_add(&job->tally, &out) != QN_OK) return cli_error("out of memory");
        if (live && out.n_text) {
            fwrite(out.text, 1, out.n_text, stdout);
            fflush(stdout);
        }
    } while (out.finish_reason == QN_RUNNING);
    if (out.finish_reason == QN_FINISH_ABORT) return cli_error("the request was canceled");
    return EXIT_OK;
}

static json_t *ids_json(const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static json_t *job_json(const struct job *job, bool has_text) {
    const struct tally *t = &job->tally;
    size_t n_prompt;
    const int32_t *prompt = qn_request_prompt_ids(job->request, &n_prompt);
    json_t *logprobs = json_array();
    for (size_t i = 0; i < t->n; i++)
        json_array_append_new(logprobs, cli_json_float(t->items[i].logprob));
    json_t *ids = json_array();
    for (size_t i = 0; i < t->n; i++) json_array_append_new(ids, json_integer(t->items[i].id));
    json_t *text = has_text ? json_stringn(strbuf_text(&t->text), t->text.n) : json_null();
    return json_pack("{s:o, s:o, s:o, s:o, s:s, s:o}", "prompt_ids", ids_json(prompt, n_prompt),
                     "ids", ids, "text", text, "logprobs", logprobs, "finish_reason",
                     qn_finish_reason_text(t->finish_reason), "stats", tally_json(t, n_prompt));
}

static int print_job(const struct options *o, const struct job *job, bool live, bool has_text) {
    if (cli_wants_json(o)) return cli_print_json(job_json(job, has_text));
    if (!live) fwrite(strbuf_text(&job->tally.text), 1, job->tally.text.n, stdout);
    putchar('\n');
    return EXIT_OK;
}

static int run_jobs(const struct options *o, qn_engine *engine, struct jobs *jobs) {
    qn_sampling_params sampling;
    int32_t stop_ids[QN_MAX_STOP_TOKEN_IDS];
    int rc = cli_sampling(o, engine, DEFAULT_MAX_TOKENS, &sampling, stop_ids);
    bool has_text = qn_engine_tokenizer(engine) != NULL;
    bool live = jobs->n == 1 && !cli_wants_json(o);
    if (rc == EXIT_OK && !has_text && !cli_wants_json(o))
        cli_note(o, "the model has no tokenizer, so there is no text to print; use --format json");
    if (rc == EXIT_OK && !has_text && o->values[OPT_STOP].given)
        rc = cli_error("--stop: the model has no tokenizer");
    for (size_t i = 0; i < jobs->n && rc == EXIT_OK; i++)
        rc = submit(o, engine, &sampling, &jobs->items[i]);
    for (size_t i = 0; i < jobs->n && rc == EXIT_OK; i++) {
        rc = collect(&jobs->items[i], live);
        if (rc == EXIT_OK) rc = print_job(o, &jobs->items[i], live, has_text);
    }
    return rc;
}

static void report(const struct options *o, qn_engine *engine, const struct jobs *jobs) {
    struct tally_sum sum = {0};
    if (options_flag(o, OPT_QUIET)) return;
    for (size_t i = 0; i < jobs->n; i++) tally_sum(&sum, &jobs->items[i].tally);
    tally_report(o, engine, &sum);
}

int cmd_generate(const struct options *o) {
    qn_engine_params params;
    qn_engine *engine = NULL;
    struct jobs jobs = {0};
    int rc = cli_engine_params(o, &params);
    if (rc == EXIT_OK) rc = read_prompts(o, &jobs);
    if (rc == EXIT_OK) rc = cli_open_engine(o, &params, &engine);
    if (rc == EXIT_OK) rc = run_jobs(o, engine, &jobs);
    if (rc == EXIT_OK) report(o, engine, &jobs);
    if (rc == EXIT_OK) rc = cli_write_trace(o, engine);
    jobs_fini(&jobs);
    qn_engine_close(engine);
    return rc;
}
