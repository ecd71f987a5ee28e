/* test_shapes.c - the full-size configurations of tests/gpu, compiled for a GPU of 132 SMs as the
 * CUDA backend would: every program is proved (compile_model ends with task_verify), and what the
 * compiler promises of any shape holds. No kernel runs and no weight is made.
 */
#include "base/checked.h"
#include "codegen/cuda_abi.h"
#include "codegen/cuda_form.h"
#include "codegen/emit.h"
#include "engine/compile.h"
#include "engine/compile_option.h"
#include "engine/cuda_plan.h"
#include "task/task_verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

enum { SMS = 132 };

static const char *const shapes[] = {
    "tests/gpu/configs/qwen3-8b",
    "tests/gpu/configs/llama-3.2-1b",
    "tests/gpu/configs/qwen3-0.6b",
    "tests/gpu/shapes/qwen3-4b",       /* hidden 2,560, 36 layers of 9,728 */
    "tests/gpu/shapes/qwen3-14b",      /* hidden 5,120, 40 heads over 8 */
    "tests/gpu/shapes/tinyllama-1.1b", /* a vocabulary of 32,000; 4 KV heads */
    "tests/gpu/shapes/llama-3.1-8b",   /* hidden 4,096, 32 layers of 14,336 */
    "tests/gpu/shapes/llama-2-7b",     /* as many KV heads as heads */
};

/* For iterations of up to n_rows rows, on a GPU of that compute capability. */
static struct prog_header *compile_for(const char *dir, const char *with, uint32_t cc,
                                       uint32_t n_workers, uint32_t n_rows,
                                       struct compile_report *report) {
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct prog_header *program = NULL;
    compile_options_init(&o);
    o.target = TARGET_CUDA;
    o.device = device_cuda(cc, n_workers, 25);
    o.n_slots = 1;
    o.max_model_len = 4096;
    o.max_batched_tokens = n_rows;
    o.cut_qkv = o.join_heads = o.task.coarse_events = true;
    o.task.launch = LAUNCH_ALL_AOT;
    int rc = model_open(&d, dir, &(struct model_options){.dummy = true}, &model);
    if (rc == QN_OK) rc = compile_option_apply(&d, with, &o);
    if (rc == QN_OK) rc = compile_model(&d, model, &o, NULL, report, &program);
    if (rc != QN_OK) print_message("%s, %s: %s\n", dir, with, d.message);
    assert_int_equal(rc, QN_OK);
    model_free(model);
    return program;
}

static struct prog_header *compile_rows(const char *dir, const char *with, uint32_t n_workers,
                                        uint32_t n_rows, struct compile_report *report) {
    return compile_for(dir, with, 90, n_workers, n_rows, report);
}

static struct prog_header *compile(const char *dir, const char *with, uint32_t n_workers,
                                   struct compile_report *report) {
    return compile_rows(dir, with, n_workers, 2, report);
}

/* By worker: the weights that it streams in one step of a variant. */
static void load_of(const struct prog_header *p, const struct prog_variant *v, uint64_t *weights) {
    for (uint32_t i = v->first_task; i < v->first_task + v->n_tasks; i++) {
        const struct prog_task *t = &PROG(p, TASK)[i];
        if (t->kind == OP_NONE || t->worker >= p->n_workers) continue;
        const struct prog_op *op = &PROG(p, OP)[t->op];
        weights[t->worker] += (uint64_t)op->k * (t->unit1 - t->unit0) *
                              (t->kind == OP_LM_HEAD     ? LM_BLOCK
                               : t->kind == OP_GATED_MLP ? 2
                                                         : 1);
    }
}

/* A step takes as long as its busiest SM: none may have much more than its share, where all have
 * attention. */
