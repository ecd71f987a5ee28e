/* fixture.h - programs for the compiler's tests, made without any model file. */
#ifndef QN_TESTS_TASK_FIXTURE_H
#define QN_TESTS_TASK_FIXTURE_H

#include "graph/kernel_graph.h"
#include "task/program_make.h"
#include "task/task_graph.h"
#include "task/task_verify.h"

#include <stdio.h>
#include <stdlib.h>

static inline struct model_spec fixture_spec(uint32_t n_layers, uint32_t hidden, uint32_t heads,
                                             uint32_t kv_heads, uint32_t head_dim,
                                             uint32_t intermediate, uint32_t vocab) {
    return (struct model_spec){.n_layers = n_layers,
                               .hidden = hidden,
                               .intermediate = intermediate,
                               .vocab = vocab,
                               .n_heads = heads,
                               .n_kv_heads = kv_heads,
                               .head_dim = head_dim,
                               .max_position = 40960,
                               .rms_eps = 1e-6f,
                               .weight_dtype = DTYPE_BF16,
                               .rope_theta = 1e6f,
                               .bos = -1};
}

static inline struct model_spec fixture_qwen3_8b(void) {
    return fixture_spec(36, 4096, 32, 8, 128, 12288, 151936);
}

struct fixture_names {
    char norm[40], wq[40], wk[40], wv[40], kv[40], wo[40], norm2[40], wg[40], wu[40], wd[40];
    char router[40], eg[40], eu[40], ed[40];
};

static inline void fixture_layer_names(struct fixture_names *n, uint32_t layer) {
#define NAME(field)  snprintf(n->field, sizeof n->field, "%u." #field, layer)
#define STACK(field) snprintf(n->field, sizeof n->field, "%u." #field ".*", layer)
    NAME(norm), NAME(wq), NAME(wk), NAME(wv), NAME(kv), NAME(wo), NAME(norm2), NAME(wg), NAME(wu);
    NAME(wd), NAME(router), STACK(eg), STACK(eu), STACK(ed);
#undef NAME
#undef STACK
}

static inline int fixture_weight(struct diag *d, struct kgraph *g, const char *name, uint64_t rows,
                                 uint64_t cols, int32_t *index) {
    return cols == 0 ? kgraph_weight(d, g, name, DTYPE_F32, 1, rows, 0, index)
                     : kgraph_weight(d, g, name, DTYPE_BF16, 2, rows, cols, index);
}

/* As CUDA's graphs are: of one row, of a few (whole contexts, and with activations that are
 * sentinels words until they are stored), of several, of many. */
#define FIXTURE_STEP      (KGRAPH_CUT_QKV | KGRAPH_CUT_ATTENTION | KGRAPH_JOIN_HEADS)
#define FIXTURE_PACK      (KGRAPH_CUT_QKV | KGRAPH_PACK_X | KGRAPH_PACK_O | KGRAPH_PACK_H)
#define FIXTURE_FEW       (FIXTURE_PACK | FIXTURE_STEP)
#define FIXTURE_WHOLE     (FIXTURE_PACK | KGRAPH_JOIN_HEADS)
#define FIXTURE_SENTINELS (FIXTURE_WHOLE | KGRAPH_RESET_SENTINELS)
#define FIXTURE_MANY      (FIXTURE_PACK | KGRAPH_SUM_SQUARES)
#define FIXTURE_CUT       (FIXTURE_MANY | KGRAPH_CUT_LINEAR)
#define FIXTURE_GROUP     (FIXTURE_MANY | KGRAPH_GROUP)
/* Not of enum kgraph_cut: logit rows in bands of FIXTURE_BAND. */
#define FIXTURE_BANDS (1u << 31)
enum { FIXTURE_BAND = 4 };

/* Packs the operand in place if asked to. */
static inline int fixture_pack(struct diag *d, struct kgraph *g, int layer, uint32_t asked,
                               int32_t *x) {
    bool done;
    int32_t in[1] = {*x}, out[OP_MAX_OUT];
    if (asked == 0) return QN_OK;
    kgraph_pack_output(g, *x, &done);
    if (done) return QN_OK;
    TRY(kgraph_op(d, g, OP_PACK, layer, in, out));
    *x = out[0];
    return QN_OK;
}

/* The residual stream between two operators, as model/decoder.c has it. */
struct fixture_stream {
    int32_t x, normed, squares;
};

