#include "task/program_make.h"
#include "base/array.h"
#include "base/checked.h"
#include "base/map.h"

#include <string.h>

/* The tables while they grow. */
struct maker {
    struct diag *d;
    const struct program_config *config;
    struct map string_at; /* text -> offset; keys are the graphs' own strings */
    struct map weight_at; /* name of a block -> index */
    struct strbuf strings;
    ARRAY(struct kv_row) kv;
    ARRAY(struct prog_variant) variants;
    ARRAY(struct prog_tensor) tensors;
    ARRAY(struct prog_op) ops;
    ARRAY(struct prog_task) tasks;
    ARRAY(struct prog_event) events;
    ARRAY(uint32_t) aot;
    ARRAY(struct prog_list) lists;
    ARRAY(struct prog_weight) weights;
    ARRAY(struct prog_part) parts;
    uint64_t flagged_at;   /* where the next variant's flagged tensors begin in the workspace */
    uint64_t sentinels_at; /* where each variant's tensors of sentinels begin, if it has any */
    uint64_t end;          /* of the workspace */
};

static int add_string(struct maker *m, const char *text, uint32_t *offset) {
    uint64_t at = m->strings.n;
    TRY(map_put(m->d, &m->string_at, text, strlen(text), at, &at));
    if (at == m->strings.n) strbuf_add(&m->strings, text, strlen(text) + 1);
    if (at > UINT32_MAX) return fail(m->d, QN_ELIMIT, "the program has too many names");
    *offset = (uint32_t)at;
    return strbuf_status(m->d, &m->strings);
}

static int add_part(struct maker *m, const struct weight_part *part) {
    struct prog_part p = {.rows = part->rows,
                          .at = part->at,
                          .run = part->run,
                          .stride = part->stride,
                          .stack = part->stack,
                          .step = part->step,
                          .source = part->source};
    TRY(add_string(m, part->name, &p.name));
    return ARRAY_PUSH(m->d, &m->parts, p);
}

/* Finds or adds a block; blocks of the same name are one. */
static int add_weight(struct maker *m, const struct kgraph *k, const struct weight_block *b,
                      uint64_t *index) {
    *index = m->weights.n;
    TRY(map_put(m->d, &m->weight_at, b->name, strlen(b->name), *index, index));
    if (*index < m->weights.n) return QN_OK;
    struct prog_weight w = {.dtype = b->dtype,
                            .n_dims = (uint32_t)b->n_dims,
                            .rows = b->rows,
                            .cols = b->cols,
                            .first_part = (uint32_t)m->parts.n,
                            .n_parts = b->n_parts};
    TRY(add_string(m, b->name, &w.name));
    for (uint32_t i = 0; i < b->n_parts; i++) TRY(add_part(m, &k->parts.items[b->first_part + i]));
    return ARRAY_PUSH(m->d, &m->weights, w);
}

/* A weight's place: its block, and which of the block's parts it has. */
static int place_weight(struct maker *m, const struct kgraph *k, const struct tensor *t,
                        struct prog_tensor *p) {
    const struct weight_block *b = &k->blocks.items[t->block];
    TRY(add_weight(m, k, b, &p->where));
    p->part = m->weights.items[p->where].first_part + (t->first_part - b->first_part);
    p->n_parts = (uint16_t)t->n_parts;
    return QN_OK;
}

/* Where a variant's flagged tensors begin, or its tensors of sentinels. */
static uint64_t flagged_at(const struct maker *m, const struct tgraph *g) {
    return g->reset_words != 0 ? m->sentinels_at : m->flagged_at;
}

/* Sets an activation's space, place and bytes. */
static void place_activation(const struct maker *m, const struct tgraph *g, size_t i,
                             struct prog_tensor *p) {
    p->space = SPACE_WORKSPACE;
    p->where = g->tensor_offset[i];
    if (g->tensor_transport != NULL) p->transport = g->tensor_transport[i];
    if (p->transport == TRANSPORT_COUNTER || p->transport == TRANSPORT_OWN) return;
    p->space = SPACE_OWN;
    p->where += flagged_at(m, g);
    if (p->transport == TRANSPORT_FLAG) p->bytes *= 2;
    if (p->transport == TRANSPORT_SPACE) {
        p->shape[1] = (uint32_t)g->reset_words;
        p->bytes = g->reset_words * RESET_UNITS * 4;
    }
}

