/* scope.c - which slot a name means.
 *
 * jinja2 makes a Python function of a template and of every macro, and decides before it runs what
 * a name means in it. The rules, which a template can observe:
 *
 *   - The root, loops, macros, call blocks, set blocks, filter blocks and `with` have a scope; `if`
 *     has none.
 *   - What is assigned in a scope is its own. It starts with the value outside, where a scope
 * outside has the name; else with the variable of that name, if the first use reads it or the first
 *     assignment is in an `if`; else with nothing.
 *   - A name that no scope has is a variable of the conversation, or a global.
 *   - A macro sees the scopes around it as they are when it is called.
 */
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/jinja.h"
#include "model/jinja/node.h"

#include <string.h>

struct resolver {
    struct diag *d;
    struct jinja *j;
    struct scope *scope; /* whose names are being collected or resolved */
    uint32_t loops;      /* around, in this function */
};

typedef int visit_fn(struct resolver *s, struct node *n, bool branch);

static int bad(const struct resolver *s, uint32_t line, int code, const char *what,
               const struct name *name) {
    return fail(s->d, code, "%s: line %u: %s '%.*s'", s->j->where, line, what,
                (int)MIN(name->n, (size_t)60), name->text);
}

/* Scopes. */

static struct scope_name *own(const struct scope *scope, const struct name *name) {
    for (size_t i = 0; i < scope->n; i++)
        if (scope->names[i].name == name) return &scope->names[i];
    return NULL;
}

/* The name in this scope or one around it; *hops: functions outwards. */
static struct scope_name *find(const struct scope *scope, const struct name *name, uint32_t *hops) {
    const struct scope *from = scope;
    *hops = 0;
    for (; scope != NULL; from = scope, scope = scope->parent) {
        if (scope->body != from->body) ++*hops;
        struct scope_name *found = own(scope, name);
        if (found != NULL) return found;
    }
    return NULL;
}

static int grow(struct resolver *s, void **items, size_t n, size_t *capacity, size_t size) {
    void *more;
    if (n < *capacity && n < JINJA_MAX_NAMES) return QN_OK;
    if (n >= JINJA_MAX_NAMES)
        return fail(s->d, QN_ELIMIT, "%s: more than %d names in a scope", s->j->where,
                    JINJA_MAX_NAMES);
    *capacity = MAX(*capacity * 2, (size_t)8);
    TRY(arena_take(s->d, &s->j->arena, *capacity, size, &more));
    if (n > 0) memcpy(more, *items, n * size);
    *items = more;
    return QN_OK;
}

/* Scopes of one level in one function share their slots, as Python's local variables do. */
static int slot_of(struct resolver *s, struct function_body *body, uint32_t level,
                   const struct name *name, uint32_t *slot) {
    for (*slot = 0; *slot < body->n; ++*slot)
        if (body->slots[*slot].level == level && body->slots[*slot].name == name) return QN_OK;
    TRY(grow(s, (void **)&body->slots, body->n, &body->capacity, sizeof *body->slots));
    body->slots[body->n].level = level;
    body->slots[body->n++].name = name;
    return QN_OK;
}

static int define(struct resolver *s, const struct name *name, enum load load,
                  struct scope_name **out) {
    struct scope *scope = s->scope;
    TRY(grow(s, (void **)&scope->names, scope->n, &scope->capacity, sizeof *scope->names));
    struct scope_name *n = &scope->names[scope->n];
    *n = (struct scope_name){.name = name, .load = (uint8_t)load};
    TRY(slot_of(s, scope->body, scope->level, name, &n->slot));
    scope->n++;
    if (out != NULL) *out = n;
    return QN_OK;
}

static int declare(struct resolver *s, const struct name *name) {
    struct scope_name *n = own(s->scope, name);
    if (n == NULL) return define(s, name, LOAD_PARAM, NULL);
    n->load = LOAD_PARAM;
    return QN_OK;
}

static int load(struct resolver *s, const struct name *name) {
    uint32_t hops;
    return find(s->scope, name, &hops) != NULL ? QN_OK : define(s, name, LOAD_RESOLVE, NULL);
}

static int store(struct resolver *s, const struct name *name, bool branch) {
    struct scope_name *n, *outside = NULL;
    uint32_t hops = 0;
    if (own(s->scope, name) != NULL) return QN_OK;
    if (s->scope->parent != NULL) outside = find(s->scope->parent, name, &hops);
    if (outside == NULL) return define(s, name, branch ? LOAD_RESOLVE : LOAD_MISSING, NULL);
    TRY(define(s, name, LOAD_ALIAS, &n));
    n->hops = hops + (s->scope->body != s->scope->parent->body);
    n->source = outside->slot;
    return QN_OK;
}

