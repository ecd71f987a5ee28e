/* Every instruction set that this processor has, against double arithmetic, with tolerances from
 * the number formats; and what no tolerance excuses: results that depend on more than their
 * lengths. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>
#undef fail

/* cmocka's fail_msg without its fail(), whose name is taken. */
#define wrong(...)                                                                                 \
    do {                                                                                           \
        print_error(__VA_ARGS__);                                                                  \
        assert_true(false);                                                                        \
    } while (0)

static const char *const isa_names[] = {"ref", "avx2", "avx512bf16", "amx"};
static const enum dtype float_dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

/* Calls fn for every isa that is here. */
static void each_isa(void (*fn)(const struct cpu_isa *isa)) {
    for (size_t i = 0; i < sizeof isa_names / sizeof isa_names[0]; i++) {
        const struct cpu_isa *isa = cpu_isa_select(isa_names[i]);
        if (isa == NULL) continue;
        print_message("isa %s\n", isa->name);
        fn(isa);
    }
}

/* Memory that ends where a page begins that nobody may touch: vector code that reads or writes
 * behind its operands ends here in any build. */
static struct guard {
    char *base, *at; /* the pages; what guarded() gave */
    size_t bytes;    /* of the pages, with the last */
} guards[16];

static void *guarded(size_t bytes) {
    const size_t page = 4096;
    struct guard *g = guards;
    while (g->base != NULL) assert_true(++g < guards + 16);
    g->bytes = ((bytes + page - 1) / page + 1) * page;
    g->base = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g->base != MAP_FAILED);
    assert_int_equal(mprotect(g->base + g->bytes - page, page, PROT_NONE), 0);
    return g->at = g->base + g->bytes - page - bytes;
}

static void guarded_free(void *at) {
    struct guard *g = guards;
    while (g->at != at) assert_true(++g < guards + 16);
    munmap(g->base, g->bytes);
    g->base = g->at = NULL;
}

static uint64_t random_state;
static float random_float(void) { /* about normal */
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(random_state >> 40) * 0x1p-24f;
    }
    return (sum - 2) * 1.7f;
}

