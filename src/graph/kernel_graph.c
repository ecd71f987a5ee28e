#include "graph/kernel_graph.h"
#include "base/checked.h"

#include <math.h>
#include <string.h>

void kgraph_init(struct kgraph *g, struct arena *arena, const struct model_spec *spec,
                 uint32_t n_rows, uint32_t n_logit_rows, uint32_t context) {
    *g = (struct kgraph){.arena = arena,
                         .spec = *spec,
                         .n_rows = n_rows,
                         .n_logit_rows = n_logit_rows,
                         .context = context,
                         .n_pieces = CEIL_DIV(context, (uint32_t)ATTENTION_PIECE)};
}

void kgraph_fini(struct kgraph *g) {
    ARRAY_FINI(&g->tensors);
    ARRAY_FINI(&g->ops);
}

uint64_t tensor_elements(const struct tensor *t) {
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

uint64_t tensor_bytes(const struct tensor *t) {
    return tensor_elements(t) * dtype_bytes(t->dtype);
}

bool tensor_is_packed(const struct tensor *t) {
    return t->role == TENSOR_ACTIVATION && (t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F16);
}

/* Rows that a packed tensor of n rows has. */
static uint64_t packed_rows(uint64_t n) {
    return CEIL_DIV(n, (uint64_t)PACK_ROWS) * PACK_ROWS;
}

/* What a packed row of k columns has. */
static uint64_t packed_columns(uint64_t k) {
    return CEIL_DIV(k, (uint64_t)PACK_K) * PACK_K;
}

static enum dtype packed_dtype(const struct kgraph *g) {
    return g->spec.weight_dtype == DTYPE_F16 ? DTYPE_F16 : DTYPE_BF16;
}

static void pack_shape(const struct kgraph *g, struct tensor *t) {
    t->shape[0] = packed_rows(t->shape[0]);
    t->shape[1] = packed_columns(t->shape[1]);
    t->dtype = packed_dtype(g);
}

void kgraph_pack_output(struct kgraph *g, int32_t tensor, bool *packed) {
    struct tensor *t = &g->tensors.items[tensor];
    struct op_info info;
    const struct kop *op = &g->ops.items[t->producer];
    op_describe(op->kind, &info);
    *packed = false;
    for (int i = 0; i < info.n_out; i++)
        if (op->out[i] == tensor) *packed = info.out[i].packable && t->shape[1] % PACK_K == 0;
    if (*packed) pack_shape(g, t);
}

static int add_tensor(struct diag *d, struct kgraph *g, struct tensor t, int32_t *index) {
    char *name;
    TRY(arena_strdup(d, g->arena, t.name, &name));
    t.name = name;
    TRY(ARRAY_PUSH(d, &g->tensors, t));
    *index = (int32_t)g->tensors.n - 1;
    return QN_OK;
}

int kgraph_weight(struct diag *d, struct kgraph *g, const char *name, enum dtype dtype, int n_dims,
                  uint64_t rows, uint64_t cols, int32_t *index) {
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct tensor *t = &g->tensors.items[i];
        if (t->role != TENSOR_WEIGHT || strcmp(t->name, name) != 0) continue;
        if (t->n_dims != n_dims || t->shape[0] != rows || (n_dims == 2 && t->shape[1] != cols))
            return fail(d, QN_ESHAPE, "weight %s is wanted in two shapes", name);
        *index = (int32_t)i;
        return QN_OK;
    }
    struct tensor t = {.name = name,
                       .role = TENSOR_WEIGHT,
                       .dtype = dtype,
                       .n_dims = n_dims,
                       .shape = {rows, n_dims == 2 ? cols : 0},
                       .producer = -1};
    return add_tensor(d, g, t, index);
}

int kgraph_state(struct diag *d, struct kgraph *g, const char *name, int32_t *index) {
    struct tensor t = {.name = name,
                       .role = TENSOR_STATE,
                       .dtype = DTYPE_BF16,
                       .n_dims = 2,
                       .shape = {g->n_rows, 2ull * g->spec.n_kv_heads},
                       .producer = -1};
    return add_tensor(d, g, t, index);
}

