/* partials.h - the order in which a dot product is added up. It depends on the length K alone: not
 * on the batch, the tile, the number of workers or of GPUs. Both compilers read this.
 *
 *   tile      PARTIAL_TILE columns of K; the last one may be shorter
 *   partial   the sum of a contiguous eighth of the tiles, added up in order of K: partial p has
 *             tiles [partial_first(n_tiles, p), partial_first(n_tiles, p + 1))
 *   sum       LINEAR, whose K several GPUs share: (p0 + p1 + p2 + p3) + (p4 + p5 + p6 + p7), each
 *             half in order. Other operators, whose K no GPU shares: p0 + p1 + ... + p7 in order
 *
 * So each of 2, 4 or 8 GPUs has one contiguous shard of K. Of 2 GPUs, each adds up its half and
 * gives one number. Of 8, each gives its partial. Of 4, the second and the last give two numbers
 * each. A binary tree would avoid the second number, but it needs four sums at a time, where halves
 * need three and a plain order needs two. Tiles of many token rows hold two sums in registers;
 * docs/gpu-kernels.md says what a third one costs. (A CPU adds up the dot products of other
 * operators in one go: kernels/cpu/cpu_kernel.h.)
 *
 * Partials consist of whole tiles, since a page of weights (codegen/cuda_abi.h) is one tile wide:
 * no warp ever has two partials in a page. Partial p begins at tile p * n_tiles / 8, rounded up, so
 * halves, quarters and eighths of the tiles differ by one tile at most. With fewer than eight
 * tiles, some partials have no tiles and are not terms of the sum: four tiles are partials 0, 2, 4
 * and 6, so that four GPUs have one each.
 */
#ifndef QN_GRAPH_PARTIALS_H
#define QN_GRAPH_PARTIALS_H

#include "base/abi.h"

enum { PARTIALS = 8, PARTIAL_TILE = 256 };

ABI_FN uint32_t partial_tiles(uint32_t k) {
    return (k + PARTIAL_TILE - 1) / PARTIAL_TILE;
}

/* Partials that have tiles. */
ABI_FN uint32_t partial_count(uint32_t n_tiles) {
    return n_tiles < PARTIALS ? n_tiles : PARTIALS;
}

/* The first tile of partial p <= PARTIALS. */
ABI_FN uint32_t partial_first(uint32_t n_tiles, uint32_t p) {
    return (p * n_tiles + PARTIALS - 1) / PARTIALS;
}

/* The partial that has a tile. */
ABI_FN uint32_t partial_of(uint32_t n_tiles, uint32_t tile) {
    return PARTIALS * tile / n_tiles;
}

/* The n-th of the partials that have tiles; n = partial_count: PARTIALS. */
ABI_FN uint32_t partial_nth(uint32_t n_tiles, uint32_t n) {
    return n_tiles < PARTIALS ? PARTIALS * n / n_tiles : n;
}

/* How many of the partials that have tiles are in the first half: all, if the second has none. */
ABI_FN uint32_t partial_half(uint32_t n_tiles) {
    return (partial_count(n_tiles) + 1) / 2;
}

#endif
