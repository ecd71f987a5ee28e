/* answer_api.c - the public side of src/chat. */
#include "engine/api.h"

#include "base/array.h"
#include "base/checked.h"
#include "chat/answer.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

#include <stdlib.h>

_Static_assert((int)QN_PIECE_REASONING == (int)PIECE_REASONING &&
                   (int)QN_PIECE_TEXT == (int)PIECE_TEXT && (int)QN_PIECE_CALL == (int)PIECE_CALL &&
                   (int)QN_PIECE_ARGUMENTS == (int)PIECE_ARGUMENTS,
               "quern.h and answer.h number alike");

struct qn_answer {
    struct answer *answer;
    ARRAY(qn_piece) pieces; /* of the last call */
};

/* The forms that params name. */
struct forms {
    const struct tool_form *tools;
    const struct reasoning_form *thinks;
};

void qn_answer_params_init(qn_answer_params *params) {
    *params = (qn_answer_params){.struct_size = sizeof *params};
}

static bool is_none(const char *name) {
    return name && strcmp(name, "none") == 0;
}

static int find_forms(struct diag *d, const qn_answer_params *p, struct forms *f) {
    const char *program = p->chat_template ? chat_template_program(p->chat_template->chat) : NULL;
    if (!program) program = "";
    *f = (struct forms){0};
    if (!is_none(p->tool_parser))
        f->tools =
            p->tool_parser ? tool_form_named(p->tool_parser, program) : tool_form_of(program);
    if (!is_none(p->reasoning_parser))
        f->thinks = p->reasoning_parser ? reasoning_form_find(p->reasoning_parser)
                                        : reasoning_form_of(program);
    if (p->tool_parser && !f->tools && !is_none(p->tool_parser))
        return fail(d, QN_EINVAL, "tool-call-parser: '%.60s' is not known; want none, %s",
                    p->tool_parser, tool_form_names());
    if (p->reasoning_parser && !f->thinks && !is_none(p->reasoning_parser))
        return fail(d, QN_EINVAL, "reasoning-parser: '%.60s' is not known; want none, %s",
                    p->reasoning_parser, reasoning_form_names());
    return QN_OK;
}

static int read_params(struct diag *d, const qn_answer_params *given, qn_answer_params *p,
                       struct forms *f) {
    qn_answer_params_init(p);
    if (!api_struct_in(p, sizeof *p, given))
        return fail(d, QN_EINVAL, "qn_answer_params: struct_size is not set");
    return find_forms(d, p, f);
}

/* Whether the text is one special token. `user` is a qn_tokenizer, or NULL. */
static bool is_special(void *user, const char *text) {
    const qn_tokenizer *t = user;
    struct token_ids ids = {0};
    if (!t) return false;
    const bool yes = tokenizer_encode(NULL, t->tokens, text, strlen(text), false, &ids) == QN_OK &&
                     ids.n == 1 && tokenizer_is_special(t->tokens, ids.items[0]);
    ARRAY_FINI(&ids);
    return yes;
}

static bool has_special(const struct forms *f, const qn_tokenizer *t) {
    bool yes = false;
    for (const char *const *mark = f->tools ? f->tools->marks : NULL; mark && *mark; mark++)
        yes |= is_special((void *)t, *mark);
    if (f->thinks)
        yes |= is_special((void *)t, f->thinks->open) || is_special((void *)t, f->thinks->close);
    return yes;
}

int qn_answer_get_info(const qn_answer_params *params, const qn_tokenizer *tokenizer,
                       qn_answer_info *info, qn_error *error) {
    struct diag d = {0};
    struct forms f;
    qn_answer_params p;
    int rc = read_params(&d, params, &p, &f);
    if (rc == QN_OK && !api_struct_fits(info, sizeof info->struct_size))
        rc = fail(&d, QN_EINVAL, "qn_answer_info: struct_size is not set");
    if (rc != QN_OK) return api_return(rc, &d, error);
    const qn_answer_info full = {
        .struct_size = info->struct_size,
        .tool_parser = f.tools ? f.tools->name : NULL,
        .reasoning_parser = f.thinks ? f.thinks->name : NULL,
        .has_special_marks = has_special(&f, tokenizer),
        .id_length = f.tools ? (uint32_t)f.tools->n_id : 0,
        .reasoning_end = f.thinks ? f.thinks->end : "",
        .reasoning_gap = f.thinks ? f.thinks->gap : "",
    };
    api_struct_out(info, &full, sizeof full);
    return api_return(QN_OK, &d, error);
}