int kgraph_input(struct diag *d, struct kgraph *g, const char *name, int n_dims,
                 const uint64_t shape[TENSOR_MAX_DIMS], bool packed, int32_t *index) {
    struct tensor t = {.name = name, .role = TENSOR_ACTIVATION, .n_dims = n_dims, .producer = -1};
    memcpy(t.shape, shape, (size_t)n_dims * sizeof *shape);
    if (packed) pack_shape(g, &t);
    return add_tensor(d, g, t, index);
}

static const struct tensor *operand(const struct kgraph *g, const struct kop *op, int slot) {
    return op->in[slot] == NO_TENSOR ? NULL : &g->tensors.items[op->in[slot]];
}

/* What a shape is inferred with: the operator and the first complaint about it. */
struct infer {
    struct diag *d;
    const struct kgraph *g;
    const struct kop *op;
    const struct op_info *info;
    int rc;
};

/* The operand in `slot` must have n_dims dimensions a, b, c, e. Absent optional ones pass. */
static void want(struct infer *f, int slot, int n_dims, uint64_t a, uint64_t b, uint64_t c,
                 uint64_t e) {
    const struct tensor *t = operand(f->g, f->op, slot);
    const uint64_t shape[TENSOR_MAX_DIMS] = {a, b, c, e};
    if (t == NULL || f->rc != QN_OK) return;
    bool same = t->n_dims == n_dims;
    for (int i = 0; same && i < n_dims; i++) same = t->shape[i] == shape[i];
    if (!same)
        f->rc = fail(f->d, QN_ESHAPE,
                     "layer %d %s: %s (%s): want [%llu,%llu,%llu,%llu] in %d dimensions, have "
                     "[%llu,%llu,%llu,%llu] in %d",
                     f->op->layer, f->info->name, f->info->in[slot].name, t->name,
                     (unsigned long long)a, (unsigned long long)b, (unsigned long long)c,
                     (unsigned long long)e, n_dims, (unsigned long long)t->shape[0],
                     (unsigned long long)t->shape[1], (unsigned long long)t->shape[2],
                     (unsigned long long)t->shape[3], t->n_dims);
}

/* The activations of a matrix product: [T, k], or packed. Packed ones of the LM head: [L, k']. */
static void want_rows(struct infer *f, int slot, uint64_t k) {
    const struct tensor *t = operand(f->g, f->op, slot);
    uint64_t rows = f->g->n_rows;
    if (tensor_is_packed(t)) {
        k = packed_columns(k);
        rows = packed_rows(kgraph_rows(f->g, f->op));
    }
    want(f, slot, 2, rows, k, 0, 0);
}

/* Rows of 16-bit floats; those of PACK_LOGITS may be such already. */
static int infer_pack(struct infer *f, struct tensor *out) {
    const struct tensor *x = operand(f->g, f->op, PACK_X);
    const uint64_t K = x->shape[1];
    const bool packed = f->op->kind == OP_PACK_LOGITS && tensor_is_packed(x);
    want(f, PACK_X, 2, packed ? packed_rows(f->g->n_rows) : f->g->n_rows, K, 0, 0);
    *out = (struct tensor){.n_dims = 2, .shape = {kgraph_rows(f->g, f->op), K}};
    pack_shape(f->g, out);
    return f->rc;
}

static uint64_t squares_of(uint64_t columns) {
    return CEIL_DIV(columns, (uint64_t)SQUARES_COLUMNS);
}

/* Outputs of who writes the residual stream [T, columns]; `next`: its slot. */
static void infer_stream(struct infer *f, int next, uint64_t columns,
                         struct tensor out[OP_MAX_OUT]) {
    const uint64_t T = f->g->n_rows;
    want(f, next, 1, columns, 0, 0, 0);
    out[STREAM_X] = (struct tensor){.n_dims = 2, .shape = {T, columns}};
    if (f->op->in[next] == NO_TENSOR) return;
    out[STREAM_NORMED] = out[STREAM_X];
    out[STREAM_SQUARES] = (struct tensor){.n_dims = 2, .shape = {T, squares_of(columns)}};
}

