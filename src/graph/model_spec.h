/* model_spec.h - a decoder-only transformer in numbers: the contents of config.json, whatever its
 * spelling.
 *
 * Made by model/hf_config.c, completed by the family's file (model/qwen3.c ...), read by the graph
 * builder, copied into the program and from there to the device: plain numbers only.
 */
#ifndef QN_GRAPH_MODEL_SPEC_H
#define QN_GRAPH_MODEL_SPEC_H

#include "graph/dtype.h"

/* Bounds that hold for every spec (model_spec_verify checks them); kernels rely on them. */
enum {
    SPEC_MAX_LAYERS = 512,
    SPEC_MAX_HIDDEN = 65536, /* also of intermediate and of n_heads * head_dim */
    SPEC_MAX_VOCAB = 4194304,
    SPEC_MAX_HEADS = 512,
    SPEC_MAX_HEAD_DIM = 512,
    SPEC_MAX_MODEL_LEN = 1 << 20,
    SPEC_MAX_EOS = 8,
    SPEC_MAX_EXPERTS = 1024,
};

enum rope_kind {
    ROPE_DEFAULT = 0,
    ROPE_LINEAR = 1,
    ROPE_LLAMA3 = 2,
    ROPE_GIVEN = 3,  /* frequencies are given one by one (yarn, longrope) */
    ROPE_DYNAMIC = 4 /* theta grows with the context */
};

/* Latent attention (docs/latent-attention.md): a position has one latent, from which each head's
 * keys and values follow, and one key that RoPE turns, which all heads share. */
struct latent_spec {
    uint32_t kv_rank; /* elements of a latent; 0: no latents, each KV head has keys and values */
    uint32_t q_rank;  /* elements of the queries' latent; 0: queries come from the stream itself */
    uint32_t rope;    /* elements of a query head and of the shared key that RoPE turns; even */
    uint32_t v_dim;   /* elements of a head's value */
    float scale;      /* of dot products of queries and keys */
};

/* The MLPs of sparse layers: a router chooses top_k experts, gated MLPs, for each token. */
struct experts_spec {
    uint32_t n;            /* experts of a layer; 0: all layers are dense */
    uint32_t top_k;        /* of a token, 1 to n */
    uint32_t width;        /* of an expert */
    uint32_t normed;       /* 0 or 1: a token's weights add up to 1 */
    uint32_t shared_width; /* of the MLP of shared experts, which all tokens have; 0: none */
    uint32_t shared_gate;  /* 0 or 1: their output is multiplied by the sigmoid of a dot product */
    uint32_t groups;       /* groups of experts, divides n; 0: a token's experts may be any */
    uint32_t top_groups;   /* a token's experts are of so many groups: those with the largest best
                              logits */
    float scale;           /* the weights of a token's experts are multiplied by it; 0: by 1 */
    uint32_t dense[SPEC_MAX_LAYERS / 32]; /* bit per layer: its MLP is a dense one */
};

struct model_spec {
    uint32_t n_layers;
    uint32_t hidden;       /* width of the residual stream */
    uint32_t intermediate; /* width of the gated MLP of dense layers */
    uint32_t vocab;        /* rows of the embedding and of the LM head */
    uint32_t n_heads;      /* query heads */
    uint32_t n_kv_heads;   /* divides n_heads; latent: 1 */
    uint32_t head_dim;     /* even; latent: elements of a query, those that RoPE turns included */
    uint32_t max_position; /* longest context the model was made for */
    float rms_eps;
    uint32_t qkv_bias;     /* 0 or 1 (Qwen2) */
    uint32_t o_bias;       /* 0 or 1: bias on the attention's output projection */
    uint32_t mlp_bias;     /* 0 or 1: bias on gate, up and down */
    uint32_t qk_norm;      /* 0 or 1: RMSNorm over each head of q and k (Qwen3) */
    uint32_t tied;         /* 0 or 1: the LM head is the embedding */
    uint32_t weight_dtype; /* enum dtype of the matrices; vectors (norms, biases) are always F32 */
    uint32_t sliding_window; /* 0: full attention; else a token sees this many positions, its own
                                included */
    uint32_t sees_all[SPEC_MAX_LAYERS / 32]; /* bit per layer: full attention despite
                                                sliding_window */
    uint32_t rope_kind;                      /* enum rope_kind */
    float rope_theta;
    float rope_factor;           /* linear, llama3, dynamic */
    float rope_low_freq_factor;  /* llama3 */
    float rope_high_freq_factor; /* llama3 */
    /* llama3; dynamic: longest context without growth; given: longest context that uses the first
     * set of frequencies, 0: there is one set. */
    uint32_t rope_original_max;
    float rope_scale; /* given: cosines and sines are multiplied by it */
    /* given: angle of a pair of dimensions per position. A request whose prompt is longer than
     * rope_original_max uses the second set; other requests use it at positions from there on. So
     * the keys of a text depend on how long its prompt is. */
    float rope_given[2][SPEC_MAX_HEAD_DIM / 2];
    uint32_t n_eos;
    int32_t eos[SPEC_MAX_EOS]; /* token ids that end a generation */
    int32_t bos;               /* -1: none */
    struct experts_spec experts;
    struct latent_spec latent;
};

