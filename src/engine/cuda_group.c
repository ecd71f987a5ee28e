/* cuda_group.c - see cuda_group.h. */
#include "engine/cuda_group.h"

#include "base/checked.h"
#include "engine/cuda_image.h"

#include <stdlib.h>

enum { SPIN_LIMIT = 64 }; /* polls in a row before a waiting block backs off */
#define END_WAIT_NS ((uint64_t)1000000000)
#define STATUS_NS   ((uint64_t)20000000) /* between two looks of a waiter at the ranks' status */

static uint32_t n_ranks(const struct cuda_group *g) {
    return g->shared.n_ranks;
}

struct rt_options cuda_group_protocol(const struct backend_cuda_options *o,
                                      const struct backend_config *config) {
    return (struct rt_options){.n_kv_blocks = config->n_kv_blocks,
                               .max_batched = config->max_batched,
                               .spin_limit = SPIN_LIMIT,
                               .until_idle = true,
                               .separate = true,
                               .deadline_ns = o->deadline_ns,
                               .choices = config->choices};
}

int cuda_group_driver(struct diag *d, const struct backend_cuda_options *options,
                      struct cuda_api *own, const struct cuda_api **api) {
    *api = options->api;
    if (*api != NULL) return QN_OK;
    TRY(cuda_api_open(d, NULL, own));
    *api = own;
    return QN_OK;
}

int cuda_group_ordinal(void) {
    const char *ordinal = getenv("QN_CUDA_DEVICE");
    return ordinal != NULL ? atoi(ordinal) : 0;
}

/* ---- open and close ---- */

static void progress(const struct backend_config *config, const char *stage, uint64_t done,
                     uint64_t total) {
    if (config->progress != NULL) config->progress(config->progress_user, stage, done, total);
}

static int check_count(struct diag *d, const struct cuda_group *g, int first) {
    int n;
    TRY(cuda_device_count(d, g->shared.api, &n));
    if (first + (int)n_ranks(g) <= n) return QN_OK;
    return fail(d, QN_EDEVICE,
                "the program is for %u GPUs, from GPU %d on ($QN_CUDA_DEVICE); the driver shows %d",
                n_ranks(g), first, n);
}

/* All ranks run one image, so their GPUs are of one architecture. */
static int open_contexts(struct diag *d, struct cuda_group *g) {
    const int first = cuda_group_ordinal();
    for (uint32_t k = 0; k < n_ranks(g); k++) {
        struct cuda_rank *r = &g->ranks[k];
        if (k == 1) TRY(check_count(d, g, first));
        TRY(cuda_rank_open(d, &g->shared, k, first + (int)k, r));
        if (cuda_rank_cc(r) != cuda_rank_cc(&g->ranks[0]))
            return fail(d, QN_EDEVICE,
                        "GPU %d is an sm_%u, GPU %d an sm_%u: a program runs on GPUs of one kind",
                        first, cuda_rank_cc(&g->ranks[0]), first + (int)k, cuda_rank_cc(r));
    }
    return QN_OK;
}

static int make_image(struct diag *d, struct cuda_group *g, const struct backend_config *config,
                      struct kernel_image *image) {
    char arch[16];
    cuda_device_arch(&g->ranks[0].device, arch);
    struct kernel_image_options o = {.arch = arch,
                                     .lineinfo = g->options.lineinfo,
                                     .each_arrives = g->options.racecheck,
                                     .traces = g->plan.trace_bytes > 0};
    return cuda_image_make(d, g->shared.program, &o, g->options.cache_off, config, image);
}

static int load_kernels(struct diag *d, struct cuda_group *g, const struct backend_config *config) {
    struct kernel_image image = {0};
    const void *bytes = g->options.image;
    int rc = QN_OK;
    if (bytes == NULL) {
        rc = make_image(d, g, config, &image);
        bytes = image.bytes;
    }
    for (uint32_t k = 0; k < n_ranks(g) && rc == QN_OK; k++)
        rc = cuda_rank_load(d, &g->ranks[k], bytes);
    kernel_image_fini(&image);
    g->stats.registers = g->ranks[0].registers;
    g->stats.local_bytes = g->ranks[0].local_bytes;
    return rc;
}

/* before: bytes of weights of the ranks that are loaded; total: of all ranks. */
struct loading {
    const struct backend_config *config;
    uint64_t before, total;
};

static void note_weights(void *user, uint64_t done) {
    const struct loading *l = user;
    progress(l->config, "weights", l->before + done, l->total);
}

static int load_weights(struct diag *d, struct cuda_group *g, const struct weights *weights,
                        const struct backend_config *config) {
    struct loading l = {config, 0, g->plan.weight_bytes * n_ranks(g)};
    progress(config, "weights", 0, l.total);
    for (uint32_t k = 0; k < n_ranks(g); k++, l.before += g->plan.weight_bytes)
        TRY(cuda_rank_weights(d, &g->ranks[k], weights, note_weights, &l));
    return QN_OK;
}

