/* Every operator in every form, alone in a program: on a GPU (or the emulated one) and on the CPU
 * backend's kernels, against the plain interpreter of tests/reference. op_case.h says what is
 * compared. A test is <model>/<operator>.<form>; QN_TEST picks some by a pattern. Where there is no
 * GPU the CPU's tests run alone. */
#include <fnmatch.h>
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

enum { MAX_LEN = 1408, KV_BLOCK = 32, N_KV_BLOCKS = 130, MAX_TESTS = 512 };

/* ---- models ---- */

/* Operators that a model's tests have. */
enum set {
    PRODUCTS = 1, /* projections, MLP, head */
    ATTENTION = 2,
    OTHERS = 4, /* the rest, which few numbers of a model matter to */
    WIDE_K = 8, /* LINEAR of `intermediate` */
    OF_32 = 16, /* projections, MLP and head of up to 32 rows */
};

struct shape {
    const char *name;
    uint32_t sets;
    struct model_spec spec;
};

#define SPEC(...)                                                                                  \
    {                                                                                              \
        .n_layers = 1, .max_position = 4096, .rms_eps = 1e-6f, .rope_theta = 10000, .bos = -1,     \
        __VA_ARGS__                                                                                \
    }
/* Heads: dimensions of 64, 80, 128 and 256; 1, 2, 4 and 8 KV heads; groups of 1, 4, 8 and 16. Rows
 * that are multiples of nothing; 32 rows that stream; a row too long to be staged. */
static const struct shape shapes[] = {
    {"d64_kv8", PRODUCTS | ATTENTION | OTHERS | WIDE_K,
     SPEC(.hidden = 512, .intermediate = 768, .vocab = 331, .n_heads = 8, .n_kv_heads = 8,
          .head_dim = 64, .weight_dtype = DTYPE_BF16)},
    {"d80_kv1_f16", PRODUCTS | ATTENTION | OTHERS | WIDE_K,
     SPEC(.hidden = 328, .intermediate = 264, .vocab = 203, .n_heads = 4, .n_kv_heads = 1,
          .head_dim = 80, .qkv_bias = 1, .o_bias = 1, .mlp_bias = 1, .weight_dtype = DTYPE_F16)},
    {"d128_kv2", ATTENTION,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 16, .n_kv_heads = 2,
          .head_dim = 128, .qk_norm = 1, .weight_dtype = DTYPE_BF16)},
    {"h2048", OF_32,
     SPEC(.hidden = 2048, .intermediate = 136, .vocab = 96, .n_heads = 2, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_BF16)},
    {"d256_kv1", ATTENTION,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 16, .n_kv_heads = 1,
          .head_dim = 256, .qk_norm = 1, .weight_dtype = DTYPE_BF16)},
    {"d128_kv4_window", ATTENTION,
     SPEC(.hidden = 64, .intermediate = 64, .vocab = 64, .n_heads = 16, .n_kv_heads = 4,
          .head_dim = 128, .sliding_window = 150, .weight_dtype = DTYPE_BF16)},
    {"k15616", WIDE_K,
     SPEC(.hidden = 40, .intermediate = 15616, .vocab = 64, .n_heads = 1, .n_kv_heads = 1,
          .head_dim = 64, .weight_dtype = DTYPE_BF16)},
};

/* ---- forms ---- */

static const uint32_t one_row[] = {1, 0}, few_rows[] = {2, 8, 9, 16, 0}, rows_of_32[] = {17, 32, 0},
                      many_rows[] = {64, 128, 0}, any_rows[] = {1, 2, 8, 9, 16, 17, 32, 64, 128, 0},
                      eights_and_odd[] = {2, 8, 9, 16, 17, 32, 64, 128, 0},
                      up_to_16[] = {1, 2, 8, 9, 16, 0}, up_to_32[] = {2, 9, 17, 32, 0},
                      nine_rows[] = {9, 0}, alone_rows[] = {17, 32, 64, 0};

