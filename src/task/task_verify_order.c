/* task_verify_order.c - that a program comes to its end, and what it orders: the deadlock check and
 * the closures over events that the races and the carried events are judged by. */
#include "task/task_verify_proof.h"
#include "base/checked.h"

/* ---- deadlock ----------------------------------------------------------------------------- */

/* Runs the program in the abstract, as the workers would: a worker's list in order, JIT tasks as
 * soon as their event is activated. What runs is a fixed point that does not depend on timing
 * (a task that can run stays able to run), so one execution stands for all. */
int task_verify_order_deadlock(struct proof *f) {
    const struct prog_variant *v = f->v;
    const uint64_t variant = (uint64_t)(v - PROG(f->p, VARIANT));
    const struct prog_list *lists = PROG(f->p, LIST) + variant * f->p->n_workers;
    uint32_t *have, *next, *queue; /* event counts, list positions, activated events */
    TRY(ARENA_NEW(f->d, &f->arena, &have, v->n_events));
    TRY(ARENA_NEW(f->d, &f->arena, &next, f->p->n_workers));
    TRY(ARENA_NEW(f->d, &f->arena, &queue, v->n_events));
    ARRAY(uint32_t) ready = {0}; /* workers to look at again, and JIT tasks + n_workers */
    uint32_t n_queue = 0, done = 0;
    int rc = QN_OK;
    /* The boundary triggers the start event once; check_counts has seen that no task does. */
    queue[n_queue++] = v->start_event - v->first_event;
    have[v->start_event - v->first_event] = 1;
    for (uint32_t q = 0; q < n_queue && rc == QN_OK; q++) {
        const struct prog_event *e = &PROG(f->p, EVENT)[v->first_event + queue[q]];
        for (uint32_t k = 0; k < e->n_tasks && rc == QN_OK; k++) {
            const uint32_t w = PROG(f->p, TASK)[e->first_task + k].worker;
            rc = ARRAY_PUSH(f->d, &ready, w == PROG_JIT ? f->p->n_workers + e->first_task + k : w);
        }
        while (ready.n > 0 && rc == QN_OK) {
            const uint32_t r = ready.items[--ready.n];
            const bool jit = r >= f->p->n_workers;
            for (;;) {
                if (!jit && next[r] == lists[r].n) break;
                const uint32_t task =
                    jit ? r - f->p->n_workers : PROG(f->p, AOT)[lists[r].first + next[r]];
                const struct prog_task *t = &PROG(f->p, TASK)[task];
                if (have[t->wait - v->first_event] < PROG(f->p, EVENT)[t->wait].n_triggers) break;
                done++;
                if (++have[t->trigger - v->first_event] == PROG(f->p, EVENT)[t->trigger].n_triggers)
                    queue[n_queue++] = t->trigger - v->first_event;
                if (jit) break;
                next[r]++;
            }
        }
    }
    ARRAY_FINI(&ready);
    TRY(rc);
    if (done == v->n_tasks) return QN_OK;
    for (uint32_t w = 0; w < f->p->n_workers; w++) {
        if (next[w] == lists[w].n) continue;
        const uint32_t task = PROG(f->p, AOT)[lists[w].first + next[w]];
        const uint32_t event = PROG(f->p, TASK)[task].wait;
        struct strbuf name = {0};
        program_task_name(f->p, task, &name);
        rc = fail(f->d, QN_EVERIFY,
                  "deadlock: worker %u waits for event %u (%u of %u) before %s; %u of %u tasks "
                  "can run",
                  w, event, have[event - v->first_event], PROG(f->p, EVENT)[event].n_triggers,
                  strbuf_text(&name), done, v->n_tasks);
        strbuf_fini(&name);
        return rc;
    }
    return fail(f->d, QN_EVERIFY, "deadlock: %u of %u tasks can run", done, v->n_tasks);
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
 * exists. An event leads to itself; in `acquire` one that rides on data leads nowhere and nothing
 * leads on through it. */
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
        const bool counter = event->carry == CARRY_PLAIN;
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
