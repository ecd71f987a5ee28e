/* parser.c - see parser.h. */
#include "model/jinja/parser.h"

#include "base/checked.h"
#include "model/jinja/text.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NESTED = 300 }; /* calls of parse functions in each other */

int parser_bad(const struct parser *p, int code, const char *what) {
    return fail(p->d, code, "%s: line %u: %s", p->j->where, p->t->line, what);
}

static const char *token_name(const struct token *t, char text[48]) {
    static const char *const names[] = {"the end of the template", "text", "{{", "}}", "{%", "%}"};
    if (t->type <= TOKEN_BLOCK_END) return names[t->type];
    snprintf(text, 48, "'%.*s'", (int)MIN(t->n, (size_t)40), t->p);
    return text;
}

int parser_unexpected(const struct parser *p, const char *want) {
    char have[48];
    return fail(p->d, QN_EFORMAT, "%s: line %u: want %s, have %s", p->j->where, p->t->line, want,
                token_name(p->t, have));
}

int parser_unsupported(const struct parser *p, const struct token *t, const char *what) {
    char have[48];
    return fail(p->d, QN_EUNSUPPORTED, "%s: line %u: %s %s is not supported", p->j->where, t->line,
                what, token_name(t, have));
}

void parser_advance(struct parser *p) {
    if (p->t->type != TOKEN_END) p->t++;
}

bool parser_is_op(const struct token *t, const char *op) {
    return t->type == TOKEN_OPERATOR && strcmp(t->op, op) == 0;
}

bool parser_is_word(const struct token *t, const char *word) {
    return t->type == TOKEN_NAME && t->n == strlen(word) && memcmp(t->p, word, t->n) == 0;
}

bool parser_accept_op(struct parser *p, const char *op) {
    bool is = parser_is_op(p->t, op);
    if (is) parser_advance(p);
    return is;
}

bool parser_accept_word(struct parser *p, const char *word) {
    bool is = parser_is_word(p->t, word);
    if (is) parser_advance(p);
    return is;
}

int parser_expect_op(struct parser *p, const char *op) {
    char want[8];
    if (parser_accept_op(p, op)) return QN_OK;
    snprintf(want, sizeof want, "'%s'", op);
    return parser_unexpected(p, want);
}

int parser_expect(struct parser *p, enum token_type type, const char *want) {
    if (p->t->type != type) return parser_unexpected(p, want);
    parser_advance(p);
    return QN_OK;
}

int parser_take(struct parser *p, uint64_t n, size_t size, void **out) {
    return arena_take(p->d, &p->j->arena, n, size, out);
}

int parser_node(struct parser *p, enum node_kind kind, uint32_t line, struct node **out) {
    TRY(parser_take(p, 1, sizeof **out, (void **)out));
    (*out)->kind = (uint8_t)kind;
    (*out)->line = line;
    return QN_OK;
}

static uint8_t depth_of(const struct node_list *l, uint8_t depth) {
    for (size_t i = 0; i < l->n; i++) depth = MAX(depth, l->items[i]->depth);
    return depth;
}

/* Every node passes here when its children are there. */
int parser_made(const struct parser *p, struct node *n) {
    uint8_t depth = depth_of(&n->more, depth_of(&n->list, 0));
    if (n->a != NULL) depth = MAX(depth, n->a->depth);
    if (n->b != NULL) depth = MAX(depth, n->b->depth);
    if (n->c != NULL) depth = MAX(depth, n->c->depth);
    if (depth >= JINJA_MAX_TREE)
        return fail(p->d, QN_ELIMIT, "%s: line %u: nested more than %d levels deep", p->j->where,
                    n->line, JINJA_MAX_TREE);
    n->depth = (uint8_t)(depth + 1);
    return QN_OK;
}

int parser_enter(struct parser *p) {
    if (p->nested >= MAX_NESTED) return parser_bad(p, QN_ELIMIT, "nested too deep");
    p->nested++;
    return QN_OK;
}

/* Hands the nodes over to the arena; the array is released in any case. */
int parser_keep(struct parser *p, int rc, struct parser_nodes *from, struct node_list *to) {
    if (rc == QN_OK) rc = parser_take(p, from->n, sizeof(void *), (void **)&to->items);
    if (rc == QN_OK) {
        to->n = from->n;
        if (from->n > 0) memcpy(to->items, from->items, from->n * sizeof(void *));
    }
    ARRAY_FINI(from);
    return rc;
}

int parser_text_value(struct parser *p, const char *s, size_t n, struct value *out) {
    struct text *t;
    TRY(parser_take(p, 1, sizeof *t, (void **)&t));
    *t = (struct text){s, n, text_chars(s, n)};
    *out = (struct value){.type = VALUE_TEXT, .text = t};
    return QN_OK;
}

int parser_intern(struct parser *p, const char *s, size_t n, const struct name **out) {
    struct name *name;
    for (size_t i = 0; i < p->names.n; i++) {
        *out = p->names.items[i];
        if ((*out)->n == n && memcmp((*out)->text, s, n) == 0) return QN_OK;
    }
    if (p->names.n >= 4 * JINJA_MAX_NAMES) return parser_bad(p, QN_ELIMIT, "too many names");
    TRY(parser_take(p, 1, sizeof *name, (void **)&name));
    TRY(parser_text_value(p, s, n, &name->value));
    name->text = s;
    name->n = n;
    *out = name;
    return ARRAY_PUSH(p->d, &p->names, name);
}

int parser_expect_name(struct parser *p, const struct name **out) {
    if (p->t->type != TOKEN_NAME) return parser_unexpected(p, "a name");
    TRY(parser_intern(p, p->t->p, p->t->n, out));
    parser_advance(p);
    return QN_OK;
}

int parser_unary(struct parser *p, enum node_kind kind, enum node_op op, uint32_t line,
                 struct node *a, struct node **out) {
    TRY(parser_node(p, kind, line, out));
    (*out)->op = (uint8_t)op;
    (*out)->a = a;
    return parser_made(p, *out);
}

int parser_binary(struct parser *p, enum node_op op, uint32_t line, struct node *a, struct node *b,
                  struct node **out) {
    struct node *n = NULL;
    TRY(parser_node(p, NODE_BINARY, line, &n));
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    *out = n;
    return parser_made(p, n);
}
