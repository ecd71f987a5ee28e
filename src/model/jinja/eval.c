/* eval.c - expressions. */
#include "base/array.h"
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/exec.h"

#include <string.h>

struct value *exec_slot(struct run *r, uint32_t hops, uint32_t slot) {
    struct frame *f = r->frame;
    while (hops-- > 0) f = f->outer;
    return &f->slots[slot];
}

static int eval_name(struct run *r, const struct node *n, struct value *out) {
    *out = *exec_slot(r, n->hops, n->slot);
    if (out->type != VALUE_MISSING) return QN_OK;
    return value_undefined_text(r, out, "'%.*s' is undefined", (int)MIN(n->name->n, (size_t)100),
                                n->name->text);
}

/* Arguments. */

static int take_star(struct run *r, const struct node *n, struct value list, struct value *named) {
    struct value v, item, stored;
    struct iter *it;
    bool more;
    TRY(eval(r, n->a, &v));
    if (n->op == 1) {
        TRY(value_iter(r, v, &it));
        for (;;) {
            TRY(value_next(r, it, &item, &more));
            if (!more) return QN_OK;
            TRY(value_append(r, list, item));
        }
    }
    if (v.type != VALUE_DICT)
        return run_fail(r, QN_EINVAL, "** wants a dict, not a %s", value_type_name(v));
    for (size_t i = 0; i < v.dict->n; i++) {
        TRY(value_find(r, named->dict, v.dict->keys[i], &stored));
        if (stored.type != VALUE_MISSING || v.dict->keys[i].type != VALUE_TEXT)
            return run_fail(r, QN_EINVAL, "** gives an argument that is there or is no name");
        TRY(value_put(r, named->dict, v.dict->keys[i], v.dict->values[i]));
    }
    return QN_OK;
}

static int eval_arguments(struct run *r, const struct node_list *l, struct value caller,
                          const struct name *caller_name, struct args *args) {
    struct value list, named, v;
    *args = (struct args){0};
    if (l->n == 0 && caller.type == VALUE_MISSING) return QN_OK;
    TRY(value_list(r, l->n, &list));
    TRY(value_dict(r, 4, &named));
    for (size_t i = 0; i < l->n; i++) {
        const struct node *n = l->items[i];
        if (n->kind == NODE_STAR) {
            TRY(take_star(r, n, list, &named));
            continue;
        }
        TRY(eval(r, n->kind == NODE_KEYWORD ? n->a : n, &v));
        TRY(n->kind == NODE_KEYWORD ? value_put(r, named.dict, n->name->value, v)
                                    : value_append(r, list, v));
    }
    if (caller.type != VALUE_MISSING) TRY(value_put(r, named.dict, caller_name->value, caller));
    *args = (struct args){list.list->items, list.list->n, named.dict};
    return QN_OK;
}

int eval_call(struct run *r, const struct node *n, struct value caller, struct value *out) {
    struct value callee;
    struct args args;
    TRY(eval(r, n->a, &callee));
    TRY(eval_arguments(r, &n->list, caller, r->caller, &args));
    r->line = n->line;
    return call_value(r, callee, &args, out);
}

static int no_row(struct run *r, const struct node *n, const char *what) {
    r->line = n->line;
    return run_fail(r, QN_EUNSUPPORTED, "no %s is named '%.*s'", what,
                    (int)MIN(n->name->n, (size_t)60), n->name->text);
}

int eval_filter(struct run *r, const struct node *n, struct value input, struct value *out) {
    struct args args;
    if (n->a != NULL && n->a->kind == NODE_FILTER && input.type != VALUE_MISSING)
        TRY(eval_filter(r, n->a, input, &input));
    else if (n->a != NULL)
        TRY(eval(r, n->a, &input));
    TRY(eval_arguments(r, &n->list, (struct value){0}, NULL, &args));
    if (n->row == NULL) return no_row(r, n, "filter");
    r->line = n->line;
    return call_row(r, n->row, input, &args, out);
}

static int eval_test(struct run *r, const struct node *n, struct value *out) {
    struct value input;
    struct args args;
    TRY(eval(r, n->a, &input));
    TRY(eval_arguments(r, &n->list, (struct value){0}, NULL, &args));
    if (n->row == NULL) return no_row(r, n, "test");
    r->line = n->line;
    return call_row(r, n->row, input, &args, out);
}

/* Operators. */

static int eval_binary(struct run *r, const struct node *n, struct value *out) {
    struct value left, right;
    bool truth;
    TRY(eval(r, n->a, &left));
    if (n->op == OP_AND || n->op == OP_OR) {
        TRY(value_truth(r, left, &truth));
        if (truth == (n->op == OP_AND)) return eval(r, n->b, out);
        *out = left;
        return QN_OK;
    }
    TRY(eval(r, n->b, &right));
    r->line = n->line;
    return operator_apply(r, n->op, left, right, out);
}

static int eval_unary(struct run *r, const struct node *n, struct value *out) {
    struct value v;
    bool truth;
    TRY(eval(r, n->a, &v));
    r->line = n->line;
    if (n->op != OP_NOT) return operator_unary(r, n->op, v, out);
    TRY(value_truth(r, v, &truth));
    *out = value_bool(!truth);
    return QN_OK;
}

