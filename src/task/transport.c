/* transport.c - which events are counters and which ride on the data itself.
 *
 * A counter costs a consumer three trips one after the other: the producers' fence and add, the
 * poll, the load of the data. Small data can itself say that it is stored: the producer stores
 * {value, iteration} in one access, and the consumer polls the elements it needs. That is one trip.
 *
 * An event becomes data when
 *   - each of its producers (the tasks that trigger it) writes activations that can carry a flag
 *     (op.def marks the operands), and besides these only state, which the next iteration reads;
 *   - each of its dependents reads all of some activation of each producer. Every element of a
 *     result depends on all that its producer read, so a dependent that has read the result knows
 *     that the producer's reads are done. (Other results of the producer carry their own flags.)
 *     Or dependents that trigger one event together read all of it, so that every later task behind
 *     them waits for all of these, and they write no plain data or producers read none: then the
 *     order of a single producer and a single dependent does not matter;
 *   - no dependent would poll more than options.transport_bytes with flags;
 *   - the variant has no JIT tasks: a worker that polls inside a task claims none, so the task
 *     that it waits for must have a worker.
 * And since only counters release and acquire,
 *   - plain data may be read behind counters alone. A worker that has waited for a counter sees
 *     what is behind it in all later tasks, too: a task may also read what an earlier task of its
 *     worker could have read. If some task reads other plain tensors, nothing rides in this
 *     variant;
 *   - plain tensors that share bytes must be apart in the same sense. A worker does its tasks one
 *     after the other, so its next trigger of a counter releases all that it did before (vector
 *     clocks). memory_plan.c helps. Otherwise nothing rides;
 *   - every worker's last task of the iteration must lead to the iteration's end through counters
 *     alone: all that the worker stored before, the KV cache included, is then released to the next
 *     iteration, and no store is still under way. Otherwise nothing rides.
 *
 * A tensor that all its readers round to 16 bits travels as pairs: two elements and a flag in 8
 * bytes.
 *
 * A graph that has RESET_SENTINELS, of 2 to SENTINEL_ROWS rows, has no flags. Until a word is
 * stored it is a *sentinel*, all bits set, and as many bytes are polled as would be read.
 * RESET_SENTINELS makes all words of these tensors sentinels again, after the last task that
 * touches them; counters and clocks must show that order, too.
 *
 * In dense models only LINEAR reads the residual stream of several rows; experts read what the O
 * projection made, but not what EXPERT_DOWN made of that. The tasks of a LINEAR have the columns of
 * the LINEAR or EXPERT_DOWN before and, where possible, its workers (place.c): such a tensor is its
 * workers' *own*. A worker does one task after the other, so the tensor needs no event, no event
 * stands for it, and two places are enough for a chain of them, which all layers of a dense model
 * are.
 *
 * The tensors that an event on data guards are stored flagged, for all their readers, in a space
 * that nothing else ever uses: a stale word must not look like a flag. A flagged element is written
 * once per iteration, and the end event lies between two iterations: every reader of the last value
 * is done. task_verify proves all of this again.
 */
#include "base/checked.h"
#include "task/program.h"
#include "task/task_graph.h"

#include <string.h>

enum { ALIGN_BYTES = 256 };

struct pass {
    struct diag *d;
    struct tgraph *g;
    struct arena scratch;
    uint32_t *first;       /* [n_events + 1] range of `writers` */
    int32_t *writers;      /* tasks that trigger each event */
    struct region *access; /* [n_tasks][TASK_MAX_ACCESS], those of tasks that were looked at */
    int *n_access;         /* [n_tasks] + 1; 0: not looked at */
    int32_t reset;     /* the tensor that RESET_SENTINELS writes; NO_TENSOR: the graph has none */
    uint8_t *possible; /* [n_tensors] the shortest transport that all its operators know */
    uint64_t *closure; /* [n_events][words] events that one leads to through counters alone */
    uint64_t words;
};

static bool is_state(const struct pass *p, int32_t tensor) {
    return p->g->kernel->tensors.items[tensor].role == TENSOR_STATE;
}

static bool is_own(const struct pass *p, int32_t tensor) {
    return p->g->tensor_transport[tensor] == TRANSPORT_OWN;
}

/* Whether a write is a result that a dependent of the task may read. */
static bool is_result(const struct pass *p, const struct region *r) {
    return r->write && !is_state(p, r->tensor) && !is_own(p, r->tensor);
}

