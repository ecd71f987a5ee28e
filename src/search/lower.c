/* lower.c - from chosen edges to the nodes of a block. */
#include "search/lower.h"

#include "base/checked.h"

#include <string.h>

struct lowering {
    struct diag *d;
    const struct staged *g;
    const struct extracted *x;
    const struct task_names *names;
    struct block *b;
    uint8_t dim_of[BLOCK_DIMS];   /* of the problem -> of the block */
    uint8_t node_of[BLOCK_NODES]; /* of x->at -> of the block */
};

static const struct staged_edge *edge_of(const struct lowering *l, uint32_t i) {
    return &l->g->edges.items[l->x->at[i].edge];
}

static const struct staged_node *staged_of(const struct lowering *l, uint32_t i) {
    return &l->g->nodes.items[l->x->at[i].node];
}

static block_dims class_dims(const struct lowering *l, uint32_t i) {
    return l->g->s->classes.items[staged_of(l, i)->class].dims;
}

/* The position in x->at of a staged node. */
static uint32_t position(const struct lowering *l, uint16_t node) {
    uint32_t i = 0;
    while (i + 1 < l->x->n && l->x->at[i].node != node) i++;
    return i;
}

static const struct problem_leaf *leaf_of(const struct lowering *l, const struct staged_edge *e) {
    const struct source *s = &l->g->sources->at[e->source];
    return e->op == BLOCK_OP_INPUT && s->leaf != BLOCK_NONE ? &l->g->p->leaf[s->leaf] : NULL;
}

static bool is_input(const struct lowering *l, uint32_t i) {
    const struct staged_edge *e = edge_of(l, i);
    const struct problem_leaf *leaf = leaf_of(l, e);
    return e->op == BLOCK_OP_INPUT && (leaf == NULL || leaf->op == BLOCK_OP_INPUT);
}

/* ---- dims ---- */

static block_dims map_dims(const struct lowering *l, block_dims of_problem) {
    block_dims dims = 0;
    for (uint32_t i = 0; i < l->g->p->n_dims; i++)
        if ((of_problem >> i & 1) != 0) dims |= (block_dims)(1u << l->dim_of[i]);
    return dims;
}

static void add_dim(struct lowering *l, uint32_t i) {
    const struct problem_dim *from = &l->g->p->dim[i];
    const struct skeleton *k = l->g->k;
    struct block_dim *dim = &l->b->dim[l->b->n_dims];
    *dim =
        (struct block_dim){.size = from->at_run_time ? 0 : from->size, .tile = l->g->shape.tile[i]};
    memcpy(dim->name, from->name, BLOCK_NAME);
    memcpy(dim->parent, from->parent, BLOCK_NAME);
    dim->role = ROLE_WHOLE;
    if ((k->grid >> i & 1) != 0) dim->role = ROLE_GRID;
    if (i == k->loop || i == k->loop2) dim->role = ROLE_LOOP;
    if (i == k->loop) l->b->loop = l->b->n_dims;
    if (i == k->loop2) l->b->loop2 = l->b->n_dims;
    l->dim_of[i] = l->b->n_dims++;
}

static void add_dims(struct lowering *l) {
    block_dims used = 0;
    for (uint32_t i = 0; i < l->x->n; i++) {
        const struct problem_leaf *leaf = leaf_of(l, edge_of(l, i));
        used |= class_dims(l, i) | edge_of(l, i)->red;
        if (leaf != NULL) used |= leaf->use;
    }
    for (uint32_t i = 0; i < l->g->p->n_dims; i++)
        if ((used >> i & 1) != 0) add_dim(l, i);
}

/* ---- nodes ---- */

static int new_node(struct lowering *l, struct block_node **n) {
    if (l->b->n_nodes == BLOCK_NODES)
        return fail(l->d, QN_ELIMIT, "%s: more than %d nodes in a task", l->names->task,
                    BLOCK_NODES);
    *n = &l->b->node[l->b->n_nodes++];
    **n =
        (struct block_node){.a = BLOCK_NONE, .b = BLOCK_NONE, .c = BLOCK_NONE, .dtype = DTYPE_F32};
    return QN_OK;
}

static uint8_t input_space(uint32_t stage, uint32_t kind, block_dims dims) {
    if (block_stage_loops(stage)) return SPACE_PAGE;
    if (dims == 0) return SPACE_REG;
    return kind == EXPR_VEC || kind == EXPR_CONST ? SPACE_GLOBAL : SPACE_SCRATCH;
}