static void all_shapes_are_spread(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct compile_report report;
        struct prog_header *p = compile(shapes[i], "", SMS, &report);
        uint64_t bytes[SMS] = {0}, sum = 0, most = 0;
        load_of(p, PROG(p, VARIANT), bytes);
        for (int w = 0; w < SMS; w++) {
            sum += bytes[w];
            most = MAX(most, bytes[w]);
        }
        print_message("%-32s %2u variants, busiest SM %.3f of the mean\n", shapes[i],
                      report.n_variants, (double)most * SMS / (double)sum);
        assert_int_equal(p->n_workers, SMS);
        assert_int_equal(report.n_variants, 2);
        assert_true(sum > 0);
        assert_true((double)most * SMS <= 1.03 * (double)sum);
        free(p);
    }
}

static uint32_t riding(const struct prog_header *p) {
    uint32_t n = 0;
    for (uint64_t e = 0; e < p->section[SECTION_EVENT].count; e++)
        n += PROG(p, EVENT)[e].transport == TRANSPORT_FLAG;
    return n;
}

/* Whether the kernels of a program have a constant. */
static bool emits(const struct prog_header *p, const char *constant) {
    struct strbuf text = {0};
    emit_constants(p, &text);
    assert_int_equal(strbuf_status(NULL, &text), QN_OK);
    const bool has = strstr(strbuf_text(&text), constant) != NULL;
    strbuf_fini(&text);
    return has;
}

/* With data as flag: vectors of the residual stream ride on every shape, none without being asked.
 * If all that a single row's linear operators hand on rides, their code has no choices. */
static void all_shapes_use_transports(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct prog_header *p = compile(shapes[i], "", SMS, NULL);
        struct prog_header *q = compile(shapes[i], "carry-bytes=131072", SMS, NULL);
        print_message("%-32s %u of %llu events ride on data\n", shapes[i], riding(q),
                      (unsigned long long)q->section[SECTION_EVENT].count);
        assert_int_equal(riding(p), 0);
        assert_true(riding(q) >= PROG(q, MODEL)->n_layers);
        /* What the MLP gives is too wide to be staged, and is packed instead. */
        const bool wide = PROG(q, MODEL)->intermediate > STAGED_COLUMNS;
        assert_false(emits(p, "QN_ROW_FLAGS 1\n"));
        assert_int_equal(emits(q, "QN_ROW_FLAGS 1\n"), !wide);
        free(p);
        free(q);
    }
}

static uint32_t count_ops(const struct prog_header *p, enum op_kind kind) {
    uint32_t n = 0;
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++) n += PROG(p, OP)[i].kind == kind;
    return n;
}

/* From 17 rows on products run by tiles: in parts on Hopper, with sums of squares of their own. */
static void rows_that_do_not_stream(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct prog_header *hopper = compile_rows(shapes[i], "linear=parts", SMS, 32, NULL);
        struct prog_header *few = compile_rows(shapes[i], "linear=parts", SMS, 16, NULL);
        struct prog_header *other = compile_for(shapes[i], "linear=whole", 80, SMS, 32, NULL);
        assert_true(count_ops(hopper, OP_LINEAR_SPLITK) > 0);
        assert_int_equal(count_ops(few, OP_LINEAR_SPLITK) + count_ops(few, OP_SUM_SQUARES), 0);
        assert_int_equal(count_ops(other, OP_LINEAR_SPLITK), 0);
        assert_true(count_ops(other, OP_SUM_SQUARES) > 0);
        free(hopper);
        free(few);
        free(other);
    }
}

/* The options of bench/ablations.py, and other numbers of SMs, on the shapes that nobody named. */
static void all_options_compile(void **state) {
    (void)state;
    static const char *const options[] = {"launch=jit", "launch=hybrid", "qkv=split"};
    static const uint32_t workers[] = {1, 108, 148};
    for (size_t i = 3; i < COUNT_OF(shapes); i++) {
        for (size_t k = 0; k < COUNT_OF(options); k++)
            free(compile(shapes[i], options[k], SMS, NULL));
        struct prog_header *p = compile_rows(shapes[i], "linear=parts", SMS, PACK_NARROW, NULL);
        assert_int_equal(count_ops(p, OP_LINEAR_SPLITK), count_ops(p, OP_SPLITK_SUM));
        assert_true(count_ops(p, OP_LINEAR_SPLITK) > 0);
        free(p);
        for (size_t k = 0; k < COUNT_OF(workers); k++)
            free(compile(shapes[i], "", workers[k], NULL));
    }
}

