/* expr.h - what an operator means: a DAG of block operators over its arguments.
 *
 * op_text_parse makes it from text; prove.c, kgraph_prove.c and the search read it. Each node reads
 * earlier nodes only. A dim is an index into expr.dims and means the same in all of an operator's
 * arguments.
 */
#ifndef QN_BLOCK_EXPR_H
#define QN_BLOCK_EXPR_H

#include "block/cells.h"
#include "block/form.h"

enum {
    EXPR_MAX_NODES = 512,
    EXPR_MAX_ARGS = 32,
    EXPR_MAX_OUT = 8,
    EXPR_NAME = 32, /* bytes of a name, with its NUL */
    EXPR_MAX_OPTIONAL = 6,
    EXPR_NO_NODE = -1,
};

enum expr_kind {
    EXPR_ACT,    /* an activation */
    EXPR_VEC,    /* a small weight: a norm's, a bias */
    EXPR_WEIGHT, /* a matrix */
    EXPR_CONST,  /* a number; with a value: that number */
    EXPR_STATE,  /* values written in earlier iterations */
    EXPR_MASK,   /* 0 or 1 */
    EXPR_SHARE,  /* [s,p]: 0 or 1, for each p it is 1 at one s */
    EXPR_INDEX,  /* positions of another dim, which `pick` takes */
    EXPR_ORDER,  /* the same, each position once: `which` takes it, too */
    N_EXPR_KINDS,
};

struct expr_dim {
    char name[EXPR_NAME];
    bool halved; /* `swap` moves along it: it has an even size */
};

struct expr_arg {
    char name[EXPR_NAME];
    uint8_t kind; /* enum expr_kind */
    uint8_t n_dims;
    uint8_t of; /* INDEX, ORDER: the dim whose positions it gives */
    uint8_t dims[FORM_INPUT_DIMS];
    int32_t node;     /* the INPUT node */
    int32_t fallback; /* node that replaces it if it is absent; EXPR_NO_NODE: required */
    bool used;
};

struct expr_node {
    uint8_t op;    /* enum block_op */
    uint8_t arg;   /* INPUT: which */
    uint8_t of;    /* the dim whose positions it gives, counted from 1; 0: numbers */
    uint16_t line; /* in the text */
    uint32_t dims; /* of the result, bits */
    struct block_use use;
    int32_t in[BLOCK_MAX_ARITY]; /* EXPR_NO_NODE: none */
    int64_t num, den;            /* NUMBER */
};

struct expr_out {
    char name[EXPR_NAME];
    uint8_t n_dims, dims[FORM_INPUT_DIMS];
    int32_t node; /* may lack some of the dims: it is constant along them */
};

struct expr {
    char name[EXPR_NAME];
    uint32_t n_dims, n_args, n_nodes, n_out;
    struct expr_dim dims[BLOCK_MAX_DIMS];
    struct expr_arg args[EXPR_MAX_ARGS];
    struct expr_out out[EXPR_MAX_OUT];
    struct expr_node nodes[EXPR_MAX_NODES];
};

/* The argument or output with a name; -1: not found. */
int expr_find_arg(const struct expr *x, const char *name);
int expr_find_out(const struct expr *x, const char *name);
/* Whether any node has the operator. */
bool expr_has(const struct expr *x, enum block_op op);
const char *expr_kind_name(enum expr_kind kind);
enum form_input_kind expr_form_kind(enum expr_kind kind);

/* The form of an argument as tensor number `tensor`, with its own dims; also for INDEX. */
form_id expr_arg_form(struct forms *f, const struct expr *x, uint32_t arg, uint32_t tensor);

/* Sets out[n_nodes] to the forms of all nodes. args[n_args]: FORM_NONE means absent, and the
 * fallback replaces it. dims: the dims of the forms that each dim of the expression stands for,
 * bits; NULL: itself. */
void expr_forms(struct forms *f, const struct expr *x, const form_id *args, const uint32_t *dims,
                form_id *out);

/* The same for the nodes that `needed` marks (NULL: all); the forms of some nodes are given. */
struct expr_known {
    int32_t node;
    form_id form;
};
struct expr_call {
    const form_id *args;
    const uint32_t *dims;
    const bool *needed;
    const struct expr_known *known;
    uint32_t n_known;
};
void expr_forms_of(struct forms *f, const struct expr *x, const struct expr_call *c, form_id *out);

/* Sets out[n_nodes] to the values of the nodes that `needed` marks (NULL: all). args[n_args]: `at`
 * NULL is absent. Errors: QN_EUNSUPPORTED if a node has no value (choose), cells_apply's. */
int expr_cells(struct diag *d, struct arena *arena, struct algebra *g, const struct expr *x,
               const struct cells *args, const bool *needed, struct cells *out);
/* Marks the nodes that a node needs, and keeps earlier marks. absent: bits of absent arguments. */
void expr_needed(const struct expr *x, int32_t node, uint32_t absent, bool *needed);

/* "op name: dims ..., arguments ..., normal form" for `quern op check`. */
void expr_dump(const struct expr *x, struct strbuf *out);

#endif
