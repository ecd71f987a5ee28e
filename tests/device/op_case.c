#include "device/op_case.h"
#include "base/checked.h"
#include "base/map.h"
#include "device/codec.h"
#include "device/cpu_rig.h"
#include "device/op_test.h"
#include "kernels/cpu/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rig ---- */

static void *take(uint64_t bytes) {
    void *p = calloc(bytes > 0 ? bytes : 1, 1);
    if (p == NULL) abort();
    return p;
}

static int take_memory(struct diag *d, struct op_rig *r) {
    const struct prog_header *p = r->program.program;
    const bool device = r->device != NULL;
    const struct rt_options options = {.n_kv_blocks = r->n_kv_blocks, .separate = device};
    struct rt_memory m;
    TRY(rt_memory_plan(d, p, &options, &m));
    r->state_bytes = m.state_bytes;
    r->workspace_bytes = p->workspace_bytes + DEVICE_GUARD_BYTES;
    r->kv_bytes = (device ? r->loaded.plan.kv_bytes : cpu_rig_kv_bytes(p, r->n_kv_blocks)) +
                  DEVICE_GUARD_BYTES;
    r->weight_bytes = device ? r->loaded.plan.weight_bytes : 0;
    r->before = (struct device_memory){.workspace = take(r->workspace_bytes),
                                       .kv = take(r->kv_bytes),
                                       .weights = take(r->weight_bytes)};
    r->after = (struct device_memory){.workspace = take(r->workspace_bytes),
                                      .kv = take(r->kv_bytes),
                                      .weights = take(r->weight_bytes),
                                      .state = take(r->state_bytes)};
    r->written = take(r->workspace_bytes);
    r->ours = take(r->kv_bytes);
    return device ? device_weights(d, &r->loaded, r->before.weights) : QN_OK;
}

int op_rig_open(struct diag *d, struct test_device *device, const struct model_spec *spec,
                const struct op_machine *machine, const struct op_variant *variants, uint32_t n,
                uint32_t n_kv_blocks, struct op_rig *out) {
    *out = (struct op_rig){.device = device, .n_kv_blocks = n_kv_blocks};
    TRY(op_program_make(d, spec, machine, variants, n, &out->program));
    if (device != NULL)
        TRY(device_load(d, device, out->program.program, (const void *const *)out->program.weights,
                        n_kv_blocks, &out->loaded));
    return take_memory(d, out);
}

static void release(struct device_memory *m) {
    free(m->workspace);
    free(m->kv);
    free(m->weights);
    free(m->state);
}

void op_rig_close(struct op_rig *r) {
    if (r->device != NULL && r->loaded.device != NULL) device_unload(&r->loaded);
    op_program_fini(&r->program);
    release(&r->before);
    release(&r->after);
    free(r->written);
    free(r->ours);
}

/* ---- one comparison ---- */

struct op_case {
    struct diag *d;
    struct op_rig *rig;
    const struct prog_header *p;
    const struct op_form *form;
    const struct kgraph *g;
    const struct kop *op;
    const struct prog_variant *v;
    const struct iteration *it;
    struct reference ref;
    bool has_state; /* the operator reads or writes the KV cache */
    uint32_t flag;  /* what flagged data shows */
};

static const struct prog_tensor *tensor_of(const struct op_case *c, int32_t tensor) {
    return &PROG(c->p, TENSOR)[c->v->first_tensor + (uint32_t)tensor];
}

static bool is_activation(const struct op_case *c, int32_t tensor) {
    return tensor != NO_TENSOR && c->g->tensors.items[tensor].role == TENSOR_ACTIVATION;
}

static const char *tensor_name(const struct op_case *c, int32_t tensor) {
    return c->g->tensors.items[tensor].name;
}

/* ---- inputs as numbers ---- */

