/* cpu_ahead.c - see cpu_ahead.h. */
#include "runtime/cpu_ahead.h"

#include "runtime/rt_state.h"

enum { LINE_BYTES = 64, LINES_PER_POLL = 8 };

/* Lists the weights of a task. */
static void begin(const struct cpu_core *core, struct cpu_ahead *a, uint32_t task) {
    const struct prog_header *p = core->config.program;
    struct prog_weight_rows rows[OP_MAX_IN];
    const struct prog_task *t = &PROG(p, TASK)[task];
    const int n = t->op == PROG_NONE
                      ? 0
                      : program_weight_rows(&PROG(p, OP)[t->op], core->maps.of[t->op].map, t->unit0,
                                            t->unit1, rows);
    *a = (struct cpu_ahead){.task = task + 1};
    for (int i = 0; i < n && a->n < CPU_AHEAD_SPANS; i++) {
        const struct prog_tensor *w = &PROG(p, TENSOR)[rows[i].tensor];
        const uint64_t pitch = (uint64_t)w->shape[1] * dtype_bytes(w->dtype);
        a->span[a->n].base = (const char *)core->tensors[rows[i].tensor] + rows[i].row0 * pitch;
        a->span[a->n++].bytes = (rows[i].row1 - rows[i].row0) * pitch;
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
