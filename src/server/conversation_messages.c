/* conversation_messages.c - see conversation.h: Anthropic's blocks. */
#include "server/conversation.h"

#include "base/checked.h"

#include <stdio.h>
#include <string.h>

/* One block of a message: its path, and the message that it is added to. */
struct block {
    struct problem *p;
    const json_t *json;
    char path[96];
    json_t *messages;
    json_t *into; /* the current message; NULL: not begun yet */
};

/* Appends to a text field of the current message. */
static int append(struct block *b, const char *field, const json_t *text, const char *name) {
    char at[128];
    const json_t *before = json_object_get(b->into, field);
    snprintf(at, sizeof at, "%s.%s", b->path, name);
    if (!json_is_string(text)) return problem_set(b->p, PROBLEM_TYPE, at, "%s: want a string", at);
    const char *said = before ? json_string_value(before) : "";
    return conversation_set(b->p, b->into, field,
                            json_pack("s%+%", said, json_string_length(before),
                                      json_string_value(text), json_string_length(text)));
}

static int take_text(struct block *b) {
    if (!b->into) {
        b->into = json_pack("{s:s, s:s}", "role", "user", "content", "");
        TRY(conversation_add(b->p, b->messages, b->into));
    }
    return append(b, "content", json_object_get(b->json, "text"), "text");
}

static int take_thinking(struct block *b) {
    return append(b, "reasoning_content", json_object_get(b->json, "thinking"), "thinking");
}

/* Ignores encrypted thoughts, which only their provider can read. */
static int take_nothing(struct block *b) {
    (void)b;
    return QN_OK;
}

static int take_call(struct block *b) {
    return conversation_add_call(b->p, b->into, b->path, json_object_get(b->json, "id"),
                                 json_object_get(b->json, "name"),
                                 json_object_get(b->json, "input"));
}

/* User text after a result becomes a message of its own. */
static int take_result(struct block *b) {
    char at[128];
    snprintf(at, sizeof at, "%s.content", b->path);
    b->into = NULL;
    return conversation_add_result(b->p, b->messages, at, json_object_get(b->json, "content"),
                                   json_object_get(b->json, "tool_use_id"));
}

static const struct block_kind {
    const char *type;
    bool of_user, of_assistant;
    int (*take)(struct block *b);
} kinds[] = {
    {"text", true, true, take_text},
    {"thinking", false, true, take_thinking},
    {"redacted_thinking", false, true, take_nothing},
    {"tool_use", false, true, take_call},
    {"tool_result", true, false, take_result},
};

static int take_block(struct block *b, bool is_user) {
    char at[128];
    const char *type = json_string_value(json_object_get(b->json, "type"));
    for (size_t i = 0; type && i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].type, type) == 0 &&
            (is_user ? kinds[i].of_user : kinds[i].of_assistant))
            return kinds[i].take(b);
    snprintf(at, sizeof at, "%s.type", b->path);
    return problem_set(b->p, PROBLEM_UNSUPPORTED, at, "%s: want %s, have '%.40s'", at,
                       is_user ? "text or tool_result" : "text, thinking or tool_use",
                       type ? type : "nothing");
}

static int add_message(struct problem *p, const json_t *message, size_t i, json_t *messages) {
    static const char *const roles[] = {"user", "assistant", NULL};
    char path[48], at[64];
    const char *role;
    snprintf(path, sizeof path, "messages[%zu]", i);
    TRY(conversation_role(p, message, path, roles, &role));
    const json_t *content = json_object_get(message, "content");
    const bool is_user = strcmp(role, "user") == 0;
    snprintf(at, sizeof at, "%s.content", path);
    if (!json_is_array(content)) return conversation_add_said(p, messages, role, content, at);
    struct block b = {.p = p, .messages = messages};
    if (!is_user) {
        b.into = conversation_assistant(messages, true);
        if (!b.into) return problem_set(p, PROBLEM_INTERNAL, NULL, "out of memory");
    } else if (json_array_size(content) == 0) {
        return problem_set(p, PROBLEM_VALUE, at, "%s: has no block", at);
    }
    for (size_t k = 0; k < json_array_size(content); k++) {
        b.json = json_array_get(content, k);
        snprintf(b.path, sizeof b.path, "%s[%zu]", at, k);
        TRY(take_block(&b, is_user));
    }
    return QN_OK;
}

int conversation_of_messages(struct problem *p, const json_t *system, const json_t *said,
                             json_t **messages) {
    int rc = conversation_begin(p, messages);
    if (rc == QN_OK && system) rc = conversation_add_said(p, *messages, "system", system, "system");
    for (size_t i = 0; rc == QN_OK && i < json_array_size(said); i++)
        rc = add_message(p, json_array_get(said, i), i, *messages);
    return conversation_end(rc, messages);
}
