/* problem.h - what is wrong with a request: one kind of problem.def, the field, a message.
 *
 * The function that finds a problem records it with problem_set() and returns the code; functions
 * above forward it with TRY(), as with a diag.
 */
#ifndef QN_SERVER_PROBLEM_H
#define QN_SERVER_PROBLEM_H

#include "base/strbuf.h"

enum problem_kind {
    PROBLEM_NONE,
#define PROBLEM(ID, status, type, code, kind) PROBLEM_##ID,
#include "server/problem.def"
#undef PROBLEM
    N_PROBLEMS
};

/* The error format of an API. */
enum dialect { DIALECT_OPENAI, DIALECT_ANTHROPIC };

struct problem {
    enum problem_kind kind;
    char param[96];     /* the field's path, "messages[0].role"; "": none */
    char message[1000]; /* one line of UTF-8 */
};

/* Records a problem unless there is one; returns QN_EINVAL. `param` may be NULL. */
int problem_set(struct problem *p, enum problem_kind kind, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

int problem_status(enum problem_kind kind);
/* The object {"error": ...} of the dialect. */
void problem_json(const struct problem *p, enum dialect dialect, struct strbuf *b);

#endif
