/* problem.h - the input of the search: an expression as targets over leaves, in numbers.
 *
 * problem_make (problem.c) makes it from an expression. It can first split a summed dim into pieces
 * and the rest, which changes no sum. The later stages know dims and operators only: no pattern has
 * a name here.
 */
#ifndef QN_SEARCH_PROBLEM_H
#define QN_SEARCH_PROBLEM_H

#include "block/block.h"

enum { PROBLEM_LEAVES = 32, PROBLEM_NO_SPLIT = 255, PROBLEM_STEPS = 2 * EXPR_MAX_NODES };

/* A dim of the problem. Its number is its bit in all sets of dims and its number in the forms. */
struct problem_dim {
    char name[BLOCK_NAME];
    char parent[BLOCK_NAME]; /* of a split dim; "": none */
    uint32_t size;           /* as the cost model counts it */
    bool at_run_time;        /* the size is known at run time only */
    bool piece, rest;        /* of a split dim: which piece; the index in it */
    bool halved;             /* `swap` moves along it */
};

/* A value from which computation may start. */
struct problem_leaf {
    char name[BLOCK_NAME];
    uint8_t op;   /* INPUT, NUMBER, SIZE */
    uint8_t kind; /* of an input: enum expr_kind */
    block_dims dims;
    block_dims use;                 /* of SIZE: the dim */
    int64_t numerator, denominator; /* of NUMBER */
    form_id form;
};

struct problem_target {
    char name[BLOCK_NAME];
    block_dims dims;
    form_id form;
};

struct problem {
    char name[BLOCK_NAME];
    struct forms *forms;
    uint32_t n_dims, n_leaves, n_targets;
    struct problem_dim dim[BLOCK_DIMS];
    struct problem_leaf leaf[PROBLEM_LEAVES];
    struct problem_target target[BLOCK_OUT];
    struct {
        form_id form;
        block_dims dims;
    } step[PROBLEM_STEPS]; /* the expression's own values, always useful */
    uint32_t n_steps;
    block_dims over[N_BLOCK_OPS]; /* of reductions: the dims that they may reduce */
    block_dims reduced;           /* dims that the expression sums over */
    uint64_t ops;                 /* bits: operators that may be used */
    uint64_t expr;                /* hash of the targets' forms */
};

/* Sizes of dims that a user gives. */
struct problem_size {
    char name[BLOCK_NAME];
    uint32_t size;
};
struct problem_sizes {
    uint32_t n;
    struct problem_size at[BLOCK_DIMS];
};
/* Parses "h=4096,i=6144". Errors: QN_EINVAL. */
int problem_sizes_parse(struct diag *d, const char *text, struct problem_sizes *out);

/* Makes the problem of an expression. split: the dim of x that is split into pieces, d -> (d_p,
 * d_q); PROBLEM_NO_SPLIT: none. `forms` owns the forms. Errors: QN_EUNSUPPORTED for operators and
 * inputs that the search does not know, QN_ELIMIT. */
int problem_make(struct diag *d, const struct expr *x, const struct problem_sizes *sizes,
                 uint8_t split, struct forms *forms, struct problem *out);

#endif
