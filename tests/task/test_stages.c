/* The compiler's stages on graphs of many shapes: what each promises, and the proof of the whole.
 */
#include "base/checked.h"
#include "task/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#undef fail

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void ok(const struct diag *d, int rc) {
    if (rc != QN_OK) print_error("%s\n", d->message);
    assert_int_equal(rc, QN_OK);
}

static const struct task_options defaults = {.device.n_workers = 4, .tasks_per_worker = 1};

static void every_shape_compiles_and_verifies(void **state) {
    (void)state;
    const struct model_spec specs[] = {
        fixture_spec(2, 64, 3, 1, 16, 100, 301), fixture_spec(3, 48, 6, 3, 32, 96, 1000),
        fixture_spec(1, 128, 1, 1, 128, 31, 63), fixture_spec(4, 96, 8, 8, 12, 256, 4096)};
    const uint32_t workers[] = {1, 2, 3, 7, 132}, rows[] = {1, 2, STEP_ROWS, 128};
    const enum launch_policy policies[] = {LAUNCH_HYBRID, LAUNCH_PAPER, LAUNCH_ALL_AOT,
                                           LAUNCH_ALL_JIT};
    for (size_t s = 0; s < 4; s++)
        for (size_t w = 0; w < 5; w++)
            for (size_t r = 0; r < 4; r++)
                for (int variation = 0; variation < 9; variation++) {
                    struct diag d = {0};
                    struct fixture f;
                    struct task_options o = defaults;
                    o.device.n_workers = workers[w];
                    o.tasks_per_worker = 1 + (variation & 1);
                    o.launch = policies[variation & 3];
                    o.coarse_events = variation == 5;
                    o.no_event_fusion = variation == 6 && workers[w] < 100;
                    o.transport_bytes = variation >= 2 ? 1 << 20 : 0;
                    struct prog_header *p;
                    uint32_t cuts = (uint32_t)variation & 3;
                    if (variation >= 7 && rows[r] <= STEP_ROWS) cuts |= KGRAPH_JOIN_HEADS;
                    if (o.transport_bytes > 0) cuts |= KGRAPH_CUT_QKV;
                    if ((variation == 6 || variation == 8) && rows[r] > 1)
                        cuts |= rows[r] <= SQUARES_ROWS ? FIXTURE_PACK
                                : w % 2 == 0            ? FIXTURE_MANY
                                                        : FIXTURE_CUT;
                    ok(&d, fixture_compile(&d, &f, &specs[s], rows[r], 2048, cuts, &o));
                    ok(&d, fixture_program(&d, &f, 2048, &p));
                    ok(&d, program_check(&d, "test", p, p->total_bytes));
                    ok(&d, task_verify(&d, p, NULL));
                    free(p);
                    fixture_fini(&f);
                }
}

static void events_are_fused_and_dummies_are_rare(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(8, 1024, 16, 8, 64, 3072, 32000);
    struct diag d = {0};
    struct fixture f;
    struct task_options o = defaults;
    o.device.n_workers = 64;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 2048, true, &o));
    struct task_stats s;
    tgraph_stats(&f.tasks, STAGE_PLACE, &s);
    /* A decode step is a chain of operators: one event between two of them, start and end. */
    assert_int_equal(s.n_events, f.kernel.ops.n + 1);
    assert_int_equal(s.n_dummies, 0);
    assert_true(s.n_pairs > 1000);
    /* Balance: the workers' weights differ by less than the largest tile of two operators. */
    assert_true(s.weight_bytes_max_worker - s.weight_bytes_min_worker < 2 * 64 * 1024 * 2);
    fixture_fini(&f);
}

