#include "engine/guide.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)QN_STRUCTURED_JSON_SCHEMA == (int)GRAMMAR_JSON_SCHEMA &&
                   (int)QN_STRUCTURED_REGEX == (int)GRAMMAR_REGEX &&
                   (int)QN_STRUCTURED_GRAMMAR == (int)GRAMMAR_EBNF &&
                   (int)QN_STRUCTURED_CHOICE == (int)GRAMMAR_CHOICE,
               "quern.h and grammar.h number alike");

/* ---- compiled grammars -------------------------------------------------------------------- */

static void rules_release(struct guide_rules *r) {
    if (!r || __atomic_sub_fetch(&r->n_refs, 1, __ATOMIC_ACQ_REL) > 0) return;
    matcher_free(r->matcher);
    code_fini(&r->code);
    free(r->first);
    free(r->text);
    free(r);
}

static int compile(struct diag *d, const qn_sampling_params *s, struct code *code) {
    return grammar_compile(d, (enum grammar_kind)s->structured_kind, s->structured_text,
                           strlen(s->structured_text), code);
}

static int rules_fill(struct diag *d, const struct guide_texts *t, const qn_sampling_params *s,
                      struct guide_rules *r) {
    const size_t bytes = t->vocab.n_words * sizeof *r->first;
    const uint32_t *mask;
    TRY(compile(d, s, &r->code));
    TRY(matcher_new(d, &r->code, &t->vocab, t->ends, t->n_ends, &r->matcher));
    TRY(matcher_mask(d, r->matcher, &mask));
    r->kind = (enum grammar_kind)s->structured_kind;
    r->text = strdup(s->structured_text);
    r->first = malloc(bytes);
    if (!r->text || !r->first) return fail_nomem(d, bytes, "a grammar");
    memcpy(r->first, mask, bytes);
    return QN_OK;
}

static int rules_new(struct diag *d, const struct guide_texts *t, const qn_sampling_params *s,
                     struct guide_rules **out) {
    struct guide_rules *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return fail_nomem(d, sizeof *r, "a grammar");
    r->n_refs = 1;
    int rc = rules_fill(d, t, s, r);
    if (rc == QN_OK)
        *out = r;
    else
        rules_release(r);
    return rc;
}

/* Moves the grammar at `at` to the front. */
static void rules_to_front(struct guide_texts *t, size_t at) {
    struct guide_rules *r = t->kept[at];
    for (; at > 0; at--) t->kept[at] = t->kept[at - 1];
    t->kept[0] = r;
}

/* The grammar of that text if it is kept, with a reference for the caller; else NULL. */
static struct guide_rules *rules_find(struct guide_texts *t, const qn_sampling_params *s) {
    for (size_t i = 0; i < GUIDE_RULES_KEPT && t->kept[i]; i++) {
        if ((int)t->kept[i]->kind != s->structured_kind ||
            strcmp(t->kept[i]->text, s->structured_text) != 0)
            continue;
        rules_to_front(t, i);
        __atomic_add_fetch(&t->kept[0]->n_refs, 1, __ATOMIC_ACQ_REL);
        return t->kept[0];
    }
    return NULL;
}

/* Keeps a new grammar in the place of the least recently used one. */
static void rules_keep(struct guide_texts *t, struct guide_rules *r) {
    rules_release(t->kept[GUIDE_RULES_KEPT - 1]);
    t->kept[GUIDE_RULES_KEPT - 1] = r;
    r->n_refs++;
    rules_to_front(t, GUIDE_RULES_KEPT - 1);
}

/* A grammar is compiled without the mutex: compiling may take 100 ms, and other requests have their
 * grammars already. */
static int rules_get(struct diag *d, struct guide_texts *t, const qn_sampling_params *s,
                     struct guide_rules **out) {
    pthread_mutex_lock(&t->mutex);
    *out = rules_find(t, s);
    pthread_mutex_unlock(&t->mutex);
    if (*out) return QN_OK;
    struct guide_rules *made;
    TRY(rules_new(d, t, s, &made));
    pthread_mutex_lock(&t->mutex);
    *out = rules_find(t, s);
    if (!*out) rules_keep(t, *out = made);
    pthread_mutex_unlock(&t->mutex);
    if (*out != made) rules_release(made);
    return QN_OK;
}

/* ---- texts of tokens ---------------------------------------------------------------------- */

void guide_texts_init(struct guide_texts *t) {
    *t = (struct guide_texts){0};
    pthread_mutex_init(&t->mutex, NULL);
}

void guide_texts_fini(struct guide_texts *t) {
    for (size_t i = 0; i < GUIDE_RULES_KEPT; i++) rules_release(t->kept[i]);
    vocab_fini(&t->vocab);
    strbuf_fini(&t->bytes);
    free(t->at);
    pthread_mutex_destroy(&t->mutex);
}

/* Appends the text of a token as grammars see it. A byte that no text has marks special tokens, and
 * only them. */
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
                     uint32_t n_tokens, const int32_t *ends, uint32_t n_ends) {
    pthread_mutex_lock(&t->mutex);
    int rc = t->made ? QN_OK : read_texts(d, t, tokenizer, n_tokens);
    if (!t->made) {
        t->n_ends = MIN(n_ends, (uint32_t)RT_MAX_STOP_IDS);
        memcpy(t->ends, ends, t->n_ends * sizeof *ends);
    }
    t->made = rc == QN_OK;
    pthread_mutex_unlock(&t->mutex);
    return rc;
}

/* ---- guides ------------------------------------------------------------------------------- */

static int check(struct diag *d, const qn_sampling_params *s) {
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
    return QN_OK;
}

int guide_check(struct diag *d, const qn_sampling_params *s) {
    struct code code;
    if (s->structured_kind == QN_STRUCTURED_NONE) return QN_OK;
    TRY(check(d, s));
    TRY(compile(d, s, &code));
    code_fini(&code);
    return QN_OK;
}

void guide_free(struct guide *g) {
    if (!g) return;
    matcher_free(g->matcher);
    rules_release(g->rules);
    free(g);
}

int guide_new(struct diag *d, struct guide_texts *t, const qn_sampling_params *s,
              struct guide **out) {
    struct guide_rules *rules;
    *out = NULL;
    TRY(check(d, s));
    TRY(rules_get(d, t, s, &rules));
    struct guide *g = calloc(1, sizeof *g);
    if (!g) {
        rules_release(rules);
        return fail_nomem(d, sizeof *g, "a grammar");
    }
    g->rules = rules;
    *out = g;
    return QN_OK;
}

static bool is_end(const struct guide_texts *t, int32_t id) {
    for (uint32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id) return true;
    return false;
}

int guide_read(struct diag *d, struct guide *g, const struct guide_texts *t, const int32_t *output,
               uint32_t n, const uint32_t **mask) {
    *mask = NULL;
    if (!g->matcher) TRY(matcher_fork(d, g->rules->matcher, &g->matcher));
    for (; g->n_read < n; g->n_read++) {
        if (is_end(t, output[g->n_read]) || g->n_read + 1 == g->max_tokens) return QN_OK;
        TRY(matcher_token(d, g->matcher, output[g->n_read]));
    }
    return matcher_mask(d, g->matcher, mask);
}