static int compare(struct run *r, int op, struct value a, struct value b, bool *yes) {
    bool equal = false;
    switch (op) {
    case OP_EQUAL: return value_equal(r, a, b, yes);
    case OP_UNEQUAL: TRY(value_equal(r, a, b, yes)); break;
    case OP_IN: return value_contains(r, b, a, yes);
    case OP_NOT_IN: TRY(value_contains(r, b, a, yes)); break;
    case OP_LESS: return value_less(r, a, b, yes);
    case OP_GREATER: return value_less(r, b, a, yes);
    default:
        TRY(op == OP_LESS_EQUAL ? value_less(r, a, b, yes) : value_less(r, b, a, yes));
        TRY(value_equal(r, a, b, &equal));
        *yes = *yes || equal;
        return QN_OK;
    }
    *yes = !*yes;
    return QN_OK;
}

static int eval_compare(struct run *r, const struct node *n, struct value *out) {
    struct value left, right;
    bool yes = true;
    TRY(eval(r, n->a, &left));
    for (size_t i = 0; yes && i < n->list.n; i++) {
        const struct node *other = n->list.items[i];
        TRY(eval(r, other->a, &right));
        r->line = n->line;
        TRY(compare(r, other->op, left, right, &yes));
        left = right;
    }
    *out = value_bool(yes);
    return QN_OK;
}

static int eval_if_else(struct run *r, const struct node *n, struct value *out) {
    struct value condition;
    bool truth;
    TRY(eval(r, n->b, &condition));
    TRY(value_truth(r, condition, &truth));
    if (truth) return eval(r, n->a, out);
    if (n->c != NULL) return eval(r, n->c, out);
    return value_undefined_text(r, out, "the if-expression on line %u was false and has no else",
                                n->line);
}

/* Displays and parts. */

static int eval_concat(struct run *r, const struct node *n, struct value *out) {
    struct out o = {.r = r};
    struct value items, v;
    TRY(value_list(r, n->list.n, &items));
    for (size_t i = 0; i < n->list.n; i++) {
        TRY(eval(r, n->list.items[i], &v));
        TRY(value_append(r, items, v));
    }
    r->line = n->line;
    for (size_t i = 0; i < items.list->n; i++) TRY(show_str(&o, items.list->items[i]));
    return out_value(&o, out);
}

static int eval_display(struct run *r, const struct node *n, struct value *out) {
    struct value v;
    TRY(value_list(r, n->list.n, out));
    out->type = n->kind == NODE_TUPLE ? VALUE_TUPLE : VALUE_LIST;
    for (size_t i = 0; i < n->list.n; i++) {
        TRY(eval(r, n->list.items[i], &v));
        TRY(value_append(r, *out, v));
    }
    return QN_OK;
}

static int eval_dict(struct run *r, const struct node *n, struct value *out) {
    struct value key, v;
    TRY(value_dict(r, n->list.n / 2, out));
    for (size_t i = 0; i + 1 < n->list.n; i += 2) {
        TRY(eval(r, n->list.items[i], &key));
        TRY(eval(r, n->list.items[i + 1], &v));
        r->line = n->line;
        TRY(value_put(r, out->dict, key, v));
    }
    return QN_OK;
}

static int eval_item(struct run *r, const struct node *n, struct value *out) {
    struct value object, key;
    TRY(eval(r, n->a, &object));
    TRY(eval(r, n->b, &key));
    r->line = n->line;
    return attribute_item(r, object, key, out);
}

static int eval_slice(struct run *r, const struct node *n, struct value *out) {
    const struct node *parts[3] = {n->b, n->c, n->list.n > 0 ? n->list.items[0] : NULL};
    struct value object, bounds[3];
    TRY(eval(r, n->a, &object));
    for (int i = 0; i < 3; i++) {
        bounds[i] = value_none();
        if (parts[i] != NULL) TRY(eval(r, parts[i], &bounds[i]));
    }
    r->line = n->line;
    return attribute_slice(r, object, bounds, out);
}

static int eval_attribute(struct run *r, const struct node *n, struct value *out) {
    struct value object;
    TRY(eval(r, n->a, &object));
    r->line = n->line;
    return attribute_get(r, object, n->name->value, out);
}

static int eval_constant(struct run *r, const struct node *n, struct value *out) {
    (void)r;
    *out = n->value;
    return QN_OK;
}

static int eval_plain_call(struct run *r, const struct node *n, struct value *out) {
    return eval_call(r, n, (struct value){0}, out);
}

static int eval_plain_filter(struct run *r, const struct node *n, struct value *out) {
    return eval_filter(r, n, (struct value){0}, out);
}

int eval(struct run *r, const struct node *n, struct value *out) {
    static int (*const kinds[])(struct run *, const struct node *, struct value *) = {
        [NODE_CONST] = eval_constant,      [NODE_NAME] = eval_name,
        [NODE_ATTRIBUTE] = eval_attribute, [NODE_ITEM] = eval_item,
        [NODE_SLICE] = eval_slice,         [NODE_CALL] = eval_plain_call,
        [NODE_FILTER] = eval_plain_filter, [NODE_TEST] = eval_test,
        [NODE_UNARY] = eval_unary,         [NODE_BINARY] = eval_binary,
        [NODE_COMPARE] = eval_compare,     [NODE_IF_ELSE] = eval_if_else,
        [NODE_CONCAT] = eval_concat,       [NODE_LIST] = eval_display,
        [NODE_TUPLE] = eval_display,       [NODE_DICT] = eval_dict,
    };
    r->line = n->line;
    TRY(run_step(r, 1));
    TRY(run_enter(r));
    TRY(kinds[n->kind](r, n, out));
    run_leave(r);
    return QN_OK;
}
