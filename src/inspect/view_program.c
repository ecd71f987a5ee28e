/* view_program.c - the graphs of a compiled program as the compiler's last stage had them: a
 * program keeps operators, tensors, tasks and events, and nothing of the stages before.
 */
#include "inspect/view.h"

#include "base/checked.h"
#include "task/program_map.h"

/* One variant while it is built. */
struct rebuild {
    struct diag *d;
    const struct prog_header *p;
    const struct prog_variant *v;
    struct kgraph *k;
    struct tgraph *g;
};

static int tensors(const struct rebuild *r) {
    _Static_assert((int)PROG_WEIGHT == (int)TENSOR_WEIGHT &&
                       (int)PROG_ACTIVATION == (int)TENSOR_ACTIVATION &&
                       (int)PROG_STATE == (int)TENSOR_STATE,
                   "the roles are the same numbers");
    for (uint32_t i = 0; i < r->v->n_tensors; i++) {
        const struct prog_tensor *from = &PROG(r->p, TENSOR)[r->v->first_tensor + i];
        struct tensor t = {.name = program_string(r->p, from->name),
                           .role = (enum tensor_role)from->role,
                           .dtype = (enum dtype)from->dtype,
                           .layout = (enum layout)from->layout,
                           .n_dims = from->n_dims,
                           .producer = -1};
        for (int k = 0; k < t.n_dims; k++) t.shape[k] = from->shape[k];
        TRY(ARRAY_PUSH(r->d, &r->k->tensors, t));
    }
    return QN_OK;
}

/* The tensor's index within the variant; program_check has bounded it. */
static int32_t local(const struct rebuild *r, uint32_t tensor) {
    return tensor == PROG_NONE ? NO_TENSOR : (int32_t)(tensor - r->v->first_tensor);
}

static int ops(const struct rebuild *r) {
    for (uint32_t i = 0; i < r->v->n_ops; i++) {
        const struct prog_op *from = &PROG(r->p, OP)[r->v->first_op + i];
        struct kop op = {.kind = (enum op_kind)from->kind,
                         .layer = from->layer,
                         .gang = from->gang,
                         .attrs = from->attrs};
        for (int k = 0; k < OP_MAX_IN; k++) op.in[k] = local(r, from->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++) {
            op.out[k] = local(r, from->out[k]);
            if (op.out[k] == NO_TENSOR) continue;
            struct tensor *made = &r->k->tensors.items[op.out[k]];
            if (made->role == TENSOR_ACTIVATION) made->producer = (int)i;
        }
        if (op.layer < -1 || op.layer >= (int)r->k->spec.n_layers)
            return fail(r->d, QN_EFORMAT, "op %u: layer %d is out of bounds", i, op.layer);
        struct op_map map;
        TRY(program_map(r->d, r->p, r->v, from, &map));
        TRY(op_maps_keep(r->d, &r->k->maps, r->k->arena, &map, &op.map));
        TRY(ARRAY_PUSH(r->d, &r->k->ops, op));
    }
    TRY(kgraph_verify(r->d, r->k)); /* from here on the operands have their shapes */
    for (uint32_t i = 0; i < r->v->n_ops; i++) {
        const struct prog_op *from = &PROG(r->p, OP)[r->v->first_op + i];
        const struct kop *op = &r->k->ops.items[i];
        if (from->units != kop_units(op) || from->n_rows != kop_rows(op))
            return fail(r->d, QN_EFORMAT, "op %u: units or rows are not those of %s", i,
                        op_name(op->kind));
    }
    return QN_OK;
}

static int tasks(const struct rebuild *r) {
    for (uint32_t i = 0; i < r->v->n_tasks; i++) {
        const struct prog_task *from = &PROG(r->p, TASK)[r->v->first_task + i];
        const struct task t = {.kind = (enum op_kind)from->kind,
                               .op = from->op == PROG_NONE ? -1
                                                           : (int32_t)(from->op - r->v->first_op),
                               .row0 = from->row0,
                               .row1 = from->row1,
                               .unit0 = from->unit0,
                               .unit1 = from->unit1,
                               .wait = (int32_t)(from->wait - r->v->first_event),
                               .trigger = (int32_t)(from->trigger - r->v->first_event),
                               .worker = from->worker == PROG_JIT ? NO_WORKER : from->worker};
        TRY(ARRAY_PUSH(r->d, &r->g->tasks, t));
    }
    for (uint32_t i = 0; i < r->v->n_events; i++) {
        const struct prog_event *from = &PROG(r->p, EVENT)[r->v->first_event + i];
        const struct event e = {.n_triggers = from->n_triggers,
                                .n_dependents = from->n_tasks,
                                .data = from->transport == TRANSPORT_FLAG};
        TRY(ARRAY_PUSH(r->d, &r->g->events, e));
    }
    r->g->start_event = (int32_t)(r->v->start_event - r->v->first_event);
    r->g->end_event = (int32_t)(r->v->end_event - r->v->first_event);
    return QN_OK;
}

static int places(const struct rebuild *r) {
    struct tgraph *g = r->g;
    TRY(ARENA_NEW(r->d, g->arena, &g->tensor_offset, r->v->n_tensors));
    TRY(ARENA_NEW(r->d, g->arena, &g->tensor_transport, r->v->n_tensors));
    for (uint32_t i = 0; i < r->v->n_tensors; i++) {
        const struct prog_tensor *t = &PROG(r->p, TENSOR)[r->v->first_tensor + i];
        if (t->role == PROG_ACTIVATION) g->tensor_offset[i] = t->where;
        g->tensor_transport[i] = (uint8_t)t->transport;
    }
    g->workspace_bytes = r->p->workspace_bytes;
    return QN_OK;
}

static int show_variant(struct diag *d, const struct prog_header *p, const struct prog_variant *v,
                        const struct compile_hook *hook) {
    const struct task_options options = {.device.n_workers = p->n_workers};
    struct arena arena = {0};
    struct kgraph k;
    struct tgraph g;
    kgraph_init(&k, &arena, PROG(p, MODEL), v->n_rows, v->n_logit_rows, v->context);
    k.decode_only = v->decode_only != 0;
    tgraph_init(&g, &arena, &k, &options);
    const struct rebuild r = {d, p, v, &k, &g};
    int rc = tensors(&r);
    if (rc == QN_OK) rc = ops(&r);
    if (rc == QN_OK && hook->kernel) rc = hook->kernel(hook->user, d, &k);
    if (rc == QN_OK) rc = tasks(&r);
    if (rc == QN_OK) rc = places(&r);
    if (rc == QN_OK) rc = tgraph_verify(d, &g, STAGE_TRANSPORT);
    if (rc == QN_OK && hook->tasks) rc = hook->tasks(hook->user, d, &g, STAGE_TRANSPORT);
    tgraph_fini(&g);
    kgraph_fini(&k);
    arena_fini(&arena);
    return rc;
}

int view_program(struct diag *d, const struct prog_header *p, const struct compile_hook *hook) {
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++)
        TRY(show_variant(d, p, &PROG(p, VARIANT)[i], hook));
    return QN_OK;
}