/* Row tiles make finer dependencies than operators: some task must have two events to trigger. */
static void normalization_inserts_dummies_where_tasks_fan_out(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 64, 4, 2, 16, 128, 512);
    struct diag d = {0};
    struct fixture f;
    struct task_options o = defaults;
    o.tiles[OP_QKV].row_tiles = 4;
    o.tiles[OP_GATED_MLP].row_tiles = 2;
    o.tiles[OP_LINEAR].row_tiles = 3;
    ok(&d, fixture_compile(&d, &f, &spec, 12, 512, false, &o));
    struct task_stats s;
    tgraph_stats(&f.tasks, STAGE_PLACE, &s);
    assert_true(s.n_dummies > 0);
    struct prog_header *p;
    ok(&d, fixture_program(&d, &f, 512, &p));
    ok(&d, task_verify(&d, p, NULL));
    free(p);
    fixture_fini(&f);
}

/* Tasks of packed matrix products that have some of the graph's rows only, on 132 workers. */
static uint32_t tasks_of_some_rows(uint32_t n_rows, uint32_t cuts) {
    const struct model_spec spec = fixture_spec(1, 256, 4, 2, 64, 512, 1000);
    struct diag d = {0};
    struct fixture f;
    struct task_options o = defaults;
    o.device.n_workers = 132;
    ok(&d, fixture_compile(&d, &f, &spec, n_rows, 2048, cuts, &o));
    uint32_t n = 0;
    for (size_t i = 0; i < f.tasks.tasks.n; i++) {
        const struct task *t = &f.tasks.tasks.items[i];
        const bool product =
            t->kind == OP_QKV_LINEAR || t->kind == OP_LINEAR || t->kind == OP_GATED_MLP;
        n += product && t->row1 - t->row0 < n_rows;
    }
    fixture_fini(&f);
    return n;
}

/* ... up to 16, which one task takes at once, however many workers are idle. */
static void few_packed_rows_stay_together(void **state) {
    (void)state;
    assert_int_equal(tasks_of_some_rows(9, FIXTURE_PACK), 0);
    assert_int_equal(tasks_of_some_rows(16, FIXTURE_PACK), 0);
    assert_true(tasks_of_some_rows(64, FIXTURE_MANY) > 0);
}

/* Whole contexts: a task for each row and KV head, on the same workers in every layer, spread over
 * all; what comes next is on others. */
static void whole_contexts_stay_with_their_workers(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 64, 8, 1, 32, 96, 301);
    struct diag d = {0};
    struct fixture f;
    struct task_options o = defaults;
    o.device.n_workers = 40;
    o.launch = LAUNCH_ALL_AOT;
    ok(&d, fixture_compile(&d, &f, &spec, PACK_ROWS, 256, FIXTURE_WHOLE, &o));
    bool busy[40] = {false};
    uint32_t n = 0;
    for (size_t i = 0; i < f.tasks.tasks.n; i++) {
        const struct task *t = &f.tasks.tasks.items[i];
        if (t->kind != OP_ATTENTION_WHOLE) continue;
        assert_int_equal(t->unit1, PACK_ROWS);
        assert_int_equal(t->worker, t->unit0 * 40 / PACK_ROWS);
        busy[t->worker] = true;
        n++;
    }
    assert_int_equal(n, 3 * PACK_ROWS);
    for (size_t i = 0; i < f.tasks.tasks.n; i++) {
        const struct task *t = &f.tasks.tasks.items[i];
        const bool after =
            t->kind == OP_LINEAR && f.kernel.ops.items[t->op - 1].kind == OP_ATTENTION_WHOLE;
        if (after) assert_false(busy[t->worker]);
        n += after;
    }
    assert_true(n > 3 * PACK_ROWS);
    fixture_fini(&f);
}

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

/* Of two rows the second one is polled by nobody: whoever waits for it does not learn that it is
 * there. */
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

/* An operator's layer is one of the model's, or it has none. */
static void layers_are_the_models(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 64, 4, 2, 16, 128, 512);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 256, 0, &defaults));
    ok(&d, fixture_program(&d, &f, 256, &p));
    struct prog_op *op = (struct prog_op *)PROG(p, OP);
    for (int layer = 2; layer <= INT16_MAX; layer += 997) {
        op->layer = (int16_t)layer;
        assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
        assert_non_null(strstr(d.message, "layer"));
        diag_clear(&d);
    }
    op->layer = 1;
    ok(&d, program_check(&d, "test", p, p->total_bytes));
    free(p);
    fixture_fini(&f);
}

