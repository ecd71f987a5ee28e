/* reference.c - see reference.h. Sums are plain loops in the order of the formula. */
#include "reference/operand.h"
#include "base/checked.h"
#include "kernels/sampling_rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t n, size_t size) {
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL) abort();
    return p;
}

int reference_init(struct diag *d, struct reference *r, const struct kgraph *g, uint32_t n_slots) {
    *r = (struct reference){.g = g, .n_slots = n_slots};
    r->tensors = calloc(g->tensors.n + 1, sizeof *r->tensors);
    r->requests = calloc(n_slots + 1, sizeof *r->requests);
    if (r->tensors == NULL || r->requests == NULL)
        return fail_nomem(d, g->tensors.n * sizeof *r->tensors, "the reference");
    return QN_OK;
}

void reference_fini(struct reference *r) {
    for (size_t i = 0; r->tensors != NULL && i < r->g->tensors.n; i++) free(r->tensors[i].at);
    free(r->tensors);
    free(r->requests);
    *r = (struct reference){0};
}

struct reference_tensor *reference_make(struct reference *r, int32_t tensor, uint64_t rows,
                                        uint64_t cols) {
    struct reference_tensor *t = &r->tensors[tensor];
    const struct tensor *of = &r->g->tensors.items[tensor];
    uint64_t inner = 1;
    for (int i = 1; i < of->n_dims; i++) inner *= of->shape[i];
    t->rows = rows != 0 ? rows : of->shape[0];
    t->cols = cols != 0 ? cols : inner;
    if (of->role == TENSOR_STATE) {
        t->rows = r->first_row[r->n_slots];
        t->cols = of->shape[1] * r->g->attrs.D; /* heads of keys and of values */
    }
    free(t->at);
    t->at = take(t->rows * t->cols, sizeof *t->at);
    for (uint64_t i = 0; i < t->rows * t->cols; i++) t->at[i] = NAN;
    return t;
}

/* ---- arithmetic ---- */

static uint64_t group_of(const struct op_attrs *a) {
    return a->heads / a->kv;
}

static double inverse_rms(double squares, uint64_t n, double eps) {
    return 1 / sqrt(squares / (double)n + eps);
}

static void rmsnorm(const double *x, const double *norm, uint64_t n, double eps, double *out) {
    const double scale = inverse_rms(operand_dot(x, x, n), n, eps);
    for (uint64_t i = 0; i < n; i++) out[i] = x[i] * scale * norm[i];
}

/* What a matrix product takes of row `row` of the residual stream: rmsnorm(x) * norm; or x is
 * normed but for the factor, which the sums of squares give. */
static double *normed_row(const struct reference *r, const struct kop *op, int x_slot,
                          int norm_slot, int squares_slot, uint64_t x_row, uint64_t squares_row) {
    const struct reference_tensor *x = operand_in(r, op, x_slot);
    const struct reference_tensor *squares =
        squares_slot < 0 ? NULL : operand_in(r, op, squares_slot);
    const double eps = (double)op->attrs.eps;
    double *out = take(x->cols, sizeof *out), sum = 0;
    if (squares == NULL) {
        rmsnorm(operand_row(x, x_row), operand_in(r, op, norm_slot)->at, x->cols, eps, out);
        return out;
    }
    for (uint64_t i = 0; i < squares->cols; i++) sum += operand_row(squares, squares_row)[i];
    const double scale = inverse_rms(sum, x->cols, eps);
    for (uint64_t i = 0; i < x->cols; i++) out[i] = operand_row(x, x_row)[i] * scale;
    return out;
}

/* Dynamic NTK: theta as if the context ended at the position. */
static double theta_at(const struct model_spec *s, uint32_t position) {
    const double factor = (double)s->rope_factor, theta = (double)s->rope_theta;
    if (s->rope_kind != ROPE_DYNAMIC || position < s->rope_original_max) return theta;
    const double length = factor * (position + 1) / s->rope_original_max;
    return theta * pow(length - factor + 1, spec_rope_dim(s) / (spec_rope_dim(s) - 2.0));
}

/* Angle per position of dimension pair i, at a position of a request whose prompt has n_prompt
 * tokens. Llama 3 divides the frequencies of long waves by the factor, leaves short ones, and
 * blends between (Llama 3.1 model code). */
