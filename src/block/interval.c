/* interval.c - see interval.h. */
#include "block/interval.h"

#include <math.h>

/* Sets [low, high], with both ends moved outwards by the possible rounding error. */
static void set(struct algebra *g, union cell *out, double low, double high) {
    if (!isfinite(low) || !isfinite(high)) {
        g->notes |= CELLS_UNDEFINED;
        low = high = 0;
    }
    out->interval.low = nextafter(low, -INFINITY);
    out->interval.high = nextafter(high, INFINITY);
}

/* The same for results of the library's functions. */
static void set_function(struct algebra *g, union cell *out, double low, double high) {
    set(g, out, low - fabs(low) * INTERVAL_ERROR, high + fabs(high) * INTERVAL_ERROR);
}

void interval_point(double x, union cell *out) {
    out->interval.low = out->interval.high = x;
}

/* Whether both are single numbers. An exact sum or product of two is a single number, too. */
static bool exact(const union cell *a, const union cell *b) {
    return a->interval.low == a->interval.high && b->interval.low == b->interval.high;
}

static void add(struct algebra *g, union cell *out, const union cell *a, const union cell *b) {
    const double low = a->interval.low + b->interval.low,
                 high = a->interval.high + b->interval.high;
    if (exact(a, b) && low - a->interval.low == b->interval.low &&
        low - b->interval.low == a->interval.low && fabs(low) < 0x1p40)
        interval_point(low, out);
    else
        set(g, out, low, high);
}

static void negate(union cell *out, const union cell *a) {
    const double low = -a->interval.high;
    out->interval.high = -a->interval.low;
    out->interval.low = low;
}

static void multiply(struct algebra *g, union cell *out, const union cell *a, const union cell *b) {
    const double p = a->interval.low * b->interval.low, q = a->interval.low * b->interval.high,
                 r = a->interval.high * b->interval.low, s = a->interval.high * b->interval.high;
    if (exact(a, b) && (p == 0 || fma(a->interval.low, b->interval.low, -p) == 0) &&
        (p != 0 || a->interval.low == 0 || b->interval.low == 0))
        interval_point(p, out);
    else
        set(g, out, fmin(fmin(p, q), fmin(r, s)), fmax(fmax(p, q), fmax(r, s)));
}

static void invert(struct algebra *g, union cell *out, const union cell *a) {
    if (a->interval.low <= 0 && a->interval.high >= 0) {
        g->notes |= CELLS_UNDEFINED;
        interval_point(1, out);
        return;
    }
    set(g, out, 1 / a->interval.high, 1 / a->interval.low);
}

/* Applies a function that grows everywhere. */
static void growing(struct algebra *g, union cell *out, const union cell *a, double (*f)(double)) {
    set_function(g, out, f(a->interval.low), f(a->interval.high));
}

static void root(struct algebra *g, union cell *out, const union cell *a) {
    if (a->interval.low < 0) {
        g->notes |= CELLS_UNDEFINED;
        interval_point(1, out);
        return;
    }
    set(g, out, sqrt(a->interval.low), sqrt(a->interval.high));
    out->interval.low = fmax(out->interval.low, 0);
}

static double phi(double x) {
    return erfc(-x * M_SQRT1_2) / 2;
}

#define INTERVAL_OP(name)                                                                          \
    static void interval_##name(struct algebra *g, union cell *out, const union cell *a,           \
                                const union cell *b, const union cell *c)

