#include "model/tokenizer_split.h"
#include "base/checked.h"
#include "model/tokenizer_text.h"
#include "model/tokenizer_unicode.h"

#include <string.h>

/* \s, \w, \d and \h of Oniguruma as the inside of a PCRE2 class. PCRE2's own \s also has U+180E;
 * its \w lacks marks, connector punctuation and letter-like symbols; its \h is blanks, not hex
 * digits. Oniguruma's \w has the digits of Latin-1 that are not decimal. */
#define SPACE_SET                                                                                  \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define DIGIT_SET "\\p{Nd}" UNICODE_NEWER_ND
#define WORD_SET                                                                                   \
    "\\p{Alphabetic}\\p{M}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" UNICODE_NEWER_L             \
        UNICODE_NEWER_M DIGIT_SET
#define HEX_SET "0-9a-fA-F"

/* The set that an escape letter stands for; NULL: both engines agree. */
static const char *escape_set(char letter) {
    switch (letter) {
    case 's':
    case 'S': return SPACE_SET;
    case 'w':
    case 'W': return WORD_SET;
    case 'd':
    case 'D': return DIGIT_SET;
    case 'h':
    case 'H': return HEX_SET;
    default: return NULL;
    }
}

/* Rewrites the escape source[i] = '\\', source[i + 1]; in_class: between [ and ]. */
static int translate_escape(struct diag *d, const char *field, char letter, bool in_class,
                            struct strbuf *out) {
    const char *set = escape_set(letter);
    bool negated = letter >= 'A' && letter <= 'Z';
    if (set == NULL) {
        if (letter == '\0' || strchr("CGKOXyYmM", letter) != NULL)
            return fail(d, QN_EUNSUPPORTED, "%s: the escape \\%c", field, letter);
        strbuf_printf(out, "\\%c", letter);
    } else if (!in_class) {
        strbuf_printf(out, "[%s%s]", negated ? "^" : "", set);
    } else if (!negated) {
        strbuf_str(out, set);
    } else if (letter == 'S') {
        /* A negated set cannot stand inside a class; its ranges can. */
        strbuf_str(out, "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"
                        "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-"
                        "\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}");
    } else {
        return fail(d, QN_EUNSUPPORTED, "%s: \\%c inside a class", field, letter);
    }
    return QN_OK;
}

/* Translates \p{..} and \P{..} at s[*i] = 'p', and adds the characters of that category that PCRE2
 * does not know; moves *i to the closing brace. */
static int translate_property(struct diag *d, const char *field, const char *s, size_t n, size_t *i,
                              bool in_class, struct strbuf *out) {
    const char *newer = "", *name = s + *i + 2;
    const char *end = *i + 1 < n && s[*i + 1] == '{' ? memchr(name, '}', n - *i - 2) : NULL;
    if (end == NULL) return fail(d, QN_EUNSUPPORTED, "%s: \\%c without {}", field, s[*i]);
    bool negated = (s[*i] == 'P') != (*name == '^');
    name += *name == '^';
    size_t k = (size_t)(end - name);
    for (size_t j = 0; j < COUNT_OF(unicode_newer); j++)
        if (strlen(unicode_newer[j].category) == k &&
            memcmp(unicode_newer[j].category, name, k) == 0)
            newer = unicode_newer[j].newer;
    *i = (size_t)(end - s);
    /* A negated set cannot stand inside a class: here the newer characters are left out. */
    if (in_class && negated) newer = "";
    strbuf_str(out, in_class ? "" : negated ? "[^" : "[");
    strbuf_printf(out, "\\%c{%.*s}%s", in_class && negated ? 'P' : 'p', (int)k, name, newer);
    strbuf_str(out, in_class ? "" : "]");
    return QN_OK;
}

/* Translates Oniguruma's source to PCRE2's. Intersections and nested classes have no
 * translation. */
