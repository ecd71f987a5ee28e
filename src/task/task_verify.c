#include "task/task_verify.h"
#include "base/arena.h"
#include "base/checked.h"
#include "graph/kernel_graph.h"

#include <string.h>

/* A rectangle of bytes: `n_rows` runs of `run` bytes, `stride` apart, the first at `at`. Space 0 is
 * the workspace; space 1 + layer is that layer's KV cache, where "bytes" are (row, head unit) cells
 * of this iteration's rows. */
struct rect {
    uint32_t space;
    bool write;
    uint64_t at, run, stride, n_rows;
    uint32_t slice, n_slices; /* shares nothing with another slice of the same operator */
    uint32_t op;
};

enum { MAX_RECTS = 6 };

/* Tasks with the same wait and trigger are ordered alike with respect to all others. */
struct access_class {
    uint32_t wait, trigger;
    uint32_t first, n; /* in the list of accesses, sorted by class */
    bool writes;
};

struct access {
    uint32_t object; /* tensor */
    uint32_t task;
    struct rect rect;
};

struct proof {
    struct diag *d;
    const struct prog_header *p;
    const struct prog_variant *v;
    struct arena arena; /* of one variant */
    uint64_t words;     /* of one row of the closures below */
    uint64_t *reach;    /* [n_events][words] events that an event leads to */
    uint64_t *acquire;  /* the same through counters alone: what was written is visible, too */
    ARRAY(struct access) accesses;
    struct verify_report report;
};

/* ---- what the operators touch ------------------------------------------------------------- */

static const struct prog_tensor *tensor(const struct proof *f, uint32_t index) {
    return &PROG(f->p, TENSOR)[index];
}

/* Rows [row0,row1) x bytes [col0,col1) of rows that are `pitch` bytes long. */
static struct rect rows_of(const struct proof *f, uint32_t index, uint32_t row0, uint32_t row1,
                           uint64_t col0, uint64_t col1, uint64_t pitch) {
    const struct prog_tensor *t = tensor(f, index);
    const bool state = t->role == PROG_STATE;
    return (struct rect){.space = state ? 1 + (uint32_t)t->where : 0,
                         .at = (state ? 0 : t->where) + row0 * pitch + col0,
                         .run = col1 - col0,
                         .stride = pitch,
                         .n_rows = row1 - row0};
}

static uint64_t pitch_of(const struct prog_tensor *t) {
    return t->role == PROG_STATE ? t->shape[1] : t->bytes / t->shape[0];
}

static struct rect whole(const struct proof *f, uint32_t index) {
    const struct prog_tensor *t = tensor(f, index);
    return rows_of(f, index, 0, t->shape[0], 0, pitch_of(t), pitch_of(t));
}

static struct rect full_rows(const struct proof *f, uint32_t index, const struct prog_task *t) {
    const uint64_t pitch = pitch_of(tensor(f, index));
    return rows_of(f, index, t->row0, t->row1, 0, pitch, pitch);
}

/* Columns in elements of `size` bytes (twice that if they carry flags), cut off at the row's end.
 */
static struct rect columns(const struct proof *f, uint32_t index, const struct prog_task *t,
                           uint64_t col0, uint64_t col1, uint64_t size) {
    const uint64_t pitch = pitch_of(tensor(f, index));
    if (tensor(f, index)->carry == CARRY_FLAG) size *= 2;
    return rows_of(f, index, t->row0, t->row1, MIN(col0 * size, pitch), MIN(col1 * size, pitch),
                   pitch);
}

static int touch(struct proof *f, uint32_t object, uint32_t task, struct rect r, bool write) {
    if (r.run == 0 || r.n_rows == 0) return QN_OK;
    r.write = write;
    r.op = PROG(f->p, TASK)[task].op;
    const struct access a = {object, task, r};
    return ARRAY_PUSH(f->d, &f->accesses, a);
}

static int touch_slice(struct proof *f, uint32_t object, uint32_t task) {
    struct rect r = whole(f, object);
    r.slice = PROG(f->p, TASK)[task].unit0;
    r.n_slices = PROG(f->p, TASK)[task].unit1;
    return touch(f, object, task, r, true);
}

