/* op_text.c - see op_text.h. A recursive-descent parser over tokens read one at a time. */
#include "block/op_text.h"
#include "base/checked.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum token_kind { T_END, T_LINE, T_NAME, T_NUMBER, T_MARK };

struct token {
    enum token_kind kind;
    const char *at; /* of the text */
    size_t n;
    uint32_t line, column;
};

struct definition {
    char name[EXPR_NAME];
    int32_t node;
};

struct parser {
    struct diag *d;
    const char *file, *text;
    size_t n, at;
    uint32_t line, column;
    int brackets; /* open ones; no line ends inside brackets */
    int depth;
    struct token token; /* the next one */
    struct expr *x;
    struct definition defined[EXPR_MAX_NODES];
    uint32_t n_defined;
};

/* ---- errors ---- */

static int fail_at(const struct parser *p, const struct token *t, int code, const char *what) {
    char have[48];
    if (t->kind == T_END)
        snprintf(have, sizeof have, "the end of the text");
    else if (t->kind == T_LINE)
        snprintf(have, sizeof have, "the end of the line");
    else
        snprintf(have, sizeof have, "'%.*s'", (int)MIN(t->n, (size_t)40), t->at);
    return fail(p->d, code, "%s:%u:%u: %s, have %s", p->file, t->line, t->column, what, have);
}

