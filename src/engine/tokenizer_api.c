/* tokenizer_api.c - the public functions around model/tokenizer.h and model/chat_template.h. */
#include "engine/engine.h"

#include "model/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int open_tokenizer(struct diag *d, const char *path, struct qn_tokenizer **out) {
    struct qn_tokenizer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return fail_nomem(d, sizeof *t, "a tokenizer");
    t->dir = strdup(path);
    int rc = t->dir ? tokenizer_open(d, path, &t->tokens) : fail_nomem(d, strlen(path), "a path");
    if (rc == QN_OK && chat_template_open(&t->chat_error, path, NULL, &t->chat) == QN_ENOMEM)
        rc = fail_nomem(d, 0, "the chat template");
    if (rc == QN_OK)
        *out = t;
    else
        qn_tokenizer_close(t);
    return rc;
}

int engine_tokenizer(struct diag *d, const char *dir, struct qn_tokenizer **out) {
    char path[4200];
    struct stat st;
    *out = NULL;
    int n = snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (n < 0 || (size_t)n >= sizeof path) return fail(d, QN_ELIMIT, "tokenizer: path too long");
    bool directory = stat(dir, &st) == 0 && S_ISDIR(st.st_mode);
    if (directory && stat(path, &st) != 0) return QN_OK; /* none */
    return open_tokenizer(d, dir, out);
}

int qn_tokenizer_open(const char *path, qn_tokenizer **tokenizer, qn_error *error) {
    struct diag d = {0};
    int rc = path ? open_tokenizer(&d, path, tokenizer)
                  : fail(&d, QN_EINVAL, "tokenizer: want a directory");
    return api_return(rc, &d, error);
}

void qn_tokenizer_close(qn_tokenizer *tokenizer) {
    if (!tokenizer) return;
    tokenizer_free(tokenizer->tokens);
    chat_template_free(tokenizer->chat);
    free(tokenizer->dir);
    free(tokenizer);
}

int32_t qn_tokenizer_n_vocab(const qn_tokenizer *tokenizer) {
    return tokenizer_n_vocab(tokenizer->tokens);
}

int qn_tokenize(const qn_tokenizer *tokenizer, const char *text, size_t n_text, int add_special,
                int32_t **ids, size_t *n_ids, qn_error *error) {
    struct diag d = {0};
    struct token_ids list = {0};
    *ids = NULL;
    *n_ids = 0;
    int rc = ARRAY_RESERVE(&d, &list, 1); /* so that "no ids" is a pointer too */
    if (rc == QN_OK)
        rc = tokenizer_encode(&d, tokenizer->tokens, text, n_text, add_special != 0, &list);
    if (rc == QN_OK) {
        *ids = list.items;
        *n_ids = list.n;
    } else {
        ARRAY_FINI(&list);
    }
    return api_return(rc, &d, error);
}

/* Hands a text over to the caller. */
static int give_text(struct diag *d, int rc, struct strbuf *b, char **text, size_t *n) {
    if (rc == QN_OK) strbuf_str(b, ""); /* an empty text is a pointer too */
    if (rc == QN_OK) rc = strbuf_status(d, b);
    if (rc == QN_OK && !b->text) rc = (b->text = calloc(1, 1)) ? QN_OK : fail_nomem(d, 1, "text");
    if (rc != QN_OK) {
        strbuf_fini(b);
        return rc;
    }
    *text = b->text;
    *n = b->n;
    return QN_OK;
}

int qn_detokenize(const qn_tokenizer *tokenizer, const int32_t *ids, size_t n_ids, int skip_special,
                  char **text, size_t *n_text, qn_error *error) {
    struct diag d = {0};
    struct strbuf b = {0};
    *text = NULL;
    *n_text = 0;
    int rc = tokenizer_decode(&d, tokenizer->tokens, ids, n_ids, skip_special != 0, &b);
    rc = give_text(&d, rc, &b, text, n_text);
    return api_return(rc, &d, error);
}

/* ---- chat --------------------------------------------------------------------------------- */

void qn_chat_params_init(qn_chat_params *params) {
    *params = (qn_chat_params){.struct_size = sizeof *params, .add_generation_prompt = 1};
}

/* Renders with the template that p names, or else with `own`. */
static int render(struct diag *d, const char *dir, const struct chat_template *own,
                  const char *conversation, const qn_chat_params *p, struct strbuf *out) {
    struct chat_options options = {.add_generation_prompt = p->add_generation_prompt != 0,
                                   .kwargs = p->kwargs_json};
    struct chat_template *other = NULL;
    if (!conversation) return fail(d, QN_EINVAL, "messages: want JSON");
    if (p->chat_template) TRY(chat_template_open(d, dir, p->chat_template, &other));
    int rc = chat_template_render(d, other ? other : own, conversation, strlen(conversation),
                                  &options, out);
    chat_template_free(other);
    return rc;
}

/* Checks *params into *p, renders and hands the text over. own_error: why there is no `own`. */
static int render_out(const char *dir, const struct chat_template *own,
                      const struct diag *own_error, const char *conversation,
                      const qn_chat_params *params, char **text, size_t *n_text, qn_error *error) {
    struct diag d = {0};
    struct strbuf b = {0};
    qn_chat_params p;
    qn_chat_params_init(&p);
    *text = NULL;
    *n_text = 0;
    if (params && !api_struct_in(&p, sizeof p, params))
        return api_return(fail(&d, QN_EINVAL, "qn_chat_params: struct_size is not set"), &d, error);
    int rc = !own && !p.chat_template ? fail(&d, own_error->code, "%s", own_error->message)
                                      : render(&d, dir, own, conversation, &p, &b);
    rc = give_text(&d, rc, &b, text, n_text);
    return api_return(rc, &d, error);
}

int qn_chat_render(const qn_tokenizer *tokenizer, const char *messages_json,
                   const qn_chat_params *params, char **text, size_t *n_text, qn_error *error) {
    return render_out(tokenizer->dir, tokenizer->chat, &tokenizer->chat_error, messages_json,
                      params, text, n_text, error);
}

int qn_chat_template_open(const char *dir, const char *name, qn_chat_template **chat_template,
                          qn_error *error) {
    struct diag d = {0};
    struct qn_chat_template *t = calloc(1, sizeof *t);
    *chat_template = NULL;
    int rc = t ? QN_OK : fail_nomem(&d, sizeof *t, "a chat template");
    if (rc == QN_OK && !dir && !name)
        rc = fail(&d, QN_EINVAL, "chat template: want a directory or a name");
    if (rc == QN_OK && dir && !(t->dir = strdup(dir))) rc = fail_nomem(&d, strlen(dir), "a path");
    if (rc == QN_OK) rc = chat_template_open(&d, dir, name, &t->chat);
    if (rc == QN_OK)
        *chat_template = t;
    else
        qn_chat_template_close(t);
    return api_return(rc, &d, error);
}

void qn_chat_template_close(qn_chat_template *chat_template) {
    if (!chat_template) return;
    chat_template_free(chat_template->chat);
    free(chat_template->dir);
    free(chat_template);
}

int qn_chat_template_render(const qn_chat_template *chat_template, const char *messages_json,
                            const qn_chat_params *params, char **text, size_t *n_text,
                            qn_error *error) {
    static const struct diag none = {0};
    return render_out(chat_template->dir, chat_template->chat, &none, messages_json, params, text,
                      n_text, error);
}