enum backends { CPU = 1, GPU = 2, HOPPER = 4 };

/* How a form's iterations are filled. */
enum fill {
    FILL_MIXED, /* requests of one row, and a chunk */
    FILL_ALONE, /* requests of one row */
    FILL_LONG,  /* the same with contexts of several pieces; few rows */
    FILL_CHUNK, /* one request */
    FILL_DRAWN, /* requests of one row that draw their tokens, with penalties and cuts */
    N_FILLS,
};

struct form_row {
    struct op_form form;
    const uint32_t *rows;
    int backends;
    uint32_t fills;     /* bits of enum fill */
    uint32_t n_workers; /* 0: all */
};
#define MIXED (1u << FILL_MIXED)
#define ALONE (1u << FILL_ALONE)
#define LONG  (1u << FILL_LONG)
#define CHUNK (1u << FILL_CHUNK)
#define DRAWN (1u << FILL_DRAWN)
#define ALL   (MIXED | ALONE | LONG | CHUNK)

static const struct form_row forms[] = {
    /* what the CPU has */
    {{.name = "embed", .kind = OP_EMBED}, any_rows, CPU, MIXED, 0},
    {{.name = "qkv", .kind = OP_QKV}, any_rows, CPU, MIXED, 0},
    {{.name = "qkv_linear", .kind = OP_QKV_LINEAR}, any_rows, CPU, MIXED, 0},
    {{.name = "qkv_heads", .kind = OP_QKV_HEADS}, any_rows, CPU | GPU, MIXED, 0},
    {{.name = "attention", .kind = OP_ATTENTION}, any_rows, CPU, ALL, 0},
    {{.name = "attention_split", .kind = OP_ATTENTION_SPLIT}, up_to_32, CPU, ALL, 0},
    {{.name = "attention_step", .kind = OP_ATTENTION_STEP}, one_row, CPU, ALONE | LONG, 0},
    {{.name = "attention_combine", .kind = OP_ATTENTION_COMBINE},
     any_rows,
     CPU | GPU,
     MIXED | LONG,
     0},
    {{.name = "linear", .kind = OP_LINEAR}, any_rows, CPU, MIXED, 0},
    {{.name = "linear.down", .kind = OP_LINEAR, .wide_k = true}, any_rows, CPU, MIXED, 0},
    {{.name = "linear.bare", .kind = OP_LINEAR, .bare = true}, any_rows, CPU, MIXED, 0},
    {{.name = "gated_mlp", .kind = OP_GATED_MLP}, any_rows, CPU, MIXED, 0},
    {{.name = "lm_head", .kind = OP_LM_HEAD}, any_rows, CPU, MIXED, 0},
    {{.name = "sample", .kind = OP_SAMPLE}, any_rows, CPU | GPU, ALONE | DRAWN, 0},
    /* one row, whose operands ride on data or do not */
    {{.name = "embed.one_row", .kind = OP_EMBED}, one_row, GPU, MIXED, 0},
    {{.name = "embed.polls", .kind = OP_EMBED, .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "qkv_linear.one_row", .kind = OP_QKV_LINEAR}, one_row, GPU, MIXED, 0},
    {{.name = "qkv_linear.polls", .kind = OP_QKV_LINEAR, .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "linear.one_row", .kind = OP_LINEAR}, one_row, GPU, MIXED, 0},
    {{.name = "linear.polls", .kind = OP_LINEAR, .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "linear.down_one_row", .kind = OP_LINEAR, .wide_k = true}, one_row, GPU, MIXED, 0},
    {{.name = "linear.down_polls", .kind = OP_LINEAR, .wide_k = true, .rides = true},
     one_row,
     GPU,
     MIXED,
     0},
    {{.name = "gated_mlp.one_row", .kind = OP_GATED_MLP}, one_row, GPU, MIXED, 0},
    {{.name = "gated_mlp.polls", .kind = OP_GATED_MLP, .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "lm_head.one_row", .kind = OP_LM_HEAD}, one_row, GPU, MIXED, 0},
    {{.name = "lm_head.polls", .kind = OP_LM_HEAD, .rides = true}, one_row, GPU, MIXED, 0},
    {{.name = "attention_step.polls", .kind = OP_ATTENTION_STEP, .rides = true},
     one_row,
     GPU,
     ALONE | LONG,
     0},
    {{.name = "attention_whole.polls", .kind = OP_ATTENTION_WHOLE, .rides = true},
     one_row,
     GPU,
     ALONE | LONG,
     0},
    {{.name = "attention_combine.polls", .kind = OP_ATTENTION_COMBINE, .rides = true},
     one_row,
     GPU,
     ALONE | LONG,
     0},
    /* packed rows: streamed weights up to 16, on a Hopper 32, tiles beyond */
    {{.name = "embed.normed", .kind = OP_EMBED, .packed = true}, eights_and_odd, GPU, MIXED, 0},
    {{.name = "qkv_linear.stream", .kind = OP_QKV_LINEAR, .packed = true}, few_rows, GPU, MIXED, 0},
    {{.name = "qkv_linear.of_32", .kind = OP_QKV_LINEAR, .packed = true},
     rows_of_32,
     GPU,
     MIXED,
     0},
    {{.name = "qkv_linear.tile", .kind = OP_QKV_LINEAR, .packed = true, .summed = true},
     many_rows,
     GPU,
     MIXED,
     0},
    {{.name = "linear.stream", .kind = OP_LINEAR, .packed = true}, few_rows, GPU, MIXED, 0},
    {{.name = "linear.of_32", .kind = OP_LINEAR, .packed = true}, rows_of_32, GPU, MIXED, 0},
    {{.name = "linear.tile", .kind = OP_LINEAR, .packed = true}, many_rows, GPU, MIXED, 0},
    {{.name = "linear.down_long_row",
      .kind = OP_LINEAR,
      .packed = true,
      .bare = true,
      .wide_k = true},
     one_row,
     GPU,
     MIXED,
     0},
    {{.name = "linear.down_stream", .kind = OP_LINEAR, .packed = true, .wide_k = true},
     few_rows,
     GPU,
     MIXED,
     0},
    {{.name = "linear.down_of_32", .kind = OP_LINEAR, .packed = true, .wide_k = true},
     rows_of_32,
     GPU,
     MIXED,
     0},
    {{.name = "linear.down_tile", .kind = OP_LINEAR, .packed = true, .wide_k = true},
     many_rows,
     GPU,
     MIXED,
     0},
    {{.name = "linear.row_tiles", .kind = OP_LINEAR, .packed = true, .tiles = {2, 0}},
     eights_and_odd,
     GPU,
     MIXED,
     0},
    {{.name = "gated_mlp.stream", .kind = OP_GATED_MLP, .packed = true}, few_rows, GPU, MIXED, 0},
    {{.name = "gated_mlp.of_32", .kind = OP_GATED_MLP, .packed = true}, rows_of_32, GPU, MIXED, 0},
    {{.name = "gated_mlp.tile", .kind = OP_GATED_MLP, .packed = true, .summed = true},
     many_rows,
     GPU,
     MIXED,
     0},
    {{.name = "lm_head.stream", .kind = OP_LM_HEAD, .packed = true},
     few_rows,
     GPU,
     MIXED | ALONE,
     0},
    {{.name = "lm_head.of_32", .kind = OP_LM_HEAD, .packed = true},
     rows_of_32,
     GPU,
     MIXED | ALONE,
     0},
    {{.name = "lm_head.tile", .kind = OP_LM_HEAD, .packed = true, .summed = true},
     many_rows,
     GPU,
     MIXED | ALONE,
     0},
    {{.name = "linear_parts", .kind = OP_LINEAR_PARTS, .packed = true}, up_to_32, HOPPER, MIXED, 0},
    {{.name = "linear_parts.down", .kind = OP_LINEAR_PARTS, .packed = true, .wide_k = true},
     up_to_32,
     HOPPER,
     MIXED,
     0},
    {{.name = "linear_sum", .kind = OP_LINEAR_SUM, .packed = true}, up_to_32, HOPPER, MIXED, 0},
    {{.name = "linear_sum.down", .kind = OP_LINEAR_SUM, .packed = true, .wide_k = true},
     up_to_32,
     HOPPER,
     MIXED,
     0},
    {{.name = "sum_squares", .kind = OP_SUM_SQUARES, .packed = true},
     eights_and_odd,
     GPU,
     MIXED,
     0},
    {{.name = "pack", .kind = OP_PACK}, eights_and_odd, GPU, MIXED, 0},
    {{.name = "pack.down", .kind = OP_PACK, .wide_k = true}, eights_and_odd, GPU, MIXED, 0},
    {{.name = "pack_logits", .kind = OP_PACK_LOGITS}, eights_and_odd, GPU, MIXED | ALONE, 0},
    {{.name = "pack_logits.packed", .kind = OP_PACK_LOGITS, .packed = true},
     eights_and_odd,
     GPU,
     MIXED | ALONE,
     0},
    {{.name = "clear", .kind = OP_CLEAR}, few_rows, GPU, ALONE, 0},
    /* attention of several rows */
    {{.name = "attention.steps", .kind = OP_ATTENTION, .packed = true}, up_to_32, GPU, ALL, 0},
    {{.name = "attention.plain", .kind = OP_ATTENTION}, nine_rows, GPU, ALL, 0},
    {{.name = "attention.rows", .kind = OP_ATTENTION, .packed = true},
     many_rows,
     GPU,
     MIXED | CHUNK,
     1},
    {{.name = "attention_step", .kind = OP_ATTENTION_STEP}, up_to_16, GPU, ALL, 0},
    {{.name = "attention_step.one_worker", .kind = OP_ATTENTION_STEP}, up_to_16, GPU, ALL, 1},
    {{.name = "attention_whole", .kind = OP_ATTENTION_WHOLE, .packed = true},
     up_to_16,
     GPU,
     ALL,
     0},
    {{.name = "attention_whole.one_worker", .kind = OP_ATTENTION_WHOLE, .packed = true},
     up_to_16,
     GPU,
     ALL,
     1},
    {{.name = "attention_whole.alone", .kind = OP_ATTENTION_WHOLE, .packed = true, .alone = true},
     alone_rows,
     GPU,
     ALONE | LONG,
     0},
    {{.name = "attention_combine.packed", .kind = OP_ATTENTION_COMBINE, .packed = true},
     up_to_16,
     GPU,
     MIXED | LONG,
     0},
};

