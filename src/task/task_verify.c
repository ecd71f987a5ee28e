/* task_verify.c - the proof, claim by claim. Here are the claims about tables: shapes, counts,
 * lists and cover. task_verify_proof.h says where the others are. */
#include "task/task_verify.h"
#include "base/checked.h"
#include "graph/expert_list.h"
#include "task/task_verify_map.h"

#include <math.h>

/* ---- shapes: the operands are what the kernels take them for ------------------------------- */

/* The length of an operator's dot products: the columns of its first matrix. */
static uint32_t dot_length(const struct proof *f, const struct prog_op *op) {
    for (int n = 0; n < OP_MAX_IN; n++) {
        if (op->in[n] == PROG_NONE) continue;
        const struct prog_tensor *t = proof_tensor(f, op->in[n]);
        if (t->role == PROG_WEIGHT && t->n_dims >= 2) return t->shape[t->n_dims - 1];
    }
    return 0;
}

static int bad_op(const struct proof *f, uint32_t i, const char *what) {
    const struct prog_op *op = &PROG(f->p, OP)[i];
    return fail(f->d, QN_EVERIFY, "operator %u (layer %d %s): %s", i, op->layer, op_name(op->kind),
                what);
}

/* Every activation is written by one operator at most, before others read it. One that no operator
 * writes is stored before the iteration begins. */
static int check_producers(struct proof *f) {
    const uint32_t first = f->v->first_op, end = first + f->v->n_ops;
    uint32_t *writer; /* [n_tensors] 1 + the operator that writes it */
    TRY(ARENA_NEW(f->d, &f->arena, &writer, f->v->n_tensors));
    for (uint32_t i = first; i < end; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const uint32_t t = PROG(f->p, OP)[i].out[k];
            if (t == PROG_NONE || proof_tensor(f, t)->role == PROG_STATE) continue;
            if (writer[t - f->v->first_tensor] != 0)
                return bad_op(f, i, "writes a tensor that another operator of its variant writes");
            writer[t - f->v->first_tensor] = 1 + i;
        }
    for (uint32_t i = first; i < end; i++)
        for (int k = 0; k < OP_MAX_IN; k++) {
            const uint32_t t = PROG(f->p, OP)[i].in[k];
            if (t != PROG_NONE && writer[t - f->v->first_tensor] > i)
                return bad_op(f, i, "reads a tensor before it is made");
        }
    return QN_OK;
}

/* Whether the attributes that the model fixes have the model's values. */
static bool attributes_fit(const struct proof *f, const struct prog_op *op) {
    const struct op_attrs *a = &op->attrs;
    const struct model_spec *s = PROG(f->p, MODEL);
    const struct kv_row *kv = PROG(f->p, KV);
    const uint32_t layer = op->layer >= 0 ? (uint32_t)op->layer : s->n_layers;
    bool fits = a->kv > 0 && a->heads > 0 && a->heads % a->kv == 0 && a->placed <= EXPERT_STATIC;
#define FITS_FREE(name, of_model)
#define FITS_FIXED(name, of_model)               fits = fits && a->name == (of_model);
#define ATTR(kind, name, fixed, of_model, holds) FITS_##fixed(name, of_model)
#include "graph/attr.def"
    return fits;
}

/* Bands of one kind of operator are disjoint, in order, inside the variant's logit rows: SAMPLE
 * changes requests, which no tensor shows. */
static int check_bands(const struct proof *f) {
    uint64_t end[N_OP_KINDS] = {0};
    for (uint32_t i = f->v->first_op; i < f->v->first_op + f->v->n_ops; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[i];
        if (op->kind != OP_LM_HEAD && op->kind != OP_SAMPLE) continue;
        if (op->attrs.band_first < end[op->kind])
            return bad_op(f, i, "its logit rows are those of the band before, too");
        end[op->kind] = (uint64_t)op->attrs.band_first + op->attrs.band;
        if (end[op->kind] > f->v->n_logit_rows)
            return bad_op(f, i, "its band ends behind the last logit row");
    }
    return QN_OK;
}

/* Every operator fits its row of op.def, with its numbers and attributes. */
static int check_shapes(struct proof *f) {
    TRY(check_producers(f));
    TRY(check_bands(f));
    TRY(ARENA_NEW(f->d, &f->arena, &f->maps, f->v->n_ops));
    for (uint32_t i = 0; i < f->v->n_ops; i++) {
        const uint32_t index = f->v->first_op + i;
        const struct prog_op *op = &PROG(f->p, OP)[index];
        TRY(task_verify_map(f, index, &f->maps[i]));
        if (op->units != f->maps[i].units || op->n_rows != f->maps[i].rows)
            return bad_op(f, index, "units or rows do not fit its operands");
        if (op->k != dot_length(f, op))
            return bad_op(f, index, "k is not its dot products' length");
        if (!attributes_fit(f, op)) return bad_op(f, index, "its attributes do not fit the model");
    }
    return QN_OK;
}

