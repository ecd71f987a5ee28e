#include "runtime/cpu_core.h"

#include "base/checked.h"
#include "runtime/rt_boundary.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Where the parts of the mapping begin. */
struct places {
    uint64_t mail, workspace, kv, rope, scratch, scratch_stride, total;
};

static const struct model_spec *spec_of(const struct prog_header *p) {
    return PROG(p, MODEL);
}

static uint64_t default_blocks(const struct prog_header *p) {
    return MIN((uint64_t)p->n_slots * CEIL_DIV(p->max_model_len, p->kv_block), INT32_MAX);
}

static struct rt_options options_of(const struct cpu_config *c, uint32_t n_blocks, bool until_idle,
                                    uint32_t n_cpus) {
    double deadline = c->deadline_s == 0 ? 10 : c->deadline_s;
    return (struct rt_options){
        .n_kv_blocks = n_blocks,
        .max_batched = c->max_batched_tokens,
        /* When there are fewer CPUs than workers, a waiting worker leaves its CPU at once. */
        .spin_limit = c->program->n_workers <= n_cpus ? 4000 : 0,
        .until_idle = until_idle,
        .choices = c->choices,
        .deadline_ns = deadline < 0 ? 0 : (uint64_t)(MIN(deadline, 1e9) * 1e9),
    };
}

static int plan_memory(struct diag *d, const struct cpu_config *c, bool until_idle, uint32_t n_cpus,
                       struct rt_memory *m, struct cpu_plan *plan, struct places *at) {
    const struct prog_header *p = c->program;
    *plan = (struct cpu_plan){0};
    plan->n_kv_blocks = c->n_kv_blocks ? c->n_kv_blocks : (uint32_t)default_blocks(p);
    struct rt_options options = options_of(c, plan->n_kv_blocks, until_idle, n_cpus);
    TRY(rt_memory_plan(d, p, &options, m));
    plan->workspace = p->workspace_bytes;
    TRY(program_kv_bytes(d, p, plan->n_kv_blocks, &plan->kv));
    plan->kv_block = plan->kv / plan->n_kv_blocks;
    if (plan->workspace > 1ull << 46)
        return fail(d, QN_ELIMIT, "workspace of %llu bytes: too large",
                    (unsigned long long)plan->workspace);
    plan->runtime = m->offset[RT_PART_RUNNING];
    plan->requests = m->state_bytes - plan->runtime + m->mail_bytes;
    if (c->run_task == NULL) {
        plan->rope = 2ull * spec_rope_rows(spec_of(p), p->max_model_len) *
                     (spec_rope_dim(spec_of(p)) / 2) * sizeof(float);
        at->scratch_stride = align_up(cpu_scratch_bytes(p), 4096);
        plan->scratch = at->scratch_stride * p->n_workers;
    }
    at->mail = align_up(m->state_bytes, 4096);
    at->workspace = at->mail + align_up(m->mail_bytes, 4096);
    at->kv = at->workspace + align_up(plan->workspace, 4096);
    at->rope = at->kv + align_up(plan->kv, 4096);
    at->scratch = at->rope + align_up(plan->rope, 4096);
    at->total = plan->total = at->scratch + plan->scratch;
    return QN_OK;
}

int cpu_core_plan(struct diag *d, const struct cpu_config *config, struct cpu_plan *plan) {
    struct rt_memory m;
    struct places at = {0};
    return plan_memory(d, config, false, 1, &m, plan, &at);
}

/* ---- open ---- */

static int take_map(struct diag *d, uint64_t bytes, char **map) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return fail_nomem(d, bytes, "the engine");
    madvise(p, bytes, MADV_HUGEPAGE);
    *map = p;
    return QN_OK;
}

static int bind_tensors(struct diag *d, struct cpu_core *core, const struct places *at) {
    const struct prog_header *p = core->config.program;
    uint64_t n = p->section[SECTION_TENSOR].count;
    core->tensors = calloc(n ? n : 1, sizeof *core->tensors);
    if (core->tensors == NULL) return fail_nomem(d, n * sizeof *core->tensors, "tensor table");
    for (uint64_t i = 0; i < n; i++) {
        const struct prog_tensor *t = &PROG(p, TENSOR)[i];
        if (t->role == PROG_WEIGHT)
            core->tensors[i] = core->config.weights ? (void *)core->config.weights[t->where] : NULL;
        else if (t->role == PROG_ACTIVATION)
            core->tensors[i] = core->map + at->workspace + t->where;
        else
            core->tensors[i] =
                core->map + at->kv + program_kv_at(p, t->where, core->plan.n_kv_blocks);
        if (core->tensors[i] == NULL && core->config.run_task == NULL)
            return fail(d, QN_EINVAL, "weight %s is missing", program_string(p, t->name));
    }
    return QN_OK;
}