/* The residual stream that an operator norms, or that comes normed, with its squares. */
static void want_normed(struct infer *f, int x, int norm, int squares) {
    const uint64_t H = f->g->spec.hidden;
    const struct tensor *s = operand(f->g, f->op, squares);
    want_rows(f, x, H);
    want(f, norm, 1, H, 0, 0, 0);
    want(f, squares, 2, f->g->n_rows, s != NULL && s->shape[1] == 1 ? 1 : squares_of(H), 0, 0);
    if (f->rc == QN_OK && (s == NULL) == (operand(f->g, f->op, norm) == NULL))
        f->rc = fail(f->d, QN_ESHAPE, "layer %d %s: want one of norm and squares", f->op->layer,
                     f->info->name);
}

/* What CLEAR has is as large as it was made to be (task/carry.c), whole units. */
static struct tensor cleared_of(const struct kgraph *g, const struct kop *op) {
    struct tensor t = {.dtype = DTYPE_I32, .n_dims = 2, .shape = {CLEAR_UNITS, CLEAR_WORDS}};
    if (op->out[0] >= 0 && (size_t)op->out[0] < g->tensors.n)
        t.shape[1] = align_up(MAX(g->tensors.items[op->out[0]].shape[1], 1u), CLEAR_WORDS);
    return t;
}

