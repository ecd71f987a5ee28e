/* Mutation test of task_verify: thousands of random defects in correct programs.
 *
 * Harm is decided by an oracle that shares nothing with the verifier: it *runs* the mutated tables
 * in the abstract, two iterations long, on a memory of 4-byte cells that remember which tensor of
 * which iteration was written there last. A task that reads a cell with another tag, an iteration
 * that ends before all of its tasks have run, a task that runs twice or never, an event that does
 * not count exactly: harm. The schedules are adversarial: for every task there is one in which that
 * task is delayed until nothing else can run, so that every pair of unordered tasks is seen in both
 * orders. Workers' lists matter for deadlock only, because order by luck of placement is not order.
 * But where events ride on data, a worker also knows what it waited for earlier in its list
 * (docs/transport.md, rules 4 and 6). There a task runs after those before it in its list.
 *
 *   killed       the verifier rejects it and the oracle shows the harm
 *   cautious     the verifier rejects it, no schedule shows harm (the tables lie all the same)
 *   harmless     both pass it
 *   MISSED       the verifier passes it and the oracle shows harm: the test fails
 */
#include "task/random.h"
#include "base/checked.h"
#include "task/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#undef fail

enum { MAX_TASKS = 600, MAX_EVENTS = 400, MAX_CELLS = 1 << 17, MUTATIONS = 1200 };

/* ---- the oracle --------------------------------------------------------------------------- */

struct cells {
    uint32_t first, run, stride, rows, tag;
    bool write, flagged, sentinel;
};

struct world {
    const struct prog_header *p;
    const struct prog_variant *v;
    struct cells touch[MAX_TASKS][TASK_MAX_ACCESS];
    int n_touch[MAX_TASKS];
    uint32_t memory[MAX_CELLS]; /* tag of the last writer: tensor + 1 + iteration * 4096 */
    uint32_t n_workspace_cells;
    uint32_t n_cells; /* no task touches a cell behind them */
    uint32_t reset;   /* tag of what RESET_SENTINELS writes, 0: there is none */
    /* If lists count, the last task before it in its list, and the last empty one, + 1; else 0. */
    uint32_t before[MAX_TASKS][2];
};

/* Where a region lies in memory: workspace cells, then one cell per (layer, row, head unit). */
static struct cells locate(const struct world *w, const struct kgraph *k, const struct region *r) {
    const struct prog_tensor *t = &PROG(w->p, TENSOR)[w->v->first_tensor + (uint32_t)r->tensor];
    const struct tensor *kt = &k->tensors.items[r->tensor];
    const bool state = t->role == PROG_STATE;
    const bool packed = kt->layout == LAYOUT_PACKED;
    const uint64_t rows = packed ? packed_rows(t->shape[0]) : t->shape[0];
    uint32_t pitch = state ? t->shape[1] : (uint32_t)(t->bytes / rows / 4);
    uint32_t scale = t->transport == TRANSPORT_FLAG ? 2 : 1;
    /* part tensors count their columns in units of what follows */
    if (kt->n_dims == 3) scale *= t->shape[2];
    if (kt->n_dims == 4) scale = pitch / t->shape[1];
    const uint32_t per_cell = packed ? 2 : 1; /* elements */
    uint32_t base =
        state ? w->n_workspace_cells + (uint32_t)t->where * 4096 : (uint32_t)(t->where / 4);
    struct cells c = {.first = base + r->row0 * pitch + r->col0 * scale / per_cell,
                      .run = (r->col1 - r->col0) * scale / per_cell,
                      .stride = pitch,
                      .rows = r->row1 - r->row0,
                      .tag = (uint32_t)r->tensor + 1,
                      .write = r->write,
                      .flagged = t->transport == TRANSPORT_FLAG || t->transport == TRANSPORT_PAIR,
                      .sentinel = t->transport == TRANSPORT_SENTINEL};
    if (t->transport == TRANSPORT_SPACE)
        c.run = pitch;     /* its units are larger than the graph knows */
    if (r->n_slices > 0) { /* the slice's share of the elements stands for its items */
        uint64_t first, last;
        prog_slice(rows * pitch, r->slice, r->n_slices, &first, &last);
        c.first = base + (uint32_t)first;
        c.run = c.stride = (uint32_t)(last - first);
        c.rows = 1;
    }
    return c;
}

