/* chat_template.h - a conversation as the text that a chat model was trained on.
 *
 * A model directory carries a Jinja template; jinja/jinja.h runs it. The text is the same,
 * character by character, as that of transformers' apply_chat_template:
 *
 *   which template   chat_template.jinja and additional_chat_templates/NAME.jinja, else
 *                    `chat_template` in tokenizer_config.json (a text or list of {name, template}).
 *                    Without a name: "tool_use" if there are tools and it exists, else "default".
 *   its variables    messages, tools, documents, add_generation_prompt; bos_token and its like from
 *                    tokenizer_config.json and special_tokens_map.json; any further arguments
 *   messages         Fields that are null are dropped; reasoning, thinking and reasoning_content
 *                    stand for each other.
 *
 * The text has its special tokens spelled out: encode it without adding any.
 */
#ifndef QN_MODEL_CHAT_TEMPLATE_H
#define QN_MODEL_CHAT_TEMPLATE_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

struct chat_template;

struct chat_options {
    bool add_generation_prompt; /* end with the beginning of an assistant's turn */
    const char *kwargs;         /* a JSON object of further variables; NULL: none */
    time_t now;                 /* the time for strftime_now; 0: the current time */
};

/* Compiles a directory's template. name: one of the directory's templates, one of
 * chat_template_names(), or a file; NULL: as above. dir may be NULL if the name is no directory's.
 * Errors: QN_ENOENT (the directory has no template), QN_EINVAL (nothing has the name), QN_EFORMAT,
 * QN_EUNSUPPORTED. */
int chat_template_open(struct diag *d, const char *dir, const char *name,
                       struct chat_template **out);
/* Compiles a template's text. `where` stands for it in messages; bos and eos may be NULL. */
int chat_template_parse(struct diag *d, const char *where, const char *program, size_t n,
                        const char *bos, const char *eos, struct chat_template **out);
void chat_template_free(struct chat_template *c);
/* The program that renders a conversation with tools. Lives as long as the template. */
const char *chat_template_program(const struct chat_template *c);

/* "chatml, qwen2, ...": the templates that are built in (chat_named.c). */
const char *chat_template_names(void);

/* Appends the text of a conversation to *out. The conversation is JSON: an array of messages, or
 *     {"messages": [...], "tools": [...], "documents": [...], "add_generation_prompt": true,
 *      "chat_template_kwargs": {...}}
 * Everything except messages may be missing; its members win over the options; "kwargs" is another
 * name for "chat_template_kwargs". Errors: QN_EFORMAT naming the field, QN_EINVAL where the
 * template raises an exception, QN_EUNSUPPORTED, QN_ELIMIT. */
int chat_template_render(struct diag *d, const struct chat_template *c, const char *conversation,
                         size_t n, const struct chat_options *options, struct strbuf *out);

#endif
