/* conversation.c - see conversation.h. */
#include "server/conversation.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KWARGS_BYTES = 16 << 10, MAX_KWARGS_DEPTH = 4 };

/* ---- parts of a message --------------------------------------------------------------------- */

static bool is_text_part(const char *type) {
    static const char *const texts[] = {"text", "input_text", "output_text"};
    for (size_t i = 0; type && i < COUNT_OF(texts); i++)
        if (strcmp(type, texts[i]) == 0) return true;
    return false;
}

static int add_part(struct problem *p, const json_t *part, const char *path, size_t i,
                    struct strbuf *text) {
    char param[96];
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *words = json_object_get(part, "text");
    snprintf(param, sizeof param, "%s[%zu].type", path, i);
    if (!is_text_part(type))
        return problem_set(p, PROBLEM_UNSUPPORTED, param, "%s: want 'text', have '%.40s'", param,
                           type ? type : "nothing");
    snprintf(param, sizeof param, "%s[%zu].text", path, i);
    if (!json_is_string(words))
        return problem_set(p, PROBLEM_TYPE, param, "%s: want a string", param);
    strbuf_add(text, json_string_value(words), json_string_length(words));
    return QN_OK;
}

static int add_parts(struct problem *p, const json_t *content, const char *path,
                     struct strbuf *text) {
    for (size_t i = 0; i < json_array_size(content); i++)
        TRY(add_part(p, json_array_get(content, i), path, i, text));
    return QN_OK;
}

/* Text or parts as one JSON string, null as null. */
static int content_text(struct problem *p, const json_t *content, const char *path, json_t **out) {
    struct strbuf text = {0};
    *out = NULL;
    if (!json_is_string(content) && !json_is_array(content) && !json_is_null(content))
        return problem_set(p, PROBLEM_TYPE, path, "%s: want a string or an array of text parts",
                           path);
    if (!json_is_array(content)) {
        *out = json_copy((json_t *)content);
        return *out ? QN_OK : problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
    }
    const int rc = add_parts(p, content, path, &text);
    if (rc == QN_OK) *out = json_stringn_nocheck(strbuf_text(&text), text.n);
    strbuf_fini(&text);
    return rc;
}

/* ---- messages ------------------------------------------------------------------------------- */

static int read_role(struct problem *p, const json_t *message, const char *param,
                     const char *const *roles, size_t n_roles, const char **role) {
    *role = json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; *role && i < n_roles; i++)
        if (strcmp(*role, roles[i]) == 0) return QN_OK;
    if (!*role) return problem_set(p, PROBLEM_MISSING, param, "%s: is missing, or no text", param);
    return problem_set(p, PROBLEM_VALUE, param, "%s: '%.40s' is no role of this API", param, *role);
}

/* A message with a text for its content; "developer" is what templates call "system". */
static int add_message(struct problem *p, const json_t *message, const char *field, size_t i,
                       const char *const *roles, size_t n_roles, json_t *messages) {
    char param[96];
    const char *role;
    json_t *text;
    snprintf(param, sizeof param, "%s[%zu]", field, i);
    if (!json_is_object(message))
        return problem_set(p, PROBLEM_TYPE, param, "%s: want an object", param);
    snprintf(param, sizeof param, "%s[%zu].role", field, i);
    TRY(read_role(p, message, param, roles, n_roles, &role));
    snprintf(param, sizeof param, "%s[%zu].tool_calls", field, i);
    const json_t *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_null(calls) && !(json_is_array(calls) && json_array_size(calls) == 0))
        return problem_set(p, PROBLEM_UNSUPPORTED, param, "%s: tools are not supported", param);
    snprintf(param, sizeof param, "%s[%zu].content", field, i);
    TRY(content_text(p, json_object_get(message, "content"), param, &text));
    if (!json_is_string(text)) {
        json_decref(text);
        return problem_set(p, PROBLEM_MISSING, param, "%s: is missing", param);
    }
    if (strcmp(role, "developer") == 0) role = "system";
    json_t *made = json_pack("{s:s, s:o}", "role", role, "content", text);
    if (made && json_array_append_new(messages, made) == 0) return QN_OK;
    return problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
}

static int add_messages(struct problem *p, const json_t *said, const char *field,
                        const char *const *roles, size_t n_roles, json_t *messages) {
    for (size_t i = 0; i < json_array_size(said); i++)
        TRY(add_message(p, json_array_get(said, i), field, i, roles, n_roles, messages));
    return QN_OK;
}

static int add_system(struct problem *p, const json_t *content, const char *field,
                      json_t *messages) {
    json_t *text;
    if (!content) return QN_OK;
    TRY(content_text(p, content, field, &text));
    json_t *made = json_pack("{s:s, s:o}", "role", "system", "content", text);
    if (made && json_array_append_new(messages, made) == 0) return QN_OK;
    return problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
}

static int begin(struct problem *p, json_t **messages) {
    *messages = json_array();
    return *messages ? QN_OK : problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
}

/* Nothing is left of a conversation that failed. */
static int end(int rc, json_t **messages) {
    if (rc == QN_OK) return rc;
    json_decref(*messages);
    *messages = NULL;
    return rc;
}

int conversation_of_chat(struct problem *p, const json_t *said, json_t **messages) {
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    TRY(begin(p, messages));
    return end(add_messages(p, said, "messages", roles, COUNT_OF(roles), *messages), messages);
}