static float *random_floats(size_t n) {
    float *x = guarded(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    return x;
}

/* n random elements of a type that end exactly at the end of their allocation; `shift` bytes off
 * any alignment. guarded_free() *base. */
static char *random_weights(enum dtype dtype, size_t n, size_t shift, char **base) {
    *base = guarded(n * dtype_bytes(dtype) + shift);
    for (size_t i = 0; i < n; i++) convert_store(dtype, *base + shift, i, random_float());
    return *base + shift;
}

static void *aligned(size_t bytes) {
    return guarded((bytes + 63) / 64 * 64 + 64);
}

/* ---- gemm ---- */

struct gemm_case {
    enum cpu_sum sum;
    enum dtype dtype;
    uint32_t n_out, k, n_tok;
    float *x, *y; /* [n_tok, k], [n_tok, n_out] */
    char *w, *w_base;
};

static void gemm_case_init(struct gemm_case *c, enum dtype dtype, uint32_t n_out, uint32_t k,
                           uint32_t n_tok) {
    *c = (struct gemm_case){.dtype = dtype, .n_out = n_out, .k = k, .n_tok = n_tok};
    c->w = random_weights(dtype, (size_t)n_out * k, 1, &c->w_base);
    c->x = random_floats((size_t)n_tok * k);
    c->y = random_floats((size_t)n_tok * n_out);
}

static void gemm_case_fini(struct gemm_case *c) {
    guarded_free(c->w_base);
    guarded_free(c->x);
    guarded_free(c->y);
}

/* Rows [n0, n1) of the weights times tokens [t0, t1). */
static void gemm_case_run(const struct gemm_case *c, const struct cpu_isa *isa, uint32_t n0,
                          uint32_t n1, uint32_t t0, uint32_t t1, float *y) {
    const float **rows = guarded((t1 - t0) * sizeof *rows);
    for (uint32_t t = t0; t < t1; t++) rows[t - t0] = c->x + (size_t)t * c->k;
    size_t bytes = isa->pack_bytes(c->dtype, t1 - t0, c->k);
    assert_true(bytes <= cpu_pack_bound(t1 - t0, c->k) && bytes % 64 == 0);
    void *pack = aligned(bytes);
    isa->pack(c->dtype, rows, NULL, t1 - t0, c->k, pack);
    isa->gemm[c->dtype](c->sum, c->w + (size_t)n0 * c->k * dtype_bytes(c->dtype), n1 - n0, c->k,
                        pack, t1 - t0, y + (size_t)t0 * c->n_out + n0, c->n_out);
    guarded_free(pack);
    guarded_free(rows);
}

/* Float sums of k products in lanes: the error of each partial sum is bounded by the sum of the
 * magnitudes; what the 16-bit formats round was rounded before, and exactly so. */
static void check_gemm(const struct gemm_case *c) {
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t n = 0; n < c->n_out; n++) {
            double sum = 0, magnitude = 0;
            for (uint32_t i = 0; i < c->k; i++) {
                float x = c->x[(size_t)t * c->k + i];
                if (c->dtype == DTYPE_BF16) x = convert_from_bf16(convert_to_bf16(x));
                double p = (double)x * (double)convert_load(c->dtype, c->w, (size_t)n * c->k + i);
                sum += p;
                magnitude += fabs(p);
            }
            double tolerance = 0x1p-23 * magnitude * (4 + c->k / 16);
            double got = (double)c->y[(size_t)t * c->n_out + n];
            if (!(fabs(got - sum) <= tolerance + 1e-30))
                wrong("dtype %d n_out %u k %u n_tok %u: y[%u][%u] = %g, want %g", c->dtype,
                      c->n_out, c->k, c->n_tok, t, n, got, sum);
        }
}

static void gemm_shapes(const struct cpu_isa *isa) {
    static const uint32_t ks[] = {1, 2, 7, 16, 31, 32, 33, 54, 64, 97, 160, 257};
    static const uint32_t outs[] = {1, 3, 4, 8, 13, 16, 37, 50};
    static const uint32_t toks[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 17, 33, 40};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < 12; i++)
            for (size_t j = 0; j < 8; j++)
                for (size_t l = (i + j) % 3; l < 13; l += 3) {
                    struct gemm_case c;
                    gemm_case_init(&c, float_dtypes[d], outs[j], ks[i], toks[l]);
                    gemm_case_run(&c, isa, 0, c.n_out, 0, c.n_tok, c.y);
                    check_gemm(&c);
                    gemm_case_fini(&c);
                }
}

static void test_gemm(void **state) {
    (void)state;
    each_isa(gemm_shapes);
}

/* However the rows and the tokens are cut, the bits are those of the whole. */
static void gemm_cut(const struct cpu_isa *isa, enum cpu_sum sum, enum dtype dtype, uint32_t k,
                     uint32_t n_tok, uint32_t cut) {
    struct gemm_case c;
    gemm_case_init(&c, dtype, 45, k, n_tok);
    c.sum = sum;
    float *y = random_floats((size_t)c.n_tok * c.n_out);
    gemm_case_run(&c, isa, 0, c.n_out, 0, c.n_tok, c.y);
    for (uint32_t t = 0; t < c.n_tok; t += cut)
        for (uint32_t n = 0; n < c.n_out; n += 2 * cut + 1) {
            uint32_t n1 = n + 2 * cut + 1, t1 = t + cut;
            gemm_case_run(&c, isa, n, n1 < c.n_out ? n1 : c.n_out, t, t1 < c.n_tok ? t1 : c.n_tok,
                          y);
        }
    assert_memory_equal(y, c.y, (size_t)c.n_tok * c.n_out * sizeof *y);
    guarded_free(y);
    gemm_case_fini(&c);
}

