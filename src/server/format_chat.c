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

static void write_choice(const struct choice *c, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    json_write_int(b, "index", c->index);
    json_write_open(b, "message", '{');
    json_write_text(b, "role", "assistant");
    json_write_bytes(b, "content", strbuf_text(&c->text), c->text.n);
    json_write_null(b, "refusal");
    json_write_close(b, '}');
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

/* A choice's chunks: its role, then text, then how it ended. */
static void delta(struct choice *c, struct strbuf *b) {
    if (!c->begun) {
        open_delta(c, b);
        json_write_text(b, "role", "assistant");
        json_write_text(b, "content", "");
        strbuf_str(b, "},\"logprobs\":null,\"finish_reason\":null}");
        format_chunk_close(c->gen, b);
        c->begun = true;
    }
    if (c->text.n > 0 || c->tokens.n > 0) {
        open_delta(c, b);
        json_write_bytes(b, "content", strbuf_text(&c->text), c->text.n);
        json_write_close(b, '}');
        write_logprobs(c, b);
        strbuf_str(b, ",\"finish_reason\":null}");
        format_chunk_close(c->gen, b);
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
    .whole = whole,
    .delta = delta,
    .end = end,
    .failed = format_stream_failed,
    .ping = ": ping\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

static int add_prompt(struct gen *g) {
    struct call *c = g->call;
    json_t *messages;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    TRY(conversation_of_chat(&c->problem, c->fields.value[F_CHAT_MESSAGES], &messages));
    const int rc = conversation_ids(c, messages, c->fields.value[F_KWARGS],
                                    fields_bool(&c->fields, F_ADD_GENERATION, true),
                                    fields_bool(&c->fields, F_ADD_SPECIAL, false), &ids, &n_ids);
    json_decref(messages);
    return rc == QN_OK ? gen_add_prompt(g, ids, n_ids, NULL) : rc;
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

int chat_work(struct call *c) {
    const struct fields *f = &c->fields;
    const bool newer = fields_has(f, F_MAX_COMPLETION_TOKENS);
    TRY(gen_new(c, &format));
    struct gen *g = c->gen;
    TRY(add_prompt(g));
    TRY(read_logprobs(g));
    if (!newer && fields_has(f, F_MAX_TOKENS) && fields_int(f, F_MAX_TOKENS, 1) == 0)
        return problem_set(&c->problem, PROBLEM_VALUE, "max_tokens", "max_tokens: want at least 1");
    TRY(gen_read_sampling(g, newer ? F_MAX_COMPLETION_TOKENS : F_MAX_TOKENS, F_STOP));
    return gen_read_stream_options(g);
}
