/* op_map.h - an operator's row of op.def with numbers for its names: shapes and accesses.
 *
 * The one evaluator of op.def's access maps on the compiler's side. A bound map gives the shapes of
 * outputs, what a task reads and writes, rows and bytes of weights. The proof has an evaluator of
 * its own (task/task_verify_map.c), which shares nothing with this one but op.def's text.
 *
 * A map is bound once for an operator, then evaluated for any of its tasks without reading text.
 */
#ifndef QN_GRAPH_OP_MAP_H
#define QN_GRAPH_OP_MAP_H

#include "base/arena.h"
#include "base/array.h"
#include "graph/op.h"

/* Which part of a dimension a task touches. */
enum map_index {
    MAP_ALL,    /* [0, lo) */
    MAP_ROWS,   /* its rows */
    MAP_UNITS,  /* its units in [lo, hi), counted from lo: times `times`, over `over`, then times
                   `after`; or modulo `modulo`; or the first `first` of each `over` */
    MAP_LISTED, /* what a list names, which the iteration writes: at most hi of [0, lo) */
};

struct map_dim {
    uint64_t extent;
    uint64_t lo, hi, shift; /* shift: MAP_UNITS, added last */
    uint32_t times, over, after;
    uint32_t modulo, first; /* 0: none */
    uint32_t index;         /* enum map_index */
};

/* An operand's dimensions; n_dims 0: it is absent. */
struct map_operand {
    uint32_t n_dims;
    uint32_t weight; /* 1: it is a weight */
    struct map_dim dim[OP_MAX_DIMS];
};

struct op_map {
    uint64_t rows, units; /* of the whole operator */
    struct map_operand in[OP_MAX_IN], out[OP_MAX_OUT];
};

/* The shape of an operand; n_dims 0: it is absent. name: for messages. */
struct map_shape {
    const char *name;
    uint32_t n_dims;
    uint64_t shape[OP_MAX_DIMS];
};

/* The numbers that every operator of a graph knows. */
struct map_graph {
    uint64_t n_rows, n_logit_rows, n_pieces; /* T, L, P */
};

/* What a map is bound to. */
struct map_source {
    enum op_kind kind;
    int layer; /* for messages */
    struct map_graph graph;
    struct op_attrs attrs;
    struct map_shape in[OP_MAX_IN], out[OP_MAX_OUT]; /* of out, only those whose extent is `*` */
};

/* Binds the names of the operator's row to the shapes of its inputs, checks the inputs against the
 * row, and sets the shapes of its outputs: absent outputs get no dimensions. Errors: QN_ESHAPE with
 * operator, operand, the shape that the row wants and the shape that the operand has; QN_EINTERNAL
 * if the row cannot be read. */
int op_map_bind(struct diag *d, const struct map_source *source, struct op_map *map);

/* The different maps of a graph: operators that are alike share one. The maps lie in an arena, the
 * list in heap memory (ARRAY_FINI). */
struct op_map_ref {
    const struct op_map *map;
};
struct op_maps {
    ARRAY(struct op_map_ref) list;
};
/* Sets *kept to the list's map that equals *map, after adding it if there is none. */
int op_maps_keep(struct diag *d, struct op_maps *maps, struct arena *arena,
                 const struct op_map *map, const struct op_map **kept);

/* A part of a dimension, [first, last). */
struct map_range {
    uint64_t first, last;
};

/* The part of a dimension that a task of rows [row0,row1) and units [unit0,unit1) touches. */
struct map_range op_map_range(const struct map_dim *d, uint64_t row0, uint64_t row1, uint64_t unit0,
                              uint64_t unit1);

/* Elements that a task of units [unit0,unit1) reads of the weight matrices that units or a list
 * index. A list counts with as many entries as it has room for. */
uint64_t op_map_weight_elements(const struct op_map *map, uint64_t unit0, uint64_t unit1);

#endif
