/* Proofs of whole operators: what is one function, what is not, and what stays open. */
#include "block/block_test.h"
#include "base/checked.h"
#include "block/compare.h"
#include "block/prove.h"
#include "block/real.h"

static enum verdict verdict_of(const char *a, const char *b, struct strbuf *why) {
    struct expr *x = op_of(a), *y = op_of(b);
    struct diag d = {0};
    enum verdict v = VERDICT_UNDECIDED;
    strbuf_clear(why);
    if (prove(&d, x, y, &v, why) != QN_OK) FAIL("%s\n%s\n%s", a, b, d.message);
    free(x);
    free(y);
    return v;
}

static void want(const char *a, const char *b, enum verdict v, const char *says) {
    struct strbuf why = {0};
    if (verdict_of(a, b, &why) != v || strstr(strbuf_text(&why), says) == NULL)
        FAIL("%s\n%s\nsays: %s", a, b, strbuf_text(&why));
    strbuf_fini(&why);
}

#define MLP_ARGS                                                                                   \
    "op mlp(x[t,h] act, g[h] vec, wg[i,h] weight, wu[i,h] weight, eps const) -> y[t,i]\n"
#define MLP                                                                                        \
    MLP_ARGS " n = x * g * rsqrt(mean(h: x*x) + eps)\n"                                            \
             " y = silu(sum(h: n*wg)) * sum(h: n*wu)\n"
#define ATTENTION_ARGS                                                                             \
    "op attention(q[t,e] act, k[p,e] state, v[p,d] state, sees[t,p] mask, piece[s,p] share)"       \
    " -> o[t,d]\n"
#define ATTENTION                                                                                  \
    ATTENTION_ARGS " w = exp(sum(e: q*k))\n"                                                       \
                   " o = sum(p in sees: w*v) / sum(p in sees: w)\n"

static void fusions_are_proved(void **state) {
    (void)state;
    /* the norm folded behind the products */
    want(MLP,
         MLP_ARGS " r = 1 / sqrt(sum(h: square(x)) / size(h) + eps)\n"
                  " a = r * sum(h: x*g*wg)\n"
                  " y = a * r * sum(h: wu*(g*x)) / (1 + exp(-a))\n",
         VERDICT_EQUAL, "proved");
    /* attention by pieces, each with its largest score, merged */
    want(ATTENTION,
         ATTENTION_ARGS " sc = sum(e: q*k)\n"
                        " m = max(p in sees, piece: sc)\n"
                        " w = exp(sc - m)\n"
                        " a = sum(p in sees, piece: w*v)\n"
                        " b = sum(p in sees, piece: w)\n"
                        " c = exp(m - max(s: m))\n"
                        " o = sum(s: c*a) / sum(s: c*b)\n",
         VERDICT_EQUAL, "proved");
    /* LayerNorm in one pass */
    want("op ln(x[t,h] act, g[h] vec, b[h] vec, eps const) -> y[t,h]\n"
         " d = x - mean(h: x)\n"
         " y = d * rsqrt(mean(h: d*d) + eps) * g + b\n",
         "op ln(x[t,h] act, g[h] vec, b[h] vec, eps const) -> y[t,h]\n"
         " m = mean(h: x)\n"
         " y = (x - m) * rsqrt(mean(h: x*x) - m*m + eps) * g + b\n",
         VERDICT_EQUAL, "proved");
    /* a low-rank update beside the product */
    want("op lora(x[t,h] act, w[i,h] weight, a[r,h] weight, b[i,r] weight) -> y[t,i]\n"
         " y = sum(h: x*w) + sum(r: b * sum(h: a*x))\n",
         "op lora(x[t,h] act, w[i,h] weight, a[r,h] weight, b[i,r] weight) -> y[t,i]\n"
         " y = sum(h: x * (w + sum(r: a*b)))\n",
         VERDICT_EQUAL, "proved");
    /* RoPE keeps lengths if its angles do: the halves' sum is one of places */
    want("op a(x[t,e] act) -> y[t]\n y = sum(e: x*x)\n",
         "op a(x[t,e] act) -> y[t]\n y = sum(e: square(swap(e: x)))\n", VERDICT_EQUAL, "proved");
    /* clamps, however they are written */
    want("op a(x act) -> y\n y = clamp(x, -7, 7)\n", "op a(x act) -> y\n y = max(-7, min(x, 7))\n",
         VERDICT_EQUAL, "proved");
}

