#include "model/decoder.h"
#include "base/checked.h"

const struct weight_names decoder_hf_names = {DECODER_HF_NAMES, DECODER_HF_EXPERTS};

/* The state that every step of building a layer needs. */
struct builder {
    struct diag *d;
    struct kgraph *g;
    const struct weight_names *names;
    uint32_t cuts; /* enum kgraph_cut */
    int layer;     /* -1 outside the layers */
};

/* The operands of one operator, all absent to begin with. */
struct operands {
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT];
};

static struct operands no_operands(void) {
    struct operands o;
    for (int i = 0; i < OP_MAX_IN; i++) o.in[i] = NO_TENSOR;
    for (int i = 0; i < OP_MAX_OUT; i++) o.out[i] = NO_TENSOR;
    return o;
}

static int add(const struct builder *b, enum op_kind kind, struct operands *o) {
    return kgraph_op(b->d, b->g, kind, b->layer, o->in, o->out);
}

static int global_matrix(const struct builder *b, const char *name, int32_t *out) {
    const struct model_spec *s = &b->g->spec;
    return kgraph_weight(b->d, b->g, name, s->weight_dtype, 2, s->vocab, s->hidden, out);
}

static int matrix(const struct builder *b, const char *name, uint64_t rows, uint64_t cols,
                  int32_t *out) {
    char *full;
    TRY(arena_printf(b->d, b->g->arena, &full, "%s.%d.%s.weight", b->names->layers, b->layer,
                     name));
    return kgraph_weight(b->d, b->g, full, b->g->spec.weight_dtype, 2, rows, cols, out);
}

/* A norm ("weight") or a bias ("bias") of `rows` elements, of any layer. */
static int vector_of(const struct builder *b, int layer, const char *name, const char *what,
                     uint64_t rows, int32_t *out) {
    char *full;
    TRY(arena_printf(b->d, b->g->arena, &full, "%s.%d.%s.%s", b->names->layers, layer, name, what));
    return kgraph_weight(b->d, b->g, full, DTYPE_F32, 1, rows, 0, out);
}

static int vector(const struct builder *b, const char *name, const char *what, uint64_t rows,
                  int32_t *out) {
    return vector_of(b, b->layer, name, what, rows, out);
}

/* Tensors of a layer that one operator reads as one; what: the end of their names (".weight",
 * ".bias"). */
static int joined(const struct builder *b, const char *const *names, const uint64_t *rows, int n,
                  const char *what, uint64_t cols, int32_t *out) {
    struct kgraph_part parts[KGRAPH_MAX_PARTS];
    const bool matrix = cols != 0;
    for (int i = 0; i < n; i++) {
        char *full;
        TRY(arena_printf(b->d, b->g->arena, &full, "%s.%d.%s.%s", b->names->layers, b->layer,
                         names[i], what));
        parts[i] = (struct kgraph_part){.name = full, .rows = rows[i]};
    }
    return kgraph_weight_joined(b->d, b->g, parts, n,
                                matrix ? (enum dtype)b->g->spec.weight_dtype : DTYPE_F32,
                                matrix ? 2 : 1, cols, out);
}

/* The norm before a layer's attention; after the last layer the one before the LM head. */
static int attention_norm(const struct builder *b, int layer, int32_t *out) {
    const struct model_spec *s = &b->g->spec;
    if (layer == (int)s->n_layers)
        return kgraph_weight(b->d, b->g, b->names->norm, DTYPE_F32, 1, s->hidden, 0, out);
    return vector_of(b, layer, b->names->attn_norm, "weight", s->hidden, out);
}

/* Activations in the layout of the tensor cores: packed by their writer if it can, else by PACK;
 * unchanged unless `packed`. */
static int build_pack(const struct builder *b, bool packed, int32_t *x) {
    struct operands o = no_operands();
    if (!packed) return QN_OK;
    kgraph_pack_output(b->g, *x, &packed);
    if (packed) return QN_OK;
    o.in[PACK_X] = *x;
    TRY(add(b, OP_PACK, &o));
    *x = o.out[0];
    return QN_OK;
}

/* The residual stream between two operators: x; with PACK_X also normed, and its squares. */
struct stream {
    int32_t x, normed, squares;
};

/* Adds an operator that writes the stream (op_writes_stream). *o holds their operands except the
 * next norm's weights. */
