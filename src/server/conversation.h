/* conversation.h - the messages of the three APIs as one: an array that a chat template takes.
 *
 *   conversation_chat.c        /v1/chat/completions and /tokenize
 *   conversation_messages.c    Anthropic's blocks
 *   conversation_responses.c   the items of /v1/responses
 *
 * Content that comes in parts becomes one text. A part that is not text is refused by its path.
 * Calls of tools are `tool_calls` of the assistant's message, with arguments as objects; results
 * are messages of the role "tool"; thoughts are `reasoning_content`.
 */
#ifndef QN_SERVER_CONVERSATION_H
#define QN_SERVER_CONVERSATION_H

#include "server/state.h"

/* Each makes *messages, which the caller releases with json_decref; NULL after a failure. */
int conversation_of_chat(struct problem *p, const json_t *said, json_t **messages);
/* Anthropic's: `system` (may be NULL) is a text or parts. */
int conversation_of_messages(struct problem *p, const json_t *system, const json_t *said,
                             json_t **messages);
/* Responses': `input` is a text or an array of items; instructions may be NULL. */
int conversation_of_responses(struct problem *p, const char *instructions, const json_t *input,
                              json_t **messages);

/* What a template is run on. */
struct conversation {
    json_t *messages;
    json_t *tools;  /* NULL: none */
    json_t *kwargs; /* an object of further variables; NULL: none */
    bool add_generation, add_special;
};

/* The ids of the conversation by the model's template, and its text in *said where said is not NULL
 * (the caller's: qn_free). */
int conversation_ids(struct call *c, const struct conversation *talk, int32_t **ids, size_t *n_ids,
                     char **said);
/* Token ids of a text. */
int conversation_tokenize(struct call *c, const char *text, size_t n, bool add_special,
                          const char *param, int32_t **ids, size_t *n_ids);

/* ---- between the files above ---- */

int conversation_begin(struct problem *p, json_t **messages);
/* Nothing is left of a conversation that failed. */
int conversation_end(int rc, json_t **messages);
/* Text or parts as one JSON string, null as null. */
int conversation_text(struct problem *p, const json_t *content, const char *path, json_t **out);
/* Takes the message over. */
int conversation_add(struct problem *p, json_t *messages, json_t *message);
int conversation_set(struct problem *p, json_t *object, const char *key, json_t *value);
/* A message with a text for its content, which must be there. */
int conversation_add_said(struct problem *p, json_t *messages, const char *role,
                          const json_t *content, const char *path);
/* The role of the message at `path`, one of roles (NULL at the end). */
int conversation_role(struct problem *p, const json_t *message, const char *path,
                      const char *const *roles, const char **role);
/* The assistant's message that is the last one, else a new one; anew: a new one in any case. NULL:
 * out of memory. */
json_t *conversation_assistant(json_t *messages, bool anew);
/* A call of the assistant's message. */
int conversation_add_call(struct problem *p, json_t *message, const char *path, const json_t *id,
                          const json_t *name, const json_t *arguments);
/* What a tool has answered: text, parts or nothing. */
int conversation_add_result(struct problem *p, json_t *messages, const char *path,
                            const json_t *content, const json_t *id);

#endif
