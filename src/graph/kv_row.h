/* kv_row.h - what one position of one layer takes of the KV cache, and how a block of positions
 * lies. It determines all bytes and strides of the cache.
 *
 * Made from the spec (spec_kv_row), stored once per layer in the program, read by the memory plans,
 * the CPU's kernels and the trace. The GPU's kernels have it as constants.
 *
 * A block of a layer is kv_block positions:
 *
 *       +-------------------------------------+-------------------------------------+
 *       | keys [heads][kv_block][k_width]     | values [heads][kv_block][v_width]   |
 *       +-------------------------------------+-------------------------------------+
 *
 * With v_in_k a value is the first v_width elements of its key, and the block has no second half.
 */
#ifndef QN_GRAPH_KV_ROW_H
#define QN_GRAPH_KV_ROW_H

#include "graph/model_spec.h"

enum { KV_MAX_WIDTH = 1024 }; /* of a key or a value, elements */

struct kv_row {
    uint16_t heads;   /* 1 to SPEC_MAX_HEADS */
    uint16_t k_width; /* elements of a head's key, up to KV_MAX_WIDTH */
    uint16_t v_width; /* elements of a head's value, with v_in_k at most k_width */
    uint8_t v_in_k;   /* 0 or 1 */
    uint8_t dtype;    /* enum dtype of all elements: F32, BF16, F16 */
};
ABI_SIZE(struct kv_row, 8);

#ifndef __CUDACC_RTC__ /* kernels have the strides as constants */

/* The KV row of a model in format dtype. Without latents: keys and values of head_dim elements.
 * With latents: a key is the latent and the turned key behind it, and the value is the latent. */
static inline struct kv_row spec_kv_row(const struct model_spec *s, uint32_t dtype) {
    if (spec_is_latent(s))
        return (struct kv_row){.heads = 1,
                               .k_width = (uint16_t)(s->latent.kv_rank + s->latent.rope),
                               .v_width = (uint16_t)s->latent.kv_rank,
                               .v_in_k = 1,
                               .dtype = (uint8_t)dtype};
    return (struct kv_row){.heads = (uint16_t)s->n_kv_heads,
                           .k_width = (uint16_t)s->head_dim,
                           .v_width = (uint16_t)s->head_dim,
                           .dtype = (uint8_t)dtype};
}

/* Vectors of a position: keys, and values that are not inside them. */
static inline uint32_t kv_vectors(const struct kv_row *r) {
    return r->v_in_k ? r->heads : 2u * r->heads;
}

/* Elements from a value to that of the next position. */
static inline uint32_t kv_value_pitch(const struct kv_row *r) {
    return r->v_in_k ? r->k_width : r->v_width;
}

/* Offset of the values of head 0 in a block, in elements. */
static inline uint64_t kv_values_at(const struct kv_row *r, uint32_t kv_block) {
    return r->v_in_k ? 0 : (uint64_t)r->heads * kv_block * r->k_width;
}

/* Elements of a block. */
static inline uint64_t kv_block_elements(const struct kv_row *r, uint32_t kv_block) {
    return (uint64_t)r->heads * kv_block * (r->k_width + (r->v_in_k ? 0u : r->v_width));
}

/* Offsets of a position's key and value in a block, in elements. */
static inline uint64_t kv_key_at(const struct kv_row *r, uint32_t kv_block, uint32_t head,
                                 uint32_t position) {
    return ((uint64_t)head * kv_block + position) * r->k_width;
}
static inline uint64_t kv_value_at(const struct kv_row *r, uint32_t kv_block, uint32_t head,
                                   uint32_t position) {
    return kv_values_at(r, kv_block) + ((uint64_t)head * kv_block + position) * kv_value_pitch(r);
}

/* Bytes of a block. */
static inline uint64_t kv_block_bytes(const struct kv_row *r, uint32_t kv_block) {
    return kv_block_elements(r, kv_block) * dtype_bytes(r->dtype);
}

/* Bytes of one position. */
static inline uint64_t kv_position_bytes(const struct kv_row *r) {
    return kv_block_bytes(r, 1);
}

#endif
#endif