static int build_stream(const struct builder *b, enum op_kind kind, struct operands *o, int next,
                        int32_t norm, struct stream *s) {
    const bool ahead = (b->cuts & KGRAPH_PACK_X) != 0;
    o->in[next] = ahead ? norm : NO_TENSOR;
    TRY(add(b, kind, o));
    *s = (struct stream){o->out[STREAM_X], o->out[STREAM_NORMED], o->out[STREAM_SQUARES]};
    if (!ahead) return QN_OK;
    TRY(build_pack(b, true, &s->normed));
    const bool added = b->g->tensors.items[s->squares].shape[1] == 1;
    if ((b->cuts & KGRAPH_SUM_SQUARES) == 0 || added) return QN_OK;
    struct operands sum = no_operands();
    sum.in[0] = s->squares;
    TRY(add(b, OP_SUM_SQUARES, &sum));
    s->squares = sum.out[0];
    return QN_OK;
}

/* The operands of an operator that norms the stream, or that reads it normed. */
static void stream_operands(const struct stream *s, int32_t norm, int32_t *x, int32_t *norm_in,
                            int32_t *squares) {
    const bool ahead = s->normed != NO_TENSOR;
    *x = ahead ? s->normed : s->x;
    *norm_in = ahead ? NO_TENSOR : norm;
    *squares = s->squares;
}

/* The operands of operators on heads beside the projections: weights of norms, the layer's KV
 * cache. */
static int head_operands(const struct builder *b, int q_norm, int k_norm, int kv,
                         struct operands *o) {
    const struct model_spec *s = &b->g->spec;
    if (s->qk_norm) {
        TRY(vector(b, b->names->q_norm, "weight", s->head_dim, &o->in[q_norm]));
        TRY(vector(b, b->names->k_norm, "weight", s->head_dim, &o->in[k_norm]));
    }
    char *state;
    TRY(arena_printf(b->d, b->g->arena, &state, "kv.%d", b->layer));
    return kgraph_state(b->d, b->g, state, &o->out[kv]);
}

/* QKV's own operands, without those of heads: three matrices. */
static int separate_projections(const struct builder *b, const uint64_t rows[3],
                                struct operands *o) {
    const struct model_spec *spec = &b->g->spec;
    const char *const names[3] = {b->names->q, b->names->k, b->names->v};
    for (int i = 0; i < 3; i++) {
        TRY(matrix(b, names[i], rows[i], spec->hidden, &o->in[QKV_WQ + i]));
        if (spec->qkv_bias) TRY(vector(b, names[i], "bias", rows[i], &o->in[QKV_BQ + i]));
    }
    return QN_OK;
}

/* The projections as one matrix; w, bias: slots. */
static int joined_projections(const struct builder *b, const uint64_t rows[3], int w, int bias,
                              struct operands *o) {
    const struct model_spec *spec = &b->g->spec;
    const char *const names[3] = {b->names->q, b->names->k, b->names->v};
    TRY(joined(b, names, rows, 3, "weight", spec->hidden, &o->in[w]));
    return spec->qkv_bias ? joined(b, names, rows, 3, "bias", 0, &o->in[bias]) : QN_OK;
}

/* Adds QKV_LINEAR; sets *qkv to the projections. */
static int build_projections(const struct builder *b, const struct stream *s, int32_t norm,
                             const uint64_t rows[3], int32_t *qkv) {
    struct operands o = no_operands();
    stream_operands(s, norm, &o.in[QKV_LINEAR_X], &o.in[QKV_LINEAR_NORM],
                    &o.in[QKV_LINEAR_SQUARES]);
    TRY(joined_projections(b, rows, QKV_LINEAR_W, QKV_LINEAR_BIAS, &o));
    TRY(add(b, OP_QKV_LINEAR, &o));
    *qkv = o.out[0];
    return QN_OK;
}

/* Chooses one of three operators that make heads and sets its operands, except those that all three
 * have in common. *q_norm and *k_norm are the slots of the norms. */
static int heads_kind(const struct builder *b, const struct stream *s, const uint64_t rows[3],
                      struct operands *o, enum op_kind *kind, int *q_norm, int *k_norm) {
    int32_t norm, squares;
    TRY(attention_norm(b, b->layer, &norm));
    if ((b->cuts & KGRAPH_CUT_QKV) == 0) {
        *kind = OP_QKV;
        *q_norm = QKV_Q_NORM;
        *k_norm = QKV_K_NORM;
        stream_operands(s, norm, &o->in[QKV_X], &o->in[QKV_NORM], &squares);
        return separate_projections(b, rows, o);
    }
    if (b->cuts & KGRAPH_FUSE_QKV) {
        *kind = OP_QKV_FUSED;
        *q_norm = FUSED_Q_NORM;
        *k_norm = FUSED_K_NORM;
        stream_operands(s, norm, &o->in[FUSED_X], &norm, &o->in[FUSED_SQUARES]);
        return joined_projections(b, rows, FUSED_W, FUSED_BIAS, o);
    }
    *kind = OP_QKV_HEADS;
    *q_norm = HEADS_Q_NORM;
    *k_norm = HEADS_K_NORM;
    return build_projections(b, s, norm, rows, &o->in[HEADS_QKV]);
}

