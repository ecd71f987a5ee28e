/* format.c - see formats.h. */
#include "server/formats.h"
#include "server/json_write.h"

#include <stdlib.h>

void format_head(const struct gen *g, struct strbuf *b, const char *object) {
    const struct server *s = g->call->server;
    json_write_text(b, "id", g->id);
    json_write_text(b, "object", object);
    json_write_int(b, "created", g->created);
    json_write_text(b, "model", state_model(s));
    json_write_text(b, "system_fingerprint", s->fingerprint);
}

void format_usage(const struct gen *g, struct strbuf *b) {
    json_write_open(b, "usage", '{');
    json_write_int(b, "prompt_tokens", (int64_t)g->n_prompt_tokens);
    json_write_int(b, "completion_tokens", (int64_t)g->n_output_tokens);
    json_write_int(b, "total_tokens", (int64_t)(g->n_prompt_tokens + g->n_output_tokens));
    json_write_open(b, "prompt_tokens_details", '{');
    json_write_int(b, "cached_tokens", (int64_t)g->n_cached_tokens);
    json_write_close(b, '}');
    if (g->plan.params.struct_size) {
        json_write_open(b, "completion_tokens_details", '{');
        json_write_int(b, "reasoning_tokens", (int64_t)g->n_thought_tokens);
        json_write_close(b, '}');
    }
    json_write_close(b, '}');
}

void format_chunk_open(const struct gen *g, struct strbuf *b, const char *object) {
    strbuf_str(b, "data: ");
    json_write_open(b, NULL, '{');
    format_head(g, b, object);
    json_write_open(b, "choices", '[');
}

void format_chunk_close(const struct gen *g, struct strbuf *b) {
    json_write_close(b, ']');
    if (g->continuous_usage)
        format_usage(g, b);
    else if (g->include_usage)
        json_write_null(b, "usage");
    strbuf_str(b, "}\n\n");
}

void format_chunk_end(struct gen *g, struct strbuf *b, const char *object) {
    if (g->include_usage) {
        format_chunk_open(g, b, object);
        json_write_close(b, ']');
        format_usage(g, b);
        strbuf_str(b, "}\n\n");
    }
    format_stream_end(g, b);
}

void format_finish(const struct choice *c, struct strbuf *b) {
    json_write_text(b, "finish_reason", parts_finish_text(c));
    if (c->stop)
        json_write_text(b, "stop_reason", c->stop);
    else if (c->stop_id >= 0)
        json_write_int(b, "stop_reason", c->stop_id);
    else
        json_write_null(b, "stop_reason");
}

void format_stream_end(struct gen *g, struct strbuf *b) {
    (void)g;
    strbuf_str(b, "data: [DONE]\n\n");
}

void format_stream_failed(struct gen *g, const struct problem *p, struct strbuf *b) {
    strbuf_str(b, "data: ");
    problem_json(p, DIALECT_OPENAI, b);
    strbuf_str(b, "\n\n");
    format_stream_end(g, b);
}

void format_token_text(const struct gen *g, int32_t id, struct strbuf *text) {
    char *found = NULL;
    size_t n = 0;
    const qn_tokenizer *t = g->call->server->tokenizer;
    if (!t || id < 0 || qn_detokenize(t, &id, 1, 0, &found, &n, NULL) != QN_OK) return;
    strbuf_add(text, found, n);
    qn_free(found);
}

size_t format_characters(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += (text[i] & 0xc0) != 0x80;
    return count;
}