static int add_tensors(struct maker *m, const struct tgraph *g) {
    for (size_t i = 0; i < g->kernel->tensors.n; i++) {
        const struct tensor *t = &g->kernel->tensors.items[i];
        struct prog_tensor p = {.dtype = (uint8_t)t->dtype,
                                .layout = (uint8_t)t->layout,
                                .n_dims = (uint8_t)t->n_dims,
                                .bytes = tensor_bytes(t)};
        TRY(add_string(m, t->name, &p.name));
        for (int k = 0; k < t->n_dims; k++) p.shape[k] = (uint32_t)t->shape[k];
        switch (t->role) {
        case TENSOR_WEIGHT:
            p.role = PROG_WEIGHT;
            p.space = SPACE_WEIGHTS;
            TRY(place_weight(m, g->kernel, t, &p));
            break;
        case TENSOR_ACTIVATION:
            p.role = PROG_ACTIVATION;
            place_activation(m, g, i, &p);
            break;
        case TENSOR_STATE: /* add_ops sets `where` */
            p.role = PROG_STATE;
            p.space = SPACE_KV;
            break;
        }
        TRY(ARRAY_PUSH(m->d, &m->tensors, p));
    }
    return QN_OK;
}

static int add_ops(struct maker *m, const struct tgraph *g, const struct prog_variant *v) {
    for (size_t i = 0; i < g->kernel->ops.n; i++) {
        const struct kop *op = &g->kernel->ops.items[i];
        struct prog_op p = {.kind = (uint16_t)op->kind,
                            .layer = (int16_t)op->layer,
                            .units = kop_units(op),
                            .n_rows = kop_rows(op),
                            .attrs = op->attrs,
                            .gang = op->gang};
        const struct op_info *info = op_info_of(op->kind);
        for (int k = OP_MAX_IN - 1; k >= 0; k--) {
            const bool there = op->in[k] != NO_TENSOR;
            p.in[k] = there ? v->first_tensor + (uint32_t)op->in[k] : PROG_NONE;
            const struct prog_tensor *t = there ? &m->tensors.items[p.in[k]] : NULL;
            if (there && info->in[k].weight && t->n_dims >= 2) p.k = t->shape[t->n_dims - 1];
        }
        for (int k = 0; k < OP_MAX_OUT; k++) {
            const bool there = op->out[k] != NO_TENSOR;
            p.out[k] = there ? v->first_tensor + (uint32_t)op->out[k] : PROG_NONE;
            if (there && info->out[k].state) m->tensors.items[p.out[k]].where = (uint64_t)op->layer;
        }
        TRY(ARRAY_PUSH(m->d, &m->ops, p));
    }
    return QN_OK;
}

static int add_tasks(struct maker *m, const struct tgraph *g, const struct prog_variant *v) {
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        const struct prog_task p = {.kind = (uint16_t)t->kind,
                                    .worker = t->worker == NO_WORKER ? (uint16_t)PROG_JIT
                                                                     : (uint16_t)t->worker,
                                    .op = t->op < 0 ? PROG_NONE : v->first_op + (uint32_t)t->op,
                                    .wait = v->first_event + (uint32_t)t->wait,
                                    .trigger = v->first_event + (uint32_t)t->trigger,
                                    .row0 = t->row0,
                                    .row1 = t->row1,
                                    .unit0 = t->unit0,
                                    .unit1 = t->unit1};
        TRY(ARRAY_PUSH(m->d, &m->tasks, p));
    }
    return QN_OK;
}

