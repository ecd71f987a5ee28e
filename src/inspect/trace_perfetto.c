/* trace_perfetto.c - a trace as Perfetto's protobuf.
 *
 * A file is a sequence of TracePackets. The field numbers are those of Perfetto's published format
 * (protos/perfetto/trace: trace_packet, track_descriptor, track_event, interned_data,
 * counter_descriptor, debug_annotation); only the fields in use are named. All packets belong to
 * one sequence, whose first packet clears the incremental state and interns the names that repeat.
 */
#include "inspect/trace.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/map.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- protobuf ----------------------------------------------------------------------------- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2 };

static void put_varint(struct strbuf *b, uint64_t v) {
    char bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
    } while (v != 0);
    strbuf_add(b, bytes, n);
}

static void put_key(struct strbuf *b, uint32_t field, uint32_t wire) {
    put_varint(b, (uint64_t)field << 3 | wire);
}

static void put_uint(struct strbuf *b, uint32_t field, uint64_t v) {
    put_key(b, field, WIRE_VARINT);
    put_varint(b, v);
}

static void put_fixed64(struct strbuf *b, uint32_t field, uint64_t v) {
    char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (char)(v >> 8 * i & 0xff);
    put_key(b, field, WIRE_64);
    strbuf_add(b, bytes, sizeof bytes);
}

static void put_bytes(struct strbuf *b, uint32_t field, const char *text, size_t n) {
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    strbuf_add(b, text, n);
}

static void put_string(struct strbuf *b, uint32_t field, const char *text) {
    put_bytes(b, field, text, strlen(text));
}

/* Adds the message that was built in `inner`, and empties `inner`. */
static void put_message(struct strbuf *b, uint32_t field, struct strbuf *inner) {
    put_bytes(b, field, strbuf_text(inner), inner->n);
    b->failed |= inner->failed;
    strbuf_clear(inner);
}

/* ---- Perfetto's fields -------------------------------------------------------------------- */

enum { TRACE_PACKET = 1 };
enum {
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE_ID = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED_DATA = 12,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_TRACK_DESCRIPTOR = 60,
};
enum { SEQUENCE_CLEARED = 1, SEQUENCE_NEEDS_STATE = 2 };
enum {
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_CHILD_ORDERING = 11,
    TRACK_RANK = 12,
};
enum { PROCESS_PID = 1, PROCESS_NAME = 6, ORDER_EXPLICIT = 3, COUNTER_UNIT_NAME = 6 };
enum {
    EVENT_DEBUG = 4,
    EVENT_TYPE = 9,
    EVENT_NAME_IID = 10,
    EVENT_TRACK = 11,
    EVENT_NAME = 23,
    EVENT_COUNTER_VALUE = 30,
    EVENT_FLOW = 47,
    EVENT_FLOW_END = 48,
};
enum { TYPE_BEGIN = 1, TYPE_END = 2, TYPE_INSTANT = 3, TYPE_COUNTER = 4 };
enum { DEBUG_NAME_IID = 1, DEBUG_UINT = 3, DEBUG_STRING = 6 };
enum { INTERNED_EVENT_NAMES = 2, INTERNED_DEBUG_NAMES = 3, INTERNED_IID = 1, INTERNED_NAME = 2 };

/* Names of arguments; the interned id is the index + 1. */
enum arg { ARG_TASK, ARG_TILE, ARG_WAIT, ARG_TRIGGER, ARG_BYTES, ARG_ITERATION, ARG_FOR, N_ARGS };
static const char *const arg_names[N_ARGS] = {
    "task", "tile", "waits for event", "triggers event", "bytes", "iteration", "for task"};

enum counter {
    COUNTER_ROWS,
    COUNTER_RUNNING,
    COUNTER_WAITING,
    COUNTER_CONTEXT,
    COUNTER_BLOCKS,
    COUNTER_FLYING, /* only of traces with pages */
    COUNTER_PAGES,
    N_COUNTERS
};
static const char *const counter_names[N_COUNTERS] = {
    "token rows",     "requests running", "requests waiting", "context positions",
    "KV blocks free", "bytes in flight",  "pages free"};