/* Rows of an input that exist in the iteration. */
static uint64_t rows_of(const struct op_case *c, int32_t tensor) {
    const struct tensor *t = &c->g->tensors.items[tensor];
    const char *name = t->name;
    const uint32_t n = c->it->n_logit_rows;
    if (c->op->kind == OP_SAMPLE || c->op->kind == OP_RESET_SENTINELS)
        return n - MIN(n, c->op->attrs.band_first);
    const bool packed = c->op->kind == OP_LM_HEAD && t->layout == LAYOUT_PACKED;
    return packed && strcmp(name, "squares") != 0 ? n : c->it->n_rows;
}

static uint64_t columns_of(const struct tensor *t) {
    uint64_t n = 1;
    for (int i = 1; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

/* {max, sum, output} of pieces: sums of weights, outputs of that size. */
static double state_value(uint64_t i, uint64_t length, double v) {
    const uint64_t at = i % length;
    return at == 0 ? 4 * v : at == 1 ? 1 + fabs(8 * v) : 8 * v;
}

static void fill_sample_parts(struct op_case *c, int32_t part);

static void fill_activation(struct op_case *c, int32_t tensor) {
    const struct tensor *of = &c->g->tensors.items[tensor];
    const uint64_t cols = columns_of(of), rows = rows_of(c, tensor);
    struct reference_tensor *t = reference_make(&c->ref, tensor, MAX(of->shape[0], rows), cols);
    const struct op_values values = op_values_of(of->name);
    const struct op_test *test = op_test_of(c->op->kind);
    const bool states = c->op->kind == OP_ATTENTION_MERGE || c->op->kind == OP_LATENT_MERGE;
    if (test->fill != NULL && test->fill(&c->ref, c->op, tensor)) return;
    if (strcmp(of->name, "part") == 0 && !states) {
        fill_sample_parts(c, tensor);
        return;
    }
    for (uint64_t i = 0; i < rows * cols; i++) {
        const double v = op_value(&values, i);
        t->at[i] = states                            ? state_value(i, c->g->attrs.DV + PART_HEAD, v)
                   : strcmp(of->name, "logits") == 0 ? 4 * v + (double)(i % 1021) / 512
                                                     : v;
    }
}

/* SAMPLE's second operand follows from the first. */
static void fill_sample_parts(struct op_case *c, int32_t part) {
    struct reference_tensor *t = &c->ref.tensors[part];
    if (c->op->kind == OP_RESET_SENTINELS) {
        for (uint64_t i = 0; i < rows_of(c, part) * t->cols; i++) t->at[i] = 1;
        return;
    }
    const struct reference_tensor *logits = &c->ref.tensors[c->op->in[SAMPLE_LOGITS]];
    for (uint64_t l = 0; l < rows_of(c, part); l++)
        for (uint64_t b = 0; b < t->cols / 2; b++) {
            double max = -INFINITY, sum = 0;
            const uint64_t end = MIN((b + 1) * LM_BLOCK, logits->cols);
            const double *x = logits->at + l * logits->cols;
            for (uint64_t v = b * LM_BLOCK; v < end; v++) max = fmax(max, x[v]);
            for (uint64_t v = b * LM_BLOCK; v < end; v++) sum += exp(x[v] - max);
            t->at[l * t->cols + 2 * b] = max;
            t->at[l * t->cols + 2 * b + 1] = (double)(float)sum;
        }
}

static void fill_weight(struct op_case *c, int32_t tensor) {
    const struct prog_tensor *p = tensor_of(c, tensor);
    const enum dtype dtype = (enum dtype)PROG(c->p, WEIGHT)[p->where].dtype;
    struct reference_tensor *t = reference_make(&c->ref, tensor, 0, 0);
    for (uint64_t i = 0; i < t->rows * t->cols; i++)
        t->at[i] = (double)convert_load(dtype, c->rig->program.weights[p->part], i);
}

/* Keys and values of the positions before the iteration; `own`: and of its own. */
static void fill_state(struct op_case *c, int32_t tensor, bool own) {
    struct reference_tensor *t = reference_make(&c->ref, tensor, 0, 0);
    const struct op_values values = op_values_of("kv");
    for (uint32_t i = 0; i < c->it->n_requests; i++) {
        const struct iteration_request *q = &c->it->requests[i];
        const uint32_t end = own ? iteration_n_known(q) : q->first;
        double *at = t->at + reference_kv_row(&c->ref, q->slot, 0) * t->cols;
        for (uint64_t k = 0; k < end * t->cols; k++)
            at[k] = op_value(&values, k + q->slot * 7919ull);
    }
}

static void fill_numbers(struct op_case *c) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        const int32_t t = c->op->in[i];
        if (t == NO_TENSOR) continue;
        switch (c->g->tensors.items[t].role) {
        case TENSOR_WEIGHT: fill_weight(c, t); break;
        case TENSOR_ACTIVATION: fill_activation(c, t); break;
        case TENSOR_STATE: fill_state(c, t, true); break;
        }
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const int32_t t = c->op->out[i];
        if (t != NO_TENSOR && c->g->tensors.items[t].role == TENSOR_STATE) fill_state(c, t, false);
    }
}

