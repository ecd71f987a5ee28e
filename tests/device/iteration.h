/* iteration.h - one iteration of a program with given rows: which requests it has, where their keys
 * and values lie, and what the runtime must find to lay out exactly these rows.
 *
 * Nothing of the runtime is played here. A rig writes the requests as running ones into the state
 * that a launch begins with; the program's own boundary lays out the rows, chooses the variant and,
 * since no operator but SAMPLE brings a token, ends the requests after the iteration.
 */
#ifndef QN_TESTS_DEVICE_ITERATION_H
#define QN_TESTS_DEVICE_ITERATION_H

#include "reference/reference.h"
#include "runtime/rt_state.h"

enum { ITERATION_MAX_ROWS = 256, ITERATION_SLOTS = 64 };

/* Rows [first, first + n) of a request; the last one wants logits. */
struct iteration_request {
    uint32_t slot, first, n;
    uint32_t n_output; /* of the tokens that are known, the newest n_output are no prompt */
    struct rt_sampling sampling;
};

struct iteration {
    uint32_t variant; /* index in the program */
    uint32_t n_requests;
    /* Requests of one row first: the boundary lays these out before chunks. */
    struct iteration_request requests[ITERATION_SLOTS];
    /* From iteration_lay_out on: */
    uint32_t n_rows, n_logit_rows, n_blocks;
    uint32_t max_len, max_blocks, kv_block, n_kv_blocks;
    int32_t token[ITERATION_MAX_ROWS], slot[ITERATION_MAX_ROWS], position[ITERATION_MAX_ROWS];
    int32_t logit_row[ITERATION_SLOTS];
    int32_t *tokens;                         /* [ITERATION_SLOTS][max_len] */
    int32_t *block_table;                    /* [ITERATION_SLOTS][max_blocks] */
    uint64_t first_row[ITERATION_SLOTS + 1]; /* reference.first_row */
};

/* Lays out rows, tokens and KV blocks of it->requests for a program with n_kv_blocks blocks. */
void iteration_lay_out(struct iteration *it, const struct prog_header *p, uint32_t n_kv_blocks);
void iteration_fini(struct iteration *it);

/* The known tokens of a request: positions up to its last row's. */
uint32_t iteration_n_known(const struct iteration_request *q);

/* Writes the requests into the runtime's state before its first launch; rt and batch point to
 * memory that the caller can write. */
void iteration_enter(const struct iteration *it, const struct rt *rt, const struct rt_batch *b);

/* Lets no variant but the iteration's be chosen. */
void iteration_choose(const struct iteration *it, struct rt *rt);

/* Gives the reference the iteration's rows. */
void iteration_refer(const struct iteration *it, struct reference *r);

#endif
