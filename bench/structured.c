/* bench_structured - what structured outputs cost: tokens per second of many streams with and
 * without a grammar, in turns, on the CPU backend (its workers and the mask thread share the
 * processor's cores).
 *
 *   bench_structured [MODEL [streams [tokens [rounds [threads]]]]]
 *
 * By default models/tiny, 64 streams of 100 tokens, 7 rounds. A line per kind of grammar, medians
 * of the rounds: tokens per second; their ratio to the round's streams without a grammar; CPU time
 * of the mask thread per token; wall time to submit all streams. Streams stop after `tokens`,
 * whether or not their text is complete. */
#include "quern.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <dirent.h>

enum { MAX_STREAMS = 1024, MAX_ROUNDS = 99 };

static const struct kind {
    const char *name;
    int kind;
    const char *text; /* %d: the stream, where each has a grammar of its own */
} kinds[] = {
    {"free", QN_STRUCTURED_NONE, NULL},
    {"counted text", QN_STRUCTURED_REGEX, "[a-z ]{900,1000}"},
    {"counted string", QN_STRUCTURED_JSON_SCHEMA,
     "{\"type\":\"string\",\"minLength\":900,\"maxLength\":1000}"},
    {"objects", QN_STRUCTURED_JSON_SCHEMA,
     "{\"type\":\"array\",\"minItems\":100,\"items\":{\"type\":\"object\",\"properties\":{"
     "\"name\":{\"type\":\"string\",\"maxLength\":20},\"age\":{\"type\":\"integer\"},"
     "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]}}},"
     "\"required\":[\"name\",\"age\",\"tags\"],\"additionalProperties\":false}}"},
    {"any JSON", QN_STRUCTURED_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":100}"},
    {"64 grammars", QN_STRUCTURED_JSON_SCHEMA,
     "{\"type\":\"array\",\"minItems\":1%03d,\"items\":{\"type\":\"string\",\"maxLength\":30}}"},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

struct measured {
    double rate[MAX_ROUNDS], ratio[MAX_ROUNDS];     /* tokens/s */
    double submit[MAX_ROUNDS], masking[MAX_ROUNDS]; /* seconds, seconds a token */
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The first line of /proc/self/task/<id>/<name>. */
static void task_line(const char *id, const char *name, char *line, size_t n) {
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/%s", id, name);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, (int)n, f)) line[0] = 0;
    if (f) fclose(f);
}

/* CPU time of the thread that makes masks, in seconds. */
static double masking_now(void) {
    char line[100];
    double seconds = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *t; tasks && (t = readdir(tasks));) {
        task_line(t->d_name, "comm", line, sizeof line);
        if (strcmp(line, "quern-masks\n") != 0) continue;
        task_line(t->d_name, "schedstat", line, sizeof line);
        seconds = 1e-9 * strtod(line, NULL);
    }
    if (tasks) closedir(tasks);
    return seconds;
}

static void check(int rc, const qn_error *error) {
    if (rc == QN_OK) return;
    fprintf(stderr, "bench_structured: %s\n", error->message);
    exit(1);
}

static qn_request *submit(qn_engine *e, const struct kind *k, uint32_t stream, uint32_t n_tokens) {
    char text[1024];
    qn_error error;
    qn_request *r;
    qn_sampling_params s;
    const qn_prompt p = {.struct_size = sizeof p, .text = "Once upon a time"};
    qn_sampling_params_init(&s, e);
    s.has_seed = 1;
    s.seed = stream;
    s.max_tokens = n_tokens;
    s.structured_kind = k->kind;
    s.ignore_eos = k->kind == QN_STRUCTURED_NONE;
    if (k->text) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, k->text, (int)stream);
#pragma GCC diagnostic pop
        s.structured_text = text;
    }
    check(qn_request_submit(e, &p, &s, &r, &error), &error);
    return r;
}

/* Reads a request to its end; its tokens. */
static size_t drain(qn_request *r) {
    qn_output o = {.struct_size = sizeof o};
    qn_error error;
    size_t n = 0;
    do {
        check(qn_request_next(r, -1, &o, &error), &error);
        n += o.id >= 0;
    } while (o.finish_reason == QN_RUNNING);
    qn_request_free(r);
    return n;
}

static void run(qn_engine *e, const struct kind *k, uint32_t n, uint32_t n_tokens,
                struct measured *to, int round) {
    static qn_request *requests[MAX_STREAMS];
    const double start = now(), masking = masking_now();
    for (uint32_t i = 0; i < n; i++) requests[i] = submit(e, k, i, n_tokens);
    to->submit[round] = now() - start;
    size_t tokens = 0;
    for (uint32_t i = 0; i < n; i++) tokens += drain(requests[i]);
    to->rate[round] = (double)tokens / (now() - start);
    to->masking[round] = (masking_now() - masking) / (double)tokens;
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise, uint32_t most) {
    const uint32_t n = argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
    return n < most ? n : most;
}

int main(int argc, char **argv) {
    static struct measured measured[N_KINDS];
    qn_engine_params p;
    qn_engine *e;
    qn_error error;
    qn_engine_params_init(&p);
    p.model = argc > 1 ? argv[1] : "models/tiny";
    p.backend = "cpu";
    p.max_num_seqs = argument(argc, argv, 2, 64, MAX_STREAMS);
    const uint32_t n_tokens = argument(argc, argv, 3, 100, UINT32_MAX);
    const int rounds = (int)argument(argc, argv, 4, 7, MAX_ROUNDS);
    p.threads = argument(argc, argv, 5, 0, 1024);
    check(qn_engine_open(&p, &e, &error), &error);
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < N_KINDS; k++) {
            run(e, &kinds[k], p.max_num_seqs, n_tokens, &measured[k], round);
            measured[k].ratio[round] = measured[k].rate[round] / measured[0].rate[round];
        }
    for (int k = 0; k < N_KINDS; k++)
        printf("%-14s %9.0f tokens/s  %6.3f  masks %7.2f us a token  submit %7.2f ms\n",
               kinds[k].name, median(measured[k].rate, rounds), median(measured[k].ratio, rounds),
               1e6 * median(measured[k].masking, rounds), 1e3 * median(measured[k].submit, rounds));
    qn_engine_close(e);
    return 0;
}