/* ---- inputs as bytes ---- */

/* Rows and columns of a tensor that a task reads or writes; all of them: n_slices counts them. */
static bool in_region(const struct region *r, uint64_t row, uint64_t col, uint64_t inner) {
    return r->n_slices > 0 ||
           (row >= r->row0 && row < r->row1 && col / inner >= r->col0 && col / inner < r->col1);
}

/* Elements of a tensor behind one column of its second dimension. */
static uint64_t inner_of(const struct op_case *c, int32_t tensor) {
    const struct tensor *t = &c->g->tensors.items[tensor];
    uint64_t n = 1;
    for (int i = 2; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

/* Whether any region of the tensor has the element; regions NULL: all elements are meant. */
static bool is_touched(const struct op_case *c, const struct region *regions, int n, int32_t tensor,
                       bool write, uint64_t row, uint64_t col) {
    const uint64_t inner = inner_of(c, tensor);
    for (int i = 0; i < n; i++)
        if (regions[i].tensor == tensor && regions[i].write == write &&
            in_region(&regions[i], row, col, inner))
            return true;
    return regions == NULL;
}

static void put_activation(struct op_case *c, int32_t tensor, const struct region *regions, int n) {
    const struct reference_tensor *t = &c->ref.tensors[tensor];
    for (uint64_t row = 0; row < t->rows; row++)
        for (uint64_t col = 0; col < t->cols; col++)
            if (!isnan(t->at[row * t->cols + col]) &&
                is_touched(c, regions, n, tensor, false, row, col))
                codec_put(c->p, tensor_of(c, tensor), c->rig->before.workspace, row, col,
                          t->at[row * t->cols + col], c->flag);
}

/* The columns that pad a packed row are zeros: nothing writes them. */
static void put_padding(struct op_case *c, int32_t tensor) {
    const struct prog_tensor *p = tensor_of(c, tensor);
    const struct tensor *of = &c->g->tensors.items[tensor];
    if (of->layout != LAYOUT_PACKED) return;
    for (uint64_t row = 0; row < packed_rows(of->shape[0]); row++)
        for (uint64_t col = of->shape[1]; col < packed_columns(of->shape[1]); col++)
            codec_put(c->p, p, c->rig->before.workspace, row, col, 0, 0);
}

static void put_state(struct op_case *c, int32_t tensor) {
    const struct reference_tensor *t = &c->ref.tensors[tensor];
    const struct op_attrs *a = &c->g->attrs;
    for (uint32_t i = 0; i < c->it->n_requests; i++) {
        const struct iteration_request *q = &c->it->requests[i];
        for (uint32_t position = 0; position < iteration_n_known(q); position++) {
            const double *row = t->at + reference_kv_row(&c->ref, q->slot, position) * t->cols;
            if (isnan(row[0])) break;
            for (uint64_t k = 0; k < t->cols; k++) {
                const uint64_t head = k / a->D;
                const uint64_t at =
                    codec_kv_at(c->p, c->it, q->slot, position, (uint32_t)(head / a->kv),
                                (uint32_t)(head % a->kv), (uint32_t)(k % a->D));
                convert_store((enum dtype)PROG(c->p, KV)->dtype, c->rig->before.kv + at, 0,
                              (float)row[k]);
            }
        }
    }
}

/* Poison, and the numbers that the regions say are read. */
static void fill_bytes(struct op_case *c, const struct region *regions, int n) {
    codec_poison(c->rig->before.workspace, c->rig->workspace_bytes);
    if (c->has_state) codec_poison(c->rig->before.kv, c->rig->kv_bytes);
    for (int i = 0; i < OP_MAX_IN; i++) {
        const int32_t t = c->op->in[i];
        if (is_activation(c, t)) {
            put_activation(c, t, regions, n);
            put_padding(c, t);
        } else if (t != NO_TENSOR && c->g->tensors.items[t].role == TENSOR_STATE) {
            put_state(c, t);
        }
    }
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (c->op->out[i] != NO_TENSOR && !is_activation(c, c->op->out[i]))
            put_state(c, c->op->out[i]);
    memcpy(c->rig->after.workspace, c->rig->before.workspace, c->rig->workspace_bytes);
    if (c->has_state) memcpy(c->rig->after.kv, c->rig->before.kv, c->rig->kv_bytes);
}

/* ---- what may be written ---- */

static void mark(struct op_case *c, int32_t tensor, uint64_t row, uint64_t col) {
    const struct codec_place at = codec_place_of(c->p, tensor_of(c, tensor), row, col);
    memset(c->rig->written + at.at, 1, at.size);
    if (at.flag_at != 0) memset(c->rig->written + at.flag_at, 1, 4);
}

static void mark_written(struct op_case *c, const struct region *regions, int n) {
    memset(c->rig->written, 0, c->rig->workspace_bytes);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const int32_t t = c->op->out[i];
        if (!is_activation(c, t)) continue;
        const struct tensor *of = &c->g->tensors.items[t];
        const bool packed = of->layout == LAYOUT_PACKED;
        const uint64_t cols = packed ? packed_columns(of->shape[1]) : columns_of(of);
        const uint64_t rows = packed ? packed_rows(of->shape[0]) : of->shape[0];
        const uint64_t last_row = of->shape[0] - 1, last = columns_of(of) - 1;
        for (uint64_t row = 0; row < rows; row++) /* padding goes with what it pads */
            for (uint64_t col = 0; col < cols; col++)
                if (is_touched(c, regions, n, t, true, MIN(row, last_row), MIN(col, last)))
                    mark(c, t, row, col);
    }
}

/* The first byte of n that changed and is not marked; n: none. */
static uint64_t first_change(const char *before, const char *after, const uint8_t *may,
                             uint64_t n) {
    enum { LINE = 256 };
    for (uint64_t at = 0; at < n; at += LINE) {
        const uint64_t end = MIN(at + LINE, n);
        if (memcmp(before + at, after + at, end - at) == 0) continue;
        for (uint64_t i = at; i < end; i++)
            if (!may[i] && before[i] != after[i]) return i;
    }
    return n;
}

static int check_unwritten(struct op_case *c) {
    const struct op_rig *r = c->rig;
    const uint64_t at =
        first_change(r->before.workspace, r->after.workspace, r->written, r->workspace_bytes);
    if (at < r->workspace_bytes)
        return fail(c->d, QN_EVERIFY,
                    "byte %llu of the workspace of %llu was written, which is no result",
                    (unsigned long long)at, (unsigned long long)c->p->workspace_bytes);
    if (memcmp(r->before.weights, r->after.weights, r->weight_bytes) != 0)
        return fail(c->d, QN_EVERIFY, "weights were written");
    return QN_OK;
}

/* ---- results ---- */

/* How far a result may be from the reference: of its own size, and of the largest of its tensor. */
struct tolerance {
    double relative, absolute;
};

/* Rounding of 16-bit results, then what an operator's arithmetic allows: dot products of short
 * numbers are exact but for the factor of a norm; attention's queries, keys and weights are rounded
 * to 16 bits. */
static struct tolerance tolerance_of(const struct op_case *c, const struct prog_tensor *t) {
    const bool f16 = PROG(c->p, MODEL)->weight_dtype == DTYPE_F16;
    const bool rounded = t->dtype != DTYPE_F32 || t->transport == TRANSPORT_PAIR;
    const double ulp = f16 ? 0x1p-11 : 0x1p-8;
    const struct op_test *test = op_test_of(c->op->kind);
    return (struct tolerance){rounded && t->dtype != DTYPE_I32 ? ulp : 0,
                              test->absolute + test->ulps * ulp};
}

static double largest(const struct reference_tensor *t) {
    double most = 0;
    for (uint64_t i = 0; i < t->rows * t->cols; i++)
        if (!isnan(t->at[i]) && isfinite(t->at[i])) most = fmax(most, fabs(t->at[i]));
    return most;
}

/* Pieces' {max, sum, output} can be against any number near the maximum: what they mean is the
 * logarithm of all weights and the mean output. */
static void normalize_state(double *state, uint64_t length) {
    const double sum = state[1];
    state[0] += log(sum);
    state[1] = 0;
    for (uint64_t i = 2; i < length; i++) state[i] /= sum;
}

static bool has_states(const struct op_case *c, int32_t tensor) {
    return c->g->tensors.items[tensor].n_dims == 4;
}

static void normalize_states(const struct op_case *c, struct reference_tensor *t) {
    const uint64_t length = c->g->attrs.DV + PART_HEAD;
    for (uint64_t i = 0; i < t->rows * t->cols; i += length)
        if (!isnan(t->at[i])) normalize_state(t->at + i, length);
}

/* The device's numbers of an output where the reference has some and `regions` say they are
 * written. */
static struct reference_tensor read_output(const struct op_case *c, int32_t tensor,
                                           const struct region *regions, int n) {
    struct reference_tensor *want = &c->ref.tensors[tensor], have = *want;
    have.at = malloc(have.rows * have.cols * sizeof *have.at);
    if (have.at == NULL) abort();
    for (uint64_t i = 0; i < have.rows * have.cols; i++) {
        const uint64_t row = i / have.cols, col = i % have.cols;
        have.at[i] = NAN;
        if (isnan(want->at[i]) || row >= c->g->tensors.items[tensor].shape[0]) continue;
        if (is_touched(c, regions, n, tensor, true, row, col))
            have.at[i] =
                codec_get(c->p, tensor_of(c, tensor), c->rig->after.workspace, row, col, c->flag);
        else
            want->at[i] = NAN;
    }
    return have;
}

static int check_output(struct op_case *c, int32_t tensor, const struct region *regions, int n) {
    struct reference_tensor have = read_output(c, tensor, regions, n);
    struct reference_tensor *want = &c->ref.tensors[tensor];
    const struct tolerance e = tolerance_of(c, tensor_of(c, tensor));
    int rc = QN_OK;
    if (has_states(c, tensor)) {
        normalize_states(c, want);
        normalize_states(c, &have);
    }
    if (regions == NULL)
        c->rig->digest =
            hash_bytes(have.at, have.rows * have.cols * sizeof *have.at, c->rig->digest);
    const double most = largest(want);
    for (uint64_t i = 0; i < have.rows * have.cols && rc == QN_OK; i++) {
        const double w = want->at[i], h = have.at[i];
        if (isnan(w) || fabs(h - w) <= e.relative * fabs(w) + e.absolute * most) continue;
        rc = fail(c->d, QN_EVERIFY, "%s [%llu,%llu]: want %.9g, have %.9g; the largest is %.4g",
                  tensor_name(c, tensor), (unsigned long long)(i / have.cols),
                  (unsigned long long)(i % have.cols), w, h, most);
    }
    free(have.at);
    return rc;
}

/* The columns that pad a row of a result are zeros if the result is always packed: its reader
 * multiplies them. */
static int check_padding(const struct op_case *c, int slot) {
    const int32_t tensor = c->op->out[slot];
    const struct tensor *of = &c->g->tensors.items[tensor];
    const struct reference_tensor *want = &c->ref.tensors[tensor];
    if (!op_info_of(c->op->kind)->out[slot].packed) return QN_OK;
    for (uint64_t row = 0; row < of->shape[0] && !isnan(want->at[row * want->cols]); row++)
        for (uint64_t col = of->shape[1]; col < packed_columns(of->shape[1]); col++)
            if (codec_get(c->p, tensor_of(c, tensor), c->rig->after.workspace, row, col, c->flag) !=
                0)
                return fail(c->d, QN_EVERIFY, "%s [%llu,%llu]: want padding with zeros",
                            tensor_name(c, tensor), (unsigned long long)row,
                            (unsigned long long)col);
    return QN_OK;
}

/* Keys and values of the iteration's own positions, rounded to the cache's type. */
static int check_new_rows(struct op_case *c, int32_t tensor, uint8_t *ours) {
    const struct reference_tensor *t = &c->ref.tensors[tensor];
    const struct op_attrs *a = &c->g->attrs;
    const double relative = PROG(c->p, KV)->dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-7,
                 most = largest(t);
    for (uint32_t row = 0; row < c->it->n_rows; row++)
        for (uint64_t k = 0; k < t->cols; k++) {
            const uint32_t slot = (uint32_t)c->it->slot[row];
            const uint32_t position = (uint32_t)c->it->position[row];
            const uint64_t head = k / a->D;
            const uint64_t at = codec_kv_at(c->p, c->it, slot, position, (uint32_t)(head / a->kv),
                                            (uint32_t)(head % a->kv), (uint32_t)(k % a->D));
            const double want = t->at[reference_kv_row(&c->ref, slot, position) * t->cols + k];
            const double have =
                (double)convert_load((enum dtype)PROG(c->p, KV)->dtype, c->rig->after.kv + at, 0);
            memset(ours + at, 1, 2);
            if (!(fabs(have - want) <= relative * fabs(want) + 1e-5 * most))
                return fail(c->d, QN_EVERIFY,
                            "kv of request %u, position %u, %s head %llu [%llu]: "
                            "want %.9g, have %.9g",
                            slot, position, head < a->kv ? "key" : "value",
                            (unsigned long long)(head % a->kv), (unsigned long long)(k % a->D),
                            want, have);
        }
    return QN_OK;
}

static int check_cache(struct op_case *c) {
    struct op_rig *r = c->rig;
    if (!c->has_state) return QN_OK;
    memset(r->ours, 0, r->kv_bytes);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const int32_t t = c->op->out[i];
        if (t != NO_TENSOR && !is_activation(c, t)) TRY(check_new_rows(c, t, r->ours));
    }
    const uint64_t at = first_change(r->before.kv, r->after.kv, r->ours, r->kv_bytes);
    if (at == r->kv_bytes) return QN_OK;
    return fail(c->d, QN_EVERIFY, "byte %llu of the KV cache was written, which is no result",
                (unsigned long long)at);
}

