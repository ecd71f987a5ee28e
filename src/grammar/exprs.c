#include "grammar/exprs.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { VISITS_MAX = 1 << 21 }; /* expressions that each search of exprs_check may visit */

void exprs_fini(struct exprs *x) {
    for (size_t i = 0; i < x->rules.n; i++) free(x->rules.items[i].name);
    ARRAY_FINI(&x->items);
    ARRAY_FINI(&x->children);
    ARRAY_FINI(&x->ranges);
    ARRAY_FINI(&x->bytes);
    ARRAY_FINI(&x->rules);
}

int exprs_fail(struct exprs *x, int code, const char *fmt, ...) {
    char message[sizeof x->d->message];
    va_list args;
    if (x->rc != QN_OK) return x->rc;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return x->rc = fail(x->d, code, "%s", message);
}

static bool is_well(struct exprs *x, int rc) {
    if (x->rc == QN_OK) x->rc = rc;
    return x->rc == QN_OK;
}

/* ---- making them -------------------------------------------------------------------------- */

static uint32_t add(struct exprs *x, struct expr e) {
    if (x->items.n >= EXPRS_MAX)
        exprs_fail(x, QN_ELIMIT, "more than %d expressions: a smaller schema or grammar is wanted",
                   EXPRS_MAX);
    if (x->rc != QN_OK || !is_well(x, ARRAY_PUSH(x->d, &x->items, e))) return 0;
    return (uint32_t)x->items.n - 1;
}

uint32_t expr_bytes(struct exprs *x, const char *bytes, size_t n) {
    const uint32_t first = (uint32_t)x->bytes.n;
    if (!is_well(x, ARRAY_RESERVE(x->d, &x->bytes, first + n + 1))) return 0;
    if (n > 0) memcpy(x->bytes.items + first, bytes, n);
    x->bytes.n += n;
    return add(x, (struct expr){.kind = EXPR_BYTES, .first = first, .n = (uint32_t)n});
}

uint32_t expr_text(struct exprs *x, const char *text) {
    return expr_bytes(x, text, strlen(text));
}

uint32_t expr_class(struct exprs *x, const struct charset *set) {
    const uint32_t first = (uint32_t)x->ranges.n;
    if (set->full) exprs_fail(x, QN_ELIMIT, "a class of more than %d ranges", CHARSET_MAX);
    for (uint32_t i = 0; i < set->n; i++)
        if (!is_well(x, ARRAY_PUSH(x->d, &x->ranges, set->items[i]))) return 0;
    return add(x, (struct expr){.kind = EXPR_CLASS, .first = first, .n = set->n});
}

uint32_t expr_range(struct exprs *x, uint32_t low, uint32_t high) {
    if (!is_well(x, ARRAY_PUSH(x->d, &x->ranges, (struct char_range){low, high}))) return 0;
    return add(x, (struct expr){.kind = EXPR_CLASS, .first = (uint32_t)x->ranges.n - 1, .n = 1});
}

uint32_t expr_list(struct exprs *x, enum expr_kind kind, const uint32_t *children, size_t n) {
    const uint32_t first = (uint32_t)x->children.n;
    if (n == 1) return children[0];
    for (size_t i = 0; i < n; i++)
        if (!is_well(x, ARRAY_PUSH(x->d, &x->children, children[i]))) return 0;
    return add(x, (struct expr){.kind = kind, .first = first, .n = (uint32_t)n});
}

uint32_t expr_repeat(struct exprs *x, uint32_t child, uint32_t least, uint32_t most) {
    const uint32_t first = (uint32_t)x->children.n;
    if (!is_well(x, ARRAY_PUSH(x->d, &x->children, child))) return 0;
    return add(x, (struct expr){
                      .kind = EXPR_REPEAT, .first = first, .n = 1, .least = least, .most = most});
}

uint32_t expr_call(struct exprs *x, uint32_t rule) {
    return add(x, (struct expr){.kind = EXPR_CALL, .first = rule});
}

