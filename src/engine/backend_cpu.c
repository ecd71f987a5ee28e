/* backend_cpu.c - the CPU backend as a row of the table: threads that serve
 * (runtime/cpu_backend.h), and how fast this machine reads. */
#include "engine/backend.h"

#include "base/clock.h"
#include "base/checked.h"
#include "base/container.h"
#include "engine/recipe.h"
#include "runtime/cpu_backend.h"
#include "runtime/trace_rings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct backend_instance {
    struct cpu_backend *cpu;
    const struct prog_header *program;
    const void **weights; /* [SECTION_WEIGHT] as cpu_config wants them */
    const void **tensors; /* [n_tensors] where each tensor of the recipe lies */
    uint64_t *bytes;      /* [n_tensors] */
    size_t n_tensors;
};

static int cpu_available(struct diag *d) {
    (void)d;
    return QN_OK;
}

/* Physical memory, or what the process's container may use, if that is less. */
static uint64_t memory_of_process(void) {
    const uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t limit = container_memory("");
    return limit != 0 ? MIN(bytes, limit) : bytes;
}

static int cpu_device(struct diag *d, const struct backend_config *config,
                      struct backend_device *out) {
    const struct cpu_isa *isa = cpu_isa_select(config->isa);
    if (!isa)
        return fail(d, QN_EUNSUPPORTED, "isa: '%s' is not known or not supported by this processor",
                    config->isa);
    uint32_t n = config->n_workers ? config->n_workers : cpu_backend_cpus();
    out->compute = device_cpu(MIN(n, (uint32_t)PROG_MAX_WORKERS));
    out->memory_bytes = memory_of_process();
    snprintf(out->name, sizeof out->name, "%u thread%s, %s", out->compute.n_workers,
             out->compute.n_workers == 1 ? "" : "s", isa->name);
    return QN_OK;
}

static struct cpu_config config_of(const struct prog_header *program,
                                   const struct backend_config *config) {
    return (struct cpu_config){.program = program,
                               .n_kv_blocks = config->n_kv_blocks,
                               .isa = config->isa,
                               .max_batched_tokens = config->max_batched,
                               .choices = config->choices,
                               .trace = config->trace,
                               .serve = true};
}

static int cpu_plan_bytes(struct diag *d, const struct prog_header *program,
                          const struct backend_config *config, struct backend_plan *out) {
    struct cpu_config c = config_of(program, config);
    struct cpu_plan plan;
    TRY(cpu_backend_plan(d, &c, &plan));
    if (config->trace_bytes > 0)
        plan.total += trace_rings_bytes(program->n_workers, config->trace_bytes);
    *out = (struct backend_plan){.kv_bytes = plan.kv,
                                 .workspace_bytes = plan.workspace,
                                 .other_bytes = plan.total - plan.kv - plan.workspace};
    return QN_OK;
}

static void cpu_close(struct backend_instance *i) {
    if (!i) return;
    cpu_backend_close(i->cpu);
    free(i->weights);
    free(i->tensors);
    free(i->bytes);
    free(i);
}

/* Lists the tensors of a block. *address is the first tensor's, or for a stack that of the list. */
static void list_block(struct backend_instance *i, const struct weights *weights,
                       const struct prog_weight *w, const void **address) {
    const struct prog_part *part = PROG(i->program, PART);
    const size_t first = i->n_tensors;
    for (uint32_t k = w->first_part; k < w->first_part + w->n_parts; k++)
        for (uint32_t c = 0; c < prog_part_tensors(&part[k]); c++, i->n_tensors++) {
            i->tensors[i->n_tensors] = weights_at(weights, i->n_tensors);
            i->bytes[i->n_tensors] =
                (uint64_t)part[k].rows * MAX(w->cols, 1u) * dtype_bytes(w->dtype);
        }
    *address =
        part[w->first_part].stack != 0 ? (const void *)&i->tensors[first] : i->tensors[first];
}

