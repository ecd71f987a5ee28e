/* parts.h - the parts of an answer to a chat: thoughts, texts, calls of tools, in their order.
 *
 *   engine's text ──► qn_answer ──► parts ──► a format's delta, or the whole answer
 *
 * A choice whose answer must have a form, and may have a thought before, uses two requests in the
 * engine: the second one begins where the thought ends, and only this one is held to the form. A
 * thought that has used up its tokens is handled likewise: its end is put into the second prompt.
 */
#ifndef QN_SERVER_PARTS_H
#define QN_SERVER_PARTS_H

#include "server/chat_use.h"
#include "server/gen.h"

/* Prepares the choices of a chat, after gen_read_sampling: forms, tools, and the grammar of
 * required calls. `prompt` is the text that the choices answer. */
int parts_open(struct gen *g, const struct chat_use *u, const char *prompt);
void parts_close(struct gen *g);
/* Gives the choice its answer reader; on the loop. */
void parts_begin(struct choice *c);
void parts_fini(struct choice *c);

/* Takes an output of the engine. If a second request must follow, c->again is its prompt. */
void parts_take(struct choice *c, const qn_output *out);
/* Adapts the sampling parameters of the choice's next request. */
void parts_sampling(const struct choice *c, qn_sampling_params *s);

static inline bool parts_has_calls(const struct choice *c) {
    return c->n_calls > 0;
}
/* How a chat's choice has ended, in OpenAI's words; NULL: it still runs. */
const char *parts_finish_text(const struct choice *c);
/* All texts of a choice, one after the other, into *b; thoughts and calls are left out. */
void parts_text(const struct choice *c, struct strbuf *b);

#endif
