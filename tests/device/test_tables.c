/* The proof of the device tables (codegen/cuda_verify.h): right tables pass, and each field of a
 * descriptor and of a place, changed by a seeded mutator, is found. A change that the proof lets
 * pass must be harmless: is_harmless. All forms of the device tests are there, and the programs of
 * golden models.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has a function of that name */

#include "base/checked.h"
#include "codegen/cuda_verify.h"
#include "device/op_program.h"
#include "engine/compile.h"
#include "task/task_verify.h"

#define DIE(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(!"as said above"))

enum { MUTANTS = 16000, CC = 90 };

struct made {
    const struct prog_header *p;
    uint64_t n_tasks, n_weights, n_beyond;
    struct cuda_place *places;
    struct cuda_task *tasks;
    struct cuda_beyond *beyond; /* the rows behind them */
    struct cuda_tables tables;
};

static void make(const struct prog_header *p, uint32_t cc, struct made *m) {
    struct diag d = {0};
    *m = (struct made){.p = p,
                       .n_tasks = p->section[SECTION_TASK].count,
                       .n_weights = p->section[SECTION_WEIGHT].count};
    m->places = calloc(m->n_weights + 1, sizeof *m->places);
    m->n_beyond = (cuda_tables_bytes(p) - m->n_tasks * sizeof *m->tasks) / sizeof *m->beyond;
    m->tasks = calloc(1, cuda_tables_bytes(p) + 1);
    m->beyond = (struct cuda_beyond *)(m->tasks + m->n_tasks);
    assert_true(m->places != NULL && m->tasks != NULL);
    m->tables = (struct cuda_tables){.places = m->places,
                                     .tasks = m->tasks,
                                     .bases = {.weights = 1ull << 40,
                                               .workspace = 2ull << 40,
                                               .kv = 3ull << 40,
                                               .tasks = 4ull << 40,
                                               .n_kv_blocks = 16,
                                               .cc = cc}};
    if (cuda_tables_plan(&d, p, m->places, &m->tables.weight_bytes) != QN_OK) DIE("%s", d.message);
    if (cuda_tables_fill(&d, p, m->places, &m->tables.bases, m->tasks) != QN_OK)
        DIE("%s", d.message);
    if (cuda_verify(&d, p, &m->tables) != QN_OK) DIE("unchanged: %s", d.message);
}

static void unmake(struct made *m) {
    free(m->places);
    free(m->tasks);
}