static void gemm_cuts(const struct cpu_isa *isa) {
    static const uint32_t toks[] = {1, 2, 3, 5, 8, 16, 19, 47};
    static const uint32_t trees[] = {300, 1024, 2350, 3072};
    for (int d = 0; d < 3; d++)
        for (uint32_t cut = 1; cut < 9; cut++) {
            for (uint32_t k = 30; k < 140; k += 51)
                gemm_cut(isa, CPU_SUM_WHOLE, float_dtypes[d], k, toks[cut - 1], cut);
            gemm_cut(isa, CPU_SUM_HALVES, float_dtypes[d], trees[cut % 4], toks[cut - 1], cut);
        }
}

static void test_gemm_cuts(void **state) {
    (void)state;
    each_isa(gemm_cuts);
}

/* Columns [k0, k1) alone, as a device that has no others multiplies them, into y. */
static void gemm_columns(const struct gemm_case *c, const struct cpu_isa *isa, uint32_t k0,
                         uint32_t k1, float *y) {
    struct gemm_case part = {.dtype = c->dtype, .n_out = c->n_out, .k = k1 - k0, .n_tok = c->n_tok};
    const size_t bytes = dtype_bytes(c->dtype);
    part.w = part.w_base = guarded((size_t)part.n_out * part.k * bytes);
    part.x = random_floats((size_t)part.n_tok * part.k);
    for (uint32_t n = 0; n < part.n_out; n++)
        memcpy(part.w + (size_t)n * part.k * bytes, c->w + ((size_t)n * c->k + k0) * bytes,
               part.k * bytes);
    for (uint32_t t = 0; t < part.n_tok; t++)
        memcpy(part.x + (size_t)t * part.k, c->x + (size_t)t * c->k + k0, part.k * sizeof(float));
    gemm_case_run(&part, isa, 0, part.n_out, 0, part.n_tok, y);
    guarded_free(part.w_base);
    guarded_free(part.x);
}

/* The partial sums [p, end) added up in order, from their definition; false: they have no columns.
 */
static bool gemm_in_order(const struct gemm_case *c, const struct cpu_isa *isa, uint32_t p,
                          uint32_t end, float *y) {
    const uint32_t tiles = partial_tiles(c->k), n_sums = c->n_out * c->n_tok;
    float *one = random_floats(n_sums);
    bool any = false;
    for (; p < end; p++) {
        const uint32_t k0 = partial_first(tiles, p) * PARTIAL_TILE;
        uint32_t k1 = partial_first(tiles, p + 1) * PARTIAL_TILE;
        if (k1 > c->k) k1 = c->k;
        if (k0 >= k1) continue;
        gemm_columns(c, isa, k0, k1, any ? one : y);
        for (uint32_t i = 0; any && i < n_sums; i++) y[i] += one[i];
        any = true;
    }
    guarded_free(one);
    return any;
}

/* By halves: what 2 or 8 devices would make of their own columns; and near the exact sum. */
static void gemm_halves(const struct cpu_isa *isa) {
    static const uint32_t ks[] = {1,    256,  257,  600,  768,  1000, 1280,
                                  1408, 1700, 2048, 2304, 2880, 4100};
    static const uint32_t toks[] = {1, 3, 7, 20, 33};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof ks / sizeof ks[0]; i++) {
            struct gemm_case c;
            gemm_case_init(&c, float_dtypes[d], 21, ks[i], toks[(i + (size_t)d) % 5]);
            c.sum = CPU_SUM_HALVES;
            const uint32_t n_sums = c.n_tok * c.n_out;
            float *want = random_floats(n_sums), *right = random_floats(n_sums);
            gemm_case_run(&c, isa, 0, c.n_out, 0, c.n_tok, c.y);
            check_gemm(&c);
            assert_true(gemm_in_order(&c, isa, 0, PARTIALS / 2, want));
            const bool more = gemm_in_order(&c, isa, PARTIALS / 2, PARTIALS, right);
            for (uint32_t s = 0; more && s < n_sums; s++) want[s] += right[s];
            guarded_free(right);
            assert_memory_equal(want, c.y, n_sums * sizeof *want);
            guarded_free(want);
            gemm_case_fini(&c);
        }
}