static void note_slot(struct pass *p, int32_t tensor, const struct op_slot *slot, bool any) {
    if (tensor == NO_TENSOR) return;
    if (p->possible[tensor] == TRANSPORT_SENTINEL) {
        if (!slot->sentinel) p->possible[tensor] = TRANSPORT_COUNTER;
        return;
    }
    if (!slot->paired && p->possible[tensor] == TRANSPORT_PAIR)
        p->possible[tensor] = TRANSPORT_FLAG;
    if (!slot->flagged || !any) p->possible[tensor] = TRANSPORT_COUNTER;
}

/* What an activation's shape and type allow. */
static uint8_t best_transport(const struct pass *p, const struct tensor *x) {
    if (x->role != TENSOR_ACTIVATION || x->dtype == DTYPE_I32) return TRANSPORT_COUNTER;
    if (p->reset != NO_TENSOR) return TRANSPORT_SENTINEL;
    if (x->layout == LAYOUT_PACKED) return TRANSPORT_COUNTER;
    const bool pairs = p->g->kernel->n_rows == 1 && x->n_dims == 2 && x->shape[1] % 2 == 0 &&
                       (uint64_t)x->shape[0] * x->shape[1] <= STAGED_COLUMNS;
    return pairs ? TRANSPORT_PAIR : TRANSPORT_FLAG;
}

/* Bytes per element of a tensor that is polled. */
static uint64_t carried_bytes(const struct pass *p, int32_t tensor) {
    switch (p->possible[tensor]) {
    case TRANSPORT_SENTINEL: return dtype_bytes(p->g->kernel->tensors.items[tensor].dtype);
    case TRANSPORT_PAIR: return 4;
    default: return 8;
    }
}

/* Matrix products of packed activations of several rows know no flags at all. */
static bool knows_flags(const struct kgraph *k, const struct kop *op) {
    return k->n_rows == 1 || k->tensors.items[op->in[0]].layout != LAYOUT_PACKED;
}

/* Fills `possible`: only activations that marked operands of op.def alone touch can be polled. */
static void find_flaggable(struct pass *p) {
    const struct kgraph *k = p->g->kernel;
    p->reset = NO_TENSOR;
    for (size_t i = 0; i < k->ops.n; i++)
        if (k->ops.items[i].kind == OP_RESET_SENTINELS) p->reset = k->ops.items[i].out[0];
    for (size_t i = 0; i < k->tensors.n; i++)
        p->possible[i] = best_transport(p, &k->tensors.items[i]);
    for (size_t i = 0; i < k->ops.n; i++) {
        const struct kop *op = &k->ops.items[i];
        const struct op_info *info = op_info_of(op->kind);
        const bool any = knows_flags(k, op);
        for (int n = 0; n < info->n_in; n++) note_slot(p, op->in[n], &info->in[n], any);
        for (int n = 0; n < info->n_out; n++) note_slot(p, op->out[n], &info->out[n], any);
    }
}

static int prepare(struct pass *p) {
    const struct tgraph *g = p->g;
    uint32_t *fill;
    TRY(ARENA_NEW(p->d, &p->scratch, &p->first, g->events.n + 1));
    TRY(ARENA_NEW(p->d, &p->scratch, &fill, g->events.n));
    TRY(ARENA_NEW(p->d, &p->scratch, &p->writers, g->tasks.n));
    TRY(ARENA_NEW(p->d, &p->scratch, &p->access, g->tasks.n * TASK_MAX_ACCESS));
    TRY(ARENA_NEW(p->d, &p->scratch, &p->n_access, g->tasks.n));
    TRY(ARENA_NEW(p->d, &p->scratch, &p->possible, g->kernel->tensors.n));
    find_flaggable(p);
    for (size_t i = 0; i < g->tasks.n; i++) p->first[g->tasks.items[i].trigger + 1]++;
    for (size_t e = 0; e < g->events.n; e++) {
        p->first[e + 1] += p->first[e];
        fill[e] = p->first[e];
    }
    for (size_t i = 0; i < g->tasks.n; i++)
        p->writers[fill[g->tasks.items[i].trigger]++] = (int32_t)i;
    return QN_OK;
}

/* The *n regions of a task, found on the first call: in most graphs nothing can ride, which a few
 * tasks show. */
static const struct region *access_of(const struct pass *p, int32_t task, int *n) {
    struct region *r = p->access + (size_t)task * TASK_MAX_ACCESS;
    int *have = &p->n_access[task];
    if (*have == 0) *have = 1 + task_access(p->g->kernel, &p->g->tasks.items[task], r);
    *n = *have - 1;
    return r;
}

/* Whether all results of the task can be flagged, and there is at least one. State may be written,
 * too. */
static bool writes_can_be_flagged(const struct pass *p, int32_t task) {
    int n;
    const struct region *r = access_of(p, task, &n);
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (!is_result(p, &r[i])) continue;
        if (p->possible[r[i].tensor] == TRANSPORT_COUNTER) return false;
        any = true;
    }
    return any;
}

