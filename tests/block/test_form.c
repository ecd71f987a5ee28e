/* The normal form by itself: names of bound dims, hashes, what is not decided, bounds. */
#include "block/block_test.h"
#include "base/checked.h"
#include "base/strbuf.h"
#include "block/form.h"

#include <stdio.h>

/* The form of the only output of a text. */
static form_id form_of_text(struct forms *f, const char *text) {
    struct expr *x = op_of(text);
    form_id args[EXPR_MAX_ARGS], nodes[EXPR_MAX_NODES];
    for (uint32_t i = 0; i < x->n_args; i++) args[i] = expr_arg_form(f, x, i, i);
    expr_forms(f, x, args, NULL, nodes);
    const form_id form = nodes[x->out[0].node];
    free(x);
    return form;
}

#define ARGS                                                                                       \
    "op a(x[t,h] act, y[h] vec, w[h,i] act, m[h] mask, s[b,h] share, r[i] index(h), c const,"      \
    " at[i,j] order(f), z[f,h] act, u[t,i] index(h), v[i,j] act) -> o[t,i,j,f]\n o = "

static form_id form(struct forms *f, const char *expression) {
    char text[1000];
    snprintf(text, sizeof text, ARGS "%s\n", expression);
    return form_of_text(f, text);
}

/* Pairs of expressions with one form. */
static void equal_expressions_have_one_form(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"sum(h: x)", "sum(h: swap(h: x))"},
        {"sum(h: x * swap(h: y))", "sum(h: swap(h: x) * y)"},
        {"square(sum(h: x))", "sum(h: x) * sum(h: x * c) / c"},
        {"sum(h: x / (1 + sum(h: y)))", "sum(h: x) / (sum(h: y) + 1)"},
        {"sum(h: y * sum(i: w * sum(h: w*y)))", "sum(i: square(sum(h: w*y)))"},
        {"sum(h: exp(x - max(h: x)))", "sum(h: exp(x)) / exp(max(h: x))"},
        {"max(h: x + c)", "c + max(h: x)"},
        {"max(h: 3*x)", "3 * max(h: x)"},
        {"max(b: max(h in s: x))", "max(h: x)"},
        {"sum(b: sum(h in s: x))", "sum(h: x)"},
        {"sum(h in m: m * x)", "sum(h in m: x)"},
        {"sum(h: y - y + 1) * sum(h: x)", "size(h) * sum(h: x)"},
        {"pick(h = r: x * y)", "pick(h = r: y) * pick(h = r: x)"},
        {"pick(h = r: swap(h: y))", "pick(h = r: swap(h: swap(h: swap(h: y))))"},
        {"rsqrt(4*c*c + 8*c*size(h)) * 2", "1 / sqrt(c*c + 2*c*size(h))"},
        {"sqrt(8) * sqrt(2)", "4"},
        {"sqrt(12)", "2 * sqrt(3)"},
        {"exp(log(c)) * exp(2*log(c))", "c*c*c"},
        {"log(exp(c) * size(h))", "c + log(size(h))"},
        {"tanh(c)", "(exp(2*c) - 1) / (exp(2*c) + 1)"},
        {"1 - sigmoid(c)", "sigmoid(-c)"},
        {"abs(c) + abs(-c)", "2 * max(c, -c)"},
        {"gelu(c) - gelu(-c)", "c"},
        {"min(c, 3) + max(c, 3)", "c + 3"},
        {"(c*c - 1) / (c - 1)", "c + 1"},
        {"select(m, c, 1) * m", "c * m"},
        {"pick(h = u: x * y)", "pick(h = u: y) * pick(h = u: x)"},
        {"sum(i: pick(h = u: x) * pick(h = r: y))", "sum(i: pick(h = r: y) * pick(h = u: x))"},
        {"pick(f = at: pick(i = which(i: at): pick(j = which(j: at): v)))", "v"},
        {"pick(i = which(i: at): pick(j = which(j: at): pick(f = at: z)))", "z"},
        {"pick(f = at: pick(h = pick(i = which(i: at): r): y))", "pick(h = r: y)"},
        {"pick(f = at: sum(h: z * pick(i = which(i: at): w)))", "sum(h: w * pick(f = at: z))"},
        {"swap(f: pick(i = which(i: at): swap(i: pick(h = r: y))))",
         "swap(f: pick(i = which(i: at): pick(h = swap(i: r): y)))"},
        {"choose(h in m: y + c)", "choose(h in m: c + y)"},
    };
    struct forms *f;
    assert_int_equal(forms_new(NULL, &f), QN_OK);
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        char a[1000], b[1000];
        snprintf(a, sizeof a, "sum(h: (%s) * y)", pairs[i][0]);
        snprintf(b, sizeof b, "sum(h: y * (%s))", pairs[i][1]);
        const form_id x = form(f, a), y = form(f, b);
        struct strbuf text = {0};
        form_dump(f, x, NULL, &text);
        strbuf_str(&text, "\n");
        form_dump(f, y, NULL, &text);
        if (x == FORM_NONE || !form_equal(f, x, y))
            FAIL("%s\n%s\n%s", pairs[i][0], pairs[i][1], strbuf_text(&text));
        strbuf_fini(&text);
    }
    forms_free(f);
}