/* ---- mutations ---- */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A field of a struct; those of the descriptor that are several bits are changed bit by bit. */
struct member {
    const char *name;
    size_t offset, bytes;
};
#define MEMBER(type, field)                                                                        \
    { #field, offsetof(struct type, field), sizeof((struct type){0}.field) }
static const struct member task_members[] = {
    MEMBER(cuda_task, kind),          MEMBER(cuda_task, flags),       MEMBER(cuda_task, wait),
    MEMBER(cuda_task, wait_triggers), MEMBER(cuda_task, trigger),     MEMBER(cuda_task, row0),
    MEMBER(cuda_task, row1),          MEMBER(cuda_task, unit0),       MEMBER(cuda_task, unit1),
    MEMBER(cuda_task, units),         MEMBER(cuda_task, k),           MEMBER(cuda_task, k_tiles),
    MEMBER(cuda_task, index),         MEMBER(cuda_task, w),           MEMBER(cuda_task, in),
    MEMBER(cuda_task, norm),          MEMBER(cuda_task, bias),        MEMBER(cuda_task, more),
    MEMBER(cuda_task, more2),         MEMBER(cuda_task, out),         MEMBER(cuda_task, out2),
    MEMBER(cuda_task, n_pieces),      MEMBER(cuda_task, eights),      MEMBER(cuda_task, block0),
    MEMBER(cuda_task, block1),        MEMBER(cuda_task, tile),        MEMBER(cuda_task, group),
    MEMBER(cuda_task, columns),       MEMBER(cuda_task, unit_blocks),
};
static const struct member place_members[] = {
    MEMBER(cuda_place, offset),
    MEMBER(cuda_place, k_tiles),
    MEMBER(cuda_place, reserved),
};
#define BEYOND_MEMBER(i)                                                                           \
    { #i, offsetof(struct cuda_beyond, at[i]), sizeof(uint64_t) }
static const struct member beyond_members[] = {
    BEYOND_MEMBER(BEYOND_LIST),
    BEYOND_MEMBER(BEYOND_SLOTS),
    BEYOND_MEMBER(BEYOND_WEIGHT),
    BEYOND_MEMBER(BEYOND_SHARED),
};
enum {
    N_TASK_MEMBERS = COUNT_OF(task_members),
    N_PLACE_MEMBERS = COUNT_OF(place_members),
    N_MEMBERS = N_TASK_MEMBERS + N_PLACE_MEMBERS + COUNT_OF(beyond_members)
};

/* A table of the device: n structs of a size. */
struct table {
    char *at;
    uint64_t n;
    size_t size;
};

/* The table that a member is of. */
static const struct member *member_of(struct made *m, uint32_t member, struct table *t) {
    if (member < N_TASK_MEMBERS) {
        *t = (struct table){(char *)m->tasks, m->n_tasks, sizeof *m->tasks};
        return &task_members[member];
    }
    member -= N_TASK_MEMBERS;
    if (member < N_PLACE_MEMBERS) {
        *t = (struct table){(char *)m->places, m->n_weights, sizeof *m->places};
        return &place_members[member];
    }
    *t = (struct table){(char *)m->beyond, m->n_beyond, sizeof *m->beyond};
    return &beyond_members[member - N_PLACE_MEMBERS];
}

/* Another value: a bit, one more or less, 0, a power of two more, that of another element. */
static void change(void *at, const void *other, size_t bytes, uint64_t *random) {
    uint64_t v = 0, o = 0;
    memcpy(&v, at, bytes);
    memcpy(&o, other, bytes);
    switch (next_random(random) % 6) {
    case 0: v ^= 1ull << next_random(random) % (8 * bytes); break;
    case 1: v++; break;
    case 2: v--; break;
    case 3: v = 0; break;
    case 4: v += 1ull << next_random(random) % 14; break;
    default: v = o; break;
    }
    memcpy(at, &v, bytes);
}

/* What the proof leaves open is how many row blocks and token rows a task takes at a time, among
 * the sizes that the kernels have: the same sums in another number of passes. test_ops.c runs all
 * that the proof lets pass (walks). */
static bool is_harmless(const struct member *field) {
    return strcmp(field->name, "group") == 0 || strcmp(field->name, "tile") == 0;
}

struct count {
    uint32_t killed, harmless, missed;
};

static void mutate(struct made *m, uint32_t member, uint64_t *random, struct count *count) {
    struct table t;
    const struct member *f = member_of(m, member, &t);
    char old[16];
    if (t.n == 0) return; /* no weights, or no operands without a word */
    char *at = t.at + next_random(random) % t.n * t.size + f->offset;
    struct diag d = {0};
    memcpy(old, at, f->bytes);
    change(at, t.at + next_random(random) % t.n * t.size + f->offset, f->bytes, random);
    if (memcmp(old, at, f->bytes) == 0) return;
    if (cuda_verify(&d, m->p, &m->tables) != QN_OK)
        count->killed++;
    else if (is_harmless(f))
        count->harmless++;
    else
        count->missed++;
    memcpy(at, old, f->bytes);
}

/* ---- programs ---- */

static const struct model_spec spec = {
    .n_layers = 1,
    .hidden = 512,
    .intermediate = 768,
    .vocab = 331,
    .n_heads = 8,
    .n_kv_heads = 4,
    .head_dim = 64,
    .max_position = 4096,
    .rms_eps = 1e-6f,
    .rope_theta = 10000,
    .qkv_bias = 1,
    .o_bias = 1,
    .mlp_bias = 1,
    .qk_norm = 1,
    .weight_dtype = DTYPE_BF16,
    .experts = {.n = 11, .top_k = 3, .width = 88, .shared_width = 64, .shared_gate = 1},
    .bos = -1};

/* Of operators of latent attention. */
static const struct model_spec latent = {
    .n_layers = 1,
    .hidden = 512,
    .intermediate = 768,
    .vocab = 331,
    .n_heads = 18,
    .n_kv_heads = 1,
    .head_dim = 40,
    .max_position = 4096,
    .rms_eps = 1e-6f,
    .rope_theta = 10000,
    .weight_dtype = DTYPE_BF16,
    .bos = -1,
    .latent = {.kv_rank = 264, .rope = 16, .v_dim = 28, .scale = 0.15f}};

/* One operator in one form, of some rows each. */
static const struct form {
    struct op_form form;
    uint32_t rows[4];
} forms[] = {
    {{.name = "embed", .kind = OP_EMBED, .rides = true}, {1}},
    {{.name = "embed.normed", .kind = OP_EMBED, .packed = true}, {8, 64}},
    {{.name = "qkv_linear", .kind = OP_QKV_LINEAR, .rides = true}, {1}},
    {{.name = "qkv_linear.packed", .kind = OP_QKV_LINEAR, .packed = true}, {8, 16, 32}},
    {{.name = "qkv_fused", .kind = OP_QKV_FUSED, .packed = true, .summed = true}, {128, 280}},
    {{.name = "qkv_heads", .kind = OP_QKV_HEADS}, {1, 64}},
    {{.name = "attention", .kind = OP_ATTENTION, .packed = true}, {16, 128}},
    {{.name = "attention_step", .kind = OP_ATTENTION_STEP, .rides = true}, {1}},
    {{.name = "attention_step.few", .kind = OP_ATTENTION_STEP}, {8, 16}},
    {{.name = "attention_whole", .kind = OP_ATTENTION_WHOLE, .packed = true}, {8, 16}},
    {{.name = "attention_merge", .kind = OP_ATTENTION_MERGE, .packed = true}, {8, 16}},
    {{.name = "linear", .kind = OP_LINEAR, .rides = true}, {1}},
    {{.name = "linear.plain", .kind = OP_LINEAR}, {1}},
    {{.name = "linear.packed", .kind = OP_LINEAR, .packed = true}, {8, 16, 64, 128}},
    {{.name = "linear.down", .kind = OP_LINEAR, .packed = true, .wide_k = true}, {8, 17, 64}},
    {{.name = "linear_splitk", .kind = OP_LINEAR_SPLITK, .packed = true}, {32, 128}},
    {{.name = "splitk_sum", .kind = OP_SPLITK_SUM, .packed = true}, {32, 64}},
    {{.name = "gated_mlp", .kind = OP_GATED_MLP, .rides = true}, {1}},
    {{.name = "gated_mlp.packed", .kind = OP_GATED_MLP, .packed = true}, {8, 16}},
    {{.name = "gated_mlp.summed", .kind = OP_GATED_MLP, .packed = true, .summed = true},
     {64, 128, 384}}, /* 384: two bands */
    {{.name = "pack", .kind = OP_PACK}, {9}},
    {{.name = "pack_logits", .kind = OP_PACK_LOGITS, .packed = true}, {9}},
    {{.name = "sum_squares", .kind = OP_SUM_SQUARES, .packed = true}, {64}},
    {{.name = "lm_head", .kind = OP_LM_HEAD, .rides = true}, {1}},
    {{.name = "lm_head.packed", .kind = OP_LM_HEAD, .packed = true}, {8, 17}},
    {{.name = "lm_head.band", .kind = OP_LM_HEAD, .packed = true, .summed = true, .band_first = 16},
     {64}},
    {{.name = "reset_sentinels", .kind = OP_RESET_SENTINELS}, {8}},
    {{.name = "sample", .kind = OP_SAMPLE}, {4}},
    {{.name = "sample.band", .kind = OP_SAMPLE, .band_first = 8}, {16}},
    {{.name = "router", .kind = OP_ROUTER}, {1, 64}},
    {{.name = "route", .kind = OP_ROUTE}, {1, 8}},
    {{.name = "route_top_k", .kind = OP_ROUTE_TOP_K}, {8, 64}},
    {{.name = "route_list", .kind = OP_ROUTE_LIST}, {8, 64}},
    {{.name = "expert_gate_up", .kind = OP_EXPERT_GATE_UP}, {1, 8}},
    {{.name = "expert_gate_up.row", .kind = OP_EXPERT_GATE_UP, .rides = true}, {1}},
    {{.name = "expert_down.row", .kind = OP_EXPERT_DOWN}, {1}},
    {{.name = "expert_down.polls", .kind = OP_EXPERT_DOWN, .rides = true}, {1}},
    {{.name = "expert_down", .kind = OP_EXPERT_DOWN, .packed = true}, {8, 64}},
    {{.name = "expert_gather", .kind = OP_EXPERT_GATHER}, {8, 64}},
    {{.name = "grouped_gate_up", .kind = OP_GROUPED_GATE_UP}, {8, 64}},
    {{.name = "grouped_down", .kind = OP_GROUPED_DOWN}, {8, 64}},
    {{.name = "expert_sum", .kind = OP_EXPERT_SUM, .packed = true}, {8, 64}},
    {{.name = "latent_norm", .kind = OP_LATENT_NORM, .rides = true}, {1}},
    {{.name = "latent_norm.packed", .kind = OP_LATENT_NORM, .packed = true}, {8, 64}},
    {{.name = "latent_heads", .kind = OP_LATENT_HEADS, .rides = true}, {1}},
    {{.name = "latent_heads.rows", .kind = OP_LATENT_HEADS}, {8, 64}},
    {{.name = "latent_values", .kind = OP_LATENT_VALUES, .packed = true}, {9, 64}},
    {{.name = "latent_merge", .kind = OP_LATENT_MERGE, .rides = true}, {1}},
    {{.name = "latent_merge.rows", .kind = OP_LATENT_MERGE, .packed = true}, {8, 16}},
    {{.name = "attention.latent", .kind = OP_ATTENTION}, {1, 64}},
    {{.name = "attention_split.latent", .kind = OP_ATTENTION_SPLIT}, {1, 16}},
};

static void compile(const struct form *f, struct op_program *out) {
    const struct op_machine machine = {TARGET_CUDA, 7, 64, 1408, 32, true};
    struct op_variant variants[4];
    struct diag d = {0};
    uint32_t n = 0;
    for (; n < COUNT_OF(f->rows) && f->rows[n] != 0; n++)
        variants[n] = (struct op_variant){&f->form, f->rows[n], MIN(f->rows[n], 64u), 0};
    const bool latents = strstr(f->form.name, "latent") != NULL;
    if (op_program_make(&d, latents ? &latent : &spec, &machine, variants, n, out) != QN_OK)
        DIE("%s: %s", f->form.name, d.message);
}

static void every_mutant_is_killed(void **state) {
    struct count counts[N_MEMBERS] = {0}, all = {0};
    uint64_t random = 42;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        struct op_program program;
        struct made m;
        compile(&forms[i], &program);
        make(program.program, CC, &m);
        for (uint32_t k = 0; k < MUTANTS / COUNT_OF(forms); k++)
            mutate(&m, k % N_MEMBERS, &random, &counts[k % N_MEMBERS]);
        unmake(&m);
        op_program_fini(&program);
    }
    print_message("%-18s %8s %8s %8s\n", "field", "killed", "harmless", "missed");
    for (size_t i = 0; i < N_MEMBERS; i++) {
        struct made none = {0};
        struct table t;
        print_message("%-18s %8u %8u %8u\n", member_of(&none, (uint32_t)i, &t)->name,
                      counts[i].killed, counts[i].harmless, counts[i].missed);
        all.killed += counts[i].killed;
        all.harmless += counts[i].harmless;
        all.missed += counts[i].missed;
        assert_true(counts[i].killed > 0);
    }
    print_message("%u mutants: %u killed, %u harmless, %u missed\n",
                  all.killed + all.harmless + all.missed, all.killed, all.harmless, all.missed);
    assert_int_equal(all.missed, 0);
}

/* A loader that has not seen a list of experts earlier in its worker's list waits for the event of
 * EXPERT_DOWN. A hint would order nothing, so the proof rejects it. */
static void a_list_is_behind_a_counter(void **state) {
    const struct form form = {{.name = "expert_down", .kind = OP_EXPERT_DOWN, .rides = true}, {1}};
    struct op_program program;
    struct diag d = {0};
    struct made m;
    (void)state;
    compile(&form, &program);
    make(program.program, CC, &m);
    const struct prog_variant *v = &PROG(m.p, VARIANT)[0];
    ((struct prog_event *)PROG(m.p, EVENT))[v->start_event].transport = TRANSPORT_FLAG;
    for (uint64_t i = 0; i < m.n_tasks; i++)
        if (PROG(m.p, TASK)[i].wait == v->start_event) m.tasks[i].flags |= CUDA_WAIT_HINT;
    assert_int_equal(cuda_verify(&d, m.p, &m.tables), QN_EVERIFY);
    assert_non_null(strstr(d.message, "hint of a list"));
    unmake(&m);
    op_program_fini(&program);
}

/* A golden model's program, as the engine compiles it for cards of that kind. */
static struct prog_header *compile_golden(const char *name, uint32_t cc) {
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct prog_header *p;
    char dir[100];
    snprintf(dir, sizeof dir, "tests/golden/models/%s", name);
    compile_options_init(&o);
    const struct device device = device_cuda(cc, 17, 3.35);
    compile_options_cuda(&o, &device);
    o.n_slots = 64;
    o.max_batched_tokens = 256;
    if (model_open(&d, dir, NULL, &model) != QN_OK ||
        compile_model(&d, model, &o, NULL, NULL, &p) != QN_OK ||
        cuda_verify_program(&d, p, cc) != QN_OK)
        DIE("%s: %s", name, d.message);
    model_free(model);
    return p;
}

static void programs_pass(void **state) {
    static const char *const models[] = {
        "qwen3-tied",  "qwen2-window", "llama2-mha",       "qwen3-mqa",         "qwen2-mixed",
        "qwen3-mixed", "mixtral",      "qwen3-moe-sparse", "deepseek-v2-dense", "deepseek-v2-yarn"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++)
        for (uint32_t cc = 80; cc <= 90; cc += 10) free(compile_golden(models[i], cc));
}

/* Where layers differ in what they see, another layer's window is noticed: in an operator of the
 * program by its proof, and by the tables before they are made; in a descriptor by theirs. */
static void windows_of_other_layers_are_killed(void **state) {
    const uint32_t window = 140; /* qwen3-mixed's */
    struct prog_header *p = compile_golden("qwen3-mixed", CC);
    uint32_t n_ops = 0, n_tasks = 0;
    struct made m;
    (void)state;
    make(p, CC, &m);
    for (uint64_t i = 0; i < p->section[SECTION_OP].count; i++) {
        struct prog_op *op = (struct prog_op *)&PROG(p, OP)[i];
        const bool sees = op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_STEP ||
                          op->kind == OP_ATTENTION_WHOLE || op->kind == OP_ATTENTION_MERGE;
        struct diag d = {0};
        uint64_t bytes;
        if (!sees) continue;
        op->attrs.window = window - op->attrs.window;
        assert_int_equal(task_verify(&d, p, NULL), QN_EVERIFY);
        assert_non_null(strstr(d.message, "its attributes do not fit the model"));
        assert_int_equal(cuda_tables_plan(&d, p, m.places, &bytes), QN_EUNSUPPORTED);
        op->attrs.window = window - op->attrs.window;
        n_ops++;
    }
    for (uint64_t i = 0; i < m.n_tasks; i++) {
        struct diag d = {0};
        if (m.tasks[i].kind != OP_ATTENTION && m.tasks[i].kind != OP_ATTENTION_STEP &&
            m.tasks[i].kind != OP_ATTENTION_WHOLE && m.tasks[i].kind != OP_ATTENTION_MERGE)
            continue;
        if (n_tasks++ % 64 != 0) continue; /* each proof is of the whole table */
        m.tasks[i].k = window - m.tasks[i].k;
        assert_int_equal(cuda_verify(&d, p, &m.tables), QN_EVERIFY);
        assert_non_null(strstr(d.message, "k of its descriptor"));
        m.tasks[i].k = window - m.tasks[i].k;
    }
    assert_true(n_ops >= 4 && n_tasks >= 64);
    unmake(&m);
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_pass), cmocka_unit_test(windows_of_other_layers_are_killed),
        cmocka_unit_test(a_list_is_behind_a_counter), cmocka_unit_test(every_mutant_is_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