INTERVAL_OP(add) {
    (void)c;
    add(g, out, a, b);
}
INTERVAL_OP(sub) {
    union cell minus;
    (void)c;
    negate(&minus, b);
    add(g, out, a, &minus);
}
INTERVAL_OP(mul) {
    (void)c;
    multiply(g, out, a, b);
}
INTERVAL_OP(div) {
    union cell x;
    (void)c;
    invert(g, &x, b);
    multiply(g, out, a, &x);
}
INTERVAL_OP(neg) {
    (void)g, (void)b, (void)c;
    negate(out, a);
}
INTERVAL_OP(square) {
    const bool around = a->interval.low < 0 && a->interval.high > 0;
    (void)b, (void)c;
    multiply(g, out, a, a);
    if (around) out->interval.low = 0;
}
INTERVAL_OP(sqrt) {
    (void)b, (void)c;
    root(g, out, a);
}
INTERVAL_OP(rsqrt) {
    union cell x;
    (void)b, (void)c;
    root(g, &x, a);
    invert(g, out, &x);
}
INTERVAL_OP(exp) {
    (void)b, (void)c;
    growing(g, out, a, exp);
}
INTERVAL_OP(log) {
    (void)b, (void)c;
    if (a->interval.low <= 0) {
        g->notes |= CELLS_UNDEFINED;
        interval_point(0, out);
        return;
    }
    growing(g, out, a, log);
}
INTERVAL_OP(sigmoid) {
    union cell x, one;
    (void)b, (void)c;
    interval_point(1, &one);
    negate(&x, a);
    growing(g, &x, &x, exp);
    add(g, &x, &x, &one);
    invert(g, out, &x);
}
INTERVAL_OP(silu) {
    union cell x;
    interval_sigmoid(g, &x, a, b, c);
    multiply(g, out, a, &x);
}
INTERVAL_OP(tanh) {
    (void)b, (void)c;
    growing(g, out, a, tanh);
}
INTERVAL_OP(gelu) {
    union cell x = *a;
    (void)b, (void)c;
    x.interval.low -= fabs(x.interval.low) * 0x1p-50; /* phi rounds its argument */
    x.interval.high += fabs(x.interval.high) * 0x1p-50;
    growing(g, &x, &x, phi);
    multiply(g, out, a, &x);
}
INTERVAL_OP(max) {
    (void)g, (void)c;
    const double high = fmax(a->interval.high, b->interval.high);
    out->interval.low = fmax(a->interval.low, b->interval.low);
    out->interval.high = high;
}
INTERVAL_OP(min) {
    (void)g, (void)c;
    const double high = fmin(a->interval.high, b->interval.high);
    out->interval.low = fmin(a->interval.low, b->interval.low);
    out->interval.high = high;
}
INTERVAL_OP(abs) {
    union cell minus;
    negate(&minus, a);
    interval_max(g, out, a, &minus, c);
    if (out->interval.low < 0) out->interval.low = 0;
    (void)b;
}
INTERVAL_OP(clamp) {
    union cell x;
    interval_max(g, &x, a, b, c);
    interval_min(g, out, &x, c, c);
}
INTERVAL_OP(select) {
    (void)g;
    *out = a->interval.low != 0 ? *b : *c;
}
INTERVAL_OP(cast16) {
    (void)g, (void)b, (void)c;
    *out = *a;
}

static void interval_number(struct algebra *g, int64_t numerator, int64_t denominator,
                            union cell *out) {
    const double x = (double)numerator / (double)denominator;
    const double n = (double)numerator, m = (double)denominator;
    const bool small = fabs(n) < 0x1p53 && m < 0x1p53;
    if (small && fma(x, m, -n) == 0)
        interval_point(x, out);
    else
        set(g, out, x - fabs(x) * 0x1p-51, x + fabs(x) * 0x1p-51);
}

static bool interval_is_zero(const union cell *a) {
    return a->interval.low == 0 && a->interval.high == 0;
}

static uint32_t interval_index(const union cell *a) {
    return (uint32_t)a->interval.low;
}

void interval_init(struct algebra *g) {
    static const struct algebra interval = {
        .apply =
            {
                [BLOCK_OP_ADD] = interval_add,         [BLOCK_OP_SUB] = interval_sub,
                [BLOCK_OP_MUL] = interval_mul,         [BLOCK_OP_DIV] = interval_div,
                [BLOCK_OP_NEG] = interval_neg,         [BLOCK_OP_SQUARE] = interval_square,
                [BLOCK_OP_RSQRT] = interval_rsqrt,     [BLOCK_OP_SQRT] = interval_sqrt,
                [BLOCK_OP_EXP] = interval_exp,         [BLOCK_OP_LOG] = interval_log,
                [BLOCK_OP_SIGMOID] = interval_sigmoid, [BLOCK_OP_SILU] = interval_silu,
                [BLOCK_OP_TANH] = interval_tanh,       [BLOCK_OP_GELU] = interval_gelu,
                [BLOCK_OP_ABS] = interval_abs,         [BLOCK_OP_MAX] = interval_max,
                [BLOCK_OP_MIN] = interval_min,         [BLOCK_OP_CLAMP] = interval_clamp,
                [BLOCK_OP_SELECT] = interval_select,   [BLOCK_OP_CAST16] = interval_cast16,
            },
        .number = interval_number,
        .is_zero = interval_is_zero,
        .index = interval_index,
    };
    *g = interval;
    for (int i = 0; i < BLOCK_MAX_DIMS; i++) g->sizes[i] = 1;
}