/* Some variant takes contexts of max_model_len, and none longer ones. */
static void a_program_takes_all_contexts(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 64, 4, 2, 16, 128, 512);
    const uint32_t wrong[] = {0, 255, 257, UINT32_MAX};
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 256, 0, &defaults));
    ok(&d, fixture_program(&d, &f, 256, &p));
    ok(&d, program_check(&d, "test", p, p->total_bytes));
    struct prog_variant *v =
        (struct prog_variant *)((char *)p + p->section[SECTION_VARIANT].offset);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        v->context = wrong[i];
        assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
        assert_non_null(strstr(d.message, "context"));
    }
    free(p);
    fixture_fini(&f);
}

/* Where each layer's cache begins follows from the rows before it, which may differ: here those of
 * plain attention, of keys wider than values, and of latent attention, values inside the keys. */
static void layers_have_rows_of_the_cache(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 64, 4, 2, 16, 128, 512);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    uint64_t bytes;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 256, 0, &defaults));
    ok(&d, fixture_program(&d, &f, 256, &p));
    struct kv_row *rows = (struct kv_row *)PROG(p, KV);
    assert_int_equal(p->section[SECTION_KV].count, 3);
    const uint64_t plain = 2ull * 2 * 16 * 2 * p->kv_block;
    ok(&d, program_kv_bytes(&d, p, 5, &bytes));
    assert_int_equal(bytes, 3 * 5 * plain);
    rows[1] = (struct kv_row){.heads = 3, .k_width = 24, .v_width = 16, .dtype = DTYPE_F32};
    rows[2] = (struct kv_row){
        .heads = 1, .k_width = 576, .v_width = 512, .v_in_k = 1, .dtype = DTYPE_BF16};
    const uint64_t wide = 3ull * (24 + 16) * 4 * p->kv_block, latent = 576ull * 2 * p->kv_block;
    ok(&d, program_kv_bytes(&d, p, 5, &bytes));
    assert_int_equal(bytes, 5 * (plain + wide + latent));
    assert_int_equal(program_kv_at(p, 0, 5), 0);
    assert_int_equal(program_kv_at(p, 2, 5), 5 * (plain + wide));
    assert_int_equal(kv_value_at(&rows[1], 8, 2, 7), 3 * 8 * 24 + (2 * 8 + 7) * 16);
    assert_int_equal(kv_value_at(&rows[2], 8, 0, 7), 7 * 576);
    /* The operators of this program would read 16 elements of each. */
    assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EUNSUPPORTED);
    assert_non_null(strstr(d.message, "wants a KV row of 2 heads"));
    rows[1] = (struct kv_row){.heads = SPEC_MAX_HEADS,
                              .k_width = KV_MAX_WIDTH,
                              .v_width = KV_MAX_WIDTH,
                              .dtype = DTYPE_F32};
    assert_int_equal(program_kv_bytes(&d, p, INT32_MAX, &bytes), QN_ELIMIT);
    free(p);
    fixture_fini(&f);
}

