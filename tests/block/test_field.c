/* The two fields: primes, arithmetic, exponentials, and what is not defined in them. */
#include "block/block_test.h"
#include "block/field.h"
#include "block/interval.h"
#include "block/real.h"

#include <math.h>

typedef unsigned __int128 wide;

static void the_primes_are_prime(void **state) {
    (void)state;
    assert_true(field_is_prime(FIELD_P) && field_is_prime(FIELD_Q));
    assert_true(FIELD_P == 2 * FIELD_Q + 1);
    assert_true(FIELD_P % 4 == 3 && FIELD_Q % 4 == 3);
    assert_false(field_is_prime(FIELD_P - 2) || field_is_prime(FIELD_Q - 2));
    /* numbers that pass some bases: the first strong pseudoprime to 2, 3, 5, 7; squares; small ones
     */
    static const uint64_t composite[] = {3215031751u, 25, 49, 1, 0, 341550071728321u, 561};
    static const uint64_t prime[] = {2, 3, 37, 41, 2147483647u, 18446744073709551557u};
    for (size_t i = 0; i < sizeof composite / sizeof *composite; i++)
        assert_false(field_is_prime(composite[i]));
    for (size_t i = 0; i < sizeof prime / sizeof *prime; i++) assert_true(field_is_prime(prime[i]));
}

struct fields {
    struct algebra g;
    struct field_state state;
    union cell zero, one;
};

static void start(struct fields *t, uint64_t seed) {
    field_init(&t->g, &t->state, seed);
    t->g.number(&t->g, 0, 1, &t->zero);
    t->g.number(&t->g, 1, 1, &t->one);
}

static union cell apply(struct fields *t, enum block_op op, union cell a, union cell b) {
    union cell out;
    t->g.apply[op](&t->g, &out, &a, &b, &t->one);
    return out;
}

static bool same(union cell a, union cell b) {
    return a.field.p == b.field.p && a.field.q == b.field.q;
}

static void draw(uint64_t seed, union cell *cells, uint32_t n) {
    struct cells v = {.n = n, .at = cells};
    field_random(seed, 0, &v);
}

/* The number's value by schoolbook arithmetic: Montgomery's form is x 2^64. */
static uint64_t plain(uint64_t x, uint64_t n) {
    uint64_t r = x;
    for (int i = 0; i < 64; i++) r = r % 2 == 0 ? r / 2 : (r + n) / 2;
    return r;
}

static void products_are_right(void **state) {
    (void)state;
    struct fields t;
    union cell x[64];
    start(&t, 5);
    draw(9, x, 64);
    for (int i = 0; i + 1 < 64; i++) {
        const union cell r = apply(&t, BLOCK_OP_MUL, x[i], x[i + 1]);
        assert_true(plain(r.field.p, FIELD_P) ==
                    (uint64_t)((wide)plain(x[i].field.p, FIELD_P) *
                               plain(x[i + 1].field.p, FIELD_P) % FIELD_P));
        assert_true(plain(r.field.q, FIELD_Q) ==
                    (uint64_t)((wide)plain(x[i].field.q, FIELD_Q) *
                               plain(x[i + 1].field.q, FIELD_Q) % FIELD_Q));
        const union cell q = apply(&t, BLOCK_OP_DIV, r, x[i + 1]);
        assert_true(same(q, x[i]));
        assert_true(
            same(apply(&t, BLOCK_OP_SUB, apply(&t, BLOCK_OP_ADD, x[i], x[i + 1]), x[i + 1]), x[i]));
    }
    assert_int_equal(t.g.notes, 0);
    union cell half;
    t.g.number(&t.g, -3, 6, &half);
    assert_true(same(apply(&t, BLOCK_OP_ADD, half, apply(&t, BLOCK_OP_ADD, half, t.one)), t.zero));
}

static void exponentials_multiply(void **state) {
    (void)state;
    struct fields t;
    union cell x[2];
    for (uint64_t seed = 1; seed < 40; seed++) {
        start(&t, seed);
        draw(seed, x, 2);
        const union cell a = apply(&t, BLOCK_OP_EXP, x[0], t.one);
        const union cell b = apply(&t, BLOCK_OP_EXP, x[1], t.one);
        const union cell sum = apply(&t, BLOCK_OP_ADD, x[0], x[1]);
        assert_true(same(apply(&t, BLOCK_OP_EXP, sum, t.one), apply(&t, BLOCK_OP_MUL, a, b)));
        assert_true(a.field.q == FIELD_NONE);
        assert_int_equal(t.g.notes, 0);
        /* sigmoid and silu by their formulas */
        const union cell minus = apply(&t, BLOCK_OP_NEG, x[0], t.one);
        const union cell below =
            apply(&t, BLOCK_OP_ADD, t.one, apply(&t, BLOCK_OP_EXP, minus, t.one));
        assert_true(
            same(apply(&t, BLOCK_OP_SILU, x[0], t.one), apply(&t, BLOCK_OP_DIV, x[0], below)));
        /* a second exponential is a function of its argument alone */
        const union cell twice = apply(&t, BLOCK_OP_EXP, a, t.one);
        assert_true(same(twice, apply(&t, BLOCK_OP_EXP, a, t.one)));
        assert_true(t.g.notes == CELLS_RANDOM);
    }
}

