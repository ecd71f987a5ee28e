/* format_responses.c - /v1/responses, stateless: nothing is stored, nothing can be looked up. */
#include "server/conversation.h"
#include "server/formats.h"
#include "server/json_write.h"

#include "base/checked.h"

#include <string.h>

/* ---- answers -------------------------------------------------------------------------------- */

/* The words for an item of the output, by the kind of its part. */
static const struct item_kind {
    const char *type, *prefix; /* of the item's id */
    const char *content;       /* type of its content; NULL: it has arguments instead */
    const char *event;         /* "response.EVENT.delta" */
} kinds[] = {
    [QN_PIECE_REASONING] = {"reasoning", "rs_", "reasoning_text", "reasoning_text"},
    [QN_PIECE_TEXT] = {"message", "msg_", "output_text", "output_text"},
    [QN_PIECE_CALL] = {"function_call", "fc_", NULL, "function_call_arguments"},
};

/* An empty answer is one empty message. */
static const struct part nothing = {.kind = QN_PIECE_TEXT};

struct item {
    const struct gen *g;
    const struct part *part;
    size_t index; /* in the output */
};

/* Items have the answer's id with another prefix. */
static const char *item_id(const struct item *it, char id[64]) {
    const char *prefix = kinds[it->part->kind].prefix, *own = it->g->id + strlen("resp_");
    if (it->index == 0)
        snprintf(id, 64, "%s%s", prefix, own);
    else
        snprintf(id, 64, "%s%s_%zu", prefix, own, it->index);
    return id;
}

static void write_content(const struct item *it, bool is_whole, struct strbuf *b, const char *key) {
    const struct strbuf *text = &it->part->text;
    json_write_open(b, key, '{');
    json_write_text(b, "type", kinds[it->part->kind].content);
    json_write_bytes(b, "text", strbuf_text(text), is_whole ? text->n : 0);
    if (it->part->kind == QN_PIECE_TEXT) strbuf_str(b, ",\"annotations\":[],\"logprobs\":[]");
    json_write_close(b, '}');
}

/* is_whole false: in the state in which it begins. */
static void write_item(const struct item *it, bool is_whole, const char *status, struct strbuf *b,
                       const char *key) {
    const struct part *p = it->part;
    char id[64];
    json_write_open(b, key, '{');
    json_write_text(b, "type", kinds[p->kind].type);
    json_write_text(b, "id", item_id(it, id));
    json_write_text(b, "status", status);
    if (p->kind == QN_PIECE_CALL) {
        json_write_text(b, "call_id", p->id);
        json_write_text(b, "name", p->name);
        json_write_bytes(b, "arguments", strbuf_text(&p->text), is_whole ? p->text.n : 0);
    } else {
        if (p->kind == QN_PIECE_TEXT) json_write_text(b, "role", "assistant");
        if (p->kind == QN_PIECE_REASONING) json_write_raw(b, "summary", "[]");
        json_write_open(b, "content", '[');
        if (is_whole) write_content(it, true, b, NULL);
        json_write_close(b, ']');
    }
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
    json_write_open(b, "output_tokens_details", '{');
    json_write_int(b, "reasoning_tokens", (int64_t)g->n_thought_tokens);
    json_write_close(b, '}');
    json_write_int(b, "total_tokens", in + out);
    json_write_close(b, '}');
}

static const char *status_of(const struct choice *c) {
    if (c->finish == QN_RUNNING) return "in_progress";
    return c->finish == QN_FINISH_LENGTH ? "incomplete" : "completed";
}

/* Fields of the request that the answer repeats unchanged. */
static const struct {
    enum field field;
    const char *name, *fallback;
} echoed[] = {
    {F_PARALLEL_TOOLS, "parallel_tool_calls", "true"},
    {F_REASONING, "reasoning", "{\"effort\":null,\"summary\":null}"},
    {F_TEXT, "text", "{\"format\":{\"type\":\"text\"}}"},
    {F_TOOL_CHOICE, "tool_choice", "\"auto\""},
    {F_TOOLS, "tools", "[]"},
};
enum { N_ECHOED = COUNT_OF(echoed) };
_Static_assert((int)N_ECHOED == (int)GEN_ECHOED, "gen.h has room for them");

