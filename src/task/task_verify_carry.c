/* task_verify_carry.c - events that ride on data: that whoever waits for one learns from flags
 * alone all that a counter would have told it. docs/carry.md has the rules. */
#include "task/task_verify_proof.h"
#include "base/checked.h"

#include <stdlib.h>

/* Whether rectangle a has all bytes of b, where both are of one tensor. */
static bool rect_has(const struct rect *a, const struct rect *b) {
    const uint64_t row_a = a->at / a->stride, row_b = b->at / b->stride;
    const uint64_t col_a = a->at % a->stride, col_b = b->at % b->stride;
    if (a->stride != b->stride || a->n_slices > 0) return false;
    if (a->run == a->stride) /* whole rows: bytes from start to end */
        return a->at <= b->at &&
               a->at + a->n_rows * a->stride >= b->at + (b->n_rows - 1) * b->stride + b->run;
    return row_a <= row_b && row_a + a->n_rows >= row_b + b->n_rows && col_a <= col_b &&
           col_a + a->run >= col_b + b->run;
}

/* Whether `reader` polls every flagged byte that `writer` stores. */
static bool polls(struct proof *f, uint32_t reader, uint32_t writer, const uint32_t *first_access,
                  const uint32_t *by_task) {
    for (uint32_t k = first_access[writer]; k < first_access[writer + 1]; k++) {
        const struct access *w = &f->accesses.items[by_task[k]];
        bool polled = !w->rect.write;
        for (uint32_t i = first_access[reader]; i < first_access[reader + 1] && !polled; i++) {
            const struct access *r = &f->accesses.items[by_task[i]];
            polled = !r->rect.write && r->object == w->object && rect_has(&r->rect, &w->rect);
        }
        if (!polled) return false;
    }
    return true;
}

static int no_ride(struct proof *f, uint32_t event, uint32_t task, const char *why) {
    struct strbuf name = {0};
    program_task_name(f->p, task, &name);
    int rc =
        fail(f->d, QN_EVERIFY, "event %u rides on data, but %s %s", event, strbuf_text(&name), why);
    strbuf_fini(&name);
    return rc;
}

/* Whether the kernels of everybody who touches a flagged tensor know flags. */
static int check_flag_slots(struct proof *f) {
    for (uint32_t i = f->v->first_op; i < f->v->first_op + f->v->n_ops; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[i];
        struct op_info info;
        op_describe(op->kind, &info);
        const struct prog_tensor *first = proof_tensor(f, op->in[0]);
        const bool packed = first->role == PROG_ACTIVATION && first->dtype != DTYPE_F32;
        for (int n = 0; n < info.n_in + info.n_out; n++) {
            const bool in = n < info.n_in;
            const uint32_t index = in ? op->in[n] : op->out[n - info.n_in];
            const struct op_slot *slot = in ? &info.in[n] : &info.out[n - info.n_in];
            if (index == PROG_NONE || (slot->flagged && !packed) ||
                proof_tensor(f, index)->carry == CARRY_PLAIN)
                continue;
            return fail(f->d, QN_EVERIFY, "tensor %s carries flags, which %s cannot %s as its %s",
                        program_string(f->p, proof_tensor(f, index)->name), info.name,
                        in ? "poll" : "store", slot->name);
        }
    }
    return QN_OK;
}

/* Whether each worker's last task leads to the end through counters: its stores and loads then come
 * before the next iteration, whatever rode on data in between. The control warp is done with an
 * empty task while another may run. */
static int check_list_ends(struct proof *f) {
    const struct prog_variant *v = f->v;
    const struct prog_list *lists =
        PROG(f->p, LIST) + (v - PROG(f->p, VARIANT)) * (uint64_t)f->p->n_workers;
    for (uint32_t w = 0; w < f->p->n_workers; w++) {
        const uint32_t *aot = PROG(f->p, AOT) + lists[w].first;
        uint32_t n = lists[w].n;
        while (n > 0 && PROG(f->p, TASK)[aot[n - 1]].kind == OP_NONE) n--;
        if (n == 0 ||
            task_verify_order_visible(f, PROG(f->p, TASK)[aot[n - 1]].trigger, v->end_event))
            continue;
        struct strbuf name = {0};
        program_task_name(f->p, aot[n - 1], &name);
        int rc = fail(f->d, QN_EVERIFY,
                      "worker %u ends with %s, from which no counters lead to the iteration's end: "
                      "the next iteration may not see what the worker stored",
                      w, strbuf_text(&name));
        strbuf_fini(&name);
        return rc;
    }
    return QN_OK;
}