/* Checks the operands of `op` and gives the shapes of its outputs, no dimensions to absent ones. */
static int infer(struct diag *d, const struct kgraph *g, const struct kop *op,
                 const struct op_info *info, struct tensor out[OP_MAX_OUT]) {
    const struct model_spec *s = &g->spec;
    const uint64_t T = g->n_rows, L = g->n_logit_rows, H = s->hidden, D = s->head_dim;
    const uint64_t Q = (uint64_t)s->n_heads * D, KV = (uint64_t)s->n_kv_heads * D;
    const uint64_t I = s->intermediate, V = s->vocab;
    struct infer f = {d, g, op, info, QN_OK};
    switch (op->kind) {
    case OP_EMBED:
        want(&f, EMBED_TABLE, 2, V, H, 0, 0);
        infer_stream(&f, EMBED_NEXT, H, out);
        break;
    case OP_QKV:
    case OP_QKV_LINEAR:
        if (op->kind == OP_QKV_LINEAR) {
            want_normed(&f, QKV_X, QKV_NORM, QKV_LINEAR_SQUARES);
        } else {
            want(&f, QKV_X, 2, T, H, 0, 0);
            want(&f, QKV_NORM, 1, H, 0, 0, 0);
        }
        want(&f, QKV_WQ, 2, Q, H, 0, 0);
        want(&f, QKV_WK, 2, KV, H, 0, 0);
        want(&f, QKV_WV, 2, KV, H, 0, 0);
        want(&f, QKV_BQ, 1, Q, 0, 0, 0);
        want(&f, QKV_BK, 1, KV, 0, 0, 0);
        want(&f, QKV_BV, 1, KV, 0, 0, 0);
        if (op->kind == OP_QKV) {
            want(&f, QKV_Q_NORM, 1, D, 0, 0, 0);
            want(&f, QKV_K_NORM, 1, D, 0, 0, 0);
        }
        out[0] = (struct tensor){.n_dims = 2, .shape = {T, op->kind == OP_QKV ? Q : Q + 2 * KV}};
        break;
    case OP_QKV_HEADS:
        want(&f, HEADS_QKV, 2, T, Q + 2 * KV, 0, 0);
        want(&f, HEADS_Q_NORM, 1, D, 0, 0, 0);
        want(&f, HEADS_K_NORM, 1, D, 0, 0, 0);
        out[QKV_OUT_Q] = (struct tensor){.n_dims = 2, .shape = {T, Q}};
        break;
    case OP_ATTENTION:
        want(&f, ATTENTION_Q, 2, T, Q, 0, 0);
        out[0] = (struct tensor){.n_dims = 2, .shape = {T, Q}};
        break;
    case OP_ATTENTION_SPLIT:
        want(&f, ATTENTION_Q, 2, T, Q, 0, 0);
        out[0] = (struct tensor){.n_dims = 4, .shape = {T, s->n_heads, g->n_pieces, D + 2}};
        break;
    case OP_ATTENTION_STEP:
    case OP_ATTENTION_WHOLE:
        if (T > STEP_ROWS && !(g->alone && op->kind == OP_ATTENTION_WHOLE))
            return fail(d, QN_EINVAL, "%s: want %d rows at most, have %llu", info->name, STEP_ROWS,
                        (unsigned long long)T);
        want(&f, HEADS_QKV, 2, T, Q + 2 * KV, 0, 0);
        want(&f, HEADS_Q_NORM, 1, D, 0, 0, 0);
        want(&f, HEADS_K_NORM, 1, D, 0, 0, 0);
        out[0] = op->kind == OP_ATTENTION_WHOLE
                     ? (struct tensor){.n_dims = 2, .shape = {T, Q}}
                     : (struct tensor){.n_dims = 4, .shape = {T, s->n_heads, g->n_pieces, D + 2}};
        break;
    case OP_ATTENTION_COMBINE:
        want(&f, COMBINE_PART, 4, T, s->n_heads, g->n_pieces, D + 2);
        out[0] = (struct tensor){.n_dims = 2, .shape = {T, Q}};
        break;
    case OP_LINEAR: {
        const struct tensor *w = operand(g, op, LINEAR_W);
        want_rows(&f, LINEAR_A, w->shape[1]);
        want(&f, LINEAR_BIAS, 1, w->shape[0], 0, 0, 0);
        want(&f, LINEAR_RESIDUAL, 2, T, w->shape[0], 0, 0);
        infer_stream(&f, LINEAR_NEXT, w->shape[0], out);
        break;
    }
    case OP_LINEAR_PARTS: {
        const struct tensor *w = operand(g, op, PARTS_W);
        const uint64_t parts = MIN((uint64_t)PARTS, CEIL_DIV(w->shape[1], (uint64_t)PACK_K));
        want_rows(&f, PARTS_A, w->shape[1]);
        if (f.rc == QN_OK &&
            (w->shape[0] % SQUARES_COLUMNS != 0 || !tensor_is_packed(operand(g, op, PARTS_A))))
            return fail(d, QN_ESHAPE, "layer %d %s: want packed activations and whole row blocks",
                        op->layer, info->name);
        out[0] = (struct tensor){.n_dims = 2, .shape = {T, parts * w->shape[0]}};
        break;
    }
    case OP_LINEAR_SUM: {
        const uint64_t parts = operand(g, op, SUM_PARTS)->shape[1] / H;
        want(&f, SUM_PARTS, 2, T, MIN(MAX(parts, 1u), (uint64_t)PARTS) * H, 0, 0);
        want(&f, SUM_BIAS, 1, H, 0, 0, 0);
        want(&f, SUM_RESIDUAL, 2, T, H, 0, 0);
        infer_stream(&f, SUM_NEXT, H, out);
        out[STREAM_SQUARES].shape[1] = 1;
        break;
    }
    case OP_GATED_MLP:
        want_normed(&f, MLP_X, MLP_NORM, MLP_SQUARES);
        want(&f, MLP_WG, 2, I, H, 0, 0);
        want(&f, MLP_WU, 2, I, H, 0, 0);
        want(&f, MLP_BG, 1, I, 0, 0, 0);
        want(&f, MLP_BU, 1, I, 0, 0, 0);
        out[0] = (struct tensor){.n_dims = 2, .shape = {T, I}};
        break;
    case OP_PACK:
    case OP_PACK_LOGITS: return infer_pack(&f, &out[0]);
    case OP_SUM_SQUARES:
        want(&f, 0, 2, T, squares_of(H), 0, 0);
        out[0] = (struct tensor){.n_dims = 2, .shape = {T, 1}};
        break;
    case OP_LM_HEAD:
        want_normed(&f, LM_X, LM_NORM, LM_SQUARES);
        want(&f, LM_W, 2, V, H, 0, 0);
        out[LM_OUT_LOGITS] = (struct tensor){.n_dims = 2, .shape = {L, V}};
        out[LM_OUT_PART] =
            (struct tensor){.n_dims = 3, .shape = {L, CEIL_DIV(V, (uint64_t)LM_BLOCK), 2}};
        break;
    case OP_CLEAR:
        want(&f, CLEAR_AFTER, 3, L, CEIL_DIV(V, (uint64_t)LM_BLOCK), 2, 0);
        out[0] = cleared_of(g, op);
        break;
    case OP_SAMPLE:
        want(&f, SAMPLE_LOGITS, 2, L, V, 0, 0);
        want(&f, SAMPLE_PART, 3, L, CEIL_DIV(V, (uint64_t)LM_BLOCK), 2, 0);
        out[0] = (struct tensor){.dtype = DTYPE_I32, .n_dims = 1, .shape = {L}};
        break;
    case OP_NONE:
    case N_OP_KINDS: return fail(d, QN_EINVAL, "no such operator: %d", (int)op->kind);
    }
    return f.rc;
}

