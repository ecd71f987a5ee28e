/* cmd_bench_latency.c - quern bench latency: time per token of a full batch against the bound that
 * memory sets, measured in the same run.
 *
 *   one run:  submit B prompts ── first token of the last ═══ window ═══ first finish ── all done
 *
 * Only steps inside the window count: there all B requests decode together. If the KV cache is too
 * small for all of them, there is no such step, and no time is reported. The steps of several runs
 * of a batch size are pooled.
 */
#include "cli/cli.h"
#include "cli/tally.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_BATCH = 1024, MAX_ITERS = 10000 };
static const double FLOOR_SECONDS = 0.3; /* long enough to even out a scheduler's time slices */

/* Results over all runs of a batch size. */
struct run {
    uint32_t batch;
    uint64_t n_steps; /* in the windows; 0: the requests were never all in flight */
    double ttft_ms;   /* the median of the runs */
    double bytes_per_step;
    double experts_read; /* by a layer in a step, on average; 0: the model has no experts */
    double median_ms, p99_ms, max_ms, tokens_per_s; /* if n_steps > 0 */
    double floor_rate; /* bytes per second: the better of the measurements before and after the
                        * runs */
};

struct times {
    double *items;
    size_t n, capacity;
};

struct bench {
    const struct options *o;
    qn_engine *engine;
    qn_engine_info info;
    uint32_t input_len, output_len, n_iters;
    double floor_rate; /* bytes per second, the best of all measurements */
};

/* One request of a batch. */
struct lane {
    qn_request *request;
    struct tally tally;
};

/* Token ids that depend on request and position only, so that every run does the same. */
static int32_t bench_token(uint32_t request, uint32_t position, uint32_t vocab) {
    uint64_t x = ((uint64_t)request << 32 | position) * 0x9e3779b97f4a7c15u + 0xd1b54a32d192ed03u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (int32_t)((x >> 32) % vocab);
}

static int submit(struct bench *b, uint32_t idx, int32_t *ids, qn_request **request) {
    qn_sampling_params sampling;
    qn_error error;
    *request = NULL;
    qn_sampling_params_init(&sampling, NULL);
    sampling.temperature = 0;
    sampling.ignore_eos = 1;
    sampling.max_tokens = b->output_len;
    for (uint32_t i = 0; i < b->input_len; i++) ids[i] = bench_token(idx, i, b->info.vocab);
    qn_prompt prompt = {.struct_size = sizeof prompt, .ids = ids, .n_ids = b->input_len};
    if (qn_request_submit(b->engine, &prompt, &sampling, request, &error) != QN_OK)
        return cli_failed(&error);
    return EXIT_OK;
}

static int collect(qn_request *request, struct tally *tally) {
    qn_output out = {.struct_size = sizeof out};
    qn_error error;
    do {
        if (qn_request_next(request, -1, &out, &error) != QN_OK) return cli_failed(&error);
        if (tally_add(tally, &out) != QN_OK) return cli_error("out of memory");
    } while (out.finish_reason == QN_RUNNING);
    return EXIT_OK;
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sort(struct times *t) {
    if (t->n > 0) qsort(t->items, t->n, sizeof *t->items, compare_double);
}

/* Adds the steps, in ms, of the request whose first token came last, between that token and the
 * first finish; and the longest wait for a first token. */
static int measure(const struct lane *lanes, uint32_t batch, struct times *steps,
                   struct times *ttft) {
    uint64_t window_end = UINT64_MAX, slowest = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < batch; i++) {
        if (lanes[i].tally.n == 0) return cli_error("a request gave no token");
        window_end = MIN(window_end, lanes[i].tally.end_ns);
        slowest = MAX(slowest, lanes[i].tally.items[0].time_ns - lanes[i].tally.start_ns);
        if (lanes[i].tally.items[0].time_ns > lanes[last].tally.items[0].time_ns) last = i;
    }
    const struct tally *t = &lanes[last].tally;
    int rc = ARRAY_PUSH(NULL, ttft, (double)slowest * 1e-6);
    for (size_t i = 1; rc == QN_OK && i < t->n && t->items[i].time_ns <= window_end; i++)
        rc =
            ARRAY_PUSH(NULL, steps, (double)(t->items[i].time_ns - t->items[i - 1].time_ns) * 1e-6);
    return rc == QN_OK ? EXIT_OK : cli_error("out of memory");
}