static void test_gemm_halves(void **state) {
    (void)state;
    each_isa(gemm_halves);
}

/* Packing with a scale is packing the products. */
static void pack_scale(const struct cpu_isa *isa) {
    for (int d = 0; d < 3; d++)
        for (uint32_t k = 1; k < 120; k += 13) {
            float *x = random_floats(3 * k), *scale = random_floats(k), *xs = random_floats(3 * k);
            const float *rows[3] = {x, x + k, x + 2 * k}, *done[3] = {xs, xs + k, xs + 2 * k};
            for (uint32_t i = 0; i < 3 * k; i++) xs[i] = x[i] * scale[i % k];
            size_t bytes = isa->pack_bytes(float_dtypes[d], 3, k);
            char *a = aligned(bytes), *b = aligned(bytes);
            memset(a, 1, bytes);
            memset(b, 1, bytes);
            isa->pack(float_dtypes[d], rows, scale, 3, k, a);
            isa->pack(float_dtypes[d], done, NULL, 3, k, b);
            assert_memory_equal(a, b, bytes);
            guarded_free(a), guarded_free(b), guarded_free(x), guarded_free(scale),
                guarded_free(xs);
        }
}

static void test_pack_scale(void **state) {
    (void)state;
    each_isa(pack_scale);
}

/* ---- attend ---- */

struct attend_case {
    struct kv_row row;
    uint32_t n_q, n;
    float *q;
    char *k, *v, *k_base, *v_base;
};

/* o[d] of one head by double softmax over all n positions. */
static void attend_double(const struct attend_case *c, uint32_t h, double *o, double *max_out,
                          double *sum_out) {
    const enum dtype kv = (enum dtype)c->row.dtype;
    const uint32_t K = c->row.k_width, V = c->row.v_width, pitch = c->row.v_in_k ? K : V;
    double *s = guarded(c->n * sizeof *s), max = -INFINITY, sum = 0;
    for (uint32_t p = 0; p < c->n; p++) {
        s[p] = 0;
        for (uint32_t i = 0; i < K; i++)
            s[p] += (double)c->q[h * K + i] * (double)convert_load(kv, c->k, (size_t)p * K + i);
        if (s[p] > max) max = s[p];
    }
    for (uint32_t i = 0; i < V; i++) o[i] = 0;
    for (uint32_t p = 0; p < c->n; p++) {
        double e = exp(s[p] - max);
        sum += e;
        for (uint32_t i = 0; i < V; i++)
            o[i] += e * (double)convert_load(kv, c->v, (size_t)p * pitch + i);
    }
    *max_out = max;
    *sum_out = sum;
    guarded_free(s);
}

static void fresh(float *state, uint32_t n_q, uint32_t V) {
    memset(state, 0, (size_t)n_q * (V + 2) * sizeof *state);
    for (uint32_t h = 0; h < n_q; h++) state[h * (V + 2)] = -INFINITY;
}