/* Required operands are there, and weights are weights. */
static int check_operands(struct diag *d, const struct kgraph *g, const struct kop *op,
                          const struct op_info *info) {
    for (int i = 0; i < OP_MAX_IN; i++) {
        const int32_t t = op->in[i];
        if (i >= info->n_in || t == NO_TENSOR) {
            if (i < info->n_in && !info->in[i].optional)
                return fail(d, QN_ESHAPE, "layer %d %s: operand %s is missing", op->layer,
                            info->name, info->in[i].name);
            continue;
        }
        if (t < 0 || (size_t)t >= g->tensors.n)
            return fail(d, QN_EINVAL, "layer %d %s: operand %s is no tensor", op->layer, info->name,
                        info->in[i].name);
        enum tensor_role role = info->in[i].weight  ? TENSOR_WEIGHT
                                : info->in[i].state ? TENSOR_STATE
                                                    : TENSOR_ACTIVATION;
        if (g->tensors.items[t].role != role)
            return fail(d, QN_EINVAL, "layer %d %s: operand %s (%s) has the wrong role", op->layer,
                        info->name, info->in[i].name, g->tensors.items[t].name);
    }
    return QN_OK;
}

int kgraph_op(struct diag *d, struct kgraph *g, enum op_kind kind, int layer, const int32_t *in,
              int32_t *out) {
    struct op_info info;
    op_describe(kind, &info);
    struct kop op = {.kind = kind, .layer = layer};
    for (int i = 0; i < OP_MAX_IN; i++) op.in[i] = i < info.n_in ? in[i] : NO_TENSOR;
    for (int i = 0; i < OP_MAX_OUT; i++) op.out[i] = NO_TENSOR;
    struct tensor made[OP_MAX_OUT] = {0};
    TRY(check_operands(d, g, &op, &info));
    TRY(infer(d, g, &op, &info, made));
    for (int i = 0; i < info.n_out; i++) {
        if (info.out[i].state) {
            op.out[i] = out[i];
            continue;
        }
        out[i] = NO_TENSOR;
        if (made[i].n_dims == 0) continue;
        char *name;
        TRY(arena_printf(d, g->arena, &name, "%d.%s.%s", layer, info.name, info.out[i].name));
        made[i].name = name;
        made[i].role = TENSOR_ACTIVATION;
        made[i].producer = (int)g->ops.n;
        TRY(add_tensor(d, g, made[i], &op.out[i]));
        out[i] = op.out[i];
    }
    return ARRAY_PUSH(d, &g->ops, op);
}

