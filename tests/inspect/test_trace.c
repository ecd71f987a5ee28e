/* test_trace.c - the trace: rings that overflow and are read while they are written, the account of
 * a made-up run to the nanosecond, and Perfetto files parsed back by a parser of this file's own.
 */
#include "inspect/profile.h"
#include "inspect/trace.h"
#include "inspect/view.h"
#include "runtime/trace_rings.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */
#undef fail_msg
#define fail_msg(...) (print_error(__VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

#define TINY          "models/tiny"

static qn_engine_params tiny(uint64_t trace_bytes) {
    qn_engine_params p;
    qn_engine_params_init(&p);
    p.model = TINY;
    p.backend = "cpu";
    p.threads = 2;
    p.max_num_seqs = 4;
    p.max_model_len = 256;
    p.trace_bytes = trace_bytes;
    return p;
}

static qn_engine *open_tiny(uint64_t trace_bytes) {
    qn_engine_params p = tiny(trace_bytes);
    qn_engine *e = NULL;
    qn_error error;
    if (qn_engine_open(&p, &e, &error) != QN_OK) fail_msg("%s", error.message);
    return e;
}

static uint64_t other_bytes(qn_engine *e) {
    qn_engine_info info = {.struct_size = sizeof info};
    assert_int_equal(qn_engine_get_info(e, &info), QN_OK);
    return info.other_bytes;
}

/* The memory plan counts the rings. */
static void rings_are_planned(void **state) {
    (void)state;
    const uint64_t limit = 4 << 20;
    qn_engine *plain = open_tiny(0), *traced = open_tiny(limit);
    assert_int_equal(other_bytes(traced) - other_bytes(plain), trace_rings_bytes(2, limit));
    qn_engine_close(plain);
    qn_engine_close(traced);
}

static void generate(qn_engine *e, uint32_t n) {
    const int32_t ids[] = {5, 6, 7};
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    s.temperature = 0;
    s.ignore_eos = 1;
    s.max_tokens = n;
    qn_prompt p = {.struct_size = sizeof p, .ids = ids, .n_ids = 3};
    qn_output out = {.struct_size = sizeof out};
    qn_request *r;
    qn_error error;
    assert_int_equal(qn_request_submit(e, &p, &s, &r, &error), QN_OK);
    do assert_int_equal(qn_request_next(r, -1, &out, &error), QN_OK);
    while (out.finish_reason == QN_RUNNING);
    qn_request_free(r);
}

/* ---- a parser of Perfetto's protobuf, enough to check what we write ----------------------- */

struct field {
    uint32_t number, wire;
    uint64_t value; /* wire 0 and 1 */
    const unsigned char *bytes;
    size_t n; /* wire 2 */
};

static uint64_t read_varint(const unsigned char **p, const unsigned char *end) {
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*p < end && shift < 64);
        unsigned char c = *(*p)++;
        v |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) return v;
    }
}

/* The next field of a message; false at its end. */
static bool next_field(const unsigned char **p, const unsigned char *end, struct field *f) {
    if (*p == end) return false;
    uint64_t key = read_varint(p, end);
    *f = (struct field){.number = (uint32_t)(key >> 3), .wire = (uint32_t)(key & 7)};
    assert_true(f->number > 0);
    if (f->wire == 0) {
        f->value = read_varint(p, end);
    } else if (f->wire == 1) {
        assert_true(end - *p >= 8);
        for (int i = 0; i < 8; i++) f->value |= (uint64_t)(*p)[i] << 8 * i;
        *p += 8;
    } else {
        assert_int_equal(f->wire, 2);
        f->n = read_varint(p, end);
        assert_true(f->n <= (size_t)(end - *p));
        f->bytes = *p;
        *p += f->n;
    }
    return true;
}

enum { MAX_TRACKS = 64, MAX_FLOWS = 1 << 17, MAX_NAMES = 512, MAX_VALUES = 8 };