static void planted_errors_have_a_witness(void **state) {
    (void)state;
    const char *norm = MLP_ARGS " n = x * g * rsqrt(mean(h: x*x) + eps)\n";
    struct strbuf other = {0};
    static const struct {
        const char *what, *line;
    } cases[] = {
        {"gate and up exchanged", " y = silu(sum(h: n*wu)) * sum(h: n*wg)\n"},
        {"gate twice", " y = silu(sum(h: n*wg)) * sum(h: n*wg)\n"},
        {"x * exp(x) for silu", " a = sum(h: n*wg)\n y = a * exp(a) * sum(h: n*wu)\n"},
        {"the norm without its weights",
         " y = silu(sum(h: n*wg)) * sum(h: x*rsqrt(mean(h: x*x) + eps)*wu)\n"},
        {"eps missing", " r = rsqrt(mean(h: x*x))\n"
                        " y = silu(r*sum(h: x*g*wg)) * r*sum(h: x*g*wu)\n"},
        {"a mean that is a sum", " r = rsqrt(sum(h: x*x) + eps)\n"
                                 " y = silu(r*sum(h: x*g*wg)) * r*sum(h: x*g*wu)\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        strbuf_clear(&other);
        strbuf_str(&other, norm);
        strbuf_str(&other, cases[i].line);
        want(MLP, strbuf_text(&other), VERDICT_DIFFERENT, "y[t=");
    }
    strbuf_fini(&other);
    /* a sum over another dim, which may have the same size */
    want("op a(x[t,h,i] act) -> y[t]\n y = sum(h: square(sum(i: x)))\n",
         "op a(x[t,h,i] act) -> y[t]\n y = sum(i: square(sum(h: x)))\n", VERDICT_DIFFERENT,
         "y[t=0] is ");
    /* partial sums carried through exp */
    want("op a(x[t,h] act, b[s,h] share) -> y[t]\n y = exp(sum(h: x))\n",
         "op a(x[t,h] act, b[s,h] share) -> y[t]\n y = sum(s: exp(sum(h in b: x)))\n",
         VERDICT_DIFFERENT, "y[t=0] is ");
    /* positions that a row does not see */
    want(ATTENTION,
         ATTENTION_ARGS " w = exp(sum(e: q*k))\n"
                        " o = sum(p: w*v) / sum(p: w)\n",
         VERDICT_DIFFERENT, "o[t=");
    /* swapped halves are not the halves */
    want("op a(x[e] act) -> y[e]\n y = swap(e: x)\n", "op a(x[e] act) -> y[e]\n y = x\n",
         VERDICT_DIFFERENT, "y[e=");
}

/* Experts as quern computes them: by slots, each of a row and one of its experts. */
#define EXPERTS_ARGS                                                                               \
    "op experts(x[t,h] act, w[t,z] act, e[t,z] index(j), at[t,z] order(f), wg[j,i,h] weight,\n"    \
    "  wu[j,i,h] weight, wd[j,n,i] weight) -> y[t,n]\n"
#define SLOTS                                                                                      \
    "list = pick(t = which(t: at): pick(z = which(z: at): e))\n"                                   \
    "nx = pick(t = which(t: at): x)\n"                                                             \
    "a = silu(sum(h: nx * pick(j = list: wg)))*sum(h: nx * pick(j = list: wu))\n"                  \
    "s = sum(i: a * pick(j = list: wd))\n"
#define EXPERTS EXPERTS_ARGS SLOTS "y = sum(z: w * pick(f = at: s))\n"

static void experts_by_lists(void **state) {
    (void)state;
    static const struct {
        const char *what, *lines;
    } wrong[] = {
        {"gate and up exchanged",
         "a = silu(sum(h: x * pick(j = e: wu)))*sum(h: x * pick(j = e: wg))\n"
         "y = sum(z: w * sum(i: a * pick(j = e: wd)))\n"},
        {"no weight", "a = silu(sum(h: x * pick(j = e: wg)))*sum(h: x * pick(j = e: wu))\n"
                      "y = sum(z: sum(i: a * pick(j = e: wd)))\n"},
        {"weights of slots' rows",
         SLOTS "y = sum(z: pick(f = at: pick(t = which(t: at): sum(z: w)) * s))\n"},
        {"all experts", "a = silu(sum(h: x*wg)) * sum(h: x*wu)\n"
                        "y = sum(z: w) * sum(j: sum(i: a * wd))\n"},
    };
    want(EXPERTS,
         EXPERTS_ARGS "a = silu(sum(h: x * pick(j = e: wg))) * sum(h: x * pick(j = e: wu))\n"
                      "y = sum(z: w * sum(i: a * pick(j = e: wd)))\n",
         VERDICT_EQUAL, "proved");
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct strbuf text = {0};
        strbuf_printf(&text, "%s%s", EXPERTS_ARGS, wrong[i].lines);
        want(EXPERTS, strbuf_text(&text), VERDICT_DIFFERENT, "y[t=0,n=0] is ");
        strbuf_fini(&text);
    }
#define TWO_ORDERS "op a(x[t] act, e[t,z] index(t), at[t,z] order(f), to[t,z] order(k)) -> y[t,z]\n"
    /* slots by one list, read by another one: of two orders nothing is known */
    want(TWO_ORDERS "y = pick(f = at: pick(t = which(t: at): exp(x)))\n",
         TWO_ORDERS "y = pick(k = to: pick(t = which(t: to): exp(x)))\n", VERDICT_EQUAL, "proved");
    want(TWO_ORDERS "y = pick(t = e: x)\n", TWO_ORDERS "y = x\n", VERDICT_DIFFERENT, "y[t=");
    /* a slice of a slice, by lists of places */
    want("op a(q[t,n] act, w[n,h] weight, lo[o] index(n)) -> y[t,h]\n"
         "y = sum(o: pick(n = lo: q) * pick(n = lo: w))\n",
         "op a(q[t,n] act, w[n,h] weight, lo[o] index(n)) -> y[t,h]\n"
         "y = sum(o: pick(n = lo: q * w))\n",
         VERDICT_EQUAL, "proved");
    want("op a(q[n] act, lo[o] index(n), hi[o] index(n)) -> y[o]\n y = pick(n = lo: q)\n",
         "op a(q[n] act, lo[o] index(n), hi[o] index(n)) -> y[o]\n y = pick(n = hi: q)\n",
         VERDICT_DIFFERENT, "y[o=");
    /* the sum over all slots is not rewritten */
    want("op a(x[t] act, at[t] order(f)) -> y\n y = sum(f: pick(t = which(t: at): x))\n",
         "op a(x[t] act, at[t] order(f)) -> y\n y = sum(t: x)\n", VERDICT_UNDECIDED,
         "no numbers were found that tell");
}

