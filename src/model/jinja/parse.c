/* parse.c - tokens to a tree, by recursive descent. */
#include "base/checked.h"
#include "model/jinja/jinja.h"
#include "model/jinja/lex.h"
#include "model/jinja/node.h"
#include "model/jinja/text.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NESTED = 300 }; /* calls of the functions below in each other */

struct parser {
    struct diag *d;
    struct jinja *j;
    const struct token *t; /* the next token; TOKEN_END is the last and stays */
    uint32_t nested;
    ARRAY(void *) names; /* struct name */
};

typedef ARRAY(void *) nodes; /* struct node */

static int parse_expression(struct parser *p, struct node **out);
static int parse_or(struct parser *p, struct node **out);
static int parse_unary(struct parser *p, bool filters, struct node **out);
static int parse_statements(struct parser *p, const char *const *ends, struct node_list *body,
                            const struct token **end);

/* Tokens and nodes. */

static int bad(const struct parser *p, int code, const char *what) {
    return fail(p->d, code, "%s: line %u: %s", p->j->where, p->t->line, what);
}

static const char *token_name(const struct token *t, char text[48]) {
    static const char *const names[] = {"the end of the template", "text", "{{", "}}", "{%", "%}"};
    if (t->type <= TOKEN_BLOCK_END) return names[t->type];
    snprintf(text, 48, "'%.*s'", (int)MIN(t->n, (size_t)40), t->p);
    return text;
}

static int unexpected(const struct parser *p, const char *want) {
    char have[48];
    return fail(p->d, QN_EFORMAT, "%s: line %u: want %s, have %s", p->j->where, p->t->line, want,
                token_name(p->t, have));
}

static int unsupported(const struct parser *p, const struct token *t, const char *what) {
    char have[48];
    return fail(p->d, QN_EUNSUPPORTED, "%s: line %u: %s %s is not supported", p->j->where, t->line,
                what, token_name(t, have));
}

static void advance(struct parser *p) {
    if (p->t->type != TOKEN_END) p->t++;
}

static bool is_op(const struct token *t, const char *op) {
    return t->type == TOKEN_OPERATOR && strcmp(t->op, op) == 0;
}

static bool is_word(const struct token *t, const char *word) {
    return t->type == TOKEN_NAME && t->n == strlen(word) && memcmp(t->p, word, t->n) == 0;
}

static bool accept_op(struct parser *p, const char *op) {
    bool is = is_op(p->t, op);
    if (is) advance(p);
    return is;
}

static bool accept_word(struct parser *p, const char *word) {
    bool is = is_word(p->t, word);
    if (is) advance(p);
    return is;
}

static int expect_op(struct parser *p, const char *op) {
    char want[8];
    if (accept_op(p, op)) return QN_OK;
    snprintf(want, sizeof want, "'%s'", op);
    return unexpected(p, want);
}

static int expect(struct parser *p, enum token_type type, const char *want) {
    if (p->t->type != type) return unexpected(p, want);
    advance(p);
    return QN_OK;
}

static int take(struct parser *p, uint64_t n, size_t size, void **out) {
    return arena_take(p->d, &p->j->arena, n, size, out);
}

static int new_node(struct parser *p, enum node_kind kind, uint32_t line, struct node **out) {
    TRY(take(p, 1, sizeof **out, (void **)out));
    (*out)->kind = (uint8_t)kind;
    (*out)->line = line;
    return QN_OK;
}

static uint8_t depth_of(const struct node_list *l, uint8_t depth) {
    for (size_t i = 0; i < l->n; i++) depth = MAX(depth, l->items[i]->depth);
    return depth;
}

