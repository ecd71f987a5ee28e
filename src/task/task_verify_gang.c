/* task_verify_gang.c - tasks that run together, by the final tables alone. */
#include "task/task_verify_proof.h"

static const struct prog_task *task_at(const struct proof *f, uint32_t index) {
    return &PROG(f->p, TASK)[index];
}

/* Whether b's tile is to the right of a's, or below it where a tile has all columns; of slices:
 * whether b is the next one. */
static bool follows(const struct prog_task *a, const struct prog_task *b) {
    switch (op_split_of(a->kind)) {
    case SPLIT_SLICES: return b->unit0 == a->unit0 + 1 && b->unit1 == a->unit1;
    case SPLIT_ROWS: return b->row0 == a->row1;
    default: return b->row0 == a->row0 && b->row1 == a->row1 && b->unit0 == a->unit1;
    }
}

static int wrong(const struct proof *f, uint32_t task, uint32_t n, const char *what) {
    struct strbuf name = {0};
    program_task_name(f->p, task, &name);
    int rc = fail(f->d, QN_EVERIFY, "%s, of a gang of %u: %s", strbuf_text(&name), n, what);
    strbuf_fini(&name);
    return rc;
}

static int check_gang(struct proof *f, uint32_t first, uint32_t n) {
    const uint32_t end = f->v->first_task + f->v->n_tasks;
    const struct prog_task *lead = task_at(f, first);
    if (n > end - first) return wrong(f, first, n, "the last tasks are missing");
    if (lead->worker == PROG_JIT) return wrong(f, first, n, "it has no worker");
    if (lead->worker % n != 0) return wrong(f, first, n, "its first worker is no multiple of that");
    for (uint32_t m = 0; m < n; m++) {
        const struct prog_task *t = task_at(f, first + m);
        if (t->op != lead->op) return wrong(f, first + m, n, "not of the gang's operator");
        if (t->worker != lead->worker + m)
            return wrong(f, first + m, n, "not on the worker after the one before");
        if (t->wait != lead->wait || t->trigger != lead->trigger)
            return wrong(f, first + m, n, "not with the gang's events");
        if (m > 0 && !follows(t - 1, t)) return wrong(f, first + m, n, "not beside the one before");
        f->gang[first + m - f->v->first_task] = first;
    }
    return QN_OK;
}

int task_verify_gang(struct proof *f) {
    const uint32_t first = f->v->first_task, end = first + f->v->n_tasks;
    TRY(ARENA_NEW(f->d, &f->arena, &f->gang, f->v->n_tasks));
    for (uint32_t i = first; i < end;) {
        const struct prog_task *t = task_at(f, i);
        const uint32_t n = t->op == PROG_NONE ? 1 : PROG(f->p, OP)[t->op].gang;
        if (n > 1)
            TRY(check_gang(f, i, n));
        else
            f->gang[i - first] = i;
        i += n;
    }
    return QN_OK;
}
