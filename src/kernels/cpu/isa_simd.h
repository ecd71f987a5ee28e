/* isa_simd.h - the primitives of struct cpu_isa, written once over vectors.
 *
 * Included by isa_avx2.c and isa_avx512.c after their simd_*.h, which gives the vector type `vf` of
 * VL floats and the operands of dot products. Every sum runs over fixed lanes, then down one tree;
 * a ragged end is one more step with zeros in the missing lanes. So results depend on lengths only.
 *
 * The gemm has an accumulator vector per (weight row, token). How many rows it multiplies at a time
 * depends on the number of tokens (DOT_ROWS_FEW, DOT_ROWS). All tokens pass over a group of weight
 * rows while it is in the L1 cache, so weights come from memory once. */
#ifndef QN_KERNELS_CPU_ISA_SIMD_H
#define QN_KERNELS_CPU_ISA_SIMD_H

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/simd_pack.h"

#include <math.h>
#include <string.h>

#define UNROLL _Pragma("GCC unroll 16")

/* ---- exponential ---- */

/* e^x within 2 ulp: 2^n times a polynomial on [-ln2/2, ln2/2]. 0 below the smallest normal number
 * and for NaN, at most e^88.3. */
INLINE vf vf_exp(vf x) {
    vf low = vf_set1(-87.3f);
    vf c = vf_min(vf_max(x, low), vf_set1(88.3f));
    vf n = vf_round(vf_mul(c, vf_set1(0x1.715476p+0f)));
    vf r = vf_fnma(n, vf_set1(0x1.62e430p-1f), c); /* ln 2, high and low part */
    r = vf_fnma(n, vf_set1(-0x1.05c610p-29f), r);
    vf p = vf_fma(r, vf_set1(1.0f / 5040), vf_set1(1.0f / 720));
    p = vf_fma(r, p, vf_set1(1.0f / 120));
    p = vf_fma(r, p, vf_set1(1.0f / 24));
    p = vf_fma(r, p, vf_set1(1.0f / 6));
    p = vf_fma(r, p, vf_set1(0.5f));
    p = vf_fma(r, p, vf_set1(1.0f));
    p = vf_fma(r, p, vf_set1(1.0f));
    return vf_where_ge(x, low, vf_ldexp(p, n));
}

static void simd_exp_of(float *y, const float *x, uint32_t n) {
    uint32_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(y + i, vf_exp(vf_load(x + i)));
    if (i < n) vf_store_n(y + i, vf_exp(vf_load_n(x + i, n - i)), n - i);
}

INLINE vf silu_mul_vf(vf g, vf u) {
    vf e = vf_exp(vf_sub(vf_zero(), g));
    return vf_mul(vf_div(g, vf_add(vf_set1(1), e)), u);
}

static void simd_silu_mul(float *gate, const float *up, uint32_t n) {
    uint32_t i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(gate + i, silu_mul_vf(vf_load(gate + i), vf_load(up + i)));
    if (i < n) {
        vf v = silu_mul_vf(vf_load_n(gate + i, n - i), vf_load_n(up + i, n - i));
        vf_store_n(gate + i, v, n - i);
    }
}

/* ---- reductions ---- */

static float simd_sum_squares(const float *x, uint32_t n) {
    vf acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    uint32_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        UNROLL for (uint32_t j = 0; j < 4; j++) {
            vf v = vf_load(x + i + j * VL);
            acc[j] = vf_fma(v, v, acc[j]);
        }
    }
    for (; i + VL <= n; i += VL) {
        vf v = vf_load(x + i);
        acc[0] = vf_fma(v, v, acc[0]);
    }
    if (i < n) {
        vf v = vf_load_n(x + i, n - i);
        acc[1] = vf_fma(v, v, acc[1]);
    }
    return vf_sum(vf_add(vf_add(acc[0], acc[1]), vf_add(acc[2], acc[3])));
}

/* The first n < VL elements, -inf in the other lanes. */
INLINE vf load_n_or_low(const float *x, uint32_t n) {
    float v[VL];
    for (uint32_t i = 0; i < VL; i++) v[i] = i < n ? x[i] : -INFINITY;
    return vf_load(v);
}

static void simd_max_sumexp(const float *x, uint32_t n, float out[2]) {
    uint32_t full = n / VL * VL;
    vf tail = load_n_or_low(x + full, n - full);
    vf m = vf_set1(-INFINITY);
    for (uint32_t i = 0; i < full; i += VL) m = vf_max(vf_load(x + i), m);
    float max = vf_hmax(vf_max(tail, m));
    vf sum = vf_zero(), shift = vf_set1(max);
    for (uint32_t i = 0; i < full; i += VL)
        sum = vf_add(sum, vf_exp(vf_sub(vf_load(x + i), shift)));
    sum = vf_add(sum, vf_exp(vf_sub(tail, shift)));
    out[0] = max;
    out[1] = vf_sum(sum);
}

