/* saturate.c - a worklist of values: each new value is combined with all earlier ones. */
#include "search/saturate.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/map.h"
#include "block/field.h"

#include <string.h>

enum { SEED = 20260, MAX_BYTES = 1 << 29 }; /* of cells and keys; also a budget */

/* A class under its form, or under its cells. */
struct key {
    uint64_t what; /* form, or hash of cells */
    block_dims dims;
    uint16_t is_form;
    uint32_t pad;
};

struct saturator {
    struct diag *d;
    struct arena *arena;
    const struct problem *p;
    struct saturation *out;
    struct algebra field;
    struct field_state field_state;
    struct map by_key; /* struct key -> class */
    uint64_t budget;
    form_id one;
    bool steps_only; /* keep only the expression's own values */
    size_t n_own;    /* classes after that first round */
};

/* ---- classes ---- */

static int find_key(struct saturator *s, uint64_t what, block_dims dims, bool is_form,
                    uint16_t class, uint64_t *holds) {
    struct key *key;
    TRY(ARENA_NEW(s->d, s->arena, &key, 1));
    *key = (struct key){.what = what, .dims = dims, .is_form = is_form};
    return map_put(s->d, &s->by_key, key, sizeof *key, class, holds);
}

static bool is_known(const struct saturator *s, uint64_t what, block_dims dims, bool is_form,
                     uint64_t *class) {
    const struct key key = {.what = what, .dims = dims, .is_form = is_form};
    return map_find(&s->by_key, &key, sizeof key, class);
}

static int add_class(struct saturator *s, const struct value_class *c, uint16_t *class) {
    if (s->out->classes.n == SATURATE_CLASSES)
        return fail(s->d, QN_ELIMIT, "%s: more than %d values on the way to the result", s->p->name,
                    SATURATE_CLASSES);
    *class = (uint16_t)s->out->classes.n;
    TRY(find_key(s, c->form, c->dims, true, *class, NULL));
    TRY(find_key(s, c->hash, c->dims, false, *class, NULL));
    return ARRAY_PUSH(s->d, &s->out->classes, *c);
}

/* The class of an evaluated value: a class of equal cells that is proved equal, or a new class. */
static int class_of_value(struct saturator *s, struct value_class *c, uint16_t *class) {
    uint64_t found;
    c->hash = cells_hash(&c->cells);
    if (is_known(s, c->hash, c->dims, false, &found)) {
        const struct value_class *other = &s->out->classes.items[found];
        if (cells_equal(&other->cells, &c->cells) &&
            form_equal(s->p->forms, other->form, c->form)) {
            *class = (uint16_t)found;
            return find_key(s, c->form, c->dims, true, *class, NULL);
        }
        s->out->n_coincidences++;
    }
    return add_class(s, c, class);
}

static int64_t size_of(const struct saturator *s, block_dims dims) {
    int64_t size = 1;
    for (; dims != 0; dims &= (block_dims)(dims - 1)) size *= s->field.sizes[__builtin_ctz(dims)];
    return size;
}

static int add_leaf(struct saturator *s, uint32_t i) {
    const struct problem_leaf *l = &s->p->leaf[i];
    struct value_class c = {.dims = l->dims, .leaf = (uint8_t)i, .form = l->form};
    uint16_t class;
    TRY(cells_make(s->d, s->arena, &s->field, l->dims, &c.cells));
    if (l->op == BLOCK_OP_INPUT)
        field_random(SEED, i, &c.cells);
    else if (l->op == BLOCK_OP_NUMBER)
        s->field.number(&s->field, l->numerator, l->denominator, c.cells.at);
    else
        s->field.number(&s->field, size_of(s, l->use), 1, c.cells.at);
    if (l->kind == EXPR_MASK)
        for (uint32_t k = 0; k < c.cells.n; k++) field_small(k % 2, &c.cells.at[k]);
    c.hash = cells_hash(&c.cells);
    return add_class(s, &c, &class);
}

/* ---- applications ---- */

/* Whether the value is one of the expression's own. */
static bool is_step(const struct saturator *s, form_id form, uint32_t dims) {
    for (uint32_t i = 0; i < s->p->n_steps; i++)
        if (s->p->step[i].form == form && s->p->step[i].dims == dims) return true;
    return false;
}

static bool is_useful(const struct saturator *s, form_id form) {
    for (uint32_t t = 0; t < s->p->n_targets; t++)
        if (form_useful(s->p->forms, form, s->p->target[t].form)) return true;
    return false;
}

