/* format_chat.c - /v1/chat/completions. */
#include "server/conversation.h"
#include "server/formats.h"
#include "server/json_write.h"

#define OBJECT "chat.completion.chunk" /* of a streamed chunk */

/* ---- answers -------------------------------------------------------------------------------- */

static void write_token(const struct gen *g, int32_t id, float logprob, struct strbuf *b) {
    struct strbuf text = {0};
    format_token_text(g, id, &text);
    json_write_bytes(b, "token", strbuf_text(&text), text.n);
    json_write_number(b, "logprob", logprob, 9);
    json_write_open(b, "bytes", '[');
    for (size_t i = 0; i < text.n; i++) json_write_int(b, NULL, (unsigned char)text.text[i]);
    json_write_close(b, ']');
    strbuf_fini(&text);
}

static void write_logprobs(const struct choice *c, struct strbuf *b) {
    const struct gen *g = c->gen;
    if (!g->wants_logprobs) {
        json_write_null(b, "logprobs");
        return;
    }
    json_write_open(b, "logprobs", '{');
    json_write_open(b, "content", '[');
    for (size_t i = 0; i < c->tokens.n; i++) {
        const struct gen_token *t = &c->tokens.items[i];
        json_write_open(b, NULL, '{');
        write_token(g, t->id, t->logprob, b);
        json_write_open(b, "top_logprobs", '[');
        for (size_t k = 0; k < t->n_top && k < g->n_top; k++) {
            json_write_open(b, NULL, '{');
            write_token(g, t->top[k].id, t->top[k].logprob, b);
            json_write_close(b, '}');
        }
        json_write_close(b, ']');
        json_write_close(b, '}');
    }
    json_write_close(b, ']');
    json_write_null(b, "refusal");
    json_write_close(b, '}');
}

/* Writes a call, or the next piece of its arguments. */
static void write_call(const struct part *p, size_t index, bool is_delta, bool begins,
                       const char *arguments, size_t n, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    if (is_delta) json_write_int(b, "index", (int64_t)index);
    if (begins) {
        json_write_text(b, "id", p->id);
        json_write_text(b, "type", "function");
    }
    json_write_open(b, "function", '{');
    if (begins) json_write_text(b, "name", p->name);
    json_write_bytes(b, "arguments", arguments, n);
    json_write_close(b, '}');
    json_write_close(b, '}');
}

static void write_calls(const struct choice *c, struct strbuf *b) {
    json_write_open(b, "tool_calls", '[');
    for (size_t i = 0, index = 0; i < c->parts.n; i++) {
        const struct part *p = &c->parts.items[i];
        if (p->kind == QN_PIECE_CALL)
            write_call(p, index++, false, true, strbuf_text(&p->text), p->text.n, b);
    }
    json_write_close(b, ']');
}

/* Thoughts have two names: vLLM's new one and the older one of DeepSeek. */
static void write_thought(const char *text, size_t n, struct strbuf *b) {
    json_write_bytes(b, "reasoning_content", text, n);
    json_write_bytes(b, "reasoning", text, n);
}

static void write_message(const struct choice *c, struct strbuf *b) {
    struct strbuf text = {0}, thought = {0};
    parts_text(c, &text);
    for (size_t i = 0; i < c->parts.n; i++) {
        const struct part *p = &c->parts.items[i];
        if (p->kind == QN_PIECE_REASONING) strbuf_add(&thought, strbuf_text(&p->text), p->text.n);
    }
    json_write_open(b, "message", '{');
    json_write_text(b, "role", "assistant");
    if (text.n == 0 && (thought.n > 0 || c->n_calls > 0))
        json_write_null(b, "content");
    else
        json_write_bytes(b, "content", strbuf_text(&text), text.n);
    json_write_null(b, "refusal");
    if (thought.n > 0) write_thought(thought.text, thought.n, b);
    if (c->n_calls > 0) write_calls(c, b);
    json_write_close(b, '}');
    strbuf_fini(&text);
    strbuf_fini(&thought);
}

static void write_choice(const struct choice *c, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    json_write_int(b, "index", c->index);
    write_message(c, b);
    write_logprobs(c, b);
    format_finish(c, b);
    json_write_close(b, '}');
}

static void whole(struct gen *g, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    format_head(g, b, "chat.completion");
    json_write_open(b, "choices", '[');
    for (size_t i = 0; i < g->n_choices; i++) write_choice(&g->choices[i], b);
    json_write_close(b, ']');
    format_usage(g, b);
    json_write_close(b, '}');
}

static void open_delta(const struct choice *c, struct strbuf *b) {
    format_chunk_open(c->gen, b, OBJECT);
    json_write_open(b, NULL, '{');
    json_write_int(b, "index", c->index);
    json_write_open(b, "delta", '{');
}

