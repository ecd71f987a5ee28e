#include "model/jinja/exec.h"
#include "base/checked.h"
#include "model/jinja/call.h"

#include <string.h>

/* Slots. */

static int resolve(struct run *r, const struct name *name, struct value *out) {
    const struct value *var = NULL;
    for (size_t i = 0; var == NULL && i < r->vars->n; i++) {
        const struct text *key = r->vars->keys[i].text;
        if (key->n == name->n && memcmp(key->p, name->text, key->n) == 0) var = &r->vars->values[i];
    }
    const struct function *f = var == NULL ? function_find(name->value.text) : NULL;
    if (var == NULL && value_is_text(name->value, "self"))
        return run_fail(r, QN_EUNSUPPORTED, "the name 'self' is not supported");
    *out = var != NULL ? *var
           : f != NULL ? (struct value){.type = VALUE_FUNCTION, .function = f}
                       : (struct value){.type = VALUE_MISSING};
    return QN_OK;
}

int exec_enter(struct run *r, const struct scope *scope) {
    TRY(run_step(r, scope->n));
    for (size_t i = 0; i < scope->n; i++) {
        const struct scope_name *n = &scope->names[i];
        struct value *slot = &r->frame->slots[n->slot];
        if (n->load == LOAD_RESOLVE)
            TRY(resolve(r, n->name, slot));
        else if (n->load == LOAD_ALIAS)
            *slot = *exec_slot(r, n->hops, n->source);
        else if (n->load == LOAD_MISSING)
            *slot = (struct value){.type = VALUE_MISSING};
    }
    return QN_OK;
}

void exec_leave(struct run *r, const struct scope *scope) {
    for (size_t i = 0; i < scope->n; i++)
        r->frame->slots[scope->names[i].slot] = (struct value){.type = VALUE_MISSING};
}

static int new_frame(struct run *r, const struct function_body *body, struct frame *outer,
                     struct frame **out) {
    TRY(RUN_NEW(r, out, 1));
    (*out)->outer = outer;
    return RUN_NEW(r, &(*out)->slots, body->n); /* zeroed: VALUE_MISSING */
}

/* Assignment. */

static int assign_tuple(struct run *r, const struct node *target, const struct scope *scope,
                        struct value v);

/* scope: whose slots the names are in; NULL: those that the nodes say. */
static int assign(struct run *r, const struct node *target, const struct scope *scope,
                  struct value v) {
    if (target->kind == NODE_TUPLE) return assign_tuple(r, target, scope, v);
    struct value *slot = exec_slot(r, target->hops, target->slot);
    for (size_t i = 0; scope != NULL && i < scope->n; i++)
        if (scope->names[i].name == target->name) slot = &r->frame->slots[scope->names[i].slot];
    if (target->kind == NODE_NAME) {
        *slot = v;
        return QN_OK;
    }
    if (slot->type != VALUE_NAMESPACE) /* jinja2 lets a set block change a dict */
        return run_fail(r, QN_EUNSUPPORTED, "only a namespace's attributes can be assigned to");
    if (target->attribute->text[0] == '_')
        return run_fail(r, QN_EINVAL, "a namespace takes no name that begins with _");
    return value_put(r, slot->dict, target->attribute->value, v);
}

static int assign_tuple(struct run *r, const struct node *target, const struct scope *scope,
                        struct value v) {
    struct iter *it;
    struct value item, items;
    bool more = true;
    TRY(value_iter(r, v, &it));
    TRY(value_list(r, target->list.n, &items));
    while (items.list->n <= target->list.n) {
        TRY(value_next(r, it, &item, &more));
        if (!more) break;
        TRY(value_append(r, items, item));
    }
    if (items.list->n != target->list.n)
        return run_fail(r, QN_EINVAL, "%s items for %zu names", more ? "too many" : "too few",
                        target->list.n);
    for (size_t i = 0; i < target->list.n; i++)
        TRY(assign(r, target->list.items[i], scope, items.list->items[i]));
    return QN_OK;
}

