/* task_verify_race.c - proves that of two tasks that touch the same bytes, one comes before the
 * other. */
#include "task/task_verify_proof.h"
#include "base/checked.h"
#include "task/task_verify_clock.h"

#include <stdlib.h>
#include <string.h>

/* Tasks with the same wait and trigger are ordered alike with respect to all others. */
struct access_class {
    uint32_t wait, trigger;
    uint32_t first, n; /* in race.order */
    bool writes;
    /* [n_workers] places in the workers' lists, where events ride on data and the tensor shares its
     * bytes, or is plain and read behind data; otherwise NULL. last: the last one of this class;
     * known: the last one that all tasks of the class know to be done. */
    uint32_t *last, *known;
};

struct race {
    struct proof *f;
    uint32_t *order;    /* [accesses] indices of f->accesses, by tensor and class */
    uint32_t *class_of; /* [accesses] the class of each of f->accesses */
    struct access_class *classes;
    struct extent *extents; /* of the tensors that are touched, by their start */
    struct tile *tiles;     /* [accesses] scratch */
    uint32_t *place;        /* [n_tasks] in the list of its worker, + 1; 0: JIT */
    uint32_t n_classes, n_extents;
};

static const struct access *access_at(const struct race *r, uint32_t i) {
    return &r->f->accesses.items[r->order[i]];
}

/* Reports that `a` must end before `b` begins, and no event makes it so. */
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

/* ---- accesses by tensor and class ---------------------------------------------------------- */

static int collect(struct race *r) {
    struct proof *f = r->f;
    const struct prog_variant *v = f->v;
    f->accesses.n = 0;
    TRY(ARENA_NEW(f->d, &f->arena, &f->first_access, v->n_tasks + 1));
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        TRY(task_verify_touch(f, v->first_task + i));
        f->first_access[i + 1] = (uint32_t)f->accesses.n;
    }
    return QN_OK;
}

/* The order within a tensor. */
static int by_class(const void *a, const void *b, void *proof) {
    const struct proof *f = proof;
    const struct access *x = &f->accesses.items[*(const uint32_t *)a],
                        *y = &f->accesses.items[*(const uint32_t *)b];
    const struct prog_task *tx = &PROG(f->p, TASK)[x->task], *ty = &PROG(f->p, TASK)[y->task];
    if (tx->wait != ty->wait) return tx->wait < ty->wait ? -1 : 1;
    if (tx->trigger != ty->trigger) return tx->trigger < ty->trigger ? -1 : 1;
    if (x->rect.write != y->rect.write) return x->rect.write ? -1 : 1;
    return *(const uint32_t *)a < *(const uint32_t *)b ? -1 : 1;
}

/* Most programs have the tasks of every tensor in the right order already. */
static void sort_classes(const struct race *r, uint32_t first, uint32_t end) {
    for (uint32_t i = first + 1; i < end; i++)
        if (by_class(&r->order[i - 1], &r->order[i], r->f) > 0) {
            qsort_r(r->order + first, end - first, sizeof *r->order, by_class, r->f);
            return;
        }
}

static int sort(struct race *r) {
    struct proof *f = r->f;
    const uint32_t n = (uint32_t)f->accesses.n, n_tensors = f->v->n_tensors;
    uint32_t *first;
    TRY(ARENA_NEW(f->d, &f->arena, &r->order, n));
    TRY(ARENA_NEW(f->d, &f->arena, &first, n_tensors + 2));
    for (uint32_t i = 0; i < n; i++) first[f->accesses.items[i].object - f->v->first_tensor + 2]++;
    for (uint32_t t = 0; t < n_tensors; t++) first[t + 2] += first[t + 1];
    /* first[t + 1] is where tensor t begins, and becomes where it ends */
    for (uint32_t i = 0; i < n; i++)
        r->order[first[f->accesses.items[i].object - f->v->first_tensor + 1]++] = i;
    for (uint32_t t = 0; t < n_tensors; t++) sort_classes(r, first[t], first[t + 1]);
    return QN_OK;
}

static struct extent extent_of(const struct race *r, uint32_t object) {
    const struct rect whole = task_verify_touch_whole(r->f, object);
    return (struct extent){.space = whole.space,
                           .object = object,
                           .born = PROG_NONE,
                           .start = whole.at,
                           .end = whole.at + whole.n_rows * whole.stride,
                           .first_class = r->n_classes};
}