/* EMBED, EXPERT_DOWN, EXPERT_SUM or LINEAR, which may be cut, whose operands are in `in` but for
 * the next norm's weights, `norm`. */
static inline int fixture_stream(struct diag *d, struct kgraph *g, enum op_kind kind, int layer,
                                 uint32_t cuts, const char *norm, int32_t *in,
                                 struct fixture_stream *s) {
    int next = kind == OP_EMBED         ? EMBED_NEXT
               : kind == OP_LINEAR      ? LINEAR_NEXT
               : kind == OP_EXPERT_DOWN ? DOWN_NEXT
                                        : EXPERT_NEXT;
    int32_t out[OP_MAX_OUT], sum[4] = {NO_TENSOR, NO_TENSOR, s->x, NO_TENSOR};
    in[next] = NO_TENSOR;
    if (kind == OP_LINEAR && (cuts & KGRAPH_CUT_LINEAR) != 0) {
        TRY(kgraph_op(d, g, OP_LINEAR_SPLITK, layer, in, out));
        sum[SUM_PARTS] = out[0];
        kind = OP_SPLITK_SUM;
        next = SUM_NEXT;
        in = sum;
    }
    if (cuts & KGRAPH_PACK_X) TRY(fixture_weight(d, g, norm, g->spec.hidden, 0, &in[next]));
    TRY(kgraph_op(d, g, kind, layer, in, out));
    *s = (struct fixture_stream){out[STREAM_X], out[STREAM_NORMED], out[STREAM_SQUARES]};
    if ((cuts & KGRAPH_PACK_X) == 0) return QN_OK;
    TRY(fixture_pack(d, g, layer, KGRAPH_PACK_X, &s->normed));
    const bool added = g->tensors.items[s->squares].shape[1] == 1;
    if ((cuts & KGRAPH_SUM_SQUARES) == 0 || added) return QN_OK;
    in[0] = s->squares;
    TRY(kgraph_op(d, g, OP_SUM_SQUARES, layer, in, out));
    s->squares = out[0];
    return QN_OK;
}

/* What an operator reads of it: x and norm, or normed and squares. */
static inline int fixture_norm(struct diag *d, struct kgraph *g, const struct fixture_stream *s,
                               const char *name, int32_t *x, int32_t *norm, int32_t *squares) {
    const bool ahead = s->normed != NO_TENSOR;
    *x = ahead ? s->normed : s->x;
    *squares = s->squares;
    *norm = NO_TENSOR;
    return ahead ? QN_OK : fixture_weight(d, g, name, g->spec.hidden, 0, norm);
}

/* What all tokens have beside a layer's experts; unchanged: nothing. */
static inline int fixture_shared(struct diag *d, struct kgraph *g, int layer,
                                 const struct fixture_names *n, uint32_t cuts,
                                 const struct fixture_stream *s, int32_t *shared) {
    const uint64_t H = g->spec.hidden, width = g->spec.experts.shared_width;
    int32_t out[OP_MAX_OUT], mlp[7] = {0, 0, 0, 0, NO_TENSOR, NO_TENSOR, NO_TENSOR};
    if (width == 0) return QN_OK;
    TRY(fixture_norm(d, g, s, n->norm2, &mlp[MLP_X], &mlp[MLP_NORM], &mlp[MLP_SQUARES]));
    TRY(fixture_weight(d, g, n->wg, width, H, &mlp[MLP_WG]));
    TRY(fixture_weight(d, g, n->wu, width, H, &mlp[MLP_WU]));
    TRY(kgraph_op(d, g, OP_GATED_MLP, layer, mlp, out));
    int32_t linear[5] = {out[0], NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR};
    TRY(fixture_pack(d, g, layer, cuts & KGRAPH_PACK_H, &linear[LINEAR_A]));
    TRY(fixture_weight(d, g, n->wd, H, width, &linear[LINEAR_W]));
    TRY(kgraph_op(d, g, OP_LINEAR, layer, linear, out));
    *shared = out[0];
    return QN_OK;
}

