/* decoder.h - the kernel graph of a decoder-only transformer, as all families so far have it.
 *
 *     embed -> n_layers x { qkv -> attention -> linear (o_proj, + residual)
 *                           -> gated_mlp -> linear (down_proj, + residual) } -> lm_head -> sample
 *
 * Latent attention (docs/latent-attention.md) has, in place of qkv and attention:
 *
 *     qkv_linear of queries, of latents -> latent_heads -> attention -> latent_values
 *
 * A layer with experts has, in place of gated_mlp and the second linear:
 *
 *     router -> route -> expert_gate_up -> expert_down (+ residual)
 *     gated_mlp -> linear of shared experts --^
 *
 * `cuts` (enum kgraph_cut) says which of the larger operators are split in two: attention into
 * pieces of the context and their merge, QKV into projections and the part that needs whole heads.
 */
#ifndef QN_MODEL_DECODER_H
#define QN_MODEL_DECODER_H

#include "model/family.h"

/* The weight names that Hugging Face's Llama-like checkpoints share, and those of their experts. */
#define DECODER_HF_NAMES                                                                           \
    .prefix = "model.", .embed = "model.embed_tokens.weight", .head = "lm_head.weight",            \
    .norm = "model.norm.weight", .layers = "model.layers", .attn_norm = "input_layernorm",         \
    .mlp_norm = "post_attention_layernorm", .q = "self_attn.q_proj", .k = "self_attn.k_proj",      \
    .v = "self_attn.v_proj", .o = "self_attn.o_proj", .q_norm = "self_attn.q_norm",                \
    .k_norm = "self_attn.k_norm", .gate = "mlp.gate_proj", .up = "mlp.up_proj",                    \
    .down = "mlp.down_proj"
#define DECODER_HF_EXPERTS                                                                         \
    .router = "mlp.gate", .expert_gate = "mlp.experts.*.gate_proj",                                \
    .expert_up = "mlp.experts.*.up_proj", .expert_down = "mlp.experts.*.down_proj"

extern const struct weight_names decoder_hf_names;

/* Adds all operators to a graph that kgraph_init has just prepared; g->spec says which optional
 * weights the model has. Errors: kgraph_op's and kgraph_weight's, QN_ENOMEM. */
int decoder_build(struct diag *d, struct kgraph *g, const struct family *family, uint32_t cuts);

#endif