/* Cuts the sorted accesses into tensors and classes. */
static int group(struct race *r) {
    struct proof *f = r->f;
    const uint32_t n = (uint32_t)f->accesses.n;
    struct extent *e = NULL;
    struct access_class *c = NULL;
    TRY(ARENA_NEW(f->d, &f->arena, &r->class_of, n));
    TRY(ARENA_NEW(f->d, &f->arena, &r->classes, n));
    TRY(ARENA_NEW(f->d, &f->arena, &r->extents, f->v->n_tensors));
    for (uint32_t i = 0; i < n; i++) {
        const struct access *a = access_at(r, i);
        const struct prog_task *t = &PROG(f->p, TASK)[a->task];
        const bool new_object = e == NULL || e->object != a->object;
        if (new_object) {
            e = &r->extents[r->n_extents++];
            *e = extent_of(r, a->object);
        }
        if (a->rect.write) e->born = MIN(e->born, t->op);
        if (new_object || c->wait != t->wait || c->trigger != t->trigger ||
            c->writes != a->rect.write) {
            c = &r->classes[r->n_classes++];
            *c = (struct access_class){
                .wait = t->wait, .trigger = t->trigger, .first = i, .writes = a->rect.write};
            e->n_classes++;
        }
        r->class_of[r->order[i]] = r->n_classes - 1;
        c->n++;
    }
    qsort(r->extents, r->n_extents, sizeof *r->extents, task_verify_race_by_start);
    return QN_OK;
}

/* ---- one worker's own ----------------------------------------------------------------------- */

static int find_places(struct race *r) {
    const struct proof *f = r->f;
    const struct prog_list *lists =
        PROG(f->p, LIST) + (f->v - PROG(f->p, VARIANT)) * (uint64_t)f->p->n_workers;
    TRY(ARENA_NEW(f->d, &r->f->arena, &r->place, f->v->n_tasks));
    for (uint32_t w = 0; w < f->p->n_workers; w++)
        for (uint32_t i = 0; i < lists[w].n; i++)
            r->place[PROG(f->p, AOT)[lists[w].first + i] - f->v->first_task] = i + 1;
    return QN_OK;
}

static bool is_own(const struct race *r, const struct access *a) {
    return proof_tensor(r->f, a->object)->transport == TRANSPORT_OWN;
}

/* Whether a is done before b begins because one worker has both in its list, and both tensors are
 * TRANSPORT_OWN. */
static bool one_worker_has(const struct race *r, const struct access *a, const struct access *b) {
    const struct prog_task *tasks = PROG(r->f->p, TASK);
    const uint32_t x = r->place[a->task - r->f->v->first_task],
                   y = r->place[b->task - r->f->v->first_task];
    return is_own(r, a) && is_own(r, b) && x != 0 && x < y &&
           tasks[a->task].worker == tasks[b->task].worker;
}

/* The same for all accesses of two classes, compared one by one. Those of a must be disjoint: then
 * no other two meet. */
static bool one_by_one(const struct race *r, const struct access_class *a,
                       const struct access_class *b) {
    const struct rect whole = task_verify_touch_whole(r->f, access_at(r, a->first)->object);
    if (a->n != b->n || !is_own(r, access_at(r, a->first)) || !is_own(r, access_at(r, b->first)))
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct access *x = access_at(r, a->first + i), *y = access_at(r, b->first + i);
        if (x->rect.space != y->rect.space || x->rect.at != y->rect.at ||
            x->rect.run != y->rect.run || x->rect.stride != y->rect.stride ||
            x->rect.n_rows != y->rect.n_rows || x->rect.n_slices != 0 || y->rect.n_slices != 0 ||
            !one_worker_has(r, x, y) || !task_verify_rect_tile(&whole, &x->rect, &r->tiles[i]))
            return false;
    }
    return task_verify_rect_disjoint(r->tiles, a->n);
}

/* ---- within a tensor ----------------------------------------------------------------------- */

/* Two classes that the events do not order as they should be, a before b: their tasks must not
 * touch the same bytes, unless one worker has both tasks. */
