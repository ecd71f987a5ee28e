/* problem.c - see problem.h. */
#include "server/problem.h"
#include "server/json_write.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    int status;
    const char *type, *code, *kind;
} table[N_PROBLEMS] = {
    [PROBLEM_NONE] = {200, "", "", ""},
#define PROBLEM(ID, status, type, code, kind) [PROBLEM_##ID] = {status, type, code, kind},
#include "server/problem.def"
#undef PROBLEM
};

int problem_set(struct problem *p, enum problem_kind kind, const char *param, const char *fmt,
                ...) {
    va_list args;
    if (p->kind != PROBLEM_NONE) return QN_EINVAL;
    p->kind = kind;
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    va_start(args, fmt);
    vsnprintf(p->message, sizeof p->message, fmt, args);
    va_end(args);
    status_one_line(p->param);
    status_one_line(p->message);
    return QN_EINVAL;
}

int problem_status(enum problem_kind kind) {
    return table[kind].status;
}

void problem_json(const struct problem *p, enum dialect dialect, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    if (dialect == DIALECT_ANTHROPIC) json_write_text(b, "type", "error");
    json_write_open(b, "error", '{');
    if (dialect == DIALECT_ANTHROPIC) {
        json_write_text(b, "type", table[p->kind].kind);
        json_write_text(b, "message", p->message);
    } else {
        json_write_text(b, "message", p->message);
        json_write_text(b, "type", table[p->kind].type);
        json_write_text(b, "param", p->param[0] ? p->param : NULL);
        json_write_text(b, "code", table[p->kind].code);
    }
    json_write_close(b, '}');
    json_write_close(b, '}');
}