static uint64_t cells_end(const struct cells *c) {
    return c->first + (c->rows - 1) * (uint64_t)c->stride + c->run;
}

/* Fills w->before. An empty task may be done while the tasks before it still run. */
static void find_before(struct world *w) {
    bool rides = false;
    memset(w->before, 0, sizeof w->before);
    for (uint32_t e = w->v->first_event; e < w->v->first_event + w->v->n_events; e++)
        rides = rides || PROG(w->p, EVENT)[e].transport != TRANSPORT_COUNTER;
    for (uint32_t q = 0; rides && q < w->p->n_workers; q++) {
        const struct prog_list l = PROG(w->p, LIST)[q];
        uint32_t last[2] = {0, 0};
        for (uint32_t i = 0; i < l.n; i++) {
            const uint32_t task = PROG(w->p, AOT)[l.first + i] - w->v->first_task;
            const bool empty = PROG(w->p, TASK)[w->v->first_task + task].kind == OP_NONE;
            w->before[task][0] = empty ? 0 : last[0];
            w->before[task][1] = last[1];
            last[empty] = task + 1;
        }
    }
}

/* Whether the tasks before it in its list are done, if lists count. */
static bool list_is_at(const struct world *w, uint32_t task, const uint8_t *done) {
    const uint32_t *before = w->before[task];
    return (before[0] == 0 || done[before[0] - 1]) && (before[1] == 0 || done[before[1] - 1]);
}

static void prepare(struct world *w, const struct kgraph *k, const struct prog_header *p) {
    w->p = p;
    w->v = &PROG(p, VARIANT)[0];
    w->n_workspace_cells = (uint32_t)(p->workspace_bytes / 4);
    w->n_cells = MIN(w->n_workspace_cells, (uint32_t)MAX_CELLS);
    w->reset = 0;
    for (uint32_t i = 0; i < w->v->n_ops; i++) {
        const struct prog_op *op = &PROG(p, OP)[w->v->first_op + i];
        if (op->kind == OP_RESET_SENTINELS) w->reset = op->out[0] - w->v->first_tensor + 1;
    }
    find_before(w);
    for (uint32_t i = 0; i < w->v->n_tasks; i++) {
        const struct prog_task *t = &PROG(p, TASK)[w->v->first_task + i];
        const struct task task = {.kind = t->kind,
                                  .op = t->op == PROG_NONE ? -1 : (int32_t)(t->op - w->v->first_op),
                                  .row0 = t->row0,
                                  .row1 = t->row1,
                                  .unit0 = t->unit0,
                                  .unit1 = t->unit1};
        struct region r[TASK_MAX_ACCESS];
        w->n_touch[i] = task_access(k, &task, r);
        for (int a = 0; a < w->n_touch[i]; a++) {
            const struct cells c = w->touch[i][a] = locate(w, k, &r[a]);
            const uint64_t end = c.rows == 0 ? 0 : cells_end(&c);
            w->n_cells = (uint32_t)MIN(MAX(w->n_cells, end), (uint64_t)MAX_CELLS);
        }
    }
}

/* Whether all n cells have the tag. The loop has one way out, so that it becomes vectors. */
static bool all_have(const uint32_t *cells, uint32_t n, uint32_t tag) {
    uint32_t differ = 0;
    for (uint32_t i = 0; i < n; i++) differ |= cells[i] ^ tag;
    return differ == 0;
}

/* Runs one task on the tagged memory; false: it read something that is not its input. */
static bool run_task(struct world *w, uint32_t task, uint32_t iteration) {
    for (int pass = 0; pass < 2; pass++) /* reads first */
        for (int a = 0; a < w->n_touch[task]; a++) {
            const struct cells c = w->touch[task][a];
            if (c.write != (pass == 1)) continue;
            const uint32_t tag = c.tag + iteration * 4096;
            if (c.rows > 0 && c.run > 0 && cells_end(&c) > MAX_CELLS) return false;
            for (uint32_t r = 0; r < c.rows; r++) {
                uint32_t *cells = w->memory + c.first + r * c.stride;
                for (uint32_t i = 0; c.write && i < c.run; i++) cells[i] = tag;
                if (!c.write && !all_have(cells, c.run, tag)) return false;
            }
        }
    return true;
}

