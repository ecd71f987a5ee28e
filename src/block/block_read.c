/* block_read.c - block graphs from text: a statement a line, in the order of block_write.c. */
#include "block/block.h"

#include "base/checked.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct diag *d;
    const char *name; /* of the text, for messages */
    const char *at, *end;
    uint32_t line;
    struct block_graph *g;
    struct block *b;       /* the task that is being read; NULL between tasks */
    char word[BLOCK_NAME]; /* the token: a word, or one character, or "" at the line's end */
};

static int __attribute__((format(printf, 2, 3))) bad(const struct reader *r, const char *fmt, ...) {
    char why[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return fail(r->d, QN_EFORMAT, "%s: line %u: %s", r->name, r->line, why);
}

/* ---- tokens ---- */

static bool in_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '+' || c == '-';
}

/* The next token of the line. */
static int next(struct reader *r) {
    size_t n = 0;
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t')) r->at++;
    memset(r->word, 0, sizeof r->word);
    if (r->at == r->end || *r->at == '\n' || *r->at == '#') return QN_OK;
    if (!in_word(*r->at)) {
        r->word[0] = *r->at++;
        return r->word[0] != '\0' ? QN_OK : bad(r, "a NUL character");
    }
    for (; r->at < r->end && in_word(*r->at); r->at++) {
        if (n == BLOCK_NAME - 1) return bad(r, "a word of more than %d characters", BLOCK_NAME - 1);
        r->word[n++] = *r->at;
    }
    r->word[n] = '\0';
    return QN_OK;
}

static bool is(const struct reader *r, const char *word) {
    return strcmp(r->word, word) == 0;
}

static int want(struct reader *r, const char *word) {
    if (!is(r, word)) return bad(r, "want '%s', have '%s'", word, r->word);
    return next(r);
}

/* Moves past the end of the line. */
static int end_line(struct reader *r) {
    if (r->word[0] != '\0') return bad(r, "'%s' after the end of the statement", r->word);
    while (r->at < r->end && *r->at != '\n') r->at++;
    if (r->at < r->end) r->at++;
    r->line++;
    return QN_OK;
}

static int read_name(struct reader *r, char to[BLOCK_NAME]) {
    const char c = r->word[0];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') ||
        strpbrk(r->word, "+-") != NULL)
        return bad(r, "want a name, have '%s'", r->word);
    memcpy(to, r->word, BLOCK_NAME);
    return next(r);
}

static int read_count(struct reader *r, uint32_t most, uint32_t *to) {
    uint64_t value = 0;
    for (const char *p = r->word; *p != '\0' || p == r->word; p++) {
        if (*p < '0' || *p > '9') return bad(r, "want a number, have '%s'", r->word);
        value = value * 10 + (uint64_t)(*p - '0');
        if (value > most) return bad(r, "%s is more than %u", r->word, most);
    }
    *to = (uint32_t)value;
    return next(r);
}

/* "-3/4" */
static int read_number(struct reader *r, int64_t *numerator, int64_t *denominator) {
    char *end;
    errno = 0;
    *numerator = strtoll(r->word, &end, 10);
    if (end == r->word || *end != '\0' || errno != 0)
        return bad(r, "want an integer of 64 bits, have '%s'", r->word);
    TRY(next(r));
    TRY(want(r, "/"));
    *denominator = strtoll(r->word, &end, 10);
    if (end == r->word || *end != '\0' || errno != 0 || *denominator <= 0)
        return bad(r, "want a denominator, have '%s'", r->word);
    return next(r);
}

/* One of a table's words. */
static int read_choice(struct reader *r, const char *what, const char *(*name_of)(uint32_t),
                       uint32_t n, uint8_t *to) {
    for (uint32_t i = 0; i < n; i++) {
        if (!is(r, name_of(i))) continue;
        *to = (uint8_t)i;
        return next(r);
    }
    return bad(r, "'%s' is no %s", r->word, what);
}

static const char *dtype_name(uint32_t dtype) {
    return dtype_row(dtype)->name;
}

static const char *kind_name(uint32_t kind) {
    return expr_kind_name((enum expr_kind)kind);
}

static const char *op_name_of(uint32_t op) {
    return block_op_table[op].name;
}

/* ---- parts of statements ---- */

static int read_dim_name(struct reader *r, uint32_t *dim) {
    for (uint32_t i = 0; i < r->b->n_dims; i++) {
        if (!is(r, r->b->dim[i].name)) continue;
        *dim = i;
        return next(r);
    }
    return bad(r, "'%s' is no dim of task %s", r->word, r->b->name);
}

