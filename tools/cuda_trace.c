/* cuda_trace - where the time of a decode step goes on the GPU, operator by operator.
 *
 *     cuda_trace MODEL_DIR [BATCH] [TOKENS]        made-up weights; default 1 and 40
 *
 * Runs BATCH requests of one prompt token with the kernel's trace on, takes the iterations of the
 * second half, and prints for each kind of operator, averaged over layers and iterations:
 *
 *   tasks    of one operator
 *   stage    from the last task done of the operator before to the last task done of this one
 *   first    from there to the first task of this one seen ready: the hand-over
 *   last     ... to the last one seen ready
 *   body     one task from ready to done: mean and longest
 *   floor    the weights of the operator at READ_TB_S
 *
 * A task is ready when its worker saw its event; it may still wait for its weights or data then.
 */
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "engine/backend_cuda.h"
#include "engine/compile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CAPACITY = 40000, MAX_TOKENS = 200, MAX_OPS = 8192, MAX_ITERATIONS = 512 };
#define READ_TB_S 3.08

/* One operator of one iteration. */
struct stage {
    uint64_t first_ready, last_ready, last_done, body_sum, body_max;
    uint32_t n_ready, n_done;
};

/* Sums over an operator kind. */
struct total {
    double stage, first, last, body, body_max, floor;
    uint32_t n, tasks;
};

struct tool {
    struct model *model;
    struct prog_header *program;
    struct backend_instance *instance;
    uint64_t *records;
    uint32_t batch, tokens;
    uint32_t first_iteration, n_iterations; /* in stages */
    struct stage *stages;                   /* [n_iterations][ops of the program] */
};

static int open_engine(struct diag *d, struct tool *t, const char *dir) {
    struct model_options m = {.dummy = true};
    struct compile_options c;
    struct backend_device device;
    struct backend_config config = {0};
    struct backend_cuda_options o;
    TRY(backend_cuda.device(d, &config, &device));
    TRY(model_open(d, dir, &m, &t->model));
    compile_options_init(&c);
    c.target = TARGET_CUDA;
    c.n_workers = device.n_workers;
    c.n_slots = t->batch;
    c.max_model_len = 512;
    c.max_batched_tokens = 8;
    c.task.launch = LAUNCH_ALL_AOT;
    TRY(compile_model(d, t->model, &c, NULL, NULL, &t->program));
    config.n_kv_blocks = t->batch * CEIL_DIV(c.max_model_len, c.kv_block);
    config.max_batched = c.max_batched_tokens;
    backend_cuda_defaults(&o);
    o.trace_capacity = CAPACITY;
    return backend_cuda_open(d, t->program, NULL, &config, &o, &t->instance);
}

static int generate(struct diag *d, struct tool *t) {
    for (uint32_t i = 0; i < t->batch; i++) {
        uint32_t slot = 0;
        struct rt_request q = {.n_prompt = 1,
                               .max_tokens = t->tokens,
                               .sampling = {.top_p = 1, .repetition_penalty = 1, .ignore_eos = 1}};
        TRY(backend_cuda.submit(d, t->instance, &q, &(int32_t){(int32_t)(i + 1)}, &slot));
    }
    for (uint32_t i = 0, seen = 0; i < t->batch;) {
        struct mailbox_view view;
        TRY(backend_cuda.poll(d, t->instance, i, &view)); /* slots are given out from 0 */
        if (view.finish != RT_RUNNING)
            i++;
        else
            TRY(backend_cuda.wait(d, t->instance, &seen, 0.1));
    }
    usleep(100000); /* the kernel ends, the watcher sees it */
    return backend_cuda_trace(d, t->instance, t->records);
}

static struct stage *stage_of(struct tool *t, uint32_t iteration, uint32_t task) {
    uint32_t op = PROG(t->program, TASK)[task].op;
    if (iteration < t->first_iteration || iteration >= t->first_iteration + t->n_iterations ||
        op == PROG_NONE)
        return NULL;
    uint64_t n_ops = t->program->section[SECTION_OP].count;
    return &t->stages[(iteration - t->first_iteration) * n_ops + op];
}

/* One worker's records. A task's READY precedes its DONE; several tasks may be under way. */
static void read_worker(struct tool *t, const uint64_t *records, uint64_t *ready_at) {
    uint32_t iteration = 0, n_tasks = (uint32_t)t->program->section[SECTION_TASK].count;
    for (uint64_t i = 0; i < MIN(records[0], (uint64_t)CAPACITY); i++) {
        uint64_t time = records[2 + 2 * i], what = records[3 + 2 * i];
        uint32_t kind = (uint32_t)(what >> 32), task = (uint32_t)what;
        if (kind == CUDA_TRACE_ITERATION) iteration = task >> RT_VARIANT_BITS;
        if ((kind != CUDA_TRACE_READY && kind != CUDA_TRACE_DONE) || task >= n_tasks) continue;
        struct stage *s = stage_of(t, iteration, task);
        if (s == NULL) continue;
        if (kind == CUDA_TRACE_READY) {
            ready_at[task] = time;
            s->first_ready = s->n_ready == 0 ? time : MIN(s->first_ready, time);
            s->last_ready = MAX(s->last_ready, time);
            s->n_ready++;
        } else {
            uint64_t body = time - ready_at[task];
            s->last_done = MAX(s->last_done, time);
            s->body_sum += body;
            s->body_max = MAX(s->body_max, body);
            s->n_done++;
        }
    }
}

