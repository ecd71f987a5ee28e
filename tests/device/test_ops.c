/* Every operator in every form, alone in a program: on a GPU (or the emulated one) and on the CPU
 * backend's kernels, against the plain interpreter of tests/reference. op_case.h says what is
 * compared. A test is <model>/<operator>.<form>; QN_TEST picks some by a pattern. Where there is no
 * GPU the CPU's tests run alone. QN_TEST_SHORT (any value): a form runs with every second count of
 * its rows, in the next model, or on the next architecture, with the others; a variant's single
 * task runs once. */
#include <fnmatch.h>
#include <malloc.h>
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
#include "device/op_case.h"
#include "device/op_test.h"

enum { MAX_LEN = 1408, KV_BLOCK = 32, N_KV_BLOCKS = 130, MAX_TESTS = 512, MAX_ROWS = 16 };

/* ---- models ---- */

struct shape {
    const char *name;
    uint32_t sets; /* enum op_set */
    struct model_spec spec;
};

#define SPEC_OF(layers, ...)                                                                       \
    {                                                                                              \
        .n_layers = (layers), .max_position = 4096, .rms_eps = 1e-6f, .rope_theta = 10000,         \
        .bos = -1, __VA_ARGS__                                                                     \
    }
#define SPEC(...) SPEC_OF(1, __VA_ARGS__)
/* Heads: dimensions of 64, 80, 128 and 256; 1, 2, 4 and 8 KV heads; groups of 1, 4, 8 and 16. Rows
 * that are multiples of nothing; 32 rows that stream; a row too long to be staged. */
static const struct shape shapes[] = {
    {"d64_kv8", PRODUCTS | ATTENTION | OTHERS | WIDE_K | EXPERTS | HEAD_TILES | GROUPED,
     SPEC(.hidden = 512, .intermediate = 768, .vocab = 331, .n_heads = 8, .n_kv_heads = 8,
          .head_dim = 64, .weight_dtype = DTYPE_BF16,
          .experts = {.n = 11, .top_k = 3, .width = 256, .normed = 1})},
    {"d80_kv1_f16", PRODUCTS | ATTENTION | OTHERS | WIDE_K | EXPERTS,
     SPEC(.hidden = 328, .intermediate = 264, .vocab = 203, .n_heads = 4, .n_kv_heads = 1,
          .head_dim = 80, .qkv_bias = 1, .o_bias = 1, .mlp_bias = 1, .weight_dtype = DTYPE_F16,
          .experts = {.n = 5, .top_k = 5, .width = 41, .shared_width = 8, .shared_gate = 1})},
    {"d128_kv2", ATTENTION | HEAD_TILES,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 16, .n_kv_heads = 2,
          .head_dim = 128, .qk_norm = 1, .weight_dtype = DTYPE_BF16)},
    {"h2048", EXPERTS, /* the widest whose passes are over several sets (expert_list.cuh) */
     SPEC(.hidden = 2048, .intermediate = 64, .vocab = 64, .n_heads = 1, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_BF16,
          .experts = {.n = 12, .top_k = 3, .width = 72, .normed = 1})},
    {"d256_kv1", ATTENTION,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 16, .n_kv_heads = 1,
          .head_dim = 256, .qk_norm = 1, .weight_dtype = DTYPE_BF16)},
    {"d128_kv4_window", ATTENTION,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 16, .n_kv_heads = 4,
          .head_dim = 128, .sliding_window = 150, .weight_dtype = DTYPE_BF16)},
    {"latent", LATENT | EXPERTS,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 5, .n_kv_heads = 1,
          .head_dim = 40, .weight_dtype = DTYPE_BF16,
          .experts = {.n = 12,
                      .top_k = 3,
                      .width = 24,
                      .shared_width = 48,
                      .groups = 4,
                      .top_groups = 2,
                      .scale = 2.5f},
          .latent = {.kv_rank = 72, .rope = 16, .v_dim = 28, .scale = 0.15f})},
    /* Whole lines of the cache; more heads than a product has rows. */
    {"latent_lines", LATENT,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 18, .n_kv_heads = 1,
          .head_dim = 40, .weight_dtype = DTYPE_F16,
          .latent = {.kv_rank = 112, .rope = 16, .v_dim = 16, .scale = 0.15f})},
    {"of_130_experts", EXPERTS,
     SPEC(.hidden = 72, .intermediate = 64, .vocab = 64, .n_heads = 1, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_F32,
          .experts = {.n = 130,
                      .top_k = 4,
                      .width = 600,
                      .shared_width = 8,
                      .groups = 13,
                      .top_groups = 2})},
    /* A row has most experts: more than EXPERT_SUM adds at once, and an expert has more slots than
     * a tile has rows. */
    {"of_10_experts", GROUPED,
     SPEC(.hidden = 336, .intermediate = 64, .vocab = 64, .n_heads = 1, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_F16,
          .experts = {.n = 10, .top_k = 9, .width = 41, .shared_width = 8, .shared_gate = 1})},
    /* Windows of ROUTE and ROUTE_LIST that hold six rows; more experts than threads. */
    {"of_1000_experts", ROUTES,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 1, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_BF16,
          .experts = {.n = 1000, .top_k = 100, .width = 8, .normed = 1})},
    /* The layer's window is the descriptor's: another layer has none. */
    {"d64_kv2_mixed", ATTENTION | HEAD_TILES,
     SPEC_OF(2, .hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 6, .n_kv_heads = 2,
             .head_dim = 64, .qkv_bias = 1, .sliding_window = 150, .sees_all = {2},
             .weight_dtype = DTYPE_BF16)},
    {"k15616", WIDE_K,
     SPEC(.hidden = 40, .intermediate = 15616, .vocab = 64, .n_heads = 1, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_BF16)},
};

