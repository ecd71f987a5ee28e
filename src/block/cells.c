/* cells.c - see cells.h. */
#include "block/cells.h"
#include "base/checked.h"
#include "base/map.h"

int cells_make(struct diag *d, struct arena *arena, const struct algebra *g, uint32_t dims,
               struct cells *out) {
    uint64_t n = 1;
    for (uint32_t left = dims; left != 0; left &= left - 1)
        if (g->sizes[__builtin_ctz(left)] == 0)
            return fail(d, QN_EINVAL, "a value has a dim without elements");
        else if (!checked_mul(n, g->sizes[__builtin_ctz(left)], &n) || n > CELLS_MAX)
            return fail(d, QN_ELIMIT, "a value has more than %d elements", CELLS_MAX);
    *out = (struct cells){.dims = dims, .n = (uint32_t)n};
    return ARENA_NEW(d, arena, &out->at, n);
}

/* Walks the indices of some dims, innermost last, and tracks the position in several values. */
enum { WALKED = 4 };
struct walk {
    uint32_t n_dims;
    uint32_t size[BLOCK_MAX_DIMS], index[BLOCK_MAX_DIMS], dim[BLOCK_MAX_DIMS];
    uint32_t stride[WALKED][BLOCK_MAX_DIMS]; /* of each value along each dim; 0: it lacks the dim */
    uint32_t at[WALKED];
};

static void walk_dims(struct walk *w, const struct algebra *g, uint32_t dims) {
    *w = (struct walk){0};
    for (uint32_t left = dims; left != 0; left &= left - 1) {
        const uint32_t dim = (uint32_t)__builtin_ctz(left);
        w->dim[w->n_dims] = dim;
        w->size[w->n_dims++] = g->sizes[dim];
    }
}

/* Makes the walk track a value of these dims as number k. */
static void walk_follow(struct walk *w, int k, const struct algebra *g, uint32_t dims) {
    uint32_t stride = 1;
    w->at[k] = 0;
    for (int dim = BLOCK_MAX_DIMS - 1; dim >= 0; dim--) {
        if ((dims >> dim & 1) == 0) continue;
        for (uint32_t i = 0; i < w->n_dims; i++)
            if (w->dim[i] == (uint32_t)dim) w->stride[k][i] = stride;
        stride *= g->sizes[dim];
    }
}

/* Moves to the next indices; false: the walk is over and back at its start. */
static bool walk_on(struct walk *w) {
    for (uint32_t i = w->n_dims; i-- > 0;) {
        for (int k = 0; k < WALKED; k++) w->at[k] += w->stride[k][i];
        if (++w->index[i] < w->size[i]) return true;
        for (int k = 0; k < WALKED; k++) w->at[k] -= w->stride[k][i] * w->size[i];
        w->index[i] = 0;
    }
    return false;
}

static uint32_t stride_of(const struct algebra *g, uint32_t dims, uint32_t dim) {
    uint32_t stride = 1;
    for (uint32_t i = dim + 1; i < BLOCK_MAX_DIMS; i++)
        if (dims >> i & 1) stride *= g->sizes[i];
    return stride;
}

/* ---- elementwise ---- */

static int elementwise(struct diag *d, struct arena *arena, struct algebra *g, enum block_op op,
                       uint32_t dims, const struct cells *operand, struct cells *out) {
    struct walk w;
    uint32_t at = 0;
    TRY(cells_make(d, arena, g, dims, out));
    walk_dims(&w, g, dims);
    for (int i = 0; i < block_op_table[op].arity; i++) walk_follow(&w, i, g, operand[i].dims);
    do {
        const union cell *x[BLOCK_MAX_ARITY] = {NULL};
        for (int i = 0; i < block_op_table[op].arity; i++) x[i] = &operand[i].at[w.at[i]];
        g->apply[op](g, &out->at[at++], x[0], x[1], x[2]);
    } while (walk_on(&w));
    return QN_OK;
}

/* ---- reductions ---- */

/* The element that is added or compared, from one element of each operand. */
static void reduced_element(struct algebra *g, enum block_op op, union cell *out,
                            const union cell *a, const union cell *b) {
    const enum block_class c = (enum block_class)block_op_table[op].op_class;
    if (c == BLOCK_PRODUCT || (op == BLOCK_OP_SUM && b != NULL)) {
        g->apply[BLOCK_OP_MUL](g, out, a, b, NULL);
    } else {
        *out = *a;
    }
}

