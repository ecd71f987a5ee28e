/* format_responses.c - /v1/responses, stateless: nothing is stored, nothing can be looked up. */
#include "server/conversation.h"
#include "server/formats.h"
#include "server/json_write.h"

#include <string.h>

/* ---- answers -------------------------------------------------------------------------------- */

/* An answer's message has the answer's id with another prefix. */
static const char *message_id(const struct gen *g, char id[48]) {
    snprintf(id, 48, "msg_%s", g->id + strlen("resp_"));
    return id;
}

static void write_part(const struct strbuf *text, struct strbuf *b, const char *key) {
    json_write_open(b, key, '{');
    json_write_text(b, "type", "output_text");
    json_write_bytes(b, "text", strbuf_text(text), text->n);
    strbuf_str(b, ",\"annotations\":[],\"logprobs\":[]}");
}

/* The output's one message; text NULL: it has just begun. */
static void write_item(const struct gen *g, const struct strbuf *text, const char *status,
                       struct strbuf *b, const char *key) {
    char id[48];
    json_write_open(b, key, '{');
    json_write_text(b, "type", "message");
    json_write_text(b, "id", message_id(g, id));
    json_write_text(b, "status", status);
    json_write_text(b, "role", "assistant");
    json_write_open(b, "content", '[');
    if (text) write_part(text, b, NULL);
    json_write_close(b, ']');
    json_write_close(b, '}');
}

static void write_usage(const struct gen *g, struct strbuf *b) {
    const int64_t in = (int64_t)g->n_prompt_tokens, out = (int64_t)g->n_output_tokens;
    json_write_open(b, "usage", '{');
    json_write_int(b, "input_tokens", in);
    json_write_open(b, "input_tokens_details", '{');
    json_write_int(b, "cached_tokens", (int64_t)g->n_cached_tokens);
    json_write_close(b, '}');
    json_write_int(b, "output_tokens", out);
    strbuf_str(b, ",\"output_tokens_details\":{\"reasoning_tokens\":0}");
    json_write_int(b, "total_tokens", in + out);
    json_write_close(b, '}');
}

static const char *status_of(const struct choice *c) {
    if (c->finish == QN_RUNNING) return "in_progress";
    return c->finish == QN_FINISH_LENGTH ? "incomplete" : "completed";
}

static void write_settings(const struct gen *g, struct strbuf *b) {
    const qn_sampling_params *s = &g->sampling;
    json_write_null(b, "instructions");
    if (s->max_tokens)
        json_write_int(b, "max_output_tokens", s->max_tokens);
    else
        json_write_null(b, "max_output_tokens");
    json_write_number(b, "temperature", s->temperature, 6);
    json_write_number(b, "top_p", s->top_p, 6);
    strbuf_str(b, ",\"parallel_tool_calls\":true,\"previous_response_id\":null,\"reasoning\":"
                  "{\"effort\":null,\"summary\":null},\"store\":false,\"text\":{\"format\":"
                  "{\"type\":\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],\"truncation\":"
                  "\"disabled\",\"user\":null,\"metadata\":{},\"background\":false");
}

/* text NULL: there is no output yet. */
static void write_response(const struct gen *g, const struct strbuf *text, struct strbuf *b,
                           const char *key) {
    const struct choice *c = &g->choices[0];
    json_write_open(b, key, '{');
    json_write_text(b, "id", g->id);
    json_write_text(b, "object", "response");
    json_write_int(b, "created_at", g->created);
    json_write_text(b, "status", status_of(c));
    json_write_text(b, "model", state_model(g->call->server));
    json_write_null(b, "error");
    if (c->finish == QN_FINISH_LENGTH)
        json_write_raw(b, "incomplete_details", "{\"reason\":\"max_output_tokens\"}");
    else
        json_write_null(b, "incomplete_details");
    json_write_open(b, "output", '[');
    if (text) write_item(g, text, status_of(c), b, NULL);
    json_write_close(b, ']');
    write_settings(g, b);
    if (text)
        write_usage(g, b);
    else
        json_write_null(b, "usage");
    json_write_close(b, '}');
}

