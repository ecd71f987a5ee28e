/* graph_gen.h - programs for runtime tests, made by hand: normalised (a task waits for one event
 * and triggers one) and linearised (an event's tasks are contiguous), without tensors.
 *
 * A graph is a list of (wait, trigger) pairs with wait < trigger over events 0 .. n_events - 1;
 * event 0 is the start, the last one the end, and every other event has a trigger and a dependent,
 * so that the end comes after everything. gen_* make shapes; gen_program freezes several as
 * variants.
 */
#ifndef TESTS_RUNTIME_GRAPH_GEN_H
#define TESTS_RUNTIME_GRAPH_GEN_H

#include "base/map.h"
#include "task/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct gen_task {
    uint32_t wait, trigger;
    bool dummy, jit;
    uint16_t worker; /* AOT */
};

struct gen_graph {
    uint32_t n_events, n_tasks, capacity;
    uint32_t n_rows, n_logit_rows; /* T, L of the variant */
    uint32_t context;              /* 0: max_model_len */
    bool decode_only;              /* of rows of different requests only */
    struct gen_task *tasks;
};

/* How tasks of random graphs are drawn, in percent. */
struct gen_mix {
    uint32_t jit, dummy;
    uint64_t seed;
};

static inline uint32_t gen_random(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*state >> 33) % below);
}

static inline void gen_add(struct gen_graph *g, uint32_t wait, uint32_t trigger) {
    if (g->n_tasks == g->capacity) {
        g->capacity = g->capacity ? g->capacity * 2 : 64;
        g->tasks = realloc(g->tasks, g->capacity * sizeof *g->tasks);
        assert(g->tasks);
    }
    g->tasks[g->n_tasks++] = (struct gen_task){.wait = wait, .trigger = trigger};
    if (trigger >= g->n_events) g->n_events = trigger + 1;
}

static inline void gen_add_n(struct gen_graph *g, uint32_t n, uint32_t wait, uint32_t trigger) {
    for (uint32_t i = 0; i < n; i++) gen_add(g, wait, trigger);
}

static inline struct gen_graph gen_chain(uint32_t n) {
    struct gen_graph g = {0};
    for (uint32_t i = 0; i < n; i++) gen_add(&g, i, i + 1);
    return g;
}

static inline struct gen_graph gen_wide(uint32_t n) {
    struct gen_graph g = {0};
    gen_add_n(&g, n, 0, 1);
    return g;
}

static inline struct gen_graph gen_fan_in(uint32_t n) {
    struct gen_graph g = {0};
    gen_add_n(&g, n, 0, 1);
    gen_add(&g, 1, 2);
    return g;
}

static inline struct gen_graph gen_fan_out(uint32_t n) {
    struct gen_graph g = {0};
    gen_add(&g, 0, 1);
    gen_add_n(&g, n, 1, 2);
    return g;
}

/* A, then B and C on branches of their own, then D: the join takes two dummies. */
static inline struct gen_graph gen_diamond(void) {
    struct gen_graph g = {0};
    gen_add(&g, 0, 1);
    gen_add(&g, 1, 2);
    gen_add(&g, 1, 3);
    gen_add(&g, 2, 4);
    gen_add(&g, 3, 4);
    gen_add(&g, 4, 5);
    g.tasks[3].dummy = g.tasks[4].dummy = true;
    return g;
}

/* No tasks at all: the start is the end. */
static inline struct gen_graph gen_empty(void) {
    return (struct gen_graph){.n_events = 1};
}

/* Layers of `width` tasks with a barrier between them, as dense operators make. */
static inline struct gen_graph gen_layers(uint32_t n_layers, uint32_t width) {
    struct gen_graph g = {0};
    for (uint32_t i = 0; i < n_layers; i++) gen_add_n(&g, width, i, i + 1);
    return g;
}