/* The experts of a layer as operators of many rows. logits: the router's; next: the next norm. */
static inline int fixture_grouped(struct diag *d, struct kgraph *g, int layer,
                                  const struct fixture_names *n, uint32_t cuts, int32_t logits,
                                  const char *next, struct fixture_stream *s) {
    const struct experts_spec *e = &g->spec.experts;
    const uint64_t H = g->spec.hidden;
    int32_t top[OP_MAX_OUT], route[OP_MAX_OUT], out[OP_MAX_OUT];
    int32_t sum[5] = {NO_TENSOR, NO_TENSOR, NO_TENSOR, s->x};
    TRY(kgraph_op(d, g, OP_ROUTE_TOP_K, layer, &logits, top));
    TRY(kgraph_op(d, g, OP_ROUTE_LIST, layer, &top[TOP_K_OUT_IDS], route));
    TRY(fixture_shared(d, g, layer, n, cuts, s, &sum[EXPERT_SHARED]));
    int32_t gather[3] = {s->x, NO_TENSOR, route[ROUTE_OUT_SLOTS]};
    TRY(fixture_weight(d, g, n->norm2, H, 0, &gather[GATHER_NORM]));
    TRY(kgraph_op(d, g, OP_EXPERT_GATHER, layer, gather, out));
    int32_t up[5] = {out[GATHER_OUT_ROWS], out[GATHER_OUT_SQUARES], route[ROUTE_OUT_LIST]};
    TRY(kgraph_weight_stacked(d, g, n->eg, e->n, DTYPE_BF16, e->width, 1, H, &up[GROUPED_UP_WG]));
    TRY(kgraph_weight_stacked(d, g, n->eu, e->n, DTYPE_BF16, e->width, 1, H, &up[GROUPED_UP_WU]));
    TRY(kgraph_op(d, g, OP_GROUPED_GATE_UP, layer, up, out));
    int32_t down[4] = {out[0], route[ROUTE_OUT_LIST], route[ROUTE_OUT_SLOTS]};
    TRY(kgraph_weight_stacked(d, g, n->ed, e->n, DTYPE_BF16, H, 1, e->width,
                              &down[GROUPED_DOWN_WD]));
    TRY(kgraph_op(d, g, OP_GROUPED_DOWN, layer, down, out));
    sum[EXPERT_PARTS] = out[0];
    sum[EXPERT_WEIGHT] = top[TOP_K_OUT_WEIGHT];
    return fixture_stream(d, g, OP_EXPERT_SUM, layer, cuts, next, sum, s);
}

/* The experts of a layer. What all tokens have beside them, if there is such, comes after ROUTE. */
static inline int fixture_experts(struct diag *d, struct kgraph *g, int layer,
                                  const struct fixture_names *n, uint32_t cuts, const char *next,
                                  struct fixture_stream *s) {
    const struct experts_spec *e = &g->spec.experts;
    const uint64_t H = g->spec.hidden;
    int32_t out[OP_MAX_OUT], route[OP_MAX_OUT], shared = NO_TENSOR, norm;
    TRY(fixture_weight(d, g, n->norm2, H, 0, &norm));
    int32_t router[3] = {s->x, norm};
    TRY(fixture_weight(d, g, n->router, e->n + e->shared_gate, H, &router[ROUTER_W]));
    TRY(kgraph_op(d, g, OP_ROUTER, layer, router, out));
    if (cuts & KGRAPH_GROUP) return fixture_grouped(d, g, layer, n, cuts, out[0], next, s);
    TRY(kgraph_op(d, g, OP_ROUTE, layer, out, route));
    TRY(fixture_shared(d, g, layer, n, cuts, s, &shared));
    int32_t up[7] = {s->x, norm, route[ROUTE_OUT_LIST], route[ROUTE_OUT_SLOTS]};
    up[GATE_UP_LOGITS] = g->n_rows == 1 ? out[0] : NO_TENSOR;
    TRY(kgraph_weight_stacked(d, g, n->eg, e->n, DTYPE_BF16, e->width, 1, H, &up[GATE_UP_WG]));
    TRY(kgraph_weight_stacked(d, g, n->eu, e->n, DTYPE_BF16, e->width, 1, H, &up[GATE_UP_WU]));
    TRY(kgraph_op(d, g, OP_EXPERT_GATE_UP, layer, up, out));
    int32_t down[8] = {out[0],
                       route[ROUTE_OUT_LIST],
                       route[ROUTE_OUT_SLOTS],
                       route[ROUTE_OUT_WEIGHT],
                       NO_TENSOR,
                       shared,
                       s->x,
                       NO_TENSOR};
    TRY(kgraph_weight_stacked(d, g, n->ed, e->n, DTYPE_BF16, H, 1, e->width, &down[DOWN_WD]));
    return fixture_stream(d, g, OP_EXPERT_DOWN, layer, cuts, next, down, s);
}