static int add_input(struct lowering *l, uint32_t i) {
    const struct source *s = &l->g->sources->at[edge_of(l, i)->source];
    const bool handed = s->leaf == BLOCK_NONE;
    struct block_in *in = &l->b->in[l->b->n_in];
    struct block_node *n;
    if (l->b->n_in == BLOCK_IN)
        return fail(l->d, QN_ELIMIT, "%s: more than %d inputs of a task", l->names->task, BLOCK_IN);
    TRY(new_node(l, &n));
    n->op = BLOCK_OP_INPUT;
    n->stage = staged_of(l, i)->stage;
    n->dims = map_dims(l, s->dims);
    n->space = input_space(n->stage, s->kind, n->dims);
    n->dtype = handed || s->kind == EXPR_CONST ? DTYPE_F32 : DTYPE_BF16;
    in->kind = s->kind;
    memcpy(in->name,
           handed ? l->names->handed[edge_of(l, i)->source - l->g->p->n_leaves]
                  : l->g->p->leaf[s->leaf].name,
           BLOCK_NAME);
    l->node_of[i] = l->b->n_in++;
    return QN_OK;
}

static int add_leaf(struct lowering *l, uint32_t i, const struct problem_leaf *leaf) {
    struct block_node *n;
    l->node_of[i] = l->b->n_nodes;
    TRY(new_node(l, &n));
    n->op = leaf->op;
    n->stage = staged_of(l, i)->stage;
    n->red = map_dims(l, leaf->use);
    n->numerator = leaf->numerator;
    n->denominator = leaf->denominator;
    return QN_OK;
}

/* Pieces of a split dim are added in their order; sums over a loop in eighths. */
static uint8_t order_of(const struct lowering *l, const struct block_node *n) {
    if (!block_op_adds(n->op)) return ORDER_NONE;
    if (n->op == BLOCK_OP_ACC_SUM) return ORDER_PARTS8;
    for (uint32_t i = 0; i < l->b->n_dims; i++)
        if ((n->red >> i & 1) != 0 && l->b->dim[i].parent[0] != '\0') return ORDER_SHARES;
    return ORDER_TREE;
}

/* The product of one iteration, before its accumulator. */
static int add_partial_product(struct lowering *l, const struct staged_edge *e, uint8_t a,
                               uint8_t b, uint8_t *product) {
    struct block_node *n;
    *product = l->b->n_nodes;
    TRY(new_node(l, &n));
    n->op = BLOCK_OP_MM;
    n->a = a;
    n->b = b;
    n->stage = MAX(l->b->node[a].stage, l->b->node[b].stage);
    n->red = map_dims(l, e->red);
    n->dims = (block_dims)((l->b->node[a].dims | l->b->node[b].dims) & ~n->red);
    n->order = order_of(l, n);
    return QN_OK;
}

/* The node with the size of the dims; all means over them share it. */
static int size_node(struct lowering *l, block_dims red, uint8_t *node) {
    struct block_node *n;
    for (*node = 0; *node < l->b->n_nodes; ++*node)
        if (l->b->node[*node].op == BLOCK_OP_SIZE && l->b->node[*node].red == red) return QN_OK;
    TRY(new_node(l, &n));
    n->op = BLOCK_OP_SIZE;
    n->red = red;
    return QN_OK;
}

/* A mean is a sum divided by the size. */
static int add_division(struct lowering *l, uint32_t i) {
    const uint8_t sum = l->node_of[i];
    struct block_node *n;
    uint8_t size;
    TRY(size_node(l, l->b->node[sum].red, &size));
    l->node_of[i] = l->b->n_nodes;
    TRY(new_node(l, &n));
    n->op = BLOCK_OP_DIV;
    n->stage = l->b->node[sum].stage;
    n->dims = l->b->node[sum].dims;
    n->a = sum;
    n->b = size;
    return QN_OK;
}

