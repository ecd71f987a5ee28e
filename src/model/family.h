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
    const char *prefix;               /* that files of a model without its head lack */
    const char *embed;                /* [vocab, hidden] */
    const char *head;                 /* [vocab, hidden]; not read when the embeddings are tied */
    const char *norm;                 /* [hidden] before the LM head */
    const char *layers;               /* prefix of the layers */
    const char *attn_norm, *mlp_norm; /* [hidden] */
    const char *q;                    /* [n_heads * head_dim, hidden] */
    const char *k, *v;                /* [n_kv_heads * head_dim, hidden] */
    const char *o;                    /* [hidden, n_heads * head_dim] */
    const char *q_norm, *k_norm;      /* [head_dim] */
    const char *gate, *up;            /* [intermediate, hidden] */
    const char *down;                 /* [hidden, intermediate] */
};

/* How a family says that it attends to a window only. */
enum window_rule {
    WINDOW_NONE,   /* it never does */
    WINDOW_SWITCH, /* use_sliding_window, sliding_window, max_window_layers (Qwen) */
    WINDOW_FIELD,  /* sliding_window, null for none (Mistral) */
};

struct family {
    const char *name;         /* "qwen3"; also config.json's model_type */
    const char *architecture; /* "Qwen3ForCausalLM" */
    const struct weight_names *weights;
    /* Graph of one iteration; see decoder_build. */
    int (*build)(struct diag *d, struct kgraph *g, const struct family *family, uint32_t cuts);
    bool qkv_bias;             /* q, k and v have biases whatever config.json says */
    bool reads_attention_bias; /* attention_bias gives q, k, v and o a bias */
    bool reads_mlp_bias;       /* mlp_bias gives gate, up and down a bias */
    bool qk_norm;
    enum window_rule window;
    /* Defaults of fields that may be missing. */
    int head_dim; /* 0: hidden / n_heads */
    int max_position;
    double rms_eps;
    double rope_theta;
    int sliding_window; /* 0: none */
    int bos, eos;       /* -1: none */
};

extern const struct family family_llama, family_ministral, family_mistral, family_qwen2,
    family_qwen3;

/* The row for an architecture ("Qwen3ForCausalLM"; letters of either case: the first Llamas are
 * LLaMAForCausalLM) or a model_type ("qwen3"); NULL: not known. */
const struct family *family_find(const char *name);
/* Appends "LlamaForCausalLM, MistralForCausalLM, ..." */
void family_list(struct strbuf *out);

#endif