/* What a target has no kernels for is said before anything is compiled. */
static void fused_qkv_is_the_cpus(void **state) {
    (void)state;
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct prog_header *program;
    compile_options_init(&o);
    o.target = TARGET_CUDA;
    assert_int_equal(model_open(&d, shapes[0], &(struct model_options){.dummy = true}, &model),
                     QN_OK);
    assert_int_equal(compile_option_apply(&d, "qkv=fused", &o), QN_OK);
    assert_int_equal(compile_model(&d, model, &o, NULL, NULL, &program), QN_EUNSUPPORTED);
    assert_non_null(strstr(d.message, "qkv: want split or joined"));
    assert_null(program);
    model_free(model);
}

/* EXPERT_DOWN goes through all slots of its graph, so no form of it takes a part of the rows. */
static void rows_of_experts_are_not_cut(void **state) {
    (void)state;
    static const struct {
        const char *with;
        int rc;
    } cases[] = {{"tile.expert_down=1x64", QN_OK}, {"tile.expert_down=2x32", QN_EUNSUPPORTED}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d = {0};
        bool used[N_FORMS];
        struct prog_header *p =
            compile("tests/gpu/shapes/qwen3-30b-a3b-of-4", cases[i].with, SMS, NULL);
        assert_int_equal(cuda_form_used(&d, p, 90, used), cases[i].rc);
        if (cases[i].rc != QN_OK)
            assert_string_equal(
                d.message, "operator expert_down: sm_90 has no form of it for 1 rows (form.def)");
        free(p);
    }
}

/* The loaders of EXPERT_GATE_UP poll the logits of up to 16 rows, so that they can choose experts.
 */
static void loaders_poll_logits(void **state) {
    (void)state;
    struct prog_header *p = compile_rows("tests/gpu/shapes/qwen3-30b-a3b-of-4",
                                         "carry-bytes=65536,attention=whole", SMS, 16, NULL);
    uint32_t n_rows[] = {0, 0}; /* operators of one row, and of several */
    for (uint64_t k = 0; k < p->section[SECTION_VARIANT].count; k++) {
        const struct prog_variant *v = &PROG(p, VARIANT)[k];
        for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++) {
            const struct prog_op *op = &PROG(p, OP)[o];
            if (op->kind != OP_EXPERT_GATE_UP) continue;
            if (op->in[GATE_UP_LOGITS] == PROG_NONE) continue; /* contexts are cut */
            assert_int_equal(PROG(p, TENSOR)[op->in[GATE_UP_LOGITS]].transport,
                             v->n_rows == 1 ? TRANSPORT_FLAG : TRANSPORT_SENTINEL);
            n_rows[v->n_rows > 1]++;
        }
    }
    assert_true(n_rows[0] > 0 && n_rows[1] > 0);
    free(p);
}

/* RESET_SENTINELS is only where something rides on the words that it empties: no two of them share
 * bytes then, which would cost for nothing. The spaces of all graphs begin at the same place. */