/* Reports an error at token t without quoting the token. */
__attribute__((format(printf, 4, 5))) static int
refuse(const struct parser *p, const struct token *t, int code, const char *fmt, ...) {
    char what[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return fail(p->d, code, "%s:%u:%u: %s", p->file, t->line, t->column, what);
}

static int want(const struct parser *p, const char *what) {
    char text[100];
    snprintf(text, sizeof text, "want %s", what);
    return fail_at(p, &p->token, QN_EFORMAT, text);
}

/* ---- tokens ---- */

static bool starts_name(char c) {
    return isalpha((unsigned char)c) || c == '_';
}

static char peek(const struct parser *p, size_t ahead) {
    return p->at + ahead < p->n ? p->text[p->at + ahead] : '\0';
}

static void skip_blanks(struct parser *p) {
    for (; p->at < p->n; p->at++) {
        const char c = p->text[p->at];
        if (c == '#') {
            while (p->at + 1 < p->n && p->text[p->at + 1] != '\n') p->at++, p->column++;
        } else if (c == '\n' && p->brackets > 0) {
            p->line++;
            p->column = 0;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
        p->column++;
    }
}

static size_t name_length(const struct parser *p) {
    size_t n = 0;
    for (;; n++) {
        const char c = peek(p, n);
        const bool part = c == '.' && starts_name(peek(p, n + 1));
        if (!starts_name(c) && !isdigit((unsigned char)c) && !part) return n;
    }
}

static size_t number_length(const struct parser *p) {
    size_t n = 0;
    while (isdigit((unsigned char)peek(p, n))) n++;
    if (peek(p, n) == '.')
        for (n++; isdigit((unsigned char)peek(p, n));) n++;
    const char sign = peek(p, n + 1);
    const size_t digits = n + 1 + (sign == '-' || sign == '+');
    if ((peek(p, n) == 'e' || peek(p, n) == 'E') && isdigit((unsigned char)peek(p, digits)))
        for (n = digits; isdigit((unsigned char)peek(p, n));) n++;
    return n;
}

/* Reads the next token into p->token. */
static void next(struct parser *p) {
    skip_blanks(p);
    struct token t = {.at = p->text + p->at, .n = 1, .line = p->line, .column = p->column};
    const char c = peek(p, 0);
    if (p->at == p->n) {
        t.kind = T_END;
        t.n = 0;
    } else if (c == '\n') {
        t.kind = T_LINE;
        p->line++;
        p->column = 0;
    } else if (starts_name(c)) {
        t.kind = T_NAME;
        t.n = name_length(p);
    } else if (isdigit((unsigned char)c)) {
        t.kind = T_NUMBER;
        t.n = number_length(p);
    } else {
        t.kind = T_MARK;
        if (c == '-' && peek(p, 1) == '>') t.n = 2;
    }
    p->at += t.n;
    p->column += (uint32_t)t.n;
    p->token = t;
}

static bool is_mark(const struct parser *p, const char *mark) {
    return p->token.kind == T_MARK && p->token.n == strlen(mark) &&
           memcmp(p->token.at, mark, p->token.n) == 0;
}

static bool is_word(const struct token *t, const char *word) {
    return t->kind == T_NAME && t->n == strlen(word) && memcmp(t->at, word, t->n) == 0;
}

static bool take_mark(struct parser *p, const char *mark) {
    if (!is_mark(p, mark)) return false;
    p->brackets += mark[0] == '(' || mark[0] == '[';
    p->brackets -= mark[0] == ')' || mark[0] == ']';
    next(p);
    return true;
}

static int need_mark(struct parser *p, const char *mark) {
    char what[8];
    if (take_mark(p, mark)) return QN_OK;
    snprintf(what, sizeof what, "'%s'", mark);
    return want(p, what);
}

static void skip_lines(struct parser *p) {
    while (p->token.kind == T_LINE) next(p);
}

static int copy_name(const struct parser *p, const struct token *t, char *out) {
    if (t->n >= EXPR_NAME)
        return refuse(p, t, QN_ELIMIT, "a name has %d characters at most", EXPR_NAME - 1);
    memcpy(out, t->at, t->n);
    out[t->n] = '\0';
    return QN_OK;
}

static int need_name(struct parser *p, const char *what, char *out, struct token *at) {
    if (p->token.kind != T_NAME) return want(p, what);
    *at = p->token;
    TRY(copy_name(p, at, out));
    next(p);
    return QN_OK;
}

/* ---- nodes ---- */

/* Positions are not numbers: only MOVE operators may take them. */
static int type_positions(const struct parser *p, const struct token *t, struct expr_node *node) {
    const bool moves = block_op_table[node->op].op_class == BLOCK_MOVE;
    for (int i = 0; i < BLOCK_MAX_ARITY; i++) {
        const uint8_t of = node->in[i] == EXPR_NO_NODE ? 0 : p->x->nodes[node->in[i]].of;
        if (moves && i == 0 && node->op != BLOCK_OP_WHICH) node->of = of;
        if (of != 0 && !moves)
            return refuse(
                p, t, QN_EFORMAT,
                "%s: an operand gives positions of %s: these stand in pick(%s = ...: ...)",
                block_op_table[node->op].name, p->x->dims[of - 1].name, p->x->dims[of - 1].name);
    }
    return QN_OK;
}

static int push_node(struct parser *p, const struct token *t, struct expr_node node, int32_t *out) {
    struct expr *x = p->x;
    uint32_t dims[BLOCK_MAX_ARITY] = {0};
    if (x->n_nodes == EXPR_MAX_NODES)
        return refuse(p, t, QN_ELIMIT, "an operator has %d operations at most", EXPR_MAX_NODES);
    for (int i = 0; i < BLOCK_MAX_ARITY; i++)
        if (node.in[i] != EXPR_NO_NODE) dims[i] = x->nodes[node.in[i]].dims;
    TRY(type_positions(p, t, &node));
    if (node.op != BLOCK_OP_INPUT) {
        const char *wrong = block_op_dims((enum block_op)node.op, &node.use, dims, &node.dims);
        if (wrong != NULL)
            return refuse(p, t, QN_EFORMAT, "%s %s", block_op_table[node.op].name, wrong);
    }
    node.line = (uint16_t)MIN(t->line, (uint32_t)UINT16_MAX);
    *out = (int32_t)x->n_nodes;
    x->nodes[x->n_nodes++] = node;
    return QN_OK;
}

static struct expr_node node_of(enum block_op op) {
    return (struct expr_node){
        .op = (uint8_t)op, .in = {EXPR_NO_NODE, EXPR_NO_NODE, EXPR_NO_NODE}, .den = 1};
}

static int push_op(struct parser *p, const struct token *t, enum block_op op, uint32_t dims,
                   const int32_t in[BLOCK_MAX_ARITY], int32_t *out) {
    struct expr_node node = node_of(op);
    node.use.dims = dims;
    memcpy(node.in, in, sizeof node.in);
    return push_node(p, t, node, out);
}

static int push_binary(struct parser *p, const struct token *t, enum block_op op, int32_t a,
                       int32_t b, int32_t *out) {
    return push_op(p, t, op, 0, (const int32_t[]){a, b, EXPR_NO_NODE}, out);
}

/* ---- dims ---- */

static int find_dim(const struct expr *x, const struct token *t) {
    for (uint32_t i = 0; i < x->n_dims; i++)
        if (is_word(t, x->dims[i].name)) return (int)i;
    return -1;
}

/* A dim of a signature; a new name is a new dim. */
static int declare_dim(struct parser *p, uint8_t *out) {
    struct expr *x = p->x;
    const struct token t = p->token;
    if (t.kind != T_NAME) return want(p, "the name of a dim");
    int dim = find_dim(x, &t);
    if (dim < 0) {
        if (x->n_dims == BLOCK_MAX_DIMS)
            return refuse(p, &t, QN_ELIMIT, "an operator has %d dims at most", BLOCK_MAX_DIMS);
        dim = (int)x->n_dims;
        TRY(copy_name(p, &t, x->dims[dim].name));
        x->n_dims++;
    }
    next(p);
    *out = (uint8_t)dim;
    return QN_OK;
}

/* A dim of the signature. */
static int known_dim(struct parser *p, uint32_t *out) {
    const struct token t = p->token;
    if (t.kind != T_NAME) return want(p, "the name of a dim");
    const int dim = find_dim(p->x, &t);
    if (dim < 0) return want(p, "a dim of an argument");
    next(p);
    *out = (uint32_t)dim;
    return QN_OK;
}

static void dims_text(const struct expr *x, uint32_t dims, char *out, size_t room) {
    size_t n = 0;
    out[0] = '\0';
    if (dims == 0) snprintf(out, room, "no dims");
    for (uint32_t i = 0; i < x->n_dims && n < room; i++)
        if (dims >> i & 1)
            n += (size_t)snprintf(out + n, room - n, "%s%s", n > 0 ? "," : "", x->dims[i].name);
}

/* [dim,...]; none without brackets. */
static int dim_list(struct parser *p, uint8_t *n_dims, uint8_t *dims) {
    uint32_t seen = 0;
    *n_dims = 0;
    if (!take_mark(p, "[")) return QN_OK;
    do {
        const struct token t = p->token;
        if (*n_dims == FORM_INPUT_DIMS)
            return refuse(p, &t, QN_ELIMIT, "a tensor has %d dims at most", FORM_INPUT_DIMS);
        TRY(declare_dim(p, &dims[*n_dims]));
        const uint32_t bit = 1u << dims[(*n_dims)++];
        if (seen & bit) return refuse(p, &t, QN_EFORMAT, "the tensor has this dim already");
        seen |= bit;
    } while (take_mark(p, ","));
    return need_mark(p, "]");
}

/* ---- expressions ---- */

static int sum(struct parser *p, int32_t *out);

static int named(struct parser *p, const struct token *t, int32_t *out) {
    struct expr *x = p->x;
    for (uint32_t i = 0; i < p->n_defined; i++)
        if (is_word(t, p->defined[i].name)) {
            *out = p->defined[i].node;
            return QN_OK;
        }
    for (uint32_t i = 0; i < x->n_args; i++) {
        if (!is_word(t, x->args[i].name)) continue;
        x->args[i].used = true;
        *out = x->args[i].node;
        return QN_OK;
    }
    return fail_at(p, t, QN_EFORMAT, "want an argument, an earlier name or a function");
}

/* An exact decimal number of up to 18 digits. */
static int number(struct parser *p, int32_t *out) {
    const struct token t = p->token;
    struct expr_node node = node_of(BLOCK_OP_NUMBER);
    int64_t num = 0;
    int exponent = 0;
    size_t i = 0;
    bool point = false, fits = true;
    for (; i < t.n && t.at[i] != 'e' && t.at[i] != 'E'; i++) {
        if (t.at[i] == '.') {
            point = true;
            continue;
        }
        fits = fits && !__builtin_mul_overflow(num, 10, &num) &&
               !__builtin_add_overflow(num, t.at[i] - '0', &num);
        exponent -= point;
    }
    if (i < t.n) {
        const bool minus = t.at[i + 1] == '-';
        int e = 0;
        for (i += 1 + !isdigit((unsigned char)t.at[i + 1]); i < t.n && e < 100; i++)
            e = 10 * e + t.at[i] - '0';
        exponent += minus ? -e : e;
    }
    for (; exponent < 0 && num % 10 == 0 && num != 0; exponent++) num /= 10;
    int64_t scale = 1;
    for (int k = 0; k < (exponent < 0 ? -exponent : exponent) && fits; k++)
        fits = !__builtin_mul_overflow(scale, 10, &scale);
    if (exponent > 0) fits = fits && !__builtin_mul_overflow(num, scale, &num);
    if (!fits)
        return refuse(p, &t, QN_ELIMIT, "the number has more than 18 digits; use a const argument");
    next(p);
    node.num = num;
    node.den = exponent < 0 ? scale : 1;
    return push_node(p, &t, node, out);
}

/* Whether `name(` begins a reduction: names, perhaps `in` and names, then `:`. */
static bool is_reduction(const struct parser *p) {
    struct parser ahead = *p; /* a copy: nothing of it is kept */
    next(&ahead);             /* ( */
    for (;;) {
        if (ahead.token.kind != T_NAME) return false;
        next(&ahead);
        if (is_mark(&ahead, ":")) return true;
        if (is_word(&ahead.token, "in") || is_mark(&ahead, ","))
            next(&ahead);
        else
            return false;
    }
}

/* in m1,m2: their product; *out stays EXPR_NO_NODE without it. */
static int masks(struct parser *p, int32_t *out) {
    if (!is_word(&p->token, "in")) return QN_OK;
    next(p);
    do {
        const struct token t = p->token;
        int32_t mask = 0;
        if (t.kind != T_NAME) return want(p, "the name of a mask or share");
        TRY(named(p, &t, &mask));
        const struct expr_node *n = &p->x->nodes[mask];
        const int kind = n->op == BLOCK_OP_INPUT ? p->x->args[n->arg].kind : -1;
        if (kind != EXPR_MASK && kind != EXPR_SHARE) return want(p, "the name of a mask or share");
        next(p);
        if (*out == EXPR_NO_NODE)
            *out = mask;
        else
            TRY(push_binary(p, &t, BLOCK_OP_MUL, *out, mask, out));
    } while (take_mark(p, ","));
    return QN_OK;
}

/* (d1,d2 in masks: e) */
static int reduction(struct parser *p, const struct token *t, enum block_op op, int32_t *out) {
    int32_t mask = EXPR_NO_NODE, a = 0;
    uint32_t dims = 0, dim = 0;
    struct token at = p->token;
    TRY(need_mark(p, "("));
    do {
        at = p->token;
        TRY(known_dim(p, &dim));
        if (dims >> dim & 1) return refuse(p, &at, QN_EFORMAT, "this dim is named twice");
        dims |= 1u << dim;
    } while (take_mark(p, ","));
    const struct token in = p->token;
    TRY(masks(p, &mask));
    if (mask != EXPR_NO_NODE && block_op_table[op].arity < 2)
        return refuse(p, &in, QN_EFORMAT, "%s takes no mask", block_op_table[op].name);
    TRY(need_mark(p, ":"));
    TRY(sum(p, &a));
    uint32_t has = p->x->nodes[a].dims | (mask == EXPR_NO_NODE ? 0 : p->x->nodes[mask].dims);
    if ((dims & ~has) != 0) {
        char wanted[200], have[200];
        dims_text(p->x, dims & ~has, wanted, sizeof wanted);
        dims_text(p->x, p->x->nodes[a].dims, have, sizeof have);
        return refuse(p, &at, QN_EFORMAT, "%s over %s: the expression has %s%s",
                      block_op_table[op].name, wanted, p->x->nodes[a].dims ? "the dims " : "",
                      have);
    }
    TRY(need_mark(p, ")"));
    if (op == BLOCK_OP_CHOOSE && (dims & (dims - 1)) != 0)
        return refuse(p, t, QN_EFORMAT, "choose gives an index of one dim");
    return push_op(p, t, op, dims, (const int32_t[]){a, mask, EXPR_NO_NODE}, out);
}

/* (d: e) */
static int swap(struct parser *p, const struct token *t, int32_t *out) {
    uint32_t dim = 0;
    int32_t a = 0;
    TRY(need_mark(p, "("));
    TRY(known_dim(p, &dim));
    TRY(need_mark(p, ":"));
    TRY(sum(p, &a));
    TRY(need_mark(p, ")"));
    p->x->dims[dim].halved = true;
    return push_op(p, t, BLOCK_OP_SWAP, 1u << dim, (const int32_t[]){a, EXPR_NO_NODE, EXPR_NO_NODE},
                   out);
}

/* (d = positions: e) */
static int pick(struct parser *p, const struct token *t, int32_t *out) {
    uint32_t dim = 0;
    int32_t a = 0, row = 0;
    TRY(need_mark(p, "("));
    TRY(known_dim(p, &dim));
    TRY(need_mark(p, "="));
    const struct token at = p->token;
    TRY(sum(p, &row));
    const uint8_t of = p->x->nodes[row].of;
    if (of != dim + 1)
        return refuse(p, &at, QN_EFORMAT, "want positions of %s, have %s%s", p->x->dims[dim].name,
                      of == 0 ? "numbers" : "those of ", of == 0 ? "" : p->x->dims[of - 1].name);
    TRY(need_mark(p, ":"));
    TRY(sum(p, &a));
    TRY(need_mark(p, ")"));
    return push_op(p, t, BLOCK_OP_PICK, 1u << dim, (const int32_t[]){a, row, EXPR_NO_NODE}, out);
}

/* (d: order) */
static int which(struct parser *p, const struct token *t, int32_t *out) {
    uint32_t dim = 0;
    int32_t order = 0;
    struct expr_node node = node_of(BLOCK_OP_WHICH);
    TRY(need_mark(p, "("));
    TRY(known_dim(p, &dim));
    TRY(need_mark(p, ":"));
    const struct token at = p->token;
    if (at.kind != T_NAME) return want(p, "the name of an order");
    TRY(named(p, &at, &order));
    const struct expr_node *n = &p->x->nodes[order];
    if (n->op != BLOCK_OP_INPUT || p->x->args[n->arg].kind != EXPR_ORDER)
        return want(p, "the name of an order");
    next(p);
    TRY(need_mark(p, ")"));
    node.in[0] = order;
    node.use = (struct block_use){1u << dim, 1u << p->x->args[n->arg].of};
    node.of = (uint8_t)(dim + 1);
    return push_node(p, t, node, out);
}

/* (argument: a, b): a if the argument is there, else b. */
static int given(struct parser *p, const struct token *t, int32_t *out) {
    struct expr_node node = node_of(BLOCK_OP_GIVEN);
    char name[EXPR_NAME];
    struct token at;
    TRY(need_mark(p, "("));
    TRY(need_name(p, "an argument that may be absent", name, &at));
    const int arg = expr_find_arg(p->x, name);
    if (arg < 0 || p->x->args[arg].fallback == EXPR_NO_NODE)
        return fail_at(p, &at, QN_EFORMAT, "want an argument that may be absent");
    node.arg = (uint8_t)arg;
    TRY(need_mark(p, ":"));
    TRY(sum(p, &node.in[0]));
    TRY(need_mark(p, ","));
    TRY(sum(p, &node.in[1]));
    TRY(need_mark(p, ")"));
    return push_node(p, t, node, out);
}

static int size(struct parser *p, const struct token *t, int32_t *out) {
    uint32_t dim = 0;
    TRY(need_mark(p, "("));
    TRY(known_dim(p, &dim));
    TRY(need_mark(p, ")"));
    return push_op(p, t, BLOCK_OP_SIZE, 1u << dim,
                   (const int32_t[]){EXPR_NO_NODE, EXPR_NO_NODE, EXPR_NO_NODE}, out);
}

/* (a, b, ...): as many operands as the operator takes; min and max fold any number of them. */
static int elementwise(struct parser *p, const struct token *t, enum block_op op, int32_t *out) {
    const int n = block_op_table[op].arity;
    int32_t in[BLOCK_MAX_ARITY] = {EXPR_NO_NODE, EXPR_NO_NODE, EXPR_NO_NODE};
    TRY(need_mark(p, "("));
    for (int i = 0; i < n; i++) {
        if (i > 0) TRY(need_mark(p, ","));
        TRY(sum(p, &in[i]));
    }
    TRY(push_op(p, t, op, 0, in, out));
    while (n == 2 && take_mark(p, ",")) {
        TRY(sum(p, &in[1]));
        TRY(push_binary(p, t, op, *out, in[1], out));
    }
    return need_mark(p, ")");
}

/* The functions of texts. `max` is either MAX of elements or MAX_OVER. */
static const struct {
    const char *name;
    enum block_op op;
    int (*parse)(struct parser *, const struct token *, int32_t *); /* NULL: its class decides */
} functions[] = {
    {"exp", BLOCK_OP_EXP, NULL},       {"log", BLOCK_OP_LOG, NULL},
    {"sqrt", BLOCK_OP_SQRT, NULL},     {"rsqrt", BLOCK_OP_RSQRT, NULL},
    {"square", BLOCK_OP_SQUARE, NULL}, {"sigmoid", BLOCK_OP_SIGMOID, NULL},
    {"silu", BLOCK_OP_SILU, NULL},     {"tanh", BLOCK_OP_TANH, NULL},
    {"gelu", BLOCK_OP_GELU, NULL},     {"abs", BLOCK_OP_ABS, NULL},
    {"cast16", BLOCK_OP_CAST16, NULL}, {"min", BLOCK_OP_MIN, NULL},
    {"max", BLOCK_OP_MAX, NULL},       {"clamp", BLOCK_OP_CLAMP, NULL},
    {"select", BLOCK_OP_SELECT, NULL}, {"sum", BLOCK_OP_SUM, NULL},
    {"mean", BLOCK_OP_MEAN, NULL},     {"choose", BLOCK_OP_CHOOSE, NULL},
    {"swap", BLOCK_OP_SWAP, swap},     {"pick", BLOCK_OP_PICK, pick},
    {"size", BLOCK_OP_SIZE, size},     {"given", BLOCK_OP_GIVEN, given},
    {"which", BLOCK_OP_WHICH, which},
};

static int find_function(const struct token *t) {
    for (size_t i = 0; i < COUNT_OF(functions); i++)
        if (is_word(t, functions[i].name)) return (int)i;
    return -1;
}

static int call(struct parser *p, const struct token *t, int which, int32_t *out) {
    enum block_op op = functions[which].op;
    if (functions[which].parse != NULL) return functions[which].parse(p, t, out);
    if (op == BLOCK_OP_MAX && is_reduction(p)) op = BLOCK_OP_MAX_OVER;
    return block_op_table[op].op_class == BLOCK_REDUCE ? reduction(p, t, op, out)
                                                       : elementwise(p, t, op, out);
}

static int primary(struct parser *p, int32_t *out) {
    const struct token t = p->token;
    if (t.kind == T_NUMBER) return number(p, out);
    if (take_mark(p, "(")) {
        TRY(sum(p, out));
        return need_mark(p, ")");
    }
    if (t.kind != T_NAME) return want(p, "a number, a name or '('");
    next(p);
    if (!is_mark(p, "(")) return named(p, &t, out);
    const int which = find_function(&t);
    if (which < 0)
        return fail_at(
            p, &t, QN_EFORMAT,
            "want a function: exp log sqrt rsqrt square sigmoid silu tanh gelu abs cast16 "
            "min max clamp select sum mean choose swap pick which size given");
    return call(p, &t, which, out);
}

static int unary(struct parser *p, int32_t *out) {
    const struct token t = p->token;
    if (p->depth == OP_TEXT_MAX_DEPTH)
        return refuse(p, &t, QN_ELIMIT, "the expression is nested more than %d deep",
                      OP_TEXT_MAX_DEPTH);
    p->depth++;
    int rc;
    if (take_mark(p, "-")) {
        rc = unary(p, out);
        if (rc == QN_OK) rc = push_binary(p, &t, BLOCK_OP_NEG, *out, EXPR_NO_NODE, out);
    } else {
        rc = primary(p, out);
    }
    p->depth--;
    return rc;
}

/* a op b op c ..., where each op is one of `marks`. */
static int chain(struct parser *p, const char *const marks[2], const enum block_op ops[2],
                 int (*inner)(struct parser *, int32_t *), int32_t *out) {
    TRY(inner(p, out));
    for (;;) {
        const struct token t = p->token;
        const int which = is_mark(p, marks[0]) ? 0 : is_mark(p, marks[1]) ? 1 : -1;
        int32_t b = 0;
        if (which < 0) return QN_OK;
        next(p);
        skip_lines(p);
        TRY(inner(p, &b));
        TRY(push_binary(p, &t, ops[which], *out, b, out));
    }
}

static int product(struct parser *p, int32_t *out) {
    return chain(p, (const char *const[]){"*", "/"},
                 (const enum block_op[]){BLOCK_OP_MUL, BLOCK_OP_DIV}, unary, out);
}

static int sum(struct parser *p, int32_t *out) {
    return chain(p, (const char *const[]){"+", "-"},
                 (const enum block_op[]){BLOCK_OP_ADD, BLOCK_OP_SUB}, product, out);
}

/* ---- signature ---- */

static int kind_of(struct parser *p, struct expr_arg *arg) {
    for (int k = 0; k < N_EXPR_KINDS; k++) {
        if (!is_word(&p->token, expr_kind_name((enum expr_kind)k))) continue;
        arg->kind = (uint8_t)k;
        next(p);
        if (k != EXPR_INDEX && k != EXPR_ORDER) return QN_OK;
        TRY(need_mark(p, "("));
        TRY(declare_dim(p, &arg->of));
        return need_mark(p, ")");
    }
    return want(p, "act, vec, weight, const, state, mask, share, index(dim) or order(dim)");
}

/* An order has as many places as elements. So a dim may be the places of one order only, and not of
 * an order whose size depends on that dim. */
static int check_order(const struct parser *p, const struct token *t, const struct expr_arg *arg) {
    if (arg->n_dims == 0) return refuse(p, t, QN_EFORMAT, "an order has a dim");
    for (uint32_t i = 0; i <= p->x->n_args; i++) {
        const struct expr_arg *other = i == p->x->n_args ? arg : &p->x->args[i];
        if (other->kind != EXPR_ORDER) continue;
        if (i < p->x->n_args && other->of == arg->of)
            return refuse(p, t, QN_EFORMAT, "'%s' is an order of %s already", other->name,
                          p->x->dims[arg->of].name);
        for (int k = 0; k < arg->n_dims; k++)
            if (arg->dims[k] == other->of)
                return refuse(p, t, QN_EFORMAT, "%s is the dim of an order's places",
                              p->x->dims[other->of].name);
        for (int k = 0; k < other->n_dims; k++)
            if (other->dims[k] == arg->of)
                return refuse(p, t, QN_EFORMAT, "the order '%s' has the dim %s", other->name,
                              p->x->dims[arg->of].name);
    }
    return QN_OK;
}

static int check_kind(const struct parser *p, const struct token *t, const struct expr_arg *arg) {
    if (arg->kind == EXPR_CONST && arg->n_dims != 0)
        return refuse(p, t, QN_EFORMAT, "a const has no dims");
    if (arg->kind == EXPR_SHARE && arg->n_dims != 2)
        return refuse(p, t, QN_EFORMAT, "a share has two dims: which share, and of what");
    return arg->kind == EXPR_ORDER ? check_order(p, t, arg) : QN_OK;
}

static bool is_taken(const struct parser *p, const struct token *t) {
    for (uint32_t i = 0; i < p->n_defined; i++)
        if (is_word(t, p->defined[i].name)) return true;
    for (uint32_t i = 0; i < p->x->n_args; i++)
        if (is_word(t, p->x->args[i].name)) return true;
    return false;
}

static int argument(struct parser *p) {
    struct expr *x = p->x;
    struct expr_arg arg = {.fallback = EXPR_NO_NODE};
    struct expr_node node = node_of(BLOCK_OP_INPUT);
    struct token t;
    TRY(need_name(p, "an argument's name", arg.name, &t));
    if (is_taken(p, &t))
        return refuse(p, &t, QN_EFORMAT, "there is an argument '%s' already", arg.name);
    if (x->n_args == EXPR_MAX_ARGS)
        return refuse(p, &t, QN_ELIMIT, "an operator has %d arguments at most", EXPR_MAX_ARGS);
    TRY(dim_list(p, &arg.n_dims, arg.dims));
    TRY(kind_of(p, &arg));
    TRY(check_kind(p, &t, &arg));
    node.arg = (uint8_t)x->n_args;
    if (arg.kind == EXPR_INDEX || arg.kind == EXPR_ORDER) node.of = (uint8_t)(arg.of + 1);
    for (int i = 0; i < arg.n_dims; i++) node.dims |= 1u << arg.dims[i];
    if (take_mark(p, "=")) {
        const struct token e = p->token;
        TRY(sum(p, &arg.fallback));
        const uint32_t more = x->nodes[arg.fallback].dims & ~node.dims;
        char text[200];
        dims_text(x, more, text, sizeof text);
        if (more != 0)
            return refuse(p, &e, QN_EFORMAT, "'%s' does not have the dims %s of this expression",
                          arg.name, text);
        if (arg.kind >= EXPR_MASK)
            return refuse(p, &e, QN_EFORMAT, "a %s cannot be absent",
                          expr_kind_name((enum expr_kind)arg.kind));
    }
    TRY(push_node(p, &t, node, &arg.node));
    x->args[x->n_args++] = arg;
    return QN_OK;
}

static int output(struct parser *p) {
    struct expr *x = p->x;
    struct expr_out out = {.node = EXPR_NO_NODE};
    struct token t;
    TRY(need_name(p, "an output's name", out.name, &t));
    if (x->n_out == EXPR_MAX_OUT)
        return refuse(p, &t, QN_ELIMIT, "an operator has %d outputs at most", EXPR_MAX_OUT);
    if (is_taken(p, &t) || expr_find_out(x, out.name) >= 0)
        return refuse(p, &t, QN_EFORMAT, "there is a '%s' already", out.name);
    TRY(dim_list(p, &out.n_dims, out.dims));
    x->out[x->n_out++] = out;
    return QN_OK;
}

static int signature(struct parser *p) {
    struct token t;
    if (!is_word(&p->token, "op")) return want(p, "'op'");
    next(p);
    TRY(need_name(p, "the operator's name", p->x->name, &t));
    TRY(need_mark(p, "("));
    do {
        TRY(argument(p));
    } while (take_mark(p, ","));
    TRY(need_mark(p, ")"));
    skip_lines(p);
    TRY(need_mark(p, "->"));
    do {
        skip_lines(p);
        TRY(output(p));
    } while (take_mark(p, ","));
    return p->token.kind == T_LINE || p->token.kind == T_END ? QN_OK
                                                             : want(p, "the end of the line");
}

/* ---- lines ---- */

/* An output's expression may have only the output's dims. */
static int define_output(struct parser *p, const struct token *t, int which, int32_t node) {
    struct expr *x = p->x;
    struct expr_out *out = &x->out[which];
    uint32_t dims = 0;
    for (int i = 0; i < out->n_dims; i++) dims |= 1u << out->dims[i];
    const uint32_t more = x->nodes[node].dims & ~dims;
    char text[200];
    dims_text(x, more, text, sizeof text);
    if (more != 0)
        return refuse(p, t, QN_EFORMAT, "'%s' does not have the dims %s of its expression",
                      out->name, text);
    out->node = node;
    return QN_OK;
}

static int line(struct parser *p) {
    struct definition *def = &p->defined[p->n_defined];
    struct token t;
    if (is_word(&p->token, "op"))
        return refuse(p, &p->token, QN_EFORMAT, "a second operator: a text has one");
    TRY(need_name(p, "a line `name = expression`", def->name, &t));
    if (is_taken(p, &t)) return refuse(p, &t, QN_EFORMAT, "there is a '%s' already", def->name);
    if (p->n_defined + 1 == EXPR_MAX_NODES)
        return refuse(p, &t, QN_ELIMIT, "an operator has %d lines at most", EXPR_MAX_NODES - 1);
    TRY(need_mark(p, "="));
    skip_lines(p);
    TRY(sum(p, &def->node));
    if (p->token.kind != T_LINE && p->token.kind != T_END)
        return want(p, "an operator or the end of the line");
    const int out = expr_find_out(p->x, def->name);
    if (out >= 0) TRY(define_output(p, &t, out, def->node));
    p->n_defined++;
    return QN_OK;
}

int op_text_parse(struct diag *d, const char *name, const char *text, size_t n, struct expr *x) {
    struct parser p = {.d = d, .file = name, .text = text, .n = n, .line = 1, .column = 1, .x = x};
    memset(x, 0, sizeof *x);
    if (n > OP_TEXT_MAX_BYTES)
        return fail(d, QN_ELIMIT, "%s: a text has %d bytes at most", name, OP_TEXT_MAX_BYTES);
    next(&p);
    skip_lines(&p);
    TRY(signature(&p));
    skip_lines(&p);
    while (p.token.kind != T_END) {
        TRY(line(&p));
        skip_lines(&p);
    }
    for (uint32_t i = 0; i < x->n_out; i++)
        if (x->out[i].node == EXPR_NO_NODE)
            return refuse(&p, &p.token, QN_EFORMAT, "no line defines the output '%s'",
                          x->out[i].name);
    return QN_OK;
}
