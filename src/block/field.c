/* field.c - see field.h. Numbers are in Montgomery's form with R = 2^64. */
#include "block/field.h"

typedef unsigned __int128 wide;

/* A prime below 2^62. */
struct prime {
    uint64_t n, negated_inverse, r, r2; /* -1/n, 2^64 and 2^128 mod n */
};

static const struct prime prime_p = {FIELD_P, 0x1340b5df092cbcb1, 25224, 636250176};
static const struct prime prime_q = {FIELD_Q, 0x338d115ea3f4f619, 25232, 636653824};

static uint64_t mont_mul(const struct prime *m, uint64_t a, uint64_t b) {
    const wide t = (wide)a * b;
    const uint64_t k = (uint64_t)t * m->negated_inverse;
    const uint64_t r = (uint64_t)((t + (wide)k * m->n) >> 64);
    return r >= m->n ? r - m->n : r;
}

static uint64_t mont_in(const struct prime *m, uint64_t a) {
    return mont_mul(m, a % m->n, m->r2);
}
static uint64_t mont_out(const struct prime *m, uint64_t a) {
    return mont_mul(m, a, 1);
}
static uint64_t mont_add(const struct prime *m, uint64_t a, uint64_t b) {
    const uint64_t r = a + b;
    return r >= m->n ? r - m->n : r;
}
static uint64_t mont_neg(const struct prime *m, uint64_t a) {
    return a == 0 ? 0 : m->n - a;
}

static uint64_t mont_power(const struct prime *m, uint64_t a, uint64_t e) {
    uint64_t r = m->r;
    for (; e != 0; e >>= 1) {
        if (e & 1) r = mont_mul(m, r, a);
        a = mont_mul(m, a, a);
    }
    return r;
}

/* ---- primality ---- */

static uint64_t mul_mod(uint64_t a, uint64_t b, uint64_t n) {
    return (uint64_t)((wide)a * b % n);
}

/* Miller and Rabin's test with one base; n is odd and above the base. */
static bool is_witness(uint64_t n, uint64_t base) {
    uint64_t odd = n - 1, x = 1;
    int twos = 0;
    for (; odd % 2 == 0; odd /= 2) twos++;
    for (uint64_t e = odd, a = base % n; e != 0; e >>= 1) {
        if (e & 1) x = mul_mod(x, a, n);
        a = mul_mod(a, a, n);
    }
    if (x == 1 || x == n - 1) return false;
    for (int i = 1; i < twos; i++)
        if ((x = mul_mod(x, x, n)) == n - 1) return false;
    return true;
}

