/* conversation.c - see conversation.h. */
#include "server/conversation.h"

#include "base/checked.h"
#include "base/jsonio.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KWARGS_BYTES = 16 << 10, MAX_KWARGS_DEPTH = 4 };

/* Behind the text that is to be continued, as transformers' apply_chat_template has it. A template
 * that trims texts takes the blank away. */
static const char mark[] = "CONTINUE_FINAL_MESSAGE_TAG ";

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
    const bool refuses = type && strcmp(type, "refusal") == 0;
    const char *member = refuses ? "refusal" : "text";
    const json_t *words = json_object_get(part, member);
    snprintf(param, sizeof param, "%s[%zu].type", path, i);
    if (!is_text_part(type) && !refuses)
        return problem_set(p, PROBLEM_UNSUPPORTED, param, "%s: want 'text', have '%.40s'", param,
                           type ? type : "nothing");
    snprintf(param, sizeof param, "%s[%zu].%s", path, i, member);
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

int conversation_text(struct problem *p, const json_t *content, const char *path, json_t **out) {
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

static int no_memory(struct problem *p) {
    return problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
}

int conversation_begin(struct problem *p, json_t **messages) {
    *messages = json_array();
    return *messages ? QN_OK : no_memory(p);
}

int conversation_end(int rc, json_t **messages) {
    if (rc == QN_OK) return rc;
    json_decref(*messages);
    *messages = NULL;
    return rc;
}

int conversation_add(struct problem *p, json_t *messages, json_t *message) {
    return message && json_array_append_new(messages, message) == 0 ? QN_OK : no_memory(p);
}

int conversation_set(struct problem *p, json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0 ? QN_OK : no_memory(p);
}

int conversation_add_said(struct problem *p, json_t *messages, const char *role,
                          const json_t *content, const char *path) {
    json_t *text;
    TRY(conversation_text(p, content, path, &text));
    if (!json_is_string(text)) {
        json_decref(text);
        return problem_set(p, PROBLEM_MISSING, path, "%s: is missing", path);
    }
    /* "developer" is what templates call "system" */
    if (strcmp(role, "developer") == 0) role = "system";
    return conversation_add(p, messages, json_pack("{s:s, s:o}", "role", role, "content", text));
}

int conversation_role(struct problem *p, const json_t *message, const char *path,
                      const char *const *roles, const char **role) {
    char param[96];
    snprintf(param, sizeof param, "%s.role", path);
    if (!json_is_object(message))
        return problem_set(p, PROBLEM_TYPE, path, "%s: want an object", path);
    *role = json_string_value(json_object_get(message, "role"));
    for (; *role && *roles; roles++)
        if (strcmp(*role, *roles) == 0) return QN_OK;
    if (!*role) return problem_set(p, PROBLEM_MISSING, param, "%s: is missing, or no text", param);
    return problem_set(p, PROBLEM_VALUE, param, "%s: '%.40s' is no role of this API", param, *role);
}

json_t *conversation_assistant(json_t *messages, bool anew) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!anew && role && strcmp(role, "assistant") == 0) return last;
    last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    return json_array_append_new(messages, last) == 0 ? last : NULL;
}

/* Arguments as templates want them: an object, or the text itself if it is no JSON object. */
static json_t *arguments_of(const json_t *v) {
    const char *text = json_string_value(v);
    json_t *object = NULL;
    if (json_is_object(v)) return json_incref((json_t *)v);
    if (!text) return json_object();
    if (jsonio_parse(NULL, "arguments", text, json_string_length(v), &object) == QN_OK &&
        json_is_object(object))
        return object;
    json_decref(object);
    return *text ? json_incref((json_t *)v) : json_object();
}

int conversation_add_call(struct problem *p, json_t *message, const char *path, const json_t *id,
                          const json_t *name, const json_t *arguments) {
    char param[96];
    snprintf(param, sizeof param, "%s.name", path);
    if (!json_is_string(name))
        return problem_set(p, PROBLEM_MISSING, param, "%s: is missing, or no text", param);
    snprintf(param, sizeof param, "%s.arguments", path);
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments) &&
        !json_is_null(arguments))
        return problem_set(p, PROBLEM_TYPE, param, "%s: want a text of JSON", param);
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        TRY(conversation_set(p, message, "tool_calls", calls));
    }
    json_t *call = json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name", name,
                             "arguments", arguments_of(arguments));
    if (json_is_string(id)) json_object_set(call, "id", (json_t *)id);
    return conversation_add(p, calls, call);
}