/* jinja2 checks all namespaces before it evaluates. */
static int check_namespaces(struct run *r, const struct node *target) {
    for (size_t i = 0; target->kind == NODE_TUPLE && i < target->list.n; i++)
        TRY(check_namespaces(r, target->list.items[i]));
    if (target->kind == NODE_NSREF &&
        exec_slot(r, target->hops, target->slot)->type != VALUE_NAMESPACE)
        return run_fail(r, QN_EINVAL, "only a namespace's attributes can be assigned to");
    return QN_OK;
}

static int exec_set(struct run *r, const struct node *n) {
    struct value v;
    TRY(check_namespaces(r, n->a));
    TRY(eval(r, n->b, &v));
    r->line = n->line;
    return assign(r, n->a, NULL, v);
}

/* Output. */

static int exec_data(struct run *r, const struct node *n) {
    out_add(r->out, n->value.text->p, n->value.text->n);
    return r->out->rc;
}

static int exec_output(struct run *r, const struct node *n) {
    struct value v;
    for (size_t i = 0; i < n->list.n; i++) {
        TRY(eval(r, n->list.items[i], &v));
        r->line = n->line;
        TRY(show_str(r->out, v));
    }
    return QN_OK;
}

/* What a block gives is written as it is: it has to be a text. */
static int write_text(struct run *r, struct value v) {
    if (v.type != VALUE_TEXT)
        return run_fail(r, QN_EINVAL, "this block gives a %s, not a str", value_type_name(v));
    out_add(r->out, v.text->p, v.text->n);
    return r->out->rc;
}

/* The text that a body writes. */
static int capture(struct run *r, const struct node_list *body, struct value *text) {
    struct out *outside = r->out, *inside;
    TRY(out_new(r, &inside));
    r->out = inside;
    TRY(exec_body(r, body));
    r->out = outside;
    return out_value(inside, text);
}

static int exec_set_block(struct run *r, const struct node *n) {
    struct value v;
    TRY(exec_enter(r, n->scope));
    TRY(capture(r, &n->list, &v));
    if (r->signal != SIGNAL_NONE) return QN_OK;
    if (n->b != NULL) TRY(eval_filter(r, n->b, v, &v));
    r->line = n->line;
    TRY(assign(r, n->a, NULL, v));
    exec_leave(r, n->scope);
    return QN_OK;
}

static int exec_filter_block(struct run *r, const struct node *n) {
    struct value v;
    TRY(exec_enter(r, n->scope));
    TRY(capture(r, &n->list, &v));
    if (r->signal != SIGNAL_NONE) return QN_OK;
    TRY(eval_filter(r, n->a, v, &v));
    TRY(write_text(r, v));
    exec_leave(r, n->scope);
    return QN_OK;
}

static int exec_with(struct run *r, const struct node *n) {
    struct value v;
    TRY(exec_enter(r, n->scope));
    for (size_t i = 0; i + 1 < n->more.n; i += 2) {
        TRY(eval(r, n->more.items[i + 1], &v));
        TRY(assign(r, n->more.items[i], NULL, v));
    }
    TRY(exec_body(r, &n->list));
    if (r->signal == SIGNAL_NONE) exec_leave(r, n->scope);
    return QN_OK;
}

static int exec_if(struct run *r, const struct node *n) {
    struct value condition;
    bool truth;
    TRY(eval(r, n->a, &condition));
    TRY(value_truth(r, condition, &truth));
    return exec_body(r, truth ? &n->list : &n->more);
}

/* Loops. */

