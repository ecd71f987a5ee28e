/* format_messages.c - /v1/messages and /v1/messages/count_tokens: Anthropic's format. */
#include "server/conversation.h"
#include "server/formats.h"
#include "server/json_write.h"

/* ---- answers -------------------------------------------------------------------------------- */

static const char *stop_reason(const struct choice *c) {
    if (c->finish == QN_RUNNING) return NULL;
    if (c->finish == QN_FINISH_LENGTH) return "max_tokens";
    return c->stop ? "stop_sequence" : "end_turn";
}

static void write_stop(const struct choice *c, struct strbuf *b) {
    json_write_text(b, "stop_reason", stop_reason(c));
    json_write_text(b, "stop_sequence", c->stop);
}

static void write_usage(const struct gen *g, struct strbuf *b) {
    json_write_open(b, "usage", '{');
    json_write_int(b, "input_tokens", (int64_t)(g->n_prompt_tokens - g->n_cached_tokens));
    json_write_int(b, "cache_creation_input_tokens", 0);
    json_write_int(b, "cache_read_input_tokens", (int64_t)g->n_cached_tokens);
    json_write_int(b, "output_tokens", (int64_t)g->n_output_tokens);
    json_write_close(b, '}');
}

static void open_message(const struct gen *g, struct strbuf *b, const char *key) {
    json_write_open(b, key, '{');
    json_write_text(b, "id", g->id);
    json_write_text(b, "type", "message");
    json_write_text(b, "role", "assistant");
    json_write_text(b, "model", state_model(g->call->server));
    json_write_open(b, "content", '[');
}

static void close_message(const struct gen *g, struct strbuf *b) {
    json_write_close(b, ']');
    write_stop(&g->choices[0], b);
    write_usage(g, b);
    json_write_close(b, '}');
}

static void whole(struct gen *g, struct strbuf *b) {
    const struct choice *c = &g->choices[0];
    open_message(g, b, NULL);
    json_write_open(b, NULL, '{');
    json_write_text(b, "type", "text");
    json_write_bytes(b, "text", strbuf_text(&c->text), c->text.n);
    json_write_close(b, '}');
    close_message(g, b);
}

static void open_event(struct strbuf *b, const char *type) {
    strbuf_printf(b, "event: %s\ndata: ", type);
    json_write_open(b, NULL, '{');
    json_write_text(b, "type", type);
}

static void close_event(struct strbuf *b) {
    strbuf_str(b, "}\n\n");
}

static void start(struct gen *g, struct strbuf *b) {
    open_event(b, "message_start");
    open_message(g, b, "message");
    close_message(g, b);
    close_event(b);
    open_event(b, "content_block_start");
    strbuf_str(b, ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    close_event(b);
}

static void delta(struct choice *c, struct strbuf *b) {
    if (c->text.n > 0) {
        open_event(b, "content_block_delta");
        json_write_int(b, "index", 0);
        json_write_open(b, "delta", '{');
        json_write_text(b, "type", "text_delta");
        json_write_bytes(b, "text", strbuf_text(&c->text), c->text.n);
        json_write_close(b, '}');
        close_event(b);
    }
    c->told = c->finish != QN_RUNNING;
}

static void end(struct gen *g, struct strbuf *b) {
    open_event(b, "content_block_stop");
    json_write_int(b, "index", 0);
    close_event(b);
    open_event(b, "message_delta");
    json_write_open(b, "delta", '{');
    write_stop(&g->choices[0], b);
    json_write_close(b, '}');
    write_usage(g, b);
    close_event(b);
    open_event(b, "message_stop");
    close_event(b);
}

static void failed(struct gen *g, const struct problem *p, struct strbuf *b) {
    (void)g;
    strbuf_str(b, "event: error\ndata: ");
    problem_json(p, DIALECT_ANTHROPIC, b);
    strbuf_str(b, "\n\n");
}

static const struct format format = {
    .prefix = "msg_",
    .whole = whole,
    .start = start,
    .delta = delta,
    .end = end,
    .failed = failed,
    .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

static int prompt_ids(struct call *c, int32_t **ids, size_t *n) {
    json_t *messages;
    TRY(conversation_of_messages(&c->problem, c->fields.value[F_SYSTEM], c->fields.value[F_SAID],
                                 &messages));
    const int rc = conversation_ids(c, messages, NULL, true, false, ids, n);
    json_decref(messages);
    return rc;
}

int messages_work(struct call *c) {
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(gen_new(c, &format));
    TRY(prompt_ids(c, &ids, &n));
    TRY(gen_add_prompt(c->gen, ids, n, NULL));
    return gen_read_sampling(c->gen, F_MAX_TOKENS_NEEDED, F_STOP_SEQUENCES);
}

int messages_count(struct call *c) {
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(prompt_ids(c, &ids, &n));
    qn_free(ids);
    json_write_open(&c->out, NULL, '{');
    json_write_int(&c->out, "input_tokens", (int64_t)n);
    json_write_close(&c->out, '}');
    return QN_OK;
}
