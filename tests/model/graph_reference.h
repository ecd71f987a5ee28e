/* graph_reference.h - runs a kernel graph in the plainest way, for one request from position 0.
 *
 * float32 activations, double sums, no KV cache layout, no tiles: what every operator of op.def
 * means, and what the golden cases are compared with before any kernel exists. Row t of the graph
 * is token t of the request; the last n_logit_rows rows want logits.
 */
#ifndef TESTS_GRAPH_REFERENCE_H
#define TESTS_GRAPH_REFERENCE_H

#include "graph/kernel_graph.h"
#include "model/weights.h"

#include <math.h>
#include <stdlib.h>

struct reference {
    const struct kgraph *g;
    struct weights *w;
    size_t *weight_of; /* [n_tensors] index of a weight in w */
    float **values;    /* [n_tensors]; a KV tensor: [T][2][n_kv_heads][head_dim] */
    const int32_t *tokens;
    uint32_t n_prompt; /* the first of them */
};

/* Weights as float32, whatever the graph wants: the reference does not round them again. */
static inline int reference_init(struct diag *d, struct reference *r, const struct kgraph *g,
                                 const struct safetensors *files, const int32_t *tokens) {
    struct weight_want *want = calloc(g->tensors.n, sizeof *want);
    *r = (struct reference){.g = g, .tokens = tokens};
    r->weight_of = calloc(g->tensors.n, sizeof *r->weight_of);
    r->values = calloc(g->tensors.n, sizeof *r->values);
    size_t n = 0;
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct tensor *t = &g->tensors.items[i];
        if (t->role == TENSOR_WEIGHT) {
            r->weight_of[i] = n;
            want[n++] = (struct weight_want){.name = t->name,
                                             .dtype = DTYPE_F32,
                                             .n_dims = t->n_dims,
                                             .rows = t->shape[0],
                                             .cols = t->n_dims == 2 ? t->shape[1] : 0};
            continue;
        }
        uint64_t elements = t->role == TENSOR_STATE ? t->shape[0] * t->shape[1] * g->spec.head_dim
                                                    : tensor_elements(t);
        r->values[i] = calloc(elements, sizeof(float));
    }
    int rc = weights_load(d, files, want, n, NULL, &r->w);
    free(want);
    return rc;
}

static inline void reference_fini(struct reference *r) {
    for (size_t i = 0; i < r->g->tensors.n; i++) free(r->values[i]);
    free(r->values);
    free(r->weight_of);
    weights_free(r->w);
}

static inline float *reference_value(const struct reference *r, int32_t tensor) {
    return r->values[tensor];
}

static inline const float *reference_weight(const struct reference *r, int32_t tensor) {
    return tensor == NO_TENSOR ? NULL : weights_at(r->w, r->weight_of[tensor]);
}

static inline void reference_rmsnorm(const float *x, const float *norm, uint64_t n, float eps,
                                     float *out) {
    double squares = 0;
    for (uint64_t i = 0; i < n; i++) squares += (double)x[i] * x[i];
    double scale = 1 / sqrt(squares / (double)n + eps);
    for (uint64_t i = 0; i < n; i++) out[i] = (float)(x[i] * scale * norm[i]);
}

/* y[rows] = w[rows, cols] x + bias */
static inline void reference_matvec(const float *w, const float *bias, const float *x,
                                    uint64_t rows, uint64_t cols, float *y) {
    for (uint64_t i = 0; i < rows; i++) {
        double sum = bias != NULL ? bias[i] : 0;
        for (uint64_t k = 0; k < cols; k++) sum += (double)w[i * cols + k] * x[k];
        y[i] = (float)sum;
    }
}

/* Dynamic NTK: theta as if the context ended at the position. */
static inline double reference_theta(const struct model_spec *s, uint32_t position) {
    if (s->rope_kind != ROPE_DYNAMIC || position < s->rope_original_max) return s->rope_theta;
    double length = (double)s->rope_factor * (position + 1) / s->rope_original_max;
    return s->rope_theta * pow(length - s->rope_factor + 1, s->head_dim / (s->head_dim - 2.0));
}

/* Angle per position of dimension pair i. Llama 3 divides the frequencies of long waves by the
 * factor, leaves short ones, and blends between (Llama 3.1 model code). */