static int translate(struct diag *d, const char *field, const char *s, size_t n,
                     struct strbuf *out) {
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\\') {
            if (i + 1 == n) return fail(d, QN_EUNSUPPORTED, "%s: ends with a backslash", field);
            i++;
            if (s[i] == 'p' || s[i] == 'P')
                TRY(translate_property(d, field, s, n, &i, in_class, out));
            else
                TRY(translate_escape(d, field, s[i], in_class, out));
            continue;
        }
        if (in_class) {
            if (s[i] == '[' && !(i + 1 < n && s[i + 1] == ':'))
                return fail(d, QN_EUNSUPPORTED, "%s: a class inside a class", field);
            if (s[i] == '[') { /* [:name:] up to its end */
                size_t end = i + 2;
                while (end + 1 < n && !(s[end] == ':' && s[end + 1] == ']')) end++;
                if (end + 1 >= n) return fail(d, QN_EUNSUPPORTED, "%s: [: without :]", field);
                strbuf_add(out, s + i, end + 2 - i);
                i = end + 1;
                continue;
            }
            if (s[i] == '&' && i + 1 < n && s[i + 1] == '&')
                return fail(d, QN_EUNSUPPORTED, "%s: && inside a class", field);
            if (s[i] == ']') in_class = false;
        } else if (s[i] == '[') {
            in_class = true;
            strbuf_char(out, '[');
            if (i + 1 < n && s[i + 1] == '^') strbuf_char(out, s[++i]);
            if (i + 1 < n && s[i + 1] == ']') strbuf_str(out, "\\"), strbuf_char(out, s[++i]);
            continue;
        } else if (s[i] == '(' && i + 2 < n && s[i + 1] == '?' && strchr("imx-", s[i + 2])) {
            /* (?m) is "dot matches newline" to Oniguruma and something else to PCRE2. */
            for (size_t j = i + 2; j < n && s[j] != ')' && s[j] != ':'; j++)
                if (s[j] == 'm') return fail(d, QN_EUNSUPPORTED, "%s: the option (?m)", field);
        } else if (s[i] == '(' && i + 1 < n && s[i + 1] == '*') {
            return fail(d, QN_EUNSUPPORTED, "%s: (*", field);
        }
        strbuf_char(out, s[i]);
    }
    return strbuf_status(d, out);
}