/* The operators' reads and writes, from the definitions in op.def. */
static int touch_all(struct proof *f, uint32_t index) {
    const struct prog_task *t = &PROG(f->p, TASK)[index];
    if (t->kind == OP_NONE) return QN_OK;
    const struct prog_op *op = &PROG(f->p, OP)[t->op];
    const struct model_spec *s = PROG(f->p, MODEL);
    const uint64_t D = s->head_dim, u0 = t->unit0, u1 = t->unit1;
    switch ((enum op_kind)t->kind) {
    case OP_EMBED: return touch(f, op->out[0], index, full_rows(f, op->out[0], t), true);
    case OP_QKV: {
        /* Units count query heads, key heads, value heads; the cache's columns count from the
         * first key head. */
        const uint64_t q0 = MIN(u0, s->n_heads), q1 = MIN(u1, s->n_heads);
        const uint64_t c0 = u0 - q0, c1 = u1 - q1;
        TRY(touch(f, op->in[QKV_X], index, full_rows(f, op->in[QKV_X], t), false));
        TRY(touch(f, op->out[QKV_OUT_Q], index,
                  columns(f, op->out[QKV_OUT_Q], t, q0 * D, q1 * D, 4), true));
        return touch(f, op->out[QKV_OUT_KV], index, columns(f, op->out[QKV_OUT_KV], t, c0, c1, 1),
                     true);
    }
    case OP_QKV_LINEAR:
        TRY(touch(f, op->in[QKV_X], index, full_rows(f, op->in[QKV_X], t), false));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0, u1, 4), true);
    case OP_QKV_HEADS: {
        const uint64_t q0 = MIN(u0, s->n_heads), q1 = MIN(u1, s->n_heads);
        TRY(touch(f, op->in[HEADS_QKV], index, columns(f, op->in[HEADS_QKV], t, u0 * D, u1 * D, 4),
                  false));
        TRY(touch(f, op->out[QKV_OUT_Q], index,
                  columns(f, op->out[QKV_OUT_Q], t, q0 * D, q1 * D, 4), true));
        return touch(f, op->out[QKV_OUT_KV], index,
                     columns(f, op->out[QKV_OUT_KV], t, u0 - q0, u1 - q1, 1), true);
    }
    case OP_ATTENTION:
    case OP_ATTENTION_SPLIT:
        TRY(touch(f, op->in[ATTENTION_Q], index, whole(f, op->in[ATTENTION_Q]), false));
        TRY(touch(f, op->in[ATTENTION_KV], index, whole(f, op->in[ATTENTION_KV]), false));
        return touch_slice(f, op->out[0], index);
    case OP_ATTENTION_COMBINE:
        TRY(touch(f, op->in[COMBINE_PART], index,
                  columns(f, op->in[COMBINE_PART], t, u0, u1,
                          4ull * tensor(f, op->in[COMBINE_PART])->shape[2] * (D + 2)),
                  false));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0 * D, u1 * D, 4), true);
    case OP_LINEAR:
        TRY(touch(f, op->in[LINEAR_A], index, full_rows(f, op->in[LINEAR_A], t), false));
        if (op->in[LINEAR_RESIDUAL] != PROG_NONE)
            TRY(touch(f, op->in[LINEAR_RESIDUAL], index,
                      columns(f, op->in[LINEAR_RESIDUAL], t, u0, u1, 4), false));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0, u1, 4), true);
    case OP_GATED_MLP:
        TRY(touch(f, op->in[MLP_X], index, full_rows(f, op->in[MLP_X], t), false));
        return touch(f, op->out[0], index, columns(f, op->out[0], t, u0, u1, 4), true);
    case OP_LM_HEAD:
        TRY(touch(f, op->in[LM_X], index, whole(f, op->in[LM_X]), false));
        TRY(touch(f, op->out[LM_OUT_LOGITS], index,
                  columns(f, op->out[LM_OUT_LOGITS], t, u0 * LM_BLOCK, u1 * LM_BLOCK, 4), true));
        return touch(f, op->out[LM_OUT_PART], index, columns(f, op->out[LM_OUT_PART], t, u0, u1, 8),
                     true);
    case OP_SAMPLE:
        TRY(touch(f, op->in[SAMPLE_LOGITS], index, full_rows(f, op->in[SAMPLE_LOGITS], t), false));
        TRY(touch(f, op->in[SAMPLE_PART], index, full_rows(f, op->in[SAMPLE_PART], t), false));
        return touch(f, op->out[0], index, full_rows(f, op->out[0], t), true);
    case OP_NONE:
    case N_OP_KINDS: break;
    }
    return fail(f->d, QN_EVERIFY, "task %u has no rule", index);
}

/* ---- shapes: the operands are what the kernels take them for ------------------------------- */