static bool is_there(const struct world *w, const struct cells *c, uint32_t tag,
                     uint32_t iteration) {
    if (c->flagged) return tag != 0 && tag / 4096 == iteration;
    return tag != 0 && tag % 4096 != w->reset;
}

/* Whether a task that polls would go on: every flagged cell has this iteration's number, every
 * word is no sentinel. What it then takes for its data is judged by run_task. */
static bool flags_are_there(const struct world *w, uint32_t task, uint32_t iteration) {
    for (int a = 0; a < w->n_touch[task]; a++) {
        const struct cells *c = &w->touch[task][a];
        if (c->write || (!c->flagged && !c->sentinel)) continue;
        for (uint32_t r = 0; r < c->rows; r++)
            for (uint32_t i = 0; i < c->run; i++) {
                const uint32_t cell = c->first + r * c->stride + i;
                if (cell < MAX_CELLS && !is_there(w, c, w->memory[cell], iteration)) return false;
            }
    }
    return true;
}

/* Runs two iterations with `late` delayed as long as anything else can run. true: harm. */
static bool schedule_harms(struct world *w, uint32_t late) {
    const struct prog_variant *v = w->v;
    static uint32_t have[MAX_EVENTS];
    static uint8_t done[MAX_TASKS];
    memset(w->memory, 0, w->n_cells * sizeof *w->memory);
    memset(have, 0, sizeof have);
    for (uint32_t it = 0; it < 2; it++) {
        memset(done, 0, sizeof done);
        uint32_t n_done = 0;
        have[v->start_event - v->first_event]++;
        for (bool progress = true; progress;) {
            progress = false;
            for (uint32_t k = 0; k <= v->n_tasks; k++) {
                const uint32_t i = k < v->n_tasks ? k : late;
                if (k == late && k < v->n_tasks) continue;
                if (k == v->n_tasks && progress) continue; /* the late one only when stuck */
                if (i >= v->n_tasks || done[i]) continue;
                const struct prog_task *t = &PROG(w->p, TASK)[v->first_task + i];
                const struct prog_event *e = &PROG(w->p, EVENT)[t->wait];
                if (e->transport == TRANSPORT_COUNTER &&
                    have[t->wait - v->first_event] < e->n_triggers * (it + 1))
                    continue;
                if (!list_is_at(w, i, done)) continue;
                if (!flags_are_there(w, i, it)) continue;
                if (!run_task(w, i, it)) return true;
                done[i] = 1;
                n_done++;
                have[t->trigger - v->first_event]++;
                progress = true;
                const struct prog_event *end = &PROG(w->p, EVENT)[v->end_event];
                if (have[v->end_event - v->first_event] >= end->n_triggers * (it + 1) &&
                    n_done < v->n_tasks)
                    return true; /* the next iteration would begin now */
            }
        }
        if (n_done < v->n_tasks) return true;
        for (uint32_t e = 0; e < v->n_events; e++)
            if (have[e] != PROG(w->p, EVENT)[v->first_event + e].n_triggers * (it + 1)) return true;
    }
    /* the last operator's output must be whole, too */
    const struct prog_op *sample = &PROG(w->p, OP)[v->first_op + v->n_ops - 1];
    const struct prog_tensor *token = &PROG(w->p, TENSOR)[sample->out[0]];
    for (uint32_t i = 0; i < token->bytes / 4; i++)
        if (w->memory[token->where / 4 + i] != sample->out[0] - v->first_tensor + 1 + 4096)
            return true;
    return false;
}