/* ---- tests ---- */

struct test {
    char name[96];
    const struct shape *shape;
    struct form_row row;        /* row.rows: `rows` */
    uint32_t rows[MAX_ROWS];    /* ends with 0 */
    struct op_form cut;         /* the same in other tiles */
    struct test_device *device; /* NULL: the CPU */
    struct share *share;        /* NULL: its program is its own */
    CMUnitTestFunction run;
};

/* Tests whose forms are variants of one program, so that one image is compiled for all of them. */
struct share {
    const struct test *of[OP_MAX_VARIANTS];
    uint32_t n_tests, n_variants, n_done;
    int rc; /* of opening, once n_done > 0 */
    struct diag d;
    struct op_rig rig;
};

#define DIE(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(!"as said above"))

static bool is_brief(void) {
    return getenv("QN_TEST_SHORT") != NULL;
}

static struct iteration_request request(uint32_t i, uint32_t first, uint32_t n) {
    return (struct iteration_request){.slot = (i * 7 + 3) % ITERATION_SLOTS,
                                      .first = first,
                                      .n = n,
                                      .sampling = {.repetition_penalty = 1, .top_p = 1}};
}

static struct rt_sampling drawn(uint32_t i) {
    return (struct rt_sampling){.temperature = 0.7f + 0.1f * (float)(i % 8),
                                .top_p = i % 3 == 0 ? 1 : 0.9f,
                                .top_k = (int32_t[]){0, 40, -1, 40}[i % 4], /* -1: off, too */
                                .min_p = i % 5 == 0 ? 0.02f : 0,
                                .repetition_penalty = i % 2 == 0 ? 1 : 1.2f,
                                .presence_penalty = i % 3 == 1 ? 0.5f : 0,
                                .frequency_penalty = i % 3 == 2 ? 0.25f : 0,
                                .seed = 1000 + i};
}

/* Contexts around the bounds of pieces and shares: positions before each row's own. */
static const uint32_t long_contexts[] = {127, 128, 129, 300, 1, 517, 640, 1300, 16, 255};
static const uint32_t two_contexts[] = {200, 128, 129, 1, 127, 255, 143, 144, 16, 254};

