/* grammar.h - compiles a grammar from any of the texts that users give: what the other layers see.
 * A grammar is compiled once, is read-only afterwards, and is shared by matchers (matcher.h) of any
 * thread. */
#ifndef QN_GRAMMAR_GRAMMAR_H
#define QN_GRAMMAR_GRAMMAR_H

#include "grammar/matcher.h"

enum grammar_kind {
    GRAMMAR_NONE,
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_REGEX,
    GRAMMAR_EBNF,
    GRAMMAR_CHOICE, /* a JSON array of strings */
    N_GRAMMAR_KINDS
};

enum { GRAMMAR_MAX_CHOICES = 4096 };

/* Compiles text[0, n). Errors: QN_EINVAL, QN_EUNSUPPORTED, QN_EFORMAT and QN_ELIMIT with the place;
 * QN_ENOMEM. Takes at most 100 ms and 16 MB whatever the text is. */
int grammar_compile(struct diag *d, enum grammar_kind kind, const char *text, size_t n,
                    struct code *code);

#endif
