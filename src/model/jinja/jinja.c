#include "model/jinja/jinja.h"
#include "model/jinja/exec.h"
#include "model/jinja/node.h"
#include "model/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

int jinja_compile(struct diag *d, const char *where, const char *program, size_t n,
                  struct jinja **out) {
    struct jinja *j;
    char *name = NULL;
    *out = NULL;
    if (n > JINJA_MAX_PROGRAM)
        return fail(d, QN_ELIMIT, "%s: a chat template of more than %d bytes", where,
                    JINJA_MAX_PROGRAM);
    if (!tokenizer_text_valid(program, n)) return fail(d, QN_EFORMAT, "%s: not UTF-8", where);
    j = calloc(1, sizeof *j);
    if (j == NULL) return fail_nomem(d, sizeof *j, "a chat template");
    int rc = arena_strdup(d, &j->arena, where, &name);
    j->where = name;
    if (rc == QN_OK) rc = parse(d, j, program, n);
    if (rc == QN_OK) rc = scope_resolve(d, j);
    if (rc != QN_OK) {
        jinja_free(j);
        return rc;
    }
    *out = j;
    return QN_OK;
}

void jinja_free(struct jinja *j) {
    if (j == NULL) return;
    arena_fini(&j->arena);
    free(j);
}

void jinja_begin(struct run *r, struct diag *d, const struct jinja *j, time_t now) {
    *r = (struct run){.d = d, .where = j->where, .line = 1, .caller = j->caller};
    r->now = now == 0 ? time(NULL) : now;
}

int jinja_render(struct run *r, const struct jinja *j, struct value vars, struct strbuf *out) {
    struct value text;
    r->vars = vars.dict;
    r->depth = 0;
    TRY(out_new(r, &r->out));
    TRY(exec_root(r, j));
    TRY(out_value(r->out, &text));
    strbuf_add(out, text.text->p, text.text->n);
    return strbuf_status(r->d, out);
}

void jinja_end(struct run *r) {
    arena_fini(&r->arena);
}
