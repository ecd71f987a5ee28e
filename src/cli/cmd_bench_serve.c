/* cmd_bench_serve.c - quern bench serve: what a server's clients see under load. */
#include "cli/cli.h"

#include "base/array.h"
#include "base/checked.h"
#include "server/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_REQUESTS = 1000000, MAX_CONCURRENCY = 4096 };

/* Samples of one kind, in ms. */
struct samples {
    const char *name, *label;
    ARRAY(double) ms;
};

enum { TTFT, TPOT, ITL, E2EL, N_KINDS };

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const struct samples *s, unsigned percent) {
    return s->ms.n ? s->ms.items[MIN(s->ms.n * percent / 100, s->ms.n - 1)] : 0;
}

static double mean(const struct samples *s) {
    double sum = 0;
    for (size_t i = 0; i < s->ms.n; i++) sum += s->ms.items[i];
    return s->ms.n ? sum / (double)s->ms.n : 0;
}

static int gather(const struct load_params *p, const struct load_result *r, struct samples *kinds,
                  uint64_t *n_tokens) {
    int rc = QN_OK;
    for (uint32_t i = 0; i < p->n_requests && rc == QN_OK; i++) {
        const struct load_request *q = &r->requests[i];
        if (!q->ok) continue;
        *n_tokens += q->n_tokens;
        rc = ARRAY_PUSH(NULL, &kinds[TTFT].ms, (q->first_s - q->sent_s) * 1e3);
        if (rc == QN_OK) rc = ARRAY_PUSH(NULL, &kinds[E2EL].ms, (q->last_s - q->sent_s) * 1e3);
        if (rc == QN_OK && q->n_tokens > 1)
            rc = ARRAY_PUSH(NULL, &kinds[TPOT].ms,
                            (q->last_s - q->first_s) * 1e3 / (q->n_tokens - 1));
    }
    for (size_t i = 0; i < r->n_gaps && rc == QN_OK; i++)
        rc = ARRAY_PUSH(NULL, &kinds[ITL].ms, r->gaps_s[i] * 1e3);
    for (int k = 0; k < N_KINDS; k++)
        if (kinds[k].ms.n) qsort(kinds[k].ms.items, kinds[k].ms.n, sizeof(double), compare_double);
    return rc;
}

/* The names of vLLM's result files. */
static int print_json(const struct load_params *p, const struct load_result *r,
                      const struct samples *kinds, uint64_t n_tokens) {
    const uint32_t done = p->n_requests - r->n_failed;
    json_t *o = json_pack("{s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I}", "duration", r->seconds,
                          "completed", (json_int_t)done, "failed", (json_int_t)r->n_failed,
                          "total_input_tokens", (json_int_t)done * p->input_len,
                          "total_output_tokens", (json_int_t)n_tokens, "request_throughput",
                          done / r->seconds, "output_throughput", (double)n_tokens / r->seconds,
                          "request_rate", p->rate, "max_concurrency", (json_int_t)p->concurrency);
    for (int k = 0; o && k < N_KINDS; k++) {
        const struct samples *s = &kinds[k];
        const struct {
            const char *what;
            double value;
        } rows[] = {{"mean", mean(s)},
                    {"median", percentile(s, 50)},
                    {"p90", percentile(s, 90)},
                    {"p99", percentile(s, 99)}};
        for (size_t i = 0; i < COUNT_OF(rows); i++) {
            char key[64];
            snprintf(key, sizeof key, "%s_%s_ms", rows[i].what, s->name);
            json_object_set_new(o, key, json_real(rows[i].value));
        }
    }
    return cli_print_json(o);
}

static int print_text(const struct load_params *p, const struct load_result *r,
                      const struct samples *kinds, uint64_t n_tokens) {
    const uint32_t done = p->n_requests - r->n_failed;
    printf("%u of %u requests in %.3f s: %.1f requests/s, %.1f output tokens/s\n\n", done,
           p->n_requests, r->seconds, done / r->seconds, (double)n_tokens / r->seconds);
    printf("%-24s%10s%10s%10s%10s\n", "ms", "mean", "p50", "p90", "p99");
    for (int k = 0; k < N_KINDS; k++)
        printf("%-24s%10.3f%10.3f%10.3f%10.3f\n", kinds[k].label, mean(&kinds[k]),
               percentile(&kinds[k], 50), percentile(&kinds[k], 90), percentile(&kinds[k], 99));
    return EXIT_OK;
}

/* ---- options -------------------------------------------------------------------------------- */