static int start(struct diag *d, struct cuda_group *g) {
    const struct rt *views[PROG_MAX_RANKS];
    for (uint32_t k = 0; k < n_ranks(g); k++) views[k] = &g->ranks[k].host_rt;
    TRY(mailbox_open_ranks(d, &g->mailbox, views, n_ranks(g), &g->ranks[0].limits,
                           PROG(g->shared.program, MODEL)->vocab));
    for (uint32_t k = 0; k < n_ranks(g); k++) TRY(cuda_rank_start(d, &g->ranks[k], views[0]->mail));
    return QN_OK;
}

int cuda_group_open(struct diag *d, const struct prog_header *program,
                    const struct weights *weights, const struct backend_config *config,
                    struct cuda_group *g) {
    struct rt_options rt = cuda_group_protocol(&g->options, config);
    uint64_t trace_bytes =
        cuda_trace_bytes(config->trace != NULL ? config->trace->ring_bytes : 0, program->n_workers);
    TRY(cuda_plan_make(d, program, &rt, trace_bytes, &g->plan));
    g->shared = (struct cuda_shared){
        .options = &g->options, .program = program, .plan = &g->plan, .n_ranks = program->n_ranks};
    TRY(cuda_group_driver(d, &g->options, &g->own, &g->shared.api));
    TRY(open_contexts(d, g));
    TRY(load_kernels(d, g, config));
    progress(config, "memory", 0, 0);
    for (uint32_t k = 0; k < n_ranks(g); k++) TRY(cuda_rank_fill(d, &g->ranks[k], config->trace));
    TRY(load_weights(d, g, weights, config));
    return start(d, g);
}

/* A kernel that does not end keeps the driver and the memory that it may touch. */
void cuda_group_close(struct cuda_group *g) {
    bool ended = true;
    for (uint32_t k = n_ranks(g); k-- > 0;) ended &= cuda_rank_close(&g->ranks[k]);
    if (ended) cuda_api_close(&g->own);
    mailbox_close(&g->mailbox);
    cuda_plan_fini(&g->plan);
}

/* ---- serving ---- */

/* QN_OK, or why a rank broke. */
static int status(struct diag *d, const struct cuda_group *g) {
    struct diag why = {0};
    for (uint32_t k = 0; k < n_ranks(g); k++)
        if (cuda_run_status(&why, &g->ranks[k].run) != QN_OK) {
            if (n_ranks(g) == 1) return fail(d, why.code, "%s", why.message);
            return fail(d, why.code, "rank %u of %u (GPU %d): %s", k, n_ranks(g),
                        g->ranks[k].device.ordinal, why.message);
        }
    return QN_OK;
}

int cuda_group_submit(struct diag *d, struct cuda_group *g, const struct rt_request *request,
                      const struct rt_extras *extras, const int32_t *prompt, uint32_t *slot) {
    TRY(status(d, g));
    return mailbox_submit_with(d, &g->mailbox, request, extras, prompt, slot);
}

int cuda_group_cancel(struct diag *d, struct cuda_group *g, uint32_t slot) {
    TRY(status(d, g));
    return mailbox_cancel(d, &g->mailbox, slot);
}

/* What was published before a rank broke is still good. */
int cuda_group_poll(struct diag *d, struct cuda_group *g, uint32_t slot,
                    struct mailbox_view *view) {
    TRY(mailbox_poll(d, &g->mailbox, slot, view));
    return view->finish == RT_RUNNING ? status(d, g) : QN_OK;
}

int cuda_group_release(struct diag *d, struct cuda_group *g, uint32_t slot) {
    return mailbox_release(d, &g->mailbox, slot);
}

/* A kernel that broke makes no progress: a waiting thread looks at its status now and then. */
int cuda_group_wait(struct diag *d, struct cuda_group *g, uint32_t *seen, double timeout_s) {
    const uint64_t start_ns = rt_now_ns(),
                   timeout_ns = timeout_s > 0 ? (uint64_t)(timeout_s * 1e9) : 0;
    for (;;) {
        TRY(status(d, g));
        const uint64_t past = rt_now_ns() - start_ns;
        if (mailbox_progress(&g->mailbox) != *seen || past >= timeout_ns) break;
        expect_wait(&g->expect, &g->mailbox, *seen, MIN(timeout_ns - past, STATUS_NS));
    }
    *seen = mailbox_progress(&g->mailbox);
    return QN_OK;
}

static bool is_busy(const struct cuda_group *g) {
    for (uint32_t k = 0; k < n_ranks(g); k++)
        if (cuda_run_busy(&g->ranks[k].run)) return true;
    return false;
}

/* The kernels end soon after the last request; the watcher then takes what was recorded. */
int cuda_group_wait_idle(struct diag *d, struct cuda_group *g) {
    uint64_t start_ns = rt_now_ns();
    while (is_busy(g)) {
        if (rt_now_ns() - start_ns > END_WAIT_NS)
            return fail(d, QN_EBUSY, "requests are running on the GPU");
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return QN_OK;
}