/* A part that is not within its tensor of the checkpoint never gets as far as the loader. */
static void sources_of_parts_are_checked(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 64, 4, 2, 16, 128, 512);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 256, 0, &defaults));
    ok(&d, fixture_program(&d, &f, 256, &p));
    const struct prog_weight *w = PROG(p, WEIGHT);
    while (w->n_dims != 2) w++;
    struct prog_part *part = (struct prog_part *)&PROG(p, PART)[w->first_part];
    const uint32_t rows = part->rows, cols = w->cols;
    const struct weight_source good[] = {{3 * rows, cols, rows, rows / 2, rows, 2, 0},
                                         {cols, rows, 0, rows, 0, 0, 1}};
    const struct weight_source bad[] = {
        {3 * rows, cols, 2 * rows, rows / 2, rows, 2, 0},
        {3 * rows, cols + 1, rows, rows / 2, rows, 2, 0},
        {3 * rows, cols, rows, rows / 2, UINT32_MAX, 2, 0},
        {3 * rows, cols, rows, rows - 1, rows, 2, 0}, /* not in whole runs */
        {3 * rows, cols, rows, rows / 2, rows, 3, 0},
        {3 * rows, cols, rows, rows / 2, rows, 2, 1},
        {3 * rows, cols, rows, rows / 2, rows, 0, 2},
        {cols, rows - 1, 0, rows, 0, 0, 1},
        {cols - 1, rows, 0, rows, 0, 0, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        part->source = good[i];
        ok(&d, program_check(&d, "test", p, p->total_bytes));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        part->source = bad[i];
        assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
        assert_non_null(strstr(d.message, "source"));
        diag_clear(&d);
    }
    free(p);
    fixture_fini(&f);
}

static void rows_of_the_cache_are_checked(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 64, 4, 2, 16, 128, 512);
    static const struct {
        struct kv_row row;
        const char *want; /* in the message */
    } cases[] = {{{0, 16, 16, 0, DTYPE_F32}, "heads"},
                 {{SPEC_MAX_HEADS + 1, 16, 16, 0, DTYPE_F32}, "heads"},
                 {{2, 0, 16, 0, DTYPE_F32}, "k_width"},
                 {{2, KV_MAX_WIDTH + 1, 16, 0, DTYPE_F32}, "k_width"},
                 {{2, 16, 0, 0, DTYPE_F32}, "v_width"},
                 {{2, 16, KV_MAX_WIDTH + 1, 0, DTYPE_F32}, "v_width"},
                 {{2, 16, 17, 1, DTYPE_F32}, "v_width"},
                 {{2, 16, 16, 2, DTYPE_F32}, "v_in_k"},
                 {{2, 16, 16, 0, DTYPE_I32}, "dtype"}};
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    ok(&d, fixture_compile(&d, &f, &spec, 1, 256, 0, &defaults));
    ok(&d, fixture_program(&d, &f, 256, &p));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        *(struct kv_row *)PROG(p, KV) = cases[i].row;
        assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
        if (strstr(d.message, cases[i].want) == NULL) print_error("%s\n", d.message);
        assert_non_null(strstr(d.message, cases[i].want));
        diag_clear(&d);
    }
    p->section[SECTION_KV].count = 2;
    assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
    assert_non_null(strstr(d.message, "one per layer"));
    free(p);
    fixture_fini(&f);
}

/* ATTENTION_WHOLE has more than STEP_ROWS rows only where they are of different requests; a program
 * has a variant for any rows, too. */
static void many_rows_are_of_different_requests(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 256, 4, 2, 64, 512, 1000);
    const struct {
        uint32_t decode_only;
        const char *want; /* in the message */
    } cases[] = {{1, "context"}, {0, "n_rows"}, {2, "decode_only"}};
    struct task_options o = defaults;
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    o.launch = LAUNCH_ALL_AOT;
    assert_int_equal(fixture_compile(&d, &f, &spec, 32, 2048, FIXTURE_WHOLE, &o), QN_EINVAL);
    assert_non_null(strstr(d.message, "want 16 rows at most"));
    fixture_fini(&f);
    diag_clear(&d);
    ok(&d, fixture_compile(&d, &f, &spec, 32, 2048, FIXTURE_WHOLE | KGRAPH_DECODE_ONLY, &o));
    ok(&d, fixture_program(&d, &f, 2048, &p));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ((struct prog_variant *)PROG(p, VARIANT))->decode_only = cases[i].decode_only;
        assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
        if (strstr(d.message, cases[i].want) == NULL) print_error("%s\n", d.message);
        assert_non_null(strstr(d.message, cases[i].want));
        diag_clear(&d);
    }
    free(p);
    fixture_fini(&f);
}