static int reduce(struct diag *d, struct arena *arena, struct algebra *g, enum block_op op,
                  const struct block_use *use, uint32_t dims, const struct cells *operand,
                  struct cells *out) {
    const bool largest = op == BLOCK_OP_MAX_OVER || op == BLOCK_OP_ACC_MAX;
    const bool masked = largest && operand[1].at != NULL;
    struct walk outer, inner;
    uint32_t at = 0;
    int64_t count = 1;
    if (op == BLOCK_OP_ACC_ONLINE) /* its elements need the largest of all; forms define it */
        return fail(d, QN_EUNSUPPORTED, "acc_online has a normal form and no numbers");
    TRY(cells_make(d, arena, g, dims, out));
    walk_dims(&outer, g, dims);
    walk_dims(&inner, g, use->dims);
    for (int i = 0; i < 2; i++) {
        walk_follow(&outer, i, g, operand[i].dims);
        walk_follow(&inner, i, g, operand[i].dims);
    }
    for (uint32_t i = 0; i < inner.n_dims; i++) count *= inner.size[i];
    do {
        union cell *r = &out->at[at++];
        bool first = true;
        g->number(g, 0, 1, r);
        do {
            const union cell *a = &operand[0].at[outer.at[0] + inner.at[0]];
            const union cell *b =
                operand[1].at == NULL ? NULL : &operand[1].at[outer.at[1] + inner.at[1]];
            union cell x;
            if (masked && g->is_zero(b)) continue;
            reduced_element(g, op, &x, a, b);
            if (first)
                *r = x;
            else
                g->apply[largest ? BLOCK_OP_MAX : BLOCK_OP_ADD](g, r, r, &x, NULL);
            first = false;
        } while (walk_on(&inner));
        if (first && largest) g->notes |= CELLS_UNDEFINED;
        if (op == BLOCK_OP_MEAN) {
            union cell n;
            g->number(g, count, 1, &n);
            g->apply[BLOCK_OP_DIV](g, r, r, &n, NULL);
        }
    } while (walk_on(&outer));
    return QN_OK;
}

/* The index of the largest element where the mask is not 0; of equal elements the lowest index. */
static int choose(struct diag *d, struct arena *arena, struct algebra *g,
                  const struct block_use *use, uint32_t dims, const struct cells *operand,
                  struct cells *out) {
    struct walk outer, inner;
    uint32_t at = 0;
    if (g->less == NULL) return fail(d, QN_EUNSUPPORTED, "choose has no value here");
    TRY(cells_make(d, arena, g, dims, out));
    walk_dims(&outer, g, dims);
    walk_dims(&inner, g, use->dims);
    for (int i = 0; i < 2; i++) {
        walk_follow(&outer, i, g, operand[i].dims);
        walk_follow(&inner, i, g, operand[i].dims);
    }
    do {
        const union cell *largest = NULL;
        int64_t index = 0, chosen = 0;
        do {
            const union cell *a = &operand[0].at[outer.at[0] + inner.at[0]];
            const union cell *mask =
                operand[1].at == NULL ? NULL : &operand[1].at[outer.at[1] + inner.at[1]];
            if ((mask == NULL || !g->is_zero(mask)) && (largest == NULL || g->less(largest, a))) {
                largest = a;
                chosen = index;
            }
            index++;
        } while (walk_on(&inner));
        if (largest == NULL) g->notes |= CELLS_UNDEFINED;
        g->number(g, chosen, 1, &out->at[at++]);
    } while (walk_on(&outer));
    return QN_OK;
}

/* ---- moves ---- */

/* For each place, the index along the dim at which the order gives that place. */
static int which(struct diag *d, struct arena *arena, struct algebra *g,
                 const struct block_use *use, const struct cells *order, struct cells *out) {
    const uint32_t dim = (uint32_t)__builtin_ctz(use->dims);
    const uint32_t stride = stride_of(g, order->dims, dim);
    TRY(cells_make(d, arena, g, use->to, out));
    if (out->n != order->n)
        return fail(d, QN_EINVAL, "which: the order has %u elements for %u places", order->n,
                    out->n);
    for (uint32_t i = 0; i < out->n; i++) g->number(g, 0, 1, &out->at[i]);
    for (uint32_t i = 0; i < order->n; i++) {
        const uint32_t place = g->index(&order->at[i]);
        if (place >= out->n) return fail(d, QN_EINVAL, "which: place %u of %u", place, out->n);
        g->number(g, i / stride % g->sizes[dim], 1, &out->at[place]);
    }
    return QN_OK;
}

