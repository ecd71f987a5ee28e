/* kernel_graph.h - the kernel graph: operators over tensors in device memory (Mirage's first level;
 * MPK section 4, "computation graph").
 *
 * One graph describes one iteration with a fixed number of token rows: T rows go through the
 * model, L of them want logits. Decode of a batch of 8 is T = L = 8; a prefill chunk is a larger T.
 * Built by model/decoder.c, read by task/decompose.c. Tensors are in SSA form: written by one
 * operator only, except state (the KV cache), which lives across iterations. Operators stand in a
 * topological order. Names and maps belong to the arena given to kgraph_init.
 */
#ifndef QN_GRAPH_KERNEL_GRAPH_H
#define QN_GRAPH_KERNEL_GRAPH_H

#include "base/arena.h"
#include "base/array.h"
#include "base/map.h"
#include "base/strbuf.h"
#include "graph/model_spec.h"
#include "graph/op_map.h"
#include "graph/weight_source.h"

enum tensor_role {
    TENSOR_WEIGHT,     /* immutable; `name` is its name in the checkpoint */
    TENSOR_ACTIVATION, /* lives within one iteration */
    TENSOR_STATE,      /* KV cache of one layer; its layout is runtime/rt_batch.h's */
};

enum { TENSOR_MAX_DIMS = OP_MAX_DIMS, NO_TENSOR = -1 };

struct tensor {
    const char *name;
    enum tensor_role role;
    enum dtype dtype;
    enum layout layout;
    int n_dims;
    int producer;                    /* index of the operator that writes it; -1: none in the
                                        graph */
    uint64_t shape[TENSOR_MAX_DIMS]; /* the same in every layout; state: [rows of one iteration,
                                        kv_vectors] */
    /* A weight's rows are those of these parts of a block, in order. */
    uint32_t block, first_part, n_parts;
};

/* How a weight is made: a *block* of memory is filled with *parts*. A part is a tensor of the
 * checkpoint, or the elements of one that `source` selects. Row i of a part is row
 * at + i / run * stride + i % run  of the block. So one part may be the whole block, and several
 * parts may follow each other or take turns of `run` rows.
 *
 * A *stack* is a part of several tensors, the experts of a layer. `name` is a pattern, whose `*`
 * stands for a tensor's number c. Tensor c lies c * step rows after the first one. */
struct weight_part {
    const char *name; /* in the checkpoint */
    uint32_t rows;    /* of a tensor */
    uint32_t at, run, stride;
    uint32_t stack, step; /* tensors of a stack; 0: the part is a single tensor */
    struct weight_source source;
};
/* Sets *name to the name of tensor i of a stack. Errors: QN_EFORMAT if the pattern does not have
 * exactly one `*`. */
int weight_stack_name(struct diag *d, struct arena *arena, const char *pattern, uint32_t i,
                      char **name);
struct weight_block {
    const char *name; /* its parts' names, joined by `+` */
    enum dtype dtype;
    int n_dims;
    uint32_t rows, cols; /* n_dims 1: [rows] */
    uint32_t first_part, n_parts;
};

