/* The text of operators: what is read, and what each error says. */
#include "block/block_test.h"
#include "base/checked.h"
#include "base/strbuf.h"
#include "block/op_expr.h"

#include <stdio.h>

static void swiglu_is_read(void **state) {
    (void)state;
    struct expr *x = op_of("# GPT-OSS\n"
                           "op swiglu_oai(x[t,h] act, g[h] vec, wg[i,h] weight, wu[i,h] weight,\n"
                           "    eps const, a const=1.702, lim const=7) -> y[t,i]\n"
                           "  n = x * g * rsqrt(mean(h: x*x) + eps) # norm\n"
                           "  u = clamp(sum(h: n*wu), -lim, lim)\n"
                           "  v = min(sum(h: n*wg), lim)\n"
                           "  y = v * sigmoid(a*v) * (u +\n     1)\n");
    assert_string_equal(x->name, "swiglu_oai");
    assert_int_equal(x->n_args, 7);
    assert_int_equal(x->n_dims, 3);
    assert_int_equal(x->n_out, 1);
    assert_int_equal(x->out[0].n_dims, 2);
    assert_int_equal(x->args[2].kind, EXPR_WEIGHT);
    assert_int_equal(x->args[4].fallback, EXPR_NO_NODE);
    const struct expr_node *a = &x->nodes[x->args[5].fallback];
    assert_int_equal(a->op, BLOCK_OP_NUMBER);
    assert_int_equal(a->num, 1702);
    assert_int_equal(a->den, 1000);
    const struct expr_node *y = &x->nodes[x->out[0].node];
    assert_int_equal(y->op, BLOCK_OP_MUL);
    assert_int_equal(y->dims, 1u << 0 | 1u << 2);
    free(x);
}

static void numbers_are_exact(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t num, den;
    } cases[] = {{"1e-6", 1, 1000000}, {"2.50", 25, 10},
                 {"1.5e3", 1500, 1},   {"0.0", 0, 1},
                 {"100e-2", 1, 1},     {"123456789012345678", 123456789012345678, 1},
                 {"3E+2", 300, 1},     {"0.125", 125, 1000}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[100];
        snprintf(text, sizeof text, "op a(x act) -> y\n y = %s\n", cases[i].text);
        struct expr *x = op_of(text);
        const struct expr_node *n = &x->nodes[x->out[0].node];
        assert_int_equal(n->num * cases[i].den, n->den * cases[i].num);
        free(x);
    }
}

static void parts_masks_and_moves(void **state) {
    (void)state;
    struct expr *x = op_of("op a(q.k[t,e] act, m[t,p] mask, b[s,p] share, row[l] index(t),\n"
                           "     v[p] act = 1) -> y[l,s], z[t,e]\n"
                           "z = swap(e: q.k)\n"
                           "w = sum(p in m, b: v) + max(p in m: v) - max(1, 2, 3)\n"
                           "y = pick(t = row: w) * size(p) * given(v: 2, 3)\n");
    assert_true(x->dims[1].halved);
    assert_int_equal(x->args[3].of, 0);
    const uint32_t l = 1u << 4, s = 1u << 3;
    assert_int_equal(x->nodes[x->out[0].node].dims, l | s);
    free(x);
}