/* A region with its columns in place of its rows. */
static struct region turned(const struct region *r) {
    struct region t = *r;
    t.row0 = r->col0;
    t.row1 = r->col1;
    t.col0 = r->row0;
    t.col1 = r->row1;
    return t;
}

/* The first column of the written region that `reader` does not read in all of its rows, if all
 * columns before `from` are read. turn: the same of rows; then `write` is turned. */
static uint32_t read_until(const struct pass *p, int32_t reader, const struct region *write,
                           bool turn, uint32_t from) {
    int n;
    const struct region *all = access_of(p, reader, &n);
    for (int i = 0; i < n; i++) {
        const struct region r = turn ? turned(&all[i]) : all[i];
        if (!r.write && r.tensor == write->tensor && r.row0 <= write->row0 &&
            r.row1 >= write->row1 && r.col0 <= from && r.col1 > from)
            from = r.col1;
    }
    return from;
}

/* Whether readers [first, first + n), sorted by what they read, together read all of a region: each
 * some of its columns, or each some of its rows. */
static bool read_all_of(const struct pass *p, int32_t first, uint32_t n,
                        const struct region *write) {
    for (int turn = 0; turn < 2; turn++) {
        const struct region w = turn != 0 ? turned(write) : *write;
        uint32_t from = w.col0;
        for (uint32_t i = 0; i < n && from < w.col1; i++)
            from = read_until(p, first + (int32_t)i, &w, turn != 0, from);
        if (from >= w.col1) return true;
    }
    return false;
}

/* Whether readers [first, first + n) together read all of some activation that the writer writes.
 */
static bool read_a_result_of(const struct pass *p, int32_t first, uint32_t n, int32_t writer) {
    int n_regions;
    const struct region *w = access_of(p, writer, &n_regions);
    for (int j = 0; j < n_regions; j++)
        if (is_result(p, &w[j]) && read_all_of(p, first, n, &w[j])) return true;
    return false;
}

/* Whether a task reads the same regions in every iteration. */
static bool reads_are_fixed(const struct pass *p, int32_t task) {
    return op_split_of(p->g->tasks.items[task].kind) != SPLIT_SLICES;
}

/* Whether the task touches plain activations that it writes (`write`) or reads, by what is flagged
 * so far. */
static bool touches_plain(const struct pass *p, int32_t task, bool write) {
    int n;
    const struct region *r = access_of(p, task, &n);
    for (int i = 0; i < n; i++)
        if (r[i].write == write && !is_state(p, r[i].tensor) &&
            !p->g->tensor_transport[r[i].tensor])
            return true;
    return false;
}

static bool touches_state(const struct pass *p, int32_t task) {
    int n;
    const struct region *r = access_of(p, task, &n);
    for (int i = 0; i < n; i++)
        if (is_state(p, r[i].tensor)) return true;
    return false;
}

/* Bytes that a task polls when all the activations that it reads are flagged. Sentinels do not
 * count: their bytes are those of plain activations. */
static uint64_t polled_bytes(const struct pass *p, int32_t task) {
    int n;
    const struct region *r = access_of(p, task, &n);
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        const struct tensor *x = &p->g->kernel->tensors.items[r[i].tensor];
        if (r[i].write || x->role != TENSOR_ACTIVATION) continue;
        if (p->possible[r[i].tensor] == TRANSPORT_SENTINEL || is_own(p, r[i].tensor)) continue;
        bytes += region_elements(p->g->kernel, &r[i]) * carried_bytes(p, r[i].tensor);
    }
    return bytes;
}

/* An event's dependents, tasks [first, first + n), and its producers. */
struct hand_over {
    int32_t first;
    uint32_t n, n_writers;
    const int32_t *writers;
};

/* For each tensor that all writers write, the smallest region that has all their writes; returns
 * how many. */
static int find_hulls(const struct pass *p, const struct hand_over *h,
                      struct region hulls[OP_MAX_OUT]) {
    uint32_t writes[OP_MAX_OUT] = {0};
    int n_hulls = 0, n_whole = 0;
    for (uint32_t w = 0; w < h->n_writers; w++) {
        int n;
        const struct region *r = access_of(p, h->writers[w], &n);
        for (int i = 0; i < n; i++) {
            int k = 0;
            if (!is_result(p, &r[i])) continue;
            while (k < n_hulls && hulls[k].tensor != r[i].tensor) k++;
            if (k == OP_MAX_OUT) continue; /* of too many operators */
            if (k == n_hulls) hulls[n_hulls++] = r[i];
            hulls[k].row0 = MIN(hulls[k].row0, r[i].row0);
            hulls[k].row1 = MAX(hulls[k].row1, r[i].row1);
            hulls[k].col0 = MIN(hulls[k].col0, r[i].col0);
            hulls[k].col1 = MAX(hulls[k].col1, r[i].col1);
            writes[k]++;
        }
    }
    for (int k = 0; k < n_hulls; k++)
        if (writes[k] == h->n_writers) hulls[n_whole++] = hulls[k];
    return n_whole;
}

