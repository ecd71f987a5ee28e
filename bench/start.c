/* bench_start - what an engine on a GPU does on the host before anything is read or sent: compiling
 * the program of all batch sizes and proving it, stage by stage, on one core. No GPU is wanted: the
 * device is made up, as an H100 describes itself.
 *
 *   bench_start MODEL [workers [chunk [slots [runs]]]]
 *
 * MODEL is a Hugging Face directory (a config.json is enough), by default for 132 workers, chunks
 * of 2,048 and 8 requests, as an engine on a GPU has them; with a chunk of 1 the program has one
 * batch size. Milliseconds, the median of the runs (9) for each line. */
#include "engine/engine.h"

#include "base/checked.h"
#include "task/task_verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_RUNS = 101, KERNEL_GRAPH = N_TASK_STAGES, WRITE, VERIFY, TOTAL, N_LINES };

struct bench {
    struct compile_hook hook;
    double last;
    double seconds[N_LINES][MAX_RUNS];
    int run;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void lap(struct bench *b, int line) {
    const double t = now();
    b->seconds[line][b->run] += t - b->last;
    b->last = t;
}

static int after_kernel_graph(void *user, struct diag *d, const struct kgraph *k) {
    (void)d, (void)k;
    lap(user, KERNEL_GRAPH);
    return QN_OK;
}

static int after_stage(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage) {
    (void)d, (void)g;
    lap(user, (int)stage);
    return QN_OK;
}

static uint32_t told_workers;

static int told_device(struct diag *d, const struct backend_config *config,
                       struct backend_device *out) {
    (void)d, (void)config;
    *out = (struct backend_device){.compute = device_cuda(90, told_workers, 25),
                                   .memory_bytes = (uint64_t)80 << 30};
    return QN_OK;
}

static int run_once(struct diag *d, struct bench *b, const qn_engine_params *p) {
    const struct backend device = {.name = "told", .target = TARGET_CUDA, .device = told_device};
    struct model *model;
    struct compile_report *report = calloc(1, sizeof *report);
    struct prog_header *program = NULL;
    struct engine_plan plan;
    if (report == NULL) return fail_nomem(d, sizeof *report, "a report");
    int rc = engine_model(d, p, &model);
    if (rc != QN_OK) {
        free(report);
        return rc;
    }
    const double start = b->last = now();
    rc = engine_program(d, p, model, &device, &b->hook, report, &plan, &program);
    if (rc == QN_OK) {
        lap(b, WRITE);
        b->seconds[TOTAL][b->run] = b->last - start;
        b->seconds[VERIFY][b->run] = report->seconds_verify;
        b->seconds[WRITE][b->run] -= report->seconds_verify;
    }
    if (rc == QN_OK && b->run == 0)
        printf("%u graphs of 1 to %u rows, %u requests of up to %u positions, %u workers: %llu "
               "tasks, %llu events, program %.1f MB, compiler's arena %.1f MB\n",
               report->n_variants, plan.compile.max_batched_tokens, plan.compile.n_slots,
               plan.compile.max_model_len, plan.compile.device.n_workers,
               (unsigned long long)program->section[SECTION_TASK].count,
               (unsigned long long)program->section[SECTION_EVENT].count,
               (double)program->total_bytes / 1e6, (double)report->peak_bytes / 1e6);
    free(program);
    free(report);
    model_free(model);
    return rc;
}

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void print_line(const char *name, double *seconds, int n) {
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    printf("%-14s %8.1f ms   %.1f to %.1f\n", name, 1e3 * seconds[n / 2], 1e3 * seconds[0],
           1e3 * seconds[n - 1]);
}

static uint32_t argument(int argc, char **argv, int i, uint32_t otherwise) {
    return argc > i ? (uint32_t)strtoul(argv[i], NULL, 10) : otherwise;
}

int main(int argc, char **argv) {
    static struct bench b = {.hook = {.kernel = after_kernel_graph, .tasks = after_stage}};
    struct diag d = {0};
    qn_engine_params given, p;
    if (argc < 2) {
        fprintf(stderr, "bench_start MODEL [workers [chunk [slots [runs]]]]\n");
        return 2;
    }
    qn_engine_params_init(&given);
    given.model = argv[1];
    given.load_format = "dummy";
    told_workers = argument(argc, argv, 2, 132);
    given.max_num_batched_tokens = argument(argc, argv, 3, 2048);
    given.max_num_seqs = argument(argc, argv, 4, 8);
    const int n = (int)MIN(MAX(argument(argc, argv, 5, 9), 1u), (uint32_t)MAX_RUNS);
    b.hook.user = &b;
    int rc = engine_params(&d, &given, &p);
    for (b.run = 0; b.run < n && rc == QN_OK; b.run++) rc = run_once(&d, &b, &p);
    if (rc != QN_OK) {
        fprintf(stderr, "%s\n", d.message);
        return 1;
    }
    print_line("kernel graph", b.seconds[KERNEL_GRAPH], n);
    for (int i = 0; i < N_TASK_STAGES; i++)
        print_line(task_stage_name((enum task_stage)i), b.seconds[i], n);
    print_line("program", b.seconds[WRITE], n);
    print_line("verify", b.seconds[VERIFY], n);
    print_line("total", b.seconds[TOTAL], n);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%-14s %8.1f MB\n", "peak memory", (double)usage.ru_maxrss / 1e3);
    return 0;
}