uint32_t expr_rule_new(struct exprs *x, const char *name) {
    struct expr_rule rule = {0};
    if (x->rules.n >= EXPR_RULES_MAX)
        exprs_fail(x, QN_ELIMIT, "more than %d rules: a smaller schema or grammar is wanted",
                   EXPR_RULES_MAX);
    if (x->rc != QN_OK || !is_well(x, ARRAY_RESERVE(x->d, &x->rules, x->rules.n + 1))) return 0;
    if (name) {
        const size_t n = strnlen(name, EXPR_NAME_MAX);
        rule.name = calloc(n + 1, 1);
        if (!rule.name) {
            x->rc = fail_nomem(x->d, n, "a rule");
            return 0;
        }
        memcpy(rule.name, name, n);
    }
    x->rules.items[x->rules.n] = rule;
    return (uint32_t)x->rules.n++;
}

void expr_rule_define(struct exprs *x, uint32_t rule, uint32_t expr) {
    if (x->rc != QN_OK) return;
    x->rules.items[rule].expr = expr;
    x->rules.items[rule].defined = true;
}

uint32_t expr_shared(struct exprs *x, uint32_t expr) {
    if (x->rc != QN_OK) return 0;
    const struct expr *e = &x->items.items[expr];
    if (e->kind == EXPR_CALL || (e->kind == EXPR_BYTES && e->n <= 8)) return expr;
    const uint32_t rule = expr_rule_new(x, NULL);
    expr_rule_define(x, rule, expr);
    return expr_call(x, rule);
}

/* ---- checking them ------------------------------------------------------------------------ */

enum mark { MARK_NONE, MARK_OPEN, MARK_NO, MARK_YES };

struct check {
    struct exprs *x;
    uint8_t *marks; /* [rules] enum mark */
    uint32_t depth;
    uint64_t n_visits;
    uint32_t named; /* the named rule that is being checked */
};

static const uint32_t *children_of(const struct exprs *x, const struct expr *e) {
    return e->first < x->children.n ? x->children.items + e->first : NULL;
}

static const char *name_of(const struct check *c, uint32_t rule) {
    const char *own = c->x->rules.items[rule].name;
    const char *other = c->x->rules.items[c->named].name;
    return own ? own : other ? other : "root";
}

static bool enter(struct check *c) {
    if (++c->depth > EXPR_DEPTH_MAX)
        exprs_fail(c->x, QN_ELIMIT, "expressions inside each other more than %d deep",
                   EXPR_DEPTH_MAX);
    if (++c->n_visits > VISITS_MAX)
        exprs_fail(c->x, QN_ELIMIT, "the rules refer to each other in too many ways");
    return c->x->rc == QN_OK;
}

static bool rule_is_nullable(struct check *c, uint32_t rule);

/* Whether `expr` may be the empty text. Visits all expressions that it may begin with. */
static bool is_nullable(struct check *c, uint32_t expr) {
    const struct expr e = c->x->items.items[expr];
    const uint32_t *child = children_of(c->x, &e);
    bool yes = e.kind == EXPR_SEQ || (e.kind == EXPR_REPEAT && e.least == 0) ||
               (e.kind == EXPR_BYTES && e.n == 0);
    if (!enter(c)) return false;
    if (e.kind == EXPR_CALL) yes = rule_is_nullable(c, e.first);
    if (e.kind == EXPR_REPEAT) yes |= is_nullable(c, child[0]);
    for (uint32_t i = 0; e.kind == EXPR_SEQ && i < e.n && yes; i++) yes = is_nullable(c, child[i]);
    for (uint32_t i = 0; e.kind == EXPR_ALT && i < e.n; i++) yes |= is_nullable(c, child[i]);
    c->depth--;
    return yes;
}

/* A rule that is met while it is open begins with itself. */
static bool rule_is_nullable(struct check *c, uint32_t rule) {
    const uint32_t named = c->named;
    if (c->marks[rule] == MARK_OPEN)
        exprs_fail(c->x, QN_EINVAL,
                   "%s: begins with itself: write a repetition, or what it begins with first",
                   name_of(c, rule));
    if (c->x->rc != QN_OK || c->marks[rule] >= MARK_NO) return c->marks[rule] == MARK_YES;
    c->marks[rule] = MARK_OPEN;
    if (c->x->rules.items[rule].name) c->named = rule;
    const bool yes = is_nullable(c, c->x->rules.items[rule].expr);
    c->marks[rule] = yes ? MARK_YES : MARK_NO;
    c->named = named;
    return yes;
}

