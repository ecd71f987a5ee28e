/* candidate.h - a found graph before it is a result: it is lowered, then stabilised, verified and
 * proved.
 */
#ifndef QN_SEARCH_CANDIDATE_H
#define QN_SEARCH_CANDIDATE_H

#include "search/search.h"
#include "search/lower.h"

struct candidate {
    uint64_t cost;
    uint32_t problem; /* index; each split of a dim is a separate problem */
    struct block_graph blocks;
};

struct candidates {
    ARRAY(struct candidate) list;
};

/* A problem and its values. */
struct subject {
    struct problem problem;
    struct saturation saturation;
};

/* Appends the graphs of one task for a subject, from every skeleton. */
int candidates_of_one(struct diag *d, const struct subject *s, uint32_t problem,
                      const struct search_params *params, struct candidates *out,
                      struct search_result *stats);
/* Appends the graphs of two tasks, of which the first hands values over. */
int candidates_of_two(struct diag *d, const struct subject *s, uint32_t problem,
                      const struct search_params *params, struct candidates *out,
                      struct search_result *stats);

/* Runs `work` for 0 .. n - 1 on n_threads threads; returns the failure with the lowest index. */
int run_all(struct diag *d, uint32_t n_threads, uint32_t n,
            int (*work)(struct diag *d, void *context, uint32_t i), void *context);

#endif