/* The last row of a part's last tensor. */
static uint64_t last_row(const struct prog_part *p) {
    return prog_part_row(p->at, p->run, p->stride, p->rows - 1) +
           (uint64_t)p->step * (prog_part_tensors(p) - 1);
}

/* Whether a stack's tensors have a row in common: not if each ends before the next one begins. */
static bool stack_overlaps(const struct prog_part *p) {
    return prog_part_tensors(p) > 1 &&
           prog_part_row(p->at, p->run, p->stride, p->rows - 1) >= (uint64_t)p->at + p->step;
}

/* Whether two parts of a block have a row in common: not if one lies behind the other, or if they
 * take turns (stacks: of equally many tensors, equally far apart). */
static bool parts_overlap(const struct prog_part *a, const struct prog_part *b) {
    const uint64_t a_last = last_row(a), b_last = last_row(b);
    if (a_last < b->at || b_last < a->at) return false;
    if (a->run != b->run || a->stride != b->stride || a->stack != b->stack || a->step != b->step ||
        a->step % a->stride != 0)
        return true;
    const uint64_t x = a->at % a->stride, y = b->at % b->stride;
    return x + a->run > y && y + b->run > x;
}

/* The parts of a block share no rows, nor do the tensors of a stack. */
static int check_parts(struct proof *f, const struct prog_weight *w) {
    for (uint32_t i = w->first_part; i < w->first_part + w->n_parts; i++) {
        if (stack_overlaps(&PROG(f->p, PART)[i]))
            return fail(f->d, QN_EVERIFY, "weight %s: tensors of part %u share rows",
                        program_string(f->p, w->name), i);
        for (uint32_t k = w->first_part; k < i; k++)
            if (parts_overlap(&PROG(f->p, PART)[i], &PROG(f->p, PART)[k]))
                return fail(f->d, QN_EVERIFY, "weight %s: parts %u and %u share rows",
                            program_string(f->p, w->name), k, i);
    }
    return QN_OK;
}

/* Each weight's block has the tensor's format, dimensions and columns. */
static int check_weights(struct proof *f) {
    for (uint32_t i = 0; i < f->v->n_tensors; i++) {
        const struct prog_tensor *t = proof_tensor(f, f->v->first_tensor + i);
        if (t->role != PROG_WEIGHT) continue;
        const struct prog_weight *w = &PROG(f->p, WEIGHT)[t->where];
        if (w->n_dims != MIN(t->n_dims, 2) || w->dtype != t->dtype ||
            (w->n_dims == 2 && w->cols != t->shape[t->n_dims - 1]))
            return fail(f->d, QN_EVERIFY, "weight %s does not fit its tensor",
                        program_string(f->p, w->name));
        TRY(check_parts(f, w));
    }
    return QN_OK;
}

/* ---- counts ------------------------------------------------------------------------------- */

static int check_counts(struct proof *f) {
    const struct prog_variant *v = f->v;
    uint32_t *triggers;
    TRY(ARENA_NEW(f->d, &f->arena, &triggers, v->n_events));
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(f->p, TASK)[i];
        const struct prog_event *e = &PROG(f->p, EVENT)[t->wait];
        triggers[t->trigger - v->first_event]++;
        if (i < e->first_task || i - e->first_task >= e->n_tasks)
            return fail(f->d, QN_EVERIFY,
                        "task %u waits for event %u, whose dependents are tasks %u to %u", i,
                        t->wait, e->first_task, e->first_task + e->n_tasks);
    }
    uint64_t dependents = 0, jit = 0, jit_events = 0;
    for (uint32_t i = v->first_event; i < v->first_event + v->n_events; i++) {
        const struct prog_event *e = &PROG(f->p, EVENT)[i];
        const uint32_t have = triggers[i - v->first_event] + (i == v->start_event);
        if (e->n_triggers != have)
            return fail(f->d, QN_EVERIFY, "event %u counts to %u, but %u tasks trigger it", i,
                        e->n_triggers, have);
        if (i == v->start_event && have != 1)
            return fail(f->d, QN_EVERIFY, "the start event %u is triggered by a task", i);
        if (have == 0) return fail(f->d, QN_EVERIFY, "event %u: nothing triggers it", i);
        uint32_t n_jit = 0;
        for (uint32_t k = 0; k < e->n_tasks; k++) {
            const uint32_t task = e->first_task + k;
            if (task < v->first_task || task - v->first_task >= v->n_tasks ||
                PROG(f->p, TASK)[task].wait != i)
                return fail(f->d, QN_EVERIFY, "event %u starts task %u, which waits for another", i,
                            task);
            n_jit += PROG(f->p, TASK)[task].worker == PROG_JIT;
        }
        if (n_jit != e->n_jit)
            return fail(f->d, QN_EVERIFY, "event %u says %u of its tasks are JIT, %u are", i,
                        e->n_jit, n_jit);
        dependents += e->n_tasks;
        jit += n_jit;
        jit_events += n_jit > 0;
    }
    if (dependents != v->n_tasks)
        return fail(f->d, QN_EVERIFY, "%llu of %u tasks are started by events",
                    (unsigned long long)dependents, v->n_tasks);
    if (jit != v->n_jit_tasks || jit_events != v->n_jit_events)
        return fail(f->d, QN_EVERIFY,
                    "the variant says %u JIT tasks behind %u events, it has %llu behind %llu",
                    v->n_jit_tasks, v->n_jit_events, (unsigned long long)jit,
                    (unsigned long long)jit_events);
    return QN_OK;
}