/* Latent attention, up to the heads' values; queries come from a latent of their own if the spec
 * says so. */
static inline int fixture_latent(struct diag *d, struct kgraph *g, int layer,
                                 const struct fixture_names *n, uint32_t cuts, int32_t x,
                                 int32_t *o) {
    const struct model_spec *s = &g->spec;
    const struct latent_spec *l = &s->latent;
    const uint64_t H = s->hidden, Q = (uint64_t)s->n_heads * s->head_dim;
    const uint64_t nope = s->head_dim - l->rope;
    const bool split = (cuts & KGRAPH_CUT_ATTENTION) != 0;
    int32_t linear[5] = {x, NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR}, heads[4], v[2];
    int32_t out[OP_MAX_OUT], queries[5] = {x, NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR};
    const uint64_t first = l->q_rank != 0 ? l->q_rank : Q;
    const struct kgraph_part parts[2] = {{n->wq, first, {0}}, {n->wk, g->attrs.D, {0}}};
    TRY(fixture_weight(d, g, n->norm, H, 0, &linear[QKV_LINEAR_NORM]));
    TRY(kgraph_weight_joined(d, g, parts, 2, DTYPE_BF16, 2, H, &linear[QKV_LINEAR_W]));
    TRY(kgraph_op(d, g, OP_QKV_LINEAR, layer, linear, out));
    heads[LATENT_RAW] = heads[LATENT_C] = out[0];
    if (l->q_rank != 0) {
        int32_t normed[2] = {out[0], NO_TENSOR};
        TRY(fixture_weight(d, g, "q_a_norm", l->q_rank, 0, &normed[LATENT_NORM_W]));
        TRY(kgraph_op(d, g, OP_LATENT_NORM, layer, normed, out));
        queries[LINEAR_A] = out[0];
        TRY(fixture_weight(d, g, "q_b", Q, l->q_rank, &queries[LINEAR_W]));
        TRY(kgraph_op(d, g, OP_LINEAR, layer, queries, out));
        heads[LATENT_RAW] = out[0];
    }
    TRY(fixture_weight(d, g, "c_norm", g->attrs.DV, 0, &heads[LATENT_C_NORM]));
    TRY(fixture_weight(d, g, "w_uk", s->n_heads * (uint64_t)g->attrs.DV, nope, &heads[LATENT_W]));
    TRY(kgraph_state(d, g, n->kv, &out[LATENT_OUT_KV]));
    TRY(kgraph_op(d, g, OP_LATENT_HEADS, layer, heads, out));
    TRY(kgraph_op(d, g, split ? OP_ATTENTION_SPLIT : OP_ATTENTION, layer, out, v));
    if (split) TRY(kgraph_op(d, g, OP_ATTENTION_MERGE, layer, v, v));
    TRY(fixture_weight(d, g, "w_uv", (uint64_t)s->n_heads * l->v_dim, g->attrs.DV, &v[VALUES_W]));
    return kgraph_op(d, g, OP_LATENT_VALUES, layer, v, o);
}

