/* cuda_trace - where the time of a decode step goes on the GPU, operator by operator.
 *
 *     cuda_trace MODEL_DIR [BATCH] [TOKENS] [COMPILE_OPTIONS [PROMPT [CONTEXT]]]
 *
 * Made-up weights; default 1 and 40. With a PROMPT of more than 1 token it is prefill that is
 * looked at: TOKENS requests of so many, one after the other, each in one iteration. Else it runs
 * BATCH requests that begin with CONTEXT tokens (1) with the kernel's trace on, takes the
 * iterations of the second half, and prints for each kind of operator after each other kind,
 * averaged over layers and iterations:
 *
 *   tasks    of one operator
 *   stage    from the last task done of the operator before to the last task done of this one
 *   first    from there to the first task of this one seen ready: the hand-over
 *   last     ... to the last one seen ready
 *   inputs   ... to the last one that has its activations (linear operators)
 *   body     one task from ready to done: mean and longest
 *   floor    the weights of the operator, of experts the mean number that was read, at the rate at
 *            which this device read weights before the requests
 *
 * A task is ready when its worker was free and saw its event; it may still wait for its weights
 * then. Last, for decode, how long those iterations took: median, 99th percentile, longest; and
 * what lies between two of them, from the last task done to the first one ready.
 */
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "engine/backend_cuda.h"
#include "engine/compile_option.h"
#include "inspect/trace.h"
#include "runtime/trace_rings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_BYTES ((uint64_t)256 << 20)
enum { MAX_TOKENS = 200, MAX_PROMPT = 8192, MAX_CONTEXT = 131072, MAX_BATCH = 256, CHUNK = 1024 };
#define READ_SECONDS 0.2

/* One operator of one iteration. */
struct stage {
    uint64_t first_ready, last_ready, last_begin, last_done, body_sum, body_max;
    uint32_t n_done;
};

/* Sums over the operators of a kind that follow another kind. */
struct total {
    double stage, first, last, inputs, body, body_max, floor;
    uint32_t n, tasks;
};

struct tool {
    struct model *model;
    struct prog_header *program;
    struct backend_instance *instance;
    struct rt_trace *rings;
    struct trace trace;
    uint32_t batch, tokens, prompt; /* prompt: 1 for decode */
    uint32_t context;               /* decode: tokens that each request begins with */
    const char *compile_options;
    double read_rate;        /* bytes a second */
    double share_of_experts; /* of a layer's experts, those whose weights were read */
    uint32_t n_iterations;   /* in stages */
    size_t first_iter;       /* of the trace's, from which on they are */
    struct stage *stages;    /* [n_iterations][ops of the program] */
};

static int open_engine(struct diag *d, struct tool *t, const char *dir) {
    struct model_options m = {.dummy = true};
    struct compile_options c;
    struct backend_device device;
    struct backend_config config = {0};
    TRY(backend_cuda.device(d, &config, &device));
    TRY(model_open(d, dir, &m, &t->model));
    compile_options_init(&c);
    compile_options_cuda(&c, &device.compute);
    c.n_slots = t->batch;
    c.max_model_len = MAX(512, MAX(t->prompt, t->context) + t->tokens + 8);
    c.max_batched_tokens = MAX(MAX(8, t->batch), MAX(t->prompt, MIN(t->context, CHUNK)));
    TRY(compile_option_apply(d, t->compile_options, &c));
    TRY(compile_model(d, t->model, &c, NULL, NULL, &t->program));
    config.n_kv_blocks = t->batch * CEIL_DIV(c.max_model_len, c.kv_block);
    config.max_batched = c.max_batched_tokens;
    TRY(trace_rings_new(d, c.device.n_workers, TRACE_BYTES, &t->rings));
    trace_rings_switch(t->rings, true);
    config.trace = t->rings;
    return backend_cuda.open(d, t->program, NULL, &config, &t->instance);
}

/* Once the requests are done. Only decode is counted; a prompt's floor has all experts. */
static void note_experts(struct tool *t) {
    const struct model_spec *spec = PROG(t->program, MODEL);
    struct rt_reads reads;
    backend_cuda.reads(t->instance, &reads);
    t->share_of_experts =
        reads.layers > 0 ? (double)reads.experts / (double)reads.layers / spec->experts.n : 1;
}

static int submit(struct diag *d, struct tool *t, uint32_t i) {
    static int32_t ids[MAX_CONTEXT];
    uint32_t slot = 0;
    struct rt_request q = {.n_prompt = MAX(t->prompt, t->context),
                           .max_tokens = t->prompt > 1 ? 1 : t->tokens,
                           .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = 1}};
    for (uint32_t n = 0; n < q.n_prompt; n++) ids[n] = (int32_t)(i + 1 + n % 16384);
    return backend_cuda.submit(d, t->instance, &q, NULL, ids, &slot);
}

static int finish(struct diag *d, struct tool *t, uint32_t slot) {
    struct mailbox_view view;
    uint32_t seen = 0;
    for (;;) {
        TRY(backend_cuda.poll(d, t->instance, slot, &view));
        if (view.finish != RT_RUNNING) return QN_OK;
        TRY(backend_cuda.wait(d, t->instance, &seen, 0.1));
    }
}