int loop_pull(struct run *r, struct loop *loop, struct value *item, bool *more) {
    const struct node *n = loop->node;
    struct frame *frame = r->frame;
    uint32_t line = r->line;
    bool yes = false;
    r->frame = loop->frame;
    do {
        struct value condition;
        TRY(value_next(r, loop->items, item, more));
        if (!*more || n->c == NULL || loop->is_tested) break;
        TRY(assign(r, n->a, n->test_scope, *item));
        TRY(eval(r, n->c, &condition));
        TRY(value_truth(r, condition, &yes));
    } while (!yes);
    r->frame = frame;
    r->line = line;
    return QN_OK;
}

int loop_length(struct run *r, struct loop *loop, int64_t *n) {
    if (loop->n < 0 && loop->node->c == NULL && value_has_length(loop->source)) {
        TRY(value_length(r, loop->source, &loop->n));
    } else if (loop->n < 0) { /* the rest has to be seen first */
        struct value rest, item;
        bool more = true;
        TRY(value_list(r, 8, &rest));
        for (;;) {
            TRY(loop_pull(r, loop, &item, &more));
            if (!more) break;
            TRY(value_append(r, rest, item));
        }
        loop->n = (int64_t)rest.list->n + loop->index0 + 1 + (loop->after.type != VALUE_MISSING);
        TRY(value_iter(r, rest, &loop->items));
        loop->is_tested = true;
    }
    *n = loop->n;
    return QN_OK;
}

static int peek(struct run *r, struct loop *loop) {
    bool more = true;
    if (loop->after.type != VALUE_MISSING) return QN_OK;
    TRY(loop_pull(r, loop, &loop->after, &more));
    if (!more) loop->after = (struct value){.type = VALUE_MISSING};
    return QN_OK;
}

int loop_attribute(struct run *r, struct loop *loop, const struct text *name, struct value *out) {
    struct value key = {.type = VALUE_TEXT, .text = name};
    int64_t i = loop->index0, n = 0;
    *out = value_undefined("the loop has no such attribute");
    if (value_is_text(key, "index0")) return *out = value_int(i), QN_OK;
    if (value_is_text(key, "index")) return *out = value_int(i + 1), QN_OK;
    if (value_is_text(key, "first")) return *out = value_bool(i == 0), QN_OK;
    if (value_is_text(key, "depth")) return *out = value_int(1), QN_OK;
    if (value_is_text(key, "depth0")) return *out = value_int(0), QN_OK;
    if (value_is_text(key, "previtem")) {
        *out = i == 0 ? value_undefined("there is no previous item") : loop->before;
        return QN_OK;
    }
    bool last = value_is_text(key, "last");
    if (last || value_is_text(key, "nextitem")) {
        TRY(peek(r, loop));
        bool none = loop->after.type == VALUE_MISSING;
        *out = last   ? value_bool(none)
               : none ? value_undefined("there is no next item")
                      : loop->after;
        return QN_OK;
    }
    bool length = value_is_text(key, "length"), back = value_is_text(key, "revindex");
    if (length || back || value_is_text(key, "revindex0")) {
        TRY(loop_length(r, loop, &n));
        *out = value_int(length ? n : n - i - !back);
        return QN_OK;
    }
    if (value_is_text(key, "cycle") || value_is_text(key, "changed"))
        return method_find(r, (struct value){.type = VALUE_LOOP, .loop = loop}, name, out);
    return QN_OK;
}

static int next_item(struct run *r, struct loop *loop, bool *more) {
    struct value item = loop->after;
    *more = true;
    if (item.type == VALUE_MISSING) TRY(loop_pull(r, loop, &item, more));
    if (!*more) return QN_OK;
    loop->after = (struct value){.type = VALUE_MISSING};
    loop->index0++;
    loop->before = loop->current;
    loop->current = item;
    return QN_OK;
}