static bool reads_a_hull(const struct pass *p, int32_t reader, const struct region *hulls, int n) {
    for (int k = 0; k < n; k++)
        if (read_all_of(p, reader, 1, &hulls[k])) return true;
    return false;
}

/* Whether each dependent reads all of some tensor region of each producer. */
static bool each_reads_all(const struct pass *p, const struct hand_over *h) {
    struct region hulls[OP_MAX_OUT];
    const int n_hulls = find_hulls(p, h, hulls);
    for (uint32_t i = 0; i < h->n; i++) {
        const int32_t reader = h->first + (int32_t)i;
        if (!reads_are_fixed(p, reader)) return false;
        if (reads_a_hull(p, reader, hulls, n_hulls)) continue;
        for (uint32_t w = 0; w < h->n_writers; w++)
            if (!read_a_result_of(p, reader, 1, h->writers[w])) return false;
    }
    return true;
}

/* Whether the dependents, which are peers, together read all of some activation of each producer,
 * and dependents and producers share no state. */
static bool all_read_all(const struct pass *p, const struct hand_over *h) {
    bool state = false;
    for (uint32_t i = 0; i < h->n; i++) state = state || touches_state(p, h->first + (int32_t)i);
    for (uint32_t w = 0; w < h->n_writers; w++)
        if ((state && touches_state(p, h->writers[w])) ||
            !read_a_result_of(p, h->first, h->n, h->writers[w]))
            return false;
    return true;
}

/* Whether a dependent writes plain data and a producer reads some. cautious: as if each dependent
 * wrote some. */
static bool shares_plain(const struct pass *p, const struct hand_over *h, bool cautious) {
    bool writes = cautious, reads = false;
    for (uint32_t i = 0; i < h->n && !writes; i++)
        writes = touches_plain(p, h->first + (int32_t)i, true);
    for (uint32_t w = 0; w < h->n_writers && writes && !reads; w++)
        reads = touches_plain(p, h->writers[w], false);
    return reads;
}

static struct hand_over hand_over_of(const struct pass *p, int32_t event, int32_t first_dependent) {
    return (struct hand_over){first_dependent, p->g->events.items[event].n_dependents,
                              p->first[event + 1] - p->first[event], p->writers + p->first[event]};
}

/* Dependents that trigger one event are *peers*. Goes on to an event's next peers; `of`: those
 * before, at first none of them. False: there are no more. */
static bool next_peers(const struct pass *p, const struct hand_over *h, struct hand_over *of) {
    const struct task *tasks = p->g->tasks.items;
    const int32_t end = h->first + (int32_t)h->n;
    of->first += (int32_t)of->n;
    of->n = 0;
    while (of->first + (int32_t)of->n < end &&
           tasks[of->first + (int32_t)of->n].trigger == tasks[of->first].trigger)
        of->n++;
    return of->n > 0;
}

static struct hand_over no_peers(const struct hand_over *h) {
    return (struct hand_over){h->first, 0, h->n_writers, h->writers};
}

static bool can_ride(const struct pass *p, int32_t event, int32_t first_dependent) {
    const struct tgraph *g = p->g;
    if (event == g->start_event || event == g->end_event) return false;
    const struct hand_over h = hand_over_of(p, event, first_dependent);
    for (uint32_t w = 0; w < h.n_writers; w++)
        if (!writes_can_be_flagged(p, h.writers[w])) return false;
    for (uint32_t i = 0; i < h.n; i++)
        if (polled_bytes(p, h.first + (int32_t)i) > g->options.transport_bytes) return false;
    for (struct hand_over of = no_peers(&h); next_peers(p, &h, &of);)
        if (!each_reads_all(p, &of) && !all_read_all(p, &of)) return false;
    return true;
}

static void flag_outputs(const struct pass *p, const struct task *t) {
    const struct kop *op = &p->g->kernel->ops.items[t->op];
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (op->out[i] != NO_TENSOR && !is_state(p, op->out[i]) && !is_own(p, op->out[i]))
            p->g->tensor_transport[op->out[i]] = p->possible[op->out[i]];
}