static uint32_t context_of(enum fill fill, uint32_t i) {
    if (fill == FILL_LONG) return long_contexts[i];
    return fill == FILL_TWO ? two_contexts[i % COUNT_OF(two_contexts)] : 1 + (i * 19 + 3) % 30;
}

/* The rows of an iteration; false: they do not fit the fill. */
static bool set_requests(struct iteration *it, enum fill fill, uint32_t n_rows) {
    const uint32_t n_single = fill == FILL_CHUNK   ? 0
                              : fill == FILL_MIXED ? MIN(n_rows / 2, 20u)
                                                   : n_rows;
    if (n_single > ITERATION_SLOTS || (fill == FILL_LONG && n_rows > 9)) return false;
    it->n_requests = n_single + (n_single < n_rows);
    for (uint32_t i = 0; i < n_single; i++) it->requests[i] = request(i, context_of(fill, i), 1);
    for (uint32_t i = 0; fill == FILL_DRAWN && i < n_single; i++) {
        it->requests[i].sampling = drawn(i);
        it->requests[i].n_output = 1 + i % it->requests[i].first;
    }
    if (n_single < n_rows)
        it->requests[n_single] = request(n_single, fill == FILL_CHUNK ? 250 : 9, n_rows - n_single);
    return true;
}

static void run_variant(struct op_rig *rig, const struct form_row *row, uint32_t variant) {
    const struct op_variant *v = &rig->program.variants[variant];
    const uint32_t uses[] = {v->rows, v->rows > 2 ? v->rows - 1 : 0};
    bool alone = true;
    for (int fill = FILL_MIXED; fill < N_FILLS; fill++)
        for (size_t i = 0; i < COUNT_OF(uses); i++) {
            struct iteration it = {.variant = variant};
            struct diag d = {0};
            if (uses[i] == 0 || (i > 0 && fill != FILL_MIXED) || (row->fills >> fill & 1) == 0 ||
                !set_requests(&it, (enum fill)fill, uses[i]))
                continue;
            if (op_case_run(&d, rig, &it, alone && i == 0) != QN_OK)
                DIE("%u rows of %u, fill %d: %s", uses[i], v->rows, fill, d.message);
            alone = !is_brief();
        }
}

/* The bits of a variant's results, in the first of its fills; 0: its rows do not fit that. */
static uint64_t digest_of(struct op_rig *rig, const struct form_row *row, uint32_t variant) {
    const struct op_variant *v = &rig->program.variants[variant];
    const enum fill fill = (enum fill)__builtin_ctz(row->fills);
    struct iteration it = {.variant = variant};
    struct diag d = {0};
    if (!set_requests(&it, fill, v->rows)) return 0;
    if (op_case_run(&d, rig, &it, false) != QN_OK)
        DIE("%u rows in other tiles: %s", v->rows, d.message);
    return rig->digest;
}

/* Variants of `cut` give the bits of those of as many rows in the form's own tiles. */
static void run_cuts(struct op_rig *rig, const struct test *t) {
    const struct op_variant *v = rig->program.variants;
    for (uint32_t a = 0; a < rig->program.n_variants; a++)
        for (uint32_t b = 0; b < rig->program.n_variants; b++) {
            if (v[a].form != &t->row.form || v[b].form != &t->cut || v[a].rows != v[b].rows)
                continue;
            if (digest_of(rig, &t->row, a) != digest_of(rig, &t->row, b))
                DIE("%u rows: other bits in other tiles", v[a].rows);
        }
}

/* Whether a test runs the form in other tiles, too: a GPU's forms depend on their tiles. */
static bool has_cuts(const struct test *t) {
    return t->device == NULL;
}

/* Whether no backend can have the form in that model: parts are of whole row blocks; a GPU has
 * pieces of heads' own keys only with the heads; STEP of
 * several rows and WHOLE have the cache in pages, which wide heads do not fit. */
static bool is_refused(const struct test *t) {
    const struct model_spec *s = &t->shape->spec;
    switch (t->row.form.kind) {
    case OP_LINEAR_SPLITK:
    case OP_SPLITK_SUM: return s->hidden % CUDA_PAGE_ROWS != 0;
    case OP_ATTENTION_SPLIT: return t->device != NULL && !spec_is_latent(s);
    case OP_LINEAR:
        return t->device != NULL && !t->row.form.packed && t->row.form.wide_k &&
               s->intermediate > STAGED_COLUMNS;
    default: return false;
    }
}