/* ---- tests ---- */

struct test {
    char name[96];
    const struct shape *shape;
    const struct form_row *row;
    struct test_device *device; /* NULL: the CPU */
    CMUnitTestFunction run;
};

#define DIE(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(!"as said above"))

static struct iteration_request request(uint32_t i, uint32_t first, uint32_t n) {
    return (struct iteration_request){.slot = (i * 7 + 3) % ITERATION_SLOTS,
                                      .first = first,
                                      .n = n,
                                      .sampling = {.repetition_penalty = 1, .top_p = 1}};
}

static struct rt_sampling drawn(uint32_t i) {
    return (struct rt_sampling){.temperature = 0.7f + 0.1f * (float)(i % 8),
                                .top_p = i % 3 == 0 ? 1 : 0.9f,
                                .top_k = i % 4 == 0 ? 0 : 40,
                                .min_p = i % 5 == 0 ? 0.02f : 0,
                                .repetition_penalty = i % 2 == 0 ? 1 : 1.2f,
                                .presence_penalty = i % 3 == 1 ? 0.5f : 0,
                                .frequency_penalty = i % 3 == 2 ? 0.25f : 0,
                                .seed = 1000 + i};
}

/* Contexts around the bounds of pieces and shares. */
static const uint32_t long_contexts[] = {127, 128, 129, 300, 1, 517, 640, 1300, 16, 255};