/* Reads "t,h", up to a token that is no comma. */
static int read_dim_list(struct reader *r, block_dims *dims) {
    for (uint32_t dim;;) {
        TRY(read_dim_name(r, &dim));
        *dims |= (block_dims)(1u << dim);
        if (!is(r, ",")) return QN_OK;
        TRY(next(r));
    }
}

/* "[t,h]" or "[]". */
static int read_dims(struct reader *r, block_dims *dims) {
    TRY(want(r, "["));
    if (!is(r, "]")) TRY(read_dim_list(r, dims));
    return want(r, "]");
}

static int read_operand(struct reader *r, uint8_t *to) {
    uint32_t node = 0;
    for (uint32_t i = 0; i < r->b->n_in; i++) {
        if (!is(r, r->b->in[i].name)) continue;
        *to = (uint8_t)i;
        return next(r);
    }
    if (!is(r, "%")) return bad(r, "'%s' is no input of task %s", r->word, r->b->name);
    TRY(next(r));
    TRY(read_count(r, BLOCK_NODES - 1, &node));
    if (node >= r->b->n_nodes) return bad(r, "%%%u is not there yet", node);
    *to = (uint8_t)node;
    return QN_OK;
}

/* ": loop reg f32 tree" */
static int read_place(struct reader *r, struct block_node *n) {
    TRY(want(r, ":"));
    TRY(read_choice(r, "stage", block_stage_name, N_STAGES, &n->stage));
    TRY(read_choice(r, "space", block_space_name, N_SPACES, &n->space));
    TRY(read_choice(r, "number format", dtype_name, N_DTYPES, &n->dtype));
    if (r->word[0] == '\0') return QN_OK;
    return read_choice(r, "order of adding", block_order_name, N_ORDERS, &n->order);
}

/* Clears the task's next node; n_nodes counts it once it is read. */
static int next_node(struct reader *r) {
    if (r->b->n_nodes == BLOCK_NODES) return bad(r, "more than %d nodes", BLOCK_NODES);
    r->b->node[r->b->n_nodes] =
        (struct block_node){.a = BLOCK_NONE, .b = BLOCK_NONE, .c = BLOCK_NONE};
    return QN_OK;
}

/* ---- statements ---- */

static int read_task(struct reader *r) {
    if (r->b != NULL) return bad(r, "task %s has no end", r->b->name);
    if (r->g->n_tasks == BLOCK_TASKS) return bad(r, "more than %d tasks", BLOCK_TASKS);
    r->b = &r->g->task[r->g->n_tasks];
    *r->b = (struct block){.loop = BLOCK_NONE, .loop2 = BLOCK_NONE};
    TRY(read_name(r, r->b->name));
    if (!is(r, "expr")) return QN_OK;
    TRY(next(r));
    char *end;
    r->b->expr = strtoull(r->word, &end, 16);
    if (strlen(r->word) != 16 || *end != '\0') return bad(r, "want 16 hexadecimal digits");
    return next(r);
}

static int read_dim(struct reader *r) {
    struct block_dim *dim = &r->b->dim[r->b->n_dims];
    if (r->b->n_dims == BLOCK_DIMS) return bad(r, "more than %d dims", BLOCK_DIMS);
    *dim = (struct block_dim){.tile = 1};
    TRY(read_name(r, dim->name));
    TRY(read_choice(r, "role of a dim", block_role_name, N_ROLES, &dim->role));
    if (is(r, "size")) {
        TRY(next(r));
        TRY(read_count(r, BLOCK_MAX_SIZE, &dim->size));
    }
    TRY(want(r, "tile"));
    TRY(read_count(r, BLOCK_MAX_SIZE, &dim->tile));
    if (is(r, "of")) {
        TRY(next(r));
        TRY(read_name(r, dim->parent));
    }
    r->b->n_dims++;
    return QN_OK;
}

static int read_loop(struct reader *r, uint8_t *loop) {
    uint32_t dim = 0;
    TRY(read_dim_name(r, &dim));
    *loop = (uint8_t)dim;
    return QN_OK;
}

static int read_in(struct reader *r) {
    struct block_in *in = &r->b->in[r->b->n_in];
    struct block_node *n = &r->b->node[r->b->n_nodes];
    if (r->b->n_in == BLOCK_IN) return bad(r, "more than %d inputs", BLOCK_IN);
    if (r->b->n_in != r->b->n_nodes) return bad(r, "inputs come before all other nodes");
    TRY(next_node(r));
    n->op = BLOCK_OP_INPUT;
    TRY(read_name(r, in->name));
    TRY(read_dims(r, &n->dims));
    TRY(read_choice(r, "kind of input", kind_name, N_EXPR_KINDS, &in->kind));
    TRY(read_place(r, n));
    r->b->n_in++;
    r->b->n_nodes++;
    return QN_OK;
}

