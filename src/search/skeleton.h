/* skeleton.h - a task before its operators are chosen: the dims of its grid, its loops, and the
 * sources that the loops stream.
 *
 *   source   a leaf of the problem, or a value that an earlier task handed over
 *   grid     a subset of the dims that all results have: if a result lacked a grid dim, a task
 *            would write a partial value
 *   loop     none, one, or two in a row, each over a dim that is not in the grid
 *   streamed of the sources that have a loop's dim, those that advance with it; all of each other
 *            source lies in scratch. Weights and states with the dim are always streamed; vectors
 *            and constants never are: they are small and early
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
    uint64_t absent;              /* sources that a task of it cannot have */
};

struct skeletons {
    ARRAY(struct skeleton) list;
};

/* Lists the leaves of the problem, then the `n` handed-over classes. */
void sources_make(const struct problem *p, const struct saturation *s, const uint16_t handed[],
                  uint32_t n, struct sources *out);

/* Makes all skeletons of at most n_loops loops for results whose common dims are `dims`, always in
 * the same order. Release with ARRAY_FINI(&list). */
int skeletons_make(struct diag *d, const struct problem *p, const struct sources *sources,
                   block_dims dims, uint32_t n_loops, struct skeletons *out);

/* The stages in which a source is available, bits. */
uint32_t skeleton_stages(const struct skeleton *k, const struct sources *sources, uint32_t source);
/* "grid t,i loop h streams w" */
void skeleton_write(const struct problem *p, const struct sources *sources,
                    const struct skeleton *k, struct strbuf *out);

#endif