/* Pairs that look alike and are not equal. */
static void unequal_expressions_have_two(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"sum(h: x * y)", "sum(h: x * swap(h: y))"},
        {"sum(h: y * sum(i: w))", "sum(i: sum(h: w)) * sum(h: y)"},
        {"sum(h: square(sum(i: w)))", "sum(i: square(sum(h: w)))"},
        {"square(sum(h: y))", "sum(h: square(y))"},
        {"exp(sum(h: y))", "sum(h: exp(y))"},
        {"max(h: sum(i: w))", "sum(i: max(h: w))"},
        {"max(h in m: y)", "max(h: y * m)"},
        {"max(h: -1 * y)", "-1 * max(h: y)"},
        {"sum(b: exp(sum(h in s: y)))", "exp(sum(h: y))"},
        {"pick(h = r: swap(h: y))", "pick(h = r: y)"},
        {"sqrt(c*c)", "c"},
        {"sum(h: y) / size(h)", "sum(h: y) / size(i)"},
        {"log(c*c)", "2*log(c)"},
        {"clamp(c, 1, 2)", "clamp(c, 2, 1)"},
        {"choose(h: y)", "choose(h: swap(h: y))"},
        {"choose(h: y)", "choose(h: 2*y)"},
        {"choose(h: y)", "choose(h in m: y)"},
        {"pick(h = r: y)", "pick(h = u: y)"},
        {"pick(f = at: pick(i = which(i: at): sum(h: w)))", "sum(h: y) + sum(h: w)"},
        {"pick(i = which(i: at): v)", "pick(j = which(j: at): v)"},
        {"sum(i: pick(h = r: y))", "sum(h: y)"},
        {"swap(f: pick(i = which(i: at): sum(h: w)))", "pick(i = which(i: at): sum(h: w))"},
    };
    struct forms *f;
    assert_int_equal(forms_new(NULL, &f), QN_OK);
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        const form_id a = form(f, pairs[i][0]), b = form(f, pairs[i][1]);
        if (a == FORM_NONE || b == FORM_NONE || form_equal(f, a, b))
            FAIL("%s\n%s", pairs[i][0], pairs[i][1]);
    }
    forms_free(f);
}

/* Ids depend on the order in which forms were made; hashes and dumps do not. */
static void hashes_do_not_depend_on_the_table(void **state) {
    (void)state;
    static const char *const list[] = {"sum(h: x*y) + exp(c) * c",
                                       "sum(h: y * sum(i: w * sum(h: w*y)))",
                                       "max(h: x + y) * rsqrt(c*c + 1)",
                                       "pick(h = r: swap(h: x)) + c",
                                       "sum(f: pick(i = which(i: at): pick(h = u: x)))",
                                       "abs(c - 1) * sum(h: swap(h: y) * x)",
                                       "max(b: sum(h in s: x * y))"};
    struct forms *f, *g;
    assert_int_equal(forms_new(NULL, &f), QN_OK);
    assert_int_equal(forms_new(NULL, &g), QN_OK);
    uint64_t hashes[COUNT_OF(list)];
    for (size_t i = 0; i < COUNT_OF(list); i++) hashes[i] = form_hash(f, form(f, list[i]));
    for (size_t i = COUNT_OF(list); i-- > 0;)
        assert_true(hashes[i] == form_hash(g, form(g, list[i])));
    forms_free(f);
    forms_free(g);
}