static inline double reference_frequency(const struct reference *r, uint32_t i, uint32_t position) {
    const struct model_spec *s = &r->g->spec;
    double f = pow(reference_theta(s, position), -2.0 * i / s->head_dim);
    bool longer = s->rope_original_max > 0 &&
                  (r->n_prompt > s->rope_original_max || position >= s->rope_original_max);
    if (s->rope_kind == ROPE_GIVEN) return s->rope_given[longer][i];
    if (s->rope_kind == ROPE_LINEAR) return f / s->rope_factor;
    if (s->rope_kind != ROPE_LLAMA3) return f;
    double turns = s->rope_original_max * f / (2 * 3.14159265358979323846);
    double keep =
        (turns - s->rope_low_freq_factor) / (s->rope_high_freq_factor - s->rope_low_freq_factor);
    keep = fmin(fmax(keep, 0), 1);
    return (1 - keep) * f / s->rope_factor + keep * f;
}

/* One head of q or k: dimension i turns with dimension i + D/2. */
static inline void reference_rope(const struct reference *r, uint32_t position, float *head) {
    const struct model_spec *s = &r->g->spec;
    const double scale = s->rope_kind == ROPE_GIVEN ? s->rope_scale : 1;
    uint32_t half = s->head_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = position * reference_frequency(r, i, position);
        double c = cos(angle) * scale, n = sin(angle) * scale;
        double a = head[i], b = head[i + half];
        head[i] = (float)(a * c - b * n);
        head[i + half] = (float)(b * c + a * n);
    }
}

static inline void reference_qkv(const struct reference *r, const struct kop *op, uint32_t t) {
    const struct model_spec *s = &r->g->spec;
    const uint64_t H = s->hidden, D = s->head_dim, Q = s->n_heads * D, KV = s->n_kv_heads * D;
    float *x = calloc(H, sizeof *x), *q = reference_value(r, op->out[QKV_OUT_Q]) + t * Q;
    float *k = reference_value(r, op->out[QKV_OUT_KV]) + t * 2 * KV, *v = k + KV;
    reference_rmsnorm(reference_value(r, op->in[QKV_X]) + t * H,
                      reference_weight(r, op->in[QKV_NORM]), H, s->rms_eps, x);
    reference_matvec(reference_weight(r, op->in[QKV_WQ]), reference_weight(r, op->in[QKV_BQ]), x, Q,
                     H, q);
    reference_matvec(reference_weight(r, op->in[QKV_WK]), reference_weight(r, op->in[QKV_BK]), x,
                     KV, H, k);
    reference_matvec(reference_weight(r, op->in[QKV_WV]), reference_weight(r, op->in[QKV_BV]), x,
                     KV, H, v);
    const float *q_norm = reference_weight(r, op->in[QKV_Q_NORM]);
    const float *k_norm = reference_weight(r, op->in[QKV_K_NORM]);
    for (uint32_t h = 0; h < s->n_heads + s->n_kv_heads; h++) {
        bool is_q = h < s->n_heads;
        float *head = is_q ? q + h * D : k + (h - s->n_heads) * D;
        const float *norm = is_q ? q_norm : k_norm;
        if (norm != NULL) reference_rmsnorm(head, norm, D, s->rms_eps, head);
        reference_rope(r, t, head);
    }
    free(x);
}

static inline void reference_attention(const struct reference *r, const struct kop *op,
                                       uint32_t t) {
    const struct model_spec *s = &r->g->spec;
    const uint64_t D = s->head_dim, Q = s->n_heads * D, KV = s->n_kv_heads * D;
    const float *kv = reference_value(r, op->in[ATTENTION_KV]);
    uint32_t first =
        s->sliding_window > 0 && t + 1 > s->sliding_window ? t + 1 - s->sliding_window : 0;
    double *p = calloc(t + 1, sizeof *p);
    for (uint32_t h = 0; h < s->n_heads; h++) {
        const float *q = reference_value(r, op->in[ATTENTION_Q]) + t * Q + h * D;
        float *o = reference_value(r, op->out[0]) + t * Q + h * D;
        uint64_t head = (uint64_t)(h / (s->n_heads / s->n_kv_heads)) * D;
        double max = -INFINITY, sum = 0;
        for (uint32_t j = first; j <= t; j++) {
            p[j] = 0;
            for (uint64_t i = 0; i < D; i++) p[j] += (double)q[i] * kv[j * 2 * KV + head + i];
            p[j] /= sqrt((double)D);
            max = fmax(max, p[j]);
        }
        for (uint32_t j = first; j <= t; j++) sum += p[j] = exp(p[j] - max);
        for (uint64_t i = 0; i < D; i++) {
            double acc = 0;
            for (uint32_t j = first; j <= t; j++) acc += p[j] * kv[j * 2 * KV + KV + head + i];
            o[i] = (float)(acc / sum);
        }
    }
    free(p);
}