static void what_is_not_decided(void **state) {
    (void)state;
    want("op a(x act, y act) -> z\n z = abs(x*y)\n",
         "op a(x act, y act) -> z\n z = abs(x)*abs(y)\n", VERDICT_UNDECIDED,
         "z: the normal forms differ, and no numbers were found that tell");
    want("op a(x act) -> y\n y = sqrt(x*x)\n", "op a(x act) -> y\n y = abs(x)\n", VERDICT_UNDECIDED,
         "no numbers were found that tell");
    /* more terms than a form may have */
    want("op a(x act, y act, z act, w act, v act) -> r\n"
         " a = square(square(x + y + z + w + v + 1))\n"
         " r = a*a*a*a\n",
         "op a(x act, y act, z act, w act, v act) -> r\n"
         " a = square(square(x + y + z + w + v + 1))\n"
         " r = square(a*a)\n",
         VERDICT_UNDECIDED, "a normal form exceeds a limit");
    /* a coefficient of more than 64 bits */
    want("op a(x act) -> y\n y = 99999999999 * 99999999999 * x\n",
         "op a(x act) -> y\n y = 99999999999 * x * 99999999999\n", VERDICT_UNDECIDED,
         "a normal form exceeds a limit");
}

/* Arguments that may be absent: all cases. A const with a value is that value. */
static void absent_arguments(void **state) {
    (void)state;
    want("op a(x act, b act = 0) -> y\n y = x + b\n", "op a(x act, b act = 0) -> y\n y = b + x\n",
         VERDICT_EQUAL, "proved");
    want("op a(x act, b act = 0) -> y\n y = x + b\n", "op a(x act, b act = 1) -> y\n y = b + x\n",
         VERDICT_DIFFERENT, "without b");
    want("op a(x act, b act = 0) -> y\n y = given(b: x, 2*x)\n",
         "op a(x act, b act = 0) -> y\n y = x\n", VERDICT_DIFFERENT, "without b");
    want("op a(x act, k const = 2) -> y\n y = x * k\n",
         "op a(x act, k const = 3) -> y\n y = x * k\n", VERDICT_DIFFERENT, "y is ");
    want("op a(x act, k const = 2) -> y\n y = x * k\n",
         "op a(x act, k const = 2) -> y\n y = x + x\n", VERDICT_EQUAL, "proved");
}