static double frequency(const struct model_spec *s, uint32_t i, uint32_t position,
                        uint32_t n_prompt) {
    const bool longer = s->rope_original_max > 0 &&
                        (n_prompt > s->rope_original_max || position >= s->rope_original_max);
    const double f = pow(theta_at(s, position), -2.0 * i / spec_rope_dim(s));
    if (s->rope_kind == ROPE_GIVEN) return (double)s->rope_given[longer][i];
    if (s->rope_kind == ROPE_LINEAR) return f / (double)s->rope_factor;
    if (s->rope_kind != ROPE_LLAMA3) return f;
    const double low = (double)s->rope_low_freq_factor, high = (double)s->rope_high_freq_factor;
    const double turns = s->rope_original_max * f / (2 * 3.14159265358979323846);
    const double keep = fmin(fmax((turns - low) / (high - low), 0), 1);
    return (1 - keep) * f / (double)s->rope_factor + keep * f;
}

/* n elements of token row t, in place: dimension i turns with i + n / 2. */
static void turn(const struct reference *r, uint32_t n, uint32_t t, double *head) {
    const struct model_spec *s = &r->g->spec;
    const uint32_t half = n / 2, position = (uint32_t)r->position[t];
    const double scale = s->rope_kind == ROPE_GIVEN ? (double)s->rope_scale : 1;
    for (uint32_t i = 0; i < half; i++) {
        const double x = head[i], y = head[i + half];
        const double angle = position * frequency(s, i, position, r->requests[r->slot[t]].n_prompt);
        head[i] = scale * (x * cos(angle) - y * sin(angle));
        head[i + half] = scale * (y * cos(angle) + x * sin(angle));
    }
}

/* One head of q or k of token row t, in place: normed if it has a norm, and turned. */
static void turn_head(const struct reference *r, const struct op_attrs *a,
                      const struct reference_tensor *norm, uint32_t t, double *head) {
    if (norm != NULL) rmsnorm(head, norm->at, a->D, (double)a->eps, head);
    turn(r, a->D, t, head);
}

/* ---- the residual stream ---- */

void reference_make_stream(struct reference *r, const struct kop *op, uint64_t columns) {
    operand_make(r, op, STREAM_X, columns);
    if (op->out[STREAM_NORMED] == NO_TENSOR) return;
    operand_make(r, op, STREAM_NORMED, columns);
    operand_make(r, op, STREAM_SQUARES, r->g->tensors.items[op->out[STREAM_SQUARES]].shape[1]);
}

void reference_finish_stream(const struct reference *r, const struct kop *op, uint64_t row,
                             const struct reference_tensor *next) {
    const struct reference_tensor *x = &r->tensors[op->out[STREAM_X]];
    if (op->out[STREAM_NORMED] == NO_TENSOR) return;
    const struct reference_tensor *squares = &r->tensors[op->out[STREAM_SQUARES]];
    const uint64_t columns = squares->cols == 1 ? x->cols : (uint64_t)SQUARES_COLUMNS;
    double *sums = operand_out_row(r, op, STREAM_SQUARES, row);
    for (uint64_t i = 0; i < squares->cols; i++) sums[i] = 0;
    for (uint64_t c = 0; c < x->cols; c++) {
        const double v = operand_row(x, row)[c];
        operand_out_row(r, op, STREAM_NORMED, row)[c] = v * next->at[c];
        sums[c / columns] += v * v;
    }
}

void reference_op_embed(struct reference *r, const struct kop *op) {
    const struct reference_tensor *table = operand_in(r, op, EMBED_TABLE);
    reference_make_stream(r, op, table->cols);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        memcpy(operand_out_row(r, op, STREAM_X, t), operand_row(table, (uint64_t)r->token[t]),
               table->cols * sizeof(double));
        reference_finish_stream(r, op, t, operand_in(r, op, EMBED_NEXT));
    }
}