/* What a form's program must have beside it: rows that are another request's each are a variant
 * beside one of any rows; how many parts a sum has is a constant of the image, which follows from
 * who makes them. */
static const struct op_form *beside_of(const struct op_form *f) {
    static const struct op_form embed = {.name = "beside", .kind = OP_EMBED};
    static const struct op_form parts = {
        .name = "beside", .kind = OP_LINEAR_SPLITK, .packed = true};
    static const struct op_form parts_down = {
        .name = "beside", .kind = OP_LINEAR_SPLITK, .packed = true, .wide_k = true};
    if (f->kind == OP_SPLITK_SUM) return f->wide_k ? &parts_down : &parts;
    return f->decode_only ? &embed : NULL;
}

static uint32_t count_variants(const struct test *t) {
    uint32_t n = 0;
    while (t->row.rows[n] != 0) n++;
    return n * (1 + has_cuts(t) + (beside_of(&t->row.form) != NULL));
}

/* The variants of a test, count_variants of them. */
static void put_variants(const struct test *t, struct op_variant *variants) {
    const struct op_form *beside = beside_of(&t->row.form);
    for (const uint32_t *rows = t->row.rows; *rows != 0; rows++) {
        struct op_variant v = {&t->row.form, *rows, MIN(*rows, (uint32_t)ITERATION_SLOTS), 0};
        *variants++ = v;
        v.form = &t->cut;
        if (has_cuts(t)) *variants++ = v;
        v.form = beside;
        if (beside != NULL) *variants++ = v;
    }
}

static int open_rig(struct diag *d, const struct test *const *tests, uint32_t n,
                    struct op_rig *rig) {
    const struct test *first = tests[0];
    const bool device = first->device != NULL;
    const struct op_machine machine = {.target = device ? TARGET_CUDA : TARGET_CPU,
                                       .n_workers = first->row.n_workers != 0 ? first->row.n_workers
                                                    : device ? (uint32_t)first->device->info.n_sms
                                                             : 4,
                                       .n_slots = ITERATION_SLOTS,
                                       .max_model_len = MAX_LEN,
                                       .kv_block = KV_BLOCK,
                                       .wide = device && first->device->info.major == 9};
    struct op_variant variants[OP_MAX_VARIANTS];
    uint32_t n_variants = 0;
    for (uint32_t i = 0; i < n; n_variants += count_variants(tests[i++]))
        put_variants(tests[i], variants + n_variants);
    return op_rig_open(d, first->device, &first->shape->spec, &machine, variants, n_variants,
                       N_KV_BLOCKS, rig);
}

static void run_in(struct op_rig *rig, const struct test *t) {
    for (uint32_t i = 0; i < rig->program.n_variants; i++)
        if (rig->program.variants[i].form == &t->row.form) run_variant(rig, &t->row, i);
    run_cuts(rig, t);
}

static void test_form(void **state) {
    const struct test *t = *state;
    struct op_rig rig;
    struct diag d = {0};
    const int rc = open_rig(&d, &t, 1, &rig);
    if (rc == QN_OK && !is_refused(t)) run_in(&rig, t);
    op_rig_close(&rig);
    if (is_refused(t) ? rc != QN_EUNSUPPORTED && rc != QN_ESHAPE : rc != QN_OK)
        DIE("%d: %s", rc, d.message);
}

static void test_shared_form(void **state) {
    const struct test *t = *state;
    struct share *s = t->share;
    if (s->n_done++ == 0) s->rc = open_rig(&s->d, s->of, s->n_tests, &s->rig);
    if (s->rc != QN_OK) DIE("%s", s->d.message);
    run_in(&s->rig, t);
}

/* ---- shares ---- */

/* What an image can have in one way only: whether a single row's products ride on data (emit.c:
 * has_row_flags), how many parts a sum has. 0: the form does not care. */
