/* split.h - into how many tasks decompose.c cuts an operator, and for which workers. */
#ifndef QN_PLAN_SPLIT_H
#define QN_PLAN_SPLIT_H

#include "graph/kernel_graph.h"
#include "plan/device.h"

/* The user's wishes. */
struct split_wish {
    bool halves;           /* docs/place.md, "Halves" */
    uint32_t linear_tasks; /* tile.linear's unit tiles; 0: no wish */
};

/* A tile's output units are a multiple of this. */
uint32_t split_grain(enum op_kind kind);

/* The number of workers that an operator is for. */
uint32_t split_workers(const struct device *d, const struct kgraph *k, const struct kop *op,
                       const struct split_wish *wish);

/* The number of tasks of an operator that wants `want`, if some workers had better have none of
 * them and there are `others`. It keeps to these where its largest task gets no larger by that. */
uint32_t split_leaving(const struct kop *op, uint32_t want, uint32_t others);

/* Slices of an operator that can have work, at most `want`. */
uint32_t split_slices(const struct kgraph *k, const struct kop *op, uint32_t want);

/* Some of an operator's grains, one after the other, cut into rows x units tiles. A unit tile is
 * `whole` grains or a multiple of that, but for the last one. */
struct split_band {
    uint32_t grains, rows, units, whole;
};
/* The cut of an operator. The second band may have no grains. It is for the workers that the first
 * one leaves without a task, where its row tiles do not divide their number. */
struct split_cut {
    struct split_band band[2];
};
/* All grains in one band. */
struct split_cut split_evenly(uint32_t n_grains, uint32_t rows, uint32_t units);

/* A product of packed rows to be cut for `want` tasks. */
struct split_product {
    uint32_t n_rows;               /* multiple of PACK_ROWS */
    uint32_t n_grains, grain_rows; /* grains of units, weight rows of one */
    uint32_t most_rows;            /* most row tiles; at least 1 */
    uint32_t want;
};
/* The cut whose largest task costs least, with no more tasks than that needs. Stores that task's
 * cost_tile_rows in *cost unless NULL. */
struct split_cut split_product(const struct split_product *p, uint64_t *cost);
/* QKV_FUSED of n_rows rows: at most one row tile for each tile of tokens (CUDA's PACK_TILE), and
 * each has more than 64 rows. */
struct split_product split_fused(const struct model_spec *s, uint32_t n_rows, uint32_t want);
/* QKV_LINEAR of n_rows rows, where weights do not stream. */
struct split_product split_projections(const struct model_spec *s, uint32_t n_rows, uint32_t want);

/* Whether an operator multiplies packed activations. */
bool split_reads_packed(const struct kgraph *k, const struct kop *op);
/* The cut of such an operator of n_rows packed rows and n_blocks grains of units. */
struct split_cut split_packed(const struct kgraph *k, const struct kop *op, uint32_t n_rows,
                              uint32_t n_blocks, uint32_t want);

/* Operators of experts whose cut on a GPU follows from what a task does with its rows, and this
 * cut: of n_rows rows and n_blocks grains of units. */
bool split_is_of_experts(enum op_kind kind);
struct split_cut split_experts(const struct kop *op, uint32_t n_rows, uint32_t n_blocks,
                               uint32_t want);

#endif