/* The rows of an iteration; false: they do not fit the fill. */
static bool set_requests(struct iteration *it, enum fill fill, uint32_t n_rows) {
    const uint32_t n_single = fill == FILL_CHUNK   ? 0
                              : fill == FILL_MIXED ? MIN(n_rows / 2, 20u)
                                                   : n_rows;
    if (n_single > ITERATION_SLOTS || (fill == FILL_LONG && n_rows > 9)) return false;
    it->n_requests = n_single + (n_single < n_rows);
    for (uint32_t i = 0; i < n_single; i++)
        it->requests[i] =
            request(i, fill == FILL_LONG ? long_contexts[i] : 1 + (i * 19 + 3) % 30, 1);
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
    for (int fill = FILL_MIXED; fill < N_FILLS; fill++)
        for (size_t i = 0; i < COUNT_OF(uses); i++) {
            struct iteration it = {.variant = variant};
            struct diag d = {0};
            if (uses[i] == 0 || (i > 0 && fill != FILL_MIXED) || (row->fills >> fill & 1) == 0 ||
                !set_requests(&it, (enum fill)fill, uses[i]))
                continue;
            if (op_case_run(&d, rig, &it, i == 0) != QN_OK)
                DIE("%u rows of %u, fill %d: %s", uses[i], v->rows, fill, d.message);
        }
}

