/* real.c - see real.h. */
#include "block/real.h"

#include <math.h>
#include <string.h>

/* The columns `real` of block_op.def as functions: in double, and rounded to float. */
#define BLOCK_OP(ID, id, arity, op_class, linear, cost, FORMULA)                                   \
    static double formula_##id(double a, double b, double c) {                                     \
        (void)a, (void)b, (void)c;                                                                 \
        return FORMULA;                                                                            \
    }
#include "block/block_op.def"
#undef BLOCK_OP

static double at(const union cell *x) {
    return x == NULL ? 0 : x->real;
}

#define BLOCK_OP(ID, id, arity, op_class, linear, cost, FORMULA)                                   \
    static void double_##id(struct algebra *g, union cell *out, const union cell *a,               \
                            const union cell *b, const union cell *c) {                            \
        (void)g;                                                                                   \
        out->real = formula_##id(at(a), at(b), at(c));                                             \
    }                                                                                              \
    static void float_##id(struct algebra *g, union cell *out, const union cell *a,                \
                           const union cell *b, const union cell *c) {                             \
        (void)g;                                                                                   \
        out->real = (double)(float)formula_##id(at(a), at(b), at(c));                              \
    }
#include "block/block_op.def"
#undef BLOCK_OP

/* Rounds to nearest, ties to even, keeping `bits` of float's 23 fraction bits. */
static double round_bits(double x, int bits) {
    const float f = (float)x;
    uint32_t word;
    if (!isfinite(f)) return (double)f;
    memcpy(&word, &f, sizeof word);
    const uint32_t half = 1u << (22 - bits), low = word >> (23 - bits) & 1;
    word = (word + half - 1 + low) & ~(2 * half - 1);
    float r;
    memcpy(&r, &word, sizeof r);
    return (double)r;
}

static void cast_bf16(struct algebra *g, union cell *out, const union cell *a, const union cell *b,
                      const union cell *c) {
    (void)g, (void)b, (void)c;
    out->real = round_bits(a->real, 7);
}

/* Half floats below 2^-14 are multiples of 2^-24, above 65504 (rounded) infinite. */
static void cast_f16(struct algebra *g, union cell *out, const union cell *a, const union cell *b,
                     const union cell *c) {
    (void)g, (void)b, (void)c;
    const double x =
        fabs(a->real) < 0x1p-14 ? rint(a->real * 0x1p24) * 0x1p-24 : round_bits(a->real, 10);
    out->real = fabs(x) > 65504 ? copysign(INFINITY, x) : x;
}

static void real_number(struct algebra *g, int64_t numerator, int64_t denominator,
                        union cell *out) {
    (void)g;
    out->real = (double)numerator / (double)denominator;
}

static bool real_is_zero(const union cell *a) {
    return a->real == 0;
}

static uint32_t real_index(const union cell *a) {
    return a->real >= 0 && a->real < UINT32_MAX ? (uint32_t)a->real : UINT32_MAX;
}

static bool real_less(const union cell *a, const union cell *b) {
    return a->real < b->real;
}

static void init(struct algebra *g) {
    *g = (struct algebra){
        .number = real_number, .is_zero = real_is_zero, .less = real_less, .index = real_index};
    for (int i = 0; i < BLOCK_MAX_DIMS; i++) g->sizes[i] = 1;
}

void real_init(struct algebra *g) {
    init(g);
#define BLOCK_OP(ID, id, ...) g->apply[BLOCK_OP_##ID] = double_##id;
#include "block/block_op.def"
#undef BLOCK_OP
}

void real_init_target(struct algebra *g, enum dtype dtype) {
    init(g);
#define BLOCK_OP(ID, id, ...) g->apply[BLOCK_OP_##ID] = float_##id;
#include "block/block_op.def"
#undef BLOCK_OP
    g->apply[BLOCK_OP_CAST16] = dtype == DTYPE_F16 ? cast_f16 : cast_bf16;
}

double real_error(const struct cells *value, const struct cells *exact) {
    double largest = REAL_SMALLEST, worst = 0;
    for (uint32_t i = 0; i < exact->n; i++) largest = fmax(largest, fabs(exact->at[i].real));
    for (uint32_t i = 0; i < exact->n; i++) {
        const double e = fabs(value->at[i].real - exact->at[i].real);
        if (isnan(e) && !isnan(exact->at[i].real)) return INFINITY;
        worst = fmax(worst, e);
    }
    return worst / largest;
}