/* Whether a number scales a value. Such results are kept only if the expression has them: forms
 * bring numbers outside. */
static bool scales(const struct saturator *s, const struct application *x) {
    const struct value_class *c = s->out->classes.items;
    if ((x->op != BLOCK_OP_MUL && x->op != BLOCK_OP_DIV) || !x->has_b) return false;
    return (c[x->a].leaf != BLOCK_NONE && s->p->leaf[c[x->a].leaf].op == BLOCK_OP_NUMBER) ||
           (c[x->b].leaf != BLOCK_NONE && s->p->leaf[c[x->b].leaf].op == BLOCK_OP_NUMBER);
}

/* A value that is constant along one of its dims is dropped: a smaller value serves as well. */
static bool is_wanted(const struct saturator *s, form_id form, uint32_t dims) {
    if (form == FORM_NONE) return false;
    if (s->steps_only) return is_step(s, form, dims);
    return is_step(s, form, dims) || (form_dims(s->p->forms, form) == dims && is_useful(s, form));
}

static int evaluate(struct saturator *s, const struct application *x, struct value_class *c) {
    const struct block_use use = {.dims = x->red};
    const struct value_class *classes = s->out->classes.items;
    struct cells operand[BLOCK_MAX_ARITY] = {classes[x->a].cells};
    if (x->has_b) operand[1] = classes[x->b].cells;
    return cells_apply(s->d, s->arena, &s->field, (enum block_op)x->op, &use, operand, &c->cells);
}

/* A quotient is useful if its divisor's inverse is, but not if it only cancels a factor. */
static bool divides(const struct saturator *s, const struct application *x, const form_id forms[],
                    form_id result, uint32_t dims) {
    const form_id inverse[BLOCK_MAX_ARITY] = {s->one, forms[1]};
    return x->op != BLOCK_OP_DIV || is_step(s, result, dims) ||
           is_useful(s, form_apply(s->p->forms, BLOCK_OP_DIV, NULL, inverse));
}

/* Whether the first round has recorded the application. */
static bool is_recorded(const struct saturator *s, const struct application *x, form_id form,
                        uint32_t dims) {
    return !s->steps_only && x->a < s->n_own && (!x->has_b || x->b < s->n_own) &&
           is_step(s, form, dims);
}

/* Types, prunes, evaluates, and records the application if its result may be of use. */
static int try_application(struct saturator *s, struct application x) {
    const struct value_class *classes = s->out->classes.items;
    const struct block_use use = {.dims = x.red};
    const form_id forms[BLOCK_MAX_ARITY] = {classes[x.a].form,
                                            x.has_b ? classes[x.b].form : FORM_NONE};
    const uint32_t dims[BLOCK_MAX_ARITY] = {classes[x.a].dims, x.has_b ? classes[x.b].dims : 0};
    uint32_t result;
    uint64_t found;
    if (s->out->n_tried == s->budget || s->arena->total_bytes > MAX_BYTES) {
        s->out->complete = false;
        return QN_OK;
    }
    s->out->n_tried++;
    if (block_op_dims((enum block_op)x.op, &use, dims, &result) != NULL) return QN_OK;
    struct value_class c = {.dims = (block_dims)result, .leaf = BLOCK_NONE};
    c.form = form_apply(s->p->forms, (enum block_op)x.op, &use, forms);
    if (scales(s, &x) && !is_step(s, c.form, c.dims)) return QN_OK;
    if (!divides(s, &x, forms, c.form, c.dims) || !is_wanted(s, c.form, c.dims)) return QN_OK;
    if (is_known(s, c.form, c.dims, true, &found)) {
        x.to = (uint16_t)found;
    } else {
        TRY(evaluate(s, &x, &c));
        TRY(class_of_value(s, &c, &x.to));
    }
    if (x.to < s->p->n_leaves) return QN_OK; /* the value is a leaf */
    if (is_recorded(s, &x, c.form, c.dims)) return QN_OK;
    if (x.to == x.a || (x.has_b && x.to == x.b)) return QN_OK;
    return ARRAY_PUSH(s->d, &s->out->applications, x);
}

