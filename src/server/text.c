/* text.c - /tokenize and /detokenize. */
#include "server/chat_use.h"
#include "server/conversation.h"
#include "server/json_write.h"
#include "server/routes.h"

#include <stdlib.h>
#include <string.h>

static int ids_of_messages(struct call *c, int32_t **ids, size_t *n) {
    struct chat_use use = {0};
    struct conversation talk = {0};
    int rc = chat_use_read(c, &use);
    if (rc == QN_OK) rc = conversation_ending(c, &talk);
    if (rc == QN_OK)
        rc = conversation_of_chat(&c->problem, c->fields.value[F_TEXT_MESSAGES], &talk.messages);
    talk.tools = use.tools;
    talk.kwargs = use.kwargs;
    if (rc == QN_OK) rc = conversation_ids(c, &talk, ids, n, NULL);
    json_decref(talk.messages);
    chat_use_free(&use);
    return rc;
}

static int ids_of_body(struct call *c, int32_t **ids, size_t *n) {
    const json_t *prompt = c->fields.value[F_TEXT_PROMPT];
    const bool has_messages = fields_has(&c->fields, F_TEXT_MESSAGES);
    if (!prompt && !has_messages)
        return problem_set(&c->problem, PROBLEM_MISSING, "prompt",
                           "prompt: is missing, and so is messages");
    if (prompt && has_messages)
        return problem_set(&c->problem, PROBLEM_VALUE, "messages",
                           "messages: beside prompt; give one of them");
    if (has_messages) return ids_of_messages(c, ids, n);
    return conversation_tokenize(c, json_string_value(prompt), json_string_length(prompt),
                                 fields_bool(&c->fields, F_ADD_SPECIAL, true), "prompt", ids, n);
}

static void write_token_texts(struct call *c, const int32_t *ids, size_t n) {
    json_write_open(&c->out, "token_strs", '[');
    for (size_t i = 0; i < n; i++) {
        char *text = NULL;
        size_t n_text = 0;
        if (qn_detokenize(c->server->tokenizer, &ids[i], 1, 0, &text, &n_text, NULL) == QN_OK)
            json_write_bytes(&c->out, NULL, text, n_text);
        else
            json_write_null(&c->out, NULL);
        qn_free(text);
    }
    json_write_close(&c->out, ']');
}

int text_tokenize(struct call *c) {
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(ids_of_body(c, &ids, &n));
    json_write_open(&c->out, NULL, '{');
    json_write_int(&c->out, "count", (int64_t)n);
    json_write_int(&c->out, "max_model_len", c->server->info.max_model_len);
    json_write_open(&c->out, "tokens", '[');
    for (size_t i = 0; i < n; i++) json_write_int(&c->out, NULL, ids[i]);
    json_write_close(&c->out, ']');
    if (fields_bool(&c->fields, F_TOKEN_STRS, false))
        write_token_texts(c, ids, n);
    else
        json_write_null(&c->out, "token_strs");
    json_write_close(&c->out, '}');
    qn_free(ids);
    return QN_OK;
}

int text_detokenize(struct call *c) {
    const json_t *tokens = c->fields.value[F_TOKENS];
    const size_t n = json_array_size(tokens);
    char *text = NULL;
    size_t n_text = 0;
    qn_error error;
    if (!c->server->tokenizer)
        return problem_set(&c->problem, PROBLEM_UNSUPPORTED, NULL, "the model has no tokenizer");
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return problem_set(&c->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_number_value(json_array_get(tokens, i));
    const int rc = qn_detokenize(c->server->tokenizer, ids, n, 0, &text, &n_text, &error);
    free(ids);
    if (rc != QN_OK) return problem_set(&c->problem, PROBLEM_VALUE, "tokens", "%s", error.message);
    json_write_open(&c->out, NULL, '{');
    json_write_bytes(&c->out, "prompt", text, n_text);
    json_write_close(&c->out, '}');
    qn_free(text);
    return QN_OK;
}