/* ---- packing ---- */

static size_t simd_pack_bytes(enum dtype weight, uint32_t n_tok, uint32_t k) {
    return n_tok * dot_row_bytes(weight, k);
}

INLINE void pack_rows(enum dtype weight, const float *const *x, const float *scale, uint32_t n_tok,
                      uint32_t k, char *dst) {
    uint32_t unit = weight == DTYPE_BF16 ? 2 * VL : VL; /* elements of one dot_pack */
    for (uint32_t t = 0; t < n_tok; t++) {
        char *row = dst + t * dot_row_bytes(weight, k);
        for (uint32_t i = 0; i < k; i += unit)
            dot_pack(weight, row, i, pack_load(x[t], scale, i, k),
                     pack_load(x[t], scale, i + VL, k));
    }
}

static void simd_pack(enum dtype weight, const float *const *x, const float *scale, uint32_t n_tok,
                      uint32_t k, void *dst) {
    if (weight == DTYPE_BF16)
        pack_rows(DTYPE_BF16, x, scale, n_tok, k, dst);
    else
        pack_rows(DTYPE_F32, x, scale, n_tok, k, dst);
}

/* ---- matrix times vectors ----
 *
 * The gemm takes a panel of weight rows at a time, and the dimension k in chunks of 2 KB of a row.
 * All tokens pass over the panel's part of a chunk, T of them at a time: so tokens and weights of a
 * chunk stay in the L1 cache. While tokens pass over R rows, the R rows behind them are prefetched,
 * line by line; behind the panel's last rows that is its next chunk or the next panel. (Without
 * prefetching, four tokens or more ran at two thirds of memory speed; chunks of 1, 3 and 6 KB and
 * panels of 4 and 8 rows were slower at k 3072.) Between chunks the accumulators wait in memory, as
 * vectors: the sum's order is that of one chunk. */

enum {
    GEMM_MAX_R = 8,
    GEMM_MAX_T = 6,
    GEMM_SUMS = 192 /* vectors: 12 KB */,
    GEMM_CHUNK_BYTES = 2048,
    /* A single row takes 50 ns, too short to prefetch only the row behind it. Medians of nine runs
     * of two threads, one token, k 1024 / 3072, GB/s: 0: 55 / 67, 2 KB: 62 / 54, 6 KB: 70 / 73, 14
     * KB: 56 / 67. */
    GEMM_FAR_BYTES = 6144,
    /* Four rows from four places: the processor's own prefetchers do most of it. Medians of nine or
     * eleven runs of a loop of this form, two Zen 3 threads, one token, k 768 / 2048, in % of
     * reading in order: 128 bytes: 101 / 105, 256: 108 / 109, 320: 110 / 111, 384: 107 / 110, 1 KB:
     * 98 / 101, 2 KB: 95 / 97. */
    GEMM_NEAR_BYTES = 320
};

struct gemm_args {
    const char *w; /* the first of R rows */
    size_t w_stride;
    uint32_t k;
    const char *x; /* the first of T tokens */
    size_t x_stride;
    float *y; /* of the first row and token: where the sum goes that ends first in the chunk */
    size_t ldy, next;    /* floats to the next token's, to where the next sum goes */
    size_t y_step;       /* floats to the next row's */
    size_t row_step;     /* rows from one of the R to the next; 1: they lie behind each other */
    const uint32_t *end; /* the ends of that sum and of the next ones */
    uint32_t k0, k1;     /* the chunk */
    bool begins;         /* the chunk begins with a sum */
    size_t ahead[4];     /* by row modulo 4: bytes from a weight to the one to prefetch, 0: none */
    vf *sums;            /* [T][R] accumulators between chunks */
};

/* y = sums of R x T accumulators, up to four rows of a token at a time. */
INLINE void store_sums(int R, int T, vf acc[GEMM_MAX_R][GEMM_MAX_T], float *y, size_t ldy,
                       size_t y_step) {
    UNROLL for (int t = 0; t < T; t++) {
        UNROLL for (int r = 0; r < R; r += 4) {
            float sums[4];
            if (R == 1)
                sums[0] = vf_sum(acc[0][t]);
            else if (R == 2)
                _mm_storeu_ps(sums, vf_sum4(acc[0][t], acc[1][t], acc[0][t], acc[1][t]));
            else
                _mm_storeu_ps(sums,
                              vf_sum4(acc[r][t], acc[r + 1][t], acc[r + 2][t], acc[r + 3][t]));
            UNROLL for (int i = 0; i < (R < 4 ? R : 4); i++)
                y[(size_t)t * ldy + (size_t)(r + i) * y_step] = sums[i];
        }
    }
}

