/* watch.h - stands in for the kernels in runtime tests: records what ran and checks that it was
 * allowed to.
 *
 * Every task leaves the iteration's number in its own plain word, and before running looks at the
 * words of the tasks that had to come before it (through dummies): wrong order shows as a wrong
 * number, a missing happens-before shows under ThreadSanitizer. The task that finishes its
 * iteration last plays SAMPLE: the next token is a function of the last one and its position.
 */
#ifndef TESTS_RUNTIME_WATCH_H
#define TESTS_RUNTIME_WATCH_H

#include "runtime/rt_append.h"
#include "task/program.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { WATCH_LOOK = 48 }; /* predecessors looked at per task */

struct watch {
    const struct prog_header *program;
    uint32_t *done;      /* [tasks] iteration in which it ran last */
    uint32_t *first_in;  /* [events] first of its triggering tasks in `in` */
    uint32_t *in;        /* triggering tasks by event */
    uint32_t *n_real;    /* [variants] tasks that are not dummies */
    uint32_t iteration;  /* 1, 2, ...; written between iterations only */
    atomic_uint n_ran;   /* in this iteration */
    atomic_uint n_wrong; /* tasks that ran too early or twice */
    atomic_uint n_total;
    unsigned spin;                                          /* work per task */
    uint32_t stop_after;                                    /* sample no further token; 0: always */
    void (*rows)(void *user, const struct rt_batch *batch); /* called once per iteration */
    void *user;
};

static inline void watch_init(struct watch *w, const struct prog_header *p) {
    uint64_t n_events = p->section[SECTION_EVENT].count, n_tasks = p->section[SECTION_TASK].count;
    *w = (struct watch){.program = p, .iteration = 1};
    w->done = calloc(n_tasks + 1, 4);
    w->first_in = calloc(n_events + 2, 4);
    w->in = calloc(n_tasks + 1, 4);
    w->n_real = calloc(PROG_MAX_VARIANTS, 4);
    assert(w->done && w->first_in && w->in && w->n_real);
    for (uint64_t t = 0; t < n_tasks; t++) w->first_in[PROG(p, TASK)[t].trigger + 2]++;
    for (uint64_t e = 2; e < n_events + 2; e++) w->first_in[e] += w->first_in[e - 1];
    for (uint64_t t = 0; t < n_tasks; t++)
        w->in[w->first_in[PROG(p, TASK)[t].trigger + 1]++] = (uint32_t)t;
    for (uint64_t v = 0; v < p->section[SECTION_VARIANT].count; v++) {
        const struct prog_variant *variant = &PROG(p, VARIANT)[v];
        for (uint32_t t = 0; t < variant->n_tasks; t++)
            w->n_real[v] += PROG(p, TASK)[variant->first_task + t].kind != OP_NONE;
    }
}

static inline void watch_fini(struct watch *w) {
    free(w->done);
    free(w->first_in);
    free(w->in);
    free(w->n_real);
}

/* Whether the tasks that trigger `event` have run in this iteration, looking through dummies. */
static inline bool watch_came_before(const struct watch *w, uint32_t event, int *budget) {
    for (uint32_t i = w->first_in[event]; i < w->first_in[event + 1] && *budget > 0; i++) {
        const struct prog_task *t = &PROG(w->program, TASK)[w->in[i]];
        --*budget;
        if (t->kind == OP_NONE ? !watch_came_before(w, t->wait, budget)
                               : w->done[w->in[i]] != w->iteration)
            return false;
    }
    return true;
}

static inline int32_t watch_next_token(int32_t token, uint32_t position) {
    return (int32_t)(((uint32_t)token * 31 + position * 7 + 3) % 1000);
}

/* The log-probability that a token of a prompt gets. */
static inline float watch_score(int32_t token, uint32_t position) {
    return -(float)token - (float)position / 64;
}

static inline void watch_sample(const struct rt_batch *b) {
    for (uint32_t i = 0; i < b->rows.n_logit_rows; i++) {
        uint32_t slot = (uint32_t)b->rows.slot[b->rows.logit_row[i]];
        uint32_t position = (uint32_t)b->rows.position[b->rows.logit_row[i]];
        const struct rt_slot s = b->slots[slot];
        const struct rt_request *q = &b->requests[slot];
        const uint64_t first = (uint64_t)slot * b->max_model_len;
        const int32_t *tokens = b->tokens + first;
        if (rt_is_scored(&s, position)) {
            b->logprobs[first + position + 1] = watch_score(tokens[position + 1], position + 1);
            continue;
        }
        const int32_t token = watch_next_token(tokens[s.n_known - 1], s.n_known);
        b->logprobs[rt_append_at(b, slot, &s)] = -(float)token;
        rt_append(b, i, slot, &s, token, rt_is_stop(q, token));
    }
}

static inline void watch_run(void *user, const struct rt_batch *batch, uint32_t worker,
                             uint32_t task) {
    struct watch *w = user;
    (void)worker;
    int budget = WATCH_LOOK;
    if (w->done[task] == w->iteration ||
        !watch_came_before(w, PROG(w->program, TASK)[task].wait, &budget))
        atomic_fetch_add(&w->n_wrong, 1);
    for (volatile unsigned i = 0; i < w->spin; i++) {
    }
    w->done[task] = w->iteration;
    atomic_fetch_add(&w->n_total, 1);
    uint32_t v = 0;
    while (task >= PROG(w->program, VARIANT)[v].first_task + PROG(w->program, VARIANT)[v].n_tasks)
        v++;
    if (atomic_fetch_add(&w->n_ran, 1) + 1 < w->n_real[v]) return;
    if (w->rows) w->rows(w->user, batch);
    watch_sample(batch);
    atomic_store(&w->n_ran, 0);
    w->iteration++;
}

#endif