/* What SAMPLE makes of the requests. */
static int check_requests(struct op_case *c) {
    struct rt rt;
    struct rt_batch b;
    struct rt_memory m;
    const struct rt_options options = {.n_kv_blocks = c->rig->n_kv_blocks,
                                       .separate = c->rig->device != NULL};
    if (c->op->kind != OP_SAMPLE) return QN_OK;
    TRY(rt_memory_plan(c->d, c->p, &options, &m));
    rt_memory_bind(&m, c->p, c->p, c->rig->after.state, c->rig->after.state, &rt, &b);
    for (uint32_t i = 0; i < c->it->n_requests; i++) {
        const struct iteration_request *q = &c->it->requests[i];
        const struct reference_request *want = &c->ref.requests[q->slot];
        const uint64_t at = (uint64_t)q->slot * c->it->max_len + iteration_n_known(q);
        if (!want->is_sampled && (b.tokens[at] != 0 || b.logprobs[at] != 0))
            return fail(c->d, QN_EVERIFY, "request %u: want no token, have %d of %.6f", q->slot,
                        b.tokens[at], (double)b.logprobs[at]);
        if (!want->is_sampled || want->distance < 1e-4) continue; /* either may win */
        if (b.tokens[at] != want->chosen || !(fabs((double)b.logprobs[at] - want->logprob) < 1e-4))
            return fail(c->d, QN_EVERIFY,
                        "request %u: want token %d of log-probability %.6f, have %d of %.6f",
                        q->slot, want->chosen, want->logprob, b.tokens[at], (double)b.logprobs[at]);
    }
    return QN_OK;
}