/* n_events events in random order of dependence, about n_tasks tasks. */
static inline struct gen_graph gen_random_graph(uint32_t n_events, uint32_t n_tasks,
                                                uint64_t *seed) {
    struct gen_graph g = {0};
    bool *has_dependent = calloc(n_events, 1);
    assert(has_dependent && n_events >= 2);
    for (uint32_t e = 1; e < n_events; e++) { /* near by, so that graphs are deep as well */
        uint32_t back = 1 + gen_random(seed, e < 6 ? e : 6);
        gen_add(&g, e - back, e);
        has_dependent[e - back] = true;
    }
    for (uint32_t e = 0; e + 1 < n_events; e++)
        if (!has_dependent[e]) gen_add(&g, e, e + 1 + gen_random(seed, n_events - e - 1));
    while (g.n_tasks < n_tasks) {
        uint32_t wait = gen_random(seed, n_events - 1);
        gen_add(&g, wait, wait + 1 + gen_random(seed, n_events - wait - 1));
    }
    free(has_dependent);
    return g;
}

/* Makes some tasks JIT and some dummies, and places the rest on n_workers workers. */
static inline void gen_mix_tasks(struct gen_graph *g, const struct gen_mix *mix,
                                 uint32_t n_workers) {
    uint64_t seed = mix->seed;
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        g->tasks[i].dummy |= gen_random(&seed, 100) < mix->dummy;
        g->tasks[i].jit = gen_random(&seed, 100) < mix->jit;
        g->tasks[i].worker = (uint16_t)gen_random(&seed, n_workers);
    }
}

/* What the program's header says. */
struct gen_limits {
    uint32_t n_workers, n_slots, max_model_len, kv_block;
};

/* Tasks in the order of linearization: by the event that they wait for, otherwise as they were. */
static inline void gen_linearize(struct gen_graph *g) {
    struct gen_task *sorted = malloc((g->n_tasks + 1) * sizeof *sorted);
    uint32_t n = 0, *first = calloc(g->n_events + 1, sizeof *first);
    assert(sorted && first);
    for (uint32_t i = 0; i < g->n_tasks; i++) first[g->tasks[i].wait + 1]++;
    for (uint32_t e = 0; e < g->n_events; e++) first[e + 1] += first[e];
    for (uint32_t i = 0; i < g->n_tasks; i++) sorted[first[g->tasks[i].wait]++] = g->tasks[i], n++;
    assert(n == g->n_tasks);
    free(g->tasks);
    free(first);
    g->tasks = sorted;
    g->capacity = g->n_tasks + 1;
}

static inline struct model_spec gen_spec(void) {
    return (struct model_spec){
        .n_layers = 1,
        .hidden = 8,
        .intermediate = 8,
        .vocab = 1000,
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = 8,
        .max_position = 4096,
        .rms_eps = 1e-6f,
        .weight_dtype = DTYPE_F32,
        .rope_theta = 10000,
        .n_eos = 0,
        .bos = -1,
    };
}

static inline uint64_t gen_section(struct prog_header *h, int which, uint64_t n, uint64_t size) {
    h->section[which] = (struct prog_section){.offset = h->total_bytes, .count = n};
    h->total_bytes += (n * size + 63) & ~63ull;
    return h->section[which].offset;
}

static inline void *gen_at(struct prog_header *p, int section) {
    return (char *)p + p->section[section].offset;
}

static inline void gen_variant(struct prog_header *p, const struct gen_graph *g, uint32_t index,
                               uint32_t first_task, uint32_t first_event, uint32_t *n_aot) {
    struct prog_variant *v = (struct prog_variant *)gen_at(p, SECTION_VARIANT) + index;
    struct prog_task *tasks = gen_at(p, SECTION_TASK);
    struct prog_event *events = gen_at(p, SECTION_EVENT);
    uint32_t *aot = gen_at(p, SECTION_AOT);
    struct prog_list *lists = (struct prog_list *)gen_at(p, SECTION_LIST) + index * p->n_workers;
    *v = (struct prog_variant){.n_rows = g->n_rows ? g->n_rows : 1,
                               .n_logit_rows = g->n_logit_rows ? g->n_logit_rows : 1,
                               .first_op = index,
                               .n_ops = 1,
                               .first_task = first_task,
                               .n_tasks = g->n_tasks,
                               .first_event = first_event,
                               .n_events = g->n_events,
                               .start_event = first_event,
                               .end_event = first_event + g->n_events - 1,
                               .context = g->context ? g->context : p->max_model_len,
                               .decode_only = g->decode_only};
    events[v->start_event].n_triggers = 1;
    for (uint32_t e = 0; e < g->n_events; e++) events[first_event + e].first_task = first_task;
    for (uint32_t i = 0; i < g->n_tasks; i++) {
        const struct gen_task *t = &g->tasks[i];
        struct prog_event *wait = &events[first_event + t->wait];
        tasks[first_task + i] = (struct prog_task){.kind = t->dummy ? OP_NONE : OP_EMBED,
                                                   .worker = t->jit ? PROG_JIT : t->worker,
                                                   .op = t->dummy ? PROG_NONE : index,
                                                   .wait = first_event + t->wait,
                                                   .trigger = first_event + t->trigger};
        if (wait->n_tasks++ == 0) wait->first_task = first_task + i;
        if (t->jit) wait->n_jit++;
        v->n_jit_tasks += t->jit;
        events[first_event + t->trigger].n_triggers++;
    }
    for (uint32_t e = 0; e < g->n_events; e++) v->n_jit_events += events[first_event + e].n_jit > 0;
    for (uint32_t w = 0; w < p->n_workers; w++) {
        lists[w].first = *n_aot;
        for (uint32_t i = 0; i < g->n_tasks; i++)
            if (!g->tasks[i].jit && g->tasks[i].worker == w) aot[(*n_aot)++] = first_task + i;
        lists[w].n = *n_aot - lists[w].first;
    }
}

