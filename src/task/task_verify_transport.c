/* task_verify_transport.c - events that ride on data: proves that a dependent learns from flags
 * alone all that a counter would have told it. docs/transport.md has the rules. */
#include "task/task_verify_proof.h"
#include "base/checked.h"

#include <stdlib.h>

static const struct access *access_of(const struct proof *f, uint32_t k) {
    return &f->accesses.items[k];
}

static bool is_state(const struct proof *f, const struct access *a) {
    return proof_tensor(f, a->object)->role == PROG_STATE;
}

/* Whether a write is a result that a dependent of the task may read. */
static bool is_result(const struct proof *f, const struct access *a) {
    return a->rect.write && !is_state(f, a) &&
           proof_tensor(f, a->object)->transport != TRANSPORT_OWN;
}

/* Whether readers poll an activation itself. */
static bool is_polled(const struct prog_tensor *t) {
    return t->transport != TRANSPORT_COUNTER && t->transport != TRANSPORT_OWN;
}

static bool is_plain(const struct proof *f, const struct access *a) {
    return !is_state(f, a) && proof_tensor(f, a->object)->transport == TRANSPORT_COUNTER;
}

/* Whether `reader` polls all of the writer's access. */
static bool polls_access(const struct proof *f, uint32_t reader, const struct access *w) {
    if (!is_result(f, w)) return false;
    for (uint32_t i = f->first_access[reader]; i < f->first_access[reader + 1]; i++) {
        const struct access *r = access_of(f, i);
        if (!r->rect.write && r->object == w->object && task_verify_rect_has(&r->rect, &w->rect))
            return true;
    }
    return false;
}

/* Whether `reader` by itself polls every byte that `writer` stores of some tensor, in every
 * iteration. Every element of a result depends on all that the task reads. */
static bool polls(const struct proof *f, uint32_t reader, uint32_t writer) {
    if (op_split_of(PROG(f->p, TASK)[f->v->first_task + reader].kind) == SPLIT_SLICES) return false;
    for (uint32_t k = f->first_access[writer]; k < f->first_access[writer + 1]; k++)
        if (polls_access(f, reader, access_of(f, k))) return true;
    return false;
}

/* The smallest rectangle that has all stores of an event's producers to one tensor. */
struct hull {
    uint32_t object; /* PROG_NONE: nothing */
    uint32_t n;      /* stores so far */
    bool lost;       /* it is no rectangle of the tensor */
    struct rect rect;
};

/* The hulls of an event. A task stores at most OP_MAX_OUT tensors; those of another operator are
 * left out. */
struct hulls {
    struct hull of[OP_MAX_OUT];
};

static void grow(const struct proof *f, struct hulls *all_hulls, const struct access *a) {
    const struct rect whole = task_verify_touch_whole(f, a->object);
    struct hull *h = all_hulls->of;
    struct tile t, all;
    struct rect r = a->rect;
    r.n_slices = 0; /* a slice may be anywhere */
    while (h < all_hulls->of + OP_MAX_OUT && h->object != PROG_NONE && h->object != a->object) h++;
    if (h == all_hulls->of + OP_MAX_OUT) return;
    if (h->object == PROG_NONE) *h = (struct hull){.object = a->object, .rect = r};
    h->n++;
    if (!task_verify_rect_tile(&whole, &r, &t) || !task_verify_rect_tile(&whole, &h->rect, &all)) {
        h->lost = true;
        return;
    }
    const uint64_t row = MIN(t.row0, all.row0), col = MIN(t.col0, all.col0);
    h->rect.at = whole.at + row * whole.stride + col;
    h->rect.n_rows = MAX(t.row1, all.row1) - row;
    h->rect.run = MAX(t.col1, all.col1) - col;
}

/* Fills hulls[n_events] of the events that ride on data. */
static int find_hulls(struct proof *f, struct hulls **hulls) {
    const struct prog_variant *v = f->v;
    TRY(ARENA_NEW(f->d, &f->arena, hulls, v->n_events));
    for (uint32_t e = 0; e < v->n_events; e++)
        for (int k = 0; k < OP_MAX_OUT; k++) (*hulls)[e].of[k].object = PROG_NONE;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const uint32_t event = PROG(f->p, TASK)[v->first_task + i].trigger;
        if (PROG(f->p, EVENT)[event].transport == TRANSPORT_COUNTER) continue;
        for (uint32_t k = f->first_access[i]; k < f->first_access[i + 1]; k++)
            if (is_result(f, access_of(f, k)))
                grow(f, &(*hulls)[event - v->first_event], access_of(f, k));
    }
    return QN_OK;
}