static int compare_tasks(const struct race *r, const struct access_class *a,
                         const struct access_class *b) {
    if (one_by_one(r, a, b)) return QN_OK;
    for (uint32_t i = a->first; i < a->first + a->n; i++)
        for (uint32_t k = a == b ? i + 1 : b->first; k < b->first + b->n; k++) {
            const struct access *x = access_at(r, i), *y = access_at(r, k);
            r->f->report.n_task_pairs++;
            if (x->task != y->task && task_verify_rect_overlap(&x->rect, &y->rect) &&
                !one_worker_has(r, x, y))
                return race(r->f, x, y);
        }
    return QN_OK;
}

/* Whether all writes to a tensor are disjoint, as far as one pass over them shows. */
static bool writes_are_disjoint(const struct race *r, const struct extent *e) {
    const struct access_class *c = r->classes + e->first_class;
    const struct rect whole = task_verify_touch_whole(r->f, e->object);
    const struct rect *one = NULL; /* the first write; the others must be of its kind */
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_classes; i++) {
        if (!c[i].writes) continue;
        for (uint32_t k = c[i].first; k < c[i].first + c[i].n; k++) {
            const struct rect *rect = &access_at(r, k)->rect;
            if (one == NULL) one = rect;
            if (rect->n_slices != one->n_slices || (rect->n_slices > 0 && rect->op != one->op) ||
                !task_verify_rect_tile(&whole, rect, &r->tiles[n++]))
                return false;
        }
    }
    return task_verify_rect_disjoint(r->tiles, n);
}

/* Whether the clocks say that every task of class a is done, visibly, before any of class b
 * begins. */
static bool known_before(const struct proof *f, const struct access_class *a,
                         const struct access_class *b) {
    if (a->last == NULL) return false;
    for (uint32_t w = 0; w < f->p->n_workers; w++)
        if (a->last[w] > b->known[w]) return false;
    return true;
}

/* Compares the classes of one tensor. Each writer comes before each reader: visibly unless the
 * reader polls flags, and on the same worker where the reader does not wait for the writer's event.
 * A reader sees the writers behind the counters of its event, and those behind the counters that
 * its worker waited for before. No two writers have the same bytes, in any order. */
static int compare_within(const struct race *r, const struct extent *e) {
    struct proof *f = r->f;
    const struct access_class *c = r->classes + e->first_class;
    const uint32_t transport = proof_tensor(f, e->object)->transport;
    const bool flagged = transport != TRANSPORT_COUNTER && transport != TRANSPORT_OWN;
    const bool disjoint = writes_are_disjoint(r, e);
    for (uint32_t i = 0; i < e->n_classes; i++)
        for (uint32_t k = i; k < e->n_classes; k++) {
            f->report.n_class_pairs++;
            if (!c[i].writes && !c[k].writes) continue;
            const bool both = c[i].writes && c[k].writes;
            const struct access_class *writer = c[i].writes ? &c[i] : &c[k];
            const struct access_class *other = writer == &c[i] ? &c[k] : &c[i];
            if (both ? disjoint
                     : (flagged ? task_verify_order_leads(f, writer->trigger, other->wait)
                                : transport != TRANSPORT_OWN &&
                                      (task_verify_order_visible(f, writer->trigger, other->wait) ||
                                       known_before(f, writer, other))))
                continue;
            TRY(compare_tasks(r, writer, other));
        }
    return QN_OK;
}

/* ---- between tensors ----------------------------------------------------------------------- */

/* Extents from i + 1 up to the result begin before extent i ends. */
static uint32_t near_end(const struct race *r, uint32_t i) {
    const struct extent *e = &r->extents[i];
    uint32_t k = i + 1;
    while (k < r->n_extents && r->extents[k].space == e->space && r->extents[k].start < e->end) k++;
    return k;
}

/* Whether every task of class a is done before any of class b begins. Where events ride on data,
 * the order of events is not enough: an earlier store could arrive later. */
static bool comes_before(const struct proof *f, const struct access_class *a,
                         const struct access_class *b) {
    if (a->last == NULL) return task_verify_order_leads(f, a->trigger, b->wait);
    return known_before(f, a, b);
}

/* Compares the classes of two tensors that share bytes: all accesses of the earlier one come before
 * all accesses of the later one, unless both only read. */