static double op_weight_bytes(const struct prog_header *p, const struct prog_op *op) {
    double bytes = 0;
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (op->in[i] == PROG_NONE || op->kind == OP_EMBED) continue;
        const struct prog_tensor *tensor = &PROG(p, TENSOR)[op->in[i]];
        if (tensor->role == PROG_WEIGHT) bytes += (double)tensor->bytes;
    }
    return bytes;
}

static void add_up(struct tool *t, struct total *totals, double *iteration_us) {
    uint64_t n_ops = t->program->section[SECTION_OP].count, before = 0, start = 0;
    for (uint32_t i = 0; i < t->n_iterations; i++)
        for (uint64_t o = 0; o < n_ops; o++) {
            const struct stage *s = &t->stages[i * n_ops + o];
            const struct prog_op *op = &PROG(t->program, OP)[o];
            if (s->n_done == 0) continue;
            struct total *sum = &totals[op->kind];
            if (before > 0) {
                sum->stage += (double)s->last_done - (double)before;
                sum->first += (double)s->first_ready - (double)before;
                sum->last += (double)s->last_ready - (double)before;
                sum->body += (double)s->body_sum / s->n_done;
                sum->body_max += (double)s->body_max;
                sum->floor += op_weight_bytes(t->program, op) / READ_TB_S * 1e-3;
                sum->tasks += s->n_done;
                sum->n++;
            }
            before = s->last_done;
            if (start == 0) start = before;
        }
    *iteration_us = 1e-3 * (double)(before - start) / t->n_iterations;
}

static void print(struct tool *t) {
    struct total totals[N_OP_KINDS] = {0};
    double iteration_us;
    add_up(t, totals, &iteration_us);
    printf("%.1f us per iteration; mean us of one operator:\n", iteration_us);
    printf("%-18s %6s %6s %8s %8s %8s %8s %8s %8s %8s\n", "operator", "per it", "tasks", "stage",
           "first", "last", "body", "longest", "floor", "us/it");
    for (uint32_t k = 1; k < N_OP_KINDS; k++) {
        const struct total *s = &totals[k];
        double n = s->n * 1e3;
        if (s->n == 0) continue;
        printf("%-18s %6.1f %6u %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.1f\n", op_name(k),
               (double)s->n / t->n_iterations, s->tasks / s->n, s->stage / n, s->first / n,
               s->last / n, s->body / n, s->body_max / n, s->floor / n,
               1e-3 * s->stage / t->n_iterations);
    }
}

static int run(struct diag *d, struct tool *t, const char *dir) {
    TRY(open_engine(d, t, dir));
    uint64_t per_worker = 2 + 2 * (uint64_t)CAPACITY;
    uint64_t n_ops = t->program->section[SECTION_OP].count;
    uint64_t n_tasks = t->program->section[SECTION_TASK].count;
    t->first_iteration = t->tokens / 2;
    t->n_iterations = t->tokens - t->first_iteration - 2;
    t->records = calloc(t->program->n_workers * per_worker, 8);
    t->stages = calloc(t->n_iterations * n_ops, sizeof *t->stages);
    uint64_t *ready_at = calloc(n_tasks, sizeof *ready_at);
    if (t->records == NULL || t->stages == NULL || ready_at == NULL)
        return fail_nomem(d, 1 << 20, "the trace");
    TRY(generate(d, t));
    for (uint32_t w = 0; w < t->program->n_workers; w++)
        read_worker(t, t->records + w * per_worker, ready_at);
    free(ready_at);
    print(t);
    return QN_OK;
}

int main(int argc, char **argv) {
    struct diag d = {0};
    struct tool t = {.batch = argc > 2 ? (uint32_t)atoi(argv[2]) : 1,
                     .tokens = argc > 3 ? (uint32_t)atoi(argv[3]) : 40};
    if (argc < 2 || t.batch < 1 || t.batch > 8 || t.tokens < 8 || t.tokens > MAX_TOKENS) {
        fprintf(stderr, "usage: cuda_trace MODEL_DIR [BATCH 1-8] [TOKENS 8-%d]\n", MAX_TOKENS);
        return 2;
    }
    int rc = run(&d, &t, argv[1]);
    if (rc != QN_OK) fprintf(stderr, "cuda_trace: %s\n", d.message);
    backend_cuda.close(t.instance);
    free(t.records);
    free(t.stages);
    free(t.program);
    model_free(t.model);
    return rc != QN_OK;
}
