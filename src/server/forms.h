/* forms.h - the APIs that generate: how each reads its body (work) and writes its answer (form). */
#ifndef QN_SERVER_FORMS_H
#define QN_SERVER_FORMS_H

#include "server/gen.h"

/* form_completion.c, form_chat.c, form_messages.c, form_responses.c: a route's `work`. */
int completion_work(struct call *c);
int chat_work(struct call *c);
int messages_work(struct call *c);
int messages_count(struct call *c);
int responses_work(struct call *c);

/* ---- shared by them: form.c ----------------------------------------------------------------- */

/* "id", "object", "created", "model", "system_fingerprint" of OpenAI's answers. */
void form_head(const struct gen *g, struct strbuf *b, const char *object);
/* "usage": {...} in OpenAI's form. */
void form_usage(const struct gen *g, struct strbuf *b);
void form_finish(const struct choice *c, struct strbuf *b);
/* The end of an OpenAI stream. */
void form_stream_end(struct gen *g, struct strbuf *b);
void form_stream_failed(struct gen *g, const struct problem *p, struct strbuf *b);
/* The text of one token; the caller releases it with strbuf_fini. */
void form_token_text(const struct gen *g, int32_t id, struct strbuf *text);
size_t form_characters(const char *text, size_t n);

#endif