uint32_t kgraph_units(const struct kgraph *g, const struct kop *op) {
    switch (op->kind) {
    case OP_QKV:
    case OP_QKV_HEADS: return spec_qkv_units(&g->spec);
    case OP_QKV_LINEAR: return spec_qkv_units(&g->spec) * g->spec.head_dim;
    case OP_ATTENTION_COMBINE: return g->spec.n_heads;
    case OP_LINEAR: return (uint32_t)g->tensors.items[op->in[LINEAR_W]].shape[0];
    case OP_LINEAR_PARTS: return (uint32_t)g->tensors.items[op->out[0]].shape[1];
    case OP_GATED_MLP: return g->spec.intermediate;
    case OP_PACK:
    case OP_PACK_LOGITS: return (uint32_t)(g->tensors.items[op->out[0]].shape[1] / PACK_K);
    case OP_LM_HEAD: return CEIL_DIV(g->spec.vocab, (uint32_t)LM_BLOCK);
    case OP_CLEAR: return CLEAR_UNITS;
    default: return 1;
    }
}

uint32_t kgraph_rows(const struct kgraph *g, const struct kop *op) {
    if (op->kind == OP_CLEAR) return 1;
    const bool logits =
        op->kind == OP_PACK_LOGITS || op->kind == OP_LM_HEAD || op->kind == OP_SAMPLE;
    return logits ? g->n_logit_rows : g->n_rows;
}

int kgraph_verify(struct diag *d, const struct kgraph *g) {
    for (size_t i = 0; i < g->ops.n; i++) {
        const struct kop *op = &g->ops.items[i];
        struct op_info info;
        struct tensor out[OP_MAX_OUT] = {0};
        op_describe(op->kind, &info);
        TRY(check_operands(d, g, op, &info));
        TRY(infer(d, g, op, &info, out));
        for (int k = 0; k < info.n_in; k++)
            if (op->in[k] != NO_TENSOR && g->tensors.items[op->in[k]].producer >= (int)i)
                return fail(d, QN_EVERIFY, "operator %zu (layer %d %s) reads %s before it is made",
                            i, op->layer, info.name, g->tensors.items[op->in[k]].name);
        for (int k = 0; k < info.n_out; k++) {
            if (out[k].n_dims == 0 && !info.out[k].state && op->out[k] == NO_TENSOR) continue;
            if (op->out[k] < 0 || (size_t)op->out[k] >= g->tensors.n)
                return fail(d, QN_EVERIFY, "operator %zu (layer %d %s) lacks output %s", i,
                            op->layer, info.name, info.out[k].name);
            const struct tensor *t = &g->tensors.items[op->out[k]];
            if (info.out[k].packable && tensor_is_packed(t) && out[k].shape[1] % PACK_K == 0)
                pack_shape(g, &out[k]);
            bool ok = info.out[k].state ? t->role == TENSOR_STATE
                                        : t->producer == (int)i && t->dtype == out[k].dtype &&
                                              t->n_dims == out[k].n_dims &&
                                              memcmp(t->shape, out[k].shape, sizeof t->shape) == 0;
            if (!ok)
                return fail(d, QN_EVERIFY, "operator %zu (layer %d %s): output %s is wrong", i,
                            op->layer, info.name, t->name);
        }
    }
    return QN_OK;
}

static void dump_tensor(const struct kgraph *g, int32_t index, struct strbuf *out) {
    static const char *const dtypes[] = {"f32", "bf16", "f16", "i32"};
    const struct tensor *t = &g->tensors.items[index];
    strbuf_printf(out, " %s:%s[", t->name, dtypes[t->dtype]);
    for (int i = 0; i < t->n_dims; i++)
        strbuf_printf(out, "%s%llu", i > 0 ? "," : "", (unsigned long long)t->shape[i]);
    strbuf_char(out, ']');
}

void kgraph_dump(const struct kgraph *g, struct strbuf *out) {
    strbuf_printf(out, "kernel graph: %zu operators, %u rows%s, %u logit rows, %u positions\n",
                  g->ops.n, g->n_rows, g->alone ? ", each of another request" : "", g->n_logit_rows,
                  g->context);
    for (size_t i = 0; i < g->ops.n; i++) {
        const struct kop *op = &g->ops.items[i];
        strbuf_printf(out, "%4zu L%d %s:", i, op->layer, op_name(op->kind));
        for (int k = 0; k < OP_MAX_IN; k++)
            if (op->in[k] != NO_TENSOR) dump_tensor(g, op->in[k], out);
        strbuf_str(out, " ->");
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (op->out[k] != NO_TENSOR) dump_tensor(g, op->out[k], out);
        strbuf_char(out, '\n');
    }
}