/* How a graph's operators are cut into several or joined. Results are the same, bit for bit. */
enum kgraph_cut {
    KGRAPH_CUT_ATTENTION = 1, /* attention_split, attention_merge instead of attention */
    KGRAPH_CUT_QKV = 2,       /* qkv_linear, qkv_heads instead of qkv */
    KGRAPH_JOIN_HEADS = 4,    /* with CUT_QKV and few rows: attention_step instead of qkv_heads and
                                 attention_split, or attention_whole instead of qkv_heads and
                                 attention */
    /* Activations that are packed before matrix products: */
    KGRAPH_PACK_X = 8,       /* the residual stream, normed by its writers; with CUT_QKV */
    KGRAPH_SUM_SQUARES = 16, /* with PACK_X: sum_squares adds up a row's squares */
    KGRAPH_PACK_O = 32,      /* attention's output */
    KGRAPH_PACK_H = 64,      /* GATED_MLP's output */
    /* With all of these, and hidden a multiple of SQUARES_COLUMNS: */
    KGRAPH_CUT_LINEAR = 128, /* linear_splitk, splitk_sum instead of linear */
    KGRAPH_RESET_SENTINELS =
        256,                   /* not a cut: adds reset_sentinels; activations can be sentinels */
    KGRAPH_DECODE_ONLY = 512,  /* not a cut: sets kgraph.decode_only */
    KGRAPH_IMAGES = 1024,      /* not a cut: matrices that one operator reads share a block */
    KGRAPH_JOIN_VALUES = 4096, /* with CUT_ATTENTION, of latents: latent_merge instead of
                                  attention_merge and latent_values */
    KGRAPH_STATIC = 2048,      /* not a cut: experts have their workers, listed or not */
    KGRAPH_FUSE_QKV = 8192,    /* with CUT_QKV, SUM_SQUARES, without JOIN_HEADS: qkv_fused instead
                                  of qkv_linear and qkv_heads */
    KGRAPH_GROUP = 16384, /* with PACK_X, SUM_SQUARES, IMAGES: route_top_k and route_list instead
                             of route; expert_gather, grouped_gate_up, grouped_down and
                             expert_sum instead of expert_gate_up and expert_down */
};

struct kop {
    enum op_kind kind;
    int layer;     /* -1 outside the layers */
    uint32_t gang; /* tasks that run together, on as many consecutive workers; 1: each by itself */
    int32_t in[OP_MAX_IN], out[OP_MAX_OUT]; /* tensor indices, NO_TENSOR where absent */
    struct op_attrs attrs;
    const struct op_map *map; /* shapes and accesses; operators that are alike share one */
};

struct kgraph {
    struct arena *arena;
    struct model_spec spec;
    uint32_t n_rows;       /* T */
    uint32_t n_logit_rows; /* L */
    uint32_t context;      /* positions that its rows may have */
    uint32_t n_pieces;     /* most attention pieces of such a context */
    bool decode_only;      /* each row is of another request, which decodes */
    struct op_attrs attrs; /* of the operators added next; kgraph_init: the spec's */
    ARRAY(struct tensor) tensors;
    ARRAY(struct kop) ops;
    ARRAY(struct weight_part) parts;
    ARRAY(struct weight_block) blocks;
    struct op_maps maps;
    struct map weight_at; /* name of a weight -> tensor */
};

/* Starts an empty graph; strings go into `arena`, the arrays are released by kgraph_fini. */
void kgraph_init(struct kgraph *g, struct arena *arena, const struct model_spec *spec,
                 uint32_t n_rows, uint32_t n_logit_rows, uint32_t context);
void kgraph_fini(struct kgraph *g);

/* Adds a weight with the checkpoint's name and shape (n_dims 1 or 2); sets *index. If the graph has
 * that name already, *index is the weight of that name (tied embeddings). */
int kgraph_weight(struct diag *d, struct kgraph *g, const char *name, enum dtype dtype, int n_dims,
                  uint64_t rows, uint64_t cols, int32_t *index);

/* A tensor of the checkpoint that is to be a part of a weight. */
struct kgraph_part {
    const char *name;
    uint64_t rows;
    struct weight_source source;
};
enum { KGRAPH_MAX_PARTS = 8 };
/* Rows of gate, then of up, that take turns in an image: half of a row block of tensor cores. */
enum { KGRAPH_TURN = 8 };
/* Adds one weight whose rows are those of n parts (up to KGRAPH_MAX_PARTS), one after the other:
 * [sum of rows] or [sum of rows, cols]. */
int kgraph_weight_joined(struct diag *d, struct kgraph *g, const struct kgraph_part *parts, int n,
                         enum dtype dtype, int n_dims, uint64_t cols, int32_t *index);
/* Adds n matrices [rows, cols] that share a block, `run` rows of each in turn; sets index[n]. */
int kgraph_weights_in_turns(struct diag *d, struct kgraph *g, const char *const *names, int n,
                            uint32_t run, enum dtype dtype, uint64_t rows, uint64_t cols,
                            int32_t *index);
/* Adds the weight [n, rows, cols] whose matrices are the tensors of a pattern, one after the other.
 * Each begins at a multiple of `grain` rows. */