static int list_weights(struct diag *d, struct backend_instance *i, const struct weights *weights) {
    const uint64_t n_weights = i->program->section[SECTION_WEIGHT].count;
    const uint64_t n = recipe_tensors(i->program);
    i->weights = calloc(n_weights + 1, sizeof *i->weights);
    i->tensors = calloc(n + 1, sizeof *i->tensors);
    i->bytes = calloc(n + 1, sizeof *i->bytes);
    if (!i->weights || !i->tensors || !i->bytes)
        return fail_nomem(d, n * 16, "the list of weights");
    for (uint64_t k = 0; k < n_weights; k++)
        list_block(i, weights, &PROG(i->program, WEIGHT)[k], &i->weights[k]);
    return QN_OK;
}

static int cpu_open(struct diag *d, const struct prog_header *program,
                    const struct weights *weights, const struct backend_config *config,
                    struct backend_instance **out) {
    struct backend_instance *i = calloc(1, sizeof *i);
    *out = NULL;
    if (!i) return fail_nomem(d, sizeof *i, "the CPU backend");
    i->program = program;
    int rc = list_weights(d, i, weights);
    if (rc == QN_OK) {
        struct cpu_config c = config_of(program, config);
        c.weights = i->weights;
        rc = cpu_backend_open(d, &c, &i->cpu);
    }
    if (rc == QN_OK)
        *out = i;
    else
        cpu_close(i);
    return rc;
}

static int cpu_submit(struct diag *d, struct backend_instance *i, const struct rt_request *request,
                      const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot) {
    return cpu_backend_submit_with(d, i->cpu, request, extras, prompt, slot);
}

static int cpu_cancel(struct diag *d, struct backend_instance *i, uint32_t slot) {
    return cpu_backend_cancel(d, i->cpu, slot);
}

static int cpu_poll(struct diag *d, struct backend_instance *i, uint32_t slot,
                    struct mailbox_view *view) {
    return cpu_backend_poll(d, i->cpu, slot, view);
}

static int cpu_release(struct diag *d, struct backend_instance *i, uint32_t slot) {
    return cpu_backend_release(d, i->cpu, slot);
}

static int cpu_wait(struct diag *d, struct backend_instance *i, uint32_t *seen, double timeout_s) {
    return cpu_backend_wait(d, i->cpu, seen, timeout_s);
}

static struct mailbox *cpu_mailbox(struct backend_instance *i) {
    return cpu_backend_mailbox(i->cpu);
}

static void cpu_reads(struct backend_instance *i, struct rt_reads *reads) {
    cpu_backend_reads(i->cpu, reads);
}

/* ---- reading ------------------------------------------------------------------------------ */

enum {
    READ_BLOCK = 1 << 20, /* a thread looks at the clock after this many bytes */
    READ_TRIES = 4,       /* the best one counts, so that no disturbance enters the floor */
};

struct reader {
    const struct backend_instance *instance;
    pthread_t id;
    bool started;
    uint32_t index, n_readers;
    bool in_streams; /* reads a block as four quarters side by side, not in order */
    double seconds;
    uint64_t bytes;  /* bytes read */
    double elapsed;  /* seconds for these bytes */
    uint64_t folded; /* so that the compiler leaves no read out */
};

/* Folds `bytes` bytes at p (a tail is left out) with vectors of the type VECTOR, nothing but loads
 * and one cheap operation each: in the order of their addresses, or as four streams. Which of the
 * two is faster depends on the processor's prefetchers. */