/* Every node passes here when its children are there. */
static int made(const struct parser *p, struct node *n) {
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

static int enter(struct parser *p) {
    if (p->nested >= MAX_NESTED) return bad(p, QN_ELIMIT, "nested too deep");
    p->nested++;
    return QN_OK;
}

/* Hands the nodes over to the arena; the array is released in any case. */
static int keep(struct parser *p, int rc, nodes *from, struct node_list *to) {
    if (rc == QN_OK) rc = take(p, from->n, sizeof(void *), (void **)&to->items);
    if (rc == QN_OK) {
        to->n = from->n;
        if (from->n > 0) memcpy(to->items, from->items, from->n * sizeof(void *));
    }
    ARRAY_FINI(from);
    return rc;
}

static int text_value(struct parser *p, const char *s, size_t n, struct value *out) {
    struct text *t;
    TRY(take(p, 1, sizeof *t, (void **)&t));
    *t = (struct text){s, n, text_chars(s, n)};
    *out = (struct value){.type = VALUE_TEXT, .text = t};
    return QN_OK;
}

static int intern(struct parser *p, const char *s, size_t n, const struct name **out) {
    struct name *name;
    for (size_t i = 0; i < p->names.n; i++) {
        *out = p->names.items[i];
        if ((*out)->n == n && memcmp((*out)->text, s, n) == 0) return QN_OK;
    }
    if (p->names.n >= 4 * JINJA_MAX_NAMES) return bad(p, QN_ELIMIT, "too many names");
    TRY(take(p, 1, sizeof *name, (void **)&name));
    TRY(text_value(p, s, n, &name->value));
    name->text = s;
    name->n = n;
    *out = name;
    return ARRAY_PUSH(p->d, &p->names, name);
}

static int expect_name(struct parser *p, const struct name **out) {
    if (p->t->type != TOKEN_NAME) return unexpected(p, "a name");
    TRY(intern(p, p->t->p, p->t->n, out));
    advance(p);
    return QN_OK;
}

static int unary_node(struct parser *p, enum node_kind kind, enum node_op op, uint32_t line,
                      struct node *a, struct node **out) {
    TRY(new_node(p, kind, line, out));
    (*out)->op = (uint8_t)op;
    (*out)->a = a;
    return made(p, *out);
}

static int binary_node(struct parser *p, enum node_op op, uint32_t line, struct node *a,
                       struct node *b, struct node **out) {
    struct node *n;
    TRY(new_node(p, NODE_BINARY, line, &n));
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    *out = n;
    return made(p, n);
}

/* Literals and names. */

static int parse_number(struct parser *p, struct value *v) {
    struct text t = {p->t->p, p->t->n, p->t->n};
    bool big = false, real = p->t->type == TOKEN_FLOAT;
    *v = (struct value){.type = real ? VALUE_FLOAT : VALUE_INT};
    bool ok = real ? text_to_float(&t, &v->number) : text_to_int(&t, 0, &v->integer, &big);
    if (!ok) return bad(p, QN_EFORMAT, "a malformed number");
    if (big) return bad(p, QN_EUNSUPPORTED, "an integer beyond 64 bits is not supported");
    advance(p);
    return QN_OK;
}

static int parse_string(struct parser *p, struct value *v) {
    size_t n = 0;
    char *text;
    for (const struct token *t = p->t; t->type == TOKEN_STRING; t++) n += t->n;
    TRY(take(p, n + 1, 1, (void **)&text));
    for (n = 0; p->t->type == TOKEN_STRING; advance(p)) {
        memcpy(text + n, p->t->p, p->t->n);
        n += p->t->n;
    }
    return text_value(p, text, n, v);
}

static bool constant_word(const struct token *t, struct value *v) {
    if (is_word(t, "true") || is_word(t, "True")) return *v = value_bool(true), true;
    if (is_word(t, "false") || is_word(t, "False")) return *v = value_bool(false), true;
    if (is_word(t, "none") || is_word(t, "None")) return *v = value_none(), true;
    return false;
}

static bool ends_tuple(const struct parser *p, const char *word) {
    return p->t->type == TOKEN_VARIABLE_END || p->t->type == TOKEN_BLOCK_END || is_op(p->t, ")") ||
           (word != NULL && is_word(p->t, word));
}

typedef int parse_fn(struct parser *p, struct node **out);

/* Expressions with commas: a tuple; one without: itself. `word` ends it too. */
static int parse_tuple(struct parser *p, parse_fn *each, const char *word, bool may_be_empty,
                       struct node **out) {
    nodes items = {0};
    bool tuple = false;
    uint32_t line = p->t->line;
    int rc = QN_OK;
    while (rc == QN_OK) {
        struct node *n;
        if (items.n > 0 && (rc = expect_op(p, ",")) != QN_OK) break;
        if (ends_tuple(p, word)) break;
        rc = each(p, &n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
        if (rc != QN_OK || !is_op(p->t, ",")) break;
        tuple = true;
    }
    if (rc == QN_OK && !tuple && items.n == 1) {
        *out = items.items[0];
        ARRAY_FINI(&items);
        return QN_OK;
    }
    if (rc == QN_OK && !tuple && !may_be_empty) rc = unexpected(p, "an expression");
    if (rc == QN_OK) rc = new_node(p, NODE_TUPLE, line, out);
    if (rc != QN_OK) {
        ARRAY_FINI(&items);
        return rc;
    }
    TRY(keep(p, rc, &items, &(*out)->list));
    return made(p, *out);
}

/* [a, b] and {k: v}; the opening bracket is the next token. */
static int parse_display(struct parser *p, bool dict, struct node **out) {
    const char *close = dict ? "}" : "]";
    nodes items = {0};
    struct node *n;
    int rc = new_node(p, dict ? NODE_DICT : NODE_LIST, p->t->line, out);
    advance(p);
    while (rc == QN_OK && !is_op(p->t, close)) {
        if (items.n > 0) rc = expect_op(p, ",");
        if (rc != QN_OK || is_op(p->t, close)) break;
        rc = parse_expression(p, &n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
        if (rc != QN_OK || !dict) continue;
        rc = expect_op(p, ":");
        if (rc == QN_OK) rc = parse_expression(p, &n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
    }
    if (rc == QN_OK) rc = expect_op(p, close);
    if (rc != QN_OK) {
        ARRAY_FINI(&items);
        return rc;
    }
    TRY(keep(p, rc, &items, &(*out)->list));
    return made(p, *out);
}

static int parse_name(struct parser *p, struct node **out) {
    TRY(new_node(p, NODE_NAME, p->t->line, out));
    TRY(expect_name(p, &(*out)->name));
    return made(p, *out);
}

static int parse_primary_in(struct parser *p, struct node **out) {
    const struct token *t = p->t;
    struct value v;
    if (is_op(t, "(")) {
        advance(p);
        TRY(parse_tuple(p, parse_expression, NULL, true, out));
        return expect_op(p, ")");
    }
    if (is_op(t, "[")) return parse_display(p, false, out);
    if (is_op(t, "{")) return parse_display(p, true, out);
    if (constant_word(t, &v))
        advance(p);
    else if (t->type == TOKEN_NAME)
        return parse_name(p, out);
    else if (t->type == TOKEN_STRING)
        TRY(parse_string(p, &v));
    else if (t->type == TOKEN_INT || t->type == TOKEN_FLOAT)
        TRY(parse_number(p, &v));
    else
        return unexpected(p, "an expression");
    TRY(new_node(p, NODE_CONST, t->line, out));
    (*out)->value = v;
    return made(p, *out);
}

static int parse_primary(struct parser *p, struct node **out) {
    TRY(enter(p));
    TRY(parse_primary_in(p, out));
    p->nested--;
    return QN_OK;
}

/* Behind an expression: .name [index] (arguments) |filter, is test. */

static int parse_argument(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    const struct name *name = NULL;
    enum node_kind kind = NODE_KEYWORD;
    int star = accept_op(p, "*") ? 1 : accept_op(p, "**") ? 2 : 0;
    struct node *value;
    if (star == 0 && p->t->type == TOKEN_NAME && is_op(p->t + 1, "=")) {
        TRY(expect_name(p, &name));
        advance(p);
    } else if (star == 0) {
        return parse_expression(p, out);
    }
    TRY(parse_expression(p, &value));
    if (star != 0) kind = NODE_STAR;
    TRY(unary_node(p, kind, (enum node_op)star, line, value, out));
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

static bool has_keyword(const nodes *items, const struct name *name) {
    for (size_t i = 0; i < items->n; i++) {
        const struct node *n = items->items[i];
        if (n->kind == NODE_KEYWORD && n->name == name) return true;
    }
    return false;
}

static int parse_arguments(struct parser *p, struct node_list *list) {
    nodes items = {0};
    int before = 0;
    int rc = expect_op(p, "(");
    while (rc == QN_OK && !is_op(p->t, ")")) {
        struct node *n;
        if (items.n > 0) rc = expect_op(p, ",");
        if (rc != QN_OK || is_op(p->t, ")")) break;
        rc = parse_argument(p, &n);
        if (rc == QN_OK && !in_order(n, &before)) rc = bad(p, QN_EFORMAT, "arguments out of order");
        if (rc == QN_OK && n->kind == NODE_KEYWORD && has_keyword(&items, n->name))
            rc = bad(p, QN_EFORMAT, "an argument is there twice");
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
    }
    if (rc == QN_OK) rc = expect_op(p, ")");
    return keep(p, rc, &items, list);
}

static int parse_call(struct parser *p, struct node **node) {
    struct node *n;
    TRY(new_node(p, NODE_CALL, p->t->line, &n));
    n->a = *node;
    TRY(parse_arguments(p, &n->list));
    *node = n;
    return made(p, n);
}

/* Inside of [ ], once. */
static int parse_index(struct parser *p, struct node *n) {
    struct node *parts[3] = {0};
    size_t i = 0;
    bool slice = false;
    while (i < 3) {
        if (!is_op(p->t, ":") && !is_op(p->t, "]") && !is_op(p->t, ","))
            TRY(parse_expression(p, &parts[i]));
        else if (i == 0 && !is_op(p->t, ":"))
            return unexpected(p, "an index");
        if (i == 2 || !accept_op(p, ":")) break;
        slice = true;
        i++;
    }
    n->b = parts[0];
    if (!slice) return QN_OK;
    n->kind = NODE_SLICE;
    n->c = parts[1];
    if (parts[2] == NULL) return QN_OK;
    n->list.n = 1;
    TRY(take(p, 1, sizeof(void *), (void **)&n->list.items));
    n->list.items[0] = parts[2];
    return QN_OK;
}

static int parse_subscript(struct parser *p, struct node **node) {
    struct node *n;
    TRY(new_node(p, NODE_ITEM, p->t->line, &n));
    n->a = *node;
    *node = n;
    if (accept_op(p, "[")) {
        TRY(parse_index(p, n));
        if (is_op(p->t, ",")) return unsupported(p, p->t, "an index with");
        TRY(expect_op(p, "]"));
        return made(p, n);
    }
    advance(p);
    if (p->t->type == TOKEN_INT) {
        TRY(new_node(p, NODE_CONST, p->t->line, &n->b));
        TRY(parse_number(p, &n->b->value));
        TRY(made(p, n->b));
        return made(p, n);
    }
    n->kind = NODE_ATTRIBUTE;
    TRY(expect_name(p, &n->name));
    return made(p, n);
}

static int parse_postfix(struct parser *p, struct node **node) {
    for (;;) {
        if (is_op(p->t, ".") || is_op(p->t, "["))
            TRY(parse_subscript(p, node));
        else if (is_op(p->t, "("))
            TRY(parse_call(p, node));
        else
            return QN_OK;
    }
}

/* The name of a filter or test; one with dots is unknown to everybody. */
static int parse_dotted(struct parser *p, const struct name **name) {
    TRY(expect_name(p, name));
    return is_op(p->t, ".") ? unsupported(p, p->t, "a name with") : QN_OK;
}

static int parse_filter(struct parser *p, struct node *input, struct node **out) {
    struct node *n;
    TRY(new_node(p, NODE_FILTER, p->t->line, &n));
    TRY(parse_dotted(p, &n->name));
    n->a = input;
    if (is_op(p->t, "(")) TRY(parse_arguments(p, &n->list));
    *out = n;
    return made(p, n);
}

static int parse_filters(struct parser *p, struct node **node) {
    while (accept_op(p, "|")) TRY(parse_filter(p, *node, node));
    return QN_OK;
}

/* Whether a test's argument without parentheses follows. */
static bool starts_argument(const struct token *t) {
    if (is_word(t, "else") || is_word(t, "or") || is_word(t, "and")) return false;
    return (t->type >= TOKEN_NAME && t->type <= TOKEN_FLOAT) || is_op(t, "[") || is_op(t, "{");
}

static int parse_test(struct parser *p, struct node **node) {
    uint32_t line = p->t->line;
    struct node *n;
    advance(p);
    bool negated = accept_word(p, "not");
    TRY(new_node(p, NODE_TEST, line, &n));
    TRY(parse_dotted(p, &n->name));
    n->a = *node;
    if (is_op(p->t, "(")) {
        TRY(parse_arguments(p, &n->list));
    } else if (starts_argument(p->t)) {
        if (is_word(p->t, "is")) return bad(p, QN_EFORMAT, "'is' behind a test");
        TRY(take(p, 1, sizeof(void *), (void **)&n->list.items));
        TRY(parse_primary(p, &n->list.items[0]));
        TRY(parse_postfix(p, &n->list.items[0]));
        n->list.n = 1;
    }
    TRY(made(p, n));
    *node = n;
    return negated ? unary_node(p, NODE_UNARY, OP_NOT, line, n, node) : QN_OK;
}

static int parse_filter_expression(struct parser *p, struct node **node) {
    for (;;) {
        if (is_op(p->t, "|"))
            TRY(parse_filters(p, node));
        else if (is_word(p->t, "is"))
            TRY(parse_test(p, node));
        else if (is_op(p->t, "("))
            TRY(parse_call(p, node));
        else
            return QN_OK;
    }
}

/* Operators, from the tightest to the loosest. */

static int parse_unary_in(struct parser *p, bool filters, struct node **out) {
    uint32_t line = p->t->line;
    enum node_op op = is_op(p->t, "-") ? OP_NEGATE : is_op(p->t, "+") ? OP_PLUS : OP_NONE;
    if (op != OP_NONE) {
        struct node *operand;
        advance(p);
        TRY(parse_unary(p, false, &operand));
        TRY(unary_node(p, NODE_UNARY, op, line, operand, out));
    } else {
        TRY(parse_primary(p, out));
    }
    TRY(parse_postfix(p, out));
    return filters ? parse_filter_expression(p, out) : QN_OK;
}

static int parse_unary(struct parser *p, bool filters, struct node **out) {
    TRY(enter(p));
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
        if (is_op(t, rows[i].text)) return rows[i].op;
    return OP_NONE;
}

static int parse_power(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct node *right;
    TRY(parse_unary(p, true, out));
    while (accept_op(p, "**")) {
        TRY(parse_unary(p, true, &right));
        TRY(binary_node(p, OP_POWER, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

static int parse_product(struct parser *p, struct node **out) {
    static const struct operator_row rows[] = {
        {"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}};
    uint32_t line = p->t->line;
    enum node_op op;
    struct node *right;
    TRY(parse_power(p, out));
    while ((op = operator_at(p->t, rows, COUNT_OF(rows))) != OP_NONE) {
        advance(p);
        TRY(parse_power(p, &right));
        TRY(binary_node(p, op, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

static int parse_concat(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    nodes items = {0};
    int rc = parse_product(p, out);
    if (rc != QN_OK || !is_op(p->t, "~")) return rc;
    rc = ARRAY_PUSH(p->d, &items, *out);
    while (rc == QN_OK && accept_op(p, "~")) {
        rc = parse_product(p, out);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, *out);
    }
    if (rc == QN_OK) rc = new_node(p, NODE_CONCAT, line, out);
    if (rc != QN_OK) {
        ARRAY_FINI(&items);
        return rc;
    }
    TRY(keep(p, rc, &items, &(*out)->list));
    return made(p, *out);
}

static int parse_sum(struct parser *p, struct node **out) {
    static const struct operator_row rows[] = {{"+", OP_ADD}, {"-", OP_SUBTRACT}};
    uint32_t line = p->t->line;
    enum node_op op;
    struct node *right;
    TRY(parse_concat(p, out));
    while ((op = operator_at(p->t, rows, COUNT_OF(rows))) != OP_NONE) {
        advance(p);
        TRY(parse_concat(p, &right));
        TRY(binary_node(p, op, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

static enum node_op accept_comparison(struct parser *p) {
    static const struct operator_row rows[] = {{"==", OP_EQUAL},  {"!=", OP_UNEQUAL},
                                               {"<", OP_LESS},    {"<=", OP_LESS_EQUAL},
                                               {">", OP_GREATER}, {">=", OP_GREATER_EQUAL}};
    enum node_op op = operator_at(p->t, rows, COUNT_OF(rows));
    if (op != OP_NONE) return advance(p), op;
    if (accept_word(p, "in")) return OP_IN;
    if (!is_word(p->t, "not") || !is_word(p->t + 1, "in")) return OP_NONE;
    advance(p);
    advance(p);
    return OP_NOT_IN;
}

static int parse_compare(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct node *first, *right;
    nodes others = {0};
    TRY(parse_sum(p, &first));
    *out = first;
    int rc = QN_OK;
    for (enum node_op op; rc == QN_OK && (op = accept_comparison(p)) != OP_NONE;) {
        rc = parse_sum(p, &right);
        if (rc == QN_OK) rc = unary_node(p, NODE_KEYWORD, op, line, right, &right);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &others, right);
    }
    if (rc != QN_OK || others.n == 0) {
        ARRAY_FINI(&others);
        return rc;
    }
    struct node_list list;
    TRY(keep(p, rc, &others, &list));
    TRY(new_node(p, NODE_COMPARE, line, out));
    (*out)->a = first;
    (*out)->list = list;
    return made(p, *out);
}

static int parse_not(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    if (!accept_word(p, "not")) return parse_compare(p, out);
    struct node *operand;
    TRY(enter(p));
    TRY(parse_not(p, &operand));
    p->nested--;
    return unary_node(p, NODE_UNARY, OP_NOT, line, operand, out);
}

static int parse_and(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct node *right;
    TRY(parse_not(p, out));
    while (accept_word(p, "and")) {
        TRY(parse_not(p, &right));
        TRY(binary_node(p, OP_AND, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

static int parse_or(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    struct node *right;
    TRY(parse_and(p, out));
    while (accept_word(p, "or")) {
        TRY(parse_and(p, &right));
        TRY(binary_node(p, OP_OR, line, *out, right, out));
        line = p->t->line;
    }
    return QN_OK;
}

static int parse_expression_in(struct parser *p, struct node **out) {
    uint32_t line = p->t->line;
    TRY(parse_or(p, out));
    while (accept_word(p, "if")) {
        struct node *n;
        TRY(new_node(p, NODE_IF_ELSE, line, &n));
        n->a = *out;
        TRY(parse_or(p, &n->b));
        if (accept_word(p, "else")) TRY(parse_expression(p, &n->c));
        TRY(made(p, n));
        *out = n;
        line = p->t->line;
    }
    return QN_OK;
}

static int parse_expression(struct parser *p, struct node **out) {
    TRY(enter(p));
    TRY(parse_expression_in(p, out));
    p->nested--;
    return QN_OK;
}

/* Statements. */

static int cannot_assign(const struct parser *p, const struct node *n) {
    return fail(p->d, QN_EFORMAT, "%s: line %u: this cannot be assigned to", p->j->where, n->line);
}

static int mark_target(const struct parser *p, struct node *n, uint8_t use) {
    if (n->kind == NODE_NAME)
        n->op = use;
    else if (n->kind == NODE_TUPLE)
        for (size_t i = 0; i < n->list.n; i++) TRY(mark_target(p, n->list.items[i], use));
    else if (n->kind != NODE_NSREF)
        return cannot_assign(p, n);
    return QN_OK;
}

static int parse_target_item(struct parser *p, struct node **out) {
    struct value v;
    if (p->t->type != TOKEN_NAME || constant_word(p->t, &v) || !is_op(p->t + 1, "."))
        return parse_primary(p, out);
    TRY(parse_name(p, out));
    advance(p);
    (*out)->kind = NODE_NSREF;
    return expect_name(p, &(*out)->attribute);
}

static int parse_target(struct parser *p, bool namespaces, const char *word, uint8_t use,
                        struct node **out) {
    TRY(parse_tuple(p, namespaces ? parse_target_item : parse_primary, word, false, out));
    return mark_target(p, *out, use);
}

static const char *const end_set[] = {"endset", NULL};
static const char *const end_for[] = {"endfor", "else", NULL};
static const char *const end_else[] = {"endfor", NULL};
static const char *const end_if[] = {"elif", "else", "endif", NULL};
static const char *const end_last[] = {"endif", NULL};
static const char *const end_macro[] = {"endmacro", NULL};
static const char *const end_call[] = {"endcall", NULL};
static const char *const end_filter[] = {"endfilter", NULL};
static const char *const end_with[] = {"endwith", NULL};
static const char *const end_generation[] = {"endgeneration", NULL};

static int parse_set(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_SET;
    TRY(parse_target(p, true, NULL, NAME_STORE, &n->a));
    if (accept_op(p, "=")) return parse_tuple(p, parse_expression, NULL, false, &n->b);
    n->kind = NODE_SET_BLOCK;
    TRY(parse_filters(p, &n->b));
    return parse_statements(p, end_set, &n->list, &end);
}

static int parse_for(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_FOR;
    TRY(parse_target(p, false, "in", NAME_STORE, &n->a));
    if (!accept_word(p, "in")) return unexpected(p, "'in'");
    TRY(parse_tuple(p, parse_or, "recursive", false, &n->b));
    if (accept_word(p, "if")) TRY(parse_expression(p, &n->c));
    if (is_word(p->t, "recursive")) return unsupported(p, p->t, "a loop that is");
    TRY(parse_statements(p, end_for, &n->list, &end));
    return is_word(end, "else") ? parse_statements(p, end_else, &n->more, &end) : QN_OK;
}

/* An elif is an IF that is alone in the else of the one before. They are few: the tree is as deep
 * as there are, so they are linked backwards only once all are read. */
static int parse_if(struct parser *p, struct node *n) {
    const struct token *end;
    nodes chain = {0};
    int rc = ARRAY_PUSH(p->d, &chain, n);
    n->kind = NODE_IF;
    while (rc == QN_OK) {
        struct node *last = chain.items[chain.n - 1], *next;
        rc = parse_tuple(p, parse_or, NULL, false, &last->a);
        if (rc == QN_OK) rc = parse_statements(p, end_if, &last->list, &end);
        if (rc != QN_OK || is_word(end, "endif")) break;
        if (is_word(end, "else")) {
            rc = parse_statements(p, end_last, &last->more, &end);
            break;
        }
        rc = new_node(p, NODE_IF, end->line, &next);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &chain, next);
    }
    for (size_t i = chain.n; rc == QN_OK && i-- > 1;) {
        struct node *before = chain.items[i - 1];
        rc = made(p, chain.items[i]);
        if (rc == QN_OK) rc = take(p, 1, sizeof(void *), (void **)&before->more.items);
        if (rc != QN_OK) break;
        before->more.n = 1;
        before->more.items[0] = chain.items[i];
    }
    ARRAY_FINI(&chain);
    return rc;
}

static int parse_parameters(struct parser *p, struct node_list *list) {
    nodes items = {0};
    bool defaults = false;
    int rc = expect_op(p, "(");
    while (rc == QN_OK && !is_op(p->t, ")")) {
        struct node *n = NULL, *name = NULL;
        if (items.n > 0) rc = expect_op(p, ",");
        if (rc == QN_OK) rc = new_node(p, NODE_KEYWORD, p->t->line, &n);
        if (rc == QN_OK) rc = parse_primary(p, &name);
        if (rc == QN_OK && name->kind != NODE_NAME) rc = cannot_assign(p, name);
        if (rc != QN_OK) break;
        n->name = name->name;
        if (accept_op(p, "=")) {
            defaults = true;
            rc = parse_expression(p, &n->a);
        } else if (defaults) {
            rc = bad(p, QN_EFORMAT, "a parameter without a default behind one with");
        }
        if (rc == QN_OK) rc = made(p, n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
    }
    if (rc == QN_OK) rc = expect_op(p, ")");
    return keep(p, rc, &items, list);
}

static int parse_macro(struct parser *p, struct node *n) {
    const struct token *end;
    struct value v;
    n->kind = NODE_MACRO;
    if (constant_word(p->t, &v)) return unexpected(p, "a macro's name");
    TRY(expect_name(p, &n->name));
    TRY(parse_parameters(p, &n->more));
    return parse_statements(p, end_macro, &n->list, &end);
}

static int parse_call_block(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_CALL_BLOCK;
    if (is_op(p->t, "(")) TRY(parse_parameters(p, &n->more));
    TRY(parse_expression(p, &n->a));
    if (n->a->kind != NODE_CALL) return bad(p, QN_EFORMAT, "want a call");
    return parse_statements(p, end_call, &n->list, &end);
}

static int parse_generation(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_CALL_BLOCK;
    return parse_statements(p, end_generation, &n->list, &end);
}

static int parse_filter_block(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_FILTER_BLOCK;
    TRY(parse_filter(p, NULL, &n->a));
    TRY(parse_filters(p, &n->a));
    return parse_statements(p, end_filter, &n->list, &end);
}

static int parse_with(struct parser *p, struct node *n) {
    const struct token *end;
    nodes pairs = {0};
    int rc = QN_OK;
    n->kind = NODE_WITH;
    while (rc == QN_OK && p->t->type != TOKEN_BLOCK_END) {
        struct node *target = NULL, *value = NULL;
        if (pairs.n > 0) rc = expect_op(p, ",");
        if (rc == QN_OK) rc = parse_target(p, false, NULL, NAME_PARAM, &target);
        if (rc == QN_OK) rc = expect_op(p, "=");
        if (rc == QN_OK) rc = parse_expression(p, &value);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &pairs, target);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &pairs, value);
    }
    TRY(keep(p, rc, &pairs, &n->more));
    return parse_statements(p, end_with, &n->list, &end);
}

static int parse_print(struct parser *p, struct node *n) {
    nodes items = {0};
    int rc = QN_OK;
    n->kind = NODE_OUTPUT;
    while (rc == QN_OK && p->t->type != TOKEN_BLOCK_END) {
        struct node *item;
        if (items.n > 0) rc = expect_op(p, ",");
        if (rc == QN_OK) rc = parse_expression(p, &item);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, item);
    }
    return keep(p, rc, &items, &n->list);
}

static int parse_break(struct parser *p, struct node *n) {
    (void)p;
    n->kind = NODE_BREAK;
    return QN_OK;
}

static int parse_continue(struct parser *p, struct node *n) {
    (void)p;
    n->kind = NODE_CONTINUE;
    return QN_OK;
}

static const struct {
    const char *word;
    int (*parse)(struct parser *p, struct node *n);
} statements[] = {
    {"set", parse_set},
    {"for", parse_for},
    {"if", parse_if},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"print", parse_print},
    {"break", parse_break},
    {"continue", parse_continue},
    {"generation", parse_generation},
};
static const char *const refused[] = {"block", "extends", "include",    "import",
                                      "from",  "do",      "autoescape", "trans"};

static int parse_statement(struct parser *p, struct node **out) {
    const struct token *tag = p->t;
    TRY(new_node(p, NODE_DATA, tag->line, out));
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        if (!is_word(tag, statements[i].word)) continue;
        advance(p);
        TRY(statements[i].parse(p, *out));
        TRY(expect(p, TOKEN_BLOCK_END, "%}"));
        return made(p, *out);
    }
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (is_word(tag, refused[i])) return unsupported(p, tag, "the statement");
    return unexpected(p, "a statement");
}

static bool is_end(const struct token *t, const char *const *ends) {
    for (; ends != NULL && *ends != NULL; ends++)
        if (is_word(t, *ends)) return true;
    return false;
}

/* Appends the next part of a body; *end where one of `ends` comes instead. */
static int parse_part(struct parser *p, const char *const *ends, nodes *body, bool *end) {
    struct node *n, *item;
    if (p->t->type == TOKEN_DATA) {
        TRY(new_node(p, NODE_DATA, p->t->line, &n));
        TRY(text_value(p, p->t->p, p->t->n, &n->value));
        advance(p);
    } else if (p->t->type == TOKEN_VARIABLE_BEGIN) {
        TRY(new_node(p, NODE_OUTPUT, p->t->line, &n));
        advance(p);
        TRY(parse_tuple(p, parse_expression, NULL, false, &item));
        TRY(take(p, 1, sizeof(void *), (void **)&n->list.items));
        n->list.items[0] = item;
        n->list.n = 1;
        TRY(expect(p, TOKEN_VARIABLE_END, "}}"));
    } else {
        advance(p);
        *end = is_end(p->t, ends);
        if (*end) return QN_OK;
        TRY(parse_statement(p, &n));
    }
    TRY(made(p, n));
    return ARRAY_PUSH(p->d, body, n);
}

static int parse_body(struct parser *p, const char *const *ends, struct node_list *body) {
    nodes parts = {0};
    bool end = false;
    int rc = enter(p);
    while (rc == QN_OK && p->t->type != TOKEN_END && !end) rc = parse_part(p, ends, &parts, &end);
    if (rc == QN_OK && ends != NULL && !end)
        rc = fail(p->d, QN_EFORMAT, "%s: line %u: want {%% %s %%}, have the end of the template",
                  p->j->where, p->t->line, ends[0]);
    p->nested--;
    return keep(p, rc, &parts, body);
}

/* The body of a block, from the end of its tag to behind the word that ends it, which is *end. */
static int parse_statements(struct parser *p, const char *const *ends, struct node_list *body,
                            const struct token **end) {
    accept_op(p, ":");
    TRY(expect(p, TOKEN_BLOCK_END, "%}"));
    TRY(parse_body(p, ends, body));
    *end = p->t;
    advance(p);
    return QN_OK;
}

int parse(struct diag *d, struct jinja *j, const char *program, size_t n) {
    struct lex l = {.d = d, .where = j->where, .arena = &j->arena};
    struct parser p = {.d = d, .j = j};
    int rc = lex_all(&l, program, n);
    p.t = l.tokens.items;
    if (rc == QN_OK) rc = intern(&p, "loop", 4, &j->loop);
    if (rc == QN_OK) rc = intern(&p, "caller", 6, &j->caller);
    if (rc == QN_OK) rc = intern(&p, "kwargs", 6, &j->named);
    if (rc == QN_OK) rc = intern(&p, "varargs", 7, &j->more);
    if (rc == QN_OK) rc = parse_body(&p, NULL, &j->body);
    ARRAY_FINI(&p.names);
    ARRAY_FINI(&l.tokens);
    return rc;
}