static int row_flags_of(const struct form_row *row) {
    const enum op_kind kind = row->form.kind;
    const bool one =
        row->rows[0] == 1 && (kind == OP_QKV_LINEAR || kind == OP_LINEAR || kind == OP_GATED_MLP);
    return !one ? 0 : row->form.rides ? 1 : 2;
}

static int parts_of(const struct form_row *row) {
    const enum op_kind kind = row->form.kind;
    return kind != OP_LINEAR_SPLITK && kind != OP_SPLITK_SUM ? 0 : row->form.wide_k ? 1 : 2;
}

static bool clash(int a, int b) {
    return a != 0 && b != 0 && a != b;
}

static bool fits(const struct share *s, const struct test *t) {
    if (s->of[0]->shape != t->shape || s->of[0]->row.n_workers != t->row.n_workers ||
        s->n_variants + count_variants(t) > OP_MAX_VARIANTS)
        return false;
    for (uint32_t i = 0; i < s->n_tests; i++)
        if (clash(row_flags_of(&s->of[i]->row), row_flags_of(&t->row)) ||
            clash(parts_of(&s->of[i]->row), parts_of(&t->row)))
            return false;
    return true;
}

/* Gives a GPU's test a share of a program, in shares[*n]. */
static void share(struct test *t, struct share *shares, size_t *n) {
    size_t i = 0;
    if (t->device == NULL || t->run != test_form || is_refused(t)) return;
    while (i < *n && !(shares[i].n_tests > 0 && fits(&shares[i], t))) i++;
    *n = MAX(*n, i + 1);
    shares[i].of[shares[i].n_tests++] = t;
    shares[i].n_variants += count_variants(t);
    t->share = &shares[i];
    t->run = test_shared_form;
}

/* The models that run a form: bits of enum op_set. */
static uint32_t sets_of(const struct op_form *f) {
    if (f->wide_k) return WIDE_K;
    return op_test_of(f->kind)->set;
}

/* ---- walks ---- */

/* Forms whose tasks can walk through row blocks and token rows in several ways. */
static const struct walk_row {
    struct op_form form;
    uint32_t rows[5];
    uint32_t n_workers;
} walks[] = {
    {{.name = "linear.one_row", .kind = OP_LINEAR, .rides = true}, {1}, 0},
    {{.name = "linear", .kind = OP_LINEAR, .packed = true}, {16, 64}, 0},
    {{.name = "linear_splitk", .kind = OP_LINEAR_SPLITK, .packed = true}, {32, 96}, 1},
    {{.name = "gated_mlp", .kind = OP_GATED_MLP, .packed = true, .summed = true}, {96}, 4},
    {{.name = "lm_head.one_row", .kind = OP_LM_HEAD, .rides = true}, {1}, 0},
    {{.name = "attention", .kind = OP_ATTENTION, .packed = true}, {64}, 1},
    {{.name = "latent_heads", .kind = OP_LATENT_HEADS}, {64}, 0},
    {{.name = "latent_values", .kind = OP_LATENT_VALUES}, {64}, 0},
    {{.name = "latent_merge", .kind = OP_LATENT_MERGE}, {8}, 0},
};

static bool is_proved(const struct op_rig *r) {
    const struct device_program *p = &r->loaded;
    const struct cuda_tables t = {.places = p->plan.places,
                                  .weight_bytes = p->plan.weight_bytes,
                                  .bases = device_bases(p),
                                  .tasks = p->tasks};
    return cuda_verify(NULL, p->program, &t) == QN_OK;
}

/* Gives all tasks of a variant a tile and a group; whether the proof lets them pass. */
static bool set_walk(struct op_rig *r, uint32_t variant, uint32_t tile, uint32_t group) {
    const struct prog_variant *v = &PROG(r->program.program, VARIANT)[variant];
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
        if (r->loaded.tasks[t].kind == OP_NONE) continue;
        r->loaded.tasks[t].tile = (uint8_t)tile;
        r->loaded.tasks[t].group = (uint8_t)group;
    }
    return is_proved(r);
}