/* Track ids: any distinct numbers. */
static uint64_t track_process(void) {
    return 1;
}
static uint64_t track_iterations(void) {
    return 2;
}
static uint64_t track_counter(enum counter c) {
    return 16 + (uint64_t)c;
}
static uint64_t track_worker(uint32_t w) {
    return 1000 + 2 * (uint64_t)w;
}
static uint64_t track_waits(uint32_t w) {
    return 1001 + 2 * (uint64_t)w;
}

/* ---- writing ------------------------------------------------------------------------------ */

struct writer {
    struct diag *d;
    const struct trace *t;
    struct strbuf *out;
    struct strbuf packet, event, inner; /* scratch, empty between packets */
    struct map names;                   /* "qkv L3" -> interned id */
    struct arena arena;                 /* their texts */
    uint64_t n_names;
    struct strbuf name;
};

static void end_packet(struct writer *w) {
    put_uint(&w->packet, PACKET_SEQUENCE_ID, 1);
    put_message(w->out, TRACE_PACKET, &w->packet);
}

/* Ends the track event that was built in w->event. */
static void end_event(struct writer *w, uint64_t time) {
    put_uint(&w->packet, PACKET_TIMESTAMP, time);
    put_message(&w->packet, PACKET_TRACK_EVENT, &w->event);
    put_uint(&w->packet, PACKET_SEQUENCE_FLAGS, SEQUENCE_NEEDS_STATE);
    end_packet(w);
}

static void begin_event(struct writer *w, uint32_t type, uint64_t track) {
    put_uint(&w->event, EVENT_TYPE, type);
    put_uint(&w->event, EVENT_TRACK, track);
}

static void slice_end(struct writer *w, uint64_t track, uint64_t time) {
    begin_event(w, TYPE_END, track);
    end_event(w, time);
}

static void arg_uint(struct writer *w, enum arg arg, uint64_t v) {
    put_uint(&w->inner, DEBUG_NAME_IID, (uint64_t)arg + 1);
    put_uint(&w->inner, DEBUG_UINT, v);
    put_message(&w->event, EVENT_DEBUG, &w->inner);
}

static void arg_text(struct writer *w, enum arg arg, const char *text) {
    put_uint(&w->inner, DEBUG_NAME_IID, (uint64_t)arg + 1);
    put_string(&w->inner, DEBUG_STRING, text);
    put_message(&w->event, EVENT_DEBUG, &w->inner);
}

/* The interned id of w->name. A new name goes into the current packet. */
static int name_id(struct writer *w, uint64_t *id) {
    char *key;
    TRY(strbuf_status(w->d, &w->name));
    if (map_find(&w->names, w->name.text, w->name.n, id)) return QN_OK;
    *id = ++w->n_names;
    TRY(arena_copy(w->d, &w->arena, w->name.text, w->name.n, &key));
    TRY(map_put(w->d, &w->names, key, w->name.n, *id, NULL));
    struct strbuf entry = {0}, data = {0};
    put_uint(&entry, INTERNED_IID, *id);
    put_bytes(&entry, INTERNED_NAME, w->name.text, w->name.n);
    put_message(&data, INTERNED_EVENT_NAMES, &entry);
    put_message(&w->packet, PACKET_INTERNED_DATA, &data);
    strbuf_fini(&entry);
    strbuf_fini(&data);
    return QN_OK;
}

/* ---- tracks ------------------------------------------------------------------------------- */

static void put_track(struct writer *w, uint64_t uuid, const char *name, uint64_t rank) {
    put_uint(&w->event, TRACK_UUID, uuid);
    put_string(&w->event, TRACK_NAME, name);
    put_uint(&w->event, TRACK_PARENT, track_process());
    put_uint(&w->event, TRACK_RANK, rank);
    put_message(&w->packet, PACKET_TRACK_DESCRIPTOR, &w->event);
    end_packet(w);
}

