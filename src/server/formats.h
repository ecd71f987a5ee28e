/* formats.h - the APIs that generate: how each reads its body (work) and writes its answer
 * (format). */
#ifndef QN_SERVER_FORMATS_H
#define QN_SERVER_FORMATS_H

#include "server/parts.h"

/* format_completion.c, format_chat.c, format_messages.c, format_responses.c: a route's `work`. */
int completion_work(struct call *c);
int chat_work(struct call *c);
int messages_work(struct call *c);
int messages_count(struct call *c);
int responses_work(struct call *c);

/* ---- shared by them: format.c -----------------------------------------------------------------
 */

/* "id", "object", "created", "model", "system_fingerprint" of OpenAI's answers. */
void format_head(const struct gen *g, struct strbuf *b, const char *object);
/* "usage": {...} in OpenAI's format. */
void format_usage(const struct gen *g, struct strbuf *b);
/* Open and close a streamed chunk of `object` around its choices. After the last choice comes a
 * chunk with the usage alone, if the client requested it. */
void format_chunk_open(const struct gen *g, struct strbuf *b, const char *object);
void format_chunk_close(const struct gen *g, struct strbuf *b);
void format_chunk_end(struct gen *g, struct strbuf *b, const char *object);
void format_finish(const struct choice *c, struct strbuf *b);
/* The end of an OpenAI stream. */
void format_stream_end(struct gen *g, struct strbuf *b);
void format_stream_failed(struct gen *g, const struct problem *p, struct strbuf *b);
/* The text of one token; the caller releases it with strbuf_fini. */
void format_token_text(const struct gen *g, int32_t id, struct strbuf *text);
size_t format_characters(const char *text, size_t n);

#endif