static void reset_is_not_there_for_nothing(void **state) {
    (void)state;
    uint32_t n_resets = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct prog_header *p =
            compile_rows(shapes[i], "carry-bytes=65536,attention=whole", SMS, 16, NULL);
        for (uint64_t k = 0; k < p->section[SECTION_VARIANT].count; k++) {
            const struct prog_variant *v = &PROG(p, VARIANT)[k];
            uint32_t clear = 0, events = 0;
            for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++)
                clear += PROG(p, OP)[o].kind == OP_RESET_SENTINELS;
            for (uint32_t e = v->first_event; e < v->first_event + v->n_events; e++)
                events += PROG(p, EVENT)[e].transport != TRANSPORT_COUNTER;
            if (v->n_rows > 1) assert_int_equal(clear, events > 0);
            n_resets += clear;
        }
        uint64_t where = 0;
        for (uint64_t k = 0; k < p->section[SECTION_TENSOR].count; k++) {
            if (PROG(p, TENSOR)[k].transport != TRANSPORT_SPACE) continue;
            if (where != 0) assert_int_equal(PROG(p, TENSOR)[k].where, where);
            where = PROG(p, TENSOR)[k].where;
        }
        free(p);
    }
    assert_true(n_resets > 0);
}

/* Slices of a variant's operators of a kind; 0: it has none. */
static uint32_t slices_of(const struct prog_header *p, const struct prog_variant *v,
                          enum op_kind kind) {
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
        if (PROG(p, TASK)[t].kind == kind) return PROG(p, TASK)[t].unit1;
    return 0;
}

/* A single row's context is one task's up to one piece, up to two where a layer's weights fit the
 * workers' rings or are those of experts, which attention decides; beyond, or if it is not wanted,
 * it is cut: up to where a quarter and half of the workers have a piece of a head each there are as
 * many tasks. */
static void contexts_of_one_row(void **state) {
    (void)state;
    static const struct {
        const char *shape, *with;
        uint32_t kv_heads, pieces[4]; /* of its variants; */
        bool whole;                   /* the first of which does not cut it */
    } cases[] = {
        {"tests/gpu/configs/qwen3-0.6b", "attention=whole", 8, {2, 4, 8, 32}, true},
        {"tests/gpu/configs/qwen3-8b", "attention=whole", 8, {1, 4, 8, 32}, true},
        {"tests/gpu/configs/llama-3.2-1b", "attention=whole", 8, {1, 4, 8, 32}, true},
        {"tests/gpu/shapes/tinyllama-1.1b", "attention=whole", 4, {1, 8, 16, 32}, true},
        {"tests/gpu/shapes/llama-2-7b", "attention=whole", 32, {1, 2, 32}, true},
        {"tests/gpu/shapes/qwen3-30b-a3b-of-4", "attention=whole", 4, {2, 8, 16, 32}, true},
        {"tests/gpu/configs/qwen3-0.6b", "attention=batch", 8, {32}, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct prog_header *p = compile_rows(cases[i].shape, cases[i].with, SMS, 2, NULL);
        const struct prog_variant *v = PROG(p, VARIANT);
        uint32_t n = 0;
        for (; v[n].n_rows == 1; n++) {
            const uint32_t pieces = cases[i].pieces[n];
            const bool whole = n == 0 && cases[i].whole;
            assert_int_equal(v[n].context, pieces * ATTENTION_PIECE);
            assert_int_equal(slices_of(p, &v[n], OP_ATTENTION_WHOLE),
                             whole ? cases[i].kv_heads : 0);
            assert_int_equal(slices_of(p, &v[n], OP_ATTENTION_STEP),
                             whole ? 0 : MIN(cases[i].kv_heads * pieces, (uint32_t)SMS));
        }
        assert_true(n == COUNT_OF(cases[i].pieces) || cases[i].pieces[n] == 0);
        free(p);
    }
}

/* Who has attention that few have is ready for it first: of the projections it has a task that is
 * no larger than anybody else's, and of all weights no more than others. */
static void attention_of_few_is_ready_first(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct prog_header *p = compile_rows(shapes[i], "attention=whole", SMS, 1, NULL);
        uint32_t n_few = 0;
        for (const struct prog_variant *v = PROG(p, VARIANT);
             v < PROG(p, VARIANT) + p->section[SECTION_VARIANT].count; v++) {
            const enum op_kind kind =
                slices_of(p, v, OP_ATTENTION_WHOLE) > 0 ? OP_ATTENTION_WHOLE : OP_ATTENTION_STEP;
            if (slices_of(p, v, kind) > SMS / 2) continue;
            const struct prog_task *tasks = PROG(p, TASK);
            bool few[SMS] = {false};
            uint64_t most_few = 0, least = UINT64_MAX, load[SMS] = {0}, sum[2] = {0}, n[2] = {0};
            for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
                if (tasks[t].kind == kind) few[tasks[t].worker] = true;
            for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
                if (tasks[t].kind != OP_QKV_LINEAR) continue;
                const uint64_t units = tasks[t].unit1 - tasks[t].unit0;
                if (few[tasks[t].worker])
                    most_few = MAX(most_few, units);
                else
                    least = MIN(least, units);
            }
            load_of(p, v, load);
            for (int w = 0; w < SMS; w++) {
                sum[few[w]] += load[w];
                n[few[w]]++;
            }
            assert_true(most_few <= least);
            assert_true(sum[1] * n[0] < sum[0] * n[1]);
            n_few++;
        }
        assert_true(n_few >= 2);
        free(p);
    }
}