/* Writes this iteration's rows of the layer's KV cache; sets *q and *kv. With JOIN_HEADS *q is the
 * projections, and the attention operator does the rest. */
static int build_qkv(const struct builder *b, const struct stream *s, int32_t *q, int32_t *kv) {
    const struct op_attrs *a = &b->g->attrs;
    const uint64_t rows[3] = {(uint64_t)a->heads * a->D, (uint64_t)a->kv * a->D,
                              (uint64_t)a->kv * a->D};
    struct operands o = no_operands();
    enum op_kind kind;
    int q_norm, k_norm;
    if (b->cuts & KGRAPH_JOIN_HEADS) {
        int32_t norm;
        TRY(attention_norm(b, b->layer, &norm));
        return build_projections(b, s, norm, rows, q);
    }
    TRY(heads_kind(b, s, rows, &o, &kind, &q_norm, &k_norm));
    TRY(head_operands(b, q_norm, k_norm, QKV_OUT_KV, &o));
    TRY(add(b, kind, &o));
    *q = o.out[QKV_OUT_Q];
    *kv = o.out[QKV_OUT_KV];
    return QN_OK;
}

/* ---- latent attention ---- */

/* Holds for both latents' norms, whatever rms_norm_eps is. */
static const float LATENT_EPS = 1e-6f;

/* A matrix of a layer, or the rows of it that `source` selects: its name, and whether it has a
 * bias. */
struct latent_part {
    const char *name;
    uint64_t rows;
    struct weight_source source;
    bool bias;
};

/* `rows` rows of `cols` columns in runs. Each run ends with the rows that RoPE turns. The
 * checkpoint has the two rows of a pair side by side; here they become halves. */
static struct weight_source turned_rows(const struct builder *b, uint64_t rows, uint64_t cols,
                                        uint32_t run) {
    return (struct weight_source){.rows = (uint32_t)rows,
                                  .cols = (uint32_t)cols,
                                  .run = run,
                                  .skip = run,
                                  .pairs = b->g->spec.latent.rope};
}

/* The parts' matrices (cols) as one weight, or their biases (cols 0). */
static int joined_parts(const struct builder *b, const struct latent_part *of, int n,
                        const char *what, uint64_t cols, int32_t *out) {
    const enum dtype dtype = cols != 0 ? (enum dtype)b->g->spec.weight_dtype : DTYPE_F32;
    struct kgraph_part parts[KGRAPH_MAX_PARTS];
    for (int i = 0; i < n; i++) {
        char *full;
        parts[i] = (struct kgraph_part){.rows = of[i].rows, .source = of[i].source};
        if (cols == 0) parts[i].source.cols = 0;
        TRY(arena_printf(b->d, b->g->arena, &full, "%s.%d.%s.%s", b->names->layers, b->layer,
                         of[i].name, what));
        parts[i].name = full;
    }
    return kgraph_weight_joined(b->d, b->g, parts, n, dtype, cols != 0 ? 2 : 1, cols, out);
}

/* Sets *out to projections of the normed stream, side by side. */
static int build_latent_linear(const struct builder *b, const struct stream *s, int32_t norm,
                               const struct latent_part *parts, int n, int32_t *out) {
    struct operands o = no_operands();
    stream_operands(s, norm, &o.in[QKV_LINEAR_X], &o.in[QKV_LINEAR_NORM],
                    &o.in[QKV_LINEAR_SQUARES]);
    TRY(joined_parts(b, parts, n, "weight", b->g->spec.hidden, &o.in[QKV_LINEAR_W]));
    if (parts[0].bias) TRY(joined_parts(b, parts, n, "bias", 0, &o.in[QKV_LINEAR_BIAS]));
    TRY(add(b, OP_QKV_LINEAR, &o));
    *out = o.out[0];
    return QN_OK;
}

