/* Every kernel against straightforward double arithmetic over odd shapes, and its bits against cuts
 * into tasks, the company of other rows, and the form of attention. */
#include "kernels_cpu/fake_program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#undef fail

static const char *const isa_names[] = {"ref", "avx2", "avx512bf16", "amx"};

static void each_isa(const struct fake_config *config,
                     void (*fn)(struct fake *f, const struct cpu_isa *isa)) {
    for (size_t i = 0; i < sizeof isa_names / sizeof isa_names[0]; i++) {
        const struct cpu_isa *isa = cpu_isa_select(isa_names[i]);
        if (isa == NULL) continue;
        struct fake *f = fake_new(config);
        fn(f, isa);
        fake_free(f);
    }
}

static struct fake_config config_of(enum dtype weight, enum dtype kv, uint32_t n_heads,
                                    uint32_t n_kv_heads, uint32_t head_dim) {
    struct fake_config c = {.n_rows = 21, .n_logit_rows = 5, .max_model_len = 700, .kv_block = 16};
    c.spec = (struct model_spec){.n_layers = 1,
                                 .hidden = 54,
                                 .intermediate = 77,
                                 .vocab = 2 * LM_BLOCK + 37,
                                 .n_heads = n_heads,
                                 .n_kv_heads = n_kv_heads,
                                 .head_dim = head_dim,
                                 .max_position = 700,
                                 .rms_eps = 1e-5f,
                                 .weight_dtype = weight,
                                 .rope_theta = 10000,
                                 .rope_factor = 8,
                                 .rope_low_freq_factor = 1,
                                 .rope_high_freq_factor = 4,
                                 .rope_original_max = 256};
    c.kv = spec_kv_row(&c.spec, kv);
    return c;
}

