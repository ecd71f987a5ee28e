/* kgraph_step.h - one operator of a kernel graph while it becomes forms (kgraph_prove.c): its dims
 * and its arguments. The tensors' values are parts, each a form with a tuple of dims.
 */
#ifndef QN_BLOCK_KGRAPH_STEP_H
#define QN_BLOCK_KGRAPH_STEP_H

#include "base/array.h"
#include "base/map.h"
#include "block/kgraph_prove.h"
#include "block/op_expr.h"

/* op.def's dims of one letter except k, n and d, which stand for tuples of the others. After them
 * come *flat* dims: rows of a weight that have no known letter. Its size identifies a flat dim. */
#define KGRAPH_LETTERS "tlhivgrepsbqcuwmyoxjzfa"
enum { N_GLOBAL = sizeof KGRAPH_LETTERS - 1, MAX_FLAT = 4, MAX_TUPLE = FORM_INPUT_DIMS };
enum { MAX_PARTS = 4, MAX_NAMED = 5 };
_Static_assert(N_GLOBAL + MAX_FLAT <= BLOCK_MAX_DIMS, "dims of forms");

/* A sequence of dims. */
struct kgraph_tuple {
    uint8_t n, at[MAX_TUPLE];
};

/* ---- a graph's values ---- */

struct kgraph_form_part {
    form_id form;
    struct kgraph_tuple dims;
};

/* The columns of a value that an operator's argument stands for. */
struct kgraph_named {
    const struct expr_arg *by;
    uint64_t columns;
};

struct kgraph_tensor_value {
    uint32_t n, n_named;
    struct kgraph_form_part parts[MAX_PARTS];
    struct kgraph_named named[MAX_NAMED]; /* where its last dim is flat */
};

/* A value at which two graphs are compared. */
struct kgraph_compared {
    const char *label; /* "kv.3.k", "stream 4" */
    form_id form;
    uint32_t op; /* the operator that has it as an output */
    const char *output;
    uint32_t first_op; /* operators since the last compared value */
    bool taken;        /* in the reference: a value of the compared graph has matched it */
};

/* One graph, whose operators become forms in turn. */
struct kgraph_walk {
    struct diag *d;
    struct kgraph_meaning *m;
    const struct kgraph *g;
    struct kgraph_tensor_value *values; /* [g->tensors.n] */
    ARRAY(struct kgraph_compared) compared;
    uint32_t n_stream, first_op;
};

struct kgraph_meaning {
    struct arena arena;
    struct forms *f;
    struct expr *exprs[N_OP_KINDS];
    struct map numbers; /* name of an input -> its number in the forms */
    ARRAY(struct kgraph_compared) reference;
    struct model_spec spec;
    uint64_t flat[MAX_FLAT]; /* sizes of flat dims; 0: not used */
};

/* One operator while it becomes forms. */
struct kgraph_step {
    struct kgraph_walk *w;
    uint32_t index;
    const struct kop *op;
    const struct expr *x;
    const struct op_info *info;
    form_id args[EXPR_MAX_ARGS];
    struct kgraph_tuple dims[BLOCK_MAX_DIMS]; /* of the expression's dims */
    bool bound[BLOCK_MAX_DIMS];
    uint32_t absent; /* bits */
};

/* The dim of a letter of KGRAPH_LETTERS; -1: the name is none. */
int kgraph_step_letter(const char *name);
/* Fails with QN_EVERIFY; the message names the operator and `name`. */
int kgraph_step_fail(const struct kgraph_step *s, const char *what, const char *name);
/* The form of an input: the same one in every graph for one name. Errors: QN_ENOMEM. */
int kgraph_step_input(struct kgraph_walk *w, const char *name, enum form_input_kind kind,
                      const struct kgraph_tuple *dims, form_id *out);
/* Splits "qkv.k" into the operand's name and the part after the point; *part: NULL without one. */
void kgraph_step_split_name(const char *name, char base[EXPR_NAME], const char **part);
/* The slot of that name; -1: none. */
int kgraph_step_slot(const struct op_slot *slots, int n, const char *name);
/* Whether two names are parts of one operand. */
bool kgraph_step_same_operand(const char *a, const char *b);
/* Which part of its operand an output is. */
uint32_t kgraph_step_part_of_out(const struct expr *x, uint32_t out);
/* The dims of a tensor that does not take them from another operator's value. */
int kgraph_step_own_dims(struct kgraph_step *s, const char *name, const uint8_t *dims, uint32_t n,
                         struct kgraph_tuple *out);
/* Elements along a tuple; 0: not known. */
uint64_t kgraph_step_tuple_size(const struct kgraph_step *s, const struct kgraph_tuple *t);
/* Whether a dim of the operator is bound to this dim. */
bool kgraph_step_uses(const struct kgraph_step *s, uint8_t dim);
/* Checks that operators together name all columns of each value. */
int kgraph_step_check_named(const struct kgraph_walk *w);
/* weights: false binds the operands that are values, which determine k and n; true, in a second
 * pass, all others. */
int kgraph_step_bind(struct kgraph_step *s, uint32_t arg, bool weights);
/* Checks that attributes that are sizes of dims equal the model's. */
int kgraph_step_check_attrs(const struct kgraph_step *s);

#endif
