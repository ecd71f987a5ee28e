/* What rides on data and what is its workers' own (task/transport.c). */
#include "base/checked.h"
#include "task/fixture.h"
#include "task/stage_test.h"

#include <string.h>

/* A decode step's small vectors carry their own flags; what a JIT task or the KV cache is behind,
 * and what is large, is counted. */
static void small_activations_ride_on_data(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
    const struct {
        uint32_t rows, max_len;
        unsigned cuts;
        enum launch_policy launch;
        uint64_t most;
        uint32_t per_layer; /* events, after the first; 0: nothing rides */
    } cases[] = {
        {1, 2048, FIXTURE_STEP, LAUNCH_HYBRID, 65536, 0},
        {1, 2048, FIXTURE_STEP, LAUNCH_ALL_AOT, 0, 0},
        {64, 2048, FIXTURE_MANY, LAUNCH_ALL_AOT, 65536, 0},
        {64, 2048, FIXTURE_CUT, LAUNCH_ALL_AOT, 65536, 0},
        /* embed -> qkv; per layer o-proj -> mlp -> down -> (next qkv or lm head), and projections
         * -> step -> merge -> o-proj, unless the pieces are too many */
        {1, 2048, FIXTURE_STEP, LAUNCH_ALL_AOT, 65536, 6},
        {1, 32768, FIXTURE_STEP, LAUNCH_ALL_AOT, 65536, 5},
        {1, 256, KGRAPH_CUT_QKV | KGRAPH_JOIN_HEADS, LAUNCH_ALL_AOT, 65536, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diag d = {0};
        struct fixture f;
        struct prog_header *p;
        struct task_options o = defaults;
        o.launch = cases[i].launch;
        o.transport_bytes = cases[i].most;
        ok(&d, fixture_compile(&d, &f, &spec, cases[i].rows, cases[i].max_len, cases[i].cuts, &o));
        struct task_stats s;
        tgraph_stats(&f.tasks, STAGE_TRANSPORT, &s);
        assert_int_equal(s.n_data_events, cases[i].per_layer > 0 ? 1 + cases[i].per_layer * 3 : 0);
        ok(&d, fixture_program(&d, &f, cases[i].max_len, &p));
        ok(&d, task_verify(&d, p, NULL));
        free(p);
        fixture_fini(&f);
    }
}

/* A task that adds to what is its own worker's. */
static uint32_t adds_to_own(const struct prog_header *p) {
    for (uint32_t i = (uint32_t)p->section[SECTION_TASK].count; i-- > 0;) {
        const struct prog_task *t = &PROG(p, TASK)[i];
        if (t->kind == OP_LINEAR &&
            PROG(p, TENSOR)[PROG(p, OP)[t->op].in[LINEAR_RESIDUAL]].transport == TRANSPORT_OWN)
            return i;
    }
    return PROG_NONE;
}

/* Two tasks of one operator change workers. */
static void swap_workers(struct prog_header *p, uint32_t a, uint32_t b) {
    struct prog_task *tasks = (struct prog_task *)PROG(p, TASK);
    uint32_t *aot = (uint32_t *)PROG(p, AOT);
    const uint16_t worker = tasks[a].worker;
    assert_true(tasks[a].op == tasks[b].op && tasks[a].worker != tasks[b].worker);
    for (uint32_t i = 0; i < p->section[SECTION_AOT].count; i++)
        if (aot[i] == a || aot[i] == b) aot[i] = aot[i] == a ? b : a;
    tasks[a].worker = tasks[b].worker;
    tasks[b].worker = worker;
}

/* What LINEAR of several rows adds to is its own worker's, in one of two places. It is read before
 * any event: a program in which another worker does so is rejected, though events order them. */
static void the_stream_is_its_workers_own(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
    const uint32_t cuts[] = {FIXTURE_SENTINELS, FIXTURE_WHOLE}; /* events ride; they are counters */
    for (size_t c = 0; c < COUNT_OF(cuts); c++) {
        struct diag d = {0};
        struct fixture f;
        struct prog_header *p;
        struct task_options o = defaults;
        o.device.n_workers = 24;
        o.launch = LAUNCH_ALL_AOT;
        o.transport_bytes = 65536;
        ok(&d, fixture_compile(&d, &f, &spec, PACK_ROWS, 256, cuts[c], &o));
        ok(&d, fixture_program(&d, &f, 256, &p));
        ok(&d, task_verify(&d, p, NULL));
        uint64_t first = UINT64_MAX, end = 0, bytes = 0;
        for (uint64_t i = 0; i < p->section[SECTION_TENSOR].count; i++) {
            const struct prog_tensor *t = &PROG(p, TENSOR)[i];
            if (t->transport != TRANSPORT_OWN) continue;
            first = MIN(first, t->where);
            end = MAX(end, t->where + t->bytes);
            bytes = t->bytes;
        }
        assert_int_equal(end - first, 2 * bytes);
        const uint32_t adds = adds_to_own(p);
        assert_true(adds != PROG_NONE);
        swap_workers(p, adds, adds - 1);
        assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
        assert_non_null(strstr(d.message, "race"));
        free(p);
        fixture_fini(&f);
    }
}

/* Of several rows they are sentinels until they are stored: whatever is between two layers'
 * linear operators rides, in one space that RESET_SENTINELS writes. A program whose space is no
 * space, or of which RESET_SENTINELS leaves a part out, is rejected. */
static void several_rows_ride_on_words(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    struct task_options o = defaults;
    struct task_stats s;
    o.device.n_workers = 24;
    o.launch = LAUNCH_ALL_AOT;
    o.transport_bytes = 65536;
    ok(&d, fixture_compile(&d, &f, &spec, PACK_ROWS, 256, FIXTURE_SENTINELS, &o));
    tgraph_stats(&f.tasks, STAGE_TRANSPORT, &s);
    assert_int_equal(s.n_data_events, 5 * 3);
    ok(&d, fixture_program(&d, &f, 256, &p));
    ok(&d, task_verify(&d, p, NULL));
    struct prog_tensor *tensors = (struct prog_tensor *)PROG(p, TENSOR), *space = NULL;
    struct prog_task *tasks = (struct prog_task *)PROG(p, TASK);
    uint64_t n_sentinel = 0, own = 0;
    for (uint64_t i = 0; i < p->section[SECTION_TENSOR].count; i++) {
        n_sentinel += tensors[i].transport == TRANSPORT_SENTINEL;
        own += tensors[i].transport == TRANSPORT_OWN;
        if (tensors[i].transport == TRANSPORT_SPACE) space = &tensors[i];
    }
    assert_true(n_sentinel >= 5 * 3);
    assert_int_equal(own, 2 * 3);
    assert_non_null(space);
    space->transport = TRANSPORT_COUNTER;
    assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
    assert_non_null(strstr(d.message, "shares bytes"));
    space->transport = TRANSPORT_SPACE;
    diag_clear(&d);
    for (uint64_t i = 0; i < p->section[SECTION_TASK].count; i++) {
        if (tasks[i].kind != OP_RESET_SENTINELS) continue;
        const struct prog_task task = tasks[i];
        tasks[i].unit1--; /* a unit is left as it is */
        assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
        tasks[i] = task;
        diag_clear(&d);
        break;
    }
    ok(&d, task_verify(&d, p, NULL));
    free(p);
    fixture_fini(&f);
}

/* The kernels whose tasks read all columns of their own rows. */
static bool reads_its_rows(uint16_t kind) {
    return kind == OP_QKV || kind == OP_LINEAR || kind == OP_GATED_MLP;
}

/* The dependents poll the first of two rows only. So no task that waits for the second row learns
 * that it is stored. */
static void an_event_rides_only_if_all_is_polled(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 256, 4, 2, 64, 512, 1000);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    struct task_options o = defaults;
    uint32_t n = 0;
    o.launch = LAUNCH_ALL_AOT;
    o.transport_bytes = 1 << 20;
    ok(&d, fixture_compile(&d, &f, &spec, 2, 2048, 0, &o));
    ok(&d, fixture_program(&d, &f, 2048, &p));
    ok(&d, task_verify(&d, p, NULL));
    struct prog_task *tasks = (struct prog_task *)PROG(p, TASK);
    for (uint64_t i = 0; i < p->section[SECTION_EVENT].count; i++) {
        const struct prog_event e = PROG(p, EVENT)[i];
        if (e.transport == TRANSPORT_COUNTER || !reads_its_rows(tasks[e.first_task].kind)) continue;
        for (uint32_t k = 0; k < e.n_tasks; k++) tasks[e.first_task + k].row1 = 1;
        assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
        assert_non_null(strstr(d.message, "rides on data"));
        for (uint32_t k = 0; k < e.n_tasks; k++) tasks[e.first_task + k].row1 = 2;
        diag_clear(&d);
        n++;
    }
    assert_true(n > 0);
    ok(&d, task_verify(&d, p, NULL));
    free(p);
    fixture_fini(&f);
}