/* Collecting the names of a scope. */

static int each(struct resolver *s, const struct node_list *l, visit_fn *visit, bool branch) {
    for (size_t i = 0; i < l->n; i++) TRY(visit(s, l->items[i], branch));
    return QN_OK;
}

static int children(struct resolver *s, struct node *n, visit_fn *visit, bool branch) {
    if (n->a != NULL) TRY(visit(s, n->a, branch));
    if (n->b != NULL) TRY(visit(s, n->b, branch));
    if (n->c != NULL) TRY(visit(s, n->c, branch));
    TRY(each(s, &n->list, visit, branch));
    return each(s, &n->more, visit, branch);
}

static int declare_targets(struct resolver *s, struct node *n) {
    for (size_t i = 0; n->kind == NODE_TUPLE && i < n->list.n; i++)
        TRY(declare_targets(s, n->list.items[i]));
    return n->kind == NODE_NAME ? declare(s, n->name) : QN_OK;
}

/* Every second of WITH's pairs, from `first`. */
static int each_second(struct resolver *s, const struct node_list *l, size_t first,
                       visit_fn *visit) {
    for (size_t i = first; i < l->n; i += 2) TRY(visit(s, l->items[i], false));
    return QN_OK;
}

/* What the scope of s sees of a node: not what is in the scopes inside. */
static int collect(struct resolver *s, struct node *n, bool branch) {
    switch ((enum node_kind)n->kind) {
    case NODE_NAME:
        return n->op == NAME_LOAD    ? load(s, n->name)
               : n->op == NAME_PARAM ? declare(s, n->name)
                                     : store(s, n->name, branch);
    case NODE_NSREF: return load(s, n->name);
    case NODE_IF:
        TRY(collect(s, n->a, branch));
        TRY(each(s, &n->list, collect, true));
        return each(s, &n->more, collect, true);
    case NODE_MACRO: return store(s, n->name, branch);
    case NODE_FOR: return collect(s, n->b, branch);
    case NODE_SET: TRY(collect(s, n->b, branch)); return collect(s, n->a, branch);
    case NODE_CALL_BLOCK: return n->a == NULL ? QN_OK : collect(s, n->a, branch);
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK: return collect(s, n->a, branch);
    case NODE_WITH: return each_second(s, &n->more, 1, collect);
    default: return children(s, n, collect, branch);
    }
}

/* Names that a body uses without having assigned them before. */

struct wanted {
    const char *names[3];
    unsigned sought, found; /* bits */
    bool stores_first;      /* names[0] is assigned somewhere */
};

static void look(struct wanted *w, const struct node *n);

static void look_all(struct wanted *w, const struct node_list *l) {
    for (size_t i = 0; i < l->n; i++) look(w, l->items[i]);
}

static void look_name(struct wanted *w, const struct name *name, bool loads) {
    for (unsigned i = 0; i < COUNT_OF(w->names) && w->names[i] != NULL; i++) {
        if (!value_is_text(name->value, w->names[i])) continue;
        if (loads)
            w->found |= w->sought & 1u << i;
        else
            w->sought &= ~(1u << i);
    }
}

static void look_parameters(struct wanted *w, const struct node_list *l) {
    for (size_t i = 0; i < l->n; i++) look_name(w, l->items[i]->name, false);
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i]->a != NULL) look(w, l->items[i]->a);
}

/* In the order in which jinja2 looks. */
static void look(struct wanted *w, const struct node *n) {
    if (n->kind == NODE_NAME) {
        look_name(w, n->name, n->op == NAME_LOAD);
        if (n->op == NAME_STORE && value_is_text(n->name->value, w->names[0]))
            w->stores_first = true;
        return;
    }
    if (n->kind == NODE_MACRO || n->kind == NODE_CALL_BLOCK) {
        if (n->a != NULL) look(w, n->a);
        look_parameters(w, &n->more);
        look_all(w, &n->list);
        return;
    }
    if (n->kind == NODE_WITH) {
        for (size_t i = 0; i < n->more.n; i += 2) look(w, n->more.items[i]);
        for (size_t i = 1; i < n->more.n; i += 2) look(w, n->more.items[i]);
        look_all(w, &n->list);
        return;
    }
    bool late = n->kind == NODE_FOR || n->kind == NODE_FILTER_BLOCK;
    if (n->a != NULL && n->kind != NODE_FILTER_BLOCK) look(w, n->a);
    if (n->b != NULL) look(w, n->b);
    if (n->c != NULL && !late) look(w, n->c);
    look_all(w, &n->list);
    look_all(w, &n->more);
    if (n->c != NULL && late) look(w, n->c);
    if (n->kind == NODE_FILTER_BLOCK) look(w, n->a);
}