/* Bytes that a step reads beyond bytes_per_token: experts that one token alone does not use. */
static double more_experts(const struct bench *b, const struct run *r) {
    if (r->experts_read == 0) return 0;
    return (r->experts_read - b->info.experts_per_token) * b->info.n_expert_layers *
           (double)b->info.expert_bytes;
}

static void sum_up(const struct bench *b, struct times *steps, struct times *ttft, struct run *r) {
    double total = 0;
    sort(ttft);
    sort(steps);
    if (ttft->n > 0) r->ttft_ms = ttft->items[ttft->n / 2];
    r->n_steps = steps->n;
    if (steps->n > 0) {
        for (size_t i = 0; i < steps->n; i++) total += steps->items[i];
        r->median_ms = steps->items[steps->n / 2];
        r->p99_ms = steps->items[steps->n * 99 / 100];
        r->max_ms = steps->items[steps->n - 1];
        r->tokens_per_s = total > 0 ? r->batch * (double)steps->n / (total * 1e-3) : 0;
    }
    double context = b->input_len + b->output_len / 2.0;
    r->bytes_per_step = (double)b->info.bytes_per_token + more_experts(b, r) +
                        r->batch * context * (double)b->info.kv_bytes_per_token;
}

static double percent_of_floor(const struct run *r) {
    const double floor_ms = r->bytes_per_step / r->floor_rate * 1e3;
    return r->median_ms > 0 ? 100 * floor_ms / r->median_ms : 0;
}

static int run_lanes(struct bench *b, uint32_t batch, struct lane *lanes, int32_t *ids,
                     struct times *steps, struct times *ttft) {
    for (uint32_t i = 0; i < batch; i++) {
        tally_start(&lanes[i].tally);
        int rc = submit(b, i, ids, &lanes[i].request);
        if (rc != EXIT_OK) return rc;
    }
    for (uint32_t i = 0; i < batch; i++) {
        int rc = collect(lanes[i].request, &lanes[i].tally);
        if (rc != EXIT_OK) return rc;
    }
    return measure(lanes, batch, steps, ttft);
}

static int run_once(struct bench *b, uint32_t batch, struct times *steps, struct times *ttft) {
    struct lane *lanes = calloc(MAX(batch, 1u), sizeof *lanes);
    int32_t *ids = calloc(MAX(b->input_len, 1u), sizeof *ids);
    int rc =
        lanes && ids ? run_lanes(b, batch, lanes, ids, steps, ttft) : cli_error("out of memory");
    for (uint32_t i = 0; lanes && i < batch; i++) {
        qn_request_free(lanes[i].request);
        tally_fini(&lanes[i].tally);
    }
    free(lanes);
    free(ids);
    return rc;
}

static int run_batch(struct bench *b, struct run *r) {
    struct times steps = {0}, ttft = {0};
    qn_engine_info before = {.struct_size = sizeof before}, after = before;
    int rc = EXIT_OK;
    qn_engine_get_info(b->engine, &before);
    for (uint32_t i = 0; i < b->n_iters && rc == EXIT_OK; i++)
        rc = run_once(b, r->batch, &steps, &ttft);
    qn_engine_get_info(b->engine, &after);
    if (after.expert_layers_run > before.expert_layers_run)
        r->experts_read = (double)(after.experts_read - before.experts_read) /
                          (double)(after.expert_layers_run - before.expert_layers_run);
    if (rc == EXIT_OK) sum_up(b, &steps, &ttft, r);
    ARRAY_FINI(&steps);
    ARRAY_FINI(&ttft);
    return rc;
}

