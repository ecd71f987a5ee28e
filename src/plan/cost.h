/* cost.h - what a way of doing something takes, in ns of an iteration: bytes over the rate at which
 * memory brings them, and hand-overs. Only differences between ways of the same thing mean
 * anything.
 */
#ifndef QN_PLAN_COST_H
#define QN_PLAN_COST_H

#include "graph/kernel_graph.h"
#include "plan/device.h"

/* Attention of one layer: `n_rows` rows with contexts of `pieces` pieces. */
struct cost_attention {
    const struct device *device;
    const struct model_spec *spec;
    uint32_t n_rows, pieces;
};
/* A task has all of a row and KV head. */
double cost_attention_whole(const struct cost_attention *a);
/* Workers share the pieces; then these are merged. */
double cost_attention_pieces(const struct cost_attention *a);
/* Heads are made by an operator of their own: what that adds. */
double cost_attention_heads(const struct cost_attention *a);

/* So many bytes of weights by all workers; negative: what memory brings is unknown. */
double cost_weights(const struct device *d, uint64_t bytes);

/* An operator that does nothing but hand over, that goes through contexts, that multiplies; `bytes`
 * of weights, 0: it has none. Negative: unknown. */
double cost_operator(const struct cost_attention *a, enum op_kind kind, uint64_t bytes);

/* Bytes of weights that a worker could read while it has one of `slices` tasks of attention: what
 * place counts such a task for. */
uint64_t cost_slice_bytes(const struct device *d, const struct kgraph *k, enum dtype kv_dtype,
                          uint32_t slices);
/* Attention that at most half of the workers have: all others wait for them. */
bool cost_is_of_few(const struct device *d, uint32_t slices);

/* Weight and token rows that pass through a task's shared memory, tile by tile, for a product of
 * packed activations. On an H100 that is the bound: 16 flops a byte of a tile of 128 x 128 ask for
 * as much as L2 gives. */
uint64_t cost_tile_rows(uint32_t token_rows, uint32_t weight_rows);

#endif