/* The shapes that every test runs over. */
static const struct shape {
    enum dtype weight, kv;
    uint32_t n_heads, n_kv_heads, head_dim, kv_block, window, flags;
} shapes[] = {
    {DTYPE_F32, DTYPE_F32, 1, 1, 16, 16, 0, 0},    {DTYPE_BF16, DTYPE_BF16, 3, 1, 64, 16, 0, 7},
    {DTYPE_BF16, DTYPE_F16, 6, 2, 80, 32, 33, 1},  {DTYPE_F16, DTYPE_F16, 6, 3, 96, 8, 0, 2},
    {DTYPE_BF16, DTYPE_BF16, 4, 4, 128, 64, 0, 5}, {DTYPE_F32, DTYPE_BF16, 3, 3, 6, 2, 200, 15},
    {DTYPE_F16, DTYPE_F32, 16, 2, 18, 128, 1, 11}, {DTYPE_BF16, DTYPE_BF16, 6, 1, 64, 16, 300, 3},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static struct fake_config config_of_shape(const struct shape *s) {
    struct fake_config c = config_of(s->weight, s->kv, s->n_heads, s->n_kv_heads, s->head_dim);
    c.kv_block = s->kv_block;
    c.spec.sliding_window = s->window;
    c.spec.qkv_bias = s->flags & 1;
    c.spec.qk_norm = s->flags >> 1 & 1;
    c.spec.mlp_bias = s->flags >> 2 & 1;
    c.spec.o_bias = s->flags >> 3 & 1;
    c.spec.rope_kind = s->flags % 3;
    if (s->flags & 4) c.spec.hidden = 64, c.spec.intermediate = 160;
    return c;
}

static void each_shape(void (*fn)(struct fake *f, const struct cpu_isa *isa)) {
    for (int i = 0; i < N_SHAPES; i++) {
        struct fake_config c = config_of_shape(&shapes[i]);
        each_isa(&c, fn);
    }
}

/* Rows of an iteration: a chunk of a prompt, single tokens deep in their contexts, another chunk.
 */
static void mixed_rows(struct fake *f) {
    f->batch.rows.n_rows = 0;
    for (int32_t p = 0; p < 7; p++) fake_row(f, p, 3, 120 + p);
    fake_row(f, 11, 0, 0);
    fake_row(f, 12, 1, ATTENTION_PIECE - 1);
    fake_row(f, 13, 2, ATTENTION_PIECE);
    fake_row(f, 14, 4, 5 * ATTENTION_PIECE + 3);
    for (int32_t p = 0; p < 8; p++) fake_row(f, 20 + p, 5, p);
    uint32_t n = f->batch.rows.n_rows; /* two fewer than T: their tasks must leave them alone */
    assert_true(n < f->config.n_rows);
    f->batch.rows.n_logit_rows = 4;
    f->logit_row[0] = 6, f->logit_row[1] = 7, f->logit_row[2] = 10,
    f->logit_row[3] = (int32_t)n - 1;
}

/* ---- double arithmetic ---- */

/* out[n] = sum over k of w[n][k] * x[k], of rmsnorm(x) * norm if norm is given. What the contract
 * says about rounding is done: x * norm as a float, as bf16 where the weights are. */
static void project(const struct fake *f, const void *w, uint32_t n_out, uint32_t k, const float *x,
                    const float *norm, double *out) {
    enum dtype dtype = f->config.spec.weight_dtype;
    double squares = 0;
    for (uint32_t i = 0; i < k; i++) squares += (double)x[i] * (double)x[i];
    double inv = norm == NULL ? 1 : 1 / sqrt(squares / k + (double)f->config.spec.rms_eps);
    for (uint32_t n = 0; n < n_out; n++) {
        double sum = 0;
        for (uint32_t i = 0; i < k; i++) {
            float v = norm == NULL ? x[i] : x[i] * norm[i];
            if (dtype == DTYPE_BF16) v = convert_from_bf16(convert_to_bf16(v));
            sum += (double)v * (double)convert_load(dtype, w, (size_t)n * k + i);
        }
        out[n] = sum * inv;
    }
}

static void check(double got, double want, double tolerance, const char *what, uint32_t row,
                  uint32_t i) {
    if (fabs(got - want) <= tolerance * (1 + fabs(want))) return;
    print_error("%s row %u element %u: %g, want %g\n", what, row, i, got, want);
    assert_true(false);
}

/* ---- EMBED, LINEAR, GATED_MLP, LM_HEAD ---- */

static void embed_case(struct fake *f, const struct cpu_isa *isa) {
    mixed_rows(f);
    uint32_t H = f->config.spec.hidden;
    float *x = fake_out(f, OP_EMBED, 0);
    float untouched = x[(size_t)f->batch.rows.n_rows * H];
    fake_run_cut(f, isa, OP_EMBED, 4, 1);
    for (uint32_t r = 0; r < f->batch.rows.n_rows; r++)
        for (uint32_t i = 0; i < H; i++) {
            size_t at = (size_t)f->token[r] * H + i;
            float want = convert_load(f->config.spec.weight_dtype, fake_in(f, OP_EMBED, 0), at);
            assert_true(x[(size_t)r * H + i] == want);
        }
    assert_true(x[(size_t)f->batch.rows.n_rows * H] == untouched);
}

static void linear_case(struct fake *f, const struct cpu_isa *isa) {
    mixed_rows(f);
    uint32_t H = f->config.spec.hidden, I = f->config.spec.intermediate;
    const float *a = fake_in(f, OP_LINEAR, LINEAR_A), *bias = fake_in(f, OP_LINEAR, LINEAR_BIAS);
    const float *residual = fake_in(f, OP_LINEAR, LINEAR_RESIDUAL);
    const float *y = fake_out(f, OP_LINEAR, 0);
    double *want = malloc(H * sizeof *want);
    fake_run(f, isa, OP_LINEAR);
    for (uint32_t r = 0; r < f->batch.rows.n_rows; r++) {
        project(f, fake_in(f, OP_LINEAR, LINEAR_W), H, I, a + (size_t)r * I, NULL, want);
        for (uint32_t i = 0; i < H; i++) {
            if (bias != NULL) want[i] += (double)bias[i];
            if (residual != NULL) want[i] += (double)residual[(size_t)r * H + i];
            check((double)y[(size_t)r * H + i], want[i], 1e-5, "linear", r, i);
        }
    }
    free(want);
}

static void mlp_case(struct fake *f, const struct cpu_isa *isa) {
    mixed_rows(f);
    uint32_t H = f->config.spec.hidden, I = f->config.spec.intermediate;
    const float *x = fake_in(f, OP_GATED_MLP, MLP_X), *norm = fake_in(f, OP_GATED_MLP, MLP_NORM);
    const float *bg = fake_in(f, OP_GATED_MLP, MLP_BG), *bu = fake_in(f, OP_GATED_MLP, MLP_BU);
    const float *h = fake_out(f, OP_GATED_MLP, 0);
    double *gate = malloc(I * sizeof *gate), *up = malloc(I * sizeof *up);
    fake_run(f, isa, OP_GATED_MLP);
    for (uint32_t r = 0; r < f->batch.rows.n_rows; r++) {
        project(f, fake_in(f, OP_GATED_MLP, MLP_WG), I, H, x + (size_t)r * H, norm, gate);
        project(f, fake_in(f, OP_GATED_MLP, MLP_WU), I, H, x + (size_t)r * H, norm, up);
        for (uint32_t i = 0; i < I; i++) {
            double g = gate[i] + (bg != NULL ? (double)bg[i] : 0);
            double u = up[i] + (bu != NULL ? (double)bu[i] : 0);
            check((double)h[(size_t)r * I + i], g / (1 + exp(-g)) * u, 2e-5, "mlp", r, i);
        }
    }
    free(gate), free(up);
}

/* Activations are not rounded to 16 bits: with bf16 weights that alone would be 5e-3. */
static void router_case(struct fake *f, const struct cpu_isa *isa) {
    enum { N = 37 };
    mixed_rows(f);
    const uint32_t H = f->config.spec.hidden;
    const float *norm = fake_in(f, OP_ROUTER, ROUTER_NORM), *logits = fake_out(f, OP_ROUTER, 0);
    fake_run_cut(f, isa, OP_ROUTER, 3, 2);
    for (uint32_t r = 0; r < f->batch.rows.n_rows; r++) {
        const float *x = (const float *)fake_in(f, OP_ROUTER, ROUTER_X) + (size_t)r * H;
        double squares = 0;
        for (uint32_t i = 0; i < H; i++) squares += (double)x[i] * (double)x[i];
        for (uint32_t n = 0; n < N; n++) {
            double sum = 0;
            for (uint32_t i = 0; i < H; i++)
                sum += (double)(x[i] * norm[i]) *
                       (double)convert_load(f->config.spec.weight_dtype,
                                            fake_in(f, OP_ROUTER, ROUTER_W), (size_t)n * H + i);
            sum /= sqrt(squares / H + (double)f->config.spec.rms_eps);
            check((double)logits[(size_t)r * N + n], sum, 5e-5, "router", r, n);
        }
    }
}

static void lm_head_case(struct fake *f, const struct cpu_isa *isa) {
    mixed_rows(f);
    uint32_t H = f->config.spec.hidden, V = f->config.spec.vocab;
    uint32_t n_blocks = (V + LM_BLOCK - 1) / LM_BLOCK;
    const float *x = fake_in(f, OP_LM_HEAD, LM_X);
    const float *logits = fake_out(f, OP_LM_HEAD, 0), *part = fake_out(f, OP_LM_HEAD, 1);
    double *want = malloc(V * sizeof *want);
    fake_run(f, isa, OP_LM_HEAD);
    for (uint32_t r = 0; r < f->batch.rows.n_logit_rows; r++) {
        project(f, fake_in(f, OP_LM_HEAD, LM_W), V, H, x + (size_t)f->logit_row[r] * H,
                fake_in(f, OP_LM_HEAD, LM_NORM), want);
        for (uint32_t i = 0; i < V; i++)
            check((double)logits[(size_t)r * V + i], want[i], 1e-5, "logits", r, i);
        for (uint32_t b = 0; b < n_blocks; b++) {
            double max = -INFINITY, sum = 0;
            const float *l = logits + (size_t)r * V;
            for (uint32_t i = b * LM_BLOCK; i < V && i < (b + 1) * LM_BLOCK; i++)
                if ((double)l[i] > max) max = (double)l[i];
            for (uint32_t i = b * LM_BLOCK; i < V && i < (b + 1) * LM_BLOCK; i++)
                sum += exp((double)l[i] - max);
            check((double)part[(r * n_blocks + b) * 2], max, 0, "part max", r, b);
            check((double)part[(r * n_blocks + b) * 2 + 1], sum, 1e-6, "part sum", r, b);
        }
    }
    free(want);
}

static void test_embed(void **state) {
    (void)state;
    each_shape(embed_case);
}
static void test_linear(void **state) {
    (void)state;
    each_shape(linear_case);
}
static void test_mlp(void **state) {
    (void)state;
    each_shape(mlp_case);
}
static void test_router(void **state) {
    (void)state;
    each_shape(router_case);
}
static void test_lm_head(void **state) {
    (void)state;
    each_shape(lm_head_case);
}

/* ---- QKV ---- */

/* The key or value of a position, found without kv_row.h's functions. */
static const char *kv_at(const struct fake *f, uint32_t slot, uint32_t p, int which,
                         uint32_t head) {
    const struct rt_batch *b = &f->batch;
    const struct kv_row *r = &f->config.kv;
    size_t block = (size_t)b->block_table[slot * b->max_blocks + p / b->kv_block];
    size_t keys = (size_t)r->heads * b->kv_block * r->k_width;
    size_t values = r->v_in_k ? 0 : (size_t)r->heads * b->kv_block * r->v_width;
    size_t row = (size_t)head * b->kv_block + p % b->kv_block, at = block * (keys + values);
    if (which == 0 || r->v_in_k)
        at += row * r->k_width;
    else
        at += keys + row * r->v_width;
    return (const char *)fake_out(f, OP_QKV, QKV_OUT_KV) + at * dtype_bytes(r->dtype);
}

static double rope_frequency(const struct model_spec *s, uint32_t i) {
    double inv = pow((double)s->rope_theta, -2.0 * i / s->head_dim);
    double factor = (double)s->rope_factor, wavelength = 2 * acos(-1) / inv;
    if (s->rope_kind == ROPE_LINEAR) return inv / factor;
    if (s->rope_kind == ROPE_DEFAULT) return inv;
    double turns = s->rope_original_max / wavelength, low = (double)s->rope_low_freq_factor;
    double high = (double)s->rope_high_freq_factor;
    if (turns < low) return inv / factor;
    if (turns > high) return inv;
    double smooth = (turns - low) / (high - low);
    return (1 - smooth) * inv / factor + smooth * inv;
}

/* y[D] of one head from its dot products: bias, norm, rotation. */
static void finish_head(const struct model_spec *s, double *y, const float *bias, const float *norm,
                        bool rotate, uint32_t position) {
    uint32_t D = s->head_dim;
    double squares = 0;
    for (uint32_t i = 0; i < D; i++) {
        if (bias != NULL) y[i] += (double)bias[i];
        squares += y[i] * y[i];
    }
    for (uint32_t i = 0; i < D && norm != NULL; i++)
        y[i] = y[i] / sqrt(squares / D + (double)s->rms_eps) * (double)norm[i];
    for (uint32_t i = 0; i < D / 2 && rotate; i++) {
        double angle = position * rope_frequency(s, i), a = y[i], b = y[i + D / 2];
        y[i] = a * cos(angle) - b * sin(angle);
        y[i + D / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void qkv_row_check(const struct fake *f, uint32_t r, int kind, const double *want) {
    const struct model_spec *s = &f->config.spec;
    uint32_t D = s->head_dim, heads = kind == 0 ? s->n_heads : s->n_kv_heads;
    enum dtype kv = (enum dtype)f->config.kv.dtype;
    double step = kv == DTYPE_F32 ? 0 : kv == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < D; i++) {
            double got;
            if (kind == 0)
                got = (double)((float *)fake_out(f, OP_QKV, 0))[(r * heads + h) * D + i];
            else
                got = (double)convert_load(
                    kv, kv_at(f, (uint32_t)f->slot[r], (uint32_t)f->position[r], kind - 1, h), i);
            check(got, want[h * D + i], 1e-4 + (kind == 0 ? 0 : step), "qkv", r, h * D + i);
        }
}

static void qkv_case(struct fake *f, const struct cpu_isa *isa) {
    const struct model_spec *s = &f->config.spec;
    uint32_t H = s->hidden, D = s->head_dim;
    mixed_rows(f);
    fake_run(f, isa, OP_QKV);
    double *want = malloc((size_t)s->n_heads * D * sizeof *want);
    for (uint32_t r = 0; r < f->batch.rows.n_rows; r++)
        for (int kind = 0; kind < 3; kind++) {
            uint32_t heads = kind == 0 ? s->n_heads : s->n_kv_heads;
            const float *bias = fake_in(f, OP_QKV, QKV_BQ + kind);
            const float *norm = kind == 2 ? NULL : fake_in(f, OP_QKV, QKV_Q_NORM + kind);
            project(f, fake_in(f, OP_QKV, QKV_WQ + kind), heads * D, H,
                    (float *)fake_in(f, OP_QKV, QKV_X) + (size_t)r * H,
                    fake_in(f, OP_QKV, QKV_NORM), want);
            for (uint32_t h = 0; h < heads; h++)
                finish_head(s, want + h * D, bias != NULL ? bias + h * D : NULL, norm, kind < 2,
                            (uint32_t)f->position[r]);
            qkv_row_check(f, r, kind, want);
        }
    free(want);
}

static void test_qkv(void **state) {
    (void)state;
    each_shape(qkv_case);
}

/* ---- attention ---- */

static void attention_head(const struct fake *f, uint32_t r, uint32_t h, double *o) {
    const struct model_spec *s = &f->config.spec;
    const struct kv_row *row = &f->config.kv;
    enum dtype kv = (enum dtype)row->dtype;
    uint32_t K = row->k_width, slot = (uint32_t)f->slot[r], hi = (uint32_t)f->position[r] + 1;
    uint32_t lo = s->sliding_window != 0 && hi > s->sliding_window ? hi - s->sliding_window : 0;
    uint32_t kv_head = h / (s->n_heads / s->n_kv_heads);
    const float *q = (float *)fake_in(f, OP_ATTENTION, 0) + ((size_t)r * s->n_heads + h) * K;
    double *weight = malloc(hi * sizeof *weight), max = -INFINITY, sum = 0;
    for (uint32_t p = lo; p < hi; p++) {
        weight[p] = 0;
        for (uint32_t i = 0; i < K; i++)
            weight[p] += (double)q[i] * (double)convert_load(kv, kv_at(f, slot, p, 0, kv_head), i);
        weight[p] /= sqrt(K);
        if (weight[p] > max) max = weight[p];
    }
    memset(o, 0, row->v_width * sizeof *o);
    for (uint32_t p = lo; p < hi; p++) {
        double e = exp(weight[p] - max);
        sum += e;
        for (uint32_t i = 0; i < row->v_width; i++)
            o[i] += e * (double)convert_load(kv, kv_at(f, slot, p, 1, kv_head), i);
    }
    for (uint32_t i = 0; i < row->v_width; i++) o[i] /= sum;
    free(weight);
}

static void attention_case(struct fake *f, const struct cpu_isa *isa) {
    const struct model_spec *s = &f->config.spec;
    uint32_t V = f->config.kv.v_width;
    mixed_rows(f);
    fake_run(f, isa, OP_ATTENTION);
    const float *o = fake_out(f, OP_ATTENTION, 0);
    double *want = malloc(V * sizeof *want);
    for (uint32_t r = 0; r < f->batch.rows.n_rows; r++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            attention_head(f, r, h, want);
            for (uint32_t i = 0; i < V; i++)
                check((double)o[(r * s->n_heads + h) * V + i], want[i], 2e-5, "attention", r, h);
        }
    free(want);
}

static void test_attention(void **state) {
    (void)state;
    each_shape(attention_case);
}

/* Split and combined, in any slices, the bits are those of the whole. */
static void split_case(struct fake *f, const struct cpu_isa *isa) {
    mixed_rows(f);
    size_t bytes = (size_t)f->batch.rows.n_rows * f->config.spec.n_heads * f->config.kv.v_width * 4;
    fake_run(f, isa, OP_ATTENTION);
    for (uint32_t slices = 1; slices < 60; slices += 19) {
        memset(fake_out(f, OP_ATTENTION_MERGE, 0), 0xff, bytes);
        memset(fake_out(f, OP_ATTENTION_SPLIT, 0), 0xff,
               f->program->tensors[f->program->ops[OP_ATTENTION_SPLIT].out[0]].bytes);
        fake_run_cut(f, isa, OP_ATTENTION_SPLIT, 0, slices);
        fake_run_cut(f, isa, OP_ATTENTION_MERGE, slices % 5 + 1, 2);
        assert_memory_equal(fake_out(f, OP_ATTENTION_MERGE, 0), fake_out(f, OP_ATTENTION, 0),
                            bytes);
    }
}

static void test_split(void **state) {
    (void)state;
    each_shape(split_case);
}

/* Rows of the cache that no model's QKV makes yet: keys wider than values, narrower ones, values
 * inside the keys as latent attention has them. */
static void test_kv_rows(void **state) {
    (void)state;
    static const struct kv_row rows[] = {
        {.heads = 2, .k_width = 48, .v_width = 32, .dtype = DTYPE_BF16},
        {.heads = 3, .k_width = 18, .v_width = 70, .dtype = DTYPE_F32},
        {.heads = 1, .k_width = 576, .v_width = 512, .v_in_k = 1, .dtype = DTYPE_BF16},
        {.heads = 2, .k_width = 40, .v_width = 33, .v_in_k = 1, .dtype = DTYPE_F16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fake_config c = config_of(DTYPE_F32, DTYPE_F32, 6, rows[i].heads, 16);
        c.kv = rows[i];
        each_isa(&c, attention_case);
        each_isa(&c, split_case);
    }
}

/* ---- bits ---- */

/* Runs the operator whole, then cut into tasks, and compares output `slot`. */
static void cut_same(struct fake *f, const struct cpu_isa *isa, enum op_kind kind, int slot,
                     uint32_t rows, uint32_t units) {
    size_t bytes = f->program->tensors[f->program->ops[kind].out[slot]].bytes;
    void *whole = malloc(bytes), *out = fake_out(f, kind, slot);
    fake_run(f, isa, kind);
    memcpy(whole, out, bytes);
    uint32_t n_rows = kind == OP_LM_HEAD ? f->batch.rows.n_logit_rows : f->batch.rows.n_rows;
    size_t written = bytes / f->program->ops[kind].n_rows * n_rows;
    if (kind != OP_QKV) memset(out, 0xff, written);
    fake_run_cut(f, isa, kind, rows, units);
    assert_memory_equal(out, whole, bytes);
    free(whole);
}

static void cut_case(struct fake *f, const struct cpu_isa *isa) {
    mixed_rows(f);
    for (uint32_t n = 1; n < 9; n += 3) {
        cut_same(f, isa, OP_QKV, 0, n, 1);
        cut_same(f, isa, OP_QKV, 1, n + 1, n);
        cut_same(f, isa, OP_ATTENTION, 0, 0, n * 3);
        cut_same(f, isa, OP_LINEAR, 0, n, 2 * n + 3);
        cut_same(f, isa, OP_GATED_MLP, 0, n + 1, 5 * n);
        cut_same(f, isa, OP_LM_HEAD, 0, n, 1);
        cut_same(f, isa, OP_LM_HEAD, 1, n, 2);
    }
}

static void test_cuts(void **state) {
    (void)state;
    each_shape(cut_case);
}

static void copy_row(struct fake *f, enum op_kind kind, int slot, uint32_t from, uint32_t to) {
    const struct prog_tensor *t = &f->program->tensors[f->program->ops[kind].in[slot]];
    size_t row = t->bytes / t->shape[0];
    char *base = fake_in(f, kind, slot);
    memcpy(base + to * row, base + from * row, row);
}

/* A row's results do not depend on which rows are beside it: the rows of one iteration, one by one
 * in an iteration each (the chunk of a prompt too: later rows see the keys of earlier ones). */
static void company_case(struct fake *f, const struct cpu_isa *isa) {
    const struct model_spec *s = &f->config.spec;
    size_t row_bytes = (size_t)s->n_heads * s->head_dim * sizeof(float);
    size_t cache_bytes = f->program->tensors[f->program->ops[OP_QKV].out[1]].bytes;
    mixed_rows(f);
    uint32_t n = f->batch.rows.n_rows;
    void *before = malloc(cache_bytes), *after = malloc(cache_bytes), *o = malloc(n * row_bytes);
    memcpy(before, fake_out(f, OP_QKV, 1), cache_bytes);
    fake_run(f, isa, OP_QKV);
    fake_run(f, isa, OP_ATTENTION);
    memcpy(after, fake_out(f, OP_QKV, 1), cache_bytes);
    memcpy(o, fake_out(f, OP_ATTENTION, 0), n * row_bytes);
    memcpy(fake_out(f, OP_QKV, 1), before, cache_bytes);
    int32_t slot[FAKE_MAX_ROWS], position[FAKE_MAX_ROWS];
    memcpy(slot, f->slot, sizeof slot);
    memcpy(position, f->position, sizeof position);
    for (uint32_t r = 0; r < n; r++) {
        f->batch.rows.n_rows = 0;
        fake_row(f, 0, slot[r], position[r]);
        copy_row(f, OP_QKV, QKV_X, r, 0);
        fake_run(f, isa, OP_QKV);
        fake_run(f, isa, OP_ATTENTION);
        assert_memory_equal(fake_out(f, OP_ATTENTION, 0), (char *)o + r * row_bytes, row_bytes);
    }
    assert_memory_equal(fake_out(f, OP_QKV, 1), after, cache_bytes);
    free(before), free(after), free(o);
}

static void test_company(void **state) {
    (void)state;
    each_shape(company_case);
}

/* More rows than a block of packed activations holds. */
static void long_case(struct fake *f, const struct cpu_isa *isa) {
    f->batch.rows.n_rows = 0;
    for (int32_t p = 0; p < 250; p++) fake_row(f, 0, 1, p);
    cut_same(f, isa, OP_GATED_MLP, 0, 31, 64);
    cut_same(f, isa, OP_LINEAR, 0, 100, 33);
    cut_same(f, isa, OP_QKV, 0, 41, 2);
}

static void test_long(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct fake_config c = config_of((enum dtype)i, DTYPE_BF16, 4, 2, 16);
        c.n_rows = 250;
        each_isa(&c, long_case);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),     cmocka_unit_test(test_linear),
        cmocka_unit_test(test_mlp),       cmocka_unit_test(test_lm_head),
        cmocka_unit_test(test_router),    cmocka_unit_test(test_qkv),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_split),
        cmocka_unit_test(test_kv_rows),   cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_company),   cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