static int measure_floor(struct bench *b, double *rate) {
    qn_error error;
    if (qn_engine_measure_read(b->engine, FLOOR_SECONDS, rate, &error) != QN_OK)
        return cli_failed(&error);
    b->floor_rate = MAX(b->floor_rate, *rate);
    return EXIT_OK;
}

/* All runs, each with its own floor: on a CPU that other processes use, the floor changes over
 * time. */
static int run_all(struct bench *b, struct run *runs, size_t n) {
    double before = 0, after = 0;
    int rc = measure_floor(b, &before);
    for (size_t i = 0; i < n && rc == EXIT_OK; i++, before = after) {
        rc = run_batch(b, &runs[i]);
        if (rc == EXIT_OK) rc = measure_floor(b, &after);
        if (rc == EXIT_OK) runs[i].floor_rate = MAX(before, after);
    }
    return rc;
}

/* ---- output ------------------------------------------------------------------------------- */

static json_t *startup_json(const qn_engine_info *i) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "model", i->seconds_model,
                     "compile", i->seconds_compile, "verify", i->seconds_verify, "kernels",
                     i->seconds_kernels, "memory", i->seconds_memory, "weights", i->seconds_weights,
                     "tokenizer", i->seconds_tokenizer, "total", i->seconds_total);
}

static json_t *run_json(const struct run *r) {
    const bool any = r->n_steps > 0;
    json_t *ms = any ? json_pack("{s:f, s:f, s:f}", "median", r->median_ms, "p99", r->p99_ms, "max",
                                 r->max_ms)
                     : json_null();
    return json_pack(
        "{s:i, s:o, s:o, s:I, s:I, s:o, s:f, s:I}", "batch_size", (int)r->batch, "ms_per_token", ms,
        "tokens_per_s", any ? json_real(r->tokens_per_s) : json_null(), "bytes_per_token",
        (json_int_t)(r->bytes_per_step / r->batch), "bytes_per_step", (json_int_t)r->bytes_per_step,
        "percent_of_floor", any ? json_real(percent_of_floor(r)) : json_null(), "ttft_ms",
        r->ttft_ms, "steps", (json_int_t)r->n_steps);
}

static int print_json(const struct bench *b, const struct run *runs, size_t n) {
    const qn_engine_info *i = &b->info;
    json_t *results = json_array();
    for (size_t k = 0; k < n; k++) {
        json_t *run = run_json(&runs[k]);
        if (runs[k].experts_read > 0)
            json_object_set_new(run, "experts_read_per_layer", json_real(runs[k].experts_read));
        json_object_set_new(run, "read_floor_tb_s", json_real(runs[k].floor_rate * 1e-12));
        json_object_set_new(run, "startup_s", startup_json(i));
        json_array_append_new(results, run);
    }
    return cli_print_json(
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:f, s:o, s:o}", "model",
                  i->served_model_name, "backend", i->backend, "device", i->device, "dtype",
                  i->dtype, "kv_cache_dtype", i->kv_cache_dtype, "input_len", (int)b->input_len,
                  "output_len", (int)b->output_len, "num_iters", (int)b->n_iters, "weight_bytes",
                  (json_int_t)i->weight_bytes, "read_floor_tb_s", b->floor_rate * 1e-12,
                  "startup_s", startup_json(i), "results", results));
}

static void print_run(const struct run *r) {
    const double token_mb = r->bytes_per_step / r->batch * 1e-6;
    if (r->n_steps > 0)
        printf("%5u  %9.3f%9.3f%9.3f  %10.2f  %10.3f  %8.1f  %9.2f\n", r->batch, r->median_ms,
               r->p99_ms, r->max_ms, r->tokens_per_s, token_mb, percent_of_floor(r), r->ttft_ms);
    else
        printf("%5u  %-39s  %10.3f  %8s  %9.2f\n", r->batch, "never all in flight", token_mb, "",
               r->ttft_ms);
}