void reference_op_linear(struct reference *r, const struct kop *op) {
    const struct reference_tensor *w = operand_in(r, op, LINEAR_W);
    const struct reference_tensor *residual = operand_in(r, op, LINEAR_RESIDUAL);
    reference_make_stream(r, op, w->rows);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        for (uint64_t n = 0; n < w->rows; n++)
            operand_out_row(r, op, STREAM_X, t)[n] =
                operand_dot(operand_row(operand_in(r, op, LINEAR_A), t), operand_row(w, n),
                            w->cols) +
                operand_element(operand_in(r, op, LINEAR_BIAS), n) +
                (residual == NULL ? 0 : operand_row(residual, t)[n]);
        reference_finish_stream(r, op, t, operand_in(r, op, LINEAR_NEXT));
    }
}

/* Column i * N + n is the i-th of the partial sums that have any columns (graph/partials.h). */
void reference_op_linear_splitk(struct reference *r, const struct kop *op) {
    const struct reference_tensor *a = operand_in(r, op, PARTS_A), *w = operand_in(r, op, PARTS_W);
    const uint32_t n_tiles = partial_tiles((uint32_t)w->cols);
    const uint64_t n_parts = partial_count(n_tiles);
    operand_make(r, op, 0, n_parts * w->rows);
    for (uint32_t t = 0; t < r->n_rows; t++)
        for (uint64_t i = 0; i < n_parts * w->rows; i++) {
            const uint32_t partial = partial_nth(n_tiles, (uint32_t)(i / w->rows));
            const uint64_t n = i % w->rows;
            const uint64_t first = (uint64_t)partial_first(n_tiles, partial) * PARTIAL_TILE;
            const uint64_t end = (uint64_t)partial_first(n_tiles, partial + 1) * PARTIAL_TILE;
            double sum = 0;
            for (uint64_t k = first; k < MIN(end, w->cols); k++)
                sum += operand_row(a, t)[k] * operand_row(w, n)[k];
            operand_out_row(r, op, 0, t)[i] = sum;
        }
}

void reference_op_splitk_sum(struct reference *r, const struct kop *op) {
    const struct reference_tensor *parts = operand_in(r, op, SUM_PARTS);
    const uint64_t hidden = operand_in(r, op, SUM_RESIDUAL)->cols;
    reference_make_stream(r, op, hidden);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        for (uint64_t n = 0; n < hidden; n++) {
            double sum = operand_element(operand_in(r, op, SUM_BIAS), n) +
                         operand_row(operand_in(r, op, SUM_RESIDUAL), t)[n];
            for (uint64_t i = n; i < parts->cols; i += hidden) sum += operand_row(parts, t)[i];
            operand_out_row(r, op, STREAM_X, t)[n] = sum;
        }
        reference_finish_stream(r, op, t, operand_in(r, op, SUM_NEXT));
    }
}

void reference_op_sum_squares(struct reference *r, const struct kop *op) {
    const struct reference_tensor *squares = operand_in(r, op, 0);
    operand_make(r, op, 0, 1);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        double sum = 0;
        for (uint64_t i = 0; i < squares->cols; i++) sum += operand_row(squares, t)[i];
        *operand_out_row(r, op, 0, t) = sum;
    }
}

/* ---- packed copies ---- */

void reference_op_pack(struct reference *r, const struct kop *op) {
    const struct reference_tensor *x = operand_in(r, op, PACK_X);
    operand_make(r, op, 0, x->cols);
    for (uint32_t t = 0; t < r->n_rows; t++)
        memcpy(operand_out_row(r, op, 0, t), operand_row(x, t), x->cols * sizeof(double));
}

void reference_op_pack_logits(struct reference *r, const struct kop *op) {
    const struct reference_tensor *x = operand_in(r, op, PACK_X);
    operand_make(r, op, 0, x->cols);
    for (uint32_t l = 0; l < r->n_logit_rows; l++)
        memcpy(operand_out_row(r, op, 0, l), operand_row(x, (uint64_t)r->logit_row[l]),
               x->cols * sizeof(double));
}

/* ---- heads ---- */

/* y[n] of a projection of the normed row x; what follows it. */
static double *project(const struct reference *r, const struct kop *op, const double *x, int w_slot,
                       int bias_slot, double *y) {
    const struct reference_tensor *w = operand_in(r, op, w_slot);
    for (uint64_t n = 0; n < w->rows; n++)
        *y++ = operand_dot(x, operand_row(w, n), w->cols) +
               operand_element(operand_in(r, op, bias_slot), n);
    return y;
}