/* Workers that have tasks of an operator. */
static uint64_t workers_of(const struct fixture *f, size_t op) {
    uint64_t workers = 0;
    for (size_t i = 0; i < f->tasks.tasks.n; i++)
        if (f->tasks.tasks.items[i].op == (int32_t)op)
            workers |= 1ull << f->tasks.tasks.items[i].worker;
    return workers;
}

/* Operators of one row alternate between workers: where half of them or fewer have a LINEAR, what
 * comes next is for the others; and no worker has both QKV and the attention of few after it. */
static void what_follows_a_short_operator_is_for_others(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
    const struct {
        uint32_t rows, workers;
        bool halves;
        int qkv[2], mlp; /* tasks, of QKV before STEP and before WHOLE; a LINEAR has 16 */
    } cases[] = {{1, 40, true, {24, 24}, 24},
                 {1, 40, false, {32, 32}, 40},
                 {1, 32, true, {16, 16}, 16},
                 {1, 31, true, {31, 29}, 31}, /* WHOLE has two slices */
                 {2, 40, true, {32, 32}, 40}};
    const uint32_t cuts[] = {FIXTURE_STEP, KGRAPH_CUT_QKV | KGRAPH_JOIN_HEADS};
    for (size_t c = 0; c < COUNT_OF(cases) * COUNT_OF(cuts); c++) {
        const bool halves = cases[c / 2].halves && cases[c / 2].rows == 1;
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        o.device = device_cuda(90, cases[c / 2].workers, 0);
        o.launch = LAUNCH_ALL_AOT;
        o.halves = cases[c / 2].halves;
        ok(&d, fixture_compile(&d, &f, &spec, cases[c / 2].rows, 256, cuts[c % 2], &o));
        int n_layers = 0;
        for (size_t op = 1; op < f.kernel.ops.n; op++) {
            const uint64_t here = workers_of(&f, op), before = workers_of(&f, op - 1);
            const enum op_kind kind = f.kernel.ops.items[op].kind;
            if (kind == OP_GATED_MLP) {
                assert_int_equal(__builtin_popcountll(here), cases[c / 2].mlp);
                if (halves && o.device.n_workers >= 32) assert_int_equal(here & before, 0);
                n_layers++;
            } else if (kind == OP_QKV_LINEAR) {
                assert_int_equal(__builtin_popcountll(here), cases[c / 2].qkv[c % 2]);
                const bool whole = f.kernel.ops.items[op + 1].kind == OP_ATTENTION_WHOLE;
                if (cases[c / 2].rows == 1 && (whole || (halves && o.device.n_workers >= 32)))
                    assert_int_equal(here & workers_of(&f, op + 1), 0);
            }
        }
        assert_int_equal(n_layers, 3);
        fixture_fini(&f);
    }
}

/* The operator of that kind in the last layer. */
static size_t last_op(const struct fixture *f, enum op_kind kind) {
    size_t op = f->kernel.ops.n - 1;
    while (op > 0 && f->kernel.ops.items[op].kind != kind) op--;
    assert_int_equal(f->kernel.ops.items[op].kind, kind);
    return op;
}

static int32_t waits_for(const struct fixture *f, size_t op) {
    size_t i = 0;
    while (f->tasks.tasks.items[i].op != (int32_t)op) i++;
    return f->tasks.tasks.items[i].wait;
}

/* The list of experts is made while the shared experts' MLP runs: neither waits for the other, and
 * ROUTER and ROUTE have workers of their own if no task of the MLP is larger for it. */