/* Variables of one dim are interchangeable: their names are found by trial. */
static void bound_names_do_not_count(void **state) {
    (void)state;
    struct forms *f;
    assert_int_equal(forms_new(NULL, &f), QN_OK);
    const form_id a = form(f, "square(sum(h: w*y)) * sum(h: w*w*y)");
    const form_id b = form(f, "sum(h: w*w*y * sum(h: w*y * sum(h: y*w)))");
    assert_true(a != FORM_NONE && a == b);
    assert_int_equal(form_dims(f, a), 1u << 2); /* i is the third dim of ARGS */
    /* six indices of one dim: 720 trials; nine are more than an atom may bind */
    const form_id six = form(f, "sum(i: square(square(sum(h: w*y))) * square(sum(h: w)))");
    const form_id other = form(f, "sum(i: sum(h: w) * square(square(sum(h: y*w))) * sum(h: w))");
    assert_true(six != FORM_NONE && six == other);
    assert_int_equal(
        form(f, "sum(i: square(square(sum(h: w*y))) * square(square(sum(h: w))) * sum(h: w))"),
        FORM_NONE);
    forms_free(f);
}

static void what_is_too_large_is_not_decided(void **state) {
    (void)state;
    struct forms *f;
    const form_id half[BLOCK_MAX_ARITY] = {0};
    assert_int_equal(forms_new(NULL, &f), QN_OK);
    assert_int_equal(form_number(f, 1, 0), FORM_NONE);
    assert_int_equal(form_number(f, INT64_MIN, 1), FORM_NONE);
    const form_id large = form_number(f, INT64_MAX, 1);
    const form_id operand[BLOCK_MAX_ARITY] = {large, large};
    assert_true(large != FORM_NONE);
    assert_int_equal(form_apply(f, BLOCK_OP_ADD, NULL, operand), FORM_NONE);
    assert_int_equal(form_apply(f, BLOCK_OP_MUL, NULL, operand), FORM_NONE);
    for (int op = BLOCK_OP_ADD; op < N_BLOCK_OPS; op++) { /* and all that is made of it */
        const struct block_use use = {.dims = 1};
        assert_int_equal(form_apply(f, (enum block_op)op, &use, half), FORM_NONE);
    }
    assert_int_equal(form(f, "1 / (c - c)"), FORM_NONE);
    assert_false(form_equal(f, FORM_NONE, FORM_NONE));
    assert_int_equal(form_terms(f, FORM_NONE), 0);
    assert_int_equal(forms_status(NULL, f), QN_OK); /* memory did not run out */
    forms_bound(f, 10);
    assert_int_equal(form(f, "exp(sum(h: x*y) + c) * sqrt(c*c + sum(h: y*y))"), FORM_NONE);
    forms_free(f);
}

/* A form whose parts stand in it many times: as a tree it has 2^70 of them. */
static void deep_forms_end(void **state) {
    (void)state;
    struct strbuf text = {0}, dump = {0};
    struct forms *f;
    assert_int_equal(forms_new(NULL, &f), QN_OK);
    forms_bound(f, 1000000);
    strbuf_str(&text, "op a(x[h] act, c const) -> y[h], z\n a0 = max(x, 0)\n");
    for (int i = 1; i < 70; i++)
        strbuf_printf(&text, " a%d = max(a%d + c*a%d*sum(h: x*x), c)\n", i, i - 1, i - 1);
    strbuf_str(&text, " y = a69\n z = sum(h: y * x)\n");
    struct expr *x = op_of(strbuf_text(&text));
    form_id args[EXPR_MAX_ARGS], nodes[EXPR_MAX_NODES];
    for (uint32_t i = 0; i < x->n_args; i++) args[i] = expr_arg_form(f, x, i, i);
    expr_forms(f, x, args, NULL, nodes);
    assert_true(nodes[x->out[0].node] != FORM_NONE);
    assert_int_equal(nodes[x->out[1].node], FORM_NONE);
    form_dump(f, nodes[x->out[0].node], NULL, &dump);
    assert_true(dump.n > 60000 && dump.n < 80000);
    strbuf_fini(&text);
    strbuf_fini(&dump);
    free(x);
    forms_free(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_expressions_have_one_form),
        cmocka_unit_test(unequal_expressions_have_two),
        cmocka_unit_test(hashes_do_not_depend_on_the_table),
        cmocka_unit_test(bound_names_do_not_count),
        cmocka_unit_test(what_is_too_large_is_not_decided),
        cmocka_unit_test(deep_forms_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
