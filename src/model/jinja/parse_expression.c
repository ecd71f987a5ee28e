/* parse_expression.c - expressions: tokens to a tree, by recursive descent. */
#include "model/jinja/parser.h"

#include "base/checked.h"
#include "model/jinja/text.h"

#include <string.h>

static int parse_unary(struct parser *p, bool filters, struct node **out);

/* Literals and names. */

static int parse_number(struct parser *p, struct value *v) {
    struct text t = {p->t->p, p->t->n, p->t->n};
    bool big = false, real = p->t->type == TOKEN_FLOAT;
    *v = (struct value){.type = real ? VALUE_FLOAT : VALUE_INT};
    bool ok = real ? text_to_float(&t, &v->number) : text_to_int(&t, 0, &v->integer, &big);
    if (!ok) return parser_bad(p, QN_EFORMAT, "a malformed number");
    if (big) return parser_bad(p, QN_EUNSUPPORTED, "an integer beyond 64 bits is not supported");
    parser_advance(p);
    return QN_OK;
}

static int parse_string(struct parser *p, struct value *v) {
    size_t n = 0;
    char *text;
    for (const struct token *t = p->t; t->type == TOKEN_STRING; t++) n += t->n;
    TRY(parser_take(p, n + 1, 1, (void **)&text));
    for (n = 0; p->t->type == TOKEN_STRING; parser_advance(p)) {
        memcpy(text + n, p->t->p, p->t->n);
        n += p->t->n;
    }
    return parser_text_value(p, text, n, v);
}

bool parse_constant(const struct token *t, struct value *v) {
    if (parser_is_word(t, "true") || parser_is_word(t, "True")) return *v = value_bool(true), true;
    if (parser_is_word(t, "false") || parser_is_word(t, "False"))
        return *v = value_bool(false), true;
    if (parser_is_word(t, "none") || parser_is_word(t, "None")) return *v = value_none(), true;
    return false;
}

static bool ends_tuple(const struct parser *p, const char *word) {
    return p->t->type == TOKEN_VARIABLE_END || p->t->type == TOKEN_BLOCK_END ||
           parser_is_op(p->t, ")") || (word != NULL && parser_is_word(p->t, word));
}