struct parsed {
    uint64_t tracks[MAX_TRACKS];
    char track_names[MAX_TRACKS][64];
    int depth[MAX_TRACKS];
    uint64_t last[MAX_TRACKS]; /* time of the track's newest event */
    size_t n_tracks, n_slices, n_counters, n_instants, n_names, n_tasks;
    uint64_t values[MAX_TRACKS][MAX_VALUES]; /* the first of a counter */
    size_t n_values[MAX_TRACKS];
    bool names[MAX_NAMES];
    uint64_t flows[MAX_FLOWS], ends[MAX_FLOWS];
    size_t n_flows, n_ends;
};

static size_t track_of(const struct parsed *t, uint64_t uuid) {
    for (size_t i = 0; i < t->n_tracks; i++)
        if (t->tracks[i] == uuid) return i;
    fail_msg("an event on track %llu, which was never described", (unsigned long long)uuid);
    return 0;
}

static void parse_track(struct parsed *t, const struct field *m) {
    const unsigned char *p = m->bytes, *end = p + m->n;
    struct field f;
    assert_true(t->n_tracks < MAX_TRACKS);
    while (next_field(&p, end, &f)) {
        if (f.number == 1) t->tracks[t->n_tracks] = f.value;
        if (f.number == 2)
            snprintf(t->track_names[t->n_tracks], 64, "%.*s", (int)f.n, (const char *)f.bytes);
    }
    assert_true(t->tracks[t->n_tracks] != 0);
    t->n_tracks++;
}

static void parse_interned(struct parsed *t, const struct field *m) {
    const unsigned char *p = m->bytes, *end = p + m->n;
    struct field f, g;
    while (next_field(&p, end, &f)) {
        const unsigned char *q = f.bytes, *q_end = q + f.n;
        uint64_t id = 0;
        while (next_field(&q, q_end, &g))
            if (g.number == 1) id = g.value;
        assert_true(id > 0 && id < MAX_NAMES);
        if (f.number == 2) assert_false(t->names[id]); /* interned once */
        if (f.number == 2) t->names[id] = true;
    }
}

static void parse_event(struct parsed *t, const struct field *m, uint64_t time) {
    const unsigned char *p = m->bytes, *end = p + m->n;
    struct field f;
    uint64_t type = 0, uuid = 0, name = 0, counted = 0;
    bool spelled = false, value = false;
    while (next_field(&p, end, &f)) {
        if (f.number == 9) type = f.value;
        if (f.number == 11) uuid = f.value;
        if (f.number == 10) name = f.value;
        if (f.number == 23) spelled = f.n > 0;
        if (f.number == 30) value = true;
        if (f.number == 30) counted = f.value;
        if (f.number == 47) t->flows[t->n_flows++] = f.value;
        if (f.number == 48) t->ends[t->n_ends++] = f.value;
        assert_true(t->n_flows < MAX_FLOWS && t->n_ends < MAX_FLOWS);
    }
    size_t track = track_of(t, uuid);
    assert_true(time >= t->last[track]); /* in order on every track */
    t->last[track] = time;
    if (type == 1 || type == 3) assert_true(spelled || (name < MAX_NAMES && t->names[name]));
    if (type == 1) {
        assert_int_equal(t->depth[track]++, 0); /* slices of one track never overlap */
        t->n_slices++;
        t->n_tasks += strstr(t->track_names[track], ": tasks") != NULL;
    } else if (type == 2) {
        assert_int_equal(--t->depth[track], 0);
    } else if (type == 4) {
        assert_true(value);
        if (t->n_values[track] < MAX_VALUES) t->values[track][t->n_values[track]] = counted;
        t->n_values[track]++;
        t->n_counters++;
    } else {
        assert_int_equal(type, 3);
        t->n_instants++;
    }
}

