/* format_messages.c - /v1/messages and /v1/messages/count_tokens: Anthropic's format. */
#include "server/conversation.h"
#include "server/formats.h"
#include "server/json_write.h"

/* ---- answers -------------------------------------------------------------------------------- */

static const char *stop_reason(const struct choice *c) {
    if (c->finish == QN_RUNNING) return NULL;
    if (c->finish == QN_FINISH_LENGTH) return "max_tokens";
    if (c->stop) return "stop_sequence";
    return parts_has_calls(c) ? "tool_use" : "end_turn";
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

/* Wraps arguments that are malformed or truncated into an object all the same. */
static void write_input(const struct part *p, struct strbuf *b) {
    json_t *v = json_loadb(strbuf_text(&p->text), p->text.n, JSON_ALLOW_NUL, NULL);
    if (json_is_object(v)) {
        json_write_raw(b, "input", strbuf_text(&p->text));
    } else {
        json_write_open(b, "input", '{');
        json_write_bytes(b, "INVALID_JSON", strbuf_text(&p->text), p->text.n);
        json_write_close(b, '}');
    }
    json_decref(v);
}

/* Writes a block; is_whole false: in the state in which it begins. */
static void write_block(const struct part *p, bool is_whole, struct strbuf *b, const char *key) {
    const size_t n = is_whole ? p->text.n : 0;
    json_write_open(b, key, '{');
    if (p->kind == QN_PIECE_CALL) {
        json_write_text(b, "type", "tool_use");
        json_write_text(b, "id", p->id);
        json_write_text(b, "name", p->name);
        if (is_whole)
            write_input(p, b);
        else
            json_write_raw(b, "input", "{}");
    } else {
        const char *kind = p->kind == QN_PIECE_TEXT ? "text" : "thinking";
        json_write_text(b, "type", kind);
        json_write_bytes(b, kind, strbuf_text(&p->text), n);
        if (p->kind == QN_PIECE_REASONING) json_write_text(b, "signature", "");
    }
    json_write_close(b, '}');
}

/* An empty answer is one empty text. */
static const struct part nothing = {.kind = QN_PIECE_TEXT};

static void whole(struct gen *g, struct strbuf *b) {
    const struct choice *c = &g->choices[0];
    open_message(g, b, NULL);
    for (size_t i = 0; i < c->parts.n; i++) write_block(&c->parts.items[i], true, b, NULL);
    if (c->parts.n == 0) write_block(&nothing, true, b, NULL);
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
}

static void start_block(const struct part *p, size_t index, struct strbuf *b) {
    open_event(b, "content_block_start");
    json_write_int(b, "index", (int64_t)index);
    write_block(p, false, b, "content_block");
    close_event(b);
}

static void stop_block(size_t index, struct strbuf *b) {
    open_event(b, "content_block_stop");
    json_write_int(b, "index", (int64_t)index);
    close_event(b);
}

/* Writes the new text of a part. */
static void write_part(struct part *p, size_t index, struct strbuf *b) {
    static const struct {
        const char *type, *field;
    } deltas[] = {[QN_PIECE_REASONING] = {"thinking_delta", "thinking"},
                  [QN_PIECE_TEXT] = {"text_delta", "text"},
                  [QN_PIECE_CALL] = {"input_json_delta", "partial_json"}};
    if (p->text.n == p->n_written) return;
    open_event(b, "content_block_delta");
    json_write_int(b, "index", (int64_t)index);
    json_write_open(b, "delta", '{');
    json_write_text(b, "type", deltas[p->kind].type);
    json_write_bytes(b, deltas[p->kind].field, strbuf_text(&p->text) + p->n_written,
                     p->text.n - p->n_written);
    json_write_close(b, '}');
    close_event(b);
    p->n_written = p->text.n;
}

/* Blocks follow each other: each ends where the next one begins. */
static void delta(struct choice *c, struct strbuf *b) {
    for (size_t i = 0; i < c->parts.n; i++) {
        struct part *p = &c->parts.items[i];
        if (!p->begun) {
            if (i > 0) stop_block(i - 1, b);
            start_block(p, i, b);
            p->begun = true;
        }
        write_part(p, i, b);
    }
    c->told = c->finish != QN_RUNNING;
}

static void end(struct gen *g, struct strbuf *b) {
    const struct choice *c = &g->choices[0];
    if (c->parts.n == 0) start_block(&nothing, 0, b);
    stop_block(c->parts.n ? c->parts.n - 1 : 0, b);
    open_event(b, "message_delta");
    json_write_open(b, "delta", '{');
    write_stop(c, b);
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
    .call_prefix = "toolu_",
    .whole = whole,
    .start = start,
    .delta = delta,
    .end = end,
    .failed = failed,
    .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

static int prompt_ids(struct call *c, const struct chat_use *u, int32_t **ids, size_t *n,
                      char **text) {
    struct conversation talk = {.tools = u->tools, .kwargs = u->kwargs, .add_generation = true};
    TRY(conversation_of_messages(&c->problem, c->fields.value[F_SYSTEM], c->fields.value[F_SAID],
                                 &talk.messages));
    /* A count of a conversation's beginning may end in a call. */
    talk.continues = c->route->api & COUNT ? conversation_is_open(talk.messages)
                                           : conversation_is_answered(talk.messages);
    const int rc = conversation_ids(c, &talk, ids, n, text);
    json_decref(talk.messages);
    return rc;
}

static int read_body(struct gen *g, const struct chat_use *u, char **text) {
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(prompt_ids(g->call, u, &ids, &n, text));
    TRY(gen_add_prompt(g, &(struct gen_prompt){ids, n, NULL, 0}));
    TRY(gen_read_format(g, "output_config.format",
                        json_object_get(g->call->fields.value[F_OUTPUT_CONFIG], "format"), NULL));
    TRY(gen_read_sampling(g, F_MAX_TOKENS_NEEDED, F_STOP_SEQUENCES));
    return parts_open(g, u, *text);
}

int messages_work(struct call *c) {
    return chat_use_work(c, &format, read_body);
}

int messages_count(struct call *c) {
    struct chat_use use = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    int rc = chat_use_read(c, &use);
    if (rc == QN_OK) rc = prompt_ids(c, &use, &ids, &n, NULL);
    chat_use_free(&use);
    qn_free(ids);
    TRY(rc);
    json_write_open(&c->out, NULL, '{');
    json_write_int(&c->out, "input_tokens", (int64_t)n);
    json_write_close(&c->out, '}');
    return QN_OK;
}
