/* task_verify_order.c - that a program comes to its end, and what it orders: the deadlock check,
 * and the closures over events by which races and events on data are judged. */
#include "task/task_verify_proof.h"
#include "base/checked.h"

/* ---- deadlock ----------------------------------------------------------------------------- */

/* A run of the program in the abstract, as the workers would run it: a worker's list in order, JIT
 * tasks as soon as their event is activated. The set of tasks that run is a fixed point that does
 * not depend on timing (a task that can run stays able to run), so one execution stands for all. A
 * gang is one node: it runs when it is next on all its workers. */
struct play {
    const struct proof *f;
    const struct prog_list *lists; /* [n_workers] */
    uint32_t *have, *next, *queue; /* event counts, list positions, activated events */
    uint32_t n_queue, done;
    ARRAY(uint32_t) ready; /* workers to look at again */
};

static uint32_t *have_of(const struct play *y, uint32_t event) {
    return &y->have[event - y->f->v->first_event];
}

static bool is_active(const struct play *y, uint32_t event) {
    return *have_of(y, event) >= PROG(y->f->p, EVENT)[event].n_triggers;
}

/* The task at the head of a worker's list; PROG_NONE: the list is done. */
static uint32_t head_of(const struct play *y, uint32_t worker) {
    const struct prog_list *l = &y->lists[worker];
    return y->next[worker] < l->n ? PROG(y->f->p, AOT)[l->first + y->next[worker]] : PROG_NONE;
}

static void play_task(struct play *y, uint32_t task) {
    const uint32_t event = PROG(y->f->p, TASK)[task].trigger;
    y->done++;
    if (++*have_of(y, event) == PROG(y->f->p, EVENT)[event].n_triggers)
        y->queue[y->n_queue++] = event - y->f->v->first_event;
}

/* The tasks of a task's gang, from *first on. */
static uint32_t gang_of(const struct play *y, uint32_t task, uint32_t *first) {
    const struct prog_task *t = &PROG(y->f->p, TASK)[task];
    *first = y->f->gang[task - y->f->v->first_task];
    return t->op == PROG_NONE ? 1 : PROG(y->f->p, OP)[t->op].gang;
}

static bool gang_is_next(const struct play *y, uint32_t first, uint32_t n) {
    for (uint32_t m = 0; m < n; m++)
        if (head_of(y, PROG(y->f->p, TASK)[first + m].worker) != first + m) return false;
    return true;
}

/* Runs a worker's list as far as it goes. The other workers of its gangs are to be looked at
 * again. */
static int play_worker(struct play *y, uint32_t worker) {
    for (uint32_t task, first; (task = head_of(y, worker)) != PROG_NONE;) {
        const uint32_t n = gang_of(y, task, &first);
        if (!is_active(y, PROG(y->f->p, TASK)[task].wait) || !gang_is_next(y, first, n)) break;
        for (uint32_t m = 0; m < n; m++) {
            const uint32_t w = PROG(y->f->p, TASK)[first + m].worker;
            play_task(y, first + m);
            y->next[w]++;
            if (w != worker) TRY(ARRAY_PUSH(y->f->d, &y->ready, w));
        }
    }
    return QN_OK;
}

/* Runs what can run once an event is activated. */
static int play_event(struct play *y, uint32_t index) {
    const struct prog_event *e = &PROG(y->f->p, EVENT)[y->f->v->first_event + index];
    for (uint32_t task = e->first_task; task < e->first_task + e->n_tasks; task++) {
        const uint32_t w = PROG(y->f->p, TASK)[task].worker;
        if (w == PROG_JIT)
            play_task(y, task);
        else
            TRY(ARRAY_PUSH(y->f->d, &y->ready, w));
    }
    while (y->ready.n > 0) TRY(play_worker(y, y->ready.items[--y->ready.n]));
    return QN_OK;
}

/* Reports a worker that is stuck, and what it waits for. */
static int fail_stuck(const struct play *y) {
    const struct proof *f = y->f;
    for (uint32_t w = 0; w < f->p->n_workers; w++) {
        const uint32_t task = head_of(y, w);
        if (task == PROG_NONE) continue;
        const uint32_t event = PROG(f->p, TASK)[task].wait;
        struct strbuf what = {0};
        if (is_active(y, event))
            strbuf_str(&what, "the others of its gang");
        else
            strbuf_printf(&what, "event %u (%u of %u)", event, *have_of(y, event),
                          PROG(f->p, EVENT)[event].n_triggers);
        strbuf_str(&what, " before ");
        program_task_name(f->p, task, &what);
        int rc = fail(f->d, QN_EVERIFY, "deadlock: worker %u waits for %s; %u of %u tasks can run",
                      w, strbuf_text(&what), y->done, f->v->n_tasks);
        strbuf_fini(&what);
        return rc;
    }
    return fail(f->d, QN_EVERIFY, "deadlock: %u of %u tasks can run", y->done, f->v->n_tasks);
}