static void parse_packet(struct parsed *t, const struct field *m) {
    const unsigned char *p = m->bytes, *end = p + m->n;
    struct field f, event = {0};
    uint64_t time = 0, sequence = 0;
    while (next_field(&p, end, &f)) {
        if (f.number == 8) time = f.value;
        if (f.number == 10) sequence = f.value;
        if (f.number == 11) event = f;
        if (f.number == 12) parse_interned(t, &f);
        if (f.number == 60) parse_track(t, &f);
    }
    assert_int_equal(sequence, 1);
    if (event.bytes) parse_event(t, &event, time);
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static struct parsed *parse(const char *bytes, size_t n) {
    struct parsed *t = calloc(1, sizeof *t);
    const unsigned char *p = (const unsigned char *)bytes, *end = p + n;
    struct field f;
    assert_non_null(t);
    while (next_field(&p, end, &f)) {
        assert_int_equal(f.number, 1);
        parse_packet(t, &f);
    }
    for (size_t i = 0; i < t->n_tracks; i++) assert_int_equal(t->depth[i], 0);
    qsort(t->flows, t->n_flows, sizeof t->flows[0], by_number);
    qsort(t->ends, t->n_ends, sizeof t->ends[0], by_number);
    for (size_t i = 1; i < t->n_flows; i++) assert_true(t->flows[i] != t->flows[i - 1]);
    for (size_t i = 1; i < t->n_ends; i++) assert_true(t->ends[i] != t->ends[i - 1]);
    return t;
}

static struct parsed *parse_file(const char *path) {
    struct diag d = {0};
    struct mapfile f;
    assert_int_equal(mapfile_open(&d, path, 1 << 30, &f), QN_OK);
    struct parsed *t = parse((const char *)f.data, f.bytes);
    mapfile_close(&f);
    return t;
}

/* ---- tests -------------------------------------------------------------------------------- */

static void whole_run(void **state) {
    (void)state;
    char path[] = "/tmp/quern-trace-XXXXXX";
    close(mkstemp(path));
    qn_engine *e = open_tiny(16 << 20);
    qn_error error;
    generate(e, 12);
    assert_int_equal(qn_engine_trace_write(e, path, &error), QN_OK);
    struct parsed *t = parse_file(path);
    /* prefill of three tokens and eleven decode steps; every flow that begins also ends */
    const struct prog_variant *v = PROG(e->program, VARIANT);
    assert_true(t->n_tasks >= 12 * v->n_tasks);
    assert_int_equal(t->n_counters, 12 * 5);
    assert_int_equal(t->n_flows, t->n_ends);
    assert_memory_equal(t->flows, t->ends, t->n_flows * sizeof t->flows[0]);
    assert_true(t->n_flows > 11 * (v->n_tasks - 1));
    free(t);
    qn_engine_close(e);
    remove(path);
}

static uint64_t written_to(const qn_engine *e, uint32_t ring) {
    return __atomic_load_n(&rt_trace_ring(e->trace, ring)->n, __ATOMIC_ACQUIRE);
}

/* The smallest rings: the oldest records go, their number is known, what is left is still whole. */
static void overflow(void **state) {
    (void)state;
    struct diag d = {0};
    struct trace trace;
    qn_engine *e = open_tiny(1);
    generate(e, 100);
    trace_rings_switch(e->trace, false);
    generate(e, 1);
    assert_int_equal(trace_read(&d, e->trace, e->program, &trace), QN_OK);
    uint64_t written = 0;
    for (uint32_t i = 0; i < e->trace->n_rings; i++) written += written_to(e, i);
    assert_true(trace.n_dropped > 0);
    assert_int_equal(trace.n_records + trace.n_dropped, written);
    size_t complete = 0;
    for (size_t i = 0; i < trace.iters.n; i++) complete += trace.iters.items[i].complete;
    assert_true(complete > 0 && complete < 100);
    struct strbuf out = {0};
    assert_int_equal(trace_perfetto(&d, &trace, "overflow", &out), QN_OK);
    free(parse(out.text, out.n));
    strbuf_fini(&out);
    trace_fini(&trace);
    qn_engine_close(e);
}

static void *write_often(void *arg) {
    qn_engine *e = arg;
    for (int i = 0; i < 20; i++) {
        struct diag d = {0};
        struct trace trace;
        struct strbuf out = {0};
        assert_int_equal(trace_read(&d, e->trace, e->program, &trace), QN_OK);
        for (size_t k = 0; k < trace.runs.n; k++)
            assert_true(trace.runs.items[k].ready <= trace.runs.items[k].end);
        assert_int_equal(trace_perfetto(&d, &trace, "live", &out), QN_OK);
        free(parse(out.text, out.n));
        strbuf_fini(&out);
        trace_fini(&trace);
    }
    return NULL;
}

/* Readers beside writers that overwrite what is read. */
static void while_running(void **state) {
    (void)state;
    pthread_t reader;
    qn_engine *e = open_tiny(1);
    assert_int_equal(pthread_create(&reader, NULL, write_often, e), 0);
    for (int i = 0; i < 4; i++) generate(e, 60);
    pthread_join(reader, NULL);
    qn_engine_close(e);
}

static void switched_off(void **state) {
    (void)state;
    qn_error error;
    qn_engine *e = open_tiny(1 << 20), *plain = open_tiny(0);
    assert_int_equal(qn_engine_trace_switch(e, 0, &error), QN_OK);
    generate(e, 1); /* whoever was just writing is done with it */
    uint64_t before = written_to(e, 0);
    generate(e, 8);
    assert_int_equal(written_to(e, 0), before);
    assert_int_equal(qn_engine_trace_switch(plain, 1, &error), QN_EINVAL);
    assert_int_equal(qn_engine_trace_write(plain, "/tmp/none", &error), QN_EINVAL);
    assert_int_equal(qn_engine_trace_write(e, "/no/such/folder/trace", &error), QN_EIO);
    assert_non_null(strstr(error.message, "/no/such/folder/trace"));
    qn_engine_close(e);
    qn_engine_close(plain);
}

/* ---- a run made up ------------------------------------------------------------------------ */

static void put(struct rt_trace *t, uint32_t ring, uint64_t time, uint32_t kind, uint32_t aux,
                uint32_t what) {
    struct rt_trace_ring *r = rt_trace_ring(t, ring);
    *rt_trace_at(t, r, r->n) = (struct rt_trace_record){time, kind | aux << 8, what};
    r->begun = ++r->n;
}

static void compile(const qn_engine_params *params, struct prog_header **program) {
    struct diag d = {0};
    qn_engine_params p;
    const struct backend *backend;
    struct model *model;
    struct engine_plan plan;
    assert_int_equal(engine_params(&d, params, &p), QN_OK);
    assert_int_equal(backend_find(&d, p.backend, &backend), QN_OK);
    assert_int_equal(engine_model(&d, &p, &model), QN_OK);
    assert_int_equal(engine_program(&d, &p, model, backend, NULL, NULL, &plan, program), QN_OK);
    model_free(model);
}

enum { TASK_NS = 1000, GAP_NS = 10, START = 5000, BOUNDARY = 7 };

/* All tasks of the first variant one after the other on worker 0, TASK_NS each, GAP_NS between
 * them; worker 1 does nothing. Three iterations; returns the length of one. */
static uint64_t make_run(struct rt_trace *rings, const struct prog_header *program) {
    const struct prog_variant *v = PROG(program, VARIANT);
    uint64_t now = START, length = 0;
    for (uint32_t iteration = 1; iteration <= 3; iteration++) {
        put(rings, 1, now, RT_TRACE_ROWS, 1, 1);
        put(rings, 1, now, RT_TRACE_RUNNING, 0, 1);
        put(rings, 1, now, RT_TRACE_CONTEXT, 0, 10);
        put(rings, 1, now, RT_TRACE_ITER, 0, iteration);
        uint64_t start = now;
        for (uint32_t i = 0; i < v->n_tasks; i++) {
            now += GAP_NS;
            put(rings, 0, now, RT_TRACE_READY, 0, v->first_task + i);
            now += TASK_NS;
            put(rings, 0, now, RT_TRACE_END, 0, v->first_task + i);
        }
        length = now - start;
        put(rings, 0, now, RT_TRACE_DONE, 0, iteration);
        now += BOUNDARY;
    }
    return length;
}

static bool has_track(const struct parsed *t, const char *name, size_t *track) {
    for (*track = 0; *track < t->n_tracks; (*track)++)
        if (strcmp(t->track_names[*track], name) == 0) return true;
    return false;
}

static struct parsed *perfetto(const struct trace *trace) {
    struct diag d = {0};
    struct strbuf out = {0};
    assert_int_equal(trace_perfetto(&d, trace, "made up", &out), QN_OK);
    struct parsed *t = parse(out.text, out.n);
    strbuf_fini(&out);
    return t;
}

static void exact_account(void **state) {
    (void)state;
    struct diag d = {0};
    qn_engine_params p = tiny(0);
    struct prog_header *program = NULL;
    struct rt_trace *rings;
    struct trace trace;
    struct profile profile;
    compile(&p, &program);
    assert_int_equal(trace_rings_new(&d, program->n_workers, 0, &rings), QN_OK);
    const struct prog_variant *v = PROG(program, VARIANT);
    uint64_t length = make_run(rings, program);
    assert_int_equal(trace_read(&d, rings, program, &trace), QN_OK);
    assert_int_equal(trace.iters.n, 3);
    for (size_t i = 0; i < 3; i++) assert_true(trace.iters.items[i].complete);
    assert_int_equal(profile_make(&d, &trace, 1, 0, &profile), QN_OK);
    assert_int_equal(profile.n_iters, 3);
    assert_int_equal(profile.boundary_ns, 3 * BOUNDARY);
    assert_int_equal(profile.ns, 3 * (length + BOUNDARY));
    uint64_t tasks = 0, in_tasks = 0, waited = 0;
    for (int k = 0; k < N_OP_KINDS; k++) {
        tasks += profile.ops[k].n_tasks;
        in_tasks += profile.ops[k].ns;
        waited += profile.ops[k].waited_ns;
    }
    assert_int_equal(tasks, 3 * v->n_tasks);
    assert_int_equal(in_tasks, (uint64_t)3 * v->n_tasks * TASK_NS);
    /* worker 1 waited for the last task from start to end; worker 0 only between tasks */
    assert_int_equal(waited, 3 * length);
    assert_int_equal(profile.waited_for[0], 3 * length);
    assert_int_equal(profile.waited_for[1], 0);
    assert_int_equal(profile.hand_over_ns, (uint64_t)3 * v->n_tasks * GAP_NS);
    /* no time of any worker is missing or counted twice */
    assert_int_equal(in_tasks + waited + profile.hand_over_ns, 2 * 3 * length);
    /* and the longest chain is the whole iteration */
    assert_int_equal(profile.path.n, v->n_tasks);
    assert_int_equal(profile.path_gap_ns, (uint64_t)v->n_tasks * GAP_NS);
    profile_fini(&profile);
    assert_int_equal(profile_make(&d, &trace, 2, 0, &profile), QN_EINVAL); /* no batch of two */
    trace_fini(&trace);
    free(rings);
    free(program);
}

/* ---- the page rings of a GPU -------------------------------------------------------------- */

/* `flying` pages of 8 KiB under way, n_free still free. */
static void put_pages(struct rt_trace *t, uint32_t ring, uint64_t time, uint32_t flying,
                      uint32_t n_free, uint32_t task) {
    put(t, ring, time, RT_TRACE_PAGES, RT_TRACE_PAGES_AUX(flying, n_free, 8), task);
}

static void expect_counter(const struct parsed *t, const char *name, const uint64_t *want,
                           size_t n) {
    size_t track;
    assert_true(has_track(t, name, &track));
    assert_int_equal(t->n_values[track], n);
    assert_memory_equal(t->values[track], want, n * sizeof *want);
}

/* Sums over both workers, from when both have spoken; averages over the iterations' time. */
static void page_rings(void **state) {
    (void)state;
    enum { PAGE = 8192 };
    struct diag d = {0};
    qn_engine_params p = tiny(0);
    struct prog_header *program = NULL;
    struct rt_trace *rings;
    struct trace trace;
    struct profile profile;
    size_t none;
    compile(&p, &program);
    assert_int_equal(trace_rings_new(&d, program->n_workers, 0, &rings), QN_OK);
    double total = 3.0 * (double)make_run(rings, program);
    assert_int_equal(trace_read(&d, rings, program, &trace), QN_OK);
    struct parsed *t = perfetto(&trace); /* a CPU has no pages, and no such tracks */
    assert_false(has_track(t, "bytes in flight", &none) || has_track(t, "pages free", &none));
    assert_int_equal(trace.pages.n + trace.n_loaders, 0);
    free(t);
    trace_fini(&trace);

    put_pages(rings, 0, START + 100, 5, 3, 4);
    put_pages(rings, 0, START + 300, 0, 24, 5);
    put_pages(rings, 1, START + 200, 2, 20, 4);
    put_pages(rings, 1, START + 400, 2, 0, 5);
    put_pages(rings, 1, START + 500, 9, 9, UINT32_MAX); /* no task */
    assert_int_equal(trace_read(&d, rings, program, &trace), QN_OK);
    assert_int_equal(trace.pages.n, 4);
    assert_int_equal(trace.n_loaders, 2);
    assert_int_equal(trace.pages.items[1].worker, 1);
    t = perfetto(&trace);
    expect_counter(t, "bytes in flight", (uint64_t[]){7 * PAGE, 2 * PAGE}, 2);
    expect_counter(t, "pages free", (uint64_t[]){23, 44, 24}, 3);
    free(t);
    assert_int_equal(profile_make(&d, &trace, 1, 0, &profile), QN_OK);
    double flying = (100 * 7 + (total - 300) * 2) * PAGE / (total - 200);
    double n_free = (100 * 23 + 100 * 44 + (total - 400) * 24) / (total - 200);
    assert_true(profile.flying_bytes > 0.999999 * flying);
    assert_true(profile.flying_bytes < 1.000001 * flying);
    assert_true(profile.pages_free > 0.999999 * n_free);
    assert_true(profile.pages_free < 1.000001 * n_free);
    profile_fini(&profile);
    trace_fini(&trace);
    free(rings);
    free(program);
}

/* ---- the public function ------------------------------------------------------------------ */

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) fail_msg("%s: not a number", key);
    return json_number_value(v);
}