/* The heads' projections from the queries' latent, the first columns of x. */
static int build_from_latent(const struct builder *b, int32_t x, int32_t *q) {
    const struct model_spec *s = &b->g->spec;
    const uint64_t rows = (uint64_t)s->n_heads * s->head_dim, rank = s->latent.q_rank;
    const struct latent_part part = {b->names->q_b, rows, turned_rows(b, rows, rank, s->head_dim),
                                     false};
    struct operands o = no_operands(), linear = no_operands();
    o.in[LATENT_NORM_X] = x;
    TRY(vector(b, b->names->q_a_norm, "weight", rank, &o.in[LATENT_NORM_W]));
    b->g->attrs.eps = LATENT_EPS;
    TRY(add(b, OP_LATENT_NORM, &o));
    b->g->attrs.eps = s->rms_eps;
    linear.in[LINEAR_A] = o.out[0];
    TRY(build_pack(b, b->cuts & KGRAPH_PACK_X, &linear.in[LINEAR_A]));
    TRY(joined_parts(b, &part, 1, "weight", rank, &linear.in[LINEAR_W]));
    TRY(add(b, OP_LINEAR, &linear));
    *q = linear.out[0];
    return QN_OK;
}

/* Projects the heads into *raw, and the latent and the shared key into *c. The heads are the first
 * columns of *raw, the latent and the key the last ones of *c. */
static int build_latent_projections(const struct builder *b, const struct stream *s, int32_t *raw,
                                    int32_t *c) {
    const struct model_spec *spec = &b->g->spec;
    const struct latent_spec *l = &spec->latent;
    const uint64_t own = (uint64_t)spec->n_heads * spec->head_dim, hidden = spec->hidden;
    const uint32_t width = l->kv_rank + l->rope;
    const struct latent_part parts[2] = {
        l->q_rank != 0 ? (struct latent_part){b->names->q_a, l->q_rank, {0}, spec->qkv_bias}
                       : (struct latent_part){b->names->q, own,
                                              turned_rows(b, own, hidden, spec->head_dim), false},
        {b->names->kv_a, width, turned_rows(b, width, hidden, width), spec->qkv_bias}};
    const int n = spec_joins_latent(spec) ? 2 : 1;
    int32_t norm;
    TRY(attention_norm(b, b->layer, &norm));
    TRY(build_latent_linear(b, s, norm, parts, n, raw));
    *c = *raw;
    if (n == 1) TRY(build_latent_linear(b, s, norm, parts + 1, 1, c));
    return l->q_rank != 0 ? build_from_latent(b, *raw, raw) : QN_OK;
}

/* The matrix that latents are multiplied by: the keys' rows of each head, transposed, or the
 * values'. */
static int latent_matrix(const struct builder *b, bool keys, int32_t *out) {
    const struct model_spec *s = &b->g->spec;
    const uint32_t n = s->head_dim - s->latent.rope, v = s->latent.v_dim, rank = s->latent.kv_rank;
    const struct weight_source source = {.rows = s->n_heads * (n + v),
                                         .cols = rank,
                                         .from = keys ? 0 : n,
                                         .run = keys ? rank : v,
                                         .skip = n + v,
                                         .transposed = keys};
    const struct latent_part part = {b->names->kv_b, (uint64_t)s->n_heads * source.run, source,
                                     false};
    return joined_parts(b, &part, 1, "weight", keys ? n : rank, out);
}

/* Queries in the space of latents, and this iteration's rows of the layer's KV cache. */
static int build_latent_heads(const struct builder *b, const struct stream *s, int32_t *q,
                              int32_t *kv) {
    const struct model_spec *spec = &b->g->spec;
    struct operands o = no_operands();
    char *state;
    TRY(build_latent_projections(b, s, &o.in[LATENT_RAW], &o.in[LATENT_C]));
    TRY(vector(b, b->names->kv_a_norm, "weight", spec->latent.kv_rank, &o.in[LATENT_C_NORM]));
    TRY(latent_matrix(b, true, &o.in[LATENT_W]));
    TRY(arena_printf(b->d, b->g->arena, &state, "kv.%d", b->layer));
    TRY(kgraph_state(b->d, b->g, state, &o.out[LATENT_OUT_KV]));
    b->g->attrs.eps = LATENT_EPS;
    TRY(add(b, OP_LATENT_HEADS, &o));
    b->g->attrs.eps = spec->rms_eps;
    *q = o.out[LATENT_OUT_Q];
    *kv = o.out[LATENT_OUT_KV];
    return QN_OK;
}

/* Whether one operator merges the pieces of a context and makes the heads' values. */
static bool merges_values(const struct builder *b) {
    const uint32_t both = KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_VALUES;
    return spec_is_latent(&b->g->spec) && (b->cuts & both) == both;
}