/* Whether no backend can have the form in that model: parts are of whole row blocks; STEP of
 * several rows and WHOLE have the cache in pages, which wide heads do not fit. */
static bool is_refused(const struct test *t) {
    const struct model_spec *s = &t->shape->spec;
    switch (t->row->form.kind) {
    case OP_LINEAR_PARTS:
    case OP_LINEAR_SUM: return s->hidden % CUDA_PAGE_ROWS != 0;
    case OP_LINEAR:
        return t->device != NULL && !t->row->form.packed && t->row->form.wide_k &&
               s->intermediate > STAGED_COLUMNS;
    default: return false;
    }
}

/* What a form's program must have beside it: rows that are another request's each are a variant
 * beside one of any rows; how many parts a sum has is a constant of the image, which follows from
 * who makes them. */
static const struct op_form *beside_of(const struct op_form *f) {
    static const struct op_form embed = {.name = "beside", .kind = OP_EMBED};
    static const struct op_form parts = {.name = "beside", .kind = OP_LINEAR_PARTS, .packed = true};
    static const struct op_form parts_down = {
        .name = "beside", .kind = OP_LINEAR_PARTS, .packed = true, .wide_k = true};
    if (f->kind == OP_LINEAR_SUM) return f->wide_k ? &parts_down : &parts;
    return f->alone ? &embed : NULL;
}

static void test_form(void **state) {
    const struct test *t = *state;
    struct op_variant variants[OP_MAX_VARIANTS] = {0};
    struct op_rig rig;
    struct diag d = {0};
    const bool device = t->device != NULL;
    const struct op_machine machine = {.target = device ? TARGET_CUDA : TARGET_CPU,
                                       .n_workers = t->row->n_workers != 0 ? t->row->n_workers
                                                    : device ? (uint32_t)t->device->info.n_sms
                                                             : 4,
                                       .n_slots = ITERATION_SLOTS,
                                       .max_model_len = MAX_LEN,
                                       .kv_block = KV_BLOCK,
                                       .wide = device && t->device->info.major == 9};
    uint32_t n = 0;
    for (const uint32_t *rows = t->row->rows; *rows != 0; rows++)
        variants[n++] =
            (struct op_variant){&t->row->form, *rows, MIN(*rows, (uint32_t)ITERATION_SLOTS), 0};
    const struct op_form *beside = beside_of(&t->row->form);
    for (uint32_t i = 0, all = n; beside != NULL && i < all; i++)
        variants[n++] = (struct op_variant){beside, variants[i].rows, variants[i].logit_rows, 0};
    int rc = op_rig_open(&d, t->device, &t->shape->spec, &machine, variants, n, N_KV_BLOCKS, &rig);
    if (is_refused(t)) {
        assert_true(rc == QN_EUNSUPPORTED || rc == QN_ESHAPE);
        n = 0;
    } else if (rc != QN_OK) {
        print_error("%s\n", d.message);
    }
    for (uint32_t i = 0; i < n && rc == QN_OK; i++)
        if (rig.program.variants[i].form == &t->row->form) run_variant(&rig, t->row, i);
    op_rig_close(&rig);
    assert_true(is_refused(t) || rc == QN_OK);
}