static void routing_is_beside_shared_experts(void **state) {
    (void)state;
    const struct {
        uint32_t rows, width; /* of the shared experts, 8 to a block */
        bool coarse;
        int mlp; /* tasks on 24 workers, of which ROUTER has 2 and ROUTE 1 */
    } cases[] = {{1, 320, true, 21},  {1, 336, true, 21}, {1, 344, true, 24},
                 {1, 320, false, 21}, {8, 320, true, 24}, {8, 320, false, 24}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct model_spec spec = fixture_spec(3, 256, 4, 2, 64, 512, 32000);
        spec.experts =
            (struct experts_spec){.n = 32, .top_k = 4, .width = 64, .shared_width = cases[c].width};
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        o.device = device_cuda(90, 24, 0);
        o.launch = LAUNCH_ALL_AOT;
        o.coarse_events = cases[c].coarse;
        ok(&d, fixture_compile(&d, &f, &spec, cases[c].rows, 256, FIXTURE_STEP, &o));
        const size_t route = last_op(&f, OP_ROUTE), mlp = last_op(&f, OP_GATED_MLP);
        const uint64_t on_mlp = workers_of(&f, mlp);
        assert_int_equal(__builtin_popcountll(on_mlp), cases[c].mlp);
        assert_int_equal(workers_of(&f, route) & workers_of(&f, mlp + 1), 0);
        if (cases[c].mlp < 24)
            assert_int_equal((workers_of(&f, route - 1) | workers_of(&f, route)) & on_mlp, 0);
        assert_int_equal(waits_for(&f, route - 1), waits_for(&f, mlp));
        assert_true(waits_for(&f, route) < waits_for(&f, mlp + 1));
        uint32_t n_dummies = 0;
        for (size_t i = 0; i < f.tasks.tasks.n; i++) n_dummies += f.tasks.tasks.items[i].op < 0;
        assert_true(n_dummies < 24 * spec.n_layers * 4);
        fixture_fini(&f);
    }
}

/* Who merges pieces has nothing of the LINEAR after it, if as many as it takes have not: 40 - 16
 * workers here, of which 1 can merge 256 columns at once. Not in long contexts. */
static void merge_is_apart(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 256, 4, 2, 64, 512, 32000);
    const struct {
        uint32_t workers, context;
        bool merge_apart;
        uint32_t linear; /* tasks asked for; 0: none */
        int merge;       /* tasks */
    } cases[] = {{40, 1024, true, 0, 2},  {40, 1024, false, 0, 4}, {40, 1152, true, 0, 4},
                 {17, 1024, true, 0, 1},  {16, 1024, true, 0, 4},  {16, 1024, true, 8, 2},
                 {16, 1024, true, 15, 1}, {40, 1024, true, 90, 2}};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        /* What memory brings an SM of an H200, of an H100. */
        o.device = device_cuda(90, cases[c].workers, cases[c].merge_apart ? 37 : 25);
        o.launch = LAUNCH_ALL_AOT;
        o.tiles[OP_LINEAR].unit_tiles = cases[c].linear;
        ok(&d, fixture_compile(&d, &f, &spec, 1, cases[c].context,
                               FIXTURE_STEP | KGRAPH_CUT_ATTENTION, &o));
        int n = 0;
        for (size_t op = 1; op + 1 < f.kernel.ops.n; op++) {
            if (f.kernel.ops.items[op].kind != OP_ATTENTION_MERGE) continue;
            assert_int_equal(__builtin_popcountll(workers_of(&f, op)), cases[c].merge);
            if (cases[c].merge < 4)
                assert_int_equal(workers_of(&f, op) & workers_of(&f, op + 1), 0);
            n++;
        }
        assert_int_equal(n, 2);
        fixture_fini(&f);
    }
}

/* The iteration of a single row begins where the one before ended, on a worker that has none of the
 * LM head's larger tasks. */
