/* conversation_responses.c - see conversation.h: the items of /v1/responses. */
#include "server/conversation.h"

#include "base/checked.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <string.h>

struct item {
    struct problem *p;
    const json_t *json;
    char path[48];
    json_t *messages;
};

static int no_memory(struct item *it) {
    return problem_set(it->p, PROBLEM_INTERNAL, NULL, "out of memory");
}

static int take_message(struct item *it) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", NULL};
    char at[96];
    const char *role;
    json_t *text, *into = NULL;
    TRY(conversation_role(it->p, it->json, it->path, roles, &role));
    snprintf(at, sizeof at, "%s.content", it->path);
    const json_t *content = json_object_get(it->json, "content");
    const json_t *last = json_array_get(it->messages, json_array_size(it->messages) - 1);
    /* An assistant message after a thought belongs to the same message. */
    if (strcmp(role, "assistant") == 0 && json_object_get(last, "reasoning_content") &&
        json_string_length(json_object_get(last, "content")) == 0)
        into = (json_t *)last;
    if (!into) return conversation_add_said(it->p, it->messages, role, content, at);
    if (!content || json_is_null(content))
        return problem_set(it->p, PROBLEM_MISSING, at, "%s: is missing", at);
    TRY(conversation_text(it->p, content, at, &text));
    return conversation_set(it->p, into, "content", text);
}

/* A call joins the message of the text and the calls before it. */
static int take_call(struct item *it) {
    json_t *into = conversation_assistant(it->messages, false);
    if (!into) return no_memory(it);
    return conversation_add_call(it->p, into, it->path, json_object_get(it->json, "call_id"),
                                 json_object_get(it->json, "name"),
                                 json_object_get(it->json, "arguments"));
}

static int take_result(struct item *it) {
    char at[96];
    const json_t *output = json_object_get(it->json, "output");
    snprintf(at, sizeof at, "%s.output", it->path);
    if (!output || json_is_null(output))
        return problem_set(it->p, PROBLEM_MISSING, at, "%s: is missing", at);
    return conversation_add_result(it->p, it->messages, at, output,
                                   json_object_get(it->json, "call_id"));
}

static void add_texts(const json_t *parts, struct strbuf *text) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *words = json_object_get(json_array_get(parts, i), "text");
        if (json_is_string(words))
            strbuf_add(text, json_string_value(words), json_string_length(words));
    }
}

/* A thought: its text, else its summary. An encrypted thought has neither and adds nothing. */
static int take_reasoning(struct item *it) {
    struct strbuf text = {0};
    int rc = QN_OK;
    add_texts(json_object_get(it->json, "content"), &text);
    if (text.n == 0) add_texts(json_object_get(it->json, "summary"), &text);
    if (text.n > 0) {
        json_t *into = conversation_assistant(it->messages, true);
        rc = into ? conversation_set(it->p, into, "reasoning_content",
                                     json_stringn_nocheck(text.text, text.n))
                  : no_memory(it);
    }
    strbuf_fini(&text);
    return rc;
}

static const struct item_kind {
    const char *type;
    int (*take)(struct item *it);
} kinds[] = {
    {"message", take_message},
    {"function_call", take_call},
    {"function_call_output", take_result},
    {"reasoning", take_reasoning},
};

static int take(struct item *it) {
    char at[96];
    const json_t *of = json_object_get(it->json, "type");
    const char *type = of ? json_string_value(of) : "message";
    for (size_t i = 0; type && i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].type, type) == 0) return kinds[i].take(it);
    snprintf(at, sizeof at, "%s.type", it->path);
    return problem_set(it->p, PROBLEM_UNSUPPORTED, at,
                       "%s: want message, function_call, function_call_output or reasoning, have "
                       "'%.40s'",
                       at, type ? type : "no text");
}

int conversation_of_responses(struct problem *p, const json_t *instructions, const json_t *input,
                              json_t **messages) {
    int rc = conversation_begin(p, messages);
    if (rc == QN_OK && json_is_array(input) && json_array_size(input) == 0)
        rc = problem_set(p, PROBLEM_VALUE, "input", "input: has no message");
    if (rc == QN_OK && instructions)
        rc = conversation_add_said(p, *messages, "system", instructions, "instructions");
    if (rc == QN_OK && json_is_string(input))
        rc = conversation_add_said(p, *messages, "user", input, "input");
    for (size_t i = 0; rc == QN_OK && i < json_array_size(input); i++) {
        struct item it = {.p = p, .json = json_array_get(input, i), .messages = *messages};
        snprintf(it.path, sizeof it.path, "input[%zu]", i);
        rc = take(&it);
    }
    return conversation_end(rc, messages);
}