/* Columns [i, end) of R weight rows times T tokens, added to the accumulators. */
INLINE void gemm_add(enum dtype dtype, int R, int T, const struct gemm_args *a, uint32_t i,
                     uint32_t end, vf acc[GEMM_MAX_R][GEMM_MAX_T]) {
    uint32_t step = dot_step(dtype);
    operand w[GEMM_MAX_R];
    for (; i + step <= end; i += step) {
        const char *p = a->w + (size_t)i * dtype_bytes(dtype);
        UNROLL for (int r = 0; r < R; r++) {
            const char *row = p + (size_t)r * a->w_stride;
            _mm_prefetch(row + a->ahead[r % 4], _MM_HINT_T0);
            w[r] = dot_weight(dtype, row);
        }
        UNROLL for (int t = 0; t < T; t++) {
            operand x = dot_x(dtype, a->x + (size_t)t * a->x_stride, i);
            UNROLL for (int r = 0; r < R; r++) acc[r][t] = dot(dtype, acc[r][t], w[r], x);
        }
    }
    if (i < end) {
        const char *p = a->w + (size_t)i * dtype_bytes(dtype);
        UNROLL for (int r = 0; r < R; r++) w[r] =
            dot_weight_n(dtype, p + (size_t)r * a->w_stride, end - i);
        UNROLL for (int t = 0; t < T; t++) {
            operand x = dot_x(dtype, a->x + (size_t)t * a->x_stride, i);
            UNROLL for (int r = 0; r < R; r++) acc[r][t] = dot(dtype, acc[r][t], w[r], x);
        }
    }
}

/* The chunk of R weight rows times T tokens; R and T are constants where it is inlined, R is 1, 2,
 * 4 or 8. */
INLINE void gemm_block(enum dtype dtype, int R, int T, const struct gemm_args *a) {
    vf acc[GEMM_MAX_R][GEMM_MAX_T];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int t = 0; t < T; t++) acc[r][t] =
        a->begins ? vf_zero() : a->sums[t * R + r];
    const uint32_t *end = a->end;
    float *y = a->y;
    for (uint32_t i = a->k0; *end <= a->k1; i = *end++, y += a->next) {
        gemm_add(dtype, R, T, a, i, *end, acc);
        store_sums(R, T, acc, y, a->ldy, a->y_step);
        if (*end == a->k1) return;
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int t = 0; t < T; t++) acc[r][t] = vf_zero();
    }
    gemm_add(dtype, R, T, a, end == a->end ? a->k0 : end[-1], a->k1, acc);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int t = 0; t < T; t++) a->sums[t * R + r] =
        acc[r][t];
}

/* One group of T <= most tokens. */
INLINE void gemm_group(enum dtype dtype, int R, uint32_t most, uint32_t T,
                       const struct gemm_args *a) {
    switch (T) {
    case 1: gemm_block(dtype, R, 1, a); break;
    case 2: gemm_block(dtype, R, 2, a); break;
    case 3:
        if (most >= 3) gemm_block(dtype, R, 3, a);
        break;
    case 4:
        if (most >= 4) gemm_block(dtype, R, 4, a);
        break;
    case 5:
        if (most >= 5) gemm_block(dtype, R, 5, a);
        break;
    case 6:
        if (most >= 6) gemm_block(dtype, R, 6, a);
        break;
    default: break;
    }
}

/* Elements of a chunk: chunks of nearly equal length, whole steps each. */
INLINE uint32_t gemm_chunk(enum dtype dtype, uint32_t k) {
    uint32_t most = GEMM_CHUNK_BYTES / dtype_bytes(dtype), n = (k + most - 1) / most;
    return ((k + n - 1) / n + 31) & ~31u;
}

/* Groups [g0, g1) of n groups of tokens. The n groups have n_tok tokens in all and nearly equal
 * sizes. */
struct gemm_groups {
    uint32_t g0, g1, n, n_tok;
};

INLINE uint32_t gemm_token(const struct gemm_groups *g, uint32_t group) {
    return g->n_tok * group / g->n;
}

/* Multiplies a panel of P * R weight rows with groups of tokens. a describes the first row, token
 * 0, and where the first group's first sums go. The groups share out the lines to prefetch. */