/* Whether a task by itself polls all of a hull to which each producer of the event stores a
 * part. */
static bool polls_a_hull(const struct proof *f, uint32_t reader, const struct prog_event *e,
                         const struct hulls *hulls) {
    for (int n = 0; n < OP_MAX_OUT; n++) {
        const struct hull *h = &hulls->of[n];
        if (h->object == PROG_NONE || h->lost || h->n != e->n_triggers) continue;
        for (uint32_t k = f->first_access[reader]; k < f->first_access[reader + 1]; k++) {
            const struct access *a = access_of(f, k);
            if (!a->rect.write && a->object == h->object &&
                task_verify_rect_has(&a->rect, &h->rect))
                return true;
        }
    }
    return false;
}

/* Whether each dependent polls all of a hull. If not, each may still poll all that is stored. */
static bool each_polls(const struct proof *f, const struct prog_event *e, const struct hulls *h) {
    for (uint32_t i = e->first_task; i < e->first_task + e->n_tasks; i++)
        if (op_split_of(PROG(f->p, TASK)[i].kind) == SPLIT_SLICES ||
            !polls_a_hull(f, i - f->v->first_task, e, h))
            return false;
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

/* Whether an operator's kernel knows the transport of an operand in that slot. */
static bool knows_transport(const struct proof *f, const struct prog_op *op,
                            const struct op_slot *slot, bool in, uint32_t transport) {
    const struct prog_tensor *first = proof_tensor(f, op->in[0]);
    const bool many = f->v->n_rows > 1 && first->layout == LAYOUT_PACKED;
    switch (transport) {
    case TRANSPORT_COUNTER:
    case TRANSPORT_OWN: return true;
    case TRANSPORT_FLAG: return slot->flagged && !many;
    case TRANSPORT_PAIR: return slot->paired && f->v->n_rows == 1;
    case TRANSPORT_SENTINEL:
        return slot->sentinel && f->v->n_rows > 1 && f->v->n_rows <= SENTINEL_ROWS;
    case TRANSPORT_SPACE: return op->kind == OP_RESET_SENTINELS && !in;
    default: return false;
    }
}

/* Whether the kernels of every operator that touches a flagged tensor know flags. */
static int check_flag_slots(struct proof *f) {
    for (uint32_t i = f->v->first_op; i < f->v->first_op + f->v->n_ops; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[i];
        const struct op_info *info = op_info_of(op->kind);
        for (int n = 0; n < info->n_in + info->n_out; n++) {
            const bool in = n < info->n_in;
            const uint32_t index = in ? op->in[n] : op->out[n - info->n_in];
            const struct op_slot *slot = in ? &info->in[n] : &info->out[n - info->n_in];
            if (index == PROG_NONE) continue;
            const uint32_t transport = proof_tensor(f, index)->transport;
            if (knows_transport(f, op, slot, in, transport)) continue;
            return fail(f->d, QN_EVERIFY, "tensor %s carries flags, which %s cannot %s as its %s",
                        program_string(f->p, proof_tensor(f, index)->name), info->name,
                        in ? "poll" : "store", slot->name);
        }
    }
    return QN_OK;
}

/* Bytes that one flag or one sentinel stands for; 1: each element has its own. */
static uint64_t unit_bytes(const struct prog_tensor *t) {
    if (t->transport == TRANSPORT_PAIR) return 8;
    return t->transport == TRANSPORT_SENTINEL && t->layout == LAYOUT_PACKED ? 4 : 1;
}

/* Whether tasks of SLICES, which may begin anywhere, begin at even columns: those of
 * ATTENTION_WHOLE have whole heads, those of EXPERT_GATE_UP items of 8 or 16 columns. */
static bool slices_are_even(uint32_t kind) {
    return kind == OP_ATTENTION_WHOLE || kind == OP_EXPERT_GATE_UP;
}

/* Whether no access has half of a pair, which has one flag, or half of a packed word, which is one
 * sentinel. */
static int check_pairs(struct proof *f) {
    for (uint32_t k = 0; k < f->accesses.n; k++) {
        const struct access *a = access_of(f, k);
        const uint64_t unit = is_state(f, a) ? 1 : unit_bytes(proof_tensor(f, a->object));
        if (unit == 1) continue;
        const bool anywhere =
            a->rect.n_slices != 0 && !slices_are_even(PROG(f->p, TASK)[a->task].kind);
        if (a->rect.at % unit != 0 || a->rect.run % unit != 0 || anywhere)
            return fail(f->d, QN_EVERIFY,
                        "tensor %s carries flags for pairs, of which a task has half",
                        program_string(f->p, proof_tensor(f, a->object)->name));
    }
    return QN_OK;
}

/* Whether each worker's last task leads to the end through counters: its stores and loads then come
 * before the next iteration, whatever rode on data in between. Empty tasks do not count: the
 * control warp is done with one while another task may run. */
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

/* Rows or columns [first, end). */
struct span {
    uint64_t first, end;
};

/* What tasks [first, end) of the variant poll together of a tensor. */
struct polled {
    uint32_t first, end, object;
    uint64_t row, n_rows; /* some rows, as counted in rect.stride from the tensor's start */
    struct span columns;  /* of which they poll these columns, each in all of these rows */
    struct span rows;     /* and they poll these rows, each with all columns */
};

static int by_first(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

struct spans {
    ARRAY(struct span) of;
};

/* From the lowest of the spans to the first place that is in none of them. */
static struct span join_spans(struct spans *s) {
    struct span all = {0, 0};
    if (s->of.n == 0) return all;
    qsort(s->of.items, s->of.n, sizeof *s->of.items, by_first);
    all = s->of.items[0];
    for (size_t i = 1; i < s->of.n && s->of.items[i].first <= all.end; i++)
        all.end = MAX(all.end, s->of.items[i].end);
    return all;
}

static uint64_t first_row(const struct proof *f, const struct access *a) {
    return (a->rect.at - proof_tensor(f, a->object)->where) / a->rect.stride;
}

static uint64_t first_column(const struct proof *f, const struct access *a) {
    return (a->rect.at - proof_tensor(f, a->object)->where) % a->rect.stride;
}

/* Fills *out for the rows that `w` writes. */
static int find_polled(struct proof *f, uint32_t first, uint32_t end, const struct access *w,
                       struct polled *out) {
    struct spans columns = {0}, rows = {0};
    int rc = QN_OK;
    *out = (struct polled){.first = first, .end = end, .object = w->object};
    out->row = first_row(f, w);
    out->n_rows = w->rect.n_rows;
    for (uint32_t k = f->first_access[first]; k < f->first_access[end] && rc == QN_OK; k++) {
        const struct access *a = access_of(f, k);
        if (a->object != w->object || a->rect.write || a->rect.n_slices > 0 ||
            a->rect.stride != w->rect.stride)
            continue;
        const struct span column = {first_column(f, a), first_column(f, a) + a->rect.run};
        const struct span row = {first_row(f, a), first_row(f, a) + a->rect.n_rows};
        if (row.first <= out->row && out->row + out->n_rows <= row.end)
            rc = ARRAY_PUSH(f->d, &columns.of, column);
        if (rc == QN_OK && column.first == 0 && column.end == a->rect.stride)
            rc = ARRAY_PUSH(f->d, &rows.of, row);
    }
    out->columns = join_spans(&columns);
    out->rows = join_spans(&rows);
    ARRAY_FINI(&columns.of);
    ARRAY_FINI(&rows.of);
    return rc;
}

/* Whether what is polled includes all that `w` writes. */
static bool polls_all(const struct proof *f, const struct polled *p, const struct access *w) {
    return (p->columns.first <= first_column(f, w) &&
            first_column(f, w) + w->rect.run <= p->columns.end) ||
           (p->rows.first <= p->row && p->row + p->n_rows <= p->rows.end);
}

/* Checks that peers, tasks [first, end), together poll all that `writer` stores of some tensor, and
 * that they store nothing that it may touch. They trigger one event, so later tasks wait for all of
 * them. Then the order of the writer and a single dependent does not matter, and
 * the order of the writer and all later tasks follows. */
static int check_together(struct proof *f, uint32_t writer, uint32_t first, uint32_t end,
                          struct polled *polled) {
    const uint32_t event = PROG(f->p, TASK)[f->v->first_task + writer].trigger;
    bool state = false, plain = false, all = false;
    for (uint32_t k = f->first_access[first]; k < f->first_access[end]; k++) {
        const struct access *a = access_of(f, k);
        state = state || is_state(f, a);
        plain = plain || (a->rect.write && is_plain(f, a));
    }
    for (uint32_t k = f->first_access[writer]; k < f->first_access[writer + 1]; k++) {
        const struct access *a = access_of(f, k);
        if ((plain && is_plain(f, a)) || (state && is_state(f, a)))
            return no_ride(f, event, f->v->first_task + writer,
                           "touches what is not flagged, as its dependents do, and no single task "
                           "polls all of its results");
        if (!is_result(f, a) || all) continue;
        if (polled->first != first || polled->end != end || polled->object != a->object ||
            polled->row != first_row(f, a) || polled->n_rows != a->rect.n_rows)
            TRY(find_polled(f, first, end, a, polled));
        all = polls_all(f, polled, a);
    }
    if (all) return QN_OK;
    return no_ride(f, event, f->v->first_task + writer,
                   "stores no tensor of which its dependents poll all");
}

/* Dependents that trigger one event are peers: the end of those from `first` on, of tasks before
 * `end`. */
static uint32_t peers_end(const struct proof *f, uint32_t first, uint32_t end) {
    const struct prog_task *tasks = PROG(f->p, TASK) + f->v->first_task;
    uint32_t next = first;
    while (next < end && tasks[next].trigger == tasks[first].trigger) next++;
    return next;
}

/* Checks one task that triggers an event on data. `each`: every dependent polls all that any of the
 * event's producers stores. */
static int check_writer(struct proof *f, uint32_t writer, bool each, struct polled *polled) {
    const uint32_t index = f->v->first_task + writer;
    const uint32_t event = PROG(f->p, TASK)[index].trigger;
    const struct prog_event *e = &PROG(f->p, EVENT)[event];
    if (event == f->v->end_event) return no_ride(f, event, index, "ends the iteration with it");
    for (uint32_t k = f->first_access[writer]; k < f->first_access[writer + 1]; k++)
        if (access_of(f, k)->rect.write && is_plain(f, access_of(f, k)))
            return no_ride(f, event, index, "also writes plain data");
    const uint32_t end = e->first_task - f->v->first_task + e->n_tasks;
    for (uint32_t first = end - e->n_tasks, next; first < end && !each; first = next) {
        bool alone = true;
        next = peers_end(f, first, end);
        for (uint32_t k = first; k < next && alone; k++) alone = polls(f, k, writer);
        if (!alone) TRY(check_together(f, writer, first, next, polled));
    }
    return QN_OK;
}

/* No counter orders an event on data: its dependents learn from flags alone that its producers are
 * done, and that these have read all their inputs. So each dependent must poll all that each
 * producer writes, or all dependents together must. Plain data that a producer also writes would be
 * visible to no task. State is for the next iteration (check_list_ends). */
int task_verify_transport(struct proof *f) {
    const struct prog_variant *v = f->v;
    struct polled polled = {.object = PROG_NONE};
    struct hulls *hulls;
    bool *each; /* [n_events] each_polls */
    bool any = false;
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        any = any || PROG(f->p, EVENT)[e].transport != TRANSPORT_COUNTER;
    TRY(check_flag_slots(f));
    TRY(check_pairs(f));
    if (!any) return QN_OK;
    TRY(check_list_ends(f));
    if (v->n_jit_tasks > 0)
        return fail(f->d, QN_EVERIFY,
                    "events ride on data although there are %u JIT tasks: a worker that polls "
                    "inside a task claims none",
                    v->n_jit_tasks);
    TRY(find_hulls(f, &hulls));
    TRY(ARENA_NEW(f->d, &f->arena, &each, v->n_events));
    for (uint32_t e = 0; e < v->n_events; e++)
        each[e] = each_polls(f, &PROG(f->p, EVENT)[v->first_event + e], &hulls[e]);
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const uint32_t event = PROG(f->p, TASK)[v->first_task + i].trigger;
        if (PROG(f->p, EVENT)[event].transport != TRANSPORT_COUNTER)
            TRY(check_writer(f, i, each[event - v->first_event], &polled));
    }
    if (PROG(f->p, EVENT)[v->start_event].transport != TRANSPORT_COUNTER)
        return fail(f->d, QN_EVERIFY, "the start event cannot ride on data");
    return QN_OK;
}

/* Tensors of one company may lie in the same bytes at other times: plain ones, and those whose
 * words are sentinels between two iterations. Flagged ones may not. */
enum company { COMPANY_PLAIN, COMPANY_FLAGGED, COMPANY_SENTINEL, N_COMPANIES };

static enum company company_of(const struct prog_tensor *t) {
    if (!is_polled(t)) return COMPANY_PLAIN;
    return t->transport == TRANSPORT_SENTINEL || t->transport == TRANSPORT_SPACE ? COMPANY_SENTINEL
                                                                                 : COMPANY_FLAGGED;
}

/* Whether extents, sorted by start, are disjoint, unless they are of one company that may share
 * bytes. Each is compared with the furthest end so far of each company. */
static int check_apart(struct proof *f, const struct extent *extents, uint64_t n, bool shared) {
    uint64_t furthest[N_COMPANIES] = {0};
    for (uint64_t i = 0; i < n; i++) {
        const struct prog_tensor *t = proof_tensor(f, extents[i].object);
        const enum company own = company_of(t);
        for (int c = 0; c < N_COMPANIES; c++)
            if (extents[i].start < furthest[c] &&
                (c != (int)own || own == COMPANY_FLAGGED || !shared))
                return fail(f->d, QN_EVERIFY,
                            "tensor %s (at byte %llu) shares bytes with one that carries flags",
                            program_string(f->p, t->name), (unsigned long long)extents[i].start);
        furthest[own] = MAX(furthest[own], extents[i].end);
    }
    return QN_OK;
}

/* Whether a variant's tensors of sentinels share no bytes and lie in the space that the variant's
 * RESET_SENTINELS writes. task_verify_race shows that all tasks that touch them are done by then.
 * `extents`: room for the tensors' extents. */
static int check_reset(struct proof *f, const struct prog_variant *v, struct extent *extents) {
    const struct prog_tensor *space = NULL;
    uint64_t n = 0;
    for (uint32_t i = v->first_tensor; i < v->first_tensor + v->n_tensors; i++)
        if (proof_tensor(f, i)->transport == TRANSPORT_SPACE) space = proof_tensor(f, i);
    for (uint32_t i = v->first_tensor; i < v->first_tensor + v->n_tensors; i++) {
        const struct prog_tensor *t = proof_tensor(f, i);
        if (t->transport != TRANSPORT_SENTINEL) continue;
        if (space == NULL || t->where < space->where ||
            t->where + t->bytes > space->where + space->bytes)
            return fail(f->d, QN_EVERIFY,
                        "tensor %s (at byte %llu) has sentinels that no task resets",
                        program_string(f->p, t->name), (unsigned long long)t->where);
        extents[n++] = (struct extent){.object = i, .start = t->where, .end = t->where + t->bytes};
    }
    qsort(extents, n, sizeof *extents, task_verify_race_by_start);
    return check_apart(f, extents, n, false);
}

/* A flagged tensor shares bytes with no tensor of any variant: a stale word would look like a flag.
 * Tensors of sentinels, and their spaces, share bytes with those of other variants only: between
 * two iterations all of them are sentinels. Once per program. */
int task_verify_transport_space(struct proof *f) {
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
    TRY(check_apart(f, extents, n_extents, true));
    for (uint64_t i = 0; i < f->p->section[SECTION_VARIANT].count; i++)
        TRY(check_reset(f, &PROG(f->p, VARIANT)[i], extents));
    return QN_OK;
}
