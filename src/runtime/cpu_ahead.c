/* cpu_ahead.c - see cpu_ahead.h. */
#include "runtime/cpu_ahead.h"

#include "base/checked.h"
#include "runtime/rt_state.h"

enum { LINE_BYTES = 64, LINES_PER_POLL = 8 };

static const struct prog_tensor *matrix(const struct prog_header *p, uint32_t tensor) {
    if (tensor == PROG_NONE) return NULL;
    const struct prog_tensor *t = &PROG(p, TENSOR)[tensor];
    return t->role == PROG_WEIGHT && t->n_dims == 2 ? t : NULL;
}

/* Rows [row0, row1) of matrix `tensor`, as far as it has them. */
static void add_rows(const struct cpu_core *core, struct cpu_ahead *a, uint32_t tensor,
                     uint64_t row0, uint64_t row1) {
    const struct prog_tensor *t = matrix(core->config.program, tensor);
    const uint64_t pitch = (uint64_t)t->shape[1] * dtype_bytes(t->dtype);
    row1 = MIN(row1, (uint64_t)t->shape[0]);
    if (row0 >= row1 || a->n == CPU_AHEAD_SPANS) return;
    a->span[a->n].base = (const char *)core->tensors[tensor] + row0 * pitch;
    a->span[a->n++].bytes = (row1 - row0) * pitch;
}

/* The weights of a task. Matrices with a row per unit lie side by side (gate and up); otherwise the
 * units count over all of them, one after the other (q, k and v; the blocks of the LM head). */
static void begin(const struct cpu_core *core, struct cpu_ahead *a, uint32_t task) {
    const struct prog_header *p = core->config.program;
    const struct prog_task *t = &PROG(p, TASK)[task];
    *a = (struct cpu_ahead){.task = task + 1};
    if (t->op == PROG_NONE || t->kind == OP_EMBED) return;
    const struct prog_op *op = &PROG(p, OP)[t->op];
    uint64_t rows = 0, first = 0;
    for (int i = 0; i < OP_MAX_IN; i++) {
        const struct prog_tensor *m = matrix(p, op->in[i]);
        if (m != NULL && m->shape[0] != op->units) rows += m->shape[0];
    }
    const uint64_t per_unit = op->units > 0 ? CEIL_DIV(rows, (uint64_t)op->units) : 0;
    for (int i = 0; i < OP_MAX_IN; i++) {
        const struct prog_tensor *m = matrix(p, op->in[i]);
        if (m == NULL) continue;
        if (m->shape[0] == op->units) {
            add_rows(core, a, op->in[i], t->unit0, t->unit1);
            continue;
        }
        const uint64_t row0 = t->unit0 * per_unit, row1 = t->unit1 * per_unit;
        if (row1 > first)
            add_rows(core, a, op->in[i], row0 > first ? row0 - first : 0, row1 - first);
        first += m->shape[0];
    }
}

void cpu_ahead_step(const struct cpu_core *core, struct cpu_ahead *a, uint32_t task) {
    if (task == RT_NONE || core->config.run_task != NULL) return;
    if (a->task != task + 1) begin(core, a, task);
    for (int i = 0; i < LINES_PER_POLL && a->next < a->n && a->asked < CPU_AHEAD_BYTES; i++) {
        __builtin_prefetch(a->span[a->next].base + a->at, 0, 2);
        a->at += LINE_BYTES;
        a->asked += LINE_BYTES;
        if (a->at < a->span[a->next].bytes) continue;
        a->next++;
        a->at = 0;
    }
}