static inline void reference_linear(const struct reference *r, const struct kop *op, uint32_t t) {
    const uint64_t *shape = r->g->tensors.items[op->in[LINEAR_W]].shape;
    float *y = reference_value(r, op->out[0]) + t * shape[0];
    reference_matvec(reference_weight(r, op->in[LINEAR_W]),
                     reference_weight(r, op->in[LINEAR_BIAS]),
                     reference_value(r, op->in[LINEAR_A]) + t * shape[1], shape[0], shape[1], y);
    if (op->in[LINEAR_RESIDUAL] == NO_TENSOR) return;
    const float *x = reference_value(r, op->in[LINEAR_RESIDUAL]) + t * shape[0];
    for (uint64_t i = 0; i < shape[0]; i++) y[i] += x[i];
}

static inline void reference_mlp(const struct reference *r, const struct kop *op, uint32_t t) {
    const struct model_spec *s = &r->g->spec;
    const uint64_t H = s->hidden, I = s->intermediate;
    float *x = calloc(H, sizeof *x), *u = calloc(I, sizeof *u);
    float *h = reference_value(r, op->out[0]) + t * I;
    reference_rmsnorm(reference_value(r, op->in[MLP_X]) + t * H,
                      reference_weight(r, op->in[MLP_NORM]), H, s->rms_eps, x);
    reference_matvec(reference_weight(r, op->in[MLP_WG]), reference_weight(r, op->in[MLP_BG]), x, I,
                     H, h);
    reference_matvec(reference_weight(r, op->in[MLP_WU]), reference_weight(r, op->in[MLP_BU]), x, I,
                     H, u);
    for (uint64_t i = 0; i < I; i++) h[i] = (float)(h[i] / (1 + exp(-(double)h[i])) * u[i]);
    free(x);
    free(u);
}

static inline void reference_lm_head(const struct reference *r, const struct kop *op, uint32_t l) {
    const struct model_spec *s = &r->g->spec;
    uint32_t t = r->g->n_rows - r->g->n_logit_rows + l;
    float *x = calloc(s->hidden, sizeof *x);
    reference_rmsnorm(reference_value(r, op->in[LM_X]) + (uint64_t)t * s->hidden,
                      reference_weight(r, op->in[LM_NORM]), s->hidden, s->rms_eps, x);
    reference_matvec(reference_weight(r, op->in[LM_W]), NULL, x, s->vocab, s->hidden,
                     reference_value(r, op->out[LM_OUT_LOGITS]) + (uint64_t)l * s->vocab);
    free(x);
}

/* Runs all operators but SAMPLE; returns the logits, [n_logit_rows, vocab]. */
static inline const float *reference_run(const struct reference *r) {
    const struct kgraph *g = r->g;
    const float *logits = NULL;
    for (size_t i = 0; i < g->ops.n; i++) {
        const struct kop *op = &g->ops.items[i];
        uint32_t rows = kop_rows(op), H = g->spec.hidden;
        for (uint32_t t = 0; t < rows; t++) {
            switch (op->kind) {
            case OP_EMBED:
                for (uint32_t c = 0; c < H; c++)
                    reference_value(r, op->out[0])[(uint64_t)t * H + c] =
                        reference_weight(r, op->in[EMBED_TABLE])[(uint64_t)r->tokens[t] * H + c];
                break;
            case OP_QKV: reference_qkv(r, op, t); break;
            case OP_ATTENTION: reference_attention(r, op, t); break;
            case OP_LINEAR: reference_linear(r, op, t); break;
            case OP_GATED_MLP: reference_mlp(r, op, t); break;
            case OP_LM_HEAD: reference_lm_head(r, op, t); break;
            case OP_SAMPLE: break;
            default: abort(); /* the split attention: the kernels' own tests have it */
            }
        }
        if (op->kind == OP_LM_HEAD) logits = reference_value(r, op->out[LM_OUT_LOGITS]);
    }
    return logits;
}

#endif
