#include "model/tokenizer_decode.h"
#include "model/tokenizer_internal.h"

#include <string.h>

/* What one call of push or flush works on. */
struct emit {
    struct token_stream *s;
    struct strbuf *out;
};

static int pass(struct diag *d, const struct emit *e, size_t step, const char *text, size_t n);

void token_stream_init(struct token_stream *s, const struct tokenizer *t, bool skip_special) {
    *s = (struct token_stream){.t = t, .skip_special = skip_special};
}

void token_stream_fini(struct token_stream *s) {
    for (int i = 0; i < TOKENIZER_MAX_DECODERS; i++) strbuf_fini(&s->steps[i].held);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tokenizer_decode_byte(const char *text, size_t n) {
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = text[3] == '+' ? 0 : hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* Whether all characters of a token are in the byte alphabet; other tokens stand for themselves. */
static bool in_alphabet(const char *text, size_t n) {
    for (size_t i = 0; i < n;)
        if (tokenizer_text_from_alphabet(tokenizer_text_next(text, &i)) < 0) return false;
    return true;
}

static void alphabet_bytes(const char *text, size_t n, struct strbuf *out) {
    if (!in_alphabet(text, n)) {
        strbuf_add(out, text, n);
        return;
    }
    for (size_t i = 0; i < n;)
        strbuf_char(out, (char)tokenizer_text_from_alphabet(tokenizer_text_next(text, &i)));
}

static void drop_front(struct strbuf *b, size_t n) {
    if (n == 0) return;
    memmove(b->text, b->text + n, b->n - n);
    b->n -= n;
    b->text[b->n] = '\0';
}

/* Bytes at the end of b that begin an unfinished character. */
static size_t unfinished(const struct strbuf *b) {
    for (size_t back = 1; back <= 3 && back <= b->n; back++) {
        size_t length;
        if (((unsigned char)b->text[b->n - back] & 0xC0) == 0x80) continue;
        return tokenizer_text_part(b->text + b->n - back, back, &length) == TEXT_SHORT ? back : 0;
    }
    return 0;
}

/* Passes held[0, n) on as text. */
static int pass_lossy(struct diag *d, const struct emit *e, size_t step, struct strbuf *held,
                      size_t n) {
    if (n == 0) return QN_OK;
    struct strbuf text = {0};
    tokenizer_text_lossy(&text, held->text, n);
    drop_front(held, n);
    int rc = strbuf_status(d, &text);
    if (rc == QN_OK) rc = pass(d, e, step + 1, text.text, text.n);
    strbuf_fini(&text);
    return rc;
}

/* A run of byte tokens is text if all of it is UTF-8, else one U+FFFD per byte. */
static int pass_bytes(struct diag *d, const struct emit *e, size_t step, struct strbuf *held) {
    if (held->n == 0) return QN_OK;
    struct strbuf run = *held;
    *held = (struct strbuf){0};
    int rc;
    if (tokenizer_text_valid(run.text, run.n)) {
        rc = pass(d, e, step + 1, run.text, run.n);
    } else {
        rc = QN_OK;
        for (size_t i = 0; i < run.n && rc == QN_OK; i++)
            rc = pass(d, e, step + 1, TOKENIZER_REPLACEMENT, 3);
    }
    strbuf_fini(&run);
    return rc;
}

/* Replaces in b[0, limit) as far as that is decided; *used is how far. A match that may go on after
 * the end of b stays undecided unless `last`. */
static void replace_some(const struct decode_step *k, const char *text, size_t n, bool last,
                         struct strbuf *to, size_t *used) {
    size_t i = 0;
    while (i < n) {
        size_t left = n - i, common = left < k->text_n ? left : k->text_n;
        const char *hit = memchr(text + i, k->text[0], left);
        if (hit == NULL || hit > text + i) {
            size_t plain = hit == NULL ? left : (size_t)(hit - text) - i;
            strbuf_add(to, text + i, plain);
            i += plain;
            continue;
        }
        const bool begins = memcmp(text + i, k->text, common) == 0;
        if (begins && common == k->text_n) {
            strbuf_add(to, k->with, k->with_n);
            i += k->text_n;
        } else if (!begins || last) {
            strbuf_char(to, text[i++]);
        } else {
            break;
        }
    }
    *used = i;
}

static int step_replace(struct diag *d, const struct emit *e, size_t step, const char *text,
                        size_t n, bool last) {
    const struct decode_step *k = &e->s->t->decodes.items[step];
    struct strbuf *held = &e->s->steps[step].held, to = {0};
    size_t used;
    int rc = QN_OK;
    if (k->fused) {
        strbuf_add(held, text, n);
        TRY(strbuf_status(d, held));
        replace_some(k, strbuf_text(held), held->n, last, &to, &used);
        drop_front(held, used);
        if (to.n == 0) goto done;
    } else {
        replace_some(k, text, n, true, &to, &used);
    }
    rc = strbuf_status(d, &to);
    if (rc == QN_OK) rc = pass(d, e, step + 1, strbuf_text(&to), to.n);
done:
    strbuf_fini(&to);
    return rc;
}

/* Bytes of k->text repeated at the beginning or end of text, at most `most` times. */
static size_t run_at_start(const struct decode_step *k, const char *text, size_t n, int64_t most) {
    size_t at = 0;
    while (most-- > 0 && n - at >= k->text_n && memcmp(text + at, k->text, k->text_n) == 0)
        at += k->text_n;
    return at;
}

static size_t run_at_end(const struct decode_step *k, const char *text, size_t n, int64_t most) {
    size_t end = n;
    while (most-- > 0 && end >= k->text_n &&
           memcmp(text + end - k->text_n, k->text, k->text_n) == 0)
        end -= k->text_n;
    return n - end;
}

/* Characters are stripped whole: the texts are UTF-8 and k->text is one character. While fused,
 * n_seen counts the bytes that passed the left end, and the right end is held back. */
static int step_strip(struct diag *d, const struct emit *e, size_t step, const char *text, size_t n,
                      bool last) {
    const struct decode_step *k = &e->s->t->decodes.items[step];
    struct token_stream_step *state = &e->s->steps[step];
    if (!k->fused) {
        size_t left = run_at_start(k, text, n, k->n_left);
        size_t right = run_at_end(k, text + left, n - left, k->n_right);
        return pass(d, e, step + 1, text + left, n - left - right);
    }
    /* The left end: n_seen is the number of characters stripped, or more than n_left once done. */
    uint64_t most = (uint64_t)k->n_left;
    if (state->n_seen <= most) {
        size_t left = run_at_start(k, text, n, (int64_t)(most - state->n_seen));
        text += left, n -= left;
        state->n_seen = n > 0 ? most + 1 : state->n_seen + left / k->text_n;
    }
    strbuf_add(&state->held, text, n);
    TRY(strbuf_status(d, &state->held));
    size_t right = run_at_end(k, strbuf_text(&state->held), state->held.n, k->n_right);
    size_t certain = state->held.n - right;
    if (certain > 0) TRY(pass(d, e, step + 1, state->held.text, certain));
    drop_front(&state->held, certain);
    if (last) strbuf_clear(&state->held);
    return QN_OK;
}

static int step_metaspace(struct diag *d, const struct emit *e, size_t step, const char *text,
                          size_t n) {
    const struct decode_step *k = &e->s->t->decodes.items[step];
    struct decode_step replace = *k;
    bool drop = k->drop_first && (k->fused || e->s->steps[step].n_seen == 0);
    struct strbuf to = {0};
    size_t used;
    replace.with = " ";
    replace.with_n = drop ? 0 : 1;
    e->s->steps[step].n_seen = 1;
    replace_some(&replace, text, n, true, &to, &used);
    int rc = strbuf_status(d, &to);
    if (rc == QN_OK) rc = pass(d, e, step + 1, strbuf_text(&to), to.n);
    strbuf_fini(&to);
    return rc;
}

static int step_bytes(struct diag *d, const struct emit *e, size_t step, const char *text,
                      size_t n) {
    struct strbuf *held = &e->s->steps[step].held;
    int byte = tokenizer_decode_byte(text, n);
    if (byte >= 0) {
        strbuf_char(held, (char)byte);
        return strbuf_status(d, held);
    }
    TRY(pass_bytes(d, e, step, held));
    return pass(d, e, step + 1, text, n);
}

static int step_alphabet(struct diag *d, const struct emit *e, size_t step, const char *text,
                         size_t n) {
    struct strbuf *held = &e->s->steps[step].held;
    alphabet_bytes(text, n, held);
    TRY(strbuf_status(d, held));
    return pass_lossy(d, e, step, held, held->n - unfinished(held));
}

/* Passes text (a token, or a part of the one fused token) to step `step` and those after it. */
static int pass(struct diag *d, const struct emit *e, size_t step, const char *text, size_t n) {
    if (step == e->s->t->decodes.n) {
        strbuf_add(e->out, text, n);
        return strbuf_status(d, e->out);
    }
    switch (e->s->t->decodes.items[step].kind) {
    case DECODE_ALPHABET: return step_alphabet(d, e, step, text, n);
    case DECODE_BYTES: return step_bytes(d, e, step, text, n);
    case DECODE_REPLACE: return step_replace(d, e, step, text, n, false);
    case DECODE_STRIP: return step_strip(d, e, step, text, n, false);
    case DECODE_METASPACE: return step_metaspace(d, e, step, text, n);
    case DECODE_JOIN:
        if (e->s->steps[step].n_seen++ > 0) TRY(pass(d, e, step + 1, " ", 1));
        return pass(d, e, step + 1, text, n);
    case DECODE_FUSE: break;
    }
    return pass(d, e, step + 1, text, n);
}

static int out_of_range(struct diag *d, const struct tokenizer *t, int32_t id) {
    return fail(d, QN_EINVAL, "token id %d: this tokenizer has ids 0 to %d", id, t->n_vocab - 1);
}

int token_stream_push(struct diag *d, struct token_stream *s, int32_t id, struct strbuf *out) {
    if (id < 0 || id >= s->t->n_vocab) return out_of_range(d, s->t, id);
    size_t n;
    bool skipped;
    const char *text = tokenizer_shown(s->t, id, &n, &skipped);
    if (text == NULL || (s->skip_special && skipped)) return QN_OK;
    return pass(d, &(struct emit){s, out}, 0, text, n);
}

int token_stream_flush(struct diag *d, struct token_stream *s, struct strbuf *out) {
    struct emit e = {s, out};
    for (size_t i = 0; i < s->t->decodes.n; i++) {
        const struct decode_step *k = &s->t->decodes.items[i];
        struct strbuf *held = &s->steps[i].held;
        if (k->kind == DECODE_ALPHABET) TRY(pass_lossy(d, &e, i, held, held->n));
        if (k->kind == DECODE_BYTES) TRY(pass_bytes(d, &e, i, held));
        if (k->kind == DECODE_REPLACE && k->fused) TRY(step_replace(d, &e, i, "", 0, true));
        if (k->kind == DECODE_STRIP && k->fused) TRY(step_strip(d, &e, i, "", 0, true));
    }
    return QN_OK;
}

int tokenizer_decode(struct diag *d, const struct tokenizer *t, const int32_t *ids, size_t n,
                     bool skip_special, struct strbuf *out) {
    struct token_stream s;
    int rc = QN_OK;
    size_t start = out->n;
    token_stream_init(&s, t, skip_special);
    for (size_t i = 0; i < n && rc == QN_OK; i++) rc = token_stream_push(d, &s, ids[i], out);
    if (rc == QN_OK) rc = token_stream_flush(d, &s, out);
    token_stream_fini(&s);
    if (rc != QN_OK && out->text != NULL) out->n = start, out->text[start] = '\0';
    return rc;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    size_t n;
    bool skipped = false;
    return id >= 0 && id < t->n_vocab && tokenizer_shown(t, id, &n, &skipped) != NULL && skipped;
}

int tokenizer_bytes(struct diag *d, const struct tokenizer *t, int32_t id, struct strbuf *out) {
    if (id < 0 || id >= t->n_vocab) return out_of_range(d, t, id);
    size_t n, used;
    bool skipped;
    const char *text = tokenizer_shown(t, id, &n, &skipped);
    if (text == NULL) return QN_OK;
    struct strbuf now = {0};
    strbuf_add(&now, text, n);
    for (size_t i = 0; i < t->decodes.n; i++) {
        struct decode_step k = t->decodes.items[i];
        struct strbuf next = {0};
        int byte = tokenizer_decode_byte(strbuf_text(&now), now.n);
        if (k.kind == DECODE_METASPACE) k.with = " ", k.with_n = 1;
        if (k.kind == DECODE_ALPHABET)
            alphabet_bytes(strbuf_text(&now), now.n, &next);
        else if (k.kind == DECODE_BYTES && byte >= 0)
            strbuf_char(&next, (char)byte);
        else if (k.kind == DECODE_REPLACE || k.kind == DECODE_METASPACE)
            replace_some(&k, strbuf_text(&now), now.n, true, &next, &used);
        else
            strbuf_add(&next, strbuf_text(&now), now.n);
        strbuf_fini(&now);
        now = next;
    }
    int rc = strbuf_status(d, &now);
    if (rc == QN_OK) strbuf_add(out, strbuf_text(&now), now.n);
    strbuf_fini(&now);
    return rc == QN_OK ? strbuf_status(d, out) : rc;
}