static uint64_t qkv_columns(const struct op_attrs *a) {
    return (uint64_t)(a->heads + 2 * a->kv) * a->D;
}

/* Query heads of row t of the projections into q; its keys and values into the cache. */
static void make_heads(const struct reference *r, const struct op_attrs *a, uint32_t t,
                       const double *qkv, const struct reference_tensor *q_norm,
                       const struct reference_tensor *k_norm, double *q,
                       const struct reference_tensor *kv) {
    const uint64_t D = a->D, Q = a->heads * D, KV = a->kv * D;
    double *k =
        kv->at + reference_kv_row(r, (uint32_t)r->slot[t], (uint32_t)r->position[t]) * kv->cols;
    memcpy(q, qkv, Q * sizeof *q);
    memcpy(k, qkv + Q, 2 * KV * sizeof *k);
    for (uint32_t h = 0; h < a->heads; h++) turn_head(r, a, q_norm, t, q + h * D);
    for (uint32_t h = 0; h < a->kv; h++) turn_head(r, a, k_norm, t, k + h * D);
}

void reference_op_qkv(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    double *qkv = take(qkv_columns(a), sizeof *qkv);
    operand_make(r, op, QKV_OUT_Q, (uint64_t)a->heads * a->D);
    operand_make(r, op, QKV_OUT_KV, 0);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        double *x = normed_row(r, op, QKV_X, QKV_NORM, -1, t, t), *y = qkv;
        for (int m = 0; m < 3; m++) y = project(r, op, x, QKV_WQ + m, QKV_BQ + m, y);
        make_heads(r, a, t, qkv, operand_in(r, op, QKV_Q_NORM), operand_in(r, op, QKV_K_NORM),
                   operand_out_row(r, op, QKV_OUT_Q, t), &r->tensors[op->out[QKV_OUT_KV]]);
        free(x);
    }
    free(qkv);
}

void reference_op_qkv_linear(struct reference *r, const struct kop *op) {
    operand_make(r, op, 0, operand_in(r, op, QKV_LINEAR_W)->rows);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        double *x = normed_row(r, op, QKV_LINEAR_X, QKV_LINEAR_NORM, QKV_LINEAR_SQUARES, t, t);
        project(r, op, x, QKV_LINEAR_W, QKV_LINEAR_BIAS, operand_out_row(r, op, 0, t));
        free(x);
    }
}

void reference_op_qkv_fused(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    double *qkv = take(qkv_columns(a), sizeof *qkv);
    operand_make(r, op, QKV_OUT_Q, (uint64_t)a->heads * a->D);
    operand_make(r, op, QKV_OUT_KV, 0);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        double *x = normed_row(r, op, FUSED_X, -1, FUSED_SQUARES, t, t);
        project(r, op, x, FUSED_W, FUSED_BIAS, qkv);
        make_heads(r, a, t, qkv, operand_in(r, op, FUSED_Q_NORM), operand_in(r, op, FUSED_K_NORM),
                   operand_out_row(r, op, QKV_OUT_Q, t), &r->tensors[op->out[QKV_OUT_KV]]);
        free(x);
    }
    free(qkv);
}

void reference_op_qkv_heads(struct reference *r, const struct kop *op) {
    operand_make(r, op, QKV_OUT_Q, (uint64_t)op->attrs.heads * op->attrs.D);
    operand_make(r, op, QKV_OUT_KV, 0);
    for (uint32_t t = 0; t < r->n_rows; t++)
        make_heads(r, &op->attrs, t, operand_row(operand_in(r, op, HEADS_QKV), t),
                   operand_in(r, op, HEADS_Q_NORM), operand_in(r, op, HEADS_K_NORM),
                   operand_out_row(r, op, QKV_OUT_Q, t), &r->tensors[op->out[QKV_OUT_KV]]);
}

/* ---- latent attention ---- */

