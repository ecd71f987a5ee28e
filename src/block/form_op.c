/* form_op.c - the normal form of each operator's result, by block_op.def. */
#include "block/form_table.h"

/* Operands and use of one application. */
struct call {
    struct forms *f;
    form_id a, b, c;
    uint32_t dims, to;
};

static form_id negative(struct forms *f, form_id a) {
    return form_scale(f, a, (struct rational){-1, 1});
}

static form_id larger(struct forms *f, form_id a, form_id b) {
    return form_add(f, b, form_relu(f, form_add(f, a, negative(f, b))));
}

static form_id smaller(struct forms *f, form_id a, form_id b) {
    return negative(f, larger(f, negative(f, a), negative(f, b)));
}

static uint32_t lowest_dim(uint32_t dims) {
    return dims == 0 ? BLOCK_MAX_DIMS : (uint32_t)__builtin_ctz(dims);
}

static form_id over_dims(const struct call *x, form_id a,
                         form_id (*one)(struct forms *, form_id, uint32_t)) {
    for (uint32_t dims = x->dims; dims != 0; dims &= dims - 1) a = one(x->f, a, lowest_dim(dims));
    return a;
}

static form_id form_op_number(const struct call *x) {
    (void)x;
    return FORM_NONE; /* form_number */
}
static form_id form_op_input(const struct call *x) {
    (void)x;
    return FORM_NONE; /* form_input */
}
static form_id form_op_size(const struct call *x) {
    return x->dims == 0 ? FORM_NONE : form_size(x->f, lowest_dim(x->dims));
}
static form_id form_op_add(const struct call *x) {
    return form_add(x->f, x->a, x->b);
}
static form_id form_op_sub(const struct call *x) {
    return form_add(x->f, x->a, negative(x->f, x->b));
}
static form_id form_op_mul(const struct call *x) {
    return form_mul(x->f, x->a, x->b);
}
static form_id form_op_div(const struct call *x) {
    return form_mul(x->f, x->a, form_power(x->f, x->b, -1, 1));
}
static form_id form_op_neg(const struct call *x) {
    return negative(x->f, x->a);
}
static form_id form_op_square(const struct call *x) {
    return form_mul(x->f, x->a, x->a);
}
static form_id form_op_rsqrt(const struct call *x) {
    return form_power(x->f, x->a, -1, 2);
}
static form_id form_op_sqrt(const struct call *x) {
    return form_power(x->f, x->a, 1, 2);
}
static form_id form_op_exp(const struct call *x) {
    return form_exp(x->f, x->a);
}
static form_id form_op_log(const struct call *x) {
    return form_log(x->f, x->a);
}
static form_id form_op_sigmoid(const struct call *x) {
    struct forms *f = x->f;
    const form_id e = form_exp(f, negative(f, x->a));
    return form_power(f, form_add(f, form_integer(f, 1), e), -1, 1);
}
static form_id form_op_silu(const struct call *x) {
    return form_mul(x->f, x->a, form_op_sigmoid(x));
}
static form_id form_op_tanh(const struct call *x) {
    const struct rational two = {2, 1};
    const struct call twice = {.f = x->f, .a = form_scale(x->f, x->a, two)};
    return form_add(x->f, form_scale(x->f, form_op_sigmoid(&twice), two), form_integer(x->f, -1));
}
static form_id form_op_gelu(const struct call *x) {
    return form_mul(x->f, x->a, form_phi(x->f, x->a));
}
static form_id form_op_abs(const struct call *x) {
    return larger(x->f, x->a, negative(x->f, x->a));
}
static form_id form_op_max(const struct call *x) {
    return larger(x->f, x->a, x->b);
}
static form_id form_op_min(const struct call *x) {
    return smaller(x->f, x->a, x->b);
}
static form_id form_op_clamp(const struct call *x) {
    return smaller(x->f, larger(x->f, x->a, x->b), x->c);
}
/* a is 0 or 1: c + a (b - c) */
static form_id form_op_select(const struct call *x) {
    const form_id d = form_add(x->f, x->b, negative(x->f, x->c));
    return form_add(x->f, x->c, form_mul(x->f, x->a, d));
}
static form_id form_op_sum(const struct call *x) {
    const form_id a = x->b == FORM_NONE ? x->a : form_mul(x->f, x->a, x->b);
    return over_dims(x, a, form_sum);
}
static form_id form_op_mean(const struct call *x) {
    form_id r = over_dims(x, x->a, form_sum);
    for (uint32_t dims = x->dims; dims != 0; dims &= dims - 1)
        r = form_mul(x->f, r, form_power(x->f, form_size(x->f, lowest_dim(dims)), -1, 1));
    return r;
}
static form_id form_op_max_over(const struct call *x) {
    form_id r = x->a, mask = x->b;
    for (uint32_t dims = x->dims; dims != 0; dims &= dims - 1, mask = FORM_NONE)
        r = form_max_over(x->f, r, mask, lowest_dim(dims));
    return r;
}
static form_id form_op_mm(const struct call *x) {
    return over_dims(x, form_mul(x->f, x->a, x->b), form_sum);
}
static form_id form_op_acc_sum(const struct call *x) {
    return over_dims(x, x->a, form_sum);
}
static form_id form_op_acc_max(const struct call *x) {
    return form_op_max_over(x);
}
/* sum(exp(a - max(a)) * b): the largest a of the loop is subtracted (block.h). */
static form_id form_op_acc_online(const struct call *x) {
    const struct call largest = {.f = x->f, .a = x->a, .b = FORM_NONE, .dims = x->dims};
    const form_id max = form_op_max_over(&largest);
    const form_id less = form_op_sub(&(struct call){.f = x->f, .a = x->a, .b = max});
    return over_dims(x, form_mul(x->f, form_exp(x->f, less), x->b), form_sum);
}
static form_id form_op_cast16(const struct call *x) {
    return x->a;
}
/* The dim along which a MOVE works. */
static bool one_dim(const struct call *x, uint32_t *dim) {
    *dim = lowest_dim(x->dims);
    return x->dims != 0 && (x->dims & (x->dims - 1)) == 0;
}
static form_id form_op_swap(const struct call *x) {
    uint32_t dim;
    if (x->a == FORM_NONE || !one_dim(x, &dim)) return FORM_NONE;
    const struct renaming r = {VAR_OF(dim, 0), INDEX_OF(VAR_OF(dim, 0), MAP_SWAP)};
    return form_rename(x->f, x->a, &r, 1);
}
/* The atom that a form consists of; 0: the form is not one atom. */
static atom_id as_atom(const struct forms *f, form_id a) {
    const struct form *p = form_of(f, a);
    if (a == FORM_NONE || p->n != 1 || !rational_same(p->terms[0].c, (struct rational){1, 1}))
        return 0;
    const struct mono *m = mono_of(f, p->terms[0].mono);
    return m->n == 1 && m->factors[0].num == 1 && m->factors[0].den == 1 ? m->factors[0].atom : 0;
}
static form_id form_op_pick(const struct call *x) {
    uint32_t dim;
    struct renaming r;
    if (x->a == FORM_NONE || !one_dim(x, &dim)) return FORM_NONE;
    r.from = VAR_OF(dim, 0);
    if (!index_of_atom(x->f, as_atom(x->f, x->b), false, &r.to)) return FORM_NONE;
    return form_rename(x->f, x->a, &r, 1);
}
/* The order must have all its dims free. */
static form_id form_op_which(const struct call *x) {
    uint32_t dim;
    const atom_id id = as_atom(x->f, x->a);
    const struct atom order = *atom_of(x->f, id);
    struct atom a = {.kind = ATOM_INPUT, .input = FORM_WHICH, .tensor = order.tensor, .n = 1};
    if (id == 0 || order.kind != ATOM_INPUT || order.input != FORM_ORDER) return FORM_NONE;
    if (!one_dim(x, &dim) || x->to >= BLOCK_MAX_DIMS) return FORM_NONE;
    uint32_t which = order.n;
    for (uint32_t i = 0; i < order.n; i++) {
        if (order.at[i] != VAR_OF(INDEX_DIM(order.at[i]), 0)) return FORM_NONE;
        if (INDEX_DIM(order.at[i]) == dim) which = i;
    }
    if (which == order.n) return FORM_NONE;
    a.which = (uint8_t)which;
    a.at[0] = VAR_OF(x->to, 0);
    return form_of_atom(x->f, atom_intern(x->f, a), 1, 1);
}
static form_id form_op_given(const struct call *x) {
    (void)x;
    return FORM_NONE; /* expr_forms */
}
static form_id form_op_choose(const struct call *x) {
    uint32_t dim;
    return one_dim(x, &dim) ? form_choose(x->f, x->a, x->b, dim) : FORM_NONE;
}

static form_id (*const constructors[N_BLOCK_OPS])(const struct call *) = {
#define BLOCK_OP(ID, id, ...) [BLOCK_OP_##ID] = form_op_##id,
#include "block/block_op.def"
#undef BLOCK_OP
};

form_id form_apply(struct forms *f, enum block_op op, const struct block_use *use,
                   const form_id operand[BLOCK_MAX_ARITY]) {
    const uint32_t arity = block_op_table[op].arity;
    struct call x = {.f = f, .dims = use == NULL ? 0 : use->dims};
    x.to = lowest_dim(use == NULL ? 0 : use->to);
    if (arity > 0) x.a = operand[0];
    if (arity > 1) x.b = operand[1];
    if (arity > 2) x.c = operand[2];
    return constructors[op](&x);
}