/* Heads of their own keys and values, up to what they give. */
static inline int fixture_attention(struct diag *d, struct kgraph *g, int layer,
                                    const struct fixture_names *n, uint32_t cuts,
                                    const struct fixture_stream *s, int32_t *o) {
    const struct model_spec *spec = &g->spec;
    const uint64_t H = spec->hidden, Q = (uint64_t)spec->n_heads * spec->head_dim;
    const uint64_t KV = (uint64_t)spec->n_kv_heads * spec->head_dim;
    const bool cut = (cuts & KGRAPH_CUT_QKV) != 0;
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT], squares;
    for (int i = 0; i < OP_MAX_IN; i++) in[i] = NO_TENSOR;
    TRY(fixture_norm(d, g, s, n->norm, &in[QKV_X], &in[QKV_NORM], &squares));
    if (cut) {
        const struct kgraph_part parts[3] = {{n->wq, Q, {0}}, {n->wk, KV, {0}}, {n->wv, KV, {0}}};
        TRY(kgraph_weight_joined(d, g, parts, 3, DTYPE_BF16, 2, H, &in[QKV_LINEAR_W]));
        in[QKV_LINEAR_SQUARES] = squares;
        TRY(kgraph_op(d, g, OP_QKV_LINEAR, layer, in, out));
        in[HEADS_QKV] = out[0];
        in[HEADS_Q_NORM] = in[HEADS_K_NORM] = NO_TENSOR;
    } else {
        TRY(fixture_weight(d, g, n->wq, Q, H, &in[QKV_WQ]));
        TRY(fixture_weight(d, g, n->wk, KV, H, &in[QKV_WK]));
        TRY(fixture_weight(d, g, n->wv, KV, H, &in[QKV_WV]));
    }
    if (cuts & KGRAPH_JOIN_HEADS) {
        TRY(kgraph_state(d, g, n->kv, &o[JOINED_OUT_KV]));
        const bool split = (cuts & KGRAPH_CUT_ATTENTION) != 0;
        TRY(kgraph_op(d, g, split ? OP_ATTENTION_STEP : OP_ATTENTION_WHOLE, layer, in, o));
    } else {
        TRY(kgraph_state(d, g, n->kv, &out[QKV_OUT_KV]));
        TRY(kgraph_op(d, g, cut ? OP_QKV_HEADS : OP_QKV, layer, in, out));
        int32_t attend[2] = {out[QKV_OUT_Q], out[QKV_OUT_KV]};
        TRY(kgraph_op(d, g, cuts & KGRAPH_CUT_ATTENTION ? OP_ATTENTION_SPLIT : OP_ATTENTION, layer,
                      attend, o));
    }
    if (cuts & KGRAPH_CUT_ATTENTION) {
        int32_t part[1] = {o[0]};
        TRY(kgraph_op(d, g, OP_ATTENTION_MERGE, layer, part, o));
    }
    return QN_OK;
}

/* A decoder like those of model/decoder.c, from a spec alone. */
static inline int fixture_layer(struct diag *d, struct kgraph *g, int layer, uint32_t cuts,
                                struct fixture_stream *s) {
    const struct model_spec *spec = &g->spec;
    const uint64_t H = spec->hidden, O = (uint64_t)spec->n_heads * spec_v_dim(spec);
    const uint64_t I = spec->intermediate;
    const bool cut = (cuts & KGRAPH_CUT_QKV) != 0;
    struct fixture_names n, next;
    fixture_layer_names(&n, (uint32_t)layer);
    fixture_layer_names(&next, (uint32_t)layer + 1);
    if (layer + 1 == (int)spec->n_layers) snprintf(next.norm, sizeof next.norm, "norm");
    int32_t out[OP_MAX_OUT], o[OP_MAX_OUT];
    TRY(spec_is_latent(spec) ? fixture_latent(d, g, layer, &n, cuts, s->x, o)
                             : fixture_attention(d, g, layer, &n, cuts, s, o));
    int32_t linear[5] = {o[0], NO_TENSOR, NO_TENSOR, s->x};
    TRY(fixture_pack(d, g, layer, cuts & KGRAPH_PACK_O, &linear[LINEAR_A]));
    TRY(fixture_weight(d, g, n.wo, H, O, &linear[LINEAR_W]));
    TRY(fixture_stream(d, g, OP_LINEAR, layer, cuts, n.norm2, linear, s));
    if (spec_is_sparse(spec, (uint32_t)layer))
        return fixture_experts(d, g, layer, &n, cuts, next.norm, s);
    int32_t mlp[7] = {NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR, NO_TENSOR};
    TRY(fixture_norm(d, g, s, n.norm2, &mlp[MLP_X], &mlp[MLP_NORM], &mlp[MLP_SQUARES]));
    const char *const both[2] = {n.wg, n.wu};
    if (cut)
        TRY(kgraph_weights_in_turns(d, g, both, 2, KGRAPH_TURN, DTYPE_BF16, I, H, &mlp[MLP_WG]));
    for (int i = 0; !cut && i < 2; i++) TRY(fixture_weight(d, g, both[i], I, H, &mlp[MLP_WG + i]));
    TRY(kgraph_op(d, g, OP_GATED_MLP, layer, mlp, out));
    int32_t down[5] = {out[0], NO_TENSOR, NO_TENSOR, s->x};
    TRY(fixture_pack(d, g, layer, cuts & KGRAPH_PACK_H, &down[LINEAR_A]));
    TRY(fixture_weight(d, g, n.wd, H, I, &down[LINEAR_W]));
    return fixture_stream(d, g, OP_LINEAR, layer, cuts, next.norm, down, s);
}