static void flag_all(const struct pass *p) {
    const struct tgraph *g = p->g;
    for (int32_t i = 0; i < (int32_t)g->kernel->tensors.n; i++)
        if (!is_own(p, i)) g->tensor_transport[i] = TRANSPORT_COUNTER;
    for (size_t e = 0; e < g->events.n; e++)
        for (uint32_t i = p->first[e]; g->events.items[e].data && i < p->first[e + 1]; i++)
            flag_outputs(p, &g->tasks.items[p->writers[i]]);
}

/* Lets all events ride that may; returns how many. */
static size_t let_ride(const struct pass *p) {
    const struct tgraph *g = p->g;
    size_t n = 0;
    int32_t dependents = 0; /* first dependent of event e: they are in the order of events */
    for (int32_t e = 0; e < (int32_t)g->events.n; e++) {
        g->events.items[e].data = can_ride(p, e, dependents);
        n += g->events.items[e].data;
        dependents += (int32_t)g->events.items[e].n_dependents;
    }
    return n;
}

/* Whether a dependent of an event reads plain activations (worker_sees). */
static bool reads_plain(const struct pass *p, const struct hand_over *h) {
    for (uint32_t i = 0; i < h->n; i++)
        if (touches_plain(p, h->first + (int32_t)i, false)) return true;
    return false;
}

/* Whether some peers only together read all results, and share plain data with the producers. */
static bool peers_share_plain(const struct pass *p, const struct hand_over *h, bool cautious) {
    for (struct hand_over of = no_peers(h); next_peers(p, h, &of);)
        if (shares_plain(p, &of, cautious) && !each_reads_all(p, &of)) return true;
    return false;
}

/* Of n events that ride, takes back those whose dependents only together read all results and which
 * share plain data; returns how many are left. What is plain follows from the other events, so it
 * looks again until nothing changes. Flags the tensors. cautious: shares_plain; also takes back
 * events whose dependents read plain data. */
static size_t take_back(const struct pass *p, size_t n, bool cautious) {
    const struct tgraph *g = p->g;
    size_t before;
    do {
        int32_t dependents = 0;
        before = n;
        flag_all(p);
        for (int32_t e = 0; e < (int32_t)g->events.n; e++) {
            struct event *event = &g->events.items[e];
            const struct hand_over h = hand_over_of(p, e, dependents);
            dependents += (int32_t)event->n_dependents;
            if (!event->data) continue;
            if ((!cautious || !reads_plain(p, &h)) && !peers_share_plain(p, &h, cautious)) continue;
            event->data = false;
            n--;
        }
    } while (n != before);
    return n;
}

/* For every event, the events that it leads to through counters alone, itself included; an event
 * that rides on data leads to none. Goes from the last event to the first, since they are numbered
 * in topological order. */
static int close_over_counters(struct pass *p) {
    const struct tgraph *g = p->g;
    p->words = CEIL_DIV(g->events.n, (size_t)64);
    TRY(ARENA_NEW(p->d, &p->scratch, &p->closure, g->events.n * p->words));
    for (size_t i = g->tasks.n; i-- > 0;) { /* tasks are in the order of the events they wait for */
        const struct task *t = &g->tasks.items[i];
        uint64_t *from = p->closure + (size_t)t->wait * p->words;
        uint64_t *to = p->closure + (size_t)t->trigger * p->words;
        if (g->events.items[t->trigger].n_dependents == 0 && !g->events.items[t->trigger].data)
            to[t->trigger / 64] |= 1ull << (t->trigger % 64);
        if (g->events.items[t->wait].data) continue;
        from[t->wait / 64] |= 1ull << (t->wait % 64);
        for (uint64_t w = 0; w < p->words; w++) from[w] |= to[w];
    }
    return QN_OK;
}

static bool leads_by_counters(const struct pass *p, int32_t from, int32_t to) {
    return p->closure[(size_t)from * p->words + (size_t)to / 64] >> (to % 64) & 1;
}

/* ---- clocks: what each worker knows of the others, as places in the linear order ------------ */

struct clocks {
    uint32_t n;       /* workers */
    uint32_t *worker; /* [n][n] */
    uint32_t *event;  /* [n_events][n] what its triggers released */
    uint32_t *known;  /* [n_ops][n] what every task of an operator knows when it begins */
    uint32_t *last;   /* [n_ops][n] the operator's last task on each worker, + 1 */
};

static void merge(uint32_t *into, const uint32_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) into[i] = MAX(into[i], from[i]);
}