static int compile_translated(struct diag *d, const char *field, const struct strbuf *source,
                              struct pattern *p) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) return fail_nomem(d, 0, "a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    int error;
    PCRE2_SIZE at;
    /* ^ and $ match at every line in Oniguruma's default syntax. */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    p->code =
        pcre2_compile((PCRE2_SPTR)strbuf_text(source), source->n, options, &error, &at, context);
    pcre2_compile_context_free(context);
    if (p->code == NULL) {
        unsigned char text[120];
        pcre2_get_error_message(error, text, sizeof text);
        return fail(d, QN_EUNSUPPORTED, "%s: character %zu: %s", field, (size_t)at, (char *)text);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* may fail: pcre2_match then interprets */
    return QN_OK;
}

int tokenizer_split_compile(struct diag *d, const char *field, const char *source, size_t n,
                            struct pattern *p) {
    struct strbuf translated = {0};
    *p = (struct pattern){0};
    int rc = translate(d, field, source, n, &translated);
    if (rc == QN_OK) rc = compile_translated(d, field, &translated, p);
    strbuf_fini(&translated);
    return rc;
}

void tokenizer_split_release(struct pattern *p) {
    pcre2_code_free(p->code);
    *p = (struct pattern){0};
}

static int find_code(struct diag *d, const struct pattern *p, pcre2_match_data *match,
                     const char *text, size_t n, size_t *start, size_t *end, bool *found) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = pcre2_match(p->code, subject, n, *start, PCRE2_NO_UTF_CHECK, match, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(p->code, subject, n, *start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match,
                         NULL);
    if (rc == PCRE2_ERROR_NOMATCH) return QN_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return fail_nomem(d, 0, "a regular expression match");
    if (rc < 0)
        return fail(d, QN_ELIMIT, "tokenizer: the pattern fails at byte %zu (PCRE2 error %d)",
                    *start, rc);
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(match);
    *start = o[0], *end = o[1], *found = true;
    return QN_OK;
}

int tokenizer_split_find(struct diag *d, const struct pattern *p, pcre2_match_data *match,
                         const char *text, size_t n, size_t *start, size_t *end, bool *found) {
    *found = false;
    if (p->code != NULL) return find_code(d, p, match, text, n, start, end, found);
    if (p->is_in_class != NULL) {
        for (size_t i = *start; i < n;) {
            size_t at = i;
            if (!p->is_in_class(tokenizer_text_next(text, &i))) continue;
            *start = at, *end = i, *found = true;
            return QN_OK;
        }
        return QN_OK;
    }
    if (p->n == 0 || *start >= n) return QN_OK;
    const char *hit = memmem(text + *start, n - *start, p->text, p->n);
    if (hit == NULL) return QN_OK;
    *start = (size_t)(hit - text), *end = *start + p->n, *found = true;
    return QN_OK;
}

/* Adds text[start, end) of word w; drops empty words. */
static int add_word(struct diag *d, struct words *to, const struct word *w, size_t start,
                    size_t end) {
    if (start == end) return QN_OK;
    return ARRAY_PUSH(d, &to->items,
                      (struct word){w->start + start, end - start, w->first && start == 0});
}

/* The state of cutting one word. The behaviours differ in how a piece joins the piece before it. */
struct cutter {
    struct words *to;
    const struct word *word;
    enum split_behavior behavior;
    size_t start; /* the piece that is still open, [start, end) */
    size_t end;
    bool open, open_is_match;
};

static int close_piece(struct diag *d, struct cutter *c) {
    if (!c->open) return QN_OK;
    c->open = false;
    if (c->open_is_match && c->behavior == SPLIT_REMOVED) return QN_OK;
    return add_word(d, c->to, c->word, c->start, c->end);
}

static bool joins(const struct cutter *c, bool is_match) {
    switch (c->behavior) {
    case SPLIT_CONTIGUOUS: return is_match == c->open_is_match;
    case SPLIT_MERGED_WITH_PREVIOUS: return is_match && !c->open_is_match;
    case SPLIT_MERGED_WITH_NEXT: return c->open_is_match && !is_match;
    default: return false;
    }
}

static int add_piece(struct diag *d, struct cutter *c, size_t start, size_t end, bool is_match) {
    if (c->open && joins(c, is_match)) {
        c->end = end;
        c->open_is_match = is_match;
        return QN_OK;
    }
    TRY(close_piece(d, c));
    c->start = start, c->end = end, c->open = true, c->open_is_match = is_match;
    return QN_OK;
}

/* Oniguruma's iteration: an empty match directly after a match does not count, and the search goes
 * on after the next character; any other empty match is a cut. */
static int split_word(struct diag *d, const struct pre_step *s, pcre2_match_data *match,
                      const struct word *w, struct words *to) {
    const char *text = to->text.text + w->start;
    struct cutter c = {.to = to, .word = w, .behavior = s->behavior};
    size_t done = 0;
    bool any = false;
    for (size_t from = 0;;) {
        size_t start = from, end;
        bool found;
        TRY(tokenizer_split_find(d, &s->pattern, match, text, w->n, &start, &end, &found));
        if (!found) break;
        if (start == end && any && end == done) {
            if (from >= w->n) break;
            tokenizer_text_next(text, &from);
            continue;
        }
        if (start > done) TRY(add_piece(d, &c, done, start, s->invert));
        TRY(add_piece(d, &c, start, end, !s->invert));
        done = from = end;
        any = true;
    }
    if (done < w->n) TRY(add_piece(d, &c, done, w->n, s->invert));
    return close_piece(d, &c);
}

static bool starts_with(const char *text, size_t n, const char *prefix) {
    size_t k = strlen(prefix);
    return n >= k && memcmp(text, prefix, k) == 0;
}

/* Rewrites one word, for the steps that write new text. */
static void rewrite_word(const struct pre_step *s, const char *text, const struct word *w,
                         struct strbuf *out) {
    switch (s->kind) {
    case PRE_PREFIX_SPACE:
        if (text[0] != ' ') strbuf_char(out, ' ');
        strbuf_add(out, text, w->n);
        break;
    case PRE_ALPHABET: tokenizer_text_to_alphabet(out, text, w->n); break;
    case PRE_METASPACE:
        if ((s->prepend == PREPEND_ALWAYS || (s->prepend == PREPEND_FIRST && w->first)) &&
            text[0] != ' ' && !starts_with(text, w->n, s->replacement))
            strbuf_str(out, s->replacement);
        for (size_t i = 0; i < w->n;) {
            const char *space = memchr(text + i, ' ', w->n - i);
            size_t end = space == NULL ? w->n : (size_t)(space - text);
            strbuf_add(out, text + i, end - i);
            if (space != NULL) strbuf_str(out, s->replacement);
            i = end + (space != NULL);
        }
        break;
    case PRE_SPLIT: break;
    }
}

int tokenizer_split_apply(struct diag *d, const struct pre_step *s, pcre2_match_data *match,
                          struct words *from, struct words *to) {
    to->items.n = 0;
    strbuf_clear(&to->text);
    if (s->kind == PRE_SPLIT) {
        struct strbuf spare = to->text;
        to->text = from->text;
        from->text = spare;
        for (size_t i = 0; i < from->items.n; i++)
            TRY(split_word(d, s, match, &from->items.items[i], to));
        return QN_OK;
    }
    for (size_t i = 0; i < from->items.n; i++) {
        const struct word *w = &from->items.items[i];
        size_t start = to->text.n;
        rewrite_word(s, from->text.text + w->start, w, &to->text);
        if (to->text.n > start)
            TRY(ARRAY_PUSH(d, &to->items, (struct word){start, to->text.n - start, w->first}));
    }
    return strbuf_status(d, &to->text);
}