static void write_settings(const struct gen *g, struct strbuf *b) {
    const qn_sampling_params *s = &g->sampling;
    json_write_null(b, "instructions");
    if (s->max_tokens)
        json_write_int(b, "max_output_tokens", s->max_tokens);
    else
        json_write_null(b, "max_output_tokens");
    json_write_number(b, "temperature", s->temperature, 6);
    json_write_number(b, "top_p", s->top_p, 6);
    for (size_t i = 0; i < N_ECHOED; i++)
        json_write_raw(b, echoed[i].name, g->echoed[i] ? g->echoed[i] : echoed[i].fallback);
    strbuf_str(b, ",\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\","
                  "\"user\":null,\"metadata\":{},\"background\":false");
}

/* Only the last item may be truncated. */
static const char *item_status(const struct gen *g, size_t index) {
    const struct choice *c = &g->choices[0];
    return index + 1 < c->parts.n ? "completed" : status_of(c);
}

static void write_output(const struct gen *g, struct strbuf *b) {
    const struct choice *c = &g->choices[0];
    for (size_t i = 0; i < c->parts.n; i++) {
        const struct item it = {g, &c->parts.items[i], i};
        write_item(&it, true, item_status(g, i), b, NULL);
    }
    const struct item empty = {g, &nothing, 0};
    if (c->parts.n == 0) write_item(&empty, true, status_of(c), b, NULL);
}

static void write_response(const struct gen *g, bool has_output, struct strbuf *b,
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
    if (has_output) write_output(g, b);
    json_write_close(b, ']');
    write_settings(g, b);
    if (has_output)
        write_usage(g, b);
    else
        json_write_null(b, "usage");
    json_write_close(b, '}');
}

static void whole(struct gen *g, struct strbuf *b) {
    write_response(g, true, b, NULL);
}

/* ---- a stream ------------------------------------------------------------------------------- */

static void open_event(struct gen *g, struct strbuf *b, const char *type) {
    strbuf_printf(b, "event: %s\ndata: ", type);
    json_write_open(b, NULL, '{');
    json_write_text(b, "type", type);
    json_write_int(b, "sequence_number", (int64_t)g->sequence++);
}

/* Opens an event about an item's content or arguments. */
static void open_part_event(struct gen *g, const struct item *it, const char *type,
                            struct strbuf *b) {
    char id[64];
    open_event(g, b, type);
    json_write_int(b, "output_index", (int64_t)it->index);
    json_write_text(b, "item_id", item_id(it, id));
    if (it->part->kind != QN_PIECE_CALL) json_write_int(b, "content_index", 0);
}

static void close_event(struct strbuf *b) {
    strbuf_str(b, "}\n\n");
}

static void start(struct gen *g, struct strbuf *b) {
    static const char *const types[] = {"response.created", "response.in_progress"};
    for (size_t i = 0; i < 2; i++) {
        open_event(g, b, types[i]);
        write_response(g, false, b, "response");
        close_event(b);
    }
}

static void start_item(struct gen *g, const struct item *it, struct strbuf *b) {
    open_event(g, b, "response.output_item.added");
    json_write_int(b, "output_index", (int64_t)it->index);
    write_item(it, false, "in_progress", b, "item");
    close_event(b);
    if (it->part->kind == QN_PIECE_CALL) return;
    open_part_event(g, it, "response.content_part.added", b);
    write_content(it, false, b, "part");
    close_event(b);
}

static void write_delta(struct gen *g, const struct item *it, struct strbuf *b) {
    char type[64];
    const struct part *p = it->part;
    if (p->text.n == p->n_written) return;
    snprintf(type, sizeof type, "response.%s.delta", kinds[p->kind].event);
    open_part_event(g, it, type, b);
    json_write_bytes(b, "delta", strbuf_text(&p->text) + p->n_written, p->text.n - p->n_written);
    if (p->kind == QN_PIECE_TEXT) strbuf_str(b, ",\"logprobs\":[]");
    close_event(b);
}

