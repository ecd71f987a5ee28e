/* chat_template.h - a conversation as the text that a chat model was trained on.
 *
 * Model directories carry a Jinja program. It is not run: its form is recognised and the literal
 * texts are read out of it, so that the result is the same, character by character, as what
 * transformers' apply_chat_template gives for the forms below. Any other program is
 * QN_EUNSUPPORTED, with the names that --chat-template takes instead.
 *
 *   chatml   <|im_start|>role\n ... <|im_end|>\n    Qwen2, 2.5, 3 (thinking rules), SmolLM2, Hermes
 *   llama2   [INST] <<SYS>>\n ... \n<</SYS>>\n\n ... [/INST]
 *   llama3   <|start_header_id|>role<|end_header_id|>\n\n ... <|eot_id|>   3.0, and 3.1+ with dates
 *   mistral  [INST] ... [/INST]                     v1, v3, Tekken
 *
 * The text begins with the bos token where the program says so: encode it without special tokens.
 */
#ifndef QN_MODEL_CHAT_TEMPLATE_H
#define QN_MODEL_CHAT_TEMPLATE_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>

struct chat_template;

struct chat_message {
    const char *role;    /* NUL-terminated: "system", "user", "assistant" */
    const char *content; /* n bytes */
    size_t n;
};

struct chat_options {
    bool add_generation_prompt; /* end with the beginning of an assistant's turn */
    /* chat_template_kwargs.enable_thinking; where the program does not ask for it, it is ignored */
    enum { CHAT_THINKING_UNSET, CHAT_THINKING_ON, CHAT_THINKING_OFF } thinking;
    const char *date; /* "26 Jul 2024" for Llama 3.1+; NULL: what the program says, which for 3.2
                         is today */
};

/* From dir/chat_template.jinja, or else `chat_template` in dir/tokenizer_config.json (a text, or a
 * list of {name, template} of which "default" counts); bos and eos from tokenizer_config.json.
 * name (may be NULL) is one of chat_template_names() and takes the program's place.
 * Errors: QN_ENOENT (the directory has no template), QN_EUNSUPPORTED, QN_EINVAL (the name). */
int chat_template_open(struct diag *d, const char *dir, const char *name,
                       struct chat_template **out);
/* From a Jinja program. `where` stands for it in messages; bos and eos may be NULL. */
int chat_template_parse(struct diag *d, const char *where, const char *program, size_t n,
                        const char *bos, const char *eos, struct chat_template **out);
/* By name; bos and eos NULL: those usual for the form. */
int chat_template_named(struct diag *d, const char *name, const char *bos, const char *eos,
                        struct chat_template **out);
void chat_template_free(struct chat_template *c);

/* "chatml, qwen2, ...": the names that chat_template_named takes. */
const char *chat_template_names(void);
/* Which form was recognised: "chatml", "llama2", "llama3" or "mistral". */
const char *chat_template_form(const struct chat_template *c);

/* Appends the conversation to *out. Errors: QN_EINVAL for roles that the form cannot take, naming
 * the message; QN_ENOMEM. */
int chat_template_render(struct diag *d, const struct chat_template *c,
                         const struct chat_message *messages, size_t n,
                         const struct chat_options *options, struct strbuf *out);

#endif