static uint8_t *operand_of(struct block_node *n, uint32_t k) {
    _Static_assert(BLOCK_MAX_ARITY == 3, "a, b and c");
    return k == 0 ? &n->a : k == 1 ? &n->b : &n->c;
}

/* "(x, %7)"; an optional operand may be missing. */
static int read_operands(struct reader *r, struct block_node *n) {
    const uint32_t arity = MIN(block_op_table[n->op].arity, BLOCK_MAX_ARITY);
    for (uint32_t k = 0; k < arity; k++) {
        if (is(r, ")") && k + block_op_optional(n->op) >= arity) break;
        TRY(want(r, k == 0 ? "(" : ","));
        TRY(read_operand(r, operand_of(n, k)));
    }
    return arity == 0 ? QN_OK : want(r, ")");
}

/* "%7[t,i] = mm(x, w) over h : loop reg f32 tree", after the "%". */
static int read_node(struct reader *r) {
    struct block_node *n = &r->b->node[r->b->n_nodes];
    uint32_t number;
    TRY(next_node(r));
    TRY(read_count(r, BLOCK_NODES - 1, &number));
    if (number != r->b->n_nodes) return bad(r, "want %%%u, have %%%u", r->b->n_nodes, number);
    TRY(read_dims(r, &n->dims));
    TRY(want(r, "="));
    TRY(read_choice(r, "operator", op_name_of, N_BLOCK_OPS, &n->op));
    if (n->op == BLOCK_OP_INPUT) return bad(r, "an input has a line of its own: in NAME[...]");
    if (n->op == BLOCK_OP_NUMBER) TRY(read_number(r, &n->numerator, &n->denominator));
    TRY(read_operands(r, n));
    if (is(r, "over")) {
        TRY(next(r));
        TRY(read_dim_list(r, &n->red));
    }
    TRY(read_place(r, n));
    r->b->n_nodes++;
    return QN_OK;
}

static int read_out(struct reader *r) {
    struct block_out *out = &r->b->out[r->b->n_out];
    if (r->b->n_out == BLOCK_OUT) return bad(r, "more than %d outputs", BLOCK_OUT);
    TRY(read_name(r, out->name));
    TRY(read_choice(r, "number format", dtype_name, N_DTYPES, &out->dtype));
    TRY(want(r, "="));
    TRY(read_operand(r, &out->node));
    r->b->n_out++;
    return QN_OK;
}

static int read_end(struct reader *r) {
    r->g->n_tasks++;
    r->b = NULL;
    return QN_OK;
}

static int read_loop1(struct reader *r) {
    return read_loop(r, &r->b->loop);
}

static int read_loop2(struct reader *r) {
    return read_loop(r, &r->b->loop2);
}

static int read_statement(struct reader *r) {
    static const struct {
        const char *word;
        int (*read)(struct reader *);
    } statements[] = {{"dim", read_dim}, {"loop", read_loop1}, {"loop2", read_loop2},
                      {"in", read_in},   {"%", read_node},     {"out", read_out},
                      {"end", read_end}};
    TRY(next(r));
    if (r->word[0] == '\0') return QN_OK;
    if (is(r, "task")) {
        TRY(next(r));
        return read_task(r);
    }
    for (size_t i = 0; i < COUNT_OF(statements); i++) {
        if (!is(r, statements[i].word)) continue;
        if (r->b == NULL) return bad(r, "'%s' outside of a task", statements[i].word);
        TRY(next(r));
        return statements[i].read(r);
    }
    return bad(r, "'%s' begins no statement", r->word);
}

int block_read(struct diag *d, const char *name, const char *text, size_t n,
               struct block_graph *g) {
    struct reader r = {.d = d, .name = name, .at = text, .end = text + n, .line = 1, .g = g};
    g->n_tasks = 0;
    if (n > BLOCK_TEXT)
        return fail(d, QN_ELIMIT, "%s: more than %d bytes of block graph", name, BLOCK_TEXT);
    while (r.at < r.end) {
        TRY(read_statement(&r));
        TRY(end_line(&r));
    }
    if (r.b != NULL) return bad(&r, "task %s has no end", r.b->name);
    if (g->n_tasks == 0) return bad(&r, "no task");
    return QN_OK;
}