static void attend_check(const struct cpu_isa *isa, const struct attend_case *c, uint32_t first) {
    const uint32_t K = c->row.k_width, V = c->row.v_width, bytes = dtype_bytes(c->row.dtype);
    float *state = random_floats(c->n_q * (V + 2)), *one = random_floats(V + 2);
    double *o = guarded(V * sizeof *o), max, sum;
    const char *k = c->k + (size_t)first * K * bytes;
    const char *v = c->v + (size_t)first * (c->row.v_in_k ? K : V) * bytes;
    fresh(state, c->n_q, V);
    if (first > 0) isa->attend(&c->row, c->q, c->n_q, c->k, c->v, first, state);
    isa->attend(&c->row, c->q, c->n_q, k, v, c->n - first, state);
    for (uint32_t h = 0; h < c->n_q; h++) {
        attend_double(c, h, o, &max, &sum);
        const float *s = state + h * (V + 2);
        double scale = exp((double)s[0] - max); /* the state's own maximum may be off by rounding */
        assert_true(fabs((double)s[0] - max) < 1e-4 * (1 + fabs(max)));
        assert_true(fabs((double)s[1] * scale - sum) < 2e-4 * sum);
        for (uint32_t i = 0; i < V; i++)
            if (!(fabs((double)s[2 + i] * scale - o[i]) < 5e-4 * sum))
                wrong("kv %d n_q %u K %u V %u n %u: out[%u][%u] = %g, want %g", c->row.dtype,
                      c->n_q, K, V, c->n, h, i, (double)s[2 + i], o[i]);
        fresh(one, 1, V); /* alone it gets the same bits */
        if (first > 0) isa->attend(&c->row, c->q + h * K, 1, c->k, c->v, first, one);
        isa->attend(&c->row, c->q + h * K, 1, k, v, c->n - first, one);
        assert_memory_equal(one, s, (V + 2) * sizeof *one);
    }
    guarded_free(state), guarded_free(one), guarded_free(o);
}

/* With v_in_k the values are the keys' first elements; `v` is then their address. */
static void attend_shape(const struct cpu_isa *isa, struct kv_row row, uint32_t n_q, uint32_t n) {
    const enum dtype kv = (enum dtype)row.dtype;
    struct attend_case c = {.row = row, .n_q = n_q, .n = n};
    c.q = random_floats((size_t)c.n_q * row.k_width);
    for (uint32_t e = 0; e < c.n_q * row.k_width; e++) c.q[e] *= 2 / sqrtf((float)row.k_width);
    c.k = random_weights(kv, (size_t)c.n * row.k_width, 2, &c.k_base);
    c.v = random_weights(kv, (size_t)c.n * row.v_width, 2, &c.v_base);
    if (row.v_in_k) c.v = c.k;
    attend_check(isa, &c, 0);
    attend_check(isa, &c, c.n / 3);
    guarded_free(c.q), guarded_free(c.k_base), guarded_free(c.v_base);
}

static void attend_shapes(const struct cpu_isa *isa) {
    static const uint32_t dims[] = {2, 6, 16, 18, 64, 80, 96, 128, 144};
    static const uint32_t heads[] = {1, 2, 3, 4, 5, 8},
                          counts[] = {1, 2, 5, 16, 33, ATTENTION_PIECE};
    for (int d = 0; d < 3; d++)
        for (size_t i = 0; i < 9; i++)
            for (size_t j = 0; j < 6; j++) {
                struct kv_row row = {.heads = 1, .dtype = (uint8_t)float_dtypes[d]};
                row.k_width = row.v_width = (uint16_t)dims[i];
                attend_shape(isa, row, heads[j], counts[(i + j) % 6]);
                row.v_width = (uint16_t)dims[(i + j) % 9];
                attend_shape(isa, row, heads[j], counts[(i + j + 1) % 6]);
                row.v_in_k = row.v_width <= row.k_width;
                attend_shape(isa, row, heads[j], counts[(i + j + 2) % 6]);
            }
}

static void test_attend(void **state) {
    (void)state;
    each_isa(attend_shapes);
}

/* ---- element-wise and reductions ---- */

static void exponentials(const struct cpu_isa *isa) {
    float x[] = {0, -0.0f, 1, -1, 0.3f, 20, -20, 80, -80, -200, -INFINITY, NAN, 1e-6f, -87, 5, 88};
    float y[16];
    isa->exp_of(y, x, 16);
    for (int i = 0; i < 16; i++) {
        double want = x[i] == x[i] ? exp((double)x[i]) : 0;
        assert_true(fabs((double)y[i] - want) <= 4e-7 * want + 1e-37);
    }
    for (float v = -85; v < 85; v += 0.37f) { /* one alone as in a vector */
        float z;
        isa->exp_of(&z, &v, 1);
        assert_true(fabs((double)z - exp((double)v)) <= 4e-7 * exp((double)v));
    }
}