/* Runs a variant in every way of walking that the proof lets pass; how many there are. */
static uint32_t run_walks(struct op_rig *r, uint32_t variant) {
    static const uint8_t tiles[] = {0, 1, 8, 16, 32, 64, 96, 128};
    const struct prog_variant *v = &PROG(r->program.program, VARIANT)[variant];
    struct cuda_task keep[64];
    uint32_t n = 0;
    assert_in_range(v->n_tasks, 1, COUNT_OF(keep));
    memcpy(keep, r->loaded.tasks + v->first_task, v->n_tasks * sizeof *keep);
    for (size_t i = 0; i < COUNT_OF(tiles); i++)
        for (uint32_t group = 0; group <= 16; group++) {
            struct iteration it = {.variant = variant};
            struct diag d = {0};
            if (!set_walk(r, variant, tiles[i], group)) continue;
            n++;
            if (!set_requests(&it, FILL_MIXED, v->n_rows) ||
                op_case_run(&d, r, &it, false) != QN_OK)
                DIE("%u rows, tile %u, group %u: %s", v->n_rows, tiles[i], group, d.message);
        }
    memcpy(r->loaded.tasks + v->first_task, keep, v->n_tasks * sizeof *keep);
    return n;
}

/* The model of a row of walks: a test's own, or one with latents. */
static const struct model_spec *walk_model(const struct test *t, const struct walk_row *w) {
    const bool latent = op_test_of(w->form.kind)->set == LATENT;
    for (size_t i = 0; latent && i < COUNT_OF(shapes); i++)
        if ((shapes[i].sets & LATENT) != 0) return &shapes[i].spec;
    return &t->shape->spec;
}

/* What the proof of the device tables leaves open (test_tables.c) changes no result. */
static void test_walks(void **state) {
    const struct test *t = *state;
    uint32_t n_walks = 0;
    for (size_t i = 0; i < COUNT_OF(walks); i++) {
        const struct op_machine machine = {
            .target = TARGET_CUDA,
            .n_workers = walks[i].n_workers ? walks[i].n_workers : (uint32_t)t->device->info.n_sms,
            .n_slots = ITERATION_SLOTS,
            .max_model_len = MAX_LEN,
            .kv_block = KV_BLOCK,
            .wide = t->device->info.major == 9};
        struct op_variant variants[COUNT_OF(walks[i].rows)];
        struct op_rig rig;
        struct diag d = {0};
        uint32_t n = 0;
        for (; n < COUNT_OF(variants) && walks[i].rows[n] != 0; n++)
            variants[n] = (struct op_variant){&walks[i].form, walks[i].rows[n],
                                              MIN(walks[i].rows[n], (uint32_t)ITERATION_SLOTS), 0};
        if (op_rig_open(&d, t->device, walk_model(t, &walks[i]), &machine, variants, n, N_KV_BLOCKS,
                        &rig) != QN_OK)
            DIE("%s: %s", walks[i].form.name, d.message);
        for (uint32_t v = 0; v < n; v++) n_walks += run_walks(&rig, v);
        op_rig_close(&rig);
    }
    print_message("%u ways to walk\n", n_walks);
    assert_true(n_walks > 30);
}

/* ---- all ---- */

/* A single row's products whose operands do not ride on data are an image of their own
 * (emit.c: has_row_flags), which takes seconds to compile: in one model. */
static bool is_own_image(const struct form_row *row) {
    const enum op_kind kind = row->form.kind;
    return row->rows == one_row && !row->form.rides && !row->form.packed &&
           (kind == OP_QKV_LINEAR || kind == OP_LINEAR || kind == OP_GATED_MLP);
}

static bool runs_on(const struct form_row *row, const struct test_device *device) {
    return device == NULL ? (row->backends & CPU) != 0
                          : (row->backends & GPU) != 0 ||
                                ((row->backends & HOPPER) != 0 && device->info.major == 9);
}

/* The counts of rows that a test runs: those of `row`, or in brief every second of them, from the
 * first or the second one on. */
