/* test_maps.c - the access map of every operator, in each form that the device tests run: the
 * compiler's evaluator and the proof's say the same of the same tasks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has a function of that name */

#include "base/checked.h"
#include "device/op_test.h"
#include "task/maps_agree.h"

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
    .experts = {.n = 12, .top_k = 3, .width = 88, .shared_width = 64, .shared_gate = 1},
    .bos = -1};

static const struct model_spec latent = {
    .n_layers = 1,
    .hidden = 64,
    .intermediate = 64,
    .vocab = 331,
    .n_heads = 5,
    .n_kv_heads = 1,
    .head_dim = 40,
    .max_position = 4096,
    .rms_eps = 1e-6f,
    .rope_theta = 10000,
    .weight_dtype = DTYPE_BF16,
    .bos = -1,
    .latent = {.kv_rank = 72, .rope = 16, .v_dim = 28, .scale = 0.15f}};

/* Compiles a form for a backend, each of its rows, and compares. */
static void check_form(const struct model_spec *model, const struct form_row *row,
                       enum op_kind kind, enum prog_target target) {
    const struct op_machine machine = {target, 7, 64, 1408, 32, true};
    struct op_form form = row->form;
    struct op_variant variants[OP_MAX_VARIANTS] = {0};
    struct op_program program;
    struct diag d = {0};
    uint32_t n = 0;
    form.kind = kind;
    for (const uint32_t *rows = row->rows; *rows != 0; rows++)
        variants[n++] = (struct op_variant){&form, *rows, MIN(*rows, 64u), 0};
    const int rc = op_program_make(&d, model, &machine, variants, n, &program);
    if (rc != QN_OK) print_error("%s: %s\n", form.name, d.message);
    assert_int_equal(rc, QN_OK);
    for (uint32_t v = 0; v < n; v++) {
        struct proof proof = {.d = &d, .p = program.program};
        proof.v = &PROG(program.program, VARIANT)[v];
        maps_agree(&proof, proof.v->first_op);
    }
    op_program_fini(&program);
}

static void both_evaluators_agree(void **state) {
    (void)state;
    random_state = 1;
    for (int kind = 1; kind < N_OP_KINDS; kind++) {
        const struct op_test *t = op_test_of((enum op_kind)kind);
        assert_true(t->n_forms > 0);
        for (size_t i = 0; i < t->n_forms; i++) {
            const struct form_row *row = &t->forms[i];
            if (row->form.decode_only) continue; /* its map is that of the form without */
            if ((row->backends & CPU) != 0 && t->set != LATENT)
                check_form(&spec, row, (enum op_kind)kind, TARGET_CPU);
            if ((row->backends & CPU) != 0 && (t->set & LATENT) != 0)
                check_form(&latent, row, (enum op_kind)kind, TARGET_CPU);
            if ((row->backends & ~CPU) != 0)
                check_form(t->set == LATENT ? &latent : &spec, row, (enum op_kind)kind,
                           TARGET_CUDA);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(both_evaluators_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