int conversation_add_result(struct problem *p, json_t *messages, const char *path,
                            const json_t *content, const json_t *id) {
    json_t *text;
    const json_t *none = content ? content : json_null();
    TRY(conversation_text(p, none, path, &text));
    if (json_is_null(text)) text = json_string("");
    json_t *made = json_pack("{s:s, s:o}", "role", "tool", "content", text);
    if (json_is_string(id)) json_object_set(made, "tool_call_id", (json_t *)id);
    return conversation_add(p, messages, made);
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

/* Refuses variables with the names of the template function's own arguments. */
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

/* ---- continued texts ------------------------------------------------------------------------ */

int conversation_ending(struct call *c, struct conversation *talk) {
    const struct fields *f = &c->fields;
    talk->continues = fields_bool(f, F_CONTINUE_FINAL, false);
    talk->add_generation = fields_bool(f, F_ADD_GENERATION, !talk->continues);
    talk->add_special = fields_bool(f, F_ADD_SPECIAL, false);
    if (!talk->continues || !talk->add_generation) return QN_OK;
    return problem_set(&c->problem, PROBLEM_VALUE, "continue_final_message",
                       "continue_final_message: the last message cannot be continued behind the "
                       "opening of another; set add_generation_prompt to false");
}

static const json_t *last_of(const json_t *messages) {
    return json_array_get(messages, json_array_size(messages) - 1);
}

bool conversation_is_answered(const json_t *messages) {
    const char *role = json_string_value(json_object_get(last_of(messages), "role"));
    return role && strcmp(role, "assistant") == 0;
}

bool conversation_is_open(const json_t *messages) {
    const json_t *last = last_of(messages);
    return conversation_is_answered(messages) && !json_object_get(last, "tool_calls") &&
           json_string_length(json_object_get(last, "content")) > 0;
}

static int mark_end(struct call *c, const json_t *messages) {
    json_t *last = (json_t *)last_of(messages);
    const json_t *text = json_object_get(last, "content");
    if (!conversation_is_open(messages))
        return problem_set(&c->problem, PROBLEM_VALUE, "messages",
                           "messages: only an assistant's message that ends in text can be "
                           "continued; end with such a message, or with a user's");
    return conversation_set(&c->problem, last, "content",
                            json_pack("s%+%", json_string_value(text), json_string_length(text),
                                      mark, sizeof mark - 1));
}

/* Ends the template's text where the mark is. */
static int cut_at_mark(struct call *c, char *text, size_t *n) {
    const size_t n_word = sizeof mark - 2; /* without the blank */
    size_t at = *n < n_word ? 0 : *n - n_word + 1;
    while (at > 0 && memcmp(text + at - 1, mark, n_word) != 0) at--;
    if (at == 0)
        return problem_set(&c->problem, PROBLEM_UNSUPPORTED, "messages",
                           "messages: the model's chat template does not write the end of the last "
                           "message, so that it cannot be continued; end with a user's message");
    const bool trims = text[at - 1 + n_word] != ' ';
    for (at--; trims && at > 0 && isspace((unsigned char)text[at - 1]);) at--;
    text[at] = '\0';
    *n = at;
    return QN_OK;
}

/* ---- the template's text -------------------------------------------------------------------- */

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

/* Renders the conversation into the template's text. */
static int render(struct call *c, const struct conversation *talk, const char *kwargs, char **text,
                  size_t *n) {
    qn_chat_params params;
    qn_error error;
    qn_chat_params_init(&params);
    params.add_generation_prompt = talk->add_generation && !talk->continues;
    params.kwargs_json = kwargs;
    json_t *all = json_pack("{s:O, s:O*}", "messages", talk->messages, "tools", talk->tools);
    char *json = json_dumps(all, JSON_COMPACT);
    const int rc =
        json ? qn_chat_template_render(c->server->chat, json, &params, text, n, &error) : QN_ENOMEM;
    json_decref(all);
    free(json);
    if (rc == QN_OK) return QN_OK;
    if (rc == QN_ENOMEM) return problem_set(&c->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    return problem_set(&c->problem, PROBLEM_VALUE, "messages", "%s", error.message);
}

/* The end of a thought, where answers begin inside one: a text that is continued is none. NULL: the
 * prompt's own end says how the answer begins. */
static const char *end_of_thought(const struct server *s) {
    qn_answer_params params = s->forms;
    qn_answer *answer = NULL;
    params.prompt = "";
    if (!s->forms_info.reasoning_parser || qn_answer_open(&params, &answer, NULL) != QN_OK)
        return NULL;
    const bool inside = qn_answer_next(answer) == QN_PIECE_REASONING;
    qn_answer_close(answer);
    return inside ? s->forms_info.reasoning_end : NULL;
}

/* Gives the prompt's text to be looked at for how the answer begins. */
static int tell_said(struct call *c, const struct conversation *talk, char *text, size_t n,
                     char **said) {
    const char *end = talk->continues ? end_of_thought(c->server) : NULL;
    *said = text;
    for (size_t i = 0; i < n; i++)
        if (!text[i]) text[i] = ' ';
    if (!end) return QN_OK;
    *said = strdup(end);
    qn_free(text);
    return *said ? QN_OK : no_memory(&c->problem);
}

int conversation_ids(struct call *c, const struct conversation *talk, int32_t **ids, size_t *n_ids,
                     char **said) {
    char *text = NULL, *variables = talk->kwargs ? json_dumps(talk->kwargs, JSON_COMPACT) : NULL;
    size_t n = 0;
    int rc = QN_OK;
    if (!c->server->chat)
        rc = problem_set(&c->problem, PROBLEM_UNSUPPORTED, "messages",
                         "the model has no chat template; start with --chat-template, or use "
                         "/v1/completions");
    if (rc == QN_OK && variables) rc = check_kwargs(&c->problem, talk->kwargs, strlen(variables));
    if (rc == QN_OK && talk->continues) rc = mark_end(c, talk->messages);
    if (rc == QN_OK) rc = render(c, talk, variables, &text, &n);
    if (rc == QN_OK && talk->continues) rc = cut_at_mark(c, text, &n);
    free(variables);
    if (rc == QN_OK)
        rc = conversation_tokenize(c, text, n, talk->add_special, "messages", ids, n_ids);
    if (rc == QN_OK && said) return tell_said(c, talk, text, n, said);
    qn_free(text);
    return rc;
}