void reference_op_latent_heads(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    const struct reference_tensor *w = operand_in(r, op, LATENT_W);
    const uint64_t N = w->cols, in = N + a->DR, width = a->DV + a->DR;
    operand_make(r, op, LATENT_OUT_Q, a->heads * width);
    operand_make(r, op, LATENT_OUT_KV, 0);
    const struct reference_tensor *kv = &r->tensors[op->out[LATENT_OUT_KV]];
    for (uint32_t t = 0; t < r->n_rows; t++) {
        for (uint32_t h = 0; h < a->heads; h++) {
            const double *q = operand_row(operand_in(r, op, LATENT_RAW), t) + h * in;
            double *to = operand_out_row(r, op, LATENT_OUT_Q, t) + h * width;
            for (uint64_t i = 0; i < a->DV; i++)
                to[i] = operand_dot(q, operand_row(w, h * a->DV + i), N);
            memcpy(to + a->DV, q + N, a->DR * sizeof *to);
            turn(r, a->DR, t, to + a->DV);
        }
        double *row =
            kv->at + reference_kv_row(r, (uint32_t)r->slot[t], (uint32_t)r->position[t]) * kv->cols;
        const struct reference_tensor *c = operand_in(r, op, LATENT_C);
        memcpy(row, operand_row(c, t) + c->cols - width, width * sizeof *row);
        rmsnorm(row, operand_in(r, op, LATENT_C_NORM)->at, a->DV, (double)a->eps, row);
        turn(r, a->DR, t, row + a->DV);
    }
}

void reference_op_latent_values(struct reference *r, const struct kop *op) {
    const struct reference_tensor *w = operand_in(r, op, VALUES_W);
    const uint64_t heads = op->attrs.heads, N = w->rows / heads;
    operand_make(r, op, 0, w->rows);
    for (uint32_t t = 0; t < r->n_rows; t++)
        for (uint64_t n = 0; n < w->rows; n++)
            operand_out_row(r, op, 0, t)[n] =
                operand_dot(operand_row(operand_in(r, op, VALUES_A), t) + n / N * w->cols,
                            operand_row(w, n), w->cols);
}

/* ---- attention ---- */

/* Positions [lo, hi) that a token row sees. */
static void seen_by(const struct reference *r, uint32_t window, uint32_t t, uint32_t *lo,
                    uint32_t *hi) {
    *hi = (uint32_t)r->position[t] + 1;
    *lo = window > 0 && *hi > window ? *hi - window : 0;
}

/* Where the value of a KV head lies in a row of the cache: latents' are the keys' first elements.
 */
static uint64_t value_at(const struct op_attrs *a, uint64_t kv_head) {
    return (a->DR != 0 ? kv_head : a->kv + kv_head) * a->D;
}

/* state = {max, sum, unnormalised output [DV]} of a head's query over positions [lo, hi). */
static void attend(const struct reference *r, const struct op_attrs *a,
                   const struct reference_tensor *kv, uint32_t slot, uint32_t head, const double *q,
                   uint32_t lo, uint32_t hi, double *state) {
    const uint64_t D = a->D, V = a->DV, kv_head = head / group_of(a);
    double *p = take(hi - lo, sizeof *p);
    state[0] = -INFINITY;
    for (uint64_t i = 1; i < V + 2; i++) state[i] = 0;
    for (uint32_t j = lo; j < hi; j++) {
        const double *k = operand_row(kv, reference_kv_row(r, slot, j)) + kv_head * D;
        p[j - lo] = operand_dot(q, k, D) * (double)a->scale;
        state[0] = fmax(state[0], p[j - lo]);
    }
    for (uint32_t j = lo; j < hi; j++) {
        const double *v = operand_row(kv, reference_kv_row(r, slot, j)) + value_at(a, kv_head);
        const double weight = exp(p[j - lo] - state[0]);
        state[1] += weight;
        for (uint64_t i = 0; i < V; i++) state[2 + i] += weight * v[i];
    }
    free(p);
}

/* All that row t sees, for each of its query heads q[n_heads][D]: o[n_heads][DV]. */
static void attend_whole(const struct reference *r, const struct op_attrs *a,
                         const struct reference_tensor *kv, uint32_t t, const double *q,
                         double *o) {
    const uint64_t D = a->D, V = a->DV;
    double *state = take(V + 2, sizeof *state);
    uint32_t lo, hi;
    seen_by(r, a->window, t, &lo, &hi);
    for (uint32_t h = 0; h < a->heads; h++) {
        attend(r, a, kv, (uint32_t)r->slot[t], h, q + h * D, lo, hi, state);
        for (uint64_t i = 0; i < V; i++) o[h * V + i] = state[2 + i] / state[1];
    }
    free(state);
}