static int check_lists(struct proof *f) {
    const struct prog_variant *v = f->v;
    const uint64_t variant = (uint64_t)(v - PROG(f->p, VARIANT));
    uint8_t *listed;
    TRY(ARENA_NEW(f->d, &f->arena, &listed, v->n_tasks));
    uint64_t n = 0;
    for (uint32_t w = 0; w < f->p->n_workers; w++) {
        const struct prog_list l = PROG(f->p, LIST)[variant * f->p->n_workers + w];
        for (uint32_t i = l.first; i < l.first + l.n; i++, n++) {
            const uint32_t task = PROG(f->p, AOT)[i];
            if (task < v->first_task || task - v->first_task >= v->n_tasks ||
                PROG(f->p, TASK)[task].worker != w || listed[task - v->first_task]++ != 0)
                return fail(f->d, QN_EVERIFY,
                            "the list of worker %u has task %u, which is not its own or is there "
                            "twice",
                            w, task);
        }
    }
    if (n + v->n_jit_tasks != v->n_tasks)
        return fail(f->d, QN_EVERIFY, "%llu tasks are in lists and %u are JIT, of %u",
                    (unsigned long long)n, v->n_jit_tasks, v->n_tasks);
    return QN_OK;
}

/* ---- cover -------------------------------------------------------------------------------- */

/* Tiles cover the output if they are disjoint (task_verify_race) and their areas add up to it. */
static int check_cover(struct proof *f) {
    const struct prog_variant *v = f->v;
    uint64_t *area;
    uint32_t *slices;
    TRY(ARENA_NEW(f->d, &f->arena, &area, v->n_ops));
    TRY(ARENA_NEW(f->d, &f->arena, &slices, v->n_ops));
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(f->p, TASK)[i];
        if (t->kind == OP_NONE) continue;
        const uint32_t op = t->op - v->first_op;
        if (op_split_of(t->kind) != SPLIT_SLICES) {
            area[op] += (uint64_t)(t->row1 - t->row0) * (t->unit1 - t->unit0);
            continue;
        }
        if (slices[op] != 0 && slices[op] != t->unit1)
            return fail(f->d, QN_EVERIFY, "task %u is a slice of %u, others of its operator of %u",
                        i, t->unit1, slices[op]);
        if (t->unit0 >= t->unit1)
            return fail(f->d, QN_EVERIFY, "task %u: slice %u of %u", i, t->unit0, t->unit1);
        slices[op] = t->unit1;
        area[op]++;
    }
    for (uint32_t i = 0; i < v->n_ops; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[v->first_op + i];
        const uint64_t want = slices[i] != 0 ? slices[i] : (uint64_t)op->n_rows * op->units;
        if (area[i] != want)
            return fail(f->d, QN_EVERIFY,
                        "operator %u (%s, layer %d): its tasks make %llu of %llu parts of the "
                        "output",
                        v->first_op + i, op_name(op->kind), op->layer, (unsigned long long)area[i],
                        (unsigned long long)want);
    }
    return QN_OK;
}

static int verify_variant(struct proof *f) {
    TRY(check_shapes(f));
    TRY(check_weights(f));
    TRY(check_counts(f));
    TRY(check_lists(f));
    TRY(task_verify_gang(f));
    TRY(task_verify_order_deadlock(f));
    TRY(task_verify_order_close(f));
    TRY(task_verify_order_ending(f));
    TRY(task_verify_race(f));
    TRY(task_verify_transport(f));
    return check_cover(f);
}

int task_verify(struct diag *d, const struct prog_header *p, struct verify_report *report) {
    struct proof f = {.d = d, .p = p};
    int rc = task_verify_transport_space(&f);
    arena_fini(&f.arena);
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count && rc == QN_OK; i++) {
        f.v = &PROG(p, VARIANT)[i];
        rc = verify_variant(&f);
        f.report.n_tasks += f.v->n_tasks;
        f.report.n_events += f.v->n_events;
        arena_fini(&f.arena);
    }
    ARRAY_FINI(&f.accesses);
    if (report != NULL) *report = f.report;
    return rc;
}