/* The workers' lists as queues, JIT tasks at once: does every task run exactly once? */
static bool queues_harm(const struct world *w) {
    const struct prog_variant *v = w->v;
    static uint32_t have[MAX_EVENTS], next[64];
    static uint8_t ran[MAX_TASKS], handed[MAX_EVENTS];
    memset(have, 0, sizeof have);
    memset(next, 0, sizeof next);
    memset(ran, 0, sizeof ran);
    memset(handed, 0, sizeof handed);
    have[v->start_event - v->first_event] = 1;
    for (bool progress = true; progress;) {
        progress = false;
        for (uint32_t e = 0; e < v->n_events; e++) { /* what a scheduler hands out */
            const struct prog_event *event = &PROG(w->p, EVENT)[v->first_event + e];
            if (handed[e] || have[e] < event->n_triggers || event->n_jit == 0) continue;
            handed[e] = 1;
            for (uint32_t k = 0; k < event->n_tasks; k++) {
                const uint32_t task = event->first_task + k;
                if (task < v->first_task || task >= v->first_task + v->n_tasks) return true;
                const struct prog_task *t = &PROG(w->p, TASK)[task];
                if (t->worker != PROG_JIT) continue;
                ran[task - v->first_task]++;
                have[t->trigger - v->first_event]++;
                progress = true;
            }
        }
        for (uint32_t q = 0; q < w->p->n_workers; q++) {
            const struct prog_list l = PROG(w->p, LIST)[q];
            while (next[q] < l.n) {
                const uint32_t task = PROG(w->p, AOT)[l.first + next[q]];
                const struct prog_task *t = &PROG(w->p, TASK)[task];
                if (have[t->wait - v->first_event] < PROG(w->p, EVENT)[t->wait].n_triggers) break;
                ran[task - v->first_task]++;
                have[t->trigger - v->first_event]++;
                next[q]++;
                progress = true;
            }
        }
    }
    for (uint32_t i = 0; i < v->n_tasks; i++)
        if (ran[i] != 1) return true;
    return false;
}

static bool oracle_harm(struct world *w, const struct kgraph *k, const struct prog_header *p) {
    prepare(w, k, p);
    if (queues_harm(w)) return true;
    for (uint32_t late = 0; late <= w->v->n_tasks; late++) /* n_tasks: nobody is late */
        if (schedule_harms(w, late)) return true;
    return false;
}

/* ---- mutations ---------------------------------------------------------------------------- */

#define TASKS(p)   ((struct prog_task *)PROG(p, TASK))
#define EVENTS(p)  ((struct prog_event *)PROG(p, EVENT))
#define TENSORS(p) ((struct prog_tensor *)PROG(p, TENSOR))
#define AOT(p)     ((uint32_t *)PROG(p, AOT))

static uint32_t any_task(const struct prog_header *p) {
    return random_below((uint32_t)p->section[SECTION_TASK].count);
}

static uint32_t any_event(const struct prog_header *p) {
    return random_below((uint32_t)p->section[SECTION_EVENT].count);
}

static void lower_a_trigger_count(struct prog_header *p) {
    EVENTS(p)[any_event(p)].n_triggers -= 1;
}

static void redirect_a_trigger(struct prog_header *p) {
    TASKS(p)[any_task(p)].trigger = any_event(p);
}

/* Keeps all counts right: only the order suffers. */
static void swap_two_triggers(struct prog_header *p) {
    struct prog_task *a = &TASKS(p)[any_task(p)], *b = &TASKS(p)[any_task(p)];
    const uint32_t t = a->trigger;
    a->trigger = b->trigger;
    b->trigger = t;
}

static void redirect_a_trigger_and_count(struct prog_header *p) {
    struct prog_task *t = &TASKS(p)[any_task(p)];
    const uint32_t e = any_event(p);
    EVENTS(p)[t->trigger].n_triggers--;
    EVENTS(p)[e].n_triggers++;
    t->trigger = e;
}

static void redirect_a_wait(struct prog_header *p) {
    TASKS(p)[any_task(p)].wait = any_event(p);
}

static void swap_two_tiles(struct prog_header *p) {
    struct prog_task *a = &TASKS(p)[any_task(p)], *b = &TASKS(p)[any_task(p)];
    const struct prog_task t = *a;
    a->kind = b->kind, a->op = b->op, a->row0 = b->row0, a->row1 = b->row1;
    a->unit0 = b->unit0, a->unit1 = b->unit1;
    b->kind = t.kind, b->op = t.op, b->row0 = t.row0, b->row1 = t.row1;
    b->unit0 = t.unit0, b->unit1 = t.unit1;
}

static void shrink_a_tile(struct prog_header *p) {
    struct prog_task *t = &TASKS(p)[any_task(p)];
    if (t->unit1 - t->unit0 > 1) t->unit1--;
}

/* The area stays what it was: a hole on one side, two writers on the other. */
static void shift_a_tile(struct prog_header *p) {
    struct prog_task *t = &TASKS(p)[any_task(p)];
    const uint32_t step = random_below(2) ? 1 : UINT32_MAX;
    if (random_below(2)) {
        t->row0 += step;
        t->row1 += step;
    } else {
        t->unit0 += step;
        t->unit1 += step;
    }
}