void kgraph_stats(const struct kgraph *g, struct kgraph_stats *stats) {
    *stats = (struct kgraph_stats){.n_ops = g->ops.n, .n_tensors = g->tensors.n};
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct tensor *t = &g->tensors.items[i];
        if (t->role == TENSOR_WEIGHT) stats->weight_bytes += tensor_bytes(t);
        if (t->role == TENSOR_ACTIVATION) stats->activation_bytes += tensor_bytes(t);
    }
}

struct bound {
    const char *field;
    uint64_t value, low, high;
};

int model_spec_verify(struct diag *d, const char *file, const struct model_spec *s) {
    const struct bound bounds[] = {
        {"num_hidden_layers", s->n_layers, 1, SPEC_MAX_LAYERS},
        {"hidden_size", s->hidden, 2, SPEC_MAX_HIDDEN},
        {"intermediate_size", s->intermediate, 1, SPEC_MAX_HIDDEN},
        {"vocab_size", s->vocab, 1, SPEC_MAX_VOCAB},
        {"num_attention_heads", s->n_heads, 1, SPEC_MAX_HEADS},
        {"num_key_value_heads", s->n_kv_heads, 1, s->n_heads},
        {"head_dim", s->head_dim, 2, SPEC_MAX_HEAD_DIM},
        {"num_attention_heads * head_dim", (uint64_t)s->n_heads * s->head_dim, 1, SPEC_MAX_HIDDEN},
        {"max_position_embeddings", s->max_position, 1, UINT32_MAX},
        {"torch_dtype", s->weight_dtype, DTYPE_F32, DTYPE_F16},
        {"rope type", s->rope_kind, ROPE_DEFAULT, ROPE_LLAMA3},
        {"eos_token_id (count)", s->n_eos, 0, SPEC_MAX_EOS},
        {"qkv bias", s->qkv_bias, 0, 1},
        {"o bias", s->o_bias, 0, 1},
        {"mlp bias", s->mlp_bias, 0, 1},
        {"qk norm", s->qk_norm, 0, 1},
        {"tie_word_embeddings", s->tied, 0, 1},
    };
    for (size_t i = 0; i < COUNT_OF(bounds); i++)
        if (bounds[i].value < bounds[i].low || bounds[i].value > bounds[i].high)
            return fail(d, QN_ESHAPE, "%s: %s: want a number from %llu to %llu, have %llu", file,
                        bounds[i].field, (unsigned long long)bounds[i].low,
                        (unsigned long long)bounds[i].high, (unsigned long long)bounds[i].value);
    if (s->n_heads % s->n_kv_heads != 0)
        return fail(d, QN_ESHAPE,
                    "%s: num_key_value_heads: want a divisor of num_attention_heads (%u), have %u",
                    file, s->n_heads, s->n_kv_heads);
    if (s->head_dim % 2 != 0)
        return fail(d, QN_ESHAPE, "%s: head_dim: want an even number, have %u", file, s->head_dim);
    if (!(s->rms_eps >= 0 && s->rms_eps < 1))
        return fail(d, QN_ESHAPE, "%s: rms_norm_eps: want a number from 0 to 1", file);
    if (!(s->rope_theta > 0 && isfinite(s->rope_theta)))
        return fail(d, QN_ESHAPE, "%s: rope_theta: want a positive number", file);
    if (s->rope_kind != ROPE_DEFAULT && !(s->rope_factor > 0 && isfinite(s->rope_factor)))
        return fail(d, QN_ESHAPE, "%s: rope factor: want a positive number", file);
    if (s->rope_kind == ROPE_LLAMA3 &&
        !(s->rope_low_freq_factor > 0 && s->rope_high_freq_factor > s->rope_low_freq_factor &&
          s->rope_original_max > 0))
        return fail(d, QN_ESHAPE,
                    "%s: rope scaling llama3: want 0 < low_freq_factor < high_freq_factor and a "
                    "positive original_max_position_embeddings",
                    file);
    return QN_OK;
}