static int bind_kernels(struct diag *d, struct cpu_core *core, const struct places *at) {
    const struct prog_header *p = core->config.program;
    if (core->config.run_task != NULL) return QN_OK;
    TRY(program_maps_make(d, p, &core->maps));
    core->isa = cpu_isa_select(core->config.isa);
    if (core->isa == NULL)
        return fail(d, QN_EUNSUPPORTED, "instruction set '%s' is unknown or not on this processor",
                    core->config.isa ? core->config.isa : "");
    float *cos = (float *)(core->map + at->rope);
    float *sin = cos + (uint64_t)spec_rope_rows(spec_of(p), p->max_model_len) *
                           (spec_rope_dim(spec_of(p)) / 2);
    cpu_rope_fill(spec_of(p), p->max_model_len, cos, sin);
    core->rope = (struct cpu_rope){.cos = cos, .sin = sin};
    core->scratch = core->map + at->scratch;
    core->scratch_stride = at->scratch_stride;
    return QN_OK;
}

static int open_parts(struct diag *d, struct cpu_core *core, const struct places *at) {
    const struct prog_header *p = core->config.program;
    struct rt_batch batch;
    char *state = core->map, *mail = core->map + at->mail;
    rt_memory_bind(&core->memory, p, p, state, mail, &core->rt, &batch);
    rt_memory_init(&core->memory, p, state, mail, &batch);
    core->rt.trace = core->config.trace;
    core->batch = core->rt.batch;
    TRY(bind_tensors(d, core, at));
    TRY(bind_kernels(d, core, at));
    return mailbox_open(d, &core->mailbox, &core->rt, core->batch, spec_of(p)->vocab);
}

int cpu_core_open(struct diag *d, const struct cpu_config *config, bool until_idle, uint32_t n_cpus,
                  struct cpu_core *core) {
    struct places at = {0};
    *core = (struct cpu_core){.config = *config};
    TRY(plan_memory(d, config, until_idle, n_cpus, &core->memory, &core->plan, &at));
    TRY(take_map(d, at.total, &core->map));
    int rc = open_parts(d, core, &at);
    if (rc != QN_OK) cpu_core_close(core);
    return rc;
}

void cpu_core_close(struct cpu_core *core) {
    mailbox_close(&core->mailbox);
    free(core->tensors);
    program_maps_fini(&core->maps);
    if (core->map != NULL) munmap(core->map, core->plan.total);
    *core = (struct cpu_core){0};
}

/* ---- run ---- */

void cpu_core_run(const struct cpu_core *core, uint32_t worker, uint32_t task) {
    if (core->config.run_task != NULL) {
        core->config.run_task(core->config.user, core->batch, worker, task);
        return;
    }
    const struct prog_header *p = core->config.program;
    const struct prog_task *t = &PROG(p, TASK)[task];
    const struct cpu_task call = {
        .program = p,
        .op = &PROG(p, OP)[t->op],
        .task = t,
        .tensors = core->tensors,
        .batch = core->batch,
        .isa = core->isa,
        .rope = &core->rope,
        .scratch = core->scratch + worker * core->scratch_stride,
    };
    cpu_task_run(&call);
}

/* ---- check ---- */

int cpu_core_check(struct diag *d, const struct cpu_core *core) {
    const struct rt *rt = &core->rt;
    for (uint32_t i = 0; i < rt->n_variants; i++) {
        const struct prog_variant *v = &rt->variants[i];
        for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++) {
            uint32_t have = rt_load_acquire(rt_counter(rt, e));
            uint32_t want = rt_event_goal(rt, e, rt->epochs[i]);
            if (have != want)
                return fail(d, QN_EVERIFY,
                            "event %u of variant %u: counter %u after %u runs, want %u", e, i, have,
                            rt->epochs[i], want);
        }
    }
    return QN_OK;
}