/* *through: a body ran to its end. */
static int run_loop(struct run *r, const struct node *n, struct loop *loop, bool *through) {
    bool more;
    for (;;) {
        r->line = n->line;
        TRY(next_item(r, loop, &more));
        if (!more) break;
        TRY(assign(r, n->a, NULL, loop->current));
        if (n->op) r->frame->slots[n->slot] = (struct value){.type = VALUE_LOOP, .loop = loop};
        TRY(exec_enter(r, n->scope));
        TRY(exec_body(r, &n->list));
        int signal = r->signal;
        r->signal = SIGNAL_NONE;
        if (signal == SIGNAL_BREAK) break;
        if (signal == SIGNAL_NONE) *through = true;
    }
    exec_leave(r, n->scope);
    return QN_OK;
}

static int exec_for(struct run *r, const struct node *n) {
    struct loop *loop;
    struct value source;
    bool through = false;
    TRY(eval(r, n->b, &source));
    r->line = n->line;
    TRY(RUN_NEW(r, &loop, 1));
    loop->node = n;
    loop->frame = r->frame;
    loop->source = source;
    loop->index0 = loop->n = -1;
    TRY(value_iter(r, source, &loop->items));
    if (n->c != NULL) TRY(exec_enter(r, n->test_scope));
    TRY(run_loop(r, n, loop, &through));
    if (through || n->more.n == 0) return QN_OK;
    TRY(exec_enter(r, n->else_scope));
    TRY(exec_body(r, &n->more));
    if (r->signal == SIGNAL_NONE) exec_leave(r, n->else_scope);
    return QN_OK;
}

/* Macros. */

static int new_macro(struct run *r, const struct node *n, struct value *out) {
    *out = (struct value){.type = VALUE_MACRO};
    TRY(RUN_NEW(r, &out->macro, 1));
    *out->macro = (struct macro){n, r->frame};
    return QN_OK;
}

int macro_repr(struct out *o, const struct macro *m) {
    const struct name *name = m->node->name;
    if (name == NULL) {
        out_str(o, "<Macro anonymous>");
    } else {
        out_str(o, "<Macro ");
        TRY(show_repr(o, name->value));
        out_char(o, '>');
    }
    return o->rc;
}

static int bad_arguments(struct run *r, const struct macro *m, const char *why) {
    const struct name *name = m->node->name;
    return run_fail(r, QN_EINVAL, "the macro '%.*s' %s", name == NULL ? 6 : (int)MIN(name->n, 60u),
                    name == NULL ? "caller" : name->text, why);
}

/* Named arguments that no parameter took. */
static int take_named(struct run *r, const struct macro *m, const struct args *args,
                      const bool *taken) {
    const struct signature *f = m->node->signature;
    struct value *slots = r->frame->slots, rest;
    size_t n = args->named == NULL ? 0 : args->named->n;
    bool has_caller = false;
    TRY(value_dict(r, n, &rest));
    for (size_t i = 0; i < n; i++) {
        struct value key = args->named->keys[i];
        if (taken[i]) continue;
        if (value_is_text(key, "caller") && f->takes_caller && !f->explicit_caller) {
            slots[f->caller] = args->named->values[i];
            has_caller = args->named->values[i].type != VALUE_NONE;
        } else {
            TRY(value_put(r, rest.dict, key, args->named->values[i]));
        }
    }
    if (f->takes_caller && !f->explicit_caller && !has_caller)
        slots[f->caller] = value_undefined("No caller defined");
    if (f->takes_named)
        slots[f->named] = rest;
    else if (rest.dict->n > 0)
        return bad_arguments(r, m, "has no parameter of that name");
    return QN_OK;
}

