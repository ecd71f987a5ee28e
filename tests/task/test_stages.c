/* The compiler's stages on graphs of many shapes: what each promises, and the proof of the whole.
 */
#include "base/checked.h"
#include "task/fixture.h"
#include "task/stage_test.h"

#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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
    ok(&d, fixture_compile(&d, &f, &spec, 1, 32768, FIXTURE_STEP, &o));
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
        cmocka_unit_test(few_packed_rows_stay_together),
        cmocka_unit_test(layers_are_the_models),
        cmocka_unit_test(a_program_takes_all_contexts),
        cmocka_unit_test(layers_have_rows_of_the_cache),
        cmocka_unit_test(rows_of_the_cache_are_checked),
        cmocka_unit_test(sources_of_parts_are_checked),
        cmocka_unit_test(many_rows_are_of_different_requests),
        cmocka_unit_test(a_program_keeps_to_its_backend),
        cmocka_unit_test(a_cpu_program_has_no_pack),
        cmocka_unit_test(compiling_twice_gives_the_same_bytes),
        cmocka_unit_test(a_program_survives_its_file),
        cmocka_unit_test(qwen3_8b_for_128_workers),
    };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