int qn_answer_open(const qn_answer_params *params, qn_answer **answer, qn_error *error) {
    struct diag d = {0};
    struct forms f;
    qn_answer_params p;
    struct qn_answer *a = calloc(1, sizeof *a);
    *answer = NULL;
    int rc = a ? read_params(&d, params, &p, &f) : fail_nomem(&d, sizeof *a, "an answer");
    if (rc == QN_OK) {
        const struct answer_params made = {.form = f.tools,
                                           .thinks = f.thinks,
                                           .tools = p.tools_json,
                                           .prompt = p.prompt,
                                           .max_calls = p.max_calls};
        rc = answer_new(&d, &made, &a->answer);
    }
    if (rc == QN_OK)
        *answer = a;
    else
        qn_answer_close(a);
    return api_return(rc, &d, error);
}

void qn_answer_close(qn_answer *answer) {
    if (!answer) return;
    answer_free(answer->answer);
    ARRAY_FINI(&answer->pieces);
    free(answer);
}

int qn_answer_read(qn_answer *answer, const char *text, size_t n_text, int last,
                   const qn_piece **pieces, size_t *n_pieces, qn_error *error) {
    struct diag d = {0};
    size_t n = 0;
    *pieces = NULL;
    *n_pieces = 0;
    int rc = answer_read(&d, answer->answer, text, n_text, last != 0);
    const struct piece *found = answer_pieces(answer->answer, &n);
    if (rc == QN_OK) rc = ARRAY_RESERVE(&d, &answer->pieces, n);
    if (rc != QN_OK) return api_return(rc, &d, error);
    for (size_t i = 0; i < n; i++)
        answer->pieces.items[i] =
            (qn_piece){found[i].kind, answer_text(answer->answer) + found[i].first, found[i].n};
    *pieces = answer->pieces.items;
    *n_pieces = n;
    return api_return(QN_OK, &d, error);
}

int qn_answer_next(const qn_answer *answer) {
    if (answer_begins(answer->answer)) return 0;
    return answer_thinks(answer->answer) ? QN_PIECE_REASONING : QN_PIECE_TEXT;
}

/* ---- grammars ----------------------------------------------------------------------------- */

static int write_grammar(struct diag *d, const qn_answer_params *p, const struct forms *f,
                         const char *name, struct call_grammar *g, struct toolset *tools) {
    if (!f->tools)
        return fail(d, QN_EINVAL, "tools: the model has no form of calls that is known here");
    TRY(toolset_read(d, p->tools_json ? p->tools_json : "[]", tools));
    g->tools = tools;
    g->named = name ? toolset_find(tools, name, strlen(name)) : NULL;
    if (name && !g->named) return fail(d, QN_EINVAL, "tools: none is called '%.60s'", name);
    if (tools->n == 0) return fail(d, QN_EINVAL, "tools: there are none");
    TRY(f->tools->grammar(d, g));
    return strbuf_status(d, &g->text);
}

int qn_answer_grammar(const qn_answer_params *params, const qn_tokenizer *tokenizer,
                      const char *name, int parallel, char **grammar, qn_error *error) {
    struct diag d = {0};
    struct forms f;
    struct toolset tools = {0};
    qn_answer_params p;
    struct call_grammar g = {
        .parallel = parallel != 0, .is_special = is_special, .user = (void *)tokenizer};
    *grammar = NULL;
    int rc = read_params(&d, params, &p, &f);
    if (rc == QN_OK) rc = write_grammar(&d, &p, &f, name, &g, &tools);
    if (rc == QN_OK)
        *grammar = g.text.text;
    else
        strbuf_fini(&g.text);
    toolset_fini(&tools);
    return api_return(rc, &d, error);
}