static void put_process(struct writer *w, const char *name) {
    put_uint(&w->event, TRACK_UUID, track_process());
    put_uint(&w->inner, PROCESS_PID, 1);
    put_string(&w->inner, PROCESS_NAME, name);
    put_message(&w->event, TRACK_PROCESS, &w->inner);
    put_uint(&w->event, TRACK_CHILD_ORDERING, ORDER_EXPLICIT);
    put_message(&w->packet, PACKET_TRACK_DESCRIPTOR, &w->event);
    end_packet(w);
}

static void put_counter_track(struct writer *w, enum counter c) {
    put_uint(&w->event, TRACK_UUID, track_counter(c));
    put_string(&w->event, TRACK_NAME, counter_names[c]);
    put_uint(&w->event, TRACK_PARENT, track_process());
    put_message(&w->event, TRACK_COUNTER, &w->inner); /* an empty CounterDescriptor */
    put_uint(&w->event, TRACK_RANK, 2 + (uint64_t)c);
    put_message(&w->packet, PACKET_TRACK_DESCRIPTOR, &w->event);
    end_packet(w);
}

/* The first packet: clears the state and interns the names of arguments. */
static void put_head(struct writer *w) {
    struct strbuf entry = {0};
    for (uint64_t i = 0; i < N_ARGS; i++) {
        put_uint(&entry, INTERNED_IID, i + 1);
        put_string(&entry, INTERNED_NAME, arg_names[i]);
        put_message(&w->inner, INTERNED_DEBUG_NAMES, &entry);
    }
    strbuf_fini(&entry);
    put_message(&w->packet, PACKET_INTERNED_DATA, &w->inner);
    put_uint(&w->packet, PACKET_SEQUENCE_FLAGS, SEQUENCE_CLEARED | SEQUENCE_NEEDS_STATE);
    end_packet(w);
}

static void put_tracks(struct writer *w, const char *name) {
    char text[64];
    put_head(w);
    put_process(w, name);
    put_track(w, track_iterations(), "iterations", 1);
    uint32_t n_counters = w->t->pages.n > 0 ? N_COUNTERS : COUNTER_FLYING;
    for (uint32_t c = 0; c < n_counters; c++) put_counter_track(w, (enum counter)c);
    for (uint32_t i = 0; i < w->t->n_workers; i++) {
        snprintf(text, sizeof text, "worker %u: tasks", i);
        put_track(w, track_worker(i), text, 100 + 2 * (uint64_t)i);
        snprintf(text, sizeof text, "worker %u: waits", i);
        put_track(w, track_waits(i), text, 101 + 2 * (uint64_t)i);
    }
}

/* ---- slices ------------------------------------------------------------------------------- */

static void op_label(struct writer *w, const char *prefix, uint32_t task) {
    const struct prog_task *t = &PROG(w->t->program, TASK)[task];
    int layer = t->op == PROG_NONE ? -1 : PROG(w->t->program, OP)[t->op].layer;
    strbuf_clear(&w->name);
    strbuf_printf(&w->name, "%s%s", prefix, t->op == PROG_NONE ? "empty task" : op_name(t->kind));
    if (layer >= 0) strbuf_printf(&w->name, " L%d", layer);
}

/* A flow per task and iteration, from the task that activated its event. */
static uint64_t flow_id(const struct trace *t, uint32_t iter, uint32_t task) {
    return (uint64_t)iter * t->program->section[SECTION_TASK].count + task + 1;
}

/* Adds the flow that ends at a run, and those that begin there: one to each dependent of the event
 * that it activated. */
static void put_flows(struct writer *w, const struct trace_links *links, size_t run) {
    const struct trace *t = w->t;
    const struct trace_run *r = &t->runs.items[run];
    const struct trace_iter *iter = &t->iters.items[r->iter];
    const struct prog_variant *v = &PROG(t->program, VARIANT)[iter->variant];
    const struct prog_task *task = &PROG(t->program, TASK)[r->task];
    if (task->wait != PROG_NONE && links->activator[task->wait - v->first_event] != SIZE_MAX)
        put_fixed64(&w->event, EVENT_FLOW_END, flow_id(t, r->iter, r->task));
    if (task->trigger == PROG_NONE || links->activator[task->trigger - v->first_event] != run)
        return;
    const struct prog_event *e = &PROG(t->program, EVENT)[task->trigger];
    for (uint32_t i = e->first_task; i < e->first_task + e->n_tasks; i++)
        put_fixed64(&w->event, EVENT_FLOW, flow_id(t, r->iter, i));
}