static void whole(struct gen *g, struct strbuf *b) {
    write_response(g, &g->choices[0].text, b, NULL);
}

/* ---- a stream ------------------------------------------------------------------------------- */

static void open_event(struct gen *g, struct strbuf *b, const char *type) {
    strbuf_printf(b, "event: %s\ndata: ", type);
    json_write_open(b, NULL, '{');
    json_write_text(b, "type", type);
    json_write_int(b, "sequence_number", (int64_t)g->sequence++);
}

static void open_output_event(struct gen *g, struct strbuf *b, const char *type, bool is_part) {
    char id[48];
    open_event(g, b, type);
    json_write_int(b, "output_index", 0);
    if (!is_part) return;
    json_write_text(b, "item_id", message_id(g, id));
    json_write_int(b, "content_index", 0);
}

static void close_event(struct strbuf *b) {
    strbuf_str(b, "}\n\n");
}

static void start(struct gen *g, struct strbuf *b) {
    static const char *const types[] = {"response.created", "response.in_progress"};
    const struct strbuf empty = {0};
    for (size_t i = 0; i < 2; i++) {
        open_event(g, b, types[i]);
        write_response(g, NULL, b, "response");
        close_event(b);
    }
    open_output_event(g, b, "response.output_item.added", false);
    write_item(g, NULL, "in_progress", b, "item");
    close_event(b);
    open_output_event(g, b, "response.content_part.added", true);
    write_part(&empty, b, "part");
    close_event(b);
}

/* The last events repeat the whole text: it is kept beside what is pending. */
static void delta(struct choice *c, struct strbuf *b) {
    struct gen *g = c->gen;
    if (c->text.n > 0) {
        open_output_event(g, b, "response.output_text.delta", true);
        json_write_bytes(b, "delta", strbuf_text(&c->text), c->text.n);
        strbuf_str(b, ",\"logprobs\":[]");
        close_event(b);
        strbuf_add(&g->said, c->text.text, c->text.n);
    }
    c->told = c->finish != QN_RUNNING;
}

static void end(struct gen *g, struct strbuf *b) {
    const struct choice *c = &g->choices[0];
    const bool cut = c->finish == QN_FINISH_LENGTH;
    open_output_event(g, b, "response.output_text.done", true);
    json_write_bytes(b, "text", strbuf_text(&g->said), g->said.n);
    strbuf_str(b, ",\"logprobs\":[]");
    close_event(b);
    open_output_event(g, b, "response.content_part.done", true);
    write_part(&g->said, b, "part");
    close_event(b);
    open_output_event(g, b, "response.output_item.done", false);
    write_item(g, &g->said, status_of(c), b, "item");
    close_event(b);
    open_event(g, b, cut ? "response.incomplete" : "response.completed");
    write_response(g, &g->said, b, "response");
    close_event(b);
}

static void failed(struct gen *g, const struct problem *p, struct strbuf *b) {
    open_event(g, b, "error");
    json_write_text(b, "code", "server_error");
    json_write_text(b, "message", p->message);
    json_write_null(b, "param");
    close_event(b);
}

static const struct format format = {
    .prefix = "resp_",
    .whole = whole,
    .start = start,
    .delta = delta,
    .end = end,
    .failed = failed,
    .ping = ": ping\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

int responses_work(struct call *c) {
    json_t *messages;
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(gen_new(c, &format));
    TRY(conversation_of_responses(&c->problem, fields_text(&c->fields, F_INSTRUCTIONS, NULL),
                                  c->fields.value[F_INPUT], &messages));
    const int rc = conversation_ids(c, messages, NULL, true, false, &ids, &n);
    json_decref(messages);
    if (rc != QN_OK) return rc;
    TRY(gen_add_prompt(c->gen, ids, n, NULL));
    return gen_read_sampling(c->gen, F_MAX_OUTPUT_TOKENS, F_STOP);
}
