/* ebnf.h - turns grammars, as llama.cpp's GBNF and many papers write them, into expressions:
 *
 *     root ::= "yes" | no ("," digit){1,3}   # the text is a root
 *     no   ::= "no" [!?]*
 *     digit ::= [0-9]
 */
#ifndef QN_GRAMMAR_EBNF_H
#define QN_GRAMMAR_EBNF_H

#include "grammar/exprs.h"

enum {
    EBNF_MAX = 64 << 10, /* bytes */
    EBNF_DEPTH = 32,     /* depth of nested groups */
};

/* Defines rule 0. Errors, in x->rc too: QN_EINVAL, QN_ELIMIT, each with line and column. */
int ebnf_read(struct exprs *x, const char *text, size_t n);

#endif