/* ---- running ---- */

static int run(struct op_case *c, uint32_t only) {
    struct device_memory memory = c->rig->after;
    if (!c->has_state) memory.kv = NULL;
    if (c->rig->device != NULL) return device_run(c->d, &c->rig->loaded, c->it, only, &memory);
    return cpu_rig_run(c->d, c->p, c->rig->program.weights, c->it, only, &memory);
}

static int compare(struct op_case *c, const struct region *regions, int n) {
    TRY(check_unwritten(c));
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (is_activation(c, c->op->out[i])) TRY(check_output(c, c->op->out[i], regions, n));
    if (regions != NULL) return QN_OK;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (is_activation(c, c->op->out[i])) TRY(check_padding(c, i));
    TRY(check_cache(c));
    return check_requests(c);
}

static int run_all(struct op_case *c) {
    fill_numbers(c);
    fill_bytes(c, NULL, 0);
    mark_written(c, NULL, 0);
    TRY(run(c, PROG_NONE));
    reference_op(&c->ref, 0);
    return compare(c, NULL, 0);
}

/* The same of the task in the middle, which reads and writes what task_access says. */
static int run_one(struct op_case *c) {
    const struct tgraph *tasks = &c->rig->program.tasks[c->it->variant];
    struct region regions[TASK_MAX_ACCESS];
    const size_t middle = tasks->tasks.n / 2;
    const struct task *t = &tasks->tasks.items[middle];
    if (t->op < 0 || op_split_of(c->op->kind) == SPLIT_SLICES || c->op->kind == OP_SAMPLE ||
        t->row0 >= c->it->n_rows)
        return QN_OK;
    const int n = task_access(c->g, t, regions);
    fill_numbers(c);
    fill_bytes(c, regions, n);
    mark_written(c, regions, n);
    TRY(run(c, c->v->first_task + (uint32_t)middle));
    reference_op(&c->ref, 0);
    return compare(c, regions, n);
}