static int put_run(struct writer *w, const struct trace_links *links, size_t run) {
    const struct trace *t = w->t;
    const struct trace_run *r = &t->runs.items[run];
    const struct trace_iter *iter = &t->iters.items[r->iter];
    const struct prog_task *task = &PROG(t->program, TASK)[r->task];
    struct strbuf tile = {0};
    uint64_t id;
    op_label(w, "", r->task);
    TRY(name_id(w, &id));
    begin_event(w, TYPE_BEGIN, track_worker(r->worker));
    put_uint(&w->event, EVENT_NAME_IID, id);
    put_flows(w, links, run);
    arg_uint(w, ARG_TASK, r->task);
    program_task_name(t->program, r->task, &tile);
    arg_text(w, ARG_TILE, strbuf_text(&tile));
    strbuf_fini(&tile);
    if (task->wait != PROG_NONE) arg_uint(w, ARG_WAIT, task->wait);
    if (task->trigger != PROG_NONE) arg_uint(w, ARG_TRIGGER, task->trigger);
    arg_uint(w, ARG_BYTES,
             trace_weight_bytes(t->program, r->task) +
                 trace_kv_bytes(t->program, r->task, iter->context));
    arg_uint(w, ARG_ITERATION, iter->number);
    end_event(w, r->begin);
    slice_end(w, track_worker(r->worker), r->end);
    return QN_OK;
}

/* [from, run's ready) on the track of waits, named by the operator waited for. */
static int put_wait(struct writer *w, const struct trace_links *links, const struct trace_run *r,
                    uint64_t from) {
    const struct trace *t = w->t;
    const struct prog_task *task = &PROG(t->program, TASK)[r->task];
    const struct prog_variant *v = &PROG(t->program, VARIANT)[t->iters.items[r->iter].variant];
    uint64_t id;
    size_t by = SIZE_MAX;
    if (from >= r->ready) return QN_OK;
    if (task->wait != PROG_NONE) by = links->activator[task->wait - v->first_event];
    if (by != SIZE_MAX && t->runs.items[by].end > from) {
        op_label(w, "waits for ", t->runs.items[by].task);
    } else {
        strbuf_clear(&w->name);
        strbuf_str(&w->name, "hand-over");
    }
    TRY(name_id(w, &id));
    begin_event(w, TYPE_BEGIN, track_waits(r->worker));
    put_uint(&w->event, EVENT_NAME_IID, id);
    if (task->wait != PROG_NONE) arg_uint(w, ARG_WAIT, task->wait);
    arg_uint(w, ARG_FOR, r->task);
    end_event(w, from);
    slice_end(w, track_waits(r->worker), r->ready);
    return QN_OK;
}

static void put_counter(struct writer *w, enum counter c, uint64_t time, uint64_t value) {
    begin_event(w, TYPE_COUNTER, track_counter(c));
    put_uint(&w->event, EVENT_COUNTER_VALUE, value);
    end_event(w, time);
}

static void put_iteration(struct writer *w, const struct trace_iter *iter) {
    char name[64];
    snprintf(name, sizeof name, "%u row%s", iter->n_rows, iter->n_rows == 1 ? "" : "s");
    begin_event(w, TYPE_BEGIN, track_iterations());
    put_string(&w->event, EVENT_NAME, name);
    arg_uint(w, ARG_ITERATION, iter->number);
    end_event(w, iter->start);
    slice_end(w, track_iterations(), iter->end);
    put_counter(w, COUNTER_ROWS, iter->start, iter->n_rows);
    put_counter(w, COUNTER_RUNNING, iter->start, iter->n_running);
    put_counter(w, COUNTER_WAITING, iter->start, iter->n_waiting);
    put_counter(w, COUNTER_CONTEXT, iter->start, iter->context);
    put_counter(w, COUNTER_BLOCKS, iter->start, iter->n_free_blocks);
}

