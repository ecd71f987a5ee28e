/* task_verify_map.h - op.def's access maps for the proof: an evaluator that shares nothing with the
 * compiler's (graph/op_map.c) but the text of op.def. Only parts of task_verify include it.
 *
 * The compiler's map is a normal form, one rule per dimension. Here it is a short program for each
 * dimension, run on intervals of rows and units. Where a shape binds a name of the row, bisection
 * finds the number, since every number of op.def grows with each of its names.
 */
#ifndef QN_TASK_TASK_VERIFY_MAP_H
#define QN_TASK_TASK_VERIFY_MAP_H

#include "task/task_verify_proof.h"

enum { VERIFY_MAX_STEPS = 5 };

/* [first, last) of a dimension. */
struct verify_interval {
    uint64_t first, last;
};

/* VERB_FIRST: the first `b` of each `a`. VERB_LATER: `a` further on. VERB_LISTED: what a list
 * names, which may be anything: the iteration writes the list. */
enum verify_verb {
    VERB_WHOLE,
    VERB_ROWS,
    VERB_UNITS,
    VERB_CLIP,
    VERB_TIMES,
    VERB_OVER,
    VERB_FIRST,
    VERB_WRAP,
    VERB_LATER,
    VERB_LISTED
};

struct verify_step {
    uint64_t a, b;
    uint32_t verb; /* enum verify_verb */
};

struct verify_dim {
    uint64_t extent;
    uint32_t n;
    struct verify_step step[VERIFY_MAX_STEPS];
};

struct verify_operand {
    uint32_t n_dims; /* 0: absent */
    struct verify_dim dim[OP_MAX_DIMS];
};

struct verify_map {
    const struct op_info *info;
    uint64_t rows, units;
    struct verify_operand in[OP_MAX_IN], out[OP_MAX_OUT];
};

/* Reads the operator's row of op.def and checks its operands against it: presence, roles, shapes,
 * formats, layouts. Errors: QN_EVERIFY. */
int task_verify_map(struct proof *f, uint32_t op, struct verify_map *map);

/* The interval of a dimension that a task touches. */
struct verify_interval task_verify_map_range(const struct verify_dim *d, const struct prog_task *t);

#endif
