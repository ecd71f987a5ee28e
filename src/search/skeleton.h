/* skeleton.h - what a task looks like before its operators are chosen: which dims are the grid's,
 * which loops there are, and which sources they stream.
 *
 *   source   a leaf of the problem, or a value that an earlier task handed over
 *   grid     a subset of the dims of every result: a task without one of them in a result would
 *            write a partial value
 *   loop     none, one, or two in a row, each over a dim that is not in the grid
 *   streamed of the sources that have a loop's dim, those that advance with it; the others lie in
 *            scratch as a whole. Weights with the dim are always streamed, vectors and constants
 *            never: they are small and early
 */
#ifndef QN_SEARCH_SKELETON_H
#define QN_SEARCH_SKELETON_H

#include "base/array.h"
#include "search/saturate.h"

enum { SOURCES = PROBLEM_LEAVES + 2, HANDED = 2 };

struct source {
    uint16_t class;
    uint8_t leaf; /* of the problem; BLOCK_NONE: handed over */
    uint8_t kind; /* enum expr_kind of an input; leaves of other operators are EXPR_CONST */
    block_dims dims;
};

struct sources {
    uint32_t n;
    struct source at[SOURCES];
};

struct skeleton {
    block_dims grid;
    uint8_t loop, loop2;          /* dims; BLOCK_NONE */
    uint64_t streamed, streamed2; /* bits over sources */
    uint64_t absent;              /* those that a task of it cannot have */
};

struct skeletons {
    ARRAY(struct skeleton) list;
};

/* The leaves of the problem, then `n` classes that were handed over. */
void sources_make(const struct problem *p, const struct saturation *s, const uint16_t handed[],
                  uint32_t n, struct sources *out);

/* All skeletons of at most n_loops loops for results whose common dims are `dims`, always in the
 * same order. Release with ARRAY_FINI(&list). */
int skeletons_make(struct diag *d, const struct problem *p, const struct sources *sources,
                   block_dims dims, uint32_t n_loops, struct skeletons *out);

/* The stages in which a source is there, bits. */
uint32_t skeleton_stages(const struct skeleton *k, const struct sources *sources, uint32_t source);
/* "grid t,i loop h streams w" */
void skeleton_write(const struct problem *p, const struct sources *sources,
                    const struct skeleton *k, struct strbuf *out);

#endif
