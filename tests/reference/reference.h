/* reference.h - the meaning of every operator of op.def, in double, written to be read.
 *
 * One small function per operator, reference_op_<name>: in reference.c, or beside the operator's
 * tests (device/ops). An operator works on logical values: a tensor is rows of numbers, whatever
 * its bytes look like on a device. Packed layouts, flags, sentinels and the blocks of the KV cache
 * are codecs of the tests that compare with it.
 *
 * A number that the operator leaves open is NaN: pieces that a row does not see, rows that the
 * iteration does not have. Comparisons skip what is NaN here.
 */
#ifndef QN_TESTS_REFERENCE_H
#define QN_TESTS_REFERENCE_H

#include "graph/kernel_graph.h"
#include "runtime/rt_batch.h"

/* A tensor as numbers. Weights: [rows][cols] of the checkpoint. Activations: [rows][cols], cols
 * with all inner dimensions, without padding. State: a row for each position of each request
 * (first_row), [2 * KV heads * head_dim], keys of all heads, then values. */
struct reference_tensor {
    uint64_t rows, cols;
    double *at; /* NULL: not filled */
};

/* A request as its rows and SAMPLE see it. */
struct reference_request {
    const int32_t *tokens; /* [n_known] prompt and output */
    uint32_t n_prompt, n_known;
    struct rt_sampling sampling;
    bool is_sampled; /* SAMPLE has a row of it */
    int32_t chosen;  /* ... the token */
    double logprob;  /* ... and its log-probability */
    double distance; /* ... between the score of the token and that of the next one */
};

struct reference {
    const struct kgraph *g;
    struct reference_tensor *tensors;       /* [g->tensors.n] */
    uint32_t n_rows, n_logit_rows;          /* that the iteration has */
    const int32_t *token, *slot, *position; /* [n_rows] */
    const int32_t *logit_row;               /* [n_logit_rows] */
    struct reference_request *requests;     /* [n_slots] */
    const uint64_t *first_row;              /* [n_slots + 1] of a request in state tensors */
    uint32_t n_slots;
};

/* Prepares for a graph: no tensor is filled. Errors: QN_ENOMEM. */
int reference_init(struct diag *d, struct reference *r, const struct kgraph *g, uint32_t n_slots);
void reference_fini(struct reference *r);

/* Gives a tensor its numbers' memory, all NaN; its logical shape follows from the graph. rows or
 * cols 0: as many as the graph's tensor has. Aborts without memory, as all that follows. */
struct reference_tensor *reference_make(struct reference *r, int32_t tensor, uint64_t rows,
                                        uint64_t cols);

/* The row of state tensors that has a position of a request. */
static inline uint64_t reference_kv_row(const struct reference *r, uint32_t slot,
                                        uint32_t position) {
    return r->first_row[slot] + position;
}

/* The meanings. */
#define OP(ID, name, ...) void reference_op_##name(struct reference *r, const struct kop *op);
#include "graph/op.def"

/* Runs operator `op` of the graph: its inputs must be filled, its outputs are made. */
void reference_op(struct reference *r, uint32_t op);
/* All of them, in order. */
void reference_run(struct reference *r);

#endif