ABI_SIZE(struct model_spec, 4 * (47 + 2 * (SPEC_MAX_LAYERS / 32) + SPEC_MAX_HEAD_DIM));

/* Whether a layer's MLP is made of experts. */
static inline int spec_is_sparse(const struct model_spec *s, uint32_t layer) {
    return s->experts.n != 0 && (s->experts.dense[layer / 32] >> layer % 32 & 1) == 0;
}

/* Experts that a token has, in all layers, those without experts counted. */
static inline uint32_t spec_route_ids(const struct model_spec *s) {
    return s->n_layers * s->experts.top_k;
}

static inline uint32_t spec_is_latent(const struct model_spec *s) {
    return s->latent.kv_rank != 0;
}

/* Elements of a head that RoPE turns: all, or with latents the last ones. */
static inline uint32_t spec_rope_dim(const struct model_spec *s) {
    return spec_is_latent(s) ? s->latent.rope : s->head_dim;
}

/* Elements of a head's value. */
static inline uint32_t spec_v_dim(const struct model_spec *s) {
    return spec_is_latent(s) ? s->latent.v_dim : s->head_dim;
}

/* The window of a layer's attention, as op_attrs.window; layer < SPEC_MAX_LAYERS. */
static inline uint32_t spec_window(const struct model_spec *s, uint32_t layer) {
    return s->sees_all[layer / 32] >> layer % 32 & 1 ? 0 : s->sliding_window;
}

/* Whether some layers have a window and others none. */
static inline int spec_windows_differ(const struct model_spec *s) {
    uint32_t differ = 0;
    for (uint32_t i = 1; i < s->n_layers; i++) differ |= spec_window(s, i) ^ spec_window(s, 0);
    return differ != 0;
}

/* The longest prompt of a request that begins with the first set of frequencies. */
#define SPEC_ONE_ROPE 0xffffffffu /* there is one set, or no prompt is longer */
static inline uint32_t spec_rope_switch(const struct model_spec *s, uint32_t max_model_len) {
    const uint32_t two = s->rope_kind == ROPE_GIVEN && s->rope_original_max > 0;
    return two && s->rope_original_max < max_model_len ? s->rope_original_max : SPEC_ONE_ROPE;
}

/* Rows of the table of rotations: one per position, and another per position for longer prompts. */
static inline uint32_t spec_rope_rows(const struct model_spec *s, uint32_t max_model_len) {
    return spec_rope_switch(s, max_model_len) == SPEC_ONE_ROPE ? max_model_len : 2 * max_model_len;
}

/* Whether the projection to the latent and the shared key is one matrix with the projection to the
 * queries, or to their latent. If only one of the two has a bias, they are two matrices. */
static inline uint32_t spec_joins_latent(const struct model_spec *s) {
    return s->latent.q_rank != 0 || s->qkv_bias == 0;
}

/* Columns of the projections of the normed stream if they are one matrix; 0: they are several. */
static inline uint32_t spec_projected(const struct model_spec *s) {
    const uint32_t own = s->n_heads * s->head_dim;
    if (!spec_is_latent(s)) return own + 2 * s->n_kv_heads * s->head_dim;
    if (!spec_joins_latent(s)) return 0;
    return (s->latent.q_rank != 0 ? s->latent.q_rank : own) + s->latent.kv_rank + s->latent.rope;
}

/* Head units of the fused QKV projection: the query heads, then the key heads, then the value
 * heads, each head_dim rows of its weight. */
static inline uint32_t spec_qkv_units(const struct model_spec *s) {
    return s->n_heads + 2 * s->n_kv_heads;
}

#endif