static int build_latent_values(const struct builder *b, int32_t *o) {
    struct operands v = no_operands();
    v.in[VALUES_A] = *o;
    TRY(latent_matrix(b, false, &v.in[VALUES_W]));
    TRY(add(b, merges_values(b) ? OP_LATENT_MERGE : OP_LATENT_VALUES, &v));
    *o = v.out[0];
    return QN_OK;
}

/* ---- attention ---- */

/* Attention over a few rows, from the projections on: pieces of the context, or all of it. */
static int build_joined(const struct builder *b, enum op_kind kind, int32_t qkv, int32_t *out) {
    struct operands o = no_operands();
    o.in[HEADS_QKV] = qkv;
    TRY(head_operands(b, HEADS_Q_NORM, HEADS_K_NORM, JOINED_OUT_KV, &o));
    TRY(add(b, kind, &o));
    *out = o.out[0];
    return QN_OK;
}

static int build_attention(const struct builder *b, int32_t q, int32_t kv, int32_t *out) {
    const bool split = (b->cuts & KGRAPH_CUT_ATTENTION) != 0;
    struct operands o = no_operands();
    if (b->cuts & KGRAPH_JOIN_HEADS) {
        TRY(build_joined(b, split ? OP_ATTENTION_STEP : OP_ATTENTION_WHOLE, q, out));
    } else {
        o.in[ATTENTION_Q] = q;
        o.in[ATTENTION_KV] = kv;
        TRY(add(b, split ? OP_ATTENTION_SPLIT : OP_ATTENTION, &o));
        *out = o.out[0];
    }
    if (!split || merges_values(b)) return QN_OK;
    o = no_operands();
    o.in[MERGE_PART] = *out;
    TRY(add(b, OP_ATTENTION_MERGE, &o));
    *out = o.out[0];
    return QN_OK;
}

/* x += a w^T (+ bias): the output projection of the attention or of the MLP. `norm`: the next
 * norm's weights. */
static int build_projection(const struct builder *b, const char *name, int32_t a, uint64_t cols,
                            bool bias, bool packed, int32_t norm, struct stream *s) {
    const uint64_t hidden = b->g->spec.hidden;
    enum op_kind kind = OP_LINEAR;
    int at = LINEAR_BIAS; /* bias, residual and next follow each other in both forms */
    struct operands o = no_operands();
    TRY(build_pack(b, packed, &a));
    o.in[LINEAR_A] = a; /* LINEAR_SPLITK's operands are LINEAR's first ones */
    TRY(matrix(b, name, hidden, cols, &o.in[LINEAR_W]));
    if (b->cuts & KGRAPH_CUT_LINEAR) {
        TRY(add(b, OP_LINEAR_SPLITK, &o));
        const int32_t parts = o.out[0];
        kind = OP_SPLITK_SUM;
        at = SUM_BIAS;
        o = no_operands();
        o.in[SUM_PARTS] = parts;
    }
    if (bias) TRY(vector(b, name, "bias", hidden, &o.in[at]));
    o.in[at + 1] = s->x;
    return build_stream(b, kind, &o, at + 2, norm, s);
}

/* A gated MLP of a layer: its names and its width. */
struct mlp {
    const char *gate, *up, *down;
    uint32_t width;
    bool bias;
};

static struct mlp dense_mlp(const struct builder *b) {
    const struct weight_names *w = b->names;
    return (struct mlp){w->gate, w->up, w->down, b->g->spec.intermediate, b->g->spec.mlp_bias != 0};
}

/* The two matrices of GATED_MLP; in images they share row blocks, half and half. */
static int gate_and_up(const struct builder *b, const struct mlp *m, struct operands *o) {
    const struct model_spec *spec = &b->g->spec;
    const char *const names[2] = {m->gate, m->up};
    char *full[2];
    if ((b->cuts & KGRAPH_IMAGES) == 0) {
        TRY(matrix(b, names[0], m->width, spec->hidden, &o->in[MLP_WG]));
        return matrix(b, names[1], m->width, spec->hidden, &o->in[MLP_WU]);
    }
    for (int i = 0; i < 2; i++)
        TRY(arena_printf(b->d, b->g->arena, &full[i], "%s.%d.%s.weight", b->names->layers, b->layer,
                         names[i]));
    return kgraph_weights_in_turns(b->d, b->g, (const char *const *)full, 2, KGRAPH_TURN,
                                   (enum dtype)spec->weight_dtype, m->width, spec->hidden,
                                   &o->in[MLP_WG]);
}

