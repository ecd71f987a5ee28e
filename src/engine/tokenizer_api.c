/* tokenizer_api.c - the public functions around model/tokenizer.h and model/chat_template.h. */
#include "engine/engine.h"

#include "base/jsonio.h"
#include "model/chat_template.h"

#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_MESSAGES = 4096 };

static int open_tokenizer(struct diag *d, const char *path, struct qn_tokenizer **out) {
    struct qn_tokenizer *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) return fail_nomem(d, sizeof *t, "a tokenizer");
    t->dir = strdup(path);
    int rc = t->dir ? tokenizer_open(d, path, &t->tokens) : fail_nomem(d, strlen(path), "a path");
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

struct conversation {
    struct arena arena;
    struct chat_message *messages;
    size_t n;
};

/* A content: a string, null, or OpenAI's list of parts, of which only text is known. */
static int read_content(struct diag *d, struct conversation *c, size_t index, const json_t *content,
                        struct chat_message *m) {
    struct strbuf joined = {0};
    size_t i;
    json_t *part;
    if (json_is_string(content)) {
        m->content = json_string_value(content);
        m->n = json_string_length(content);
        return QN_OK;
    }
    m->content = "";
    if (!content || json_is_null(content)) return QN_OK;
    if (!json_is_array(content))
        return fail(d, QN_EFORMAT, "messages[%zu].content: want a string", index);
    json_array_foreach((json_t *)(uintptr_t)content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text)) {
            strbuf_fini(&joined);
            return fail(d, QN_EUNSUPPORTED, "messages[%zu].content[%zu]: only text is supported",
                        index, i);
        }
        strbuf_add(&joined, json_string_value(text), json_string_length(text));
    }
    char *copy = NULL;
    m->n = joined.n;
    int rc = strbuf_status(d, &joined);
    if (rc == QN_OK) rc = arena_copy(d, &c->arena, strbuf_text(&joined), joined.n, &copy);
    m->content = copy;
    strbuf_fini(&joined);
    return rc;
}

static int read_messages(struct diag *d, const json_t *list, struct conversation *c) {
    if (!json_is_array(list)) return fail(d, QN_EFORMAT, "messages: want an array");
    size_t n = json_array_size(list);
    if (n == 0) return fail(d, QN_EINVAL, "messages: empty");
    if (n > MAX_MESSAGES)
        return fail(d, QN_ELIMIT, "messages: at most %d, have %zu", MAX_MESSAGES, n);
    TRY(ARENA_NEW(d, &c->arena, &c->messages, n));
    for (; c->n < n; c->n++) {
        const json_t *m = json_array_get(list, c->n);
        const char *role = json_string_value(json_object_get(m, "role"));
        if (!role) return fail(d, QN_EFORMAT, "messages[%zu].role: want a string", c->n);
        c->messages[c->n].role = role;
        TRY(read_content(d, c, c->n, json_object_get(m, "content"), &c->messages[c->n]));
    }
    return QN_OK;
}

static int read_kwargs(struct diag *d, const char *text, struct chat_options *o) {
    json_t *root = NULL;
    const char *key;
    json_t *value;
    int rc = QN_OK;
    if (!text) return QN_OK;
    TRY(jsonio_parse(d, "chat_template_kwargs", text, strlen(text), &root));
    if (!json_is_object(root)) rc = fail(d, QN_EFORMAT, "chat_template_kwargs: want an object");
    json_object_foreach(root, key, value) {
        if (rc != QN_OK) break;
        if (strcmp(key, "enable_thinking") == 0 && json_is_boolean(value))
            o->thinking = json_is_true(value) ? CHAT_THINKING_ON : CHAT_THINKING_OFF;
        else
            rc = fail(d, QN_EUNSUPPORTED,
                      "chat_template_kwargs.%s: want enable_thinking, a boolean", key);
    }
    json_decref(root);
    return rc;
}

static int render(struct diag *d, const struct qn_tokenizer *t, const char *messages_json,
                  const qn_chat_params *p, struct strbuf *out) {
    struct chat_options options = {.add_generation_prompt = p->add_generation_prompt != 0};
    struct conversation c = {0};
    struct chat_template *template = NULL;
    json_t *root = NULL;
    TRY(read_kwargs(d, p->kwargs_json, &options));
    TRY(jsonio_parse(d, "messages", messages_json, strlen(messages_json), &root));
    int rc = read_messages(d, root, &c);
    if (rc == QN_OK) rc = chat_template_open(d, t->dir, p->chat_template, &template);
    if (rc == QN_OK) rc = chat_template_render(d, template, c.messages, c.n, &options, out);
    chat_template_free(template);
    json_decref(root);
    arena_fini(&c.arena);
    return rc;
}

int qn_chat_render(const qn_tokenizer *tokenizer, const char *messages_json,
                   const qn_chat_params *params, char **text, size_t *n_text, qn_error *error) {
    struct diag d = {0};
    struct strbuf b = {0};
    qn_chat_params p;
    qn_chat_params_init(&p);
    *text = NULL;
    *n_text = 0;
    if (params && !api_struct_in(&p, sizeof p, params))
        return api_return(fail(&d, QN_EINVAL, "qn_chat_params: struct_size is not set"), &d, error);
    int rc = render(&d, tokenizer, messages_json, &p, &b);
    rc = give_text(&d, rc, &b, text, n_text);
    return api_return(rc, &d, error);
}