/* The event of the attention pieces' operator; PROG_NONE: it does not ride. */
static uint32_t event_of_pieces(const struct prog_header *p) {
    for (uint64_t i = 0; i < p->section[SECTION_TASK].count; i++) {
        const struct prog_task *t = &PROG(p, TASK)[i];
        if (t->kind == OP_ATTENTION_SPLIT)
            return PROG(p, EVENT)[t->trigger].transport != TRANSPORT_COUNTER ? t->trigger
                                                                             : PROG_NONE;
    }
    return PROG_NONE;
}

/* Queries over latents are behind a counter, since LATENT_HEADS also writes the cache. The pieces
 * ride all the same: what merges them writes nothing plain that ATTENTION_SPLIT could read. If it
 * does write plain data, the program is rejected. */
static void pieces_ride_behind_a_counter(void **state) {
    (void)state;
    struct model_spec spec = fixture_spec(1, 256, 4, 1, 24, 512, 1000);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    struct task_options o = defaults;
    spec.latent = (struct latent_spec){.kv_rank = 32, .rope = 8, .v_dim = 16, .scale = 1};
    o.coarse_events = true;
    o.launch = LAUNCH_ALL_AOT;
    o.transport_bytes = 65536;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 256, KGRAPH_CUT_ATTENTION, &o));
    ok(&d, fixture_program(&d, &f, 256, &p));
    ok(&d, task_verify(&d, p, NULL));
    const uint32_t event = event_of_pieces(p);
    assert_true(event != PROG_NONE);
    const struct prog_task *merge = &PROG(p, TASK)[PROG(p, EVENT)[event].first_task];
    struct prog_event *next = (struct prog_event *)PROG(p, EVENT) + merge->trigger;
    struct prog_tensor *out = (struct prog_tensor *)PROG(p, TENSOR) + PROG(p, OP)[merge->op].out[0];
    next->transport = out->transport = TRANSPORT_COUNTER;
    assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
    assert_non_null(strstr(d.message, "as its dependents do"));
    free(p);
    fixture_fini(&f);
}