static int try_unary(struct saturator *s, uint32_t op, uint16_t a) {
    const uint8_t class = block_op_table[op].op_class;
    const block_dims dims = s->out->classes.items[a].dims & s->p->over[op];
    if (class == BLOCK_ELEMENTWISE)
        return try_application(s, (struct application){.op = (uint8_t)op, .a = a});
    for (uint32_t i = 0; i < s->p->n_dims; i++)
        if ((dims >> i & 1) != 0)
            TRY(try_application(
                s, (struct application){.op = (uint8_t)op, .a = a, .red = (block_dims)(1u << i)}));
    return QN_OK;
}

static bool commutes(uint32_t op) {
    return op == BLOCK_OP_ADD || op == BLOCK_OP_MUL || op == BLOCK_OP_MAX || op == BLOCK_OP_MIN;
}

/* Reductions take their mask as a factor, not as an operand. */
static bool is_unary(uint32_t op) {
    return block_op_table[op].arity == 1 || block_op_table[op].op_class == BLOCK_REDUCE;
}

/* All operators on class v and each class up to it. */
static int meet(struct saturator *s, uint16_t v) {
    for (uint32_t op = 0; op < N_BLOCK_OPS; op++) {
        if ((s->p->ops >> op & 1) == 0) continue;
        if (is_unary(op)) {
            TRY(try_unary(s, op, v));
            continue;
        }
        for (uint16_t u = 0; u <= v; u++) {
            struct application x = {.op = (uint8_t)op, .has_b = true, .a = u, .b = v};
            TRY(try_application(s, x));
            if (commutes(op) || u == v) continue;
            x.a = v;
            x.b = u;
            TRY(try_application(s, x));
        }
    }
    return QN_OK;
}

/* Test sizes. Those of neighbouring dims differ, so that a sum over the wrong dim shows. */
static void set_sizes(struct saturator *s) {
    static const uint32_t sizes[] = {2, 3, 5};
    for (uint32_t i = 0; i < BLOCK_MAX_DIMS; i++) s->field.sizes[i] = sizes[i % COUNT_OF(sizes)];
    for (uint32_t i = 0; i < s->p->n_dims; i++)
        if (s->p->dim[i].halved) s->field.sizes[i] = i % 2 == 0 ? 2 : 4;
}

static void find_targets(struct saturator *s) {
    for (uint32_t t = 0; t < s->p->n_targets; t++) {
        uint64_t class;
        s->out->target[t] = is_known(s, s->p->target[t].form, s->p->target[t].dims, true, &class)
                                ? (uint16_t) class
                                : UINT16_MAX;
    }
}

/* Lists the MUL applications of each class. */
static int list_muls(struct saturator *s) {
    struct saturation *o = s->out;
    memset(o->muls_of, 0xff, sizeof o->muls_of);
    for (size_t i = 0; i < o->applications.n; i++) {
        const struct application *x = &o->applications.items[i];
        TRY(ARRAY_PUSH(s->d, &o->next_mul, SATURATE_NO_MUL));
        if (x->op != BLOCK_OP_MUL) continue;
        o->next_mul.items[i] = o->muls_of[x->to];
        o->muls_of[x->to] = (uint32_t)i;
    }
    return QN_OK;
}

/* Makes the expression's own values first, so that a graph exists even if the budget runs out. */
static int run(struct saturator *s) {
    for (uint32_t i = 0; i < s->p->n_leaves; i++) TRY(add_leaf(s, i));
    s->steps_only = true;
    for (uint16_t v = 0; v < s->out->classes.n && s->out->complete; v++) TRY(meet(s, v));
    s->steps_only = false;
    s->n_own = s->out->classes.n;
    for (uint16_t v = 0; v < s->out->classes.n && s->out->complete; v++) TRY(meet(s, v));
    find_targets(s);
    TRY(list_muls(s));
    return forms_status(s->d, s->p->forms);
}

int saturate(struct diag *d, struct arena *arena, const struct problem *p, uint64_t budget,
             struct saturation *out) {
    struct saturator s = {.d = d, .arena = arena, .p = p, .out = out, .budget = budget};
    *out = (struct saturation){.complete = true};
    s.one = form_number(p->forms, 1, 1);
    field_init(&s.field, &s.field_state, SEED);
    set_sizes(&s);
    const int rc = run(&s);
    map_fini(&s.by_key);
    if (rc != QN_OK) saturation_fini(out);
    return rc;
}

void saturation_fini(struct saturation *s) {
    ARRAY_FINI(&s->classes);
    ARRAY_FINI(&s->applications);
    ARRAY_FINI(&s->next_mul);
}