/* The same by pieces: part[n_heads][P][DV + PART_HEAD]. */
static void attend_pieces(const struct reference *r, const struct op_attrs *a,
                          const struct reference_tensor *kv, uint32_t t, const double *q,
                          double *part) {
    const uint64_t D = a->D, V = a->DV, P = r->g->n_pieces;
    double *state = take(V + 2, sizeof *state);
    uint32_t lo, hi;
    seen_by(r, a->window, t, &lo, &hi);
    for (uint32_t h = 0; h < a->heads; h++)
        for (uint32_t p = lo / ATTENTION_PIECE; p * ATTENTION_PIECE < hi; p++) {
            double *to = part + (h * P + p) * (V + PART_HEAD);
            attend(r, a, kv, (uint32_t)r->slot[t], h, q + h * D, MAX(lo, p * ATTENTION_PIECE),
                   MIN(hi, (p + 1) * ATTENTION_PIECE), state);
            memcpy(to, state, 2 * sizeof *to);
            memcpy(to + PART_HEAD, state + 2, V * sizeof *to);
        }
    free(state);
}

static uint64_t part_columns(const struct reference *r, const struct op_attrs *a) {
    return (uint64_t)a->heads * r->g->n_pieces * (a->DV + PART_HEAD);
}

void reference_op_attention(struct reference *r, const struct kop *op) {
    const struct reference_tensor *q = operand_in(r, op, ATTENTION_Q);
    operand_make(r, op, 0, (uint64_t)op->attrs.heads * op->attrs.DV);
    for (uint32_t t = 0; t < r->n_rows; t++)
        attend_whole(r, &op->attrs, operand_in(r, op, ATTENTION_KV), t, operand_row(q, t),
                     operand_out_row(r, op, 0, t));
}

void reference_op_attention_split(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    operand_make(r, op, 0, part_columns(r, a));
    for (uint32_t t = 0; t < r->n_rows; t++)
        attend_pieces(r, a, operand_in(r, op, ATTENTION_KV), t,
                      operand_row(operand_in(r, op, ATTENTION_Q), t), operand_out_row(r, op, 0, t));
}

/* QKV_HEADS, and then what the heads give: pieces, or all. */
static void run_joined(struct reference *r, const struct kop *op, bool pieces) {
    const struct op_attrs *a = &op->attrs;
    const uint64_t Q = (uint64_t)a->heads * a->D;
    double *q = take(r->n_rows * Q, sizeof *q);
    operand_make(r, op, JOINED_OUT, pieces ? part_columns(r, a) : Q);
    operand_make(r, op, JOINED_OUT_KV, 0);
    const struct reference_tensor *kv = &r->tensors[op->out[JOINED_OUT_KV]];
    for (uint32_t t = 0; t < r->n_rows; t++)
        make_heads(r, a, t, operand_row(operand_in(r, op, HEADS_QKV), t),
                   operand_in(r, op, HEADS_Q_NORM), operand_in(r, op, HEADS_K_NORM), q + t * Q, kv);
    for (uint32_t t = 0; t < r->n_rows; t++)
        (pieces ? attend_pieces : attend_whole)(r, a, kv, t, q + t * Q,
                                                operand_out_row(r, op, 0, t));
    free(q);
}

void reference_op_attention_step(struct reference *r, const struct kop *op) {
    run_joined(r, op, true);
}

void reference_op_attention_whole(struct reference *r, const struct kop *op) {
    run_joined(r, op, false);
}

void reference_op_attention_merge(struct reference *r, const struct kop *op) {
    const struct op_attrs *a = &op->attrs;
    const uint64_t D = a->DV, P = r->g->n_pieces;
    operand_make(r, op, 0, a->heads * D);
    for (uint32_t t = 0; t < r->n_rows; t++)
        for (uint32_t h = 0; h < a->heads; h++) {
            const double *part =
                operand_row(operand_in(r, op, MERGE_PART), t) + h * P * (D + PART_HEAD);
            double *o = operand_out_row(r, op, 0, t) + h * D, max = -INFINITY, sum = 0;
            uint32_t lo, hi;
            seen_by(r, a->window, t, &lo, &hi);
            const uint64_t first = lo / ATTENTION_PIECE;
            const uint64_t end = CEIL_DIV(hi, (uint32_t)ATTENTION_PIECE);
            for (uint64_t p = first; p < end; p++) max = fmax(max, part[p * (D + PART_HEAD)]);
            memset(o, 0, D * sizeof *o);
            for (uint64_t p = first; p < end; p++) {
                const double *state = part + p * (D + PART_HEAD);
                const double weight = exp(state[0] - max);
                sum += weight * state[1];
                for (uint64_t i = 0; i < D; i++) o[i] += weight * state[PART_HEAD + i];
            }
            for (uint64_t i = 0; i < D; i++) o[i] /= sum;
        }
}