/* The last events of an item repeat its whole content. */
static void stop_item(struct gen *g, const struct item *it, const char *status, struct strbuf *b) {
    const struct part *p = it->part;
    const bool is_call = p->kind == QN_PIECE_CALL;
    char type[64];
    snprintf(type, sizeof type, "response.%s.done", kinds[p->kind].event);
    open_part_event(g, it, type, b);
    json_write_bytes(b, is_call ? "arguments" : "text", strbuf_text(&p->text), p->text.n);
    if (is_call) json_write_text(b, "name", p->name);
    if (p->kind == QN_PIECE_TEXT) strbuf_str(b, ",\"logprobs\":[]");
    close_event(b);
    if (!is_call) {
        open_part_event(g, it, "response.content_part.done", b);
        write_content(it, true, b, "part");
        close_event(b);
    }
    open_event(g, b, "response.output_item.done");
    json_write_int(b, "output_index", (int64_t)it->index);
    write_item(it, true, status, b, "item");
    close_event(b);
}

/* Items follow each other: each ends where the next one begins. */
static void delta(struct choice *c, struct strbuf *b) {
    struct gen *g = c->gen;
    for (size_t i = 0; i < c->parts.n; i++) {
        struct part *p = &c->parts.items[i];
        const struct item it = {g, p, i};
        if (!p->begun) {
            const struct item before = {g, p - 1, i - 1};
            if (i > 0) stop_item(g, &before, "completed", b);
            start_item(g, &it, b);
            p->begun = true;
        }
        write_delta(g, &it, b);
        p->n_written = p->text.n;
    }
    c->told = c->finish != QN_RUNNING;
}

static void end(struct gen *g, struct strbuf *b) {
    const struct choice *c = &g->choices[0];
    const bool cut = c->finish == QN_FINISH_LENGTH;
    const size_t last = c->parts.n ? c->parts.n - 1 : 0;
    const struct item it = {g, c->parts.n ? &c->parts.items[last] : &nothing, last};
    if (c->parts.n == 0) start_item(g, &it, b);
    stop_item(g, &it, status_of(c), b);
    open_event(g, b, cut ? "response.incomplete" : "response.completed");
    write_response(g, true, b, "response");
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
    .call_prefix = "call_",
    .whole = whole,
    .start = start,
    .delta = delta,
    .end = end,
    .failed = failed,
    .ping = ": ping\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

static int add_prompt(struct gen *g, const struct chat_use *u, char **text) {
    struct call *c = g->call;
    struct conversation talk = {.tools = u->tools, .kwargs = u->kwargs, .add_generation = true};
    int32_t *ids = NULL;
    size_t n = 0;
    TRY(conversation_of_responses(&c->problem, c->fields.value[F_INSTRUCTIONS],
                                  c->fields.value[F_INPUT], &talk.messages));
    const int rc = conversation_ids(c, &talk, &ids, &n, text);
    json_decref(talk.messages);
    return rc == QN_OK ? gen_add_prompt(g, &(struct gen_prompt){ids, n, NULL, 0}) : rc;
}

/* Stores the fields to repeat as text, because the request's JSON is freed before they are
 * needed. */
static int keep_fields(struct gen *g) {
    for (size_t i = 0; i < N_ECHOED; i++) {
        const json_t *v = g->call->fields.value[echoed[i].field];
        if (!v) continue;
        g->echoed[i] = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        if (!g->echoed[i])
            return problem_set(&g->call->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    }
    return QN_OK;
}

static int read_body(struct gen *g, const struct chat_use *u, char **text) {
    const json_t *form = json_object_get(g->call->fields.value[F_TEXT], "format");
    TRY(add_prompt(g, u, text));
    TRY(gen_read_format(g, "text.format", form, NULL));
    TRY(gen_read_sampling(g, F_MAX_OUTPUT_TOKENS, F_STOP));
    TRY(keep_fields(g));
    return parts_open(g, u, *text);
}

int responses_work(struct call *c) {
    return chat_use_work(c, &format, read_body);
}