/* The first of the chunks about the same tokens carries their log-probabilities. */
static void close_delta(struct choice *c, struct strbuf *b) {
    json_write_close(b, '}');
    if (c->tokens.n > 0)
        write_logprobs(c, b);
    else
        json_write_null(b, "logprobs");
    c->tokens.n = 0;
    strbuf_str(b, ",\"finish_reason\":null}");
    format_chunk_close(c->gen, b);
}

/* Writes the new text of a part; index: the call's number among calls. */
static void write_part(struct choice *c, struct part *p, size_t index, struct strbuf *b) {
    const char *text = strbuf_text(&p->text) + p->n_written;
    const size_t n = p->text.n - p->n_written;
    const bool begins = p->kind == QN_PIECE_CALL && !p->begun;
    if (n == 0 && !begins) return;
    open_delta(c, b);
    if (p->kind == QN_PIECE_REASONING) {
        write_thought(text, n, b);
    } else if (p->kind == QN_PIECE_TEXT) {
        json_write_bytes(b, "content", text, n);
    } else {
        json_write_open(b, "tool_calls", '[');
        write_call(p, index, true, begins, text, n, b);
        json_write_close(b, ']');
    }
    close_delta(c, b);
    p->n_written = p->text.n;
    p->begun = true;
}

/* A choice's chunks: its role, then its new parts, then how it ended. */
static void delta(struct choice *c, struct strbuf *b) {
    if (!c->begun) {
        open_delta(c, b);
        json_write_text(b, "role", "assistant");
        json_write_text(b, "content", "");
        strbuf_str(b, "},\"logprobs\":null,\"finish_reason\":null}");
        format_chunk_close(c->gen, b);
        c->begun = true;
    }
    for (size_t i = 0, index = 0; i < c->parts.n; i++) {
        write_part(c, &c->parts.items[i], index, b);
        index += c->parts.items[i].kind == QN_PIECE_CALL;
    }
    if (c->tokens.n > 0) { /* tokens whose text is held back */
        open_delta(c, b);
        json_write_text(b, "content", "");
        close_delta(c, b);
    }
    if (c->finish == QN_RUNNING) return;
    open_delta(c, b);
    strbuf_str(b, "},\"logprobs\":null");
    format_finish(c, b);
    json_write_close(b, '}');
    format_chunk_close(c->gen, b);
    c->told = true;
}

static void end(struct gen *g, struct strbuf *b) {
    format_chunk_end(g, b, OBJECT);
}

static const struct format format = {
    .prefix = "chatcmpl-",
    .call_prefix = "call_",
    .whole = whole,
    .delta = delta,
    .end = end,
    .failed = format_stream_failed,
    .ping = ": ping\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

/* Adds the prompt; its text is the caller's. */
static int add_prompt(struct gen *g, const struct chat_use *u, char **text) {
    struct call *c = g->call;
    struct conversation talk = {.tools = u->tools, .kwargs = u->kwargs};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    TRY(conversation_ending(c, &talk));
    TRY(conversation_of_chat(&c->problem, c->fields.value[F_CHAT_MESSAGES], &talk.messages));
    const int rc = conversation_ids(c, &talk, &ids, &n_ids, text);
    json_decref(talk.messages);
    return rc == QN_OK ? gen_add_prompt(g, &(struct gen_prompt){ids, n_ids, NULL, 0}) : rc;
}

static int read_logprobs(struct gen *g) {
    const struct fields *f = &g->call->fields;
    g->wants_logprobs = fields_bool(f, F_CHAT_LOGPROBS, false);
    g->n_top = (uint32_t)fields_int(f, F_TOP_LOGPROBS, 0);
    g->sampling.logprobs = g->n_top;
    if (g->n_top == 0 || g->wants_logprobs) return QN_OK;
    return problem_set(&g->call->problem, PROBLEM_VALUE, "top_logprobs",
                       "top_logprobs: has no meaning without logprobs");
}

static int read_body(struct gen *g, const struct chat_use *u, char **text) {
    const struct fields *f = &g->call->fields;
    const bool newer = fields_has(f, F_MAX_COMPLETION_TOKENS);
    TRY(add_prompt(g, u, text));
    TRY(read_logprobs(g));
    if (!newer && fields_has(f, F_MAX_TOKENS) && fields_int(f, F_MAX_TOKENS, 1) == 0)
        return problem_set(&g->call->problem, PROBLEM_VALUE, "max_tokens",
                           "max_tokens: want at least 1");
    TRY(gen_read_sampling(g, newer ? F_MAX_COMPLETION_TOKENS : F_MAX_TOKENS, F_STOP));
    TRY(parts_open(g, u, *text));
    return gen_read_stream_options(g);
}

int chat_work(struct call *c) {
    return chat_use_work(c, &format, read_body);
}