static int add_operator(struct lowering *l, uint32_t i) {
    const struct staged_edge *e = edge_of(l, i);
    uint8_t a = l->node_of[position(l, e->a)];
    uint8_t b = e->b == STAGED_NONE ? BLOCK_NONE : l->node_of[position(l, e->b)];
    const uint32_t in =
        b == BLOCK_NONE ? l->b->node[a].stage : MAX(l->b->node[a].stage, l->b->node[b].stage);
    const bool accumulates = block_stage_loops(in) && staged_of(l, i)->stage != in;
    struct block_node *n;
    uint8_t op = e->op;
    if (e->product && !accumulates) op = BLOCK_OP_MM;
    if (accumulates) op = op == BLOCK_OP_MAX_OVER ? BLOCK_OP_ACC_MAX : BLOCK_OP_ACC_SUM;
    if (e->product && accumulates) {
        TRY(add_partial_product(l, e, a, b, &a));
        b = BLOCK_NONE;
    }
    if (op == BLOCK_OP_MEAN) op = BLOCK_OP_SUM;
    TRY(new_node(l, &n));
    n->op = op;
    n->a = a;
    n->b = b;
    n->stage = staged_of(l, i)->stage;
    n->red = map_dims(l, e->red);
    n->dims = map_dims(l, class_dims(l, i));
    n->order = order_of(l, n);
    l->node_of[i] = (uint8_t)(l->b->n_nodes - 1);
    return e->op == BLOCK_OP_MEAN ? add_division(l, i) : QN_OK;
}

static int add_nodes(struct lowering *l) {
    for (uint32_t i = 0; i < l->x->n; i++)
        if (is_input(l, i)) TRY(add_input(l, i));
    for (uint32_t stage = 0; stage < N_STAGES; stage++)
        for (uint32_t i = 0; i < l->x->n; i++) {
            const struct problem_leaf *leaf = leaf_of(l, edge_of(l, i));
            if (is_input(l, i) || staged_of(l, i)->stage != stage) continue;
            TRY(leaf != NULL ? add_leaf(l, i, leaf) : add_operator(l, i));
        }
    return QN_OK;
}

/* Sorts the nodes by stage again: a partial product is made with its accumulator, a stage late. */
static void sort_by_stage(struct block *b, uint8_t to[BLOCK_NODES]) {
    struct block_node old[BLOCK_NODES];
    uint8_t n = b->n_in;
    memcpy(old, b->node, sizeof old);
    for (uint8_t i = 0; i < b->n_in; i++) to[i] = i;
    for (uint32_t stage = 0; stage < N_STAGES; stage++)
        for (uint32_t i = b->n_in; i < b->n_nodes; i++) {
            if (old[i].stage != stage) continue;
            to[i] = n;
            b->node[n++] = old[i];
        }
    for (uint32_t i = b->n_in; i < b->n_nodes; i++) {
        uint8_t *const operand[] = {&b->node[i].a, &b->node[i].b, &b->node[i].c};
        for (size_t k = 0; k < COUNT_OF(operand); k++)
            if (*operand[k] != BLOCK_NONE) *operand[k] = to[*operand[k]];
    }
}

/* Puts a value into scratch if a loop reads it at other indices than those that were made. */
static void place_values(struct block *b) {
    for (uint32_t i = b->n_in; i < b->n_nodes; i++) {
        uint8_t operand[BLOCK_MAX_ARITY];
        const uint32_t n = block_operands(&b->node[i], operand);
        const block_dims loop = block_loop_dims(b, b->node[i].stage);
        for (uint32_t k = 0; k < n; k++) {
            struct block_node *o = &b->node[operand[k]];
            if (operand[k] >= b->n_in && o->stage != b->node[i].stage && (o->dims & loop) != 0)
                o->space = SPACE_SCRATCH;
        }
    }
}

int lower(struct diag *d, const struct staged *g, const struct extracted *x,
          const struct task_names *names, struct block *out) {
    struct lowering l = {.d = d, .g = g, .x = x, .names = names, .b = out};
    uint8_t sorted[BLOCK_NODES];
    *out = (struct block){.expr = g->p->expr, .loop = BLOCK_NONE, .loop2 = BLOCK_NONE};
    memcpy(out->name, names->task, BLOCK_NAME);
    add_dims(&l);
    TRY(add_nodes(&l));
    sort_by_stage(out, sorted);
    place_values(out);
    for (out->n_out = 0; x->result[out->n_out] != STAGED_NONE; out->n_out++) {
        struct block_out *o = &out->out[out->n_out];
        memcpy(o->name, names->result[out->n_out], BLOCK_NAME);
        o->node = sorted[l.node_of[position(&l, x->result[out->n_out])]];
        o->dtype = names->hands_over ? DTYPE_F32 : DTYPE_BF16;
    }
    return QN_OK;
}