static void alias_two_buffers(struct prog_header *p) {
    const uint32_t n = (uint32_t)p->section[SECTION_TENSOR].count;
    struct prog_tensor *a = &TENSORS(p)[random_below(n)], *b = &TENSORS(p)[random_below(n)];
    if (a->role == PROG_ACTIVATION && b->role == PROG_ACTIVATION) a->where = b->where;
}

static void move_a_buffer(struct prog_header *p) {
    struct prog_tensor *t = &TENSORS(p)[random_below((uint32_t)p->section[SECTION_TENSOR].count)];
    if (t->role == PROG_ACTIVATION)
        t->where = (t->where + 64 * random_below(64)) % p->workspace_bytes;
}

static void swap_two_list_entries(struct prog_header *p) {
    const uint32_t n = (uint32_t)p->section[SECTION_AOT].count;
    if (n == 0) return;
    uint32_t *a = &AOT(p)[random_below(n)], *b = &AOT(p)[random_below(n)];
    const uint32_t t = *a;
    *a = *b;
    *b = t;
}

/* A consistent swap of two placements. */
static void swap_two_placements(struct prog_header *p) {
    const uint32_t n = (uint32_t)p->section[SECTION_AOT].count;
    if (n == 0) return;
    uint32_t *a = &AOT(p)[random_below(n)], *b = &AOT(p)[random_below(n)];
    const uint32_t t = *a;
    *a = *b;
    *b = t;
    const uint16_t w = TASKS(p)[*a].worker;
    TASKS(p)[*a].worker = TASKS(p)[*b].worker;
    TASKS(p)[*b].worker = w;
}

static void move_a_task_to_another_queue(struct prog_header *p) {
    struct prog_task *t = &TASKS(p)[any_task(p)];
    t->worker = random_below(2) ? (uint16_t)PROG_JIT : (uint16_t)random_below(p->n_workers);
}

static void duplicate_a_list_entry(struct prog_header *p) {
    const uint32_t n = (uint32_t)p->section[SECTION_AOT].count;
    if (n > 0) AOT(p)[random_below(n)] = AOT(p)[random_below(n)];
}

static void turn_an_event_into_data(struct prog_header *p) {
    EVENTS(p)[any_event(p)].transport ^= TRANSPORT_FLAG;
}

static void flag_a_tensor_in_place(struct prog_header *p) {
    struct prog_tensor *t = &TENSORS(p)[random_below((uint32_t)p->section[SECTION_TENSOR].count)];
    if (t->role != PROG_ACTIVATION) return;
    const uint32_t transport =
        (t->transport + 1 + random_below(TRANSPORT_OWN)) % (TRANSPORT_OWN + 1);
    if (t->transport == TRANSPORT_FLAG) t->bytes /= 2;
    if (transport == TRANSPORT_FLAG) t->bytes *= 2;
    t->transport = transport;
}

static const struct {
    const char *name;
    void (*apply)(struct prog_header *p);
} mutations[] = {
    {"drop a dependency", NULL}, /* before fusion: every table stays consistent */
    {"lower a trigger count", lower_a_trigger_count},
    {"redirect a trigger", redirect_a_trigger},
    {"redirect a trigger and count", redirect_a_trigger_and_count},
    {"swap two triggers", swap_two_triggers},
    {"redirect a wait", redirect_a_wait},
    {"swap two tiles", swap_two_tiles},
    {"shrink a tile", shrink_a_tile},
    {"shift a tile", shift_a_tile},
    {"alias two buffers", alias_two_buffers},
    {"move a buffer", move_a_buffer},
    {"swap two list entries", swap_two_list_entries},
    {"swap two placements", swap_two_placements},
    {"move a task to another queue", move_a_task_to_another_queue},
    {"duplicate a list entry", duplicate_a_list_entry},
    {"an event changes its transport", turn_an_event_into_data},
    {"a tensor changes its transport", flag_a_tensor_in_place},
};

/* Latent attention: queries from the stream; or from a latent of their own, with experts. */
static struct model_spec of_latents(uint32_t q_rank) {
    struct model_spec s = fixture_spec(2, 32, 3, 1, 20, 48, 130);
    s.latent = (struct latent_spec){
        .kv_rank = 24, .q_rank = q_rank, .rope = 8, .v_dim = 10, .scale = 0.25f};
    if (q_rank != 0)
        s.experts = (struct experts_spec){
            .n = 6, .top_k = 2, .width = 24, .shared_width = 16, .groups = 3, .top_groups = 2};
    return s;
}