/* Nobody counts such an event: its dependents learn from flags alone that its triggers are done,
 * and that these have read all their inputs. So each dependent must poll all that each trigger
 * writes; plain data that a trigger writes besides would be there for nobody. */
int task_verify_carry(struct proof *f) {
    const struct prog_variant *v = f->v;
    const uint32_t n = (uint32_t)f->accesses.n;
    uint32_t *first, *fill, *by_task;
    bool any = false;
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        any = any || PROG(f->p, EVENT)[e].carry != CARRY_PLAIN;
    TRY(check_flag_slots(f));
    if (!any) return QN_OK;
    TRY(check_list_ends(f));
    if (v->n_jit_tasks > 0)
        return fail(f->d, QN_EVERIFY,
                    "events ride on data although there are %u JIT tasks: a worker that polls "
                    "inside a task serves no queue",
                    v->n_jit_tasks);
    TRY(ARENA_NEW(f->d, &f->arena, &first, v->n_tasks + 1));
    TRY(ARENA_NEW(f->d, &f->arena, &fill, v->n_tasks));
    TRY(ARENA_NEW(f->d, &f->arena, &by_task, n));
    for (uint32_t i = 0; i < n; i++) first[f->accesses.items[i].task - v->first_task + 1]++;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        first[i + 1] += first[i];
        fill[i] = first[i];
    }
    for (uint32_t i = 0; i < n; i++) by_task[fill[f->accesses.items[i].task - v->first_task]++] = i;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const struct prog_task *writer = &PROG(f->p, TASK)[v->first_task + i];
        const struct prog_event *e = &PROG(f->p, EVENT)[writer->trigger];
        if (e->carry == CARRY_PLAIN) continue;
        if (writer->trigger == v->end_event)
            return no_ride(f, writer->trigger, v->first_task + i, "ends the iteration with it");
        for (uint32_t k = first[i]; k < first[i + 1]; k++)
            if (f->accesses.items[by_task[k]].rect.write &&
                proof_tensor(f, f->accesses.items[by_task[k]].object)->carry == CARRY_PLAIN)
                return no_ride(f, writer->trigger, v->first_task + i, "also writes plain data");
        for (uint32_t k = 0; k < e->n_tasks; k++)
            if (!polls(f, e->first_task + k - v->first_task, i, first, by_task))
                return no_ride(f, writer->trigger, e->first_task + k,
                               "does not poll all that it waits for");
    }
    if (PROG(f->p, EVENT)[v->start_event].carry != CARRY_PLAIN)
        return fail(f->d, QN_EVERIFY, "the start event cannot ride on data");
    return QN_OK;
}

/* A flagged tensor shares bytes with no tensor of any variant: a stale word would look like a flag.
 * Once per program. */
int task_verify_carry_space(struct proof *f) {
    const uint64_t n = f->p->section[SECTION_TENSOR].count;
    struct extent *extents;
    uint64_t n_extents = 0;
    TRY(ARENA_NEW(f->d, &f->arena, &extents, n));
    for (uint32_t i = 0; i < n; i++) {
        const struct prog_tensor *t = proof_tensor(f, i);
        if (t->role == PROG_ACTIVATION)
            extents[n_extents++] =
                (struct extent){.object = i, .start = t->where, .end = t->where + t->bytes};
    }
    qsort(extents, n_extents, sizeof *extents, task_verify_race_by_start);
    /* in order of their starts: compare each with the one that has reached furthest so far */
    uint64_t furthest = 0;
    uint64_t furthest_flagged = 0;
    for (uint64_t i = 0; i < n_extents; i++) {
        const bool flagged = proof_tensor(f, extents[i].object)->carry == CARRY_FLAG;
        if (extents[i].start < (flagged ? furthest : furthest_flagged))
            return fail(f->d, QN_EVERIFY,
                        "tensor %s (at byte %llu) shares bytes with one that carries flags",
                        program_string(f->p, proof_tensor(f, extents[i].object)->name),
                        (unsigned long long)extents[i].start);
        furthest = MAX(furthest, extents[i].end);
        if (flagged) furthest_flagged = MAX(furthest_flagged, extents[i].end);
    }
    return QN_OK;
}
