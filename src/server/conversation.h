/* conversation.h - the messages of all three APIs in one form: an array that a chat template takes.
 *
 *   conversation_chat.c        /v1/chat/completions and /tokenize
 *   conversation_messages.c    Anthropic's blocks
 *   conversation_responses.c   the items of /v1/responses
 *
 * Content in parts becomes one text. A part that is not text is refused with its path in the
 * message. Calls of tools become `tool_calls` of the assistant's message, with arguments as
 * objects; results become messages of the role "tool"; thoughts become `reasoning_content`.
 */
#ifndef QN_SERVER_CONVERSATION_H
#define QN_SERVER_CONVERSATION_H

#include "server/state.h"

/* Each sets *messages, which the caller releases with json_decref; NULL after a failure. */
int conversation_of_chat(struct problem *p, const json_t *said, json_t **messages);
/* Anthropic's: `system` (may be NULL) is a text or parts. */
int conversation_of_messages(struct problem *p, const json_t *system, const json_t *said,
                             json_t **messages);
/* Responses': `input` is a text or an array of items; instructions may be NULL. */
int conversation_of_responses(struct problem *p, const json_t *instructions, const json_t *input,
                              json_t **messages);

/* The input of a template. */
struct conversation {
    json_t *messages;
    json_t *tools;  /* NULL: none */
    json_t *kwargs; /* an object of further variables; NULL: none */
    bool add_generation, add_special;
    bool continues; /* the last message, an assistant's, is left open in its text */
};

/* Reads how the prompt ends, from the fields of /v1/chat/completions and /tokenize. */
int conversation_ending(struct call *c, struct conversation *talk);
/* Whether the last message is the assistant's, and whether it can be continued: it ends in text. */
bool conversation_is_answered(const json_t *messages);
bool conversation_is_open(const json_t *messages);

/* Renders the conversation by the model's template and gives its ids; also its text in *said where
 * said is not NULL (the caller's: qn_free), as parts_open looks at it. */
int conversation_ids(struct call *c, const struct conversation *talk, int32_t **ids, size_t *n_ids,
                     char **said);
/* Token ids of a text. */
int conversation_tokenize(struct call *c, const char *text, size_t n, bool add_special,
                          const char *param, int32_t **ids, size_t *n_ids);

/* ---- between the files above ---- */

int conversation_begin(struct problem *p, json_t **messages);
/* Releases *messages if rc is a failure; returns rc. */
int conversation_end(int rc, json_t **messages);
/* Turns a text or parts into one JSON string, and null into null. */
int conversation_text(struct problem *p, const json_t *content, const char *path, json_t **out);
/* Appends the message and takes over its reference. */
int conversation_add(struct problem *p, json_t *messages, json_t *message);
int conversation_set(struct problem *p, json_t *object, const char *key, json_t *value);
/* Adds a message whose content is a text that must be present. */
int conversation_add_said(struct problem *p, json_t *messages, const char *role,
                          const json_t *content, const char *path);
/* The role of the message at `path`, one of roles (NULL at the end). */
int conversation_role(struct problem *p, const json_t *message, const char *path,
                      const char *const *roles, const char **role);
/* The last message, if it is the assistant's, else a new one; anew: always a new one. NULL: out of
 * memory. */
json_t *conversation_assistant(json_t *messages, bool anew);
/* Adds a call to the assistant's message. */
int conversation_add_call(struct problem *p, json_t *message, const char *path, const json_t *id,
                          const json_t *name, const json_t *arguments);
/* Adds the result of a tool: text, parts or nothing. */
int conversation_add_result(struct problem *p, json_t *messages, const char *path,
                            const json_t *content, const json_t *id);

#endif