/* ---- MLP and head ---- */

void reference_op_gated_mlp(struct reference *r, const struct kop *op) {
    const struct reference_tensor *wg = operand_in(r, op, MLP_WG), *wu = operand_in(r, op, MLP_WU);
    operand_make(r, op, 0, wg->rows);
    for (uint32_t t = 0; t < r->n_rows; t++) {
        double *x = normed_row(r, op, MLP_X, MLP_NORM, MLP_SQUARES, t, t);
        for (uint64_t n = 0; n < wg->rows; n++) {
            const double gate = operand_dot(x, operand_row(wg, n), wg->cols) +
                                operand_element(operand_in(r, op, MLP_BG), n);
            const double up = operand_dot(x, operand_row(wu, n), wu->cols) +
                              operand_element(operand_in(r, op, MLP_BU), n);
            operand_out_row(r, op, 0, t)[n] = gate / (1 + exp(-gate)) * up;
        }
        free(x);
    }
}

/* {max, sum of exp(logit - max)} of every LM_BLOCK columns. */
static void block_parts(const double *logits, uint64_t vocab, double *part) {
    for (uint64_t first = 0; first < vocab; first += LM_BLOCK, part += 2) {
        const uint64_t end = MIN(first + LM_BLOCK, vocab);
        part[0] = -INFINITY;
        part[1] = 0;
        for (uint64_t v = first; v < end; v++) part[0] = fmax(part[0], logits[v]);
        for (uint64_t v = first; v < end; v++) part[1] += exp(logits[v] - part[0]);
    }
}

/* Logit rows of the iteration that an operator's band has. */
static uint32_t band_rows(const struct reference *r, const struct kop *op) {
    const uint32_t first = op->attrs.band_first;
    return r->n_logit_rows < first ? 0 : MIN(r->n_logit_rows - first, op->attrs.band);
}

/* Packed x has the rows that want logits and no other. */
void reference_op_lm_head(struct reference *r, const struct kop *op) {
    const struct reference_tensor *w = operand_in(r, op, LM_W);
    const bool packed = r->g->tensors.items[op->in[LM_X]].layout == LAYOUT_PACKED;
    operand_make(r, op, LM_OUT_LOGITS, w->rows);
    operand_make(r, op, LM_OUT_PART, 2 * CEIL_DIV(w->rows, (uint64_t)LM_BLOCK));
    for (uint32_t i = 0; i < band_rows(r, op); i++) {
        const uint64_t l = op->attrs.band_first + i, t = (uint64_t)r->logit_row[l];
        double *x = normed_row(r, op, LM_X, LM_NORM, LM_SQUARES, packed ? l : t, t);
        double *logits = operand_out_row(r, op, LM_OUT_LOGITS, i);
        for (uint64_t n = 0; n < w->rows; n++)
            logits[n] = operand_dot(x, operand_row(w, n), w->cols);
        block_parts(logits, w->rows, operand_out_row(r, op, LM_OUT_PART, i));
        free(x);
    }
}

/* All bits of every word set: -1 of 32 bits. */
void reference_op_reset_sentinels(struct reference *r, const struct kop *op) {
    struct reference_tensor *out = reference_make(r, op->out[0], 0, 0);
    for (uint64_t i = 0; i < out->rows * out->cols; i++) out->at[i] = -1;
}

/* ---- sampling ---- */