static void largest_values_commute(void **state) {
    (void)state;
    struct fields t;
    union cell x[3];
    for (uint64_t seed = 1; seed < 40; seed++) {
        start(&t, seed);
        draw(seed, x, 3);
        const union cell m = apply(&t, BLOCK_OP_MAX, x[0], x[1]);
        assert_true(same(m, apply(&t, BLOCK_OP_MAX, x[1], x[0])));
        const union cell a = apply(&t, BLOCK_OP_ADD, x[0], x[2]);
        const union cell b = apply(&t, BLOCK_OP_ADD, x[1], x[2]);
        assert_true(same(apply(&t, BLOCK_OP_MAX, a, b), apply(&t, BLOCK_OP_ADD, m, x[2])));
        assert_true(same(apply(&t, BLOCK_OP_ADD, m, apply(&t, BLOCK_OP_MIN, x[0], x[1])),
                         apply(&t, BLOCK_OP_ADD, x[0], x[1])));
        const union cell abs = apply(&t, BLOCK_OP_ABS, x[0], t.one);
        assert_true(
            same(abs, apply(&t, BLOCK_OP_ABS, apply(&t, BLOCK_OP_NEG, x[0], t.one), t.one)));
        assert_int_equal(t.g.notes, CELLS_RANDOM);
    }
}

static void what_is_not_defined_is_noted(void **state) {
    (void)state;
    struct fields t;
    start(&t, 3);
    apply(&t, BLOCK_OP_DIV, t.one, t.zero);
    assert_int_equal(t.g.notes, CELLS_UNDEFINED);
    t.g.notes = 0;
    const union cell root = apply(&t, BLOCK_OP_SQRT, t.one, t.one);
    assert_true(same(root, t.one));
    assert_int_equal(t.g.notes, CELLS_ROOT);
}

/* Every number of a grid lies in the interval of its formula, and intervals are narrow. */
static void intervals_hold_the_value(void **state) {
    (void)state;
    struct algebra exact, g;
    interval_init(&g);
    real_init(&exact);
    for (int op = BLOCK_OP_ADD; op <= BLOCK_OP_SELECT; op++)
        for (int i = -12; i <= 12; i++)
            for (int k = -12; k <= 12; k++) {
                union cell a, b, c, r, x = {.real = i / 4.0}, y = {.real = k / 4.0},
                                       z = {.real = 2}, v;
                interval_point(x.real, &a);
                interval_point(y.real, &b);
                interval_point(2, &c);
                g.notes = 0;
                g.apply[op](&g, &r, &a, &b, &c);
                exact.apply[op](&exact, &v, &x, &y, &z);
                if (g.notes & CELLS_UNDEFINED) continue;
                assert_true(r.interval.low <= v.real && v.real <= r.interval.high);
                assert_true(r.interval.high - r.interval.low <= 1e-12 * (1 + fabs(v.real)));
            }
    union cell zero, one, r;
    interval_point(0, &zero);
    interval_point(1, &one);
    g.notes = 0;
    g.apply[BLOCK_OP_DIV](&g, &r, &one, &zero, NULL);
    assert_int_equal(g.notes, CELLS_UNDEFINED);
}

/* cast16 against conversions of the type. */
static void sixteen_bits_round_to_even(void **state) {
    (void)state;
    struct algebra bf16, f16;
    real_init_target(&bf16, DTYPE_BF16);
    real_init_target(&f16, DTYPE_F16);
    static const struct {
        double x, bf16, f16;
    } cases[] = {
        {1, 1, 1},
        {1 + 0x1p-8, 1, 1 + 0x1p-8},          /* a tie, to even */
        {1 + 0x3p-8, 1 + 0x1p-6, 1 + 0x3p-8}, /* a tie, to even */
        {1 + 0x1.8p-8, 1 + 0x1p-7, 1 + 0x1.8p-8},
        {-65520, -65536, -INFINITY},
        {65504, 65536, 65504},
        {0x1p-24, 0x1p-24, 0x1p-24},
        {0x1p-25, 0x1p-25, 0},
        {0x1.8p-24, 0x1.8p-24, 0x1p-23},
        {3.4028235e38, INFINITY, INFINITY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const union cell x = {.real = cases[i].x};
        union cell r;
        bf16.apply[BLOCK_OP_CAST16](&bf16, &r, &x, NULL, NULL);
        if (!(r.real == cases[i].bf16)) FAIL("bf16(%a) = %a", cases[i].x, r.real);
        f16.apply[BLOCK_OP_CAST16](&f16, &r, &x, NULL, NULL);
        if (!(r.real == cases[i].f16)) FAIL("f16(%a) = %a", cases[i].x, r.real);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_primes_are_prime),         cmocka_unit_test(products_are_right),
        cmocka_unit_test(exponentials_multiply),        cmocka_unit_test(largest_values_commute),
        cmocka_unit_test(what_is_not_defined_is_noted), cmocka_unit_test(intervals_hold_the_value),
        cmocka_unit_test(sixteen_bits_round_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