int task_verify_order_deadlock(struct proof *f) {
    const struct prog_variant *v = f->v;
    const uint64_t variant = (uint64_t)(v - PROG(f->p, VARIANT));
    struct play y = {.f = f, .lists = PROG(f->p, LIST) + variant * f->p->n_workers};
    TRY(ARENA_NEW(f->d, &f->arena, &y.have, v->n_events));
    TRY(ARENA_NEW(f->d, &f->arena, &y.next, f->p->n_workers));
    TRY(ARENA_NEW(f->d, &f->arena, &y.queue, v->n_events));
    int rc = QN_OK;
    /* The boundary triggers the start event once; check_counts has seen that no task does. */
    y.queue[y.n_queue++] = v->start_event - v->first_event;
    *have_of(&y, v->start_event) = 1;
    for (uint32_t q = 0; q < y.n_queue && rc == QN_OK; q++) rc = play_event(&y, y.queue[q]);
    ARRAY_FINI(&y.ready);
    TRY(rc);
    return y.done == v->n_tasks ? QN_OK : fail_stuck(&y);
}

/* ---- order: the transitive closure over events --------------------------------------------- */

static bool leads(const struct proof *f, const uint64_t *closure, uint32_t from, uint32_t to) {
    const uint64_t a = from - f->v->first_event, b = to - f->v->first_event;
    return closure[a * f->words + b / 64] >> (b % 64) & 1;
}

bool task_verify_order_leads(const struct proof *f, uint32_t from, uint32_t to) {
    return leads(f, f->reach, from, to);
}

bool task_verify_order_visible(const struct proof *f, uint32_t from, uint32_t to) {
    return leads(f, f->acquire, from, to);
}

static void merge_row(const struct proof *f, uint64_t *closure, uint32_t into, uint32_t from) {
    for (uint64_t w = 0; w < f->words; w++)
        closure[into * f->words + w] |= closure[from * f->words + w];
}

/* Closes over events in reverse topological order; task_verify_order_deadlock has shown that one
 * exists. An event leads to itself. In `acquire`, an event that rides on data leads nowhere, and no
 * event leads on through it. */
int task_verify_order_close(struct proof *f) {
    const struct prog_variant *v = f->v;
    uint32_t *state, *stack;
    f->words = CEIL_DIV(v->n_events, 64u);
    TRY(ARENA_NEW(f->d, &f->arena, &f->reach, f->words * v->n_events));
    TRY(ARENA_NEW(f->d, &f->arena, &f->acquire, f->words * v->n_events));
    TRY(ARENA_NEW(f->d, &f->arena, &state, v->n_events)); /* next dependent to look at, + 1 */
    TRY(ARENA_NEW(f->d, &f->arena, &stack, v->n_events));
    uint32_t depth = 0;
    stack[depth++] = v->start_event - v->first_event;
    while (depth > 0) {
        const uint32_t e = stack[depth - 1];
        const struct prog_event *event = &PROG(f->p, EVENT)[v->first_event + e];
        const bool counter = event->transport == TRANSPORT_COUNTER;
        if (state[e] == 0) {
            state[e] = 1;
            f->reach[e * f->words + e / 64] |= 1ull << (e % 64);
            if (counter) f->acquire[e * f->words + e / 64] |= 1ull << (e % 64);
        }
        if (state[e] > event->n_tasks) {
            depth--;
            continue;
        }
        const uint32_t task = event->first_task + state[e] - 1;
        const uint32_t next = PROG(f->p, TASK)[task].trigger - v->first_event;
        if (state[next] == 0) {
            stack[depth++] = next;
            continue; /* come back to the same dependent when `next` is closed */
        }
        state[e]++;
        if (f->reach[e * f->words + next / 64] >> (next % 64) & 1) continue;
        merge_row(f, f->reach, e, next);
        if (counter) merge_row(f, f->acquire, e, next);
    }
    return QN_OK;
}

int task_verify_order_ending(struct proof *f) {
    const struct prog_variant *v = f->v;
    if (PROG(f->p, EVENT)[v->end_event].n_tasks != 0)
        return fail(f->d, QN_EVERIFY, "the end event %u starts tasks", v->end_event);
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(f->p, TASK)[i];
        if (!task_verify_order_leads(f, v->start_event, t->wait) ||
            !task_verify_order_leads(f, t->trigger, v->end_event)) {
            struct strbuf name = {0};
            program_task_name(f->p, i, &name);
            int rc = fail(f->d, QN_EVERIFY,
                          "%s is not between the iteration's start and its end: the next "
                          "iteration may overtake it",
                          strbuf_text(&name));
            strbuf_fini(&name);
            return rc;
        }
    }
    return QN_OK;
}