static void other_arguments_are_an_error(void **state) {
    (void)state;
    static const struct {
        const char *b, *message;
    } cases[] = {
        {"op b(x[t] act) -> y[t]\n y = x\n", "a has the argument 'w', b does not"},
        {"op b(x[t] act, w[t] act, v[t] act) -> y[t]\n y = x\n",
         "b has the argument 'v', a does not"},
        {"op b(x[t] act, w[h] act) -> y[t]\n y = x\n",
         "'w': dim t of a is h in b, and elsewhere t"},
        {"op b(x[t] act, w[t] mask) -> y[t]\n y = x\n", "'w' is act in a, mask in b"},
        {"op b(x[t] act, w[t] act) -> z[t]\n z = x\n", "b has the output 'z', a does not"},
        {"op b(x[t] act, w[t] act = 1) -> y[t]\n y = x\n",
         "'w' may be absent in one of the two only"},
    };
    struct expr *a = op_of("op a(x[t] act, w[t] act) -> y[t]\n y = x\n");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct expr *b = op_of(cases[i].b);
        struct diag d = {0};
        struct strbuf why = {0};
        enum verdict v;
        assert_int_equal(prove(&d, a, b, &v, &why), QN_EINVAL);
        assert_string_equal(d.message, cases[i].message);
        strbuf_fini(&why);
        free(b);
    }
    free(a);
}

/* The reference against itself in another order passes; one that cancels does not. */
static void floats_are_compared(void **state) {
    (void)state;
    static const struct {
        const char *b;
        bool passes;
    } cases[] = {
        {"op b(x[t,h] act, w[i,h] weight) -> y[t,i]\n y = sum(h: w*x)\n", true},
        {"op b(x[t,h] act, w[i,h] weight) -> y[t,i]\n y = sum(h: x*w + 1000000) - "
         "size(h)*1000000\n",
         false},
    };
    struct expr *a = op_of("op a(x[t,h] act, w[i,h] weight) -> y[t,i]\n y = sum(h: x*w)\n");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct expr *b = op_of(cases[i].b);
        struct diag d = {0};
        struct matching m;
        double error_a, error_b;
        assert_int_equal(matching_make(&d, a, b, &m), QN_OK);
        const struct compare_case c = {&m, 0};
        assert_int_equal(compare_floats(&d, &c, DTYPE_BF16, &error_a, &error_b), QN_OK);
        assert_true(error_a > 0 && error_a < 1e-5);
        assert_int_equal(real_passes(error_b, error_a), cases[i].passes);
        free(b);
    }
    free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fusions_are_proved),  cmocka_unit_test(planted_errors_have_a_witness),
        cmocka_unit_test(experts_by_lists),    cmocka_unit_test(what_is_not_decided),
        cmocka_unit_test(absent_arguments),    cmocka_unit_test(other_arguments_are_an_error),
        cmocka_unit_test(floats_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
