/* parse.c - a template and its statements: tokens to a tree, by recursive descent. */
#include "model/jinja/parser.h"

#include "base/checked.h"

#include <string.h>

static int parse_statements(struct parser *p, const char *const *ends, struct node_list *body,
                            const struct token **end);

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
    if (p->t->type != TOKEN_NAME || parse_constant(p->t, &v) || !parser_is_op(p->t + 1, "."))
        return parse_primary(p, out);
    TRY(parse_name(p, out));
    parser_advance(p);
    (*out)->kind = NODE_NSREF;
    return parser_expect_name(p, &(*out)->attribute);
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
    if (parser_accept_op(p, "=")) return parse_tuple(p, parse_expression, NULL, false, &n->b);
    n->kind = NODE_SET_BLOCK;
    TRY(parse_filters(p, &n->b));
    return parse_statements(p, end_set, &n->list, &end);
}

static int parse_for(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_FOR;
    TRY(parse_target(p, false, "in", NAME_STORE, &n->a));
    if (!parser_accept_word(p, "in")) return parser_unexpected(p, "'in'");
    TRY(parse_tuple(p, parse_or, "recursive", false, &n->b));
    if (parser_accept_word(p, "if")) TRY(parse_expression(p, &n->c));
    if (parser_is_word(p->t, "recursive")) return parser_unsupported(p, p->t, "a loop that is");
    TRY(parse_statements(p, end_for, &n->list, &end));
    return parser_is_word(end, "else") ? parse_statements(p, end_else, &n->more, &end) : QN_OK;
}

/* An elif is an IF that is alone in the else of the one before. They are few: the tree is as deep
 * as there are, so they are linked backwards only once all are read. */
static int parse_if(struct parser *p, struct node *n) {
    const struct token *end;
    struct parser_nodes chain = {0};
    int rc = ARRAY_PUSH(p->d, &chain, n);
    n->kind = NODE_IF;
    while (rc == QN_OK) {
        struct node *last = chain.items[chain.n - 1], *next;
        rc = parse_tuple(p, parse_or, NULL, false, &last->a);
        if (rc == QN_OK) rc = parse_statements(p, end_if, &last->list, &end);
        if (rc != QN_OK || parser_is_word(end, "endif")) break;
        if (parser_is_word(end, "else")) {
            rc = parse_statements(p, end_last, &last->more, &end);
            break;
        }
        rc = parser_node(p, NODE_IF, end->line, &next);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &chain, next);
    }
    for (size_t i = chain.n; rc == QN_OK && i-- > 1;) {
        struct node *before = chain.items[i - 1];
        rc = parser_made(p, chain.items[i]);
        if (rc == QN_OK) rc = parser_take(p, 1, sizeof(void *), (void **)&before->more.items);
        if (rc != QN_OK) break;
        before->more.n = 1;
        before->more.items[0] = chain.items[i];
    }
    ARRAY_FINI(&chain);
    return rc;
}

static int parse_parameters(struct parser *p, struct node_list *list) {
    struct parser_nodes items = {0};
    bool defaults = false;
    int rc = parser_expect_op(p, "(");
    while (rc == QN_OK && !parser_is_op(p->t, ")")) {
        struct node *n = NULL, *name = NULL;
        if (items.n > 0) rc = parser_expect_op(p, ",");
        if (rc == QN_OK) rc = parser_node(p, NODE_KEYWORD, p->t->line, &n);
        if (rc == QN_OK) rc = parse_primary(p, &name);
        if (rc == QN_OK && name->kind != NODE_NAME) rc = cannot_assign(p, name);
        if (rc != QN_OK) break;
        n->name = name->name;
        if (parser_accept_op(p, "=")) {
            defaults = true;
            rc = parse_expression(p, &n->a);
        } else if (defaults) {
            rc = parser_bad(p, QN_EFORMAT, "a parameter without a default behind one with");
        }
        if (rc == QN_OK) rc = parser_made(p, n);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, n);
    }
    if (rc == QN_OK) rc = parser_expect_op(p, ")");
    return parser_keep(p, rc, &items, list);
}

static int parse_macro(struct parser *p, struct node *n) {
    const struct token *end;
    struct value v;
    n->kind = NODE_MACRO;
    if (parse_constant(p->t, &v)) return parser_unexpected(p, "a macro's name");
    TRY(parser_expect_name(p, &n->name));
    TRY(parse_parameters(p, &n->more));
    return parse_statements(p, end_macro, &n->list, &end);
}

