/* conversation_chat.c - see conversation.h. */
#include "server/conversation.h"

#include <stdio.h>
#include <string.h>

static int add_calls(struct problem *p, json_t *made, const json_t *calls, const char *path) {
    char at[200];
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const json_t *function = json_object_get(call, "function");
        snprintf(at, sizeof at, "%s[%zu].function", path, i);
        if (!json_is_object(function))
            return problem_set(p, PROBLEM_TYPE, at, "%s: want an object", at);
        TRY(conversation_add_call(p, made, at, json_object_get(call, "id"),
                                  json_object_get(function, "name"),
                                  json_object_get(function, "arguments")));
    }
    return QN_OK;
}

static bool is_given(const json_t *v) {
    return v && !json_is_null(v);
}

/* The text of the assistant's turn: its content, else its refusal. It may be missing beside other
 * parts of the turn. */
static int add_text(struct problem *p, json_t *made, const json_t *message, const char *path,
                    bool may_be_missing) {
    char at[96];
    const json_t *said = json_object_get(message, "content");
    const json_t *refusal = json_object_get(message, "refusal");
    json_t *text = NULL;
    snprintf(at, sizeof at, "%s.content", path);
    if (!is_given(said) && json_string_length(refusal) > 0) said = refusal;
    if (!is_given(said))
        return may_be_missing ? QN_OK : problem_set(p, PROBLEM_MISSING, at, "%s: is missing", at);
    TRY(conversation_text(p, said, at, &text));
    return conversation_set(p, made, "content", text);
}

/* The assistant's turn: text, calls, thoughts; at least one of them is required. */
static int add_assistant(struct problem *p, const json_t *message, const char *path,
                         json_t *messages) {
    char at[96];
    const json_t *calls = json_object_get(message, "tool_calls");
    const json_t *thought = json_object_get(message, "reasoning_content");
    if (!is_given(thought)) thought = json_object_get(message, "reasoning");
    json_t *made = conversation_assistant(messages, true);
    if (!made) return problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
    TRY(add_text(p, made, message, path,
                 json_array_size(calls) > 0 || json_string_length(thought) > 0));
    snprintf(at, sizeof at, "%s.reasoning_content", path);
    if (is_given(thought) && !json_is_string(thought))
        return problem_set(p, PROBLEM_TYPE, at, "%s: want a string", at);
    if (json_string_length(thought) > 0)
        TRY(conversation_set(p, made, "reasoning_content", json_incref((json_t *)thought)));
    snprintf(at, sizeof at, "%s.tool_calls", path);
    if (is_given(calls) && !json_is_array(calls))
        return problem_set(p, PROBLEM_TYPE, at, "%s: want an array", at);
    return add_calls(p, made, calls, at);
}

static int add_message(struct problem *p, const json_t *message, size_t i, json_t *messages) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", NULL};
    char path[48], at[96];
    const char *role;
    snprintf(path, sizeof path, "messages[%zu]", i);
    TRY(conversation_role(p, message, path, roles, &role));
    if (strcmp(role, "assistant") == 0) return add_assistant(p, message, path, messages);
    snprintf(at, sizeof at, "%s.content", path);
    const json_t *content = json_object_get(message, "content");
    if (strcmp(role, "tool") != 0) return conversation_add_said(p, messages, role, content, at);
    if (!is_given(content)) return problem_set(p, PROBLEM_MISSING, at, "%s: is missing", at);
    return conversation_add_result(p, messages, at, content,
                                   json_object_get(message, "tool_call_id"));
}

int conversation_of_chat(struct problem *p, const json_t *said, json_t **messages) {
    int rc = conversation_begin(p, messages);
    for (size_t i = 0; rc == QN_OK && i < json_array_size(said); i++)
        rc = add_message(p, json_array_get(said, i), i, *messages);
    return conversation_end(rc, messages);
}
