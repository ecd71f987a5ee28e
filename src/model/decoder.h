/* decoder.h - the kernel graph of a decoder-only transformer, as all families so far have it.
 *
 *     embed -> n_layers x { qkv -> attention -> linear (o_proj, + residual)
 *                           -> gated_mlp -> linear (down_proj, + residual) } -> lm_head -> sample
 *
 * Latent attention (docs/latent-attention.md) has, in place of qkv and attention:
 *
 *     qkv_linear of queries, of latents -> latent_heads -> attention -> latent_values
 *
 * `cuts` (enum kgraph_cut) says which of the larger operators are two: attention as pieces of the
 * context and their merge, QKV as projections and what needs whole heads.
 */
#ifndef QN_MODEL_DECODER_H
#define QN_MODEL_DECODER_H

#include "model/family.h"

/* The weight names that Hugging Face's Llama-like checkpoints share. */
extern const struct weight_names decoder_hf_names;

/* Adds all operators to a graph that kgraph_init has just prepared; g->spec says which optional
 * weights there are. Errors: kgraph_op's and kgraph_weight's, QN_ENOMEM. */
int decoder_build(struct diag *d, struct kgraph *g, const struct family *family, uint32_t cuts);

#endif
