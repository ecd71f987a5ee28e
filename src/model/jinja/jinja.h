/* jinja.h - Jinja templates as transformers runs them: an immutable sandbox with trim_blocks,
 * lstrip_blocks, break and continue, `generation` blocks, its tojson, raise_exception and
 * strftime_now.
 *
 *   text --lex.c--> tokens --parse.c--> tree --scope.c--> tree with slots --exec.c, eval.c--> text
 *
 * A compiled template is immutable: any number of threads may render with it. The result is
 * jinja2's character by character; what is not known here is refused with the line and the
 * construct. A template reaches nothing but the variables that it is given.
 */
#ifndef QN_MODEL_JINJA_JINJA_H
#define QN_MODEL_JINJA_JINJA_H

#include "base/status.h"
#include "base/strbuf.h"
#include "model/jinja/value.h"

/* Bounds. An expression in chat templates is some ten levels deep, a conversation of 1,000 messages
 * with tools takes 200,000 steps. */
enum {
    JINJA_MAX_PROGRAM = 1 << 20,
    JINJA_MAX_TREE = 120,   /* levels of nodes */
    JINJA_MAX_NAMES = 1000, /* in one scope */
    JINJA_MAX_STEPS = 20000000,
    JINJA_MAX_MS = 2000,         /* of processor time */
    JINJA_MAX_DEPTH = 600,       /* of evaluation, macros in macros, lists in lists */
    JINJA_MAX_OUTPUT = 16 << 20, /* bytes of one text */
    JINJA_MAX_MEMORY = 256 << 20,
};

struct jinja;

/* `where` stands for the template in messages. Errors: QN_EFORMAT where it is not Jinja,
 * QN_EUNSUPPORTED where it is and not known here, QN_ELIMIT, QN_ENOMEM. */
int jinja_compile(struct diag *d, const char *where, const char *program, size_t n,
                  struct jinja **out);
void jinja_free(struct jinja *j);

/* A run is made for one rendering: jinja_begin, values made with it, jinja_render. jinja_end
 * releases it. now: what strftime_now says; 0: the time. */
void jinja_begin(struct run *r, struct diag *d, const struct jinja *j, time_t now);
/* Appends the rendering with the variables `vars`, a dict. Errors: QN_EINVAL where Jinja raises an
 * exception, and those above. */
int jinja_render(struct run *r, const struct jinja *j, struct value vars, struct strbuf *out);
void jinja_end(struct run *r);

#endif