/* Whether the event that a kind's tasks wait for rides: 1, 0, or -1 if there is no such task, or
 * some do and some do not. */
static int kind_rides(const struct prog_header *p, enum op_kind kind) {
    int rides = -1;
    for (uint64_t i = 0; i < p->section[SECTION_TASK].count; i++) {
        const struct prog_task *t = &PROG(p, TASK)[i];
        if (t->kind != kind) continue;
        const int now = PROG(p, EVENT)[t->wait].transport != TRANSPORT_COUNTER;
        if (rides >= 0 && now != rides) return -1;
        rides = now;
    }
    return rides;
}

/* Several rows of a model with experts: what EXPERT_DOWN makes is its workers' own, or rides, if
 * the next O projection's tasks are others. So O reads nothing plain behind attention. All events
 * ride but those of the list of experts and of h. ROUTER's tasks may share out the rows: then they
 * poll together what the O projection made, and its copy for the next norm, which nobody reads,
 * stands for nothing. */
static void several_rows_ride_between_experts(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
        struct diag d = {0};
        struct fixture f;
        struct prog_header *p;
        struct task_options o = defaults;
        const uint32_t n_rows = i % 2 != 0 ? 2 * PACK_ROWS : PACK_ROWS;
        spec.experts = (struct experts_spec){.n = 8, .top_k = 2, .width = 64};
        spec.experts.shared_width = i / 2 % 2 * 256;
        o.device.n_workers = 24;
        o.launch = LAUNCH_ALL_AOT;
        o.transport_bytes = 65536;
        o.tiles[OP_ROUTER].row_tiles = i / 4 != 0 ? 4 : 1;
        ok(&d, fixture_compile(&d, &f, &spec, n_rows, 256, FIXTURE_SENTINELS, &o));
        ok(&d, fixture_program(&d, &f, 256, &p));
        ok(&d, task_verify(&d, p, NULL));
        assert_int_equal(kind_rides(p, OP_QKV_LINEAR), 1);
        assert_int_equal(kind_rides(p, OP_ATTENTION_WHOLE), 1);
        assert_int_equal(kind_rides(p, OP_LINEAR), 1);
        assert_int_equal(kind_rides(p, OP_ROUTER), 1);
        assert_int_equal(kind_rides(p, OP_ROUTE), 1);
        assert_int_equal(kind_rides(p, OP_EXPERT_GATE_UP), 0);
        assert_int_equal(kind_rides(p, OP_EXPERT_DOWN), 0);
        for (uint64_t k = 0; k < p->section[SECTION_OP].count; k++) {
            const struct prog_op *op = &PROG(p, OP)[k];
            if (op->kind != OP_EXPERT_DOWN) continue;
            const uint32_t have = PROG(p, TENSOR)[op->out[STREAM_X]].transport;
            const bool own = n_rows == PACK_ROWS && spec.experts.shared_width == 0;
            assert_true(have == TRANSPORT_OWN || (!own && have == TRANSPORT_SENTINEL));
        }
        free(p);
        fixture_fini(&f);
    }
}

/* The event of the experts' h. */
static uint32_t event_of_h(const struct prog_header *p) {
    for (uint64_t i = 0; i < p->section[SECTION_TASK].count; i++)
        if (PROG(p, TASK)[i].kind == OP_EXPERT_GATE_UP) return PROG(p, TASK)[i].trigger;
    return PROG_NONE;
}

