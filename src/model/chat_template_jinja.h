/* chat_template_jinja.h - the parts of a Jinja program that chat_template.c looks at.
 *
 * The program is cut into its tags. What `{{ a + b }}` writes and `{% set x = a + b %}` keeps is
 * taken apart where it is a plain sum of texts and known variables; other expressions are passed
 * over. Text between the tags, after Jinja's own trimming (transformers switches trim_blocks and
 * lstrip_blocks on), must be empty: a program that writes that way is not one of ours.
 */
#ifndef QN_MODEL_CHAT_TEMPLATE_JINJA_H
#define QN_MODEL_CHAT_TEMPLATE_JINJA_H

#include "base/arena.h"
#include "base/array.h"
#include "base/strbuf.h"

#include <stdbool.h>

struct jinja_term {
    enum jinja_kind {
        JINJA_TEXT,
        JINJA_BOS,
        JINJA_EOS,
        JINJA_ROLE,    /* message.role */
        JINJA_CONTENT, /* message.content, or the variable `content` */
        JINJA_SYSTEM,  /* system_message */
        JINJA_DATE,    /* date_string */
    } kind;
    const char *text; /* JINJA_TEXT: n bytes, escapes resolved, in the arena */
    size_t n;
    bool strip; /* | trim or .strip() */
};

enum { JINJA_MAX_TERMS = 8 };

struct jinja_sum {
    struct jinja_term terms[JINJA_MAX_TERMS]; /* no two JINJA_TEXT side by side */
    int n;
    const char *target; /* `{% set target = ... %}`; NULL: written */
};

struct jinja {
    struct arena arena;
    ARRAY(struct jinja_sum) sums;
    /* All tags without spaces, with ' for every ", x['y'] as x.y, each followed by a newline: for
     * asking whether the program does something. */
    struct strbuf squeezed;
};

/* Errors: QN_EFORMAT (a tag without end), QN_EUNSUPPORTED (text between tags). */
int jinja_parse(struct diag *d, const char *where, const char *program, size_t n, struct jinja *j);
void jinja_fini(struct jinja *j);

/* Whether the squeezed tags contain `what`. */
bool jinja_has(const struct jinja *j, const char *what);
/* The first sum of exactly these kinds ("TRTCT": text, role, content, system, bos, eos, date),
 * that is set to `target` (NULL: written) and whose first text begins with `prefix`. NULL: none. */
const struct jinja_sum *jinja_find(const struct jinja *j, const char *target, const char *kinds,
                                   const char *prefix);

#endif