/* Slots are given out from 0. */
static int generate(struct diag *d, struct tool *t) {
    if (t->prompt > 1)
        for (uint32_t i = 0; i < t->tokens; i++) {
            TRY(submit(d, t, i));
            TRY(finish(d, t, 0));
            TRY(backend_cuda.release(d, t->instance, 0));
        }
    else {
        for (uint32_t i = 0; i < t->batch; i++) TRY(submit(d, t, i));
        for (uint32_t i = 0; i < t->batch; i++) TRY(finish(d, t, i));
    }
    TRY(backend_cuda.trace_wait(d, t->instance));
    return trace_read(d, t->rings, t->program, &t->trace);
}

/* Sums over one iteration's tasks, operator by operator. */
static void read_iteration(struct tool *t, const struct trace_iter *iter, struct stage *stages) {
    for (size_t i = iter->first_run; i < iter->first_run + iter->n_runs; i++) {
        const struct trace_run *r = &t->trace.runs.items[i];
        uint32_t op = PROG(t->program, TASK)[r->task].op;
        if (op == PROG_NONE) continue;
        struct stage *s = &stages[op];
        uint64_t body = r->end - r->ready;
        s->first_ready = s->n_done == 0 ? r->ready : MIN(s->first_ready, r->ready);
        s->last_ready = MAX(s->last_ready, r->ready);
        s->last_begin = MAX(s->last_begin, r->begin);
        s->last_done = MAX(s->last_done, r->end);
        s->body_sum += body;
        s->body_max = MAX(s->body_max, body);
        s->n_done++;
    }
}

/* The newest iterations that are whole. */
static int read_iterations(struct diag *d, struct tool *t) {
    uint64_t n_ops = t->program->section[SECTION_OP].count;
    uint32_t wanted = t->tokens - t->tokens / 2 - 2;
    t->stages = calloc(wanted * n_ops, sizeof *t->stages);
    if (t->stages == NULL) return fail_nomem(d, wanted * n_ops * sizeof *t->stages, "the sums");
    t->first_iter = t->trace.iters.n > wanted ? t->trace.iters.n - wanted : 0;
    for (size_t i = t->first_iter; i < t->trace.iters.n; i++)
        if (t->trace.iters.items[i].complete)
            read_iteration(t, &t->trace.iters.items[i], &t->stages[t->n_iterations++ * n_ops]);
    if (t->n_iterations > 1) return QN_OK;
    return fail(d, QN_EINTERNAL, "the trace has no two whole iterations");
}

static double op_weight_bytes(const struct tool *t, const struct prog_op *op) {
    const struct prog_header *p = t->program;
    double bytes = 0;
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (op->in[i] == PROG_NONE || op->kind == OP_EMBED) continue;
        const struct prog_tensor *tensor = &PROG(p, TENSOR)[op->in[i]];
        if (tensor->role == PROG_WEIGHT) bytes += (double)tensor->bytes;
    }
    return cuda_lists_experts(op->kind) ? bytes * t->share_of_experts : bytes;
}

static void add_up(struct tool *t, struct total totals[][N_OP_KINDS], double *iteration_us) {
    uint64_t n_ops = t->program->section[SECTION_OP].count, before = 0, start = 0;
    uint32_t kind_before = OP_NONE;
    for (uint32_t i = 0; i < t->n_iterations; i++)
        for (uint64_t o = 0; o < n_ops; o++) {
            const struct stage *s = &t->stages[i * n_ops + o];
            const struct prog_op *op = &PROG(t->program, OP)[o];
            if (s->n_done == 0) continue;
            struct total *sum = &totals[op->kind][kind_before];
            if (before > 0) {
                sum->stage += (double)s->last_done - (double)before;
                sum->first += (double)s->first_ready - (double)before;
                sum->last += (double)s->last_ready - (double)before;
                sum->inputs += (double)s->last_begin - (double)before;
                sum->body += (double)s->body_sum / s->n_done;
                sum->body_max += (double)s->body_max;
                sum->floor += op_weight_bytes(t, op) / t->read_rate * 1e9;
                sum->tasks += s->n_done;
                sum->n++;
            }
            before = s->last_done;
            kind_before = op->kind;
            if (start == 0) start = before;
        }
    *iteration_us = 1e-3 * (double)(before - start) / t->n_iterations;
}

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* From the end of an iteration to that of the next, by the device's clock: what is between two
 * tokens without the host. */
static int print_jitter(struct diag *d, const struct tool *t) {
    const struct trace_iter *iter = t->trace.iters.items;
    uint64_t *took = calloc(t->trace.iters.n, sizeof *took);
    uint32_t n = 0;
    if (took == NULL) return fail_nomem(d, t->trace.iters.n * sizeof *took, "the times");
    for (size_t i = t->first_iter + 1; i < t->trace.iters.n; i++)
        if (iter[i - 1].complete && iter[i].complete && iter[i].number == iter[i - 1].number + 1)
            took[n++] = iter[i].end - iter[i - 1].end;
    qsort(took, n, sizeof *took, compare_u64);
    if (n > 0) {
        const double median = 1e-3 * (double)took[n / 2], p99 = 1e-3 * (double)took[n * 99 / 100];
        printf("%u iterations: median %.1f us, p99 %.1f us (+%.2f %%), longest %.1f us\n", n,
               median, p99, 100 * (p99 / median - 1), 1e-3 * (double)took[n - 1]);
    }
    free(took);
    return QN_OK;
}

