/* program_map.h - what the tasks of a program read and write: op.def's access maps (op_map.h) bound
 * to the program's tensors. Read by the runtime, the device tables, traces and views; the proof has
 * an evaluator of its own.
 */
#ifndef QN_TASK_PROGRAM_MAP_H
#define QN_TASK_PROGRAM_MAP_H

#include "base/arena.h"
#include "graph/op_map.h"
#include "task/program.h"

/* The access map of an operator of a checked program (op_map.h). v: its variant. Errors as
 * op_map_bind's: the operands do not fit the operator. */
int program_map(struct diag *d, const struct prog_header *p, const struct prog_variant *v,
                const struct prog_op *op, struct op_map *map);

/* The maps of all operators; operators that are alike share one. */
struct program_maps {
    struct arena arena;
    struct op_map_ref *of; /* [n_ops] */
    struct op_maps distinct;
};
/* Errors: as program_map's. Call program_maps_fini also after an error. */
int program_maps_make(struct diag *d, const struct prog_header *p, struct program_maps *maps);
void program_maps_fini(struct program_maps *maps);

/* The rows of weight matrices that a task of units [unit0,unit1) reads, by operand, as rows of its
 * tensor; returns how many ranges. Matrices that units do not index have none: which rows of
 * EMBED's are read depends on the tokens. */
struct prog_weight_rows {
    uint32_t tensor, row0, row1;
};
int program_weight_rows(const struct prog_op *op, const struct op_map *map, uint32_t unit0,
                        uint32_t unit1, struct prog_weight_rows rows[OP_MAX_IN]);

/* The range of its block's rows that has rows [row0,row1) of a weight tensor: [*first, *last). */
void program_block_rows(const struct prog_header *p, const struct prog_tensor *t, uint32_t row0,
                        uint32_t row1, uint32_t *first, uint32_t *last);

#endif