static int parse_call_block(struct parser *p, struct node *n) {
    const struct token *end;
    n->kind = NODE_CALL_BLOCK;
    if (parser_is_op(p->t, "(")) TRY(parse_parameters(p, &n->more));
    TRY(parse_expression(p, &n->a));
    if (n->a->kind != NODE_CALL) return parser_bad(p, QN_EFORMAT, "want a call");
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
    struct parser_nodes pairs = {0};
    int rc = QN_OK;
    n->kind = NODE_WITH;
    while (rc == QN_OK && p->t->type != TOKEN_BLOCK_END) {
        struct node *target = NULL, *value = NULL;
        if (pairs.n > 0) rc = parser_expect_op(p, ",");
        if (rc == QN_OK) rc = parse_target(p, false, NULL, NAME_PARAM, &target);
        if (rc == QN_OK) rc = parser_expect_op(p, "=");
        if (rc == QN_OK) rc = parse_expression(p, &value);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &pairs, target);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &pairs, value);
    }
    TRY(parser_keep(p, rc, &pairs, &n->more));
    return parse_statements(p, end_with, &n->list, &end);
}

static int parse_print(struct parser *p, struct node *n) {
    struct parser_nodes items = {0};
    int rc = QN_OK;
    n->kind = NODE_OUTPUT;
    while (rc == QN_OK && p->t->type != TOKEN_BLOCK_END) {
        struct node *item = NULL;
        if (items.n > 0) rc = parser_expect_op(p, ",");
        if (rc == QN_OK) rc = parse_expression(p, &item);
        if (rc == QN_OK) rc = ARRAY_PUSH(p->d, &items, item);
    }
    return parser_keep(p, rc, &items, &n->list);
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
    TRY(parser_node(p, NODE_DATA, tag->line, out));
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        if (!parser_is_word(tag, statements[i].word)) continue;
        parser_advance(p);
        TRY(statements[i].parse(p, *out));
        TRY(parser_expect(p, TOKEN_BLOCK_END, "%}"));
        return parser_made(p, *out);
    }
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (parser_is_word(tag, refused[i])) return parser_unsupported(p, tag, "the statement");
    return parser_unexpected(p, "a statement");
}

static bool is_end(const struct token *t, const char *const *ends) {
    for (; ends != NULL && *ends != NULL; ends++)
        if (parser_is_word(t, *ends)) return true;
    return false;
}

/* Appends the next part of a body; *end where one of `ends` comes instead. */
static int parse_part(struct parser *p, const char *const *ends, struct parser_nodes *body,
                      bool *end) {
    struct node *n = NULL, *item = NULL;
    if (p->t->type == TOKEN_DATA) {
        TRY(parser_node(p, NODE_DATA, p->t->line, &n));
        TRY(parser_text_value(p, p->t->p, p->t->n, &n->value));
        parser_advance(p);
    } else if (p->t->type == TOKEN_VARIABLE_BEGIN) {
        TRY(parser_node(p, NODE_OUTPUT, p->t->line, &n));
        parser_advance(p);
        TRY(parse_tuple(p, parse_expression, NULL, false, &item));
        TRY(parser_take(p, 1, sizeof(void *), (void **)&n->list.items));
        n->list.items[0] = item;
        n->list.n = 1;
        TRY(parser_expect(p, TOKEN_VARIABLE_END, "}}"));
    } else {
        parser_advance(p);
        *end = is_end(p->t, ends);
        if (*end) return QN_OK;
        TRY(parse_statement(p, &n));
    }
    TRY(parser_made(p, n));
    return ARRAY_PUSH(p->d, body, n);
}

static int parse_body(struct parser *p, const char *const *ends, struct node_list *body) {
    struct parser_nodes parts = {0};
    bool end = false;
    int rc = parser_enter(p);
    while (rc == QN_OK && p->t->type != TOKEN_END && !end) rc = parse_part(p, ends, &parts, &end);
    if (rc == QN_OK && ends != NULL && !end)
        rc = fail(p->d, QN_EFORMAT, "%s: line %u: want {%% %s %%}, have the end of the template",
                  p->j->where, p->t->line, ends[0]);
    p->nested--;
    return parser_keep(p, rc, &parts, body);
}

/* The body of a block, from the end of its tag to behind the word that ends it, which is *end. */
static int parse_statements(struct parser *p, const char *const *ends, struct node_list *body,
                            const struct token **end) {
    parser_accept_op(p, ":");
    TRY(parser_expect(p, TOKEN_BLOCK_END, "%}"));
    TRY(parse_body(p, ends, body));
    *end = p->t;
    parser_advance(p);
    return QN_OK;
}

int parse(struct diag *d, struct jinja *j, const char *program, size_t n) {
    struct lex l = {.d = d, .where = j->where, .arena = &j->arena};
    struct parser p = {.d = d, .j = j};
    int rc = lex_all(&l, program, n);
    p.t = l.tokens.items;
    if (rc == QN_OK) rc = parser_intern(&p, "loop", 4, &j->loop);
    if (rc == QN_OK) rc = parser_intern(&p, "caller", 6, &j->caller);
    if (rc == QN_OK) rc = parser_intern(&p, "kwargs", 6, &j->named);
    if (rc == QN_OK) rc = parser_intern(&p, "varargs", 7, &j->more);
    if (rc == QN_OK) rc = parse_body(&p, NULL, &j->body);
    ARRAY_FINI(&p.names);
    ARRAY_FINI(&l.tokens);
    return rc;
}