INLINE void gemm_columns_of(enum dtype dtype, int R, uint32_t P, uint32_t most, struct gemm_args a,
                            const struct gemm_groups *groups) {
    vf sums[GEMM_SUMS];
    __asm__("" : "=m"(sums)); /* GCC does not see that a chunk has stored what the next one loads */
    const uint32_t bytes = dtype_bytes(dtype), chunk = gemm_chunk(dtype, a.k);
    const uint32_t t0 = gemm_token(groups, groups->g0);
    const size_t rows_bytes = (size_t)R * a.w_stride;
    struct gemm_args first = a;
    a.begins = true;
    for (a.k0 = 0; a.k0 < a.k; a.k0 = a.k1) {
        a.k1 = a.k - a.k0 < chunk ? a.k : a.k0 + chunk;
        a.sums = sums;
        for (uint32_t p = 0; p < P; p++) {
            size_t ahead = rows_bytes, far = R == 1 ? GEMM_FAR_BYTES : 0;
            if (a.row_step != 1)
                ahead = GEMM_NEAR_BYTES;
            else if (p + 1 == P && a.k1 < a.k)
                ahead = (size_t)chunk * bytes - (P - 1) * rows_bytes;
            else if (p + 1 == P)
                ahead = rows_bytes - (size_t)a.k0 * bytes;
            a.w = first.w + p * rows_bytes;
            for (uint32_t g = groups->g0; g < groups->g1; g++) {
                uint32_t t = gemm_token(groups, g), T = gemm_token(groups, g + 1) - t;
                for (uint32_t r = 0; r < 4; r++)
                    a.ahead[r] = groups->g0 == 0 && r % groups->g1 == g ? ahead + far : 0;
                a.x = first.x + t * a.x_stride;
                a.y = first.y + (t - t0) * a.ldy + p * (uint32_t)R;
                gemm_group(dtype, R, most, T, &a);
                a.sums += T * (uint32_t)R;
            }
        }
        a.begins = false;
        for (; *a.end <= a.k1 && a.k1 < a.k; a.end++, first.y += a.next) a.begins = *a.end == a.k1;
    }
}

/* gemm_columns_of() for one format and one R: compiled once, whatever the panel and the kind of
 * sum. */
typedef void gemm_columns(uint32_t P, struct gemm_args a, const struct gemm_groups *groups);
#define GEMM_COLUMNS(name, dtype, R, most)                                                         \
    static __attribute__((noinline)) void name(uint32_t P, struct gemm_args a,                     \
                                               const struct gemm_groups *groups) {                 \
        gemm_columns_of(dtype, R, P, most, a, groups);                                             \
    }

/* to[n] += from[n] */
INLINE void add_sums(float *to, const float *from, uint32_t n) {
    uint32_t i = 0;
    for (; i + VL <= n; i += VL) vf_store(to + i, vf_add(vf_load(to + i), vf_load(from + i)));
    for (; i < n; i++) to[i] += from[i];
}

/* A panel of `rows` = P * R weight rows times groups of tokens, with partial sums, which are added
 * up by halves. */
static void gemm_halves(gemm_columns *columns, uint32_t P, uint32_t rows, struct gemm_args a,
                        const struct gemm_groups *groups) {
    float sums[PARTIALS][GEMM_SUMS]; /* [tokens of the groups][rows] each */
    struct cpu_partials parts = cpu_partials_of(CPU_SUM_HALVES, a.k);
    const uint32_t n_tok = gemm_token(groups, groups->g1) - gemm_token(groups, groups->g0);
    float *y = a.y;
    const size_t ldy = a.ldy, y_step = a.y_step;
    a.y = sums[0];
    a.ldy = rows;
    a.y_step = 1;
    a.next = GEMM_SUMS;
    a.end = parts.end;
    columns(P, a, groups);
    float *stack[PARTIALS];
    uint32_t n_stack = 0;
    for (uint32_t i = 0; i < parts.n; i++) {
        stack[n_stack++] = sums[i];
        for (uint32_t m = cpu_partials_merges(&parts, i); m > 0; m--, n_stack--)
            add_sums(stack[n_stack - 2], stack[n_stack - 1], n_tok * rows);
    }
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t r = 0; r < rows; r++) y[t * ldy + r * y_step] = sums[0][t * rows + r];
}

