#include "engine/guide.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)QN_STRUCTURED_JSON_SCHEMA == (int)GRAMMAR_JSON_SCHEMA &&
                   (int)QN_STRUCTURED_REGEX == (int)GRAMMAR_REGEX &&
                   (int)QN_STRUCTURED_GRAMMAR == (int)GRAMMAR_EBNF &&
                   (int)QN_STRUCTURED_CHOICE == (int)GRAMMAR_CHOICE,
               "quern.h and grammar.h number alike");

/* ---- texts of tokens ---------------------------------------------------------------------- */

void guide_texts_init(struct guide_texts *t) {
    *t = (struct guide_texts){0};
    pthread_mutex_init(&t->mutex, NULL);
}

void guide_texts_fini(struct guide_texts *t) {
    vocab_fini(&t->vocab);
    strbuf_fini(&t->bytes);
    free(t->at);
    pthread_mutex_destroy(&t->mutex);
}

/* The text of a token as grammars see it. A byte that no text has is that of special tokens alone.
 */
static int read_text(struct diag *d, struct strbuf *bytes, const struct tokenizer *tokenizer,
                     int32_t id) {
    const bool special = tokenizer_is_special(tokenizer, id);
    const size_t before = bytes->n;
    if (special) strbuf_str(bytes, VOCAB_SPECIAL);
    TRY(tokenizer_bytes(d, tokenizer, id, bytes));
    TRY(strbuf_status(d, bytes));
    if (!special &&
        memchr(strbuf_text(bytes) + before, (unsigned char)VOCAB_SPECIAL[0], bytes->n - before))
        bytes->n = before;
    return QN_OK;
}

static int read_texts(struct diag *d, struct guide_texts *t, const struct tokenizer *tokenizer,
                      uint32_t n_tokens) {
    const uint32_t n_known = MIN(n_tokens, (uint32_t)tokenizer_n_vocab(tokenizer));
    strbuf_clear(&t->bytes);
    free(t->at);
    t->at = calloc(n_tokens + 1, sizeof *t->at);
    if (!t->at) return fail_nomem(d, n_tokens * sizeof *t->at, "the vocabulary's texts");
    for (uint32_t i = 0; i < n_tokens; i++) {
        if (i < n_known) TRY(read_text(d, &t->bytes, tokenizer, (int32_t)i));
        if (t->bytes.n > UINT32_MAX)
            return fail(d, QN_ELIMIT, "the vocabulary's texts have more than 4 GB");
        t->at[i + 1] = (uint32_t)t->bytes.n;
    }
    TRY(strbuf_status(d, &t->bytes));
    return vocab_make(d, strbuf_text(&t->bytes), t->at, n_tokens, &t->vocab);
}

int guide_texts_make(struct diag *d, struct guide_texts *t, const struct tokenizer *tokenizer,
                     uint32_t n_tokens) {
    pthread_mutex_lock(&t->mutex);
    int rc = t->made ? QN_OK : read_texts(d, t, tokenizer, n_tokens);
    t->made = rc == QN_OK;
    pthread_mutex_unlock(&t->mutex);
    return rc;
}

/* ---- guides ------------------------------------------------------------------------------- */

static int compile(struct diag *d, const qn_sampling_params *s, struct code *code) {
    if (s->structured_kind < QN_STRUCTURED_NONE || s->structured_kind > QN_STRUCTURED_CHOICE)
        return fail(d, QN_EINVAL, "structured_kind: want 0 to %d, have %d", QN_STRUCTURED_CHOICE,
                    s->structured_kind);
    if (!s->structured_text)
        return fail(d, QN_EINVAL,
                    "structured_text: want the text of the schema, regex, grammar "
                    "or choice");
    if (s->ignore_eos)
        return fail(d, QN_EINVAL, "ignore_eos: a structured output ends where it is complete");
    if (s->min_tokens > 0)
        return fail(d, QN_EINVAL,
                    "min_tokens: a structured output ends where it is complete; "
                    "say in the schema or grammar how long it is");
    return grammar_compile(d, (enum grammar_kind)s->structured_kind, s->structured_text,
                           strlen(s->structured_text), code);
}

int guide_check(struct diag *d, const qn_sampling_params *s) {
    struct code code;
    if (s->structured_kind == QN_STRUCTURED_NONE) return QN_OK;
    TRY(compile(d, s, &code));
    code_fini(&code);
    return QN_OK;
}

void guide_free(struct guide *g) {
    if (!g) return;
    matcher_free(g->matcher);
    code_fini(&g->code);
    free(g);
}

int guide_new(struct diag *d, const struct vocab *vocab, const qn_sampling_params *s,
              const int32_t *ends, uint32_t n_ends, struct guide **out) {
    const uint32_t *mask;
    struct guide *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return fail_nomem(d, sizeof *g, "a grammar");
    memcpy(g->ends, ends, MIN(n_ends, (uint32_t)RT_MAX_STOP_IDS) * sizeof *ends);
    int rc = compile(d, s, &g->code);
    if (rc == QN_OK) rc = matcher_new(d, &g->code, vocab, g->ends, n_ends, &g->matcher);
    if (rc == QN_OK) rc = matcher_mask(d, g->matcher, &mask);
    if (rc == QN_OK)
        *out = g;
    else
        guide_free(g);
    return rc;
}

const uint32_t *guide_mask(void *user, const int32_t *output, uint32_t n) {
    struct guide *g = user;
    const uint32_t *mask = NULL;
    int rc = g->failure.code;
    for (; rc == QN_OK && g->n_read < n; g->n_read++)
        rc = matcher_token(&g->failure, g->matcher, output[g->n_read]);
    if (rc == QN_OK) rc = matcher_mask(&g->failure, g->matcher, &mask);
    return rc == QN_OK ? mask : NULL;
}