static bool touches_state(const struct op_case *c) {
    const struct op_info *info = op_info_of(c->op->kind);
    for (int i = 0; i < info->n_in; i++)
        if (info->in[i].state) return true;
    for (int i = 0; i < info->n_out; i++)
        if (info->out[i].state) return true;
    return false;
}

static uint32_t flag_of(const struct iteration *it) {
    return rt_published(1, 0, it->variant);
}

int op_case_run(struct diag *d, struct op_rig *r, struct iteration *it, bool alone) {
    struct op_case c = {.d = d,
                        .rig = r,
                        .p = r->program.program,
                        .form = r->program.variants[it->variant].form,
                        .g = &r->program.kernel[it->variant],
                        .op = &r->program.kernel[it->variant].ops.items[0],
                        .v = &PROG(r->program.program, VARIANT)[it->variant],
                        .it = it,
                        .flag = flag_of(it)};
    iteration_lay_out(it, c.p, r->n_kv_blocks);
    int rc = reference_init(d, &c.ref, c.g, ITERATION_SLOTS);
    iteration_refer(it, &c.ref);
    c.has_state = touches_state(&c);
    r->digest = 0;
    if (rc == QN_OK) rc = run_all(&c);
    if (rc == QN_OK && alone) rc = run_one(&c);
    reference_fini(&c.ref);
    iteration_fini(it);
    return rc;
}
