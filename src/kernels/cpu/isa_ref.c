/* isa_ref.c - the primitives in plain C: the reference for the other isas, and the fallback. Sums
 * run in doubles from first to last. */
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_kernel.h"

#include <math.h>

/* A packed row: k floats (rounded to bf16 where the weights are), then zeros to 64 bytes. */
static size_t row_floats(uint32_t k) {
    return ((size_t)k + 15) & ~(size_t)15;
}

static size_t pack_bytes(enum dtype weight, uint32_t n_tok, uint32_t k) {
    (void)weight;
    return n_tok * row_floats(k) * sizeof(float);
}

static void pack(enum dtype weight, const float *const *x, const float *scale, uint32_t n_tok,
                 uint32_t k, void *dst) {
    for (uint32_t t = 0; t < n_tok; t++) {
        float *row = (float *)dst + t * row_floats(k);
        for (uint32_t i = 0; i < row_floats(k); i++) {
            float v = i >= k ? 0 : scale != NULL ? x[t][i] * scale[i] : x[t][i];
            row[i] = weight == DTYPE_BF16 ? convert_from_bf16(convert_to_bf16(v)) : v;
        }
    }
}

/* Columns [k0, k1) of row n of the weights times a packed row. */
static float dot(enum dtype weight, const void *w, size_t n, uint32_t k, const float *row,
                 uint32_t k0, uint32_t k1) {
    double sum = 0;
    for (uint32_t i = k0; i < k1; i++)
        sum += (double)convert_load(weight, w, n * k + i) * (double)row[i];
    return (float)sum;
}

static float dot_sum(const struct cpu_partials *p, enum dtype weight, const void *w, size_t n,
                     uint32_t k, const float *row) {
    float sums[PARTIALS] = {0};
    uint32_t n_sums = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        sums[n_sums++] = dot(weight, w, n, k, row, i == 0 ? 0 : p->end[i - 1], p->end[i]);
        for (uint32_t m = cpu_partials_merges(p, i); m > 0; m--, n_sums--)
            sums[n_sums - 2] += sums[n_sums - 1];
    }
    return sums[0];
}

static void gemm(enum cpu_sum sum, enum dtype weight, const void *w, uint32_t n_out, uint32_t k,
                 const void *x, uint32_t n_tok, float *y, size_t ldy) {
    const struct cpu_partials p = cpu_partials_of(sum, k);
    for (uint32_t t = 0; t < n_tok; t++) {
        const float *row = (const float *)x + t * row_floats(k);
        for (uint32_t n = 0; n < n_out; n++) y[t * ldy + n] = dot_sum(&p, weight, w, n, k, row);
    }
}

static void gemm_f32(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k, const void *x,
                     uint32_t n_tok, float *y, size_t ldy) {
    gemm(sum, DTYPE_F32, w, n_out, k, x, n_tok, y, ldy);
}

static void gemm_bf16(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k, const void *x,
                      uint32_t n_tok, float *y, size_t ldy) {
    gemm(sum, DTYPE_BF16, w, n_out, k, x, n_tok, y, ldy);
}

static void gemm_f16(enum cpu_sum sum, const void *w, uint32_t n_out, uint32_t k, const void *x,
                     uint32_t n_tok, float *y, size_t ldy) {
    gemm(sum, DTYPE_F16, w, n_out, k, x, n_tok, y, ldy);
}

static float score(enum dtype kv, const float *q, const void *k, uint32_t row, uint32_t D) {
    double sum = 0;
    for (uint32_t i = 0; i < D; i++)
        sum += (double)q[i] * (double)convert_load(kv, k, (size_t)row * D + i);
    return (float)sum;
}

static void attend_head(const struct kv_row *row, const float *q, const void *k, const void *v,
                        uint32_t n, float *state) {
    const enum dtype kv = (enum dtype)row->dtype;
    const uint32_t V = row->v_width, pitch = kv_value_pitch(row);
    float s[ATTENTION_PIECE];
    float max = state[0];
    for (uint32_t p = 0; p < n; p++) {
        s[p] = score(kv, q, k, p, row->k_width);
        if (s[p] > max) max = s[p];
    }
    float keep = expf(state[0] - max);
    state[0] = max;
    for (uint32_t i = 1; i < V + 2; i++) state[i] *= keep;
    for (uint32_t p = 0; p < n; p++) {
        float weight = expf(s[p] - max);
        state[1] += weight;
        for (uint32_t i = 0; i < V; i++)
            state[2 + i] += weight * convert_load(kv, v, (size_t)p * pitch + i);
    }
}

static void attend(const struct kv_row *row, const float *q, uint32_t n_q, const void *k,
                   const void *v, uint32_t n, float *state) {
    for (uint32_t h = 0; h < n_q; h++)
        attend_head(row, q + (size_t)h * row->k_width, k, v, n,
                    state + (size_t)h * (row->v_width + 2u));
}

static float sum_squares(const float *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return (float)sum;
}

static void silu_mul(float *gate, const float *up, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void exp_of(float *y, const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] == x[i] ? expf(x[i]) : 0;
}

static void max_sumexp(const float *x, uint32_t n, float out[2]) {
    float max = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > max) max = x[i];
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - max;
        if (d == d) sum += exp((double)d);
    }
    out[0] = max;
    out[1] = (float)sum;
}

const struct cpu_isa cpu_isa_ref = {
    .name = "ref",
    .pack_bytes = pack_bytes,
    .pack = pack,
    .gemm = {[DTYPE_F32] = gemm_f32, [DTYPE_BF16] = gemm_bf16, [DTYPE_F16] = gemm_f16},
    .attend = attend,
    .sum_squares = sum_squares,
    .silu_mul = silu_mul,
    .max_sumexp = max_sumexp,
    .exp_of = exp_of,
};