int conversation_of_messages(struct problem *p, const json_t *system, const json_t *said,
                             json_t **messages) {
    static const char *const roles[] = {"user", "assistant"};
    TRY(begin(p, messages));
    int rc = add_system(p, system, "system", *messages);
    if (rc == QN_OK) rc = add_messages(p, said, "messages", roles, COUNT_OF(roles), *messages);
    return end(rc, messages);
}

/* The input's items but messages: their kinds belong to tools and reasoning. */
static int check_items(struct problem *p, const json_t *input) {
    char param[96];
    for (size_t i = 0; i < json_array_size(input); i++) {
        const json_t *of = json_object_get(json_array_get(input, i), "type");
        const char *type = json_string_value(of);
        if (!of || (type && strcmp(type, "message") == 0)) continue;
        snprintf(param, sizeof param, "input[%zu].type", i);
        return problem_set(p, PROBLEM_UNSUPPORTED, param, "%s: want 'message', have '%.40s'", param,
                           type ? type : "no text");
    }
    return QN_OK;
}

int conversation_of_responses(struct problem *p, const char *instructions, const json_t *input,
                              json_t **messages) {
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    TRY(begin(p, messages));
    int rc = check_items(p, input);
    if (rc == QN_OK && json_is_array(input) && json_array_size(input) == 0)
        rc = problem_set(p, PROBLEM_VALUE, "input", "input: has no message");
    if (rc == QN_OK && instructions)
        rc = json_array_append_new(
                 *messages, json_pack("{s:s, s:s}", "role", "system", "content", instructions)) == 0
                 ? QN_OK
                 : problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
    if (rc == QN_OK && json_is_string(input))
        rc = json_array_append_new(*messages,
                                   json_pack("{s:s, s:O}", "role", "user", "content", input)) == 0
                 ? QN_OK
                 : problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
    if (rc == QN_OK && json_is_array(input))
        rc = add_messages(p, input, "input", roles, COUNT_OF(roles), *messages);
    return end(rc, messages);
}

/* ---- ids ------------------------------------------------------------------------------------ */

static unsigned depth_of(const json_t *v) {
    unsigned deepest = 0;
    const char *key;
    json_t *inner;
    size_t i;
    json_object_foreach((json_t *)v, key, inner) deepest = MAX(deepest, depth_of(inner));
    json_array_foreach((json_t *)v, i, inner) deepest = MAX(deepest, depth_of(inner));
    return 1 + deepest;
}

/* Names that a request may not give to the template: they are the function's own arguments. */
static int check_kwargs(struct problem *p, const json_t *kwargs, size_t n_bytes) {
    static const char *const own[] = {"messages", "tools",         "documents",
                                      "template", "chat_template", "tokenize"};
    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (json_object_get(kwargs, own[i]))
            return problem_set(p, PROBLEM_VALUE, "chat_template_kwargs",
                               "chat_template_kwargs: '%s' is not a variable of a request's",
                               own[i]);
    if (n_bytes > MAX_KWARGS_BYTES || depth_of(kwargs) > MAX_KWARGS_DEPTH)
        return problem_set(p, PROBLEM_VALUE, "chat_template_kwargs",
                           "chat_template_kwargs: want at most %d bytes and %d levels",
                           MAX_KWARGS_BYTES, MAX_KWARGS_DEPTH);
    return QN_OK;
}

int conversation_tokenize(struct call *c, const char *text, size_t n, bool add_special,
                          const char *param, int32_t **ids, size_t *n_ids) {
    qn_error error;
    if (!c->server->tokenizer)
        return problem_set(&c->problem, PROBLEM_UNSUPPORTED, param,
                           "%s: the model has no tokenizer; send token ids", param);
    const int rc = qn_tokenize(c->server->tokenizer, text, n, add_special, ids, n_ids, &error);
    if (rc == QN_OK) return QN_OK;
    return problem_set(&c->problem, rc == QN_ENOMEM ? PROBLEM_INTERNAL : PROBLEM_VALUE, param, "%s",
                       error.message);
}

/* The conversation as the template's text. */
static int render(struct call *c, const json_t *messages, const char *kwargs, bool add_generation,
                  char **text, size_t *n) {
    qn_chat_params params;
    qn_error error;
    qn_chat_params_init(&params);
    params.add_generation_prompt = add_generation;
    params.kwargs_json = kwargs;
    char *json = json_dumps(messages, JSON_COMPACT);
    const int rc =
        json ? qn_chat_template_render(c->server->chat, json, &params, text, n, &error) : QN_ENOMEM;
    free(json);
    if (rc == QN_OK) return QN_OK;
    if (rc == QN_ENOMEM) return problem_set(&c->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    return problem_set(&c->problem, PROBLEM_VALUE, "messages", "%s", error.message);
}

int conversation_ids(struct call *c, const json_t *messages, const json_t *kwargs,
                     bool add_generation, bool add_special, int32_t **ids, size_t *n_ids) {
    char *text = NULL, *variables = kwargs ? json_dumps(kwargs, JSON_COMPACT) : NULL;
    size_t n = 0;
    int rc = QN_OK;
    if (!c->server->chat)
        rc = problem_set(&c->problem, PROBLEM_UNSUPPORTED, "messages",
                         "the model has no chat template; start with --chat-template, or use "
                         "/v1/completions");
    if (rc == QN_OK && variables) rc = check_kwargs(&c->problem, kwargs, strlen(variables));
    if (rc == QN_OK) rc = render(c, messages, variables, add_generation, &text, &n);
    free(variables);
    if (rc == QN_OK) rc = conversation_tokenize(c, text, n, add_special, "messages", ids, n_ids);
    qn_free(text);
    return rc;
}