/* Runs the tasks in linear order, which is the order of every list, too. */
static int run_clocks(struct pass *p, struct clocks *c) {
    const struct tgraph *g = p->g;
    const uint32_t n = c->n = g->options.device.n_workers;
    TRY(ARENA_NEW(p->d, &p->scratch, &c->worker, (uint64_t)n * n));
    TRY(ARENA_NEW(p->d, &p->scratch, &c->event, g->events.n * n));
    TRY(ARENA_NEW(p->d, &p->scratch, &c->known, g->kernel->ops.n * n));
    TRY(ARENA_NEW(p->d, &p->scratch, &c->last, g->kernel->ops.n * n));
    memset(c->known, 0xff, g->kernel->ops.n * n * sizeof *c->known);
    for (size_t i = 0; i < g->tasks.n; i++) {
        const struct task *t = &g->tasks.items[i];
        const uint32_t *wait = c->event + (size_t)t->wait * n;
        uint32_t *own = c->worker + (size_t)t->worker * n, *to = c->event + (size_t)t->trigger * n;
        if (!g->events.items[t->wait].data) merge(own, wait, n);
        if (t->op < 0) { /* empty: forwards what it waited for, while another task may run */
            merge(to, wait, n);
            continue;
        }
        uint32_t *known = c->known + (size_t)t->op * n;
        for (uint32_t w = 0; w < n; w++) known[w] = MIN(known[w], own[w]);
        own[t->worker] = c->last[(size_t)t->op * n + (uint32_t)t->worker] = (uint32_t)i + 1;
        if (!g->events.items[t->trigger].data) merge(to, own, n);
    }
    return QN_OK;
}

/* Whether all tasks of operator a are done, visibly, before any of operator b begins. */
static bool known_before(const struct clocks *c, int32_t a, int32_t b) {
    for (uint32_t w = 0; w < c->n; w++)
        if (c->last[(size_t)a * c->n + w] > c->known[(size_t)b * c->n + w]) return false;
    return true;
}

/* Whether the writer of tensor b knows that all tasks that touch tensor a are done. */
static bool tensor_before(const struct pass *p, const struct clocks *c, int32_t a, int32_t b) {
    const struct kgraph *k = p->g->kernel;
    const int32_t writer = k->tensors.items[b].producer;
    if (!known_before(c, k->tensors.items[a].producer, writer)) return false;
    for (size_t o = 0; o < k->ops.n; o++)
        for (int s = 0; s < OP_MAX_IN; s++)
            if (k->ops.items[o].in[s] == a && !known_before(c, (int32_t)o, writer)) return false;
    return true;
}

/* Sets *ok to whether plain tensors that share bytes are apart, each from the one that had its
 * bytes before, and whether RESET_SENTINELS knows that all tasks that touch its space are done. */
static int shared_bytes_are_apart(struct pass *p, bool *ok) {
    const struct tgraph *g = p->g;
    const struct kgraph *k = g->kernel;
    struct clocks c;
    TRY(run_clocks(p, &c));
    *ok = true;
    for (size_t a = 0; a < k->tensors.n && *ok; a++)
        if (g->tensor_transport[a] == TRANSPORT_SENTINEL)
            *ok = tensor_before(p, &c, (int32_t)a, p->reset);
    for (size_t b = 0; b < k->tensors.n && *ok; b++) {
        const struct tensor *y = &k->tensors.items[b];
        int32_t before = NO_TENSOR;
        if (y->role != TENSOR_ACTIVATION || g->tensor_transport[b]) continue;
        for (size_t a = 0; a < k->tensors.n; a++) {
            const struct tensor *x = &k->tensors.items[a];
            if (x->role != TENSOR_ACTIVATION || g->tensor_transport[a] ||
                x->producer >= y->producer ||
                g->tensor_offset[a] + tensor_bytes(x) <= g->tensor_offset[b] ||
                g->tensor_offset[b] + tensor_bytes(y) <= g->tensor_offset[a])
                continue;
            if (before == NO_TENSOR || k->tensors.items[before].producer < x->producer)
                before = (int32_t)a;
        }
        *ok = before == NO_TENSOR || tensor_before(p, &c, before, (int32_t)b);
    }
    return QN_OK;
}

/* Sets *ok to whether every worker's last task leads to the end through counters. Empty tasks do
 * not count: a worker may be done with one while the task before it still runs. */
static int workers_end_in_counters(struct pass *p, bool *ok) {
    const struct tgraph *g = p->g;
    bool *seen;
    TRY(ARENA_NEW(p->d, &p->scratch, &seen, g->options.device.n_workers));
    *ok = true;
    for (size_t i = g->tasks.n; i-- > 0 && *ok;) {
        const struct task *t = &g->tasks.items[i];
        if (t->op < 0) continue; /* empty */
        *ok = seen[t->worker] || leads_by_counters(p, t->trigger, g->end_event);
        seen[t->worker] = true;
    }
    return QN_OK;
}

/* Whether an earlier task of the worker of task `reader` waits for counters behind `event`. The
 * worker then sees what the producers of `event` stored. */