static inline int fixture_graph(struct diag *d, struct kgraph *g, uint32_t cuts) {
    const struct model_spec *spec = &g->spec;
    int32_t in[OP_MAX_IN] = {[LM_AFTER] = NO_TENSOR}, out[OP_MAX_OUT];
    struct fixture_stream s = {NO_TENSOR, NO_TENSOR, NO_TENSOR};
    TRY(fixture_weight(d, g, "embed", spec->vocab, spec->hidden, &in[EMBED_TABLE]));
    TRY(fixture_stream(d, g, OP_EMBED, -1, cuts, "0.norm", in, &s));
    for (uint32_t l = 0; l < spec->n_layers; l++) TRY(fixture_layer(d, g, (int)l, cuts, &s));
    TRY(fixture_norm(d, g, &s, "norm", &in[LM_X], &in[LM_NORM], &in[LM_SQUARES]));
    TRY(fixture_weight(d, g, "embed", spec->vocab, spec->hidden, &in[LM_W]));
    if (cuts & KGRAPH_PACK_X) {
        TRY(kgraph_op(d, g, OP_PACK_LOGITS, -1, in, out));
        in[LM_X] = out[0];
    }
    const uint32_t n = g->n_logit_rows, most = cuts & FIXTURE_BANDS ? FIXTURE_BAND : n;
    for (uint32_t first = 0; first < n; first += most) {
        g->attrs.band_first = first;
        g->attrs.band = n - first < most ? n - first : most;
        TRY(kgraph_op(d, g, OP_LM_HEAD, -1, in, out));
        int32_t sample[2] = {out[LM_OUT_LOGITS], out[LM_OUT_PART]};
        if (cuts & KGRAPH_RESET_SENTINELS)
            TRY(kgraph_op(d, g, OP_RESET_SENTINELS, -1, &sample[SAMPLE_PART], out));
        TRY(kgraph_op(d, g, OP_SAMPLE, -1, sample, out));
        in[LM_AFTER] = out[0];
    }
    return QN_OK;
}

/* Gangs that the operators of a kind have from now on; 0: each task is by itself. */
static uint32_t fixture_gang[N_OP_KINDS];

/* One variant through all stages, each verified. */
struct fixture {
    struct arena arena;
    struct kgraph kernel;
    struct tgraph tasks;
};

static inline int fixture_compile(struct diag *d, struct fixture *f, const struct model_spec *spec,
                                  uint32_t n_rows, uint32_t max_len, uint32_t cuts,
                                  const struct task_options *options) {
    int (*const stages[N_TASK_STAGES])(struct diag *, struct tgraph *) = {
        decompose, memory_plan, depend, event_fuse, normalize, linearize, place, transport};
    *f = (struct fixture){0};
    kgraph_init(&f->kernel, &f->arena, spec, n_rows, n_rows < 8 ? n_rows : 8, max_len);
    f->kernel.decode_only = (cuts & KGRAPH_DECODE_ONLY) != 0;
    tgraph_init(&f->tasks, &f->arena, &f->kernel, options);
    TRY(fixture_graph(d, &f->kernel, cuts));
    for (size_t i = 0; i < f->kernel.ops.n; i++) {
        struct kop *op = &f->kernel.ops.items[i];
        if (fixture_gang[op->kind] != 0) op->gang = fixture_gang[op->kind];
    }
    TRY(kgraph_verify(d, &f->kernel));
    for (int i = 0; i < N_TASK_STAGES; i++) {
        TRY(stages[i](d, &f->tasks));
        TRY(tgraph_verify(d, &f->tasks, (enum task_stage)i));
    }
    return QN_OK;
}

static inline int fixture_program(struct diag *d, const struct fixture *f, uint32_t max_len,
                                  struct prog_header **p) {
    const bool fused = f->kernel.ops.items[1].kind == OP_QKV || spec_is_latent(&f->kernel.spec);
    const struct program_config config = {.target = fused ? TARGET_CPU : TARGET_CUDA,
                                          .n_ranks = 1,
                                          .n_workers = f->tasks.options.device.n_workers,
                                          .n_slots = 8,
                                          .max_model_len = max_len,
                                          .kv_block = 64,
                                          .kv_dtype = DTYPE_BF16,
                                          .model_path = ""};
    return program_make(d, &config, &f->tasks, 1, p);
}

static inline void fixture_fini(struct fixture *f) {
    tgraph_fini(&f->tasks);
    kgraph_fini(&f->kernel);
    arena_fini(&f->arena);
}

#endif