bool expr_is_nullable(const struct exprs *x, uint32_t expr) {
    const struct expr *e = &x->items.items[expr];
    const uint32_t *child = children_of(x, e);
    bool any = false, all = true;
    for (uint32_t i = 0; (e->kind == EXPR_SEQ || e->kind == EXPR_ALT) && i < e->n; i++) {
        const bool one = expr_is_nullable(x, child[i]);
        any |= one;
        all &= one;
        if (e->kind == EXPR_SEQ ? !one : one) break;
    }
    switch (e->kind) {
    case EXPR_BYTES: return e->n == 0;
    case EXPR_CLASS: return false;
    case EXPR_SEQ: return all;
    case EXPR_ALT: return any;
    case EXPR_REPEAT: return e->least == 0 || expr_is_nullable(x, child[0]);
    case EXPR_CALL: return x->rules.items[e->first].nullable;
    }
    return false;
}

/* Whether some finite text matches `expr`. An open rule counts as one without an end. The mark of a
 * rule without an end is not kept, because another way into the rule may find one. */
static bool can_end(struct check *c, uint32_t expr) {
    const struct expr e = c->x->items.items[expr];
    const uint32_t *child = children_of(c->x, &e);
    bool yes = e.kind == EXPR_SEQ || e.kind == EXPR_BYTES || (e.kind == EXPR_CLASS && e.n > 0) ||
               (e.kind == EXPR_REPEAT && e.least == 0);
    if (!enter(c)) return false;
    if (e.kind == EXPR_CALL && c->marks[e.first] == MARK_NONE) {
        c->marks[e.first] = MARK_OPEN;
        const bool ends = can_end(c, c->x->rules.items[e.first].expr);
        c->marks[e.first] = ends ? MARK_YES : MARK_NONE;
    }
    if (e.kind == EXPR_CALL) yes = c->marks[e.first] == MARK_YES;
    if (e.kind == EXPR_REPEAT && e.least > 0) yes = can_end(c, child[0]);
    for (uint32_t i = 0; e.kind == EXPR_SEQ && i < e.n && yes; i++) yes = can_end(c, child[i]);
    for (uint32_t i = 0; e.kind == EXPR_ALT && i < e.n && !yes; i++) yes = can_end(c, child[i]);
    c->depth--;
    return yes;
}

static void check_ends(struct check *c) {
    memset(c->marks, MARK_NONE, c->x->rules.n);
    c->depth = 0;
    c->n_visits = 0;
    for (uint32_t i = 0; i < c->x->rules.n && c->x->rc == QN_OK; i++) {
        if (c->x->rules.items[i].name) c->named = i;
        if (c->marks[i] == MARK_YES) continue;
        c->marks[i] = MARK_OPEN;
        if (can_end(c, c->x->rules.items[i].expr))
            c->marks[i] = MARK_YES;
        else
            exprs_fail(c->x, QN_EINVAL, "%s: no text can be it, or none that ends", name_of(c, i));
    }
}

int exprs_check(struct exprs *x) {
    struct check c = {.x = x};
    for (uint32_t i = 0; i < x->rules.n; i++)
        if (!x->rules.items[i].defined)
            exprs_fail(x, QN_EINVAL, "%s: is not defined",
                       x->rules.items[i].name ? x->rules.items[i].name : "a rule");
    if (x->rc != QN_OK) return x->rc;
    c.marks = calloc(x->rules.n + 1, 1);
    if (!c.marks) return x->rc = fail_nomem(x->d, x->rules.n, "a grammar");
    for (uint32_t i = 0; i < x->rules.n && x->rc == QN_OK; i++) {
        if (x->rules.items[i].name) c.named = i;
        x->rules.items[i].nullable = rule_is_nullable(&c, i);
    }
    if (x->rc == QN_OK) check_ends(&c);
    free(c.marks);
    return x->rc;
}