static int build_gated_mlp(const struct builder *b, const struct mlp *m, const struct stream *s,
                           int32_t norm, int32_t *h) {
    struct operands o = no_operands();
    stream_operands(s, norm, &o.in[MLP_X], &o.in[MLP_NORM], &o.in[MLP_SQUARES]);
    TRY(gate_and_up(b, m, &o));
    if (m->bias) {
        TRY(vector(b, m->gate, "bias", m->width, &o.in[MLP_BG]));
        TRY(vector(b, m->up, "bias", m->width, &o.in[MLP_BU]));
    }
    TRY(add(b, OP_GATED_MLP, &o));
    *h = o.out[0];
    return QN_OK;
}

static int build_dense(const struct builder *b, int32_t norm, int32_t next_norm, struct stream *s) {
    const struct mlp m = dense_mlp(b);
    int32_t h;
    TRY(build_gated_mlp(b, &m, s, norm, &h));
    return build_projection(b, m.down, h, m.width, m.bias, b->cuts & KGRAPH_PACK_H, next_norm, s);
}

/* The output of the MLP that all tokens use beside their experts; NO_TENSOR: there is none. */
static int build_shared(const struct builder *b, const struct stream *s, int32_t norm,
                        int32_t *out) {
    const struct weight_names *w = b->names;
    const struct mlp m = {w->shared_gate, w->shared_up, w->shared_down,
                          b->g->spec.experts.shared_width, false};
    struct operands o = no_operands();
    *out = NO_TENSOR;
    if (m.width == 0) return QN_OK;
    TRY(build_gated_mlp(b, &m, s, norm, &o.in[LINEAR_A]));
    TRY(build_pack(b, b->cuts & KGRAPH_PACK_H, &o.in[LINEAR_A]));
    TRY(matrix(b, m.down, b->g->spec.hidden, m.width, &o.in[LINEAR_W]));
    TRY(add(b, OP_LINEAR, &o));
    *out = o.out[0];
    return QN_OK;
}

/* The pattern of the names of a layer's experts. */
static int pattern_of(const struct builder *b, const char *name, char **out) {
    return arena_printf(b->d, b->g->arena, out, "%s.%d.%s.weight", b->names->layers, b->layer,
                        name);
}

/* A layer's experts as one weight [experts, rows, cols]; in images each expert has whole row
 * blocks. */
static int stacked(const struct builder *b, const char *name, uint64_t rows, uint64_t cols,
                   int32_t *out) {
    char *pattern;
    TRY(pattern_of(b, name, &pattern));
    return kgraph_weight_stacked(b->d, b->g, pattern, b->g->spec.experts.n,
                                 (enum dtype)b->g->spec.weight_dtype, rows,
                                 b->cuts & KGRAPH_IMAGES ? 2 * KGRAPH_TURN : 1, cols, out);
}

/* Gate and up of a layer's experts; in images they share row blocks, half and half. */
static int stacked_gate_and_up(const struct builder *b, int32_t *out) {
    const struct model_spec *s = &b->g->spec;
    char *patterns[2];
    if ((b->cuts & KGRAPH_IMAGES) == 0) {
        TRY(stacked(b, b->names->expert_gate, s->experts.width, s->hidden, &out[0]));
        return stacked(b, b->names->expert_up, s->experts.width, s->hidden, &out[1]);
    }
    TRY(pattern_of(b, b->names->expert_gate, &patterns[0]));
    TRY(pattern_of(b, b->names->expert_up, &patterns[1]));
    return kgraph_stacks_in_turns(b->d, b->g, (const char *const *)patterns, 2, s->experts.n,
                                  KGRAPH_TURN, (enum dtype)s->weight_dtype, s->experts.width,
                                  s->hidden, out);
}

/* Adds ROUTE, or the two operators instead of it; *route gets ROUTE's outputs. */
static int build_choice(const struct builder *b, int32_t logits, struct operands *route) {
    struct operands top = no_operands();
    *route = no_operands();
    if ((b->cuts & KGRAPH_GROUP) == 0) {
        route->in[ROUTE_LOGITS] = logits;
        return add(b, OP_ROUTE, route);
    }
    top.in[ROUTE_LOGITS] = logits;
    TRY(add(b, OP_ROUTE_TOP_K, &top));
    route->in[ROUTE_IDS] = top.out[TOP_K_OUT_IDS];
    TRY(add(b, OP_ROUTE_LIST, route));
    route->out[ROUTE_OUT_WEIGHT] = top.out[TOP_K_OUT_WEIGHT];
    return QN_OK;
}

/* Adds ROUTER, and what chooses by its logits; *route gets ROUTE's outputs. The gate of shared
 * experts is the last row of the router. */