static void errors_name_line_and_column(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "f:1:1: want 'op', have the end of the text"},
        {"hello", "f:1:1: want 'op', have 'hello'"},
        {"op a(x) -> y",
         "f:1:7: want act, vec, weight, const, state, mask, share or index(dim), have "
         "')'"},
        {"op a(x act) -> y\n", "f:2:1: no line defines the output 'y'"},
        {"op a(x act) -> y\n  y = x +\n",
         "f:3:1: want a number, a name or '(', have the end of the text"},
        {"op a(x act) -> y\n  y = x x\n",
         "f:2:9: want an operator or the end of the line, have 'x'"},
        {"op a(x act) -> y\n  y = x + b\n",
         "f:2:11: want an argument, an earlier name or a function, have 'b'"},
        {"op a(x act) -> y\n  y = foo(x)\n", "f:2:7: want a function: exp log sqrt"},
        {"op a(x[t] act) -> y\n  y = x\n", "f:2:3: 'y' does not have the dims t of its expression"},
        {"op a(x[t] act) -> y\n  y = sum(h: x)\n", "f:2:11: want a dim of an argument, have 'h'"},
        {"op a(x[t] act, w[h] act) -> y[t]\n  y = sum(h: x)\n",
         "f:2:11: sum over h: the expression has the dims t"},
        {"op a(x[t,t] act) -> y\n", "f:1:10: the tensor has this dim already"},
        {"op a(x act, x act) -> y\n", "f:1:13: there is an argument 'x' already"},
        {"op a(x act) -> y\n y = x\n y = x\n", "f:3:2: there is a 'y' already"},
        {"op a(x[t] const) -> y\n", "f:1:6: a const has no dims"},
        {"op a(x[t] share) -> y\n", "f:1:6: a share has two dims: which share, and of what"},
        {"op a(x act) -> y\n y = 1.2345678901234567890123\n",
         "f:2:6: the number has more than 18 digits; use a const argument"},
        {"op a(x[t] act, m[t] act) -> y\n y = sum(t in m: x)\n",
         "f:2:15: want the name of a mask or share, have 'm'"},
        {"op a(x[t] act, r[l] index(t)) -> y\n y = r\n",
         "f:2:6: 'r' gives positions: it stands in pick(d = r: ...)"},
        {"op a(x[t] act, r[l] index(t), z[h] act) -> y\n y = pick(h = r: z)\n",
         "f:2:15: 'r' gives positions of t, not of h"},
        {"op a(x act) -> y\n y = given(x: 1, 2)\n",
         "f:2:12: want an argument that may be absent, have 'x'"},
        {"op a(x act) -> y\n y = x\nop b(x act) -> y\n",
         "f:3:1: a second operator: a text has one"},
        {"op a(x act) -> y\n y = x $ 2\n",
         "f:2:8: want an operator or the end of the line, have '$'"},
        {"op a(x act) -> y\n y = clamp(x, 1)\n", "f:2:16: want ',', have ')'"},
        {"op a_name_that_is_longer_than_it_may_be(x act) -> y\n",
         "f:1:4: a name has 31 characters at most"},
        {"op a(m mask = 1) -> y\n", "f:1:15: a mask cannot be absent"},
        {"op a(x[t] act, z act = x) -> y\n",
         "f:1:24: 'z' does not have the dims t of this expression"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct expr *x = malloc(sizeof *x);
        struct diag d = {0};
        const int rc = op_text_parse(&d, "f", cases[i].text, strlen(cases[i].text), x);
        assert_true(rc == QN_EFORMAT || rc == QN_ELIMIT);
        if (strncmp(d.message, cases[i].message, strlen(cases[i].message)) != 0)
            FAIL("%s\nwant: %s\nhave: %s", cases[i].text, cases[i].message, d.message);
        free(x);
    }
}

/* Texts that are too much of one thing. */
static void everything_is_bounded(void **state) {
    (void)state;
    struct strbuf text[6] = {{0}};
    static const char *const says[6] = {"nested more than 64 deep", "512 operations at most",
                                        "32 arguments at most",     "32 dims at most",
                                        "8 outputs at most",        "65536 bytes at most"};
    for (int i = 0; i < 2; i++) strbuf_str(&text[i], "op a(x act) -> y\n y = ");
    for (int i = 0; i < 100; i++) strbuf_char(&text[0], '(');
    for (int i = 0; i < 600; i++) strbuf_str(&text[1], "x + ");
    strbuf_str(&text[1], "x\n");
    for (int i = 2; i < 4; i++) strbuf_str(&text[i], "op a(x act");
    for (int i = 0; i < 40; i++) strbuf_printf(&text[2], ", x%d act", i);
    for (int i = 0; i < 40; i++) strbuf_printf(&text[3], ", x%d[d%d,e%d,f%d] act", i, i, i, i);
    strbuf_str(&text[4], "op a(x act) -> y");
    for (int i = 0; i < 9; i++) strbuf_printf(&text[4], ", y%d", i);
    for (int i = 0; i < 70000; i++) strbuf_char(&text[5], '#');
    for (int i = 0; i < 6; i++) {
        struct expr *x = malloc(sizeof *x);
        struct diag d = {0};
        assert_int_equal(op_text_parse(&d, "f", strbuf_text(&text[i]), text[i].n, x), QN_ELIMIT);
        if (strstr(d.message, says[i]) == NULL) FAIL("%s", d.message);
        strbuf_fini(&text[i]);
        free(x);
    }
}

static void every_operator_has_a_meaning(void **state) {
    (void)state;
    static const enum op_kind without[] = {OP_LATENT_NORM, OP_LATENT_HEADS,   OP_ROUTER,
                                           OP_ROUTE,       OP_EXPERT_GATE_UP, OP_EXPERT_DOWN};
    for (int kind = OP_NONE + 1; kind < N_OP_KINDS; kind++) {
        bool has_none = false;
        for (size_t i = 0; i < COUNT_OF(without); i++) has_none |= without[i] == (enum op_kind)kind;
        assert_int_equal(op_expr_text((enum op_kind)kind) == NULL, has_none);
        if (has_none) continue;
        struct expr *x = malloc(sizeof *x);
        struct diag d = {0};
        if (op_expr_parse(&d, (enum op_kind)kind, x) != QN_OK) FAIL("%s", d.message);
        assert_string_equal(x->name, op_name((uint32_t)kind));
        free(x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(swiglu_is_read),        cmocka_unit_test(numbers_are_exact),
        cmocka_unit_test(parts_masks_and_moves), cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(everything_is_bounded), cmocka_unit_test(every_operator_has_a_meaning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