static void silu(const struct cpu_isa *isa) {
    for (uint32_t n = 1; n < 50; n++) {
        float *g = random_floats(n), *u = random_floats(n), *h = guarded(n * sizeof *h);
        for (uint32_t i = 0; i < n; i++) g[i] *= 8;
        memcpy(h, g, n * sizeof *h);
        isa->silu_mul(h, u, n);
        for (uint32_t i = 0; i < n; i++) {
            double want = (double)g[i] / (1 + exp(-(double)g[i])) * (double)u[i];
            assert_true(fabs((double)h[i] - want) <= 1e-6 * fabs(want) + 1e-30);
            float alone = g[i];
            isa->silu_mul(&alone, u + i, 1);
            assert_memory_equal(&alone, h + i, sizeof alone);
        }
        guarded_free(g), guarded_free(u), guarded_free(h);
    }
}

static void sums(const struct cpu_isa *isa) {
    for (uint32_t n = 1; n < 300; n += n < 70 ? 1 : 23) {
        float *x = random_floats(n), out[2], max = -INFINITY;
        double squares = 0, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            squares += (double)x[i] * (double)x[i];
            if (x[i] > max) max = x[i];
        }
        for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
        assert_true(fabs((double)isa->sum_squares(x, n) - squares) <= 2e-6 * squares);
        isa->max_sumexp(x, n, out);
        assert_true(out[0] == max);
        assert_true(fabs((double)out[1] - sum) <= 2e-6 * sum);
        x[n / 2] = NAN;
        isa->max_sumexp(x, n, out);
        assert_true(out[0] <= max && out[1] == out[1]);
        for (uint32_t i = 0; i < n; i++) x[i] = i % 2 == 0 ? NAN : -INFINITY;
        isa->max_sumexp(x, n, out);
        assert_true(out[0] == -INFINITY && out[1] == 0);
        guarded_free(x);
    }
}

static void test_elementwise(void **state) {
    (void)state;
    each_isa(exponentials);
    each_isa(silu);
    each_isa(sums);
}

static void test_convert(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = convert_from_f16((uint16_t)h), b = convert_from_bf16((uint16_t)h);
        if (f == f) assert_int_equal(convert_to_f16(f), h);
        if (b == b) assert_int_equal(convert_to_bf16(b), h);
        if (f != f) assert_int_equal(convert_to_f16(f) & 0x7c00, 0x7c00);
        if (h >= 0x7bff) continue;
        float next = convert_from_f16((uint16_t)(h + 1)), mid = (f + next) / 2;
        assert_int_equal(convert_to_f16(mid), h + (h & 1)); /* ties to even */
        assert_int_equal(convert_to_f16(nextafterf(mid, 1e9f)), h + 1);
        assert_int_equal(convert_to_f16(nextafterf(mid, 0)), h);
    }
    assert_int_equal(convert_to_bf16(1.00390625f), 0x3f80);
    assert_int_equal(convert_to_bf16(1.01171875f), 0x3f82);
    assert_int_equal(convert_to_f16(1e6f), 0x7c00);
}

static void test_select(void **state) {
    (void)state;
    assert_null(cpu_isa_select("no such isa"));
    assert_non_null(cpu_isa_select(NULL));
    assert_ptr_equal(cpu_isa_select("ref"), &cpu_isa_ref);
}

int main(void) {
    random_state = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),      cmocka_unit_test(test_convert),
        cmocka_unit_test(test_gemm),        cmocka_unit_test(test_gemm_cuts),
        cmocka_unit_test(test_gemm_halves), cmocka_unit_test(test_pack_scale),
        cmocka_unit_test(test_attend),      cmocka_unit_test(test_elementwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