static int compare_between(const struct race *r, const struct extent *early,
                           const struct extent *late) {
    const struct access_class *a = r->classes + early->first_class,
                              *b = r->classes + late->first_class;
    for (uint32_t i = 0; i < early->n_classes; i++)
        for (uint32_t k = 0; k < late->n_classes; k++) {
            r->f->report.n_class_pairs++;
            if (!a[i].writes && !b[k].writes) continue;
            if (!comes_before(r->f, &a[i], &b[k])) TRY(compare_tasks(r, &a[i], &b[k]));
        }
    return QN_OK;
}

int task_verify_race_by_start(const void *a, const void *b) {
    const struct extent *x = a, *y = b;
    if (x->space != y->space) return x->space < y->space ? -1 : 1;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return (x->object > y->object) - (x->object < y->object);
}

/* ---- what the clocks say ------------------------------------------------------------------- */

/* Called when a task is about to begin: its classes note its place and what its worker knows. */
static void note_task(void *race, uint32_t task, uint32_t worker, uint32_t place,
                      const uint32_t *known) {
    const struct race *r = race;
    const uint32_t n = r->f->p->n_workers;
    for (uint32_t i = r->f->first_access[task]; i < r->f->first_access[task + 1]; i++) {
        const struct access_class *c = &r->classes[r->class_of[i]];
        if (c->last == NULL) continue;
        c->last[worker] = MAX(c->last[worker], place);
        for (uint32_t w = 0; w < n; w++) c->known[w] = MIN(c->known[w], known[w]);
    }
}

static int clock_extent(struct race *r, const struct extent *e) {
    const uint32_t n = r->f->p->n_workers;
    for (uint32_t i = e->first_class; i < e->first_class + e->n_classes; i++) {
        if (r->classes[i].last != NULL) continue;
        TRY(ARENA_NEW(r->f->d, &r->f->arena, &r->classes[i].last, n));
        TRY(ARENA_NEW(r->f->d, &r->f->arena, &r->classes[i].known, n));
        memset(r->classes[i].known, 0xff, n * sizeof *r->classes[i].known);
    }
    return QN_OK;
}

/* Whether a task reads the tensor, which is plain, behind an event to which its writers do not lead
 * by counters. */
static bool is_plain_behind_data(const struct race *r, const struct extent *e) {
    const struct access_class *c = r->classes + e->first_class;
    if (proof_tensor(r->f, e->object)->transport != TRANSPORT_COUNTER) return false;
    for (uint32_t i = 0; i < e->n_classes; i++)
        for (uint32_t k = 0; c[i].writes && k < e->n_classes; k++)
            if (!c[k].writes && !task_verify_order_visible(r->f, c[i].trigger, c[k].wait))
                return true;
    return false;
}

/* Fills `last` and `known` where events ride on data, for the classes of tensors that share bytes
 * or are plain and read behind data. With JIT tasks no event may ride: task_verify_transport checks
 * this. */
static int read_clocks(struct race *r) {
    const struct prog_variant *v = r->f->v;
    bool rides = false;
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        rides = rides || PROG(r->f->p, EVENT)[e].transport != TRANSPORT_COUNTER;
    if (!rides || v->n_jit_tasks > 0) return QN_OK;
    for (uint32_t i = 0; i < r->n_extents; i++) {
        if (is_plain_behind_data(r, &r->extents[i])) TRY(clock_extent(r, &r->extents[i]));
        for (uint32_t k = i + 1, end = near_end(r, i); k < end; k++) {
            TRY(clock_extent(r, &r->extents[i]));
            TRY(clock_extent(r, &r->extents[k]));
        }
    }
    return verify_clock_run(r->f->d, r->f->p, v, note_task, r);
}

int task_verify_race(struct proof *f) {
    struct race r = {.f = f};
    TRY(collect(&r));
    TRY(sort(&r));
    TRY(group(&r));
    TRY(read_clocks(&r));
    TRY(find_places(&r));
    TRY(ARENA_NEW(f->d, &f->arena, &r.tiles, f->accesses.n));
    for (uint32_t i = 0; i < r.n_extents; i++) {
        TRY(compare_within(&r, &r.extents[i]));
        for (uint32_t k = i + 1, end = near_end(&r, i); k < end; k++) {
            const bool in_order = r.extents[i].born < r.extents[k].born;
            TRY(compare_between(&r, &r.extents[in_order ? i : k], &r.extents[in_order ? k : i]));
        }
    }
    return QN_OK;
}