/* Room for several logit rows of each request, as many as there are rows. */
static void logit_rows_per_request(void **state) {
    (void)state;
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct prog_header *p = NULL;
    compile_options_init(&o);
    o.n_slots = 2;
    o.logit_rows = 3;
    o.max_batched_tokens = 16;
    const char *dir = "tests/golden/models/qwen3-tied";
    int rc = model_open(&d, dir, &(struct model_options){.dummy = true}, &model);
    if (rc == QN_OK) rc = compile_model(&d, model, &o, NULL, NULL, &p);
    if (rc != QN_OK) print_message("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++) {
        const struct prog_variant *v = &PROG(p, VARIANT)[i];
        assert_int_equal(v->n_logit_rows, MIN(v->n_rows, 6u));
    }
    free(p);
    o.logit_rows = 0;
    assert_int_equal(compile_model(&d, model, &o, NULL, NULL, &p), QN_EINVAL);
    assert_non_null(strstr(d.message, "logit-rows"));
    model_free(model);
}

/* Two bands: their logits share bytes, and a program whose bands do not lie apart is refused. */
static void bands_of_logit_rows(void **state) {
    (void)state;
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct prog_header *p = NULL;
    uint32_t at[4], n = 0; /* LM_HEAD and SAMPLE of the first band, then of the second */
    compile_options_init(&o);
    o.n_slots = o.max_batched_tokens = 2 * LOGIT_BAND_ROWS;
    int rc = model_open(&d, "tests/golden/models/qwen3-tied",
                        &(struct model_options){.dummy = true}, &model);
    if (rc == QN_OK) rc = compile_model(&d, model, &o, NULL, NULL, &p);
    if (rc != QN_OK) print_message("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    const struct prog_variant *v = PROG(p, VARIANT) + p->section[SECTION_VARIANT].count - 1;
    struct prog_op *ops = (struct prog_op *)PROG(p, OP);
    for (uint32_t i = v->first_op; i < v->first_op + v->n_ops; i++)
        if (ops[i].kind == OP_LM_HEAD || ops[i].kind == OP_SAMPLE) at[n++] = i;
    assert_int_equal(n, 4);
    for (int slot = LM_OUT_LOGITS; slot <= LM_OUT_PART; slot++)
        assert_int_equal(PROG(p, TENSOR)[ops[at[0]].out[slot]].where,
                         PROG(p, TENSOR)[ops[at[2]].out[slot]].where);
    for (int i = 2; i < 4; i++)
        for (int change = -8; change <= 8; change += 16) {
            ops[at[i]].attrs.band_first += (uint32_t)change;
            struct diag refusal = {0};
            assert_int_equal(task_verify(&refusal, p, NULL), QN_EVERIFY);
            assert_non_null(strstr(refusal.message, change < 0 ? "those of the band before"
                                                               : "behind the last logit row"));
            ops[at[i]].attrs.band_first -= (uint32_t)change;
        }
    assert_int_equal(task_verify(&d, p, NULL), QN_OK);
    free(p);
    model_free(model);
}

/* A number of rows may have a variant only for rows of different requests, if it takes all
 * contexts. The last variant takes any rows. */
static void last_variants_take_all(struct prog_header *p) {
    struct prog_variant *v = (struct prog_variant *)PROG(p, VARIANT);
    const uint64_t n = p->section[SECTION_VARIANT].count;
    uint64_t only = 1;
    while (only < n - 1 && (v[only].decode_only == 0 || v[only + 1].n_rows == v[only].n_rows))
        only++;
    assert_int_equal(v[only].n_rows, 96);
    assert_int_equal(program_check(NULL, "", p, p->total_bytes), QN_OK);
    v[only].context--;
    assert_int_equal(program_check(NULL, "", p, p->total_bytes), QN_EFORMAT);
    v[only].context++;
    v[n - 1].decode_only = 1;
    assert_int_equal(program_check(NULL, "", p, p->total_bytes), QN_EFORMAT);
    v[n - 1].decode_only = 0;
}

/* Logits, work and the runtime's state of 1,024 requests of 32,000 positions take less than 1 GB
 * beside the weights and a KV cache of 50 GB, when the weights are there. */
static void a_thousand_long_requests_take_little(void **state) {
    (void)state;
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct prog_header *p = NULL;
    struct cuda_plan plan = {0};
    compile_options_init(&o);
    const struct device device = device_cuda(90, SMS, 25);
    compile_options_cuda(&o, &device);
    o.n_slots = 1024;
    o.max_model_len = 32000;
    int rc = model_open(&d, shapes[0], &(struct model_options){.dummy = true}, &model);
    if (rc == QN_OK) rc = compile_model(&d, model, &o, NULL, NULL, &p);
    const struct rt_options rt = {.n_kv_blocks = 5500, .choices = {.prefix_cache = true}};
    if (rc == QN_OK) rc = cuda_plan_make(&d, p, &rt, 0, &plan);
    if (rc != QN_OK) print_message("%s\n", d.message);
    assert_int_equal(rc, QN_OK);
    const uint64_t beside =
        plan.device_bytes - plan.weight_bytes - plan.kv_bytes - plan.upload_bytes;
    print_message("%s, 1,024 requests of 32,000 positions: %.0f MB: workspace %.0f, state %.0f, "
                  "program %.0f, tasks %.0f, RoPE %.0f, sampling %.0f, sums %.0f; upload %.0f\n",
                  shapes[0], (double)beside / 1e6, (double)plan.workspace_bytes / 1e6,
                  (double)plan.state_bytes / 1e6, (double)plan.program_bytes / 1e6,
                  (double)plan.task_bytes / 1e6, (double)plan.rope_bytes / 1e6,
                  (double)plan.sample_bytes / 1e6, (double)plan.sums_bytes / 1e6,
                  (double)plan.upload_bytes / 1e6);
    assert_true(beside < 1000000000);
    last_variants_take_all(p);
    cuda_plan_fini(&plan);
    free(p);
    model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logit_rows_per_request),
        cmocka_unit_test(bands_of_logit_rows),
        cmocka_unit_test(a_thousand_long_requests_take_little),
        cmocka_unit_test(reset_is_not_there_for_nothing),
        cmocka_unit_test(all_shapes_are_spread),
        cmocka_unit_test(all_shapes_use_transports),
        cmocka_unit_test(rows_that_do_not_stream),
        cmocka_unit_test(all_options_compile),
        cmocka_unit_test(contexts_of_one_row),
        cmocka_unit_test(attention_of_few_is_ready_first),
        cmocka_unit_test(fused_qkv_is_the_cpus),
        cmocka_unit_test(rows_of_experts_are_not_cut),
        cmocka_unit_test(loaders_poll_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
