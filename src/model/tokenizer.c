#include "base/checked.h"
#include "model/tokenizer_internal.h"

#include <string.h>

int tokenizer_scratch_init(struct diag *d, struct encode_scratch *s) {
    *s = (struct encode_scratch){0};
    s->match = pcre2_match_data_create(1, NULL);
    return s->match == NULL ? fail_nomem(d, 0, "a regular expression match") : QN_OK;
}

void tokenizer_scratch_fini(struct encode_scratch *s) {
    for (int i = 0; i < 3; i++) strbuf_fini(&s->text[i]);
    for (int i = 0; i < 2; i++) {
        ARRAY_FINI(&s->spans[i]);
        strbuf_fini(&s->words[i].text);
        ARRAY_FINI(&s->words[i].items);
    }
    tokenizer_bpe_scratch_fini(&s->bpe);
    pcre2_match_data_free(s->match);
}

/* Upper bound on the bytes that normalizing or splitting makes of n bytes. A composed character
 * grows to at most eleven times its bytes; a file whose replacements multiply each other is refused
 * early. */
static size_t most_text(size_t n) {
    return MIN((size_t)TOKENIZER_MAX_TEXT, 4096 + 64 * MIN(n, (size_t)TOKENIZER_MAX_TEXT));
}

static int replace_all(struct diag *d, const struct norm_step *step, pcre2_match_data *match,
                       const char *text, size_t n, size_t most, struct strbuf *out) {
    size_t done = 0;
    for (size_t from = 0; from <= n;) {
        size_t start = from, end;
        bool found;
        TRY(tokenizer_split_find(d, &step->pattern, match, text, n, &start, &end, &found));
        if (!found) break;
        if (start == end) { /* nothing to replace */
            if (start >= n) break;
            from = start;
            tokenizer_text_next(text, &from);
            continue;
        }
        strbuf_add(out, text + done, start - done);
        strbuf_add(out, step->text, step->n);
        done = from = end;
        if (out->n > most) break; /* the caller refuses it */
    }
    strbuf_add(out, text + done, n - done);
    return QN_OK;
}

static void strip(const struct norm_step *step, const char *text, size_t n, struct strbuf *out) {
    size_t start = 0;
    for (size_t i = 0; step->left && i < n; start = i)
        if (!tokenizer_text_is_space(tokenizer_text_next(text, &i))) break;
    while (step->right && n > start && tokenizer_text_is_space(tokenizer_text_last(text, n))) do
            n--;
        while (((unsigned char)text[n] & 0xC0) == 0x80);
    strbuf_add(out, text + start, n - start);
}

static int apply_norm(struct diag *d, const struct norm_step *step, pcre2_match_data *match,
                      const char *text, size_t n, size_t most, struct strbuf *out) {
    strbuf_clear(out);
    switch (step->kind) {
    case NORM_FORM: TRY(tokenizer_text_normalize(d, step->form, text, n, out)); break;
    case NORM_PREPEND:
        if (n > 0) strbuf_add(out, step->text, step->n);
        strbuf_add(out, text, n);
        break;
    case NORM_REPLACE: TRY(replace_all(d, step, match, text, n, most, out)); break;
    case NORM_LOWERCASE: tokenizer_text_lowercase(out, text, n); break;
    case NORM_STRIP: strip(step, text, n, out); break;
    case NORM_ALPHABET: tokenizer_text_to_alphabet(out, text, n); break;
    }
    if (out->n > most)
        return fail(d, QN_ELIMIT, "tokenizer: normalizer: makes more than %zu bytes of the text",
                    most);
    return strbuf_status(d, out);
}

int tokenizer_normalize(struct diag *d, const struct tokenizer *t, struct encode_scratch *s,
                        const char *text, size_t n, struct strbuf **out) {
    struct strbuf *to = &s->text[1], *spare = &s->text[2];
    const size_t most = most_text(n);
    if (t->norms.n == 0) {
        strbuf_clear(to);
        strbuf_add(to, text, n);
        *out = to;
        return strbuf_status(d, to);
    }
    for (size_t i = 0; i < t->norms.n; i++) {
        TRY(apply_norm(d, &t->norms.items[i], s->match, text, n, most, to));
        text = strbuf_text(to), n = to->n;
        *out = to;
        to = spare, spare = *out;
    }
    return QN_OK;
}

/* Encodes normalized text without added tokens: words, then ids. first: the whole input begins
 * here. */
static int encode_plain(struct diag *d, const struct tokenizer *t, struct encode_scratch *s,
                        const char *text, size_t n, bool first, struct token_ids *ids) {
    if (n == 0) return QN_OK;
    if (t->pres.n == 0) return tokenizer_bpe_encode(d, &t->bpe, &s->bpe, text, n, ids);
    struct words *from = &s->words[0], *to = &s->words[1];
    strbuf_clear(&from->text);
    strbuf_add(&from->text, text, n);
    TRY(strbuf_status(d, &from->text));
    from->items.n = 0;
    TRY(ARRAY_PUSH(d, &from->items, (struct word){0, n, first}));
    for (size_t i = 0; i < t->pres.n; i++) {
        TRY(tokenizer_split_apply(d, &t->pres.items[i], s->match, from, to));
        if (to->text.n > most_text(n))
            return fail(d, QN_ELIMIT,
                        "tokenizer: pre_tokenizer: makes more than %zu bytes of the text",
                        most_text(n));
        struct words *swap = from;
        from = to, to = swap;
    }
    for (size_t i = 0; i < from->items.n; i++) {
        const struct word *w = &from->items.items[i];
        TRY(tokenizer_bpe_encode(d, &t->bpe, &s->bpe, from->text.text + w->start, w->n, ids));
    }
    return QN_OK;
}