/* The length of an operator's dot products: the columns of its first matrix. */
static uint32_t dot_length(const struct proof *f, const struct prog_op *op) {
    for (int n = 0; n < OP_MAX_IN; n++) {
        if (op->in[n] == PROG_NONE) continue;
        const struct prog_tensor *t = tensor(f, op->in[n]);
        if (t->role == PROG_WEIGHT && t->n_dims == 2) return t->shape[1];
    }
    return 0;
}

static int check_shapes(struct proof *f) {
    struct kgraph k;
    kgraph_init(&k, &f->arena, PROG(f->p, MODEL), f->v->n_rows, f->v->n_logit_rows,
                f->p->max_model_len);
    int rc = QN_OK;
    for (uint32_t i = 0; i < f->v->n_tensors && rc == QN_OK; i++) {
        const struct prog_tensor *t = tensor(f, f->v->first_tensor + i);
        struct tensor copy = {.name = program_string(f->p, t->name),
                              .role = (enum tensor_role)t->role,
                              .dtype = (enum dtype)t->dtype,
                              .n_dims = t->n_dims,
                              .producer = -1};
        for (int n = 0; n < t->n_dims; n++) copy.shape[n] = t->shape[n];
        rc = ARRAY_PUSH(f->d, &k.tensors, copy);
    }
    for (uint32_t i = 0; i < f->v->n_ops && rc == QN_OK; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[f->v->first_op + i];
        struct kop copy = {.kind = op->kind, .layer = op->layer};
        struct op_info info;
        op_describe(op->kind, &info);
        for (int n = 0; n < OP_MAX_IN; n++)
            copy.in[n] =
                op->in[n] == PROG_NONE ? NO_TENSOR : (int32_t)(op->in[n] - f->v->first_tensor);
        for (int n = 0; n < OP_MAX_OUT; n++) {
            copy.out[n] =
                op->out[n] == PROG_NONE ? NO_TENSOR : (int32_t)(op->out[n] - f->v->first_tensor);
            if (n < info.n_out && !info.out[n].state) {
                int *producer = &k.tensors.items[copy.out[n]].producer;
                if (*producer >= 0)
                    rc = fail(f->d, QN_EVERIFY,
                              "operator %u writes a tensor that operator %d of "
                              "its variant writes too",
                              i, *producer);
                *producer = (int)i;
            }
        }
        if (rc == QN_OK) rc = ARRAY_PUSH(f->d, &k.ops, copy);
    }
    if (rc == QN_OK) rc = kgraph_verify(f->d, &k);
    for (uint32_t i = 0; i < f->v->n_ops && rc == QN_OK; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[f->v->first_op + i];
        if (op->units != kgraph_units(&k, &k.ops.items[i]) ||
            op->n_rows != kgraph_rows(&k, &k.ops.items[i]))
            rc = fail(f->d, QN_EVERIFY, "operator %u (%s): units or rows do not fit its operands",
                      f->v->first_op + i, op_name(op->kind));
        else if (op->k != dot_length(f, op))
            rc = fail(f->d, QN_EVERIFY, "operator %u (%s): k: want %u, have %u", f->v->first_op + i,
                      op_name(op->kind), dot_length(f, op), op->k);
    }
    kgraph_fini(&k);
    return rc;
}