static enum set set_of(const struct op_form *f) {
    if (f->wide_k) return WIDE_K;
    if (strstr(f->name, "of_32") != NULL || strcmp(f->name, "lm_head.stream") == 0)
        return PRODUCTS | OF_32;
    switch (f->kind) {
    case OP_QKV:
    case OP_QKV_LINEAR:
    case OP_LINEAR:
    case OP_LINEAR_PARTS:
    case OP_LINEAR_SUM:
    case OP_GATED_MLP:
    case OP_LM_HEAD: return PRODUCTS;
    case OP_QKV_HEADS:
    case OP_ATTENTION:
    case OP_ATTENTION_SPLIT:
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_WHOLE:
    case OP_ATTENTION_COMBINE: return ATTENTION;
    default: return OTHERS;
    }
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
    {{.name = "linear_parts", .kind = OP_LINEAR_PARTS, .packed = true}, {32}, 1},
    {{.name = "lm_head.one_row", .kind = OP_LM_HEAD, .rides = true}, {1}, 0},
    {{.name = "attention", .kind = OP_ATTENTION, .packed = true}, {64}, 1},
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
    static const uint8_t tiles[] = {0, 1, 8, 16, 32, 64, 128};
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
        if (op_rig_open(&d, t->device, &t->shape->spec, &machine, variants, n, N_KV_BLOCKS, &rig) !=
            QN_OK)
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

/* All forms of all models where they can run. */
static size_t list_tests(struct test_device *device, struct test tests[MAX_TESTS]) {
    struct test_device *const places[] = {NULL, device};
    size_t n = 0;
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t f = 0; f < COUNT_OF(forms); f++)
            for (size_t i = 0; i < (device != NULL ? 2u : 1u); i++) {
                if (!runs_on(&forms[f], places[i]) || (s > 0 && is_own_image(&forms[f])) ||
                    (shapes[s].sets & set_of(&forms[f].form)) == 0)
                    continue;
                struct test *t = &tests[n++];
                *t = (struct test){
                    .shape = &shapes[s], .row = &forms[f], .device = places[i], .run = test_form};
                snprintf(t->name, sizeof t->name, "%s/%s%s", shapes[s].name, forms[f].form.name,
                         i == 0 ? ".cpu" : "");
            }
    if (device != NULL && device->info.major == 9)
        tests[n++] = (struct test){
            .name = "walks", .shape = &shapes[0], .device = device, .run = test_walks};
    return n;
}

int main(void) {
    static struct test tests[MAX_TESTS];
    static struct CMUnitTest units[MAX_TESTS];
    struct test_device device;
    struct diag d = {0};
    const bool there = device_open(&d, &device) == QN_OK;
    if (!there) print_message("no GPU: %s\n", d.message);
    const char *only = getenv("QN_TEST");
    const size_t n_all = list_tests(there ? &device : NULL, tests);
    size_t n = 0;
    for (size_t i = 0; i < n_all; i++)
        if (only == NULL || fnmatch(only, tests[i].name, 0) == 0)
            units[n++] =
                (struct CMUnitTest){tests[i].name, tests[i].run, NULL, NULL, (void *)&tests[i]};
    if (n == 0) print_error("no test is called %s\n", only);
    const int failed = _cmocka_run_group_tests("operators", units, n, NULL, NULL);
    if (there) device_close(&device);
    return n == 0 ? 1 : failed;
}
