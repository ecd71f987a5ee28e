/* Every operator in every form, alone in a program: on a GPU (or the emulated one) and on the CPU
 * backend's kernels, against the plain interpreter of tests/reference. op_case.h says what is
 * compared. A test is <model>/<operator>.<form>; QN_TEST picks some by a pattern. Where there is no
 * GPU the CPU's tests run alone. */
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
#include "device/op_case.h"

enum { MAX_LEN = 1408, KV_BLOCK = 64, N_KV_BLOCKS = 100, MAX_TESTS = 512 };

/* ---- models ---- */

struct shape {
    const char *name;
    struct model_spec spec;
};

#define SPEC(...)                                                                                  \
    {                                                                                              \
        .n_layers = 1, .max_position = 4096, .rms_eps = 1e-6f, .rope_theta = 10000,                \
        .weight_dtype = DTYPE_BF16, .bos = -1, __VA_ARGS__                                         \
    }
static const struct shape shapes[] = {
    {"d64_kv8", SPEC(.hidden = 512, .intermediate = 768, .vocab = 331, .n_heads = 8,
                     .n_kv_heads = 8, .head_dim = 64)},
};

/* ---- forms ---- */

static const uint32_t one_row[] = {1, 0}, few_rows[] = {2, 8, 9, 16, 0},
                      stream_rows[] = {17, 32, 0}, many_rows[] = {64, 128, 0},
                      any_rows[] = {1, 2, 9, 17, 64, 0};

enum backends { CPU = 1, GPU = 2 };

struct form_row {
    struct op_form form;
    const uint32_t *rows;
    int backends;
};
static const struct form_row forms[] = {
    {{.name = "embed", .kind = OP_EMBED, .bare = true}, any_rows, CPU},
    {{.name = "embed.one_row", .kind = OP_EMBED}, one_row, GPU},
    {{.name = "embed.polls", .kind = OP_EMBED, .rides = true}, one_row, GPU},
    {{.name = "embed.normed", .kind = OP_EMBED, .packed = true}, few_rows, GPU},
    {{.name = "qkv_linear", .kind = OP_QKV_LINEAR}, any_rows, CPU},
    {{.name = "qkv_linear.one_row", .kind = OP_QKV_LINEAR}, one_row, GPU},
    {{.name = "qkv_linear.polls", .kind = OP_QKV_LINEAR, .rides = true}, one_row, GPU},
    {{.name = "qkv_linear.few", .kind = OP_QKV_LINEAR, .packed = true}, few_rows, GPU},
    {{.name = "linear", .kind = OP_LINEAR}, any_rows, CPU},
    {{.name = "linear.one_row", .kind = OP_LINEAR}, one_row, GPU},
    {{.name = "linear.polls", .kind = OP_LINEAR, .rides = true}, one_row, GPU},
    {{.name = "linear.few", .kind = OP_LINEAR, .packed = true}, few_rows, GPU},
    {{.name = "linear.tile", .kind = OP_LINEAR, .packed = true}, stream_rows, GPU},
    {{.name = "linear.tile_many", .kind = OP_LINEAR, .packed = true}, many_rows, GPU},
};

/* ---- tests ---- */

struct test {
    char name[96];
    const struct shape *shape;
    const struct form_row *row;
    const struct device *device; /* NULL: the CPU */
};

#define DIE(...) (print_error(__VA_ARGS__), print_error("\n"), assert_true(!"as said above"))

/* Rows of as many requests, one each, and a chunk of what is left. */
static void set_requests(struct iteration *it, uint32_t n_rows, uint32_t n_single, uint32_t from,
                         uint32_t step) {
    it->n_requests = 0;
    for (uint32_t row = 0; row < n_rows;) {
        const uint32_t i = it->n_requests++, n = i < n_single ? 1 : n_rows - row;
        it->requests[i] =
            (struct iteration_request){.slot = (i * 7 + 3) % ITERATION_SLOTS,
                                       .first = from + i * step,
                                       .n = n,
                                       .sampling = {.repetition_penalty = 1, .top_p = 1}};
        row += n;
    }
}

static void run_variant(struct op_rig *rig, uint32_t variant) {
    const struct op_variant *v = &rig->program.variants[variant];
    const uint32_t uses[] = {v->rows, v->rows > 2 ? v->rows - 1 : 0};
    for (size_t i = 0; i < COUNT_OF(uses); i++) {
        struct iteration it = {.variant = variant};
        struct diag d = {0};
        if (uses[i] == 0) continue;
        set_requests(&it, uses[i], MIN(uses[i] / 2, 20u), 3, 5);
        if (op_case_run(&d, rig, &it, true) != QN_OK)
            DIE("%u rows of %u: %s", uses[i], v->rows, d.message);
    }
}

static void test_form(void **state) {
    const struct test *t = *state;
    struct op_variant variants[OP_MAX_VARIANTS] = {0};
    struct op_rig rig;
    struct diag d = {0};
    const bool device = t->device != NULL;
    const struct op_machine machine = {.target = device ? TARGET_CUDA : TARGET_CPU,
                                       .n_workers = device ? (uint32_t)t->device->info.n_sms : 4,
                                       .n_slots = ITERATION_SLOTS,
                                       .max_model_len = MAX_LEN,
                                       .kv_block = KV_BLOCK,
                                       .wide = device && t->device->info.major == 9};
    uint32_t n = 0;
    for (const uint32_t *rows = t->row->rows; *rows != 0; rows++)
        variants[n++] =
            (struct op_variant){&t->row->form, *rows, MIN(*rows, (uint32_t)ITERATION_SLOTS), 0};
    int rc = op_rig_open(&d, t->device, &t->shape->spec, &machine, variants, n, N_KV_BLOCKS, &rig);
    if (rc != QN_OK) print_error("%s\n", d.message);
    for (uint32_t i = 0; i < n && rc == QN_OK; i++) run_variant(&rig, i);
    op_rig_close(&rig);
    assert_int_equal(rc, QN_OK);
}

/* All forms of all models where they can run. */
static size_t list_tests(const struct device *device, struct test tests[MAX_TESTS]) {
    size_t n = 0;
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t f = 0; f < COUNT_OF(forms); f++)
            for (int backend = CPU; backend <= GPU; backend++) {
                if ((forms[f].backends & backend) == 0 || (backend == GPU && device == NULL))
                    continue;
                struct test *t = &tests[n++];
                *t = (struct test){.shape = &shapes[s],
                                   .row = &forms[f],
                                   .device = backend == GPU ? device : NULL};
                snprintf(t->name, sizeof t->name, "%s/%s%s", shapes[s].name, forms[f].form.name,
                         backend == CPU ? ".cpu" : "");
            }
    return n;
}

int main(void) {
    static struct test tests[MAX_TESTS];
    static struct CMUnitTest units[MAX_TESTS];
    struct device device;
    struct diag d = {0};
    const bool there = device_open(&d, &device) == QN_OK;
    if (!there) print_message("no GPU: %s\n", d.message);
    const size_t n = list_tests(there ? &device : NULL, tests);
    for (size_t i = 0; i < n; i++)
        units[i] = (struct CMUnitTest){tests[i].name, test_form, NULL, NULL, &tests[i]};
    const char *only = getenv("QN_TEST");
    if (only != NULL) cmocka_set_test_filter(only);
    const int failed = _cmocka_run_group_tests("operators", units, n, NULL, NULL);
    if (there) device_close(&device);
    return failed;
}