static int add_events(struct maker *m, const struct tgraph *g, struct prog_variant *v) {
    for (size_t i = 0; i < g->events.n; i++) {
        const struct prog_event e = {.n_triggers = g->events.items[i].n_triggers,
                                     .transport = g->events.items[i].data ? TRANSPORT_FLAG
                                                                          : TRANSPORT_COUNTER,
                                     .first_task = v->first_task + v->n_tasks};
        TRY(ARRAY_PUSH(m->d, &m->events, e));
    }
    for (uint32_t i = v->n_tasks; i-- > 0;) {
        const struct prog_task *t = &m->tasks.items[v->first_task + i];
        struct prog_event *e = &m->events.items[t->wait];
        e->first_task = v->first_task + i;
        e->n_tasks++;
        e->n_jit += t->worker == PROG_JIT;
        v->n_jit_tasks += t->worker == PROG_JIT;
    }
    for (uint32_t i = 0; i < v->n_events; i++)
        v->n_jit_events += m->events.items[v->first_event + i].n_jit > 0;
    return QN_OK;
}

/* Every worker's AOT tasks in linear order. */
static int add_lists(struct maker *m, const struct prog_variant *v) {
    const uint32_t n_workers = m->config->n_workers;
    const size_t base = m->lists.n;
    for (uint32_t w = 0; w < n_workers; w++) {
        const struct prog_list none = {0};
        TRY(ARRAY_PUSH(m->d, &m->lists, none));
    }
    struct prog_list *lists = m->lists.items + base;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const uint16_t w = m->tasks.items[v->first_task + i].worker;
        if (w != PROG_JIT) lists[w].n++;
    }
    uint32_t at = (uint32_t)m->aot.n;
    for (uint32_t w = 0; w < n_workers; w++) {
        lists[w].first = at;
        at += lists[w].n;
        lists[w].n = 0;
    }
    TRY(ARRAY_RESERVE(m->d, &m->aot, at));
    m->aot.n = at;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const uint16_t w = m->tasks.items[v->first_task + i].worker;
        if (w != PROG_JIT) m->aot.items[lists[w].first + lists[w].n++] = v->first_task + i;
    }
    return QN_OK;
}

/* All layers have the same KV row. */
static int add_kv(struct maker *m, const struct model_spec *spec) {
    const struct kv_row row = spec_kv_row(spec, m->config->kv_dtype);
    for (uint32_t i = 0; i < spec->n_layers; i++) TRY(ARRAY_PUSH(m->d, &m->kv, row));
    return QN_OK;
}

static int add_variant(struct maker *m, const struct tgraph *g) {
    struct prog_variant v = {.n_rows = g->kernel->n_rows,
                             .n_logit_rows = g->kernel->n_logit_rows,
                             .first_op = (uint32_t)m->ops.n,
                             .n_ops = (uint32_t)g->kernel->ops.n,
                             .first_task = (uint32_t)m->tasks.n,
                             .n_tasks = (uint32_t)g->tasks.n,
                             .first_event = (uint32_t)m->events.n,
                             .n_events = (uint32_t)g->events.n,
                             .first_tensor = (uint32_t)m->tensors.n,
                             .n_tensors = (uint32_t)g->kernel->tensors.n,
                             .context = g->kernel->context,
                             .decode_only = g->kernel->decode_only};
    v.start_event = v.first_event + (uint32_t)g->start_event;
    v.end_event = v.first_event + (uint32_t)g->end_event;
    if (m->tasks.n + g->tasks.n > UINT32_MAX / 2)
        return fail(m->d, QN_ELIMIT, "the program has too many tasks");
    TRY(add_tensors(m, g));
    TRY(add_ops(m, g, &v));
    TRY(add_tasks(m, g, &v));
    TRY(add_events(m, g, &v));
    TRY(add_lists(m, &v));
    m->end = MAX(m->end, flagged_at(m, g) + g->flagged_bytes);
    if (g->reset_words == 0) m->flagged_at += g->flagged_bytes;
    return ARRAY_PUSH(m->d, &m->variants, v);
}

/* One section's elements, while the block is laid out. */
struct piece {
    const void *items;
    uint64_t n, size;
};