/* From the last task of an iteration done to the boundary's begin, from there until the next one is
 * published, and until the first task of that is ready: means. */
static void print_boundary(const struct tool *t) {
    const struct trace_iter *iter = t->trace.iters.items;
    double begin = 0, played = 0, entered = 0;
    uint32_t n = 0;
    for (size_t i = t->first_iter + 1; i < t->trace.iters.n; i++) {
        if (!iter[i - 1].complete || !iter[i].complete || iter[i].number != iter[i - 1].number + 1)
            continue;
        uint64_t last = 0, first = UINT64_MAX;
        for (size_t r = iter[i - 1].first_run; r < iter[i - 1].first_run + iter[i - 1].n_runs; r++)
            last = MAX(last, t->trace.runs.items[r].end);
        for (size_t r = iter[i].first_run; r < iter[i].first_run + iter[i].n_runs; r++)
            first = MIN(first, t->trace.runs.items[r].ready);
        begin += (double)iter[i - 1].end - (double)last;
        played += (double)iter[i].start - (double)iter[i - 1].end;
        entered += (double)first - (double)iter[i].start;
        n++;
    }
    if (n > 0)
        printf("boundary: begins %.2f us after the last task, takes %.2f us, and the first task is "
               "ready %.2f us after it\n",
               1e-3 * begin / n, 1e-3 * played / n, 1e-3 * entered / n);
}

static void print_total(const struct tool *t, const struct total *s, uint32_t kind,
                        uint32_t kind_before) {
    double n = s->n * 1e3;
    printf("%-17s %-17s %6.1f %6u %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.1f\n", op_name(kind),
           op_name(kind_before), (double)s->n / t->n_iterations, s->tasks / s->n, s->stage / n,
           s->first / n, s->last / n, s->inputs / n, s->body / n, s->body_max / n, s->floor / n,
           1e-3 * s->stage / t->n_iterations);
}

static void print(struct tool *t) {
    struct total totals[N_OP_KINDS][N_OP_KINDS] = {0};
    double iteration_us;
    add_up(t, totals, &iteration_us);
    printf("%.1f us per iteration; mean us of one operator:\n", iteration_us);
    printf("%-17s %-17s %6s %6s %8s %8s %8s %8s %8s %8s %8s %8s\n", "operator", "after", "per it",
           "tasks", "stage", "first", "last", "inputs", "body", "longest", "floor", "us/it");
    for (uint32_t k = 1; k < N_OP_KINDS; k++)
        for (uint32_t before = 0; before < N_OP_KINDS; before++)
            if (totals[k][before].n > 0) print_total(t, &totals[k][before], k, before);
}

static int run(struct diag *d, struct tool *t, const char *dir) {
    TRY(open_engine(d, t, dir));
    TRY(backend_cuda.measure_read(d, t->instance, READ_SECONDS, &t->read_rate));
    TRY(generate(d, t));
    note_experts(t);
    TRY(read_iterations(d, t));
    print(t);
    if (t->prompt > 1) return QN_OK; /* prompts come one by one from the host */
    print_boundary(t);
    return print_jitter(d, t);
}

int main(int argc, char **argv) {
    struct diag d = {0};
    struct tool t = {.batch = argc > 2 ? (uint32_t)atoi(argv[2]) : 1,
                     .tokens = argc > 3 ? (uint32_t)atoi(argv[3]) : 40,
                     .compile_options = argc > 4 ? argv[4] : NULL,
                     .prompt = argc > 5 ? (uint32_t)atoi(argv[5]) : 1,
                     .context = argc > 6 ? (uint32_t)atoi(argv[6]) : 1};
    if (argc < 2 || t.batch < 1 || t.batch > MAX_BATCH || t.tokens < 8 || t.tokens > MAX_TOKENS ||
        t.prompt < 1 || t.prompt > MAX_PROMPT || t.context < 1 || t.context > MAX_CONTEXT ||
        (t.prompt > 1 && (t.batch != 1 || t.context != 1))) {
        fprintf(stderr,
                "usage: cuda_trace MODEL_DIR [BATCH 1-%d] [TOKENS 8-%d] [COMPILE_OPTIONS [PROMPT "
                "1-%d [CONTEXT 1-%d]]]\n",
                MAX_BATCH, MAX_TOKENS, MAX_PROMPT, MAX_CONTEXT);
        return 2;
    }
    int rc = run(&d, &t, argv[1]);
    if (rc != QN_OK) fprintf(stderr, "cuda_trace: %s\n", d.message);
    backend_cuda.close(t.instance);
    trace_fini(&t.trace);
    free(t.rings);
    free(t.stages);
    free(t.program);
    model_free(t.model);
    return rc != QN_OK;
}