static int print_text(const struct bench *b, const struct run *runs, size_t n) {
    const qn_engine_info *i = &b->info;
    printf("start-up %.3f s: model %.3f, compile %.3f, verify %.3f, kernels %.3f, memory %.3f, "
           "weights %.3f, tokenizer %.3f\n",
           i->seconds_total, i->seconds_model, i->seconds_compile, i->seconds_verify,
           i->seconds_kernels, i->seconds_memory, i->seconds_weights, i->seconds_tokenizer);
    printf("read floor %.4g GB/s\n\n", b->floor_rate * 1e-9);
    printf("%5s  %27s  %10s  %10s  %8s  %9s\n", "", "ms per token", "", "MB per", "percent",
           "first");
    printf("%5s  %9s%9s%9s  %10s  %10s  %8s  %9s\n", "batch", "median", "p99", "max", "tokens/s",
           "token", "of floor", "token ms");
    for (size_t k = 0; k < n; k++) print_run(&runs[k]);
    return EXIT_OK;
}

/* ---- the command -------------------------------------------------------------------------- */

/* Reads lengths and batch sizes from the options, and makes the engine as large as they need. */
static int plan(struct bench *b, qn_engine_params *params, struct run *runs, size_t *n) {
    const struct option_value *batches = &b->o->values[OPT_BATCH_SIZE];
    int64_t in = options_integer(b->o, OPT_INPUT_LEN, 64);
    int64_t out = options_integer(b->o, OPT_OUTPUT_LEN, 128);
    int64_t iters = options_integer(b->o, OPT_NUM_ITERS, 1);
    uint32_t largest = 1;
    if (in < 1 || in > 1 << 20) return cli_usage("--input-len: want 1 to %d", 1 << 20);
    if (out < 2 || out > 1 << 20) return cli_usage("--output-len: want 2 to %d", 1 << 20);
    if (iters < 1 || iters > MAX_ITERS) return cli_usage("--num-iters: want 1 to %d", MAX_ITERS);
    b->input_len = (uint32_t)in;
    b->n_iters = (uint32_t)iters;
    b->output_len = (uint32_t)out;
    *n = batches->n ? batches->n : 1;
    if (*n > 64) return cli_usage("--batch-size: at most 64 sizes");
    for (size_t i = 0; i < *n; i++) {
        int64_t batch = batches->n ? batches->integers[i] : 1;
        if (batch < 1 || batch > MAX_BATCH)
            return cli_usage("--batch-size: want 1 to %d, have %lld", MAX_BATCH, (long long)batch);
        runs[i] = (struct run){.batch = (uint32_t)batch};
        largest = MAX(largest, runs[i].batch);
    }
    if (params->max_num_seqs == 0) params->max_num_seqs = largest;
    if (params->max_num_seqs < largest)
        return cli_usage("--max-num-seqs: %u is less than the largest batch size, %u",
                         params->max_num_seqs, largest);
    if (params->max_model_len == 0) params->max_model_len = b->input_len + b->output_len;
    params->no_prefix_caching = 1; /* every run has the same prompts */
    return EXIT_OK;
}

int cmd_bench_latency(const struct options *o) {
    struct bench b = {.o = o, .info = {.struct_size = sizeof b.info}};
    struct run runs[64] = {{0}};
    size_t n = 0;
    qn_engine_params params;
    int rc = cli_engine_params(o, &params);
    if (rc == EXIT_OK) rc = plan(&b, &params, runs, &n);
    if (rc == EXIT_OK) rc = cli_open_engine(o, &params, &b.engine);
    if (rc != EXIT_OK) return rc;
    qn_engine_get_info(b.engine, &b.info);
    cli_note(o, "%zu batch sizes, %u tokens in and %u out each, %u runs", n, b.input_len,
             b.output_len, b.n_iters);
    rc = run_all(&b, runs, n);
    if (rc == EXIT_OK) rc = cli_wants_json(o) ? print_json(&b, runs, n) : print_text(&b, runs, n);
    if (rc == EXIT_OK) rc = cli_write_trace(o, b.engine);
    qn_engine_close(b.engine);
    return rc;
}