/* As a CPU runs it: attention in pieces where there is a single row. */
static uint32_t latent_cuts(uint32_t n_rows) {
    return n_rows == 1 ? KGRAPH_CUT_ATTENTION : 0;
}

/* Compiles, dropping one random producer from one random consumer's dependencies if asked to. */
static struct prog_header *compile(struct fixture *f, const struct model_spec *spec,
                                   uint32_t n_rows, const struct task_options *o, bool drop) {
    struct diag d = {0};
    struct prog_header *p = NULL;
    int (*const stages[N_TASK_STAGES])(struct diag *, struct tgraph *) = {
        decompose, memory_plan, depend, event_fuse, normalize, linearize, place, transport};
    *f = (struct fixture){0};
    kgraph_init(&f->kernel, &f->arena, spec, n_rows, n_rows < 8 ? n_rows : 8, 256);
    tgraph_init(&f->tasks, &f->arena, &f->kernel, o);
    uint32_t cuts = 0;
    if (n_rows == 1) cuts = KGRAPH_CUT_ATTENTION | KGRAPH_CUT_QKV;
    if (n_rows == 1 && o->transport_bytes > 0) cuts |= KGRAPH_JOIN_HEADS;
    if (n_rows == PACK_ROWS)
        cuts = o->transport_bytes == 0 ? (o->device.n_workers % 2 == 0 ? FIXTURE_MANY : FIXTURE_CUT)
               : spec->hidden % PACK_K == 0   ? FIXTURE_SENTINELS
               : o->device.n_workers % 2 == 0 ? FIXTURE_FEW
                                              : FIXTURE_WHOLE;
    if (spec_is_latent(spec)) cuts = latent_cuts(n_rows);
    if (spec->experts.n != 0 && n_rows == PACK_ROWS)
        cuts = o->transport_bytes == 0 ? FIXTURE_GROUP : FIXTURE_SENTINELS;
    if (n_rows == 6) cuts |= FIXTURE_BANDS;
    assert_int_equal(fixture_graph(&d, &f->kernel, cuts), QN_OK);
    for (int i = 0; i < N_TASK_STAGES; i++) {
        assert_int_equal(stages[i](&d, &f->tasks), QN_OK);
        while (i == STAGE_DEPEND && drop) {
            struct task_deps *deps = &f->tasks.deps[random_below((uint32_t)f->tasks.tasks.n)];
            if (deps->n == 0) continue;
            struct task_range *r;
            assert_int_equal(ARENA_NEW(&d, &f->arena, &r, deps->n), QN_OK);
            memcpy(r, deps->ranges, deps->n * sizeof *r);
            const uint32_t k = random_below(deps->n);
            if (r[k].last - r[k].first > 1) {
                if (random_below(2))
                    r[k].first++;
                else
                    r[k].last--;
                *deps = (struct task_deps){r, deps->n};
            } else {
                r[k] = r[deps->n - 1];
                *deps = (struct task_deps){r, deps->n - 1};
                if (deps->n > 1 && k < deps->n && r[k].first > r[deps->n - 1].first) continue;
            }
            break;
        }
    }
    assert_int_equal(fixture_program(&d, f, 256, &p), QN_OK);
    return p;
}

static void mutate(const struct model_spec *spec, uint32_t n_rows, const struct task_options *o,
                   uint32_t counts[COUNT_OF(mutations)][4]) {
    static struct world w;
    for (uint32_t i = 0; i < MUTATIONS; i++) {
        const uint32_t kind = i % (uint32_t)COUNT_OF(mutations);
        struct fixture f;
        struct prog_header *p = compile(&f, spec, n_rows, o, mutations[kind].apply == NULL);
        assert_true(PROG(p, VARIANT)->n_tasks <= MAX_TASKS &&
                    PROG(p, VARIANT)->n_events <= MAX_EVENTS);
        if (mutations[kind].apply != NULL) mutations[kind].apply(p);
        struct diag d = {0};
        int rc = program_check(&d, "mutant", p, p->total_bytes);
        if (rc == QN_OK) rc = task_verify(&d, p, NULL);
        const bool harm = d.code == QN_EFORMAT || oracle_harm(&w, &f.kernel, p);
        if (harm && rc == QN_OK) print_error("MISSED: %s (mutation %u)\n", mutations[kind].name, i);
        counts[kind][(rc == QN_OK) * 2 + !harm]++;
        free(p);
        fixture_fini(&f);
    }
}

