/* chat_prompt.h - conversations as prompts: the chat template options, for chat and tokenize. */
#ifndef QN_CLI_CHAT_PROMPT_H
#define QN_CLI_CHAT_PROMPT_H

#include "cli/cli.h"

struct chat_prompt {
    qn_chat_template *chat_template;
    char *kwargs; /* JSON; NULL: none */
};

/* Compiles the template of a model directory, or the one that --chat-template names. Prints the
 * error; returns an exit code. */
int chat_prompt_open(const struct options *o, const char *dir, struct chat_prompt *p);
void chat_prompt_close(struct chat_prompt *p);

/* Renders a conversation (JSON as for qn_chat_render) as a prompt. The prompt ends with the opening
 * of an answer unless the conversation says otherwise. *text is released with qn_free(). */
int chat_prompt_render(const struct chat_prompt *p, const char *conversation, char **text,
                       size_t *n, qn_error *error);

#endif