/* These bases decide all numbers below 2^64. */
bool field_is_prime(uint64_t n) {
    static const uint64_t bases[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    for (unsigned i = 0; i < sizeof bases / sizeof *bases; i++) {
        if (n == bases[i]) return true;
        if (n < 2 || n % bases[i] == 0 || is_witness(n, bases[i])) return false;
    }
    return true;
}

/* ---- randomness ---- */

/* SplitMix64's output function. */
static uint64_t scramble(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Uniform below n < 2^62, by rejection. */
static uint64_t uniform(uint64_t *state, uint64_t n) {
    for (;;) {
        *state += 0x9e3779b97f4a7c15ull;
        const uint64_t x = scramble(*state) >> 2;
        if (x < (UINT64_MAX >> 2) / n * n) return x % n;
    }
}

/* A number that depends on the seed, `what` and x. */
static uint64_t random_function(const struct prime *m, uint64_t seed, uint64_t what, uint64_t x) {
    uint64_t state = scramble(seed ^ scramble(what + 0x9e3779b97f4a7c15ull)) ^ scramble(x);
    return uniform(&state, m->n);
}

void field_random(uint64_t seed, uint64_t tensor, struct cells *v) {
    uint64_t state = scramble(seed ^ scramble(~tensor));
    for (uint32_t i = 0; i < v->n; i++) {
        v->at[i].field.p = uniform(&state, FIELD_P);
        v->at[i].field.q = uniform(&state, FIELD_Q);
    }
}

void field_small(uint64_t number, union cell *out) {
    out->field.p = mont_in(&prime_p, number);
    out->field.q = mont_in(&prime_q, number);
}

/* ---- operators ---- */

static const struct field_state *state_of(const struct algebra *g) {
    return g->state;
}

static bool has_q(const union cell *a) {
    return a->field.q != FIELD_NONE;
}

static void add(union cell *out, const union cell *a, const union cell *b) {
    const bool q = has_q(a) && has_q(b);
    out->field.q = q ? mont_add(&prime_q, a->field.q, b->field.q) : FIELD_NONE;
    out->field.p = mont_add(&prime_p, a->field.p, b->field.p);
}

static void negate(union cell *out, const union cell *a) {
    out->field.q = has_q(a) ? mont_neg(&prime_q, a->field.q) : FIELD_NONE;
    out->field.p = mont_neg(&prime_p, a->field.p);
}

static void subtract(union cell *out, const union cell *a, const union cell *b) {
    union cell minus;
    negate(&minus, b);
    add(out, a, &minus);
}

static void multiply(union cell *out, const union cell *a, const union cell *b) {
    const bool q = has_q(a) && has_q(b);
    out->field.q = q ? mont_mul(&prime_q, a->field.q, b->field.q) : FIELD_NONE;
    out->field.p = mont_mul(&prime_p, a->field.p, b->field.p);
}

static void invert(struct algebra *g, union cell *out, const union cell *a) {
    if (a->field.p == 0 || a->field.q == 0) g->notes |= CELLS_UNDEFINED;
    out->field.q = has_q(a) ? mont_power(&prime_q, a->field.q, FIELD_Q - 2) : FIELD_NONE;
    out->field.p = mont_power(&prime_p, a->field.p, FIELD_P - 2);
}

static void root(struct algebra *g, union cell *out, const union cell *a) {
    g->notes |= CELLS_ROOT;
    out->field.q = has_q(a) ? mont_power(&prime_q, a->field.q, (FIELD_Q + 1) / 4) : FIELD_NONE;
    out->field.p = mont_power(&prime_p, a->field.p, (FIELD_P + 1) / 4);
}

/* Functions of which only one fact is known: equal arguments give equal results. */
enum random_kind { RANDOM_EXP, RANDOM_LOG, RANDOM_RELU, RANDOM_PHI };

static void any_function(struct algebra *g, enum random_kind kind, union cell *out,
                         const union cell *a) {
    const uint64_t seed = state_of(g)->seed;
    g->notes |= CELLS_RANDOM;
    out->field.q = has_q(a) ? random_function(&prime_q, seed, 16 + kind, a->field.q) : FIELD_NONE;
    out->field.p = random_function(&prime_p, seed, kind, a->field.p);
}

static void exponential(struct algebra *g, union cell *out, const union cell *a) {
    if (!has_q(a)) {
        any_function(g, RANDOM_EXP, out, a);
        return;
    }
    out->field.p = mont_power(&prime_p, state_of(g)->omega, mont_out(&prime_q, a->field.q));
    out->field.q = FIELD_NONE;
}

/* A random r with r(x) - r(-x) = x in one field. */
static uint64_t half_relu(const struct prime *m, uint64_t seed, uint64_t x) {
    const uint64_t minus = mont_neg(m, x);
    const uint64_t r = random_function(m, seed, RANDOM_RELU, x < minus ? x : minus);
    if (x == 0) return 0;
    return x < minus ? r : mont_add(m, r, x);
}

/* max(x, 0). relu(x) - relu(-x) = x holds, so that max(a, b) = max(b, a). */
static void relu(struct algebra *g, union cell *out, const union cell *a) {
    const uint64_t seed = state_of(g)->seed;
    g->notes |= CELLS_RANDOM;
    out->field.q = has_q(a) ? half_relu(&prime_q, seed ^ 1, a->field.q) : FIELD_NONE;
    out->field.p = half_relu(&prime_p, seed, a->field.p);
}

static void larger(struct algebra *g, union cell *out, const union cell *a, const union cell *b) {
    union cell d;
    subtract(&d, a, b);
    relu(g, &d, &d);
    add(out, b, &d);
}

static void smaller(struct algebra *g, union cell *out, const union cell *a, const union cell *b) {
    union cell x, y;
    negate(&x, a);
    negate(&y, b);
    larger(g, &x, &x, &y);
    negate(out, &x);
}

static void small(uint64_t n, union cell *out) {
    field_small(n, out);
}

static void sigmoid(struct algebra *g, union cell *out, const union cell *a) {
    union cell x, one;
    small(1, &one);
    negate(&x, a);
    exponential(g, &x, &x);
    add(&x, &x, &one);
    invert(g, out, &x);
}

#define FIELD_OP(name)                                                                             \
    static void field_##name(struct algebra *g, union cell *out, const union cell *a,              \
                             const union cell *b, const union cell *c)
#define UNUSED3 (void)g, (void)b, (void)c

FIELD_OP(add) {
    (void)g, (void)c;
    add(out, a, b);
}
FIELD_OP(sub) {
    (void)g, (void)c;
    subtract(out, a, b);
}
FIELD_OP(mul) {
    (void)g, (void)c;
    multiply(out, a, b);
}
FIELD_OP(div) {
    union cell x;
    (void)c;
    invert(g, &x, b);
    multiply(out, a, &x);
}
FIELD_OP(neg) {
    UNUSED3;
    negate(out, a);
}
FIELD_OP(square) {
    UNUSED3;
    multiply(out, a, a);
}
FIELD_OP(sqrt) {
    (void)b, (void)c;
    root(g, out, a);
}
FIELD_OP(rsqrt) {
    union cell x;
    (void)b, (void)c;
    root(g, &x, a);
    invert(g, out, &x);
}
FIELD_OP(exp) {
    (void)b, (void)c;
    exponential(g, out, a);
}
FIELD_OP(log) {
    (void)b, (void)c;
    any_function(g, RANDOM_LOG, out, a);
}
FIELD_OP(sigmoid) {
    (void)b, (void)c;
    sigmoid(g, out, a);
}
FIELD_OP(silu) {
    union cell x;
    (void)b, (void)c;
    sigmoid(g, &x, a);
    multiply(out, a, &x);
}
/* 2 sigmoid(2 a) - 1 */
FIELD_OP(tanh) {
    union cell x, one;
    (void)b, (void)c;
    small(1, &one);
    add(&x, a, a);
    sigmoid(g, &x, &x);
    add(&x, &x, &x);
    subtract(out, &x, &one);
}
/* a phi(a), a random phi with phi(-a) = 1 - phi(a) */
FIELD_OP(gelu) {
    union cell minus, phi, one;
    (void)b, (void)c;
    small(1, &one);
    negate(&minus, a);
    const bool less = a->field.p < minus.field.p;
    any_function(g, RANDOM_PHI, &phi, less ? a : &minus);
    phi.field.q = FIELD_NONE;
    if (!less) subtract(&phi, &one, &phi);
    multiply(out, a, &phi);
}
FIELD_OP(abs) {
    union cell minus;
    (void)b, (void)c;
    negate(&minus, a);
    larger(g, out, a, &minus);
}
FIELD_OP(max) {
    (void)c;
    larger(g, out, a, b);
}
FIELD_OP(min) {
    (void)c;
    smaller(g, out, a, b);
}
FIELD_OP(clamp) {
    union cell x;
    larger(g, &x, a, b);
    smaller(g, out, &x, c);
}
FIELD_OP(select) {
    (void)g;
    *out = a->field.p != 0 ? *b : *c;
}
FIELD_OP(cast16) {
    UNUSED3;
    *out = *a;
}

static void field_number(struct algebra *g, int64_t numerator, int64_t denominator,
                         union cell *out) {
    union cell n, m;
    small(numerator < 0 ? 0 - (uint64_t)numerator : (uint64_t)numerator, &n);
    small((uint64_t)denominator, &m);
    invert(g, &m, &m);
    multiply(out, &n, &m);
    if (numerator < 0) negate(out, out);
}

static bool field_is_zero(const union cell *a) {
    return a->field.p == 0;
}

static uint32_t field_index(const union cell *a) {
    const uint64_t n = mont_out(&prime_p, a->field.p);
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

void field_init(struct algebra *g, struct field_state *state, uint64_t seed) {
    static const struct algebra field = {
        .apply =
            {
                [BLOCK_OP_ADD] = field_add,         [BLOCK_OP_SUB] = field_sub,
                [BLOCK_OP_MUL] = field_mul,         [BLOCK_OP_DIV] = field_div,
                [BLOCK_OP_NEG] = field_neg,         [BLOCK_OP_SQUARE] = field_square,
                [BLOCK_OP_RSQRT] = field_rsqrt,     [BLOCK_OP_SQRT] = field_sqrt,
                [BLOCK_OP_EXP] = field_exp,         [BLOCK_OP_LOG] = field_log,
                [BLOCK_OP_SIGMOID] = field_sigmoid, [BLOCK_OP_SILU] = field_silu,
                [BLOCK_OP_TANH] = field_tanh,       [BLOCK_OP_GELU] = field_gelu,
                [BLOCK_OP_ABS] = field_abs,         [BLOCK_OP_MAX] = field_max,
                [BLOCK_OP_MIN] = field_min,         [BLOCK_OP_CLAMP] = field_clamp,
                [BLOCK_OP_SELECT] = field_select,   [BLOCK_OP_CAST16] = field_cast16,
            },
        .number = field_number,
        .is_zero = field_is_zero,
        .index = field_index,
    };
    uint64_t at = scramble(seed);
    *g = field;
    *state = (struct field_state){.seed = seed, .omega = prime_p.r};
    while (state->omega == prime_p.r || state->omega == 0) { /* a square has order q or 1 */
        const uint64_t x = uniform(&at, FIELD_P);
        state->omega = mont_mul(&prime_p, x, x);
    }
    for (int i = 0; i < BLOCK_MAX_DIMS; i++) g->sizes[i] = 2;
    g->state = state;
}