/* Whose activations are packed by who writes them: with 8 rows they are sentinels before. */
static struct model_spec packing(void) {
    return fixture_spec(1, PACK_K, 2, 1, PACK_K / 2, PACK_K, 192);
}

/* The same with experts. */
static struct model_spec packing_experts(bool shared) {
    struct model_spec s = fixture_spec(2, PACK_K, 2, 1, PACK_K / 2, PACK_K, 192);
    s.experts = (struct experts_spec){.n = 6, .top_k = 2, .width = 40};
    s.experts.shared_width = shared ? PACK_K : 0;
    return s;
}

/* Layers with experts, of which the second also has shared ones and a dense layer. */
static struct model_spec of_experts(bool shared) {
    struct model_spec s = fixture_spec(2, 32, 2, 1, 16, 48, 130);
    s.experts = (struct experts_spec){.n = 6, .top_k = 2, .width = 40};
    if (!shared) return s;
    s.experts.shared_width = 24;
    s.experts.shared_gate = 1;
    s.experts.dense[0] = 1;
    return s;
}

static void every_harmful_mutation_is_caught(void **state) {
    (void)state;
    const struct model_spec specs[] = {fixture_spec(2, 32, 2, 1, 16, 48, 192),
                                       fixture_spec(1, 48, 3, 3, 16, 64, 130)};
    const uint32_t rows[] = {1, 2, 6, PACK_ROWS};
    uint32_t counts[COUNT_OF(mutations)][4] = {0}; /* killed, cautious, missed, harmless */
    random_state = 0x9e3779b97f4a7c15u;
    for (size_t s = 0; s < COUNT_OF(specs); s++)
        for (size_t r = 0; r < COUNT_OF(rows); r++) {
            struct task_options o = {.device.n_workers = 2 + (uint32_t)r, .tasks_per_worker = 1};
            if (rows[r] == 6) o.tiles[OP_QKV].row_tiles = o.tiles[OP_LINEAR].row_tiles = 2;
            mutate(&specs[s], rows[r], &o, counts);
            if (rows[r] == 6) continue;
            o.launch = LAUNCH_ALL_AOT; /* events may ride on data */
            o.transport_bytes = 1 << 20;
            mutate(&specs[s], rows[r], &o, counts);
        }
    const struct model_spec packs = packing();
    const struct task_options o = {.device.n_workers = 3,
                                   .tasks_per_worker = 1,
                                   .launch = LAUNCH_ALL_AOT,
                                   .transport_bytes = 1 << 20};
    mutate(&packs, PACK_ROWS, &o, counts);
    for (uint32_t i = 0; i < 4; i++) {
        const struct model_spec latents = of_latents(i % 2 * 16);
        struct task_options o_latents = {.device.n_workers = 2 + i, .tasks_per_worker = 1};
        if (i >= 2) o_latents.launch = LAUNCH_ALL_AOT;
        if (i == 3) o_latents.tiles[OP_LATENT_HEADS].row_tiles = 2;
        mutate(&latents, i % 3 == 0 ? 6 : 1, &o_latents, counts);
    }
    for (uint32_t i = 0; i < 6; i++) { /* a list that an operator of the iteration writes */
        const struct model_spec experts = of_experts(i % 2 == 1);
        struct task_options by_list = {.device.n_workers = 2 + i, .tasks_per_worker = 1};
        if (i >= 2) by_list.launch = LAUNCH_ALL_AOT;
        if (i == 3) by_list.tiles[OP_EXPERT_DOWN].row_tiles = 2;
        mutate(&experts, i < 2 ? 2 : i < 4 ? 6 : PACK_ROWS, &by_list, counts);
    }
    for (uint32_t i = 0; i < 2; i++) { /* of a single row what it names rides on data */
        const struct model_spec experts = of_experts(i == 1);
        const struct task_options rides = {.device.n_workers = 3 + i,
                                           .tasks_per_worker = 1,
                                           .launch = LAUNCH_ALL_AOT,
                                           .transport_bytes = 1 << 20};
        mutate(&experts, 1, &rides, counts);
    }
    for (uint32_t i = 0; i < 2; i++) { /* of several rows their activations are sentinels */
        const struct model_spec experts = packing_experts(i == 1);
        struct task_options rides = o;
        rides.tiles[OP_ROUTER].row_tiles = 2 - i;
        mutate(&experts, PACK_ROWS, &rides, counts);
    }
    uint32_t killed = 0, missed = 0;
    print_message("%-30s %8s %8s %8s %8s\n", "mutation", "killed", "cautious", "harmless",
                  "MISSED");
    for (size_t k = 0; k < COUNT_OF(mutations); k++) {
        print_message("%-30s %8u %8u %8u %8u\n", mutations[k].name, counts[k][0], counts[k][1],
                      counts[k][3], counts[k][2]);
        killed += counts[k][0];
        missed += counts[k][2];
    }
    print_message("kill rate: %u of %u harmful mutations (%.2f %%)\n", killed, killed + missed,
                  100.0 * killed / (killed + missed));
    assert_int_equal(missed, 0);
    assert_true(killed > 2000);
}