/* "http://host:port/path": the path goes before /v1/completions. */
static int read_url(const struct options *o, struct load_params *p, char host[256],
                    char path[512]) {
    const char *url = options_text(o, OPT_BASE_URL, NULL), *endpoint = "/v1/completions";
    int n = 0;
    unsigned port = (unsigned)options_integer(o, OPT_PORT, 8000);
    snprintf(host, 256, "%.255s", options_text(o, OPT_HOST, "127.0.0.1"));
    snprintf(path, 512, "%s", endpoint);
    if (url && (o->values[OPT_HOST].given || o->values[OPT_PORT].given))
        return cli_usage("--base-url: has host and port; leave --host and --port out");
    if (url) {
        port = 80;
        if (sscanf(url, "http://%255[^:/]%n", host, &n) != 1)
            return cli_usage("--base-url: want http://HOST[:PORT][/PATH], have '%s'", url);
        const char *at = url + n;
        if (*at == ':' && sscanf(at, ":%u%n", &port, &n) == 1) at += n;
        if (*at && *at != '/')
            return cli_usage("--base-url: want a port and a path, have '%s'", at);
        size_t end = strlen(at);
        while (end > 0 && at[end - 1] == '/') end--;
        snprintf(path, 512, "%.*s%s", (int)MIN(end, (size_t)400), at, endpoint);
    }
    if (port < 1 || port > UINT16_MAX) return cli_usage("--port: want 1 to %d", UINT16_MAX);
    p->host = host;
    p->port = (uint16_t)port;
    p->path = path;
    return EXIT_OK;
}

static int read_counts(const struct options *o, struct load_params *p) {
    const struct {
        enum option option;
        int64_t low, high, fallback;
        uint32_t *out;
    } table[] = {
        {OPT_NUM_PROMPTS, 1, MAX_REQUESTS, 1000, &p->n_requests},
        {OPT_MAX_CONCURRENCY, 1, MAX_CONCURRENCY, 256, &p->concurrency},
        {OPT_INPUT_LEN, 1, 1 << 20, 64, &p->input_len},
        {OPT_OUTPUT_LEN, 1, 1 << 20, 128, &p->output_len},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const int64_t n = options_integer(o, table[i].option, table[i].fallback);
        if (n < table[i].low || n > table[i].high)
            return cli_usage("--%s: want %lld to %lld", option_table[table[i].option].name,
                             (long long)table[i].low, (long long)table[i].high);
        *table[i].out = (uint32_t)n;
    }
    p->rate = options_number(o, OPT_REQUEST_RATE, 0);
    if (p->rate < 0) return cli_usage("--request-rate: want requests per second, or 0");
    return EXIT_OK;
}

static void show_progress(void *user, uint32_t done, uint32_t total) {
    const bool *shown = user;
    if (*shown && (done == total || done % 16 == 0))
        fprintf(stderr, "\r%u of %u requests%s", done, total, done == total ? "\n" : "");
}

int cmd_bench_serve(const struct options *o) {
    struct samples kinds[N_KINDS] = {[TTFT] = {"ttft", "time to first token", {0}},
                                     [TPOT] = {"tpot", "time per output token", {0}},
                                     [ITL] = {"itl", "inter-token latency", {0}},
                                     [E2EL] = {"e2el", "end to end", {0}}};
    const struct option_value *keys = &o->values[OPT_API_KEY];
    bool shown = isatty(STDERR_FILENO) && !options_flag(o, OPT_QUIET);
    struct load_params p = {.model = options_text(o, OPT_SERVED_MODEL_NAME, NULL),
                            .api_key = keys->n ? keys->texts[0] : getenv("QUERN_API_KEY"),
                            .seed = (uint64_t)options_integer(o, OPT_SEED, 0),
                            .progress = show_progress,
                            .user = &shown};
    struct load_result r;
    struct diag d = {0};
    char host[256], path[512];
    uint64_t n_tokens = 0;
    int rc = read_url(o, &p, host, path);
    if (rc == EXIT_OK) rc = read_counts(o, &p);
    if (rc != EXIT_OK) return rc;
    cli_note(o, "%u requests of %u tokens in and %u out to http://%s:%u%s, at most %u at once",
             p.n_requests, p.input_len, p.output_len, p.host, p.port, p.path, p.concurrency);
    rc = load_run(&d, &p, &r) == QN_OK ? EXIT_OK : cli_error("%s", d.message);
    if (rc == EXIT_OK && gather(&p, &r, kinds, &n_tokens) != QN_OK) rc = cli_error("out of memory");
    if (rc == EXIT_OK)
        rc = cli_wants_json(o) ? print_json(&p, &r, kinds, n_tokens)
                               : print_text(&p, &r, kinds, n_tokens);
    if (rc == EXIT_OK && r.n_failed > 0)
        rc = cli_error("%u requests failed; the first: %s", r.n_failed, r.error);
    for (int k = 0; k < N_KINDS; k++) ARRAY_FINI(&kinds[k].ms);
    load_free(&r);
    return rc;
}