static int lay_out(struct maker *m, const struct model_spec *spec, uint32_t model_path,
                   struct prog_header **program) {
    const struct piece pieces[N_SECTIONS] = {
        [SECTION_MODEL] = {spec, 1, sizeof *spec},
        [SECTION_KV] = {m->kv.items, m->kv.n, sizeof *m->kv.items},
        [SECTION_VARIANT] = {m->variants.items, m->variants.n, sizeof *m->variants.items},
        [SECTION_TENSOR] = {m->tensors.items, m->tensors.n, sizeof *m->tensors.items},
        [SECTION_OP] = {m->ops.items, m->ops.n, sizeof *m->ops.items},
        [SECTION_TASK] = {m->tasks.items, m->tasks.n, sizeof *m->tasks.items},
        [SECTION_EVENT] = {m->events.items, m->events.n, sizeof *m->events.items},
        [SECTION_AOT] = {m->aot.items, m->aot.n, sizeof *m->aot.items},
        [SECTION_LIST] = {m->lists.items, m->lists.n, sizeof *m->lists.items},
        [SECTION_WEIGHT] = {m->weights.items, m->weights.n, sizeof *m->weights.items},
        [SECTION_PART] = {m->parts.items, m->parts.n, sizeof *m->parts.items},
        [SECTION_STRING] = {m->strings.text, m->strings.n, 1},
    };
    uint64_t bytes = align_up(sizeof(struct prog_header), 64);
    for (int i = 0; i < N_SECTIONS; i++) bytes += align_up(pieces[i].n * pieces[i].size, 64);
    struct prog_header *p = calloc(1, bytes);
    if (p == NULL) return fail_nomem(m->d, bytes, "the program");
    *p = (struct prog_header){.magic = PROGRAM_MAGIC,
                              .version = PROGRAM_VERSION,
                              .n_ranks = m->config->n_ranks,
                              .n_workers = m->config->n_workers,
                              .total_bytes = bytes,
                              .spec_hash = hash_bytes(spec, sizeof *spec, 0),
                              .n_slots = m->config->n_slots,
                              .max_model_len = m->config->max_model_len,
                              .kv_block = m->config->kv_block,
                              .target = m->config->target,
                              .workspace_bytes = m->end,
                              .model_path = model_path};
    uint64_t at = align_up(sizeof *p, 64);
    for (int i = 0; i < N_SECTIONS; i++) {
        p->section[i] = (struct prog_section){at, pieces[i].n};
        if (pieces[i].n > 0) memcpy((char *)p + at, pieces[i].items, pieces[i].n * pieces[i].size);
        at += align_up(pieces[i].n * pieces[i].size, 64);
    }
    *program = p;
    return QN_OK;
}

int program_make(struct diag *d, const struct program_config *config, const struct tgraph *variants,
                 uint32_t n, struct prog_header **program) {
    struct maker m = {.d = d, .config = config};
    uint32_t model_path;
    /* plain activations of all variants share the first bytes; flagged ones share nothing; tensors
     * of sentinels of all variants share the last bytes: between two iterations all their words are
     * sentinels */
    for (uint32_t i = 0; i < n; i++) m.flagged_at = MAX(m.flagged_at, variants[i].workspace_bytes);
    m.end = m.sentinels_at = m.flagged_at;
    for (uint32_t i = 0; i < n; i++)
        if (variants[i].reset_words == 0) m.sentinels_at += variants[i].flagged_bytes;
    int rc = add_string(&m, "", &model_path);
    if (rc == QN_OK) rc = add_string(&m, config->model_path, &model_path);
    if (rc == QN_OK) rc = add_kv(&m, &variants[0].kernel->spec);
    for (uint32_t i = 0; i < n && rc == QN_OK; i++) rc = add_variant(&m, &variants[i]);
    if (rc == QN_OK) rc = lay_out(&m, &variants[0].kernel->spec, model_path, program);
    map_fini(&m.string_at);
    map_fini(&m.weight_at);
    strbuf_fini(&m.strings);
    ARRAY_FINI(&m.kv);
    ARRAY_FINI(&m.variants);
    ARRAY_FINI(&m.tensors);
    ARRAY_FINI(&m.ops);
    ARRAY_FINI(&m.tasks);
    ARRAY_FINI(&m.events);
    ARRAY_FINI(&m.aot);
    ARRAY_FINI(&m.lists);
    ARRAY_FINI(&m.weights);
    ARRAY_FINI(&m.parts);
    return rc;
}
