#include "device/cpu_rig.h"
#include "base/checked.h"
#include "runtime/cpu_core.h"

#include <string.h>

uint64_t cpu_rig_kv_bytes(const struct prog_header *program, uint32_t n_kv_blocks) {
    return kv_block_bytes(PROG(program, KV), program->kv_block) * n_kv_blocks;
}

/* The rows that the boundary would lay out. */
static void set_rows(const struct cpu_core *core, const struct iteration *it) {
    struct rt_rows *rows = &core->batch->rows;
    iteration_enter(it, &core->rt, core->batch);
    rows->n_rows = it->n_rows;
    rows->n_logit_rows = it->n_logit_rows;
    memcpy(rows->token, it->token, it->n_rows * sizeof *it->token);
    memcpy(rows->slot, it->slot, it->n_rows * sizeof *it->slot);
    memcpy(rows->position, it->position, it->n_rows * sizeof *it->position);
    memcpy(rows->logit_row, it->logit_row, it->n_logit_rows * sizeof *it->logit_row);
}

/* Where the workspace and the caches begin. */
static char *base_of(const struct cpu_core *core, enum prog_tensor_role role) {
    const struct prog_header *p = core->config.program;
    for (uint64_t i = 0; i < p->section[SECTION_TENSOR].count; i++) {
        const struct prog_tensor *t = &PROG(p, TENSOR)[i];
        if (t->role == role)
            return (char *)core->tensors[i] - (role == PROG_ACTIVATION ? t->where : 0);
    }
    return NULL;
}

static void run_tasks(const struct cpu_core *core, const struct iteration *it, uint32_t only) {
    const struct prog_header *p = core->config.program;
    const struct prog_variant *v = &PROG(p, VARIANT)[it->variant];
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
        if (PROG(p, TASK)[t].kind != OP_NONE && (only == PROG_NONE || only == t))
            cpu_core_run(core, 0, t);
}

int cpu_rig_run(struct diag *d, const struct prog_header *program, void *const *weights,
                const struct iteration *it, uint32_t only, struct device_memory *memory) {
    const void *blocks[512] = {0}, *stacked[4096];
    uint32_t n = 0;
    for (uint64_t k = 0; k < program->section[SECTION_WEIGHT].count; k++) {
        const struct prog_weight *w = &PROG(program, WEIGHT)[k];
        const struct prog_part *part = &PROG(program, PART)[w->first_part]; /* its only part */
        const char *base = weights[w->first_part];
        blocks[k] = part->stack == 0 ? (const void *)base : &stacked[n];
        if (n + part->stack > COUNT_OF(stacked)) return fail(d, QN_ELIMIT, "too many stacks");
        for (uint32_t i = 0; i < part->stack; i++)
            stacked[n++] = base + (uint64_t)i * part->rows * w->cols * dtype_bytes(w->dtype);
    }
    const struct cpu_config config = {
        .program = program, .weights = blocks, .n_kv_blocks = it->n_kv_blocks};
    const uint64_t kv_bytes = cpu_rig_kv_bytes(program, it->n_kv_blocks);
    struct cpu_core core;
    TRY(cpu_core_open(d, &config, true, 1, &core));
    char *workspace = base_of(&core, PROG_ACTIVATION), *kv = base_of(&core, PROG_STATE);
    set_rows(&core, it);
    memcpy(workspace, memory->workspace, program->workspace_bytes);
    if (memory->kv != NULL) memcpy(kv, memory->kv, kv_bytes);
    run_tasks(&core, it, only);
    memcpy(memory->workspace, workspace, program->workspace_bytes);
    if (memory->kv != NULL) memcpy(memory->kv, kv, kv_bytes);
    memcpy(memory->state, core.map, core.memory.state_bytes);
    cpu_core_close(&core);
    return QN_OK;
}
