/* task_verify_race.c - that of two tasks that touch the same bytes one comes before the other. */
#include "task/task_verify_proof.h"
#include "base/checked.h"
#include "task/task_verify_clock.h"

#include <stdlib.h>
#include <string.h>

/* Tasks with the same wait and trigger are ordered alike with respect to all others. */
struct access_class {
    uint32_t wait, trigger;
    uint32_t first, n; /* in the list of accesses, sorted by class */
    bool writes;
    /* Where events ride on data, [n_workers] places in the workers' lists: the last one of this
     * class; the last one that all tasks of the class know to be done. Otherwise NULL. */
    uint32_t *last, *known;
};

static bool rects_overlap(const struct rect *a, const struct rect *b) {
    if (a->space != b->space) return false;
    if (a->n_slices > 0 && a->op == b->op && a->n_slices == b->n_slices && a->slice != b->slice)
        return false;
    const uint64_t a_end = a->at + (a->n_rows - 1) * a->stride + a->run;
    const uint64_t b_end = b->at + (b->n_rows - 1) * b->stride + b->run;
    if (a_end <= b->at || b_end <= a->at) return false;
    if (a->stride != b->stride) return true; /* different shapes over the same bytes */
    /* Same pitch: compare as rectangles relative to one grid. */
    const uint64_t base = MIN(a->at, b->at), pitch = a->stride;
    const uint64_t ar = (a->at - base) / pitch, ac = (a->at - base) % pitch;
    const uint64_t br = (b->at - base) / pitch, bc = (b->at - base) % pitch;
    if (ac + a->run > pitch || bc + b->run > pitch) return true; /* off the grid: be careful */
    return ar < br + b->n_rows && br < ar + a->n_rows && ac < bc + b->run && bc < ac + a->run;
}

/* `a` must end before `b` begins, and nothing makes it so. */
static int race(struct proof *f, const struct access *a, const struct access *b) {
    struct strbuf x = {0}, y = {0};
    program_task_name(f->p, a->task, &x);
    program_task_name(f->p, b->task, &y);
    int rc = fail(
        f->d, QN_EVERIFY,
        "race: %s (events %u -> %u) %s %s and %s (events %u -> %u) %s %s in the same "
        "bytes, from %llu of space %u; the first must end before the second begins, "
        "and no event makes it so",
        strbuf_text(&x), PROG(f->p, TASK)[a->task].wait, PROG(f->p, TASK)[a->task].trigger,
        a->rect.write ? "writes" : "reads", program_string(f->p, proof_tensor(f, a->object)->name),
        strbuf_text(&y), PROG(f->p, TASK)[b->task].wait, PROG(f->p, TASK)[b->task].trigger,
        b->rect.write ? "writes" : "reads", program_string(f->p, proof_tensor(f, b->object)->name),
        (unsigned long long)MAX(a->rect.at, b->rect.at), a->rect.space);
    strbuf_fini(&x);
    strbuf_fini(&y);
    return rc;
}

static int by_object_and_class(const void *a, const void *b, void *program) {
    const struct access *x = a, *y = b;
    const struct prog_task *tasks = PROG((const struct prog_header *)program, TASK);
    const uint64_t kx[5] = {x->object, x->rect.write, tasks[x->task].wait, tasks[x->task].trigger,
                            x->task};
    const uint64_t ky[5] = {y->object, y->rect.write, tasks[y->task].wait, tasks[y->task].trigger,
                            y->task};
    for (int i = 0; i < 5; i++)
        if (kx[i] != ky[i]) return kx[i] < ky[i] ? -1 : 1;
    return (x->rect.at > y->rect.at) - (x->rect.at < y->rect.at);
}

/* Two classes that the events do not order as they should be: their tasks must not touch the same
 * bytes. */
static int compare_tasks(struct proof *f, const struct access_class *a,
                         const struct access_class *b) {
    for (uint32_t i = a->first; i < a->first + a->n; i++)
        for (uint32_t k = a == b ? i + 1 : b->first; k < b->first + b->n; k++) {
            const struct access *x = &f->accesses.items[i], *y = &f->accesses.items[k];
            f->report.n_task_pairs++;
            if (x->task != y->task && rects_overlap(&x->rect, &y->rect)) return race(f, x, y);
        }
    return QN_OK;
}

/* Classes of one tensor: whoever writes comes before whoever reads, visibly unless the reader polls
 * flags; and no two write the same bytes, in whatever order. */
static int compare_within(struct proof *f, const struct access_class *c, uint32_t n) {
    const uint32_t object = f->accesses.items[c[0].first].object;
    const bool flagged = proof_tensor(f, object)->carry == CARRY_FLAG;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i; k < n; k++) {
            f->report.n_class_pairs++;
            if (!c[i].writes && !c[k].writes) continue;
            const bool both = c[i].writes && c[k].writes;
            const struct access_class *writer = c[i].writes ? &c[i] : &c[k];
            const struct access_class *other = writer == &c[i] ? &c[k] : &c[i];
            if (!both && (flagged ? task_verify_order_leads(f, writer->trigger, other->wait)
                                  : task_verify_order_visible(f, writer->trigger, other->wait)))
                continue;
            TRY(compare_tasks(f, writer, other));
        }
    return QN_OK;
}

/* Whether every task of class a is done before any of class b begins. Where events ride on data,
 * their order is not enough: what was stored earlier could land later. */
