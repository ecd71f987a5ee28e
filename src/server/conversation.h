/* conversation.h - the messages of the three APIs as one: an array that a chat template takes.
 *
 * Content that comes in parts becomes one text. A part that is not text is refused by its path.
 */
#ifndef QN_SERVER_CONVERSATION_H
#define QN_SERVER_CONVERSATION_H

#include "server/state.h"

/* Each makes *messages, which the caller releases with json_decref; NULL after a failure. */
int conversation_of_chat(struct problem *p, const json_t *said, json_t **messages);
/* Anthropic's: `system` (may be NULL) is a text or parts. */
int conversation_of_messages(struct problem *p, const json_t *system, const json_t *said,
                             json_t **messages);
/* Responses': `input` is a text or an array of messages; instructions may be NULL. */
int conversation_of_responses(struct problem *p, const char *instructions, const json_t *input,
                              json_t **messages);

/* The ids of the conversation by the model's template, and its text where `text` is not NULL.
 * kwargs (an object, may be NULL) are further variables. */
int conversation_ids(struct call *c, const json_t *messages, const json_t *kwargs,
                     bool add_generation, bool add_special, int32_t **ids, size_t *n_ids);
/* Token ids of a text. */
int conversation_tokenize(struct call *c, const char *text, size_t n, bool add_special,
                          const char *param, int32_t **ids, size_t *n_ids);

#endif