static bool worker_sees(const struct pass *p, int32_t event, size_t reader) {
    const struct task *tasks = p->g->tasks.items;
    for (size_t i = reader; i-- > 0;)
        if (tasks[i].op >= 0 && tasks[i].worker == tasks[reader].worker &&
            leads_by_counters(p, event, tasks[i].wait))
            return true;
    return false;
}

/* Sets *ok to whether every plain tensor is read behind counters alone. */
static int plain_data_is_visible(struct pass *p, bool *ok) {
    const struct tgraph *g = p->g;
    const struct kgraph *k = g->kernel;
    int32_t *written_behind; /* by tensor: an event that its writers trigger; -1: none so far */
    TRY(ARENA_NEW(p->d, &p->scratch, &written_behind, k->tensors.n));
    for (size_t i = 0; i < k->tensors.n; i++) written_behind[i] = NO_EVENT;
    *ok = true;
    for (size_t i = 0; i < g->tasks.n && *ok; i++) {
        int n;
        const struct region *r = access_of(p, (int32_t)i, &n);
        for (int a = 0; a < n; a++) {
            if (g->tensor_transport[r[a].tensor]) continue;
            int32_t *event = &written_behind[r[a].tensor];
            const int32_t wait = g->tasks.items[i].wait;
            if (r[a].write) {
                /* Writers that trigger different events count as invisible, which is safe. */
                const int32_t trigger = g->tasks.items[i].trigger;
                if (*event != NO_EVENT && *event != trigger) *ok = false;
                *event = trigger;
            } else if (*event != NO_EVENT && !leads_by_counters(p, *event, wait) &&
                       !worker_sees(p, *event, i)) {
                *ok = false;
            }
        }
    }
    return QN_OK;
}

/* The workspace ends where the last plain tensor does. */
static void shrink_workspace(struct tgraph *g) {
    g->workspace_bytes = 0;
    for (size_t i = 0; i < g->kernel->tensors.n; i++) {
        const struct tensor *x = &g->kernel->tensors.items[i];
        if (x->role != TENSOR_ACTIVATION || g->tensor_transport[i] != TRANSPORT_COUNTER) continue;
        const uint64_t end = g->tensor_offset[i] + align_up(MAX(tensor_bytes(x), 1u), ALIGN_BYTES);
        g->workspace_bytes = MAX(g->workspace_bytes, end);
    }
}

/* RESET_SENTINELS writes the whole space of flagged tensors. */
static void place_reset(const struct pass *p) {
    struct tgraph *g = p->g;
    g->flagged_bytes = align_up(g->flagged_bytes, RESET_UNITS * RESET_WORDS * 4);
    g->reset_words = g->flagged_bytes / RESET_UNITS / 4;
    g->tensor_offset[p->reset] = 0;
    g->tensor_transport[p->reset] = TRANSPORT_SPACE;
}

/* The tensor that an operator adds to; NO_TENSOR: none. */
static int32_t residual_of(const struct kop *op) {
    return op->kind == OP_LINEAR ? op->in[LINEAR_RESIDUAL] : NO_TENSOR;
}

/* Places tensors that are their workers' own. Of two places, a tensor takes the one that the own
 * tensor which it adds to does not have. Both tensors have the same workers. */
static int place_own(struct pass *p) {
    struct tgraph *g = p->g;
    const struct kgraph *k = g->kernel;
    uint64_t *other; /* [n_tensors] the place that the next one has, + 1; 0: none yet */
    TRY(ARENA_NEW(p->d, &p->scratch, &other, k->tensors.n));
    for (size_t o = 0; o < k->ops.n; o++) { /* a tensor that adds to another one comes later */
        const int32_t from = residual_of(&k->ops.items[o]), to = k->ops.items[o].out[STREAM_X];
        if (to == NO_TENSOR || !is_own(p, to)) continue;
        const uint64_t bytes = align_up(tensor_bytes(&k->tensors.items[to]), ALIGN_BYTES);
        const bool follows = from != NO_TENSOR && is_own(p, from);
        if (follows) other[to] = g->tensor_offset[from] + 1;
        if (follows && other[from] != 0) {
            g->tensor_offset[to] = other[from] - 1;
        } else {
            g->tensor_offset[to] = g->workspace_bytes;
            g->workspace_bytes += bytes;
        }
    }
    return QN_OK;
}

static void place_flagged(const struct pass *p) {
    struct tgraph *g = p->g;
    for (int32_t i = 0; i < (int32_t)g->kernel->tensors.n; i++) {
        if (g->tensor_transport[i] == TRANSPORT_COUNTER || is_own(p, i)) continue;
        g->tensor_offset[i] = g->flagged_bytes;
        g->flagged_bytes += align_up(
            tensor_elements(&g->kernel->tensors.items[i]) * carried_bytes(p, i), ALIGN_BYTES);
    }
    if (p->reset != NO_TENSOR) place_reset(p);
    shrink_workspace(g);
}