static int build_route(const struct builder *b, const struct stream *s, int32_t norm,
                       struct operands *route) {
    const struct model_spec *spec = &b->g->spec;
    const char *const names[2] = {b->names->router, b->names->shared_router};
    const uint64_t rows[2] = {spec->experts.n, 1};
    struct operands o = no_operands();
    o.in[ROUTER_X] = s->x;
    o.in[ROUTER_NORM] = norm;
    TRY(joined(b, names, rows, spec->experts.shared_gate ? 2 : 1, "weight", spec->hidden,
               &o.in[ROUTER_W]));
    TRY(add(b, OP_ROUTER, &o));
    return build_choice(b, o.out[0], route);
}

/* The experts of many rows; shared: what the shared MLP made. */
static int build_grouped(const struct builder *b, const struct operands *route, int32_t shared,
                         int32_t norm, int32_t next_norm, struct stream *s) {
    const struct model_spec *spec = &b->g->spec;
    struct operands gather = no_operands(), up = no_operands(), down = no_operands(),
                    sum = no_operands();
    gather.in[GATHER_X] = s->x;
    gather.in[GATHER_NORM] = norm;
    gather.in[GATHER_SLOTS] = down.in[GROUPED_DOWN_SLOTS] = route->out[ROUTE_OUT_SLOTS];
    TRY(add(b, OP_EXPERT_GATHER, &gather));
    up.in[GROUPED_UP_ROWS] = gather.out[GATHER_OUT_ROWS];
    up.in[GROUPED_UP_SQUARES] = gather.out[GATHER_OUT_SQUARES];
    up.in[GROUPED_UP_LIST] = down.in[GROUPED_DOWN_LIST] = route->out[ROUTE_OUT_LIST];
    TRY(stacked_gate_and_up(b, &up.in[GROUPED_UP_WG]));
    TRY(add(b, OP_GROUPED_GATE_UP, &up));
    down.in[GROUPED_DOWN_H] = up.out[0];
    TRY(stacked(b, b->names->expert_down, spec->hidden, spec->experts.width,
                &down.in[GROUPED_DOWN_WD]));
    TRY(add(b, OP_GROUPED_DOWN, &down));
    sum.in[EXPERT_PARTS] = down.out[0];
    sum.in[EXPERT_WEIGHT] = route->out[ROUTE_OUT_WEIGHT];
    sum.in[EXPERT_SHARED] = shared;
    sum.in[EXPERT_RESIDUAL] = s->x;
    return build_stream(b, OP_EXPERT_SUM, &sum, EXPERT_NEXT, next_norm, s);
}

/* The MLP of a layer with experts, and the shared MLP. The operators that choose the experts come
 * first: the shared MLP can run while they make the list of experts. In graphs of images h is
 * packed, unless it is a single row's that EXPERT_DOWN stages. */
static int build_experts(const struct builder *b, int32_t norm, int32_t next_norm,
                         struct stream *s) {
    const struct model_spec *spec = &b->g->spec;
    struct operands route, up = no_operands(), down = no_operands();
    bool packed;
    TRY(build_route(b, s, norm, &route));
    TRY(build_shared(b, s, norm, &down.in[DOWN_SHARED]));
    if (b->cuts & KGRAPH_GROUP)
        return build_grouped(b, &route, down.in[DOWN_SHARED], norm, next_norm, s);
    up.in[GATE_UP_X] = s->x;
    up.in[GATE_UP_NORM] = norm;
    up.in[GATE_UP_LIST] = down.in[DOWN_LIST] = route.out[ROUTE_OUT_LIST];
    up.in[GATE_UP_SLOTS] = down.in[DOWN_SLOTS] = route.out[ROUTE_OUT_SLOTS];
    TRY(stacked_gate_and_up(b, &up.in[GATE_UP_WG]));
    if (b->cuts & KGRAPH_IMAGES && (b->g->n_rows == 1 || b->cuts & KGRAPH_RESET_SENTINELS))
        up.in[GATE_UP_LOGITS] = route.in[ROUTE_LOGITS];
    TRY(add(b, OP_EXPERT_GATE_UP, &up));
    if (b->cuts & KGRAPH_IMAGES) kgraph_pack_output(b->g, up.out[0], &packed);
    down.in[DOWN_H] = up.out[0];
    down.in[DOWN_WEIGHT] = route.out[ROUTE_OUT_WEIGHT];
    down.in[DOWN_RESIDUAL] = s->x;
    TRY(stacked(b, b->names->expert_down, spec->hidden, spec->experts.width, &down.in[DOWN_WD]));
    return build_stream(b, OP_EXPERT_DOWN, &down, DOWN_NEXT, next_norm, s);
}