int kgraph_weight_stacked(struct diag *d, struct kgraph *g, const char *pattern, uint64_t n,
                          enum dtype dtype, uint64_t rows, uint32_t grain, uint64_t cols,
                          int32_t *index);
/* The same for n_stacks patterns in one block: the first matrix of every pattern, `run` rows of
 * each in turn, then the second ones, and so on; sets index[n_stacks]. */
int kgraph_stacks_in_turns(struct diag *d, struct kgraph *g, const char *const *patterns,
                           int n_stacks, uint64_t n, uint32_t run, enum dtype dtype, uint64_t rows,
                           uint64_t cols, int32_t *index);
/* Adds one layer's KV cache. */
int kgraph_state(struct diag *d, struct kgraph *g, const char *name, int32_t *index);

/* Adds an activation that no operator of the graph writes: it is stored before the iteration
 * begins. `packed` (two dimensions only): it has LAYOUT_PACKED. */
int kgraph_input(struct diag *d, struct kgraph *g, const char *name, int n_dims,
                 const uint64_t shape[TENSOR_MAX_DIMS], bool packed, int32_t *index);

/* Adds an operator, infers the shapes of its outputs and creates them (named
 * "<layer>.<op>.<slot>"). in[] has the operands in op.def's order, NO_TENSOR for absent optional
 * ones. The caller presets a state output in out[]; kgraph_op sets the other outputs, absent
 * optional ones to NO_TENSOR. Errors: QN_ESHAPE naming operator and operand. */
int kgraph_op(struct diag *d, struct kgraph *g, enum op_kind kind, int layer, const int32_t *in,
              int32_t *out);

/* Makes an activation [T, K] packed if its operator can store it so (`^` in op.def) and K is a
 * multiple of PACK_K; else *packed is false. The output of EXPERT_GATE_UP may have any K: its
 * reader, EXPERT_DOWN, leaves out columns beyond K. A single row's output of EXPERT_GATE_UP is not
 * packed if EXPERT_DOWN stages it (expert_row_is_staged). */
void kgraph_pack_output(struct kgraph *g, int32_t tensor, bool *packed);

/* An operator's output units, which tiles are ranges of, and the token rows that its tasks share
 * out: columns of op.def. */
static inline uint32_t kop_units(const struct kop *op) {
    return (uint32_t)op->map->units;
}
static inline uint32_t kop_rows(const struct kop *op) {
    return (uint32_t)op->map->rows;
}

/* The operators *beside* op: operators before it in its layer whose results it does not need,
 * directly or through others, so that they may run at the same time. Bit i: operator op - 1 - i. */
uint64_t kgraph_beside(const struct kgraph *g, int32_t op);

/* Every IR's three companions. */
int kgraph_verify(struct diag *d, const struct kgraph *g);
void kgraph_dump(const struct kgraph *g, struct strbuf *out); /* stable text, one line per op */
struct kgraph_stats {
    uint64_t n_ops, n_tensors, weight_bytes, activation_bytes;
};
void kgraph_stats(const struct kgraph *g, struct kgraph_stats *stats);

uint64_t tensor_elements(const struct tensor *t);
/* Bytes of a tensor's elements, with the padding of its layout. */
uint64_t tensor_bytes(const struct tensor *t);
/* Bytes of a tensor of that shape, format and layout. */
uint64_t layout_bytes(enum layout layout, enum dtype dtype, int n_dims, const uint64_t *shape);
/* Stored rows of a packed tensor of n rows, and stored columns of one of k columns. */
static inline uint64_t packed_rows(uint64_t n) {
    return (n + PACK_ROWS - 1) / PACK_ROWS * PACK_ROWS;
}
static inline uint64_t packed_columns(uint64_t k) {
    return (k + PACK_K - 1) / PACK_K * PACK_K;
}

/* Elements of the matrices of a layer's attention. */
uint64_t spec_attention_elements(const struct model_spec *spec);
/* Elements of the matrices of a layer's MLP, all experts included. */
uint64_t spec_mlp_elements(const struct model_spec *spec, uint32_t layer);

/* Checks a spec against the bounds of model_spec.h; the message names the field. */
int model_spec_verify(struct diag *d, const char *file, const struct model_spec *spec);

#endif