/* Expressions with commas: a tuple; one without: itself. `word` ends it too. */
int parse_tuple(struct parser *p, parse_fn *each, const char *word, bool may_be_empty,
                struct node **out) {
    struct parser_nodes items = {0};
    bool tuple = false;
    uint32_t line = p->t->line;
    int rc = QN_OK;
    while (rc == QN_OK) {
        struct node *n = NULL;
        if (items.n > 0 && (rc = parser_expect_op(p, ",")) != QN_OK) break;
        if (ends_tuple(p, word)) break;
        rc = each(p, &n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
        if (rc != QN_OK || !parser_is_op(p->t, ",")) break;
        tuple = true;
    }
    if (rc == QN_OK && !tuple && items.n == 1) {
        *out = items.items[0];
        ARRAY_FINI(&items);
        return QN_OK;
    }
    if (rc == QN_OK && !tuple && !may_be_empty) rc = parser_unexpected(p, "an expression");
    if (rc == QN_OK) rc = parser_node(p, NODE_TUPLE, line, out);
    if (rc != QN_OK) {
        ARRAY_FINI(&items);
        return rc;
    }
    TRY(parser_keep(p, rc, &items, &(*out)->list));
    return parser_made(p, *out);
}

/* [a, b] and {k: v}; the opening bracket is the next token. */
static int parse_display(struct parser *p, bool dict, struct node **out) {
    const char *close = dict ? "}" : "]";
    struct parser_nodes items = {0};
    struct node *n = NULL;
    int rc = parser_node(p, dict ? NODE_DICT : NODE_LIST, p->t->line, out);
    parser_advance(p);
    while (rc == QN_OK && !parser_is_op(p->t, close)) {
        if (items.n > 0) rc = parser_expect_op(p, ",");
        if (rc != QN_OK || parser_is_op(p->t, close)) break;
        rc = parse_expression(p, &n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
        if (rc != QN_OK || !dict) continue;
        rc = parser_expect_op(p, ":");
        if (rc == QN_OK) rc = parse_expression(p, &n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
    }
    if (rc == QN_OK) rc = parser_expect_op(p, close);
    if (rc != QN_OK) {
        ARRAY_FINI(&items);
        return rc;
    }
    TRY(parser_keep(p, rc, &items, &(*out)->list));
    return parser_made(p, *out);
}

int parse_name(struct parser *p, struct node **out) {
    TRY(parser_node(p, NODE_NAME, p->t->line, out));
    TRY(parser_expect_name(p, &(*out)->name));
    return parser_made(p, *out);
}

static int parse_primary_in(struct parser *p, struct node **out) {
    const struct token *t = p->t;
    struct value v;
    if (parser_is_op(t, "(")) {
        parser_advance(p);
        TRY(parse_tuple(p, parse_expression, NULL, true, out));
        return parser_expect_op(p, ")");
    }
    if (parser_is_op(t, "[")) return parse_display(p, false, out);
    if (parser_is_op(t, "{")) return parse_display(p, true, out);
    if (parse_constant(t, &v))
        parser_advance(p);
    else if (t->type == TOKEN_NAME)
        return parse_name(p, out);
    else if (t->type == TOKEN_STRING)
        TRY(parse_string(p, &v));
    else if (t->type == TOKEN_INT || t->type == TOKEN_FLOAT)
        TRY(parse_number(p, &v));
    else
        return parser_unexpected(p, "an expression");
    TRY(parser_node(p, NODE_CONST, t->line, out));
    (*out)->value = v;
    return parser_made(p, *out);
}

int parse_primary(struct parser *p, struct node **out) {
    TRY(parser_enter(p));
    TRY(parse_primary_in(p, out));
    p->nested--;
    return QN_OK;
}

/* Behind an expression: .name [index] (arguments) |filter, is test. */

static int parse_argument(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    const struct name *name = NULL;
    enum node_kind kind = NODE_KEYWORD;
    int star = parser_accept_op(p, "*") ? 1 : parser_accept_op(p, "**") ? 2 : 0;
    struct node *value = NULL;
    if (star == 0 && p->t->type == TOKEN_NAME && parser_is_op(p->t + 1, "=")) {
        TRY(parser_expect_name(p, &name));
        parser_advance(p);
    } else if (star == 0) {
        return parse_expression(p, out);
    }
    TRY(parse_expression(p, &value));
    if (star != 0) kind = NODE_STAR;
    TRY(parser_unary(p, kind, (enum node_op)star, line, value, out));
    (*out)->name = name;
    return QN_OK;
}

/* Whether an argument of this rank may follow one of rank `before`: positional, named or *, **. */
static bool in_order(const struct node *n, int *before) {
    int rank = n->kind == NODE_KEYWORD              ? 1
               : n->kind == NODE_STAR && n->op == 1 ? 2
               : n->kind == NODE_STAR               ? 3
                                                    : 0;
    bool ok = rank == 0   ? *before == 0
              : rank == 1 ? *before < 3
              : rank == 2 ? *before < 2
                          : *before < 3;
    *before = MAX(rank, *before);
    return ok;
}

static bool has_keyword(const struct parser_nodes *items, const struct name *name) {
    for (size_t i = 0; i < items->n; i++) {
        const struct node *n = items->items[i];
        if (n->kind == NODE_KEYWORD && n->name == name) return true;
    }
    return false;
}

static int parse_arguments(struct parser *p, struct node_list *list) {
    struct parser_nodes items = {0};
    int before = 0;
    int rc = parser_expect_op(p, "(");
    while (rc == QN_OK && !parser_is_op(p->t, ")")) {
        struct node *n = NULL;
        if (items.n > 0) rc = parser_expect_op(p, ",");
        if (rc != QN_OK || parser_is_op(p->t, ")")) break;
        rc = parse_argument(p, &n);
        if (rc == QN_OK && !in_order(n, &before))
            rc = parser_bad(p, QN_EFORMAT, "arguments out of order");
        if (rc == QN_OK && n->kind == NODE_KEYWORD && has_keyword(&items, n->name))
            rc = parser_bad(p, QN_EFORMAT, "an argument is there twice");
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
    }
    if (rc == QN_OK) rc = parser_expect_op(p, ")");
    return parser_keep(p, rc, &items, list);
}

static int parse_call(struct parser *p, struct node **node) {
    struct node *n = NULL;
    TRY(parser_node(p, NODE_CALL, p->t->line, &n));
    n->a = *node;
    TRY(parse_arguments(p, &n->list));
    *node = n;
    return parser_made(p, n);
}

/* Inside of [ ], once. */
static int parse_index(struct parser *p, struct node *n) {
    struct node *parts[3] = {0};
    size_t i = 0;
    bool slice = false;
    while (i < 3) {
        if (!parser_is_op(p->t, ":") && !parser_is_op(p->t, "]") && !parser_is_op(p->t, ","))
            TRY(parse_expression(p, &parts[i]));
        else if (i == 0 && !parser_is_op(p->t, ":"))
            return parser_unexpected(p, "an index");
        if (i == 2 || !parser_accept_op(p, ":")) break;
        slice = true;
        i++;
    }
    n->b = parts[0];
    if (!slice) return QN_OK;
    n->kind = NODE_SLICE;
    n->c = parts[1];
    if (parts[2] == NULL) return QN_OK;
    n->list.n = 1;
    TRY(parser_take(p, 1, sizeof(void *), (void **)&n->list.items));
    n->list.items[0] = parts[2];
    return QN_OK;
}

static int parse_subscript(struct parser *p, struct node **node) {
    struct node *n = NULL;
    TRY(parser_node(p, NODE_ITEM, p->t->line, &n));
    n->a = *node;
    *node = n;
    if (parser_accept_op(p, "[")) {
        TRY(parse_index(p, n));
        if (parser_is_op(p->t, ",")) return parser_unsupported(p, p->t, "an index with");
        TRY(parser_expect_op(p, "]"));
        return parser_made(p, n);
    }
    parser_advance(p);
    if (p->t->type == TOKEN_INT) {
        TRY(parser_node(p, NODE_CONST, p->t->line, &n->b));
        TRY(parse_number(p, &n->b->value));
        TRY(parser_made(p, n->b));
        return parser_made(p, n);
    }
    n->kind = NODE_ATTRIBUTE;
    TRY(parser_expect_name(p, &n->name));
    return parser_made(p, n);
}

static int parse_postfix(struct parser *p, struct node **node) {
    for (;;) {
        if (parser_is_op(p->t, ".") || parser_is_op(p->t, "["))
            TRY(parse_subscript(p, node));
        else if (parser_is_op(p->t, "("))
            TRY(parse_call(p, node));
        else
            return QN_OK;
    }
}

/* The name of a filter or test; one with dots is unknown to everybody. */
static int parse_dotted(struct parser *p, const struct name **name) {
    TRY(parser_expect_name(p, name));
    return parser_is_op(p->t, ".") ? parser_unsupported(p, p->t, "a name with") : QN_OK;
}

int parse_filter(struct parser *p, struct node *input, struct node **out) {
    struct node *n = NULL;
    TRY(parser_node(p, NODE_FILTER, p->t->line, &n));
    TRY(parse_dotted(p, &n->name));
    n->a = input;
    if (parser_is_op(p->t, "(")) TRY(parse_arguments(p, &n->list));
    *out = n;
    return parser_made(p, n);
}

int parse_filters(struct parser *p, struct node **node) {
    while (parser_accept_op(p, "|")) TRY(parse_filter(p, *node, node));
    return QN_OK;
}

/* Whether a test's argument without parentheses follows. */
static bool starts_argument(const struct token *t) {
    if (parser_is_word(t, "else") || parser_is_word(t, "or") || parser_is_word(t, "and"))
        return false;
    return (t->type >= TOKEN_NAME && t->type <= TOKEN_FLOAT) || parser_is_op(t, "[") ||
           parser_is_op(t, "{");
}

static int parse_test(struct parser *p, struct node **node) {
    uint32_t line = p->t->line;
    struct node *n = NULL;
    parser_advance(p);
    bool negated = parser_accept_word(p, "not");
    TRY(parser_node(p, NODE_TEST, line, &n));
    TRY(parse_dotted(p, &n->name));
    n->a = *node;
    if (parser_is_op(p->t, "(")) {
        TRY(parse_arguments(p, &n->list));
    } else if (starts_argument(p->t)) {
        if (parser_is_word(p->t, "is")) return parser_bad(p, QN_EFORMAT, "'is' behind a test");
        TRY(parser_take(p, 1, sizeof(void *), (void **)&n->list.items));
        TRY(parse_primary(p, &n->list.items[0]));
        TRY(parse_postfix(p, &n->list.items[0]));
        n->list.n = 1;
    }
    TRY(parser_made(p, n));
    *node = n;
    return negated ? parser_unary(p, NODE_UNARY, OP_NOT, line, n, node) : QN_OK;
}

static int parse_filter_expression(struct parser *p, struct node **node) {
    for (;;) {
        if (parser_is_op(p->t, "|"))
            TRY(parse_filters(p, node));
        else if (parser_is_word(p->t, "is"))
            TRY(parse_test(p, node));
        else if (parser_is_op(p->t, "("))
            TRY(parse_call(p, node));
        else
            return QN_OK;
    }
}

/* Operators, from the tightest to the loosest. */

static int parse_unary_in(struct parser *p, bool filters, struct node **out) {
    uint32_t line = p->t->line;
    enum node_op op = parser_is_op(p->t, "-")   ? OP_NEGATE
                      : parser_is_op(p->t, "+") ? OP_PLUS
                                                : OP_NONE;
    if (op != OP_NONE) {
        struct node *operand = NULL;
        parser_advance(p);
        TRY(parse_unary(p, false, &operand));
        TRY(parser_unary(p, NODE_UNARY, op, line, operand, out));
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    return filters ? parse_filter_expression(p, out) : QN_OK;
}

static int parse_unary(struct parser *p, bool filters, struct node **out) {
    TRY(parser_enter(p));
    TRY(parse_unary_in(p, filters, out));
    p->nested--;
    return QN_OK;
}

struct operator_row {
    const char *text;
    enum node_op op;
};

static enum node_op operator_at(const struct token *t, const struct operator_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (parser_is_op(t, rows[i].text) || parser_is_word(t, rows[i].text)) return rows[i].op;
    return OP_NONE;
}

static int parse_power(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct node *right = NULL;
    TRY(parse_unary(p, true, out));
    while (parser_accept_op(p, "**")) {
        TRY(parse_unary(p, true, &right));
        TRY(parser_binary(p, OP_POWER, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

/* operand (operator operand)..., from left to right, of the operators in rows[n]. */
static int parse_chain(struct parser *p, const struct operator_row *rows, size_t n,
                       parse_fn *operand, struct node **out) {
    uint32_t line = p->t->line;
    enum node_op op;
    struct node *right = NULL;
    TRY(operand(p, out));
    while ((op = operator_at(p->t, rows, n)) != OP_NONE) {
        parser_advance(p);
        TRY(operand(p, &right));
        TRY(parser_binary(p, op, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

static int parse_product(struct parser *p, struct node **out) {
    static const struct operator_row rows[] = {
        {"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}};
    return parse_chain(p, rows, COUNT_OF(rows), parse_power, out);
}

static int parse_concat(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct parser_nodes items = {0};
    int rc = parse_product(p, out);
    if (rc != QN_OK || !parser_is_op(p->t, "~")) return rc;
    rc = ARRAY_PUSH(p->d, &items, *out);
    while (rc == QN_OK && parser_accept_op(p, "~")) {
        rc = parse_product(p, out);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, *out);
    }
    if (rc == QN_OK) rc = parser_node(p, NODE_CONCAT, line, out);
    if (rc != QN_OK) {
        ARRAY_FINI(&items);
        return rc;
    }
    TRY(parser_keep(p, rc, &items, &(*out)->list));
    return parser_made(p, *out);
}

static int parse_sum(struct parser *p, struct node **out) {
    static const struct operator_row rows[] = {{"+", OP_ADD}, {"-", OP_SUBTRACT}};
    return parse_chain(p, rows, COUNT_OF(rows), parse_concat, out);
}

static enum node_op accept_comparison(struct parser *p) {
    static const struct operator_row rows[] = {{"==", OP_EQUAL},  {"!=", OP_UNEQUAL},
                                               {"<", OP_LESS},    {"<=", OP_LESS_EQUAL},
                                               {">", OP_GREATER}, {">=", OP_GREATER_EQUAL}};
    enum node_op op = operator_at(p->t, rows, COUNT_OF(rows));
    if (op != OP_NONE) return parser_advance(p), op;
    if (parser_accept_word(p, "in")) return OP_IN;
    if (!parser_is_word(p->t, "not") || !parser_is_word(p->t + 1, "in")) return OP_NONE;
    parser_advance(p);
    parser_advance(p);
    return OP_NOT_IN;
}

static int parse_compare(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct node *first = NULL, *right = NULL;
    struct parser_nodes others = {0};
    TRY(parse_sum(p, &first));
    *out = first;
    int rc = QN_OK;
    for (enum node_op op; rc == QN_OK && (op = accept_comparison(p)) != OP_NONE;) {
        rc = parse_sum(p, &right);
        if (rc == QN_OK) rc = parser_unary(p, NODE_KEYWORD, op, line, right, &right);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &others, right);
    }
    if (rc != QN_OK || others.n == 0) {
        ARRAY_FINI(&others);
        return rc;
    }
    struct node_list list;
    TRY(parser_keep(p, rc, &others, &list));
    TRY(parser_node(p, NODE_COMPARE, line, out));
    (*out)->a = first;
    (*out)->list = list;
    return parser_made(p, *out);
}

static int parse_not(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    if (!parser_accept_word(p, "not")) return parse_compare(p, out);
    struct node *operand = NULL;
    TRY(parser_enter(p));
    TRY(parse_not(p, &operand));
    p->nested--;
    return parser_unary(p, NODE_UNARY, OP_NOT, line, operand, out);
}

static int parse_and(struct parser *p, struct node **out) {
    static const struct operator_row rows[] = {{"and", OP_AND}};
    return parse_chain(p, rows, COUNT_OF(rows), parse_not, out);
}

int parse_or(struct parser *p, struct node **out) {
    static const struct operator_row rows[] = {{"or", OP_OR}};
    return parse_chain(p, rows, COUNT_OF(rows), parse_and, out);
}

static int parse_expression_in(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    TRY(parse_or(p, out));
    while (parser_accept_word(p, "if")) {
        struct node *n = NULL;
        TRY(parser_node(p, NODE_IF_ELSE, line, &n));
        n->a = *out;
        TRY(parse_or(p, &n->b));
        if (parser_accept_word(p, "else")) TRY(parse_expression(p, &n->c));
        TRY(parser_made(p, n));
        *out = n;
        line = p->t->line;
    }
    return QN_OK;
}

int parse_expression(struct parser *p, struct node **out) {
    TRY(parser_enter(p));
    TRY(parse_expression_in(p, out));
    p->nested--;
    return QN_OK;
}
