/* family.h - what the model families have in common and where they differ.
 *
 * A family is one constant row: the names under which it appears in config.json, the defaults of
 * fields that a config.json may leave out (those of Hugging Face's configuration classes), which
 * optional fields it knows, how its weights are named, and the function that builds its graph.
 * Adding a family: one file with its row, one line in family.c.
 */
#ifndef QN_MODEL_FAMILY_H
#define QN_MODEL_FAMILY_H

#include "base/status.h"
#include "base/strbuf.h"
#include "graph/kernel_graph.h"

#include <stdbool.h>
#include <stddef.h>

/* Names of the weights in a checkpoint. The per-layer ones are written
 * "<layers>.<index>.<name>.weight" and, for biases, "<layers>.<index>.<name>.bias". */
struct weight_names {
    const char *prefix;               /* of names; absent in files of a model without its head */
    const char *embed;                /* [vocab, hidden] */
    const char *head;                 /* [vocab, hidden]; not read when the embeddings are tied */
    const char *norm;                 /* [hidden] before the LM head */
    const char *layers;               /* prefix of the layers */
    const char *attn_norm, *mlp_norm; /* [hidden] */
    const char *q;                    /* [n_heads * head_dim, hidden] */
    const char *k, *v;                /* [n_kv_heads * head_dim, hidden] */
    const char *o;                    /* [hidden, n_heads * head_dim] */
    const char *q_norm, *k_norm;      /* [head_dim] */
    const char *q_a, *q_a_norm, *q_b; /* of latent attention: [q_rank, hidden], [q_rank],
                                         [n_heads * head_dim, q_rank] */
    const char *kv_a, *kv_a_norm;     /* [kv_rank + rope, hidden], [kv_rank] */
    const char *kv_b;                 /* [n_heads * (head_dim - rope + v_dim), kv_rank] */
    const char *gate, *up;            /* [intermediate, hidden] */
    const char *down;                 /* [hidden, intermediate] */
    /* Of layers with experts. A name with `*` stands for one name per expert. */
    const char *router;                  /* [experts, hidden] */
    const char *expert_gate, *expert_up; /* [width, hidden] */
    const char *expert_down;             /* [hidden, width] */
    const char *shared_gate, *shared_up; /* [shared width, hidden] */
    const char *shared_down;             /* [hidden, shared width] */
    const char *shared_router;           /* [1, hidden] */
};

/* How a family's config.json describes its experts (model/experts.c). */
struct expert_fields {
    const char *n, *n_too; /* their number, under either name */
    const char *width;     /* of an expert */
    const char *normed;    /* NULL: a token's weights always add up to 1 */
    const char *shared;    /* width of the shared expert; NULL: none */
    const char *n_shared;  /* number of shared experts, each as wide as the others; or NULL */
    const char *n_dense;   /* layers before the first one with experts; or NULL */
    bool groups;           /* topk_method may choose groups first; weights stay softmaxes, times
                              routed_scaling_factor (DeepSeek-V2) */
    bool steps;            /* decoder_sparse_step and mlp_only_layers make some layers dense */
    /* Defaults. */
    int n_default, width_default, top_k_default, shared_default; /* width 0: required; shared: width
                                                                  * or number */
};

/* How config.json says that layers attend only to a window. */
enum window_rule {
    WINDOW_NONE,   /* it never does */
    WINDOW_SWITCH, /* use_sliding_window, sliding_window, max_window_layers (Qwen) */
    WINDOW_BEFORE, /* the same, but layers 0, 2 ... before max_window_layers (Qwen2-MoE) */
    WINDOW_FIELD,  /* sliding_window, null for none (Mistral) */
    WINDOW_ALL,    /* use_sliding_window, sliding_window: every layer (Qwen3-MoE) */
};

struct family {
    const char *name;         /* "qwen3"; also config.json's model_type */
    const char *architecture; /* "Qwen3ForCausalLM" */
    const struct weight_names *weights;
    /* Graph of one iteration; see decoder_build. */
    int (*build)(struct diag *d, struct kgraph *g, const struct family *family, uint32_t cuts);
    bool qkv_bias;             /* q, k and v have biases whatever config.json says */
    bool reads_qkv_bias;       /* ... unless qkv_bias is false */
    bool reads_attention_bias; /* attention_bias gives q, k, v and o a bias */
    bool reads_mlp_bias;       /* mlp_bias gives gate, up and down a bias */
    bool qk_norm;
    bool latent; /* attention is latent: config.json has the ranks (model/latent.c) */
    const struct expert_fields *experts; /* NULL: no layer has experts */
    enum window_rule window;
    /* Defaults of fields that may be missing. */
    int head_dim; /* 0: hidden / n_heads */
    int max_position;
    double rms_eps;
    double rope_theta;
    int sliding_window; /* 0: none */
    int bos, eos;       /* -1: none */
};

extern const struct family family_deepseek_v2, family_llama, family_ministral, family_mistral,
    family_mixtral, family_qwen2, family_qwen2_moe, family_qwen3, family_qwen3_moe;

/* The row for an architecture ("Qwen3ForCausalLM"; letters of either case: the first Llamas are
 * LLaMAForCausalLM) or a model_type ("qwen3"); NULL: not known. */
const struct family *family_find(const char *name);
/* Appends "LlamaForCausalLM, MistralForCausalLM, ..." */
void family_list(struct strbuf *out);

#endif