static void who_samples_a_row_embeds_it(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 256, 4, 2, 64, 512, 32000);
    const uint32_t workers[] = {1, 2, 7, 33, 60};
    for (size_t i = 0; i < COUNT_OF(workers); i++) {
        struct diag d = {0};
        struct fixture f;
        struct task_options o = defaults;
        o.device.n_workers = workers[i];
        o.launch = LAUNCH_ALL_AOT;
        ok(&d, fixture_compile(&d, &f, &spec, 1, 256, FIXTURE_STEP, &o));
        const size_t sample = f.kernel.ops.n - 1;
        assert_int_equal(f.kernel.ops.items[0].kind, OP_EMBED);
        assert_int_equal(f.kernel.ops.items[sample].kind, OP_SAMPLE);
        assert_true(workers_of(&f, 0) == workers_of(&f, sample));
        uint32_t least = UINT32_MAX, its = 0;
        for (size_t t = 0; t < f.tasks.tasks.n; t++) {
            const struct task *task = &f.tasks.tasks.items[t];
            if (task->kind != OP_LM_HEAD) continue;
            const uint32_t units = task->unit1 - task->unit0;
            least = MIN(least, units);
            if (workers_of(&f, 0) >> task->worker & 1) its = MAX(its, units);
        }
        assert_int_equal(its, least);
        fixture_fini(&f);
    }
}

/* What only one backend's kernels know is refused in a program that says it is for another. */
static void a_program_keeps_to_its_backend(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 256, 4, 2, 64, 512, 1000);
    const struct {
        uint32_t rows, cuts;
        uint64_t transport_bytes;
        enum prog_target target;
        const char *want; /* in the message */
    } cases[] = {
        {1, 0, 0, TARGET_CUDA, "no qkv"},
        {2, FIXTURE_PACK, 0, TARGET_CPU, "dtype"},
        {1, FIXTURE_STEP, 1 << 20, TARGET_CPU, "transport"},
        {2, FIXTURE_STEP, 0, TARGET_CPU, "n_rows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct diag d = {0};
        struct fixture f;
        struct prog_header *p;
        struct task_options o = defaults;
        o.launch = LAUNCH_ALL_AOT;
        o.transport_bytes = cases[i].transport_bytes;
        ok(&d, fixture_compile(&d, &f, &spec, cases[i].rows, 2048, cases[i].cuts, &o));
        ok(&d, fixture_program(&d, &f, 2048, &p));
        ok(&d, program_check(&d, "test", p, p->total_bytes));
        p->target = cases[i].target;
        assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
        if (strstr(d.message, cases[i].want) == NULL) print_error("%s\n", d.message);
        assert_non_null(strstr(d.message, cases[i].want));
        free(p);
        fixture_fini(&f);
    }
}

/* ... an operator, too. */
static void a_cpu_program_has_no_pack(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(1, 256, 4, 2, 64, 512, 1000);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    ok(&d, fixture_compile(&d, &f, &spec, PACK_ROWS, 2048, 0, &defaults));
    ok(&d, fixture_program(&d, &f, 2048, &p));
    ((struct prog_op *)PROG(p, OP))[1].kind = OP_PACK;
    assert_int_equal(program_check(&d, "test", p, p->total_bytes), QN_EFORMAT);
    assert_non_null(strstr(d.message, "no pack"));
    free(p);
    fixture_fini(&f);
}

static void compiling_twice_gives_the_same_bytes(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(3, 256, 8, 2, 32, 512, 5000);
    struct prog_header *p[2];
    struct diag d = {0};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        ok(&d, fixture_compile(&d, &f, &spec, 4, 4096, true, &defaults));
        ok(&d, fixture_program(&d, &f, 4096, &p[i]));
        fixture_fini(&f);
    }
    assert_int_equal(p[0]->total_bytes, p[1]->total_bytes);
    assert_memory_equal(p[0], p[1], p[0]->total_bytes);
    free(p[0]);
    free(p[1]);
}

