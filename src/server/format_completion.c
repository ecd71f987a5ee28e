/* format_completion.c - /v1/completions. */
#include "server/conversation.h"
#include "server/formats.h"
#include "server/json_write.h"

#include <stdlib.h>
#include <string.h>

#define OBJECT "text_completion" /* of a streamed chunk */

/* ---- answers -------------------------------------------------------------------------------- */

static void write_tops(const struct gen *g, const struct gen_token *t, const struct strbuf *own,
                       struct strbuf *b) {
    struct strbuf text = {0};
    json_write_open(b, NULL, '{');
    for (size_t i = 0; i < t->n_top && i < g->n_top; i++) {
        strbuf_clear(&text);
        format_token_text(g, t->top[i].id, &text);
        json_write_number(b, strbuf_text(&text), t->top[i].logprob, 9);
    }
    bool listed = false;
    for (size_t i = 0; i < t->n_top && i < g->n_top; i++) listed |= t->top[i].id == t->id;
    if (!listed) json_write_number(b, strbuf_text(own), t->logprob, 9);
    json_write_close(b, '}');
    strbuf_fini(&text);
}

/* Writes four arrays of the pending tokens, each by a loop of its own. */
static void write_logprobs(struct choice *c, struct strbuf *b) {
    const struct gen *g = c->gen;
    struct strbuf text = {0}, tops = {0}, offsets = {0}, numbers = {0};
    json_write_open(b, "logprobs", '{');
    json_write_open(b, "tokens", '[');
    for (size_t i = 0; i < c->tokens.n; i++) {
        const struct gen_token *t = &c->tokens.items[i];
        strbuf_clear(&text);
        format_token_text(g, t->id, &text);
        json_write_bytes(b, NULL, strbuf_text(&text), text.n);
        json_write_number(&numbers, NULL, t->logprob, 9);
        if (t->logprob == t->logprob)
            write_tops(g, t, &text, &tops);
        else
            json_write_null(&tops, NULL);
        json_write_int(&offsets, NULL, (int64_t)c->text_offset);
        c->text_offset += format_characters(strbuf_text(&text), text.n);
    }
    json_write_close(b, ']');
    strbuf_printf(b, ",\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}",
                  strbuf_text(&numbers), strbuf_text(&tops), strbuf_text(&offsets));
    strbuf_fini(&text);
    strbuf_fini(&tops);
    strbuf_fini(&offsets);
    strbuf_fini(&numbers);
}

static void write_choice(struct choice *c, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    json_write_int(b, "index", c->index);
    json_write_bytes(b, "text", strbuf_text(&c->text), c->text.n);
    if (c->gen->wants_logprobs)
        write_logprobs(c, b);
    else
        json_write_null(b, "logprobs");
    format_finish(c, b);
    json_write_close(b, '}');
}

static void whole(struct gen *g, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    format_head(g, b, "text_completion");
    json_write_open(b, "choices", '[');
    for (size_t i = 0; i < g->n_choices; i++) write_choice(&g->choices[i], b);
    json_write_close(b, ']');
    format_usage(g, b);
    json_write_close(b, '}');
}

static void delta(struct choice *c, struct strbuf *b) {
    struct gen *g = c->gen;
    format_chunk_open(g, b, OBJECT);
    write_choice(c, b);
    format_chunk_close(g, b);
    c->told = c->finish != QN_RUNNING;
}

static void end(struct gen *g, struct strbuf *b) {
    format_chunk_end(g, b, OBJECT);
}

static const struct format format = {
    .prefix = "cmpl-",
    .whole = whole,
    .delta = delta,
    .end = end,
    .failed = format_stream_failed,
    .ping = ": ping\n\n",
};

/* ---- the body ------------------------------------------------------------------------------- */

static int add_text(struct gen *g, const json_t *text, bool add_special) {
    struct call *c = g->call;
    const char *words = json_string_value(text);
    const size_t n = json_string_length(text);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    TRY(conversation_tokenize(c, words, n, add_special, "prompt", &ids, &n_ids));
    char *copy = g->echo ? malloc(n + 1) : NULL;
    if (copy) memcpy(copy, words, n + 1);
    return gen_add_prompt(g, &(struct gen_prompt){ids, n_ids, copy, n});
}

static int add_ids(struct gen *g, const json_t *array) {
    const size_t n = json_array_size(array);
    const int64_t n_vocab = g->call->server->info.vocab;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) return problem_set(&g->call->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        ids[i] = (int32_t)json_number_value(json_array_get(array, i));
        if (ids[i] < n_vocab) continue;
        const int id = ids[i];
        free(ids);
        return problem_set(&g->call->problem, PROBLEM_VALUE, "prompt",
                           "prompt: %d is no token id; the vocabulary has %lld", id,
                           (long long)n_vocab);
    }
    return gen_add_prompt(g, &(struct gen_prompt){ids, n, NULL, 0});
}

static int add_prompts(struct gen *g) {
    const json_t *prompt = g->call->fields.value[F_PROMPT];
    const bool add_special = fields_bool(&g->call->fields, F_ADD_SPECIAL, true);
    if (json_is_string(prompt)) return add_text(g, prompt, add_special);
    if (json_is_number(json_array_get(prompt, 0))) return add_ids(g, prompt);
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *each = json_array_get(prompt, i);
        TRY(json_is_string(each) ? add_text(g, each, add_special) : add_ids(g, each));
    }
    return QN_OK;
}

int completion_work(struct call *c) {
    const struct fields *f = &c->fields;
    TRY(gen_new(c, &format));
    struct gen *g = c->gen;
    g->echo = fields_bool(f, F_ECHO, false);
    g->wants_logprobs = fields_has(f, F_LOGPROBS);
    g->n_top = (uint32_t)fields_int(f, F_LOGPROBS, 0);
    g->sampling.max_tokens = 16;
    g->sampling.logprobs = g->n_top;
    TRY(add_prompts(g));
    TRY(gen_read_sampling(g, F_MAX_TOKENS, F_STOP));
    if (g->sampling.max_tokens == 0 && !g->echo)
        return problem_set(&c->problem, PROBLEM_VALUE, "max_tokens",
                           "max_tokens: want at least 1; 0 only with echo");
    g->drops_output = g->sampling.max_tokens == 0;
    if (g->drops_output) g->sampling.max_tokens = 1;
    g->sampling.has_prompt_logprobs = g->echo && g->wants_logprobs;
    if (g->sampling.has_prompt_logprobs) g->sampling.prompt_logprobs = g->n_top;
    return gen_read_stream_options(g);
}