static void choose_rows(struct test *t, const struct form_row *row, uint32_t turn) {
    const bool half = is_brief() && row->rows[0] != 0 && row->rows[1] != 0;
    uint32_t n = 0;
    for (size_t i = half ? turn % 2 : 0; n + 1 < MAX_ROWS && row->rows[i] != 0;) {
        t->rows[n++] = row->rows[i++];
        if (half && row->rows[i] != 0) i++;
    }
    t->row.rows = t->rows;
}

/* How many models before this one run the form. */
static uint32_t models_before(size_t shape, const struct op_form *f) {
    uint32_t n = 0;
    for (size_t i = 0; i < shape; i++) n += (shapes[i].sets & sets_of(f)) != 0;
    return n;
}

/* The tests of a form in a model, on each backend that has it. `index`: of the operator's forms. */
static size_t add_tests(struct test_device *device, size_t shape, const struct form_row *row,
                        size_t index, struct test *tests) {
    struct test_device *const places[] = {NULL, device};
    const uint32_t turn = models_before(shape, &row->form) + (uint32_t)index;
    size_t n = 0;
    if ((shape > 0 && is_own_image(row)) || (shapes[shape].sets & sets_of(&row->form)) == 0)
        return 0;
    for (size_t i = 0; i < (device != NULL ? 2u : 1u); i++) {
        const bool latent = spec_is_latent(&shapes[shape].spec) != 0;
        if (!runs_on(row, places[i]) ||
            (i > 0 && latent && (op_test_of(row->form.kind)->set & LATENT) == 0))
            continue;
        struct test *t = &tests[n++];
        *t = (struct test){
            .shape = &shapes[shape], .row = *row, .device = places[i], .run = test_form};
        choose_rows(t, row, turn + (i > 0 && device->info.major == 9));
        t->cut = row->form;
        t->cut.tiles = (struct tile_override){2, 3};
        snprintf(t->name, sizeof t->name, "%s/%s%s", shapes[shape].name, row->form.name,
                 i == 0 ? ".cpu" : "");
    }
    return n;
}

/* All forms of all operators in all models where they can run. */
static size_t list_tests(struct test_device *device, struct test tests[MAX_TESTS]) {
    size_t n = 0;
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int kind = 1; kind < N_OP_KINDS; kind++)
            for (size_t i = 0; i < op_test_of((enum op_kind)kind)->n_forms; i++) {
                struct form_row row = op_test_of((enum op_kind)kind)->forms[i];
                row.form.kind = (enum op_kind)kind;
                n += add_tests(device, s, &row, i, tests + n);
            }
    if (device != NULL && device->info.major == 9)
        tests[n++] = (struct test){
            .name = "walks", .shape = &shapes[0], .device = device, .run = test_walks};
    return n;
}

int main(void) {
    static struct test tests[MAX_TESTS];
    static struct CMUnitTest units[MAX_TESTS];
    static struct share shares[MAX_TESTS];
    struct test_device device;
    struct diag d = {0};
    /* Tensors of megabytes come and go with each case: their pages stay. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    const bool there = device_open(&d, &device) == QN_OK;
    if (!there) print_message("no GPU: %s\n", d.message);
    const char *only = getenv("QN_TEST");
    const size_t n_all = list_tests(there ? &device : NULL, tests);
    size_t n = 0, n_shares = 0;
    for (size_t i = 0; i < n_all; i++) {
        if (only != NULL && fnmatch(only, tests[i].name, 0) != 0) continue;
        share(&tests[i], shares, &n_shares);
        units[n++] =
            (struct CMUnitTest){tests[i].name, tests[i].run, NULL, NULL, (void *)&tests[i]};
    }
    if (n == 0) print_error("no test is called %s\n", only);
    const int failed = _cmocka_run_group_tests("operators", units, n, NULL, NULL);
    for (size_t i = 0; i < n_shares; i++)
        if (shares[i].n_done > 0) op_rig_close(&shares[i].rig);
    if (there) device_close(&device);
    return n == 0 ? 1 : failed;
}
