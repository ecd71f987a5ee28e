/* lex.h - a template's text as tokens, with white space around tags removed as trim_blocks,
 * lstrip_blocks and the signs in tags say. */
#ifndef QN_MODEL_JINJA_LEX_H
#define QN_MODEL_JINJA_LEX_H

#include "base/arena.h"
#include "base/array.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum token_type {
    TOKEN_END,
    TOKEN_DATA, /* text between tags */
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
};

struct token {
    uint8_t type;
    char op[3]; /* OPERATOR: its characters */
    uint32_t line;
    const char *p; /* DATA, NAME, STRING (escapes resolved), numbers (as written) */
    size_t n;
};

struct lex {
    struct diag *d;
    const char *where;
    struct arena *arena;
    const char *start, *end; /* newlines are \n, without the last one */
    const char *p;
    uint32_t line;
    bool line_starts; /* the match before ended with a newline */
    size_t n_open;
    char open[256];
    ARRAY(struct token) tokens;
};

/* Fills l->tokens, which ARRAY_FINI releases; d, where and arena are set. Errors: QN_EFORMAT and
 * QN_EUNSUPPORTED with the line. */
int lex_all(struct lex *l, const char *program, size_t n);

#endif