/* ---- what is its workers' own ---- */

/* Whether `reader` adds to the tile that `writer` wrote, on the same worker. */
static bool adds_to(const struct pass *p, int32_t writer, int32_t reader, int32_t tensor) {
    const struct task *w = &p->g->tasks.items[writer], *r = &p->g->tasks.items[reader];
    return w->worker == r->worker && writer < reader && w->row0 == r->row0 && w->row1 == r->row1 &&
           w->unit0 == r->unit0 && w->unit1 == r->unit1 &&
           p->g->kernel->tensors.items[tensor].producer == w->op;
}

/* Finds the residual stream of several rows, where LINEAR or EXPERT_DOWN writes it and LINEAR alone
 * reads it. Tasks of both have the same columns if they have the same units. */
static int find_own(struct pass *p) {
    const struct tgraph *g = p->g;
    const struct kgraph *k = g->kernel;
    int32_t **tasks; /* by operator, in order: its tasks */
    uint32_t *n;
    if (k->n_rows == 1 || k->n_rows > SENTINEL_ROWS) return QN_OK;
    TRY(ARENA_NEW(p->d, &p->scratch, &tasks, k->ops.n));
    TRY(ARENA_NEW(p->d, &p->scratch, &n, k->ops.n));
    for (size_t i = 0; i < g->tasks.n; i++)
        if (g->tasks.items[i].op >= 0) n[g->tasks.items[i].op]++;
    for (size_t o = 0; o < k->ops.n; o++) {
        const int32_t out = k->ops.items[o].out[STREAM_X];
        if (!op_writes_columns(k->ops.items[o].kind)) continue;
        TRY(ARENA_NEW(p->d, &p->scratch, &tasks[o], n[o]));
        n[o] = 0;
        g->tensor_transport[out] = TRANSPORT_OWN;
    }
    for (size_t i = 0; i < g->tasks.n; i++) {
        const int32_t o = g->tasks.items[i].op;
        if (o >= 0 && op_writes_columns(k->ops.items[o].kind)) tasks[o][n[o]++] = (int32_t)i;
    }
    for (size_t o = 0; o < k->ops.n; o++)
        for (int s = 0; s < OP_MAX_IN; s++) {
            const int32_t x = k->ops.items[o].in[s];
            if (x == NO_TENSOR || !is_own(p, x)) continue;
            const int32_t writer = k->tensors.items[x].producer;
            bool own =
                residual_of(&k->ops.items[o]) == x && s == LINEAR_RESIDUAL && n[writer] == n[o];
            for (uint32_t i = 0; i < n[o] && own; i++)
                own = adds_to(p, tasks[writer][i], tasks[o][i], x);
            if (!own) g->tensor_transport[x] = TRANSPORT_COUNTER;
        }
    return QN_OK;
}

/* Sets *ok to whether plain data, its bytes and the workers' ends are ordered by counters. */
static int counters_suffice(struct pass *p, bool *ok) {
    bool visible, ends, apart;
    TRY(close_over_counters(p));
    TRY(plain_data_is_visible(p, &visible));
    TRY(workers_end_in_counters(p, &ends));
    TRY(shared_bytes_are_apart(p, &apart));
    *ok = visible && ends && apart;
    return QN_OK;
}

/* Each event that rides is a counter less. If the others do not suffice, a cautious choice may have
 * more of them. */
static int choose(struct pass *p) {
    struct tgraph *g = p->g;
    bool ok = false;
    TRY(prepare(p));
    TRY(find_own(p));
    const size_t all = let_ride(p);
    const size_t n = take_back(p, all, false);
    if (n > 0) TRY(counters_suffice(p, &ok));
    if (n > 0 && !ok) {
        const size_t left = take_back(p, n, true);
        if (left > 0 && left < n) TRY(counters_suffice(p, &ok));
    }
    for (size_t e = 0; e < g->events.n && !ok; e++) g->events.items[e].data = false;
    if (!ok) flag_all(p);
    if (ok) place_flagged(p);
    return place_own(p);
}

int transport(struct diag *d, struct tgraph *g) {
    TRY(ARENA_NEW(d, g->arena, &g->tensor_transport, g->kernel->tensors.n));
    if (g->options.transport_bytes == 0) return QN_OK;
    for (size_t i = 0; i < g->tasks.n; i++)
        if (g->tasks.items[i].worker == NO_WORKER) return QN_OK;
    struct pass p = {.d = d, .g = g};
    const int rc = choose(&p);
    arena_fini(&p.scratch);
    return rc;
}
