/* block.h - block graphs: what a task computes in one thread block, as a table of nodes.
 *
 *   kernel graph   operators over tensors in device memory          graph/kernel_graph.h
 *   block graph    one task: its operands, stages and values        struct block
 *   thread graph   elementwise nodes that stay in registers         block/thread_graph.h
 *
 * Each dim has a name and one role in the task. The roles determine what other systems call imap,
 * omap and fmap. An operand is partitioned along the grid dims that it has and replicated along the
 * others. It advances along its loop dims unless all of it lies in the task's scratch.
 *
 *   stage    early -> before -> LOOP -> between -> LOOP2 -> after
 *            `early` needs no event; only an accumulator carries a loop's value to later stages
 *
 * Accumulators: ACC_SUM adds over all iterations, ACC_MAX takes the largest. ACC_ONLINE(a, b) is
 * sum(exp(a - m) * b), where m is the largest a of the loop. All ACC_ONLINE of one a share m, and
 * ACC_MAX(a) returns it. ACC_ONLINE keeps sums of exponentials finite; form_op.c defines it so.
 *
 * The search (src/search) makes blocks; block_read makes them from text. block_verify checks the
 * rules. The other functions take verified blocks unless they say otherwise.
 */
#ifndef QN_BLOCK_BLOCK_H
#define QN_BLOCK_BLOCK_H

#include "base/status.h"
#include "base/strbuf.h"
#include "block/block_op.h"
#include "block/expr.h"
#include "graph/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum { BLOCK_DIMS = 12, BLOCK_NODES = 64, BLOCK_IN = 12, BLOCK_OUT = 4, BLOCK_NAME = EXPR_NAME };
enum { BLOCK_TASKS = 3, BLOCK_TEXT = 1 << 16 };           /* tasks of a graph; bytes of its text */
enum { BLOCK_NONE = 255 };                                /* a node's operand: no operand */
enum { BLOCK_MAX_SIZE = 1 << 30 };                        /* of a dim */
enum { BLOCK_PAGE_ELEMENTS = 4096, BLOCK_THREADS = 256 }; /* of a page; of a task */
enum { BLOCK_BUFFERS = 8 };                               /* in scratch, at most */

/* Sets of dims are bits over block.dim. */
typedef uint16_t block_dims;

enum block_role {
    ROLE_WHOLE, /* each task holds all of its indices at once */
    ROLE_GRID,  /* each task holds `tile` of its indices */
    ROLE_LOOP,  /* a loop goes through it, `tile` indices an iteration */
    ROLE_TILE,  /* each task holds all of its indices and computes `tile` at a time */
    N_ROLES
};

enum block_stage {
    STAGE_EARLY,  /* needs no event: constants, weights of norms */
    STAGE_BEFORE, /* activations have arrived; before the first loop */
    STAGE_LOOP,
    STAGE_BETWEEN,
    STAGE_LOOP2,
    STAGE_AFTER,
    N_STAGES
};

enum block_space {
    SPACE_REG,     /* registers of a warp's item */
    SPACE_SCRATCH, /* the task's shared memory */
    SPACE_PAGE,    /* streamed through the ring of pages */
    SPACE_GLOBAL,  /* device memory, read in place */
    N_SPACES
};

/* The order in which a reduction adds. The bits of a result depend on it. */
enum block_order {
    ORDER_NONE,    /* the node is no reduction */
    ORDER_TREE,    /* a binary tree over the elements of an item */
    ORDER_PARTS8,  /* eight contiguous parts of the dim, added as a binary tree */
    ORDER_SQUARES, /* groups of SQUARES_COLUMNS columns, each added by its writer */
    ORDER_SHARES,  /* pieces of a context, merged in order */
    N_ORDERS
};

struct block_dim {
    char name[BLOCK_NAME];
    char parent[BLOCK_NAME]; /* the dim that was split into this one and others; "": none */
    uint32_t size;           /* 0: known at run time (rows, positions) */
    uint32_t tile;           /* 1.. */
    uint8_t role;            /* enum block_role */
};

/* A value. Nodes read earlier nodes only; the first block.n_in nodes are the inputs. */
struct block_node {
    uint8_t op, stage, space, dtype; /* enum block_op, block_stage, block_space, dtype */
    uint8_t a, b, c;                 /* operands; BLOCK_NONE */
    uint8_t order;                   /* enum block_order */
    block_dims dims;                 /* of the value */
    block_dims red;                  /* struct block_use: dims that a reduction removes, ... */
    int64_t numerator, denominator;  /* of NUMBER */
};

struct block_in {
    char name[BLOCK_NAME];
    uint8_t kind; /* enum expr_kind */
};

struct block_out {
    char name[BLOCK_NAME];
    uint8_t node, dtype;
};