static int put_iterations(struct writer *w, uint64_t *free_since) {
    const struct trace *t = w->t;
    struct trace_links links = {0};
    TRY(trace_links_new(w->d, t->program, &links));
    int rc = QN_OK;
    for (size_t i = 0; i < t->iters.n && rc == QN_OK; i++) {
        const struct trace_iter *iter = &t->iters.items[i];
        put_iteration(w, iter);
        trace_links_fill(t, iter, &links);
        for (uint32_t k = 0; k < t->n_workers; k++) free_since[k] = iter->start;
        for (size_t k = iter->first_run; k < iter->first_run + iter->n_runs && rc == QN_OK; k++) {
            const struct trace_run *r = &t->runs.items[k];
            rc = put_wait(w, &links, r, free_since[r->worker]);
            if (rc == QN_OK) rc = put_run(w, &links, k);
            free_since[r->worker] = r->end;
        }
        if (rc == QN_OK) rc = strbuf_status(w->d, w->out);
    }
    trace_links_fini(&links);
    return rc;
}

static int put_instants(struct writer *w) {
    for (size_t i = 0; i < w->t->stalls.n; i++) {
        const struct trace_stall *s = &w->t->stalls.items[i];
        begin_event(w, TYPE_INSTANT, track_waits(s->worker));
        put_string(&w->event, EVENT_NAME, "STALL");
        arg_uint(w, ARG_WAIT, s->event);
        end_event(w, s->time);
    }
    return QN_OK;
}

/* The page rings of all workers together, from when each of them has a record. */
static int put_pages(struct writer *w) {
    struct trace_ring now;
    uint64_t flying = UINT64_MAX, n_free = UINT64_MAX; /* as shown */
    TRY(trace_ring_new(w->d, w->t, &now));
    for (size_t i = 0; i < w->t->pages.n; i++) {
        uint64_t time = w->t->pages.items[i].time;
        if (!trace_ring_step(w->t, i, &now)) continue;
        if (now.flying_bytes != flying) put_counter(w, COUNTER_FLYING, time, now.flying_bytes);
        if (now.n_free != n_free) put_counter(w, COUNTER_PAGES, time, now.n_free);
        flying = now.flying_bytes;
        n_free = now.n_free;
    }
    trace_ring_fini(&now);
    return QN_OK;
}

int trace_perfetto(struct diag *d, const struct trace *t, const char *name, struct strbuf *out) {
    struct writer w = {.d = d, .t = t, .out = out};
    uint64_t *free_since = calloc(t->n_workers + 1u, sizeof *free_since);
    if (!free_since) return fail_nomem(d, t->n_workers * sizeof *free_since, "the trace");
    put_tracks(&w, name);
    int rc = put_iterations(&w, free_since);
    if (rc == QN_OK) rc = put_instants(&w);
    if (rc == QN_OK) rc = put_pages(&w);
    if (rc == QN_OK) rc = strbuf_status(d, out);
    free(free_since);
    map_fini(&w.names);
    arena_fini(&w.arena);
    strbuf_fini(&w.packet);
    strbuf_fini(&w.event);
    strbuf_fini(&w.inner);
    strbuf_fini(&w.name);
    return rc;
}

int trace_write(struct diag *d, const struct trace *t, const char *name, const char *path) {
    struct strbuf bytes = {0};
    int rc = trace_perfetto(d, t, name, &bytes);
    FILE *f = rc == QN_OK ? fopen(path, "wb") : NULL;
    if (rc == QN_OK && !f) rc = fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    if (f) {
        bool written = fwrite(strbuf_text(&bytes), 1, bytes.n, f) == bytes.n;
        if (fclose(f) != 0 || !written) rc = fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    }
    strbuf_fini(&bytes);
    return rc;
}