static int take_arguments(struct run *r, const struct macro *m, const struct args *args) {
    const struct node_list *parameters = &m->node->more;
    const struct signature *f = m->node->signature;
    struct value *slots = r->frame->slots, more;
    size_t n_named = args->named == NULL ? 0 : args->named->n;
    bool *taken;
    TRY(RUN_NEW(r, &taken, n_named));
    for (size_t i = 0; i < parameters->n; i++) {
        if (i < args->n) {
            slots[f->slots[i]] = args->items[i];
            continue;
        }
        for (size_t k = 0; k < n_named; k++) {
            const struct text *key = args->named->keys[k].text;
            const struct name *name = parameters->items[i]->name;
            if (key->n != name->n || memcmp(key->p, name->text, key->n) != 0) continue;
            slots[f->slots[i]] = args->named->values[k];
            taken[k] = true;
        }
    }
    TRY(take_named(r, m, args, taken));
    if (!f->takes_more)
        return args->n > parameters->n ? bad_arguments(r, m, "got too many arguments") : QN_OK;
    TRY(value_list(r, args->n, &more));
    more.type = VALUE_TUPLE;
    for (size_t i = parameters->n; i < args->n; i++) TRY(value_append(r, more, args->items[i]));
    slots[f->more] = more;
    return QN_OK;
}

static int take_defaults(struct run *r, const struct macro *m) {
    for (size_t i = 0; i < m->node->more.n; i++) {
        const struct node *parameter = m->node->more.items[i];
        struct value *slot = &r->frame->slots[m->node->signature->slots[i]], v;
        if (slot->type != VALUE_MISSING) continue;
        if (parameter->a != NULL)
            TRY(eval(r, parameter->a, &v));
        else
            TRY(value_undefined_text(r, &v, "parameter '%.*s' was not provided",
                                     (int)MIN(parameter->name->n, 60u), parameter->name->text));
        *slot = v;
    }
    return QN_OK;
}

int macro_call(struct run *r, const struct macro *m, const struct args *args, struct value *out) {
    struct frame *frame = r->frame, *own;
    TRY(run_enter(r));
    TRY(new_frame(r, &m->node->signature->body, m->frame, &own));
    r->frame = own;
    TRY(take_arguments(r, m, args));
    TRY(exec_enter(r, m->node->scope));
    TRY(take_defaults(r, m));
    TRY(capture(r, &m->node->list, out));
    r->frame = frame;
    run_leave(r);
    return QN_OK;
}

static int exec_macro(struct run *r, const struct node *n) {
    return new_macro(r, n, exec_slot(r, n->hops, n->slot));
}

static int exec_call_block(struct run *r, const struct node *n) {
    struct value caller, v;
    struct args none = {0};
    TRY(new_macro(r, n, &caller));
    if (n->a == NULL)
        TRY(macro_call(r, caller.macro, &none, &v));
    else
        TRY(eval_call(r, n->a, caller, &v));
    r->line = n->line;
    return write_text(r, v);
}

static int exec_break(struct run *r, const struct node *n) {
    r->signal = n->kind == NODE_BREAK ? SIGNAL_BREAK : SIGNAL_CONTINUE;
    return QN_OK;
}

int exec_body(struct run *r, const struct node_list *body) {
    static int (*const kinds[])(struct run *, const struct node *) = {
        [NODE_DATA] = exec_data,   [NODE_OUTPUT] = exec_output,
        [NODE_SET] = exec_set,     [NODE_SET_BLOCK] = exec_set_block,
        [NODE_FOR] = exec_for,     [NODE_IF] = exec_if,
        [NODE_MACRO] = exec_macro, [NODE_CALL_BLOCK] = exec_call_block,
        [NODE_WITH] = exec_with,   [NODE_FILTER_BLOCK] = exec_filter_block,
        [NODE_BREAK] = exec_break, [NODE_CONTINUE] = exec_break,
    };
    TRY(run_enter(r));
    for (size_t i = 0; i < body->n && r->signal == SIGNAL_NONE; i++) {
        r->line = body->items[i]->line;
        TRY(run_step(r, 1));
        TRY(kinds[body->items[i]->kind](r, body->items[i]));
    }
    run_leave(r);
    return QN_OK;
}

int exec_root(struct run *r, const struct jinja *j) {
    TRY(new_frame(r, &j->root, NULL, &r->frame));
    TRY(exec_enter(r, j->scope));
    return exec_body(r, &j->body);
}