static void a_program_survives_its_file(void **state) {
    (void)state;
    const struct model_spec spec = fixture_spec(2, 64, 4, 2, 16, 128, 512);
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p, *q;
    char path[] = "/tmp/quern_program_XXXXXX";
    assert_true(mkstemp(path) >= 0);
    ok(&d, fixture_compile(&d, &f, &spec, 2, 512, false, &defaults));
    ok(&d, fixture_program(&d, &f, 512, &p));
    ok(&d, program_write(&d, p, path));
    ok(&d, program_read(&d, path, &q));
    assert_int_equal(p->total_bytes, q->total_bytes);
    assert_memory_equal(p, q, p->total_bytes);
    free(q);
    /* Any truncation is an error, never a crash. */
    for (uint64_t n = 0; n < p->total_bytes; n += 97) {
        struct diag e = {0};
        assert_int_not_equal(program_check(&e, "cut", p, n), QN_OK);
    }
    remove(path);
    free(p);
    fixture_fini(&f);
}

/* The largest graph that the project promises to compile quickly; printed, not judged by time. */
static void qwen3_8b_for_128_workers(void **state) {
    (void)state;
    const struct model_spec spec = fixture_qwen3_8b();
    struct diag d = {0};
    struct fixture f;
    struct prog_header *p;
    struct task_options o = defaults;
    o.device.n_workers = 128;
    o.launch = LAUNCH_ALL_AOT;
    o.transport_bytes = 128 << 10;
    const double start = now();
    ok(&d, fixture_compile(&d, &f, &spec, 1, 32768, true, &o));
    ok(&d, fixture_program(&d, &f, 32768, &p));
    const double made = now();
    struct verify_report r;
    ok(&d, program_check(&d, "qwen3-8b", p, p->total_bytes));
    ok(&d, task_verify(&d, p, &r));
    const double end = now();
    struct task_stats s;
    tgraph_stats(&f.tasks, STAGE_PLACE, &s);
    printf("qwen3-8b, 128 workers: %.0f ms + %.0f ms verify, %llu tasks (%llu dummies), %llu "
           "events from %llu pairs, %.1f MB arena, %.1f MB program, %llu task pairs compared\n",
           1e3 * (made - start), 1e3 * (end - made), (unsigned long long)s.n_tasks,
           (unsigned long long)s.n_dummies, (unsigned long long)s.n_events,
           (unsigned long long)s.n_pairs, (double)f.arena.total_bytes / 1e6,
           (double)p->total_bytes / 1e6, (unsigned long long)r.n_task_pairs);
    assert_true(s.n_dummies * 100 < s.n_tasks);
    free(p);
    fixture_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_compiles_and_verifies),
        cmocka_unit_test(events_are_fused_and_dummies_are_rare),
        cmocka_unit_test(normalization_inserts_dummies_where_tasks_fan_out),
        cmocka_unit_test(small_activations_ride_on_data),
        cmocka_unit_test(the_stream_is_its_workers_own),
        cmocka_unit_test(several_rows_ride_on_words),
        cmocka_unit_test(few_packed_rows_stay_together),
        cmocka_unit_test(whole_contexts_stay_with_their_workers),
        cmocka_unit_test(an_event_rides_only_if_all_is_polled),
        cmocka_unit_test(activations_have_the_type_that_kernels_store),
        cmocka_unit_test(layers_are_the_models),
        cmocka_unit_test(a_program_takes_all_contexts),
        cmocka_unit_test(layers_have_rows_of_the_cache),
        cmocka_unit_test(rows_of_the_cache_are_checked),
        cmocka_unit_test(sources_of_parts_are_checked),
        cmocka_unit_test(many_rows_are_of_different_requests),
        cmocka_unit_test(what_follows_a_short_operator_is_for_others),
        cmocka_unit_test(routing_is_beside_shared_experts),
        cmocka_unit_test(merge_is_apart),
        cmocka_unit_test(who_samples_a_row_embeds_it),
        cmocka_unit_test(a_program_keeps_to_its_backend),
        cmocka_unit_test(a_cpu_program_has_no_pack),
        cmocka_unit_test(compiling_twice_gives_the_same_bytes),
        cmocka_unit_test(a_program_survives_its_file),
        cmocka_unit_test(qwen3_8b_for_128_workers),
    };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
