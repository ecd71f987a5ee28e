/* What the planner promises whatever it chooses: each thing has a way, of the possible ones the
 * cheapest, and what is not possible says why. */
#include "base/checked.h"
#include "graph/kernel_graph.h"
#include "plan/split.h"
#include "plan/variant.h"
#include "task/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

static struct model_spec spec_of(uint32_t hidden, uint32_t heads, uint32_t kv_heads, uint32_t dim) {
    return (struct model_spec){.n_layers = 4,
                               .hidden = hidden,
                               .intermediate = 3 * hidden,
                               .vocab = 1000,
                               .n_heads = heads,
                               .n_kv_heads = kv_heads,
                               .head_dim = dim,
                               .weight_dtype = DTYPE_BF16};
}

static struct plan_request request_of(const struct model_spec *s, const struct device *d) {
    return (struct plan_request){.spec = s,
                                 .device = d,
                                 .n_slots = 64,
                                 .max_model_len = 4096,
                                 .max_batched_tokens = 2048,
                                 .cut_qkv = true,
                                 .join_heads = true,
                                 .cut_linear = d->has.wgmma,
                                 .whole_from = 1,
                                 .places_all = true,
                                 .rides = true};
}

static void check_choice(const struct plan_choice *c, bool by_cost) {
    assert_true(c->n <= PLAN_WAYS && c->taken < c->n);
    assert_null(c->ways[c->taken].why_not);
    for (uint32_t i = 0; by_cost && i < c->n; i++)
        if (c->ways[i].why_not == NULL) assert_true(c->ways[c->taken].ns <= c->ways[i].ns);
}

static void the_cheapest_way_is_taken(void **state) {
    (void)state;
    const struct model_spec specs[] = {spec_of(4096, 32, 8, 128), spec_of(1024, 16, 8, 64),
                                       spec_of(2048, 32, 1, 128), spec_of(4096, 32, 32, 128),
                                       spec_of(896, 14, 2, 72)};
    const uint32_t workers[] = {1, 17, 132, 300};
    for (size_t s = 0; s < COUNT_OF(specs); s++)
        for (size_t w = 0; w < 2 * COUNT_OF(workers); w++) {
            struct diag d = {0};
            const struct device device = device_cuda(w % 2 ? 90 : 80, workers[w / 2], 25);
            struct plan_request r = request_of(&specs[s], &device);
            struct plan_variant v[PLAN_MAX_VARIANTS];
            uint32_t n;
            assert_int_equal(plan_variants(&d, &r, v, &n), QN_OK);
            for (uint32_t i = 0; i < n; i++) {
                check_choice(&v[i].attention, true);
                check_choice(&v[i].linear, false);
                assert_non_null(v[i].why);
                /* A variant takes what one with less context or fewer rows does not. */
                if (i > 0) assert_true(v[i].n_rows >= v[i - 1].n_rows);
                if (i > 0 && v[i].n_rows == v[i - 1].n_rows && !v[i - 1].decode_only)
                    assert_true(v[i].context > v[i - 1].context);
            }
            assert_int_equal(v[n - 1].n_rows, 2048);
            assert_int_equal(v[n - 1].context, 4096);
            r.max_batched_tokens = PROG_MAX_ROWS;
            r.max_model_len = 100000;
            r.n_slots = 1024;
            assert_int_equal(plan_variants(&d, &r, v, &n), QN_OK); /* no more than there may be */
        }
}

static void rows_that_stream(void **state) {
    (void)state;
    assert_true(device_streams(1) && device_streams(16));
    assert_false(device_streams(17));
}

/* Rows of different requests have a variant of their own. Of 96 rows it is the only one, of 32 and
 * 64 another takes any rows. */
static void rows_of_different_requests(void **state) {
    (void)state;
    const struct device d = device_cuda(90, 132, 25);
    const struct model_spec spec = spec_of(4096, 32, 8, 128);
    struct plan_request r = request_of(&spec, &d);
    struct plan_variant v[PLAN_MAX_VARIANTS];
    uint32_t n, alone[129] = {0}, any[129] = {0};
    r.n_slots = 96;
    assert_int_equal(plan_variants(NULL, &r, v, &n), QN_OK);
    for (uint32_t i = 0; i < n && v[i].n_rows <= 128; i++)
        (v[i].decode_only ? alone : any)[v[i].n_rows]++;
    assert_true(alone[32] == 1 && alone[64] == 1 && alone[96] == 1 && alone[128] == 0);
    assert_true(any[32] > 0 && any[64] > 0 && any[96] == 0 && any[128] > 0);
}

/* Bands make up all grains, have no more tasks than are wanted, and no task is larger than in one
 * even cut. */
static void cuts_of_products(void **state) {
    (void)state;
    uint32_t n_bands = 0;
    for (uint32_t rows = 8; rows <= 4096; rows += 8 * (rows / 256 + 1))
        for (uint32_t i = 0; i < 4 * 3; i++) {
            const uint32_t grains[] = {7, 48, 256, 1536}, workers[] = {3, 114, 132};
            const struct split_product p = {rows, grains[i / 3], i / 3 == 1 ? 128 : 16,
                                            MIN(rows / 8, workers[i % 3]), workers[i % 3]};
            const struct split_cut cut = split_product(&p, NULL);
            const struct split_band *b = cut.band;
            assert_int_equal(b[0].grains + b[1].grains, p.n_grains);
            assert_true(b[0].rows * b[0].units + b[1].rows * b[1].units <= p.want);
            assert_true(b[0].units * b[0].whole < b[0].grains + b[0].whole);
            if (b[1].grains == 0) continue;
            n_bands++;
            const uint32_t across = CEIL_DIV(rows, 128u), even = p.want / across;
            assert_int_equal(b[0].rows, across);
            assert_true(CEIL_DIV(b[0].grains / b[0].whole, b[0].units) <
                        CEIL_DIV(CEIL_DIV(p.n_grains, b[0].whole), even));
            assert_true(CEIL_DIV(across, b[1].rows) *
                            CEIL_DIV(CEIL_DIV(b[1].grains, b[1].whole), b[1].units) <=
                        CEIL_DIV(b[0].grains / b[0].whole, b[0].units));
        }
    assert_true(n_bands > 20);
}

/* What was switched off is no way. */
static void what_is_not_asked_for_is_not_taken(void **state) {
    (void)state;
    const struct model_spec s = spec_of(4096, 32, 8, 128);
    const struct device device = device_cuda(90, 132, 25);
    struct diag d = {0};
    struct plan_variant v[PLAN_MAX_VARIANTS];
    uint32_t n;
    struct plan_request r = request_of(&s, &device);
    r.join_heads = r.cut_linear = false;
    assert_int_equal(plan_variants(&d, &r, v, &n), QN_OK);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(v[i].cuts & (KGRAPH_JOIN_HEADS | KGRAPH_CUT_LINEAR | KGRAPH_DECODE_ONLY),
                         0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cheapest_way_is_taken),          cmocka_unit_test(rows_that_stream),
        cmocka_unit_test(rows_of_different_requests),         cmocka_unit_test(cuts_of_products),
        cmocka_unit_test(what_is_not_asked_for_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