static int build_layer(const struct builder *b, struct stream *s) {
    const struct model_spec *spec = &b->g->spec;
    const uint64_t o_cols = (uint64_t)spec->n_heads * spec_v_dim(spec);
    const bool latent = spec_is_latent(spec);
    int32_t q = NO_TENSOR, kv = NO_TENSOR, o, mlp_norm, next_norm;
    TRY(latent ? build_latent_heads(b, s, &q, &kv) : build_qkv(b, s, &q, &kv));
    TRY(build_attention(b, q, kv, &o));
    if (latent) TRY(build_latent_values(b, &o));
    TRY(vector(b, b->names->mlp_norm, "weight", spec->hidden, &mlp_norm));
    TRY(build_projection(b, b->names->o, o, o_cols, spec->o_bias, b->cuts & KGRAPH_PACK_O, mlp_norm,
                         s));
    TRY(attention_norm(b, b->layer + 1, &next_norm));
    if (spec_is_sparse(spec, (uint32_t)b->layer)) return build_experts(b, mlp_norm, next_norm, s);
    return build_dense(b, mlp_norm, next_norm, s);
}

_Static_assert(LOGIT_BAND_ROWS % LOGIT_BAND_STEP == 0, "rounded up they are no more");

/* Rows of the next band if n logit rows are left for n_bands bands. */
static uint32_t band_of(uint32_t n, uint32_t n_bands) {
    return n_bands == 1 ? n : (uint32_t)align_up(CEIL_DIV(n, n_bands), LOGIT_BAND_STEP);
}

/* Adds LM_HEAD and SAMPLE of the graph's band; `o` holds the operands of LM_HEAD. */
static int build_band(const struct builder *b, struct operands *o) {
    const struct op_attrs *a = &b->g->attrs;
    struct operands clear = no_operands(), sample = no_operands();
    TRY(add(b, OP_LM_HEAD, o));
    if ((b->cuts & KGRAPH_RESET_SENTINELS) && a->band_first + a->band == b->g->n_logit_rows) {
        clear.in[RESET_AFTER] = o->out[LM_OUT_PART];
        TRY(add(b, OP_RESET_SENTINELS, &clear));
    }
    sample.in[SAMPLE_LOGITS] = o->out[LM_OUT_LOGITS];
    sample.in[SAMPLE_PART] = o->out[LM_OUT_PART];
    TRY(add(b, OP_SAMPLE, &sample));
    o->in[LM_AFTER] = sample.out[0];
    return QN_OK;
}

static int build_head(const struct builder *b, const struct stream *s) {
    const struct model_spec *spec = &b->g->spec;
    struct op_attrs *a = &b->g->attrs;
    struct operands o = no_operands(), pack = no_operands();
    int32_t norm;
    TRY(attention_norm(b, (int)spec->n_layers, &norm));
    stream_operands(s, norm, &o.in[LM_X], &o.in[LM_NORM], &o.in[LM_SQUARES]);
    if (b->cuts & KGRAPH_PACK_X) {
        pack.in[PACK_X] = o.in[LM_X];
        TRY(add(b, OP_PACK_LOGITS, &pack));
        o.in[LM_X] = pack.out[0];
    }
    TRY(global_matrix(b, spec->tied ? b->names->embed : b->names->head, &o.in[LM_W]));
    uint32_t left = b->g->n_logit_rows;
    for (uint32_t n = CEIL_DIV(left, (uint32_t)LOGIT_BAND_ROWS); n > 0; n--, left -= a->band) {
        a->band_first = b->g->n_logit_rows - left;
        a->band = band_of(left, n);
        TRY(build_band(b, &o));
    }
    return QN_OK;
}

int decoder_build(struct diag *d, struct kgraph *g, const struct family *family, uint32_t cuts) {
    struct builder b = {.d = d, .g = g, .names = family->weights, .cuts = cuts, .layer = -1};
    struct operands embed = no_operands();
    struct stream s;
    int32_t norm;
    TRY(global_matrix(&b, family->weights->embed, &embed.in[EMBED_TABLE]));
    TRY(attention_norm(&b, 0, &norm));
    TRY(build_stream(&b, OP_EMBED, &embed, EMBED_NEXT, norm, &s));
    for (uint32_t layer = 0; layer < g->spec.n_layers; layer++) {
        b.layer = (int)layer;
        g->attrs.window = spec_window(&g->spec, layer);
        TRY(build_layer(&b, &s));
    }
    b.layer = -1;
    g->attrs.window = g->spec.sliding_window;
    return build_head(&b, &s);
}
