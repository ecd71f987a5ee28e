/* exprs.h - expressions: the one form that JSON Schemas, regexes and grammars are turned into. An
 * expression says what a text may be. code.h makes instructions of expressions.
 *
 *   regex.c  ─┐
 *   ebnf.c   ─┼─► exprs ─► code (instructions) ─► matcher ─► masks
 *   schema.c ─┘
 *
 * An expression is a number. The functions that make one report no errors: the first failure is
 * kept in `rc` with its message in `d`, and expressions made after it mean nothing. Several
 * expressions may share a child. The code has a copy of it for each, so a large child that is used
 * twice is made a rule.
 */
#ifndef QN_GRAMMAR_EXPRS_H
#define QN_GRAMMAR_EXPRS_H

#include "base/array.h"
#include "base/status.h"
#include "grammar/charset.h"

enum {
    EXPRS_MAX = 1 << 17, /* expressions of a grammar: enough for a schema of the largest size */
    EXPR_RULES_MAX = 1 << 14,
    EXPR_DEPTH_MAX = 4096, /* nested expressions, calls of rules followed */
    EXPR_NAME_MAX = 120,   /* bytes of a rule's name in messages */
};
#define EXPR_NO_LIMIT UINT32_MAX

enum expr_kind {
    EXPR_BYTES,  /* bytes[first, first + n); n = 0: the empty text */
    EXPR_CLASS,  /* one code point of ranges[first, first + n); n = 0: no text at all */
    EXPR_SEQ,    /* children[first, first + n), one after the other */
    EXPR_ALT,    /* one of children[first, first + n) */
    EXPR_REPEAT, /* children[first], at least `least` times, at most `most` */
    EXPR_CALL,   /* rules[first] */
};

struct expr {
    enum expr_kind kind;
    uint32_t first, n;
    uint32_t least, most;
};

/* A rule that has no expression yet can be called already. */
struct expr_rule {
    uint32_t expr;
    bool defined;
    bool nullable; /* set by exprs_check: it may be the empty text */
    char *name;    /* for messages; NULL: they name the rule of its caller */
};

struct exprs {
    struct diag *d;
    int rc; /* the first failure */
    ARRAY(struct expr) items;
    ARRAY(uint32_t) children;
    ARRAY(struct char_range) ranges;
    ARRAY(char) bytes;
    ARRAY(struct expr_rule) rules; /* 0 is where a text begins */
};

void exprs_fini(struct exprs *x);
/* Keeps the first failure and returns its code. */
int exprs_fail(struct exprs *x, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

uint32_t expr_bytes(struct exprs *x, const char *bytes, size_t n);
uint32_t expr_text(struct exprs *x, const char *text);
/* `set` is sorted. */
uint32_t expr_class(struct exprs *x, const struct charset *set);
uint32_t expr_range(struct exprs *x, uint32_t low, uint32_t high);
uint32_t expr_list(struct exprs *x, enum expr_kind kind, const uint32_t *children, size_t n);
uint32_t expr_repeat(struct exprs *x, uint32_t child, uint32_t least, uint32_t most);
uint32_t expr_call(struct exprs *x, uint32_t rule);

#define EXPR_LIST(x, kind, ...)                                                                    \
    expr_list((x), (kind), (const uint32_t[]){__VA_ARGS__},                                        \
              sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define EXPR_SEQ_OF(x, ...) EXPR_LIST(x, EXPR_SEQ, __VA_ARGS__)
#define EXPR_ALT_OF(x, ...) EXPR_LIST(x, EXPR_ALT, __VA_ARGS__)

/* Makes a rule to be defined later. `name` may be NULL. */
uint32_t expr_rule_new(struct exprs *x, const char *name);
void expr_rule_define(struct exprs *x, uint32_t rule, uint32_t expr);
/* Makes `expr` a rule and returns a call of it; returns a small expression as it is. */
uint32_t expr_shared(struct exprs *x, uint32_t expr);

/* Checks that all rules can be matched step by step: each is defined, none begins with itself, each
 * can end. Errors: QN_EINVAL naming the rule, QN_ELIMIT. */
int exprs_check(struct exprs *x);
/* Whether `expr` may be the empty text, after exprs_check. */
bool expr_is_nullable(const struct exprs *x, uint32_t expr);

#endif