static int move(struct diag *d, struct arena *arena, struct algebra *g, enum block_op op,
                const struct block_use *use, uint32_t dims, const struct cells *operand,
                struct cells *out) {
    const uint32_t dim = (uint32_t)__builtin_ctz(use->dims), size = g->sizes[dim];
    const uint32_t stride = stride_of(g, operand[0].dims, dim);
    struct walk w;
    uint32_t at = 0;
    if (op == BLOCK_OP_SWAP && size % 2 != 0)
        return fail(d, QN_EINVAL, "swap: the dim has %u elements, which have no halves", size);
    TRY(cells_make(d, arena, g, dims, out));
    walk_dims(&w, g, dims);
    walk_follow(&w, 0, g, operand[0].dims);
    if (op == BLOCK_OP_PICK) walk_follow(&w, 1, g, operand[1].dims);
    for (uint32_t i = 0; op == BLOCK_OP_PICK && i < w.n_dims; i++)
        if (w.dim[i] == dim) w.stride[0][i] = 0; /* `dim` is the positions' own */
    do {
        uint32_t from = w.at[0];
        if (op == BLOCK_OP_SWAP) {
            const uint32_t index = from / stride % size;
            from = from - index * stride + (index + size / 2) % size * stride;
        } else {
            const uint32_t index = g->index(&operand[1].at[w.at[1]]);
            if (index >= size) return fail(d, QN_EINVAL, "pick: position %u of %u", index, size);
            from += index * stride;
        }
        out->at[at++] = operand[0].at[from];
    } while (walk_on(&w));
    return QN_OK;
}

int cells_apply(struct diag *d, struct arena *arena, struct algebra *g, enum block_op op,
                const struct block_use *use, const struct cells operand[BLOCK_MAX_ARITY],
                struct cells *out) {
    static const struct block_use none = {0};
    uint32_t operand_dims[BLOCK_MAX_ARITY], dims;
    if (use == NULL) use = &none;
    for (int i = 0; i < BLOCK_MAX_ARITY; i++) operand_dims[i] = operand[i].dims;
    const char *wrong = block_op_dims(op, use, operand_dims, &dims);
    if (wrong != NULL) return fail(d, QN_EINVAL, "%s %s", block_op_table[op].name, wrong);
    switch ((enum block_class)block_op_table[op].op_class) {
    case BLOCK_ELEMENTWISE: return elementwise(d, arena, g, op, dims, operand, out);
    case BLOCK_REDUCE:
    case BLOCK_PRODUCT:
    case BLOCK_ACCUMULATE:
        if (op == BLOCK_OP_CHOOSE) return choose(d, arena, g, use, dims, operand, out);
        return reduce(d, arena, g, op, use, dims, operand, out);
    case BLOCK_MOVE:
        if (op == BLOCK_OP_WHICH) return which(d, arena, g, use, operand, out);
        return move(d, arena, g, op, use, dims, operand, out);
    case BLOCK_LEAF:
        if (op != BLOCK_OP_SIZE) break;
        TRY(cells_make(d, arena, g, 0, out));
        g->number(g, g->sizes[__builtin_ctz(use->dims)], 1, out->at);
        return QN_OK;
    }
    return fail(d, QN_EUNSUPPORTED, "%s has no value", block_op_table[op].name);
}

uint64_t cells_hash(const struct cells *v) {
    uint64_t h = v->dims;
    for (uint32_t i = 0; i < v->n; i++) {
        h = hash_bytes(&v->at[i].field.p, sizeof(uint64_t), h);
        h = hash_bytes(&v->at[i].field.q, sizeof(uint64_t), h);
    }
    return h;
}

bool cells_equal(const struct cells *a, const struct cells *b) {
    if (a->dims != b->dims || a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->at[i].field.p != b->at[i].field.p || a->at[i].field.q != b->at[i].field.q)
            return false;
    return true;
}