struct block {
    char name[BLOCK_NAME];
    uint64_t expr; /* hash of the result's normal form; 0: not known */
    uint8_t n_dims, n_nodes, n_in, n_out;
    uint8_t loop, loop2; /* dims of the loops; BLOCK_NONE: no such loop */
    struct block_dim dim[BLOCK_DIMS];
    struct block_node node[BLOCK_NODES];
    struct block_in in[BLOCK_IN];
    struct block_out out[BLOCK_OUT];
};

/* Tasks in the order in which they run. If an input of a later task has the name of an earlier
 * task's output, it is that output. */
struct block_graph {
    uint32_t n_tasks;
    struct block task[BLOCK_TASKS];
};

/* ---- block.c: names and small questions ---- */

const char *block_role_name(uint32_t role); /* "?" if out of range, in all four */
const char *block_stage_name(uint32_t stage);
const char *block_space_name(uint32_t space);
const char *block_order_name(uint32_t order);

/* Whether values of the stage belong to one iteration of a loop. */
static inline bool block_stage_loops(uint32_t stage) {
    return stage == STAGE_LOOP || stage == STAGE_LOOP2;
}
/* The dims of a role. */
block_dims block_with_role(const struct block *b, enum block_role role);
/* The loop dim of a loop stage, as a set; empty for other stages and for a missing loop. */
block_dims block_loop_dims(const struct block *b, uint32_t stage);
/* Indices of the dim that a value of the stage holds at once; 0: known at run time only. */
uint64_t block_extent(const struct block *b, uint32_t dim, uint32_t stage, uint32_t space);
/* Elements of a node's value that a task holds at once, with 1 for sizes known at run time. */
uint64_t block_elements(const struct block *b, uint32_t node);
/* The operands of a node without the missing ones; returns their number. */
uint32_t block_operands(const struct block_node *n, uint8_t operand[BLOCK_MAX_ARITY]);
/* Whether the operator is used with dims; whether it adds elements, in some order. */
bool block_op_uses_dims(uint32_t op);
bool block_op_adds(uint32_t op);
/* How many operands the operator may lack: 1, the mask, for SUM, MAX_OVER and CHOOSE; else 0. */
uint32_t block_op_optional(uint32_t op);
/* Appends a node's dims as "[t,h]". */
void block_write_dims(const struct block *b, block_dims dims, struct strbuf *out);

/* ---- block_verify.c ---- */

/* The resources that a task may use. */
struct block_limits {
    uint32_t scratch_bytes; /* shared memory for the running task */
    uint32_t ring_pages;    /* pages that a task's streamed operands may occupy at a time */
    uint32_t registers;     /* of a thread, for the values of a task */
};
struct block_limits block_limits_default(void);

/* Checks a task against the rules; the message names the task, the node and the rule. Accepts any
 * struct: it reports numbers out of range and does not follow them. Errors: QN_EVERIFY. */
int block_verify(struct diag *d, const struct block *b, const struct block_limits *limits);
/* Checks each task, and that handed-over values have the dims that their readers expect. */
int block_graph_verify(struct diag *d, const struct block_graph *g,
                       const struct block_limits *limits);

/* ---- block_write.c, block_read.c: the text form (docs/superoptimizer.md has the grammar) ---- */

/* Appends the text of all tasks. Reading the text and writing it again gives the same text. */
void block_write(const struct block_graph *g, struct strbuf *out);
/* Reads n bytes. Messages give `name`, the line and the field. The graph's numbers are well-formed,
 * but the graph is not verified. Errors: QN_EFORMAT, QN_ELIMIT. */
int block_read(struct diag *d, const char *name, const char *text, size_t n, struct block_graph *g);

/* ---- block_view.c ---- */

void block_dot(const struct block_graph *g, struct strbuf *out);
/* A self-contained page: it loads nothing from elsewhere. */
void block_html(const struct block_graph *g, struct strbuf *out);

/* ---- block_stats.c ---- */

struct block_stats {
    uint32_t n_nodes, n_inputs, n_reductions, n_accumulators, n_thread_graphs;
    uint32_t per_stage[N_STAGES];
    uint64_t page_bytes;    /* streamed through the ring by all iterations of a task */
    uint64_t scratch_bytes; /* peak, under the best placement */
    uint32_t registers;     /* of a thread, peak */
};
/* b must be verified. */
void block_stats(const struct block *b, struct block_stats *s);
/* Bytes of scratch that the best placement of the task's buffers needs. UINT64_MAX: more than
 * BLOCK_BUFFERS buffers, or a buffer is too large. */
uint64_t block_place_scratch(const struct block *b);
/* The peak number of a thread's registers that hold values. */
uint32_t block_live_registers(const struct block *b);

#endif