/* Freezes graphs as the variants of one program; frees the graphs. The program is the caller's. */
static inline struct prog_header *gen_program(struct gen_graph *graphs, uint32_t n,
                                              const struct gen_limits *limits) {
    struct prog_header h = {.magic = PROGRAM_MAGIC,
                            .version = PROGRAM_VERSION,
                            .n_ranks = 1,
                            .n_workers = limits->n_workers,
                            .n_slots = limits->n_slots,
                            .max_model_len = limits->max_model_len,
                            .kv_block = limits->kv_block,
                            .total_bytes = (sizeof h + 63) & ~63ull};
    const struct model_spec spec = gen_spec();
    uint64_t n_tasks = 0, n_events = 0, n_aot = 0;
    for (uint32_t i = 0; i < n; i++) {
        gen_linearize(&graphs[i]);
        n_tasks += graphs[i].n_tasks;
        n_events += graphs[i].n_events;
        for (uint32_t k = 0; k < graphs[i].n_tasks; k++) n_aot += !graphs[i].tasks[k].jit;
    }
    gen_section(&h, SECTION_MODEL, 1, sizeof(struct model_spec));
    gen_section(&h, SECTION_KV, spec.n_layers, sizeof(struct kv_row));
    gen_section(&h, SECTION_VARIANT, n, sizeof(struct prog_variant));
    gen_section(&h, SECTION_TENSOR, 0, 1);
    gen_section(&h, SECTION_OP, n, sizeof(struct prog_op));
    gen_section(&h, SECTION_TASK, n_tasks, sizeof(struct prog_task));
    gen_section(&h, SECTION_EVENT, n_events, sizeof(struct prog_event));
    gen_section(&h, SECTION_AOT, n_aot, 4);
    gen_section(&h, SECTION_LIST, (uint64_t)n * h.n_workers, sizeof(struct prog_list));
    gen_section(&h, SECTION_WEIGHT, 0, 1);
    gen_section(&h, SECTION_STRING, 1, 1);
    struct prog_header *p = calloc(1, h.total_bytes);
    assert(p);
    *p = h;
    *(struct model_spec *)gen_at(p, SECTION_MODEL) = spec;
    for (uint32_t i = 0; i < spec.n_layers; i++)
        ((struct kv_row *)gen_at(p, SECTION_KV))[i] = spec_kv_row(&spec, DTYPE_F32);
    p->spec_hash = hash_bytes(gen_at(p, SECTION_MODEL), sizeof(struct model_spec), 0);
    uint32_t task = 0, event = 0, aot = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct prog_op *op = (struct prog_op *)gen_at(p, SECTION_OP) + i;
        memset(op, 0xff, sizeof *op);
        *op = (struct prog_op){.kind = OP_EMBED, .layer = -1, .n_rows = 1, .gang = 1};
        gen_variant(p, &graphs[i], i, task, event, &aot);
        task += graphs[i].n_tasks;
        event += graphs[i].n_events;
        free(graphs[i].tasks);
    }
    return p;
}

#endif