/* Encodes text between two tokens of the raw search. */
static int encode_stretch(struct diag *d, const struct tokenizer *t, struct encode_scratch *s,
                          const char *text, size_t n, bool first, struct token_ids *ids) {
    struct strbuf *clean;
    TRY(tokenizer_normalize(d, t, s, text, n, &clean));
    const char *p = strbuf_text(clean);
    TRY(tokenizer_added_find(d, &t->normalized, t->added.items, p, clean->n, &s->spans[1]));
    for (size_t i = 0; i < s->spans[1].n; i++) {
        const struct added_span *span = &s->spans[1].items[i];
        if (span->id >= 0)
            TRY(ARRAY_PUSH(d, ids, span->id));
        else
            TRY(encode_plain(d, t, s, p + span->start, span->end - span->start,
                             first && span->start == 0, ids));
    }
    return QN_OK;
}

static int encode_text(struct diag *d, const struct tokenizer *t, struct encode_scratch *s,
                       const char *text, size_t n, struct token_ids *ids) {
    if (!tokenizer_text_valid(text, n)) {
        tokenizer_text_lossy(&s->text[0], text, n);
        TRY(strbuf_status(d, &s->text[0]));
        text = strbuf_text(&s->text[0]), n = s->text[0].n;
    }
    TRY(tokenizer_added_find(d, &t->raw, t->added.items, text, n, &s->spans[0]));
    for (size_t i = 0; i < s->spans[0].n; i++) {
        const struct added_span *span = &s->spans[0].items[i];
        if (span->id >= 0)
            TRY(ARRAY_PUSH(d, ids, span->id));
        else
            TRY(encode_stretch(d, t, s, text + span->start, span->end - span->start,
                               span->start == 0, ids));
    }
    return QN_OK;
}

/* Applies the post-processor to ids[start...]. */
static int post_process(struct diag *d, const struct token_ids *p, size_t start,
                        struct token_ids *ids) {
    struct token_ids made = {0};
    int rc = QN_OK;
    for (size_t i = 0; i < p->n && rc == QN_OK; i++) {
        if (p->items[i] >= 0) {
            rc = ARRAY_PUSH(d, &made, p->items[i]);
            continue;
        }
        size_t n = ids->n - start;
        if (made.n + n > TOKENIZER_MAX_TEXT)
            rc = fail(d, QN_ELIMIT, "tokenizer: post_processor makes too many tokens");
        else
            rc = ARRAY_RESERVE(d, &made, made.n + n);
        if (rc != QN_OK) break;
        if (n > 0) memcpy(made.items + made.n, ids->items + start, n * sizeof *made.items);
        made.n += n;
    }
    if (rc == QN_OK) rc = ARRAY_RESERVE(d, ids, start + made.n);
    if (rc == QN_OK) {
        if (made.n > 0) memcpy(ids->items + start, made.items, made.n * sizeof *made.items);
        ids->n = start + made.n;
    }
    ARRAY_FINI(&made);
    return rc;
}

int tokenizer_encode(struct diag *d, const struct tokenizer *t, const char *text, size_t n,
                     bool add_special, struct token_ids *ids) {
    if (n > TOKENIZER_MAX_TEXT)
        return fail(d, QN_ELIMIT, "tokenizer: want a text of at most %d bytes, have %zu",
                    TOKENIZER_MAX_TEXT, n);
    struct encode_scratch s;
    size_t start = ids->n;
    TRY(tokenizer_scratch_init(d, &s));
    int rc = n == 0 ? QN_OK : encode_text(d, t, &s, text, n, ids);
    tokenizer_scratch_fini(&s);
    if (add_special && t->post.n_parts > 0 && rc == QN_OK)
        rc = post_process(d, &t->post.ids, start, ids);
    if (rc != QN_OK) ids->n = start;
    return rc;
}

int32_t tokenizer_n_vocab(const struct tokenizer *t) {
    return t->n_vocab;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token) {
    uint64_t idx;
    size_t n = strlen(token);
    if (map_find(&t->added_ids, token, n, &idx)) return t->added.items[idx].id;
    return tokenizer_bpe_id(&t->bpe, token, n);
}

static const struct added_token *added_of(const struct tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->n_vocab || t->added_of_id[id] < 0) return NULL;
    return &t->added.items[t->added_of_id[id]];
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *n) {
    const struct added_token *a = added_of(t, id);
    if (a != NULL) return *n = a->n, a->text;
    *n = 0;
    if (id < 0 || id >= t->bpe.n_ids) return NULL;
    *n = t->bpe.tokens[id].n;
    return t->bpe.tokens[id].text;
}

const char *tokenizer_shown(const struct tokenizer *t, int32_t id, size_t *n, bool *skipped) {
    const struct added_token *a = added_of(t, id);
    *skipped = a != NULL && a->skipped;
    if (a == NULL) return tokenizer_token(t, id, n);
    *n = a->shown_n;
    return a->shown;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

void tokenizer_free(struct tokenizer *t) {
    if (t == NULL) return;
    for (size_t i = 0; i < t->norms.n; i++) tokenizer_split_release(&t->norms.items[i].pattern);
    for (size_t i = 0; i < t->pres.n; i++) tokenizer_split_release(&t->pres.items[i].pattern);
    ARRAY_FINI(&t->norms);
    ARRAY_FINI(&t->pres);
    ARRAY_FINI(&t->post.ids);
    ARRAY_FINI(&t->decodes);
    ARRAY_FINI(&t->added);
    tokenizer_added_fini(&t->raw);
    tokenizer_added_fini(&t->normalized);
    map_fini(&t->added_ids);
    tokenizer_bpe_fini(&t->bpe);
    arena_fini(&t->arena);
    free(t);
}