#define READ_BODY(VECTOR)                                                                          \
    const uint64_t each = sizeof(VECTOR), part = bytes / 4 / each * each;                          \
    const uint64_t apart = in_streams ? part : each, step = in_streams ? each : 4 * each;          \
    VECTOR a = {0}, b = {0}, c = {0}, e = {0};                                                     \
    for (uint64_t n = 0; n < part; n += each, p += step) {                                         \
        a ^= *(const VECTOR *)p;                                                                   \
        b ^= *(const VECTOR *)(p + apart);                                                         \
        c ^= *(const VECTOR *)(p + 2 * apart);                                                     \
        e ^= *(const VECTOR *)(p + 3 * apart);                                                     \
    }                                                                                              \
    a ^= b ^ c ^ e;                                                                                \
    return a[0] ^ a[1]

typedef uint64_t vector16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t vector32 __attribute__((vector_size(32), aligned(1), may_alias));

static uint64_t read_plain(const char *p, uint64_t bytes, bool in_streams) {
    READ_BODY(vector16);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t read_avx2(const char *p, uint64_t bytes,
                                                          bool in_streams) {
    READ_BODY(vector32);
}
#endif

static uint64_t read_block(const char *p, uint64_t bytes, bool in_streams) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) return read_avx2(p, bytes, in_streams);
#endif
    return read_plain(p, bytes, in_streams);
}

/* Reads this reader's share of every weight, round and round, until the time is over. */
static void *read_main(void *arg) {
    struct reader *r = arg;
    const struct backend_instance *i = r->instance;
    double start = clock_s();
    for (bool over = false; !over;) {
        for (size_t w = 0; w < i->n_tensors && !over; w++) {
            uint64_t first, last;
            prog_slice(i->bytes[w], r->index, r->n_readers, &first, &last);
            while (first < last && !over) {
                uint64_t n = MIN(last - first, (uint64_t)READ_BLOCK);
                r->folded ^= read_block((const char *)i->tensors[w] + first, n, r->in_streams);
                r->bytes += n;
                first += n;
                over = (r->elapsed = clock_s() - start) >= r->seconds;
            }
        }
        over = over || r->bytes == 0;
    }
    return NULL;
}

static int read_once(struct diag *d, struct backend_instance *i, struct reader *readers, uint32_t n,
                     bool in_streams, double seconds, double *rate) {
    int rc = QN_OK;
    for (uint32_t k = 0; k < n; k++) {
        readers[k] = (struct reader){.instance = i,
                                     .index = k,
                                     .n_readers = n,
                                     .in_streams = in_streams,
                                     .seconds = seconds};
        int code = pthread_create(&readers[k].id, NULL, read_main, &readers[k]);
        if (code != 0) rc = fail(d, QN_ENOMEM, "reader thread %u: %s", k, strerror(code));
        readers[k].started = code == 0;
    }
    double total = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (!readers[k].started) continue;
        pthread_join(readers[k].id, NULL);
        if (readers[k].elapsed > 0) total += (double)readers[k].bytes / readers[k].elapsed;
    }
    *rate = MAX(*rate, total);
    return rc;
}

static int cpu_measure_read(struct diag *d, struct backend_instance *i, double seconds,
                            double *rate) {
    uint32_t n = i->program->n_workers;
    struct reader *readers = calloc(n, sizeof *readers);
    if (!readers) return fail_nomem(d, n * sizeof *readers, "readers");
    int rc = QN_OK;
    *rate = 0;
    for (int k = 0; k < READ_TRIES && rc == QN_OK; k++)
        rc = read_once(d, i, readers, n, k % 2 != 0, seconds / READ_TRIES, rate);
    free(readers);
    return rc;
}

const struct backend backend_cpu = {
    .name = "cpu",
    .target = TARGET_CPU,
    .traces = true,
    .lists_top = true,
    .available = cpu_available,
    .device = cpu_device,
    .plan = cpu_plan_bytes,
    .open = cpu_open,
    .submit = cpu_submit,
    .cancel = cpu_cancel,
    .poll = cpu_poll,
    .release = cpu_release,
    .mailbox = cpu_mailbox,
    .wait = cpu_wait,
    .reads = cpu_reads,
    .measure_read = cpu_measure_read,
    .close = cpu_close,
};