/* The weights that tensors point to have the tensors' shapes. */
static int check_weights(struct proof *f) {
    for (uint32_t i = 0; i < f->v->n_tensors; i++) {
        const struct prog_tensor *t = tensor(f, f->v->first_tensor + i);
        if (t->role != PROG_WEIGHT) continue;
        const struct prog_weight *w = &PROG(f->p, WEIGHT)[t->where];
        const uint32_t want =
            t->n_dims == 1 ? (uint32_t)DTYPE_F32 : PROG(f->p, MODEL)->weight_dtype;
        if (w->n_dims != t->n_dims || w->rows != t->shape[0] || w->dtype != t->dtype ||
            (w->n_dims == 2 && w->cols != t->shape[1]) || w->dtype != want)
            return fail(f->d, QN_EVERIFY, "weight %s does not fit its tensor",
                        program_string(f->p, w->name));
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

/* ---- deadlock ----------------------------------------------------------------------------- */

/* Runs the program in the abstract, as the workers would: a worker's list in order, JIT tasks as
 * soon as their event is activated. What runs is a fixed point that does not depend on timing
 * (a task that can run stays able to run), so one execution stands for all. */
static int check_deadlock(struct proof *f) {
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

/* Whether a task that triggers `from` is done before one that waits for `to` goes on. */
static bool leads_to(const struct proof *f, uint32_t from, uint32_t to) {
    return leads(f, f->reach, from, to);
}

/* Whether plain stores of a task that triggers `from` are visible to one that waits for `to`: only
 * counters are released and acquired, an event that rides on data orders nothing but that data. */
static bool visible_to(const struct proof *f, uint32_t from, uint32_t to) {
    return leads(f, f->acquire, from, to);
}

static void merge_row(const struct proof *f, uint64_t *closure, uint32_t into, uint32_t from) {
    for (uint64_t w = 0; w < f->words; w++)
        closure[into * f->words + w] |= closure[from * f->words + w];
}

/* Closes over events in reverse topological order; check_deadlock has shown that one exists. An
 * event leads to itself; in `acquire` one that rides on data leads nowhere and nothing leads on
 * through it. */
static int close_over_events(struct proof *f) {
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

static int check_ending(struct proof *f) {
    const struct prog_variant *v = f->v;
    if (PROG(f->p, EVENT)[v->end_event].n_tasks != 0)
        return fail(f->d, QN_EVERIFY, "the end event %u starts tasks", v->end_event);
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(f->p, TASK)[i];
        if (!leads_to(f, v->start_event, t->wait) || !leads_to(f, t->trigger, v->end_event)) {
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

/* ---- races -------------------------------------------------------------------------------- */

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
    int rc =
        fail(f->d, QN_EVERIFY,
             "race: %s (events %u -> %u) %s %s and %s (events %u -> %u) %s %s in the same "
             "bytes, from %llu of space %u; the first must end before the second begins, "
             "and no event makes it so",
             strbuf_text(&x), PROG(f->p, TASK)[a->task].wait, PROG(f->p, TASK)[a->task].trigger,
             a->rect.write ? "writes" : "reads", program_string(f->p, tensor(f, a->object)->name),
             strbuf_text(&y), PROG(f->p, TASK)[b->task].wait, PROG(f->p, TASK)[b->task].trigger,
             b->rect.write ? "writes" : "reads", program_string(f->p, tensor(f, b->object)->name),
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
    const bool flagged = tensor(f, object)->carry == CARRY_FLAG;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i; k < n; k++) {
            f->report.n_class_pairs++;
            if (!c[i].writes && !c[k].writes) continue;
            const bool both = c[i].writes && c[k].writes;
            const struct access_class *writer = c[i].writes ? &c[i] : &c[k];
            const struct access_class *other = writer == &c[i] ? &c[k] : &c[i];
            if (!both && (flagged ? leads_to(f, writer->trigger, other->wait)
                                  : visible_to(f, writer->trigger, other->wait)))
                continue;
            TRY(compare_tasks(f, writer, other));
        }
    return QN_OK;
}

/* Classes of two tensors that share bytes: all that touches the earlier one comes before all that
 * touches the later one, unless both only read. */
static int compare_between(struct proof *f, const struct access_class *a, uint32_t na,
                           const struct access_class *b, uint32_t nb) {
    for (uint32_t i = 0; i < na; i++)
        for (uint32_t k = 0; k < nb; k++) {
            f->report.n_class_pairs++;
            if (!a[i].writes && !b[k].writes) continue;
            if (!leads_to(f, a[i].trigger, b[k].wait)) TRY(compare_tasks(f, &a[i], &b[k]));
        }
    return QN_OK;
}

/* The bytes of a tensor, for finding those that share memory. */
struct extent {
    uint32_t space, object;
    uint32_t born; /* operator that writes it first */
    uint64_t start, end;
    uint32_t first_class, n_classes;
};

static int by_start(const void *a, const void *b) {
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
            const struct rect r = whole(f, a->object);
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
            classes[n_classes++] = (struct access_class){t->wait, t->trigger, i, 0, a->rect.write};
            extents[n_extents - 1].n_classes++;
        }
        classes[n_classes - 1].n++;
    }
    return n_extents;
}

static int check_races(struct proof *f) {
    const struct prog_variant *v = f->v;
    f->accesses.n = 0;
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) TRY(touch_all(f, i));
    qsort_r(f->accesses.items, f->accesses.n, sizeof *f->accesses.items, by_object_and_class,
            (void *)f->p);
    struct access_class *classes;
    struct extent *extents;
    TRY(ARENA_NEW(f->d, &f->arena, &classes, f->accesses.n));
    TRY(ARENA_NEW(f->d, &f->arena, &extents, f->accesses.n));
    const uint32_t n = group(f, classes, extents);
    qsort(extents, n, sizeof *extents, by_start);
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

/* ---- events that ride on data --------------------------------------------------------------- */

/* Whether rectangle a has all bytes of b, where both are of one tensor. */
static bool rect_has(const struct rect *a, const struct rect *b) {
    const uint64_t row_a = a->at / a->stride, row_b = b->at / b->stride;
    const uint64_t col_a = a->at % a->stride, col_b = b->at % b->stride;
    if (a->stride != b->stride || a->n_slices > 0) return false;
    if (a->run == a->stride) /* whole rows: bytes from start to end */
        return a->at <= b->at &&
               a->at + a->n_rows * a->stride >= b->at + (b->n_rows - 1) * b->stride + b->run;
    return row_a <= row_b && row_a + a->n_rows >= row_b + b->n_rows && col_a <= col_b &&
           col_a + a->run >= col_b + b->run;
}

/* Whether `reader` polls every flagged byte that `writer` stores. */
static bool polls(struct proof *f, uint32_t reader, uint32_t writer, const uint32_t *first_access,
                  const uint32_t *by_task) {
    for (uint32_t k = first_access[writer]; k < first_access[writer + 1]; k++) {
        const struct access *w = &f->accesses.items[by_task[k]];
        bool polled = !w->rect.write;
        for (uint32_t i = first_access[reader]; i < first_access[reader + 1] && !polled; i++) {
            const struct access *r = &f->accesses.items[by_task[i]];
            polled = !r->rect.write && r->object == w->object && rect_has(&r->rect, &w->rect);
        }
        if (!polled) return false;
    }
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

/* Whether the kernels of everybody who touches a flagged tensor know flags. */
static int check_flag_slots(struct proof *f) {
    for (uint32_t i = f->v->first_op; i < f->v->first_op + f->v->n_ops; i++) {
        const struct prog_op *op = &PROG(f->p, OP)[i];
        struct op_info info;
        op_describe(op->kind, &info);
        for (int n = 0; n < info.n_in + info.n_out; n++) {
            const bool in = n < info.n_in;
            const uint32_t index = in ? op->in[n] : op->out[n - info.n_in];
            const struct op_slot *slot = in ? &info.in[n] : &info.out[n - info.n_in];
            if (index == PROG_NONE || slot->flagged || tensor(f, index)->carry == CARRY_PLAIN)
                continue;
            return fail(f->d, QN_EVERIFY, "tensor %s carries flags, which %s cannot %s as its %s",
                        program_string(f->p, tensor(f, index)->name), info.name,
                        in ? "poll" : "store", slot->name);
        }
    }
    return QN_OK;
}

/* Whether each worker's last task leads to the end through counters: its stores and loads then come
 * before the next iteration, whatever rode on data in between. The control warp is done with an
 * empty task while another may run. */
static int check_list_ends(struct proof *f) {
    const struct prog_variant *v = f->v;
    const struct prog_list *lists =
        PROG(f->p, LIST) + (v - PROG(f->p, VARIANT)) * (uint64_t)f->p->n_workers;
    for (uint32_t w = 0; w < f->p->n_workers; w++) {
        const uint32_t *aot = PROG(f->p, AOT) + lists[w].first;
        uint32_t n = lists[w].n;
        while (n > 0 && PROG(f->p, TASK)[aot[n - 1]].kind == OP_NONE) n--;
        if (n == 0 || visible_to(f, PROG(f->p, TASK)[aot[n - 1]].trigger, v->end_event)) continue;
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

/* Nobody counts such an event: its dependents learn from flags alone that its triggers are done,
 * and that these have read all their inputs. So each dependent must poll all that each trigger
 * writes; plain data that a trigger writes besides would be there for nobody. */
static int check_data_events(struct proof *f) {
    const struct prog_variant *v = f->v;
    const uint32_t n = (uint32_t)f->accesses.n;
    uint32_t *first, *fill, *by_task;
    bool any = false;
    for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
        any = any || PROG(f->p, EVENT)[e].carry != CARRY_PLAIN;
    TRY(check_flag_slots(f));
    if (!any) return QN_OK;
    TRY(check_list_ends(f));
    if (v->n_jit_tasks > 0)
        return fail(f->d, QN_EVERIFY,
                    "events ride on data although there are %u JIT tasks: a worker that polls "
                    "inside a task serves no queue",
                    v->n_jit_tasks);
    TRY(ARENA_NEW(f->d, &f->arena, &first, v->n_tasks + 1));
    TRY(ARENA_NEW(f->d, &f->arena, &fill, v->n_tasks));
    TRY(ARENA_NEW(f->d, &f->arena, &by_task, n));
    for (uint32_t i = 0; i < n; i++) first[f->accesses.items[i].task - v->first_task + 1]++;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        first[i + 1] += first[i];
        fill[i] = first[i];
    }
    for (uint32_t i = 0; i < n; i++) by_task[fill[f->accesses.items[i].task - v->first_task]++] = i;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const struct prog_task *writer = &PROG(f->p, TASK)[v->first_task + i];
        const struct prog_event *e = &PROG(f->p, EVENT)[writer->trigger];
        if (e->carry == CARRY_PLAIN) continue;
        if (writer->trigger == v->end_event)
            return no_ride(f, writer->trigger, v->first_task + i, "ends the iteration with it");
        for (uint32_t k = first[i]; k < first[i + 1]; k++)
            if (f->accesses.items[by_task[k]].rect.write &&
                tensor(f, f->accesses.items[by_task[k]].object)->carry == CARRY_PLAIN)
                return no_ride(f, writer->trigger, v->first_task + i, "also writes plain data");
        for (uint32_t k = 0; k < e->n_tasks; k++)
            if (!polls(f, e->first_task + k - v->first_task, i, first, by_task))
                return no_ride(f, writer->trigger, e->first_task + k,
                               "does not poll all that it waits for");
    }
    if (PROG(f->p, EVENT)[v->start_event].carry != CARRY_PLAIN)
        return fail(f->d, QN_EVERIFY, "the start event cannot ride on data");
    return QN_OK;
}

/* A flagged tensor shares bytes with no tensor of any variant: a stale word would look like a flag.
 * Once per program. */
static int check_flag_space(struct proof *f) {
    const uint64_t n = f->p->section[SECTION_TENSOR].count;
    struct extent *extents;
    uint64_t n_extents = 0;
    TRY(ARENA_NEW(f->d, &f->arena, &extents, n));
    for (uint32_t i = 0; i < n; i++) {
        const struct prog_tensor *t = tensor(f, i);
        if (t->role == PROG_ACTIVATION)
            extents[n_extents++] =
                (struct extent){.object = i, .start = t->where, .end = t->where + t->bytes};
    }
    qsort(extents, n_extents, sizeof *extents, by_start);
    /* in order of their starts: compare each with the one that has reached furthest so far */
    uint64_t furthest = 0;
    uint64_t furthest_flagged = 0;
    for (uint64_t i = 0; i < n_extents; i++) {
        const bool flagged = tensor(f, extents[i].object)->carry == CARRY_FLAG;
        if (extents[i].start < (flagged ? furthest : furthest_flagged))
            return fail(f->d, QN_EVERIFY,
                        "tensor %s (at byte %llu) shares bytes with one that carries flags",
                        program_string(f->p, tensor(f, extents[i].object)->name),
                        (unsigned long long)extents[i].start);
        furthest = MAX(furthest, extents[i].end);
        if (flagged) furthest_flagged = MAX(furthest_flagged, extents[i].end);
    }
    return QN_OK;
}

/* ---- cover -------------------------------------------------------------------------------- */

/* Tiles that are disjoint (check_races) and whose areas add up to the output make it up whole. */
static int check_cover(struct proof *f) {
    const struct prog_variant *v = f->v;
    uint64_t *area;
    uint32_t *slices;
    TRY(ARENA_NEW(f->d, &f->arena, &area, v->n_ops));
    TRY(ARENA_NEW(f->d, &f->arena, &slices, v->n_ops));
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(f->p, TASK)[i];
        if (t->kind == OP_NONE) continue;
        struct op_info info;
        op_describe(t->kind, &info);
        const uint32_t op = t->op - v->first_op;
        if (info.split != SPLIT_SLICES) {
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
    TRY(check_deadlock(f));
    TRY(close_over_events(f));
    TRY(check_ending(f));
    TRY(check_races(f));
    TRY(check_data_events(f));
    return check_cover(f);
}

int task_verify(struct diag *d, const struct prog_header *p, struct verify_report *report) {
    struct proof f = {.d = d, .p = p};
    int rc = check_flag_space(&f);
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