/* Makes the event of h ride, by pairs of h. Its bytes are no other tensor's. */
static void let_h_ride(struct prog_header *p) {
    const uint32_t event = event_of_h(p);
    ((struct prog_event *)PROG(p, EVENT))[event].transport = TRANSPORT_FLAG;
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++) {
        const struct prog_op *op = &PROG(p, OP)[i];
        if (op->kind != OP_EXPERT_GATE_UP) continue;
        struct prog_tensor *h = (struct prog_tensor *)PROG(p, TENSOR) + op->out[0];
        h->transport = TRANSPORT_PAIR;
        h->space = SPACE_OWN;
    }
}

/* EXPERT_DOWN of a single row reads ROUTE's weights behind h, which rides: its worker has waited
 * for ROUTE before, with a task of EXPERT_GATE_UP. If a worker has none, h is behind a counter, and
 * nothing else is; a program in which it rides all the same is rejected. What shared experts made
 * has h's event and rides with it. */
static void experts_ride_where_the_list_is_known(void **state) {
    (void)state;
    struct model_spec spec = fixture_spec(1, 256, 4, 2, 64, 512, 1000);
    uint32_t n_rides[2] = {0, 0};
    spec.experts = (struct experts_spec){.n = 8, .top_k = 2, .width = 64};
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t known = i % 2;
        spec.experts.shared_width = i / 2 * 96;
        struct diag d = {0};
        struct fixture f;
        struct prog_header *p;
        struct task_stats s;
        struct task_options o = defaults;
        o.launch = LAUNCH_ALL_AOT;
        o.transport_bytes = 65536;
        if (!known) o.tiles[OP_EXPERT_GATE_UP].unit_tiles = o.device.n_workers - 1;
        ok(&d, fixture_compile(&d, &f, &spec, 1, 256, FIXTURE_STEP, &o));
        tgraph_stats(&f.tasks, STAGE_TRANSPORT, &s);
        n_rides[known] = (uint32_t)s.n_data_events;
        ok(&d, fixture_program(&d, &f, 256, &p));
        ok(&d, task_verify(&d, p, NULL));
        const bool rides = PROG(p, EVENT)[event_of_h(p)].transport != TRANSPORT_COUNTER;
        assert_int_equal(rides, known);
        if (known) assert_int_equal(n_rides[1], n_rides[0] + 1);
        if (spec.experts.shared_width == 0) {
            let_h_ride(p);
            assert_int_equal(task_verify(&d, p, NULL), known ? QN_OK : QN_EVERIFY);
            if (!known) assert_non_null(strstr(d.message, "race"));
        }
        free(p);
        fixture_fini(&f);
    }
}

/* Elements of another size than the kernels store, in as many bytes fewer: they would store into
 * their neighbours. */
static void activations_have_the_type_that_kernels_store(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 256, 4, 2, 64, 512, 1000);
    const uint32_t cuts[] = {0, KGRAPH_CUT_QKV | KGRAPH_CUT_ATTENTION, FIXTURE_PACK, FIXTURE_MANY,
                             FIXTURE_CUT};
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        struct diag d = {0};
        struct fixture f;
        struct prog_header *p;
        ok(&d, fixture_compile(&d, &f, &spec, 6, 2048, cuts[c], &defaults)); /* no packed rows */
        ok(&d, fixture_program(&d, &f, 2048, &p));
        ok(&d, task_verify(&d, p, NULL));
        for (uint64_t i = 0; i < p->section[SECTION_TENSOR].count; i++) {
            struct prog_tensor *t = (struct prog_tensor *)PROG(p, TENSOR) + i;
            const struct prog_tensor was = *t;
            if (t->role != PROG_ACTIVATION || dtype_bytes(t->dtype) == 2) continue;
            t->dtype = DTYPE_BF16;
            t->bytes /= 2;
            int rc = program_check(&d, "test", p, p->total_bytes);
            if (rc == QN_OK) rc = task_verify(&d, p, NULL);
            if (rc == QN_OK) print_error("taken: %s\n", program_string(p, t->name));
            assert_int_not_equal(rc, QN_OK);
            diag_clear(&d);
            *t = was;
        }
        free(p);
        fixture_fini(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_activations_ride_on_data),
        cmocka_unit_test(the_stream_is_its_workers_own),
        cmocka_unit_test(several_rows_ride_on_words),
        cmocka_unit_test(several_rows_ride_between_experts),
        cmocka_unit_test(an_event_rides_only_if_all_is_polled),
        cmocka_unit_test(pieces_ride_behind_a_counter),
        cmocka_unit_test(experts_ride_where_the_list_is_known),
        cmocka_unit_test(activations_have_the_type_that_kernels_store),
    };
    return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
