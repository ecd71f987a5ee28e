/* parts.h - what an answer to a chat is made of: thoughts, texts, calls of tools, in their order.
 *
 *   engine's text ──► qn_answer ──► parts ──► a format's delta, or the whole answer
 *
 * A choice that must say something in a form, and may think before, has two requests in the engine:
 * the second one begins where the thought ends, and only it is held to the form. The same is done
 * when a thought has had all the tokens that it may have: its end is put into the prompt.
 */
#ifndef QN_SERVER_PARTS_H
#define QN_SERVER_PARTS_H

#include "server/chat_use.h"
#include "server/gen.h"

/* Prepares the choices of a chat, after gen_read_sampling: forms, tools, the grammar of calls that
 * must come. `prompt` is the text that is answered. */
int parts_open(struct gen *g, const struct chat_use *u, const char *prompt);
void parts_close(struct gen *g);
/* A choice takes its reader; on the loop. */
void parts_begin(struct choice *c);
void parts_fini(struct choice *c);

/* An output of the engine. Where another request must go on, c->again is its prompt. */
void parts_take(struct choice *c, const qn_output *out);
/* What the next request of the choice is asked for. */
void parts_sampling(const struct choice *c, qn_sampling_params *s);

static inline bool parts_has_calls(const struct choice *c) {
    return c->n_calls > 0;
}
/* How a chat's choice has ended, in OpenAI's words; NULL: it has not. */
const char *parts_finish_text(const struct choice *c);
/* All texts of a choice, one after the other, into *b; thoughts and calls are left out. */
void parts_text(const struct choice *c, struct strbuf *b);

#endif