/* The logit of token v after penalties. */
static double penalized(const struct reference_request *q, double logit, int32_t v) {
    uint32_t in_prompt = 0, in_output = 0;
    for (uint32_t i = 0; i < q->n_known; i++)
        if (q->tokens[i] == v) *(i < q->n_prompt ? &in_prompt : &in_output) += 1;
    if (in_prompt + in_output > 0)
        logit = logit > 0 ? logit / (double)q->sampling.repetition_penalty
                          : logit * (double)q->sampling.repetition_penalty;
    logit -= (double)q->sampling.frequency_penalty * in_output;
    return in_output > 0 ? logit - (double)q->sampling.presence_penalty : logit;
}

/* A token that may be drawn: its logit over the temperature, less the largest; its weight. */
struct candidate {
    int32_t id;
    double logit, weight;
};

static int larger_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* How many of the n candidates, the largest first, min-p, then top-k, then top-p leave. */
static uint64_t kept(const struct rt_sampling *p, const struct candidate *c, uint64_t n) {
    double total = 0, before = 0;
    uint64_t most = 0;
    while (n > 1 && c[n - 1].weight < (double)p->min_p) n--;
    if (p->top_k > 0) n = MIN(n, (uint64_t)p->top_k);
    for (uint64_t i = 0; i < n; i++) total += c[i].weight;
    while (most < n && (p->top_p >= 1 || before < (double)p->top_p * total))
        before += c[most++].weight;
    return most;
}

/* The score by which a candidate wins: its logit, and noise where tokens are drawn. */
static double score(const struct reference_request *q, const struct candidate *c) {
    uint32_t words[4];
    if (!(q->sampling.temperature > 0)) return c->logit;
    rng_quad(q->sampling.seed, q->n_known - q->n_prompt, (uint32_t)c->id / 4, words);
    const double v = (double)rng_uniform(words[c->id % 4]);
    return c->logit - log(-log1p(-v));
}

static void choose(struct reference_request *q, const double *logits, uint64_t vocab) {
    const bool draws = q->sampling.temperature > 0;
    struct candidate *c = take(vocab, sizeof *c);
    double best = -INFINITY, second = -INFINITY;
    for (uint64_t v = 0; v < vocab; v++)
        c[v] = (struct candidate){.id = (int32_t)v,
                                  .logit = penalized(q, logits[v], (int32_t)v) /
                                           (draws ? (double)q->sampling.temperature : 1)};
    qsort(c, vocab, sizeof *c, larger_first);
    for (uint64_t i = vocab; i-- > 0;) {
        c[i].logit -= c[0].logit;
        c[i].weight = exp(c[i].logit);
    }
    const uint64_t n = draws ? kept(&q->sampling, c, vocab) : vocab;
    for (uint64_t i = 0; i < n; i++) {
        const double s = score(q, &c[i]);
        second = fmax(second, fmin(s, best));
        if (s > best) q->chosen = c[i].id;
        best = fmax(best, s);
    }
    q->distance = best - second;
    free(c);
}

void reference_op_sample(struct reference *r, const struct kop *op) {
    const struct reference_tensor *logits = operand_in(r, op, SAMPLE_LOGITS);
    operand_make(r, op, 0, 1);
    for (uint32_t i = 0; i < band_rows(r, op); i++) {
        const int32_t row = r->logit_row[op->attrs.band_first + i];
        struct reference_request *q = &r->requests[r->slot[row]];
        const double *x = operand_row(logits, i);
        double max = -INFINITY, sum = 0;
        choose(q, x, logits->cols);
        q->is_sampled = true;
        for (uint64_t v = 0; v < logits->cols; v++) max = fmax(max, x[v]);
        for (uint64_t v = 0; v < logits->cols; v++) sum += exp(x[v] - max);
        q->logprob = x[q->chosen] - max - log(sum);
        *operand_out_row(r, op, 0, i) = q->chosen;
    }
}

/* ---- the table ---- */

#define OP(ID, name, ...) [OP_##ID] = reference_op_##name,
static void (*const operators[N_OP_KINDS])(struct reference *r, const struct kop *op) = {
#include "graph/op.def"
};
#undef OP

void reference_op(struct reference *r, uint32_t op) {
    const struct kop *k = &r->g->ops.items[op];
    operators[k->kind](r, k);
}

void reference_run(struct reference *r) {
    for (uint32_t i = 0; i < r->g->ops.n; i++) reference_op(r, i);
}
