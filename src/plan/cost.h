/* cost.h - the time of each way to run a layer, in ns of an iteration: bytes over the memory's
 * rate, and hand-overs. Only differences between ways of the same thing mean anything.
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
/* The time if one task attends to the whole context of a row and KV head. */
double cost_attention_whole(const struct cost_attention *a);
/* The time if workers share the pieces, which are then merged. */
double cost_attention_pieces(const struct cost_attention *a);
/* The time that is added if another operator makes the heads. */
double cost_attention_heads(const struct cost_attention *a);

/* The time in which all workers together read so many bytes of weights; negative: the memory's rate
 * is unknown. */
double cost_weights(const struct device *d, uint64_t bytes);

/* The time of an operator: a hand-over, and its context's pieces or its `bytes` of weights (0:
 * none). Negative: unknown. */
double cost_operator(const struct cost_attention *a, enum op_kind kind, uint64_t bytes);

/* Bytes of weights that a worker could read in the time of one of `slices` tasks of attention.
 * task/place.c counts such a task as so many bytes. */
uint64_t cost_slice_bytes(const struct device *d, const struct kgraph *k, enum dtype kv_dtype,
                          uint32_t slices);
/* Whether at most half of the workers have a task of attention: all others wait for them. */
bool cost_is_of_few(const struct device *d, uint32_t slices);

/* What a task of a product of packed activations waits for, in rows from L2. It waits for the
 * weight and token rows that pass through its shared memory, tile by tile; behind the first tile,
 * one of up to 64 weight rows or tokens takes half as long. It also waits for its share of all
 * weights, `share_rows`, which comes from memory once for each tile of tokens that the task has. On
 * an H100 that is the bound: a tile of 128 x 128 has 64 flops a byte, which takes all that L2
 * delivers, and memory delivers half as much. */
uint64_t cost_tile_rows(uint32_t token_rows, uint32_t weight_rows, uint32_t share_rows);
/* The time of so many of these rows, of `columns` columns of 16 bits. */
double cost_tile_ns(uint64_t rows, uint32_t columns);
/* The time of QKV_HEADS behind a product of many rows: a hand-over, and bytes in and out. */
double cost_heads_ns(const struct cost_attention *a);

#endif