/* A panel of `rows` = P * R weight rows times n_tok tokens, in groups of at most `most` tokens. */
static void gemm_panel(enum cpu_sum sum, gemm_columns *columns, uint32_t P, uint32_t rows,
                       uint32_t most, struct gemm_args a, uint32_t n_tok) {
    struct gemm_groups g = {.n = (n_tok + most - 1) / most, .n_tok = n_tok};
    const uint32_t per_block = GEMM_SUMS / rows / most;
    float *y = a.y;
    for (; g.g0 < g.n; g.g0 = g.g1) {
        g.g1 = g.g0 + per_block < g.n ? g.g0 + per_block : g.n;
        a.y = y + gemm_token(&g, g.g0) * a.ldy;
        if (sum == CPU_SUM_HALVES)
            gemm_halves(columns, P, rows, a, &g);
        else
            columns(P, a, &g);
    }
}

/* Moves on by n weight rows. */
INLINE void gemm_skip(struct gemm_args *a, uint32_t n) {
    a->w += n * a->w_stride;
    a->y += n;
}

/* Multiplies most of n_out rows, for few tokens: R rows at a time, the next one of each of R equal
 * parts. So memory sees R streams, each in the order of its addresses. While one of them begins a
 * memory page, where prefetchers stop, the others go on. Returns the number of rows done; fewer
 * than R are left. */
static uint32_t gemm_streams(enum cpu_sum sum, gemm_columns *few, uint32_t R, struct gemm_args a,
                             uint32_t n_out, uint32_t n_tok) {
    const uint32_t part = n_out / R;
    const size_t row_bytes = a.w_stride;
    if (R > 1) { /* a single row is a stream already, and the next one lies behind it */
        a.row_step = a.y_step = part;
        a.w_stride = part * row_bytes;
    }
    for (uint32_t n = 0; n < part; n++, a.w += row_bytes, a.y++)
        gemm_panel(sum, few, 1, R, DOT_TOKENS_FEW, a, n_tok);
    return part * R;
}

/* The functions of one weight format: a few rows of few tokens, many rows, one row. */
struct gemm_forms {
    enum dtype dtype;
    gemm_columns *few, *many, *one;
};

static void gemm_any(enum cpu_sum sum, const struct gemm_forms *of, const void *w, uint32_t n_out,
                     uint32_t k, const void *x, uint32_t n_tok, float *y, size_t ldy) {
    enum { FEW = DOT_ROWS_FEW, MANY = DOT_ROWS, PANEL = 4 };
    struct gemm_args a = {
        .w = w,
        .w_stride = (size_t)k * dtype_bytes(of->dtype),
        .k = k,
        .end = &k,
        .x = x,
        .x_stride = dot_row_bytes(of->dtype, k),
        .y = y,
        .ldy = ldy,
        .y_step = 1,
        .row_step = 1,
    };
    uint32_t n = 0;
    if (k <= PARTIAL_TILE) sum = CPU_SUM_WHOLE;
    if (n_tok <= DOT_TOKENS_FEW) {
        n = gemm_streams(sum, of->few, FEW, a, n_out, n_tok);
        gemm_skip(&a, n);
    } else if (n_tok <= 2 * DOT_TOKENS)
        for (; n + PANEL * MANY <= n_out; n += PANEL * MANY, gemm_skip(&a, PANEL * MANY))
            gemm_panel(sum, of->many, PANEL, PANEL * MANY, DOT_TOKENS, a, n_tok);
    for (; n + MANY <= n_out; n += MANY, gemm_skip(&a, MANY))
        gemm_panel(sum, of->many, 1, MANY, DOT_TOKENS, a, n_tok);
    for (; n < n_out; n++, gemm_skip(&a, 1)) gemm_panel(sum, of->one, 1, 1, DOT_TOKENS, a, n_tok);
}

/* simd_gemm_<name>(): struct cpu_isa's gemm for weights of one format. */
#define GEMM(name, dtype)                                                                          \
    GEMM_COLUMNS(gemm_few_##name, dtype, DOT_ROWS_FEW, DOT_TOKENS_FEW)                             \
    GEMM_COLUMNS(gemm_many_##name, dtype, DOT_ROWS, DOT_TOKENS)                                    \
    GEMM_COLUMNS(gemm_one_##name, dtype, 1, DOT_TOKENS)                                            \
    static void simd_gemm_##name(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k,      \
                                 const void *x, uint32_t n_tok, float *y, size_t ldy) {            \
        static const struct gemm_forms of = {dtype, gemm_few_##name, gemm_many_##name,             \
                                             gemm_one_##name};                                     \
        gemm_any(sum, &of, w, n_out, k, x, n_tok, y, ldy);                                         \
    }
GEMM(f32, DTYPE_F32)
GEMM(bf16, DTYPE_BF16)
GEMM(f16, DTYPE_F16)

#include "kernels/cpu/isa_simd_attend.h"

#endif