/* Resolving. */

static int resolve(struct resolver *s, struct node *n, bool soft);

static int resolve_name(struct resolver *s, struct node *n) {
    struct scope_name *found = find(s->scope, n->name, &n->hops);
    if (found == NULL) return bad(s, n->line, QN_EUNSUPPORTED, "no scope has the name", n->name);
    n->slot = found->slot;
    return QN_OK;
}

/* A scope inside of the one of s, which takes its place; the caller puts it back. */
static int open_scope(struct resolver *s, struct function_body *body, struct scope **out) {
    TRY(arena_take(s->d, &s->j->arena, 1, sizeof **out, (void **)out));
    (*out)->parent = s->scope;
    (*out)->body = body;
    (*out)->level = s->scope == NULL ? 0 : s->scope->level + 1;
    s->scope = *out;
    return QN_OK;
}

static int resolve_loop_test(struct resolver *s, struct node *n) {
    struct scope *outside = s->scope;
    TRY(open_scope(s, outside->body, &n->test_scope));
    n->test_scope->level += 1u << 16; /* a function of its own in jinja2: slots of its own */
    TRY(declare_targets(s, n->a));
    TRY(collect(s, n->c, false));
    TRY(resolve(s, n->c, false));
    s->scope = outside;
    return QN_OK;
}

static int resolve_for(struct resolver *s, struct node *n, bool soft) {
    struct scope *outside = s->scope;
    const struct name *loop = s->j->loop;
    struct wanted w = {.names = {"loop"}, .sought = 1};
    TRY(resolve(s, n->b, soft));
    look_all(&w, &n->list);
    n->op = w.found != 0;
    look(&w, n);
    if (w.stores_first) return bad(s, n->line, QN_EFORMAT, "in a loop nothing may be named", loop);
    if (n->c != NULL) TRY(resolve_loop_test(s, n));
    TRY(open_scope(s, outside->body, &n->scope));
    if (n->op) TRY(declare(s, loop));
    TRY(declare_targets(s, n->a));
    TRY(each(s, &n->list, collect, false));
    TRY(resolve(s, n->a, false));
    if (n->op) n->slot = own(n->scope, loop)->slot;
    s->loops++;
    TRY(each(s, &n->list, resolve, false));
    s->loops--;
    s->scope = outside;
    TRY(open_scope(s, outside->body, &n->else_scope));
    TRY(each(s, &n->more, collect, false));
    TRY(each(s, &n->more, resolve, false));
    s->scope = outside;
    return QN_OK;
}

/* caller, kwargs or varargs, if the body uses it and no parameter has its name. */
static int special(struct resolver *s, const struct name *name, bool used, bool *takes,
                   uint32_t *slot) {
    *takes = used;
    if (!used) return QN_OK;
    TRY(declare(s, name));
    *slot = own(s->scope, name)->slot;
    return QN_OK;
}

static const struct node *parameter(const struct node *n, const struct name *name) {
    for (size_t i = 0; i < n->more.n; i++)
        if (n->more.items[i]->name == name) return n->more.items[i];
    return NULL;
}

static int resolve_specials(struct resolver *s, struct node *n) {
    struct signature *f = n->signature;
    const struct jinja *j = s->j;
    struct wanted w = {.names = {"caller", "kwargs", "varargs"}, .sought = 7};
    const struct node *caller = parameter(n, j->caller);
    look_all(&w, &n->list);
    f->explicit_caller = caller != NULL;
    if (caller != NULL && (w.found & 1) && caller->a == NULL)
        return bad(s, n->line, QN_EFORMAT, "without a default there may be no parameter",
                   j->caller);
    TRY(special(s, j->caller, (w.found & 1) && caller == NULL, &f->takes_caller, &f->caller));
    if (caller != NULL) f->takes_caller = w.found & 1;
    TRY(special(s, j->named, (w.found & 2) && parameter(n, j->named) == NULL, &f->takes_named,
                &f->named));
    return special(s, j->more, (w.found & 4) && parameter(n, j->more) == NULL, &f->takes_more,
                   &f->more);
}