/* The oracle itself must find correct programs harmless, or its verdicts mean nothing. */
static void unmutated_programs_are_harmless(void **state) {
    (void)state;
    static struct world w;
    const struct model_spec small = fixture_spec(2, 32, 2, 1, 16, 48, 192), packs = packing();
    const uint32_t rows[] = {1, 2, 6, PACK_ROWS, PACK_ROWS};
    uint32_t n_transported[TRANSPORT_OWN + 1] = {0};
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        const struct model_spec spec = r + 1 < COUNT_OF(rows) ? small : packs;
        struct task_options o = {.device.n_workers = 3, .tasks_per_worker = 1};
        if (rows[r] == 6) o.tiles[OP_QKV].row_tiles = o.tiles[OP_LINEAR].row_tiles = 2;
        struct fixture f;
        struct prog_header *p = compile(&f, &spec, rows[r], &o, false);
        assert_false(oracle_harm(&w, &f.kernel, p));
        free(p);
        fixture_fini(&f);
        o.launch = LAUNCH_ALL_AOT;
        o.transport_bytes = 1 << 20;
        p = compile(&f, &spec, rows[r], &o, false);
        assert_false(oracle_harm(&w, &f.kernel, p));
        for (uint64_t i = 0; i < p->section[SECTION_TENSOR].count; i++)
            n_transported[TENSORS(p)[i].transport]++;
        free(p);
        fixture_fini(&f);
    }
    for (uint32_t n_rows = 1; n_rows <= 6; n_rows += 5) {
        const struct task_options o = {.device.n_workers = 3, .tasks_per_worker = 1};
        const struct model_spec latents = of_latents(16);
        struct fixture f;
        struct prog_header *p = compile(&f, &latents, n_rows, &o, false);
        assert_false(oracle_harm(&w, &f.kernel, p));
        free(p);
        fixture_fini(&f);
    }
    for (int shared = 0; shared < 2; shared++) {
        const struct task_options o = {.device.n_workers = 3, .tasks_per_worker = 1};
        const struct model_spec experts = of_experts(shared != 0);
        struct fixture f;
        struct prog_header *p = compile(&f, &experts, 6, &o, false);
        assert_false(oracle_harm(&w, &f.kernel, p));
        free(p);
        fixture_fini(&f);
        const struct task_options rides = {.device.n_workers = 3,
                                           .tasks_per_worker = 1,
                                           .launch = LAUNCH_ALL_AOT,
                                           .transport_bytes = 1 << 20};
        p = compile(&f, &experts, 1, &rides, false);
        assert_false(oracle_harm(&w, &f.kernel, p));
        free(p);
        fixture_fini(&f);
        const struct model_spec several = packing_experts(shared != 0);
        p = compile(&f, &several, PACK_ROWS, &rides, false);
        assert_false(oracle_harm(&w, &f.kernel, p));
        free(p);
        fixture_fini(&f);
    }
    for (int c = 0; c <= TRANSPORT_OWN; c++) assert_true(n_transported[c] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unmutated_programs_are_harmless),
        cmocka_unit_test(every_harmful_mutation_is_caught),
    };
    return cmocka_run_group_tests_name("mutations", tests, NULL, NULL);
}
