/* parser.h - what the files of the parser share: its place in the tokens, nodes of the tree, names.
 *
 *   parser.c            tokens, nodes and names
 *   parse_expression.c  expressions
 *   parse.c             statements, and the template as a whole
 *
 * Errors are QN_EFORMAT, QN_EUNSUPPORTED and QN_ELIMIT, whose messages name the template's line,
 * and QN_ENOMEM.
 */
#ifndef QN_MODEL_JINJA_PARSER_H
#define QN_MODEL_JINJA_PARSER_H

#include "base/array.h"
#include "model/jinja/jinja.h"
#include "model/jinja/lex.h"
#include "model/jinja/node.h"

struct parser {
    struct diag *d;
    struct jinja *j;
    const struct token *t; /* the next token; TOKEN_END is the last and stays */
    uint32_t nested;
    ARRAY(void *) names; /* struct name */
};

struct parser_nodes {
    void **items; /* struct node */
    size_t n, capacity;
};

/* ---- errors at the next token; unsupported: at token t ---- */

int parser_bad(const struct parser *p, int code, const char *what);
int parser_unexpected(const struct parser *p, const char *want);
int parser_unsupported(const struct parser *p, const struct token *t, const char *what);

/* ---- tokens ---- */

bool parser_is_op(const struct token *t, const char *op);
bool parser_is_word(const struct token *t, const char *word);
void parser_advance(struct parser *p);
/* Whether the next token is that one; if so, takes it. */
bool parser_accept_op(struct parser *p, const char *op);
bool parser_accept_word(struct parser *p, const char *word);
/* The same, but any other token is an error. */
int parser_expect_op(struct parser *p, const char *op);
int parser_expect(struct parser *p, enum token_type type, const char *want);
int parser_expect_name(struct parser *p, const struct name **out);

/* ---- nodes; their memory is the template's arena ---- */

int parser_take(struct parser *p, uint64_t n, size_t size, void **out);
int parser_node(struct parser *p, enum node_kind kind, uint32_t line, struct node **out);
int parser_unary(struct parser *p, enum node_kind kind, enum node_op op, uint32_t line,
                 struct node *a, struct node **out);
int parser_binary(struct parser *p, enum node_op op, uint32_t line, struct node *a, struct node *b,
                  struct node **out);
/* Every node passes here when its children are there. */
int parser_made(const struct parser *p, struct node *n);
/* Moves the nodes into the arena if rc is QN_OK; frees the array in any case. Returns rc, or the
 * error of the move. */
int parser_keep(struct parser *p, int rc, struct parser_nodes *from, struct node_list *to);
/* Counts one more call of a parse function; p->nested-- ends it. Errors: QN_ELIMIT. */
int parser_enter(struct parser *p);
int parser_text_value(struct parser *p, const char *s, size_t n, struct value *out);
/* The one name with that text. */
int parser_intern(struct parser *p, const char *s, size_t n, const struct name **out);

/* ---- expressions ---- */

typedef int parse_fn(struct parser *p, struct node **out);

int parse_expression(struct parser *p, struct node **out);
int parse_or(struct parser *p, struct node **out); /* an expression without if and else */
int parse_primary(struct parser *p, struct node **out);
int parse_name(struct parser *p, struct node **out);
/* Expressions with commas: a tuple; one without: itself. `word` ends it too. */
int parse_tuple(struct parser *p, parse_fn *each, const char *word, bool may_be_empty,
                struct node **out);
/* A filter of input; all filters that follow *node. */
int parse_filter(struct parser *p, struct node *input, struct node **out);
int parse_filters(struct parser *p, struct node **node);
/* Whether a token is a word that is a constant; *v is its value. */
bool parse_constant(const struct token *t, struct value *v);

#endif
