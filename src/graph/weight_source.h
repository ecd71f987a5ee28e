/* weight_source.h - which elements of a checkpoint's tensor a part of a weight is made of: some of
 * its rows, in another order, or transposed.
 *
 * Named by a recipe's part (graph/kernel_graph.h), stored in the program, read by model/weights.c.
 *
 *   rows in runs   part row i is the tensor's row  from + i / run * skip + order(i % run):
 *                  rows [from, from + run), then `skip` rows further on, and so on
 *   pairs          order: of each run's last `pairs` rows, counted from 0, the even ones come
 *                  first, then the odd ones; the rows before them stay. So dimensions that a
 *                  checkpoint turns as pairs 2i, 2i+1 become pairs i, i + pairs/2
 *   transposed     each run of the part is a matrix of the tensor with rows and columns exchanged:
 *                  part row i, column k is the tensor's row  from + i / run * skip + k,  column
 *                  i % run
 */
#ifndef QN_GRAPH_WEIGHT_SOURCE_H
#define QN_GRAPH_WEIGHT_SOURCE_H

#include "base/abi.h"

/* All 0: the tensor as it is. */
struct weight_source {
    uint32_t rows, cols; /* of the tensor; cols 0: it has one dimension */
    uint32_t from, run, skip;
    uint32_t pairs;      /* even, up to run */
    uint32_t transposed; /* 0 or 1 */
};
ABI_SIZE(struct weight_source, 28);

#ifndef __CUDACC_RTC__
/* ---- host only from here ---- */
#include <stdbool.h>

static inline bool weight_source_is_whole(const struct weight_source *s) {
    return s->run == 0;
}

/* The tensor's row that row i of the part is; transposed: the row of its first element. */
static inline uint64_t weight_source_row(const struct weight_source *s, uint64_t i) {
    const uint64_t turn = i / s->run, in = i % s->run, kept = s->run - s->pairs;
    const uint64_t at = in - kept, half = s->pairs / 2;
    const uint64_t first = s->from + turn * s->skip;
    if (s->transposed) return first;
    if (in < kept) return first + in;
    return first + kept + (at < half ? 2 * at : 2 * (at - half) + 1);
}

/* Whether a part of `rows` rows of `cols` columns (0: a vector) lies in the tensor. */
static inline bool weight_source_fits(const struct weight_source *s, uint32_t rows, uint32_t cols) {
    if (weight_source_is_whole(s)) return true;
    if (rows == 0 || rows % s->run != 0 || s->pairs > s->run || s->pairs % 2 != 0) return false;
    const uint64_t first = s->from + (uint64_t)(rows / s->run - 1) * s->skip;
    if (!s->transposed) return s->cols == cols && first + s->run <= s->rows;
    return s->transposed == 1 && s->pairs == 0 && cols > 0 && s->run <= s->cols &&
           first + cols <= s->rows;
}
#endif

#endif
