#include "model/chat_template_jinja.h"
#include "base/checked.h"

#include <string.h>

/* A tag: kind is the character behind {, its inside is program[start, end). */
struct tag {
    char kind;
    size_t open, start, end, close; /* close: behind the closing braces */
    bool trims_before, trims_after;
};

/* Finds the next tag at or after `at`; found = false: there is none. */
static int next_tag(struct diag *d, const char *where, const char *p, size_t n, size_t at,
                    struct tag *t, bool *found) {
    *found = false;
    for (; at + 1 < n; at++)
        if (p[at] == '{' && (p[at + 1] == '{' || p[at + 1] == '%' || p[at + 1] == '#')) break;
    if (at + 1 >= n) return QN_OK;
    char kind = p[at + 1], last = kind == '{' ? '}' : kind, quote = 0;
    *t = (struct tag){.kind = kind, .open = at, .start = at + 2};
    for (size_t i = at + 2; i + 1 < n; i++) {
        if (quote != 0) {
            if (p[i] == '\\')
                i++;
            else if (p[i] == quote)
                quote = 0;
        } else if (kind != '#' && (p[i] == '\'' || p[i] == '"')) {
            quote = p[i];
        } else if (p[i] == last && p[i + 1] == '}') {
            t->end = i;
            t->close = i + 2;
            t->trims_before = t->start < i && p[t->start] == '-';
            t->trims_after = t->start < i && p[i - 1] == '-';
            t->start += t->trims_before;
            t->end -= t->trims_after && t->end > t->start;
            *found = true;
            return QN_OK;
        }
    }
    return fail(d, QN_EFORMAT, "%s: byte %zu: a tag without end", where, at);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Whether the text p[start, end) between two tags (NULL: the program's ends) writes anything. */
static bool writes(const char *p, size_t start, size_t end, const struct tag *before,
                   const struct tag *after) {
    for (size_t i = start; i < end; i++)
        if (!is_blank(p[i])) return true;
    if (start == end || (before != NULL && before->trims_after) ||
        (after != NULL && after->trims_before))
        return false;
    if (before != NULL && before->kind != '{' && p[start] == '\n') start++;
    if (after == NULL && end > start && p[end - 1] == '\n') end--;
    if (after != NULL && after->kind != '{')
        while (end > start && (p[end - 1] == ' ' || p[end - 1] == '\t')) end--;
    return end > start;
}

/* Expressions. */

struct cursor {
    const char *p, *end;
};

static void skip_blanks(struct cursor *c) {
    while (c->p < c->end && is_blank(*c->p)) c->p++;
}

static bool take(struct cursor *c, const char *word) {
    size_t k = strlen(word);
    skip_blanks(c);
    if ((size_t)(c->end - c->p) < k || memcmp(c->p, word, k) != 0) return false;
    c->p += k;
    return true;
}

/* The text between quotes with its escapes resolved as Python does. */
static bool take_text(struct cursor *c, struct strbuf *text) {
    static const char letters[] = "nrt'\"\\", means[] = "\n\r\t'\"\\";
    skip_blanks(c);
    if (c->p == c->end || (*c->p != '\'' && *c->p != '"')) return false;
    char quote = *c->p++;
    for (; c->p < c->end && *c->p != quote; c->p++) {
        const char *letter = NULL;
        if (*c->p == '\\' && c->p + 1 < c->end) letter = strchr(letters, c->p[1]);
        if (letter != NULL && *letter != '\0') {
            strbuf_char(text, means[letter - letters]);
            c->p++;
        } else {
            strbuf_char(text, *c->p);
        }
    }
    return c->p < c->end && *c->p++ == quote;
}

/* A variable name must not go on behind what was taken. */
static bool word_ends(const struct cursor *c) {
    if (c->p == c->end) return true;
    char x = *c->p;
    return !(x == '_' || x == '[' || (x >= '0' && x <= '9') || (x >= 'a' && x <= 'z') ||
             (x >= 'A' && x <= 'Z'));
}

static bool take_variable(struct cursor *c, struct jinja_term *term) {
    static const struct {
        const char *spelling;
        enum jinja_kind kind;
    } variables[] = {
        {"bos_token", JINJA_BOS},
        {"eos_token", JINJA_EOS},
        {"message['role']", JINJA_ROLE},
        {"message[\"role\"]", JINJA_ROLE},
        {"message.role", JINJA_ROLE},
        {"message['content']", JINJA_CONTENT},
        {"message[\"content\"]", JINJA_CONTENT},
        {"message.content", JINJA_CONTENT},
        {"content", JINJA_CONTENT},
        {"system_message", JINJA_SYSTEM},
        {"date_string", JINJA_DATE},
    };
    for (size_t i = 0; i < COUNT_OF(variables); i++) {
        struct cursor before = *c;
        if (take(c, variables[i].spelling) && word_ends(c)) {
            term->kind = variables[i].kind;
            return true;
        }
        *c = before;
    }
    return false;
}

static void take_strip(struct cursor *c, struct jinja_term *term) {
    struct cursor before = *c;
    if (take(c, ".strip()") || (take(c, "|") && take(c, "trim") && word_ends(c)))
        term->strip = true;
    else
        *c = before;
}

static int copy_text(struct diag *d, struct jinja *j, const struct strbuf *text,
                     struct jinja_term *term) {
    char *copy;
    TRY(strbuf_status(d, text));
    TRY(arena_copy(d, &j->arena, strbuf_text(text), text->n, &copy));
    *term = (struct jinja_term){.kind = JINJA_TEXT, .text = copy, .n = text->n};
    return QN_OK;
}

static bool add_term(struct jinja_sum *s, const struct jinja_term *term) {
    if (s->n == JINJA_MAX_TERMS) return false;
    s->terms[s->n++] = *term;
    return true;
}

/* One sum; *whole = false: it is more than that. Texts side by side become one. */
static int parse_sum(struct diag *d, struct jinja *j, struct cursor *c, struct jinja_sum *s,
                     bool *whole) {
    struct strbuf text = {0};
    int rc = QN_OK;
    bool pending = false, more = true;
    *whole = false;
    while (more && rc == QN_OK) {
        struct jinja_term term = {0};
        if (take_text(c, &text)) {
            pending = true;
        } else {
            struct jinja_term before;
            if (!take_variable(c, &term)) goto done;
            take_strip(c, &term);
            if (pending) {
                rc = copy_text(d, j, &text, &before);
                strbuf_clear(&text);
                pending = false;
                if (rc != QN_OK || !add_term(s, &before)) goto done;
            }
            if (!add_term(s, &term)) goto done;
        }
        more = take(c, "+") || take(c, "~");
    }
    if (rc == QN_OK && pending) {
        struct jinja_term last;
        rc = copy_text(d, j, &text, &last);
        if (rc != QN_OK || !add_term(s, &last)) goto done;
    }
    skip_blanks(c);
    *whole = c->p == c->end;
done:
    strbuf_fini(&text);
    return rc;
}

/* "set NAME =" of a block; NULL name: it is no such block. */
static int take_set(struct diag *d, struct jinja *j, struct cursor *c, const char **name) {
    *name = NULL;
    if (!take(c, "set ")) return QN_OK;
    skip_blanks(c);
    const char *start = c->p;
    while (c->p < c->end && !is_blank(*c->p) && *c->p != '=') c->p++;
    const char *end = c->p;
    char *copy;
    if (!take(c, "=")) return QN_OK;
    TRY(arena_copy(d, &j->arena, start, (size_t)(end - start), &copy));
    *name = copy;
    return QN_OK;
}

static int parse_tag(struct diag *d, struct jinja *j, const char *p, const struct tag *t) {
    struct cursor c = {p + t->start, p + t->end};
    struct jinja_sum sum = {0};
    bool whole;
    if (t->kind == '%') {
        TRY(take_set(d, j, &c, &sum.target));
        if (sum.target == NULL) return QN_OK;
    }
    TRY(parse_sum(d, j, &c, &sum, &whole));
    return whole ? ARRAY_PUSH(d, &j->sums, sum) : QN_OK;
}

/* x['y'] as x.y, " as ', no blanks. */
static void squeeze(struct strbuf *out, const char *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = p[i] == '"' ? '\'' : p[i];
        if (is_blank(c)) continue;
        strbuf_char(out, c);
        if (c != ']') continue;
        size_t close = out->n - 2, open;
        if (out->n < 4 || out->text[close] != '\'') continue;
        for (open = close; open > 0 && out->text[open - 1] != '\'' && out->text[open - 1] != '[';)
            open--;
        if (open < 2 || out->text[open - 1] != '\'' || out->text[open - 2] != '[') continue;
        memmove(out->text + open - 1, out->text + open, close - open);
        out->text[open - 2] = '.';
        out->n -= 3;
        out->text[out->n] = '\0';
    }
    strbuf_char(out, '\n');
}

int jinja_parse(struct diag *d, const char *where, const char *program, size_t n, struct jinja *j) {
    struct tag before = {0}, tag;
    bool found, any = false;
    size_t at = 0;
    *j = (struct jinja){0};
    for (;;) {
        TRY(next_tag(d, where, program, n, at, &tag, &found));
        if (writes(program, at, found ? tag.open : n, any ? &before : NULL, found ? &tag : NULL))
            return fail(d, QN_EUNSUPPORTED, "%s: byte %zu: text between its tags", where, at);
        if (!found) return strbuf_status(d, &j->squeezed);
        if (tag.kind != '#') {
            TRY(parse_tag(d, j, program, &tag));
            squeeze(&j->squeezed, program + tag.start, tag.end - tag.start);
        }
        before = tag;
        any = true;
        at = tag.close;
    }
}

void jinja_fini(struct jinja *j) {
    ARRAY_FINI(&j->sums);
    strbuf_fini(&j->squeezed);
    arena_fini(&j->arena);
}

bool jinja_has(const struct jinja *j, const char *what) {
    return strstr(strbuf_text(&j->squeezed), what) != NULL;
}

const struct jinja_sum *jinja_find(const struct jinja *j, const char *target, const char *kinds,
                                   const char *prefix) {
    static const char letters[] = "TBERCSD"; /* enum jinja_kind */
    size_t prefix_n = strlen(prefix);
    for (size_t i = 0; i < j->sums.n; i++) {
        const struct jinja_sum *s = &j->sums.items[i];
        int n = 0;
        if ((s->target == NULL) != (target == NULL)) continue;
        if (target != NULL && strcmp(s->target, target) != 0) continue;
        while (n < s->n && kinds[n] == letters[s->terms[n].kind]) n++;
        if (n != s->n || kinds[n] != '\0') continue;
        const struct jinja_term *first = &s->terms[0];
        for (n = 0; n < s->n && first->kind != JINJA_TEXT;) first = &s->terms[n++];
        if (prefix_n == 0 || (first->kind == JINJA_TEXT && first->n >= prefix_n &&
                              memcmp(first->text, prefix, prefix_n) == 0))
            return s;
    }
    return NULL;
}