static bool comes_before(const struct proof *f, const struct access_class *a,
                         const struct access_class *b) {
    if (a->last == NULL) return task_verify_order_leads(f, a->trigger, b->wait);
    for (uint32_t w = 0; w < f->p->n_workers; w++)
        if (a->last[w] > b->known[w]) return false;
    return true;
}

/* Classes of two tensors that share bytes: all that touches the earlier one comes before all that
 * touches the later one, unless both only read. */
static int compare_between(struct proof *f, const struct access_class *a, uint32_t na,
                           const struct access_class *b, uint32_t nb) {
    for (uint32_t i = 0; i < na; i++)
        for (uint32_t k = 0; k < nb; k++) {
            f->report.n_class_pairs++;
            if (!a[i].writes && !b[k].writes) continue;
            if (!comes_before(f, &a[i], &b[k])) TRY(compare_tasks(f, &a[i], &b[k]));
        }
    return QN_OK;
}

int task_verify_race_by_start(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    if (x->space != y->space) return x->space < y->space ? -1 : 1;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return (x->object > y->object) - (x->object < y->object);
}

/* Groups the sorted accesses by tensor and, within it, by (read or write, wait, trigger). */
static uint32_t group(struct proof *f, struct access_class *classes, struct extent *extents) {
    uint32_t n_extents = 0, n_classes = 0;
    for (uint32_t i = 0; i < f->accesses.n; i++) {
        const struct access *a = &f->accesses.items[i];
        const struct prog_task *t = &PROG(f->p, TASK)[a->task];
        const bool new_object = i == 0 || f->accesses.items[i - 1].object != a->object;
        if (new_object) {
            const struct rect r = task_verify_touch_whole(f, a->object);
            extents[n_extents++] = (struct extent){.space = r.space,
                                                   .object = a->object,
                                                   .born = PROG_NONE,
                                                   .start = r.at,
                                                   .end = r.at + r.n_rows * r.stride,
                                                   .first_class = n_classes};
        }
        if (a->rect.write) extents[n_extents - 1].born = MIN(extents[n_extents - 1].born, t->op);
        struct access_class *last = n_classes > 0 ? &classes[n_classes - 1] : NULL;
        if (new_object || last->wait != t->wait || last->trigger != t->trigger ||
            last->writes != a->rect.write) {
            classes[n_classes++] = (struct access_class){
                .wait = t->wait, .trigger = t->trigger, .first = i, .writes = a->rect.write};
            extents[n_extents - 1].n_classes++;
        }
        classes[n_classes - 1].n++;
    }
    return n_extents;
}

/* What the clocks say of each class, where they are needed. With JIT tasks no event may ride:
 * task_verify_carry says so. */
static int read_clocks(struct proof *f, struct access_class *classes, uint32_t n_classes) {
    const struct prog_variant *v = f->v;
    const uint32_t n = f->p->n_workers;
    struct verify_clock clock;
    bool rides = false;
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        rides = rides || PROG(f->p, EVENT)[e].carry != CARRY_PLAIN;
    if (!rides || v->n_jit_tasks > 0) return QN_OK;
    TRY(verify_clock_make(f->d, &f->arena, f->p, v, &clock));
    for (struct access_class *c = classes; c < classes + n_classes; c++) {
        TRY(ARENA_NEW(f->d, &f->arena, &c->last, n));
        TRY(ARENA_NEW(f->d, &f->arena, &c->known, n));
        memset(c->known, 0xff, n * sizeof *c->known);
        for (uint32_t k = c->first; k < c->first + c->n; k++) {
            const uint32_t index = f->accesses.items[k].task, task = index - v->first_task;
            const uint32_t worker = PROG(f->p, TASK)[index].worker;
            c->last[worker] = MAX(c->last[worker], clock.place[task]);
            for (uint32_t w = 0; w < n; w++)
                c->known[w] = MIN(c->known[w], clock.known[(size_t)task * n + w]);
        }
    }
    return QN_OK;
}

int task_verify_race(struct proof *f) {
    const struct prog_variant *v = f->v;
    f->accesses.n = 0;
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++)
        TRY(task_verify_touch(f, i));
    qsort_r(f->accesses.items, f->accesses.n, sizeof *f->accesses.items, by_object_and_class,
            (void *)f->p);
    struct access_class *classes;
    struct extent *extents;
    TRY(ARENA_NEW(f->d, &f->arena, &classes, f->accesses.n));
    TRY(ARENA_NEW(f->d, &f->arena, &extents, f->accesses.n));
    const uint32_t n = group(f, classes, extents);
    TRY(read_clocks(f, classes, n > 0 ? extents[n - 1].first_class + extents[n - 1].n_classes : 0));
    qsort(extents, n, sizeof *extents, task_verify_race_by_start);
    for (uint32_t i = 0; i < n; i++) {
        TRY(compare_within(f, classes + extents[i].first_class, extents[i].n_classes));
        for (uint32_t k = i + 1; k < n; k++) {
            if (extents[k].space != extents[i].space || extents[k].start >= extents[i].end) break;
            const struct extent *early =
                extents[i].born < extents[k].born ? &extents[i] : &extents[k];
            const struct extent *late = early == &extents[i] ? &extents[k] : &extents[i];
            TRY(compare_between(f, classes + early->first_class, early->n_classes,
                                classes + late->first_class, late->n_classes));
        }
    }
    return QN_OK;
}