/* A macro or call block: a function. */
static int resolve_function(struct resolver *s, struct node *n) {
    struct scope *outside = s->scope;
    struct signature *f;
    uint32_t loops = s->loops;
    TRY(arena_take(s->d, &s->j->arena, 1, sizeof *f, (void **)&f));
    TRY(arena_take(s->d, &s->j->arena, n->more.n, sizeof *f->slots, (void **)&f->slots));
    n->signature = f;
    f->name = n->name;
    TRY(open_scope(s, &f->body, &n->scope));
    for (size_t i = 0; i < n->more.n; i++) {
        if (own(n->scope, n->more.items[i]->name) != NULL)
            return bad(s, n->line, QN_EFORMAT, "a second parameter", n->more.items[i]->name);
        TRY(declare(s, n->more.items[i]->name));
        f->slots[i] = n->scope->names[i].slot;
    }
    for (size_t i = 0; i < n->more.n; i++)
        if (n->more.items[i]->a != NULL) TRY(collect(s, n->more.items[i]->a, false));
    TRY(each(s, &n->list, collect, false));
    TRY(resolve_specials(s, n));
    s->loops = 0;
    for (size_t i = 0; i < n->more.n; i++)
        if (n->more.items[i]->a != NULL) TRY(resolve(s, n->more.items[i]->a, false));
    TRY(each(s, &n->list, resolve, false));
    s->loops = loops;
    s->scope = outside;
    return QN_OK;
}

/* A set block, filter block or `with`. */
static int resolve_block(struct resolver *s, struct node *n, bool soft) {
    struct scope *outside = s->scope;
    if (n->kind == NODE_SET_BLOCK) TRY(resolve(s, n->a, soft));
    for (size_t i = 1; i < n->more.n; i += 2) TRY(resolve(s, n->more.items[i], soft));
    TRY(open_scope(s, outside->body, &n->scope));
    for (size_t i = 0; i < n->more.n; i += 2) TRY(collect(s, n->more.items[i], false));
    TRY(each(s, &n->list, collect, false));
    if (n->kind == NODE_FILTER_BLOCK) TRY(collect(s, n->a, false));
    for (size_t i = 0; i < n->more.n; i += 2) TRY(resolve(s, n->more.items[i], false));
    TRY(each(s, &n->list, resolve, false));
    if (n->kind == NODE_FILTER_BLOCK) TRY(resolve(s, n->a, false));
    if (n->b != NULL) TRY(resolve(s, n->b, false));
    s->scope = outside;
    return QN_OK;
}

/* An unknown filter or test. In an if it fails only when it is used, as in jinja2. */
static int resolve_row(struct resolver *s, struct node *n, bool soft) {
    bool filter = n->kind == NODE_FILTER;
    n->row = filter ? (const void *)filter_find(n->name->value.text)
                    : (const void *)test_find(n->name->value.text);
    if (n->row == NULL && !soft)
        return bad(s, n->line, QN_EUNSUPPORTED, filter ? "no filter is named" : "no test is named",
                   n->name);
    return children(s, n, resolve, soft);
}

static int resolve(struct resolver *s, struct node *n, bool soft) {
    switch ((enum node_kind)n->kind) {
    case NODE_NAME:
    case NODE_NSREF: return resolve_name(s, n);
    case NODE_IF:
    case NODE_IF_ELSE: return children(s, n, resolve, true);
    case NODE_FOR: return resolve_for(s, n, soft);
    case NODE_MACRO: TRY(resolve_name(s, n)); return resolve_function(s, n);
    case NODE_CALL_BLOCK:
        if (n->a != NULL) TRY(resolve(s, n->a, soft));
        return resolve_function(s, n);
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK:
    case NODE_WITH: return resolve_block(s, n, soft);
    case NODE_FILTER:
    case NODE_TEST: return resolve_row(s, n, soft);
    case NODE_BREAK:
    case NODE_CONTINUE:
        if (s->loops > 0) return QN_OK;
        return fail(s->d, QN_EFORMAT, "%s: line %u: %s outside of a loop", s->j->where, n->line,
                    n->kind == NODE_BREAK ? "break" : "continue");
    default: return children(s, n, resolve, soft);
    }
}

int scope_resolve(struct diag *d, struct jinja *j) {
    struct resolver s = {.d = d, .j = j};
    TRY(open_scope(&s, &j->root, &j->scope));
    TRY(each(&s, &j->body, collect, false));
    return each(&s, &j->body, resolve, false);
}