static void profile_adds_up(void **state) {
    (void)state;
    qn_engine_params p = tiny(0);
    qn_profile_params how;
    qn_error error;
    char *json, *html;
    p.max_model_len = 0;
    p.max_num_seqs = 0;
    qn_profile_params_init(&how);
    how.batch_size = 2;
    how.output_len = 24;
    if (qn_profile(&p, &how, &json, &html, &error) != QN_OK) fail_msg("%s", error.message);
    json_t *o = json_loads(json, 0, NULL), *op, *loss;
    size_t i;
    assert_non_null(o);
    double sum = number(o, "wait_us") + number(o, "hand_over_us") + number(o, "boundary_us") +
                 number(o, "wake_us");
    double bytes = 0, last = 1e300, total = number(o, "iteration_us");
    json_array_foreach(json_object_get(o, "operators"), i, op) {
        sum += number(op, "us");
        bytes += number(op, "bytes");
    }
    assert_true(sum > 0.98 * total && sum < 1.02 * total);
    assert_true(bytes > 10e6); /* the weights */
    assert_true(bytes > 0.999999 * number(o, "bytes") && bytes < 1.000001 * number(o, "bytes"));
    assert_true(number(json_object_get(o, "critical_path"), "us") > 0);
    assert_true(json_array_size(json_object_get(o, "losses")) == 5);
    json_array_foreach(json_object_get(o, "losses"), i, loss) {
        assert_true(number(loss, "us") <= last && number(loss, "us") > 0);
        last = number(loss, "us");
        assert_true(strlen(json_string_value(json_object_get(loss, "why"))) > 20);
    }
    assert_true(number(json_object_get(o, "trace"), "ns_per_record") > 0);
    assert_null(strstr(html, "@@"));
    assert_null(strstr(html, "http://"));
    assert_null(strstr(html, "https://"));
    json_decref(o);
    qn_free(json);
    qn_free(html);
    how.batch_size = 0;
    assert_int_equal(qn_profile(&p, &how, &json, NULL, &error), QN_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_run),       cmocka_unit_test(overflow),
        cmocka_unit_test(while_running),   cmocka_unit_test(switched_off),
        cmocka_unit_test(exact_account),   cmocka_unit_test(page_rings),
        cmocka_unit_test(profile_adds_up), cmocka_unit_test(rings_are_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
